// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: writes the pages, and parts of pages, that follow from the sources.
//! In: the engine's tables, examples, results of benchmarks. Out: docs/reference and every part of a
//! page between `<!-- gen:NAME -->` and `<!-- end:NAME -->`.
//! Invariants: the same tree gives the same bytes; nobody types a number that was measured.

use crate::tree::{Tree, extension};
use backstay::ErrorKind;
use backstay::config::{Form, OTHER_VARIABLES, REFERENCE};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

const NOTE: &str = "<!-- Written by `cargo run -p xtask -- gen`; do not edit. -->";
const QUICKSTART: &str = "examples/quickstart/quickstart.c";
const RUST: &str = "examples/rust/src/main.rs";
pub(crate) const RESULTS: &str = "benchmarks/results/";

/// Writes what is not current.
pub(crate) fn write(tree: &Tree) -> Result<(), String> {
    for (path, wanted) in wanted(tree)? {
        if tree.text(&path) != Some(&wanted) {
            tree.write(&path, &wanted)?;
        }
    }
    Ok(())
}

/// What is not current.
pub(crate) fn stale(tree: &Tree) -> Vec<String> {
    match wanted(tree) {
        Err(error) => vec![error],
        Ok(wanted) => wanted
            .into_iter()
            .filter(|(path, text)| tree.text(path) != Some(text))
            .map(|(path, _)| format!("{path}:1: is not current: cargo run -p xtask -- gen"))
            .collect(),
    }
}

fn wanted(tree: &Tree) -> Result<Vec<(String, String)>, String> {
    let mut wanted = vec![
        ("docs/reference/config.md".to_owned(), config_page()),
        ("docs/reference/errors.md".to_owned(), errors_page()),
    ];
    for (path, text) in tree.texts() {
        if extension(path) == "md" && text.contains("<!-- gen:") {
            let filled = filled(tree, text).map_err(|error| format!("{path}:1: {error}"))?;
            wanted.push((path.to_owned(), filled));
        }
    }
    Ok(wanted)
}

/// `text` with what belongs between its marks.
fn filled(tree: &Tree, text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("<!-- gen:") {
        let name = &rest[at + "<!-- gen:".len()..];
        let name = &name[..name.find(" -->").ok_or("a mark without an end")?];
        let end = format!("<!-- end:{name} -->");
        let end_at = rest.find(&end).ok_or_else(|| format!("no {end}"))?;
        let part = part(tree, name)?;
        write!(out, "{}<!-- gen:{name} -->\n{part}", &rest[..at]).map_err(|e| e.to_string())?;
        rest = &rest[end_at..];
    }
    out.push_str(rest);
    Ok(out)
}

fn part(tree: &Tree, name: &str) -> Result<String, String> {
    match name {
        "crates" => crates(tree),
        "quickstart" => Ok(fenced("c", quickstart(tree)?)),
        "calls" => Ok(fenced("c", &calls(quickstart(tree)?)?)),
        "rust" => Ok(fenced("rust", &rust_example(tree)?)),
        "measured" => measured(tree),
        "scale" => crate::scale::tables(tree),
        other => Err(format!("nothing is called gen:{other}")),
    }
}

fn fenced(language: &str, text: &str) -> String {
    format!("```{language}\n{}\n```\n", text.trim_end())
}

fn quickstart(tree: &Tree) -> Result<&str, String> {
    tree.text(QUICKSTART)
        .ok_or_else(|| format!("no {QUICKSTART}"))
}

/// The lines of the example from `MPI_Init` to `backstay_close`, moved to the left.
fn calls(program: &str) -> Result<String, String> {
    let lines: Vec<&str> = program.lines().collect();
    let find = |word: &str| lines.iter().position(|line| line.contains(word));
    let (Some(first), Some(last)) = (find("MPI_Init("), find("backstay_finish(")) else {
        return Err(format!(
            "{QUICKSTART} has no MPI_Init or no backstay_finish"
        ));
    };
    // What is done where it fails stands in the line behind.
    let asks = lines[last].trim().starts_with("if (");
    let lines = lines[first..]
        .iter()
        .take(last - first + 1 + usize::from(asks));
    let lines: Vec<&str> = lines
        .map(|line| line.strip_prefix("    ").unwrap_or(line))
        .collect();
    Ok(lines.join("\n"))
}

/// The whole program, without the line of the licence.
fn rust_example(tree: &Tree) -> Result<String, String> {
    let text = tree.text(RUST).ok_or_else(|| format!("no {RUST}"))?;
    let shown: Vec<&str> = text
        .lines()
        .filter(|line| !line.contains("SPDX-"))
        .collect();
    Ok(shown.join("\n"))
}

/// The crates in the order of a block's path, and which of the others each one may use.
const CRATES: [&str; 15] = [
    "backstay", "store", "net", "parity", "codec", "hdf5", "archive", "inspect", "metrics", "base",
    "format", "model", "service", "calls", "route",
];

/// The crates of the library, what they are for, and what they stand on: as their manifests say.
fn crates(tree: &Tree) -> Result<String, String> {
    let mut text = String::from("| crate | what it has | stands on |\n|---|---|---|\n");
    for name in CRATES {
        let path = format!("crates/{name}/Cargo.toml");
        let manifest = tree.text(&path).ok_or_else(|| format!("no {path}"))?;
        let manifest: toml::Table = manifest.parse().map_err(|e| format!("{path}: {e}"))?;
        let description = manifest["package"]["description"].as_str();
        let description = description.ok_or_else(|| format!("{path}: no description"))?;
        let of = |other: &String| {
            let other = other.strip_prefix("backstay-").unwrap_or(other);
            CRATES.contains(&other).then(|| format!("`{other}`"))
        };
        let used = manifest.get("dependencies").and_then(toml::Value::as_table);
        let used: Vec<String> = used
            .into_iter()
            .flatten()
            .filter_map(|(n, _)| of(n))
            .collect();
        line(
            &mut text,
            &[
                &format!("[`{name}`](../{})", path.trim_end_matches("/Cargo.toml")),
                description,
                &used.join(", "),
            ],
        );
    }
    Ok(text)
}

/// One row of a table.
pub(crate) fn line(text: &mut String, cells: &[&str]) {
    text.push_str("| ");
    text.push_str(&cells.join(" | "));
    text.push_str(" |\n");
}

fn config_page() -> String {
    let mut text = format!(
        "{NOTE}\n\n# Settings\n\nA setting is taken from the last of these that has it: its default, the \
         TOML file that `BACKSTAY_CONFIG`\nnames, its variable in the environment, what the program \
         sets. An unknown key, a value out of its\nlimits, and a variable whose name is nearly that of \
         a setting are errors; nothing is changed in silence.\nAnother variable that begins with `BACKSTAY_` \
         and is neither a setting nor one of [these](#other-variables) has no\neffect, which rank 0 says; \
         names that begin with `BACKSTAY_SITE_` are free.\n\nA number may have a unit, in quotes in a \
         file: `\"2GiB\"`, `\"2GB\"`, `\"500MB/s\"`, `\"90s\"`, `\"10min\"`;\na bare one is in the unit \
         of the table.\n\nAll ranks of a job must have the same of what says so in the last column: opening a \
         session compares them,\nand all ranks get one error that names the setting. `BACKSTAY_LOG` \
         (`quiet`, `warn` or `info`, which is\nthe default) is no setting of a session: it says how \
         much is written to standard error.\n\n| key | what it sets | default | min | max | unit \
         | variable | on all ranks |\n|---|---|---|---|---|---|---|---|\n"
    );
    for setting in &REFERENCE {
        let (low, high) = match setting.form {
            Form::Text | Form::Word => (String::new(), String::new()),
            Form::Share => ("0".to_owned(), "1".to_owned()),
            Form::Whole(low, high) => (low.to_string(), high.to_string()),
            Form::PowerOfTwo(low, high) => (low.to_string(), high.to_string()),
            Form::Flag => ("`false`".to_owned(), "`true`".to_owned()),
        };
        let unit = match setting.form {
            Form::PowerOfTwo(..) => format!("{}, a power of two", setting.unit),
            _ => setting.unit.to_owned(),
        };
        let default = setting
            .default
            .map_or(String::new(), |default| format!("`{default}`"));
        let (key, variable) = (
            format!("`{}`", setting.key),
            format!("`{}`", setting.variable()),
        );
        line(
            &mut text,
            &[
                &key,
                setting.meaning,
                &default,
                &low,
                &high,
                &unit,
                &variable,
                if setting.is_same_on_all_ranks {
                    "the same"
                } else {
                    "may differ"
                },
            ],
        );
    }
    text.push_str(
        "\n## Other variables\n\nNames that begin with `BACKSTAY_` and are no settings of a session.\n\n\
         | variable | what it is |\n|---|---|\n",
    );
    for (name, meaning) in OTHER_VARIABLES {
        line(&mut text, &[&format!("`{name}`"), meaning]);
    }
    text
}

fn errors_page() -> String {
    let mut text = format!(
        "{NOTE}\n\n# Errors\n\nA call that fails returns one of these numbers in C and the kind of the \
         same number in Rust; in a\ncollective call all ranks get the same one. The numbers never \
         change. The message names what, where\nand why, and ends with the cause, the system's error \
         number among them: `backstay_message` in C,\n`Display` in Rust.\n\n`BACKSTAY_OK` is 0.\n\n\
         | number | name in C | meaning | what to do |\n|---|---|---|---|\n"
    );
    for kind in ErrorKind::ALL {
        let (code, name) = (kind.code().to_string(), format!("`{}`", kind.c_name()));
        line(&mut text, &[&code, &name, kind.meaning(), kind.remedy()]);
    }
    text
}

/// The figures of the benchmark of capture that have something to reach: the newest results of each kind of machine,
/// side by side.
fn measured(tree: &Tree) -> Result<String, String> {
    let results = capture_results(tree)?;
    if results.is_empty() {
        return Ok("Not measured yet.\n".to_owned());
    }
    let mut text = String::new();
    for (machine, (path, value)) in &results {
        let named = |key| value[key].as_str().unwrap_or("not named");
        let (all, commit) = (named("machine"), named("commit"));
        writeln!(
            text,
            "- {machine}: {all}; commit {commit}; all of it in `{path}`."
        )
        .map_err(|error| error.to_string())?;
    }
    text.push('\n');
    let columns: Vec<String> = results
        .keys()
        .map(|machine| format!("{machine} (min to max)"))
        .collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    line(
        &mut text,
        &[&["figure"], &columns[..], &["unit", "target"]].concat(),
    );
    line(&mut text, &vec!["---"; columns.len() + 3]);
    for figure in targets(&results) {
        let id = figure["id"].as_str().unwrap_or_default();
        let found: Vec<String> = results
            .values()
            .map(|(_, value)| found(value, id))
            .collect();
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        let unit = figure["unit"].as_str().unwrap_or_default();
        let bound = if figure["better"] == "higher" {
            ">="
        } else {
            "<="
        };
        let reach = format!("{bound} {}", number(&figure["reach"]));
        let id = format!("`{id}`");
        line(&mut text, &[&[&*id], &found[..], &[unit, &*reach]].concat());
    }
    Ok(text)
}

/// The newest results of the benchmark of capture, by machine: where they are, and they.
fn capture_results(tree: &Tree) -> Result<BTreeMap<String, (&str, Value)>, String> {
    let mut results: BTreeMap<String, (&str, Value)> = BTreeMap::new();
    for (path, text) in tree.texts() {
        let is_result = path.starts_with(RESULTS) && extension(path) == "json";
        if !is_result {
            continue;
        }
        let value: Value = serde_json::from_str(text).map_err(|e| format!("{path}: {e}"))?;
        if !figures(&value).any(|(id, _)| id.starts_with("capture.")) {
            continue;
        }
        let machine = value["machine"].as_str().unwrap_or("not named");
        let machine = machine.split(" (").next().unwrap_or(machine).to_owned();
        let date = |value: &Value| value["date"].as_str().unwrap_or_default().to_owned();
        let known = results.get(&machine);
        if known.is_none_or(|(other, known)| (date(known), *other) < (date(&value), path)) {
            results.insert(machine, (path, value));
        }
    }
    Ok(results)
}

fn figures(results: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let figures = results["figures"].as_array().into_iter().flatten();
    figures.filter_map(|figure| Some((figure["id"].as_str()?, figure)))
}

/// Figures with something to reach, each as the first results have it that do.
fn targets<'a>(results: &'a BTreeMap<String, (&str, Value)>) -> Vec<&'a Value> {
    let mut targets: Vec<(&str, &Value)> = Vec::new();
    for (_, value) in results.values() {
        for (id, figure) in figures(value).filter(|(_, figure)| figure["reach"].is_number()) {
            if !targets.iter().any(|(known, _)| *known == id) {
                targets.push((id, figure));
            }
        }
    }
    targets.into_iter().map(|(_, figure)| figure).collect()
}

/// What results have of a figure: the median, the least and the most.
fn found(results: &Value, id: &str) -> String {
    let figure = figures(results).find(|(known, _)| *known == id);
    let Some((_, figure)) = figure.filter(|(_, figure)| figure["value"].is_number()) else {
        return "not measured".to_owned();
    };
    let [value, min, max] = ["value", "min", "max"].map(|key| number(&figure[key]));
    format!("{value} ({min} to {max})")
}

/// A number with three digits that count.
pub(crate) fn number(value: &Value) -> String {
    let Some(value) = value.as_f64() else {
        return "not measured".to_owned();
    };
    let decimals = match value.abs() {
        size if size >= 100.0 || size.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.1 => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "a\n<!-- gen:measured -->\nold\n<!-- end:measured -->\nb\n";
    const RESULT: &str = r#"{"machine": "m", "commit": "c", "figures": [
        {"id": "capture.hash.clean", "value": 1.0349, "unit": "ratio", "reach": 1.1,
         "better": "lower", "runs": 5, "min": 1.0, "max": 123.4},
        {"id": "x", "value": 0.01234, "unit": "", "reach": null},
        {"id": "y", "value": null, "unit": "s", "reach": 0.01234, "better": "higher"}]}"#;

    #[test]
    fn what_is_generated_is_current() {
        let stale = stale(&Tree::read().unwrap());
        assert!(stale.is_empty(), "{}", stale.join("\n"));
    }

    #[test]
    fn a_changed_part_is_found() {
        let tree = Tree::of(&[("a.md", PAGE)]);
        assert_eq!(stale(&tree).len(), 3);
        let filled = filled(&tree, PAGE).unwrap();
        assert_eq!(filled, PAGE.replace("old", "Not measured yet."));
        assert!(filled_again(&filled));
    }

    fn filled_again(text: &str) -> bool {
        filled(&Tree::of(&[]), text).is_ok_and(|again| again == text)
    }

    #[test]
    fn figures_come_from_results() {
        let tree = Tree::of(&[("benchmarks/results/m-c.json", RESULT)]);
        let text = measured(&tree).unwrap();
        assert!(text.contains("- m: m; commit c;"), "{text}");
        let row = "| `capture.hash.clean` | 1.03 (1 to 123) | ratio | <= 1.10 |";
        assert!(text.contains(row), "{text}");
        let row = "| `y` | not measured | s | >= 0.0123 |";
        assert!(text.contains(row), "{text}");
        assert!(!text.contains("`x`"), "{text}");
    }

    #[test]
    fn each_kind_of_machine_has_a_column_and_its_newest_results_are_in_it() {
        let dated = |machine: &str, date: &str, value: &str| {
            let named = format!(r#""machine": "{machine}", "date": "{date}""#);
            let text = RESULT.replace(r#""machine": "m""#, &named);
            text.replace("1.0349", value)
        };
        let (old, new) = (
            dated("A (1)", "2026-01-01", "7"),
            dated("A (2)", "2026-01-02", "8"),
        );
        let other = dated("B", "2025-01-01", "9");
        let tree = Tree::of(&[
            ("benchmarks/results/b.json", &old),
            ("benchmarks/results/a.json", &new),
            ("benchmarks/results/c.json", &other),
        ]);
        let text = measured(&tree).unwrap();
        let row = "| `capture.hash.clean` | 8 (1 to 123) | 9 (1 to 123) | ratio | <= 1.10 |";
        assert!(text.contains(row), "{text}");
    }

    #[test]
    fn an_unknown_mark_is_refused() {
        assert!(filled(&Tree::of(&[]), "<!-- gen:no -->\n<!-- end:no -->").is_err());
        assert!(filled(&Tree::of(&[]), "<!-- gen:measured -->").is_err());
    }

    #[test]
    fn the_calls_of_the_example_are_few_lines() {
        let tree = Tree::read().unwrap();
        let calls = calls(quickstart(&tree).unwrap()).unwrap();
        assert!(calls.lines().count() <= 20, "{calls}");
    }

    #[test]
    fn names_in_c_are_those_of_the_header() {
        let tree = Tree::read().unwrap();
        let header = tree.text("bindings/c/include/backstay/backstay.h").unwrap();
        for kind in ErrorKind::ALL {
            let wanted = format!("#define {} {}\n", kind.c_name(), kind.code());
            assert!(header.contains(&wanted), "{wanted}");
        }
    }
}
