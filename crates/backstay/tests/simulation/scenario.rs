// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what happens to one job, all of it from one seed: its shape, its starts, and what is done
//! to its nodes while it runs and between its starts.
//! In: a seed. Out: a `Scenario`, which prints itself.
//! Invariants: the same seed gives the same scenario on every machine.

use crate::maker::Maker;
use backstay::config::{Redundancy, Tracking};
use backstay_testkit::network::Fault;
use backstay_testkit::seeded::Seeded;
use std::collections::BTreeSet;
use std::fmt;

/// Elements of the global array that tells the step; more than ranks.
pub(crate) const STEP_ELEMENTS: u64 = 64;

/// One variable of every rank, or one global array.
#[derive(Debug, Clone)]
pub(crate) struct VariablePlan {
    pub(crate) words: usize,
    pub(crate) block_bytes: usize,
    pub(crate) changed_per_mille: u64,
    pub(crate) resizes: bool,
}

/// How far a step's checkpoint is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Take {
    Nothing,
    Start,
    Node,
    Protected,
    Archived,
}

/// What the program does in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Computes, and takes a checkpoint.
    Take(Take),
    /// Restores the newest.
    Restore,
    /// Computes, starts a checkpoint, and restores at once.
    StartAndRestore,
    /// Restores the one than which so many are newer, or the oldest.
    GoBack(usize),
    Pin(usize),
    Unpin(usize),
    /// Takes so many checkpoints and pins each.
    PinMany(usize),
}

/// What is done to the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Cut(usize, usize),
    Isolate(usize),
    Stall(usize),
    /// A staging server answers nobody.
    StallServer(usize),
    /// It is gone.
    EndServer(usize),
    /// Faults in so many of 1000 operations.
    Random(u64),
    Heal,
}

/// What is done to the pulls of one rank while it restores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PullFault {
    pub(crate) rank: usize,
    /// So many go through first.
    pub(crate) after: u64,
    /// So many do not.
    pub(crate) count: u64,
    pub(crate) fault: Fault,
}

/// A file of a node, or of the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Device {
    Store,
    Log,
    Catalog,
    Aggregate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Sync,
    Reserve,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    NoSpace,
    Quota,
    Io,
    Stale,
    /// Half of a write arrives.
    Short,
}

/// What a device does not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceFault {
    /// Whose file; any node's, or one of the archive, where there is none.
    pub(crate) node: Option<usize>,
    pub(crate) device: Device,
    pub(crate) access: Access,
    /// So many operations of this kind go through first.
    pub(crate) after: u64,
    /// So many do not.
    pub(crate) count: u64,
    pub(crate) how: How,
}

#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) deed: Deed,
    pub(crate) trouble: Option<Trouble>,
    /// In effect until the next step begins.
    pub(crate) fault: Option<DeviceFault>,
    /// This rank comes late, by so many milliseconds.
    pub(crate) late: Option<(usize, u64)>,
}

impl Step {
    pub(crate) fn of(deed: Deed) -> Self {
        Self {
            deed,
            trouble: None,
            fault: None,
            late: None,
        }
    }
    pub(crate) fn take(take: Take) -> Self {
        Self::of(Deed::Take(take))
    }
}

/// A request of one agent to another, or a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Survey,
    Table,
    Rebuild,
    Repair,
    Join,
    Collect,
    Encode,
    Take,
    Flush,
    Record,
    Settle,
    Pull,
    /// Requests of drains.
    Drain,
}

/// When everything dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// Before the nth operation of this kind arrives.
    Operation(Operation, u64),
    /// When this rank begins its nth collective call.
    Meeting(usize, u64),
    /// So many microseconds after rank 0 began this step.
    Step(usize, u64),
    /// Before the nth such operation on a file of this kind.
    Device(Device, Access, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Close,
    /// All sessions are dropped without a goodbye.
    Leave,
    Kill(Trigger),
    /// As a kill; but what was about to be written to the archive is, later.
    Stall(Trigger),
}

/// What is done to a node's files between two starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    Wipe(usize),
    /// Flips so many bits in what the store holds.
    Flip(usize, u64),
    FlipLog(usize),
    /// Takes away the end of the stripe log.
    TearLog(usize),
    /// The store as it was after an earlier start.
    Return(usize, usize),
}

impl Damage {
    pub(crate) fn node(self) -> usize {
        match self {
            Self::Wipe(node)
            | Self::Flip(node, _)
            | Self::FlipLog(node)
            | Self::TearLog(node)
            | Self::Return(node, _) => node,
        }
    }
}

/// When an agent dies alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgentTrigger {
    /// Before its nth request to another, or pull.
    Request(u64),
    /// Before its nth write to a file, or sync.
    Write(u64),
}

/// What becomes of the agents of a start, where they are processes of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// They go on when the ranks leave, or die.
    Outlive,
    /// They die with everything else.
    Die,
    /// That of one node dies while the ranks go on.
    OneDies(usize, AgentTrigger),
}

/// Processes of a start that are stopped, and go on when another one was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Halt {
    /// All are, while a start is tried in the same folders.
    All(Trigger),
    /// Those of this node, when the others die, and until the next start runs, which is elsewhere, for so many
    /// milliseconds.
    Node(usize, u64),
}

#[derive(Debug, Clone)]
pub(crate) struct StartPlan {
    /// The node of each rank.
    pub(crate) placement: Vec<usize>,
    /// In effect until the restore is over.
    pub(crate) opening: Option<Trouble>,
    pub(crate) pulls: Option<PullFault>,
    pub(crate) reads: Option<DeviceFault>,
    pub(crate) steps: Vec<Step>,
    pub(crate) end: End,
    /// After the start.
    pub(crate) damage: Vec<Damage>,
}

impl StartPlan {
    pub(crate) fn nodes(&self) -> BTreeSet<usize> {
        self.placement.iter().copied().collect()
    }

    /// Whether something keeps a restore from what there is, without any of it being lost.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.opening.is_some() || self.pulls.is_some() || self.reads.is_some()
    }
}

/// Level 3.
#[derive(Debug, Clone)]
pub(crate) struct ArchiveSetup {
    /// Staging servers of each start; without them nodes drain themselves.
    pub(crate) servers: Vec<usize>,
    /// They go on from one start to the next, whatever becomes of the nodes.
    pub(crate) outlive: bool,
    pub(crate) every: Option<u32>,
    pub(crate) retained: u32,
    /// Nodes that one of them drains where there are no servers.
    pub(crate) aggregate_nodes: Option<u32>,
}

impl ArchiveSetup {
    /// What the seed says of [`Self::aggregate_nodes`], apart from all else that it says.
    pub(crate) fn nodes_each(seed: u64) -> Option<u32> {
        let each = [None, Some(1), Some(2), Some(3), Some(64)];
        each[Seeded::of(&[seed, 0x6167_6772]).index(each.len())]
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) redundancy: Redundancy,
    pub(crate) parity: u32,
    pub(crate) group_size: u32,
    /// The failure domain of each node.
    pub(crate) domains: Vec<usize>,
    /// All variables are slabs of global arrays, and the number of ranks changes.
    pub(crate) slabs: bool,
    pub(crate) tracking: Tracking,
    pub(crate) block_bytes: u32,
    pub(crate) retained: u32,
    pub(crate) reserve_bytes: Option<u64>,
    pub(crate) variables: Vec<VariablePlan>,
    pub(crate) archive: Option<ArchiveSetup>,
    /// The system clock of each reading jumps.
    pub(crate) clock_jumps: bool,
    /// So many of 1000 requests are handled twice, the second time at once or later.
    pub(crate) repeats: u64,
    /// Sealed bytes are read past their owners.
    pub(crate) one_sided: bool,
    pub(crate) starts: Vec<StartPlan>,
    /// Of each start: what is stopped, if anything is.
    pub(crate) halts: Vec<Option<Halt>>,
    /// Of each start: what becomes of its agent processes, where some are started.
    pub(crate) agents: Vec<Option<Fate>>,
    /// Of each start: whether the program is done behind its last step, and says so.
    pub(crate) finishes: Vec<bool>,
    /// What it was made to tell, if anything.
    pub(crate) story: Option<&'static str>,
}

impl Scenario {
    pub(crate) fn of(seed: u64) -> Self {
        crate::stories::told(Self::plain(seed))
    }

    /// Without what stories add.
    pub(crate) fn plain(seed: u64) -> Self {
        Maker::new(seed).scenario()
    }

    /// Bytes of all variables of the job, and more.
    pub(crate) fn state_bytes(&self) -> u64 {
        let ranks = self.starts.iter().map(|start| start.placement.len()).max();
        let ranks = if self.slabs { 1 } else { ranks.unwrap_or(1) };
        let words: usize = self.variables.iter().map(|plan| plan.words * 2).sum();
        (words * ranks * 8) as u64
    }

    /// Checkpoints that it keeps at most.
    pub(crate) fn kept(&self) -> u64 {
        let steps = self.starts.iter().flat_map(|start| &start.steps);
        let pins = steps.map(|step| match step.deed {
            Deed::Pin(_) => 1,
            Deed::PinMany(count) => count,
            _ => 0,
        });
        u64::from(self.retained) + pins.sum::<usize>() as u64
    }

    pub(crate) fn halt(&self, start: usize) -> Option<Halt> {
        self.halts.get(start).copied().flatten()
    }

    /// Whether somebody of an earlier start may still be at its store: who writes for a start that stalled, or a
    /// node that was stopped and that the job comes back to.
    pub(crate) fn may_be_busy(&self, start: usize) -> bool {
        let stalled = |start: &StartPlan| matches!(start.end, End::Stall(_));
        self.starts[..start].iter().any(stalled)
            || self.halts.iter().take(start).any(Option::is_some)
    }

    pub(crate) fn finishes(&self, start: usize) -> bool {
        self.finishes.get(start).copied().unwrap_or(false)
    }

    pub(crate) fn fate(&self, start: usize) -> Option<Fate> {
        self.agents.get(start).copied().flatten()
    }

    /// Whether staging servers go on from one start to the next.
    pub(crate) fn servers_outlive(&self) -> bool {
        let archive = self.archive.as_ref();
        archive.is_some_and(|archive| archive.outlive)
    }

    /// Losses that the scheme covers in a large enough group.
    pub(crate) fn losses(&self) -> usize {
        match self.redundancy {
            Redundancy::None => 0,
            Redundancy::Partner | Redundancy::Xor => 1,
            Redundancy::Rs => usize::try_from(self.parity).unwrap(),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {:?}, parity {}, groups of {}, {} bytes a block, {:?}, {} retained{}{}{}",
            self.seed,
            self.redundancy,
            self.parity,
            self.group_size,
            self.block_bytes,
            self.tracking,
            self.retained,
            if self.slabs { ", slabs" } else { "" },
            if self.clock_jumps {
                ", clocks jump"
            } else {
                ""
            },
            match self.repeats {
                0 => String::new(),
                repeats => format!(", {repeats} of 1000 requests repeated"),
            }
        )?;
        if self.one_sided {
            writeln!(f, "  reads past owners")?;
        }
        if let Some(story) = self.story {
            writeln!(f, "  story: {story}")?;
        }
        if let Some(archive) = &self.archive {
            writeln!(f, "  {archive:?}")?;
        }
        writeln!(f, "  domains of the nodes: {:?}", self.domains)?;
        for variable in &self.variables {
            writeln!(f, "  {variable:?}")?;
        }
        for (number, start) in self.starts.iter().enumerate() {
            writeln!(f, "  start {number} on nodes {:?}", start.placement)?;
            if start.is_disturbed() {
                writeln!(
                    f,
                    "    while it restores: {:?} {:?} {:?}",
                    start.opening, start.pulls, start.reads
                )?;
            }
            for (at, step) in start.steps.iter().enumerate() {
                write!(f, "    step {at}: {:?}", step.deed)?;
                if let Some(trouble) = step.trouble {
                    write!(f, ", {trouble:?}")?;
                }
                if let Some(fault) = step.fault {
                    write!(f, ", {fault:?}")?;
                }
                if let Some((rank, time)) = step.late {
                    write!(f, ", rank {rank} {time} ms late")?;
                }
                writeln!(f)?;
            }
            if let Some(fate) = self.fate(number) {
                writeln!(f, "    its agents: {fate:?}")?;
            }
            if let Some(halt) = self.halt(number) {
                writeln!(f, "    stopped: {halt:?}")?;
            }
            if self.finishes(number) {
                writeln!(f, "    is done, and says so")?;
            }
            writeln!(f, "    then {:?}; {:?}", start.end, start.damage)?;
        }
        Ok(())
    }
}
