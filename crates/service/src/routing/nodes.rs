// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: files of other nodes: what a program does to names is told to the index, and what other nodes have is brought
//! here when it is opened.
//! In from: `serve` (messages of processes), other agents. Out to: `state`, the index at the first agent, copies in the
//! agent's folder.
//! Invariants: no agent waits for another while it has its state locked; that a file is closed is in the index before its
//! process knows; a copy is whole, and of one state of its file.

mod copies;
mod parts;

use super::catalog::Catalog;
use super::circle::Circle;
use super::clock::now_ns;
use super::names::NO_REPLACE;
use super::serve::Shared;
use super::state::{Holder, ProcessId, shown};
use super::talk::{Answer, Place, Request, decode, encode};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_route::message::{FIRST_ROUTED, Kind, Message, SECOND_ROUTED};
use copies::{Copied, about_of, make_empty};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// In the agent's folder: files that are on their way.
pub(super) const ON_THE_WAY: &str = "coming";

type Outcome<T = ()> = std::result::Result<T, Errno>;

/// The other nodes, as one agent sees them.
pub(super) struct Nodes {
    circle: Arc<Circle>,
    shared: Arc<Shared>,
    folder: PathBuf,
    /// At the first agent.
    catalog: Mutex<Catalog>,
    /// Of names on other nodes, which state is shown: by the last close.
    shown: Mutex<BTreeMap<Vec<u8>, u64>>,
    copies: Mutex<BTreeMap<Vec<u8>, Copied>>,
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
            shown: Mutex::default(),
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
            Request::Cut { part, length } => plain(number(self.cut_here(&part, length))),
            Request::Piece {
                part,
                offset,
                length,
            } => match self.piece_here(&part, offset, length) {
                Ok(found) => Ok(found),
                Err(error) => plain(Answer::Refused(error.raw_os_error())),
            },
            Request::Clock => plain(Answer::Clock(now_ns())),
            Request::Length { part } => plain(match self.length_here(&part) {
                Ok(length) => Answer::Length(length),
                Err(error) => Answer::Refused(error.raw_os_error()),
            }),
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
            Request::Publish {
                rank,
                name,
                about,
                age,
            } => {
                catalog.note_age(&name, age);
                Answer::Published(catalog.publish(rank, &name, about))
            }
            Request::ClaimPart { rank, part, flags } => catalog.claim_part(rank, &part, flags),
            Request::Parts { name } => Answer::Parts(catalog.parts(&name)),
            Request::RemoveParts { name } => catalog.remove_parts(&name),
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
        let holder = Holder::opened(process, id);
        if self.is_shared(first) || kind == Kind::Rename && self.is_shared(second) {
            return self.done_to_parts(process, message);
        }
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
            Kind::Notes => {
                let made = self.shared.lock().notes_at(process, first);
                Some(made.map_err(|error| errno(&error)))
            }
            Kind::Full => {
                self.shared.lock().take_notes(process, true);
                Some(Ok(()))
            }
            Kind::Cut | Kind::Read => Some(Err(Errno::INVAL)),
            Kind::Inherited | Kind::TakenOver | Kind::Leaving | Kind::Bye | Kind::SpeaksFor => {
                super::serve::done(&mut self.shared.lock(), process, message)
            }
        }
    }

    /// The same of a file that several nodes write.
    fn done_to_parts(&self, process: ProcessId, message: &Message<'_>) -> Option<Outcome> {
        let name = message.first;
        match message.kind {
            Kind::Open => {
                let holder = Holder::opened(process, message.id);
                Some(self.open_part(holder, name, message.value))
            }
            Kind::Remove => {
                let _held = self.hold(&[name]);
                Some(self.remove_parts(name))
            }
            Kind::Cut => Some(self.cut_parts(name, message.second)),
            Kind::Read => Some(self.read_parts(process, name, message.second)),
            Kind::Look => Some(self.show_parts(name)),
            Kind::Fetch => Some(self.fetch_parts(name)),
            Kind::Rename | Kind::RenameFolder => Some(Err(Errno::OPNOTSUPP)),
            _ => {
                let part = self.own_part(name);
                let message = Message {
                    first: &part,
                    ..*message
                };
                super::serve::done(&mut self.shared.lock(), process, &message)
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
        state.take_notes(process, false);
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
        // Behind a part stands its map.
        let part = state.length_of_part(name);
        drop(state);
        let about = fs::metadata(live).map_err(|error| errno(&error))?;
        let mut about = about_of(&about);
        about.length = part.map_or(about.length, |(length, _)| length);
        let request = Request::Publish {
            rank: self.rank(),
            name: name.to_vec(),
            about,
            age: part.map_or(0, |(_, age)| age),
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
        self.forget_old_copies();
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
        let found = if self.is_shared(name) {
            self.parts(name).map(|parts| !parts.is_empty())
        } else {
            self.look(name).map(|place| place.is_some())
        };
        found.map_err(|error| {
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
        if state
            .names
            .keys()
            .any(|name| name.starts_with(&prefix) && state.is_part(name))
        {
            return Err(Errno::OPNOTSUPP);
        }
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
