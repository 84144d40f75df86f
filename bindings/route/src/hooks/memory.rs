// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: mappings of routed files.
//! In from: the program. Out to: `agent`, the C library.
//! Invariants: a file with a shared mapping that was made through a descriptor for writing is not closed before it is
//! unmapped; what is mapped so has its memory, so that a write to it is no bus error.

use crate::{agent, next};
use libc::{off_t, size_t};
use std::ffi::{CStr, c_int, c_void};

/// Keeps the length of a file as it is.
const KEEP_SIZE: c_int = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the program's promise.
    unsafe {
        let is_shared =
            [libc::MAP_SHARED, libc::MAP_SHARED_VALIDATE].contains(&(flags & libc::MAP_TYPE));
        if fd < 0 || !is_shared || !agent::is_open(fd) {
            return next::mmap(address, length, access, flags, fd, offset);
        }
        if agent::shared(fd) != 0 {
            // What is written through a mapping is not told by anybody.
            next::set_errno(libc::EACCES);
            return libc::MAP_FAILED;
        }
        let inode = match reserve(fd, length, offset) {
            Ok(inode) => inode,
            Err(error) => {
                next::set_errno(error);
                return libc::MAP_FAILED;
            }
        };
        let mapping = next::mmap(address, length, access, flags, fd, offset);
        if mapping != libc::MAP_FAILED {
            agent::mapped(fd, inode);
        }
        mapping
    }
}

/// Gives what is to be mapped its memory; the inode.
unsafe fn reserve(fd: c_int, length: size_t, offset: off_t) -> Result<u64, c_int> {
    // SAFETY: zeros are such a structure; the descriptor is the program's.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut about) != 0 {
            return Err(next::errno());
        }
        let mapped = i64::try_from(length)
            .unwrap_or(i64::MAX)
            .min(about.st_size.saturating_sub(offset));
        let is_full = mapped > 0
            && libc::fallocate(fd, KEEP_SIZE, offset, mapped) != 0
            && [libc::ENOSPC, libc::EFBIG].contains(&next::errno());
        if is_full {
            Err(libc::ENOMEM)
        } else {
            Ok(about.st_ino)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the program's promise.
    unsafe { mmap(address, length, access, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    // SAFETY: the program's promise.
    let outcome = unsafe { next::munmap(address, length) };
    if agent::has_mapped() {
        let kept = next::errno();
        if let Some(maps) = maps() {
            agent::unmapped(|inode| is_mapped(&maps, inode));
        }
        next::set_errno(kept);
    }
    outcome
}

/// What this process has mapped; nothing where that cannot be read.
fn maps() -> Option<Vec<u8>> {
    const PATH: &CStr = c"/proc/self/maps";
    let mut bytes = Vec::new();
    let mut buffer = vec![0u8; 1 << 16];
    // SAFETY: a path that ends in zero, a buffer of the length that is named.
    unsafe {
        let fd = next::openat(
            libc::AT_FDCWD,
            PATH.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
            0,
        );
        if fd < 0 {
            return None;
        }
        let whole = loop {
            let read = libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len());
            match usize::try_from(read) {
                Ok(0) => break true,
                Ok(length) => bytes.extend(&buffer[..length.min(buffer.len())]),
                Err(_) => break false,
            }
        };
        next::close(fd);
        whole.then_some(bytes)
    }
}

/// Whether a shared mapping of this inode is among them.
fn is_mapped(maps: &[u8], inode: u64) -> bool {
    let inode = inode.to_string();
    let mut lines = maps.split(|&byte| byte == b'\n');
    lines.any(|line| {
        let mut words = line
            .split(|&byte| byte == b' ')
            .filter(|word| !word.is_empty());
        let is_shared = words.nth(1).is_some_and(|access| access.ends_with(b"s"));
        is_shared && words.nth(2) == Some(inode.as_bytes())
    })
}
