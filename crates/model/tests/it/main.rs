// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Integration tests of the model crate, in one binary.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod configurations;
mod dense;
mod agreement;
mod optimum;
mod hostile;
mod failures;
