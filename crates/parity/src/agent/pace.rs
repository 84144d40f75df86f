// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: keeps what an agent copies below the rate that the settings give it.
//! In from: the bytes of each pull, as they are asked for. Out to: the thread that waits.
//! Invariants: no wait goes beyond its deadline; without a rate nothing waits.

use super::lock;
use backstay_base::clock::{Deadline, Stopwatch};
use std::sync::Mutex;
use std::time::Duration;

/// Keeps work below a rate by sleeping.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_a_second: Option<u64>,
    ready: Mutex<f64>,
    since: Stopwatch,
}

impl Pace {
    pub(super) fn new(bytes_a_second: Option<u64>) -> Self {
        Self {
            bytes_a_second,
            ready: Mutex::new(0.0),
            since: Stopwatch::start(),
        }
    }

    /// Books `bytes`, and sleeps until they are due; never beyond `deadline`.
    pub(super) fn pass(&self, bytes: u64, deadline: &Deadline) {
        let Some(rate) = self.bytes_a_second else {
            return;
        };
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let seconds = bytes as f64 / rate as f64;
        let now = self.since.seconds();
        let due = {
            let mut ready = lock(&self.ready);
            *ready = ready.max(now) + seconds;
            *ready
        };
        let sleep = Duration::from_secs_f64((due - now).max(0.0));
        let left = deadline.left().unwrap_or_default();
        std::thread::sleep(sleep.min(left));
    }
}
