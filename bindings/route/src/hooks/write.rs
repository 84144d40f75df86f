// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: calls that write to a descriptor of a file that several nodes write at once, or ask where its end is.
//! In from: the program. Out to: `agent` (which bytes were written), the C library.
//! Invariants: what a call wrote is noted before it returns; what writes without telling which bytes is refused; the end is
//! that of all nodes. A descriptor of any other file costs a look at a number.

use crate::names::routed_of;
use crate::{agent, next};
use backstay_route::message::Kind;
use libc::{aiocb, iovec, off_t, size_t};
use std::ffi::{c_int, c_uint, c_void};

/// The C library's offsets are those of 64 bits.
macro_rules! same {
    ($($name:ident = $other:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the program's promise.
            unsafe { $other($($argument),*) }
        }
    )* };
}

same! {
    pwrite64 = pwrite(fd: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> isize;
    pwritev64 = pwritev(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t) -> isize;
    pwritev64v2 = pwritev2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int) -> isize;
    aio_write64 = aio_write(what: *mut aiocb) -> c_int;
    lio_listio64 = lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut c_void) -> c_int;
    lseek64 = lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t;
    ftruncate64 = ftruncate(fd: c_int, length: off_t) -> c_int;
    fallocate64 = fallocate(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int;
    fstat64 = fstat(fd: c_int, about: *mut libc::stat) -> c_int;
    __fxstat64 = __fxstat(version: c_int, fd: c_int, about: *mut libc::stat) -> c_int;
    sendfile64 = sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> isize;
}

fn note(id: u32, offset: off_t, written: isize) -> isize {
    if let (Ok(offset), Ok(count)) = (u64::try_from(offset), u64::try_from(written)) {
        agent::wrote(id, offset, count);
    }
    written
}

/// A write at `offset` to a descriptor, noted where several nodes write its file.
fn write_at(fd: c_int, offset: off_t, write: impl FnOnce() -> isize) -> isize {
    match agent::shared(fd) {
        0 => write(),
        id => note(id, offset, write()),
    }
}

/// The same at the descriptor's own offset.
fn write_on(fd: c_int, write: impl FnOnce() -> isize) -> isize {
    match agent::shared(fd) {
        0 => write(),
        id => agent::write_in_turn(id, fd, write),
    }
}

fn refused<T: From<i8>>(error: c_int) -> T {
    next::set_errno(error);
    T::from(-1)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, count: size_t) -> isize {
    // SAFETY: the program's promise.
    write_on(fd, || unsafe { next::write(fd, bytes, count) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> isize {
    // SAFETY: the program's promise.
    write_on(fd, || unsafe { next::writev(fd, pieces, count) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(
    fd: c_int,
    bytes: *const c_void,
    count: size_t,
    offset: off_t,
) -> isize {
    // SAFETY: the program's promise.
    write_at(fd, offset, || unsafe {
        next::pwrite(fd, bytes, count, offset)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
    offset: off_t,
) -> isize {
    // SAFETY: the program's promise.
    write_at(fd, offset, || unsafe {
        next::pwritev(fd, pieces, count, offset)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pwritev2(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> isize {
    let id = agent::shared(fd);
    // SAFETY: the program's promise.
    let write = || unsafe { next::pwritev2(fd, pieces, count, offset, flags) };
    if id == 0 {
        return write();
    }
    if flags & libc::RWF_APPEND != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    if offset == -1 {
        return agent::write_in_turn(id, fd, write);
    }
    note(id, offset, write())
}

/// What is about to be written is noted: it is written while the program does something else.
unsafe fn note_asynchronous(what: *const aiocb) {
    // SAFETY: the program's promise: such a structure, or nothing.
    let Some(what) = (unsafe { what.as_ref() }) else {
        return;
    };
    let id = agent::shared(what.aio_fildes);
    if id != 0 {
        note(
            id,
            what.aio_offset,
            isize::try_from(what.aio_nbytes).unwrap_or(0),
        );
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn aio_write(what: *mut aiocb) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        note_asynchronous(what);
        next::aio_write(what)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lio_listio(
    mode: c_int,
    list: *const *mut aiocb,
    count: c_int,
    event: *mut c_void,
) -> c_int {
    // SAFETY: the program's promise: so many, each such a structure or nothing.
    unsafe {
        if !list.is_null() {
            let all = std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0));
            for what in all {
                let is_write = |what: &aiocb| what.aio_lio_opcode == libc::LIO_WRITE;
                if what.as_ref().is_some_and(is_write) {
                    note_asynchronous(*what);
                }
            }
        }
        next::lio_listio(mode, list, count, event)
    }
}

/// The length of a file that several nodes write, as it is now on all of them; an error number where it is not known.
pub(super) fn length_of(id: u32) -> Result<off_t, c_int> {
    let routed = agent::name_of(id).and_then(routed_of);
    let routed = routed.ok_or(libc::EIO)?;
    let place = agent::far(&routed, Kind::Look).ok_or_else(next::errno)?;
    // SAFETY: zeros are such a structure; the place ends in zero.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        match next::fstatat(libc::AT_FDCWD, place, &raw mut about, 0) {
            0 => Ok(about.st_size),
            _ => Err(next::errno()),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    let plain = whence == libc::SEEK_SET || whence == libc::SEEK_CUR;
    let id = if plain { 0 } else { agent::shared(fd) };
    if id == 0 {
        // SAFETY: the program's promise.
        return unsafe { next::lseek(fd, offset, whence) };
    }
    if whence != libc::SEEK_END {
        // Which bytes are holes on all nodes is not known.
        return refused(libc::EINVAL);
    }
    match length_of(id).map(|length| length.checked_add(offset)) {
        // SAFETY: the program's promise.
        Ok(Some(place)) => unsafe { next::lseek(fd, place, libc::SEEK_SET) },
        Ok(None) => refused(libc::EOVERFLOW),
        Err(error) => refused(error),
    }
}

/// What is told of a descriptor by `call`, with the length of all nodes.
unsafe fn told(fd: c_int, about: *mut libc::stat, call: impl FnOnce() -> c_int) -> c_int {
    let outcome = call();
    let id = agent::shared(fd);
    if outcome != 0 || id == 0 {
        return outcome;
    }
    match length_of(id) {
        Ok(length) => {
            // SAFETY: the call filled it.
            unsafe { (*about).st_size = length };
            0
        }
        Err(error) => refused(error),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fstat(fd: c_int, about: *mut libc::stat) -> c_int {
    // SAFETY: the program's promise.
    unsafe { told(fd, about, || next::fstat(fd, about)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __fxstat(version: c_int, fd: c_int, about: *mut libc::stat) -> c_int {
    // SAFETY: the program's promise.
    unsafe { told(fd, about, || next::__fxstat(version, fd, about)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const std::ffi::c_char) -> *mut libc::FILE {
    if agent::shared(fd) != 0 {
        // What a stream writes is not seen here.
        next::set_errno(libc::EOPNOTSUPP);
        return std::ptr::null_mut();
    }
    // SAFETY: the program's promise.
    unsafe { next::fdopen(fd, mode) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn ftruncate(fd: c_int, length: off_t) -> c_int {
    let id = agent::shared(fd);
    if id != 0 {
        match length_of(id) {
            Ok(known) if length >= known => {}
            Ok(_) => {
                let error = agent::cut(id, length);
                if error != 0 {
                    return refused(error);
                }
            }
            Err(error) => return refused(error),
        }
    }
    // SAFETY: the program's promise.
    unsafe { next::ftruncate(fd, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fallocate(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int {
    const KEEP_SIZE: c_int = 1;
    if mode & !KEEP_SIZE != 0 && agent::shared(fd) != 0 {
        return refused(libc::EOPNOTSUPP);
    }
    // SAFETY: the program's promise.
    unsafe { next::fallocate(fd, mode, offset, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> isize {
    if agent::shared(to) != 0 {
        return refused(libc::EINVAL);
    }
    // SAFETY: the program's promise.
    unsafe { next::sendfile(to, from, offset, count) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    count: size_t,
    flags: c_uint,
) -> isize {
    if agent::shared(to) != 0 {
        return refused(libc::EINVAL);
    }
    // SAFETY: the program's promise.
    unsafe { next::splice(from, from_offset, to, to_offset, count, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    count: size_t,
    flags: c_uint,
) -> isize {
    if agent::shared(to) != 0 {
        return refused(libc::EINVAL);
    }
    // SAFETY: the program's promise.
    unsafe { next::copy_file_range(from, from_offset, to, to_offset, count, flags) }
}
