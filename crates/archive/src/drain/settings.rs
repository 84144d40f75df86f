// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how a job drains, as its configuration says and as it goes to every aggregator.
//! In from: `session` (the configuration). Out to: JSON in the request to drain.
//! Invariants: a setting that an aggregator does not know is refused, not passed over.

use crate::aggregate::{Merge, Options};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::drain::ArchiveCodec;
use serde::{Deserialize, Serialize};

/// How much an interrupted drain loses at most: this many bytes,
const PROGRESS_BYTES_MAX: u64 = 256 << 20;
/// but no more than may be written in so many seconds, unless that is next to nothing.
const PROGRESS_SECONDS: u64 = 4;
const PROGRESS_BYTES_MIN: u64 = 4 << 20;

/// How to drain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainSettings {
    /// How ranks are merged.
    pub merge: Merge,
    /// Ranks that are merged with each other.
    pub group_size: u32,
    /// How codecs are chosen.
    pub codec: ArchiveCodec,
    /// Whether a second, general-purpose pass is tried.
    pub second_pass: bool,
    /// Drains that a base serves; 0 where all is stored whole.
    pub history: u32,
    /// Every so many checkpoints one is drained.
    pub every: u32,
    /// Threads that encode.
    pub threads: u32,
    /// Threads that write.
    pub write_threads: u32,
    /// Most bytes a second that all aggregators write together.
    pub rate_bytes: Option<u64>,
    /// Bytes to reserve in each aggregator's file; by default a rule.
    pub reserve_bytes: Option<u64>,
    /// Storage targets of a file.
    pub stripe_count: Option<u32>,
    /// Bytes on a target before the next.
    pub stripe_size_bytes: Option<u64>,
    /// Niceness of the threads.
    pub nice: i32,
    /// CPUs of the threads.
    pub cpu_set: Option<String>,
    /// Longest wait for another node, in milliseconds.
    pub timeout_ms: u64,
}

impl DrainSettings {
    /// As a request carries them.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What a request carries.
    pub fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| {
            let context = "settings of a drain that this version does not know";
            Error::caused(ErrorKind::Unsupported, context, error)
        })
    }

    /// Bytes that an interrupted drain loses at most: less where little may be written in a second.
    pub(super) fn progress_bytes(&self, aggregators: u32) -> u64 {
        let own = |rate: u64| rate / u64::from(aggregators.max(1));
        let allowed = self.rate_bytes.map_or(u64::MAX, own);
        allowed
            .saturating_mul(PROGRESS_SECONDS)
            .clamp(PROGRESS_BYTES_MIN, PROGRESS_BYTES_MAX)
    }

    pub(super) fn options(&self) -> Options {
        Options {
            merge: self.merge,
            group_size: backstay_format::width::index(self.group_size).max(1),
            ..Options::default()
        }
    }
}
