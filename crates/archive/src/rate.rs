// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a limit of bytes in a second: a bucket of tokens, which a write may overdraw and then waits.
//! In from: the writer threads. Out to: how long to wait.
//! Invariants: over any time, no more bytes go than the rate allows, and one burst.

use std::time::Duration;

/// Part of a second's bytes that may go at once.
const BURST_SECONDS: f64 = 0.1;

/// The bucket. Times are those since its owner began.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: f64,
    level: f64,
    last: Duration,
}

impl Bucket {
    /// A full bucket for `rate_bytes` in a second, from time 0.
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no 53 bits")]
    pub(super) fn new(rate_bytes: u64) -> Self {
        let rate = rate_bytes.max(1) as f64;
        Self {
            rate,
            level: rate * BURST_SECONDS,
            last: Duration::ZERO,
        }
    }

    /// Takes tokens for `bytes` at the time `now`; how long to wait before they are written.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a write has less than 2^53 bytes"
    )]
    pub(super) fn take(&mut self, bytes: usize, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.last).as_secs_f64();
        self.last = self.last.max(now);
        let full = self.rate * BURST_SECONDS;
        self.level = (self.level + passed * self.rate).min(full) - bytes as f64;
        if self.level >= 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64((-self.level / self.rate).min(3600.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_a_time_is_what_the_rate_allows() {
        let mut bucket = Bucket::new(10_000_000);
        let (mut now, mut written) = (Duration::ZERO, 0);
        while now < Duration::from_secs(10) {
            now += bucket.take(1 << 20, now);
            written += 1 << 20;
        }
        let most = 101_000_000 + (1 << 20);
        assert!((100_000_000..=most).contains(&written), "{written}");
        // Time that was not used is not saved up.
        now += Duration::from_secs(1000);
        let waits = (0..20).map(|_| bucket.take(1 << 20, now)).max().unwrap();
        assert!(waits > Duration::from_millis(1900), "{waits:?}");
    }
}
