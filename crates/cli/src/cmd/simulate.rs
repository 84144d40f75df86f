// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay simulate`: simulates runs of a job and says how well a plan holds.
//!
//! Purpose: the spread of a job's wall time under exponential, Weibull or recorded failures.
//! In from: the same numbers as `backstay plan`; the plan is the best one for them, or given.
//! Out to: standard output, as text or JSON.
//! Invariants: one seed gives one output; exit code 0 with a result, 1 for bad input.

use std::path::PathBuf;
use std::process::ExitCode;

use backstay_model::optimize::{Best, optimize};
use backstay_model::posterior::quantile_of_sorted;
use backstay_model::simulate::{FailureLog, Failures, Runs, Settings, TransferPolicy, runs};
use backstay_model::solve;
use serde::Serialize;

use super::job::JobArgs;
use crate::output::{self, Failure};
use backstay_base::units;

/// Arguments of `backstay simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Runs of the job to simulate
    #[arg(long, alias = "lives", default_value_t = 2000)]
    runs: u64,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Weibull failures of this shape instead of exponential ones (below 1: in bursts)
    #[arg(long, value_name = "SHAPE", conflicts_with = "failure_log")]
    weibull: Option<f64>,
    /// Failures from a CSV file with lines "seconds,level", repeated when used up
    #[arg(long, value_name = "FILE.csv")]
    failure_log: Option<PathBuf>,
    /// What becomes of a transfer when the application falls back
    #[arg(long, value_enum, default_value_t = Policy::Resume)]
    transfer: Policy,
    /// This interval instead of the planned one: seconds of computation, or as 10min
    #[arg(long, value_parser = units::seconds)]
    interval_seconds: Option<f64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Policy {
    /// Its progress falls back too (what the exact chain assumes)
    Tied,
    /// Its progress is kept (what Backstay does)
    Resume,
    /// It starts again from zero
    Restart,
}

#[derive(Debug, Serialize)]
struct Report {
    interval_seconds: f64,
    used_levels: Vec<usize>,
    between: Vec<u64>,
    job_seconds: f64,
    runs: u64,
    unfinished: u64,
    /// Efficiency that the exact chain expects for exponential failures and tied transfers.
    chain_efficiency: f64,
    mean_efficiency: f64,
    standard_error: f64,
    efficiency_p10: f64,
    efficiency_p50: f64,
    efficiency_p90: f64,
    wall_seconds_p10: f64,
    wall_seconds_p50: f64,
    wall_seconds_p90: f64,
    failures_per_run: Vec<f64>,
    intervals_played: u64,
}

/// Intervals one run may take, as a multiple of those it needs without failures.
const PATIENCE: f64 = 1000.0;

/// Runs the subcommand.
pub(crate) fn run(args: &SimulateArgs) -> ExitCode {
    match simulate(args) {
        Ok(report) => {
            if args.json {
                output::print_json(&report);
            } else {
                let text = text(&report);
                let lines: Vec<String> = text.lines().map(str::to_owned).collect();
                output::results(&lines);
            }
            ExitCode::SUCCESS
        }
        Err(error) => Failure::named("bad input", error).report(args.json),
    }
}

fn simulate(args: &SimulateArgs) -> Result<Report, String> {
    let job = args.job.resolve()?;
    if args.runs == 0 || args.runs > 10_000_000 {
        return Err(format!("runs = {}: allowed is 1 to 10000000", args.runs));
    }
    let problem = job.problem_of(&job.inputs).map_err(|e| e.to_string())?;
    let mut best = optimize(&problem).map_err(|e| e.to_string())?;
    if let Some(seconds) = args.interval_seconds {
        best.case = problem.case_at(&best.used_levels, seconds, &best.case.between);
        best.solution = solve(&best.case).map_err(|e| e.to_string())?;
    }
    let failures = failures(args, &best)?;
    let job_seconds = job.inputs.job_hours * 3600.0;
    let patience = PATIENCE * (1.0 + job_seconds / best.case.interval_seconds);
    let settings = Settings {
        failures,
        policy: match args.transfer {
            Policy::Tied => TransferPolicy::Tied,
            Policy::Resume => TransferPolicy::Resume,
            Policy::Restart => TransferPolicy::Restart,
        },
        seed: args.seed,
        interval_budget: whole(patience),
    };
    let played = runs(&best.case, &settings, job_seconds, args.runs).map_err(|e| e.to_string())?;
    report(&best, &played, job_seconds, args.runs)
}

fn failures(args: &SimulateArgs, best: &Best) -> Result<Failures, String> {
    if let Some(shape) = args.weibull {
        if !(0.05..=20.0).contains(&shape) {
            return Err(format!("weibull = {shape}: allowed is 0.05 to 20"));
        }
        return Ok(Failures::Weibull { shape });
    }
    let Some(path) = &args.failure_log else {
        return Ok(Failures::Exponential);
    };
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| named(&e))?;
    let mut log = FailureLog::from_csv(&text).map_err(|e| named(&e))?;
    // Levels that the plan leaves out are recovered at the next level that it uses.
    for (_, level) in &mut log.events {
        let place = best.used_levels.iter().position(|used| used >= level);
        *level = place.ok_or_else(|| named(&format!("level {level}: allowed is 1 to 3")))? + 1;
    }
    Ok(Failures::Log(log))
}

fn report(best: &Best, played: &Runs, job_seconds: f64, count: u64) -> Result<Report, String> {
    let mut wall = played.wall_seconds.clone();
    wall.sort_by(f64::total_cmp);
    let at = |share| quantile_of_sorted(&wall, share);
    let (Some(p10), Some(p50), Some(p90)) = (at(0.1), at(0.5), at(0.9)) else {
        return Err(format!(
            "none of {count} runs ended within {PATIENCE} times the useful time"
        ));
    };
    let ended = real(u64::try_from(wall.len()).unwrap_or(u64::MAX));
    let useful = |seconds: f64| job_seconds / seconds;
    let mean = wall.iter().map(|&seconds| useful(seconds)).sum::<f64>() / ended;
    let square = |seconds: &f64| (useful(*seconds) - mean).powi(2);
    let variance = wall.iter().map(square).sum::<f64>() / (ended - 1.0).max(1.0);
    Ok(Report {
        interval_seconds: best.case.interval_seconds,
        used_levels: best.used_levels.clone(),
        between: best.case.between.clone(),
        job_seconds,
        runs: count,
        unfinished: played.unfinished,
        chain_efficiency: best.solution.efficiency,
        mean_efficiency: mean,
        standard_error: (variance / ended).sqrt(),
        efficiency_p10: useful(p90),
        efficiency_p50: useful(p50),
        efficiency_p90: useful(p10),
        wall_seconds_p10: p10,
        wall_seconds_p50: p50,
        wall_seconds_p90: p90,
        failures_per_run: played
            .failures
            .iter()
            .map(|&n| real(n) / real(count))
            .collect(),
        intervals_played: played.intervals_played,
    })
}

fn text(report: &Report) -> String {
    let hours = |seconds: f64| seconds / 3600.0;
    let mut lines = vec![
        format!(
            "{} runs of {:.1} useful hours, a checkpoint every {:.0} s of computation",
            report.runs,
            hours(report.job_seconds),
            report.interval_seconds
        ),
        format!(
            "  efficiency  mean {:.4} +- {:.4}, 80 % of runs {:.3} to {:.3}",
            report.mean_efficiency,
            report.standard_error,
            report.efficiency_p10,
            report.efficiency_p90
        ),
        format!(
            "  exact chain {:.4} (exponential, tied, endless job)",
            report.chain_efficiency
        ),
        format!(
            "  wall time   {:.1} h, 80 % of runs {:.1} to {:.1} h",
            hours(report.wall_seconds_p50),
            hours(report.wall_seconds_p10),
            hours(report.wall_seconds_p90)
        ),
        format!(
            "  failures    {} per run, by level used",
            report
                .failures_per_run
                .iter()
                .map(|n| format!("{n:.2}"))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    ];
    if report.unfinished > 0 {
        lines.push(format!(
            "  {} runs did not end within {PATIENCE} times the useful time; the figures are of \
             the others",
            report.unfinished
        ));
    }
    lines.join("\n")
}

fn real(count: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "counts of runs and intervals")]
    let value = count as f64;
    value
}

fn whole(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and saturating is what is wanted"
    )]
    let count = value as u64;
    count
}
