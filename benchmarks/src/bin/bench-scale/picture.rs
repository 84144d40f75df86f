// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the busiest node sends and answers, by the number of nodes, as a picture.
//! In from: `main`. Out to: docs/figures/scale.svg and .png.
//! Invariants: what was counted is drawn through, what is foretold is dashed.

use backstay_bench::scale::{Counted, Operation, Predicted};
use backstay_bench::{Outcome, as_f64, size_f64};
use backstay_picture::{Axis, Chart, Dash, Heading, Key, Label, Line, Marker, Scale, Swatch};
use std::collections::BTreeSet;
use std::path::Path;

fn words(operation: Operation) -> &'static str {
    match operation {
        Operation::Checkpoint => "checkpoint",
        Operation::Drain => "drain",
        Operation::Restart => "restart",
        Operation::RestartAfterLosses => "restart, nodes lost",
        Operation::RestartOnOtherRanks => "restart, other ranks",
        Operation::RestartFromArchive => "restart from the archive",
    }
}

/// The lines of one operation.
fn lines(
    colour: usize,
    operation: Operation,
    counted: &[Counted],
    predicted: &[Predicted],
) -> [Line; 3] {
    let own = counted.iter().filter(|one| one.operation == operation);
    let points: Vec<(f64, f64)> = own
        .map(|one| (size_f64(one.nodes), as_f64(one.busiest.messages)))
        .collect();
    let beyond: Vec<(f64, f64)> = predicted
        .iter()
        .filter(|one| one.operation == operation && one.counted_over.is_none())
        .map(|one| (size_f64(one.nodes), one.messages))
        .collect();
    let all = points.iter().chain(&beyond).copied().collect();
    let line = |points, dash, marker, label| Line {
        points,
        colour,
        dash,
        marker,
        label,
        ..Line::default()
    };
    let name = Label::End(words(operation).to_owned());
    [
        line(all, Dash::Dashed, None, name),
        line(beyond, Dash::Solid, Some(Marker::Ring), Label::None),
        line(points, Dash::Solid, Some(Marker::Disc), Label::None),
    ]
}

/// Draws `scale.svg` and `scale.png` in `folder`.
pub(crate) fn draw(counted: &[Counted], predicted: &[Predicted], folder: &Path) -> Outcome<()> {
    let sends = |operation: &Operation| {
        counted
            .iter()
            .any(|one| one.operation == *operation && one.busiest.messages > 0)
    };
    let operations: BTreeSet<Operation> = counted.iter().map(|one| one.operation).collect();
    let (loud, silent): (Vec<Operation>, Vec<Operation>) =
        operations.iter().partition(|one| sends(one));
    let silent: Vec<&str> = silent.into_iter().map(words).collect();
    let key = |text: &str, swatch| Key {
        text: text.to_owned(),
        swatch,
        colour: None,
    };
    let chart = Chart {
        heading: Heading {
            title: "Messages that the busiest node of a job sends and answers".to_owned(),
            source: "Backstay: counted on simulated networks, and what follows for 10,240 nodes"
                .to_owned(),
            key: vec![
                key("counted", Swatch::Point(Marker::Disc)),
                key("foretold", Swatch::Point(Marker::Ring)),
            ],
            note: format!(
                "Nodes lost: one in each of up to 10 groups. Other ranks: twice as many, all elsewhere. \
                 Drain: the coordinator, which other nodes poll. Without a message: {}.",
                silent.join(" and ")
            ),
        },
        x: Axis::new("nodes of the job", Scale::Log10, 14.0, 12_000.0),
        y: Axis::new("messages", Scale::Log10, 10.0, 1000.0),
        lines: loud
            .into_iter()
            .enumerate()
            .flat_map(|(colour, operation)| lines(colour, operation, counted, predicted))
            .collect(),
        marks: Vec::new(),
    };
    Ok(chart.draw()?.write(&folder.join("scale"))?)
}

#[cfg(test)]
mod tests {
    use backstay_bench::committed;

    #[test]
    fn committed_picture_is_that_of_the_committed_report() {
        let report: crate::Report = committed::report("scale-xeon-2core-8457922.json").unwrap();
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("figures");
        std::fs::create_dir(&folder).unwrap();
        super::draw(&report.counted, &report.predicted, &folder).unwrap();
        let files = ["figures/scale.svg", "figures/scale.png"];
        committed::check(out.path(), &files, "scale-figure").unwrap();
    }
}
