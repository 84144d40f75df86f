// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes that nobody wrote: an error or a value, never a panic, never memory the input has not
//! earned; and what is accepted is written back as the same bytes.

use crate::parity_samples::{self, family};
use crate::samples::{self, Sample};
use crate::{drain, local};
use backstay_format::agent::{Answer, RecordPart, Request, Survey, SurveyedRevision};
use backstay_format::bytes::{FRAME_HEAD_BYTES, FRAME_TAIL_BYTES, frame_minor, seal};
use backstay_format::drain::{DrainAnswer, DrainRequest};
use backstay_format::limits::{COUNTER_MAX, STORE_VERSION_MINOR, VARIABLES_MAX};
use backstay_format::local::{LocalAnswer, LocalRequest};
use backstay_format::stripe::{LOG_HEAD_BYTES, StripeLogHead};
use backstay_format::{
    CheckpointId, ElementType, Extent, FormatError, Page, RankEntry, RevisionEntry, RootSlot,
    Round, Slab, StoredFile, Stretch, Superblock, VariableDescriptor,
};
use proptest::prelude::*;
use std::sync::Arc;

/// Messages of a kind alone, or with a record that has a checksum of its own.
const WITHOUT_FREE_FIELDS: [&str; 4] = [
    "agent_request_survey",
    "agent_request_record",
    "agent_answer_done",
    "agent_answer_table",
];

/// Every truncation, and every byte with each bit flipped, zeroed and set.
fn damaged(sample: &[u8]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = (0..sample.len())
        .map(|end| sample[..end].to_vec())
        .collect();
    for place in 0..sample.len() {
        let flips = (0..8).map(|bit| sample[place] ^ (1 << bit));
        for byte in flips.chain([0, 0xff]) {
            if byte != sample[place] {
                let mut bytes = sample.to_vec();
                bytes[place] = byte;
                all.push(bytes);
            }
        }
    }
    all
}

/// Reads `bytes` as the structure of `sample`, within the memory that their length allows.
fn read(sample: &Sample, bytes: &[u8]) -> Result<Vec<u8>, FormatError> {
    let mut result = Ok(Vec::new());
    let used = allocation_counter::measure(|| result = (sample.rewrite)(bytes));
    let most = 4096 + 64 * bytes.len() as u64;
    let name = sample.name;
    assert!(
        used.bytes_max <= most,
        "{name}: {} bytes of memory",
        used.bytes_max
    );
    result
}

/// The same body in a new frame with a right checksum.
#[expect(clippy::disallowed_methods, reason = "what a writer would not write")]
fn reseal(framed: &[u8], body: &[u8]) -> Vec<u8> {
    let [mut magic, mut major] = [[0; 8], [0; 8]];
    magic.copy_from_slice(&framed[..8]);
    major[..2].copy_from_slice(&framed[8..10]);
    let major = u16::try_from(u64::from_le_bytes(major)).unwrap();
    seal(magic, major, body)
}

fn body(framed: &[u8]) -> &[u8] {
    &framed[FRAME_HEAD_BYTES..framed.len() - FRAME_TAIL_BYTES]
}

#[test]
fn every_damage_to_a_framed_structure_is_refused() {
    for sample in samples::all().iter().filter(|sample| sample.framed) {
        assert!(read(sample, &sample.bytes).is_ok());
        for bytes in damaged(&sample.bytes) {
            let error = read(sample, &bytes).expect_err(sample.name);
            assert!(
                !error.structure.is_empty() && error.expected != error.found,
                "{error}"
            );
            assert!(error.offset <= sample.bytes.len() as u64, "{error}");
        }
    }
}

#[test]
fn a_frame_with_a_right_checksum_is_still_checked() {
    for sample in samples::all().iter().filter(|sample| sample.framed) {
        let (mut refused, mut accepted) = (0, 0);
        for damaged in damaged(body(&sample.bytes)) {
            let bytes = reseal(&sample.bytes, &damaged);
            match read(sample, &bytes) {
                Err(_) => refused += 1,
                Ok(written) => {
                    accepted += 1;
                    assert_eq!(
                        written, bytes,
                        "{}: accepted, but not the same",
                        sample.name
                    );
                }
            }
        }
        let name = sample.name;
        assert!(
            refused > body(&sample.bytes).len(),
            "{name}: only {refused} refused"
        );
        assert!(
            accepted > 0 || WITHOUT_FREE_FIELDS.contains(&name),
            "{name}: a time or a digest may have any value"
        );
    }
}

#[test]
fn damage_to_a_structure_under_a_digest_gives_an_error_or_the_same_bytes() {
    let under_a_digest = |sample: &&Sample| !sample.framed && sample.name != "stripe_log";
    for sample in samples::all().iter().filter(under_a_digest) {
        for bytes in damaged(&sample.bytes) {
            if let Ok(written) = read(sample, &bytes) {
                assert_eq!(
                    written, bytes,
                    "{}: accepted, but not the same",
                    sample.name
                );
                let cut = bytes.len() < sample.bytes.len();
                let whole_entries = bytes.len() % RankEntry::BYTES == 0;
                assert!(!cut || sample.name == "rank_table" && whole_entries);
            }
        }
    }
}

/// A damaged record ends the log: what is read is what stands before it.
#[test]
fn damage_to_a_log_ends_it_there() {
    let sample = samples::all();
    let sample = sample.iter().find(|sample| sample.name == "stripe_log");
    let bytes = &sample.unwrap().bytes;
    let rounds = [parity_samples::whole(), parity_samples::delta()];
    let first = LOG_HEAD_BYTES + rounds[0].encode().unwrap().len();
    let head = parity_samples::head().encode().unwrap().len();
    for damaged in damaged(bytes) {
        let place = (0..bytes.len()).find(|&at| damaged.get(at) != Some(&bytes[at]));
        let place = place.expect("something is damaged");
        let whole = match place {
            _ if place < head => None,
            _ if place < LOG_HEAD_BYTES && damaged.len() == bytes.len() => Some(2),
            _ => Some(usize::from(place >= first)),
        };
        let read = parity_samples::decode_log(&damaged).ok();
        let read = read.map(|(_, rounds)| rounds);
        assert_eq!(
            read.as_deref(),
            whole.map(|count| &rounds[..count]),
            "{place}"
        );
    }
    let mut swapped = parity_samples::encode_log(parity_samples::head(), &[rounds[1].clone()]);
    let read = parity_samples::decode_log(&swapped).unwrap();
    assert_eq!(read.1, [], "the first record must be whole");
    let other = StripeLogHead {
        generation: 7,
        ..parity_samples::head()
    };
    swapped = parity_samples::encode_log(other, &rounds);
    let read = parity_samples::decode_log(&swapped).unwrap();
    assert_eq!(read.1, [], "records of another generation");
}

#[test]
fn a_structure_is_not_taken_for_another() {
    let samples = samples::all();
    for sample in &samples {
        let is_other = |other: &&Sample| family(other.name) != family(sample.name);
        for other in samples.iter().filter(is_other) {
            // A log begins with its head.
            if [sample.name, other.name] == ["stripe_log", "stripe_log_head"]
                || [sample.name, other.name] == ["stripe_log_head", "stripe_log"]
            {
                continue;
            }
            let result = read(sample, &other.bytes);
            assert!(result.is_err(), "{} read as {}", other.name, sample.name);
        }
    }
}

#[test]
fn counts_that_the_input_does_not_earn_take_no_memory() {
    let bytes = [0; 64];
    let used = allocation_counter::measure(|| {
        assert!(VariableDescriptor::decode_list(&bytes, VARIABLES_MAX).is_err());
        assert!(VariableDescriptor::decode_list(&bytes, usize::MAX).is_err());
        assert!(Page::decode(&bytes, 1, usize::MAX).is_err());
    });
    assert!(used.bytes_max < 4096, "{} bytes", used.bytes_max);
}

#[test]
fn a_later_minor_version_may_append_fields_and_an_earlier_one_may_not() {
    let value = samples::superblock();
    let mut longer = body(&value.encode().unwrap()).to_vec();
    longer.extend_from_slice(b"new field");
    let mut bytes = reseal(&value.encode().unwrap(), &longer);
    assert!(
        Superblock::decode(&bytes).is_err(),
        "this version has no such field"
    );

    bytes[10..12].copy_from_slice(&(STORE_VERSION_MINOR + 1).to_le_bytes());
    let summed = bytes.len() - FRAME_TAIL_BYTES;
    let sum = backstay_format::hash::checksum(&bytes[..summed]).to_le_bytes();
    bytes[summed..].copy_from_slice(&sum);
    assert_eq!(Superblock::decode(&bytes), Ok(value));
    assert_eq!(frame_minor(&bytes), Some(STORE_VERSION_MINOR + 1));
    assert_eq!(frame_minor(&bytes[..11]), None);
}

#[test]
fn an_error_names_the_place_in_the_list() {
    let mut list = samples::descriptors();
    list[2].slab.as_mut().unwrap().start[0] = 76;
    let error = VariableDescriptor::encode_list(&list).unwrap_err();
    let before = VariableDescriptor::encode_list(&list[..2]).unwrap().len();
    assert_eq!(
        (error.field, error.offset),
        ("slab", before as u64),
        "{error}"
    );
}

#[test]
fn files_that_cannot_be_are_refused_by_name() {
    let wrong = |change: &dyn Fn(&mut VariableDescriptor, &mut StoredFile)| {
        let mut list = samples::files();
        let mut file = list[0].file.take().unwrap();
        change(&mut list[0], &mut file);
        list[0].file = Some(file);
        VariableDescriptor::encode_list(&list).unwrap_err().field
    };
    let stretch = |start, length| Stretch { start, length };
    let of_file = |change: &dyn Fn(&mut StoredFile)| wrong(&|_, file| change(file));
    assert_eq!(of_file(&|file| file.path.clear()), "path");
    assert_eq!(of_file(&|file| file.path = vec![b'x'; 4096]), "path");
    assert_eq!(of_file(&|file| file.path.push(0)), "path");
    assert_eq!(of_file(&|file| file.mode = 0o4755), "mode");
    assert_eq!(
        of_file(&|file| file.modified_ns = 1_000_000_000),
        "nanoseconds"
    );
    assert_eq!(of_file(&|file| file.length_bytes = u64::MAX), "length");
    // Without holes the file is as long as what is stored.
    assert_eq!(of_file(&|file| file.stretches = None), "length");
    for stretches in [
        vec![],
        vec![stretch(0, 20_001)],
        vec![stretch(0, 20_000), stretch(50_000, 0)],
        vec![stretch(0, 10_001), stretch(10_000, 9_999)],
        vec![stretch(1 << 40, 20_000)],
        vec![stretch(u64::MAX, 20_000)],
        vec![stretch(0, u64::MAX), stretch(0, 20_001)],
    ] {
        let put = |file: &mut StoredFile| file.stretches = Some(stretches.clone());
        assert_eq!(of_file(&put), "stretches", "{stretches:?}");
    }
    let many = vec![stretch(0, 1); (1 << 16) + 1];
    assert_eq!(
        of_file(&|file| file.stretches = Some(many.clone())),
        "stretches"
    );
    // Only bytes of one dimension are a file.
    assert_eq!(
        wrong(&|variable, _| variable.element = ElementType::U8),
        "file"
    );
    assert_eq!(
        wrong(&|variable, _| variable.shape = vec![10_000, 2]),
        "file"
    );
    let slab = Slab {
        global_shape: vec![20_000],
        start: vec![0],
    };
    assert_eq!(
        wrong(&|variable, _| variable.slab = Some(slab.clone())),
        "file"
    );
    // What is no flag yet is refused.
    let mut bytes = VariableDescriptor::encode_list(&samples::files()).unwrap();
    bytes[2 + 3 + 1] |= 4;
    assert_eq!(
        VariableDescriptor::decode_list(&bytes, 2)
            .unwrap_err()
            .field,
        "flags"
    );
}

/// Fields that refuse a value just beyond their limit, with a right checksum around it.
#[test]
fn values_beyond_their_limits_are_refused_by_name() {
    let field = |result: Result<Vec<u8>, FormatError>| result.unwrap_err().field;

    let mut root = samples::root_slot();
    root.revisions = vec![root.revisions[0]; 2];
    assert_eq!(field(reread_root(&root)), "number");
    let next = |number| RevisionEntry {
        checkpoint: CheckpointId::new(1, number),
        ..root.revisions[0]
    };
    root.revisions = (1..=65).map(next).collect();
    assert_eq!(field(reread_root(&root)), "revisions");
    root.revisions.truncate(64);
    assert!(reread_root(&root).is_ok());
    let wrong = |change: fn(&mut RootSlot)| {
        let mut root = root.clone();
        change(&mut root);
        field(reread_root(&root))
    };
    assert_eq!(wrong(|root| root.sequence = COUNTER_MAX + 1), "sequence");
    assert_eq!(wrong(|root| root.incarnation = u64::MAX), "incarnation");
    assert_eq!(
        wrong(|root| root.next_segment = (1 << 48) + 1),
        "next segment"
    );
    assert_eq!(
        wrong(|root| root.revisions[9].world_size = 0),
        "ranks of the job"
    );
    assert_eq!(wrong(|root| root.revisions[9].ranks.height = 1), "height");
    assert_eq!(
        wrong(|root| root.revisions[9].ranks.block_bytes = 1000),
        "block bytes"
    );

    let page = Page {
        level: 1,
        entries: vec![samples::page().entries[0]; 33],
    };
    assert_eq!(page.encode().unwrap_err().field, "entries");
    for level in [0, 8] {
        let page = Page {
            level,
            ..samples::page()
        };
        assert_eq!(page.encode().unwrap_err().field, "level");
    }
    let mut table = samples::rank_table();
    table[1].rank = 0;
    assert_eq!(RankEntry::encode_table(&table).unwrap_err().field, "rank");
    let mut list = samples::descriptors();
    list[1].name = "empty".to_owned();
    assert_eq!(
        VariableDescriptor::encode_list(&list).unwrap_err().field,
        "name"
    );
}

/// Fields of a stripe log record and of messages that refuse what cannot be.
#[test]
fn stripes_that_cannot_be_are_refused_by_name() {
    let wrong = |change: fn(&mut Round)| {
        let mut round = parity_samples::delta();
        change(&mut round);
        round.encode().unwrap_err().field
    };
    let extent = |change: fn(&mut Extent)| {
        let mut round = parity_samples::delta();
        change(&mut round.added[0].pieces[0].extent);
        round.encode().unwrap_err().field
    };
    assert_eq!(wrong(|round| round.parity = 9), "parity");
    assert_eq!(wrong(|round| round.parity = 1), "parity");
    assert_eq!(wrong(|round| round.pieces_max = 33), "pieces of a stripe");
    assert_eq!(wrong(|round| round.pieces_max = 1), "pieces");
    assert_eq!(wrong(|round| round.whole = true), "removed stripes");
    assert_eq!(wrong(|round| round.removed.swap(0, 1)), "stripe id");
    let twice = |round: &mut Round| round.added = vec![round.added[0].clone(); 2];
    assert_eq!(wrong(twice), "stripe id");
    let again = |round: &mut Round| round.members[1].store = round.members[0].store;
    assert_eq!(wrong(again), "store id");
    let many = |round: &mut Round| round.members = vec![round.members[0].clone(); 33];
    assert_eq!(wrong(many), "members");
    assert_eq!(wrong(|round| round.added[0].pieces.clear()), "pieces");
    let column = |round: &mut Round| round.added[0].pieces[1].column = 0;
    assert_eq!(wrong(column), "column");
    let beyond = |round: &mut Round| round.added[0].pieces[1].column = 4;
    assert_eq!(wrong(beyond), "column");
    let shorter = |round: &mut Round| round.added[0].parity[0].extent.length_bytes -= 1;
    assert_eq!(wrong(shorter), "length of parity");
    assert_eq!(extent(|extent| extent.segment.0 = 0), "segment id");
    assert_eq!(extent(|extent| extent.segment.0 = 1 << 48), "segment id");
    assert_eq!(extent(|extent| extent.offset_bytes = 64), "offset");
    assert_eq!(extent(|extent| extent.offset_bytes = 1 << 22), "offset");
    assert_eq!(extent(|extent| extent.length_bytes = 0), "length");
    assert_eq!(extent(|extent| extent.length_bytes = 1 << 22), "length");
}

/// A list of ranks is shared between revisions, so that 64 revisions take the memory of one.
#[test]
fn a_survey_earns_the_memory_of_its_ranks() {
    let ranks: Arc<[u32]> = (0..100_000).collect();
    let revision = |number| SurveyedRevision {
        checkpoint: CheckpointId::new(1, number),
        complete: true,
        world_size: 100_000,
        ranks: Arc::clone(&ranks),
    };
    let survey = Survey {
        store: samples::STORE,
        run: 1,
        incarnation: 1,
        sequence: 0,
        length_bytes: 1,
        rebuilt: false,
        unread: None,
        revisions: (1..=64).map(revision).collect(),
        group: None,
        former: None,
    };
    let bytes = Answer::Surveys(vec![survey]).encode().unwrap();
    let mut read = None;
    let used = allocation_counter::measure(|| read = Answer::decode(&bytes).ok());
    assert!(read.is_some());
    let most = 4 * bytes.len() as u64;
    assert!(used.bytes_max < most, "{} bytes of memory", used.bytes_max);
}

/// What messages say of lengths that their bytes do not have: at every place of every message another number.
#[test]
fn lengths_that_the_bytes_do_not_have_take_no_memory() {
    let numbers: [&[u8]; 4] = [
        &[0xff, 0x7f],
        &[0xff, 0xff, 0xff, 0x07],
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    ];
    let other = |name, bytes, rewrite| Sample {
        name,
        preserves: "",
        bytes,
        framed: true,
        rewrite,
        value: String::new(),
        show: |_| Ok(String::new()),
    };
    let mut all = samples::all();
    all.retain(|sample| sample.name.starts_with("agent_"));
    for request in drain::requests() {
        let bytes = request.encode().unwrap();
        all.push(other("drain", bytes, |bytes| {
            DrainRequest::decode(bytes)?.encode()
        }));
    }
    for answer in drain::answers() {
        let bytes = answer.encode().unwrap();
        all.push(other("drained", bytes, |bytes| {
            DrainAnswer::decode(bytes)?.encode()
        }));
    }
    for request in local::requests() {
        let bytes = request.encode().unwrap();
        all.push(other("local", bytes, |bytes| {
            LocalRequest::decode(bytes)?.encode()
        }));
    }
    for answer in local::answers() {
        let bytes = answer.encode().unwrap();
        all.push(other("answered", bytes, |bytes| {
            LocalAnswer::decode(bytes)?.encode()
        }));
    }
    for sample in &all {
        let whole = body(&sample.bytes);
        for at in 0..whole.len() {
            for number in numbers {
                let changed = [&whole[..at], number, &whole[at + 1..]].concat();
                let _read = read(sample, &reseal(&sample.bytes, &changed));
            }
            // As many of the least things as there are bytes for.
            let least = [&whole[..at], &[0xff, 0x7f], &[0; 0x3fff][..]].concat();
            let _read = read(sample, &reseal(&sample.bytes, &least));
        }
    }
}

/// A number in more bytes than it needs would be a second form of the same message.
#[test]
fn a_number_has_one_form() {
    let request = Request::Flush { epoch: 0, round: 1 }.encode().unwrap();
    assert_eq!(body(&request), [7, 0, 1]);
    for longer in [
        &[7, 0x80, 0, 1][..],
        &[0x87, 0, 0, 1],
        &[7, 0, 0x81, 0x80, 0],
    ] {
        let error = Request::decode(&reseal(&request, longer)).unwrap_err();
        assert_eq!((error.field, error.offset), ("message", 16), "{error}");
    }
    let survey = parity_samples::survey();
    let bytes = Answer::Surveys(vec![survey]).encode().unwrap();
    let whole = body(&bytes);
    // The second revision has the ranks 0 and 5 of the first, which can be said in one way only.
    let same = [3, 17, 1, 64, 0];
    let at = whole.windows(5).position(|bytes| bytes == same).unwrap();
    let again = [&whole[..at + 4], &[1, 2, 0, 5], &whole[at + 5..]].concat();
    assert!(Answer::decode(&reseal(&bytes, &again)).is_err());
}

#[test]
fn a_message_of_no_known_kind_is_refused_by_its_number() {
    let request = Request::Survey.encode().unwrap();
    let error = Request::decode(&reseal(&request, &[14])).unwrap_err();
    assert!(error.to_string().contains("kind 14"), "{error}");
    let request = DrainRequest::Progress.encode().unwrap();
    let error = DrainRequest::decode(&reseal(&request, &[0xc8, 1])).unwrap_err();
    assert!(error.to_string().contains("kind 200"), "{error}");
}

/// A message is refused by the name of the field that is beyond its limit, one of a record within it as well.
#[test]
fn messages_beyond_their_limits_are_refused_by_name() {
    let refused = |change: &dyn Fn(&mut Round)| {
        let mut round = parity_samples::delta();
        change(&mut round);
        let part = RecordPart {
            round,
            number: 0,
            last: true,
        };
        let error = Request::Record(part.clone()).encode().unwrap_err();
        assert_eq!(Answer::Table(part).encode().unwrap_err(), error);
        error.field
    };
    assert_eq!(refused(&|round| round.parity = 9), "parity");
    assert_eq!(
        refused(&|round| round.members[2].root = vec![0; 16_385]),
        "root"
    );
    assert_eq!(refused(&|round| round.added[0].pieces.clear()), "pieces");
    let field = |request: Request| request.encode().unwrap_err().field;
    let (epoch, round) = (COUNTER_MAX + 1, 1);
    assert_eq!(field(Request::Flush { epoch, round }), "epoch");
    let (epoch, round) = (1, u64::MAX);
    assert_eq!(field(Request::Flush { epoch, round }), "round");
    let checkpoint = CheckpointId::new(1, COUNTER_MAX + 1);
    let report = |checkpoint, kind, length: usize| {
        field(Request::Report {
            round: 1,
            checkpoint,
            kind,
            text: "x".repeat(length),
        })
    };
    assert_eq!(report(checkpoint, 1, 1), "number");
    assert_eq!(report(CheckpointId::new(1, 1), -1, 1), "error kind");
    assert_eq!(report(CheckpointId::new(1, 1), 1, 4097), "text");
}

/// A record within a message ends where it says, so nothing hides behind it.
#[test]
fn nothing_follows_a_record_within_a_message() {
    let part = RecordPart {
        round: parity_samples::delta(),
        number: 0,
        last: true,
    };
    let request = Request::Record(part).encode().unwrap();
    let mut longer = body(&request).to_vec();
    longer.push(0);
    let error = Request::decode(&reseal(&request, &longer)).unwrap_err();
    assert_eq!(error.field, "end");
}

fn reread_root(root: &RootSlot) -> Result<Vec<u8>, FormatError> {
    RootSlot::decode(&root.encode()?, samples::STORE)?.encode()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        for sample in samples::all() {
            let _read = read(&sample, &bytes);
            if sample.framed {
                let _sealed = read(&sample, &reseal(&sample.bytes, &bytes));
            }
        }
    }
}
