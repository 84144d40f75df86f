// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: rules for source files: how they begin, how long they are, what must not be in them.

use super::is_test;
use crate::rust;
use crate::tree::{Tree, extension};

const LICENCE: &str = "SPDX-License-Identifier: Apache-2.0 OR MIT";
const LINES_MAX: usize = 800;
const BLOB_BYTES_MAX: usize = 1 << 20;

/// Where `unsafe` may stand, and what for. A path that ends in a slash is a folder.
const UNSAFE: [(&str, &str); 26] = [
    (
        "crates/store/src/region.rs",
        "application memory is reached by pointer",
    ),
    (
        "crates/store/tests/it/read_back.rs",
        "restores into memory of its own",
    ),
    (
        "crates/store/src/track/mappings.rs",
        "asks the kernel for a mapping by PROCMAP_QUERY",
    ),
    (
        "crates/store/src/track/pages.rs",
        "registers memory that the caller promises",
    ),
    (
        "crates/store/src/track/pages/",
        "userfaultfd and PAGEMAP_SCAN",
    ),
    (
        "crates/base/src/io/mapped.rs",
        "writes a mapping of the store",
    ),
    (
        "crates/base/src/io/sealed.rs",
        "says what may be borrowed of a device",
    ),
    (
        "crates/base/src/io/file.rs",
        "its tests borrow what they wrote",
    ),
    ("crates/base/src/io/lease.rs", "leases are had by fcntl"),
    (
        "crates/calls/src/kernel.rs",
        "filters of calls, memory of other processes, calls by number",
    ),
    ("crates/store/src/sealed.rs", "vouches for what is sealed"),
    (
        "crates/base/src/io/shared.rs",
        "maps the words that a node's ranks share",
    ),
    ("crates/base/src/io/stream.rs", "stores past the caches"),
    (
        "crates/backstay/src/restartable.rs",
        "gives the session the address of what it is kept together with",
    ),
    (
        "crates/backstay/src/session/process.rs",
        "what belongs to another process is not dropped",
    ),
    (
        "crates/parity/src/gf256/x86.rs",
        "vector instructions take pointers",
    ),
    (
        "crates/codec/src/simd.rs",
        "runs loops with instructions that not every processor has",
    ),
    (
        "crates/backstay/src/session/protect.rs",
        "protect takes a pointer",
    ),
    (
        "crates/backstay/src/session/restore.rs",
        "read_rank takes a pointer",
    ),
    (
        "crates/backstay/src/session/variable.rs",
        "makes a region of what protect took",
    ),
    ("crates/backstay/tests/", "tests protect memory"),
    ("crates/cli/tests/", "tests protect memory"),
    ("crates/net/src/fabric/raw/", "calls a library of C"),
    ("crates/testkit/src/isal.rs", "calls a library of C"),
    ("bindings/", "the boundary to C"),
    ("benchmarks/", "measures what the above does"),
];

/// Files that a program writes: they may be as long as they come out.
const GENERATED: [&str; 1] = ["bindings/c/include/backstay/backstay.h"];

fn is_source(path: &str) -> bool {
    let known = [
        "rs", "c", "h", "cpp", "hpp", "f90", "py", "sh", "mk", "toml", "cmake", "in", "yml",
        "yaml", "svg",
    ];
    known.contains(&extension(path)) || path.ends_with("Makefile") || path.starts_with(".ci/")
}

fn is_program(path: &str) -> bool {
    ["rs", "c", "h", "cpp", "hpp", "f90", "py", "sh"].contains(&extension(path))
}

fn rust_files(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.texts().filter(|(path, _)| extension(path) == "rs")
}

/// Every program says under which licence it stands; every module of Rust what it is for.
pub(crate) fn headers(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| is_program(path)) {
        let mut lines = text.lines().skip_while(|line| line.starts_with("#!"));
        if !lines.next().unwrap_or_default().contains(LICENCE) {
            findings.push(format!("{path}:1: does not begin with {LICENCE}"));
        }
        let second = lines.next().unwrap_or_default();
        if extension(path) == "rs" && !second.starts_with("//! ") {
            findings.push(format!("{path}:2: has no module header (//!)"));
        }
    }
    findings
}

/// A file is at most so long, tests excluded.
pub(crate) fn lengths(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| is_program(path)) {
        if is_test(path) || GENERATED.contains(&path) {
            continue;
        }
        let tests = match extension(path) {
            "rs" => test_lines(text),
            _ => 0,
        };
        let lines = text.lines().count() - tests;
        if lines > LINES_MAX {
            findings.push(format!(
                "{path}:1: has {lines} lines, more than {LINES_MAX}"
            ));
        }
    }
    findings
}

/// Lines of the test modules of a Rust file.
fn test_lines(text: &str) -> usize {
    let code = rust::code(text);
    let mut lines = 0;
    let mut rest = &code[..];
    while let Some(at) = rest.find("#[cfg(test)]") {
        let from = &rest[at..];
        let body = from.find(['{', ';']).unwrap_or(from.len());
        let end = if from[body..].starts_with('{') {
            body + rust::closing(&from[body..])
        } else {
            body
        };
        lines += from[..end].matches('\n').count() + 1;
        rest = &from[end..];
    }
    lines
}

/// Sources are ASCII.
pub(crate) fn ascii(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, bytes) in tree.files().filter(|(path, _)| is_source(path)) {
        if let Some(at) = bytes.iter().position(|byte| !byte.is_ascii()) {
            let line = bytes[..at].split(|&byte| byte == b'\n').count();
            findings.push(format!("{path}:{line}: is not ASCII"));
        }
    }
    findings
}

/// Nothing is left for later.
pub(crate) fn leftovers(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| is_source(path)) {
        for word in [
            concat!("FIX", "ME"),
            concat!("XX", "X"),
            concat!("TO", "DO"),
        ] {
            for at in rust::words(text, word) {
                let line = rust::line_of(text, at);
                findings.push(format!("{path}:{line}: has a {word}"));
            }
        }
        if extension(path) != "rs" {
            continue;
        }
        let code = rust::code(text);
        for word in ["todo", "unimplemented"] {
            for at in rust::words(&code, word).filter(|at| code[at + word.len()..].starts_with('!'))
            {
                let line = rust::line_of(&code, at);
                findings.push(format!("{path}:{line}: has a {word}!"));
            }
        }
    }
    findings
}

/// `unsafe` stands only where the table allows it, and the table names only what is there.
pub(crate) fn unsafe_code(tree: &Tree) -> Vec<String> {
    let matches =
        |entry: &str, path: &str| path == entry || entry.ends_with('/') && path.starts_with(entry);
    let mut findings = Vec::new();
    for (path, text) in rust_files(tree) {
        let code = rust::code(text);
        let first = rust::words(&code, "unsafe").next();
        if let Some(at) = first
            && !UNSAFE.iter().any(|(entry, _)| matches(entry, path))
        {
            let line = rust::line_of(&code, at);
            findings.push(format!("{path}:{line}: unsafe is not allowed in this file"));
        }
    }
    for (entry, _) in UNSAFE.iter().filter(|(entry, _)| !entry.ends_with('/')) {
        let text = tree.text(entry);
        if text.is_some_and(|text| rust::words(&rust::code(text), "unsafe").next().is_none()) {
            findings.push(format!("xtask: {entry} needs no leave for unsafe"));
        }
    }
    findings
}

/// `matches!` as a statement tests nothing.
pub(crate) fn bare_matches(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in rust_files(tree) {
        let code = rust::code(text);
        for at in rust::words(&code, "matches") {
            let Some(call) = code[at + "matches".len()..].strip_prefix('!') else {
                continue;
            };
            let before = code[..at].trim_end();
            let begins = before.is_empty() || before.ends_with([';', '{', '}']);
            let after = code[at..].len() - call.len() + rust::closing(call);
            if begins && code[at + after..].trim_start().starts_with(';') {
                let line = rust::line_of(&code, at);
                findings.push(format!("{path}:{line}: a bare matches! asserts nothing"));
            }
        }
    }
    findings
}

/// Large files do not belong into git.
pub(crate) fn blobs(tree: &Tree) -> Vec<String> {
    let large = tree
        .files()
        .filter(|(_, bytes)| bytes.len() > BLOB_BYTES_MAX);
    large
        .map(|(path, bytes)| {
            let length = bytes.len();
            format!("{path}:1: has {length} bytes, more than {BLOB_BYTES_MAX}")
        })
        .collect()
}

/// No path of somebody's own machine; tests may make some up.
pub(crate) fn own_paths(tree: &Tree) -> Vec<String> {
    let own = ["home", "Users", "root", "work", "workspace"].map(|name| format!("/{name}/"));
    let mut findings = Vec::new();
    for (path, text) in tree.texts().filter(|(path, _)| !is_test(path)) {
        for own in &own {
            for (at, _) in text.match_indices(own.as_str()) {
                let before = text[..at].chars().next_back();
                let relative =
                    before.is_some_and(|c| c.is_alphanumeric() || "._-~$})*/".contains(c));
                if !relative {
                    let line = rust::line_of(text, at);
                    findings.push(format!("{path}:{line}: names a path of one machine: {own}"));
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "// SPDX-License-Identifier: Apache-2.0 OR MIT\n//! Purpose: a sample.\n";

    fn found(rule: fn(&Tree) -> Vec<String>, path: &str, text: &str) -> usize {
        let findings = rule(&Tree::of(&[(path, text)]));
        findings
            .iter()
            .filter(|finding| finding.starts_with(path))
            .count()
    }

    #[test]
    fn a_file_begins_with_licence_and_purpose() {
        assert_eq!(found(headers, "a.rs", HEAD), 0);
        assert_eq!(found(headers, "a.rs", "fn main() {}"), 2);
        assert_eq!(
            found(
                headers,
                "a.rs",
                "// SPDX-License-Identifier: Apache-2.0 OR MIT\nfn"
            ),
            1
        );
        let script = "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0 OR MIT\n";
        assert_eq!(found(headers, "a.sh", script), 0);
        assert_eq!(found(headers, "a.sh", "#!/bin/sh\n"), 1);
        assert_eq!(found(headers, "a.f90", "program a\n"), 1);
    }

    #[test]
    fn a_file_is_not_too_long() {
        let long = "fn f() {}\n".repeat(801);
        assert_eq!(found(lengths, "a.rs", &long), 1);
        assert_eq!(found(lengths, "a/tests/it/a.rs", &long), 0);
        let tests = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert_eq!(found(lengths, "a.rs", &tests), 0);
    }

    #[test]
    fn a_source_is_ascii() {
        assert_eq!(found(ascii, "a.rs", "// \u{e9}"), 1);
        assert_eq!(found(ascii, "a.md", "\u{e9}"), 0);
    }

    #[test]
    fn nothing_is_left_for_later() {
        assert_eq!(found(leftovers, "a.rs", concat!("// FIX", "ME: later")), 1);
        assert_eq!(found(leftovers, "a.c", concat!("/* TO", "DO */")), 1);
        assert_eq!(found(leftovers, "a.rs", "fn f() { todo!() }"), 1);
        assert_eq!(
            found(leftovers, "a.rs", "fn f() { unimplemented!(\"x\") }"),
            1
        );
        assert_eq!(
            found(leftovers, "a.sh", concat!("mktemp /tmp/a.XX", "XXXX")),
            0
        );
    }

    #[test]
    fn unsafe_stands_where_it_may() {
        assert_eq!(
            found(unsafe_code, "crates/base/src/cpu.rs", "unsafe { f() }"),
            1
        );
        assert_eq!(
            found(
                unsafe_code,
                "crates/base/src/cpu.rs",
                "// unsafe\n\"unsafe\""
            ),
            0
        );
        assert_eq!(
            found(unsafe_code, "crates/store/src/region.rs", "unsafe { f() }"),
            0
        );
        let stale = unsafe_code(&Tree::of(&[("crates/store/src/region.rs", "fn f() {}")]));
        assert_eq!(stale.len(), 1);
    }

    #[test]
    fn matches_is_asserted() {
        assert_eq!(found(bare_matches, "a.rs", "fn f() { matches!(a, B); }"), 1);
        assert_eq!(
            found(bare_matches, "a.rs", "fn f() { assert!(matches!(a, B)); }"),
            0
        );
        assert_eq!(
            found(bare_matches, "a.rs", "fn f() -> bool { matches!(a, B) }"),
            0
        );
        assert_eq!(
            found(bare_matches, "a.rs", "fn f() { let b = matches!(a, B); }"),
            0
        );
    }

    #[test]
    fn large_files_are_refused() {
        assert_eq!(found(blobs, "a.bin", &"a".repeat(BLOB_BYTES_MAX + 1)), 1);
        assert_eq!(found(blobs, "a.bin", &"a".repeat(BLOB_BYTES_MAX)), 0);
    }

    #[test]
    fn paths_of_one_machine_are_refused() {
        assert_eq!(found(own_paths, "a.md", concat!("in /ho", "me/ann/x")), 1);
        assert_eq!(found(own_paths, "a.md", concat!("in target/wo", "rk/x")), 0);
        assert_eq!(found(own_paths, "a.md", "in /dev/shm/backstay-0/x"), 0);
    }
}
