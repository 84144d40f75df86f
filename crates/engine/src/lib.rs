// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Backstay keeps long parallel runs standing: differential checkpoints of named variables,
//! committed in reserved space on the node, and the way back.
//!
//! The modules stand in the order in which a block travels from application memory to the store;
//! the way back is the inverse, in the same files. `session` composes them; no stage knows another.
//!
//! | module | what it does |
//! |---|---|
//! | [`session`] | open, protect, checkpoint, restore, close: what a program calls |
//! | [`region`] | a variable's memory on this rank: copy out, copy in |
//! | [`track`] | which blocks changed since the last commit |
//! | [`store`] | the node's reserved file: allocation, hash trees, commit, recovery |
//! | [`restart`] | which checkpoint to return to, and how its parts map to other ranks |
//! | [`comm`], [`io`], [`config`], [`error`], [`clock`], [`metrics`] | what all stages use |

pub mod session;
pub mod region;
pub mod track;
pub mod store;
pub mod restart;
pub mod comm;
pub mod io;
pub mod config;
pub mod error;
pub mod clock;
pub mod metrics;
pub mod notice;
pub mod cpu;

pub use backstay_format as format;
pub use backstay_format::{CheckpointId, ElementType, Slab, VariableDescriptor};
pub use comm::Communicator;
pub use config::Config;
pub use error::{Error, ErrorKind, Result};
pub use session::{Handle, Level, Report, Restored, Scrubbed, Session, Variable};
