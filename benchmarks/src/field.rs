// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: an array of f64 as a solver has it, and changes of a share of it.
//! Invariants: it starts on a page; the same seed changes the same granules; a changed granule
//! differs in every word from what it was.

use backstay_testkit::seeded::Seeded;
use std::ops::Range;

const WORD_BYTES: usize = 8;
const PAGE_BYTES: usize = 4096;

/// Where changes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Granules anywhere.
    Scattered,
    /// Granules side by side, anywhere.
    Contiguous,
}

/// An array of f64, all of it in memory.
#[derive(Debug)]
pub struct Field {
    words: Vec<f64>,
    skip: usize,
    count: usize,
    granule: usize,
}

impl Field {
    /// `bytes` of numbers; `granule_bytes` change together.
    pub fn new(bytes: usize, granule_bytes: usize, seed: u64) -> Self {
        let count = bytes / WORD_BYTES;
        let mut words = vec![0.0; count + PAGE_BYTES / WORD_BYTES];
        let skip = words
            .as_ptr()
            .align_offset(PAGE_BYTES)
            .min(PAGE_BYTES / WORD_BYTES);
        let mut random = Seeded::of(&[seed]);
        for word in &mut words {
            *word = unit(random.next_u64());
        }
        Self {
            words,
            skip,
            count,
            granule: granule_bytes / WORD_BYTES,
        }
    }

    /// Its numbers.
    pub fn words(&mut self) -> &mut [f64] {
        &mut self.words[self.skip..self.skip + self.count]
    }
    /// Its address, for protecting it.
    pub fn address(&mut self) -> *mut u8 {
        self.words().as_mut_ptr().cast()
    }
    /// Its bytes, as what is written.
    pub fn len_bytes(&self) -> usize {
        self.count * WORD_BYTES
    }
    /// Number of its granules.
    pub fn granules(&self) -> usize {
        self.count.div_ceil(self.granule)
    }

    /// The granules that change: `share` of all, distinct, ascending.
    pub fn choose(&self, share: f64, place: Place, seed: u64) -> Vec<usize> {
        let all = self.granules();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a count is a count"
        )]
        let wanted = ((crate::size_f64(all) * share).round() as usize).min(all);
        let mut random = Seeded::of(&[seed, 1]);
        if place == Place::Contiguous {
            let first = random.index(all - wanted + 1);
            return (first..first + wanted).collect();
        }
        let mut granules: Vec<usize> = (0..all).collect();
        for index in 0..wanted {
            let other = index + random.index(all - index);
            granules.swap(index, other);
        }
        granules.truncate(wanted);
        granules.sort_unstable();
        granules
    }

    /// Changes every word of `granules`.
    pub fn change(&mut self, granules: &[usize]) {
        for &granule in granules {
            let range = self.range(granule);
            for word in &mut self.words()[range] {
                *word = if *word < 1.0e6 {
                    *word + 1.0
                } else {
                    *word - 1.0e6
                };
            }
        }
    }

    /// The bytes of a granule.
    pub fn bytes(&self, granule: usize) -> Range<u64> {
        let range = self.range(granule);
        let at = |word: usize| backstay::format::width::to_u64(word * WORD_BYTES);
        at(range.start)..at(range.end)
    }

    fn range(&self, granule: usize) -> Range<usize> {
        granule * self.granule..((granule + 1) * self.granule).min(self.count)
    }
}

/// A number from 0 to 1 made of 52 random bits.
fn unit(bits: u64) -> f64 {
    f64::from_bits((bits >> 12) | 0x3ff0_0000_0000_0000) - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_chosen_granules_changes_and_no_other() {
        let mut field = Field::new(100_000, 16_384, 1);
        assert_eq!(field.address().align_offset(PAGE_BYTES), 0);
        for place in [Place::Scattered, Place::Contiguous] {
            let before = field.words().to_vec();
            let chosen = field.choose(0.4, place, 3);
            assert_eq!((chosen.len(), field.granules()), (3, 7));
            field.change(&chosen);
            for (index, (was, is)) in before.iter().zip(field.words()).enumerate() {
                let changed = chosen.contains(&(index / 2048));
                assert_eq!(was.to_bits() != is.to_bits(), changed);
            }
        }
    }
}
