// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests from outside: archives: what is merged, stored, recorded, fenced and damaged.
#![expect(clippy::unwrap_used, reason = "a test may stop where it fails")]

mod aggregate;
mod archive_catalog;
mod archive_crash;
mod archive_damage;
mod archive_fence;
mod archive_layout;
mod archive_space;
mod archive_store;
mod archive_thin;
mod coordinator;
mod two_slots;
