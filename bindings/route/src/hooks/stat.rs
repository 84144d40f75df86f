// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: calls that ask of a name, and change what is beside a file's bytes.
//! In from: the program. Out to: the C library, with the place of the name.
//! Invariants: nothing is asked of the agent.

use super::{at_place, is_there};
use crate::names::resolve;
use crate::{agent, next};
use libc::{AT_FDCWD, gid_t, mode_t, size_t, timespec, timeval, uid_t, utimbuf};
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

/// Calls of the C library with the same arguments but the path; with a folder before the path, or without one.
macro_rules! named {
    ($($name:ident = $next:ident($($before:ident: $kind:ty,)*; $($argument:ident: $type:ty),*);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($before: $kind,)* path: *const c_char $(, $argument: $type)*) -> c_int {
            // SAFETY: the program's promise.
            unsafe {
                let call = |path| next::$next($($before,)* path $(, $argument)*);
                match resolve(AT_FDCWD, path) {
                    Some(routed) => at_place(&routed, (AT_FDCWD, path), call, || call(path)),
                    None => call(path),
                }
            }
        }
    )* };
}

macro_rules! named_at {
    ($($name:ident = $next:ident($($before:ident: $kind:ty,)*; $($argument:ident: $type:ty),*);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($before: $kind,)* folder: c_int, path: *const c_char $(, $argument: $type)*) -> c_int {
            // SAFETY: the program's promise.
            unsafe {
                let call = |folder, path| next::$next($($before,)* folder, path $(, $argument)*);
                match resolve(folder, path) {
                    Some(routed) => {
                        let there = |place| call(AT_FDCWD, place);
                        at_place(&routed, (folder, path), there, || call(folder, path))
                    }
                    None => call(folder, path),
                }
            }
        }
    )* };
}

named! {
    stat = stat(; about: *mut libc::stat);
    stat64 = stat(; about: *mut libc::stat);
    lstat = lstat(; about: *mut libc::stat);
    lstat64 = lstat(; about: *mut libc::stat);
    __xstat = __xstat(version: c_int,; about: *mut libc::stat);
    __xstat64 = __xstat(version: c_int,; about: *mut libc::stat);
    __lxstat = __lxstat(version: c_int,; about: *mut libc::stat);
    __lxstat64 = __lxstat(version: c_int,; about: *mut libc::stat);
    access = access(; mode: c_int);
    euidaccess = euidaccess(; mode: c_int);
    eaccess = euidaccess(; mode: c_int);
    statfs = statfs(; about: *mut libc::statfs);
    statfs64 = statfs(; about: *mut libc::statfs);
    statvfs = statvfs(; about: *mut libc::statvfs);
    statvfs64 = statvfs(; about: *mut libc::statvfs);
    chmod = chmod(; mode: mode_t);
    chown = chown(; owner: uid_t, group: gid_t);
    lchown = lchown(; owner: uid_t, group: gid_t);
    setxattr = setxattr(; name: *const c_char, value: *const c_void, length: size_t, flags: c_int);
    lsetxattr = lsetxattr(; name: *const c_char, value: *const c_void, length: size_t, flags: c_int);
    utime = utime(; times: *const utimbuf);
    utimes = utimes(; times: *const timeval);
}

/// Calls that give a length.
macro_rules! measured {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char $(, $argument: $type)*) -> c_long {
            // SAFETY: the program's promise.
            unsafe {
                match resolve(AT_FDCWD, path) {
                    Some(routed) if is_there(&routed) => next::$name(routed.live.as_ptr() $(, $argument)*),
                    _ => next::$name(path $(, $argument)*),
                }
            }
        }
    )* };
}

measured! {
    readlink(buffer: *mut c_char, length: size_t);
    getxattr(name: *const c_char, value: *mut c_void, length: size_t);
    lgetxattr(name: *const c_char, value: *mut c_void, length: size_t);
    listxattr(list: *mut c_char, length: size_t);
    llistxattr(list: *mut c_char, length: size_t);
}

named_at! {
    fstatat = fstatat(; about: *mut libc::stat, flags: c_int);
    fstatat64 = fstatat(; about: *mut libc::stat, flags: c_int);
    __fxstatat = __fxstatat(version: c_int,; about: *mut libc::stat, flags: c_int);
    __fxstatat64 = __fxstatat(version: c_int,; about: *mut libc::stat, flags: c_int);
    faccessat = faccessat(; mode: c_int, flags: c_int);
    fchownat = fchownat(; owner: uid_t, group: gid_t, flags: c_int);
    fchmodat = fchmodat(; mode: mode_t, flags: c_int);
    utimensat = utimensat(; times: *const timespec, flags: c_int);
}

/// Also of a descriptor, where the path is empty.
#[unsafe(no_mangle)]
unsafe extern "C" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    about: *mut libc::statx,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        let call = |folder, path| next::statx(folder, path, flags, mask, about);
        if let Some(routed) = resolve(folder, path) {
            let there = |place| call(AT_FDCWD, place);
            return at_place(&routed, (folder, path), there, || call(folder, path));
        }
        let outcome = call(folder, path);
        let id = if flags & libc::AT_EMPTY_PATH == 0 || outcome != 0 {
            0
        } else {
            agent::shared(folder)
        };
        // With a path it is none of that descriptor.
        if id == 0 || !path.is_null() && *path != 0 {
            return outcome;
        }
        match super::write::length_of(id).map(u64::try_from) {
            Ok(Ok(length)) => {
                (*about).stx_size = length;
                0
            }
            Ok(Err(_)) => -1,
            Err(error) => {
                next::set_errno(error);
                -1
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readlinkat(
    folder: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    length: size_t,
) -> c_long {
    // SAFETY: the program's promise.
    unsafe {
        match resolve(folder, path) {
            Some(routed) if is_there(&routed) => {
                next::readlinkat(AT_FDCWD, routed.live.as_ptr(), buffer, length)
            }
            _ => next::readlinkat(folder, path, buffer, length),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    // SAFETY: the program's promise: a buffer of PATH_MAX bytes, or none.
    unsafe {
        let Some(routed) = resolve(AT_FDCWD, path).filter(is_there) else {
            return next::realpath(path, resolved);
        };
        let length = routed.name.len();
        if length >= 4096 {
            next::set_errno(libc::ENAMETOOLONG);
            return std::ptr::null_mut();
        }
        let to = if resolved.is_null() {
            libc::malloc(length + 1).cast()
        } else {
            resolved
        };
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(routed.name.as_ptr().cast(), to, length);
            *to.add(length) = 0;
        }
        to
    }
}
