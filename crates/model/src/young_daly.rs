// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The classic one-level formulas: two approximations and the exact expectation.
//!
//! Purpose: a known yardstick beside the exact chain, and first-order starts for the optimizer.
//! In from: a checkpoint cost and a mean time between failures.
//! Out to: [`crate::optimize`], the command line, which labels the approximations as such.
//! Invariants: seconds throughout; zero and infinite arguments give the limits.
//!
//! Young, "A First Order Approximation to the Optimum Checkpoint Interval", CACM 1974; Daly, "A
//! higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 2006.

/// Young's approximation of the best useful time between checkpoints, in seconds: sqrt(2 c M).
pub fn young_interval_seconds(checkpoint_seconds: f64, mtbf_seconds: f64) -> f64 {
    (2.0 * checkpoint_seconds * mtbf_seconds).sqrt()
}

/// Daly's higher-order approximation of the same, in seconds.
pub fn daly_interval_seconds(checkpoint_seconds: f64, mtbf_seconds: f64) -> f64 {
    if checkpoint_seconds >= 2.0 * mtbf_seconds {
        return mtbf_seconds;
    }
    let ratio = (checkpoint_seconds / (2.0 * mtbf_seconds)).sqrt();
    let young = young_interval_seconds(checkpoint_seconds, mtbf_seconds);
    young * (1.0 + ratio / 3.0 + ratio * ratio / 9.0) - checkpoint_seconds
}

/// Daly's exact expectation of the wall time of one interval with one blocking level, in seconds:
/// `e^(lambda r) (e^(lambda (t + c)) - 1) / lambda`.
pub fn daly_period_seconds(
    failures_per_second: f64,
    interval_seconds: f64,
    checkpoint_seconds: f64,
    recovery_seconds: f64,
) -> f64 {
    let busy = interval_seconds + checkpoint_seconds;
    let exponent = failures_per_second * busy;
    let growth = if exponent > 0.0 {
        exponent.exp_m1() / exponent
    } else {
        1.0
    };
    (failures_per_second * recovery_seconds).exp() * busy * growth
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Case, Mode, solve};

    #[test]
    fn one_blocking_level_is_dalys_exact_formula() {
        let mut worst = 0.0_f64;
        for rate in [0.0, 1e-15, 1e-9, 1e-5, 1e-3, 0.1, 3.0] {
            for (t, c, r) in [(100.0, 5.0, 10.0), (1.0, 0.0, 0.0), (37.0, 12.5, 20.0)] {
                let case = Case {
                    failures_per_second: vec![rate],
                    checkpoint_seconds: vec![c],
                    recovery_seconds: vec![r],
                    interval_seconds: t,
                    between: vec![],
                    mode: Mode::Blocking,
                };
                let exact = solve(&case).unwrap().period_seconds;
                let daly = daly_period_seconds(rate, t, c, r);
                worst = worst.max((exact / daly - 1.0).abs());
            }
        }
        assert!(worst <= 1e-12, "worst relative difference {worst:e}");
    }

    #[test]
    fn approximations_are_near_the_exact_optimum() {
        let (c, mtbf, r) = (60.0, 86_400.0, 60.0);
        let waste = |t: f64| daly_period_seconds(1.0 / mtbf, t, c, r) / t;
        let daly = daly_interval_seconds(c, mtbf);
        let young = young_interval_seconds(c, mtbf);
        assert!((young - 3220.0).abs() < 1.0, "{young}");
        assert!(waste(daly) < waste(daly * 1.01) && waste(daly) < waste(daly / 1.01));
        assert!(waste(daly) <= waste(young));
        assert!((daly_interval_seconds(10.0, 2.0) - 2.0).abs() < f64::EPSILON);
    }
}
