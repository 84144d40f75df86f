// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the agent's socket: what processes of the program say, one thread a process.
//! In from: the preload library. Out to: `names`, `holders`; the main thread, which is woken.
//! Invariants: what a process says is done in its order; a question is answered when it is done.

use super::nodes::Nodes;
use super::state::{Holder, ProcessId, State, shown};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::Digest;
use backstay_route::SOCKET;
use backstay_route::message::{BYTES_MAX, Kind, Message};
use backstay_route::table::{Pattern, Table};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, listen, recv, send, socket_with, sockopt,
};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Processes that wait to be connected.
const BACKLOG: i32 = 4096;
/// For an agent that is ending.
const DYING: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 256 << 10;

/// The state, and how the main thread is woken when it changed.
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The other nodes, if there are any.
    nodes: OnceLock<Arc<Nodes>>,
}

impl Shared {
    pub(super) fn new(state: State) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            nodes: OnceLock::new(),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There are other nodes.
    pub(super) fn join(&self, nodes: &Arc<Nodes>) {
        // Said once, when it begins.
        drop(self.nodes.set(Arc::clone(nodes)));
    }

    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Waits for a change.
    pub(super) fn wait(&self, state: MutexGuard<'_, State>, limit: Duration) {
        drop(self.changed.wait_timeout(state, limit));
    }
}

/// Serves the socket of `folder` from now on.
pub(super) fn begin(folder: &Path, shared: &Arc<Shared>) -> Result<()> {
    let failed = |error: Errno| {
        Error::io(
            format!("making the socket in {}", folder.display()),
            error.into(),
        )
    };
    let at =
        rustix::fs::open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    // The whole path can be longer than an address.
    let address = format!("/proc/self/fd/{}/{SOCKET}", at.as_raw_fd());
    let address = SocketAddrUnix::new(address).map_err(failed)?;
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(failed)?;
    bind(&socket, &address).map_err(failed)?;
    listen(&socket, BACKLOG).map_err(failed)?;
    let shared = Arc::clone(shared);
    spawn("accepts", move || accept(&socket, &shared))
        .map_err(|error| Error::io("starting a thread", error))
}

/// That no other agent on this host routes these names, as long as what is returned is kept: a name of the kernel's for
/// each pattern, which goes with its process.
pub(super) fn claim(table: &Table) -> Result<Vec<OwnedFd>> {
    let of_pattern = |pattern: &Pattern| {
        let folder = table
            .folders()
            .get(pattern.folder)
            .cloned()
            .unwrap_or_default();
        let user = rustix::process::geteuid().as_raw().to_string();
        let all = [user.as_bytes(), b"\0", &folder, b"\0", pattern.rest()].concat();
        let Digest(digest) = Digest::of(&all);
        let name = [b"backstay-route-".as_slice(), &digest].concat();
        let what = || format!("claiming the names of {}", shown(pattern.rest()));
        let failed = |error: Errno| Error::io(what(), error.into());
        let address = SocketAddrUnix::new_abstract_name(&name).map_err(failed)?;
        let flags = SocketFlags::CLOEXEC;
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).map_err(failed)?;
        // The agent of a start that was killed takes its last checkpoint.
        let limit = Instant::now() + DYING;
        loop {
            match bind(&socket, &address) {
                Ok(()) => return Ok(socket),
                Err(Errno::ADDRINUSE) if Instant::now() < limit => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(Errno::ADDRINUSE) => {
                    let context = format!(
                        "another job on this host routes {} in {}: end it, or give its own folder to each",
                        shown(pattern.rest()),
                        shown(&folder)
                    );
                    return Err(Error::new(ErrorKind::InvalidArgument, context));
                }
                Err(error) => return Err(failed(error)),
            }
        }
    };
    table.patterns().iter().map(of_pattern).collect()
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let builder = std::thread::Builder::new()
        .name(format!("route-{name}"))
        .stack_size(STACK_BYTES);
    builder.spawn(work).map(drop)
}

fn accept(socket: &OwnedFd, shared: &Arc<Shared>) {
    loop {
        let Ok(connection) = accept_with(socket, SocketFlags::CLOEXEC) else {
            // No more descriptors, say: those that are there end by and by.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let own = Arc::clone(shared);
        // What cannot be served is told by the end of its connection.
        drop(spawn("serves", move || serve(&connection, &own)));
    }
}

fn serve(connection: &OwnedFd, shared: &Shared) {
    let Ok(peer) = sockopt::socket_peercred(connection) else {
        return;
    };
    let process = shared.lock().connected(peer.pid.as_raw_nonzero().get());
    let mut buffer = vec![0u8; BYTES_MAX];
    loop {
        let length = match recv(connection, &mut buffer[..], RecvFlags::empty()) {
            Ok((length, _)) if length > 0 => length,
            Err(Errno::INTR) => continue,
            _ => break,
        };
        let Some(message) = Message::decode(&buffer[..length]) else {
            break;
        };
        let answer = match shared.nodes.get() {
            Some(nodes) => nodes.done(process, &message),
            None => done(&mut shared.lock(), process, &message),
        };
        if let Some(answer) = answer {
            let number = answer.err().map_or(0, Errno::raw_os_error);
            if send(
                connection.as_fd(),
                &number.to_le_bytes(),
                SendFlags::NOSIGNAL,
            )
            .is_err()
            {
                break;
            }
        }
        shared.wake();
    }
    shared.lock().disconnected(process);
    shared.wake();
}

/// Does what a message says; the answer, if it has one.
pub(super) fn done(
    state: &mut State,
    process: ProcessId,
    message: &Message<'_>,
) -> Option<std::result::Result<(), Errno>> {
    let Message {
        kind,
        id,
        value,
        first,
        second,
    } = *message;
    match kind {
        Kind::Open => Some(state.open(Holder::opened(process, id), first, value)),
        Kind::Remove => Some(state.remove(first)),
        Kind::Rename => Some(state.rename(id, value, first, second)),
        Kind::RenameFolder => Some(state.rename_folder(first, second)),
        // There are no other nodes.
        Kind::Look | Kind::Fetch | Kind::List => Some(Err(Errno::NOENT)),
        Kind::NotOpened => none(|| state.not_opened(process, id)),
        // Nobody writes a part where there are no other nodes.
        Kind::Notes | Kind::Full | Kind::Cut | Kind::Read => Some(Err(Errno::INVAL)),
        Kind::Closed => none(|| state.closed(process, id, value != 0)),
        Kind::Inherited => none(|| state.inherited(process, id, first)),
        Kind::TakenOver => none(|| state.taken_over(process, id, first)),
        Kind::Leaving => none(|| state.leaving(process, value)),
        Kind::Bye => none(|| state.bye(process, value)),
        Kind::SpeaksFor => none(|| state.speaks_for(process, value)),
    }
}

fn none<T>(work: impl FnOnce()) -> Option<T> {
    work();
    None
}
