// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the way back from the archive: which checkpoints it has, which file has which rank's part, and
//! a reader for it.
//! In from: the catalog and the stores' tables. Out to: `session` (restart), `inspect`.
//! Invariants: only what the catalog lists is offered; a file of a store is opened when a part is read that it has,
//! and some are open at a time.

use super::encode::Decoders;
use crate::{ArchiveDevice, Catalog, Folder, Place, ReadOptions, private};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::on_demand::OpenFiles;
use backstay_base::io::two_slots::Unread;
use backstay_base::io::{Device, ReadAt};
use backstay_format::width::index;
use backstay_format::{
    CatalogCheckpoint, CatalogPart, CatalogState, CheckpointId, Lineage, RankRange,
};
use backstay_store::reader::StoreReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Ranks in a row whose parts are in one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankSource {
    /// Which ranks of then.
    pub ranks: RankRange,
    /// Place of their file in `ArchiveFound::files`.
    pub file: u32,
}

/// A checkpoint of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedCheckpoint {
    /// Which.
    pub checkpoint: CheckpointId,
    /// Where its parts are, ascending by rank, each rank once; checkpoints share what is equal.
    pub sources: Arc<[RankSource]>,
}

impl ArchivedCheckpoint {
    /// The place of the file that has `rank`'s part.
    pub fn file_of(&self, rank: u32) -> Option<usize> {
        let at = self
            .sources
            .partition_point(|source| source.ranks.end() <= rank);
        let source = self.sources.get(at)?;
        (source.ranks.first <= rank).then_some(index(source.file))
    }

    /// Ranks of the job that took it.
    pub fn world_size(&self) -> u32 {
        self.sources.last().map_or(0, |source| source.ranks.end())
    }
}

/// What an archive has for a restart, as its catalog says: no other file is opened to find it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArchiveFound {
    /// The folder of the job.
    pub folder: PathBuf,
    /// Which run of the job; 0 if there is no archive yet.
    pub run: u32,
    /// Its newest start.
    pub incarnation: u64,
    /// Which starts go on from one another, as it knows.
    pub lineage: Lineage,
    /// Files of stores.
    pub files: Vec<String>,
    /// What the catalog lists that can be restored, newest first.
    pub listed: Vec<CatalogCheckpoint>,
    /// The same, and where it is.
    pub checkpoints: Vec<ArchivedCheckpoint>,
    /// What is to be said of it.
    pub warnings: Vec<String>,
    /// Whether what may stand in a slot of the catalog that cannot be read was given up to find it.
    pub gave_up_catalog: bool,
}

impl ArchiveFound {
    /// Looks what the archive in `folder` has.
    pub fn look(folder: &Path) -> Result<Self> {
        Self::look_as(folder, Unread::Counts)
    }

    /// The same, where what may stand in slots that cannot be read may be given up.
    pub fn look_as(folder: &Path, unread: Unread) -> Result<Self> {
        let mut found = Self {
            folder: folder.to_owned(),
            ..Self::default()
        };
        let catalog = match Catalog::open_reader_as(folder, unread) {
            Ok(catalog) => catalog,
            Err(error) if error.kind() == ErrorKind::NoCheckpoint => return Ok(found),
            Err(error) => return Err(error),
        };
        let state = catalog.state();
        found.run = catalog.superblock().run;
        found.gave_up_catalog = catalog.given_up().is_some();
        // What was given up may be of a start more.
        found.incarnation = state.incarnation + u64::from(found.gave_up_catalog);
        found.lineage = state.lineage;
        found.listed = listed(state);
        found.files = state.stores.iter().map(|s| s.name.clone()).collect();
        for entry in &found.listed {
            let mut sources = sources(state, entry);
            let last = found.checkpoints.last();
            if let Some(last) = last.filter(|last| *last.sources == *sources) {
                sources = Arc::clone(&last.sources);
            }
            found.checkpoints.push(ArchivedCheckpoint {
                checkpoint: entry.checkpoint,
                sources,
            });
        }
        if let Some(error) = catalog.given_up() {
            found.warnings.push(format!(
                "{error}; a checkpoint to restore was named, so the other slot is taken, and what may stand in \
                 this one is given up with the restore"
            ));
        }
        // What was just being recorded may be no loss at all; what was recorded would be.
        if let Some(damaged) = catalog.damaged() {
            found.warnings.push(format!(
                "{damaged}; the older state {} of the catalog is taken, which may lack the newest checkpoints",
                state.sequence
            ));
        }
        Ok(found)
    }

    /// Number of the newest; 0 if there is none.
    pub fn newest_number(&self) -> u64 {
        self.checkpoints
            .first()
            .map_or(0, |found| found.checkpoint.number)
    }

    /// A checkpoint by its id.
    pub fn find(&self, id: CheckpointId) -> Option<&ArchivedCheckpoint> {
        self.checkpoints.iter().find(|found| found.checkpoint == id)
    }
}

/// Which store has which rank's part of a checkpoint that the catalog lists: nothing is recorded whose parts do not
/// have each rank once.
fn sources(state: &CatalogState, entry: &CatalogCheckpoint) -> Arc<[RankSource]> {
    let ranks = |part: &CatalogPart| state.rank_sets.get(index(part.ranks)).into_iter().flatten();
    let of_part = |part: &CatalogPart| {
        let file = part.store;
        ranks(part)
            .map(move |&ranks| RankSource { ranks, file })
            .collect::<Vec<_>>()
    };
    let mut sources: Vec<RankSource> = entry.parts.iter().flat_map(of_part).collect();
    sources.sort_unstable();
    sources.into()
}

/// What a catalog lists that can be restored, newest first.
pub fn listed(state: &CatalogState) -> Vec<CatalogCheckpoint> {
    let mut listed: Vec<CatalogCheckpoint> = state.restorable().cloned().collect();
    listed.sort_by_key(|entry| std::cmp::Reverse(entry.checkpoint));
    listed
}

/// Opens a store of an archive as a store of a node: checkpoints, trees, blocks.
pub fn open_store(folder: &Path, file: &str) -> Result<StoreReader> {
    open_store_as(folder, file, Unread::Counts)
}

/// The same, where what may stand in a root slot that cannot be read may be given up.
pub fn open_store_as(folder: &Path, file: &str, unread: Unread) -> Result<StoreReader> {
    let options = ReadOptions {
        unread,
        ..read_options()
    };
    StoreReader::open(open_with(folder, file, &options)?).and_then(with_records)
}

/// Opens a store of an archive, whose files are kept open: by who reads it while others write.
pub fn open_device(folder: &Path, file: &str) -> Result<Arc<ArchiveDevice>> {
    ArchiveDevice::open(folder, file, &read_options())
}

/// Opens a store of an archive, of whose files, among those of many, some are open at a time.
pub fn open_to_read(folder: &Path, file: &str) -> Result<Arc<ArchiveDevice>> {
    open_with(folder, file, &read_options())
}

fn open_with(folder: &Path, file: &str, options: &ReadOptions) -> Result<Arc<ArchiveDevice>> {
    let place = OnDemand(Folder {
        path: folder.to_owned(),
        direct: options.direct,
    });
    ArchiveDevice::open_on(place.open(file)?, &place, options)
}

/// A folder whose files are opened as they are read.
#[derive(Debug)]
struct OnDemand(Folder);

impl Place for OnDemand {
    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>> {
        let path = self.0.path.join(name);
        let failed = |error| Error::io(format!("{}: opening it", path.display()), error);
        let file = OpenFiles::of_process().file(&path, self.0.direct);
        let file = file.map_err(failed)?;
        private::check_file(&path, &file.about().map_err(failed)?)?;
        Ok(Arc::new(file))
    }

    fn open_to_mark(&self, name: &str) -> Result<Arc<dyn Device>> {
        self.0.open_to_mark(name)
    }
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
