// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: agents of a simulated job that are processes of their own: each runs what `backstay agent` runs,
//! in threads, and goes on, or dies, apart from the ranks.
//! In: the fate that each start has for them. Out: what they protected when no rank was left.
//! Invariants: of one that died no write arrives and no message; it has its place no more; who knows the
//! secret of one start is not listened to in another.

use crate::counts;
use crate::invariants::{GOES_ON, broken};
use crate::ledger::Ledger;
use crate::scenario::{AgentTrigger, Fate, Scenario};
use crate::world::{World, node_name, unlock};
use backstay::agent::{Ended, ProcessOptions, Surroundings, drains, run_on};
use backstay::{CheckpointId, Error, ErrorKind, Result};
use backstay_base::io::fault::{self, Watch};
use backstay_net::{Described, Endpoint, Exposed, ExposureId, Handler, Peer, Span, TcpOptions};
use backstay_parity::agent::local::AgentClient;
use backstay_store::control::{CONTROL_FILE, ControlGlance};
use backstay_testkit::network::{SimEndpoint, SimNetwork};
use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// No kernel has processes of such numbers.
const IDS_FROM: u32 = 1 << 30;
/// Longest wait for one to take its place, or to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest wait for what was committed to be protected.
const PROTECTED_WITHIN: Duration = Duration::from_secs(20);

/// All that live, by their numbers, for leaders that end one.
static PROCESSES: Mutex<BTreeMap<i32, Weak<Body>>> = Mutex::new(BTreeMap::new());

/// The start that each endpoint was opened in last.
type Starts = Arc<Mutex<BTreeMap<String, usize>>>;

/// An agent as others see it.
struct Body {
    node: usize,
    id: u32,
    /// The folder of its node's store.
    home: PathBuf,
    alive: AtomicBool,
    /// Ends its threads.
    stop: AtomicBool,
    /// What its node is in.
    world: Mutex<Weak<World>>,
    network: SimNetwork,
    dies: Mutex<Option<AgentTrigger>>,
    requests: AtomicU64,
    writes: AtomicU64,
}

struct Process {
    body: Arc<Body>,
    thread: JoinHandle<Result<Ended>>,
    _watch: Watch,
}

/// The agents that live.
pub(crate) struct Agents {
    root: PathBuf,
    processes: BTreeMap<usize, Process>,
    network: Option<SimNetwork>,
    started: u32,
    start: Arc<AtomicU64>,
    starts: Starts,
}

impl Body {
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }

    /// It dies now.
    fn die(&self) {
        if !self.alive.swap(false, Ordering::SeqCst) {
            return;
        }
        self.network.take_down(&node_name(self.node));
        let place = self.home.join("agent.backstay");
        unlock(|path| path == place);
        self.stop.store(true, Ordering::SeqCst);
    }

    /// It dies now if its time has come by so many of these; whether it is dead.
    fn is_dead_at(&self, trigger: fn(u64) -> AgentTrigger, count: &AtomicU64) -> bool {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        if self.is_alive() && *self.dies.lock().unwrap() == Some(trigger(number)) {
            counts::one("agents that died alone");
            if let Some(world) = self.world.lock().unwrap().upgrade() {
                world.lose_agent();
            }
            self.die();
        }
        !self.is_alive()
    }

    fn before_access(&self, attempt: &fault::Attempt<'_>) -> Option<fault::Fault> {
        const EIO: i32 = 5;
        let writes = attempt.access != fault::Access::Read;
        if writes && self.is_dead_at(AgentTrigger::Write, &self.writes) {
            // That a sync failed it would tell the ranks, which the dead do not.
            let syncs = attempt.access == fault::Access::Sync;
            return (!syncs).then_some(fault::Fault::Fails(EIO));
        }
        let world = self.world.lock().unwrap().upgrade();
        world?.before_access_of_agent(self.node, attempt)
    }
}

impl Process {
    /// Waits until its threads are at their end, and says how it ended.
    fn join(self) -> std::result::Result<Result<Ended>, String> {
        let begun = Instant::now();
        while !self.thread.is_finished() {
            if begun.elapsed() > PATIENCE {
                let text = format!("the agent of node {} does not end", self.body.node);
                return Err(broken(GOES_ON, text));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let ended = self.thread.join();
        ended.map_err(|_| format!("the agent of node {} panicked", self.body.node))
    }
}

/// A leader that ends an agent process ends the one of this number.
fn end_by_number(id: i32) -> bool {
    let body = PROCESSES.lock().unwrap().get(&id).and_then(Weak::upgrade);
    let Some(body) = body else { return false };
    counts::one("agents that a leader ended");
    body.die();
    // Those of the former start's ranks are gone, and the new one has not begun.
    let control = body.home.join(CONTROL_FILE);
    unlock(|path| path == control);
    true
}

impl Agents {
    pub(crate) fn new(root: &Path) -> Self {
        fault::end_processes_by(end_by_number);
        Self {
            root: root.to_owned(),
            processes: BTreeMap::new(),
            network: None,
            started: 0,
            start: Arc::default(),
            starts: Starts::default(),
        }
    }

    /// The network of those that go on.
    pub(crate) fn network(&mut self) -> Option<SimNetwork> {
        self.processes.retain(|_, process| process.body.is_alive());
        if self.processes.is_empty() {
            self.network = None;
        }
        self.network.clone()
    }

    /// Whether any takes part in a start.
    pub(crate) fn take_part(&self, scenario: &Scenario, start: usize) -> bool {
        !self.processes.is_empty() || scenario.fate(start).is_some()
    }

    /// An endpoint of a rank.
    pub(crate) fn endpoint(&self, network: &SimNetwork, name: &str, start: usize) -> Arc<OfStart> {
        OfStart::open(network, name, (start, &self.starts), None)
    }

    /// Starts those of a start that are not there yet.
    pub(crate) fn start(
        &mut self,
        scenario: &Scenario,
        start: usize,
        world: &Arc<World>,
    ) -> std::result::Result<(), String> {
        self.start.store(start as u64, Ordering::SeqCst);
        for process in self.processes.values() {
            *process.body.world.lock().unwrap() = Arc::downgrade(world);
        }
        let Some(fate) = scenario.fate(start) else {
            return Ok(());
        };
        self.network = Some(world.network.clone());
        for node in scenario.starts[start].nodes() {
            if !self.processes.contains_key(&node) {
                // What is done to the network before it has an endpoint is done to it.
                world.network.endpoint(&node_name(node));
                self.start_one(node, world)?;
            }
            if let Fate::OneDies(victim, trigger) = fate
                && victim == node
                && let Some(process) = self.processes.get(&node)
            {
                process.body.requests.store(0, Ordering::SeqCst);
                process.body.writes.store(0, Ordering::SeqCst);
                *process.body.dies.lock().unwrap() = Some(trigger);
            }
        }
        Ok(())
    }

    fn start_one(&mut self, node: usize, world: &Arc<World>) -> std::result::Result<(), String> {
        let io = |error: std::io::Error| format!("starting the agent of node {node}: {error}");
        let name = node_name(node);
        let home = world.folder.join(&name).join("job").join(&name);
        let mut builder = std::fs::DirBuilder::new();
        let builder = builder.recursive(true).mode(0o700);
        builder.create(&home).map_err(io)?;
        let id = IDS_FROM + self.started;
        self.started += 1;
        // Its files have names of their own, by which they are told from those of the ranks.
        let folder = self.root.join(format!("agent-{id}"));
        std::os::unix::fs::symlink(&home, &folder).map_err(io)?;
        let body = Arc::new(Body {
            node,
            id,
            home,
            alive: AtomicBool::new(true),
            stop: AtomicBool::new(false),
            world: Mutex::new(Arc::downgrade(world)),
            network: world.network.clone(),
            dies: Mutex::default(),
            requests: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        });
        let number = i32::try_from(id).unwrap();
        PROCESSES
            .lock()
            .unwrap()
            .insert(number, Arc::downgrade(&body));
        let files = Arc::clone(&body);
        let watch = fault::watch(&folder, move |attempt| files.before_access(attempt));
        let thread = self.spawn(Arc::clone(&body), folder);
        let begun = Instant::now();
        while AgentClient::find(&body.home).is_none() {
            if thread.is_finished() || begun.elapsed() > PATIENCE {
                return Err(broken(GOES_ON, format!("no agent on node {node}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let process = Process {
            body,
            thread,
            _watch: watch,
        };
        self.processes.insert(node, process);
        Ok(())
    }

    fn spawn(&self, body: Arc<Body>, folder: PathBuf) -> JoinHandle<Result<Ended>> {
        let (start, starts) = (Arc::clone(&self.start), Arc::clone(&self.starts));
        std::thread::spawn(move || {
            let options = ProcessOptions {
                directory: body.home.clone(),
                linger: Duration::from_secs(3600),
                over: None,
            };
            let open = |_: TcpOptions| -> Result<Arc<dyn Endpoint>> {
                let start = usize::try_from(start.load(Ordering::SeqCst)).unwrap_or(0);
                let name = node_name(body.node);
                let of = Some(Arc::clone(&body));
                Ok(OfStart::open(&body.network, &name, (start, &starts), of))
            };
            let around = Surroundings {
                id: body.id,
                open_endpoint: &open,
                drains: &drains,
                folder: &|_| folder.clone(),
            };
            run_on(&options, &body.stop, &around)
        })
    }

    /// No rank is left to go on without one: none dies alone any more.
    pub(crate) fn disarm(&self) {
        for process in self.processes.values() {
            *process.body.dies.lock().unwrap() = None;
        }
    }

    /// They die, all of them or that of a node.
    pub(crate) fn die(&mut self, node: Option<usize>) -> std::result::Result<(), String> {
        let dying = |at: &usize| node.is_none_or(|node| node == *at);
        for (_, process) in self.processes.iter().filter(|(at, _)| dying(at)) {
            process.body.die();
        }
        self.bury()
    }

    /// Waits for the threads of those that died.
    fn bury(&mut self) -> std::result::Result<(), String> {
        let dead = |process: &Process| !process.body.is_alive() || process.thread.is_finished();
        let at: Vec<usize> = self
            .processes
            .iter()
            .filter(|(_, process)| dead(process))
            .map(|(at, _)| *at)
            .collect();
        for node in at {
            if let Some(process) = self.processes.remove(&node) {
                process.body.die();
                drop(process.join()?);
            }
        }
        Ok(())
    }

    /// The ranks said goodbye.
    pub(crate) fn part(
        &mut self,
        nodes: impl Iterator<Item = usize>,
    ) -> std::result::Result<(), String> {
        for node in nodes {
            let Some(process) = self.processes.remove(&node) else {
                continue;
            };
            if !process.body.is_alive() {
                drop(process.join()?);
                continue;
            }
            match process.join()? {
                Ok(Ended::JobOver) => {}
                other => {
                    let text = format!("the agent of node {node}, whose job is over: {other:?}");
                    return Err(broken(GOES_ON, text));
                }
            }
        }
        self.bury()
    }

    /// No rank is left, and the network is well: what was committed last is protected all the same. False
    /// where nothing is known to be.
    pub(crate) fn finish(
        &mut self,
        nodes: &[usize],
        ledger: &Ledger,
    ) -> std::result::Result<bool, String> {
        let is_alive = |node: &usize| {
            let process = self.processes.get(node);
            process.is_some_and(|process| process.body.is_alive())
        };
        let Some((id, step)) = ledger.committed().filter(|_| nodes.iter().all(is_alive)) else {
            return Ok(false);
        };
        let protected = |node: &usize| {
            let control = self.processes[node].body.home.join(CONTROL_FILE);
            let glance = ControlGlance::at(&control);
            glance.map_or(CheckpointId::default(), |glance| glance.protected_in_group)
        };
        let begun = Instant::now();
        while !nodes.iter().all(|node| id.is_covered_by(protected(node))) {
            if begun.elapsed() > PROTECTED_WITHIN {
                let far: Vec<_> = nodes.iter().map(|node| (node, protected(node))).collect();
                let text = format!("{id} was committed, and agents protected only {far:?}");
                return Err(broken(GOES_ON, text));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        counts::one("checkpoints that agents protected when no rank was left");
        ledger.protected(id, step);
        Ok(true)
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        for process in self.processes.values() {
            process.body.die();
        }
    }
}

/// An endpoint of one start of the job: the secret of another opens nothing, as with TCP.
pub(crate) struct OfStart {
    inner: Arc<SimEndpoint>,
    start: usize,
    starts: Starts,
    /// The agent whose it is.
    body: Option<Arc<Body>>,
}

impl std::fmt::Debug for OfStart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.inner)
    }
}

impl OfStart {
    fn open(
        network: &SimNetwork,
        name: &str,
        (start, starts): (usize, &Starts),
        body: Option<Arc<Body>>,
    ) -> Arc<Self> {
        let inner = network.endpoint(name);
        if body.as_ref().is_some_and(|body| !body.is_alive()) {
            network.take_down(name);
        }
        starts.lock().unwrap().insert(name.to_owned(), start);
        Arc::new(Self {
            inner,
            start,
            starts: Arc::clone(starts),
            body,
        })
    }

    /// The peer as the network knows it, if it is of this start.
    fn find(&self, peer: &Peer) -> Result<Peer> {
        let refused = |why: &str| Error::new(ErrorKind::PeerUnreachable, format!("{peer}: {why}"));
        let known = peer.address.rsplit_once('#');
        let (address, start) = known.ok_or_else(|| refused("no address"))?;
        let name = address.strip_prefix("sim:").unwrap_or_default();
        let its = self.starts.lock().unwrap().get(name).copied();
        if start != self.start.to_string() || its != Some(self.start) {
            return Err(refused("it has another secret"));
        }
        self.check()?;
        Ok(Peer::new(peer.name.clone(), address.to_owned()))
    }

    fn check(&self) -> Result<()> {
        match &self.body {
            Some(body) if !body.is_alive() => {
                let context = "this agent is dead";
                Err(Error::new(ErrorKind::PeerUnreachable, context))
            }
            _ => Ok(()),
        }
    }

    fn count(&self) {
        if let Some(body) = &self.body {
            body.is_dead_at(AgentTrigger::Request, &body.requests);
        }
    }
}

impl Endpoint for OfStart {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn address(&self) -> String {
        format!("{}#{}", self.inner.address(), self.start)
    }
    fn expose(&self, id: ExposureId, what: Exposed) {
        self.inner.expose(id, what);
    }
    fn withdraw(&self, id: ExposureId) {
        self.inner.withdraw(id);
    }
    fn serve(&self, handler: Arc<dyn Handler>) {
        self.inner.serve(handler);
    }
    fn call(&self, peer: &Peer, request: &[u8], within: Duration) -> Result<Vec<u8>> {
        self.count();
        let answer = self.inner.call(&self.find(peer)?, request, within);
        self.check().and(answer)
    }
    fn describe(
        &self,
        peer: &Peer,
        exposure: ExposureId,
        spans: (&[Span], bool),
        within: Duration,
    ) -> Result<Vec<Described>> {
        self.count();
        let described = self
            .inner
            .describe(&self.find(peer)?, exposure, spans, within);
        self.check().and(described)
    }
    fn pull(
        &self,
        peer: &Peer,
        exposure: ExposureId,
        offset: u64,
        into: &mut [u8],
        within: Duration,
    ) -> Result<()> {
        self.count();
        let peer = self.find(peer)?;
        let pulled = self.inner.pull(&peer, exposure, offset, into, within);
        self.check().and(pulled)
    }
    fn read(
        &self,
        peer: &Peer,
        range: &Described,
        into: &mut [u8],
        within: Duration,
    ) -> Result<()> {
        self.count();
        let read = self.inner.read(&self.find(peer)?, range, into, within);
        self.check().and(read)
    }
    fn shut_down(&self) {
        self.inner.shut_down();
    }
}
