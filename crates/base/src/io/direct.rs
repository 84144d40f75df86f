// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a file on shared storage as a device: read past the page cache (`O_DIRECT`), because what
//! another host wrote may be stale there; written by plain writes, or past the page cache too.
//! In from: `archive`. Out to: the kernel, by positioned reads and writes of one open file.
//! Invariants: opened once and kept open, by a second descriptor only where both ways are used; the file is
//! made once and never renamed; memory and offsets of direct reads and writes are multiples of 4096.

use super::fault::{self, Access};
use super::{Device, ReadAt, open};
use backstay_format::width::{to_u64, to_usize};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fdatasync};
use rustix::io::{Errno, pwritev};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What memory, offsets and lengths of direct reads and writes are multiples of.
pub const ALIGNMENT: usize = 4096;
/// Most bytes that one direct read takes through the buffer.
const BOUNCE_BYTES: usize = 1 << 20;
/// Most parts of one write.
const PARTS_MAX: usize = 1024;

/// Bytes whose first one stands at a multiple of [`ALIGNMENT`] in memory.
pub struct AlignedBytes {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBytes {
    /// So many zeros.
    pub fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self {
            bytes,
            start,
            length,
        }
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

impl std::fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBytes({})", self.length)
    }
}

fn is_aligned(bytes: &[u8], offset: u64) -> bool {
    bytes.as_ptr().align_offset(ALIGNMENT) == 0
        && bytes.len().is_multiple_of(ALIGNMENT)
        && offset.is_multiple_of(to_u64(ALIGNMENT))
}

/// A file on shared storage.
#[derive(Debug)]
pub struct SharedFile {
    path: PathBuf,
    /// For all that does not go past the page cache; of a file that is only read past it, for that.
    file: File,
    is_direct: bool,
    /// For what goes past the page cache, where the file system has that.
    direct: Option<File>,
}

impl SharedFile {
    /// Opens a file for reading only. Where the file system cannot read past the page cache, it is read
    /// plainly.
    pub fn open_read_only(path: &Path, direct: bool) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true);
        let opened = open_direct(&options, path, direct)?;
        let is_direct = opened.is_some();
        let file = opened.map_or_else(|| open::open_read(path), Ok)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            is_direct,
            direct: None,
        })
    }

    /// Whether what is aligned goes past the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct || self.direct.is_some()
    }

    /// What tells it from every other file: its file system, and its number there.
    pub fn identity(&self) -> Result<(u64, u64)> {
        let found = self.file.metadata()?;
        Ok((found.dev(), found.ino()))
    }

    /// Makes a file, which must not be there, readable by its owner only; `layout` is called before it
    /// gets a size.
    pub fn create(
        path: &Path,
        direct: bool,
        layout: impl FnOnce(&File) -> Result<()>,
    ) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let made = open::open(&options, path)?;
        layout(&made)?;
        drop(made);
        Self::open(path, direct)
    }

    /// Opens a file for reading and writing.
    pub fn open(path: &Path, direct: bool) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        Ok(Self {
            path: path.to_owned(),
            file: open::open(&options, path)?,
            is_direct: false,
            direct: open_direct(&options, path, direct)?,
        })
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        open::check_file_size(offset.saturating_add(to_u64(bytes.len())))?;
        match &self.direct {
            Some(file) if is_aligned(bytes, offset) => file.write_all_at(bytes, offset),
            _ => self.file.write_all_at(bytes, offset),
        }
    }

    /// What the file system says of the file.
    pub fn about(&self) -> Result<std::fs::Metadata> {
        self.file.metadata()
    }

    fn read_direct(file: &File, buffer: &mut [u8], offset: u64) -> Result<()> {
        if is_aligned(buffer, offset) {
            return file.read_exact_at(buffer, offset);
        }
        let mut done = 0;
        let mut bounce = AlignedBytes::new(BOUNCE_BYTES.min(buffer.len() + 2 * ALIGNMENT));
        let room = bounce.len() / ALIGNMENT * ALIGNMENT;
        while done < buffer.len() {
            let at = offset + to_u64(done);
            let front = to_usize(at % to_u64(ALIGNMENT));
            let wanted = (front + buffer.len() - done).next_multiple_of(ALIGNMENT);
            let bytes = &mut bounce[..wanted.min(room)];
            let count = read_some(file, bytes, at - to_u64(front))?;
            let got = count.saturating_sub(front).min(buffer.len() - done);
            if got == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            buffer[done..done + got].copy_from_slice(&bytes[front..front + got]);
            done += got;
        }
        Ok(())
    }
}

/// One read.
fn read_some(file: &File, bytes: &mut [u8], offset: u64) -> Result<usize> {
    again_after_signals(|| file.read_at(bytes, offset))
}

fn again_after_signals<T>(mut what: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match what() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Whether large aligned writes to `folder` are best past the page cache: not where a client of a network
/// file system, or a program, gathers them, which then is faster than its direct writes.
pub fn writes_pay(folder: &Path) -> bool {
    // From linux/magic.h.
    const CEPH: u64 = 0x00c3_6400;
    const FUSE: u64 = 0x6573_5546;
    const NFS: u64 = 0x6969;
    const TMPFS: u64 = 0x0102_1994;
    let found = rustix::fs::statfs(folder);
    let kind = found.map(|found| u64::try_from(found.f_type));
    !matches!(kind, Ok(Ok(CEPH | FUSE | NFS | TMPFS)))
}

/// The file opened for direct access; `None` where it is not asked for, or not to be had.
fn open_direct(options: &OpenOptions, path: &Path, wanted: bool) -> Result<Option<File>> {
    if !wanted {
        return Ok(None);
    }
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    match open::open(options.clone().custom_flags(flags), path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the file system did it: some cannot.
fn or_not_possible(done: rustix::io::Result<()>) -> Result<bool> {
    match done {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        done => Ok(done.map(|()| true)?),
    }
}

impl ReadAt for SharedFile {
    fn length_bytes(&self) -> Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let _under_way = fault::check(&self.path, Access::Read, offset, to_u64(buffer.len()))?;
        match &self.direct {
            Some(file) => Self::read_direct(file, buffer, offset),
            None if self.is_direct => Self::read_direct(&self.file, buffer, offset),
            None => self.file.read_exact_at(buffer, offset),
        }
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

impl Device for SharedFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let (count, end, _under_way) = fault::cut_short(&self.path, offset, bytes.len());
        self.write(&bytes[..count], offset).and(end)
    }

    fn write_parts_at(&self, parts: &[&[u8]], mut offset: u64) -> Result<()> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        open::check_file_size(offset.saturating_add(to_u64(length)))?;
        let (count, end, _under_way) = fault::cut_short(&self.path, offset, length);
        if let Err(error) = end {
            let part = parts.concat();
            return self.write(&part[..count], offset).and(Err(error));
        }
        let aligned = |part: &&[u8]| is_aligned(part, offset);
        let file = match &self.direct {
            Some(file) if parts.iter().all(aligned) => file,
            _ => &self.file,
        };
        for some in parts.chunks(PARTS_MAX) {
            let slices: Vec<IoSlice<'_>> = some.iter().map(|part| IoSlice::new(part)).collect();
            let mut written = again_after_signals(|| Ok(pwritev(file, &slices, offset)?))?;
            for part in some {
                // What a short write left out.
                if written < part.len() {
                    file.write_all_at(&part[written..], offset + to_u64(written))?;
                }
                written = written.saturating_sub(part.len());
                offset += to_u64(part.len());
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let _under_way = fault::check(&self.path, Access::Sync, 0, 0)?;
        Ok(fdatasync(&self.file)?)
    }

    /// Blocks are reserved where the file system does that cheaply; elsewhere only the length is set,
    /// and a write may find the file system full.
    fn reserve(&self, length_bytes: u64) -> Result<()> {
        let length = self.length_bytes()?;
        if length_bytes < length {
            let text = "a device never shrinks";
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        let _under_way = fault::check(&self.path, Access::Reserve, 0, length_bytes)?;
        open::check_file_size(length_bytes)?;
        if length_bytes == length {
            return Ok(());
        }
        // From its end on: what was discarded before it stays so.
        let flags = FallocateFlags::empty();
        match fallocate(&self.file, flags, length, length_bytes - length) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.file.set_len(length_bytes),
            done => Ok(done?),
        }
    }

    fn reserve_again(&self, offset: u64, bytes: u64) -> Result<()> {
        let _under_way = fault::check(&self.path, Access::Reserve, offset, bytes)?;
        let flags = FallocateFlags::KEEP_SIZE;
        or_not_possible(fallocate(&self.file, flags, offset, bytes)).map(drop)
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        or_not_possible(fallocate(&self.file, flags, offset, bytes)).map(drop)
    }

    fn shrink(&self, length_bytes: u64) -> Result<bool> {
        if length_bytes > self.length_bytes()? {
            return Ok(false);
        }
        self.file.set_len(length_bytes).map(|()| true)
    }

    fn free_bytes(&self) -> Option<u64> {
        let numbers = rustix::fs::fstatvfs(&self.file).ok()?;
        Some(numbers.f_bavail.saturating_mul(numbers.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(length: usize) -> Vec<u8> {
        let step = |index: usize| u8::try_from(index % 251).unwrap();
        (0..length).map(step).collect()
    }

    #[test]
    fn what_one_handle_writes_another_reads_at_every_offset() {
        let folder = tempfile::tempdir().unwrap();
        for direct in [false, true] {
            let path = folder.path().join(format!("file {direct}"));
            let mut laid_out = false;
            let layout = |_: &File| {
                laid_out = true;
                Ok(())
            };
            let file = SharedFile::create(&path, direct, layout).unwrap();
            assert!(laid_out);
            assert!(SharedFile::create(&path, direct, |_| Ok(())).is_err());
            file.reserve(3 << 20).unwrap();
            let bytes = pattern((3 << 20) - 77);
            let mut aligned = AlignedBytes::new(1 << 20);
            aligned.copy_from_slice(&bytes[..1 << 20]);
            file.write_at(&aligned, 0).unwrap();
            file.write_at(&bytes[1 << 20..], 1 << 20).unwrap();
            file.sync().unwrap();
            let other = SharedFile::open_read_only(&path, true).unwrap();
            let places = [
                (0, 1),
                (1, 4095),
                (4095, 2),
                (5000, 1 << 20),
                (100, 2 << 20),
                (0, 4096),
            ];
            for (offset, length) in places {
                for reader in [&file, &other] {
                    let mut found = vec![0; length];
                    reader.read_at(&mut found, to_u64(offset)).unwrap();
                    assert!(found == bytes[offset..offset + length], "{offset} {length}");
                }
            }
            let mut whole = AlignedBytes::new(8192);
            other.read_at(&mut whole, 4096).unwrap();
            assert!(*whole == bytes[4096..4096 + 8192]);
            let beyond = other.read_at(&mut [0; 10], (3 << 20) - 5).unwrap_err();
            assert_eq!(beyond.kind(), ErrorKind::UnexpectedEof);
            assert!(other.write_at(&[1], 0).is_err());
            assert!(file.reserve(1 << 20).is_err(), "it never shrinks");
        }
    }

    #[test]
    fn parts_are_written_one_behind_the_other() {
        let folder = tempfile::tempdir().unwrap();
        for direct in [false, true] {
            let path = folder.path().join(format!("file {direct}"));
            let file = SharedFile::create(&path, direct, |_| Ok(())).unwrap();
            let count = PARTS_MAX + 10;
            let mut memory = AlignedBytes::new(count * ALIGNMENT);
            memory.copy_from_slice(&pattern(count * ALIGNMENT));
            let parts: Vec<&[u8]> = memory.chunks(ALIGNMENT).collect();
            file.write_parts_at(&parts, 8192).unwrap();
            file.write_parts_at(&[b"unaligned", b"", b"parts"], 5)
                .unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert!(bytes[8192..] == *memory);
            assert_eq!(&bytes[5..19], b"unalignedparts");
        }
    }

    #[test]
    fn what_is_given_back_is_free_on_the_disk_and_can_be_had_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = SharedFile::create(&path, false, |_| Ok(())).unwrap();
        file.reserve(8 << 20).unwrap();
        let bytes = pattern(8 << 20);
        file.write_at(&bytes, 0).unwrap();
        file.discard(1 << 20, 2 << 20).unwrap();
        assert!(file.shrink(6 << 20).unwrap());
        assert!(!file.shrink(7 << 20).unwrap(), "it is shorter");
        file.sync().unwrap();
        let length = file.length_bytes().unwrap();
        assert_eq!(
            (length, file.allocated_bytes().unwrap()),
            (6 << 20, 4 << 20)
        );
        let mut found = vec![1; 6 << 20];
        file.read_at(&mut found, 0).unwrap();
        assert!(found[..1 << 20] == bytes[..1 << 20]);
        assert!(found[1 << 20..3 << 20].iter().all(|&byte| byte == 0));
        assert!(found[3 << 20..] == bytes[3 << 20..6 << 20]);
        // Growth leaves the hole alone.
        file.reserve(7 << 20).unwrap();
        assert_eq!(file.allocated_bytes().unwrap(), 5 << 20);
        file.reserve_again(1 << 20, 1 << 20).unwrap();
        assert_eq!(file.allocated_bytes().unwrap(), 6 << 20);
        assert_eq!(file.length_bytes().unwrap(), 7 << 20);
    }

    #[test]
    fn direct_reads_of_a_file_whose_end_is_not_aligned() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, pattern(5000)).unwrap();
        let file = SharedFile::open_read_only(&path, true).unwrap();
        let mut found = vec![0; 4999];
        file.read_at(&mut found, 1).unwrap();
        assert!(found == pattern(5000)[1..]);
        let error = file.read_at(&mut [0; 2], 4999).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}
