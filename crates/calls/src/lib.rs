// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls on routed names that the kernel tells of, for programs that no preload library reaches.
//!
//! Purpose: a filter of calls (seccomp) that a program and all that it starts have; the kernel holds each call that takes a
//! name until it is answered here (user notification).
//! In from: the program, as its process stands in a call. Out to: the kernel (descriptors, answers), the routing agent
//! (`backstay-service`), with the messages of the preload library.
//! Invariants: what is not routed goes on as it is; a routed file is opened here, and given to the program as a descriptor:
//! the kernel never opens by a path that was looked at before; where nobody answers any more, the calls fail (ENOSYS).
//!
//! | module | what it has |
//! |---|---|
//! | `table` | which calls |
//! | `filter` | the filter |
//! | `kernel` | what the kernel is asked |
//! | `serve` | threads that receive calls |
//! | `answer`, `names`, `descriptors`, `list` | the answers |
//! | `proc` | what a process has |
//! | `process` | processes that write, and the agent |
//!
//! # Closes
//!
//! A close and a death look alike, and a filter can tell closes apart by the number of the descriptor alone. So routed
//! files that are written are given to programs as the highest descriptors, from three quarters of the limit (or of 1024)
//! up, and closes of these are told; so are mappings. Where a program has such a file as a lower descriptor, too, it is
//! looked at 50 times a second whether it has it still, and lives.

mod answer;
mod descriptors;
mod filter;
mod kernel;
mod list;
mod names;
mod proc;
mod process;
mod serve;
mod table;

use answer::Answers;
use backstay_base::notice;
use backstay_route::place::Places;
use backstay_route::table::Table;
use backstay_route::{CALLS, FAR, TABLE_FILE};
use process::{Processes, connect_to};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, listen, recv, recvmsg, send, sendmsg, shutdown, socket_with,
};
use rustix::process::{Resource, getrlimit};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Programs take descriptors below this for granted (`select`).
const DESCRIPTORS_MAX: u64 = 1024;
/// Of these so many are for routed files, at most.
const WRITTEN_MAX: u64 = 256;
/// What is said when the listener was taken.
const TAKEN: u8 = 1;
const RANGE_BYTES: usize = 8;

/// Descriptors of this process, and of what it becomes, for routed files that it writes.
fn descriptors() -> Range<u32> {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    let first = limit - (limit / 4).min(WRITTEN_MAX);
    let number = |value: u64| u32::try_from(value).unwrap_or_default();
    number(first)..number(limit)
}

/// Why the kernel makes no such filter.
fn why(error: Errno) -> String {
    let reason = match error {
        Errno::BUSY => {
            "the calls of this process are told to another already, a container's runtime, say"
        }
        Errno::INVAL => "it needs Linux 5.19 (SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)",
        Errno::ACCESS | Errno::PERM | Errno::NOSYS => {
            "the system, or its container, forbids seccomp"
        }
        _ => "the kernel refuses a filter of calls",
    };
    format!("--route-by seccomp cannot be done here: {reason}: {error}")
}

/// Whether calls can be told here; why not.
pub fn check() -> Result<(), String> {
    if !filter::IS_KNOWN {
        let machine = std::env::consts::ARCH;
        return Err(format!(
            "--route-by seccomp does not know the calls of {machine}: x86_64 and aarch64"
        ));
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let scope = scope.unwrap_or_default();
    let is_root = rustix::process::geteuid().is_root();
    if scope.trim() == "3" || scope.trim() == "2" && !is_root {
        return Err(format!(
            "--route-by seccomp cannot be done here: the memory of processes cannot be read \
             (kernel.yama.ptrace_scope is {})",
            scope.trim()
        ));
    }
    // A filter is a thread's, and goes with it.
    let tried = std::thread::spawn(|| kernel::install(&filter::program(&descriptors())));
    match tried.join() {
        Ok(Ok(_listener)) => Ok(()),
        Ok(Err(error)) => Err(why(error)),
        Err(_) => Err(why(Errno::IO)),
    }
}

/// From now on the calls of this process, and of what it becomes and starts, are told to who serves `folder`.
pub fn enter(folder: &Path) -> Result<(), String> {
    let failed = |error: Errno| format!("the calls of the program cannot be told: {error}");
    let connection = connect_to(folder, CALLS).map_err(failed)?;
    let descriptors = descriptors();
    let listener = kernel::install(&filter::program(&descriptors)).map_err(why)?;
    let [first, end] = [descriptors.start, descriptors.end].map(u32::to_le_bytes);
    let range = [first, end].concat();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut more = SendAncillaryBuffer::new(&mut space);
    let given = [listener.as_fd()];
    if !more.push(SendAncillaryMessage::ScmRights(&given)) {
        return Err(failed(Errno::NOBUFS));
    }
    let bytes = [IoSlice::new(&range)];
    sendmsg(&connection, &bytes, &mut more, SendFlags::NOSIGNAL).map_err(failed)?;
    let mut taken = [0u8; 1];
    match recv(&connection, &mut taken[..], RecvFlags::empty()) {
        Ok((1, _)) if taken == [TAKEN] => Ok(()),
        Ok(_) => Err(failed(Errno::CONNRESET)),
        Err(error) => Err(failed(error)),
    }
}

/// Answers the calls of a program that begins, as long as it is kept, and then those of what is left of it.
#[derive(Debug)]
pub struct Calls {
    socket: Arc<OwnedFd>,
}

impl Calls {
    /// Serves the agent's folder from now on.
    pub fn serve(folder: &Path) -> Result<Self, String> {
        let failed =
            |what: &str, error: std::io::Error| format!("{what} in {}: {error}", folder.display());
        let folder = std::fs::canonicalize(folder).map_err(|error| failed("looking", error))?;
        let table = std::fs::read(folder.join(TABLE_FILE));
        let table = table.map_err(|error| failed("reading what is routed", error))?;
        let table = Table::decode(&table).ok_or("the agent's table cannot be read")?;
        let is_spread = folder.join(FAR).exists();
        let bytes = folder.as_os_str().as_bytes().to_vec();
        let places = Arc::new(Places::new(bytes, table, |_| is_spread, None));
        let socket = Arc::new(
            open_socket(&folder).map_err(|error| failed("making a socket", error.into()))?,
        );
        let own = Arc::clone(&socket);
        std::thread::Builder::new()
            .name("route-accepts".to_owned())
            .spawn(move || accept(&own, &folder, &places))
            .map_err(|error| format!("starting a thread: {error}"))?;
        Ok(Self { socket })
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // It ends the thread that accepts.
        shutdown(&*self.socket, Shutdown::Both).ok();
    }
}

fn open_socket(folder: &Path) -> Result<OwnedFd, Errno> {
    let at = rustix::fs::open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // The whole path can be longer than an address.
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{CALLS}", at.as_raw_fd()))?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // What a start before left there; else there is none.
    rustix::fs::unlinkat(&at, CALLS, AtFlags::empty()).ok();
    bind(&socket, &address)?;
    listen(&socket, 16)?;
    Ok(socket)
}

fn accept(socket: &OwnedFd, folder: &Path, places: &Arc<Places>) {
    loop {
        let connection = match accept_with(socket, SocketFlags::CLOEXEC) {
            Ok(connection) => connection,
            Err(Errno::INTR) => continue,
            Err(_) => return,
        };
        let begun =
            take(&connection)
                .map_err(std::io::Error::from)
                .and_then(|(listener, descriptors)| {
                    serve::begin(Answers {
                        listener,
                        places: Arc::clone(places),
                        processes: Processes::new(PathBuf::from(folder)),
                        descriptors,
                        listings: list::Listings::default(),
                        said: std::sync::atomic::AtomicBool::new(false),
                    })
                });
        match begun {
            // Who does not hear it says so.
            Ok(()) => drop(send(&connection, &[TAKEN], SendFlags::NOSIGNAL)),
            Err(error) => notice::warn(&format!("the calls of the program are not told: {error}")),
        }
    }
}

/// The listener that a program hands over, and its descriptors for routed files.
fn take(connection: &OwnedFd) -> Result<(OwnedFd, Range<u32>), Errno> {
    let mut bytes = [0u8; RANGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut more = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut bytes)];
    recvmsg(connection, &mut into, &mut more, RecvFlags::CMSG_CLOEXEC)?;
    let listener = more.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut given) => given.next(),
        _ => None,
    });
    let (first, end) = bytes.split_at(RANGE_BYTES / 2);
    let number = |bytes: &[u8]| {
        bytes
            .first_chunk()
            .map_or(0, |bytes| u32::from_le_bytes(*bytes))
    };
    Ok((listener.ok_or(Errno::BADF)?, number(first)..number(end)))
}
