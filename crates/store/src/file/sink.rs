// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a file that is copied into: beside its path, which it takes only when it is whole.
//! In from: `session::files`, `inspect`. Out to: the program's file systems.
//! Invariants: who makes the file beside a path is the only one that writes for it; what is not placed is
//! removed; a link or a folder at the path is not replaced.

use super::layout::FileMap;
use super::{check_place, of_program};
use crate::region::Sink;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::open::{above_standard, check_file_size};
use backstay_format::limits::FILE_MODE_MAX;
use backstay_format::{Digest, StoredFile};
use rustix::fs::{Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const BESIDE: &str = ".backstay-";
/// A page of zeros in a file with holes is left a hole.
const HOLE_BYTES: usize = 4096;

/// A file under another name, in the folder of the path that it is for.
#[derive(Debug)]
pub struct Beside {
    path: PathBuf,
    draft: PathBuf,
    is_placed: bool,
}

impl Beside {
    /// Its path, in words.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It takes its path, at once.
    pub fn place(mut self) -> Result<()> {
        check_place(&self.path)?;
        let renamed = std::fs::rename(&self.draft, &self.path);
        renamed.map_err(|error| of_program("putting in place", &self.path, error))?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if !self.is_placed {
            drop(std::fs::remove_file(&self.draft));
        }
    }
}

/// What stands beside `path` while the restore with this token writes it: a name of its own, of a length
/// that any folder takes.
fn name_beside(path: &Path, token: u64) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    let Digest(digest) = Digest::of(name.as_bytes());
    let sum = digest[..8]
        .iter()
        .fold(0u64, |sum, &byte| (sum << 8) | u64::from(byte));
    path.with_file_name(format!("{BESIDE}{sum:016x}-{token:016x}"))
}

/// Whether `name` is what a restore of `path` left behind that had another token.
pub fn is_beside(name: &std::ffi::OsStr, path: &Path, token: u64) -> bool {
    let own = name_beside(path, token);
    let own = own.file_name().unwrap_or_default().as_bytes();
    let name = name.as_bytes();
    let common = own.len() - 16;
    name.len() == own.len() && name[..common] == own[..common] && name != own
}

/// A file that is being written.
#[derive(Debug)]
pub struct FileSink {
    beside: Beside,
    file: File,
    stored: StoredFile,
    map: FileMap,
    failure: Option<std::io::Error>,
}

impl FileSink {
    /// Begins what `stored` is for `path`; `None` where somebody else with this token has begun it.
    pub fn begin(path: &Path, token: u64, stored: &StoredFile) -> Result<Option<Self>> {
        check_place(path)?;
        if let Some(folder) = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            let made = std::fs::create_dir_all(folder);
            made.map_err(|error| of_program("making", folder, error))?;
        }
        let draft = name_beside(path, token);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |error| of_program("writing beside", path, error);
        check_file_size(stored.length_bytes).map_err(failed)?;
        let mode = Mode::RUSR | Mode::WUSR;
        let opened = above_standard(|| Ok(rustix::fs::open(&draft, flags, mode)?));
        let file = match opened {
            Ok(file) => File::from(file),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let sink = Self {
            beside: Beside {
                path: path.to_owned(),
                draft,
                is_placed: false,
            },
            map: FileMap::of(stored),
            stored: stored.clone(),
            failure: None,
            file,
        };
        // What is not written is a hole.
        let grown = sink.file.set_len(stored.length_bytes);
        grown.map_err(failed)?;
        Ok(Some(sink))
    }

    /// All its bytes are there: mode and time follow.
    pub fn finish(mut self) -> Result<Beside> {
        let path = self.beside.path.clone();
        let failed = |error| of_program("writing beside", &path, error);
        if let Some(error) = self.failure.take() {
            return Err(failed(error));
        }
        let mode = Mode::from_raw_mode(self.stored.mode & FILE_MODE_MAX);
        rustix::fs::fchmod(&self.file, mode).map_err(|error| failed(error.into()))?;
        let time = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: self.stored.modified_s,
                tv_nsec: self.stored.modified_ns.into(),
            },
        };
        rustix::fs::futimens(&self.file, &time).map_err(|error| failed(error.into()))?;
        Ok(self.beside)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        check_file_size(self.stored.length_bytes)?;
        let has_holes = self.stored.stretches.is_some();
        self.map.pieces(offset, bytes.len(), &mut |start, piece| {
            let piece = &bytes[piece];
            if !has_holes {
                return self.file.write_all_at(piece, start);
            }
            let mut at = start;
            for page in piece.chunks(HOLE_BYTES) {
                if page.iter().any(|&byte| byte != 0) {
                    self.file.write_all_at(page, at)?;
                }
                at += backstay_format::width::to_u64(page.len());
            }
            Ok(())
        })
    }
}

impl Sink for FileSink {
    fn copy_in(&mut self, offset: u64, bytes: &[u8]) {
        if self.failure.is_none() {
            self.failure = self.write(offset, bytes).err();
        }
    }
}

/// That nothing is wrong with a name which a file is to be written under below a folder: no way out of it.
pub fn check_below(name: &Path) -> Result<()> {
    use std::path::Component;
    let mut parts = name.components().peekable();
    let is_inside =
        parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)));
    if is_inside {
        return Ok(());
    }
    let context = format!(
        "{} leads out of its folder, or names none of its files",
        name.display()
    );
    Err(Error::new(ErrorKind::InvalidArgument, context))
}
