// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: stores as other nodes see them: their segments by their ids, and extents of these.
//! In from: `reader`, `reserve`. Out to: who exposes them to agents and aggregators.
//! Invariants: read only; nobody but the store itself knows where a segment stands; what is not sealed is
//! copied, never lent.

use crate::reader::StoreReader;
use crate::reserve::Reserve;
use backstay_base::error;
use backstay_base::io::ReadAt;
use backstay_base::io::sealed::{Mapping, SealedView};
use backstay_format::SegmentId;
use backstay_format::limits::SEGMENT_BYTES_MAX;
use backstay_format::width::to_u64;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;

/// The segments of a store, one behind the other in the order of their ids.
#[derive(Debug)]
pub struct SegmentView {
    reader: Arc<StoreReader>,
    /// Of a store that grows meanwhile.
    reserve: Option<Reserve>,
}

impl SegmentView {
    /// Of a store that ranks write.
    pub fn of_reserve(reserve: &Reserve) -> Self {
        Self {
            reader: reserve.shared_reader(),
            reserve: Some(reserve.clone()),
        }
    }
    /// Where `length` bytes at `offset` of the view are in the file.
    fn file_offset(&self, offset: u64, length: usize) -> Result<u64> {
        let segment = SegmentId(offset / u64::from(SEGMENT_BYTES_MAX));
        let within = offset % u64::from(SEGMENT_BYTES_MAX);
        let reader = &self.reader;
        let mut slot = reader.slot_of(segment);
        if let (None, Some(reserve)) = (slot, &self.reserve) {
            // Another rank of the node leased it.
            reserve.refresh();
            slot = reader.slot_of(segment);
        }
        let end = within + to_u64(length);
        let Some(slot) = slot.filter(|_| end <= u64::from(reader.geometry().segment_bytes)) else {
            let text = format!("{}: no such bytes of {segment:?}", reader.device().name());
            // Not a read that failed: the store has no such bytes.
            let wrong = error::Error::new(error::ErrorKind::InvalidArgument, text);
            return Err(Error::new(ErrorKind::NotFound, wrong));
        };
        Ok(reader.geometry().slot_offset(slot) + within)
    }

    /// Of a store that nobody writes; its records were read.
    pub fn of_reader(reader: Arc<StoreReader>) -> Self {
        let reserve = None;
        Self { reader, reserve }
    }
}

impl ReadAt for SegmentView {
    fn length_bytes(&self) -> Result<u64> {
        Ok(u64::MAX)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let place = self.file_offset(offset, buffer.len())?;
        self.reader.device().read_at(buffer, place)
    }

    fn name(&self) -> String {
        self.reader.device().name()
    }

    fn mapping(&self, lent: &[u8]) -> Option<Mapping> {
        self.reader.device().mapping(lent)
    }
}

impl SealedView for SegmentView {
    fn lend_sealed(&self, offset: u64, length: usize) -> Option<&[u8]> {
        self.file_offset(offset, length).ok()?;
        let slot = self
            .reader
            .slot_of(SegmentId(offset / u64::from(SEGMENT_BYTES_MAX)))?;
        let within = offset % u64::from(SEGMENT_BYTES_MAX);
        let range = match &self.reserve {
            Some(reserve) => reserve.sealed_range(slot, within, length)?,
            None => self.reader.still_range(slot, within, length),
        };
        self.reader.device().lend(range)
    }
}

/// One extent of a store's segments, as an exposure of its own.
#[derive(Debug)]
pub struct ExtentView {
    /// The segments.
    pub segments: SegmentView,
    /// Where it begins in them.
    pub start: u64,
    /// Its length.
    pub length_bytes: u64,
}

impl ReadAt for ExtentView {
    fn length_bytes(&self) -> Result<u64> {
        Ok(self.length_bytes)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.segments.read_at(buffer, self.start + offset)
    }

    fn name(&self) -> String {
        self.segments.name()
    }

    fn mapping(&self, lent: &[u8]) -> Option<Mapping> {
        self.segments.mapping(lent)
    }
}

impl SealedView for ExtentView {
    fn lend_sealed(&self, offset: u64, length: usize) -> Option<&[u8]> {
        self.segments.lend_sealed(self.start + offset, length)
    }
}
