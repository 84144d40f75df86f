// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes, plain and under a right checksum: an error, or what is written back as the same.
#![no_main]

use backstay_format::PartMap;
use backstay_format::bytes::{frame_minor, seal};
use backstay_format::limits::{STORE_VERSION_MAJOR, STORE_VERSION_MINOR};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // A checksum found by chance is rare, so the input is also taken as a body.
    let sealed = seal(*b"BKSTPART", STORE_VERSION_MAJOR, input);
    for bytes in [input, &sealed] {
        if let Ok(value) = PartMap::decode(bytes) {
            let written = value.encode().unwrap();
            // A later minor version's appended fields are not known, so not written back.
            if frame_minor(bytes) == Some(STORE_VERSION_MINOR) {
                assert_eq!(written, bytes[..written.len()]);
            }
        }
    }
});
