// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Levels, rates, costs and the pattern they are taken in: the input of the exact model.
//!
//! Purpose: the nouns shared by the exact chain, the optimizer and the simulator, and their
//! validation.
//! In from: [`crate::cases`], the human inputs, the optimizer.
//! Out to: [`crate::markov`], [`crate::simulate`].
//! Invariants: SI units; index 0 is level 1; a validated case has consistent lengths, finite
//! numbers within the named bounds, and a period that can be enumerated.

use serde::{Deserialize, Serialize};

use crate::error::{ModelError, check_each, check_range};
use crate::number::real;

/// The most levels a case may have.
pub const LEVELS_MAX: usize = 8;
/// The highest failure rate of one level, in failures per second.
pub const RATE_MAX_PER_SECOND: f64 = 1e6;
/// The longest duration, in seconds.
pub const SECONDS_MAX: f64 = 1e18;
/// The largest slowdown while a transfer is in flight, as a share.
pub const SLOWDOWN_MAX: f64 = 1e6;
/// The most intervals of one period.
pub const INTERVALS_MAX: u64 = 1_000_000_000_000;
/// The most intervals between two checkpoints of level L-1: the part that is walked one by one.
pub const BLOCK_INTERVALS_MAX: u64 = 3_000_000;

/// When an asynchronous transfer counts as durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Completion {
    /// At the end of the interval in which its progress reaches the latency.
    State,
    /// At the instant its progress reaches the latency.
    Continuous,
}

/// A top level that is written while the application computes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Slowdown of the computation while a transfer is in flight (the paper's alpha), as a share.
    pub slowdown_share: f64,
    /// Time in flight that a transfer needs, from when the blocking part ends, in seconds.
    pub latency_seconds: f64,
    /// Blocking part of the top-level checkpoint, in seconds.
    pub top_checkpoint_seconds: f64,
    /// When the transfer counts as durable.
    pub completion: Completion,
}

/// Whether the top level blocks the application.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Every checkpoint blocks the application.
    Blocking,
    /// The top level leaves a local copy and is transferred in the background.
    NonBlocking(Transfer),
}

/// One pattern of checkpoints under given failure rates and costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Rate of failures that need a checkpoint of at least this level, per second and level.
    pub failures_per_second: Vec<f64>,
    /// Blocking time of a checkpoint, in seconds and by level. The last one is ignored when the
    /// top level does not block.
    pub checkpoint_seconds: Vec<f64>,
    /// Time to recover from a checkpoint, in seconds and by level.
    pub recovery_seconds: Vec<f64>,
    /// Useful time of one interval, in seconds.
    pub interval_seconds: f64,
    /// Checkpoints of level k between two checkpoints of a higher level, for k below the top.
    pub between: Vec<u64>,
    /// Whether the top level blocks.
    pub mode: Mode,
}

impl Case {
    /// Number of levels.
    pub fn level_count(&self) -> usize {
        self.failures_per_second.len()
    }

    /// Intervals of one period, `None` when they cannot be counted.
    pub fn intervals(&self) -> Option<u64> {
        self.between.iter().try_fold(1_u64, |product, &count| {
            product.checked_mul(count.checked_add(1)?)
        })
    }

    /// Total failure rate, per second.
    pub fn total_failures_per_second(&self) -> f64 {
        self.failures_per_second.iter().sum()
    }

    /// Useful time of one period, in seconds.
    pub fn useful_seconds(&self) -> f64 {
        self.intervals().map_or(f64::NAN, real) * self.interval_seconds
    }

    /// Checks every field; the error names the field, its value and the allowed range.
    pub fn validate(&self) -> Result<(), ModelError> {
        let count = self.level_count();
        if count == 0 || count > LEVELS_MAX {
            let allowed = format!("1 to {LEVELS_MAX} levels");
            return Err(ModelError::field("lam", format!("{count} levels"), allowed));
        }
        check_length("c", self.checkpoint_seconds.len(), count)?;
        check_length("r", self.recovery_seconds.len(), count)?;
        check_length("V", self.between.len(), count - 1)?;
        check_each("lam", &self.failures_per_second, 0.0, RATE_MAX_PER_SECOND)?;
        let blocking = matches!(self.mode, Mode::Blocking);
        let used = if blocking { count } else { count - 1 };
        check_each("c", &self.checkpoint_seconds[..used], 0.0, SECONDS_MAX)?;
        check_each("r", &self.recovery_seconds, 0.0, SECONDS_MAX)?;
        check_positive("t", self.interval_seconds)?;
        self.validate_period()?;
        match self.mode {
            Mode::Blocking => Ok(()),
            Mode::NonBlocking(transfer) => transfer.validate(),
        }
    }

    fn validate_period(&self) -> Result<(), ModelError> {
        let shown = || format!("{:?}", self.between);
        let intervals = self
            .intervals()
            .filter(|&n| n <= INTERVALS_MAX)
            .ok_or_else(|| {
                let allowed = format!("a product of (V_k + 1) up to {INTERVALS_MAX:e} intervals");
                ModelError::field("V", shown(), allowed)
            })?;
        let block = intervals / self.between.last().map_or(1, |&count| count + 1);
        if block > BLOCK_INTERVALS_MAX {
            let allowed = format!(
                "up to {BLOCK_INTERVALS_MAX:e} intervals between checkpoints of the level below the top"
            );
            return Err(ModelError::field("V", shown(), allowed));
        }
        Ok(())
    }
}

impl Transfer {
    fn validate(&self) -> Result<(), ModelError> {
        check_range("alpha", self.slowdown_share, 0.0, SLOWDOWN_MAX)?;
        check_range("latency", self.latency_seconds, 0.0, SECONDS_MAX)?;
        check_range("c_top", self.top_checkpoint_seconds, 0.0, SECONDS_MAX)
    }

    /// The tolerance within which progress counts as having reached the latency, in seconds.
    pub fn tolerance_seconds(&self) -> f64 {
        1e-9 * self.latency_seconds.max(1.0)
    }
}

fn check_length(field: &str, found: usize, expected: usize) -> Result<(), ModelError> {
    if found == expected {
        return Ok(());
    }
    let allowed = format!("{expected} (lam has the length L, c and r too, V has L - 1)");
    Err(ModelError::field(field, format!("{found} values"), allowed))
}

fn check_positive(field: &str, seconds: f64) -> Result<(), ModelError> {
    check_range(field, seconds, 0.0, SECONDS_MAX)?;
    if seconds > 0.0 {
        return Ok(());
    }
    let allowed = format!("above 0, up to {SECONDS_MAX:e}");
    Err(ModelError::field(field, format!("{seconds:?}"), allowed))
}

/// The level of the checkpoint that ends interval `index` (1 to N), levels counted from 1.
///
/// From 1 upwards, a checkpoint is raised one level for each `V_k + 1` that still divides it.
pub fn level_at(index: u64, between: &[u64]) -> usize {
    let mut rest = index;
    let mut level = 1;
    for &count in between {
        let every = count.saturating_add(1);
        if !rest.is_multiple_of(every) {
            break;
        }
        level += 1;
        rest /= every;
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    type Spoil = (&'static str, fn(&mut Case));

    #[test]
    fn levels_follow_the_divisor_rule() {
        let levels: Vec<usize> = (1..=12).map(|j| level_at(j, &[1, 2])).collect();
        assert_eq!(levels, [1, 2, 1, 2, 1, 3, 1, 2, 1, 2, 1, 3]);
        let skipped: Vec<usize> = (1..=4).map(|j| level_at(j, &[0, 1])).collect();
        assert_eq!(skipped, [2, 3, 2, 3]);
        assert_eq!(level_at(1, &[]), 1);
    }

    #[test]
    fn every_field_is_checked_by_name() {
        let good = Case {
            failures_per_second: vec![1e-5, 1e-6],
            checkpoint_seconds: vec![1.0, 2.0],
            recovery_seconds: vec![1.0, 2.0],
            interval_seconds: 10.0,
            between: vec![3],
            mode: Mode::NonBlocking(Transfer {
                slowdown_share: 0.1,
                latency_seconds: 5.0,
                top_checkpoint_seconds: 1.0,
                completion: Completion::State,
            }),
        };
        assert_eq!(good.validate(), Ok(()));
        let spoil: [Spoil; 9] = [
            ("lam[1]", |c| c.failures_per_second[1] = -1.0),
            ("c[0]", |c| c.checkpoint_seconds[0] = f64::NAN),
            ("r[1]", |c| c.recovery_seconds[1] = f64::INFINITY),
            ("t", |c| c.interval_seconds = 0.0),
            ("V", |c| c.between = vec![u64::MAX]),
            ("V", |c| c.between = vec![]),
            ("c", |c| c.checkpoint_seconds.clear()),
            ("lam", |c| c.failures_per_second = vec![0.0; 9]),
            ("alpha", |c| {
                if let Mode::NonBlocking(transfer) = &mut c.mode {
                    transfer.slowdown_share = -0.5;
                }
            }),
        ];
        for (name, change) in spoil {
            let mut case = good.clone();
            change(&mut case);
            let error = case.validate().unwrap_err().to_string();
            assert!(error.starts_with(name), "{name}: {error}");
        }
    }
}
