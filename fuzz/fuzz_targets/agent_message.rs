// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes as a request and as an answer, plain and under a right checksum: an error, or what is
//! written back as the same. An input taken as a body after its kind is also one with a record in it.
#![no_main]

use backstay_format::agent::{Answer, Request};
use backstay_format::bytes::{frame_minor, seal};
use backstay_format::limits::STORE_VERSION_MINOR;
use libfuzzer_sys::fuzz_target;

fn same(written: &[u8], bytes: &[u8]) {
    // A later minor version's appended fields are not known, so not written back. A record within the
    // message has a version of its own.
    let inner = frame_minor(bytes.get(17..).unwrap_or_default());
    let has_record = bytes.get(17..25) == Some(b"BKSTSTRR");
    let is_known = !has_record || inner == Some(STORE_VERSION_MINOR);
    if is_known && frame_minor(bytes) == Some(STORE_VERSION_MINOR) {
        assert_eq!(written, &bytes[..written.len()]);
    }
}

fuzz_target!(|input: &[u8]| {
    let record = |kind: u8| [&[kind][..], &seal(*b"BKSTSTRR", input)].concat();
    let requests = [
        input.to_vec(),
        seal(*b"BKSTAREQ", input),
        seal(*b"BKSTAREQ", &record(8)),
    ];
    for bytes in requests {
        if let Ok(request) = Request::decode(&bytes) {
            same(&request.encode().unwrap(), &bytes);
        }
    }
    let answers = [
        input.to_vec(),
        seal(*b"BKSTAANS", input),
        seal(*b"BKSTAANS", &record(3)),
    ];
    for bytes in answers {
        if let Ok(answer) = Answer::decode(&bytes) {
            same(&answer.encode().unwrap(), &bytes);
        }
    }
});
