// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which starts go on from one another: where a start begins anew, what it may restore of itself, and
//! how a program says that it is done.
//! In from: roots and the catalog, the setting `fresh`, the program. Out to: `restore`, `checkpoint`, the same.
//! Invariants: all ranks know the same lineage; no restore that names no checkpoint goes beyond it or into a
//! finished one; a start that restored nothing begins one, durably, before its first checkpoint.

use super::checkpoint::{Handle, Report};
use super::vote::{as_checkpoint, as_number};
use super::{Session, lock, to_i64};
use crate::leave;
use crate::schedule::Level;
use backstay_base::error::{Advice, Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::{CheckpointId, Lineage};
use backstay_store::place;

/// `fresh` with this asks at every start; a higher number asks once.
const ALWAYS: u64 = 1;
/// An incarnation has a place in a word beside a flag.
const START_MAX: u64 = 1 << 61;

/// How a program finished.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Finished {
    /// Its last checkpoint.
    pub report: Report,
    /// How safe that is: where less than the job is set to, rank 0 said why.
    pub level: Level,
}

/// An account of a lineage as a word that orders as accounts do.
fn order(lineage: &Lineage) -> i64 {
    let (start, finished) = lineage.order();
    to_i64(start.min(START_MAX)) << 1 | i64::from(finished)
}

fn to_u64(word: i64) -> u64 {
    u64::try_from(word).unwrap_or(0)
}

impl Session {
    /// All ranks learn which starts go on from one another, as the newest account says, and whether this start
    /// begins anew. Collective.
    pub(super) fn agree_on_lineage(&mut self) -> Result<()> {
        let archived = self.archive.lineage();
        let known = if order(&archived) > order(&self.lineage) {
            archived
        } else {
            self.lineage
        };
        let mut highest = [order(&known)];
        let what = "agreeing on the lineage of the job";
        self.comm.allreduce_max(what, &mut highest)?;
        let knows = order(&known) == highest[0];
        let word = |value| if knows { to_i64(value) } else { i64::MIN };
        let is_first = self.comm.rank() == 0;
        let mut words = [
            word(known.began),
            word(known.start),
            word(known.asked),
            word(known.arguments),
            if is_first {
                to_i64(place::program_arguments())
            } else {
                i64::MIN
            },
        ];
        self.comm.allreduce_max(what, &mut words)?;
        let [began, start, asked, arguments, own] = words.map(to_u64);
        self.lineage = Lineage {
            began,
            start,
            finished: highest[0] & 1 == 1,
            asked,
            arguments,
        };
        self.arguments = own;
        let named = self.config.restore_checkpoint.is_some();
        self.begins_anew = (self.lineage.finished || self.is_asked_anew()) && !named;
        Ok(())
    }

    /// Whether `fresh` asks for this start to begin anew, and no start before did so for the same wish.
    fn is_asked_anew(&self) -> bool {
        match self.config.fresh {
            None | Some(0) => false,
            Some(ALWAYS) => true,
            Some(once) => once != self.lineage.asked,
        }
    }

    /// Whether a restore that names no checkpoint may take `id`.
    pub(super) fn goes_on_from(&self, id: CheckpointId) -> bool {
        !self.begins_anew && self.lineage.has(id)
    }

    /// The newest checkpoint that a restore may take that names none.
    pub(super) fn newest_to_go_on_from(&self) -> Option<CheckpointId> {
        let mut newest_first = self.policy.complete.iter().rev().copied();
        newest_first.find(|id| self.goes_on_from(*id))
    }

    /// A word for a checkpoint, or none where a restore that names none would not take it.
    pub(super) fn within_lineage(&self, number: i64) -> i64 {
        let id = as_checkpoint(number).filter(|id| self.goes_on_from(*id));
        id.map_or(0, as_number)
    }

    /// This start, which restores nothing, begins a lineage.
    pub(super) fn begin_lineage(&mut self) {
        self.begins_anew = false;
        self.lineage = Lineage {
            began: self.incarnation,
            start: self.incarnation,
            finished: false,
            asked: self.config.fresh.unwrap_or(0),
            arguments: self.arguments,
        };
    }

    /// A wish to begin anew is carried out at once, durably, so that no later start goes back behind it. Collective.
    pub(super) fn begin_anew_if_asked(&mut self) -> Result<()> {
        if !self.begins_anew || !self.is_asked_anew() {
            return Ok(());
        }
        self.open_start_from_nothing()?;
        self.begin_archive();
        Ok(())
    }

    /// This start goes on from `id`. Where that was left behind, what the same start and later ones took of it is
    /// what a restore may fall back to.
    pub(super) fn go_on_with_lineage(&mut self, id: CheckpointId) {
        self.begins_anew = false;
        self.lineage = Lineage {
            began: self.lineage.began.min(id.incarnation),
            start: self.incarnation,
            finished: false,
            ..self.lineage
        };
    }

    /// Says, once, what this start begins with that a user may not expect; on rank 0.
    pub(super) fn announce_start(&self) {
        if self.comm.rank() != 0 {
            return;
        }
        let job = &self.node.job;
        let newest = self.policy.complete.last().map(|id| id.number);
        if let (true, Some(newest)) = (self.begins_anew, newest) {
            let why = if self.lineage.finished {
                format!("job {job} finished with checkpoint {newest}")
            } else {
                "fresh is set".to_owned()
            };
            notice::info(&format!(
                "{why}: this start begins anew; to go back to checkpoint {newest}, restore it by number: \
                 backstay_restore_from, BACKSTAY_RESTORE_CHECKPOINT={newest} or backstay run --checkpoint {newest}"
            ));
        }
        let then = self.lineage.arguments;
        let is_default = self.config.job.is_none();
        if is_default
            && then != 0
            && then != self.arguments
            && self.newest_to_go_on_from().is_some()
        {
            notice::warn(&format!(
                "the program has other arguments than when job {job} was begun, whose checkpoints it restores all \
                 the same: set BACKSTAY_FRESH=1 to begin anew, or BACKSTAY_JOB to another name for each set of \
                 arguments"
            ));
        }
    }

    /// Gives up checkpoints for want of space, at first those of an earlier lineage, which only somebody who names
    /// them restores; whether there were any to give up.
    pub(super) fn make_room(&mut self) -> bool {
        let policy = &mut self.policy;
        let before = policy.complete.len();
        let (lineage, pinned) = (self.lineage, &policy.pinned);
        policy
            .complete
            .retain(|id| lineage.has(*id) || pinned.contains(id));
        if policy.complete.len() < before {
            return true;
        }
        let spare = policy.complete.difference(&policy.pinned).count();
        if spare > super::checkpoint::RETAINED_MIN {
            policy.retained = super::checkpoint::RETAINED_MIN;
            return true;
        }
        false
    }

    /// The checkpoints that every rank can have back and [`Session::restore`] may take, oldest first; of those that
    /// the archive alone has, as its catalog says: no other file of it is opened before one is restored. Where
    /// there is none, though something was stored, it is the error that [`Session::restore`] would be: only an
    /// empty list says that the job begins, for the first time or anew. Where a checkpoint to restore is set, it is
    /// among them.
    pub fn stored_checkpoints(&self) -> Result<Vec<CheckpointId>> {
        let named = self.config.restore_checkpoint.filter(|_| !self.start_begun);
        let may = |id: &CheckpointId| self.goes_on_from(*id) || Some(id.number) == named;
        let stored: Vec<CheckpointId> = self.policy.complete.iter().copied().filter(may).collect();
        let wrong = self.doubt.as_ref().or(self.lost.as_ref());
        match wrong.filter(|_| stored.is_empty()) {
            Some(error) => Err(error.again()),
            None => Ok(stored),
        }
    }

    /// The checkpoints that every rank can have back, but which are of a start that finished or that a later one
    /// left behind: [`Session::restore_from`] alone takes them. Oldest first.
    pub fn earlier_checkpoints(&self) -> Vec<CheckpointId> {
        let complete = self.policy.complete.iter().copied();
        complete.filter(|id| !self.goes_on_from(*id)).collect()
    }

    /// Says that the program is done: takes a last checkpoint, waits until it is as safe as the job is set to,
    /// records that the job is finished, and closes the session. The next start begins anew: it restores this
    /// checkpoint only where somebody names it ([`Session::restore_from`], `restore_checkpoint`). Where
    /// protection or the archive fail, the job is finished on its nodes, and rank 0 says so.
    ///
    /// On an error the session is closed as by [`Session::close`]. Where the last checkpoint failed, the next start
    /// goes on from the newest one; where closing did, some nodes may know that the job is finished, and the next
    /// start says what it does. Collective.
    pub fn finish(mut self) -> Result<Finished> {
        match self.take_last_checkpoint() {
            Ok(last) => self.finish_with(&last).map(|()| last),
            Err(error) => {
                if let Err(other) = self.end(None) {
                    notice::warn(&format!(
                        "closing after a last checkpoint that failed: {other}"
                    ));
                }
                Err(error)
            }
        }
    }

    /// The first half of [`Session::finish`], for those who hold the program's memory in place meanwhile: takes a
    /// checkpoint, and waits until it is as safe as the job is set to. [`Session::finish_with`] is the other.
    /// Collective.
    pub fn take_last_checkpoint(&mut self) -> Result<Finished> {
        let report = self.checkpoint()?;
        let level = self.bring_as_far_as_set(report.checkpoint)?;
        Ok(Finished { report, level })
    }

    /// The second half of [`Session::finish`]: records that the job is finished with the `last` checkpoint, and
    /// closes the session. Collective.
    pub fn finish_with(mut self, last: &Finished) -> Result<()> {
        self.process.check()?;
        self.end(Some(last))
    }

    /// Waits until checkpoint `id` is protected and in the archive, where the job is set to; how far it came.
    fn bring_as_far_as_set(&mut self, id: CheckpointId) -> Result<Level> {
        let handle = Handle::of(id, self.turn);
        let levels = [
            (Level::Protected, self.protection.is_on()),
            (Level::Archive, self.archive.is_on()),
        ];
        let mut reached = Level::Node;
        for (level, _) in levels.into_iter().filter(|(_, is_set)| *is_set) {
            match self.wait(handle, level) {
                Ok(_) => reached = level,
                Err(error) if matches!(error.kind().advice(), Advice::Fatal | Advice::Bug) => {
                    return Err(error);
                }
                Err(error) if self.comm.rank() == 0 => {
                    let place = match reached {
                        Level::Node => "on its nodes alone",
                        _ => "on its nodes and those that protect them",
                    };
                    notice::warn(&format!("the job finishes {place}: {error}"));
                }
                Err(_) => {}
            }
        }
        Ok(reached)
    }

    /// The session ended well, and the job is finished: the archive says so where it has the last checkpoint, and
    /// `backstay run` learns of it. Rank 0's.
    pub(super) fn tell_finished(&mut self, finished: &Finished) {
        if self.comm.rank() != 0 {
            return;
        }
        if finished.level == Level::Archive {
            let told = self
                .archive
                .finish(self.lineage, finished.report.checkpoint);
            if let Err(error) = told {
                notice::warn(&format!(
                    "the job is finished on its nodes; its archive does not say so: {error}"
                ));
            }
        }
        if let Err(error) = leave::say_finished(finished.report.checkpoint.number) {
            notice::warn(&format!("backstay run is not told: {error}"));
        }
    }

    /// What a restore that may take nothing is told.
    pub(super) fn nothing_to_restore(&self) -> Error {
        if let Some(lost) = &self.lost {
            return lost.again();
        }
        let newest = self.policy.complete.last().map(|id| id.number);
        let context = match newest {
            None => "nothing is stored for this job".to_owned(),
            Some(newest) if self.lineage.finished => format!(
                "the job finished with checkpoint {newest}, and this start begins anew; restore it by its number to \
                 go back to it"
            ),
            Some(newest) => format!(
                "this start begins anew; checkpoint {newest} is of an earlier one: restore it by its number to go \
                 back to it"
            ),
        };
        Error::new(ErrorKind::NoCheckpoint, context)
    }

    /// The leader notes in the node's root that the session ends, and how.
    pub(super) fn note_end(&self, is_finished: bool) -> Result<()> {
        let (Some(store), true) = (&self.store, self.node.leads()) else {
            return Ok(());
        };
        let mut store = lock(&store.node);
        if is_finished {
            store.finish(&self.policy)
        } else {
            store.note(&self.policy, true)
        }
    }
}
