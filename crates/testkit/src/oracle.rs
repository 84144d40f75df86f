// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: contents of variables in which every word tells where it came from.
//! In: rank, variable, checkpoint. Out: bytes, or the first word that should not be there.
//! Invariants: the contents are a function of the seed and the three numbers alone, so any process
//! can check what another one wrote; a block changes only in the checkpoints `changes` names.
//!
//! A word of 8 bytes, from the top: checkpoint 16 bits (the last one that changed the block), rank
//! 12, variable 12, index of the word 24 (modulo 2^24). A tail shorter than a word is its front.

use crate::seeded::Seeded;
use backstay_format::width::to_u64;
use std::fmt;
use std::ops::Range;

/// Largest checkpoint number a word can hold.
pub const CHECKPOINT_MAX: u64 = (1 << 16) - 1;
/// Largest rank, and largest variable, a word can hold.
pub const RANK_MAX: u32 = (1 << 12) - 1;

/// Where a word came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The checkpoint that changed it last.
    pub checkpoint: u64,
    /// The rank it belongs to.
    pub rank: u32,
    /// The variable it belongs to.
    pub variable: u32,
    /// Its index in the variable, modulo 2^24.
    pub word: u64,
}

impl Origin {
    /// The word.
    pub fn to_word(self) -> u64 {
        let (rank, variable) = (u64::from(self.rank), u64::from(self.variable));
        (self.checkpoint & CHECKPOINT_MAX) << 48
            | (rank & u64::from(RANK_MAX)) << 36
            | (variable & u64::from(RANK_MAX)) << 24
            | (self.word & 0xff_ffff)
    }

    /// What a word says of itself.
    pub fn from_word(word: u64) -> Self {
        let twelve = |bits: u64| u32::try_from(bits & u64::from(RANK_MAX)).unwrap_or(0);
        Self {
            checkpoint: word >> 48,
            rank: twelve(word >> 36),
            variable: twelve(word >> 24),
            word: word & 0xff_ffff,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "checkpoint {} rank {} variable {} word {}",
            self.checkpoint, self.rank, self.variable, self.word
        )
    }
}

/// The first word that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// The checkpoint the bytes should be of.
    pub checkpoint: u64,
    /// Index of the word.
    pub word: usize,
    /// What should stand there.
    pub expected: Origin,
    /// What stands there, read as a word of an oracle.
    pub found: Origin,
    /// Words that are wrong.
    pub wrong_words: usize,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "not the state of checkpoint {}: {} words are wrong, the first is word {} (byte {}): \
             expected {}, found {}",
            self.checkpoint,
            self.wrong_words,
            self.word,
            self.word * 8,
            self.expected,
            self.found
        )
    }
}

impl std::error::Error for Mismatch {}

/// The contents of one variable of one rank, at every checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oracle {
    /// Seed of the choice of changed blocks.
    pub seed: u64,
    /// The rank.
    pub rank: u32,
    /// The variable.
    pub variable: u32,
    /// Bytes of the variable.
    pub length_bytes: usize,
    /// Bytes that change together; a multiple of 8.
    pub block_bytes: usize,
    /// Of 1000 blocks, how many change in a checkpoint after the first.
    pub changed_per_mille: u64,
}

impl Oracle {
    /// A variable of which every block changes in every checkpoint.
    pub fn new(rank: u32, variable: u32, length_bytes: usize) -> Self {
        Self {
            seed: 1,
            rank,
            variable,
            length_bytes,
            block_bytes: 1 << 14,
            changed_per_mille: 1000,
        }
    }

    /// The same with other blocks and another share of them changing.
    #[must_use]
    pub fn changing(self, seed: u64, block_bytes: usize, changed_per_mille: u64) -> Self {
        Self {
            seed,
            block_bytes: block_bytes.next_multiple_of(8),
            changed_per_mille,
            ..self
        }
    }

    /// Whether `checkpoint` (from 1) changes `block`; the first changes all.
    pub fn changes(&self, checkpoint: u64, block: usize) -> bool {
        let parts = [
            self.seed,
            u64::from(self.rank),
            u64::from(self.variable),
            checkpoint,
            to_u64(block),
        ];
        checkpoint <= 1 || Seeded::of(&parts).chance(self.changed_per_mille, 1000)
    }

    /// Number of blocks.
    pub fn block_count(&self) -> usize {
        self.length_bytes.div_ceil(self.block_bytes)
    }

    /// Bytes of `block`.
    pub fn block_range(&self, block: usize) -> Range<usize> {
        let start = block * self.block_bytes;
        start..(start + self.block_bytes).min(self.length_bytes)
    }

    /// The state at `checkpoint`.
    pub fn state(&self, checkpoint: u64) -> Vec<u8> {
        let mut buffer = vec![0; self.length_bytes];
        self.fill(&mut buffer, checkpoint);
        buffer
    }

    /// Puts the state at `checkpoint` into `buffer`.
    pub fn fill(&self, buffer: &mut [u8], checkpoint: u64) {
        for block in 0..self.block_count() {
            let origin = self.last_change(checkpoint, block);
            self.fill_block(buffer, block, origin);
        }
    }

    /// Makes the state at `checkpoint` of the state at the one before; returns the ranges of bytes
    /// it changed.
    pub fn advance(&self, buffer: &mut [u8], checkpoint: u64) -> Vec<Range<usize>> {
        let blocks = (0..self.block_count()).filter(|&block| self.changes(checkpoint, block));
        blocks
            .map(|block| {
                self.fill_block(buffer, block, checkpoint);
                self.block_range(block)
            })
            .collect()
    }

    /// Checks that `buffer` is the state at `checkpoint`, every word of it.
    pub fn check(&self, buffer: &[u8], checkpoint: u64) -> Result<(), Box<Mismatch>> {
        let mut mismatch: Option<Box<Mismatch>> = None;
        let words = self.length_bytes.max(buffer.len()).div_ceil(8);
        let mut due = (usize::MAX, 0);
        for word in 0..words {
            let block = word * 8 / self.block_bytes;
            if block != due.0 {
                due = (block, self.last_change(checkpoint, block));
            }
            let expected = self.origin(word, due.1);
            let bytes = expected.to_word().to_le_bytes();
            let wanted = &bytes[..self.length_bytes.saturating_sub(word * 8).min(8)];
            let found = buffer.get(word * 8..).unwrap_or_default();
            let found = &found[..found.len().min(8)];
            if found == wanted {
                continue;
            }
            let first = mismatch.get_or_insert_with(|| {
                let mut padded = [0; 8];
                padded[..found.len()].copy_from_slice(found);
                Box::new(Mismatch {
                    checkpoint,
                    word,
                    expected,
                    found: Origin::from_word(u64::from_le_bytes(padded)),
                    wrong_words: 0,
                })
            });
            first.wrong_words += 1;
        }
        mismatch.map_or(Ok(()), Err)
    }

    /// The newest checkpoint up to `newest` whose state `buffer` is, whole; `None` for a mix.
    pub fn identify(&self, buffer: &[u8], newest: u64) -> Option<u64> {
        (1..=newest)
            .rev()
            .find(|&checkpoint| self.check(buffer, checkpoint).is_ok())
    }

    fn last_change(&self, checkpoint: u64, block: usize) -> u64 {
        (1..=checkpoint)
            .rev()
            .find(|&earlier| self.changes(earlier, block))
            .unwrap_or(0)
    }

    fn origin(&self, word: usize, checkpoint: u64) -> Origin {
        Origin {
            checkpoint,
            rank: self.rank,
            variable: self.variable,
            word: to_u64(word) & 0xff_ffff,
        }
    }

    fn fill_block(&self, buffer: &mut [u8], block: usize, checkpoint: u64) {
        let range = self.block_range(block);
        let first = range.start / 8;
        for (word, bytes) in (first..).zip(buffer[range].chunks_mut(8)) {
            let value = self.origin(word, checkpoint).to_word().to_le_bytes();
            bytes.copy_from_slice(&value[..bytes.len()]);
        }
    }
}

/// The word at `index` of `buffer`, read as a word of an oracle.
pub fn origin_at(buffer: &[u8], index: usize) -> Option<Origin> {
    let bytes = buffer.get(index * 8..)?.first_chunk::<8>()?;
    Some(Origin::from_word(u64::from_le_bytes(*bytes)))
}

/// Seeded bytes without any structure, of any length.
pub fn noise(seed: u64, length_bytes: usize) -> Vec<u8> {
    let mut seeded = Seeded::new(seed);
    let mut bytes = Vec::with_capacity(length_bytes.next_multiple_of(8));
    while bytes.len() < length_bytes {
        bytes.extend_from_slice(&seeded.next_u64().to_le_bytes());
    }
    bytes.truncate(length_bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_where_it_came_from() {
        let origin = Origin {
            checkpoint: 65_535,
            rank: 4095,
            variable: 17,
            word: 0xff_fffe,
        };
        assert_eq!(Origin::from_word(origin.to_word()), origin);
        let bytes = Oracle::new(3, 2, 100).state(9);
        let found = origin_at(&bytes, 5).unwrap();
        let wanted = Origin {
            checkpoint: 9,
            rank: 3,
            variable: 2,
            word: 5,
        };
        assert_eq!(found, wanted);
        assert_eq!(origin_at(&bytes, 12), None, "only half a word is left");
    }

    #[test]
    fn advancing_gives_the_same_as_filling_and_changes_only_what_it_says() {
        let oracle = Oracle::new(1, 0, 10_005).changing(5, 64, 100);
        let mut buffer = oracle.state(1);
        for checkpoint in 2..20 {
            let before = buffer.clone();
            let ranges = oracle.advance(&mut buffer, checkpoint);
            assert_eq!(buffer, oracle.state(checkpoint));
            assert!(!ranges.is_empty() && ranges.len() < 60, "{}", ranges.len());
            let changed: usize = ranges.iter().map(ExactSizeIterator::len).sum();
            let differ = (0..buffer.len())
                .filter(|&i| buffer[i] != before[i])
                .count();
            assert!(differ > 0 && differ <= changed);
            for range in ranges {
                assert_ne!(buffer[range.clone()], before[range]);
            }
        }
    }

    #[test]
    fn a_mix_of_two_checkpoints_is_seen_at_its_first_word() {
        let oracle = Oracle::new(0, 1, 4096).changing(1, 512, 1000);
        let mut mix = oracle.state(8);
        mix[1024..2048].copy_from_slice(&oracle.state(7)[1024..2048]);
        let mismatch = oracle.check(&mix, 8).unwrap_err();
        assert_eq!((mismatch.word, mismatch.wrong_words), (128, 128));
        assert_eq!(mismatch.found.checkpoint, 7);
        assert_eq!(mismatch.expected.checkpoint, 8);
        assert!(oracle.check(&mix, 7).is_err());
        assert_eq!(oracle.identify(&mix, 9), None);
        assert_eq!(oracle.identify(&oracle.state(7), 9), Some(7));
    }

    #[test]
    fn every_wrong_byte_and_length_is_seen() {
        let oracle = Oracle::new(0, 0, 77);
        let state = oracle.state(3);
        assert_eq!(oracle.check(&state, 3), Ok(()));
        for index in 0..state.len() {
            let mut wrong = state.clone();
            wrong[index] ^= 1;
            assert_eq!(oracle.check(&wrong, 3).unwrap_err().word, index / 8);
        }
        assert!(oracle.check(&state[..76], 3).is_err());
        let mut long = state.clone();
        long.push(0);
        assert!(oracle.check(&long, 3).is_err());
        assert!(oracle.check(&Oracle::new(1, 0, 77).state(3), 3).is_err());
        assert!(oracle.check(&Oracle::new(0, 1, 77).state(3), 3).is_err());
    }

    #[test]
    fn noise_repeats() {
        assert_eq!(noise(4, 33), noise(4, 40)[..33]);
        assert_ne!(noise(4, 33), noise(5, 33));
    }
}
