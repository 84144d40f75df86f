// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: copies of other nodes' files, to be seen and read.
//! In from: processes of this node, by `nodes`. Out to: the agent's folder; bytes for other agents.
//! Invariants: a copy that can be opened is whole, and of one state of its file; one that shows a file only has its size,
//! permissions and times.

use super::{Nodes, ON_THE_WAY, Outcome, errno, lock};
use crate::routing::copy::copy_attributes;
use crate::routing::talk::{About, Answer, Place, Request};
use backstay_format::width::to_u64;
use backstay_route::{FAR, LIVE, NEAR};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of a file in one answer.
pub(super) const PIECE_BYTES: usize = 8 << 20;
/// So often is a file brought that changes meanwhile.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(20);
/// How long a copy stays that nobody opens again.
const KEPT: Duration = Duration::from_secs(10);

/// A copy of another node's file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copied {
    /// Of which state of it: by its last close.
    order: u64,
    /// When it was asked for last.
    since: Instant,
}

impl Nodes {
    pub(super) fn read(&self, name: &[u8], offset: u64) -> Outcome<(Answer, Vec<u8>)> {
        let state = self.shared.lock();
        if !state.has(name) {
            return Err(Errno::NOENT);
        }
        let whole = state.is_whole(name);
        drop(state);
        let file = File::open(self.live(name)?).map_err(|error| errno(&error))?;
        let about = file.metadata().map_err(|error| errno(&error))?;
        let data = next_data(&file, offset, about.len());
        let (at, left) = (data.start, data.end - data.start);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let read = file.read_at(&mut bytes[filled..], at + to_u64(filled));
            match read {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(errno(&error)),
            }
        }
        bytes.truncate(filled);
        let answer = Answer::Bytes {
            about: about_of(&about),
            inode: about.ino(),
            whole,
            at,
        };
        Ok((answer, bytes))
    }

    /// Removes copies that nobody opened for some time.
    pub(super) fn forget_old_copies(&self) {
        let mut copies = lock(&self.copies);
        let old = |copy: &Copied| copy.since.elapsed() > KEPT;
        let names: Vec<Vec<u8>> = copies
            .iter()
            .filter(|(_, copy)| old(copy))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            copies.remove(&name);
            if let Some(path) = self.place_in(NEAR, &name) {
                // Who has it open has it still.
                drop(fs::remove_file(path));
            }
        }
    }

    /// The place of a name in one of the agent's folders.
    pub(super) fn place_in(&self, folder: &str, name: &[u8]) -> Option<PathBuf> {
        let live = self.shared.lock().live(name)?;
        let below = live.strip_prefix(self.folder.join(LIVE)).ok()?;
        Some(self.folder.join(folder).join(below))
    }

    /// Where a file is until it is whole.
    pub(super) fn beside(&self) -> PathBuf {
        let number = self.brought.fetch_add(1, Ordering::Relaxed);
        self.folder.join(ON_THE_WAY).join(number.to_string())
    }

    /// A name is on no other node.
    pub(super) fn forget_copy(&self, name: &[u8]) {
        lock(&self.shown).remove(name);
        lock(&self.copies).remove(name);
        for folder in [FAR, NEAR] {
            if let Some(path) = self.place_in(folder, name) {
                // Most have none.
                drop(fs::remove_file(path));
            }
        }
    }

    /// The place of a name on another node; without one, an error.
    fn place_elsewhere(&self, name: &[u8]) -> Outcome<Place> {
        match self.look(name)? {
            Some(place) if place.owner != self.rank() => Ok(place),
            _ => {
                self.forget_copy(name);
                Err(Errno::NOENT)
            }
        }
    }

    /// Shows size and times of a file of another node.
    pub(super) fn show(&self, name: &[u8]) -> Outcome {
        let place = self.place_elsewhere(name)?;
        self.show_place(name, &place)
    }

    fn show_place(&self, name: &[u8], place: &Place) -> Outcome {
        let path = self.place_in(FAR, name).ok_or(Errno::INVAL)?;
        let shown = lock(&self.shown);
        // Somebody else may have learned of a later state meanwhile.
        if shown.get(name).is_some_and(|known| *known >= place.order) && path.exists() {
            return Ok(());
        }
        drop(shown);
        self.show_now(name, place)
    }

    /// The same, whatever is shown: of a file that is written the length changes without a close.
    pub(super) fn show_now(&self, name: &[u8], place: &Place) -> Outcome {
        let path = self.place_in(FAR, name).ok_or(Errno::INVAL)?;
        let mut shown = lock(&self.shown);
        let made = make_parent(&path).and_then(|()| {
            let beside = self.beside();
            let file = open_new(&beside)?;
            file.set_len(place.about.length)?;
            finish(&file, &place.about)?;
            fs::rename(beside, &path)
        });
        made.map_err(|error| errno(&error))?;
        shown.insert(name.to_vec(), place.order);
        Ok(())
    }

    /// Brings a file of another node here, to be read.
    pub(super) fn fetch(&self, name: &[u8]) -> Outcome {
        let path = self.place_in(NEAR, name).ok_or(Errno::INVAL)?;
        for _ in 0..TRIES {
            let place = self.place_elsewhere(name)?;
            if self.has_copy(name, place.order, &path) {
                return Ok(());
            }
            let coming = self.beside();
            match self.bring(name, place.owner, &coming) {
                // What came is of this state, or of a later one.
                Ok(_) if self.look(name)?.is_some_and(|now| now == place) => {
                    return self.put_copy((name, place.order), &coming, &path);
                }
                Ok(_) => {
                    drop(fs::remove_file(coming));
                    std::thread::sleep(PAUSE);
                }
                Err(Errno::NOENT) => std::thread::sleep(PAUSE),
                Err(error) => return Err(error),
            }
        }
        // It is written all the time, and never the same.
        Err(Errno::AGAIN)
    }

    /// Whether a copy is of this state of its file, or of a later one: then it stays for some time.
    pub(super) fn has_copy(&self, name: &[u8], order: u64, path: &Path) -> bool {
        let mut copies = lock(&self.copies);
        let known = copies.get_mut(name).filter(|known| known.order >= order);
        match known {
            Some(known) if path.exists() => {
                known.since = Instant::now();
                true
            }
            _ => false,
        }
    }

    /// A file that came takes its place, if none of a later state is there.
    pub(super) fn put_copy(
        &self,
        (name, order): (&[u8], u64),
        coming: &Path,
        path: &Path,
    ) -> Outcome {
        if self.has_copy(name, order, path) {
            // What cannot be removed goes with the folder.
            drop(fs::remove_file(coming));
            return Ok(());
        }
        let mut copies = lock(&self.copies);
        let placed = make_parent(path).and_then(|()| fs::rename(coming, path));
        placed.map_err(|error| errno(&error))?;
        let since = Instant::now();
        copies.insert(name.to_vec(), Copied { order, since });
        Ok(())
    }

    /// Copies a file of another node over `to`, all of it; whether it is whole there.
    pub(super) fn bring(&self, name: &[u8], owner: u32, to: &Path) -> Outcome<bool> {
        make_parent(to).map_err(|error| errno(&error))?;
        let beside = self.beside();
        let brought = (0..TRIES).find_map(|_| self.bring_once(name, owner, &beside).transpose());
        let brought = brought.unwrap_or(Err(Errno::AGAIN)).and_then(|is_whole| {
            let placed = fs::rename(&beside, to);
            placed.map(|()| is_whole).map_err(|error| errno(&error))
        });
        if brought.is_err() {
            // What is left of it goes with the folder.
            drop(fs::remove_file(&beside));
        }
        brought
    }

    /// Nothing where the file changed meanwhile.
    fn bring_once(&self, name: &[u8], owner: u32, to: &Path) -> Outcome<Option<bool>> {
        let file = open_new(to).map_err(|error| errno(&error))?;
        let mut first: Option<(About, u64)> = None;
        let mut offset = 0;
        loop {
            let name = name.to_vec();
            let (answer, bytes) = self.ask_with_bytes(owner, Request::Read { name, offset })?;
            let Answer::Bytes {
                about,
                inode,
                whole,
                at,
            } = answer
            else {
                return Err(Errno::IO);
            };
            if *first.get_or_insert((about, inode)) != (about, inode) {
                return Ok(None);
            }
            if at < offset || bytes.is_empty() && at < about.length {
                return Ok(None);
            }
            write_data(&file, &bytes, at).map_err(|error| errno(&error))?;
            offset = at + to_u64(bytes.len());
            if offset >= about.length {
                let done = file
                    .set_len(about.length)
                    .and_then(|()| finish(&file, &about));
                return done.map(|()| Some(whole)).map_err(|error| errno(&error));
            }
        }
    }

    /// Shows all that other nodes have in a folder, and nothing else.
    pub(super) fn list(&self, folder: &[u8]) -> Outcome {
        let Answer::Listed(found) = self.ask_index(Request::List {
            folder: folder.to_vec(),
        })?
        else {
            return Err(Errno::IO);
        };
        let prefix = [folder.strip_suffix(b"/").unwrap_or(folder), b"/"].concat();
        let elsewhere: BTreeMap<Vec<u8>, Place> = self.gather_parts(found).into_iter().collect();
        let shown = lock(&self.shown);
        let stale: Vec<Vec<u8>> = shown
            .keys()
            .filter(|name| name.starts_with(&prefix) && !elsewhere.contains_key(*name))
            .filter(|name| !name[prefix.len()..].contains(&b'/'))
            .cloned()
            .collect();
        drop(shown);
        for name in stale {
            self.forget_copy(&name);
        }
        for (name, place) in &elsewhere {
            self.show_place(name, place)?;
        }
        Ok(())
    }
}

/// The first stretch of data from `offset` on; an empty one at the end where there is none.
fn next_data(file: &File, offset: u64, length: u64) -> std::ops::Range<u64> {
    if offset >= length {
        return offset..offset;
    }
    let start = match seek(file, SeekFrom::Data(offset)) {
        Ok(start) => start.min(length),
        Err(Errno::NXIO) => return length..length,
        // Where holes are is not known.
        Err(_) => return offset..length,
    };
    let end = seek(file, SeekFrom::Hole(start)).map_or(length, |end| end.min(length));
    start..end.max(start)
}

fn make_parent(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// A new file.
pub(super) fn make_empty(path: &Path) -> Outcome {
    let made = make_parent(path).and_then(|()| open_new(path).map(drop));
    made.map_err(|error| errno(&error))
}

pub(super) fn open_new(path: &Path) -> std::io::Result<File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)
}

/// Writes what is not zero: holes stay holes, by pages.
fn write_data(file: &File, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    let mut at = offset;
    for page in bytes.chunks(4096) {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, at)?;
        }
        at += to_u64(page.len());
    }
    Ok(())
}

pub(super) fn finish(file: &File, about: &About) -> std::io::Result<()> {
    let (seconds, nanoseconds) = about.modified;
    let since = Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds);
    copy_attributes(file, about.mode, std::time::UNIX_EPOCH + since)
}

/// What is seen of a file.
pub(super) fn about_of(about: &fs::Metadata) -> About {
    About {
        length: about.len(),
        mode: about.mode() & 0o7777,
        modified: (
            about.mtime(),
            u32::try_from(about.mtime_nsec()).unwrap_or(0),
        ),
    }
}
