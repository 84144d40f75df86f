// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: 64-bit words that several processes, or several threads in tests, share.
//! Out to: `store::control`.
//! Invariants: only atomic access; the mapping lives as long as the last clone.
#![expect(unsafe_code, reason = "shared memory is mapped here and nowhere else")]

use super::open;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::OpenOptions;
use std::io::Result;
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Shared words; a clone refers to the same ones.
#[derive(Debug, Clone)]
pub struct SharedWords {
    memory: Arc<Memory>,
}

#[derive(Debug)]
enum Memory {
    Heap(Box<[AtomicU64]>),
    Mapped {
        address: *mut AtomicU64,
        count: usize,
        _file: std::fs::File,
    },
}

// SAFETY: the words are only reached as `&AtomicU64`, which is `Send` and `Sync`; the mapping stays
// until the last owner drops it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl SharedWords {
    /// Words of this process only.
    pub fn heap(count: usize) -> Self {
        let words = (0..count).map(|_| AtomicU64::new(0)).collect();
        Self {
            memory: Arc::new(Memory::Heap(words)),
        }
    }

    /// The words in a file. With `fresh`, the file is made anew, all zero, of `count` words; without,
    /// all its words are mapped. The file holds a shared lock (flock) until the words are dropped.
    pub fn map(path: &Path, fresh: Option<usize>) -> Result<Self> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(fresh.is_some())
            .truncate(false)
            .mode(0o600);
        let file = open::open(&options, path)?;
        if !super::lock::share(&file)? {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        if let Some(count) = fresh {
            let bytes = backstay_format::width::to_u64(count * size_of::<AtomicU64>());
            open::check_file_size(bytes)?;
            file.set_len(0)?;
            file.set_len(bytes)?;
        }
        let bytes = backstay_format::width::to_usize(file.metadata()?.len());
        let count = bytes / size_of::<AtomicU64>();
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new shared mapping of a file we keep open; no address is asked for.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let address = address.cast();
        Ok(Self {
            memory: Arc::new(Memory::Mapped {
                address,
                count,
                _file: file,
            }),
        })
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        match &*self.memory {
            Memory::Heap(words) => words,
            Memory::Mapped { address, count, .. } => {
                // SAFETY: `count` words were mapped at `address`, page-aligned, and stay mapped as
                // long as `self.memory`; every bit pattern is an `AtomicU64`.
                unsafe { std::slice::from_raw_parts(*address, *count) }
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Mapped { address, count, .. } = self {
            // SAFETY: the mapping made in `map`, unmapped once, by its last owner.
            let unmapped = unsafe { munmap(address.cast(), *count * size_of::<AtomicU64>()) };
            debug_assert!(unmapped.is_ok());
        }
    }
}
