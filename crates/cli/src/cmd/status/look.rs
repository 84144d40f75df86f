// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the status of jobs and archives at one moment, as JSON has it.
//! In: stores' newest roots, what their jobs said and measured, catalogs. Out: one snapshot.
//! Invariants: keys are stable; docs/guide/archive.md lists them; what is not known is null, never 0.

use crate::output::{Failure, meaning, sentence};
use crate::select::Places;
use crate::view::{IdView, UnreadableView, utc};
use backstay::{CheckpointId, ErrorKind};
use backstay_archive::drain::ArchiveStatus;
use backstay_base::clock::unix_ns;
use backstay_inspect::{
    ArchiveGlance, ControlGlance, Safety, StoreGlance, Stores, Unreadable, glance_archives,
    glance_stores, share,
};
use backstay_metrics::Metrics;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A drain's status that is older than this, of a job that runs, is no news.
const STALE_SECONDS: f64 = 30.0;

/// The status of jobs and archives.
#[derive(Debug, Serialize)]
pub(crate) struct Snapshot {
    pub(crate) taken_unix_ns: u64,
    pub(crate) jobs: Vec<JobView>,
    pub(crate) archives: Vec<ArchiveView>,
    unreadable: Vec<UnreadableView>,
    #[serde(skip)]
    errors: Vec<(&'static str, String)>,
}

/// A job, by the stores that are here.
#[derive(Debug, Serialize)]
pub(crate) struct JobView {
    pub(crate) job: String,
    pub(crate) running: bool,
    /// Its program said that it is done, and has not begun anew since.
    pub(crate) finished: bool,
    pub(crate) incarnation: u64,
    pub(crate) stores: Vec<StoreStatus>,
    /// When the newest checkpoint was committed.
    #[serde(skip)]
    pub(crate) committed_unix_ns: Option<u64>,
    /// When checkpoints were committed that some store here has.
    #[serde(skip)]
    pub(crate) commits: BTreeMap<CheckpointId, u64>,
    pub(crate) levels: Levels,
    pub(crate) encoding: Option<IdView>,
    pub(crate) archive: Option<DrainView>,
    #[serde(skip)]
    pub(crate) ids: Ids,
}

/// The newest checkpoint on each level.
#[derive(Debug, Serialize)]
pub(crate) struct Levels {
    node: Option<IdView>,
    protected: Option<IdView>,
    archive: Option<IdView>,
}

/// The same, to be compared.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    pub(crate) node: Option<CheckpointId>,
    pub(crate) protected: Option<CheckpointId>,
    pub(crate) archive: Option<CheckpointId>,
    pub(crate) encoding: Option<CheckpointId>,
    pub(crate) draining: Option<CheckpointId>,
    pub(crate) waiting: Option<CheckpointId>,
    /// What is due in the archive.
    pub(crate) due: Due,
}

/// Which checkpoints are due in the archive.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// Every so many; none where the planner picks them.
    every: Option<u64>,
    /// The newest that is due though no rule says so.
    wanted: Option<CheckpointId>,
}

impl Due {
    fn new(status: &ArchiveStatus, said: &[&ControlGlance]) -> Self {
        let last = status.wanted;
        let last = last.map(|id| CheckpointId::new(id.incarnation, id.number));
        if said.is_empty() {
            return Self {
                every: (status.every > 0).then_some(status.every),
                wanted: last,
            };
        }
        let planned = said.iter().any(|glance| glance.archive_planned);
        Self {
            // A planner that was not asked in this start picks nothing: then every one is due.
            every: (!planned).then_some(status.every.max(1)),
            wanted: said.iter().filter_map(|g| some(g.archive_wanted)).max(),
        }
    }

    /// Due checkpoints, up to the newest on the nodes, that are not in the archive.
    fn behind(&self, node: Option<CheckpointId>, archive: Option<CheckpointId>) -> u64 {
        let Some(node) = node else { return 0 };
        let done = archive.map_or(0, |id| id.number);
        let by_rule = self.every.map_or(0, |every| {
            (node.number / every).saturating_sub(done / every)
        });
        // The first is always due.
        let first = archive.is_none();
        let wanted = self
            .wanted
            .is_some_and(|id| Some(id) > archive && id <= node);
        by_rule.max(u64::from(first || wanted))
    }
}

/// A node's store.
#[derive(Debug, Serialize)]
pub(crate) struct StoreStatus {
    path: String,
    pub(crate) node: String,
    pub(crate) bytes: u64,
    pub(crate) running: bool,
    newest: Option<IdView>,
    #[serde(skip)]
    pub(crate) metrics: Option<Metrics>,
    /// When these were written: a running job does so now and then only.
    #[serde(skip)]
    pub(crate) measured_unix_ns: Option<u64>,
}

/// How draining stands.
#[derive(Debug, Serialize)]
pub(crate) struct DrainView {
    pub(crate) folder: String,
    pub(crate) newest: Option<IdView>,
    pub(crate) draining: Option<IdView>,
    pub(crate) waiting: Option<IdView>,
    pub(crate) draining_seconds: Option<f64>,
    pub(crate) bytes_changed: Option<u64>,
    pub(crate) bytes_encoded: Option<u64>,
    pub(crate) bytes_stored: Option<u64>,
    pub(crate) bytes_per_second: Option<f64>,
    pub(crate) rate_limit_bytes: Option<u64>,
    pub(crate) last_seconds: Option<f64>,
    pub(crate) last_bytes_changed: Option<u64>,
    pub(crate) last_bytes_stored: Option<u64>,
    pub(crate) last_ratio: Option<f64>,
    pub(crate) drains: u64,
    pub(crate) failures: u64,
    /// Every so many checkpoints one is due; none where the planner picks them.
    pub(crate) every: Option<u64>,
    /// Due checkpoints that are not there.
    pub(crate) behind: u64,
    pub(crate) why: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) age_seconds: f64,
    pub(crate) aggregators: Vec<AggregatorView>,
}

/// Who drains.
#[derive(Debug, Serialize)]
pub(crate) struct AggregatorView {
    pub(crate) name: String,
    pub(crate) state: String,
    file: String,
    pub(crate) bytes_changed: u64,
    pub(crate) bytes_encoded: u64,
    pub(crate) bytes_stored: u64,
    error: String,
}

/// An archive, by its catalog.
#[derive(Debug, Serialize)]
pub(crate) struct ArchiveView {
    pub(crate) folder: String,
    pub(crate) job: String,
    pub(crate) incarnation: u64,
    pub(crate) newest: Option<IdView>,
    pub(crate) archived: Option<String>,
    #[serde(skip)]
    pub(crate) archived_unix_ns: Option<u64>,
    pub(crate) checkpoints: usize,
    pub(crate) abandoned: usize,
    pub(crate) bytes_stored: u64,
    written_by: String,
    pub(crate) servers: Vec<ServerView>,
    #[serde(skip)]
    pub(crate) newest_id: Option<CheckpointId>,
}

/// A staging server.
#[derive(Debug, Serialize)]
pub(crate) struct ServerView {
    pub(crate) name: String,
    pub(crate) address: String,
}

impl Snapshot {
    /// Looks at what there is.
    pub(crate) fn take(places: &Places) -> Result<Self, Failure> {
        let found = places.find()?;
        let (mut stores, mut unreadable) = glance_stores(&found.paths);
        // Nobody named these places: that a folder is empty is no news.
        unreadable.retain(|u| found.named || u.error.kind() != ErrorKind::NoCheckpoint);
        let mut archives = Vec::new();
        for found in found.paths.iter().flat_map(|place| glance_archives(place)) {
            match found {
                Ok(archive) => archives.push(ArchiveView::new(&archive)),
                Err(error) => unreadable.push(error),
            }
        }
        if let Some(job) = &found.job {
            stores.retain(|store| store.job == *job);
            archives.retain(|archive| archive.job == *job);
        }
        let mut jobs: BTreeMap<String, Vec<StoreGlance>> = BTreeMap::new();
        for store in stores {
            jobs.entry(store.job.clone()).or_default().push(store);
        }
        let error = |u: &Unreadable| (meaning(&u.error), sentence(&u.error));
        Ok(Self {
            taken_unix_ns: unix_ns(),
            jobs: jobs
                .into_iter()
                .map(|(job, stores)| JobView::new(job, &stores))
                .collect(),
            archives,
            errors: unreadable.iter().map(error).collect(),
            unreadable: unreadable.iter().map(UnreadableView::from).collect(),
        })
    }

    /// An error where there is nothing to show.
    pub(crate) fn refuse_nothing(&self) -> Result<(), Failure> {
        if !self.jobs.is_empty() || !self.archives.is_empty() {
            return Ok(());
        }
        if let Some((kind, text)) = self.errors.first() {
            return Err(Failure::named(kind, text.clone()));
        }
        let message = "there is no store and no archive; give a store file, a folder above it, or an \
                       archive, or --job as the application names it";
        Err(Failure::named("nothing there", message))
    }

    /// What could not be looked at.
    pub(crate) fn unreadable(&self) -> impl Iterator<Item = &str> {
        self.errors.iter().map(|(_, text)| &**text)
    }

    /// Takes rates from what was encoded since `before`.
    pub(crate) fn take_rates(&mut self, before: &Self) {
        #[expect(clippy::cast_precision_loss, reason = "a rate for people to read")]
        let seconds = self.taken_unix_ns.saturating_sub(before.taken_unix_ns) as f64 / 1e9;
        for job in &mut self.jobs {
            let earlier = before.jobs.iter().find(|other| other.job == job.job);
            let Some(earlier) = earlier.filter(|other| other.ids.draining == job.ids.draining)
            else {
                continue;
            };
            let (Some(now), Some(then)) = (&mut job.archive, &earlier.archive) else {
                continue;
            };
            if let (Some(new), Some(old)) = (now.bytes_encoded, then.bytes_encoded)
                && new > old
                && seconds > 0.0
            {
                #[expect(clippy::cast_precision_loss, reason = "a rate for people to read")]
                let bytes = (new - old) as f64;
                now.bytes_per_second = Some(bytes / seconds);
            }
        }
    }
}

/// Checkpoint 0 is none.
fn some(id: CheckpointId) -> Option<CheckpointId> {
    (id != CheckpointId::default()).then_some(id)
}

/// The newest checkpoint that is protected, of a job that does not run and says so itself: by the stripe
/// logs beside its stores, as `backstay ls` has it.
fn protected_at_rest(stores: &[StoreGlance]) -> Option<CheckpointId> {
    let paths: Vec<PathBuf> = stores.iter().map(|store| store.path.clone()).collect();
    let opened = Stores::open(&paths);
    let checkpoints = opened.checkpoints().into_iter();
    let safe = checkpoints.filter(|c| opened.protection(c).safety == Safety::Protected);
    safe.map(|checkpoint| checkpoint.id).max()
}

impl JobView {
    /// In a word or two.
    pub(crate) fn state(&self) -> &'static str {
        match (self.running, self.finished) {
            (true, _) => "running",
            (false, true) => "finished",
            (false, false) => "not running",
        }
    }

    fn new(job: String, stores: &[StoreGlance]) -> Self {
        let said = || stores.iter().filter_map(|store| store.running.as_ref());
        let running = said().next().is_some();
        let retained = |store: &StoreGlance| -> BTreeSet<CheckpointId> {
            let revisions = store.root.revisions.iter();
            revisions.map(|revision| revision.checkpoint).collect()
        };
        // What all stores here have: one of them may have committed one more just now.
        let common = stores
            .iter()
            .map(retained)
            .reduce(|a, b| a.intersection(&b).copied().collect());
        let node = common.and_then(|common| common.last().copied());
        let status = stores.iter().filter_map(|store| store.archive.as_ref());
        let status = status.max_by_key(|status| status.written_unix_ns);
        let told = status.and_then(|status| status.newest);
        let told = told.map(|id| CheckpointId::new(id.incarnation, id.number));
        let protected = if running {
            said().filter_map(|glance| some(glance.protected)).max()
        } else {
            protected_at_rest(stores)
        };
        let encodes = |glance: &&ControlGlance| glance.encoding > glance.protected_in_group;
        let encoding = said()
            .filter(encodes)
            .filter_map(|glance| some(glance.encoding));
        let encoding = encoding.max();
        let id = |id: backstay_archive::drain::StatusCheckpoint| {
            CheckpointId::new(id.incarnation, id.number)
        };
        let ids = Ids {
            node,
            protected,
            archive: said()
                .filter_map(|glance| some(glance.archived))
                .max()
                .max(told),
            encoding: encoding.filter(|id| running && Some(*id) > protected),
            draining: status
                .and_then(|status| status.draining)
                .filter(|_| running)
                .map(id),
            waiting: status
                .and_then(|status| status.next)
                .filter(|_| running)
                .map(id),
            due: status.map_or_else(Due::default, |status| {
                Due::new(status, &said().collect::<Vec<_>>())
            }),
        };
        Self {
            job,
            running,
            finished: is_finished(stores),
            incarnation: stores
                .iter()
                .map(|store| store.root.incarnation)
                .max()
                .unwrap_or(0),
            stores: stores.iter().map(StoreStatus::from).collect(),
            committed_unix_ns: committed(stores, node),
            commits: commits(stores),
            levels: Levels {
                node: ids.node.map(IdView::from),
                protected: ids.protected.map(IdView::from),
                archive: ids.archive.map(IdView::from),
            },
            encoding: ids.encoding.map(IdView::from),
            archive: status.map(|status| DrainView::new(status, running, &ids)),
            ids,
        }
    }
}

/// Whether the job is finished, by its stores: of several accounts that of the later start counts.
fn is_finished(stores: &[StoreGlance]) -> bool {
    let lineages = stores.iter().map(|store| &store.root.lineage);
    let newest = lineages.max_by_key(|lineage| lineage.order());
    newest.is_some_and(|lineage| lineage.finished)
}

/// When `metrics.json` beside a store was written.
fn written(store: &Path) -> Option<u64> {
    let beside = |store: &Path| std::fs::metadata(store.parent()?.join("metrics.json")).ok();
    let file = beside(store).or_else(|| beside(&std::fs::canonicalize(store).ok()?))?;
    let since = file.modified().ok()?.duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.ok()?.as_nanos()).ok()
}

/// When a checkpoint was committed, on the last node.
fn committed(stores: &[StoreGlance], checkpoint: Option<CheckpointId>) -> Option<u64> {
    let revisions = stores.iter().flat_map(|store| store.root.revisions.iter());
    let of_it = revisions.filter(|revision| Some(revision.checkpoint) == checkpoint);
    of_it.map(|revision| revision.committed_unix_ns).max()
}

/// When each checkpoint that a store here has was committed, on the last node.
fn commits(stores: &[StoreGlance]) -> BTreeMap<CheckpointId, u64> {
    let mut commits: BTreeMap<CheckpointId, u64> = BTreeMap::new();
    for revision in stores.iter().flat_map(|store| &store.root.revisions) {
        let known = commits.entry(revision.checkpoint).or_default();
        *known = revision.committed_unix_ns.max(*known);
    }
    commits
}

impl From<&StoreGlance> for StoreStatus {
    fn from(store: &StoreGlance) -> Self {
        Self {
            path: store.path.display().to_string(),
            node: store.node.clone(),
            bytes: store.bytes,
            running: store.running.is_some(),
            newest: store.newest().map(IdView::from),
            metrics: store.metrics.clone(),
            measured_unix_ns: written(&store.path),
        }
    }
}

impl DrainView {
    fn new(status: &ArchiveStatus, running: bool, ids: &Ids) -> Self {
        let at_work = ids.draining.is_some();
        let sum = |what: fn(&backstay_archive::drain::AggregatorStatus) -> u64| {
            at_work.then(|| status.aggregators.iter().map(what).sum::<u64>())
        };
        let last = |bytes: u64| (status.drains > 0).then_some(bytes);
        let bytes_encoded = sum(|a| a.bytes_encoded);
        #[expect(clippy::cast_precision_loss, reason = "a rate for people to read")]
        let rate = |bytes: u64| {
            (status.draining_seconds > 0.0).then(|| bytes as f64 / status.draining_seconds)
        };
        #[expect(clippy::cast_precision_loss, reason = "an age for people to read")]
        let age_seconds = unix_ns().saturating_sub(status.written_unix_ns) as f64 / 1e9;
        let aggregators = status.aggregators.iter().map(|a| AggregatorView {
            name: a.name.clone(),
            state: a.state.clone(),
            file: a.file.clone(),
            bytes_changed: a.bytes_changed,
            bytes_encoded: a.bytes_encoded,
            bytes_stored: a.bytes_stored,
            error: a.error.clone(),
        });
        let mut view = Self {
            folder: status.folder.display().to_string(),
            newest: ids.archive.map(IdView::from),
            draining: ids.draining.map(IdView::from),
            waiting: ids.waiting.map(IdView::from),
            draining_seconds: at_work.then_some(status.draining_seconds),
            bytes_changed: sum(|a| a.bytes_changed),
            bytes_encoded,
            bytes_stored: sum(|a| a.bytes_stored),
            bytes_per_second: bytes_encoded.and_then(rate),
            rate_limit_bytes: status.rate_bytes,
            last_seconds: (status.drains > 0).then_some(status.last_seconds),
            last_bytes_changed: last(status.last_bytes_changed),
            last_bytes_stored: last(status.last_bytes_stored),
            last_ratio: (status.last_bytes_stored > 0)
                .then(|| share(status.last_bytes_changed, status.last_bytes_stored)),
            drains: status.drains,
            failures: status.failures,
            every: ids.due.every,
            behind: ids.due.behind(ids.node, ids.archive),
            why: None,
            error: status.error.clone(),
            age_seconds,
            aggregators: aggregators.collect(),
        };
        view.why = view.reason(running);
        view
    }

    /// Why the archive lacks what the nodes have.
    fn reason(&self, running: bool) -> Option<String> {
        if self.behind == 0 {
            return None;
        }
        if !running {
            return Some("the job does not run; its next start resumes it".to_owned());
        }
        if let Some(error) = &self.error {
            return Some(format!("the last drain failed and is tried again: {error}"));
        }
        if self.draining.is_some() {
            let limit = self.rate_limit_bytes.map_or_else(String::new, |rate| {
                let rate = crate::output::human_bytes(rate);
                format!("; `archive_rate_bytes` limits it to {rate}/s")
            });
            return Some(format!("a drain is under way{limit}"));
        }
        if self.age_seconds > STALE_SECONDS {
            return Some(format!(
                "the job has said nothing of its archive for {:.0} s",
                self.age_seconds
            ));
        }
        Some("the drain is about to begin".to_owned())
    }
}

impl ArchiveView {
    fn new(archive: &ArchiveGlance) -> Self {
        let (superblock, state) = (archive.catalog.superblock(), archive.catalog.state());
        let newest = state.restorable().max_by_key(|entry| entry.checkpoint);
        let servers = archive.servers.iter().map(|(name, address)| ServerView {
            name: name.clone(),
            address: address.clone(),
        });
        Self {
            folder: archive.folder.display().to_string(),
            job: superblock.job.clone(),
            incarnation: state.incarnation,
            newest: newest.map(|entry| entry.checkpoint.into()),
            archived: newest.map(|entry| utc(entry.archived_unix_ns)),
            archived_unix_ns: newest.map(|entry| entry.archived_unix_ns),
            checkpoints: state.checkpoints.len(),
            abandoned: state.checkpoints.len() - state.restorable().count(),
            bytes_stored: state
                .checkpoints
                .iter()
                .map(|entry| entry.bytes_written)
                .sum(),
            written_by: superblock.host.clone(),
            servers: servers.collect(),
            newest_id: newest.map(|entry| entry.checkpoint),
        }
    }
}

/// A job in the middle of a drain, and its archive, for tests of how they are shown.
#[cfg(test)]
pub(super) fn sample() -> Snapshot {
    const SECOND: u64 = 1_000_000_000;
    let now = 1_764_000_000 * SECOND;
    let id = |number| CheckpointId::new(2, number);
    let mut metrics = Metrics {
        ranks: 128,
        nodes: 4,
        checkpoints: 40,
        checkpoints_failed: 1,
        changed_share: 0.31,
        ..Metrics::default()
    };
    metrics.checkpoint.blocking_seconds.count = 40;
    metrics.checkpoint.blocking_seconds.p50 = 0.0023;
    let store = StoreStatus {
        path: "/dev/shm/backstay-1000/heat/n0/store.backstay".to_owned(),
        node: "n0".to_owned(),
        bytes: 33 << 20,
        running: true,
        newest: Some(id(42).into()),
        metrics: Some(metrics),
        measured_unix_ns: Some(now - 19 * SECOND),
    };
    let ids = Ids {
        node: Some(id(42)),
        protected: Some(id(41)),
        archive: Some(id(38)),
        encoding: Some(id(42)),
        draining: Some(id(41)),
        waiting: None,
        due: Due {
            every: Some(1),
            wanted: None,
        },
    };
    let mut status = ArchiveStatus::default();
    status.folder = PathBuf::from("/pfs/project/checkpoints/heat");
    (status.draining_seconds, status.drains, status.last_seconds) = (12.0, 9, 31.4);
    (status.last_bytes_changed, status.last_bytes_stored) = (9 << 30, 5 << 30);
    (status.rate_bytes, status.written_unix_ns) = (Some(1 << 30), unix_ns());
    let mut archive = DrainView::new(&status, true, &ids);
    archive.bytes_changed = Some(10 << 30);
    archive.bytes_encoded = Some(43 << 27);
    archive.bytes_per_second = Some(4.5e8);
    let commits = [(38, 250), (41, 30), (42, 3)];
    Snapshot {
        taken_unix_ns: now,
        jobs: vec![JobView {
            job: "heat".to_owned(),
            running: true,
            finished: false,
            incarnation: 2,
            stores: vec![store],
            committed_unix_ns: Some(now - 3 * SECOND),
            commits: commits
                .into_iter()
                .map(|(number, age)| (id(number), now - age * SECOND))
                .collect(),
            levels: Levels {
                node: ids.node.map(IdView::from),
                protected: ids.protected.map(IdView::from),
                archive: ids.archive.map(IdView::from),
            },
            encoding: ids.encoding.map(IdView::from),
            archive: Some(archive),
            ids,
        }],
        archives: Vec::new(),
        unreadable: Vec::new(),
        errors: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_due_counts_as_behind() {
        let id = |number| (number > 0).then(|| CheckpointId::new(1, number));
        let behind = |every: u64, wanted, node, archive| {
            let due = Due {
                every: (every > 0).then_some(every),
                wanted: id(wanted),
            };
            due.behind(id(node), id(archive))
        };
        assert_eq!(behind(1, 0, 7, 5), 2);
        for (node, due) in [(8, 0), (9, 1), (12, 2), (14, 2)] {
            assert_eq!(behind(3, 0, node, 6), due, "{node}");
        }
        assert_eq!(behind(3, 8, 8, 6), 1, "waited for");
        assert_eq!(behind(3, 0, 1, 0), 1, "the first");
        for (wanted, due) in [(0, 0), (6, 0), (8, 1), (10, 0)] {
            assert_eq!(behind(0, wanted, 9, 6), due, "picked {wanted}");
        }
        assert_eq!(behind(1, 0, 0, 0), 0);
    }
}
