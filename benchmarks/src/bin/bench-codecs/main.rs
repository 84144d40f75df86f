// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What compression reaches on checkpoints of real programs: ratios of variables beside other
//! compressors on the same bytes, of whole checkpoints beside Zstandard, speed of decoding, and the
//! studies of mcrEngine.
//!
//! `--data FOLDER` keeps the checkpoints; `--python FILE` is a Python with the packages of
//! benchmarks/rivals/requirements.txt; `--rivals FILE` takes what an earlier run of the script found;
//! `--case NAMES` measures these cases only; `--figures` leaves the studies out. Figures of a run
//! that is `--quick`, or of some cases, are no results.

mod merged;
mod ours;
mod rivals;
mod variables;
mod wholes;

use backstay_bench::Outcome;
use backstay_bench::compression::page::is_weight;
use backstay_bench::compression::report::{CourseRow, HistoryRow, Report, VariableRow, geometric};
use backstay_bench::datasets::files::{Checkpoint, prepare};
use backstay_bench::datasets::{CASES, Case};
use backstay_bench::figures::{Better, Figure, Figures, Wanted, columns, say, short};
use backstay_bench::job::cpu_seconds;
use backstay_bench::machine;
use ours::{Stage, Totals};
use rivals::Rival;
use std::path::PathBuf;

const RANKS: usize = 32;
/// The checkpoint of the course that is looked at closely.
const PLACE: usize = 3;
const REPORT: &str = "target/bench/codecs-report.json";

struct Asked {
    quick: bool,
    figures: bool,
    data: PathBuf,
    python: Option<PathBuf>,
    rivals: Option<PathBuf>,
    case: Option<String>,
}

impl Asked {
    fn from_arguments() -> Outcome<Self> {
        let mut asked = Self {
            quick: false,
            figures: false,
            data: PathBuf::from("target/bench/datasets"),
            python: None,
            rivals: None,
            case: None,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            if word == "--quick" {
                asked.quick = true;
                continue;
            }
            if word == "--figures" {
                asked.figures = true;
                continue;
            }
            let value = words.next().ok_or(format!("{word}: what does it say?"))?;
            match word.as_str() {
                "--data" => asked.data = value.into(),
                "--python" => asked.python = Some(value.into()),
                "--rivals" => asked.rivals = Some(value.into()),
                "--case" => asked.case = Some(value),
                _ => return Err(format!("{word} is not known").into()),
            }
        }
        if asked.quick {
            asked.data.push("quick");
        }
        Ok(asked)
    }
}

fn main() -> Outcome<()> {
    let asked = Asked::from_arguments()?;
    let chosen = |case: &Case| {
        asked
            .case
            .as_ref()
            .is_none_or(|names| names.split(',').any(|n| n == case.name))
    };
    let cases: Vec<Case> = CASES.into_iter().filter(chosen).collect();
    for case in &cases {
        prepare(case, &asked.data.join(case.name), asked.quick, RANKS)?;
    }
    let others = others(&asked)?;
    let mut report = Report {
        machine: machine::name(),
        commit: machine::commit(),
        quick: asked.quick,
        ..Report::default()
    };
    let mut all = Totals::default();
    for case in &cases {
        let start = cpu_seconds();
        measure(case, &asked, &others, &mut report, &mut all)?;
        keep(&report)?;
        say(&format!("{}: {:.0} s", case.name, cpu_seconds() - start));
    }
    let figures = figures(&report, &all);
    say(&variable_table(&report));
    say(&figures.table());
    say(&format!("written: {}", figures.write()?.display()));
    say(&format!("written: {REPORT}"));
    Ok(())
}

/// Writes what was found so far.
fn keep(report: &Report) -> Outcome<()> {
    std::fs::create_dir_all("target/bench")?;
    Ok(std::fs::write(
        REPORT,
        serde_json::to_string_pretty(report)? + "\n",
    )?)
}

/// What other compressors made of the variables; nothing where there is no Python.
fn others(asked: &Asked) -> Outcome<Vec<Rival>> {
    if let Some(path) = &asked.rivals {
        return rivals::read(path);
    }
    let Some(python) = &asked.python else {
        say("without other compressors: say --python FILE");
        return Ok(Vec::new());
    };
    let out = asked.data.join("rivals.json");
    rivals::run(python, &asked.data, &out, PLACE, asked.quick)?;
    rivals::read(&out)
}

fn measure(
    case: &Case,
    asked: &Asked,
    others: &[Rival],
    report: &mut Report,
    all: &mut Totals,
) -> Outcome<()> {
    let folder = asked.data.join(case.name);
    let manifest = prepare(case, &folder, asked.quick, RANKS)?;
    let mut stage = Stage::new();
    let mut course = CourseRow {
        case: case.name.to_owned(),
        ratios: Vec::new(),
    };
    let mut before: Option<(&Checkpoint, _)> = None;
    for checkpoint in &manifest.checkpoints {
        let state = checkpoint.read(&folder)?;
        stage.forget();
        if checkpoint.close {
            if let Some((earlier, old)) = &before {
                let steps = [checkpoint.step, checkpoint.step - earlier.step];
                let rows = variables::history(&mut stage, case.name, [old, &state], steps)?;
                report.history.extend(rows);
            }
            continue;
        }
        if !asked.figures {
            wholes::course(&mut stage, &mut course, checkpoint.step, &state)?;
        }
        if checkpoint.place == PLACE {
            let rows = variables::rows(&mut stage, case.name, &state, others)?;
            report.variables.extend(rows);
            let totals = if asked.figures {
                wholes::figures(&mut stage, case.name, &state, report)?
            } else {
                wholes::measure(&mut stage, case.name, &state, report)?
            };
            all.encoded += totals.encoded;
            all.decode_seconds += totals.decode_seconds;
        }
        before = Some((checkpoint, state));
    }
    if !asked.figures {
        report.course.push(course);
    }
    Ok(())
}

const fn at_least(id: &'static str, what: &'static str, unit: &'static str, reach: f64) -> Wanted {
    Wanted {
        better: Better::Higher,
        ..Wanted::at_most(id, what, unit, reach)
    }
}

fn figures(report: &Report, all: &Totals) -> Figures {
    let mut figures = Figures::new("codecs");
    over_others(report, &mut figures);
    let weights = gain(&report.history, is_weight);
    let heat = gain(&report.history, |row| row.variable == "temperature");
    let what = "ratio with history over without, weights";
    let wanted = at_least("codecs.history.weights", what, "ratio", 1.5);
    push(&mut figures, &wanted, weights);
    let what = "ratio with history over without, temperature";
    let wanted = Wanted::shown("codecs.history.heat", what, "ratio", Better::Higher);
    push(&mut figures, &wanted, heat);
    let rows = &report.checkpoints;
    let what = "whole checkpoints over concatenate + zstd -3";
    let wanted = at_least("codecs.checkpoints.over_agnostic", what, "ratio", 1.4);
    let ratios = rows.iter().map(|row| row.ours / row.agnostic);
    push(&mut figures, &wanted, geometric(ratios));
    let what = "the same, equal blocks stored each time";
    let id = "codecs.checkpoints.over_agnostic.every_block";
    let wanted = Wanted::shown(id, what, "ratio", Better::Higher);
    let ratios = rows.iter().map(|row| row.every_block / row.agnostic);
    push(&mut figures, &wanted, geometric(ratios));
    let what = "decoding of whole checkpoints, one core";
    let wanted = at_least("codecs.decode", what, "GB/s", 1.0);
    let rate = (all.decode_seconds > 0.0).then(|| all.decode_gb_s());
    push(&mut figures, &wanted, rate);
    by_case(report, &mut figures);
    figures
}

fn push(figures: &mut Figures, wanted: &Wanted, value: Option<f64>) {
    let values: Vec<f64> = value.into_iter().collect();
    figures.push(Figure::of(wanted, &values));
}

/// Variables beside other compressors.
fn over_others(report: &Report, figures: &mut Figures) {
    let over = |fast: bool| -> Vec<f64> {
        let one = |row: &VariableRow| {
            let best = if fast { &row.best_fast } else { &row.best };
            best.as_ref().map(|best| row.ours.ratio / best.ratio)
        };
        report.variables.iter().filter_map(one).collect()
    };
    let least = |values: &[f64]| values.iter().copied().min_by(f64::total_cmp);
    let same = "the same, least variable";
    let (fast, any) = (over(true), over(false));
    let what = "ratio over the best that decodes 1 GB/s, mean";
    let mean = at_least("codecs.variables.over_fast", what, "ratio", 0.98);
    push(figures, &mean, geometric(fast.clone()));
    let lowest = at_least("codecs.variables.over_fast.least", same, "ratio", 0.98);
    push(figures, &lowest, least(&fast));
    let what = "ratio over the best of any, mean";
    let mean = at_least("codecs.variables.over_any", what, "ratio", 0.9);
    push(figures, &mean, geometric(any.clone()));
    let lowest = at_least("codecs.variables.over_any.least", same, "ratio", 0.9);
    push(figures, &lowest, least(&any));
}

fn by_case(report: &Report, figures: &mut Figures) {
    for row in &report.checkpoints {
        let case = &row.case;
        let over = format!("{case}: {} over {}", short(row.ours), short(row.agnostic));
        let id = format!("codecs.checkpoints.{case}.over_agnostic");
        let mut show = |id: String, what: String, unit: &str, value: f64| {
            figures.push(Figure::shown(id, what, unit, Better::Higher, &[value]));
        };
        show(id, over, "ratio", row.ours / row.agnostic);
        let what = format!("{case}: decoding, one core");
        show(
            format!("codecs.decode.{case}"),
            what,
            "GB/s",
            row.decode_gb_s,
        );
        let what = format!("{case}: encoding, one core");
        show(
            format!("codecs.encode.{case}"),
            what,
            "MB/s",
            row.encode_mb_s,
        );
    }
}

/// The mean gain of some variables.
fn gain(rows: &[HistoryRow], chosen: impl Fn(&HistoryRow) -> bool) -> Option<f64> {
    let rows = rows.iter().filter(|&row| chosen(row));
    geometric(rows.map(|row| row.with / row.without))
}

/// All variables, for people.
fn variable_table(report: &Report) -> String {
    let head = [
        "case",
        "variable",
        "ours",
        "GB/s",
        "best fast",
        "",
        "over",
        "best",
        "",
        "over",
        "scheme",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for row in &report.variables {
        let mut cells = vec![
            row.case.clone(),
            row.variable.clone(),
            format!("{:.3}", row.ours.ratio),
            format!("{:.2}", row.ours.decode_gb_s),
        ];
        for best in [&row.best_fast, &row.best] {
            let best = best.clone().unwrap_or_default();
            cells.push(best.method);
            cells.push(format!("{:.3}", best.ratio));
            cells.push(format!("{:.3}", row.ours.ratio / best.ratio));
        }
        cells.push(row.ours.method.clone());
        rows.push(cells);
    }
    let mut text = columns(&rows);
    let head = [
        "case", "variable", "step", "apart", "without", "with", "gain", "scheme",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for row in &report.history {
        rows.push(vec![
            row.case.clone(),
            row.variable.clone(),
            row.step.to_string(),
            row.apart.to_string(),
            format!("{:.3}", row.without),
            format!("{:.3}", row.with),
            format!("{:.3}", row.with / row.without),
            row.scheme.clone(),
        ]);
    }
    text += "\n";
    text += &columns(&rows);
    text
}
