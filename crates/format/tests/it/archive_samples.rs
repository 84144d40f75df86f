// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every structure of an archive, with every field set.

use crate::samples::{self, STORE, Sample};
use backstay_format::Heir;
use backstay_format::{
    Address, ArchiveFile, ArchiveRoot, ArchiveSuperblock, ArchiveTable, BaseRun, CatalogCheckpoint,
    CatalogPart, CatalogStart, CatalogState, CatalogSuperblock, CheckpointId, Digest, ElementType,
    FormatError, RankRange, SegmentClass, SegmentHeader, SegmentId, SegmentPiece, StoreId,
    TableEntry, TablePlace,
};

const SEGMENT: SegmentId = SegmentId(0x0001_0203_0405);

pub(crate) fn superblock() -> ArchiveSuperblock {
    ArchiveSuperblock {
        store: STORE,
        segment_bytes: 1 << 22,
        run: 0x5a17_e001,
        created_unix_ns: 1_700_000_000_123_456_789,
        aggregator: 17,
        epoch: 3,
        job: "heat2d 42".to_owned(),
        host: "n\u{e9}ud-07 6c1f".to_owned(),
    }
}

fn file(store: u8, name: &str) -> ArchiveFile {
    ArchiveFile {
        store: StoreId([store; 16]),
        name: name.to_owned(),
    }
}

pub(crate) fn root() -> ArchiveRoot {
    ArchiveRoot {
        store: STORE,
        sequence: 41,
        incarnation: 4,
        next_segment: 0x0001_0203_0406,
        draining: Some(CheckpointId::new(4, 19)),
        table: TablePlace {
            offset: (4 << 20) + 8192,
            length_bytes: 152,
            digest: Digest([0x7e; 16]),
        },
        files: vec![
            file(1, "aggregate-17-2.backstay"),
            file(2, "aggregate-17-1.backstay"),
        ],
        revisions: samples::root_slot().revisions,
    }
}

pub(crate) fn table() -> ArchiveTable {
    let first = TableEntry {
        segment: SegmentId(7),
        offset: 4 << 20,
        digest: Digest([0x11; 16]),
        decoded_bytes: 1,
        stored_bytes: 100,
        file: 2,
        class: SegmentClass::Small,
        merge: 0,
        delta: false,
        draining: false,
    };
    let second = TableEntry {
        segment: SEGMENT,
        offset: 1 << 40,
        digest: Digest([0x22; 16]),
        decoded_bytes: 1 << 22,
        stored_bytes: 1 << 23,
        file: 0,
        class: SegmentClass::Large,
        merge: 2,
        delta: true,
        draining: true,
    };
    ArchiveTable {
        store: STORE,
        sequence: 41,
        entries: vec![first, second],
    }
}

pub(crate) fn header() -> SegmentHeader {
    let piece = |offset, length_bytes, fill| SegmentPiece {
        offset,
        length_bytes,
        digest: Digest([fill; 16]),
    };
    SegmentHeader {
        store: STORE,
        segment: SEGMENT,
        checkpoint: CheckpointId::new(4, 19),
        decoded_bytes: 32_769,
        payload_bytes: 20_000,
        class: SegmentClass::Large,
        merge: 2,
        element: Some(ElementType::F64),
        scheme: vec![1, 3, 5, 7],
        variable: "t\u{e9}mp".to_owned(),
        pieces: vec![piece(0, 16_384, 0xa1), piece(16_384, 16_385, 0xa2)],
        bases: vec![BaseRun {
            offset: 16_384,
            length_bytes: 16_384,
            base: Address::new(SegmentId(7), 256),
        }],
    }
}

pub(crate) fn heir() -> Heir {
    Heir {
        of: STORE,
        epoch: 4,
        host: "n\u{fc}rnberg 7f3a".to_owned(),
    }
}

pub(crate) fn catalog_superblock() -> CatalogSuperblock {
    CatalogSuperblock {
        catalog: STORE,
        slot_bytes: 4 << 20,
        run: 0x5a17_e001,
        created_unix_ns: 1_700_000_000_123_456_789,
        epoch: 2,
        job: "heat2d 42".to_owned(),
        host: "n\u{e9}ud-07 6c1f".to_owned(),
    }
}

pub(crate) fn state() -> CatalogState {
    let checkpoint = |incarnation, number, kept, parts| CatalogCheckpoint {
        checkpoint: CheckpointId::new(incarnation, number),
        world_size: 64,
        kept,
        finished: kept,
        archived_unix_ns: 1_700_000_002_000_000_000 + number,
        bytes_total: 1 << 40,
        bytes_written: 12_345_678,
        parts,
    };
    let part = |store, sequence, ranks| CatalogPart {
        store,
        sequence,
        ranks,
    };
    let range = |first, count| RankRange { first, count };
    CatalogState {
        sequence: 12,
        incarnation: 4,
        lineage: samples::lineage(),
        stores: vec![
            file(1, "aggregate-0-1.backstay"),
            file(2, "aggregate-1-2.backstay"),
        ],
        starts: vec![
            CatalogStart {
                incarnation: 2,
                from: CheckpointId::default(),
            },
            CatalogStart {
                incarnation: 4,
                from: CheckpointId::new(2, 17),
            },
        ],
        rank_sets: vec![
            vec![range(0, 16), range(32, 16)],
            vec![range(16, 16), range(48, 16)],
            vec![range(0, 64)],
        ],
        checkpoints: vec![
            checkpoint(2, 17, true, vec![part(0, 30, 0), part(1, 29, 1)]),
            checkpoint(4, 18, false, vec![part(1, 33, 2)]),
        ],
    }
}

fn decode_header(bytes: &[u8]) -> Result<SegmentHeader, FormatError> {
    Ok(SegmentHeader::decode(bytes, STORE, SEGMENT)?.0)
}

fn stores() -> Vec<Sample> {
    vec![
        Sample {
            name: "archive_superblock",
            preserves: "labels in UTF-8, an aggregator and its epoch",
            bytes: superblock().encode().unwrap(),
            framed: true,
            rewrite: |bytes| ArchiveSuperblock::decode(bytes)?.encode(),
            value: format!("{:?}", superblock()),
            show: |bytes| Ok(format!("{:?}", ArchiveSuperblock::decode(bytes)?)),
        },
        Sample {
            name: "archive_root",
            preserves: "a drain under way, a table, two files of predecessors, two revisions",
            bytes: root().encode().unwrap(),
            framed: true,
            rewrite: |bytes| ArchiveRoot::decode(bytes, STORE)?.encode(),
            value: format!("{:?}", root()),
            show: |bytes| Ok(format!("{:?}", ArchiveRoot::decode(bytes, STORE)?)),
        },
        Sample {
            name: "archive_table",
            preserves: "a base of a predecessor, and a delta of the drain under way",
            bytes: table().encode(2).unwrap(),
            framed: true,
            rewrite: |bytes| ArchiveTable::decode(bytes, STORE, 2)?.encode(2),
            value: format!("{:?}", table()),
            show: |bytes| Ok(format!("{:?}", ArchiveTable::decode(bytes, STORE, 2)?)),
        },
        Sample {
            name: "archive_segment",
            preserves: "a header with two pieces, of which one has a base in part",
            bytes: header().encode().unwrap(),
            framed: true,
            rewrite: |bytes| decode_header(bytes)?.encode(),
            value: format!("{:?}", header()),
            show: |bytes| Ok(format!("{:?}", decode_header(bytes)?)),
        },
    ]
}

/// Every structure of an archive.
pub(crate) fn all() -> Vec<Sample> {
    let mut samples = stores();
    samples.extend([
        Sample {
            name: "archive_heir",
            preserves: "who goes on from a file",
            bytes: heir().encode().unwrap(),
            framed: true,
            rewrite: |bytes| Heir::decode(bytes)?.encode(),
            value: format!("{:?}", heir()),
            show: |bytes| Ok(format!("{:?}", Heir::decode(bytes)?)),
        },
        Sample {
            name: "catalog_superblock",
            preserves: "labels in UTF-8, an epoch",
            bytes: catalog_superblock().encode().unwrap(),
            framed: true,
            rewrite: |bytes| CatalogSuperblock::decode(bytes)?.encode(),
            value: format!("{:?}", catalog_superblock()),
            show: |bytes| Ok(format!("{:?}", CatalogSuperblock::decode(bytes)?)),
        },
        Sample {
            name: "catalog_state",
            preserves: "two stores, two starts, two checkpoints, one of them kept",
            bytes: state().encode(STORE).unwrap(),
            framed: true,
            rewrite: |bytes| CatalogState::decode(bytes, STORE)?.encode(STORE),
            value: format!("{:?}", state()),
            show: |bytes| Ok(format!("{:?}", CatalogState::decode(bytes, STORE)?)),
        },
    ]);
    samples
}
