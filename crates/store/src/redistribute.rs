// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which stored slabs of a global array have parts of a wanted one, and which of their bytes belong where.
//! In: boxes, row-major. Out: ranks, by search; runs of contiguous bytes.
//! Invariants: every element of the overlap is in exactly one run; any box decomposition works.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::limits::DIMENSIONS_MAX;
use backstay_format::width::index;
use backstay_format::{Decoder, Encoder, FormatError, VariableDescriptor};
use std::collections::BTreeSet;

/// A box in a global array: where it starts and how far it extends, in elements, row-major.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// First element in each dimension.
    pub start: Vec<u64>,
    /// Elements in each dimension.
    pub shape: Vec<u64>,
}

/// Contiguous bytes of one slab that are contiguous in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Offset in the stored slab, in bytes.
    pub from: u64,
    /// Offset in the wanted slab, in bytes.
    pub to: u64,
    /// Bytes.
    pub length: u64,
}

impl Extent {
    /// The box of a variable that is a slab.
    pub fn of(descriptor: &VariableDescriptor) -> Option<Self> {
        let slab = descriptor.slab.as_ref()?;
        Some(Self {
            start: slab.start.clone(),
            shape: descriptor.shape.clone(),
        })
    }

    /// Elements in the box.
    pub fn element_count(&self) -> u64 {
        self.shape.iter().product()
    }

    /// What it shares with `other`, or nothing.
    pub fn overlap(&self, other: &Self) -> Option<Self> {
        let mut start = Vec::with_capacity(self.start.len());
        let mut shape = Vec::with_capacity(self.start.len());
        for dimension in 0..self.start.len() {
            let low = self.start[dimension].max(other.start[dimension]);
            let high = (self.start[dimension] + self.shape[dimension])
                .min(other.start[dimension] + other.shape[dimension]);
            if high <= low {
                return None;
            }
            start.push(low);
            shape.push(high - low);
        }
        Some(Self { start, shape })
    }

    /// What of this box lies outside `other`, as boxes that do not touch each other's elements.
    pub fn without(&self, other: &Self) -> Vec<Self> {
        let Some(shared) = self.overlap(other) else {
            return vec![self.clone()];
        };
        let mut pieces = Vec::new();
        let mut rest = self.clone();
        for dimension in 0..rest.start.len() {
            let (low, high) = (
                rest.start[dimension],
                rest.start[dimension] + rest.shape[dimension],
            );
            let inner = (
                shared.start[dimension],
                shared.start[dimension] + shared.shape[dimension],
            );
            for (from, to) in [(low, inner.0), (inner.1, high)] {
                if from < to {
                    let mut piece = rest.clone();
                    piece.start[dimension] = from;
                    piece.shape[dimension] = to - from;
                    pieces.push(piece);
                }
            }
            rest.start[dimension] = inner.0;
            rest.shape[dimension] = inner.1 - inner.0;
        }
        pieces
    }

    /// Offset of the element at global position `at`, in elements from the box's first.
    fn offset(&self, at: &[u64]) -> u64 {
        let within = at.iter().zip(&self.start).zip(&self.shape);
        within.fold(0, |sum, ((&at, &start), &extent)| {
            sum * extent + (at - start)
        })
    }
}

/// The slabs of an array by the ranks that stored them, to be searched: sorted by where they start in the dimension in
/// which they start at most places.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlabTable {
    dimensions: usize,
    /// The dimension that they are sorted by.
    by: usize,
    /// The most elements of any slab in it.
    widest: u64,
    ranks: Vec<u32>,
    /// Of each slab, in the order of `ranks`, the start and then the shape.
    numbers: Vec<u64>,
}

impl SlabTable {
    /// Of slabs that all have `dimensions` dimensions.
    pub fn new(dimensions: usize, mut slabs: Vec<(u32, Extent)>) -> Self {
        let places = |dimension: usize| {
            let starts = slabs.iter().map(|(_, slab)| slab.start[dimension]);
            starts.collect::<BTreeSet<u64>>().len()
        };
        // Of equal ones the first: the slowest.
        let by = (0..dimensions)
            .rev()
            .max_by_key(|&dimension| places(dimension));
        let by = by.unwrap_or(0);
        if dimensions > 0 {
            slabs.sort_by_key(|(rank, slab)| (slab.start[by], *rank));
        }
        let widths = slabs.iter().filter_map(|(_, slab)| slab.shape.get(by));
        Self {
            dimensions,
            by,
            widest: widths.copied().max().unwrap_or(0),
            ranks: slabs.iter().map(|(rank, _)| *rank).collect(),
            numbers: slabs
                .into_iter()
                .flat_map(|(_, slab)| slab.start.into_iter().chain(slab.shape))
                .collect(),
        }
    }

    /// Dimensions of each slab.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }
    /// Its slabs.
    pub fn length(&self) -> usize {
        self.ranks.len()
    }
    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// As many of its slabs each as `most`, in their order.
    pub fn pieces(&self, most: usize) -> impl Iterator<Item = Self> {
        let width = (2 * self.dimensions).max(1);
        let most = most.max(1);
        let starts = (0..self.ranks.len()).step_by(most);
        starts.map(move |start| {
            let end = (start + most).min(self.ranks.len());
            let numbers = self.numbers.get(start * width..end * width);
            Self {
                ranks: self.ranks[start..end].to_vec(),
                numbers: numbers.unwrap_or_default().to_vec(),
                ..*self
            }
        })
    }

    /// Calls `found` with the rank of each slab that shares elements with `wanted`, which has as many dimensions.
    /// Returns how many slabs were looked at for that.
    pub fn overlapping(&self, wanted: &Extent, mut found: impl FnMut(u32)) -> usize {
        let (first, end) = match (wanted.start.get(self.by), wanted.shape.get(self.by)) {
            (Some(&start), Some(&shape)) => (
                self.search(|at| at.saturating_add(self.widest) <= start),
                self.search(|at| at < start.saturating_add(shape)),
            ),
            _ => (0, self.ranks.len()),
        };
        for at in first..end {
            if self.slab(at).overlap(wanted).is_some() {
                found(self.ranks[at]);
            }
        }
        end.saturating_sub(first)
    }

    /// The first slab whose start, in the dimension that they are sorted by, `comes_before` does not hold for.
    fn search(&self, comes_before: impl Fn(u64) -> bool) -> usize {
        let (mut low, mut high) = (0, self.ranks.len());
        while low < high {
            let middle = low + (high - low) / 2;
            let start = self.numbers[middle * 2 * self.dimensions + self.by];
            if comes_before(start) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn slab(&self, at: usize) -> Extent {
        let width = 2 * self.dimensions;
        let numbers = &self.numbers[at * width..(at + 1) * width];
        let (start, shape) = numbers.split_at(self.dimensions);
        Extent {
            start: start.to_vec(),
            shape: shape.to_vec(),
        }
    }

    /// Bytes of each slab, as it is told.
    pub fn slab_bytes(dimensions: usize) -> usize {
        4 + 16 * dimensions
    }

    /// Appends its bytes.
    pub fn put(&self, body: &mut Encoder) {
        body.small_count(self.dimensions).small_count(self.by);
        body.u64(self.widest).count(self.ranks.len());
        body.room(self.ranks.len() * Self::slab_bytes(self.dimensions));
        for &rank in &self.ranks {
            body.u32(rank);
        }
        for &number in &self.numbers {
            body.u64(number);
        }
    }

    /// Reads what [`Self::put`] wrote.
    pub fn decode(body: &mut Decoder<'_>) -> std::result::Result<Self, FormatError> {
        let dimensions = usize::from(body.u8("dimensions")?);
        let by = body.u8("the dimension that is sorted by")?;
        if dimensions > DIMENSIONS_MAX || usize::from(by) >= dimensions.max(1) {
            return Err(body.refuse("dimension", 1, "one of the array's", by));
        }
        let widest = body.u64("widest")?;
        let count = index(body.u32("slabs")?);
        let ranks = body.raw("ranks", count.saturating_mul(4))?;
        let numbers = body.raw("slabs", count.saturating_mul(16 * dimensions))?;
        let rank = |bytes: &[u8]| {
            let mut rank = [0; 4];
            rank.copy_from_slice(bytes);
            u32::from_le_bytes(rank)
        };
        let number = |bytes: &[u8]| {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            u64::from_le_bytes(number)
        };
        Ok(Self {
            dimensions,
            by: usize::from(by),
            widest,
            ranks: ranks.chunks_exact(4).map(rank).collect(),
            numbers: numbers.chunks_exact(8).map(number).collect(),
        })
    }
}

/// Calls `copy` for every run of bytes of `shared` that `wanted` takes from `stored`; `shared` lies in
/// both.
pub fn runs(
    stored: &Extent,
    wanted: &Extent,
    shared: &Extent,
    element_bytes: u64,
    copy: &mut dyn FnMut(Run) -> Result<()>,
) -> Result<()> {
    let dimensions = shared.shape.len();
    // The run covers the trailing dimensions in which the overlap is all of both boxes, and one more.
    let mut first = dimensions;
    while first > 0 {
        first -= 1;
        let whole = shared.shape[first] == stored.shape[first]
            && shared.shape[first] == wanted.shape[first];
        if !whole {
            break;
        }
    }
    let length = shared.shape[first..].iter().product::<u64>() * element_bytes;
    let mut at = shared.start.clone();
    loop {
        copy(Run {
            from: stored.offset(&at) * element_bytes,
            to: wanted.offset(&at) * element_bytes,
            length,
        })?;
        let mut dimension = first;
        loop {
            if dimension == 0 {
                return Ok(());
            }
            dimension -= 1;
            at[dimension] += 1;
            if at[dimension] < shared.start[dimension] + shared.shape[dimension] {
                break;
            }
            at[dimension] = shared.start[dimension];
        }
    }
}

/// Checks that `stored` and `wanted` are slabs of one array.
pub fn same_array(stored: &VariableDescriptor, wanted: &VariableDescriptor) -> Result<()> {
    let global = |d: &VariableDescriptor| d.slab.as_ref().map(|slab| slab.global_shape.clone());
    if stored.element == wanted.element && global(stored) == global(wanted) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::VariableMismatch,
        format!(
            "stored: {}; protected: {}",
            describe(stored),
            describe(wanted)
        ),
    ))
}

/// A variable in words, for errors.
pub fn describe(descriptor: &VariableDescriptor) -> String {
    let place = match &descriptor.slab {
        Some(slab) => format!(" at {:?} of global {:?}", slab.start, slab.global_shape),
        None => String::new(),
    };
    format!(
        "{:?} {} {:?}{place}",
        descriptor.name, descriptor.element, descriptor.shape
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(global: &[u64], parts: &[u64]) -> Vec<Extent> {
        let mut boxes = vec![Extent {
            start: vec![],
            shape: vec![],
        }];
        for (&whole, &count) in global.iter().zip(parts) {
            let mut next = Vec::new();
            for part in &boxes {
                for index in 0..count {
                    let (low, high) = (whole * index / count, whole * (index + 1) / count);
                    let mut part = part.clone();
                    part.start.push(low);
                    part.shape.push(high - low);
                    next.push(part);
                }
            }
            boxes = next;
        }
        boxes
    }

    fn value(global: &[u64], part: &Extent, element: u64) -> u64 {
        let mut rest = element;
        let mut at = vec![0; global.len()];
        for dimension in (0..global.len()).rev() {
            at[dimension] = part.start[dimension] + rest % part.shape[dimension];
            rest /= part.shape[dimension];
        }
        at.iter()
            .zip(global)
            .fold(0, |sum, (&at, &extent)| sum * extent + at)
    }

    proptest! {
        #[test]
        fn any_decomposition_to_any_other(
            global in prop::collection::vec(1u64..9, 1..4),
            from in prop::collection::vec(1u64..4, 3),
            to in prop::collection::vec(1u64..4, 3),
        ) {
            let stored = split(&global, &from);
            for wanted in split(&global, &to) {
                let mut bytes = vec![u64::MAX; usize::try_from(wanted.element_count()).unwrap()];
                for part in &stored {
                    let Some(shared) = part.overlap(&wanted) else { continue };
                    runs(part, &wanted, &shared, 1, &mut |run| {
                        for byte in 0..run.length {
                            let place = &mut bytes[usize::try_from(run.to + byte).unwrap()];
                            assert_eq!(*place, u64::MAX, "written twice");
                            *place = value(&global, part, run.from + byte);
                        }
                        Ok(())
                    }).unwrap();
                }
                for (element, &got) in (0..).zip(&bytes) {
                    prop_assert_eq!(got, value(&global, &wanted, element));
                }
            }
        }
    }

    /// Of slabs of any decomposition, one after the other or in pieces, those are found that overlap, and no others.
    fn finds_what_overlaps(stored: &[Extent], wanted: &Extent, most: usize) -> usize {
        let slabs: Vec<(u32, Extent)> = (0..).zip(stored.iter().cloned()).collect();
        let overlaps = slabs
            .iter()
            .filter(|(_, slab)| slab.overlap(wanted).is_some());
        let overlaps: BTreeSet<u32> = overlaps.map(|(rank, _)| *rank).collect();
        let table = SlabTable::new(wanted.start.len(), slabs);
        let mut found = Vec::new();
        let looked = table.overlapping(wanted, |rank| found.push(rank));
        let mut in_pieces = Vec::new();
        for piece in table.pieces(most) {
            let mut body = Encoder::new("table");
            piece.put(&mut body);
            let decode = |bytes: &[u8]| SlabTable::decode(&mut Decoder::new("table", bytes));
            body.finish(&piece, decode).unwrap();
            piece.overlapping(wanted, |rank| in_pieces.push(rank));
        }
        assert_eq!(found, in_pieces);
        found.sort_unstable();
        assert_eq!(
            found,
            overlaps.into_iter().collect::<Vec<_>>(),
            "{wanted:?} in {stored:?}"
        );
        looked
    }

    proptest! {
        #[test]
        fn the_slabs_that_overlap_are_found(
            global in prop::collection::vec(1u64..12, 0..4),
            from in prop::collection::vec(1u64..6, 3),
            to in prop::collection::vec(1u64..6, 3),
            most in 1usize..5,
        ) {
            let stored = split(&global, &from);
            for wanted in split(&global, &to) {
                finds_what_overlaps(&stored, &wanted, most);
            }
        }

        #[test]
        fn boxes_that_overlap_each_other_are_found(
            boxes in prop::collection::vec((0u64..20, 0u64..9, 0u64..20, 0u64..9), 1..20),
        ) {
            let extents = boxes.iter().map(|&(x, w, y, h)| Extent {
                start: vec![x, y],
                shape: vec![w, h],
            });
            let stored: Vec<Extent> = extents.collect();
            for wanted in &stored {
                finds_what_overlaps(&stored, wanted, 3);
            }
        }
    }

    #[test]
    fn of_many_slabs_few_are_looked_at() {
        // Rows, columns, and columns whose ranks are in another order.
        for parts in [[10_000, 1], [1, 10_000]] {
            let mut stored = split(&[20_000, 20_000], &parts);
            let wanted = stored[4_321].clone();
            assert_eq!(finds_what_overlaps(&stored, &wanted, 512), 1, "{parts:?}");
            stored.reverse();
            assert_eq!(finds_what_overlaps(&stored, &wanted, 512), 1, "{parts:?}");
        }
        let stored = split(&[400, 400], &[100, 100]);
        let looked = finds_what_overlaps(&stored, &stored[4_321].clone(), 512);
        assert_eq!(looked, 100, "of a row of blocks");
    }

    #[test]
    fn what_is_left_of_a_box_is_the_rest_of_it_once() {
        let grid = Extent {
            start: vec![1, 2],
            shape: vec![5, 6],
        };
        let hole = Extent {
            start: vec![2, 0],
            shape: vec![2, 5],
        };
        let pieces = grid.without(&hole);
        let total: u64 = pieces.iter().map(Extent::element_count).sum();
        assert_eq!(total, 30 - 2 * 3);
        for (index, piece) in pieces.iter().enumerate() {
            assert!(piece.overlap(&hole).is_none());
            assert!(
                pieces[index + 1..]
                    .iter()
                    .all(|other| piece.overlap(other).is_none())
            );
        }
        assert!(grid.without(&grid).is_empty());
    }
}
