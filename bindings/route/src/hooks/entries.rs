// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: calls that give names to files and take them: rename, unlink, link, folders.
//! In from: the program. Out to: `agent`, which does it and knows what it means.
//! Invariants: folders are made and removed where the program says; links to routed names, and such as routed names,
//! are refused.

use super::{is_folder, is_there};
use crate::names::{Routed, absolute_of, resolve, resolve_folder};
use crate::{agent, next};
use backstay_route::message::{FIRST_ROUTED, Kind, Message, SECOND_ROUTED};
use libc::AT_FDCWD;
use std::ffi::{c_char, c_int, c_uint};

type Path = *const c_char;

fn outcome(error: c_int) -> c_int {
    if error == 0 {
        return 0;
    }
    next::set_errno(error);
    -1
}

/// A routed name that is no folder.
unsafe fn file(folder: c_int, path: Path) -> Option<Routed> {
    // SAFETY: the program's promise.
    unsafe { resolve(folder, path).filter(|routed| is_there(routed) || !is_folder(folder, path)) }
}

unsafe fn rename_at(
    (from_folder, from): (c_int, Path),
    (to_folder, to): (c_int, Path),
    flags: c_uint,
    as_it_is: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        let first = file(from_folder, from);
        let second = if first.is_some() || !is_folder(from_folder, from) {
            file(to_folder, to)
        } else {
            None
        };
        if first.is_none() && second.is_none() {
            return rename_folder((from_folder, from), (to_folder, to), as_it_is);
        }
        let routed = if first.is_some() { FIRST_ROUTED } else { 0 }
            | if second.is_some() { SECOND_ROUTED } else { 0 };
        let first = first
            .map(|routed| routed.name)
            .or_else(|| absolute_of(from_folder, from));
        let second = second
            .map(|routed| routed.name)
            .or_else(|| absolute_of(to_folder, to));
        let (Some(first), Some(second)) = (first, second) else {
            return outcome(libc::ENOENT);
        };
        let value = c_int::try_from(flags).unwrap_or(-1);
        let message = Message {
            kind: Kind::Rename,
            id: routed,
            value,
            first: &first,
            second: &second,
        };
        outcome(agent::ask(&message))
    }
}

/// A rename of what is not routed: of a folder, what is routed in it goes with it.
unsafe fn rename_folder(
    from: (c_int, Path),
    to: (c_int, Path),
    as_it_is: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        let (first, second) = (resolve_folder(from.0, from.1), resolve_folder(to.0, to.1));
        let done = as_it_is();
        if let (0, Some(first), Some(second)) = (done, first, second) {
            let (first, second) = (&first.name[..], &second.name[..]);
            let message = Message {
                kind: Kind::RenameFolder,
                id: 0,
                value: 0,
                first,
                second,
            };
            return outcome(agent::ask(&message));
        }
        done
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rename(from: Path, to: Path) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        rename_at((AT_FDCWD, from), (AT_FDCWD, to), 0, || {
            next::rename(from, to)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat(from_folder: c_int, from: Path, to_folder: c_int, to: Path) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        rename_at((from_folder, from), (to_folder, to), 0, || {
            next::renameat(from_folder, from, to_folder, to)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn renameat2(
    from_folder: c_int,
    from: Path,
    to_folder: c_int,
    to: Path,
    flags: c_uint,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        let as_it_is = || next::renameat2(from_folder, from, to_folder, to, flags);
        rename_at((from_folder, from), (to_folder, to), flags, as_it_is)
    }
}

unsafe fn remove_at(folder: c_int, path: Path, as_it_is: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the program's promise.
    match unsafe { file(folder, path) } {
        Some(routed) => {
            let message = Message::named(Kind::Remove, 0, 0, &routed.name);
            outcome(agent::ask(&message))
        }
        None => as_it_is(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlink(path: Path) -> c_int {
    // SAFETY: the program's promise.
    unsafe { remove_at(AT_FDCWD, path, || next::unlink(path)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn remove(path: Path) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        let as_it_is = || {
            if is_folder(AT_FDCWD, path) {
                rmdir(path)
            } else {
                next::remove(path)
            }
        };
        remove_at(AT_FDCWD, path, as_it_is)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn unlinkat(folder: c_int, path: Path, flags: c_int) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        let as_it_is = || next::unlinkat(folder, path, flags);
        if flags & libc::AT_REMOVEDIR != 0 {
            return remove_folder(folder, path, as_it_is);
        }
        remove_at(folder, path, as_it_is)
    }
}

/// A folder that has routed files is not empty.
unsafe fn remove_folder(folder: c_int, path: Path, as_it_is: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the program's promise; the place ends in zero.
    unsafe {
        if let Some(place) = resolve_folder(folder, path)
            && next::rmdir(place.live.as_ptr()) != 0
            && [libc::ENOTEMPTY, libc::EEXIST].contains(&next::errno())
        {
            return -1;
        }
        as_it_is()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rmdir(path: Path) -> c_int {
    // SAFETY: the program's promise.
    unsafe { remove_folder(AT_FDCWD, path, || next::rmdir(path)) }
}

/// Links are refused: a name would have two places.
unsafe fn linked(names: &[(c_int, Path)], as_it_is: impl FnOnce() -> c_int) -> c_int {
    for &(folder, path) in names {
        // SAFETY: the program's promise.
        if unsafe { file(folder, path) }.is_some() {
            return outcome(libc::EPERM);
        }
    }
    as_it_is()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn link(from: Path, to: Path) -> c_int {
    // SAFETY: the program's promise.
    unsafe { linked(&[(AT_FDCWD, from), (AT_FDCWD, to)], || next::link(from, to)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn linkat(
    from_folder: c_int,
    from: Path,
    to_folder: c_int,
    to: Path,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        linked(&[(from_folder, from), (to_folder, to)], || {
            next::linkat(from_folder, from, to_folder, to, flags)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symlink(target: Path, path: Path) -> c_int {
    // SAFETY: the program's promise.
    unsafe { linked(&[(AT_FDCWD, path)], || next::symlink(target, path)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn symlinkat(target: Path, folder: c_int, path: Path) -> c_int {
    // SAFETY: the program's promise.
    unsafe { linked(&[(folder, path)], || next::symlinkat(target, folder, path)) }
}
