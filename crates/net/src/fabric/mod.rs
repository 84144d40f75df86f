// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: reads over libfabric: memory that peers may read, and reads of theirs.
//! In from: `tcp`, by `OneSided`. Out to: libfabric, which is found at run time.
//! Invariants: memory is registered once, and only for reading; every wait has a limit; a port of which a
//! read did not end in time is used for no other, and its memory is freed behind it.
//! Format: docs/format/wire.md, section "Reads".

mod progress;
mod raw;

use crate::one_sided::{Missed, Offer, OneSided};
use crate::{Exposed, Span};
use backstay_base::clock::{Deadline, Stopwatch};
use backstay_base::notice::SaidOnce;
use backstay_format::wire::Remote;
use backstay_format::{FingerprintKey, KeyedFingerprint};
use progress::Progress;
use raw::{Domain, Failed, Held, Library, Port, Registration};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Debug};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Pieces of memory of a port that reads, and bytes of each: what a processor's own cache holds.
const PIECES: (usize, usize) = (16, 512 << 10);
/// Reads of one range that are under way together.
const DEPTH: usize = 4;
/// A peer from which nothing came in time is read over the connection for so long.
const REST: Duration = Duration::from_secs(30);
/// The same after an error, which may concern what was read, and not the peer.
const SHORT_REST: Duration = Duration::from_millis(500);
/// Ports that failed and whose reads are not over, at most: with more nothing is read over libfabric.
const RETIRED_MAX: usize = 8;
/// Registrations that are remembered; what is over goes when there are more.
const REGISTRY: usize = 256;

/// Providers of network hardware that reads memory of others.
const HARDWARE: [&str; 6] = ["verbs", "cxi", "efa", "opx", "psm2", "gni"];

/// An endpoint of libfabric: a port that peers read from, and one that reads.
pub(crate) struct Fabric {
    domain: Arc<Domain>,
    progress: Progress,
    /// Registrations by where their memory begins.
    registry: Mutex<BTreeMap<usize, Weak<Registration>>>,
    reader: Mutex<Option<Arc<Port>>>,
    /// Ports that failed, until all of their reads are over: then they are closed.
    retired: Mutex<Vec<Arc<Port>>>,
    /// Peers that could not be read from, since when, and for how long they are left alone.
    resting: Mutex<BTreeMap<Vec<u8>, (Stopwatch, Duration)>>,
    ended: AtomicBool,
    missed: SaidOnce,
}

impl Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fabric({:?})", self.domain)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a provider moves bytes by network hardware: that of its name in front of utilities.
fn is_hardware(provider: &str) -> bool {
    let core = provider.split(';').next().unwrap_or_default();
    HARDWARE.contains(&core)
}

impl Fabric {
    /// An endpoint of `provider`, or of the first of network hardware; one that goes over sockets is at
    /// `host`.
    pub(crate) fn open(provider: Option<&str>, host: IpAddr) -> Result<Arc<Self>, String> {
        let library = Library::load()?;
        let all = raw::providers(library);
        let found = match provider {
            Some(named) => all.iter().find(|one| *one == named),
            None => all.iter().find(|one| is_hardware(one)),
        };
        let found = found.ok_or_else(|| format!("{library:?} has only {}", all.join(", ")))?;
        let host = host.to_string();
        // Sockets listen only where peers are told to come; other providers have addresses of their own.
        let is_socket = ["tcp", "net", "sockets", "udp"]
            .iter()
            .any(|one| found.starts_with(one));
        let domain = Domain::open(library, found, is_socket.then_some(host.as_str()))?;
        let port = Port::open(&domain, (0, 0))?;
        Ok(Arc::new(Self {
            progress: Progress::start(port)?,
            domain,
            registry: Mutex::default(),
            reader: Mutex::default(),
            retired: Mutex::default(),
            resting: Mutex::default(),
            ended: AtomicBool::new(false),
            missed: SaidOnce::default(),
        }))
    }

    /// The registration of all memory that `exposed` has around `bytes`.
    fn register(&self, exposed: &Exposed, bytes: &[u8]) -> Option<Arc<Registration>> {
        let (start, length) = exposed.around(bytes)?;
        let mut registry = lock(&self.registry);
        let known = registry.get(&start).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.place(bytes).is_some()) {
            return Some(known);
        }
        if registry.len() >= REGISTRY {
            registry.retain(|_, registration| registration.strong_count() > 0);
        }
        let made = Registration::new(&self.domain, (start, length), exposed.clone());
        match made {
            Ok(registration) => {
                let registration = Arc::new(registration);
                registry.insert(start, Arc::downgrade(&registration));
                Some(registration)
            }
            Err(words) => {
                self.missed.warn(&format!(
                    "{length} bytes are not offered over {}, and read over TCP: {words}",
                    self.domain.provider()
                ));
                None
            }
        }
    }

    /// The port that reads, opened where there is none.
    fn reader(&self) -> Result<Arc<Port>, Failed> {
        let mut reader = lock(&self.reader);
        if let Some(port) = &*reader {
            return Ok(Arc::clone(port));
        }
        if self.close_retired() >= RETIRED_MAX {
            let words = format!("reads of {RETIRED_MAX} ports that failed are not over");
            return Err(Failed::Refused(words));
        }
        let port = Port::open(&self.domain, PIECES).map_err(Failed::Broken)?;
        *reader = Some(Arc::clone(&port));
        Ok(port)
    }

    /// The next reads go by another port; this one is closed when its last read is over.
    fn retire(&self, port: &Arc<Port>) {
        drop(lock(&self.reader).take_if(|now| Arc::ptr_eq(now, port)));
        let mut retired = lock(&self.retired);
        if !retired.iter().any(|known| Arc::ptr_eq(known, port)) {
            retired.push(Arc::clone(port));
        }
    }

    /// Closes the retired ports whose reads are over; how many others there are.
    fn close_retired(&self) -> usize {
        let mut retired = lock(&self.retired);
        retired.retain(|port| {
            port.settle();
            // Who has it may begin another.
            Arc::strong_count(port) > 1 || port.is_reading()
        });
        retired.len()
    }

    fn rests(&self, address: &[u8]) -> bool {
        let mut resting = lock(&self.resting);
        resting.retain(|_, (since, rest)| since.elapsed() < *rest);
        resting.contains_key(address)
    }

    fn gather(
        port: &Arc<Port>,
        (address, remote, key): (&[u8], Remote, &FingerprintKey),
        into: &mut [u8],
        deadline: &Deadline,
    ) -> Result<KeyedFingerprint, Failed> {
        let peer = port.peer(address)?;
        let mut waiting = pieces(into.len(), port.piece_bytes());
        let mut under_way: VecDeque<(Held, usize, usize)> = VecDeque::new();
        let (mut fingerprinter, mut next) = (key.begin(), waiting.next());
        loop {
            while let Some((start, length)) = next.filter(|_| under_way.len() < DEPTH) {
                let wait = under_way.is_empty().then_some(deadline);
                let Some(mut held) = port.take(wait)? else {
                    break;
                };
                let place = remote
                    .address
                    .checked_add(backstay_format::width::to_u64(start));
                let place = place.ok_or_else(|| Failed::Refused("beyond all memory".to_owned()))?;
                held.begin(peer, (remote.key, place), length, deadline)?;
                under_way.push_back((held, start, length));
                next = waiting.next();
            }
            let Some((mut held, start, length)) = under_way.pop_front() else {
                return Ok(fingerprinter.finish());
            };
            held.finish(deadline)?;
            let bytes = held.bytes(length);
            let bytes = bytes.ok_or_else(|| Failed::Broken("a read is not over".to_owned()))?;
            fingerprinter.update(bytes);
            into[start..start + length].copy_from_slice(bytes);
        }
    }
}

/// A range of `length` bytes in pieces of much the same length, none above `most`: where each begins, and
/// its bytes.
fn pieces(length: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = length.div_ceil(most.max(1)).max(1);
    let each = length.div_ceil(count).max(1);
    let starts = (0..length).step_by(each);
    starts.map(move |start| (start, each.min(length - start)))
}

impl OneSided for Fabric {
    fn provider(&self) -> &str {
        self.domain.provider()
    }

    fn is_local(&self) -> bool {
        self.domain.provider() == "shm"
    }

    fn address(&self) -> Vec<u8> {
        self.progress.port().address().to_vec()
    }

    fn offer(&self, exposed: &Exposed, _: Span, bytes: &[u8]) -> Option<(Remote, Offer)> {
        if self.ended.load(Ordering::SeqCst) {
            return None;
        }
        let registration = self.register(exposed, bytes)?;
        let (key, address) = registration.place(bytes)?;
        self.progress.hurry();
        Some((Remote { key, address }, registration))
    }

    fn read(
        &self,
        (address, remote, key): (&[u8], Remote, &FingerprintKey),
        into: &mut [u8],
        deadline: &Deadline,
    ) -> Result<KeyedFingerprint, Missed> {
        if self.ended.load(Ordering::SeqCst) {
            return Err(Missed("it is shut down".to_owned()));
        }
        if self.rests(address) {
            return Err(Missed("it could not be read from a moment ago".to_owned()));
        }
        // What does not come this way has time left to come over the connection.
        let own = Deadline::after(deadline.left().unwrap_or_default() / 2);
        let read = self.reader().and_then(|port| {
            let gathered = Self::gather(&port, (address, remote, key), into, &own);
            if matches!(gathered, Err(Failed::Late | Failed::Broken(_))) {
                self.retire(&port);
            }
            gathered
        });
        read.map_err(|failed| {
            let (words, rest) = match failed {
                Failed::Late => ("nothing came in time".to_owned(), REST),
                Failed::Refused(words) | Failed::Broken(words) => (words, SHORT_REST),
            };
            let since = Stopwatch::start();
            lock(&self.resting).insert(address.to_vec(), (since, rest));
            Missed(words)
        })
    }

    fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        drop(lock(&self.reader).take());
        self.progress.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_range_and_none_is_short() {
        for (length, most) in [
            (1, 9),
            (9, 9),
            (10, 9),
            (600_000, 512 << 10),
            ((4 << 20) + 1, 1 << 19),
        ] {
            let all: Vec<_> = pieces(length, most).collect();
            let mut end = 0;
            for &(start, bytes) in &all {
                assert_eq!(start, end);
                assert!(bytes <= most && (all.len() == 1 || 2 * bytes >= length / all.len()));
                end += bytes;
            }
            assert_eq!(end, length);
        }
    }

    /// A piece of a port that has read from `peer`, and is retired.
    fn retired_with(fabric: &Fabric, peer: &Port, place: (u64, u64), soon: &Deadline) -> Held {
        let port = fabric.reader().unwrap();
        let number = port.peer(peer.address()).unwrap();
        let mut held = port.take(Some(soon)).unwrap().unwrap();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                held.begin(number, place, 100, soon).unwrap();
                held.finish(soon).unwrap();
            });
            while !read.is_finished() {
                peer.poll(None).unwrap();
            }
        });
        fabric.retire(&port);
        fabric.retire(&port);
        held
    }

    #[test]
    fn ports_whose_reads_are_not_over_are_kept_and_bounded() {
        let Ok(library) = Library::load() else {
            return;
        };
        let fabric = Fabric::open(Some("tcp;ofi_rxm"), IpAddr::from([127, 0, 0, 1])).unwrap();
        let domain = Domain::open(library, "tcp;ofi_rxm", Some("127.0.0.1")).unwrap();
        let memory = Arc::new(vec![7; 100]);
        let exposed = Exposed::Memory(Arc::clone(&memory));
        let around = exposed.around(&memory).unwrap();
        let registration = Registration::new(&domain, around, exposed).unwrap();
        let place = registration.place(&memory).unwrap();
        let peer = Port::open(&domain, (0, 0)).unwrap();
        let soon = Deadline::after(Duration::from_secs(10));
        let all = [(); RETIRED_MAX].map(|()| retired_with(&fabric, &peer, place, &soon));
        for mut held in all {
            // Its only peer, which does nothing more.
            held.begin(0, place, 100, &soon).unwrap();
        }
        assert_eq!(fabric.close_retired(), RETIRED_MAX);
        assert!(matches!(fabric.reader(), Err(Failed::Refused(_))));
        let is_over = (0..1000).any(|_| {
            peer.poll(None).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            fabric.close_retired() == 0
        });
        assert!(is_over && fabric.reader().is_ok());
    }

    #[test]
    fn hardware_is_known_by_its_name() {
        assert!(is_hardware("verbs;ofi_rxm") && is_hardware("cxi"));
        for provider in ["tcp;ofi_rxm", "shm", "net", "udp;ofi_rxd", "sockets", ""] {
            assert!(!is_hardware(provider), "{provider}");
        }
    }
}
