// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of a drain: what was written is read, and nothing else is.

use crate::document::{holds_messages, holds_structure};
use backstay_format::agent::Seat;
use backstay_format::drain::{
    DrainAnswer, DrainJob, DrainProgress, DrainRequest, GatherPiece, Offered,
};
use backstay_format::{
    Address, BlockRef, CheckpointId, Digest, RankEntry, RankRange, SegmentId, StoreId,
};

fn id(number: u64) -> CheckpointId {
    CheckpointId::new(3, number)
}

pub(crate) fn requests() -> Vec<DrainRequest> {
    let seat = Seat {
        store: StoreId::default(),
        node: "n1".to_owned(),
        domain: String::new(),
        address: "10.0.0.1:77".to_owned(),
    };
    let piece = |at| GatherPiece {
        address: Address::new(SegmentId(at), 5),
        length_bytes: 16_384,
    };
    vec![
        DrainRequest::Offer { checkpoint: id(9) },
        DrainRequest::Gather {
            checkpoint: id(9),
            pieces: (1..40).map(piece).collect(),
        },
        DrainRequest::Release { exposure: [7; 16] },
        DrainRequest::Begin(DrainJob {
            folder: "/pfs/job".to_owned(),
            settings: "{}".to_owned(),
            job: "job".to_owned(),
            run: 8,
            aggregator: 1,
            aggregators: 4,
            incarnation: 3,
            catalog: 12,
            checkpoint: id(9),
            retain: vec![id(7), id(8)],
            sources: vec![seat.clone(), seat.clone()],
            file: "aggregate-1-2.backstay".to_owned(),
        }),
        DrainRequest::Progress,
        DrainRequest::Cancel { incarnation: 3 },
        DrainRequest::Archived {
            checkpoint: id(9),
            kind: 4,
            nodes: vec![seat.clone(), seat],
        },
    ]
}

pub(crate) fn answers() -> Vec<DrainAnswer> {
    let entry = |rank| RankEntry {
        rank,
        root: BlockRef {
            address: Address::new(SegmentId(4), 1),
            digest: Digest([9; 16]),
        },
    };
    vec![
        DrainAnswer::Done,
        DrainAnswer::Offered(Offered {
            store: StoreId([2; 16]),
            length_bytes: 1 << 30,
            path: "/dev/shm/store".to_owned(),
            host: "n1 boot".to_owned(),
            world_size: 8,
            committed_unix_ns: 5,
            ranks: vec![entry(0), entry(1)],
        }),
        DrainAnswer::Gathered {
            exposure: [1; 16],
            length_bytes: 4 << 20,
        },
        DrainAnswer::Progress(DrainProgress {
            state: 3,
            checkpoint: id(9),
            file: "aggregate-1-2.backstay".to_owned(),
            ranks: RankRange::of([0, 1, 2, 7, 9, 10]),
            bytes_stored: 77,
            bytes_compared: 78,
            steps: 79,
            kind: 11,
            text: "full".to_owned(),
            ..DrainProgress::default()
        }),
    ]
}

#[test]
fn messages_come_back() {
    for request in requests() {
        assert_eq!(
            DrainRequest::decode(&request.encode().unwrap()).unwrap(),
            request
        );
    }
    for answer in answers() {
        assert_eq!(
            DrainAnswer::decode(&answer.encode().unwrap()).unwrap(),
            answer
        );
    }
}

#[test]
fn cut_and_flipped_messages_are_refused() {
    let messages = requests()
        .iter()
        .map(|request| request.encode().unwrap())
        .collect::<Vec<_>>();
    for bytes in &messages {
        for length in 0..bytes.len() {
            assert!(DrainRequest::decode(&bytes[..length]).is_err());
        }
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x40;
            assert!(DrainRequest::decode(&flipped).is_err(), "byte {at}");
        }
    }
    for bytes in answers().iter().map(|answer| answer.encode().unwrap()) {
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(DrainAnswer::decode(&flipped).is_err(), "byte {at}");
        }
    }
}

#[test]
fn the_page_has_every_message_with_its_fields() {
    let requests = requests().into_iter();
    let requests: Vec<_> = requests
        .map(|one| (one.clone(), one.encode().unwrap()))
        .collect();
    let answers = answers().into_iter();
    let answers: Vec<_> = answers
        .map(|one| (one.clone(), one.encode().unwrap()))
        .collect();
    holds_messages("drain.md", "", &requests, &[]);
    holds_messages("drain.md", "", &answers, &[]);
    let entry = RankEntry {
        rank: 0,
        root: BlockRef::default(),
    };
    let piece = GatherPiece {
        address: Address::NONE,
        length_bytes: 1,
    };
    holds_structure("drain.md", "GatherPiece", &piece);
    holds_structure("drain.md", "RankEntry", &entry);
    holds_structure("drain.md", "BlockRef", &entry.root);
}
