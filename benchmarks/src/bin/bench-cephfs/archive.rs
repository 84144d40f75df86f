// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: Backstay's way: one archive store per aggregator, one aggregator a mount, and the catalog.
//! In from: `main` (what each writer has, pulled through memory). Out to: the mounts, by the engine's
//! archive.
//! Invariants: what is measured is the engine's own writer, with its format, hashes and commits; the
//! last two checkpoints are retained.

use crate::ways::{Payload, Way, all_at_once};
use backstay::CheckpointId;
use backstay::archive::{
    ArchiveDevice, ArchiveStore, Catalog, Commit, Identity, NewCheckpoint, NewPart, NewSegment,
    ReadOptions, WriteOptions, catalog, fence, store_file,
};
use backstay::format::stream::StreamRoot;
use backstay::format::width::{to_u64, to_usize};
use backstay::format::{
    Address, BlockRef, Digest, Encoder, RankEntry, RevisionEntry, SegmentClass, SegmentId,
    SegmentPiece,
};
use backstay_bench::{MIB, Outcome};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
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
    aggregators: Vec<Aggregator>,
    catalog: Catalog,
    mounts: Vec<PathBuf>,
}

impl Archive {
    /// Makes the files, with room for the retained checkpoints of `bytes` and the one being written.
    pub(crate) fn create(mounts: &[PathBuf], bytes: usize, settings: &Settings) -> Outcome<Self> {
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
        let catalog = Catalog::create(&mounts[0], &identity, catalog::SLOT_BYTES)?;
        let mut aggregators = Vec::new();
        for (index, mount) in (0..).zip(mounts) {
            identity.aggregator = index;
            let file = store_file(index, 1);
            aggregators.push(Aggregator {
                store: ArchiveStore::create(mount, &file, &identity, &options)?,
                file,
                retained: Mutex::default(),
            });
        }
        Ok(Self {
            aggregators,
            catalog,
            mounts: mounts.to_vec(),
        })
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
    fn append(&self, number: u64, payload: Vec<u8>) -> Outcome<(SegmentId, Digest)> {
        let (segment, digest) = (self.store.next_segment(), Digest::of(&payload));
        let length_bytes = u32::try_from(payload.len())?;
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
            payload: payload.into(),
        })?;
        Ok((segment, digest))
    }

    /// Pulls what the writers have, appends and commits; the sequence of the root.
    fn checkpoint<'a>(
        &self,
        number: u64,
        parts: impl Iterator<Item = &'a Vec<u8>>,
    ) -> Outcome<u64> {
        let (mut segments, mut ranks, mut bytes) = (Vec::new(), Encoder::new(), 0);
        for (rank, part) in (0..).zip(parts) {
            bytes += to_u64(part.len());
            let (segment, digest) = self.append(number, part.clone())?;
            let address = Address::new(segment, 0);
            let root = BlockRef { address, digest };
            RankEntry { rank, root }.encode(&mut ranks);
            segments.push(segment);
        }
        let (table, count) = (ranks.finish(), u32::try_from(segments.len())?);
        let length_bytes = to_u64(table.len());
        let (segment, digest) = self.append(number, table)?;
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
        "archive"
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
        let parts = self
            .aggregators
            .iter()
            .zip(sequences)
            .map(|(aggregator, sequence)| NewPart {
                store: aggregator.store.id(),
                file: aggregator.file.clone(),
                sequence: sequence
                    .into_inner()
                    .unwrap_or_else(PoisonError::into_inner),
            });
        let bytes = to_u64(payload.parts.iter().map(Vec::len).sum());
        self.catalog.record(&NewCheckpoint {
            checkpoint: id(number),
            world_size: u32::try_from(payload.parts.len())?,
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
            let mount = &self.mounts[(index + 1) % self.mounts.len()];
            let device = ArchiveDevice::open(mount, &aggregator.file, &ReadOptions::default())?;
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
