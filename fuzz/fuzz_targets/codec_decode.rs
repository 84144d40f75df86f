// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A scheme, a length and any bytes as what it encoded: an error or some bytes, never a panic.
#![no_main]

use backstay_codec::{Work, decode};
use backstay_format::scheme::SCHEME_BYTES;
use backstay_format::{Decoder, Scheme};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

thread_local! {
    static WORK: RefCell<Work> = RefCell::new(Work::new());
}

fuzz_target!(|input: &[u8]| {
    let Some((head, rest)) = input.split_at_checked(SCHEME_BYTES) else {
        return;
    };
    let Ok(scheme) = Scheme::decode(&mut Decoder::new("scheme", head)) else {
        return;
    };
    let Some((length, encoded)) = rest.split_first_chunk::<2>() else {
        return;
    };
    let mut out = vec![0; usize::from(u16::from_le_bytes(*length))];
    let base = vec![0x55; out.len()];
    WORK.with_borrow_mut(|work| drop(decode(&scheme, encoded, Some(&base), work, &mut out)));
});
