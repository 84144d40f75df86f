// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: stores made smaller by what no checkpoint that stays needs, on any host, while no job runs.
//! In from: `prune`. Out to: stores, the catalog, files that others go on from.
//! Invariants: a store is written on the host that made it only, once its former process is proven dead; elsewhere a
//! new file goes on from it, as in a later start, and the catalog names that one before anything of the former goes.
//! Of a former file only what no listed store refers to goes, and only while nobody goes on from the catalog that
//! lists them.

use super::fetch::{open_device, open_store};
use super::open::{epoch_of, make_next};
use crate::fence::Fence;
use crate::former;
use crate::{
    ArchiveDevice, ArchiveStore, Catalog, Commit, FileName, Folder, Identity, WriteOptions, fence,
};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::index;
use backstay_format::{
    BlockRef, CatalogState, CheckpointId, RevisionEntry, SegmentId, StoreId, TableEntry,
};
use backstay_store::recover::walk_part;
use backstay_store::revision::read_ranks;
use backstay_store::tree::walk;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A store that becomes smaller, or files that it goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Thinned {
    /// Its file.
    pub(super) name: String,
    store: StoreId,
    /// Of the root that was looked at.
    sequence: u64,
    /// Segments that go.
    free: Vec<SegmentId>,
    /// Earlier stores of the aggregator, whose checkpoints it has.
    follows: Vec<StoreId>,
    /// Whether another file may go on from it: it is the aggregator's newest.
    is_newest: bool,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) thinned: Vec<Thinned>,
    /// Bytes that are free then.
    pub(super) bytes: u64,
    /// Files that are needed.
    pub(super) named: BTreeSet<String>,
    /// Why a store could not be looked at.
    pub(super) failed: Option<Error>,
    /// What is needed of each file: offset and bytes.
    used: BTreeMap<String, Vec<(u64, u64)>>,
}

/// The files that the stores of `state` are and refer to.
pub(super) fn named(folder: &Path, state: &CatalogState) -> Result<BTreeSet<String>> {
    let mut named = BTreeSet::new();
    for store in &state.stores {
        named.insert(store.name.clone());
        let root = open_device(folder, &store.name)?.root();
        named.extend(root.files.iter().map(|file| file.name.clone()));
    }
    Ok(named)
}

/// What becomes smaller in `folder` when only `state` stays.
pub(super) fn look(folder: &Path, state: &CatalogState) -> Looked {
    let mut looked = Looked::default();
    for (_, mut stores) in by_aggregator(state) {
        let Some(newest) = stores.pop() else { continue };
        if let Err(error) = look_at(folder, state, (newest, &stores), &mut looked) {
            let name = |at: usize| state.stores[at].name.clone();
            looked.named.insert(name(newest));
            looked.named.extend(stores.iter().map(|&at| name(at)));
            looked.failed.get_or_insert(error);
        }
    }
    looked
}

/// The stores that checkpoints name, as places in the list: of each aggregator, the newest last.
fn by_aggregator(state: &CatalogState) -> BTreeMap<u32, Vec<usize>> {
    let parts = state.checkpoints.iter().flat_map(|entry| &entry.parts);
    let used: BTreeSet<usize> = parts.map(|part| index(part.store)).collect();
    let mut all: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for at in used.into_iter().filter(|&at| at < state.stores.len()) {
        let (aggregator, _) = FileName::store(&state.stores[at].name).unwrap_or_default();
        all.entry(aggregator).or_default().push(at);
    }
    for stores in all.values_mut() {
        stores.sort_by_key(|&at| epoch_of(&state.stores[at].name));
    }
    all
}

/// Looks at the stores of one aggregator.
fn look_at(
    folder: &Path,
    state: &CatalogState,
    (newest, others): (usize, &[usize]),
    looked: &mut Looked,
) -> Result<()> {
    let stays: BTreeSet<CheckpointId> = state.checkpoints.iter().map(|e| e.checkpoint).collect();
    let (device, mut thinned) = thinned(folder, &state.stores[newest].name, &stays)?;
    let had: BTreeSet<CheckpointId> = device
        .root()
        .revisions
        .iter()
        .map(|r| r.checkpoint)
        .collect();
    let mut former: BTreeSet<String> = note_used(&device, &thinned, looked);
    for &at in others {
        let is_part = |part: &backstay_format::CatalogPart| index(part.store) == at;
        let entries = state.checkpoints.iter();
        let mut of_it = entries.filter(|entry| entry.parts.iter().any(is_part));
        let store = &state.stores[at];
        if of_it.all(|entry| had.contains(&entry.checkpoint)) {
            thinned.follows.push(store.store);
            former.insert(store.name.clone());
            continue;
        }
        // It was not gone on from: it is made smaller where it may be written.
        let (device, mut alone) = self::thinned(folder, &store.name, &stays)?;
        note_used(&device, &alone, looked);
        alone.is_newest = false;
        if !alone.free.is_empty() && device.superblock().host == fence::host() {
            looked.bytes += own_bytes(&device, &alone);
            looked.thinned.push(alone);
        }
    }
    let mut bytes = 0;
    for name in former {
        let used = looked.used.get(&name).cloned().unwrap_or_default();
        if used.is_empty() {
            continue;
        }
        bytes += former::idle_bytes(&place(folder), &name, used)?;
        looked.named.insert(name);
    }
    if !thinned.free.is_empty() || bytes > 0 {
        looked.bytes += bytes + own_bytes(&device, &thinned);
        looked.thinned.push(thinned);
    }
    Ok(())
}

/// The store `name`, and what of it goes.
fn thinned(
    folder: &Path,
    name: &str,
    stays: &BTreeSet<CheckpointId>,
) -> Result<(std::sync::Arc<ArchiveDevice>, Thinned)> {
    let device = open_device(folder, name)?;
    let thinned = Thinned {
        name: name.to_owned(),
        store: device.superblock().store,
        sequence: device.root().sequence,
        free: dead(folder, name, &device, stays)?,
        follows: Vec::new(),
        is_newest: true,
    };
    Ok((device, thinned))
}

/// Takes note of what stays of each file that `device` refers to; the files that are not its own.
fn note_used(device: &ArchiveDevice, thinned: &Thinned, looked: &mut Looked) -> BTreeSet<String> {
    let goes: BTreeSet<SegmentId> = thinned.free.iter().copied().collect();
    let root = device.root();
    let entries = device.entries().into_iter();
    for entry in entries.filter(|entry| !goes.contains(&entry.segment)) {
        let before = usize::from(entry.file).checked_sub(1);
        let file = before.and_then(|at| root.files.get(at));
        let name = file.map_or(&thinned.name, |file| &file.name);
        let used = looked.used.entry(name.clone()).or_default();
        used.push((entry.offset, entry.extent_bytes()));
    }
    looked.named.insert(thinned.name.clone());
    root.files.iter().map(|file| file.name.clone()).collect()
}

/// Bytes of its own file that go.
fn own_bytes(device: &ArchiveDevice, thinned: &Thinned) -> u64 {
    let entries = thinned.free.iter().filter_map(|&id| device.entry(id));
    let own = entries.filter(|entry| entry.file == 0);
    own.map(|entry| entry.extent_bytes()).sum()
}

/// Segments of a store that no checkpoint which stays needs.
fn dead(
    folder: &Path,
    name: &str,
    device: &ArchiveDevice,
    stays: &BTreeSet<CheckpointId>,
) -> Result<Vec<SegmentId>> {
    let reader = open_store(folder, name)?;
    let mut needed: BTreeSet<SegmentId> = BTreeSet::new();
    let mut failed = None;
    let (root, _) = reader.newest_root()?;
    let kept = root.revisions.iter();
    for revision in kept.filter(|revision| stays.contains(&revision.checkpoint)) {
        let mut note = |block: &BlockRef, _: usize| {
            needed.insert(block.address.segment());
        };
        walk(
            &reader,
            &revision.ranks,
            &mut |_, block, length| note(block, length),
            &mut |_, _, error| {
                failed.get_or_insert(error);
            },
        );
        for rank in read_ranks(&reader, revision)? {
            walk_part(&reader, &rank.root, &mut note, &mut |_, error| {
                failed.get_or_insert(error);
            });
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    let entries = device.entries();
    let mut bases = BTreeSet::new();
    for entry in entries
        .iter()
        .filter(|e| e.delta && needed.contains(&e.segment))
    {
        let header = device.header(entry.segment)?;
        bases.extend(header.bases.iter().map(|run| run.base.segment()));
    }
    needed.extend(bases);
    let dead = |e: &&TableEntry| !e.draining && !needed.contains(&e.segment);
    Ok(entries.iter().filter(dead).map(|e| e.segment).collect())
}

/// Takes what goes off the store, on its host or in a file that goes on from it, which the catalog then names.
pub(super) fn make_smaller(
    folder: &Path,
    thinned: &Thinned,
    stays: &BTreeSet<CheckpointId>,
    catalog: &Catalog,
    identity: &Identity,
) -> Result<()> {
    let mut goes_on = (thinned.store, thinned.name.clone());
    let mut from = thinned.follows.clone();
    if !thinned.free.is_empty() {
        let (name, store) = writer(folder, thinned, identity)?;
        let is_new = name != thinned.name;
        if let Err(error) = give_up(&store, thinned, stays, is_new) {
            if is_new {
                // The catalog does not name it, and nobody goes on from what it does not name.
                drop(std::fs::remove_file(folder.join(&name)));
            }
            return Err(error);
        }
        if is_new {
            from.push(thinned.store);
            goes_on = (store.id(), name);
        }
    }
    if from.is_empty() {
        return Ok(());
    }
    catalog.move_parts(&from, (goes_on.0, &goes_on.1))
}

/// The store, opened again; or the one that goes on from it, where this process may not write it.
fn writer(folder: &Path, thinned: &Thinned, identity: &Identity) -> Result<(String, ArchiveStore)> {
    let (aggregator, epoch) = FileName::store(&thinned.name).unwrap_or_default();
    let mut identity = Identity {
        aggregator,
        epoch,
        ..identity.clone()
    };
    let options = WriteOptions {
        // Nothing is drained to it now: room for two tables, which come of themselves.
        reserve_bytes: 0,
        ..WriteOptions::default()
    };
    let busy = match ArchiveStore::open(folder, &thinned.name, &identity, &options) {
        Ok(store) => return Ok((thinned.name.clone(), store)),
        Err(error) if error.kind() != ErrorKind::StoreBusy || !thinned.is_newest => {
            return Err(error);
        }
        Err(error) => error,
    };
    // A staging server, perhaps: it is of this host, and may be ended.
    if Fence::is_held(thinned.store) {
        return Err(busy);
    }
    make_next(folder, &thinned.name, &mut identity, &options)?.ok_or(busy)
}

/// Commits a root without what goes, and gives back what is free then.
fn give_up(
    store: &ArchiveStore,
    thinned: &Thinned,
    stays: &BTreeSet<CheckpointId>,
    is_new: bool,
) -> Result<()> {
    let root = store.root();
    if root.sequence != thinned.sequence + u64::from(is_new) {
        let context = format!("{}: it was written since the plan was made", thinned.name);
        return Err(Error::new(ErrorKind::StoreBusy, context));
    }
    let kept = |revision: &&RevisionEntry| stays.contains(&revision.checkpoint);
    store.commit(&Commit {
        incarnation: root.incarnation,
        draining: root.draining,
        revisions: root.revisions.iter().filter(kept).copied().collect(),
        free: thinned.free.clone(),
    })?;
    store.give_up_free().map(drop)
}

/// Gives back what no listed store needs of the files that they go on from; why it was not done, where it was not.
pub(super) fn give_back_formers(folder: &Path, catalog: &Catalog) -> Result<Vec<String>> {
    let state = catalog.state();
    let listed: BTreeSet<&str> = state.stores.iter().map(|store| &*store.name).collect();
    let mut used: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
    for store in &state.stores {
        let device = open_device(folder, &store.name)?;
        for (file, number) in device.root().files.iter().zip(1..) {
            let extents = device.extents_in(number);
            used.entry(file.name.clone()).or_default().extend(extents);
        }
    }
    // Who goes on from the catalog after this reads these tables, or later ones.
    catalog.is_current()?;
    let mut notes = Vec::new();
    for (name, extents) in used {
        if listed.contains(&*name) {
            continue;
        }
        if let Err(error) = former::give_back(&place(folder), &name, extents) {
            notes.push(format!("{name} stays as large as it is: {error}"));
        }
    }
    Ok(notes)
}

fn place(folder: &Path) -> Folder {
    Folder {
        path: folder.to_owned(),
        direct: true,
    }
}
