// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the only place that asks what time it is.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970; 0 where the system clock stands before that.
pub fn unix_ns() -> u64 {
    let elapsed = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// A running measurement of wall time.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }
    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Longer than any wait, and short enough to be added to any instant.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// An instant after which a wait gives up.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// `limit` from now; a year from now where it is longer.
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit.min(YEAR))
    }
    /// Time left; `None` when it has passed.
    pub fn left(&self) -> Option<Duration> {
        self.0
            .checked_duration_since(Instant::now())
            .filter(|left| !left.is_zero())
    }
}
