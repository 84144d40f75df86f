// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how a process ends.
//! In from: the program. Out to: `agent`.
//! Invariants: the status is told before anything is closed by the end itself, so that what a failing program closes on
//! its way out is not complete; the last word comes when all buffers are in their files.

use crate::{agent, next};
use backstay_route::message::Kind;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Called last of all that the program and its libraries registered.
pub(crate) extern "C" fn at_the_end(status: c_int, _argument: *mut c_void) {
    if agent::is_known() {
        // SAFETY: all streams.
        let flushed = unsafe { libc::fflush(std::ptr::null_mut()) } == 0;
        agent::tell_end(Kind::Bye, if flushed { status } else { status.max(1) });
    }
}

/// Never returns, as what it is called behind.
fn stop() -> ! {
    loop {
        // SAFETY: it ends this thread, where the C library's own function was not found.
        unsafe { libc::syscall(libc::SYS_exit_group, 127) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn exit(status: c_int) -> ! {
    agent::tell_end(Kind::Leaving, status);
    // SAFETY: the program's promise.
    unsafe { next::exit(status) };
    stop()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn quick_exit(status: c_int) -> ! {
    agent::tell_end(Kind::Leaving, status);
    agent::tell_end(Kind::Bye, status);
    // SAFETY: the program's promise.
    unsafe { next::quick_exit(status) };
    stop()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    agent::tell_end(Kind::Bye, status);
    // SAFETY: the program's promise.
    unsafe { next::_exit(status) };
    stop()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    agent::tell_end(Kind::Bye, status);
    // SAFETY: the program's promise.
    unsafe { next::_Exit(status) };
    stop()
}

type Main = unsafe extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;
static MAIN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The program's own `main`, and the word that it returned, which the C library's `exit` gives nobody before.
unsafe extern "C" fn main_and_word(
    count: c_int,
    words: *mut *mut c_char,
    variables: *mut *mut c_char,
) -> c_int {
    // SAFETY: what __libc_start_main was given.
    unsafe {
        let main = std::mem::transmute::<*mut c_void, Main>(MAIN.load(Ordering::Acquire));
        let status = main(count, words, variables);
        agent::tell_end(Kind::Leaving, status);
        status
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __libc_start_main(
    main: *mut c_void,
    count: c_int,
    words: *mut *mut c_char,
    first: *mut c_void,
    last: *mut c_void,
    linker: *mut c_void,
    stack: *mut c_void,
) -> c_int {
    MAIN.store(main, Ordering::Release);
    let ours = main_and_word as Main as *mut c_void;
    // SAFETY: the arguments are the program's own, but for its main.
    unsafe { next::__libc_start_main(ours, count, words, first, last, linker, stack) }
}
