// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one variable at a time: without history beside other compressors, and with it.
//! In from: data sets. Out to: rows of the report.
//! Invariants: a variable that is the same on all ranks is taken once; small ones are left out.

use crate::ours::{Stage, Way};
use crate::rivals::{self, Rival};
use backstay_archive::aggregate::{Merge, Options};
use backstay_bench::Outcome;
use backstay_bench::compression::report::{HistoryRow, VariableRow};
use backstay_bench::datasets::{State, Variable};

/// Variables with fewer bytes are left out.
pub(crate) const SMALL: usize = 64 << 10;

/// Each large variable by itself.
fn apart(state: &State) -> Vec<State> {
    let names = state
        .first()
        .into_iter()
        .flatten()
        .map(|variable| &variable.descriptor.name);
    let mut found = Vec::new();
    for name in names {
        let of_rank = |rank: &Vec<Variable>| -> Vec<Variable> {
            let mine = rank
                .iter()
                .filter(|variable| variable.descriptor.name == *name);
            mine.cloned().collect()
        };
        let mut alone: State = state.iter().map(of_rank).collect();
        if alone.iter().all(|rank| rank.first() == alone[0].first()) {
            alone.truncate(1);
        }
        if size(&alone) >= SMALL {
            found.push(alone);
        }
    }
    found
}

fn size(state: &State) -> usize {
    state
        .iter()
        .flatten()
        .map(|variable| variable.bytes.len())
        .sum()
}

fn name(alone: &State) -> Option<&Variable> {
    alone.first()?.first()
}

fn way(timed: bool) -> Way {
    Way {
        options: Options {
            merge: Merge::Concatenate,
            small_bytes: 0,
            ..Options::default()
        },
        once: false,
        second: None,
        sticky: false,
        timed,
    }
}

/// Rows of a checkpoint's variables, beside what others made of them.
pub(crate) fn rows(
    stage: &mut Stage,
    case: &str,
    state: &State,
    others: &[Rival],
) -> Outcome<Vec<VariableRow>> {
    let mut rows = Vec::new();
    for alone in apart(state) {
        let Some(first) = name(&alone) else { continue };
        let variable = &first.descriptor.name;
        let totals = stage.store(&alone, None, way(true))?;
        let bytes = totals.bytes as u64;
        let [best_fast, best] = rivals::best(others, case, variable, bytes);
        rows.push(VariableRow {
            case: case.to_owned(),
            variable: variable.clone(),
            element: first.descriptor.element.name().to_owned(),
            bytes,
            ours: totals.reached(),
            best_fast,
            best,
        });
    }
    Ok(rows)
}

/// Rows of the variables of a checkpoint that was taken `apart_steps` steps after another one.
pub(crate) fn history(
    stage: &mut Stage,
    case: &str,
    [earlier, later]: [&State; 2],
    [step, steps_between]: [u64; 2],
) -> Outcome<Vec<HistoryRow>> {
    let mut rows = Vec::new();
    for alone in apart(later) {
        let Some(first) = name(&alone) else { continue };
        let sticky = Way {
            sticky: true,
            ..way(false)
        };
        stage.forget();
        let without = stage.store(&alone, None, sticky)?;
        stage.forget();
        let with = stage.store(&alone, Some(earlier), sticky)?;
        rows.push(HistoryRow {
            case: case.to_owned(),
            variable: first.descriptor.name.clone(),
            element: first.descriptor.element.name().to_owned(),
            step,
            apart: steps_between,
            without: without.ratio(),
            with: with.ratio(),
            scheme: with.scheme(),
        });
    }
    Ok(rows)
}
