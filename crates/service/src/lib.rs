// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands beside the application.
//!
//! Purpose: `supervise` starts an application, notices its death and starts it again.
//! Invariants: no part of this is linked into an application.
#![forbid(unsafe_code)]

pub mod supervise;
