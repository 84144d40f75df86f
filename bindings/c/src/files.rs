// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: files beside the variables for C: those that stay where they are, and sets that are routed.
//! Invariants: paths and names of files are bytes, UTF-8 or not; a buffer is written within its size only.

use crate::boundary::on_session;
use crate::checkpoint::{Report, reported};
use crate::pointer;
use crate::restore::{Restored, put};
use crate::session::Session;
use crate::sized;
use std::ffi::c_char;
use std::os::unix::ffi::OsStrExt;

/// Protects the file at `path` under `name`: it is part of every checkpoint and of a restore, beside the
/// variables, until backstay_unprotect. It has to be there, and nobody may write it, during a checkpoint; only what
/// changed in it is stored, and holes stay holes. What stdio has in its buffers is not in the file: call fflush
/// before a checkpoint. A restore puts it back with its permissions and its time of modification, at once; folders of
/// its path are made. Symbolic links, folders and devices are refused. Of a path that several processes protect each
/// stores its own copy, so they should be the same, and one restores it. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_protect_file(
    session: *mut Session,
    name: *const c_char,
    path: *const c_char,
) -> i32 {
    on_session(session, "backstay_protect_file", |state| {
        // SAFETY: the header asks for C strings.
        let (name, path) = unsafe { (pointer::text(name, "name")?, pointer::path(path, "path")?) };
        state.engine()?.protect_file(name, path)
    })
}

/// Begins a set of files that the checkpoint of backstay_output_complete will have, as SCR_Start_output does:
/// all processes together. Until then backstay_route_file says where to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_output_start(session: *mut Session) -> i32 {
    on_session(session, "backstay_output_start", |state| {
        state.engine()?.output_start()
    })
}

/// Puts into `routed`, a buffer of `size` bytes, where to write the file `name` after backstay_output_start, or where
/// to read it after backstay_restart_start: a path in the memory of this node. Folders in `name` are made. Outside of
/// them it is `name` as it is. `name` is any path of the program's, the same at a restart; `..` is refused. A buffer
/// that is too small is BACKSTAY_INVALID_ARGUMENT, and the message says how much is needed; 4096 bytes are always
/// enough. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_route_file(
    session: *mut Session,
    name: *const c_char,
    routed: *mut c_char,
    size: usize,
) -> i32 {
    on_session(session, "backstay_route_file", |state| {
        // SAFETY: the header asks for a C string.
        let name = unsafe { pointer::path(name, "name") }?;
        let path = state.engine()?.route_file(name)?;
        // SAFETY: the header asks for a buffer of that size.
        unsafe { pointer::put_text(path.as_os_str().as_bytes(), routed, size, "routed") }
    })
}

/// Takes a checkpoint of the set and of everything protected, as backstay_checkpoint does: all processes together.
/// Close the files first. Where one process says `valid` is 0, did not write a file that it routed, or has one still
/// open for writing, the call fails on all, and the last checkpoint stays. The files are gone from the memory of the
/// node afterwards in any case. `report` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_output_complete(
    session: *mut Session,
    valid: i32,
    report: *mut Report,
) -> i32 {
    on_session(session, "backstay_output_complete", |state| {
        // SAFETY: the header asks for NULL or a struct as long as it says.
        unsafe { sized::check(report) }?;
        let done = state.engine()?.output_complete(valid != 0)?;
        // SAFETY: the same.
        unsafe { sized::write(report, &reported(&done)) }
    })
}

/// Restores everything protected, as backstay_restore does, and the files of the checkpoint's set: all processes
/// together. Until backstay_restart_complete backstay_route_file says where to read them. BACKSTAY_NO_CHECKPOINT means
/// that there is none. `restored` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_restart_start(
    session: *mut Session,
    restored: *mut Restored,
) -> i32 {
    on_session(session, "backstay_restart_start", |state| {
        // SAFETY: the header asks for NULL or a struct as long as it says.
        unsafe { sized::check(restored) }?;
        let from = state.engine()?.restart_start()?;
        // SAFETY: the same.
        unsafe { put(restored, &from) }
    })
}

/// Ends the reading of the set: all processes together. Where one process says `valid` is 0 the checkpoint is given
/// up: the call fails on all, and the next backstay_restart_start takes an older one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_restart_complete(session: *mut Session, valid: i32) -> i32 {
    on_session(session, "backstay_restart_complete", |state| {
        state.engine()?.restart_complete(valid != 0)
    })
}

/// The files of the checkpoint that backstay_restore would take, as `rank` stored them: their names, each with its
/// zero byte, one after the other, to `names`, a buffer of `size` bytes, and their number to `*count`. A protected file
/// goes by the name that it is protected under, a routed one by its own. `*needed` is the bytes of all names, and may
/// be NULL; with `size` 0 it only counts. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_stored_files(
    session: *mut Session,
    rank: u32,
    names: *mut c_char,
    size: usize,
    count: *mut usize,
    needed: *mut usize,
) -> i32 {
    on_session(session, "backstay_stored_files", |state| {
        let count = pointer::required(count, "count")?;
        let files = state.engine()?.stored_files(rank)?;
        let mut all = Vec::new();
        for file in &files {
            all.extend_from_slice(file.name.as_os_str().as_bytes());
            all.push(0);
        }
        // SAFETY: not NULL, so the caller says that they are valid for writing.
        unsafe {
            count.write(files.len());
            if !needed.is_null() {
                needed.write(all.len());
            }
        }
        if size == 0 || files.is_empty() {
            return Ok(());
        }
        all.pop();
        // SAFETY: the header asks for a buffer of that size.
        unsafe { pointer::put_text(&all, names, size, "names") }
    })
}

/// Writes the file `name` of the checkpoint that backstay_restore would take, or took, as `rank` stored it, to `path`:
/// for another number of processes, which share them out themselves. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_restore_file(
    session: *mut Session,
    name: *const c_char,
    rank: u32,
    path: *const c_char,
) -> i32 {
    on_session(session, "backstay_restore_file", |state| {
        // SAFETY: the header asks for C strings.
        let (name, path) = unsafe { (pointer::path(name, "name")?, pointer::path(path, "path")?) };
        state.engine()?.restore_file(name, rank, path).map(drop)
    })
}
