// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a routing agent that is one of several, one a host.
//! In from: `backstay run`, which starts them and tells each who the others are. Out to: one session of all agents.
//! Invariants: all begin with the same patterns, or none does; a file of the checkpoint is on one host; the program finds
//! its agent under the same path on all hosts.

use super::circle::{Circle, Communicating};
use super::nodes::{Nodes, ON_THE_WAY, handle};
use super::rounds::{Decider, Decision};
use super::rules::Routes;
use super::serve::{self, Shared};
use super::state::State;
use super::talk::decode;
use super::{Agent, End, TICK, make_folder, place_of, say_restored, say_taken_in, write};
use backstay::{Config, Session};
use backstay_base::comm::Communicator;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::parts::PART_SUFFIX;
use backstay_base::notice;
use backstay_format::Digest;
use backstay_net::{Endpoint, Handler, Peer, Secret, TcpEndpoint, TcpOptions};
use backstay_route::notes::NOTES;
use backstay_route::{FAR, HINTS_FILE, KEPT, LIVE, NEAR, PART_FILE, PARTS, TABLE_FILE};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Between two rounds in which nothing happened.
const IDLE: Duration = Duration::from_millis(200);
/// For ROMIO: each rank writes its own bytes, and reads none before.
const HINTS: &str = "romio_ds_write disable\nromio_cb_write disable\n";
/// Where each host has memory, and the program finds its agent.
const MEMORY: &str = "/dev/shm";

/// Tells the address of this agent, and returns all, in the order of ranks.
type Meet = Box<dyn FnOnce(&str) -> Result<Vec<Peer>>>;

/// Which agent of several it is.
pub struct Together {
    /// From 0.
    pub rank: u32,
    /// What others call it: its host.
    pub host: String,
    /// Who knows it is of this start.
    pub secret: Secret,
    /// Makes it known, and makes it know the others.
    pub meet: Meet,
}

impl std::fmt::Debug for Together {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Together")
            .field("rank", &self.rank)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// Answers other agents: first of collective calls alone, then of files, too.
#[derive(Default)]
struct Answers {
    circle: OnceLock<Arc<Circle>>,
    nodes: OnceLock<Arc<Nodes>>,
}

impl Handler for Answers {
    fn handle(&self, request: &[u8], within: Duration) -> Result<Vec<u8>> {
        match (self.nodes.get(), self.circle.get()) {
            (Some(nodes), _) => handle(nodes, request, within),
            (None, Some(circle)) => super::nodes::handle_alone(circle, request, within),
            (None, None) => {
                let context = "this agent knows no other yet";
                Err(Error::new(ErrorKind::Timeout, context))
            }
        }
    }
}

/// Serves a start, with the agents of other hosts.
pub(super) fn run(
    together: Together,
    (config, routes, quiet): (Config, Routes, Duration),
    end: &End,
    ready: impl FnOnce(&Path),
) -> Result<()> {
    let within = Duration::from_millis(config.timeout_ms);
    let answers = Arc::new(Answers::default());
    let endpoint = open_endpoint(&together, &config, &answers)?;
    let peers = (together.meet)(&endpoint.address())?;
    let circle = Circle::new(together.rank, peers, Arc::clone(&endpoint), within);
    // Set once, here.
    drop(answers.circle.set(Arc::clone(&circle)));
    check_alike(&circle, &routes)?;
    let session = Session::open(Box::new(Communicating(Arc::clone(&circle))), config)?;
    let folder = make_folder(&session.directory(), &[LIVE, KEPT, FAR, NEAR, ON_THE_WAY])?;
    write(&folder.join(TABLE_FILE), &routes.table.encode())?;
    let is_shared = routes.rules.iter().any(|rule| rule.shared);
    if is_shared {
        make_folder(&session.directory(), &[PARTS, NOTES])?;
        let behind = format!("{PART_SUFFIX}{}", together.rank);
        write(&folder.join(PART_FILE), behind.as_bytes())?;
        write(&folder.join(HINTS_FILE), HINTS.as_bytes())?;
        if together.rank == 0 {
            notice::info(
                "routing: several hosts write one file (shared): for it MPI-IO writes without data sieving and collective buffers",
            );
        }
    }
    let link = link(&folder, &routes)?;
    let mut state = State::new(folder.clone(), routes.clone(), quiet);
    state.spread = true;
    state.rank = together.rank;
    let shared = Shared::new(state);
    let nodes = Nodes::new(
        Arc::clone(&circle),
        Arc::clone(&shared),
        folder.clone(),
        within,
    );
    shared.join(&nodes);
    drop(answers.nodes.set(Arc::clone(&nodes)));
    if is_shared {
        let kept = nodes.keep_time();
        kept.map_err(|error| Error::io("starting a thread", error))?;
    }
    Communicating(Arc::clone(&circle)).barrier()?;
    let mut member = Member {
        agent: Agent::new(session, shared),
        nodes,
        circle,
    };
    member.restore()?;
    serve::begin(&folder, &member.agent.shared)?;
    member.circle_barrier()?;
    ready(&link);
    let served = member.serve(routes, end);
    // It leads nowhere from now on.
    drop(fs::remove_file(&link));
    served?;
    member.agent.export_last();
    let closed = member.agent.session.close();
    member.circle.leave();
    endpoint.shut_down();
    closed
}

fn open_endpoint(
    together: &Together,
    config: &Config,
    answers: &Arc<Answers>,
) -> Result<Arc<dyn Endpoint>> {
    let job = config.job.clone().unwrap_or_default();
    let job = format!("{job} routing");
    let mut options = TcpOptions::new(together.host.clone(), job, together.secret.clone());
    if let Some(listen) = &config.listen_address {
        let address = listen.parse().map_err(|error| {
            let context = format!("listen_address is {listen:?}, not like 10.0.0.1:0");
            Error::caused(ErrorKind::Configuration, context, error)
        })?;
        options.listen = Some(address);
    }
    let endpoint = TcpEndpoint::open(options)?;
    let handler: Arc<dyn Handler> = Arc::<Answers>::clone(answers);
    endpoint.serve(handler);
    Ok(Arc::new(endpoint))
}

/// That all agents are of one version, and the patterns lead to the same names on all hosts.
fn check_alike(circle: &Arc<Circle>, routes: &Routes) -> Result<()> {
    if let Some((other, first)) = differing(circle, env!("CARGO_PKG_VERSION").as_bytes())? {
        let context =
            format!("{other} has another version of backstay than {first}: --agent-program");
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    }
    let Some((other, first)) = differing(circle, &routes.table.encode())? else {
        return Ok(());
    };
    let context = format!(
        "the folders of --route lead elsewhere on {other} than on {first}: give them by names that are the same on \
         all hosts, without links"
    );
    Err(Error::new(ErrorKind::InvalidArgument, context))
}

/// A host that brings something else than the first.
fn differing(circle: &Arc<Circle>, mine: &[u8]) -> Result<Option<(String, String)>> {
    let Digest(own) = Digest::of(mine);
    let size = usize::try_from(circle.size()).unwrap_or(usize::MAX);
    let mut all = vec![0; own.len() * size];
    Communicating(Arc::clone(circle)).allgather(&own, &mut all)?;
    let mut others = all.chunks(own.len());
    let other = others.position(|other| other != &all[..own.len()]);
    let other = other.and_then(|rank| u32::try_from(rank).ok());
    Ok(other.map(|rank| (circle.host(rank), circle.host(0))))
}

/// A name for the agent's folder that is the same on all hosts.
fn link(folder: &Path, routes: &Routes) -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let digest = Digest::of(&routes.table.encode());
    let link = Path::new(MEMORY).join(format!("backstay-route-{user}-{digest}"));
    let beside = link.with_extension(std::process::id().to_string());
    let failed = |error| Error::io(format!("making {}", link.display()), error);
    // What a killed agent of the same number left.
    drop(fs::remove_file(&beside));
    std::os::unix::fs::symlink(folder, &beside).map_err(failed)?;
    fs::rename(&beside, &link).map_err(failed)?;
    Ok(link)
}

/// One of several agents, once all know each other.
struct Member {
    agent: Agent,
    nodes: Arc<Nodes>,
    circle: Arc<Circle>,
}

impl Member {
    fn circle_barrier(&self) -> Result<()> {
        Communicating(Arc::clone(&self.circle)).barrier()
    }

    /// An error of one is one of all.
    fn agree<T>(&self, mine: Result<T>) -> Result<T> {
        let mut failed = [i64::from(mine.is_err())];
        Communicating(Arc::clone(&self.circle)).allreduce_max(&mut failed)?;
        if failed[0] > 0 && mine.is_ok() {
            let context = "the routing agent of another host failed: see what it said";
            return Err(Error::new(ErrorKind::PeerFailed, context));
        }
        mine
    }

    fn restore(&mut self) -> Result<()> {
        let restored = match self.agent.session.restore() {
            Ok(restored) => restored,
            Err(error) if error.kind() == ErrorKind::NoCheckpoint => return self.take_in(),
            Err(error) => return Err(error),
        };
        let count = self.restore_parts(restored.ranks_then, restored.checkpoint);
        let count = self.agree(count)?;
        self.nodes.publish_all()?;
        say_restored(count, restored.checkpoint);
        self.circle_barrier()
    }

    /// The files of the agents of then, each on one host: of as many agents each its own.
    fn restore_parts(
        &mut self,
        then: u32,
        checkpoint: backstay_format::CheckpointId,
    ) -> Result<usize> {
        let (rank, size) = (self.circle.rank(), self.circle.size());
        let mut count = 0;
        for rank in (0..then).filter(|other| other % size == rank) {
            let files = self.agent.session.stored_files(rank)?;
            for file in files.iter().filter(|file| file.routed) {
                let state = self.agent.shared.lock();
                let (name, live) = place_of(&state, &file.name, checkpoint)?;
                drop(state);
                self.agent.session.restore_file(&file.name, rank, &live)?;
                let restored = self.agent.shared.lock().restored(&name);
                let failed = |error| Error::io(format!("keeping {}", live.display()), error);
                restored.map_err(failed)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// What stands under routed names is taken in, each file by one host: by that which its name tells, if that sees it.
    fn take_in(&mut self) -> Result<()> {
        let failed = |error| Error::io("taking files in", error);
        let standing = self.agent.shared.lock().standing().map_err(failed);
        let standing = self.agree(standing)?;
        let (rank, size) = (self.circle.rank(), self.circle.size());
        let is_own = |path: &PathBuf| {
            let Digest(digest) = Digest::of(path.as_os_str().as_bytes());
            u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]) % size == rank
        };
        let mut taken = 0;
        for first in [true, false] {
            let mut mine = Ok(());
            for path in standing.iter().filter(|path| is_own(path) == first) {
                if mine.is_err() || !first && self.nodes.knows(path.as_os_str().as_bytes())? {
                    continue;
                }
                mine = self
                    .agent
                    .shared
                    .lock()
                    .take_in_standing(path)
                    .map_err(failed);
                taken += 1;
            }
            self.agree(mine)?;
            self.nodes.tell_all();
            self.circle_barrier()?;
        }
        say_taken_in(taken);
        Ok(())
    }

    /// Rounds until all are over.
    fn serve(&mut self, routes: Routes, end: &End) -> Result<()> {
        let mut decider = Decider::new(routes);
        let mut before = None;
        loop {
            let over = end.is_over.load(Ordering::Acquire);
            let ended = over.then(|| end.is_well.load(Ordering::Acquire));
            if over {
                self.circle.hurry();
            }
            self.nodes.tell_all();
            let mut state = self.agent.shared.lock();
            let wait = state
                .settle()
                .unwrap_or(IDLE)
                .clamp(Duration::from_millis(1), TICK);
            let mut report = state.report(ended);
            let is_busy = report.shorten(&mut before) || state.unsettled().is_some();
            drop(state);
            let report = super::talk::encode(&report)?;
            let nodes = Arc::clone(&self.nodes);
            let decide = |parts: Vec<Vec<u8>>| {
                let (reports, whole) = decider.hear(&parts, &nodes.catalog())?;
                for whole in whole {
                    // What cannot be read now is looked at in the next round.
                    if let Ok(is_sound) = nodes.is_sound(&whole) {
                        decider.judge(whole, is_sound);
                    }
                }
                decider.decide(reports, &mut nodes.catalog())
            };
            let (decision, _) = decode::<Decision>(&self.circle.decide(report, decide)?)?;
            if decision.goes {
                let chosen = self
                    .agent
                    .shared
                    .lock()
                    .decided(&decision, self.circle.rank());
                let is_there = self.agent.take(chosen);
                decider.note(is_there);
            } else if decision.ends {
                return Ok(());
            } else {
                let state = self.agent.shared.lock();
                self.agent
                    .shared
                    .wait(state, if is_busy { wait } else { IDLE });
            }
        }
    }
}
