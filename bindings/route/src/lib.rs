// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `libbackstay_preload.so`: what `backstay run --route` sets as `LD_PRELOAD`.
//!
//! Purpose: the names of routed files lead to the memory of the node; nothing else of a program changes.
//! In from: calls of the C library that take names, and those that end what a name began. Out to: the C library's own
//! functions, and the routing agent (`backstay-service`), over a socket.
//! Invariants: a name that no pattern matches costs a look at its last component; a file is opened for writing only after
//! the agent knows of it; that it was closed is told after it was closed, so that a death tells nothing; no call panics,
//! and none fails that would not fail on a file system.
//!
//! | module | what it has |
//! |---|---|
//! | `next` | the C library's functions |
//! | `names` | which names are routed |
//! | `agent` | the connection, and what this process has open |
//! | `hooks` | the calls |
#![expect(unsafe_code, reason = "stands between a program and the C library")]

mod agent;
mod hooks;
mod names;
mod next;

use std::ffi::{c_int, c_void};

unsafe extern "C" {
    fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    if names::spec().is_none() {
        return;
    }
    next::find_early();
    agent::begin();
    // SAFETY: the functions stay: the library is never unloaded. Registered first, it is called last.
    unsafe {
        libc::pthread_atfork(
            Some(agent::before_fork),
            Some(agent::after_fork),
            Some(agent::in_child),
        );
        on_exit(hooks::process::at_the_end, std::ptr::null_mut());
    }
}
