// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exact Markov chain of multi-level checkpointing, blocking and non-blocking, any level count.
//!
//! Purpose: the expected time of one period, exactly.
//! In from: a validated [`Case`].
//! Out to: the optimizer, the command line, the figures.
//! Invariants: all sums have positive terms, so that every result is accurate to a few units in
//! the last place times the number of intervals walked, at rates of 0 and 1e-15 as well as where
//! the rate times the interval is far above 1.
//! Paper: section V of "Design and Modeling of a Non-blocking Checkpointing System".
//!
//! # How it is solved
//!
//! The chain is not put into a matrix. What is computed for a stretch of the period is a
//! `Passage`: the expected time until its end is reached *or* the top level is needed, and the
//! probability of each. Passages compose, also `n` times over in closed form. From a failure of
//! severity `l` the way back to where the application stood is itself a passage (recover at the
//! newest checkpoint of level `l` or above, compute again up to here), so a walker that carries
//! one passage per level solves a position with a handful of products. After a checkpoint of level
//! L-1 nothing before it matters to survivable failures, so the blocks between them are all alike:
//! only one is walked, the others are powers of it.

use crate::error::ModelError;
use crate::levels::{Case, Completion, LEVELS_MAX, Mode, Transfer, level_at};
use crate::number::{floor_count, real};

/// The longest expected period that is still given as a number, in seconds.
pub const PERIOD_MAX_SECONDS: f64 = 1e300;

/// What the exact chain says about one period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Solution {
    /// Intervals of one period.
    pub intervals: u64,
    /// Useful time of one period, in seconds.
    pub useful_seconds: f64,
    /// Expected wall time of one period, in seconds.
    pub period_seconds: f64,
    /// Useful time over expected wall time.
    pub efficiency: f64,
}

/// Solves the chain of one case exactly.
pub fn solve(case: &Case) -> Result<Solution, ModelError> {
    case.validate()?;
    let period_seconds = match case.mode {
        Mode::Blocking => {
            let top = case.checkpoint_seconds.last().copied().unwrap_or(0.0);
            Chain::new(case, top).redo_seconds()
        }
        Mode::NonBlocking(transfer) => {
            Chain::new(case, transfer.top_checkpoint_seconds).nonblocking_seconds(&transfer)
        }
    };
    if !period_seconds.is_finite() || period_seconds > PERIOD_MAX_SECONDS {
        return Err(ModelError::Endless {
            seconds: period_seconds,
        });
    }
    let useful_seconds = case.useful_seconds();
    Ok(Solution {
        intervals: case.intervals().unwrap_or(0),
        useful_seconds,
        period_seconds,
        efficiency: useful_seconds / period_seconds,
    })
}

/// A stretch of the period: how long until it ends or the top level is needed, and which.
#[derive(Debug, Clone, Copy)]
struct Passage {
    /// Expected time until either end, in seconds.
    seconds: f64,
    /// Probability that the end of the stretch is reached.
    reach: f64,
    /// Probability that a recovery at the top level is needed first.
    leak: f64,
}

impl Passage {
    const NOTHING: Self = Self {
        seconds: 0.0,
        reach: 1.0,
        leak: 0.0,
    };
    /// No checkpoint below the top level is good enough.
    const TOP: Self = Self {
        seconds: 0.0,
        reach: 0.0,
        leak: 1.0,
    };

    /// This stretch, then the next one.
    fn then(self, next: Self) -> Self {
        Self {
            seconds: self.seconds + weigh(self.reach, next.seconds),
            reach: self.reach * next.reach,
            leak: self.leak + self.reach * next.leak,
        }
    }

    /// This stretch `count` times in a row.
    fn repeat(self, count: u64) -> Self {
        if count == 0 {
            return Self::NOTHING;
        }
        let log_reach = if self.leak < 0.5 {
            (-self.leak).ln_1p()
        } else {
            self.reach.ln()
        };
        let power = real(count) * log_reach;
        let leak = -power.exp_m1();
        let visits = if self.leak > 0.0 {
            leak / self.leak
        } else {
            real(count)
        };
        Self {
            seconds: weigh(visits, self.seconds),
            reach: power.exp(),
            leak,
        }
    }

    /// Expected seconds in all, given what follows each end.
    fn total_seconds(self, after_reach: f64, after_leak: f64) -> f64 {
        self.seconds + weigh(self.reach, after_reach) + weigh(self.leak, after_leak)
    }
}

/// A probability times a duration that may be infinite where the probability is zero.
fn weigh(probability: f64, seconds: f64) -> f64 {
    if probability == 0.0 {
        0.0
    } else {
        probability * seconds
    }
}

/// What can happen during a stay of fixed length (the paper's p0 and the mean of t0 and ti).
#[derive(Debug, Clone, Copy)]
struct Stay {
    /// Expected time in the state, in seconds.
    seconds: f64,
    /// Probability of no failure.
    survive: f64,
    /// Probability of a failure of any level.
    fail: f64,
}

/// The rates of one case, prepared.
#[derive(Debug, Clone)]
struct Rates {
    total_per_second: f64,
    shares: [f64; LEVELS_MAX],
    level_count: usize,
}

impl Rates {
    fn new(failures_per_second: &[f64]) -> Self {
        let total_per_second: f64 = failures_per_second.iter().sum();
        let mut shares = [0.0; LEVELS_MAX];
        if total_per_second > 0.0 {
            for (share, rate) in shares.iter_mut().zip(failures_per_second) {
                *share = rate / total_per_second;
            }
        }
        Self {
            total_per_second,
            shares,
            level_count: failures_per_second.len(),
        }
    }

    fn stay(&self, seconds: f64) -> Stay {
        let exponent = self.total_per_second * seconds;
        let fail = -(-exponent).exp_m1();
        let mean = if exponent > 0.0 {
            seconds * (fail / exponent)
        } else {
            seconds
        };
        Stay {
            seconds: mean,
            survive: (-exponent).exp(),
            fail,
        }
    }

    /// Recovery at the top level, retried on any failure, in seconds.
    fn retry_forever_seconds(&self, seconds: f64) -> f64 {
        let exponent = self.total_per_second * seconds;
        if exponent > 0.0 {
            seconds * (exponent.exp_m1() / exponent)
        } else {
            seconds
        }
    }
}

/// Walks the intervals of a block and knows, for each severity, the way back to where it stands.
#[derive(Debug, Clone)]
struct Walker<'a> {
    rates: &'a Rates,
    recovery_seconds: &'a [f64],
    /// Index l-1: from a failure of severity l back to the present position.
    way_back: [Passage; LEVELS_MAX],
}

impl<'a> Walker<'a> {
    /// A walker at a position where only the durable top-level checkpoint exists.
    fn at_durable(rates: &'a Rates, recovery_seconds: &'a [f64]) -> Self {
        Self {
            rates,
            recovery_seconds,
            way_back: [Passage::TOP; LEVELS_MAX],
        }
    }

    /// A walker at a position that holds a checkpoint of level L-1.
    fn at_local(rates: &'a Rates, recovery_seconds: &'a [f64]) -> Self {
        let mut walker = Self::at_durable(rates, recovery_seconds);
        walker.commit(rates.level_count - 1);
        walker
    }

    /// An interval of the given length, repeated from the newest good checkpoint until it is done.
    fn attempt(&self, seconds: f64) -> Passage {
        let stay = self.rates.stay(seconds);
        let mut spent = stay.seconds;
        let mut leak = 0.0;
        for index in 0..self.rates.level_count {
            let chance = self.rates.shares[index] * stay.fail;
            spent += weigh(chance, self.way_back[index].seconds);
            leak += chance * self.way_back[index].leak;
        }
        settle(spent, stay.survive, leak)
    }

    /// Moves one interval on.
    fn advance(&mut self, step: Passage) {
        for passage in &mut self.way_back[..self.rates.level_count] {
            *passage = passage.then(step);
        }
    }

    /// A checkpoint of the level (below the top) now exists here.
    fn commit(&mut self, level: usize) {
        if level == 0 {
            return;
        }
        let stay = self.rates.stay(self.recovery_seconds[level - 1]);
        let mut spent = stay.seconds;
        let mut reach = stay.survive;
        let mut leak = 0.0;
        for index in level - 1..self.rates.level_count {
            let chance = self.rates.shares[index] * stay.fail;
            let severity = (index + 1).max(level + 1);
            let back = self.way_back[severity - 1];
            spent += weigh(chance, back.seconds);
            reach += chance * back.reach;
            leak += chance * back.leak;
        }
        let recovery = settle(spent, reach, leak);
        for passage in &mut self.way_back[..level] {
            *passage = recovery;
        }
    }
}

/// A try repeated until it reaches or leaks, from the figures of one try.
fn settle(seconds: f64, reach: f64, leak: f64) -> Passage {
    let done = reach + leak;
    if done > 0.0 {
        return Passage {
            seconds: seconds / done,
            reach: reach / done,
            leak: leak / done,
        };
    }
    Passage {
        seconds: f64::INFINITY,
        ..Passage::NOTHING
    }
}

/// The intervals between two checkpoints of level L-1, solved.
#[derive(Debug)]
struct Block {
    /// One passage per interval; the last one ends with a checkpoint of level L-1.
    steps: Vec<Passage>,
    /// The same last interval, ending the period instead.
    last: Passage,
    /// All of `steps`.
    whole: Passage,
}

/// One case, prepared for solving.
#[derive(Debug)]
struct Chain<'a> {
    case: &'a Case,
    rates: Rates,
    /// What the last interval of the period costs beside its useful time, in seconds.
    top_seconds: f64,
    /// Intervals between checkpoints of level L-1.
    block_intervals: u64,
    /// Such blocks in one period.
    block_count: u64,
}

impl<'a> Chain<'a> {
    fn new(case: &'a Case, top_seconds: f64) -> Self {
        let block_count = case.between.last().map_or(1, |&count| count + 1);
        let lower = case.between.len().saturating_sub(1);
        let block_intervals = case.between[..lower]
            .iter()
            .map(|&count| count + 1)
            .product();
        let rates = Rates::new(&case.failures_per_second);
        Self {
            case,
            rates,
            top_seconds,
            block_intervals,
            block_count,
        }
    }

    fn intervals(&self) -> u64 {
        self.block_intervals * self.block_count
    }

    /// Checkpoint time at the end of interval `offset` (from 1) of a block, in seconds.
    fn block_checkpoint_seconds(&self, offset: u64) -> f64 {
        let level = level_at(offset, &self.case.between).min(self.rates.level_count - 1);
        if level == 0 {
            self.top_seconds
        } else {
            self.case.checkpoint_seconds[level - 1]
        }
    }

    /// Checkpoint time at the end of interval `index` (from 1) of the period, in seconds.
    fn checkpoint_seconds(&self, index: u64) -> f64 {
        if index == self.intervals() {
            return self.top_seconds;
        }
        self.block_checkpoint_seconds((index - 1) % self.block_intervals + 1)
    }

    fn walker(&self, local: bool) -> Walker<'_> {
        if local {
            Walker::at_local(&self.rates, &self.case.recovery_seconds)
        } else {
            Walker::at_durable(&self.rates, &self.case.recovery_seconds)
        }
    }

    /// Walks one block; `work_seconds` is the useful time of an interval with its slowdown.
    fn block(&self, local: bool, work_seconds: f64) -> Block {
        let mut walker = self.walker(local);
        let mut steps = Vec::new();
        let mut last = Passage::NOTHING;
        let mut whole = Passage::NOTHING;
        for offset in 1..=self.block_intervals {
            if offset == self.block_intervals {
                last = walker.attempt(work_seconds + self.top_seconds);
            }
            let step = walker.attempt(work_seconds + self.block_checkpoint_seconds(offset));
            walker.advance(step);
            walker.commit(level_at(offset, &self.case.between).min(self.rates.level_count - 1));
            whole = whole.then(step);
            steps.push(step);
        }
        Block { steps, last, whole }
    }

    /// A walker that stands `offset` intervals behind a checkpoint of level L-1.
    fn walker_at(&self, block: &Block, offset: usize) -> Walker<'_> {
        let mut walker = self.walker(true);
        for (done, &step) in (1_u64..).zip(&block.steps[..offset]) {
            walker.advance(step);
            walker.commit(level_at(done, &self.case.between).min(self.rates.level_count - 1));
        }
        walker
    }

    /// From one position to a later one; `first` is the first block, `next` all others.
    fn span(&self, first: &Block, next: &Block, from: u64, to: u64) -> Passage {
        let mut passage = Passage::NOTHING;
        let mut position = from;
        while position < to {
            let index = position / self.block_intervals;
            let offset = position % self.block_intervals;
            let block = if index == 0 { first } else { next };
            let whole_until = (to / self.block_intervals).min(self.block_count - 1);
            if offset == 0 && index < whole_until {
                let count = if index == 0 { 1 } else { whole_until - index };
                passage = passage.then(block.whole.repeat(count));
                position += count * self.block_intervals;
            } else {
                passage = passage.then(self.step(block, position));
                position += 1;
            }
        }
        passage
    }

    /// The interval that starts at the position.
    fn step(&self, block: &Block, position: u64) -> Passage {
        if position + 1 == self.intervals() {
            return block.last;
        }
        let offset = usize::try_from(position % self.block_intervals).unwrap_or(usize::MAX);
        block.steps.get(offset).copied().unwrap_or(block.last)
    }

    /// Recovery at the top level until the computation goes on, in seconds.
    fn recover_top_seconds(&self) -> f64 {
        let top = self.case.recovery_seconds.last().copied().unwrap_or(0.0);
        self.rates.retry_forever_seconds(top)
    }

    /// All N intervals from a durable checkpoint without local copy and without transfer, seconds.
    fn redo_seconds(&self) -> f64 {
        let work = self.case.interval_seconds;
        let first = self.block(false, work);
        let next = if self.block_count > 1 {
            Some(self.block(true, work))
        } else {
            None
        };
        let next = next.as_ref().unwrap_or(&first);
        let all = self.span(&first, next, 0, self.intervals());
        (all.seconds + weigh(all.leak, self.recover_top_seconds())) / all.reach
    }
}

/// Where and how a transfer becomes durable.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Durable {
    /// Before the first interval.
    AtOnce,
    /// In this interval (from 1), with this much progress at its start, in seconds.
    In {
        interval: u64,
        progress_seconds: f64,
    },
    /// Only after a stall of this length, in seconds.
    AfterStall { stall_seconds: f64 },
}

impl Chain<'_> {
    fn nonblocking_seconds(&self, transfer: &Transfer) -> f64 {
        // What follows a top-level failure, before durability: the intervals of the period before
        // have to be computed again; after it: those of this one, with nothing in flight.
        let again_seconds = self.recover_top_seconds() + self.redo_seconds();
        let clear = self.block(true, self.case.interval_seconds);
        let work = (1.0 + transfer.slowdown_share) * self.case.interval_seconds;
        match self.durable(transfer) {
            Durable::AtOnce => self
                .span(&clear, &clear, 0, self.intervals())
                .total_seconds(0.0, again_seconds),
            Durable::AfterStall { stall_seconds } => {
                let slow = self.block(true, work);
                let in_flight = self.span(&slow, &slow, 0, self.intervals());
                let stall = self.walker(true).attempt(stall_seconds);
                restart_until_reached(in_flight.then(stall), again_seconds)
            }
            Durable::In {
                interval,
                progress_seconds,
            } => {
                let slow = self.block(true, work);
                let after = self.span(&clear, &clear, interval, self.intervals());
                let after_seconds = after.total_seconds(0.0, again_seconds);
                if transfer.completion == Completion::State {
                    let in_flight = self.span(&slow, &slow, 0, interval);
                    return restart_until_reached(in_flight, again_seconds) + after_seconds;
                }
                let left = transfer.latency_seconds - progress_seconds;
                let ends = Ends {
                    after_seconds,
                    again_seconds,
                };
                self.continuous_seconds(&slow, &clear, interval, left, transfer, ends)
            }
        }
    }

    /// The interval in which the progress reaches the latency.
    fn durable(&self, transfer: &Transfer) -> Durable {
        let tolerance = transfer.tolerance_seconds();
        if transfer.latency_seconds <= tolerance {
            return Durable::AtOnce;
        }
        let work = (1.0 + transfer.slowdown_share) * self.case.interval_seconds;
        let target = transfer.latency_seconds - tolerance;
        let block_seconds: f64 = (1..=self.block_intervals)
            .map(|offset| work + self.block_checkpoint_seconds(offset))
            .sum();
        let mut index = floor_count(target / block_seconds).min(self.block_count - 1);
        while index > 0 && real(index) * block_seconds >= target {
            index -= 1;
        }
        let mut progress = real(index) * block_seconds;
        for interval in index * self.block_intervals + 1..=self.intervals() {
            let next = progress + work + self.checkpoint_seconds(interval);
            if next >= target {
                return Durable::In {
                    interval,
                    progress_seconds: progress,
                };
            }
            progress = next;
        }
        Durable::AfterStall {
            stall_seconds: transfer.latency_seconds - progress,
        }
    }

    /// The period when the transfer becomes durable within an interval, in seconds.
    fn continuous_seconds(
        &self,
        slow: &Block,
        clear: &Block,
        interval: u64,
        left_seconds: f64,
        transfer: &Transfer,
        ends: Ends,
    ) -> f64 {
        let slowed = 1.0 + transfer.slowdown_share;
        let work = slowed * self.case.interval_seconds;
        let cost = self.checkpoint_seconds(interval);
        let (before, rest) = if left_seconds <= work {
            (
                left_seconds,
                self.case.interval_seconds - left_seconds / slowed + cost,
            )
        } else {
            (
                left_seconds.min(work + cost),
                (work + cost - left_seconds).max(0.0),
            )
        };
        let start = interval - 1;
        let offset = usize::try_from(start % self.block_intervals).unwrap_or(0);
        let until_durable = self
            .span(slow, slow, 0, start)
            .then(self.walker_at(slow, offset).attempt(before));
        let step = self.step(clear, start);
        let from_start = step.total_seconds(ends.after_seconds, ends.again_seconds);
        let walker = self.walker_at(clear, offset);
        let stay = self.rates.stay(rest.max(0.0));
        let mut seconds = stay.seconds + weigh(stay.survive, ends.after_seconds);
        for index in 0..self.rates.level_count {
            let chance = self.rates.shares[index] * stay.fail;
            let back = walker.way_back[index].total_seconds(from_start, ends.again_seconds);
            seconds += weigh(chance, back);
        }
        restart_until_reached(until_durable, ends.again_seconds) + seconds
    }
}

/// What follows the end of a stretch and what follows a top-level failure, in seconds.
#[derive(Debug, Clone, Copy)]
struct Ends {
    after_seconds: f64,
    again_seconds: f64,
}

/// A stretch that starts again, after `again_seconds`, whenever the top level is needed.
fn restart_until_reached(stretch: Passage, again_seconds: f64) -> f64 {
    (stretch.seconds + weigh(stretch.leak, again_seconds)) / stretch.reach
}
