// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: brings a job's checkpoints to its archive, on the node of rank 0: which checkpoint is next,
//! which aggregator drains which nodes, and the record of what is whole.
//! In from: the words that the node's ranks share, the plan of the job. Out to: all points, the catalog.
//! Invariants: a checkpoint is recorded when every aggregator has committed its part; what is no longer
//! listed is freed by a later drain, never before; an aggregator that is gone is replaced by one that is
//! there, which goes on where it stood; the application is never waited for, nor kept waiting.

use super::follow::{Following, Outcome, Pace};
use super::point::DrainPoint;
use super::running::GRACE;
use super::seats::Seats;
use super::status::{ArchiveStatus, StatusCheckpoint, StatusFile, keep_measured};
use super::{DrainSettings, PARALLEL_MAX, keep_going, parallel, sweep};
use crate::catalog::slot_bytes_for;
use crate::{Catalog, FileName, Identity, NewCheckpoint, NewPart, fence, private, retention};
use backstay_base::clock::{Deadline, Stopwatch, patiently};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::drain::{DrainAnswer, DrainJob, DrainProgress, DrainRequest};
use backstay_format::width::to_u64;
use backstay_format::{CatalogState, CheckpointId, Lineage};
use backstay_net::Peer;
use backstay_store::control::{Control, wait_until};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A node whose checkpoints are drained.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveNode {
    /// Its name.
    pub name: String,
    /// The address of its agent.
    pub address: String,
}

impl ArchiveNode {
    pub(super) fn peer(&self) -> Peer {
        Peer::new(self.name.clone(), self.address.clone())
    }
}

/// How a job's checkpoints get to its archive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArchivePlan {
    /// The folder of the job.
    pub folder: PathBuf,
    /// The job.
    pub job: String,
    /// Its run.
    pub run: u32,
    /// This start.
    pub incarnation: u64,
    /// The starts that it goes on from, or begins.
    pub lineage: Lineage,
    /// The checkpoint that it restored.
    pub from: Option<StatusCheckpoint>,
    /// Every so many checkpoints one is drained, unless the planner picks them.
    pub every: u64,
    /// Checkpoints that the archive keeps.
    pub retained: usize,
    /// How to drain.
    pub settings: DrainSettings,
    /// The nodes, in the order of their ranks.
    pub nodes: Vec<ArchiveNode>,
    /// Nodes that one of them drains where there are no staging servers; by default a rule.
    pub aggregate_nodes: Option<u32>,
    /// Where the state of draining is written for those who look.
    pub status: Option<PathBuf>,
}

impl ArchivePlan {
    /// The catalog of the plan's job, for writing.
    pub fn open_catalog(&self) -> Result<Catalog> {
        self.open_catalog_by(Catalog::open_or_create)
    }

    /// The same, where what may stand in a slot that cannot be read was given up, and the checkpoint that was
    /// named is restored.
    pub fn open_catalog_past_unread(&self) -> Result<Catalog> {
        self.open_catalog_by(Catalog::go_on_past_unread)
    }

    fn open_catalog_by(
        &self,
        open: impl Fn(&Path, &Identity, u32) -> Result<Catalog>,
    ) -> Result<Catalog> {
        private::make_folder(&self.folder)?;
        self.refuse_if_over()?;
        let identity = Identity {
            job: self.job.clone(),
            run: self.run,
            aggregator: 0,
            epoch: 0,
            host: fence::host(),
        };
        let aggregators = Seats::count(&self.folder, self.nodes.len(), self.aggregate_nodes);
        let catalog = open(&self.folder, &identity, slot_bytes_for(aggregators))?;
        self.name_in(&catalog)?;
        Ok(catalog)
    }

    /// The catalog knows of this start, once it has begun.
    pub fn name_in(&self, catalog: &Catalog) -> Result<()> {
        match self.from {
            Some(from) => {
                let from = CheckpointId::new(from.incarnation, from.number);
                catalog.begin_start(self.lineage, Some(from))
            }
            None => catalog.name_lineage(self.lineage),
        }
    }

    /// A start that is over takes nothing over from a later one. Looked at before the catalog is taken over,
    /// because that ends whoever writes it.
    fn refuse_if_over(&self) -> Result<()> {
        let known = match Catalog::open_reader(&self.folder) {
            Ok(catalog) => catalog.state().incarnation,
            Err(_) => 0,
        };
        if known <= self.incarnation {
            return Ok(());
        }
        let context = format!(
            "{}: start {known} of job {} writes this archive; start {} is over, and archives nothing more: end it",
            self.folder.display(),
            self.job,
            self.incarnation
        );
        Err(Error::new(ErrorKind::StoreBusy, context))
    }

    /// The same; none where the file system is full, which may have room later. One that a dying process
    /// of the job still writes is waited for, as its lock is.
    pub fn open_catalog_if_room(&self) -> Result<Option<Catalog>> {
        let is_busy = |error: &Error| error.kind() == ErrorKind::StoreBusy;
        let limit = GRACE + self.within().min(GRACE);
        match patiently(limit, is_busy, || self.open_catalog()) {
            Err(error) if error.kind() == ErrorKind::StoreFull => {
                notice::warn(&format!(
                    "nothing is archived before there is room: {error}"
                ));
                Ok(None)
            }
            opened => opened.map(Some),
        }
    }

    fn within(&self) -> Duration {
        Duration::from_millis(self.settings.timeout_ms)
    }
}

/// How often an idle coordinator looks for a commit.
const IDLE: Duration = Duration::from_millis(5);
/// How long after a failed drain the next is tried.
const AGAIN: Duration = Duration::from_secs(1);
/// So often a drain is begun again at once because another process goes on from its file.
const TAKEN_OVER_MAX: u32 = 3;
/// How long a server that was left out may take to answer.
const BACK: Duration = Duration::from_secs(1);
/// Longest wait until all nodes of a share were told how a drain ended.
const TOLD: Duration = Duration::from_secs(4);

/// How a drain ended that did not fail for good.
enum Tried {
    Done,
    /// Other aggregators are in the place of those that were left out.
    Replaced,
    /// Another process goes on from a file: the next try takes it over in turn.
    TakenOver(Error),
}

/// Coordinates the archive of a job.
#[derive(Debug)]
struct DrainCoordinator {
    point: Arc<DrainPoint>,
    plan: ArchivePlan,
    /// None after it failed: opened again when it is needed.
    catalog: Option<Catalog>,
    seats: Seats,
    pace: Pace,
    /// The files that were written when it was last looked for others, and drains since they changed.
    swept: (Vec<String>, usize),
    status: StatusFile,
    state: ArchiveStatus,
    stop: Arc<AtomicBool>,
}

impl DrainCoordinator {
    fn new(
        point: Arc<DrainPoint>,
        plan: ArchivePlan,
        catalog: Option<Catalog>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let status = StatusFile::new(plan.status.clone());
        let mut coordinator = Self {
            state: ArchiveStatus::of(&plan),
            point,
            catalog,
            seats: Seats::assign(&plan.folder, &plan.nodes, plan.aggregate_nodes),
            pace: Pace::default(),
            swept: Default::default(),
            status,
            stop,
            plan,
        };
        coordinator.state.archived = coordinator.newest();
        coordinator
    }

    fn newest(&self) -> Option<CheckpointId> {
        let state = self.catalog.as_ref()?.state();
        state.restorable().map(|c| c.checkpoint).max()
    }

    fn catalog(&self) -> Result<&Catalog> {
        let none = || Error::new(ErrorKind::StoreFailed, "the catalog failed before");
        self.catalog.as_ref().ok_or_else(none)
    }

    /// After an error the catalog is opened anew: its sync may have failed, or its mount may be gone.
    fn change_catalog(&mut self, change: impl FnOnce(&Self, &Catalog) -> Result<()>) -> Result<()> {
        let done = self.catalog().and_then(|catalog| change(self, catalog));
        if done.is_err() {
            drop(self.catalog.take());
        }
        done
    }

    fn job(
        &self,
        at: usize,
        id: CheckpointId,
        state: &CatalogState,
        files: &BTreeMap<u32, &str>,
    ) -> Result<DrainJob> {
        let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let folder = self.plan.folder.to_str().ok_or_else(|| {
            let context = format!("{} is not UTF-8", self.plan.folder.display());
            Error::new(ErrorKind::Configuration, context)
        })?;
        let file = files.get(&small(at)).copied();
        Ok(DrainJob {
            folder: folder.to_owned(),
            settings: self.plan.settings.to_json(),
            job: self.plan.job.clone(),
            run: self.plan.run,
            aggregator: small(at),
            aggregators: small(self.seats.len()),
            incarnation: self.plan.incarnation,
            catalog: self.catalog()?.superblock().epoch,
            checkpoint: id,
            // What is kept stays though a later start abandoned it.
            retain: state.checkpoints.iter().map(|c| c.checkpoint).collect(),
            sources: self.seats[at].sources(),
            file: file.unwrap_or_default().to_owned(),
        })
    }

    /// Drains checkpoint `id` and records it.
    fn archive(&mut self, id: CheckpointId) -> Result<()> {
        let mut taken_over = 0;
        self.seats.begin();
        loop {
            match self.try_archive(id)? {
                Tried::Done => return Ok(()),
                Tried::Replaced => {}
                Tried::TakenOver(error) if taken_over == TAKEN_OVER_MAX => return Err(error),
                Tried::TakenOver(_) => taken_over += 1,
            }
        }
    }

    /// The same once.
    fn try_archive(&mut self, id: CheckpointId) -> Result<Tried> {
        let watch = Stopwatch::start();
        // A start that is over begins no drain.
        let is_current = self
            .catalog
            .as_ref()
            .is_some_and(|c| c.is_current().is_ok());
        if !is_current {
            drop(self.catalog.take());
            let catalog = self.plan.open_catalog()?;
            catalog.claim(self.plan.incarnation, false)?;
            self.catalog = Some(catalog);
        }
        let answers = |server: &Peer| {
            let answer = self.point.ask(server, &DrainRequest::Progress, BACK);
            matches!(answer, Ok(DrainAnswer::Progress(_)))
        };
        self.seats.replace_gone(&self.plan.folder, answers);
        self.change_catalog(Self::make_room)?;
        self.state.begin(id, self.seats.len());
        let done = self.drain_all(id)?;
        let mut parts = Vec::new();
        let mut lost = None;
        let (mut replaced, mut taken_over) = (true, true);
        for (at, outcome) in done.into_iter().enumerate() {
            match outcome {
                Ok(progress) => {
                    self.seats.did_well(at);
                    parts.push(progress);
                }
                Err(failed) => {
                    let is_out = self.seats.leave_out(at, &failed);
                    replaced &= is_out;
                    taken_over &= is_out || failed.was_taken_over();
                    lost = Some(failed.error);
                }
            }
        }
        match lost {
            // Others are in their place, so that nobody needs to be told.
            Some(_) if replaced => return Ok(Tried::Replaced),
            Some(error) if taken_over => return Ok(Tried::TakenOver(error)),
            Some(error) => return Err(error),
            None => {}
        }
        self.change_catalog(|_, catalog| record(catalog, id, &parts))?;
        self.sweep(&parts);
        self.state.end(id, watch.seconds(), &parts);
        self.keep_measured();
        Ok(Tried::Done)
    }

    /// What a job knows of itself outlives its nodes, as its checkpoints do.
    fn keep_measured(&self) {
        let Some(store) = self.plan.status.as_deref().and_then(Path::parent) else {
            return;
        };
        if let Err(error) = keep_measured(store, &self.plan.folder) {
            tracing::debug!("what the job measured is not in its archive: {error}");
        }
    }

    /// Has all aggregators drain their nodes, and waits until they have.
    fn drain_all(&mut self, id: CheckpointId) -> Result<Vec<Outcome>> {
        let state = self.catalog()?.state();
        let files = newest_files(state.stores.iter().map(|store| &*store.name));
        let jobs = (0..self.seats.len()).map(|at| self.job(at, id, &state, &files));
        let jobs = jobs.collect::<Result<Vec<DrainJob>>>()?;
        let shown = Mutex::new(std::mem::take(&mut self.state));
        let aggregators = self.seats.len().max(1);
        let rate = self.plan.settings.rate_bytes;
        let following = Following {
            point: &self.point,
            aggregators: &self.seats,
            pace: &self.pace,
            id,
            incarnation: self.plan.incarnation,
            within: self.plan.within(),
            rate_bytes: rate.map(|rate| rate / to_u64(aggregators)),
            stop: &self.stop,
            status: &self.status,
            shown: &shown,
        };
        let done = following.all(jobs);
        self.state = shown
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        done
    }

    /// Removes what takeovers left behind, where files changed, and when checkpoints went that need them.
    fn sweep(&mut self, parts: &[DrainProgress]) {
        let files: Vec<String> = parts.iter().map(|part| part.file.clone()).collect();
        if self.swept.0 == files && self.swept.1 > self.plan.retained {
            return;
        }
        let since = if self.swept.0 == files {
            self.swept.1 + 1
        } else {
            0
        };
        self.swept = (files, since);
        let swept = self
            .catalog()
            .and_then(|catalog| sweep::sweep(&self.plan.folder, catalog, self.seats.len()));
        match swept {
            Ok(gone) if gone.is_empty() => {}
            Ok(gone) => notice::info(&format!("no checkpoint needs {} any more", gone.join(", "))),
            Err(error) => tracing::debug!("nothing is removed from the archive: {error}"),
        }
    }

    /// Takes checkpoints off the catalog, so that the drain that is about to begin leaves `retained`.
    fn make_room(&self, catalog: &Catalog) -> Result<()> {
        let state = catalog.state();
        let others = self.plan.retained.saturating_sub(1).max(1);
        let dropped = retention::plan(&state, others).dropped;
        if dropped.is_empty() {
            return Ok(());
        }
        let ids: Vec<CheckpointId> = dropped.iter().map(|one| one.checkpoint).collect();
        catalog.drop_checkpoints(&ids)
    }

    /// Tells all nodes how draining `id` ended: aggregators pass it on to theirs.
    fn tell(&self, id: CheckpointId, kind: u32) {
        let short = self.plan.within().min(TOLD);
        let told = parallel(&self.seats, PARALLEL_MAX, |seat| {
            let request = DrainRequest::Archived {
                checkpoint: id,
                kind,
                nodes: seat.sources(),
            };
            // A node that is not told learns it from rank 0's at the next checkpoint.
            for peer in seat.speakers() {
                self.pace.wait(&self.stop);
                if self.point.ask(&peer, &request, short).is_ok() {
                    break;
                }
            }
            Ok(())
        });
        drop(told);
    }

    /// Goes on until told to stop; `drain_last` says to bring what is committed to the archive before.
    fn run(&mut self, drain_last: &AtomicBool) {
        let mut done = self.newest().unwrap_or_default();
        if done > CheckpointId::default() {
            self.tell(done, 0);
        }
        let mut failed: Option<(CheckpointId, Stopwatch)> = None;
        let mut said = notice::SaidOnce::default();
        while !self.stop.load(Ordering::Acquire) {
            let last = drain_last.load(Ordering::Acquire);
            let control = self.point.control();
            let committed = control.as_ref().map_or(done, Control::committed);
            let waits = failed
                .as_ref()
                .is_some_and(|(_, since)| since.elapsed() < AGAIN);
            let due = control
                .as_ref()
                .is_some_and(|control| self.is_due(control, committed, done));
            let wanted = committed > done && (last || due);
            if !wanted && last {
                return;
            }
            if !wanted || waits {
                self.state.waiting = (committed > done).then_some(committed);
                std::thread::sleep(IDLE);
                continue;
            }
            if let Some(control) = &control {
                self.state.follow(&self.plan, control);
                // How the one before ended is not how this one does.
                control.set_archive_outcome(0);
                control.set_archiving(committed);
            }
            match self.archive(committed) {
                Ok(()) => {
                    (done, failed) = (committed, None);
                    if let Some(control) = &control {
                        control.set_drain_seconds(self.state.last_seconds);
                    }
                    self.tell(committed, 0);
                    if said.clear() {
                        notice::info(&format!(
                            "checkpoint {committed} is in the archive; draining goes on"
                        ));
                    }
                }
                Err(error) => {
                    if last && failed.as_ref().is_some_and(|(id, _)| *id == committed) {
                        return;
                    }
                    failed = Some((committed, Stopwatch::start()));
                    self.failed(committed, &error, &mut said);
                }
            }
            self.status.write(&self.state);
        }
    }

    /// Whether what is committed is to be drained now. Where the planner picks, only what is wanted.
    fn is_due(&self, control: &Control, committed: CheckpointId, done: CheckpointId) -> bool {
        let wanted = control.archive_wanted();
        if done == CheckpointId::default() || (done < wanted && wanted <= committed) {
            return true;
        }
        let every = self.plan.every.max(1);
        // The newest that is at or behind a multiple that is not in the archive yet.
        !control.archive_planned() && committed.number / every > done.number / every
    }

    fn failed(&mut self, id: CheckpointId, error: &Error, said: &mut notice::SaidOnce) {
        let overtaken = error.kind() == ErrorKind::NotRetained;
        if !overtaken && !self.stop.load(Ordering::Acquire) {
            said.warn(&format!(
                "checkpoint {id} is not in the archive yet: {error}"
            ));
        }
        self.state.fail(error);
        let kind = u32::try_from(error.kind().code()).unwrap_or(u32::MAX);
        self.tell(id, kind);
    }
}

/// Records a checkpoint of which every aggregator has committed its part.
fn record(catalog: &Catalog, id: CheckpointId, parts: &[DrainProgress]) -> Result<()> {
    let part = |progress: &DrainProgress| NewPart {
        store: progress.store,
        file: progress.file.clone(),
        sequence: progress.sequence,
        ranks: progress.ranks.clone(),
    };
    catalog.record(&NewCheckpoint {
        checkpoint: id,
        world_size: parts.iter().map(|part| part.world_size).max().unwrap_or(0),
        bytes_total: parts.iter().map(|p| p.bytes_total).sum(),
        bytes_written: parts.iter().map(|p| p.bytes_stored).sum(),
        parts: parts.iter().map(part).collect(),
    })
}

/// The newest file of each aggregator: that of the highest epoch.
fn newest_files<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<u32, &'a str> {
    let known = names.filter_map(|name| Some((FileName::store(name)?, name)));
    let mut files: Vec<((u32, u32), &str)> = known.collect();
    files.sort_unstable();
    let newest = files.into_iter();
    newest.map(|((at, _), name)| (at, name)).collect()
}

/// The thread that coordinates the archive.
#[derive(Debug)]
pub struct ArchiveThread {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    drain_last: Arc<AtomicBool>,
}

impl ArchiveThread {
    /// Starts it; without a catalog it is opened when there is something to record.
    pub fn start(
        point: Arc<DrainPoint>,
        plan: ArchivePlan,
        catalog: Option<Catalog>,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let drain_last = Arc::new(AtomicBool::new(false));
        let (stopped, last) = (Arc::clone(&stop), Arc::clone(&drain_last));
        let work = move || {
            backstay_base::cpu::background(plan.settings.cpu_set.as_deref(), plan.settings.nice);
            let mut catalog = catalog;
            keep_going("draining to the archive", &stopped, AGAIN, || {
                let (point, plan) = (Arc::clone(&point), plan.clone());
                let stopped = Arc::clone(&stopped);
                DrainCoordinator::new(point, plan, catalog.take(), stopped).run(&last);
            });
        };
        let thread = std::thread::Builder::new()
            .name("backstay-archive".to_owned())
            .spawn(work)
            .map_err(|error| Error::io("starting the archive's thread".to_owned(), error))?;
        Ok(Self {
            thread,
            stop,
            drain_last,
        })
    }

    /// Ends it: when what is committed is in the archive, or after `limit`.
    pub fn stop(self, limit: Duration) {
        self.drain_last.store(true, Ordering::Release);
        // What it did not bring there by then it does not.
        drop(wait_until("the last drain", limit, || {
            self.thread.is_finished()
        }));
        self.end();
    }

    /// Ends it, and with it what it drains.
    pub fn end(self) {
        self.stop.store(true, Ordering::Release);
        let deadline = Deadline::after(Duration::from_secs(30));
        while !self.thread.is_finished() && deadline.left().is_some() {
            std::thread::sleep(IDLE);
        }
        // A file system that hangs must not hold the program: the thread ends with its process.
        if self.thread.is_finished() {
            drop(self.thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_format::Merge;
    use backstay_format::drain::ArchiveCodec;

    #[test]
    fn plans_travel_as_json() {
        let plan = ArchivePlan {
            folder: PathBuf::from("/pfs/job"),
            job: "job".to_owned(),
            run: 7,
            incarnation: 2,
            lineage: Lineage {
                began: 1,
                start: 2,
                finished: false,
                asked: 7,
                arguments: 8,
            },
            from: Some(CheckpointId::new(1, 9).into()),
            every: 3,
            retained: 2,
            settings: DrainSettings {
                merge: Merge::Interleave,
                group_size: 32,
                codec: ArchiveCodec::Ratio,
                second_pass: true,
                history: 8,
                every: 3,
                threads: 1,
                write_threads: 2,
                rate_bytes: Some(1 << 30),
                reserve_bytes: None,
                stripe_count: Some(4),
                stripe_size_bytes: None,
                nice: 19,
                cpu_set: Some("0-3".to_owned()),
                timeout_ms: 10_000,
            },
            nodes: vec![ArchiveNode {
                name: "a".to_owned(),
                address: "10.0.0.1:5".to_owned(),
            }],
            aggregate_nodes: Some(4),
            status: None,
        };
        let text = serde_json::to_string(&plan).unwrap();
        let back: ArchivePlan = serde_json::from_str(&text).unwrap();
        assert_eq!(back, plan);
        let unknown = text.replacen('{', "{\"later\":1,", 1);
        assert!(serde_json::from_str::<ArchivePlan>(&unknown).is_err());
    }

    #[test]
    fn an_aggregator_goes_on_with_its_file_of_the_highest_epoch() {
        let names = [
            "aggregate-1-2.backstay",
            "aggregate-1-10.backstay",
            "aggregate-10-1.backstay",
        ];
        let newest = newest_files(names.into_iter());
        assert_eq!(newest, BTreeMap::from([(1, names[1]), (10, names[2])]));
    }
}
