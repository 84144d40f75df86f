// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: in which order the blocks of many ranks are written together, so that similar bytes stand
//! side by side, and where one segment ends and the next begins.
//! In: of each rank, its variables and which of their blocks are to be written. Out: segments, one at a
//! time, each with the place of every piece. The caller copies bytes.
//! Invariants: the same input gives the same segments; every block is in exactly one; a segment is no
//! longer than asked for, and every piece in it begins at a multiple of 64 bytes; memory is bounded by
//! the variables of one group and the pieces of one segment. No input or output, no threads.
//! Format: docs/format/merge.md.
//!
//! | module | what it does |
//! |---|---|
//! | [`kind`] | what makes variables of several ranks similar |
//! | [`input`] | which blocks there are, checked |
//! | [`mod@plan`] | the segments |
//! | `order` | the pieces of a batch of kinds, in the order of a scheme |
//! | [`mod@lags`] | how far apart similar elements of a segment are |
//!
//! Kinds and both ways to merge them are those of mcrEngine (Islam et al., SC 2012).

pub mod kind;
pub mod input;
pub mod plan;
mod order;
pub mod lags;

pub use backstay_format::Merge;
pub use input::{Block, Options, Part, RankBlocks, VariableBlocks};
pub use kind::{Class, Kind};
pub use lags::lags;
pub use plan::{Content, Piece, Plan, Segment, plan};
