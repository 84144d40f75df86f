// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the archive's file system does: a folder and a file of this user's alone, reads past the cache, locks, room.
//! In from: a folder that is made in the archive as that of a job is. Out to: `doctor`.
//! Invariants: that folder and what is in it is removed again.

use super::Line;
use crate::output::human_bytes;
use backstay_archive::{job_folder, private};
use backstay_base::io::direct::SharedFile;
use backstay_base::io::{Device, ReadAt};
use backstay_store::lock::StoreLock;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes written and read back: some of the units that are written past the page cache.
const BYTES: usize = 64 << 10;
/// Less room than this is hardly enough for an archive.
const LITTLE: u64 = 1 << 30;

pub(super) fn lines(archive: &Path) -> Vec<Line> {
    let folder = job_folder(archive, &format!(".doctor-{}", std::process::id()));
    let was_there = archive.exists();
    let lines = tried(&folder);
    // What could not be made cannot be removed.
    std::fs::remove_dir_all(&folder).unwrap_or_default();
    if !was_there {
        std::fs::remove_dir(archive).unwrap_or_default();
    }
    lines
}

fn tried(folder: &Path) -> Vec<Line> {
    const CHECK: &str = "archive";
    if let Err(error) = private::make_folder(folder) {
        let advice = "name a folder of a shared file system that this user can write";
        return vec![Line::not(CHECK, error.to_string(), advice)];
    }
    let file = folder.join("file");
    let made = SharedFile::create(&file, true, |_| Ok(())).and_then(|made| {
        let written = vec![7; BYTES];
        made.write_at(&written, 0)?;
        made.sync()?;
        let mut read = vec![0; BYTES];
        let again = SharedFile::open_read_only(&file, true)?;
        again.read_at(&mut read, 0)?;
        Ok((again.is_direct(), read == written, made.free_bytes()))
    });
    let (is_direct, is_same, free) = match made {
        Ok(made) => made,
        Err(error) => {
            let advice = "a file there has to be made, written, synced and read: ask who runs the file system";
            return vec![Line::not(
                CHECK,
                format!("{}: {error}", file.display()),
                advice,
            )];
        }
    };
    if !is_same {
        let found = "what was read is not what was written";
        return vec![Line::not(CHECK, found, "do not use this file system")];
    }
    vec![
        room(folder, free),
        owner(folder, &file),
        direct(is_direct),
        locks(folder),
    ]
}

fn room(folder: &Path, free: Option<u64>) -> Line {
    let archive = folder.parent().unwrap_or(folder).display();
    match free {
        None => Line::limited(
            "archive",
            format!("{archive}: how much is free is not said"),
            "ask for the quota",
        ),
        Some(bytes) => {
            let found = format!("{archive}: {} free", human_bytes(bytes));
            if bytes < LITTLE {
                return Line::limited(
                    "archive",
                    found,
                    "make room, or name another; a quota may allow less still",
                );
            }
            Line::ok("archive", found)
        }
    }
}

fn owner(folder: &Path, file: &Path) -> Line {
    const CHECK: &str = "archive owner";
    let me = rustix::process::geteuid().as_raw();
    let of = |path: &Path| std::fs::metadata(path).map(|about| (about.uid(), about.mode() & 0o777));
    match (of(folder), of(file)) {
        (Ok((folder_of, 0o700)), Ok((file_of, 0o600))) if folder_of == me && file_of == me => {
            Line::ok(CHECK, "owners and modes are kept")
        }
        (folder_is, file_is) => {
            let found = format!(
                "made 700 and 600 by user {me}, found (owner, mode) {folder_is:?} and {file_is:?}"
            );
            let advice = "what others own or may write is refused: mount without uid=, umask= or root squashing";
            Line::not(CHECK, found, advice)
        }
    }
}

fn direct(is_direct: bool) -> Line {
    const CHECK: &str = "archive reads";
    if is_direct {
        return Line::ok(CHECK, "past the page cache");
    }
    let advice = "a node may see for a while what another has replaced; where the file system has no direct reads, \
                  its caches have to be coherent";
    Line::limited(CHECK, "through the page cache only", advice)
}

fn locks(folder: &Path) -> Line {
    const CHECK: &str = "archive locks";
    let advice = "two jobs of one name on one archive are found by its catalog only; mount with flock, not localflock";
    match StoreLock::take(folder, "doctor") {
        Ok(_lock) if StoreLock::is_held(folder) => {
            Line::ok(CHECK, "one process keeps out another of this node")
        }
        Ok(_lock) => Line::limited(CHECK, "a lock that is held keeps nobody out", advice),
        Err(error) => Line::limited(CHECK, error.to_string(), advice),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn an_archive_is_tried_and_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let states = |lines: &[Line]| lines.iter().map(|line| line.state).max();
        let archive = folder.path().join("archive");
        let found = lines(&archive);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(states(&found) < Some(State::Not), "{found:?}");
        assert!(!archive.exists(), "it was not there before");
        std::fs::create_dir(&archive).unwrap();
        std::fs::write(archive.join("mine"), "x").unwrap();
        assert!(states(&lines(&archive)) < Some(State::Not));
        let left: Vec<_> = std::fs::read_dir(&archive)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["mine"]);
    }

    #[test]
    fn one_that_cannot_be_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let found = lines(&folder.path().join("no/where"));
        assert_eq!((found.len(), found[0].state), (1, State::Not));
        assert!(found[0].found.contains("is not there"), "{found:?}");
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert_eq!(lines(&file)[0].state, State::Not);
        assert!(file.exists());
        assert_eq!(direct(false).state, State::Limited);
        assert_eq!(room(&file, Some(1)).state, State::Limited);
    }
}
