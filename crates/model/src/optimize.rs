// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The best pattern: interval, counts between levels, and which levels to use at all.
//!
//! Purpose: the highest efficiency that the exact chain gives within the named bounds.
//! In from: rates and full costs, optionally the cost of differential checkpoints.
//! Out to: the planner, the figures, the engine's schedule.
//! Invariants: every candidate is judged by the exact chain; the top level is always used; the
//! failures of a level that is left out count for the next level that is used, and where the failure decides
//! how long a recovery takes, that of the level is the mean over the failures that it serves.
//!
//! First-order start (blocking: `t = sqrt(2 c1 / lambda1)`, `N` about `sqrt(2 cL / lambdaL) / t`;
//! non-blocking: the period filled by the transfer), a coarse search over the counts with the
//! interval searched for each, then single steps of the counts. With `completion = "state"` the
//! efficiency jumps where the transfer ends with an interval, so those intervals are tried exactly.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::differential::Differential;
use crate::error::{ModelError, check_range};
use crate::levels::{Case, Mode, SECONDS_MAX, Transfer, level_at};
use crate::markov::{Solution, solve};
use crate::number::real;
use crate::young_daly::young_interval_seconds;

/// What is known before a pattern is chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// Rate of failures by level, per second.
    pub failures_per_second: Vec<f64>,
    /// Blocking time of a full checkpoint by level, in seconds.
    pub checkpoint_seconds: Vec<f64>,
    /// Recovery time by level, in seconds.
    pub recovery_seconds: Vec<f64>,
    /// Whether the failure decides how long a recovery takes, and not the level of the checkpoint that serves it:
    /// where a checkpoint of a higher level is on the nodes as well.
    pub recovers_by_failure: bool,
    /// Whether the top level blocks; its costs are those of a full checkpoint.
    pub mode: Mode,
    /// Scales the checkpoint costs with the interval, where given.
    pub differential: Option<Differential>,
    /// What the search may choose from.
    pub bounds: Bounds,
}

/// Limits of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Shortest useful time of an interval, in seconds.
    pub interval_seconds_min: f64,
    /// Longest useful time of an interval, in seconds.
    pub interval_seconds_max: f64,
    /// Most intervals of one period.
    pub intervals_max: u64,
    /// Whether levels below the top may be left out.
    pub may_drop_levels: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            interval_seconds_min: 1e-3,
            interval_seconds_max: 1e8,
            intervals_max: 10_000,
            may_drop_levels: true,
        }
    }
}

/// The best pattern found.
#[derive(Debug, Clone, PartialEq)]
pub struct Best {
    /// Levels that are used, counted from 1; the last is the top.
    pub used_levels: Vec<usize>,
    /// The case with these levels only, as solved.
    pub case: Case,
    /// What the exact chain says about it.
    pub solution: Solution,
}

/// A choice of levels that comes later must gain this much: the same pattern, written with more
/// levels of which one is never taken, differs by rounding only.
const WORTH_A_LEVEL: f64 = 1e-7;

/// Finds the pattern of the highest efficiency.
pub fn optimize(problem: &Problem) -> Result<Best, ModelError> {
    problem.validate()?;
    let lower = problem.failures_per_second.len() - 1;
    let mut best: Option<Best> = None;
    let subsets = 1_u32 << lower;
    let first = if problem.bounds.may_drop_levels {
        0
    } else {
        subsets - 1
    };
    for subset in first..subsets {
        let used: Vec<usize> = (1..=lower)
            .filter(|level| subset >> (level - 1) & 1 == 1)
            .chain([lower + 1])
            .collect();
        let Some(found) = Search::new(problem, used).run() else {
            continue;
        };
        if best
            .as_ref()
            .is_none_or(|b| found.solution.efficiency > b.solution.efficiency + WORTH_A_LEVEL)
        {
            best = Some(found);
        }
    }
    best.ok_or(ModelError::Endless {
        seconds: f64::INFINITY,
    })
}

/// The pattern of a job whose checkpoints all have the level below the top, and each `every`th the top one, with
/// the interval held.
pub fn held(problem: &Problem, interval_seconds: f64, every: u64) -> Result<Best, ModelError> {
    problem.validate()?;
    let top = problem.level_count();
    let used_levels: Vec<usize> = (top.saturating_sub(1).max(1)..=top).collect();
    let between = vec![every.saturating_sub(1); used_levels.len() - 1];
    let case = problem.case_at(&used_levels, interval_seconds, &between);
    let solution = solve(&case)?;
    Ok(Best {
        used_levels,
        case,
        solution,
    })
}

impl Problem {
    /// Number of levels.
    pub fn level_count(&self) -> usize {
        self.failures_per_second.len()
    }

    /// The case of one choice: these levels, this interval, these counts between them.
    pub fn case_at(&self, used_levels: &[usize], interval_seconds: f64, between: &[u64]) -> Case {
        let mut failures_per_second = Vec::with_capacity(used_levels.len());
        let mut next = 0;
        for &level in used_levels {
            let merged = self.failures_per_second.get(next..level).unwrap_or(&[]);
            failures_per_second.push(merged.iter().sum());
            next = level;
        }
        let of = |costs: &[f64]| -> Vec<f64> {
            let cost = |&level: &usize| costs.get(level - 1).copied().unwrap_or(f64::NAN);
            used_levels.iter().map(cost).collect()
        };
        let mut recovery_seconds = of(&self.recovery_seconds);
        if self.recovers_by_failure {
            let mut next = 0;
            for (seconds, &level) in recovery_seconds.iter_mut().zip(used_levels) {
                *seconds = self.mean_recovery_seconds(next..level).unwrap_or(*seconds);
                next = level;
            }
        }
        let changed = |full: f64| match &self.differential {
            Some(differential) => differential.cost_seconds(full, interval_seconds),
            None => full,
        };
        let mut case = Case {
            failures_per_second,
            checkpoint_seconds: of(&self.checkpoint_seconds)
                .into_iter()
                .map(changed)
                .collect(),
            recovery_seconds,
            interval_seconds,
            between: between.to_vec(),
            mode: self.mode,
        };
        let drained = self
            .differential
            .filter(|d| d.drains_changes_only)
            .map_or(1.0, |d| {
                let period = case.intervals().map_or(1.0, real) * interval_seconds;
                d.changed.after(period)
            });
        if let Mode::NonBlocking(transfer) = &mut case.mode {
            transfer.top_checkpoint_seconds = changed(transfer.top_checkpoint_seconds);
            transfer.latency_seconds *= drained;
        }
        case
    }

    /// The mean time of a recovery over the failures of these levels, where there are any.
    fn mean_recovery_seconds(&self, levels: Range<usize>) -> Option<f64> {
        let rates = self.failures_per_second.get(levels.clone())?;
        let seconds = self.recovery_seconds.get(levels)?;
        let total: f64 = rates.iter().sum();
        let lost: f64 = rates.iter().zip(seconds).map(|(rate, s)| rate * s).sum();
        (total > 0.0).then(|| lost / total)
    }

    fn validate(&self) -> Result<(), ModelError> {
        let lower = self.level_count().saturating_sub(1);
        let bounds = self.bounds;
        let (low, high) = (bounds.interval_seconds_min, bounds.interval_seconds_max);
        check_range("interval_seconds_min", low, 1e-9, SECONDS_MAX)?;
        check_range("interval_seconds_max", high, low, SECONDS_MAX)?;
        if let Some(differential) = &self.differential {
            differential.validate()?;
        }
        if bounds.intervals_max == 0 || bounds.intervals_max > 1_000_000 {
            return Err(ModelError::field(
                "intervals_max",
                bounds.intervals_max,
                "1 to 1e6",
            ));
        }
        let case = Case {
            failures_per_second: self.failures_per_second.clone(),
            checkpoint_seconds: self.checkpoint_seconds.clone(),
            recovery_seconds: self.recovery_seconds.clone(),
            interval_seconds: low,
            between: vec![0; lower],
            mode: self.mode,
        };
        case.validate()
    }
}

/// The search over interval and counts for one choice of levels.
#[derive(Debug)]
struct Search<'a> {
    problem: &'a Problem,
    used_levels: Vec<usize>,
    start_seconds: f64,
}

/// A pattern and its efficiency.
#[derive(Debug, Clone, PartialEq)]
struct Candidate {
    efficiency: f64,
    interval_seconds: f64,
    between: Vec<u64>,
}

/// How thoroughly an interval is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Over the whole range, roughly.
    Coarse,
    /// Near the guess, roughly.
    Quick,
    /// Near the guess, to the last digit that matters, jumps included.
    Fine,
}

/// A neighbour that is this much worse after a quick look is not looked at closely.
const HOPELESS: f64 = 1e-3;

/// Below this efficiency a job does not advance, and its pattern is not polished.
const NOWHERE: f64 = 1e-5;

/// Grid points a factor of this apart bracket the best interval.
const GRID_STEP: f64 = std::f64::consts::SQRT_2;
/// Patterns of the coarse search that are looked at closely.
const FINALISTS: usize = 3;
/// Patterns that the coarse search tries at most.
const COARSE_MAX: usize = 450;

impl<'a> Search<'a> {
    fn new(problem: &'a Problem, used_levels: Vec<usize>) -> Self {
        let mut search = Self {
            problem,
            used_levels,
            start_seconds: 1.0,
        };
        search.start_seconds = search.first_order_seconds();
        search
    }

    fn run(&self) -> Option<Best> {
        let mut found = self.coarse();
        found.sort_by(|a, b| b.efficiency.total_cmp(&a.efficiency));
        found.truncate(FINALISTS);
        let mut best: Option<Candidate> = None;
        for start in found {
            let polished = self.climb(&start);
            if best
                .as_ref()
                .is_none_or(|b| polished.efficiency > b.efficiency)
            {
                best = Some(polished);
            }
        }
        let best = best?;
        let case = self
            .problem
            .case_at(&self.used_levels, best.interval_seconds, &best.between);
        let solution = solve(&case).ok()?;
        Some(Best {
            used_levels: self.used_levels.clone(),
            case,
            solution,
        })
    }

    fn efficiency(&self, interval_seconds: f64, between: &[u64]) -> f64 {
        let case = self
            .problem
            .case_at(&self.used_levels, interval_seconds, between);
        solve(&case).map_or(0.0, |solution| solution.efficiency)
    }

    /// Young's interval for the first level used, within the bounds.
    fn first_order_seconds(&self) -> f64 {
        let case = self
            .problem
            .case_at(&self.used_levels, 1.0, &vec![0; self.lower()]);
        let mtbf = 1.0 / case.failures_per_second.first().copied().unwrap_or(0.0);
        let total = 1.0 / case.total_failures_per_second();
        let cost = match (case.mode, self.lower()) {
            (Mode::NonBlocking(transfer), 0) => transfer.top_checkpoint_seconds,
            _ => case.checkpoint_seconds.first().copied().unwrap_or(0.0),
        };
        let (low, high) = self.interval_bounds();
        let seconds = young_interval_seconds(cost, if mtbf.is_finite() { mtbf } else { total });
        if seconds.is_finite() && seconds > 0.0 {
            return seconds.clamp(low, high);
        }
        (low * high).sqrt()
    }

    /// Levels below the top that are used.
    fn lower(&self) -> usize {
        self.used_levels.len() - 1
    }

    fn interval_bounds(&self) -> (f64, f64) {
        let bounds = self.problem.bounds;
        (bounds.interval_seconds_min, bounds.interval_seconds_max)
    }

    /// Counts from none upwards, each about half as much again as the one before.
    fn ladder(&self) -> Vec<u64> {
        let mut rungs = vec![0, 1, 2];
        while let Some(&last) = rungs.last() {
            let next = last + last / 2 + 1;
            if next >= self.problem.bounds.intervals_max {
                break;
            }
            rungs.push(next);
        }
        rungs
    }

    /// Scores a spread of patterns: all combinations where they are few, else line by line.
    fn coarse(&self) -> Vec<Candidate> {
        let ladder = self.ladder();
        let mut tried = BTreeSet::new();
        let mut found = Vec::new();
        if self.lower() <= 2 && self.combinations(&ladder) <= COARSE_MAX {
            self.try_all(&ladder, &mut Vec::new(), &mut tried, &mut found);
            return found;
        }
        let sparse: Vec<u64> = ladder.iter().copied().step_by(4).take(4).collect();
        if self.lower() <= 4 && self.combinations(&sparse) <= COARSE_MAX {
            self.try_all(&sparse, &mut Vec::new(), &mut tried, &mut found);
        } else {
            for count in [0, 1, 3] {
                self.try_one(&vec![count; self.lower()], &mut tried, &mut found);
            }
        }
        self.sweep_lines(&ladder, &mut tried, &mut found);
        found
    }

    fn combinations(&self, ladder: &[u64]) -> usize {
        (0..self.lower()).fold(1, |product: usize, _| product.saturating_mul(ladder.len()))
    }

    fn try_all(
        &self,
        ladder: &[u64],
        between: &mut Vec<u64>,
        tried: &mut BTreeSet<Vec<u64>>,
        found: &mut Vec<Candidate>,
    ) {
        if between.len() == self.lower() {
            self.try_one(between, tried, found);
            return;
        }
        for &count in ladder {
            between.push(count);
            self.try_all(ladder, between, tried, found);
            between.pop();
        }
    }

    /// From the best pattern so far, one count at a time through the ladder, until nothing gains.
    fn sweep_lines(
        &self,
        ladder: &[u64],
        tried: &mut BTreeSet<Vec<u64>>,
        found: &mut Vec<Candidate>,
    ) {
        loop {
            let best = found
                .iter()
                .max_by(|a, b| a.efficiency.total_cmp(&b.efficiency))
                .cloned();
            let Some(best) = best else { return };
            for index in 0..self.lower() {
                self.sweep_line(&best.between, index, ladder, tried, found);
            }
            let gained = found
                .iter()
                .any(|c| c.efficiency > best.efficiency * (1.0 + 1e-7));
            if !gained {
                return;
            }
        }
    }

    /// One count through the ladder; long periods are costly to judge, so a line ends when it has
    /// fallen well below its best twice running.
    fn sweep_line(
        &self,
        between: &[u64],
        index: usize,
        ladder: &[u64],
        tried: &mut BTreeSet<Vec<u64>>,
        found: &mut Vec<Candidate>,
    ) {
        let mut line_best = 0.0_f64;
        let mut falls = 0;
        for &count in ladder {
            let mut between = between.to_vec();
            between[index] = count;
            let before = found.len();
            self.try_one(&between, tried, found);
            let Some(new) = found.get(before) else {
                continue;
            };
            falls = if new.efficiency < 0.99 * line_best {
                falls + 1
            } else {
                0
            };
            line_best = line_best.max(new.efficiency);
            if falls == 2 || line_best < NOWHERE && count > 64 {
                return;
            }
        }
    }

    fn try_one(&self, between: &[u64], tried: &mut BTreeSet<Vec<u64>>, found: &mut Vec<Candidate>) {
        if !self.allowed(between) || !tried.insert(between.to_vec()) {
            return;
        }
        found.push(self.best_interval(between, self.start_seconds, Effort::Coarse));
    }

    fn allowed(&self, between: &[u64]) -> bool {
        let product = between
            .iter()
            .try_fold(1_u64, |p, &count| p.checked_mul(count.checked_add(1)?));
        product.is_some_and(|n| n <= self.problem.bounds.intervals_max)
    }

    /// Changes the counts by ever smaller steps, one or two at a time, while that gains.
    fn climb(&self, start: &Candidate) -> Candidate {
        let mut best = self.best_interval(&start.between, start.interval_seconds, Effort::Fine);
        let largest = best.between.iter().copied().max().unwrap_or(0);
        if best.efficiency < NOWHERE {
            return best;
        }
        let mut step = (largest / 4).max(1);
        let mut tried = BTreeSet::from([best.between.clone()]);
        loop {
            let mut gained = false;
            for between in self.neighbours(&best.between, step) {
                if !self.allowed(&between) || !tried.insert(between.clone()) {
                    continue;
                }
                let quick = self.best_interval(&between, best.interval_seconds, Effort::Quick);
                if quick.efficiency < best.efficiency - HOPELESS {
                    continue;
                }
                let found = self.best_interval(&between, quick.interval_seconds, Effort::Fine);
                if found.efficiency > best.efficiency {
                    best = found;
                    gained = true;
                    break;
                }
            }
            if !gained {
                if step == 1 {
                    return best;
                }
                step = (step / 2).max(1);
            }
        }
    }

    fn neighbours(&self, between: &[u64], step: u64) -> Vec<Vec<u64>> {
        let mut result = Vec::new();
        for index in 0..self.lower() {
            for up in [true, false] {
                let mut next = between.to_vec();
                next[index] = if up {
                    next[index] + step
                } else {
                    next[index].saturating_sub(step)
                };
                result.push(next.clone());
                for other in 0..self.lower() {
                    if other != index {
                        let mut both = next.clone();
                        both[other] = if up {
                            both[other].saturating_sub(1)
                        } else {
                            both[other] + 1
                        };
                        result.push(both);
                    }
                }
            }
        }
        result
    }

    /// The best interval for fixed counts, from a guess.
    fn best_interval(&self, between: &[u64], guess_seconds: f64, effort: Effort) -> Candidate {
        let (low, high) = self.interval_bounds();
        let score = |seconds: f64| self.efficiency(seconds, between);
        let mut best = (score(guess_seconds), guess_seconds);
        let mut consider = |found: (f64, f64)| {
            if found.0 > best.0 {
                best = found;
            }
        };
        let (reach, rounds): (f64, usize) = match effort {
            Effort::Coarse => (1e4, 6),
            Effort::Quick => (2.0, 8),
            Effort::Fine => (4.0, 20),
        };
        for seconds in self.filling_seconds(between) {
            consider((score(seconds), seconds));
        }
        let mut seconds = (guess_seconds / reach).max(low);
        while seconds < (guess_seconds * reach).min(high) {
            consider((score(seconds), seconds));
            seconds *= GRID_STEP * GRID_STEP;
        }
        if effort == Effort::Coarse {
            consider((score(high), high));
        }
        let (mut efficiency, mut interval_seconds) = best;
        let around = 2.0 * GRID_STEP;
        let bracket = (
            (interval_seconds / around).max(low),
            (interval_seconds * around).min(high),
        );
        (efficiency, interval_seconds) =
            golden(score, bracket, rounds, (efficiency, interval_seconds));
        if effort == Effort::Fine {
            for segment in self.segments(between, interval_seconds) {
                let bracket = (segment.0.max(low), segment.1.min(high));
                (efficiency, interval_seconds) =
                    golden(score, bracket, 12, (efficiency, interval_seconds));
            }
        }
        Candidate {
            efficiency,
            interval_seconds,
            between: between.to_vec(),
        }
    }

    /// Intervals for which the transfer just fills the period, and half of it, in seconds.
    fn filling_seconds(&self, between: &[u64]) -> Vec<f64> {
        let Mode::NonBlocking(_) = self.problem.mode else {
            return Vec::new();
        };
        let (low, high) = self.interval_bounds();
        let case = self
            .problem
            .case_at(&self.used_levels, self.start_seconds, between);
        let intervals = case.intervals().unwrap_or(1);
        [intervals, intervals.div_ceil(2)]
            .into_iter()
            .map(|index| self.landing_seconds(between, index, self.start_seconds))
            .filter(|seconds| (low..=high).contains(seconds))
            .collect()
    }

    /// The interval at which the transfer ends together with interval `index`, in seconds; costs
    /// that depend on the interval are followed from a guess. NaN when there is none.
    fn landing_seconds(&self, between: &[u64], index: u64, guess_seconds: f64) -> f64 {
        let mut seconds = guess_seconds;
        for _ in 0..if self.problem.differential.is_some() {
            4
        } else {
            1
        } {
            let case = self.problem.case_at(&self.used_levels, seconds, between);
            let Mode::NonBlocking(transfer) = case.mode else {
                return f64::NAN;
            };
            let costs = checkpoints_seconds(&case, &transfer, index);
            let left = transfer.latency_seconds - costs;
            seconds = left / ((1.0 + transfer.slowdown_share) * real(index));
            if seconds.is_nan() || seconds <= 0.0 {
                return f64::NAN;
            }
        }
        seconds
    }

    /// The stretches of intervals around the best one, between which the efficiency may jump.
    fn segments(&self, between: &[u64], seconds: f64) -> Vec<(f64, f64)> {
        let case = self.problem.case_at(&self.used_levels, seconds, between);
        let Mode::NonBlocking(transfer) = case.mode else {
            return Vec::new();
        };
        let intervals = case.intervals().unwrap_or(1);
        let mut progress = 0.0;
        let mut landing = intervals;
        for index in 1..=intervals {
            progress = checkpoints_seconds(&case, &transfer, index)
                + (1.0 + transfer.slowdown_share) * seconds * real(index);
            if progress >= transfer.latency_seconds {
                landing = index;
                break;
            }
        }
        if progress == 0.0 {
            return Vec::new();
        }
        let first = landing.saturating_sub(2).max(1);
        let last = (landing + 2).min(intervals);
        let ends: Vec<f64> = (first..=last)
            .rev()
            .map(|index| self.landing_seconds(between, index, seconds))
            .filter(|seconds| seconds.is_finite())
            .collect();
        ends.windows(2).map(|pair| (pair[0], pair[1])).collect()
    }
}

/// Blocking time of the first `index` checkpoints of a period, in seconds.
fn checkpoints_seconds(case: &Case, transfer: &Transfer, index: u64) -> f64 {
    let intervals = case.intervals().unwrap_or(1);
    let mut seconds = if index == intervals {
        transfer.top_checkpoint_seconds
    } else {
        0.0
    };
    let upto = index.min(intervals - 1);
    let mut every = 1;
    for (level, &count) in (1_usize..).zip(&case.between) {
        // Of the positions up to here that reach this level, those not raised further.
        let reached = upto / every;
        every *= count + 1;
        seconds += real(reached - upto / every) * case.checkpoint_seconds[level - 1];
    }
    debug_assert!(index == intervals || level_at(index, &case.between) <= case.between.len());
    seconds
}

/// Golden-section search in the logarithm; keeps the best of what it was given and what it tries.
/// Both ends are tried, so that a best value at a jump is found exactly.
fn golden(
    score: impl Fn(f64) -> f64,
    (low, high): (f64, f64),
    rounds: usize,
    mut best: (f64, f64),
) -> (f64, f64) {
    const RATIO: f64 = 0.618_033_988_749_894_8;
    if low.is_nan() || low >= high {
        return best;
    }
    let mut at = |seconds: f64| {
        let efficiency = score(seconds);
        if efficiency > best.0 {
            best = (efficiency, seconds);
        }
        efficiency
    };
    at(low);
    at(high);
    let (mut a, mut b) = (low.ln(), high.ln());
    let (mut x, mut y) = (b - RATIO * (b - a), a + RATIO * (b - a));
    let (mut at_x, mut at_y) = (at(x.exp()), at(y.exp()));
    for _ in 0..rounds {
        if at_x >= at_y {
            (b, y, at_y) = (y, x, at_x);
            x = b - RATIO * (b - a);
            at_x = at(x.exp());
        } else {
            (a, x, at_x) = (x, y, at_y);
            y = a + RATIO * (b - a);
            at_y = at(y.exp());
        }
    }
    best
}
