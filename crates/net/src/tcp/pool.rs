// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: connections to peers, authenticated once and used again.
//! In from: calls and reads of this endpoint. Out to: sockets.
//! Invariants: at most so many connections to one peer, and of all that are kept the newest; one that was kept is looked at before it is
//! used; a connection on which anything went wrong is not used again; a peer that has no place for one
//! more is asked again as long as the caller waits.

use super::handshake::{self, Known};
use super::link::{Broken, Link};
use super::{Registered, Shared, failed};
use crate::Peer;
use backstay_base::clock::{Deadline, Stopwatch};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::open;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A connection is kept so long: less than the other side waits for the next request.
const KEPT: Duration = Duration::from_secs(60);
/// How long to wait before a peer that is busy is asked again: twice as long each time.
const PAUSES: std::ops::Range<u32> = 3..9;
/// A connection that ends in its handshake is tried again so often: its peer may have had to choose.
const ENDED_MAX: u32 = 6;

/// Why there is no connection.
enum Unestablished {
    /// Nobody is there.
    Before(Broken),
    /// Somebody is, but did not take it.
    InHandshake(Broken),
}

impl Unestablished {
    fn is_busy(&self) -> bool {
        matches!(self, Self::InHandshake(broken) if broken.is_busy())
    }
}

impl From<Broken> for Unestablished {
    fn from(broken: Broken) -> Self {
        Self::Before(broken)
    }
}

impl From<Unestablished> for Broken {
    fn from(why: Unestablished) -> Self {
        match why {
            Unestablished::Before(broken) | Unestablished::InHandshake(broken) => broken,
        }
    }
}

/// A connection that may be used.
struct Ready {
    link: Link,
    known: Known,
    _registered: Registered,
}

/// The connections to one address.
#[derive(Default)]
struct PeerConnections {
    idle: Vec<(Ready, Stopwatch)>,
    used: usize,
}

/// The connections of one endpoint.
pub(super) struct Pool {
    shared: Arc<Shared>,
    per_peer_max: usize,
    kept_max: usize,
    peers: Mutex<BTreeMap<String, PeerConnections>>,
    freed: Condvar,
}

/// One of the connections to a peer, counted until this is dropped.
struct Place<'a> {
    pool: &'a Pool,
    address: String,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut peers = self.pool.lock();
        if let Some(connections) = peers.get_mut(&self.address) {
            connections.used = connections.used.saturating_sub(1);
            if connections.used == 0 && connections.idle.is_empty() {
                peers.remove(&self.address);
            }
        }
        drop(peers);
        self.pool.freed.notify_all();
    }
}

/// A connection in use. Dropped, it is closed; given back, it is kept.
pub(super) struct Lease<'a> {
    ready: Ready,
    kept: bool,
    place: Place<'a>,
}

impl Lease<'_> {
    pub(super) fn link(&mut self) -> &mut Link {
        &mut self.ready.link
    }
    /// Whether it was used before.
    pub(super) fn was_kept(&self) -> bool {
        self.kept
    }
    /// Whether the peer is on this machine, and its files worth a try.
    pub(super) fn is_same_machine(&self) -> bool {
        self.ready.known.same_machine
    }
    /// Keeps the connection for the next one.
    pub(super) fn give_back(self) {
        let Self { ready, place, .. } = self;
        if place.pool.shared.has_ended() {
            return;
        }
        let mut peers = place.pool.lock();
        let connections = peers.entry(place.address.clone()).or_default();
        connections.idle.push((ready, Stopwatch::start()));
        let surplus = place.pool.take_surplus(&mut peers);
        drop(peers);
        drop(surplus);
    }
}

impl Pool {
    pub(super) fn new(shared: Arc<Shared>, per_peer_max: usize, kept_max: usize) -> Self {
        Self {
            shared,
            per_peer_max,
            kept_max,
            peers: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PeerConnections>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of more connections than are kept the one that was not used for the longest time.
    fn take_surplus(&self, peers: &mut BTreeMap<String, PeerConnections>) -> Option<Ready> {
        let kept: usize = peers
            .values()
            .map(|connections| connections.idle.len())
            .sum();
        if kept <= self.kept_max {
            return None;
        }
        let idle = peers.iter().filter_map(|(address, connections)| {
            // The first is the oldest of a peer.
            let oldest = connections.idle.first();
            oldest.map(|(_, since)| (since.elapsed(), address))
        });
        let address = idle.max()?.1.clone();
        let connections = peers.get_mut(&address)?;
        let (ready, _) = connections.idle.remove(0);
        if connections.used == 0 && connections.idle.is_empty() {
            peers.remove(&address);
        }
        Some(ready)
    }

    /// The addresses to which connections are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> Vec<String> {
        let peers = self.lock();
        let kept = peers.iter().flat_map(|(address, connections)| {
            let each = connections.idle.iter();
            each.map(|_| address.clone())
        });
        kept.collect()
    }

    /// A connection to `peer`: one that was kept, or a fresh one.
    pub(super) fn take(&self, peer: &Peer, deadline: &Deadline) -> Result<Lease<'_>> {
        self.take_any(peer, deadline, true)
    }

    /// A fresh connection to `peer`.
    pub(super) fn fresh(&self, peer: &Peer, deadline: &Deadline) -> Result<Lease<'_>> {
        self.take_any(peer, deadline, false)
    }

    /// Closes what is kept of connections to `peer`: one of them turned out to be dead.
    pub(super) fn forget(&self, peer: &Peer) {
        let forgotten = self
            .lock()
            .get_mut(&peer.address)
            .map(|connections| std::mem::take(&mut connections.idle));
        drop(forgotten);
    }

    /// Closes what is kept; whoever waits for a connection gets an error.
    pub(super) fn end(&self) {
        let idle: Vec<_> = {
            let mut peers = self.lock();
            let peers = peers.values_mut();
            peers
                .map(|connections| std::mem::take(&mut connections.idle))
                .collect()
        };
        drop(idle);
        self.freed.notify_all();
    }

    fn take_any(&self, peer: &Peer, deadline: &Deadline, kept: bool) -> Result<Lease<'_>> {
        let mut peers = self.lock();
        loop {
            if self.shared.has_ended() {
                let context = format!("{peer}: this endpoint is shut down");
                return Err(Error::new(ErrorKind::PeerUnreachable, context));
            }
            let connections = peers.entry(peer.address.clone()).or_default();
            while kept && let Some((ready, since)) = connections.idle.pop() {
                if since.elapsed() < KEPT && ready.link.is_quiet() {
                    connections.used += 1;
                    drop(peers);
                    return Ok(Lease {
                        ready,
                        kept: true,
                        place: self.place(peer),
                    });
                }
            }
            if connections.used < self.per_peer_max {
                connections.used += 1;
                drop(peers);
                return self.connect(peer, self.place(peer), deadline);
            }
            let Some(left) = deadline.left() else {
                let context = format!("{peer}: all {} connections are in use", self.per_peer_max);
                return Err(Error::new(ErrorKind::Timeout, context));
            };
            let waited = self.freed.wait_timeout(peers, left);
            peers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn place(&self, peer: &Peer) -> Place<'_> {
        Place {
            pool: self,
            address: peer.address.clone(),
        }
    }

    fn connect<'a>(&self, peer: &Peer, place: Place<'a>, deadline: &Deadline) -> Result<Lease<'a>> {
        let address: SocketAddr = peer.address.parse().map_err(|error| {
            let context = format!("{peer}: not the numbers of an address and a port");
            Error::caused(ErrorKind::InvalidArgument, context, error)
        })?;
        let ready = self.establish_in_time(peer, address, deadline)?;
        Ok(Lease {
            ready,
            kept: false,
            place,
        })
    }

    /// A connection that the peer took, as soon as it does.
    fn establish_in_time(
        &self,
        peer: &Peer,
        address: SocketAddr,
        deadline: &Deadline,
    ) -> Result<Ready> {
        let (mut pauses, mut ended) = (PAUSES, 0);
        loop {
            let broken = match self.establish(address, deadline) {
                Ok(ready) => return Ok(ready),
                Err(broken) => broken,
            };
            let is_busy = broken.is_busy();
            let again = match &broken {
                Unestablished::InHandshake(Broken::Closed | Broken::Io(_)) => {
                    ended += 1;
                    ended <= ENDED_MAX
                }
                _ => is_busy,
            };
            let pause = 1_u64 << pauses.next().unwrap_or(PAUSES.end);
            let pause = Duration::from_millis(pause);
            let left = deadline.left().filter(|left| *left > pause);
            if !again || left.is_none() || self.shared.has_ended() {
                return Err(self.unestablished(peer, broken, is_busy));
            }
            std::thread::sleep(pause);
        }
    }

    fn unestablished(&self, peer: &Peer, broken: Unestablished, is_busy: bool) -> Error {
        let error = failed(peer, broken.into());
        if is_busy {
            let context = format!("{}, and did not take one more in time", error.context());
            return Error::new(ErrorKind::Timeout, context);
        }
        if matches!(
            error.kind(),
            ErrorKind::Configuration | ErrorKind::Unsupported
        ) {
            self.shared.refusals.say(&error.to_string());
        }
        error
    }

    fn establish(
        &self,
        address: SocketAddr,
        deadline: &Deadline,
    ) -> std::result::Result<Ready, Unestablished> {
        let left = deadline.left().ok_or(Broken::Timeout)?;
        let connect = || TcpStream::connect_timeout(&address, left);
        let stream = open::above_standard(connect).map_err(|error| {
            // The kernel gives up by itself too: then the peer cannot be reached.
            match error.kind() {
                io::ErrorKind::TimedOut if deadline.left().is_some() => Broken::Io(error),
                _ => error.into(),
            }
        })?;
        let mut link = Link::new(Arc::new(stream)).map_err(Broken::from)?;
        let registered = self.shared.open.register(link.stream());
        if self.shared.has_ended() {
            return Err(Broken::Closed.into());
        }
        let known = handshake::connect(&mut link, &self.shared.identity, deadline)
            .map_err(Unestablished::InHandshake)?;
        Ok(Ready {
            link,
            known,
            _registered: registered,
        })
    }
}
