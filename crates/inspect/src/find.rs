// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: finds store files, and archives of jobs, at or below a path.
//! Invariants: bounded in depth and in entries; below the given path no symbolic link is followed.

use backstay_archive::FileName;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::geometry::SUPERBLOCK_OFFSETS;
use backstay_store::place::{STORE_FILE, default_folders};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Folders below a path that are looked into.
pub const DEPTH_MAX: usize = 4;
/// Most entries looked at below one path.
const ENTRIES_MAX: usize = 1 << 20;

/// Something that can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// The store file of a node.
    Store(PathBuf),
    /// The folder of a job's archive.
    Archive(PathBuf),
    /// One file of such a folder, by itself.
    ArchiveStore(PathBuf),
}

impl Found {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Store(path) | Self::Archive(path) | Self::ArchiveStore(path) => path,
        }
    }
}

/// What is at `path`: itself if it is a file, else all stores and archives below it.
pub(super) fn find(path: &Path) -> Result<Vec<Found>> {
    let metadata = std::fs::metadata(path).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            let context = format!("{}: there is no such file or folder", path.display());
            return Error::new(ErrorKind::NoCheckpoint, context);
        }
        Error::io(format!("{}: looking at it", path.display()), error)
    })?;
    if !metadata.is_dir() {
        return Ok(vec![what_is(path)]);
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
            "no {STORE_FILE} and no archive among the first {ENTRIES_MAX} files below {}; give a folder \
             nearer to it",
            path.display()
        )
    } else {
        format!(
            "no {STORE_FILE} and no archive in {} or up to {DEPTH_MAX} folders below it; give a store \
             file, a folder of a node, a job or several jobs, or of an archive (they are made by a \
             job's first checkpoint)",
            path.display()
        )
    };
    Err(Error::new(ErrorKind::NoCheckpoint, context))
}

/// By what a file says of itself in either copy of its superblock, else by its name.
fn what_is(path: &Path) -> Found {
    let folder = || match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let magic = |offset| {
        let mut bytes = [0; 8];
        let file = std::fs::File::open(path).ok()?;
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, offset).ok()?;
        Some(bytes)
    };
    let magics = SUPERBLOCK_OFFSETS.map(magic);
    let is = |magic: &[u8; 8]| magics.iter().flatten().any(|found| found == magic);
    let name = path.file_name().unwrap_or_default();
    match archive_file(name) {
        _ if is(b"BKSTSUPR") => Found::Store(path.to_owned()),
        Some(true) => Found::Archive(folder()),
        _ if is(b"BKSTCATL") => Found::Archive(folder()),
        Some(false) => Found::ArchiveStore(path.to_owned()),
        None if is(b"BKSTARCH") => Found::ArchiveStore(path.to_owned()),
        None => Found::Store(path.to_owned()),
    }
}

/// Whether a name is one of an archive's files: `Some(true)` of a catalog, `Some(false)` of a store.
pub(super) fn archive_file(name: &OsStr) -> Option<bool> {
    let found = FileName::of(name.to_str()?)?;
    Some(matches!(found, FileName::Catalog { .. }))
}

/// Fails only for the folder asked for; folders below that cannot be read are passed over.
fn look_into(
    folder: &Path,
    depth: usize,
    entries: &mut usize,
    found: &mut Vec<Found>,
) -> std::io::Result<()> {
    let mut inside = Vec::new();
    let mut is_archive = false;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        *entries += 1;
        if *entries > ENTRIES_MAX {
            break;
        }
        let kind = entry.file_type()?;
        is_archive |= kind.is_file() && archive_file(&entry.file_name()).is_some();
        let is_store = kind.is_file() && entry.file_name() == STORE_FILE;
        if is_store || (kind.is_dir() && depth < DEPTH_MAX) {
            inside.push((entry.path(), kind.is_dir()));
        }
    }
    if is_archive {
        found.push(Found::Archive(folder.to_owned()));
    }
    inside.sort();
    for (path, is_folder) in inside {
        if !is_folder {
            found.push(Found::Store(path));
        } else if let Err(error) = look_into(&path, depth + 1, entries, found) {
            tracing::debug!("{}: skipped: {error}", path.display());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_an_archive_are_known_by_their_names() {
        let is = |name: &str| archive_file(OsStr::new(name));
        assert_eq!(is("catalog-1.backstay"), Some(true));
        assert_eq!(is("aggregate-0-12.backstay"), Some(false));
        for other in [
            "catalog-.backstay",
            "catalog-1",
            "aggregate-1.backstay",
            "store.backstay",
        ] {
            assert_eq!(is(other), None, "{other}");
        }
    }

    #[test]
    fn an_archive_is_found_from_above_and_by_any_of_its_files() {
        let root = tempfile::tempdir().unwrap();
        let job = root.path().join("job");
        std::fs::create_dir_all(&job).unwrap();
        let [catalog, store] =
            ["catalog-1.backstay", "aggregate-0-1.backstay"].map(|n| job.join(n));
        std::fs::write(&catalog, b"").unwrap();
        std::fs::write(&store, b"").unwrap();
        let archive = vec![Found::Archive(job.clone())];
        for path in [root.path(), &job, &catalog] {
            assert_eq!(find(path).unwrap(), archive);
        }
        assert_eq!(find(&store).unwrap(), vec![Found::ArchiveStore(store)]);
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(
            find(empty.path()).unwrap_err().kind(),
            ErrorKind::NoCheckpoint
        );
    }
}
