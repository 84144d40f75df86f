// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which bytes of a stored slab belong where in a wanted slab of the same global array.
//! In: two boxes, row-major. Out: runs of contiguous bytes.
//! Invariants: every element of the overlap is in exactly one run; any box decomposition works.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::VariableDescriptor;

/// A box in a global array: where it starts and how far it extends, in elements, row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
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
