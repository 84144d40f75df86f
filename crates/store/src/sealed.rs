// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which bytes of a store nobody writes any more.
//! In from: the marks that commits set, or the knowledge that nobody writes the store. Out to: `io::sealed`.
//! Invariants: a store that nothing protects has no sealed bytes, because its granules are used again.
#![expect(unsafe_code, reason = "vouches for what is sealed")]

use super::reader::StoreReader;
use super::reserve::Reserve;
use backstay_base::io::sealed::SealedRange;
use backstay_format::width::to_u64;

impl Reserve {
    /// `length` bytes at `within` of the segment in `slot`, if they stand in front of its mark.
    pub fn sealed_range(&self, slot: u64, within: u64, length: usize) -> Option<SealedRange> {
        let control = self.control();
        let end = within.checked_add(to_u64(length))?;
        if !control.redundant() || control.sealed(slot) < end {
            return None;
        }
        let offset = self.geometry().slot_offset(slot) + within;
        // SAFETY: a protected store fills each segment once, and takes it for others only when no stripe
        // names it; the mark says that what stands in front of it was written and synced. Who borrows it
        // does so for a stripe that is being made or read.
        Some(unsafe { SealedRange::vouch(offset, length) })
    }
}

impl StoreReader {
    /// `length` bytes at `within` of the segment in `slot` of a store that nobody writes: one that was found on
    /// a node before any is opened, or was set aside.
    pub fn still_range(&self, slot: u64, within: u64, length: usize) -> SealedRange {
        let offset = self.geometry().slot_offset(slot) + within;
        // SAFETY: as the name says; only views of stores that nobody opened for writing are asked.
        unsafe { SealedRange::vouch(offset, length) }
    }
}
