// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the way back from the archive: which checkpoints it has, which file has which rank's part, and
//! a reader for it.
//! In from: the catalog and the stores' tables. Out to: `session` (restart), `inspect`.
//! Invariants: only what the catalog lists is offered; what is damaged is left out, and said; what could not
//! be read is told apart from that; one store is open at a time while it is looked, and files are opened
//! as they are read.

use super::encode::Decoders;
use crate::{ArchiveDevice, Catalog, CatalogReader, Folder, Place, ReadOptions, private};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::Device;
use backstay_base::io::on_demand::OpenFiles;
use backstay_base::io::two_slots::Unread;
use backstay_format::width::index;
use backstay_format::{CatalogCheckpoint, CatalogState, CheckpointId};
use backstay_store::reader::StoreReader;
use backstay_store::revision::read_ranks;
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
    /// What the catalog lists that can be restored, newest first.
    pub listed: Vec<CatalogCheckpoint>,
    /// What can be had, newest first.
    pub checkpoints: Vec<ArchivedCheckpoint>,
    /// What cannot, and why.
    pub beyond: Vec<String>,
    /// What could not be looked at, newest first, and why.
    pub unread: Vec<(CheckpointId, String)>,
    /// Whether some of that may be read a little later.
    pub may_pass: bool,
    /// Why nothing can be had though checkpoints are listed; empty otherwise.
    pub lost: String,
    /// Whether what may stand in slots that cannot be read was given up to find it.
    pub gives_up: bool,
    /// Whether that is a slot of the catalog.
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
            gives_up: unread == Unread::GivenUp,
            ..Self::default()
        };
        let catalog = match Catalog::open_reader_as(folder, unread) {
            Ok(catalog) => catalog,
            Err(error) if error.kind() == ErrorKind::NoCheckpoint => return Ok(found),
            Err(error) => return Err(error),
        };
        found.run = catalog.superblock().run;
        found.gave_up_catalog = catalog.given_up().is_some();
        // What was given up may be of a life more.
        found.incarnation = catalog.state().incarnation + u64::from(found.gave_up_catalog);
        found.listed = listed(catalog.state());
        let sources = look_for_parts((folder, unread), &catalog, &found.listed);
        for (entry, sources) in found.listed.iter().zip(sources) {
            let checkpoint = entry.checkpoint;
            match sources {
                Ok(sources) => found.checkpoints.push(ArchivedCheckpoint {
                    checkpoint,
                    sources,
                }),
                Err(error) => {
                    let why =
                        format!("checkpoint {checkpoint} of the archive cannot be had: {error}");
                    if !error.kind().proves_loss() {
                        found.may_pass |= error.may_pass();
                        found.unread.push((checkpoint, why.clone()));
                    }
                    found.beyond.push(why);
                }
            }
        }
        // Beginning anew mends what is damaged, not what cannot be read.
        let all_damaged = found.checkpoints.is_empty() && found.unread.is_empty();
        if let (true, Some(why)) = (all_damaged, found.beyond.first()) {
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
        if let Some(error) = catalog.given_up() {
            found.beyond.push(format!(
                "{error}; a checkpoint to restore was named, so the other slot is taken, and what may stand in \
                 this one is given up with the restore"
            ));
        }
        // What was just being recorded may be no loss at all; what was recorded would be.
        if let Some(damaged) = catalog.damaged() {
            let sequence = catalog.state().sequence;
            found.beyond.push(format!(
                "{damaged}; the older state {sequence} of the catalog is taken, which may lack the newest \
                 checkpoints"
            ));
        }
        Ok(found)
    }

    /// Number of the newest that can be had; 0 if there is none.
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
    fn open(&self, name: &str) -> Result<Arc<dyn Device>> {
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

/// Which store has which rank's part, for each of the checkpoints listed; stores are looked at one after
/// the other.
fn look_for_parts(
    (folder, unread): (&Path, Unread),
    catalog: &CatalogReader,
    listed: &[CatalogCheckpoint],
) -> Vec<Result<Vec<usize>>> {
    let mut by_store: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (place, entry) in listed.iter().enumerate() {
        for part in &entry.parts {
            by_store.entry(index(part.store)).or_default().push(place);
        }
    }
    let blank = |entry: &CatalogCheckpoint| Ok(vec![None; index(entry.world_size)]);
    let mut found: Vec<Result<Vec<Option<usize>>>> = listed.iter().map(blank).collect();
    for (at, places) in by_store {
        let name = catalog.state().stores.get(at).map(|store| &*store.name);
        let ids: Vec<CheckpointId> = places
            .iter()
            .map(|&place| listed[place].checkpoint)
            .collect();
        let ranks = ranks_in((folder, unread), name.unwrap_or_default(), &ids);
        for (place, ranks) in places.into_iter().zip(ranks) {
            match (&mut found[place], ranks) {
                (Ok(sources), Ok(ranks)) => {
                    for rank in ranks {
                        if let Some(source) = sources.get_mut(index(rank)) {
                            *source = Some(at);
                        }
                    }
                }
                // What is proven counts before what could not be looked at.
                (Err(known), Err(error)) if !known.kind().proves_loss() => *known = error,
                (Err(_), _) => {}
                (known, Err(error)) => *known = Err(error),
            }
        }
    }
    let none = || Error::new(ErrorKind::Corrupt, "parts of some ranks are in no store");
    let whole = |sources: Vec<Option<usize>>| {
        let whole: Option<Vec<usize>> = sources.into_iter().collect();
        whole.ok_or_else(none)
    };
    found
        .into_iter()
        .map(|sources| sources.and_then(whole))
        .collect()
}

/// The ranks whose parts of each of these checkpoints a store has.
fn ranks_in(
    (folder, unread): (&Path, Unread),
    file: &str,
    ids: &[CheckpointId],
) -> Vec<Result<Vec<u32>>> {
    let opened = open_store_as(folder, file, unread).and_then(|reader| {
        let revisions = reader.newest_root()?.0.revisions;
        Ok((reader, revisions))
    });
    let (reader, revisions) = match opened {
        Ok(opened) => opened,
        Err(error) => return ids.iter().map(|_| Err(error.again())).collect(),
    };
    let of = |id: &CheckpointId| {
        let mut revisions = revisions.iter();
        let revision = revisions.find(|revision| revision.checkpoint == *id);
        let gone = || {
            let context = format!("{} does not have it", reader.device().name());
            Error::new(ErrorKind::NotRetained, context)
        };
        let ranks = read_ranks(&reader, revision.ok_or_else(gone)?)?;
        Ok(ranks.into_iter().map(|entry| entry.rank).collect())
    };
    ids.iter().map(of).collect()
}
