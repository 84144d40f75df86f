// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the node's store: one reserved file that holds every retained revision of its ranks.
//! In from: `session` (variables and their candidates). Out to: `io` (a device).
//! Invariants: what a retained revision refers to is never overwritten; a revision exists when its
//! root is durable; what is free follows from the roots alone.
//! Format: docs/format/store.md.
//!
//! Forward: [`capture`] writes changed blocks, [`revision`] makes one rank's part of them,
//! [`commit`] makes the node's root. Backward: [`recover`] finds what is retained, [`tree`] and
//! [`reader`] read it, [`read_back`] into variables, [`compare`] finds what changed. Space: [`reserve`] (the file), [`space`] (who
//! uses what), [`control`] (what the ranks of a node share).

pub mod file;
pub mod region;
pub mod track;
pub mod control;
pub mod space;
pub mod reader;
pub mod reserve;
pub mod view;
pub mod tree;
pub mod read_back;
pub mod compare;
pub mod ranges;
pub mod capture;
pub mod revision;
pub mod commit;
pub mod recover;
pub mod redistribute;
pub mod place;
pub mod memory;
pub mod lock;
mod sealed;
pub mod stripe_log;
