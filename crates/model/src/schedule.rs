// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a checkpoint is due now, and to which level: the mathematics behind `interval = "auto"`.
//!
//! Purpose: a pure state machine that consumes a plan and re-plans from what the run shows.
//! In from: the engine's schedule: the time, and what was observed since the last call.
//! Out to: the same: a level, or nothing.
//! Invariants: reads no clock; the same calls give the same answers; a plan is replaced only when
//! the new one is better by more than the hysteresis, so that noise in the costs does not make the
//! interval swing.

use serde::{Deserialize, Serialize};

use crate::error::{ModelError, check_range};
use crate::levels::{Mode, level_at};
use crate::markov::solve;
use crate::optimize::{Best, Problem, optimize};
use crate::posterior::{RatePosterior, RunningQuantiles};

/// A pattern of checkpoints, ready to be followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Useful time between checkpoints, in seconds.
    pub interval_seconds: f64,
    /// Levels that are used, counted from 1, the top last.
    pub used_levels: Vec<usize>,
    /// Checkpoints of each used level between two of a higher one, without the top.
    pub between: Vec<u64>,
    /// Efficiency that the exact chain expects.
    pub efficiency: f64,
}

impl Plan {
    /// The level of the checkpoint number `index` (from 1) of a period.
    pub fn level_at(&self, index: u64) -> usize {
        let place = level_at(index, &self.between).min(self.used_levels.len());
        self.used_levels.get(place - 1).copied().unwrap_or(1)
    }

    /// Checkpoints of one period, the top one included.
    pub fn intervals(&self) -> u64 {
        self.between
            .iter()
            .fold(1, |n, &count| n.saturating_mul(count.saturating_add(1)))
    }
}

impl From<&Best> for Plan {
    fn from(best: &Best) -> Self {
        Self {
            interval_seconds: best.case.interval_seconds,
            used_levels: best.used_levels.clone(),
            between: best.case.between.clone(),
            efficiency: best.solution.efficiency,
        }
    }
}

/// Something that happened since the last call.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Observation {
    /// A checkpoint of this level was committed after blocking the application this long.
    Checkpoint {
        /// Level, counted from 1.
        level: usize,
        /// Blocking time in seconds.
        blocking_seconds: f64,
    },
    /// The transfer of the last top-level checkpoint became durable after this long in flight.
    Durable {
        /// Time in flight in seconds.
        latency_seconds: f64,
    },
    /// The application was slowed by this share while a transfer was in flight.
    Slowdown {
        /// Extra wall time per useful time.
        share: f64,
    },
    /// A failure of this level ended the run; the time of the next call is that of the restarted
    /// one.
    Failure {
        /// Level, counted from 1.
        level: usize,
    },
    /// So long the job was not watched, and might have failed: between the last that a start wrote down and the next.
    Unseen {
        /// That time in seconds.
        seconds: f64,
    },
    /// The run goes on from a checkpoint of this level.
    Restored {
        /// Level, counted from 1.
        level: usize,
        /// Time the recovery took in seconds.
        recovery_seconds: f64,
    },
}

/// How eagerly the schedule re-plans.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Hysteresis {
    /// Shortest time between two searches for a better plan, in seconds.
    pub replan_seconds: f64,
    /// A new plan must be better by this much efficiency (absolute), as both are judged now.
    pub gain_share: f64,
    /// What the configured rates are worth, in failures seen.
    pub prior_failures: f64,
}

impl Default for Hysteresis {
    fn default() -> Self {
        Self {
            replan_seconds: 60.0,
            gain_share: 0.002,
            prior_failures: 1.0,
        }
    }
}

/// What is learnt from the run and kept across restarts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Failure rate of each level.
    pub rates: Vec<RatePosterior>,
    /// Blocking time of each level, in seconds.
    pub checkpoint_seconds: Vec<RunningQuantiles>,
    /// Recovery time of each level, in seconds.
    pub recovery_seconds: Vec<RunningQuantiles>,
    /// Time in flight of transfers, in seconds.
    pub latency_seconds: RunningQuantiles,
    /// Slowdown while a transfer is in flight, as a share.
    pub slowdown_share: RunningQuantiles,
    /// Checkpoints done in the present period.
    pub index: u64,
}

/// Decides when a checkpoint is due.
#[derive(Debug, Clone)]
pub struct Schedule {
    configured: Problem,
    hysteresis: Hysteresis,
    memory: Memory,
    plan: Plan,
    /// Time of the last call and of the end of the last checkpoint, in seconds.
    watched_until_seconds: Option<f64>,
    computing_since_seconds: Option<f64>,
    planned_at_seconds: Option<f64>,
    in_flight: bool,
}

impl Schedule {
    /// A schedule from the configured rates and costs, which observations replace as they come.
    pub fn new(configured: Problem, hysteresis: Hysteresis) -> Result<Self, ModelError> {
        check_range("replan_seconds", hysteresis.replan_seconds, 0.0, 1e9)?;
        check_range("gain_share", hysteresis.gain_share, 0.0, 1.0)?;
        check_range("prior_failures", hysteresis.prior_failures, 1e-3, 1e6)?;
        let plan = Plan::from(&optimize(&configured)?);
        let levels = configured.level_count();
        let prior = |&rate: &f64| RatePosterior::prior(rate, hysteresis.prior_failures);
        let memory = Memory {
            rates: configured.failures_per_second.iter().map(prior).collect(),
            checkpoint_seconds: vec![RunningQuantiles::new(); levels],
            recovery_seconds: vec![RunningQuantiles::new(); levels],
            latency_seconds: RunningQuantiles::new(),
            slowdown_share: RunningQuantiles::new(),
            index: 0,
        };
        Ok(Self {
            configured,
            hysteresis,
            memory,
            plan,
            watched_until_seconds: None,
            computing_since_seconds: None,
            planned_at_seconds: None,
            in_flight: false,
        })
    }

    /// Goes on with what an earlier incarnation learnt. Its number of levels must be the same.
    pub fn remember(&mut self, memory: Memory) -> Result<(), ModelError> {
        let levels = self.configured.level_count();
        let lengths = [
            memory.rates.len(),
            memory.checkpoint_seconds.len(),
            memory.recovery_seconds.len(),
        ];
        if lengths.iter().any(|&length| length != levels) {
            let allowed = format!("{levels} levels, as configured");
            return Err(ModelError::field(
                "memory",
                format!("{lengths:?} levels"),
                allowed,
            ));
        }
        self.memory = memory;
        self.replan();
        Ok(())
    }

    /// What is worth keeping across a restart.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The plan that is followed at present.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether a checkpoint is due now, and to which level. `now_seconds` is any clock that never
    /// runs backwards within an incarnation. The level stays due until its checkpoint is observed.
    ///
    /// While a transfer is in flight, a top-level checkpoint is put off: the level below the top
    /// takes its place until the transfer is durable.
    pub fn due(&mut self, now_seconds: f64, observations: &[Observation]) -> Option<usize> {
        self.watch(now_seconds);
        for &observation in observations {
            self.observe(now_seconds, observation);
        }
        let planned = *self.planned_at_seconds.get_or_insert(now_seconds);
        if now_seconds - planned >= self.hysteresis.replan_seconds {
            self.planned_at_seconds = Some(now_seconds);
            self.replan();
        }
        let since = *self.computing_since_seconds.get_or_insert(now_seconds);
        if now_seconds - since < self.plan.interval_seconds {
            return None;
        }
        Some(self.next_level())
    }

    /// Seconds of computation after which the next checkpoint is due.
    pub fn interval_seconds(&self) -> f64 {
        self.plan.interval_seconds
    }

    /// The level of the checkpoint that comes next, whenever it does.
    pub fn next_level(&self) -> usize {
        let level = self.plan.level_at(self.memory.index + 1);
        let top = self.configured.level_count();
        if level < top || !self.in_flight {
            return level;
        }
        let lower = self.plan.used_levels.iter().rev();
        let lower = lower.copied().find(|&used| used < top);
        // What a top-level checkpoint leaves at once is of the level below.
        lower.unwrap_or((top - 1).max(1))
    }

    /// A new period begins: the top level has the newest checkpoint, or gets it, by a transfer that is in
    /// flight.
    pub fn begin_period(&mut self, in_flight: bool) {
        self.memory.index = 0;
        self.in_flight = in_flight && matches!(self.configured.mode, Mode::NonBlocking(_));
    }

    /// Counts the time up to now as watched without failure.
    fn watch(&mut self, now_seconds: f64) {
        if let Some(until) = self.watched_until_seconds {
            for rate in &mut self.memory.rates {
                rate.observe(0, now_seconds - until);
            }
        }
        self.watched_until_seconds = Some(now_seconds);
    }

    fn observe(&mut self, now_seconds: f64, observation: Observation) {
        match observation {
            Observation::Checkpoint {
                level,
                blocking_seconds,
            } => {
                self.committed(level);
                push(&mut self.memory.checkpoint_seconds, level, blocking_seconds);
                self.computing_since_seconds = Some(now_seconds);
            }
            Observation::Durable { latency_seconds } => {
                self.in_flight = false;
                self.memory.latency_seconds.push(latency_seconds);
            }
            Observation::Unseen { seconds } => {
                let rates = self.memory.rates.iter_mut();
                rates.for_each(|rate| rate.observe(0, seconds));
            }
            Observation::Slowdown { share } => self.memory.slowdown_share.push(share),
            Observation::Failure { level } => {
                if let Some(rate) = level
                    .checked_sub(1)
                    .and_then(|i| self.memory.rates.get_mut(i))
                {
                    rate.observe(1, 0.0);
                }
            }
            Observation::Restored {
                level,
                recovery_seconds,
            } => {
                self.rolled_back(level);
                push(&mut self.memory.recovery_seconds, level, recovery_seconds);
                self.computing_since_seconds = Some(now_seconds);
            }
        }
    }

    /// The place in the pattern after a checkpoint: one further when it was of the planned level,
    /// else just behind the last place of that level.
    fn committed(&mut self, level: usize) {
        let top = self.configured.level_count();
        if level >= top {
            self.begin_period(true);
            return;
        }
        let next = self.memory.index + 1;
        if self.plan.level_at(next) < top {
            self.memory.index = next;
        }
    }

    /// The newest place of at least this level, counting back from the present one.
    fn rolled_back(&mut self, level: usize) {
        let top = self.configured.level_count();
        if level >= top {
            self.begin_period(false);
            return;
        }
        while self.memory.index > 0 && self.plan.level_at(self.memory.index) < level {
            self.memory.index -= 1;
        }
    }

    /// The configured problem with what was measured in its place.
    pub fn problem(&self) -> Problem {
        let mut problem = self.configured.clone();
        let memory = &self.memory;
        for (rate, known) in problem.failures_per_second.iter_mut().zip(&memory.rates) {
            *rate = known.mean_per_second();
        }
        let scale = scales(&problem.checkpoint_seconds, &memory.checkpoint_seconds);
        replace(
            &mut problem.checkpoint_seconds,
            &scale,
            &memory.checkpoint_seconds,
        );
        let recovery = scales(&problem.recovery_seconds, &memory.recovery_seconds);
        replace(
            &mut problem.recovery_seconds,
            &recovery,
            &memory.recovery_seconds,
        );
        if memory
            .checkpoint_seconds
            .iter()
            .any(|known| !known.is_empty())
        {
            // Measured costs already are those of differential checkpoints.
            problem.differential = None;
        }
        if let Mode::NonBlocking(transfer) = &mut problem.mode {
            let median = |cost: &mut f64, known: &RunningQuantiles| {
                *cost = known.quantile(0.5).unwrap_or(*cost);
            };
            median(&mut transfer.latency_seconds, &memory.latency_seconds);
            median(&mut transfer.slowdown_share, &memory.slowdown_share);
            transfer.top_checkpoint_seconds *= scale.last().copied().unwrap_or(1.0);
            if let Some(top) = memory.checkpoint_seconds.last() {
                median(&mut transfer.top_checkpoint_seconds, top);
            }
            let unknown = memory
                .recovery_seconds
                .last()
                .is_none_or(RunningQuantiles::is_empty);
            let longest = memory.latency_seconds.quantile(1.0).filter(|_| unknown);
            if let (Some(longest), [below @ .., top]) = (longest, &mut *problem.recovery_seconds) {
                // What was brought there in the longest transfer has to be fetched.
                *top = below.iter().copied().fold(longest, f64::max);
            }
        }
        problem
    }

    /// Looks for a better plan; keeps the present one unless the gain exceeds the hysteresis.
    fn replan(&mut self) {
        let problem = self.problem();
        let Ok(best) = optimize(&problem) else {
            return;
        };
        let present = problem.case_at(
            &self.plan.used_levels,
            self.plan.interval_seconds,
            &self.plan.between,
        );
        let present = solve(&present).map_or(0.0, |solution| solution.efficiency);
        if best.solution.efficiency <= present + self.hysteresis.gain_share {
            return;
        }
        self.plan = Plan::from(&best);
        self.memory.index %= self.plan.intervals();
    }
}

/// By which factor the configured cost of each level is off, by the nearest level that was measured.
fn scales(configured: &[f64], known: &[RunningQuantiles]) -> Vec<f64> {
    let measured: Vec<(usize, f64)> = configured
        .iter()
        .zip(known)
        .enumerate()
        .filter(|(_, (cost, _))| **cost > 0.0)
        .filter_map(|(at, (cost, known))| Some((at, known.quantile(0.5)? / cost)))
        .collect();
    let nearest = |level: usize| {
        let mut measured = measured.clone();
        measured.sort_by_key(|(at, _)| at.abs_diff(level));
        measured.first().map_or(1.0, |&(_, scale)| scale)
    };
    (0..configured.len()).map(nearest).collect()
}

/// Measured costs for configured ones; what was not measured is scaled.
fn replace(costs: &mut [f64], scales: &[f64], known: &[RunningQuantiles]) {
    for ((cost, scale), known) in costs.iter_mut().zip(scales).zip(known) {
        *cost = known.quantile(0.5).unwrap_or(*cost * scale);
    }
}

fn push(costs: &mut [RunningQuantiles], level: usize, seconds: f64) {
    if let Some(cost) = level.checked_sub(1).and_then(|index| costs.get_mut(index)) {
        cost.push(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels::{Completion, Transfer};
    use crate::optimize::Bounds;

    fn schedule() -> Schedule {
        let problem = Problem {
            failures_per_second: vec![1e-4, 1e-5],
            checkpoint_seconds: vec![2.0, 10.0],
            recovery_seconds: vec![4.0, 60.0],
            recovers_by_failure: false,
            mode: Mode::NonBlocking(Transfer {
                slowdown_share: 0.01,
                latency_seconds: 400.0,
                top_checkpoint_seconds: 2.0,
                completion: Completion::Continuous,
            }),
            differential: None,
            bounds: Bounds::default(),
        };
        Schedule::new(problem, Hysteresis::default()).unwrap()
    }

    fn checkpoint(level: usize) -> Observation {
        Observation::Checkpoint {
            level,
            blocking_seconds: 2.0,
        }
    }

    #[test]
    fn levels_come_in_the_planned_order() {
        let mut schedule = schedule();
        let interval = schedule.interval_seconds();
        let period = schedule.plan().intervals();
        assert!(period > 1, "{:?}", schedule.plan());
        let mut now = 0.0;
        assert_eq!(schedule.due(now, &[]), None);
        for index in 1..=period {
            now += interval - 0.1;
            assert_eq!(schedule.due(now, &[]), None);
            now += 0.2;
            let level = schedule.due(now, &[]).unwrap();
            assert_eq!(level, if index == period { 2 } else { 1 });
            assert_eq!(schedule.due(now + 0.1, &[]), Some(level), "stays due");
            now += 2.0;
            assert_eq!(schedule.due(now, &[checkpoint(level)]), None);
        }
        assert_eq!(schedule.memory().index, 0);
    }

    #[test]
    fn the_top_waits_for_the_transfer() {
        let mut schedule = schedule();
        schedule.memory.index = schedule.plan.intervals() - 1;
        schedule.in_flight = true;
        schedule.due(0.0, &[]);
        let later = schedule.interval_seconds() + 1.0;
        assert_eq!(schedule.due(later, &[]), Some(1));
        schedule.due(later, &[checkpoint(1)]);
        let again = 2.0 * later;
        assert_eq!(schedule.due(again, &[]), Some(1));
        assert_eq!(
            schedule.due(
                again,
                &[Observation::Durable {
                    latency_seconds: 9.0
                }]
            ),
            Some(2)
        );
    }

    #[test]
    fn the_level_below_takes_the_place_of_a_top_that_is_the_only_level() {
        let mut schedule = schedule();
        schedule.plan.used_levels = vec![2];
        schedule.plan.between = vec![];
        assert_eq!(schedule.next_level(), 2);
        schedule.begin_period(true);
        assert_eq!(schedule.next_level(), 1);
        schedule.begin_period(false);
        assert_eq!(schedule.next_level(), 2);
    }

    #[test]
    fn a_level_that_was_not_measured_follows_the_nearest_that_was() {
        let mut schedule = schedule();
        schedule.due(
            0.0,
            &[
                checkpoint(1),
                Observation::Durable {
                    latency_seconds: 7.0,
                },
            ],
        );
        push(&mut schedule.memory.checkpoint_seconds, 1, 1.0);
        push(&mut schedule.memory.recovery_seconds, 1, 1.0);
        let problem = schedule.problem();
        assert_eq!(problem.checkpoint_seconds, [1.5, 7.5]);
        assert_eq!(
            problem.recovery_seconds,
            [1.0, 7.0],
            "as long as the transfer"
        );
        let Mode::NonBlocking(transfer) = problem.mode else {
            panic!("{problem:?}");
        };
        assert!((transfer.top_checkpoint_seconds - 1.5).abs() < 1e-12);
        assert!((transfer.latency_seconds - 7.0).abs() < 1e-12);
    }

    #[test]
    fn noise_does_not_move_the_plan_but_a_change_does() {
        let mut schedule = schedule();
        let before = schedule.plan().clone();
        let mut now = 0.0;
        for step in 0..200 {
            now += 30.0;
            let blocking_seconds = 2.0 + 0.1 * f64::from(step % 3);
            schedule.due(
                now,
                &[Observation::Checkpoint {
                    level: 1,
                    blocking_seconds,
                }],
            );
        }
        assert_eq!(schedule.plan(), &before);
        for _ in 0..200 {
            now += 30.0;
            schedule.due(
                now,
                &[Observation::Checkpoint {
                    level: 1,
                    blocking_seconds: 20.0,
                }],
            );
        }
        assert!(schedule.interval_seconds() > 1.5 * before.interval_seconds);
    }

    #[test]
    fn failures_shorten_the_interval_and_survive_a_restart() {
        let mut first = schedule();
        let before = first.interval_seconds();
        first.due(0.0, &[]);
        for failure in 1..=30 {
            first.due(
                100.0 * f64::from(failure),
                &[Observation::Failure { level: 1 }],
            );
        }
        assert!(first.interval_seconds() < before / 2.0);
        let mut second = schedule();
        second.remember(first.memory().clone()).unwrap();
        assert!(second.interval_seconds() < before / 2.0);
        assert!(second.memory().rates[0].mean_per_second() > 1e-3);
    }

    #[test]
    fn what_nobody_watched_counts_as_time_of_the_job() {
        let mut schedule = schedule();
        let before = schedule.memory().rates[0].mean_per_second();
        schedule.due(0.0, &[Observation::Unseen { seconds: 1e4 }]);
        let after = schedule.memory().rates[0].mean_per_second();
        assert!((before / after - 2.0).abs() < 1e-9, "{before} {after}");
    }

    #[test]
    fn a_restart_goes_back_in_the_pattern() {
        let mut schedule = schedule();
        schedule.memory.index = 1;
        let restored = Observation::Restored {
            level: 2,
            recovery_seconds: 60.0,
        };
        schedule.due(0.0, &[restored]);
        assert_eq!(schedule.memory().index, 0);
    }
}
