// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/format/store.md says what the code does: sizes, offsets, limits, element types.

use crate::samples;
use backstay_format::bytes::{FRAME_HEAD_BYTES, FRAME_TAIL_BYTES};
use backstay_format::stream::StreamRoot;
use backstay_format::{
    Address, BlockRef, ElementType, Lineage, Merge, Page, RankEntry, RankRoot, SegmentClass,
    geometry, limits,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// A section: its table rows (cells trimmed), and the numbers of its "Total: N bytes" and "Least: N
/// bytes" lines.
#[derive(Debug, Default)]
pub(crate) struct Section {
    pub(crate) rows: Vec<Vec<String>>,
    pub(crate) total: Option<u64>,
    pub(crate) least: Option<u64>,
}

fn sections() -> BTreeMap<String, Section> {
    sections_of("store.md")
}

/// The sections of a page of docs/format, by their headings.
pub(crate) fn sections_of(page: &str) -> BTreeMap<String, Section> {
    let path = format!("{}/../../docs/format/{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            heading.trim_start_matches('#').trim().clone_into(&mut name);
        }
        let section = sections.entry(name.clone()).or_default();
        if let Some(total) = line.strip_prefix("Total: ") {
            section.total = number(total.split(' ').next().unwrap_or_default());
        } else if let Some(least) = line.strip_prefix("Least: ") {
            section.least = number(least.split(' ').next().unwrap_or_default());
        } else if line.starts_with('|') && !line.starts_with("|---") {
            let cells = line.trim_matches('|').split('|');
            let cells = cells.map(|cell| cell.trim().trim_matches('`').to_owned());
            section.rows.push(cells.collect());
        }
    }
    sections
}

/// The fields that a value is sent with, in their order, with the first character that each has as JSON: those
/// `inside` so many others.
fn fields(value: &impl Serialize, inside: usize) -> Vec<(String, char)> {
    let json = serde_json::to_string(value).unwrap();
    let (mut depth, mut found) = (0, Vec::new());
    let mut rest = json.as_str();
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        match first {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            '"' => {
                let (text, behind) = rest.split_once('"').unwrap();
                rest = behind;
                if let Some(value) = rest.strip_prefix(':').filter(|_| depth == inside + 1) {
                    found.push((text.to_owned(), value.chars().next().unwrap()));
                }
            }
            _ => {}
        }
    }
    found
}

/// Holds the table of a section to the fields of a value: their names, their order, what type they are of.
fn holds(page: &str, heading: &str, value: &impl Serialize, inside: usize) {
    let sections = sections_of(page);
    let section = sections.get(heading);
    let section = section.unwrap_or_else(|| panic!("{page} has no section {heading}"));
    let table = section.rows.iter().skip_while(|row| row[0] != "field");
    let rows: Vec<_> = table
        .skip(1)
        .map(|row| (&row[0], row[1].as_str()))
        .collect();
    let found = fields(value, inside);
    let names: Vec<_> = found.iter().map(|(name, _)| name).collect();
    assert_eq!(
        rows.iter().map(|row| row.0).collect::<Vec<_>>(),
        names,
        "{page}: {heading}"
    );
    for ((name, kind), (_, first)) in rows.into_iter().zip(found) {
        let fits = match kind.split(' ').next().unwrap() {
            "u8" | "u32" | "u64" | "i32" => first.is_ascii_digit(),
            "text" | "kind" => first == '"',
            "flag" => first == 't' || first == 'f',
            "bytes" | "list" => first == '[',
            "option" => true,
            other => {
                first == '{' && sections_of("agent.md").contains_key(other)
                    || sections.contains_key(other)
            }
        };
        assert!(fits, "{page}: {heading}: {name} is no {kind}");
    }
}

/// The same of a structure.
pub(crate) fn holds_structure(page: &str, heading: &str, value: &impl Serialize) {
    holds(page, heading, value, 0);
}

/// Holds the sections of a page to messages, which are all there are, in the order of their kinds: section
/// `front`, number and name. Where the fields stand in another section, `elsewhere` says which.
pub(crate) fn holds_messages<T: Serialize>(
    page: &str,
    front: &str,
    messages: &[(T, Vec<u8>)],
    elsewhere: &[(&str, &str)],
) {
    for (number, (message, bytes)) in messages.iter().enumerate() {
        assert_eq!(usize::from(bytes[FRAME_HEAD_BYTES]), number, "{page}");
        let json = serde_json::to_string(message).unwrap();
        let name = json.split('"').nth(1).unwrap();
        let heading = format!("{front}{number} {name}");
        assert!(
            sections_of(page).contains_key(&heading),
            "{page}: {heading}"
        );
        let place = elsewhere.iter().find(|(kind, _)| *kind == name);
        holds(
            page,
            place.map_or(heading.as_str(), |place| place.1),
            message,
            1,
        );
    }
}

pub(crate) fn number(text: &str) -> Option<u64> {
    text.replace(',', "").parse().ok()
}

pub(crate) fn bytes(count: usize) -> Option<u64> {
    u64::try_from(count).ok()
}

#[test]
fn totals_are_the_encoded_sizes() {
    let sections = sections();
    let mut one = samples::root_slot();
    let two = one.encode().unwrap().len();
    one.revisions.truncate(1);
    let wanted = [
        (
            "Segment records",
            samples::segment_record().encode().unwrap().len(),
        ),
        ("Lineage", Lineage::BYTES),
        ("Reference", BlockRef::BYTES),
        ("Revision", two - one.encode().unwrap().len()),
        ("Streams", StreamRoot::BYTES),
        ("Tree pages", Page::HEAD_BYTES),
        ("Table of ranks", RankEntry::BYTES),
        ("Rank root", RankRoot::BYTES),
    ];
    for (name, size) in wanted {
        assert_eq!(sections[name].total, bytes(size), "{name}");
    }
    let named = sections.values().filter(|section| section.total.is_some());
    assert_eq!(named.count(), wanted.len(), "a total that nobody checks");
}

#[test]
fn offset_tables_have_no_gap_and_add_up() {
    let mut checked = 0;
    for (name, section) in sections() {
        let mut end = 0;
        let rows = section.rows.iter();
        for row in rows.skip_while(|row| row[0] != "offset").skip(1) {
            let (Some(offset), Some(size)) = (number(&row[0]), number(&row[1])) else {
                break;
            };
            assert_eq!(offset, end, "{name}: {row:?}");
            end = offset + size;
            checked += 1;
        }
        let is_fixed = name != "Tree pages" || end == 16;
        let total = section.total.filter(|_| end > 0);
        assert!(
            is_fixed && total.is_none_or(|total| total == end),
            "{name}: {end}"
        );
    }
    assert!(checked > 45, "only {checked} rows were found");
}

#[test]
fn limits_are_those_of_the_code() {
    let wanted = [
        ("COUNTER_MAX", limits::COUNTER_MAX),
        ("NAME_BYTES_MAX", limits::NAME_BYTES_MAX as u64),
        ("LABEL_BYTES_MAX", limits::LABEL_BYTES_MAX as u64),
        ("DIMENSIONS_MAX", limits::DIMENSIONS_MAX as u64),
        ("VARIABLES_MAX", limits::VARIABLES_MAX as u64),
        ("FILE_PATH_BYTES_MAX", limits::FILE_PATH_BYTES_MAX as u64),
        ("FILE_MODE_MAX", u64::from(limits::FILE_MODE_MAX)),
        ("FILE_STRETCHES_MAX", limits::FILE_STRETCHES_MAX as u64),
        ("RANKS_MAX", u64::from(limits::RANKS_MAX)),
        ("REVISIONS_MAX", limits::REVISIONS_MAX as u64),
        ("BLOCK_BYTES_MIN", u64::from(limits::BLOCK_BYTES_MIN)),
        ("BLOCK_BYTES_MAX", u64::from(limits::BLOCK_BYTES_MAX)),
        ("SEGMENT_BYTES_MIN", u64::from(limits::SEGMENT_BYTES_MIN)),
        ("SEGMENT_BYTES_MAX", u64::from(limits::SEGMENT_BYTES_MAX)),
        ("SEGMENTS_MAX", limits::SEGMENTS_MAX),
        ("VARIABLE_BYTES_MAX", limits::VARIABLE_BYTES_MAX),
        ("FANOUT", limits::FANOUT as u64),
        ("HEIGHT_MAX", u64::from(limits::HEIGHT_MAX)),
        (
            "INTERNAL_BLOCK_BYTES",
            u64::from(limits::INTERNAL_BLOCK_BYTES),
        ),
        (
            "INTERNAL_STREAM_BYTES_MAX",
            limits::INTERNAL_STREAM_BYTES_MAX,
        ),
    ];
    let sections = sections();
    let found: Vec<(&str, Option<u64>)> = sections["Limits"].rows[1..]
        .iter()
        .map(|row| (row[0].as_str(), number(&row[1])))
        .collect();
    assert_eq!(found, wanted.map(|(name, value)| (name, Some(value))));
}

#[test]
fn element_types_and_classes_are_those_of_the_code() {
    let sections = sections();
    let rows = &sections["Element types"].rows[1..];
    let wanted = ElementType::ALL.map(|kind| {
        let (id, width) = (kind.id().to_string(), kind.width_bytes().to_string());
        [id, kind.name().to_owned(), width]
    });
    assert_eq!(rows.len(), wanted.len());
    for (row, wanted) in rows.iter().zip(wanted) {
        assert_eq!(row[..3], wanted);
    }
    let rows = &sections["Segment records"].rows;
    let classes = rows.iter().skip_while(|row| row[0] != "class").skip(1);
    let found: Vec<_> = classes
        .map(|row| (number(&row[0]), number(&row[1])))
        .collect();
    let wanted =
        SegmentClass::ALL.map(|class| (Some(class as u64), Some(u64::from(class.granule_bytes()))));
    assert_eq!(found, wanted);
}

#[test]
fn the_layout_is_that_of_the_code() {
    let sections = sections();
    let rows = &sections["Layout of the file"].rows;
    let place = |what: &str| {
        let row = rows.iter().find(|row| row[2].starts_with(what));
        row.and_then(|row| number(&row[0]))
    };
    assert_eq!(
        place("superblock, first"),
        Some(geometry::SUPERBLOCK_OFFSETS[0])
    );
    assert_eq!(
        place("superblock, second"),
        Some(geometry::SUPERBLOCK_OFFSETS[1])
    );
    assert_eq!(place("root slot 0"), Some(geometry::ROOT_OFFSETS[0]));
    assert_eq!(place("root slot 1"), Some(geometry::ROOT_OFFSETS[1]));
    assert_eq!(place("zone 0"), Some(geometry::HEAD_BYTES));
    let copies = geometry::ZONE_SLOTS * geometry::RECORD_BYTES;
    assert_eq!(place("second copies"), Some(copies));
    assert_eq!(place("segment slots"), Some(geometry::ZONE_HEAD_BYTES));
    assert_eq!((FRAME_HEAD_BYTES, FRAME_TAIL_BYTES), (16, 8));
}

#[test]
fn merging_is_that_of_the_code() {
    let sections = sections_of("merge.md");
    let rows = &sections["Schemes"].rows[1..];
    let found: Vec<(u64, &str)> = rows
        .iter()
        .map(|row| (number(&row[0]).unwrap(), row[1].as_str()))
        .collect();
    let wanted = Merge::ALL.map(|merge| (u64::from(merge.id()), merge.name()));
    assert_eq!(found, wanted);
    for id in 0..=u8::MAX {
        assert_eq!(Merge::from_id(id).is_some(), usize::from(id) < rows.len());
    }
    let path = format!("{}/../../docs/format/merge.md", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().filter_map(number).collect();
    for limit in [limits::SEGMENT_BYTES_MAX, Address::UNIT_BYTES] {
        assert!(numbers.contains(&u64::from(limit)), "{limit}");
    }
}
