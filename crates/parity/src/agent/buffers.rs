// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: memory that pieces are gathered and parity is made in, used again: fresh memory costs as much
//! as the copy into it.
//! In from: `encode`, `member`, `rebuild`. Out to: the same.
//! Invariants: what is kept is bounded; a buffer holds anything.

use super::lock;
use std::sync::Mutex;

/// Buffers kept for the next use.
const KEPT_MAX: usize = 12;

/// A pool of buffers.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    /// A buffer of at least `length` bytes.
    pub(super) fn take(&self, length: usize) -> Vec<u8> {
        let mut buffer = lock(&self.free).pop().unwrap_or_default();
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        buffer
    }

    /// Gives it back.
    pub(super) fn give(&self, buffer: Vec<u8>) {
        let mut free = lock(&self.free);
        if free.len() < KEPT_MAX {
            free.push(buffer);
        }
    }
}
