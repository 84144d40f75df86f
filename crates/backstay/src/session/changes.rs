// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how the changes of one variable are found, and what is known of them between checkpoints.
//! In from: the program's marks, `track::pages`, what captures found. Out to: `track` (candidates).
//! Invariants: when in doubt every block is hashed; marks are given up only when the checkpoint that
//! took them is committed; one found wrong is never believed again while the variable is protected.

use super::variable::watch;
use crate::config::Tracking;
use backstay_base::error::Result;
use backstay_base::notice;
use backstay_format::Geometry;
use backstay_format::width::to_u64;
use backstay_metrics::VariableTracking;
use backstay_store::region::Region;
use backstay_store::track::pages::{PageRegion, PageTracker, Touched};
use backstay_store::track::{BlockSet, Candidates};
use std::ops::Range;

/// Variables up to this are always hashed: that costs less than knowing better, and a part of so few
/// blocks that is checked at each checkpoint would be no check.
const HASHED_BYTES_MAX: u64 = 64 << 10;
/// Of the blocks that `mark_dirty` did not name, one in so many is checked at each checkpoint, and at
/// least one.
const MARKED_CHECK_STRIDE: usize = 8192;
/// Of the blocks that the kernel saw no write to, one in so many is checked at each checkpoint, and at
/// least one.
const PAGES_CHECK_STRIDE: usize = 64;
/// Above this share of touched blocks, in so many checkpoints in a row, tracking by pages costs the
/// program more in faults than hashing everything would.
const PAGES_SHARE_MAX: f64 = 0.2;
const PAGES_TURNS_MAX: u32 = 3;
/// With at most this share of changed blocks, in so many checkpoints in a row, pages are watched again.
const QUIET_SHARE_MAX: f64 = 0.1;
const QUIET_TURNS_MIN: u32 = 8;
/// Each time that watching did not last, twice as many are waited for, up to this.
const QUIET_TURNS_MAX: u32 = 1024;

/// What the checkpoint under way looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// Every block.
    All,
    /// Every block, and that the marks name all that changed.
    Proving,
    /// So many blocks, and a part of the others.
    Some(u64),
}

/// Whether pages are watched, where that was asked for.
#[derive(Debug, Default)]
struct Pages {
    watched: Option<PageRegion>,
    /// Too much changes: every block is hashed for the time being.
    resting: bool,
    /// Checkpoints in a row in which too large a share was touched.
    busy_turns: u32,
    /// Checkpoints since they are watched.
    watched_turns: u32,
    /// Checkpoints in a row in which little changed, while they are not watched.
    quiet_turns: u32,
    /// So many of them end the rest.
    quiet_wanted: u32,
}

/// How the changes of one variable are found.
#[derive(Debug)]
pub(super) struct Changes {
    asked: Tracking,
    length: u64,
    block_bytes: u32,
    /// Registered, moved or resized since the last commit: nothing is known of its changes.
    unknown: bool,
    /// Blocks changed of which nothing was said.
    broken: bool,
    /// A checkpoint hashed every block, and what was marked was all that changed.
    proven: bool,
    marks: BlockSet,
    /// Marks that the checkpoint under way has taken.
    taken: BlockSet,
    /// What the checkpoint under way looked at, once it has.
    looked: Option<Looked>,
    /// Blocks of it that it wrote.
    blocks_changed: u64,
    checks: u64,
    pages: Pages,
    /// The last committed checkpoint for which every block was hashed.
    last_full: u64,
}

impl Changes {
    pub(super) fn new(asked: Tracking, length: u64, block_bytes: u32) -> Self {
        Self {
            asked,
            length,
            block_bytes,
            unknown: true,
            broken: false,
            proven: false,
            marks: BlockSet::default(),
            taken: BlockSet::default(),
            looked: None,
            blocks_changed: 0,
            checks: 0,
            pages: Pages::default(),
            last_full: 0,
        }
    }

    fn blocks(&self) -> usize {
        Geometry::block_count(self.length, self.block_bytes)
    }

    /// How changes are looked for: as asked, unless that cannot gain or was found wrong.
    fn kind(&self) -> Tracking {
        let hash = self.broken
            || self.asked != Tracking::Full && self.length <= HASHED_BYTES_MAX
            || self.asked == Tracking::Pages && self.pages.resting;
        if hash { Tracking::Hash } else { self.asked }
    }

    /// Whether it asks for its pages to be watched.
    pub(super) fn wants_pages(&self) -> bool {
        self.asked == Tracking::Pages && !self.broken && self.length > HASHED_BYTES_MAX
    }

    /// Says that `bytes` changed.
    pub(super) fn mark(&mut self, bytes: &Range<u64>) {
        if matches!(self.kind(), Tracking::Marked | Tracking::Pages) {
            self.room_for_marks();
            self.marks.mark(bytes, self.block_bytes);
        }
    }

    /// Bytes of memory that marks take: as many however many there are.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.marks.memory_bytes() + self.taken.memory_bytes()
    }

    fn room_for_marks(&mut self) {
        if self.marks == BlockSet::default() {
            self.marks = BlockSet::new(self.blocks(), 0, 0);
            self.taken = self.marks.clone();
        }
    }

    /// Ends watching its pages.
    pub(super) fn unwatch(&mut self, tracker: Option<&mut PageTracker>) {
        if let (Some(pages), Some(tracker)) = (self.pages.watched.take(), tracker) {
            tracker.unregister(pages);
        }
    }

    /// Which blocks the checkpoint now beginning must hash.
    pub(super) fn candidates(
        &mut self,
        name: &str,
        region: &Region,
        tracker: Option<&mut PageTracker>,
    ) -> Result<Candidates> {
        if let (true, Some(tracker)) = (self.wants_pages(), tracker) {
            self.scan(name, region, tracker)?;
        }
        self.taken.take_from(&mut self.marks);
        let (looked, candidates) = match self.kind() {
            Tracking::Full => (Looked::All, Candidates::AllChanged),
            _ if self.unknown => (Looked::All, Candidates::All),
            Tracking::Marked if self.proven => self.some(MARKED_CHECK_STRIDE),
            // The first marks: if they name all that changed, they are believed from then on.
            Tracking::Marked if !self.taken.is_empty() => {
                let set = self.taken.checking(1, 0);
                (Looked::Proving, Candidates::Some(set))
            }
            Tracking::Pages if self.pages.watched.is_some() => self.some(PAGES_CHECK_STRIDE),
            Tracking::Hash | Tracking::Marked | Tracking::Pages => (Looked::All, Candidates::All),
        };
        self.looked = Some(looked);
        self.blocks_changed = 0;
        Ok(candidates)
    }

    fn some(&mut self, stride_max: usize) -> (Looked, Candidates) {
        let stride = to_u64(self.blocks().clamp(1, stride_max));
        self.checks = (self.checks + 1) % stride;
        let set = self.taken.checking(stride, self.checks);
        (Looked::Some(set.count()), Candidates::Some(set))
    }

    /// Takes note of the pages that were written; begins and ends watching them.
    fn scan(&mut self, name: &str, region: &Region, tracker: &mut PageTracker) -> Result<()> {
        let pages = &mut self.pages;
        if pages.resting && pages.quiet_turns >= pages.quiet_wanted {
            notice::info(&format!(
                "variable {name:?}: little of it changes now, so its pages are watched again"
            ));
            (pages.resting, pages.watched_turns) = (false, 0);
        }
        if pages.busy_turns >= PAGES_TURNS_MAX {
            let lasted = pages.watched_turns > pages.quiet_wanted.saturating_mul(2);
            let wanted = if lasted { 0 } else { pages.quiet_wanted * 2 };
            pages.quiet_wanted = wanted.clamp(QUIET_TURNS_MIN, QUIET_TURNS_MAX);
            (pages.resting, pages.busy_turns, pages.quiet_turns) = (true, 0, 0);
            notice::info(&format!(
                "variable {name:?}: more than a fifth of it changes from checkpoint to checkpoint, so \
                 it is tracked by hash until at most a tenth did {} times in a row",
                pages.quiet_wanted
            ));
            self.unwatch(Some(tracker));
        }
        if self.pages.resting {
            return Ok(());
        }
        let mut watched = match self.pages.watched.take() {
            Some(watched) => watched,
            None => watch(tracker, region)?,
        };
        let touched = tracker.scan(&mut watched);
        self.pages.watched = Some(watched);
        match touched? {
            Touched::All => self.unknown = true,
            Touched::Ranges(ranges) => {
                self.room_for_marks();
                for range in ranges {
                    let bytes = to_u64(range.start)..to_u64(range.end);
                    self.marks.mark(&bytes, self.block_bytes);
                }
            }
        }
        Ok(())
    }

    /// The checkpoint under way wrote so many blocks of it.
    pub(super) fn wrote(&mut self, blocks_changed: u64) {
        self.blocks_changed = blocks_changed;
    }

    /// The checkpoint under way was committed.
    pub(super) fn commit(&mut self, number: u64) {
        let Some(looked) = self.looked.take() else {
            return;
        };
        match looked {
            Looked::All | Looked::Proving => self.last_full = number,
            Looked::Some(_) => {}
        }
        self.proven |= looked == Looked::Proving;
        if self.wants_pages() {
            self.count_turn(looked);
        }
        self.taken.clear();
        self.unknown = false;
    }

    fn count_turn(&mut self, looked: Looked) {
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = |count: u64| count as f64 / self.blocks().max(1) as f64;
        let (busy, quiet) = match looked {
            Looked::Some(touched) => (share(touched) > PAGES_SHARE_MAX, false),
            Looked::All | Looked::Proving => (false, share(self.blocks_changed) <= QUIET_SHARE_MAX),
        };
        let pages = &mut self.pages;
        if pages.resting {
            pages.quiet_turns = if quiet { pages.quiet_turns + 1 } else { 0 };
        } else {
            pages.busy_turns = if busy { pages.busy_turns + 1 } else { 0 };
            pages.watched_turns = pages.watched_turns.saturating_add(1);
        }
    }

    /// The checkpoint under way was not committed: what it took is marked again.
    pub(super) fn roll_back(&mut self) {
        self.looked = None;
        self.marks.take_from(&mut self.taken);
    }

    /// All its memory was written by a restore.
    pub(super) fn written(&mut self) {
        self.unknown = true;
        self.marks.clear();
        self.taken.clear();
    }

    /// Checkpoint `number`, under way, found blocks changed of which nothing was said, and hashed every
    /// block therefore: so do all that follow.
    pub(super) fn contract_broken(
        &mut self,
        name: &str,
        blocks: u64,
        number: u64,
        tracker: Option<&mut PageTracker>,
    ) {
        let first = self.last_full + 1;
        let suspect = match number.saturating_sub(first) {
            0 => String::new(),
            1 => format!("checkpoint {first} is suspect in it, "),
            _ => format!("checkpoints {first} to {} are suspect in it, ", number - 1),
        };
        notice::warn(&format!(
            "variable {name:?}: {blocks} blocks changed though nothing said so (written by a device, or \
             not marked); {suspect}checkpoint {number} has it as it is, and from now on it is tracked \
             by hash"
        ));
        self.unwatch(tracker);
        self.broken = true;
        self.unknown = true;
        self.looked = self.looked.map(|_| Looked::All);
    }

    /// How changes are found now, and why not as asked.
    pub(super) fn now(&self) -> VariableTracking {
        let refusal = self.pages.watched.as_ref().map(PageRegion::refusal);
        let why = match self.asked {
            Tracking::Full | Tracking::Hash => None,
            _ if self.broken => Some("blocks changed though nothing said so"),
            _ if self.length <= HASHED_BYTES_MAX => Some("it has at most 64 KiB"),
            Tracking::Marked if self.proven => None,
            Tracking::Marked => Some("no marks have named all that changed yet"),
            Tracking::Pages if self.pages.resting => Some("more than a fifth of it changed"),
            Tracking::Pages => refusal.unwrap_or(Some("its pages are not watched")),
        };
        let name = |tracking| {
            let name = match tracking {
                Tracking::Full => "full",
                Tracking::Hash => "hash",
                Tracking::Pages => "pages",
                Tracking::Marked => "marked",
            };
            name.to_owned()
        };
        VariableTracking {
            now: name(if why.is_some() {
                Tracking::Hash
            } else {
                self.asked
            }),
            asked: name(self.asked),
            why: why.map(str::to_owned),
        }
    }
}
