// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Useful time over wall time of a job that fails, measured and planned, as a picture.
//!
//! Purpose: a report of `make bench-efficiency` as docs/figures/efficiency.svg and .png: REPORT FOLDER.
//! In from: benchmarks/efficiency/run.py. Out to: docs/model.md.
//! Invariants: what is drawn is in the report; a bar is the 95 % confidence interval, where there is one.

use backstay_bench::{Outcome, committed};
use backstay_picture::{
    Axis, Chart, Dash, Heading, Key, Label, Line, Mark, Marker, Scale, Side, Swatch,
};
use serde::Deserialize;

const MEASURED: usize = 0;
const PLANNED: usize = 1;
const AUTO: &str = "auto";

#[derive(Debug, Deserialize)]
struct Report {
    machine: String,
    commit: String,
    mtbf_seconds: f64,
    /// Least, mean and most processes that wanted to run.
    load: [f64; 3],
    settings: Vec<Setting>,
}

#[derive(Debug, Deserialize)]
struct Setting {
    interval: String,
    failures: Failures,
    efficiency: f64,
    half_interval: Option<f64>,
    predicted: Option<Predicted>,
}

#[derive(Debug, Deserialize)]
struct Failures {
    process: u32,
    node: u32,
    all: u32,
}

#[derive(Debug, Deserialize)]
struct Predicted {
    efficiency: f64,
    interval_seconds: f64,
}

impl Setting {
    /// Where it stands: `auto` at the interval that was planned for it.
    fn seconds(&self) -> Option<f64> {
        if self.interval == AUTO {
            return self.predicted.as_ref().map(|plan| plan.interval_seconds);
        }
        self.interval.parse().ok()
    }
}

fn main() -> Outcome<()> {
    let (report, folder) = committed::from_arguments::<Report>()?;
    Ok(chart(&report).draw()?.write(&folder.join("efficiency"))?)
}

/// A bar from the least to the most that it may be.
fn bar(setting: &Setting) -> Option<Line> {
    let (at, half) = (setting.seconds()?, setting.half_interval?);
    let ends = [-half, half].map(|off| (at, setting.efficiency + off));
    Some(Line {
        points: ends.to_vec(),
        colour: MEASURED,
        ..Line::default()
    })
}

fn through(
    points: impl Iterator<Item = Option<(f64, f64)>>,
    colour: usize,
    dash: Dash,
    marker: Marker,
) -> Line {
    let mut points: Vec<(f64, f64)> = points.flatten().collect();
    points.sort_by(|one, other| one.0.total_cmp(&other.0));
    Line {
        points,
        colour,
        dash,
        marker: Some(marker),
        label: Label::None,
        ..Line::default()
    }
}

fn chart(report: &Report) -> Chart {
    let fixed = || report.settings.iter().filter(|one| one.interval != AUTO);
    let auto = report.settings.iter().find(|one| one.interval == AUTO);
    let measured = fixed().map(|one| Some((one.seconds()?, one.efficiency)));
    let planned = fixed().map(|one| Some((one.seconds()?, one.predicted.as_ref()?.efficiency)));
    let mut lines: Vec<Line> = report.settings.iter().filter_map(bar).collect();
    lines.push(through(planned, PLANNED, Dash::Dashed, Marker::Ring));
    lines.push(through(measured, MEASURED, Dash::Solid, Marker::Disc));
    let mark = |setting: &Setting| {
        let at = setting.seconds()?;
        Some(Mark {
            at: (at, setting.efficiency),
            marker: Some(Marker::Triangle),
            text: format!("auto: {:.3}", setting.efficiency),
            side: Side::Above,
            colour: Some(MEASURED),
        })
    };
    let seconds: Vec<f64> = report
        .settings
        .iter()
        .filter_map(Setting::seconds)
        .collect();
    let low = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let high = seconds.iter().copied().fold(0.0, f64::max);
    let key = |text: &str, swatch, colour| Key {
        text: text.to_owned(),
        swatch,
        colour: Some(colour),
    };
    let counted = |one: &Setting| one.failures.process + one.failures.node + one.failures.all;
    let counts = report.settings.iter().map(counted);
    let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    let failures = if least == most {
        format!("{least} failures")
    } else {
        format!("{least} to {most} failures")
    };
    Chart {
        heading: Heading {
            title: "Useful time of a job that fails, measured and planned".to_owned(),
            source: format!("Backstay at {}: {}", report.commit, report.machine),
            key: vec![
                key("measured", Swatch::Point(Marker::Disc), MEASURED),
                key("backstay plan", Swatch::Point(Marker::Ring), PLANNED),
            ],
            note: format!(
                "{failures} of each setting, one every {:.1} s on the average; bars are 95 % intervals. Load {:.1} \
                 on the average, {:.1} at most.",
                report.mtbf_seconds, report.load[1], report.load[2]
            ),
        },
        x: Axis::new(
            "seconds between checkpoints",
            Scale::Log10,
            0.7 * low,
            1.4 * high,
        ),
        y: Axis::new("useful time over wall time", Scale::Linear, 0.0, 1.0),
        lines,
        marks: auto.and_then(mark).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use backstay_bench::committed;

    #[test]
    fn committed_picture_is_that_of_the_committed_report() {
        let report = committed::report("efficiency-xeon-2core-a16a271.json").unwrap();
        let out = tempfile::tempdir().unwrap();
        let stem = out.path().join("figures/efficiency");
        std::fs::create_dir(out.path().join("figures")).unwrap();
        super::chart(&report).draw().unwrap().write(&stem).unwrap();
        let files = ["figures/efficiency.svg", "figures/efficiency.png"];
        committed::check(out.path(), &files, "efficiency-figure").unwrap();
    }
}
