// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: an archive store, for the one process that writes it.
//! In from: the composer (encoded segments; which are dead). Out to: a device, by writer threads.
//! Invariants: data and table are durable before the root that refers to them is written; what that
//! root no longer refers to is free when it is durable; after a failed sync the store refuses all.
//! Format: docs/format/archive.md, section "Commit".

use super::{ArchiveDevice, Identity, Place, WriteOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Device;
use backstay_format::{
    ArchiveRoot, BaseRun, CheckpointId, ElementType, RevisionEntry, SegmentClass, SegmentHeader,
    SegmentId, SegmentPiece, StoreId, TableEntry,
};
use std::path::Path;
use std::sync::Arc;

/// An encoded segment to append.
#[derive(Debug, Clone)]
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
    /// What of it is a difference, in order; the bases lie in keys.
    pub bases: Vec<BaseRun>,
    /// The encoded bytes.
    pub payload: Vec<u8>,
}

/// What a commit makes durable, beside what was appended.
#[derive(Debug, Clone, Default)]
pub struct Commit {
    /// The newest life of the job.
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
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes that wait to be written.
    pub queue_bytes: u64,
}

/// An archive store, for writing. Shared by threads of one process.
#[derive(Debug)]
pub struct ArchiveStore {}

impl ArchiveStore {
    /// Makes `name` in `folder`, which must not be there.
    pub fn create(
        _folder: &Path,
        _name: &str,
        _identity: &Identity,
        _options: &WriteOptions,
    ) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }

    /// Opens `name` again, on the host that made it, once its former process is proven dead. Otherwise
    /// [`ErrorKind::StoreBusy`]: [`ArchiveStore::take_over`] is the way then.
    pub fn open(
        _folder: &Path,
        _name: &str,
        _identity: &Identity,
        _options: &WriteOptions,
    ) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }

    /// Makes `name`, with the state of `predecessor`, whose segments it refers to and never writes.
    pub fn take_over(
        _folder: &Path,
        _predecessor: &str,
        _name: &str,
        _identity: &Identity,
        _options: &WriteOptions,
    ) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }

    /// Makes a store on a device, without a fence.
    pub fn create_on(
        _device: Arc<dyn Device>,
        _identity: &Identity,
        _options: &WriteOptions,
    ) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }

    /// Opens the store on a device, without a fence.
    pub fn open_on(
        _device: Arc<dyn Device>,
        _place: &dyn Place,
        _options: &WriteOptions,
    ) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }

    /// Makes a store on a device, with the state of the file `predecessor` of `place`, without a fence.
    pub fn take_over_on(
        _device: Arc<dyn Device>,
        _place: &dyn Place,
        _predecessor: &str,
        _identity: &Identity,
        _options: &WriteOptions,
    ) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }

    /// Which store.
    pub fn id(&self) -> StoreId {
        StoreId::default()
    }
    /// The durable root.
    pub fn root(&self) -> Arc<ArchiveRoot> {
        unimplemented!()
    }
    /// Reads what was committed and what was appended; a segment that waits to be written is waited for.
    pub fn device(&self) -> Arc<ArchiveDevice> {
        unimplemented!()
    }
    /// Headers of the segments that a commit made durable for the checkpoint that is draining: a drain
    /// that goes on finds there, by digest and length, what it need not bring again.
    pub fn unfinished(&self) -> Result<Vec<SegmentHeader>> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// The next segment id.
    pub fn next_segment(&self) -> SegmentId {
        SegmentId(0)
    }
    /// Hands over a segment to be written. Waits while the queue is full. Threads may append at once.
    /// An error may be that of an earlier write; [`ArchiveStore::roll_back`] then.
    pub fn append(&self, _segment: NewSegment) -> Result<TableEntry> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// Makes all that was appended durable, with a new root; its sequence. No append may be under way.
    pub fn commit(&self, _commit: &Commit) -> Result<u64> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// Forgets what was appended since the last commit, and the error of a write.
    pub fn roll_back(&self) {}
    /// What was done and what there is.
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}
