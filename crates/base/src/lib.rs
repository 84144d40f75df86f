// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every crate of Backstay stands on.
//!
//! | module | what it has |
//! |---|---|
//! | [`error`] | the one error: what kind, in which context, caused by what |
//! | [`io`] | files and devices: bytes at offsets that can be written, read and synced |
//! | [`comm`] | the communicator the application brings |
//! | [`clock`] | time that tests may move, waits and their limits |
//! | [`notice`] | what a user is told |
//! | [`cpu`] | threads of the background |
//! | [`process`] | other processes, as the system shows them |
//! | [`units`] | sizes and times as people write them |
//! | [`fanout`] | something done for each of many, several at the same time |

pub mod clock;
pub mod comm;
pub mod cpu;
pub mod error;
pub mod fanout;
pub mod io;
pub mod notice;
pub mod process;
pub mod units;

pub use comm::Communicator;
pub use error::{Error, ErrorKind, Result};
