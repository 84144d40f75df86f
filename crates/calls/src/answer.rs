// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the answer to a call that the kernel tells: opens, and calls that ask of a name.
//! In from: `serve`. Out to: the kernel; the agent, through `process`.
//! Invariants: of a routed name nothing is left to the kernel: what was read of the process's memory once is what is done,
//! whatever stands there later; a file is opened for writing only after the agent knows of it.

use crate::kernel::{self, Call};
use crate::list::Listings;
use crate::proc::{self, Seen, free_descriptor, inode, process_and_umask};
use crate::process::{Process, Processes, State};
use crate::table::{Buffer, Flags, Name, Shape, shape};
use backstay_base::notice;
use backstay_route::message::{Kind, Message};
use backstay_route::place::{Places, Routed, absolute, split};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, fchmod, ftruncate, open, openat};
use rustix::io::Errno;
use std::ffi::CString;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Of a buffer whose size the program says: no call here takes more.
const BUFFER_BYTES_MAX: u64 = 1 << 17;

/// What becomes of a call.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The kernel does it.
    GoOn,
    Done(i64),
    Failed(Errno),
    /// It was answered.
    Given,
}

impl From<Result<(), Errno>> for Reply {
    fn from(outcome: Result<(), Errno>) -> Self {
        match outcome {
            Ok(()) => Self::Done(0),
            Err(error) => Self::Failed(error),
        }
    }
}

/// What answers need.
pub(crate) struct Answers {
    pub(crate) listener: OwnedFd,
    pub(crate) places: Arc<Places>,
    pub(crate) processes: Arc<Processes>,
    /// Descriptors for routed files that are written: what closes one of these is told.
    pub(crate) descriptors: Range<u32>,
    pub(crate) listings: Listings,
    /// It was said that a process cannot be read.
    pub(crate) said: AtomicBool,
}

/// An open, as its call says it.
struct How {
    flags: OFlags,
    mode: u32,
}

impl How {
    fn writes(&self) -> bool {
        let access = self.flags & OFlags::RWMODE;
        !self.flags.contains(OFlags::PATH)
            && (access != OFlags::RDONLY || self.flags.intersects(OFlags::CREATE | OFlags::TRUNC))
    }
}

impl Answers {
    /// Answers a call.
    pub(crate) fn answer(&self, call: &Call) {
        // A call without an answer would wait for ever.
        let reply = catch_unwind(AssertUnwindSafe(|| self.reply(call)));
        match reply.unwrap_or(Reply::Failed(Errno::IO)) {
            Reply::GoOn => kernel::go_on(self.listener(), call),
            Reply::Done(value) => kernel::answer(self.listener(), call, Ok(value)),
            Reply::Failed(error) => kernel::answer(self.listener(), call, Err(error)),
            Reply::Given => {}
        }
    }

    /// Lets a call go on whose name cannot be routed, as its last component shows; whether it did.
    pub(crate) fn passes(&self, call: &Call) -> bool {
        let Some(Shape::Open(name, _) | Shape::Place(name, _) | Shape::Truncate(name)) =
            shape(call.number)
        else {
            return false;
        };
        let Ok(path) = proc::text(call, name.path) else {
            return false;
        };
        let last = split(trimmed(&path)).1;
        let passes = !self.places.table.may_end_in(last) && !self.may_be_folder(last);
        if passes {
            kernel::go_on(self.listener(), call);
        }
        passes
    }

    /// Whether a folder of routed names can be called so.
    fn may_be_folder(&self, last: &[u8]) -> bool {
        let table = &self.places.table;
        let mut folders = table.folders().iter();
        folders.any(|folder| split(folder).1 == last) || table.may_be_in(last)
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn reply(&self, call: &Call) -> Reply {
        match shape(call.number) {
            Some(Shape::Open(name, flags)) => self.open(call, name, flags),
            Some(Shape::Place(name, buffers)) => self.at_place(call, name, buffers),
            Some(Shape::Truncate(name)) => self.truncate(call, name),
            Some(Shape::Rename(from, to, flags)) => self.rename(call, from, to, flags),
            Some(Shape::Remove(name, flags)) => self.remove(call, name, flags),
            Some(Shape::RemoveFolder(name)) => self.remove_folder(call, name),
            Some(Shape::Link(names)) => self.link(call, names),
            Some(Shape::Entries) => self.entries(call),
            Some(Shape::Close) => self.close(call, proc::number(call, 0)),
            Some(Shape::Replace) => self.replace(call),
            Some(Shape::CloseRange) => self.close_range(call),
            Some(Shape::Map) => self.map(call),
            Some(Shape::Fork) => self.fork(call),
            Some(Shape::End) => self.end(call),
            None => Reply::GoOn,
        }
    }

    /// The path that a call names; nothing where the kernel has to say what is wrong with it.
    pub(crate) fn path(&self, call: &Call, name: Name) -> Option<Vec<u8>> {
        match proc::text(call, name.path) {
            Ok(path) => (!path.is_empty()).then_some(path),
            Err(Errno::PERM | Errno::ACCESS) => {
                if !self.said.swap(true, Ordering::Relaxed) {
                    notice::warn(&format!(
                        "process {} cannot be looked into, and files that it opens are not routed",
                        call.tid
                    ));
                }
                None
            }
            Err(_) => None,
        }
    }

    /// The routed name that a path is, if what was read is of a call that still waits.
    pub(crate) fn routed(&self, call: &Call, name: Name, path: &[u8]) -> Option<Routed> {
        let routed = self.places.file(path, &Seen::new(call, name));
        routed.filter(|_| kernel::is_waiting(self.listener(), call))
    }

    /// The process of a call, known from now on, and what its files are made without.
    pub(crate) fn process(&self, call: &Call) -> Result<(Arc<Process>, u32), Errno> {
        let (pid, umask) = process_and_umask(call.tid).ok_or(Errno::SRCH)?;
        Ok((self.processes.begin(pid)?, umask))
    }

    fn how(call: &Call, flags: Flags) -> Option<How> {
        let bits = |bits: i32| OFlags::from_bits_retain(bits.cast_unsigned());
        let (flags, mode) = match flags {
            Flags::At(at) => (bits(proc::number(call, at)), proc::number(call, at + 1)),
            Flags::Creat => {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC;
                (flags, proc::number(call, 1))
            }
            Flags::How(at) => {
                let mut how = [0u8; 16];
                let read = kernel::read_memory(call.tid, call.arguments[at], &mut how);
                read.ok().filter(|&read| read == how.len())?;
                let (flags, mode) = how.split_first_chunk::<4>()?;
                let mode = mode.get(4..)?.first_chunk::<4>()?;
                (bits(i32::from_le_bytes(*flags)), i32::from_le_bytes(*mode))
            }
        };
        let mode = mode.cast_unsigned() & 0o7777;
        Some(How { flags, mode })
    }

    fn open(&self, call: &Call, name: Name, flags: Flags) -> Reply {
        let Some(path) = self.path(call, name) else {
            return Reply::GoOn;
        };
        let last = split(&path).1;
        if !self.places.table.may_end_in(last) {
            return self.open_folder(call, name, &path, flags);
        }
        let Some(how) = Self::how(call, flags) else {
            return Reply::GoOn;
        };
        let is_file = !how.flags.contains(OFlags::DIRECTORY);
        let Some(routed) = self.routed(call, name, &path).filter(|_| is_file) else {
            return self.open_folder(call, name, &path, flags);
        };
        if how.writes() {
            return match self.open_to_write(call, &routed, &how) {
                Ok(()) => Reply::Given,
                Err(error) => Reply::Failed(error),
            };
        }
        match open_place(&routed, how.flags, Mode::empty()) {
            Ok(file) => self.give(call, &file, &how),
            Err(Errno::NOENT) if Seen::new(call, name).is_folder(&path) => Reply::GoOn,
            Err(error) => Reply::Failed(error),
        }
    }

    fn give(&self, call: &Call, file: &OwnedFd, how: &How) -> Reply {
        let on_exec = how.flags.contains(OFlags::CLOEXEC);
        match kernel::give(self.listener(), call, file.as_fd(), None, on_exec) {
            Ok(()) => Reply::Given,
            Err(error) => Reply::Failed(error),
        }
    }

    /// A folder that was made before the job came to these files, and is not there, is opened where these are.
    fn open_folder(&self, call: &Call, name: Name, path: &[u8], flags: Flags) -> Reply {
        let trimmed = trimmed(path);
        if !self.may_be_folder(split(trimmed).1) {
            return Reply::GoOn;
        }
        let seen = Seen::new(call, name);
        let how = Self::how(call, flags).filter(|how| !how.writes() && !seen.is_folder(path));
        let place = absolute(trimmed, &seen).and_then(|name| self.places.folder_at(name));
        let (Some(how), Some(place)) = (how, place) else {
            return Reply::GoOn;
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match open(&place.live, flags, Mode::empty()) {
            Ok(folder) if !is_standing(&place.name) => self.give(call, &folder, &how),
            _ => Reply::GoOn,
        }
    }

    /// The agent first, then the file; the process is given it as one of the descriptors of which the end is told.
    fn open_to_write(&self, call: &Call, routed: &Routed, how: &How) -> Result<(), Errno> {
        let (process, umask) = self.process(call)?;
        let mut state = process.lock();
        let id = state.draw();
        let asked = Message::named(Kind::Open, id, how.flags.bits().cast_signed(), &routed.name);
        state.ask(&asked)?;
        let opened = make_place(routed, how, umask);
        let opened = opened.and_then(|file| Ok((inode(&file).ok_or(Errno::IO)?, file)));
        let (inode, file) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                state.tell(&Message::plain(Kind::NotOpened, id, 0))?;
                return Err(error);
            }
        };
        let given = self.give_high(call, &file, how);
        match given {
            Ok(is_told) => {
                state.files.entry(inode).or_default().ids.push(id);
                if !is_told {
                    process.linger(&mut state, inode);
                }
                Ok(())
            }
            // It was killed meanwhile, and its death says what the file is.
            Err(Errno::NOENT) => Ok(()),
            Err(error) => {
                state.tell(&Message::plain(Kind::NotOpened, id, 0))?;
                Err(error)
            }
        }
    }

    /// Gives a process a file that it writes; whether its close will be told.
    fn give_high(&self, call: &Call, file: &OwnedFd, how: &How) -> Result<bool, Errno> {
        let on_exec = how.flags.contains(OFlags::CLOEXEC);
        if let Some(at) = free_descriptor(call.tid, &self.descriptors) {
            match kernel::give(self.listener(), call, file.as_fd(), Some(at), on_exec) {
                Ok(()) => return Ok(true),
                // It set itself a lower limit of descriptors.
                Err(Errno::BADF) => {}
                Err(error) => return Err(error),
            }
        }
        kernel::give(self.listener(), call, file.as_fd(), None, on_exec).map(|()| false)
    }

    fn truncate(&self, call: &Call, name: Name) -> Reply {
        let path = self.path(call, name);
        let Some(routed) = path.and_then(|path| self.routed(call, name, &path)) else {
            return Reply::GoOn;
        };
        let length = call.arguments[name.path + 1];
        let cut = |state: &mut State| {
            let id = state.draw();
            let asked = Message::named(Kind::Open, id, libc::O_WRONLY, &routed.name);
            state.ask(&asked)?;
            let file = open_place(&routed, OFlags::WRONLY, Mode::empty());
            let outcome = file.and_then(|file| ftruncate(file, length));
            let failed = i32::from(outcome.is_err());
            state.tell(&Message::plain(Kind::Closed, id, failed))?;
            outcome
        };
        let process = self.process(call);
        process
            .and_then(|(process, _)| cut(&mut process.lock()))
            .into()
    }

    /// Makes a call with the place of its name.
    fn at_place(&self, call: &Call, name: Name, buffers: &[Buffer]) -> Reply {
        let Some(path) = self.path(call, name) else {
            return Reply::GoOn;
        };
        let Some(routed) = self.routed(call, name, &path) else {
            return Reply::GoOn;
        };
        match repeat(call, (name.path, &routed.live), buffers) {
            Ok(value) => Reply::Done(value),
            Err(Errno::NOENT) if Seen::new(call, name).is_folder(&path) => Reply::GoOn,
            Err(error) => Reply::Failed(error),
        }
    }
}

/// A path without slashes at its end.
fn trimmed(mut path: &[u8]) -> &[u8] {
    while path.len() > 1 && path.ends_with(b"/") {
        path = &path[..path.len() - 1];
    }
    path
}

fn is_standing(name: &[u8]) -> bool {
    let name = CString::new(name).unwrap_or_default();
    rustix::fs::lstat(&name).is_ok()
}

/// Opens the place of a name. Memory that knows no direct access is opened without; a path alone cannot be given away.
fn open_place(routed: &Routed, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = flags.difference(OFlags::PATH) | OFlags::CLOEXEC;
    let open = |flags| openat(CWD, &routed.live, flags, mode);
    match open(flags) {
        Err(Errno::INVAL) if flags.contains(OFlags::DIRECT) => {
            open(flags.difference(OFlags::DIRECT))
        }
        opened => opened,
    }
}

/// The same for writing; what is made has the permissions that the process would give it.
fn make_place(routed: &Routed, how: &How, umask: u32) -> Result<OwnedFd, Errno> {
    let made = OFlags::CREATE | OFlags::EXCL;
    if !how.flags.contains(OFlags::CREATE) {
        return open_place(routed, how.flags, Mode::empty());
    }
    let own = Mode::RUSR | Mode::WUSR;
    match open_place(routed, how.flags | made, own) {
        Ok(file) => {
            fchmod(&file, Mode::from_bits_truncate(how.mode & !umask))?;
            Ok(file)
        }
        Err(Errno::EXIST) if !how.flags.contains(OFlags::EXCL) => {
            open_place(routed, how.flags.difference(made), Mode::empty())
        }
        Err(error) => Err(error),
    }
}

/// Makes the call here, and gives the process what it says.
fn repeat(call: &Call, place: (usize, &CString), buffers: &[Buffer]) -> Result<i64, Errno> {
    let size = |at: usize| usize::try_from(call.arguments[at].min(BUFFER_BYTES_MAX)).unwrap_or(0);
    let mut own: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut call_here = *call;
    let read = |at: usize, bytes: usize| {
        let mut buffer = vec![0u8; bytes];
        let read = kernel::read_memory(call.tid, call.arguments[at], &mut buffer)?;
        if read == bytes {
            Ok(buffer)
        } else {
            Err(Errno::FAULT)
        }
    };
    for &buffer in buffers {
        let at = match buffer {
            Buffer::Out(at, _) | Buffer::In(at, _) | Buffer::Text(at) => at,
            Buffer::Measured(at, length) | Buffer::Sized(at, length) => {
                call_here.arguments[length] = call.arguments[length].min(BUFFER_BYTES_MAX);
                at
            }
        };
        if call.arguments[at] == 0 {
            continue;
        }
        let bytes = match buffer {
            Buffer::Out(_, bytes) => vec![0; bytes],
            Buffer::Measured(_, length) => vec![0; size(length)],
            Buffer::In(_, bytes) => read(at, bytes)?,
            Buffer::Sized(_, length) => read(at, size(length))?,
            Buffer::Text(_) => {
                let mut text = proc::text(call, at)?;
                text.push(0);
                text
            }
        };
        own.push((at, bytes));
    }
    let value = kernel::repeat(&call_here, (place.0, place.1), &mut own)?;
    for &buffer in buffers {
        let (at, is_measured) = match buffer {
            Buffer::Out(at, _) => (at, false),
            Buffer::Measured(at, _) => (at, true),
            _ => continue,
        };
        if let Some((_, bytes)) = own.iter().find(|(own, _)| *own == at) {
            let written = usize::try_from(value).unwrap_or(0).min(bytes.len());
            let bytes = if is_measured {
                &bytes[..written]
            } else {
                bytes
            };
            kernel::write_memory(call.tid, call.arguments[at], bytes)?;
        }
    }
    Ok(value)
}
