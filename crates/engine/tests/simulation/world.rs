// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what one life of a job runs in: its network, its communicator, and its death at one
//! instant.
//! In: a trigger. Out: after a death, the files as they were at that instant, in another folder.
//! Invariants: nothing passes between nodes while files are copied, so each node's copy is a state
//! that a kill of all processes could have left, and all copies together are one; what threads of a dead life do
//! reaches neither the next life's files nor its network.

use crate::scenario::{Operation, Trigger};
use backstay::{Communicator, Result};
use backstay_format::agent::Request;
use backstay_testkit::comm::ThreadComm;
use backstay_testkit::network::{Action, Attempt, Fault, SimNetwork};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Alive,
    Frozen,
    Dead,
}

/// What the driver of a life is told.
#[derive(Debug)]
pub(crate) enum Event {
    Finished,
    Dead,
    Violation(String),
}

pub(crate) struct World {
    pub(crate) network: SimNetwork,
    /// Where this life's stores are.
    pub(crate) folder: PathBuf,
    /// Where they are copied to at a death.
    after: PathBuf,
    nodes: Vec<usize>,
    trigger: Option<Trigger>,
    seen: AtomicU64,
    phase: Mutex<Phase>,
    changed: Condvar,
    events: Mutex<Sender<Event>>,
}

pub(crate) fn node_name(node: usize) -> String {
    format!("n{node}")
}

impl World {
    pub(crate) fn new(
        seed: u64,
        folder: &Path,
        after: &Path,
        nodes: Vec<usize>,
        trigger: Option<Trigger>,
        events: Sender<Event>,
    ) -> Arc<Self> {
        let world = Arc::new(Self {
            network: SimNetwork::new(seed),
            folder: folder.to_owned(),
            after: after.to_owned(),
            nodes,
            trigger,
            seen: AtomicU64::new(0),
            phase: Mutex::new(Phase::Alive),
            changed: Condvar::new(),
            events: Mutex::new(events),
        });
        let weak: Weak<Self> = Arc::downgrade(&world);
        world.network.set_hook(move |attempt| {
            let world = weak.upgrade()?;
            world.before_operation(attempt)
        });
        world
    }

    pub(crate) fn tell(&self, event: Event) {
        // Nobody listens to a life that is over.
        drop(self.events.lock().unwrap().send(event));
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.phase.lock().unwrap() != Phase::Alive
    }

    fn before_operation(&self, attempt: &Attempt) -> Option<Fault> {
        if self.is_dead() {
            self.wait_dead();
            return Some(Fault::Unreachable);
        }
        if let Some(Trigger::Operation(wanted, nth)) = self.trigger
            && operation(&attempt.action) == Some(wanted)
            && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == nth
        {
            self.kill();
            return Some(Fault::Unreachable);
        }
        None
    }

    fn before_meeting(&self, rank: usize) {
        if let Some(Trigger::Meeting(wanted, nth)) = self.trigger
            && rank == wanted
            && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == nth
        {
            self.kill();
        }
        if self.is_dead() {
            self.wait_dead();
        }
    }

    /// Rank 0 begins a step.
    pub(crate) fn at_step(self: &Arc<Self>, step: usize) {
        if let Some(Trigger::Step(wanted, micros)) = self.trigger
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

    /// Everything dies now.
    fn kill(&self) {
        {
            let mut phase = self.phase.lock().unwrap();
            if *phase != Phase::Alive {
                return;
            }
            *phase = Phase::Frozen;
        }
        for &node in &self.nodes {
            self.network.take_down(&node_name(node));
        }
        let copied = copy_tree(&self.folder, &self.after);
        *self.phase.lock().unwrap() = Phase::Dead;
        self.changed.notify_all();
        self.tell(match copied {
            Ok(()) => Event::Dead,
            Err(error) => Event::Violation(format!("copying the files of a death: {error}")),
        });
    }
}

fn operation(action: &Action) -> Option<Operation> {
    let Action::Call { request } = action else {
        return Some(Operation::Pull);
    };
    Some(match Request::decode(request).ok()? {
        Request::Survey => Operation::Survey,
        Request::Table { .. } => Operation::Table,
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

/// Copies folders; a store before the logs beside it, which name what is in it. Words that processes
/// share, and locks, die with them.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    let mut entries: Vec<PathBuf> = std::fs::read_dir(from)?
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
        if path.is_dir() {
            copy_tree(&path, &target)?;
        } else if name != "control.backstay" && name != "lock.backstay" {
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
