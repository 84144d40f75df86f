// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Any text as a configuration file: an error, or settings within their limits.
#![no_main]

use backstay::Config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(config) = toml::from_str::<Config>(text)
        && config.validate().is_ok()
    {
        assert!((2..=32).contains(&config.retained));
        assert!(config.block_bytes.is_power_of_two());
    }
});
