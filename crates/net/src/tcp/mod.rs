// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the transport over TCP.
//! In from: composers, by [`Endpoint`]. Out to: sockets, and files of the same machine.
//! Invariants: only processes that know the job secret are talked to, and every frame of theirs is
//! authenticated; connections, threads and what they hold are bounded, and strangers cannot take what
//! peers need; it listens only where peers are told to come; no signal reaches the application.
//! Format: docs/format/wire.md.

mod handshake;
mod link;
mod places;
mod pool;
mod read;
mod server;

use super::{
    Described, Endpoint, Exposed, ExposureId, Exposures, Handler, Peer, Secret, SecretSource, Span,
    Transports, announced_host, check_message, check_read, check_spans, remote_error, verify,
};
use crate::one_sided::{self, OneSided, read_past};
use backstay_base::clock::Deadline;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::FormatError;
use backstay_format::limits::LABEL_BYTES_MAX;
use backstay_format::wire::{
    CALL_HEAD_BYTES, Call, Describe, Description, Failure, Kind, MESSAGE_BYTES_MAX, Reason,
};
use handshake::Identity;
use link::{Broken, Frame};
use places::{Bodies, Bounds};
use pool::{Lease, Pool};
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// How an endpoint listens, and who it is.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// What errors and logs of others call it: the name of its node.
    pub name: String,
    /// The job; others are refused.
    pub job: String,
    /// The job secret; who does not know it is refused.
    pub secret: Secret,
    /// Where the secret of the next start of the job is to be found, for an endpoint that outlives one.
    pub secret_source: Option<SecretSource>,
    /// Where to listen. Port 0 is any free one. By default where others are told to come, any port.
    pub listen: Option<SocketAddr>,
    /// The number of the address that others are told; where it is none, that of `listen` if it names
    /// one, or else the host's.
    pub announce: Option<String>,
    /// Connections of peers that are served at a time, each with a thread; as many wait, and more are told
    /// to come again.
    pub connections_max: usize,
    /// Connections of whoever did not prove yet that it belongs to the job.
    pub strangers_max: usize,
    /// Memory for bodies of requests of all connections together, in bytes.
    pub bodies_bytes_max: usize,
    /// Connections from here to one peer at a time; more operations wait for one of them.
    pub connections_per_peer_max: usize,
    /// Connections to all peers together that are kept for the next use; of more the oldest is closed.
    pub connections_kept_max: usize,
    /// Whether files of peers on this machine are read past the sockets, where they can be.
    pub same_node: bool,
    /// By what sealed bytes are read.
    pub transports: Transports,
}

impl TcpOptions {
    /// The usual options of endpoint `name` of `job`.
    pub fn new(name: impl Into<String>, job: impl Into<String>, secret: Secret) -> Self {
        Self {
            name: name.into(),
            job: job.into(),
            secret,
            secret_source: None,
            listen: None,
            announce: None,
            connections_max: 256,
            strangers_max: 64,
            bodies_bytes_max: 256 << 20,
            connections_per_peer_max: 8,
            connections_kept_max: 64,
            same_node: true,
            transports: Transports::default(),
        }
    }
}

/// Connections that are open, to end them from outside.
#[derive(Default)]
struct Open {
    streams: Mutex<(u64, BTreeMap<u64, Weak<TcpStream>>)>,
}

/// One of them, until it is dropped.
struct Registered {
    open: Arc<Open>,
    number: u64,
}

impl Open {
    fn register(self: &Arc<Self>, stream: &Arc<TcpStream>) -> Registered {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.0 += 1;
        let number = streams.0;
        streams.1.insert(number, Arc::downgrade(stream));
        let open = Arc::clone(self);
        Registered { open, number }
    }

    fn end_all(&self) {
        self.end_where(|_| true);
    }

    fn end_all_but(&self, kept: &Registered) {
        self.end_where(|number| number != kept.number);
    }

    fn end_where(&self, which: impl Fn(u64) -> bool) {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let ending = streams.1.iter().filter(|(number, _)| which(**number));
        for stream in ending.filter_map(|(_, stream)| stream.upgrade()) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut streams = self
            .open
            .streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        streams.1.remove(&self.number);
    }
}

/// What all threads of an endpoint share.
struct Shared {
    identity: Identity,
    exposures: Exposures,
    one_sided: Option<Arc<dyn OneSided>>,
    /// Bytes that came over connections, and past them.
    moved: [AtomicU64; 2],
    handler: Mutex<Option<Arc<dyn Handler>>>,
    open: Arc<Open>,
    refusals: server::Refusals,
    connections_max: usize,
    bodies: Bodies,
    ended: AtomicBool,
}

impl Shared {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
    fn count(&self, way: usize, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.moved[way].fetch_add(bytes, Ordering::Relaxed);
    }
    fn handler(&self) -> Option<Arc<dyn Handler>> {
        let handler = self.handler.lock().unwrap_or_else(PoisonError::into_inner);
        handler.clone()
    }
    fn set_handler(&self, handler: Option<Arc<dyn Handler>>) {
        let mut place = self.handler.lock().unwrap_or_else(PoisonError::into_inner);
        let former = std::mem::replace(&mut *place, handler);
        drop(place);
        // Outside of the lock: the handler may own what calls back into here when it is dropped.
        drop(former);
    }
}

/// An endpoint that is reached by TCP. Dropping it shuts it down.
pub struct TcpEndpoint {
    shared: Arc<Shared>,
    server: server::Server,
    pool: Pool,
    address: SocketAddr,
    same_node: bool,
}

impl TcpEndpoint {
    /// Listens. There is no handler, and nothing is exposed yet.
    pub fn open(options: TcpOptions) -> Result<Self> {
        Self::open_with(options, server::spawn)
    }

    fn open_with(options: TcpOptions, spawn: server::Spawn) -> Result<Self> {
        for (what, text) in [("name", &options.name), ("job", &options.job)] {
            if text.len() > LABEL_BYTES_MAX {
                let context = format!("{what} {text}: at most {LABEL_BYTES_MAX} bytes");
                return Err(Error::new(ErrorKind::Configuration, context));
            }
        }
        let (listener, address) = listen(&options)?;
        let bounds = Bounds {
            strangers: options.strangers_max.max(1),
            peers: options.connections_max.max(1),
        };
        let bodies_bytes = options
            .bodies_bytes_max
            .max(MESSAGE_BYTES_MAX + CALL_HEAD_BYTES);
        let shared = Arc::new(Shared {
            identity: Identity::new(
                options.name,
                options.job,
                options.secret,
                options.secret_source,
            )?,
            exposures: Exposures::default(),
            one_sided: one_sided::open(&options.transports, address.ip())?,
            moved: Default::default(),
            handler: Mutex::new(None),
            open: Arc::default(),
            refusals: server::Refusals::default(),
            connections_max: bounds.peers,
            bodies: Bodies::new(bodies_bytes),
            ended: AtomicBool::new(false),
        });
        let server = server::Server::start(listener, &shared, bounds, spawn)?;
        Ok(Self {
            server,
            pool: Pool::new(
                Arc::clone(&shared),
                options.connections_per_peer_max.max(1),
                options.connections_kept_max,
            ),
            shared,
            address,
            same_node: options.same_node,
        })
    }

    /// Does `work` on a connection to `peer`.
    ///
    /// A connection that was kept and turns out to be dead, or to have given its place to others, is
    /// replaced once by a fresh one, unless the peer may have the request already and must not get it
    /// twice.
    fn with_link<T>(
        &self,
        peer: &Peer,
        deadline: &Deadline,
        work: &mut dyn FnMut(&mut Lease<'_>) -> std::result::Result<T, Ended>,
    ) -> Result<T> {
        let mut lease = self.pool.take(peer, deadline)?;
        loop {
            match work(&mut lease) {
                Ok(value) => {
                    lease.give_back();
                    return Ok(value);
                }
                Err(Ended::Failed(error)) => {
                    lease.give_back();
                    return Err(error);
                }
                Err(Ended::Broken(broken, again)) => {
                    let undone = again && broken.is_gone() || broken.is_busy();
                    let is_stale = lease.was_kept() && undone;
                    drop(lease);
                    if !is_stale || self.shared.has_ended() {
                        return Err(self.broken(peer, broken));
                    }
                    self.pool.forget(peer);
                    lease = self.pool.fresh(peer, deadline)?;
                }
            }
        }
    }

    /// By which provider of libfabric a peer can be read from.
    fn provider_for(&self, is_same_machine: bool) -> String {
        let way = self.shared.one_sided.as_ref();
        let way = way.filter(|way| !way.is_local() || is_same_machine);
        way.map_or_else(String::new, |way| way.provider().to_owned())
    }

    /// Reads sealed bytes past the connection; `false` where they have to come over it.
    fn read_past(
        &self,
        peer: &Peer,
        range: &Described,
        into: &mut [u8],
        deadline: &Deadline,
    ) -> bool {
        let Some(way) = &self.shared.one_sided else {
            return false;
        };
        match read_past(&**way, range, into, deadline) {
            None => false,
            Some(Ok(())) => {
                self.shared.count(1, into.len());
                true
            }
            Some(Err(missed)) => {
                if !self.shared.has_ended() {
                    let provider = way.provider();
                    let words = format!("{peer}: not read over {provider}, but over TCP: {missed}");
                    self.shared.refusals.say(&words);
                }
                false
            }
        }
    }

    fn broken(&self, peer: &Peer, broken: Broken) -> Error {
        if self.shared.has_ended() {
            let context = format!("{peer}: this endpoint is shut down");
            return Error::new(ErrorKind::PeerUnreachable, context);
        }
        failed(peer, broken)
    }
}

/// Listens where others are told to come, unless the options say where; also returns what they are told.
fn listen(options: &TcpOptions) -> Result<(TcpListener, SocketAddr)> {
    let announced = |port| -> Result<SocketAddr> {
        let host = announced_host(options.announce.as_deref())?;
        Ok(SocketAddr::new(host, port))
    };
    let at = options.listen.map_or_else(|| announced(0), Ok)?;
    let failed = |error| {
        let context = format!("listening on {at}; listen_address says where else");
        Error::caused(ErrorKind::Configuration, context, error)
    };
    let bind = || TcpListener::bind(at);
    let listener = backstay_base::io::open::above_standard(bind).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let told = if options.announce.is_none() && !bound.ip().is_unspecified() {
        bound
    } else {
        announced(bound.port())?
    };
    Ok((listener, told))
}

/// Why work on a connection ended.
enum Ended {
    /// By an error of the other side; the connection is as good as before.
    Failed(Error),
    /// With the connection; whether the work may be done again.
    Broken(Broken, bool),
}

impl From<FormatError> for Ended {
    fn from(error: FormatError) -> Self {
        Self::Broken(error.into(), false)
    }
}

/// The error of a connection that is of no use.
fn failed(peer: &Peer, broken: Broken) -> Error {
    let unreachable = ErrorKind::PeerUnreachable;
    match broken {
        Broken::Timeout => {
            let context = format!("{peer} did not answer in time");
            Error::new(ErrorKind::Timeout, context)
        }
        Broken::Closed => Error::new(unreachable, format!("{peer}: the connection ended")),
        Broken::Io(error) => Error::caused(unreachable, format!("{peer}"), error),
        Broken::Nonsense(error) if error.field == "version" => Error::caused(
            ErrorKind::Unsupported,
            format!("{peer} speaks another version"),
            error,
        ),
        Broken::Nonsense(error) => {
            Error::caused(unreachable, format!("{peer} sent nonsense"), error)
        }
        Broken::Refused(refused) => {
            let kind = match refused.reason {
                Reason::Version => ErrorKind::Unsupported,
                Reason::Job | Reason::Secret => ErrorKind::Configuration,
                Reason::Busy | Reason::Protocol => unreachable,
            };
            Error::new(kind, format!("{peer}: refused: {}", refused.words))
        }
    }
}

/// The error that a failure of the other side says.
fn failure(peer: &Peer, frame: &Frame) -> std::result::Result<Error, FormatError> {
    let failure = Failure::decode(&frame.head, &frame.body)?;
    let known = i32::try_from(failure.code)
        .ok()
        .and_then(ErrorKind::from_code);
    let (kind, words) = match known {
        Some(kind) => (kind, failure.words),
        None => (
            ErrorKind::Internal,
            format!("an error of kind {}: {}", failure.code, failure.words),
        ),
    };
    Ok(remote_error(peer, kind, &words))
}

fn microseconds(left: Option<Duration>) -> u64 {
    let left = left.unwrap_or_default().as_micros();
    u64::try_from(left).unwrap_or(u64::MAX)
}

impl Endpoint for TcpEndpoint {
    fn name(&self) -> String {
        self.shared.identity.name.clone()
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    fn transport(&self) -> String {
        let one_sided = self.shared.one_sided.as_ref();
        one_sided.map_or_else(
            || "tcp".to_owned(),
            |way| format!("libfabric {}", way.provider()),
        )
    }

    fn moved_bytes(&self) -> [u64; 2] {
        [0, 1].map(|way: usize| self.shared.moved[way].load(Ordering::Relaxed))
    }

    fn expose(&self, id: ExposureId, what: Exposed) {
        if !self.shared.has_ended() {
            self.shared.exposures.insert(id, what);
        }
    }

    fn withdraw(&self, id: ExposureId) {
        self.shared.exposures.remove(id);
    }

    fn serve(&self, handler: Arc<dyn Handler>) {
        if !self.shared.has_ended() {
            self.shared.set_handler(Some(handler));
        }
    }

    fn call(&self, peer: &Peer, request: &[u8], within: Duration) -> Result<Vec<u8>> {
        check_message("request", peer, request.len())?;
        let deadline = Deadline::after(within);
        self.with_link(peer, &deadline, &mut |lease| {
            let link = lease.link();
            let front = Call::front(microseconds(deadline.left()));
            // A request that was not sent whole was not handled; one that was may have been.
            let sent = link.send(Kind::Call, &[&front, request], &deadline);
            sent.map_err(|broken| Ended::Broken(broken, true))?;
            let received = link.receive(&deadline);
            let answer = received.map_err(|broken| Ended::Broken(broken, false))?;
            match answer.kind {
                Kind::Answer => Ok(answer.body),
                Kind::Failure => Err(Ended::Failed(failure(peer, &answer)?)),
                other => Err(Ended::Broken(Broken::unexpected("Answer", other), false)),
            }
        })
    }

    fn describe(
        &self,
        peer: &Peer,
        exposure: ExposureId,
        (spans, afresh): (&[Span], bool),
        within: Duration,
    ) -> Result<Vec<Described>> {
        check_spans(peer, spans)?;
        let deadline = Deadline::after(within);
        let (description, key) = self.with_link(peer, &deadline, &mut |lease| {
            let asked = Describe {
                exposure: exposure.0,
                within_us: microseconds(deadline.left()),
                same_machine: self.same_node && lease.is_same_machine(),
                afresh,
                provider: self.provider_for(lease.is_same_machine()),
                spans: spans.to_vec(),
            };
            // It may be done again: it changes nothing.
            let broken = |broken| Ended::Broken(broken, true);
            let (link, asked) = (lease.link(), asked.encode()?);
            link.send(Kind::Describe, &[&asked], &deadline)
                .map_err(broken)?;
            let answer = link.receive(&deadline).map_err(broken)?;
            match answer.kind {
                Kind::Description => {
                    let description = Description::decode(&answer.head, &answer.body)?;
                    Ok((description, link.fingerprint_key().map_err(broken)?))
                }
                Kind::Failure => Err(Ended::Failed(failure(peer, &answer)?)),
                other => Err(broken(Broken::unexpected("Description", other))),
            }
        })?;
        let (found, wanted) = (description.fingerprints.len(), spans.len());
        if found != wanted {
            let context = format!("{peer} described {found} ranges instead of {wanted}");
            return Err(Error::new(ErrorKind::PeerUnreachable, context));
        }
        Ok(Described::all(exposure, spans, description, key))
    }

    fn read(
        &self,
        peer: &Peer,
        range: &Described,
        into: &mut [u8],
        within: Duration,
    ) -> Result<()> {
        check_read(range, into)?;
        if into.is_empty() {
            return Ok(());
        }
        let deadline = Deadline::after(within);
        if let Some(located) = &range.located
            && read::receive_file(peer, located, range.span.offset, into, &deadline)?
        {
            return Ok(());
        }
        if self.read_past(peer, range, into, &deadline) {
            return Ok(());
        }
        let found = self.with_link(peer, &deadline, &mut |lease| {
            read::receive(lease.link(), peer, range, into, &deadline)
        })?;
        self.shared.count(0, into.len());
        let left = deadline.left().unwrap_or_default();
        found.map_or(Ok(()), |found| verify(self, peer, range, found, left))
    }

    fn shut_down(&self) {
        if self.shared.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        self.shared.exposures.clear();
        if let Some(way) = &self.shared.one_sided {
            way.end();
        }
        self.shared.set_handler(None);
        self.server.end();
        self.shared.open.end_all();
        self.pool.end();
        self.server.wait();
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl Debug for TcpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.shared.identity.name;
        write!(f, "TcpEndpoint({name} at {})", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Has no thread for the first connections.
    fn spawn_later(name: &str, work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        if ASKED.fetch_add(1, Ordering::SeqCst) < 3 {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        server::spawn(name, work)
    }

    #[test]
    fn of_connections_to_many_peers_the_oldest_are_closed() {
        let options = |name: &str| {
            let mut options = TcpOptions::new(name, "job", Secret::from_bytes([1; 32]));
            options.listen = Some(([127, 0, 0, 1], 0).into());
            options.connections_kept_max = 3;
            options
        };
        let servers: Vec<TcpEndpoint> = (0..6)
            .map(|place| {
                let server = TcpEndpoint::open(options(&format!("server {place}"))).unwrap();
                server.serve(Arc::new(|request: &[u8], _: Duration| Ok(request.to_vec())));
                server
            })
            .collect();
        let client = TcpEndpoint::open(options("client")).unwrap();
        let within = Duration::from_secs(20);
        for round in 0..3 {
            for (place, server) in servers.iter().enumerate() {
                assert_eq!(client.call(&server.peer(), b"x", within).unwrap(), b"x");
                let kept = client.pool.kept();
                assert_eq!(kept.len(), if round == 0 { (place + 1).min(3) } else { 3 });
                assert!(kept.contains(&server.peer().address));
            }
        }
        let last: Vec<String> = servers[3..].iter().map(|s| s.peer().address).collect();
        assert!(
            last.iter()
                .all(|address| client.pool.kept().contains(address))
        );
    }

    #[test]
    fn a_connection_for_which_there_is_no_thread_is_told_to_come_again() {
        let options = |name| {
            let mut options = TcpOptions::new(name, "job", Secret::from_bytes([1; 32]));
            options.listen = Some(([127, 0, 0, 1], 0).into());
            options
        };
        let server = TcpEndpoint::open_with(options("server"), spawn_later).unwrap();
        server.serve(Arc::new(|request: &[u8], _: Duration| Ok(request.to_vec())));
        let client = TcpEndpoint::open(options("client")).unwrap();
        let within = Duration::from_secs(20);
        assert_eq!(client.call(&server.peer(), b"x", within).unwrap(), b"x");
    }
}
