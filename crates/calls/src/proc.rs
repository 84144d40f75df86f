// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a process that waits in a call has: its folder, its descriptors, what it maps, its path in memory.
//! In from: `/proc`, memory of the process. Out to: `answer` and the modules beside it.
//! Invariants: what is read of a process is its own only if its call still waits afterwards: `kernel::is_waiting`.

use crate::kernel::{Call, read_memory};
use crate::table::Name;
use backstay_route::place::{PATH_BYTES, View};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat, statat};
use rustix::io::Errno;
use std::fs;
use std::ops::Range;

/// Which file it is.
pub(crate) type Inode = (u64, u64);

/// Memory is read up to the end of a page, which is there or not as a whole.
const PAGE_BYTES: u64 = 4096;
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The text that an argument points to.
pub(crate) fn text(call: &Call, at: usize) -> Result<Vec<u8>, Errno> {
    let mut address = call.arguments[at];
    let mut text = Vec::new();
    let mut buffer = [0u8; PATH_BYTES];
    while text.len() < PATH_BYTES {
        let left = usize::try_from(PAGE_BYTES - address % PAGE_BYTES).unwrap_or(PATH_BYTES);
        let read = read_memory(call.tid, address, &mut buffer[..left])?;
        let page = &buffer[..read];
        if let Some(end) = page.iter().position(|&byte| byte == 0) {
            text.extend(&page[..end]);
            let fits = text.len() < PATH_BYTES;
            return fits.then_some(text).ok_or(Errno::NAMETOOLONG);
        }
        if read < left {
            return Err(Errno::FAULT);
        }
        text.extend(page);
        address += PAGE_BYTES - address % PAGE_BYTES;
    }
    Err(Errno::NAMETOOLONG)
}

/// An argument that is an `int`.
pub(crate) fn number(call: &Call, at: usize) -> i32 {
    // The upper half may be anything.
    let [a, b, c, d, ..] = call.arguments[at].to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}

/// What a link of `/proc` leads to.
fn path_of(link: &str) -> Option<Vec<u8>> {
    let path = readlinkat(CWD, link, Vec::new()).ok()?.into_bytes();
    path.starts_with(b"/").then_some(path)
}

/// The path of a descriptor of the thread.
pub(crate) fn descriptor_path(tid: i32, fd: i32) -> Option<Vec<u8>> {
    path_of(&format!("/proc/{tid}/fd/{fd}"))
}

/// The folders of a process, as one of its calls sees them.
pub(crate) struct Seen {
    tid: i32,
    /// The descriptor that relative paths are below, if it is not the process's own folder.
    folder: Option<i32>,
}

impl Seen {
    pub(crate) fn new(call: &Call, name: Name) -> Self {
        let folder = name.folder.map(|at| number(call, at));
        Self {
            tid: call.tid,
            folder: folder.filter(|&fd| fd != libc::AT_FDCWD),
        }
    }

    fn base(&self) -> String {
        match self.folder {
            Some(fd) => format!("/proc/{}/fd/{fd}", self.tid),
            None => format!("/proc/{}/cwd", self.tid),
        }
    }

    /// Opens a folder, if it is one.
    fn open(&self, path: &[u8]) -> Option<OwnedFd> {
        if !path.starts_with(b"/") {
            let base = openat(CWD, self.base(), FOLDER, Mode::empty()).ok()?;
            return openat(base, path, FOLDER, Mode::empty()).ok();
        }
        let root = format!("/proc/{}/root", self.tid);
        let root = openat(CWD, root, FOLDER, Mode::empty()).ok()?;
        let inode = |about: rustix::fs::Stat| (about.st_dev, about.st_ino);
        let theirs = rustix::fs::fstat(&root).map(inode);
        let ours = statat(CWD, "/", AtFlags::empty()).map(inode);
        if theirs == ours {
            return openat(CWD, path, FOLDER, Mode::empty()).ok();
        }
        openat2(root, path, FOLDER, Mode::empty(), ResolveFlags::IN_ROOT).ok()
    }

    /// Whether a path is a folder.
    pub(crate) fn is_folder(&self, path: &[u8]) -> bool {
        self.open(path).is_some()
    }
}

impl View for Seen {
    fn real(&self, path: &[u8]) -> Option<Vec<u8>> {
        let folder = self.open(path)?;
        path_of(&format!("/proc/self/fd/{}", folder.as_raw_fd()))
    }

    fn below(&self) -> Option<Vec<u8>> {
        path_of(&self.base())
    }
}

/// Of which process a thread is, and what its files are made without.
pub(crate) fn process_and_umask(tid: i32) -> Option<(i32, u32)> {
    let text = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let value = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name).map(str::trim))
    };
    let umask = value("Umask:").and_then(|mask| u32::from_str_radix(mask, 8).ok());
    Some((value("Tgid:")?.parse().ok()?, umask.unwrap_or(0o22)))
}

pub(crate) fn inode(file: impl AsFd) -> Option<Inode> {
    let about = rustix::fs::fstat(file).ok()?;
    Some((about.st_dev, about.st_ino))
}

/// Which file a descriptor of the thread is.
pub(crate) fn descriptor_inode(tid: i32, fd: i32) -> Option<Inode> {
    let about = statat(CWD, format!("/proc/{tid}/fd/{fd}"), AtFlags::empty()).ok()?;
    Some((about.st_dev, about.st_ino))
}

/// Descriptors of the thread through which it can write a file.
pub(crate) fn writers(tid: i32, file: Inode) -> Vec<i32> {
    let entries = fs::read_dir(format!("/proc/{tid}/fd"));
    let names = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    names
        .filter(|&fd| descriptor_inode(tid, fd) == Some(file) && writes(tid, fd))
        .collect()
}

/// Other processes than one, and this, that can write a file by a descriptor.
pub(crate) fn others(pid: i32, file: Inode) -> Vec<i32> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&other| other != pid && other != own && !writers(other, file).is_empty())
        .collect()
}

fn writes(tid: i32, fd: i32) -> bool {
    let text = fs::read_to_string(format!("/proc/{tid}/fdinfo/{fd}")).unwrap_or_default();
    let mut lines = text.lines();
    let flags = lines.find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// The highest of these numbers that is no descriptor of the thread.
pub(crate) fn free_descriptor(tid: i32, numbers: &Range<u32>) -> Option<u32> {
    let is_free = |fd: &u32| {
        let link = format!("/proc/{tid}/fd/{fd}");
        statat(CWD, link, AtFlags::SYMLINK_NOFOLLOW).err() == Some(Errno::NOENT)
    };
    numbers.clone().rev().find(is_free)
}

/// Whether a process maps a file so that others see what it writes.
pub(crate) fn maps(pid: i32, file: Inode) -> bool {
    let Ok(text) = fs::read(format!("/proc/{pid}/maps")) else {
        return false;
    };
    let inode = file.1.to_string();
    text.split(|&byte| byte == b'\n').any(|line| {
        let mut words = line
            .split(|&byte| byte == b' ')
            .filter(|word| !word.is_empty());
        let is_shared = words.nth(1).is_some_and(|access| access.ends_with(b"s"));
        is_shared && words.nth(2) == Some(inode.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn own() -> i32 {
        rustix::process::getpid().as_raw_nonzero().get()
    }

    #[test]
    fn folders_are_seen_as_the_process_sees_them() {
        let folder = tempfile::tempdir().expect("folder");
        let real = folder.path().canonicalize().expect("real");
        fs::create_dir(real.join("out")).expect("out");
        symlink("out", real.join("link")).expect("link");
        let open = fs::File::open(&real).expect("open");
        let bytes = |path: &std::path::Path| path.as_os_str().as_encoded_bytes().to_vec();
        let seen = Seen {
            tid: own(),
            folder: Some(open.as_raw_fd()),
        };
        assert_eq!(seen.below(), Some(bytes(&real)));
        assert_eq!(seen.real(b"link"), Some(bytes(&real.join("out"))));
        assert_eq!(seen.real(&bytes(&real.join("link"))), seen.real(b"./out"));
        assert_eq!(seen.real(b"none"), None);
        assert!(seen.is_folder(b".") && !seen.is_folder(b"none"));
    }

    #[test]
    fn who_can_write_a_file_is_found() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("file");
        let writer = fs::File::create(&path).expect("created");
        let file = inode(&writer).expect("inode");
        let reader = fs::File::open(&path).expect("open");
        assert_eq!(writers(own(), file), [writer.as_raw_fd()]);
        assert_eq!(descriptor_inode(own(), reader.as_raw_fd()), Some(file));
        assert!(!maps(own(), file) && others(own(), file).is_empty());
        let free = free_descriptor(own(), &(3..60000)).expect("free");
        assert_eq!(free, 59999);
        let (pid, umask) = process_and_umask(own()).expect("status");
        assert!(pid == own() && umask <= 0o777);
    }
}
