// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: reads a store: superblock, roots, and blocks by their reference, each verified.
//! In: a device. Out: checked structures, or errors that name file, structure and offset.
//! Invariants: takes no lock and writes nothing, so that it can look at a store in use.

use crate::error::{Error, ErrorKind, Result};
use crate::io::Device;
use backstay_format::bytes::frame_minor;
use backstay_format::geometry::{RECORD_BYTES, RECORD_COPIES, ROOT_BYTES, ROOT_OFFSETS};
use backstay_format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use backstay_format::limits::{STORE_VERSION_MAJOR, STORE_VERSION_MINOR};
use backstay_format::width::to_usize;
use backstay_format::{Address, BlockRef, Digest, FormatError, Geometry, RootSlot, SegmentClass};
use backstay_format::{SegmentId, SegmentRecord, Superblock};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// A store, for reading.
#[derive(Debug)]
pub struct StoreReader {
    device: Arc<dyn Device>,
    superblock: Superblock,
    geometry: Geometry,
    /// What is wrong with the first copy of the superblock, if the second had to be taken.
    damaged_copy: Option<Error>,
    slots: RwLock<BTreeMap<SegmentId, u64>>,
}

impl StoreReader {
    /// Reads the superblock, from either copy.
    pub fn open(device: Arc<dyn Device>) -> Result<Self> {
        let name = device.name();
        let mut first_error = None;
        for offset in SUPERBLOCK_OFFSETS {
            let mut bytes = vec![0; SUPERBLOCK_BYTES];
            let read = device.read_at(&mut bytes, offset);
            if let Err(error) = read {
                first_error.get_or_insert(read_error(&name, "superblock", offset, error));
                continue;
            }
            match Superblock::decode(&bytes) {
                Ok(superblock) => {
                    let geometry = superblock.geometry();
                    let slots = RwLock::default();
                    return Ok(Self {
                        device,
                        superblock,
                        geometry,
                        damaged_copy: first_error,
                        slots,
                    });
                }
                Err(error) => {
                    let place = format!("{name}: superblock at byte {offset}");
                    first_error.get_or_insert(Error::corrupt(place, error));
                }
            }
        }
        Err(first_error.unwrap_or_else(|| Error::new(ErrorKind::Internal, "no superblock")))
    }

    /// The device below.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
    /// What the store says of itself.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }
    /// What is wrong with the superblock's first copy, where the second was taken.
    pub fn damaged_copy(&self) -> Option<&Error> {
        self.damaged_copy.as_ref()
    }
    /// Where things stand.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Both root slots: each the root it holds, or what is wrong with it.
    pub fn roots(&self) -> [Result<RootSlot>; 2] {
        ROOT_OFFSETS.map(|offset| {
            let name = self.device.name();
            let mut bytes = vec![0; ROOT_BYTES];
            self.device
                .read_at(&mut bytes, offset)
                .map_err(|error| read_error(&name, "root slot", offset, error))?;
            RootSlot::decode(&bytes, self.superblock.store).map_err(|error| {
                Error::corrupt(format!("{name}: root slot at byte {offset}"), error)
            })
        })
    }

    /// The newest valid root and which slot holds it.
    pub fn newest_root(&self) -> Result<(RootSlot, usize)> {
        let [first, second] = self.roots();
        match (first, second) {
            (Ok(a), Ok(b)) if b.sequence > a.sequence => Ok((b, 1)),
            (Ok(a), _) => Ok((a, 0)),
            (Err(_), Ok(b)) => Ok((b, 1)),
            (Err(a), Err(_)) => Err(a),
        }
    }

    /// The record of `slot`: of its good copies the one with the later segment, since a torn write may
    /// have reached only one.
    pub fn record(&self, slot: u64) -> Result<SegmentRecord> {
        let copies = (0..RECORD_COPIES).map(|copy| self.record_copy(slot, copy));
        let (good, bad): (Vec<_>, Vec<_>) = copies.partition(Result::is_ok);
        match good
            .into_iter()
            .flatten()
            .max_by_key(|record| record.segment)
        {
            Some(record) => Ok(record),
            None => bad
                .into_iter()
                .next()
                .unwrap_or_else(|| Err(Error::new(ErrorKind::Internal, "a slot has no record"))),
        }
    }

    /// One copy of the record of `slot`.
    pub fn record_copy(&self, slot: u64, copy: u64) -> Result<SegmentRecord> {
        let mut bytes = [0; to_usize(RECORD_BYTES)];
        let offset = self.geometry.record_offset(slot, copy);
        self.device
            .read_at(&mut bytes, offset)
            .map_err(|error| read_error(&self.device.name(), "segment record", offset, error))?;
        SegmentRecord::decode(&bytes, self.superblock.store).map_err(|error| {
            let place = format!("{}: segment record at byte {offset}", self.device.name());
            Error::corrupt(place, error)
        })
    }

    /// A writer leaves a store alone whose superblock or roots name a later minor version. A frame whose
    /// checksum is wrong names nothing.
    pub fn refuse_later_version(&self) -> Result<()> {
        for offset in SUPERBLOCK_OFFSETS.into_iter().chain(ROOT_OFFSETS) {
            let mut bytes = [0; ROOT_BYTES];
            let read = self.device.read_at(&mut bytes, offset);
            let sound = Superblock::decode(&bytes).is_ok()
                || RootSlot::decode(&bytes, self.superblock.store).is_ok();
            let minor = frame_minor(&bytes)
                .filter(|_| read.is_ok() && sound)
                .unwrap_or(0);
            if minor > STORE_VERSION_MINOR {
                let context = format!(
                    "{}: its format is {STORE_VERSION_MAJOR}.{minor}, this Backstay writes \
                     {STORE_VERSION_MAJOR}.{STORE_VERSION_MINOR}; use the Backstay that wrote it",
                    self.device.name()
                );
                return Err(Error::new(ErrorKind::Unsupported, context));
            }
        }
        Ok(())
    }

    /// Reads all records; calls `found` for each slot that names a segment, with what is wrong with its
    /// first copy if that is damaged.
    pub fn read_records(
        &self,
        mut found: impl FnMut(u64, SegmentRecord, Option<Error>),
    ) -> Result<u64> {
        let length = self.device.length_bytes().map_err(|error| {
            Error::io(
                format!("{}: asking for the length", self.device.name()),
                error,
            )
        })?;
        let slots = self
            .geometry
            .slots_in(length)
            .min(backstay_format::limits::SEGMENTS_MAX);
        for slot in 0..slots {
            if let Ok(record) = self.record(slot) {
                self.place_segment(record.segment, slot);
                found(slot, record, self.record_copy(slot, 0).err());
            }
        }
        Ok(slots)
    }

    /// Takes note that `segment` stands in `slot`.
    pub fn place_segment(&self, segment: SegmentId, slot: u64) {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.insert(segment, slot);
    }
    /// Forgets what stood where.
    pub fn forget_segments(&self) {
        self.slots
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
    /// The slot of `segment`.
    pub fn slot_of(&self, segment: SegmentId) -> Option<u64> {
        self.slots
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&segment)
            .copied()
    }

    /// File offset of `length` bytes at `address`.
    pub fn offset_of(&self, address: Address, length: usize) -> Result<u64> {
        let end = to_usize(u64::from(address.offset_bytes())) + length;
        let Some(slot) = self.slot_of(address.segment()) else {
            let what = FormatError::new("segment", "record", 0, "a slot that holds it", "none");
            return Err(Error::corrupt(
                format!("{}: {address}", self.device.name()),
                what,
            ));
        };
        if end > to_usize(u64::from(self.geometry.segment_bytes)) {
            let most = self.geometry.segment_bytes;
            let what = FormatError::new("address", "end", 0, format!("at most {most}"), end);
            return Err(Error::corrupt(
                format!("{}: {address}", self.device.name()),
                what,
            ));
        }
        Ok(self.geometry.address_offset(slot, address))
    }

    /// Fills `buffer` with what `block` refers to, and checks its digest; `what` names it in errors.
    pub fn read(&self, block: &BlockRef, buffer: &mut [u8], what: &'static str) -> Result<()> {
        let offset = self.offset_of(block.address, buffer.len())?;
        self.device
            .read_at(buffer, offset)
            .map_err(|error| read_error(&self.device.name(), what, offset, error))?;
        let found = Digest::of(buffer);
        if found == block.digest {
            return Ok(());
        }
        let damage = FormatError::new(what, "digest", 0, block.digest, found);
        let place = format!(
            "{}: {} at byte {offset} of the file",
            self.device.name(),
            block.address
        );
        Err(Error::corrupt(place, damage))
    }

    /// The class of `segment`, from its record.
    pub fn class_of(&self, segment: SegmentId) -> Option<SegmentClass> {
        self.record(self.slot_of(segment)?)
            .ok()
            .map(|record| record.class)
    }
}

fn read_error(name: &str, what: &'static str, offset: u64, error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        let what = FormatError::new(what, "bytes", 0, "a longer file", "the end of the file");
        return Error::corrupt(format!("{name}: at byte {offset}"), what);
    }
    Error::io(format!("{name}: reading {what} at byte {offset}"), error)
}
