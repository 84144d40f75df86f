// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the protection rounds of a job: forms groups, and takes each through collect, form
//! stripes, encode, flush, record, settle.
//! In from: the node of rank 0, which says which checkpoint is committed. Out to: all agents.
//! Invariants: a round names a checkpoint that every node retains; what an earlier round protects stays
//! protected until the next is recorded on every member; a round that failed leaves nothing behind
//! that the next one does not clear away.
//!
//! A stripe goes when all its extents are dead. When more than half of its bytes are, the living ones
//! are encoded anew with the others that wait, and the old stripe goes with the same record.

use super::{Agent, Ask, SaidOnce, peer};
use crate::clock::{Deadline, Stopwatch};
use crate::error::{Error, ErrorKind, Result};
use crate::notice;
use crate::redundancy::group::{self, Scheme};
use crate::redundancy::stripe::{self, Contribution};
use crate::store::control::{Control, wait_until};
use crate::store::stripe_log::StripeTable;
use crate::transport::Peer;
use backstay_format::agent::{Answer, Collected, Request, Seat, StripePlan, Survey, SurveyedGroup};
use backstay_format::{
    CheckpointId, Extent, Member, Round, SegmentId, StoreId, Stripe, StripeId, StripePiece,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks at nodes that are still making their stores.
const STORE_PAUSE: Duration = Duration::from_millis(1);

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

/// One group and what is known of it.
#[derive(Debug)]
struct GroupState {
    epoch: u64,
    round: u64,
    scheme: Scheme,
    /// Losses that were asked to be covered.
    asked: usize,
    seats: Vec<Seat>,
    table: StripeTable,
    /// The next record must carry everything: members may differ.
    whole: bool,
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

/// What one round of the job did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoundReport {
    /// The checkpoint that is protected.
    pub checkpoint: CheckpointId,
    /// Stripes made.
    pub stripes: u64,
    /// Bytes of the extents in them.
    pub bytes: u64,
    /// Stripes given up.
    pub removed: u64,
}

/// Runs `what` for each of `items` at the same time; the results in order.
pub(super) fn each<I: Sync, T: Send>(
    items: &[I],
    what: impl Fn(usize, &I) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    if let [only] = items {
        return vec![what(0, only)];
    }
    let panicked = || Error::new(ErrorKind::Internal, "a thread of a round panicked");
    std::thread::scope(|scope| {
        let threads: Vec<_> = items
            .iter()
            .enumerate()
            .map(|(at, item)| {
                scope.spawn({
                    let what = &what;
                    move || what(at, item)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
            .collect()
    })
}

fn all<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    results.into_iter().collect()
}

/// What of a scheme goes into records: parities, and most pieces of a stripe.
fn numbers(scheme: Scheme, members: usize) -> (u8, u8) {
    let small = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
    let parities = scheme.parities();
    match scheme {
        Scheme::Partner => (1, 1),
        _ => (small(parities), small(members.saturating_sub(parities))),
    }
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

fn unexpected(from: &Peer, answer: &Answer) -> Error {
    let text: String = format!("{answer:?}").chars().take(100).collect();
    Error::new(
        ErrorKind::PeerUnreachable,
        format!("{from} gave an answer that was not asked for: {text}"),
    )
}

impl GroupState {
    fn join(&self, agent: &Agent, within: Duration) -> Result<()> {
        let (parity, pieces_max) = numbers(self.scheme, self.seats.len());
        let request = Request::Join {
            epoch: self.epoch,
            parity,
            pieces_max,
            seats: self.seats.clone(),
        };
        // A store that was surveyed may still be about to be attached.
        let deadline = Deadline::after(within.mul_f64(0.9));
        all(each(&self.seats, |_, seat| {
            loop {
                match agent.ask(&peer(seat), &request, within) {
                    Err(error)
                        if error.kind() == ErrorKind::NoCheckpoint && deadline.left().is_some() =>
                    {
                        std::thread::sleep(STORE_PAUSE);
                    }
                    other => return other,
                }
            }
        }))?;
        Ok(())
    }

    /// One round; on an error the next one starts over with a higher number.
    fn round(
        &mut self,
        agent: &Agent,
        want: CheckpointId,
        within: Duration,
    ) -> Result<RoundReport> {
        self.round += 1;
        let outcome = self.try_round(agent, want, within);
        if outcome.is_err() {
            self.whole = true;
        }
        outcome
    }

    fn try_round(
        &mut self,
        agent: &Agent,
        want: CheckpointId,
        within: Duration,
    ) -> Result<RoundReport> {
        let (epoch, round) = (self.epoch, self.round);
        let collected = self.collect(agent, want, within)?;
        let (removed, queues) = self.queues(&collected);
        let plans = self.plan(&super::encode::fitting(queues, &collected))?;
        let added = self.encode(agent, &plans)?;
        all(each(&self.seats, |_, seat| {
            let request = Request::Flush { epoch, round };
            agent.ask(&peer(seat), &request, within)
        }))?;
        let report = RoundReport {
            checkpoint: want,
            stripes: backstay_format::width::to_u64(added.len()),
            bytes: bytes_of(&added),
            removed: backstay_format::width::to_u64(removed.len()),
        };
        let delta = self.delta(want, &collected, removed, added);
        let former = self.apply(&delta);
        let record = if self.whole || delta.whole {
            self.table.whole(0)
        } else {
            delta.clone()
        };
        let request = Request::Record(record);
        let recorded = all(each(&self.seats, |_, seat| {
            agent.ask(&peer(seat), &request, within)
        }));
        if let Err(error) = recorded {
            self.take_back(&delta, former);
            return Err(error);
        }
        self.whole = false;
        Ok(report)
    }

    /// Takes a round into the table; returns what is needed to take it back: the head and the stripes
    /// that went.
    fn apply(&mut self, delta: &Round) -> StripeTable {
        let mut former = self.table.clone_head();
        if delta.whole {
            former.stripes = std::mem::take(&mut self.table.stripes);
        } else {
            let gone = delta.removed.iter();
            let gone = gone.filter_map(|id| self.table.stripes.remove_entry(id));
            former.stripes = gone.collect();
        }
        self.table.apply(delta);
        former
    }

    fn take_back(&mut self, delta: &Round, mut former: StripeTable) {
        for stripe in &delta.added {
            self.table.stripes.remove(&stripe.id);
        }
        former.stripes.append(&mut self.table.stripes);
        self.table = former;
    }

    fn collect(
        &self,
        agent: &Agent,
        want: CheckpointId,
        within: Duration,
    ) -> Result<Vec<Collected>> {
        let request = Request::Collect {
            epoch: self.epoch,
            round: self.round,
            want,
        };
        all(each(&self.seats, |_, seat| {
            match agent.ask(&peer(seat), &request, within)? {
                Answer::Collected(collected) => Ok(collected),
                other => Err(unexpected(&peer(seat), &other)),
            }
        }))
    }

    /// The stripes that go, and what waits on each member: what is in no stripe, and what lives in
    /// stripes that go.
    fn queues(&self, collected: &[Collected]) -> (Vec<StripeId>, Vec<Vec<Extent>>) {
        let mut queues: Vec<Vec<Extent>> =
            collected.iter().map(|one| one.waiting.clone()).collect();
        let dead: Vec<BTreeSet<SegmentId>> = collected
            .iter()
            .map(|one| one.dead.iter().copied().collect())
            .collect();
        if dead.iter().all(BTreeSet::is_empty) {
            return (Vec::new(), queues);
        }
        let is_dead = |piece: &StripePiece| {
            dead.get(usize::from(piece.column))
                .is_some_and(|dead| dead.contains(&piece.extent.segment))
        };
        let mut removed = Vec::new();
        for stripe in self.table.stripes.values() {
            let length = |piece: &StripePiece| u64::from(piece.extent.length_bytes);
            let all: u64 = stripe.pieces.iter().map(length).sum();
            let gone: u64 = stripe
                .pieces
                .iter()
                .filter(|p| is_dead(p))
                .map(length)
                .sum();
            if gone * 2 <= all {
                continue;
            }
            removed.push(stripe.id);
            for piece in stripe.pieces.iter().filter(|piece| !is_dead(piece)) {
                if let Some(queue) = queues.get_mut(usize::from(piece.column)) {
                    queue.push(piece.extent);
                }
            }
        }
        (removed, queues)
    }

    /// Stripes of all that waits, each with the column that encodes it.
    fn plan(&self, queues: &[Vec<Extent>]) -> Result<Vec<(usize, StripePlan)>> {
        let named: Vec<Vec<stripe::Extent>> = queues
            .iter()
            .map(|queue| {
                let lengths = queue.iter().enumerate();
                lengths
                    .map(|(id, extent)| stripe::Extent {
                        id,
                        length: u64::from(extent.length_bytes),
                    })
                    .collect()
            })
            .collect();
        let formed = stripe::form(&named, self.scheme, self.round)?;
        let small = |column: usize| u8::try_from(column).unwrap_or(u8::MAX);
        let first = self.table.next_stripe().0;
        let piece = |part: &Contribution| StripePiece {
            column: small(part.column),
            extent: queues[part.column][part.extent.id],
        };
        let plans = (first..).zip(&formed).map(|(id, formed)| {
            let plan = StripePlan {
                id: StripeId(id),
                pieces: formed.contributions.iter().map(piece).collect(),
                holders: formed.holders.iter().map(|&column| small(column)).collect(),
            };
            (formed.gatherer, plan)
        });
        Ok(plans.collect())
    }

    fn encode(&self, agent: &Agent, plans: &[(usize, StripePlan)]) -> Result<Vec<Stripe>> {
        let mut shares: Vec<Vec<StripePlan>> = vec![Vec::new(); self.seats.len()];
        for (gatherer, plan) in plans {
            shares[*gatherer].push(plan.clone());
        }
        let settings = agent.settings();
        let encoded = each(&shares, |column, share| {
            if share.is_empty() {
                return Ok(Vec::new());
            }
            let seat = &self.seats[column];
            let request = Request::Encode {
                epoch: self.epoch,
                round: self.round,
                stripes: share.clone(),
            };
            let within = settings.within_for(planned_bytes(share));
            match agent.ask(&peer(seat), &request, within)? {
                Answer::Encoded(stripes) if matches(&stripes, share) => Ok(stripes),
                other => Err(unexpected(&peer(seat), &other)),
            }
        });
        let mut stripes: Vec<Stripe> = all(encoded)?.into_iter().flatten().collect();
        stripes.sort_by_key(|stripe| stripe.id);
        Ok(stripes)
    }

    fn delta(
        &self,
        want: CheckpointId,
        collected: &[Collected],
        removed: Vec<StripeId>,
        added: Vec<Stripe>,
    ) -> Round {
        let (parity, pieces_max) = numbers(self.scheme, self.seats.len());
        let members = self.seats.iter().zip(collected).map(|(seat, one)| Member {
            store: seat.store,
            node: seat.node.clone(),
            domain: seat.domain.clone(),
            superblock: one.superblock.clone(),
            root: one.root.clone(),
        });
        Round {
            generation: 0,
            epoch: self.epoch,
            round: self.round,
            // A new composition replaces the stripes of the former one.
            whole: self.table.epoch != self.epoch,
            parity,
            asked: u8::try_from(self.asked).unwrap_or(u8::MAX),
            pieces_max,
            protected: want,
            members: members.collect(),
            removed,
            added,
        }
    }
}

fn planned_bytes(plans: &[StripePlan]) -> u64 {
    let pieces = plans.iter().flat_map(|plan| &plan.pieces);
    pieces
        .map(|piece| u64::from(piece.extent.length_bytes))
        .sum()
}

/// Whether these are the stripes that were planned: the same pieces, and parity on the holders.
fn matches(stripes: &[Stripe], plans: &[StripePlan]) -> bool {
    let mut found: Vec<&Stripe> = stripes.iter().collect();
    found.sort_by_key(|stripe| stripe.id);
    let same = |(stripe, plan): (&&Stripe, &StripePlan)| {
        let place = |piece: &StripePiece| {
            let extent = piece.extent;
            let range = (extent.offset_bytes, extent.length_bytes);
            (piece.column, extent.segment, extent.class, range)
        };
        let holders = stripe.parity.iter().map(|piece| piece.column);
        let length = stripe.parity_bytes();
        stripe.id == plan.id
            && stripe
                .pieces
                .iter()
                .map(place)
                .eq(plan.pieces.iter().map(place))
            && holders.eq(plan.holders.iter().copied())
            && stripe
                .parity
                .iter()
                .all(|piece| piece.extent.length_bytes == length)
    };
    found.len() == plans.len() && found.iter().zip(plans).all(same)
}

fn bytes_of(stripes: &[Stripe]) -> u64 {
    let pieces = stripes.iter().flat_map(|stripe| &stripe.pieces);
    pieces
        .map(|piece| u64::from(piece.extent.length_bytes))
        .sum()
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
                    let want = match agent.application_lives() {
                        true => Ok(committed),
                        false => coordinator
                            .newest_common()
                            .map(|id| id.unwrap_or(committed)),
                    };
                    match want.and_then(|want| coordinator.protect(want)) {
                        Ok(_) => (done, failed) = (committed, None),
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
