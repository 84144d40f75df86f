// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a plan is worth, what binds it, and what would help.
//!
//! Purpose: the answers around the optimum: its uncertainty, what-ifs, the bandwidth a target needs.
//! In from: [`crate::human::Inputs`], measured quantiles.
//! Out to: `backstay plan`, the figures.
//! Invariants: every number is one of the exact chain; the draws are seeded.

use crate::error::ModelError;
use crate::human::{Inputs, Protection};
use crate::levels::{Case, Mode};
use crate::markov::solve;
use crate::optimize::{Best, Problem, optimize};
use crate::posterior::{RatePosterior, quantile_of_sorted};
use crate::random::Random;

/// The three quantiles of a measured cost, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// One in ten is below.
    pub p10: f64,
    /// Half are below.
    pub p50: f64,
    /// One in ten is above.
    pub p90: f64,
}

impl Spread {
    /// A factor on the median: a quantile function, linear between the three known places.
    fn draw_factor(&self, random: &mut Random) -> f64 {
        if self.p50 <= 0.0 {
            return 1.0;
        }
        let (low, high) = (self.p10 / self.p50, self.p90 / self.p50);
        let place = random.unit();
        let factor = if place < 0.5 {
            low + (1.0 - low) * (place - 0.1) / 0.4
        } else {
            1.0 + (high - 1.0) * (place - 0.5) / 0.4
        };
        factor.max(0.0)
    }
}

/// What is not known exactly about a problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Uncertainty {
    /// Posterior of each level's rate.
    pub rates: Vec<RatePosterior>,
    /// Quantiles of the blocking time, if measured.
    pub checkpoint: Option<Spread>,
    /// Quantiles of the recovery time, if measured.
    pub recovery: Option<Spread>,
}

impl Uncertainty {
    /// Rates known as well as if this many failures had been seen at them.
    pub fn of_rates(problem: &Problem, weight_failures: f64) -> Self {
        let prior = |&rate: &f64| RatePosterior::prior(rate, weight_failures);
        let rates = problem.failures_per_second.iter().map(prior).collect();
        Self {
            rates,
            checkpoint: None,
            recovery: None,
        }
    }
}

/// The range that holds the given share of the plan's efficiency, from draws of rates and costs
/// with the plan kept as it is.
pub fn efficiency_range(
    problem: &Problem,
    best: &Best,
    uncertainty: &Uncertainty,
    share: f64,
    seed: u64,
) -> (f64, f64) {
    const DRAWS: usize = 1000;
    let mut random = Random::from_seed(seed);
    let mut drawn = Vec::with_capacity(DRAWS);
    for _ in 0..DRAWS {
        let mut world = problem.clone();
        for (rate, posterior) in world.failures_per_second.iter_mut().zip(&uncertainty.rates) {
            *rate = posterior.draw_per_second(&mut random);
        }
        let write = uncertainty
            .checkpoint
            .map_or(1.0, |s| s.draw_factor(&mut random));
        let read = uncertainty
            .recovery
            .map_or(1.0, |s| s.draw_factor(&mut random));
        let mut case = world.case_at(
            &best.used_levels,
            best.case.interval_seconds,
            &best.case.between,
        );
        case.checkpoint_seconds
            .iter_mut()
            .for_each(|cost| *cost *= write);
        case.recovery_seconds
            .iter_mut()
            .for_each(|cost| *cost *= read);
        if let Mode::NonBlocking(transfer) = &mut case.mode {
            transfer.top_checkpoint_seconds *= write;
        }
        drawn.push(solve(&case).map_or(0.0, |solution| solution.efficiency));
    }
    drawn.sort_by(f64::total_cmp);
    let tail = (1.0 - share) / 2.0;
    let at = |place: f64| quantile_of_sorted(&drawn, place).unwrap_or(0.0);
    (at(tail), at(1.0 - tail))
}

/// A change to the machine or the job, and the best efficiency with it.
#[derive(Debug, Clone, PartialEq)]
pub struct WhatIf {
    /// What is changed, in words.
    pub change: &'static str,
    /// The best efficiency with it.
    pub efficiency: f64,
    /// How much more that is, in efficiency.
    pub gain: f64,
}

/// Turns inputs into the problem to judge; a caller with measured values applies them here.
pub type ToProblem<'a> = &'a dyn Fn(&Inputs) -> Result<Problem, ModelError>;

/// Tries each change and sorts by what it gains.
pub fn what_ifs(inputs: &Inputs, to_problem: ToProblem<'_>) -> Result<Vec<WhatIf>, ModelError> {
    type Change = (&'static str, fn(&mut Inputs));
    const CHANGES: [Change; 8] = [
        ("twice the file-system bandwidth", |i| {
            i.file_system_gb_per_second *= 2.0;
        }),
        ("twice the local write rate", |i| {
            i.local_write_gb_per_second *= 2.0;
        }),
        ("twice the encoding rate", |i| i.encode_gb_per_second *= 2.0),
        ("half the changed fraction", |i| i.changed_share /= 2.0),
        ("twice the compression", |i| i.compression_ratio *= 2.0),
        ("half the slowdown while draining", |i| {
            i.slowdown_share /= 2.0;
        }),
        ("half the node failures", |i| i.node_mtbf_hours *= 2.0),
        ("partner instead of XOR", |i| {
            i.protection = Protection::Partner;
        }),
    ];
    let base = optimize(&to_problem(inputs)?)?.solution.efficiency;
    let mut result = Vec::new();
    for (change, apply) in CHANGES {
        let mut changed = inputs.clone();
        apply(&mut changed);
        if changed == *inputs {
            continue;
        }
        let efficiency = optimize(&to_problem(&changed)?)?.solution.efficiency;
        result.push(WhatIf {
            change,
            efficiency,
            gain: efficiency - base,
        });
    }
    result.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    Ok(result)
}

/// Where the time goes that is not useful, each as a share of the wall time. The exact efficiency
/// decides; the parts are the directly countable ones, the rest is computing again and recovering.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Losses {
    /// Blocked in checkpoints.
    pub checkpoints: f64,
    /// Computing more slowly while a transfer is in flight.
    pub slowdown: f64,
    /// Waiting at the end of a period for the transfer.
    pub stall: f64,
    /// Computing again what was lost, and recovering.
    pub failures: f64,
}

/// Splits the losses of a case.
pub fn losses(case: &Case) -> Result<Losses, ModelError> {
    let whole = solve(case)?;
    let mut calm = case.clone();
    calm.failures_per_second
        .iter_mut()
        .for_each(|rate| *rate = 0.0);
    let with_all = solve(&calm)?.period_seconds;
    let mut unslowed = calm.clone();
    let mut waiting = 0.0;
    if let (Mode::NonBlocking(transfer), Mode::NonBlocking(own)) = (&mut unslowed.mode, case.mode) {
        transfer.latency_seconds = 0.0;
        let busy = whole.useful_seconds * (1.0 + own.slowdown_share);
        let costs = solve(&unslowed)?.period_seconds - whole.useful_seconds;
        waiting = (own.latency_seconds - busy - costs).max(0.0);
    }
    let without = solve(&unslowed)?.period_seconds;
    let of = |seconds: f64| seconds / whole.period_seconds;
    Ok(Losses {
        checkpoints: of(without - whole.useful_seconds),
        slowdown: of((with_all - without - waiting).max(0.0)),
        stall: of(waiting),
        failures: of(whole.period_seconds - with_all),
    })
}

/// How much of a resource a target efficiency needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Required {
    /// This much of it.
    At(f64),
    /// The ceiling, without limit of this resource, is below the target.
    NotReachable {
        /// The efficiency that no amount exceeds.
        ceiling: f64,
    },
}

/// The least amount between the bounds with which the efficiency reaches the target. The efficiency
/// must not fall with the amount. Found to one part in a hundred, from above.
pub fn required(target: f64, (low, high): (f64, f64), efficiency: impl Fn(f64) -> f64) -> Required {
    let ceiling = efficiency(high);
    if ceiling < target {
        return Required::NotReachable { ceiling };
    }
    let (mut low, mut high) = (low, high);
    if efficiency(low) >= target {
        return Required::At(low);
    }
    while high / low > 1.01 {
        let middle = (low * high).sqrt();
        if efficiency(middle) >= target {
            high = middle;
        } else {
            low = middle;
        }
    }
    Required::At(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_a_range_around_it_and_losses_that_add_up() {
        let inputs = Inputs::default();
        let problem = inputs.problem().unwrap();
        let best = optimize(&problem).unwrap();
        let uncertainty = Uncertainty::of_rates(&problem, 10.0);
        let (low, high) = efficiency_range(&problem, &best, &uncertainty, 0.8, 1);
        let expected = best.solution.efficiency;
        assert!(low < expected && expected < high, "{low} {expected} {high}");
        let losses = losses(&best.case).unwrap();
        let sum = losses.checkpoints + losses.slowdown + losses.stall + losses.failures;
        assert!((sum + expected - 1.0).abs() < 1e-9, "{losses:?}");
    }

    #[test]
    fn what_ifs_never_hurt() {
        let found = what_ifs(&Inputs::default(), &Inputs::problem).unwrap();
        assert_eq!(found.len(), 8);
        assert!(found.iter().all(|w| w.gain > -1e-3), "{found:?}");
    }

    #[test]
    fn targets_above_the_ceiling_are_said_to_be_so() {
        let efficiency = |rate: f64| 0.9 * rate / (rate + 1.0);
        let Required::At(rate) = required(0.45, (1e-3, 1e9), efficiency) else {
            panic!("0.45 is reachable");
        };
        assert!((rate - 1.0).abs() < 2e-2, "{rate}");
        let over = required(0.95, (1e-3, 1e9), efficiency);
        assert!(matches!(over, Required::NotReachable { ceiling } if ceiling < 0.9));
    }
}
