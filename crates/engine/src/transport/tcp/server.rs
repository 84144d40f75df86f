// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the side that listens: accepts, authenticates, answers.
//! In from: sockets. Out to: the handler, and the exposures.
//! Invariants: a thread for each connection, at most so many; more are told so and closed; a frame
//! that began is read within a limit; a handler that panics ends its call only.

use super::handshake;
use super::link::{Broken, Link};
use super::{Shared, pull};
use crate::clock::{Deadline, Stopwatch};
use crate::error::{Error, ErrorKind, Result};
use crate::notice;
use crate::transport::{MESSAGE_BYTES_MAX, words};
use backstay_format::wire::{Call, Failure, Head, Kind, Pull, Reason};
use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A new connection authenticates within this, or is closed.
const HANDSHAKE: Duration = Duration::from_secs(10);
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
struct Crew {
    count: Mutex<usize>,
    left: Condvar,
}

/// One of them, until it is dropped.
struct Member(Arc<Crew>);

impl Crew {
    /// One more, if there are fewer than `most`.
    fn join(self: &Arc<Self>, most: usize) -> Option<Member> {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Member(Arc::clone(self)))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut count = self.0.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count -= 1;
        self.0.left.notify_all();
    }
}

/// The listening side of an endpoint.
pub(super) struct Server {
    listener: Arc<TcpListener>,
    crew: Arc<Crew>,
}

impl Server {
    /// Accepts up to `most` connections at a time.
    pub(super) fn start(listener: TcpListener, shared: &Arc<Shared>, most: usize) -> Result<Self> {
        let (listener, crew) = (Arc::new(listener), Arc::new(Crew::default()));
        let server = Self {
            listener: Arc::clone(&listener),
            crew: Arc::clone(&crew),
        };
        let shared = Arc::clone(shared);
        // The thread that accepts is one of the crew.
        let member = crew.join(1);
        let accepting = move || {
            let _member = member;
            accept(&listener, &shared, &crew, most + 1);
        };
        spawn("backstay-accept", accepting)
            .map_err(|error| Error::caused(ErrorKind::Internal, "a thread that accepts", error))?;
        Ok(server)
    }

    /// Accepts no more.
    pub(super) fn end(&self) {
        // Wakes the thread that accepts, and refuses whoever connects from now on.
        let both = rustix::net::Shutdown::Both;
        let _ended = rustix::net::shutdown(&*self.listener, both);
    }

    /// Waits for the threads, within a limit.
    pub(super) fn wait(&self) {
        let deadline = Deadline::after(END);
        let mut count = self
            .crew
            .count
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while *count > 0 {
            let Some(left) = deadline.left() else {
                return;
            };
            let waited = self.crew.left.wait_timeout(count, left);
            count = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map(drop)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>, crew: &Arc<Crew>, most: usize) {
    loop {
        let accepted = listener.accept();
        if shared.has_ended() {
            return;
        }
        let Ok((stream, from)) = accepted else {
            // Out of descriptors, or a connection that ended before it was accepted.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Some(member) = crew.join(most) else {
            turn_away(stream, shared, most - 1);
            continue;
        };
        let shared_too = Arc::clone(shared);
        let work = move || {
            let _member = member;
            attend(&shared_too, stream, &from.to_string());
        };
        if let Err(error) = spawn("backstay-serve", work) {
            shared
                .refusals
                .say(&format!("no thread for a connection: {error}"));
        }
    }
}

/// Refuses a connection that is one too many.
fn turn_away(stream: TcpStream, shared: &Shared, most: usize) {
    let Ok(mut link) = Link::new(stream) else {
        return;
    };
    let words = format!("{} has {most} connections already", shared.identity.name);
    let moment = Duration::from_millis(5);
    link.refuse(Reason::Busy, &words, &Deadline::after(moment));
    link.end_politely(moment);
    shared
        .refusals
        .say(&format!("a connection was refused: {words}"));
}

/// Serves one connection to its end.
fn attend(shared: &Shared, stream: TcpStream, from: &str) {
    let Ok(mut link) = Link::new(stream) else {
        return;
    };
    let _registered = shared.open.register(link.stream());
    if shared.has_ended() {
        return;
    }
    let known = match handshake::accept(&mut link, &shared.identity, &Deadline::after(HANDSHAKE)) {
        Ok(known) => known,
        Err(broken) => {
            if !broken.is_gone() && !shared.has_ended() {
                shared
                    .refusals
                    .say(&format!("a connection from {from} was refused: {broken}"));
            }
            link.end_politely(Duration::from_millis(50));
            return;
        }
    };
    let mut scratch = Vec::new();
    let broken = loop {
        if let Err(broken) = serve(shared, &mut link, &mut scratch) {
            break broken;
        }
    };
    if let Broken::Nonsense(error) = &broken {
        let name = &known.name;
        shared
            .refusals
            .say(&format!("{name} at {from} sent nonsense: {error}"));
        link.refuse(
            Reason::Protocol,
            &error.to_string(),
            &Deadline::after(HANDSHAKE),
        );
        link.end_politely(Duration::from_millis(50));
    }
    link.end();
}

/// Reads one request and answers it.
fn serve(
    shared: &Shared,
    link: &mut Link,
    scratch: &mut Vec<u8>,
) -> std::result::Result<(), Broken> {
    let (head, kind) = link.receive_head(&Deadline::after(IDLE))?;
    if !matches!(kind, Kind::Call | Kind::Pull) {
        return Err(Broken::unexpected("Call or Pull", kind));
    }
    let body = link.receive_body(&head, kind, &Deadline::after(BODY))?;
    if kind == Kind::Call {
        return answer(shared, link, &body);
    }
    answer_pull(shared, link, (&head, &body), scratch)
}

/// How long the other side waits for an answer.
fn limit(within_us: u64) -> Duration {
    Duration::from_micros(within_us).min(ANSWER_MAX)
}

fn answer(shared: &Shared, link: &Link, body: &[u8]) -> std::result::Result<(), Broken> {
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

fn answer_pull(
    shared: &Shared,
    link: &Link,
    (head, body): (&Head, &[u8]),
    scratch: &mut Vec<u8>,
) -> std::result::Result<(), Broken> {
    let asked = Pull::decode(head, body)?;
    let deadline = Deadline::after(limit(asked.within_us));
    pull::answer(&shared.exposures, link, &asked, &deadline, scratch)
}

/// Sends an error instead of an answer.
pub(super) fn fail(
    link: &Link,
    error: &Error,
    deadline: &Deadline,
) -> std::result::Result<(), Broken> {
    let failure = Failure {
        code: error.kind().code().unsigned_abs(),
        words: words(error),
    };
    link.send(Kind::Failure, &[&failure.encode()], deadline)
}
