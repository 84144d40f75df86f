// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: Backstay's way: one archive store per aggregator, one aggregator a mount, and the catalog; the
//! stores are files of their own, or regions of one file.
//! In from: `main` (what each writer has, pulled through memory). Out to: the mounts, by the engine's
//! archive.
//! Invariants: what is measured is the engine's own writer, with its format, hashes and commits; the
//! last two checkpoints are retained.

use crate::ways::{Payload, Way, all_at_once};
use backstay::CheckpointId;
use backstay::format::archive::DATA_OFFSET;
use backstay::format::stream::StreamRoot;
use backstay::format::width::{to_u64, to_usize};
use backstay::format::{
    Address, BlockRef, Digest, RankEntry, RankRange, RevisionEntry, SegmentClass, SegmentHeader,
    SegmentId, SegmentPiece,
};
use backstay_archive::{
    ArchiveDevice, ArchiveStore, Catalog, Commit, Folder, Identity, NewCheckpoint, NewPart,
    NewSegment, ReadOptions, WriteOptions, catalog, fence, store_file,
};
use backstay_base::io::Device;
use backstay_base::io::direct::SharedFile;
use backstay_base::io::region::Region;
use backstay_bench::{MIB, Outcome};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

const RETAINED: usize = 2;

/// How the archive is written, where that is not the engine's default.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// Threads of each aggregator that write.
    pub(crate) threads: Option<usize>,
    /// Bytes of one write.
    pub(crate) write_bytes: Option<usize>,
    /// `O_DIRECT`.
    pub(crate) direct: bool,
}

/// A retained checkpoint of one store.
#[derive(Debug, Clone)]
struct Retained {
    entry: RevisionEntry,
    segments: Vec<SegmentId>,
}

#[derive(Debug)]
struct Aggregator {
    store: ArchiveStore,
    file: String,
    retained: Mutex<Vec<Retained>>,
}

/// The aggregators and their catalog.
#[derive(Debug)]
pub(crate) struct Archive {
    name: &'static str,
    aggregators: Vec<Aggregator>,
    catalog: Catalog,
    mounts: Vec<PathBuf>,
    /// Bytes of a region, where the stores are regions of one file.
    region_bytes: Option<u64>,
}

/// The file of all stores, where they share one.
const ONE_FILE: &str = "aggregates.backstay";

/// The range of the shared file that is aggregator `index`'s.
fn region(mount: &Path, index: usize, bytes: u64, write: Option<bool>) -> Outcome<Arc<Region>> {
    let path = mount.join(ONE_FILE);
    let file = match write {
        Some(direct) => SharedFile::open(&path, direct)?,
        None => SharedFile::open_read_only(&path, true)?,
    };
    Ok(Arc::new(Region::new(
        Arc::new(file),
        to_u64(index) * bytes,
        bytes,
    )))
}

impl Archive {
    /// Makes the files, with room for the retained checkpoints of `bytes` and the one being written; one
    /// file for all stores if `is_one_file`.
    pub(crate) fn create(
        mounts: &[PathBuf],
        bytes: usize,
        settings: &Settings,
        is_one_file: bool,
    ) -> Outcome<Self> {
        let share = bytes / mounts.len() + bytes / 32;
        let mut options = WriteOptions {
            reserve_bytes: to_u64((RETAINED + 1) * share + 16 * MIB),
            direct_write: settings.direct,
            ..WriteOptions::default()
        };
        options.writer_threads = settings.threads.unwrap_or(options.writer_threads);
        options.write_bytes = settings.write_bytes.unwrap_or(options.write_bytes);
        let mut identity = Identity {
            job: "bench".to_owned(),
            run: 1,
            aggregator: 0,
            epoch: 1,
            host: fence::host(),
        };
        std::fs::create_dir_all(&mounts[0])?;
        let catalog =
            Catalog::create(&mounts[0], &identity, catalog::slot_bytes_for(mounts.len()))?;
        let end = DATA_OFFSET + options.reserve_bytes;
        let region_bytes = end.next_multiple_of(to_u64(options.write_bytes));
        if is_one_file {
            let file = SharedFile::create(&mounts[0].join(ONE_FILE), false, |_| Ok(()))?;
            file.reserve(region_bytes * to_u64(mounts.len()))?;
        }
        let mut aggregators = Vec::new();
        for (index, mount) in mounts.iter().enumerate() {
            identity.aggregator = u32::try_from(index)?;
            let file = store_file(identity.aggregator, 1);
            let store = if is_one_file {
                let region = region(mount, index, region_bytes, Some(settings.direct))?;
                ArchiveStore::create_on(region, &identity, &options)?
            } else {
                ArchiveStore::create(mount, &file, &identity, &options)?
            };
            aggregators.push(Aggregator {
                store,
                file,
                retained: Mutex::default(),
            });
        }
        Ok(Self {
            name: if is_one_file {
                "archive-one-file"
            } else {
                "archive"
            },
            aggregators,
            catalog,
            mounts: mounts.to_vec(),
            region_bytes: is_one_file.then_some(region_bytes),
        })
    }

    /// A store as another mount than its own sees it.
    fn reader(&self, index: usize) -> Outcome<Arc<ArchiveDevice>> {
        let mount = &self.mounts[(index + 1) % self.mounts.len()];
        let options = ReadOptions::default();
        let Some(bytes) = self.region_bytes else {
            let file = &self.aggregators[index].file;
            return Ok(ArchiveDevice::open(mount, file, &options)?);
        };
        let place = Folder {
            path: mount.clone(),
            direct: true,
        };
        let region = region(mount, index, bytes, None)?;
        Ok(ArchiveDevice::open_on(region, &place, &options)?)
    }

    /// What the writers of mount `index` have.
    fn parts<'a>(&self, index: usize, payload: &'a Payload) -> impl Iterator<Item = &'a Vec<u8>> {
        let count = self.aggregators.len();
        payload.parts.iter().skip(index).step_by(count)
    }
}

fn id(number: u64) -> CheckpointId {
    CheckpointId::new(1, number + 1)
}

impl Aggregator {
    /// Gathers `bytes` and hands them to the store.
    fn append(&self, number: u64, bytes: &[u8]) -> Outcome<(SegmentId, Digest)> {
        let (segment, digest) = (self.store.next_segment(), Digest::of(bytes));
        let length_bytes = u32::try_from(bytes.len())?;
        let header_bytes = SegmentHeader::base_bytes(1, 0, 1);
        let mut payload = self.store.room(header_bytes, bytes.len());
        payload.copy_from_slice(bytes);
        self.store.append(NewSegment {
            segment,
            checkpoint: id(number),
            class: SegmentClass::Large,
            merge: 0,
            element: None,
            variable: String::new(),
            scheme: vec![0],
            decoded_bytes: length_bytes,
            pieces: vec![SegmentPiece {
                offset: 0,
                length_bytes,
                digest,
            }],
            bases: Vec::new(),
            payload,
        })?;
        Ok((segment, digest))
    }

    /// Pulls what the writers have, appends and commits; the sequence of the root.
    fn checkpoint<'a>(
        &self,
        number: u64,
        parts: impl Iterator<Item = &'a Vec<u8>>,
    ) -> Outcome<u64> {
        let (mut segments, mut ranks, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (rank, part) in (0..).zip(parts) {
            bytes += to_u64(part.len());
            let (segment, digest) = self.append(number, part)?;
            let address = Address::new(segment, 0);
            let root = BlockRef { address, digest };
            ranks.push(RankEntry { rank, root });
            segments.push(segment);
        }
        let (table, count) = (
            RankEntry::encode_table(&ranks)?,
            u32::try_from(segments.len())?,
        );
        let length_bytes = to_u64(table.len());
        let (segment, digest) = self.append(number, &table)?;
        segments.push(segment);
        let address = Address::new(segment, 0);
        let entry = RevisionEntry {
            checkpoint: id(number),
            pinned: false,
            complete: true,
            world_size: count,
            committed_unix_ns: number + 1,
            bytes_total: bytes,
            bytes_changed: bytes,
            ranks: StreamRoot {
                length_bytes,
                block_bytes: 1 << 14,
                height: 0,
                top: BlockRef { address, digest },
            },
        };
        let mut retained = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
        retained.push(Retained { entry, segments });
        let dropped = retained.len().saturating_sub(RETAINED);
        let free = retained
            .drain(..dropped)
            .flat_map(|old| old.segments)
            .collect();
        Ok(self.store.commit(&Commit {
            incarnation: 1,
            draining: None,
            revisions: retained.iter().map(|one| one.entry).collect(),
            free,
        })?)
    }
}

impl Way for Archive {
    fn name(&self) -> &'static str {
        self.name
    }
    fn checkpoint(&self, number: u64, payload: &Payload) -> Outcome<f64> {
        let begun = Instant::now();
        let sequences: Vec<Mutex<u64>> = self.aggregators.iter().map(|_| Mutex::new(0)).collect();
        all_at_once(self.aggregators.len(), |index| {
            let sequence =
                self.aggregators[index].checkpoint(number, self.parts(index, payload))?;
            *sequences[index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = sequence;
            Ok(())
        })?;
        let world_size = u32::try_from(payload.parts.len())?;
        let parts = self.aggregators.iter().zip(sequences).zip(0..).map(
            |((aggregator, sequence), index)| NewPart {
                ranks: RankRange::of((index..world_size).step_by(self.aggregators.len())),
                store: aggregator.store.id(),
                file: aggregator.file.clone(),
                sequence: sequence
                    .into_inner()
                    .unwrap_or_else(PoisonError::into_inner),
            },
        );
        let bytes = to_u64(payload.parts.iter().map(Vec::len).sum());
        self.catalog.record(&NewCheckpoint {
            checkpoint: id(number),
            world_size,
            bytes_total: bytes,
            bytes_written: bytes,
            parts: parts.collect(),
        })?;
        Ok(begun.elapsed().as_secs_f64())
    }
    fn verify(&self, number: u64, payload: &Payload) -> Outcome<()> {
        let catalog = Catalog::open_reader(&self.mounts[1 % self.mounts.len()])?;
        let listed = catalog
            .state()
            .find(id(number))
            .ok_or("not in the catalog")?;
        if to_usize(u64::from(listed.world_size)) != payload.parts.len() {
            return Err("the catalog tells another number of ranks".into());
        }
        for (index, aggregator) in self.aggregators.iter().enumerate() {
            let device = self.reader(index)?;
            let retained = aggregator
                .retained
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            let newest = retained.last().ok_or("nothing is retained")?;
            for (segment, part) in newest.segments.iter().zip(self.parts(index, payload)) {
                if *device.segment(*segment)? != *part {
                    return Err("archive: not the bytes that were written".into());
                }
            }
        }
        Ok(())
    }
    fn clear(&self, _number: u64) -> Outcome<()> {
        Ok(())
    }
}
