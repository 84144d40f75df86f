// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a grid of three dimensions, row-major, cut into one box for each rank.
//! In from: the programs. Out to: variables with their slabs.
//! Invariants: the boxes cover the grid without overlap; any number of ranks will do.

use super::Variable;
use super::number::{Number, to_bytes};
use backstay::{Slab, VariableDescriptor};
use std::ops::Range;

/// Extents of a grid, outermost first.
pub type Extents = [usize; 3];

/// The part of a rank.
pub type Part = [Range<usize>; 3];

/// Boxes of `ranks` ranks, in order: the factors of their number go to the longest sides.
pub fn parts(extents: Extents, ranks: usize) -> Vec<Part> {
    let mut counts = [1; 3];
    let mut left = ranks;
    let mut factor = 2;
    while left > 1 {
        if !left.is_multiple_of(factor) {
            factor += 1;
            continue;
        }
        left /= factor;
        let longest = (0..3).max_by_key(|&axis| (extents[axis] / counts[axis], 3 - axis));
        counts[longest.unwrap_or(0)] *= factor;
    }
    let range = |axis: usize, at: usize| {
        let [whole, count] = [extents[axis], counts[axis]];
        whole * at / count..whole * (at + 1) / count
    };
    let mut found = Vec::with_capacity(ranks);
    for z in 0..counts[0] {
        for y in 0..counts[1] {
            for x in 0..counts[2] {
                found.push([range(0, z), range(1, y), range(2, x)]);
            }
        }
    }
    found
}

/// A rank's part of a field over the whole grid; extents of 1 at the front are left out.
pub fn field<T: Number>(name: &str, extents: Extents, values: &[T], part: &Part) -> Variable {
    stack(name, extents, &[values], part)
}

/// A rank's part of several fields in one array, one after the other.
pub fn stack<T: Number>(name: &str, extents: Extents, fields: &[&[T]], part: &Part) -> Variable {
    let mut kept = Vec::new();
    for values in fields {
        for z in part[0].clone() {
            for y in part[1].clone() {
                let row = (z * extents[1] + y) * extents[2];
                kept.extend_from_slice(&values[row + part[2].start..row + part[2].end]);
            }
        }
    }
    let wide = |values: Vec<usize>| -> Vec<u64> {
        let lead = usize::from(fields.len() > 1);
        let flat = usize::from(extents[0] == 1);
        let front = values[..lead].iter();
        let chosen = front.chain(values[1 + flat..].iter());
        chosen.map(|&value| value as u64).collect()
    };
    let [z, y, x] = part.clone();
    let count = fields.len();
    Variable {
        descriptor: VariableDescriptor {
            name: name.to_owned(),
            element: T::ELEMENT,
            shape: wide(vec![count, z.len(), y.len(), x.len()]),
            slab: Some(Slab {
                global_shape: wide(vec![count, extents[0], extents[1], extents[2]]),
                start: wide(vec![0, z.start, y.start, x.start]),
            }),
            file: None,
        },
        bytes: to_bytes(&kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_cover_the_grid() {
        for ranks in 1..=32 {
            let extents = [10, 33, 64];
            let parts = parts(extents, ranks);
            assert_eq!(parts.len(), ranks);
            let mut seen = vec![0; 10 * 33 * 64];
            for [z, y, x] in parts {
                for z in z {
                    for y in y.clone() {
                        for x in x.clone() {
                            seen[(z * 33 + y) * 64 + x] += 1;
                        }
                    }
                }
            }
            assert!(seen.iter().all(|&count| count == 1), "{ranks}");
        }
    }
}
