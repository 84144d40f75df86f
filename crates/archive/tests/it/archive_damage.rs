// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The archive store when bytes of its file are flipped or cut off: what is damaged is named, and what is
//! not is read.

use crate::archive_store::{DeviceFolder, append, identity, options, reading};
use backstay_archive::{ArchiveDevice, ArchiveStore, Commit};
use backstay_base::ErrorKind;
use backstay_format::{Address, BlockRef, Digest, SegmentId};
use backstay_store::reader::StoreReader;
use backstay_testkit::SimDevice;
use std::sync::Arc;

/// Each damage is an error that names the file, and what and where; or the other root is taken.
#[test]
fn damage_is_named_and_the_other_root_taken() {
    let device = Arc::new(SimDevice::new());
    let store = ArchiveStore::create_on(device.clone(), &identity(1), &options()).unwrap();
    let first = append(&store, 1, 20_000);
    store.commit(&Commit::default()).unwrap();
    let second = append(&store, 2, 20_000);
    store.commit(&Commit::default()).unwrap();
    let (table, entry) = (
        store.root().table.offset,
        store.device().entry(second).unwrap(),
    );
    let payload = entry.offset + u64::from(entry.stored_bytes) - 20_000;
    drop(store);
    let image = device.to_vec();
    let open = |flips: &[u64]| {
        let device = SimDevice::from_bytes(image.clone());
        for &offset in flips {
            assert!(device.flip(offset, 4));
        }
        ArchiveDevice::open_on(Arc::new(device), &DeviceFolder::default(), &reading())
    };
    // The state is in slot 0, the root before it in slot 1.
    assert_eq!(open(&[]).unwrap().root().sequence, 3);
    for (offset, what) in [
        (16_384 + 40, "root slot at byte 16384"),
        (table + 100, "segment table"),
    ] {
        let reader = open(&[offset]).unwrap();
        assert_eq!(reader.root().sequence, 2, "{what}");
        let damaged = reader.damaged().unwrap().to_string();
        assert!(
            damaged.contains(what) && damaged.contains("simulated device"),
            "{damaged}"
        );
        assert!(reader.segment(first).is_ok());
        assert!(reader.segment(second).is_err());
    }
    let error = open(&[16_384 + 40, 32_768 + 40]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        open(&[40]).unwrap().damaged().is_none(),
        "the other superblock"
    );
    let error = open(&[40, 4096 + 40]).unwrap_err();
    assert!(
        error.to_string().contains("superblock at byte 0"),
        "{error}"
    );
    for offset in [entry.offset + 50, payload + 7, payload + 19_999] {
        let reader = open(&[offset]).unwrap();
        assert!(reader.segment(first).is_ok());
        let error = reader.segment(second).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let place = format!("segment {} at byte {}", second.0, entry.offset);
        assert!(error.to_string().contains(&place), "{error}");
        assert_eq!(reader.header(second).is_ok(), offset >= payload);
        // The kind comes through the layout of a store.
        let slot = reader.slot_of(second).unwrap();
        let store = StoreReader::open(reader.clone()).unwrap();
        store.place_segment(second, slot);
        let block = BlockRef {
            address: Address::new(second, 0),
            digest: Digest::default(),
        };
        let error = store.read(&block, &mut [0; 64], "block").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(&place), "{error}");
    }
    assert!(
        open(&[payload + 20_001]).unwrap().segment(second).is_ok(),
        "padding has no meaning"
    );
}

#[test]
fn a_file_that_was_cut_is_damage_where_it_is_read() {
    let device = Arc::new(SimDevice::new());
    let store = ArchiveStore::create_on(device.clone(), &identity(1), &options()).unwrap();
    let segments: Vec<SegmentId> = (0..8).map(|_| append(&store, 1, 60_000)).collect();
    store.commit(&Commit::default()).unwrap();
    let last = store.device().entry(segments[7]).unwrap();
    let table = store.root().table;
    drop(store);
    let image = device.to_vec();
    assert!(table.offset > last.offset);
    let mut lengths = vec![0, 100, 5000, 20_000, 50_000, 4 << 20];
    lengths.extend([
        last.offset,
        last.offset + 4096,
        table.offset + 10,
        table.offset + 4096,
    ]);
    for length in lengths {
        let device = SimDevice::from_bytes(image.clone());
        device.truncate(length);
        let opened = ArchiveDevice::open_on(
            Arc::new(device.clone()),
            &DeviceFolder::default(),
            &reading(),
        );
        let writer = ArchiveStore::open_on(Arc::new(device), &DeviceFolder::default(), &options());
        if length > table.offset + 10 {
            assert!(opened.unwrap().segment(segments[7]).is_ok());
            assert!(writer.is_ok());
            continue;
        }
        // Without the table the root before it is taken, which had no segments.
        for result in [
            opened.map(|reader| reader.entries().len()),
            writer.map(|_| 0),
        ] {
            match result {
                Ok(entries) => assert_eq!((entries, length >= 49_152), (0, true), "{length}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            }
        }
    }
}
