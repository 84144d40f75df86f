// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the element types of variables, with frozen ids.
//! Format: docs/format/store.md, table "Element types"; a number is never used again.

use std::fmt;

/// Type of a variable's elements. The discriminant is its id on disk and in C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ElementType {
    /// Signed integer of 8 bits.
    I8 = 1,
    /// Signed integer of 16 bits.
    I16 = 2,
    /// Signed integer of 32 bits.
    I32 = 3,
    /// Signed integer of 64 bits.
    I64 = 4,
    /// Unsigned integer of 8 bits.
    U8 = 5,
    /// Unsigned integer of 16 bits.
    U16 = 6,
    /// Unsigned integer of 32 bits.
    U32 = 7,
    /// Unsigned integer of 64 bits.
    U64 = 8,
    /// IEEE 754 binary16.
    F16 = 9,
    /// bfloat16.
    Bf16 = 10,
    /// IEEE 754 binary32.
    F32 = 11,
    /// IEEE 754 binary64.
    F64 = 12,
    /// Two binary32: real, imaginary.
    Complex64 = 13,
    /// Two binary64: real, imaginary.
    Complex128 = 14,
    /// Bytes without a type.
    Bytes = 15,
}

impl ElementType {
    /// All types, in order of their ids.
    pub const ALL: [Self; 15] = [
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
        Self::Complex64,
        Self::Complex128,
        Self::Bytes,
    ];

    /// The type with this id.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.id() == id)
    }
    /// Its id on disk and in C.
    pub const fn id(self) -> u8 {
        self as u8
    }
    /// Bytes of one element.
    pub const fn width_bytes(self) -> u64 {
        match self {
            Self::I8 | Self::U8 | Self::Bytes => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::Complex64 => 8,
            Self::Complex128 => 16,
        }
    }
    /// Its name in listings and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Complex64 => "complex64",
            Self::Complex128 => "complex128",
            Self::Bytes => "bytes",
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
