// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which blocks of a variable may have changed since the last commit.
//! In: what the program marked, what the kernel saw. Out: candidates, which `store::tree` hashes.
//! Invariants: a block that is no candidate is taken as clean; when in doubt, it is a candidate.

pub mod mappings;
pub mod pages;

use backstay_format::width::{to_u64, to_usize};
use std::ops::Range;

/// Blocks that must be hashed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Candidates {
    /// Every block.
    #[default]
    All,
    /// Every block, and each is written whether it changed or not.
    AllChanged,
    /// These blocks; and of the others, every `n`-th is checked.
    Some(BlockSet),
}

impl Candidates {
    /// Tracking was found wrong: from now on every block is checked. Whether some were not before.
    pub fn widen(&mut self) -> bool {
        match self {
            Self::All | Self::AllChanged => false,
            Self::Some(set) => std::mem::replace(&mut set.check_stride, 1) != 1,
        }
    }
}

/// A set of blocks, and those that are looked at only to check the contract of tracking.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockSet {
    /// One bit a block, so that its memory is bounded however often something is marked.
    marked: Vec<u64>,
    /// Checked: blocks whose index is `check_offset` modulo `check_stride`.
    check_stride: u64,
    check_offset: u64,
}

impl BlockSet {
    /// An empty set over `blocks` blocks that checks one in `check_stride` (0: none).
    pub fn new(blocks: usize, check_stride: u64, check_offset: u64) -> Self {
        Self {
            marked: vec![0; blocks.div_ceil(64)],
            check_stride,
            check_offset,
        }
    }

    /// Adds the blocks of `block_bytes` that a range of bytes touches.
    pub fn mark(&mut self, bytes: &Range<u64>, block_bytes: u32) {
        if bytes.is_empty() {
            return;
        }
        let mut block = to_usize(bytes.start / u64::from(block_bytes));
        let end = to_usize((bytes.end - 1) / u64::from(block_bytes)) + 1;
        while block < end {
            let count = (64 - block % 64).min(end - block);
            if let Some(word) = self.marked.get_mut(block / 64) {
                *word |= (u64::MAX >> (64 - count)) << (block % 64);
            }
            block += count;
        }
    }

    /// Moves what is marked in `other` here; there nothing is marked then.
    pub fn take_from(&mut self, other: &mut Self) {
        for (mine, theirs) in self.marked.iter_mut().zip(&mut other.marked) {
            *mine |= std::mem::take(theirs);
        }
    }

    /// Bytes of memory it holds.
    pub fn memory_bytes(&self) -> u64 {
        to_u64(self.marked.capacity() * size_of::<u64>())
    }

    /// Unmarks everything.
    pub fn clear(&mut self) {
        self.marked.fill(0);
    }

    /// Whether nothing is marked.
    pub fn is_empty(&self) -> bool {
        self.marked.iter().all(|&word| word == 0)
    }

    /// The same blocks; of the others one in `stride` is checked, the next with each `turn`.
    #[must_use]
    pub fn checking(&self, stride: u64, turn: u64) -> Self {
        Self {
            marked: self.marked.clone(),
            check_stride: stride,
            check_offset: turn.checked_rem(stride).unwrap_or(0),
        }
    }

    /// Whether `block` is in the set.
    pub fn contains(&self, block: usize) -> bool {
        self.marked
            .get(block / 64)
            .is_some_and(|word| word & (1 << (block % 64)) != 0)
    }

    /// Whether `block` is looked at to check the contract.
    pub fn checks(&self, block: usize) -> bool {
        self.next_checked(block) == Some(block)
    }

    /// Whether any of the blocks `range` is in the set or checked.
    pub fn touches(&self, range: Range<usize>) -> bool {
        self.next_checked(range.start)
            .is_some_and(|block| block < range.end)
            || self.contains_any(range)
    }

    fn contains_any(&self, range: Range<usize>) -> bool {
        let mut block = range.start;
        while block < range.end {
            let word = self.marked.get(block / 64).copied().unwrap_or(0) >> (block % 64);
            let count = (64 - block % 64).min(range.end - block);
            if word & (u64::MAX >> (64 - count)) != 0 {
                return true;
            }
            block += count;
        }
        false
    }

    /// The first block from `from` on that is looked at to check the contract.
    fn next_checked(&self, from: usize) -> Option<usize> {
        let (stride, from) = (self.check_stride, to_u64(from));
        let past = from.checked_rem(stride)?;
        let offset = self.check_offset % stride;
        Some(to_usize(from + (offset + stride - past) % stride))
    }

    /// The first block from `from` on that is in the set or checked.
    pub fn next(&self, from: usize) -> Option<usize> {
        let marked = (from / 64..self.marked.len()).find_map(|word| {
            let below = if word == from / 64 {
                !0 << (from % 64)
            } else {
                !0
            };
            let bits = self.marked[word] & below;
            (bits != 0).then(|| word * 64 + to_usize(u64::from(bits.trailing_zeros())))
        });
        let checked = self.next_checked(from);
        match (marked, checked) {
            (Some(marked), Some(checked)) => Some(marked.min(checked)),
            (marked, checked) => marked.or(checked),
        }
    }

    /// Number of blocks in the set.
    pub fn count(&self) -> u64 {
        self.marked
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_marks_every_block_it_touches() {
        let mut set = BlockSet::new(200, 0, 0);
        set.mark(&(16_383..32_769), 16_384);
        let marked: Vec<usize> = (0..200).filter(|&block| set.contains(block)).collect();
        assert_eq!(marked, [0, 1, 2]);
        set.mark(&(5..5), 16_384);
        assert_eq!(set.count(), 3);
    }

    #[test]
    fn marks_are_those_of_each_block_taken_alone_and_move_as_a_whole() {
        for (start, end) in [(0, 1), (63, 65), (5, 300), (64, 128), (0, 300), (299, 300)] {
            let mut set = BlockSet::new(300, 0, 0);
            set.mark(&(start * 1024..end * 1024), 1024);
            assert_eq!(set.count(), end - start);
            assert!((start..end).all(|block| set.contains(to_usize(block))));
            let mut other = BlockSet::new(300, 0, 0);
            other.mark(&(10 * 1024..10 * 1024 + 1), 1024);
            other.take_from(&mut set);
            assert!(set.is_empty() && other.contains(10) && other.contains(to_usize(start)));
        }
        // What lies past the last word is nowhere.
        let mut set = BlockSet::new(1, 0, 0);
        set.mark(&(0..1 << 30), 1024);
        assert_eq!(set.count(), 64);
    }

    #[test]
    fn every_block_is_checked_once_wrong_tracking_was_found() {
        let mut candidates = Candidates::Some(BlockSet::new(100, 7, 3));
        assert!(candidates.widen());
        let Candidates::Some(set) = &candidates else {
            panic!("a set stays one")
        };
        assert!((0..100).all(|block| set.checks(block) && set.next(block) == Some(block)));
        assert!(!candidates.widen() && !Candidates::All.widen());
    }

    #[test]
    fn next_is_the_first_that_is_marked_or_checked() {
        for stride in [0, 1, 5, 64] {
            let mut set = BlockSet::new(300, stride, stride / 2);
            set.mark(&(10 * 64..11 * 64), 64);
            set.mark(&(200 * 64..203 * 64), 64);
            for from in 0..300 {
                let wanted = (from..300).find(|&block| set.contains(block) || set.checks(block));
                assert_eq!(
                    set.next(from).filter(|&block| block < 300),
                    wanted,
                    "{stride} {from}"
                );
                for length in [0, 1, 32, 130] {
                    let range = from..from + length;
                    let any = wanted.is_some_and(|block| range.contains(&block))
                        || set
                            .next_checked(from)
                            .is_some_and(|block| range.contains(&block));
                    assert_eq!(set.touches(range), any, "{stride} {from} {length}");
                }
            }
        }
    }
}
