// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the only place that asks what time it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Tests set the system clock: each reading is up to ten days off what it is, one way or the other.
#[cfg(any(debug_assertions, feature = "faults"))]
pub mod jumps {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    const TEN_DAYS_NS: u64 = 10 * 86_400 * 1_000_000_000;
    static ARE_ON: AtomicBool = AtomicBool::new(false);
    static READINGS: AtomicU64 = AtomicU64::new(0);

    /// Whether readings jump from now on.
    pub fn set(on: bool) {
        ARE_ON.store(on, Ordering::Relaxed);
    }

    pub(super) fn jump(now: u64) -> u64 {
        if !ARE_ON.load(Ordering::Relaxed) {
            return now;
        }
        let reading = READINGS.fetch_add(1, Ordering::Relaxed);
        let mixed = (reading + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let off = (mixed ^ (mixed >> 29)) % (2 * TEN_DAYS_NS);
        (now + off).saturating_sub(TEN_DAYS_NS)
    }
}

/// Nanoseconds since 1970; 0 where the system clock stands before that.
pub fn unix_ns() -> u64 {
    let now = system_ns();
    #[cfg(any(debug_assertions, feature = "faults"))]
    let now = jumps::jump(now);
    now
}

fn system_ns() -> u64 {
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

/// Counts what was done, for those who look whether something still moves. Copies count together.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<AtomicU64>);

impl Pulse {
    /// Something was done.
    pub fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    /// How much was done so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The first pause between two tries, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Pauses between tries, each twice as long as the one before, until a limit has passed.
#[derive(Debug)]
pub struct Backoff {
    deadline: Deadline,
    pause: Duration,
}

impl Backoff {
    /// Tries until `limit` from now.
    pub fn within(limit: Duration) -> Self {
        Self {
            deadline: Deadline::after(limit),
            pause: FIRST_PAUSE,
        }
    }
    /// Time left; `None` when the limit has passed.
    pub fn left(&self) -> Option<Duration> {
        self.deadline.left()
    }
    /// Pauses before the next try; false, at once, where the limit has passed.
    pub fn pause(&mut self) -> bool {
        let Some(left) = self.deadline.left() else {
            return false;
        };
        std::thread::sleep(self.pause.min(left));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

/// Does `what` until it succeeds, fails for good, or `limit` has passed since the first failure that may
/// pass by itself.
pub fn patiently<T, E>(
    limit: Duration,
    may_pass: impl Fn(&E) -> bool,
    mut what: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut again = None;
    loop {
        match what() {
            Err(error) if may_pass(&error) => {
                let again = again.get_or_insert_with(|| Backoff::within(limit));
                if !again.pause() {
                    return Err(error);
                }
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_again_and_no_longer_than_asked() {
        let mut tries = 0;
        let mut third = || {
            tries += 1;
            if tries < 3 { Err(true) } else { Ok(tries) }
        };
        let limit = Duration::from_secs(60);
        assert_eq!(patiently(limit, |&may| may, &mut third), Ok(3));
        let mut tries = 0;
        let mut never = |may: bool| {
            tries += 1;
            Err::<(), bool>(may)
        };
        assert_eq!(patiently(limit, |&may| may, || never(false)), Err(false));
        let none = Duration::ZERO;
        assert_eq!(patiently(none, |&may| may, || never(true)), Err(true));
        assert_eq!(tries, 2);
    }
}
