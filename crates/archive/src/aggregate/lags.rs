// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how far apart similar elements of a segment are: what a codec may predict an element from.
//! In: a segment, and the ranks it was planned from. Out: distances in elements, as candidates.
//! Invariants: at most four, each at least 2 and less than the elements of the segment, without
//! repetition. The neighbour before, at 1, is no candidate: a codec always tries it.

use super::input::RankBlocks;
use super::plan::{Content, Segment};
use backstay_format::width::index;
use std::collections::BTreeMap;

/// Candidates from shapes.
const STRIDES_MAX: usize = 3;

/// Candidates for a segment: the strides of inner dimensions, innermost first, then the distance from
/// a rank's piece to the next rank's.
pub fn lags(segment: &Segment<'_>, ranks: &[RankBlocks<'_>]) -> Vec<u32> {
    let width = segment.content.element().width_bytes();
    let elements = u64::from(segment.length) / width;
    let strides = match segment.content {
        Content::Kind(_) => strides(segment, ranks),
        Content::Mixed(_) => Vec::new(),
    };
    let mut found: Vec<u32> = Vec::new();
    for lag in strides
        .into_iter()
        .chain(step(segment).map(|bytes| bytes / width))
    {
        let Ok(narrow) = u32::try_from(lag) else {
            continue;
        };
        if (2..elements).contains(&lag) && !found.contains(&narrow) {
            found.push(narrow);
        }
    }
    found
}

/// Strides of the shape that most bytes of the segment have.
fn strides(segment: &Segment<'_>, ranks: &[RankBlocks<'_>]) -> Vec<u64> {
    let mut shapes: BTreeMap<&[u64], u64> = BTreeMap::new();
    for piece in &segment.pieces {
        let variable = ranks
            .get(index(piece.rank))
            .and_then(|rank| rank.variables.get(index(piece.variable)));
        if let Some(variable) = variable {
            let shape = variable
                .part
                .map_or(&variable.descriptor.shape, |part| &part.shape);
            let inner = shape.get(1..).unwrap_or_default();
            *shapes.entry(inner).or_default() += u64::from(piece.block.length);
        }
    }
    let most = shapes.into_iter().max_by_key(|&(_, bytes)| bytes);
    let inner = most.map_or(&[][..], |(inner, _)| inner);
    let products = inner.iter().rev().scan(1_u64, |product, &extent| {
        *product = product.checked_mul(extent)?;
        Some(*product)
    });
    products
        .filter(|&stride| stride > 1)
        .take(STRIDES_MAX)
        .collect()
}

/// Bytes from where a rank's run of pieces begins to where the next one does; of a whole run, where the
/// segment has one.
fn step(segment: &Segment<'_>) -> Option<u64> {
    let pieces = &segment.pieces;
    let begins = pieces
        .windows(2)
        .filter(|pair| pair[0].rank != pair[1].rank)
        .map(|pair| u64::from(pair[1].offset));
    let mut begins = begins.take(2);
    let first = begins.next()?;
    Some(begins.next().map_or(first, |second| second - first))
}
