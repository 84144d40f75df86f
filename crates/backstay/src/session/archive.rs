// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: level 3 as a session uses it: what the archive has for a restart, who brings checkpoints
//! there, and how far they are.
//! In from: `session`. Out to: `drain`, the communicator, the words that a node's ranks share.
//! Invariants: all ranks know of the same archived checkpoints, which are those of the catalog when it is this
//! start's, whatever a former one did meanwhile; a start is recorded in the catalog before
//! its first checkpoint can be; without a parallel file system that answers, the program goes on.

use super::Session;
use super::helper::NodeAgent;
use super::node::Node;
use super::protection::Protection;
use super::share::{RankRuns, share_bytes};
use super::vote::vote;
use super::watch::Watched;
use crate::config::Config;
use backstay_archive::drain::fetch::{self, ArchiveFound, ArchivedCheckpoint, RankSource};
use backstay_archive::drain::{
    ArchiveNode, ArchivePlan, MEASURED_FILE, RunningLock, STATUS_FILE, keep_measured,
    publish_secret,
};
use backstay_archive::{Catalog, job_folder, private};
use backstay_base::clock::Backoff;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::two_slots::Unread;
use backstay_base::notice;
use backstay_format::local::LocalRequest;
use backstay_format::width::index;
use backstay_format::{
    CatalogCheckpoint, CheckpointId, Decoder, Encoder, FormatError, Lineage, RankRange,
};
use backstay_parity::agent::coordinate::NodeSeat;
use backstay_store::reader::StoreReader;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const FOUND: &str = "what the archive has";

/// What a session has of level 3.
#[derive(Debug, Default)]
pub(super) struct Archive {
    found: ArchiveFound,
    /// Rank 0's: what the catalog listed when it was looked.
    listed: Vec<CatalogCheckpoint>,
    /// Rank 0's, until the first start begins.
    begin: Option<(ArchivePlan, Option<Catalog>)>,
    /// Rank 0's: that of the start that goes on.
    plan: Option<ArchivePlan>,
    /// Checkpoints that are read from here though nodes have them: those are damaged.
    preferred: BTreeSet<CheckpointId>,
    readers: Mutex<BTreeMap<usize, Arc<StoreReader>>>,
    /// What may stand in root slots that cannot be read is given up with the restore that was named.
    gives_up: AtomicBool,
    /// Rank 0's, as long as the session starts.
    lock: Option<RunningLock>,
    is_on: bool,
}

/// Longest wait until what was measured is in the archive.
const KEEP_LIMIT: Duration = Duration::from_secs(2);

impl Archive {
    /// The folder of the job in the archive, if there is one.
    pub(super) fn folder(config: &Config, node: &Node) -> Option<PathBuf> {
        let archive = config.archive.as_ref()?;
        Some(job_folder(archive, &node.job))
    }

    /// Rank 0 looks what the archive has; all ranks learn of it. Collective.
    pub(super) fn look(comm: &Watched, config: &Config, node: &Node) -> Result<Self> {
        let Some(folder) = Self::folder(config, node) else {
            return Ok(Self::default());
        };
        let mut archive = Self {
            is_on: true,
            ..Self::default()
        };
        archive.find(comm, config, folder)?;
        Ok(archive)
    }

    fn find(&mut self, comm: &Watched, config: &Config, folder: PathBuf) -> Result<()> {
        let mut mine = Ok(ArchiveFound::default());
        if comm.rank() == 0 {
            let limit = Duration::from_millis(config.timeout_ms);
            let names_one = config.restore_checkpoint.is_some();
            mine =
                private::make_folder(&folder).and_then(|()| look_within(limit, &folder, names_one));
            if let Ok(found) = &mut mine {
                found.warnings.iter().for_each(|text| notice::warn(text));
                self.listed = std::mem::take(&mut found.listed);
            }
        }
        let mine = mine.and_then(|found| {
            let told = encode_found(&found);
            told.map_err(|error| Error::unwritable("what the archive has", error))
        });
        let bytes = share_bytes(comm, "looking into the archive", Some(mine))?;
        let mut found = decode_found(&bytes)
            .map_err(|error| Error::malformed("what the archive has".to_owned(), error))?;
        found.folder = folder;
        self.found = found;
        Ok(())
    }

    /// Looks again, where a former start recorded or dropped checkpoints between the look and the moment when the
    /// catalog became this start's. Collective.
    fn find_what_moved_on(&mut self, comm: &Watched, config: &Config) -> Result<()> {
        let catalog = self
            .begin
            .as_ref()
            .and_then(|(_, catalog)| catalog.as_ref());
        let moved = catalog.is_some_and(|catalog| fetch::listed(&catalog.state()) != self.listed);
        let mut any = [i64::from(moved)];
        comm.allreduce_max("looking whether the archive moved on", &mut any)?;
        if any[0] == 0 {
            return Ok(());
        }
        let folder = std::mem::take(&mut self.found.folder);
        self.find(comm, config, folder)
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }
    /// Where the job keeps what it measured of itself, for when the nodes that have it are lost.
    pub(super) fn measured(&self) -> Option<PathBuf> {
        self.is_on.then(|| self.found.folder.join(MEASURED_FILE))
    }
    /// Brings there what stands beside the store `store`, that this start closed above all. A file system that hangs
    /// is waited for so long and no longer.
    pub(super) fn keep_measured(&self, store: PathBuf) {
        if !self.is_on {
            return;
        }
        let folder = self.found.folder.clone();
        let (over, is_over) = std::sync::mpsc::channel();
        let brought = std::thread::Builder::new().spawn(move || {
            drop(over.send(keep_measured(&store, &folder)));
        });
        if brought.is_err() {
            return;
        }
        match is_over.recv_timeout(KEEP_LIMIT) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => notice::info(&error.to_string()),
            Err(_) => {
                notice::info("what the job measured is not in its archive: that does not answer");
            }
        }
    }
    fn found(&self) -> &ArchiveFound {
        &self.found
    }
    /// The newest start that the archive knows of, 0 where there is none.
    pub(super) fn incarnation(&self) -> u64 {
        self.found.incarnation
    }
    /// Which starts go on from one another, as the archive knows.
    pub(super) fn lineage(&self) -> Lineage {
        self.found.lineage
    }
    /// The highest number of a checkpoint that it lists.
    pub(super) fn newest_number(&self) -> u64 {
        self.found.newest_number()
    }
    /// Which run of the job it is of, 0 where there is none.
    pub(super) fn run(&self) -> u32 {
        self.found.run
    }
    /// The checkpoints that it has.
    pub(super) fn checkpoints(&self) -> impl Iterator<Item = CheckpointId> {
        self.found.checkpoints.iter().map(|found| found.checkpoint)
    }
    /// The error of a restore after which nothing is left to try, though the catalog lists something.
    pub(super) fn nothing_left(&self, last: Error) -> Error {
        if self.found.checkpoints.is_empty() || !last.kind().proves_loss() {
            return last;
        }
        let folder = self.found.folder.display();
        let context = format!(
            "{}; nothing is left to restore. To begin anew, remove {folder} or set another archive",
            last.words()
        );
        Error::new(ErrorKind::Corrupt, context)
    }
    pub(super) fn has(&self, id: CheckpointId) -> bool {
        self.found.find(id).is_some()
    }
    /// Ranks of the job that took a checkpoint which is read from here.
    pub(super) fn world_size(&self, id: CheckpointId) -> Option<u32> {
        self.found.find(id).map(ArchivedCheckpoint::world_size)
    }
    /// From now on `id` is read from here. False if it was before, or is not here.
    pub(super) fn prefer(&mut self, id: CheckpointId) -> bool {
        self.has(id) && self.preferred.insert(id)
    }
    pub(super) fn is_preferred(&self, id: CheckpointId) -> bool {
        self.preferred.contains(&id)
    }

    /// The store that has `rank`'s part of a checkpoint.
    pub(super) fn reader_for(&self, id: CheckpointId, rank: u32) -> Result<Arc<StoreReader>> {
        let found = self.found.find(id);
        let at = found.and_then(|found| found.file_of(rank));
        let Some((at, file)) = at.and_then(|at| Some((at, self.found.files.get(at)?))) else {
            let context = format!("rank {rank}'s part of checkpoint {id} is not in the archive");
            return Err(Error::new(ErrorKind::NotRetained, context));
        };
        let mut readers = super::lock(&self.readers);
        if let Some(reader) = readers.get(&at) {
            return Ok(Arc::clone(reader));
        }
        let unread = if self.gives_up.load(Ordering::Relaxed) {
            Unread::GivenUp
        } else {
            Unread::Counts
        };
        let reader = fetch::open_store_as(&self.found.folder, file, unread)?;
        let reader = Arc::new(reader);
        readers.insert(at, Arc::clone(&reader));
        Ok(reader)
    }

    /// Of the parts of a checkpoint that is here, those that the leader of node `place` of so many reads for all, by
    /// file.
    pub(super) fn share_of(&self, id: CheckpointId, (place, nodes): (u32, u32)) -> Vec<RankRuns> {
        let mut by_file: BTreeMap<u32, Vec<RankRange>> = BTreeMap::new();
        let sources = self.found.find(id).into_iter();
        for source in sources.flat_map(|found| found.sources.iter()) {
            if source.file % nodes.max(1) == place {
                by_file.entry(source.file).or_default().push(source.ranks);
            }
        }
        let ranks = |ranges: Vec<RankRange>| -> RankRuns {
            let ranges = ranges.into_iter();
            Box::new(ranges.flat_map(|ranks| ranks.first..ranks.end()))
        };
        by_file.into_values().map(ranks).collect()
    }

    /// The restore is over: the files are let go.
    pub(super) fn close_readers(&self) {
        super::lock(&self.readers).clear();
    }

    /// What may stand in a root slot that cannot be read is given up from now on; whether it was not before.
    pub(super) fn give_up_unread(&self) -> bool {
        self.close_readers();
        self.is_on && !self.gives_up.swap(true, Ordering::Relaxed)
    }

    /// Makes the archive ready for this start, on rank 0. The run is known.
    pub(super) fn prepare(
        &mut self,
        config: &Config,
        node: &Node,
        nodes: Vec<ArchiveNode>,
        incarnation: u64,
    ) -> Result<()> {
        self.lock = Some(RunningLock::take(
            &self.found.folder,
            &node.job,
            node.was_there,
        )?);
        let plan = ArchivePlan {
            folder: self.found.folder.clone(),
            job: node.job.clone(),
            run: node.run,
            incarnation,
            // Known once this start begins.
            lineage: Lineage::default(),
            from: None,
            every: config.archive_every.map_or(1, u64::from),
            retained: index(config.archive_retained),
            settings: config.drain_settings(),
            nodes,
            aggregate_nodes: config.aggregate_nodes,
            status: Some(node.store_directory().join(STATUS_FILE)),
        };
        if self.found.gave_up_catalog {
            // Nothing is given up before the restore.
            self.begin = Some((plan, None));
            return Ok(());
        }
        let catalog = plan.open_catalog_if_room()?;
        if let Some(catalog) = &catalog {
            // Two that begin at once drew the same number: one of them has it.
            catalog.claim(incarnation, true)?;
        }
        self.begin = Some((plan, catalog));
        Ok(())
    }

    /// A start began: what a slot holds that cannot be read may be of it.
    pub(super) fn give_up_no_more(&mut self) {
        *self.gives_up.get_mut() = false;
    }

    /// What is newer than `id` is abandoned.
    pub(super) fn abandon_after(&mut self, id: CheckpointId) {
        self.found
            .checkpoints
            .retain(|found| found.checkpoint <= id);
    }

    /// A start begins, from `from` if it restored: on rank 0 the catalog says so, and draining begins.
    pub(super) fn begin(
        &mut self,
        lineage: Lineage,
        from: Option<CheckpointId>,
        protection: &mut Protection,
    ) -> Result<()> {
        let incarnation = lineage.start;
        let first = self.begin.take();
        let goes_on = self.plan.as_ref().map(|plan| plan.incarnation);
        if first.is_none() && goes_on.is_none_or(|former| former == incarnation) {
            return Ok(());
        }
        let (first, catalog) = first.unzip();
        let Some(plan) = first.or(self.plan.take()) else {
            return Ok(());
        };
        let plan = self.plan.insert(ArchivePlan {
            incarnation,
            lineage,
            from: from.map(Into::into),
            ..plan
        });
        let Some(mut catalog) = catalog else {
            return coordinating(protection)?.archive_again(plan);
        };
        // From now on it is this start that writes.
        let gave_up = std::mem::take(&mut self.found.gave_up_catalog);
        if gave_up && from.is_some() {
            catalog = Some(plan.open_catalog_past_unread()?);
        }
        if let Some(catalog) = &catalog {
            plan.name_in(catalog)?;
        }
        coordinating(protection)?.archive(plan, catalog)
    }

    /// The job is finished with checkpoint `last`, and nobody drains any more: the catalog says so. Rank 0's.
    pub(super) fn finish(&self, lineage: Lineage, last: CheckpointId) -> Result<()> {
        let Some(plan) = &self.plan else {
            return Ok(());
        };
        let catalog = plan.open_catalog_if_room()?;
        let full = || Error::new(ErrorKind::StoreFull, "there is no room for it");
        catalog.ok_or_else(full)?.finish(lineage, last)
    }
}

impl NodeAgent {
    /// Coordinates the archive of the job.
    fn archive(&mut self, plan: &ArchivePlan, catalog: Option<Catalog>) -> Result<()> {
        if let Self::Here {
            drains, archive, ..
        } = self
        {
            *archive = Some(drains.start(plan.clone(), catalog)?);
            return Ok(());
        }
        // The process opens it for itself.
        drop(catalog);
        let plan = serde_json::to_vec(plan).unwrap_or_default();
        self.tell(&LocalRequest::Archive { plan }).map(|_| ())
    }

    /// Coordinates the archive of a later start of the session: the catalog knows of it on return.
    fn archive_again(&mut self, plan: &ArchivePlan) -> Result<()> {
        let mut catalog = None;
        if let Self::Here { archive, .. } = self {
            if let Some(former) = archive.take() {
                former.end();
            }
            catalog = plan.open_catalog_if_room()?;
        }
        self.archive(plan, catalog)
    }
}

/// Rank 0's node, which coordinates the archive.
fn coordinating(protection: &mut Protection) -> Result<&mut NodeAgent> {
    let none = || Error::new(ErrorKind::Internal, "rank 0's node has no agent");
    protection.agent_mut().ok_or_else(none)
}

/// The nodes, as those who drain know them.
fn archive_nodes(protection: &Protection) -> Vec<ArchiveNode> {
    let node = |seat: &NodeSeat| ArchiveNode {
        name: seat.name.clone(),
        address: seat.address.clone(),
    };
    protection.nodes().iter().map(node).collect()
}

/// Looks what the archive has, again where something could not be read, until it could or `limit` has passed.
/// Then, where a checkpoint was named, what the slots say that can be read.
fn look_within(limit: Duration, folder: &Path, names_one: bool) -> Result<ArchiveFound> {
    let mut again = Backoff::within(limit);
    loop {
        let mut found = ArchiveFound::look(folder);
        let may_pass = found.as_ref().is_err_and(Error::may_pass);
        if may_pass && again.pause() {
            continue;
        }
        if may_pass && names_one {
            found = ArchiveFound::look_as(folder, Unread::GivenUp).or(found);
        }
        return found.map_err(|error| {
            if !error.kind().leaves_open() {
                return error;
            }
            let context = format!(
                "{}: what the archive has could not be found out, and it may be newer than what the nodes \
                 have: {error}; nothing is given up for that: start again when it can be read; to go on without \
                 it, start without `archive`, or move the file away that cannot be read; where one slot of it \
                 can be read, restore_checkpoint resumes from that",
                folder.display()
            );
            Error::new(ErrorKind::Unreadable, context)
        });
    }
}

/// What of `found` all ranks need; where parts are is told once for all checkpoints of which it is the same.
fn encode_found(found: &ArchiveFound) -> std::result::Result<Vec<u8>, FormatError> {
    let told = ArchiveFound {
        run: found.run,
        incarnation: found.incarnation,
        lineage: found.lineage,
        files: found.files.clone(),
        checkpoints: found.checkpoints.clone(),
        gave_up_catalog: found.gave_up_catalog,
        ..ArchiveFound::default()
    };
    let mut body = Encoder::new(FOUND);
    body.u32(told.run)
        .u64(told.incarnation)
        .u8(u8::from(told.gave_up_catalog));
    told.lineage.put(&mut body);
    body.count(told.files.len());
    for file in &told.files {
        body.text(file);
    }
    let all: BTreeSet<&Arc<[RankSource]>> = told.checkpoints.iter().map(|c| &c.sources).collect();
    body.count(all.len());
    for sources in &all {
        body.count(sources.len());
        for RankSource { ranks, file } in sources.iter() {
            body.u32(ranks.first).u32(ranks.count).u32(*file);
        }
    }
    let places: BTreeMap<&Arc<[RankSource]>, usize> = all.into_iter().zip(0..).collect();
    body.count(told.checkpoints.len());
    for one in &told.checkpoints {
        body.u64(one.checkpoint.incarnation)
            .u64(one.checkpoint.number)
            .count(places.get(&one.sources).copied().unwrap_or(0));
    }
    body.finish(&told, decode_found)
}

fn decode_found(bytes: &[u8]) -> std::result::Result<ArchiveFound, FormatError> {
    let mut body = Decoder::new(FOUND, bytes);
    let mut found = ArchiveFound {
        run: body.u32("run")?,
        incarnation: body.u64("incarnation")?,
        gave_up_catalog: body.u8("gave up a slot of the catalog")? != 0,
        lineage: Lineage::decode(&mut body)?,
        ..ArchiveFound::default()
    };
    for _ in 0..body.u32("files")? {
        found.files.push(body.text("file", 255)?);
    }
    let mut all: Vec<Arc<[RankSource]>> = Vec::new();
    for _ in 0..body.u32("places of parts")? {
        let mut sources = Vec::new();
        for _ in 0..body.u32("sources")? {
            let (first, count) = (body.u32("first rank")?, body.u32("ranks in a row")?);
            let ranks = RankRange { first, count };
            let file = body.u32("source")?;
            sources.push(RankSource { ranks, file });
        }
        all.push(sources.into());
    }
    for _ in 0..body.u32("checkpoints")? {
        let checkpoint = CheckpointId::new(body.u64("incarnation")?, body.u64("number")?);
        let at = body.u32("place of the parts")?;
        let Some(sources) = all.get(index(at)) else {
            return Err(body.refuse("place of the parts", 4, "one that was told", at));
        };
        found.checkpoints.push(ArchivedCheckpoint {
            checkpoint,
            sources: Arc::clone(sources),
        });
    }
    body.end()?;
    Ok(found)
}

impl Session {
    /// Opens the catalog for this start, on rank 0. Collective.
    pub(super) fn prepare_archive(&mut self) -> Result<()> {
        if !self.archive.is_on() {
            return Ok(());
        }
        let mine = if self.comm.rank() == 0 {
            let nodes = archive_nodes(&self.protection);
            let prepared = self
                .archive
                .prepare(&self.config, &self.node, nodes, self.incarnation);
            if prepared.is_ok() {
                self.tell_servers();
            }
            prepared
        } else {
            Ok(())
        };
        vote(&self.comm, "opening the archive", 0, mine)?;
        self.archive.find_what_moved_on(&self.comm, &self.config)?;
        self.last_number = self.last_number.max(self.archive.found().newest_number());
        Ok(())
    }

    /// No other start of the job runs now: staging servers are this one's from now on. Without them the
    /// nodes drain themselves.
    fn tell_servers(&self) {
        let Some(secret) = self.protection.secret() else {
            return;
        };
        if let Err(error) = publish_secret(&self.archive.found().folder, secret) {
            notice::warn(&format!("staging servers cannot take part: {error}"));
        }
    }

    /// A start begins without a restore: nothing is abandoned. Rank 0's affair: the program goes on without
    /// an archive that fails.
    pub(super) fn begin_archive(&mut self) {
        let from = self.policy.complete.last().copied();
        self.archive.give_up_no_more();
        let begun = if self.archive.found().gave_up_catalog {
            let context = "a slot of the catalog cannot be read, and what may stand there is given up only by \
                           restoring the checkpoint that restore_checkpoint names";
            Err(Error::new(ErrorKind::Unreadable, context))
        } else {
            self.archive.begin(self.lineage, from, &mut self.protection)
        };
        if let Err(error) = begun {
            notice::warn(&format!("nothing is drained to the archive: {error}"));
            let kind = u64::try_from(error.kind().code()).unwrap_or(u64::MAX);
            self.node.control.set_archive_outcome(kind);
        }
    }
}
