// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/format/archive.md says what the code does: sizes, offsets, limits; and the archive's structures
//! refuse what cannot be, and give back what they were given.

use crate::archive_samples::{catalog_superblock, header, heir, root, state, superblock, table};
use crate::document::{bytes, number, sections_of};
use crate::parity_document::{end_of, tables};
use crate::samples::STORE;
use backstay_format::archive::{DATA_OFFSET, GRAIN_BYTES};
use backstay_format::archived::header_bytes_max;
use backstay_format::catalog::SLOTS_OFFSET;
use backstay_format::geometry::{ROOT_BYTES, ROOT_OFFSETS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use backstay_format::heir::HEIR_OFFSET;
use backstay_format::limits::{self, ARCHIVE_FILES_MAX, REVISIONS_MAX};
use backstay_format::{
    Address, ArchiveRoot, ArchiveSuperblock, ArchiveTable, CatalogPart, CatalogState,
    CatalogSuperblock, CheckpointId, RevisionEntry, SegmentHeader, SegmentId, SegmentPiece,
    TableEntry, TablePlace,
};
use proptest::prelude::*;

#[test]
fn the_length_of_a_header_is_known_before_it_is_encoded() {
    let bases = [
        header(),
        SegmentHeader {
            scheme: Vec::new(),
            variable: String::new(),
            pieces: Vec::new(),
            ..header()
        },
    ];
    for mut base in bases {
        base.bases.clear();
        let (scheme, variable) = (base.scheme.len(), base.variable.len());
        let expected = SegmentHeader::base_bytes(scheme, variable, base.pieces.len());
        assert_eq!(base.encode().unwrap().len(), expected);
    }
}

#[test]
fn offset_tables_have_no_gap_and_add_up() {
    let mut checked = 0;
    for (name, section) in sections_of("archive.md") {
        for table in tables(&section) {
            let (end, rows) = end_of(&name, table);
            checked += rows;
            if let (Some(total), Some(end)) = (section.total, end) {
                assert_eq!(total, end, "{name}");
            }
        }
    }
    assert!(checked > 75, "only {checked} rows were found");
}

/// Of a state that has nothing, a start, a checkpoint without its parts, a range of ranks, a set without ranges.
fn sizes_in_catalog() -> [usize; 5] {
    let size = |state: &CatalogState| state.encode(STORE).unwrap().len();
    let mut changed = state();
    changed.starts.pop();
    let start = size(&state()) - size(&changed);
    changed = state();
    let last = changed.checkpoints.pop().unwrap();
    let checkpoint = size(&state()) - size(&changed) - last.parts.len() * 16;
    let without = size(&changed);
    changed.rank_sets[0].pop();
    let range = without - size(&changed);
    changed.rank_sets.pop();
    let set = without - range - size(&changed);
    [
        size(&CatalogState::default()),
        start,
        checkpoint,
        range,
        set,
    ]
}

#[test]
fn sizes_are_the_encoded_ones() {
    let sections = sections_of("archive.md");
    let bare_root = ArchiveRoot {
        files: Vec::new(),
        revisions: Vec::new(),
        ..root()
    };
    let mut one_file = bare_root.clone();
    one_file.files = root().files[..1].to_vec();
    let name = one_file.files[0].name.len();
    let bare_table = ArchiveTable {
        entries: Vec::new(),
        ..table()
    };
    let bare_header = SegmentHeader {
        scheme: Vec::new(),
        variable: String::new(),
        pieces: Vec::new(),
        bases: Vec::new(),
        ..header()
    };
    let unnamed = |text: [&String; 2]| text.map(String::len).iter().sum::<usize>();
    let (archive, catalog) = (superblock(), catalog_superblock());
    let [bare, start, checkpoint, range, set] = sizes_in_catalog();
    let least = [
        (
            "Archive superblock",
            archive.encode().unwrap().len() - unnamed([&archive.job, &archive.host]),
        ),
        ("Archive root", bare_root.encode().unwrap().len()),
        ("Heir", heir().encode().unwrap().len() - heir().host.len()),
        (
            "Other file",
            one_file.encode().unwrap().len() - bare_root.encode().unwrap().len() - name,
        ),
        ("Segment table", bare_table.encode(0).unwrap().len()),
        ("Segment extent", bare_header.encode().unwrap().len()),
        (
            "Catalog superblock",
            catalog.encode().unwrap().len() - unnamed([&catalog.job, &catalog.host]),
        ),
        ("Catalog state", bare),
        ("Rank set", set),
        ("Archived checkpoint", checkpoint),
    ];
    let total = [
        ("Table entry", TableEntry::BYTES),
        ("Piece", SegmentHeader::PIECE_BYTES),
        ("Run with a base", SegmentHeader::RUN_BYTES),
        ("Start", start),
        ("Rank range", range),
        ("Part", 16),
    ];
    for (name, size) in least {
        assert_eq!(sections[name].least, bytes(size), "{name}");
    }
    for (name, size) in total {
        assert_eq!(sections[name].total, bytes(size), "{name}");
    }
    let named = sections.values();
    let named = named.filter(|section| section.total.is_some() || section.least.is_some());
    assert_eq!(
        named.count(),
        least.len() + total.len(),
        "a size nobody checks"
    );
}

#[test]
fn parts_add_up_to_their_structures() {
    let bare_root = ArchiveRoot {
        files: Vec::new(),
        revisions: Vec::new(),
        ..root()
    };
    let entries = u64::try_from(table().entries.len()).unwrap();
    assert_eq!(
        bytes(table().encode(2).unwrap().len()),
        Some(ArchiveTable::bytes_for(entries))
    );
    let revision = root().encode().unwrap().len() - bare_root.encode().unwrap().len();
    let files: usize = root().files.iter().map(|file| 18 + file.name.len()).sum();
    assert_eq!(revision, files + 2 * RevisionEntry::BYTES);
}

#[test]
fn the_layout_is_that_of_the_code() {
    let sections = sections_of("archive.md");
    let rows = &sections["Layout of an archive store"].rows;
    let place = |what: &str| {
        let row = rows.iter().find(|row| row[2].starts_with(what));
        row.and_then(|row| number(&row[0]))
    };
    assert_eq!(place("superblock, first"), Some(SUPERBLOCK_OFFSETS[0]));
    assert_eq!(place("superblock, second"), Some(SUPERBLOCK_OFFSETS[1]));
    assert_eq!(place("[heir]"), Some(HEIR_OFFSET));
    assert_eq!(place("root slot 0"), Some(ROOT_OFFSETS[0]));
    assert_eq!(place("root slot 1"), Some(ROOT_OFFSETS[1]));
    assert_eq!(place("extents"), Some(DATA_OFFSET));
    let mut end = 0;
    for row in &rows[1..rows.len() - 1] {
        assert_eq!(number(&row[0]), Some(end), "{row:?}");
        end += number(&row[1]).unwrap();
    }
    assert_eq!(
        (end, SLOTS_OFFSET, GRAIN_BYTES),
        (DATA_OFFSET, 4_194_304, 4096)
    );
}

#[test]
fn limits_are_those_of_the_code() {
    let wanted = [
        ("ARCHIVE_FILES_MAX", ARCHIVE_FILES_MAX as u64),
        ("FILE_NAME_BYTES_MAX", limits::FILE_NAME_BYTES_MAX as u64),
        ("LABEL_BYTES_MAX", limits::LABEL_BYTES_MAX as u64),
        ("REVISIONS_MAX", REVISIONS_MAX as u64),
        ("SEGMENTS_MAX", limits::SEGMENTS_MAX),
        ("SEGMENT_BYTES_MAX", u64::from(limits::SEGMENT_BYTES_MAX)),
        ("STORED_BYTES_MAX", u64::from(limits::STORED_BYTES_MAX)),
        ("SCHEME_BYTES_MAX", limits::SCHEME_BYTES_MAX as u64),
        ("SEGMENT_PIECES_MAX", u64::from(limits::SEGMENT_PIECES_MAX)),
        ("CATALOG_STORES_MAX", u64::from(limits::CATALOG_STORES_MAX)),
        (
            "CATALOG_RANK_SETS_MAX",
            u64::from(limits::CATALOG_RANK_SETS_MAX),
        ),
        ("CATALOG_STARTS_MAX", u64::from(limits::CATALOG_STARTS_MAX)),
        (
            "CATALOG_CHECKPOINTS_MAX",
            u64::from(limits::CATALOG_CHECKPOINTS_MAX),
        ),
        (
            "CATALOG_SLOT_BYTES_MIN",
            u64::from(limits::CATALOG_SLOT_BYTES_MIN),
        ),
        (
            "CATALOG_SLOT_BYTES_MAX",
            u64::from(limits::CATALOG_SLOT_BYTES_MAX),
        ),
    ];
    let sections = sections_of("archive.md");
    let found: Vec<(&str, Option<u64>)> = sections["Limits"].rows[1..]
        .iter()
        .map(|row| (row[0].as_str(), number(&row[1])))
        .collect();
    assert_eq!(found, wanted.map(|(name, value)| (name, Some(value))));
}

/// The largest of everything fits into its place.
#[test]
fn the_largest_structures_fit() {
    let label = "x".repeat(limits::LABEL_BYTES_MAX);
    let largest = ArchiveSuperblock {
        job: label.clone(),
        host: label.clone(),
        ..superblock()
    };
    assert!(largest.encode().unwrap().len() <= SUPERBLOCK_BYTES);
    assert_eq!(
        ArchiveSuperblock::decode(&largest.encode().unwrap()),
        Ok(largest)
    );
    let largest = CatalogSuperblock {
        job: label.clone(),
        host: label,
        ..catalog_superblock()
    };
    assert!(largest.encode().unwrap().len() <= SUPERBLOCK_BYTES);
    let mut largest = root();
    let mut file = largest.files[0].clone();
    file.name = "y".repeat(limits::FILE_NAME_BYTES_MAX);
    largest.files = vec![file; ARCHIVE_FILES_MAX];
    let revision = largest.revisions[0];
    let numbered = |number| RevisionEntry {
        checkpoint: CheckpointId::new(1, number),
        ..revision
    };
    largest.revisions = (1..=64).map(numbered).collect();
    assert!(largest.encode().unwrap().len() <= ROOT_BYTES);
    assert_eq!(
        ArchiveRoot::decode(&largest.encode().unwrap(), STORE),
        Ok(largest)
    );
    let pieces = usize::try_from(limits::SEGMENT_PIECES_MAX).unwrap();
    let most = header_bytes_max(pieces, pieces) + u64::from(limits::SEGMENT_BYTES_MAX);
    assert!(most < u64::from(limits::STORED_BYTES_MAX));
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let wrong = |change: fn(&mut ArchiveRoot)| {
        let mut value = root();
        change(&mut value);
        value.encode().unwrap_err().field
    };
    assert_eq!(wrong(|root| root.sequence = u64::MAX), "sequence");
    assert_eq!(
        wrong(|root| root.next_segment = (1 << 48) + 1),
        "next segment"
    );
    assert_eq!(wrong(|root| root.table.offset = 0), "table offset");
    assert_eq!(wrong(|root| root.table.offset += 1), "table offset");
    assert_eq!(
        wrong(|root| root.table.length_bytes = u32::MAX),
        "table length"
    );
    let none = |root: &mut ArchiveRoot| root.table.length_bytes = 0;
    assert_eq!(wrong(none), "table offset");
    let digest = |root: &mut ArchiveRoot| {
        root.table = TablePlace {
            digest: root.table.digest,
            ..TablePlace::default()
        };
    };
    assert_eq!(wrong(digest), "table digest");
    assert_eq!(
        wrong(|root| root.files = vec![root.files[0].clone(); 17]),
        "other files"
    );
    assert_eq!(wrong(|root| root.revisions.swap(0, 1)), "number");
    for name in ["", ".", "..", "a/b", "a\0b"] {
        let mut value = root();
        name.clone_into(&mut value.files[1].name);
        let error = value.encode().unwrap_err();
        assert_eq!(error.field, "file name", "{name:?}");
    }

    let wrong = |change: fn(&mut ArchiveTable)| {
        let mut value = table();
        change(&mut value);
        value.encode(2).unwrap_err().field
    };
    assert_eq!(wrong(|table| table.entries.swap(0, 1)), "segment id");
    assert_eq!(wrong(|table| table.entries[0].segment.0 = 0), "segment id");
    assert_eq!(
        wrong(|table| table.entries[1].segment.0 = 1 << 48),
        "segment id"
    );
    assert_eq!(wrong(|table| table.entries[0].offset -= 4096), "offset");
    assert_eq!(wrong(|table| table.entries[0].offset += 1), "offset");
    assert_eq!(
        wrong(|table| table.entries[0].decoded_bytes = 0),
        "decoded bytes"
    );
    assert_eq!(
        wrong(|table| table.entries[1].decoded_bytes += 1),
        "decoded bytes"
    );
    assert_eq!(
        wrong(|table| table.entries[1].stored_bytes += 1),
        "stored bytes"
    );
    assert_eq!(wrong(|table| table.entries[0].file = 3), "file");
}

#[test]
fn catalogs_that_cannot_be_are_refused_by_name() {
    let wrong = |change: fn(&mut CatalogState)| {
        let mut value = state();
        change(&mut value);
        value.encode(STORE).unwrap_err().field
    };
    assert_eq!(wrong(|state| state.starts.swap(0, 1)), "incarnation");
    assert_eq!(wrong(|state| state.checkpoints.swap(0, 1)), "number");
    assert_eq!(
        wrong(|state| state.checkpoints[0].parts.swap(0, 1)),
        "store"
    );
    assert_eq!(
        wrong(|state| state.checkpoints[0].parts[1].store = 2),
        "store"
    );
    assert_eq!(
        wrong(|state| state.checkpoints[0].world_size = 0),
        "ranks of the job"
    );
    let many = |state: &mut CatalogState| {
        let part = CatalogPart {
            store: 0,
            sequence: 1,
            ranks: 0,
        };
        state.checkpoints[0].parts = vec![part; 3];
    };
    assert_eq!(wrong(many), "parts");
    assert_eq!(
        wrong(|state| state.checkpoints[1].parts[0].ranks = 3),
        "rank set"
    );
    assert_eq!(wrong(|state| state.rank_sets[2].clear()), "ranges");
    assert_eq!(wrong(|state| state.rank_sets[0].swap(0, 1)), "first rank");
    // Those that touch are one.
    assert_eq!(
        wrong(|state| state.rank_sets[0][0].count = 32),
        "first rank"
    );
    assert_eq!(
        wrong(|state| state.rank_sets[2][0].count = 0),
        "ranks in a row"
    );
    assert_eq!(
        wrong(|state| state.rank_sets[2][0].count = limits::RANKS_MAX + 1),
        "ranks in a row"
    );
    assert_eq!(wrong(|state| state.stores[0].name.clear()), "file name");
    let refused = |change: fn(&mut CatalogSuperblock)| {
        let mut value = catalog_superblock();
        change(&mut value);
        value.encode().unwrap_err().field
    };
    assert_eq!(refused(|block| block.slot_bytes = 65_535), "slot bytes");
    assert_eq!(refused(|block| block.slot_bytes += 1), "slot bytes");
    assert_eq!(refused(|block| block.epoch = 0), "epoch");
}

#[test]
fn headers_that_cannot_be_are_refused_by_name() {
    let segment = header().segment;
    let wrong = |change: fn(&mut SegmentHeader)| {
        let mut value = header();
        change(&mut value);
        value.encode().unwrap_err().field
    };
    let bytes = header().encode().unwrap();
    let error = SegmentHeader::decode(&bytes, STORE, SegmentId(segment.0 + 1)).unwrap_err();
    assert_eq!(error.field, "segment id");
    assert_eq!(wrong(|header| header.decoded_bytes = 0), "decoded bytes");
    assert_eq!(
        wrong(|header| header.payload_bytes = u32::MAX),
        "payload bytes"
    );
    assert_eq!(wrong(|header| header.scheme = vec![0; 33]), "scheme");
    assert_eq!(
        wrong(|header| header.variable = "x".repeat(256)),
        "variable"
    );
    assert_eq!(wrong(|header| header.pieces.swap(0, 1)), "offset");
    assert_eq!(wrong(|header| header.pieces[1].offset += 1), "length");
    assert_eq!(wrong(|header| header.pieces[0].length_bytes = 0), "length");
    assert_eq!(wrong(|header| header.pieces[0].length_bytes += 1), "offset");
    let between = |header: &mut SegmentHeader| {
        header.pieces[1].offset += 1;
        header.pieces[1].length_bytes -= 1;
    };
    assert_eq!(wrong(between), "offset");
    assert_eq!(wrong(|header| header.bases[0].length_bytes += 2), "length");
    assert_eq!(wrong(|header| header.bases[0].base = Address::NONE), "base");
    let own = |header: &mut SegmentHeader| header.bases[0].base = Address::new(header.segment, 0);
    assert_eq!(wrong(own), "base");
    let end = |header: &mut SegmentHeader| {
        header.bases[0].base = Address::new(SegmentId(7), u16::MAX);
    };
    assert_eq!(wrong(end), "base");
    let mut mixed = header();
    (mixed.element, mixed.variable) = (None, String::new());
    mixed.bases.clear();
    let mut stored = mixed.encode().unwrap();
    let length = stored.len();
    stored.extend([1, 2, 3]);
    let (read, at) = SegmentHeader::decode(&stored, STORE, segment).unwrap();
    assert_eq!((read.is_base(), at), (true, length));
    assert_eq!(read, mixed);
}

#[test]
fn a_checkpoint_is_abandoned_by_a_later_start_that_went_on_from_an_older_one() {
    let state = state();
    let listed: Vec<CheckpointId> = state.restorable().map(|entry| entry.checkpoint).collect();
    assert_eq!(listed, [CheckpointId::new(2, 17), CheckpointId::new(4, 18)]);
    // Start 2 began anew, start 4 from 17.
    for (checkpoint, abandoned) in [
        (CheckpointId::new(1, 3), true),
        (CheckpointId::new(2, 3), false),
        (CheckpointId::new(2, 17), false),
        (CheckpointId::new(2, 18), true),
        (CheckpointId::new(3, 17), true),
        (CheckpointId::new(4, 99), false),
    ] {
        assert_eq!(state.is_abandoned(checkpoint), abandoned, "{checkpoint}");
    }
}

fn entry() -> impl Strategy<Value = TableEntry> {
    let place = (0..1_u64 << 40, any::<[u8; 16]>(), 0..=3_u8);
    let sizes = (1..=limits::SEGMENT_BYTES_MAX, 1..=limits::STORED_BYTES_MAX);
    let class = proptest::sample::select(backstay_format::SegmentClass::ALL.to_vec());
    let marks = (any::<u8>(), any::<bool>(), any::<bool>(), class);
    (place, sizes, marks).prop_map(|(place, sizes, marks)| TableEntry {
        segment: SegmentId(1),
        offset: DATA_OFFSET + place.0 * GRAIN_BYTES,
        digest: backstay_format::Digest(place.1),
        decoded_bytes: sizes.0,
        stored_bytes: sizes.1,
        file: place.2,
        class: marks.3,
        merge: marks.0,
        delta: marks.1,
        draining: marks.2,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_table_gives_back_its_entries(
        entries in proptest::collection::btree_map(1..=SegmentId::MAX.0, entry(), 0..40),
        sequence in 0..=limits::COUNTER_MAX,
    ) {
        let numbered = |(segment, entry)| TableEntry { segment: SegmentId(segment), ..entry };
        let entries = entries.into_iter().map(numbered).collect();
        let table = ArchiveTable { store: STORE, sequence, entries };
        prop_assert_eq!(ArchiveTable::decode(&table.encode(3).unwrap(), STORE, 3), Ok(table));
    }

    #[test]
    fn a_header_gives_back_its_pieces(
        lengths in proptest::collection::vec((0..5_u32, 1..5000_u32), 0..200),
        scheme in proptest::collection::vec(any::<u8>(), 0..=32),
    ) {
        let mut value = header();
        let (mut end, mut pieces) = (0, Vec::new());
        for (gap, length_bytes) in lengths {
            let offset = end + gap * 64;
            let digest = backstay_format::Digest([7; 16]);
            pieces.push(SegmentPiece { offset, length_bytes, digest });
            end = (offset + length_bytes).next_multiple_of(64);
        }
        (value.pieces, value.scheme) = (pieces, scheme);
        value.decoded_bytes = end.max(32_768);
        let encoded = value.encode().unwrap();
        let read = SegmentHeader::decode(&encoded, STORE, value.segment);
        prop_assert_eq!(read, Ok((value, encoded.len())));
    }
}
