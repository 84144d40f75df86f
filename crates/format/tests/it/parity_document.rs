// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/format/parity.md and docs/format/agent.md say what the code does: kinds, sizes, offsets,
//! limits.

use crate::document::{Section, bytes, number, sections_of};
use crate::parity_samples;
use backstay_format::agent::{Answer, Request, Survey};
use backstay_format::stripe::LOG_HEAD_BYTES;
use backstay_format::{Member, Round, StoreId, limits};
use std::collections::BTreeMap;

/// The tables of offsets of a section. A table begins with its row of headings.
pub(crate) fn tables(section: &Section) -> Vec<&[Vec<String>]> {
    let rows = &section.rows;
    let starts: Vec<usize> = (0..rows.len())
        .filter(|&at| rows[at][0] == "offset")
        .collect();
    let ends = starts.iter().skip(1).copied().chain([rows.len()]);
    let both = starts.iter().zip(ends);
    both.map(|(&start, end)| &rows[start + 1..end]).collect()
}

/// Checks that there is no gap as far as a table has numbers; where they end, and how many there are.
pub(crate) fn end_of(name: &str, table: &[Vec<String>]) -> (Option<u64>, usize) {
    let mut end = None;
    let mut checked = 0;
    for row in table {
        let (Some(offset), Some(size)) = (number(&row[0]), number(&row[1])) else {
            if let (Some(offset), Some(end)) = (number(&row[0]), end) {
                assert_eq!(offset, end, "{name}: {row:?}");
            }
            return (None, checked);
        };
        assert_eq!(offset, end.unwrap_or(offset), "{name}: {row:?}");
        end = Some(offset + size);
        checked += 1;
    }
    (end, checked)
}

#[test]
fn offset_tables_have_no_gap_and_add_up() {
    let mut checked = 0;
    for page in ["parity.md", "agent.md"] {
        for (name, section) in sections_of(page) {
            for table in tables(&section) {
                let (end, rows) = end_of(&name, table);
                checked += rows;
                if let (Some(total), Some(end)) = (section.total, end) {
                    assert_eq!(total, end, "{page}: {name}");
                }
            }
        }
    }
    assert!(checked > 70, "only {checked} rows were found");
}

#[test]
fn totals_of_a_log_are_the_encoded_sizes() {
    let sections = sections_of("parity.md");
    let empty = Round {
        members: Vec::new(),
        removed: Vec::new(),
        added: Vec::new(),
        ..parity_samples::delta()
    };
    let member = Member {
        store: StoreId::default(),
        node: String::new(),
        domain: String::new(),
        superblock: Vec::new(),
        root: Vec::new(),
    };
    let with_member = Round {
        members: vec![member],
        ..empty.clone()
    };
    let stripe = parity_samples::stripe(1);
    let answer = |answer: Answer| answer.encode().unwrap().len();
    let piece = answer(Answer::Taken(stripe.pieces[0].extent)) - answer(Answer::Done);
    let none = answer(Answer::Encoded(Vec::new()));
    let pieces = stripe.pieces.len() + stripe.parity.len();
    let encoded = answer(Answer::Encoded(vec![stripe])) - none;
    let smallest = encoded - (pieces - 1) * piece;
    let record = empty.encode().unwrap().len();
    let least = |name: &str| sections[name].least;
    assert_eq!(
        sections["Head"].total,
        bytes(parity_samples::head().encode().unwrap().len())
    );
    assert_eq!(least("Record"), bytes(record));
    assert_eq!(
        least("Member"),
        bytes(with_member.encode().unwrap().len() - record)
    );
    assert_eq!(least("Stripe"), bytes(smallest));
    assert_eq!(sections["Piece"].total, bytes(piece));
    assert_eq!(number(&sections["Files"].rows[1][1]), bytes(LOG_HEAD_BYTES));
    let named = sections
        .values()
        .filter(|section| section.total.is_some() || section.least.is_some());
    assert_eq!(named.count(), 5, "a size that nobody checks");
}

/// The fields of a record stand where the page says.
#[test]
fn fields_of_a_record_are_where_the_page_says() {
    let sections = sections_of("parity.md");
    let encoded = parity_samples::delta().encode().unwrap();
    let field = |section: &str, what: &str, front: usize| -> u64 {
        let rows = sections[section].rows.iter();
        let mut rows = rows.filter(|row| row.len() > 2 && row[2].starts_with(what));
        let row = rows.next().unwrap_or_else(|| panic!("{section}: {what}"));
        let place = |cell: &str| usize::try_from(number(cell).unwrap()).unwrap();
        let start = front + place(&row[0]);
        let mut value = [0; 8];
        let width = place(&row[1]);
        value[..width].copy_from_slice(&encoded[start..start + width]);
        u64::from_le_bytes(value)
    };
    let record = |what| field("Record", what, 0);
    assert_eq!(record("generation"), 6);
    assert_eq!((record("epoch"), record("round")), (2, 42));
    assert_eq!(record("1 if it replaces"), 0);
    assert_eq!(record("parity extents of each"), 2);
    assert_eq!(record("most pieces"), 2);
    assert_eq!(record("incarnation"), 3);
    assert_eq!(record("number of the newest"), 18);
    assert_eq!(record("number of members"), 4);
    // The only stripe stands last, with two pieces and two parities.
    let front = encoded.len() - 8 - (12 + 4 * 36);
    let stripe = |what| field("Stripe", what, front);
    assert_eq!(stripe("id"), 9);
    assert_eq!(
        (stripe("number of pieces"), stripe("number of parity")),
        (2, 2)
    );
    let piece = |what| field("Piece", what, front + 12);
    assert_eq!(piece("segment id"), 0x0001_0203_0405);
    assert_eq!((piece("offset"), piece("length")), (16_384, 49_152));
    assert_eq!((piece("column"), piece("class")), (0, 4));
}

/// A row that a page lists must come from `pairs`, in this order.
fn listed(page: &str, wanted: &[(&str, u64)]) {
    let sections = sections_of(page);
    let rows = sections["Limits"].rows[1..].iter();
    let found: Vec<(&str, Option<u64>)> =
        rows.map(|row| (row[0].as_str(), number(&row[1]))).collect();
    let wanted: Vec<_> = wanted
        .iter()
        .map(|&(name, value)| (name, Some(value)))
        .collect();
    assert_eq!(found, wanted, "{page}");
}

#[test]
fn limits_are_those_of_the_code() {
    let members = ("GROUP_MEMBERS_MAX", limits::GROUP_MEMBERS_MAX as u64);
    let parity = ("PARITY_MAX", limits::PARITY_MAX as u64);
    let stripes = ("STRIPES_MAX", u64::from(limits::STRIPES_MAX));
    let label = ("LABEL_BYTES_MAX", limits::LABEL_BYTES_MAX as u64);
    let carried = ("CARRIED_BYTES_MAX", u64::from(limits::CARRIED_BYTES_MAX));
    let segment = ("SEGMENT_BYTES_MAX", u64::from(limits::SEGMENT_BYTES_MAX));
    let record = ("RECORD_BYTES_MAX", limits::RECORD_BYTES_MAX);
    listed(
        "parity.md",
        &[members, parity, stripes, record, label, segment, carried],
    );
    listed(
        "agent.md",
        &[
            members,
            parity,
            ("REVISIONS_MAX", limits::REVISIONS_MAX as u64),
            ("RANKS_MAX", u64::from(limits::RANKS_MAX)),
            carried,
            ("ENDPOINT_BYTES_MAX", limits::ENDPOINT_BYTES_MAX as u64),
            label,
            ("REPORT_BYTES_MAX", limits::REPORT_BYTES_MAX as u64),
            record,
            stripes,
        ],
    );
}

/// What a message is called by, and its bytes.
fn messages() -> Vec<(String, Vec<u8>)> {
    let name = |shown: String| {
        let end = shown.find(|c: char| !c.is_alphanumeric());
        shown[..end.unwrap_or(shown.len())].to_owned()
    };
    let requests = parity_samples::requests()
        .into_iter()
        .map(|(_, _, request)| {
            let bytes = request.encode().unwrap();
            (
                format!("{} {}", bytes[16], name(format!("{request:?}"))),
                bytes,
            )
        });
    let answers = parity_samples::answers().map(|(_, _, answer)| {
        let bytes = answer.encode().unwrap();
        (
            format!("{} {}", bytes[16], name(format!("{answer:?}"))),
            bytes,
        )
    });
    requests.chain(answers).collect()
}

#[test]
fn messages_have_the_kinds_and_sizes_that_the_page_says() {
    let sections = sections_of("agent.md");
    let mut named: BTreeMap<&str, &Section> = sections
        .iter()
        .filter(|(name, _)| name.starts_with(|c: char| c.is_ascii_digit()))
        .map(|(name, section)| (name.as_str(), section))
        .collect();
    let mut sized = 0;
    for (name, encoded) in messages() {
        let section = named
            .remove(name.as_str())
            .unwrap_or_else(|| panic!("the page does not have {name}"));
        if section.total.is_some() {
            assert_eq!(section.total, bytes(encoded.len()), "{name}");
            sized += 1;
        }
    }
    assert!(named.is_empty(), "no such message: {:?}", named.keys());
    assert!(sized >= 10, "{sized}");
    let survey = Survey {
        store: StoreId::default(),
        run: 0,
        incarnation: 0,
        sequence: 0,
        length_bytes: 0,
        rebuilt: false,
        unread: None,
        revisions: Vec::new(),
        group: None,
        former: None,
    };
    let surveys = |count| {
        Answer::Surveys(vec![survey.clone(); count])
            .encode()
            .unwrap()
            .len()
    };
    assert_eq!(sections["2 Surveys"].least, bytes(surveys(1) - surveys(0)));
    assert_eq!(
        sections["Frames"].least,
        bytes(Answer::Done.encode().unwrap().len())
    );
    let mut seat = parity_samples::seats()[0].clone();
    (seat.node, seat.domain, seat.address) = Default::default();
    let seats = |count| {
        let seats = vec![seat.clone(); count];
        Request::Repair { seats }.encode().unwrap().len()
    };
    assert_eq!(sections["Seats"].least, bytes(seats(1) - seats(0)));
}
