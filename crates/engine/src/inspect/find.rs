// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: finds store files at or below a path.
//! Invariants: bounded in depth and in entries; below the given path no symbolic link is followed.

use crate::error::{Error, ErrorKind, Result};
use crate::store::place::{STORE_FILE, default_folders};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Folders below a path that are looked into.
pub const DEPTH_MAX: usize = 4;
/// Most entries looked at below one path.
const ENTRIES_MAX: usize = 1 << 20;

/// The store files at `path`: itself if it is a file, else all of the store's name below it.
pub fn find_stores(path: &Path) -> Result<Vec<PathBuf>> {
    let metadata = std::fs::metadata(path).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            let context = format!("{}: there is no such file or folder", path.display());
            return Error::new(ErrorKind::NoCheckpoint, context);
        }
        Error::io(format!("{}: looking at it", path.display()), error)
    })?;
    if !metadata.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut entries = 0;
    look_into(path, 0, &mut entries, &mut found)
        .map_err(|error| Error::io(format!("{}: reading the folder", path.display()), error))?;
    if !found.is_empty() {
        return Ok(found);
    }
    let context = if entries > ENTRIES_MAX {
        format!(
            "no {STORE_FILE} among the first {ENTRIES_MAX} files below {}; give a folder nearer to it",
            path.display()
        )
    } else {
        format!(
            "no {STORE_FILE} in {} or up to {DEPTH_MAX} folders below it; give a store file, a \
             folder of a node, a job or several jobs (a store is made by a job's first checkpoint)",
            path.display()
        )
    };
    Err(Error::new(ErrorKind::NoCheckpoint, context))
}

/// Fails only for the folder asked for; folders below that cannot be read are passed over.
fn look_into(
    folder: &Path,
    depth: usize,
    entries: &mut usize,
    found: &mut Vec<PathBuf>,
) -> std::io::Result<()> {
    let mut inside = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        *entries += 1;
        if *entries > ENTRIES_MAX {
            break;
        }
        let kind = entry.file_type()?;
        let is_store = kind.is_file() && entry.file_name() == STORE_FILE;
        if is_store || (kind.is_dir() && depth < DEPTH_MAX) {
            inside.push((entry.path(), kind.is_dir()));
        }
    }
    inside.sort();
    for (path, is_folder) in inside {
        if !is_folder {
            found.push(path);
        } else if let Err(error) = look_into(&path, depth + 1, entries, found) {
            tracing::debug!("{}: passed over: {error}", path.display());
        }
    }
    Ok(())
}

/// What two names of one file have in common.
pub(super) fn identity(path: &Path) -> (u64, u64, OsString) {
    use std::os::unix::fs::MetadataExt;
    match std::fs::metadata(path) {
        Ok(metadata) => (metadata.dev(), metadata.ino(), OsString::new()),
        Err(_error) => (0, 0, path.as_os_str().to_owned()),
    }
}

/// The folders where this user's jobs keep their stores unless told otherwise, and `store_path` of
/// the environment before them, each once. They need not be there.
pub fn default_places() -> Vec<PathBuf> {
    let named = std::env::var_os("BACKSTAY_STORE_PATH").map(PathBuf::from);
    let mut places: Vec<PathBuf> = Vec::new();
    for place in named.into_iter().chain(default_folders()) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}
