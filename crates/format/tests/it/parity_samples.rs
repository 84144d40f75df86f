// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One stripe log, and one message of every kind that agents send, with every field set.

use crate::samples::{STORE, Sample};
use backstay_format::agent::{
    Answer, Collected, RecordPart, Request, Seat, StripePlan, Survey, SurveyedGroup,
    SurveyedMember, SurveyedRevision, SurveyedUnread,
};
use backstay_format::stripe::{LOG_HEAD_BYTES, StripeLogHead, records};
use backstay_format::{
    CheckpointId, Digest, Extent, FormatError, Member, Round, SegmentClass, SegmentId, StoreId,
    Stripe, StripeId, StripePiece,
};

const OTHER: StoreId = StoreId(*b"fedcba9876543210");

/// What a sample is: the part of its name that messages of one decoder share.
pub(crate) fn family(name: &str) -> &str {
    let parts = ["agent_request", "agent_answer", "stripe_record"];
    let found = parts.into_iter().find(|part| name.starts_with(part));
    found.unwrap_or(name)
}

fn id(number: u64) -> CheckpointId {
    CheckpointId::new(3, number)
}

fn piece(column: u8, segment: u64, class: SegmentClass, at: [u32; 2], fill: u8) -> StripePiece {
    let extent = Extent {
        segment: SegmentId(segment),
        class,
        offset_bytes: at[0],
        length_bytes: at[1],
        digest: Digest([fill; 16]),
    };
    StripePiece { column, extent }
}

pub(crate) fn stripe(number: u64) -> Stripe {
    let large = SegmentClass::Large;
    Stripe {
        id: StripeId(number),
        pieces: vec![
            piece(0, 0x0001_0203_0405, large, [16_384, 49_152], 0xa1),
            piece(2, 7, SegmentClass::Small, [64, 640], 0xa2),
        ],
        parity: vec![
            piece(1, 9, large, [0, 49_152], 0xa3),
            piece(3, 11, large, [65_536, 49_152], 0xa4),
        ],
    }
}

/// The record that begins the sample log.
pub(crate) fn whole() -> Round {
    let member = |store: u8, node: &str, domain: &str| Member {
        store: StoreId([store; 16]),
        node: node.to_owned(),
        domain: domain.to_owned(),
        superblock: vec![store, 1, 2, 3],
        root: vec![store; 5],
    };
    let mut members: Vec<Member> = (1..4).map(|n| member(n, "n7", "rack 1")).collect();
    members.push(member(4, "n\u{e9}ud-08", ""));
    Round {
        generation: 6,
        epoch: 2,
        round: 41,
        whole: true,
        parity: 2,
        pieces_max: 2,
        asked: 3,
        protected: id(17),
        members,
        removed: Vec::new(),
        added: vec![stripe(5), stripe(8)],
    }
}

/// The record behind it.
pub(crate) fn delta() -> Round {
    Round {
        round: 42,
        whole: false,
        protected: id(18),
        removed: vec![StripeId(5), StripeId(7)],
        added: vec![stripe(9)],
        ..whole()
    }
}

pub(crate) fn head() -> StripeLogHead {
    StripeLogHead {
        store: STORE,
        generation: 6,
    }
}

pub(crate) fn encode_log(head: StripeLogHead, rounds: &[Round]) -> Vec<u8> {
    let mut bytes = head.encode().unwrap();
    bytes.resize(LOG_HEAD_BYTES, 0);
    for round in rounds {
        bytes.extend(round.encode().unwrap());
    }
    bytes
}

pub(crate) fn decode_log(bytes: &[u8]) -> Result<(StripeLogHead, Vec<Round>), FormatError> {
    let head = StripeLogHead::decode(bytes, STORE)?;
    let rounds = records(bytes, head.generation).map(|(round, _)| round);
    Ok((head, rounds.collect()))
}

pub(crate) fn seats() -> Vec<Seat> {
    let seat = |store, node: &str| Seat {
        store,
        node: node.to_owned(),
        domain: "rack 1".to_owned(),
        address: "10.0.0.1:40123".to_owned(),
    };
    vec![seat(STORE, "n7"), seat(OTHER, "n\u{e9}ud-08")]
}

/// A message: the name of its fixture, what that preserves, the message.
type Named<T> = (&'static str, &'static str, T);

pub(crate) fn requests() -> Vec<Named<Request>> {
    [&of_a_beginning()[..], &of_a_round(), &of_a_restart()].concat()
}

fn of_a_beginning() -> [Named<Request>; 3] {
    let (epoch, round) = (2, 42);
    [
        (
            "agent_request_join",
            "a group of two with one parity",
            Request::Join {
                epoch,
                parity: 1,
                pieces_max: 1,
                seats: seats(),
            },
        ),
        (
            "agent_request_collect",
            "a checkpoint of a later start",
            Request::Collect {
                epoch,
                round,
                want: id(18),
                known_from: 40,
            },
        ),
        (
            "agent_request_make_room",
            "two numbers of bytes",
            Request::MakeRoom {
                epoch,
                round,
                record_bytes: 4096,
                table_bytes: 1 << 30,
            },
        ),
    ]
}

fn of_a_round() -> [Named<Request>; 6] {
    let (epoch, round) = (2, 42);
    let plan = StripePlan {
        id: StripeId(9),
        pieces: stripe(9).pieces,
        holders: vec![1, 3],
    };
    [
        (
            "agent_request_encode",
            "a stripe of two pieces and two parities",
            Request::Encode {
                epoch,
                round,
                stripes: vec![plan],
            },
        ),
        (
            "agent_request_take",
            "the longest parity",
            Request::Take {
                epoch,
                round,
                from: 31,
                exposure: *b"exposure, sample",
                length_bytes: 1 << 22,
                digest: Digest([0xd5; 16]),
            },
        ),
        (
            "agent_request_flush",
            "epoch and round",
            Request::Flush { epoch, round },
        ),
        (
            "agent_request_record",
            "a record within a request",
            Request::Record(RecordPart {
                round: delta(),
                number: 0,
                last: true,
            }),
        ),
        (
            "agent_request_settle",
            "a checkpoint of a later start",
            Request::Settle {
                epoch,
                round,
                protected: id(18),
            },
        ),
        (
            "agent_request_settled",
            "the last of a round",
            Request::Settled {
                epoch,
                round,
                protected: id(18),
            },
        ),
    ]
}

fn of_a_restart() -> [Named<Request>; 7] {
    [
        (
            "agent_request_survey",
            "a request without fields",
            Request::Survey,
        ),
        (
            "agent_request_table",
            "a store",
            Request::Table {
                store: STORE,
                epoch: 2,
                part: 3,
            },
        ),
        (
            "agent_request_report",
            "the kind of an error, and a text in UTF-8",
            Request::Report {
                round: 3,
                checkpoint: CheckpointId::new(2, 13),
                kind: 43,
                text: "n\u{e9}ud-08 is gone".to_owned(),
            },
        ),
        (
            "agent_request_rebuild",
            "a store that becomes the node's own",
            Request::Rebuild {
                lost: OTHER,
                seats: seats(),
                authority: STORE,
                epoch: 2,
                checkpoint: id(18),
                own: true,
                named: false,
            },
        ),
        (
            "agent_request_repair",
            "two seats",
            Request::Repair { seats: seats() },
        ),
        (
            "agent_request_set_aside",
            "a store",
            Request::SetAside { store: OTHER },
        ),
        (
            "agent_request_follow",
            "a seat and an epoch",
            Request::Follow {
                from: seats().swap_remove(1),
                epoch: 3,
            },
        ),
    ]
}

pub(crate) fn survey() -> Survey {
    let revision = |number, complete, ranks: &[u32]| SurveyedRevision {
        checkpoint: id(number),
        complete,
        world_size: 64,
        ranks: ranks.into(),
    };
    let member = |store, node: &str| SurveyedMember {
        store,
        node: node.to_owned(),
        domain: "rack 1".to_owned(),
        incarnation: 2,
        sequence: 40,
        checkpoints: vec![id(16), id(17)],
    };
    Survey {
        store: STORE,
        run: 0x5a17_e001,
        incarnation: 3,
        sequence: 41,
        length_bytes: 1 << 33,
        rebuilt: false,
        unread: None,
        revisions: vec![
            revision(16, true, &[0, 5]),
            revision(17, true, &[0, 5]),
            revision(18, false, &[5, 63]),
        ],
        group: Some(SurveyedGroup {
            epoch: 2,
            round: 42,
            parity: 1,
            pieces_max: 1,
            protected: id(17),
            members: vec![member(STORE, "n7"), member(OTHER, "n\u{e9}ud-08")],
        }),
        former: Some(SurveyedGroup {
            epoch: 1,
            round: 40,
            parity: 2,
            pieces_max: 2,
            protected: id(16),
            members: vec![member(OTHER, "n\u{e9}ud-08"), member(STORE, "n7")],
        }),
    }
}

/// A store with a group, one made again, and two of which something could not be read.
fn surveys() -> Vec<Survey> {
    let rebuilt = Survey {
        store: OTHER,
        rebuilt: true,
        revisions: Vec::new(),
        group: None,
        ..survey()
    };
    let unread = |root, revisions| Survey {
        unread: Some(SurveyedUnread {
            root,
            why: "reading root at byte 8192: \u{e9}".to_owned(),
        }),
        revisions,
        group: None,
        ..survey()
    };
    vec![
        survey(),
        rebuilt,
        unread(true, Vec::new()),
        unread(false, survey().revisions),
    ]
}

pub(crate) fn answers() -> [Named<Answer>; 7] {
    let extents = stripe(9).pieces.into_iter().map(|piece| piece.extent);
    [
        (
            "agent_answer_done",
            "an answer without fields",
            Answer::Done,
        ),
        (
            "agent_answer_surveys",
            "a store with a group, where two revisions share their ranks, one made again, and two of which \
             something could not be read",
            Answer::Surveys(surveys()),
        ),
        (
            "agent_answer_table",
            "a whole record within an answer",
            Answer::Table(RecordPart {
                round: whole(),
                number: 3,
                last: false,
            }),
        ),
        (
            "agent_answer_collected",
            "two extents that wait, two dead segments",
            Answer::Collected(Collected {
                superblock: vec![1, 2, 3],
                root: vec![4; 9],
                waiting: extents.collect(),
                dead: vec![SegmentId(1), SegmentId::MAX],
            }),
        ),
        (
            "agent_answer_encoded",
            "a stripe of two pieces and two parities",
            Answer::Encoded(vec![stripe(9)]),
        ),
        (
            "agent_answer_taken",
            "where parity is",
            Answer::Taken(stripe(9).parity[1].extent),
        ),
        (
            "agent_answer_rebuilt",
            "three counts that differ",
            Answer::Rebuilt {
                extents: 12,
                bytes: 1 << 40,
                lost: 1,
            },
        ),
    ]
}

/// A log, its parts, and all messages.
pub(crate) fn all() -> Vec<Sample> {
    let mut samples = log();
    samples.extend(
        requests()
            .into_iter()
            .map(|(name, preserves, request)| Sample {
                name,
                preserves,
                bytes: request.encode().unwrap(),
                framed: true,
                rewrite: |bytes| Request::decode(bytes)?.encode(),
                value: format!("{request:?}"),
                show: |bytes| Ok(format!("{:?}", Request::decode(bytes)?)),
            }),
    );
    samples.extend(answers().map(|(name, preserves, answer)| Sample {
        name,
        preserves,
        bytes: answer.encode().unwrap(),
        framed: true,
        rewrite: |bytes| Answer::decode(bytes)?.encode(),
        value: format!("{answer:?}"),
        show: |bytes| Ok(format!("{:?}", Answer::decode(bytes)?)),
    }));
    samples
}

fn log() -> Vec<Sample> {
    let record = |name, preserves, round: Round| Sample {
        name,
        preserves,
        bytes: round.encode().unwrap(),
        framed: true,
        rewrite: |bytes| Round::decode(bytes)?.encode(),
        value: format!("{round:?}"),
        show: |bytes| Ok(format!("{:?}", Round::decode(bytes)?)),
    };
    let rounds = [whole(), delta()];
    vec![
        Sample {
            name: "stripe_log_head",
            preserves: "a generation",
            bytes: head().encode().unwrap(),
            framed: true,
            rewrite: |bytes| StripeLogHead::decode(bytes, STORE)?.encode(),
            value: format!("{:?}", head()),
            show: |bytes| Ok(format!("{:?}", StripeLogHead::decode(bytes, STORE)?)),
        },
        record(
            "stripe_record_whole",
            "four members, two stripes of two pieces and two parities",
            whole(),
        ),
        record(
            "stripe_record_delta",
            "two stripes that go and one that comes",
            delta(),
        ),
        Sample {
            name: "stripe_log",
            preserves: "a log file: head, whole record, delta record",
            bytes: encode_log(head(), &rounds),
            framed: false,
            rewrite: |bytes| decode_log(bytes).map(|(head, rounds)| encode_log(head, &rounds)),
            value: format!("{:?}", (head(), rounds)),
            show: |bytes| Ok(format!("{:?}", decode_log(bytes)?)),
        },
    ]
}
