// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: bytes by how often each value occurs, and by nothing else: a prefix code, or where that is
//! too coarse tabled asymmetric numeral systems; eight lanes side by side.
//! In from: `coder`, `group` (bytes). Out to: the encoded stream, and the way back.
//! Invariants: a table is built only of counts that add up to its size, so no state leaves it; a
//! reader looks at no byte outside of the stream; a lane must end where its writer began.
//! Format: docs/format/codec.md, section "Entropy coder".
//!
//! Sources: J. Duda, "Asymmetric numeral systems", arXiv 1311.2540; Y. Collet, "Finite State Entropy"
//! (the order of the symbols in the table); F. Giesen, "Interleaved entropy coders", arXiv 1402.3392.
#![expect(
    clippy::inline_always,
    reason = "instructions only become part of a function that is inlined where they are allowed"
)]

mod prefix;
mod table;

#[cfg(test)]
mod tests;

use super::damaged;
use super::simd::{Loop, fast};
use backstay_base::error::{Error, Result};
use backstay_format::width::to_usize;
use prefix::{LENGTH_MAX, Prefix};
use table::{Reading, TABLE_MAX, Writing};

/// Bytes that have a table of their own.
pub(super) const BLOCK: usize = 1 << 17;
/// States side by side: symbol `n` of a block belongs to lane `n mod 8`.
const LANES: usize = 8;
/// Symbols of a lane for one load of 64 bits: at most 12 bits each.
const DEPTH: usize = 4;
/// Lanes that a reader takes steps of in turn.
const SIDE: usize = 4;
const ROUND: usize = LANES * DEPTH;
/// Zeros behind the lanes, so that a load of 64 bits stays inside.
const PADDING: usize = 8;
/// A block is coded when that leaves less than this part of it: a raw one is read much faster.
const WORTH: f64 = 0.99;
/// Bits of a byte that a prefix code may take more than is least, because it is read much faster.
const COARSE: f64 = 0.08;

/// What stands in front of a block.
mod mode {
    pub(super) const RAW: u8 = 0;
    pub(super) const CONSTANT: u8 = 1;
    pub(super) const TABLE: u8 = 2;
    pub(super) const PREFIX: u8 = 3;
}

/// What the coder needs while it works.
#[derive(Debug)]
pub(super) struct Room {
    reading: Box<Reading>,
    writing: Box<Writing>,
    prefix: Box<Prefix>,
    /// Lanes are written from their ends to their beginnings.
    lanes: Vec<u8>,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            reading: Box::new(Reading::new()),
            writing: Box::new(Writing::new()),
            prefix: Box::new(Prefix::new()),
            lanes: Vec::new(),
        }
    }
}

/// How often each value occurs.
pub(super) fn count(bytes: &[u8]) -> [u32; 256] {
    // Four tables, since equal neighbours would wait for each other's count.
    let mut counts = [[0_u32; 256]; 4];
    let mut fours = bytes.chunks_exact(4);
    for four in &mut fours {
        for (table, &byte) in counts.iter_mut().zip(four) {
            table[usize::from(byte)] += 1;
        }
    }
    for &byte in fours.remainder() {
        counts[0][usize::from(byte)] += 1;
    }
    let [mut sum, b, c, d] = counts;
    for (value, total) in sum.iter_mut().enumerate() {
        *total += b[value] + c[value] + d[value];
    }
    sum
}

/// Bytes that values with these counts take at least.
pub(super) fn least_bytes(counts: &[u32; 256]) -> f64 {
    let total: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let bits = counts.iter().filter(|&&count| count > 0).map(|&count| {
        let count = f64::from(count);
        count * (total / count).log2()
    });
    bits.sum::<f64>() / 8.0
}

/// Appends the stream of `bytes`.
pub(super) fn encode(bytes: &[u8], room: &mut Room, out: &mut Vec<u8>) {
    for block in bytes.chunks(BLOCK) {
        encode_block(block, room, out);
    }
}

fn encode_block(block: &[u8], room: &mut Room, out: &mut Vec<u8>) {
    let before = out.len();
    let counts = count(block);
    if counts.iter().filter(|&&count| count > 0).count() == 1 {
        out.extend([mode::CONSTANT, block[0]]);
        return;
    }
    let limit = super::share(block.len(), WORTH);
    let least = least_bytes(&counts);
    if least < super::float(limit) {
        let coarse = (least * 8.0 + COARSE * super::float(block.len())).ceil();
        if super::float(to_usize(room.prefix.build(&counts))) <= coarse {
            out.push(mode::PREFIX);
            room.prefix.head(out);
            write_codes(block, room, out);
        } else {
            out.push(mode::TABLE);
            room.writing.build(&counts, block.len());
            room.writing.head(out);
            write_lanes(block, room, out);
        }
        if out.len() - before <= limit {
            return;
        }
        out.truncate(before);
    }
    out.push(mode::RAW);
    out.extend_from_slice(block);
}

/// The lanes of a block behind the table of their lengths.
fn write_lanes(block: &[u8], room: &mut Room, out: &mut Vec<u8>) {
    // 12 bits a symbol, and a state.
    let capacity = block.len().div_ceil(LANES) * 3 / 2 + 16;
    room.lanes.resize(LANES * capacity, 0);
    let mut places = [Place::default(); LANES];
    for (lane, place) in places.iter_mut().enumerate() {
        place.end = (lane + 1) * capacity;
        place.state = room.writing.first();
    }
    let writing = &room.writing;
    for (number, row) in block.chunks(LANES).enumerate().rev() {
        debug_assert!(number * LANES < block.len());
        for (lane, &byte) in row.iter().enumerate().rev() {
            let place = &mut places[lane];
            let (bits, width, state) = writing.step(place.state, byte);
            place.state = state;
            place.push(bits, width, &mut room.lanes);
        }
    }
    let width = writing.log();
    for place in &mut places {
        let bits = place.state & ((1 << width) - 1);
        place.push(bits, width, &mut room.lanes);
        place.finish(&mut room.lanes);
    }
    for (lane, place) in places.iter().enumerate() {
        let length = (lane + 1) * capacity - place.end;
        let field = u32::try_from(length << 5).unwrap_or(u32::MAX) | place.skipped;
        out.extend(field.to_le_bytes());
    }
    for (lane, place) in places.iter().enumerate() {
        out.extend_from_slice(&room.lanes[place.end..(lane + 1) * capacity]);
    }
    out.extend([0; PADDING]);
}

/// The lanes of a block in the prefix code behind the table of their lengths.
fn write_codes(block: &[u8], room: &mut Room, out: &mut Vec<u8>) {
    let lengths = out.len();
    out.extend([0; 4 * LANES]);
    for lane in 0..LANES {
        let begin = out.len();
        let (mut bits, mut count) = (0, 0);
        for &byte in block.iter().skip(lane).step_by(LANES) {
            let (code, length) = room.prefix.code(byte);
            bits |= code << count;
            count += length;
            if count >= 32 {
                out.extend_from_slice(&bits.to_le_bytes()[..4]);
                bits >>= 32;
                count -= 32;
            }
        }
        let rest = backstay_format::width::index(count.div_ceil(8));
        out.extend_from_slice(&bits.to_le_bytes()[..rest]);
        let field = u32::try_from((out.len() - begin) << 5).unwrap_or(u32::MAX);
        let place = lengths + 4 * lane;
        out[place..place + 4].copy_from_slice(&field.to_le_bytes());
    }
    out.extend([0; PADDING]);
}

/// Where a lane is being written: its bits go down from its end.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    state: u32,
    /// Bits not written yet, the newest lowest, and how many.
    bits: u64,
    count: u32,
    end: usize,
    skipped: u32,
}

impl Place {
    #[inline(always)]
    fn push(&mut self, bits: u32, width: u32, lanes: &mut [u8]) {
        self.bits = self.bits << width | u64::from(bits);
        self.count += width;
        if self.count >= 32 {
            self.count -= 32;
            self.word(self.bits >> self.count, lanes);
        }
    }
    fn word(&mut self, bits: u64, lanes: &mut [u8]) {
        self.end -= 4;
        lanes[self.end..self.end + 4].copy_from_slice(&bits.to_le_bytes()[..4]);
    }
    fn finish(&mut self, lanes: &mut [u8]) {
        if self.count > 0 {
            self.skipped = 32 - self.count;
            self.word(self.bits << self.skipped, lanes);
        }
    }
}

/// Fills `out` from the stream at the front of `bytes`; how many bytes that took.
pub(super) fn decode(bytes: &[u8], room: &mut Room, out: &mut [u8]) -> Result<usize> {
    let mut rest = bytes;
    for block in out.chunks_mut(BLOCK) {
        rest = decode_block(rest, room, block)?;
    }
    Ok(bytes.len() - rest.len())
}

fn decode_block<'a>(bytes: &'a [u8], room: &mut Room, out: &mut [u8]) -> Result<&'a [u8]> {
    let cut = || damaged("a block of the entropy coder is cut off");
    let (&mode, rest) = bytes.split_first().ok_or_else(cut)?;
    match mode {
        mode::RAW => {
            let (raw, rest) = rest.split_at_checked(out.len()).ok_or_else(cut)?;
            out.copy_from_slice(raw);
            Ok(rest)
        }
        mode::CONSTANT => {
            let (&value, rest) = rest.split_first().ok_or_else(cut)?;
            out.fill(value);
            Ok(rest)
        }
        mode::TABLE => {
            let rest = room.reading.build(rest)?;
            let (payload, lanes, rest) = open_lanes(rest)?;
            let table = &*room.reading;
            let read = fast(ReadStates(
                table,
                Block {
                    payload,
                    lanes,
                    out,
                },
            ));
            read.ok_or_else(stray).map(|()| rest)
        }
        mode::PREFIX => {
            let rest = room.prefix.read(rest)?;
            let (payload, lanes, rest) = open_lanes(rest)?;
            let prefix = &*room.prefix;
            let read = fast(ReadCodes(
                prefix,
                Block {
                    payload,
                    lanes,
                    out,
                },
            ));
            read.ok_or_else(stray).map(|()| rest)
        }
        other => Err(damaged(&format!(
            "block mode of the entropy coder is {other}, not 0 to 3"
        ))),
    }
}

/// Where a lane is being read, in bits of the payload.
#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    at: u64,
    end: u64,
    state: u64,
}

/// A block being read.
struct Block<'a> {
    payload: &'a [u8],
    lanes: [Lane; LANES],
    out: &'a mut [u8],
}

struct ReadStates<'a>(&'a Reading, Block<'a>);

impl Loop for ReadStates<'_> {
    type Out = Option<()>;
    #[inline(always)]
    fn run(self) -> Option<()> {
        let Self(table, mut block) = self;
        read_lanes(table, block.payload, &mut block.lanes, block.out)
    }
}

struct ReadCodes<'a>(&'a Prefix, Block<'a>);

impl Loop for ReadCodes<'_> {
    type Out = Option<()>;
    #[inline(always)]
    fn run(self) -> Option<()> {
        let Self(prefix, mut block) = self;
        read_codes(prefix, block.payload, &mut block.lanes, block.out)
    }
}

fn stray() -> Error {
    damaged("a lane of the entropy coder does not end where it should")
}

/// The bytes of all lanes, where each one is, and what follows them.
fn open_lanes(bytes: &[u8]) -> Result<(&[u8], [Lane; LANES], &[u8])> {
    let cut = || damaged("the lanes of the entropy coder are cut off");
    let (lengths, rest) = bytes.split_at_checked(4 * LANES).ok_or_else(cut)?;
    let mut lanes = [Lane::default(); LANES];
    let mut end = 0;
    for (lane, field) in lanes.iter_mut().zip(lengths.chunks_exact(4)) {
        let field = u32::from_le_bytes([field[0], field[1], field[2], field[3]]);
        lane.at = end * 8 + u64::from(field & 31);
        end += u64::from(field >> 5);
        lane.end = end * 8;
    }
    let whole = rest.split_at_checked(to_usize(end) + PADDING);
    let (payload, rest) = whole.ok_or_else(cut)?;
    Ok((payload, lanes, rest))
}

/// The 57 bits or more that begin at bit `at`.
#[inline(always)]
fn bits_at(payload: &[u8], at: u64) -> Option<u64> {
    let bytes = payload.get(to_usize(at >> 3)..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes) >> (at & 7))
}

#[inline(always)]
fn read_lanes(
    table: &Reading,
    payload: &[u8],
    lanes: &mut [Lane; LANES],
    out: &mut [u8],
) -> Option<()> {
    for lane in lanes.iter_mut() {
        lane.state = table.first(bits_at(payload, lane.at)?);
        lane.at += u64::from(table.log());
    }
    read_rounds(table, payload, lanes, out)?;
    let done = out.len() / ROUND * ROUND;
    for (number, byte) in out[done..].iter_mut().enumerate() {
        let lane = &mut lanes[number % LANES];
        let bits = bits_at(payload, lane.at)?;
        let step = table.at(lane.state);
        *byte = step.symbol();
        lane.at += u64::from(step.widths() & 0xff);
        (lane.state, _) = step.next(bits);
    }
    // A writer begins with the first state of the table, which is 0 here, and the end of a lane.
    let whole = |lane: &Lane| lane.state == 0 && lane.at == lane.end;
    lanes.iter().all(whole).then_some(())
}

/// As many whole rounds as `out` has.
#[inline(always)]
fn read_rounds(
    table: &Reading,
    payload: &[u8],
    lanes: &mut [Lane; LANES],
    out: &mut [u8],
) -> Option<()> {
    for round in out.chunks_exact_mut(ROUND) {
        let round: &mut [u8; ROUND] = round.try_into().ok()?;
        // As many lanes side by side as there are registers for.
        for (number, four) in lanes.chunks_exact_mut(SIDE).enumerate() {
            let mut bits = [0; SIDE];
            let mut states = [0; SIDE];
            let mut widths = [0_u32; SIDE];
            for (place, lane) in four.iter().enumerate() {
                bits[place] = bits_at(payload, lane.at)?;
                states[place] = lane.state;
            }
            for depth in 0..DEPTH {
                for place in 0..SIDE {
                    let step = table.at(states[place]);
                    round[depth * LANES + number * SIDE + place] = step.symbol();
                    widths[place] = widths[place].wrapping_add(step.widths());
                    (states[place], bits[place]) = step.next(bits[place]);
                }
            }
            for (place, lane) in four.iter_mut().enumerate() {
                lane.at += u64::from(widths[place] & 0xff);
                lane.state = states[place];
            }
        }
    }
    Some(())
}

/// Fills `out` from lanes of a prefix code.
#[inline(always)]
fn read_codes(
    prefix: &Prefix,
    payload: &[u8],
    lanes: &mut [Lane; LANES],
    out: &mut [u8],
) -> Option<()> {
    let mut rounds = out.chunks_exact_mut(ROUND);
    for round in &mut rounds {
        let round: &mut [u8; ROUND] = round.try_into().ok()?;
        for (number, lane) in lanes.iter_mut().enumerate() {
            let mut bits = bits_at(payload, lane.at)?;
            let mut widths = 0_u32;
            for depth in 0..DEPTH {
                let entry = prefix.at(bits);
                let [_, symbol] = entry.to_le_bytes();
                round[depth * LANES + number] = symbol;
                widths = widths.wrapping_add(u32::from(entry));
                bits >>= entry & 63;
            }
            lane.at += u64::from(widths & 0xff);
        }
    }
    for (number, byte) in rounds.into_remainder().iter_mut().enumerate() {
        let lane = &mut lanes[number % LANES];
        let [width, symbol] = prefix.at(bits_at(payload, lane.at)?).to_le_bytes();
        *byte = symbol;
        lane.at += u64::from(width);
    }
    // The last byte of a lane is filled up.
    let whole = |lane: &Lane| lane.at.next_multiple_of(8) == lane.end;
    lanes.iter().all(whole).then_some(())
}

const _: () = assert!(DEPTH * LENGTH_MAX as usize <= 57);
const _: () = assert!(DEPTH * TABLE_MAX.ilog2() as usize <= 57);
