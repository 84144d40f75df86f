// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands beside the application.
//!
//! Purpose: `supervise` starts an application, notices its death and starts it again; `staging` brings its
//! checkpoints to the archive; `routing` makes checkpoints of files that programs write.
//! Invariants: no part of this is linked into an application.
#![forbid(unsafe_code)]

pub mod routing;
pub mod staging;
pub mod supervise;
