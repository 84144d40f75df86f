// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: level 2 as a session uses it: agents and who coordinates them, lost stores before a
//! restart, parts that are on other nodes, and how far a checkpoint is protected.
//! In from: `session`. Out to: `agent`, the communicator, the words that a node's ranks share.
//! Invariants: whether this start is protected is the same on all ranks; without any agent the
//! session works as without level 2, and says so.

use super::helper::{Known, NodeAgent, say_goodbye};
use super::located::{Choice, Located, StoreAt};
use super::node::Node;
use super::seats::{encode_said, seats_and_surveys};
use super::share::RankRuns;
use super::share::{decide, share_secret};
use super::vote::vote_with;
use super::watch::Watched;
use super::{Level, Session, lock};
use crate::config::{Config, Redundancy};
use backstay_base::clock::{Stopwatch, patiently};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::file::FileDevice;
use backstay_base::notice;
use backstay_format::width::index;
use backstay_format::{CheckpointId, StoreId};
use backstay_metrics::Metrics;
use backstay_net::{
    Endpoint, Peer, RemoteDevice, Secret, TcpEndpoint, TcpOptions, Transports, file_exposure,
};
use backstay_parity::agent::AgentSettings;
use backstay_parity::agent::coordinate::{GroupPlan, NodeSeat};
use backstay_parity::agent::restart::{self, Surveys};
use backstay_parity::group::Scheme;
use backstay_store::control::wait_until;
use backstay_store::place::STORE_FILE;
use backstay_store::reader::StoreReader;
use backstay_store::reserve::Reserve;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Stores on other nodes that a rank keeps open, and what of each: twice so many chunks of 256 KiB.
const READERS_MAX: usize = 8;
const CHUNKS_MAX: usize = 8;

/// Why nothing is protected though it was asked for.
const ON_ONE_NODE: &str = "all ranks are on one node: nothing protects its checkpoints";

/// Where to read of a round that failed.
const SAYS_WHY: &str = "the log of its first member, which coordinates it, says why";

/// What is durable at which level, as far as this node knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
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
    /// Rank 0's: the nodes of the job, by place.
    nodes: Vec<NodeSeat>,
    /// What all nodes have, as rank 0 found it.
    located: Located,
    scheme: Option<Scheme>,
    /// Losses that were asked to be covered, those that are, and why these are fewer.
    asked: usize,
    covered: usize,
    shortfall: Option<String>,
    /// Stores on other nodes, and made again ones on this, as they are asked for.
    readers: Mutex<BTreeMap<StoreId, Arc<StoreReader>>>,
    repaired: bool,
    log_dropped: bool,
    /// What was being encoded, and protected, when that had not changed for too long: nobody may be at work.
    in_vain: Option<Progress>,
    /// What of that was seen last, and since when.
    seen: Option<(Progress, Stopwatch)>,
}

/// What is being encoded, and what is protected.
type Progress = (CheckpointId, CheckpointId);

impl Protection {
    /// Whether a round takes longer than `limit`, which is said once: nothing moves since.
    fn stands_still(&mut self, now: Progress, limit: Duration) -> bool {
        let (encoding, protected) = now;
        match &self.seen {
            Some((seen, since)) if *seen == now => {
                let is_new =
                    encoding > protected && since.elapsed() >= limit && self.in_vain != Some(now);
                if is_new {
                    self.in_vain = Some(now);
                }
                is_new
            }
            _ => {
                self.seen = Some((now, Stopwatch::start()));
                false
            }
        }
    }

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
            transports: config.transports(),
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
        let opened = opened.map(|(endpoint, agent)| {
            protection.agent = agent;
            protection.endpoint = Mutex::new(endpoint);
        });
        protection.endpoint_settings = Some(endpoint_settings);
        protection.locate(comm, config, (node, opened))?;
        Ok(protection)
    }

    /// Whether parity protects this start's checkpoints.
    pub(super) fn is_on(&self) -> bool {
        self.scheme.is_some()
    }

    /// Without redundancy the stripe log of an earlier start is of no use once there is a new checkpoint.
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

    /// What the groups of this start cover, and why that is less than was asked for.
    pub(super) fn covers(&mut self, covered: usize, shortfall: &str) {
        self.covered = covered;
        self.shortfall = (!shortfall.is_empty()).then(|| shortfall.to_owned());
    }

    /// Each node's leader says who it is and what its node has; rank 0 has lost stores made again, and all ranks
    /// learn what there is. Collective.
    fn locate(
        &mut self,
        comm: &Watched,
        config: &Config,
        (node, opened): (&Node, Result<()>),
    ) -> Result<()> {
        let mine = opened.and_then(|()| self.said_of_node(config, node));
        let agent = self.agent.as_ref();
        let (mut nodes, mut made) = (Vec::new(), 0);
        let told = decide(comm, "finding out what there is", mine, |parts| {
            let said = seats_and_surveys(&parts)?;
            let (seats, surveys): (Vec<_>, Vec<_>) = said.into_iter().unzip();
            nodes = seats;
            let found = prepare(agent, &nodes, Surveys::new(surveys), config);
            let (found, unlocated) = match found {
                Ok(located) => (located, String::new()),
                Err(error) => {
                    let why = format!("what other nodes have could not be found out: {error}");
                    notice::warn(&format!("{why}; only what each has itself is used"));
                    (backstay_parity::locate::Located::default(), why)
                }
            };
            made = found.made;
            Located::of(&found, &nodes, &unlocated).encode()
        })?;
        self.nodes = nodes;
        self.located = Located::decode(&told)?;
        // Rank 0's alone: for the level that a restore took the highest of all ranks counts.
        self.located.made = made;
        Ok(())
    }

    /// A leader's seat and what its node has; nothing of other ranks.
    fn said_of_node(&self, config: &Config, node: &Node) -> Result<Vec<u8>> {
        let Some(agent) = &self.agent else {
            return Ok(Vec::new());
        };
        let domain = domain_of(config, &node.name);
        let seat = NodeSeat {
            name: node.name.clone(),
            domain: domain.unwrap_or_else(|| node.name.clone()),
            address: agent.address(),
        };
        let within = Duration::from_millis(config.timeout_ms);
        let look = || restart::own_surveys(&*agent.asker(), &seat.peer(), within);
        // Where it does not answer, rank 0 asks.
        let surveys = look().ok();
        let said = encode_said(&(index(node.place), (seat, surveys)));
        said.map_err(|error| Error::unwritable(format!("what node {} has", node.name), error))
    }

    /// Why nothing is known of what other nodes have, where that is so.
    pub(super) fn unlocated(&self) -> Option<&str> {
        Some(&*self.located.unlocated).filter(|why| !why.is_empty())
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
    /// A start began: what a root slot holds that cannot be read may be of it.
    pub(super) fn give_up_no_more(&self) {
        for reader in lock(&self.readers).values() {
            reader.give_up_unread(false);
        }
    }

    /// Checkpoints that all ranks of then have a source for, and how many ranks that were.
    pub(super) fn choice(&self, id: CheckpointId) -> Option<&Choice> {
        self.located.choice(id)
    }
    pub(super) fn choices(&self) -> impl Iterator<Item = &Choice> {
        self.located.choices.iter()
    }

    /// What a checkpoint that is on the nodes takes: redundancy, if a node was lost.
    pub(super) fn level_of(&self, id: CheckpointId) -> Level {
        if self.located.made > 0 || self.located.takes_rebuilt(id) {
            Level::Protected
        } else {
            Level::Node
        }
    }

    /// The ranks whose parts of a checkpoint are on this node, by the store that has them.
    pub(super) fn sources_here(&self, id: CheckpointId) -> Vec<RankRuns> {
        let agent = self.agent.as_ref();
        agent.map_or_else(Vec::new, |agent| {
            self.located.sources_at(id, &agent.address())
        })
    }

    /// The store that has `rank`'s part of a checkpoint, wherever it is.
    pub(super) fn reader_for(
        &self,
        id: CheckpointId,
        rank: u32,
        (config, gives_up): (&Config, bool),
    ) -> Result<Arc<StoreReader>> {
        let Some(here) = self.located.source(id, rank) else {
            let context = format!("rank {rank}'s part of checkpoint {id} is on no node");
            return Err(Error::new(ErrorKind::NotRetained, context));
        };
        let mut readers = lock(&self.readers);
        if let Some(reader) = readers.get(&here.store) {
            return Ok(Arc::clone(reader));
        }
        let reader = Arc::new(self.open(here, config, gives_up)?);
        // Ranks are read in their order, so those of one store one after the other.
        while readers.len() >= READERS_MAX && readers.pop_first().is_some() {}
        readers.insert(here.store, Arc::clone(&reader));
        Ok(reader)
    }

    fn open(&self, here: &StoreAt, config: &Config, gives_up: bool) -> Result<StoreReader> {
        let local = self.agent.as_ref().and_then(|agent| {
            let mut stores = agent.stores().into_iter();
            stores.find(|found| found.store == here.store)
        });
        let local = local.map(|found| found.directory);
        let reader = if let Some(directory) = local {
            let path = directory.join(STORE_FILE);
            let file = FileDevice::open_read_only(&path)
                .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
            let reader = StoreReader::open(Arc::new(file))?;
            reader.read_records(|_, _, _| {})?;
            reader
        } else {
            let endpoint = self.endpoint()?;
            let within = Duration::from_millis(config.timeout_ms);
            let remote = |exposure, length_bytes| {
                let endpoint = Arc::clone(&endpoint);
                let device =
                    RemoteDevice::new(endpoint, here.peer(), exposure, length_bytes, within);
                Arc::new(device.keeping(CHUNKS_MAX))
            };
            // Whoever has it knows where its segments stand: what is not needed is not read.
            let file = remote(file_exposure(here.store), here.length_bytes);
            StoreReader::open_over(file, remote(here.store.into(), u64::MAX))?
        };
        reader.give_up_unread(gives_up);
        Ok(reader)
    }

    /// By what this rank reads of other nodes, if it does, and what it read.
    pub(super) fn measure(&self, metrics: &mut Metrics) {
        if let Some(endpoint) = &*lock(&self.endpoint) {
            metrics.transport = Some(endpoint.transport());
            let [tcp, libfabric] = endpoint.moved_bytes();
            metrics.read_bytes_tcp = tcp;
            metrics.read_bytes_libfabric = libfabric;
        }
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

    /// The secret of this start, where nodes talk to each other.
    #[cfg(feature = "archive")]
    pub(super) fn secret(&self) -> Option<&Secret> {
        self.endpoint_settings
            .as_ref()
            .map(|endpoint_settings| &endpoint_settings.secret)
    }

    /// The nodes of the job, on rank 0.
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
    pub(super) fn coordinate(&mut self, plan: GroupPlan) -> Result<()> {
        self.agent
            .as_mut()
            .map_or(Ok(()), |agent| agent.coordinate(plan))
    }

    /// Damage was found: every node reads what its stripes say it holds, once in a restart. Whether that was
    /// done, and reading again may go well; an error where what the others have of it could not be read. Collective.
    pub(super) fn repair(&mut self, comm: &Watched, config: &Config, node: &Node) -> Result<bool> {
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
        if let Some(agent) = &self.agent {
            let within = Duration::from_millis(config.timeout_ms);
            let own = Peer::new(node.name.clone(), agent.address());
            let seat = |store| self.located.own_store(store).map(StoreAt::seat);
            match restart::repair_own(&*agent.asker(), &own, seat, within) {
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

    /// The job is over, also for an agent process that this start had no use for.
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
    transports: Transports,
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
            transports: &self.transports,
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
        options.transports = self.transports.clone();
        let endpoint = self.settings.in_background(|| TcpEndpoint::open(options))?;
        Ok(Arc::new(endpoint))
    }
}

/// Rank 0 looks what there is and has lost stores made again.
fn prepare(
    agent: Option<&NodeAgent>,
    nodes: &[NodeSeat],
    mut surveys: Surveys,
    config: &Config,
) -> Result<backstay_parity::locate::Located> {
    let Some(agent) = agent else {
        return Ok(backstay_parity::locate::Located::default());
    };
    let within = Duration::from_millis(config.timeout_ms);
    let named = config.restore_checkpoint;
    let located = patiently(within, Error::may_pass, || {
        restart::prepare(&*agent.asker(), nodes, &mut surveys, named, within)
    })?;
    for text in located.beyond.iter().chain(&located.unread) {
        notice::warn(text);
    }
    Ok(located)
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
        // A round that fails is tried again, but where groups cover nothing: they last as long as this start.
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

    /// Checkpoints may be taken faster than they are protected. In a job of one group the newest is encoded next,
    /// and nobody waits. Of several groups the slowest says what is kept: while it encodes one, two more may be
    /// committed, and then a rank waits. Who waited in vain does not wait again before something moves: whoever
    /// encoded may be dead.
    pub(super) fn wait_for_protection(&mut self) {
        if !self.protection.is_on() {
            return;
        }
        let control = &self.node.control;
        let limit = Duration::from_millis(self.config.timeout_ms);
        let far = (control.encoding(), control.protected_in_group());
        if control.one_group() {
            if self.protection.stands_still(far, limit) {
                self.tell_unprotected(limit);
            }
            return;
        }
        let next = self.last_number + 1;
        let room = || {
            let encoding = control.encoding();
            encoding <= control.protected_in_group() || next <= encoding.number + 2
        };
        if room() || self.protection.in_vain == Some(far) {
            return;
        }
        let watch = Stopwatch::start();
        let waited = wait_until("an earlier checkpoint to be protected", limit, room);
        self.protection.in_vain = waited
            .is_err()
            .then(|| (control.encoding(), control.protected_in_group()));
        if waited.is_err() {
            self.tell_unprotected(limit);
        }
        if let Some(file) = &mut self.metrics {
            file.metrics.protection_waits += 1;
            file.metrics.protection_wait_seconds += watch.seconds();
        }
    }

    /// Says that a checkpoint is not protected though it should be.
    fn tell_unprotected(&self, limit: Duration) {
        if self.node.leads() {
            notice::warn(&format!(
                "checkpoint {} is still not protected after {} ms; going on without, and without waiting \
                 for it again",
                self.node.control.encoding(),
                limit.as_millis()
            ));
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
