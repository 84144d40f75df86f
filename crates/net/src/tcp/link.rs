// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: frames over one TCP connection, each transfer within a limit.
//! In from: both sides of a connection. Out to: the kernel's sockets.
//! Invariants: no call blocks beyond its deadline; memory for a body is taken as its bytes arrive; a
//! write to a connection that ended is an error and no SIGPIPE (`MSG_NOSIGNAL` on every send); before the
//! other side is known only short frames are read, and afterwards only those with its MAC; bytes in no frame
//! are counted by who has their fingerprint.

use backstay_base::clock::Deadline;
use backstay_format::mac::{FrameMac, MAC_BYTES, Sealer};
use backstay_format::width::index;
use backstay_format::wire::{self, HEAD_BYTES, Head, Kind};
use backstay_format::{FingerprintKey, FormatError};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// Read ahead: holds a whole small frame, and is little beside a piece.
const AHEAD_BYTES: usize = 4 << 10;
/// Memory for a body is taken in steps of this size, as its bytes arrive.
const STEP_BYTES: usize = 256 << 10;
/// Sent by one call, and received and hashed by one: so much stays in the processor's own cache. Who sends more at
/// once has filled the buffers of the socket long before they are read, and they come from memory.
const PIECE_BYTES: usize = 256 << 10;
/// A peer that does not confirm what was sent for so long is given up by the kernel, waited for or not.
const UNCONFIRMED: Duration = Duration::from_secs(60);

/// Why a connection is of no use any more.
#[derive(Debug)]
pub(super) enum Broken {
    /// The limit was reached.
    Timeout,
    /// The other side closed it, between frames or inside of one.
    Closed,
    /// The kernel says so.
    Io(io::Error),
    /// What arrived is no frame, or not the one that belongs here.
    Nonsense(FormatError),
    /// The other side refused.
    Refused(wire::Refused),
}

impl Broken {
    /// A frame that does not belong here.
    pub(super) fn unexpected(wanted: &str, found: impl fmt::Debug) -> Self {
        let found = format!("{found:?}");
        Self::Nonsense(FormatError::new("connection", "frame", 0, wanted, found))
    }

    /// Whether the other side had no place for the connection, or none any more: what was asked for on it
    /// was not done.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Refused(refused) if refused.reason == wire::Reason::Busy)
    }

    /// Whether the connection was gone, other than by time or nonsense.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, Self::Closed | Self::Io(_))
    }
}

impl From<FormatError> for Broken {
    fn from(error: FormatError) -> Self {
        Self::Nonsense(error)
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Io(error),
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("the time is up"),
            Self::Closed => f.write_str("the connection ended"),
            Self::Io(error) => write!(f, "the connection failed: {error}"),
            Self::Nonsense(error) => write!(f, "nonsense: {error}"),
            Self::Refused(refused) => f.write_str(&refused.words),
        }
    }
}

/// A frame that was received whole.
pub(super) struct Frame {
    pub(super) head: Head,
    pub(super) kind: Kind,
    pub(super) body: Vec<u8>,
}

/// Both directions of a connection whose ends know each other.
pub(super) struct Sealers {
    pub(super) send: Sealer,
    pub(super) receive: Sealer,
    /// Of what is read bare.
    pub(super) fingerprints: FingerprintKey,
}

/// One connection.
pub(super) struct Link {
    stream: Arc<TcpStream>,
    /// From the end of the handshake on.
    sealers: Option<Sealers>,
    ahead: Box<[u8; AHEAD_BYTES]>,
    /// What was read ahead and not taken yet.
    waiting: std::ops::Range<usize>,
}

impl Link {
    /// Frames over `stream`.
    pub(super) fn new(stream: Arc<TcpStream>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        // Peers that vanish without a word are found by the kernel even if nobody waits for them.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(15))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        let unconfirmed = u32::try_from(UNCONFIRMED.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&stream, unconfirmed)?;
        Ok(Self {
            stream,
            sealers: None,
            ahead: Box::new([0; AHEAD_BYTES]),
            waiting: 0..0,
        })
    }

    /// The connection itself, to end it from outside.
    pub(super) fn stream(&self) -> &Arc<TcpStream> {
        &self.stream
    }

    /// From now on every frame has a MAC, in both directions.
    pub(super) fn begin_session(&mut self, sealers: Sealers) {
        self.sealers = Some(sealers);
    }

    /// The key of what is read bare, which both ends know.
    pub(super) fn fingerprint_key(&self) -> Result<FingerprintKey, Broken> {
        let sealers = self.sealers.as_ref();
        let sealers = sealers.ok_or_else(|| Broken::unexpected("a session", "none"))?;
        Ok(sealers.fingerprints)
    }

    /// Whether nothing arrived that nobody asked for, and the other side did not end it.
    pub(super) fn is_quiet(&self) -> bool {
        let mut byte = [0_u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = recv(&*self.stream, &mut byte[..], flags);
        self.waiting.is_empty() && matches!(peeked, Err(Errno::AGAIN))
    }

    /// Sends a frame whose body is `parts`, one after the other.
    pub(super) fn send(
        &mut self,
        kind: Kind,
        parts: &[&[u8]],
        deadline: &Deadline,
    ) -> Result<(), Broken> {
        self.send_all(kind, parts, &[], deadline)
    }

    /// Sends a frame without a body, and behind it `bare` bytes as they are.
    pub(super) fn send_before(
        &mut self,
        kind: Kind,
        bare: &[u8],
        deadline: &Deadline,
    ) -> Result<(), Broken> {
        self.send_all(kind, &[], bare, deadline)
    }

    fn send_all(
        &mut self,
        kind: Kind,
        parts: &[&[u8]],
        bare: &[u8],
        deadline: &Deadline,
    ) -> Result<(), Broken> {
        let length = parts.iter().map(|part| part.len()).sum();
        let head = Head::new(kind, length)?;
        let tail = match &mut self.sealers {
            Some(sealers) => {
                let mut mac = sealers.send.begin();
                for part in parts {
                    mac.update(part);
                }
                mac.finish(&head).to_vec()
            }
            None => wire::tail(parts).to_vec(),
        };
        let head = head.encode();
        let mut all: Vec<&[u8]> = Vec::with_capacity(parts.len() + 3);
        all.push(&head);
        all.extend(parts);
        all.extend([&tail[..], bare]);
        self.write_all(&mut all, deadline)
    }

    /// Sends that the connection is refused; nothing can be done where it fails.
    pub(super) fn refuse(&mut self, reason: wire::Reason, words: &str, deadline: &Deadline) {
        if let Ok(body) = wire::Refused::new(reason, words).encode() {
            drop(self.send(Kind::Refused, &[&body], deadline));
        }
    }

    fn write_all(&self, parts: &mut [&[u8]], deadline: &Deadline) -> Result<(), Broken> {
        let mut first = 0;
        while let Some(part) = parts.get(first) {
            if part.is_empty() {
                first += 1;
                continue;
            }
            let left = deadline.left().ok_or(Broken::Timeout)?;
            self.stream.set_write_timeout(Some(left))?;
            let mut room = PIECE_BYTES;
            let mut slices = Vec::with_capacity(parts.len() - first);
            for part in &parts[first..] {
                let taken = room.min(part.len());
                slices.push(IoSlice::new(&part[..taken]));
                room -= taken;
            }
            let mut none = SendAncillaryBuffer::default();
            let sent = sendmsg(&*self.stream, &slices, &mut none, SendFlags::NOSIGNAL);
            let mut sent = match sent {
                Ok(sent) => sent,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(io::Error::from(errno).into()),
            };
            while sent > 0 && first < parts.len() {
                let taken = sent.min(parts[first].len());
                parts[first] = &parts[first][taken..];
                sent -= taken;
                first += usize::from(parts[first].is_empty());
            }
        }
        Ok(())
    }

    /// Reads what there is, at least one byte, into `into`.
    pub(super) fn read_some(
        &mut self,
        into: &mut [u8],
        deadline: &Deadline,
    ) -> Result<usize, Broken> {
        if self.waiting.is_empty() {
            if into.len() >= AHEAD_BYTES {
                return self.read_stream(Some(into), deadline);
            }
            let count = self.read_stream(None, deadline)?;
            self.waiting = 0..count;
        }
        let count = self.waiting.len().min(into.len());
        let start = self.waiting.start;
        into[..count].copy_from_slice(&self.ahead[start..start + count]);
        self.waiting.start += count;
        Ok(count)
    }

    /// One read of the socket, of what there is into the read-ahead or of as much as there is room in `into`.
    fn read_stream(
        &mut self,
        into: Option<&mut [u8]>,
        deadline: &Deadline,
    ) -> Result<usize, Broken> {
        // Who wants much is woken once, and not for each segment of the network that arrives.
        let (target, flags) = match into {
            Some(into) => {
                let piece = into.len().min(PIECE_BYTES);
                (&mut into[..piece], RecvFlags::WAITALL)
            }
            None => (&mut self.ahead[..], RecvFlags::empty()),
        };
        loop {
            let left = deadline.left().ok_or(Broken::Timeout)?;
            self.stream.set_read_timeout(Some(left))?;
            match recv(&*self.stream, &mut *target, flags) {
                Ok((0, _)) => return Err(Broken::Closed),
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
    }

    /// Fills `into`.
    fn read_all(&mut self, into: &mut [u8], deadline: &Deadline) -> Result<(), Broken> {
        let mut filled = 0;
        while filled < into.len() {
            filled += self.read_some(&mut into[filled..], deadline)?;
        }
        Ok(())
    }

    /// The head of the next frame, and its kind.
    pub(super) fn receive_head(&mut self, deadline: &Deadline) -> Result<(Head, Kind), Broken> {
        let mut bytes = [0; HEAD_BYTES];
        self.read_all(&mut bytes, deadline)?;
        let head = Head::decode(&bytes)?;
        let kind = head.check()?;
        if self.sealers.is_none() && !kind.is_of_handshake() {
            return Err(Broken::unexpected("a frame of the handshake", kind));
        }
        Ok((head, kind))
    }

    /// The body that belongs to a head.
    pub(super) fn receive_body(
        &mut self,
        head: &Head,
        deadline: &Deadline,
    ) -> Result<Vec<u8>, Broken> {
        let length = index(head.body_bytes);
        let mut body = Vec::new();
        let mut mac = self.expect_mac();
        while body.len() < length {
            let start = body.len();
            let step = STEP_BYTES.max(start).min(length - start);
            body.resize(start + step, 0);
            self.read_all(&mut body[start..], deadline)?;
            if let Some(mac) = &mut mac {
                mac.update(&body[start..]);
            }
        }
        if let Some(mac) = mac {
            self.check_mac(mac, head, deadline)?;
        } else {
            let mut tail = [0; wire::TAIL_BYTES];
            self.read_all(&mut tail, deadline)?;
            head.check_body(&body, tail)?;
        }
        Ok(body)
    }

    /// Fills `into` with the body that belongs to a head.
    pub(super) fn receive_into(
        &mut self,
        head: &Head,
        into: &mut [u8],
        deadline: &Deadline,
    ) -> Result<(), Broken> {
        let mut mac = self.expect_mac();
        let mut update = |bytes: &[u8]| {
            if let Some(mac) = &mut mac {
                mac.update(bytes);
            }
        };
        self.receive_bare(into, &mut update, deadline)?;
        mac.map_or(Ok(()), |mac| self.check_mac(mac, head, deadline))
    }

    /// Fills `into` with bytes that are in no frame; `each` is shown them in order, a few at a time, as they
    /// arrive and are in the cache still.
    pub(super) fn receive_bare(
        &mut self,
        into: &mut [u8],
        each: &mut dyn FnMut(&[u8]),
        deadline: &Deadline,
    ) -> Result<(), Broken> {
        // Whole pieces hash faster than what happens to arrive.
        for piece in into.chunks_mut(PIECE_BYTES) {
            self.read_all(piece, deadline)?;
            each(piece);
        }
        Ok(())
    }

    /// The MAC that the next frame must have, in a session.
    fn expect_mac(&mut self) -> Option<FrameMac> {
        let sealers = self.sealers.as_mut();
        sealers.map(|sealers| sealers.receive.begin())
    }

    fn check_mac(&mut self, mac: FrameMac, head: &Head, deadline: &Deadline) -> Result<(), Broken> {
        let mut tail = [0; MAC_BYTES];
        self.read_all(&mut tail, deadline)?;
        Ok(mac.verify(head, &tail)?)
    }

    /// The rest of a frame; a refusal is an error.
    pub(super) fn receive_rest(
        &mut self,
        (head, kind): (Head, Kind),
        deadline: &Deadline,
    ) -> Result<Frame, Broken> {
        let body = self.receive_body(&head, deadline)?;
        if kind == Kind::Refused {
            return Err(Broken::Refused(wire::Refused::decode(&head, &body)?));
        }
        Ok(Frame { head, kind, body })
    }

    /// The next frame; a refusal is an error.
    pub(super) fn receive(&mut self, deadline: &Deadline) -> Result<Frame, Broken> {
        let head = self.receive_head(deadline)?;
        self.receive_rest(head, deadline)
    }

    /// Ends the connection in both directions.
    pub(super) fn end(&self) {
        drop(self.stream.shutdown(Shutdown::Both));
    }

    /// Ends our side of the connection, without a wait for the other.
    pub(super) fn end_at_once(&self) {
        drop(self.stream.shutdown(Shutdown::Write));
        // What arrived already would destroy what was sent.
        let mut thrown = [0_u8; AHEAD_BYTES];
        let _thrown = recv(&*self.stream, &mut thrown[..], RecvFlags::DONTWAIT);
    }

    /// Ends the connection so that what was sent is read: our side first, then what still arrives is thrown away
    /// for a moment, because closing with unread bytes would destroy what the other side has not read.
    pub(super) fn end_politely(&mut self, moment: Duration) {
        drop(self.stream.shutdown(Shutdown::Write));
        let deadline = Deadline::after(moment);
        let mut thrown = [0; AHEAD_BYTES];
        for _ in 0..16 {
            if self.read_some(&mut thrown, &deadline).is_err() {
                break;
            }
        }
    }
}
