// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the ranks of a node share while a job runs: the pool of segment slots, what each
//! rank has captured, and how far the commit is.
//! In from: every rank of the node. Out to: the same, through shared memory.
//! Invariants: words only, each written by atomic operations; nothing here outlives the job: it is
//! derived anew at opening, and a rank that died leaves nothing that must be undone.

mod glance;

pub use glance::ControlGlance;

use backstay_base::clock::{Deadline, Stopwatch};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::shared::SharedWords;
use backstay_format::{Address, BlockRef, CheckpointId, Digest, SegmentClass, SegmentId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Name of the file of these words in the folder of the store.
pub const CONTROL_FILE: &str = "control.backstay";

/// Most ranks of one node.
pub const LOCAL_RANKS_MAX: usize = 4096;

/// Whether a node may have so many ranks: more would write the words of segment slots.
pub fn check_local_ranks(count: usize) -> Result<()> {
    if count <= LOCAL_RANKS_MAX {
        return Ok(());
    }
    let context = format!(
        "{count} ranks on one node are more than {LOCAL_RANKS_MAX}; start fewer there, with more threads \
         each, or give parts of them a node of their own by BACKSTAY_NODE"
    );
    Err(Error::new(ErrorKind::Configuration, context))
}

const VERSION: u64 = 0x4253_4354_524c_0008;
const HEAD_WORDS: usize = 64;
const RANK_WORDS: usize = 16;
const SLOT_WORDS: usize = 5;

/// Ids of segments that are set apart for each start of a job. One that needs more takes those of the next.
const SEGMENTS_IN_START: u64 = 1 << 22;
/// Ids up to here have a place in the view that other nodes have of a store.
const SEGMENT_OF_START_MAX: u64 = 1 << 41;

const WORD_VERSION: usize = 0;
const WORD_SLOTS: usize = 1;
const WORD_NEXT_SEGMENT: usize = 2;
const WORD_GROWING: usize = 3;
const WORD_FAILED: usize = 4;
const WORD_CLAIM: usize = 5;
const WORD_DURABLE: usize = 6;
const WORD_OUTCOME: usize = 7;
const WORD_CREATED: usize = 8;
const WORD_SLOT_CAPACITY: usize = 9;
const WORD_ABANDONED: usize = 10;
const WORD_REDUNDANT: usize = 11;
const WORD_COMMITTED: usize = 12;
const WORD_PROTECTED: usize = 14;
const WORD_ROUND: usize = 16;
const WORD_STOP: usize = 17;
const WORD_ENCODING: usize = 18;
const WORD_ARCHIVED: usize = 20;
const WORD_ARCHIVING: usize = 22;
const WORD_ARCHIVE_OUTCOME: usize = 24;
const WORD_ARCHIVE_WANTED: usize = 26;
const WORD_ARCHIVE_PLANNED: usize = 28;
const WORD_DRAIN_MICROSECONDS: usize = 29;
const WORD_PROTECT_MICROSECONDS: usize = 30;
const WORD_FREE_FROM: usize = 31;
const WORD_START: usize = 32;
const WORD_LOGGED: usize = 34;
const WORD_PROTECTED_IN_GROUP: usize = 36;
const WORD_ALL_RECORDED: usize = 38;
const WORD_ONE_GROUP: usize = 39;

/// Bits of a mark that say how far the segment is sealed; those above tell segments apart.
const SEALED_BITS: u32 = 24;
const SEALED_MASK: u64 = (1 << SEALED_BITS) - 1;
/// Longest wait for another process that grows the store.
const GROWTH_PATIENCE: Duration = Duration::from_secs(1);
/// The mark of a slot that was given back.
const FREED: u64 = u64::MAX;
/// First and last checkpoint of a segment that none has used yet.
const UNUSED: u64 = 0xffff_ffff << 32;

/// Who holds a segment slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The rank with this index on the node.
    Rank(u32),
    /// The node's tables of ranks.
    Node,
    /// Ranks of an earlier start that are not on this node now.
    Former,
    /// The parity that this node keeps for others.
    Parity,
    /// Nobody, but parity still covers what it holds.
    Retired,
}

impl Owner {
    fn word(self) -> u64 {
        match self {
            Self::Rank(index) => u64::from(index) + 1,
            Self::Node => u64::from(u32::MAX) - 1,
            Self::Former => u64::from(u32::MAX),
            Self::Parity => u64::from(u32::MAX) - 2,
            Self::Retired => u64::from(u32::MAX) - 3,
        }
    }
}

/// What a rank tells the node's leader about its part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Post {
    /// 0, or the kind of the error that kept it from capturing.
    pub status: u64,
    /// Its rank in the job.
    pub rank: u32,
    /// Its root page.
    pub root: BlockRef,
    /// Bytes of its variables.
    pub bytes_total: u64,
    /// Bytes of the blocks written.
    pub bytes_changed: u64,
}

/// The shared words of a node.
#[derive(Debug, Clone)]
pub struct Control {
    words: SharedWords,
}

impl Control {
    /// Words needed for `slot_capacity` segment slots.
    pub fn words_for(slot_capacity: u64) -> usize {
        let slots = usize::try_from(slot_capacity).unwrap_or(usize::MAX);
        HEAD_WORDS + LOCAL_RANKS_MAX * RANK_WORDS + slots.saturating_mul(SLOT_WORDS)
    }

    /// Starts a start: all words are zero but the version.
    pub fn start(words: SharedWords, slot_capacity: u64) -> Result<Self> {
        if words.len() < Self::words_for(slot_capacity) {
            return Err(Error::new(ErrorKind::Internal, "control words are too few"));
        }
        let control = Self { words };
        control
            .word(WORD_SLOT_CAPACITY)
            .store(slot_capacity, Ordering::Relaxed);
        control.word(WORD_VERSION).store(VERSION, Ordering::Release);
        Ok(control)
    }

    /// Joins a start that another rank started.
    pub fn join(words: SharedWords) -> Result<Self> {
        if words.len() < HEAD_WORDS || words[WORD_VERSION].load(Ordering::Acquire) != VERSION {
            let context = "the node's control file is of another version of Backstay";
            return Err(Error::new(ErrorKind::Configuration, context));
        }
        let control = Self { words };
        if control.words.len() < Self::words_for(control.slot_capacity()) {
            return Err(Error::new(
                ErrorKind::Internal,
                "the control file is too short",
            ));
        }
        Ok(control)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words[index]
    }

    fn slot_word(&self, slot: u64, which: usize) -> &AtomicU64 {
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        &self.words[HEAD_WORDS + LOCAL_RANKS_MAX * RANK_WORDS + slot * SLOT_WORDS + which]
    }

    fn rank_word(&self, local: u32, which: usize) -> &AtomicU64 {
        &self.words[HEAD_WORDS + backstay_format::width::index(local) * RANK_WORDS + which]
    }

    /// Segment slots this control can describe.
    pub fn slot_capacity(&self) -> u64 {
        self.word(WORD_SLOT_CAPACITY).load(Ordering::Acquire)
    }

    /// Segment slots of the store.
    pub fn slots(&self) -> u64 {
        self.word(WORD_SLOTS).load(Ordering::Acquire)
    }
    /// Publishes the number of segment slots.
    pub fn set_slots(&self, slots: u64) {
        self.word(WORD_SLOTS).store(slots, Ordering::Release);
    }
    /// Says that there are at least so many segments.
    pub fn add_slots_up_to(&self, slots: u64) {
        self.word(WORD_SLOTS).fetch_max(slots, Ordering::AcqRel);
    }

    /// The next segment id, taken.
    pub fn take_segment_id(&self) -> SegmentId {
        SegmentId(self.word(WORD_NEXT_SEGMENT).fetch_add(1, Ordering::AcqRel))
    }
    /// The next segment id, not taken.
    pub fn next_segment(&self) -> u64 {
        self.word(WORD_NEXT_SEGMENT).load(Ordering::Acquire)
    }
    /// Sets the next segment id.
    pub fn set_next_segment(&self, next: u64) {
        self.word(WORD_NEXT_SEGMENT).store(next, Ordering::Release);
    }

    /// From now on no id up to `segment` is given out.
    pub fn pass_segment(&self, segment: SegmentId) {
        let next = segment.0.saturating_add(1);
        self.word(WORD_NEXT_SEGMENT)
            .fetch_max(next, Ordering::AcqRel);
    }
    /// From now on ids are those of the start of `incarnation`. A store that was brought back from an earlier
    /// time does not know which ids were given out since; logs of its group, which do, name them.
    pub fn number_in_start(&self, incarnation: u64) {
        let first = incarnation.saturating_mul(SEGMENTS_IN_START);
        if first <= SEGMENT_OF_START_MAX {
            self.pass_segment(SegmentId(first));
        }
    }

    /// Publishes that `slot` holds `segment`.
    pub fn describe_slot(&self, slot: u64, segment: SegmentId, class: SegmentClass) {
        let word = (segment.0 << 8) | u64::from(class as u8);
        self.slot_word(slot, 1).store(word, Ordering::Release);
    }
    /// What `slot` holds, if anything was ever put there.
    pub fn slot_segment(&self, slot: u64) -> Option<(SegmentId, SegmentClass)> {
        let word = self.slot_word(slot, 1).load(Ordering::Acquire);
        let class = u8::try_from(word & 0xff)
            .ok()
            .and_then(SegmentClass::from_id)?;
        Some((SegmentId(word >> 8), class))
    }

    /// Takes a free slot for `owner`: the first one, but where somebody gives one back just now.
    pub fn take_slot(&self, owner: Owner) -> Option<u64> {
        self.find_slot(owner).0
    }
    /// The same, and how many slots were looked at: from where the last one was taken or given back, so
    /// that filling a store is no search from its front each time.
    fn find_slot(&self, owner: Owner) -> (Option<u64>, u64) {
        let slots = self.slots();
        let word = self.word(WORD_FREE_FROM);
        let from = word.load(Ordering::Acquire);
        for step in 0..slots {
            let slot = (from + step) % slots;
            if self.try_slot(slot, owner) {
                // Only a hint: if it changed meanwhile, a slot before this one may be free.
                let (Ok(_) | Err(_)) =
                    word.compare_exchange(from, slot + 1, Ordering::AcqRel, Ordering::Relaxed);
                return (Some(slot), step + 1);
            }
        }
        (None, slots)
    }
    /// Takes `slot` for `owner` if it is free.
    pub fn try_slot(&self, slot: u64, owner: Owner) -> bool {
        let word = self.slot_word(slot, 0);
        word.load(Ordering::Relaxed) == 0
            && word
                .compare_exchange(0, owner.word(), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }
    /// Gives a slot back.
    pub fn free_slot(&self, slot: u64) {
        // Before anybody can take it: what stood here is not sealed under the next segment's id.
        self.slot_word(slot, 3).store(FREED, Ordering::Release);
        self.set_filled(slot, 0);
        self.slot_word(slot, 0).store(0, Ordering::Release);
        self.word(WORD_FREE_FROM).fetch_min(slot, Ordering::AcqRel);
    }
    /// Gives all slots of `owner` back.
    pub fn free_slots_of(&self, owner: Owner) {
        for slot in 0..self.slots() {
            if self.slot_word(slot, 0).load(Ordering::Acquire) == owner.word() {
                self.free_slot(slot);
            }
        }
    }
    /// Takes `slot` from its owner, who needs it no longer, while parity may still cover it.
    pub fn retire_slot(&self, slot: u64) {
        self.slot_word(slot, 0)
            .store(Owner::Retired.word(), Ordering::Release);
    }
    /// Whether `slot` is retired.
    pub fn is_retired(&self, slot: u64) -> bool {
        self.slot_word(slot, 0).load(Ordering::Acquire) == Owner::Retired.word()
    }
    /// Whether `slot` holds what a revision of this node may use.
    pub fn is_of_revisions(&self, slot: u64) -> bool {
        let owner = self.slot_word(slot, 0).load(Ordering::Acquire);
        owner != 0 && owner != Owner::Retired.word() && owner != Owner::Parity.word()
    }
    /// Whether `slot` holds `segment` for somebody, if only for parity.
    pub fn holds(&self, slot: u64, segment: SegmentId) -> bool {
        let held = self.slot_word(slot, 0).load(Ordering::Acquire) != 0;
        held && self
            .slot_segment(slot)
            .is_some_and(|(found, _)| found == segment)
    }
    /// Publishes that the first `bytes` of the segment in `slot` are written for good.
    pub fn set_filled(&self, slot: u64, bytes: u64) {
        self.slot_word(slot, 2).store(bytes, Ordering::Release);
    }
    /// How far the segment in `slot` is written, in bytes.
    pub fn filled(&self, slot: u64) -> u64 {
        self.slot_word(slot, 2).load(Ordering::Acquire)
    }
    /// Publishes that of `segment`, which stands in `slot` from now on, nothing is durable.
    pub fn set_unsealed(&self, slot: u64, segment: SegmentId) {
        let word = segment.0 << SEALED_BITS;
        self.slot_word(slot, 3).store(word, Ordering::Release);
    }
    /// Publishes that the segment in `slot` is a new one, which no checkpoint uses.
    pub fn set_unused(&self, slot: u64) {
        self.slot_word(slot, 4).store(UNUSED, Ordering::Release);
    }
    /// Publishes that checkpoint `number` uses the segment in `slot`. Numbers only grow. The segment's owner says so.
    pub fn set_used(&self, slot: u64, number: u64) {
        let word = self.slot_word(slot, 4);
        let first = match word.load(Ordering::Acquire) {
            UNUSED => number,
            used => used >> 32,
        };
        // What has no place here is not known.
        let is_small = number < UNUSED >> 32;
        let used = if is_small { first << 32 | number } else { 0 };
        word.store(used, Ordering::Release);
    }
    /// Whether checkpoint `number` may use the segment in `slot`. Of one that was found at the opening, and of which
    /// nothing was published since, it is not known.
    pub fn may_use(&self, slot: u64, number: u64) -> bool {
        let used = self.slot_word(slot, 4).load(Ordering::Acquire);
        let (first, last) = (used >> 32, used & 0xffff_ffff);
        last == 0 || (first <= number && number <= last)
    }
    /// The mark of `slot`: it says which segment and how much of it is sealed.
    pub fn mark(&self, slot: u64) -> u64 {
        self.slot_word(slot, 3).load(Ordering::Acquire)
    }
    /// Publishes that the first `bytes` of the segment in `slot` are durable: of the one that had `mark`
    /// before the sync. If the slot was given back since, nothing is published.
    pub fn set_sealed(&self, slot: u64, mark: u64, bytes: u64) {
        if mark == FREED {
            return;
        }
        let sealed = (mark & !SEALED_MASK) | (bytes & SEALED_MASK);
        let word = self.slot_word(slot, 3);
        let (Ok(_) | Err(_)) =
            word.compare_exchange(mark, sealed, Ordering::AcqRel, Ordering::Relaxed);
    }
    /// How much of the segment in `slot` is durable and will not change, in bytes.
    pub fn sealed(&self, slot: u64) -> u64 {
        match self.mark(slot) {
            FREED => 0,
            mark => mark & SEALED_MASK,
        }
    }

    /// Says whether parity protects this node's segments, so that only whole segments are reused.
    pub fn set_redundant(&self, redundant: bool) {
        self.word(WORD_REDUNDANT)
            .store(u64::from(redundant), Ordering::Release);
    }
    /// Whether parity protects this node's segments.
    pub fn redundant(&self) -> bool {
        self.word(WORD_REDUNDANT).load(Ordering::Acquire) != 0
    }

    /// Publishes the newest checkpoint that this node has committed.
    pub fn set_committed(&self, id: CheckpointId) {
        self.set_checkpoint(WORD_COMMITTED, id);
    }
    /// The newest checkpoint that this node has committed.
    pub fn committed(&self) -> CheckpointId {
        self.checkpoint(WORD_COMMITTED)
    }
    /// Publishes the newest checkpoint that is protected on all nodes.
    pub fn set_protected(&self, id: CheckpointId) {
        self.set_checkpoint(WORD_PROTECTED, id);
    }
    /// The newest checkpoint that is protected on all nodes.
    pub fn protected(&self) -> CheckpointId {
        self.checkpoint(WORD_PROTECTED)
    }
    /// Publishes the newest checkpoint that this node's group protects.
    pub fn set_protected_in_group(&self, id: CheckpointId) {
        self.set_checkpoint(WORD_PROTECTED_IN_GROUP, id);
    }
    /// The newest checkpoint that this node's group protects, of rounds of this start.
    pub fn protected_in_group(&self) -> CheckpointId {
        self.checkpoint(WORD_PROTECTED_IN_GROUP)
    }
    /// Says whether this node's group is all of the job: what it has protected the job has.
    pub fn set_one_group(&self, one: bool) {
        self.word(WORD_ONE_GROUP)
            .store(u64::from(one), Ordering::Release);
    }
    /// Whether this node's group is all of the job.
    pub fn one_group(&self) -> bool {
        self.word(WORD_ONE_GROUP).load(Ordering::Acquire) != 0
    }
    /// Says that every group of the job has recorded a round in this start.
    pub fn set_all_recorded(&self) {
        self.word(WORD_ALL_RECORDED).store(1, Ordering::Release);
    }
    /// Whether every group of the job has recorded a round in this start.
    pub fn all_recorded(&self) -> bool {
        self.word(WORD_ALL_RECORDED).load(Ordering::Acquire) != 0
    }
    /// Publishes the checkpoint that this node's stripe log protects: those of other groups may name another.
    pub fn set_logged(&self, id: CheckpointId) {
        self.set_checkpoint(WORD_LOGGED, id);
    }
    /// The checkpoint that this node's stripe log protected when a start began.
    pub fn logged(&self) -> CheckpointId {
        self.checkpoint(WORD_LOGGED)
    }
    /// Publishes the checkpoint that is being encoded.
    pub fn set_encoding(&self, id: CheckpointId) {
        self.set_checkpoint(WORD_ENCODING, id);
    }
    /// The checkpoint that is being encoded, or was last.
    pub fn encoding(&self) -> CheckpointId {
        self.checkpoint(WORD_ENCODING)
    }
    /// Publishes that this start of the job has begun: what an earlier one had not committed it never will.
    pub fn set_start(&self, incarnation: u64) {
        self.word(WORD_START).store(incarnation, Ordering::Release);
    }
    /// Whether checkpoint `id` may still be committed, if it is not yet.
    pub fn may_commit(&self, id: CheckpointId) -> bool {
        self.word(WORD_START).load(Ordering::Acquire) <= id.incarnation
    }
    /// Publishes the newest checkpoint that is in the archive as a whole.
    pub fn set_archived(&self, id: CheckpointId) {
        self.set_checkpoint(WORD_ARCHIVED, id);
    }
    /// The newest checkpoint that is in the archive as a whole.
    pub fn archived(&self) -> CheckpointId {
        self.checkpoint(WORD_ARCHIVED)
    }
    /// What is newer than `id` is abandoned: it protects nothing of what comes, whose numbers may be lower.
    pub fn forget_protection_after(&self, id: CheckpointId) {
        for word in [WORD_PROTECTED, WORD_PROTECTED_IN_GROUP, WORD_ENCODING] {
            if self.checkpoint(word) > id {
                self.set_checkpoint(word, CheckpointId::default());
            }
        }
    }
    /// What is newer than `id` is abandoned: of the archive nothing is known any more but what is told anew.
    pub fn forget_archive_after(&self, id: CheckpointId) {
        for word in [WORD_ARCHIVED, WORD_ARCHIVING] {
            if self.checkpoint(word) > id {
                self.set_checkpoint(word, CheckpointId::default());
            }
        }
        self.set_archive_wanted(CheckpointId::default());
    }
    /// Publishes the checkpoint that is being drained.
    pub fn set_archiving(&self, id: CheckpointId) {
        self.set_checkpoint(WORD_ARCHIVING, id);
    }
    /// The checkpoint that is being drained, or was last.
    pub fn archiving(&self) -> CheckpointId {
        self.checkpoint(WORD_ARCHIVING)
    }
    /// Publishes that this checkpoint is to be in the archive: somebody waits for it, or the planner
    /// picked it.
    pub fn set_archive_wanted(&self, id: CheckpointId) {
        self.set_checkpoint(WORD_ARCHIVE_WANTED, id);
    }
    /// The newest checkpoint that is to be in the archive though no rule says so.
    pub fn archive_wanted(&self) -> CheckpointId {
        self.checkpoint(WORD_ARCHIVE_WANTED)
    }
    /// Says that the planner picks the checkpoints that drain: no other is due.
    pub fn set_archive_planned(&self) {
        self.word(WORD_ARCHIVE_PLANNED).store(1, Ordering::Release);
    }
    /// Whether the planner picks the checkpoints that drain.
    pub fn archive_planned(&self) -> bool {
        self.word(WORD_ARCHIVE_PLANNED).load(Ordering::Acquire) != 0
    }
    /// Publishes how long the last drain took; before the checkpoint itself.
    pub fn set_drain_seconds(&self, seconds: f64) {
        self.set_seconds(WORD_DRAIN_MICROSECONDS, seconds);
    }
    /// How long the last drain took, if one ended well.
    pub fn drain_seconds(&self) -> Option<f64> {
        self.seconds(WORD_DRAIN_MICROSECONDS)
    }
    /// Publishes how long it took to protect the last checkpoint.
    pub fn set_protect_seconds(&self, seconds: f64) {
        self.set_seconds(WORD_PROTECT_MICROSECONDS, seconds);
    }
    /// How long it took to protect the last checkpoint, if one was.
    pub fn protect_seconds(&self) -> Option<f64> {
        self.seconds(WORD_PROTECT_MICROSECONDS)
    }
    fn set_seconds(&self, at: usize, seconds: f64) {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        // 0 says that nothing was measured.
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        self.word(at).store(microseconds, Ordering::Release);
    }
    fn seconds(&self, at: usize) -> Option<f64> {
        let microseconds = self.word(at).load(Ordering::Acquire);
        (microseconds > 0).then(|| Duration::from_micros(microseconds).as_secs_f64())
    }
    /// Publishes how the last drain ended: 0, or the kind of an error.
    pub fn set_archive_outcome(&self, outcome: u64) {
        self.word(WORD_ARCHIVE_OUTCOME)
            .store(outcome, Ordering::Release);
    }
    /// How the last drain ended: 0, or the kind of an error.
    pub fn archive_outcome(&self) -> u64 {
        self.word(WORD_ARCHIVE_OUTCOME).load(Ordering::Acquire)
    }
    /// Between two starts there is none, so that nobody reads the number of one with the other's
    /// incarnation.
    fn set_checkpoint(&self, at: usize, id: CheckpointId) {
        if self.word(at + 1).load(Ordering::Acquire) != id.incarnation {
            self.word(at).store(0, Ordering::Release);
            self.word(at + 1).store(id.incarnation, Ordering::Release);
        }
        self.word(at).store(id.number, Ordering::Release);
    }
    fn checkpoint(&self, at: usize) -> CheckpointId {
        loop {
            let number = self.word(at).load(Ordering::Acquire);
            let incarnation = self.word(at + 1).load(Ordering::Acquire);
            if number == 0 {
                return CheckpointId::default();
            }
            if self.word(at).load(Ordering::Acquire) == number {
                return CheckpointId::new(incarnation, number);
            }
        }
    }

    /// Publishes how the last protection round ended: its number, and 0 or the kind of an error.
    pub fn set_round(&self, round: u64, outcome: u64) {
        let word = (round << 8) | (outcome & 0xff);
        self.word(WORD_ROUND).store(word, Ordering::Release);
    }
    /// The last protection round that ended, and how.
    pub fn round(&self) -> (u64, u64) {
        let word = self.word(WORD_ROUND).load(Ordering::Acquire);
        (word >> 8, word & 0xff)
    }

    /// Says that the session is closing: the agent need not wait for more checkpoints.
    pub fn set_stopping(&self) {
        self.word(WORD_STOP).store(1, Ordering::Release);
    }
    /// Whether the session is closing.
    pub fn stopping(&self) -> bool {
        self.word(WORD_STOP).load(Ordering::Acquire) != 0
    }

    /// Slots nobody holds.
    pub fn free_slots(&self) -> u64 {
        let free = |slot: &u64| self.slot_word(*slot, 0).load(Ordering::Relaxed) == 0;
        backstay_format::width::to_u64((0..self.slots()).filter(free).count())
    }

    /// Runs `grow` unless another process is growing the store; then waits for that. Who grows may die of
    /// it, an agent alone: after a second another one grows, so `grow` must bear to run twice at once.
    pub fn growing<T>(&self, grow: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        let word = self.word(WORD_GROWING);
        let found = word.load(Ordering::Acquire);
        if found % 2 == 1 {
            let over = || word.load(Ordering::Acquire) != found;
            if wait_until("another rank to grow the store", GROWTH_PATIENCE, over).is_ok() {
                return Ok(None);
            }
        }
        // Odd while somebody grows, and never the same twice: who comes back late ends nobody's turn.
        let mine = (found + 1) | 1;
        let exchange =
            |old, new| word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
        if exchange(found, mine).is_err() {
            return Ok(None);
        }
        let grown = grow();
        // Another one has the turn by now, or nobody does.
        exchange(mine, mine + 1).ok();
        grown.map(Some)
    }

    /// Marks the store failed: a sync did not succeed.
    pub fn set_failed(&self) {
        self.word(WORD_FAILED).store(1, Ordering::Release);
    }
    /// Whether the store failed in this start.
    pub fn failed(&self) -> bool {
        self.word(WORD_FAILED).load(Ordering::Acquire) != 0
    }

    /// Publishes that the store exists (1) or could not be made (the turn, and in its low byte the
    /// error's kind).
    pub fn set_created(&self, outcome: u64) {
        self.word(WORD_CREATED).store(outcome, Ordering::Release);
    }
    /// 0 while the store does not exist yet.
    pub fn created(&self) -> u64 {
        self.word(WORD_CREATED).load(Ordering::Acquire)
    }

    /// Publishes what `local` needs in bytes, as of commit `turn`, which makes the store.
    pub fn set_need(&self, local: u32, turn: u64, bytes: u64) {
        self.rank_word(local, 9).store(bytes, Ordering::Relaxed);
        self.rank_word(local, 10).store(turn, Ordering::Release);
    }
    /// What `local` needs as of commit `turn`; `None` until it said so.
    pub fn need(&self, local: u32, turn: u64) -> Option<u64> {
        let said = self.rank_word(local, 10).load(Ordering::Acquire) == turn;
        said.then(|| self.rank_word(local, 9).load(Ordering::Relaxed))
    }

    /// Publishes rank `local`'s part of commit `turn`.
    pub fn post(&self, local: u32, turn: u64, post: &Post) {
        let (low, high) = post.root.digest.0.split_at(8);
        let half = |bytes: &[u8]| {
            bytes
                .iter()
                .rev()
                .fold(0, |sum, &b| (sum << 8) | u64::from(b))
        };
        let values = [
            post.status,
            u64::from(post.rank),
            post.root.address.0,
            half(low),
            half(high),
            post.bytes_total,
            post.bytes_changed,
        ];
        for (which, value) in (1..).zip(values) {
            self.rank_word(local, which).store(value, Ordering::Relaxed);
        }
        self.rank_word(local, 0).store(turn, Ordering::Release);
    }

    /// Rank `local`'s part of commit `turn`, once it is there.
    pub fn posted(&self, local: u32, turn: u64) -> Option<Post> {
        if self.rank_word(local, 0).load(Ordering::Acquire) != turn {
            return None;
        }
        let value = |which| self.rank_word(local, which).load(Ordering::Relaxed);
        let mut digest = [0; 16];
        digest[..8].copy_from_slice(&value(4).to_le_bytes());
        digest[8..].copy_from_slice(&value(5).to_le_bytes());
        Some(Post {
            status: value(1),
            rank: u32::try_from(value(2)).unwrap_or(u32::MAX),
            root: BlockRef {
                address: Address(value(3)),
                digest: Digest(digest),
            },
            bytes_total: value(6),
            bytes_changed: value(7),
        })
    }

    /// Makes `local` the one that commits `turn`; `from` is who had the claim before, if anyone.
    pub fn claim_commit(&self, turn: u64, local: u32, from: Option<u32>) -> bool {
        let claim = |who: u32| (turn << 16) | (u64::from(who) + 1);
        let word = self.word(WORD_CLAIM);
        let found = word.load(Ordering::Acquire);
        let free = found >> 16 < turn || from.is_some_and(|who| found == claim(who));
        let claimed = claim(local);
        found == claimed
            || free
                && word
                    .compare_exchange(found, claimed, Ordering::AcqRel, Ordering::Acquire)
                    .is_ok()
    }

    /// Publishes how commit `turn` ended on this node: 0, or the kind of an error.
    pub fn set_durable(&self, turn: u64, outcome: u64) {
        self.word(WORD_OUTCOME).store(outcome, Ordering::Relaxed);
        self.word(WORD_DURABLE).store(turn, Ordering::Release);
    }
    /// Publishes that the root names commit `turn`, which failed, no longer.
    pub fn set_abandoned(&self, turn: u64) {
        self.word(WORD_ABANDONED).store(turn, Ordering::Release);
    }
    /// The newest failed commit that the root does not name.
    pub fn abandoned(&self) -> u64 {
        self.word(WORD_ABANDONED).load(Ordering::Acquire)
    }

    /// How commit `turn` ended on this node, once it has.
    pub fn durable(&self, turn: u64) -> Option<u64> {
        let reached = self.word(WORD_DURABLE).load(Ordering::Acquire) >= turn;
        reached.then(|| self.word(WORD_OUTCOME).load(Ordering::Relaxed))
    }
}

/// The longest sleep between two looks.
const LOOK_MAX: Duration = Duration::from_millis(5);

/// How long to sleep before the next look, after having waited for `waited`: what came late is noticed later by a
/// 32nd of that, so that a thousand processes of a host that wait for one of them leave it the processor.
fn look_after(waited: Duration) -> Duration {
    (waited / 32).clamp(Duration::from_micros(500), LOOK_MAX)
}

/// Waits until `ready`, first yielding the processor, then sleeping; gives up after `limit`.
pub fn wait_until(what: &str, limit: Duration, ready: impl Fn() -> bool) -> Result<()> {
    let (deadline, since) = (Deadline::after(limit), Stopwatch::start());
    let mut turns = 0u32;
    while !ready() {
        let Some(left) = deadline.left() else {
            let context = format!("waited {} ms for {what}", limit.as_millis());
            return Err(Error::new(ErrorKind::Timeout, context));
        };
        // What comes soon is noticed soon; what takes long costs no processor.
        match turns {
            0..200 => std::thread::yield_now(),
            200..240 => std::thread::sleep(Duration::from_micros(100)),
            _ => std::thread::sleep(look_after(since.elapsed()).min(left)),
        }
        turns = turns.saturating_add(1);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
