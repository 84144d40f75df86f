// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which names are routed, and where they lead.
//! In from: `hooks`; the table that the agent wrote. Out to: the same.
//! Invariants: the folder of a name is found by the kernel, so that links and `..` in it are followed; its last component
//! is not; what no pattern can match makes no call of the kernel.

use crate::next;
use backstay_route::table::{Found, Table};
use backstay_route::{FAR, LIVE, NEAR, TABLE_FILE, VARIABLE};
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;

/// The longest path, with its zero byte.
const PATH_BYTES: usize = 4096;

/// What the agent said.
pub(crate) struct Spec {
    /// Its folder.
    pub(crate) folder: Vec<u8>,
    pub(crate) table: Table,
    /// Where the files are.
    pub(crate) live: Vec<u8>,
    /// Where files of other nodes are to be seen, and to be read, if there are any.
    far: Option<[Vec<u8>; 2]>,
}

/// A routed name.
pub(crate) struct Routed {
    /// Its absolute path.
    pub(crate) name: Vec<u8>,
    /// Where it leads.
    pub(crate) live: CString,
    /// Where it is if it is on another node.
    pub(crate) far: Option<Far>,
}

/// The places of a name of another node.
pub(crate) struct Far {
    /// Its size and times.
    pub(crate) seen: CString,
    /// A copy of it.
    pub(crate) read: CString,
}

impl Routed {
    pub(crate) fn path(&self) -> *const c_char {
        self.live.as_ptr()
    }
}

/// The table of this run; nothing where there is none.
pub(crate) fn spec() -> Option<&'static Spec> {
    static SPEC: OnceLock<Option<Spec>> = OnceLock::new();
    SPEC.get_or_init(read_spec).as_ref()
}

fn read_spec() -> Option<Spec> {
    let variable = CString::new(VARIABLE).ok()?;
    // SAFETY: a name that ends in zero; what it gives is not changed before it is copied.
    let folder = unsafe {
        let value = libc::getenv(variable.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes().to_vec())?
    };
    // On several nodes it is a link, and what the kernel says of places is without.
    let folder = real_folder(libc::AT_FDCWD, &folder).unwrap_or(folder);
    let join = |name: &str| [&folder[..], b"/", name.as_bytes()].concat();
    let path = CString::new(join(TABLE_FILE)).ok()?;
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
    let table = Table::decode(&bytes)?;
    let (live, far) = (join(LIVE), [join(FAR), join(NEAR)]);
    let has_far = real_folder(libc::AT_FDCWD, &far[0]).is_some();
    Some(Spec {
        folder,
        table,
        live,
        far: has_far.then_some(far),
    })
}

impl Spec {
    /// Whether there are other nodes.
    pub(crate) fn is_spread(&self) -> bool {
        self.far.is_some()
    }

    /// Where a name's file is, below one of the agent's folders.
    fn place(below: &[u8], folder: usize, rest: &[u8]) -> Option<CString> {
        let number = folder.to_string();
        let mut place = [below, b"/", number.as_bytes()].concat();
        if !rest.is_empty() {
            place.push(b'/');
            place.extend(rest);
        }
        CString::new(place).ok()
    }

    /// The name of a place: what [`Spec::place`] made a place of.
    pub(crate) fn name_of(&self, place: &[u8]) -> Option<Vec<u8>> {
        let rest = place.strip_prefix(&self.live[..])?.strip_prefix(b"/")?;
        let slash = rest.iter().position(|&byte| byte == b'/')?;
        let folder = std::str::from_utf8(&rest[..slash]).ok()?.parse().ok()?;
        let name = self.table.path(folder, &rest[slash + 1..])?;
        self.table.find(&name).is_some().then_some(name)
    }

    fn routed(&self, name: Vec<u8>) -> Option<Routed> {
        let Found { folder, rest, .. } = self.table.find(&name)?;
        let (live, far) = self.places(folder, rest)?;
        Some(Routed { name, live, far })
    }

    fn places(&self, folder: usize, rest: &[u8]) -> Option<(CString, Option<Far>)> {
        let far = self.far.as_ref().and_then(|[far, near]| {
            let seen = Self::place(far, folder, rest)?;
            let read = Self::place(near, folder, rest)?;
            Some(Far { seen, read })
        });
        Some((Self::place(&self.live, folder, rest)?, far))
    }
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

fn split(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(0) => (Some(b"/"), &path[1..]),
        Some(at) => (Some(&path[..at]), &path[at + 1..]),
        None => (None, path),
    }
}

/// The routed name that a path below `folder` is.
pub(crate) unsafe fn resolve(folder: c_int, path: *const c_char) -> Option<Routed> {
    let spec = spec()?;
    // SAFETY: the caller's promise.
    let path = unsafe { bytes_of(path) }?;
    let (_, last) = split(path);
    if last.is_empty() || last == b"." || last == b".." || !spec.table.may_end_in(last) {
        return None;
    }
    spec.routed(absolute(folder, path)?)
}

/// The place of a folder that routed names can be in, and its own path; `path` need not be there.
pub(crate) unsafe fn resolve_folder(folder: c_int, path: *const c_char) -> Option<Routed> {
    let spec = spec()?;
    // SAFETY: the caller's promise.
    let mut path = unsafe { bytes_of(path) }?;
    while path.len() > 1 && path.ends_with(b"/") {
        path = &path[..path.len() - 1];
    }
    if !spec.table.may_be_in(split(path).1) {
        return None;
    }
    folder_at(absolute(folder, path)?)
}

/// The same of an absolute path, and of folders before the first wildcard.
pub(crate) fn folder_at(name: Vec<u8>) -> Option<Routed> {
    let spec = spec()?;
    let (folder, rest) = spec.table.find_folder(&name)?;
    let (live, far) = spec.places(folder, rest)?;
    Some(Routed { name, live, far })
}

/// The absolute path of a name, which need not be there.
pub(crate) unsafe fn absolute_of(folder: c_int, path: *const c_char) -> Option<Vec<u8>> {
    // SAFETY: the caller's promise.
    let path = unsafe { bytes_of(path) }?;
    absolute(folder, path)
}

fn absolute(folder: c_int, path: &[u8]) -> Option<Vec<u8>> {
    let kept = next::errno();
    let (parent, last) = split(path);
    let parent = match parent {
        Some(parent) => real_folder(folder, parent).or_else(|| plain(folder, parent)),
        None => folder_of(folder),
    };
    next::set_errno(kept);
    let mut name = parent?;
    if !name.ends_with(b"/") {
        name.push(b'/');
    }
    name.extend(last);
    Some(name)
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

/// A path whose folder is not there, by its letters.
fn plain(folder: c_int, path: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let base = if path.starts_with(b"/") {
        Vec::new()
    } else {
        folder_of(folder)?
    };
    for part in base
        .split(|&byte| byte == b'/')
        .chain(path.split(|&byte| byte == b'/'))
    {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            other => parts.push(other.to_vec()),
        }
    }
    let joined: Vec<u8> = parts
        .iter()
        .flat_map(|part| [b"/", &part[..]].concat())
        .collect();
    Some(if joined.is_empty() {
        b"/".to_vec()
    } else {
        joined
    })
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
