// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: files of other nodes: what a program does to names is told to the index, and what other nodes have is brought
//! here when it is opened.
//! In from: `serve` (messages of processes), other agents. Out to: `state`, the index at the first agent, copies in the
//! agent's folder.
//! Invariants: no agent waits for another while it has its state locked; that a file is closed is in the index before its
//! process knows; a copy is whole, and of one state of its file.

use super::catalog::Catalog;
use super::circle::Circle;
use super::copy::copy_attributes;
use super::names::NO_REPLACE;
use super::serve::Shared;
use super::state::{Holder, ProcessId, shown};
use super::talk::{About, Answer, Place, Request, decode, encode};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::width::to_u64;
use backstay_route::message::{FIRST_ROUTED, Kind, Message, SECOND_ROUTED};
use backstay_route::{FAR, LIVE};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// In the agent's folder: files that are on their way.
pub(super) const ON_THE_WAY: &str = "coming";
/// Bytes of a file in one answer.
const PIECE_BYTES: usize = 8 << 20;
/// So often is a file brought that changes meanwhile.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(20);
/// How long a copy stays that nobody opens again.
const KEPT: Duration = Duration::from_secs(10);

type Outcome<T = ()> = std::result::Result<T, Errno>;

/// A copy of another node's file, or what shows its size and times.
#[derive(Debug, Clone, Copy)]
struct Copy {
    order: u64,
    owner: u32,
    is_whole: bool,
    since: Instant,
}

/// The other nodes, as one agent sees them.
pub(super) struct Nodes {
    circle: Arc<Circle>,
    shared: Arc<Shared>,
    folder: PathBuf,
    /// At the first agent.
    catalog: Mutex<Catalog>,
    copies: Mutex<BTreeMap<Vec<u8>, Copy>>,
    /// Names that are opened for writing, renamed or removed, or of which the index is told: each by one at a time.
    changing: Mutex<BTreeSet<Vec<u8>>>,
    changed: Condvar,
    within: Duration,
    /// How many files were brought.
    brought: AtomicU64,
}

/// Names that nobody else changes, until it is dropped.
struct Held<'a> {
    nodes: &'a Nodes,
    names: Vec<Vec<u8>>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut changing = lock(&self.nodes.changing);
        for name in &self.names {
            changing.remove(name);
        }
        drop(changing);
        self.nodes.changed.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a program is told of an error between agents, which is said.
fn unreachable(error: &Error) -> Errno {
    notice::warn(&format!("routing: another node was not asked: {error}"));
    Errno::IO
}

fn number(outcome: Outcome) -> Answer {
    outcome.map_or_else(
        |error| Answer::Refused(error.raw_os_error()),
        |()| Answer::Done,
    )
}

fn errno(error: &std::io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}

fn about_of(about: &fs::Metadata) -> About {
    About {
        length: about.len(),
        mode: about.mode() & 0o7777,
        modified: (
            about.mtime(),
            u32::try_from(about.mtime_nsec()).unwrap_or(0),
        ),
    }
}

impl Nodes {
    pub(super) fn new(
        circle: Arc<Circle>,
        shared: Arc<Shared>,
        folder: PathBuf,
        within: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            circle,
            shared,
            folder,
            catalog: Mutex::default(),
            copies: Mutex::default(),
            changing: Mutex::default(),
            changed: Condvar::new(),
            within,
            brought: AtomicU64::new(0),
        })
    }

    /// Waits until nobody changes any of these names; nothing where it shall not wait, and somebody does.
    fn try_hold(&self, names: &[&[u8]], waits: bool) -> Option<Held<'_>> {
        let mut changing = lock(&self.changing);
        while names.iter().any(|name| changing.contains(*name)) {
            if !waits {
                return None;
            }
            let waited = self.changed.wait(changing);
            changing = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let names: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        changing.extend(names.iter().cloned());
        Some(Held { nodes: self, names })
    }

    fn hold(&self, names: &[&[u8]]) -> Option<Held<'_>> {
        self.try_hold(names, true)
    }

    fn rank(&self) -> u32 {
        self.circle.rank()
    }

    /// The index, at the first agent.
    pub(super) fn catalog(&self) -> MutexGuard<'_, Catalog> {
        lock(&self.catalog)
    }

    // ---- What other agents ask ------------------------------------------------------------------------

    /// Answers another agent, or this one; bytes follow the answer.
    pub(super) fn answer(&self, request: Request) -> Result<(Answer, Vec<u8>)> {
        let plain = |answer| Ok((answer, Vec::new()));
        match request {
            Request::Read { name, offset } => match self.read(&name, offset) {
                Ok(found) => Ok(found),
                Err(error) => plain(Answer::Refused(error.raw_os_error())),
            },
            Request::Displace { name, gone } => {
                self.shared.lock().displaced(&name, gone);
                self.shared.wake();
                plain(Answer::Done)
            }
            Request::Remove { name } => plain(number(self.remove_here(&name))),
            Request::RenameFolder { from, to } => {
                plain(number(self.rename_folder_here(&from, &to)))
            }
            other => plain(self.of_index(other)?),
        }
    }

    fn of_index(&self, request: Request) -> Result<Answer> {
        let mut catalog = self.catalog();
        Ok(match request {
            Request::Claim { rank, name, flags } => catalog.claim(rank, &name, flags),
            Request::Return { name, to } => {
                catalog.give_back(&name, to);
                Answer::Done
            }
            Request::Publish { rank, name, about } => {
                Answer::Published(catalog.publish(rank, &name, about))
            }
            Request::Lose { rank, name } => {
                let (former, order) = catalog.lose(rank, &name);
                Answer::Lost(former, order)
            }
            Request::Look { name } => Answer::Found(catalog.look(&name)),
            Request::List { folder } => Answer::Listed(catalog.list(&folder)),
            _ => {
                let context = "a request that no routing agent answers";
                return Err(Error::new(ErrorKind::Internal, context));
            }
        })
    }

    fn ask_with_bytes(&self, rank: u32, request: Request) -> Outcome<(Answer, Vec<u8>)> {
        let answered = if rank == self.rank() {
            self.answer(request)
        } else {
            self.circle.ask(rank, &request, self.within)
        };
        match answered {
            Ok((Answer::Refused(number), _)) => Err(Errno::from_raw_os_error(number)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(unreachable(&error)),
        }
    }

    fn ask(&self, rank: u32, request: Request) -> Outcome<Answer> {
        self.ask_with_bytes(rank, request).map(|(answer, _)| answer)
    }

    fn ask_index(&self, request: Request) -> Outcome<Answer> {
        self.ask(0, request)
    }

    fn look(&self, name: &[u8]) -> Outcome<Option<Place>> {
        let name = name.to_vec();
        match self.ask_index(Request::Look { name })? {
            Answer::Found(place) => Ok(place),
            _ => Err(Errno::IO),
        }
    }

    fn live(&self, name: &[u8]) -> Outcome<PathBuf> {
        self.shared.lock().live(name).ok_or(Errno::INVAL)
    }

    fn read(&self, name: &[u8], offset: u64) -> Outcome<(Answer, Vec<u8>)> {
        let state = self.shared.lock();
        if !state.has(name) {
            return Err(Errno::NOENT);
        }
        let whole = state.is_whole(name);
        drop(state);
        let file = File::open(self.live(name)?).map_err(|error| errno(&error))?;
        let about = file.metadata().map_err(|error| errno(&error))?;
        let left = about.len().saturating_sub(offset);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            let read = file.read_at(&mut bytes[filled..], offset + to_u64(filled));
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
        };
        Ok((answer, bytes))
    }

    // ---- What the processes of this node do -----------------------------------------------------------

    /// Does what a process says; the answer.
    pub(super) fn done(&self, process: ProcessId, message: &Message<'_>) -> Option<Outcome> {
        let Message {
            kind,
            id,
            value,
            first,
            second,
        } = *message;
        let holder = Holder {
            process,
            id,
            inherited: false,
        };
        match kind {
            Kind::Open => Some(self.open(holder, first, value)),
            Kind::Closed => {
                self.after_close(process, id, |state| state.closed(process, id, value != 0));
                Some(Ok(()))
            }
            Kind::NotOpened => {
                self.after_close(process, id, |state| state.not_opened(process, id));
                None
            }
            Kind::Remove => Some(self.remove(first)),
            Kind::Rename => Some(self.rename(id, value, first, second)),
            Kind::RenameFolder => Some(self.rename_folder(first, second)),
            Kind::Look => Some(self.show(first)),
            Kind::Fetch => Some(self.fetch(first)),
            Kind::List => Some(self.list(first)),
            Kind::Inherited | Kind::TakenOver | Kind::Leaving | Kind::Bye => {
                super::serve::done(&mut self.shared.lock(), process, message)
            }
        }
    }

    fn after_close(
        &self,
        process: ProcessId,
        id: u32,
        change: impl FnOnce(&mut super::state::State),
    ) {
        let mut state = self.shared.lock();
        let file = state.held(process, id);
        let name = file.and_then(|file| state.files.get(&file)?.name.clone());
        change(&mut state);
        drop(state);
        if let Some(name) = name {
            let _held = self.hold(&[&name]);
            // What the index was not told it is told later.
            self.tell(&name).ok();
        }
    }

    /// Tells the index of a name's file, if nobody writes it; or that there is none.
    fn tell(&self, name: &[u8]) -> Outcome {
        let state = self.shared.lock();
        let Some(id) = state.file_named(name) else {
            drop(state);
            return self.lose(name);
        };
        let file = state.files.get(&id);
        if file.is_none_or(|file| !file.holders.is_empty() || file.order.is_some()) {
            return Ok(());
        }
        let live = state.live(name).unwrap_or_default();
        drop(state);
        let about = fs::metadata(live).map_err(|error| errno(&error))?;
        let request = Request::Publish {
            rank: self.rank(),
            name: name.to_vec(),
            about: about_of(&about),
        };
        let Answer::Published(order) = self.ask_index(request)? else {
            return Err(Errno::IO);
        };
        let mut state = self.shared.lock();
        state.seen = state.seen.max(order);
        if let Some(file) = state.files.get_mut(&id)
            && file.holders.is_empty()
        {
            file.order = Some(order);
        }
        drop(state);
        self.shared.wake();
        Ok(())
    }

    /// A name is no more: nor on those nodes that had it before.
    fn lose(&self, name: &[u8]) -> Outcome {
        let request = Request::Lose {
            rank: self.rank(),
            name: name.to_vec(),
        };
        let Answer::Lost(former, order) = self.ask_index(request)? else {
            return Err(Errno::IO);
        };
        self.shared.lock().gone_at(name, order);
        let gone = Some(order);
        for rank in former.into_iter().filter(|rank| *rank != self.rank()) {
            let name = name.to_vec();
            self.ask(rank, Request::Displace { name, gone })?;
        }
        Ok(())
    }

    /// Tells the index of all files that it was not told of, and removes copies that nobody opened for some time.
    pub(super) fn tell_all(&self) {
        let state = self.shared.lock();
        let untold = state
            .files
            .values()
            .filter(|file| file.holders.is_empty() && file.order.is_none());
        let names: Vec<Vec<u8>> = untold.filter_map(|file| file.name.clone()).collect();
        drop(state);
        for name in names {
            // One that is changed now, or cannot be told, is told later.
            if let Some(_held) = self.try_hold(&[&name], false) {
                self.tell(&name).ok();
            }
        }
        let mut copies = lock(&self.copies);
        let old = |copy: &Copy| copy.since.elapsed() > KEPT;
        let names: Vec<Vec<u8>> = copies
            .iter()
            .filter(|(_, copy)| old(copy))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            copies.remove(&name);
            if let Some(path) = self.copy_path(&name) {
                // Who has it open has it still.
                drop(fs::remove_file(path));
            }
        }
    }

    /// Tells the index of all files that were restored here.
    pub(super) fn publish_all(&self) -> Result<()> {
        let mut state = self.shared.lock();
        for file in state.files.values_mut() {
            file.order = None;
        }
        let names: Vec<Vec<u8>> = state.names.keys().cloned().collect();
        drop(state);
        for name in names {
            self.tell(&name).map_err(|error| {
                let context = format!("telling the index of {}", shown(&name));
                Error::io(context, error.into())
            })?;
        }
        Ok(())
    }

    /// Whether the index has a name.
    pub(super) fn knows(&self, name: &[u8]) -> Result<bool> {
        let found = self.look(name);
        found.map(|place| place.is_some()).map_err(|error| {
            let context = format!("asking the index of {}", shown(name));
            Error::io(context, error.into())
        })
    }

    /// The index knows that this node has, or is about to have, the file; from another it is brought, or replaced.
    fn claim(&self, name: &[u8], flags: OFlags) -> Outcome {
        let request = Request::Claim {
            rank: self.rank(),
            name: name.to_vec(),
            flags: flags.bits(),
        };
        let Answer::Claimed(from) = self.ask_index(request)? else {
            return Err(Errno::IO);
        };
        let Some(from) = from else {
            return Ok(());
        };
        let live = self.live(name)?;
        let brought = if flags.contains(OFlags::TRUNC) {
            make_empty(&live).map(|()| false)
        } else {
            self.bring(name, from, &live)
        };
        let is_whole = match brought {
            Ok(is_whole) => is_whole,
            Err(error) => {
                let name = name.to_vec();
                self.ask_index(Request::Return { name, to: from })?;
                return Err(error);
            }
        };
        self.shared.lock().adopted(name, is_whole);
        let name = name.to_vec();
        self.ask(from, Request::Displace { name, gone: None })
            .map(drop)
    }

    fn open(&self, holder: Holder, name: &[u8], flags: i32) -> Outcome {
        let _held = self.hold(&[name]);
        self.claim(name, OFlags::from_bits_retain(flags.cast_unsigned()))?;
        let opened = self.shared.lock().open(holder, name, flags);
        if opened.is_err() {
            self.tell(name)?;
        }
        opened
    }

    fn remove_here(&self, name: &[u8]) -> Outcome {
        self.shared.lock().remove(name)?;
        self.lose(name)
    }

    fn remove(&self, name: &[u8]) -> Outcome {
        let _held = self.hold(&[name]);
        if self.shared.lock().has(name) {
            return self.remove_here(name);
        }
        let place = self.look(name)?.ok_or(Errno::NOENT)?;
        if place.owner == self.rank() {
            return Err(Errno::NOENT);
        }
        let name = name.to_vec();
        self.ask(place.owner, Request::Remove { name }).map(drop)
    }

    fn rename(&self, routed: u32, flags: i32, from: &[u8], to: &[u8]) -> Outcome {
        let _held = self.hold(&[from, to]);
        let (is_from, is_to) = (routed & FIRST_ROUTED != 0, routed & SECOND_ROUTED != 0);
        if flags & !NO_REPLACE != 0 {
            return Err(Errno::INVAL);
        }
        if is_from && !self.shared.lock().has(from) {
            match self.claim(from, OFlags::RDWR) {
                // A file of the file system, or none.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        let stands = |name: &[u8]| fs::symlink_metadata(OsStr::from_bytes(name)).is_ok();
        let is_there = is_from && self.shared.lock().has(from) || stands(from);
        if !is_there {
            return Err(Errno::NOENT);
        }
        if is_to && from != to && flags != 0 && self.look(to)?.is_some() {
            return Err(Errno::EXIST);
        }
        let was_here = self.shared.lock().has(to);
        if is_to && from != to {
            self.claim(to, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        }
        // What shall not be there was just looked for; of the file system's names it is asked there.
        let flags = if is_to { 0 } else { flags };
        let renamed = self.shared.lock().rename(routed, flags, from, to);
        if is_to && renamed.is_err() && !was_here {
            self.shared.lock().displaced(to, None);
        }
        if is_from {
            self.tell(from)?;
        }
        if is_to {
            self.tell(to)?;
        }
        renamed
    }

    fn rename_folder_here(&self, from: &[u8], to: &[u8]) -> Outcome {
        let prefix = [from, b"/"].concat();
        let state = self.shared.lock();
        let names = state.names.iter();
        let names = names.filter(|(name, entry)| name.starts_with(&prefix) && entry.live.is_some());
        let names: Vec<Vec<u8>> = names.map(|(name, _)| name.clone()).collect();
        drop(state);
        self.shared.lock().rename_folder(from, to)?;
        for name in names {
            self.tell(&name)?;
            let other = [to, &name[from.len()..]].concat();
            if self.shared.lock().has(&other) {
                self.tell(&other)?;
            }
        }
        Ok(())
    }

    fn rename_folder(&self, from: &[u8], to: &[u8]) -> Outcome {
        for rank in 0..self.circle.size() {
            let (from, to) = (from.to_vec(), to.to_vec());
            self.ask(rank, Request::RenameFolder { from, to })?;
        }
        Ok(())
    }

    // ---- Copies of other nodes' files -----------------------------------------------------------------

    fn copy_path(&self, name: &[u8]) -> Option<PathBuf> {
        let live = self.shared.lock().live(name)?;
        let below = live.strip_prefix(self.folder.join(LIVE)).ok()?;
        Some(self.folder.join(FAR).join(below))
    }

    /// Where a file is until it is whole.
    fn beside(&self) -> PathBuf {
        let number = self.brought.fetch_add(1, Ordering::Relaxed);
        self.folder.join(ON_THE_WAY).join(number.to_string())
    }

    fn forget_copy(&self, name: &[u8]) {
        lock(&self.copies).remove(name);
        if let Some(path) = self.copy_path(name) {
            // Most have none.
            drop(fs::remove_file(path));
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
    fn show(&self, name: &[u8]) -> Outcome {
        let place = self.place_elsewhere(name)?;
        self.show_place(name, &place)
    }

    fn show_place(&self, name: &[u8], place: &Place) -> Outcome {
        let path = self.copy_path(name).ok_or(Errno::INVAL)?;
        let known = lock(&self.copies).get(name).copied();
        let is_known =
            known.is_some_and(|known| (known.order, known.owner) == (place.order, place.owner));
        if is_known && path.exists() {
            return Ok(());
        }
        let made = make_parent(&path).and_then(|()| {
            let beside = self.beside();
            let file = open_new(&beside)?;
            file.set_len(place.about.length)?;
            finish(&file, &place.about)?;
            fs::rename(beside, &path)
        });
        made.map_err(|error| errno(&error))?;
        self.note_copy(name, place, false);
        Ok(())
    }

    fn note_copy(&self, name: &[u8], place: &Place, is_whole: bool) {
        let copy = Copy {
            order: place.order,
            owner: place.owner,
            is_whole,
            since: Instant::now(),
        };
        lock(&self.copies).insert(name.to_vec(), copy);
    }

    /// Brings a file of another node here, to be read.
    fn fetch(&self, name: &[u8]) -> Outcome {
        let path = self.copy_path(name).ok_or(Errno::INVAL)?;
        for _ in 0..TRIES {
            let place = self.place_elsewhere(name)?;
            if self.has_copy(name, &place) && path.exists() {
                self.note_copy(name, &place, true);
                return Ok(());
            }
            match self.bring(name, place.owner, &path) {
                // What came is of this state, or of a later one.
                Ok(_) if self.look(name)?.is_some_and(|now| now == place) => {
                    self.note_copy(name, &place, true);
                    return Ok(());
                }
                Ok(_) | Err(Errno::NOENT) => std::thread::sleep(PAUSE),
                Err(error) => return Err(error),
            }
        }
        // It is written all the time: any state of it is as good.
        if path.exists() {
            Ok(())
        } else {
            Err(Errno::NOENT)
        }
    }

    fn has_copy(&self, name: &[u8], place: &Place) -> bool {
        let known = lock(&self.copies).get(name).copied();
        known.is_some_and(|known| {
            known.is_whole && (known.order, known.owner) == (place.order, place.owner)
        })
    }

    /// Copies a file of another node over `to`, all of it; whether it is whole there.
    fn bring(&self, name: &[u8], owner: u32, to: &Path) -> Outcome<bool> {
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
            } = answer
            else {
                return Err(Errno::IO);
            };
            if *first.get_or_insert((about, inode)) != (about, inode) {
                return Ok(None);
            }
            if bytes.is_empty() && offset < about.length {
                return Ok(None);
            }
            write_data(&file, &bytes, offset).map_err(|error| errno(&error))?;
            offset += to_u64(bytes.len());
            if offset >= about.length {
                let done = file
                    .set_len(about.length)
                    .and_then(|()| finish(&file, &about));
                return done.map(|()| Some(whole)).map_err(|error| errno(&error));
            }
        }
    }

    /// Shows all that other nodes have in a folder, and nothing else.
    fn list(&self, folder: &[u8]) -> Outcome {
        let Answer::Listed(found) = self.ask_index(Request::List {
            folder: folder.to_vec(),
        })?
        else {
            return Err(Errno::IO);
        };
        let prefix = [folder.strip_suffix(b"/").unwrap_or(folder), b"/"].concat();
        let elsewhere: BTreeMap<Vec<u8>, Place> = found
            .into_iter()
            .filter(|(_, place)| place.owner != self.rank())
            .collect();
        let copies = lock(&self.copies);
        let stale: Vec<Vec<u8>> = copies
            .keys()
            .filter(|name| name.starts_with(&prefix) && !elsewhere.contains_key(*name))
            .filter(|name| !name[prefix.len()..].contains(&b'/'))
            .cloned()
            .collect();
        drop(copies);
        for name in stale {
            self.forget_copy(&name);
        }
        for (name, place) in &elsewhere {
            self.show_place(name, place)?;
        }
        Ok(())
    }
}

fn make_parent(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn make_empty(path: &Path) -> Outcome {
    let made = make_parent(path).and_then(|()| open_new(path).map(drop));
    made.map_err(|error| errno(&error))
}

fn open_new(path: &Path) -> std::io::Result<File> {
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

fn finish(file: &File, about: &About) -> std::io::Result<()> {
    let (seconds, nanoseconds) = about.modified;
    let since = Duration::new(u64::try_from(seconds).unwrap_or(0), nanoseconds);
    copy_attributes(file, about.mode, std::time::UNIX_EPOCH + since)
}

/// A request of another agent, answered in bytes, before this one has files.
pub(super) fn handle_alone(circle: &Circle, request: &[u8], within: Duration) -> Result<Vec<u8>> {
    let (request, _) = decode::<Request>(request)?;
    let answer = circle.answer(&request, within).unwrap_or_else(|| {
        let context = "this agent has no files yet";
        Err(Error::new(ErrorKind::Timeout, context))
    });
    encode(&answer?)
}

/// A request of another agent, answered in bytes.
pub(super) fn handle(nodes: &Nodes, request: &[u8], within: Duration) -> Result<Vec<u8>> {
    let (request, _) = decode::<Request>(request)?;
    if let Some(answer) = nodes.circle.answer(&request, within) {
        return encode(&answer?);
    }
    let (answer, bytes) = nodes.answer(request)?;
    let mut all = encode(&answer)?;
    all.extend(bytes);
    Ok(all)
}

#[cfg(test)]
mod tests;
