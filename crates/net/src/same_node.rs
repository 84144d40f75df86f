// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: reads what a peer of the same machine exposes from its file, past the sockets.
//! In from: the reading side, which was told where the file is. Out to: the file.
//! Invariants: only the file that the owner has open is read: same kernel, device and inode, which no
//! other file has while the owner keeps it open.

use super::Exposed;
use backstay_base::clock::Deadline;
use backstay_base::io::open::open as open_above;
use backstay_format::Digest;
use backstay_format::width::to_u64;
use backstay_format::wire::{Located, WORDS_BYTES_MAX};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

/// Read at a time, so that a slow file does not hold the reader beyond its limit.
const PIECE_BYTES: usize = 4 << 20;

/// Names the running kernel; `None` where it does not say so.
pub(super) fn machine() -> Option<[u8; 16]> {
    static MACHINE: OnceLock<Option<[u8; 16]>> = OnceLock::new();
    *MACHINE.get_or_init(|| {
        let id = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        (!id.is_empty()).then(|| Digest::of(&id).0)
    })
}

/// Where the bytes of `exposed` stand, if they are a file that others can be told of.
pub(super) fn locate(exposed: &Exposed) -> Option<Located> {
    let Exposed::Device(device) = exposed else {
        return None;
    };
    let backing = device.backing()?;
    let path = std::path::absolute(backing.path).ok()?;
    let path = path.to_str().filter(|path| path.len() <= WORDS_BYTES_MAX)?;
    let found = backing.file.metadata().ok()?;
    Some(Located {
        device: found.dev(),
        inode: found.ino(),
        path: path.to_owned(),
    })
}

/// Opens the file, if this process may and it is the one that was meant.
pub(super) fn open(located: &Located) -> Option<File> {
    // Nothing that stands there instead may block: a pipe among others.
    let flags = OFlags::NONBLOCK.bits() | OFlags::NOCTTY.bits();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.cast_signed());
    let file = open_above(&options, Path::new(&located.path)).ok()?;
    let found = file.metadata().ok()?;
    let same = found.dev() == located.device && found.ino() == located.inode;
    (same && found.is_file()).then_some(file)
}

/// Fills `into` from `offset`; whether the time sufficed.
pub(super) fn read(
    file: &File,
    offset: u64,
    into: &mut [u8],
    deadline: &Deadline,
) -> std::io::Result<bool> {
    let mut position = offset;
    for piece in into.chunks_mut(PIECE_BYTES) {
        if deadline.left().is_none() {
            return Ok(false);
        }
        file.read_exact_at(piece, position)?;
        position += to_u64(piece.len());
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_base::io::Device;
    use backstay_base::io::file::FileDevice;
    use std::sync::Arc;

    #[test]
    fn another_file_of_the_same_path_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let device = FileDevice::open(&path, true).unwrap();
        device.reserve(1000).unwrap();
        let located = locate(&Exposed::Device(Arc::new(device))).unwrap();
        assert!(open(&located).is_some());
        let kept = folder.path().join("kept");
        std::fs::rename(&path, &kept).unwrap();
        assert!(open(&located).is_none());
        std::fs::write(&path, [1; 1000]).unwrap();
        assert!(open(&located).is_none());
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(open(&located).is_none());
        std::fs::remove_dir(&path).unwrap();
        std::fs::rename(&kept, &path).unwrap();
        assert!(open(&located).is_some());
    }

    #[test]
    fn memory_has_no_file() {
        assert_eq!(locate(&Exposed::Memory(Arc::new(vec![1]))), None);
    }
}
