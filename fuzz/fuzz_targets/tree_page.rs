// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes: an error, or what is written back as the same.
//! Level and count are those that the input names, as a right parent would.
#![no_main]

use backstay_format::Page;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&[_, _, _, _, _, _, level, _, count, ..], _)) = input.split_first_chunk::<16>()
    else {
        return;
    };
    if let Ok(page) = Page::decode(input, level, usize::from(count)) {
        assert_eq!(page.encode().unwrap(), input);
    }
});
