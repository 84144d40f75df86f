// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages between a node's leader and its agent process: what is written is read, and nothing else is
//! taken for it.

use crate::document::{holds_messages, holds_structure};
use backstay_format::agent::Seat;
use backstay_format::local::{LocalAnswer, LocalRequest, LocalStoreEntry};
use backstay_format::{FormatError, StoreId};

pub(crate) fn requests() -> Vec<LocalRequest> {
    let seat = Seat {
        store: StoreId::default(),
        node: "n1".to_owned(),
        domain: "rack 1".to_owned(),
        address: "10.0.0.1:4000".to_owned(),
    };
    vec![
        LocalRequest::Begin {
            secret: [7; 32],
            job: "heat".to_owned(),
            node: "n\u{e9}".to_owned(),
            listen: "10.0.0.1:0".to_owned(),
            threads: 2,
            rate_bytes: 1 << 30,
            nice: 10,
            cpu_set: "0-3".to_owned(),
            timeout_ms: 120_000,
            transport: "libfabric".to_owned(),
            fabric_provider: "verbs;ofi_rxm".to_owned(),
        },
        LocalRequest::Attach {
            directory: "/dev/shm/a".to_owned(),
            store_directory: "/scratch/b".to_owned(),
        },
        LocalRequest::Detach,
        LocalRequest::Coordinate {
            scheme: 3,
            parity: 2,
            epoch: 5,
            members: vec![1, 0],
            nodes: vec![seat.clone(), seat],
        },
        LocalRequest::Archive {
            plan: b"{\"every\":1}".to_vec(),
        },
        LocalRequest::Stop { limit_ms: 5000 },
        LocalRequest::Stores,
        LocalRequest::DropRebuilt,
        LocalRequest::Goodbye,
    ]
}

pub(crate) fn answers() -> Vec<LocalAnswer> {
    let entry = LocalStoreEntry {
        store: StoreId([3; 16]),
        directory: "/dev/shm/a".to_owned(),
        rebuilt: true,
    };
    vec![
        LocalAnswer::Done,
        LocalAnswer::Ready {
            address: "10.0.0.1:4000".to_owned(),
        },
        LocalAnswer::Stores(vec![entry.clone(), entry]),
        LocalAnswer::Failed {
            kind: 22,
            text: "no".to_owned(),
        },
    ]
}

/// Every truncation is refused, and so is every changed bit.
fn refuses_all_else<T: std::fmt::Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, FormatError>,
) {
    for length in 0..bytes.len() {
        assert!(decode(&bytes[..length]).is_err(), "{length} bytes");
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= 1 << bit;
            // The minor version is no part of what older readers look at, but of the checksum.
            assert!(decode(&flipped).is_err(), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn what_is_written_is_read_and_nothing_else() {
    for request in requests() {
        let bytes = request.encode().unwrap();
        assert!(LocalRequest::decode(&bytes).unwrap() == request);
        refuses_all_else(&bytes, LocalRequest::decode);
    }
    for answer in answers() {
        let bytes = answer.encode().unwrap();
        assert_eq!(LocalAnswer::decode(&bytes).unwrap(), answer);
        refuses_all_else(&bytes, LocalAnswer::decode);
    }
}

#[test]
fn the_secret_is_not_printed() {
    let text = format!("{:?}", requests()[0]);
    assert_eq!(text, "Begin");
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
    holds_messages("agent.md", "On one node: ", &requests, &[]);
    holds_messages("agent.md", "Answers on one node: ", &answers, &[]);
    let entry = LocalStoreEntry {
        store: StoreId([3; 16]),
        directory: String::new(),
        rebuilt: true,
    };
    holds_structure("agent.md", "LocalStoreEntry", &entry);
}
