// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the engine from outside: whole jobs of threads, their stores in a temporary folder.
#![expect(unsafe_code, reason = "protecting memory is unsafe by contract")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may stop where it fails"
)]

mod aggregators;
mod agreement;
mod ahead;
mod archive;
mod archive_history;
mod job;
mod collision;
mod drain_follow;
mod fabric;
mod finished;
mod groups;
mod deleted;
mod far_reads;
mod files;
mod files_routed;
mod lagging;
mod later_versions;
mod starts;
mod memory;
mod nodes;
mod pins;
mod process;
mod ranks;
mod repeated;
mod restartable;
mod rounds;
mod settings;
mod slabs;
mod speakers;
mod stripes;
mod threads;
mod tracking;
mod transport;
mod unread;
mod unread_archive;
mod unread_log;
mod unread_rebuild;
mod unread_slots;
mod versions;
