// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the kernel is asked that no library here asks: filters of calls and their answers, memory of other
//! processes, calls by their numbers.
//! In from: the other modules. Out to: the kernel.
//! Invariants: a pointer that the kernel is given is to a buffer of the size that it is told, or that the call has.
#![expect(
    unsafe_code,
    reason = "seccomp, memory of other processes and calls by number are had by libc alone"
)]

use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use std::ffi::{CStr, c_int, c_long};

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`: who answers runs where the caller ran, which waits.
const SYNC_WAKE_UP: u64 = 1;

/// A call that waits for its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// What it is answered by.
    pub(crate) id: u64,
    /// The thread that makes it.
    pub(crate) tid: i32,
    pub(crate) number: c_long,
    pub(crate) arguments: [u64; 6],
}

fn last_error() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error();
    number.map_or(Errno::IO, Errno::from_raw_os_error)
}

fn checked(outcome: c_long) -> Result<c_long, Errno> {
    if outcome < 0 {
        Err(last_error())
    } else {
        Ok(outcome)
    }
}

/// From now on the calls of this thread, and of all that it starts, are filtered; who they are told to.
pub(crate) fn install(program: &[libc::sock_filter]) -> Result<OwnedFd, Errno> {
    rustix::thread::set_no_new_privs(true)?;
    let length = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    let program = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast_mut(),
    };
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the program has the length that it says, and is only read.
    let made = checked(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    })?;
    let made = c_int::try_from(made).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel just made it, for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

fn control<T>(
    listener: BorrowedFd<'_>,
    request: libc::Ioctl,
    about: &mut T,
) -> Result<c_int, Errno> {
    // SAFETY: each request is called with the structure that it names.
    let outcome = unsafe { libc::ioctl(listener.as_raw_fd(), request, std::ptr::from_mut(about)) };
    if outcome < 0 {
        Err(last_error())
    } else {
        Ok(outcome)
    }
}

/// Answers come sooner where the kernel can do so (Linux 6.6).
pub(crate) fn hasten(listener: BorrowedFd<'_>) {
    // SAFETY: this request takes a number.
    unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS,
            SYNC_WAKE_UP,
        )
    };
}

/// The next call.
pub(crate) fn receive(listener: BorrowedFd<'_>) -> Result<Call, Errno> {
    // SAFETY: zeros are such a structure, and what the kernel asks for.
    let mut told: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    control(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &mut told)?;
    Ok(Call {
        id: told.id,
        tid: told.pid.cast_signed(),
        number: c_long::from(told.data.nr),
        arguments: told.data.args,
    })
}

/// Whether a call still waits: what was read of its process meanwhile was this process's.
pub(crate) fn is_waiting(listener: BorrowedFd<'_>, call: &Call) -> bool {
    let mut id = call.id;
    control(listener, libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id).is_ok()
}

/// The kernel does the call as it is. An error says that it waits no more.
pub(crate) fn go_on(listener: BorrowedFd<'_>, call: &Call) {
    let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1);
    respond(listener, call, 0, 0, flags);
}

/// The call is done.
pub(crate) fn answer(listener: BorrowedFd<'_>, call: &Call, outcome: Result<i64, Errno>) {
    match outcome {
        Ok(value) => respond(listener, call, value, 0, 0),
        Err(error) => respond(listener, call, 0, -error.raw_os_error(), 0),
    }
}

fn respond(listener: BorrowedFd<'_>, call: &Call, value: i64, error: i32, flags: u32) {
    let mut told = libc::seccomp_notif_resp {
        id: call.id,
        val: value,
        error,
        flags,
    };
    // One that was killed meanwhile hears nothing.
    control(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &mut told).ok();
}

/// The call is done: its process has `file` as the descriptor `at`, or the lowest that is free.
pub(crate) fn give(
    listener: BorrowedFd<'_>,
    call: &Call,
    file: BorrowedFd<'_>,
    at: Option<u32>,
    close_on_exec: bool,
) -> Result<(), Errno> {
    let mut flags = libc::SECCOMP_ADDFD_FLAG_SEND;
    if at.is_some() {
        flags |= libc::SECCOMP_ADDFD_FLAG_SETFD;
    }
    let own = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    let mut given = libc::seccomp_notif_addfd {
        id: call.id,
        flags: u32::try_from(flags).unwrap_or_default(),
        srcfd: file.as_raw_fd().cast_unsigned(),
        newfd: at.unwrap_or(0),
        newfd_flags: own.cast_unsigned(),
    };
    control(listener, libc::SECCOMP_IOCTL_NOTIF_ADDFD, &mut given).map(drop)
}

fn address_of(address: u64) -> Result<*mut std::ffi::c_void, Errno> {
    let address = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    Ok(std::ptr::with_exposed_provenance_mut(address))
}

/// Reads memory of a thread's process; how much there was.
pub(crate) fn read_memory(tid: i32, address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let own = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let other = libc::iovec {
        iov_base: address_of(address)?,
        iov_len: buffer.len(),
    };
    // SAFETY: the buffer has its length; the other address is looked at by the kernel, which refuses what is not there.
    let read = unsafe { libc::process_vm_readv(tid, &raw const own, 1, &raw const other, 1, 0) };
    usize::try_from(read).map_err(|_| last_error())
}

/// Writes all of `bytes` to memory of a thread's process.
pub(crate) fn write_memory(tid: i32, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    if bytes.is_empty() {
        return Ok(());
    }
    let own = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let other = libc::iovec {
        iov_base: address_of(address)?,
        iov_len: bytes.len(),
    };
    // SAFETY: as above; the bytes are only read.
    let written =
        unsafe { libc::process_vm_writev(tid, &raw const own, 1, &raw const other, 1, 0) };
    match usize::try_from(written) {
        Ok(written) if written == bytes.len() => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => Err(last_error()),
    }
}

/// Makes a call of another process here, with another path, and with buffers of this process, each for an argument.
///
/// The buffers have to be of the sizes that the call has for them: `table` says these.
pub(crate) fn repeat(
    call: &Call,
    (at, path): (usize, &CStr),
    buffers: &mut [(usize, Vec<u8>)],
) -> Result<i64, Errno> {
    let mut arguments = call.arguments;
    let number = |address: usize| u64::try_from(address).unwrap_or_default();
    arguments[at] = number(path.as_ptr().expose_provenance());
    for (at, buffer) in buffers {
        arguments[*at] = number(buffer.as_mut_ptr().expose_provenance());
    }
    // SAFETY: all pointers that the call takes are those that were put in: `table` names each, with its size.
    checked(unsafe {
        libc::syscall(
            call.number,
            arguments[0],
            arguments[1],
            arguments[2],
            arguments[3],
            arguments[4],
            arguments[5],
        )
    })
}

/// Entries of a folder, as the kernel writes them; 0 bytes at the end.
pub(crate) fn entries(folder: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: a buffer of the length that is named.
    let read = checked(unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            folder.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    })?;
    usize::try_from(read).map_err(|_| Errno::IO)
}
