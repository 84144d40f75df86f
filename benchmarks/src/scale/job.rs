// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the starts of a job of many nodes, in one process, and what each operation of them counts.
//! In from: `scale`. Out to: `count`.
//! Invariants: all ranks stand still while counts are taken, so that an operation has its own messages and no others.

use super::count::{Counted, Machine, NodeCount, Tally, spread};
use crate::Outcome;
use crate::ranks::Folder;
use backstay::config::Redundancy;
use backstay::{Config, ElementType, Level, Session, Variable};
use backstay_base::io::on_demand::opened_by_this_thread;
use backstay_format::width::to_u64;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::SimNetwork;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Duration;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// From its beginning until it is protected: a vote, and one of those that wait for protection.
    Checkpoint,
    /// From its beginning until it is in the archive, without redundancy.
    Drain,
    /// Opening and reading, all stores there; without the first round of protection, which follows in the background.
    Restart,
    /// The same with one node lost in each of up to ten groups.
    RestartAfterLosses,
    /// Opening and reading on twice as many ranks, of which each is on another node than what it reads.
    RestartOnOtherRanks,
    /// Opening and reading where the archive alone is left.
    RestartFromArchive,
}

impl Operation {
    /// How many times more messages the busiest node may have in a job of 16 times as many nodes, where that is
    /// settled.
    pub fn growth_max(self) -> Option<f64> {
        match self {
            Self::Checkpoint
            | Self::Restart
            | Self::RestartOnOtherRanks
            | Self::RestartFromArchive => Some(1.25),
            // Of ten groups instead of two.
            Self::RestartAfterLosses => Some(2.0),
            Self::Drain => None,
        }
    }
}

/// A job to measure.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Its nodes.
    pub nodes: usize,
    /// Ranks of each in the first start.
    pub ranks_a_node: usize,
    /// Nodes of a group.
    pub group_size: u32,
    /// Counts the heap, where the program does.
    pub heap: Option<fn() -> usize>,
}

impl Setting {
    /// So many nodes, of one rank.
    pub fn of(nodes: usize) -> Self {
        Self {
            nodes,
            ranks_a_node: 1,
            group_size: 8,
            heap: None,
        }
    }
}

/// Elements of the array that the ranks share.
const ELEMENTS_A_RANK: usize = 2048;

/// Most ranks of a node, in any start.
const LOCAL_MAX: usize = 32;

/// What the network calls a rank: its leader answers for the node.
fn name(node: usize, local: usize) -> String {
    match local {
        0 => format!("n{node:05}"),
        _ => format!("n{node:05}.{local}"),
    }
}

/// Stops all ranks, counts what was done since they last met as an operation, or does not, and lets them go on.
type Meet<'a> = dyn Fn(Option<Operation>) + 'a;

/// A start of the job.
#[derive(Debug, Clone, Copy)]
struct Start {
    ranks: usize,
    /// What it is to open and restore.
    restarts: Option<Operation>,
    /// To an archive; else checkpoints are protected.
    drains: bool,
    /// Ranks are so many nodes further than in the first start.
    shift: usize,
}

struct World<'a> {
    setting: &'a Setting,
    folder: PathBuf,
    network: SimNetwork,
    tally: Tally,
    peak: Peak,
    /// Bytes that the communicator brought the rank with most, since counts were cleared.
    brought: AtomicU64,
    /// Files of the archive that a rank opened, the one with most, since counts were cleared.
    opened: AtomicU64,
    counted: Mutex<Vec<Counted>>,
}

/// The most threads and heap since it was begun, looked at again and again.
#[derive(Debug, Default)]
struct Peak {
    threads: AtomicU64,
    heap: AtomicU64,
    over: AtomicBool,
}

impl Peak {
    fn watch(&self, heap: Option<fn() -> usize>) {
        while !self.over.load(Ordering::Acquire) {
            self.threads.fetch_max(threads(), Ordering::AcqRel);
            let held = heap.map_or(0, |heap| heap());
            self.heap.fetch_max(to_u64(held), Ordering::AcqRel);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    fn begin(&self) {
        self.threads.store(0, Ordering::Release);
        self.heap.store(0, Ordering::Release);
    }
}

fn threads() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Threads:"));
    line.and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}

/// Runs the starts of a job below `parent`; what each operation counted.
pub fn measure(setting: &Setting, parent: &Path) -> Outcome<Vec<Counted>> {
    let folder = Folder::make(parent)?;
    let world = World {
        setting,
        folder: folder.path().to_owned(),
        network: SimNetwork::new(1),
        tally: Tally::default(),
        peak: Peak::default(),
        brought: AtomicU64::new(0),
        opened: AtomicU64::new(0),
        counted: Mutex::default(),
    };
    world.tally.watch(&world.network);
    std::thread::scope(|scope| {
        scope.spawn(|| world.peak.watch(setting.heap));
        let outcome = world.starts();
        world.peak.over.store(true, Ordering::Release);
        outcome
    })?;
    let counted = world.counted.into_inner();
    Ok(counted.unwrap_or_else(PoisonError::into_inner))
}

impl World<'_> {
    fn starts(&self) -> Outcome<()> {
        let usual = self.setting.nodes * self.setting.ranks_a_node;
        let of = |ranks, restarts| Start {
            ranks,
            restarts,
            drains: false,
            shift: 0,
        };
        let nothing = |_: &mut Session, _: &Meet<'_>| Ok(());
        self.start(of(usual, None), |session, meet| {
            for operation in [None, Some(Operation::Checkpoint)] {
                let handle = session.checkpoint_start()?;
                session.wait(handle, Level::Protected)?;
                meet(operation);
            }
            Ok(())
        })?;
        self.start(of(usual, Some(Operation::Restart)), nothing)?;
        let groups = self.setting.nodes / backstay_format::width::index(self.setting.group_size);
        for lost in 0..groups.clamp(1, 10) {
            // Neighbours are dealt to different groups.
            std::fs::remove_dir_all(self.store_path(lost, false))?;
        }
        self.start(of(usual, Some(Operation::RestartAfterLosses)), nothing)?;
        let elsewhere = Start {
            shift: 1,
            ..of(2 * usual, Some(Operation::RestartOnOtherRanks))
        };
        self.start(elsewhere, nothing)?;
        let drains = Start {
            drains: true,
            ..of(usual, None)
        };
        self.start(drains, |session, meet| {
            for operation in [None, Some(Operation::Drain)] {
                let handle = session.checkpoint_start()?;
                session.wait(handle, Level::Archive)?;
                meet(operation);
            }
            Ok(())
        })?;
        for node in 0..self.setting.nodes {
            std::fs::remove_dir_all(self.store_path(node, true))?;
        }
        let restarts = Some(Operation::RestartFromArchive);
        self.start(Start { restarts, ..drains }, nothing)
    }

    fn store_path(&self, node: usize, drains: bool) -> PathBuf {
        let job = if drains { "drained" } else { "protected" };
        self.folder.join(job).join(name(node, 0))
    }

    fn config(&self, node: usize, drains: bool) -> Config {
        let redundancy = if drains {
            Redundancy::None
        } else {
            Redundancy::Xor
        };
        Config {
            job: Some("scale".to_owned()),
            node: Some(name(node, 0)),
            store_path: Some(self.store_path(node, drains)),
            archive: drains.then(|| self.folder.join("archive")),
            redundancy,
            group_size: self.setting.group_size,
            timeout_ms: 600_000,
            capture_threads: Some(1),
            encode_threads: 1,
            ..Config::default()
        }
    }

    /// One start: opens, restores where `restarts` says what that is, and does `body`; counts where it meets.
    fn start(
        &self,
        start: Start,
        body: impl Fn(&mut Session, &Meet<'_>) -> backstay::Result<()> + Sync,
    ) -> Outcome<()> {
        let Start {
            ranks,
            restarts,
            drains,
            shift,
        } = start;
        let gate = Barrier::new(ranks);
        let calls = Mutex::new(0);
        let a_node = ranks / self.setting.nodes;
        self.begin();
        let folder = self.store_path(0, drains);
        std::fs::create_dir_all(folder.parent().unwrap_or(&folder))?;
        let outcomes = run_ranks(
            ThreadComm::with_limit(ranks, Duration::from_secs(600)),
            |comm| {
                let rank = backstay_base::Communicator::rank(&comm);
                let rank = backstay_format::width::index(rank);
                let node = (rank / a_node + shift) % self.setting.nodes;
                let opened_before = opened_by_this_thread();
                let counts = comm.counter();
                let before = Cell::new(0);
                let meet = |operation: Option<Operation>| {
                    let now = counts().bytes;
                    let brought = now - before.replace(now);
                    self.brought.fetch_max(brought, Ordering::AcqRel);
                    if gate.wait().is_leader() {
                        if let Some(operation) = operation {
                            let mut before = calls.lock().unwrap_or_else(PoisonError::into_inner);
                            let now = counts().total();
                            self.count(operation, now - *before, ranks);
                            *before = now;
                        } else {
                            *calls.lock().unwrap_or_else(PoisonError::into_inner) =
                                counts().total();
                        }
                        self.begin();
                        self.tally.hold(false);
                    }
                    gate.wait();
                };
                let endpoint = self.network.endpoint(&name(node, rank % a_node));
                let config = self.config(node, drains);
                let mut session = Session::open_on(Box::new(comm), config, Some(endpoint))?;
                let mut part = vec![
                    0.0_f64;
                    ELEMENTS_A_RANK * self.setting.nodes * self.setting.ranks_a_node
                        / ranks
                ];
                protect(&mut session, &mut part, rank, ranks)?;
                if let Some(operation) = restarts {
                    // Stores are made again, and rounds not begun.
                    self.tally.hold(true);
                    session.restore()?;
                    let opened = opened_by_this_thread() - opened_before;
                    self.opened.fetch_max(opened, Ordering::AcqRel);
                    meet(Some(operation));
                }
                body(&mut session, &meet)?;
                session.close()
            },
        );
        for outcome in outcomes {
            outcome?;
        }
        Ok(())
    }

    fn begin(&self) {
        self.network.clear_traffic();
        self.brought.store(0, Ordering::Release);
        self.opened.store(0, Ordering::Release);
        self.tally.clear();
        self.peak.begin();
    }

    fn count(&self, operation: Operation, collectives: u64, ranks: usize) {
        let nodes = self.setting.nodes;
        let counts: Vec<NodeCount> = (0..nodes)
            .map(|node| {
                let mut count = NodeCount::default();
                for local in 0..LOCAL_MAX {
                    let traffic = self.network.traffic(&name(node, local));
                    let messages = traffic.message_bytes_sent + traffic.message_bytes_received;
                    count.messages += traffic.messages();
                    count.bytes += messages + traffic.bytes_pulled + traffic.bytes_served;
                    count.peers += to_u64(traffic.peers());
                }
                count
            })
            .collect();
        let (busiest, median) = spread(&counts);
        let threads = self.peak.threads.load(Ordering::Acquire);
        let brought = self.brought.load(Ordering::Acquire);
        let counted = Counted {
            nodes,
            ranks,
            operation,
            busiest,
            median,
            collectives,
            collective_bytes: brought,
            archive_opens: self.opened.load(Ordering::Acquire),
            seconds: self.tally.seconds(&Machine::ASKED)
                + Machine::ASKED.collective_seconds(collectives, brought, ranks),
            threads_a_node: crate::as_f64(threads) / crate::size_f64(nodes),
            heap_bytes_a_node: self.peak.heap.load(Ordering::Acquire) / to_u64(nodes),
        };
        let mut all = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(counted);
    }
}

/// The rank's slab of an array that all share.
#[expect(unsafe_code, reason = "hands memory to a session")]
fn protect(
    session: &mut Session,
    part: &mut [f64],
    rank: usize,
    ranks: usize,
) -> backstay::Result<()> {
    let (each, all) = (to_u64(part.len()), to_u64(part.len() * ranks));
    let variable = Variable::new("field", ElementType::F64, &[each]);
    let variable = variable.slab(&[all], &[each * to_u64(rank)]);
    // SAFETY: `part` outlives the session, and nobody else writes it.
    unsafe { session.protect(variable, part.as_mut_ptr().cast()) }.map(drop)
}
