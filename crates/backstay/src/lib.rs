// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Backstay keeps long parallel runs standing: differential checkpoints of named variables,
//! committed in reserved space on the node, and the way back.
//!
//! This crate is what programs use. It composes the others, each of which is a part of the way of a block from
//! application memory to the archive and back; none of them knows this one.
//!
//! | module | what it does |
//! |---|---|
//! | [`Restartable`] | a program's state with its session: what a Rust program uses |
//! | [`Session`] | open, protect, checkpoint, restore, close: what a program calls, memory by address |
//! | [`agent`] | the agent of a node: protection, and its part in draining |
//! | [`config`] | every setting |
//! | [`leave`] | the wish that the program takes a last checkpoint and leaves |
//! | [`comm`], [`error`] | the communicator that a program brings, and what a call may say |
//!
//! | crate | what it does |
//! |---|---|
//! | `backstay-store` | a variable's memory, which blocks of it changed, and the node's reserved file: allocation, hash trees, commit, recovery |
//! | `backstay-net` | the way to other nodes: control messages, and bytes pulled from them |
//! | `backstay-parity` | who protects whom across nodes, the arithmetic of parity, rounds, lost stores made again |
//! | `backstay-codec` | archived data made smaller, and the choice how |
//! | `backstay-archive` | blocks of many ranks put in order, stored encoded on shared storage, and the catalog of what is whole |
//! | `backstay-base` | files, clocks, errors: what all of them use |
//! | `backstay-format` | every structure on storage and on the wire |
//!
//! A program of one process that goes on where it was:
//!
//! ```
//! use backstay::comm::Single;
//! use backstay::{Config, Restartable, State, Variables};
//!
//! struct Counting {
//!     cells: Vec<f64>,
//!     step: i64,
//! }
//!
//! impl State for Counting {
//!     fn variables<'a>(&'a mut self, variables: &mut Variables<'a>) {
//!         variables.array("cells", &mut self.cells);
//!         variables.value("step", &mut self.step);
//!     }
//! }
//!
//! # fn main() -> backstay::Result<()> {
//! let mut config = Config::from_environment()?;
//! config.job = Some("counting".to_owned());
//! # let folder = tempfile::tempdir().unwrap();
//! # config.store_path = Some(folder.path().to_owned());
//! let state = Counting { cells: vec![0.0; 10_000], step: 0 };
//! let mut state = Restartable::open(Box::new(Single), config, state)?;
//! match state.restore()? {
//!     Some(restored) => println!("resuming from checkpoint {}", restored.checkpoint.number),
//!     None => println!("from the beginning"),
//! }
//! while state.step < 20 {
//!     for cell in &mut state.cells {
//!         *cell += 1.0;
//!     }
//!     state.step += 1;
//!     if state.step % 5 == 0 {
//!         let report = state.checkpoint()?;
//!         println!("{} of {} blocks changed", report.blocks_changed, report.blocks_total);
//!     }
//! }
//! state.finish().map(drop)
//! # }
//! ```
//!
//! [`Session`] is what is under it, where memory that the program keeps elsewhere is protected by its address.
//!
//! Programs that run on many processes hand in a [`Communicator`]; C programs under MPI get theirs
//! from `backstay_mpi.h`. The collective calls of [`Session`] are made by every rank in one order.

mod session;
mod restartable;
pub mod agent;
#[cfg(feature = "archive")]
mod draining;
#[cfg(not(feature = "archive"))]
#[path = "draining_off.rs"]
mod draining;
mod schedule;
pub mod leave;
pub mod config;

pub use backstay_base::comm::{self, Communicator};
pub use backstay_base::error::{self, Error, ErrorKind, Result};
pub use backstay_format as format;
pub use backstay_format::{CheckpointId, ElementType, Slab, VariableDescriptor};
pub use config::Config;
pub use restartable::{Element, Restartable, State, Variables};
pub use session::{
    FileEntry, Finished, Handle, Level, ProtectionStatus, Report, Restored, Scrubbed, Session,
    Variable, VariableId,
};
