// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a plan as two pictures: efficiency over the interval, needed bandwidth over the failure rate.
//! In from: `plan`. Out to: STEM-interval and STEM-file-system, each as SVG and as PNG.
//! Invariants: a curve that stops says where its efficiency becomes unreachable.

use std::path::{Path, PathBuf};

use backstay_model::advice::{self, Required};
use backstay_model::levels::level_at;
use backstay_model::optimize::{Best, Problem};
use backstay_model::solve;
use backstay_picture::{
    Axis, Chart, Dash, Heading, Key, Label, Line, Mark, Marker, Scale, Side, Swatch,
};

use super::file_system_efficiency;
use crate::cmd::job::Job;

/// Failure rates that are looked at, over the given one.
const LAST: f64 = 16.0;
const TARGETS: [f64; 3] = [0.9, 0.8, 0.7];
const DASHES: [Dash; 3] = [Dash::Solid, Dash::Dashed, Dash::Dotted];
const SOURCE: &str = "Computed by backstay plan for the job that it was given";

/// Draws both; their stems.
pub(super) fn draw(job: &Job, best: &Best, stem: &Path) -> Result<[PathBuf; 2], String> {
    let problem = job
        .problem_of(&job.inputs)
        .map_err(|error| error.to_string())?;
    let named = |end: &str| {
        let mut name = stem.file_name().unwrap_or_default().to_os_string();
        name.push(end);
        stem.with_file_name(name)
    };
    let files = [named("-interval"), named("-file-system")];
    interval_chart(&problem, best).draw()?.write(&files[0])?;
    file_system_chart(job).draw()?.write(&files[1])?;
    Ok(files)
}

/// Seconds as one says them.
fn spoken(seconds: f64) -> String {
    match seconds {
        short if short < 120.0 => format!("{short:.0} s"),
        middle if middle < 7200.0 => format!("{:.0} min", middle / 60.0),
        long if long < 172_800.0 => format!("{:.1} h", long / 3600.0),
        longest => format!("{:.1} d", longest / 86_400.0),
    }
}

fn interval_chart(problem: &Problem, best: &Best) -> Chart {
    let seconds = best.case.interval_seconds;
    let (low, high) = (
        seconds / 20.0,
        (seconds * 20.0).min(problem.bounds.interval_seconds_max),
    );
    let high = high.max(2.0 * low);
    let points = (0..=160)
        .map(|step| low * (high / low).powf(f64::from(step) / 160.0))
        .map(|t| {
            let solved = solve(&problem.case_at(&best.used_levels, t, &best.case.between));
            (t, solved.map_or(f64::NAN, |solution| solution.efficiency))
        })
        .collect();
    let efficiency = best.solution.efficiency;
    let top = best.used_levels.len();
    let (intervals, level) = (best.solution.intervals, best.used_levels[top - 1]);
    debug_assert_eq!(level_at(intervals, &best.case.between), top);
    let note = if intervals == 1 {
        format!("Each checkpoint is of level {level}.")
    } else {
        format!("One of {intervals} checkpoints is of level {level}, whatever the interval.")
    };
    Chart {
        heading: Heading {
            title: "Efficiency over the time between checkpoints".to_owned(),
            source: SOURCE.to_owned(),
            key: Vec::new(),
            note,
        },
        x: Axis::new("useful time between checkpoints", Scale::Time, low, high),
        y: Axis::new(
            "efficiency: useful time over all time",
            Scale::Linear,
            0.0,
            1.0,
        ),
        lines: vec![Line {
            points,
            ..Line::default()
        }],
        marks: vec![Mark {
            at: (seconds, efficiency),
            marker: Some(Marker::Disc),
            text: format!("best: {}\nefficiency {efficiency:.3}", spoken(seconds)),
            side: if efficiency > 0.3 {
                Side::Below
            } else {
                Side::Above
            },
            colour: None,
        }],
    }
}

/// The bandwidth that a target needs, by the failure rate, up to where none suffices.
struct Need {
    points: Vec<(f64, f64)>,
    /// `None` where all rates have a need, 1 where none has.
    wall: Option<f64>,
}

fn need(job: &Job, target: f64) -> Need {
    const STEPS: u32 = 16;
    let rate = |factor: f64, least: f64| {
        let mut inputs = job.inputs.clone();
        inputs.node_mtbf_hours /= factor;
        let at = |rate| file_system_efficiency(job, &inputs, rate);
        match advice::required(target, (least, 1e6), at) {
            Required::At(rate) => Some(rate),
            Required::NotReachable { .. } => None,
        }
    };
    let mut need = Need {
        points: Vec::new(),
        wall: None,
    };
    // The need grows with the failures: each search begins a little below the last one's end.
    let mut least = 1e-3;
    let mut reached = 1.0;
    for step in 0..=STEPS {
        let factor = LAST.powf(f64::from(step) / f64::from(STEPS));
        let Some(rate) = rate(factor, least) else {
            need.wall = Some(factor);
            break;
        };
        least = (0.9 * rate).max(least);
        reached = factor;
        need.points.push((factor, rate));
    }
    if need.points.is_empty() {
        return need;
    }
    // Where it ends lies between two steps: halve that until it cannot be seen any more.
    if let Some(wall) = &mut need.wall {
        for _ in 0..8 {
            let middle = (reached * *wall).sqrt();
            match rate(middle, least) {
                Some(rate) => {
                    least = (0.9 * rate).max(least);
                    reached = middle;
                    need.points.push((middle, rate));
                }
                None => *wall = middle,
            }
        }
    }
    need
}

fn file_system_chart(job: &Job) -> Chart {
    let needs = TARGETS.map(|target| (target, need(job, target)));
    let rates = || {
        let points = needs.iter().flat_map(|(_, need)| &need.points);
        points.map(|&(_, rate)| rate)
    };
    // The steep end of a curve tells no more than where it is.
    let low = rates().fold(f64::INFINITY, f64::min);
    let high = rates().fold(0.0, f64::max).min(1e4 * low);
    let (low, high) = if high > 0.0 {
        (0.6 * low, 2.5 * high)
    } else {
        (0.1, 100.0)
    };
    let mut lines = Vec::new();
    let mut never = Vec::new();
    let mut key = Vec::new();
    for (colour, (target, need)) in needs.into_iter().enumerate() {
        let name = format!("{:.0} %", 100.0 * target);
        if need.points.is_empty() {
            never.push(name);
            continue;
        }
        key.push(Key {
            text: match need.wall {
                Some(wall) => format!("{name}, to {wall:.1}\u{d7}"),
                None => name.clone(),
            },
            swatch: Swatch::Line(DASHES[colour]),
            colour: Some(colour),
        });
        lines.push(Line {
            points: need.points,
            colour,
            dash: DASHES[colour],
            end: need.wall.map(|_| Marker::Cross),
            label: match need.wall {
                Some(_) => Label::None,
                None => Label::End(name),
            },
            ..Line::default()
        });
    }
    if lines.iter().any(|line| line.end.is_some()) {
        key.push(Key {
            text: "unreachable beyond".to_owned(),
            swatch: Swatch::Point(Marker::Cross),
            colour: None,
        });
    }
    let note = match never.len() {
        0 => String::new(),
        _ => format!("Unreachable with any bandwidth: {}.", never.join(", ")),
    };
    Chart {
        heading: Heading {
            title: "File-system bandwidth that an efficiency needs".to_owned(),
            source: SOURCE.to_owned(),
            key,
            note,
        },
        x: Axis::new("failure rate over the given one", Scale::Log2, 1.0, LAST)
            .with_suffix("\u{d7}"),
        y: Axis::new(
            "file-system bandwidth needed, GB/s",
            Scale::Log10,
            low,
            high,
        ),
        lines,
        marks: Vec::new(),
    }
}
