// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: calls that close descriptors, or make others of them.
//! In from: the program. Out to: `agent`.
//! Invariants: that a file is closed is told when it is, so that what its buffers had is in it.

use crate::{agent, next};
use libc::FILE;
use std::ffi::{c_int, c_uint, c_void};

/// What the structure of a lock says that is given back; the C library has it as a longer number.
const UNLOCKED: libc::c_short = 2;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close(fd: c_int) -> c_int {
    if agent::is_connection(fd) {
        next::set_errno(libc::EBADF);
        return -1;
    }
    // Before it is closed: then another thread may be given the number.
    let id = agent::take(fd);
    // SAFETY: the program's promise.
    told(id, unsafe { next::close(fd) })
}

/// What a call that closed a file says: an error, too, where nobody could be told, since then it is never complete.
fn told(id: u32, outcome: c_int) -> c_int {
    if agent::closed(id, outcome == 0) || outcome != 0 {
        return outcome;
    }
    next::set_errno(libc::EIO);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(file: *mut FILE) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        let id = if agent::has_open() {
            agent::take(libc::fileno(file))
        } else {
            0
        };
        told(id, next::fclose(file))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let marks_only = flags & 4 != 0;
    let mut ids = Vec::new();
    if agent::has_open() && !marks_only {
        let all = first..=last.min(1 << 16);
        ids.extend(
            all.filter_map(|fd| c_int::try_from(fd).ok())
                .map(agent::take)
                .filter(|&id| id != 0),
        );
    }
    let connection =
        (first..=last.min(1 << 16)).find(|&fd| c_int::try_from(fd).is_ok_and(agent::is_connection));
    // SAFETY: the program's promise.
    let outcome = unsafe {
        match connection {
            // It stays.
            Some(fd) => {
                let below = if fd > first {
                    next::close_range(first, fd - 1, flags)
                } else {
                    0
                };
                let above = if fd < last {
                    next::close_range(fd + 1, last, flags)
                } else {
                    0
                };
                below.min(above)
            }
            None => next::close_range(first, last, flags),
        }
    };
    let each = ids.into_iter().map(|id| told(id, outcome));
    each.fold(outcome, c_int::min)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the program's promise.
    unsafe { close_range(c_uint::try_from(first).unwrap_or(0), c_uint::MAX, 0) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the program's promise.
    let to = unsafe { next::dup(fd) };
    agent::copied(fd, to);
    to
}

/// `to` becomes what `from` is by `call`.
fn replaced(from: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if from == to {
        return call();
    }
    let former = agent::take(to);
    let outcome = call();
    agent::closed(former, outcome >= 0);
    agent::copied(from, outcome);
    outcome
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: the program's promise.
    replaced(from, to, || unsafe { next::dup2(from, to) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the program's promise.
    replaced(from, to, || unsafe { next::dup3(from, to, flags) })
}

/// What takes a lock of a range, or gives it back.
const LOCKS: [c_int; 4] = [
    libc::F_SETLK,
    libc::F_SETLKW,
    libc::F_OFD_SETLK,
    libc::F_OFD_SETLKW,
];

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    if command == libc::F_SETFL
        && argument.addr() & libc::O_APPEND as usize != 0
        && agent::shared(fd) != 0
    {
        // Where the end is on other nodes the kernel does not know.
        next::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the program's promise: a lock of which the first word says whether it is taken.
    let is_taken = || unsafe { (*argument.cast::<libc::flock>()).l_type } != UNLOCKED;
    if LOCKS.contains(&command) && agent::shared(fd) != 0 && is_taken() {
        // Processes of other nodes would not see it.
        next::set_errno(libc::ENOLCK);
        return -1;
    }
    // SAFETY: the program's promise.
    let outcome = unsafe { next::fcntl(fd, command, argument) };
    if command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC {
        agent::copied(fd, outcome);
    }
    if command == libc::F_GETFL && outcome >= 0 && agent::shared_to_read(fd) != 0 {
        return outcome & !libc::O_ACCMODE | libc::O_RDWR;
    }
    outcome
}

#[unsafe(no_mangle)]
unsafe extern "C" fn flock(fd: c_int, operation: c_int) -> c_int {
    if operation & libc::LOCK_UN == 0 && agent::shared(fd) != 0 {
        next::set_errno(libc::ENOLCK);
        return -1;
    }
    // SAFETY: the program's promise.
    unsafe { next::flock(fd, operation) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the program's promise.
    unsafe { fcntl(fd, command, argument) }
}
