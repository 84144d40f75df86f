// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the run itself says about failure rates and costs.
//!
//! Purpose: a gamma posterior of each failure rate, running quantiles of each cost.
//! In from: the engine's observations, kept across restarts.
//! Out to: [`crate::schedule`], the interval around a plan's efficiency.
//! Invariants: serializable, so that exposure survives a restart; bounded memory.

use serde::{Deserialize, Serialize};

use crate::number::{floor_index, real, real_len};
use crate::random::Random;

/// A failure rate that is not known exactly: a gamma distribution with this shape and exposure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RatePosterior {
    /// Failures seen, with those the prior stands for.
    pub failures: f64,
    /// Time watched, with that the prior stands for, in seconds.
    pub exposure_seconds: f64,
    /// What of the failures is the prior's.
    #[serde(default)]
    prior_failures: f64,
    /// What of the time is the prior's, in seconds.
    #[serde(default)]
    prior_seconds: f64,
}

/// What a prior counts at most, from the second failure on: so many times the time that was watched, over their square.
const PRIOR_TIMES: f64 = 10.0;

impl RatePosterior {
    /// A prior worth `weight_failures` failures at the configured rate. A rate of 0 stays 0 until
    /// a failure is seen: its prior is half a failure in a very long time.
    pub fn prior(failures_per_second: f64, weight_failures: f64) -> Self {
        const NEVER_SECONDS: f64 = 1e12;
        if failures_per_second > 0.0 {
            let exposure_seconds = weight_failures / failures_per_second;
            return Self {
                failures: weight_failures,
                exposure_seconds,
                prior_failures: weight_failures,
                prior_seconds: exposure_seconds,
            };
        }
        Self {
            failures: 0.0,
            exposure_seconds: NEVER_SECONDS,
            prior_failures: 0.0,
            prior_seconds: NEVER_SECONDS,
        }
    }

    /// More time has been watched and more failures seen in it.
    pub fn observe(&mut self, failures: u64, exposure_seconds: f64) {
        self.observe_part(real(failures), exposure_seconds);
    }

    /// The same of failures of which only a part is of this level, as far as is known.
    ///
    /// A prior is a guess, and as long as nothing failed the only thing known. Failures show how good it is: after n
    /// of them it counts 1 / (1 + n)^2 of what it did, or a guess of years would hide that a job fails each day; and no
    /// more than 10 / n^2 of the time that was watched, or it would hide for weeks that one fails each minute. A first
    /// failure, of a program that was just started, may have another reason.
    pub fn observe_part(&mut self, failures: f64, exposure_seconds: f64) {
        self.exposure_seconds += exposure_seconds.max(0.0);
        if failures > 0.0 {
            let seen = 1.0 + self.failures - self.prior_failures;
            let left = (seen / (seen + failures)).powi(2);
            // A configured rate of 0 is refuted by the first.
            let left = if self.failures > 0.0 { left } else { 0.0 };
            self.failures += failures;
            self.believe_prior(left);
            let seen = self.failures - self.prior_failures;
            let watched = (self.exposure_seconds - self.prior_seconds).max(1.0);
            let most_seconds = PRIOR_TIMES * watched / seen.powi(2);
            if seen >= 2.0 && self.prior_seconds > most_seconds {
                self.believe_prior(most_seconds / self.prior_seconds);
            }
        }
    }

    /// Has the prior count a `share` of what it did.
    fn believe_prior(&mut self, share: f64) {
        self.failures -= (1.0 - share) * self.prior_failures;
        self.exposure_seconds -= (1.0 - share) * self.prior_seconds;
        self.prior_failures *= share;
        self.prior_seconds *= share;
    }

    /// The expected rate, per second.
    pub fn mean_per_second(&self) -> f64 {
        if self.exposure_seconds > 0.0 {
            self.failures / self.exposure_seconds
        } else {
            0.0
        }
    }

    /// A rate drawn from the distribution, per second.
    pub fn draw_per_second(&self, random: &mut Random) -> f64 {
        if self.exposure_seconds > 0.0 {
            return random.gamma(self.failures) / self.exposure_seconds;
        }
        0.0
    }
}

/// The last values of a cost, for quantiles that follow it as it changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunningQuantiles {
    values: Vec<f64>,
    next: usize,
}

impl Default for RunningQuantiles {
    fn default() -> Self {
        Self::new()
    }
}

impl RunningQuantiles {
    /// Values that are kept.
    pub const WINDOW: usize = 64;

    /// No values yet.
    pub fn new() -> Self {
        Self {
            values: Vec::new(),
            next: 0,
        }
    }

    /// Adds a value; negative and non-finite ones are not costs and are left out.
    pub fn push(&mut self, seconds: f64) {
        if !seconds.is_finite() || seconds < 0.0 {
            return;
        }
        if self.values.len() < Self::WINDOW {
            self.values.push(seconds);
        } else if let Some(oldest) = self.values.get_mut(self.next % Self::WINDOW) {
            *oldest = seconds;
        }
        self.next = (self.next + 1) % Self::WINDOW;
    }

    /// Values held.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether nothing was seen yet.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The value below which this share of the kept ones lies; `None` before the first.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        quantile_of_sorted(&sorted, share)
    }
}

/// The quantile of sorted values, interpolated between the two around it.
pub fn quantile_of_sorted(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * real_len(last);
    let below = floor_index(place).min(last);
    let above = (below + 1).min(last);
    let part = place - real_len(below);
    Some(sorted[below] + part * (sorted[above] - sorted[below]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_moves_the_rate() {
        let mut rate = RatePosterior::prior(1e-5, 2.0);
        assert!((rate.mean_per_second() - 1e-5).abs() < 1e-18);
        rate.observe(0, 2e5);
        assert!((rate.mean_per_second() - 2.0 / 4e5).abs() < 1e-15);
        rate.observe(20, 0.0);
        // The guess counts a 441st of what it did.
        let expected = (20.0 + 2.0 / 441.0) / (2e5 + 2e5 / 441.0);
        assert!((rate.mean_per_second() - expected).abs() < 1e-15);
        let mut random = Random::from_seed(3);
        let draws: Vec<f64> = (0..4000)
            .map(|_| rate.draw_per_second(&mut random))
            .collect();
        let mean = draws.iter().sum::<f64>() / 4000.0;
        assert!((mean / rate.mean_per_second() - 1.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn a_guess_of_years_does_not_hide_failures_of_each_day() {
        const DAY: f64 = 86_400.0;
        let mut rate = RatePosterior::prior(1.0 / (1000.0 * DAY), 1.0);
        for _ in 0..10 {
            rate.observe(1, DAY);
        }
        let days = 1.0 / rate.mean_per_second() / DAY;
        assert!((1.0..3.0).contains(&days), "{days}");
        // One after the other they come to what they come to at once.
        let mut at_once = RatePosterior::prior(1.0 / (1000.0 * DAY), 1.0);
        at_once.observe(10, 10.0 * DAY);
        assert!((at_once.mean_per_second() / rate.mean_per_second() - 1.0).abs() < 0.1);
        // Nor those of each minute, of which there are a few.
        let mut quick = RatePosterior::prior(1.0 / (1000.0 * DAY), 1.0);
        for most_seconds in [300.0 * DAY, 220.0, 130.0, 100.0] {
            quick.observe(0, 60.0);
            quick.observe(1, 0.0);
            let seconds = 1.0 / quick.mean_per_second();
            assert!((60.0..most_seconds).contains(&seconds), "{seconds}");
        }
        // Where nothing failed it stays what is known.
        let mut calm = RatePosterior::prior(1.0 / DAY, 1.0);
        calm.observe(0, DAY);
        assert!((calm.mean_per_second() * DAY - 0.5).abs() < 1e-12);
    }

    #[test]
    fn a_rate_of_zero_is_kept_until_refuted() {
        let mut rate = RatePosterior::prior(0.0, 1.0);
        rate.observe(0, 1000.0);
        assert!(rate.mean_per_second() == 0.0);
        rate.observe(1, 500.0);
        // All that was watched counts.
        assert!((rate.mean_per_second() - 1.0 / 1500.0).abs() < 1e-9);
    }

    #[test]
    fn quantiles_follow_the_last_values() {
        let mut cost = RunningQuantiles::new();
        assert_eq!(cost.quantile(0.5), None);
        cost.push(f64::NAN);
        for value in 0..200 {
            cost.push(f64::from(value));
        }
        assert_eq!(cost.len(), RunningQuantiles::WINDOW);
        assert!((cost.quantile(0.0).unwrap() - 136.0).abs() < 1e-12);
        assert!((cost.quantile(0.5).unwrap() - 167.5).abs() < 1e-12);
    }
}
