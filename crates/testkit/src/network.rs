// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a network of endpoints in one process, without sockets, threads or a clock.
//! In from: tests that run several nodes. Out to: handlers and exposures of the simulated nodes.
//! Invariants: an operation runs to its end on the thread of its caller, so a run that one thread
//! drives is the same each time; time passes only by latency and by limits that were reached; no
//! lock is held while a handler, a device or a hook runs.

mod one_sided;
mod operation;
#[cfg(test)]
mod tests;
mod traffic;

pub use operation::{Action, Attempt, Fault};
pub use traffic::Traffic;

use crate::seeded::Seeded;
use backstay_base::clock::Deadline;
use backstay_base::{Error, ErrorKind, Result};
use backstay_format::FingerprintKey;
use backstay_format::width::to_u64;
use backstay_net::{
    Asker, Described, Endpoint, Exposed, ExposureId, Exposures, Handler, Peer, Span, check_message,
    check_read, check_spans, read_past, remote_error, verify, words,
};
use one_sided::{Past, Registered};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use traffic::Carried;

type Hook = Arc<dyn Fn(&Attempt) -> Option<Fault> + Send + Sync>;

/// One node: its present start.
#[derive(Default)]
struct Node {
    start: u64,
    up: bool,
    stalled: bool,
    handler: Option<Arc<dyn Handler>>,
    exposures: Arc<Exposures>,
    traffic: Traffic,
}

struct State {
    nodes: BTreeMap<String, Node>,
    cuts: BTreeSet<(String, String)>,
    operations: u64,
    faults: BTreeMap<Fault, u64>,
    planned: BTreeMap<u64, Fault>,
    random: Option<(u64, u64)>,
    seeded: Seeded,
    latency: Duration,
    elapsed: Duration,
    hook: Option<Hook>,
    /// Sealed bytes are read past their owners.
    one_sided: bool,
    registered: Registered,
}

/// A simulated network. Copies are handles of the same network.
///
/// A node is named by its first [`Self::endpoint`]; a second one of the same name is the node started
/// again: a new start that exposes and handles nothing yet, in which the handles of the former one are dead.
#[derive(Clone)]
pub struct SimNetwork {
    state: Arc<Mutex<State>>,
}

impl SimNetwork {
    /// A network without nodes and faults, whose random choices are those of `seed`.
    pub fn new(seed: u64) -> Self {
        let state = State {
            nodes: BTreeMap::new(),
            cuts: BTreeSet::new(),
            operations: 0,
            faults: BTreeMap::new(),
            planned: BTreeMap::new(),
            random: None,
            seeded: Seeded::of(&[seed, 0x6e65_7477]),
            latency: Duration::from_micros(20),
            elapsed: Duration::ZERO,
            hook: None,
            one_sided: false,
            registered: Registered::default(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the node `name`, or starts it again.
    pub fn endpoint(&self, name: &str) -> Arc<SimEndpoint> {
        let mut state = self.lock();
        let node = state.nodes.entry(name.to_owned()).or_default();
        node.exposures.clear();
        *node = Node {
            start: node.start + 1,
            up: true,
            traffic: std::mem::take(&mut node.traffic),
            ..Node::default()
        };
        Arc::new(SimEndpoint {
            network: self.clone(),
            name: name.to_owned(),
            start: node.start,
        })
    }

    /// Cuts the link between two nodes, in both directions.
    pub fn cut(&self, one: &str, other: &str) {
        self.lock().cuts.insert(link(one, other));
    }
    /// Mends the link between two nodes.
    pub fn mend(&self, one: &str, other: &str) {
        self.lock().cuts.remove(&link(one, other));
    }
    /// Cuts the links between `name` and every other node there is.
    pub fn isolate(&self, name: &str) {
        let mut state = self.lock();
        let links: Vec<_> = state.nodes.keys().map(|other| link(name, other)).collect();
        state.cuts.extend(links);
    }
    /// Mends all links.
    pub fn mend_all(&self) {
        self.lock().cuts.clear();
    }
    /// Ends the start of a node: what it exposed and handled is gone, its own calls fail.
    pub fn take_down(&self, name: &str) {
        if let Some(node) = self.lock().nodes.get_mut(name) {
            node.exposures.clear();
            (node.up, node.handler) = (false, None);
        }
    }
    /// Whether the node starts.
    pub fn is_up(&self, name: &str) -> bool {
        self.lock().nodes.get(name).is_some_and(|node| node.up)
    }
    /// From now on the node answers nobody: every operation to it reaches its limit.
    pub fn stall(&self, name: &str) {
        self.set_stalled(name, true);
    }
    /// The node answers again.
    pub fn resume(&self, name: &str) {
        self.set_stalled(name, false);
    }

    fn set_stalled(&self, name: &str, stalled: bool) {
        if let Some(node) = self.lock().nodes.get_mut(name) {
            node.stalled = stalled;
        }
    }

    /// The `nth` operation from now (1 is the next) has `fault`.
    pub fn plan(&self, nth: u64, fault: Fault) {
        let mut state = self.lock();
        let number = state.operations + nth.max(1);
        state.planned.insert(number, fault);
    }
    /// From now on each operation has a fault in `numerator` of `denominator` cases; none in 0 of any.
    pub fn set_random_faults(&self, numerator: u64, denominator: u64) {
        self.lock().random = Some((numerator, denominator));
    }
    /// Has `hook` called before each operation, on the thread that begins it. It may use the network,
    /// to take a node down among others, and may return a fault for this operation.
    pub fn set_hook(&self, hook: impl Fn(&Attempt) -> Option<Fault> + Send + Sync + 'static) {
        self.lock().hook = Some(Arc::new(hook));
    }
    /// Has no hook called any more.
    pub fn clear_hook(&self) {
        self.lock().hook = None;
    }
    /// What each operation takes; an operation of which the limit is shorter reaches it.
    pub fn set_latency(&self, latency: Duration) {
        self.lock().latency = latency;
    }
    /// The request of `attempt`, which its hook may have handled once more by calling what is returned,
    /// now or later, in another thread: if the node that it goes to is still in the start that it has now.
    pub fn once_more(&self, attempt: &Attempt) -> impl FnOnce() + Send + use<> {
        let (network, to) = (self.clone(), attempt.to.clone());
        let start = self.lock().nodes.get(&to).map(|node| node.start);
        let action = attempt.action.clone();
        move || {
            let handler = {
                let state = network.lock();
                let node = state.nodes.get(&to);
                let node =
                    node.filter(|node| node.up && !node.stalled && Some(node.start) == start);
                node.and_then(|node| node.handler.clone())
            };
            if let (Action::Call { request }, Some(handler)) = (&action, handler) {
                // Nobody waits for the answer.
                drop(handle(&*handler, request, REPEATED_WITHIN));
            }
        }
    }
    /// From now on sealed bytes are read past their owners, which take no part in it, and through them only where
    /// that fails.
    pub fn read_past_owners(&self) {
        self.lock().one_sided = true;
    }
    /// Reads past owners that came, and that had to be done again through them.
    pub fn reads_past(&self) -> [u64; 2] {
        self.lock().registered.reads
    }
    /// Operations begun so far.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }
    /// How many operations a plan or chance gave each fault so far; those that a hook gave are not counted.
    pub fn faults(&self) -> BTreeMap<Fault, u64> {
        self.lock().faults.clone()
    }
    /// What the node sent and received.
    pub fn traffic(&self, name: &str) -> Traffic {
        let state = self.lock();
        let node = state.nodes.get(name);
        node.map_or_else(Traffic::default, |node| node.traffic.clone())
    }
    /// Counts anew.
    pub fn clear_traffic(&self) {
        let mut state = self.lock();
        let nodes = state.nodes.values_mut();
        nodes.for_each(|node| node.traffic = Traffic::default());
    }
    /// Time that passed in the network.
    pub fn elapsed(&self) -> Duration {
        self.lock().elapsed
    }
    /// Lets time pass.
    pub fn advance(&self, time: Duration) {
        self.lock().elapsed += time;
    }
}

impl Debug for SimNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("SimNetwork")
            .field("nodes", &state.nodes.keys())
            .field("cuts", &state.cuts)
            .field("operations", &state.operations)
            .finish_non_exhaustive()
    }
}

fn link(one: &str, other: &str) -> (String, String) {
    let (low, high) = if one <= other {
        (one, other)
    } else {
        (other, one)
    };
    (low.to_owned(), high.to_owned())
}

impl State {
    fn fault(&mut self, number: u64, hooked: Option<Fault>) -> Option<Fault> {
        let planned = self.planned.remove(&number);
        let random = self.random.and_then(|(numerator, denominator)| {
            let due = self.seeded.chance(numerator, denominator);
            due.then(|| Fault::ALL[self.seeded.index(Fault::ALL.len())])
        });
        if let (None, Some(fault)) = (hooked, planned.or(random)) {
            *self.faults.entry(fault).or_default() += 1;
        }
        hooked.or(planned).or(random)
    }

    fn is_alive(&self, name: &str, start: u64) -> bool {
        let node = self.nodes.get(name);
        node.is_some_and(|node| node.up && node.start == start)
    }

    /// Counts an operation that arrived: for who began it, and for whom it went to.
    fn count(&mut self, from: &str, to: &str, bytes: Carried) {
        if from == to {
            return;
        }
        let mut note = |name: &str, peer: &str, is_sender: bool| {
            if let Some(node) = self.nodes.get_mut(name) {
                node.traffic.note(peer, bytes, is_sender);
            }
        };
        note(from, to, true);
        note(to, from, false);
    }

    fn is_cut(&self, one: &str, other: &str) -> bool {
        one != other && self.cuts.contains(&link(one, other))
    }
}

/// One node of a [`SimNetwork`], in one of its starts.
pub struct SimEndpoint {
    network: SimNetwork,
    name: String,
    start: u64,
}

/// A request that arrived: where, in which start of it, and what happens to the answer.
struct Arrived {
    start: u64,
    handler: Option<Arc<dyn Handler>>,
    exposures: Arc<Exposures>,
    fault: Option<Fault>,
    flip: u64,
    /// A node that stalls does not do it.
    needs_owner: bool,
}

impl SimEndpoint {
    /// The network it belongs to.
    pub fn network(&self) -> &SimNetwork {
        &self.network
    }

    fn unreachable(peer: &Peer, why: &str) -> Error {
        Error::new(ErrorKind::PeerUnreachable, format!("{peer}: {why}"))
    }

    fn too_late(&self, peer: &Peer, within: Duration) -> Error {
        self.network.advance(within);
        let context = format!("{peer} did not answer within {within:?}");
        Error::new(ErrorKind::Timeout, context)
    }

    /// Brings a request to the peer: the first half of an operation.
    fn arrive(
        &self,
        peer: &Peer,
        action: impl FnOnce() -> Action,
        carried: Carried,
        within: Duration,
    ) -> Result<Arrived> {
        let to = peer.address.strip_prefix(ADDRESS).ok_or_else(|| {
            let context = format!("{peer}: an address of the simulated network begins {ADDRESS}");
            Error::new(ErrorKind::InvalidArgument, context)
        })?;
        let (number, hook) = {
            let mut state = self.network.lock();
            state.operations += 1;
            (state.operations, state.hook.clone())
        };
        let hooked = hook.and_then(|hook| {
            hook(&Attempt {
                number,
                from: self.name.clone(),
                to: to.to_owned(),
                action: action(),
            })
        });
        let mut state = self.network.lock();
        let fault = state.fault(number, hooked);
        if !state.is_alive(&self.name, self.start) {
            return Err(Self::unreachable(peer, "this endpoint is shut down"));
        }
        if state.is_cut(&self.name, to) || fault == Some(Fault::Unreachable) {
            return Err(Self::unreachable(peer, "the link is cut"));
        }
        let flip = state.seeded.next_u64();
        let latency = state.latency;
        let needs_owner = !matches!(carried, Carried::Past(_));
        let node = state.nodes.get(to).filter(|node| node.up);
        let Some(node) = node else {
            return Err(Self::unreachable(peer, "connection refused"));
        };
        let arrived = Arrived {
            start: node.start,
            handler: node.handler.clone(),
            exposures: Arc::clone(&node.exposures),
            fault,
            flip,
            needs_owner,
        };
        let is_late = node.stalled && needs_owner || fault == Some(Fault::Lost) || latency > within;
        if !is_late {
            state.elapsed += latency;
            state.count(&self.name, to, carried);
        }
        drop(state);
        if is_late {
            return Err(self.too_late(peer, within));
        }
        Ok(arrived)
    }

    /// Whether the answer comes back: the second half of an operation.
    fn come_back(&self, peer: &Peer, arrived: &Arrived, within: Duration) -> Result<()> {
        let to = peer.address.strip_prefix(ADDRESS).unwrap_or_default();
        let state = self.network.lock();
        if !state.is_alive(&self.name, self.start) {
            return Err(Self::unreachable(peer, "this endpoint is shut down"));
        }
        let alive = state.is_alive(to, arrived.start);
        if !alive || state.is_cut(&self.name, to) || arrived.fault == Some(Fault::AnswerBroken) {
            return Err(Self::unreachable(peer, "the connection ended"));
        }
        let stalled = state.nodes.get(to).is_some_and(|node| node.stalled);
        drop(state);
        if stalled && arrived.needs_owner || arrived.fault == Some(Fault::AnswerLost) {
            return Err(self.too_late(peer, within));
        }
        Ok(())
    }
}

/// How long a request may take that was repeated later.
const REPEATED_WITHIN: Duration = Duration::from_secs(4);

fn handle(handler: &dyn Handler, request: &[u8], within: Duration) -> Result<Vec<u8>> {
    let handled = catch_unwind(AssertUnwindSafe(|| handler.handle(request, within)));
    handled.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a panic")))
}

/// What a range is counted as in a question for what its owner knows of it.
const SPAN_BYTES: u64 = 16;
/// And what the owner knows of it.
const DESCRIBED_BYTES: u64 = 36;

/// How the addresses of simulated nodes begin.
const ADDRESS: &str = "sim:";
/// The secret of every simulated job.
const SECRET: [u8; 32] = [7; 32];

impl Debug for SimEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimEndpoint({}, start {})", self.name, self.start)
    }
}

impl SimEndpoint {
    fn is_one_sided(&self) -> bool {
        self.network.lock().one_sided
    }

    /// Changes the node while it is in the start of this handle.
    fn change(&self, change: impl FnOnce(&mut Node)) {
        let mut state = self.network.lock();
        if state.is_alive(&self.name, self.start)
            && let Some(node) = state.nodes.get_mut(&self.name)
        {
            change(node);
        }
    }
}

impl Endpoint for SimEndpoint {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn address(&self) -> String {
        format!("{ADDRESS}{}", self.name)
    }

    fn expose(&self, id: ExposureId, what: Exposed) {
        self.change(|node| node.exposures.insert(id, what));
    }

    fn withdraw(&self, id: ExposureId) {
        self.change(|node| node.exposures.remove(id));
    }

    fn serve(&self, handler: Arc<dyn Handler>) {
        self.change(|node| node.handler = Some(handler));
    }

    fn call(&self, peer: &Peer, request: &[u8], within: Duration) -> Result<Vec<u8>> {
        check_message("request", peer, request.len())?;
        let action = || Action::Call {
            request: request.to_vec(),
        };
        let carried = Carried::Request(to_u64(request.len()));
        let arrived = self.arrive(peer, action, carried, within)?;
        let answer = match &arrived.handler {
            None => Err(Error::new(ErrorKind::Unsupported, "handles no calls yet")),
            Some(handler) => {
                if arrived.fault == Some(Fault::Repeated) {
                    drop(handle(&**handler, request, within));
                }
                handle(&**handler, request, within)
            }
        };
        self.come_back(peer, &arrived, within)?;
        if arrived.fault == Some(Fault::Corrupt) {
            return Err(Self::unreachable(peer, "the answer is none"));
        }
        if let Ok(answer) = &answer {
            let to = peer.address.strip_prefix(ADDRESS).unwrap_or_default();
            let carried = Carried::Answer(to_u64(answer.len()));
            self.network.lock().count(&self.name, to, carried);
        }
        match answer {
            Ok(answer) => check_message("answer", peer, answer.len()).map(|()| answer),
            Err(error) => Err(remote_error(peer, error.kind(), &words(&error))),
        }
    }

    fn describe(
        &self,
        peer: &Peer,
        exposure: ExposureId,
        (spans, afresh): (&[Span], bool),
        within: Duration,
    ) -> Result<Vec<Described>> {
        check_spans(peer, spans)?;
        let action = || Action::Describe {
            exposure,
            spans: spans.to_vec(),
        };
        let bytes = SPAN_BYTES * to_u64(spans.len());
        let arrived = self.arrive(peer, action, Carried::Request(bytes), within)?;
        // What it takes to answer is no time of this network.
        let unlimited = Deadline::after(Duration::MAX);
        let to = peer.address.strip_prefix(ADDRESS).unwrap_or_default();
        let way = Past::of(&self.network, to, arrived.start);
        let key = FingerprintKey::derive(&SECRET);
        let asker = Asker {
            same_machine: false,
            one_sided: self.is_one_sided().then_some(&way),
            key,
        };
        let exposures = &arrived.exposures;
        let described = exposures.describe(asker, exposure, (spans, afresh), &unlimited);
        self.come_back(peer, &arrived, within)?;
        if arrived.fault == Some(Fault::Corrupt) {
            return Err(Self::unreachable(peer, "the description is none"));
        }
        let described =
            described.map_err(|error| remote_error(peer, error.kind(), &words(&error)))?;
        let bytes = DESCRIBED_BYTES * to_u64(spans.len());
        let mut state = self.network.lock();
        state.count(&self.name, to, Carried::Answer(bytes));
        drop(state);
        Ok(Described::all(exposure, spans, described, key))
    }

    fn read(
        &self,
        peer: &Peer,
        range: &Described,
        into: &mut [u8],
        within: Duration,
    ) -> Result<()> {
        check_read(range, into)?;
        let way = Past::of(&self.network, &self.name, self.start);
        let unlimited = Deadline::after(Duration::MAX);
        if let Some(Ok(())) = read_past(&way, range, into, &unlimited) {
            return Ok(());
        }
        let (exposure, span) = (range.exposure, range.span);
        let action = || Action::Read { exposure, span };
        let carried = Carried::Pulled(span.length);
        let arrived = self.arrive(peer, action, carried, within)?;
        let found = arrived.exposures.find(exposure, span);
        let read = found.and_then(|exposed| exposed.read_at(into, span.offset));
        self.come_back(peer, &arrived, within)?;
        read.map_err(|error| remote_error(peer, error.kind(), &words(&error)))?;
        if arrived.fault == Some(Fault::Corrupt) && !into.is_empty() {
            let place = Seeded::new(arrived.flip).index(into.len());
            into[place] ^= 1 << (arrived.flip % 8);
            if range.fingerprint.is_none() {
                return Err(Self::unreachable(peer, "a piece with another MAC"));
            }
        }
        match range.fingerprint {
            Some(known) => verify(self, peer, range, known.key.of(into), within),
            None => Ok(()),
        }
    }

    /// Without a look at the clock: time passes as the network says.
    fn pull(
        &self,
        peer: &Peer,
        exposure: ExposureId,
        offset: u64,
        into: &mut [u8],
        within: Duration,
    ) -> Result<()> {
        let length = to_u64(into.len());
        let spans = [Span { offset, length }];
        for range in self.describe(peer, exposure, (&spans, false), within)? {
            self.read(peer, &range, into, within)?;
        }
        Ok(())
    }

    fn shut_down(&self) {
        if self.network.lock().is_alive(&self.name, self.start) {
            self.network.take_down(&self.name);
        }
    }
}
