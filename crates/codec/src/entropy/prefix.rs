// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a prefix code of at most 11 bits: not as short as the tables of states, read twice as fast.
//! In from: `entropy` (counts, or the head of a block). Out to: the loops over a block's bytes.
//! Invariants: the code is complete, so every pattern of 11 bits begins with the code of a value.
//! Format: docs/format/codec.md, section "Entropy coder".
#![expect(
    clippy::inline_always,
    reason = "instructions only become part of a function that is inlined where they are allowed"
)]

use super::damaged;
use backstay_base::error::Result;

/// Most bits of a code.
pub(super) const LENGTH_MAX: u32 = 11;
const PATTERNS: usize = 1 << LENGTH_MAX;
const MAP: usize = 32;

/// A code, for both directions.
#[derive(Debug)]
pub(super) struct Prefix {
    lengths: [u8; 256],
    /// Of each value: its code, the first bit lowest.
    codes: [u16; 256],
    /// By the next 11 bits: length 8, value 8.
    patterns: [u16; PATTERNS],
}

impl Prefix {
    pub(super) fn new() -> Self {
        Self {
            lengths: [0; 256],
            codes: [0; 256],
            patterns: [0; PATTERNS],
        }
    }

    /// Makes the code for these counts, of which at least two are not 0; the bits that all take.
    pub(super) fn build(&mut self, counts: &[u32; 256]) -> u64 {
        self.lengths = limited(counts);
        self.assign(|_, _, _| {});
        let pairs = counts.iter().zip(&self.lengths);
        pairs
            .map(|(&count, &length)| u64::from(count) * u64::from(length))
            .sum()
    }

    /// Gives codes to values: shorter ones first, then by value; calls `each` with all of them.
    fn assign(&mut self, mut each: impl FnMut(u8, u32, u16)) {
        let mut code = 0_u16;
        for length in 1..=LENGTH_MAX {
            for value in 0..=u8::MAX {
                if u32::from(self.lengths[usize::from(value)]) == length {
                    let reversed = code.reverse_bits() >> (16 - length);
                    self.codes[usize::from(value)] = reversed;
                    each(value, length, reversed);
                    code += 1;
                }
            }
            code <<= 1;
        }
    }

    /// Appends what [`Prefix::read`] reads.
    pub(super) fn head(&self, out: &mut Vec<u8>) {
        let mut map = [0_u8; MAP];
        for (value, &length) in self.lengths.iter().enumerate() {
            map[value / 8] |= u8::from(length > 0) << (value % 8);
        }
        out.extend(map);
        let used: Vec<u8> = self
            .lengths
            .iter()
            .copied()
            .filter(|&length| length > 0)
            .collect();
        for pair in used.chunks(2) {
            out.push(pair[0] | pair.get(1).map_or(0, |length| length << 4));
        }
    }

    /// Takes over the code that the front of `bytes` describes; what follows it.
    pub(super) fn read<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let cut = || damaged("the code of the entropy coder is cut off");
        let (map, rest) = bytes.split_at_checked(MAP).ok_or_else(cut)?;
        let used: u32 = map.iter().map(|byte| byte.count_ones()).sum();
        let packed = backstay_format::width::index(used.div_ceil(2));
        let (packed, rest) = rest.split_at_checked(packed).ok_or_else(cut)?;
        let mut lengths = packed.iter().flat_map(|pair| [pair & 0xf, pair >> 4]);
        let mut taken = 0_u32;
        for (value, length) in self.lengths.iter_mut().enumerate() {
            *length = 0;
            if map[value / 8] >> (value % 8) & 1 == 1 {
                *length = lengths.next().unwrap_or(0);
                if !(1..=LENGTH_MAX).contains(&u32::from(*length)) {
                    return Err(damaged(
                        "a code of the entropy coder is not 1 to 11 bits long",
                    ));
                }
                taken += 1 << (LENGTH_MAX - u32::from(*length));
            }
        }
        if taken != 1 << LENGTH_MAX {
            return Err(damaged("the code of the entropy coder is not complete"));
        }
        let mut patterns = [0; PATTERNS];
        self.assign(|value, length, code| {
            let entry = u16::from(value) << 8 | u16::try_from(length).unwrap_or(0);
            let places = patterns.iter_mut().skip(usize::from(code));
            places.step_by(1 << length).for_each(|place| *place = entry);
        });
        self.patterns = patterns;
        Ok(rest)
    }

    /// The value whose code comes next in `bits`, in the second byte; its length in the first.
    #[inline(always)]
    pub(super) fn at(&self, bits: u64) -> u16 {
        let place = bits & ((1 << LENGTH_MAX) - 1);
        self.patterns[backstay_format::width::to_usize(place)]
    }
    /// The code of `byte` and its length.
    #[inline(always)]
    pub(super) fn code(&self, byte: u8) -> (u64, u32) {
        let place = usize::from(byte);
        (u64::from(self.codes[place]), u32::from(self.lengths[place]))
    }
}

/// Lengths of the codes of a Huffman tree, none above [`LENGTH_MAX`].
fn limited(counts: &[u32; 256]) -> [u8; 256] {
    let mut order: Vec<usize> = (0..256).filter(|&value| counts[value] > 0).collect();
    order.sort_by_key(|&value| (counts[value], value));
    let depths = depths(&order.iter().map(|&value| counts[value]).collect::<Vec<_>>());
    let mut lengths = [0_u8; 256];
    let mut taken = 0_u32;
    for (&value, depth) in order.iter().zip(depths) {
        let length = depth.min(LENGTH_MAX);
        lengths[value] = u8::try_from(length).unwrap_or(u8::MAX);
        taken += 1 << (LENGTH_MAX - length);
    }
    let most = 1_u32 << LENGTH_MAX;
    let room = |length: u8| 1_u32 << (LENGTH_MAX - u32::from(length));
    // The rarest values give way until the code fits, then the most frequent ones take what is left.
    while taken > most {
        let long = order
            .iter()
            .filter(|&&value| u32::from(lengths[value]) < LENGTH_MAX);
        let Some(&value) = long.max_by_key(|&&value| lengths[value]) else {
            break;
        };
        taken -= room(lengths[value]) / 2;
        lengths[value] += 1;
    }
    for &value in order.iter().rev() {
        while lengths[value] > 1 && taken + room(lengths[value]) <= most {
            taken += room(lengths[value]);
            lengths[value] -= 1;
        }
    }
    lengths
}

/// Depths in a Huffman tree of leaves with these weights, the lightest first.
fn depths(weights: &[u32]) -> Vec<u32> {
    let leaves = weights.len();
    let mut nodes: Vec<u64> = weights.iter().map(|&weight| u64::from(weight)).collect();
    let mut parents = vec![0; leaves];
    let (mut leaf, mut inner) = (0, leaves);
    // Both leaves and inner nodes come in order of their weights, so two queues do.
    for made in leaves..2 * leaves - 1 {
        let mut weight = 0;
        for _ in 0..2 {
            let next = if leaf < leaves && (inner >= made || nodes[leaf] <= nodes[inner]) {
                &mut leaf
            } else {
                &mut inner
            };
            weight += nodes[*next];
            parents[*next] = made;
            *next += 1;
        }
        nodes.push(weight);
        parents.push(0);
    }
    let mut depths = vec![0; nodes.len()];
    for node in (0..nodes.len() - 1).rev() {
        depths[node] = depths[parents[node]] + 1;
    }
    depths.truncate(leaves);
    depths
}
