// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which process a session belongs to: a child made by fork has a copy of its memory, and no
//! part in the job.
//! In from: `session`. Out: a refusal.
//! Invariants: in any other process than the one that opened the session nothing of it is called, told,
//! unlocked or waited for, also not where it is dropped.
#![expect(unsafe_code, reason = "what belongs to another process is not dropped")]

use backstay_base::error::{Error, ErrorKind, Result};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

/// The process that a session was opened in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process(u32);

impl Process {
    /// This one.
    pub(super) fn this() -> Self {
        Self(std::process::id())
    }

    fn is_this(self) -> bool {
        self == Self::this()
    }

    /// Refuses every other process.
    pub(super) fn check(self) -> Result<()> {
        if self.is_this() {
            return Ok(());
        }
        let context = format!(
            "this is process {}, a child made by fork; the session is that of process {}, which alone \
             can use it",
            Self::this().0,
            self.0
        );
        Err(Error::new(ErrorKind::InvalidArgument, context))
    }
}

/// What ends by telling others, or by waiting for threads: dropped in the process that made it only.
#[derive(Debug)]
pub(super) struct OfProcess<T> {
    value: ManuallyDrop<T>,
    process: Process,
}

impl<T> OfProcess<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            process: Process::this(),
        }
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OfProcess<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process.is_this() {
            // SAFETY: this is the drop of the owner, so that it is not used and not dropped again.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
