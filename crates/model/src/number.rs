// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conversions between counts and floating point, in one place.
//!
//! Purpose: the few lossy casts the mathematics needs, each with its reason.
//! In from, out to: every module of this crate.
//! Invariants: counts stay below 2^53, where `f64` is exact; a negative or non-finite number
//! becomes zero, a too large one the largest count.

/// A count as a floating-point number.
pub(crate) fn real(count: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts are bounded far below 2^53"
    )]
    let value = count as f64;
    value
}

/// The length of a slice as a floating-point number.
pub(crate) fn real_len(count: usize) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "lengths are bounded far below 2^53"
    )]
    let value = count as f64;
    value
}

/// The whole part of a number as a count; saturating, zero for NaN and negative numbers.
pub(crate) fn floor_count(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, which is the documented result"
    )]
    let count = value as u64;
    count
}

/// The whole part of a number as an index; saturating, zero for NaN and negative numbers.
pub(crate) fn floor_index(value: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, which is the documented result"
    )]
    let index = value as usize;
    index
}
