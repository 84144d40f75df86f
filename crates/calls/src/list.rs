// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: listings: what a folder has, and the routed files that would be in it.
//! In from: `answer`. Out to: the program's buffer.
//! Invariants: a file of the file system whose name is routed is not listed, since it cannot be opened; the order is that
//! of the file system, then that of the memory; who begins anew reads both anew.

use crate::answer::{Answers, Reply};
use crate::kernel::{self, Call};
use crate::proc::{Inode, descriptor_path, inode, number, process_and_umask};
use backstay_route::place::Routed;
use rustix::fd::OwnedFd;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// No program has more room for entries at once.
const BUFFER_BYTES_MAX: u64 = 1 << 20;
/// Of an entry: its inode, its position, its length, its kind; then its name, with a zero byte.
const LENGTH_AT: usize = 16;
const KIND_AT: usize = 18;
const NAME_AT: usize = 19;
const FOLDER: u8 = libc::DT_DIR;
const FILE: u8 = libc::DT_REG;
/// Listings that were left before their end are forgotten when there are more.
const LISTINGS_MAX: usize = 4096;

/// What is left of a listing whose folder is at its end.
struct Rest {
    folder: Inode,
    position: u64,
    entries: Vec<(u64, Vec<u8>)>,
}

/// Listings, by process and descriptor.
#[derive(Default)]
pub(crate) struct Listings(Mutex<BTreeMap<(i32, i32), Rest>>);

impl Answers {
    /// Entries of a folder that routed files can be in.
    pub(crate) fn entries(&self, call: &Call) -> Reply {
        let fd = number(call, 0);
        let place = descriptor_path(call.tid, fd).and_then(|name| self.places.folder_at(name));
        match place {
            Some(place) if fs::metadata(path_of(place.live.as_bytes())).is_ok() => {
                match self.listed(call, fd, &place) {
                    Ok(bytes) => Reply::Done(bytes),
                    Err(error) => Reply::Failed(error),
                }
            }
            _ => Reply::GoOn,
        }
    }

    fn listed(&self, call: &Call, fd: i32, place: &Routed) -> Result<i64, Errno> {
        let (pid, _) = process_and_umask(call.tid).ok_or(Errno::SRCH)?;
        // It has the position of the program's.
        let folder = borrowed(pid, fd)?;
        let size = call.arguments[2].min(BUFFER_BYTES_MAX);
        let size = usize::try_from(size).map_err(|_| Errno::INVAL)?;
        let file = inode(&folder).ok_or(Errno::BADF)?;
        let position = seek(&folder, SeekFrom::Current(0))?;
        let mut all = self
            .listings
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let key = (pid, fd);
        let goes_on = |rest: &Rest| rest.folder == file && rest.position == position;
        if position == 0 || !all.get(&key).is_some_and(goes_on) {
            all.remove(&key);
            let shown = self.shown(&folder, &place.name, size)?;
            if !shown.is_empty() {
                kernel::write_memory(call.tid, call.arguments[1], &shown)?;
                return i64::try_from(shown.len()).map_err(|_| Errno::INVAL);
            }
            if all.len() >= LISTINGS_MAX {
                all.clear();
            }
            let rest = Rest {
                folder: file,
                position: seek(&folder, SeekFrom::Current(0))?,
                entries: routed_entries(place),
            };
            all.insert(key, rest);
        }
        let Some(rest) = all.get_mut(&key) else {
            return Ok(0);
        };
        let mut bytes = Vec::new();
        while let Some((inode, name)) = rest.entries.last() {
            let entry = encode(*inode, rest.position, name);
            if bytes.len() + entry.len() > size {
                break;
            }
            bytes.extend(entry);
            rest.entries.pop();
        }
        if bytes.is_empty() && !rest.entries.is_empty() {
            return Err(Errno::INVAL);
        }
        kernel::write_memory(call.tid, call.arguments[1], &bytes)?;
        i64::try_from(bytes.len()).map_err(|_| Errno::INVAL)
    }

    /// The next entries of the file system that are shown; none at its end.
    fn shown(&self, folder: &OwnedFd, name: &[u8], size: usize) -> Result<Vec<u8>, Errno> {
        use rustix::fd::AsFd;
        let mut buffer = vec![0u8; size];
        loop {
            let read = kernel::entries(folder.as_fd(), &mut buffer)?;
            let mut left = &buffer[..read];
            let mut shown = Vec::new();
            while let Some((entry, rest)) = split_entry(left) {
                let own = &entry[NAME_AT..];
                let end = own.iter().position(|&byte| byte == 0).unwrap_or(own.len());
                let path = [name, b"/", &own[..end]].concat();
                if entry[KIND_AT] == FOLDER || self.places.table.find(&path).is_none() {
                    shown.extend(entry);
                }
                left = rest;
            }
            if read == 0 || !shown.is_empty() {
                return Ok(shown);
            }
        }
    }
}

/// A descriptor of a process, as it has it.
fn borrowed(pid: i32, fd: i32) -> Result<OwnedFd, Errno> {
    let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_getfd(&process, fd, PidfdGetfdFlags::empty())
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// The routed files of a folder, the last first. Folders are those of the file system.
fn routed_entries(place: &Routed) -> Vec<(u64, Vec<u8>)> {
    let entries = fs::read_dir(path_of(place.live.as_bytes()));
    let files = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()));
    let mut files: Vec<_> = files
        .map(|entry| (entry.ino(), entry.file_name().as_bytes().to_vec()))
        .collect();
    files.reverse();
    files
}

/// The first entry of a buffer, and what follows it.
fn split_entry(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = bytes.get(LENGTH_AT..)?.first_chunk()?;
    let length = usize::from(u16::from_le_bytes(*length));
    if length <= NAME_AT {
        return None;
    }
    bytes.split_at_checked(length)
}

/// An entry as the kernel writes it.
fn encode(inode: u64, position: u64, name: &[u8]) -> Vec<u8> {
    let length = (NAME_AT + name.len() + 1).next_multiple_of(8);
    let mut entry = Vec::with_capacity(length);
    entry.extend(inode.to_le_bytes());
    entry.extend(position.to_le_bytes());
    entry.extend(u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes());
    entry.push(FILE);
    entry.extend(name);
    entry.resize(length, 0);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn entries_are_those_of_the_kernel() {
        let folder = tempfile::tempdir().expect("folder");
        fs::write(folder.path().join("a-file"), "").expect("file");
        let open = OwnedFd::from(fs::File::open(folder.path()).expect("open"));
        let mut buffer = vec![0u8; 4096];
        let read = kernel::entries(open.as_fd(), &mut buffer).expect("entries");
        let mut left = &buffer[..read];
        let mut names = Vec::new();
        while let Some((entry, rest)) = split_entry(left) {
            let name = entry[NAME_AT..].split(|&byte| byte == 0).next();
            names.push(name.unwrap_or_default().to_vec());
            let inode = u64::from_le_bytes(*entry.first_chunk().expect("inode"));
            let at = u64::from_le_bytes(*entry[8..].first_chunk().expect("position"));
            if entry[KIND_AT] == FILE {
                let ours = encode(inode, at, &names[names.len() - 1]);
                assert_eq!(ours.len(), entry.len());
                assert_eq!(ours[..NAME_AT + 7], entry[..NAME_AT + 7]);
            }
            left = rest;
        }
        names.sort();
        assert_eq!(names, [&b"."[..], b"..", b"a-file"]);
        assert!(split_entry(&[0; 40]).is_none() && split_entry(&[9; 10]).is_none());
    }
}
