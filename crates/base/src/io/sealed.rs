// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: bytes of a device that nobody writes, so that they may be borrowed where they stand.
//! In from: `store`, which knows what is sealed. Out to: `Device::lend`, and pulls.
//! Invariants: a range is made only by who vouches for it; all else of a device is copied when it is read,
//! because ranks write into its mapping meanwhile.
#![expect(
    unsafe_code,
    reason = "who makes a range vouches that nobody writes it"
)]

use super::ReadAt;

/// A range of a device that nobody writes as long as anybody borrows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealedRange {
    offset: u64,
    length: usize,
}

impl SealedRange {
    /// The bytes `offset..offset + length`.
    ///
    /// # Safety
    ///
    /// Nobody writes them from now until what is lent of them is given back: they were written, and belong to
    /// a segment that is filled once and not free, or to a device that nobody writes.
    pub const unsafe fn vouch(offset: u64, length: usize) -> Self {
        Self { offset, length }
    }

    /// The same bytes in a device of which this one is a part that begins at `start`.
    pub(super) const fn within(self, start: u64) -> Self {
        let offset = self.offset + start;
        Self { offset, ..self }
    }

    /// Where it begins.
    pub const fn offset(&self) -> u64 {
        self.offset
    }
    /// Its bytes.
    pub const fn length(&self) -> usize {
        self.length
    }
}

/// Where memory stands: a place that bytes which are lent lie in, of which nothing is said but that it is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Address of its first byte.
    pub start: usize,
    /// Bytes of it.
    pub length: usize,
}

/// A device that knows which of its bytes are sealed.
pub trait SealedView: ReadAt {
    /// The bytes themselves, where they are sealed and in memory; else they are to be read.
    fn lend_sealed(&self, offset: u64, length: usize) -> Option<&[u8]>;
}
