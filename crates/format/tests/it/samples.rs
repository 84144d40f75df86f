// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One value of every structure, with every field set, and a uniform way to write and read it.

use backstay_format::stream::StreamRoot;
use backstay_format::{
    Address, BlockRef, CheckpointId, Decoder, Digest, ElementType, FormatError, Lineage, Page,
    PartMap, PartStretch, RankEntry, RankRoot, RevisionEntry, RootSlot, SegmentClass, SegmentId,
    SegmentRecord, Slab, StoreId, StoredFile, Stretch, Superblock, VariableDescriptor,
};

/// The store that all samples belong to.
pub(crate) const STORE: StoreId = StoreId(*b"0123456789abcdef");

/// A structure, told apart from its bytes.
pub(crate) struct Sample {
    /// Name of its fixture, without the ending.
    pub(crate) name: &'static str,
    /// What the fixture preserves.
    pub(crate) preserves: &'static str,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// Whether a checksum of its own covers every byte.
    pub(crate) framed: bool,
    /// Reads bytes as this structure and writes what was read.
    pub(crate) rewrite: fn(&[u8]) -> Result<Vec<u8>, FormatError>,
    /// The value that the bytes must give, as text.
    pub(crate) value: String,
    /// The value that bytes give, as text.
    pub(crate) show: fn(&[u8]) -> Result<String, FormatError>,
}

fn block(segment: u64, unit: u16, fill: u8) -> BlockRef {
    BlockRef {
        address: Address::new(SegmentId(segment), unit),
        digest: Digest([fill; 16]),
    }
}

fn stream(length_bytes: u64, block_bytes: u32, top: BlockRef) -> StreamRoot {
    StreamRoot {
        length_bytes,
        block_bytes,
        height: StreamRoot::height_for(length_bytes, block_bytes),
        top,
    }
}

pub(crate) fn superblock() -> Superblock {
    Superblock {
        store: STORE,
        segment_bytes: 1 << 22,
        run: 0x5a17_e001,
        created_unix_ns: 1_700_000_000_123_456_789,
        job: "heat2d 42".to_owned(),
        node: "n\u{e9}ud-07".to_owned(),
    }
}

pub(crate) fn segment_record() -> SegmentRecord {
    SegmentRecord {
        store: STORE,
        segment: SegmentId(0x0001_0203_0405),
        class: SegmentClass::Small,
    }
}

pub(crate) fn part_map() -> PartMap {
    let stretch = |offset, length_bytes, age| PartStretch {
        offset,
        length_bytes,
        age,
        first_ns: age / 3,
        last_ns: age / 2,
    };
    PartMap {
        length_bytes: 1 << 40,
        stretches: vec![
            stretch(0, 5, 9),
            stretch(5, 4096, 7),
            stretch((1 << 40) - 3, 3, u64::MAX),
        ],
    }
}

pub(crate) fn lineage() -> Lineage {
    Lineage {
        began: 2,
        start: 4,
        finished: true,
        asked: 0x1_0000_0007,
        arguments: 0x7a5b_0000_0000_0001,
    }
}

pub(crate) fn root_slot() -> RootSlot {
    let revision = |number, pinned, complete| RevisionEntry {
        checkpoint: CheckpointId::new(3, number),
        pinned,
        complete,
        world_size: 64,
        committed_unix_ns: 1_700_000_001_000_000_000 + number,
        bytes_total: 1 << 30,
        bytes_changed: 12_345_678,
        ranks: stream(128, 1024, block(9, 17, 0x5a)),
    };
    RootSlot {
        store: STORE,
        sequence: 41,
        incarnation: 4,
        next_segment: 300,
        closed: true,
        lineage: lineage(),
        revisions: vec![revision(17, true, true), revision(18, false, false)],
    }
}

pub(crate) fn page() -> Page {
    Page {
        level: 2,
        entries: vec![block(1, 0, 1), block(0xffff_ffff_ffff, 0xffff, 0xff)],
    }
}

pub(crate) fn stream_root() -> StreamRoot {
    stream((1 << 30) + 5, 1 << 14, block(77, 3, 0xc3))
}

pub(crate) fn rank_root() -> RankRoot {
    RankRoot {
        rank: 5,
        world_size: 8,
        born: CheckpointId::new(2, 17),
        variable_count: 2,
        bytes_total: 123_456,
        descriptors: stream(133, 1024, block(4, 5, 0x11)),
        table: stream(80, 1024, block(6, 7, 0x22)),
    }
}

pub(crate) fn rank_table() -> Vec<RankEntry> {
    let entry = |rank, fill| RankEntry {
        rank,
        root: block(u64::from(rank) + 1, 2, fill),
    };
    vec![entry(0, 0xaa), entry(5, 0xbb), entry((1 << 24) - 1, 0xcc)]
}

pub(crate) fn descriptors() -> Vec<VariableDescriptor> {
    let slab = Slab {
        global_shape: vec![100, 200],
        start: vec![25, 0],
    };
    let variable = |name: &str, element, shape: &[u64], slab| VariableDescriptor {
        name: name.to_owned(),
        element,
        shape: shape.to_vec(),
        slab,
        file: None,
    };
    vec![
        variable("empty", ElementType::Bytes, &[0], None),
        variable("step", ElementType::U64, &[], None),
        variable("t\u{e9}mp", ElementType::F64, &[25, 200], Some(slab)),
    ]
}

/// A file with two stretches, and one without holes.
pub(crate) fn files() -> Vec<VariableDescriptor> {
    let variable = |name: &str, stored: u64, file| VariableDescriptor {
        name: name.to_owned(),
        element: ElementType::Bytes,
        shape: vec![stored],
        slab: None,
        file: Some(file),
    };
    let stretch = |start, length| Stretch { start, length };
    let sparse = StoredFile {
        path: b"/scratch/run \xff/x.log".to_vec(),
        routed: false,
        mode: 0o640,
        modified_s: -1,
        modified_ns: 999_999_999,
        length_bytes: 1 << 40,
        stretches: Some(vec![
            stretch((1 << 40) - 3_616, 3_616),
            stretch(1 << 30, 16_384),
        ]),
    };
    let whole = StoredFile {
        path: b"step 7/rank 0.dat".to_vec(),
        routed: true,
        mode: 0,
        modified_s: 1,
        modified_ns: 0,
        length_bytes: 5,
        stretches: None,
    };
    vec![
        variable("log", 20_000, sparse),
        variable("routed.000000", 5, whole),
    ]
}

fn encode_stream(stream: &StreamRoot) -> Result<Vec<u8>, FormatError> {
    StreamRoot::encode_table(&[*stream])
}

fn decode_stream(bytes: &[u8]) -> Result<StreamRoot, FormatError> {
    let mut body = Decoder::new("stream root", bytes);
    let stream = StreamRoot::decode(&mut body, u64::MAX)?;
    body.end()?;
    Ok(stream)
}

/// Every structure of the store, the stripe log, the messages of agents, and the archive.
pub(crate) fn all() -> Vec<Sample> {
    let mut samples = framed();
    samples.extend(unframed());
    samples.extend(crate::parity_samples::all());
    samples.extend(crate::archive_samples::all());
    samples
}

fn framed() -> Vec<Sample> {
    vec![
        Sample {
            name: "superblock",
            preserves: "labels in UTF-8, the largest segment size, a time in nanoseconds",
            bytes: superblock().encode().unwrap(),
            framed: true,
            rewrite: |bytes| Superblock::decode(bytes)?.encode(),
            value: format!("{:?}", superblock()),
            show: |bytes| Ok(format!("{:?}", Superblock::decode(bytes)?)),
        },
        Sample {
            name: "part_map",
            preserves: "stretches that touch, of several ages",
            bytes: part_map().encode().unwrap(),
            framed: true,
            rewrite: |bytes| PartMap::decode(bytes)?.encode(),
            value: format!("{:?}", part_map()),
            show: |bytes| Ok(format!("{:?}", PartMap::decode(bytes)?)),
        },
        Sample {
            name: "segment_record",
            preserves: "an id whose six bytes differ, the class of small things",
            bytes: segment_record().encode().unwrap(),
            framed: true,
            rewrite: |bytes| SegmentRecord::decode(bytes, STORE)?.encode(),
            value: format!("{:?}", segment_record()),
            show: |bytes| Ok(format!("{:?}", SegmentRecord::decode(bytes, STORE)?)),
        },
        Sample {
            name: "root_slot",
            preserves: "a closed store with two revisions: one pinned and complete, one neither",
            bytes: root_slot().encode().unwrap(),
            framed: true,
            rewrite: |bytes| RootSlot::decode(bytes, STORE)?.encode(),
            value: format!("{:?}", root_slot()),
            show: |bytes| Ok(format!("{:?}", RootSlot::decode(bytes, STORE)?)),
        },
        Sample {
            name: "rank_root",
            preserves: "a rank with two variables, and both streams of a rank",
            bytes: rank_root().encode().unwrap(),
            framed: true,
            rewrite: |bytes| RankRoot::decode(bytes)?.encode(),
            value: format!("{:?}", rank_root()),
            show: |bytes| Ok(format!("{:?}", RankRoot::decode(bytes)?)),
        },
    ]
}

fn unframed() -> Vec<Sample> {
    vec![
        Sample {
            name: "tree_page",
            preserves: "level 2 with two entries: the first and the last possible address",
            bytes: page().encode().unwrap(),
            framed: false,
            rewrite: |bytes| Page::decode(bytes, 2, 2)?.encode(),
            value: format!("{:?}", page()),
            show: |bytes| Ok(format!("{:?}", Page::decode(bytes, 2, 2)?)),
        },
        Sample {
            name: "stream_root",
            preserves: "a stream of 2^30 + 5 bytes: 65,537 blocks, height 4",
            bytes: encode_stream(&stream_root()).unwrap(),
            framed: false,
            rewrite: |bytes| encode_stream(&decode_stream(bytes)?),
            value: format!("{:?}", stream_root()),
            show: |bytes| Ok(format!("{:?}", decode_stream(bytes)?)),
        },
        Sample {
            name: "rank_table",
            preserves: "three ranks, the last possible one among them",
            bytes: RankEntry::encode_table(&rank_table()).unwrap(),
            framed: false,
            rewrite: |bytes| RankEntry::encode_table(&RankEntry::decode_table(bytes)?),
            value: format!("{:?}", rank_table()),
            show: |bytes| Ok(format!("{:?}", RankEntry::decode_table(bytes)?)),
        },
        Sample {
            name: "descriptors",
            preserves: "an empty array, a scalar, and a slab of a global array with a UTF-8 name",
            bytes: VariableDescriptor::encode_list(&descriptors()).unwrap(),
            framed: false,
            rewrite: |bytes| {
                let list = VariableDescriptor::decode_list(bytes, 3)?;
                VariableDescriptor::encode_list(&list)
            },
            value: format!("{:?}", descriptors()),
            show: |bytes| Ok(format!("{:?}", VariableDescriptor::decode_list(bytes, 3)?)),
        },
        Sample {
            name: "files",
            preserves: "a file of 1 TiB with two stretches, the later stored first, a path that is not UTF-8, a \
                        time before 1970; and a routed file without holes",
            bytes: VariableDescriptor::encode_list(&files()).unwrap(),
            framed: false,
            rewrite: |bytes| {
                let list = VariableDescriptor::decode_list(bytes, 2)?;
                VariableDescriptor::encode_list(&list)
            },
            value: format!("{:?}", files()),
            show: |bytes| Ok(format!("{:?}", VariableDescriptor::decode_list(bytes, 2)?)),
        },
    ]
}
