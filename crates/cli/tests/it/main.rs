// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the command `backstay` as a person or a script would, on stores made by jobs of threads.
#![expect(unsafe_code, reason = "protecting memory is unsafe by contract")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]

mod archives;
mod damage;
mod differing;
mod doctor;
mod exporting;
mod files;
mod importing;
mod job;
mod listing;
mod live;
mod numpy;
mod planner;
mod protected;
mod removing;
mod running;
mod standing;
mod tensors;
mod terminal;
