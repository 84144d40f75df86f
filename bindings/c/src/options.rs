// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the settings a C program makes; they go over file and environment.
//! Reference: docs/reference/config.md.

use crate::pointer;
use crate::sized;
use crate::status::invalid;
use engine::config::{Redundancy, Tracking};
use engine::{Config, Result};
use std::ffi::c_char;
use std::mem::{offset_of, size_of};

/// Changed blocks are found as the session does by default.
pub const BACKSTAY_TRACKING_DEFAULT: i32 = 0;
/// Every block is written every time.
pub const BACKSTAY_TRACKING_FULL: i32 = 1;
/// Blocks whose hash differs from the committed one are written.
pub const BACKSTAY_TRACKING_HASH: i32 = 2;
/// Only pages the kernel saw written are hashed. For memory that no device and no other process
/// writes: no MPI window, no RDMA receive buffer.
pub const BACKSTAY_TRACKING_PAGES: i32 = 3;
/// Only what backstay_mark_dirty named is hashed, once that was all that changed. A variable of at most
/// 64 KiB, and one that is never marked, is hashed.
pub const BACKSTAY_TRACKING_MARKED: i32 = 4;

/// Settings of a session. What is 0 or NULL stays as the environment (BACKSTAY_STORE_PATH and so
/// on), the file that BACKSTAY_CONFIG names, or the default has it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Options {
    /// sizeof(backstay_options).
    pub struct_size: usize,
    /// Name of the job; by default the program's name and a hash of its working directory.
    pub job: *const c_char,
    /// Name of the node; by default the host name.
    pub node: *const c_char,
    /// Folder for the store; by default on /dev/shm where it is large enough.
    pub store_path: *const c_char,
    /// CPUs for background threads, as in "0-3,8"; by default those of the process.
    pub cpu_set: *const c_char,
    /// When backstay_due says yes: every so many seconds, or "auto" (the default).
    pub interval: *const c_char,
    /// Mean time between failures of one node, in hours, for "auto".
    pub node_mtbf_hours: u64,
    /// Bytes to reserve on each node; by default a rule applied at the first checkpoint.
    pub reserve_bytes: u64,
    /// Longest wait of Backstay's, in milliseconds.
    pub timeout_ms: u64,
    /// After this time inside the communicator a watchdog reports rank and operation.
    pub watchdog_ms: u64,
    /// Least time between two writings of metrics.json, in milliseconds.
    pub metrics_interval_ms: u64,
    /// Fraction of the state expected to change between checkpoints, for the rule above.
    pub changed_share: f64,
    /// Bytes of a segment, a power of two.
    pub segment_bytes: u32,
    /// Bytes of a block, the unit of change tracking; a power of two.
    pub block_bytes: u32,
    /// How changed blocks are found: one of BACKSTAY_TRACKING_*.
    pub tracking: i32,
    /// Newest checkpoints to keep, at least 2.
    pub retained: u32,
    /// Threads of each rank that capture changed blocks, and read them back; 0: its share of the processors.
    pub capture_threads: u32,
    /// Must be 0.
    pub reserved: u32,
    /// What protects checkpoints against lost nodes: "none", "partner", "xor" or "rs".
    pub redundancy: *const c_char,
    /// What fails together with this node; by default nothing.
    pub failure_domain: *const c_char,
    /// Bytes a second that a node gathers for parity at most.
    pub encode_rate_bytes: u64,
    /// Lost nodes of a group that "rs" covers.
    pub parity: u32,
    /// Nodes of a group.
    pub group_size: u32,
    /// Folder on the parallel file system that checkpoints drain to; NULL for none.
    pub archive: *const c_char,
    /// Bytes a second that all aggregators of the job write to the archive at most.
    pub archive_rate_bytes: u64,
    /// Every so many checkpoints one drains; 0 for those that the planner picks (see backstay_due).
    pub archive_every: u32,
    /// Checkpoints that the archive keeps.
    pub archive_retained: u32,
    /// Any other settings, as a file of settings has them: "fresh = 1\nencode_threads = 4". What a field above
    /// sets counts more. NULL for none.
    pub settings: *const c_char,
}

// SAFETY: repr(C), begins with its size; zero is NULL for pointers and a number otherwise.
unsafe impl sized::Sized for Options {
    const NAME: &'static str = "backstay_options";
    const FIRST_SIZE: usize = offset_of!(Options, reserved) + size_of::<u32>();
}

/// The settings of this process with those of `from` over them.
///
/// # Safety
/// `from` is NULL or points to a `backstay_options` as the header describes it.
pub(crate) unsafe fn config(from: *const Options) -> Result<Config> {
    if from.is_null() {
        return Config::from_environment();
    }
    // SAFETY: not NULL, so it is a struct as long as it says.
    let options: Options = unsafe { sized::read(from) }?;
    let text = |from, argument| -> Result<Option<String>> {
        // SAFETY: the strings of the struct are C strings or NULL, as the header asks.
        let text = unsafe { pointer::text_or_none(from, argument) }?;
        Ok(text.map(str::to_owned))
    };
    let mut config = match text(options.settings, "settings")? {
        Some(text) => Config::from_environment_and(&text, "settings of backstay_options")?,
        None => Config::from_environment()?,
    };
    over(&mut config.job, text(options.job, "job")?);
    over(&mut config.node, text(options.node, "node")?);
    let path = text(options.store_path, "store_path")?;
    over(&mut config.store_path, path.map(Into::into));
    over(&mut config.cpu_set, text(options.cpu_set, "cpu_set")?);
    over(&mut config.interval, text(options.interval, "interval")?);
    over(
        &mut config.node_mtbf_hours,
        nonzero(options.node_mtbf_hours),
    );
    over(&mut config.reserve_bytes, nonzero(options.reserve_bytes));
    over(&mut config.segment_bytes, nonzero(options.segment_bytes));
    set(&mut config.timeout_ms, options.timeout_ms);
    set(&mut config.watchdog_ms, options.watchdog_ms);
    set(&mut config.metrics_interval_ms, options.metrics_interval_ms);
    set(&mut config.changed_share, options.changed_share);
    set(&mut config.block_bytes, options.block_bytes);
    set(&mut config.retained, options.retained);
    over(
        &mut config.capture_threads,
        nonzero(options.capture_threads),
    );
    let domain = text(options.failure_domain, "failure_domain")?;
    over(&mut config.failure_domain, domain);
    over(
        &mut config.encode_rate_bytes,
        nonzero(options.encode_rate_bytes),
    );
    set(&mut config.parity, options.parity);
    let archive = text(options.archive, "archive")?;
    over(&mut config.archive, archive.map(Into::into));
    over(
        &mut config.archive_rate_bytes,
        nonzero(options.archive_rate_bytes),
    );
    if options.archive_every > 0 {
        config.archive_every = Some(options.archive_every);
    }
    set(&mut config.archive_retained, options.archive_retained);
    set(&mut config.group_size, options.group_size);
    if let Some(word) = text(options.redundancy, "redundancy")? {
        config.redundancy = redundancy(&word)?;
    }
    if let Some(tracking) = tracking(options.tracking)? {
        config.tracking = tracking;
    }
    if options.reserved != 0 {
        return Err(invalid("reserved of backstay_options is not 0"));
    }
    config.validate()?;
    Ok(config)
}

/// The tracking with this number; `None` for the default.
pub(crate) fn tracking(number: i32) -> Result<Option<Tracking>> {
    match number {
        BACKSTAY_TRACKING_DEFAULT => Ok(None),
        BACKSTAY_TRACKING_FULL => Ok(Some(Tracking::Full)),
        BACKSTAY_TRACKING_HASH => Ok(Some(Tracking::Hash)),
        BACKSTAY_TRACKING_PAGES => Ok(Some(Tracking::Pages)),
        BACKSTAY_TRACKING_MARKED => Ok(Some(Tracking::Marked)),
        other => Err(invalid(format!(
            "tracking is {other}, not one of BACKSTAY_TRACKING_* (0 to 4)"
        ))),
    }
}

fn redundancy(word: &str) -> Result<Redundancy> {
    match word {
        "none" => Ok(Redundancy::None),
        "partner" => Ok(Redundancy::Partner),
        "xor" => Ok(Redundancy::Xor),
        "rs" => Ok(Redundancy::Rs),
        other => Err(invalid(format!(
            "redundancy is {other:?}, not none, partner, xor or rs"
        ))),
    }
}

fn over<T>(setting: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *setting = value;
    }
}

fn nonzero<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

fn set<T: Default + PartialEq>(setting: &mut T, value: T) {
    if let Some(value) = nonzero(value) {
        *setting = value;
    }
}
