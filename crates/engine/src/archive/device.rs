// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: an archive store as a device with the layout of a node's store: read-only, decoded.
//! In from: the files of the archive. Out to: `StoreReader` and all that stands on it.
//! Invariants: stored bytes are verified by the table's digest before they are decoded; one thread
//! decodes a segment, others wait for it; a base is a key, so there is one step at most.
//! Format: docs/format/archive.md; what it looks like from outside: docs/format/store.md.

use super::{Place, ReadOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::io::Device;
use backstay_format::{
    ArchiveRoot, ArchiveSuperblock, SegmentHeader, SegmentId, StoreId, TableEntry,
};
use std::path::Path;
use std::sync::Arc;

/// An archive store, read as if it were a node's store. Shared by threads.
#[derive(Debug)]
pub struct ArchiveDevice {}

impl ArchiveDevice {
    /// Opens `file` in `folder`, and the files of predecessors that its root names.
    pub fn open(_folder: &Path, _file: &str, _options: &ReadOptions) -> Result<Arc<Self>> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }

    /// The same on a device; `place` opens the files of predecessors.
    pub fn open_on(
        _device: Arc<dyn Device>,
        _place: &dyn Place,
        _options: &ReadOptions,
    ) -> Result<Arc<Self>> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }

    /// What the file says of itself.
    pub fn superblock(&self) -> &ArchiveSuperblock {
        unimplemented!()
    }
    /// The root that is shown: of a device that was opened, the one it was opened or reloaded with; of
    /// a store that is written, the last one committed.
    pub fn root(&self) -> Arc<ArchiveRoot> {
        unimplemented!()
    }
    /// Where `segment` stands.
    pub fn entry(&self, _segment: SegmentId) -> Option<TableEntry> {
        None
    }
    /// All entries, ascending by segment.
    pub fn entries(&self) -> Vec<TableEntry> {
        Vec::new()
    }
    /// The slot in which `segment` is shown: what a `StoreReader` needs to place a segment that came
    /// after it read the records. A segment keeps its slot as long as it is in the table.
    pub fn slot_of(&self, _segment: SegmentId) -> Option<u64> {
        None
    }
    /// The store that first wrote the file of an entry.
    pub fn file_store(&self, _entry: &TableEntry) -> StoreId {
        StoreId::default()
    }
    /// The header of `segment`, without its payload.
    pub fn header(&self, _segment: SegmentId) -> Result<SegmentHeader> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// `segment`, verified and decoded.
    pub fn segment(&self, _segment: SegmentId) -> Result<Arc<Vec<u8>>> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// Header and payload of `segment` as stored, verified: to copy it without decoding.
    pub fn stored(&self, _segment: SegmentId) -> Result<(SegmentHeader, Vec<u8>)> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// Takes a newer root, if there is one; whether there was. Of a store that is written: nothing.
    pub fn reload(&self) -> Result<bool> {
        Ok(false)
    }
}

impl Device for ArchiveDevice {
    fn length_bytes(&self) -> std::io::Result<u64> {
        Ok(0)
    }
    fn read_at(&self, _buffer: &mut [u8], _offset: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    fn write_at(&self, _bytes: &[u8], _offset: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::PermissionDenied.into())
    }
    fn sync(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn reserve(&self, _length_bytes: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::PermissionDenied.into())
    }
    fn name(&self) -> String {
        String::new()
    }
}
