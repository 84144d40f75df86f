// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a protected file as something to copy out of and into, as `region` is memory.
//! In from: `session::files` (paths). Out to: `store::capture` (copy out), `session`, `inspect` (copy in).
//! Invariants: files are read and written by position and never mapped, so one that becomes shorter is an
//! error; one that changes while it is copied out is noticed; a file is written beside its path, and takes
//! it by a rename, whole.
//! Format: docs/format/store.md, section "Files".

mod layout;
mod sink;
mod source;

pub use layout::{FileMap, FilePlaces};
pub use sink::{Beside, FileSink, check_below, is_beside};
pub use source::{FileSource, StoredAs, await_tick};

use backstay_base::error::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Stat};
use std::path::Path;

/// The folder beside a store that has the routed files of its ranks, in a folder each.
pub const FILES_FOLDER: &str = "files";

/// That `about` is of a regular file: nothing else can be protected, or has its path taken.
fn check_regular(path: &Path, about: &Stat) -> Result<()> {
    let what = match FileType::from_raw_mode(about.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Symlink => "a symbolic link: name the file that it leads to",
        FileType::Directory => "a folder: name its files one by one",
        _ => "no regular file",
    };
    let context = format!("{} is {what}", path.display());
    Err(Error::new(ErrorKind::InvalidArgument, context))
}

/// That a file may be put at `path`: nothing is there, or a regular file.
pub fn check_place(path: &Path) -> Result<()> {
    match rustix::fs::lstat(path) {
        Ok(about) => check_regular(path, &about),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(of_program("looking at", path, error.into())),
    }
}

/// A file of the program's that cannot be used: what is stored is not concerned, so it is no error of the
/// store, unless there is no space.
fn of_program(doing: &str, path: &Path, error: std::io::Error) -> Error {
    let what = format!("{doing} {}", path.display());
    match Error::io(&*what, error) {
        full if full.kind() == ErrorKind::StoreFull => full,
        other => other.as_kind(ErrorKind::InvalidArgument),
    }
}
