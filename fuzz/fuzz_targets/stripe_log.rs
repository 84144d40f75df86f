// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes as a stripe log of the store that they name, and as the body of a record: what is read
//! is written back as the same.
#![no_main]

use backstay_format::bytes::{frame_minor, seal};
use backstay_format::limits::{STORE_VERSION_MAJOR, STORE_VERSION_MINOR};
use backstay_format::stripe::{LOG_HEAD_BYTES, records};
use backstay_format::{Round, StoreId, StripeLogHead};
use libfuzzer_sys::fuzz_target;

fn same(written: &[u8], bytes: &[u8]) {
    // A later minor version's appended fields are not known, so not written back.
    if frame_minor(bytes) == Some(STORE_VERSION_MINOR) {
        assert_eq!(written, &bytes[..written.len()]);
    }
}

fuzz_target!(|input: &[u8]| {
    if let Some(id) = input.get(16..32).and_then(|id| id.first_chunk())
        && let Ok(head) = StripeLogHead::decode(input, StoreId(*id))
    {
        same(&head.encode().unwrap(), input);
        let mut start = LOG_HEAD_BYTES;
        for (round, end) in records(input, head.generation) {
            same(&round.encode().unwrap(), &input[start..end]);
            start = end;
        }
    }
    // A checksum found by chance is rare, so the input is also taken as a body.
    let sealed = seal(*b"BKSTSTRR", STORE_VERSION_MAJOR, input);
    for bytes in [input, &sealed] {
        if let Ok(round) = Round::decode(bytes) {
            same(&round.encode().unwrap(), bytes);
        }
    }
});
