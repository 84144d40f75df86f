// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes as a request and as an answer, plain and under a right checksum: an error, or what is
//! written back as the same. An input taken as a body after its kind is also one with a record in it.
#![no_main]

use backstay_format::agent::{Answer, Request};
use backstay_format::bytes::{frame_minor, seal};
use backstay_format::limits::{MESSAGE_VERSION_MAJOR, MESSAGE_VERSION_MINOR, STORE_VERSION_MAJOR};
use libfuzzer_sys::fuzz_target;

fn same(written: &[u8], bytes: &[u8]) {
    // A later minor version's appended fields are not known, so not written back.
    if frame_minor(bytes) == Some(MESSAGE_VERSION_MINOR) {
        assert_eq!(written, &bytes[..written.len()]);
    }
}

/// The first and only part of a record of these fields, in a message of this kind.
fn part(kind: u8, fields: &[u8]) -> Vec<u8> {
    let record = seal(*b"BKSTSTRR", STORE_VERSION_MAJOR, fields);
    let mut length = Vec::new();
    let mut rest = record.len();
    while rest >= 0x80 {
        length.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    length.push(u8::try_from(rest).unwrap());
    [&[kind, 0, 1][..], &length, &record].concat()
}

fuzz_target!(|input: &[u8]| {
    let sealed = |magic: &[u8; 8], body: &[u8]| seal(*magic, MESSAGE_VERSION_MAJOR, body);
    let requests = [
        input.to_vec(),
        sealed(b"BKSTAREQ", input),
        sealed(b"BKSTAREQ", &part(8, input)),
    ];
    for bytes in requests {
        if let Ok(request) = Request::decode(&bytes) {
            same(&request.encode().unwrap(), &bytes);
        }
    }
    let answers = [
        input.to_vec(),
        sealed(b"BKSTAANS", input),
        sealed(b"BKSTAANS", &part(2, input)),
    ];
    for bytes in answers {
        if let Ok(answer) = Answer::decode(&bytes) {
            same(&answer.encode().unwrap(), &bytes);
        }
    }
});
