// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: level 2 as a session uses it: agents and who coordinates them, lost stores before a
//! restart, parts that are on other nodes, and how far a checkpoint is protected.
//! In from: `session`. Out to: `agent`, the communicator, the words that a node's ranks share.
//! Invariants: whether this life is protected is the same on all ranks; without any agent the
//! session works as without level 2, and says so.

use super::helper::{Known, NodeAgent, say_goodbye};
use super::node::Node;
use super::share::{share_bytes, share_parts, share_secret};
use super::vote::{vote, vote_with};
use super::watch::Watched;
use super::{Level, Session, lock};
use crate::config::{Config, Redundancy};
use backstay_base::clock::{Stopwatch, patiently};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::file::FileDevice;
use backstay_base::notice;
use backstay_format::limits::{ENDPOINT_BYTES_MAX, LABEL_BYTES_MAX};
use backstay_format::width::index;
use backstay_format::{CheckpointId, Decoder, Encoder, FormatError, StoreId};
use backstay_net::{Endpoint, RemoteDevice, Secret, TcpEndpoint, TcpOptions, file_exposure};
use backstay_parity::agent::coordinate::{GroupPlan, NodeSeat};
use backstay_parity::agent::{AgentSettings, restart};
use backstay_parity::group::Scheme;
use backstay_parity::locate::{Choice, Here, Located};
use backstay_store::control::wait_until;
use backstay_store::place::STORE_FILE;
use backstay_store::reader::StoreReader;
use backstay_store::reserve::Reserve;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Choices that all ranks are told of.
const CHOICES_MAX: usize = 4;
const SEAT: &str = "seat";
const LOCATED: &str = "what there is";
/// Most bytes of a node's name, failure domain and address together.
const SEAT_BYTES: usize = 560;

/// Most of what all ranks are told of why nothing is known.
const WHY_CHARS_MAX: usize = 600;

/// Why nothing is protected though it was asked for.
const ON_ONE_NODE: &str = "all ranks are on one node: nothing protects its checkpoints";

/// Where to read of a round that failed.
const SAYS_WHY: &str = "the log of its first member, which coordinates it, says why";

/// What is durable at which level, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProtectionStatus {
    /// Lost nodes of a group that were asked to be survived.
    pub asked: usize,
    /// Lost nodes that every group survives.
    pub covered: usize,
    /// The newest checkpoint of the job that is durable on its nodes.
    pub node: Option<CheckpointId>,
    /// The newest one that survives the loss of `covered` nodes of each group; in a job of several groups as of the
    /// last vote of all ranks.
    pub protected: Option<CheckpointId>,
    /// The one that is being encoded.
    pub encoding: Option<CheckpointId>,
    /// Why protection is less than was asked for, if it is.
    pub shortfall: Option<String>,
}

/// What a session has of level 2.
#[derive(Debug, Default)]
pub(super) struct Protection {
    /// The leader's.
    agent: Option<NodeAgent>,
    /// How this rank reaches others: the agent's endpoint, or one of its own when it needs one.
    endpoint: Mutex<Option<Arc<dyn Endpoint>>>,
    /// The job secret, and the address to listen at.
    endpoint_settings: Option<EndpointSettings>,
    nodes: Vec<NodeSeat>,
    /// What all nodes have, as rank 0 found it.
    located: Located,
    /// Why nothing is known of what other nodes have; empty where it is.
    unlocated: String,
    scheme: Option<Scheme>,
    /// Losses that were asked to be covered, those that are, and why these are fewer.
    asked: usize,
    covered: usize,
    shortfall: Option<String>,
    /// Stores on other nodes, and made again ones on this, as they are asked for.
    readers: Mutex<BTreeMap<StoreId, Arc<StoreReader>>>,
    repaired: bool,
    log_dropped: bool,
    /// What was being encoded, and protected, when this rank waited in vain: nobody may be at work.
    in_vain: Option<(CheckpointId, CheckpointId)>,
}

impl Protection {
    /// Starts the node's agent and finds out what all nodes have; lost stores are made again. Before
    /// any store is opened. Collective.
    pub(super) fn prepare(
        comm: &Watched,
        config: &Config,
        node: &Node,
        archive: Option<&Path>,
        endpoint: Option<Arc<dyn Endpoint>>,
    ) -> Result<Self> {
        let mut protection = Self::default();
        protection.scheme = scheme(config);
        protection.asked = protection.scheme.map_or(0, Scheme::parities);
        if protection.scheme.is_some() && node.nodes < 2 {
            if node.leads() {
                notice::warn(&format!("redundancy is configured, but {ON_ONE_NODE}"));
            }
            protection.shortfall = Some(ON_ONE_NODE.to_owned());
            protection.scheme = None;
        }
        if archive.is_none() && protection.scheme.is_none() && !parts_are_elsewhere(comm, node)? {
            return Ok(protection);
        }
        let endpoint_settings = EndpointSettings {
            secret: share_secret(comm)?,
            job: node.job.clone(),
            name: node.name.clone(),
            listen: listen_address(config, node, archive),
            settings: config.agent_settings(),
        };
        let opened = match (node.leads(), endpoint) {
            (true, None) => endpoint_settings.open().map(Some),
            (_, given) => Ok(given),
        };
        let opened = opened.map(|endpoint| match (node.leads(), endpoint) {
            (true, Some(endpoint)) => {
                let agent = NodeAgent::begin(config, node, &endpoint_settings.known(), &endpoint);
                (Some(endpoint), Some(agent))
            }
            (_, endpoint) => (endpoint, None),
        });
        let (endpoint, agent) = vote(comm, "starting the agents", 0, opened)?;
        protection.agent = agent;
        protection.endpoint = Mutex::new(endpoint);
        protection.endpoint_settings = Some(endpoint_settings);
        protection.share_seats(comm, config, node)?;
        protection.locate(comm, config)?;
        Ok(protection)
    }

    /// Whether parity protects this life's checkpoints.
    pub(super) fn is_on(&self) -> bool {
        self.scheme.is_some()
    }

    /// Without redundancy the stripe log of an earlier life is of no use once there is a new checkpoint.
    pub(super) fn drop_log(&mut self, node: &Node) {
        if !self.is_on() && node.leads() && !std::mem::replace(&mut self.log_dropped, true) {
            backstay_parity::agent::survey::remove_log(&node.store_directory());
        }
    }

    pub(super) fn scheme(&self) -> Option<Scheme> {
        self.scheme
    }

    pub(super) fn agent(&self) -> Option<&NodeAgent> {
        self.agent.as_ref()
    }

    /// What the groups of this life cover, and why that is less than was asked for.
    pub(super) fn covers(&mut self, covered: usize, shortfall: &str) {
        self.covered = covered;
        self.shortfall = (!shortfall.is_empty()).then(|| shortfall.to_owned());
    }

    fn share_seats(&mut self, comm: &Watched, config: &Config, node: &Node) -> Result<()> {
        let mine = self.agent.as_ref().map(|agent| {
            let domain = domain_of(config, &node.name);
            let seat = encode_seat(&NodeSeat {
                name: node.name.clone(),
                domain: domain.unwrap_or_else(|| node.name.clone()),
                address: agent.address(),
            });
            let seat = seat.map_err(|error| {
                Error::unwritable(format!("the address of node {}", node.name), error)
            });
            seat.map(|seat| (index(node.place), seat))
        });
        let mine = vote(comm, "telling its address", 0, mine.transpose())?;
        let parts = share_parts(
            comm,
            "sharing addresses",
            index(node.nodes),
            SEAT_BYTES,
            mine,
        )?;
        let seats = parts.iter().map(|bytes| decode_seat(bytes));
        let seats: std::result::Result<Vec<_>, _> = seats.collect();
        self.nodes =
            seats.map_err(|error| Error::malformed("addresses of nodes".to_owned(), error))?;
        Ok(())
    }

    /// Rank 0 looks what there is and has lost stores made again; all ranks learn of it.
    fn locate(&mut self, comm: &Watched, config: &Config) -> Result<()> {
        let mut found = None;
        if let (0, Some(agent)) = (comm.rank(), &self.agent) {
            let within = Duration::from_millis(config.timeout_ms);
            let named = config.restore_checkpoint;
            let look = || restart::prepare(&*agent.asker(), &self.nodes, named, within);
            match patiently(within, Error::may_pass, look) {
                Ok(located) => {
                    for text in located.beyond.iter().chain(&located.unread) {
                        notice::warn(text);
                    }
                    found = Some(located);
                }
                Err(error) => {
                    self.unlocated =
                        format!("what other nodes have could not be found out: {error}");
                    notice::warn(&format!(
                        "{}; only what each has itself is used",
                        self.unlocated
                    ));
                }
            }
        }
        let found = found.unwrap_or_default();
        let mine = (comm.rank() == 0).then(|| {
            let said = encode_located(&found, &self.unlocated);
            said.map_err(|error| Error::unwritable("what there is to restore", error))
        });
        let mine = vote(comm, "saying what there is", 0, mine.transpose())?;
        let bytes = share_bytes(comm, "sharing what there is", mine)?;
        (self.located, self.unlocated) = decode_located(&bytes)
            .map_err(|error| Error::malformed("what there is to restore".to_owned(), error))?;
        // Rank 0's alone: for the level that a restore took the highest of all ranks counts.
        self.located.made = found.made;
        Ok(())
    }

    /// Why nothing is known of what other nodes have, where that is so.
    pub(super) fn unlocated(&self) -> Option<&str> {
        Some(&*self.unlocated).filter(|why| !why.is_empty())
    }

    /// What of some store could not be read, and the newest checkpoint that any names; `None` where no store
    /// that could be read names one.
    pub(super) fn unread(&self) -> Option<(Option<CheckpointId>, &str)> {
        let newest = self.newest_known().filter(|_| self.located.is_known);
        self.located.unread.as_deref().map(|why| (newest, why))
    }
    /// The newest checkpoint that any store or log of the nodes names.
    pub(super) fn newest_known(&self) -> Option<CheckpointId> {
        self.located.newest
    }
    /// A life began: what a root slot holds that cannot be read may be of it.
    pub(super) fn give_up_no_more(&self) {
        for reader in lock(&self.readers).values() {
            reader.give_up_unread(false);
        }
    }

    /// Checkpoints that all ranks of then have a source for, and how many ranks that were.
    pub(super) fn choice(&self, id: CheckpointId) -> Option<&Choice> {
        let mut choices = self.located.choices.iter();
        choices.find(|choice| choice.checkpoint == id)
    }
    pub(super) fn choices(&self) -> impl Iterator<Item = &Choice> {
        self.located.choices.iter()
    }

    /// What a checkpoint that is on the nodes takes: redundancy, if a node was lost.
    pub(super) fn level_of(&self, id: CheckpointId) -> Level {
        let sources = self.choice(id).into_iter().flat_map(|c| &c.sources);
        let mut here = sources
            .flatten()
            .filter_map(|&at| self.located.here.get(at));
        if self.located.made > 0 || here.any(|here| here.rebuilt) {
            Level::Protected
        } else {
            Level::Node
        }
    }

    /// The store that has `rank`'s part of a checkpoint, wherever it is.
    pub(super) fn reader_for(
        &self,
        id: CheckpointId,
        rank: u32,
        (config, gives_up): (&Config, bool),
    ) -> Result<Arc<StoreReader>> {
        let source = self
            .choice(id)
            .and_then(|choice| choice.sources.get(index(rank)).copied().flatten())
            .and_then(|at| self.located.here.get(at));
        let Some(here) = source else {
            let context = format!("rank {rank}'s part of checkpoint {id} is on no node");
            return Err(Error::new(ErrorKind::NotRetained, context));
        };
        let mut readers = lock(&self.readers);
        if let Some(reader) = readers.get(&here.store) {
            return Ok(Arc::clone(reader));
        }
        let reader = Arc::new(self.open(here, config, gives_up)?);
        readers.insert(here.store, Arc::clone(&reader));
        Ok(reader)
    }

    fn open(&self, here: &Here, config: &Config, gives_up: bool) -> Result<StoreReader> {
        let local = self.agent.as_ref().and_then(|agent| {
            let mut stores = agent.stores().into_iter();
            stores.find(|found| found.store == here.store)
        });
        let local = local.map(|found| found.directory);
        let device: Arc<dyn backstay_base::io::Device> = if let Some(directory) = local {
            let path = directory.join(STORE_FILE);
            let file = FileDevice::open_read_only(&path)
                .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
            Arc::new(file)
        } else {
            Arc::new(RemoteDevice::new(
                self.endpoint()?,
                self.nodes[here.node].peer(),
                file_exposure(here.store),
                here.length_bytes,
                Duration::from_millis(config.timeout_ms),
            ))
        };
        let reader = StoreReader::open(device)?;
        reader.give_up_unread(gives_up);
        reader.read_records(|_, _, _| {})?;
        Ok(reader)
    }

    fn endpoint(&self) -> Result<Arc<dyn Endpoint>> {
        let mut endpoint = lock(&self.endpoint);
        if let Some(endpoint) = &*endpoint {
            return Ok(Arc::clone(endpoint));
        }
        let Some(endpoint_settings) = &self.endpoint_settings else {
            let context = "this rank has no way to other nodes";
            return Err(Error::new(ErrorKind::PeerUnreachable, context));
        };
        Ok(Arc::clone(endpoint.insert(endpoint_settings.open()?)))
    }

    /// The secret of this life, where nodes talk to each other.
    #[cfg(feature = "archive")]
    pub(super) fn secret(&self) -> Option<&Secret> {
        self.endpoint_settings
            .as_ref()
            .map(|endpoint_settings| &endpoint_settings.secret)
    }

    /// The nodes of the job.
    pub(super) fn nodes(&self) -> &[NodeSeat] {
        &self.nodes
    }

    /// This node's agent, which its leader has.
    #[cfg(feature = "archive")]
    pub(super) fn agent_mut(&mut self) -> Option<&mut NodeAgent> {
        self.agent.as_mut()
    }

    /// Takes the node's store, now that its ranks have claimed what is theirs.
    pub(super) fn attach(&self, reserve: &Reserve, node: &Node) -> Result<()> {
        match &self.agent {
            Some(agent) => agent.attach(reserve, node),
            None => Ok(()),
        }
    }

    /// The node of the group's first member coordinates its rounds from now on.
    pub(super) fn coordinate(&mut self, plan: GroupPlan, here: usize) -> Result<()> {
        match (&mut self.agent, plan.members.first()) {
            (Some(agent), Some(&first)) if first == here => agent.coordinate(plan),
            _ => Ok(()),
        }
    }

    /// Damage was found: every node reads what its stripes say it holds, once in a restart. Whether that was
    /// done, and reading again may go well; an error where what the others have of it could not be read.
    pub(super) fn repair(&mut self, comm: &Watched, config: &Config) -> Result<bool> {
        if !self.is_on() {
            return Ok(false);
        }
        if let Some(why) = self.unlocated() {
            return Err(Error::new(ErrorKind::PeerUnreachable, why));
        }
        if std::mem::replace(&mut self.repaired, true) {
            return Ok(false);
        }
        let mut made = [0];
        let mut mine = Ok(());
        if let (0, Some(agent)) = (comm.rank(), &self.agent) {
            let within = Duration::from_millis(config.timeout_ms);
            match restart::repair_all(&*agent.asker(), &self.nodes, &self.located, within) {
                // Not whether this request made anything again: it may have been one before it.
                Ok(()) => made[0] = 1,
                Err(error) => {
                    notice::warn(&format!("damage cannot be repaired: {error}"));
                    if error.kind().leaves_open() {
                        mine = Err(error.within("what the group has of what is damaged"));
                    }
                }
            }
        }
        let repaired = vote_with(comm, "repairing what is damaged", 0, mine, &mut made);
        // They keep chunks of what was damaged.
        lock(&self.readers).clear();
        if repaired.is_err() {
            self.repaired = false;
        }
        repaired.map(|()| made[0] > 0)
    }

    /// Removes what was made again for reading, which no retained checkpoint needs any more.
    pub(super) fn drop_rebuilt(&mut self, oldest: Option<CheckpointId>) {
        let needed = self
            .located
            .choices
            .iter()
            .any(|choice| oldest.is_none_or(|oldest| choice.checkpoint >= oldest));
        if needed || self.located.choices.is_empty() {
            return;
        }
        self.located.choices.clear();
        lock(&self.readers).clear();
        if let Some(agent) = &self.agent {
            agent.drop_rebuilt();
        }
    }

    /// Ends the coordination; what is committed is protected first, if that takes no longer than
    /// `limit`.
    pub(super) fn stop(&mut self, limit: Duration) {
        if let Some(agent) = &mut self.agent {
            agent.stop(limit);
        }
    }

    /// The node's agent process copies the store that it holds to where it was deleted; false where a rank
    /// has to.
    pub(super) fn put_back(&self, node: &Node, home: &Path) -> bool {
        let agent = self.agent.as_ref();
        agent.is_some_and(|agent| agent.put_back(node, home))
    }

    /// The job is over, also for an agent process that this life had no use for.
    pub(super) fn goodbye(&self, node: &Node) {
        node.agent.borrow_mut().iter().for_each(say_goodbye);
        self.agent.iter().for_each(NodeAgent::goodbye);
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.leave();
        }
        if let Some(endpoint) = &*lock(&self.endpoint) {
            endpoint.shut_down();
        }
    }
}

fn scheme(config: &Config) -> Option<Scheme> {
    match config.redundancy {
        Redundancy::None => None,
        Redundancy::Partner => Some(Scheme::Partner),
        Redundancy::Xor => Some(Scheme::Xor),
        Redundancy::Rs => Some(Scheme::ReedSolomon {
            parities: index(config.parity),
        }),
    }
}

/// What fails together with this node, as configured.
fn domain_of(config: &Config, node: &str) -> Option<String> {
    if config.failure_domain.is_some() {
        return config.failure_domain.clone();
    }
    let path = config.failure_domains.as_ref()?;
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            notice::warn(&format!("failure domains in {}: {error}", path.display()));
            return None;
        }
    };
    let found = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(node)).then(|| words.next().map(str::to_owned))
    });
    if found.is_none() {
        notice::warn(&format!("{} does not name node {node}", path.display()));
    }
    found.flatten()
}

/// Whether some rank's part of what is stored is on another node than the rank, so that nodes have to
/// talk to each other for a restart. Collective.
fn parts_are_elsewhere(comm: &Watched, node: &Node) -> Result<bool> {
    let (mut stored, mut elsewhere) = (false, false);
    if node.leads() {
        let stores = backstay_parity::agent::survey::stores_in(&node.store_directory());
        let newest = stores
            .first()
            .and_then(|store| store.survey.revisions.last());
        stored = newest.is_some();
        elsewhere = newest.is_none_or(|newest| {
            let here = node.ranks.iter().all(|rank| newest.ranks.contains(rank));
            newest.world_size != comm.size() || !here
        });
    }
    let mut any = [i64::from(stored), i64::from(elsewhere)];
    comm.allreduce_max("looking for parts on other nodes", &mut any)?;
    Ok(any == [1, 1])
}

/// What is needed to make an endpoint.
#[derive(Debug)]
struct EndpointSettings {
    secret: Secret,
    job: String,
    name: String,
    listen: Option<String>,
    /// What serves others is of the background.
    settings: AgentSettings,
}

/// Where the endpoints of this node listen, if not where they tell others to come: a job on one node,
/// from which no staging server pulls, is nobody else's business.
fn listen_address(config: &Config, node: &Node, archive: Option<&Path>) -> Option<String> {
    let is_alone = node.nodes < 2 && archive.is_none();
    let alone = is_alone.then(|| format!("{}:0", Ipv4Addr::LOCALHOST));
    config.listen_address.clone().or(alone)
}

impl EndpointSettings {
    /// What an agent has to know to be part of it.
    fn known(&self) -> Known<'_> {
        Known {
            secret: &self.secret,
            listen: self.listen.as_deref(),
        }
    }

    fn open(&self) -> Result<Arc<dyn Endpoint>> {
        let mut options = TcpOptions::new(&self.name, &self.job, self.secret.clone());
        if let Some(listen) = &self.listen {
            let address = listen.parse().map_err(|error| {
                let context = format!("listen_address is {listen:?}, not like 10.0.0.1:0");
                Error::caused(ErrorKind::Configuration, context, error)
            })?;
            options.listen = Some(address);
        }
        let endpoint = self.settings.in_background(|| TcpEndpoint::open(options))?;
        Ok(Arc::new(endpoint))
    }
}

fn encode_seat(seat: &NodeSeat) -> std::result::Result<Vec<u8>, FormatError> {
    let mut body = Encoder::new(SEAT);
    body.text(&seat.name).text(&seat.domain).text(&seat.address);
    body.finish(seat, decode_seat)
}

fn decode_seat(bytes: &[u8]) -> std::result::Result<NodeSeat, FormatError> {
    let mut body = Decoder::new(SEAT, bytes);
    let seat = NodeSeat {
        name: body.text("node", LABEL_BYTES_MAX)?,
        domain: body.text("domain", LABEL_BYTES_MAX)?,
        address: body.text("address", ENDPOINT_BYTES_MAX)?,
    };
    body.end()?;
    Ok(seat)
}

/// What of `located` all ranks need, and why nothing is known.
fn encode_located(located: &Located, unlocated: &str) -> std::result::Result<Vec<u8>, FormatError> {
    let short = |text: &str| text.chars().take(WHY_CHARS_MAX).collect::<String>();
    let choice = |choice: &Choice| Choice {
        rebuilds: Vec::new(),
        ..choice.clone()
    };
    let choices = located.choices.iter().take(CHOICES_MAX);
    let told = Located {
        here: located.here.clone(),
        choices: choices.map(choice).collect(),
        unread: located
            .unread
            .as_deref()
            .filter(|why| !why.is_empty())
            .map(short),
        is_known: located.is_known,
        newest: located.newest.filter(|newest| newest.number > 0),
        ..Located::default()
    };
    let why = short(unlocated);
    let newest = told.newest.unwrap_or_default();
    let mut body = Encoder::new(LOCATED);
    body.text(&why)
        .text(told.unread.as_deref().unwrap_or_default())
        .u8(u8::from(told.is_known))
        .u64(newest.incarnation)
        .u64(newest.number)
        .count(told.here.len());
    for here in &told.here {
        body.count(here.node)
            .raw(&here.store.0)
            .u64(here.length_bytes)
            .u8(u8::from(here.rebuilt));
    }
    body.count(told.choices.len());
    for choice in &told.choices {
        body.u64(choice.checkpoint.incarnation)
            .u64(choice.checkpoint.number)
            .u32(choice.world_size);
        for source in &choice.sources {
            // None saturates: no store has this place.
            body.count(source.unwrap_or(usize::MAX));
        }
    }
    body.finish(&(told, why), decode_located)
}

fn decode_located(bytes: &[u8]) -> std::result::Result<(Located, String), FormatError> {
    let mut located = Located::default();
    let mut body = Decoder::new(LOCATED, bytes);
    let unlocated = body.text("why nothing is known", 4 * WHY_CHARS_MAX)?;
    let unread = body.text("what could not be read", 4 * WHY_CHARS_MAX)?;
    located.unread = (!unread.is_empty()).then_some(unread);
    located.is_known = body.u8("some store was read")? != 0;
    let newest = CheckpointId::new(body.u64("incarnation")?, body.u64("number")?);
    located.newest = (newest.number > 0).then_some(newest);
    for _ in 0..body.u32("stores")? {
        located.here.push(Here {
            node: index(body.u32("node")?),
            store: StoreId(body.array("store")?),
            length_bytes: body.u64("length")?,
            rebuilt: body.u8("rebuilt")? == 1,
        });
    }
    for _ in 0..body.u32("choices")? {
        let checkpoint = CheckpointId::new(body.u64("incarnation")?, body.u64("number")?);
        let world_size = body.u32("ranks")?;
        let sources = (0..world_size)
            .map(|_| {
                let source = body.u32("source")?;
                Ok((source != u32::MAX).then_some(index(source)))
            })
            .collect::<std::result::Result<_, _>>()?;
        located.choices.push(Choice {
            checkpoint,
            world_size,
            sources,
            rebuilds: Vec::new(),
        });
    }
    body.end()?;
    Ok((located, unlocated))
}

impl Session {
    /// Waits until checkpoint `id`, which is committed, is protected in this node's group. Local.
    pub(super) fn wait_protected(&self, id: CheckpointId) -> Result<()> {
        if !self.protection.is_on() {
            let context = "checkpoints of this job are on their nodes only: set redundancy, and run on \
                           two nodes or more";
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let control = &self.node.control;
        let (before, _) = control.round();
        let never = u64::try_from(ErrorKind::Unsupported.code()).ok();
        // A round that fails is tried again, but where groups cover nothing: they last as long as this life.
        let failed = || {
            let (round, kind) = control.round();
            (kind != 0 && (round != before || Some(kind) == never)).then_some(kind)
        };
        let limit = Duration::from_millis(self.config.timeout_ms);
        wait_until("the checkpoint to be protected", limit, || {
            id.is_covered_by(control.protected_in_group()) || failed().is_some()
        })?;
        match failed() {
            Some(kind) if !id.is_covered_by(control.protected_in_group()) => {
                let kind = i32::try_from(kind).ok().and_then(ErrorKind::from_code);
                let node = &self.node.name;
                let context = format!(
                    "checkpoint {id} is on its nodes only: the group of node {node} has not protected it; \
                     {SAYS_WHY}"
                );
                Err(Error::new(kind.unwrap_or(ErrorKind::PeerUnreachable), context).second_hand())
            }
            _ => Ok(()),
        }
    }

    /// Makes a rank wait that takes checkpoints faster than they are protected: while one is encoded, two
    /// more may be committed. Who waited in vain does not wait again before something moves: whoever
    /// encoded may be dead.
    pub(super) fn wait_for_protection(&mut self) {
        if !self.protection.is_on() {
            return;
        }
        let control = &self.node.control;
        let next = self.last_number + 1;
        let room = || {
            let encoding = control.encoding();
            encoding <= control.protected_in_group() || next <= encoding.number + 2
        };
        let far = (control.encoding(), control.protected_in_group());
        if room() || self.protection.in_vain == Some(far) {
            return;
        }
        let watch = Stopwatch::start();
        let limit = Duration::from_millis(self.config.timeout_ms);
        let waited = wait_until("an earlier checkpoint to be protected", limit, room);
        self.protection.in_vain = waited
            .is_err()
            .then(|| (control.encoding(), control.protected_in_group()));
        if waited.is_err() && self.node.leads() {
            notice::warn(&format!(
                "checkpoint {} is still not protected after {} ms; going on without, and without waiting \
                 for it again",
                control.encoding(),
                limit.as_millis()
            ));
        }
        if let Some(file) = &mut self.metrics {
            file.metrics.protection_waits += 1;
            file.metrics.protection_wait_seconds += watch.seconds();
        }
    }

    /// The newest checkpoint that survives the loss of nodes; in a job of several groups as of the last vote: of a
    /// checkpoint, of `wait`, or of `due`.
    pub fn protected_checkpoint(&self) -> Option<CheckpointId> {
        let id = self.node.control.protected();
        (self.protection.is_on() && id.number > 0).then_some(id)
    }

    /// What is durable at which level now, and whether that is less than was asked for. Local.
    pub fn protection(&self) -> ProtectionStatus {
        let (control, own) = (&self.node.control, &self.protection);
        let node = self.policy.complete.last().copied();
        let encoding = control.encoding();
        let failed = node.and_then(|id| control.glance().failed(id));
        let failed = failed.filter(|_| own.is_on()).map(|code| {
            let kind = i32::try_from(code).ok().and_then(ErrorKind::from_code);
            let kind = kind.map_or("unknown", ErrorKind::meaning);
            format!("the last round of protection failed ({kind}); {SAYS_WHY}")
        });
        let in_group = control.protected_in_group();
        let far = (encoding, in_group);
        let in_vain = (own.is_on() && own.in_vain == Some(far)).then(|| {
            format!(
                "checkpoint {encoding} was not protected within {} ms, nor since: who protects hangs or is \
                 dead",
                self.config.timeout_ms
            )
        });
        let reasons = own.shortfall.clone().into_iter();
        let reasons: Vec<String> = reasons.chain(failed).chain(in_vain).collect();
        ProtectionStatus {
            asked: own.asked,
            covered: if own.is_on() { own.covered } else { 0 },
            node,
            protected: self.protected_checkpoint(),
            encoding: (own.is_on() && encoding > in_group).then_some(encoding),
            shortfall: (!reasons.is_empty()).then(|| reasons.join("; ")),
        }
    }

    /// Whether nothing more comes of protecting `id` in this node's group: it is protected, or it failed, or
    /// it is off.
    pub(super) fn protection_is_over(&self, id: CheckpointId) -> bool {
        let control = &self.node.control;
        let failed = control.committed() >= id && control.glance().failed(id).is_some();
        !self.protection.is_on() || id.is_covered_by(control.protected_in_group()) || failed
    }

    /// Where stores of lost nodes were made again for reading, on this node.
    pub fn rebuilt_directories(&self) -> Vec<PathBuf> {
        let agent = self.protection.agent.as_ref();
        let stores = agent.map(NodeAgent::stores).unwrap_or_default();
        let rebuilt = stores.into_iter().filter(|store| store.rebuilt);
        rebuilt.map(|store| store.directory).collect()
    }
}
