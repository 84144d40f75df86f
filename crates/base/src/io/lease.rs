// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: whether any process has a file open for writing, or mapped so.
//! In from: the routing agent. Out to: the kernel.
//! Invariants: nothing is left at the file; a process that looks ignores SIGIO, which the kernel sends to who has a lease.
#![expect(
    unsafe_code,
    reason = "leases are had by fcntl alone, which no library here gives"
)]

use std::ffi::c_int;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::path::Path;

const SET_LEASE: c_int = 1024;
const READ: c_int = 0;
const NONE: c_int = 2;

unsafe extern "C" {
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
}

/// Whether somebody can write the file at `path`: has a descriptor for it, or a mapping that was made through one. An
/// error where the file system does not say, or the file is another user's.
pub fn has_writer(path: &Path) -> Result<bool> {
    let file = File::open(path)?;
    let lease = |kind: c_int| {
        // SAFETY: the descriptor is open, and the command takes an int.
        match unsafe { fcntl(file.as_raw_fd(), SET_LEASE, kind) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    };
    // A lease to read is given where nobody can write.
    match lease(READ) {
        Ok(()) => lease(NONE).map(|()| false),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_seen_as_long_as_it_is_there() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("file");
        let writer = File::create(&path).unwrap();
        assert!(has_writer(&path).unwrap());
        let other = writer.try_clone().unwrap();
        drop(writer);
        assert!(has_writer(&path).unwrap());
        drop(other);
        let reader = File::open(&path).unwrap();
        assert!(!has_writer(&path).unwrap());
        drop(reader);
        assert!(has_writer(&folder.path().join("none")).is_err());
    }
}
