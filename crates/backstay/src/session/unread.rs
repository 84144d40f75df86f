// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a restart cannot read: it is looked at again, and then said; it is never taken for lost.
//! In from: opening (parts, other nodes, the archive), `restore`. Out to: the program, `backstay run`.
//! Invariants: no checkpoint is passed over because something could not be read; every rank comes to the
//! same; only a number that somebody named goes past it.

use super::Session;
use super::node::Unopened;
use super::vote::{as_checkpoint, as_number, vote, vote_with};
use crate::leave;
use backstay_base::clock::{Backoff, patiently};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::two_slots::TwoSlots;
use backstay_base::notice;
use backstay_format::CheckpointId;
use backstay_store::reader::RootSlots;
use backstay_store::recover::FoundRevision;
use backstay_store::reserve::Reserve;
use std::time::Duration;

/// Leaves word for `backstay run`, which then does not start the program for ever.
pub(super) fn tell(rank: u32, error: Error) -> Error {
    if rank == 0
        && error.kind() == ErrorKind::Unreadable
        && let Err(wrong) = leave::say_unreadable(&error.words())
    {
        notice::warn(&format!("backstay run is not told: {wrong}"));
    }
    error
}

/// What could not be read, and was waited for, in one kind.
fn unreadable(error: &Error) -> Error {
    if error.kind() == ErrorKind::StoreIo {
        error.as_kind(ErrorKind::Unreadable)
    } else {
        error.again()
    }
}

impl Session {
    /// Recovers what is in the node's store; whether something of it could not be read, on any rank.
    /// Collective.
    pub(super) fn recover_all(&mut self, reserve: Option<Reserve>, what: &str) -> Result<bool> {
        let recovered = reserve.map_or(Ok(()), |reserve| self.recover(reserve));
        let unread = self.found.iter().any(|found| found.unread().is_some());
        let mut unread = [i64::from(unread)];
        vote_with(&self.comm, what, 0, recovered, &mut unread)?;
        Ok(unread[0] > 0)
    }

    /// Looks again at what could not be read, until it could, or `timeout_ms` has passed. Collective.
    pub(super) fn look_until_read(&mut self, mut unread: bool) -> Result<()> {
        let mut again = Backoff::within(Duration::from_millis(self.config.timeout_ms));
        while unread {
            let mut over = [i64::from(!again.pause())];
            self.comm
                .allreduce_max("waiting for what could not be read", &mut over)?;
            if over[0] > 0 {
                break;
            }
            unread = self.recover_again()?;
        }
        Ok(())
    }

    /// The roots of the node's store, again and again for `timeout_ms`. Then, if a checkpoint was named, the
    /// one that can be read.
    pub(super) fn read_roots(&mut self, reserve: &Reserve) -> Result<TwoSlots<RootSlots>> {
        let limit = Duration::from_millis(self.config.timeout_ms);
        let mut roots = patiently(limit, Error::may_pass, || reserve.roots());
        if let Err(error) = &roots
            && self.node.names_one
            && error.kind() == ErrorKind::StoreIo
        {
            reserve.reader().give_up_unread(true);
            roots = reserve.roots();
        }
        let roots = roots.map_err(|error| unreadable(&error))?;
        self.gave_up = roots.given_up().map(Error::again);
        if let (Some(error), true) = (&self.gave_up, self.node.leads()) {
            notice::warn(&format!(
                "{error}; a checkpoint to restore was named, so the other slot is taken, and what may stand \
                 in this one is given up with the restore"
            ));
        }
        Ok(roots)
    }

    /// Where a store, or a slot of one, could not be read: whether what is left can give what was named, or,
    /// if nothing was, the same that would have been restored with it; where a store is damaged as a whole,
    /// whether anything is left. Nothing was written so far. Collective.
    pub(super) fn settle_what_is_given_up(&mut self) -> Result<()> {
        let unopened = self.node.unopened.borrow();
        let unopened = unopened.as_ref();
        let listed = unopened.and_then(|unopened| unopened.listed);
        let is_lost = unopened.is_some_and(Unopened::is_lost);
        let unopened = unopened.map(|unopened| unopened.why.again());
        // What this node's store would say, a store of another node says: a checkpoint is on all or on none.
        let read = self.found.iter().map(FoundRevision::id).max();
        let located = self.protection.newest_known();
        let mut all = [
            i64::from(is_lost),
            i64::from(unopened.is_some() && !is_lost || self.gave_up.is_some()),
            read.map_or(0, as_number),
            listed.max(located).map_or(0, as_number),
        ];
        let what = "looking for what could not be opened";
        self.comm.allreduce_max(what, &mut all)?;
        let [lost, unread, read, listed] = all;
        if lost + unread == 0 {
            return Ok(());
        }
        let newest = self.policy.complete.last().copied();
        let can_be_had = if let Some(number) = self.config.restore_checkpoint {
            self.policy.complete.iter().any(|id| id.number == number)
        } else if unread == 0 {
            newest.is_some()
        } else {
            let known = read.max(listed);
            read > 0 && newest.is_some_and(|newest| as_number(newest) >= known)
        };
        if can_be_had {
            return Ok(());
        }
        let why = unopened.as_ref().or(self.gave_up.as_ref());
        let mine = why.map_or(Ok(()), |why| Err(self.not_opened(why)));
        vote(&self.comm, "opening what cannot be read", 0, mine)
    }

    /// What a program is told where nothing of what it wants can be had without what could not be read.
    fn not_opened(&self, why: &Error) -> Error {
        if why.kind().proves_loss() {
            return why.again();
        }
        let can: Vec<u64> = self.policy.complete.iter().map(|id| id.number).collect();
        let (path, words) = (self.node.store_path(), why.words());
        let context = match (self.config.restore_checkpoint, can.is_empty()) {
            (Some(number), true) => format!(
                "{words}; without what cannot be read checkpoint {number}, which restore_checkpoint names, \
                 cannot be had, nor any other: start again when it can be read, or move {} away, and the job \
                 begins anew",
                path.display()
            ),
            (Some(number), false) => format!(
                "{words}; without what cannot be read checkpoint {number}, which restore_checkpoint names, \
                 cannot be had: {can:?} can; name one of these, or start again when it can be read"
            ),
            (None, false) => format!(
                "{words}; nothing is given up for that: start again when it can be read; to resume from what \
                 can be had without, and give up the newer, set restore_checkpoint (backstay run \
                 --checkpoint) to one of {can:?}"
            ),
            (None, true) => format!(
                "{words}; nothing is given up for that: start again when it can be read; to resume from a \
                 checkpoint that a root slot lists, and give up the newer, set restore_checkpoint (backstay \
                 run --checkpoint); where none can be read, move {} away, and the job begins anew",
                path.display()
            ),
        };
        Error::new(ErrorKind::Unreadable, context)
    }

    /// A start began: what stands in a slot now is its own.
    pub(super) fn give_up_no_more(&mut self) {
        self.gave_up = None;
        if let Some(store) = &self.store {
            store.rank.reserve().reader().give_up_unread(false);
        }
        self.protection.give_up_no_more();
        self.archive.give_up_no_more();
    }

    /// What may be newer than all that can be had, and cannot be looked at: then nothing older is
    /// restored of itself. `newest` is the newest that can be had. Collective.
    pub(super) fn doubt_what_is_newer(&mut self, newest: Option<CheckpointId>) -> Result<()> {
        self.doubt = None;
        let mut doubts: Vec<(CheckpointId, String)> = Vec::new();
        if let Some(why) = self.protection.unlocated().map(str::to_owned) {
            // Parts of what a root names may be on nodes of which nothing is known.
            let named = self.found.iter().map(FoundRevision::id).max();
            let mut named = [named.map_or(0, as_number)];
            self.comm
                .allreduce_max("looking for what is newer", &mut named)?;
            doubts.extend(as_checkpoint(named[0]).map(|id| (id, why)));
        }
        if let (Some((named, why)), None) =
            (self.protection.unread(), self.config.restore_checkpoint)
        {
            // Where nobody says which is the newest, it may be the next.
            let next = newest.map_or(CheckpointId::new(1, 1), |id| {
                CheckpointId::new(id.incarnation, id.number + 1)
            });
            doubts.push((named.unwrap_or(next), why.to_owned()));
        }
        doubts.sort();
        if let Some((id, why)) = doubts.pop().filter(|(id, _)| Some(*id) > newest) {
            let error = Error::new(ErrorKind::Unreadable, why);
            self.doubt = Some(self.not_given_up(id, &error));
        }
        Ok(())
    }

    /// What a program is told of a checkpoint that could not be read.
    pub(super) fn not_given_up(&self, id: CheckpointId, error: &Error) -> Error {
        let older = self.policy.complete.iter().rev();
        let older: Vec<u64> = older
            .filter(|other| **other < id)
            .map(|other| other.number)
            .collect();
        let way_on = if older.is_empty() {
            "no older one can be had as it is; where one of two slots can be read, restore_checkpoint (backstay \
             run --checkpoint) resumes from a checkpoint that it lists; to begin anew, set another job name"
                .to_owned()
        } else {
            format!(
                "to resume from an older one, and give up the newer, set restore_checkpoint (backstay run \
                 --checkpoint) to one of {older:?}"
            )
        };
        let context = format!(
            "checkpoint {id}: {}; nothing is given up for that: start again when it can be read; {way_on}",
            error.words()
        );
        Error::new(ErrorKind::Unreadable, context)
    }

    /// Leaves word for `backstay run`, which then does not start the program for ever.
    pub(super) fn tell_unreadable(&self, error: Error) -> Error {
        tell(self.comm.rank(), error)
    }

    /// What a restore settles first: a failure of the checkpoint under way is said, and the restore goes on
    /// where it can. Collective.
    pub(super) fn settle_before_restore(&mut self) -> Result<()> {
        use backstay_base::error::Advice;
        match self.settle_underway() {
            Err(error) if !matches!(error.kind().advice(), Advice::Fatal | Advice::Bug) => {
                if self.comm.rank() == 0 {
                    notice::warn(&format!(
                        "the checkpoint before the restore failed: {error}"
                    ));
                }
                Ok(())
            }
            outcome => outcome.map(|_| ()),
        }
    }
}
