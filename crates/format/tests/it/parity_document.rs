// SPDX-License-Identifier: Apache-2.0 OR MIT
//! docs/format/parity.md and docs/format/agent.md say what the code does: kinds, fields, sizes, offsets,
//! limits.

use crate::document::{Section, bytes, holds_messages, holds_structure, number, sections_of};
use crate::parity_samples;
use backstay_format::agent::{Answer, RecordPart, Request, StripePlan, Survey, SurveyedUnread};
use backstay_format::bytes::{FRAME_HEAD_BYTES, FRAME_TAIL_BYTES};
use backstay_format::stripe::LOG_HEAD_BYTES;
use backstay_format::{CheckpointId, Member, Round, StoreId, StripeId, limits};

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
    for (name, section) in sections_of("parity.md") {
        for table in tables(&section) {
            let (end, rows) = end_of(&name, table);
            checked += rows;
            if let (Some(total), Some(end)) = (section.total, end) {
                assert_eq!(total, end, "{name}");
            }
        }
    }
    assert!(checked > 25, "only {checked} rows were found");
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
    // Of one stripe with so many pieces and no parity; its group has four members.
    let of_pieces = |pieces: usize| {
        let mut stripe = parity_samples::stripe(1);
        stripe.parity.clear();
        stripe.pieces.truncate(pieces);
        let added = Vec::from_iter((pieces > 0).then_some(stripe));
        let round = Round {
            parity: 0,
            added,
            ..parity_samples::delta()
        };
        round.encode().unwrap().len()
    };
    let smallest = of_pieces(1) - of_pieces(0);
    let piece = of_pieces(2) - of_pieces(1);
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

/// Messages in the order of their kinds, with their bytes.
fn in_order<T>(all: Vec<T>, encode: impl Fn(&T) -> Vec<u8>) -> Vec<(T, Vec<u8>)> {
    let all = all.into_iter().map(|one| {
        let bytes = encode(&one);
        (one, bytes)
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(_, bytes)| bytes[FRAME_HEAD_BYTES]);
    all
}

#[test]
fn messages_have_the_kinds_and_fields_that_the_page_says() {
    let elsewhere = [
        ("Record", "RecordPart"),
        ("Table", "RecordPart"),
        ("Taken", "Extent"),
    ];
    let requests = parity_samples::requests().into_iter();
    let requests = in_order(
        requests.map(|(_, _, one)| one).collect(),
        |one: &Request| one.encode().unwrap(),
    );
    // A request of this name has fields of its own.
    holds_messages("agent.md", "", &requests, &elsewhere[..1]);
    let answers = parity_samples::answers().into_iter();
    let answers = in_order(answers.map(|(_, _, one)| one).collect(), |one: &Answer| {
        one.encode().unwrap()
    });
    holds_messages("agent.md", "", &answers, &elsewhere[1..]);
    assert_eq!((requests.len(), answers.len()), (16, 7));
    let sections = sections_of("agent.md");
    let of_messages = sections
        .keys()
        .filter(|name| name.starts_with(|first: char| first.is_ascii_digit()));
    assert_eq!(of_messages.count(), 23, "a message that is not there");
}

#[test]
fn what_messages_are_made_of_has_the_fields_that_the_page_says() {
    let stripe = parity_samples::stripe(1);
    holds_structure("agent.md", "Checkpoint", &CheckpointId::new(1, 2));
    holds_structure("agent.md", "Seat", &parity_samples::seats()[0]);
    holds_structure("agent.md", "Extent", &stripe.pieces[0].extent);
    holds_structure("agent.md", "StripePiece", &stripe.pieces[0]);
    holds_structure("agent.md", "Stripe", &stripe);
    let plan = StripePlan {
        id: stripe.id,
        pieces: stripe.pieces.clone(),
        holders: vec![1],
    };
    holds_structure("agent.md", "StripePlan", &plan);
    let part = RecordPart {
        round: parity_samples::whole(),
        number: 0,
        last: true,
    };
    holds_structure("agent.md", "RecordPart", &part);
    let survey = parity_samples::survey();
    holds_structure("agent.md", "Survey", &survey);
    let unread = SurveyedUnread {
        root: true,
        why: String::new(),
    };
    holds_structure("agent.md", "SurveyedUnread", &unread);
    let group = survey.group.as_ref().unwrap();
    holds_structure("agent.md", "SurveyedGroup", group);
    holds_structure("agent.md", "SurveyedMember", &group.members[0]);
    // Has no encoding of its own: what is sent depends on the one before.
    let json = serde_json::to_string(&survey).unwrap();
    let (_, revisions) = json.split_once("\"revisions\":[").unwrap();
    let (revision, _) = revisions.split_once("},{\"checkpoint").unwrap();
    let names = ["checkpoint", "complete", "world_size", "ranks"];
    let places = names.map(|name| revision.find(&format!("\"{name}\":")).unwrap());
    assert!(places.is_sorted(), "{revision}");
    let rows = &sections_of("agent.md")["SurveyedRevision"].rows[1..];
    assert_eq!(rows.iter().map(|row| &row[0]).collect::<Vec<_>>(), names);
}

/// The value in a frame.
fn value(bytes: &[u8]) -> &[u8] {
    &bytes[FRAME_HEAD_BYTES..bytes.len() - FRAME_TAIL_BYTES]
}

#[test]
fn values_are_encoded_as_the_page_says() {
    let report = Request::Report {
        round: 300,
        checkpoint: CheckpointId::new(2, 1 << 62),
        kind: 43,
        text: "\u{e9}".to_owned(),
    };
    let bytes = report.encode().unwrap();
    assert_eq!(bytes[8..12], [2, 0, 0, 0]);
    let number = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40];
    let wanted = [&[10, 0xac, 0x02, 2][..], &number, &[86, 2, 0xc3, 0xa9]].concat();
    assert_eq!(value(&bytes), wanted);
    let mut survey = parity_samples::survey();
    (survey.run, survey.length_bytes, survey.rebuilt) = (5, 6, true);
    survey.group = None;
    survey.former = None;
    let bytes = Answer::Surveys(vec![survey.clone()]).encode().unwrap();
    let revisions = [
        &[3, 3, 16, 1, 64, 1, 2, 0, 5][..],
        &[3, 17, 1, 64, 0],
        &[3, 18, 0, 64, 1, 2, 5, 63],
    ];
    let wanted = [
        &[1, 1],
        &survey.store.0[..],
        &[5, 3, 41, 6, 1, 0],
        &revisions.concat(),
        &[0, 0],
    ];
    assert_eq!(value(&bytes), wanted.concat());
    let plan = StripePlan {
        id: StripeId(4),
        pieces: vec![parity_samples::stripe(1).pieces[1]],
        holders: vec![31, 0],
    };
    let piece = [&[2, 7, 2, 64, 0x80, 0x05][..], &[0xa2; 16]].concat();
    let bytes = Request::Encode {
        epoch: 1,
        round: 2,
        stripes: vec![plan],
    };
    let wanted = [&[5, 1, 2, 1, 4, 1][..], &piece, &[2, 31, 0]].concat();
    assert_eq!(value(&bytes.encode().unwrap()), wanted);
    let part = RecordPart {
        round: parity_samples::delta(),
        number: 1,
        last: true,
    };
    let record = part.round.encode().unwrap();
    let length = [
        0x80 | u8::try_from(record.len() & 0x7f).unwrap(),
        u8::try_from(record.len() >> 7).unwrap(),
    ];
    let wanted = [&[8, 1, 1][..], &length, &record].concat();
    assert_eq!(value(&Request::Record(part).encode().unwrap()), wanted);
}

#[test]
fn the_least_sizes_are_those_of_the_code() {
    let sections = sections_of("agent.md");
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
        let surveys = vec![survey.clone(); count];
        Answer::Surveys(surveys).encode().unwrap().len()
    };
    assert_eq!(sections["Survey"].least, bytes(surveys(1) - surveys(0)));
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
    assert_eq!(sections["Seat"].least, bytes(seats(1) - seats(0)));
}
