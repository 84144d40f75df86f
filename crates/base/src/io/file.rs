// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a device that is a file on a local or parallel file system.
//! In from: `store`. Out to: the kernel, by positioned reads and writes; on tmpfs by a mapping.
//! Invariants: opened once and kept open, until a copy takes its place; a write outside the reserved
//! length is refused; a file that became shorter is an error, once noticed, and never grown back by a
//! write.

use super::fault::{self, Access};
use super::mapped::Mapped;
use super::sealed::{Mapping, SealedRange};
use super::{Backing, Device, ReadAt, open};
use backstay_format::width::{to_u64, to_usize};
use rustix::fs::{FallocateFlags, fallocate, fdatasync, fstat, fstatfs};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard};

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// A file as a device.
#[derive(Debug)]
pub struct FileDevice {
    path: PathBuf,
    memory: bool,
    first: Opened,
    /// The length as last looked at.
    length: AtomicU64,
    /// Held by every writer, and alone by who copies the file.
    writing: RwLock<()>,
}

/// An open file, and the copy that took its place. What was lent of it stays valid as long as the device.
#[derive(Debug)]
struct Opened {
    file: File,
    /// Present where writing through a mapping is writing memory.
    mapped: Option<Mapped>,
    next: OnceLock<Box<Self>>,
}

/// Copied at a time when a file is put back.
const COPIED_BYTES: usize = 4 << 20;

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
        let makes = create && !path.exists();
        let mut device = Self::from_file(open::open(&options, path)?, path)?;
        if let (true, Some(folder)) = (makes, path.parent()) {
            // Or a loss of power takes the name away, and all that is synced behind it.
            let here = Path::new(".");
            let named = !folder.as_os_str().is_empty();
            super::sync_folder(if named { folder } else { here })?;
        }
        device.first.mapped = device.memory.then(Mapped::new);
        Ok(device)
    }

    /// Opens a file for reading only.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        Self::from_file(open::open_read(path)?, path)
    }

    fn from_file(file: File, path: &Path) -> Result<Self> {
        let memory = fstatfs(&file)?.f_type == TMPFS_MAGIC;
        let length = AtomicU64::new(file.metadata()?.len());
        Ok(Self {
            path: path.to_owned(),
            memory,
            first: Opened {
                file,
                mapped: None,
                next: OnceLock::new(),
            },
            length,
            writing: RwLock::default(),
        })
    }

    /// The file that is read and written now.
    fn now(&self) -> &Opened {
        let mut opened = &self.first;
        while let Some(next) = opened.next.get() {
            opened = next;
        }
        opened
    }

    /// Whether the open file is what stands at `path`: nobody deleted it, moved it, or put another there.
    pub fn stands_at(&self, path: &Path) -> Result<bool> {
        let found = match std::fs::metadata(path) {
            Ok(found) => found,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let held = self.now().file.metadata()?;
        Ok((held.dev(), held.ino()) == (found.dev(), found.ino()))
    }

    /// Copies the open file to `path`, where nothing is any more that anybody needs, and goes on with the
    /// copy; durable on return. Writers wait meanwhile. The space of the old file is free when the device
    /// is dropped.
    pub fn put_back(&self, path: &Path) -> Result<()> {
        let alone = self.writing.write();
        let beside = path.with_extension("copy");
        drop(std::fs::remove_file(&beside));
        let copied = self.copy_to(&beside).and_then(|()| {
            std::fs::rename(&beside, path)?;
            super::sync_folder(path.parent().unwrap_or(Path::new(".")))
        });
        if copied.is_err() {
            drop(std::fs::remove_file(&beside));
        }
        copied?;
        let followed = self.go_on_with(path);
        drop(alone);
        followed
    }

    fn copy_to(&self, beside: &Path) -> Result<()> {
        let copy = Self::open(beside, true)?;
        let length = self.length_bytes()?;
        copy.reserve(length)?;
        let mut bytes = vec![0; COPIED_BYTES];
        let mut offset = 0;
        while offset < length {
            let count = to_usize((length - offset).min(to_u64(COPIED_BYTES)));
            let bytes = &mut bytes[..count];
            self.read_at(bytes, offset)?;
            // What is reserved is zero already.
            if bytes.iter().any(|&byte| byte != 0) {
                copy.write_at(bytes, offset)?;
            }
            offset += to_u64(count);
        }
        copy.now().file.sync_all()
    }

    /// Goes on with what stands at the device's path, which the node's leader put there.
    pub fn follow(&self) -> Result<()> {
        if self.stands_at(&self.path)? {
            return Ok(());
        }
        self.go_on_with(&self.path)
    }

    fn go_on_with(&self, path: &Path) -> Result<()> {
        let Self {
            first,
            memory,
            length,
            ..
        } = Self::open(path, false)?;
        if length.into_inner() < self.length.load(Ordering::Acquire) || memory != self.memory {
            let text = "what stands there is no copy of the file that was open";
            return Err(Error::new(ErrorKind::InvalidData, text));
        }
        drop(self.now().next.set(Box::new(first)));
        Ok(())
    }

    fn writer(&self) -> RwLockReadGuard<'_, ()> {
        self.writing.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// By the file's own write, which a limit of this process may forbid also within the reserved length.
    fn write_file(&self, bytes: &[u8], offset: u64) -> Result<()> {
        open::check_file_size(offset.saturating_add(to_u64(bytes.len())))?;
        self.now().file.write_all_at(bytes, offset)
    }

    /// Writes what lies within the device.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let opened = self.now();
        let Some(mapped) = &opened.mapped else {
            return self.write_file(bytes, offset);
        };
        let length = self.length.load(Ordering::Acquire);
        let (mut done, mut is_limited) = (0, false);
        loop {
            let at = offset + to_u64(done);
            done += mapped.write(&opened.file, &bytes[done..], at, length, is_limited);
            if done == bytes.len() {
                return Ok(());
            }
            let at = offset + to_u64(done);
            let first = mapped.first(&opened.file, at, bytes.len() - done);
            if first == 0 || is_limited {
                break;
            }
            // Where this process may not write, its mapping may.
            is_limited = open::check_file_size(at + to_u64(first)).is_err();
            if is_limited {
                continue;
            }
            // A write of a file that became shorter would make it longer.
            self.refresh()?;
            self.write_file(&bytes[done..done + first], at)?;
            done += first;
        }
        // The window could not be populated: the file became shorter, or the file system is full,
        // or there is no mapping here. The file's own write says which.
        self.refresh()?;
        self.write_file(&bytes[done..], offset + to_u64(done))
    }

    /// That a write up to `end` stays within the device, which another process may have grown.
    fn check_end(&self, end: u64) -> Result<()> {
        if end > self.length.load(Ordering::Acquire) {
            self.refresh()?;
        }
        let length = self.length.load(Ordering::Acquire);
        if end > length {
            let text = format!("a write ends at byte {end} of a device of {length} bytes");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        Ok(())
    }
}

impl ReadAt for FileDevice {
    fn length_bytes(&self) -> Result<u64> {
        Ok(self.now().file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let _under_way = fault::check(&self.path, Access::Read, offset, to_u64(buffer.len()))?;
        self.now().file.read_exact_at(buffer, offset)
    }

    fn lend(&self, range: SealedRange) -> Option<&[u8]> {
        let (offset, length) = (range.offset(), range.length());
        let opened = self.now();
        let mapped = opened.mapped.as_ref()?;
        self.check_end(offset.checked_add(to_u64(length))?).ok()?;
        let end = self.length.load(Ordering::Acquire);
        mapped.lend(&opened.file, offset, length, end)
    }

    fn mapping(&self, lent: &[u8]) -> Option<Mapping> {
        let length = self.length.load(Ordering::Acquire);
        self.now().mapped.as_ref()?.mapping(lent, length)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn allocated_bytes(&self) -> Result<u64> {
        let blocks = u64::try_from(fstat(&self.now().file)?.st_blocks).unwrap_or(0);
        Ok(blocks * 512)
    }

    fn is_memory(&self) -> bool {
        self.memory
    }

    fn backing(&self) -> Option<Backing<'_>> {
        Some(Backing {
            file: &self.now().file,
            path: &self.path,
        })
    }
}

impl Device for FileDevice {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let _writer = self.writer();
        self.check_end(offset.saturating_add(to_u64(bytes.len())))?;
        let (count, end, _under_way) = fault::cut_short(&self.path, offset, bytes.len());
        self.write(&bytes[..count], offset).and(end)
    }

    fn refresh(&self) -> Result<()> {
        // In this order: a thread of this process may have it grow meanwhile.
        let before = self.length.load(Ordering::Acquire);
        let length = self.length_bytes()?;
        if length >= before {
            self.length.fetch_max(length, Ordering::AcqRel);
            return Ok(());
        }
        if let Some(mapped) = &self.now().mapped {
            mapped.shortened_to(length);
        }
        let text = format!("the file was cut from {before} to {length} bytes by someone else");
        Err(Error::new(ErrorKind::UnexpectedEof, text))
    }

    fn sync(&self) -> Result<()> {
        let _under_way = fault::check(&self.path, Access::Sync, 0, 0)?;
        Ok(fdatasync(&self.now().file)?)
    }

    fn reserve(&self, length_bytes: u64) -> Result<()> {
        let _writer = self.writer();
        let length = self.length_bytes()?;
        if length_bytes < length {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a device never shrinks",
            ));
        }
        let _under_way = fault::check(&self.path, Access::Reserve, 0, length_bytes)?;
        open::check_file_size(length_bytes)?;
        // Looking through what is real already takes time of its own.
        let is_real = self.allocated_bytes()? >= length;
        let from = if is_real { length } else { 0 };
        if from < length_bytes {
            let file = &self.now().file;
            fallocate(file, FallocateFlags::empty(), from, length_bytes - from)?;
        }
        self.length.fetch_max(length_bytes, Ordering::AcqRel);
        Ok(())
    }

    fn extend(&self, length_bytes: u64) -> Result<()> {
        let more = length_bytes.saturating_sub(self.allocated_bytes()?);
        // What no page is there for is found when it is written: as an error, also through the mapping.
        if !self.memory || self.free_bytes().is_none_or(|free| free < more) {
            return self.reserve(length_bytes);
        }
        let _writer = self.writer();
        let _under_way = fault::check(&self.path, Access::Reserve, 0, length_bytes)?;
        open::check_file_size(length_bytes)?;
        if length_bytes > self.length_bytes()? {
            self.now().file.set_len(length_bytes)?;
        }
        self.length.fetch_max(length_bytes, Ordering::AcqRel);
        Ok(())
    }

    fn prepare(&self, may_go_on: &dyn Fn() -> bool) {
        if let Some(mapped) = &self.now().mapped {
            mapped.prepare(self.length.load(Ordering::Acquire), may_go_on);
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        let numbers = rustix::fs::fstatvfs(&self.now().file).ok()?;
        Some(numbers.f_bavail.saturating_mul(numbers.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// A folder on a memory file system, where there is one.
    fn memory_folder() -> Option<tempfile::TempDir> {
        let statfs = rustix::fs::statfs("/dev/shm").ok()?;
        let folder = (statfs.f_type == TMPFS_MAGIC).then(|| tempfile::tempdir_in("/dev/shm"))?;
        folder.ok()
    }

    fn folders() -> Vec<tempfile::TempDir> {
        let disk = tempfile::tempdir().unwrap();
        memory_folder().into_iter().chain([disk]).collect()
    }

    #[expect(unsafe_code, reason = "nobody writes what these tests borrow")]
    fn sealed(offset: u64, length: usize) -> SealedRange {
        // SAFETY: the test writes nothing while it looks at what it borrowed.
        unsafe { SealedRange::vouch(offset, length) }
    }

    fn pattern(length: usize, seed: u8) -> Vec<u8> {
        let step = |index: usize| u8::try_from(index % 251).unwrap().wrapping_mul(seed | 1);
        (0..length).map(step).collect()
    }

    #[test]
    fn what_is_lent_is_what_was_written() {
        for folder in folders() {
            let device = FileDevice::open(&folder.path().join("a file"), true).unwrap();
            device.reserve(9 << 20).unwrap();
            let bytes = pattern(5 << 20, 7);
            device.write_at(&bytes, 3 << 20).unwrap();
            let lent = device.lend(sealed(3 << 20, bytes.len()));
            assert_eq!(lent.is_some(), device.is_memory());
            assert!(lent.is_none_or(|lent| lent == bytes));
            assert!(
                device.lend(sealed(8 << 20, 2 << 20)).is_none(),
                "beyond the end"
            );
            assert!(device.lend(sealed(u64::MAX, 1)).is_none());
        }
    }

    #[test]
    fn what_is_written_is_read_at_every_size_and_offset() {
        for folder in folders() {
            let device = FileDevice::open(&folder.path().join("a file"), true).unwrap();
            device.reserve((9 << 20) + 123).unwrap();
            let mut expected = vec![0_u8; (9 << 20) + 123];
            let (window, end) = (4_usize << 20, expected.len());
            let places = [
                (0, 1),
                (5, 63),
                (64, 16_384),
                (window - 1, 2),
                (window - 3000, 9000),
                (window + 17, window + 4000),
                (end - 1, 1),
                (end - 5000, 5000),
                (end, 0),
            ];
            for (seed, (offset, length)) in (1_u8..).zip(places) {
                let bytes = pattern(length, seed);
                device.write_at(&bytes, to_u64(offset)).unwrap();
                expected[offset..offset + length].copy_from_slice(&bytes);
            }
            device.sync().unwrap();
            let mut found = vec![0; expected.len()];
            device.read_at(&mut found, 0).unwrap();
            assert!(found == expected);
            assert_eq!(
                std::fs::read(folder.path().join("a file")).unwrap(),
                expected
            );
        }
    }

    #[test]
    fn a_window_is_filled_through_the_file_and_written_again_through_the_mapping() {
        let Some(folder) = memory_folder() else {
            return;
        };
        let device = FileDevice::open(&folder.path().join("store"), true).unwrap();
        device.extend(10 << 20).unwrap();
        assert_eq!(device.allocated_bytes().unwrap(), 0);
        let mapped = device.first.mapped.as_ref().unwrap();
        let is_first = |offset| mapped.first(&device.first.file, offset, 16_384) > 0;
        let (one, two) = (pattern(6 << 20, 3), pattern(6 << 20, 5));
        device.write_at(&one, 0).unwrap();
        assert_eq!(device.allocated_bytes().unwrap(), 6 << 20, "no page more");
        assert!(is_first(0) && is_first(5 << 20));
        device.prepare(&|| false);
        assert!(is_first(0), "it was told to stop");
        device.prepare(&|| true);
        assert!(!is_first(0) && !is_first(5 << 20));
        assert_eq!(
            device.allocated_bytes().unwrap(),
            8 << 20,
            "nothing was written behind"
        );
        device.write_at(&two, 1000).unwrap();
        let mut found = vec![0; 10 << 20];
        device.read_at(&mut found, 0).unwrap();
        assert!(found[..1000] == one[..1000] && found[1000..1000 + two.len()] == two);
        assert!(found[1000 + two.len()..].iter().all(|&byte| byte == 0));
        // Where nobody prepares it, who writes does.
        let last = 8 << 20;
        let times = (0..1000).take_while(|_| mapped.first(&device.first.file, last, 2 << 20) > 0);
        assert!((2..10).contains(&times.count()));
        device.write_at(&one[..2 << 20], last).unwrap();
        device.read_at(&mut found, 0).unwrap();
        assert!(found[8 << 20..] == one[..2 << 20]);
        assert!(device.extend(u64::MAX / 4).is_err());
    }

    #[test]
    fn a_write_beyond_the_end_is_an_error_and_writes_nothing() {
        for folder in folders() {
            let device = FileDevice::open(&folder.path().join("store"), true).unwrap();
            device.reserve(10_000).unwrap();
            for (offset, length) in [(9_999, 2), (10_000, 1), (0, 10_001), (u64::MAX, 4)] {
                let error = device.write_at(&vec![1; length], offset).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            }
            assert_eq!(device.length_bytes().unwrap(), 10_000);
            let mut found = vec![1; 10_000];
            device.read_at(&mut found, 0).unwrap();
            assert!(found.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn it_grows_while_mapped_also_through_another_handle() {
        for folder in folders() {
            let path = folder.path().join("store");
            let device = FileDevice::open(&path, true).unwrap();
            let other = FileDevice::open(&path, false).unwrap();
            let mut length = 5000;
            for round in 0..6 {
                let grower = if round % 2 == 0 { &device } else { &other };
                grower.reserve(length).unwrap();
                let bytes = pattern(5000, round);
                device.write_at(&bytes, length - 5000).unwrap();
                let mut found = vec![0; 5000];
                other.read_at(&mut found, length - 5000).unwrap();
                assert_eq!(found, bytes);
                length = length * 3 + 1;
            }
            assert!(device.reserve(10).is_err());
        }
    }

    #[test]
    fn a_file_that_grows_is_not_taken_for_one_that_was_cut() {
        for folder in folders() {
            let device = FileDevice::open(&folder.path().join("store"), true).unwrap();
            device.reserve(1 << 20).unwrap();
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for length in 257..1500 {
                        device.reserve(length << 12).unwrap();
                    }
                    is_over.store(true, Ordering::Release);
                });
                while !is_over.load(Ordering::Acquire) {
                    device.refresh().unwrap();
                }
            });
        }
    }

    #[test]
    fn a_file_cut_short_is_an_error_and_no_signal() {
        for folder in folders() {
            let path = folder.path().join("store");
            let device = FileDevice::open(&path, true).unwrap();
            device.reserve(16 << 20).unwrap();
            let bytes = pattern(16_384, 3);
            device.write_at(&bytes, 0).unwrap();
            let cutter = OpenOptions::new().write(true).open(&path).unwrap();
            cutter.set_len(6 << 20).unwrap();
            // A window not populated yet, beyond the cut: noticed by itself on tmpfs.
            if device.is_memory() {
                assert!(device.write_at(&bytes, 9 << 20).is_err());
                assert_eq!(cutter.metadata().unwrap().len(), 6 << 20, "a write grew it");
            }
            assert_eq!(
                device.refresh().unwrap_err().kind(),
                ErrorKind::UnexpectedEof
            );
            assert!(device.write_at(&bytes, 17 << 20).is_err());
            // Populated before, cut after: refused once it was looked at.
            cutter.set_len(1000).unwrap();
            assert!(device.refresh().is_err());
            if device.is_memory() {
                assert!(device.write_at(&bytes, 0).is_err());
            }
        }
    }

    #[test]
    fn a_sparse_file_on_a_full_file_system_is_an_error_and_no_signal() {
        // Without the right to mount there is no small file system to fill: nothing to show.
        let Some(folder) = memory_folder() else {
            return;
        };
        let (target, flags) = (folder.path(), rustix::mount::MountFlags::empty());
        let size = Some(c"size=1m");
        if rustix::mount::mount("tmpfs", target, "tmpfs", flags, size).is_err() {
            return;
        }
        let path = target.join("store");
        let device = FileDevice::open(&path, true).unwrap();
        let sparse = OpenOptions::new().write(true).open(&path).unwrap();
        sparse.set_len(8 << 20).unwrap();
        let bytes = pattern(64 << 10, 5);
        let results: Vec<_> = (0..128)
            .map(|number| device.write_at(&bytes, number * (64 << 10)))
            .collect();
        let full = device.reserve(8 << 20);
        drop((device, sparse));
        rustix::mount::unmount(target, rustix::mount::UnmountFlags::DETACH).unwrap();
        let failed: Vec<_> = results
            .into_iter()
            .filter_map(|result| result.err())
            .collect();
        assert!(!failed.is_empty());
        assert!(
            failed
                .iter()
                .all(|error| error.kind() == ErrorKind::StorageFull),
            "{failed:?}"
        );
        assert_eq!(full.unwrap_err().kind(), ErrorKind::StorageFull);
    }

    #[test]
    fn threads_write_disjoint_ranges_at_once() {
        for folder in folders() {
            let device = FileDevice::open(&folder.path().join("store"), true).unwrap();
            let (threads, blocks, size) = (4_u8, 512_u64, 5000_u64);
            device.reserve(u64::from(threads) * blocks * size).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let device = &device;
                    scope.spawn(move || {
                        let bytes = pattern(to_usize(size), thread);
                        for block in 0..blocks {
                            let place = block * u64::from(threads) + u64::from(thread);
                            device.write_at(&bytes, place * size).unwrap();
                        }
                    });
                }
            });
            let mut found = vec![0; to_usize(size)];
            for place in 0..u64::from(threads) * blocks {
                device.read_at(&mut found, place * size).unwrap();
                let thread = u8::try_from(place % u64::from(threads)).unwrap();
                assert!(found == pattern(to_usize(size), thread), "block {place}");
            }
        }
    }

    #[test]
    fn a_device_opened_for_reading_refuses_to_write() {
        for folder in folders() {
            let path = folder.path().join("store");
            FileDevice::open(&path, true)
                .unwrap()
                .reserve(5000)
                .unwrap();
            let device = FileDevice::open_read_only(&path).unwrap();
            assert!(device.write_at(&[1; 10], 0).is_err());
            assert!(device.write_at(&[1; 5000], 0).is_err());
        }
    }

    /// Not a test: prints what the comments in `stream` say. `cargo test --release -- --ignored
    /// --nocapture speed_of_writing`.
    #[test]
    #[ignore = "a measurement, for an idle machine"]
    fn speed_of_writing() {
        let Some(folder) = memory_folder() else {
            return;
        };
        let device = FileDevice::open(&folder.path().join("store"), true).unwrap();
        let plain = OpenOptions::new()
            .write(true)
            .open(folder.path().join("store"))
            .unwrap();
        let total = 256 << 20;
        device.reserve(to_u64(total)).unwrap();
        let source = pattern(total, 7);
        let mut memory = vec![1_u8; total];
        for pass in ["first, populating", "second"] {
            let watch = crate::clock::Stopwatch::start();
            device.write_at(&source, 0).unwrap();
            println!("{pass} pass over 256 MiB: {:.1} ms", watch.seconds() * 1e3);
        }
        for size in [64, 256, 1024, 2048, 4096, 16_384, 65_536, 1 << 20] {
            let scratch = pattern(size, 9);
            let rates = [0, 1, 2, 3].map(|way| {
                let mut times: Vec<f64> = (0..5)
                    .map(|_run| {
                        let watch = crate::clock::Stopwatch::start();
                        for offset in (0..total).step_by(size) {
                            let from = &source[offset..offset + size];
                            match way {
                                0 => memory[offset..offset + size].copy_from_slice(from),
                                1 => plain.write_all_at(&scratch, to_u64(offset)).unwrap(),
                                2 => device.write_at(&scratch, to_u64(offset)).unwrap(),
                                _ => device.write_at(from, to_u64(offset)).unwrap(),
                            }
                        }
                        watch.seconds()
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                268.435_456 / times[2]
            });
            let [copy, file, scratch, cold] = rates;
            println!(
                "{size:>8} B: MB/s memcpy {copy:.0}, pwrite {file:.0}, mapped {scratch:.0}, mapped from memory {cold:.0}"
            );
        }
    }

    #[test]
    fn the_mapping_of_lent_bytes_ends_with_the_file_and_stays_where_it_is() {
        let Some(folder) = memory_folder() else {
            return;
        };
        let file = FileDevice::open(&folder.path().join("file"), true).unwrap();
        file.reserve(5 << 20).unwrap();
        let lent = file.lend(sealed(1 << 20, 1000)).unwrap();
        let first = file.mapping(lent).unwrap();
        assert_eq!(lent.as_ptr().addr() - first.start, 1 << 20);
        assert_eq!(first.length, 5 << 20);
        file.reserve(9 << 20).unwrap();
        let later = file.mapping(lent).unwrap();
        assert_eq!((later.start, later.length), (first.start, 9 << 20));
        assert_eq!(file.mapping(&[0; 8]), None, "memory of others");
    }
}
