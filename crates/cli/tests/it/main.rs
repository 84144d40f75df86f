// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the command `backstay` as a person or a script would.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod planner;
