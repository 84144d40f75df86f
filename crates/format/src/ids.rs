// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the identities that stages share: checkpoint, store, segment, address.
//! Format: docs/format/store.md, sections "Identity" and "Address".

use serde::{Deserialize, Serialize};
use std::fmt;

/// A job-wide checkpoint: one start of the job, and a number that grows over all its starts.
///
/// Ordered by number, then incarnation: of two starts' checkpoints with one number, the later start's
/// is the newer, and the earlier one was abandoned when that start began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct CheckpointId {
    /// Which start of the job took it, from 1.
    pub incarnation: u64,
    /// Its number, from 1.
    pub number: u64,
}

impl CheckpointId {
    /// The checkpoint `number` of `incarnation`.
    pub const fn new(incarnation: u64, number: u64) -> Self {
        Self {
            incarnation,
            number,
        }
    }

    /// Whether what holds for `other` holds for this one: `other` is it or a later one, and of the same
    /// or a later start. An earlier start's checkpoint of a higher number was abandoned, and says nothing.
    pub const fn is_covered_by(self, other: Self) -> bool {
        other.number >= self.number && other.incarnation >= self.incarnation
    }
}

impl Ord for CheckpointId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.number, self.incarnation).cmp(&(other.number, other.incarnation))
    }
}

impl PartialOrd for CheckpointId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (incarnation {})", self.number, self.incarnation)
    }
}

/// Which store a structure belongs to; random, drawn when the store is made.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct StoreId(pub [u8; 16]);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_le_bytes(self.0))
    }
}

/// A segment, numbered from 1 by the store that first wrote it; 48 bits.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct SegmentId(pub u64);

impl SegmentId {
    /// Largest id an address can hold.
    pub const MAX: Self = Self((1 << 48) - 1);
}

/// Where a block or a page stands: segment id and offset, never a file offset.
///
/// The upper 48 bits are the segment id, the lower 16 the offset in units of 64 bytes.
/// 0 is no address.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Address(pub u64);

impl Address {
    /// Unit of the offset, in bytes.
    pub const UNIT_BYTES: u32 = 64;
    /// No address: an empty stream.
    pub const NONE: Self = Self(0);

    /// The address of the `unit`-th unit of `segment`.
    pub const fn new(segment: SegmentId, unit: u16) -> Self {
        Self((segment.0 << 16) | unit as u64)
    }
    /// The segment.
    pub const fn segment(self) -> SegmentId {
        SegmentId(self.0 >> 16)
    }
    /// The offset in the segment, in bytes.
    pub const fn offset_bytes(self) -> u32 {
        ((self.0 & 0xffff) as u32) * Self::UNIT_BYTES
    }
    /// Whether it is no address.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "segment {} offset {}",
            self.segment().0,
            self.offset_bytes()
        )
    }
}
