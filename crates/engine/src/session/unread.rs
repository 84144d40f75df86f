// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a restart cannot read: it is looked at again, and then said; it is never taken for lost.
//! In from: opening (parts, other nodes, the archive), `restore`. Out to: the program, `backstay run`.
//! Invariants: no checkpoint is passed over because something could not be read; every rank comes to the
//! same; only a number that somebody named goes past it.

use super::Session;
use super::vote::{as_checkpoint, as_number, vote_with};
use crate::clock::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::leave;
use crate::notice;
use crate::store::recover::FoundRevision;
use crate::store::reserve::Reserve;
use backstay_format::CheckpointId;
use std::time::Duration;

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

    /// What may be newer than all that can be had, and cannot be looked at: then nothing older is
    /// restored of itself. `newest` is the newest that can be had. Collective.
    pub(super) fn doubt_what_is_newer(&mut self, newest: Option<CheckpointId>) -> Result<()> {
        self.doubt = None;
        let archived = self.archive.found().unread.first();
        let archived = archived.map(|(id, why)| (*id, why.clone()));
        let mut doubts: Vec<(CheckpointId, String)> = archived.into_iter().collect();
        if let Some(why) = self.protection.unlocated().map(str::to_owned) {
            // Parts of what a root names may be on nodes of which nothing is known.
            let named = self.found.iter().map(FoundRevision::id).max();
            let mut named = [named.map_or(0, as_number)];
            self.comm
                .allreduce_max("looking for what is newer", &mut named)?;
            doubts.extend(as_checkpoint(named[0]).map(|id| (id, why)));
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
            "no older one can be had; to begin anew, set another job name".to_owned()
        } else {
            format!(
                "to go on from an older one, and give up the newer, set restore_checkpoint (backstay run \
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
        if self.comm.rank() == 0
            && error.kind() == ErrorKind::Unreadable
            && let Err(wrong) = leave::say_unreadable(&error.words())
        {
            notice::warn(&format!("backstay run is not told: {wrong}"));
        }
        error
    }

    /// What a restore settles first: a failure of the checkpoint under way is said, and the restore goes on
    /// where it can. Collective.
    pub(super) fn settle_before_restore(&mut self) -> Result<()> {
        use crate::error::Advice;
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
