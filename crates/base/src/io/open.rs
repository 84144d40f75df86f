// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the one place where descriptors that stay come from, and where this process's limit on the
//! size of files is asked for.
//! In from: whoever opens a file or a socket. Out to: the kernel.
//! Invariants: a descriptor of ours is 3 or above, also where the program was started without standard
//! input, output or error: what somebody prints never lands in a store. A file is not made longer, and
//! not written, beyond the limit (`RLIMIT_FSIZE`): the kernel would end the program for it.

use backstay_format::width::to_u64;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec, fcntl_getfd};
use rustix::process::{Resource, getrlimit};
use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Result, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The first descriptor that is nobody's standard input, output or error.
const FIRST: i32 = 3;

/// What `make` opens, at a descriptor of 3 or above.
pub fn above_standard<T>(make: impl FnOnce() -> Result<T>) -> Result<T>
where
    T: From<OwnedFd>,
    OwnedFd: From<T>,
{
    let held = hold_standard();
    let made = make();
    drop(held);
    // Another thread may have closed one of them, or freed its place, meanwhile.
    moved_above(made?)
}

/// What was opened, at a descriptor of 3 or above: for what comes after a wait without end, in which no
/// place can be held.
pub fn moved_above<T>(made: T) -> Result<T>
where
    T: From<OwnedFd>,
    OwnedFd: From<T>,
{
    let made = OwnedFd::from(made);
    if made.as_raw_fd() >= FIRST {
        return Ok(made.into());
    }
    Ok(fcntl_dupfd_cloexec(&made, FIRST)?.into())
}

/// Takes the places of standard descriptors that are closed, by ones that nobody can write to, so that
/// what is opened meanwhile stands above them.
fn hold_standard() -> Vec<OwnedFd> {
    let mut held = Vec::new();
    while is_closed(std::io::stdin())
        || is_closed(std::io::stdout())
        || is_closed(std::io::stderr())
    {
        match rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
            Ok(place) if place.as_raw_fd() < FIRST => held.push(place),
            _ => break,
        }
    }
    held
}

fn is_closed(standard: impl AsFd) -> bool {
    fcntl_getfd(standard) == Err(Errno::BADF)
}

/// Opens a file as `options` say.
pub fn open(options: &OpenOptions, path: &Path) -> Result<File> {
    above_standard(|| options.open(path))
}

/// Opens a file, or a folder, for reading.
pub fn open_read(path: &Path) -> Result<File> {
    above_standard(|| File::open(path))
}

/// Opens a small file of ours for reading and writing, as it is; made, readable by its owner only, where
/// it is missing.
pub fn open_own(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    open(options.mode(0o600), path)
}

/// Makes `text` all that a small file of ours holds.
pub fn inscribe(file: &mut File, text: &str) -> Result<()> {
    check_file_size(to_u64(text.len()))?;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

/// Puts `text` in the place of a small file: whoever reads it finds the old or the new one, whole.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    check_file_size(to_u64(text.len()))?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = open(&options, Path::new(&beside))?;
    file.write_all(text.as_bytes())?;
    std::fs::rename(&beside, path)
}

/// Bytes that a file which this process writes may have; `None` if there is no limit. It may change at
/// any time, and asking is cheap beside writing.
pub fn file_size_limit() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// That this process may make a file of `end` bytes, or write up to there.
pub fn check_file_size(end: u64) -> Result<()> {
    match file_size_limit().filter(|limit| end > *limit) {
        None => Ok(()),
        Some(limit) => {
            let text = format!(
                "{end} bytes in a file, but this process may write {limit} at most (RLIMIT_FSIZE, \
                 `ulimit -f`): raise that limit"
            );
            Err(Error::new(ErrorKind::FileTooLarge, text))
        }
    }
}

/// Whether a line of `length` bytes can be written to a stream of the program's without a signal that
/// ends it: a file at the limit, or a pipe that nobody reads.
pub fn can_take(stream: impl AsFd, length: usize) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::new(&stream, PollFlags::OUT)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let unread = PollFlags::ERR | PollFlags::NVAL;
    if poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().intersects(unread) {
        return false;
    }
    if file_size_limit().is_none() {
        return true;
    }
    let Ok(found) = rustix::fs::fstat(&stream) else {
        return false;
    };
    if rustix::fs::FileType::from_raw_mode(found.st_mode) != rustix::fs::FileType::RegularFile {
        return true;
    }
    let appends =
        rustix::fs::fcntl_getfl(&stream).is_ok_and(|flags| flags.contains(OFlags::APPEND));
    let size = u64::try_from(found.st_size).unwrap_or(u64::MAX);
    let position = match rustix::fs::tell(&stream) {
        Ok(position) if !appends => position,
        _ => size,
    };
    check_file_size(position.saturating_add(to_u64(length))).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_is_replaced_and_inscribed_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a file");
        replace(&path, "longer than the next").unwrap();
        replace(&path, "next").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"next");
        let mut file = open_own(&path).unwrap();
        inscribe(&mut file, "me").unwrap();
        inscribe(&mut file, "I").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"I");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_opened_stands_above_the_standard_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        let file = open_own(&folder.path().join("a file")).unwrap();
        assert!(file.as_raw_fd() >= FIRST);
        let listener = above_standard(|| std::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        assert!(listener.as_raw_fd() >= FIRST);
        assert!(!is_closed(std::io::stderr()), "the tests need no holding");
    }

    #[test]
    fn a_pipe_that_nobody_reads_takes_no_line() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(can_take(&writer, 10));
        drop(reader);
        assert!(!can_take(&writer, 10));
    }
}
