// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the configuration says to agents and to drains, in the words of each.

#[cfg(feature = "archive")]
use super::ArchiveCodec;
use super::{Config, Transport};
#[cfg(feature = "archive")]
use backstay_archive::drain::DrainSettings;
use backstay_format::width::index;
use backstay_net::Transports;
use backstay_parity::agent::AgentSettings;
use std::time::Duration;

/// Drains that a base serves where nothing is said.
#[cfg(feature = "archive")]
const HISTORY: u32 = 8;

impl Config {
    /// How a node's agent works.
    pub fn agent_settings(&self) -> AgentSettings {
        AgentSettings {
            within: Duration::from_millis(self.timeout_ms),
            threads: index(self.encode_threads),
            rate_bytes: self.encode_rate_bytes,
            cpu_set: self.cpu_set.clone(),
            nice: self.background_nice(),
        }
    }

    /// By what nodes read of each other.
    pub fn transports(&self) -> Transports {
        let transport = match self.transport {
            Transport::Auto => backstay_net::Transport::Auto,
            Transport::Tcp => backstay_net::Transport::Tcp,
            Transport::Libfabric => backstay_net::Transport::Libfabric,
        };
        Transports {
            transport,
            provider: self.fabric_provider.clone(),
        }
    }

    /// How the job drains.
    #[cfg(feature = "archive")]
    pub fn drain_settings(&self) -> DrainSettings {
        DrainSettings {
            merge: self.archive_merge,
            group_size: self.archive_group_size,
            codec: self.archive_codec,
            second_pass: self.archive_second_pass,
            history: self.history(),
            every: self.archive_every.unwrap_or(1),
            threads: self.archive_threads,
            write_threads: self.archive_write_threads,
            rate_bytes: self.archive_rate_bytes,
            reserve_bytes: self.archive_reserve_bytes,
            stripe_count: self.archive_stripe_count,
            stripe_size_bytes: self.archive_stripe_size_bytes,
            nice: self.background_nice(),
            cpu_set: self.cpu_set.clone(),
            timeout_ms: self.timeout_ms,
        }
    }

    fn background_nice(&self) -> i32 {
        i32::try_from(self.encode_nice).unwrap_or(19)
    }

    /// How long bases serve: reading them back costs, so only where the ratio counts or it is asked for.
    #[cfg(feature = "archive")]
    fn history(&self) -> u32 {
        match (self.archive_codec, self.archive_history) {
            (ArchiveCodec::Raw, _) | (ArchiveCodec::Auto, None) => 0,
            (ArchiveCodec::Ratio, None) => HISTORY,
            (_, Some(drains)) => drains,
        }
    }
}
