// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: when something was done, in nanoseconds of the first agent's clock: not before, and not after.
//! In from: `nodes`, which asks the first agent what it has. Out to: `part` (when bytes were written).
//! Invariants: the time is within the two that are said, unless a clock runs faster than another by more than one part in
//! `DRIFT`: then they contradict each other, and nothing is said. Clocks are those that nobody sets or slews.

use rustix::time::{ClockId, clock_gettime};

/// Two clocks go apart by at most one nanosecond in so many.
const DRIFT: u64 = 5_000;
/// So many answers are kept: of more, each second one is forgotten.
const SAMPLES_MAX: usize = 1024;
/// So many before a time, and after it, are looked at.
const NEAR: usize = 8;
/// It is not asked again so soon.
const FRESH_NS: u64 = 50_000_000;

/// Not before, and not after.
pub(super) type Times = (u64, u64);
/// When nothing is known.
pub(super) const UNKNOWN: Times = (0, u64::MAX);

/// This node's clock.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    let whole = u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000;
    whole + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// What the first agent answered.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: u64,
    took: u64,
    /// How much its clock is ahead: at least, and at most.
    least: i64,
    most: i64,
}

/// What this agent knows of the first one's clock.
#[derive(Debug, Default)]
pub(super) struct Clock {
    samples: Vec<Sample>,
}

impl Clock {
    /// Whether the first agent answered just before.
    pub(super) fn is_fresh(&self, now: u64) -> bool {
        let last = self.samples.last();
        last.is_some_and(|last| now.saturating_sub(last.at) < FRESH_NS)
    }

    /// Asked at `asked`, the first agent said `there`, which was known at `now`.
    pub(super) fn heard(&mut self, asked: u64, there: u64, now: u64) {
        let ahead = |here: u64| there.wrapping_sub(here).cast_signed();
        if self.samples.last().is_some_and(|last| last.at >= now) {
            return;
        }
        if self.samples.len() >= SAMPLES_MAX {
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 0
            });
        }
        self.samples.push(Sample {
            at: now,
            took: now.saturating_sub(asked),
            least: ahead(now),
            most: ahead(asked),
        });
    }

    /// When the first agent had `time` of this one's clock.
    pub(super) fn there(&self, time: u64) -> Times {
        let next = self.samples.partition_point(|sample| sample.at < time);
        let last = self.samples.len().min(next + NEAR);
        let near = &self.samples[next.saturating_sub(NEAR)..last];
        let (mut least, mut most) = (i64::MIN, i64::MAX);
        for sample in near {
            let apart = (sample.at.abs_diff(time) + sample.took) / DRIFT + 1;
            let apart = i64::try_from(apart).unwrap_or(i64::MAX);
            least = least.max(sample.least.saturating_sub(apart));
            most = most.min(sample.most.saturating_add(apart));
        }
        if near.is_empty() || least > most {
            return UNKNOWN;
        }
        (
            time.saturating_add_signed(least),
            time.saturating_add_signed(most),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_there_is_within_what_is_said() {
        // The other clock is ahead by 1 s, and faster by one in 10,000.
        let there = |here: u64| here + 1_000_000_000 + here / 10_000;
        let mut clock = Clock::default();
        assert_eq!(clock.there(5), UNKNOWN);
        for round in 1..3000u64 {
            let asked = round * 100_000_000;
            let (out, back) = (20_000 + round % 7 * 9_000, 15_000 + round % 11 * 5_000);
            clock.heard(asked, there(asked + out), asked + out + back);
        }
        assert!(clock.samples.len() <= SAMPLES_MAX);
        for here in [1_000, 250_123_456_789, 299_900_000_000, 300_000_000_000] {
            let (least, most) = clock.there(here);
            assert!((least..=most).contains(&there(here)), "{here}");
        }
        // Just after an answer it is about as long as the shortest answer took.
        let (least, most) = clock.there(299_900_100_000);
        assert!(most - least < 120_000, "{}", most - least);
    }

    #[test]
    fn a_clock_that_was_set_says_nothing() {
        let mut clock = Clock::default();
        clock.heard(1_000_000, 5_000_000, 1_050_000);
        clock.heard(2_000_000, 9_000_000, 2_050_000);
        assert_eq!(clock.there(2_060_000), UNKNOWN);
        // An answer that came out of order is passed by.
        clock.heard(1_000_000, 5_000_000, 1_060_000);
        assert_eq!(clock.samples.len(), 2);
    }
}
