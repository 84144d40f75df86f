// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: files that are part of the checkpoint, beside the variables.
//! In from: the program (paths, names). Out to: `session::checkpoint` (parts), `session::restore`.
//! Invariants: a file is a variable of bytes of its rank, whose descriptor says what else it is; no bytes of
//! it are mapped; what is captured is one state of it; a path is given the file that was stored only when all
//! ranks have read theirs, by a rename.
//!
//! Two ways to name files come to the same. `protect_file` names a file that stays where it is, and is
//! captured by each checkpoint (here, `captured`, `restored`). `output_start`, `route_file` and
//! `output_complete` make a set: the program writes files of any names in a folder in the memory of the
//! node, and the set is captured by the checkpoint that completes it (`routed`). The set's files are
//! variables by the order in which they were routed, not by their names: programs put the step into names,
//! and what did not change from step to step is stored once.

mod captured;
mod restored;
mod routed;

pub use restored::FileEntry;
pub(super) use restored::RestoredFiles;
pub(super) use routed::forget_files;

use super::Session;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::limits::{FILE_PATH_BYTES_MAX, NAME_BYTES_MAX};
use backstay_format::{StoredFile, VariableDescriptor};
use backstay_store::file::check_place;
use routed::FileSet;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The files of a session.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// By name, those that stay where they are.
    protected: BTreeMap<String, ProtectedFile>,
    /// The set that is being written, or read.
    set: Option<FileSet>,
    /// As they were captured or restored last, by the names of their variables.
    last: BTreeMap<String, VariableDescriptor>,
}

/// A file that stays where it is.
#[derive(Debug)]
struct ProtectedFile {
    path: PathBuf,
    /// It was looked whether the program has it open to write.
    was_looked_at: bool,
}

impl Files {
    /// Whether this rank has any that are captured or restored.
    pub(super) fn is_empty(&self) -> bool {
        self.protected.is_empty() && self.set.is_none()
    }

    /// Names of those that are protected, as many as `most`.
    pub(super) fn names(&self, most: usize) -> Vec<&str> {
        let names = self.protected.keys();
        names.take(most).map(String::as_str).collect()
    }

    /// Whether a variable of this rank's stored part is one of them.
    pub(super) fn claims(&self, stored: &VariableDescriptor) -> bool {
        match &stored.file {
            Some(file) if file.routed => self.set.is_some(),
            Some(_) => self.protected.contains_key(&stored.name),
            None => false,
        }
    }

    /// That no file has the name of a variable that is to be protected.
    pub(super) fn check_name(&self, name: &str) -> Result<()> {
        match self.protected.get(name) {
            Some(file) => Err(taken(name, &format!("the file {}", file.path.display()))),
            None => Ok(()),
        }
    }

    /// Takes a file out of the checkpoints to come.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        self.protected.remove(name).is_some()
    }

    /// How a variable was stored last, where it is a file.
    fn stored(&self, name: &str) -> Option<&StoredFile> {
        self.last.get(name)?.file.as_ref()
    }
}

fn taken(name: &str, by: &str) -> Error {
    let context = format!("{name:?} is the name of {by}: unprotect that first, or take another");
    Error::new(ErrorKind::InvalidArgument, context)
}

/// An absolute path that can be one of a protected file.
fn checked(path: &Path) -> Result<PathBuf> {
    let wrong = |what: &str| {
        let shown: String = path.display().to_string().chars().take(80).collect();
        Error::new(ErrorKind::InvalidArgument, format!("{shown:?}: {what}"))
    };
    let length = path.as_os_str().len();
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(wrong("a path has no zero byte"));
    }
    if path.file_name().is_none() || path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(wrong("the path names no file"));
    }
    let absolute = std::path::absolute(path);
    let absolute = absolute.map_err(|error| wrong(&error.to_string()))?;
    if absolute.as_os_str().len() > FILE_PATH_BYTES_MAX {
        let most = format!("the path has {length} bytes, at most {FILE_PATH_BYTES_MAX} can be had");
        return Err(wrong(&most));
    }
    Ok(absolute)
}

impl Session {
    /// Protects the file at `path`: from now on it is part of every checkpoint, and of a restore, beside the
    /// variables, under a name like theirs. It has to be there, and not to be written, during a checkpoint; it
    /// need not be there before a restore. What is in buffers of the program is not in the file: flush them
    /// before a checkpoint. Calling it again for a name gives the file another path. Local.
    ///
    /// Of a path that several ranks protect each keeps its own copy, so they should be the same; it is restored
    /// by one of them.
    pub fn protect_file(&mut self, name: &str, path: impl AsRef<Path>) -> Result<()> {
        self.process.check()?;
        self.capture_announced();
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let context = format!(
                "the name of a file has {} bytes: 1 to {NAME_BYTES_MAX}",
                name.len()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        if self.variables.contains(name) {
            return Err(taken(name, "a variable"));
        }
        let path = checked(path.as_ref())?;
        check_place(&path)?;
        let file = ProtectedFile {
            path,
            was_looked_at: false,
        };
        self.files.protected.insert(name.to_owned(), file);
        self.generation += 1;
        Ok(())
    }
}
