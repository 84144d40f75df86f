// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the communicator the application brings, and the job of one process.
//! In from: `session`, on the caller's thread only. Out to: MPI, or whatever the table leads to.
//! Invariants: at most two calls per checkpoint; every rank makes the same calls in the same order.

use crate::error::{Error, ErrorKind, Result};
use backstay_format::width::{index, to_u64, to_usize};

/// What Backstay asks of a communicator. All calls are collective but `rank` and `size`.
///
/// Contract: errors are returned, never raised or aborted on; the calls of one communicator are
/// made by one thread at a time; `allgather` and `allreduce_max` order memory like a barrier. Either all ranks
/// have `gather` and `broadcast` of their own, or all take what stands here, which costs every rank as much as
/// the root.
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
    /// Brings `mine` of every rank, each of any length, to rank `root`, which returns them in rank order; the
    /// others return nothing. A root beyond the size is [`ErrorKind::InvalidArgument`].
    fn gather(&self, mine: &[u8], root: u32) -> Result<Vec<Vec<u8>>> {
        gather_by_allgather(self, mine, root)
    }
    /// Replaces `bytes` by those of rank `root`; all ranks bring equally many. A root beyond the size is
    /// [`ErrorKind::InvalidArgument`].
    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<()> {
        broadcast_by_max(self, bytes, root)
    }
}

/// Most bytes that [`gather_by_allgather`] has of all ranks at once.
const PIECE_BYTES: usize = 16 << 20;

fn check_root<C: Communicator + ?Sized>(comm: &C, root: u32) -> Result<()> {
    if root < comm.size() {
        return Ok(());
    }
    let context = format!("rank {root} is the root of a job of {} ranks", comm.size());
    Err(Error::new(ErrorKind::InvalidArgument, context))
}

/// [`Communicator::gather`] of a communicator that has none: all ranks get everything, piece by piece, and
/// only the root keeps it.
pub fn gather_by_allgather<C: Communicator + ?Sized>(
    comm: &C,
    mine: &[u8],
    root: u32,
) -> Result<Vec<Vec<u8>>> {
    check_root(comm, root)?;
    let size = index(comm.size());
    let mut lengths = vec![0; 8 * size];
    comm.allgather(&to_u64(mine.len()).to_le_bytes(), &mut lengths)?;
    let lengths = lengths.chunks_exact(8).map(|bytes| {
        let mut length = [0; 8];
        length.copy_from_slice(bytes);
        to_usize(u64::from_le_bytes(length))
    });
    let lengths: Vec<usize> = lengths.collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let piece = (PIECE_BYTES / size).clamp(1, longest.max(1));
    let is_root = comm.rank() == root;
    let mut parts = vec![Vec::new(); if is_root { size } else { 0 }];
    for start in (0..longest).step_by(piece) {
        let width = piece.min(longest - start);
        let mut one = vec![0; width];
        let rest = mine.get(start..).unwrap_or_default();
        let rest = &rest[..rest.len().min(width)];
        one[..rest.len()].copy_from_slice(rest);
        let mut all = vec![0; width * size];
        comm.allgather(&one, &mut all)?;
        for ((part, length), bytes) in parts.iter_mut().zip(&lengths).zip(all.chunks(width)) {
            part.extend_from_slice(&bytes[..length.saturating_sub(start).min(width)]);
        }
    }
    Ok(parts)
}

/// [`Communicator::broadcast`] of a communicator that has none: a maximum over words, of which the others
/// bring the least.
pub fn broadcast_by_max<C: Communicator + ?Sized>(
    comm: &C,
    bytes: &mut [u8],
    root: u32,
) -> Result<()> {
    check_root(comm, root)?;
    let mut words = vec![i64::MIN; bytes.len().div_ceil(8)];
    if comm.rank() == root {
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut value = [0; 8];
            value[..chunk.len()].copy_from_slice(chunk);
            *word = i64::from_le_bytes(value);
        }
    }
    comm.allreduce_max(&mut words)?;
    for (word, chunk) in words.iter().zip(bytes.chunks_mut(8)) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
    Ok(())
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
    fn gather(&self, mine: &[u8], root: u32) -> Result<Vec<Vec<u8>>> {
        check_root(self, root).map(|()| vec![mine.to_vec()])
    }
    fn broadcast(&self, _bytes: &mut [u8], root: u32) -> Result<()> {
        check_root(self, root)
    }
}
