// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay ls`: the checkpoints in stores, oldest first.

use crate::output::{
    Failure, WRONG, ago, complain, counted, human_bytes, percent, print_json, print_table, result,
    results,
};
use crate::protection::{GroupView, say_shortfalls, short_sentence};
use crate::select::Places;
use crate::table::Table;
use crate::view::{CheckpointView, StoreView, UnreadableView, archived_ratio, ratio, short, utc};
use backstay_archive::CatalogReader;
use backstay_inspect::{Archive, Archived, Checkpoint, OpenStore, RootState, Stores};
use serde::Serialize;
use std::process::ExitCode;

/// Lists the checkpoints in stores, newest last.
#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    places: Places,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Listing {
    stores: Vec<StoreView>,
    archives: Vec<ArchiveView>,
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
    let stores = args.places.open()?;
    let checkpoints = stores.checkpoints();
    let roots = stores.stores().iter().map(damaged_slots).sum::<usize>();
    let tables = checkpoints
        .iter()
        .filter(|checkpoint| !checkpoint.damaged.is_empty())
        .count();
    if args.json {
        print_json(&Listing {
            stores: stores.stores().iter().map(StoreView::from).collect(),
            archives: stores.archives().iter().map(ArchiveView::from).collect(),
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
        for (number, archive) in stores.archives().iter().enumerate() {
            show_archive(&stores, number, archive, &checkpoints);
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
    let archived = checkpoints
        .iter()
        .filter_map(|checkpoint| Some((checkpoint, checkpoint.archived.as_ref()?)));
    let mut lacking = 0;
    for (checkpoint, text) in archived.flat_map(|(c, a)| a.lacks.iter().map(move |text| (c, text)))
    {
        lacking += 1;
        complain(&format!(
            "checkpoint {} is incomplete: {text}",
            short(checkpoint.id)
        ));
    }
    Ok(roots == 0 && tables == 0 && lacking == 0 && stores.unreadable().is_empty())
}

fn damaged_slots(store: &OpenStore) -> usize {
    let damaged = |state: &&RootState| matches!(state, RootState::Damaged(_));
    store.slots().iter().filter(damaged).count()
}

fn show_job(stores: &Stores, job: &str, checkpoints: &[Checkpoint]) {
    let is_node = |store: &&OpenStore| store.job() == job && store.archive().is_none();
    let of_job = stores.stores().iter().filter(is_node);
    let (count, bytes) = of_job.fold((0, 0), |(n, sum), store| {
        (n + 1, sum + store.length_bytes())
    });
    if count == 0 {
        return;
    }
    let lineage = stores.lineage(job);
    let finished = if lineage.finished { "finished, " } else { "" };
    result(&format!(
        "job {job}: {finished}{}, {}",
        counted(count, "store"),
        human_bytes(bytes)
    ));
    let of_job = checkpoints
        .iter()
        .filter(|checkpoint| checkpoint.job == job && checkpoint.archived.is_none());
    let rows: Vec<Vec<String>> = of_job.map(|c| row(stores, c)).collect();
    if rows.is_empty() {
        result("  no checkpoint yet");
    } else {
        let table = Table {
            head: &[
                "CHECKPOINT",
                "COMMITTED",
                "AGE",
                "RANKS",
                "SIZE",
                "CHANGED",
                "",
                "STATE",
                "PROTECTION",
            ],
            right: &[2, 3, 4, 5, 6],
            less: &[1, 6, 5],
        };
        print_table(table, &rows);
    }
    show_stores(stores.stores().iter().filter(is_node));
}

/// Most stores that are shown with their paths; JSON has all of them.
const STORES_SHOWN: usize = 16;

fn show_stores<'a>(stores: impl Iterator<Item = &'a OpenStore>) {
    let line = |store: &OpenStore| format!("  node {}: {}", store.node(), store.path().display());
    let mut lines: Vec<String> = stores.map(line).collect();
    if lines.len() > STORES_SHOWN {
        let more = lines.len() - STORES_SHOWN;
        lines.truncate(STORES_SHOWN);
        lines.push(format!(
            "  and {}; --json lists all",
            counted(more, "more store")
        ));
    }
    results(&lines);
}

/// The archive of a job.
#[derive(Debug, Serialize)]
struct ArchiveView {
    folder: String,
    job: Option<String>,
    run: Option<u32>,
    incarnation: Option<u64>,
    catalog: Option<String>,
    catalog_epoch: Option<u32>,
    written_by: Option<String>,
    files: Vec<String>,
    damage: Option<String>,
}

impl From<&Archive> for ArchiveView {
    fn from(archive: &Archive) -> Self {
        let catalog = archive.catalog();
        let superblock = catalog.map(CatalogReader::superblock);
        let stores = archive
            .state()
            .map(|state| &*state.stores)
            .unwrap_or_default();
        Self {
            folder: archive.folder().display().to_string(),
            job: superblock.map(|superblock| superblock.job.clone()),
            run: superblock.map(|superblock| superblock.run),
            incarnation: archive.state().map(|state| state.incarnation),
            catalog: catalog.map(|catalog| catalog.file().to_owned()),
            catalog_epoch: superblock.map(|superblock| superblock.epoch),
            written_by: superblock.map(|superblock| superblock.host.clone()),
            files: stores.iter().map(|store| store.name.clone()).collect(),
            damage: catalog
                .and_then(CatalogReader::damaged)
                .map(ToString::to_string),
        }
    }
}

fn show_archive(stores: &Stores, number: usize, archive: &Archive, checkpoints: &[Checkpoint]) {
    let own = stores
        .stores()
        .iter()
        .filter(|store| store.archive() == Some(number));
    let (count, bytes) = own.fold((0, 0), |(n, sum), store| {
        (n + 1, sum + store.length_bytes())
    });
    let job = archive
        .catalog()
        .map_or("of an unknown job", |catalog| &*catalog.superblock().job);
    results(&[format!(
        "job {job}, archive {}: {}, {}",
        archive.folder().display(),
        counted(count, "file"),
        human_bytes(bytes)
    )]);
    let row = |checkpoint: &Checkpoint| {
        let archived = checkpoint
            .archived
            .as_ref()
            .filter(|a| a.archive == number)?;
        Some(archived_row(checkpoint, archived))
    };
    let rows: Vec<Vec<String>> = checkpoints.iter().filter_map(row).collect();
    if rows.is_empty() {
        return result("  no checkpoint yet");
    }
    let table = Table {
        head: &[
            "CHECKPOINT",
            "LEVEL",
            "ARCHIVED",
            "AGE",
            "RANKS",
            "SIZE",
            "CHANGED",
            "",
            "STORED",
            "RATIO",
            "STATE",
        ],
        right: &[3, 4, 5, 6, 7, 8, 9],
        less: &[1, 2, 7, 6],
    };
    print_table(table, &rows);
}

fn archived_row(checkpoint: &Checkpoint, archived: &Archived) -> Vec<String> {
    let listed = |text: String| {
        if archived.listed {
            text
        } else {
            "-".to_owned()
        }
    };
    vec![
        short(checkpoint.id),
        "archive".to_owned(),
        listed(utc(archived.archived_unix_ns)),
        listed(ago(archived.archived_unix_ns)),
        format!("{}/{}", checkpoint.ranks.len(), checkpoint.world_size),
        human_bytes(checkpoint.bytes_total),
        human_bytes(checkpoint.bytes_changed),
        percent(checkpoint.changed_share()),
        listed(human_bytes(archived.bytes_stored)),
        ratio(archived_ratio(checkpoint, archived)),
        archived_state(checkpoint, archived),
    ]
}

fn archived_state(checkpoint: &Checkpoint, archived: &Archived) -> String {
    let mut state = if !checkpoint.damaged.is_empty() || !archived.lacks.is_empty() {
        "DAMAGED"
    } else if !archived.listed {
        "incomplete: dropped, or its drain did not end"
    } else if checkpoint.is_complete() {
        "complete"
    } else {
        "incomplete here: other files have the rest"
    }
    .to_owned();
    if archived.abandoned {
        state += ", abandoned: a later start resumed from an older one";
    }
    if archived.finished {
        state += ", of a finished job";
    }
    if archived.kept {
        state += ", kept";
    }
    state
}

fn row(stores: &Stores, checkpoint: &Checkpoint) -> Vec<String> {
    vec![
        short(checkpoint.id),
        utc(checkpoint.committed_unix_ns),
        ago(checkpoint.committed_unix_ns),
        format!("{}/{}", checkpoint.ranks.len(), checkpoint.world_size),
        human_bytes(checkpoint.bytes_total),
        human_bytes(checkpoint.bytes_changed),
        percent(checkpoint.changed_share()),
        state(stores, checkpoint),
        short_sentence(stores, checkpoint),
    ]
}

fn state(stores: &Stores, checkpoint: &Checkpoint) -> String {
    let mut state = if !checkpoint.damaged.is_empty() {
        "DAMAGED".to_owned()
    } else if checkpoint.is_complete() {
        "complete".to_owned()
    } else if checkpoint.known_complete {
        "incomplete here: other nodes have the rest".to_owned()
    } else {
        "incomplete".to_owned()
    };
    if !stores.lineage(&checkpoint.job).has(checkpoint.id) {
        state += ", of an earlier start";
    }
    if checkpoint.pinned {
        state += ", pinned";
    }
    state
}
