// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: an archive store as a device with the layout of a node's store: read-only, decoded.
//! In from: the files of the archive. Out to: `StoreReader` and all that stands on it.
//! Invariants: stored bytes are verified by the table's digest before they are decoded; one thread
//! decodes a segment, others wait for it; a base is stored whole, so there is one step at most.
//! Format: docs/format/archive.md; what it looks like from outside: docs/format/store.md.

use super::cache::SegmentCache;
use super::head::{self, State};
use super::queue::Queue;
use super::view::{OpenFile, View};
use super::{Decode, Folder, Place, ReadOptions};
use backstay_base::clock::Pulse;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_base::io::direct::AlignedBytes;
use backstay_format::bytes::FRAME_HEAD_BYTES;
use backstay_format::geometry::{
    HEAD_BYTES, RECORD_BYTES, ROOT_OFFSETS, SUPERBLOCK_OFFSETS, ZONE_HEAD_BYTES, ZONE_SLOTS,
};
use backstay_format::width::{index, to_u64, to_usize};
use backstay_format::{
    ArchiveRoot, ArchiveSuperblock, BaseRun, Digest, FormatError, Geometry, Lineage, RootSlot,
    SegmentHeader, SegmentId, SegmentRecord, StoreId, Superblock, TableEntry,
};
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

/// Bytes read at first where only the header of a segment is wanted.
const HEADER_READ_BYTES: usize = 16 << 10;

/// An archive store, read as if it were a node's store. Shared by threads.
#[derive(Debug)]
pub struct ArchiveDevice {
    superblock: ArchiveSuperblock,
    view: RwLock<View>,
    cache: SegmentCache,
    decode: Arc<dyn Decode>,
    pulse: Pulse,
    /// Of a store that is written: what waits to be written.
    queue: OnceLock<Weak<Queue>>,
    damaged: Option<Error>,
}

impl ArchiveDevice {
    /// Opens `file` in `folder`, and the files of predecessors that its root names.
    pub fn open(folder: &Path, file: &str, options: &ReadOptions) -> Result<Arc<Self>> {
        let place = Folder {
            path: folder.to_owned(),
            direct: options.direct,
        };
        Self::open_on(place.open(file)?, &place, options)
    }

    /// The same on a device; `place` opens the files of predecessors.
    pub fn open_on(
        device: Arc<dyn ReadAt>,
        place: &dyn Place,
        options: &ReadOptions,
    ) -> Result<Arc<Self>> {
        let superblock = head::superblock(&*device)?;
        let state = head::state_as(&*device, superblock.store, options.unread)?;
        let own = OpenFile {
            store: superblock.store,
            device,
        };
        let mut files = vec![own];
        files.extend(OpenFile::open_others(&superblock, &state.root, place)?);
        Ok(Arc::new(Self::of(superblock, state, files, options)))
    }

    /// Shows a state that was read.
    pub(super) fn of(
        superblock: ArchiveSuperblock,
        state: State,
        files: Vec<OpenFile>,
        options: &ReadOptions,
    ) -> Self {
        Self {
            superblock,
            view: RwLock::new(View::new(state.root, files, state.entries)),
            cache: SegmentCache::new(options.cache_bytes),
            decode: Arc::clone(&options.decode),
            pulse: options.pulse.clone(),
            queue: OnceLock::new(),
            damaged: state.damaged,
        }
    }

    /// The store is written: what is appended is waited for.
    pub(super) fn follow(&self, queue: &Arc<Queue>) {
        self.queue.get_or_init(|| Arc::downgrade(queue));
    }

    pub(super) fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }
    pub(super) fn change(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the file says of itself.
    pub fn superblock(&self) -> &ArchiveSuperblock {
        &self.superblock
    }
    /// The root that is shown: of a device that was opened, the one it was opened or reloaded with; of
    /// a store that is written, the last one committed.
    pub fn root(&self) -> Arc<ArchiveRoot> {
        Arc::clone(&self.view().root)
    }
    /// What is wrong with the newer root or its table, where the older root had to be taken.
    pub fn damaged(&self) -> Option<&Error> {
        self.damaged.as_ref()
    }
    /// Where `segment` stands.
    pub fn entry(&self, segment: SegmentId) -> Option<TableEntry> {
        self.view().find(segment)
    }
    /// All entries, ascending by segment.
    pub fn entries(&self) -> Vec<TableEntry> {
        self.view().entries()
    }
    /// Where its segments stand in the file `file`: 0 is its own, those that its root names follow. Offset and bytes.
    pub fn extents_in(&self, file: u8) -> Vec<(u64, u64)> {
        let entries = self.entries().into_iter();
        let there = entries.filter(|entry| entry.file == file);
        there
            .map(|entry| (entry.offset, entry.extent_bytes()))
            .collect()
    }
    /// The slot in which `segment` is shown: what a `StoreReader` needs to place a segment that came
    /// after it read the records. A segment keeps its slot as long as it is in the table.
    pub fn slot_of(&self, segment: SegmentId) -> Option<u64> {
        self.view().slot_of(segment)
    }
    /// The store that first wrote the file of an entry.
    pub fn file_store(&self, entry: &TableEntry) -> StoreId {
        let view = self.view();
        let file = view.files.get(usize::from(entry.file));
        file.map_or(StoreId::default(), |file| file.store)
    }

    /// Takes a newer root, if there is one; whether there was. Of a store that is written: nothing.
    pub fn reload(&self) -> Result<bool> {
        if self.queue.get().is_some() {
            return Ok(false);
        }
        let files = self.view().files.clone();
        let state = head::state(&*files[0].device, self.superblock.store)?;
        if state.root.sequence <= self.root().sequence {
            return Ok(false);
        }
        // Files only leave the list of a store, so those that are left are open.
        let find = |store| files.iter().find(|file| file.store == store).cloned();
        let others = state.root.files.iter().map(|file| find(file.store));
        let others: Option<Vec<OpenFile>> = others.collect();
        let Some(others) = others else {
            let context = format!("{}: its root names a new file; open it anew", self.name());
            return Err(Error::new(ErrorKind::Corrupt, context));
        };
        let files = files[..1].iter().cloned().chain(others).collect();
        self.change().replace(state.root, files, &state.entries);
        Ok(true)
    }

    /// `segment`, verified and decoded.
    pub fn segment(&self, segment: SegmentId) -> Result<Arc<Vec<u8>>> {
        self.cache.get(segment, || {
            let entry = self.find(segment)?;
            self.decoded(&entry)
                .map_err(|error| self.judge(&entry, error))
        })
    }

    /// Header and payload of `segment` as stored, verified: to copy it without decoding.
    pub fn stored(&self, segment: SegmentId) -> Result<(SegmentHeader, Vec<u8>)> {
        let entry = self.find(segment)?;
        let (header, bytes, at) = self
            .extent(&entry)
            .map_err(|error| self.judge(&entry, error))?;
        Ok((header, bytes[at..index(entry.stored_bytes)].to_vec()))
    }

    /// The header of `segment`, without its payload.
    pub fn header(&self, segment: SegmentId) -> Result<SegmentHeader> {
        let entry = self.find(segment)?;
        self.header_of(&entry)
            .map_err(|error| self.judge(&entry, error))
    }

    fn find(&self, segment: SegmentId) -> Result<TableEntry> {
        self.entry(segment).ok_or_else(|| {
            let what = FormatError::new("segment", "entry", 0, "one in the segment table", "none");
            Error::malformed(format!("{}: segment {}", self.name(), segment.0), what)
        })
    }

    /// The file in which `entry` stands, with what waits for it written.
    fn file_of(&self, entry: &TableEntry) -> Result<OpenFile> {
        if entry.file == 0
            && let Some(queue) = self.queue.get().and_then(Weak::upgrade)
        {
            queue.wait_written(entry.offset, entry.extent_bytes())?;
        }
        let file = self.view().files.get(usize::from(entry.file)).cloned();
        file.ok_or_else(|| Error::new(ErrorKind::Internal, "an entry without its file"))
    }

    fn header_of(&self, entry: &TableEntry) -> Result<SegmentHeader> {
        let file = self.file_of(entry)?;
        let whole = to_usize(entry.extent_bytes());
        let mut bytes = AlignedBytes::new(HEADER_READ_BYTES.min(whole));
        head::read(&*file.device, &mut bytes, entry.offset, "archived segment")?;
        let stated = bytes[12..FRAME_HEAD_BYTES].first_chunk();
        let stated = stated.map_or(0, |length| index(u32::from_le_bytes(*length)));
        if stated > bytes.len() && stated <= index(entry.stored_bytes) {
            bytes = AlignedBytes::new(stated.next_multiple_of(4096).min(whole));
            head::read(&*file.device, &mut bytes, entry.offset, "archived segment")?;
        }
        self.pulse.beat();
        let (header, at) = SegmentHeader::decode(&bytes, file.store, entry.segment)
            .map_err(|error| Error::malformed(place(&file, entry), error))?;
        check(entry, &header, at).map_err(|error| Error::malformed(place(&file, entry), error))?;
        Ok(header)
    }

    /// Header and stored bytes of `entry`, verified, and where the payload begins.
    fn extent(&self, entry: &TableEntry) -> Result<(SegmentHeader, AlignedBytes, usize)> {
        let file = self.file_of(entry)?;
        let mut bytes = AlignedBytes::new(to_usize(entry.extent_bytes()));
        head::read(&*file.device, &mut bytes, entry.offset, "archived segment")?;
        self.pulse.beat();
        let stored = &bytes[..index(entry.stored_bytes)];
        let damaged = |error| Error::malformed(place(&file, entry), error);
        let found = Digest::of(stored);
        if found != entry.digest {
            let what = "archived segment";
            return Err(damaged(FormatError::new(
                what,
                "digest",
                0,
                entry.digest,
                found,
            )));
        }
        let (header, at) =
            SegmentHeader::decode(stored, file.store, entry.segment).map_err(damaged)?;
        check(entry, &header, at).map_err(damaged)?;
        Ok((header, bytes, at))
    }

    fn decoded(&self, entry: &TableEntry) -> Result<Vec<u8>> {
        let (header, bytes, at) = self.extent(entry)?;
        let base = self.base(&header)?;
        let mut out = vec![0; index(entry.decoded_bytes)];
        let payload = &bytes[at..index(entry.stored_bytes)];
        self.decode
            .decode(&header.scheme, payload, base.as_deref(), &mut out)
            .map_err(|error| {
                let (name, segment, offset) = (self.name(), entry.segment.0, entry.offset);
                error.within(&format!("{name}: segment {segment} at byte {offset}"))
            })?;
        Ok(out)
    }

    /// What the runs of a segment are the delta to; `None` for a base.
    fn base(&self, header: &SegmentHeader) -> Result<Option<Vec<u8>>> {
        if header.is_base() {
            return Ok(None);
        }
        let base = self.base_bytes(header.segment, header.decoded_bytes, &header.bases);
        base.map(Some)
    }

    /// What `runs` of `segment`, which has `decoded_bytes`, are the delta to; zeros elsewhere.
    pub fn base_bytes(
        &self,
        segment: SegmentId,
        decoded_bytes: u32,
        runs: &[BaseRun],
    ) -> Result<Vec<u8>> {
        let mut bases = vec![0; index(decoded_bytes)];
        for run in runs {
            let of = run.base.segment();
            let refused = |field, expected: String, found: String| {
                let what = FormatError::new("base of a segment", field, 0, expected, found);
                let place = format!("{}: segment {}", self.name(), segment.0);
                Error::malformed(place, what)
            };
            let entry = self.find(of)?;
            if entry.delta {
                let found = format!("segment {}, which has bases itself", of.0);
                return Err(refused("segment", "a base".to_owned(), found));
            }
            let from = index(run.base.offset_bytes());
            let length = index(run.length_bytes);
            let base = self.segment(of)?;
            let Some(bytes) = base.get(from..from + length) else {
                let expected = format!("{length} bytes at byte {from} of segment {}", of.0);
                return Err(refused("run", expected, format!("{} bytes", base.len())));
            };
            let to = index(run.offset);
            bases[to..to + length].copy_from_slice(bytes);
        }
        Ok(bases)
    }

    /// What damage of `entry` means: where a newer root has it no longer, its place was used again.
    fn judge(&self, entry: &TableEntry, error: Error) -> Error {
        if error.kind() != ErrorKind::Corrupt || self.queue.get().is_some() {
            return error;
        }
        let (own, shown) = {
            let view = self.view();
            (Arc::clone(&view.files[0].device), view.root.sequence)
        };
        let Ok(now) = head::state(&*own, self.superblock.store) else {
            return error;
        };
        let found = now
            .entries
            .binary_search_by_key(&entry.segment, |entry| entry.segment);
        if now.root.sequence <= shown || found.is_ok_and(|at| now.entries[at] == *entry) {
            return error;
        }
        let context = format!(
            "{}: segment {} was given up while root {shown} was read; the store is at root {} now: \
             read a checkpoint that it still has, or keep one",
            self.name(),
            entry.segment.0,
            now.root.sequence
        );
        Error::new(ErrorKind::NotRetained, context)
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            segment_bytes: self.superblock.segment_bytes,
        }
    }

    /// What the archive has cannot be said in the format of a store.
    fn unshown(&self, error: FormatError) -> Error {
        Error::unwritable(format!("{}: showing it as a store", self.name()), error)
    }

    /// The head of the store that is shown.
    fn head(&self) -> Result<Vec<u8>> {
        let own = &self.superblock;
        let superblock = Superblock {
            store: own.store,
            segment_bytes: own.segment_bytes,
            run: own.run,
            created_unix_ns: own.created_unix_ns,
            job: own.job.clone(),
            node: format!("aggregate-{}", own.aggregator),
        };
        let root = self.root();
        let shown = RootSlot {
            store: own.store,
            sequence: root.sequence,
            incarnation: root.incarnation,
            next_segment: root.next_segment,
            closed: root.draining.is_none(),
            // The catalog has it.
            lineage: Lineage::default(),
            revisions: root.revisions.clone(),
        };
        let unshown = |error| self.unshown(error);
        let superblock = superblock.encode().map_err(unshown)?;
        let shown = shown.encode().map_err(unshown)?;
        let mut head = vec![0; to_usize(HEAD_BYTES)];
        for offset in SUPERBLOCK_OFFSETS {
            put(&mut head, offset, &superblock);
        }
        for offset in ROOT_OFFSETS {
            put(&mut head, offset, &shown);
        }
        Ok(head)
    }

    /// Fills the front of `buffer` from the area in which `offset` lies; how many bytes.
    fn read_some(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if offset < HEAD_BYTES {
            return Ok(copy(&self.head()?, offset, buffer));
        }
        let segment_bytes = u64::from(self.superblock.segment_bytes);
        let zone_bytes = ZONE_HEAD_BYTES + ZONE_SLOTS * segment_bytes;
        let zone = (offset - HEAD_BYTES) / zone_bytes;
        let within = (offset - HEAD_BYTES) % zone_bytes;
        if within < ZONE_HEAD_BYTES {
            let slot = zone * ZONE_SLOTS + within / RECORD_BYTES % ZONE_SLOTS;
            let mut record = vec![0; to_usize(RECORD_BYTES)];
            if let Some(entry) = self.view().at(slot) {
                let found = SegmentRecord {
                    store: self.superblock.store,
                    segment: entry.segment,
                    class: entry.class,
                };
                put(
                    &mut record,
                    0,
                    &found.encode().map_err(|error| self.unshown(error))?,
                );
            }
            return Ok(copy(&record, within % RECORD_BYTES, buffer));
        }
        let slot = zone * ZONE_SLOTS + (within - ZONE_HEAD_BYTES) / segment_bytes;
        let from = (within - ZONE_HEAD_BYTES) % segment_bytes;
        let room = to_usize(segment_bytes - from).min(buffer.len());
        let buffer = &mut buffer[..room];
        let entry = self.view().at(slot);
        let done = match entry {
            Some(entry) if from < u64::from(entry.decoded_bytes) => {
                copy(&self.segment(entry.segment)?, from, buffer)
            }
            _ => 0,
        };
        buffer[done..].fill(0);
        Ok(room)
    }
}

/// Where an entry stands, for errors.
fn place(file: &OpenFile, entry: &TableEntry) -> String {
    let (name, segment, offset) = (file.device.name(), entry.segment.0, entry.offset);
    format!("{name}: segment {segment} at byte {offset}")
}

/// That a header says what the table says of its segment; its payload begins at `at`.
fn check(
    entry: &TableEntry,
    header: &SegmentHeader,
    at: usize,
) -> std::result::Result<(), FormatError> {
    let differs = |field, expected: u64, found: u64| {
        FormatError::new("archived segment", field, 0, expected, found)
    };
    let stored = to_u64(at) + u64::from(header.payload_bytes);
    let pairs = [
        ("stored bytes", u64::from(entry.stored_bytes), stored),
        (
            "decoded bytes",
            u64::from(entry.decoded_bytes),
            u64::from(header.decoded_bytes),
        ),
        ("class", entry.class as u64, header.class as u64),
        ("merge", u64::from(entry.merge), u64::from(header.merge)),
        (
            "delta",
            u64::from(entry.delta),
            u64::from(!header.is_base()),
        ),
    ];
    let wrong = pairs
        .into_iter()
        .find(|(_, expected, found)| expected != found);
    wrong.map_or(Ok(()), |(field, expected, found)| {
        Err(differs(field, expected, found))
    })
}

fn put(bytes: &mut [u8], offset: u64, what: &[u8]) {
    let at = to_usize(offset);
    bytes[at..at + what.len()].copy_from_slice(what);
}

/// Copies what stands at `from` and behind it; how many bytes.
fn copy(source: &[u8], from: u64, buffer: &mut [u8]) -> usize {
    let source = &source[to_usize(from).min(source.len())..];
    let count = source.len().min(buffer.len());
    buffer[..count].copy_from_slice(&source[..count]);
    count
}

impl ReadAt for ArchiveDevice {
    fn length_bytes(&self) -> std::io::Result<u64> {
        Ok(self.geometry().file_bytes(self.view().slot_count()))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        let end = offset.saturating_add(to_u64(buffer.len()));
        if end > self.length_bytes()? {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < buffer.len() {
            let read = self.read_some(&mut buffer[done..], offset + to_u64(done));
            done += read.map_err(std::io::Error::other)?;
        }
        Ok(())
    }

    fn name(&self) -> String {
        self.view().files[0].device.name()
    }
}
