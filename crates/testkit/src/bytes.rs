// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: bytes that many crash images share: a base, and pages that differ from it.
//! Invariants: a copy costs its changed pages, not its length; bytes never written are zero, also
//! where the length shrank and grew again.

use backstay_format::width::{to_u64, to_usize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Bytes of one page.
const PAGE_BYTES: usize = 4096;
/// With more changed pages than this, [`SharedBytes::settle`] makes a new base.
const SETTLE_PAGES: usize = 1024;

/// A growable array of bytes, cheap to copy.
#[derive(Clone, Default)]
pub struct SharedBytes {
    base: Arc<Vec<u8>>,
    /// Bytes of `base` that still count.
    base_length: usize,
    length: usize,
    pages: BTreeMap<usize, Arc<[u8; PAGE_BYTES]>>,
}

impl SharedBytes {
    /// These bytes, with nothing changed yet.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            base_length: bytes.len(),
            length: bytes.len(),
            base: Arc::new(bytes),
            pages: BTreeMap::new(),
        }
    }

    /// How many there are.
    pub fn length_bytes(&self) -> u64 {
        to_u64(self.length)
    }

    /// Grows with zeros, or cuts the end off.
    pub fn resize(&mut self, length_bytes: u64) {
        let length = to_usize(length_bytes);
        if length < self.length {
            self.base_length = self.base_length.min(length);
            self.pages.split_off(&length.div_ceil(PAGE_BYTES));
            let (page, within) = (length / PAGE_BYTES, length % PAGE_BYTES);
            if let Some(kept) = self.pages.get_mut(&page) {
                Arc::make_mut(kept)[within..].fill(0);
            }
        }
        self.length = length;
    }

    /// Fills `buffer` from `offset`; false, and nothing done, if there are too few bytes.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> bool {
        let Some(start) = self.range(buffer.len(), offset) else {
            return false;
        };
        self.copy_base(buffer, start);
        let end = start + buffer.len();
        for (&page, bytes) in self
            .pages
            .range(start / PAGE_BYTES..end.div_ceil(PAGE_BYTES))
        {
            let first = start.max(page * PAGE_BYTES);
            let last = end.min((page + 1) * PAGE_BYTES);
            let from = first - page * PAGE_BYTES;
            buffer[first - start..last - start].copy_from_slice(&bytes[from..][..last - first]);
        }
        true
    }

    /// Writes `bytes` at `offset`; false, and nothing done, if they go beyond the end.
    pub fn write(&mut self, bytes: &[u8], offset: u64) -> bool {
        let Some(start) = self.range(bytes.len(), offset) else {
            return false;
        };
        let mut done = 0;
        while done < bytes.len() {
            let (page, within) = ((start + done) / PAGE_BYTES, (start + done) % PAGE_BYTES);
            let count = (PAGE_BYTES - within).min(bytes.len() - done);
            if !self.pages.contains_key(&page) {
                let mut fresh = [0; PAGE_BYTES];
                self.copy_base(&mut fresh, page * PAGE_BYTES);
                self.pages.insert(page, Arc::new(fresh));
            }
            if let Some(slot) = self.pages.get_mut(&page) {
                Arc::make_mut(slot)[within..within + count]
                    .copy_from_slice(&bytes[done..done + count]);
            }
            done += count;
        }
        true
    }

    /// Writes zeros over what lies within the length.
    pub fn clear(&mut self, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes).min(self.length_bytes());
        let zeros = [0; PAGE_BYTES];
        let mut at = offset;
        while at < end {
            let next = (at / to_u64(PAGE_BYTES) + 1) * to_u64(PAGE_BYTES);
            let count = to_usize(next.min(end) - at);
            self.write(&zeros[..count], at);
            at += to_u64(count);
        }
    }

    /// Makes one base of it all, if so much has changed that copies become dear.
    pub fn settle(&mut self) {
        if self.pages.len() > SETTLE_PAGES {
            *self = Self::new(self.to_vec());
        }
    }

    /// All bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        self.read(&mut bytes, 0);
        bytes
    }

    /// Pages that differ from the base: what a copy costs.
    pub fn changed_pages(&self) -> usize {
        self.pages.len()
    }

    fn range(&self, count: usize, offset: u64) -> Option<usize> {
        let end = offset.checked_add(to_u64(count))?;
        (end <= to_u64(self.length)).then(|| to_usize(offset))
    }

    fn copy_base(&self, buffer: &mut [u8], start: usize) {
        let valid = self.base_length.saturating_sub(start).min(buffer.len());
        buffer[valid..].fill(0);
        if valid > 0 {
            buffer[..valid].copy_from_slice(&self.base[start..start + valid]);
        }
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBytes")
            .field("length", &self.length)
            .field("changed_pages", &self.pages.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded::Seeded;

    /// The same operations on a plain vector.
    #[test]
    fn behaves_as_a_vector() {
        let mut seeded = Seeded::new(11);
        let mut model: Vec<u8> = (0..=250).cycle().take(20_000).collect();
        let mut shared = SharedBytes::new(model.clone());
        for step in 0..400u64 {
            if seeded.chance(1, 8) {
                let length = seeded.index(40_000);
                model.resize(length, 0);
                shared.resize(to_u64(length));
            } else {
                let offset = seeded.index(model.len() + 1);
                let count = seeded.index((model.len() - offset).min(9000) + 1);
                let bytes = vec![1 + u8::try_from(step % 255).unwrap(); count];
                model[offset..offset + count].copy_from_slice(&bytes);
                assert!(shared.write(&bytes, to_u64(offset)));
                if seeded.chance(1, 4) {
                    model[offset..offset + count].fill(0);
                    shared.clear(to_u64(offset), to_u64(count));
                }
            }
            assert_eq!(shared.to_vec(), model, "step {step}");
            let offset = seeded.index(model.len() + 1);
            let mut part = vec![0; model.len() - offset];
            assert!(shared.read(&mut part, to_u64(offset)));
            assert_eq!(part, model[offset..]);
        }
    }

    #[test]
    fn a_copy_does_not_see_later_writes_and_shares_pages() {
        let mut first = SharedBytes::new(vec![1; 1 << 20]);
        assert!(first.write(&[2; 10], 5000));
        let second = first.clone();
        assert!(first.write(&[3; 10], 5000));
        let mut bytes = [0; 10];
        assert!(second.read(&mut bytes, 5000));
        assert_eq!(bytes, [2; 10]);
        assert_eq!(second.changed_pages(), 1);
        assert!(Arc::ptr_eq(&first.base, &second.base));
    }

    #[test]
    fn ranges_beyond_the_end_are_refused() {
        let mut shared = SharedBytes::new(vec![0; 100]);
        assert!(!shared.write(&[1; 2], 99));
        assert!(!shared.read(&mut [0; 2], 99));
        assert!(!shared.read(&mut [0; 2], u64::MAX));
        assert!(shared.write(&[], 100));
        assert_eq!(shared.to_vec(), vec![0; 100]);
    }

    #[test]
    fn settling_keeps_the_bytes() {
        let mut shared = SharedBytes::default();
        shared.resize(8 << 20);
        for page in 0..2000u64 {
            assert!(shared.write(&page.to_le_bytes(), page * 4096));
        }
        let before = shared.to_vec();
        shared.settle();
        assert_eq!(shared.changed_pages(), 0);
        assert_eq!(shared.to_vec(), before);
    }
}
