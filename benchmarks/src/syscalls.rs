// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how often a rank synced, and opened, created or unlinked a file, between two marks.
//! In from: the trace that strace wrote of a rank. Out to: counts.
//! Invariants: a mark is an attempt to open a file that cannot be, made by the rank itself, so that
//! it stands in the trace where it was made; every call between marks counts, whether it succeeded.

use crate::Outcome;
use std::path::Path;
use std::process::{Command, Stdio};

const BEGIN: &str = "/backstay-bench-mark/begin";
const END: &str = "/backstay-bench-mark/end";
const SYNCS: [&str; 6] = [
    "fsync",
    "fdatasync",
    "sync_file_range",
    "msync",
    "syncfs",
    "sync",
];
const FILES: [&str; 14] = [
    "open",
    "openat",
    "openat2",
    "creat",
    "unlink",
    "unlinkat",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "mkdir",
    "mkdirat",
    "rmdir",
];

/// Calls between a pair of marks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// Calls that make something durable.
    pub syncs: u64,
    /// Calls that open, create, rename or remove a file or folder.
    pub files: u64,
}

/// Marks the beginning in the trace of this process.
pub fn mark_begin() {
    drop(std::fs::File::open(BEGIN));
}
/// Marks the end.
pub fn mark_end() {
    drop(std::fs::File::open(END));
}

/// The words that run a rank under strace with its trace in `folder`; `None` where it cannot be.
pub fn tracer(folder: &Path) -> Option<Vec<String>> {
    let probe = Command::new("strace")
        .args(["-qq", "-e", "trace=none", "true"])
        .stderr(Stdio::null())
        .status();
    if !probe.is_ok_and(|status| status.success()) {
        return None;
    }
    // Names that a processor's kernel does not have are preceded by a question mark.
    let names: Vec<String> = SYNCS
        .iter()
        .chain(&FILES)
        .map(|name| format!("?{name}"))
        .collect();
    let trace = folder.join("trace.{rank}");
    let words = [
        "strace",
        "-f",
        "-qq",
        "-o",
        &trace.display().to_string(),
        "-e",
    ];
    let mut words: Vec<String> = words.into_iter().map(ToOwned::to_owned).collect();
    words.push(format!("trace={}", names.join(",")));
    Some(words)
}

/// The calls of `rank` between each pair of marks.
pub fn counted(folder: &Path, rank: u32) -> Outcome<Vec<Calls>> {
    let path = folder.join(format!("trace.{rank}"));
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("reading {}: {error}", path.display()))?;
    Ok(count(&text))
}

fn count(trace: &str) -> Vec<Calls> {
    let mut all = Vec::new();
    let mut current: Option<Calls> = None;
    for line in trace.lines() {
        let call = line
            .trim_start_matches(|letter: char| letter.is_ascii_digit())
            .trim_start();
        if call.contains(BEGIN) {
            current = Some(Calls::default());
        } else if call.contains(END) {
            all.extend(current.take());
        } else if let Some(calls) = &mut current {
            let name = call.split('(').next().unwrap_or_default();
            calls.syncs += u64::from(SYNCS.contains(&name));
            calls.files += u64::from(FILES.contains(&name));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_marks_counts_and_unfinished_calls_once() {
        let trace = "\
            10 openat(AT_FDCWD, \"/x\", O_RDONLY) = 3\n\
            10 openat(AT_FDCWD, \"/backstay-bench-mark/begin\", O_RDONLY) = -1 ENOENT\n\
            10 fdatasync(3 <unfinished ...>\n\
            11 unlink(\"/x\") = 0\n\
            10 <... fdatasync resumed>) = 0\n\
            10 openat(AT_FDCWD, \"/backstay-bench-mark/end\", O_RDONLY) = -1 ENOENT\n\
            10 fdatasync(3) = 0\n";
        assert_eq!(count(trace), [Calls { syncs: 1, files: 1 }]);
    }
}
