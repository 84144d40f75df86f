// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which other nodes may have stores of a job, by what is here of it; and which jobs here are finished.
//! In: the folders that a removal found; paths of stores. Out: what `backstay rm` and `prune` say and do.
//! Invariants: only what was written down counts: nodes in metrics.json, members of groups, hosts that wrote archive
//! files; what cannot be read names nobody.

use super::remove::{RemovalFolder, RemovalKind, host_of_archive, removal};
use super::{StoreGlance, Stores, glance_stores};
use backstay_base::error::Result;
use backstay_format::Lineage;
use backstay_store::place::node_name;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Nodes of a job that are not those found here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// The job.
    pub job: String,
    /// Those that are named.
    pub nodes: BTreeSet<String>,
    /// How many more there were.
    pub more: u32,
}

/// What is known of one job.
#[derive(Debug, Default)]
struct Known {
    here: BTreeSet<String>,
    named: BTreeSet<String>,
    count: u32,
}

/// The nodes of the jobs of `folders` that are not among them; nothing of jobs without any.
pub fn elsewhere(folders: &[RemovalFolder]) -> Vec<Elsewhere> {
    let mut jobs: BTreeMap<&str, Known> = BTreeMap::new();
    for folder in folders {
        let Some(job) = &folder.job else { continue };
        let known = jobs.entry(job).or_default();
        match folder.kind {
            RemovalKind::Node => known.look_at(folder),
            RemovalKind::Archive => {
                let hosts = folder.files.iter().filter_map(|file| host_of_archive(file));
                known.named.extend(hosts);
            }
        }
    }
    let own = node_name();
    let found = jobs.into_iter().map(|(job, mut known)| {
        known.named.remove(&own);
        let nodes: BTreeSet<String> = known.named.difference(&known.here).cloned().collect();
        let told = u32::try_from(known.here.len() + nodes.len()).unwrap_or(u32::MAX);
        Elsewhere {
            job: job.to_owned(),
            nodes,
            more: known.count.saturating_sub(told),
        }
    });
    found
        .filter(|found| found.more > 0 || !found.nodes.is_empty())
        .collect()
}

impl Known {
    fn look_at(&mut self, folder: &RemovalFolder) {
        self.here.extend(folder.node.clone());
        let folder = std::slice::from_ref(&folder.folder);
        let metrics = glance_stores(folder).0.into_iter();
        for metrics in metrics.filter_map(|store| store.metrics) {
            self.count = self.count.max(metrics.nodes);
            self.named.extend(metrics.node_names);
        }
        let stores = Stores::open(folder);
        let members = stores.groups().iter().flat_map(|group| &group.members);
        self.named.extend(members.map(|member| member.node.clone()));
    }
}

/// The folders of stores at or below `paths` of jobs that are finished, of `job` alone if one is named, whose newest
/// checkpoint is older than `older`, and that no job uses.
pub fn finished_stores(
    paths: &[PathBuf],
    job: Option<&str>,
    older: Option<Duration>,
) -> Result<Vec<RemovalFolder>> {
    let (stores, _) = glance_stores(paths);
    // Of several accounts of a job that of the later start counts.
    let mut lineages: BTreeMap<&str, Lineage> = BTreeMap::new();
    for store in &stores {
        let known = lineages.entry(&store.job).or_default();
        if store.root.lineage.order() >= known.order() {
            *known = store.root.lineage;
        }
    }
    let now = backstay_base::clock::unix_ns();
    let is_old = |store: &StoreGlance| {
        let newest = store.root.revisions.last();
        let committed = newest.map_or(0, |revision| revision.committed_unix_ns);
        let age = Duration::from_nanos(now.saturating_sub(committed));
        older.is_none_or(|least| age > least)
    };
    let goes = |store: &&StoreGlance| {
        let lineage = lineages.get(&*store.job);
        let is_finished = lineage.is_some_and(|lineage| lineage.finished);
        is_finished
            && store.running.is_none()
            && job.is_none_or(|job| job == store.job)
            && is_old(store)
    };
    let above = |store: &StoreGlance| store.path.parent().map(Path::to_owned);
    let mut folders: Vec<PathBuf> = stores.iter().filter(goes).filter_map(above).collect();
    folders.sort();
    folders.dedup();
    removal(&folders, None)
}
