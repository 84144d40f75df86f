// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a file that is copied out of: looked at first, opened while its blocks are captured.
//! In from: `session::files`. Out to: `store::capture`.
//! Invariants: what was captured is the file as it was looked at: identity, length and times are the same
//! before its first and after its last byte was read, and a later write has a later time.

use super::layout::{FileMap, stretches};
use super::{check_regular, of_program};
use crate::region::Source;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::holes::data_of_known;
use backstay_base::io::open::above_standard;
use backstay_format::limits::FILE_MODE_MAX;
use backstay_format::{StoredFile, Stretch};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

/// File systems stamp what is written with a clock that ticks: at most so rarely.
const TICK_MAX: Duration = Duration::from_millis(20);

/// What a file is stored as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAs {
    /// Its path, or its name in a set.
    pub path: Vec<u8>,
    /// It is of a set of routed files.
    pub routed: bool,
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    device: u64,
    inode: u64,
    length: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Seen {
    /// The time of a change counts also links: those of a routed file are made and taken away while it is captured, by
    /// who routes it, and what is written to it has another time of modification.
    fn of(about: &Stat, routed: bool) -> Self {
        let changed = (
            about.st_ctime,
            i64::try_from(about.st_ctime_nsec).unwrap_or(0),
        );
        Self {
            device: about.st_dev,
            inode: about.st_ino,
            length: u64::try_from(about.st_size).unwrap_or(0),
            modified: (
                about.st_mtime,
                i64::try_from(about.st_mtime_nsec).unwrap_or(0),
            ),
            changed: if routed { (0, 0) } else { changed },
        }
    }
}

/// A file whose blocks are captured.
#[derive(Debug)]
pub struct FileSource {
    path: PathBuf,
    stored: StoredFile,
    map: FileMap,
    seen: Seen,
    opened: RwLock<Option<File>>,
    failure: Mutex<Option<std::io::Error>>,
    has_changed: AtomicBool,
}

impl FileSource {
    /// Looks at the file at `path`, which is captured in blocks of `block_bytes`; `former` is how it was
    /// stored last.
    pub fn look(
        path: &Path,
        stored_as: StoredAs,
        block_bytes: u32,
        former: Option<&StoredFile>,
    ) -> Result<Self> {
        let (file, about) = open(path)?;
        let seen = Seen::of(&about, stored_as.routed);
        let data =
            data_of_known(&file, &about).map_err(|error| of_program("reading", path, error))?;
        let whole = former.map(|former| {
            [Stretch {
                start: 0,
                length: former.length_bytes,
            }]
        });
        let whole = whole.as_ref().map(<[Stretch; 1]>::as_slice);
        let former = former.and_then(|former| former.stretches.as_deref());
        let former = former.or(whole).unwrap_or_default();
        let stored = StoredFile {
            path: stored_as.path,
            routed: stored_as.routed,
            mode: about.st_mode & FILE_MODE_MAX,
            modified_s: seen.modified.0,
            modified_ns: u32::try_from(seen.modified.1).unwrap_or(0),
            length_bytes: seen.length,
            stretches: stretches(seen.length, &data, block_bytes, former),
        };
        Ok(Self {
            path: path.to_owned(),
            map: FileMap::of(&stored),
            stored,
            seen,
            opened: RwLock::new(None),
            failure: Mutex::new(None),
            has_changed: AtomicBool::new(false),
        })
    }

    /// The same, with its bytes in another order; one that has holes stays as it is.
    #[must_use]
    pub fn in_order(mut self, stretches: Vec<Stretch>) -> Self {
        if self.stored.stretches.is_none() {
            self.stored.stretches = Some(stretches);
            self.map = FileMap::of(&self.stored);
        }
        self
    }

    /// What it is, beside its bytes.
    pub fn stored(&self) -> &StoredFile {
        &self.stored
    }

    /// Whether it changed since it was looked at, so that looking again may help.
    pub fn has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed)
    }

    fn changed(&self) -> Error {
        self.has_changed.store(true, Ordering::Relaxed);
        let context = format!(
            "{} was written while it was captured: nobody may write a protected file during a checkpoint",
            self.path.display()
        );
        Error::new(ErrorKind::InvalidArgument, context)
    }
}

/// Waits until whatever is written to `files` from now on has another time than they have now.
pub fn await_tick<'a>(files: impl Iterator<Item = &'a FileSource>) {
    let newest = files.map(|file| file.seen.modified.max(file.seen.changed));
    let Some(newest) = newest.max() else {
        return;
    };
    let mut waited = Duration::ZERO;
    let now = || {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::RealtimeCoarse);
        (tv_sec, tv_nsec)
    };
    // A time that is ahead of this clock is another clock's.
    while newest >= now() && waited < TICK_MAX {
        let step = Duration::from_millis(1);
        std::thread::sleep(step);
        waited += step;
    }
}

fn open(path: &Path) -> Result<(File, Stat)> {
    let failed = |error: Errno| match error {
        Errno::NOENT => {
            let context = format!(
                "{} is not there: write it before the checkpoint, or unprotect it",
                path.display()
            );
            Error::new(ErrorKind::InvalidArgument, context)
        }
        error => of_program("opening", path, error.into()),
    };
    // Not even opened is what is no file: a pipe would wait, a device act.
    check_regular(path, &rustix::fs::lstat(path).map_err(failed)?)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = above_standard(|| Ok(rustix::fs::open(path, flags, Mode::empty())?));
    let file = opened.map_err(|error| of_program("opening", path, error))?;
    let about = rustix::fs::fstat(&file).map_err(failed)?;
    check_regular(path, &about)?;
    Ok((File::from(file), about))
}

impl Source for FileSource {
    fn length_bytes(&self) -> u64 {
        self.map.stored_bytes()
    }

    fn begin(&self) -> Result<()> {
        let (file, about) = open(&self.path)?;
        if Seen::of(&about, self.stored.routed) != self.seen {
            return Err(self.changed());
        }
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(())
    }

    fn copy_out(&self, offset: u64, buffer: &mut [u8]) {
        let opened = self.opened.read().unwrap_or_else(PoisonError::into_inner);
        let read = match &*opened {
            Some(file) => self.map.pieces(offset, buffer.len(), &mut |start, bytes| {
                file.read_exact_at(&mut buffer[bytes], start)
            }),
            None => Err(std::io::Error::other("it is not open")),
        };
        if let Err(error) = read {
            // Told at the end, and nothing of it is kept.
            buffer.fill(0);
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(error);
        }
    }

    fn end(&self) -> Result<()> {
        let opened = self
            .opened
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        match failure.take() {
            Some(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(self.changed());
            }
            Some(error) => return Err(of_program("reading", &self.path, error)),
            None => {}
        }
        let about = opened.map(|file| rustix::fs::fstat(&file));
        match about {
            Some(Ok(about)) if Seen::of(&about, self.stored.routed) == self.seen => Ok(()),
            Some(Err(error)) => Err(of_program("looking at", &self.path, error.into())),
            Some(Ok(_)) | None => Err(self.changed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(path: &Path) -> Result<FileSource> {
        let stored_as = StoredAs {
            path: b"name".to_vec(),
            routed: false,
        };
        FileSource::look(path, stored_as, 4096, None)
    }

    #[test]
    fn a_file_that_changes_while_it_is_copied_out_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let write = |byte: u8, length: usize| std::fs::write(&path, vec![byte; length]).unwrap();
        let mut buffer = vec![0; 4096];
        // Nothing happens; the same bytes are written; it is shorter; it is another file; it is gone.
        for (change, fails_in_the_middle) in
            [(0, false), (1, false), (2, true), (3, false), (4, false)]
        {
            write(1, 20_000);
            let source = look(&path).unwrap();
            await_tick(std::iter::once(&source));
            source.begin().unwrap();
            source.copy_out(0, &mut buffer);
            assert!(buffer.iter().all(|&byte| byte == 1));
            match change {
                1 => write(1, 20_000),
                2 => write(1, 10),
                3 => {
                    std::fs::write(folder.path().join("other"), vec![2; 20_000]).unwrap();
                    std::fs::rename(folder.path().join("other"), &path).unwrap();
                }
                4 => std::fs::remove_file(&path).unwrap(),
                _ => {}
            }
            source.copy_out(8192, &mut buffer);
            let expected = u8::from(!fails_in_the_middle);
            assert!(buffer.iter().all(|&byte| byte == expected), "{change}");
            let outcome = source.end();
            // What replaced it is another file: this one was copied out whole. Its links are counted.
            assert_eq!(outcome.is_err(), change != 0, "{change}");
            assert_eq!(source.has_changed(), change != 0, "{change}");
        }
    }

    #[test]
    fn links_to_a_routed_file_come_and_go_while_it_is_copied_out() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        for (routed, writes) in [(true, false), (true, true), (false, false)] {
            std::fs::write(&path, b"one").unwrap();
            let stored_as = StoredAs {
                path: b"name".to_vec(),
                routed,
            };
            let source = FileSource::look(&path, stored_as, 4096, None).unwrap();
            await_tick(std::iter::once(&source));
            source.begin().unwrap();
            std::fs::hard_link(&path, &other).unwrap();
            if writes {
                std::fs::write(&path, b"two").unwrap();
            }
            std::fs::remove_file(&other).unwrap();
            let is_same = source.end().is_ok();
            assert_eq!(is_same, routed && !writes, "{routed} {writes}");
        }
    }

    #[test]
    fn what_is_not_as_it_was_looked_at_is_not_begun() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"one").unwrap();
        let source = look(&path).unwrap();
        await_tick(std::iter::once(&source));
        std::fs::write(&path, b"two").unwrap();
        assert!(source.begin().is_err() && source.has_changed());
        let source = look(&path).unwrap();
        source.begin().unwrap();
        source.end().unwrap();
    }
}
