// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the tables of docs/scale.md, from the newest results of `make scale`.
//! In: benchmarks/results/scale-*.json. Out to: `generate`.
//! Invariants: nobody types a number that was counted.

use crate::generate::{RESULTS, line, number};
use crate::tree::Tree;
use serde_json::Value;
use std::fmt::Write;

/// Operations as the results name them, and as the page does.
const OPERATIONS: [(&str, &str); 6] = [
    ("checkpoint", "a checkpoint until it is protected"),
    ("restart", "restart, all nodes there"),
    (
        "restart_after_losses",
        "restart, one node lost in each of up to ten groups",
    ),
    (
        "restart_on_other_ranks",
        "restart on twice as many ranks, each on another node than its data",
    ),
    ("restart_from_archive", "restart, the archive alone left"),
    ("drain", "a drain"),
];

fn newest(tree: &Tree) -> Result<Option<(&str, Value)>, String> {
    let is_ours = |path: &str| path.starts_with(RESULTS) && path.contains("/scale-");
    let mut all = tree.texts().filter(|(path, _)| is_ours(path));
    let Some((path, text)) = all.next() else {
        return Ok(None);
    };
    if let Some((other, _)) = all.next() {
        return Err(format!("{path} and {other}: keep the newest alone"));
    }
    let value = serde_json::from_str(text).map_err(|error| format!("{path}: {error}"))?;
    Ok(Some((path, value)))
}

fn rows<'a>(results: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    results[list].as_array().into_iter().flatten()
}

fn sizes(results: &Value) -> Vec<u64> {
    let mut sizes: Vec<u64> = rows(results, "counted")
        .filter_map(|one| one["nodes"].as_u64())
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// A table with a column for each size: what `cell` shows of each operation, and what was foretold of the largest.
fn table(
    results: &Value,
    foretold: impl Fn(&Value) -> String,
    cell: impl Fn(&Value) -> String,
) -> String {
    let sizes = sizes(results);
    let heads = sizes.iter().map(|size| format!(" {size} |"));
    let mut text = format!(
        "| nodes |{} 10240, foretold |\n|---|",
        heads.collect::<String>()
    );
    text += &"---|".repeat(sizes.len() + 1);
    text.push('\n');
    for (key, words) in OPERATIONS {
        let mut cells = vec![words.to_owned()];
        for size in &sizes {
            let mut counted = rows(results, "counted");
            let one = counted.find(|one| one["operation"] == key && one["nodes"] == *size);
            cells.push(one.map_or_else(|| "-".to_owned(), &cell));
        }
        let mut beyond = rows(results, "predicted");
        let beyond = beyond.find(|one| one["operation"] == key && one["nodes"] == 10_240);
        cells.push(beyond.map_or_else(|| "-".to_owned(), &foretold));
        let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        line(&mut text, &cells);
    }
    text
}

/// All tables.
pub(crate) fn tables(tree: &Tree) -> Result<String, String> {
    let Some((path, results)) = newest(tree)? else {
        return Ok("Not counted yet.\n".to_owned());
    };
    let text = |key: &str| results[key].as_str().unwrap_or("not named").to_owned();
    let mut out = format!(
        "Machine: {}; commit {}; all of it in `{path}`.\n\n\
         Messages of the busiest node, and in brackets the nodes that it exchanges them with:\n\n",
        text("machine"),
        text("commit")
    );
    out += &table(
        &results,
        |one| number(&one["messages"]),
        |one| {
            let busiest = &one["busiest"];
            format!(
                "{} ({})",
                number(&busiest["messages"]),
                number(&busiest["peers"])
            )
        },
    );
    out += "\nCollective calls, and in brackets the kilobytes that they bring each rank:\n\n";
    let kilobytes = |one: &Value| {
        let bytes = one["collective_bytes"].as_f64().unwrap_or(0.0);
        number(&Value::from(bytes / 1e3))
    };
    out += &table(
        &results,
        |one| format!("({})", kilobytes(one)),
        |one| format!("{} ({})", number(&one["collectives"]), kilobytes(one)),
    );
    out += "\nSeconds on the machine described above, before anything is read:\n\n";
    out += &table(
        &results,
        |one| number(&one["seconds"]),
        |one| number(&one["seconds"]),
    );
    out += "\nFiles of the archive that a rank opens:\n\n";
    out += &table(
        &results,
        |_| "-".to_owned(),
        |one| number(&one["archive_opens"]),
    );
    let checked = rows(&results, "predicted").filter(|one| one["counted_over"].is_number());
    let off = checked.filter_map(|one| one["counted_over"].as_f64());
    let worst = off.fold(1.0_f64, |worst, over| {
        if (over.ln()).abs() > worst.ln().abs() {
            over
        } else {
            worst
        }
    });
    let worst = number(&Value::from(worst));
    let check = "The straight line through the two sizes before the largest, at the largest: counted over foretold is";
    writeln!(out, "\n{check} {worst} at worst.").map_err(|error| error.to_string())?;
    Ok(out)
}
