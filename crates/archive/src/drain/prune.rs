// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: makes an archive smaller while no job runs on it: a plan to be shown, then what it says.
//! In from: `backstay prune`. Out to: the catalog, and files that nothing refers to any more.
//! Invariants: nothing is changed while a job holds the folder's lock, and where there are no locks a job that
//! runs is taken over from, so that it records nothing that went; checkpoints leave the catalog before a file goes or is made
//! smaller.

use super::RunningLock;
use super::thin::{self, Thinned};
use crate::retention::{self, Retention};
use crate::{Catalog, CatalogReader, FileName, Identity, fence};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::{CatalogState, CheckpointId};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to do with an archive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneOptions {
    /// So many of the newest checkpoints stay; without it all that can be restored.
    pub retained: Option<usize>,
    /// What was archived since so long stays, too; and without `retained` the newest one, however old it is.
    pub older: Option<Duration>,
    /// What programs finished with may go like the others; without `retained` the newest one stays.
    pub finished: bool,
    /// Numbers of checkpoints to keep from now on.
    pub keep: Vec<u64>,
    /// Numbers of checkpoints that need not be kept any longer.
    pub release: Vec<u64>,
}

/// A file that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaleFile {
    /// Its name in the folder.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Why.
    pub why: &'static str,
}

/// What would be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrunePlan {
    /// The folder of the job in the archive.
    pub folder: PathBuf,
    /// The job.
    pub job: String,
    /// Its run.
    pub run: u32,
    /// Which checkpoints go and which stay.
    pub retention: Retention,
    /// Of those that stay, which are kept until somebody says otherwise.
    pub kept: Vec<CheckpointId>,
    /// Bytes inside the stores that only what goes refers to.
    pub bytes_reusable: u64,
    /// Files that nothing refers to then.
    pub files: Vec<StaleFile>,
    /// Why fewer files go than could.
    pub notes: Vec<String>,
    options: PruneOptions,
    sequence: u64,
    /// Stores that become smaller.
    thinned: Vec<Thinned>,
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Names of the files that went.
    pub removed: Vec<String>,
    /// Bytes that the file system has back, of files that went and of those that became smaller.
    pub bytes_freed: u64,
    /// Why files were not made smaller.
    pub notes: Vec<String>,
}

impl PrunePlan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let marks = self.options.keep.len() + self.options.release.len();
        let goes = !self.retention.dropped.is_empty() || !self.files.is_empty();
        !goes && self.thinned.is_empty() && marks == 0
    }
}

/// What to do with the archive in `folder`.
pub fn plan(folder: &Path, options: &PruneOptions) -> Result<PrunePlan> {
    let catalog = Catalog::open_reader(folder)?;
    let mut state = catalog.state().clone();
    let marks = options.keep.iter().map(|&number| (number, true));
    for (number, kept) in marks.chain(options.release.iter().map(|&number| (number, false))) {
        mark(&mut state, number, kept)?;
    }
    let newest = match options.retained {
        Some(retained) => retained,
        None if options.older.is_some() || options.finished => 1,
        None => usize::MAX,
    };
    if options.finished {
        state
            .checkpoints
            .iter_mut()
            .for_each(|entry| entry.finished = false);
    }
    let now = backstay_base::clock::unix_ns();
    let retention = retention::plan(&state, newest).only(|id| {
        let archived = state.find(id).map_or(0, |entry| entry.archived_unix_ns);
        let age = Duration::from_nanos(now.saturating_sub(archived));
        options.older.is_none_or(|least| age > least)
    });
    let stays: BTreeSet<CheckpointId> = retention.retained.iter().copied().collect();
    state
        .checkpoints
        .retain(|entry| stays.contains(&entry.checkpoint));
    let kept = state.checkpoints.iter().filter(|entry| entry.kept);
    let mut plan = PrunePlan {
        folder: folder.to_owned(),
        job: catalog.superblock().job.clone(),
        run: catalog.superblock().run,
        kept: kept.map(|entry| entry.checkpoint).collect(),
        retention,
        bytes_reusable: 0,
        files: Vec::new(),
        notes: Vec::new(),
        options: options.clone(),
        sequence: catalog.state().sequence,
        thinned: Vec::new(),
    };
    look_at_stores(&mut plan, &catalog, &state);
    Ok(plan)
}

fn mark(state: &mut CatalogState, number: u64, kept: bool) -> Result<()> {
    let listed: Vec<u64> = state
        .checkpoints
        .iter()
        .map(|entry| entry.checkpoint.number)
        .collect();
    let mut entries = state.checkpoints.iter_mut().rev();
    let Some(entry) = entries.find(|entry| entry.checkpoint.number == number) else {
        let context = format!("the archive has no checkpoint {number}: it has {listed:?}");
        return Err(Error::new(ErrorKind::NotRetained, context));
    };
    entry.kept = kept;
    Ok(())
}

/// Which files and which space nothing refers to when only `state` stays.
fn look_at_stores(plan: &mut PrunePlan, catalog: &CatalogReader, state: &CatalogState) {
    let looked = thin::look(&plan.folder, state);
    (plan.bytes_reusable, plan.thinned) = (looked.bytes, looked.thinned);
    if let Some(error) = &looked.failed {
        let text = format!("no file of a store goes, because one cannot be read: {error}");
        plan.notes.push(text);
    }
    let own = catalog.superblock().epoch;
    for entry in std::fs::read_dir(&plan.folder)
        .into_iter()
        .flatten()
        .flatten()
    {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let why = match FileName::of(&name) {
            Some(FileName::Catalog { epoch }) if epoch < own => "a later catalog took over from it",
            Some(FileName::Store { .. })
                if looked.failed.is_none() && !looked.named.contains(&name) =>
            {
                "no checkpoint that stays refers to it"
            }
            _ => continue,
        };
        plan.files.push(StaleFile {
            bytes: entry.metadata().map_or(0, |metadata| metadata.len()),
            name,
            why,
        });
    }
    plan.files.sort_by(|a, b| a.name.cmp(&b.name));
}

/// Bytes of the files of a folder on the disk.
fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let blocks = entries.map(|entry| entry.metadata().map_or(0, |about| about.blocks()));
    blocks.sum::<u64>() * 512
}

/// Carries `plan` out: the catalog first, then the files.
pub fn carry_out(plan: &PrunePlan) -> Result<Pruned> {
    let lock = RunningLock::take(&plan.folder, &plan.job, false)?;
    let bytes_before = bytes_in(&plan.folder);
    let found = Catalog::open_reader(&plan.folder)?;
    if found.state().sequence != plan.sequence {
        let context = "the archive changed since the plan was made; look at a new plan";
        return Err(Error::new(ErrorKind::StoreBusy, context));
    }
    let identity = Identity {
        job: plan.job.clone(),
        run: plan.run,
        aggregator: 0,
        epoch: 0,
        host: fence::host(),
    };
    let catalog = Catalog::open_or_create(&plan.folder, &identity, found.superblock().slot_bytes)?;
    let (before, state) = (found.state(), catalog.state());
    if (&before.stores, &before.checkpoints) != (&state.stores, &state.checkpoints) {
        let context = "a job wrote the archive meanwhile; look at a new plan";
        return Err(Error::new(ErrorKind::StoreBusy, context));
    }
    for &number in &plan.options.keep {
        catalog.keep(number, true)?;
    }
    for &number in &plan.options.release {
        catalog.keep(number, false)?;
    }
    catalog.drop_checkpoints(&plan.retention.checkpoints())?;
    // From here on a job that runs after all records nothing that needs a file of the plan.
    catalog.is_current()?;
    let mut done = Pruned::default();
    // Files that nothing refers to already: what follows may need their space.
    remove_stale(plan, &catalog, &mut done)?;
    let stays: BTreeSet<CheckpointId> = plan.retention.retained.iter().copied().collect();
    for thinned in &plan.thinned {
        if let Err(error) = thin::make_smaller(&plan.folder, thinned, &stays, &catalog, &identity) {
            let text = format!("{} stays as large as it is: {error}", thinned.name);
            done.notes.push(text);
        }
    }
    match thin::give_back_formers(&plan.folder, &catalog) {
        Ok(notes) => done.notes.extend(notes),
        Err(error) => done
            .notes
            .push(format!("files stay as large as they are: {error}")),
    }
    remove_stale(plan, &catalog, &mut done)?;
    done.bytes_freed = bytes_before.saturating_sub(bytes_in(&plan.folder));
    drop(lock);
    Ok(done)
}

/// Removes the files of the plan to which nothing refers by now.
fn remove_stale(plan: &PrunePlan, catalog: &Catalog, done: &mut Pruned) -> Result<()> {
    let needed = thin::named(&plan.folder, &catalog.state());
    let is_needed = |name: &String| {
        let is_store = FileName::store(name).is_some();
        is_store && needed.as_ref().map_or(true, |needed| needed.contains(name))
    };
    for file in &plan.files {
        if is_needed(&file.name) || done.removed.contains(&file.name) {
            continue;
        }
        let path = plan.folder.join(&file.name);
        match std::fs::remove_file(&path) {
            Ok(()) => done.removed.push(file.name.clone()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let what = format!("removing {}, after the catalog was written", path.display());
                return Err(Error::io(what, error));
            }
        }
    }
    Ok(())
}
