// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: makes a revision durable on its node: table of ranks, sync, root in the other slot, sync.
//! In from: what the node's ranks posted. Out: a root on the device.
//! Invariants: one process of the node commits at a time; the previous root and all it retains are
//! untouched until the new root is durable; at most two syncs; what a root drops for a checkpoint is named
//! again when that one is given up.

use super::capture::Capturer;
use super::control::{Owner, Post};
use super::reader::RootSlots;
use super::reserve::Reserve;
use super::space::{Reuse, Space};
use super::tree::Tree;
use crate::track::Candidates;
use backstay_base::clock::unix_ns;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::two_slots::TwoSlots;
use backstay_format::limits::{INTERNAL_BLOCK_BYTES, REVISIONS_MAX};
use backstay_format::{CheckpointId, Lineage, RankEntry, RevisionEntry, RootSlot, StreamRoot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// What a commit must know of the job.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Newest checkpoints to keep.
    pub retained: usize,
    /// Checkpoints known to be committed by every rank.
    pub complete: BTreeSet<CheckpointId>,
    /// Kept until unpinned.
    pub pinned: BTreeSet<CheckpointId>,
    /// The newest that survives the loss of nodes: kept until a newer one does.
    pub protected: Option<CheckpointId>,
    /// What some group encodes, or protects already, and others not yet, as far as a vote tells: kept until the job
    /// has it.
    pub in_groups: BTreeSet<CheckpointId>,
    /// The one that is being drained: kept until it is in the archive.
    pub archiving: Option<CheckpointId>,
}

/// Checkpoints that may have to stay beside the newest and the pinned: the protected one, three that some group encodes
/// or protects, the one that is being drained.
const LAGGING_MAX: usize = 5;

impl Policy {
    /// Most checkpoints that may be pinned where the newest `retained` stay: a root has room for them and
    /// for all that it must name besides.
    pub fn pins_max(retained: usize) -> usize {
        REVISIONS_MAX.saturating_sub(retained.max(1) + LAGGING_MAX)
    }

    /// What stays once `newest` is being committed, or is committed: it, the pinned ones, those that
    /// protection and draining need, and the newest complete ones, `retained` with it. Never more than a
    /// root has room for: with the pins of a start that retained fewer, fewer are retained.
    pub fn keeps(&self, newest: Option<CheckpointId>) -> BTreeSet<CheckpointId> {
        let mut keep: BTreeSet<CheckpointId> = newest.into_iter().collect();
        keep.extend(self.pinned.intersection(&self.complete));
        keep.extend(self.in_groups.intersection(&self.complete));
        for id in [self.protected, self.archiving].into_iter().flatten() {
            keep.extend(self.complete.get(&id));
        }
        let others = self.retained.saturating_sub(usize::from(newest.is_some()));
        let complete = self.complete.iter().rev().filter(|id| Some(**id) != newest);
        for id in complete.take(others) {
            if keep.len() < REVISIONS_MAX {
                keep.insert(*id);
            }
        }
        keep
    }
}

/// The durable state of a node's store, and the space of its tables of ranks.
#[derive(Debug)]
pub struct NodeStore {
    reserve: Reserve,
    roots: TwoSlots<RootSlots>,
    space: Mutex<Space>,
    former: Space,
    /// What the root named before the checkpoint that is not decided yet: it stays where it is until then.
    dropped: BTreeMap<CheckpointId, RevisionEntry>,
}

impl NodeStore {
    /// The store as recovery found it.
    pub fn new(
        reserve: Reserve,
        roots: TwoSlots<RootSlots>,
        mut space: Space,
        former: Space,
    ) -> Self {
        space.begin_from(None);
        Self {
            reserve,
            roots,
            space: Mutex::new(space),
            former,
            dropped: BTreeMap::new(),
        }
    }

    /// The store as a rank sees it that may have to take over the leader's commit.
    pub fn successor(reserve: Reserve, roots: TwoSlots<RootSlots>) -> Self {
        let segment_bytes = reserve.geometry().segment_bytes;
        Self::new(
            reserve,
            roots,
            Space::new(segment_bytes),
            Space::new(segment_bytes),
        )
    }

    /// From now on only so much of the node's own space is written again.
    pub fn set_reuse(&mut self, reuse: Reuse) {
        let mut space = self.space();
        space.set_reuse(reuse);
        space.publish(&self.reserve.pool(Owner::Node), None);
        drop(space);
        self.former.set_reuse(reuse);
        self.former.publish(&self.reserve.pool(Owner::Former), None);
    }

    /// What stands in the store is durable: says so of each segment, and of checkpoint `id`.
    pub fn seal(&self, id: CheckpointId) -> Result<()> {
        self.reserve.seal()?;
        self.reserve.control().set_committed(id);
        Ok(())
    }

    /// The newest durable root.
    pub fn root(&self) -> &RootSlot {
        self.roots.state()
    }

    /// The same store seen by a rank that takes over: its root is read again, and made durable, since who
    /// wrote it may have come no further.
    pub fn reload(&mut self) -> Result<()> {
        let reader = self.reserve.reader();
        let roots = TwoSlots::open_as(&self.reserve, reader.root_slots(), reader.unread())?;
        let before = std::mem::replace(&mut self.roots, roots);
        self.may_drop(&before.state().revisions);
        Ok(())
    }

    /// Commits the posted parts as checkpoint `id`; durable on return. `still_mine` is asked last
    /// before the root is written.
    pub fn commit(
        &mut self,
        id: CheckpointId,
        world_size: u32,
        posts: &[Post],
        policy: &Policy,
        still_mine: impl Fn() -> bool,
    ) -> Result<()> {
        let ranks = self.table(posts)?;
        self.space()
            .publish(&self.reserve.pool(Owner::Node), Some(id));
        self.reserve.seal()?;
        let mut revisions = self.kept(&policy.keeps(Some(id)), |of| RevisionEntry {
            pinned: policy.pinned.contains(&of.checkpoint),
            ..of
        });
        revisions.retain(|revision| revision.checkpoint < id);
        revisions.push(RevisionEntry {
            checkpoint: id,
            pinned: policy.pinned.contains(&id),
            complete: false,
            world_size,
            committed_unix_ns: unix_ns(),
            bytes_total: posts.iter().map(|post| post.bytes_total).sum(),
            bytes_changed: posts.iter().map(|post| post.bytes_changed).sum(),
            ranks,
        });
        if !still_mine() {
            let context = "another rank of this node took over the commit";
            return Err(Error::new(ErrorKind::Timeout, context));
        }
        let before = self.root().revisions.clone();
        let lineage = self.root().lineage;
        self.write_root((id.incarnation, lineage), revisions, false)?;
        self.may_drop(&before);
        self.reserve.control().set_committed(id);
        Ok(())
    }

    /// Opens the new start of `lineage` at checkpoint `from`, which was restored: durably abandons every later
    /// revision, every one that is not complete, and those that this start does not keep, whose space it writes
    /// again.
    pub fn begin_start(
        &mut self,
        lineage: Lineage,
        from: CheckpointId,
        policy: &Policy,
    ) -> Result<()> {
        let mut revisions = self.kept(&policy.keeps(None), |of| of);
        revisions.retain(|revision| revision.checkpoint <= from);
        self.roots.write_over_given_up();
        self.write_root((lineage.start, lineage), revisions, false)?;
        self.dropped.clear();
        // From now on it is this start's newest that a slot may hold.
        self.reserve.reader().give_up_unread(false);
        self.reserve.control().set_start(lineage.start);
        Ok(())
    }

    /// Opens the new start of `lineage`, which goes on from nothing, and gives nothing up.
    pub fn name_start(&mut self, lineage: Lineage) -> Result<()> {
        let revisions = self.root().revisions.clone();
        self.write_root((lineage.start, lineage), revisions, false)?;
        self.reserve.control().set_start(lineage.start);
        Ok(())
    }

    /// Writes the state again with what is known by now: completeness, pins, the goodbye.
    pub fn note(&mut self, policy: &Policy, closed: bool) -> Result<()> {
        if closed && self.roots.given_up().is_some() {
            // Nothing was restored, so nothing is given up for a goodbye.
            return Ok(());
        }
        self.note_as(policy, closed, self.root().lineage)
    }

    /// The same, and that the program is done: no later start goes on from here unless it is told to.
    pub fn finish(&mut self, policy: &Policy) -> Result<()> {
        let lineage = Lineage {
            finished: true,
            ..self.root().lineage
        };
        self.note_as(policy, true, lineage)
    }

    fn note_as(&mut self, policy: &Policy, closed: bool, lineage: Lineage) -> Result<()> {
        let revisions = self.kept(&policy.keeps(None), |of| RevisionEntry {
            pinned: policy.pinned.contains(&of.checkpoint),
            ..of
        });
        self.write_root((self.root().incarnation, lineage), revisions, closed)
    }

    /// What of the root, and of what it named before a checkpoint that is not decided, is complete and stays: in
    /// order.
    fn kept(
        &self,
        keep: &BTreeSet<CheckpointId>,
        as_entry: impl Fn(RevisionEntry) -> RevisionEntry,
    ) -> Vec<RevisionEntry> {
        let all = self.dropped.values().chain(&self.root().revisions);
        let kept: BTreeMap<CheckpointId, RevisionEntry> = all
            .filter(|revision| keep.contains(&revision.checkpoint))
            .map(|revision| (revision.checkpoint, *revision))
            .collect();
        let complete = |of| RevisionEntry {
            complete: true,
            ..as_entry(of)
        };
        kept.into_values().map(complete).collect()
    }

    /// `revisions` were named until now.
    fn may_drop(&mut self, revisions: &[RevisionEntry]) {
        let entries = revisions.iter().map(|of| (of.checkpoint, *of));
        self.dropped.extend(entries);
    }

    fn write_root(
        &mut self,
        (incarnation, lineage): (u64, Lineage),
        revisions: Vec<RevisionEntry>,
        closed: bool,
    ) -> Result<()> {
        let root = RootSlot {
            store: self.root().store,
            sequence: self.roots.next_sequence(),
            incarnation: self.root().incarnation.max(incarnation),
            next_segment: self.reserve.control().next_segment(),
            closed,
            lineage,
            revisions,
        };
        self.roots.write(&self.reserve, root)
    }

    fn space(&self) -> std::sync::MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table of the posted ranks: the newest revision's if it is the same, else written anew.
    fn table(&mut self, posts: &[Post]) -> Result<StreamRoot> {
        let mut entries: Vec<RankEntry> = posts
            .iter()
            .map(|post| RankEntry {
                rank: post.rank,
                root: post.root,
            })
            .collect();
        entries.sort_by_key(|entry| entry.rank);
        // A table that another rank wrote when it took over is in its space, not in ours.
        if let Some(newest) = self.root().revisions.last()
            && self.space().owns(newest.ranks.top.address.segment())
            && super::revision::read_ranks(self.reserve.reader(), newest)
                .is_ok_and(|committed| committed == entries)
        {
            let (newest, ranks) = (newest.checkpoint, newest.ranks);
            self.space().begin_from(Some(newest));
            return Ok(ranks);
        }
        self.space().begin_from(None);
        let bytes = RankEntry::encode_table(&entries).map_err(|error| {
            let name = self.reserve.reader().device().name();
            Error::unwritable(format!("{name}: the table of ranks"), error)
        })?;
        let capturer = Capturer {
            reserve: &self.reserve,
            space: &self.space,
            owner: Owner::Node,
            threads: 1,
            vacate: &[],
        };
        let empty = Tree::empty(INTERNAL_BLOCK_BYTES);
        let (change, _) = capturer.capture(&empty, &bytes.as_slice(), &Candidates::All)?;
        Ok(change.root)
    }

    /// Commit `id` is complete everywhere, or given up: what no retained revision uses is free, and whole
    /// segments of it after [`NodeStore::release`].
    pub fn settle(&mut self, id: CheckpointId, complete: bool, keep: &BTreeSet<CheckpointId>) {
        if complete {
            self.dropped.clear();
        }
        let mut space = self.space();
        if complete {
            space.commit(id);
        }
        space.retain(|id| keep.contains(&id));
        space.begin_from(None);
        drop(space);
        self.former.retain(|id| keep.contains(&id));
    }

    /// Gives segments that nothing uses back to the node. The durable root must name nothing of them.
    pub fn release(&mut self) {
        self.space().release_empty(&self.reserve.pool(Owner::Node));
        self.former.release_empty(&self.reserve.pool(Owner::Former));
    }

    /// Whether the root on the device may name `id`.
    pub fn may_name(&self, id: CheckpointId) -> bool {
        let named = self.root().revisions.last();
        self.roots.in_doubt() || named.is_some_and(|last| last.checkpoint == id)
    }
}
