// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests from outside: a store and its stripe log, as cuts of power leave them.
#![expect(clippy::unwrap_used, reason = "a test may stop where it fails")]

mod crash;
mod read_back;
mod sealing;
mod stripe_crash;
