// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what makes a node's checkpoints survive the node: collects what was sealed, encodes it
//! with the other members of the group, keeps their parity, and makes lost stores again.
//! In from: `session` or the agent process (a store, the names of the nodes), other agents. Out to:
//! `transport`, `redundancy`, the store's parity and its stripe log.
//! Invariants: bytes that a stripe names do not change while it lives; a record is written when all
//! that it names is durable; every request is refused that is of another epoch or round.
//!
//! | file | what it does |
//! |---|---|
//! | `compose` | which nodes are a group in a start of the job |
//! | `coordinate` | the rounds of a group, led by its first member |
//! | `round` | one round of one group: collect, form stripes, encode, flush, record |
//! | `member` | a node's part of a round: what waits, what is dead, parity kept, the log |
//! | `record` | stripe log records and tables, which travel in parts |
//! | `drains` | what else an agent has: its part in draining |
//! | `encode` | gathers the pieces of stripes and sends their parity away |
//! | `local` | how a node's leader and an agent process find and talk to each other |
//! | `process` | the agent as a process of its own |
//! | `rebuild` | the way back: a lost store from its stripes |
//! | `repair` | damaged extents of a store, in place |
//! | `restart` | before any store is opened: what all nodes have, and which lost stores are made again |
//! | `survey` | what stores and logs are on a node, for a restart to choose from |

mod buffers;
pub mod compose;
pub mod coordinate;
mod drains;
mod encode;
#[cfg(test)]
mod late;
pub mod local;
mod member;
mod pace;
pub mod process;
mod rebuild;
mod record;
mod repair;
pub mod restart;
mod round;
pub mod survey;

pub use coordinate::RoundCoordinatorThread;
pub use drains::{DrainThread, Drains, MakeDrains};

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::agent::{Answer, Request, Seat};
use backstay_format::{CheckpointId, StoreId};
use backstay_net::{Endpoint, Exposed, ExposureId, Handler, Peer, file_exposure};
use backstay_store::control::Control;
use backstay_store::lock::StoreLock;
use backstay_store::reserve::Reserve;
use backstay_store::stripe_log::StripeTable;
use backstay_store::view::SegmentView;
use buffers::Buffers;
use member::NodeMember;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use survey::LocalStore;

/// What gathers, encodes or rebuilds slower than this has failed.
const SLOWEST_BYTES_A_SECOND: u64 = 16 << 20;

/// How an agent works.
#[derive(Debug, Clone)]
pub struct AgentSettings {
    /// Longest wait for another agent.
    pub within: Duration,
    /// Threads that gather and encode.
    pub threads: usize,
    /// Bytes a second that this node gathers at most.
    pub rate_bytes: Option<u64>,
    /// CPUs of the background threads.
    pub cpu_set: Option<String>,
    /// Their niceness.
    pub nice: i32,
}

impl AgentSettings {
    /// Longest wait for work on so many bytes: the wait for an answer, and time for the bytes at a rate that
    /// only a fault falls below.
    pub(crate) fn within_for(&self, bytes: u64) -> Duration {
        let slowest = SLOWEST_BYTES_A_SECOND.min(self.rate_bytes.unwrap_or(u64::MAX) / 4);
        self.within + Duration::from_secs(bytes / slowest.max(1))
    }

    /// Does `what` in a thread of the background: threads that it starts are of the background as well.
    pub fn in_background<T: Send>(&self, what: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let panicked = || Error::new(ErrorKind::Internal, "starting background threads panicked");
        std::thread::scope(|scope| {
            let work = || {
                self.background();
                what()
            };
            let thread = std::thread::Builder::new()
                .spawn_scoped(scope, work)
                .map_err(|error| {
                    let context = "no thread to start background threads in";
                    Error::caused(ErrorKind::Internal, context, error)
                })?;
            thread.join().unwrap_or_else(|_| Err(panicked()))
        })
    }

    /// Makes the calling thread one of the background.
    pub fn background(&self) {
        backstay_base::cpu::background(self.cpu_set.as_deref(), self.nice);
    }
}

/// The agent of a node: in a thread of its leader, or in a process of its own.
#[derive(Debug)]
pub struct Agent {
    endpoint: Arc<dyn Endpoint>,
    drains: Option<Arc<dyn Drains>>,
    /// What the node's ranks share, once there is a store.
    control: Mutex<Option<Control>>,
    settings: AgentSettings,
    node: String,
    /// The folder of the node's own store.
    directory: RwLock<PathBuf>,
    /// What a survey found, and what was rebuilt since.
    stores: Mutex<Vec<LocalStore>>,
    /// Held while the folder is looked at, and while something in it is moved away.
    looking: Mutex<()>,
    member: Mutex<Option<NodeMember>>,
    /// The store was opened for writing: from then on it is written as a member only, and when that is
    /// gone not at all. Changes with `member` held.
    opened: AtomicBool,
    /// Records that the log of a store took before that. Changes with `member` held.
    logged: AtomicU64,
    buffers: Buffers,
    /// Parity extents that were offered to holders.
    offers: AtomicU64,
    /// The parts of a record to make.
    arriving: Mutex<record::Arriving>,
    /// A table whose parts are asked for.
    asked: Mutex<record::Asked>,
    /// What its group says of the node's store, whose own log could not be read.
    told: Mutex<Option<(StoreId, StripeTable)>>,
    /// What a restart had it do.
    done: rebuild::Done,
}

fn peer(seat: &Seat) -> Peer {
    Peer::new(seat.node.clone(), seat.address.clone())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Agent {
    /// The agent of `node`, answering at `endpoint`; `directory` is where the node's store is, or is
    /// going to be.
    pub fn start(
        endpoint: Arc<dyn Endpoint>,
        settings: AgentSettings,
        node: &str,
        directory: &Path,
        drains: Option<Arc<dyn Drains>>,
    ) -> Arc<Self> {
        let agent = Arc::new(Self {
            endpoint,
            drains,
            control: Mutex::default(),
            settings,
            node: node.to_owned(),
            directory: RwLock::new(directory.to_owned()),
            stores: Mutex::default(),
            looking: Mutex::default(),
            member: Mutex::default(),
            opened: AtomicBool::default(),
            logged: AtomicU64::default(),
            buffers: Buffers::default(),
            offers: AtomicU64::default(),
            arriving: Mutex::default(),
            asked: Mutex::default(),
            told: Mutex::default(),
            done: rebuild::Done::default(),
        });
        let handler: Arc<dyn Handler> = Arc::new(WeakAgent(Arc::downgrade(&agent)));
        agent.endpoint.serve(handler);
        agent
    }

    /// Its way to others.
    pub fn endpoint(&self) -> &Arc<dyn Endpoint> {
        &self.endpoint
    }

    /// Its part in draining to an archive.
    pub fn drains(&self) -> Option<&Arc<dyn Drains>> {
        self.drains.as_ref()
    }

    /// Takes the node's store, which is open for writing: under its protection where the job asked for
    /// it, and as a source of drains.
    pub fn attach(&self, reserve: &Reserve, directory: &Path) -> Result<()> {
        self.set_directory(directory);
        if let Some(drains) = &self.drains {
            drains.attach(reserve);
        }
        *lock(&self.control) = Some(reserve.control().clone());
        // Held to the end: what a request does before the store is open is done, or does not begin.
        let mut attached = lock(&self.member);
        self.opened.store(true, Ordering::Release);
        if !reserve.control().redundant() {
            return Ok(());
        }
        let store = reserve.reader().superblock().store;
        if attached
            .as_ref()
            .is_some_and(|member| member.store() == store)
        {
            return Ok(());
        }
        let member = NodeMember::attach(reserve, directory, self.told(store))?;
        self.expose(reserve, store);
        *attached = Some(member);
        drop(attached);
        Ok(())
    }

    /// Whether the node's ranks have, or had, the store open for writing in the start of this agent.
    fn was_opened(&self) -> bool {
        self.opened.load(Ordering::Acquire)
    }

    fn expose(&self, reserve: &Reserve, store: StoreId) {
        let segments = SegmentView::of_reserve(reserve);
        self.endpoint
            .expose(store.into(), Exposed::Sealed(Arc::new(segments)));
        let file = Arc::clone(reserve.reader().device());
        self.endpoint
            .expose(file_exposure(store), Exposed::Device(file));
    }

    /// Lets go of the store, which is about to be opened anew.
    pub fn detach(&self) {
        if let Some(drains) = &self.drains {
            drains.detach();
        }
        *lock(&self.control) = None;
        if let Some(member) = lock(&self.member).take() {
            self.endpoint.withdraw(member.store().into());
            self.endpoint.withdraw(file_exposure(member.store()));
        }
    }

    /// What the node's ranks share, once there is a store.
    pub fn control(&self) -> Option<Control> {
        lock(&self.control).clone()
    }

    /// Whether the leader of the node's ranks starts.
    pub fn application_starts(&self) -> bool {
        StoreLock::is_held(&self.directory())
    }

    fn directory(&self) -> PathBuf {
        self.directory
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Runs `what` on the attached store.
    fn with_member<T>(&self, what: impl FnOnce(&mut NodeMember) -> Result<T>) -> Result<T> {
        match lock(&self.member).as_mut() {
            Some(member) => what(member),
            None => Err(Error::new(
                ErrorKind::NoCheckpoint,
                format!("node {} has no store yet", self.node),
            )),
        }
    }

    /// The folder of the node's store, where it is, or is going to be.
    pub fn set_directory(&self, directory: &Path) {
        let mut own = self
            .directory
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        directory.clone_into(&mut own);
    }

    /// Removes stores that were made again for reading.
    pub fn drop_rebuilt(&self) {
        for store in self.local_stores().iter().filter(|s| s.survey.rebuilt) {
            self.forget(store.survey.store);
        }
        survey::remove_rebuilt(&self.directory());
    }

    fn answer(&self, request: &Request, within: Duration) -> Result<Answer> {
        let done = |()| Answer::Done;
        match request {
            Request::Survey => Ok(Answer::Surveys(self.survey())),
            Request::Table { store, epoch, part } => {
                self.table_part((*store, *epoch), *part).map(Answer::Table)
            }
            Request::Collect {
                epoch,
                round,
                want,
                known_from,
            } => self
                .collect((*epoch, *round), *known_from, *want, within)
                .map(Answer::Collected),
            Request::Encode {
                epoch,
                round,
                stripes,
            } => self
                .encode(*epoch, *round, stripes, within)
                .map(Answer::Encoded),
            Request::Take {
                epoch,
                round,
                from,
                exposure,
                length_bytes,
                digest,
            } => {
                let what = (ExposureId(*exposure), *length_bytes, *digest);
                self.take((*epoch, *round), *from, what, within)
                    .map(Answer::Taken)
            }
            Request::Record(part) => self.take_record(part).map(done),
            Request::Follow { from, epoch } => self.follow(from, *epoch).map(done),
            Request::Report {
                round,
                checkpoint,
                kind,
                text,
            } => {
                self.take_report(*round, *checkpoint, *kind, text);
                Ok(Answer::Done)
            }
            Request::Rebuild { .. } => self.answer_rebuild(request, within),
            Request::Repair { seats } => self.repair(seats, within),
            Request::SetAside { store } => self.set_aside(*store).map(done),
            Request::Join { .. }
            | Request::MakeRoom { .. }
            | Request::Flush { .. }
            | Request::Settle { .. }
            | Request::Settled { .. } => {
                self.with_member(|member| member.answer(request)).map(done)
            }
        }
    }

    fn answer_rebuild(&self, request: &Request, within: Duration) -> Result<Answer> {
        let Request::Rebuild {
            lost: store,
            seats,
            authority,
            epoch,
            checkpoint,
            own,
            named,
        } = request
        else {
            return Err(Error::new(ErrorKind::Internal, "no request to rebuild"));
        };
        let lost = rebuild::Lost {
            store: *store,
            authority: *authority,
            epoch: *epoch,
            checkpoint: *checkpoint,
            own: *own,
            named: *named,
        };
        self.rebuild(&lost, seats, within)
    }

    fn take_report(&self, round: u64, checkpoint: CheckpointId, kind: i32, text: &str) {
        if let Some(control) = self.control() {
            // Nobody need wait for what is not being encoded.
            control.set_encoding(control.protected_in_group());
            // Of one that was committed since, which is protected next, it says nothing.
            if control.committed() <= checkpoint {
                control.set_round(round, u64::try_from(kind).unwrap_or(0xff));
            }
        }
        if kind != 0 {
            tracing::warn!("protection round {round}: {text}");
        }
    }
}

/// Who sends requests to agents.
pub trait Ask: Sync {
    /// Sends a request to an agent and returns its answer.
    fn ask(&self, to: &Peer, request: &Request, within: Duration) -> Result<Answer>;
}

fn ask_by(
    endpoint: &dyn Endpoint,
    to: &Peer,
    request: &Request,
    within: Duration,
) -> Result<Answer> {
    let bytes = request.encode();
    let bytes = bytes.map_err(|error| Error::unwritable(format!("a request to {to}"), error))?;
    let bytes = endpoint.call(to, &bytes, within)?;
    Answer::decode(&bytes).map_err(|error| Error::malformed(format!("the answer of {to}"), error))
}

/// An agent does what it asks of itself.
impl Ask for Agent {
    fn ask(&self, to: &Peer, request: &Request, within: Duration) -> Result<Answer> {
        if to.address == self.endpoint.address() {
            return self.answer(request, within);
        }
        ask_by(&*self.endpoint, to, request, within)
    }
}

impl<T: Ask + Send> Ask for Arc<T> {
    fn ask(&self, to: &Peer, request: &Request, within: Duration) -> Result<Answer> {
        (**self).ask(to, request, within)
    }
}

/// Somebody who is no agent.
#[derive(Debug)]
pub struct Asker(pub Arc<dyn Endpoint>);

impl Ask for Asker {
    fn ask(&self, to: &Peer, request: &Request, within: Duration) -> Result<Answer> {
        ask_by(&*self.0, to, request, within)
    }
}

/// The endpoint must not keep its agent alive.
struct WeakAgent(std::sync::Weak<Agent>);

impl Handler for WeakAgent {
    fn handle(&self, request: &[u8], within: Duration) -> Result<Vec<u8>> {
        let Some(agent) = self.0.upgrade() else {
            let context = "this agent is shutting down";
            return Err(Error::new(ErrorKind::PeerUnreachable, context));
        };
        if let Some(drains) = &agent.drains
            && drains.is_request(request)
        {
            return drains.handle(request, within);
        }
        let request = Request::decode(request)
            .map_err(|error| Error::malformed("a request to this agent", error))?;
        let answer = agent.answer(&request, within)?.encode();
        answer.map_err(|error| Error::unwritable("the answer of this agent", error))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.endpoint.shut_down();
    }
}
