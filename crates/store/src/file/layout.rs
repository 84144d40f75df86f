// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which bytes of a file stand where in its stream: holes are left out, and what was stored stays
//! where it was, so that a hole that fills does not move all that follows.
//! In: where a file has data, how it was stored last. Out: its stretches, and pieces of it.
//! Invariants: stretches that are made here begin and end at blocks, but for the file's end, which is stored last; so
//! a block of the stream is a block of the file. Those of files that were imported may stand in any order.

use backstay_format::limits::FILE_STRETCHES_MAX;
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{StoredFile, Stretch};
use std::ops::Range;

/// Which bytes of a file are which of its stream.
#[derive(Debug)]
pub struct FileMap {
    stretches: Vec<Stretch>,
    /// Where each of them ends in the stream.
    ends: Vec<u64>,
}

impl FileMap {
    /// Of a file as it is stored.
    pub fn of(file: &StoredFile) -> Self {
        let whole = || {
            vec![Stretch {
                start: 0,
                length: file.length_bytes,
            }]
        };
        let stretches = file.stretches.clone().unwrap_or_else(whole);
        let mut end = 0;
        let ends = stretches.iter().map(|stretch| {
            end += stretch.length;
            end
        });
        Self {
            ends: ends.collect(),
            stretches,
        }
    }

    /// Bytes of the stream.
    pub fn stored_bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The way from the file to its stream.
    pub fn places(&self) -> FilePlaces {
        let pairs = self.stretches.iter().zip(&self.ends);
        let places = pairs.map(|(stretch, &end)| (*stretch, end - stretch.length));
        let mut places: Vec<(Stretch, u64)> = places.collect();
        places.sort_unstable_by_key(|(stretch, _)| stretch.start);
        FilePlaces { places }
    }

    /// Calls `visit` for each piece of the file that is stored as bytes `from` to `from + length`, in their
    /// order: where it begins in the file, and which of these bytes it has.
    pub fn pieces(
        &self,
        from: u64,
        length: usize,
        visit: &mut dyn FnMut(u64, Range<usize>) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let end = from.saturating_add(to_u64(length));
        let first = self.ends.partition_point(|&end| end <= from);
        let stretches = self.stretches.iter().zip(&self.ends).skip(first);
        for (stretch, &next) in stretches {
            let at = next - stretch.length;
            let (low, high) = (from.max(at), end.min(next));
            if low >= high {
                break;
            }
            let bytes = to_usize(low - from)..to_usize(high - from);
            visit(stretch.start + (low - at), bytes)?;
        }
        Ok(())
    }
}

/// Where the bytes of a file are in its stream.
#[derive(Debug)]
pub struct FilePlaces {
    /// By where they begin in the file; and where each begins in the stream.
    places: Vec<(Stretch, u64)>,
}

impl FilePlaces {
    /// Calls `visit` for each piece of bytes `from` to `from + length` of the file that is stored, in the order of the
    /// file: where it begins in the stream, and which of these bytes it has. The others are zeros.
    pub fn pieces(&self, from: u64, length: u64, visit: &mut dyn FnMut(u64, Range<u64>)) {
        let end = from.saturating_add(length);
        let first = self
            .places
            .partition_point(|(stretch, _)| stretch.start + stretch.length <= from);
        for (stretch, at) in &self.places[first..] {
            let low = from.max(stretch.start);
            let high = end.min(stretch.start + stretch.length);
            if low >= high {
                break;
            }
            visit(at + (low - stretch.start), low - from..high - from);
        }
    }
}

/// How a file of `length` bytes that has data in `data` (ascending, apart) is stored, in blocks of
/// `block_bytes`, after it was stored as `former`; `None` where all of it is, in its order.
pub(super) fn stretches(
    length: u64,
    data: &[Range<u64>],
    block_bytes: u32,
    former: &[Stretch],
) -> Option<Vec<Stretch>> {
    let block = u64::from(block_bytes);
    let is_aligned = |stretch: &Stretch| stretch.start.is_multiple_of(block);
    let former = if former.iter().all(is_aligned) {
        former
    } else {
        &[]
    };
    let placed = place(length, &in_blocks(length, data, block, 1), block, former);
    let placed = if placed.len() <= FILE_STRETCHES_MAX {
        placed
    } else {
        // The smallest holes are stored as zeros.
        let merged = (1..64).map(|power| in_blocks(length, data, block, 1 << power));
        let mut few = merged.filter(|data| data.len() < FILE_STRETCHES_MAX);
        place(length, &few.next().unwrap_or_default(), block, &[])
    };
    match &*placed {
        [] if length == 0 => None,
        [all] if all.start == 0 && all.length == length => None,
        _ => Some(placed),
    }
}

/// The blocks that data touch, as ranges of bytes; those with fewer than `gap` blocks between them as one.
fn in_blocks(length: u64, data: &[Range<u64>], block: u64, gap: u64) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in data.iter().filter(|range| range.start < range.end) {
        let start = range.start / block * block;
        let end = range.end.div_ceil(block).saturating_mul(block).min(length);
        let room = block.saturating_mul(gap - 1);
        match merged.last_mut() {
            Some(last) if start <= last.end.saturating_add(room) => last.end = last.end.max(end),
            _ => merged.push(start..end),
        }
    }
    merged
}

/// What of `data` was stored stays in its order, what is new follows, a short last block comes last.
fn place(length: u64, data: &[Range<u64>], block: u64, former: &[Stretch]) -> Vec<Stretch> {
    let whole_blocks = length / block * block;
    let full: Vec<Range<u64>> = data
        .iter()
        .map(|range| range.start..range.end.min(whole_blocks))
        .filter(|range| range.start < range.end)
        .collect();
    let mut placed: Vec<Stretch> = Vec::new();
    for stretch in former {
        let end = stretch.start.saturating_add(stretch.length);
        let end = end.div_ceil(block).saturating_mul(block);
        for kept in overlaps(&full, stretch.start..end) {
            append(&mut placed, kept);
        }
    }
    let mut stored: Vec<Range<u64>> = placed
        .iter()
        .map(|stretch| stretch.start..stretch.start + stretch.length)
        .collect();
    stored.sort_unstable_by_key(|range| range.start);
    for range in &full {
        let mut at = range.start;
        for known in overlaps(&stored, range.clone()) {
            append(&mut placed, at..known.start);
            at = known.end;
        }
        append(&mut placed, at..range.end);
    }
    if data.last().is_some_and(|last| last.end > whole_blocks) {
        append(&mut placed, whole_blocks..length);
    }
    placed
}

/// What of `range` is in `ranges`, which are ascending and apart.
fn overlaps(ranges: &[Range<u64>], range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let first = ranges.partition_point(|other| other.end <= range.start);
    let rest = ranges[first..].iter();
    let end = range.end;
    let shared = rest.take_while(move |other| other.start < end);
    shared.map(move |other| other.start.max(range.start)..other.end.min(range.end))
}

fn append(placed: &mut Vec<Stretch>, range: Range<u64>) {
    if range.start >= range.end {
        return;
    }
    let length = range.end - range.start;
    match placed.last_mut() {
        Some(last) if last.start + last.length == range.start => last.length += length,
        _ => placed.push(Stretch {
            start: range.start,
            length,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stretch(start: u64, length: u64) -> Stretch {
        Stretch { start, length }
    }

    #[test]
    fn what_was_stored_stays_where_it_was() {
        // Blocks of 10: a file of 95 with data at 20..30 and its end.
        let first = stretches(95, &[22..25, 90..95], 10, &[]);
        assert_eq!(first, Some(vec![stretch(20, 10), stretch(90, 5)]));
        // A hole before them fills, and the file grows: the end's block is full now.
        let former = first.unwrap();
        let next = stretches(130, &[0..30, 90..100, 125..130], 10, &former);
        let wanted = [(20, 10), (90, 10), (0, 20), (120, 10)];
        let wanted = wanted.map(|(start, length)| stretch(start, length));
        assert_eq!(next, Some(wanted.to_vec()));
        // A hole is punched.
        let last = stretches(130, &[0..20, 90..100], 10, &wanted);
        assert_eq!(last, Some(vec![stretch(90, 10), stretch(0, 20)]));
    }

    #[test]
    fn a_file_without_holes_is_stored_in_its_order() {
        let all = |length| std::iter::once(0..length).collect::<Vec<_>>();
        assert_eq!(stretches(0, &[], 10, &[]), None);
        assert_eq!(stretches(95, &all(95), 10, &[]), None);
        assert_eq!(stretches(125, &all(125), 10, &[stretch(0, 95)]), None);
        assert_eq!(stretches(95, &[], 10, &[]), Some(vec![]), "one hole");
        // Of other blocks than these.
        assert_eq!(stretches(95, &all(95), 10, &[stretch(33, 62)]), None);
    }

    #[test]
    fn small_holes_are_stored_where_there_are_too_many() {
        let data: Vec<Range<u64>> = (0..70_000).map(|at| at * 40..at * 40 + 10).collect();
        let placed = stretches(70_000 * 40, &data, 10, &[]).unwrap();
        assert_eq!(placed, vec![stretch(0, 70_000 * 40 - 30)]);
    }

    #[test]
    fn the_way_to_the_stream_is_the_way_back_reversed() {
        let file = StoredFile {
            path: b"name".to_vec(),
            routed: false,
            mode: 0,
            modified_s: 0,
            modified_ns: 0,
            length_bytes: 100,
            stretches: Some(vec![stretch(50, 20), stretch(0, 10), stretch(80, 5)]),
        };
        let places = FileMap::of(&file).places();
        let found = |from, length| {
            let mut found = Vec::new();
            places.pieces(from, length, &mut |at, bytes| found.push((at, bytes)));
            found
        };
        assert_eq!(found(0, 100), vec![(20, 0..10), (0, 50..70), (30, 80..85)]);
        assert_eq!(found(55, 5), vec![(5, 0..5)]);
        assert_eq!(found(5, 50), vec![(25, 0..5), (0, 45..50)]);
        assert_eq!(found(10, 40), vec![]);
        assert_eq!(found(90, 1000), vec![]);
    }

    proptest! {
        #[test]
        fn all_data_are_stored_once(
            length in 0u64..400,
            cuts in prop::collection::vec(0u64..400, 0..12),
            later in prop::collection::vec(0u64..400, 0..12),
        ) {
            let data = |cuts: &[u64]| {
                let mut cuts = cuts.to_vec();
                cuts.sort_unstable();
                let pairs = cuts.chunks_exact(2).map(|pair| pair[0].min(length)..pair[1].min(length));
                pairs.filter(|range| range.start < range.end).collect::<Vec<_>>()
            };
            let mut former = Vec::new();
            for data in [data(&cuts), data(&later), data(&cuts)] {
                let placed = stretches(length, &data, 16, &former);
                let placed = placed.unwrap_or_else(|| vec![stretch(0, length)]);
                let mut seen = vec![0; 400];
                let mut stored = 0;
                for stretch in placed.iter().filter(|stretch| stretch.length > 0) {
                    prop_assert!(stretch.start % 16 == 0 && stored % 16 == 0);
                    stored += stretch.length;
                    for at in stretch.start..stretch.start + stretch.length {
                        seen[usize::try_from(at).unwrap()] += 1;
                    }
                }
                for (at, &times) in (0..).zip(&seen) {
                    let is_data = data.iter().any(|range| range.contains(&at));
                    prop_assert!(times <= 1 && (times == 1 || !is_data), "{at}");
                }
                former = placed;
            }
        }
    }
}
