// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the side that listens: accepts, authenticates, answers.
//! In from: sockets. Out to: the handler, and the exposures.
//! Invariants: a thread for each connection, at most so many; who has to wait, or to go, is told so; a
//! frame that began is read within a limit; memory for what others send is bounded, before they are known
//! and after; a handler that panics ends its call only.

use super::handshake;
use super::link::{Broken, Link};
use super::places::{Bounds, Place, Places};
use super::{Registered, Shared, read};
use crate::{MESSAGE_BYTES_MAX, words};
use backstay_base::clock::{Deadline, Stopwatch};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::open;
use backstay_base::notice;
use backstay_format::width::index;
use backstay_format::wire::{Call, Describe, Failure, Head, Kind, Read, Reason};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A new connection authenticates within this, or is closed.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// A peer that is accepted sends its first request within this.
const FIRST: Duration = Duration::from_secs(5);
/// A peer waits so long for a place, and is then told to come again.
const LINE: Duration = Duration::from_secs(60);
/// Bodies of requests up to this size need not wait for memory: they are as bounded as connections.
const SMALL: usize = 64 << 10;
/// A connection without a request for so long is closed.
const IDLE: Duration = Duration::from_secs(150);
/// The body of a request arrives within this.
const BODY: Duration = Duration::from_secs(60);
/// Nobody waits longer for an answer, whatever a request says.
const ANSWER_MAX: Duration = Duration::from_secs(3600);
/// How long the end of an endpoint waits for its threads. They end by themselves soon after.
const END: Duration = Duration::from_secs(1);
/// Refusals are said aloud so often at most.
const ALOUD: Duration = Duration::from_secs(10);

/// Says aloud that somebody was refused, once in a while.
#[derive(Default)]
pub(super) struct Refusals {
    last: Mutex<(Option<Stopwatch>, u64)>,
}

impl Refusals {
    pub(super) fn say(&self, text: &str) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0.is_some_and(|since| since.elapsed() < ALOUD) {
            last.1 += 1;
            return;
        }
        let unsaid = std::mem::take(&mut last.1);
        last.0 = Some(Stopwatch::start());
        drop(last);
        let more = match unsaid {
            0 => String::new(),
            count => format!(" ({count} more since the last of these)"),
        };
        notice::warn(&format!("{text}{more}"));
    }
}

/// The threads there are.
#[derive(Default)]
struct ThreadCount {
    count: Mutex<usize>,
    left: Condvar,
}

/// One of them, until it is dropped.
struct Counted(Arc<ThreadCount>);

impl ThreadCount {
    fn count(self: &Arc<Self>) -> Counted {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Counted(Arc::clone(self))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut count = self.0.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        self.0.left.notify_all();
    }
}

/// Starts a thread of a name.
pub(super) type Spawn = fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<()>;

/// The listening side of an endpoint.
pub(super) struct Server {
    listener: Arc<TcpListener>,
    threads: Arc<ThreadCount>,
    places: Arc<Places>,
}

impl Server {
    /// Serves connections within `bounds`, each in a thread that `spawn` starts.
    pub(super) fn start(
        listener: TcpListener,
        shared: &Arc<Shared>,
        bounds: Bounds,
        spawn: Spawn,
    ) -> Result<Self> {
        let server = Self {
            listener: Arc::new(listener),
            threads: Arc::default(),
            places: Arc::new(Places::new(bounds)),
        };
        let door = Door {
            listener: Arc::clone(&server.listener),
            shared: Arc::clone(shared),
            threads: Arc::clone(&server.threads),
            places: Arc::clone(&server.places),
            spawn,
        };
        // The thread that accepts is counted as well.
        let member = server.threads.count();
        let accepting = move || {
            let _member = member;
            door.accept_all();
        };
        self::spawn("backstay-accept", Box::new(accepting))
            .map_err(|error| Error::caused(ErrorKind::Internal, "a thread that accepts", error))?;
        Ok(server)
    }

    /// Accepts no more.
    pub(super) fn end(&self) {
        // Wakes the thread that accepts, and refuses whoever connects from now on.
        let both = rustix::net::Shutdown::Both;
        let _ended = rustix::net::shutdown(&*self.listener, both);
        self.places.end();
    }

    /// Waits for the threads, within a limit.
    pub(super) fn wait(&self) {
        let deadline = Deadline::after(END);
        let mut count = self
            .threads
            .count
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while *count > 0 {
            let Some(left) = deadline.left() else {
                return;
            };
            let waited = self.threads.left.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Starts a thread that nobody joins.
pub(super) fn spawn(name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
}

/// What accepts connections.
struct Door {
    listener: Arc<TcpListener>,
    shared: Arc<Shared>,
    threads: Arc<ThreadCount>,
    places: Arc<Places>,
    spawn: Spawn,
}

impl Door {
    fn accept_all(&self) {
        loop {
            let accepted = self
                .listener
                .accept()
                .and_then(|(stream, from)| Ok((open::moved_above(stream)?, from)));
            if self.shared.has_ended() {
                return;
            }
            match accepted {
                Ok((stream, from)) => self.let_in(stream, from),
                Err(error) => {
                    // Out of descriptors, or a connection that ended before it was accepted.
                    if error.kind() != io::ErrorKind::ConnectionAborted {
                        let words = format!("connections cannot be accepted: {error}");
                        self.shared.refusals.say(&words);
                    }
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    fn let_in(&self, stream: TcpStream, from: SocketAddr) {
        let stream = Arc::new(stream);
        let Some(place) = self.places.enter(&stream, from.ip()) else {
            self.turn_away(stream, "has too many connections that prove nothing");
            return;
        };
        let (shared, member, visitor) = (
            Arc::clone(&self.shared),
            self.threads.count(),
            Arc::clone(&stream),
        );
        let work = move || {
            let _member = member;
            attend(&shared, &place, visitor, &from.to_string());
        };
        if let Err(error) = (self.spawn)("backstay-serve", Box::new(work)) {
            self.turn_away(stream, &format!("has no thread for a connection: {error}"));
        }
    }

    /// Tells a connection to come again. Does not wait for it: others want to come in.
    fn turn_away(&self, stream: Arc<TcpStream>, why: &str) {
        let words = format!("{} {why}", self.shared.identity.name);
        self.shared
            .refusals
            .say(&format!("a connection was put off: {words}"));
        if let Ok(mut link) = Link::new(stream) {
            let moment = Deadline::after(Duration::from_millis(1));
            link.refuse(Reason::Busy, &words, &moment);
            link.end_at_once();
        }
    }
}

/// Serves one connection to its end.
fn attend(shared: &Arc<Shared>, place: &Place, stream: Arc<TcpStream>, from: &str) {
    let Ok(mut link) = Link::new(stream) else {
        return;
    };
    let registered = shared.open.register(link.stream());
    if shared.has_ended() {
        return;
    }
    let Some(name) = get_to_know(shared, place, &registered, &mut link, from) else {
        return;
    };
    let mut scratch = Vec::new();
    let mut first = true;
    let broken = loop {
        if !first && !place.rest() {
            break Broken::Closed;
        }
        let patience = if first { FIRST } else { IDLE };
        first = false;
        if let Err(broken) = serve(shared, place, &mut link, (patience, &mut scratch)) {
            break broken;
        }
    };
    match &broken {
        Broken::Nonsense(error) => {
            let text = format!("{name} at {from} sent nonsense: {error}");
            shared.refusals.say(&text);
            let deadline = Deadline::after(HANDSHAKE);
            link.refuse(Reason::Protocol, &error.to_string(), &deadline);
            link.end_politely(Duration::from_millis(50));
        }
        Broken::Closed if place.is_told() => give_way(shared, &mut link),
        _ => {}
    }
    link.end();
}

/// Others wait for the place of this connection; what was asked for on it and not answered was not done.
fn give_way(shared: &Shared, link: &mut Link) {
    let words = format!("{} serves others that waited", shared.identity.name);
    link.refuse(Reason::Busy, &words, &Deadline::after(HANDSHAKE));
    link.end_politely(Duration::from_millis(50));
}

/// Makes a peer of a stranger, which has a place from then on, and returns its name.
fn get_to_know(
    shared: &Shared,
    place: &Place,
    registered: &Registered,
    link: &mut Link,
    from: &str,
) -> Option<String> {
    let deadline = Deadline::after(HANDSHAKE);
    let proven = match handshake::accept(link, &shared.identity, &deadline) {
        Ok(proven) => proven,
        Err(broken) => {
            if place.is_told() && !shared.has_ended() {
                give_way(shared, link);
                return None;
            }
            if !broken.is_gone() && !shared.has_ended() {
                let words = format!("a connection from {from} was refused: {broken}");
                shared.refusals.say(&words);
            }
            link.end_politely(Duration::from_millis(50));
            return None;
        }
    };
    if proven.is_new_start {
        shared.open.end_all_but(registered);
    }
    if !place.be_served(&Deadline::after(LINE)) {
        let (name, most) = (&shared.identity.name, shared.connections_max);
        let words = format!("{name} serves {most} connections already");
        let moment = Duration::from_millis(50);
        link.refuse(Reason::Busy, &words, &Deadline::after(moment));
        link.end_politely(moment);
        let words = format!("a peer at {from} was put off: {words}");
        shared.refusals.say(&words);
        return None;
    }
    let known = handshake::welcome(link, proven, &Deadline::after(HANDSHAKE));
    known.ok().map(|known| known.name)
}

/// Reads one request and answers it.
fn serve(
    shared: &Shared,
    place: &Place,
    link: &mut Link,
    (patience, scratch): (Duration, &mut Vec<u8>),
) -> std::result::Result<(), Broken> {
    let (head, kind) = link.receive_head(&Deadline::after(patience))?;
    place.work();
    if !matches!(kind, Kind::Call | Kind::Describe | Kind::Read) {
        return Err(Broken::unexpected("Call, Describe or Read", kind));
    }
    let deadline = Deadline::after(BODY);
    let length = index(head.body_bytes);
    let mut taken = None;
    if length > SMALL {
        let memory = shared.bodies.take(length, &deadline);
        taken = Some(memory.ok_or(Broken::Timeout)?);
    }
    let body = link.receive_body(&head, &deadline)?;
    if kind == Kind::Call {
        let answered = answer(shared, link, &body);
        drop((body, taken));
        return answered;
    }
    answer_read(shared, link, (&head, kind, &body), scratch)
}

/// How long the other side waits for an answer.
fn limit(within_us: u64) -> Duration {
    Duration::from_micros(within_us).min(ANSWER_MAX)
}

fn answer(shared: &Shared, link: &mut Link, body: &[u8]) -> std::result::Result<(), Broken> {
    let call = Call::decode(body)?;
    let within = limit(call.within_us);
    let deadline = Deadline::after(within);
    let result = match shared.handler() {
        None => Err(Error::new(ErrorKind::Unsupported, "handles no calls yet")),
        Some(handler) => {
            let handled = catch_unwind(AssertUnwindSafe(|| handler.handle(call.request, within)));
            handled.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the handler panicked")))
        }
    };
    match result {
        Ok(answer) if answer.len() <= MESSAGE_BYTES_MAX => {
            link.send(Kind::Answer, &[&answer], &deadline)
        }
        Ok(answer) => {
            let words = format!(
                "an answer of {} bytes: at most {MESSAGE_BYTES_MAX}",
                answer.len()
            );
            let error = Error::new(ErrorKind::InvalidArgument, words);
            fail(link, &error, &deadline)
        }
        Err(error) => fail(link, &error, &deadline),
    }
}

fn answer_read(
    shared: &Shared,
    link: &mut Link,
    (head, kind, body): (&Head, Kind, &[u8]),
    scratch: &mut Vec<u8>,
) -> std::result::Result<(), Broken> {
    let exposures = &shared.exposures;
    if kind == Kind::Describe {
        let asked = Describe::decode(head, body)?;
        let deadline = Deadline::after(limit(asked.within_us));
        let one_sided = shared.one_sided.as_deref();
        return read::answer_describe((exposures, one_sided), link, &asked, &deadline);
    }
    let asked = Read::decode(head, body)?;
    let deadline = Deadline::after(limit(asked.within_us));
    read::answer_read(exposures, link, &asked, &deadline, scratch)
}

/// Sends an error instead of an answer.
pub(super) fn fail(
    link: &mut Link,
    error: &Error,
    deadline: &Deadline,
) -> std::result::Result<(), Broken> {
    let failure = Failure::new(error.kind().code().unsigned_abs(), &words(error));
    link.send(Kind::Failure, &[&failure.encode()?], deadline)
}
