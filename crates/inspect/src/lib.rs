// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: looks into the stores of one or several nodes: which checkpoints, what is in them, what
//! changed, whether every byte is good, and a variable put together from all ranks.
//! In: paths. Out: what the command line and tools show. It composes the stages as `session` does.
//! Invariants: but for `verify --repair` and `remove` it takes no lock and writes nothing; a job may commit and recycle space meanwhile, so
//! what does not match its digest is damage only if the root, read again, still retains it.

mod archive;
mod array;
mod compare;
mod diff;
mod elsewhere;
mod files;
mod find;
mod glance;
mod open;
mod protection;
mod remove;
mod stored;
mod stripes;
mod variables;
mod verify;

use archive::ArchivedPart;
pub use archive::{Archive, ArchiveGlance, Archived, glance_archives};
pub use array::Array;
pub use backstay_hdf5::{Dataset, Format, Structure};
pub use backstay_store::control::ControlGlance;
pub use compare::{BINS, Differences};
pub use diff::{ArrayDiff, Outcome, Unit, shares};
pub use elsewhere::{Elsewhere, elsewhere, finished_stores};
pub use files::file_name;
pub use find::{DEPTH_MAX, default_places};
pub use glance::{StoreGlance, glance_stores};
pub use open::{OpenStore, Retained, RootState};
pub use protection::{Group, GroupMember, GroupUse, Protection, Safety};
pub use remove::{RemovalFolder, RemovalKind, Removed, removal, remove};
pub use stored::{StoredAs, StoredCodec};
pub use stripes::{Repair, Repaired, StoreLocks, StripeDamage, VerifiedStripes};
pub use variables::{Changed, StoredPart, StoredVariable};
pub use verify::{Finding, VerifiedArchive, VerifiedStore};

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::index;
use backstay_format::{BlockRef, CheckpointId, Lineage};
use backstay_store::revision::{ReadPart, read_part};
use find::Found;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the state of the stores is taken again when a job commits meanwhile.
const TRIES: u64 = 20;

/// Stores of one or several nodes, as their roots were when they were opened.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "stores are what it holds")]
pub struct Stores {
    stores: Vec<OpenStore>,
    archives: Vec<Archive>,
    unreadable: Vec<Unreadable>,
    groups: Vec<Group>,
    group_of: Vec<Option<usize>>,
}

/// A path that gave no store.
#[derive(Debug)]
pub struct Unreadable {
    /// The path asked for, or the store file found below it.
    pub path: PathBuf,
    /// What is wrong with it.
    pub error: Error,
}

/// A checkpoint as the opened stores have it together.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The job.
    pub job: String,
    /// Which one.
    pub id: CheckpointId,
    /// Ranks of the job that took it.
    pub world_size: u32,
    /// When the last of these stores committed it, in nanoseconds since 1970.
    pub committed_unix_ns: u64,
    /// Bytes of all variables in these stores.
    pub bytes_total: u64,
    /// Bytes of the blocks that it wrote anew.
    pub bytes_changed: u64,
    /// Kept until it is unpinned.
    pub pinned: bool,
    /// A store says that every rank committed it.
    pub known_complete: bool,
    /// The stores that retain it, as indices into [`Stores::stores`].
    pub stores: Vec<usize>,
    /// Its ranks: which store has each, and where its part is.
    pub ranks: BTreeMap<u32, (usize, BlockRef)>,
    /// What is wrong with a table of ranks, by store.
    pub damaged: Vec<(usize, String)>,
    /// What the catalog says of it, if it is one of an archive.
    pub archived: Option<Archived>,
}

impl Checkpoint {
    fn empty(job: &str, id: CheckpointId, world_size: u32) -> Self {
        Self {
            job: job.to_owned(),
            id,
            world_size,
            committed_unix_ns: 0,
            bytes_total: 0,
            bytes_changed: 0,
            pinned: false,
            known_complete: false,
            stores: Vec::new(),
            ranks: BTreeMap::new(),
            damaged: Vec::new(),
            archived: None,
        }
    }

    /// Whether every rank of the job is in these stores, and, of one in an archive, its catalog lists it.
    pub fn is_complete(&self) -> bool {
        let listed = self
            .archived
            .as_ref()
            .is_none_or(|archived| archived.listed);
        listed && self.ranks.len() == index(self.world_size)
    }

    /// Whether a later start of the job went on from an older one.
    pub fn is_abandoned(&self) -> bool {
        self.archived
            .as_ref()
            .is_some_and(|archived| archived.abandoned)
    }

    /// Bytes written anew over bytes of all variables.
    pub fn changed_share(&self) -> f64 {
        share(self.bytes_changed, self.bytes_total)
    }

    /// The first few ranks that these stores do not have.
    pub fn missing_ranks(&self, most: usize) -> Vec<u32> {
        let missing = (0..self.world_size).filter(|rank| !self.ranks.contains_key(rank));
        missing.take(most).collect()
    }
}

/// `part` over `whole`; 0 of nothing is 0.
pub fn share(part: u64, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a share for people to read")]
    let (part, whole) = (part as f64, whole as f64);
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A checkpoint as a user names it: a number, and perhaps which start's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Its number.
    pub number: u64,
    /// The start that took it; any, if not said.
    pub incarnation: Option<u64>,
}

impl Wanted {
    /// Whether `id` is meant.
    pub fn matches(&self, id: CheckpointId) -> bool {
        id.number == self.number && self.incarnation.is_none_or(|which| which == id.incarnation)
    }
}

impl Stores {
    /// Opens every store and every archive at or below `paths`; what cannot be opened is listed in
    /// [`Stores::unreadable`].
    pub fn open(paths: &[PathBuf]) -> Self {
        let mut opened = Self {
            stores: Vec::new(),
            archives: Vec::new(),
            unreadable: Vec::new(),
            groups: Vec::new(),
            group_of: Vec::new(),
        };
        let mut places = Vec::new();
        for path in paths {
            match find::find(path) {
                Ok(found) => places.extend(found),
                Err(error) => opened.unreadable.push(Unreadable {
                    path: path.clone(),
                    error,
                }),
            }
        }
        let mut seen = BTreeSet::new();
        places.retain(|place| seen.insert(find::identity(place.path())));
        for place in places {
            match place {
                Found::Store(path) => match OpenStore::open(&path) {
                    Ok(store) => opened.stores.push(store),
                    Err(error) => opened.unreadable.push(Unreadable { path, error }),
                },
                Found::Archive(folder) => opened.open_archive(folder, None),
                Found::ArchiveStore(path) => {
                    let name = path
                        .file_name()
                        .map(|name| name.to_string_lossy().into_owned());
                    let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
                    opened.open_archive(folder, name);
                }
            }
        }
        opened.load();
        opened.settle_archives();
        (opened.groups, opened.group_of) = protection::form_groups(&mut opened.stores);
        opened
    }

    /// Takes the state of all stores, again when commits came between: tables recycled before they
    /// were read, or nodes seen so far apart that they have no checkpoint in common.
    fn load(&mut self) {
        for attempt in 0..TRIES {
            // Logs before roots: what they protect is then never newer than what is retained.
            self.stores.iter_mut().for_each(OpenStore::take_log);
            // All roots in quick succession, so that they show one moment as nearly as can be.
            self.keep_good(OpenStore::take_root);
            let mut sound = true;
            self.keep_good(|store| store.read_tables().map(|read| sound &= read));
            let changed = self.catalogs_changed();
            if (sound && !changed && self.each_job_is_whole())
                || !(changed || self.stores.iter().any(OpenStore::moved_on))
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(attempt));
        }
        // Commits come faster than this can look.
        self.keep_good(OpenStore::leave_out_gone);
    }

    fn keep_good(&mut self, mut step: impl FnMut(&mut OpenStore) -> Result<()>) {
        let unreadable = &mut self.unreadable;
        self.stores.retain_mut(|store| match step(store) {
            Ok(()) => true,
            Err(error) => {
                let path = store.path().to_owned();
                unreadable.push(Unreadable { path, error });
                false
            }
        });
    }

    fn each_job_is_whole(&self) -> bool {
        let all = self.checkpoints();
        let mut jobs: BTreeMap<&str, bool> = BTreeMap::new();
        for checkpoint in &all {
            *jobs.entry(&checkpoint.job).or_default() |= checkpoint.is_complete();
        }
        jobs.values().all(|&whole| whole)
    }

    /// The stores that could be opened.
    pub fn stores(&self) -> &[OpenStore] {
        &self.stores
    }

    /// Which starts of a job go on from one another, as its newest account says.
    pub fn lineage(&self, job: &str) -> Lineage {
        let is_node = |store: &&OpenStore| store.job() == job && store.archive().is_none();
        let of_nodes = self.stores.iter().filter(is_node);
        let of_nodes = of_nodes.map(|store| store.root().lineage);
        let is_of_job = |archive: &&Archive| {
            let catalog = archive.catalog();
            catalog.is_some_and(|catalog| catalog.superblock().job == job)
        };
        let archives = self.archives().iter().filter(is_of_job);
        let of_archives = archives.filter_map(|archive| Some(archive.state()?.lineage));
        let all = of_nodes.chain(of_archives);
        all.max_by_key(Lineage::order).unwrap_or_default()
    }

    /// What could not be opened.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }

    /// Leaves out of [`Stores::unreadable`] where there is no store yet, for places that nobody named.
    pub fn forget_empty_folders(&mut self) {
        let is_wrong = |path: &Unreadable| path.error.kind() != ErrorKind::NoCheckpoint;
        self.unreadable.retain(is_wrong);
    }

    /// The jobs they belong to, sorted.
    pub fn jobs(&self) -> Vec<&str> {
        let jobs: BTreeSet<&str> = self.stores.iter().map(OpenStore::job).collect();
        jobs.into_iter().collect()
    }

    /// All checkpoints, merged over the stores: by job, then oldest first.
    pub fn checkpoints(&self) -> Vec<Checkpoint> {
        // Stores that disagree about the number of ranks are not of one run.
        let mut merged: BTreeMap<(String, CheckpointId, u32, bool), Checkpoint> = BTreeMap::new();
        for (number, store) in self.stores.iter().enumerate() {
            for retained in store.retained() {
                let entry = &retained.entry;
                let archived = match self.archived(store, entry.checkpoint) {
                    ArchivedPart::NoArchive => None,
                    ArchivedPart::Counts(archived) => Some(*archived),
                    ArchivedPart::Superseded => continue,
                };
                let job = store.job().to_owned();
                // What nodes have comes behind what the archive has: it is nearer.
                let key = (job, entry.checkpoint, entry.world_size, archived.is_none());
                let new = || Checkpoint::empty(store.job(), entry.checkpoint, entry.world_size);
                let found = merged.entry(key).or_insert_with(new);
                found.archived = found.archived.take().or(archived);
                found.add(number, retained);
            }
        }
        let mut merged = merged.into_values().collect();
        self.add_listed(&mut merged);
        merged
    }

    /// One rank's part of a checkpoint, its tables read and checked, and which store has it.
    pub fn part(&self, checkpoint: &Checkpoint, rank: u32) -> Result<(usize, ReadPart)> {
        let Some((store, entry)) = checkpoint.ranks.get(&rank) else {
            let context = format!(
                "rank {rank} of checkpoint {} is in none of these stores; they have {:?}; give the \
                 stores of the other nodes as well",
                checkpoint.id,
                checkpoint.ranks.keys().take(16).collect::<Vec<_>>()
            );
            return Err(Error::new(ErrorKind::NotRetained, context));
        };
        let read = read_part(self.stores[*store].reader(), entry);
        let part = read.map_err(|error| self.judge(*store, checkpoint.id, error))?;
        Ok((*store, part))
    }

    /// What an error met while reading `id` means: damage, or that the job recycled it meanwhile.
    fn judge(&self, store: usize, id: CheckpointId, error: Error) -> Error {
        self.stores[store].judge(id, error)
    }

    /// The checkpoint before `checkpoint` whose part of `rank` is retained.
    fn before<'a>(
        all: &'a [Checkpoint],
        checkpoint: &Checkpoint,
        rank: u32,
    ) -> Option<&'a Checkpoint> {
        let is_before = |other: &&Checkpoint| {
            other.job == checkpoint.job
                && other.archived.is_some() == checkpoint.archived.is_some()
                && !other.is_abandoned()
                && other.id < checkpoint.id
                && other.ranks.contains_key(&rank)
        };
        all.iter().rfind(is_before)
    }

    /// The path of a store by its index.
    pub fn path(&self, store: usize) -> &Path {
        self.stores[store].path()
    }
}

impl Checkpoint {
    fn add(&mut self, store: usize, retained: &Retained) {
        let entry = &retained.entry;
        let newer = entry.committed_unix_ns > self.committed_unix_ns;
        self.committed_unix_ns = self.committed_unix_ns.max(entry.committed_unix_ns);
        self.pinned |= entry.pinned;
        self.known_complete |= entry.complete;
        self.stores.push(store);
        match &retained.ranks {
            Err(error) => self.damaged.push((store, error.to_string())),
            Ok(ranks) => {
                let known = ranks.iter().all(|rank| self.ranks.contains_key(&rank.rank));
                if !known || ranks.is_empty() {
                    self.bytes_total += entry.bytes_total;
                    self.bytes_changed += entry.bytes_changed;
                }
                for rank in ranks {
                    // Of two copies of a node's store the one committed last is taken.
                    if newer || !self.ranks.contains_key(&rank.rank) {
                        self.ranks.insert(rank.rank, (store, rank.root));
                    }
                }
            }
        }
    }
}

/// Bytes that verifying `stores` will read, roughly.
pub fn bytes_to_verify(stores: &Stores, wanted: Option<Wanted>) -> u64 {
    let of = |store: &OpenStore| {
        if let (None, Some(bytes)) = (wanted, store.bytes_decoded()) {
            return bytes;
        }
        let entries = store.retained().iter().map(|retained| retained.entry);
        let chosen = entries.filter(|e| wanted.is_none_or(|wanted| wanted.matches(e.checkpoint)));
        let mut sum = 0;
        for (number, entry) in chosen.enumerate() {
            sum += if number == 0 {
                entry.bytes_total
            } else {
                entry.bytes_changed
            };
        }
        sum
    };
    let stripes = if wanted.is_none() {
        stores.stripe_bytes()
    } else {
        0
    };
    (stores.stores.iter().map(of).sum::<u64>() + stripes).max(1)
}
