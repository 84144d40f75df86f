// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one start of a simulated job, from its start to its end or death.
//! In: the scenario, the start's number, what the model knows. Out: where its files are, and a ledger.
//! Invariants: all endpoints are there before the first rank asks another; what outlives a start is told of
//! its end only when no thread of it can do any more harm.

use crate::agents::Agents;
use crate::invariants::{ONE_START, broken};
use crate::ledger::Ledger;
use crate::model::{self, Expect, Model};
use crate::rank::{Seat, configuration};
use crate::scenario::{Damage, End, Fate, Halt, Scenario, StartPlan};
use crate::staging::{SERVERS_MAX, Servers, server_name};
use crate::world::{Death, Event, Repeats, World, copy_tree, node_name};
use crate::{PANICS, counts, damage};
use backstay::{Communicator, ErrorKind, Session};
use backstay_net::Endpoint;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::SimNetwork;
use backstay_testkit::seeded::Seeded;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// No start takes longer.
const START_LIMIT: Duration = Duration::from_secs(90);
/// No call of the communicator does.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// The same where a node waits for dead ones.
const DEAD_CALL_LIMIT: Duration = Duration::from_secs(8);

/// Nor does it take longer to refuse a second start.
const BESIDE_LIMIT: Duration = Duration::from_secs(30);

/// A start, before it begins.
pub(crate) struct Start<'a> {
    pub(crate) scenario: &'a Arc<Scenario>,
    pub(crate) number: usize,
    pub(crate) root: &'a Path,
    /// Where its files are.
    pub(crate) folder: &'a Path,
    pub(crate) ledger: &'a Arc<Ledger>,
    pub(crate) model: &'a Model,
}

/// What goes on from one start to the next.
pub(crate) struct Others {
    pub(crate) servers: Servers,
    pub(crate) agents: Agents,
    /// A node of the former start.
    pub(crate) hanging: Option<Hanging>,
}

/// A node that hung when the others died.
pub(crate) struct Hanging {
    world: Arc<World>,
    node: usize,
    /// When the next start runs for so long, it goes on.
    late: Duration,
    /// Where its files are.
    folder: PathBuf,
    events: Receiver<Event>,
    /// Ranks of that start that are not at their ends.
    ranks: usize,
}

impl Hanging {
    /// Has it go on when the start that begins has run for a while.
    pub(crate) fn go_on_later(&self) {
        let (world, late) = (Arc::clone(&self.world), self.late);
        std::thread::spawn(move || {
            std::thread::sleep(late);
            world.go_on();
        });
    }

    /// Its processes ended: what they left of its files is what the start in `folder` left of them.
    pub(crate) fn come_back(self, folder: &Path) -> Result<(), String> {
        self.world.go_on();
        wait_all(&self.events, self.ranks)?;
        let name = node_name(self.node);
        let (from, to) = (self.folder.join(&name), folder.join(&name));
        let copied = damage::remove(&to).and_then(|()| copy_tree(&from, &to));
        counts::one("nodes that hung and came back");
        copied.map_err(|error| format!("copying {name}: {error}"))
    }
}

/// How its threads ended.
struct Ended {
    dead: bool,
    /// Ranks that came to their ends before it died.
    finished: usize,
}

enum Waited {
    Ended(Ended),
    /// When so many ranks had come to their ends.
    Stopped(usize),
}

impl Start<'_> {
    fn plan(&self) -> &StartPlan {
        &self.scenario.starts[self.number]
    }

    /// Where its files are after a death.
    fn after(&self) -> PathBuf {
        self.root.join(format!("start-{}", self.number + 1))
    }

    /// Starts it; returns where its files are.
    pub(crate) fn live(
        &self,
        Others {
            servers,
            agents,
            hanging,
        }: &mut Others,
    ) -> Result<PathBuf, String> {
        let outlive = self.scenario.servers_outlive();
        let network = network(self, servers, agents);
        if self.scenario.one_sided {
            network.read_past_owners();
        }
        let (counted, before) = (network.clone(), (network.faults(), network.reads_past()));
        let apart = agents.take_part(self.scenario, self.number);
        let agents_outlive = apart && self.scenario.fate(self.number) != Some(Fate::Die);
        let names = endpoints(&self.plan().placement, apart);
        let (sender, receiver) = channel();
        let death = self.death(agents_outlive);
        let world = World::new(
            network,
            (self.folder, &self.after()),
            self.mortals(&names, apart, agents_outlive),
            (death, self.repeats()),
            (
                &self.plan().placement,
                names_of_nodes(self.plan(), &names, apart),
            ),
            sender,
        );
        let endpoint = |name: &String| -> Arc<dyn Endpoint> {
            if apart {
                agents.endpoint(&world.network, name, self.number)
            } else {
                world.network.endpoint(name)
            }
        };
        let endpoints: Vec<_> = names.iter().map(endpoint).collect();
        agents.start(self.scenario, self.number, &world)?;
        if let Some(fault) = self.plan().pulls {
            world.fail_pulls(names[fault.rank].clone(), fault);
        }
        if let Some(fault) = self.plan().reads {
            world.fail(fault);
        }
        let started = servers.start(self.scenario, self.number, &world);
        started.map_err(|error| error.to_string())?;
        self.start_ranks(&world, endpoints);
        let ended = self.wait(&receiver, &world);
        counts::network(&counted, &before);
        if !outlive {
            servers.end(matches!(ended, Ok(Ended { dead: false, .. })));
        }
        let ended = ended?;
        if apart {
            self.part_from(agents, &ended, &world, &receiver)?;
        }
        let panics = std::mem::take(&mut *PANICS.lock().unwrap());
        if !panics.is_empty() {
            return Err(format!("panics: {panics:#?}"));
        }
        if let (Some(Halt::Node(node, ms)), true) = (death.halt, ended.dead) {
            *hanging = Some(Hanging {
                world,
                node,
                late: Duration::from_millis(ms),
                folder: self.folder.to_owned(),
                events: receiver,
                ranks: self.plan().placement.len() - ended.finished,
            });
        }
        let copied = ended.dead && !agents_outlive;
        Ok(if copied {
            self.after()
        } else {
            self.folder.to_owned()
        })
    }

    fn death(&self, agents_outlive: bool) -> Death {
        let trigger = match self.plan().end {
            End::Kill(trigger) | End::Stall(trigger) => Some(trigger),
            _ => None,
        };
        Death {
            trigger,
            stalls: matches!(self.plan().end, End::Stall(_)),
            servers_outlive: self.scenario.servers_outlive(),
            agents_outlive,
            halt: self.scenario.halt(self.number),
        }
    }

    /// Waits for its end, or its death; where it is stopped, the job is started a second time.
    fn wait(&self, events: &Receiver<Event>, world: &World) -> Result<Ended, String> {
        let ranks = self.plan().placement.len();
        let mut before = 0;
        loop {
            match wait(events, ranks, before)? {
                Waited::Ended(ended) => return Ok(ended),
                Waited::Stopped(finished) => before = finished,
            }
            self.ledger.shaken();
            let refused = self.ledger.started().then(|| self.try_beside());
            world.go_on();
            refused.unwrap_or(Ok(()))?;
        }
    }

    /// [`ONE_START`]: a second start of the job while this start, which took checkpoints, is stopped.
    fn try_beside(&self) -> Result<(), String> {
        // Its files have other names, by which they are told from those of the first.
        let beside = self.root.join(format!("beside-{}", self.number));
        let link = |node: usize| {
            let name = node_name(node);
            std::os::unix::fs::symlink(self.folder.join(&name), beside.join(&name))
        };
        std::fs::create_dir_all(&beside)
            .and_then(|()| self.plan().nodes().into_iter().try_for_each(link))
            .map_err(|error| format!("making {}: {error}", beside.display()))?;
        let (sender, receiver) = channel();
        let (scenario, number) = (Arc::clone(self.scenario), self.number);
        std::thread::spawn(move || sender.send(start_beside(&scenario, number, &beside)));
        let told = receiver.recv_timeout(BESIDE_LIMIT);
        let told = told.map_err(|_| broken(ONE_START, "a second one was not refused in time"))?;
        counts::one("second starts of a job that was stopped");
        if told.iter().all(|kind| *kind == Some(ErrorKind::StoreBusy)) {
            return Ok(());
        }
        Err(broken(ONE_START, format!("a second one was told {told:?}")))
    }

    fn repeats(&self) -> Repeats {
        let parts = [self.scenario.seed, self.number as u64, 0x0074_7769_6365];
        Repeats {
            per_mille: self.scenario.repeats,
            random: Seeded::of(&parts),
        }
    }

    /// The endpoints that die with it.
    fn mortals(&self, names: &[String], apart: bool, agents_outlive: bool) -> Vec<String> {
        let mut down = if apart { names.to_vec() } else { Vec::new() };
        if !agents_outlive {
            down.extend(self.plan().nodes().into_iter().map(node_name));
        }
        if !self.scenario.servers_outlive() {
            down.extend((0..SERVERS_MAX).map(server_name));
        }
        down
    }

    fn start_ranks(&self, world: &Arc<World>, endpoints: Vec<Arc<dyn Endpoint>>) {
        let (scenario, model) = (self.scenario, self.model);
        let expect = Expect::of(scenario, &model::order(&self.plan().placement));
        let steps = Arc::new(model.steps().clone());
        let limit = match self.scenario.halt(self.number) {
            Some(Halt::Node(..)) => DEAD_CALL_LIMIT,
            _ => CALL_LIMIT,
        };
        let ranks = ThreadComm::with_limit(endpoints.len(), limit);
        for ((rank, comm), endpoint) in ranks.into_iter().enumerate().zip(endpoints) {
            let seat = Seat {
                scenario: Arc::clone(scenario),
                start: self.number,
                world: Arc::clone(world),
                ledger: Arc::clone(self.ledger),
                expect,
                endpoint,
                rank,
                furthest: model.furthest(),
                harmed: !model.harmed().is_disjoint(&self.plan().nodes()),
                covered: model.covered(&self.plan().nodes()),
                steps: Arc::clone(&steps),
            };
            std::thread::spawn(move || run_rank(seat, comm));
        }
    }

    /// No rank is left: what becomes of the agents, and of the threads of the ranks.
    fn part_from(
        &self,
        agents: &mut Agents,
        ended: &Ended,
        world: &World,
        events: &Receiver<Event>,
    ) -> Result<(), String> {
        agents.disarm();
        world.heal();
        if world.lost_agent() {
            self.ledger.shaken();
        }
        if self.ledger.is_closed() && !ended.dead {
            agents.part(self.plan().nodes().into_iter())?;
        }
        let nodes = model::order(&self.plan().placement);
        let protects = Expect::of(self.scenario, &nodes) != Expect::Unsupported;
        let dies = self.scenario.fate(self.number) == Some(Fate::Die);
        let done = !dies && protects && agents.finish(&nodes, self.ledger)?;
        let later = self.scenario.starts.iter().flat_map(|start| &start.damage);
        let returns =
            |damage: &Damage| matches!(damage, Damage::Return(_, start) if *start == self.number);
        // They would go on in space that dead ranks clear up, in the simulation only; or be copied meanwhile.
        let ends = !done && self.ledger.started() || later.into_iter().any(returns);
        if dies || ends {
            agents.die(None)?;
        }
        world.bury();
        wait_all(events, self.plan().placement.len() - ended.finished)
    }
}

/// What each rank is told that opens a session in `folder`.
fn start_beside(scenario: &Scenario, number: usize, folder: &Path) -> Vec<Option<ErrorKind>> {
    let network = SimNetwork::new(scenario.seed);
    let placement = &scenario.starts[number].placement;
    run_ranks(ThreadComm::new(placement.len()), |comm| {
        let rank = usize::try_from(comm.rank()).unwrap();
        let node = placement[rank];
        let endpoint = network.endpoint(&format!("{}-{rank}", node_name(node)));
        let config = configuration(scenario, folder, node);
        let opened = Session::open_on(Box::new(comm), config, Some(endpoint));
        opened.err().map(|error| error.kind())
    })
}

/// All endpoints of each node, where there is more than one.
fn names_of_nodes(plan: &StartPlan, names: &[String], apart: bool) -> BTreeMap<usize, Vec<String>> {
    let mut all: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for (node, name) in plan.placement.iter().zip(names).filter(|_| apart) {
        let of_node = all.entry(*node).or_insert_with(|| vec![node_name(*node)]);
        of_node.push(name.clone());
    }
    all
}

/// The start of one rank, in its thread.
fn run_rank(seat: Seat, comm: ThreadComm) {
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| seat.live(comm)));
    let (world, rank) = (Arc::clone(&seat.world), seat.rank);
    drop(seat);
    world.tell(match lived {
        Ok(Ok(())) => Event::Finished,
        Ok(Err(text)) => Event::Violation(text),
        Err(_) => Event::Violation(format!("rank {rank} panicked")),
    });
}

/// The network of a start: that of the start before, where servers go on in it.
fn network(start: &Start<'_>, servers: &Servers, agents: &mut Agents) -> SimNetwork {
    let (scenario, number) = (start.scenario, start.number as u64);
    let seed = scenario.seed.wrapping_mul(31).wrapping_add(number);
    if let Some(network) = agents.network() {
        return network;
    }
    match servers.network() {
        Some(network) if scenario.servers_outlive() => network,
        _ => SimNetwork::new(seed),
    }
}

/// The name of each rank's endpoint: the node's, or one of its own where another rank leads the node, or
/// the agents are `apart`.
fn endpoints(placement: &[usize], apart: bool) -> Vec<String> {
    let name = |(rank, node): (usize, &usize)| {
        let leads = placement.iter().position(|other| other == node) == Some(rank);
        let name = node_name(*node);
        if leads && !apart {
            name
        } else {
            format!("{name}-{rank}")
        }
    };
    placement.iter().enumerate().map(name).collect()
}

/// Waits until so many ranks that are dead have come to their ends.
fn wait_all(events: &Receiver<Event>, ranks: usize) -> Result<(), String> {
    for _ in 0..ranks {
        match events.recv_timeout(CALL_LIMIT) {
            Ok(Event::Violation(text)) => return Err(text),
            Ok(_) => {}
            Err(_) => return Err("HANG: ranks that are dead".to_owned()),
        }
    }
    Ok(())
}

/// Waits for the end of a start, or its death.
fn wait(events: &Receiver<Event>, ranks: usize, before: usize) -> Result<Waited, String> {
    let ended = |dead, finished| Waited::Ended(Ended { dead, finished });
    let deadline = Instant::now() + START_LIMIT;
    let mut finished = before;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match events.recv_timeout(left) {
            Ok(Event::Violation(text)) => return Err(text),
            Ok(Event::Dead) => return Ok(ended(true, finished)),
            Ok(Event::Stopped) => return Ok(Waited::Stopped(finished)),
            Ok(Event::Finished) => {
                finished += 1;
                if finished == ranks {
                    // A death may have come with the last of them.
                    return match events.recv_timeout(Duration::ZERO) {
                        Ok(Event::Dead) => Ok(ended(true, finished)),
                        Ok(Event::Violation(text)) => Err(text),
                        _ => Ok(ended(false, finished)),
                    };
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(format!("HANG: {finished} of {ranks} ranks ended"));
            }
        }
    }
}
