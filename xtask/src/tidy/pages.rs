// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: rules for pages: links lead somewhere, and what a page names is there.

use crate::rust;
use crate::tree::{Tree, extension};
use std::collections::BTreeSet;

/// Pages for readers; one beside sources is a program's template.
fn pages(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    let is_page = |path: &str| extension(path) == "md" && !path.contains("/src/");
    tree.texts().filter(move |(path, _)| is_page(path))
}

/// `text` with code blanked: fenced blocks and code in lines. Lengths in bytes stay.
fn prose(text: &str) -> String {
    let mut kept = String::new();
    let mut fenced = false;
    for line in text.split_inclusive('\n') {
        let fence = line.trim_start().starts_with("```");
        let mut in_code = fenced || fence;
        for character in line.chars() {
            let tick = character == '`' && !fenced && !fence;
            in_code ^= tick;
            if character == '\n' || !(in_code || tick) {
                kept.push(character);
            } else {
                kept.extend(std::iter::repeat_n(' ', character.len_utf8()));
            }
        }
        fenced ^= fence;
    }
    kept
}

/// The code of a page: what [`prose`] blanks.
fn code(text: &str) -> String {
    let prose = prose(text);
    let pairs = text.bytes().zip(prose.bytes());
    let bytes = pairs.map(|(of_text, of_prose)| {
        if of_text == of_prose && of_text != b'\n' {
            b' '
        } else {
            of_text
        }
    });
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// The anchors of a page's headings, as the usual viewers make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose_lines(text).filter_map(|line| line.strip_prefix('#'));
    let slug = |heading: &str| {
        let plain = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = plain
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(slug).collect()
}

/// Lines outside of fenced code, as they are.
fn prose_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fence && !fenced
    })
}

/// Every relative link leads to a file of the tree, and its anchor to a heading.
pub(crate) fn links(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in pages(tree) {
        let prose = prose(text);
        for (at, _) in prose.match_indices("](") {
            let rest = &text[at + 2..];
            let target = &rest[..rest.find([')', ' ', '\n']).unwrap_or(rest.len())];
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if let Some(wrong) = broken(tree, path, target) {
                let line = rust::line_of(text, at);
                findings.push(format!("{path}:{line}: link to {target}: {wrong}"));
            }
        }
    }
    findings
}

fn broken(tree: &Tree, from: &str, target: &str) -> Option<&'static str> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let full = if file.is_empty() {
        Some(from.to_owned())
    } else {
        resolve(from, file)
    };
    let Some(full) = full.filter(|full| tree.has(full)) else {
        return Some("there is no such file");
    };
    let headings = anchors(tree.text(&full).unwrap_or_default());
    (!anchor.is_empty() && !headings.contains(anchor)).then_some("there is no such heading")
}

/// `target` as seen from the file `from`; `None` if it leaves the tree.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            other => parts.push(other),
        }
    }
    Some(parts.join("/"))
}

/// A page that a source names is there.
pub(crate) fn named_pages(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        // What xtask's own tests name need not be there.
        if path.starts_with("xtask/") {
            continue;
        }
        for (at, _) in text.match_indices("docs/") {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || "/.-_".contains(c)) {
                continue;
            }
            let end = text[at..].find(|c: char| !(c.is_alphanumeric() || "/.-_".contains(c)));
            let name = &text[at..][..end.unwrap_or(text.len() - at)];
            let name = name.trim_end_matches(['.', '/']);
            if !tree.has(name) {
                let line = rust::line_of(text, at);
                findings.push(format!("{path}:{line}: there is no {name}"));
            }
        }
    }
    findings
}

/// A `make` target that a page names is there.
pub(crate) fn targets(tree: &Tree) -> Vec<String> {
    let known: BTreeSet<&str> = tree
        .texts()
        .filter(|(path, _)| *path == "Makefile" || extension(path) == "mk")
        .flat_map(|(_, text)| text.lines())
        .filter_map(|line| Some(line.split_once(':')?.0))
        .flat_map(str::split_whitespace)
        .collect();
    let mut findings = Vec::new();
    for (path, text) in pages(tree) {
        let code = code(text);
        for at in rust::words(&code, "make") {
            let Some(rest) = code[at..].strip_prefix("make ") else {
                continue;
            };
            // Where a command begins, and not in a sentence of a comment.
            let before = code[..at]
                .lines()
                .next_back()
                .unwrap_or_default()
                .trim_end();
            let line_begins = code[..at].ends_with('\n') || before.is_empty();
            if !line_begins && !before.ends_with(['`', '&', ';', '$']) {
                continue;
            }
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '-'));
            let name = &rest[..end.unwrap_or(rest.len())];
            let is_name = !name.is_empty()
                && name
                    .chars()
                    .all(|c| c == '-' || c.is_ascii_lowercase() || c.is_ascii_digit());
            if is_name && !known.contains(name) {
                let line = rust::line_of(text, at);
                findings.push(format!("{path}:{line}: there is no target {name}"));
            }
        }
    }
    findings
}

/// A name that begins with `BACKSTAY_` on a page stands in a source too.
pub(crate) fn variables(tree: &Tree) -> Vec<String> {
    let names = |text: &str| -> Vec<(usize, String)> {
        let starts: Vec<usize> = text.match_indices("BACKSTAY_").map(|(at, _)| at).collect();
        let ends = |at: usize| {
            let end = text[at..]
                .find(|c: char| !(c == '_' || c.is_ascii_uppercase() || c.is_ascii_digit()));
            text[at..][..end.unwrap_or(text.len() - at)].to_owned()
        };
        starts.into_iter().map(|at| (at, ends(at))).collect()
    };
    let mut known: BTreeSet<String> = tree
        .texts()
        .filter(|(path, _)| extension(path) != "md")
        .flat_map(|(_, text)| names(text))
        .map(|(_, name)| name)
        .collect();
    known.extend(
        backstay::config::REFERENCE
            .iter()
            .map(backstay::config::Setting::variable),
    );
    let mut findings = Vec::new();
    for (path, text) in pages(tree) {
        for (at, name) in names(text) {
            if !name.ends_with('_') && !known.contains(&name) {
                let line = rust::line_of(text, at);
                findings.push(format!("{path}:{line}: there is no {name}"));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rule: fn(&Tree) -> Vec<String>, text: &str) -> usize {
        let tree = Tree::of(&[
            ("docs/a.md", text),
            ("docs/b/c.md", "# One: two\n```\n# not one\n```\n"),
            ("Makefile", "test: build ## All tests\n"),
            ("a.h", "#define BACKSTAY_OK 0\n"),
            ("a/src/template.md", "[x](nowhere.md)"),
        ]);
        rule(&tree).len()
    }

    #[test]
    fn links_lead_somewhere() {
        for good in [
            "[x](b/c.md)",
            "[x](b/c.md#one-two)",
            "[x](../Makefile)",
            "[x](b)",
            "[x](https://example.org/x)",
            "`[x](nowhere.md)`",
            "```\n[x](nowhere.md)\n```",
            "# Here\n[x](#here)",
        ] {
            assert_eq!(found(links, good), 0, "{good}");
        }
        for bad in [
            "[x](c.md)",
            "[x](b/c.md#three)",
            "[x](b/c.md#not-one)",
            "![x](../../up.md)",
            "[x](#nowhere)",
        ] {
            assert_eq!(found(links, bad), 1, "{bad}");
        }
    }

    #[test]
    fn named_pages_are_there() {
        assert_eq!(
            found(named_pages, "see docs/b/c.md, and target/docs/x.md"),
            0
        );
        assert_eq!(found(named_pages, "see docs/c.md."), 1);
    }

    #[test]
    fn named_targets_are_there() {
        assert_eq!(
            found(targets, "`make test`, make it so, `make bench-NAME`"),
            0
        );
        assert_eq!(found(targets, "```c\n/* they make all of it */\n```"), 0);
        assert_eq!(found(targets, "```\nmake all\n```"), 1);
        assert_eq!(found(targets, "```\ncd x && make all\n```"), 1);
        assert_eq!(found(targets, "`make all`"), 1);
    }

    #[test]
    fn named_variables_are_there() {
        assert_eq!(found(variables, "BACKSTAY_OK, BACKSTAY_JOB, BACKSTAY_*"), 0);
        assert_eq!(found(variables, "BACKSTAY_STORE"), 1);
    }
}
