// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay model bench`: the speed of the planner on this machine.
//!
//! Purpose: the figures the planner promises, measured.
//! In from: nothing; fixed problems.
//! Out to: a JSON file: machine, commit, and per figure the median of at least five runs.
//! Invariants: one warm-up run is never counted.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use backstay_model::optimize::{Bounds, Problem, optimize};
use backstay_model::simulate::{Settings, periods};
use backstay_model::{Case, Completion, Mode, Transfer, solve};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Bench {
    machine: String,
    commit: String,
    figures: Vec<Figure>,
}

/// One measured figure; `reach` is what it has to reach.
#[derive(Debug, Serialize)]
struct Figure {
    id: &'static str,
    value: f64,
    unit: &'static str,
    reach: f64,
    better: &'static str,
    runs: usize,
    min: f64,
    max: f64,
}

const RUNS: usize = 7;

/// Measures everything and writes the file.
pub(crate) fn write(commit: &str, out: &Path) -> Result<String, String> {
    let figures = vec![
        figure("model-eval-l2-n100", "us", 50.0, "lower", || {
            1e6 * evaluation_seconds()
        }),
        figure("model-optimize-l2", "ms", 50.0, "lower", || {
            1e3 * optimization_seconds(2)
        }),
        figure("model-optimize-l3", "s", 2.0, "lower", || {
            optimization_seconds(3)
        }),
        figure("model-optimize-l4", "s", 10.0, "lower", || {
            optimization_seconds(4)
        }),
        figure(
            "model-simulate",
            "intervals/s/core",
            1e6,
            "higher",
            simulated_per_second,
        ),
    ];
    let bench = Bench {
        machine: machine(),
        commit: commit.to_owned(),
        figures,
    };
    let text = serde_json::to_string_pretty(&bench).map_err(|e| e.to_string())?;
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    std::fs::write(out, format!("{text}\n")).map_err(|e| format!("{}: {e}", out.display()))?;
    Ok(text)
}

fn figure(
    id: &'static str,
    unit: &'static str,
    reach: f64,
    better: &'static str,
    run: impl Fn() -> f64,
) -> Figure {
    run();
    let mut values: Vec<f64> = (0..RUNS).map(|_| run()).collect();
    values.sort_by(f64::total_cmp);
    let (min, max) = (values[0], values[RUNS - 1]);
    Figure {
        id,
        value: values[RUNS / 2],
        unit,
        reach,
        better,
        runs: RUNS,
        min,
        max,
    }
}

fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = model.map_or("unknown processor", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{name}, {cores} cores")
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
