// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a program does to names: opens them for writing, removes, renames.
//! In from: `serve`. Out to: the memory of the node; error numbers for the program.
//! Invariants: what a checkpoint has, or is to have, is written by nobody: who opens it for writing is given another file.

use super::clock::UNKNOWN;
use super::copy::copy;
use super::part::Part;
use super::state::{Content, FileId, Holder, ProcessId, State};
use backstay_base::io::parts::part_name;
use backstay_route::message::{FIRST_ROUTED, SECOND_ROUTED};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

type Outcome = Result<(), Errno>;

/// Of renameat2: the second name shall not be there.
pub(super) const NO_REPLACE: i32 = 1;

fn errno(error: &io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}

fn path_of(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

impl State {
    /// A process is about to open a name for writing.
    pub(super) fn open(&mut self, holder: Holder, name: &[u8], flags: i32) -> Outcome {
        let live = self.live(name).ok_or(Errno::INVAL)?;
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let known = self.names.get(name).and_then(|entry| entry.live);
        let id = match known {
            Some(_) if flags.contains(OFlags::CREATE | OFlags::EXCL) => return Err(Errno::EXIST),
            Some(id) => {
                self.make_writable(id, &live, flags.contains(OFlags::TRUNC))?;
                id
            }
            None if flags.contains(OFlags::CREATE) => {
                make_parent(&live)?;
                self.add(name, Content::Unfinished)
            }
            None => return Err(Errno::NOENT),
        };
        if let Some(file) = self.files.get_mut(&id) {
            if file.holders.is_empty() {
                file.voided = false;
                file.settled = false;
            }
            file.order = None;
            file.holders.push(holder);
        }
        Ok(())
    }

    /// Nobody shall see what is written to a file that is a revision.
    pub(super) fn make_writable(&mut self, id: FileId, live: &Path, empty: bool) -> Outcome {
        let content = self.files.get(&id).map(|file| file.content);
        if let Some(Content::Closed(since)) = content
            && since.elapsed() >= self.quiet
        {
            self.complete(id);
        }
        let Some(file) = self.files.get_mut(&id) else {
            return Err(Errno::IO);
        };
        if file.content == Content::Revision {
            let made = if empty {
                replace(live)
            } else {
                copy(live, live)
            };
            made.map_err(|error| errno(&error))?;
        }
        file.content = Content::Unfinished;
        Ok(())
    }

    /// What was said to be opened was not.
    pub(super) fn not_opened(&mut self, process: ProcessId, id: u32) {
        let Some(file) = self.held(process, id) else {
            return;
        };
        let live = self.files.get(&file).and_then(|file| file.name.clone());
        let live = live.and_then(|name| self.live(&name));
        if live.is_some_and(|live| live.exists()) {
            self.closed(process, id, false);
        } else {
            self.release(file, process, id);
            self.lose_name(file);
        }
    }

    /// A file that is not there has no name.
    fn lose_name(&mut self, id: FileId) {
        let name = self.files.get(&id).and_then(|file| file.name.clone());
        if let Some(name) = name {
            if let Some(entry) = self.names.get_mut(&name) {
                entry.live = None;
            }
            self.tidy(&name);
        }
        self.unname(id);
    }

    pub(super) fn remove(&mut self, name: &[u8]) -> Outcome {
        let live = self.live(name).ok_or(Errno::INVAL)?;
        let id = self
            .names
            .get(name)
            .and_then(|entry| entry.live)
            .ok_or(Errno::NOENT)?;
        fs::remove_file(live).map_err(|error| errno(&error))?;
        self.leave(name);
        self.unname(id);
        self.tidy(name);
        Ok(())
    }

    /// A name has no file any more: what the checkpoint has of it stays until the next one.
    fn leave(&mut self, name: &[u8]) {
        let Some(entry) = self.names.get_mut(name) else {
            return;
        };
        entry.live = None;
        entry.gone = Some(if self.spread { u64::MAX } else { 0 });
        let reported = &self.reported;
        // What a round was told of may be decided already.
        let (stay, former): (Vec<_>, Vec<_>) = entry
            .waiting
            .drain(..)
            .partition(|revision| reported.contains(&revision.id));
        entry.waiting = stay.into();
        for revision in &former {
            self.forget(revision);
        }
    }

    /// It is known when a name was removed.
    pub(super) fn gone_at(&mut self, name: &[u8], order: u64) {
        if let Some(entry) = self.names.get_mut(name) {
            entry.gone = entry.gone.map(|known| known.min(order));
        }
    }

    /// Another node has the file of a name now; `gone`: and since then nobody under this name.
    pub(super) fn displaced(&mut self, name: &[u8], gone: Option<u64>) {
        let Some(entry) = self.names.get_mut(name) else {
            return;
        };
        let is_older = |id: &FileId| {
            let file = self.files.get(id).and_then(|file| file.part.as_ref());
            gone.zip(file).is_none_or(|(gone, part)| part.born <= gone)
        };
        // What is new since then stays.
        if entry.live.is_some_and(|id| !is_older(&id)) {
            return;
        }
        let live = entry.live.take();
        if let Some(order) = gone {
            self.leave(name);
            self.gone_at(name, order);
        }
        if let Some(id) = live {
            if let Some(path) = self.live(name) {
                // Where it cannot be removed it goes with the folder; nobody is led to it any more.
                drop(fs::remove_file(path));
            }
            self.unname(id);
        }
        self.tidy(name);
    }

    /// A file that another node had is at its place here.
    pub(super) fn adopted(&mut self, name: &[u8], is_whole: bool) {
        let content = if is_whole {
            Content::Closed(Instant::now())
        } else {
            Content::Unfinished
        };
        self.add(name, content);
    }

    /// Whether nobody writes, or died who wrote, the file that a name has here.
    pub(super) fn is_whole(&self, name: &[u8]) -> bool {
        let file = self.file_named(name).and_then(|id| self.files.get(&id));
        file.is_some_and(|file| file.content != Content::Unfinished)
    }

    /// Whether a name has a file here.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.file_named(name).is_some()
    }

    pub(super) fn rename(&mut self, routed: u32, flags: i32, from: &[u8], to: &[u8]) -> Outcome {
        if flags & !NO_REPLACE != 0 {
            return Err(Errno::INVAL);
        }
        let known = |name: &[u8]| {
            self.names
                .get(name)
                .is_some_and(|entry| entry.live.is_some())
        };
        let is_from = routed & FIRST_ROUTED != 0 && known(from);
        if routed & SECOND_ROUTED == 0 {
            return self.take_out(from, to, flags);
        }
        if flags & NO_REPLACE != 0 && known(to) {
            return Err(Errno::EXIST);
        }
        if from == to {
            return if is_from { Ok(()) } else { Err(Errno::NOENT) };
        }
        if is_from {
            self.move_file(from, to)
        } else {
            self.take_in(from, to)
        }
    }

    fn move_file(&mut self, from: &[u8], to: &[u8]) -> Outcome {
        let id = self
            .names
            .get(from)
            .and_then(|entry| entry.live)
            .ok_or(Errno::NOENT)?;
        let (source, target) = (
            self.live(from).ok_or(Errno::INVAL)?,
            self.live(to).ok_or(Errno::INVAL)?,
        );
        make_parent(&target)?;
        fs::rename(source, target).map_err(|error| errno(&error))?;
        self.displace(to, id);
        self.leave(from);
        let order = self.ordered();
        let Some(file) = self.files.get_mut(&id) else {
            return Err(Errno::IO);
        };
        file.name = Some(to.to_vec());
        file.settled = true;
        file.moved = file.content == Content::Revision;
        file.order = order;
        if file.content != Content::Unfinished {
            file.content = Content::Closed(Instant::now());
            self.complete(id);
        }
        self.tidy(from);
        Ok(())
    }

    /// `id` is the file of a name from now on.
    fn displace(&mut self, name: &[u8], id: FileId) {
        let entry = self.names.entry(name.to_vec()).or_default();
        entry.gone = None;
        if let Some(former) = entry.live.replace(id) {
            self.unname(former);
        }
    }

    /// A file of the file system takes a routed name.
    fn take_in(&mut self, from: &[u8], to: &[u8]) -> Outcome {
        let target = self.live(to).ok_or(Errno::INVAL)?;
        make_parent(&target)?;
        copy(path_of(from), &target).map_err(|error| errno(&error))?;
        fs::remove_file(path_of(from)).map_err(|error| errno(&error))?;
        let former = self.names.get(to).and_then(|entry| entry.live);
        let id = self.add(to, Content::Closed(Instant::now()));
        if let Some(former) = former {
            self.unname(former);
        }
        if let Some(file) = self.files.get_mut(&id) {
            file.settled = true;
        }
        self.complete(id);
        Ok(())
    }

    /// A routed file takes a name of the file system.
    fn take_out(&mut self, from: &[u8], to: &[u8], flags: i32) -> Outcome {
        let source = self.live(from).ok_or(Errno::INVAL)?;
        if flags & NO_REPLACE != 0 && fs::symlink_metadata(path_of(to)).is_ok() {
            return Err(Errno::EXIST);
        }
        let known = self.names.get(from).and_then(|entry| entry.live);
        known.ok_or(Errno::NOENT)?;
        copy(&source, path_of(to)).map_err(|error| errno(&error))?;
        self.remove(from)
    }

    /// A folder was renamed: its files go with it.
    pub(super) fn rename_folder(&mut self, from: &[u8], to: &[u8]) -> Outcome {
        let prefix = [from, b"/"].concat();
        let names = self
            .names
            .iter()
            .filter(|(name, entry)| name.starts_with(&prefix) && entry.live.is_some());
        let names: Vec<Vec<u8>> = names.map(|(name, _)| name.clone()).collect();
        for name in names {
            let other = [to, &name[from.len()..]].concat();
            match self.found(&other) {
                Some(_) => self.move_file(&name, &other)?,
                None => self.take_out(&name, &other, 0)?,
            }
        }
        Ok(())
    }

    /// A file that is there at the start, in memory already.
    pub(super) fn restored(&mut self, name: &[u8]) -> io::Result<()> {
        let id = self.add(name, Content::Revision);
        let revision = self.link(name, false, 0)?;
        if let Some(file) = self.files.get_mut(&id) {
            file.order = Some(0);
        }
        if let Some(entry) = self.names.get_mut(name) {
            entry.kept = Some(revision);
        }
        self.order.push(name.to_vec());
        self.load_part(name).map_err(io::Error::other)
    }

    /// What stands on the file system under routed names.
    pub(super) fn standing(&self) -> io::Result<BTreeSet<PathBuf>> {
        let folders: Vec<PathBuf> = self
            .table()
            .folders()
            .iter()
            .map(|folder| path_of(folder).to_owned())
            .collect();
        let mut found = BTreeSet::new();
        for folder in folders {
            self.find_below(&folder, &mut found)?;
        }
        Ok(found)
    }

    fn find_below(&self, folder: &Path, found: &mut BTreeSet<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.as_os_str().as_bytes();
            let kind = entry.file_type()?;
            if kind.is_dir() && self.table().find_folder(name).is_some() {
                self.find_below(&path, found)?;
            } else if kind.is_file() && self.found(name).is_some() {
                found.insert(path);
            }
        }
        Ok(())
    }

    /// Takes in a file of the file system; it stays where it is.
    pub(super) fn take_in_standing(&mut self, path: &Path) -> io::Result<()> {
        let whole = path.as_os_str().as_bytes();
        let is_shared = self.is_shared(whole);
        let part = part_name(whole, self.rank);
        let name = if is_shared { &part[..] } else { whole };
        let Some(live) = self.live(name) else {
            return Ok(());
        };
        make_parent(&live).map_err(io::Error::from)?;
        copy(path, &live)?;
        let id = self.add(name, Content::Closed(Instant::now()));
        if let Some(file) = self.files.get_mut(&id) {
            file.settled = true;
            file.part = is_shared.then(Part::default);
        }
        if is_shared {
            let length = fs::metadata(&live)?.len();
            self.wrote(id, (0, length), UNKNOWN);
            self.seal_part(id);
        }
        Ok(())
    }
}

fn make_parent(path: &Path) -> Outcome {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.map_err(|error| errno(&error))
}

/// Another file, empty, takes the place of one.
fn replace(live: &Path) -> io::Result<()> {
    let mode = fs::metadata(live)?.permissions().mode() & 0o7777;
    let beside = live.with_file_name(format!(".backstay-{}", std::process::id()));
    let file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&beside)?;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    fs::rename(beside, live)
}
