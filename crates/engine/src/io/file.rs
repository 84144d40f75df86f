// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a device that is a file on a local or parallel file system.
//! In from: `store`. Out to: the kernel, by positioned reads and writes.
//! Invariants: opened once and kept open; a write outside the reserved length is refused.

use super::Device;
use rustix::fs::{FallocateFlags, fallocate, fdatasync, fstat, fstatfs};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// A file as a device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    memory: bool,
}

impl FileDevice {
    /// Opens a file for reading and writing, readable by its owner only; makes it where asked to.
    pub fn open(path: &Path, create: bool) -> Result<Self> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .mode(0o600);
        Self::from_file(options.open(path)?, path)
    }

    /// Opens a file for reading only.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        Self::from_file(File::open(path)?, path)
    }

    fn from_file(file: File, path: &Path) -> Result<Self> {
        let memory = fstatfs(&file)?.f_type == TMPFS_MAGIC;
        Ok(Self {
            file,
            path: path.to_owned(),
            memory,
        })
    }
}

impl Device for FileDevice {
    fn length_bytes(&self) -> Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn sync(&self) -> Result<()> {
        Ok(fdatasync(&self.file)?)
    }

    fn reserve(&self, length_bytes: u64) -> Result<()> {
        let length = self.length_bytes()?;
        if length_bytes < length {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a device never shrinks",
            ));
        }
        fallocate(&self.file, FallocateFlags::empty(), 0, length_bytes)?;
        Ok(())
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let blocks = u64::try_from(fstat(&self.file)?.st_blocks).unwrap_or(0);
        Ok(blocks * 512)
    }

    fn is_memory(&self) -> bool {
        self.memory
    }
}
