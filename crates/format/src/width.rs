// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the two conversions between `u64` and `usize`, checked once for the platform.
//! Invariants: Backstay runs on 64-bit platforms only, so neither conversion loses a bit.

const _: () = assert!(usize::BITS == 64, "Backstay needs a 64-bit platform");

/// A `usize` as `u64`; lossless on every supported platform.
#[inline]
pub const fn to_u64(value: usize) -> u64 {
    value as u64
}

/// A `u64` as `usize`; lossless on every supported platform.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "usize has 64 bits, asserted above"
)]
pub const fn to_usize(value: u64) -> usize {
    value as usize
}

/// A `u32` as `usize`; lossless on every supported platform.
#[inline]
pub const fn index(value: u32) -> usize {
    value as usize
}
