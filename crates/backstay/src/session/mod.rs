// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a program calls: open, protect, checkpoint, restore, close.
//! In from: the program (one session a rank). Out to: all stages, which meet only here.
//! Invariants: collective calls have one outcome for all ranks; a failed call leaves the session, the
//! program's memory (but that being restored) and the last checkpoint as they were.

mod ahead;
#[cfg(feature = "archive")]
mod archive;
#[cfg(not(feature = "archive"))]
#[path = "archive_off.rs"]
mod archive;
mod archived;
mod assemble;
mod changes;
mod checkpoint;
mod deleted;
mod files;
mod groups;
mod helper;
mod lineage;
mod located;
mod memory;
mod neighbours;
mod node;
mod pace;
mod process;
mod protect;
mod protection;
mod registry;
mod restore;
mod retention;
mod scrub;
mod seats;
mod settings;
mod share;
mod slabs;
mod unread;
mod variable;
mod vote;
mod watch;

pub use crate::schedule::Level;
pub use checkpoint::{Handle, Report};
pub use files::FileEntry;
pub use lineage::Finished;
pub use registry::VariableId;
pub use restore::Restored;
pub use scrub::Scrubbed;
pub use variable::Variable;

use crate::config::Config;
use crate::leave::LeaveWish;
use crate::schedule::Pacer;
use ahead::Ahead;
use archive::Archive;
use backstay_base::Communicator;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::{CheckpointId, Lineage};
use backstay_metrics::{MetricsFile, What};
use backstay_net::Endpoint;
use backstay_store::commit::{NodeStore, Policy};
use backstay_store::control::Owner;
use backstay_store::recover::{FoundRevision, recover_node, recover_rank};
use backstay_store::reserve::Reserve;
use backstay_store::revision::RankStore;
use backstay_store::space::Reuse;
use backstay_store::track::pages::PageTracker;
use checkpoint::{Announced, Underway};
use files::Files;
use located::Choice;
use memory::MemoryLook;
use node::Node;
use process::{OfProcess, Process};
use protection::Protection;
pub use protection::ProtectionStatus;
use registry::Registry;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vote::{agree, as_checkpoint, as_number, united, vote};
use watch::Watched;

/// A rank's session with Backstay.
///
/// Every rank of the communicator opens one and makes the same collective calls in the same order:
/// `open`, `restore`, `due`, `checkpoint`, `checkpoint_start`, `wait`, `pin`, `unpin`, `close`.
///
/// A child made by fork has no part in it: its calls are refused, and dropping the session there tells
/// nobody.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what was said, tried or begun in this start: independent of each other"
)]
pub struct Session {
    process: Process,
    comm: OfProcess<Watched>,
    config: Config,
    node: Node,
    store: Option<Stores>,
    variables: Registry,
    files: Files,
    /// Counts the changes of `variables` and `files`.
    generation: u64,
    pages: Option<PageTracker>,
    memory: MemoryLook,
    /// Why pages cannot be tracked, once it was said.
    no_pages: bool,
    found: Vec<FoundRevision>,
    /// Why nothing can be restored though something was stored.
    lost: Option<Error>,
    /// Why nothing is restored without its number being named: what is newer could not be looked at.
    doubt: Option<Error>,
    /// Why a root slot of this node's store could not be read, where what may stand there was given up.
    gave_up: Option<Error>,
    policy: Policy,
    incarnation: u64,
    /// The starts that go on from one another: as known, and from this start's beginning on with it.
    lineage: Lineage,
    /// This start restores nothing of itself, until it has begun.
    begins_anew: bool,
    /// Fingerprint of the arguments of rank 0's program.
    arguments: u64,
    /// This incarnation has tried a checkpoint, or began with a restore.
    start_begun: bool,
    last_number: u64,
    /// Commits tried in this start.
    turn: u64,
    /// The last of them that failed.
    abandoned_turn: u64,
    /// The root that this leader wrote may name a checkpoint that failed.
    root_names_failed: bool,
    /// Commits tried before this start began, and those of this start that failed.
    turns_before: u64,
    failed_turns: Vec<Range<u64>>,
    /// It failed for want of space, and older checkpoints were given up for it.
    made_room: bool,
    announced: Option<Announced>,
    underway: Option<Underway>,
    protection: OfProcess<Protection>,
    ahead: OfProcess<Ahead>,
    archive: Archive,
    leave: LeaveWish,
    /// All ranks know that it is time to leave.
    leaving: bool,
    metrics: Option<MetricsFile>,
    /// What passed between what the last start wrote down and this one, in seconds, where they are of one run.
    unseen_seconds: f64,
    /// When the start before was seen to be dead, until this one has restored something.
    died_unix_ms: Option<u64>,
    /// Rank 0's.
    pacer: Option<Pacer>,
    /// Calls of `due` since rank 0 was asked last, and until it is asked again.
    due_calls: i64,
    due_skip: i64,
}

/// The store as this rank writes it.
#[derive(Debug)]
struct Stores {
    rank: RankStore,
    node: Arc<Mutex<NodeStore>>,
}

impl Session {
    /// Opens a session; all ranks of `comm` do. Nothing is written yet, but what an earlier start left
    /// is found: see [`Session::stored_checkpoints`] and [`Session::restore`].
    pub fn open(comm: Box<dyn Communicator>, config: Config) -> Result<Self> {
        Self::open_on(comm, config, None)
    }

    /// As [`Session::open`] with settings that may be wrong on some ranks: all learn of the same error.
    pub fn open_with(comm: Box<dyn Communicator>, config: Result<Config>) -> Result<Self> {
        Self::open_settled(comm, config, None)
    }

    /// As [`Session::open`]; the node's leader reaches other nodes by `endpoint` instead of TCP.
    pub fn open_on(
        comm: Box<dyn Communicator>,
        config: Config,
        endpoint: Option<Arc<dyn Endpoint>>,
    ) -> Result<Self> {
        Self::open_settled(comm, Ok(config), endpoint)
    }

    fn open_settled(
        comm: Box<dyn Communicator>,
        config: Result<Config>,
        endpoint: Option<Arc<dyn Endpoint>>,
    ) -> Result<Self> {
        let rank = comm.rank();
        Self::open_all(comm, config, endpoint).map_err(|error| unread::tell(rank, error))
    }

    fn open_all(
        comm: Box<dyn Communicator>,
        config: Result<Config>,
        endpoint: Option<Arc<dyn Endpoint>>,
    ) -> Result<Self> {
        backstay_base::io::on_demand::raise_file_limit();
        let comm = watched(comm, config.as_ref().ok());
        let config = settings::agree_on_settings(&comm, config)?;
        let node = Node::join(&comm, &config)?;
        let leave = LeaveWish::watch(&config, node.looks());
        let leave = vote(&comm, "watching for the end", 0, leave)?;
        let archive = Archive::look(&comm, &config, &node)?;
        let folder = Archive::folder(&config, &node);
        let protection = Protection::prepare(&comm, &config, &node, folder.as_deref(), endpoint)?;
        let protection = OfProcess::new(protection);
        if node.leads() {
            node.control.set_redundant(protection.is_on());
        }
        let reserve = node.open_store(&comm)?;
        let mut session = Self {
            policy: Policy {
                retained: backstay_format::width::index(config.retained),
                ..Policy::default()
            },
            process: Process::this(),
            comm,
            config,
            node,
            store: None,
            variables: Registry::default(),
            files: Files::default(),
            generation: 0,
            pages: None,
            memory: MemoryLook::default(),
            no_pages: false,
            found: Vec::new(),
            lost: None,
            doubt: None,
            gave_up: None,
            incarnation: 1,
            lineage: Lineage::default(),
            begins_anew: false,
            arguments: 0,
            start_begun: false,
            last_number: 0,
            turn: 0,
            abandoned_turn: 0,
            root_names_failed: false,
            turns_before: 0,
            failed_turns: Vec::new(),
            made_room: false,
            announced: None,
            underway: None,
            protection,
            ahead: OfProcess::new(Ahead::default()),
            archive,
            leave,
            leaving: false,
            metrics: None,
            unseen_seconds: 0.0,
            died_unix_ms: crate::config::died_unix_ms(),
            pacer: None,
            due_calls: 0,
            due_skip: 0,
        };
        let unread = session.recover_all(reserve, "recovering the store")?;
        session.look_until_read(unread)?;
        session.repair_damaged_parts()?;
        session.join_group()?;
        let (known_complete, logged) = session.agree_on_the_start()?;
        session.prepare_archive()?;
        session.agree_on_lineage()?;
        session.agree_on_checkpoints(known_complete, logged)?;
        session.begin_start()?;
        Ok(session)
    }

    /// What was found is settled: plans by it, says what it means, and begins anew where that is asked. Collective.
    fn begin_start(&mut self) -> Result<()> {
        self.open_metrics();
        files::forget_files(&self.node);
        let paced = self.open_pacer();
        vote(&self.comm, "planning", 0, paced)?;
        self.announce_start();
        self.begin_anew_if_asked()
    }

    /// Where some rank's part is damaged, parity may have what it was.
    fn repair_damaged_parts(&mut self) -> Result<()> {
        if !self.protection.is_on() {
            return Ok(());
        }
        let damaged = self
            .found
            .iter()
            .any(|found| matches!(found.part, Some(Err(_))) || found.ranks.is_err());
        let mut any = [i64::from(damaged)];
        self.comm.allreduce_max("looking for damage", &mut any)?;
        if any[0] == 0 {
            return Ok(());
        }
        match self.protection.repair(&self.comm, &self.config, &self.node) {
            Ok(false) => Ok(()),
            Ok(true) => self.recover_again().map(|_| ()),
            Err(error) if error.kind().leaves_open() => {
                let damaged = |found: &&mut FoundRevision| {
                    found.ranks.is_err() || matches!(found.part, Some(Err(_)))
                };
                for found in self.found.iter_mut().filter(damaged) {
                    found.unread = Some(error.again());
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Recovers the store once more; whether something still could not be read. Collective.
    fn recover_again(&mut self) -> Result<bool> {
        let reserve = self.store.take().map(|stores| {
            let reserve = stores.rank.reserve().clone();
            reserve
                .control()
                .free_slots_of(Owner::Rank(self.node.local));
            if self.node.leads() {
                reserve.control().free_slots_of(Owner::Node);
                reserve.control().free_slots_of(Owner::Former);
            }
            reserve
        });
        self.recover_all(reserve, "recovering the store again")
    }

    /// The agent has the store, if there is one, and its group is formed. Collective.
    fn join_group(&mut self) -> Result<()> {
        let attached = self.attach_agent();
        vote(&self.comm, "attaching the agent", 0, attached)?;
        let (comm, config) = (&self.comm, &self.config);
        self.protection.form_groups(comm, config, &self.node)
    }

    /// From now on parity may cover what is in the store: only whole segments are written again, and
    /// the agent has it.
    fn attach_agent(&mut self) -> Result<()> {
        let Some(stores) = &self.store else {
            return Ok(());
        };
        if self.node.leads() && (self.protection.is_on() || self.archive.is_on()) {
            self.protection.attach(stores.rank.reserve(), &self.node)?;
        }
        if !self.protection.is_on() {
            return Ok(());
        }
        stores.rank.set_reuse(Reuse::Segments);
        if self.node.leads() {
            lock(&stores.node).set_reuse(Reuse::Segments);
        }
        Ok(())
    }

    /// Derives this rank's state, and the leader the node's, from the newest root.
    fn recover(&mut self, reserve: Reserve) -> Result<()> {
        let roots = self.read_roots(&reserve)?;
        let root = roots.state().clone();
        if let (Some(damage), true) = (roots.damaged(), self.node.leads()) {
            notice::warn(&format!("{damage}; the other root slot is used"));
        }
        let control = reserve.control();
        control.set_next_segment(control.next_segment().max(root.next_segment));
        let owner = Owner::Rank(self.node.local);
        let (space, mut found) = recover_rank(&reserve, &root, self.comm.rank(), owner);
        // What was given up may be of a start more.
        self.lineage = root.lineage;
        self.incarnation = root.incarnation + 1 + u64::from(self.gave_up.is_some());
        self.last_number = root
            .revisions
            .last()
            .map_or(0, |last| last.checkpoint.number);
        let pinned = root.revisions.iter().filter(|revision| revision.pinned);
        self.policy.pinned = pinned.map(|revision| revision.checkpoint).collect();
        let node = if self.node.leads() {
            let here = self.node.ranks.iter().copied().collect();
            let node = recover_node(&reserve, &root, &here);
            for (id, error) in node.unread {
                let mut of_it = found.iter_mut().filter(|found| found.id() == id);
                let sound = of_it.find(|found| found.ranks.is_ok() && found.unread.is_none());
                if let Some(found) = sound {
                    found.unread = Some(error);
                }
            }
            NodeStore::new(reserve.clone(), roots, node.tables, node.former)
        } else {
            NodeStore::successor(reserve.clone(), roots)
        };
        self.found = found;
        self.set_store(reserve, space, node);
        Ok(())
    }

    fn set_store(
        &mut self,
        reserve: Reserve,
        space: backstay_store::space::Space,
        node: NodeStore,
    ) {
        let rank = RankStore::new(
            reserve,
            self.node.local,
            self.comm.rank(),
            self.comm.size(),
            self.node.capture_threads(self.config.capture_threads),
            space,
        );
        self.store = Some(Stores {
            rank,
            node: Arc::new(Mutex::new(node)),
        });
    }

    /// Which start this is, and which number comes next; returns the newest known to have been complete, and the
    /// oldest and the newest that stripe logs protect.
    fn agree_on_the_start(&mut self) -> Result<(i64, [i64; 2])> {
        let known_complete = self.found.iter().filter(|found| found.revision.complete);
        let known_complete = known_complete.map(|found| as_number(found.id())).max();
        let run = self.store.as_ref().map(|store| {
            let superblock = store.rank.reserve().reader().superblock();
            i64::from(superblock.run)
        });
        let logged = as_number(self.node.control.logged());
        self.incarnation = self.incarnation.max(self.archive.incarnation() + 1);
        self.last_number = self.last_number.max(self.archive.newest_number());
        let mut newest = [
            to_i64(self.incarnation),
            to_i64(self.last_number),
            known_complete.unwrap_or(0),
            run.unwrap_or(0),
            run.map_or(i64::MIN, |run| -run),
            i64::from(self.node.draw_run()),
            logged,
            if logged > 0 { -logged } else { i64::MIN },
        ];
        self.comm
            .allreduce_max("agreeing on the number of this start", &mut newest)?;
        let [
            incarnation,
            last_number,
            known_complete,
            newest_run,
            lowest_run,
            drawn,
            newest_logged,
            oldest_logged,
        ] = newest;
        self.incarnation = u64::try_from(incarnation).unwrap_or(1);
        self.last_number = u64::try_from(last_number).unwrap_or(0);
        self.node.control.number_in_start(self.incarnation);
        let archived_run = i64::from(self.archive.run());
        let agreed_run = match (newest_run, archived_run) {
            (0, 0) => drawn,
            (0, archived) => archived,
            (run, _) => run,
        };
        self.node.run = u32::try_from(agreed_run).unwrap_or(1);
        self.node.was_there = newest_run > 0;
        if newest_run > 0 && newest_run != -lowest_run {
            let mine = self.same_run(run, newest_run);
            vote(&self.comm, "comparing the stores", 0, mine)?;
        }
        if newest_run > 0 && archived_run > 0 && newest_run != archived_run {
            return Err(self.other_archive());
        }
        let oldest_logged = oldest_logged.checked_neg().unwrap_or(0);
        Ok((known_complete, [oldest_logged, newest_logged]))
    }

    /// Until this start has protected one, what every group's log protects is all that survives the loss of a
    /// node: the oldest of them, unless its log is one of an earlier time. With what it is of, a round protects
    /// what is older.
    fn keep_what_is_protected(&mut self, logged: [i64; 2]) {
        let complete = &self.policy.complete;
        let up_to = |id| complete.iter().rev().find(|one| **one <= id).copied();
        let mut logged = logged.into_iter().filter_map(as_checkpoint);
        self.policy.protected = logged.find_map(up_to);
        let control = &self.node.control;
        if let (Some(id), true) = (self.policy.protected, self.node.leads())
            && control.protected() < id
        {
            control.set_protected(id);
        }
    }

    fn other_archive(&self) -> Error {
        let folder = Archive::folder(&self.config, &self.node);
        let context = format!(
            "{} holds the archive of another run of job {:?} than the stores on the nodes: set another \
             archive or job name, or remove the folder if it is of no use any more",
            folder.unwrap_or_default().display(),
            self.node.job
        );
        Error::new(ErrorKind::Configuration, context)
    }

    fn same_run(&self, run: Option<i64>, other: i64) -> Result<()> {
        if run.is_none_or(|run| run == other) {
            return Ok(());
        }
        let context = format!(
            "{} is of another run of job {:?} than the store of another node; put the right one back, \
             or set another job name or store_path",
            self.node.store_path().display(),
            self.node.job
        );
        Err(Error::new(ErrorKind::Configuration, context))
    }

    /// Which checkpoints every rank can have; `known_complete` is the newest that was complete, `logged` the oldest
    /// and the newest that a stripe log protects.
    fn agree_on_checkpoints(&mut self, known_complete: i64, logged: [i64; 2]) -> Result<()> {
        let size = self.comm.size();
        let elsewhere = |id| self.protection.choice(id).is_some() || self.archive.has(id);
        let usable = |found: &&FoundRevision| {
            // What could not be read may be there: whoever restores tries again.
            if found.unread().is_some() {
                true
            } else if found.revision.world_size == size && found.part.is_some() {
                matches!(found.part, Some(Ok(_)))
            } else {
                found.holds_all_ranks() && found.revision.world_size != size
                    || elsewhere(found.id())
            }
        };
        let here = self.found.iter().filter(usable).map(FoundRevision::id);
        let unknown = |choice: &&Choice| {
            let mut found = self.found.iter();
            !found.any(|found| found.id() == choice.checkpoint)
        };
        let there = self.protection.choices().filter(unknown);
        let mut mine: Vec<CheckpointId> = here
            .chain(there.map(|c| c.checkpoint))
            .chain(self.archive.checkpoints())
            .collect();
        mine.sort_unstable();
        mine.dedup();
        for found in &self.found {
            if let (Err(error), true) = (&found.ranks, self.node.leads()) {
                notice::warn(&format!("checkpoint {} is unusable: {error}", found.id()));
            }
            if let Some(error) = &found.unread {
                notice::warn(&format!("checkpoint {}: {error}", found.id()));
            }
            if let Some(Err(error)) = &found.part {
                notice::warn(&format!(
                    "rank {}: its part of checkpoint {} is unusable: {error}",
                    self.comm.rank(),
                    found.id()
                ));
            }
        }
        let agreed = agree(&self.comm, &mine)?;
        let newest = agreed.iter().rev().find(|id| self.goes_on_from(**id));
        // The first checkpoint of a job is known to be complete by its stripe logs only.
        let known_complete = if newest.is_none() {
            known_complete.max(logged[1])
        } else {
            known_complete
        };
        let known_complete = self.within_lineage(known_complete);
        if known_complete > newest.map_or(0, |&id| as_number(id)) {
            let missing = self.why_not(known_complete);
            if newest.is_none() {
                self.lost = vote(&self.comm, "finding a complete checkpoint", 0, missing).err();
            } else if let Err(error) = missing {
                notice::warn(&format!("rank {}: {error}", self.comm.rank()));
            }
        }
        // A node that is new to the job knows of no pin.
        self.policy.pinned = united(&self.comm, "pins", &agreed, &self.policy.pinned)?;
        self.policy.complete = agreed.into_iter().collect();
        self.keep_what_is_protected(logged);
        self.settle_what_is_given_up()?;
        self.doubt_what_is_newer(self.policy.complete.last().copied())
    }

    /// What keeps this rank from having a checkpoint that was complete.
    fn why_not(&self, number: i64) -> Result<()> {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let path = self.node.store_path();
        let path = path.display();
        let needs = if self.protection.is_on() {
            "; not recoverable from the nodes, needs level 3"
        } else {
            ""
        };
        let Some(found) = self.found.iter().find(|f| as_number(f.id()) == number) else {
            let there = if self.store.is_some() {
                let ids = self.found.iter().map(|found| found.id().to_string());
                format!("it has {:?}", ids.collect::<Vec<_>>())
            } else {
                "there is no such file".to_owned()
            };
            let context = format!(
                "{path} (rank {rank}, node {}) is without checkpoint {}, which was complete; \
                 {there}{needs}",
                self.node.name,
                number >> 20
            );
            return Err(Error::new(ErrorKind::NotRetained, context));
        };
        let (id, world) = (found.id(), found.revision.world_size);
        match (&found.ranks, &found.part) {
            (Err(error), _) | (_, Some(Err(error))) => Err(Error::new(
                error.kind(),
                format!("checkpoint {id}, part of rank {rank}: {error}"),
            )),
            (Ok(_), None) if world == size => Err(Error::new(
                ErrorKind::NotRetained,
                format!(
                    "{path} has other ranks' parts of checkpoint {id}, and not that of rank {rank}{needs}"
                ),
            )),
            (Ok(ranks), _) if world != size && !found.holds_all_ranks() => Err(Error::new(
                ErrorKind::NotRetained,
                format!(
                    "checkpoint {id} is of {world} ranks, this job has {size}, and {path} has the \
                     parts of {} of them: another number of ranks needs them all on each node",
                    ranks.len()
                ),
            )),
            _ => Ok(()),
        }
    }

    fn open_metrics(&mut self) {
        if !self.node.leads() {
            return;
        }
        let interval = Duration::from_millis(self.config.metrics_interval_ms);
        // Where the node is new, the archive has what the job learnt on others. The planner alone needs it.
        let elsewhere = self.archive.measured().filter(|_| self.comm.rank() == 0);
        let directory = self.node.store_directory();
        let mut file = MetricsFile::open_or(&directory, interval, elsewhere.as_deref());
        file.metrics.job.clone_from(&self.node.job);
        file.metrics.node.clone_from(&self.node.name);
        file.metrics.nodes = self.node.nodes;
        let names = self.protection.nodes().iter();
        file.metrics.node_names = names.map(|seat| seat.name.clone()).collect();
        file.metrics.ranks = self.comm.size();
        self.protection.measure(&mut file.metrics);
        file.metrics.incarnation = self.incarnation;
        self.unseen_seconds = match self.died_unix_ms {
            Some(_) if file.failed_before => file.count_unseen(),
            _ => 0.0,
        };
        file.note(What::Start, 0, 0.0);
        self.metrics = Some(file);
    }

    /// This rank.
    pub fn rank(&self) -> u32 {
        self.comm.rank()
    }
    /// Ranks of the job.
    pub fn size(&self) -> u32 {
        self.comm.size()
    }
    /// Where the node's store is.
    pub fn directory(&self) -> std::path::PathBuf {
        self.node.store_directory()
    }
    /// Collective calls made on the communicator so far.
    pub fn communicator_calls(&self) -> u64 {
        self.comm.calls()
    }
    /// Bytes of memory held for change tracking and the map of space.
    pub fn memory_bytes(&self) -> u64 {
        let marks = self.variables.values().map(|v| v.changes.memory_bytes());
        let store = self.store.as_ref();
        marks.sum::<u64>() + store.map_or(0, |store| store.rank.memory_bytes())
    }

    /// Ends the session: waits for a checkpoint under way, says goodbye in the store. The next start goes on from
    /// the newest checkpoint; a program that is done calls [`Session::finish`]. Collective.
    pub fn close(mut self) -> Result<()> {
        self.process.check()?;
        self.end(None)
    }

    /// Ends the session, of a program that `finished` or of one that may go on. Collective.
    fn end(&mut self, finished: Option<&Finished>) -> Result<()> {
        let settled = self.settle_underway().map(|_| ());
        self.ahead.end();
        self.end_set();
        self.protection
            .stop(Duration::from_millis(self.config.timeout_ms));
        let noted = if settled.is_ok() {
            self.note_end(finished.is_some())
        } else {
            Ok(())
        };
        self.keep_learnt();
        let tracking = self.tracking();
        if let Some(metrics) = &mut self.metrics {
            self.protection.measure(&mut metrics.metrics);
            metrics.metrics.tracking = tracking;
            metrics.metrics.closed = true;
            metrics.metrics.finished = finished.is_some();
            let end = if finished.is_some() {
                What::Finish
            } else {
                What::Close
            };
            metrics.note(end, 0, 0.0);
            if let Err(error) = metrics.write() {
                notice::warn(&error.to_string());
            }
            if self.comm.rank() == 0 {
                self.archive.keep_measured(self.node.store_directory());
            }
        }
        let closed = vote(&self.comm, "closing the session", 0, settled.and(noted));
        if closed.is_ok() {
            files::forget_files(&self.node);
            if let Some(finished) = finished {
                self.tell_finished(finished);
            }
            self.protection.goodbye(&self.node);
        }
        closed
    }
}

/// The communicator under the watch that the settings ask for; rank 0 says which variables have no effect.
fn watched(comm: Box<dyn Communicator>, config: Option<&Config>) -> OfProcess<Watched> {
    let limit = config.map_or_else(
        || Config::default().watchdog_ms,
        |config| config.watchdog_ms,
    );
    let cpu_set = config.and_then(|config| config.cpu_set.clone());
    if comm.rank() == 0 {
        for unknown in crate::config::variables_without_effect() {
            notice::warn(&unknown);
        }
    }
    OfProcess::new(Watched::new(comm, Duration::from_millis(limit), cpu_set))
}

/// No panic happens while these locks are held that would leave their contents half changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn to_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
