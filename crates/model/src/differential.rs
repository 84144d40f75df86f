// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a checkpoint costs when only the changed blocks are written.
//!
//! Purpose: the cost of a checkpoint as a function of the interval before it.
//! In from: a changed share and the ratio of hashing to writing time.
//! Out to: [`crate::optimize`], which chooses interval and pattern together with it.
//! Invariants: shares lie in 0 to 1; recovery reads the full size and is never scaled.
//! Paper: section VI of "Scalable Differential Checkpointing" (Keller, Bautista-Gomez).

use serde::{Deserialize, Serialize};

use crate::error::{ModelError, check_range};

/// How much of the state has changed after some useful time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangedShare {
    /// The same share however long the interval: what changes, changes at once.
    Constant(f64),
    /// Blocks are touched at random: `ceiling (1 - exp(-interval / time))`.
    Saturating {
        /// Share that ever changes.
        ceiling_share: f64,
        /// Time in which 63 % of that has changed, in seconds.
        time_seconds: f64,
    },
}

/// How often a changed block is hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hashing {
    /// Every block once, while it is copied: the cost is `n + rho`.
    Once,
    /// Changed blocks a second time after the commit, as FTI does: `n + rho (1 + n)`.
    Twice,
}

/// The cost of differential checkpoints relative to full ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Differential {
    /// Changed share on the rank that has changed most: the slowest rank decides.
    pub changed: ChangedShare,
    /// Time to hash the whole state, in seconds. Over the time to write it, this is the paper's
    /// rho, which differs from level to level because writing does.
    pub hash_seconds: f64,
    /// How often changed blocks are hashed.
    pub hashing: Hashing,
    /// Whether transfers to the top level move only what changed over the period.
    pub drains_changes_only: bool,
}

impl ChangedShare {
    /// Share changed after this much useful time, in 0 to 1.
    pub fn after(&self, interval_seconds: f64) -> f64 {
        match *self {
            Self::Constant(share) => share,
            Self::Saturating {
                ceiling_share,
                time_seconds,
            } => -ceiling_share * (-interval_seconds / time_seconds).exp_m1(),
        }
    }

    /// The share that decides when ranks differ: checkpoints end with the slowest.
    pub fn of_slowest_rank(shares: &[f64]) -> Self {
        Self::Constant(shares.iter().copied().fold(0.0, f64::max))
    }
}

impl Differential {
    /// What a checkpoint costs after this much useful time when a full one costs `full_seconds`:
    /// `full (n + rho)` or `full (n + rho (1 + n))`, in seconds.
    pub fn cost_seconds(&self, full_seconds: f64, interval_seconds: f64) -> f64 {
        let share = self.changed.after(interval_seconds);
        let hashed = match self.hashing {
            Hashing::Once => self.hash_seconds,
            Hashing::Twice => self.hash_seconds * (1.0 + share),
        };
        full_seconds * share + hashed
    }

    /// Changed share below which differential checkpoints are cheaper than full ones.
    pub fn break_even_share(&self, full_seconds: f64) -> f64 {
        let rho = self.hash_seconds / full_seconds;
        match self.hashing {
            Hashing::Once => 1.0 - rho,
            Hashing::Twice => (1.0 - rho) / (1.0 + rho),
        }
    }

    /// Checks every field.
    pub fn validate(&self) -> Result<(), ModelError> {
        match self.changed {
            ChangedShare::Constant(share) => check_range("changed_share", share, 0.0, 1.0)?,
            ChangedShare::Saturating {
                ceiling_share,
                time_seconds,
            } => {
                check_range("changed_share", ceiling_share, 0.0, 1.0)?;
                check_range("changed_time_seconds", time_seconds, 1e-9, 1e18)?;
            }
        }
        check_range("hash_seconds", self.hash_seconds, 0.0, 1e18)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differential(changed: ChangedShare, hashing: Hashing) -> Differential {
        Differential {
            changed,
            hash_seconds: 0.5,
            hashing,
            drains_changes_only: false,
        }
    }

    #[test]
    fn factors_are_those_of_the_papers() {
        let share = ChangedShare::Constant(0.03);
        let once = differential(share, Hashing::Once);
        let twice = differential(share, Hashing::Twice);
        // rho = 0.5 / 10 = 0.05
        assert!((once.cost_seconds(10.0, 1.0) - 0.8).abs() < 1e-15);
        assert!((twice.cost_seconds(10.0, 1.0) - 0.815).abs() < 1e-15);
        let even = ChangedShare::Constant(twice.break_even_share(10.0));
        let at = differential(even, Hashing::Twice);
        assert!((at.cost_seconds(10.0, 9.0) - 10.0).abs() < 1e-12);
    }

    #[test]
    fn shares_grow_with_the_interval() {
        let changed = ChangedShare::Saturating {
            ceiling_share: 0.5,
            time_seconds: 100.0,
        };
        assert!(changed.after(0.0).abs() < 1e-15);
        assert!((changed.after(100.0) - 0.5 * (1.0 - (-1.0_f64).exp())).abs() < 1e-12);
        assert!((changed.after(1e9) - 0.5).abs() < 1e-12);
        assert_eq!(
            ChangedShare::of_slowest_rank(&[0.03, 0.8]),
            ChangedShare::Constant(0.8)
        );
    }

    #[test]
    fn bad_shares_are_named() {
        let bad = differential(ChangedShare::Constant(1.2), Hashing::Once);
        let error = bad.validate().unwrap_err().to_string();
        assert!(error.starts_with("changed_share = 1.2"), "{error}");
    }
}
