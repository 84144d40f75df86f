// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The format from outside: what goes in comes out, what was damaged is refused, and what an
//! earlier version wrote is still read.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod samples;
mod wire;
mod codec;
mod parity_samples;
mod archive_samples;
mod round_trip;
mod parity_round_trip;
mod hostile;
mod local;
mod fixtures;
mod document;
mod drain;
mod parity_document;
mod archive_document;
mod rough;
mod writable;
