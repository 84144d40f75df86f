// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the protection rounds of a job: forms groups, and takes each through collect, form
//! stripes, encode, flush, record, settle.
//! In from: the node of rank 0, which says which checkpoint is committed. Out to: all agents.
//! Invariants: a round names a checkpoint that every node retains; what an earlier round protects stays
//! protected until the next is recorded on every member; a round that failed leaves nothing behind
//! that the next one does not clear away.

pub use super::round::RoundReport;
use super::round::{GroupState, all, each, numbers, unexpected};
use super::{Agent, Ask, lock, peer, record};
use crate::group::{self, Scheme};
use crate::locate::newest_groups;
use backstay_base::clock::{Deadline, Stopwatch};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::fanout;
use backstay_base::notice::{self, SaidOnce};
use backstay_format::agent::{Answer, Request, Seat, Survey, SurveyedGroup};
use backstay_format::{CheckpointId, StoreId};
use backstay_net::Peer;
use backstay_store::control::{Control, wait_until};
use backstay_store::stripe_log::StripeTable;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks at nodes that are still making their stores.
pub(super) const STORE_PAUSE: Duration = Duration::from_millis(1);

/// A node of the job, as all leaders know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSeat {
    /// Its name.
    pub name: String,
    /// What fails together with it.
    pub domain: String,
    /// The address of its agent.
    pub address: String,
}

impl NodeSeat {
    /// Its agent.
    pub fn peer(&self) -> Peer {
        Peer::new(self.name.clone(), self.address.clone())
    }

    fn seat(&self, store: StoreId) -> Seat {
        Seat {
            store,
            node: self.name.clone(),
            domain: self.domain.clone(),
            address: self.address.clone(),
        }
    }
}

/// What coordinates the protection of a job.
#[derive(Debug)]
pub struct RoundCoordinator {
    agent: Arc<Agent>,
    nodes: Vec<NodeSeat>,
    scheme: Scheme,
    group_size: usize,
    groups: Vec<GroupState>,
    /// Nodes that nobody protects, and why.
    bare: Vec<String>,
    rounds: u64,
    /// Rounds of groups that were given up: theirs are above.
    former_round: u64,
    said: SaidOnce,
}

impl RoundCoordinator {
    /// Over all `nodes`, of which the agent's is one.
    pub fn new(agent: Arc<Agent>, nodes: Vec<NodeSeat>, scheme: Scheme, group_size: usize) -> Self {
        Self {
            agent,
            nodes,
            scheme,
            group_size,
            groups: Vec::new(),
            bare: Vec::new(),
            rounds: 0,
            former_round: 0,
            said: SaidOnce::default(),
        }
    }

    fn within(&self) -> Duration {
        self.agent.settings().within
    }

    /// Protects checkpoint `want`, which all nodes have committed or are committing.
    pub fn protect(&mut self, want: CheckpointId) -> Result<RoundReport> {
        self.rounds += 1;
        let caught = fanout::catch(|| Ok(self.try_protect(want)));
        let outcome = caught.unwrap_or_else(|panic| {
            // Something is half done.
            self.forget_groups();
            Err(panic)
        });
        match &outcome {
            Ok(_) => {
                if self.said.clear() {
                    notice::info(&format!("checkpoint {want} is protected again"));
                }
            }
            // Its successor is committed, and some node has only that: nobody waits for this one.
            Err(error) if error.kind() == ErrorKind::NotRetained && self.is_overtaken(want) => {}
            Err(error) => {
                self.said
                    .warn(&format!("checkpoint {want} is on its nodes only: {error}"));
                self.report(want, error);
            }
        }
        outcome
    }

    fn is_overtaken(&self, want: CheckpointId) -> bool {
        let control = self.agent.control();
        control.is_some_and(|control| control.committed() != want)
    }

    /// The next round forms them anew, of what the members have.
    fn forget_groups(&mut self) {
        let rounds = self.groups.iter().map(|group| group.round);
        self.former_round = rounds.fold(self.former_round, u64::max);
        self.groups.clear();
    }

    /// Tells all nodes what went wrong; those that cannot be reached are the reason, perhaps.
    fn report(&self, checkpoint: CheckpointId, error: &Error) {
        let request = Request::Report {
            round: self.rounds,
            checkpoint,
            kind: error.kind().code(),
            text: error.to_string().chars().take(1000).collect(),
        };
        let short = self.within().min(Duration::from_secs(2));
        each(&self.nodes, |_, node| {
            self.agent.ask(&node.peer(), &request, short)
        });
    }

    fn try_protect(&mut self, want: CheckpointId) -> Result<RoundReport> {
        if self.groups.is_empty() {
            self.form_groups()?;
        }
        let agent = Arc::clone(&self.agent);
        let within = self.within();
        let groups: Vec<Mutex<&mut GroupState>> = self.groups.iter_mut().map(Mutex::new).collect();
        let panicked = AtomicBool::new(false);
        let outcomes = each(&groups, |_, group| {
            let caught = fanout::catch(|| Ok(lock(group).round(&agent, want, within)));
            caught.unwrap_or_else(|panic| {
                panicked.store(true, Ordering::Relaxed);
                Err(panic)
            })
        });
        drop(groups);
        let done = outcomes.iter().all(Result::is_ok) && self.bare.is_empty();
        // Where a group failed nothing new is protected, and what was before is known.
        let protected = if done { want } else { CheckpointId::default() };
        let settled = self.settle(&outcomes, protected);
        if panicked.into_inner() {
            self.forget_groups();
        }
        settled?;
        let mut total = RoundReport {
            checkpoint: want,
            ..RoundReport::default()
        };
        for outcome in outcomes {
            let report = outcome?;
            total.stripes += report.stripes;
            total.bytes += report.bytes;
            total.removed += report.removed;
        }
        if !self.bare.is_empty() {
            return Err(Error::new(ErrorKind::Unsupported, self.bare.join("; ")));
        }
        Ok(total)
    }

    /// Tells the members of groups that recorded their round.
    fn settle(&self, outcomes: &[Result<RoundReport>], protected: CheckpointId) -> Result<()> {
        let within = self.within();
        let recorded: Vec<(Seat, u64, u64)> = self
            .groups
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| outcome.is_ok())
            .flat_map(|(group, _)| {
                let of = |seat: &Seat| (seat.clone(), group.epoch, group.round);
                group.seats.iter().map(of)
            })
            .collect();
        let told = each(&recorded, |_, (seat, epoch, round)| {
            let request = Request::Settle {
                epoch: *epoch,
                round: *round,
                protected,
            };
            self.agent.ask(&peer(seat), &request, within)
        });
        // It is recorded; who was not told is told with the next round.
        all(told).map(drop)
    }

    /// What every node's own store is; waits for nodes that are still making theirs.
    fn own_stores(&self) -> Result<Vec<Survey>> {
        let within = self.within();
        // A little before those who wait for this round give up.
        let deadline = Deadline::after(within.mul_f64(0.9));
        loop {
            let surveys = all(each(&self.nodes, |_, node| {
                match self.agent.ask(&node.peer(), &Request::Survey, within)? {
                    Answer::Surveys(surveys) => Ok(surveys.into_iter().find(|s| !s.rebuilt)),
                    other => Err(unexpected(&node.peer(), &other)),
                }
            }))?;
            let is_read =
                |survey: &Survey| survey.unread.as_ref().is_none_or(|unread| !unread.root);
            let is_known = |survey: &Option<Survey>| survey.as_ref().is_some_and(is_read);
            let Some(missing) = surveys.iter().position(|survey| !is_known(survey)) else {
                return Ok(surveys.into_iter().flatten().collect());
            };
            if deadline.left().is_none() {
                let name = &self.nodes[missing].name;
                let unread = surveys[missing].as_ref().and_then(|s| s.unread.as_ref());
                let Some(unread) = unread else {
                    let context = format!("node {name} has no store yet");
                    return Err(Error::new(ErrorKind::NoCheckpoint, context));
                };
                let context = format!("what node {name} has cannot be read: {}", unread.why);
                return Err(Error::new(ErrorKind::StoreIo, context));
            }
            std::thread::sleep(STORE_PAUSE);
        }
    }

    /// Forms the groups: those that the logs know and whose members are all here, and new ones of the
    /// other nodes; all anew where that covers more.
    fn form_groups(&mut self) -> Result<()> {
        let within = self.within();
        let own = self.own_stores()?;
        let mut epoch = 0;
        for survey in &own {
            epoch = epoch.max(survey.group.as_ref().map_or(0, |group| group.epoch));
        }
        let (mut groups, rest) = self.kept_groups(&own)?;
        let mut bare = self.new_groups(&own, &rest, epoch + 1, &mut groups)?;
        let everybody: Vec<usize> = (0..own.len()).collect();
        if rest.len() < own.len() && self.least_parity(&rest)? < self.least_parity(&everybody)? {
            groups.clear();
            bare = self.new_groups(&own, &everybody, epoch + 1, &mut groups)?;
        }
        for group in &groups {
            group.join(&self.agent, within)?;
            self.mend(group, &own)?;
        }
        for text in &bare {
            notice::warn(text);
        }
        self.groups = groups;
        self.bare = bare;
        Ok(())
    }

    /// A new composition covers what stands in its members: what is damaged is made again first, by the former
    /// ones, while they still protect it. What is beyond them keeps nothing else from being protected.
    fn mend(&self, group: &GroupState, own: &[Survey]) -> Result<()> {
        if group.table.epoch == group.epoch {
            return Ok(());
        }
        let mended = each(&group.seats, |_, seat| {
            let Some(survey) = own.iter().find(|survey| survey.store == seat.store) else {
                return Ok(());
            };
            let logs = survey.group.iter().chain(&survey.former);
            let members = logs.flat_map(|group| &group.members);
            let named: BTreeSet<StoreId> = members.map(|member| member.store).collect();
            if named.is_empty() {
                return Ok(());
            }
            let here = own.iter().zip(&self.nodes);
            let here = here.filter(|(survey, _)| named.contains(&survey.store));
            let seats = here.map(|(survey, node)| node.seat(survey.store)).collect();
            let within = self.agent.settings().within_for(survey.length_bytes);
            match self
                .agent
                .ask(&peer(seat), &Request::Repair { seats }, within)
            {
                // It protects nothing yet.
                Err(error) if error.kind() == ErrorKind::NotRetained => Ok(()),
                other => other.map(drop),
            }
        });
        all(mended).map(drop)
    }

    /// The newest checkpoint that all nodes retain: what can be protected when no application runs that
    /// would commit one on the others.
    pub fn newest_common(&self) -> Result<Option<CheckpointId>> {
        let mut common: Option<BTreeSet<CheckpointId>> = None;
        for survey in &self.own_stores()? {
            let ids: BTreeSet<_> = survey.revisions.iter().map(|r| r.checkpoint).collect();
            common = Some(match common {
                Some(known) => known.intersection(&ids).copied().collect(),
                None => ids,
            });
        }
        Ok(common.and_then(|ids| ids.last().copied()))
    }

    fn members(&self, nodes: &[usize]) -> Vec<group::Member<'_>> {
        let member = |&at: &usize| group::Member {
            name: &self.nodes[at].name,
            domain: Some(&self.nodes[at].domain),
        };
        nodes.iter().map(member).collect()
    }

    /// Losses that every group of `nodes` would survive; those of the scheme where there are none.
    fn least_parity(&self, nodes: &[usize]) -> Result<usize> {
        let groups = group::form(&self.members(nodes), self.group_size, self.scheme)?;
        let parities = groups.iter().map(group::Group::parities);
        Ok(parities.min().unwrap_or(self.scheme.parities()))
    }

    /// The groups of the logs that are as they were, and the nodes that are in none of them.
    fn kept_groups(&self, own: &[Survey]) -> Result<(Vec<GroupState>, Vec<usize>)> {
        let places: BTreeMap<StoreId, usize> = own
            .iter()
            .enumerate()
            .map(|(at, s)| (s.store, at))
            .collect();
        let newest = newest_groups(own);
        let mut groups: Vec<GroupState> = Vec::new();
        let mut taken = BTreeSet::new();
        for &(group, authority) in newest.values() {
            let members: Option<Vec<usize>> = group
                .members
                .iter()
                .map(|m| places.get(&m.store).copied())
                .collect();
            let Some(members) = members else { continue };
            let whole = members.iter().all(|&at| {
                let is_it = |of: &SurveyedGroup| (of.epoch, of.round) == (group.epoch, group.round);
                let newest = newest.get(&own[at].store);
                // One whose log is behind was left so: its store is not as the group's log has it.
                newest.is_some_and(|(of, _)| is_it(of)) && own[at].group.as_ref().is_some_and(is_it)
            });
            let Some(&authority) = places.get(&authority) else {
                continue;
            };
            if taken.contains(&members[0]) || !whole || !self.keeps(group, &members) {
                continue;
            }
            taken.extend(members.iter().copied());
            groups.push(self.kept_group(group, &members, own, authority)?);
        }
        let rest = (0..own.len()).filter(|at| !taken.contains(at)).collect();
        Ok((groups, rest))
    }

    /// Whether a group is what would be formed today: the scheme that was asked for, and no two members
    /// in one failure domain.
    fn keeps(&self, group: &SurveyedGroup, members: &[usize]) -> bool {
        let domains: BTreeSet<&str> = members.iter().map(|&at| &*self.nodes[at].domain).collect();
        let scheme = self.scheme.within(members.len());
        domains.len() == members.len()
            && scheme == self.scheme
            && numbers(scheme, members.len()) == (group.parity, group.pieces_max)
    }

    fn kept_group(
        &self,
        group: &SurveyedGroup,
        members: &[usize],
        own: &[Survey],
        authority: usize,
    ) -> Result<GroupState> {
        let node = &self.nodes[authority];
        let table = record::fetch(
            &self.agent,
            &node.peer(),
            (own[authority].store, group.epoch),
            self.within(),
        )?;
        let seats = members.iter().map(|&at| self.nodes[at].seat(own[at].store));
        Ok(GroupState {
            epoch: group.epoch,
            round: group.round.max(self.former_round),
            scheme: self.scheme.within(members.len()),
            asked: self.scheme.parities(),
            seats: seats.collect(),
            table,
            whole: true,
            unrecorded: None,
            known_from: None,
        })
    }

    /// New groups of the nodes `rest`; what cannot be protected as asked for is returned as text.
    fn new_groups(
        &self,
        own: &[Survey],
        rest: &[usize],
        epoch: u64,
        groups: &mut Vec<GroupState>,
    ) -> Result<Vec<String>> {
        let members = self.members(rest);
        let mut bare = Vec::new();
        for formed in group::form(&members, self.group_size, self.scheme)? {
            let nodes: Vec<usize> = formed.members.iter().map(|&place| rest[place]).collect();
            if formed.parities() == 0 {
                bare.extend(formed.shortfall.clone());
                continue;
            }
            if let Some(text) = &formed.shortfall {
                notice::warn(text);
            }
            let round = nodes
                .iter()
                .filter_map(|&at| own[at].group.as_ref())
                .map(|g| g.round);
            groups.push(GroupState {
                epoch,
                round: round.max().unwrap_or(0).max(self.former_round),
                scheme: formed.scheme,
                asked: self.scheme.parities(),
                seats: nodes
                    .iter()
                    .map(|&at| self.nodes[at].seat(own[at].store))
                    .collect(),
                table: StripeTable::default(),
                whole: true,
                unrecorded: None,
                known_from: None,
            });
        }
        Ok(bare)
    }
}

/// How often an idle coordinator looks for a commit.
const IDLE: Duration = Duration::from_millis(1);
/// How long after a failed round the next is tried; doubled with each that fails in a row.
const AGAIN: Duration = Duration::from_millis(500);
/// At most so long.
const AGAIN_MAX: Duration = Duration::from_secs(4);

/// Rounds that failed, one after the other.
#[derive(Debug)]
struct Failed {
    checkpoint: CheckpointId,
    since: Stopwatch,
    pause: Duration,
}

impl Failed {
    fn again(checkpoint: CheckpointId, before: Option<&Self>) -> Self {
        let pause = before.map_or(AGAIN, |before| (before.pause * 2).min(AGAIN_MAX));
        Self {
            checkpoint,
            since: Stopwatch::start(),
            pause,
        }
    }
}

/// What the thread that protects shares with whoever ends it.
#[derive(Debug, Default)]
struct Ending {
    stop: AtomicBool,
    /// Leave at once, protected or not.
    now: AtomicBool,
}

/// Protects what is committed, until it is told to end.
fn watch(agent: &Agent, coordinator: &mut RoundCoordinator, ending: &Ending) {
    // And with it all threads that it starts.
    agent.settings().background();
    let mut done = CheckpointId::default();
    let mut failed: Option<Failed> = None;
    while !ending.now.load(Ordering::Acquire) {
        let control = agent.control();
        let committed = control.as_ref().map_or(done, Control::committed);
        let waits = failed.as_ref().is_some_and(|failed| {
            failed.checkpoint == committed && failed.since.elapsed() < failed.pause
        });
        // After a return to an older one it is another, and not a newer one.
        if committed != done && committed.number > 0 && !waits {
            if let Some(control) = &control {
                control.set_encoding(committed);
            }
            let watch = Stopwatch::start();
            let outcome = fanout::catch(|| {
                let want = if agent.application_lives() {
                    committed
                } else {
                    coordinator.newest_common()?.unwrap_or(committed)
                };
                coordinator.protect(want)
            });
            match outcome {
                Ok(_) => {
                    (done, failed) = (committed, None);
                    if let Some(control) = &control {
                        control.set_protect_seconds(watch.seconds());
                    }
                }
                Err(_) if ending.stop.load(Ordering::Acquire) => break,
                Err(_) => failed = Some(Failed::again(committed, failed.as_ref())),
            }
        } else if ending.stop.load(Ordering::Acquire) {
            break;
        } else {
            std::thread::sleep(IDLE);
        }
    }
}

/// The thread that protects what is committed.
#[derive(Debug)]
pub struct RoundCoordinatorThread {
    thread: JoinHandle<()>,
    ending: Arc<Ending>,
}

impl RoundCoordinatorThread {
    /// Starts it; without a thread nothing is protected, which is said.
    pub fn start(agent: Arc<Agent>, mut coordinator: RoundCoordinator) -> Option<Self> {
        let ending = Arc::new(Ending::default());
        let of_thread = Arc::clone(&ending);
        let work = move || {
            // A round that panics is one that failed; this is the rest.
            while let Err(error) = fanout::catch(|| {
                watch(&agent, &mut coordinator, &of_thread);
                Ok(())
            }) {
                notice::warn(&format!(
                    "what protects checkpoints is started again: {error}"
                ));
                coordinator.forget_groups();
                std::thread::sleep(AGAIN);
            }
        };
        let spawned = std::thread::Builder::new()
            .name("backstay-protect".to_owned())
            .spawn(work);
        match spawned {
            Ok(thread) => Some(Self { thread, ending }),
            Err(error) => {
                notice::warn(&format!("nothing is protected: no thread for it: {error}"));
                None
            }
        }
    }

    /// Ends it: when what is committed is protected, or after `limit` when the round under way is over.
    pub fn stop(self, limit: Duration) {
        self.ending.stop.store(true, Ordering::Release);
        let over = wait_until("the last protection round", limit, || {
            self.thread.is_finished()
        });
        if over.is_err() {
            self.ending.now.store(true, Ordering::Release);
        }
        // A round has its own limits.
        drop(self.thread.join());
    }
}
