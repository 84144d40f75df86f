// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what is added to the job of a seed, so that it comes to where defects were, or may be: a session
//! that goes back, pins, reads that fail, devices that do, nodes that were away.
//! In: a scenario. Out: the same with a story in it.
//! Invariants: a seed's story is drawn from numbers of its own.

use crate::TOLD;
use crate::maker::SPARES;
use crate::scenario::{
    Access, AgentTrigger, ArchiveSetup, Damage, Deed, Device, DeviceFault, End, Fate, Halt, How,
    Operation, PullFault, Scenario, StartPlan, Step, Take, Trigger, Trouble, VariablePlan,
};
use backstay::config::Redundancy;
use backstay_testkit::network::Fault;
use backstay_testkit::seeded::Seeded;

/// Seeds without a story that `README.md` names.
const PLAIN: [u64; 2] = [8, 171];

/// The scenario with the story of its seed, if it has one.
pub(crate) fn told(scenario: Scenario) -> Scenario {
    let mut random = Seeded::of(&[scenario.seed, 0x0073_746f_7279]);
    let draw = random.below(20);
    let mut more = Seeded::of(&[scenario.seed, 0x6d6f_7265]);
    let mut teller = Teller { random, scenario };
    let story = match draw {
        0..=3 => match more.below(8) {
            0 | 1 => Some(teller.a_log_is_full()),
            2 | 3 => Some(teller.an_heir_is_late()),
            _ if PLAIN.contains(&teller.scenario.seed) => None,
            _ => Some(teller.outlives()),
        },
        4 | 5 => Some(teller.goes_back()),
        6 | 7 => Some(teller.restores_between()),
        8 => Some(teller.pins()),
        9 => Some(teller.was_away()),
        10 | 11 => Some(teller.pulls_fail()),
        12 => Some(teller.reads_fail()),
        13 | 14 => Some(teller.devices_fail()),
        15 => Some(teller.another_source()),
        _ => Some(teller.archives()),
    };
    teller.scenario.clock_jumps = teller.random.chance(1, 4);
    let mut twice = Seeded::of(&[teller.scenario.seed, 0x0074_7769_6365]);
    if twice.chance(1, 2) {
        teller.scenario.repeats = [20, 100, 300, 1000][twice.index(4)];
    }
    let seed = teller.scenario.seed;
    // Those that find a defect of pulls again find it where owners take part in them.
    teller.scenario.one_sided =
        !TOLD.contains(&seed) && Seeded::of(&[seed, 0x0070_6173_7473]).chance(1, 2);
    teller.scenario.story = story;
    teller.finishes();
    teller.scenario
}

struct Teller {
    random: Seeded,
    scenario: Scenario,
}

impl Teller {
    /// In some seeds programs say that they are done, or die while they do.
    fn finishes(&mut self) {
        let mut done = Seeded::of(&[self.scenario.seed, 0x646f_6e65]);
        let apart = self.scenario.agents.iter().any(Option::is_some);
        let stopped = self.scenario.halts.iter().any(Option::is_some);
        if apart || stopped || !done.chance(1, 5) {
            return;
        }
        for start in &mut self.scenario.starts {
            let finishes = start.end != End::Leave && done.chance(1, 2);
            self.scenario.finishes.push(finishes);
            if finishes && done.chance(1, 3) {
                let late = done.below(20_000);
                start.end = End::Kill(Trigger::Step(start.steps.len(), late));
            }
        }
    }

    fn start(&mut self) -> &mut StartPlan {
        let at = self.random.index(self.scenario.starts.len());
        &mut self.scenario.starts[at]
    }

    /// Checkpoints that are protected can be.
    fn redundant(&mut self) {
        if self.scenario.redundancy == Redundancy::None {
            self.scenario.redundancy = Redundancy::Xor;
        }
    }

    fn takes(&mut self, count: usize) -> Vec<Step> {
        (0..count)
            .map(|_| {
                Step::take(if self.random.chance(1, 2) {
                    Take::Protected
                } else {
                    Take::Node
                })
            })
            .collect()
    }

    /// A session goes back to an older checkpoint, and what it takes then is protected as before.
    fn goes_back(&mut self) -> &'static str {
        self.redundant();
        self.scenario.retained = 5;
        let before = 4 + self.random.index(4);
        let mut steps = self.takes(before);
        steps.push(Step::take(Take::Protected));
        for _ in 0..=self.random.index(2) {
            steps.push(Step::of(Deed::GoBack(1 + self.random.index(4))));
            let after = self.random.index(4);
            steps.extend(self.takes(after));
            steps.push(Step::take(Take::Protected));
        }
        let start = self.start();
        start.steps = steps;
        "a session goes back"
    }

    /// Sessions restore, pin and unpin between checkpoints.
    fn restores_between(&mut self) -> &'static str {
        if self.random.chance(1, 2) {
            self.scenario.retained = 4;
        }
        for at in 0..self.scenario.starts.len() {
            for _ in 0..self.random.index(4) {
                let deed = match self.random.below(7) {
                    0 => Deed::Restore,
                    1 | 2 => Deed::StartAndRestore,
                    3 | 4 => Deed::GoBack(1 + self.random.index(3)),
                    5 => Deed::Pin(self.random.index(3)),
                    _ => Deed::Unpin(self.random.index(3)),
                };
                let place = 1 + self.random.index(self.scenario.starts[at].steps.len());
                let steps = &mut self.scenario.starts[at].steps;
                steps.insert(place, Step::of(deed));
            }
        }
        "sessions restore, pin and unpin"
    }

    /// More pins than a root has room for.
    fn pins(&mut self) -> &'static str {
        let count = 58 + self.random.index(12);
        let take = if self.random.chance(1, 2) {
            Take::Protected
        } else {
            Take::Node
        };
        for plan in &mut self.scenario.variables {
            plan.words = plan.words.min(600);
        }
        let last = self.scenario.starts.len() - 1;
        let at = self.random.index(last.max(1));
        let steps = vec![
            Step::of(Deed::PinMany(count)),
            Step::take(take),
            Step::take(Take::Node),
        ];
        let start = &mut self.scenario.starts[at];
        start.steps = steps;
        if let End::Kill(_) = start.end {
            start.end = End::Leave;
        }
        "a session pins more than there is room for"
    }

    /// A node goes away with checkpoints that nobody else has, its store is made again on another node, and
    /// then it is back.
    fn was_away(&mut self) -> &'static str {
        let nodes = 3 + self.random.index(3);
        let scenario = &mut self.scenario;
        scenario.redundancy = [Redundancy::Xor, Redundancy::Rs][self.random.index(2)];
        scenario.slabs = false;
        scenario.group_size = 8;
        scenario.domains = (0..nodes + 1 + SPARES).collect();
        let ranks = nodes + 1;
        let place =
            |on: &[usize]| -> Vec<usize> { (0..ranks).map(|r| on[r * on.len() / ranks]).collect() };
        let gone = self.random.index(nodes);
        let home: Vec<usize> = (0..nodes).collect();
        let spare = nodes;
        let meanwhile: Vec<usize> = home
            .iter()
            .map(|&n| if n == gone { spare } else { n })
            .collect();
        let mut later = meanwhile.clone();
        later.push(gone);
        if self.random.chance(1, 3) {
            later.reverse();
        }
        let mut first = vec![Step::take(Take::Protected)];
        let mut cut = Step::take(Take::Node);
        cut.trouble = Some(Trouble::Isolate(gone));
        first.push(cut);
        let more = 1 + self.random.index(4);
        first.extend((0..more).map(|_| Step::take(Take::Node)));
        let few = 1 + self.random.index(3);
        let second: Vec<Step> = (0..few).map(|_| Step::take(Take::Protected)).collect();
        let start = |placement, steps| StartPlan {
            placement,
            opening: None,
            pulls: None,
            reads: None,
            steps,
            end: End::Leave,
            damage: Vec::new(),
        };
        self.scenario.starts = vec![
            start(place(&home), first),
            start(place(&meanwhile), second.clone()),
            start(place(&later), second.clone()),
            start(place(&later), second),
        ];
        "a node that was away comes back"
    }

    /// Pulls of one rank fail while it restores, and in the next start none does.
    fn pulls_fail(&mut self) -> &'static str {
        self.redundant();
        let count = self.scenario.starts.len();
        for at in 1..count {
            let ranks = self.scenario.starts[at].placement.len();
            let fault = PullFault {
                rank: self.random.index(ranks),
                after: if self.random.chance(1, 2) {
                    0
                } else {
                    self.random.below(40)
                },
                count: [1, 3, u64::MAX][self.random.index(3)],
                fault: Fault::ALL[self.random.index(Fault::ALL.len())],
            };
            // Parts are on other nodes than their ranks.
            if self.random.chance(2, 3) {
                self.scenario.starts[at].placement.reverse();
            }
            if self.random.chance(2, 3) {
                self.scenario.starts[at].pulls = Some(fault);
            }
        }
        "pulls of one rank fail while it restores"
    }

    /// What is stored cannot be read while the job restores.
    fn reads_fail(&mut self) -> &'static str {
        for at in 1..self.scenario.starts.len() {
            let nodes: Vec<usize> = self.scenario.starts[at].nodes().into_iter().collect();
            let fault = DeviceFault {
                node: Some(nodes[self.random.index(nodes.len())]),
                device: if self.random.chance(3, 4) {
                    Device::Store
                } else {
                    Device::Log
                },
                access: Access::Read,
                after: self.random.below(30),
                count: [1, 2, u64::MAX][self.random.index(3)],
                how: [How::Io, How::Stale][self.random.index(2)],
            };
            if self.random.chance(2, 3) {
                self.scenario.starts[at].reads = Some(fault);
            }
        }
        "reads fail while a job restores"
    }

    fn fault(&mut self, nodes: &[usize]) -> DeviceFault {
        let access = match self.random.below(8) {
            0 => Access::Read,
            1..=4 => Access::Write,
            5 => Access::Reserve,
            _ => Access::Sync,
        };
        let how = match access {
            Access::Read | Access::Sync => How::Io,
            Access::Reserve => [How::NoSpace, How::Quota][self.random.index(2)],
            Access::Write => [How::NoSpace, How::Io, How::Short, How::Stale][self.random.index(4)],
        };
        DeviceFault {
            node: Some(nodes[self.random.index(nodes.len())]),
            device: if self.random.chance(2, 3) {
                Device::Store
            } else {
                Device::Log
            },
            access,
            after: self.random.below(12),
            count: [1, 2, u64::MAX][self.random.index(3)],
            how,
        }
    }

    /// Devices fail in some steps, and sessions go back.
    fn devices_fail(&mut self) -> &'static str {
        for at in 0..self.scenario.starts.len() {
            let nodes: Vec<usize> = self.scenario.starts[at].nodes().into_iter().collect();
            for step in 0..self.scenario.starts[at].steps.len() {
                if self.random.chance(1, 3) {
                    let fault = self.fault(&nodes);
                    self.scenario.starts[at].steps[step].fault = Some(fault);
                }
                if self.random.chance(1, 6) {
                    let deed = Deed::GoBack(self.random.index(2));
                    self.scenario.starts[at].steps[step].deed = deed;
                }
            }
            self.scenario.starts[at]
                .steps
                .push(Step::take(Take::Protected));
        }
        "devices fail"
    }

    /// A stripe log is full for a while: what was encoded and could not be recorded takes no space.
    fn a_log_is_full(&mut self) -> &'static str {
        let nodes = 2 + self.random.index(3);
        let full = self.random.index(nodes);
        let scenario = &mut self.scenario;
        scenario.redundancy = [Redundancy::Partner, Redundancy::Xor][self.random.index(2)];
        scenario.slabs = false;
        scenario.retained = 2;
        scenario.reserve_bytes = Some(16 << 20);
        scenario.domains = (0..nodes + SPARES).collect();
        scenario.variables = vec![VariablePlan {
            words: 40_000,
            block_bytes: 16_384,
            changed_per_mille: 1000,
            resizes: false,
        }];
        let fault = DeviceFault {
            node: Some(full),
            device: Device::Log,
            access: Access::Write,
            after: 0,
            count: u64::MAX,
            how: [How::NoSpace, How::Short, How::Io][self.random.index(3)],
        };
        // A wait for what cannot be protected takes the whole time-out.
        let failing = |at: usize| {
            let waits = at % 8 == 7;
            let mut step = Step::take(if waits { Take::Protected } else { Take::Node });
            step.fault = Some(fault);
            step
        };
        let well = |count| vec![Step::take(Take::Protected); count];
        let rounds = 8 * (2 + self.random.index(2));
        let mut steps = well(2);
        steps.extend((0..rounds).map(failing));
        steps.extend(well(3));
        let start = |steps| StartPlan {
            placement: (0..nodes).collect(),
            opening: None,
            pulls: None,
            reads: None,
            steps,
            end: End::Leave,
            damage: vec![Damage::Wipe(full)],
        };
        self.scenario.starts = vec![start(steps), start(well(2))];
        "a stripe log is full for a while"
    }

    /// A session restores what other ranks, or other nodes, took; a checkpoint after it fails; the next one
    /// is well.
    fn another_source(&mut self) -> &'static str {
        let nodes = 2 + self.random.index(3);
        let moves = self.random.chance(1, 2);
        let scenario = &mut self.scenario;
        scenario.slabs = !moves;
        scenario.redundancy = Redundancy::Xor;
        scenario.retained = 5;
        scenario.domains = (0..nodes + 2 + SPARES).collect();
        scenario.variables = vec![VariablePlan {
            words: 4000 + self.random.index(20_000),
            block_bytes: 4096,
            changed_per_mille: 400,
            resizes: false,
        }];
        let home: Vec<usize> = (0..nodes).collect();
        let mut other = home.clone();
        if moves {
            other.reverse();
        } else {
            other.push(nodes);
        }
        let start = |placement: &[usize], steps| StartPlan {
            placement: placement.to_vec(),
            opening: None,
            pulls: None,
            reads: None,
            steps,
            end: End::Leave,
            damage: Vec::new(),
        };
        let first: Vec<Step> = (0..3).map(|_| Step::take(Take::Protected)).collect();
        let mut failing = Step::take(Take::Node);
        failing.fault = Some(DeviceFault {
            node: Some(other[self.random.index(other.len())]),
            device: Device::Store,
            access: Access::Write,
            after: self.random.below(6),
            count: u64::MAX,
            how: [How::NoSpace, How::Io, How::Short][self.random.index(3)],
        });
        let mut second: Vec<Step> = (0..=self.random.index(2))
            .map(|_| Step::take(Take::Node))
            .collect();
        second.push(Step::of(Deed::GoBack(1 + self.random.index(3))));
        if self.random.chance(1, 3) {
            second.push(Step::take(Take::Node));
        }
        second.push(failing);
        let after = 1 + self.random.index(2);
        second.extend((0..after).map(|_| Step::take(Take::Node)));
        self.scenario.starts = vec![
            start(&home, first.clone()),
            start(&other, second),
            start(&other, first),
        ];
        "a session restores from another source, and a checkpoint fails"
    }

    /// A server stalls, another takes its place and cannot record that; the first goes on, dies, and the
    /// heir is asked again.
    fn an_heir_is_late(&mut self) -> &'static str {
        let archived = || Step::take(Take::Archived);
        // What is drained meanwhile is not recorded; room is made for it before.
        let unrecorded = |after| {
            let mut step = archived();
            step.fault = Some(DeviceFault {
                node: None,
                device: Device::Catalog,
                access: Access::Write,
                after,
                count: u64::MAX,
                how: How::NoSpace,
            });
            step
        };
        let mut stalled = unrecorded(0);
        stalled.trouble = Some(Trouble::StallServer(0));
        let mut healed = archived();
        healed.trouble = Some(Trouble::Heal);
        let mut dead = unrecorded(1);
        dead.trouble = Some(Trouble::EndServer(0));
        let between = 3 + self.random.index(7);
        let mut back = Step::take(Take::Nothing);
        back.trouble = Some(Trouble::Heal);
        let first = vec![archived(), stalled, unrecorded(0), unrecorded(0), back];
        let mut second = vec![archived(); between];
        second.extend([dead, healed, archived()]);
        let start = |steps| StartPlan {
            placement: vec![0],
            opening: None,
            pulls: None,
            reads: None,
            steps,
            end: End::Leave,
            damage: Vec::new(),
        };
        let mut starts = vec![start(first), start(second), start(vec![archived()])];
        starts[1].damage = vec![Damage::Wipe(0)];
        let words = 10_000 + self.random.index(50_000);
        let scenario = &mut self.scenario;
        scenario.redundancy = Redundancy::None;
        scenario.slabs = false;
        scenario.variables = vec![VariablePlan {
            words,
            block_bytes: 4096,
            changed_per_mille: [50, 150, 400][self.random.index(3)],
            resizes: false,
        }];
        scenario.archive = Some(ArchiveSetup {
            servers: vec![2; starts.len()],
            outlive: true,
            every: None,
            retained: 2,
            aggregate_nodes: None,
        });
        scenario.starts = starts;
        "a server takes the place of one that comes back"
    }

    /// Something of a start goes on when it is over, or another one has begun.
    fn outlives(&mut self) -> &'static str {
        let mut random = Seeded::of(&[self.scenario.seed, 0x6f75_746c]);
        match random.below(8) {
            0 => self.all_are_stopped(&mut random),
            1 => self.a_node_hangs(&mut random),
            _ => self.agents_are_processes(),
        }
    }

    /// All processes of a start are stopped, and the job is started a second time.
    fn all_are_stopped(&mut self, random: &mut Seeded) -> &'static str {
        let at = random.index(self.scenario.starts.len());
        let start = &mut self.scenario.starts[at];
        start.end = End::Leave;
        start.steps.push(Step::take(Take::Protected));
        let trigger = if random.chance(1, 2) {
            let rank = random.index(start.placement.len());
            Trigger::Meeting(rank, 20 + random.below(3 * start.steps.len() as u64))
        } else {
            let ranks = start.placement.len() as u64;
            Trigger::Device(Device::Store, Access::Write, 5 + random.below(10 * ranks))
        };
        self.scenario.halts = vec![None; at];
        self.scenario.halts.push(Some(Halt::All(trigger)));
        "a start that is stopped goes on"
    }

    /// A node hangs when the others die, goes on while the next start runs without it, and comes back.
    fn a_node_hangs(&mut self, random: &mut Seeded) -> &'static str {
        let nodes = 3 + random.index(3);
        let scenario = &mut self.scenario;
        scenario.redundancy = [Redundancy::Xor, Redundancy::Rs][random.index(2)];
        scenario.slabs = false;
        scenario.group_size = 8;
        scenario.domains = (0..nodes + 1 + SPARES).collect();
        let home: Vec<usize> = (0..nodes).collect();
        let gone = random.index(nodes);
        let mut meanwhile = home.clone();
        meanwhile[gone] = nodes;
        let mut steps = |least: usize| -> Vec<Step> {
            let take = |protected| {
                Step::take(if protected {
                    Take::Protected
                } else {
                    Take::Node
                })
            };
            let count = least + random.index(3);
            (0..count).map(|_| take(random.chance(2, 3))).collect()
        };
        let all = [steps(4), steps(1), steps(2), steps(1)];
        let operation = [Operation::Take, Operation::Record, Operation::Settle][random.index(3)];
        let trigger = match random.below(5) {
            0 => Trigger::Operation(operation, 1 + random.below(12)),
            1 => Trigger::Meeting(random.index(nodes), 25 + random.below(30)),
            2 => Trigger::Device(Device::Log, Access::Write, 1 + random.below(20)),
            3 => Trigger::Device(Device::Store, Access::Sync, 4 + random.below(40)),
            _ => Trigger::Device(Device::Store, Access::Write, 10 + random.below(120)),
        };
        let places = [&home, &meanwhile, &home, &home];
        let start = |(placement, steps): (&&Vec<usize>, Vec<Step>)| StartPlan {
            placement: (*placement).clone(),
            opening: None,
            pulls: None,
            reads: None,
            steps,
            end: End::Leave,
            damage: Vec::new(),
        };
        scenario.starts = places.iter().zip(all).map(start).collect();
        scenario.starts[0].end = End::Kill(trigger);
        scenario.halts = vec![Some(Halt::Node(gone, random.below(60)))];
        "a node hangs, goes on, and comes back"
    }

    /// Agents are processes of their own: they outlive ranks, die with them, or alone.
    fn agents_are_processes(&mut self) -> &'static str {
        let mut random = Seeded::of(&[self.scenario.seed, 0x6167_656e_7473]);
        self.redundant();
        let mut fate = |start: &StartPlan| match random.below(16) {
            0 => None,
            1..=7 => Some(Fate::Outlive),
            8..=11 => Some(Fate::Die),
            _ => {
                let nodes: Vec<usize> = start.nodes().into_iter().collect();
                let victim = nodes[random.index(nodes.len())];
                let number = 1 + random.below(60);
                let trigger = if random.chance(1, 2) {
                    AgentTrigger::Request(number)
                } else {
                    AgentTrigger::Write(number)
                };
                Some(Fate::OneDies(victim, trigger))
            }
        };
        self.scenario.agents = self.scenario.starts.iter().map(&mut fate).collect();
        "agents are processes of their own"
    }

    /// Checkpoints drain, servers and nodes die meanwhile, and all nodes are lost.
    fn archives(&mut self) -> &'static str {
        let count = self.scenario.starts.len();
        let random = &mut self.random;
        let servers = match random.below(3) {
            0 => vec![0; count],
            1 => vec![1 + random.index(2); count],
            _ => (0..count).map(|_| random.index(4)).collect(),
        };
        self.scenario.archive = Some(ArchiveSetup {
            servers,
            outlive: false,
            every: random.chance(1, 3).then_some(2),
            retained: 2 + u32::try_from(random.below(2)).unwrap(),
            aggregate_nodes: ArchiveSetup::nodes_each(self.scenario.seed),
        });
        if random.chance(1, 3) {
            self.scenario.redundancy = Redundancy::None;
        }
        for at in 0..count {
            let random = &mut self.random;
            let nodes: Vec<usize> = self.scenario.starts[at].nodes().into_iter().collect();
            let start = &mut self.scenario.starts[at];
            for step in &mut start.steps {
                if random.chance(1, 3) {
                    step.deed = Deed::Take(Take::Archived);
                }
                if random.chance(1, 10) {
                    step.deed = Deed::GoBack(random.index(2));
                }
                if random.chance(1, 8) {
                    step.fault = Some(archive_fault(random));
                }
            }
            start.steps.push(Step::take(Take::Archived));
            let trigger = match random.below(4) {
                0 => Trigger::Operation(Operation::Drain, 1 + random.below(40)),
                1 => Trigger::Device(Device::Aggregate, Access::Write, 1 + random.below(60)),
                2 => Trigger::Device(Device::Aggregate, Access::Sync, 1 + random.below(12)),
                _ => Trigger::Device(Device::Catalog, Access::Write, 1 + random.below(12)),
            };
            match random.below(6) {
                0 | 1 => start.end = End::Kill(trigger),
                2 => start.end = End::Stall(trigger),
                _ => {}
            }
            if random.chance(1, 3) {
                start.damage = nodes.into_iter().map(Damage::Wipe).collect();
            }
        }
        "checkpoints drain to an archive"
    }
}

/// What a parallel file system does not do.
fn archive_fault(random: &mut Seeded) -> DeviceFault {
    let access = [Access::Write, Access::Sync, Access::Reserve, Access::Read][random.index(4)];
    let how = match access {
        Access::Reserve => How::NoSpace,
        Access::Read | Access::Sync => [How::Io, How::Stale][random.index(2)],
        Access::Write => [How::NoSpace, How::Io, How::Short][random.index(3)],
    };
    DeviceFault {
        node: None,
        device: [Device::Aggregate, Device::Aggregate, Device::Catalog][random.index(3)],
        access,
        after: random.below(10),
        count: [1, 3, u64::MAX][random.index(3)],
        how,
    }
}
