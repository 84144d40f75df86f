// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the calls that a routed program makes.
//! In from: the program. Out to: `names`, `agent`, `next`.
//! Invariants: what is not routed is passed on as it is; `errno` is that of the call.

pub(crate) mod close;
pub(crate) mod entries;
pub(crate) mod folders;
pub(crate) mod memory;
pub(crate) mod open;
pub(crate) mod process;
pub(crate) mod read;
pub(crate) mod stat;
pub(crate) mod write;

use crate::names::Routed;
use crate::next;
use backstay_route::message::Kind;
use std::ffi::{c_char, c_int};

/// Whether a path is a folder of the file system: folders are not routed, whatever their names.
unsafe fn is_folder(folder: c_int, path: *const c_char) -> bool {
    // SAFETY: zeros are such a structure; the caller promises the path.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        let found = next::fstatat(folder, path, &raw mut about, 0) == 0;
        found && about.st_mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// Whether the file of a routed name is on this node.
fn is_there(routed: &Routed) -> bool {
    // SAFETY: zeros are such a structure; the path ends in zero.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        next::fstatat(
            libc::AT_FDCWD,
            routed.live.as_ptr(),
            &raw mut about,
            libc::AT_SYMLINK_NOFOLLOW,
        ) == 0
    }
}

/// Makes a call with the place of a routed name; where nothing is there, and the name is a folder, as it was.
unsafe fn at_place(
    routed: &Routed,
    (folder, path): (c_int, *const c_char),
    at_place: impl Fn(*const c_char) -> c_int,
    as_it_is: impl FnOnce() -> c_int,
) -> c_int {
    let outcome = at_place(routed.live.as_ptr());
    if outcome == 0 || next::errno() != libc::ENOENT {
        return outcome;
    }
    if let Some(far) = crate::agent::far(routed, Kind::Look) {
        return at_place(far);
    }
    // SAFETY: the caller's promise.
    if unsafe { is_folder(folder, path) } {
        return as_it_is();
    }
    next::set_errno(libc::ENOENT);
    outcome
}
