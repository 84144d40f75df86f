// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: copies of files: with their holes, permissions and times.
//! In from: `names`. Out to: the memory of the node, the program's file systems.
//! Invariants: a copy is whole under its name, or not there.

use backstay_base::io::holes::data_of;
use rustix::fs::copy_file_range;
use rustix::io::Errno;
use std::fs::{File, FileTimes};
use std::io::Result;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Copies a file over `to`: beside it, then by a rename.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    let beside = beside(to);
    let copied = copy_to(from, &beside).and_then(|()| std::fs::rename(&beside, to));
    if copied.is_err() {
        // What cannot be removed is removed with its folder.
        drop(std::fs::remove_file(&beside));
    }
    copied
}

fn beside(to: &Path) -> PathBuf {
    let digest = backstay_format::Digest::of(to.as_os_str().as_bytes());
    let name = format!(
        ".backstay-{}-{:02x}{:02x}",
        std::process::id(),
        digest.0[0],
        digest.0[1]
    );
    to.with_file_name(name)
}

fn copy_to(from: &Path, to: &Path) -> Result<()> {
    let source = File::open(from)?;
    let about = source.metadata()?;
    let mut options = std::fs::OpenOptions::new();
    let target = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(to)?;
    target.set_len(about.len())?;
    for data in data_of(&source)? {
        let (mut read, mut written) = (data.start, data.start);
        while read < data.end {
            let left = usize::try_from(data.end - read)
                .unwrap_or(usize::MAX)
                .min(1 << 30);
            match copy_file_range(&source, Some(&mut read), &target, Some(&mut written), left) {
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    bytes(&source, &target, read..data.end)?;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    copy_attributes(&target, about.permissions().mode(), about.modified()?)
}

/// Gives a file permissions and the time of its last change.
pub(super) fn copy_attributes(target: &File, mode: u32, modified: SystemTime) -> Result<()> {
    target.set_permissions(std::fs::Permissions::from_mode(mode & 0o7777))?;
    target.set_times(FileTimes::new().set_modified(modified))
}

/// Between file systems that do not copy for each other.
fn bytes(source: &File, target: &File, range: std::ops::Range<u64>) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let mut buffer = vec![0u8; 1 << 20];
    let mut at = range.start;
    while at < range.end {
        let left = usize::try_from(range.end - at)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = source.read_at(&mut buffer[..left], at)?;
        if read == 0 {
            break;
        }
        target.write_all_at(&buffer[..read], at)?;
        at += backstay_format::width::to_u64(read);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn holes_permissions_and_times_are_kept() {
        let memory = tempfile::tempdir_in("/dev/shm").expect("memory");
        let disk = tempfile::tempdir_in("/var/tmp").expect("disk");
        let from = memory.path().join("from");
        let file = File::create(&from).expect("file");
        file.set_len(8 << 20).expect("length");
        file.write_all_at(b"in the middle", 4 << 20).expect("write");
        std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o640)).expect("mode");
        for to in [memory.path().join("to"), disk.path().join("to")] {
            copy(&from, &to).expect("copy");
            assert_eq!(
                std::fs::read(&from).expect("from"),
                std::fs::read(&to).expect("to")
            );
            let (one, other) = (from.metadata().expect("from"), to.metadata().expect("to"));
            assert_eq!((one.mode(), one.mtime()), (other.mode(), other.mtime()));
            assert!(other.blocks() * 512 < 1 << 20, "{}", other.blocks());
        }
        assert!(copy(&memory.path().join("none"), &disk.path().join("to")).is_err());
        assert_eq!(std::fs::read_dir(disk.path()).expect("folder").count(), 1);
    }
}
