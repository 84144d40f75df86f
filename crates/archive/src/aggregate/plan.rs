// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: cuts the blocks of many ranks into segments.
//! In: ranks and options, both checked. Out: segments, one at a time.
//! Invariants: those of the module above; a plan holds the members of one group and the pieces of one
//! segment, never those of a whole checkpoint.

use super::input::{self, Block, Options, RankBlocks};
use super::kind::Kind;
use super::order::{Batch, Cursor, RankVariable};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::{index, to_u64};
use backstay_format::{Address, ElementType, Merge};
use std::collections::{BTreeMap, VecDeque};

/// What a segment holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// Blocks of one kind.
    Kind(Kind<'a>),
    /// Blocks of several small kinds with this element type.
    Mixed(ElementType),
}

impl Content<'_> {
    /// Type of all its elements.
    pub const fn element(&self) -> ElementType {
        match self {
            Self::Kind(kind) => kind.element,
            Self::Mixed(element) => *element,
        }
    }
}

/// A block in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Whose it is: a place in the list of ranks.
    pub rank: u32,
    /// Of which variable: a place in the rank's list.
    pub variable: u32,
    /// Where it begins in the segment, before that is encoded.
    pub offset: u32,
    /// The block's number in the variable, and its bytes.
    pub block: Block,
}

impl Piece {
    /// Its bytes in a segment that was decoded; `None` if that is too short.
    pub fn of<'d>(&self, decoded: &'d [u8]) -> Option<&'d [u8]> {
        let start = index(self.offset);
        decoded.get(start..start.checked_add(index(self.block.length))?)
    }
}

/// Blocks that are written and encoded together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment<'a> {
    /// What it holds.
    pub content: Content<'a>,
    /// How its ranks were merged.
    pub merge: Merge,
    /// First rank of its group.
    pub first_rank: u32,
    /// Its bytes before it is encoded.
    pub length: u32,
    /// What it holds, in order of the offsets.
    pub pieces: Vec<Piece>,
}

impl Segment<'_> {
    /// Puts the segment together in `into`: `copy` fills each piece, what lies between is zero.
    pub fn gather(
        &self,
        into: &mut Vec<u8>,
        mut copy: impl FnMut(&Piece, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        into.clear();
        into.resize(index(self.length), 0);
        for piece in &self.pieces {
            let start = index(piece.offset);
            let place = into.get_mut(start..start.saturating_add(index(piece.block.length)));
            let beyond = || Error::new(ErrorKind::Internal, "a piece ends behind its segment");
            copy(piece, place.ok_or_else(beyond)?)?;
        }
        Ok(())
    }
}

/// The segments of some ranks' blocks.
pub fn plan<'a>(ranks: &'a [RankBlocks<'a>], options: Options) -> Result<Plan<'a>> {
    options.check()?;
    input::check(ranks)?;
    Ok(Plan {
        ranks,
        options,
        next_rank: 0,
        first_rank: 0,
        batches: VecDeque::new(),
        cursor: None,
        held: None,
    })
}

/// Segments, one at a time.
#[derive(Debug)]
pub struct Plan<'a> {
    ranks: &'a [RankBlocks<'a>],
    options: Options,
    /// First rank of the next group.
    next_rank: usize,
    /// First rank of this group.
    first_rank: usize,
    /// What is left of this group.
    batches: VecDeque<Batch<'a>>,
    cursor: Option<Cursor<'a>>,
    /// A block that did not fit into the last segment.
    held: Option<(RankVariable, Block)>,
}

impl<'a> Plan<'a> {
    /// Goes on to the next batch, and to the next group where that is needed.
    fn advance(&mut self) -> Option<()> {
        while self.batches.is_empty() {
            if self.next_rank >= self.ranks.len() {
                return None;
            }
            let size = match self.options.merge {
                Merge::None => 1,
                Merge::Concatenate | Merge::Interleave => self.options.group_size,
            };
            self.first_rank = self.next_rank;
            self.next_rank = self.next_rank.saturating_add(size).min(self.ranks.len());
            self.batches = self.batches_of_group();
        }
        self.cursor = self.batches.pop_front().map(Cursor::new);
        Some(())
    }

    /// The kinds of the group: large ones by themselves, then small ones by element type.
    fn batches_of_group(&self) -> VecDeque<Batch<'a>> {
        let mut kinds: BTreeMap<Kind<'a>, (u64, VecDeque<RankVariable>)> = BTreeMap::new();
        for rank in self.first_rank..self.next_rank {
            for (place, variable) in self.ranks[rank].variables.iter().enumerate() {
                if variable.blocks.is_empty() {
                    continue;
                }
                let lengths = variable.blocks.iter().map(|block| u64::from(block.length));
                let (bytes, members) = kinds.entry(Kind::of(variable)).or_default();
                *bytes = bytes.saturating_add(lengths.sum());
                members.push_back(RankVariable {
                    rank: narrow(rank),
                    variable: narrow(place),
                });
            }
        }
        let mut batches = VecDeque::new();
        let mut small: BTreeMap<u8, Batch<'a>> = BTreeMap::new();
        for (kind, (bytes, members)) in kinds {
            let content = Content::Kind(kind);
            if bytes >= self.options.small_bytes {
                let kinds = VecDeque::from([members]);
                batches.push_back(Batch { content, kinds });
                continue;
            }
            let batch = small.entry(kind.element.id()).or_insert_with(|| Batch {
                content,
                kinds: VecDeque::new(),
            });
            batch.kinds.push_back(members);
            if batch.kinds.len() > 1 {
                batch.content = Content::Mixed(kind.element);
            }
        }
        batches.extend(small.into_values());
        batches
    }

    fn next_block(&mut self) -> Option<(RankVariable, Block)> {
        let cursor = self.cursor.as_mut()?;
        cursor.next(self.ranks, self.options.merge)
    }
}

impl<'a> Iterator for Plan<'a> {
    type Item = Segment<'a>;

    fn next(&mut self) -> Option<Segment<'a>> {
        let first = loop {
            match self.held.take().or_else(|| self.next_block()) {
                Some(block) => break block,
                None => self.advance()?,
            }
        };
        let mut segment = Segment {
            content: self.cursor.as_ref()?.content,
            merge: self.options.merge,
            first_rank: narrow(self.first_rank),
            length: 0,
            pieces: Vec::new(),
        };
        let mut next = Some(first);
        while let Some((member, block)) = next {
            let offset = segment.length.next_multiple_of(Address::UNIT_BYTES);
            let end = offset.saturating_add(block.length);
            if end > self.options.segment_bytes {
                self.held = Some((member, block));
                break;
            }
            segment.length = end;
            segment.pieces.push(Piece {
                rank: member.rank,
                variable: member.variable,
                offset,
                block,
            });
            next = self.next_block();
        }
        Some(segment)
    }
}

/// A place that was checked against [`backstay_format::limits`].
fn narrow(place: usize) -> u32 {
    u32::try_from(to_u64(place)).unwrap_or(u32::MAX)
}
