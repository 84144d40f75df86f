// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay inspect`: what is in a checkpoint.

use crate::output::{
    Failure, ago, complain, counted, human_bytes, percent, print_json, print_table, progress,
    result, results,
};
use crate::protection::{GroupView, say_shortfalls, short_sentence};
use crate::select::{self, Places};
use crate::table::Table;
use crate::view::{CheckpointView, ratio, short, utc};
use backstay::ErrorKind;
use backstay_format::width::to_u64;
use backstay_inspect::{
    Checkpoint, Dataset, Safety, StoredAs, StoredCodec, StoredPart, StoredVariable, Stores, Wanted,
    file_name, share,
};
use serde::Serialize;
use std::process::ExitCode;

/// Shows what is in a checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    places: Places,
    /// Which checkpoint: its number, or NUMBER.INCARNATION as `ls` shows it. By default the newest
    /// complete one.
    #[arg(long, short, value_name = "N[.I]", value_parser = select::parse_checkpoint)]
    checkpoint: Option<Wanted>,
    /// Only what this rank has.
    #[arg(long, short)]
    rank: Option<u32>,
    /// Only this variable, each rank's part of it.
    #[arg(long, short)]
    variable: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Contents {
    checkpoint: CheckpointView,
    groups: Vec<GroupUseView>,
    bytes_uncovered: u64,
    variables: Vec<VariableView>,
}

/// A group and how much of its data is still of use.
#[derive(Debug, Serialize)]
struct GroupUseView {
    #[serde(flatten)]
    group: GroupView,
    bytes_known: u64,
    bytes_dead: u64,
    dead_share: f64,
}

#[derive(Debug, Serialize)]
struct VariableView {
    name: String,
    r#type: Option<&'static str>,
    global_shape: Option<Vec<u64>>,
    shape: Option<Vec<u64>>,
    ranks: usize,
    bytes: u64,
    blocks: u64,
    blocks_changed: Option<u64>,
    bytes_changed: Option<u64>,
    changed_share: Option<f64>,
    stored: Option<StoredView>,
    parts: Vec<PartView>,
}

/// How a variable is stored in an archive.
#[derive(Debug, Serialize)]
struct StoredView {
    bytes: u64,
    bytes_stored: u64,
    ratio: Option<f64>,
    segments: u64,
    #[serde(rename = "differences")]
    deltas: u64,
    merge: Vec<&'static str>,
    ranks_merged: usize,
    codecs: Vec<CodecView>,
}

#[derive(Debug, Serialize)]
struct CodecView {
    name: String,
    history: Option<&'static str>,
    lags: Vec<u32>,
    arrangement: Option<&'static str>,
    coder: Option<&'static str>,
    second_pass: Option<&'static str>,
    segments: u64,
    bytes: u64,
    bytes_stored: u64,
}

impl From<&StoredAs> for StoredView {
    fn from(stored: &StoredAs) -> Self {
        let codec = |codec: &StoredCodec| {
            let scheme = codec.scheme.as_ref();
            CodecView {
                name: codec.name(),
                history: scheme.map(|scheme| scheme.history.name()),
                lags: scheme
                    .map(|s| s.lags.as_slice().to_vec())
                    .unwrap_or_default(),
                arrangement: scheme.map(|scheme| scheme.arrangement.name()),
                coder: scheme.map(|scheme| scheme.coder.name()),
                second_pass: scheme.map(|scheme| scheme.second_pass.name()),
                segments: codec.segments,
                bytes: codec.bytes,
                bytes_stored: codec.bytes_stored,
            }
        };
        Self {
            bytes: stored.bytes,
            bytes_stored: stored.bytes_stored,
            ratio: stored.ratio(),
            segments: stored.segments,
            deltas: stored.deltas,
            merge: stored.merge_names(),
            ranks_merged: stored.ranks_merged,
            codecs: stored.codecs.iter().map(codec).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
struct PartView {
    rank: u32,
    store: String,
    r#type: &'static str,
    shape: Vec<u64>,
    start: Option<Vec<u64>>,
    bytes: u64,
    block_bytes: u32,
    blocks: u64,
    blocks_changed: Option<u64>,
    bytes_changed: Option<u64>,
    file: Option<FileView>,
}

/// A file, beside the bytes of its variable.
#[derive(Debug, Serialize)]
struct FileView {
    name: String,
    path: String,
    routed: bool,
    mode: String,
    modified: String,
    length_bytes: u64,
    has_holes: bool,
    /// What kind of file it is, where it has datasets.
    format: Option<&'static str>,
    datasets: Vec<DatasetView>,
    /// What of its structure is not understood, and why.
    left_out: Vec<String>,
}

/// A dataset of a file.
#[derive(Debug, Serialize)]
struct DatasetView {
    path: String,
    r#type: String,
    shape: Vec<u64>,
    layout: &'static str,
    chunk_shape: Vec<u64>,
    filters: Vec<u16>,
    bytes: u64,
    bytes_in_file: u64,
    /// Whether its values are compressed as what they are, merged with those of other ranks.
    typed: bool,
}

impl From<&Dataset> for DatasetView {
    fn from(dataset: &Dataset) -> Self {
        Self {
            path: dataset.path.clone(),
            r#type: dataset.item.name.clone(),
            shape: dataset.shape.clone(),
            layout: dataset.layout.name(),
            chunk_shape: dataset.chunk_shape.clone(),
            filters: dataset.filters.clone(),
            bytes: dataset.bytes().unwrap_or(0),
            bytes_in_file: dataset.stored_bytes(),
            typed: dataset.is_plain(),
        }
    }
}

impl FileView {
    fn new(stores: &Stores, part: &StoredPart) -> Option<Self> {
        let file = part.descriptor.file.as_ref()?;
        let structure = stores.structure(part);
        let structure = structure.as_ref();
        let seconds = u64::try_from(file.modified_s).unwrap_or(0);
        let modified = seconds.saturating_mul(1_000_000_000) + u64::from(file.modified_ns);
        Some(Self {
            name: file_name(part)?.display().to_string(),
            path: String::from_utf8_lossy(&file.path).into_owned(),
            routed: file.routed,
            mode: format!("{:04o}", file.mode),
            modified: utc(modified),
            length_bytes: file.length_bytes,
            has_holes: part.stream.length_bytes < file.length_bytes,
            format: structure.map(|found| found.format.name()),
            datasets: structure.map_or_else(Vec::new, |found| {
                found.datasets.iter().map(DatasetView::from).collect()
            }),
            left_out: structure.map_or_else(Vec::new, |found| {
                let reason = |(path, why): &(String, &'static str)| format!("{path}: {why}");
                found.left_out.iter().map(reason).collect()
            }),
        })
    }
}

pub(crate) fn run(args: &InspectArgs) -> ExitCode {
    match show(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(args.json),
    }
}

fn show(args: &InspectArgs) -> Result<(), Failure> {
    let stores = args.places.open()?;
    let checkpoint = select::choose(&stores, args.checkpoint)?;
    let bar = progress("reading", to_u64(checkpoint.ranks.len()), false);
    let mut variables = stores.variables(&checkpoint, args.rank, &mut |ranks| bar.inc(ranks))?;
    bar.finish_and_clear();
    if let Some(name) = &args.variable {
        let names: Vec<String> = variables.iter().map(|v| v.name.clone()).take(32).collect();
        variables.retain(|variable| variable.name == *name);
        if variables.is_empty() {
            let id = short(checkpoint.id);
            let message = format!("checkpoint {id} has no variable {name:?}; it has {names:?}");
            return Err(Failure::new(ErrorKind::VariableMismatch, message));
        }
    }
    // Of a checkpoint of which nothing can be read there is nothing to show.
    if checkpoint.ranks.is_empty() {
        return Err(select::incomplete(&checkpoint));
    }
    let stored = stored(&stores, &checkpoint, &variables)?;
    if args.json {
        print_json(&Contents {
            checkpoint: CheckpointView::new(&stores, &checkpoint),
            groups: group_views(&stores, &checkpoint),
            bytes_uncovered: stores.bytes_uncovered(&checkpoint),
            variables: variables
                .iter()
                .zip(&stored)
                .map(|(variable, stored)| VariableView::new(&stores, variable, stored.as_ref()))
                .collect(),
        });
        return Ok(());
    }
    head(&checkpoint);
    show_protection(&stores, &checkpoint);
    match (&args.variable, &*variables) {
        (Some(_), [variable]) => show_parts(&stores, variable),
        _ => show_variables(&variables),
    }
    show_datasets(&stores, &variables);
    if stored.iter().any(Option::is_some) {
        show_stored(&variables, &stored);
    }
    Ok(())
}

/// The datasets of files, as the first rank that has the file has them.
fn show_datasets(stores: &Stores, variables: &[StoredVariable]) {
    let mut rows = Vec::new();
    for variable in variables {
        let first = variable.parts.first();
        let Some(structure) = first.and_then(|part| stores.structure(part)) else {
            continue;
        };
        for dataset in &structure.datasets {
            let filters: Vec<String> = dataset.filters.iter().map(ToString::to_string).collect();
            let layout = match &*filters {
                [] => dataset.layout.name().to_owned(),
                some => format!("{}, filters {}", dataset.layout.name(), some.join(",")),
            };
            rows.push(vec![
                variable.name.clone(),
                dataset.path.clone(),
                dataset.item.name.clone(),
                format!("{:?}", dataset.shape),
                human_bytes(dataset.stored_bytes()),
                layout,
            ]);
        }
        for (path, why) in &structure.left_out {
            complain(&format!(
                "{}: {path} is stored as bytes: {why}",
                variable.name
            ));
        }
    }
    if rows.is_empty() {
        return;
    }
    result("");
    let table = Table {
        head: &["VARIABLE", "DATASET", "TYPE", "SHAPE", "SIZE", "LAYOUT"],
        right: &[4],
        less: &[5],
    };
    print_table(table, &rows);
}

/// How the variables are stored, of a checkpoint in an archive.
fn stored(
    stores: &Stores,
    checkpoint: &Checkpoint,
    variables: &[StoredVariable],
) -> Result<Vec<Option<StoredAs>>, Failure> {
    let bar = progress("reading segments", to_u64(variables.len()), false);
    let look = |variable| {
        let stored = stores.stored_as(checkpoint, variable);
        bar.inc(1);
        stored
    };
    let stored: Result<Vec<_>, backstay::Error> = variables.iter().map(look).collect();
    bar.finish_and_clear();
    Ok(stored?)
}

fn show_stored(variables: &[StoredVariable], stored: &[Option<StoredAs>]) {
    result("");
    let row = |(variable, stored): (&StoredVariable, &Option<StoredAs>)| {
        let stored = stored.as_ref()?;
        let codec = |codec: &StoredCodec| {
            let part = percent(share(codec.bytes, stored.bytes));
            if stored.codecs.len() > 1 {
                format!("{} ({part})", codec.name())
            } else {
                codec.name()
            }
        };
        let codecs: Vec<String> = stored.codecs.iter().map(codec).collect();
        Some(vec![
            variable.name.clone(),
            human_bytes(stored.bytes_stored),
            ratio(stored.ratio()),
            stored.segments.to_string(),
            stored.deltas.to_string(),
            stored.merge_names().join(", "),
            stored.ranks_merged.to_string(),
            codecs.join("; "),
        ])
    };
    let rows: Vec<Vec<String>> = variables.iter().zip(stored).filter_map(row).collect();
    let table = Table {
        head: &[
            "VARIABLE", "STORED", "RATIO", "SEGMENTS", "DELTAS", "MERGE", "RANKS", "CODEC",
        ],
        right: &[1, 2, 3, 4, 6],
        less: &[5, 6, 3, 4],
    };
    print_table(table, &rows);
}

fn head(checkpoint: &Checkpoint) {
    results(&[format!(
        "job {}, checkpoint {}, committed {} ({}): {} of {} ranks, {}, {} rewritten ({})",
        checkpoint.job,
        short(checkpoint.id),
        utc(checkpoint.committed_unix_ns),
        ago(checkpoint.committed_unix_ns),
        checkpoint.ranks.len(),
        checkpoint.world_size,
        human_bytes(checkpoint.bytes_total),
        human_bytes(checkpoint.bytes_changed),
        percent(checkpoint.changed_share()),
    )]);
    if checkpoint
        .archived
        .as_ref()
        .is_some_and(|archived| !archived.listed)
    {
        complain(
            "the archive's catalog does not list it: it was dropped, or its drain did not end",
        );
    } else if !checkpoint.is_complete() {
        complain("it is incomplete: what follows is of the ranks that are here");
    }
    if checkpoint.is_abandoned() {
        complain("it is abandoned: a later start of the job resumed from an older one");
    }
}

fn group_views(stores: &Stores, checkpoint: &Checkpoint) -> Vec<GroupUseView> {
    let groups = stores.protection(checkpoint).groups.into_iter();
    let view = |at: usize| {
        let used = stores.group_use(at);
        GroupUseView {
            group: GroupView::new(stores, &stores.groups()[at]),
            bytes_known: used.bytes_known,
            bytes_dead: used.bytes_dead,
            dead_share: share(used.bytes_dead, used.bytes_known),
        }
    };
    groups.map(view).collect()
}

/// What protects it: nothing is said of a store without redundancy beyond that.
fn show_protection(stores: &Stores, checkpoint: &Checkpoint) {
    result(&short_sentence(stores, checkpoint));
    let found = stores.protection(checkpoint);
    for &at in &found.groups {
        let (group, used) = (&stores.groups()[at], stores.group_use(at));
        let members = group.members.iter().map(|member| {
            let here = if member.here.is_some() {
                ""
            } else {
                ", not given"
            };
            if member.domain == member.node {
                format!("{}{here}", member.node)
            } else {
                format!("{} in {}{here}", member.node, member.domain)
            }
        });
        let members: Vec<String> = members.collect();
        let (data, parity) = group.bytes();
        let first = format!(
            "  group of {}: {}; newest protected checkpoint {}",
            counted(members.len(), "node"),
            members.join(", "),
            short(group.protected())
        );
        let second = format!(
            "  {}, {} of data, {} of parity; {} of the {} that are here serve no retained \
             checkpoint",
            counted(group.stripes(), "stripe"),
            human_bytes(data),
            human_bytes(parity),
            percent(share(used.bytes_dead, used.bytes_known)),
            human_bytes(used.bytes_known),
        );
        results(&[first, second]);
    }
    let bytes = stores.bytes_uncovered(checkpoint);
    if found.safety == Safety::Protected && bytes > 0 {
        complain(&format!("{} of it are in no stripe", human_bytes(bytes)));
    }
    say_shortfalls(stores, std::slice::from_ref(checkpoint));
}

fn show_variables(variables: &[StoredVariable]) {
    let row = |variable: &StoredVariable| {
        vec![
            variable.name.clone(),
            type_of(variable).to_owned(),
            shape_of(variable),
            variable.parts.len().to_string(),
            human_bytes(variable.bytes()),
            variable.blocks().to_string(),
            changed(variable.changed().map(|changed| changed.blocks)),
            variable
                .changed_share()
                .map_or_else(|| "-".to_owned(), percent),
        ]
    };
    let rows: Vec<Vec<String>> = variables.iter().map(row).collect();
    let table = Table {
        head: &[
            "VARIABLE", "TYPE", "SHAPE", "RANKS", "SIZE", "BLOCKS", "CHANGED", "",
        ],
        right: &[3, 4, 5, 6, 7],
        less: &[5, 6, 3],
    };
    print_table(table, &rows);
}

fn show_parts(stores: &Stores, variable: &StoredVariable) {
    let (kind, shape) = (type_of(variable), shape_of(variable));
    result(&format!("{}: {kind} {shape}", variable.name));
    let view = |part| FileView::new(stores, part);
    for file in variable.parts.iter().filter_map(view) {
        result(&format!(
            "  {}: {}, mode {}, modified {}",
            file.path,
            human_bytes(file.length_bytes),
            file.mode,
            file.modified
        ));
    }
    let row = |part: &StoredPart| {
        let slab = part.descriptor.slab.as_ref();
        vec![
            part.rank.to_string(),
            format!("{:?}", part.descriptor.shape),
            slab.map_or_else(|| "-".to_owned(), |slab| format!("{:?}", slab.start)),
            human_bytes(part.stream.length_bytes),
            part.stream.block_count().to_string(),
            changed(part.changed.map(|changed| changed.blocks)),
            stores.path(part.store).display().to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = variable.parts.iter().map(row).collect();
    let table = Table {
        head: &[
            "RANK", "SHAPE", "START", "SIZE", "BLOCKS", "CHANGED", "STORE",
        ],
        right: &[0, 3, 4, 5],
        less: &[4, 2, 5],
    };
    print_table(table, &rows);
}

fn changed(blocks: Option<u64>) -> String {
    blocks.map_or_else(|| "-".to_owned(), |blocks| blocks.to_string())
}

fn type_of(variable: &StoredVariable) -> &'static str {
    if variable
        .parts
        .iter()
        .all(|part| part.descriptor.file.is_some())
    {
        return "file";
    }
    variable.element().map_or("mixed", |element| element.name())
}

/// Of a file its name.
fn shape_of(variable: &StoredVariable) -> String {
    let mut names = variable.parts.iter().filter_map(file_name);
    if let Some(name) = names.next() {
        let more = names.filter(|other| *other != name).count();
        let name = name.display();
        return if more > 0 {
            format!("{name} and {more} others")
        } else {
            name.to_string()
        };
    }
    match (variable.global_shape(), variable.local_shape()) {
        (Some(global), _) => format!("{global:?} in {} slabs", variable.parts.len()),
        (None, Some([])) => "scalar".to_owned(),
        (None, Some(local)) => format!("{local:?}"),
        (None, None) => "varies".to_owned(),
    }
}

impl VariableView {
    fn new(stores: &Stores, variable: &StoredVariable, stored: Option<&StoredAs>) -> Self {
        let changed = variable.changed();
        Self {
            name: variable.name.clone(),
            r#type: variable.element().map(|element| element.name()),
            global_shape: variable.global_shape().map(<[u64]>::to_vec),
            shape: variable.local_shape().map(<[u64]>::to_vec),
            ranks: variable.parts.len(),
            bytes: variable.bytes(),
            blocks: variable.blocks(),
            blocks_changed: changed.map(|changed| changed.blocks),
            bytes_changed: changed.map(|changed| changed.bytes),
            changed_share: variable.changed_share(),
            stored: stored.map(StoredView::from),
            parts: variable
                .parts
                .iter()
                .map(|part| PartView::new(stores, part))
                .collect(),
        }
    }
}

impl PartView {
    fn new(stores: &Stores, part: &StoredPart) -> Self {
        Self {
            rank: part.rank,
            store: stores.path(part.store).display().to_string(),
            r#type: part.descriptor.element.name(),
            shape: part.descriptor.shape.clone(),
            start: part.descriptor.slab.as_ref().map(|slab| slab.start.clone()),
            bytes: part.stream.length_bytes,
            block_bytes: part.stream.block_bytes,
            blocks: to_u64(part.stream.block_count()),
            blocks_changed: part.changed.map(|changed| changed.blocks),
            bytes_changed: part.changed.map(|changed| changed.bytes),
            file: FileView::new(stores, part),
        }
    }
}
