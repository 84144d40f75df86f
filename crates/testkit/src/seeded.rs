// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: random numbers that are the same in every run: a test that fails can be repeated.
//! Invariants: the sequence of a seed never depends on machine, thread or time.

/// `SplitMix64`: small, fast, good enough to choose faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seeded {
    state: u64,
}

impl Seeded {
    /// The sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The sequence of several numbers taken together.
    pub fn of(parts: &[u64]) -> Self {
        let mut sequence = Self::new(0x4261_636b_7374_6179);
        for &part in parts {
            sequence.state = sequence.next_u64() ^ part;
        }
        sequence
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// An index below `bound`; 0 where `bound` is 0.
    pub fn index(&mut self, bound: usize) -> usize {
        backstay_format::width::to_usize(self.below(backstay_format::width::to_u64(bound)))
    }

    /// True in `numerator` of `denominator` cases.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Puts `items` in another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.index(last + 1);
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_repeat_and_depend_on_every_part() {
        let first = |parts: &[u64]| Seeded::of(parts).next_u64();
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        let others = [first(&[1, 2]), first(&[2, 1]), first(&[1, 3]), first(&[1])];
        for (index, value) in others.iter().enumerate() {
            assert!(!others[..index].contains(value), "{others:x?}");
        }
    }

    #[test]
    fn below_reaches_every_value_and_none_above() {
        let mut seeded = Seeded::new(7);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[seeded.index(5)] += 1;
        }
        assert!(seen.iter().all(|&count| count > 120), "{seen:?}");
        assert_eq!(seeded.below(0), 0);
    }

    #[test]
    fn shuffle_keeps_every_item() {
        let mut items: Vec<u32> = (0..20).collect();
        Seeded::new(3).shuffle(&mut items);
        assert_ne!(items, (0..20).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..20).collect::<Vec<_>>());
    }
}
