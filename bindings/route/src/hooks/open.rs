// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: calls that open by name.
//! In from: the program. Out to: `agent` (what is opened for writing), the C library.
//! Invariants: what is opened is a real descriptor of a real file in the memory of the node.

use super::is_folder;
use crate::names::{Routed, resolve};
use crate::{agent, next};
use backstay_route::message::Kind;
use libc::FILE;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

fn writes(flags: c_int) -> bool {
    let access = flags & libc::O_ACCMODE;
    flags & libc::O_PATH == 0
        && (access != libc::O_RDONLY || flags & (libc::O_CREAT | libc::O_TRUNC) != 0)
}

/// Opens this node's part of a file that several nodes write: to write alone, since what others write is not in it, and
/// for no other program, which would not tell what it writes. Whether it may be new, and whether what it has goes, the
/// agent decided.
fn open_part(part: &CStr, flags: c_int, mode: c_uint) -> c_int {
    // Without O_CREAT there is no mode among the arguments.
    let mode = if flags & libc::O_CREAT == 0 {
        0o600
    } else {
        mode
    };
    let not = libc::O_ACCMODE | libc::O_TRUNC | libc::O_EXCL | libc::O_DIRECT;
    let flags = flags & !not | libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: a path that ends in zero.
    unsafe { next::openat(libc::AT_FDCWD, part.as_ptr(), flags, mode) }
}

/// Opens the place of a name. Memory that knows no direct access is opened without.
fn open_place(routed: &Routed, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: a path that ends in zero.
    let open = |flags| unsafe { next::openat(libc::AT_FDCWD, routed.live.as_ptr(), flags, mode) };
    let fd = open(flags);
    if fd < 0 && next::errno() == libc::EINVAL && flags & libc::O_DIRECT != 0 {
        return open(flags & !libc::O_DIRECT);
    }
    fd
}

/// The same to read, wherever the file is.
fn read_place(routed: &Routed, flags: c_int, mode: c_uint) -> c_int {
    let fd = open_place(routed, flags, mode);
    if fd >= 0 || next::errno() != libc::ENOENT {
        return fd;
    }
    // SAFETY: a path that ends in zero.
    let open = |far| unsafe { next::openat(libc::AT_FDCWD, far, flags & !libc::O_DIRECT, mode) };
    brought(routed, |far| Some(open(far)).filter(|&fd| fd >= 0)).unwrap_or(-1)
}

/// Brings a file of another node here, and opens it; `errno` says why not.
fn brought<T>(routed: &Routed, open: impl Fn(*const c_char) -> Option<T>) -> Option<T> {
    // One that nobody opened for some time may go just before.
    for _ in 0..3 {
        let opened = open(agent::far(routed, Kind::Fetch)?);
        if opened.is_some() || next::errno() != libc::ENOENT {
            return opened;
        }
    }
    None
}

fn open_to_write(routed: &Routed, flags: c_int, mode: c_uint) -> c_int {
    let open = || {
        let fd = match &routed.part {
            Some(part) => open_part(part, flags, mode),
            None => open_place(routed, flags, mode),
        };
        Some(fd).filter(|&fd| fd >= 0).map(|fd| (fd, fd))
    };
    agent::open(routed, flags, open).unwrap_or(-1)
}

unsafe fn open_at(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the program's promise.
    let routed = unsafe { resolve(folder, path) };
    let routed = routed.filter(|_| flags & libc::O_DIRECTORY == 0);
    let Some(routed) = routed else {
        // SAFETY: the program's promise.
        return unsafe { next::openat(folder, path, flags, mode) };
    };
    if writes(flags) {
        return open_to_write(&routed, flags, mode);
    }
    let fd = read_place(&routed, flags, mode);
    // SAFETY: the program's promise.
    if fd < 0 && next::errno() == libc::ENOENT && unsafe { is_folder(folder, path) } {
        // SAFETY: the program's promise.
        return unsafe { next::openat(folder, path, flags, mode) };
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the program's promise.
    unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the program's promise.
    unsafe { open_at(libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { open_at(folder, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn openat64(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe { open_at(folder, path, flags | libc::O_LARGEFILE, mode) }
}

// What _FORTIFY_SOURCE makes of calls without a mode.
#[unsafe(no_mangle)]
unsafe extern "C" fn __open_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's promise.
    unsafe { open_at(libc::AT_FDCWD, path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's promise.
    unsafe { open_at(libc::AT_FDCWD, path, flags | libc::O_LARGEFILE, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's promise.
    unsafe { open_at(folder, path, flags, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the program's promise.
    unsafe { open_at(folder, path, flags | libc::O_LARGEFILE, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn creat(path: *const c_char, mode: c_uint) -> c_int {
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
    // SAFETY: the program's promise.
    unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn creat64(path: *const c_char, mode: c_uint) -> c_int {
    // SAFETY: the program's promise.
    unsafe { creat(path, mode) }
}

/// The flags of open that a mode of fopen stands for.
unsafe fn flags_of(mode: *const c_char) -> c_int {
    // SAFETY: the program's promise.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let has = |letter| mode.contains(&letter);
    let access = if has(b'+') {
        libc::O_RDWR
    } else if mode.first() == Some(&b'r') {
        libc::O_RDONLY
    } else {
        libc::O_WRONLY
    };
    let creates = match mode.first() {
        Some(b'w') => libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => libc::O_CREAT | libc::O_APPEND,
        _ => 0,
    };
    access | creates | if has(b'x') { libc::O_EXCL } else { 0 }
}

/// Opens a stream of a routed name by `open`, which is given the place.
unsafe fn stream(
    path: *const c_char,
    mode: *const c_char,
    open: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    // SAFETY: the program's promise.
    let Some(routed) = (unsafe { resolve(libc::AT_FDCWD, path) }) else {
        return open(path);
    };
    // SAFETY: the program's promise.
    let flags = unsafe { flags_of(mode) };
    if !writes(flags) {
        let mut file = open(routed.live.as_ptr());
        if file.is_null() && next::errno() == libc::ENOENT {
            let open = |far| Some(open(far)).filter(|file| !file.is_null());
            file = brought(&routed, open).unwrap_or(std::ptr::null_mut());
        }
        // SAFETY: the program's promise.
        let is_folder = || unsafe { is_folder(libc::AT_FDCWD, path) };
        if file.is_null() && next::errno() == libc::ENOENT && is_folder() {
            return open(path);
        }
        return file;
    }
    if routed.part.is_some() {
        // What a stream writes is not seen here.
        next::set_errno(libc::EOPNOTSUPP);
        return std::ptr::null_mut();
    }
    let opened = agent::open(&routed, flags, || {
        let file = open(routed.live.as_ptr());
        // SAFETY: a stream that was just opened.
        (!file.is_null()).then(|| (file, unsafe { libc::fileno(file) }))
    });
    opened.unwrap_or(std::ptr::null_mut())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the program's promise.
    unsafe { stream(path, mode, |path| next::fopen(path, mode)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the program's promise.
    unsafe { fopen(path, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    // SAFETY: the program's promise.
    unsafe {
        if path.is_null() {
            return next::freopen(path, mode, file);
        }
        // What it was is closed, whatever becomes of the new one.
        let flushed = libc::fflush(file) == 0;
        let former = agent::take(libc::fileno(file));
        let opened = stream(path, mode, |path| next::freopen(path, mode, file));
        agent::closed(former, flushed);
        opened
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    file: *mut FILE,
) -> *mut FILE {
    // SAFETY: the program's promise.
    unsafe { freopen(path, mode, file) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate(path: *const c_char, length: libc::off_t) -> c_int {
    // SAFETY: the program's promise.
    let Some(routed) = (unsafe { resolve(libc::AT_FDCWD, path) }) else {
        // SAFETY: the program's promise.
        return unsafe { next::truncate(path, length) };
    };
    let fd = open_to_write(&routed, libc::O_WRONLY | libc::O_CLOEXEC, 0);
    if fd < 0 {
        return -1;
    }
    // SAFETY: opened above.
    unsafe {
        let outcome = super::write::ftruncate(fd, length);
        let kept = next::errno();
        super::close::close(fd);
        next::set_errno(kept);
        outcome
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn truncate64(path: *const c_char, length: libc::off_t) -> c_int {
    // SAFETY: the program's promise.
    unsafe { truncate(path, length) }
}

/// Opens a name that nobody has, in the place of the XXXXXX before the last `suffix` bytes of `template`.
unsafe fn temporary(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int {
    // SAFETY: the program's promise; the letters stand in its template.
    unsafe {
        let length = CStr::from_ptr(template).count_bytes();
        let suffix = usize::try_from(suffix).unwrap_or(usize::MAX);
        let Some(from) = length
            .checked_sub(suffix)
            .and_then(|end| end.checked_sub(6))
        else {
            next::set_errno(libc::EINVAL);
            return -1;
        };
        let letters = std::slice::from_raw_parts_mut(template.add(from).cast::<u8>(), 6);
        if letters != b"XXXXXX" {
            next::set_errno(libc::EINVAL);
            return -1;
        }
        for _ in 0..1000 {
            let mut drawn = [0u8; 6];
            libc::getrandom(drawn.as_mut_ptr().cast::<c_void>(), drawn.len(), 0);
            for (letter, byte) in letters.iter_mut().zip(drawn) {
                *letter = b"abcdefghijklmnopqrstuvwxyz012345"[usize::from(byte % 32)];
            }
            let flags = flags & !libc::O_ACCMODE | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
            let fd = open_at(libc::AT_FDCWD, template, flags, 0o600);
            if fd >= 0 || next::errno() != libc::EEXIST {
                return fd;
            }
        }
        next::set_errno(libc::EEXIST);
        -1
    }
}

macro_rules! temporaries {
    ($($name:ident($($argument:ident),*) = ($suffix:expr, $flags:expr);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(template: *mut c_char $(, $argument: c_int)*) -> c_int {
            // SAFETY: the program's promise.
            unsafe { temporary(template, $suffix, $flags) }
        }
    )* };
}

temporaries! {
    mkstemp() = (0, 0);
    mkstemp64() = (0, 0);
    mkostemp(flags) = (0, flags);
    mkostemp64(flags) = (0, flags);
    mkstemps(suffix) = (suffix, 0);
    mkstemps64(suffix) = (suffix, 0);
    mkostemps(suffix, flags) = (suffix, flags);
    mkostemps64(suffix, flags) = (suffix, flags);
}
