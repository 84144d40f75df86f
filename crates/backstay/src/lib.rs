// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Backstay keeps long parallel runs standing: differential checkpoints of named variables,
//! committed in reserved space on the node, and the way back.
//!
//! This crate is what programs use. It composes the others, each of which is a part of the way of a block from
//! application memory to the archive and back; none of them knows this one.
//!
//! | module | what it does |
//! |---|---|
//! | [`Session`] | open, protect, checkpoint, restore, close: what a program calls |
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
//! use backstay::{Config, ElementType, ErrorKind, Session, Variable};
//!
//! # fn main() -> backstay::Result<()> {
//! let mut config = Config::from_environment()?;
//! config.job = Some("counting".to_owned());
//! # let folder = tempfile::tempdir().unwrap();
//! # config.store_path = Some(folder.path().to_owned());
//! let mut session = Session::open(Box::new(Single), config)?;
//!
//! let mut cells = vec![0.0_f64; 10_000];
//! let mut step = 0_i64;
//! let cells_at = cells.as_mut_ptr();
//! let step_at = &raw mut step;
//! // SAFETY: both stay where they are until the session is closed, and no other thread writes them.
//! unsafe {
//!     session.protect(Variable::new("cells", ElementType::F64, &[10_000]), cells_at.cast())?;
//!     session.protect(Variable::new("step", ElementType::I64, &[]), step_at.cast())?;
//! }
//! match session.restore() {
//!     Ok(restored) => println!("going on from checkpoint {}", restored.checkpoint.number),
//!     Err(error) if error.kind() == ErrorKind::NoCheckpoint => println!("from the beginning"),
//!     Err(error) => return Err(error),
//! }
//! while step < 20 {
//!     for cell in &mut cells {
//!         *cell += 1.0;
//!     }
//!     step += 1;
//!     if step % 5 == 0 {
//!         let report = session.checkpoint()?;
//!         println!("{} of {} blocks changed", report.blocks_changed, report.blocks_total);
//!     }
//! }
//! session.close()
//! # }
//! ```
//!
//! Programs that run on many processes hand in a [`Communicator`]; C programs under MPI get theirs
//! from `backstay_mpi.h`. The collective calls of [`Session`] are made by every rank in one order.

mod session;
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
pub use session::{
    FileEntry, Finished, Handle, Level, ProtectionStatus, Report, Restored, Scrubbed, Session,
    Variable,
};
