// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: reads a store: superblock, roots, and blocks by their reference, each verified.
//! In: a device. Out: checked structures, or errors that name file, structure and offset.
//! Invariants: takes no lock and writes nothing, so that it can look at a store in use.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::ReadAt;
use backstay_base::io::two_slots::{self, Copied, SlotFormat, Slots, Unread, read};
use backstay_format::geometry::{
    RECORD_BYTES, RECORD_COPIES, ROOT_BYTES, ROOT_OFFSETS, ZONE_SLOTS,
};
use backstay_format::geometry::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use backstay_format::limits::SEGMENT_BYTES_MAX;
use backstay_format::width::to_usize;
use backstay_format::{Address, BlockRef, Digest, FormatError, Geometry, RootSlot, SegmentClass};
use backstay_format::{SegmentId, SegmentRecord, StoreId, Superblock};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The root slots of a store.
#[derive(Debug, Clone, Copy)]
pub struct RootSlots(pub StoreId);

impl SlotFormat for RootSlots {
    type State = RootSlot;
    fn what(&self) -> &'static str {
        "root"
    }
    fn offset(&self, slot: usize) -> u64 {
        ROOT_OFFSETS[slot]
    }
    fn slot_bytes(&self) -> usize {
        ROOT_BYTES
    }
    fn sequence(&self, root: &RootSlot) -> u64 {
        root.sequence
    }
    fn encode(&self, root: &RootSlot) -> std::result::Result<Vec<u8>, FormatError> {
        root.encode()
    }
    fn decode(&self, bytes: &[u8]) -> std::result::Result<RootSlot, FormatError> {
        RootSlot::decode(bytes, self.0)
    }
    fn is_first(&self, root: &RootSlot) -> bool {
        root.sequence == 1
    }
}

/// Where byte `offset` of `segment` is in a view of a store's segments, one behind the other in the order of their
/// ids. Beyond 2^42 segments there is no place: the read finds nothing.
pub fn segment_place(segment: SegmentId, offset: u64) -> u64 {
    let start = segment.0.saturating_mul(u64::from(SEGMENT_BYTES_MAX));
    start.saturating_add(offset)
}

/// A segment record, and what is wrong with its first copy.
type FoundRecord = (SegmentRecord, Option<Error>);

/// Of the good copies of a record the one with the later segment.
fn newest_copy(copies: impl Iterator<Item = Result<SegmentRecord>>) -> Result<FoundRecord> {
    let (mut newest, mut first_wrong, mut wrong) = (None::<SegmentRecord>, None, None::<Error>);
    for (copy, found) in copies.enumerate() {
        match found {
            Ok(record) if newest.is_some_and(|other| other.segment >= record.segment) => {}
            Ok(record) => newest = Some(record),
            Err(error) if copy == 0 => first_wrong = Some(error),
            Err(error) => wrong = Some(error),
        }
    }
    if let Some(newest) = newest {
        return Ok((newest, first_wrong));
    }
    let tells_more = |first: &Error| first.kind() != ErrorKind::Corrupt || wrong.is_none();
    let none = || Error::new(ErrorKind::Internal, "a slot has no record");
    Err(match first_wrong {
        Some(first) if tells_more(&first) => first,
        _ => wrong.unwrap_or_else(none),
    })
}

/// A store, for reading.
#[derive(Debug)]
pub struct StoreReader {
    device: Arc<dyn ReadAt>,
    /// It, and what is wrong with its first copy, if the second had to be taken.
    superblock: Copied<Superblock>,
    geometry: Geometry,
    slots: RwLock<BTreeMap<SegmentId, u64>>,
    /// Blocks are read here, each at the place of its segment, instead of in the device.
    segments: Option<Arc<dyn ReadAt>>,
    /// What may stand in a root slot that cannot be read was given up.
    gives_up: AtomicBool,
}

impl StoreReader {
    /// Reads the superblock, from either copy.
    pub fn open(device: Arc<dyn ReadAt>) -> Result<Self> {
        let places = (SUPERBLOCK_OFFSETS.as_slice(), SUPERBLOCK_BYTES);
        let superblock = two_slots::first_copy(&*device, places, "superblock", Superblock::decode)?;
        Ok(Self {
            geometry: superblock.value.geometry(),
            device,
            superblock,
            slots: RwLock::default(),
            segments: None,
            gives_up: AtomicBool::new(false),
        })
    }

    /// As [`Self::open`]; blocks are read from `segments`, in which each segment stands at its
    /// [`segment_place`]: no record has to be read to find them.
    pub fn open_over(device: Arc<dyn ReadAt>, segments: Arc<dyn ReadAt>) -> Result<Self> {
        let mut reader = Self::open(device)?;
        reader.segments = Some(segments);
        Ok(reader)
    }

    /// Whether blocks are read from memory of this node as they stand.
    pub fn is_memory(&self) -> bool {
        self.segments.is_none() && self.device.is_memory()
    }

    /// The device below.
    pub fn device(&self) -> &Arc<dyn ReadAt> {
        &self.device
    }
    /// What the store says of itself.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock.value
    }
    /// What is wrong with the superblock's first copy, where the second was taken.
    pub fn damaged_copy(&self) -> Option<&Error> {
        self.superblock.damaged.as_ref()
    }
    /// Where things stand.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// How its root slots are read.
    pub fn root_slots(&self) -> RootSlots {
        RootSlots(self.superblock.value.store)
    }

    /// Both root slots: each the root it holds, or what is wrong with it.
    pub fn roots(&self) -> Slots<RootSlot> {
        two_slots::look(&*self.device, &self.root_slots())
    }

    /// The newest valid root and which slot holds it.
    pub fn newest_root(&self) -> Result<(RootSlot, usize)> {
        two_slots::newest(&*self.device, &self.root_slots(), self.unread())
    }

    /// Takes the other root slot where one cannot be read, or no longer. For a restart to which somebody named
    /// the checkpoint, as long as it has written nothing.
    pub fn give_up_unread(&self, gives_up: bool) {
        self.gives_up.store(gives_up, Ordering::Release);
    }
    /// What counts of a root slot that cannot be read.
    pub fn unread(&self) -> Unread {
        if self.gives_up.load(Ordering::Acquire) {
            Unread::GivenUp
        } else {
            Unread::Counts
        }
    }

    /// The record of `slot`: of its good copies the one with the later segment, since a torn write may
    /// have reached only one. If none is good, one that could not be read tells more than a damaged one.
    pub fn record(&self, slot: u64) -> Result<SegmentRecord> {
        let copies = (0..RECORD_COPIES).map(|copy| self.record_copy(slot, copy));
        newest_copy(copies).map(|(record, _)| record)
    }

    /// One copy of the record of `slot`.
    pub fn record_copy(&self, slot: u64, copy: u64) -> Result<SegmentRecord> {
        let mut bytes = [0; to_usize(RECORD_BYTES)];
        let offset = self.geometry.record_offset(slot, copy);
        read(&*self.device, &mut bytes, offset, "segment record")?;
        self.decode_record(&bytes, offset)
    }

    fn decode_record(&self, bytes: &[u8], offset: u64) -> Result<SegmentRecord> {
        SegmentRecord::decode(bytes, self.superblock.value.store).map_err(|error| {
            let place = format!("{}: segment record at byte {offset}", self.device.name());
            Error::malformed(place, error)
        })
    }

    /// The records of `slots`, all of one zone, each with what is wrong with its first copy. One read a copy, but where
    /// that fails.
    fn zone_records(&self, slots: Range<u64>) -> impl Iterator<Item = Result<FoundRecord>> {
        let bytes = to_usize((slots.end - slots.start) * RECORD_BYTES);
        let copies: Vec<Option<Vec<u8>>> = (0..RECORD_COPIES)
            .map(|copy| {
                let mut records = vec![0; bytes];
                let offset = self.geometry.record_offset(slots.start, copy);
                let read = read(&*self.device, &mut records, offset, "segment records");
                read.ok().map(|()| records)
            })
            .collect();
        slots.enumerate().map(move |(at, slot)| {
            newest_copy((0..).zip(&copies).map(|(copy, records)| {
                let Some(records) = records else {
                    return self.record_copy(slot, copy);
                };
                let start = at * to_usize(RECORD_BYTES);
                let offset = self.geometry.record_offset(slot, copy);
                self.decode_record(&records[start..start + to_usize(RECORD_BYTES)], offset)
            }))
        })
    }

    /// A writer leaves a store alone whose superblock names a later minor version; of roots,
    /// [`two_slots::TwoSlots`] sees to it.
    pub fn refuse_later_version(&self) -> Result<()> {
        self.superblock.refuse_later(&*self.device)
    }

    /// Reads all records; calls `found` for each slot that names a segment, with what is wrong with its
    /// first copy if that is damaged. Without a good copy a slot holds no segment; but one that could not
    /// be read may, and is an error: its slot would be taken for free.
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
        for first in (0..slots).step_by(to_usize(ZONE_SLOTS)) {
            let zone = first..slots.min(first + ZONE_SLOTS);
            for (slot, record) in zone.clone().zip(self.zone_records(zone)) {
                match record {
                    Ok((record, damaged)) => {
                        self.place_segment(record.segment, slot);
                        found(slot, record, damaged);
                    }
                    Err(error) if error.kind() == ErrorKind::Corrupt => {}
                    Err(error) => return Err(error),
                }
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
        let Some(slot) = self.slot_of(address.segment()) else {
            let bytes = self.device.length_bytes().unwrap_or(0);
            let found = format!(
                "none in the {} slots of a file of {bytes} bytes: it was cut off, or the records are damaged",
                self.geometry.slots_in(bytes)
            );
            let what = FormatError::new("segment", "record", 0, "a slot that holds it", found);
            return Err(Error::malformed(
                format!("{}: {address}", self.device.name()),
                what,
            ));
        };
        self.check_end(address, length)?;
        Ok(self.geometry.address_offset(slot, address))
    }

    /// The same where segments stand at their places.
    fn place_of(&self, address: Address, length: usize) -> Result<u64> {
        self.check_end(address, length)?;
        let offset = u64::from(address.offset_bytes());
        Ok(segment_place(address.segment(), offset))
    }

    fn check_end(&self, address: Address, length: usize) -> Result<()> {
        let end = to_usize(u64::from(address.offset_bytes())) + length;
        if end > to_usize(u64::from(self.geometry.segment_bytes)) {
            let most = self.geometry.segment_bytes;
            let what = FormatError::new("address", "end", 0, format!("at most {most}"), end);
            return Err(Error::malformed(
                format!("{}: {address}", self.device.name()),
                what,
            ));
        }
        Ok(())
    }

    /// Fills `buffer` with what `block` refers to, and checks its digest; `what` names it in errors.
    pub fn read(&self, block: &BlockRef, buffer: &mut [u8], what: &'static str) -> Result<()> {
        let (device, offset) = match &self.segments {
            Some(segments) => (segments, self.place_of(block.address, buffer.len())?),
            None => (&self.device, self.offset_of(block.address, buffer.len())?),
        };
        read(&**device, buffer, offset, what)?;
        let found = Digest::of(buffer);
        if found == block.digest {
            return Ok(());
        }
        let damage = FormatError::new(what, "digest", 0, block.digest, found);
        let file = if self.segments.is_some() {
            "segments"
        } else {
            "file"
        };
        let place = format!(
            "{}: {} at byte {offset} of the {file}",
            device.name(),
            block.address
        );
        Err(Error::malformed(place, damage))
    }

    /// Fills `buffer` with `blocks`, each with its length, which stand side by side, and checks their digests. Where that
    /// fails each is read for itself, and the error is its own.
    pub fn read_run(
        &self,
        blocks: impl Iterator<Item = (BlockRef, usize)> + Clone,
        buffer: &mut [u8],
        what: &'static str,
    ) -> Result<()> {
        let first = blocks.clone().next();
        let at_once = match first {
            Some((first, length)) if length < buffer.len() && self.segments.is_none() => self
                .offset_of(first.address, buffer.len())
                .and_then(|offset| read(&*self.device, buffer, offset, what))
                .is_ok(),
            _ => false,
        };
        let mut rest = buffer;
        for (block, length) in blocks {
            let (bytes, after) = rest.split_at_mut(length);
            if !at_once || Digest::of(bytes) != block.digest {
                self.read(&block, bytes, what)?;
            }
            rest = after;
        }
        Ok(())
    }

    /// The class of `segment`, from its record.
    pub fn class_of(&self, segment: SegmentId) -> Option<SegmentClass> {
        self.record(self.slot_of(segment)?)
            .ok()
            .map(|record| record.class)
    }
}
