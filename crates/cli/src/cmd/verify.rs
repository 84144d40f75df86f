// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay verify`: reads and checks every byte; with `--repair`, first makes damaged extents again
//! from the stripes of their group.

mod repair;
mod stripes;

use crate::output::{
    Failure, WRONG, complain, counted, human_bytes, print_json, progress, result, results,
};
use crate::select::{self, Places};
use crate::view::{CheckpointView, IdView, UnreadableView, checkpoints, short};
use backstay::CheckpointId;
use backstay_inspect::{
    Checkpoint, Finding, Stores, VerifiedArchive, VerifiedStore, Wanted, bytes_to_verify,
};
use repair::RepairedView;
use serde::Serialize;
use std::collections::BTreeSet;
use std::process::ExitCode;
use stripes::StripesView;

/// Most findings shown as text; JSON has all of them.
const SHOWN_MAX: usize = 100;

/// Reads and checks every byte of every retained checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    places: Places,
    /// Only this checkpoint: its number, or NUMBER.INCARNATION as `ls` shows it. It must be complete.
    #[arg(long, short, value_name = "N[.I]", value_parser = select::parse_checkpoint)]
    checkpoint: Option<Wanted>,
    /// Make damaged bytes again in place, from the stripes of the group, before everything is
    /// verified. Give the stores of the group's other members as well. No job may use the stores.
    #[arg(long, conflicts_with = "checkpoint")]
    repair: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Verdict {
    good: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    repaired: Option<Vec<RepairedView>>,
    stores: Vec<StoreVerdict>,
    archives: Vec<ArchiveVerdict>,
    checkpoints: Vec<CheckpointVerdict>,
    unreadable: Vec<UnreadableView>,
}

#[derive(Debug, Serialize)]
struct CheckpointVerdict {
    #[serde(flatten)]
    checkpoint: CheckpointView,
    good: bool,
}

#[derive(Debug, Serialize)]
struct StoreVerdict {
    path: String,
    checkpoints: Vec<IdView>,
    superseded: Vec<IdView>,
    blocks: u64,
    pages: u64,
    bytes: u64,
    damage: Vec<DamageView>,
    stripes: StripesView,
}

/// What verifying an archive's catalogs found.
#[derive(Debug, Serialize)]
struct ArchiveVerdict {
    folder: String,
    files: Vec<String>,
    damage: Vec<DamageView>,
}

#[derive(Debug, Serialize)]
struct DamageView {
    structure: &'static str,
    checkpoints: Vec<IdView>,
    rank: Option<u32>,
    variable: Option<String>,
    block: Option<u64>,
    blocks: u64,
    file: Option<String>,
    segment: Option<u64>,
    file_offset: Option<u64>,
    expected: String,
    found: String,
    message: String,
}

pub(crate) fn run(args: &VerifyArgs) -> ExitCode {
    match verify(args) {
        Ok(good) if good => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(WRONG),
        Err(failure) => failure.report(args.json),
    }
}

fn verify(args: &VerifyArgs) -> Result<bool, Failure> {
    let repaired = if args.repair {
        Some(repair::repair(&args.places)?)
    } else {
        None
    };
    let stores = args.places.open()?;
    let all = stores.checkpoints();
    let meant = |checkpoint: &&Checkpoint| {
        args.checkpoint
            .is_none_or(|wanted| wanted.matches(checkpoint.id))
    };
    let chosen: Vec<&Checkpoint> = all.iter().filter(meant).collect();
    if args.checkpoint.is_some() {
        if chosen.is_empty() {
            return Err(select::not_there(&all, args.checkpoint));
        }
        if let Some(checkpoint) = chosen.iter().find(|checkpoint| !checkpoint.is_complete()) {
            return Err(select::incomplete(checkpoint));
        }
    }
    let bar = progress("verifying", bytes_to_verify(&stores, args.checkpoint), true);
    let verified = stores.verify(args.checkpoint, &mut |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let archives = stores.verify_archives();
    let bad: BTreeSet<(String, CheckpointId)> = damaged(&stores, &verified, &archives);
    let good = archives.iter().all(|archive| archive.findings.is_empty());
    let good = good && verified.iter().all(|store| store.findings.is_empty());
    let good = good && stores.unreadable().is_empty();
    let good = good && verified.iter().all(|v| v.stripes.damage.is_empty());
    let is_good = |c: &Checkpoint| !bad.contains(&(c.job.clone(), c.id));
    if args.json {
        let verdict = |checkpoint: &&Checkpoint| CheckpointVerdict {
            checkpoint: CheckpointView::new(&stores, checkpoint),
            good: is_good(checkpoint),
        };
        print_json(&Verdict {
            good,
            repaired,
            stores: verified
                .iter()
                .map(|store| StoreVerdict::new(&stores, store))
                .collect(),
            archives: archives
                .iter()
                .map(|archive| ArchiveVerdict::new(&stores, archive))
                .collect(),
            checkpoints: chosen.iter().map(verdict).collect(),
            unreadable: stores
                .unreadable()
                .iter()
                .map(UnreadableView::from)
                .collect(),
        });
        return Ok(good);
    }
    show_all(&stores, repaired.as_deref(), &verified, &archives);
    if !bad.is_empty() {
        let left = chosen
            .iter()
            .filter(|c| is_good(c) && c.is_complete() && !c.is_abandoned())
            .map(|c| c.id);
        advise(&left.collect::<Vec<_>>());
    }
    Ok(good)
}

fn show_all(
    stores: &Stores,
    repaired: Option<&[RepairedView]>,
    verified: &[VerifiedStore],
    archives: &[VerifiedArchive],
) {
    if let Some(repaired) = repaired {
        repair::show(repaired);
    }
    for store in verified {
        show(stores, store);
        stripes::show(stores, store);
    }
    for archive in archives {
        show_archive(stores, archive);
    }
    stripes::advise(verified);
}

fn damaged(
    stores: &Stores,
    verified: &[VerifiedStore],
    archives: &[VerifiedArchive],
) -> BTreeSet<(String, CheckpointId)> {
    let mut bad = BTreeSet::new();
    for archive in archives {
        let Some(catalog) = stores.archives()[archive.archive].catalog() else {
            continue;
        };
        let ids = archive
            .findings
            .iter()
            .flat_map(|finding| &finding.checkpoints);
        bad.extend(ids.map(|&id| (catalog.superblock().job.clone(), id)));
    }
    for store in verified {
        let job = stores.stores()[store.store].job();
        let ids = store
            .findings
            .iter()
            .flat_map(|finding| &finding.checkpoints);
        bad.extend(ids.map(|&id| (job.to_owned(), id)));
    }
    bad
}

fn show_archive(stores: &Stores, archive: &VerifiedArchive) {
    let folder = stores.archives()[archive.archive].folder().display();
    let read = counted(archive.files.len(), "catalog");
    let verdict = places(archive.findings.len());
    results(&[format!("{folder}: {read} read: {verdict}")]);
    for finding in archive.findings.iter().take(SHOWN_MAX) {
        results(&[format!("  {}", sentence(finding))]);
    }
}

fn places(findings: usize) -> String {
    match findings {
        0 => "good".to_owned(),
        1 => "1 place is damaged".to_owned(),
        count => format!("{count} places are damaged"),
    }
}

fn show(stores: &Stores, store: &VerifiedStore) {
    results(&[format!(
        "{}: {}; {} and {} read, {}: {}",
        stores.path(store.store).display(),
        checkpoints(&store.checkpoints),
        counted(store.blocks, "block"),
        counted(store.pages, "page"),
        human_bytes(store.bytes),
        places(store.findings.len())
    )]);
    if !store.superseded.is_empty() {
        complain(&format!(
            "superseded by the running job while it was read: {}",
            checkpoints(&store.superseded)
        ));
    }
    for finding in store.findings.iter().take(SHOWN_MAX) {
        results(&[format!("  {}", sentence(finding))]);
    }
    if store.findings.len() > SHOWN_MAX {
        let more = store.findings.len() - SHOWN_MAX;
        result(&format!("  and {more} more; --json lists all"));
    }
}

fn sentence(finding: &Finding) -> String {
    let of_variable = finding
        .variable
        .as_ref()
        .map(|name| match (finding.block, finding.blocks) {
            (Some(block), 1) => format!(" of variable {name:?}, block {block}"),
            (Some(block), count) => {
                format!(
                    " of variable {name:?}, blocks {block} to {}",
                    block + count.max(1) - 1
                )
            }
            (None, _) => format!(" of variable {name:?}"),
        });
    let of_rank = finding.rank.map(|rank| format!(" of rank {rank}"));
    let of_segment = finding.segment.map(|segment| format!(" {segment}"));
    let at = finding
        .file_offset
        .map(|offset| format!(" at byte {offset} of the file"));
    let what = if finding.expected.is_empty() {
        finding.text.clone()
    } else {
        format!("expected {}, found {}", finding.expected, finding.found)
    };
    let concerns = if finding.checkpoints.is_empty() {
        "no checkpoint needs this copy".to_owned()
    } else {
        format!("concerns {}", checkpoints(&finding.checkpoints))
    };
    let place: String = [of_segment, of_variable, of_rank, at]
        .into_iter()
        .flatten()
        .collect();
    format!("DAMAGED {}{place}: {what}; {concerns}", finding.structure)
}

fn advise(left: &[CheckpointId]) {
    let text = match left.last() {
        Some(&newest) => format!(
            "a restart skips damaged checkpoints by itself; the newest good and complete one is \
             {}",
            short(newest)
        ),
        None => "no good and complete checkpoint is left in these stores; a running job heals \
                 blocks from its memory with a scrub, and the next checkpoint writes what changed"
            .to_owned(),
    };
    complain(&text);
}

impl StoreVerdict {
    fn new(stores: &Stores, store: &VerifiedStore) -> Self {
        let ids = |ids: &[CheckpointId]| ids.iter().map(|&id| IdView::from(id)).collect();
        Self {
            path: stores.path(store.store).display().to_string(),
            checkpoints: ids(&store.checkpoints),
            superseded: ids(&store.superseded),
            blocks: store.blocks,
            pages: store.pages,
            bytes: store.bytes,
            damage: store.findings.iter().map(DamageView::from).collect(),
            stripes: StripesView::from(&store.stripes),
        }
    }
}

impl From<&Finding> for DamageView {
    fn from(finding: &Finding) -> Self {
        let ids = finding.checkpoints.iter();
        Self {
            structure: finding.structure,
            checkpoints: ids.map(|&id| IdView::from(id)).collect(),
            rank: finding.rank,
            variable: finding.variable.clone(),
            block: finding.block,
            blocks: finding.blocks,
            file: finding.file.as_ref().map(|file| file.display().to_string()),
            segment: finding.segment,
            file_offset: finding.file_offset,
            expected: finding.expected.clone(),
            found: finding.found.clone(),
            message: finding.text.clone(),
        }
    }
}

impl ArchiveVerdict {
    fn new(stores: &Stores, archive: &VerifiedArchive) -> Self {
        let folder = stores.archives()[archive.archive].folder();
        let files = archive.files.iter();
        Self {
            folder: folder.display().to_string(),
            files: files.map(|file| file.display().to_string()).collect(),
            damage: archive.findings.iter().map(DamageView::from).collect(),
        }
    }
}
