// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: checkpoints that programs wrote as files, taken into an archive as if a job had drained them.
//! In from: `backstay import` (which file is which rank's, of which checkpoint). Out to: an archive store, the catalog.
//! Invariants: a checkpoint is recorded when every block of it was read back and has the digest of the file that it
//! is of; an archive that a job made is not imported into; the newest checkpoint is the last one added.

use super::encode::{Encoders, Means};
use super::fetch::open_store;
use super::files::FileSet;
pub use super::files::ImportFile;
use super::open::{self, store_for};
use super::point::OpenStore;
use super::work::{Drain, From};
use super::{DrainSettings, RunningLock, lock, parallel, sweep};
use crate::catalog::slot_bytes_for;
use crate::{Catalog, Identity, NewCheckpoint, NewPart, fence, private};
use backstay_base::clock::Pulse;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::drain::{DrainJob, DrainProgress};
use backstay_format::limits::{BLOCK_BYTES_DEFAULT, REVISIONS_MAX};
use backstay_format::width::{index, to_u64};
use backstay_format::{BlockRef, CheckpointId, Digest, Lineage, RevisionEntry};
use backstay_store::reader::StoreReader;
use backstay_store::revision::{read_part, read_ranks};
use backstay_store::tree::read_blocks;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The run of archives that were imported: jobs draw theirs at random.
const RUN: u32 = u32::from_le_bytes(*b"IMPT");
/// What a file system is taken to take where codecs are chosen by that.
const WRITE_BYTES_PER_SECOND: f64 = 0.5e9;

/// Where to import to, and how.
#[derive(Debug, Clone)]
pub struct ImportPlan {
    /// The folder of the job in the archive.
    pub folder: PathBuf,
    /// The job that the checkpoints are to be of.
    pub job: String,
    /// How they are merged and compressed.
    pub settings: DrainSettings,
}

/// A checkpoint to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportCheckpoint {
    /// Its number; above those that the archive has.
    pub number: u64,
    /// The files of each rank.
    pub ranks: Vec<Vec<ImportFile>>,
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Files are read and hashed.
    Looking,
    /// Their blocks are compressed and stored.
    Storing,
    /// What was stored is read back.
    Verifying,
}

/// How far an import is, for who looks.
#[derive(Debug, Default)]
pub struct ImportProgress {
    stage: AtomicU8,
    looked: AtomicU64,
    verified: AtomicU64,
    to_verify: AtomicU64,
    drain: Mutex<DrainProgress>,
}

impl ImportProgress {
    /// What is being done, and of how many bytes how many are done; 0 where that is not known.
    pub fn now(&self) -> (Stage, u64, u64) {
        match self.stage.load(Ordering::Relaxed) {
            0 => (Stage::Looking, self.looked.load(Ordering::Relaxed), 0),
            1 => {
                let drain = lock(&self.drain);
                let done = drain.bytes_encoded + drain.bytes_equal + drain.bytes_resumed;
                (Stage::Storing, done, drain.bytes_changed)
            }
            _ => (
                Stage::Verifying,
                self.verified.load(Ordering::Relaxed),
                self.to_verify.load(Ordering::Relaxed),
            ),
        }
    }

    fn begin(&self, stage: Stage) {
        let number = match stage {
            Stage::Looking => 0,
            Stage::Storing => 1,
            Stage::Verifying => 2,
        };
        self.stage.store(number, Ordering::Relaxed);
    }
}

/// A checkpoint that was imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedCheckpoint {
    /// Which it is in the archive.
    pub checkpoint: CheckpointId,
    /// Ranks that it has.
    pub ranks: u32,
    /// Files.
    pub files: u64,
    /// Datasets that were recognized in them.
    pub datasets: u64,
    /// Bytes of the files, without their holes.
    pub bytes: u64,
    /// Bytes that the checkpoint before did not have.
    pub bytes_changed: u64,
    /// Bytes of these that are equal to others.
    pub bytes_equal: u64,
    /// Bytes that were stored for it, without trees and headers.
    pub bytes_stored: u64,
}

/// An archive that is imported into.
#[derive(Debug)]
pub struct Import {
    plan: ImportPlan,
    catalog: Catalog,
    incarnation: u64,
    held: Option<OpenStore>,
    encoders: Encoders,
    pulse: Pulse,
    progress: Arc<ImportProgress>,
    cancel: Arc<AtomicBool>,
    _lock: RunningLock,
}

impl Import {
    /// Opens the archive, or makes it.
    pub fn open(plan: ImportPlan) -> Result<Self> {
        private::make_folder(&plan.folder)?;
        let lock = RunningLock::take(&plan.folder, &plan.job, false)?;
        refuse_others(&plan.folder)?;
        let identity = Identity {
            job: plan.job.clone(),
            run: RUN,
            aggregator: 0,
            epoch: 0,
            host: fence::host(),
        };
        let catalog = Catalog::open_or_create(&plan.folder, &identity, slot_bytes_for(1))?;
        let state = catalog.state();
        let incarnation = state.incarnation + 1;
        let newest = state.restorable().map(|one| one.checkpoint).max();
        let lineage = Lineage {
            began: state.lineage.began.max(1),
            start: incarnation,
            finished: false,
            asked: 0,
            arguments: 0,
        };
        match newest {
            Some(newest) => catalog.begin_start(lineage, Some(newest))?,
            None => catalog.name_lineage(lineage)?,
        }
        catalog.claim(incarnation, false)?;
        Ok(Self {
            plan,
            catalog,
            incarnation,
            held: None,
            encoders: Encoders::default(),
            pulse: Pulse::default(),
            progress: Arc::default(),
            cancel: Arc::default(),
            _lock: lock,
        })
    }

    /// The number of the newest checkpoint in the archive; 0 where it has none.
    pub fn newest(&self) -> u64 {
        let state = self.catalog.state();
        let numbers = state.checkpoints.iter().map(|one| one.checkpoint.number);
        numbers.max().unwrap_or(0)
    }

    /// How many checkpoints may be added.
    pub fn room(&self) -> usize {
        (REVISIONS_MAX - 1).saturating_sub(self.catalog.state().checkpoints.len())
    }

    /// What the import that is under way does.
    pub fn progress(&self) -> Arc<ImportProgress> {
        Arc::clone(&self.progress)
    }

    /// Ends the import that is under way once this is true.
    pub fn cancel(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Adds a checkpoint.
    pub fn add(&mut self, checkpoint: &ImportCheckpoint) -> Result<ImportedCheckpoint> {
        self.check(checkpoint)?;
        self.progress.looked.store(0, Ordering::Relaxed);
        self.progress.verified.store(0, Ordering::Relaxed);
        self.progress.begin(Stage::Looking);
        let threads = index(self.plan.settings.threads).max(1);
        let watched = (&self.progress.looked, &*self.cancel);
        let set = FileSet::look(&checkpoint.ranks, BLOCK_BYTES_DEFAULT, threads, watched)?;
        let set = Arc::new(set);
        let id = CheckpointId::new(self.incarnation, checkpoint.number);
        self.progress.begin(Stage::Storing);
        let job = self.job(id)?;
        *lock(&self.progress.drain) = DrainProgress {
            checkpoint: id,
            ..DrainProgress::default()
        };
        let sequence = self.drain(&job, &set)?;
        set.close()?;
        self.progress.begin(Stage::Verifying);
        let drained = lock(&self.progress.drain).clone();
        self.verify(id, &drained.file, &set)?;
        self.catalog.record(&NewCheckpoint {
            checkpoint: id,
            world_size: drained.world_size,
            bytes_total: drained.bytes_total,
            bytes_written: drained.bytes_stored,
            parts: vec![NewPart {
                store: drained.store,
                file: drained.file.clone(),
                sequence,
                ranks: drained.ranks.clone(),
            }],
        })?;
        // What imports that were killed left behind.
        if let Err(error) = sweep::sweep(&self.plan.folder, &self.catalog, 1) {
            tracing::debug!("nothing is removed from the archive: {error}");
        }
        let files = checkpoint.ranks.iter().map(|files| to_u64(files.len()));
        Ok(ImportedCheckpoint {
            checkpoint: id,
            ranks: drained.world_size,
            files: files.sum(),
            datasets: set.datasets(),
            bytes: set.bytes(),
            bytes_changed: drained.bytes_changed,
            bytes_equal: drained.bytes_equal,
            bytes_stored: drained.bytes_stored,
        })
    }

    fn check(&self, checkpoint: &ImportCheckpoint) -> Result<()> {
        let refuse = |context: String| Err(Error::new(ErrorKind::InvalidArgument, context));
        let newest = self.newest();
        if checkpoint.number <= newest {
            return refuse(format!(
                "checkpoint {} cannot follow checkpoint {newest}, which the archive has: give a higher number, or \
                 import to another --job",
                checkpoint.number
            ));
        }
        if self.room() == 0 {
            return refuse(format!(
                "the archive has {} checkpoints, and holds no more: prune it, or import to another --job",
                self.catalog.state().checkpoints.len()
            ));
        }
        if checkpoint.ranks.iter().all(Vec::is_empty) {
            return refuse(format!("checkpoint {} has no file", checkpoint.number));
        }
        Ok(())
    }

    fn job(&self, id: CheckpointId) -> Result<DrainJob> {
        let folder = self.plan.folder.to_str().ok_or_else(|| {
            let context = format!("{} is not UTF-8", self.plan.folder.display());
            Error::new(ErrorKind::Configuration, context)
        })?;
        let state = self.catalog.state();
        let file = state.stores.iter().map(|store| &*store.name);
        let file = file.max_by_key(|name| open::epoch_of(name));
        Ok(DrainJob {
            folder: folder.to_owned(),
            settings: self.plan.settings.to_json(),
            job: self.plan.job.clone(),
            run: RUN,
            aggregator: 0,
            aggregators: 1,
            incarnation: self.incarnation,
            catalog: self.catalog.superblock().epoch,
            checkpoint: id,
            retain: state.checkpoints.iter().map(|one| one.checkpoint).collect(),
            sources: Vec::new(),
            file: file.unwrap_or_default().to_owned(),
        })
    }

    /// Stores what the archive lacks of `set`; gives the sequence of the root that holds it.
    fn drain(&mut self, job: &DrainJob, set: &Arc<FileSet>) -> Result<u64> {
        let settings = &self.plan.settings;
        let mut own = store_for(self.held.take(), job, settings, &self.pulse)?;
        {
            let mut progress = lock(&self.progress.drain);
            progress.file.clone_from(&own.file);
            progress.store = own.store.id();
        }
        let takes = own.store.write_bytes_per_second();
        let drain = Drain {
            from: From::Files(set),
            job,
            settings,
            store: &own.store,
            encoders: &self.encoders,
            means: Means {
                codec: settings.codec,
                second_pass: settings.second_pass,
                threads: settings.threads,
                write_bytes_per_second: takes.unwrap_or(WRITE_BYTES_PER_SECOND),
            },
            progress: &self.progress.drain,
            cancel: &self.cancel,
            pulse: &self.pulse,
        };
        let sequence = drain.run(&mut own.state)?;
        self.held = Some(own);
        Ok(sequence)
    }

    /// Reads every block of checkpoint `id` back, past all caches, each once.
    fn verify(&self, id: CheckpointId, file: &str, set: &FileSet) -> Result<()> {
        let reader = open_store(&self.plan.folder, file)?;
        let (root, _) = reader.newest_root()?;
        let entry = root.revisions.iter().find(|one| one.checkpoint == id);
        let missing = || {
            wrong(format!(
                "checkpoint {id} is not in {file}, where it was put"
            ))
        };
        let mut blocks = stored_blocks(&reader, entry.ok_or_else(missing)?, set)?;
        blocks.sort_unstable_by_key(|(block, _)| block.address);
        blocks.dedup_by_key(|(block, _)| block.address);
        let total = blocks.iter().map(|(_, length)| to_u64(*length)).sum();
        self.progress.to_verify.store(total, Ordering::Relaxed);
        // What is in one segment is decoded once, by one thread.
        let segments: Vec<&[(BlockRef, usize)]> = blocks
            .chunk_by(|(one, _), (next, _)| one.address.segment() == next.address.segment())
            .collect();
        let threads = index(self.plan.settings.threads).max(1);
        let checked = parallel(&segments, threads, |blocks| {
            let mut buffer = Vec::new();
            for (block, length) in *blocks {
                if self.cancel.load(Ordering::Relaxed) {
                    return Err(Error::new(
                        ErrorKind::Timeout,
                        "the import was told to stop",
                    ));
                }
                buffer.resize(*length, 0);
                reader.read(block, &mut buffer, "block")?;
                self.progress
                    .verified
                    .fetch_add(to_u64(*length), Ordering::Relaxed);
            }
            Ok(())
        });
        checked.map(|_| ())
    }
}

/// Where the blocks of a checkpoint stand, whose digests are those of the files.
fn stored_blocks(
    reader: &StoreReader,
    entry: &RevisionEntry,
    set: &FileSet,
) -> Result<Vec<(BlockRef, usize)>> {
    let ranks = read_ranks(reader, entry)?;
    let mut found = Vec::new();
    let mut entries = ranks.iter();
    for (rank, files) in set.digests() {
        let entry = entries.next().filter(|entry| entry.rank == rank);
        let entry = entry.ok_or_else(|| wrong(format!("rank {rank} was not stored")))?;
        let part = read_part(reader, &entry.root)?;
        if part.streams.len() != files.len() {
            return Err(wrong(format!("files of rank {rank} were not stored")));
        }
        for (stream, digests) in part.streams.iter().zip(files) {
            let mut stored: Vec<Digest> = Vec::with_capacity(digests.len());
            read_blocks(reader, stream, &mut |at, block| {
                stored.push(block.digest);
                found.push((*block, stream.block_length(at)));
                Ok(())
            })?;
            if stored != digests {
                return Err(wrong(format!(
                    "a file of rank {rank} was not stored as it is"
                )));
            }
        }
    }
    Ok(found)
}

fn wrong(context: String) -> Error {
    Error::new(ErrorKind::Corrupt, context)
}

/// That what is in `folder` was imported, if anything is.
fn refuse_others(folder: &Path) -> Result<()> {
    let found = match Catalog::open_reader(folder) {
        Err(error) if error.kind() == ErrorKind::NoCheckpoint => return Ok(()),
        found => found?,
    };
    if found.superblock().run == RUN {
        return Ok(());
    }
    let context = format!(
        "{} is the archive of a job that ran, whose next start would take what is imported for its own: give another \
         --job",
        folder.display()
    );
    Err(Error::new(ErrorKind::StoreBusy, context))
}
