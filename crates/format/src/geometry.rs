// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: where things stand in a store file: head, zones, segment records, segment slots.
//! In: segment size. Out: file offsets.
//! Invariants: growth appends zones; nothing that was placed ever moves.
//! Format: docs/format/store.md, section "Layout of the file".

use crate::ids::Address;
use crate::width::to_u64;

/// Bytes of the file's head: superblocks and root slots.
pub const HEAD_BYTES: u64 = 64 << 10;
/// File offsets of the two copies of the superblock.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 4 << 10];
/// Bytes set aside for one superblock.
pub const SUPERBLOCK_BYTES: usize = 4 << 10;
/// File offsets of the two root slots.
pub const ROOT_OFFSETS: [u64; 2] = [16 << 10, 32 << 10];
/// Bytes set aside for one root slot.
pub const ROOT_BYTES: usize = 16 << 10;
/// Segment slots of one zone.
pub const ZONE_SLOTS: u64 = 256;
/// Bytes of one segment record.
pub const RECORD_BYTES: u64 = 64;
/// Copies of each segment record.
pub const RECORD_COPIES: u64 = 2;
/// Bytes of a zone before its slots: the record tables.
pub const ZONE_HEAD_BYTES: u64 = ZONE_SLOTS * RECORD_BYTES * RECORD_COPIES;

/// Offsets of a store file whose segments have `segment_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a segment slot.
    pub segment_bytes: u32,
}

impl Geometry {
    fn zone_offset(self, slot: u64) -> u64 {
        let zone_bytes = ZONE_HEAD_BYTES + ZONE_SLOTS * u64::from(self.segment_bytes);
        HEAD_BYTES + slot / ZONE_SLOTS * zone_bytes
    }

    /// File offset of segment slot `slot`.
    pub fn slot_offset(self, slot: u64) -> u64 {
        let within = slot % ZONE_SLOTS * u64::from(self.segment_bytes);
        self.zone_offset(slot) + ZONE_HEAD_BYTES + within
    }

    /// File offset of copy `copy` of the record of slot `slot`.
    pub fn record_offset(self, slot: u64, copy: u64) -> u64 {
        self.zone_offset(slot) + (copy * ZONE_SLOTS + slot % ZONE_SLOTS) * RECORD_BYTES
    }

    /// File offset of `address`, whose segment stands in slot `slot`.
    pub fn address_offset(self, slot: u64, address: Address) -> u64 {
        self.slot_offset(slot) + u64::from(address.offset_bytes())
    }

    /// Bytes of a file with `slots` segment slots.
    pub fn file_bytes(self, slots: u64) -> u64 {
        match slots.checked_sub(1) {
            None => HEAD_BYTES,
            Some(last) => self.slot_offset(last) + u64::from(self.segment_bytes),
        }
    }

    /// Whole segment slots in a file of `file_bytes`.
    pub fn slots_in(self, file_bytes: u64) -> u64 {
        let segment = u64::from(self.segment_bytes);
        let body = file_bytes.saturating_sub(HEAD_BYTES);
        let zone_bytes = ZONE_HEAD_BYTES + ZONE_SLOTS * segment;
        let rest = (body % zone_bytes).saturating_sub(ZONE_HEAD_BYTES);
        body / zone_bytes * ZONE_SLOTS + rest / segment
    }

    /// Blocks of `block_bytes` in `length_bytes`, the last one perhaps short.
    pub fn block_count(length_bytes: u64, block_bytes: u32) -> usize {
        crate::width::to_usize(length_bytes.div_ceil(u64::from(block_bytes)))
    }

    /// Bytes of block `index` of a stream.
    pub fn block_length(length_bytes: u64, block_bytes: u32, index: usize) -> usize {
        let start = to_u64(index) * u64::from(block_bytes);
        crate::width::to_usize(
            length_bytes
                .saturating_sub(start)
                .min(u64::from(block_bytes)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_in_is_the_inverse_of_file_bytes() {
        for segment_bytes in [1 << 18, 1 << 22] {
            let geometry = Geometry { segment_bytes };
            for slots in [0, 1, 2, 255, 256, 257, 511, 512, 513, 5000] {
                let bytes = geometry.file_bytes(slots);
                assert_eq!(geometry.slots_in(bytes), slots);
                if slots > 0 {
                    assert_eq!(geometry.slots_in(bytes - 1), slots - 1);
                }
            }
        }
    }

    #[test]
    fn records_and_slots_do_not_overlap() {
        let geometry = Geometry {
            segment_bytes: 1 << 18,
        };
        for slot in [0u64, 255, 256, 700] {
            let zone_first = slot / ZONE_SLOTS * ZONE_SLOTS;
            let last_record = geometry.record_offset(zone_first + 255, 1) + RECORD_BYTES;
            assert!(last_record <= geometry.slot_offset(zone_first));
            assert!(geometry.record_offset(slot, 0) >= HEAD_BYTES);
        }
    }
}
