// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the way back from the archive: which checkpoints it has, which file has which rank's part, and
//! a reader for it.
//! In from: the catalog and the stores' tables. Out to: `session` (restart), `inspect`.
//! Invariants: only what the catalog lists is offered; what cannot be read is left out, and said.

use super::encode::Decoders;
use crate::archive::{ArchiveDevice, Catalog, CatalogReader, ReadOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::store::reader::StoreReader;
use crate::store::revision::read_ranks;
use backstay_format::width::index;
use backstay_format::{CatalogCheckpoint, CheckpointId, RevisionEntry};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A checkpoint of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedCheckpoint {
    /// Which.
    pub checkpoint: CheckpointId,
    /// By rank of then: place of its file in `ArchiveFound::files`.
    pub sources: Vec<usize>,
}

/// What an archive has for a restart.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArchiveFound {
    /// The folder of the job.
    pub folder: PathBuf,
    /// Which run of the job; 0 if there is no archive yet.
    pub run: u32,
    /// Its newest life.
    pub incarnation: u64,
    /// Files of stores.
    pub files: Vec<String>,
    /// What can be had, newest first.
    pub checkpoints: Vec<ArchivedCheckpoint>,
    /// What cannot, and why.
    pub beyond: Vec<String>,
    /// Why nothing can be had though checkpoints are listed; empty otherwise.
    pub lost: String,
}

impl ArchiveFound {
    /// Looks what the archive in `folder` has.
    pub fn look(folder: &Path) -> Result<Self> {
        let mut found = Self {
            folder: folder.to_owned(),
            ..Self::default()
        };
        let catalog = match Catalog::open_reader(folder) {
            Ok(catalog) => catalog,
            Err(error) if error.kind() == ErrorKind::NoCheckpoint => return Ok(found),
            Err(error) => return Err(error),
        };
        found.run = catalog.superblock().run;
        found.incarnation = catalog.state().incarnation;
        let mut readers = Readers::new(folder, &catalog);
        let mut listed: Vec<&CatalogCheckpoint> = catalog.state().restorable().collect();
        listed.sort_by_key(|entry| std::cmp::Reverse(entry.checkpoint));
        for entry in listed {
            match readers.sources(entry) {
                Ok(sources) => found.checkpoints.push(ArchivedCheckpoint {
                    checkpoint: entry.checkpoint,
                    sources,
                }),
                Err(error) => {
                    let id = entry.checkpoint;
                    found.beyond.push(format!(
                        "checkpoint {id} of the archive cannot be had: {error}"
                    ));
                }
            }
        }
        if let (true, Some(why)) = (found.checkpoints.is_empty(), found.beyond.first()) {
            found.lost = format!(
                "{}: {why}; nothing is left to restore. To begin anew, remove this folder or set another",
                folder.display()
            );
        }
        found.files = catalog
            .state()
            .stores
            .iter()
            .map(|store| store.name.clone())
            .collect();
        Ok(found)
    }

    /// A checkpoint by its id.
    pub fn find(&self, id: CheckpointId) -> Option<&ArchivedCheckpoint> {
        self.checkpoints.iter().find(|found| found.checkpoint == id)
    }
}

/// Opens a store of an archive as a store of a node: checkpoints, trees, blocks.
pub fn open_store(folder: &Path, file: &str) -> Result<StoreReader> {
    StoreReader::open(open_device(folder, file)?).and_then(with_records)
}

/// Opens a store of an archive.
pub fn open_device(folder: &Path, file: &str) -> Result<Arc<ArchiveDevice>> {
    ArchiveDevice::open(folder, file, &read_options())
}

/// How archives are read.
pub fn read_options() -> ReadOptions {
    ReadOptions {
        decode: Arc::new(Decoders::default()),
        ..ReadOptions::default()
    }
}

fn with_records(reader: StoreReader) -> Result<StoreReader> {
    reader.read_records(|_, _, _| {})?;
    Ok(reader)
}

/// The stores of an archive, opened as they are needed.
struct Readers<'a> {
    folder: &'a Path,
    catalog: &'a CatalogReader,
    open: BTreeMap<usize, (StoreReader, Vec<RevisionEntry>)>,
}

impl<'a> Readers<'a> {
    fn new(folder: &'a Path, catalog: &'a CatalogReader) -> Self {
        Self {
            folder,
            catalog,
            open: BTreeMap::new(),
        }
    }

    fn reader(&mut self, at: usize) -> Result<&(StoreReader, Vec<RevisionEntry>)> {
        use std::collections::btree_map::Entry;
        match self.open.entry(at) {
            Entry::Occupied(there) => Ok(there.into_mut()),
            Entry::Vacant(place) => {
                let name = self
                    .catalog
                    .state()
                    .stores
                    .get(at)
                    .map(|store| &*store.name);
                let reader = open_store(self.folder, name.unwrap_or_default())?;
                let revisions = reader.newest_root()?.0.revisions;
                Ok(place.insert((reader, revisions)))
            }
        }
    }

    /// Which store has which rank's part of a checkpoint.
    fn sources(&mut self, entry: &CatalogCheckpoint) -> Result<Vec<usize>> {
        let mut sources: Vec<Option<usize>> = vec![None; index(entry.world_size)];
        for part in &entry.parts {
            let at = index(part.store);
            let (reader, revisions) = self.reader(at)?;
            let mut revisions = revisions.iter();
            let revision = revisions.find(|revision| revision.checkpoint == entry.checkpoint);
            let Some(revision) = revision else {
                let name = crate::io::Device::name(&**reader.device());
                let context = format!("{name} does not have it");
                return Err(Error::new(ErrorKind::NotRetained, context));
            };
            for rank in read_ranks(reader, revision)? {
                if let Some(source) = sources.get_mut(index(rank.rank)) {
                    *source = Some(at);
                }
            }
        }
        let whole: Option<Vec<usize>> = sources.into_iter().collect();
        whole.ok_or_else(|| Error::new(ErrorKind::Corrupt, "parts of some ranks are in no store"))
    }
}
