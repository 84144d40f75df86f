// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Monte Carlo of job runs, played from the rules in words and not from the equations.
//!
//! Purpose: an independent check of the exact chain, and answers the chain has none for: Weibull
//! failures, recorded failures, transfers that resume or restart.
//! In from: a validated [`Case`] and a source of failures.
//! Out to: `backstay simulate`, the tests that compare it with [`crate::markov`].
//! Invariants: shares no code with [`crate::markov`], not even the rule for levels; one seed gives
//! one history; positions are absolute interval numbers, so that "the period before" needs no
//! special case.
//!
//! # The rules
//!
//! A job computes interval after interval, each ended by a checkpoint. It keeps the checkpoints it
//! has: at most one durable one (the top level), and local ones. When the last interval of a
//! period ends, its state is transferred to the top level in the background while the next period
//! runs; a period whose predecessor's transfer is still in flight at its end waits for it.

use crate::error::ModelError;
use crate::levels::{Case, Completion, Mode};
use crate::number::{real, real_len};
use crate::random::{Random, gamma_function};

/// What becomes of the progress of a transfer when the application falls back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferPolicy {
    /// The progress falls back too, to what it was when the state was committed.
    Tied,
    /// The progress is kept.
    Resume,
    /// The transfer starts from zero.
    Restart,
}

/// When failures happen.
#[derive(Debug, Clone, PartialEq)]
pub enum Failures {
    /// Independent, at the constant rates of the case.
    Exponential,
    /// Renewals with a Weibull-distributed gap of this shape and the mean of the case's total
    /// rate; the level is drawn by the shares of the rates.
    Weibull {
        /// Shape: below 1 failures come in bursts, 1 is exponential.
        shape: f64,
    },
    /// A recorded history, repeated from its start when it is used up.
    Log(FailureLog),
}

/// A recorded history of failures.
#[derive(Debug, Clone, PartialEq)]
pub struct FailureLog {
    /// Seconds since the start of the record and level, in order of time.
    pub events: Vec<(f64, usize)>,
    /// Length of the record in seconds.
    pub span_seconds: f64,
}

/// Settings of a simulation.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where failures come from.
    pub failures: Failures,
    /// What becomes of transfers.
    pub policy: TransferPolicy,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Intervals played before the simulation gives up.
    pub interval_budget: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            failures: Failures::Exponential,
            policy: TransferPolicy::Tied,
            seed: 1,
            interval_budget: 1_000_000_000,
        }
    }
}

/// A mean over independent periods with its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PeriodEstimate {
    /// Periods played.
    pub periods: u64,
    /// Mean wall time of a period, in seconds.
    pub mean_seconds: f64,
    /// Standard error of that mean, in seconds.
    pub standard_error_seconds: f64,
    /// Useful time over mean wall time.
    pub efficiency: f64,
    /// Intervals and recoveries played in all.
    pub intervals_played: u64,
}

/// Whole job runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Runs {
    /// Wall time of each run in seconds, in the order played.
    pub wall_seconds: Vec<f64>,
    /// Failures met, by level.
    pub failures: Vec<u64>,
    /// Intervals played in all.
    pub intervals_played: u64,
    /// Runs that did not end within the budget.
    pub unfinished: u64,
}

/// Plays periods one after the other and averages their wall time.
pub fn periods(case: &Case, settings: &Settings, count: u64) -> Result<PeriodEstimate, ModelError> {
    let mut world = World::new(case, settings)?;
    world.start_period();
    let (mut played, mut mean, mut squares) = (0_u64, 0.0_f64, 0.0_f64);
    let mut begun = 0.0;
    while played < count && !world.exhausted() {
        if !world.advance() {
            continue;
        }
        let seconds = world.clock_seconds - begun;
        begun = world.clock_seconds;
        played += 1;
        let shift = seconds - mean;
        mean += shift / real(played);
        squares += shift * (seconds - mean);
        world.rebase(&mut begun);
    }
    if played < 2 {
        return Err(ModelError::field(
            "interval_budget",
            settings.interval_budget,
            "more intervals: fewer than two periods ended",
        ));
    }
    let variance = squares / real(played - 1);
    Ok(PeriodEstimate {
        periods: played,
        mean_seconds: mean,
        standard_error_seconds: (variance / real(played)).sqrt(),
        efficiency: case.useful_seconds() / mean,
        intervals_played: world.intervals_played,
    })
}

/// Plays whole job runs of the given useful time, from a durable initial state.
pub fn runs(
    case: &Case,
    settings: &Settings,
    job_seconds: f64,
    count: u64,
) -> Result<Runs, ModelError> {
    if !(job_seconds.is_finite() && job_seconds > 0.0) {
        return Err(ModelError::field(
            "job_seconds",
            job_seconds,
            "above 0 and finite",
        ));
    }
    let mut world = World::new(case, settings)?;
    let mut result = Runs {
        wall_seconds: Vec::new(),
        failures: vec![0; case.level_count()],
        intervals_played: 0,
        unfinished: 0,
    };
    let needed = (job_seconds / case.interval_seconds).ceil();
    for _ in 0..count {
        world.start_run();
        world.play_until = world
            .intervals_played
            .saturating_add(settings.interval_budget);
        while real(world.position) < needed && !world.exhausted() {
            world.advance();
        }
        if real(world.position) < needed {
            result.unfinished += 1;
        } else {
            let surplus = (real(world.position) - needed) * case.interval_seconds;
            result.wall_seconds.push(world.clock_seconds - surplus);
        }
    }
    result.failures.clone_from(&world.failures_met);
    result.intervals_played = world.intervals_played;
    Ok(result)
}

/// A checkpoint on the nodes.
#[derive(Debug, Clone, Copy)]
struct Local {
    position: u64,
    level: usize,
    /// Progress of the transfer in flight when it was committed, in seconds.
    progress_seconds: f64,
}

/// A transfer in flight.
#[derive(Debug, Clone, Copy)]
struct Flight {
    source: u64,
    progress_seconds: f64,
}

/// How an asynchronous top level behaves, with the figures used at every interval.
#[derive(Debug, Clone, Copy)]
struct Background {
    slowed: f64,
    latency_seconds: f64,
    tolerance_seconds: f64,
    continuous: bool,
}

/// A job, its checkpoints and its failures.
#[derive(Debug)]
struct World<'a> {
    case: &'a Case,
    background: Option<Background>,
    top_seconds: f64,
    policy: TransferPolicy,
    period: u64,
    source: FailureSource,
    clock_seconds: f64,
    until_failure_seconds: f64,
    next_level: usize,
    /// Intervals of the job that are computed and committed.
    position: u64,
    durable: u64,
    locals: Vec<Local>,
    flight: Option<Flight>,
    /// The transfer whose first start ends the present period has this source.
    next_period: u64,
    intervals_played: u64,
    /// Intervals and recoveries after which everything is broken off.
    play_until: u64,
    failures_met: Vec<u64>,
}

impl<'a> World<'a> {
    fn new(case: &'a Case, settings: &Settings) -> Result<Self, ModelError> {
        case.validate()?;
        let mut period = 1;
        for &count in &case.between {
            period *= count + 1;
        }
        let (background, top_seconds) = match case.mode {
            Mode::Blocking => (None, case.checkpoint_seconds[case.level_count() - 1]),
            Mode::NonBlocking(transfer) => {
                let background = Background {
                    slowed: 1.0 + transfer.slowdown_share,
                    latency_seconds: transfer.latency_seconds,
                    tolerance_seconds: 1e-9 * f64::max(1.0, transfer.latency_seconds),
                    continuous: transfer.completion == Completion::Continuous,
                };
                (Some(background), transfer.top_checkpoint_seconds)
            }
        };
        let mut world = Self {
            case,
            background,
            top_seconds,
            policy: settings.policy,
            period,
            source: FailureSource::new(case, settings)?,
            clock_seconds: 0.0,
            until_failure_seconds: f64::INFINITY,
            next_level: 1,
            position: 0,
            durable: 0,
            locals: Vec::with_capacity(case.level_count()),
            flight: None,
            next_period: period,
            intervals_played: 0,
            play_until: settings.interval_budget,
            failures_met: vec![0; case.level_count()],
        };
        world.draw_failure();
        Ok(world)
    }

    /// A run from its beginning: the input is durable, nothing is on the nodes.
    fn start_run(&mut self) {
        self.clock_seconds = 0.0;
        self.position = 0;
        self.durable = 0;
        self.locals.clear();
        self.flight = None;
        self.next_period = self.period;
        self.source.restart();
        self.draw_failure();
    }

    /// The middle of a long run: a period begins, the one before it is durable.
    fn start_period(&mut self) {
        if self.background.is_none() {
            return;
        }
        self.position = self.period;
        self.next_period = 2 * self.period;
        self.leave_local_copy();
        self.start_transfer();
    }

    /// Keeps the numbers small in long simulations: counts positions from the present period.
    fn rebase(&mut self, begun: &mut f64) {
        let shift = self.durable;
        self.position -= shift;
        self.next_period -= shift;
        self.durable = 0;
        for local in &mut self.locals {
            local.position -= shift;
        }
        if let Some(flight) = &mut self.flight {
            flight.source -= shift;
        }
        self.clock_seconds -= *begun;
        *begun = 0.0;
    }
    /// A recovery that never goes through, or a budget that is used up.
    fn exhausted(&self) -> bool {
        self.intervals_played >= self.play_until
    }

    fn draw_failure(&mut self) {
        (self.until_failure_seconds, self.next_level) = self.source.draw();
    }

    /// Lets time pass; a failure cuts it short and gives its level and the time until it.
    fn pass(&mut self, seconds: f64) -> Result<(), (f64, usize)> {
        if seconds <= self.until_failure_seconds {
            self.clock_seconds += seconds;
            self.until_failure_seconds -= seconds;
            return Ok(());
        }
        let elapsed = self.until_failure_seconds;
        let level = self.next_level;
        self.clock_seconds += elapsed;
        self.failures_met[level - 1] += 1;
        self.draw_failure();
        Err((elapsed, level))
    }

    /// Level of the checkpoint that ends the interval after the present position: as on an
    /// odometer, every wheel that turns over raises it by one.
    fn level_of_next(&self) -> usize {
        let mut wheels = self.position % self.period;
        let mut level = 1;
        for &count in &self.case.between {
            if wheels % (count + 1) != count {
                break;
            }
            wheels /= count + 1;
            level += 1;
        }
        level
    }

    /// One interval with its checkpoint, or a failure with all its recovery. True when a period
    /// ended: the next transfer started for the first time (blocking: its checkpoint is there).
    fn advance(&mut self) -> bool {
        self.intervals_played += 1;
        let level = self.level_of_next();
        let top = level == self.case.level_count();
        let cost = if top {
            self.top_seconds
        } else {
            self.case.checkpoint_seconds[level - 1]
        };
        if let Err(failed) = self.compute(cost) {
            self.recover(failed);
            return false;
        }
        self.position += 1;
        if !top {
            self.save_local(level);
            return false;
        }
        if self.background.is_none() {
            self.durable = self.position;
            self.locals.clear();
            self.next_period = self.position + self.period;
            return true;
        }
        self.leave_local_copy();
        if !self.stall() {
            return false;
        }
        self.start_transfer();
        if self.position < self.next_period {
            return false;
        }
        self.next_period = self.position + self.period;
        true
    }

    /// Useful work and the checkpoint after it.
    fn compute(&mut self, cost_seconds: f64) -> Result<(), usize> {
        let useful = self.case.interval_seconds;
        let (Some(background), Some(flight)) = (self.background, self.flight) else {
            return self.pass(useful + cost_seconds).map_err(|(_, level)| level);
        };
        let slowed = background.slowed * useful;
        let left = background.latency_seconds - flight.progress_seconds;
        if background.continuous && left <= slowed + cost_seconds {
            self.fly(left)?;
            self.land();
            let rest = if left <= slowed {
                (useful - left / background.slowed) + cost_seconds
            } else {
                slowed + cost_seconds - left
            };
            return self.pass(rest.max(0.0)).map_err(|(_, level)| level);
        }
        self.fly(slowed + cost_seconds)?;
        self.land_if_arrived();
        Ok(())
    }

    /// Time during which the transfer makes progress.
    fn fly(&mut self, seconds: f64) -> Result<(), usize> {
        let outcome = self.pass(seconds);
        let gained = outcome.map_or_else(|(elapsed, _)| elapsed, |()| seconds);
        if let Some(flight) = &mut self.flight {
            flight.progress_seconds += gained;
        }
        outcome.map_err(|(_, level)| level)
    }

    /// The transfer is complete: its source is the durable checkpoint now.
    fn land(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.durable = flight.source;
        }
    }

    fn land_if_arrived(&mut self) {
        let (Some(background), Some(flight)) = (self.background, self.flight) else {
            return;
        };
        let reached = flight.progress_seconds + background.tolerance_seconds;
        if reached >= background.latency_seconds {
            self.land();
        }
    }

    /// A local checkpoint; older ones of its level or below can never be the newest good one again.
    fn save_local(&mut self, level: usize) {
        while self.locals.last().is_some_and(|local| local.level <= level) {
            self.locals.pop();
        }
        let progress_seconds = self.flight.map_or(0.0, |flight| flight.progress_seconds);
        self.locals.push(Local {
            position: self.position,
            level,
            progress_seconds,
        });
    }

    /// The top-level checkpoint's copy on the nodes, one level below the top.
    fn leave_local_copy(&mut self) {
        let level = self.case.level_count() - 1;
        if level > 0 {
            self.save_local(level);
        }
    }

    /// Waits at the end of a period for the transfer that is still in flight; false when a failure
    /// of the top level threw the job back to an earlier position.
    fn stall(&mut self) -> bool {
        let here = self.position;
        while let (Some(background), Some(flight)) = (self.background, self.flight) {
            self.intervals_played += 1;
            let left = (background.latency_seconds - flight.progress_seconds).max(0.0);
            match self.fly(left) {
                Ok(()) => self.land(),
                Err(level) => self.recover(level),
            }
            if self.position != here || self.exhausted() {
                return false;
            }
        }
        true
    }

    /// The present position's state starts on its way to the top level.
    fn start_transfer(&mut self) {
        if let Some(copy) = self.locals.last_mut() {
            copy.progress_seconds = 0.0;
        }
        self.flight = Some(Flight {
            source: self.position,
            progress_seconds: 0.0,
        });
        self.land_if_arrived();
    }

    /// After a failure of the level: looks for the newest checkpoint that survived it, until a
    /// recovery has gone through.
    fn recover(&mut self, failed_level: usize) {
        let top = self.case.level_count();
        let mut severity = failed_level;
        loop {
            while self
                .locals
                .last()
                .is_some_and(|local| local.level < severity)
            {
                self.locals.pop();
            }
            self.intervals_played += 1;
            if self.exhausted() {
                return;
            }
            let Some(found) = self.locals.last().copied().filter(|_| severity < top) else {
                return self.recover_from_top();
            };
            // Below its own level a failure leaves the checkpoint as good as it was.
            match self.pass(self.case.recovery_seconds[found.level - 1]) {
                Ok(()) => return self.resume_at(found),
                Err((_, level)) if level < found.level => {}
                Err((_, level)) => severity = level.max(found.level + 1),
            }
        }
    }

    fn recover_from_top(&mut self) {
        self.locals.clear();
        self.flight = None;
        self.position = self.durable;
        let seconds = self.case.recovery_seconds[self.case.level_count() - 1];
        while self.pass(seconds).is_err() && !self.exhausted() {
            self.intervals_played += 1;
        }
    }

    fn resume_at(&mut self, found: Local) {
        self.position = found.position;
        if let Some(flight) = &mut self.flight {
            match self.policy {
                TransferPolicy::Tied => flight.progress_seconds = found.progress_seconds,
                TransferPolicy::Resume => {}
                TransferPolicy::Restart => flight.progress_seconds = 0.0,
            }
        }
        if self.policy == TransferPolicy::Resume {
            self.land_if_arrived();
        }
    }
}

/// Draws the gap to the next failure and its level.
#[derive(Debug)]
struct FailureSource {
    random: Random,
    failures: Failures,
    total_per_second: f64,
    /// Running sums of the levels' shares.
    shares: Vec<f64>,
    /// Scale of the Weibull gap, in seconds.
    scale_seconds: f64,
    /// Next entry of the log and the time already passed in it, in seconds.
    next_event: usize,
    passed_seconds: f64,
}

impl FailureSource {
    fn new(case: &Case, settings: &Settings) -> Result<Self, ModelError> {
        let levels = case.level_count();
        let mut total_per_second = 0.0;
        let mut shares = Vec::with_capacity(levels);
        for &rate in &case.failures_per_second {
            total_per_second += rate;
            shares.push(total_per_second);
        }
        let mut scale_seconds = 0.0;
        match &settings.failures {
            Failures::Exponential => {}
            Failures::Weibull { shape } => {
                crate::error::check_range("weibull_shape", *shape, 0.05, 20.0)?;
                scale_seconds = 1.0 / (total_per_second * gamma_function(1.0 + 1.0 / shape));
            }
            Failures::Log(log) => log.validate(levels)?,
        }
        Ok(Self {
            random: Random::from_seed(settings.seed),
            failures: settings.failures.clone(),
            total_per_second,
            shares,
            scale_seconds,
            next_event: 0,
            passed_seconds: 0.0,
        })
    }

    /// A new run: a log is entered at a random place, so that runs differ.
    fn restart(&mut self) {
        if let Failures::Log(log) = &self.failures {
            self.passed_seconds = log.span_seconds * (1.0 - self.random.unit());
            let passed = self.passed_seconds;
            self.next_event = log.events.partition_point(|&(seconds, _)| seconds < passed);
        }
    }

    fn draw(&mut self) -> (f64, usize) {
        let gap = match &self.failures {
            Failures::Log(log) => {
                if self.next_event >= log.events.len() {
                    self.next_event = 0;
                    self.passed_seconds -= log.span_seconds;
                }
                let Some(&(seconds, level)) = log.events.get(self.next_event) else {
                    return (f64::INFINITY, 1);
                };
                let gap = seconds - self.passed_seconds;
                self.passed_seconds = seconds;
                self.next_event += 1;
                return (gap, level);
            }
            _ if self.total_per_second <= 0.0 => return (f64::INFINITY, 1),
            Failures::Exponential => self.random.exponential() / self.total_per_second,
            Failures::Weibull { shape } => {
                self.scale_seconds * self.random.exponential().powf(1.0 / shape)
            }
        };
        (gap, self.draw_level())
    }

    fn draw_level(&mut self) -> usize {
        let mark = self.random.unit() * self.total_per_second;
        let index = self.shares.iter().position(|&upto| mark <= upto);
        index.unwrap_or(self.shares.len() - 1) + 1
    }
}

impl FailureLog {
    /// Reads `seconds,level` lines. A first line that is not a number is taken as a header; empty
    /// lines and lines that begin with `#` are skipped. Times count from the start of the record
    /// and must not fall.
    pub fn from_csv(text: &str) -> Result<Self, ModelError> {
        let mut events: Vec<(f64, usize)> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let event = parse_event(line, index + 1);
            match event {
                Err(_) if events.is_empty() && line.starts_with(|c: char| c.is_alphabetic()) => {}
                Err(error) => return Err(error),
                Ok(event) if events.last().is_some_and(|last| last.0 > event.0) => {
                    let field = format!("seconds in line {}", index + 1);
                    return Err(ModelError::field(
                        field,
                        event.0,
                        "not before the line above",
                    ));
                }
                Ok(event) => events.push(event),
            }
        }
        let Some(&(last, _)) = events.last() else {
            return Err(ModelError::field(
                "failure log",
                "no events",
                "one event or more",
            ));
        };
        // The record ends one mean gap behind its last event, so that the rate is kept.
        let span_seconds = last + last / real_len(events.len()).max(1.0);
        Ok(Self {
            events,
            span_seconds: span_seconds.max(f64::MIN_POSITIVE),
        })
    }

    fn validate(&self, levels: usize) -> Result<(), ModelError> {
        for &(seconds, level) in &self.events {
            if level == 0 || level > levels {
                let allowed = format!("1 to {levels} as in the case");
                return Err(ModelError::field(
                    "level in the failure log",
                    level,
                    allowed,
                ));
            }
            crate::error::check_range("seconds in the failure log", seconds, 0.0, 1e18)?;
        }
        let last = self.events.last().map_or(0.0, |event| event.0);
        if self.span_seconds > 0.0 && self.span_seconds >= last {
            return Ok(());
        }
        Err(ModelError::field(
            "span_seconds",
            self.span_seconds,
            "above 0 and past the last event",
        ))
    }
}

fn parse_event(line: &str, number: usize) -> Result<(f64, usize), ModelError> {
    let mut columns = line.split(',').map(str::trim);
    let (first, second) = (columns.next().unwrap_or(""), columns.next().unwrap_or(""));
    let field = |name: &str| format!("{name} in line {number}");
    let seconds = first
        .parse::<f64>()
        .ok()
        .filter(|seconds| seconds.is_finite() && (0.0..=1e18).contains(seconds))
        .ok_or_else(|| ModelError::field(field("seconds"), first, "0 to 1e18"))?;
    let level = second
        .parse::<usize>()
        .ok()
        .filter(|&level| (1..=crate::levels::LEVELS_MAX).contains(&level))
        .ok_or_else(|| ModelError::field(field("level"), second, "1 to 8"))?;
    Ok((seconds, level))
}
