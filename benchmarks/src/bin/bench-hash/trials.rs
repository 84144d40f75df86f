// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: counts how often a block and the block with a few bits changed have the same hash.
//! Invariants: the same seed gives the same blocks; a changed block always differs.

use crate::hashes::HASHES;
use backstay_bench::Outcome;
use backstay_testkit::seeded::Seeded;

/// Bits that change in each element that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// These.
    Bits(u32),
    /// Any, other ones in each trial.
    Random,
}

/// The patterns of the paper.
pub(crate) const PATTERNS: [Pattern; 6] = [
    Pattern::Bits(0x1),
    Pattern::Bits(0x3),
    Pattern::Bits(0xff),
    Pattern::Bits(0xfff),
    Pattern::Bits(0xffff),
    Pattern::Random,
];

impl Pattern {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Bits(bits) => format!("{bits:#x}"),
            Self::Random => "random".to_owned(),
        }
    }
}

/// Which elements of a block change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All of them, as in the paper: a step of a solver over a whole array.
    Every,
    /// One to eight, anywhere: a step that touched little.
    Few,
}

pub(crate) const REACHES: [Reach; 2] = [Reach::Every, Reach::Few];

impl Reach {
    pub(crate) const fn id(self) -> &'static str {
        match self {
            Self::Every => "every",
            Self::Few => "few",
        }
    }
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Every => "every element of a block changed",
            Self::Few => "one to eight elements of a block changed",
        }
    }
}

/// One cell of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) block_bytes: usize,
    pub(crate) pattern: Pattern,
    pub(crate) reach: Reach,
    /// Trials of one round.
    pub(crate) trials: usize,
}

impl Cell {
    /// Collisions of each hash in one round, all processors at work.
    pub(crate) fn collisions(&self, round: u64) -> Outcome<Vec<u64>> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut sums = vec![0; HASHES.len()];
        let parts = std::thread::scope(|scope| {
            let part = |thread: usize| {
                let trials = (thread..self.trials).step_by(threads).count();
                let seed = Seeded::of(&[round, backstay::format::width::to_u64(thread)]);
                scope.spawn(move || self.run(trials, seed))
            };
            let workers: Vec<_> = (0..threads).map(part).collect();
            workers
                .into_iter()
                .map(|worker| worker.join())
                .collect::<Vec<_>>()
        });
        for part in parts {
            let part = part.map_err(|_panic| "a thread of trials panicked")?;
            for (sum, count) in sums.iter_mut().zip(part) {
                *sum += count;
            }
        }
        Ok(sums)
    }

    fn run(&self, trials: usize, mut random: Seeded) -> Vec<u64> {
        let mut before = vec![0; self.block_bytes];
        let mut after = vec![0; self.block_bytes];
        let mut counts = vec![0; HASHES.len()];
        for _ in 0..trials {
            for word in before.chunks_exact_mut(8) {
                word.copy_from_slice(&random.next_u64().to_le_bytes());
            }
            after.copy_from_slice(&before);
            self.change(&mut after, &mut random);
            for (count, hash) in counts.iter_mut().zip(&HASHES) {
                *count += u64::from((hash.of)(&before) == (hash.of)(&after));
            }
        }
        counts
    }

    fn change(&self, block: &mut [u8], random: &mut Seeded) {
        let bits = match self.pattern {
            Pattern::Bits(bits) => bits,
            Pattern::Random => u32::try_from(random.below(u64::from(u32::MAX))).unwrap_or(0) + 1,
        };
        let bits = bits.to_le_bytes();
        let flip = |element: &mut [u8]| {
            element
                .iter_mut()
                .zip(bits)
                .for_each(|(byte, bits)| *byte ^= bits);
        };
        match self.reach {
            Reach::Every => block.chunks_exact_mut(4).for_each(flip),
            Reach::Few => {
                // Side by side from anywhere: no element is flipped back.
                let (elements, count) = (block.len() / 4, 1 + random.index(8));
                let first = random.index(elements - count + 1);
                block[first * 4..(first + count) * 4]
                    .chunks_exact_mut(4)
                    .for_each(flip);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_block_differs_and_short_checksums_miss_it_sometimes() {
        let cell = |reach| Cell {
            block_bytes: 128,
            pattern: Pattern::Bits(1),
            reach,
            trials: 20_000,
        };
        let counts = cell(Reach::Every).collisions(1).unwrap();
        assert!(counts[0] > 0, "Adler32 misses some: {counts:?}");
        assert_eq!(counts[3..], [0, 0, 0, 0], "CRC32, MD5 and XXH3 miss none");
        assert_eq!(counts, cell(Reach::Every).collisions(1).unwrap());
        let mut block = [5; 128];
        cell(Reach::Few).change(&mut block, &mut Seeded::new(1));
        assert!((1..=8).contains(&block.iter().filter(|&&byte| byte != 5).count()));
    }
}
