// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the tables of the entropy coder: which state stands for which byte, and what follows it.
//! In from: `entropy` (counts, or the head of a block). Out to: the loops over a block's bytes.
//! Invariants: counts add up to the size of the table, each is at least 1 and below the size; a step
//! reads at most 12 bits and gives a state of the table.
//! Format: docs/format/codec.md, section "Entropy coder".
#![expect(
    clippy::inline_always,
    reason = "instructions only become part of a function that is inlined where they are allowed"
)]

use super::damaged;
use backstay_base::error::Result;

/// Logarithms of the size of a table.
const LOG_MIN: u32 = 9;
const LOG_MAX: u32 = 12;
/// Most states.
pub(super) const TABLE_MAX: usize = 1 << LOG_MAX;
/// Bytes of the map that says which values have a count.
const MAP: usize = 32;
/// A larger table must save this part to be worth its building.
const LARGER: f64 = 0.997;

/// The order in which states are given to values.
fn spread(log: u32, counts: &[u32; 256], mut give: impl FnMut(usize, u8)) {
    let size = 1_usize << log;
    let step = (size >> 1) + (size >> 3) + 3;
    let mut place = 0;
    for (value, &count) in (0..=u8::MAX).zip(counts) {
        for _ in 0..count {
            give(place, value);
            place = (place + step) & (size - 1);
        }
    }
}

/// What a reader needs.
#[derive(Debug)]
pub(super) struct Reading {
    log: u32,
    entries: [u32; TABLE_MAX],
}

/// What a reader finds at a state: bits to read 8, value 8, the state that they are added to 16.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step(u32);

impl Step {
    pub(super) fn symbol(self) -> u8 {
        self.0.to_le_bytes()[1]
    }
    /// The number of bits lowest, and others above: several can be added up before they are masked.
    pub(super) fn widths(self) -> u32 {
        self.0
    }
    /// The state after it, and the bits after those that it takes.
    pub(super) fn next(self, bits: u64) -> (u64, u64) {
        let width = self.0 & 63;
        let taken = bits & ((1 << width) - 1);
        (u64::from(self.0 >> 16) + taken, bits >> width)
    }
}

impl Reading {
    pub(super) fn new() -> Self {
        Self {
            log: LOG_MIN,
            entries: [0; TABLE_MAX],
        }
    }
    pub(super) fn log(&self) -> u32 {
        self.log
    }
    /// The state in the lowest bits.
    pub(super) fn first(&self, bits: u64) -> u64 {
        bits & ((1 << self.log) - 1)
    }
    /// What stands at `state`.
    #[inline(always)]
    pub(super) fn at(&self, state: u64) -> Step {
        Step(self.entries[backstay_format::width::to_usize(state) & (TABLE_MAX - 1)])
    }

    /// Builds the table that the front of `bytes` describes; what follows it.
    pub(super) fn build<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let (log, counts, rest) = read_counts(bytes)?;
        self.log = log;
        let mut symbols = [0; TABLE_MAX];
        spread(log, &counts, |place, value| symbols[place] = value);
        let mut next = counts;
        let size = 1_u32 << log;
        let used = 1_usize << log;
        for (entry, &symbol) in self.entries[..used].iter_mut().zip(&symbols) {
            let next = &mut next[usize::from(symbol)];
            let width = log - next.ilog2();
            let base = (*next << width) - size;
            *entry = base << 16 | u32::from(symbol) << 8 | width;
            *next += 1;
        }
        Ok(rest)
    }
}

/// Logarithm of the size and counts at the front of `bytes`, and what follows.
fn read_counts(bytes: &[u8]) -> Result<(u32, [u32; 256], &[u8])> {
    let cut = || damaged("the table of the entropy coder is cut off");
    let (&log, rest) = bytes.split_first().ok_or_else(cut)?;
    let log = u32::from(log);
    if !(LOG_MIN..=LOG_MAX).contains(&log) {
        let wanted = format!("table logarithm of the entropy coder is {log}, not 9 to 12");
        return Err(damaged(&wanted));
    }
    let (map, mut rest) = rest.split_at_checked(MAP).ok_or_else(cut)?;
    let (mut counts, mut sum) = ([0; 256], 0);
    for (value, count) in counts.iter_mut().enumerate() {
        if map[value / 8] >> (value % 8) & 1 == 0 {
            continue;
        }
        let (&first, after) = rest.split_first().ok_or_else(cut)?;
        rest = after;
        *count = u32::from(first & 0x7f);
        if first >= 0x80 {
            let (&second, after) = rest.split_first().ok_or_else(cut)?;
            rest = after;
            *count |= u32::from(second) << 7;
        }
        if *count == 0 || *count >= 1 << log {
            return Err(damaged("a count of the entropy coder is out of range"));
        }
        sum += *count;
    }
    if sum != 1 << log {
        let wanted = format!(
            "counts of the entropy coder add up to {sum}, not {}",
            1 << log
        );
        return Err(damaged(&wanted));
    }
    Ok((log, counts, rest))
}

/// How a value changes the state of a writer.
#[derive(Debug, Clone, Copy, Default)]
struct Change {
    /// The bits to write are `(state + widths) >> 16`.
    widths: u32,
    /// Added to what is left of the state: where the next one stands.
    place: i32,
}

/// What a writer needs.
#[derive(Debug)]
pub(super) struct Writing {
    log: u32,
    counts: [u32; 256],
    changes: [Change; 256],
    states: [u16; TABLE_MAX],
}

impl Writing {
    pub(super) fn new() -> Self {
        Self {
            log: LOG_MIN,
            counts: [0; 256],
            changes: [Change::default(); 256],
            states: [0; TABLE_MAX],
        }
    }
    pub(super) fn log(&self) -> u32 {
        self.log
    }
    /// The state that a writer begins with; a reader's states are lower by the size of the table.
    pub(super) fn first(&self) -> u32 {
        1 << self.log
    }

    /// Builds the table for bytes of which there are `total`, with these counts; at least two differ.
    pub(super) fn build(&mut self, counts: &[u32; 256], total: usize) {
        let small = scaled(counts, total, LOG_MAX - 1);
        let large = scaled(counts, total, LOG_MAX);
        let cheaper = cost(counts, &large, LOG_MAX) < LARGER * cost(counts, &small, LOG_MAX - 1);
        (self.log, self.counts) = if cheaper {
            (LOG_MAX, large)
        } else {
            (LOG_MAX - 1, small)
        };
        self.fill();
    }

    fn fill(&mut self) {
        let (log, size) = (self.log, 1_u32 << self.log);
        let mut firsts = [0_u32; 256];
        let mut before = 0_u32;
        let places = self.changes.iter_mut().zip(&mut firsts);
        for ((change, first), &count) in places.zip(&self.counts) {
            *first = before;
            if count > 0 {
                let most = match count {
                    1 => log,
                    _ => log - (count - 1).ilog2(),
                };
                *change = Change {
                    widths: (most << 16).wrapping_sub(count << most),
                    place: before.cast_signed() - count.cast_signed(),
                };
            }
            before += count;
        }
        let mut symbols = [0; TABLE_MAX];
        spread(log, &self.counts, |place, value| symbols[place] = value);
        for (state, &symbol) in (size..2 * size).zip(&symbols) {
            let first = &mut firsts[usize::from(symbol)];
            self.states[backstay_format::width::index(*first)] =
                u16::try_from(state).unwrap_or(u16::MAX);
            *first += 1;
        }
    }

    /// Appends what [`Reading::build`] reads.
    pub(super) fn head(&self, out: &mut Vec<u8>) {
        out.extend(self.log.to_le_bytes().first());
        let mut map = [0_u8; MAP];
        for (value, &count) in self.counts.iter().enumerate() {
            map[value / 8] |= u8::from(count > 0) << (value % 8);
        }
        out.extend(map);
        for &count in self.counts.iter().filter(|&&count| count > 0) {
            let [low, high, ..] = (count << 1).to_le_bytes();
            if count < 0x80 {
                out.push(low >> 1);
            } else {
                out.extend([low >> 1 | 0x80, high]);
            }
        }
    }

    /// The bits that `byte` adds in `state`, how many, and the state after it.
    #[inline(always)]
    pub(super) fn step(&self, state: u32, byte: u8) -> (u32, u32, u32) {
        let change = self.changes[usize::from(byte)];
        let width = state.wrapping_add(change.widths) >> 16;
        let place = (state >> width).wrapping_add_signed(change.place);
        let next = self.states[backstay_format::width::index(place) & (TABLE_MAX - 1)];
        (state & ((1 << width) - 1), width, u32::from(next))
    }
}

/// Bits that values with `counts` take in a table of `scaled` ones.
fn cost(counts: &[u32; 256], scaled: &[u32; 256], log: u32) -> f64 {
    let pairs = counts.iter().zip(scaled).filter(|(count, _)| **count > 0);
    let bits = pairs.map(|(&count, &share)| {
        f64::from(count) * (f64::from(log) - f64::from(share.max(1)).log2())
    });
    bits.sum()
}

/// Counts that add up to the size of the table, in the proportions of `counts`.
fn scaled(counts: &[u32; 256], total: usize, log: u32) -> [u32; 256] {
    let size = 1_u64 << log;
    let total = backstay_format::width::to_u64(total).max(1);
    let mut scaled = counts.map(|count| {
        let share = (u64::from(count) * size + total / 2) / total;
        u32::try_from(share)
            .unwrap_or(u32::MAX)
            .max(u32::from(count > 0))
    });
    let mut sum: u64 = scaled.iter().map(|&share| u64::from(share)).sum();
    // What one more or one less costs is about its part of the share.
    let weight = |counts: &[u32; 256], scaled: &[u32; 256], value: usize| {
        f64::from(counts[value]) / f64::from(scaled[value].max(1))
    };
    while sum != size {
        let candidates = (0..256).filter(|&value| scaled[value] > u32::from(sum > size));
        let order = |&a: &usize, &b: &usize| {
            weight(counts, &scaled, a).total_cmp(&weight(counts, &scaled, b))
        };
        let place = if sum > size {
            candidates.min_by(order)
        } else {
            candidates.max_by(order)
        };
        let Some(place) = place else { break };
        if sum > size {
            scaled[place] -= 1;
            sum -= 1;
        } else {
            scaled[place] += 1;
            sum += 1;
        }
    }
    scaled
}
