// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: `due`: when a program should take a checkpoint and to which level, and what of it rank 0 tells
//! those who drain.
//! In from: the program. Out to: `schedule`, the communicator, the words that a node's ranks share.
//! Invariants: all ranks get the same answer, rank 0's; no call waits for a drain.

use super::Session;
use super::groups::told_of_group;
use crate::leave;
use crate::schedule::{Learnt, Level, LevelProgress, LevelsBeside, Pacer};
use backstay_base::error::Result;
use backstay_base::notice;
use backstay_format::CheckpointId;
use backstay_store::control::Control;
use std::time::Duration;

fn look(pacer: &mut Pacer, control: &Control) {
    let (there, under_way, seconds) = match pacer.top() {
        None | Some(Level::Node) => return,
        Some(Level::Protected) => (
            control.protected_in_group(),
            control.encoding(),
            control.protect_seconds(),
        ),
        Some(Level::Archive) => (
            control.archived(),
            control.archiving(),
            control.drain_seconds(),
        ),
    };
    pacer.look(LevelProgress {
        there,
        under_way,
        seconds,
    });
}

impl Session {
    /// What rank 0 decides by, with what earlier starts learnt.
    pub(super) fn open_pacer(&mut self) -> Result<()> {
        if self.comm.rank() != 0 {
            return Ok(());
        }
        // It stays in the file: a start that dies before its first checkpoint must not be the end of it.
        let learnt = self.metrics.as_ref().and_then(|file| {
            let memory = file.metrics.schedule.clone()?;
            let levels = file.metrics.schedule_levels.clone();
            Some(Learnt { memory, levels })
        });
        let levels_beside = LevelsBeside {
            protects: self.protection.is_on(),
            drains: self.archive.is_on() && self.config.plans_archive(),
            is_empty: self.archive.checkpoints().next().is_none(),
        };
        let mut pacer = Pacer::new(&self.config, self.node.nodes, levels_beside, learnt)?;
        if self.metrics.as_ref().is_some_and(|file| file.failed_before) {
            pacer.failed(self.unseen_seconds);
        }
        self.pacer = Some(pacer);
        Ok(())
    }

    /// Keeps what the schedule learnt for the next start; on rank 0's node alone.
    pub(super) fn keep_learnt(&mut self) {
        let learnt = self.pacer.as_mut().and_then(Pacer::learnt);
        let Some(file) = &mut self.metrics else {
            return;
        };
        let (memory, levels) = learnt.map_or((None, Vec::new()), |learnt| {
            (Some(learnt.memory), learnt.levels)
        });
        (file.metrics.schedule, file.metrics.schedule_levels) = (memory, levels);
    }

    /// Checkpoint `id` begins: where the planner picks, those who drain learn whether it is one of theirs.
    pub(super) fn pick(&mut self, id: CheckpointId) {
        let Some(pacer) = &mut self.pacer else { return };
        look(pacer, &self.node.control);
        if pacer.begin() == Level::Archive && pacer.picks() {
            self.node.control.set_archive_wanted(id);
        }
    }

    /// The checkpoint that was begun blocked the program so long.
    pub(super) fn paid(&mut self, id: CheckpointId, blocking_time: Duration) {
        if let Some(pacer) = &mut self.pacer {
            pacer.committed(id, blocking_time.as_secs_f64());
        }
    }

    /// The job goes on from a checkpoint, which some rank had from `level` and none from a higher one.
    pub(super) fn pace_from(&mut self, id: CheckpointId, level: Level, seconds: f64) {
        let is_archived = self.archive.has(id);
        let Some(pacer) = &mut self.pacer else { return };
        if pacer.restored(id, level, is_archived, seconds) {
            // The drain that ended with the start before goes on with it.
            self.node.control.set_archive_wanted(id);
        }
    }

    /// Whether it is time for a checkpoint, and to which level; to be asked once a step, say. Follows
    /// the setting `interval`: by default the planner's, from measured costs and failures. A checkpoint to
    /// [`Level::Archive`] drains in the background, as any other: nothing else is to be done for it.
    /// Collective, but most calls ask nobody.
    pub fn due(&mut self) -> Result<Option<Level>> {
        self.process.check()?;
        self.capture_announced();
        self.due_calls += 1;
        if self.due_skip > 0 {
            self.due_skip -= 1;
            return Ok(None);
        }
        let calls = std::mem::take(&mut self.due_calls);
        let (mut due, mut skip) = (None, 0);
        if let Some(pacer) = &mut self.pacer {
            look(pacer, &self.node.control);
            (due, skip) = pacer.ask(calls);
            if pacer.picks() {
                self.node.control.set_archive_planned();
            }
            if let Some(text) = pacer.announcement() {
                notice::info(&text);
            }
        }
        let wish = i64::from(self.leave.is_there());
        let due = due.map_or(0, |level| i64::from(level as u8));
        let [all, any, oldest, newest] = told_of_group(&self.node.control);
        let mut answer = [due, skip, wish, all, any, oldest, newest];
        self.comm
            .allreduce_max("asking whether a checkpoint is due", &mut answer)?;
        self.due_skip = answer[1];
        if self.underway.is_none() {
            self.all_groups_have([answer[3], answer[4], answer[5], answer[6]]);
        }
        let first = self.hear_of_leaving(answer[2] > 0);
        Ok(Level::of(answer[0]).or(first.then_some(Level::Node)))
    }

    /// Takes note of a wish to leave that all ranks know of; whether it is the first. `backstay run` learns of it.
    pub(super) fn hear_of_leaving(&mut self, is_wished: bool) -> bool {
        let is_first = is_wished && !self.leaving;
        self.leaving |= is_wished;
        if is_first
            && self.comm.rank() == 0
            && let Err(error) = leave::say_leaving()
        {
            notice::warn(&format!(
                "backstay run is not told that this job leaves: {error}"
            ));
        }
        is_first
    }

    /// Whether the program should take a last checkpoint, close the session and leave: the scheduler or
    /// `backstay run` asked for it. Known after [`Session::due`], which then says yes once, and after each
    /// checkpoint; the same on all ranks. Local.
    pub fn should_leave(&self) -> bool {
        self.leaving
    }
}
