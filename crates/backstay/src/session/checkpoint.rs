// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: takes a checkpoint: capture, post, commit on the node, vote of the job.
//! In from: the program. Out to: `store::revision`, `store::commit`, the communicator.
//! Invariants: at most two collective calls a checkpoint, on the caller's thread; what a checkpoint
//! changed in memory takes effect only after the vote; after a failed one it is as if it had never been.

use super::groups::told_of_group;
use super::vote::{as_checkpoint, as_number, vote_with};
use super::{Session, lock, to_i64};
use crate::config::Config;
use crate::schedule::Level;
use backstay_base::clock::{Deadline, Stopwatch};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::{BlockRef, CheckpointId};
use backstay_metrics::{MetricsFile, What};
use backstay_store::commit::{NodeStore, Policy};
use backstay_store::control::{Control, Post, wait_until};
use backstay_store::region::Source;
use backstay_store::revision::PendingPart;
use backstay_store::track::mappings::Access;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// So many of the newest checkpoints are never given up: a commit that is interrupted on some nodes
/// needs the older one.
pub(super) const RETAINED_MIN: usize = 2;

/// A checkpoint that was started; see [`Session::test`] and [`Session::wait`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    checkpoint: CheckpointId,
    turn: u64,
}

impl Handle {
    pub(super) fn of(checkpoint: CheckpointId, turn: u64) -> Self {
        Self { checkpoint, turn }
    }

    /// Which checkpoint it will be.
    pub fn checkpoint(&self) -> CheckpointId {
        self.checkpoint
    }
}

/// What a checkpoint did on this rank.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Report {
    /// Which checkpoint.
    pub checkpoint: CheckpointId,
    /// Blocks of this rank's variables.
    pub blocks_total: u64,
    /// Blocks written.
    pub blocks_changed: u64,
    /// Bytes of this rank's variables.
    pub bytes_total: u64,
    /// Bytes of the blocks written.
    pub bytes_changed: u64,
    /// Bytes written beside the blocks: tree pages, tables.
    pub bytes_manifest: u64,
    /// Time the program was blocked.
    pub blocking_time: Duration,
    /// Time to find, copy and hash changed blocks.
    pub capture_time: Duration,
    /// Time from the capture to the outcome of all ranks.
    pub commit_time: Duration,
    /// Time waited until it was protected across nodes.
    pub protect_time: Duration,
    /// Time waited until it was in the archive.
    pub archive_time: Duration,
}

/// A checkpoint between capture and vote.
#[derive(Debug)]
pub(super) struct Underway {
    id: CheckpointId,
    turn: u64,
    captured: Result<PendingPart>,
    committer: Committer,
    report: Report,
    since: Stopwatch,
}

/// A checkpoint of which nothing was captured yet.
#[derive(Debug)]
pub(super) struct Announced {
    id: CheckpointId,
    turn: u64,
    begun: Result<()>,
    blocking_time: Duration,
}

/// Who commits this node's part.
#[derive(Debug)]
enum Committer {
    /// This rank did, with this outcome.
    Here(Result<()>),
    /// A thread of this rank does.
    Thread(JoinHandle<Result<()>>),
    /// Another rank does.
    Elsewhere,
}

impl Session {
    /// Takes a checkpoint; when it returns well, it is durable at level [`Level::Node`] on every node.
    /// When the store is full, the oldest checkpoints beyond the two newest and the pinned ones are
    /// given up, and it is tried once more. Collective: one call of the communicator, two if a rank
    /// fails.
    pub fn checkpoint(&mut self) -> Result<Report> {
        self.refuse_open_set("checkpoint")?;
        self.checkpoint_with_files()
    }

    /// The same, also of a set of files that is open.
    pub(super) fn checkpoint_with_files(&mut self) -> Result<Report> {
        self.process.check()?;
        let watch = Stopwatch::start();
        self.settle_earlier()?;
        let mut announced = self.announce();
        self.begin(announced, false);
        let mut outcome = self.settle_underway();
        if outcome.is_err() && std::mem::take(&mut self.made_room) {
            announced = self.announce();
            self.begin(announced, false);
            outcome = self.settle_underway();
        }
        let mut report = outcome?.unwrap_or_default();
        report.blocking_time = watch.elapsed();
        self.paid(report.checkpoint, report.blocking_time);
        self.record(&report);
        Ok(report)
    }

    /// Captures a checkpoint and returns; the commit goes on in the background, and its outcome is
    /// voted on in [`Session::wait`], the next checkpoint, or [`Session::close`]. Collective: it settles
    /// the checkpoint before, whose failure it reports.
    pub fn checkpoint_start(&mut self) -> Result<Handle> {
        let watch = Stopwatch::start();
        let handle = self.checkpoint_announce()?;
        if let Some(announced) = self.announced.take() {
            self.begin(announced, true);
        }
        let blocking_time = watch.elapsed();
        if let Some(underway) = &mut self.underway {
            underway.report.blocking_time = blocking_time;
        }
        // Nobody may ever wait for it: the next one is due an interval from now.
        self.paid(handle.checkpoint, blocking_time);
        Ok(handle)
    }

    /// The collective half of [`Session::checkpoint_start`], for a program whose protected memory stays as it is
    /// for a while: nothing is captured yet. [`Session::checkpoint_capture`] does it, from any thread, or else
    /// the next call that needs the session's state; until then the memory may not be written. Collective.
    pub fn checkpoint_announce(&mut self) -> Result<Handle> {
        self.process.check()?;
        self.refuse_open_set("checkpoint_start")?;
        let watch = Stopwatch::start();
        self.settle_earlier()?;
        let mut announced = self.announce();
        announced.blocking_time = watch.elapsed();
        let handle = Handle {
            checkpoint: announced.id,
            turn: announced.turn,
        };
        self.announced = Some(announced);
        Ok(handle)
    }

    /// Captures what was announced, if anything was: then the memory may be written again. Local.
    pub fn checkpoint_capture(&mut self) -> Result<()> {
        self.process.check()?;
        self.capture_announced();
        Ok(())
    }

    /// What was announced is captured, and committed in the background.
    pub(super) fn capture_announced(&mut self) {
        if let Some(announced) = self.announced.take() {
            let (id, blocking_time) = (announced.id, announced.blocking_time);
            self.begin(announced, true);
            self.paid(id, blocking_time);
        }
    }

    /// Whether the checkpoint is over on this node, well or not. Local, and says nothing of others.
    pub fn test(&self, handle: &Handle, level: Level) -> Result<bool> {
        self.process.check()?;
        match level {
            Level::Archive => return Ok(self.archiving_is_over(handle.checkpoint)),
            Level::Protected => return Ok(self.protection_is_over(handle.checkpoint)),
            Level::Node => {}
        }
        let announced = self.announced.as_ref();
        if announced.is_some_and(|announced| announced.turn == handle.turn) {
            return Ok(false);
        }
        let failed = self
            .underway
            .as_ref()
            .is_some_and(|underway| underway.captured.is_err());
        let pending = self
            .underway
            .as_ref()
            .is_some_and(|u| u.turn == handle.turn);
        Ok(!pending || failed || self.node.control.durable(handle.turn).is_some())
    }

    /// Waits until the checkpoint is safe at `level` on every node; the outcome is that of all ranks.
    /// Collective.
    pub fn wait(&mut self, handle: Handle, level: Level) -> Result<Report> {
        self.process.check()?;
        self.capture_announced();
        let mut report = self.wait_committed(handle)?;
        let number = to_i64(handle.checkpoint.number);
        let watch = Stopwatch::start();
        let (what, mine) = match level {
            Level::Node => return Ok(report),
            Level::Protected => (
                "waiting for protection",
                self.wait_protected(handle.checkpoint),
            ),
            Level::Archive => (
                "waiting for the archive",
                self.wait_archived(handle.checkpoint),
            ),
        };
        let mut told = told_of_group(&self.node.control);
        let outcome = vote_with(&self.comm, what, number, mine, &mut told);
        if self.underway.is_none() {
            self.all_groups_have(told);
        }
        outcome?;
        if level == Level::Protected {
            report.protect_time = watch.elapsed();
        } else {
            report.archive_time = watch.elapsed();
        }
        Ok(report)
    }

    fn wait_committed(&mut self, handle: Handle) -> Result<Report> {
        if self
            .underway
            .as_ref()
            .is_some_and(|underway| underway.turn == handle.turn)
        {
            let report = self.settle_underway()?.unwrap_or_default();
            self.record(&report);
            return Ok(report);
        }
        // One that newer ones took the place of was durable.
        let failed = self
            .failed_turns
            .iter()
            .any(|turns| turns.contains(&handle.turn));
        let was_durable = handle.turn > self.turns_before && !failed;
        if self.policy.complete.contains(&handle.checkpoint) || was_durable {
            return Ok(Report {
                checkpoint: handle.checkpoint,
                ..Report::default()
            });
        }
        Err(self.not_retained(handle.checkpoint.number))
    }

    /// Says that a checkpoint begins.
    fn announce(&mut self) -> Announced {
        self.wait_for_protection();
        self.turn += 1;
        let begun = self.open_start_from_nothing();
        self.begin_archive();
        let id = CheckpointId::new(self.incarnation, self.last_number + 1);
        self.pick(id);
        Announced {
            id,
            turn: self.turn,
            begun,
            blocking_time: Duration::ZERO,
        }
    }

    /// Captures this rank's part, posts it, and starts or does the commit of its node.
    fn begin(&mut self, announced: Announced, background: bool) {
        let Announced {
            id, turn, begun, ..
        } = announced;
        let watch = Stopwatch::start();
        self.ahead.capturing(true);
        let captured = begun.and_then(|()| self.capture(id, turn));
        self.ahead.capturing(false);
        let mut report = Report {
            checkpoint: id,
            blocking_time: announced.blocking_time,
            ..Report::default()
        };
        report.capture_time = watch.elapsed();
        let rank = self.comm.rank();
        let post = match &captured {
            Ok(pending) => {
                report.fill(pending);
                pending.post(rank)
            }
            Err(error) => failed_post(error.kind(), rank),
        };
        self.node.control.post(self.node.local, turn, &post);
        let since = Stopwatch::start();
        let committer = match self.node_commit(id, turn) {
            Some(commit) if background => commit.spawn(),
            Some(commit) => Committer::Here(commit.run()),
            None => Committer::Elsewhere,
        };
        self.underway = Some(Underway {
            id,
            turn,
            captured,
            committer,
            report,
            since,
        });
    }

    fn capture(&mut self, id: CheckpointId, turn: u64) -> Result<PendingPart> {
        if self.store.is_none() {
            let regions = self
                .variables
                .values()
                .map(|variable| variable.region.length_bytes());
            let start = (turn, self.lineage);
            let need_bytes = regions.chain([self.files.bytes()]);
            let need_bytes = need_bytes.fold(0, u64::saturating_add);
            let reserve = self.node.create_store(&self.config, need_bytes, start)?;
            self.ahead.new_store(self.node.wanted_slots.get());
            let space = backstay_store::space::Space::new(reserve.geometry().segment_bytes);
            let node = NodeStore::successor(reserve.clone(), reserve.roots()?);
            self.set_store(reserve, space, node);
            self.attach_agent()?;
            // Opened again, they would take this start for one that died.
            if self.metrics.is_none() {
                self.open_metrics();
            }
        }
        self.await_taken_back(turn)?;
        self.memory.check(self.variables.values(), Access::Read)?;
        let Some(store) = &self.store else {
            return Err(Error::new(ErrorKind::Internal, "there is no store"));
        };
        if store.rank.reserve().control().failed() {
            return Err(store.rank.reserve().failed_before());
        }
        let pages = &mut self.pages;
        let variables = self.variables.values_mut();
        let candidates: Vec<_> = variables
            .map(|variable| variable.candidates(pages.as_mut()))
            .collect::<Result<_>>()?;
        let (pending, by_variable) = self.capture_parts(id, &candidates)?;
        for (variable, did) in self.variables.values_mut().zip(&by_variable) {
            variable.changes.wrote(did.blocks_changed);
            if did.unmarked_changes > 0 {
                let (name, blocks) = (&variable.descriptor.name, did.unmarked_changes);
                let pages = self.pages.as_mut();
                variable
                    .changes
                    .contract_broken(name, blocks, id.number, pages);
            }
        }
        Ok(pending)
    }

    /// The commit of this node, if it is this rank's: the leader's at once, its successor's only when
    /// the leader does not come in time.
    fn node_commit(&self, id: CheckpointId, turn: u64) -> Option<NodeCommit> {
        if !self.node.leads() {
            return None;
        }
        let Some(store) = &self.store else {
            let code = ErrorKind::StoreIo.code();
            self.node
                .control
                .set_durable(turn, u64::try_from(code).unwrap_or(u64::MAX));
            return None;
        };
        Some(NodeCommit {
            control: self.node.control.clone(),
            store: Arc::clone(&store.node),
            policy: self.policy.clone(),
            ranks: u32::try_from(self.node.ranks.len()).unwrap_or(u32::MAX),
            local: self.node.local,
            predecessor: None,
            id,
            turn,
            world_size: self.comm.size(),
            wait: Duration::from_millis(self.config.timeout_ms),
            cpu_set: self.config.cpu_set.clone(),
        })
    }

    /// Brings the checkpoint under way to its end: waits for the node's commit, votes, and commits or
    /// rolls back in memory. `None` if there is none.
    pub(super) fn settle_underway(&mut self) -> Result<Option<Report>> {
        self.capture_announced();
        let Some(mut underway) = self.underway.take() else {
            return Ok(None);
        };
        let local = self.finish_on_node(&mut underway);
        let mine = match underway.captured {
            Err(error) => Err(error),
            Ok(pending) => local.map(|()| pending),
        };
        let what = format!("checkpoint {}", underway.id.number);
        let control = &self.node.control;
        let [all, any, oldest, newest] = told_of_group(control);
        let far = [control.archiving(), control.archived()];
        let [archiving, archived] = far.map(as_number);
        let leave = i64::from(self.leave.is_there());
        let gone = self.node.leads() && self.node.store_is_gone();
        let is_gone = i64::from(gone);
        let mut known = [
            all, any, oldest, newest, leave, archiving, archived, is_gone,
        ];
        let number = to_i64(underway.id.number);
        let outcome = vote_with(&self.comm, &what, number, mine, &mut known);
        let [
            all,
            any,
            oldest,
            newest,
            leave,
            archiving,
            archived,
            some_gone,
        ] = known;
        self.hear_of_leaving(leave > 0);
        let (id, complete) = (underway.id, outcome.is_ok());
        self.last_number = self.last_number.max(id.number);
        let outcome = outcome.map(|pending| self.commit_in_memory(id, pending));
        if let Err(error) = &outcome {
            match self.failed_turns.last_mut() {
                Some(last) if last.end == underway.turn => last.end += 1,
                _ => self
                    .failed_turns
                    .push(underway.turn..underway.turn.saturating_add(1)),
            }
            self.made_room = error.kind() == ErrorKind::StoreFull && self.make_room();
            self.abandon(id, underway.turn);
            if let Some(store) = &mut self.store {
                store.rank.roll_back();
            }
            for variable in self.variables.values_mut() {
                variable.changes.roll_back();
            }
            if let Some(metrics) = &mut self.metrics {
                metrics.metrics.checkpoints_failed += 1;
                metrics.note(What::CheckpointFailed, 0, 0.0);
            }
        }
        self.drop_unretained(Some((id, complete)));
        self.all_groups_have([all, any, oldest, newest]);
        self.policy.archiving = as_checkpoint(archiving).filter(|_| archiving > archived);
        self.policy.retained = backstay_format::width::index(self.config.retained);
        let back = if some_gone > 0 {
            self.put_stores_back(gone)
        } else {
            Ok(())
        };
        outcome.and(back)?;
        self.prepare_ahead();
        underway.report.commit_time = underway.since.elapsed();
        Ok(Some(underway.report))
    }

    fn commit_in_memory(&mut self, id: CheckpointId, pending: PendingPart) {
        for variable in self.variables.values_mut() {
            variable.changes.commit(id.number);
        }
        if let Some(store) = &mut self.store {
            store.rank.commit(id, pending);
        }
        self.policy.complete.insert(id);
        self.protection.drop_log(&self.node);
    }

    /// The same for a call that is about something else: the caller learns that it was not this call's own work that
    /// failed, and that it has to be made again.
    pub(super) fn settle_earlier(&mut self) -> Result<()> {
        self.capture_announced();
        let earlier = self.underway.as_ref().map(|underway| underway.id);
        match (self.settle_underway(), earlier) {
            // One that exists did not fail: its store could not be put back where somebody removed it.
            (Err(error), Some(id))
                if error.kind().is_passing() && !self.policy.complete.contains(&id) =>
            {
                let context = format!("checkpoint {id}; this call did nothing, make it again");
                Err(Error::caused(ErrorKind::EarlierFailed, context, error))
            }
            (outcome, _) => outcome.map(|_| ()),
        }
    }

    /// The outcome of this node's commit as far as this rank is answerable for it.
    fn finish_on_node(&mut self, underway: &mut Underway) -> Result<()> {
        match std::mem::replace(&mut underway.committer, Committer::Elsewhere) {
            Committer::Here(outcome) => outcome,
            Committer::Thread(thread) => thread.join().unwrap_or_else(|_panic| {
                Err(Error::new(
                    ErrorKind::Internal,
                    "the committing thread panicked",
                ))
            }),
            Committer::Elsewhere if self.node.local == 1 && underway.captured.is_ok() => {
                self.watch_leader(underway)
            }
            Committer::Elsewhere => Ok(()),
        }
    }

    /// The successor waits for the leader, and commits in its place when it does not come.
    fn watch_leader(&self, underway: &Underway) -> Result<()> {
        let control = &self.node.control;
        let limit = Duration::from_millis(self.config.timeout_ms);
        let patience = limit / 4;
        let ranks = u32::try_from(self.node.ranks.len()).unwrap_or(u32::MAX);
        let durable = || control.durable(underway.turn).is_some();
        // A rank that comes late is not the leader's fault.
        let all_here = wait_until(
            "all ranks of the node to capture their parts",
            limit,
            || durable() || (0..ranks).all(|local| control.posted(local, underway.turn).is_some()),
        );
        if wait_until("the node's leader to commit", patience, durable).is_ok() {
            return node_outcome(control, underway.turn);
        }
        all_here?;
        notice::warn(&format!(
            "rank {}: the leader of node {} has not committed checkpoint {} after {} ms; taking over",
            self.comm.rank(),
            self.node.name,
            underway.id,
            patience.as_millis()
        ));
        let Some(store) = &self.store else {
            return Ok(());
        };
        lock(&store.node).reload()?;
        NodeCommit {
            control: control.clone(),
            store: Arc::clone(&store.node),
            policy: self.policy.clone(),
            ranks,
            local: self.node.local,
            predecessor: Some(0),
            id: underway.id,
            turn: underway.turn,
            world_size: self.comm.size(),
            wait: patience,
            cpu_set: None,
        }
        .run()
    }

    /// Keeps what a checkpoint cost.
    fn record(&mut self, report: &Report) {
        self.keep_learnt();
        let due = self.metrics.as_ref().is_some_and(MetricsFile::is_due);
        let tracking = due.then(|| self.tracking());
        let protected = self.protected_checkpoint();
        let Some(file) = &mut self.metrics else {
            return;
        };
        if let Some(tracking) = tracking {
            file.metrics.tracking = tracking;
        }
        file.note(
            What::Checkpoint,
            report.checkpoint.number,
            report.blocking_time.as_secs_f64(),
        );
        let control = &self.node.control;
        if protected.is_some_and(|protected| file.note_protected(protected.number)) {
            let took = control.protect_seconds().into_iter();
            took.for_each(|seconds| file.metrics.protect_seconds.add(seconds));
        }
        let posts: Vec<Post> = (0..u32::try_from(self.node.ranks.len()).unwrap_or(0))
            .filter_map(|local| control.posted(local, self.turn))
            .collect();
        let (total, changed) = posts.iter().fold((0, 0), |(total, changed), post| {
            (total + post.bytes_total, changed + post.bytes_changed)
        });
        let metrics = &mut file.metrics;
        self.protection.measure(metrics);
        metrics.checkpoints += 1;
        metrics.changed_share = share(changed, total);
        metrics.changed_share_by_rank = posts
            .iter()
            .map(|p| (p.rank, share(p.bytes_changed, p.bytes_total)))
            .collect();
        metrics
            .checkpoint
            .blocking_seconds
            .add(report.blocking_time.as_secs_f64());
        metrics
            .checkpoint
            .capture_seconds
            .add(report.capture_time.as_secs_f64());
        metrics
            .checkpoint
            .commit_seconds
            .add(report.commit_time.as_secs_f64());
        metrics.checkpoint.bytes_total.add(as_f64(total));
        metrics.checkpoint.bytes_changed.add(as_f64(changed));
        metrics.store_bytes = self
            .store
            .as_ref()
            .map_or(0, |s| s.rank.reserve().length_bytes());
        if let Err(error) = file.write_when_due() {
            notice::warn(&error.to_string());
        }
    }
}

impl Report {
    fn fill(&mut self, pending: &PendingPart) {
        self.blocks_total = pending.captured.blocks_total;
        self.blocks_changed = pending.captured.blocks_changed;
        self.bytes_total = pending.bytes_total;
        self.bytes_changed = pending.captured.bytes_changed;
        self.bytes_manifest = pending.captured.bytes_manifest;
    }
}

/// The commit of one node, as a thing that can be done here or in another thread.
struct NodeCommit {
    control: Control,
    store: Arc<Mutex<NodeStore>>,
    policy: Policy,
    ranks: u32,
    local: u32,
    predecessor: Option<u32>,
    id: CheckpointId,
    turn: u64,
    world_size: u32,
    wait: Duration,
    cpu_set: Option<String>,
}

impl NodeCommit {
    /// In a background thread; here if there can be none.
    fn spawn(self) -> Committer {
        let shared = Arc::new(Mutex::new(Some(self)));
        let theirs = Arc::clone(&shared);
        let work = move || {
            let commit = lock(&theirs).take();
            commit.map_or(Ok(()), |commit| {
                backstay_base::cpu::restrict_thread(commit.cpu_set.as_deref());
                commit.run()
            })
        };
        match std::thread::Builder::new()
            .name("backstay-commit".to_owned())
            .spawn(work)
        {
            Ok(thread) => Committer::Thread(thread),
            Err(_) => Committer::Here(lock(&shared).take().map_or(Ok(()), |commit| commit.run())),
        }
    }

    fn run(&self) -> Result<()> {
        let outcome = self.commit();
        if !self.is_mine() {
            return self.follow_successor();
        }
        let code = outcome
            .as_ref()
            .err()
            .map_or(0, |error| error.kind().code());
        self.control
            .set_durable(self.turn, u64::try_from(code).unwrap_or(u64::MAX));
        outcome
    }

    /// Whether no other rank of the node has taken over.
    fn is_mine(&self) -> bool {
        self.control
            .claim_commit(self.turn, self.local, Some(self.local))
    }

    /// Another rank commits in this one's place: its outcome is the node's, and its root the newest.
    fn follow_successor(&self) -> Result<()> {
        wait_until("the rank that took over to commit", self.wait, || {
            self.control.durable(self.turn).is_some()
        })?;
        node_outcome(&self.control, self.turn)?;
        lock(&self.store).reload()
    }

    fn commit(&self) -> Result<()> {
        let mine = || {
            self.control
                .claim_commit(self.turn, self.local, self.predecessor)
        };
        if !mine() {
            return Err(Error::new(
                ErrorKind::Timeout,
                "another rank of this node commits",
            ));
        }
        let posts = self.gather()?;
        if let Some(failed) = posts.iter().find(|post| post.status != 0) {
            let kind = i32::try_from(failed.status)
                .ok()
                .and_then(ErrorKind::from_code);
            let context = format!("rank {} could not capture its part", failed.rank);
            let kind = kind.unwrap_or(ErrorKind::Internal);
            return Err(Error::new(kind, context).second_hand());
        }
        let still_mine = || self.is_mine();
        lock(&self.store).commit(self.id, self.world_size, &posts, &self.policy, still_mine)
    }

    fn gather(&self) -> Result<Vec<Post>> {
        let deadline = Deadline::after(self.wait);
        (0..self.ranks)
            .map(|local| {
                let left = deadline.left().unwrap_or(Duration::from_millis(1));
                let what = format!("rank number {local} of this node to capture its part");
                wait_until(&what, left, || {
                    self.control.posted(local, self.turn).is_some()
                })?;
                let gone = || Error::new(ErrorKind::Internal, "a posted part is gone");
                self.control.posted(local, self.turn).ok_or_else(gone)
            })
            .collect()
    }
}

fn node_outcome(control: &Control, turn: u64) -> Result<()> {
    match control.durable(turn) {
        Some(0) => Ok(()),
        Some(code) => {
            let kind = i32::try_from(code).ok().and_then(ErrorKind::from_code);
            let kind = kind.unwrap_or(ErrorKind::Internal);
            Err(Error::new(kind, "the node's commit failed").second_hand())
        }
        None => Err(Error::new(
            ErrorKind::Timeout,
            "the node's commit is not over",
        )),
    }
}

fn failed_post(kind: ErrorKind, rank: u32) -> Post {
    Post {
        status: u64::try_from(kind.code()).unwrap_or(u64::MAX),
        rank,
        root: BlockRef::NONE,
        bytes_total: 0,
        bytes_changed: 0,
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        as_f64(part) / as_f64(whole)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a measurement")]
fn as_f64(value: u64) -> f64 {
    value as f64
}

impl Session {
    /// The settings in force.
    pub fn config(&self) -> &Config {
        &self.config
    }
}
