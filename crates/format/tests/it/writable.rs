// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What encodes decodes, for every structure, whatever the value: it is written and read as itself, or
//! it is an error that names the field, and nothing is written.

use crate::rough::{Dice, Rough};
use crate::{archive_samples, codec, drain, local, parity_samples, samples, wire};
use backstay_format::agent::{Answer, Request};
use backstay_format::drain::{DrainAnswer, DrainRequest};
use backstay_format::limits::{
    CATALOG_CHECKPOINTS_MAX, CATALOG_RANK_SETS_MAX, CATALOG_STARTS_MAX, CATALOG_STORES_MAX,
    SEGMENT_PIECES_MAX, SEGMENTS_MAX,
};
use backstay_format::local::{LocalAnswer, LocalRequest};
use backstay_format::scheme::Scheme;
use backstay_format::wire::{
    Call, Describe, Description, Failure, Head, Hello, Kind, Proof, Read, Refused, Welcome,
};
use backstay_format::{
    ArchiveRoot, ArchiveSuperblock, ArchiveTable, CatalogState, CatalogSuperblock, FormatError,
    Heir, Page, PartMap, RankEntry, RankRoot, RootSlot, Round, SegmentHeader, SegmentRecord,
    StreamRoot, StripeLogHead, Superblock, VariableDescriptor,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fmt::Debug;

type Encoded = Result<Vec<u8>, FormatError>;

/// Whether a value was written.
type Try = Box<dyn Fn(&mut Dice) -> bool>;

/// A structure, and a try with a value of it.
struct Case {
    name: &'static str,
    /// Whether there are values that cannot be written.
    limited: bool,
    attempt: Try,
}

/// What every structure has to hold to.
fn is_written<T: Debug + PartialEq>(
    value: &T,
    encoded: Encoded,
    decode: impl Fn(&T, &[u8]) -> Result<T, FormatError>,
) -> bool {
    match encoded {
        Ok(bytes) => {
            let read = decode(value, &bytes);
            assert!(read.as_ref() == Ok(value), "{value:?} is read as {read:?}");
            true
        }
        Err(error) => {
            assert!(!error.structure.is_empty(), "{error}");
            assert!(
                !error.field.is_empty() && error.expected != error.found,
                "{error}"
            );
            false
        }
    }
}

fn case<T: Rough + Clone + Debug + PartialEq + 'static>(
    name: &'static str,
    samples: Vec<T>,
    encode: impl Fn(&T) -> Encoded + 'static,
    decode: impl Fn(&T, &[u8]) -> Result<T, FormatError> + 'static,
) -> Case {
    let attempt = move |dice: &mut Dice| {
        let mut value = dice.pick(&samples);
        value.rough(dice);
        is_written(&value, encode(&value), &decode)
    };
    Case {
        name,
        limited: true,
        attempt: Box::new(attempt),
    }
}

/// The same of a body of a frame of the transport.
fn body<T: Rough + Clone + Debug + PartialEq + 'static>(
    name: &'static str,
    (kind, sample): (Kind, T),
    encode: impl Fn(&T) -> Encoded + 'static,
    decode: impl Fn(&Head, &[u8]) -> Result<T, FormatError> + 'static,
) -> Case {
    case(name, vec![sample], encode, move |_, bytes| {
        decode(&Head::new(kind, bytes.len())?, bytes)
    })
}

/// Every structure that is written. A test compares the names with those of the sources.
fn cases() -> Vec<Case> {
    [
        of_stores(),
        of_archives(),
        of_agents(),
        of_the_wire(),
        of_reads(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn of_stores() -> Vec<Case> {
    vec![
        case(
            "Superblock",
            vec![samples::superblock()],
            Superblock::encode,
            |_, bytes| Superblock::decode(bytes),
        ),
        case(
            "SegmentRecord",
            vec![samples::segment_record()],
            SegmentRecord::encode,
            |value, bytes| SegmentRecord::decode(bytes, value.store),
        ),
        case(
            "RootSlot",
            vec![samples::root_slot()],
            RootSlot::encode,
            |value, bytes| RootSlot::decode(bytes, value.store),
        ),
        case(
            "Page",
            vec![samples::page()],
            Page::encode,
            |value, bytes| Page::decode(bytes, value.level, value.entries.len()),
        ),
        case(
            "RankRoot",
            vec![samples::rank_root()],
            RankRoot::encode,
            |_, bytes| RankRoot::decode(bytes),
        ),
        case(
            "RankEntry",
            vec![samples::rank_table()],
            |table| RankEntry::encode_table(table),
            |_, bytes| RankEntry::decode_table(bytes),
        ),
        case(
            "StreamRoot",
            vec![vec![samples::stream_root()]],
            |table| StreamRoot::encode_table(table),
            |table, bytes| StreamRoot::decode_table(bytes, table.len()),
        ),
        case(
            "VariableDescriptor",
            vec![samples::descriptors(), samples::files()],
            |list| VariableDescriptor::encode_list(list),
            |list, bytes| VariableDescriptor::decode_list(bytes, list.len()),
        ),
        case(
            "StripeLogHead",
            vec![parity_samples::head()],
            StripeLogHead::encode,
            |value, bytes| StripeLogHead::decode(bytes, value.store),
        ),
        case(
            "Round",
            vec![parity_samples::whole(), parity_samples::delta()],
            Round::encode,
            |_, bytes| Round::decode(bytes),
        ),
    ]
}

fn of_archives() -> Vec<Case> {
    vec![
        case(
            "PartMap",
            vec![samples::part_map()],
            PartMap::encode,
            |_, bytes| PartMap::decode(bytes),
        ),
        case(
            "ArchiveSuperblock",
            vec![archive_samples::superblock()],
            ArchiveSuperblock::encode,
            |_, bytes| ArchiveSuperblock::decode(bytes),
        ),
        case(
            "ArchiveRoot",
            vec![archive_samples::root()],
            ArchiveRoot::encode,
            |value, bytes| ArchiveRoot::decode(bytes, value.store),
        ),
        case(
            "ArchiveTable",
            vec![archive_samples::table()],
            |table| table.encode(2),
            |table, bytes| ArchiveTable::decode(bytes, table.store, 2),
        ),
        case(
            "SegmentHeader",
            vec![archive_samples::header()],
            SegmentHeader::encode,
            |value, bytes| {
                SegmentHeader::decode(bytes, value.store, value.segment).map(|(header, _)| header)
            },
        ),
        case(
            "Heir",
            vec![archive_samples::heir()],
            Heir::encode,
            |_, bytes| Heir::decode(bytes),
        ),
        case(
            "CatalogSuperblock",
            vec![archive_samples::catalog_superblock()],
            CatalogSuperblock::encode,
            |_, bytes| CatalogSuperblock::decode(bytes),
        ),
        case(
            "CatalogState",
            vec![archive_samples::state()],
            |state| state.encode(samples::STORE),
            |_, bytes| CatalogState::decode(bytes, samples::STORE),
        ),
        case("Scheme", codec::samples(), Scheme::encode, |_, bytes| {
            Scheme::of_bytes(bytes)
        }),
    ]
}

fn of_agents() -> Vec<Case> {
    let requests = parity_samples::requests()
        .into_iter()
        .map(|(_, _, request)| request);
    let answers = parity_samples::answers()
        .into_iter()
        .map(|(_, _, answer)| answer);
    vec![
        case(
            "Request",
            requests.collect(),
            Request::encode,
            |_, bytes| Request::decode(bytes),
        ),
        case("Answer", answers.collect(), Answer::encode, |_, bytes| {
            Answer::decode(bytes)
        }),
        case(
            "DrainRequest",
            drain::requests(),
            DrainRequest::encode,
            |_, bytes| DrainRequest::decode(bytes),
        ),
        case(
            "DrainAnswer",
            drain::answers(),
            DrainAnswer::encode,
            |_, bytes| DrainAnswer::decode(bytes),
        ),
        case(
            "LocalRequest",
            local::requests(),
            LocalRequest::encode,
            |_, bytes| LocalRequest::decode(bytes),
        ),
        case(
            "LocalAnswer",
            local::answers(),
            LocalAnswer::encode,
            |_, bytes| LocalAnswer::decode(bytes),
        ),
    ]
}

/// One of which every value can be written.
fn unlimited(case: Case) -> Case {
    Case {
        limited: false,
        ..case
    }
}

fn of_the_wire() -> Vec<Case> {
    let head = Head::new(Kind::Read, 44).unwrap();
    let call = |dice: &mut Dice| {
        let mut request = vec![7; 3];
        request.rough(dice);
        let call = Call {
            within_us: dice.next(),
            request: &request,
        };
        assert_eq!(Call::decode(&call.encode()), Ok(call));
        true
    };
    vec![
        unlimited(case(
            "Head",
            vec![head],
            |head| Ok(head.encode().to_vec()),
            |_, bytes| Head::decode(bytes),
        )),
        Case {
            name: "Call",
            limited: false,
            attempt: Box::new(call),
        },
        body(
            "Hello",
            (Kind::Hello, wire::hello()),
            Hello::encode,
            Hello::decode,
        ),
        body(
            "Welcome",
            (Kind::Welcome, wire::welcome()),
            Welcome::encode,
            Welcome::decode,
        ),
        unlimited(body(
            "Proof",
            (Kind::Proof, Proof { proof: [5; 32] }),
            |proof| Ok(proof.encode().to_vec()),
            Proof::decode,
        )),
        body(
            "Refused",
            (Kind::Refused, wire::refused()),
            Refused::encode,
            Refused::decode,
        ),
        body(
            "Failure",
            (Kind::Failure, Failure::new(31, "nothing is exposed")),
            Failure::encode,
            Failure::decode,
        ),
    ]
}

fn of_reads() -> Vec<Case> {
    vec![
        body(
            "Describe",
            (Kind::Describe, wire::describe()),
            Describe::encode,
            Describe::decode,
        ),
        body(
            "Description",
            (Kind::Description, wire::description()),
            Description::encode,
            Description::decode,
        ),
        unlimited(body(
            "Read",
            (Kind::Read, wire::read_of_bytes()),
            Read::encode,
            Read::decode,
        )),
    ]
}

/// Tries are many, since one decides on a few fields only.
const TRIES: u64 = 40;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn what_encodes_decodes(seed in any::<u64>()) {
        for case in cases() {
            for number in 0..TRIES {
                let _written = (case.attempt)(&mut Dice::new(seed.wrapping_add(number << 32)));
            }
        }
    }
}

/// The tries above show something: of each structure some are written, and some are not.
#[test]
fn of_each_structure_some_values_are_written_and_some_are_refused() {
    for case in cases() {
        let tries = (0..500).map(|seed| (case.attempt)(&mut Dice::new(seed * 0x1_0001)));
        let written = tries.filter(|&written| written).count();
        assert!(written > 50, "{}: {written} written", case.name);
        assert_eq!(
            written < 500,
            case.limited,
            "{}: {written} written",
            case.name
        );
    }
}

/// A structure that can be written and is not tried above.
#[test]
fn every_structure_that_is_written_is_tried() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let mut written = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for message in text.split("\nmessage!(").skip(1) {
            let kind = message.trim_start().chars();
            let kind = kind.take_while(|c| c.is_alphanumeric()).collect();
            assert!(written.insert(kind), "written in two ways: {message}");
        }
        let mut owner = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("impl") {
                let rest = rest.trim_start_matches("<'a>").trim_start();
                owner = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
            }
            let is_encoder = line.trim_start().starts_with("pub fn encode");
            // Those of messages are written by `message!`.
            if is_encoder && !line.contains("encoded") && !owner.is_empty() {
                assert!(
                    written.insert(owner.clone()),
                    "{owner} is written in two ways"
                );
            }
        }
    }
    let tried: BTreeSet<String> = cases().iter().map(|case| case.name.to_owned()).collect();
    assert_eq!(tried, written);
}

/// The limits that are too high for a roll of dice.
#[test]
fn one_more_than_the_longest_list_is_refused_by_its_name() {
    let refused = |change: fn(&mut CatalogState)| {
        let mut state = archive_samples::state();
        change(&mut state);
        state.encode(samples::STORE).unwrap_err().field
    };
    let stores = |state: &mut CatalogState| {
        let one = state.stores[0].clone();
        state.stores = vec![one; index(CATALOG_STORES_MAX) + 1];
    };
    assert_eq!(refused(stores), "stores");
    let starts = |state: &mut CatalogState| {
        state.starts = vec![state.starts[0]; index(CATALOG_STARTS_MAX) + 1];
    };
    assert_eq!(refused(starts), "starts");
    let sets = |state: &mut CatalogState| {
        let one = state.rank_sets[0].clone();
        state.rank_sets = vec![one; index(CATALOG_RANK_SETS_MAX) + 1];
    };
    assert_eq!(refused(sets), "rank sets");
    let checkpoints = |state: &mut CatalogState| {
        let one = state.checkpoints[0].clone();
        state.checkpoints = vec![one; index(CATALOG_CHECKPOINTS_MAX) + 1];
    };
    assert_eq!(refused(checkpoints), "checkpoints");

    let mut header = archive_samples::header();
    header.pieces = vec![header.pieces[0]; index(SEGMENT_PIECES_MAX) + 1];
    assert_eq!(header.encode().unwrap_err().field, "pieces");

    let mut table = archive_samples::table();
    let most = usize::try_from(SEGMENTS_MAX).unwrap();
    table.entries = vec![table.entries[0]; most + 1];
    assert_eq!(table.encode(2).unwrap_err().field, "segments");
}

fn index(count: u32) -> usize {
    usize::try_from(count).unwrap()
}
