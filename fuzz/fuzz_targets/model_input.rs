// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The input of `backstay model eval` and failure logs, from any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(case) = backstay_model::cases::parse_case(text) {
        // Large blocks are allowed but slow; the parser is what is under test.
        if case.intervals().is_some_and(|n| n < 10_000) {
            drop(backstay_model::solve(&case));
        }
    }
    drop(backstay_model::simulate::FailureLog::from_csv(text));
});
