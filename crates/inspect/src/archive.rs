// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: archives of jobs, opened for looking: what their catalogs list, and which files have it.
//! In: folders. Out: the state of each catalog, and what it says of a checkpoint.
//! Invariants: the catalog with the highest epoch that can be read counts; what it does not list is never
//! called whole, whatever the stores hold.

use super::find::archive_file;
use super::open::OpenStore;
use super::{Checkpoint, Stores, Unreadable};
use backstay_archive::{Catalog, CatalogReader, FileName};
use backstay_base::error::ErrorKind;
use backstay_format::width::index;
use backstay_format::{CatalogCheckpoint, CatalogState, CheckpointId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The archive of a job.
#[derive(Debug)]
pub struct Archive {
    folder: PathBuf,
    catalog: Option<CatalogReader>,
    /// The one file that was asked for.
    only: Option<String>,
    /// Files that could not be opened, and why.
    pub(super) broken: BTreeMap<String, String>,
    /// Files that were opened, by name: which store.
    opened: BTreeMap<String, usize>,
}

/// What the catalog of an archive says of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that are independent of each other"
)]
pub struct Archived {
    /// The archive, as an index into [`Stores::archives`].
    pub archive: usize,
    /// The catalog lists it: all of it was durable. What is not listed was dropped, or its drain did not
    /// end.
    pub listed: bool,
    /// A later start of the job went on from an older one.
    pub abandoned: bool,
    /// It stays until somebody says otherwise.
    pub kept: bool,
    /// The program finished with it: it stays until it is removed.
    pub finished: bool,
    /// When it was recorded, in nanoseconds since 1970; 0 if it is not listed.
    pub archived_unix_ns: u64,
    /// Bytes that were stored for it; 0 if it is not listed.
    pub bytes_stored: u64,
    /// Files that should have a part of it and do not, and why.
    pub lacks: Vec<String>,
}

/// The newest file of each aggregator among `names`.
fn newest_of<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<u32, (u32, &'a str)> {
    let mut newest: BTreeMap<u32, (u32, &str)> = BTreeMap::new();
    for name in names {
        if let Some((aggregator, epoch)) = FileName::store(name) {
            let known = newest.entry(aggregator).or_insert((epoch, name));
            *known = (*known).max((epoch, name));
        }
    }
    newest
}

impl Archive {
    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
    /// Its catalog, if that can be read.
    pub fn catalog(&self) -> Option<&CatalogReader> {
        self.catalog.as_ref()
    }
    /// What its catalog says.
    pub fn state(&self) -> Option<&CatalogState> {
        self.catalog.as_ref().map(CatalogReader::state)
    }
    /// Whether only one of its files was asked for.
    pub fn is_partial(&self) -> bool {
        self.only.is_some()
    }
    /// Files that could not be opened, and why.
    pub fn broken(&self) -> impl Iterator<Item = (&str, &str)> {
        self.broken.iter().map(|(name, why)| (&**name, &**why))
    }

    /// The files to open: those that the catalog names, and newer ones of which it does not know yet.
    fn files(&self) -> Vec<String> {
        if let Some(only) = &self.only {
            return vec![only.clone()];
        }
        let listed = self.state().map(|state| &*state.stores).unwrap_or_default();
        let mut files: Vec<String> = listed.iter().map(|store| store.name.clone()).collect();
        let entries = std::fs::read_dir(&self.folder)
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.map(|entry| entry.file_name());
        let names = names.filter(|name| archive_file(name) == Some(false));
        let there: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
        for (aggregator, (epoch, name)) in newest_of(there.iter().map(|name| &**name)) {
            let of_it = newest_of(listed.iter().map(|store| &*store.name));
            if of_it
                .get(&aggregator)
                .is_none_or(|(known, _)| epoch > *known)
            {
                files.push(name.to_owned());
            }
        }
        files
    }

    fn is_listed(&self, file: &str) -> bool {
        self.state()
            .is_some_and(|state| state.stores.iter().any(|store| store.name == file))
    }

    /// Reads the catalog again; whether it changed.
    pub(super) fn reload(&mut self) -> bool {
        let Ok(now) = Catalog::open_reader(&self.folder) else {
            return false;
        };
        let before = self.state().map(|state| state.sequence);
        let changed = before != Some(now.state().sequence);
        self.catalog = Some(now);
        changed
    }

    /// What it says of a checkpoint of which `file` has a part; `None` where that part does not count:
    /// another file has it now.
    fn says(&self, archive: usize, file: &str, id: CheckpointId) -> Option<Archived> {
        let listed = self.state().and_then(|state| state.find(id));
        let counts = if let Some(entry) = listed {
            self.files_of(entry).any(|name| name == file)
        } else {
            let newest = newest_of(self.opened.keys().map(|name| &**name));
            FileName::store(file).is_none_or(|(aggregator, epoch)| {
                newest
                    .get(&aggregator)
                    .is_none_or(|(last, _)| *last == epoch)
            })
        };
        counts.then(|| self.of(archive, id, listed))
    }

    fn of(&self, archive: usize, id: CheckpointId, entry: Option<&CatalogCheckpoint>) -> Archived {
        Archived {
            archive,
            listed: entry.is_some(),
            abandoned: self.state().is_some_and(|state| state.is_abandoned(id)),
            kept: entry.is_some_and(|entry| entry.kept),
            finished: entry.is_some_and(|entry| entry.finished),
            archived_unix_ns: entry.map_or(0, |entry| entry.archived_unix_ns),
            bytes_stored: entry.map_or(0, |entry| entry.bytes_written),
            lacks: Vec::new(),
        }
    }

    fn files_of(&self, entry: &CatalogCheckpoint) -> impl Iterator<Item = &str> {
        let stores = self.state().map(|state| &*state.stores).unwrap_or_default();
        let parts = entry.parts.iter();
        parts.filter_map(|part| stores.get(index(part.store)).map(|store| &*store.name))
    }
}

/// What the archive of a store says of a checkpoint that the store retains.
#[derive(Debug)]
pub(super) enum ArchivedPart {
    /// The store is in no archive.
    NoArchive,
    /// Another store of the archive has this part now.
    Superseded,
    /// It counts.
    Counts(Box<Archived>),
}

impl Stores {
    /// The archives that were opened.
    pub fn archives(&self) -> &[Archive] {
        &self.archives
    }

    /// Opens the archive in `folder`, or only one file of it.
    pub(super) fn open_archive(&mut self, folder: PathBuf, only: Option<String>) {
        let whole = |archive: &Archive| archive.folder == folder && archive.only.is_none();
        if self.archives.iter().any(whole) {
            return;
        }
        let catalog = match Catalog::open_reader(&folder) {
            Ok(catalog) => Some(catalog),
            Err(error) => {
                let path = folder.clone();
                self.unreadable.push(Unreadable { path, error });
                None
            }
        };
        let mut archive = Archive {
            folder,
            catalog,
            only,
            broken: BTreeMap::new(),
            opened: BTreeMap::new(),
        };
        for file in archive.files() {
            let path = archive.folder.join(&file);
            match OpenStore::open_archived(&path, self.archives.len()) {
                Ok(store) => {
                    archive.opened.insert(file, self.stores.len());
                    self.stores.push(store);
                }
                // A drain may just be making it.
                Err(error) if archive.catalog.is_some() && !archive.is_listed(&file) => {
                    tracing::debug!("{}: skipped: {error}", path.display());
                }
                Err(error) => {
                    archive.broken.insert(file, error.to_string());
                    self.unreadable.push(Unreadable { path, error });
                }
            }
        }
        self.archives.push(archive);
    }

    /// Which store is which file, once those that cannot be read were left out.
    pub(super) fn settle_archives(&mut self) {
        for (number, archive) in self.archives.iter_mut().enumerate() {
            let own = self
                .stores
                .iter()
                .enumerate()
                .filter(|(_, s)| s.archive() == Some(number));
            let opened = own.map(|(at, store)| (store.file_name(), at)).collect();
            let before = std::mem::replace(&mut archive.opened, opened);
            for name in before
                .into_keys()
                .filter(|name| !archive.opened.contains_key(name))
            {
                archive
                    .broken
                    .entry(name)
                    .or_insert_with(|| "it cannot be read".to_owned());
            }
        }
    }

    /// What the archive of a store says of a checkpoint that the store retains; `None` where its part does
    /// not count.
    pub(super) fn archived(&self, store: &OpenStore, id: CheckpointId) -> ArchivedPart {
        let Some(at) = store.archive() else {
            return ArchivedPart::NoArchive;
        };
        let says = self.archives[at].says(at, &store.file_name(), id);
        says.map_or(ArchivedPart::Superseded, |archived| {
            ArchivedPart::Counts(Box::new(archived))
        })
    }

    /// Adds what catalogs list and no store has to `merged`, and says what lacks.
    pub(super) fn add_listed(&self, merged: &mut Vec<Checkpoint>) {
        for (number, archive) in self.archives.iter().enumerate() {
            let Some(catalog) = archive.catalog.as_ref().filter(|_| !archive.is_partial()) else {
                continue;
            };
            for entry in &catalog.state().checkpoints {
                let id = entry.checkpoint;
                let is_it = |c: &Checkpoint| {
                    c.id == id && c.archived.as_ref().is_some_and(|a| a.archive == number)
                };
                let lacks = self.lacking(archive, entry);
                if let Some(found) = merged.iter_mut().find(|checkpoint| is_it(checkpoint)) {
                    found
                        .archived
                        .iter_mut()
                        .for_each(|a| a.lacks.clone_from(&lacks));
                    continue;
                }
                let mut listed = Checkpoint::empty(&catalog.superblock().job, id, entry.world_size);
                let mut archived = archive.of(number, id, Some(entry));
                archived.lacks = lacks;
                listed.committed_unix_ns = entry.archived_unix_ns;
                listed.archived = Some(archived);
                let key =
                    |c: &Checkpoint| (c.job.clone(), c.id, c.world_size, c.archived.is_none());
                let at = merged.partition_point(|other| key(other) < key(&listed));
                merged.insert(at, listed);
            }
        }
    }

    fn lacking(&self, archive: &Archive, entry: &CatalogCheckpoint) -> Vec<String> {
        let mut lacks = Vec::new();
        for file in archive.files_of(entry) {
            let opened = archive.opened.get(file).map(|&at| &self.stores[at]);
            let path = archive.folder.join(file);
            let has = |store: &OpenStore| {
                store
                    .retained()
                    .iter()
                    .any(|r| r.entry.checkpoint == entry.checkpoint)
            };
            match opened {
                None => {
                    let why = archive
                        .broken
                        .get(file)
                        .map_or("it is not there", |why| &**why);
                    lacks.push(format!("{}: {why}", path.display()));
                }
                Some(store) if !has(store) => {
                    let why = match store.damaged() {
                        Some(damaged) => format!("its newest root cannot be had: {damaged}"),
                        None => "it does not have its part".to_owned(),
                    };
                    lacks.push(format!("{}: {why}", path.display()));
                }
                Some(_) => {}
            }
        }
        lacks
    }

    /// Whether a catalog changed since it was read.
    pub(super) fn catalogs_changed(&mut self) -> bool {
        let changed = self.archives.iter_mut().map(Archive::reload);
        changed.fold(false, |any, changed| any | changed)
    }

    /// The newest checkpoint of each archive that can be restored.
    pub fn newest_archived(&self, archive: usize) -> Option<CheckpointId> {
        let state = self.archives.get(archive)?.state()?;
        state.restorable().map(|entry| entry.checkpoint).max()
    }
}

/// What an archive holds, from its catalog alone.
#[derive(Debug)]
pub struct ArchiveGlance {
    /// The folder.
    pub folder: PathBuf,
    /// Its catalog.
    pub catalog: CatalogReader,
    /// Staging servers that say they are there: name and address.
    pub servers: Vec<(String, String)>,
}

/// Looks at the catalogs at or below `path`, without opening a store.
pub fn glance_archives(path: &Path) -> Vec<Result<ArchiveGlance, Unreadable>> {
    let found = super::find::find(path).unwrap_or_default();
    let folders = found.into_iter().filter_map(|found| match found {
        super::find::Found::Archive(folder) => Some(folder),
        _ => None,
    });
    let look = |folder: PathBuf| match Catalog::open_reader(&folder) {
        Ok(catalog) => Ok(ArchiveGlance {
            servers: backstay_archive::drain::servers_in(&folder),
            folder,
            catalog,
        }),
        Err(error) => Err(Unreadable {
            path: folder,
            error,
        }),
    };
    let is_there = |found: &Result<_, Unreadable>| !matches!(found, Err(unreadable) if unreadable.error.kind() == ErrorKind::NoCheckpoint);
    folders.map(look).filter(is_there).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_file_of_an_aggregator_is_that_of_the_highest_epoch() {
        let names = [
            "aggregate-1-2.backstay",
            "aggregate-1-10.backstay",
            "aggregate-0-3.backstay",
        ];
        let newest = newest_of(names.into_iter());
        assert_eq!(newest[&1], (10, names[1]));
        assert_eq!(newest[&0], (3, names[2]));
        assert_eq!(FileName::store("aggregate-1.backstay"), None);
    }
}
