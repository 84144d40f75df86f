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
//! | [`redundancy`] | who protects whom across nodes, and the arithmetic of parity |
//! | [`transport`] | the way to other nodes: control messages, and bytes pulled from them |
//! | [`aggregate`] | in which order blocks of many ranks are written together |
//! | [`archive`] | files on shared storage: segments stored encoded, and the catalog of what is whole |
//! | [`codec`] | archived data made smaller, and the choice how |
//! | [`schedule`] | when the next checkpoint is due |
//! | [`agent`] | protects a node's store across nodes, and makes lost ones again |
//! | [`restart`] | which checkpoint to return to, and how its parts map to other ranks |
//! | [`inspect`] | looks into stores: lists, verifies, reads for tools |
//! | [`leave`] | the wish that the program takes a last checkpoint and leaves |
//! | [`comm`], [`io`], [`config`], [`error`], [`clock`], [`metrics`] | what all stages use |
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

pub mod session;
pub mod region;
pub mod track;
pub mod store;
pub mod redundancy;
pub mod transport;
pub mod aggregate;
pub mod archive;
pub mod codec;
pub mod restart;
pub mod agent;
pub mod drain;
pub mod inspect;
pub mod schedule;
pub mod leave;
pub mod comm;
pub mod io;
pub mod config;
pub mod error;
pub mod clock;
pub mod metrics;
pub mod notice;
pub mod cpu;
pub mod fanout;

pub use backstay_format as format;
pub use backstay_format::{CheckpointId, ElementType, Slab, VariableDescriptor};
pub use comm::Communicator;
pub use config::Config;
pub use error::{Error, ErrorKind, Result};
pub use session::{Handle, Level, ProtectionStatus, Report, Restored, Scrubbed, Session, Variable};
