// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: calls that read from a descriptor of a file that several nodes write at once.
//! In from: the program. Out to: `agent` (bytes as they are now on all nodes), the C library.
//! Invariants: the descriptor is one for writing alone, so that what reads past these calls fails. A descriptor of any other
//! file costs a look at a number.

use crate::{agent, next};
use libc::{iovec, off_t, size_t};
use std::ffi::{c_int, c_void};

/// As much as the kernel reads at once.
const READ_MAX: usize = 0x7fff_f000;

/// Where bytes go that are read.
struct Room<'a> {
    pieces: &'a [iovec],
    /// So much of the first is full.
    filled: usize,
}

impl Room<'_> {
    fn most(&self) -> usize {
        let lengths = self.pieces.iter().map(|piece| piece.iov_len);
        lengths.fold(0, usize::saturating_add).min(READ_MAX)
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while let (Some(piece), false) = (self.pieces.first(), bytes.is_empty()) {
            let length = bytes.len().min(piece.iov_len - self.filled);
            // SAFETY: the program's promise: so much room is there.
            unsafe {
                let to = piece.iov_base.cast::<u8>().add(self.filled);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length);
            }
            bytes = &bytes[length..];
            self.filled += length;
            if self.filled == piece.iov_len {
                (self.pieces, self.filled) = (&self.pieces[1..], 0);
            }
        }
    }
}

/// Reads at an offset, or where the descriptor stands, if several nodes write its file; else by `call`.
unsafe fn read_into(
    fd: c_int,
    (pieces, count): (*const iovec, c_int),
    offset: Option<off_t>,
    call: impl FnOnce() -> isize,
) -> isize {
    let id = agent::shared_to_read(fd);
    let count = usize::try_from(count).unwrap_or(0);
    if id == 0 || pieces.is_null() || count == 0 {
        return call();
    }
    // SAFETY: the program's promise: so many pieces.
    let pieces = unsafe { std::slice::from_raw_parts(pieces, count) };
    let mut room = Room { pieces, filled: 0 };
    let most = room.most();
    let read = match offset.map(u64::try_from) {
        None => agent::read_in_turn(id, fd, most, |bytes| room.put(bytes)),
        Some(Ok(offset)) => agent::read(id, offset, most, |bytes| room.put(bytes)),
        Some(Err(_)) => Err(libc::EINVAL),
    };
    read.map_or_else(
        |error| {
            next::set_errno(error);
            -1
        },
        |read| isize::try_from(read).unwrap_or(-1),
    )
}

#[unsafe(no_mangle)]
unsafe extern "C" fn read(fd: c_int, bytes: *mut c_void, count: size_t) -> isize {
    let piece = iovec {
        iov_base: bytes,
        iov_len: count,
    };
    // SAFETY: the program's promise.
    unsafe {
        read_into(fd, (&raw const piece, 1), None, || {
            next::read(fd, bytes, count)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readv(fd: c_int, pieces: *const iovec, count: c_int) -> isize {
    // SAFETY: the program's promise.
    unsafe { read_into(fd, (pieces, count), None, || next::readv(fd, pieces, count)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pread(fd: c_int, bytes: *mut c_void, count: size_t, offset: off_t) -> isize {
    let piece = iovec {
        iov_base: bytes,
        iov_len: count,
    };
    // SAFETY: the program's promise.
    unsafe {
        read_into(fd, (&raw const piece, 1), Some(offset), || {
            next::pread(fd, bytes, count, offset)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t) -> isize {
    // SAFETY: the program's promise.
    unsafe {
        read_into(fd, (pieces, count), Some(offset), || {
            next::preadv(fd, pieces, count, offset)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn preadv2(
    fd: c_int,
    pieces: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> isize {
    let place = (offset != -1).then_some(offset);
    // SAFETY: the program's promise.
    unsafe {
        read_into(fd, (pieces, count), place, || {
            next::preadv2(fd, pieces, count, offset, flags)
        })
    }
}

// What _FORTIFY_SOURCE makes of calls whose room is known: too little room ends the program.
#[unsafe(no_mangle)]
unsafe extern "C" fn __read_chk(
    fd: c_int,
    bytes: *mut c_void,
    count: size_t,
    room: size_t,
) -> isize {
    // SAFETY: the program's promise.
    unsafe {
        if count <= room {
            read(fd, bytes, count)
        } else {
            next::__read_chk(fd, bytes, count, room)
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __pread_chk(
    fd: c_int,
    bytes: *mut c_void,
    count: size_t,
    offset: off_t,
    room: size_t,
) -> isize {
    // SAFETY: the program's promise.
    unsafe {
        if count <= room {
            pread(fd, bytes, count, offset)
        } else {
            next::__pread_chk(fd, bytes, count, offset, room)
        }
    }
}

/// The C library's offsets are those of 64 bits.
macro_rules! same {
    ($($name:ident = $other:ident($($argument:ident: $type:ty),*);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> isize {
            // SAFETY: the program's promise.
            unsafe { $other($($argument),*) }
        }
    )* };
}

same! {
    pread64 = pread(fd: c_int, bytes: *mut c_void, count: size_t, offset: off_t);
    preadv64 = preadv(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t);
    preadv64v2 = preadv2(fd: c_int, pieces: *const iovec, count: c_int, offset: off_t, flags: c_int);
    __pread64_chk = __pread_chk(fd: c_int, bytes: *mut c_void, count: size_t, offset: off_t, room: size_t);
}
