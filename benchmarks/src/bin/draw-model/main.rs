// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes docs/model.md with its tables and pictures: FOLDER COSTS.
//!
//! Purpose: figures 13, 14 and 15 of the non-blocking checkpointing paper from our model, its claims
//! beside what the model gives, and what Backstay's ways of draining add.
//! In from: the paper's parameters; Backstay's own costs from a results file where there is one.
//! Out to: the folder of the documentation.
//! Invariants: the same commit gives the same text and pictures; nothing that is not measured is
//! called measured.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use backstay_model::advice::{Required, required};
use backstay_model::differential::{ChangedShare, Differential, Hashing};
use backstay_model::human::TABLE_I_PER_SECOND;
use backstay_model::optimize::{Best, Bounds, Problem, optimize};
use backstay_model::simulate::{Settings, TransferPolicy, periods};
use backstay_model::{Completion, Mode, Transfer};

use backstay_bench::Outcome;
use backstay_bench::figures::say;

mod pictures;

const TEMPLATE: &str = include_str!("page.md.in");

/// The paper's machine: section VI with table I.
#[derive(Debug, Clone, Copy)]
struct Machine {
    failure_factor: f64,
    /// Factor on the cost of the file system's checkpoints (their size over the rate).
    cost_factor: f64,
    gb_per_second: f64,
    slowdown_share: f64,
    encode_seconds: f64,
    recover_seconds: f64,
    blocking: bool,
    completion: Completion,
    /// Share that changes, hash time and compression; `None` for the paper's full checkpoints.
    backstay: Option<Costs>,
}

/// Costs of Backstay that the paper's system does not have.
#[derive(Debug, Clone, Copy)]
struct Costs {
    changed_share: f64,
    hash_gb_per_second: f64,
    compression_ratio: f64,
}

const GB_PER_NODE: f64 = 29.0;
const NODES: f64 = 1408.0;
/// 29 GB at 400 MB/s.
const ENCODE_SECONDS: f64 = 72.5;
/// Rate beyond which the file system costs nothing.
const NO_LIMIT: f64 = 1e9;

impl Machine {
    const PAPER: Self = Self {
        failure_factor: 1.0,
        cost_factor: 1.0,
        gb_per_second: 6.7,
        slowdown_share: 0.00184,
        encode_seconds: ENCODE_SECONDS,
        recover_seconds: ENCODE_SECONDS,
        blocking: false,
        completion: Completion::State,
        backstay: None,
    };

    fn problem(&self) -> Problem {
        let ratio = self.backstay.map_or(1.0, |costs| costs.compression_ratio);
        let archive = self.cost_factor * GB_PER_NODE * NODES / self.gb_per_second / ratio;
        let mode = if self.blocking {
            Mode::Blocking
        } else {
            Mode::NonBlocking(Transfer {
                slowdown_share: self.slowdown_share,
                latency_seconds: archive,
                top_checkpoint_seconds: self.encode_seconds,
                completion: self.completion,
            })
        };
        let low = TABLE_I_PER_SECOND[0] * self.failure_factor;
        let high = TABLE_I_PER_SECOND[1..].iter().sum::<f64>() * self.failure_factor;
        Problem {
            failures_per_second: vec![low, high],
            checkpoint_seconds: vec![self.encode_seconds, archive],
            recovery_seconds: vec![self.recover_seconds, archive],
            recovers_by_failure: false,
            mode,
            differential: self.backstay.map(|costs| Differential {
                changed: ChangedShare::Constant(costs.changed_share),
                hash_seconds: GB_PER_NODE / costs.hash_gb_per_second,
                hashing: Hashing::Once,
                drains_changes_only: true,
            }),
            bounds: Bounds::default(),
        }
    }

    fn best(&self) -> Result<Best, String> {
        optimize(&self.problem()).map_err(|e| e.to_string())
    }

    /// The best efficiency; 0 where the job would never end.
    fn efficiency(&self) -> f64 {
        self.best().map_or(0.0, |best| best.solution.efficiency)
    }

    fn at(&self, failure_factor: f64, cost_factor: f64) -> Self {
        Self {
            failure_factor,
            cost_factor,
            ..*self
        }
    }

    fn blocking(&self) -> Self {
        Self {
            blocking: true,
            ..*self
        }
    }

    /// Efficiency when the file system costs nothing at all.
    fn ceiling(&self) -> f64 {
        Self {
            gb_per_second: NO_LIMIT,
            ..*self
        }
        .efficiency()
    }

    /// File system rate that the efficiency needs, in GB/s.
    fn required(&self, target: f64) -> Option<f64> {
        let at = |rate| {
            Self {
                gb_per_second: rate,
                ..*self
            }
            .efficiency()
        };
        match required(target, (0.01, 1e6), at) {
            Required::At(rate) => Some(rate),
            Required::NotReachable { .. } => None,
        }
    }
}

/// Values of the template by name.
type Values = BTreeMap<&'static str, String>;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, costs] = &words[..] else {
        return Err("say FOLDER COSTS".into());
    };
    say(&write(Path::new(folder), Some(Path::new(costs)))?);
    Ok(())
}

/// Writes `model.md` and `figures/*` into the folder.
fn write(out: &Path, costs_file: Option<&Path>) -> Result<String, String> {
    let folder = out.join("figures");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut values = Values::new();
    figure_13(&folder, &mut values)?;
    figure_14(&folder, &mut values)?;
    figure_15(&folder, &mut values)?;
    sensitivity(&mut values)?;
    claims(&mut values);
    walls(&mut values);
    let (costs, source) = own_costs(costs_file)?;
    values.insert("costs_source", source);
    own_figures(&folder, costs, &mut values)?;
    let mut text = TEMPLATE.to_owned();
    for (name, value) in &values {
        text = text.replace(&format!("{{{{{name}}}}}"), value.trim_end());
    }
    if let Some((_, rest)) = text.split_once("{{") {
        let name = rest.split("}}").next().unwrap_or(rest);
        return Err(format!("docs/model.md: nothing to put in for {name}"));
    }
    let path = out.join("model.md");
    std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(format!("wrote {} and {}", path.display(), folder.display()))
}

/// An efficiency for a table; tiny ones keep their order of magnitude.
fn shown(efficiency: f64) -> String {
    if efficiency < 0.001 {
        format!("{efficiency:.0e}")
    } else {
        format!("{efficiency:.3}")
    }
}

/// A gain for a table; beyond 100 it says nothing any more.
fn shown_gain(gain: f64) -> String {
    if gain > 100.0 {
        "over 100x".to_owned()
    } else {
        format!("{gain:.2}x")
    }
}

fn figure_13(folder: &Path, values: &mut Values) -> Result<(), String> {
    let mut table = String::from(
        "| failures | PFS cost | blocking | non-blocking | gain | interval | level-1 between |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for failures in [1.0, 2.0, 10.0] {
        for cost in [1.0, 2.0, 10.0] {
            let machine = Machine::PAPER.at(failures, cost);
            let blocking = machine.blocking().efficiency();
            let best = machine.best()?;
            let efficiency = best.solution.efficiency;
            let between = best.case.between.first().map_or(0, |&v| v);
            let _infallible = writeln!(
                table,
                "| {failures}x | {cost}x | {} | {} | {} | {:.0} s | {between} |",
                shown(blocking),
                shown(efficiency),
                shown_gain(efficiency / blocking),
                best.case.interval_seconds,
            );
        }
    }
    values.insert("figure_13", table);
    pictures::figure_13(folder)
}

fn figure_14(folder: &Path, values: &mut Values) -> Result<(), String> {
    let mut table = String::from(
        "| failures | PFS cost | blocking | non-blocking at alpha 0.00184 | blocking is better from alpha |\n\
         |---|---|---|---|---|\n",
    );
    let pairs = [
        (1.0, 1.0),
        (2.0, 2.0),
        (10.0, 1.0),
        (1.0, 10.0),
        (10.0, 10.0),
    ];
    for (failures, cost) in pairs {
        let machine = Machine::PAPER.at(failures, cost);
        let blocking = machine.blocking().efficiency();
        let with = |slowdown_share| {
            Machine {
                slowdown_share,
                ..machine
            }
            .efficiency()
        };
        let crossing = crossing(0.0, 100.0, |alpha| with(alpha) < blocking);
        let crossing = crossing.map_or("never".to_owned(), |alpha| format!("{alpha:.2}"));
        let _infallible = writeln!(
            table,
            "| {failures}x | {cost}x | {} | {} | {crossing} |",
            shown(blocking),
            shown(with(0.00184)),
        );
    }
    values.insert("figure_14", table);
    pictures::figure_14(folder)
}

fn figure_15(folder: &Path, values: &mut Values) -> Result<(), String> {
    let mut table = String::from(
        "| failures | 90 % | 80 % | 70 % | 90 % blocking | 80 % blocking | 70 % blocking | ceiling |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let shown = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.2}"));
    for factor in [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0] {
        let machine = Machine::PAPER.at(factor, 1.0);
        let mut row = format!("| {factor}x |");
        for machine in [machine, machine.blocking()] {
            for target in [0.9, 0.8, 0.7] {
                let _infallible = write!(row, " {} |", shown(machine.required(target)));
            }
        }
        let _infallible = writeln!(table, "{row} {:.3} |", machine.ceiling());
    }
    values.insert("figure_15", table);
    pictures::figure_15(folder)
}

fn sensitivity(values: &mut Values) -> Result<(), String> {
    let mut table = String::from(
        "| r_1 | rate | 1x, 1x | 2x, 2x | 10x, 10x | ceiling at 4x | ceiling at 16x |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for recover_seconds in [0.0, 36.25, ENCODE_SECONDS, 145.0] {
        for gb_per_second in [6.4, 6.7] {
            let base = Machine {
                gb_per_second,
                recover_seconds,
                ..Machine::PAPER
            };
            let mut row = format!("| {recover_seconds} s | {gb_per_second} GB/s |");
            for factor in [1.0, 2.0, 10.0] {
                let best = base.at(factor, factor).best()?;
                let _infallible = write!(row, " {:.3} |", best.solution.efficiency);
            }
            let (four, sixteen) = (base.at(4.0, 1.0).ceiling(), base.at(16.0, 1.0).ceiling());
            let _infallible = writeln!(table, "{row} {four:.3} | {sixteen:.3} |");
        }
    }
    values.insert("sensitivity", table);
    Ok(())
}

/// The least value between the bounds for which something holds, by bisection; it must go on to
/// hold for all larger ones.
fn crossing(low: f64, high: f64, holds: impl Fn(f64) -> bool) -> Option<f64> {
    if !holds(high) {
        return None;
    }
    let (mut low, mut high) = (low, high);
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

fn claims(values: &mut Values) {
    let paper = Machine::PAPER;
    let combinations = [1.0, 2.0, 10.0].map(|f| [1.0, 2.0, 10.0].map(|c| paper.at(f, c)));
    let gains: Vec<f64> = combinations
        .iter()
        .flatten()
        .map(|m| m.efficiency() / m.blocking().efficiency())
        .collect();
    let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
    // Where neither way gets anywhere a ratio says nothing.
    let sensible = gains.iter().copied().filter(|&gain| gain < 100.0);
    let most = sensible.fold(0.0, f64::max);
    values.insert("gain_least", format!("{least:.2}"));
    values.insert("gain_most", format!("{most:.2}"));
    let worst = paper.at(10.0, 10.0);
    values.insert("worst", shown(worst.efficiency()));
    values.insert("worst_blocking", shown(worst.blocking().efficiency()));
    let middle: Vec<String> = gains.iter().map(|&gain| shown_gain(gain)).collect();
    values.insert("gains", middle.join(", "));
    let half_rate = paper.at(1.0, 2.0).efficiency();
    values.insert("half_rate", format!("{half_rate:.3}"));
    values.insert("half_rate_holds", verdict(half_rate >= 0.9));
    values.insert(
        "ceiling_16",
        format!("{:.3}", paper.at(16.0, 1.0).ceiling()),
    );
    values.insert("seventy_16", rate(paper.at(16.0, 1.0).required(0.7)));
    values.insert("eighty_4", rate(paper.at(4.0, 1.0).required(0.8)));
    values.insert(
        "eighty_4_blocking",
        rate(paper.at(4.0, 1.0).blocking().required(0.8)),
    );
    let (ours, theirs) = (paper.at(4.0, 1.0), paper.at(4.0, 1.0).blocking());
    let (ratio, holds) = match (ours.required(0.8), theirs.required(0.8)) {
        (Some(ours), Some(theirs)) => {
            (format!("{:.1} times", theirs / ours), theirs >= 10.0 * ours)
        }
        (Some(_), None) => ("blocking does not reach it".to_owned(), true),
        _ => ("not reached".to_owned(), false),
    };
    values.insert(
        "eighty_4_holds",
        if holds { "yes" } else { "nearly" }.to_owned(),
    );
    values.insert("eighty_4_ratio", ratio);
    values.insert("ninety_1_blocking", rate(paper.blocking().required(0.9)));
}

fn verdict(holds: bool) -> String {
    if holds { "yes" } else { "**no**" }.to_owned()
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or("not reachable at any rate".to_owned(), |rate| {
        format!("{rate:.1} GB/s")
    })
}

/// Where targets stop being reachable, and what it would take to move that.
fn walls(values: &mut Values) {
    let paper = Machine::PAPER;
    let wall = |target: f64, machine: Machine| {
        let below = |factor: f64| machine.at(factor, 1.0).ceiling() < target;
        crossing(1.0, 64.0, below).map_or(f64::NAN, |factor| factor)
    };
    values.insert("wall_90", format!("{:.2}", wall(0.9, paper)));
    values.insert("wall_80", format!("{:.2}", wall(0.8, paper)));
    values.insert("wall_70", format!("{:.2}", wall(0.7, paper)));
    let free = Machine {
        recover_seconds: 0.0,
        ..paper
    };
    values.insert("wall_90_free", format!("{:.2}", wall(0.9, free)));
    values.insert("wall_80_free", format!("{:.2}", wall(0.8, free)));
    let continuous = Machine {
        completion: Completion::Continuous,
        ..paper
    };
    values.insert(
        "wall_90_continuous",
        format!("{:.2}", wall(0.9, continuous)),
    );
    values.insert(
        "wall_80_continuous",
        format!("{:.2}", wall(0.8, continuous)),
    );
    values.insert(
        "ceiling_16_continuous",
        format!("{:.3}", continuous.at(16.0, 1.0).ceiling()),
    );
    let ceilings: Vec<String> = [3.0, 4.0, 5.0]
        .iter()
        .map(|&f| format!("{:.3}", paper.at(f, 1.0).ceiling()))
        .collect();
    values.insert("ceiling_3", ceilings[0].clone());
    values.insert("ceiling_4", ceilings[1].clone());
    values.insert("ceiling_5", ceilings[2].clone());
    // The encoding time (and the recovery, equal to it) with which the paper's statements hold.
    let needed = |target: f64, factor: f64| {
        let below = |seconds: f64| {
            let machine = Machine {
                encode_seconds: seconds,
                recover_seconds: seconds,
                ..paper.at(factor, 1.0)
            };
            machine.ceiling() < target
        };
        crossing(0.0, ENCODE_SECONDS, below).map_or(f64::NAN, |seconds| seconds)
    };
    let (sixteen, five) = (needed(0.8, 16.0), needed(0.9, 5.0));
    values.insert("needed_16", format!("{sixteen:.0} s"));
    values.insert(
        "needed_16_rate",
        format!("{:.2} GB/s", GB_PER_NODE / sixteen),
    );
    values.insert("needed_5", format!("{five:.0} s"));
    values.insert("needed_5_rate", format!("{:.2} GB/s", GB_PER_NODE / five));
}

/// Backstay's own costs: from a results file, or assumed.
fn own_costs(file: Option<&Path>) -> Result<(Costs, String), String> {
    let assumed = Costs {
        changed_share: 0.3,
        hash_gb_per_second: 11.7,
        compression_ratio: 1.5,
    };
    let Some(path) = file.filter(|path| path.exists()) else {
        let source = "There is no results file yet, so these are **assumed** parameters and not \
                      measurements: 30 % of the state changes between checkpoints, the archive \
                      compresses 1.5 times. The hash rate, 11.7 GB/s (XXH3-128), was measured on a \
                      2-core AMD EPYC machine.";
        return Ok((assumed, source.to_owned()));
    };
    let named = |what: &str| format!("{}: {what}", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| named(&e.to_string()))?;
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| named(&e.to_string()))?;
    let number = |key: &str| {
        json[key]
            .as_f64()
            .ok_or_else(|| named(&format!("{key} is missing")))
    };
    let costs = Costs {
        changed_share: number("changed_share")?,
        hash_gb_per_second: number("hash_gb_per_second")?,
        compression_ratio: number("compression_ratio")?,
    };
    let source = format!(
        "Measured, from {}: changed fraction {}, hashing {} GB/s, compression {} times.",
        path.display(),
        costs.changed_share,
        costs.hash_gb_per_second,
        costs.compression_ratio
    );
    Ok((costs, source))
}

/// Ways of draining, by name.
type Ways = [(&'static str, Machine); 3];

const OWN_FACTORS: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];

fn own_figures(folder: &Path, costs: Costs, values: &mut Values) -> Result<(), String> {
    let plain = Machine::PAPER;
    let differential = Costs {
        compression_ratio: 1.0,
        ..costs
    };
    let ways = [
        ("full checkpoints (the paper)", plain),
        (
            "differential",
            Machine {
                backstay: Some(differential),
                ..plain
            },
        ),
        (
            "differential and compressed",
            Machine {
                backstay: Some(costs),
                ..plain
            },
        ),
    ];
    own_tables(&ways, values)?;
    pictures::own(folder, &ways, costs)
}

fn own_tables(ways: &Ways, values: &mut Values) -> Result<(), String> {
    let mut table = String::from(
        "| failures | full | differential | and compressed | resumed instead of tied (simulated) |\n\
         |---|---|---|---|---|\n",
    );
    let mut rates = String::from(
        "| failures | full | differential | and compressed |\n\
         |---|---|---|---|\n",
    );
    for factor in OWN_FACTORS {
        let mut row = format!("| {factor}x |");
        let mut needs = row.clone();
        for (_, machine) in ways {
            let machine = machine.at(factor, 1.0);
            let _infallible = write!(row, " {} |", shown(machine.efficiency()));
            let _infallible = write!(needs, " {} |", rate(machine.required(0.8)));
        }
        let _infallible = writeln!(table, "{row} {} |", resumed(&ways[0].1.at(factor, 1.0))?);
        let _infallible = writeln!(rates, "{needs}");
    }
    values.insert("own_efficiency", table);
    values.insert("own_rates", rates);
    Ok(())
}

/// Efficiency with resumed, tied and restarted transfers, simulated at the best pattern.
fn resumed(machine: &Machine) -> Result<String, String> {
    let best = machine.best()?;
    let play = |policy| {
        let settings = Settings {
            policy,
            interval_budget: 2_000_000,
            seed: 5,
            ..Settings::default()
        };
        periods(&best.case, &settings, u64::MAX).map_err(|e| e.to_string())
    };
    let tied = play(TransferPolicy::Tied)?;
    let resume = play(TransferPolicy::Resume)?;
    let restart = play(TransferPolicy::Restart)?;
    let error = resume.efficiency * resume.standard_error_seconds / resume.mean_seconds;
    Ok(format!(
        "{:.3} instead of {:.3}; restarted {:.3} (+- {error:.4})",
        resume.efficiency, tied.efficiency, restart.efficiency
    ))
}
