// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one node's store, or one of an archive, opened for looking: its roots, its revisions, their tables of ranks.
//! Invariants: a state is taken again when a commit came between its parts; what stays wrong while
//! the root stays the same is damage.

use backstay_archive::ArchiveDevice;
use backstay_archive::drain::fetch;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_base::io::file::FileDevice;
use backstay_base::io::two_slots::Slot;
use backstay_format::bytes::FRAME_HEAD_BYTES;
use backstay_format::geometry::{HEAD_BYTES, ROOT_BYTES, ROOT_OFFSETS};
use backstay_format::width::to_usize;
use backstay_format::{CheckpointId, Lineage, RankEntry, RevisionEntry, RootSlot, StoreId};
use backstay_store::control::ControlGlance;
use backstay_store::reader::StoreReader;
use backstay_store::revision::read_ranks;
use backstay_store::stripe_log::{StripeTable, read_beside};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How often a state is taken again when a job commits meanwhile.
const TRIES: u32 = 20;

/// A node's store.
#[derive(Debug)]
pub struct OpenStore {
    path: PathBuf,
    reader: StoreReader,
    root: RootSlot,
    slots: [RootState; 2],
    retained: Vec<Retained>,
    /// The folder of the file, behind all links.
    directory: PathBuf,
    /// Whether there is a stripe log beside it.
    redundant: bool,
    table: Option<StripeTable>,
    /// What the job that uses it said, if one does.
    glance: Option<ControlGlance>,
    /// Of a store of an archive: which archive, and its device.
    archived: Option<(usize, Arc<ArchiveDevice>)>,
}

/// A retained revision.
#[derive(Debug)]
pub struct Retained {
    /// What the root says of it.
    pub entry: RevisionEntry,
    /// The ranks it holds, or what is wrong with their table.
    pub ranks: Result<Vec<RankEntry>>,
}

/// What a root slot holds.
#[derive(Debug)]
pub enum RootState {
    /// A root with this sequence.
    Valid(u64),
    /// Nothing yet: the store was just made.
    Unused,
    /// Neither.
    Damaged(Error),
}

impl OpenStore {
    /// Opens a file and reads its superblock; the rest is read by `take_root` and `read_tables`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let device = FileDevice::open_read_only(path)
            .map_err(|error| Error::io(format!("{}: opening it", path.display()), error))?;
        let reader = StoreReader::open(Arc::new(device)).map_err(|error| explain(path, error))?;
        Ok(Self::new(path, reader))
    }

    /// The same of a file of the archive that is the `archive`th of those opened.
    pub(super) fn open_archived(path: &Path, archive: usize) -> Result<Self> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let device = fetch::open_to_read(folder, &name)?;
        let reader = StoreReader::open(Arc::<ArchiveDevice>::clone(&device))?;
        let mut store = Self::new(path, reader);
        store.archived = Some((archive, device));
        Ok(store)
    }

    fn new(path: &Path, reader: StoreReader) -> Self {
        let root = RootSlot {
            store: reader.superblock().store,
            sequence: 0,
            incarnation: 0,
            next_segment: 0,
            closed: false,
            lineage: Lineage::default(),
            revisions: Vec::new(),
        };
        Self {
            path: path.to_owned(),
            reader,
            root,
            slots: [RootState::Unused, RootState::Unused],
            retained: Vec::new(),
            directory: folder_of(path),
            redundant: false,
            table: None,
            glance: None,
            archived: None,
        }
    }

    /// The archive it is a store of, as an index into [`Stores::archives`](super::Stores::archives).
    pub fn archive(&self) -> Option<usize> {
        self.archived.as_ref().map(|(archive, _)| *archive)
    }
    /// Its device, if it is a store of an archive.
    pub fn archive_device(&self) -> Option<&Arc<ArchiveDevice>> {
        self.archived.as_ref().map(|(_, device)| device)
    }
    /// Bytes of all its segments, decoded, if it is a store of an archive.
    pub(super) fn bytes_decoded(&self) -> Option<u64> {
        let entries = self.archive_device()?.entries();
        Some(
            entries
                .iter()
                .map(|entry| u64::from(entry.decoded_bytes))
                .sum(),
        )
    }
    /// What is wrong with the newest root of a store of an archive, where the older had to be taken.
    pub fn damaged(&self) -> Option<&Error> {
        self.archive_device()?.damaged()
    }
    /// The name of its file.
    pub(super) fn file_name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Reads the stripe log beside the store, and what a running job says.
    pub(super) fn take_log(&mut self) {
        if self.archived.is_some() {
            return;
        }
        self.glance = super::protection::glance(&self.directory);
        self.table = self.read_log();
        self.redundant = self.table.is_some();
    }

    /// The stripe log as it is now.
    pub(super) fn read_log(&self) -> Option<StripeTable> {
        read_beside(&self.directory, self.id())
    }

    pub(super) fn take_table(&mut self) -> Option<StripeTable> {
        self.table.take()
    }
    /// What the job that uses the store said, if one does.
    pub(super) fn glance(&self) -> Option<&ControlGlance> {
        self.glance.as_ref()
    }
    /// Whether a stripe log stands beside it: redundancy is on.
    pub fn redundant(&self) -> bool {
        self.redundant
    }
    /// The folder that the file is in.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Takes the newest root.
    pub(super) fn take_root(&mut self) -> Result<()> {
        (self.root, self.slots) = self.settled_roots()?;
        Ok(())
    }

    /// Reads what the root that was taken refers to: segment records, then the tables of ranks. False
    /// if a table is not what its digest says.
    pub(super) fn read_tables(&mut self) -> Result<bool> {
        self.reader.forget_segments();
        self.reader.read_records(|_, _, _| {})?;
        let read = |entry: &RevisionEntry| Retained {
            entry: *entry,
            ranks: read_ranks(&self.reader, entry),
        };
        self.retained = self.root.revisions.iter().map(read).collect();
        Ok(self.retained.iter().all(|revision| revision.ranks.is_ok()))
    }

    /// Whether a commit came after the root that was taken.
    pub(super) fn moved_on(&self) -> bool {
        matches!(self.settled_roots(), Ok((root, _)) if root.sequence != self.root.sequence)
    }

    /// Leaves out what cannot be read because it was recycled meanwhile.
    pub(super) fn leave_out_gone(&mut self) -> Result<()> {
        let kept = self.retained_now()?;
        self.retained
            .retain(|revision| revision.ranks.is_ok() || kept.contains(&revision.entry.checkpoint));
        Ok(())
    }

    /// The newest root and the state of both slots, none of them in the middle of being written.
    fn settled_roots(&self) -> Result<(RootSlot, [RootState; 2])> {
        if let Some((_, device)) = &self.archived {
            device.reload()?;
            let (root, _) = self.reader.newest_root()?;
            let valid = RootState::Valid(root.sequence);
            let other = match device.damaged() {
                Some(damaged) => RootState::Damaged(copy_of(damaged)),
                None => RootState::Valid(root.sequence),
            };
            return Ok((root, [valid, other]));
        }
        let mut attempt = 0;
        loop {
            let slots = self.reader.roots().slots;
            attempt += 1;
            let wrong = |slot: &Slot<RootSlot>| matches!(slot, Slot::Damaged(_) | Slot::Unread(_));
            if attempt < TRIES && slots.iter().any(wrong) {
                continue;
            }
            let (mut newest, mut failure) = (None::<RootSlot>, None);
            let states = slots.map(|slot| match slot {
                Slot::Unused => RootState::Unused,
                Slot::Good(root) => {
                    let valid = RootState::Valid(root.sequence);
                    let is_newer = |other: &RootSlot| other.sequence < root.sequence;
                    if newest.as_ref().is_none_or(is_newer) {
                        newest = Some(root);
                    }
                    valid
                }
                // Who only looks shows what there is; a restart does not go on from it.
                Slot::Damaged(error) | Slot::Unread(error) => {
                    failure.get_or_insert_with(|| copy_of(&error));
                    RootState::Damaged(error)
                }
            });
            return match (newest, failure) {
                (Some(root), _) => Ok((root, states)),
                (None, Some(failure)) => Err(failure),
                (None, None) => Err(Error::new(ErrorKind::Corrupt, "both root slots are empty")),
            };
        }
    }

    /// The checkpoints that the store retains by now.
    pub(super) fn retained_now(&self) -> Result<Vec<CheckpointId>> {
        let (root, _) = self.settled_roots()?;
        Ok(root
            .revisions
            .iter()
            .map(|revision| revision.checkpoint)
            .collect())
    }

    /// What an error met while reading `id` means: damage stays what it is; a checkpoint that is
    /// retained no longer was recycled while it was read.
    pub(super) fn judge(&self, id: CheckpointId, error: Error) -> Error {
        if error.kind() != ErrorKind::Corrupt {
            return error;
        }
        match self.retained_now() {
            Ok(now) if !now.contains(&id) => {
                let numbers: Vec<u64> = now.iter().map(|id| id.number).collect();
                let context = format!(
                    "checkpoint {id} was superseded while it was read: {} now retains {numbers:?}; \
                     run this again for a newer one, or pin the checkpoint first",
                    self.path.display()
                );
                Error::new(ErrorKind::NotRetained, context)
            }
            _ => error,
        }
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The job it belongs to.
    pub fn job(&self) -> &str {
        &self.reader.superblock().job
    }
    /// The node it was made on.
    pub fn node(&self) -> &str {
        &self.reader.superblock().node
    }
    /// Which store.
    pub fn id(&self) -> StoreId {
        self.reader.superblock().store
    }
    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u32 {
        self.reader.superblock().segment_bytes
    }
    /// Bytes of the file.
    pub fn length_bytes(&self) -> u64 {
        if self.archived.is_some() {
            return std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        }
        self.reader.device().length_bytes().unwrap_or(0)
    }
    /// The newest root.
    pub fn root(&self) -> &RootSlot {
        &self.root
    }
    /// Both root slots.
    pub fn slots(&self) -> &[RootState; 2] {
        &self.slots
    }
    /// What it retains, oldest first.
    pub fn retained(&self) -> &[Retained] {
        &self.retained
    }
    /// The reading side of the store.
    pub fn reader(&self) -> &StoreReader {
        &self.reader
    }
}

/// The store may be a link to where there was room; its log is there.
fn folder_of(path: &Path) -> PathBuf {
    let file = std::fs::canonicalize(path).unwrap_or_else(|_error| path.to_owned());
    file.parent().unwrap_or(Path::new("/")).to_owned()
}

/// The same error for a second place; its cause becomes text.
fn copy_of(error: &Error) -> Error {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    let context = match cause {
        Some(cause) => format!("{}: {cause}", error.context()),
        None => error.context().to_owned(),
    };
    Error::new(error.kind(), context)
}

/// Whether a root in the head of a store, whichever it is of, lists checkpoints.
fn lists_checkpoints(head: &[u8]) -> bool {
    ROOT_OFFSETS.into_iter().any(|offset| {
        let from = to_usize(offset);
        let slot = head.get(from..from + ROOT_BYTES);
        let store = slot.and_then(|slot| slot[FRAME_HEAD_BYTES..].first_chunk());
        let root = slot.zip(store);
        let root = root.map(|(slot, store)| RootSlot::decode(slot, StoreId(*store)));
        root.is_some_and(|root| root.is_ok_and(|root| !root.revisions.is_empty()))
    })
}

/// What it means that a file has no good superblock.
fn explain(path: &Path, error: Error) -> Error {
    if error.kind() != ErrorKind::Corrupt {
        return error;
    }
    let mut head = vec![0; to_usize(HEAD_BYTES)];
    let device = FileDevice::open_read_only(path);
    let empty = device.is_ok_and(|device| {
        let length = device.length_bytes().unwrap_or(0).min(HEAD_BYTES);
        let head = &mut head[..to_usize(length)];
        let front = head.len().min(ROOT_BYTES);
        device.read_at(head, 0).is_ok() && head[..front].iter().all(|&byte| byte == 0)
    });
    // Its roots are written before its superblock, and list checkpoints only after it.
    if empty && lists_checkpoints(&head) {
        let context = format!(
            "{}: both copies of its superblock are zeros, though its roots list checkpoints: the head of the \
             file was written over; they can be had from the archive or from other nodes that protect it",
            path.display()
        );
        return Error::new(ErrorKind::Corrupt, context);
    }
    if empty {
        let context = format!(
            "{}: the store is not finished: its job is making it just now, or ended while it did; \
             the next start of the job rewrites it",
            path.display()
        );
        return Error::new(ErrorKind::NoCheckpoint, context);
    }
    let context = format!(
        "{}: it is no Backstay store of this format version, or both copies of its superblock are \
         damaged; give a file named {}, or a folder above it",
        copy_of(&error).context(),
        backstay_store::place::STORE_FILE
    );
    Error::new(ErrorKind::Corrupt, context)
}
