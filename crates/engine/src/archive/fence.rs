// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: who may write a file on shared storage: the process that made it, or one of the same host and
//! boot once that process is proven dead. Everybody else takes over: a new file under a higher epoch.
//! Invariants: the proof is a lock of the kernel (flock) on a file of the host's memory, never on shared
//! storage; without that file there is no proof.

use crate::error::{Error, ErrorKind, Result};
use backstay_format::StoreId;

/// This host and its boot, as files on shared storage name them.
pub fn host() -> String {
    String::new()
}

/// The right to write a file, until dropped.
#[derive(Debug)]
pub struct Fence {}

impl Fence {
    /// For a file that this process makes.
    pub fn first(_store: StoreId) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// For a file that a process of `host` made; `what` names it in errors. [`ErrorKind::StoreBusy`] if
    /// that process lives, or cannot be proven dead.
    pub fn again(_store: StoreId, _host: &str, _what: &str) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
}
