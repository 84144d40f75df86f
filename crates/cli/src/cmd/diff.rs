// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay diff`: what changed from one checkpoint to another.

use crate::output::{
    Failure, complain, draw, percent, print_json, print_table, progress, result, results,
};
use crate::select::{self, Places};
use crate::table::Table;
use crate::view::{CheckpointView, short};
use backstay::ErrorKind;
use backstay_inspect::{ArrayDiff, Differences, Outcome, Unit, Wanted, share, shares};
use backstay_picture::{Heading, Strips};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Rows of a picture: more are left out, those that changed least.
const ROWS_MAX: usize = 40;

/// Shows what changed between two checkpoints of a job: elements, their share, the largest difference; by variable,
/// and of files by dataset.
#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// The earlier checkpoint: its number, or NUMBER.INCARNATION as `ls` shows it.
    #[arg(value_name = "A", value_parser = select::parse_checkpoint)]
    from: Wanted,
    /// The later one.
    #[arg(value_name = "B", value_parser = select::parse_checkpoint)]
    to: Wanted,
    #[command(flatten)]
    places: Places,
    /// Only what this rank has.
    #[arg(long, short)]
    rank: Option<u32>,
    /// Only this variable.
    #[arg(long, short)]
    variable: Option<String>,
    /// Draw where in the arrays: a strip for each, from its first element to its last.
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct DiffView {
    from: CheckpointView,
    to: CheckpointView,
    arrays: Vec<ArrayView>,
    picture: Option<String>,
}

#[derive(Debug, Serialize)]
struct ArrayView {
    variable: String,
    dataset: Option<String>,
    r#type: String,
    ranks: usize,
    /// `compared`, `gone`, `new`, or `reshaped`.
    outcome: &'static str,
    unit: &'static str,
    elements: u64,
    changed: u64,
    changed_share: f64,
    first_changed: Option<u64>,
    last_changed: Option<u64>,
    largest: Option<f64>,
    largest_relative: Option<f64>,
    not_finite: u64,
}

impl ArrayView {
    fn new(array: &ArrayDiff) -> Self {
        let found = compared(array);
        Self {
            variable: array.variable.clone(),
            dataset: array.dataset.clone(),
            r#type: array.kind.clone(),
            ranks: array.ranks,
            outcome: outcome(array),
            unit: unit(array),
            elements: found.map_or(0, |found| found.elements),
            changed: found.map_or(0, |found| found.changed),
            changed_share: found.map_or(0.0, |found| share(found.changed, found.elements)),
            first_changed: found.and_then(|found| found.first),
            last_changed: found.and_then(|found| found.last),
            largest: found.and_then(|found| found.largest),
            largest_relative: found.and_then(|found| found.largest_relative),
            not_finite: found.map_or(0, |found| found.not_finite),
        }
    }
}

const fn compared(array: &ArrayDiff) -> Option<&Differences> {
    match &array.outcome {
        Outcome::Compared(found) => Some(found),
        _ => None,
    }
}

const fn outcome(array: &ArrayDiff) -> &'static str {
    match array.outcome {
        Outcome::Compared(_) => "compared",
        Outcome::Gone => "gone",
        Outcome::New => "new",
        Outcome::Reshaped => "reshaped",
    }
}

const fn unit(array: &ArrayDiff) -> &'static str {
    match array.unit {
        Unit::Elements => "elements",
        Unit::Bytes => "bytes",
        Unit::Chunks => "chunks",
    }
}

pub(crate) fn run(args: &DiffArgs) -> ExitCode {
    match diff(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(args.json),
    }
}

fn diff(args: &DiffArgs) -> Result<(), Failure> {
    let stores = args.places.open()?;
    let from = select::choose(&stores, Some(args.from))?;
    let to = select::choose(&stores, Some(args.to))?;
    for checkpoint in [&from, &to] {
        if args.rank.is_none() && !checkpoint.is_complete() {
            return Err(select::incomplete(checkpoint));
        }
    }
    let bar = progress("comparing", from.bytes_total.max(to.bytes_total), true);
    let wanted = (args.rank, args.variable.as_deref());
    let arrays = stores.diff((&from, &to), wanted, &mut |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    if arrays.is_empty() {
        let name = args.variable.as_deref().unwrap_or_default();
        let message = format!("neither checkpoint has a variable {name:?}");
        return Err(Failure::new(ErrorKind::VariableMismatch, message));
    }
    let names = (short(from.id), short(to.id));
    if let Some(path) = &args.svg {
        draw(path, picture(&arrays, (&names.0, &names.1)).draw())?;
    }
    if args.json {
        print_json(&DiffView {
            from: CheckpointView::new(&stores, &from),
            to: CheckpointView::new(&stores, &to),
            arrays: arrays.iter().map(ArrayView::new).collect(),
            picture: args.svg.as_ref().map(|path| path.display().to_string()),
        });
        return Ok(());
    }
    results(&[format!(
        "job {}, from checkpoint {} to {}",
        to.job, names.0, names.1
    )]);
    show(&arrays);
    if let Some(path) = &args.svg {
        result(&format!("{}: where in the arrays", path.display()));
    }
    Ok(())
}

fn show(arrays: &[ArrayDiff]) {
    let row = |array: &ArrayDiff| {
        let number = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3e}"))
        };
        let mut cells = vec![
            array.variable.clone(),
            array.dataset.clone().unwrap_or_else(|| "-".to_owned()),
            array.kind.clone(),
            array.ranks.to_string(),
        ];
        match compared(array) {
            None => cells.extend([
                outcome(array).to_owned(),
                "-".to_owned(),
                "-".to_owned(),
                "-".to_owned(),
            ]),
            Some(found) => cells.extend([
                format!("{} of {} {}", found.changed, found.elements, unit(array)),
                percent(share(found.changed, found.elements)),
                number(found.largest),
                number(found.largest_relative),
            ]),
        }
        cells
    };
    let rows: Vec<Vec<String>> = arrays.iter().map(row).collect();
    let table = Table {
        head: &[
            "VARIABLE", "DATASET", "TYPE", "RANKS", "CHANGED", "", "LARGEST", "RELATIVE",
        ],
        right: &[3, 4, 5, 6, 7],
        less: &[3, 2, 7],
    };
    print_table(table, &rows);
    let lost = arrays
        .iter()
        .filter_map(compared)
        .map(|found| found.not_finite)
        .sum::<u64>();
    if lost > 0 {
        complain(&format!(
            "{lost} numbers that changed are not finite in one of both: they count as changed, and in no largest difference"
        ));
    }
}

fn picture(arrays: &[ArrayDiff], (from, to): (&str, &str)) -> Strips {
    let mut drawn: Vec<(&ArrayDiff, &Differences)> = arrays
        .iter()
        .filter_map(|array| Some((array, compared(array)?)))
        .collect();
    // A file whose datasets are drawn is not drawn besides.
    let has_datasets = |name: &str| {
        drawn
            .iter()
            .any(|(array, _)| array.variable == name && array.dataset.is_some())
    };
    let with: Vec<bool> = drawn
        .iter()
        .map(|(array, _)| array.dataset.is_some() || !has_datasets(&array.variable))
        .collect();
    let mut keep = with.into_iter();
    drawn.retain(|_| keep.next().unwrap_or(true));
    let left_out = drawn.len().saturating_sub(ROWS_MAX);
    if left_out > 0 {
        let by_share =
            |(_, found): &(&ArrayDiff, &Differences)| share(found.changed, found.elements);
        drawn.sort_by(|one, other| by_share(other).total_cmp(&by_share(one)));
        drawn.truncate(ROWS_MAX);
    }
    let row = |(array, found): &(&ArrayDiff, &Differences)| {
        let name = array
            .dataset
            .clone()
            .unwrap_or_else(|| array.variable.clone());
        let words = format!(
            "{}, {} of {}",
            array.kind,
            percent(share(found.changed, found.elements)),
            count(found.elements, unit(array))
        );
        (name, words, shares(found))
    };
    let note = if left_out > 0 {
        format!("{left_out} arrays that changed less are left out.")
    } else {
        String::new()
    };
    Strips {
        heading: Heading {
            title: format!("What changed from checkpoint {from} to {to}"),
            source: format!(
                "Parts of all ranks one behind the other, in {} pieces at most",
                backstay_inspect::BINS
            ),
            key: Vec::new(),
            note,
        },
        rows: drawn.iter().map(row).collect(),
    }
}

/// A number of things, for people.
fn count(number: u64, what: &str) -> String {
    let mut digits = number.to_string();
    let mut at = digits.len();
    while at > 3 {
        at -= 3;
        digits.insert(at, ',');
    }
    format!("{digits} {what}")
}
