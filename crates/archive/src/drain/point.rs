// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a process that takes part in draining: it hands out its node's blocks, runs drains as an
//! aggregator, and says how far they are.
//! In from: requests of the coordinator and of aggregators. Out to: `source`, `work`.
//! Invariants: one drain at a time has the store; a request that cannot be done at once starts a thread, and `Progress`
//! tells how it goes; a store that failed is opened anew by the next drain; a start of the job that is over
//! begins and ends nothing.

use super::encode::{Encoders, Means};
use super::source::NodeSource;
use super::state::State;
use super::work::{Drain, From};
use super::{DrainSettings, PARALLEL_MAX, lock, open, parallel};
use crate::ArchiveStore;
use backstay_base::clock::{Deadline, Pulse};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::CheckpointId;
use backstay_format::agent::Seat;
use backstay_format::drain::{DrainAnswer, DrainJob, DrainProgress, DrainRequest, REQUEST_MAGIC};
use backstay_net::{Endpoint, Exposed, ExposureId, Peer, file_exposure, words};
use backstay_store::control::{Control, wait_until};
use backstay_store::reserve::Reserve;
use backstay_store::view::SegmentView;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A process that takes part in draining.
#[derive(Debug)]
pub struct DrainPoint {
    endpoint: Arc<dyn Endpoint>,
    name: String,
    source: Mutex<Option<Arc<NodeSource>>>,
    aggregator: Arc<AggregatorState>,
    threads: Mutex<Threads>,
    /// The latest start that began a drain.
    latest: Mutex<Option<Latest>>,
}

#[derive(Debug)]
struct Latest {
    start: Start,
    /// The newest checkpoint that it drained here.
    drained: CheckpointId,
}

/// A start of a job, as its coordinator says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    job: String,
    run: u32,
    incarnation: u64,
    /// Of two coordinators of one start, which is the later one.
    catalog: u32,
}

impl Start {
    pub(super) fn of(job: &DrainJob) -> Self {
        Self {
            job: job.job.clone(),
            run: job.run,
            incarnation: job.incarnation,
            catalog: job.catalog,
        }
    }

    /// Whether `other` is one of the same run that came later.
    fn is_before(&self, other: &Self) -> bool {
        (&self.job, self.run) == (&other.job, other.run)
            && (self.incarnation, self.catalog) < (other.incarnation, other.catalog)
    }
}

/// What drains share, one after the other.
#[derive(Debug, Default)]
struct AggregatorState {
    /// Held by the drain that is at work.
    open: Mutex<Option<OpenStore>>,
    encoders: Encoders,
    /// The drain that was begun last.
    latest: Mutex<Arc<Run>>,
    pulse: Pulse,
}

impl AggregatorState {
    fn latest(&self) -> Arc<Run> {
        Arc::clone(&lock(&self.latest))
    }
}

/// What a drain and those who ask about it share.
#[derive(Debug, Default)]
struct Run {
    progress: Mutex<DrainProgress>,
    cancel: Arc<AtomicBool>,
}

impl Run {
    fn cancel(&self) {
        self.cancel.store(true, Ordering::Release);
    }
}

/// Threads of drains.
#[derive(Debug, Default)]
struct Threads {
    latest: Option<JoinHandle<()>>,
    /// One that was told to end and has not: the latest waits for the store that it has.
    former: Option<JoinHandle<()>>,
}

/// The aggregator's store between drains.
#[derive(Debug)]
pub(super) struct OpenStore {
    /// Whose drain opened it.
    pub(super) start: Start,
    pub(super) aggregator: u32,
    /// The file that was recorded when it was opened, which it is or was taken over from.
    pub(super) recorded: String,
    pub(super) file: String,
    pub(super) store: ArchiveStore,
    pub(super) state: State,
}

/// States of a drain as `Progress` gives them; 0 is none yet.
pub(super) const AT_WORK: u8 = 1;
pub(super) const DONE: u8 = 2;
pub(super) const FAILED: u8 = 3;

/// What a file system is taken to take before anything was written to it.
const WRITE_BYTES_PER_SECOND: f64 = 0.5e9;

/// How long a drain that was told to stop may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Waits for a thread that was told to end; gives it back where it does not.
fn ended(thread: JoinHandle<()>, limit: Duration) -> Option<JoinHandle<()>> {
    let deadline = Deadline::after(limit);
    while !thread.is_finished() {
        if deadline.left().is_none() {
            return Some(thread);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(thread.join());
    None
}

impl DrainPoint {
    /// The process `name` that answers at `endpoint`.
    pub fn new(endpoint: Arc<dyn Endpoint>, name: &str) -> Self {
        Self {
            endpoint,
            name: name.to_owned(),
            source: Mutex::default(),
            aggregator: Arc::default(),
            threads: Mutex::default(),
            latest: Mutex::default(),
        }
    }

    /// Its way to others.
    pub fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// How others reach it.
    pub fn peer(&self) -> Peer {
        Peer::new(self.name.clone(), self.endpoint.address())
    }

    /// Hands out the blocks of the node's store, which is open.
    pub fn attach(&self, reserve: &Reserve) {
        let store = reserve.reader().superblock().store;
        let mut source = lock(&self.source);
        if source
            .as_ref()
            .is_some_and(|source| source.store() == store)
        {
            return;
        }
        let file = Arc::clone(reserve.reader().device());
        self.endpoint
            .expose(file_exposure(store), Exposed::Device(file));
        let segments = Arc::new(SegmentView::of_reserve(reserve));
        self.endpoint
            .expose(store.into(), Exposed::Sealed(segments));
        *source = Some(Arc::new(NodeSource::new(reserve.clone())));
    }

    /// Lets go of the node's store: a drain that is under way ends first.
    pub fn detach(&self) {
        self.stop();
        if let Some(source) = lock(&self.source).take() {
            self.endpoint.withdraw(source.store().into());
            self.endpoint.withdraw(file_exposure(source.store()));
        }
    }

    /// What the node's ranks share, once there is a store.
    pub fn control(&self) -> Option<Control> {
        let source = lock(&self.source);
        source
            .as_ref()
            .map(|source| source.reserve().control().clone())
    }

    /// Ends a drain that is under way. One that hangs in the file system is left behind: it reads of the
    /// node what is there, and a commit of it is one of the checkpoint that it is of.
    pub fn stop(&self) {
        self.aggregator.latest().cancel();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads.former.into_iter().chain(threads.latest) {
            drop(ended(thread, PATIENCE));
        }
    }

    /// Whether a request is one of a drain.
    pub fn is_request(bytes: &[u8]) -> bool {
        bytes.starts_with(&REQUEST_MAGIC)
    }

    /// Answers a request of a drain.
    pub fn handle(&self, request: &[u8], within: Duration) -> Result<Vec<u8>> {
        let request = DrainRequest::decode(request)
            .map_err(|error| Error::malformed("a request of a drain", error))?;
        let answer = self.answer(&request, within)?.encode();
        answer.map_err(|error| Error::unwritable("the answer to a request of a drain", error))
    }

    /// Asks a point, which may be this one.
    pub fn ask(&self, to: &Peer, request: &DrainRequest, within: Duration) -> Result<DrainAnswer> {
        if to.address == self.endpoint.address() {
            return self.answer(request, within);
        }
        super::sources::ask(&*self.endpoint, to, request, within)
    }

    fn source(&self) -> Result<Arc<NodeSource>> {
        let none = || {
            let context = format!("node {} has no store yet", self.name);
            Error::new(ErrorKind::NoCheckpoint, context)
        };
        lock(&self.source).clone().ok_or_else(none)
    }

    /// The source, once the node has made its store: another node may have committed before.
    fn await_source(&self, within: Duration) -> Result<Arc<NodeSource>> {
        let there = || lock(&self.source).is_some();
        drop(wait_until(
            "the node to make its store",
            within.mul_f64(0.4),
            there,
        ));
        self.source()
    }

    fn answer(&self, request: &DrainRequest, within: Duration) -> Result<DrainAnswer> {
        match request {
            DrainRequest::Offer { checkpoint } => {
                let source = self.await_source(within)?;
                let offered = source.offer(&self.name, *checkpoint, &*self.endpoint, within)?;
                Ok(DrainAnswer::Offered(offered))
            }
            DrainRequest::Gather { checkpoint, pieces } => {
                let source = self.source()?;
                let (exposure, length_bytes) =
                    source.gather(*checkpoint, pieces, &*self.endpoint)?;
                Ok(DrainAnswer::Gathered {
                    exposure: exposure.0,
                    length_bytes,
                })
            }
            DrainRequest::Release { exposure } => {
                self.source()?
                    .release(ExposureId(*exposure), &*self.endpoint);
                Ok(DrainAnswer::Done)
            }
            DrainRequest::Begin(job) => self.begin(job, within).map(|()| DrainAnswer::Done),
            DrainRequest::Progress => {
                let mut progress = lock(&self.aggregator.latest().progress).clone();
                progress.steps = self.aggregator.pulse.count();
                Ok(DrainAnswer::Progress(progress))
            }
            DrainRequest::Cancel { incarnation } => {
                let latest = lock(&self.latest);
                if latest
                    .as_ref()
                    .is_none_or(|latest| latest.start.incarnation <= *incarnation)
                {
                    self.aggregator.latest().cancel();
                }
                Ok(DrainAnswer::Done)
            }
            DrainRequest::Archived {
                checkpoint,
                kind,
                nodes,
            } => {
                if nodes.is_empty() {
                    self.note_archived(*checkpoint, *kind);
                } else {
                    self.pass_on(*checkpoint, *kind, nodes, within);
                }
                Ok(DrainAnswer::Done)
            }
        }
    }

    /// How a drain ended. What comes late, or again, is known, or was told of an earlier try.
    fn note_archived(&self, checkpoint: CheckpointId, kind: u32) {
        let control = self.control();
        if let Some(control) = control.filter(|control| control.archived() < checkpoint) {
            if kind == 0 {
                control.set_archived(checkpoint);
            } else {
                control.set_archiving(checkpoint);
            }
            control.set_archive_outcome(u64::from(kind));
        }
    }

    /// The same to `nodes`, which are this one's. One that is not told learns it at the next checkpoint.
    fn pass_on(&self, checkpoint: CheckpointId, kind: u32, nodes: &[Seat], within: Duration) {
        let deadline = Deadline::after(within.mul_f64(0.9));
        let told = parallel(nodes, PARALLEL_MAX, |seat| {
            let request = DrainRequest::Archived {
                checkpoint,
                kind,
                nodes: Vec::new(),
            };
            let peer = Peer::new(seat.node.clone(), seat.address.clone());
            if let Some(left) = deadline.left() {
                drop(self.ask(&peer, &request, left.min(within / 2)));
            }
            Ok(())
        });
        drop(told);
    }

    /// The later start of a run has the aggregator; one that is over is refused. So is a request that comes
    /// late: a drain of an older checkpoint would take off the store what was drained since.
    fn admit(&self, job: &DrainJob, progress: &DrainProgress) -> Result<()> {
        let mut latest = lock(&self.latest);
        let start = Start::of(job);
        let begun = Latest {
            start: start.clone(),
            drained: CheckpointId::default(),
        };
        let known = latest.get_or_insert(begun);
        if start.is_before(&known.start) {
            let later = &known.start;
            let context = format!(
                "{} drains for start {} of job {} (catalog {}); this is start {} (catalog {}), which that \
                 one took over from: end it",
                self.name,
                later.incarnation,
                later.job,
                later.catalog,
                start.incarnation,
                start.catalog
            );
            return Err(Error::new(ErrorKind::StoreBusy, context));
        }
        if known.start != start {
            let drained = CheckpointId::default();
            *known = Latest { start, drained };
            return Ok(());
        }
        if progress.state == DONE {
            known.drained = known.drained.max(progress.checkpoint);
        }
        let is_at_work = progress.state == AT_WORK && progress.checkpoint > job.checkpoint;
        if is_at_work || known.drained > job.checkpoint {
            let newer = known.drained.max(progress.checkpoint);
            let context = format!(
                "{} is to drain checkpoint {}, and {newer} was begun since",
                self.name, job.checkpoint
            );
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        Ok(())
    }

    fn begin(&self, job: &DrainJob, within: Duration) -> Result<()> {
        let settings = DrainSettings::from_json(&job.settings)?;
        let mut threads = lock(&self.threads);
        let latest = self.aggregator.latest();
        let progress = lock(&latest.progress).clone();
        self.admit(job, &progress)?;
        if let Some(running) = threads.latest.take() {
            if !running.is_finished() && progress.checkpoint == job.checkpoint {
                threads.latest = Some(running);
                return Ok(());
            }
            // Another checkpoint, or another coordinator: what is under way is given up.
            latest.cancel();
            if let Some(running) = ended(running, PATIENCE.min(within / 2)) {
                threads.make_way(running)?;
            }
        }
        let run = Arc::new(Run::default());
        *lock(&run.progress) = DrainProgress {
            state: AT_WORK,
            checkpoint: job.checkpoint,
            ..DrainProgress::default()
        };
        *lock(&self.aggregator.latest) = Arc::clone(&run);
        let drain = DrainRun {
            endpoint: Arc::clone(&self.endpoint),
            name: self.name.clone(),
            own: lock(&self.source).clone(),
            aggregator: Arc::clone(&self.aggregator),
            run: Arc::clone(&run),
            job: job.clone(),
            settings,
        };
        let started = std::thread::Builder::new()
            .name("backstay-drain".to_owned())
            .spawn(move || drain.run());
        let started = started.map_err(|error| {
            lock(&run.progress).state = FAILED;
            Error::io("starting a drain".to_owned(), error)
        })?;
        threads.latest = Some(started);
        Ok(())
    }
}

impl Threads {
    /// `running` was told to end, and has not: who comes next waits for it. Where it waits for another one
    /// itself, the file system hangs.
    fn make_way(&mut self, running: JoinHandle<()>) -> Result<()> {
        if self
            .former
            .as_ref()
            .is_some_and(|former| !former.is_finished())
        {
            self.latest = Some(running);
            let context = "a former drain still hangs in the file system";
            return Err(Error::new(ErrorKind::StoreBusy, context));
        }
        self.former = Some(running);
        Ok(())
    }
}

impl Drop for DrainPoint {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A drain in its thread.
struct DrainRun {
    endpoint: Arc<dyn Endpoint>,
    name: String,
    own: Option<Arc<NodeSource>>,
    aggregator: Arc<AggregatorState>,
    run: Arc<Run>,
    job: DrainJob,
    settings: DrainSettings,
}

impl DrainRun {
    fn run(&self) {
        backstay_base::cpu::background(self.settings.cpu_set.as_deref(), self.settings.nice);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.drain()));
        let panicked = |_| Err(Error::new(ErrorKind::Internal, "a drain panicked"));
        let outcome = outcome.unwrap_or_else(panicked);
        let mut progress = lock(&self.run.progress);
        match outcome {
            Ok(sequence) => {
                progress.sequence = sequence;
                progress.state = DONE;
            }
            Err(error) => {
                progress.kind = u32::try_from(error.kind().code()).unwrap_or(u32::MAX);
                progress.text = words(&error).chars().take(1000).collect();
                progress.state = FAILED;
            }
        }
    }

    /// What may be spent on codecs: what the file system took so far, or is allowed to take.
    fn means(&self, own: &OpenStore) -> Means {
        let allowed = self
            .settings
            .rate_bytes
            .map(|rate| rate / u64::from(self.job.aggregators.max(1)));
        let takes = own
            .store
            .write_bytes_per_second()
            .unwrap_or(WRITE_BYTES_PER_SECOND);
        Means {
            codec: self.settings.codec,
            second_pass: self.settings.second_pass,
            threads: self.settings.threads,
            write_bytes_per_second: allowed.map_or(takes, |allowed| takes.min(as_f64(allowed))),
        }
    }

    fn drain(&self) -> Result<u64> {
        let mut held = lock(&self.aggregator.open);
        if self.run.cancel.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Timeout, "the drain was told to stop"));
        }
        let mut own = open::store_for(
            held.take(),
            &self.job,
            &self.settings,
            &self.aggregator.pulse,
        )?;
        {
            let mut progress = lock(&self.run.progress);
            progress.file.clone_from(&own.file);
            progress.store = own.store.id();
        }
        let before = own.store.stats().growths;
        let drain = Drain {
            from: From::Nodes {
                endpoint: &self.endpoint,
                name: &self.name,
                own: self.own.as_deref(),
            },
            job: &self.job,
            settings: &self.settings,
            store: &own.store,
            encoders: &self.aggregator.encoders,
            means: self.means(&own),
            progress: &self.run.progress,
            cancel: &self.run.cancel,
            pulse: &self.aggregator.pulse,
        };
        let outcome = drain.run(&mut own.state);
        lock(&self.run.progress).growths = own.store.stats().growths - before;
        match &outcome {
            Ok(_) => *held = Some(own),
            // A store whose sync failed is not used again, nor one whose file may be gone with its mount: the
            // next drain opens it anew.
            // So is one that another file goes on from.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::StoreIo | ErrorKind::StoreFailed | ErrorKind::StoreBusy
                ) =>
            {
                drop(own);
            }
            Err(_) => {
                own.store.roll_back();
                *held = Some(own);
            }
        }
        outcome
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn as_f64(value: u64) -> f64 {
    value as f64
}
