// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `decode(encode(x)) == x`, for any value of every structure that the limits allow.

use crate::samples::STORE;
use backstay_format::geometry::{ROOT_BYTES, SUPERBLOCK_BYTES};
use backstay_format::limits::{
    BLOCK_BYTES_MIN, COUNTER_MAX, FANOUT, INTERNAL_STREAM_BYTES_MAX, LABEL_BYTES_MAX,
    NAME_BYTES_MAX, RANKS_MAX, REVISIONS_MAX, VARIABLE_BYTES_MAX,
};
use backstay_format::stream::StreamRoot;
use backstay_format::{
    Address, BlockRef, CheckpointId, Digest, ElementType, Geometry, Lineage, Page, RankEntry,
    RankRoot, RevisionEntry, RootSlot, SegmentClass, SegmentId, SegmentRecord, Slab, StoreId,
    Superblock, VariableDescriptor,
};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;

fn address() -> impl Strategy<Value = Address> {
    (1..=SegmentId::MAX.0, any::<u16>())
        .prop_map(|(segment, unit)| Address::new(SegmentId(segment), unit))
}

fn block() -> impl Strategy<Value = BlockRef> {
    (address(), any::<[u8; 16]>()).prop_map(|(address, digest)| BlockRef {
        address,
        digest: Digest(digest),
    })
}

/// Lengths near zero, near the limit, and between.
fn length(most: u64) -> impl Strategy<Value = u64> {
    prop_oneof![0..100u64, 0..=most, most - 100..=most]
}

fn stream(most: u64) -> impl Strategy<Value = StreamRoot> {
    (length(most), 10..=18u32, block()).prop_map(|(length_bytes, shift, top)| StreamRoot {
        length_bytes,
        block_bytes: 1 << shift,
        height: StreamRoot::height_for(length_bytes, 1 << shift),
        top: if length_bytes == 0 {
            BlockRef::NONE
        } else {
            top
        },
    })
}

fn label(most: usize) -> impl Strategy<Value = String> {
    prop_oneof![".{0,40}", "[a-z]{120,255}"].prop_map(move |mut text: String| {
        let mut end = most.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text
    })
}

fn superblock() -> impl Strategy<Value = Superblock> {
    let labels = (label(LABEL_BYTES_MAX), label(LABEL_BYTES_MAX));
    (
        any::<[u8; 16]>(),
        18..=22u32,
        1..=u32::MAX,
        any::<u64>(),
        labels,
    )
        .prop_map(
            |(store, shift, run, created_unix_ns, (job, node))| Superblock {
                store: StoreId(store),
                segment_bytes: 1 << shift,
                run,
                created_unix_ns,
                job,
                node,
            },
        )
}

fn class() -> impl Strategy<Value = SegmentClass> {
    proptest::sample::select(SegmentClass::ALL.to_vec())
}

fn revision() -> impl Strategy<Value = RevisionEntry> {
    let flags = (any::<bool>(), any::<bool>());
    let sizes = (1..=RANKS_MAX, any::<u64>(), any::<u64>(), any::<u64>());
    (flags, sizes, stream(INTERNAL_STREAM_BYTES_MAX)).prop_map(
        |((pinned, complete), (world_size, at, total, changed), ranks)| RevisionEntry {
            checkpoint: CheckpointId::default(),
            pinned,
            complete,
            world_size,
            committed_unix_ns: at,
            bytes_total: total,
            bytes_changed: changed,
            ranks,
        },
    )
}

fn lineage() -> impl Strategy<Value = Lineage> {
    let counters = (0..=COUNTER_MAX, 0..=COUNTER_MAX);
    let others = (any::<bool>(), 0..=COUNTER_MAX, 0..=COUNTER_MAX);
    (counters, others).prop_map(|((one, other), (finished, asked, arguments))| Lineage {
        began: one.min(other),
        start: one.max(other),
        finished,
        asked,
        arguments,
    })
}

fn root_slot() -> impl Strategy<Value = RootSlot> {
    let id = (0..=COUNTER_MAX, 0..=COUNTER_MAX);
    let ids = btree_map(id, revision(), 0..=REVISIONS_MAX);
    let counters = (0..=COUNTER_MAX, 0..=COUNTER_MAX, 0..=SegmentId::MAX.0 + 1);
    (counters, any::<bool>(), ids, lineage()).prop_map(
        |((sequence, incarnation, next_segment), closed, ids, lineage)| RootSlot {
            store: STORE,
            sequence,
            incarnation,
            next_segment,
            closed,
            lineage,
            revisions: ids
                .into_iter()
                .map(|((number, incarnation), revision)| RevisionEntry {
                    checkpoint: CheckpointId::new(incarnation, number),
                    ..revision
                })
                .collect(),
        },
    )
}

fn rank_root() -> impl Strategy<Value = RankRoot> {
    let born = (0..=COUNTER_MAX, 0..=COUNTER_MAX);
    let streams = (stream(INTERNAL_STREAM_BYTES_MAX), stream(100), block());
    let counts = (0..RANKS_MAX, 0..=1u32 << 20, any::<u64>());
    (born, streams, counts).prop_map(
        |((incarnation, number), (descriptors, table, top), (rank, count, bytes_total))| {
            let length_bytes = u64::from(count) * 40;
            let block_bytes = table.block_bytes;
            let table = StreamRoot {
                length_bytes,
                block_bytes,
                height: StreamRoot::height_for(length_bytes, block_bytes),
                top: if count == 0 { BlockRef::NONE } else { top },
            };
            RankRoot {
                rank,
                world_size: rank + 1,
                born: CheckpointId::new(incarnation, number),
                variable_count: count,
                bytes_total,
                descriptors,
                table,
            }
        },
    )
}

fn descriptor() -> impl Strategy<Value = VariableDescriptor> {
    let element = proptest::sample::select(ElementType::ALL.to_vec());
    // Up to 8 dimensions of up to 16, with a global array of up to 24 in each: 24^8 * 16 < 2^44.
    let dimension = (0..=16u64, 0..=4u64, 0..=4u64);
    let dimensions = vec(dimension, 0..=8);
    (label(NAME_BYTES_MAX), element, dimensions, any::<bool>()).prop_map(
        |(name, element, dimensions, is_slab)| VariableDescriptor {
            name: format!("v{name}")
                .chars()
                .scan(0, |used, letter| {
                    *used += letter.len_utf8();
                    (*used <= NAME_BYTES_MAX).then_some(letter)
                })
                .collect(),
            element,
            shape: dimensions.iter().map(|d| d.0).collect(),
            slab: is_slab.then(|| Slab {
                global_shape: dimensions.iter().map(|d| d.0 + d.1 + d.2).collect(),
                start: dimensions.iter().map(|d| d.1).collect(),
            }),
            file: None,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn superblocks(value in superblock()) {
        let bytes = value.encode().unwrap();
        prop_assert!(bytes.len() <= SUPERBLOCK_BYTES);
        let mut place = bytes.clone();
        place.resize(SUPERBLOCK_BYTES, 0xa5);
        prop_assert_eq!(Superblock::decode(&place).unwrap(), value);
    }

    #[test]
    fn segment_records(id in 1..=SegmentId::MAX.0, class in class()) {
        let value = SegmentRecord { store: STORE, segment: SegmentId(id), class };
        let bytes = value.encode().unwrap();
        prop_assert_eq!(bytes.len(), 56);
        prop_assert_eq!(SegmentRecord::decode(&bytes, STORE).unwrap(), value);
        prop_assert!(SegmentRecord::decode(&bytes, StoreId([0; 16])).is_err());
    }

    #[test]
    fn root_slots(value in root_slot()) {
        let bytes = value.encode().unwrap();
        prop_assert!(bytes.len() <= ROOT_BYTES);
        let mut place = bytes.clone();
        place.resize(ROOT_BYTES, 0xa5);
        prop_assert_eq!(RootSlot::decode(&place, STORE).unwrap(), value);
        prop_assert!(RootSlot::decode(&place, StoreId([0; 16])).is_err());
    }

    #[test]
    fn pages(level in 1..=7u8, entries in vec(block(), 0..=FANOUT)) {
        let value = Page { level, entries };
        let bytes = value.encode().unwrap();
        let count = value.entries.len();
        prop_assert_eq!(bytes.len(), Page::bytes_for(count));
        prop_assert_eq!(&Page::decode(&bytes, level, count).unwrap(), &value);
        prop_assert!(Page::decode(&bytes, level + 1, count).is_err());
        prop_assert!(Page::decode(&bytes, level, count + 1).is_err());
    }

    #[test]
    fn stream_roots(value in stream(VARIABLE_BYTES_MAX)) {
        let bytes = StreamRoot::encode_table(&[value]).unwrap();
        prop_assert_eq!(bytes.len(), StreamRoot::BYTES);
        prop_assert_eq!(StreamRoot::decode_table(&bytes, 1).unwrap(), [value]);
        let entries: usize = match value.height {
            0 => 1,
            height => (0..value.block_count().div_ceil(FANOUT).min(50))
                .map(|page| value.page_entries(1, page)).sum::<usize>()
                .min(value.block_count()).max(value.page_entries(height, 0)),
        };
        prop_assert!(value.length_bytes == 0 || entries > 0);
        let last = value.block_count().saturating_sub(1);
        let whole = (last as u64) * u64::from(value.block_bytes);
        prop_assert_eq!(whole + value.block_length(last) as u64, value.length_bytes);
    }

    #[test]
    fn rank_roots(value in rank_root()) {
        let bytes = value.encode().unwrap();
        prop_assert_eq!(bytes.len(), RankRoot::BYTES);
        prop_assert_eq!(RankRoot::decode(&bytes).unwrap(), value);
    }

    #[test]
    fn rank_tables(ranks in btree_set(0..RANKS_MAX, 0..100), root in block()) {
        let value: Vec<RankEntry> =
            ranks.into_iter().map(|rank| RankEntry { rank, root }).collect();
        let bytes = RankEntry::encode_table(&value).unwrap();
        prop_assert_eq!(bytes.len(), value.len() * RankEntry::BYTES);
        prop_assert_eq!(RankEntry::decode_table(&bytes).unwrap(), value);
    }

    #[test]
    fn descriptor_lists(list in vec(descriptor(), 0..20)) {
        let mut value = list;
        value.sort_by(|a, b| a.name.cmp(&b.name));
        value.dedup_by(|a, b| a.name == b.name);
        for descriptor in &value {
            prop_assert_eq!(descriptor.validate(), Ok(()));
        }
        let bytes = VariableDescriptor::encode_list(&value).unwrap();
        let found = VariableDescriptor::decode_list(&bytes, value.len()).unwrap();
        prop_assert_eq!(&found, &value);
        let fewer = value.len().checked_sub(1);
        for count in [Some(value.len() + 1), fewer].into_iter().flatten() {
            prop_assert!(VariableDescriptor::decode_list(&bytes, count).is_err());
        }
    }

    #[test]
    fn addresses(segment in 1..=SegmentId::MAX.0, unit in any::<u16>()) {
        let address = Address::new(SegmentId(segment), unit);
        prop_assert_eq!(address.segment(), SegmentId(segment));
        prop_assert_eq!(address.offset_bytes(), u32::from(unit) * 64);
        prop_assert!(!address.is_none());
    }

    #[test]
    fn places_in_a_file_do_not_overlap(
        shift in 18..=22u32,
        first in 0..1u64 << 20,
        second in option::of(0..1u64 << 20),
    ) {
        let geometry = Geometry { segment_bytes: 1 << shift };
        let other = second.unwrap_or(first + 1);
        let places = |slot| [
            (geometry.record_offset(slot, 0), 64),
            (geometry.record_offset(slot, 1), 64),
            (geometry.slot_offset(slot), 1u64 << shift),
        ];
        let mut all = places(first).to_vec();
        if other != first {
            all.extend(places(other));
        }
        all.push((0, 64 << 10));
        all.sort_unstable();
        for pair in all.windows(2) {
            prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:?}", all);
        }
        prop_assert!(geometry.file_bytes(first + 1) >= geometry.slot_offset(first) + (1 << shift));
    }
}

/// The height that the format asks for is the least that reaches every block.
#[test]
fn heights_at_their_edges() {
    let block = u64::from(BLOCK_BYTES_MIN);
    let cases = [
        (0, 0),
        (1, 0),
        (block, 0),
        (block + 1, 1),
        (32 * block, 1),
        (32 * block + 1, 2),
        (1024 * block, 2),
        (1024 * block + 1, 3),
        (VARIABLE_BYTES_MAX, 7),
    ];
    for (length, height) in cases {
        let found = StreamRoot::height_for(length, BLOCK_BYTES_MIN);
        assert_eq!(found, height, "{length} bytes");
    }
}

/// The hash is XXH3 with seed 0: the values its specification gives for an empty input.
#[test]
fn the_hash_is_xxh3() {
    assert_eq!(backstay_format::hash::checksum(b""), 0x2d06_8005_38d3_94c2);
    let digest = Digest::of(b"").to_string();
    assert_eq!(digest, "99aa06d3014798d86001c324468d497f");
}
