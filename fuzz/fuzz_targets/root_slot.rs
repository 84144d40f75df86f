// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes, plain and under a right checksum: an error, or what is written back as the same.
//! The store is the one that the input names.
#![no_main]

use backstay_format::bytes::{frame_minor, seal};
use backstay_format::limits::{STORE_VERSION_MAJOR, STORE_VERSION_MINOR};
use backstay_format::{RootSlot, StoreId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // A checksum found by chance is rare, so the input is also taken as a body.
    let sealed = seal(*b"BKSTROOT", STORE_VERSION_MAJOR, input);
    for bytes in [input, &sealed] {
        let Some(id) = bytes.get(16..32).and_then(|id| id.first_chunk()) else {
            continue;
        };
        if let Ok(value) = RootSlot::decode(bytes, StoreId(*id)) {
            let written = value.encode().unwrap();
            // A later minor version's appended fields are not known, so not written back.
            if frame_minor(bytes) == Some(STORE_VERSION_MINOR) {
                assert_eq!(written, bytes[..written.len()]);
            }
        }
    }
});
