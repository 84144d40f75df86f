// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes: an error, or what is written back as the same.
//! The first two bytes are the count that a rank root would give.
#![no_main]

use backstay_format::{Encoder, VariableDescriptor};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((count, bytes)) = input.split_first_chunk() else {
        return;
    };
    let count = usize::from(u16::from_le_bytes(*count));
    if let Ok(list) = VariableDescriptor::decode_list(bytes, count) {
        let mut encoder = Encoder::new();
        for descriptor in &list {
            assert_eq!(descriptor.validate(), Ok(()));
            descriptor.encode(&mut encoder);
        }
        assert_eq!(encoder.finish(), bytes);
    }
});
