// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: docs/compression.md and its pictures.
//! In from: `report`. Out to: files in a folder of documentation.
//! Invariants: the same report gives the same text and pictures; every number says machine and commit.

use super::picture;
use super::report::{HistoryRow, Reached, Report, geometric};
use crate::Outcome;
use crate::datasets::CASES;
use std::fmt::Write as _;
use std::path::Path;

const TEMPLATE: &str = include_str!("page.md.in");

/// Writes compression.md and figures/compression-*.svg into the folder.
pub fn write(report: &Report, out: &Path) -> Outcome<()> {
    let folder = out.join("figures");
    std::fs::create_dir_all(&folder)?;
    picture::draw(report, &folder)?;
    let values = [
        (
            "source",
            format!("{}, commit {}", report.machine, report.commit),
        ),
        ("missing", missing(report) + &given_up(report)),
        ("summary", summary(report)),
        ("variables", variables(report)),
        ("history", history(report)),
        ("checkpoints", checkpoints(report)),
        ("equal", equal(report)),
        ("groups", groups(report)),
        ("merges", merges(report)),
        ("passes", passes(report)),
        ("course", course(report)),
    ];
    let mut text = TEMPLATE.to_owned();
    for (name, value) in &values {
        text = text.replace(&format!("{{{{{name}}}}}"), value.trim_end());
    }
    if let Some((_, rest)) = text.split_once("{{") {
        let name = rest.split("}}").next().unwrap_or(rest);
        return Err(format!("docs/compression.md: nothing to put in for {name}").into());
    }
    Ok(std::fs::write(out.join("compression.md"), text)?)
}

/// Which cases the report does not have.
fn missing(report: &Report) -> String {
    let is_there = |name: &str| report.checkpoints.iter().any(|row| row.case == name);
    let names = CASES.iter().map(|case| case.name);
    let left: Vec<&str> = names.filter(|name| !is_there(name)).collect();
    match &left[..] {
        [] => String::new(),
        left => format!(" The report does not have {}.", left.join(", ")),
    }
}

/// What is not there any more of what the report names.
fn given_up(report: &Report) -> String {
    let variables = report.variables.iter().map(|row| &row.ours.method);
    let mut schemes = variables.chain(report.history.iter().map(|row| &row.scheme));
    if !schemes.any(|scheme| scheme.ends_with(" groups entropy")) {
        return String::new();
    }
    "\n\nThe report is older than [decision 0013](decisions/0013-no-entropy-coder.md), which gave up the schemes \
     that end in\n`groups entropy`; whole checkpoints take as many bytes without them, as its table says."
        .to_owned()
}

/// A ratio: with more digits where they tell more.
fn ratio(value: f64) -> String {
    match value {
        large if large >= 100.0 => format!("{large:.0}"),
        middle if middle >= 10.0 => format!("{middle:.1}"),
        small => format!("{small:.2}"),
    }
}

fn mean(values: impl IntoIterator<Item = f64>) -> String {
    geometric(values).map_or_else(|| "-".to_owned(), ratio)
}

fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in rows {
        let _infallible = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

fn summary(report: &Report) -> String {
    let over = |best: &Option<Reached>, ours: &Reached| Some(ours.ratio / best.as_ref()?.ratio);
    let rows = &report.variables;
    let fast: Vec<f64> = rows
        .iter()
        .filter_map(|row| over(&row.best_fast, &row.ours))
        .collect();
    let any: Vec<f64> = rows
        .iter()
        .filter_map(|row| over(&row.best, &row.ours))
        .collect();
    let seconds: f64 = report
        .checkpoints
        .iter()
        .map(|row| row.decode_seconds)
        .sum();
    let decoded: f64 = report
        .checkpoints
        .iter()
        .map(|row| row.decode_gb_s * row.decode_seconds)
        .sum();
    let weights = |row: &&HistoryRow| is_weight(row);
    let gains = report
        .history
        .iter()
        .filter(weights)
        .map(|row| row.with / row.without);
    let over_agnostic = report.checkpoints.iter().map(|row| row.ours / row.agnostic);
    let every = report
        .checkpoints
        .iter()
        .map(|row| row.every_block / row.agnostic);
    let line = |what: &str, values: Vec<f64>| {
        let least = values.iter().copied().min_by(f64::total_cmp);
        let least = least.map_or_else(|| "-".to_owned(), |least| format!("{least:.2}"));
        vec![what.to_owned(), mean(values), least]
    };
    let rates: Vec<f64> = report
        .checkpoints
        .iter()
        .map(|row| row.decode_gb_s)
        .collect();
    let mut decoding = line("decoding of checkpoints on one core, GB/s", rates);
    decoding[1] = ratio(decoded / seconds.max(1e-9));
    table(
        &["what", "mean", "least"],
        [
            line(
                "ratio of a variable over the best other that decodes 1 GB/s a core",
                fast,
            ),
            line("ratio of a variable over the best other of any speed", any),
            line("ratio with history over without, weights", gains.collect()),
            line(
                "ratio of a checkpoint over that of concatenate and zstd -3",
                over_agnostic.collect(),
            ),
            line("the same, with each equal block stored", every.collect()),
            decoding,
        ],
    )
}

/// Whether history should help: weights as they are and as they are computed with.
pub fn is_weight(row: &HistoryRow) -> bool {
    let name = &row.variable;
    row.case == "network" && (name.ends_with(".weight") || name.ends_with(".master"))
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", crate::as_f64(bytes) / 1_048_576.0)
}

fn variables(report: &Report) -> String {
    let rows = report.variables.iter().map(|row| {
        let mut cells = vec![
            row.case.clone(),
            row.variable.clone(),
            mebibytes(row.bytes),
            ratio(row.ours.ratio),
            format!("{:.1}", row.ours.decode_gb_s),
        ];
        for best in [&row.best_fast, &row.best] {
            cells.push(best.as_ref().map_or("-".to_owned(), |best| {
                format!(
                    "{} ({}, {:.1})",
                    ratio(best.ratio),
                    best.method,
                    best.decode_gb_s
                )
            }));
        }
        cells.push(row.ours.method.clone());
        cells
    });
    table(
        &[
            "case",
            "variable",
            "MiB",
            "ratio",
            "GB/s",
            "best that decodes 1 GB/s",
            "best of any",
            "scheme",
        ],
        rows,
    )
}

fn history(report: &Report) -> String {
    let rows = report.history.iter().map(|row| {
        vec![
            row.case.clone(),
            row.variable.clone(),
            format!("{} to {}", row.step - row.apart, row.step),
            ratio(row.without),
            ratio(row.with),
            ratio(row.with / row.without),
            row.scheme.clone(),
        ]
    });
    table(
        &[
            "case", "variable", "steps", "without", "with", "gain", "scheme",
        ],
        rows,
    )
}

fn checkpoints(report: &Report) -> String {
    let rows = report.checkpoints.iter().map(|row| {
        vec![
            row.case.clone(),
            mebibytes(row.bytes),
            ratio(row.agnostic),
            ratio(row.ours),
            ratio(row.ours / row.agnostic),
            ratio(row.every_block / row.agnostic),
            format!("{:.2}", row.decode_gb_s),
            format!("{:.0}", row.encode_mb_s),
        ]
    });
    table(
        &[
            "case",
            "MiB",
            "zstd -3",
            "Backstay",
            "gain",
            "gain, equal blocks stored each time",
            "decoding, GB/s",
            "encoding, MB/s",
        ],
        rows,
    )
}

fn equal(report: &Report) -> String {
    let rows = report.checkpoints.iter().map(|row| {
        vec![
            row.case.clone(),
            format!("{:.1} %", 100.0 * row.equal_share),
            ratio(row.every_block),
            ratio(row.ours),
            ratio(row.agnostic),
            ratio(row.agnostic_once),
        ]
    });
    table(
        &[
            "case",
            "equal or zero",
            "each stored",
            "stored once",
            "zstd -3, each stored",
            "zstd -3, stored once",
        ],
        rows,
    )
}

fn groups(report: &Report) -> String {
    let rows = report.groups.iter().map(|row| {
        let mut cells = vec![row.case.clone(), row.merge.clone()];
        cells.extend(row.ratios.iter().map(|&(_, value)| ratio3(value)));
        cells
    });
    let sizes = report.groups.first().map_or(&[][..], |row| &row.ratios);
    let sizes: Vec<String> = sizes.iter().map(|(size, _)| size.to_string()).collect();
    let mut head = vec!["case", "scheme"];
    head.extend(sizes.iter().map(String::as_str));
    table(&head, rows)
}

/// A ratio whose small changes matter.
fn ratio3(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.3}")
    } else {
        ratio(value)
    }
}

fn merges(report: &Report) -> String {
    let names = report.merges.first().map_or(&[][..], |row| &row.ratios);
    let mut head = vec!["case"];
    head.extend(names.iter().map(|(name, _)| name.as_str()));
    let rows = report.merges.iter().map(|row| {
        let mut cells = vec![row.case.clone()];
        cells.extend(row.ratios.iter().map(|(_, value)| ratio3(*value)));
        cells
    });
    table(&head, rows)
}

fn passes(report: &Report) -> String {
    let rows = report.passes.iter().map(|row| {
        let mut cells = vec![row.case.clone()];
        let values = [row.without, row.with, row.agnostic, row.agnostic_twice];
        cells.extend(values.map(ratio3));
        cells
    });
    table(
        &[
            "case",
            "one pass",
            "second pass",
            "zstd -3",
            "zstd -3 twice",
        ],
        rows,
    )
}

fn course(report: &Report) -> String {
    let rows = report.course.iter().map(|row| {
        let mut cells = vec![row.case.clone()];
        let cell = |&(step, ours, agnostic): &(u64, f64, f64)| {
            format!("{} ({}) at {step}", ratio(ours), ratio(agnostic))
        };
        cells.extend(row.ratios.iter().map(cell));
        cells
    });
    table(&["case", "1", "2", "3", "4", "5", "6"], rows)
}
