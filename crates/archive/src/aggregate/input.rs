// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a plan is made of: ranks, variables, blocks, and how they are to be merged.
//! In: what the caller found changed. Out to: `plan`.
//! Invariants: what was checked here cannot make a plan overflow, nor a piece longer than a segment.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::to_u64;
use backstay_format::{ElementType, Merge, VariableDescriptor, limits};

/// A block that is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// Its number in the variable, from 0.
    pub index: u64,
    /// Its bytes: those of a whole block, or fewer at the end of the variable.
    pub length: u32,
}

/// What some blocks of a variable are: those of a file that are numbers of one of its datasets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its name, which is no variable's.
    pub name: String,
    /// Type of its elements.
    pub element: ElementType,
    /// How its elements follow each other: the shape of an array, or of its chunks.
    pub shape: Vec<u64>,
}

/// A variable of a rank, and which of its blocks are to be written.
#[derive(Debug, Clone, Copy)]
pub struct VariableBlocks<'a> {
    /// What the variable is.
    pub descriptor: &'a VariableDescriptor,
    /// What of it this is, where it is not all the same.
    pub part: Option<&'a Part>,
    /// Bytes of a whole block.
    pub block_bytes: u32,
    /// Its blocks to be written, in ascending order.
    pub blocks: &'a [Block],
}

/// A rank, and which of its blocks are to be written.
#[derive(Debug, Clone, Copy)]
pub struct RankBlocks<'a> {
    /// Its variables, in ascending order of their names; of one that has parts, each by itself.
    pub variables: &'a [VariableBlocks<'a>],
}

/// How blocks are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How ranks are merged.
    pub merge: Merge,
    /// Consecutive ranks that are merged with each other.
    pub group_size: usize,
    /// Most bytes of a segment.
    pub segment_bytes: u32,
    /// A kind of which a group has fewer bytes than this shares segments with others.
    pub small_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            merge: Merge::Concatenate,
            group_size: 32,
            segment_bytes: limits::SEGMENT_BYTES_MAX,
            small_bytes: 64 << 10,
        }
    }
}

impl Options {
    /// Checks that every block fits into a segment.
    pub(super) fn check(&self) -> Result<()> {
        let segments = limits::SEGMENT_BYTES_MIN..=limits::SEGMENT_BYTES_MAX;
        if !segments.contains(&self.segment_bytes) {
            let found = self.segment_bytes;
            return wrong(format!(
                "segments of {found} bytes: ask for {} to {}",
                segments.start(),
                segments.end()
            ));
        }
        if self.group_size == 0 {
            return wrong("groups of no rank: ask for 1 or more".to_owned());
        }
        Ok(())
    }
}

/// Checks counts, orders and lengths.
pub(super) fn check(ranks: &[RankBlocks<'_>]) -> Result<()> {
    if to_u64(ranks.len()) > u64::from(limits::RANKS_MAX) {
        return wrong(format!("{} ranks are too many to merge", ranks.len()));
    }
    for (number, rank) in ranks.iter().enumerate() {
        if rank.variables.len() > limits::VARIABLES_MAX {
            let count = rank.variables.len();
            return wrong(format!("rank {number} has {count} variables: too many"));
        }
        for variable in rank.variables {
            check_blocks(variable).map_err(|error| error.within(&format!("rank {number}")))?;
        }
        let names = rank.variables.iter().map(|found| {
            let part = found.part.map(|part| &*part.name);
            (&*found.descriptor.name, part)
        });
        if !names.is_sorted_by(|one, next| one < next) {
            return wrong(format!("rank {number}: names of variables do not ascend"));
        }
    }
    Ok(())
}

fn check_blocks(variable: &VariableBlocks<'_>) -> Result<()> {
    let name = &variable.descriptor.name;
    let block_bytes = variable.block_bytes;
    if !(1..=limits::BLOCK_BYTES_MAX).contains(&block_bytes) {
        return wrong(format!("{name}: blocks of {block_bytes} bytes"));
    }
    let Some(bytes) = variable.descriptor.length_bytes() else {
        return wrong(format!("{name} is too long"));
    };
    if !variable
        .blocks
        .is_sorted_by(|one, next| one.index < next.index)
    {
        return wrong(format!("{name}: numbers of blocks do not ascend"));
    }
    let misplaced = variable.blocks.iter().find(|block| {
        let start = block.index.checked_mul(u64::from(block_bytes));
        let left = start.map_or(0, |start| bytes.saturating_sub(start));
        left == 0 || u64::from(block.length) != left.min(u64::from(block_bytes))
    });
    misplaced.map_or(Ok(()), |block| {
        let Block { index, length } = block;
        wrong(format!("{name}: block {index} cannot have {length} bytes"))
    })
}

fn wrong<T>(context: String) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidArgument, context))
}
