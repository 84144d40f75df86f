// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes: an error, or what is written back as the same.
//! The first two bytes are the count that a rank root would give.
#![no_main]

use backstay_format::VariableDescriptor;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((count, bytes)) = input.split_first_chunk() else {
        return;
    };
    let count = usize::from(u16::from_le_bytes(*count));
    if let Ok(list) = VariableDescriptor::decode_list(bytes, count) {
        for descriptor in &list {
            assert_eq!(descriptor.validate(), Ok(()));
        }
        assert_eq!(VariableDescriptor::encode_list(&list).unwrap(), bytes);
    }
});
