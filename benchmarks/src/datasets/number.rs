// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: numbers that become the bytes of a variable, and the two kinds that programs compute with.
//! Invariants: little-endian.

use backstay::ElementType;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

/// A number that a variable may hold.
pub trait Number: Copy {
    /// Its type.
    const ELEMENT: ElementType;
    /// Appends its bytes.
    fn put(self, bytes: &mut Vec<u8>);
}

macro_rules! number {
    ($($kind:ty => $element:ident),*) => {$(
        impl Number for $kind {
            const ELEMENT: ElementType = ElementType::$element;
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

number!(i8 => I8, u8 => U8, i32 => I32, i64 => I64, u64 => U64, f32 => F32, f64 => F64);

/// The upper half of a binary32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bf16(pub u16);

impl Bf16 {
    /// The nearest one; of two, the even one.
    pub fn nearest(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        Self(u16::try_from(rounded >> 16).unwrap_or(u16::MAX))
    }
}

impl Number for Bf16 {
    const ELEMENT: ElementType = ElementType::Bf16;
    fn put(self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.0.to_le_bytes());
    }
}

/// The bytes of some numbers.
pub fn to_bytes<T: Number>(values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(values));
    for &value in values {
        value.put(&mut bytes);
    }
    bytes
}

/// Whether no float of these bytes is infinite or no number.
pub fn all_finite(element: ElementType, bytes: &[u8]) -> bool {
    let narrow = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap_or_default());
    let wide = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().unwrap_or_default());
    match element {
        ElementType::F32 => bytes.chunks_exact(4).all(|b| narrow(b).is_finite()),
        ElementType::F64 => bytes.chunks_exact(8).all(|b| wide(b).is_finite()),
        _ => true,
    }
}

/// What programs compute with, in one of two precisions.
pub trait Real:
    Number
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + 'static
{
    /// Nothing.
    const ZERO: Self;
    /// The nearest one.
    #[must_use]
    fn of(value: f64) -> Self;
    /// The same value.
    fn wide(self) -> f64;
    /// Square root.
    #[must_use]
    fn root(self) -> Self;
    /// Without its sign.
    #[must_use]
    fn size(self) -> Self;
    /// The greater one.
    #[must_use]
    fn or_more(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
    /// The lesser one.
    #[must_use]
    fn or_less(self, other: Self) -> Self {
        if self < other { self } else { other }
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    fn of(value: f64) -> Self {
        value
    }
    fn wide(self) -> f64 {
        self
    }
    fn root(self) -> Self {
        self.sqrt()
    }
    fn size(self) -> Self {
        self.abs()
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    #[expect(clippy::cast_possible_truncation, reason = "the nearest is meant")]
    fn of(value: f64) -> Self {
        value as Self
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }
    fn root(self) -> Self {
        self.sqrt()
    }
    fn size(self) -> Self {
        self.abs()
    }
}
