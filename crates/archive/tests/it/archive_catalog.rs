// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The catalog in a folder: recorded, abandoned, dropped, kept; taken over; another job refused; damage.

use crate::archive_store::{id, identity};
use backstay_archive::catalog::slot_bytes_for;
use backstay_archive::drain::fetch::ArchiveFound;
use backstay_archive::retention::{Reason, plan};
use backstay_archive::{Catalog, Identity, NewCheckpoint, NewPart, catalog_file, store_file};
use backstay_base::ErrorKind;
use backstay_format::limits::REVISIONS_MAX;
use backstay_format::width::{index, to_u64};
use backstay_format::{CheckpointId, Digest, Lineage, RankRange, StoreId};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const SLOT: u32 = 64 << 10;

fn checkpoint(checkpoint: CheckpointId, stores: &[u8]) -> NewCheckpoint {
    let part = |(rank, &store): (u32, &u8)| NewPart {
        store: StoreId([store; 16]),
        file: format!("aggregate-{store}-1.backstay"),
        sequence: checkpoint.number,
        ranks: RankRange::of([rank]),
    };
    NewCheckpoint {
        checkpoint,
        world_size: u32::try_from(stores.len()).unwrap(),
        bytes_total: 1000,
        bytes_written: 10 * checkpoint.number,
        parts: (0..).zip(stores).map(part).collect(),
    }
}

fn listed(folder: &Path) -> Vec<CheckpointId> {
    let reader = Catalog::open_reader(folder).unwrap();
    let entries = reader.state().restorable();
    entries.map(|entry| entry.checkpoint).collect()
}

#[test]
fn a_checkpoint_is_listed_until_it_is_abandoned_or_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let error = Catalog::open_reader(folder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoCheckpoint);
    let catalog = Catalog::create(folder, &identity(0), SLOT).unwrap();
    assert_eq!(listed(folder), []);
    for number in [1, 2, 3, 5] {
        catalog.record(&checkpoint(id(number), &[2, 1])).unwrap();
    }
    catalog.record(&checkpoint(id(4), &[1, 3])).unwrap();
    assert_eq!(listed(folder), [1, 2, 3, 4, 5].map(id));
    let reader = Catalog::open_reader(folder).unwrap();
    let entry = reader.state().find(id(4)).unwrap();
    let files: Vec<&str> = entry
        .parts
        .iter()
        .map(|part| &*reader.store_of(part).unwrap().name)
        .collect();
    assert_eq!(files, ["aggregate-1-1.backstay", "aggregate-3-1.backstay"]);

    // The second start goes on from 3: what the first did later is abandoned, also when it comes late.
    catalog.begin_start(lineage(2), Some(id(3))).unwrap();
    catalog.begin_start(lineage(2), Some(id(3))).unwrap();
    assert_eq!(listed(folder), [1, 2, 3].map(id));
    let late = catalog.record(&checkpoint(id(6), &[1])).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotRetained);
    let again = CheckpointId::new(2, 4);
    catalog.record(&checkpoint(again, &[1])).unwrap();
    assert_eq!(listed(folder), [id(1), id(2), id(3), again]);
    let older = catalog.begin_start(lineage(1), None).unwrap_err();
    assert_eq!(older.kind(), ErrorKind::InvalidArgument);

    catalog.keep(1, true).unwrap();
    let missing = catalog.keep(77, true).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotRetained);
    let plan = plan(&catalog.state(), 1);
    let dropped: Vec<_> = plan
        .dropped
        .iter()
        .map(|drop| (drop.checkpoint, drop.reason))
        .collect();
    let (superseded, abandoned) = (Reason::Superseded, Reason::Abandoned);
    let wanted = [
        (id(2), superseded),
        (id(3), superseded),
        (id(4), abandoned),
        (id(5), abandoned),
    ];
    assert_eq!(dropped, wanted);
    assert_eq!(plan.retained, [id(1), again]);
    catalog.drop_checkpoints(&plan.checkpoints()).unwrap();
    let sequence = catalog.state().sequence;
    catalog.drop_checkpoints(&plan.checkpoints()).unwrap();
    assert_eq!(catalog.state().sequence, sequence, "nothing to write");
    assert_eq!(listed(folder), plan.retained);
    // Store 3 was named by 4 alone.
    assert_eq!(catalog.state().stores.len(), 2);
}

#[test]
fn a_catalog_is_opened_again_or_taken_over_and_another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = Catalog::create(folder, &identity(0), SLOT).unwrap();
    first.record(&checkpoint(id(1), &[1])).unwrap();
    let held = Catalog::open_or_create(folder, &identity(0), SLOT).unwrap_err();
    assert_eq!(held.kind(), ErrorKind::StoreBusy, "{held}");
    let taken = Catalog::take_over(folder, &identity(0)).unwrap();
    assert_eq!(
        (taken.file(), taken.superblock().epoch),
        (&*catalog_file(2), 2)
    );
    taken.record(&checkpoint(id(2), &[1])).unwrap();
    // The one that was taken over from wakes up: nobody sees what it says, and it is told.
    let told = first.drop_checkpoints(&[id(1)]).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::StoreBusy, "{told}");
    assert!(told.to_string().contains("file of epoch 2"), "{told}");
    assert_eq!(first.is_current().unwrap_err().kind(), ErrorKind::StoreBusy);
    taken.is_current().unwrap();
    assert_eq!(listed(folder), [1, 2].map(id));
    drop((first, taken));

    let again = Catalog::open_or_create(folder, &identity(0), SLOT).unwrap();
    assert_eq!(again.superblock().epoch, 2);
    again.record(&checkpoint(id(3), &[1])).unwrap();
    assert_eq!(listed(folder), [1, 2, 3].map(id));
    drop(again);
    for other in [
        Identity {
            run: 9,
            ..identity(0)
        },
        Identity {
            job: "other".to_owned(),
            ..identity(0)
        },
    ] {
        for result in [
            Catalog::create(folder, &other, SLOT),
            Catalog::open_writer(folder, &other),
            Catalog::take_over(folder, &other),
            Catalog::open_or_create(folder, &other, SLOT),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::StoreBusy);
            let text = error.to_string();
            assert!(
                text.contains("job heat run 00000007") && text.contains(&other.job),
                "{text}"
            );
        }
    }
}

#[test]
fn a_damaged_state_gives_way_to_the_one_before_and_a_new_file_counts_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let catalog = Catalog::create(folder, &identity(0), SLOT).unwrap();
    for number in 1..=4 {
        catalog.record(&checkpoint(id(number), &[1])).unwrap();
    }
    drop(catalog);
    let path = folder.join(catalog_file(1));
    // A takeover that ended before its state was there.
    std::fs::write(folder.join(catalog_file(2)), vec![0; 5 << 20]).unwrap();
    std::fs::write(folder.join("catalog-x.backstay"), "other").unwrap();
    let reader = Catalog::open_reader(folder).unwrap();
    assert_eq!(
        (listed(folder).len(), reader.file()),
        (4, &*catalog_file(1))
    );
    assert!(reader.damaged().is_none(), "it never was a catalog");
    let bytes = std::fs::read(&path).unwrap();
    let state = 4 << 20;
    for offset in [state + 50, state + 100] {
        let mut damaged = bytes.clone();
        damaged[offset] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert_eq!(listed(folder), [1, 2, 3].map(id));
        damaged[offset + usize::try_from(SLOT).unwrap()] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        let error = Catalog::open_reader(folder).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("catalog-"), "{error}");
    }
    std::fs::write(&path, &bytes).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xff; 64], 0).unwrap();
    assert_eq!(listed(folder).len(), 4, "the other superblock");
    for length in [
        0,
        100,
        4096,
        8000,
        4 << 20,
        (4 << 20) + 100,
        (4 << 20) + 70_000,
    ] {
        file.set_len(length).unwrap();
        file.set_len(length).unwrap();
        let error = Catalog::open_reader(folder);
        assert!(error.is_err() || listed(folder).len() == 3, "{length}");
    }
}

#[test]
fn a_state_that_does_not_fit_is_refused_and_the_last_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = Catalog::create(folder.path(), &identity(0), SLOT).unwrap();
    let stores: Vec<u8> = (0..=255).collect();
    let mut recorded = 0;
    let error = loop {
        match catalog.record(&checkpoint(id(recorded + 1), &stores)) {
            Ok(()) => recorded += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
    assert!(recorded > 10);
    catalog.drop_checkpoints(&[id(1), id(2)]).unwrap();
    catalog
        .record(&checkpoint(id(recorded + 1), &stores))
        .unwrap();
    assert_eq!(listed(folder.path()).len() as u64, recorded - 1);
}

/// A restart says that it takes the older state, and takes nothing where the newest cannot be read.
#[test]
fn a_restart_says_that_the_newest_state_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let catalog = Catalog::create(folder, &identity(0), SLOT).unwrap();
    for number in [1, 2] {
        catalog.record(&checkpoint(id(number), &[1])).unwrap();
    }
    drop(catalog);
    let says = || {
        let found = ArchiveFound::look(folder).unwrap();
        found
            .warnings
            .iter()
            .any(|text| text.contains("older state"))
    };
    assert!(!says());
    assert_eq!(listed(folder), [1, 2].map(id));
    // Three states were written: the newest is in slot 0.
    let mut options = std::fs::OpenOptions::new();
    let path = folder.join(catalog_file(1));
    let file = options.read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    let at = (4 << 20) + 40;
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    assert_eq!(listed(folder), [id(1)]);
    assert!(says());
}

/// A file of a higher epoch that cannot be opened may be the newest: the one before is not taken.
#[test]
fn a_catalog_that_cannot_be_opened_is_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let catalog = Catalog::create(folder, &identity(0), SLOT).unwrap();
    catalog.record(&checkpoint(id(1), &[1])).unwrap();
    drop(catalog);
    // Reading a folder is EISDIR, for everybody.
    std::fs::create_dir(folder.join(catalog_file(2))).unwrap();
    let error = Catalog::open_reader(folder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreIo, "{error}");
    let error = Catalog::open_or_create(folder, &identity(0), SLOT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreIo, "{error}");
    std::fs::remove_dir(folder.join(catalog_file(2))).unwrap();
    assert_eq!(listed(folder), [id(1)]);
}

/// One checkpoint of `aggregators`, each of which has `ranks` ranks, of the round-robin kind.
fn large(id: CheckpointId, aggregators: u32, ranks: u32) -> NewCheckpoint {
    let part = |at: u32| NewPart {
        store: StoreId(Digest::of(&at.to_le_bytes()).0),
        file: store_file(at, 999),
        sequence: id.number,
        ranks: RankRange::of((0..ranks).map(|rank| rank * aggregators + at)),
    };
    NewCheckpoint {
        checkpoint: id,
        world_size: aggregators * ranks,
        bytes_total: 1,
        bytes_written: 1,
        parts: (0..aggregators).map(part).collect(),
    }
}

/// Of 10,240 nodes of 10 ranks: with the aggregators that they elect, and with each node for itself.
#[test]
fn a_catalog_has_room_for_all_that_an_archive_may_retain() {
    for (aggregators, ranks) in [(320, 320), (10_240, 10)] {
        let folder = tempfile::tempdir().unwrap();
        let slot_bytes = slot_bytes_for(index(aggregators));
        let catalog = Catalog::create(folder.path(), &identity(0), slot_bytes).unwrap();
        let most = to_u64(REVISIONS_MAX);
        // The first and the last: what stands between is as large.
        catalog.record(&large(id(1), aggregators, ranks)).unwrap();
        let state = catalog.state();
        let once = state.encode(StoreId::default()).unwrap().len();
        let entry = 52 + 16 * index(aggregators);
        assert!(once + entry * (REVISIONS_MAX - 1) <= index(slot_bytes));
        let found = ArchiveFound::look(folder.path()).unwrap();
        let last = aggregators * ranks - 1;
        assert_eq!(found.checkpoints[0].world_size(), last + 1);
        for rank in [0, 1, aggregators, last] {
            let file = found.checkpoints[0]
                .file_of(rank)
                .map(|at| &*found.files[at]);
            assert_eq!(file, Some(&*store_file(rank % aggregators, 999)));
        }
        assert_eq!(found.checkpoints[0].file_of(last + 1), None);
        if aggregators == 320 {
            (2..=most).for_each(|n| catalog.record(&large(id(n), aggregators, ranks)).unwrap());
            let found = ArchiveFound::look(folder.path()).unwrap();
            assert_eq!(found.checkpoints.len(), REVISIONS_MAX);
            let shared = &found.checkpoints[0].sources;
            assert!(
                found
                    .checkpoints
                    .iter()
                    .all(|c| Arc::ptr_eq(&c.sources, shared))
            );
        }
    }
}

/// A start with more aggregators than the catalog was made for goes on in a file with larger slots.
#[test]
fn a_catalog_with_too_small_slots_gives_way_to_a_larger_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let small = Catalog::create(folder, &identity(0), SLOT).unwrap();
    small.record(&checkpoint(id(1), &[1, 2])).unwrap();
    let held = Catalog::open_or_create(folder, &identity(0), 2 * SLOT).unwrap_err();
    assert_eq!(held.kind(), ErrorKind::StoreBusy, "{held}");
    drop(small);
    let large = Catalog::open_or_create(folder, &identity(0), 2 * SLOT).unwrap();
    assert_eq!(
        (large.file(), large.superblock().slot_bytes),
        (&*catalog_file(2), 2 * SLOT)
    );
    drop(large);
    let again = Catalog::open_or_create(folder, &identity(0), SLOT).unwrap();
    assert_eq!(again.superblock().slot_bytes, 2 * SLOT);
    assert_eq!(listed(folder), [id(1)]);
}

/// What is recorded has each rank once: else nobody would know where it is.
#[test]
fn a_checkpoint_without_parts_of_some_ranks_is_not_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = Catalog::create(folder.path(), &identity(0), SLOT).unwrap();
    let refused = |change: fn(&mut NewCheckpoint)| {
        let mut new = checkpoint(id(1), &[1, 2, 3]);
        change(&mut new);
        let error = catalog.record(&new).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    };
    refused(|new| new.world_size = 4);
    refused(|new| drop(new.parts.remove(1)));
    refused(|new| new.parts[1].ranks = RankRange::of([0]));
    refused(|new| new.parts[2].ranks.clear());
    assert_eq!(listed(folder.path()), []);
}

/// The lineage as start `start` of the job has it, which the first began.
fn lineage(start: u64) -> Lineage {
    Lineage {
        began: 1,
        start,
        ..Lineage::default()
    }
}
