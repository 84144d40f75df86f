// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which connections an endpoint serves, and which wait, give way, or are turned away.
//! In from: `server`. Out to: `server`; sockets of connections that are to give way.
//! Invariants: strangers, who did not prove yet that they belong to the job, have places of their own and
//! never take one of a peer; no address fills all of them; peers wait in the order in which they came,
//! and one that rests gives way to one that waits; all of it is bounded.

use backstay_base::clock::{Deadline, Stopwatch};
use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A stranger gives way to another of the same address only if it did not prove anything for so long: what
/// a handshake takes, so that those who come together do not push each other out, and a flood only delays.
const SLOW: Duration = Duration::from_millis(20);

/// How many connections of each standing there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Before authentication. As many again may be on their way out.
    pub(super) strangers: usize,
    /// Served at a time. As many again may wait.
    pub(super) peers: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Nobody knows who it is.
    Stranger,
    /// A peer for which there is no place yet.
    Waits,
    /// A peer with a request under way.
    Works,
    /// A peer without one, since the table's count was this.
    Rests(u64),
}

struct Entry {
    stream: Weak<TcpStream>,
    from: IpAddr,
    since: Stopwatch,
    standing: Standing,
    /// It is to give way.
    told: bool,
}

#[derive(Default)]
struct Table {
    count: u64,
    entries: BTreeMap<u64, Entry>,
}

/// The places of an endpoint.
pub(super) struct Places {
    bounds: Bounds,
    table: Mutex<Table>,
    changed: Condvar,
}

/// One of them, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Entry {
    /// Wakes whoever reads from the connection, as if the other side had ended it. What it still says
    /// can be answered.
    fn tell(&mut self) {
        self.told = true;
        if let Some(stream) = self.stream.upgrade() {
            drop(stream.shutdown(Shutdown::Read));
        }
    }

    fn is_served(&self) -> bool {
        matches!(self.standing, Standing::Works | Standing::Rests(_))
    }

    fn is_stranger(&self) -> bool {
        self.standing == Standing::Stranger
    }
}

impl Table {
    fn number(&self, which: impl Fn(&Entry) -> bool) -> usize {
        self.entries.values().filter(|entry| which(entry)).count()
    }

    /// Has a stranger leave for one `from` there, if one has to and may.
    fn make_room(&mut self, from: IpAddr) -> bool {
        let mut sources: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for entry in self.entries.values() {
            if entry.is_stranger() && !entry.told {
                *sources.entry(entry.from).or_default() += 1;
            }
        }
        let own = sources.get(&from).copied().unwrap_or(0);
        let most = sources.into_iter().max_by_key(|&(_, count)| count);
        let Some((source, count)) = most else {
            return false;
        };
        // Only an address that has more than the one which asks gives way to it at once.
        let at_once = count > own + 1;
        let source = if at_once { source } else { from };
        let oldest = self.entries.values_mut().find(|entry| {
            let is_there = entry.is_stranger() && !entry.told && entry.from == source;
            is_there && (at_once || entry.since.elapsed() > SLOW)
        });
        oldest.map(Entry::tell).is_some()
    }

    /// Has as many resting peers leave, longest first, as others wait for.
    fn make_places(&mut self) {
        let waiting = self.number(|entry| entry.standing == Standing::Waits);
        let leaving = self.number(|entry| entry.is_served() && entry.told);
        let mut resting: Vec<(u64, u64)> = self
            .entries
            .iter()
            .filter_map(|(&number, entry)| match entry.standing {
                Standing::Rests(since) if !entry.told => Some((since, number)),
                _ => None,
            })
            .collect();
        resting.sort_unstable();
        let wanted = waiting.saturating_sub(leaving);
        for (_, number) in resting.into_iter().take(wanted) {
            if let Some(entry) = self.entries.get_mut(&number) {
                entry.tell();
            }
        }
    }
}

impl Places {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            table: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a stranger; none where there are too many.
    pub(super) fn enter(self: &Arc<Self>, stream: &Arc<TcpStream>, from: IpAddr) -> Option<Place> {
        let mut table = self.lock();
        let there = table.number(|entry| entry.is_stranger() && !entry.told);
        if there >= self.bounds.strangers && !table.make_room(from) {
            return None;
        }
        if table.number(Entry::is_stranger) >= 2 * self.bounds.strangers {
            return None;
        }
        table.count += 1;
        let number = table.count;
        let entry = Entry {
            stream: Arc::downgrade(stream),
            from,
            since: Stopwatch::start(),
            standing: Standing::Stranger,
            told: false,
        };
        table.entries.insert(number, entry);
        let places = Arc::clone(self);
        Some(Place { places, number })
    }

    /// Nobody waits any more.
    pub(super) fn end(&self) {
        let mut table = self.lock();
        for entry in table.entries.values_mut() {
            entry.told = true;
        }
        drop(table);
        self.changed.notify_all();
    }
}

impl Place {
    /// A stranger proved that it is a peer: waits for a place of one, with a request under way. False
    /// where there is none by then, or too many wait.
    pub(super) fn be_served(&self, deadline: &Deadline) -> bool {
        let mut table = self.places.lock();
        let peers = self.places.bounds.peers;
        let waiting = table.number(|entry| entry.standing == Standing::Waits);
        match table.entries.get_mut(&self.number) {
            Some(entry) if waiting < peers && !entry.told => entry.standing = Standing::Waits,
            _ => return false,
        }
        loop {
            let first = table
                .entries
                .iter()
                .find(|(_, entry)| entry.standing == Standing::Waits);
            let is_first = first.is_some_and(|(&number, _)| number == self.number);
            let has_room = table.number(Entry::is_served) < peers;
            let Some(entry) = table.entries.get_mut(&self.number) else {
                return false;
            };
            if entry.told {
                return false;
            }
            if is_first && has_room {
                entry.standing = Standing::Works;
                drop(table);
                self.places.changed.notify_all();
                return true;
            }
            table.make_places();
            let Some(left) = deadline.left() else {
                return false;
            };
            let waited = self.places.changed.wait_timeout(table, left);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A request is over. False where the connection has to give way.
    pub(super) fn rest(&self) -> bool {
        let mut table = self.places.lock();
        table.count += 1;
        let since = table.count;
        let waiting = table.number(|entry| entry.standing == Standing::Waits);
        let leaving = table.number(|entry| entry.is_served() && entry.told);
        let Some(entry) = table.entries.get_mut(&self.number) else {
            return false;
        };
        entry.told |= waiting > leaving;
        entry.standing = Standing::Rests(since);
        !entry.told
    }

    /// A request came.
    pub(super) fn work(&self) {
        let mut table = self.places.lock();
        if let Some(entry) = table.entries.get_mut(&self.number) {
            entry.standing = Standing::Works;
        }
    }

    /// Whether the connection is to give way.
    pub(super) fn is_told(&self) -> bool {
        let table = self.places.lock();
        table
            .entries
            .get(&self.number)
            .is_none_or(|entry| entry.told)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().entries.remove(&self.number);
        self.places.changed.notify_all();
    }
}

/// Memory for the bodies of requests that are under way, of all connections together.
pub(super) struct Bodies {
    left: Mutex<usize>,
    freed: Condvar,
}

/// Some of it, until it is dropped.
pub(super) struct Taken<'a> {
    bodies: &'a Bodies,
    bytes: usize,
}

impl Bodies {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            left: Mutex::new(bytes),
            freed: Condvar::new(),
        }
    }

    /// Memory for a body of `bytes`, if it is there in time.
    pub(super) fn take(&self, bytes: usize, deadline: &Deadline) -> Option<Taken<'_>> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        while *left < bytes {
            let waited = self.freed.wait_timeout(left, deadline.left()?);
            left = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *left -= bytes;
        let bodies = self;
        Some(Taken { bodies, bytes })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let left = self.bodies.left.lock();
        *left.unwrap_or_else(PoisonError::into_inner) += self.bytes;
        self.bodies.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A connection from somewhere, as far as the table knows.
    struct Visitor {
        stream: Arc<TcpStream>,
        _other: TcpStream,
    }

    fn visitor() -> Visitor {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = Arc::new(listener.accept().unwrap().0);
        Visitor {
            stream,
            _other: other,
        }
    }

    fn places(strangers: usize, peers: usize) -> Arc<Places> {
        Arc::new(Places::new(Bounds { strangers, peers }))
    }

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(10))
    }

    #[test]
    fn a_flood_from_one_address_gives_way_to_another_address() {
        let places = places(4, 4);
        let (flood, honest) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let visitor = visitor();
        let come = |_| places.enter(&visitor.stream, flood);
        let held: Vec<Place> = (0..9).filter_map(come).collect();
        let stay = || held.iter().filter(|place| !place.is_told()).count();
        assert_eq!(stay(), 4, "as many as there are places, from one address");
        let oldest = held.iter().find(|place| !place.is_told()).unwrap();
        let peer = places.enter(&visitor.stream, honest).unwrap();
        assert!(oldest.is_told(), "the oldest of the flood leaves");
        assert!(stay() == 3 && !peer.is_told());
        assert!(peer.be_served(&soon()), "peers have places of their own");
        // The one that was told is on its way out: its place is the peer's no more.
        assert!(places.enter(&visitor.stream, honest).is_some());
    }

    #[test]
    fn those_on_their_way_out_are_bounded() {
        let places = places(2, 4);
        let visitor = visitor();
        let enter = |host: u8| places.enter(&visitor.stream, [10, 0, 0, host].into());
        let first = (enter(1).unwrap(), enter(1).unwrap());
        let mut held = Vec::new();
        // Each of these has one of the first leave, and goes.
        for host in [2, 3] {
            drop(enter(host).unwrap());
            assert_eq!(first.1.is_told(), host == 3);
            held.push(enter(1).unwrap());
        }
        // Two leave and two stay: as many as may be there.
        assert!(enter(4).is_none());
        drop(first);
        assert!(enter(4).is_some());
    }

    #[test]
    fn a_peer_waits_for_a_place_and_one_that_rests_gives_way() {
        let places = places(4, 1);
        let visitor = visitor();
        let enter = || places.enter(&visitor.stream, [10, 0, 0, 1].into()).unwrap();
        let first = enter();
        assert!(first.be_served(&soon()));
        let short = Deadline::after(Duration::from_millis(20));
        assert!(!enter().be_served(&short), "the first one is at work");
        let second = enter();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| second.be_served(&soon()));
            while first.rest() {
                first.work();
                std::thread::yield_now();
            }
            assert!(first.is_told());
            drop(first);
            assert!(served.join().unwrap());
        });
        // A peer that rests already is told by the next that comes.
        assert!(second.rest());
        let third = enter();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| third.be_served(&soon()));
            while !second.is_told() {
                std::thread::yield_now();
            }
            drop(second);
            assert!(served.join().unwrap());
        });
    }

    #[test]
    fn those_who_wait_are_bounded_and_end_with_the_endpoint() {
        let places = places(8, 1);
        let visitor = visitor();
        let enter = || places.enter(&visitor.stream, [10, 0, 0, 1].into()).unwrap();
        let (first, second, third) = (enter(), enter(), enter());
        assert!(first.be_served(&soon()));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| second.be_served(&soon()));
            let is_waiting = |entry: &Entry| entry.standing == Standing::Waits;
            while places.lock().number(is_waiting) == 0 {
                std::thread::yield_now();
            }
            assert!(!third.be_served(&soon()), "one may wait for one place");
            places.end();
            assert!(!waits.join().unwrap());
        });
    }

    #[test]
    fn bodies_wait_for_memory() {
        let bodies = Bodies::new(100);
        let first = bodies.take(60, &soon());
        let short = Deadline::after(Duration::from_millis(10));
        assert!(bodies.take(60, &short).is_none());
        drop(first);
        assert!(bodies.take(60, &soon()).is_some());
    }
}
