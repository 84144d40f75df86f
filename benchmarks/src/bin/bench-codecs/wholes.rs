// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: whole checkpoints of all ranks, and the four studies of mcrEngine.
//! In from: data sets. Out to: rows of the report.
//! Invariants: what is compared is the same checkpoint; studies store every block, as mcrEngine did.

use crate::merged::{self, Once};
use crate::ours::{Stage, Totals, Way};
use backstay::format::scheme::SecondPass;
use backstay_archive::aggregate::{Merge, Options};
use backstay_bench::compression::report::{
    CheckpointRow, CourseRow, GroupRow, MergeRow, PassRow, Report,
};
use backstay_bench::datasets::State;
use backstay_bench::{Outcome, size_f64};

/// Level of the way that knows nothing of variables.
const LEVEL: i32 = 3;
/// Ranks of a group, in the study.
const GROUPS: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// Ranks of a group where all are merged.
const ALL: usize = 32;

fn way(merge: Merge, group_size: usize) -> Way {
    Way {
        options: Options {
            merge,
            group_size,
            ..Options::default()
        },
        once: false,
        second: None,
        sticky: true,
        timed: false,
    }
}

fn size(state: &State) -> usize {
    state
        .iter()
        .flatten()
        .map(|variable| variable.bytes.len())
        .sum()
}

fn zstd(bytes: &[u8]) -> Outcome<Vec<u8>> {
    Ok(zstd::bulk::compress(bytes, LEVEL)?)
}

fn over(before: usize, after: usize) -> f64 {
    size_f64(before) / size_f64(after.max(1))
}

/// The ratio of whole checkpoints one after the other.
fn agnostic(state: &State) -> Outcome<f64> {
    Ok(over(
        size(state),
        zstd(&merged::concatenated(state, None))?.len(),
    ))
}

/// The checkpoint as the system stores it, beside the agnostic way, and studies of the same checkpoint.
pub(crate) fn measure(
    stage: &mut Stage,
    case: &str,
    state: &State,
    report: &mut Report,
) -> Outcome<Totals> {
    let (row, totals) = checkpoint(stage, case, state)?;
    let agnostic = row.agnostic;
    report.checkpoints.push(row);
    let groups = groups(stage, case, state)?;
    let alone = groups.ratios.first().map_or(1.0, |&(_, ratio)| ratio);
    let all = groups.ratios.last().map_or(1.0, |&(_, ratio)| ratio);
    report.groups.push(groups);
    let interleaved = anew(stage, state, way(Merge::Interleave, ALL))?;
    let blocks = zstd(&merged::interleaved(state))?.len();
    let ratios = [
        ("none", alone),
        ("concatenate", all),
        ("interleave", interleaved.ratio()),
        ("agnostic concatenate", agnostic),
        ("agnostic interleave", over(size(state), blocks)),
    ];
    report.merges.push(MergeRow {
        case: case.to_owned(),
        ratios: ratios
            .map(|(name, ratio)| (name.to_owned(), ratio))
            .to_vec(),
    });
    let twice = Way {
        second: Some(SecondPass::Zstd),
        ..way(Merge::Concatenate, ALL)
    };
    let frame = zstd(&merged::concatenated(state, None))?;
    report.passes.push(PassRow {
        case: case.to_owned(),
        without: all,
        with: anew(stage, state, twice)?.ratio(),
        agnostic,
        agnostic_twice: over(size(state), zstd(&frame)?.len()),
    });
    Ok(totals)
}

/// The checkpoint without studies.
pub(crate) fn figures(
    stage: &mut Stage,
    case: &str,
    state: &State,
    report: &mut Report,
) -> Outcome<Totals> {
    let (row, totals) = checkpoint(stage, case, state)?;
    report.checkpoints.push(row);
    Ok(totals)
}

fn checkpoint(stage: &mut Stage, case: &str, state: &State) -> Outcome<(CheckpointRow, Totals)> {
    let as_it_is = Way {
        once: true,
        sticky: false,
        timed: true,
        ..way(Merge::Concatenate, ALL)
    };
    let each_time = Way {
        once: false,
        timed: false,
        ..as_it_is
    };
    let ours = stage.store(state, None, as_it_is)?;
    let every_block = stage.store(state, None, each_time)?.ratio();
    stage.forget();
    let mut once = Once::default();
    let left = zstd(&merged::concatenated(state, Some(&mut once)))?;
    let row = CheckpointRow {
        case: case.to_owned(),
        bytes: ours.bytes as u64,
        agnostic: agnostic(state)?,
        ours: ours.ratio(),
        every_block,
        agnostic_once: over(ours.bytes, left.len()),
        equal_share: size_f64(ours.equal_bytes) / size_f64(ours.bytes.max(1)),
        decode_gb_s: ours.decode_gb_s(),
        decode_seconds: ours.decode_seconds,
        encode_mb_s: ours.encode_mb_s(),
        choose_seconds: ours.choose_seconds,
    };
    Ok((row, ours))
}

/// The checkpoint in a way of a study: what was chosen for another one is not kept.
fn anew(stage: &mut Stage, state: &State, way: Way) -> Outcome<Totals> {
    stage.forget();
    stage.store(state, None, way)
}

/// Ratios by ranks that are merged with each other; one rank is merging none.
fn groups(stage: &mut Stage, case: &str, state: &State) -> Outcome<GroupRow> {
    let mut ratios = Vec::new();
    for count in GROUPS {
        let totals = anew(stage, state, way(Merge::Concatenate, count as usize))?;
        ratios.push((count, totals.ratio()));
    }
    Ok(GroupRow {
        case: case.to_owned(),
        merge: Merge::Concatenate.name().to_owned(),
        ratios,
    })
}

/// Ratios over the course of a program.
pub(crate) fn course(
    stage: &mut Stage,
    row: &mut CourseRow,
    step: u64,
    state: &State,
) -> Outcome<()> {
    let plain = way(Merge::Concatenate, ALL);
    let ours = stage.store(state, None, plain)?.ratio();
    row.ratios.push((step, ours, agnostic(state)?));
    Ok(())
}
