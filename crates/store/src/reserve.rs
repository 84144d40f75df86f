// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the node's reserved space: made once, grown by appending, leased segment by segment.
//! In from: `store::revision` of every rank. Out to: the device.
//! Invariants: space is real before anything refers to it; a segment record is written before the
//! first block of its segment, and is durable with it; what was placed never moves.

use super::control::{Control, Owner, wait_until};
use super::memory::memory_limit;
use super::reader::{RootSlots, StoreReader};
use super::space::SegmentSource;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::Device;
use backstay_base::io::two_slots::{Medium, Plain, TwoSlots, Unread};
use backstay_base::notice;
use backstay_format::Superblock;
use backstay_format::geometry::{
    RECORD_COPIES, ROOT_BYTES, ROOT_OFFSETS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS,
};
use backstay_format::limits::SEGMENTS_MAX;
use backstay_format::{
    Address, Geometry, Lineage, RootSlot, SegmentClass, SegmentId, SegmentRecord,
};
use std::sync::Arc;
use std::time::Duration;

/// A store, for writing, shared by the ranks of a node.
#[derive(Debug, Clone)]
pub struct Reserve {
    device: Arc<dyn Device>,
    reader: Arc<StoreReader>,
    control: Control,
    settings: ReserveSettings,
    /// What stands in the store is durable: who opened it here synced it, or made it, and writes it.
    is_durable: bool,
}

/// Longest wait of a full store for a segment that parity still covers, whatever is set.
const RETIRED_WAIT: Duration = Duration::from_secs(10);

/// Space that is taken at once in the background, where ranks may wait for it: a thread that gives way to others takes its
/// time.
const STEP_BYTES: u64 = 8 << 20;

/// Bounds of growth and of waits.
#[derive(Debug, Clone, Copy)]
pub struct ReserveSettings {
    /// The store never grows beyond this, in bytes.
    pub reserve_bytes_max: Option<u64>,
    /// Longest wait for a segment that parity still covers.
    pub wait: Duration,
    /// What a new store is made of is its length alone, where the device refuses a write for which there is no space:
    /// it is filled at once. [`Reserve::make_real`] is to follow.
    pub space_later: bool,
}

impl Reserve {
    /// Makes a store with room for `slots` segments on an empty device; durable on return.
    pub fn create(
        device: Arc<dyn Device>,
        control: Control,
        superblock: &Superblock,
        slots: u64,
        settings: ReserveSettings,
    ) -> Result<Self> {
        let none = Lineage::default();
        Self::create_in_start(device, control, superblock, slots, settings, none)
    }

    /// The same in the start of `lineage`, which has had no checkpoint yet.
    pub fn create_in_start(
        device: Arc<dyn Device>,
        control: Control,
        superblock: &Superblock,
        slots: u64,
        settings: ReserveSettings,
        lineage: Lineage,
    ) -> Result<Self> {
        let geometry = superblock.geometry();
        let block = superblock
            .encode()
            .map_err(|error| Error::unwritable(format!("{}: a store", device.name()), error))?;
        if settings.space_later {
            check_memory(&*device, geometry.file_bytes(slots))?;
            let length = geometry.file_bytes(slots);
            let extended = device.extend(length);
            extended.map_err(|error| unreserved(&*device, length, error))?;
        } else {
            reserve_space(&*device, geometry, slots)?;
        }
        let first = RootSlot {
            store: superblock.store,
            sequence: 1,
            incarnation: lineage.start,
            next_segment: 1,
            closed: false,
            lineage,
            revisions: Vec::new(),
        };
        let medium = Plain(&*device);
        TwoSlots::make(&medium, RootSlots(superblock.store), first)?;
        for offset in SUPERBLOCK_OFFSETS {
            medium.write(&block, offset)?;
        }
        medium.sync()?;
        control.set_slots(slots);
        control.set_next_segment(1);
        let reader = Arc::new(StoreReader::open(device.clone())?);
        Ok(Self {
            device,
            reader,
            control,
            settings,
            is_durable: true,
        })
    }

    /// Opens a store for its node: reads the segment records and fills the control words. What is found is
    /// durable on return: a start that was killed may have written it and not come to its sync.
    pub fn open(
        device: Arc<dyn Device>,
        control: Control,
        settings: ReserveSettings,
    ) -> Result<Self> {
        Self::open_as(device, control, settings, Unread::Counts)
    }

    /// The same, where what may stand in a root slot that cannot be read may be given up.
    pub fn open_as(
        device: Arc<dyn Device>,
        control: Control,
        settings: ReserveSettings,
        unread: Unread,
    ) -> Result<Self> {
        let reader = Arc::new(StoreReader::open(device.clone())?);
        reader.give_up_unread(unread == Unread::GivenUp);
        reader.refuse_later_version()?;
        let medium = Plain(&*device);
        let roots = TwoSlots::open_as(&medium, reader.root_slots(), unread)?;
        // Both the root and the records bound the ids that were given out: the record of a segment
        // that no root came to know may be newer than the root, and a record may be damaged.
        let mut next = roots.state().next_segment;
        if let Some(damage) = reader.damaged_copy() {
            notice::warn(&format!("{damage}; the other copy is used"));
        }
        let mut damaged = None;
        let slots = reader.read_records(|slot, record, damage| {
            damaged = damaged.take().or(damage);
            control.describe_slot(slot, record.segment, record.class);
            next = next.max(record.segment.0 + 1);
        })?;
        if let Some(damage) = damaged {
            notice::warn(&format!("{damage}; the other copy is used"));
        }
        let slots = slots.min(control.slot_capacity());
        control.set_slots(slots);
        control.set_next_segment(next);
        let reserve = Self {
            device,
            reader,
            control,
            settings,
            is_durable: true,
        };
        reserve.make_real()?;
        Ok(reserve)
    }

    /// Joins a store that the node's leader made or opened.
    pub fn attach(
        device: Arc<dyn Device>,
        control: Control,
        settings: ReserveSettings,
    ) -> Result<Self> {
        let reader = Arc::new(StoreReader::open(device.clone())?);
        let reserve = Self {
            device,
            reader,
            control,
            settings,
            is_durable: false,
        };
        reserve.refresh();
        Ok(reserve)
    }

    /// Space that is only promised is made real, or refused.
    pub fn make_real(&self) -> Result<()> {
        let slots = self.control.slots();
        let device = &*self.device;
        let name = device.name();
        let length = self.reader.geometry().file_bytes(slots);
        let real = device
            .allocated_bytes()
            .map_err(|error| Error::io(format!("{name}: asking for its real size"), error))?;
        if real >= length {
            return Ok(());
        }
        reserve_space(device, self.reader.geometry(), slots)
    }

    /// Learns which segments stand where from the control words.
    pub fn refresh(&self) {
        for slot in 0..self.control.slots() {
            if let Some((segment, _)) = self.control.slot_segment(slot) {
                self.reader.place_segment(segment, slot);
            }
        }
    }

    /// The root slots, to write them.
    pub fn roots(&self) -> Result<TwoSlots<RootSlots>> {
        let roots = TwoSlots::read(self, self.reader.root_slots(), self.reader.unread())?;
        Ok(if self.is_durable {
            roots.known_durable()
        } else {
            roots
        })
    }

    /// The reading side, to share.
    pub fn shared_reader(&self) -> Arc<StoreReader> {
        Arc::clone(&self.reader)
    }
    /// What it is written to.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }
    /// The reading side.
    pub fn reader(&self) -> &StoreReader {
        &self.reader
    }
    /// What the node's ranks share.
    pub fn control(&self) -> &Control {
        &self.control
    }
    /// Where things stand.
    pub fn geometry(&self) -> Geometry {
        self.reader.geometry()
    }
    /// Bytes of the store.
    pub fn length_bytes(&self) -> u64 {
        self.geometry().file_bytes(self.control.slots())
    }

    /// Writes `bytes` at `address`.
    pub fn write(&self, address: Address, bytes: &[u8]) -> Result<()> {
        let offset = self.reader.offset_of(address, bytes.len())?;
        self.write_at(bytes, offset)
    }

    /// Writes `bytes` at a file offset.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let device = &self.device;
        device.write_at(bytes, offset).map_err(|error| {
            Error::io(
                format!(
                    "{}: writing {} bytes at {offset}",
                    device.name(),
                    bytes.len()
                ),
                error,
            )
        })
    }

    /// Makes all that was written durable. A failure ends the use of the store in this start.
    pub fn sync(&self) -> Result<()> {
        if self.control.failed() {
            return Err(self.failed_before());
        }
        self.device.sync().map_err(|error| {
            self.control.set_failed();
            let context = format!(
                "{}: a sync failed, so nothing written since the last good one is trusted; the \
                 last checkpoint stays, and this session writes no more",
                self.device.name()
            );
            Error::caused(ErrorKind::StoreFailed, context, error)
        })
    }

    /// Makes all that was written durable, and says so of each segment: what stands in front of its
    /// mark will not change, and parity may cover it.
    pub fn seal(&self) -> Result<()> {
        if !self.control.redundant() {
            return self.sync();
        }
        // The mark first: a slot that is given back, and has another segment when the sync is over, has
        // another mark then, and keeps it.
        let slots = 0..self.control.slots();
        let filled: Vec<(u64, u64)> = slots
            .map(|slot| (self.control.mark(slot), self.control.filled(slot)))
            .collect();
        self.sync()?;
        for (slot, (mark, bytes)) in (0..).zip(filled) {
            self.control.set_sealed(slot, mark, bytes);
        }
        Ok(())
    }

    /// The error for a store whose sync failed earlier.
    pub fn failed_before(&self) -> Error {
        let context = format!("{}: an earlier sync failed", self.device.name());
        Error::new(ErrorKind::StoreFailed, context)
    }

    /// Takes the slot of a segment that recovery found for `owner`; false if another has it.
    pub fn claim(&self, segment: SegmentId, owner: Owner) -> Option<(u64, SegmentClass)> {
        let slot = self.reader.slot_of(segment)?;
        let (found, class) = self.control.slot_segment(slot)?;
        if found != segment || !self.control.try_slot(slot, owner) {
            return None;
        }
        self.control.set_unsealed(slot, segment);
        Some((slot, class))
    }

    fn lease(&self, owner: Owner, class: SegmentClass) -> Result<(u64, SegmentId)> {
        let mut tries = 0;
        let slot = loop {
            if let Some(slot) = self.control.take_slot(owner) {
                break slot;
            }
            tries += 1;
            if tries > 1000 {
                return Err(Error::new(
                    ErrorKind::StoreFull,
                    "no segment could be leased",
                ));
            }
            let grown = self.control.growing(|| self.grow(owner));
            match grown {
                // What is retired is free when the round under way is over: slower, but not lost.
                Err(error) if error.kind() == ErrorKind::StoreFull && self.await_retired() => {
                    tracing::debug!("waited for retired segments: {error}");
                }
                other => {
                    other?;
                }
            }
        };
        let segment = self.control.take_segment_id();
        let record = SegmentRecord {
            store: self.reader.superblock().store,
            segment,
            class,
        };
        let name = self.device.name();
        let place = || format!("{name}: the record of a new segment");
        let encoded = record.encode();
        let encoded = encoded.map_err(|error| Error::unwritable(place(), error));
        let written = encoded.and_then(|bytes| {
            (0..RECORD_COPIES).try_for_each(|copy| {
                self.write_at(&bytes, self.geometry().record_offset(slot, copy))
            })
        });
        if let Err(error) = written {
            self.control.free_slot(slot);
            return Err(error);
        }
        self.control.set_filled(slot, 0);
        self.control.set_unused(slot);
        self.control.set_unsealed(slot, segment);
        self.control.describe_slot(slot, segment, class);
        self.reader.place_segment(segment, slot);
        Ok((slot, segment))
    }

    /// Waits until a retired segment is free; false where there is none, or it takes too long.
    fn await_retired(&self) -> bool {
        let control = &self.control;
        let retired = || (0..control.slots()).any(|slot| control.is_retired(slot));
        let limit = self.settings.wait.min(RETIRED_WAIT);
        control.redundant()
            && retired()
            && wait_until("a retired segment", limit, || control.free_slots() > 0).is_ok()
    }

    /// Appends segments: a quarter of what is there, at least eight, within the bound; for parity a step.
    fn grow(&self, owner: Owner) -> Result<()> {
        if self.control.free_slots() > 0 {
            return Ok(());
        }
        let (geometry, slots) = (self.geometry(), self.control.slots());
        let wanted = match owner {
            Owner::Parity => slots + self.step_slots(),
            _ => slots + (slots / 4).max(8),
        };
        let most = self.most_slots();
        let name = self.device.name();
        if slots >= most {
            let context = format!(
                "{name}: all {slots} segments ({} bytes) are in use; short by at least {} bytes: \
                 raise reserve_bytes",
                geometry.file_bytes(slots),
                geometry.segment_bytes
            );
            return Err(Error::new(ErrorKind::StoreFull, context));
        }
        let mut short = None;
        for next in [wanted.min(most), slots + 1] {
            match reserve_space(&*self.device, geometry, next) {
                Ok(()) => {
                    self.control.add_slots_up_to(next);
                    return Ok(());
                }
                // Another one grew it meanwhile, and further.
                Err(_) if self.control.slots() > slots => return Ok(()),
                Err(error) => short = Some(error),
            }
        }
        Err(short.unwrap_or_else(|| Error::new(ErrorKind::Internal, "growth was not tried")))
    }

    /// Appends some of the segments up to `wanted` before they are needed; false where that would take what may be
    /// needed otherwise. In steps, so that who needs one meanwhile does not wait for all.
    pub fn grow_ahead(&self, wanted: u64) -> Result<bool> {
        let (geometry, slots) = (self.geometry(), self.control.slots());
        let next = wanted.min(slots + self.step_slots()).min(self.most_slots());
        let more = geometry
            .file_bytes(next)
            .saturating_sub(geometry.file_bytes(slots));
        let is_scarce = |free: u64| free / 2 < more;
        let limit = memory_limit().filter(|_| self.device.is_memory());
        if next <= slots
            || self.device.free_bytes().is_some_and(is_scarce)
            || limit.is_some_and(|limit| is_scarce(limit.free_bytes()))
        {
            return Ok(false);
        }
        let grown = self.control.growing(|| {
            reserve_space(&*self.device, geometry, next)?;
            self.control.add_slots_up_to(next);
            Ok(())
        });
        grown.map(|_| true)
    }

    fn step_slots(&self) -> u64 {
        (STEP_BYTES / u64::from(self.geometry().segment_bytes)).max(1)
    }

    /// Segments that the store may have at most.
    fn most_slots(&self) -> u64 {
        let most = self.control.slot_capacity().min(SEGMENTS_MAX);
        let bound = self.settings.reserve_bytes_max;
        bound.map_or(most, |bytes| most.min(self.geometry().slots_in(bytes)))
    }

    /// The pool as seen by `owner`.
    pub fn pool(&self, owner: Owner) -> Pool<'_> {
        Pool {
            reserve: self,
            owner,
        }
    }
}

impl Medium for Reserve {
    fn device(&self) -> &dyn Device {
        &*self.device
    }
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if self.control.failed() {
            return Err(self.failed_before());
        }
        self.write_at(bytes, offset)
    }
    fn sync(&self) -> Result<()> {
        Self::sync(self)
    }
}

/// The node's free segments, leased in the name of one owner.
#[derive(Debug, Clone, Copy)]
pub struct Pool<'a> {
    reserve: &'a Reserve,
    owner: Owner,
}

impl SegmentSource for Pool<'_> {
    fn lease(&self, class: SegmentClass) -> Result<(u64, SegmentId)> {
        self.reserve.lease(self.owner, class)
    }
    fn release(&self, slot: u64) {
        let control = &self.reserve.control;
        if control.redundant() && self.owner != Owner::Parity {
            control.retire_slot(slot);
        } else {
            control.free_slot(slot);
        }
    }
    fn used(&self, slot: u64, number: u64) {
        self.reserve.control.set_used(slot, number);
    }
    fn filled(&self, slot: u64, filled_bytes: u32) {
        self.reserve
            .control
            .set_filled(slot, u64::from(filled_bytes));
    }
}

/// Reserves real space for `slots` segments; the error says how much is short.
fn reserve_space(device: &dyn Device, geometry: Geometry, slots: u64) -> Result<()> {
    let length = geometry.file_bytes(slots);
    check_memory(device, length)?;
    let reserved = device.reserve(length);
    reserved.map_err(|error| unreserved(device, length, error))
}

/// What keeps a device from having real space for `length` bytes, and how much is short.
fn unreserved(device: &dyn Device, length: u64, error: std::io::Error) -> Error {
    let name = device.name();
    let more = length.saturating_sub(device.allocated_bytes().unwrap_or(0));
    let short = match device.free_bytes() {
        Some(free) if free < more => {
            format!("of which {free} are free: short by {} bytes", more - free)
        }
        _ => "which there are not".to_owned(),
    };
    let context = format!(
        "{name}: reserving {length} bytes ({} MiB) takes {more} bytes more, {short}; free space \
         there, or set store_path or reserve_bytes",
        length >> 20,
    );
    Error::io(context, error)
}

/// On a memory file system, space beyond the memory limit is no error of the file system but the
/// end of the process: refused here, before the kernel has to.
fn check_memory(device: &dyn Device, length_bytes: u64) -> Result<()> {
    if !device.is_memory() {
        return Ok(());
    }
    let more = length_bytes.saturating_sub(device.allocated_bytes().unwrap_or(0));
    let Some(limit) = memory_limit().filter(|limit| limit.free_bytes() < more) else {
        return Ok(());
    };
    let context = format!(
        "{}: reserving {more} bytes more ({} MiB) of memory, but {} leaves {} of its {}: short by \
         {} bytes; raise the limit, lower reserve_bytes, or set store_path to a folder on a disk",
        device.name(),
        more >> 20,
        limit.path.display(),
        limit.free_bytes(),
        limit.limit_bytes,
        more - limit.free_bytes()
    );
    Err(Error::new(ErrorKind::StoreFull, context))
}

/// Whether a store file never held a checkpoint: it is empty, or its making was interrupted before
/// the superblock, which is written last, was whole. The first commit writes root slot 1.
pub fn is_blank(device: &dyn Device) -> bool {
    let read = |offset, length| {
        let mut bytes = vec![0; length];
        device.read_at(&mut bytes, offset).ok().map(|()| bytes)
    };
    let zeros = |offset, length| {
        read(offset, length).is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0))
    };
    let [first, second] = SUPERBLOCK_OFFSETS;
    device.length_bytes().is_ok_and(|length| length == 0)
        || zeros(second, SUPERBLOCK_BYTES)
            && zeros(ROOT_OFFSETS[1], ROOT_BYTES)
            && read(first, SUPERBLOCK_BYTES)
                .is_some_and(|bytes| Superblock::decode(&bytes).is_err())
}
