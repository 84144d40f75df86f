// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the protection rounds of a group: takes it through collect, form stripes, encode, flush, record, settle,
//! for one checkpoint after the other.
//! In from: the agent of the group's first member, which says which checkpoint is committed. Out to: the agents
//! of its members, and nobody else.
//! Invariants: a round names a checkpoint that every member retains; what an earlier round protects stays
//! protected until the next is recorded on every member; a round that failed leaves nothing behind
//! that the next one does not clear away. What all groups have recorded is for the job's votes to find out.

use super::compose::kept;
pub use super::round::RoundReport;
use super::round::{GroupState, all, each, unexpected};
use super::{Agent, Ask, peer, record};
use crate::group::Scheme;
use backstay_base::clock::{Deadline, Stopwatch};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::fanout;
use backstay_base::notice::{self, SaidOnce};
use backstay_format::agent::{Answer, Request, Seat, Survey};
use backstay_format::{CheckpointId, StoreId};
use backstay_net::Peer;
use backstay_store::control::{Control, wait_until};
use backstay_store::stripe_log::StripeTable;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
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

    /// With the store that it has, if it has one.
    pub fn seat(&self, store: Option<StoreId>) -> Seat {
        Seat {
            store: store.unwrap_or_default(),
            node: self.name.clone(),
            domain: self.domain.clone(),
            address: self.address.clone(),
        }
    }
}

/// The group that a coordinator leads, of a [`super::compose::Composition`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPlan {
    /// All nodes of the job, with the stores that they had when it was composed.
    pub seats: Vec<Seat>,
    /// The members: places of nodes, by column.
    pub members: Vec<usize>,
    /// Its epoch, if it is a new one.
    pub epoch: u64,
    /// The protection that was asked for.
    pub scheme: Scheme,
}

/// What coordinates the rounds of a group.
#[derive(Debug)]
pub struct RoundCoordinator {
    agent: Arc<Agent>,
    plan: GroupPlan,
    group: Option<GroupState>,
    rounds: u64,
    /// Rounds of the group as it was before it was given up: the next are above them.
    former_round: u64,
    said: SaidOnce,
}

impl RoundCoordinator {
    /// Over the members of `plan`, of which the agent's node is one.
    pub fn new(agent: Arc<Agent>, plan: GroupPlan) -> Self {
        Self {
            agent,
            plan,
            group: None,
            rounds: 0,
            former_round: 0,
            said: SaidOnce::default(),
        }
    }

    fn within(&self) -> Duration {
        self.agent.settings().within
    }

    fn seats(&self) -> Vec<Seat> {
        let seats = self
            .plan
            .members
            .iter()
            .map(|&at| self.plan.seats[at].clone());
        seats.collect()
    }

    /// Protects checkpoint `want`, which the members have committed or are committing.
    pub fn protect(&mut self, want: CheckpointId) -> Result<RoundReport> {
        self.rounds += 1;
        let caught = fanout::catch(|| Ok(self.try_protect(want)));
        let outcome = caught.unwrap_or_else(|panic| {
            // Something is half done.
            self.forget_group();
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

    /// The next round forms it anew, of what the members have.
    fn forget_group(&mut self) {
        let round = self.group.take().map_or(0, |group| group.round);
        self.former_round = self.former_round.max(round);
    }

    /// Tells the members what went wrong; those that cannot be reached are the reason, perhaps.
    fn report(&self, checkpoint: CheckpointId, error: &Error) {
        let request = Request::Report {
            round: self.rounds,
            checkpoint,
            kind: error.kind().code(),
            text: error.to_string().chars().take(1000).collect(),
        };
        let short = self.within().min(Duration::from_secs(2));
        each(&self.seats(), |_, seat| {
            self.agent.ask(&peer(seat), &request, short)
        });
    }

    fn try_protect(&mut self, want: CheckpointId) -> Result<RoundReport> {
        let within = self.within();
        let mut group = match self.group.take() {
            Some(group) => group,
            None => self.form_group()?,
        };
        let outcome = group.round(&self.agent, want, within);
        let outcome = outcome.and_then(|report| self.settle(&group, want).map(|()| report));
        self.group = Some(group);
        outcome
    }

    /// Tells the members that all of them have recorded the round, and then that all were told.
    fn settle(&self, group: &GroupState, protected: CheckpointId) -> Result<()> {
        let request = Request::Settle {
            epoch: group.epoch,
            round: group.round,
            protected,
        };
        let told = each(&group.seats, |_, seat| {
            self.agent.ask(&peer(seat), &request, self.within())
        });
        // It is recorded; who was not told is told with the next round.
        all(told)?;
        let control = self.agent.control();
        if !control.is_some_and(|control| control.one_group()) {
            return Ok(());
        }
        let request = Request::Settled {
            epoch: group.epoch,
            round: group.round,
            protected,
        };
        // The next vote says the same.
        each(&group.seats, |_, seat| {
            self.agent.ask(&peer(seat), &request, self.within())
        });
        Ok(())
    }

    /// What every member's own store is; waits for those that are still making theirs.
    fn own_stores(&self) -> Result<Vec<Survey>> {
        let within = self.within();
        let seats = self.seats();
        // A little before those who wait for this round give up.
        let deadline = Deadline::after(within.mul_f64(0.9));
        loop {
            let surveys = all(each(&seats, |_, seat| {
                own_store(&self.agent, &peer(seat), within)
            }))?;
            let is_read =
                |survey: &Survey| survey.unread.as_ref().is_none_or(|unread| !unread.root);
            let is_known = |survey: &Option<Survey>| survey.as_ref().is_some_and(is_read);
            let Some(missing) = surveys.iter().position(|survey| !is_known(survey)) else {
                return Ok(surveys.into_iter().flatten().collect());
            };
            if deadline.left().is_none() {
                let name = &seats[missing].node;
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

    /// The group as the logs of its members have it, or a new one.
    fn form_group(&mut self) -> Result<GroupState> {
        let scheme = self.plan.scheme.within(self.plan.members.len());
        if scheme.parities() == 0 {
            let names: Vec<String> = self.seats().into_iter().map(|seat| seat.node).collect();
            let context = format!(
                "nothing protects node {}: it is in no group",
                names.join(", ")
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let own = self.own_stores()?;
        for (&at, survey) in self.plan.members.iter().zip(&own) {
            self.plan.seats[at].store = survey.store;
        }
        let seats = self.seats();
        let group = self.state_of(seats, &own, scheme)?;
        group.join(&self.agent, self.within())?;
        self.mend(&group, &own)?;
        Ok(group)
    }

    fn state_of(&self, seats: Vec<Seat>, own: &[Survey], scheme: Scheme) -> Result<GroupState> {
        let by_place: Vec<(usize, &Survey)> = own.iter().enumerate().collect();
        let kept = kept(&seats, &by_place, self.plan.scheme);
        let kept = kept
            .into_iter()
            .find(|kept| kept.members.len() == seats.len());
        let logs = || own.iter().filter_map(|survey| survey.group.as_ref());
        let round = logs().map(|group| group.round).max().unwrap_or(0);
        let mut group = GroupState {
            epoch: logs()
                .map(|group| group.epoch + 1)
                .fold(self.plan.epoch, u64::max),
            round: round.max(self.former_round),
            scheme,
            asked: self.plan.scheme.parities(),
            seats,
            table: StripeTable::default(),
            whole: true,
            unrecorded: None,
            known_from: None,
        };
        if let Some(kept) = kept {
            let authority = &group.seats[kept.authority];
            let of = (authority.store, kept.group.epoch);
            group.table = record::fetch(&self.agent, &peer(authority), of, self.within())?;
            group.epoch = kept.group.epoch;
            let seats = kept.members.iter().map(|&at| group.seats[at].clone());
            group.seats = seats.collect();
        }
        Ok(group)
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
            let here = self.plan.seats.iter();
            let seats = here
                .filter(|seat| named.contains(&seat.store))
                .cloned()
                .collect();
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

    /// The newest checkpoint that all members retain: what can be protected when no application runs that
    /// would commit one on the others.
    fn newest_common(&self) -> Result<Option<CheckpointId>> {
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
}

/// What an agent says of its node's own store, if there is one.
pub fn own_store(agent: &dyn Ask, of: &Peer, within: Duration) -> Result<Option<Survey>> {
    match agent.ask(of, &Request::Survey, within)? {
        Answer::Surveys(surveys) => Ok(surveys.into_iter().find(|s| !s.rebuilt)),
        other => Err(unexpected(of, &other)),
    }
}

/// How often a coordinator looks for a commit, and how often where none came for a while.
const IDLE: Duration = Duration::from_millis(1);
const LONG_IDLE: Duration = Duration::from_millis(10);
/// That while.
const AWAKE: Duration = Duration::from_secs(2);
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

/// Says that the newest committed checkpoint is being encoded, and which that is. Of one that was overtaken while
/// this was said a vote may not have heard, so that it would be dropped before it is protected.
fn begin_encoding(control: &Control, committed: CheckpointId) -> CheckpointId {
    let mut newest = committed;
    loop {
        control.set_encoding(newest);
        fence(Ordering::SeqCst);
        let now = control.committed();
        if now == newest {
            return newest;
        }
        newest = now;
    }
}

/// Protects what is committed, until it is told to end.
fn watch(agent: &Agent, coordinator: &mut RoundCoordinator, ending: &Ending) {
    // And with it all threads that it starts.
    agent.settings().background();
    let mut done = CheckpointId::default();
    let mut failed: Option<Failed> = None;
    let mut since = Stopwatch::start();
    while !ending.now.load(Ordering::Acquire) {
        let control = agent.control();
        let mut committed = control.as_ref().map_or(done, Control::committed);
        let waits = failed.as_ref().is_some_and(|failed| {
            failed.checkpoint == committed && failed.since.elapsed() < failed.pause
        });
        // After a return to an older one it is another, and not a newer one.
        if committed != done && committed.number > 0 && !waits {
            if let Some(control) = &control {
                committed = begin_encoding(control, committed);
            }
            since = Stopwatch::start();
            let outcome = fanout::catch(|| {
                let want = if agent.application_starts() {
                    committed
                } else {
                    coordinator.newest_common()?.unwrap_or(committed)
                };
                coordinator.protect(want)
            });
            match outcome {
                Ok(_) => (done, failed) = (committed, None),
                Err(_) if ending.stop.load(Ordering::Acquire) => break,
                Err(_) => failed = Some(Failed::again(committed, failed.as_ref())),
            }
        } else if ending.stop.load(Ordering::Acquire) {
            break;
        } else {
            let is_awake = since.elapsed() < AWAKE;
            std::thread::sleep(if is_awake { IDLE } else { LONG_IDLE });
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
                coordinator.forget_group();
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
