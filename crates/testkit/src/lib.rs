// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tests of Backstay share. Never published, never linked into an application.
//!
//! | module | what it does |
//! |---|---|
//! | [`device`] | a device in memory that records what is done to it and fails on demand |
//! | [`crash`] | every state a device may be found in after a crash, each one repeatable |
//! | [`comm`] | a communicator of threads, with limits, counts and failures on demand |
//! | [`network`] | endpoints of one process, with links to cut and nodes to stop |
//! | [`oracle`] | contents in which every word tells where it came from |
//! | [`isal`] | ISA-L, to compare parity with |
//! | [`conformance`] | what any device, communicator and transport must do |
//! | [`bytes`], [`seeded`] | shared pages of bytes; random numbers that repeat |

pub mod bytes;
pub mod seeded;
pub mod device;
pub mod crash;
pub mod comm;
pub mod network;
pub mod oracle;
pub mod conformance;
pub mod isal;

pub use comm::ThreadComm;
pub use crash::{CrashImage, CrashOptions, for_each_image};
pub use device::{Operation, SimDevice};
pub use network::SimNetwork;
pub use oracle::Oracle;
