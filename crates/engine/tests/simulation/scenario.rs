// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what happens to one job, all of it from one seed: its shape, its lives, and what is done
//! to its nodes while it runs and between its lives.
//! In: a seed. Out: a `Scenario`, which prints itself.
//! Invariants: the same seed gives the same scenario on every machine.

use backstay::config::{Redundancy, Tracking};
use backstay_testkit::seeded::Seeded;
use std::collections::BTreeSet;
use std::fmt;

/// Spare nodes beside those that the job begins on.
const SPARES: usize = 3;
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
}

/// What is done to the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Cut(usize, usize),
    Isolate(usize),
    Stall(usize),
    /// Faults in so many of 1000 operations.
    Random(u64),
    Heal,
}

#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) take: Take,
    pub(crate) trouble: Option<Trouble>,
    /// This rank comes late, by so many milliseconds.
    pub(crate) late: Option<(usize, u64)>,
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Close,
    /// All sessions are dropped without a goodbye.
    Leave,
    Kill(Trigger),
}

/// What is done to a node's files between two lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    Wipe(usize),
    /// Flips so many bits in what the store holds.
    Flip(usize, u64),
    FlipLog(usize),
    /// Takes away the end of the stripe log.
    TearLog(usize),
    /// The store as it was after an earlier life.
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

#[derive(Debug, Clone)]
pub(crate) struct LifePlan {
    /// The node of each rank.
    pub(crate) placement: Vec<usize>,
    /// In effect until the restore is over.
    pub(crate) opening: Option<Trouble>,
    pub(crate) steps: Vec<Step>,
    pub(crate) end: End,
    /// After the life.
    pub(crate) damage: Vec<Damage>,
}

impl LifePlan {
    pub(crate) fn nodes(&self) -> BTreeSet<usize> {
        self.placement.iter().copied().collect()
    }
    pub(crate) fn has_trouble(&self) -> bool {
        self.opening.is_some() || self.steps.iter().any(|step| step.trouble.is_some())
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
    pub(crate) variables: Vec<VariablePlan>,
    pub(crate) lives: Vec<LifePlan>,
}

impl Scenario {
    pub(crate) fn of(seed: u64) -> Self {
        Maker::new(seed).scenario()
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

struct Maker {
    random: Seeded,
    seed: u64,
    nodes: usize,
    redundancy: Redundancy,
    parity: u32,
    slabs: bool,
    ranks: usize,
}

impl Maker {
    fn new(seed: u64) -> Self {
        let mut random = Seeded::of(&[seed, 0x0073_696d]);
        let nodes = 2 + random.index(6);
        let redundancy = match random.below(16) {
            0 => Redundancy::None,
            1..=4 => Redundancy::Partner,
            5..=9 => Redundancy::Xor,
            _ => Redundancy::Rs,
        };
        let parity = 1 + u32::try_from(random.below(3)).unwrap();
        let slabs = random.chance(1, 4);
        let per_node = if random.chance(1, 6) { 2 } else { 1 };
        Self {
            seed,
            nodes,
            redundancy,
            parity,
            slabs,
            ranks: nodes * per_node,
            random,
        }
    }

    fn scenario(mut self) -> Scenario {
        let all = self.nodes + SPARES;
        let domains = if self.random.chance(1, 6) {
            let racks = 2 + self.random.index(self.nodes - 1);
            (0..all).map(|node| node % racks).collect()
        } else {
            (0..all).collect()
        };
        let group_size = if self.random.chance(1, 3) {
            (self.parity + 1 + u32::try_from(self.random.below(3)).unwrap()).max(2)
        } else {
            8
        };
        let tracking = match self.random.below(8) {
            0 => Tracking::Full,
            _ => Tracking::Hash,
        };
        let block_bytes = [4096, 16384, 65536][self.random.index(3)];
        let retained = if self.random.chance(1, 5) { 4 } else { 2 };
        let variables = self.variables();
        let lives = self.lives();
        Scenario {
            seed: self.seed,
            redundancy: self.redundancy,
            parity: self.parity,
            group_size,
            domains,
            slabs: self.slabs,
            tracking,
            block_bytes,
            retained,
            variables,
            lives,
        }
    }

    fn variables(&mut self) -> Vec<VariablePlan> {
        let count = 1 + self.random.index(3);
        (0..count)
            .map(|_| {
                let most = if self.random.chance(1, 3) {
                    300
                } else {
                    30_000
                };
                VariablePlan {
                    words: 64 + self.random.index(most),
                    block_bytes: [512, 4096, 16384][self.random.index(3)],
                    changed_per_mille: [0, 20, 100, 400, 1000][self.random.index(5)],
                    resizes: !self.slabs && self.random.chance(1, 3),
                }
            })
            .collect()
    }

    fn lives(&mut self) -> Vec<LifePlan> {
        let count = 2 + self.random.index(5);
        let mut lives: Vec<LifePlan> = Vec::with_capacity(count);
        let mut nodes: Vec<usize> = (0..self.nodes).collect();
        for number in 0..count {
            let placement = self.place(&nodes);
            let used: Vec<usize> = nodes.clone();
            let opening = (number > 0 && self.random.chance(1, 15)).then(|| self.trouble(&used));
            let steps = self.steps(&used);
            let end = self.end(placement.len(), steps.len());
            let (damage, absent) = self.losses(&used, number);
            nodes = self.next_nodes(&used, &damage, &absent);
            lives.push(LifePlan {
                placement,
                opening,
                steps,
                end,
                damage,
            });
        }
        lives
    }

    /// The node of each rank.
    fn place(&mut self, nodes: &[usize]) -> Vec<usize> {
        let ranks = if self.slabs {
            nodes.len() * self.ranks.div_ceil(self.nodes)
        } else {
            self.ranks
        };
        let used = nodes.len().min(ranks);
        (0..ranks).map(|rank| nodes[rank * used / ranks]).collect()
    }

    fn trouble(&mut self, nodes: &[usize]) -> Trouble {
        let one = nodes[self.random.index(nodes.len())];
        match self.random.below(4) {
            0 if nodes.len() > 1 => {
                let other = nodes.iter().find(|&&node| node != one);
                Trouble::Cut(one, *other.unwrap())
            }
            1 => Trouble::Isolate(one),
            2 => Trouble::Stall(one),
            _ => Trouble::Random(5 + self.random.below(100)),
        }
    }

    fn steps(&mut self, nodes: &[usize]) -> Vec<Step> {
        let count = 1 + self.random.index(7);
        let mut steps: Vec<Step> = (0..count)
            .map(|_| Step {
                take: match self.random.below(10) {
                    0 => Take::Nothing,
                    1 => Take::Start,
                    2..=5 => Take::Node,
                    _ => Take::Protected,
                },
                trouble: None,
                late: self
                    .random
                    .chance(1, 5)
                    .then(|| (self.random.index(self.ranks), self.random.below(4))),
            })
            .collect();
        if count > 2 && self.random.chance(1, 10) {
            let from = self.random.index(count - 2);
            steps[from].trouble = Some(self.trouble(nodes));
            let to = (from + 1 + self.random.index(2)).min(count - 1);
            steps[to].trouble = Some(Trouble::Heal);
            steps[count - 1].take = Take::Protected;
        }
        steps
    }

    fn end(&mut self, ranks: usize, steps: usize) -> End {
        match self.random.below(12) {
            0..=2 => End::Close,
            3..=5 => End::Leave,
            6 | 7 => End::Kill(Trigger::Meeting(
                self.random.index(ranks),
                1 + self.random.below(25 + 6 * steps as u64),
            )),
            8 => End::Kill(Trigger::Step(
                self.random.index(steps),
                self.random.below(6000),
            )),
            _ => {
                use Operation as O;
                let operations = [
                    (O::Survey, 2),
                    (O::Table, 1),
                    (O::Rebuild, 2),
                    (O::Repair, 2),
                    (O::Join, 1),
                    (O::Collect, 2),
                    (O::Encode, 3),
                    (O::Take, 4),
                    (O::Flush, 3),
                    (O::Record, 6),
                    (O::Settle, 4),
                    (O::Pull, 6),
                ];
                let all: u64 = operations.iter().map(|(_, weight)| weight).sum();
                let mut draw = self.random.below(all);
                let chosen = operations.iter().find(|(_, weight)| {
                    let found = draw < *weight;
                    draw = draw.saturating_sub(*weight);
                    found
                });
                let operation = chosen.map_or(O::Record, |(operation, _)| *operation);
                End::Kill(Trigger::Operation(operation, 1 + self.random.below(12)))
            }
        }
    }

    /// What is done to the nodes' files after a life, and who is left out of the next.
    fn losses(&mut self, nodes: &[usize], life: usize) -> (Vec<Damage>, Vec<usize>) {
        let covered = match self.redundancy {
            Redundancy::None => 0,
            Redundancy::Rs => self.parity as usize,
            _ => 1,
        };
        let count = match self.random.below(20) {
            0..=6 => 0,
            7..=16 => 1 + self.random.index(covered.max(1)),
            _ => covered + 1,
        };
        let mut victims = nodes.to_vec();
        self.random.shuffle(&mut victims);
        let (mut damage, mut absent) = (Vec::new(), Vec::new());
        for &node in victims.iter().take(count) {
            match self.random.below(20) {
                0..=8 => damage.push(Damage::Wipe(node)),
                9..=12 => damage.push(Damage::Flip(node, 1 + self.random.below(4))),
                13 => damage.push(Damage::FlipLog(node)),
                14 | 15 => damage.push(Damage::TearLog(node)),
                16 | 17 if life > 0 => damage.push(Damage::Return(node, self.random.index(life))),
                _ => absent.push(node),
            }
        }
        (damage, absent)
    }

    /// The nodes of the next life, in the order of their ranks.
    fn next_nodes(&mut self, nodes: &[usize], damage: &[Damage], absent: &[usize]) -> Vec<usize> {
        let wiped = |node: &usize| damage.contains(&Damage::Wipe(*node));
        let mut next: Vec<usize> = Vec::new();
        for node in nodes {
            let replaced = absent.contains(node) || wiped(node) && self.random.chance(1, 2);
            if !replaced {
                next.push(*node);
                continue;
            }
            if self.random.chance(2, 3) || next.is_empty() {
                // A spare, or one that was left out before.
                let free = (0..self.nodes + SPARES)
                    .filter(|n| !nodes.contains(n) && !next.contains(n))
                    .collect::<Vec<_>>();
                next.extend(free.get(self.random.index(free.len())));
            }
        }
        let more = (0..self.nodes + SPARES).find(|node| !next.contains(node));
        if next.is_empty() || self.slabs && next.len() < 7 && self.random.chance(1, 8) {
            next.extend(more);
        }
        if self.slabs && next.len() > 2 && self.random.chance(1, 8) {
            next.pop();
        }
        let keep_order = if self.redundancy == Redundancy::None {
            9
        } else {
            7
        };
        match self.random.below(10) {
            order if order < keep_order => {}
            7 => next.reverse(),
            _ => self.random.shuffle(&mut next),
        }
        next
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {:?}, parity {}, groups of {}, {} bytes a block, {:?}, {} retained{}",
            self.seed,
            self.redundancy,
            self.parity,
            self.group_size,
            self.block_bytes,
            self.tracking,
            self.retained,
            if self.slabs { ", slabs" } else { "" }
        )?;
        writeln!(f, "  domains of the nodes: {:?}", self.domains)?;
        for variable in &self.variables {
            writeln!(f, "  {variable:?}")?;
        }
        for (number, life) in self.lives.iter().enumerate() {
            writeln!(f, "  life {number} on nodes {:?}", life.placement)?;
            if let Some(trouble) = life.opening {
                writeln!(f, "    while it restores: {trouble:?}")?;
            }
            for (at, step) in life.steps.iter().enumerate() {
                write!(f, "    step {at}: {:?}", step.take)?;
                if let Some(trouble) = step.trouble {
                    write!(f, ", {trouble:?}")?;
                }
                if let Some((rank, time)) = step.late {
                    write!(f, ", rank {rank} {time} ms late")?;
                }
                writeln!(f)?;
            }
            writeln!(f, "    then {:?}; {:?}", life.end, life.damage)?;
        }
        Ok(())
    }
}
