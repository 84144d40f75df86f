// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a store stands on: bytes at offsets that can be written, read and synced.
//! In from: `store`. Out to: a file, or memory in tests.
//! Invariants: after an error of `sync` nothing written since the last good one may be trusted, and
//! the caller stops using the device.

pub mod file;
pub mod fault;
pub mod holes;
pub mod lease;
pub mod lock;
pub mod sealed;
pub mod direct;
pub mod on_demand;
pub mod open;
pub mod parts;
pub mod region;
pub mod shared;
pub mod two_slots;
mod mapped;
mod stream;

use sealed::{Mapping, SealedRange};
use std::fmt::Debug;
use std::fs::File;
use std::io::Result;
use std::path::Path;

/// Makes the names in `folder` durable, where the file system can.
pub fn sync_folder(folder: &Path) -> Result<()> {
    match open::open_read(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// The file that a device is, byte for byte.
#[derive(Debug, Clone, Copy)]
pub struct Backing<'a> {
    /// Open for reading at least.
    pub file: &'a File,
    /// As it was opened.
    pub path: &'a Path,
}

/// Bytes with a length, to be read. Implementations are shared by threads.
///
/// Contract: `read_at` moves all bytes or fails.
pub trait ReadAt: Debug + Send + Sync {
    /// Bytes of the device.
    fn length_bytes(&self) -> Result<u64>;
    /// Fills `buffer` from `offset`.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;
    /// The bytes themselves, for as long as the device is borrowed, where they are in memory.
    fn lend(&self, _range: SealedRange) -> Option<&[u8]> {
        None
    }
    /// The mapping in which bytes stand that were lent, if it stays where it is for as long as the device
    /// starts: who reads it past this process is told of it once.
    fn mapping(&self, _lent: &[u8]) -> Option<Mapping> {
        None
    }
    /// The name errors use: a path.
    fn name(&self) -> String;
    /// Bytes that are really there; less than the length if the file is sparse.
    fn allocated_bytes(&self) -> Result<u64> {
        self.length_bytes()
    }
    /// Whether reading and writing it is that of memory: then holes are filled block by block, because nothing
    /// is gained by writing in long runs.
    fn is_memory(&self) -> bool {
        false
    }
    /// The file whose bytes these are, where there is one: a process of the same machine may read
    /// it instead of asking for the bytes.
    fn backing(&self) -> Option<Backing<'_>> {
        None
    }
}

/// Reserved space with a size.
///
/// Contract: `write_at` moves all bytes or fails; a write that fails may have written
/// any part of its range, and nothing outside it; bytes written before a `sync` that returned `Ok`
/// survive a crash; others may be kept, lost, torn or reordered. `reserve` only grows, zero-fills,
/// and fails without real space (it never makes a sparse promise).
pub trait Device: ReadAt {
    /// Writes all of `bytes` at `offset`, which lies in reserved space; an error beyond the length.
    /// Threads may write disjoint ranges at the same time.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// Writes all of `parts`, one behind the other, at `offset`: as one write where that can be.
    fn write_parts_at(&self, parts: &[&[u8]], offset: u64) -> Result<()> {
        match parts {
            [only] => self.write_at(only, offset),
            _ => self.write_at(&parts.concat(), offset),
        }
    }
    /// Looks whether the device still has the length it had; an error where it became shorter.
    /// Called once before a run of writes, for implementations that keep the length.
    fn refresh(&self) -> Result<()> {
        Ok(())
    }
    /// Makes everything written before durable.
    fn sync(&self) -> Result<()>;
    /// Grows the device to `length_bytes` of real space.
    fn reserve(&self, length_bytes: u64) -> Result<()>;
    /// Grows the device to `length_bytes` that need not be real space before they are written; an error where there is
    /// less.
    fn extend(&self, length_bytes: u64) -> Result<()> {
        self.reserve(length_bytes)
    }
    /// Has real space for a range within the length again, where [`Device::discard`] gave it back.
    fn reserve_again(&self, _offset: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }
    /// Gives back the space of a range that nothing needs: what is read there from now on is zeros, or
    /// what it was. Nothing happens where the device cannot do that. Later writes there may find no space.
    fn discard(&self, _offset: u64, _bytes: u64) -> Result<()> {
        Ok(())
    }
    /// Cuts off what lies behind `length_bytes`, and gives its space back; whether it did.
    fn shrink(&self, _length_bytes: u64) -> Result<bool> {
        Ok(false)
    }
    /// Does in the time of a thread of the background what makes later writes cheaper, as long as it may go on.
    fn prepare(&self, _may_go_on: &dyn Fn() -> bool) {}
    /// Bytes that it could still grow by, where that is known.
    fn free_bytes(&self) -> Option<u64> {
        None
    }
}
