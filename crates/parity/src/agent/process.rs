// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: an agent as a process of its own: it outlives the application, goes on protecting what was
//! committed, and ends when its job is over.
//! In from: the leaders of the job's starts, one after the other. Out to: an `Agent`, which does the work.
//! Invariants: it writes a store only between `Attach` and `Detach`; without a leader for longer than
//! asked for it ends; a request that cannot be read ends the connection, not the agent.
//! Format: docs/format/agent.md.

use super::coordinate::{GroupPlan, RoundCoordinator};
use super::local::{AgentPlace, receive, send, sendable};
use super::{Agent, AgentSettings, DrainThread, MakeDrains, RoundCoordinatorThread, lock};
use crate::group::Scheme;
use backstay_base::clock::Stopwatch;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::file::FileDevice;
use backstay_base::io::shared::SharedWords;
use backstay_base::notice;
use backstay_format::local::{LocalAnswer, LocalRequest, LocalStoreEntry};
use backstay_format::width::index;
use backstay_net::{Endpoint, Secret, TcpOptions, Transport, Transports};
use backstay_store::control::{CONTROL_FILE, Control};
use backstay_store::lock::StoreLock;
use backstay_store::place::STORE_FILE;
use backstay_store::reserve::{Reserve, ReserveSettings};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How an agent process lives.
#[derive(Debug, Clone)]
pub struct ProcessOptions {
    /// The folder of the node's store.
    pub directory: PathBuf,
    /// How long it stays while no application runs.
    pub linger: Duration,
    /// A file whose presence says that the job is over.
    pub over: Option<PathBuf>,
}

/// Why an agent process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The job said goodbye.
    JobOver,
    /// No application came for so long.
    Alone,
    /// It was told to.
    Asked,
    /// Somebody removed its place in the folder of the store: no leader finds it any more.
    Removed,
}

/// What the connections of leaders share.
#[derive(Debug, Default)]
struct State {
    agent: Option<Arc<Agent>>,
    coordinator: Option<RoundCoordinatorThread>,
    archive: Option<Box<dyn DrainThread>>,
    /// The store's file, as often as it was opened.
    held: Vec<Arc<FileDevice>>,
    timeout: Duration,
    goodbye: bool,
}

type OpenEndpoint<'a> = dyn Fn(TcpOptions) -> Result<Arc<dyn Endpoint>> + Sync + 'a;

/// What an agent has of the machine that it runs on.
pub struct Surroundings<'a> {
    /// The number of its process, by which its file names it.
    pub id: u32,
    /// Opens its way to other agents.
    pub open_endpoint: &'a OpenEndpoint<'a>,
    /// Gives it its part in draining.
    pub drains: &'a MakeDrains<'a>,
    /// Where it finds the folder of a store that its leader names.
    pub folder: &'a (dyn Fn(&Path) -> PathBuf + Sync),
}

impl std::fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Surroundings({})", self.id)
    }
}

/// Runs an agent until its job is over, it has been alone for too long, or `stop` is set.
pub fn run(
    options: &ProcessOptions,
    stop: &AtomicBool,
    around: &Surroundings<'_>,
) -> Result<Ended> {
    backstay_base::io::on_demand::raise_file_limit();
    let place = AgentPlace::take(&options.directory, around.id)?;
    notice::info(&format!(
        "agent of the store in {}",
        options.directory.display()
    ));
    let state = Mutex::new(State::default());
    let mut alone = Stopwatch::start();
    std::thread::scope(|scope| {
        loop {
            if let Some(stream) = place.accept(Duration::from_millis(100)) {
                let state = &state;
                let serving = std::thread::Builder::new()
                    .spawn_scoped(scope, move || serve(&stream, (state, around), stop));
                if let Err(error) = serving {
                    notice::warn(&format!(
                        "a rank is not answered: no thread for it: {error}"
                    ));
                }
            }
            if StoreLock::is_held(&options.directory) {
                alone = Stopwatch::start();
            }
            let ended = if stop.load(Ordering::Acquire) {
                Some(Ended::Asked)
            } else if lock(&state).goodbye || options.over.as_ref().is_some_and(|p| p.exists()) {
                Some(Ended::JobOver)
            } else if place.stands() {
                (alone.elapsed() > options.linger).then_some(Ended::Alone)
            } else {
                Some(Ended::Removed)
            };
            if let Some(ended) = ended {
                stop.store(true, Ordering::Release);
                end(&state);
                return Ok(ended);
            }
        }
    })
}

/// Finishes what is under way.
fn end(state: &Mutex<State>) {
    let (coordinator, archive, agent, timeout) = {
        let mut state = lock(state);
        let (coordinator, archive) = (state.coordinator.take(), state.archive.take());
        (coordinator, archive, state.agent.take(), state.timeout)
    };
    if let Some(coordinator) = coordinator {
        coordinator.stop(timeout.min(Duration::from_secs(30)));
    }
    if let Some(archive) = archive {
        archive.stop(timeout);
    }
    if let Some(agent) = agent {
        agent.detach();
        agent.endpoint().shut_down();
    }
}

/// Answers one leader until it goes away.
fn serve(
    stream: &UnixStream,
    (state, around): (&Mutex<State>, &Surroundings<'_>),
    stop: &AtomicBool,
) {
    drop(stream.set_read_timeout(Some(Duration::from_millis(200))));
    while !stop.load(Ordering::Acquire) {
        let bytes = match receive(stream) {
            Ok(Some(bytes)) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Ok(None) | Err(_) => return,
        };
        let answer = match LocalRequest::decode(&bytes) {
            Ok(request) => answer(&request, state, around),
            Err(error) => Err(Error::malformed("a request of a rank", error)),
        };
        // What cannot be said is said to have failed; who asks does not wait in vain.
        let what = || "the answer of this node's agent".to_owned();
        let encoded = answer.and_then(|answer| sendable(what, answer.encode()));
        let encoded = encoded.or_else(|error| {
            let failed = LocalAnswer::Failed {
                kind: error.kind().code(),
                text: error.to_string().chars().take(1000).collect(),
            };
            failed.encode()
        });
        match encoded.map(|bytes| send(stream, &bytes)) {
            Ok(Ok(())) => {}
            _ => return,
        }
    }
}

fn answer(
    request: &LocalRequest,
    state: &Mutex<State>,
    around: &Surroundings<'_>,
) -> Result<LocalAnswer> {
    match request {
        LocalRequest::Begin { .. } => begin(request, state, around),
        LocalRequest::Attach {
            directory,
            store_directory,
        } => {
            let store_directory = (around.folder)(Path::new(store_directory));
            attach(state, Path::new(directory), &store_directory)
        }
        LocalRequest::Detach => {
            let (coordinator, archive, agent) = {
                let mut state = lock(state);
                let (coordinator, archive) = (state.coordinator.take(), state.archive.take());
                state.held.clear();
                (coordinator, archive, state.agent.take())
            };
            if let Some(coordinator) = coordinator {
                coordinator.stop(Duration::ZERO);
            }
            if let Some(archive) = archive {
                archive.stop(Duration::ZERO);
            }
            if let Some(agent) = agent {
                agent.detach();
                agent.endpoint().shut_down();
            }
            Ok(LocalAnswer::Done)
        }
        LocalRequest::Coordinate { .. } => coordinate(request, state),
        LocalRequest::Archive { plan } => archive(plan, state),
        LocalRequest::Stop { limit_ms } => {
            let (coordinator, archive) = {
                let mut state = lock(state);
                (state.coordinator.take(), state.archive.take())
            };
            let limit = Duration::from_millis(*limit_ms);
            if let Some(coordinator) = coordinator {
                coordinator.stop(limit);
            }
            if let Some(archive) = archive {
                archive.stop(limit);
            }
            Ok(LocalAnswer::Done)
        }
        LocalRequest::Stores => {
            let stores = agent_of(state)?.local_stores();
            let entry = |store: super::survey::LocalStore| LocalStoreEntry {
                store: store.survey.store,
                directory: store.directory.to_string_lossy().into_owned(),
                rebuilt: store.survey.rebuilt,
            };
            Ok(LocalAnswer::Stores(stores.into_iter().map(entry).collect()))
        }
        LocalRequest::DropRebuilt => {
            agent_of(state)?.drop_rebuilt();
            Ok(LocalAnswer::Done)
        }
        LocalRequest::Goodbye => {
            lock(state).goodbye = true;
            Ok(LocalAnswer::Done)
        }
    }
}

fn coordinate(request: &LocalRequest, state: &Mutex<State>) -> Result<LocalAnswer> {
    let LocalRequest::Coordinate {
        scheme,
        parity,
        epoch,
        members,
        nodes,
    } = request
    else {
        return Err(Error::new(ErrorKind::Internal, "nothing to coordinate"));
    };
    let is_there = |at: &usize| *at < nodes.len();
    let members: Vec<usize> = members.iter().map(|&at| index(at)).collect();
    if !members.iter().all(is_there) {
        let context = format!("a group of nodes {members:?} of {}", nodes.len());
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    }
    let plan = GroupPlan {
        seats: nodes.clone(),
        members,
        epoch: *epoch,
        scheme: scheme_of(*scheme, *parity)?,
    };
    let agent = agent_of(state)?;
    let coordinator = RoundCoordinator::new(Arc::clone(&agent), plan);
    lock(state).coordinator = RoundCoordinatorThread::start(agent, coordinator);
    Ok(LocalAnswer::Done)
}

fn archive(plan: &[u8], state: &Mutex<State>) -> Result<LocalAnswer> {
    let agent = agent_of(state)?;
    let Some(drains) = agent.drains() else {
        let context = "this agent was built without archives";
        return Err(Error::new(ErrorKind::Unsupported, context));
    };
    // That of a former start of the session.
    let former = lock(state).archive.take();
    if let Some(former) = former {
        former.end();
    }
    let thread = drains.coordinate(plan)?;
    lock(state).archive = Some(thread);
    Ok(LocalAnswer::Done)
}

fn agent_of(state: &Mutex<State>) -> Result<Arc<Agent>> {
    let none = || Error::new(ErrorKind::InvalidArgument, "the job was not started yet");
    lock(state).agent.clone().ok_or_else(none)
}

/// 1 partner, 2 XOR, 3 Reed-Solomon.
fn scheme_of(scheme: u8, parity: u8) -> Result<Scheme> {
    match scheme {
        1 => Ok(Scheme::Partner),
        2 => Ok(Scheme::Xor),
        3 => Ok(Scheme::ReedSolomon {
            parities: usize::from(parity),
        }),
        other => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("no scheme {other}"),
        )),
    }
}

/// The number of a scheme, and its parities.
pub fn scheme_numbers(scheme: Scheme) -> (u8, u8) {
    let parities = u8::try_from(scheme.parities()).unwrap_or(u8::MAX);
    match scheme {
        Scheme::None => (0, 0),
        Scheme::Partner => (1, parities),
        Scheme::Xor => (2, parities),
        Scheme::ReedSolomon { .. } => (3, parities),
    }
}

fn begin(
    request: &LocalRequest,
    state: &Mutex<State>,
    around: &Surroundings<'_>,
) -> Result<LocalAnswer> {
    let LocalRequest::Begin {
        secret,
        job,
        node,
        listen,
        threads,
        rate_bytes,
        nice,
        cpu_set,
        timeout_ms,
        transport,
        fabric_provider,
    } = request
    else {
        return Err(Error::new(ErrorKind::Internal, "not a beginning"));
    };
    let mut options = TcpOptions::new(node, job, Secret::from_bytes(*secret));
    if !listen.is_empty() {
        let address = listen.parse().map_err(|error| {
            let context = format!("listen_address is {listen:?}");
            Error::caused(ErrorKind::Configuration, context, error)
        })?;
        options.listen = Some(address);
    }
    let known = Transport::of(transport).ok_or_else(|| {
        let context = format!("transport is {transport:?}");
        Error::new(ErrorKind::Configuration, context)
    });
    options.transports = Transports {
        transport: known?,
        provider: (!fabric_provider.is_empty()).then(|| fabric_provider.clone()),
    };
    let settings = AgentSettings {
        within: Duration::from_millis(*timeout_ms),
        threads: index(*threads),
        rate_bytes: (*rate_bytes > 0).then_some(*rate_bytes),
        cpu_set: (!cpu_set.is_empty()).then(|| cpu_set.clone()),
        nice: i32::try_from(*nice).unwrap_or(19),
    };
    let endpoint = settings.in_background(|| (around.open_endpoint)(options))?;
    let address = endpoint.address();
    let directory = std::env::current_dir().unwrap_or_default();
    let drains = (around.drains)(&endpoint, node);
    let agent = Agent::start(endpoint, settings, node, &directory, drains);
    let mut state = lock(state);
    state.timeout = Duration::from_millis(*timeout_ms);
    state.goodbye = false;
    state.agent = Some(agent);
    Ok(LocalAnswer::Ready { address })
}

fn attach(state: &Mutex<State>, directory: &Path, store_directory: &Path) -> Result<LocalAnswer> {
    let agent = agent_of(state)?;
    let timeout = lock(state).timeout;
    agent.set_directory(store_directory);
    let path = store_directory.join(STORE_FILE);
    let looked = |error| Error::io(format!("looking for {}", path.display()), error);
    let is_there = path.try_exists().map_err(looked)?;
    if !is_there && !lock(state).held.is_empty() {
        return put_back(state, &path);
    }
    if !is_there {
        // Before the first checkpoint there is nothing to hold.
        return Ok(LocalAnswer::Done);
    }
    let control = directory.join(CONTROL_FILE);
    let words = SharedWords::map(&control, None)
        .map_err(|error| Error::io(format!("opening {}", control.display()), error))?;
    let control = Control::join(words)?;
    if control.created() != 1 {
        // Its ranks have not opened it yet: until they claimed what is theirs, it is only read.
        return Ok(LocalAnswer::Done);
    }
    let device = FileDevice::open(&path, false)
        .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
    let settings = ReserveSettings {
        reserve_bytes_max: None,
        wait: timeout,
        space_later: false,
    };
    let device = Arc::new(device);
    lock(state).held.push(Arc::clone(&device));
    let reserve = Reserve::attach(device, control, settings)?;
    agent.attach(&reserve, store_directory)?;
    Ok(LocalAnswer::Done)
}

/// The store that is held was deleted: its ranks wait, and this process, which may be writing parity into
/// it, copies it to its path again.
fn put_back(state: &Mutex<State>, path: &Path) -> Result<LocalAnswer> {
    let held = lock(state).held.clone();
    let failed = |error| {
        Error::io(
            format!("copying the open store to {}", path.display()),
            error,
        )
    };
    for (number, device) in held.iter().enumerate() {
        let done = if number == 0 {
            device.put_back(path)
        } else {
            device.follow()
        };
        done.map_err(failed)?;
    }
    Ok(LocalAnswer::Done)
}
