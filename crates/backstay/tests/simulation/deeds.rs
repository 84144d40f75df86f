// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a rank does in one step: computes, takes checkpoints, restores, pins.
//! In: the step's plan. Out: the ledger of what the job was told.
//! Invariants: nothing that is said after the world died counts; every collective call's outcome is told.

use crate::invariants::{GOES_ON, NOTHING_NEWER, TRULY_PROTECTED, broken};
use crate::ledger::Event;
use crate::model::Expect;
use crate::rank::Program;
use crate::scenario::{Deed, Device, Fate, How, Take, Trouble};
use backstay::Handle;
use backstay::{CheckpointId, ErrorKind, Level};
use std::time::{Duration, Instant};

/// After trouble is over, what was kept from working has to work again within so many tries.
const TRIES: usize = 12;
/// A try that fails at once, because a drain did, is made again after so long; the first ones sooner. A drain is tried
/// again after a second, and may wait for seconds for who still holds its file.
const PACE: Duration = Duration::from_secs(4);
const PROMPT_PACE: Duration = Duration::from_millis(250);
const PROMPT_TRIES: usize = 4;

/// How a call ended.
enum Ended<T> {
    Well(T),
    /// As it may, with what is done to the job.
    Badly,
    /// With the world.
    Dead,
}

impl Program<'_> {
    /// False if the start is over.
    pub(crate) fn take_step(&mut self, number: usize) -> Result<bool, String> {
        let seat = self.seat;
        let plan = &seat.plan().steps[number];
        if seat.rank == 0 {
            seat.world.at_step(number);
            seat.world.calm();
            if let Some(trouble) = plan.trouble {
                seat.make(trouble);
            }
            if let Some(fault) = plan.fault {
                seat.world.fail(fault);
            }
        }
        if plan.fault.is_some() {
            self.failed = true;
            seat.ledger.faults();
        }
        if let Some((late, ms)) = plan.late
            && late == seat.rank
        {
            std::thread::sleep(Duration::from_millis(ms));
        }
        match plan.deed {
            Deed::Take(take) => self.take(take, number).map(|()| true),
            Deed::Restore => self.restore_again(None, number),
            Deed::GoBack(behind) => self.restore_again(Some(behind), number),
            Deed::StartAndRestore => match self.start(number)? {
                Some(_) => self.restore_again(None, number),
                None => Ok(!seat.world.is_dead()),
            },
            Deed::Pin(behind) => self.pin(behind, true, number).map(|()| true),
            Deed::Unpin(behind) => self.pin(behind, false, number).map(|()| true),
            Deed::PinMany(count) => {
                for _ in 0..count {
                    self.take(Take::Node, number)?;
                    self.pin(0, true, number)?;
                    if seat.world.is_dead() {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Whether something is, or was lately, done to the network or to files.
    fn is_disturbed(&self, number: usize) -> bool {
        let plan = self.seat.plan();
        let mut before = plan.steps.iter().take(number + 1);
        self.failed
            || self.seat.world.lost_agent()
            || self.seat.world.was_stopped(number)
            || plan.is_disturbed()
            || before.any(|step| step.trouble.is_some())
    }

    /// Tells how a collective call ended; what is disturbed may fail, and then sanely.
    fn call<T>(
        &mut self,
        what: &str,
        result: backstay::Result<T>,
        number: usize,
    ) -> Result<Ended<T>, String> {
        let seat = self.seat;
        if seat.world.is_dead() {
            return Ok(Ended::Dead);
        }
        self.calls += 1;
        let told = if result.is_ok() { "well" } else { "an error" };
        let told = format!("{what}: {told}");
        seat.ledger.call(self.calls, seat.rank, told);
        match result {
            Ok(value) => Ok(Ended::Well(value)),
            Err(error) if self.failed || seat.world.was_stopped(number) => {
                seat.sane(what, &error, self.is_full(number))?;
                Ok(Ended::Badly)
            }
            Err(error) => {
                let text = format!("rank {}: {what}: {:?}: {error}", seat.rank, error.kind());
                Err(broken(GOES_ON, text))
            }
        }
    }

    /// Whether some store was full in this start: a full stripe log, or archive, makes none full.
    fn is_full(&self, number: usize) -> bool {
        let steps = self.seat.plan().steps.iter().take(number + 1);
        let mut faults = steps.filter_map(|step| step.fault);
        faults.any(|fault| {
            let full = matches!(fault.how, How::NoSpace | How::Quota | How::Short);
            full && fault.device == Device::Store
        })
    }

    /// Computes the next step in the program's memory.
    fn compute(&mut self) -> Result<(), String> {
        self.furthest += 1;
        self.step = self.furthest;
        let state = self.state(self.step);
        let lengths: Vec<usize> = state.iter().map(Vec::len).collect();
        self.protect(&lengths)?;
        for (field, words) in self.fields.iter_mut().zip(&state) {
            field.words.copy_from_slice(words);
        }
        Ok(())
    }

    /// Computes, and starts a checkpoint of it.
    fn start(&mut self, number: usize) -> Result<Option<Handle>, String> {
        self.compute()?;
        let started = self.session.checkpoint_start();
        let Ended::Well(handle) = self.call("starting a checkpoint", started, number)? else {
            return Ok(None);
        };
        let id = handle.checkpoint();
        self.steps.insert(id, self.step);
        (self.newest, self.pending) = (Some(id), Some(id));
        self.seat.event(Event::Started(id, self.step));
        Ok(Some(handle))
    }

    fn take(&mut self, take: Take, number: usize) -> Result<(), String> {
        if take == Take::Nothing {
            return self.compute();
        }
        let before = self.newest;
        let Some(handle) = self.start(number)? else {
            return Ok(());
        };
        if take == Take::Start {
            return Ok(());
        }
        let waited = self.session.wait(handle, Level::Node);
        self.pending = None;
        match self.call("waiting for the nodes", waited, number)? {
            Ended::Well(_) => {}
            Ended::Badly => {
                // As if it had never been. The one before may have failed with it, unheard.
                let stored = self.session.stored_checkpoints().unwrap_or_default();
                self.newest = before
                    .filter(|id| stored.contains(id))
                    .or(stored.last().copied());
                return Ok(());
            }
            Ended::Dead => return Ok(()),
        }
        let committed = Event::Committed(handle.checkpoint(), self.step);
        self.seat.event(committed);
        match take {
            Take::Protected => self.wait_for(handle, Level::Protected, number),
            Take::Archived => self.wait_for(handle, Level::Archive, number),
            _ => Ok(()),
        }
    }

    /// Waits for a level that others, and the network, have to do with.
    fn wait_for(&mut self, handle: Handle, level: Level, number: usize) -> Result<(), String> {
        let seat = self.seat;
        let plan = seat.plan();
        let steps = &plan.steps[..=number];
        let last = steps.iter().rev().find_map(|step| step.trouble);
        let fails = steps[number].fault.is_some();
        // Of these starts each rank may learn of it at another time.
        let may_lose = matches!(self.scenario().fate(seat.start), Some(Fate::OneDies(..)));
        let troubled = last.is_some_and(|trouble| trouble != Trouble::Heal) || fails;
        let healed = last == Some(Trouble::Heal) || last.is_none() && self.is_disturbed(number);
        let halts = self.scenario().halt(seat.start).is_some();
        let healed = (healed || halts) && !fails && !may_lose;
        let supported = match level {
            Level::Protected => seat.expect != Expect::Unsupported,
            _ => self.scenario().archive.is_some(),
        };
        // Who drained before may hold a file for seconds, be waited for, and be left out: each has its limit, and
        // together they are longer than one wait.
        let taken_over = level == Level::Archive && !troubled && !may_lose;
        let again = healed || taken_over;
        let tries = if again && supported { TRIES } else { 1 };
        let what = format!("waiting for {level:?}");
        let id = handle.checkpoint();
        let mut began: Option<Instant> = None;
        for turn in 0..tries {
            if let Some(began) = began.replace(Instant::now()) {
                let pace = if turn < PROMPT_TRIES {
                    PROMPT_PACE
                } else {
                    PACE
                };
                std::thread::sleep(pace.saturating_sub(began.elapsed()));
            }
            let result = self.session.wait(handle, level);
            if seat.world.is_dead() {
                return Ok(());
            }
            self.calls += 1;
            let told = if result.is_ok() { "well" } else { "an error" };
            seat.ledger
                .call(self.calls, seat.rank, format!("{what}: {told}"));
            let error = match result {
                Ok(_) if !supported => {
                    let text = format!("{what}: well, though there is nothing that could");
                    return Err(broken(TRULY_PROTECTED, text));
                }
                Ok(_) => {
                    seat.event(match level {
                        Level::Protected => Event::Protected(id, self.step),
                        _ => Event::Archived(id, self.step),
                    });
                    return Ok(());
                }
                Err(error) => error,
            };
            seat.sane(&what, &error, self.failed)?;
            let right =
                !supported && (error.kind() == ErrorKind::Unsupported || healed || troubled);
            if right {
                return Ok(());
            }
            let lost = may_lose && self.is_disturbed(number);
            if turn + 1 == tries && !troubled && !self.failed && !lost {
                let text = format!("rank {}: {what}: {:?}: {error}", seat.rank, error.kind());
                return Err(broken(GOES_ON, text));
            }
        }
        Ok(())
    }

    /// Computes a last step, and says that the program is done.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        let seat = self.seat;
        let last = seat.plan().steps.len();
        if seat.rank == 0 {
            seat.world.at_step(last);
            seat.world.calm();
        }
        self.compute()?;
        let taken = self.session.take_last_checkpoint();
        if seat.world.is_dead() {
            return Ok(());
        }
        let may_fail = self.failed;
        let taken = match taken {
            Err(error) if may_fail => {
                return seat.sane("a last checkpoint", &error, self.is_full(last));
            }
            taken => seat.ok("a last checkpoint", taken)?,
        };
        let Some(taken) = taken else { return Ok(()) };
        let id = taken.report.checkpoint;
        seat.event(Event::Started(id, self.step));
        seat.event(Event::Committed(id, self.step));
        match taken.level {
            Level::Protected => seat.event(Event::Protected(id, self.step)),
            Level::Archive => seat.event(Event::Archived(id, self.step)),
            Level::Node => {}
        }
        seat.ledger.finishing();
        let Self {
            session, fields, ..
        } = self;
        let finished = session.finish_with(&taken);
        drop(fields);
        match finished {
            Err(error) if may_fail => seat.sane("finishing", &error, true),
            finished => {
                if seat.ok("finishing", finished)?.is_some() {
                    let archived = taken.level == Level::Archive;
                    seat.ledger.finished(seat.rank, archived);
                }
                Ok(())
            }
        }
    }

    /// Restores again in the same session: the newest, or the one than which so many are newer.
    fn restore_again(&mut self, behind: Option<usize>, number: usize) -> Result<bool, String> {
        let seat = self.seat;
        let wanted = match behind {
            None => self.newest,
            Some(behind) => self.stored(behind),
        };
        let Some(wanted) = wanted else {
            return Ok(true);
        };
        let Some(step) = self.steps.get(&wanted).copied() else {
            return Ok(true);
        };
        let lengths: Vec<usize> = self.state(step).iter().map(Vec::len).collect();
        self.protect(&lengths)?;
        let pending = self.pending.take();
        seat.event(Event::GoingBack(wanted, step));
        let restored = match behind {
            None => self.session.restore(),
            Some(_) => self.session.restore_from(wanted.number),
        };
        let what = format!("restoring {wanted} again");
        let restored = match restored {
            // What was started last may have pushed it out.
            Err(error) if error.kind() == ErrorKind::NotRetained && behind.is_some() => {
                return Ok(true);
            }
            // What nothing but the node has, and the node's file is damaged: it was never protected, or against
            // less than was lost.
            Err(error)
                if seat.may_lack(wanted) && behind.is_some() && error.kind().proves_loss() =>
            {
                return Ok(false);
            }
            Err(error) if self.is_disturbed(number) && !seat.world.is_dead() => {
                seat.sane(&what, &error, self.is_full(number))?;
                return Ok(false);
            }
            other => self.call(&what, other, number)?,
        };
        let restored = match restored {
            Ended::Well(restored) => restored,
            Ended::Badly | Ended::Dead => return Ok(false),
        };
        if let Some(id) = pending.filter(|id| *id <= restored.checkpoint) {
            let step = self.steps.get(&id).copied().unwrap_or(0);
            seat.event(Event::Committed(id, step));
        }
        if restored.checkpoint != wanted {
            let text = format!(
                "{} was restored, and {wanted} was to be",
                restored.checkpoint
            );
            return Err(broken(NOTHING_NEWER, text));
        }
        self.check(wanted)?;
        seat.event(Event::Restored(wanted, self.step));
        Ok(true)
    }

    /// The retained checkpoint than which so many are newer, or the oldest.
    fn stored(&self, behind: usize) -> Option<CheckpointId> {
        let stored = self.session.stored_checkpoints().unwrap_or_default();
        let at = stored.len().checked_sub(1)?.saturating_sub(behind);
        stored.get(at).copied()
    }

    fn pin(&mut self, behind: usize, pinned: bool, number: usize) -> Result<(), String> {
        let Some(id) = self.stored(behind) else {
            return Ok(());
        };
        let changed = if pinned {
            self.session.pin(id.number)
        } else {
            self.session.unpin(id.number)
        };
        match changed {
            // Too many, or what was started last pushed it out.
            Err(error) if matches!(error.kind(), ErrorKind::StoreFull | ErrorKind::NotRetained) => {
                Ok(())
            }
            other => self.call("pinning", other, number).map(|_| ()),
        }
    }
}
