// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The space of an archive store: used again, reserved, given back, and what becomes of the store where there is no
//! more of it or a write fails.

use crate::archive_store::{
    DeviceFolder, append, content, id, identity, options, reading, stored_whole,
};
use backstay_archive::{ArchiveDevice, ArchiveStore, Commit, WriteOptions, store_file};
use backstay_base::ErrorKind;
use backstay_testkit::SimDevice;
use backstay_testkit::device::{EIO, ENOSPC};
use std::sync::Arc;

#[test]
fn space_is_used_again_only_when_the_root_without_it_is_durable() {
    let device = Arc::new(SimDevice::new());
    let store = ArchiveStore::create_on(device.clone(), &identity(1), &options()).unwrap();
    let mut live = vec![append(&store, 1, 60_000)];
    store.commit(&Commit::default()).unwrap();
    for round in 2..60 {
        let before = ArchiveDevice::open_on(device.clone(), &DeviceFolder::default(), &reading());
        let before = before.unwrap();
        let new = append(&store, round, 60_000);
        store.device().segment(new).unwrap();
        // All that the durable root has is still there, though new data is written.
        for entry in before.entries() {
            before.segment(entry.segment).unwrap();
        }
        live.push(new);
        let free = if live.len() > 2 {
            vec![live.remove(0)]
        } else {
            Vec::new()
        };
        let freed = free.clone();
        store
            .commit(&Commit {
                free,
                ..Commit::default()
            })
            .unwrap();
        for segment in freed {
            assert!(store.device().entry(segment).is_none());
        }
    }
    let stats = store.stats();
    assert!(stats.file_bytes < 10 << 20, "{stats:?}");
    assert!(stats.growths <= 1, "{stats:?}");
    assert_eq!(store.root().sequence, 60);
}

/// A reader of an older root is told that what it reads was given up, not that it is damaged.
#[test]
fn a_reader_that_is_left_behind_is_told_so() {
    let device = Arc::new(SimDevice::new());
    let store = ArchiveStore::create_on(device.clone(), &identity(1), &options()).unwrap();
    let first = append(&store, 1, 100_000);
    store.commit(&Commit::default()).unwrap();
    let reader = ArchiveDevice::open_on(device, &DeviceFolder::default(), &reading()).unwrap();
    let free = vec![first];
    store
        .commit(&Commit {
            free,
            ..Commit::default()
        })
        .unwrap();
    while store.stats().growths == 0 {
        append(&store, 2, 10_000);
    }
    let last = append(&store, 2, 10_000);
    store.commit(&Commit::default()).unwrap();
    let error = reader.segment(first).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotRetained, "{error}");
    assert!(reader.reload().unwrap());
    assert!(!reader.reload().unwrap());
    assert!(reader.segment(last).is_ok());
    assert_eq!(reader.root().sequence, 4);
}

#[test]
fn a_full_device_is_an_error_and_the_store_goes_on() {
    let device = Arc::new(SimDevice::new());
    let store = ArchiveStore::create_on(device.clone(), &identity(1), &options()).unwrap();
    let kept = append(&store, 1, 50_000);
    store.commit(&Commit::default()).unwrap();
    device.set_capacity(store.stats().file_bytes + (64 << 10));
    let mut appended = 0;
    let error = loop {
        let segment = store.next_segment();
        let payload = content(segment.0, 40_000);
        match store.append(stored_whole(segment, id(2), payload)) {
            Ok(_) => appended += 1,
            Err(error) => break error,
        }
        assert!(appended < 100);
    };
    assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
    assert!(appended >= 2, "it grew by what there was");
    store.roll_back();
    assert_eq!(store.device().entries().len(), 1);
    device.set_unlimited();
    let next = append(&store, 2, 40_000);
    store.commit(&Commit::default()).unwrap();
    let read = ArchiveDevice::open_on(device, &DeviceFolder::default(), &reading()).unwrap();
    for (segment, length) in [(kept, 50_000), (next, 40_000)] {
        assert!(*read.segment(segment).unwrap() == content(segment.0, length));
    }
}

#[test]
fn a_write_that_fails_is_rolled_back_and_a_failed_sync_ends_the_store() {
    let device = Arc::new(SimDevice::new());
    let store = ArchiveStore::create_on(device.clone(), &identity(1), &options()).unwrap();
    let kept = append(&store, 1, 1000);
    store.commit(&Commit::default()).unwrap();
    for errno in [ENOSPC, EIO] {
        device.fail_write(1, errno);
        append(&store, 2, 10_000);
        let error = store.commit(&Commit::default()).unwrap_err();
        let wanted = if errno == EIO {
            ErrorKind::StoreIo
        } else {
            ErrorKind::StoreFull
        };
        assert_eq!(error.kind(), wanted);
        let lost = store.device().entries()[1].segment;
        assert_eq!(store.device().segment(lost).unwrap_err().kind(), wanted);
        assert!(
            store.device().segment(kept).is_ok(),
            "what was committed is read"
        );
        assert!(store.device().stored(kept).is_ok());
        let again = store.commit(&Commit::default()).unwrap_err();
        assert_eq!(again.kind(), wanted, "until it is rolled back");
        store.roll_back();
    }
    // The write of the root itself: the second after the table.
    for nth in [2, 3] {
        let next = append(&store, 3, 10_000);
        device.fail_write(nth, ENOSPC);
        assert_eq!(
            store.commit(&Commit::default()).unwrap_err().kind(),
            ErrorKind::StoreFull
        );
        store.commit(&Commit::default()).unwrap();
        let read = ArchiveDevice::open_on(device.clone(), &DeviceFolder::default(), &reading());
        assert!(read.unwrap().segment(next).is_ok());
    }
    let before = store.root();
    device.fail_sync(1, EIO);
    append(&store, 4, 10_000);
    for _ in 0..2 {
        let error = store.commit(&Commit::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreFailed, "{error}");
    }
    store.roll_back();
    let segment = store.next_segment();
    let error = store
        .append(stored_whole(segment, id(4), vec![1]))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreFailed);
    assert_eq!(store.root(), before);
    assert!(store.device().segment(kept).is_ok());
}

/// Blocks of the file on the disk, in bytes.
fn on_disk(path: &std::path::Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// What is expected is reserved at once; what is given up goes back when much more is free than is used and
/// expected, and all of it when somebody says so. What stays is read as before, also by who opens it anew.
#[test]
fn a_file_is_as_large_as_what_is_in_it() {
    const MIB: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let (folder, name) = (folder.path(), store_file(3, 1));
    let path = folder.join(&name);
    let options = WriteOptions {
        read: reading(),
        ..WriteOptions::default()
    };
    let store = ArchiveStore::create(folder, &name, &identity(1), &options).unwrap();
    assert!(on_disk(&path) <= 2 * MIB, "{}", on_disk(&path));
    store.expect_bytes(30 * MIB).unwrap();
    let reserved = on_disk(&path);
    assert!((30 * MIB..33 * MIB).contains(&reserved), "{reserved}");
    let mut kept = Vec::new();
    let mut gone = Vec::new();
    for number in 0..100 {
        let segment = append(&store, 1, 300_000);
        if number % 10 == 0 {
            kept.push(segment);
        } else {
            gone.push(segment);
        }
    }
    assert_eq!(store.stats().growths, 1, "it was reserved in one step");
    store.commit(&Commit::default()).unwrap();
    for _ in 0..6 {
        store.expect_bytes(MIB).unwrap();
    }
    let commit = Commit {
        free: gone,
        ..Commit::default()
    };
    store.commit(&commit).unwrap();
    let (stats, now) = (store.stats(), on_disk(&path));
    assert_eq!(stats.shrinks, 1);
    assert!(stats.free_bytes >= MIB && now < 9 * MIB, "{stats:?}, {now}");
    // The next of the same size find their space.
    for _ in 0..3 {
        append(&store, 2, 300_000);
    }
    assert_eq!(store.stats().growths, stats.growths);
    store.roll_back();
    store.give_up_free().unwrap();
    let now = on_disk(&path);
    assert!(now < 4 * MIB, "3 MB of segments take {now} bytes");
    drop(store);
    let store = ArchiveStore::open(folder, &name, &identity(1), &options).unwrap();
    for segment in kept {
        let bytes = store.device().segment(segment).unwrap();
        assert!(*bytes == content(segment.0, 300_000));
    }
    // What is a hole now is had again where it is needed.
    for _ in 0..100 {
        append(&store, 3, 300_000);
    }
    store.commit(&Commit::default()).unwrap();
    assert!(on_disk(&path) > 30 * MIB);
}

/// A file system that says no to all of it: the store goes on with what it has.
#[test]
fn space_that_cannot_be_given_back_or_had_stays_as_it_is() {
    let device = Arc::new(SimDevice::new());
    let store = ArchiveStore::create_on(device.clone(), &identity(1), &options()).unwrap();
    device.set_capacity(store.stats().file_bytes);
    // More than there is: no error before it is needed.
    store.expect_bytes(1 << 30).unwrap();
    assert_eq!(store.stats().growths, 0);
    let segment = append(&store, 1, 50_000);
    store.commit(&Commit::default()).unwrap();
    assert!(store.device().segment(segment).is_ok());
}
