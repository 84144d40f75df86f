// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the communicator of the routing agents of a start: collective calls over TCP.
//! In from: `backstay run`, which tells each agent who the others are. Out to: the session of the agents; `rounds`.
//! Invariants: what is brought goes up a tree to the first agent, and the outcome down; an agent that is dead, or does not
//! answer, fails the call on all, with the name of its host, within a limit; one that is alive is waited for.
//!
//! An agent brings what it and those below it have in one request, which is answered with the outcome. A request may
//! be said again: it changes nothing. Who waits for others asks them now and then whether they are there.

use super::talk::{Answer, Call, Request, decode, encode};
use backstay_base::comm::Communicator;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::{index, to_u64};
use backstay_net::{Endpoint, Peer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Agents that bring to one.
const BELOW: u32 = 32;
/// How long a request waits for the outcome before it is answered without.
const SLICE: Duration = Duration::from_secs(2);
/// Before an agent that is waited for is asked whether it is there, and between two such questions.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// So long is one tried whose host says that there is no such process.
const GONE_AFTER: Duration = Duration::from_secs(3);
/// For last words.
const FAREWELL: Duration = Duration::from_secs(5);

/// The agents of a start, as one of them sees them.
pub(super) struct Circle {
    rank: u32,
    peers: Vec<Peer>,
    endpoint: Arc<dyn Endpoint>,
    limit: Duration,
    /// The program is over: one that does not answer is not waited for.
    hurried: AtomicBool,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

#[derive(Default)]
struct Meeting {
    /// The latest turn that this agent takes part in.
    turn: u64,
    /// What those below brought to the next turn that is not over.
    brought: BTreeMap<u32, (Call, Vec<u8>)>,
    /// The last turn that is over, and its outcome.
    over: (u64, Vec<u8>),
    said_bye: BTreeSet<u32>,
    failed: Option<String>,
}

/// What agents brought, by rank.
type Parts = Vec<(u32, Vec<u8>)>;

fn parent_of(rank: u32) -> u32 {
    (rank - 1) / BELOW
}

impl Circle {
    /// The agents `peers`, in the order of their ranks, of which this one is `rank`; `endpoint` answers by [`Circle::answer`].
    pub(super) fn new(
        rank: u32,
        peers: Vec<Peer>,
        endpoint: Arc<dyn Endpoint>,
        limit: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            rank,
            peers,
            endpoint,
            limit,
            hurried: AtomicBool::new(false),
            meeting: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    pub(super) fn size(&self) -> u32 {
        u32::try_from(self.peers.len()).unwrap_or(u32::MAX)
    }

    /// From now on one that does not answer is given up soon.
    pub(super) fn hurry(&self) {
        self.hurried.store(true, Ordering::Relaxed);
    }

    fn limit(&self) -> Duration {
        if self.hurried.load(Ordering::Relaxed) {
            self.limit.min(GONE_AFTER)
        } else {
            self.limit
        }
    }

    /// The host of an agent.
    pub(super) fn host(&self, rank: u32) -> String {
        let peer = self.peers.get(index(rank));
        peer.map(|peer| peer.name.clone()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn below(&self) -> impl Iterator<Item = u32> + use<> {
        let first = u64::from(self.rank) * u64::from(BELOW) + 1;
        let end = (first + u64::from(BELOW)).min(u64::from(self.size()));
        (first..end).filter_map(|rank| u32::try_from(rank).ok())
    }

    /// Asks another agent; its answer, and the bytes behind it.
    pub(super) fn ask(
        &self,
        rank: u32,
        request: &Request,
        within: Duration,
    ) -> Result<(Answer, Vec<u8>)> {
        let peer = self.peers.get(index(rank));
        let peer = peer
            .ok_or_else(|| Error::new(ErrorKind::Internal, format!("there is no agent {rank}")))?;
        let bytes = self.endpoint.call(peer, &encode(request)?, within)?;
        let (answer, rest) = decode(&bytes)?;
        let rest = rest.to_vec();
        Ok((answer, rest))
    }

    /// Answers what other agents say of collective calls; nothing where it is of something else.
    pub(super) fn answer(&self, request: &Request, within: Duration) -> Option<Result<Answer>> {
        match request {
            Request::Bring {
                from,
                turn,
                call,
                bytes,
            } => Some(self.take(*from, *turn, (*call, bytes), within)),
            Request::Failed { words } => {
                self.fail(words);
                Some(Ok(Answer::Done))
            }
            Request::Bye { from } => {
                self.lock().said_bye.insert(*from);
                self.changed.notify_all();
                Some(Ok(Answer::Done))
            }
            Request::Ping => Some(Ok(Answer::Done)),
            _ => None,
        }
    }

    /// Takes what an agent below brought; waits for the outcome.
    fn take(
        &self,
        from: u32,
        turn: u64,
        (call, bytes): (Call, &[u8]),
        within: Duration,
    ) -> Result<Answer> {
        if !self.below().any(|below| below == from) {
            let context = format!("agent {from} does not bring to agent {}", self.rank);
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        let until = Instant::now() + within.min(SLICE);
        let mut meeting = self.lock();
        let mut is_new = true;
        loop {
            if let Some(words) = &meeting.failed {
                return Err(Error::new(ErrorKind::PeerFailed, words.clone()));
            }
            if turn == meeting.over.0 {
                return Ok(Answer::Outcome(meeting.over.1.clone()));
            }
            if turn != meeting.over.0 + 1 {
                let over = meeting.over.0;
                let context = format!("agent {from} is at turn {turn}, and {over} is over");
                return Err(Error::new(ErrorKind::Internal, context));
            }
            if std::mem::take(&mut is_new) {
                meeting.brought.insert(from, (call, bytes.to_vec()));
                self.changed.notify_all();
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Answer::NotYet);
            }
            let waited = self.changed.wait_timeout(meeting, left);
            meeting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn fail(&self, words: &str) {
        let mut meeting = self.lock();
        meeting.failed.get_or_insert_with(|| words.to_owned());
        drop(meeting);
        self.changed.notify_all();
    }

    /// One collective call: `mine` and what those below bring goes up, the outcome comes back.
    fn meet(
        &self,
        call: Call,
        mine: Vec<u8>,
        decide: impl FnOnce(Parts) -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let mut meeting = self.lock();
        if let Some(words) = &meeting.failed {
            return Err(Error::new(ErrorKind::PeerFailed, words.clone()));
        }
        meeting.turn += 1;
        let turn = meeting.turn;
        drop(meeting);
        let outcome = self.bring(turn, call, mine, decide);
        let mut meeting = self.lock();
        match &outcome {
            Ok(bytes) => {
                meeting.over = (turn, bytes.clone());
                meeting.brought.clear();
            }
            Err(error) => {
                let words = error.words();
                meeting.failed.get_or_insert(words);
            }
        }
        let words = meeting.failed.clone();
        drop(meeting);
        self.changed.notify_all();
        if let Some(words) = words {
            self.tell_around(&words);
        }
        outcome
    }

    /// Says to those that this agent speaks with that nothing more comes of it.
    fn tell_around(&self, words: &str) {
        let request = Request::Failed {
            words: words.to_owned(),
        };
        let above = (self.rank > 0).then(|| parent_of(self.rank));
        for rank in above.into_iter().chain(self.below()) {
            // One that is gone needs no word.
            drop(self.ask(rank, &request, Duration::from_millis(500)));
        }
    }

    fn bring(
        &self,
        turn: u64,
        call: Call,
        mine: Vec<u8>,
        decide: impl FnOnce(Parts) -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let brought = self.await_below(call)?;
        let all = combine(call, (self.rank, mine), brought)?;
        if self.rank == 0 {
            return finish(call, all, self.size(), decide);
        }
        self.bring_up(turn, call, all)
    }

    /// What those below brought, once all have.
    fn await_below(&self, call: Call) -> Result<Vec<Vec<u8>>> {
        let below: Vec<u32> = self.below().collect();
        let began = Instant::now();
        let mut seen: BTreeMap<u32, Instant> = below.iter().map(|rank| (*rank, began)).collect();
        let mut look = began + LOOK_AFTER;
        let mut meeting = self.lock();
        loop {
            if let Some(words) = &meeting.failed {
                return Err(Error::new(ErrorKind::PeerFailed, words.clone()));
            }
            if below.iter().all(|rank| meeting.brought.contains_key(rank)) {
                return taken(call, std::mem::take(&mut meeting.brought));
            }
            let left = look.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                let waited = self.changed.wait_timeout(meeting, left);
                meeting = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let missing: Vec<u32> = below
                .iter()
                .copied()
                .filter(|rank| !meeting.brought.contains_key(rank))
                .collect();
            drop(meeting);
            for rank in missing {
                match self.ask(rank, &Request::Ping, SLICE) {
                    Ok(_) => drop(seen.insert(rank, Instant::now())),
                    Err(error) => {
                        let since = seen.get(&rank).copied().unwrap_or(began);
                        self.give_up(rank, since, error)?;
                    }
                }
            }
            look = Instant::now() + LOOK_AFTER;
            meeting = self.lock();
        }
    }

    /// An error if an agent that did not answer is not tried again.
    fn give_up(&self, rank: u32, since: Instant, error: Error) -> Result<()> {
        let silent = since.elapsed();
        let limit = match error.kind() {
            ErrorKind::PeerUnreachable => self.limit().min(GONE_AFTER),
            // One that knows no other yet says that it has no time.
            ErrorKind::Timeout => self.limit(),
            _ => Duration::ZERO,
        };
        if silent < limit {
            return Ok(());
        }
        let host = self.host(rank);
        let context = format!(
            "the routing agent on {host} is gone: nothing from it for {:.1} s",
            silent.as_secs_f64()
        );
        Err(Error::caused(ErrorKind::PeerFailed, context, error))
    }

    fn bring_up(&self, turn: u64, call: Call, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let parent = parent_of(self.rank);
        let request = Request::Bring {
            from: self.rank,
            turn,
            call,
            bytes,
        };
        let mut since = Instant::now();
        loop {
            match self.ask(parent, &request, SLICE * 2) {
                Ok((Answer::Outcome(bytes), _)) => return Ok(bytes),
                Ok((Answer::NotYet, _)) => since = Instant::now(),
                Ok(_) => {
                    let context = format!("agent {parent} answered something else");
                    return Err(Error::new(ErrorKind::Internal, context));
                }
                Err(error) if error.kind() == ErrorKind::PeerFailed => return Err(error),
                Err(error) => {
                    self.give_up(parent, since, error)?;
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
            if let Some(words) = &self.lock().failed {
                return Err(Error::new(ErrorKind::PeerFailed, words.clone()));
            }
        }
    }

    /// All agents get what the first makes of what each brings, by rank.
    pub(super) fn decide(
        &self,
        mine: Vec<u8>,
        decide: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let decide = |parts: Parts| decide(parts.into_iter().map(|(_, bytes)| bytes).collect());
        self.meet(Call::Decide, mine, decide)
    }

    /// The last call is over: stays until those below have its outcome.
    pub(super) fn leave(&self) {
        let until = Instant::now() + FAREWELL;
        let mut meeting = self.lock();
        while meeting.failed.is_none() && self.below().any(|rank| !meeting.said_bye.contains(&rank))
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(meeting, left);
            meeting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(meeting);
        if self.rank > 0 {
            let bye = Request::Bye { from: self.rank };
            // One that is gone waits for nobody.
            drop(self.ask(parent_of(self.rank), &bye, FAREWELL));
        }
    }
}

fn different() -> Error {
    let context = "routing agents made different calls";
    Error::new(ErrorKind::Internal, context)
}

/// What was brought to a call, which all have to have made.
fn taken(call: Call, brought: BTreeMap<u32, (Call, Vec<u8>)>) -> Result<Vec<Vec<u8>>> {
    let each = brought.into_values().map(|(other, bytes)| {
        if other == call {
            Ok(bytes)
        } else {
            Err(different())
        }
    });
    each.collect()
}

fn values(bytes: &[u8]) -> impl Iterator<Item = i64> + '_ {
    bytes.chunks_exact(8).map(|chunk| {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        i64::from_le_bytes(word)
    })
}

/// What goes up of an agent's own part and those of the agents below it.
fn combine(call: Call, (rank, mine): (u32, Vec<u8>), brought: Vec<Vec<u8>>) -> Result<Vec<u8>> {
    match call {
        Call::Max => {
            let mut largest = mine;
            for other in brought {
                if other.len() != largest.len() {
                    return Err(different());
                }
                let both = values(&largest).zip(values(&other));
                let both: Vec<u8> = both
                    .flat_map(|(one, two)| one.max(two).to_le_bytes())
                    .collect();
                largest = both;
            }
            Ok(largest)
        }
        Call::Broadcast(root) if root == rank => Ok(mine),
        Call::Broadcast(_) => Ok(brought
            .into_iter()
            .find(|part| !part.is_empty())
            .unwrap_or_default()),
        Call::Allgather | Call::Gather(_) | Call::Decide => {
            let mut parts: Parts = vec![(rank, mine)];
            for other in brought {
                parts.extend(decode::<Carried>(&other)?.0.0);
            }
            encode(&Carried(parts))
        }
    }
}

/// Parts on their way.
#[derive(serde::Serialize, serde::Deserialize)]
struct Carried(Parts);

/// The outcome, at the first agent.
fn finish(
    call: Call,
    all: Vec<u8>,
    size: u32,
    decide: impl FnOnce(Parts) -> Result<Vec<u8>>,
) -> Result<Vec<u8>> {
    if matches!(call, Call::Max | Call::Broadcast(_)) {
        return Ok(all);
    }
    let (Carried(mut parts), _) = decode(&all)?;
    parts.sort_by_key(|(rank, _)| *rank);
    if to_u64(parts.len()) != u64::from(size) {
        return Err(different());
    }
    match call {
        Call::Allgather => Ok(parts.into_iter().flat_map(|(_, bytes)| bytes).collect()),
        Call::Decide | Call::Gather(0) => decide(parts),
        _ => encode(&Carried(parts)),
    }
}

/// The agents as a session sees them.
pub(super) struct Communicating(pub(super) Arc<Circle>);

impl Communicating {
    fn wrong<T>(context: String) -> Result<T> {
        Err(Error::new(ErrorKind::InvalidArgument, context))
    }

    fn check_root(&self, root: u32) -> Result<()> {
        if root < self.0.size() {
            return Ok(());
        }
        let size = self.0.size();
        Self::wrong(format!("rank {root} is the root of a job of {size} ranks"))
    }
}

impl Communicator for Communicating {
    fn rank(&self) -> u32 {
        self.0.rank
    }
    fn size(&self) -> u32 {
        self.0.size()
    }
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        let gathered = self
            .0
            .meet(Call::Allgather, mine.to_vec(), |_| Ok(Vec::new()))?;
        if gathered.len() != all.len() {
            let (found, room) = (gathered.len(), all.len());
            return Self::wrong(format!("allgather of {found} bytes into {room}"));
        }
        all.copy_from_slice(&gathered);
        Ok(())
    }
    fn allreduce_max(&self, own: &mut [i64]) -> Result<()> {
        let mine = own.iter().flat_map(|value| value.to_le_bytes()).collect();
        let largest = self.0.meet(Call::Max, mine, |_| Ok(Vec::new()))?;
        if largest.len() != own.len() * 8 {
            return Err(different());
        }
        for (value, largest) in own.iter_mut().zip(values(&largest)) {
            *value = largest;
        }
        Ok(())
    }
    fn barrier(&self) -> Result<()> {
        self.0
            .meet(Call::Max, Vec::new(), |_| Ok(Vec::new()))
            .map(drop)
    }
    fn gather(&self, mine: &[u8], root: u32) -> Result<Vec<Vec<u8>>> {
        self.check_root(root)?;
        let mut kept = Vec::new();
        let keep = |parts: Parts| {
            kept = parts;
            Ok(Vec::new())
        };
        let gathered = self.0.meet(Call::Gather(root), mine.to_vec(), keep)?;
        if root == self.0.rank && root != 0 {
            kept = decode::<Carried>(&gathered)?.0.0;
        }
        Ok(kept.into_iter().map(|(_, bytes)| bytes).collect())
    }
    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<()> {
        self.check_root(root)?;
        let mine = if root == self.0.rank {
            bytes.to_vec()
        } else {
            Vec::new()
        };
        let told = self
            .0
            .meet(Call::Broadcast(root), mine, |_| Ok(Vec::new()))?;
        if told.len() != bytes.len() {
            return Err(different());
        }
        bytes.copy_from_slice(&told);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
