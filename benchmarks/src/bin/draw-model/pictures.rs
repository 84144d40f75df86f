// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the pictures of docs/model.md.
//! In from: `main`'s machines. Out to: the folder of figures.
//! Invariants: a curve that stops says why: from there on its efficiency is unreachable, and where that
//! is was searched for, not the last point of a grid.

use super::{Costs, Machine, Ways, crossing};
use backstay_picture::{
    Axis, Chart, Dash, Heading, Key, Label, Line, Mark, Marker, Scale, Side, Swatch,
};
use std::path::Path;

const LAST: f64 = 16.0;
/// Points of a curve; a quarter of them is an octave.
const STEPS: u32 = 96;
const MARKERS: [Marker; 4] = [Marker::Disc, Marker::Ring, Marker::Triangle, Marker::Box];
const PAPER: &str =
    "Sato et al., Design and Modeling of a Non-blocking Checkpointing System, SC 2012";

fn draw(chart: &Chart, folder: &Path, name: &str) -> Result<(), String> {
    chart.draw()?.write(&folder.join(name))
}

/// Failure factors from 1 to the last, evenly spaced on a logarithmic axis.
fn factors() -> impl Iterator<Item = f64> {
    (0..=STEPS).map(|step| LAST.powf(f64::from(step) / f64::from(STEPS)))
}

fn efficiency_axis() -> Axis {
    let label = "efficiency: useful time over all time";
    Axis::new(label, Scale::Linear, 0.0, 1.0)
}

fn failure_axis() -> Axis {
    let label = "failure rate over TSUBAME2.0's";
    Axis::new(label, Scale::Log2, 1.0, LAST).with_suffix("\u{d7}")
}

fn rate_axis(low: f64, high: f64) -> Axis {
    let label = "file-system bandwidth needed, GB/s";
    Axis::new(label, Scale::Log10, low, high)
}

fn key(text: &str, swatch: Swatch) -> Key {
    Key {
        text: text.to_owned(),
        swatch,
        colour: None,
    }
}

fn kinds() -> Vec<Key> {
    vec![
        key("non-blocking", Swatch::Line(Dash::Solid)),
        key("blocking", Swatch::Line(Dash::Dashed)),
    ]
}

/// Of a non-blocking machine and of the same one blocking.
const KINDS: [(bool, Dash); 2] = [(false, Dash::Solid), (true, Dash::Dashed)];

fn with_blocking(machine: Machine, blocking: bool) -> Machine {
    if blocking {
        machine.blocking()
    } else {
        machine
    }
}

/// A line of a case, with its marker; only the solid one of a pair is named.
fn line_of(points: Vec<(f64, f64)>, (colour, dash): (usize, Dash), name: Option<String>) -> Line {
    Line {
        points,
        colour,
        dash,
        marker: Some(MARKERS[colour]),
        label: name.map_or(Label::None, Label::End),
        ..Line::default()
    }
}

pub(super) fn figure_13(folder: &Path) -> Result<(), String> {
    let mut lines = Vec::new();
    for (colour, cost) in [1.0, 2.0, 10.0].into_iter().enumerate() {
        for (blocking, dash) in KINDS {
            let at = |failures: f64| {
                let machine = with_blocking(Machine::PAPER.at(failures, cost), blocking);
                (failures, machine.efficiency())
            };
            let name = format!("cost {cost}\u{d7}");
            let name = (!blocking).then_some(name);
            lines.push(Line {
                marked_every: 24,
                ..line_of(factors().map(at).collect(), (colour, dash), name)
            });
        }
    }
    let chart = Chart {
        heading: Heading {
            title: "Efficiency of blocking and non-blocking checkpointing".to_owned(),
            source: format!("{PAPER}, Fig. 13, recomputed from the paper's parameters"),
            key: kinds(),
            note: "Cost: that of a checkpoint to the parallel file system, over the paper's."
                .to_owned(),
        },
        x: failure_axis(),
        y: efficiency_axis(),
        lines,
        marks: Vec::new(),
    };
    draw(&chart, folder, "figure-13")
}

pub(super) fn figure_14(folder: &Path) -> Result<(), String> {
    const LOW: f64 = 1e-3;
    const DECADES: i32 = 4;
    const TO_A_DECADE: i32 = 12;
    let mut lines = Vec::new();
    let pairs = [(1.0, 1.0), (2.0, 2.0), (1.0, 10.0), (10.0, 1.0)];
    for (colour, (failures, cost)) in pairs.into_iter().enumerate() {
        let machine = Machine::PAPER.at(failures, cost);
        for (blocking, dash) in KINDS {
            let at = |step: i32| {
                let slowdown_share = LOW * 10_f64.powf(f64::from(step) / f64::from(TO_A_DECADE));
                let machine = Machine {
                    slowdown_share,
                    ..with_blocking(machine, blocking)
                };
                (slowdown_share, machine.efficiency())
            };
            let name = format!("failures {failures}\u{d7},\ncost {cost}\u{d7}");
            let name = (!blocking).then_some(name);
            lines.push(Line {
                marked_every: 12,
                ..line_of(
                    (0..=DECADES * TO_A_DECADE).map(at).collect(),
                    (colour, dash),
                    name,
                )
            });
        }
    }
    let chart = Chart {
        heading: Heading {
            title: "Efficiency by the overhead of writing in the background".to_owned(),
            source: format!("{PAPER}, Fig. 14, recomputed from the paper's parameters"),
            key: kinds(),
            note: "Failures: their rate over TSUBAME2.0's. Cost: that of a checkpoint to the parallel file \
                   system, over the paper's. Blocking checkpoints have no such overhead."
                .to_owned(),
        },
        x: Axis::new("overhead factor \u{3b1}", Scale::Log10, LOW, 10.0),
        y: efficiency_axis(),
        lines,
        marks: Vec::new(),
    };
    draw(&chart, folder, "figure-14")
}

/// What an efficiency needs over the failure rate, up to where it is unreachable.
struct Need {
    points: Vec<(f64, f64)>,
    wall: Option<f64>,
}

fn need(machine: Machine, target: f64) -> Need {
    let is_beyond = |factor: f64| machine.at(factor, 1.0).ceiling() < target;
    let wall = crossing(1.0, 64.0, is_beyond).filter(|&wall| wall < LAST);
    let mut places: Vec<f64> = factors().collect();
    if let Some(wall) = wall {
        // The need grows without bound: half of what is left, again and again.
        places.extend((1..24).map(|step| wall - (wall - 1.0) * 0.5_f64.powi(step)));
        places.retain(|&factor| factor < wall);
        places.sort_by(f64::total_cmp);
    }
    let at = |factor: f64| {
        let rate = machine.at(factor, 1.0).required(target);
        (factor, rate.unwrap_or(f64::NAN))
    };
    Need {
        points: places.into_iter().map(at).collect(),
        wall,
    }
}

/// What is said at the top where a curve ends.
fn unreachable(what: &str, wall: f64, y: f64, colour: usize, side: Side) -> Mark {
    Mark {
        at: (wall, y),
        marker: None,
        text: format!("{what}unreachable\nbeyond {wall:.2}\u{d7}"),
        side,
        colour: Some(colour),
    }
}

pub(super) fn figure_15(folder: &Path) -> Result<(), String> {
    const HIGH: f64 = 5e4;
    let mut lines = Vec::new();
    let mut marks = Vec::new();
    for (colour, target) in [0.9, 0.8, 0.7].into_iter().enumerate() {
        for (blocking, dash) in KINDS {
            let Need { points, wall } = need(with_blocking(Machine::PAPER, blocking), target);
            let name = format!("{:.0} %", 100.0 * target);
            let side = if colour == 0 { Side::Right } else { Side::Left };
            let label = match wall {
                Some(wall) => {
                    let what = format!("{name}\n");
                    marks.push(unreachable(&what, wall, 0.28 * HIGH, colour, side));
                    Label::None
                }
                None => Label::End(name),
            };
            lines.push(Line {
                points,
                colour,
                dash,
                end: wall.map(|_| Marker::Cross),
                label,
                ..Line::default()
            });
        }
    }
    let mut key = kinds();
    key.push(self::key(
        "unreachable beyond",
        Swatch::Point(Marker::Cross),
    ));
    let chart = Chart {
        heading: Heading {
            title: "File-system bandwidth that 90, 80 and 70 % efficiency need".to_owned(),
            source: format!("{PAPER}, Fig. 15, recomputed from the paper's parameters"),
            key,
            note: "Lines bend where another number of level-1 checkpoints becomes best; above about 560 GB/s \
                   blocking ones leave out level 1."
                .to_owned(),
        },
        x: failure_axis(),
        y: rate_axis(0.5, HIGH),
        lines,
        marks,
    };
    draw(&chart, folder, "figure-15")
}

/// What the costs are, and whether two lines are one.
fn own_note(costs: Costs) -> String {
    format!(
        "heat2d: {:.1} % of the state changes between checkpoints; its doubles compress {:.3} times{}.",
        100.0 * costs.changed_share,
        costs.compression_ratio,
        if costs.compression_ratio < 1.02 {
            ", so both differential lines coincide"
        } else {
            ""
        },
    )
}

/// Both pictures of Backstay's own draining.
pub(super) fn own(folder: &Path, ways: &Ways, costs: Costs) -> Result<(), String> {
    const HIGH: f64 = 1e3;
    let names = [
        "full (the paper's)",
        "differential",
        "differential,\ncompressed",
    ];
    let looks = [Dash::Solid, Dash::Solid, Dash::Dashed];
    let source =
        "heat2d's measured costs of checkpoints on the paper's machine, computed by the model";
    let note = own_note(costs);
    let heading = |title: &str| Heading {
        title: title.to_owned(),
        source: source.to_owned(),
        key: Vec::new(),
        note: note.clone(),
    };
    let (mut efficiencies, mut needs, mut marks) = (Vec::new(), Vec::new(), Vec::new());
    for (colour, ((_, machine), (name, dash))) in
        ways.iter().zip(names.into_iter().zip(looks)).enumerate()
    {
        let line = |points| Line {
            points,
            colour,
            dash,
            label: Label::End(name.to_owned()),
            ..Line::default()
        };
        let at = |factor: f64| (factor, machine.at(factor, 1.0).efficiency());
        efficiencies.push(line(factors().map(at).collect()));
        let Need { points, wall } = need(*machine, 0.8);
        needs.push(match wall {
            Some(wall) => {
                let what = format!("{name}\n");
                marks.push(unreachable(&what, wall, 0.3 * HIGH, colour, Side::Left));
                Line {
                    end: Some(Marker::Cross),
                    label: Label::None,
                    ..line(points)
                }
            }
            None => line(points),
        });
    }
    let efficiency = Chart {
        heading: heading("What differential and compressed draining add to efficiency"),
        x: failure_axis(),
        y: efficiency_axis(),
        lines: efficiencies,
        marks: Vec::new(),
    };
    draw(&efficiency, folder, "backstay-efficiency")?;
    let bends = "Lines bend where another number of level-1 checkpoints becomes best.";
    let needed = Chart {
        heading: Heading {
            note: format!("{note} {bends}"),
            ..heading("File-system bandwidth that 80 % efficiency needs")
        },
        x: failure_axis(),
        y: rate_axis(0.5, HIGH),
        lines: needs,
        marks,
    };
    draw(&needed, folder, "backstay-file-system")
}
