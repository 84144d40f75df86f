// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the communicator the application brings, and the job of one process.
//! In from: `session`, on the caller's thread only. Out to: MPI, or whatever the table leads to.
//! Invariants: at most two calls per checkpoint; every rank makes the same calls in the same order.

use crate::error::{Error, ErrorKind, Result};

/// What Backstay asks of a communicator. All calls are collective but `rank` and `size`.
///
/// Contract: errors are returned, never raised or aborted on; the calls of one communicator are
/// made by one thread at a time; `allgather` and `allreduce_max` order memory like a barrier.
pub trait Communicator: Send {
    /// This process, from 0.
    fn rank(&self) -> u32;
    /// Number of processes.
    fn size(&self) -> u32;
    /// Gathers `mine` of every rank, in rank order, into `all` (`size * mine.len()` bytes).
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()>;
    /// Replaces each value by its maximum over all ranks.
    fn allreduce_max(&self, values: &mut [i64]) -> Result<()>;
    /// Returns when every rank has called it.
    fn barrier(&self) -> Result<()>;
}

/// The communicator of a job of one process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Single;

impl Communicator for Single {
    fn rank(&self) -> u32 {
        0
    }
    fn size(&self) -> u32 {
        1
    }
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        if all.len() != mine.len() {
            let context = format!("allgather into {} bytes, not {}", all.len(), mine.len());
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        all.copy_from_slice(mine);
        Ok(())
    }
    fn allreduce_max(&self, _values: &mut [i64]) -> Result<()> {
        Ok(())
    }
    fn barrier(&self) -> Result<()> {
        Ok(())
    }
}
