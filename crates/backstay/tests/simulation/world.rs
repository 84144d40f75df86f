// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what one start of a job runs in: its network, its communicator, its devices, and its death at
//! one instant.
//! In: a trigger, faults. Out: after a death, the files as they were at that instant, in another folder.
//! Invariants: nothing passes between nodes, and no write begins, while files are copied, so each node's copy
//! is a state that a kill of all processes could have left, and all copies together are one; what threads of
//! a dead start do reaches neither the next start's files nor its network.

use crate::counts;
use crate::scenario::{Access, Device, DeviceFault, Halt, How, Operation, PullFault, Trigger};
use backstay::{Communicator, Result};
use backstay_base::io::fault::{self, Watch};
use backstay_format::agent::Request;
use backstay_format::drain::DrainRequest;
use backstay_store::place::{STORE_BEING_MADE, STORE_FILE};
use backstay_store::stripe_log::LOG_FILES;
use backstay_testkit::comm::ThreadComm;
use backstay_testkit::network::{Action, Attempt, Fault, SimNetwork};
use backstay_testkit::seeded::Seeded;
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Alive,
    /// All processes are stopped, and go on later.
    Stopped,
    Frozen,
    Dead,
}

/// What the driver of a start is told.
#[derive(Debug)]
pub(crate) enum Event {
    Finished,
    Dead,
    Stopped,
    Violation(String),
}

/// The folder of the archive, beside those of the nodes.
pub(crate) const ARCHIVE: &str = "pfs";

/// How a start ends, if not by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Death {
    pub(crate) trigger: Option<Trigger>,
    /// What was about to be written to the archive is written late, when another start runs.
    pub(crate) stalls: bool,
    /// Staging servers go on.
    pub(crate) servers_outlive: bool,
    /// Agents, which are processes of their own, go on, in the same files.
    pub(crate) agents_outlive: bool,
    pub(crate) halt: Option<Halt>,
}

/// Requests that are handled twice: so many of 1000, chosen by these numbers.
#[derive(Debug)]
pub(crate) struct Repeats {
    pub(crate) per_mille: u64,
    pub(crate) random: Seeded,
}

/// How much later the second time may be.
const REPEAT_MICROS: u64 = 30_000;

/// How late.
const STALL: Duration = Duration::from_millis(300);
/// Longest wait for writes that are under way at a death; some may be of a former start, and late.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// A fault of a device or of pulls, and how often it was its turn.
#[derive(Debug)]
struct Turns<T> {
    what: T,
    seen: u64,
}

impl<T> Turns<T> {
    /// Whether this one of its operations fails.
    fn is_due(&mut self, after: u64, count: u64) -> bool {
        self.seen += 1;
        self.seen > after && self.seen - after <= count
    }
}

pub(crate) struct World {
    pub(crate) network: SimNetwork,
    /// Where this start's stores are.
    pub(crate) folder: PathBuf,
    /// Where they are copied to at a death.
    after: PathBuf,
    /// The endpoints that die.
    down: Vec<String>,
    end: Death,
    seen: AtomicU64,
    phase: Mutex<Phase>,
    changed: Condvar,
    events: Mutex<Sender<Event>>,
    fault: Mutex<Option<Turns<DeviceFault>>>,
    /// With the name of the rank's endpoint.
    pulls: Mutex<Option<(String, Turns<PullFault>)>>,
    repeats: Mutex<Repeats>,
    watch: Mutex<Option<Watch>>,
    /// Operations on files that its death holds up.
    held: AtomicUsize,
    /// Of what is to be stopped: how often it was its turn, and whether it goes on.
    halt_seen: AtomicU64,
    goes_on: AtomicBool,
    /// The step that rank 0 is in; the last one that a stop may have disturbed.
    step: AtomicUsize,
    stopped_until: Mutex<Option<usize>>,
    /// The node of each rank.
    placement: Vec<usize>,
    /// An agent died while the ranks went on.
    agent_lost: AtomicBool,
    /// All endpoints of a node.
    names: BTreeMap<usize, Vec<String>>,
}

pub(crate) fn node_name(node: usize) -> String {
    format!("n{node}")
}

impl World {
    pub(crate) fn new(
        network: SimNetwork,
        (folder, after): (&Path, &Path),
        down: Vec<String>,
        (end, repeats): (Death, Repeats),
        (placement, names): (&[usize], BTreeMap<usize, Vec<String>>),
        events: Sender<Event>,
    ) -> Arc<Self> {
        let world = Arc::new(Self {
            network,
            folder: folder.to_owned(),
            after: after.to_owned(),
            down,
            end,
            seen: AtomicU64::new(0),
            phase: Mutex::new(Phase::Alive),
            changed: Condvar::new(),
            events: Mutex::new(events),
            fault: Mutex::default(),
            pulls: Mutex::default(),
            repeats: Mutex::new(repeats),
            watch: Mutex::default(),
            held: AtomicUsize::new(0),
            halt_seen: AtomicU64::new(0),
            goes_on: AtomicBool::new(false),
            step: AtomicUsize::new(0),
            stopped_until: Mutex::default(),
            placement: placement.to_vec(),
            agent_lost: AtomicBool::new(false),
            names,
        });
        let files: Weak<Self> = Arc::downgrade(&world);
        *world.watch.lock().unwrap() = Some(fault::watch(folder, move |attempt| {
            files.upgrade()?.before_access(attempt)
        }));
        let weak: Weak<Self> = Arc::downgrade(&world);
        world.network.set_hook(move |attempt| {
            let world = weak.upgrade()?;
            world.before_operation(attempt)
        });
        world
    }

    pub(crate) fn tell(&self, event: Event) {
        // Nobody listens to a start that is over.
        drop(self.events.lock().unwrap().send(event));
    }

    /// An agent died, and the ranks go on.
    pub(crate) fn lose_agent(&self) {
        self.agent_lost.store(true, Ordering::SeqCst);
    }

    pub(crate) fn lost_agent(&self) -> bool {
        self.agent_lost.load(Ordering::SeqCst)
    }

    /// All endpoints of a node.
    pub(crate) fn names(&self, node: usize) -> Vec<String> {
        let names = self.names.get(&node).cloned();
        names.unwrap_or_else(|| vec![node_name(node)])
    }

    /// Nothing is wrong with the network any more, nor with any device.
    pub(crate) fn heal(&self) {
        self.network.mend_all();
        self.network.set_random_faults(0, 1000);
        self.calm();
        for name in self.names.values().flatten() {
            self.network.resume(name);
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(*self.phase.lock().unwrap(), Phase::Frozen | Phase::Dead)
    }

    fn before_operation(self: &Arc<Self>, attempt: &Attempt) -> Option<Fault> {
        self.wait_running();
        if self.is_dead() && self.end.agents_outlive && is_agent(&attempt.from) {
            return None;
        }
        if self.is_dead() {
            self.wait_dead();
            self.wait_hanging(|node| self.names(node).contains(&attempt.from));
            return Some(Fault::Unreachable);
        }
        if let Some(Trigger::Operation(wanted, nth)) = self.end.trigger
            && operation(&attempt.action) == Some(wanted)
            && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == nth
        {
            self.kill();
            let goes_on = self.end.agents_outlive && is_agent(&attempt.from);
            return (!goes_on).then_some(Fault::Unreachable);
        }
        if let Action::Read { .. } | Action::ReadPast { .. } = attempt.action
            && let Some((name, turns)) = &mut *self.pulls.lock().unwrap()
            && *name == attempt.from
            && turns.is_due(turns.what.after, turns.what.count)
        {
            counts::one("pulls of a restore that failed");
            return Some(turns.what.fault);
        }
        self.repeat(attempt)
    }

    /// Has some requests handled twice: at once, or once more after this world went on for a while.
    fn repeat(self: &Arc<Self>, attempt: &Attempt) -> Option<Fault> {
        if !matches!(attempt.action, Action::Call { .. }) {
            return None;
        }
        let later = {
            let mut repeats = self.repeats.lock().unwrap();
            let per_mille = repeats.per_mille;
            if per_mille == 0 || !repeats.random.chance(per_mille, 1000) {
                return None;
            }
            counts::one("requests handled twice");
            if repeats.random.chance(1, 2) {
                return Some(Fault::Repeated);
            }
            repeats.random.below(REPEAT_MICROS)
        };
        let (world, again) = (Arc::downgrade(self), self.network.once_more(attempt));
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(later));
            let lives = world.upgrade().is_some_and(|world| !world.is_dead());
            if lives {
                again();
            }
        });
        None
    }

    /// From now on, until it is calm, a device fails.
    pub(crate) fn fail(&self, what: DeviceFault) {
        *self.fault.lock().unwrap() = Some(Turns { what, seen: 0 });
    }

    /// From now on, until it is calm, pulls of the endpoint `name` fail.
    pub(crate) fn fail_pulls(&self, name: String, what: PullFault) {
        *self.pulls.lock().unwrap() = Some((name, Turns { what, seen: 0 }));
    }

    /// No device fails, nor pull, but by what was done to the network.
    pub(crate) fn calm(&self) {
        self.fault.lock().unwrap().take();
        self.pulls.lock().unwrap().take();
    }

    fn before_access(&self, attempt: &fault::Attempt<'_>) -> Option<fault::Fault> {
        let (device, node) = self.device(attempt.path)?;
        self.access(attempt, (device, node), false)
    }

    /// As of a rank's, of a file that the agent of a node has.
    pub(crate) fn before_access_of_agent(
        &self,
        node: usize,
        attempt: &fault::Attempt<'_>,
    ) -> Option<fault::Fault> {
        let name = attempt.path.file_name()?.to_str()?;
        let device = of_node(name)?;
        self.access(attempt, (device, Some(node)), self.end.agents_outlive)
    }

    fn access(
        &self,
        attempt: &fault::Attempt<'_>,
        (device, node): (Device, Option<usize>),
        outlives: bool,
    ) -> Option<fault::Fault> {
        const EIO: i32 = 5;
        let access = match attempt.access {
            fault::Access::Read => Access::Read,
            fault::Access::Write => Access::Write,
            fault::Access::Sync => Access::Sync,
            fault::Access::Reserve => Access::Reserve,
        };
        if let Some(Halt::All(Trigger::Device(wanted, how, nth))) = self.end.halt
            && (wanted, how) == (device, access)
        {
            self.stop_at(nth);
        }
        self.wait_running();
        if let Some(Trigger::Device(wanted, how, nth)) = self.end.trigger
            && (wanted, how) == (device, access)
            && !self.is_dead()
            && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == nth
        {
            self.held.fetch_add(1, Ordering::SeqCst);
            self.kill();
        }
        if access != Access::Read && self.is_dead() && !outlives {
            self.held.fetch_add(1, Ordering::SeqCst);
            self.wait_dead();
            if self.wait_hanging(|hangs| node == Some(hangs)) {
                return None;
            }
            if self.end.stalls && matches!(device, Device::Catalog | Device::Aggregate) {
                std::thread::sleep(STALL);
                return None;
            }
            return Some(fault::Fault::Fails(EIO));
        }
        let mut fault = self.fault.lock().unwrap();
        let turns = fault.as_mut()?;
        let what = turns.what;
        let is_it = what.device == device && what.access == access;
        let is_it = is_it && (what.node.is_none() || what.node == node);
        if !is_it || !turns.is_due(what.after, what.count) {
            return None;
        }
        counts::one(&format!(
            "{:?} of a {:?} failed: {:?}",
            what.access, what.device, what.how
        ));
        Some(match what.how {
            How::NoSpace => fault::Fault::Fails(28),
            How::Quota => fault::Fault::Fails(122),
            How::Io => fault::Fault::Fails(EIO),
            How::Stale => fault::Fault::Fails(116),
            How::Short => fault::Fault::Short(attempt.length / 2, 28),
        })
    }

    /// What a file of this start is, and whose.
    fn device(&self, path: &Path) -> Option<(Device, Option<usize>)> {
        let name = path.file_name()?.to_str()?;
        let below = path.strip_prefix(&self.folder).ok()?;
        let first = below.components().next()?.as_os_str().to_str()?;
        let node = first.strip_prefix('n').and_then(|node| node.parse().ok());
        let device = if let Some(device) = of_node(name) {
            device
        } else if name.starts_with("catalog") {
            Device::Catalog
        } else if first == ARCHIVE {
            Device::Aggregate
        } else {
            return None;
        };
        Some((device, node))
    }

    fn before_meeting(&self, rank: usize) {
        if let Some(Halt::All(Trigger::Meeting(wanted, nth))) = self.end.halt
            && rank == wanted
        {
            self.stop_at(nth);
        }
        self.wait_running();
        if let Some(Trigger::Meeting(wanted, nth)) = self.end.trigger
            && rank == wanted
            && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == nth
        {
            self.kill();
        }
        if self.is_dead() {
            self.wait_dead();
            self.wait_hanging(|node| self.placement.get(rank) == Some(&node));
        }
    }

    /// Rank 0 begins a step.
    pub(crate) fn at_step(self: &Arc<Self>, step: usize) {
        self.step.store(step, Ordering::SeqCst);
        if let Some(Trigger::Step(wanted, micros)) = self.end.trigger
            && step == wanted
        {
            let world = Arc::clone(self);
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(micros));
                world.kill();
            });
        }
    }

    fn wait_dead(&self) {
        let mut phase = self.phase.lock().unwrap();
        while *phase != Phase::Dead {
            phase = self.changed.wait(phase).unwrap();
        }
    }

    /// Stops everything if this is the nth time that it may.
    fn stop_at(&self, nth: u64) {
        let mut phase = self.phase.lock().unwrap();
        if self.halt_seen.fetch_add(1, Ordering::SeqCst) + 1 == nth && *phase == Phase::Alive {
            *phase = Phase::Stopped;
            drop(phase);
            self.tell(Event::Stopped);
        }
    }

    /// What was stopped goes on.
    pub(crate) fn go_on(&self) {
        let mut phase = self.phase.lock().unwrap();
        if *phase == Phase::Stopped {
            let step = self.step.load(Ordering::SeqCst);
            *self.stopped_until.lock().unwrap() = Some(step + 1);
            *phase = Phase::Alive;
        }
        self.goes_on.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Whether a stop may have disturbed a step; each wait that was under way was too long.
    pub(crate) fn was_stopped(&self, step: usize) -> bool {
        let until = *self.stopped_until.lock().unwrap();
        until.is_some_and(|until| step <= until)
    }

    fn wait_running(&self) {
        let mut phase = self.phase.lock().unwrap();
        while *phase == Phase::Stopped {
            phase = self.changed.wait(phase).unwrap();
        }
    }

    /// Waits until the node that hangs goes on, if it is it.
    fn wait_hanging(&self, is_it: impl Fn(usize) -> bool) -> bool {
        let Some(Halt::Node(node, _)) = self.end.halt else {
            return false;
        };
        if !is_it(node) {
            return false;
        }
        let mut phase = self.phase.lock().unwrap();
        while !self.goes_on.load(Ordering::SeqCst) {
            phase = self.changed.wait(phase).unwrap();
        }
        drop(phase);
        true
    }

    /// Who died learns of it. Until then it waits, so that it does not clear up, which nobody does that is
    /// dead, in files and words that others still have.
    pub(crate) fn bury(&self) {
        *self.phase.lock().unwrap() = Phase::Dead;
        self.changed.notify_all();
    }

    /// Everything dies now.
    fn kill(&self) {
        {
            let mut phase = self.phase.lock().unwrap();
            if *phase != Phase::Alive {
                return;
            }
            *phase = Phase::Frozen;
        }
        for name in &self.down {
            self.network.take_down(name);
        }
        // What is in the middle of being written is, before files are copied and locks end.
        let begun = Instant::now();
        while fault::under_way() > self.held.load(Ordering::SeqCst) && begun.elapsed() < UNDER_WAY {
            std::thread::sleep(Duration::from_micros(50));
        }
        counts::one(if self.end.stalls {
            "deaths of all, what was being archived written late"
        } else {
            "deaths of all at one instant"
        });
        let copied = if self.end.agents_outlive {
            Ok(())
        } else {
            copy_tree(&self.folder, &self.after)
        };
        if !self.end.agents_outlive {
            self.bury();
        }
        self.release_locks();
        self.tell(match copied {
            Ok(()) => Event::Dead,
            Err(error) => Event::Violation(format!("copying the files of a death: {error}")),
        });
    }
}

impl World {
    /// The kernel ends the locks of a process with it. One that stalls has not ended, nor has it when the start
    /// after it dies.
    fn release_locks(&self) {
        if self.end.stalls {
            STALLED.lock().unwrap().extend(descriptors());
            return;
        }
        if self.end.agents_outlive {
            unlock(|path| path.ends_with("lock.backstay") && path.starts_with(&self.folder));
            return;
        }
        let outlive = self.end.servers_outlive;
        let running = self.folder.with_file_name(ARCHIVE);
        unlock(|path| {
            let name = path.file_name().unwrap_or_default();
            let of_file = !outlive && path.extension().is_some_and(|end| end == "lock");
            of_file && path.to_string_lossy().contains("backstay-archive-")
                || name == "running" && path.starts_with(&running)
        });
    }
}

/// Whether an endpoint is that of an agent process: those of ranks name the rank.
fn is_agent(name: &str) -> bool {
    name.starts_with('n') && !name.contains('-')
}

/// What a file of a node is.
fn of_node(name: &str) -> Option<Device> {
    if name == STORE_FILE || name == STORE_BEING_MADE {
        return Some(Device::Store);
    }
    LOG_FILES.contains(&name).then_some(Device::Log)
}

/// What processes that stalled had open: their locks do not end with those who came later.
static STALLED: Mutex<BTreeSet<(i32, PathBuf)>> = Mutex::new(BTreeSet::new());

/// What this process has open.
fn descriptors() -> Vec<(i32, PathBuf)> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open = entries.flatten().filter_map(|entry| {
        let number = entry.file_name().to_string_lossy().parse().ok()?;
        Some((number, std::fs::read_link(entry.path()).ok()?))
    });
    open.collect()
}

/// Ends the locks of this process on files that `which` names.
pub(crate) fn unlock(which: impl Fn(&Path) -> bool) {
    let stalled = STALLED.lock().unwrap();
    for open in descriptors() {
        if which(&open.1) && !stalled.contains(&open) {
            // SAFETY: a descriptor that was closed meanwhile, or is another file's by now, is not changed by
            // the end of a lock that it does not have.
            let descriptor = unsafe { BorrowedFd::borrow_raw(open.0) };
            // One that was closed meanwhile has none.
            flock(descriptor, FlockOperation::Unlock).ok();
        }
    }
}

fn operation(action: &Action) -> Option<Operation> {
    let Action::Call { request } = action else {
        return Some(Operation::Pull);
    };
    if DrainRequest::decode(request).is_ok() {
        return Some(Operation::Drain);
    }
    Some(match Request::decode(request).ok()? {
        Request::Survey => Operation::Survey,
        Request::Table { .. } | Request::Follow { .. } => Operation::Table,
        Request::Rebuild { .. } => Operation::Rebuild,
        Request::Repair { .. } => Operation::Repair,
        Request::Join { .. } => Operation::Join,
        Request::Collect { .. } => Operation::Collect,
        Request::Encode { .. } => Operation::Encode,
        Request::Take { .. } => Operation::Take,
        Request::Flush { .. } => Operation::Flush,
        Request::Record(_) => Operation::Record,
        Request::Settle { .. } => Operation::Settle,
        _ => return None,
    })
}

/// Files that die with processes.
const OF_PROCESSES: [&str; 4] = [
    "control.backstay",
    "lock.backstay",
    "agent.backstay",
    "agent.socket",
];

/// Copies folders; a store before the logs beside it, which name what is in it. Words that processes
/// share, and locks, die with them.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    let listed = match std::fs::read_dir(from) {
        // Removed since its parent was listed: the death was a little later.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        listed => listed?,
    };
    std::fs::create_dir_all(to)?;
    let mut entries: Vec<PathBuf> = listed
        .filter_map(std::result::Result::ok)
        .map(|entry| entry.path())
        .collect();
    // "store" goes before "stripes".
    entries.sort();
    for path in entries {
        let Some(name) = path.file_name() else {
            continue;
        };
        let target = to.join(name);
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            copy_tree(&path, &target)?;
        } else if !OF_PROCESSES.iter().any(|of| name == *of) {
            match std::fs::copy(&path, &target) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}

/// A communicator that dies with its world.
#[derive(Debug)]
pub(crate) struct Mortal {
    inner: ThreadComm,
    world: Arc<World>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World({})", self.folder.display())
    }
}

impl Mortal {
    pub(crate) fn new(inner: ThreadComm, world: Arc<World>) -> Self {
        Self { inner, world }
    }

    fn enter(&self) {
        self.world
            .before_meeting(usize::try_from(self.inner.rank()).unwrap());
        if self.world.is_dead() {
            // Wakes those who wait for this rank.
            self.inner.fail_after(0);
        }
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        // A rank that saw its death between two calls makes no other, which the rest would wait for.
        if self.world.is_dead() {
            self.inner.die();
        }
    }
}

impl Communicator for Mortal {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }
    fn size(&self) -> u32 {
        self.inner.size()
    }
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        self.enter();
        self.inner.allgather(mine, all)
    }
    fn allreduce_max(&self, values: &mut [i64]) -> Result<()> {
        self.enter();
        self.inner.allreduce_max(values)
    }
    fn barrier(&self) -> Result<()> {
        self.enter();
        self.inner.barrier()
    }
}
