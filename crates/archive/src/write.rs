// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: an archive store, for the one process that writes it.
//! In from: the composer (encoded segments; which are dead). Out to: a device, by writer threads.
//! Invariants: data and table are durable before the root that refers to them is written; what that
//! root no longer refers to is free when it is durable; after a failed sync the store refuses all.
//! Format: docs/format/archive.md, section "Commit".

use super::extent::Payload;
use super::fence::Fence;
use super::head::{self, RootSlots, State};
use super::heir::Watch;
use super::make::{self, Made};
use super::queue::Queue;
use super::space::{Space, Surplus};
use super::view::OpenFile;
use super::{ArchiveDevice, Folder, Identity, Place, WriteOptions};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::direct::SharedFile;
use backstay_base::io::two_slots::TwoSlots;
use backstay_base::io::{Device, ReadAt};
use backstay_format::archive::{DATA_OFFSET, GRAIN_BYTES};
use backstay_format::limits::{SEGMENTS_MAX, STORED_BYTES_MAX};
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{
    ArchiveRoot, ArchiveSuperblock, ArchiveTable, BaseRun, CheckpointId, Digest, ElementType,
    RevisionEntry, SegmentClass, SegmentHeader, SegmentId, SegmentPiece, StoreId, TableEntry,
    TablePlace,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Most bytes that a file grows by at once, unless more is asked for.
const GROWTH_BYTES_MAX: u64 = 64 << 30;

/// An encoded segment to append.
#[derive(Debug)]
pub struct NewSegment {
    /// Its id, from [`ArchiveStore::next_segment`].
    pub segment: SegmentId,
    /// The checkpoint it is written for.
    pub checkpoint: CheckpointId,
    /// Its class, as in a node's store.
    pub class: SegmentClass,
    /// How it was merged from the ranks.
    pub merge: u8,
    /// Element type of the variable; `None` where several are mixed.
    pub element: Option<ElementType>,
    /// The variable; empty where several are mixed.
    pub variable: String,
    /// How the payload was encoded.
    pub scheme: Vec<u8>,
    /// Bytes of the decoded segment.
    pub decoded_bytes: u32,
    /// What is in it, in order.
    pub pieces: Vec<SegmentPiece>,
    /// What of it is a delta, in order; its bases are stored whole.
    pub bases: Vec<BaseRun>,
    /// The encoded bytes.
    pub payload: Payload,
}

/// What a commit makes durable, beside what was appended.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    /// The newest start of the job.
    pub incarnation: u64,
    /// The checkpoint whose drain goes on, if one does: its segments are kept though no revision
    /// reaches them.
    pub draining: Option<CheckpointId>,
    /// All revisions of the store from now on, oldest first.
    pub revisions: Vec<RevisionEntry>,
    /// Segments that nothing needs any more. Their space is free when the commit returned.
    pub free: Vec<SegmentId>,
}

/// What was done and what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Bytes written, tables and roots included.
    pub bytes_written: u64,
    /// Calls that wrote.
    pub writes: u64,
    /// Calls of sync.
    pub syncs: u64,
    /// How often the file grew.
    pub growths: u64,
    /// Free bytes of the file.
    pub free_bytes: u64,
    /// Bytes of extents, of segments and tables.
    pub used_bytes: u64,
    /// How often space of the file was given back.
    pub shrinks: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes that wait to be written.
    pub queue_bytes: u64,
}

/// An archive store, for writing. Shared by threads of one process.
#[derive(Debug)]
pub struct ArchiveStore {
    reader: Arc<ArchiveDevice>,
    device: Arc<dyn Device>,
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
    reserve_bytes_min: u64,
    write_bytes: u64,
    next: AtomicU64,
    /// Held while extents are taken and put, so that what follows in the file follows in time.
    order: Mutex<()>,
    state: Mutex<Writing>,
    /// Whether another file goes on from this one.
    watch: Watch,
    /// Keeps other processes away.
    _fence: Option<Fence>,
}

/// What only the writer knows.
#[derive(Debug)]
struct Writing {
    space: Space,
    roots: TwoSlots<RootSlots>,
    /// The extent of its table; no bytes if there is none.
    table: (u64, u64),
    /// What was appended since the last commit, and for which checkpoint.
    appended: Vec<(TableEntry, CheckpointId)>,
    /// Extents that a root may refer to whose write failed.
    doubtful: Vec<(u64, u64)>,
    /// Extents that durable roots freed and that are not used again before a look for an heir.
    freed: Vec<(u64, u64)>,
    /// Why nothing more is written: another file goes on from this one.
    inherited: Option<String>,
    /// The least that the file grows by.
    reserve_bytes: u64,
    growths: u64,
    shrinks: u64,
}

impl Writing {
    fn usable(&self) -> Result<()> {
        self.roots.usable()?;
        match &self.inherited {
            Some(text) => Err(Error::new(ErrorKind::StoreBusy, text.clone())),
            None => Ok(()),
        }
    }

    /// Gives back what durable roots freed, if nobody goes on from the file. The look began when the last of
    /// them was durable.
    fn give_back(&mut self, looked: &Result<()>) {
        match looked {
            Ok(()) => {
                for (offset, bytes) in std::mem::take(&mut self.freed) {
                    self.space.give(offset, bytes);
                }
            }
            Err(error) if error.kind() == ErrorKind::StoreBusy => {
                self.inherited = Some(error.context().to_owned());
            }
            // Nobody knows: the next look says.
            Err(_) => {}
        }
    }
}

impl ArchiveStore {
    /// Makes `name` in `folder`, which must not be there.
    pub fn create(
        folder: &Path,
        name: &str,
        identity: &Identity,
        options: &WriteOptions,
    ) -> Result<Self> {
        let store = make::new_id()?;
        let fence = Fence::first(store)?;
        let device = make::create_file(folder, name, identity, options)?;
        let made = make::store(device, store, identity, options, None)?;
        make::sync_folder(folder)?;
        let watch = Watch::of(&shared(folder), name)?;
        Self::of(made, (Some(fence), watch), options)
    }

    /// Opens `name` again, on the host that made it, once its former process is proven dead. Otherwise
    /// [`ErrorKind::StoreBusy`]: [`ArchiveStore::take_over`] is the way then. `identity.epoch` has no
    /// meaning.
    pub fn open(
        folder: &Path,
        name: &str,
        identity: &Identity,
        options: &WriteOptions,
    ) -> Result<Self> {
        let path = folder.join(name);
        let device = super::opened(&path, SharedFile::open(&path, options.direct_write))?;
        let superblock = head::superblock(&device)?;
        make::same_job(&device.name(), (&superblock.job, superblock.run), identity)?;
        let fence = Fence::again(superblock.store, &superblock.host, &device.name())?;
        let place = shared(folder);
        let made = make::open(Arc::new(device), superblock, &place)?;
        let watch = Watch::of(&place, name)?;
        // The root that was read is durable: what it does not refer to may be used if nobody goes on from it.
        watch.look()?;
        Self::of(made, (Some(fence), watch), options)
    }

    /// Makes `name`, with the state of `predecessor`, whose segments it refers to and never writes.
    pub fn take_over(
        folder: &Path,
        predecessor: &str,
        name: &str,
        identity: &Identity,
        options: &WriteOptions,
    ) -> Result<Self> {
        let place = shared(folder);
        let store = make::new_id()?;
        let fence = Fence::first(store)?;
        let device = make::create_file(folder, name, identity, options)?;
        let former = make::predecessor(&place, predecessor, identity)?;
        let made = make::store(device, store, identity, options, Some(former))?;
        make::sync_folder(folder)?;
        let watch = Watch::of(&place, name)?;
        Self::of(made, (Some(fence), watch), options)
    }

    /// Makes a store on a device, without a fence.
    pub fn create_on(
        device: Arc<dyn Device>,
        identity: &Identity,
        options: &WriteOptions,
    ) -> Result<Self> {
        let watch = Watch::on(device.clone());
        let made = make::store(device, make::new_id()?, identity, options, None)?;
        Self::of(made, (None, watch), options)
    }

    /// Opens the store on a device, without a fence.
    pub fn open_on(
        device: Arc<dyn Device>,
        place: &dyn Place,
        options: &WriteOptions,
    ) -> Result<Self> {
        let superblock = head::superblock(&*device)?;
        let watch = Watch::on(device.clone());
        let made = make::open(device, superblock, place)?;
        watch.look()?;
        Self::of(made, (None, watch), options)
    }

    /// Makes a store on a device, with the state of the file `predecessor` of `place`, without a fence.
    pub fn take_over_on(
        device: Arc<dyn Device>,
        place: &dyn Place,
        predecessor: &str,
        identity: &Identity,
        options: &WriteOptions,
    ) -> Result<Self> {
        let former = make::predecessor(place, predecessor, identity)?;
        let watch = Watch::on(device.clone());
        let made = make::store(device, make::new_id()?, identity, options, Some(former))?;
        Self::of(made, (None, watch), options)
    }

    /// Goes on from a durable state.
    fn of(
        made: Made,
        (fence, watch): (Option<Fence>, Watch),
        options: &WriteOptions,
    ) -> Result<Self> {
        let Made {
            device,
            superblock,
            state,
            roots,
            files,
        } = made;
        let space = used_space(&*device, &state, options)?;
        let table = state.root.table;
        let writing = Writing {
            space,
            roots,
            table: (table.offset, u64::from(table.length_bytes)),
            appended: Vec::new(),
            doubtful: Vec::new(),
            freed: Vec::new(),
            inherited: None,
            reserve_bytes: options.reserve_bytes.next_multiple_of(GRAIN_BYTES),
            growths: 0,
            shrinks: 0,
        };
        let next = AtomicU64::new(state.root.next_segment);
        let reader = ArchiveDevice::of(superblock, state, files, &options.read);
        let queue = Queue::new(Arc::clone(&device), options);
        reader.follow(&queue);
        let threads = queue.start(options.writer_threads)?;
        Ok(Self {
            reader: Arc::new(reader),
            device,
            queue,
            threads,
            reserve_bytes_min: options.reserve_bytes,
            write_bytes: to_u64(options.write_bytes).next_multiple_of(GRAIN_BYTES),
            next,
            order: Mutex::default(),
            state: Mutex::new(writing),
            watch,
            _fence: fence,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Writing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn in_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which store.
    pub fn id(&self) -> StoreId {
        self.superblock().store
    }
    /// What its file says of itself.
    pub fn superblock(&self) -> &ArchiveSuperblock {
        self.reader.superblock()
    }
    /// The durable root.
    pub fn root(&self) -> Arc<ArchiveRoot> {
        self.reader.root()
    }
    /// Reads what was committed and what was appended; a segment that waits to be written is waited for.
    pub fn device(&self) -> Arc<ArchiveDevice> {
        Arc::clone(&self.reader)
    }

    /// Headers of the segments that a commit made durable for the checkpoint that is draining: a drain
    /// that goes on finds there, by digest and length, what it need not bring again.
    pub fn unfinished(&self) -> Result<Vec<SegmentHeader>> {
        let entries = self.reader.entries();
        let draining = entries.iter().filter(|entry| entry.draining);
        draining
            .map(|entry| self.reader.header(entry.segment))
            .collect()
    }

    /// The next segment id.
    pub fn next_segment(&self) -> SegmentId {
        SegmentId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Room for the payload of a segment that is likely to be stored as it is, behind a header of so many
    /// bytes: what is gathered there is not copied again.
    pub fn room(&self, header_bytes: usize, payload_bytes: usize) -> Payload {
        Payload::room(self.queue.pool(), header_bytes, payload_bytes)
    }

    /// Hands over a segment to be written. Waits while the queue is full. Threads may append at once.
    /// An error may be that of an earlier write; [`ArchiveStore::roll_back`] then.
    pub fn append(&self, segment: NewSegment) -> Result<TableEntry> {
        let (payload, checkpoint) = (segment.payload, segment.checkpoint);
        let header = SegmentHeader {
            store: self.id(),
            segment: segment.segment,
            checkpoint,
            decoded_bytes: segment.decoded_bytes,
            payload_bytes: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            class: segment.class,
            merge: segment.merge,
            element: segment.element,
            scheme: segment.scheme,
            variable: segment.variable,
            pieces: segment.pieces,
            bases: segment.bases,
        };
        let encoded = self.check(&header, payload.len())?;
        let extent = payload.into_extent(&encoded, self.queue.pool());
        let (digest, stored) = (Digest::of(extent.content()), extent.content().len());
        let order = self.in_order();
        let offset = {
            let mut state = self.lock();
            state.usable()?;
            self.allocate(&mut state, to_u64(stored))?
        };
        let entry = TableEntry {
            segment: header.segment,
            offset,
            digest,
            decoded_bytes: header.decoded_bytes,
            stored_bytes: u32::try_from(stored).unwrap_or(u32::MAX),
            file: 0,
            class: header.class,
            merge: header.merge,
            delta: !header.is_base(),
            draining: false,
        };
        self.lock().appended.push((entry, checkpoint));
        self.queue.put(offset, extent)?;
        self.reader.change().insert(entry);
        drop(order);
        Ok(entry)
    }

    /// The header's bytes, if a reader will take the segment.
    fn check(&self, header: &SegmentHeader, payload: usize) -> Result<Vec<u8>> {
        let segment = header.segment;
        let refused = |why: String| {
            let context = format!("{}: segment {}: {why}", self.device.name(), segment.0);
            Err(Error::new(ErrorKind::InvalidArgument, context))
        };
        let given = 1..self.next.load(Ordering::Relaxed);
        if !given.contains(&segment.0) || self.reader.entry(segment).is_some() {
            return refused("its id was not given by next_segment, or is used".to_owned());
        }
        let encoded = match header.encode() {
            Ok(encoded) => encoded,
            Err(error) => return refused(error.to_string()),
        };
        let most = self.superblock().segment_bytes;
        if header.decoded_bytes > most {
            return refused(format!("more than {most} bytes"));
        }
        if encoded.len() + payload > to_usize(u64::from(STORED_BYTES_MAX)) {
            return refused(format!("more than {STORED_BYTES_MAX} bytes to store"));
        }
        for run in &header.bases {
            let base = run.base.segment();
            match self.reader.entry(base) {
                Some(entry) if !entry.delta => {}
                Some(_) => return refused(format!("its base {} has bases itself", base.0)),
                None => return refused(format!("its base {} is not there", base.0)),
            }
        }
        Ok(encoded)
    }

    /// Takes an extent; the file grows where there is none.
    fn allocate(&self, state: &mut Writing, bytes: u64) -> Result<u64> {
        if let Some(offset) = state.space.take(bytes) {
            return Ok(offset);
        }
        self.grow(state, bytes, state.reserve_bytes)?;
        let name = self.device.name();
        state
            .space
            .take(bytes)
            .ok_or_else(|| Error::new(ErrorKind::Internal, format!("{name}: grown, and no room")))
    }

    /// Has a hole again, or grows the file: by a quarter or `step`, or by `step`, or by what is needed, whatever
    /// there is room for.
    fn grow(&self, state: &mut Writing, bytes: u64, step: u64) -> Result<()> {
        let need = bytes.next_multiple_of(GRAIN_BYTES);
        if let Some((offset, hole)) = state.space.hole(need)
            && self.device.reserve_again(offset, hole).is_ok()
        {
            state.space.refill(offset);
            state.growths += 1;
            return Ok(());
        }
        let end = state.space.end();
        let quarter = (end - DATA_OFFSET) / 4;
        let steps = [quarter.min(GROWTH_BYTES_MAX).max(step), step, need];
        let grain = make::growth_grain(self.write_bytes);
        let mut refused = None;
        for step in steps {
            let length = (end + step.max(need)).next_multiple_of(grain);
            match self.device.reserve(length) {
                Ok(()) => {
                    state.space.grow(length);
                    state.growths += 1;
                    return Ok(());
                }
                Err(error) => {
                    let what = format!("{}: growing it to {length} bytes", self.device.name());
                    let error = Error::io(what, error);
                    let is_full = error.kind() == ErrorKind::StoreFull;
                    refused = Some(error);
                    if !is_full {
                        break;
                    }
                }
            }
        }
        Err(refused.unwrap_or_else(|| Error::new(ErrorKind::Internal, "no step of growth")))
    }

    /// About so many bytes are to be appended for a checkpoint: they are reserved in one step, where they are not
    /// yet, and as many stay so when checkpoints are given up. That there is no room for them is found when
    /// they are appended.
    pub fn expect_bytes(&self, bytes: u64) -> Result<()> {
        let _order = self.in_order();
        let mut state = self.lock();
        state.usable()?;
        // Half of what was expected before still counts: not each checkpoint changes as much.
        state.reserve_bytes = bytes
            .max(state.reserve_bytes / 2)
            .max(self.reserve_bytes_min)
            .next_multiple_of(GRAIN_BYTES);
        let lacking = bytes.saturating_sub(state.space.free_bytes());
        match lacking {
            0 => Ok(()),
            _ => match self.grow(&mut state, lacking, self.reserve_bytes_min) {
                Err(error) if error.kind() != ErrorKind::StoreFull => Err(error),
                _ => Ok(()),
            },
        }
    }

    /// Gives free space back to the file system beyond `keep` bytes. What cannot be given back stays.
    fn give_up(&self, state: &mut Writing, keep: u64) {
        let surplus = state.space.surplus(keep);
        state.shrinks += u64::from(!surplus.is_empty());
        for surplus in surplus {
            let done = match surplus {
                Surplus::End(end) => self.device.shrink(end),
                Surplus::Hole(offset, bytes) => self.device.discard(offset, bytes).map(|()| true),
            };
            match done {
                Ok(true) => state.space.give_up(surplus),
                Ok(false) => {}
                Err(error) => {
                    let name = self.device.name();
                    tracing::debug!("{name}: {surplus:?} stays reserved: {error}");
                }
            }
        }
    }

    /// Gives back what is free where that is much more than is used and expected. As much as is used stays, and
    /// what is expected: so what is written and given up each time is not reserved anew each time.
    fn give_up_surplus(&self, state: &mut Writing) {
        let free = state.space.free_bytes();
        let used = state.space.used_bytes();
        let expected = state.reserve_bytes;
        if free > 2 * (used + expected) {
            self.give_up(state, used + expected);
        }
    }

    /// Gives back all that is free, because nothing is to be written soon. After a commit that nobody goes on
    /// from; bytes of the file's extents that stay.
    pub fn give_up_free(&self) -> Result<u64> {
        let _order = self.in_order();
        let mut state = self.lock();
        state.usable()?;
        self.watch.look()?;
        self.give_up(&mut state, 0);
        Ok(state.space.used_bytes())
    }

    /// Makes all that was appended durable, with a new root; its sequence. No append may be under way.
    /// [`ErrorKind::StoreBusy`] says that another file goes on from this one, and may know of this commit or
    /// not: nothing more is written. After another error the store is at its former root, or a look for heirs
    /// failed: the commit may be tried again, or what was
    /// appended given up by [`ArchiveStore::roll_back`]. A failed sync ends the use of the store.
    pub fn commit(&self, commit: &Commit) -> Result<u64> {
        let _order = self.in_order();
        self.lock().usable()?;
        self.queue.flush()?;
        let mut state = self.lock();
        let (mut root, files, entries, freed) = self.next_state(&mut state, commit)?;
        let extent = self.write_table(&mut state, &mut root, &entries)?;
        state.roots.sync(&*self.queue)?;
        if let Err(error) = state.roots.write(&*self.queue, root.clone()) {
            // Some of the root may be there, or all of it: what it refers to stays until it is replaced.
            state.doubtful.push(extent);
            return Err(error);
        }
        let table = std::mem::replace(&mut state.table, extent);
        let doubtful = std::mem::take(&mut state.doubtful);
        let gone = doubtful.into_iter().chain([table]).chain(freed);
        state.freed.extend(gone.filter(|(_, bytes)| *bytes > 0));
        let looked = self.watch.look();
        state.give_back(&looked);
        if looked.is_ok() {
            self.give_up_surplus(&mut state);
        }
        state.appended.clear();
        let sequence = root.sequence;
        self.reader.change().replace(root, files, &entries);
        looked.map(|()| sequence)
    }

    /// Root, files and entries after `commit`, and the extents that it frees. The root's table is not
    /// placed yet.
    #[expect(
        clippy::type_complexity,
        reason = "the four parts of one state, used once"
    )]
    fn next_state(
        &self,
        state: &mut Writing,
        commit: &Commit,
    ) -> Result<(ArchiveRoot, Vec<OpenFile>, Vec<TableEntry>, Vec<(u64, u64)>)> {
        let view = self.reader.view();
        let former = Arc::clone(&view.root);
        let free: BTreeSet<SegmentId> = commit.free.iter().copied().collect();
        let appended: BTreeSet<SegmentId> = state
            .appended
            .iter()
            .filter(|(_, checkpoint)| Some(*checkpoint) == commit.draining)
            .map(|(entry, _)| entry.segment)
            .collect();
        let (mut entries, mut freed) = (Vec::new(), Vec::new());
        for mut entry in view.entries() {
            if free.contains(&entry.segment) {
                if entry.file == 0 {
                    freed.push((entry.offset, entry.extent_bytes()));
                }
                continue;
            }
            let goes_on = former.draining == commit.draining && entry.draining;
            entry.draining =
                commit.draining.is_some() && (goes_on || appended.contains(&entry.segment));
            entries.push(entry);
        }
        let (files, named) = used_files(&view.files, &former.files, &mut entries);
        drop(view);
        let root = ArchiveRoot {
            store: self.id(),
            sequence: state.roots.next_sequence(),
            incarnation: commit.incarnation,
            next_segment: self.next.load(Ordering::Relaxed),
            draining: commit.draining,
            table: TablePlace::default(),
            files: named,
            revisions: commit.revisions.clone(),
        };
        let name = self.device.name();
        if to_u64(entries.len()) > SEGMENTS_MAX {
            let context = format!("{name}: more than {SEGMENTS_MAX} segments; drop checkpoints");
            return Err(Error::new(ErrorKind::StoreFull, context));
        }
        // Before the table is written: its place is in the root, its length is not.
        state.roots.encode(&*self.device, &root)?;
        Ok((root, files, entries, freed))
    }

    /// Writes the table and tells the root where; its extent.
    fn write_table(
        &self,
        state: &mut Writing,
        root: &mut ArchiveRoot,
        entries: &[TableEntry],
    ) -> Result<(u64, u64)> {
        if entries.is_empty() {
            return Ok((0, 0));
        }
        let table = ArchiveTable {
            store: root.store,
            sequence: root.sequence,
            entries: entries.to_vec(),
        };
        let encoded = table.encode(root.files.len()).map_err(|error| {
            Error::unwritable(format!("{}: segment table", self.device.name()), error)
        })?;
        let bytes = to_u64(encoded.len());
        let offset = match state.space.take_aside(bytes) {
            Some(offset) => offset,
            None => self.allocate(state, bytes)?,
        };
        root.table = TablePlace {
            offset,
            length_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            digest: Digest::of(&encoded),
        };
        if let Err(error) = make::write_padded(&self.queue, &encoded, offset, self.write_bytes) {
            state.space.give(offset, bytes);
            return Err(error);
        }
        Ok((offset, bytes))
    }

    /// Forgets what was appended since the last commit, and the error of a write.
    pub fn roll_back(&self) {
        let _order = self.in_order();
        self.queue.discard();
        let mut state = self.lock();
        for (entry, _) in std::mem::take(&mut state.appended) {
            let extent = (entry.offset, entry.extent_bytes());
            if state.roots.in_doubt() {
                state.doubtful.push(extent);
            } else {
                state.space.give(extent.0, extent.1);
            }
            self.reader.change().remove(entry.segment);
        }
    }

    /// Bytes a second that the file system took so far, apart from any limit; `None` before enough was
    /// written to tell.
    pub fn write_bytes_per_second(&self) -> Option<f64> {
        self.queue.bytes_per_second()
    }
    /// What was done and what there is.
    pub fn stats(&self) -> Stats {
        let [bytes_written, writes, syncs] = self.queue.counts();
        let queue_bytes = self.queue.bytes();
        let state = self.lock();
        Stats {
            bytes_written,
            writes,
            syncs,
            growths: state.growths,
            shrinks: state.shrinks,
            free_bytes: state.space.free_bytes(),
            used_bytes: state.space.used_bytes(),
            file_bytes: state.space.end(),
            queue_bytes,
        }
    }
}

impl Drop for ArchiveStore {
    /// What waits to be written and was not committed is given up.
    fn drop(&mut self) {
        self.queue.close();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// A folder that other hosts write too.
fn shared(folder: &Path) -> Folder {
    Folder {
        path: folder.to_owned(),
        direct: true,
    }
}

/// The space besides the extents that the durable state refers to.
fn used_space(device: &dyn Device, state: &State, options: &WriteOptions) -> Result<Space> {
    let name = device.name();
    let length = device
        .length_bytes()
        .map_err(|error| Error::io(format!("{name}: asking for the length"), error))?;
    let own = state.entries.iter().filter(|entry| entry.file == 0);
    let mut used: Vec<(u64, u64)> = own
        .map(|entry| (entry.offset, entry.extent_bytes()))
        .collect();
    if !state.root.table.is_none() {
        used.push((
            state.root.table.offset,
            u64::from(state.root.table.length_bytes),
        ));
    }
    let long = 4 * to_u64(options.write_bytes);
    Space::besides(length, &mut used, long)
        .map_err(|error| Error::malformed(format!("{name}: segment table"), error))
}

/// Leaves out files that no entry refers to, and numbers the others anew.
fn used_files(
    open: &[OpenFile],
    named: &[backstay_format::ArchiveFile],
    entries: &mut [TableEntry],
) -> (Vec<OpenFile>, Vec<backstay_format::ArchiveFile>) {
    let used: BTreeSet<u8> = entries.iter().map(|entry| entry.file).collect();
    let kept: Vec<u8> = used.into_iter().filter(|&file| file > 0).collect();
    for entry in entries.iter_mut().filter(|entry| entry.file > 0) {
        let place = kept.iter().position(|&file| file == entry.file);
        let place = place.and_then(|place| u8::try_from(place + 1).ok());
        entry.file = place.unwrap_or(entry.file);
    }
    let at = |file: &u8| usize::from(*file);
    let files = kept.iter().filter_map(|file| open.get(at(file)).cloned());
    let names = kept
        .iter()
        .filter_map(|file| named.get(at(file) - 1).cloned());
    (
        open.iter().take(1).cloned().chain(files).collect(),
        names.collect(),
    )
}
