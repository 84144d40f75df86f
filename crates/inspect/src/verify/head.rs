// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: verifies what a store keeps twice: superblock, root slots, segment records.
//! Invariants: a copy that is bad while the other is good concerns no checkpoint, and is reported
//! all the same; a record in which nothing retained stands is nobody's.

use super::{Finding, Verifier};
use crate::RootState;
use backstay_base::error::Error;
use backstay_format::geometry::{
    RECORD_BYTES, RECORD_COPIES, ROOT_OFFSETS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS,
    ZONE_HEAD_BYTES, ZONE_SLOTS,
};
use backstay_format::limits::SEGMENTS_MAX;
use backstay_format::width::to_usize;
use backstay_format::{FormatError, SegmentRecord, Superblock};
use std::time::Duration;

/// What one copy of a segment record holds.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Copy {
    Unused,
    Valid(SegmentRecord),
    Damaged(FormatError),
}

impl Verifier<'_, '_> {
    /// Both copies of the superblock, and both root slots.
    pub(super) fn head(&mut self) {
        let name = self.reader.device().name();
        for offset in SUPERBLOCK_OFFSETS {
            let mut bytes = vec![0; SUPERBLOCK_BYTES];
            let read = self.reader.device().read_at(&mut bytes, offset);
            let decoded = match read {
                Err(error) => Err(Error::io(
                    format!("{name}: reading at byte {offset}"),
                    error,
                )),
                Ok(()) => Superblock::decode(&bytes).map_err(|error| {
                    Error::malformed(format!("{name}: superblock at byte {offset}"), error)
                }),
            };
            match decoded {
                Ok(superblock) if superblock == *self.reader.superblock() => {}
                Ok(other) => {
                    let expected = self.reader.superblock().store;
                    let error =
                        FormatError::new("superblock", "store id", 16, expected, other.store);
                    let error = Error::malformed(format!("{name}: superblock at {offset}"), error);
                    self.copy("superblock", offset, &error);
                }
                Err(error) => self.copy("superblock", offset, &error),
            }
        }
        let store = self.store;
        for (state, offset) in store.slots().iter().zip(ROOT_OFFSETS) {
            if let RootState::Damaged(error) = state {
                self.copy("root slot", offset, error);
            }
        }
    }

    fn copy(&mut self, structure: &'static str, offset: u64, error: &Error) {
        let cause = std::error::Error::source(error).and_then(|e| e.downcast_ref::<FormatError>());
        self.done.findings.push(Finding {
            structure,
            file_offset: Some(offset),
            expected: cause
                .map(|cause| cause.expected.clone())
                .unwrap_or_default(),
            found: cause.map(|cause| cause.found.clone()).unwrap_or_default(),
            text: error.to_string(),
            ..Finding::default()
        });
    }

    /// Both copies of every segment record that counts.
    pub(super) fn records(&mut self) {
        let geometry = self.reader.geometry();
        let slots = geometry
            .slots_in(self.store.length_bytes())
            .min(SEGMENTS_MAX);
        for first in (0..slots).step_by(to_usize(ZONE_SLOTS)) {
            let mut zone = vec![0; to_usize(ZONE_HEAD_BYTES)];
            let offset = geometry.record_offset(first, 0);
            if self.reader.device().read_at(&mut zone, offset).is_err() {
                continue;
            }
            for slot in first..slots.min(first + ZONE_SLOTS) {
                let copies = [0, 1].map(|copy| {
                    let at = to_usize(geometry.record_offset(slot, copy) - offset);
                    self.decode(&zone[at..at + to_usize(RECORD_BYTES)])
                });
                if self.is_wrong(&copies) {
                    self.record(slot);
                }
            }
        }
    }

    fn decode(&self, bytes: &[u8]) -> Copy {
        if bytes.iter().all(|&byte| byte == 0) {
            return Copy::Unused;
        }
        match SegmentRecord::decode(bytes, self.reader.superblock().store) {
            Ok(record) => Copy::Valid(record),
            Err(error) => Copy::Damaged(error),
        }
    }

    /// Whether a copy is bad that a retained revision may need.
    fn is_wrong(&self, copies: &[Copy; 2]) -> bool {
        let counts = |copy: &Copy| matches!(copy, Copy::Valid(record) if self.segments.contains(&record.segment));
        match copies {
            [Copy::Valid(_), Copy::Valid(_)] | [Copy::Unused, Copy::Unused] => false,
            [Copy::Valid(_), _] | [_, Copy::Valid(_)] => copies.iter().any(counts),
            _ => self.segment_is_missing,
        }
    }

    /// Reports the bad copies of a record, unless a job was writing them just then.
    fn record(&mut self, slot: u64) {
        std::thread::sleep(Duration::from_millis(1));
        let name = self.reader.device().name();
        let offsets = [0, 1].map(|copy| self.reader.geometry().record_offset(slot, copy));
        let copies = offsets.map(|offset| {
            let mut bytes = [0; to_usize(RECORD_BYTES)];
            match self.reader.device().read_at(&mut bytes, offset) {
                Ok(()) => self.decode(&bytes),
                Err(_error) => Copy::Unused,
            }
        });
        debug_assert_eq!(RECORD_COPIES, 2, "as many as are read here");
        if !self.is_wrong(&copies) {
            return;
        }
        for (copy, offset) in copies.into_iter().zip(offsets) {
            let error = match copy {
                Copy::Valid(_) => continue,
                Copy::Unused => FormatError::new("segment record", "magic", 0, "a record", "zeros"),
                Copy::Damaged(error) => error,
            };
            let place = format!("{name}: segment record at byte {offset}");
            self.copy("segment record", offset, &Error::malformed(place, error));
        }
    }
}
