// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the next checkpoint will want of the store is done behind the program: space is taken before it is
//! needed, and memory is mapped that was written for the first time.
//! In from: `checkpoint`, after each one. Out to: the store.
//! Invariants: nothing depends on it, a checkpoint does for itself what was not done in time; its thread stands still
//! while this rank captures, and ends with the session; space is taken within `reserve_bytes`, and where as much again
//! stays free.

use super::Session;
use backstay_base::clock::Stopwatch;
use backstay_base::cpu;
use backstay_base::notice;
use backstay_store::reserve::Reserve;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Between two looks whether a round of protection, or a capture, is over.
const PAUSE: Duration = Duration::from_millis(2);
/// Waited for a round of protection, which gives space back, where it is not known how long the program computes.
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// The thread, and what it has to know.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    signals: Arc<Signals>,
    thread: Option<(SyncSender<Work>, JoinHandle<()>)>,
    /// Segments that were leased on this node when the last checkpoint was settled.
    leased: Option<u64>,
    settled: Option<Stopwatch>,
    /// Segments that a new store is to have, where it was made with fewer.
    wanted_slots: u64,
}

/// What the thread is told while it works.
#[derive(Debug, Default)]
struct Signals {
    is_over: AtomicBool,
    captures: AtomicBool,
}

/// What one checkpoint leaves to be done.
#[derive(Debug)]
struct Work {
    reserve: Reserve,
    signals: Arc<Signals>,
    /// Segments that the last checkpoint took, and what was encoded beside it: so many again. The leader's.
    segments: Option<u64>,
    leased: u64,
    wanted_slots: u64,
    /// How long to wait for a round of protection.
    patience: Duration,
    cpu_set: Option<String>,
}

impl Ahead {
    /// A new store of this node, to which this rank is to add up to `wanted_slots`. How much changes from checkpoint to
    /// checkpoint is known after the second.
    pub(super) fn new_store(&mut self, wanted_slots: u64) {
        (self.leased, self.wanted_slots) = (None, wanted_slots);
    }

    /// Ends the thread; waits for at most one step of it.
    pub(super) fn end(&mut self) {
        self.signals.is_over.store(true, Ordering::Release);
        if let Some((work, thread)) = self.thread.take() {
            drop(work);
            drop(thread.join());
        }
        self.signals = Arc::default();
    }

    /// Says whether this rank captures.
    pub(super) fn capturing(&self, captures: bool) {
        self.signals.captures.store(captures, Ordering::Release);
    }

    /// Hands `work` to the thread, if that is not at work: then it has enough to do. Without a thread the next
    /// checkpoint does it.
    fn hand_over(&mut self, work: Work) {
        if self.thread.is_none() {
            let (hand, handed) = sync_channel::<Work>(1);
            let cpu_set = work.cpu_set.clone();
            let run = move || {
                // Of the usual priority: a rank that needs space waits for a step that is under way.
                cpu::restrict_thread(cpu_set.as_deref());
                handed.into_iter().for_each(Work::run);
            };
            let thread = Builder::new().name("backstay-ahead".to_owned()).spawn(run);
            self.thread = thread.ok().map(|thread| (hand, thread));
        }
        if let Some((hand, _)) = &self.thread {
            let (Ok(()) | Err(_)) = hand.try_send(work);
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.end();
    }
}

impl Session {
    /// Has done behind the program what the next checkpoint will want.
    pub(super) fn prepare_ahead(&mut self) {
        let Some(store) = &self.store else { return };
        let reserve = store.rank.reserve().clone();
        let ahead = &mut *self.ahead;
        let leased = reserve.control().next_segment();
        let since = ahead.settled.replace(Stopwatch::start());
        let segments = ahead
            .leased
            .replace(leased)
            .map(|before| leased.saturating_sub(before));
        let is_leader = self.node.leads();
        let work = Work {
            signals: Arc::clone(&ahead.signals),
            // Of another start, or of a store that was found, it is not known.
            segments: segments.filter(|&taken| is_leader && taken <= reserve.control().slots()),
            leased,
            wanted_slots: std::mem::take(&mut ahead.wanted_slots),
            patience: since.map_or(FIRST_WAIT, |since| since.elapsed() / 2),
            cpu_set: self.config.cpu_set.clone(),
            reserve,
        };
        ahead.hand_over(work);
    }
}

impl Work {
    fn run(self) {
        self.make_new_store_whole();
        self.reserve.device().prepare(&|| self.may_go_on());
        let Some(segments) = self.segments else {
            return;
        };
        self.await_round();
        let control = self.reserve.control();
        // What is encoded since may be a part of it.
        let taken = control.next_segment().saturating_sub(self.leased);
        let wanted = segments.saturating_sub(taken);
        let lacking = wanted.saturating_sub(control.free_slots());
        self.grow(control.slots() + lacking);
    }

    /// Whether there is anything to do still; waits while this rank captures.
    fn may_go_on(&self) -> bool {
        let is_over = || self.signals.is_over.load(Ordering::Acquire);
        while self.signals.captures.load(Ordering::Acquire) && !is_over() {
            std::thread::sleep(PAUSE);
        }
        !is_over()
    }

    /// A new store has as much real space as it is to have.
    fn make_new_store_whole(&self) {
        if self.wanted_slots == 0 {
            return;
        }
        if let Err(error) = self.reserve.make_real() {
            notice::warn(&format!("less is reserved than was to be: {error}"));
        }
        self.grow(self.wanted_slots);
    }

    /// Waits for the round of protection under way, if one is.
    fn await_round(&self) {
        let control = self.reserve.control();
        let watch = Stopwatch::start();
        let is_done = || control.protected_in_group() >= control.committed();
        while control.redundant()
            && !is_done()
            && self.may_go_on()
            && watch.elapsed() < self.patience
        {
            std::thread::sleep(PAUSE);
        }
    }

    /// Has the store come to `wanted` segments, in steps, as far as that can be.
    fn grow(&self, wanted: u64) {
        while self.may_go_on() && self.reserve.control().slots() < wanted {
            match self.reserve.grow_ahead(wanted) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!("no space is taken ahead: {error}");
                    return;
                }
            }
        }
    }
}
