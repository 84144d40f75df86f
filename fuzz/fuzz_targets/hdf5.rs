// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any bytes: no structure, or one whose extents lie in the file.
#![no_main]

use backstay_hdf5::{describe, plain};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(found) = describe(&input) else {
        return;
    };
    let length = u64::try_from(input.len()).unwrap();
    for extent in found.datasets.iter().flat_map(|dataset| &dataset.extents) {
        assert!(extent.offset + extent.length <= length);
    }
    let all = plain(&found);
    assert!(all.windows(2).all(|pair| pair[0].start + pair[0].length <= pair[1].start));
});
