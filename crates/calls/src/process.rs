// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: processes that have, or had, routed files open for writing: their connections to the agent, and their ends.
//! In from: `answer`, `descriptors`; the kernel, which says when a process ended. Out to: the agent.
//! Invariants: a connection speaks for one process, and ends after that; what is told of a file is told in order; a process
//! of the same number is another one.

use crate::proc::{Inode, maps, writers};
use backstay_base::process::is_running;
use backstay_route::SOCKET;
use backstay_route::message::{Kind, Message};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often it is looked whether a file is closed of whose last close the kernel does not tell.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
const STACK_BYTES: usize = 128 << 10;

/// A file that a process has open for writing.
#[derive(Debug, Default)]
pub(crate) struct File {
    /// By which numbers the agent knows it: one of each open.
    pub(crate) ids: Vec<u32>,
    /// It was mapped.
    pub(crate) is_mapped: bool,
    /// It is looked at until it is closed.
    pub(crate) lingers: bool,
    /// A child began while it was open, which may have it, too.
    pub(crate) is_shared: bool,
}

/// What is known of a process.
#[derive(Debug)]
pub(crate) struct State {
    /// Nothing once it ended.
    connection: Option<OwnedFd>,
    last: u32,
    pub(crate) files: BTreeMap<Inode, File>,
}

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pidfd: OwnedFd,
    /// Wakes who waits for its end.
    wake: OwnedFd,
    state: Mutex<State>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Processes {
    /// The agent's folder.
    folder: PathBuf,
    known: Mutex<BTreeMap<i32, Arc<Process>>>,
}

impl State {
    /// A number for what is opened.
    pub(crate) fn draw(&mut self) -> u32 {
        self.last = self.last.wrapping_add(1).max(1);
        self.last
    }

    pub(crate) fn tell(&self, message: &Message<'_>) -> Result<(), Errno> {
        let connection = self.connection.as_ref().ok_or(Errno::IO)?;
        loop {
            match send(connection, &message.encode(), SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // There is no agent any more: nothing is written past it.
                Err(_) => return Err(Errno::IO),
            }
        }
    }

    /// Asks the agent to do something.
    pub(crate) fn ask(&self, message: &Message<'_>) -> Result<(), Errno> {
        self.tell(message)?;
        let connection = self.connection.as_ref().ok_or(Errno::IO)?;
        let mut bytes = [0u8; 4];
        loop {
            match recv(connection, &mut bytes[..], RecvFlags::empty()) {
                Ok((4, _)) => break,
                Err(Errno::INTR) => {}
                _ => return Err(Errno::IO),
            }
        }
        match i32::from_le_bytes(bytes) {
            0 => Ok(()),
            number => Err(Errno::from_raw_os_error(number)),
        }
    }

    /// All of the process that could write a file is closed.
    pub(crate) fn close(&mut self, file: Inode) {
        let ids = self.files.remove(&file).map(|file| file.ids);
        for id in ids.unwrap_or_default() {
            // Of an agent that is gone nothing more is completed.
            self.tell(&Message::plain(Kind::Closed, id, 0)).ok();
        }
    }

    /// Files that linger, and that a process which goes on has no more, are closed.
    fn settle(&mut self, pid: i32) {
        let lingering = self.files.iter().filter(|(_, file)| file.lingers);
        let lingering: Vec<(Inode, bool)> = lingering
            .map(|(inode, file)| (*inode, file.is_mapped))
            .collect();
        for (file, is_mapped) in lingering {
            let is_open = !writers(pid, file).is_empty() || is_mapped && maps(pid, file);
            // Asked last: what is gone since it ended was not closed.
            if !is_open && is_running(pid) {
                self.close(file);
            }
        }
    }
}

fn is_over(pidfd: BorrowedFd<'_>) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

impl Process {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a file is looked at until it is closed.
    pub(crate) fn linger(&self, state: &mut State, file: Inode) {
        if let Some(file) = state.files.get_mut(&file) {
            file.lingers = true;
            self.awake();
        }
    }

    fn awake(&self) {
        // Where it is full, it is awake.
        rustix::io::write(&self.wake, &1u64.to_le_bytes()).ok();
    }

    /// It has a file of another process, of which it is a child: one that dies with it leaves it incomplete.
    pub(crate) fn inherit(&self, file: Inode, name: &[u8]) {
        let mut state = self.lock();
        if state.files.contains_key(&file) {
            return;
        }
        let id = state.draw();
        let message = Message::named(Kind::Inherited, id, 0, name);
        // Of an agent that is gone nothing more is completed.
        state.tell(&message).ok();
        let inherited = File {
            ids: vec![id],
            is_shared: true,
            ..File::default()
        };
        state.files.insert(file, inherited);
        self.linger(&mut state, file);
    }

    /// It begins to end, with this status.
    pub(crate) fn end(&self, status: i32) {
        let mut state = self.lock();
        state.settle(self.pid);
        state.tell(&Message::plain(Kind::Leaving, 0, status)).ok();
        state.tell(&Message::plain(Kind::Bye, 0, status)).ok();
        state.connection = None;
        self.awake();
    }

    /// Waits for its end.
    fn watch(&self) {
        loop {
            let state = self.lock();
            if state.connection.is_none() {
                return;
            }
            let lingers = state.files.values().any(|file| file.lingers);
            drop(state);
            let mut asked = [
                PollFd::new(&self.pidfd, PollFlags::IN),
                PollFd::new(&self.wake, PollFlags::IN),
            ];
            // One that is interrupted looks once more.
            poll(&mut asked, lingers.then_some(&LOOK)).ok();
            if !asked[0].revents().is_empty() {
                // Without a word: what it had open is not complete.
                self.lock().connection = None;
                return;
            }
            if !asked[1].revents().is_empty() {
                rustix::io::read(&self.wake, &mut [0u8; 8]).ok();
            }
            self.lock().settle(self.pid);
        }
    }
}

impl Processes {
    pub(crate) fn new(folder: PathBuf) -> Arc<Self> {
        Arc::new(Self {
            folder,
            known: Mutex::default(),
        })
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<Process>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any process is known.
    pub(crate) fn is_any(&self) -> bool {
        !self.known().is_empty()
    }

    /// A process, if it is known.
    pub(crate) fn get(&self, pid: i32) -> Option<Arc<Process>> {
        let known = self.known().get(&pid).map(Arc::clone);
        known.filter(|process| !is_over(process.pidfd.as_fd()))
    }

    /// A process, known from now on.
    pub(crate) fn begin(self: &Arc<Self>, pid: i32) -> Result<Arc<Process>, Errno> {
        if let Some(known) = self.get(pid) {
            return Ok(known);
        }
        let number = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let process = Arc::new(Process {
            pid,
            pidfd: pidfd_open(number, PidfdFlags::empty())?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            state: Mutex::new(State {
                connection: Some(self.connect(pid)?),
                last: 0,
                files: BTreeMap::new(),
            }),
        });
        let mut known = self.known();
        if let Some(other) = known.get(&pid).filter(|one| !is_over(one.pidfd.as_fd())) {
            // Another thread of it was faster.
            return Ok(Arc::clone(other));
        }
        let builder = std::thread::Builder::new()
            .name("route-watches".to_owned())
            .stack_size(STACK_BYTES);
        let (own, all) = (Arc::clone(&process), Arc::clone(self));
        let spawned = builder.spawn(move || {
            own.watch();
            all.forget(&own);
        });
        spawned.map_err(|_| Errno::AGAIN)?;
        known.insert(pid, Arc::clone(&process));
        Ok(process)
    }

    fn forget(&self, process: &Arc<Process>) {
        let mut known = self.known();
        if known
            .get(&process.pid)
            .is_some_and(|known| Arc::ptr_eq(known, process))
        {
            known.remove(&process.pid);
        }
    }

    /// A process ends by its own call.
    pub(crate) fn end(&self, process: &Arc<Process>, status: i32) {
        process.end(status);
        self.forget(process);
    }

    /// A connection that speaks for a process.
    fn connect(&self, pid: i32) -> Result<OwnedFd, Errno> {
        let connection = connect_to(&self.folder, SOCKET).map_err(|_| Errno::IO)?;
        let message = Message::plain(Kind::SpeaksFor, 0, pid);
        send(&connection, &message.encode(), SendFlags::NOSIGNAL).map_err(|_| Errno::IO)?;
        Ok(connection)
    }
}

/// Connects to a socket in the agent's folder; the whole path can be longer than an address.
pub(crate) fn connect_to(folder: &std::path::Path, name: &str) -> Result<OwnedFd, Errno> {
    let at = rustix::fs::open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", at.as_raw_fd()))?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let connection = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    connect(&connection, &address)?;
    Ok(connection)
}
