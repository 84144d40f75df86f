// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how the leader of a node's ranks and an agent process on the same node find and talk to each
//! other: a locked file that names the agent, and a socket, both in the folder of the node's store.
//! In from: `session` (client), the agent process (server). Out to: Unix sockets.
//! Invariants: only processes of the same user are talked to; every wait has a limit; an agent that does
//! not let go of a store in time is ended before anybody else writes it, and nobody else ever is.
//! Format: docs/format/agent.md.

use backstay_base::clock::Deadline;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::{fault, lock, open};
use backstay_base::notice;
use backstay_format::FormatError;
use backstay_format::local::{LocalAnswer, LocalRequest};
use backstay_format::width::index;
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::process::{Pid, PidfdFlags, Signal, getuid, pidfd_open, pidfd_send_signal};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names the agent of a node and is locked by it while it lives.
const AGENT_FILE: &str = "agent.backstay";
const SOCKET: &str = "agent.socket";
/// Longest message between a rank and an agent, in bytes.
const MESSAGE_BYTES_MAX: u32 = 64 << 20;
/// How long an agent may take to answer what it does at once, and to die.
const PATIENCE: Duration = Duration::from_secs(5);
/// Leaders that look whether there is an agent lock its file for a moment: none takes longer.
const LOOK: Duration = Duration::from_secs(1);

/// The place of an agent process in a folder: held as long as it lives.
#[derive(Debug)]
pub struct AgentPlace {
    file: File,
    path: PathBuf,
    listener: UnixListener,
    socket: PathBuf,
}

impl AgentPlace {
    /// Takes the place in `directory` for process `id`; an error names the agent that has it.
    pub fn take(directory: &Path, id: u32) -> Result<Self> {
        let path = directory.join(AGENT_FILE);
        let failed = |error| Error::io(format!("opening {}", path.display()), error);
        let mut file = open::open_own(&path).map_err(failed)?;
        if !lock::take(&file, LOOK).map_err(failed)? {
            let context = format!("node's agent is already process {}", lock::holder(&file));
            return Err(Error::new(ErrorKind::StoreBusy, context));
        }
        open::inscribe(&mut file, &format!("{id}\n")).map_err(failed)?;
        let socket = directory.join(SOCKET);
        drop(std::fs::remove_file(&socket));
        let place = short(directory, &socket)?;
        let listener = open::above_standard(|| UnixListener::bind(place.path()))
            .map_err(|error| Error::io(format!("listening on {}", socket.display()), error))?;
        Ok(Self {
            file,
            path,
            listener,
            socket,
        })
    }

    /// Whether leaders find this agent: nobody removed its file, or the whole folder.
    pub fn stands(&self) -> bool {
        lock::stands_at(&self.file, &self.path)
    }

    /// The next leader that calls, if one does within `limit`.
    pub fn accept(&self, limit: Duration) -> Option<UnixStream> {
        self.listener.set_nonblocking(true).ok()?;
        let deadline = Deadline::after(limit);
        while deadline.left().is_some() {
            let accept = || self.listener.accept().map(|(stream, _)| stream);
            if let Ok(stream) = accept().and_then(open::moved_above) {
                stream.set_nonblocking(false).ok()?;
                return is_ours(&stream).then_some(stream);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for AgentPlace {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.socket));
    }
}

/// A socket's path may be longer than the kernel takes: then it goes by the descriptor of its folder.
struct Short {
    path: PathBuf,
    _folder: Option<File>,
}

impl Short {
    fn path(&self) -> &Path {
        &self.path
    }
}

fn short(directory: &Path, socket: &Path) -> Result<Short> {
    use std::os::fd::AsRawFd;
    if socket.as_os_str().len() < 100 {
        return Ok(Short {
            path: socket.to_owned(),
            _folder: None,
        });
    }
    let folder = open::open_read(directory)
        .map_err(|error| Error::io(format!("opening {}", directory.display()), error))?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()));
    Ok(Short {
        path,
        _folder: Some(folder),
    })
}

fn is_ours(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == getuid())
}

/// The bytes of a message, if it could be encoded and is not longer than who receives it takes.
pub fn sendable(
    what: impl Fn() -> String,
    encoded: std::result::Result<Vec<u8>, FormatError>,
) -> Result<Vec<u8>> {
    let bytes = encoded.map_err(|error| Error::unwritable(what(), error))?;
    let length = bytes.len();
    if length > index(MESSAGE_BYTES_MAX) {
        let context = format!("{}: {length} bytes, at most {MESSAGE_BYTES_MAX}", what());
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    }
    Ok(bytes)
}

/// Sends one message: its length, and its frame.
pub fn send(stream: &UnixStream, frame: &[u8]) -> std::io::Result<()> {
    let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    send_all(stream, &length.to_le_bytes())?;
    send_all(stream, frame)
}

/// Sends bytes; an error, and no signal that ends the program, where nobody receives them any more.
fn send_all(stream: &UnixStream, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(stream, bytes, SendFlags::NOSIGNAL) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Receives one message; `None` at the end of the connection.
pub fn receive(mut stream: &UnixStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length);
    if length > MESSAGE_BYTES_MAX {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    // Grows with what arrives, not with what was promised.
    let mut bytes = Vec::new();
    stream.take(u64::from(length)).read_to_end(&mut bytes)?;
    if bytes.len() < index(length) {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(bytes))
}

/// An agent process of this node, as its leader sees it.
#[derive(Debug)]
pub struct AgentClient {
    stream: UnixStream,
    pid: i32,
}

impl AgentClient {
    /// The agent that lives in `directory`, if there is one.
    pub fn find(directory: &Path) -> Option<Self> {
        let pid = living(directory)?;
        let socket = directory.join(SOCKET);
        let path = short(directory, &socket).ok()?;
        let stream = match open::above_standard(|| UnixStream::connect(path.path())) {
            Ok(stream) if is_ours(&stream) => stream,
            _ => {
                notice::warn(&format!(
                    "agent {pid} of this node does not answer; going on without"
                ));
                return None;
            }
        };
        Some(Self { stream, pid })
    }

    /// Ends it: it said that it let go, but a thread of it did not.
    pub fn end(self, directory: &Path) -> Result<()> {
        notice::warn(&format!("agent {} is ended: it still encodes", self.pid));
        end(directory, self.pid, PATIENCE)
    }

    /// Asks, and waits for the answer.
    pub fn ask(&self, request: &LocalRequest, within: Duration) -> Result<LocalAnswer> {
        let failed = |error| {
            let context = format!("agent {} of this node: {request:?}", self.pid);
            Error::caused(ErrorKind::PeerUnreachable, context, error)
        };
        let what = || format!("agent {} of this node: {request:?}", self.pid);
        let bytes = sendable(what, request.encode())?;
        self.stream.set_read_timeout(Some(within)).map_err(failed)?;
        self.stream
            .set_write_timeout(Some(within))
            .map_err(failed)?;
        send(&self.stream, &bytes).map_err(failed)?;
        let bytes = receive(&self.stream).map_err(failed)?;
        let bytes = bytes.ok_or_else(|| failed(std::io::ErrorKind::UnexpectedEof.into()))?;
        let answer = LocalAnswer::decode(&bytes).map_err(|error| {
            Error::caused(
                ErrorKind::Unsupported,
                "the answer of this node's agent",
                error,
            )
        })?;
        match answer {
            LocalAnswer::Failed { kind, text } => {
                let kind = ErrorKind::from_code(kind).unwrap_or(ErrorKind::Internal);
                Err(Error::new(kind, text))
            }
            other => Ok(other),
        }
    }
}

/// The process that holds the agent's file.
fn living(directory: &Path) -> Option<i32> {
    let file = open::open_read(&directory.join(AGENT_FILE)).ok()?;
    if lock::share(&file).ok()? {
        return None;
    }
    lock::holder(&file).parse().ok().filter(|pid| *pid > 1)
}

/// Before a new start opens the store in `directory`: an agent process lets go of it, or is ended. Returns
/// the agent where it did.
pub fn quiesce(directory: &Path) -> Result<Option<AgentClient>> {
    let Some(pid) = living(directory) else {
        // One that ended in order takes its socket away.
        if std::fs::remove_file(directory.join(SOCKET)).is_ok() {
            notice::warn(
                "the agent process of this node died; threads of its first rank do its work",
            );
        }
        return Ok(None);
    };
    if let Some(client) = AgentClient::find(directory) {
        match client.ask(&LocalRequest::Detach, PATIENCE) {
            Ok(_) => return Ok(Some(client)),
            Err(error) => notice::warn(&format!("agent {pid} is ended: {error}")),
        }
    }
    end(directory, pid, PATIENCE)?;
    Ok(None)
}

/// Ends an agent process that does not let go. `pid` is what its file says.
fn end(directory: &Path, pid: i32, patience: Duration) -> Result<()> {
    match holder(directory, pid) {
        _ if fault::ends(pid) => {}
        Some(process) => {
            if let Err(error) = pidfd_send_signal(&process, Signal::KILL) {
                tracing::debug!("agent {pid}: {error}");
            }
        }
        None => notice::warn(&format!(
            "process {pid} of this node is not its agent, though the agent's file says so: it is left alone"
        )),
    }
    let deadline = Deadline::after(patience);
    while living(directory).is_some() {
        if deadline.left().is_none() {
            let context = format!(
                "an agent holds the store in {} and cannot be ended; end it by hand: its file names \
                 process {pid}, perhaps of another container",
                directory.display()
            );
            return Err(Error::new(ErrorKind::StoreBusy, context));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Process `pid`, if it has the agent's file open. The number alone proves nothing: the file may be of an
/// agent before this one, or of one that counts processes otherwise, as in a container.
fn holder(directory: &Path, pid: i32) -> Option<OwnedFd> {
    // First, so that it cannot become another process while it is looked at.
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let file = std::fs::metadata(directory.join(AGENT_FILE)).ok()?;
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let is_file = |entry: std::fs::DirEntry| {
        std::fs::metadata(entry.path())
            .is_ok_and(|other| (other.dev(), other.ino()) == (file.dev(), file.ino()))
    };
    open.flatten().any(is_file).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    /// Whether it was killed is known when it is waited for.
    fn sleeper(command: &mut Command) -> Child {
        command.spawn().unwrap()
    }

    #[test]
    fn a_process_that_only_has_the_number_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut stranger = sleeper(Command::new("sleep").arg("1000"));
        let path = folder.path().join(AGENT_FILE);
        std::fs::write(&path, format!("{}\n", stranger.id())).unwrap();
        // Whoever holds the place has another number here.
        let holds = File::open(&path).unwrap();
        assert!(lock::take(&holds, PATIENCE).unwrap());
        let pid = i32::try_from(stranger.id()).unwrap();
        let error = end(folder.path(), pid, Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreBusy);
        assert!(stranger.try_wait().unwrap().is_none(), "it lives");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }

    #[test]
    fn an_agent_takes_its_place_while_leaders_look_for_one() {
        let folder = tempfile::tempdir().unwrap();
        let over = std::sync::atomic::AtomicBool::new(false);
        let look = || {
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                living(folder.path());
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(look);
            }
            let taken: Vec<_> = (0..300)
                .map(|_| AgentPlace::take(folder.path(), std::process::id()).map(drop))
                .collect();
            over.store(true, std::sync::atomic::Ordering::Relaxed);
            for taken in taken {
                taken.unwrap();
            }
        });
    }

    #[test]
    fn the_process_that_has_the_place_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(AGENT_FILE);
        std::fs::write(&path, "").unwrap();
        let mut agent = sleeper(Command::new("flock").args([
            "--no-fork".as_ref(),
            path.as_os_str(),
            "sleep".as_ref(),
            "1000".as_ref(),
        ]));
        std::fs::write(&path, format!("{}\n", agent.id())).unwrap();
        let deadline = Deadline::after(PATIENCE);
        while living(folder.path()).is_none() {
            assert!(deadline.left().is_some(), "it never took the place");
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid = i32::try_from(agent.id()).unwrap();
        // Until it is waited for it is still there, without its files.
        end(folder.path(), pid, PATIENCE).unwrap();
        assert!(!agent.wait().unwrap().success());
    }
}
