// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that several nodes wrote, put together of the parts that were exported.
//!
//! Purpose: one file where the program had one.
//! In from: `export --files`, which wrote the parts beside. Out to: the whole file; the parts go.
//! Invariants: the whole file has its name when it is whole; what is no part stays as it is.

use crate::output::Failure;
use backstay_base::error::{Error, Result};
use backstay_base::io::parts::{Part, map_of, put_together, split_part};
use backstay_format::StoredFile;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// An exported file: where it is, and what is stored of it.
pub(super) type Exported<'a> = (PathBuf, &'a StoredFile);

/// Puts together what are parts; the names of the whole files.
pub(super) fn join(exported: &[Exported<'_>]) -> std::result::Result<Vec<PathBuf>, Failure> {
    let mut wholes: BTreeMap<PathBuf, Vec<&Exported<'_>>> = BTreeMap::new();
    for one in exported {
        let (path, file) = one;
        let split = split_part(path.as_os_str().as_bytes());
        if let Some((whole, _)) = split.filter(|_| file.routed) {
            let whole = PathBuf::from(OsStr::from_bytes(whole));
            wholes.entry(whole).or_default().push(one);
        }
    }
    let mut joined = Vec::new();
    for (whole, parts) in wholes {
        if join_one(&whole, &parts).map_err(Failure::from)? {
            joined.push(whole);
        }
    }
    Ok(joined)
}

/// Whether they are parts.
fn join_one(whole: &Path, exported: &[&Exported<'_>]) -> Result<bool> {
    let failed = |error| Error::io(format!("putting {} together", whole.display()), error);
    let mut parts = Vec::new();
    for (path, _) in exported {
        let file = File::open(path).map_err(failed)?;
        // What only has such a name is a file like any other.
        let Ok((map, _)) = map_of(&file) else {
            return Ok(false);
        };
        let whose = path.display().to_string();
        parts.push(Part { whose, file, map });
    }
    let beside = whole.with_extension(format!("backstay-{}", std::process::id()));
    let file = File::create(&beside).map_err(failed)?;
    let made = put_together(&parts, &file).and_then(|()| {
        let newest = exported.iter().map(|(_, file)| *file);
        let newest = newest.max_by_key(|file| (file.modified_s, file.modified_ns));
        if let Some(about) = newest {
            dress(&file, about).map_err(failed)?;
        }
        fs::rename(&beside, whole).map_err(failed)
    });
    if made.is_err() {
        // The error says what is wrong.
        drop(fs::remove_file(&beside));
    }
    made?;
    for (path, _) in exported {
        fs::remove_file(path).map_err(failed)?;
    }
    Ok(true)
}

fn dress(file: &File, about: &StoredFile) -> std::io::Result<()> {
    file.set_permissions(Permissions::from_mode(about.mode))?;
    let seconds = u64::try_from(about.modified_s).unwrap_or(0);
    let modified = UNIX_EPOCH + Duration::new(seconds, about.modified_ns);
    file.set_times(FileTimes::new().set_modified(modified))
}
