// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which granules of one owner's segments are in use, by which retained revision.
//! In: what recovery found reachable, what a checkpoint allocates and replaces. Out: addresses.
//! Invariants: free means in no retained revision and not in the one being written; nothing is
//! ever stored of this: it is derived from the roots at opening. Where parity protects segments,
//! what was once written is never written again while its segment lives ([`Reuse::Segments`]).

use backstay_base::error::Result;
use backstay_format::width::{index, to_usize};
use backstay_format::{Address, CheckpointId, SegmentClass, SegmentId};
use std::collections::BTreeMap;

/// One bit a granule; what lies beyond the last word is clear. Segments fill from their start, so
/// that the map of one that is little used is short.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bitmap(Vec<u64>);

impl Bitmap {
    fn get(&self, bit: usize) -> bool {
        let word = self.0.get(bit / 64);
        word.is_some_and(|word| word & (1 << (bit % 64)) != 0)
    }
    fn fill(&mut self, start: usize, count: usize, value: bool) {
        let words = (start + count).div_ceil(64);
        if value && words > self.0.len() {
            self.0.resize(words, 0);
        }
        for bit in start..(start + count).min(self.0.len() * 64) {
            if value {
                self.0[bit / 64] |= 1 << (bit % 64);
            } else {
                self.0[bit / 64] &= !(1 << (bit % 64));
            }
        }
    }
    fn merge(&mut self, other: &Self) {
        if other.0.len() > self.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }
    /// A copy that holds no more words than it needs.
    fn trimmed(&self) -> Self {
        let used = self.0.iter().rposition(|&word| word != 0);
        Self(self.0[..used.map_or(0, |last| last + 1)].to_vec())
    }
    fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }
    fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
    /// The first run of `count` clear bits at or after `from`, within `bits`.
    fn clear_run(&self, from: usize, count: usize, bits: usize) -> Option<usize> {
        let mut start = from;
        while start + count <= bits {
            if start.is_multiple_of(64) && self.0.get(start / 64) == Some(&u64::MAX) {
                start += 64;
                continue;
            }
            match (start..start + count).rev().find(|&bit| self.get(bit)) {
                None => return Some(start),
                Some(taken) => start = taken + 1,
            }
        }
        None
    }
}

/// One segment of an owner.
#[derive(Debug)]
struct SegmentSpace {
    slot: u64,
    class: SegmentClass,
    /// In use by a retained revision or by the one being written.
    taken: Bitmap,
    /// In use by the one being written.
    working: Bitmap,
    /// Granules that may have been written: the front of the segment.
    filled: usize,
    /// Leased in this start, so that `filled` is exact and there may be room behind it.
    open: bool,
}

/// What may be written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reuse {
    /// Every granule that no revision uses: the densest, where nothing else refers to the bytes.
    #[default]
    Holes,
    /// Whole segments only, each filled once from its start: parity may cover what was written.
    Segments,
}

/// What one retained revision uses, segment by segment.
type Usage = BTreeMap<SegmentId, Bitmap>;

/// The segments of one owner.
#[derive(Debug)]
pub struct Space {
    segment_bytes: u32,
    segments: BTreeMap<SegmentId, SegmentSpace>,
    /// Oldest first; the last one is what `working` began as.
    retained: Vec<(CheckpointId, Usage)>,
    cursors: [Cursor; SegmentClass::ALL.len()],
    reuse: Reuse,
}

/// Where the next allocation of a class is tried first.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    segment: SegmentId,
    granule: usize,
}

/// A source of whole free segments: the node's pool.
pub trait SegmentSource {
    /// A free segment for `class`: its slot and its new id.
    fn lease(&self, class: SegmentClass) -> Result<(u64, SegmentId)>;
    /// Gives a slot back in which nothing is in use.
    fn release(&self, slot: u64);
    /// Learns that the checkpoint of this number uses the segment in `slot`.
    fn used(&self, slot: u64, number: u64);
    /// Learns that the first `filled_bytes` of the segment in `slot` are written for good.
    fn filled(&self, slot: u64, filled_bytes: u32);
}

impl Space {
    /// An owner without segments.
    pub fn new(segment_bytes: u32) -> Self {
        Self {
            segment_bytes,
            segments: BTreeMap::new(),
            retained: Vec::new(),
            cursors: [Cursor::default(); SegmentClass::ALL.len()],
            reuse: Reuse::default(),
        }
    }

    /// From now on only so much is written again.
    pub fn set_reuse(&mut self, reuse: Reuse) {
        self.reuse = reuse;
    }

    /// Tells the pool how far each segment is written, what follows is behind that, and which of them the checkpoint
    /// being written uses.
    pub fn publish(&self, source: &impl SegmentSource, writing: Option<CheckpointId>) {
        if self.reuse == Reuse::Holes {
            return;
        }
        for segment in self.segments.values() {
            if let Some(id) = writing.filter(|_| !segment.working.is_empty()) {
                source.used(segment.slot, id.number);
            }
            let bytes = segment.filled * index(segment.class.granule_bytes());
            source.filled(segment.slot, u32::try_from(bytes).unwrap_or(u32::MAX));
        }
    }

    fn granules(&self, class: SegmentClass) -> usize {
        index(self.segment_bytes / class.granule_bytes())
    }

    fn span(class: SegmentClass, address: Address, length: usize) -> (usize, usize) {
        let granule = index(class.granule_bytes());
        (
            index(address.offset_bytes()) / granule,
            length.div_ceil(granule),
        )
    }

    /// Takes note of a segment that recovery found.
    pub fn adopt(&mut self, segment: SegmentId, slot: u64, class: SegmentClass) {
        self.segments
            .entry(segment)
            .or_insert_with(|| SegmentSpace {
                slot,
                class,
                taken: Bitmap::default(),
                working: Bitmap::default(),
                filled: 0,
                open: false,
            });
    }

    /// Whether `segment` belongs to this owner.
    pub fn owns(&self, segment: SegmentId) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Begins the notes on what retained revision `checkpoint` uses (recovery, oldest first).
    pub fn note_revision(&mut self, checkpoint: CheckpointId) {
        self.retained.push((checkpoint, Usage::new()));
    }

    /// Notes that the newest noted revision uses `length` bytes at `address`.
    pub fn note(&mut self, address: Address, length: usize) {
        let Some(segment) = self.segments.get_mut(&address.segment()) else {
            return;
        };
        let (start, count) = Self::span(segment.class, address, length);
        let bits = index(self.segment_bytes / segment.class.granule_bytes());
        if start + count > bits {
            return;
        }
        segment.taken.fill(start, count, true);
        segment.filled = segment.filled.max(start + count);
        if let Some((_, usage)) = self.retained.last_mut() {
            let map = usage.entry(address.segment()).or_default();
            map.fill(start, count, true);
        }
    }

    /// Makes revision `checkpoint` the one the next checkpoint starts from; `None`: starts empty.
    pub fn begin_from(&mut self, checkpoint: Option<CheckpointId>) {
        let usage = self
            .retained
            .iter()
            .find(|(id, _)| Some(*id) == checkpoint)
            .map(|(_, u)| u);
        for (id, segment) in &mut self.segments {
            segment.working = match usage.and_then(|usage| usage.get(id)) {
                Some(map) => map.clone(),
                None => Bitmap::default(),
            };
        }
        self.settle();
    }

    /// Space for `length` bytes.
    pub fn allocate(&mut self, length: usize, source: &impl SegmentSource) -> Result<Address> {
        let class = SegmentClass::of(length);
        let count = length.div_ceil(index(class.granule_bytes()));
        let which = usize::from(class as u8) - 1;
        let found = self.find(class, count, self.cursors[which]);
        let (segment_id, start) = if let Some(found) = found {
            found
        } else {
            let (slot, id) = source.lease(class)?;
            self.adopt(id, slot, class);
            if let Some(segment) = self.segments.get_mut(&id) {
                segment.open = true;
            }
            (id, 0)
        };
        self.cursors[which] = Cursor {
            segment: segment_id,
            granule: start + count,
        };
        if let Some(segment) = self.segments.get_mut(&segment_id) {
            segment.taken.fill(start, count, true);
            segment.working.fill(start, count, true);
            segment.filled = segment.filled.max(start + count);
        }
        let unit = start * index(class.granule_bytes() / Address::UNIT_BYTES);
        Ok(Address::new(
            segment_id,
            u16::try_from(unit).unwrap_or(u16::MAX),
        ))
    }

    fn find(&self, class: SegmentClass, count: usize, from: Cursor) -> Option<(SegmentId, usize)> {
        let bits = self.granules(class);
        if self.reuse == Reuse::Segments {
            return self.behind(from.segment, class, count, bits);
        }
        let mut granule = from.granule;
        for (&id, segment) in self.segments.range(from.segment..) {
            if segment.class == class {
                let start = if id == from.segment { granule } else { 0 };
                if let Some(start) = segment.taken.clear_run(start, count, bits) {
                    return Some((id, start));
                }
            }
            granule = 0;
        }
        None
    }

    /// The place behind what is written in `segment`, if there is room.
    fn behind(
        &self,
        segment: SegmentId,
        class: SegmentClass,
        count: usize,
        bits: usize,
    ) -> Option<(SegmentId, usize)> {
        let found = self.segments.get(&segment)?;
        let room = found.open && found.class == class && found.filled + count <= bits;
        room.then_some((segment, found.filled))
    }

    /// Says that the revision being written no longer uses `length` bytes at `address`.
    pub fn replace(&mut self, address: Address, length: usize) {
        if let Some(segment) = self.segments.get_mut(&address.segment()) {
            let (start, count) = Self::span(segment.class, address, length);
            segment.working.fill(start, count, false);
        }
    }

    /// The revision being written is committed as `checkpoint`.
    pub fn commit(&mut self, checkpoint: CheckpointId) {
        let used = |segment: &SegmentSpace| !segment.working.is_empty();
        let usage = self.segments.iter().filter(|(_, segment)| used(segment));
        let usage = usage
            .map(|(&id, segment)| (id, segment.working.trimmed()))
            .collect();
        self.retained.push((checkpoint, usage));
    }

    /// The revision being written is given up; `base` is what it began from.
    pub fn roll_back(&mut self, base: Option<CheckpointId>) {
        self.begin_from(base);
    }

    /// Forgets every retained revision but those that `keep` names.
    pub fn retain(&mut self, keep: impl Fn(CheckpointId) -> bool) {
        let before = self.retained.len();
        self.retained.retain(|(id, _)| keep(*id));
        if self.retained.len() != before {
            self.settle();
        }
    }

    /// Derives what is taken from what is retained and being written; searches start anew.
    pub fn settle(&mut self) {
        for (id, segment) in &mut self.segments {
            segment.taken = segment.working.trimmed();
            for (_, usage) in &self.retained {
                if let Some(map) = usage.get(id) {
                    segment.taken.merge(map);
                }
            }
        }
        if self.reuse == Reuse::Holes {
            self.cursors = [Cursor::default(); SegmentClass::ALL.len()];
        }
    }

    /// Gives segments in which nothing is in use back to the pool.
    pub fn release_empty(&mut self, source: &impl SegmentSource) {
        self.segments.retain(|_, segment| {
            let keep = !segment.taken.is_empty();
            if !keep {
                source.release(segment.slot);
            }
            keep
        });
    }

    /// Bytes held in segments, and bytes of them in use by the revision being written.
    pub fn held_and_live_bytes(&self) -> (u64, u64) {
        let held = self.segments.len() * to_usize(u64::from(self.segment_bytes));
        let live = self.segments.values().map(|segment| {
            u64::from(segment.working.count()) * u64::from(segment.class.granule_bytes())
        });
        (backstay_format::width::to_u64(held), live.sum())
    }

    /// Segments to vacate, the least filled first, `most` of a class: where what the revision being written
    /// uses lies scattered over more than twice the fewest segments; over half as many again where
    /// only whole segments are written again, so that what is dead would stay.
    pub fn to_clean(&self, most: usize) -> Vec<SegmentId> {
        let holes_only: &[SegmentClass] = &[SegmentClass::Large, SegmentClass::Blocks];
        let classes = match self.reuse {
            Reuse::Holes => holes_only,
            Reuse::Segments => &SegmentClass::ALL,
        };
        classes
            .iter()
            .flat_map(|&class| self.to_clean_of(class, most))
            .collect()
    }

    fn to_clean_of(&self, class: SegmentClass, most: usize) -> Vec<SegmentId> {
        let mut filled: Vec<(u32, SegmentId)> = self
            .segments
            .iter()
            .filter(|(_, segment)| segment.class == class)
            .map(|(&id, segment)| (segment.working.count(), id))
            .filter(|&(count, _)| count > 0)
            .collect();
        let live: usize = filled.iter().map(|&(count, _)| index(count)).sum();
        let fewest = live.div_ceil(self.granules(class)).max(1);
        let allowed = match self.reuse {
            Reuse::Holes => 2 * fewest,
            Reuse::Segments => fewest + fewest / 2 + 1,
        };
        filled.sort_unstable();
        filled.truncate(most.min(filled.len().saturating_sub(allowed)));
        filled.into_iter().map(|(_, id)| id).collect()
    }

    /// Bytes of memory the maps hold.
    pub fn memory_bytes(&self) -> u64 {
        let map = |map: &Bitmap| map.0.capacity() * size_of::<u64>();
        let segment =
            |s: &SegmentSpace| map(&s.taken) + map(&s.working) + size_of::<SegmentSpace>();
        let segments: usize = self.segments.values().map(segment).sum();
        let usage: usize = self
            .retained
            .iter()
            .flat_map(|(_, usage)| usage.values())
            .map(map)
            .sum();
        backstay_format::width::to_u64(segments + usage)
    }

    /// The retained revisions, oldest first.
    pub fn revisions(&self) -> impl Iterator<Item = CheckpointId> + '_ {
        self.retained.iter().map(|(id, _)| *id)
    }
}
