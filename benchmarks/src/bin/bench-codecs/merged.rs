// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: checkpoints of many ranks as segments, by the engine's own plan, and in two ways that know
//! nothing of variables.
//! In from: data sets. Out to: the parts of this benchmark.

use backstay::format::ElementType;
use backstay::format::limits::BLOCK_BYTES_DEFAULT;
use backstay_archive::aggregate::{
    self, Block, Options, Piece, RankBlocks, Segment, VariableBlocks, lags,
};
use backstay_bench::Outcome;
use backstay_bench::datasets::{State, Variable};
use std::collections::HashSet;
use twox_hash::XxHash3_128;

pub(crate) const BLOCK: usize = BLOCK_BYTES_DEFAULT as usize;

/// A segment as the codec stage gets it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gathered<'a> {
    pub(crate) element: ElementType,
    pub(crate) lags: &'a [u32],
    pub(crate) bytes: &'a [u8],
    /// What stood in the same places in an earlier checkpoint.
    pub(crate) base: Option<&'a [u8]>,
    /// Changes where a scheme chosen for the segment before does not fit any more.
    pub(crate) kind: &'a str,
}

/// Which blocks are equal to one that came before, or zero.
#[derive(Debug, Default)]
pub(crate) struct Once {
    known: HashSet<(u128, usize)>,
    /// Bytes of all blocks that were left out.
    pub(crate) equal_bytes: usize,
}

impl Once {
    /// Whether the block has to be stored.
    pub(crate) fn is_new(&mut self, block: &[u8]) -> bool {
        let zero = block.iter().all(|&byte| byte == 0);
        let new = !zero
            && self
                .known
                .insert((XxHash3_128::oneshot(block), block.len()));
        if !new {
            self.equal_bytes += block.len();
        }
        new
    }
}

/// Calls `visit` with each segment of a checkpoint.
pub(crate) fn segments(
    state: &State,
    base: Option<&State>,
    options: Options,
    mut once: Option<&mut Once>,
    mut visit: impl FnMut(&Gathered<'_>) -> Outcome<()>,
) -> Outcome<()> {
    let mut blocks: Vec<Vec<Vec<Block>>> = Vec::new();
    for variables in state {
        let of_rank = variables.iter().map(|variable| wanted(variable, &mut once));
        blocks.push(of_rank.collect());
    }
    let variables: Vec<Vec<VariableBlocks<'_>>> = state
        .iter()
        .zip(&blocks)
        .map(|(variables, blocks)| {
            let pairs = variables.iter().zip(blocks);
            pairs
                .map(|(variable, blocks)| of(&variable.descriptor, blocks))
                .collect()
        })
        .collect();
    let ranks: Vec<RankBlocks<'_>> = variables
        .iter()
        .map(|variables| RankBlocks { variables })
        .collect();
    let (mut bytes, mut old) = (Vec::new(), Vec::new());
    for segment in aggregate::plan(&ranks, options)? {
        gather(&segment, state, &mut bytes)?;
        let base = match base {
            Some(base) => gather_base(&segment, state, base, &mut old)?.then_some(&old[..]),
            None => None,
        };
        let kind = match segment.content {
            aggregate::Content::Kind(kind) => kind.name,
            aggregate::Content::Mixed(_) => "",
        };
        visit(&Gathered {
            element: segment.content.element(),
            lags: &lags(&segment, &ranks),
            bytes: &bytes,
            base,
            kind,
        })?;
    }
    Ok(())
}

fn of<'a>(
    descriptor: &'a backstay::VariableDescriptor,
    blocks: &'a Vec<Block>,
) -> VariableBlocks<'a> {
    VariableBlocks {
        part: None,
        descriptor,
        block_bytes: BLOCK_BYTES_DEFAULT,
        blocks,
    }
}

fn wanted(variable: &Variable, once: &mut Option<&mut Once>) -> Vec<Block> {
    let mut found = Vec::new();
    for (index, block) in (0..).zip(variable.bytes.chunks(BLOCK)) {
        if once.as_mut().is_none_or(|once| once.is_new(block)) {
            let length = u32::try_from(block.len()).unwrap_or(u32::MAX);
            found.push(Block { index, length });
        }
    }
    found
}

fn variable_of<'a>(piece: &Piece, state: &'a State) -> &'a Variable {
    &state[piece.rank as usize][piece.variable as usize]
}

fn part<'a>(piece: &Piece, variable: &'a Variable) -> Option<&'a [u8]> {
    let start = usize::try_from(piece.block.index).ok()? * BLOCK;
    variable
        .bytes
        .get(start..start + piece.block.length as usize)
}

fn gather(segment: &Segment<'_>, state: &State, into: &mut Vec<u8>) -> Outcome<()> {
    Ok(segment.gather(into, |piece, place| {
        place.copy_from_slice(part(piece, variable_of(piece, state)).unwrap_or_default());
        Ok(())
    })?)
}

/// What stood in an earlier checkpoint; false if that had none of it.
fn gather_base(
    segment: &Segment<'_>,
    state: &State,
    base: &State,
    into: &mut Vec<u8>,
) -> Outcome<bool> {
    let mut any = false;
    segment.gather(into, |piece, place| {
        let name = &variable_of(piece, state).descriptor.name;
        let rank = &base[piece.rank as usize];
        let old = rank.iter().find(|found| found.descriptor.name == *name);
        if let Some(bytes) = old.and_then(|old| part(piece, old)) {
            place.copy_from_slice(bytes);
            any = true;
        }
        Ok(())
    })?;
    Ok(any)
}

/// All checkpoints, one after the other.
pub(crate) fn concatenated(state: &State, mut once: Option<&mut Once>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for variable in state.iter().flatten() {
        for block in variable.bytes.chunks(BLOCK) {
            if once.as_mut().is_none_or(|once| once.is_new(block)) {
                bytes.extend_from_slice(block);
            }
        }
    }
    bytes
}

/// A block of each rank's checkpoint in turn.
pub(crate) fn interleaved(state: &State) -> Vec<u8> {
    let whole = |variables: &Vec<Variable>| -> Vec<u8> {
        let all = variables.iter().flat_map(|variable| &variable.bytes);
        all.copied().collect()
    };
    let wholes: Vec<Vec<u8>> = state.iter().map(whole).collect();
    let longest = wholes.iter().map(Vec::len).max().unwrap_or(0);
    let mut bytes = Vec::new();
    for start in (0..longest).step_by(BLOCK) {
        for whole in &wholes {
            let left = whole.get(start..).unwrap_or_default();
            bytes.extend_from_slice(&left[..left.len().min(BLOCK)]);
        }
    }
    bytes
}
