// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the protection rounds of a job: forms groups, and takes each through collect, form
//! stripes, encode, flush, record, settle.
//! In from: the node of rank 0, which says which checkpoint is committed. Out to: all agents.
//! Invariants: a round names a checkpoint that every node retains; what an earlier round protects stays
//! protected until the next is recorded on every member; a round that failed leaves nothing behind
//! that the next one does not clear away.

pub use super::round::RoundReport;
use super::round::{GroupState, all, each, numbers, unexpected};
use super::{Agent, Ask, peer};
use crate::clock::{Deadline, Stopwatch};
use crate::error::{Error, ErrorKind, Result};
use crate::notice::{self, SaidOnce};
use crate::redundancy::group::{self, Scheme};
use crate::store::control::{Control, wait_until};
use crate::store::stripe_log::StripeTable;
use crate::transport::Peer;
use backstay_format::agent::{Answer, Request, Seat, Survey, SurveyedGroup};
use backstay_format::{CheckpointId, StoreId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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
pub struct Coordinator {
    agent: Arc<Agent>,
    nodes: Vec<NodeSeat>,
    scheme: Scheme,
    group_size: usize,
    groups: Vec<GroupState>,
    /// Nodes that nobody protects, and why.
    bare: Vec<String>,
    protected: CheckpointId,
    rounds: u64,
    said: SaidOnce,
}

impl Coordinator {
    /// Over all `nodes`, of which the agent's is one.
    pub fn new(agent: Arc<Agent>, nodes: Vec<NodeSeat>, scheme: Scheme, group_size: usize) -> Self {
        Self {
            agent,
            nodes,
            scheme,
            group_size,
            groups: Vec::new(),
            bare: Vec::new(),
            protected: CheckpointId::default(),
            rounds: 0,
            said: SaidOnce::default(),
        }
    }

    fn within(&self) -> Duration {
        self.agent.settings().within
    }

    /// Protects checkpoint `want`, which all nodes have committed or are committing.
    pub fn protect(&mut self, want: CheckpointId) -> Result<RoundReport> {
        self.rounds += 1;
        let outcome = self.try_protect(want);
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
                self.report(error);
            }
        }
        outcome
    }

    fn is_overtaken(&self, want: CheckpointId) -> bool {
        let control = self.agent.control();
        control.is_some_and(|control| control.committed() > want)
    }

    /// Tells all nodes what went wrong; those that cannot be reached are the reason, perhaps.
    fn report(&self, error: &Error) {
        let request = Request::Report {
            round: self.rounds,
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
        let outcomes: Vec<Result<RoundReport>> = std::thread::scope(|scope| {
            let threads: Vec<_> = self
                .groups
                .iter_mut()
                .map(|group| {
                    let agent = &agent;
                    scope.spawn(move || {
                        agent.settings().background();
                        group.round(agent, want, within)
                    })
                })
                .collect();
            let panicked = || Error::new(ErrorKind::Internal, "a round panicked");
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
                .collect()
        });
        let done = outcomes.iter().all(Result::is_ok) && self.bare.is_empty();
        let protected = if done { want } else { self.protected };
        self.settle(&outcomes, protected)?;
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
        self.protected = want;
        Ok(total)
    }

    /// Tells the members of groups that recorded their round.
    fn settle(&mut self, outcomes: &[Result<RoundReport>], protected: CheckpointId) -> Result<()> {
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
        // It is recorded; who was not told learns it from the next record.
        let untold = told.into_iter().find_map(Result::err);
        if let Some(error) = untold {
            for group in &mut self.groups {
                group.whole = true;
            }
            return Err(error);
        }
        Ok(())
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
            let missing = surveys.iter().position(Option::is_none);
            let Some(missing) = missing else {
                return Ok(surveys.into_iter().flatten().collect());
            };
            if deadline.left().is_none() {
                let context = format!("node {} has no store yet", self.nodes[missing].name);
                return Err(Error::new(ErrorKind::NoCheckpoint, context));
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
        }
        for text in &bare {
            notice::warn(text);
        }
        self.groups = groups;
        self.bare = bare;
        Ok(())
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
        let mut newest: BTreeMap<StoreId, (u64, u64, &SurveyedGroup, usize)> = BTreeMap::new();
        for (at, survey) in own.iter().enumerate() {
            let Some(group) = &survey.group else { continue };
            for member in &group.members {
                let known = newest.get(&member.store).map_or((0, 0), |k| (k.0, k.1));
                if (group.epoch, group.round) > known {
                    newest.insert(member.store, (group.epoch, group.round, group, at));
                }
            }
        }
        let mut groups: Vec<GroupState> = Vec::new();
        let mut taken = BTreeSet::new();
        for &(_, _, group, authority) in newest.values() {
            let members: Option<Vec<usize>> = group
                .members
                .iter()
                .map(|m| places.get(&m.store).copied())
                .collect();
            let Some(members) = members else { continue };
            let whole = members.iter().all(|&at| {
                newest
                    .get(&own[at].store)
                    .is_some_and(|n| (n.0, n.1) == (group.epoch, group.round))
            });
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
        let request = Request::Table {
            store: own[authority].store,
        };
        let mut table = StripeTable::default();
        match self.agent.ask(&node.peer(), &request, self.within())? {
            Answer::Table(round) => table.apply(&round),
            other => return Err(unexpected(&node.peer(), &other)),
        }
        let seats = members.iter().map(|&at| self.nodes[at].seat(own[at].store));
        Ok(GroupState {
            epoch: group.epoch,
            round: group.round,
            scheme: self.scheme.within(members.len()),
            asked: self.scheme.parities(),
            seats: seats.collect(),
            table,
            whole: true,
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
                round: round.max().unwrap_or(0),
                scheme: formed.scheme,
                asked: self.scheme.parities(),
                seats: nodes
                    .iter()
                    .map(|&at| self.nodes[at].seat(own[at].store))
                    .collect(),
                table: StripeTable::default(),
                whole: true,
            });
        }
        Ok(bare)
    }
}

/// How often an idle coordinator looks for a commit.
const IDLE: Duration = Duration::from_millis(1);
/// How long after a failed round the next is tried.
const AGAIN: Duration = Duration::from_millis(500);

/// The thread that protects what is committed.
#[derive(Debug)]
pub struct CoordinatorThread {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    /// Leave at once, protected or not.
    now: Arc<AtomicBool>,
}

impl CoordinatorThread {
    /// Starts it; without a thread nothing is protected, which is said.
    pub fn start(agent: Arc<Agent>, mut coordinator: Coordinator) -> Option<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let now = Arc::new(AtomicBool::new(false));
        let (stopped, at_once) = (Arc::clone(&stop), Arc::clone(&now));
        let work = move || {
            let mut done = CheckpointId::default();
            let mut failed: Option<(CheckpointId, Stopwatch)> = None;
            while !at_once.load(Ordering::Acquire) {
                let control = agent.control();
                let committed = control.as_ref().map_or(done, Control::committed);
                let waits = failed
                    .as_ref()
                    .is_some_and(|(id, since)| *id == committed && since.elapsed() < AGAIN);
                if committed > done && !waits {
                    if let Some(control) = &control {
                        control.set_encoding(committed);
                    }
                    let want = if agent.application_lives() {
                        Ok(committed)
                    } else {
                        let common = coordinator.newest_common();
                        common.map(|id| id.unwrap_or(committed))
                    };
                    let watch = Stopwatch::start();
                    match want.and_then(|want| coordinator.protect(want)) {
                        Ok(_) => {
                            (done, failed) = (committed, None);
                            if let Some(control) = &control {
                                control.set_protect_seconds(watch.seconds());
                            }
                        }
                        Err(_) if stopped.load(Ordering::Acquire) => break,
                        Err(_) => failed = Some((committed, Stopwatch::start())),
                    }
                } else if stopped.load(Ordering::Acquire) {
                    break;
                } else {
                    std::thread::sleep(IDLE);
                }
            }
        };
        let spawned = std::thread::Builder::new()
            .name("backstay-protect".to_owned())
            .spawn(work);
        match spawned {
            Ok(thread) => Some(Self { thread, stop, now }),
            Err(error) => {
                notice::warn(&format!("nothing is protected: no thread for it: {error}"));
                None
            }
        }
    }

    /// Ends it: when what is committed is protected, or after `limit` when the round under way is over.
    pub fn stop(self, limit: Duration) {
        self.stop.store(true, Ordering::Release);
        let over = wait_until("the last protection round", limit, || {
            self.thread.is_finished()
        });
        if over.is_err() {
            self.now.store(true, Ordering::Release);
        }
        // A round has its own limits.
        drop(self.thread.join());
    }
}
