// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how often each thing was done in this process, and survived: what a long run reports.
//! In: a line where it happens. Out: totals, by name, as a file of lines `count name`.
//! Invariants: what was drawn and did not happen does not count.

use backstay_testkit::network::{Fault, SimNetwork};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

pub(crate) type Counts = BTreeMap<String, u64>;

static COUNTS: Mutex<Counts> = Mutex::new(BTreeMap::new());

pub(crate) fn add(what: &str, count: u64) {
    if count > 0 {
        let mut counts = COUNTS.lock().unwrap();
        *counts.entry(what.to_owned()).or_default() += count;
    }
}

/// Once more.
pub(crate) fn one(what: &str) {
    add(what, 1);
}

/// What chance did in a network since there was `before`, and how often owners took no part in reads.
pub(crate) fn network(network: &SimNetwork, before: &(BTreeMap<Fault, u64>, [u64; 2])) {
    let (faults, reads) = before;
    let [came, missed] = network.reads_past();
    add("reads past owners", came - reads[0]);
    add(
        "reads past owners that were done again through them",
        missed - reads[1],
    );
    for (fault, count) in network.faults() {
        let known = faults.get(&fault).copied().unwrap_or(0);
        let what = format!("messages and pulls by chance: {fault:?}");
        add(&what, count - known);
    }
}

/// Writes what this process counted.
pub(crate) fn write(path: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    for (what, count) in &*COUNTS.lock().unwrap() {
        writeln!(file, "{count} {what}")?;
    }
    Ok(())
}

/// Adds up what processes wrote in `folder`.
pub(crate) fn sum(folder: &Path) -> std::io::Result<Counts> {
    let mut all = Counts::new();
    for entry in std::fs::read_dir(folder)? {
        for line in std::fs::read_to_string(entry?.path())?.lines() {
            if let Some((count, what)) = line.split_once(' ') {
                *all.entry(what.to_owned()).or_default() += count.parse::<u64>().unwrap();
            }
        }
    }
    Ok(all)
}
