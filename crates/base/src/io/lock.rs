// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the lock of a file, by which processes of a host know of each other.
//! In from: stores, agents, archives. Out to: the kernel (flock).
//! Invariants: a lock goes with its process, however that dies; it is of the file, not of its name, so whoever holds
//! one looks whether that file is still what others find there.

use super::open;
use crate::clock::Deadline;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{Read, Result, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Longest text by which a holder names itself.
const HOLDER_BYTES_MAX: u64 = 512;
const POLL: Duration = Duration::from_millis(10);

/// Takes the lock of `file` alone. Waits as long as `grace` for a holder that is dying; whether it has the lock then.
pub fn take(file: &File, grace: Duration) -> Result<bool> {
    let deadline = Deadline::after(grace);
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) if deadline.left().is_some() => std::thread::sleep(POLL),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes the lock of `file` together with others that share it; whether nobody has it alone.
pub fn share(file: &File) -> Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether some process has the lock of the file at `path` alone.
pub fn is_held(path: &Path) -> bool {
    let file = open::open_read(path);
    file.is_ok_and(|file| matches!(share(&file), Ok(false)))
}

/// Whether `file` is what others find at `path`.
pub fn stands_at(file: &File, path: &Path) -> bool {
    let inode = |found: Metadata| (found.dev(), found.ino());
    let held = file.metadata().map(inode).ok();
    held.is_some() && std::fs::symlink_metadata(path).map(inode).ok() == held
}

/// What the holder of a lock has [inscribed](open::inscribe) in its file; empty where there is nothing to read.
pub fn holder(mut file: &File) -> String {
    let mut text = Vec::new();
    let read = file
        .rewind()
        .and_then(|()| file.take(HOLDER_BYTES_MAX).read_to_end(&mut text));
    match read {
        Ok(_) => String::from_utf8_lossy(&text).trim().to_owned(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_by_one_or_shared_and_its_holder_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let mut one = open::open_own(&path).unwrap();
        let other = open::open_own(&path).unwrap();
        assert!(!is_held(&path));
        assert!(take(&one, Duration::ZERO).unwrap());
        open::inscribe(&mut one, "process 7\n").unwrap();
        assert!(is_held(&path));
        assert!(!take(&other, Duration::from_millis(15)).unwrap());
        assert!(!share(&other).unwrap());
        assert_eq!(holder(&other), "process 7");
        drop(one);
        assert!(share(&other).unwrap());
        assert!(!is_held(&path), "shared, and not held by one");
        assert!(!take(&open::open_own(&path).unwrap(), Duration::ZERO).unwrap());
    }

    #[test]
    fn a_file_that_was_replaced_is_not_what_others_find() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let file = open::open_own(&path).unwrap();
        assert!(stands_at(&file, &path));
        std::fs::remove_file(&path).unwrap();
        assert!(!stands_at(&file, &path));
        drop(open::open_own(&path).unwrap());
        assert!(!stands_at(&file, &path));
    }
}
