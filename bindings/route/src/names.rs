// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which names are routed, and where they lead.
//! In from: `hooks`; the table that the agent wrote. Out to: the same.
//! Invariants: the folder of a name is found by the kernel, so that links and `..` in it are followed; its last component
//! is not; what no pattern can match makes no call of the kernel.

use crate::next;
pub(crate) use backstay_route::place::Routed;
use backstay_route::place::{PATH_BYTES, Places, View, absolute};
use backstay_route::table::Table;
use backstay_route::{PART_FILE, TABLE_FILE, VARIABLE};
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;

/// The table of this run; nothing where there is none.
pub(crate) fn spec() -> Option<&'static Places> {
    static SPEC: OnceLock<Option<Places>> = OnceLock::new();
    SPEC.get_or_init(read_spec).as_ref()
}

fn read_spec() -> Option<Places> {
    let variable = CString::new(VARIABLE).ok()?;
    // SAFETY: a name that ends in zero; what it gives is not changed before it is copied.
    let folder = unsafe {
        let value = libc::getenv(variable.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes().to_vec())?
    };
    // On several nodes it is a link, and what the kernel says of places is without.
    let folder = real_folder(libc::AT_FDCWD, &folder).unwrap_or(folder);
    let join = |name: &str| [&folder[..], b"/", name.as_bytes()].concat();
    let table = Table::decode(&read_file(join(TABLE_FILE))?)?;
    let behind = read_file(join(PART_FILE));
    let is_spread = |far: &[u8]| real_folder(libc::AT_FDCWD, far).is_some();
    Some(Places::new(folder, table, is_spread, behind))
}

/// What a file has, all of it.
fn read_file(path: Vec<u8>) -> Option<Vec<u8>> {
    let path = CString::new(path).ok()?;
    let mut bytes = Vec::new();
    // SAFETY: a path that ends in zero, and a buffer of the length that is named.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let fd = next::openat(libc::AT_FDCWD, path.as_ptr(), flags, 0);
        if fd < 0 {
            return None;
        }
        let mut buffer = [0u8; PATH_BYTES];
        loop {
            let read = libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len());
            match usize::try_from(read) {
                Ok(0) | Err(_) => break,
                Ok(length) => bytes.extend(&buffer[..length.min(PATH_BYTES)]),
            }
        }
        next::close(fd);
    }
    Some(bytes)
}

/// This process, in a call with this descriptor of a folder.
struct Own(c_int);

impl View for Own {
    fn real(&self, path: &[u8]) -> Option<Vec<u8>> {
        real_folder(self.0, path)
    }
    fn below(&self) -> Option<Vec<u8>> {
        folder_of(self.0)
    }
}

/// What `find` finds; `errno` stays.
fn quietly<T>(find: impl FnOnce() -> T) -> T {
    let kept = next::errno();
    let found = find();
    next::set_errno(kept);
    found
}

/// The places of a name.
pub(crate) fn routed_of(name: Vec<u8>) -> Option<Routed> {
    spec()?.routed(name)
}

/// A name as it was given, if it can be one of a file.
unsafe fn bytes_of<'a>(path: *const c_char) -> Option<&'a [u8]> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the program's promise to the C library.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    (!path.is_empty() && path.len() < PATH_BYTES).then_some(path)
}

/// The routed name that a path below `folder` is.
pub(crate) unsafe fn resolve(folder: c_int, path: *const c_char) -> Option<Routed> {
    let spec = spec()?;
    // SAFETY: the caller's promise.
    let path = unsafe { bytes_of(path) }?;
    quietly(|| spec.file(path, &Own(folder)))
}

/// The place of a folder that routed names can be in, and its own path; `path` need not be there.
pub(crate) unsafe fn resolve_folder(folder: c_int, path: *const c_char) -> Option<Routed> {
    let spec = spec()?;
    // SAFETY: the caller's promise.
    let path = unsafe { bytes_of(path) }?;
    quietly(|| spec.folder(path, &Own(folder)))
}

/// The same of an absolute path, and of folders before the first wildcard.
pub(crate) fn folder_at(name: Vec<u8>) -> Option<Routed> {
    spec()?.folder_at(name)
}

/// The absolute path of a name, which need not be there.
pub(crate) unsafe fn absolute_of(folder: c_int, path: *const c_char) -> Option<Vec<u8>> {
    // SAFETY: the caller's promise.
    let path = unsafe { bytes_of(path) }?;
    quietly(|| absolute(path, &Own(folder)))
}

/// The path of a folder that is there, as the kernel has it.
fn real_folder(folder: c_int, path: &[u8]) -> Option<Vec<u8>> {
    let path = CString::new(path).ok()?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a path that ends in zero.
    let fd = unsafe { next::openat(folder, path.as_ptr(), flags, 0) };
    if fd < 0 {
        return None;
    }
    let found = path_of(fd);
    // SAFETY: it was opened above.
    unsafe { next::close(fd) };
    found
}

fn folder_of(folder: c_int) -> Option<Vec<u8>> {
    if folder != libc::AT_FDCWD {
        return path_of(folder);
    }
    let mut buffer = [0u8; PATH_BYTES];
    // SAFETY: a buffer of the length that is named.
    let length = unsafe { libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) };
    let length = usize::try_from(length).ok().filter(|&length| length > 1)?;
    // What cannot be reached does not begin with a slash.
    let path = &buffer[..length - 1];
    path.starts_with(b"/").then(|| path.to_vec())
}

/// The path of what is open.
pub(crate) fn path_of(fd: c_int) -> Option<Vec<u8>> {
    let link = CString::new(format!("/proc/self/fd/{fd}")).ok()?;
    let mut buffer = [0u8; PATH_BYTES];
    // SAFETY: a path that ends in zero, and a buffer of the length that is named.
    let length = unsafe {
        next::readlinkat(
            libc::AT_FDCWD,
            link.as_ptr(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
        )
    };
    let length = usize::try_from(length).ok()?;
    let path = buffer.get(..length)?;
    path.starts_with(b"/").then(|| path.to_vec())
}
