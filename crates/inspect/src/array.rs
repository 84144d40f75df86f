// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a variable as one array, row-major, put together from the parts of all ranks.
//! In: the parts, in one or several stores. Out: its bytes in order, a window at a time.
//! Invariants: every byte is from a verified block; an element nobody stored is an error, told
//! before the first byte; no more than a window is held, and the list of blocks.

use super::{StoredPart, StoredVariable, Stores};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::to_usize;
use backstay_format::{CheckpointId, ElementType, VariableDescriptor};
use backstay_store::ranges::BlockCache;
use backstay_store::redistribute::{Extent, describe, runs, same_array};

/// Bytes put together at a time.
const WINDOW_BYTES: u64 = 16 << 20;

/// A variable, or one rank's part of it, as an array.
#[derive(Debug, Clone)]
pub struct Array<'a> {
    stores: &'a Stores,
    checkpoint: CheckpointId,
    whole: VariableDescriptor,
    parts: Vec<&'a StoredPart>,
    /// Bytes put together at a time.
    window_bytes: u64,
}

impl<'a> Array<'a> {
    /// One rank's part as it is.
    pub fn of_part(stores: &'a Stores, checkpoint: CheckpointId, part: &'a StoredPart) -> Self {
        let mut whole = part.descriptor.clone();
        whole.slab = None;
        Self {
            stores,
            checkpoint,
            whole,
            parts: vec![part],
            window_bytes: WINDOW_BYTES,
        }
    }

    /// The global array of which all parts of a variable are slabs.
    pub fn of_slabs(
        stores: &'a Stores,
        checkpoint: CheckpointId,
        variable: &'a StoredVariable,
    ) -> Result<Self> {
        let first = variable
            .parts
            .iter()
            .find(|part| part.descriptor.slab.is_some());
        let Some(mut whole) = first.map(|part| part.descriptor.clone()) else {
            let context = format!(
                "{:?} is not declared as slabs of a global array",
                variable.name
            );
            return Err(Error::new(ErrorKind::VariableMismatch, context));
        };
        if let Some(slab) = &mut whole.slab {
            whole.shape.clone_from(&slab.global_shape);
            slab.start = vec![0; slab.global_shape.len()];
        }
        for part in &variable.parts {
            let at = |error: Error| error.within(&format!("rank {}", part.rank));
            same_array(&part.descriptor, &whole).map_err(at)?;
        }
        check_whole(&whole, &variable.parts)?;
        Ok(Self {
            stores,
            checkpoint,
            whole,
            parts: variable.parts.iter().collect(),
            window_bytes: WINDOW_BYTES,
        })
    }

    /// The type of its elements.
    pub fn element(&self) -> ElementType {
        self.whole.element
    }
    /// Its shape, row-major; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.whole.shape
    }
    /// Its bytes.
    pub fn length_bytes(&self) -> u64 {
        self.whole.length_bytes().unwrap_or(0)
    }

    /// Hands all its bytes to `put`, in order.
    pub fn read(&self, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if self.whole.slab.is_none() {
            return self.read_part(self.parts[0], put);
        }
        let start = vec![0; self.shape().len()];
        self.read_box(&start, self.shape(), put)
    }

    /// Hands the bytes of the box of `shape` elements at `start` to `put`, in order, row-major; of parts and
    /// blocks only those that it lies in are read.
    pub fn read_box(
        &self,
        start: &[u64],
        shape: &[u64],
        put: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.check_box(start, shape)?;
        let wanted = Extent {
            start: start.to_vec(),
            shape: shape.to_vec(),
        };
        let mut sources = self.sources(&wanted)?;
        let mut buffer = Vec::new();
        let mut outcome = Ok(());
        windows(
            shape,
            self.element().width_bytes(),
            self.window_bytes,
            &mut |mut window| {
                for (at, first) in window.start.iter_mut().zip(start) {
                    *at += first;
                }
                outcome = self
                    .fill(&window, &mut sources, &mut buffer)
                    .and_then(|()| put(&buffer));
                outcome.is_ok()
            },
        );
        outcome
    }

    fn check_box(&self, start: &[u64], shape: &[u64]) -> Result<()> {
        let inside = |((&start, &extent), &whole): ((&u64, &u64), &u64)| {
            start.checked_add(extent).is_some_and(|end| end <= whole)
        };
        let dimensions = self.shape().len();
        let fits = start.len() == dimensions
            && shape.len() == dimensions
            && start.iter().zip(shape).zip(self.shape()).all(inside);
        if fits {
            return Ok(());
        }
        let context = format!(
            "{shape:?} elements at {start:?} are not inside of {}",
            describe(&self.whole)
        );
        Err(Error::new(ErrorKind::InvalidArgument, context))
    }

    /// The parts that have something of `wanted`.
    fn sources(&self, wanted: &Extent) -> Result<Vec<Source<'_>>> {
        let mut sources = Vec::new();
        for &part in &self.parts {
            let place = match self.whole.slab {
                Some(_) => Extent::of(&part.descriptor),
                None => Some(Extent {
                    start: vec![0; self.whole.shape.len()],
                    shape: self.whole.shape.clone(),
                }),
            };
            let Some(place) = place.filter(|place| wanted.overlap(place).is_some()) else {
                continue;
            };
            let blocks = self.blocks(part)?;
            sources.push(Source {
                part,
                place,
                blocks,
            });
        }
        Ok(sources)
    }

    fn blocks(&self, part: &StoredPart) -> Result<BlockCache<'_>> {
        let reader = self.stores.stores[part.store].reader();
        BlockCache::new(reader, part.stream).map_err(|error| self.judge(part, error))
    }

    fn read_part(&self, part: &StoredPart, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (mut blocks, mut buffer) = (self.blocks(part)?, Vec::new());
        let (length, mut done) = (self.length_bytes(), 0);
        while done < length {
            let count = (length - done).min(self.window_bytes);
            buffer.resize(to_usize(count), 0);
            let read = blocks.copy(done, 0, count, &mut buffer);
            read.map_err(|error| self.judge(part, error))?;
            put(&buffer)?;
            done += count;
        }
        Ok(())
    }

    /// Puts a box of the global array together.
    fn fill(
        &self,
        window: &Extent,
        sources: &mut [Source<'_>],
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        let width = self.element().width_bytes();
        buffer.resize(to_usize(window.element_count() * width), 0);
        let mut missing = vec![window.clone()];
        for source in sources {
            for piece in missing
                .iter()
                .filter_map(|piece| piece.overlap(&source.place))
            {
                let blocks = &mut source.blocks;
                let copied = runs(&source.place, window, &piece, width, &mut |run| {
                    blocks.copy(run.from, run.to, run.length, buffer)
                });
                copied.map_err(|error| self.judge(source.part, error))?;
            }
            missing = left_of(&missing, &source.place);
            if missing.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn judge(&self, part: &StoredPart, error: Error) -> Error {
        let error = self.stores.judge(part.store, self.checkpoint, error);
        error.within(&format!(
            "rank {}, {}",
            part.rank,
            describe(&part.descriptor)
        ))
    }
}

/// A part that has something of what is read.
#[derive(Debug)]
struct Source<'a> {
    part: &'a StoredPart,
    place: Extent,
    blocks: BlockCache<'a>,
}

/// What `source` does not have of some boxes.
fn left_of(boxes: &[Extent], source: &Extent) -> Vec<Extent> {
    boxes
        .iter()
        .flat_map(|piece| piece.without(source))
        .collect()
}

/// That the parts have every element of the array among them.
fn check_whole(whole: &VariableDescriptor, parts: &[StoredPart]) -> Result<()> {
    let mut missing: Vec<Extent> = Extent::of(whole).into_iter().collect();
    missing.retain(|piece| piece.element_count() > 0);
    for source in parts.iter().filter_map(|part| Extent::of(&part.descriptor)) {
        missing = left_of(&missing, &source);
    }
    let Some(piece) = missing.first() else {
        return Ok(());
    };
    let context = format!(
        "{}: no rank stored its part at {:?} of shape {:?}",
        describe(whole),
        piece.start,
        piece.shape
    );
    Err(Error::new(ErrorKind::VariableMismatch, context))
}

/// Cuts a row-major array into boxes of at most `most` bytes, or one element, each of them
/// contiguous, in order; ends early when `visit` says so.
fn windows(shape: &[u64], width: u64, most: u64, visit: &mut dyn FnMut(Extent) -> bool) {
    if shape.contains(&0) {
        return;
    }
    // Whole in the trailing dimensions, cut in dimension `cut`, one index in those before.
    let (mut cut, mut inner) = (shape.len(), width);
    while cut > 0 && inner.saturating_mul(shape[cut - 1]) <= most {
        cut -= 1;
        inner *= shape[cut];
    }
    let rows = if cut > 0 { (most / inner).max(1) } else { 1 };
    let mut window = Extent {
        start: vec![0; shape.len()],
        shape: shape.to_vec(),
    };
    window.shape[..cut].fill(1);
    loop {
        if let Some(last) = cut.checked_sub(1) {
            window.shape[last] = rows.min(shape[last] - window.start[last]);
        }
        if !visit(window.clone()) {
            return;
        }
        let mut dimension = cut;
        loop {
            if dimension == 0 {
                return;
            }
            dimension -= 1;
            window.start[dimension] += window.shape[dimension];
            if window.start[dimension] < shape[dimension] {
                break;
            }
            window.start[dimension] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn windows_are_contiguous_and_in_order(
            shape in prop::collection::vec(0u64..7, 0..4),
            most in 1u64..200,
        ) {
            let width = 8;
            let mut next = 0;
            windows(&shape, width, most, &mut |window| {
                // Its first and last element, as indices into the row-major array.
                let at = |offset: &dyn Fn(usize) -> u64| {
                    (0..shape.len()).fold(0, |sum, d| sum * shape[d] + window.start[d] + offset(d))
                };
                let (first, last) = (at(&|_| 0), at(&|d| window.shape[d] - 1));
                assert_eq!(first, next);
                assert_eq!(last - first + 1, window.element_count());
                let bytes = window.element_count() * width;
                assert!(bytes <= most.max(width), "{bytes}");
                next = last + 1;
                true
            });
            prop_assert_eq!(next, shape.iter().product::<u64>());
        }
    }
}
