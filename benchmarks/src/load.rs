// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: applications that compute beside what is measured: one bound by memory, one by the core.
//! Out: pieces of work a second.

use crate::job::monotonic_ns;
use crate::{as_f64, size_f64};

/// Does `what` for so many seconds; how often a second.
pub fn rate(seconds: f64, mut what: impl FnMut()) -> f64 {
    let start = monotonic_ns();
    let mut done = 0;
    loop {
        what();
        done += 1;
        let passed = as_f64(monotonic_ns() - start) * 1e-9;
        if passed >= seconds {
            return size_f64(done) / passed;
        }
    }
}

/// Sweeps of a stencil over all numbers for so many seconds; parts a second. Bound by memory.
pub fn stencil(words: &mut [f64], seconds: f64) -> f64 {
    let parts = 16;
    let part = (words.len() / parts).max(1);
    let mut done = 0;
    rate(seconds, || {
        let at = done % parts * part;
        let end = (at + part).min(words.len());
        sweep(&mut words[at..end]);
        done += 1;
    })
}

/// One sweep, in place.
fn sweep(words: &mut [f64]) {
    let mut left = words.first().copied().unwrap_or(0.0);
    for at in 1..words.len().saturating_sub(1) {
        let here = words[at];
        words[at] = 0.25f64.mul_add(left + words[at + 1], 0.5 * here);
        left = here;
    }
    std::hint::black_box(words);
}

/// A piece of work that touches no memory.
pub fn spin() {
    let mut value = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..100_000 {
        value = std::hint::black_box(value.wrapping_mul(0xd129_0bc9_3a5f_21e7).rotate_left(31));
    }
}
