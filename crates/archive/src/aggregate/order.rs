// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the pieces of a batch of kinds, in the order of a scheme.
//! In from: `plan`: which variables of which ranks make a batch. Out to: `plan`, one piece at a time.
//! Invariants: every block of every member comes once; a rank's blocks of a variable ascend.

use super::input::{Block, RankBlocks};
use super::plan::Content;
use backstay_format::Merge;
use backstay_format::width::index;
use std::collections::VecDeque;

/// A variable of a rank, by their places in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RankVariable {
    pub(super) rank: u32,
    pub(super) variable: u32,
}

impl RankVariable {
    pub(super) fn blocks<'a>(self, ranks: &[RankBlocks<'a>]) -> &'a [Block] {
        let variables = ranks[index(self.rank)].variables;
        variables[index(self.variable)].blocks
    }
}

/// What shares segments: one kind, or several small ones.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    pub(super) content: Content<'a>,
    /// The members of each kind, in order of their ranks.
    pub(super) kinds: VecDeque<VecDeque<RankVariable>>,
}

/// Gives out the blocks of a batch, one after the other.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    pub(super) content: Content<'a>,
    kinds: VecDeque<VecDeque<RankVariable>>,
    /// Place of the next block among those of the first member.
    turn: usize,
    /// Members of the first kind that are still to give their block of this turn.
    waiting: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(batch: Batch<'a>) -> Self {
        let waiting = batch.kinds.front().map_or(0, VecDeque::len);
        Self {
            content: batch.content,
            kinds: batch.kinds,
            turn: 0,
            waiting,
        }
    }

    /// The next block, and whose it is.
    pub(super) fn next(
        &mut self,
        ranks: &[RankBlocks<'_>],
        merge: Merge,
    ) -> Option<(RankVariable, Block)> {
        loop {
            let members = self.kinds.front_mut()?;
            let Some(&member) = members.front() else {
                self.kinds.pop_front();
                self.turn = 0;
                self.waiting = self.kinds.front().map_or(0, VecDeque::len);
                continue;
            };
            let block = member.blocks(ranks).get(self.turn).copied();
            if merge == Merge::Interleave {
                members.pop_front();
                self.waiting -= 1;
                if block.is_some() {
                    members.push_back(member);
                }
                if self.waiting == 0 {
                    self.turn += 1;
                    self.waiting = members.len();
                }
            } else if block.is_some() {
                self.turn += 1;
            } else {
                members.pop_front();
                self.turn = 0;
            }
            if let Some(block) = block {
                return Some((member, block));
            }
        }
    }
}
