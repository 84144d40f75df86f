// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which checkpoints stay: pins, what is retained no longer, what was given up.
//! In from: the program, `checkpoint`, `restore`. Out to: the node's root, and the space of rank and node.
//! Invariants: space is given back when the durable root names nothing of it, not before; what all ranks voted
//! for stays on all nodes or on none.

use super::vote::vote;
use super::{Session, lock, to_i64};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::CheckpointId;
use backstay_store::commit::Policy;
use backstay_store::control::wait_until;
use std::time::Duration;

impl Session {
    /// Keeps checkpoint `number` until it is unpinned. Collective.
    pub fn pin(&mut self, number: u64) -> Result<()> {
        self.change_pin(number, true)
    }

    /// Lets checkpoint `number` go when newer ones take its place. Collective.
    pub fn unpin(&mut self, number: u64) -> Result<()> {
        self.change_pin(number, false)
    }

    /// How many more checkpoints can be pinned: the same on all ranks between collective calls. Local.
    #[must_use]
    pub fn pins_left(&self) -> usize {
        self.pins_max().saturating_sub(self.policy.pinned.len())
    }

    fn pins_max(&self) -> usize {
        let retained = backstay_format::width::index(self.config.retained);
        Policy::pins_max(retained.max(self.policy.retained))
    }

    fn change_pin(&mut self, number: u64, pinned: bool) -> Result<()> {
        self.process.check()?;
        self.settle_earlier()?;
        let found = self
            .policy
            .complete
            .iter()
            .find(|id| id.number == number)
            .copied();
        let before = self.policy.pinned.clone();
        let (most, retained) = (self.pins_max(), self.config.retained);
        let changed = match found {
            None => Err(self.not_retained(number)),
            Some(id) if pinned => {
                let has_room = before.contains(&id) || before.len() < most;
                if has_room {
                    self.policy.pinned.insert(id);
                    Ok(())
                } else {
                    let pins: Vec<u64> = before.iter().map(|id| id.number).collect();
                    let context = format!(
                        "checkpoint {number} cannot be pinned beside {pins:?}: at most {most} can \
                         where {retained} are retained; unpin one"
                    );
                    Err(Error::new(ErrorKind::StoreFull, context))
                }
            }
            Some(id) => {
                self.policy.pinned.remove(&id);
                Ok(())
            }
        };
        let changed = changed.and_then(|()| match (&self.store, self.node.leads()) {
            (Some(store), true) => lock(&store.node).note(&self.policy, false),
            _ => Ok(()),
        });
        let changed = vote(&self.comm, "pinning a checkpoint", to_i64(number), changed);
        if changed.is_err() {
            // It is not kept by some ranks and dropped by others.
            self.policy.pinned = before;
        }
        self.drop_unretained(None);
        changed
    }

    pub(super) fn not_retained(&self, number: u64) -> Error {
        let known: Vec<u64> = self.policy.complete.iter().map(|id| id.number).collect();
        let context = format!("checkpoint {number} is not retained; these are: {known:?}");
        Error::new(ErrorKind::NotRetained, context)
    }

    /// Frees what is retained no longer. `settled` is a checkpoint just decided, and how.
    pub(super) fn drop_unretained(&mut self, settled: Option<(CheckpointId, bool)>) {
        let keep = self.policy.keeps(None);
        self.policy.complete.retain(|id| keep.contains(id));
        self.policy.pinned.retain(|id| keep.contains(id));
        self.found.retain(|found| keep.contains(&found.id()));
        let Some(store) = &mut self.store else { return };
        store.rank.retain(|id| keep.contains(&id));
        let oldest = self.policy.complete.first().copied();
        self.protection.drop_rebuilt(oldest);
        let (id, complete) = settled.unwrap_or((CheckpointId::default(), false));
        lock(&store.node).settle(id, complete, &keep);
        self.release_unused();
    }

    /// Segments that nothing uses any more may be written again, once no root names what used them: not while
    /// the node's leader has yet to take a failed checkpoint out of it.
    fn release_unused(&self) {
        let named = self.node.control.abandoned() < self.abandoned_turn;
        if let (Some(store), false) = (&self.store, named) {
            store.rank.release();
            lock(&store.node).release();
        }
    }

    /// A failed checkpoint may be durable on this node, and older ones may have to make room: the leader takes
    /// them out of the root before any rank of the node writes where they stand.
    pub(super) fn abandon(&mut self, id: CheckpointId, turn: u64) {
        self.abandoned_turn = turn;
        if let (Some(store), true) = (&self.store, self.node.leads()) {
            self.root_names_failed |= self.made_room || lock(&store.node).may_name(id);
        }
        if let Err(error) = self.take_back() {
            notice::warn(&format!(
                "the root still names checkpoints that were given up; the next checkpoint tries again: {error}"
            ));
        }
    }

    /// The leader's part in giving up a checkpoint: the node's root names it no longer, and the others learn
    /// so.
    fn take_back(&mut self) -> Result<()> {
        if !self.node.leads() {
            return Ok(());
        }
        if let (Some(store), true) = (&self.store, self.root_names_failed) {
            lock(&store.node).note(&self.policy, false)?;
        }
        self.root_names_failed = false;
        self.node.control.set_abandoned(self.abandoned_turn);
        Ok(())
    }

    /// Waits until no root of the node names a checkpoint that was given up. A leader that cannot take it back
    /// fails this one, and nobody waits longer.
    pub(super) fn await_taken_back(&mut self, turn: u64) -> Result<()> {
        if self.root_names_failed {
            self.take_back()?;
        }
        let wait = Duration::from_millis(self.config.timeout_ms);
        let control = &self.node.control;
        let abandoned = || control.abandoned() >= self.abandoned_turn;
        let cannot = || control.posted(0, turn).is_some_and(|post| post.status != 0);
        let what = "the node's leader to take back a failed checkpoint";
        wait_until(what, wait, || abandoned() || cannot())?;
        if !abandoned() {
            let context = format!(
                "the leader of node {} has not taken back a failed checkpoint",
                self.node.name
            );
            return Err(Error::new(ErrorKind::StoreIo, context));
        }
        self.release_unused();
        Ok(())
    }
}
