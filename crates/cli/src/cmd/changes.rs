// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay changes`: what changed where and when: from each retained checkpoint to the next.
//!
//! Purpose: a variable's addresses, or its ranks, over the checkpoints of a job.
//! In from: the checkpoints that stores or an archive retain. Out to: standard output, an SVG file.
//! Invariants: each share is one of elements compared, between two checkpoints that are complete.

use crate::output::{Failure, draw, percent, print_json, print_table, progress, result, results};
use crate::select::{self, Places};
use crate::table::Table;
use crate::view::short;
use backstay::ErrorKind;
use backstay_inspect::{ArrayDiff, Checkpoint, Differences, Outcome, Stores, share, shares};
use backstay_picture::{Heading, Strips};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Rows of a picture of ranks: more are put together.
const ROWS_MAX: usize = 40;

/// Shows how much of a variable changed from each retained checkpoint to the next, by rank, and where in it: what changed
/// where and when.
#[derive(Debug, clap::Args)]
pub(crate) struct ChangesArgs {
    #[command(flatten)]
    places: Places,
    /// The variable; the one of most elements, if not said.
    #[arg(long, short)]
    variable: Option<String>,
    /// Draw it: a row for each checkpoint, from the variable's first element to its last.
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// The same, a row for each rank, from the first checkpoint to the last.
    #[arg(long, value_name = "FILE.svg")]
    svg_ranks: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct View {
    job: String,
    variable: String,
    changes: Vec<Change>,
    pictures: Vec<String>,
}

/// From one checkpoint to the next.
#[derive(Debug, Serialize)]
struct Change {
    from: String,
    to: String,
    elements: u64,
    changed: u64,
    changed_share: f64,
    /// By rank, where the array of one is in both.
    changed_share_by_rank: BTreeMap<u32, f64>,
    #[serde(skip)]
    places: Vec<Option<f64>>,
}

pub(crate) fn run(args: &ChangesArgs) -> ExitCode {
    match changes(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(args.json),
    }
}

fn changes(args: &ChangesArgs) -> Result<(), Failure> {
    let stores = args.places.open()?;
    let newest = select::choose(&stores, None)?;
    let is_whole = |one: &Checkpoint| one.is_complete() && !one.is_abandoned();
    let all: Vec<Checkpoint> = stores.checkpoints().into_iter().filter(is_whole).collect();
    let [.., before, last] = &*all else {
        let message = "changes are from one complete checkpoint to the next, and fewer than two are retained; \
                       `retained` says how many are";
        return Err(Failure::new(ErrorKind::NotRetained, message));
    };
    let variable = match &args.variable {
        Some(name) => name.clone(),
        None => largest(&stores, before, last)?,
    };
    let bar = progress(
        "comparing",
        2 * last.bytes_total * count(all.len() - 1),
        true,
    );
    let mut found = Vec::new();
    for pair in all.windows(2) {
        let [from, to] = pair else { continue };
        found.extend(between(&stores, (from, to), &variable, &mut |bytes| {
            bar.inc(bytes);
        })?);
    }
    bar.finish_and_clear();
    if found.is_empty() {
        let message =
            format!("no two checkpoints in a row have a variable {variable:?} of one shape");
        return Err(Failure::new(ErrorKind::VariableMismatch, message));
    }
    let mut view = View {
        job: newest.job,
        variable,
        changes: found,
        pictures: Vec::new(),
    };
    for (path, picture) in [
        (&args.svg, places as fn(&View) -> Strips),
        (&args.svg_ranks, ranks),
    ] {
        if let Some(path) = path {
            draw(path, picture(&view).draw())?;
            view.pictures.push(path.display().to_string());
        }
    }
    if args.json {
        print_json(&view);
        return Ok(());
    }
    results(&[format!("job {}, variable {}", view.job, view.variable)]);
    show(&view.changes);
    view.pictures.iter().for_each(|path| result(path));
    Ok(())
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// The variable of most elements that both have in one shape.
fn largest(stores: &Stores, from: &Checkpoint, to: &Checkpoint) -> Result<String, Failure> {
    let arrays = stores.diff((from, to), (None, None), &mut |_| {})?;
    let known = arrays
        .iter()
        .filter_map(|array| Some((array, compared(array)?)));
    let most = known.max_by_key(|(_, found)| found.elements);
    most.map(|(array, _)| array.variable.clone())
        .ok_or_else(|| {
            let message = format!(
                "checkpoints {} and {} have no variable in one shape",
                short(from.id),
                short(to.id)
            );
            Failure::new(ErrorKind::VariableMismatch, message)
        })
}

const fn compared(array: &ArrayDiff) -> Option<&Differences> {
    match &array.outcome {
        Outcome::Compared(found) => Some(found),
        _ => None,
    }
}

/// What changed of a variable from one checkpoint to the next; none where one of them does not have it, or in another
/// shape.
fn between(
    stores: &Stores,
    (from, to): (&Checkpoint, &Checkpoint),
    variable: &str,
    advance: &mut dyn FnMut(u64),
) -> Result<Option<Change>, Failure> {
    let arrays = stores.diff((from, to), (None, Some(variable)), advance)?;
    // Of a file that has datasets, what stands beside them has none.
    let Some(found) = arrays.iter().find_map(compared) else {
        return Ok(None);
    };
    let mut changed_share_by_rank = BTreeMap::new();
    for &rank in to.ranks.keys() {
        let arrays = stores.diff((from, to), (Some(rank), Some(variable)), advance)?;
        if let Some(own) = arrays.iter().find_map(compared) {
            changed_share_by_rank.insert(rank, share(own.changed, own.elements));
        }
    }
    Ok(Some(Change {
        from: short(from.id),
        to: short(to.id),
        elements: found.elements,
        changed: found.changed,
        changed_share: share(found.changed, found.elements),
        changed_share_by_rank,
        places: shares(found),
    }))
}

fn show(changes: &[Change]) {
    let row = |change: &Change| {
        let by_rank = change.changed_share_by_rank.values().copied();
        let most = by_rank.fold(0.0, f64::max);
        vec![
            change.from.clone(),
            change.to.clone(),
            format!("{} of {}", change.changed, change.elements),
            percent(change.changed_share),
            percent(most),
        ]
    };
    let rows: Vec<Vec<String>> = changes.iter().map(row).collect();
    let table = Table {
        head: &["FROM", "TO", "CHANGED", "", "MOST OF A RANK"],
        right: &[2, 3, 4],
        less: &[4],
    };
    print_table(table, &rows);
}

fn heading(view: &View, what: &str, note: String) -> Heading {
    Heading {
        title: format!("What changed of {}, {what}", view.variable),
        source: format!("Job {}, from each checkpoint to the next", view.job),
        key: Vec::new(),
        note,
    }
}

/// Address and time.
fn places(view: &View) -> Strips {
    let row = |change: &Change| {
        let name = format!("to checkpoint {}", change.to);
        (name, percent(change.changed_share), change.places.clone())
    };
    let note =
        "From left to right: parts of all ranks, one behind the other. From above to below: time.";
    Strips {
        heading: heading(view, "where and when", note.to_owned()),
        rows: view.changes.iter().map(row).collect(),
    }
}

/// Rank and time.
fn ranks(view: &View) -> Strips {
    let mut all: Vec<u32> = view
        .changes
        .iter()
        .flat_map(|c| c.changed_share_by_rank.keys().copied())
        .collect();
    all.sort_unstable();
    all.dedup();
    let together = all.len().div_ceil(ROWS_MAX).max(1);
    let row = |own: &[u32]| {
        let of = |change: &Change| {
            let shares = own
                .iter()
                .filter_map(|rank| change.changed_share_by_rank.get(rank));
            let (sum, count) =
                shares.fold((0.0, 0.0), |(sum, count), share| (sum + share, count + 1.0));
            (count > 0.0).then(|| sum / count)
        };
        let over_time: Vec<Option<f64>> = view.changes.iter().map(of).collect();
        let most = over_time.iter().flatten().copied().fold(0.0, f64::max);
        let name = match own {
            [one] => format!("rank {one}"),
            [first, .., last] => format!("ranks {first} to {last}"),
            [] => String::new(),
        };
        (name, format!("at most {}", percent(most)), over_time)
    };
    let ends = (view.changes.first(), view.changes.last());
    let note = match ends {
        (Some(first), Some(last)) => format!(
            "From left to right: checkpoints {} to {}, each beside the one before.",
            first.to, last.to
        ),
        _ => String::new(),
    };
    Strips {
        heading: heading(view, "on which rank and when", note),
        rows: all.chunks(together).map(row).collect(),
    }
}
