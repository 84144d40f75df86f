// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: says where a measurement was made, and of which commit; waits until it can be made well.

use crate::as_f64;
use std::process::Command;
use std::time::{Duration, Instant};

/// Processors that are busy for less than this share of the time are quiet.
const QUIET: f64 = 0.15;

/// Processor, cores and kernel of this machine.
pub fn name() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |key: &str| {
        let line = cpu.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(':'))
            .map_or("?", |(_, value)| value.trim())
    };
    let vendor = match field("vendor_id") {
        "GenuineIntel" => "Intel",
        "AuthenticAMD" => "AMD",
        other => other,
    };
    let model = field("model name").replace("(R)", "").replace("(TM)", "");
    let model = if model.starts_with(vendor) {
        model
    } else {
        format!("{vendor} {model}")
    };
    let (family, number) = (field("cpu family"), field("model\t"));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{model} (family {family}, model {number}), {cores} cores, Linux {}",
        kernel.trim()
    )
}

/// The commit that was measured, with `-changed` where the tree is not as committed.
pub fn commit() -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let Some(id) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => id,
        _ => format!("{id}-changed"),
    }
}

/// Bytes of memory that can be had without swapping.
pub fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|text| text.trim().trim_end_matches("kB").trim().parse().ok());
    kibibytes.map_or(u64::MAX, |count: u64| count << 10)
}

/// Waits until the processors have little to do, so that a benchmark measures itself and not its
/// neighbours; at most so long. The share of their time that was busy when it ended.
pub fn wait_quiet(at_most: Duration) -> f64 {
    let begun = Instant::now();
    loop {
        let (busy, all) = processor_times();
        std::thread::sleep(Duration::from_millis(200));
        let (busy, all) = {
            let now = processor_times();
            (now.0 - busy, now.1 - all)
        };
        let share = as_f64(busy) / as_f64(all.max(1));
        if share < QUIET || begun.elapsed() >= at_most {
            return share;
        }
    }
}

/// Ticks since the machine began: busy, and all.
fn processor_times() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|word| word.parse().ok())
        .collect();
    let all: u64 = ticks.iter().sum();
    // The fourth is idle time, the fifth that of waiting for disks.
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all - idle, all)
}
