// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a variable as the program declares it, and what is tracked of it between checkpoints.
//! In from: the program. Out to: `store::revision` (parts), `track` (candidates).
//! Invariants: marks are given up only when the checkpoint that took them is committed.

use crate::config::{Config, Tracking};
use crate::error::{Error, ErrorKind, Result};
use crate::notice;
use crate::region::{Region, Source};
use crate::track::pages::{PageRegion, PageTracker, Touched};
use crate::track::{BlockSet, Candidates};
use backstay_format::{ElementType, Geometry, Slab, VariableDescriptor};
use std::ops::Range;

/// Of the blocks that `mark_dirty` did not name, one in so many is checked at each checkpoint.
const MARKED_CHECK_STRIDE: u64 = 8192;
/// Of the blocks that the kernel saw no write to, one in so many is checked at each checkpoint.
const PAGES_CHECK_STRIDE: u64 = 64;
/// Above this share of touched blocks, in so many checkpoints in a row, tracking by pages costs the
/// program more in faults than hashing everything would.
const PAGES_SHARE_MAX: f64 = 0.2;
const PAGES_TURNS_MAX: u32 = 3;

/// A variable: name, type, shape, place in a global array, how it is tracked.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    pub(super) descriptor: VariableDescriptor,
    pub(super) tracking: Option<Tracking>,
    pub(super) block_bytes: Option<u32>,
}

impl Variable {
    /// A variable of this rank; `shape` in elements, row-major, empty for a scalar.
    pub fn new(name: &str, element: ElementType, shape: &[u64]) -> Self {
        let descriptor = VariableDescriptor {
            name: name.to_owned(),
            element,
            shape: shape.to_vec(),
            slab: None,
        };
        Self {
            descriptor,
            tracking: None,
            block_bytes: None,
        }
    }

    /// Declares it as the part of a global array of `global_shape` that begins at `start`.
    #[must_use]
    pub fn slab(mut self, global_shape: &[u64], start: &[u64]) -> Self {
        self.descriptor.slab = Some(Slab {
            global_shape: global_shape.to_vec(),
            start: start.to_vec(),
        });
        self
    }

    /// How its changed blocks are found; by default as the configuration says.
    #[must_use]
    pub fn tracking(mut self, tracking: Tracking) -> Self {
        self.tracking = Some(tracking);
        self
    }

    /// Bytes of its blocks, a power of two; by default as the configuration says.
    #[must_use]
    pub fn block_bytes(mut self, bytes: u32) -> Self {
        self.block_bytes = Some(bytes);
        self
    }
}

/// A registered variable.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) descriptor: VariableDescriptor,
    pub(super) region: Region,
    pub(super) block_bytes: u32,
    tracking: Tracking,
    /// Registered, moved or resized since the last commit: nothing is known of its changes.
    unknown: bool,
    /// A checkpoint under way has captured it.
    captured: bool,
    marks: Vec<Range<u64>>,
    /// Marks that the checkpoint under way has taken.
    taken: Vec<Range<u64>>,
    checks: u64,
    pages: Option<PageRegion>,
    /// Checkpoints in a row in which too large a share was touched.
    busy_turns: u32,
    /// The last committed checkpoint for which every block was hashed.
    last_full: u64,
}

impl Registered {
    pub(super) fn new(variable: Variable, address: *mut u8, config: &Config) -> Result<Self> {
        let refuse = |error| {
            let context = format!("variable {:?}", variable.descriptor.name);
            Error::caused(ErrorKind::InvalidArgument, context, error)
        };
        variable.descriptor.validate().map_err(refuse)?;
        let length = variable.descriptor.length_bytes().unwrap_or(0);
        if address.is_null() && length > 0 {
            let context = format!(
                "variable {:?}: its address is null",
                variable.descriptor.name
            );
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        let block_bytes = variable.block_bytes.unwrap_or(config.block_bytes);
        Config {
            block_bytes,
            ..config.clone()
        }
        .validate()?;
        Ok(Self {
            descriptor: variable.descriptor,
            region: region(address, length),
            block_bytes,
            tracking: variable.tracking.unwrap_or(config.tracking),
            unknown: true,
            captured: false,
            marks: Vec::new(),
            taken: Vec::new(),
            checks: 0,
            pages: None,
            busy_turns: 0,
            last_full: 0,
        })
    }

    pub(super) fn mark(&mut self, bytes: Range<u64>) -> Result<()> {
        let length = self.descriptor.length_bytes().unwrap_or(0);
        if bytes.start > bytes.end || bytes.end > length {
            let context = format!(
                "mark_dirty of bytes {} to {} of variable {:?}, which has {length}",
                bytes.start, bytes.end, self.descriptor.name
            );
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        match self.marks.last_mut() {
            Some(last) if last.end == bytes.start => last.end = bytes.end,
            _ => self.marks.push(bytes),
        }
        Ok(())
    }

    /// Whether it asks for tracking by pages.
    pub(super) fn wants_pages(&self) -> bool {
        self.tracking == Tracking::Pages
    }

    /// Begins watching its pages; without a tracker it is tracked by hash.
    pub(super) fn watch_pages(&mut self, tracker: Option<&mut PageTracker>) -> Result<()> {
        match tracker {
            Some(tracker) => {
                let length = backstay_format::width::to_usize(self.region.length_bytes());
                self.pages = Some(watch(tracker, self.region.address(), length)?);
            }
            None => self.tracking = Tracking::Hash,
        }
        Ok(())
    }

    /// Ends watching its pages.
    pub(super) fn unwatch_pages(&mut self, tracker: Option<&mut PageTracker>) {
        if let (Some(pages), Some(tracker)) = (self.pages.take(), tracker) {
            tracker.unregister(pages);
        }
    }

    /// Which blocks the checkpoint now beginning must hash.
    pub(super) fn candidates(&mut self, tracker: Option<&mut PageTracker>) -> Result<Candidates> {
        if let (Some(pages), Some(tracker)) = (&mut self.pages, tracker) {
            match tracker.scan(pages)? {
                Touched::All => self.unknown = true,
                Touched::Ranges(ranges) => {
                    let to_u64 = backstay_format::width::to_u64;
                    self.marks
                        .extend(ranges.iter().map(|r| to_u64(r.start)..to_u64(r.end)));
                }
            }
            if self.busy_turns >= PAGES_TURNS_MAX {
                self.give_up_pages(tracker);
            }
        }
        self.taken.append(&mut self.marks);
        self.captured = true;
        Ok(match self.tracking {
            Tracking::Full => Candidates::AllChanged,
            Tracking::Marked if !self.unknown => {
                self.checks = (self.checks + 1) % MARKED_CHECK_STRIDE;
                Candidates::Some(self.block_set(MARKED_CHECK_STRIDE))
            }
            Tracking::Pages if !self.unknown => self.touched_blocks(),
            Tracking::Hash | Tracking::Marked | Tracking::Pages => Candidates::All,
        })
    }

    fn touched_blocks(&mut self) -> Candidates {
        self.checks = (self.checks + 1) % PAGES_CHECK_STRIDE;
        let set = self.block_set(PAGES_CHECK_STRIDE);
        let blocks = Geometry::block_count(self.region.length_bytes(), self.block_bytes);
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let busy = set.count() as f64 > PAGES_SHARE_MAX * blocks as f64;
        self.busy_turns = if busy { self.busy_turns + 1 } else { 0 };
        Candidates::Some(set)
    }

    fn give_up_pages(&mut self, tracker: &mut PageTracker) {
        notice::info(&format!(
            "variable {:?}: more than a fifth of it changes from checkpoint to checkpoint, so it is \
             tracked by hash from now on",
            self.descriptor.name
        ));
        self.tracking = Tracking::Hash;
        self.unwatch_pages(Some(tracker));
    }

    fn block_set(&self, stride: u64) -> BlockSet {
        let length = self.descriptor.length_bytes().unwrap_or(0);
        let blocks = Geometry::block_count(length, self.block_bytes);
        let mut set = BlockSet::new(blocks, stride, self.checks % stride);
        for range in &self.taken {
            set.mark(range, self.block_bytes);
        }
        set
    }

    /// The checkpoint under way was committed.
    pub(super) fn commit(&mut self, number: u64) {
        if std::mem::take(&mut self.captured) {
            let all = self.unknown || matches!(self.tracking, Tracking::Full | Tracking::Hash);
            self.last_full = if all { number } else { self.last_full };
            self.taken.clear();
            self.unknown = false;
        }
    }

    /// The checkpoint under way was not committed: what it took is marked again.
    pub(super) fn roll_back(&mut self) {
        self.captured = false;
        let later = std::mem::replace(&mut self.marks, std::mem::take(&mut self.taken));
        self.marks.extend(later);
    }

    /// All its memory was written by a restore.
    pub(super) fn written(&mut self) {
        self.unknown = true;
        self.marks.clear();
        self.taken.clear();
    }

    /// Blocks changed that nothing had marked: from now on every block is hashed.
    pub(super) fn contract_broken(&mut self, blocks: u64, tracker: Option<&mut PageTracker>) {
        notice::warn(&format!(
            "variable {:?}: {blocks} blocks changed though nothing said so (written by a device, or \
             not marked); the checkpoints after {} are suspect in it, and from now on it is tracked \
             by hash",
            self.descriptor.name, self.last_full
        ));
        self.unwatch_pages(tracker);
        self.tracking = Tracking::Hash;
        self.unknown = true;
    }
}

#[expect(
    unsafe_code,
    reason = "the caller of Session::protect promised that the memory is valid"
)]
fn region(address: *mut u8, length: u64) -> Region {
    // SAFETY: `Session::protect` is unsafe and hands this promise to its caller.
    unsafe { Region::new(address, length) }
}

#[expect(
    unsafe_code,
    reason = "the caller of Session::protect promised that the memory is its own"
)]
fn watch(tracker: &mut PageTracker, address: *mut u8, length: usize) -> Result<PageRegion> {
    // SAFETY: `Session::protect` is unsafe and hands this promise to its caller.
    unsafe { tracker.register(address.cast_const(), length) }
}
