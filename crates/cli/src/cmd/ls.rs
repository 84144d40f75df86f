// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay ls`: the checkpoints in stores, oldest first.

use crate::output::{
    Failure, WRONG, complain, human_bytes, percent, print_json, print_table, result,
};
use crate::protection::{GroupView, say_shortfalls, short_sentence};
use crate::select;
use crate::view::{CheckpointView, StoreView, UnreadableView, short, utc};
use backstay::inspect::{Checkpoint, OpenStore, RootState, Stores};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Lists the checkpoints in stores, newest last.
#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    /// Store files, or folders above them: of a node, a job, several jobs. Several stores of one job
    /// are shown together. Without any, the default places are looked at.
    paths: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Listing {
    stores: Vec<StoreView>,
    checkpoints: Vec<CheckpointView>,
    groups: Vec<GroupView>,
    unreadable: Vec<UnreadableView>,
}

pub(crate) fn run(args: &LsArgs) -> ExitCode {
    match list(args) {
        Ok(sound) if sound => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(WRONG),
        Err(failure) => failure.report(args.json),
    }
}

fn list(args: &LsArgs) -> Result<bool, Failure> {
    let stores = select::open(&args.paths)?;
    let checkpoints = stores.checkpoints();
    let roots = stores.stores().iter().map(damaged_slots).sum::<usize>();
    let tables = checkpoints
        .iter()
        .filter(|checkpoint| !checkpoint.damaged.is_empty())
        .count();
    if args.json {
        print_json(&Listing {
            stores: stores.stores().iter().map(StoreView::from).collect(),
            checkpoints: checkpoints
                .iter()
                .map(|c| CheckpointView::new(&stores, c))
                .collect(),
            groups: stores
                .groups()
                .iter()
                .map(|group| GroupView::new(&stores, group))
                .collect(),
            unreadable: stores
                .unreadable()
                .iter()
                .map(UnreadableView::from)
                .collect(),
        });
    } else {
        for job in stores.jobs() {
            show_job(&stores, job, &checkpoints);
        }
    }
    for store in stores.stores() {
        for state in store.slots() {
            if let RootState::Damaged(error) = state {
                complain(&format!(
                    "{error}; the other root slot is used, `backstay verify` tells more"
                ));
            }
        }
    }
    say_shortfalls(&stores, &checkpoints);
    for (_, text) in checkpoints
        .iter()
        .flat_map(|checkpoint| &checkpoint.damaged)
    {
        complain(text);
    }
    Ok(roots == 0 && tables == 0 && stores.unreadable().is_empty())
}

fn damaged_slots(store: &OpenStore) -> usize {
    let damaged = |state: &&RootState| matches!(state, RootState::Damaged(_));
    store.slots().iter().filter(damaged).count()
}

fn show_job(stores: &Stores, job: &str, checkpoints: &[Checkpoint]) {
    let of_job = stores.stores().iter().filter(|store| store.job() == job);
    let (count, bytes) = of_job.fold((0, 0), |(n, sum), store| {
        (n + 1, sum + store.length_bytes())
    });
    let plural = if count == 1 { "store" } else { "stores" };
    result(&format!(
        "job {job}: {count} {plural}, {}",
        human_bytes(bytes)
    ));
    let of_job = checkpoints
        .iter()
        .filter(|checkpoint| checkpoint.job == job);
    let rows: Vec<Vec<String>> = of_job.map(|c| row(stores, c)).collect();
    if rows.is_empty() {
        result("  no checkpoint yet");
        return;
    }
    let head = [
        "CHECKPOINT",
        "COMMITTED",
        "RANKS",
        "SIZE",
        "CHANGED",
        "",
        "STATE",
        "PROTECTION",
    ];
    print_table(&head, &[2, 3, 4, 5], &rows);
}

fn row(stores: &Stores, checkpoint: &Checkpoint) -> Vec<String> {
    vec![
        short(checkpoint.id),
        utc(checkpoint.committed_unix_ns),
        format!("{}/{}", checkpoint.ranks.len(), checkpoint.world_size),
        human_bytes(checkpoint.bytes_total),
        human_bytes(checkpoint.bytes_changed),
        percent(checkpoint.changed_share()),
        state(checkpoint),
        short_sentence(stores, checkpoint),
    ]
}

fn state(checkpoint: &Checkpoint) -> String {
    let mut state = if !checkpoint.damaged.is_empty() {
        "DAMAGED".to_owned()
    } else if checkpoint.is_complete() {
        "complete".to_owned()
    } else if checkpoint.known_complete {
        "incomplete here: other nodes have the rest".to_owned()
    } else {
        "incomplete".to_owned()
    };
    if checkpoint.pinned {
        state += ", pinned";
    }
    state
}
