// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes as each structure of an archive, of the store and segment that they name, and as the body of
//! one: what is read is written back as the same.
#![no_main]

use backstay_format::bytes::{frame_minor, seal};
use backstay_format::limits::{STORE_VERSION_MAJOR, STORE_VERSION_MINOR};
use backstay_format::{
    ArchiveRoot, ArchiveSuperblock, ArchiveTable, CatalogState, CatalogSuperblock, SegmentHeader,
    SegmentId, StoreId,
};
use libfuzzer_sys::fuzz_target;

const MAGICS: [&[u8; 8]; 6] = [
    b"BKSTARCH",
    b"BKSAROOT",
    b"BKSATABL",
    b"BKSASEGM",
    b"BKSTCATL",
    b"BKSACATA",
];

fn same(written: &[u8], bytes: &[u8]) {
    // A later minor version's appended fields are not known, so not written back.
    if frame_minor(bytes) == Some(STORE_VERSION_MINOR) {
        assert_eq!(written, &bytes[..written.len()]);
    }
}

fn read(bytes: &[u8]) {
    let Some(id) = bytes.get(16..32).and_then(|id| id.first_chunk()) else {
        return;
    };
    let store = StoreId(*id);
    if let Ok(superblock) = ArchiveSuperblock::decode(bytes) {
        same(&superblock.encode().unwrap(), bytes);
    }
    if let Ok(root) = ArchiveRoot::decode(bytes, store) {
        same(&root.encode().unwrap(), bytes);
    }
    if let Ok(table) = ArchiveTable::decode(bytes, store, 16) {
        same(&table.encode(16).unwrap(), bytes);
    }
    if let Some(segment) = bytes.get(32..40).and_then(|id| id.first_chunk())
        && let segment = SegmentId(u64::from_le_bytes(*segment))
        && let Ok((header, length)) = SegmentHeader::decode(bytes, store, segment)
    {
        assert!(length <= bytes.len());
        same(&header.encode().unwrap(), bytes);
    }
    if let Ok(superblock) = CatalogSuperblock::decode(bytes) {
        same(&superblock.encode().unwrap(), bytes);
    }
    if let Ok(state) = CatalogState::decode(bytes, store) {
        same(&state.encode(store).unwrap(), bytes);
    }
}

fuzz_target!(|input: &[u8]| {
    read(input);
    // A checksum found by chance is rare, so the input is also taken as a body.
    for magic in MAGICS {
        read(&seal(*magic, STORE_VERSION_MAJOR, input));
    }
});
