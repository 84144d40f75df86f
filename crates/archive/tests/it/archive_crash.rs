// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The archive after a crash at every write and every sync: the state that was acknowledged last, or the
//! one under way, whole and verified; and it goes on from there.

use crate::archive_store::{DeviceFolder, append, content, id, identity, options, reading};
use backstay_archive::{
    ArchiveDevice, ArchiveStore, Catalog, CatalogReader, Commit, NewCheckpoint, WriteOptions,
};
use backstay_archive::{NewPart, store_file};
use backstay_base::io::ReadAt;
use backstay_format::RankRange;
use backstay_format::geometry::SUPERBLOCK_OFFSETS;
use backstay_format::{
    ArchiveSuperblock, CatalogState, CatalogSuperblock, CheckpointId, Lineage, SegmentId, StoreId,
};
use backstay_testkit::bytes::SharedBytes;
use backstay_testkit::{CrashImage, CrashOptions, Operation, SimDevice, for_each_image};
use std::collections::BTreeMap;
use std::sync::Arc;

/// With a reserve that is soon too much.
fn small() -> WriteOptions {
    WriteOptions {
        reserve_bytes: 32 << 10,
        ..options()
    }
}

type Segments = BTreeMap<SegmentId, usize>;

/// What a store acknowledged, and after how many operations.
#[derive(Debug, Clone)]
struct Mark {
    operations: usize,
    sequence: u64,
    draining: Option<CheckpointId>,
    segments: Segments,
}

/// A store that grew, committed, was rolled back, and used space again.
struct History {
    log: Vec<Operation>,
    initial: SharedBytes,
    folder: DeviceFolder,
    marks: Vec<Mark>,
}

fn mark(store: &ArchiveStore, device: &SimDevice, segments: &Segments) -> Mark {
    Mark {
        operations: device.log_length(),
        sequence: store.root().sequence,
        draining: store.root().draining,
        segments: segments.clone(),
    }
}

impl History {
    fn record(takeover: bool) -> Self {
        let folder = DeviceFolder::default();
        let mut live = Segments::new();
        let device = Arc::new(SimDevice::new());
        if takeover {
            let former = Arc::new(SimDevice::new());
            let store = ArchiveStore::create_on(former.clone(), &identity(1), &small()).unwrap();
            for length in [30_000, 5000, 60_000] {
                live.insert(append(&store, 1, length), length);
            }
            store.commit(&Commit::default()).unwrap();
            folder.put(&store_file(3, 1), &former);
        }
        let initial = device.start_log();
        let store = if takeover {
            let (former, identity) = (store_file(3, 1), identity(2));
            let device = device.clone();
            ArchiveStore::take_over_on(device, &folder, &former, &identity, &small()).unwrap()
        } else {
            ArchiveStore::create_on(device.clone(), &identity(1), &small()).unwrap()
        };
        let mut marks = vec![mark(&store, &device, &live)];
        for step in 0..7_u64 {
            if step == 3 {
                append(&store, step, 40_000);
                append(&store, step, 90_000);
                store.roll_back();
            }
            let many = if step == 2 { 4 } else { 1 };
            for length in [50_000, 1000, 20_000 * usize::try_from(step).unwrap() + 1].repeat(many) {
                live.insert(append(&store, step, length), length);
            }
            // In between nearly all goes: the file becomes shorter, with holes, and grows again.
            let drop = match step {
                0 | 1 => 0,
                4 => live.len() - 2,
                _ => 3,
            };
            let free: Vec<SegmentId> = live.keys().take(drop).copied().collect();
            live.retain(|segment, _| !free.contains(segment));
            let draining = (step % 2 == 0).then_some(id(step));
            let commit = Commit {
                incarnation: 1,
                draining,
                free,
                ..Commit::default()
            };
            store.commit(&commit).unwrap();
            marks.push(mark(&store, &device, &live));
        }
        let stats = store.stats();
        assert!(stats.growths > 1 && stats.shrinks >= 1, "{stats:?}");
        drop(store);
        let log = device.log();
        let has = |what: fn(&Operation) -> bool| log.iter().any(what);
        assert!(has(
            |o| matches!(o, Operation::Discard { offset, .. } if *offset > 4 << 20)
        ));
        assert!(has(|o| matches!(o, Operation::Shrink { .. })));
        Self {
            log,
            initial,
            folder,
            marks,
        }
    }

    fn check(&self, image: &CrashImage) -> Result<(), String> {
        let device = Arc::new(image.device());
        let said = |error: backstay_base::Error| error.to_string();
        let due = self
            .marks
            .partition_point(|mark| mark.operations <= image.ops_applied);
        let opened = ArchiveDevice::open_on(device.clone(), &self.folder, &reading());
        let reader = match opened {
            Ok(reader) => reader,
            // It was not made yet; a file with a superblock is a whole one.
            Err(_) if due == 0 && !has_superblock(&device) => return Ok(()),
            Err(error) => return Err(said(error)),
        };
        let allowed = [due.checked_sub(1), Some(due)];
        let mut allowed = allowed
            .into_iter()
            .flatten()
            .filter_map(|at| self.marks.get(at));
        let sequence = reader.root().sequence;
        let found = allowed.find(|mark| mark.sequence == sequence);
        let Some(mark) = found else {
            return Err(format!(
                "root {sequence} is not the last nor the next of {due}"
            ));
        };
        verify(&reader, mark)?;
        if !image.index.is_multiple_of(7) {
            return Ok(());
        }
        // The store goes on: what its root has is not written over.
        let store = ArchiveStore::open_on(device, &self.folder, &small()).map_err(said)?;
        let unfinished = store.unfinished().map_err(said)?;
        if unfinished
            .iter()
            .any(|header| Some(header.checkpoint) != mark.draining)
        {
            return Err("segments of another drain".to_owned());
        }
        for length in [70_000, 5000, 100] {
            append(&store, 99, length);
        }
        store
            .device()
            .segment(store.device().entries()[0].segment)
            .map_err(said)?;
        verify(&reader, mark)?;
        store.commit(&Commit::default()).map_err(said)?;
        verify(&store.device(), mark)
    }

    fn run(&self, options: CrashOptions) -> Result<usize, String> {
        let visited = for_each_image(&self.log, &self.initial, options, |image| self.check(image));
        visited
            .map(|summary| summary.images)
            .map_err(|failure| failure.to_string())
    }
}

fn has_superblock(device: &SimDevice) -> bool {
    SUPERBLOCK_OFFSETS.into_iter().any(|offset| {
        let mut bytes = vec![0; 4096];
        let read = device.read_at(&mut bytes, offset);
        let is_one =
            ArchiveSuperblock::decode(&bytes).is_ok() || CatalogSuperblock::decode(&bytes).is_ok();
        read.is_ok() && is_one
    })
}

fn verify(reader: &ArchiveDevice, mark: &Mark) -> Result<(), String> {
    for (&segment, &length) in &mark.segments {
        let bytes = reader.segment(segment).map_err(|error| error.to_string())?;
        if *bytes != content(segment.0, length) {
            return Err(format!("segment {} has other bytes", segment.0));
        }
    }
    Ok(())
}

fn crashes() -> CrashOptions {
    CrashOptions {
        exhaustive_up_to: 4,
        samples: 24,
        ..CrashOptions::default()
    }
}

#[test]
fn an_archive_store_survives_every_crash() {
    for takeover in [false, true] {
        let history = History::record(takeover);
        let images = history.run(crashes()).unwrap();
        assert!(images > 700, "only {images} images");
    }
}

/// The test is worth what it finds: without any one of the syncs it must fail.
#[test]
fn an_archive_store_that_forgets_a_sync_is_found() {
    let mut history = History::record(false);
    let syncs: Vec<usize> = (0..history.log.len())
        .filter(|&place| history.log[place] == Operation::Sync)
        .collect();
    assert_eq!(syncs.len(), 2 + 2 * 7);
    let mut missed = Vec::new();
    for place in syncs {
        history.log[place] = backstay_testkit::crash::write(0, &[]);
        let options = CrashOptions {
            from_operation: place,
            ..crashes()
        };
        if history.run(options).is_ok() {
            missed.push(place);
        }
        history.log[place] = Operation::Sync;
    }
    assert_eq!(missed, Vec::<usize>::new());
}

fn checkpoint(number: u64) -> NewCheckpoint {
    let part = |store: u8| NewPart {
        store: StoreId([store; 16]),
        file: store_file(u32::from(store), 1),
        sequence: number + 1,
        ranks: RankRange::of([u32::from(store) - 1]),
    };
    NewCheckpoint {
        checkpoint: id(number),
        world_size: 3,
        bytes_total: 1000,
        bytes_written: 10,
        parts: (1..=3).map(part).collect(),
    }
}

#[test]
fn a_catalog_survives_every_crash() {
    let device = SimDevice::new();
    let initial = device.start_log();
    let made = Arc::new(device.clone());
    let catalog = Catalog::create_on(made, &identity(1), 64 << 10, CatalogState::default());
    let catalog = catalog.unwrap();
    let mut marks = vec![(device.log_length(), catalog.state())];
    for step in 1..8 {
        match step {
            3 => catalog.begin_start(lineage(2), Some(id(1))).unwrap(),
            5 => catalog.drop_checkpoints(&[id(1), id(2)]).unwrap(),
            6 => catalog.keep(4, true).unwrap(),
            _ => {
                let mut new = checkpoint(step);
                new.checkpoint.incarnation = if step > 3 { 2 } else { 1 };
                catalog.record(&new).unwrap();
            }
        }
        marks.push((device.log_length(), catalog.state()));
    }
    let log = device.log();
    let visit = |log: &[Operation], seed| {
        let options = CrashOptions {
            seed,
            ..CrashOptions::default()
        };
        for_each_image(log, &initial, options, |image| {
            let due = marks.partition_point(|mark| mark.0 <= image.ops_applied);
            let read = CatalogReader::on(&image.device(), "catalog");
            if due == 0 && !has_superblock(&image.device()) {
                return Ok(());
            }
            let read = read.map_err(|error| error.to_string())?;
            let last = due.checked_sub(1).and_then(|last| marks.get(last));
            let allowed = [last, marks.get(due)];
            if !allowed
                .into_iter()
                .flatten()
                .any(|mark| *mark.1 == *read.state())
            {
                return Err(format!("state {} after {due}", read.state().sequence));
            }
            let device = Arc::new(image.device());
            let again = Catalog::open_on(device.clone(), "catalog", None);
            let again = again.map_err(|error| error.to_string())?;
            let mut next = checkpoint(50);
            next.checkpoint.incarnation = 2;
            again.record(&next).map_err(|error| error.to_string())?;
            let read = CatalogReader::on(&*device, "catalog").map_err(|error| error.to_string())?;
            let found = read.state().find(next.checkpoint);
            found
                .map(|_| ())
                .ok_or_else(|| "what was recorded is gone".to_owned())
        })
    };
    for seed in 1..8 {
        assert!(visit(&log, seed).unwrap().images > 60);
    }
    let mut forgetful = log.clone();
    for place in 0..log.len() {
        if log[place] == Operation::Sync {
            forgetful[place] = backstay_testkit::crash::write(0, &[]);
            assert!(
                (1..8).any(|seed| visit(&forgetful, seed).is_err()),
                "{place}"
            );
            forgetful[place] = Operation::Sync;
        }
    }
}

/// The lineage as start `start` of the job has it, which the first began.
fn lineage(start: u64) -> Lineage {
    Lineage {
        began: 1,
        start,
        ..Lineage::default()
    }
}
