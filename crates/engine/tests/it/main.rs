// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the engine from outside: whole jobs of threads, their stores in a temporary folder.
#![expect(unsafe_code, reason = "protecting memory is unsafe by contract")]

mod job;
mod lives;
