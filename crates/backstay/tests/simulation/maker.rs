// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: draws a scenario from a seed.
//! In: a seed. Out: a `Scenario`.
//! Invariants: the same seed gives the same scenario on every machine; what `stories` adds is drawn from
//! numbers of its own, so that a seed's job stays what it was.

use crate::scenario::{
    Damage, Deed, End, Operation, Scenario, StartPlan, Step, Take, Trigger, Trouble, VariablePlan,
};
use backstay::config::{Redundancy, Tracking};
use backstay_testkit::seeded::Seeded;

/// Spare nodes beside those that the job begins on.
pub(crate) const SPARES: usize = 3;

pub(crate) struct Maker {
    random: Seeded,
    seed: u64,
    nodes: usize,
    redundancy: Redundancy,
    parity: u32,
    slabs: bool,
    ranks: usize,
}

impl Maker {
    pub(crate) fn new(seed: u64) -> Self {
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

    pub(crate) fn scenario(mut self) -> Scenario {
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
        let starts = self.starts();
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
            reserve_bytes: None,
            variables,
            archive: None,
            clock_jumps: false,
            repeats: 0,
            one_sided: false,
            starts,
            halts: Vec::new(),
            agents: Vec::new(),
            finishes: Vec::new(),
            story: None,
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

    fn starts(&mut self) -> Vec<StartPlan> {
        let count = 2 + self.random.index(5);
        let mut starts: Vec<StartPlan> = Vec::with_capacity(count);
        let mut nodes: Vec<usize> = (0..self.nodes).collect();
        for number in 0..count {
            let placement = self.place(&nodes);
            let used: Vec<usize> = nodes.clone();
            let opening = (number > 0 && self.random.chance(1, 15)).then(|| self.trouble(&used));
            let steps = self.steps(&used);
            let end = self.end(placement.len(), steps.len());
            let (damage, absent) = self.losses(&used, number);
            nodes = self.next_nodes(&used, &damage, &absent);
            starts.push(StartPlan {
                placement,
                opening,
                pulls: None,
                reads: None,
                steps,
                end,
                damage,
            });
        }
        starts
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
                deed: Deed::Take(match self.random.below(10) {
                    0 => Take::Nothing,
                    1 => Take::Start,
                    2..=5 => Take::Node,
                    _ => Take::Protected,
                }),
                trouble: None,
                fault: None,
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
            steps[count - 1].deed = Deed::Take(Take::Protected);
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

    /// What is done to the nodes' files after a start, and who is left out of the next.
    fn losses(&mut self, nodes: &[usize], start: usize) -> (Vec<Damage>, Vec<usize>) {
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
                16 | 17 if start > 0 => damage.push(Damage::Return(node, self.random.index(start))),
                _ => absent.push(node),
            }
        }
        (damage, absent)
    }

    /// The nodes of the next start, in the order of their ranks.
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
