// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay plan`: when to take which level, and what that is worth.
//!
//! Purpose: the best pattern for a job, its expected efficiency with a range, the bottleneck, what
//! would help, settings to paste, and pictures.
//! In from: flags, a TOML file, the metrics of a run.
//! Out to: standard output, as text or JSON; pictures beside it when asked for.
//! Invariants: exit code 0 with a plan, 1 for bad input; a target out of reach is said in the plan.

mod pictures;
mod settings;

use std::path::PathBuf;
use std::process::ExitCode;

use backstay_model::advice::{self, Losses, Required, WhatIf};
use backstay_model::human::Inputs;
use backstay_model::optimize::{Best, held, optimize};
use backstay_model::simulate::{Settings, TransferPolicy, periods};
use backstay_model::{Mode, ModelError};
use serde::Serialize;

use super::job::{Job, JobArgs};
use crate::output::{self, Failure};
use backstay_base::units;

/// Arguments of `backstay plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    job: JobArgs,
    /// Print the plan as JSON
    #[arg(long)]
    json: bool,
    /// Hold the interval at this instead of looking for the best one: seconds of computation, or as 10min
    #[arg(long, value_parser = units::seconds)]
    interval_seconds: Option<f64>,
    /// With a held interval: of so many checkpoints one goes to the archive
    #[arg(long, default_value_t = 1, requires = "interval_seconds")]
    archive_every: u64,
    /// Efficiency to ask the needed file-system bandwidth for, as a fraction
    #[arg(long, default_value_t = 0.9)]
    target: f64,
    /// How well the failure rates are known, as a number of failures seen
    #[arg(long, default_value_t = 10.0)]
    rates_from_failures: f64,
    /// Write pictures to STEM-interval.svg, .png and STEM-file-system.svg, .png
    #[arg(long, value_name = "STEM")]
    picture: Option<PathBuf>,
    /// Intervals to simulate for the difference that resumed transfers make
    #[arg(long, default_value_t = 300_000)]
    simulated_intervals: u64,
}

/// The plan as it is printed.
#[derive(Debug, Serialize)]
struct Report {
    interval_seconds: f64,
    intervals_per_period: u64,
    /// Checkpoints of level 1, 2 and 3 in one period.
    checkpoints_per_period: Vec<u64>,
    used_levels: Vec<usize>,
    between: Vec<u64>,
    period_seconds: f64,
    efficiency: f64,
    efficiency_low: f64,
    efficiency_high: f64,
    efficiency_range_share: f64,
    failures_per_second: Vec<f64>,
    /// Blocking time by level used; the top one is that of its blocking part.
    checkpoint_seconds: Vec<f64>,
    recovery_seconds: Vec<f64>,
    latency_seconds: Option<f64>,
    losses: LossReport,
    bottleneck: String,
    what_ifs: Vec<WhatIfReport>,
    target_efficiency: f64,
    /// File system rate that the target needs, in GB/s; null when no rate reaches it.
    required_file_system_gb_per_second: Option<f64>,
    /// Highest efficiency that any file system rate gives.
    ceiling_efficiency: f64,
    transfer: TransferReport,
    defaults: Vec<String>,
    /// Settings of this plan, as TOML for the file that `BACKSTAY_CONFIG` names.
    settings: String,
}

#[derive(Debug, Serialize)]
struct LossReport {
    checkpoints: f64,
    slowdown: f64,
    stall: f64,
    failures: f64,
}

#[derive(Debug, Serialize)]
struct WhatIfReport {
    change: &'static str,
    efficiency: f64,
    gain: f64,
}

impl From<WhatIf> for WhatIfReport {
    fn from(found: WhatIf) -> Self {
        Self {
            change: found.change,
            efficiency: found.efficiency,
            gain: found.gain,
        }
    }
}

/// The exact chain is for transfers tied to the application; Backstay's resume.
#[derive(Debug, Serialize)]
struct TransferReport {
    chain_is_for: &'static str,
    simulated_tied_efficiency: Option<f64>,
    simulated_resume_efficiency: Option<f64>,
    simulated_standard_error: Option<f64>,
}

const RANGE_SHARE: f64 = 0.8;
const RATE_MAX: f64 = 1e9;

/// Runs the subcommand.
pub(crate) fn run(args: &PlanArgs) -> ExitCode {
    let done = plan(args).and_then(|(job, best, report)| {
        if let Some(stem) = &args.picture {
            for file in pictures::draw(&job, &best, stem)? {
                output::complain(&format!("wrote {}.svg and .png", file.display()));
            }
        }
        if args.json {
            output::print_json(&report);
        } else {
            let text = text(&job, &report);
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            output::results(&lines);
        }
        Ok(())
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => Failure::named("bad input", error).report(args.json),
    }
}

fn plan(args: &PlanArgs) -> Result<(Job, Best, Report), String> {
    let words = |error: ModelError| error.to_string();
    if !(args.target > 0.0 && args.target < 1.0) {
        return Err(format!(
            "target = {}: allowed is above 0 and below 1",
            args.target
        ));
    }
    if !(args.rates_from_failures >= 0.01 && args.rates_from_failures <= 1e9) {
        let found = args.rates_from_failures;
        return Err(format!(
            "rates-from-failures = {found}: allowed is 0.01 to 1e9"
        ));
    }
    let job = args.job.resolve()?;
    let problem = job.problem_of(&job.inputs).map_err(words)?;
    let best = match args.interval_seconds {
        Some(seconds) => held(&problem, seconds, args.archive_every),
        None => optimize(&problem),
    };
    let best = best.map_err(words)?;
    let configured = job.inputs.problem().map_err(words)?;
    let known = job.posterior(&configured, args.rates_from_failures);
    let (low, high) = advice::efficiency_range(&problem, &best, &known, RANGE_SHARE, 1);
    let losses = advice::losses(&best.case).map_err(words)?;
    let to_problem = |inputs: &Inputs| job.problem_of(inputs);
    let what_ifs = advice::what_ifs(&job.inputs, &to_problem).map_err(words)?;
    let at_rate = |rate: f64| file_system_efficiency(&job, &job.inputs, rate);
    let required = advice::required(args.target, (1e-6, RATE_MAX), at_rate);
    let report = Report {
        interval_seconds: best.case.interval_seconds,
        intervals_per_period: best.solution.intervals,
        checkpoints_per_period: checkpoints_per_period(&best, problem.level_count()),
        used_levels: best.used_levels.clone(),
        between: best.case.between.clone(),
        period_seconds: best.solution.period_seconds,
        efficiency: best.solution.efficiency,
        efficiency_low: low,
        efficiency_high: high,
        efficiency_range_share: RANGE_SHARE,
        failures_per_second: problem.failures_per_second.clone(),
        checkpoint_seconds: blocking_seconds(&best),
        recovery_seconds: best.case.recovery_seconds.clone(),
        latency_seconds: latency(&best),
        bottleneck: bottleneck(&best, losses, &what_ifs),
        losses: LossReport {
            checkpoints: losses.checkpoints,
            slowdown: losses.slowdown,
            stall: losses.stall,
            failures: losses.failures,
        },
        what_ifs: what_ifs.into_iter().map(WhatIfReport::from).collect(),
        target_efficiency: args.target,
        required_file_system_gb_per_second: match required {
            Required::At(rate) => Some(rate),
            Required::NotReachable { .. } => None,
        },
        ceiling_efficiency: at_rate(RATE_MAX),
        transfer: simulate_transfer(&best, args.simulated_intervals),
        defaults: defaults(&job),
        settings: settings::toml(&job.inputs, &best),
    };
    Ok((job, best, report))
}

fn blocking_seconds(best: &Best) -> Vec<f64> {
    let mut seconds = best.case.checkpoint_seconds.clone();
    if let (Mode::NonBlocking(transfer), Some(top)) = (best.case.mode, seconds.last_mut()) {
        *top = transfer.top_checkpoint_seconds;
    }
    seconds
}

fn latency(best: &Best) -> Option<f64> {
    match best.case.mode {
        Mode::NonBlocking(transfer) => Some(transfer.latency_seconds),
        Mode::Blocking => None,
    }
}

/// Best efficiency of the job with another file system rate.
fn file_system_efficiency(job: &Job, inputs: &Inputs, gb_per_second: f64) -> f64 {
    let mut inputs = inputs.clone();
    inputs.file_system_gb_per_second = gb_per_second;
    let best = job
        .problem_of(&inputs)
        .and_then(|problem| optimize(&problem));
    best.map_or(0.0, |best| best.solution.efficiency)
}

fn checkpoints_per_period(best: &Best, levels: usize) -> Vec<u64> {
    let mut counts = vec![0; levels];
    let mut every = 1;
    let intervals = best.solution.intervals;
    for (place, &level) in best.used_levels.iter().enumerate() {
        let reached = intervals / every;
        let next = best
            .case
            .between
            .get(place)
            .map_or(intervals, |&count| every * (count + 1));
        let raised = if place + 1 == best.used_levels.len() {
            0
        } else {
            intervals / next
        };
        counts[level - 1] = reached - raised;
        every = next;
    }
    counts
}

fn bottleneck(best: &Best, losses: Losses, what_ifs: &[WhatIf]) -> String {
    let largest = what_ifs
        .iter()
        .find(|w| w.change != "half the node failures");
    let Some(first) = largest.filter(|w| w.gain >= 0.002) else {
        return "none: no faster part gains 0.2 points; failures themselves decide".to_owned();
    };
    let part = match first.change {
        "twice the file-system bandwidth" | "twice the compression" => "the file system",
        "twice the local write rate" => "writing to the node's own store",
        "twice the encoding rate" | "partner instead of XOR" => "encoding for the group",
        "half the changed fraction" => "the amount that changes",
        _ => "the slowdown while draining",
    };
    let wait = if losses.stall > 1e-6 {
        "; periods wait for the transfer"
    } else {
        ""
    };
    let filled = latency(best).map_or_else(String::new, |latency| {
        let share = 100.0 * latency / best.solution.period_seconds;
        format!("; a transfer is in flight {share:.0} % of the time")
    });
    format!(
        "{part} ({} gains {:.1} points{filled}{wait})",
        first.change,
        100.0 * first.gain
    )
}

fn simulate_transfer(best: &Best, intervals: u64) -> TransferReport {
    let play = |policy| {
        let settings = Settings {
            policy,
            interval_budget: intervals,
            seed: 1,
            ..Settings::default()
        };
        periods(&best.case, &settings, u64::MAX).ok()
    };
    let tied = play(TransferPolicy::Tied);
    let resume = play(TransferPolicy::Resume);
    TransferReport {
        chain_is_for: "tied: a transfer's progress falls back with the application",
        simulated_tied_efficiency: tied.map(|e| e.efficiency),
        simulated_resume_efficiency: resume.map(|e| e.efficiency),
        simulated_standard_error: resume
            .map(|e| e.efficiency * e.standard_error_seconds / e.mean_seconds),
    }
}

fn defaults(job: &Job) -> Vec<String> {
    Inputs::DEFAULTS
        .iter()
        .filter(|(name, _)| !job.given.contains(*name))
        .map(|(name, source)| format!("{name} = {source}"))
        .collect()
}

fn text(job: &Job, report: &Report) -> String {
    let mut lines = vec![format!(
        "Plan for {} with {} GB each",
        counted(job.inputs.nodes),
        job.inputs.state_gb_per_node
    )];
    let mut say = |name: &str, value: String| lines.push(format!("  {name:<22} {value}"));
    say(
        "checkpoint every",
        format!("{:.0} s of computation", report.interval_seconds),
    );
    let counts = &report.checkpoints_per_period;
    let names = ["level 1 (node)", "level 2 (group)"];
    let between: Vec<String> = counts
        .iter()
        .zip(names)
        .map(|(count, name)| format!("{count} of {name}"))
        .collect();
    say("between archived ones", between.join(", "));
    say(
        "period",
        format!("{:.0} s of wall time", report.period_seconds),
    );
    say(
        "expected efficiency",
        format!(
            "{:.3} (80 % between {:.3} and {:.3})",
            report.efficiency, report.efficiency_low, report.efficiency_high
        ),
    );
    let losses = &report.losses;
    say(
        "lost to",
        format!(
            "checkpoints {:.1} %, slowdown {:.1} %, stalls {:.1} %, failures {:.1} %",
            100.0 * losses.checkpoints,
            100.0 * losses.slowdown,
            100.0 * losses.stall,
            100.0 * losses.failures
        ),
    );
    say("bottleneck", report.bottleneck.clone());
    say(
        &format!("for {:.0} %", 100.0 * report.target_efficiency),
        target(report),
    );
    lines.push("What would help".to_owned());
    for what_if in &report.what_ifs {
        let gain = 100.0 * what_if.gain;
        lines.push(format!(
            "  {:<34} {:.3} ({gain:+.1} points)",
            what_if.change, what_if.efficiency
        ));
    }
    lines.extend(transfer_lines(&report.transfer));
    if !report.defaults.is_empty() {
        lines.push("Defaults used".to_owned());
        lines.extend(report.defaults.iter().map(|line| format!("  {line}")));
    }
    lines.push("Settings, for the file that BACKSTAY_CONFIG names".to_owned());
    lines.push(String::new());
    lines.push(report.settings.trim_end().to_owned());
    lines.join("\n")
}

fn counted(nodes: f64) -> String {
    let is_one = (nodes - 1.0).abs() < f64::EPSILON;
    format!("{nodes} node{}", if is_one { "" } else { "s" })
}

fn target(report: &Report) -> String {
    match report.required_file_system_gb_per_second {
        Some(rate) => format!("a file-system bandwidth of {rate:.3} GB/s is enough"),
        None => format!(
            "not reachable at any bandwidth: the ceiling is {:.3}",
            report.ceiling_efficiency
        ),
    }
}

fn transfer_lines(transfer: &TransferReport) -> Vec<String> {
    let mut lines = vec![format!(
        "The exact chain is for transfers {}",
        transfer.chain_is_for
    )];
    if let (Some(tied), Some(resume), Some(error)) = (
        transfer.simulated_tied_efficiency,
        transfer.simulated_resume_efficiency,
        transfer.simulated_standard_error,
    ) {
        lines.push(format!(
            "  simulated: tied {tied:.3}, resumed {resume:.3} ({:+.1} points, standard error {:.1})",
            100.0 * (resume - tied),
            100.0 * error
        ));
    }
    lines
}
