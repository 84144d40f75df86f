// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the busiest node sends and answers, by the number of nodes, as a picture.
//! In from: `main`. Out to: docs/figures/scale.svg and .png.
//! Invariants: what was counted is drawn through, what is foretold is dashed.

use backstay_bench::Outcome;
use backstay_bench::scale::{Counted, Operation, Predicted};
use backstay_picture::{Axis, Chart, Legend, Line, Scale};
use std::path::Path;

fn words(operation: Operation) -> &'static str {
    match operation {
        Operation::Checkpoint => "checkpoint until protected",
        Operation::Drain => "drain (the coordinator, polled)",
        Operation::Restart => "restart",
        Operation::RestartAfterLosses => "restart, a node lost in each of up to 10 groups",
        Operation::RestartOnOtherRanks => "restart on twice as many ranks, all elsewhere",
        Operation::RestartFromArchive => "restart from the archive alone",
    }
}

fn place(nodes: usize, messages: f64) -> (f64, f64) {
    (backstay_bench::size_f64(nodes), messages)
}

/// The lines of one operation.
fn lines(
    colour: usize,
    operation: Operation,
    counted: &[Counted],
    predicted: &[Predicted],
) -> Vec<Line> {
    let own = counted.iter().filter(|one| one.operation == operation);
    let points: Vec<(f64, f64)> = own
        .map(|one| place(one.nodes, backstay_bench::as_f64(one.busiest.messages)))
        .collect();
    let beyond = predicted
        .iter()
        .filter(|one| one.operation == operation && one.counted_over.is_none())
        .map(|one| place(one.nodes, one.messages));
    let dashed: Vec<(f64, f64)> = points.last().copied().into_iter().chain(beyond).collect();
    let has_any = points.iter().any(|(_, messages)| *messages > 0.0);
    let name = if has_any {
        words(operation).to_owned()
    } else {
        format!("{}: none", words(operation))
    };
    let line = |name: String, points, dashed| Line {
        name,
        points,
        colour,
        dashed,
    };
    vec![line(name, points, false), line(String::new(), dashed, true)]
}

/// Draws `scale.svg` and `scale.png` in `folder`.
pub(crate) fn draw(counted: &[Counted], predicted: &[Predicted], folder: &Path) -> Outcome<()> {
    let operations: std::collections::BTreeSet<Operation> =
        counted.iter().map(|one| one.operation).collect();
    let lines = operations.into_iter().enumerate();
    let chart = Chart {
        title: "Messages that the busiest node sends and answers (dashed: foretold)".to_owned(),
        x: Axis::new("nodes of the job", Scale::Log2, 16.0, 12_000.0),
        y: Axis::new("messages", Scale::Log10, 1.0, 10_000.0),
        lines: lines
            .flat_map(|(colour, operation)| self::lines(colour, operation, counted, predicted))
            .collect(),
        mark: None,
        legend: Legend::UpperLeft,
    };
    chart
        .write(&folder.join("scale"))
        .map_err(|error| format!("{}: {error}", folder.display()).into())
}
