// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what one staging server takes, by its writer threads and by its nodes, as a picture.
//! In from: `main`. Out to: docs/figures/staging.svg and .png.
//! Invariants: what is drawn are medians of the report.

use crate::{Found, NODES, Report, THREADS};
use backstay_bench::figures::median;
use backstay_bench::{Outcome, size_f64};
use backstay_picture::{Axis, Chart, Dash, Heading, Label, Line, Marker, Scale};
use std::path::Path;

fn line(colour: usize, name: String, all: &[Found], at: fn(&Found) -> f64) -> Line {
    let points = all.iter();
    let points = points.map(|one| (at(one), median(&one.mb_per_second).unwrap_or(0.0)));
    Line {
        points: points.collect(),
        colour,
        dash: Dash::Solid,
        marker: Some(Marker::Disc),
        label: Label::End(name),
        ..Line::default()
    }
}

/// Draws `staging.svg` and `staging.png` in `folder`.
pub(crate) fn draw(report: &Report, folder: &Path) -> Outcome<()> {
    let plain = median(&report.plain_write_mb_per_second).unwrap_or(0.0);
    let most = report.by_threads.iter().chain(&report.by_nodes);
    let most = most.filter_map(|one| median(&one.mb_per_second));
    let most = most.fold(plain, f64::max);
    let threads = format!("writer threads, for {} nodes", THREADS.1);
    let nodes = format!("nodes, by {} writer threads", NODES.1);
    let chart = Chart {
        heading: Heading {
            title: "What one staging server takes to the archive".to_owned(),
            source: format!("Backstay: {}", report.machine),
            key: Vec::new(),
            note: format!(
                "{} MiB a node, all changed, codec raw; the server pulls over TCP. Dashed: one thread that writes \
                 and syncs as much.",
                report.bytes_a_node >> 20
            ),
        },
        x: Axis::new("writer threads, or nodes", Scale::Log2, 0.9, 36.0),
        y: Axis::new("MB/s", Scale::Linear, 0.0, 1.1 * most),
        lines: vec![
            Line {
                points: vec![(1.0, plain), (32.0, plain)],
                colour: 4,
                dash: Dash::Dashed,
                label: Label::End("plain write".to_owned()),
                ..Line::default()
            },
            line(0, threads, &report.by_threads, |one| {
                f64::from(one.writer_threads)
            }),
            line(1, nodes, &report.by_nodes, |one| size_f64(one.nodes)),
        ],
        marks: Vec::new(),
    };
    Ok(chart.draw()?.write(&folder.join("staging"))?)
}

#[cfg(test)]
mod tests {
    use backstay_bench::committed;

    #[test]
    fn committed_picture_is_that_of_the_committed_report() {
        let report: crate::Report = committed::report("staging-xeon-2core-beb927d.json").unwrap();
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("figures");
        std::fs::create_dir(&folder).unwrap();
        super::draw(&report, &folder).unwrap();
        let files = ["figures/staging.svg", "figures/staging.png"];
        committed::check(out.path(), &files, "staging-figure").unwrap();
    }
}
