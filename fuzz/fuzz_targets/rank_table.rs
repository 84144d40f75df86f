// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes: an error, or what is written back as the same.
#![no_main]

use backstay_format::RankEntry;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(table) = RankEntry::decode_table(input) {
        assert_eq!(RankEntry::encode_table(&table).unwrap(), input);
    }
});
