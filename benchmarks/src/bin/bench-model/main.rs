// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The speed of the planner on this machine: fixed problems, seven runs each after one that is not counted.

use backstay_bench::Outcome;
use backstay_bench::figures::{Better, Figure, Figures, Wanted, say};
use backstay_model::optimize::{Bounds, Problem, optimize};
use backstay_model::simulate::{Settings, periods};
use backstay_model::{Case, Completion, Mode, Transfer, solve};
use std::hint::black_box;
use std::time::Instant;

const RUNS: usize = 7;

/// What is measured, and how.
const FIGURES: [(Wanted, fn() -> f64); 5] = [
    (
        Wanted::at_most(
            "model-eval-l2-n100",
            "two levels, 100 intervals",
            "us",
            50.0,
        ),
        || 1e6 * evaluation_seconds(),
    ),
    (
        Wanted::at_most("model-optimize-l2", "best of two levels", "ms", 50.0),
        || 1e3 * optimization_seconds(2),
    ),
    (
        Wanted::at_most("model-optimize-l3", "best of three levels", "s", 2.0),
        || optimization_seconds(3),
    ),
    (
        Wanted::at_most("model-optimize-l4", "best of four levels", "s", 10.0),
        || optimization_seconds(4),
    ),
    (
        Wanted {
            id: "model-simulate",
            what: "intervals simulated by one core",
            unit: "intervals/s",
            reach: Some(1e6),
            better: Better::Higher,
        },
        simulated_per_second,
    ),
];

fn main() -> Outcome<()> {
    let mut figures = Figures::new("model");
    for (wanted, run) in FIGURES {
        run();
        let values: Vec<f64> = (0..RUNS).map(|_| run()).collect();
        figures.push(Figure::of(&wanted, &values));
    }
    say(&figures.table());
    say(&format!("{}", figures.write()?.display()));
    Ok(())
}

fn transfer(latency_seconds: f64) -> Mode {
    Mode::NonBlocking(Transfer {
        slowdown_share: 0.05,
        latency_seconds,
        top_checkpoint_seconds: 4.0,
        completion: Completion::Continuous,
    })
}

/// One exact evaluation with two levels and a hundred intervals.
fn evaluation_seconds() -> f64 {
    const COUNT: u32 = 2000;
    let case = Case {
        failures_per_second: vec![1e-4, 1e-5],
        checkpoint_seconds: vec![4.0, 0.0],
        recovery_seconds: vec![8.0, 120.0],
        interval_seconds: 60.0,
        between: vec![99],
        mode: transfer(3000.0),
    };
    let begun = Instant::now();
    for _ in 0..COUNT {
        drop(black_box(solve(black_box(&case))));
    }
    begun.elapsed().as_secs_f64() / f64::from(COUNT)
}

/// One full optimization, all choices of levels included.
fn optimization_seconds(levels: usize) -> f64 {
    let all = [
        (1e-3, 1.0, 2.0),
        (3e-4, 4.0, 8.0),
        (1e-4, 9.0, 20.0),
        (5e-5, 40.0, 80.0),
    ];
    let chosen: Vec<_> = all[..levels - 1].iter().chain([&all[3]]).copied().collect();
    let problem = Problem {
        failures_per_second: chosen.iter().map(|level| level.0).collect(),
        checkpoint_seconds: chosen.iter().map(|level| level.1).collect(),
        recovery_seconds: chosen.iter().map(|level| level.2).collect(),
        recovers_by_failure: false,
        mode: transfer(600.0),
        differential: None,
        bounds: Bounds::default(),
    };
    let begun = Instant::now();
    drop(black_box(optimize(black_box(&problem))));
    begun.elapsed().as_secs_f64()
}

/// Intervals, recoveries and stalls played in a second on one core.
fn simulated_per_second() -> f64 {
    let case = Case {
        failures_per_second: vec![1e-4, 1e-5],
        checkpoint_seconds: vec![4.0, 0.0],
        recovery_seconds: vec![8.0, 120.0],
        interval_seconds: 60.0,
        between: vec![19],
        mode: transfer(900.0),
    };
    let settings = Settings {
        interval_budget: 3_000_000,
        ..Settings::default()
    };
    let begun = Instant::now();
    let played = periods(&case, &settings, u64::MAX).map_or(0, |e| e.intervals_played);
    let count = u32::try_from(played).map_or(0.0, f64::from);
    count / begun.elapsed().as_secs_f64()
}
