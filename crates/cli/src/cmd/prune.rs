// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay prune`: takes checkpoints out of an archive while no job runs on it, and stores of finished jobs off nodes.

use super::remote::Remote;
use super::rm::{Distant, FailedView, FolderView, Only, show as show_folders};
use crate::output::{
    Failure, WRONG, ask, complain, counted, human_bytes, print_json, print_table, result, results,
};
use crate::select::{no_such_path, stored_places};
use crate::table::Table;
use crate::view::{IdView, short};
use backstay::{Config, ErrorKind};
use backstay_archive::drain::prune::{PruneOptions, PrunePlan, Pruned, carry_out, plan};
use backstay_archive::job_folder;
use backstay_archive::retention::Reason;
use backstay_base::units;
use backstay_inspect::{RemovalFolder, Removed, finished_stores, glance_archives, remove};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Takes checkpoints out of an archive, and files that nothing refers to any more; with --finished also the stores of
/// finished jobs off this node, and with --nodes off others. Shows what goes and why before anything is done.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct PruneArgs {
    /// The folder of the job in the archive, or the folder above it if that has one job. Without it,
    /// `BACKSTAY_ARCHIVE` or the configuration that `BACKSTAY_CONFIG` names says where the archive is.
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
    /// The job, where the folder has several [env: `BACKSTAY_JOB`, without DIR]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// So many of the newest checkpoints stay. Without it all that can be restored stay, and only
    /// what a later run of the job abandoned goes.
    #[arg(long, value_name = "N", value_parser = units::count)]
    retained: Option<u32>,
    /// Only what was archived longer ago goes: `7d`, `12h`. Without --retained the newest checkpoint stays,
    /// however old it is.
    #[arg(long, value_name = "AGE", value_parser = units::whole_seconds)]
    older: Option<u64>,
    /// What programs finished with may go, too: without this it stays. Without --retained the newest
    /// checkpoint stays. Without DIR the stores of finished jobs on this node go as well.
    #[arg(long)]
    finished: bool,
    /// Only stores of nodes, or only the archive
    #[arg(long, value_name = "WHAT")]
    only: Option<Only>,
    #[command(flatten)]
    remote: Remote,
    /// Keep this checkpoint until it is released, whatever goes. May be given several times.
    #[arg(long, value_name = "N")]
    keep: Vec<u64>,
    /// Keep this checkpoint no longer. May be given several times.
    #[arg(long, value_name = "N")]
    release: Vec<u64>,
    /// Only show what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Do it without asking.
    #[arg(long, short, conflicts_with = "dry_run")]
    yes: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
struct PlanView {
    folder: Option<String>,
    job: Option<String>,
    dropped: Vec<DroppedView>,
    retained: Vec<IdView>,
    kept: Vec<IdView>,
    bytes_reusable: u64,
    files: Vec<FileView>,
    notes: Vec<String>,
    done: bool,
    removed: Vec<String>,
    bytes_freed: u64,
    stores: Vec<FolderView>,
    files_removed: u64,
    failed: Vec<FailedView>,
}

#[derive(Debug, Serialize)]
struct DroppedView {
    number: u64,
    incarnation: u64,
    reason: &'static str,
    bytes_stored: u64,
}

#[derive(Debug, Serialize)]
struct FileView {
    name: String,
    bytes: u64,
    why: &'static str,
}

pub(crate) fn run(args: &PruneArgs) -> ExitCode {
    match prune(args) {
        Ok(code) => code,
        Err(failure) => failure.report(args.json),
    }
}

/// What goes: of an archive, of this node, of others.
struct Goes {
    plan: Option<PrunePlan>,
    stores: Vec<RemovalFolder>,
    distant: Distant,
}

impl Goes {
    fn is_empty(&self) -> bool {
        let of_archive = self.plan.as_ref().is_some_and(|plan| !plan.is_empty());
        !of_archive && self.stores.is_empty() && !self.distant.found()
    }
}

fn prune(args: &PruneArgs) -> Result<ExitCode, Failure> {
    let mut goes = look(args)?;
    if !args.json {
        if let Some(plan) = &goes.plan {
            show(args, plan);
        }
        if !goes.stores.is_empty() || goes.distant.found() {
            show_folders(&goes.stores, &goes.distant);
        }
    }
    let goes_on = !args.dry_run && !goes.is_empty() && (args.yes || agrees(args)?);
    let (mut done, mut removed) = (Pruned::default(), Removed::default());
    if goes_on {
        removed = remove(&goes.stores)?;
        let words = words_of(args, "--yes");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if goes.distant.found() {
            goes.distant.carry_out(&args.remote, &words, &mut removed);
        }
        if let Some(plan) = &goes.plan {
            done = carry_out(plan)?;
        }
    }
    let is_done = goes.distant.failed.is_empty();
    if args.json {
        print_json(&PlanView::new(goes, goes_on, done, &removed));
    } else {
        goes.distant.complain();
        tell(&goes, goes_on, &done, &removed);
    }
    Ok(if is_done {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(WRONG)
    })
}

/// What goes by the arguments and the settings.
fn look(args: &PruneArgs) -> Result<Goes, Failure> {
    let of_nodes = args.only == Some(Only::Nodes) || args.remote.is_asked();
    if of_nodes && !args.finished {
        let message =
            "of stores on nodes only those of finished jobs go: --finished; rm removes others";
        return Err(Failure::usage(message));
    }
    let config = Config::from_environment()?;
    let older = args.older.map(Duration::from_secs);
    let with_nodes = args.finished && args.folder.is_none() && args.only != Some(Only::Archives);
    let stores = if with_nodes {
        let mut places = stored_places(&config);
        places.retain(|place| place.is_dir());
        finished_stores(&places, job(args, &config), older)?
    } else {
        Vec::new()
    };
    let mut distant = Distant::default();
    if args.remote.is_asked() {
        let words = words_of(args, "--dry-run");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        distant.ask(&args.remote, &words);
    }
    let has_archive = args.folder.is_some() || config.archive.is_some() || !with_nodes;
    if !has_archive || args.only == Some(Only::Nodes) {
        let plan = None;
        return Ok(Goes {
            plan,
            stores,
            distant,
        });
    }
    let options = PruneOptions {
        retained: args.retained.map(backstay_format::width::index),
        older,
        finished: args.finished,
        keep: args.keep.clone(),
        release: args.release.clone(),
    };
    let folder = folder_of_job(&place(args, &config)?)?;
    Ok(Goes {
        plan: Some(plan(&folder, &options)?),
        stores,
        distant,
    })
}

/// The job that is named, here or in the settings.
fn job<'a>(args: &'a PruneArgs, config: &'a Config) -> Option<&'a str> {
    args.job.as_deref().or(config.job.as_deref())
}

/// The words of this command for the stores of another node.
fn words_of(args: &PruneArgs, how: &str) -> Vec<String> {
    let mut words: Vec<String> = ["prune", "--finished", "--only", "nodes", "--json"]
        .map(str::to_owned)
        .to_vec();
    if let Some(job) = &args.job {
        words.extend(["--job".to_owned(), job.clone()]);
    }
    if let Some(older) = args.older {
        words.extend(["--older".to_owned(), format!("{older}s")]);
    }
    words.push(how.to_owned());
    words
}

/// Asks, where somebody can answer.
fn agrees(args: &PruneArgs) -> Result<bool, Failure> {
    let answer = if args.json {
        None
    } else {
        ask("Do this? [y/N] ")
    };
    let Some(answer) = answer else {
        let message = "nothing was done: give --yes to do it, or --dry-run to only see it";
        return Err(Failure::usage(message));
    };
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// What was done.
fn tell(goes: &Goes, goes_on: bool, done: &Pruned, removed: &Removed) {
    if !goes_on {
        result("nothing was done");
        return;
    }
    done.notes.iter().for_each(|note| complain(note));
    let dropped = goes.plan.as_ref().map(|plan| plan.retention.dropped.len());
    let files = backstay_format::width::to_u64(done.removed.len()) + removed.files;
    result(&format!(
        "done: {} dropped, {} removed, {} freed",
        counted(dropped.unwrap_or(0), "checkpoint"),
        counted(files, "file"),
        human_bytes(done.bytes_freed + removed.bytes_freed)
    ));
}

/// The folder given, or that of the settings; of one job if one is named.
fn place(args: &PruneArgs, config: &Config) -> Result<PathBuf, Failure> {
    let (folder, job) = if let Some(folder) = &args.folder {
        (folder.clone(), args.job.clone())
    } else {
        let folder = config
            .archive
            .clone()
            .ok_or_else(|| Failure::usage("which archive? Give its folder, or BACKSTAY_ARCHIVE"))?;
        (folder, job(args, config).map(str::to_owned))
    };
    // The folder of the job itself has no other of its name in it.
    let below = job.map(|job| job_folder(&folder, &job));
    let folder = below.filter(|below| below.is_dir()).unwrap_or(folder);
    if folder.exists() {
        Ok(folder)
    } else {
        Err(no_such_path(&folder))
    }
}

/// The one archive at or below `path`.
fn folder_of_job(path: &Path) -> Result<PathBuf, Failure> {
    let mut folders = Vec::new();
    for found in glance_archives(path) {
        match found {
            Ok(archive) => folders.push(archive.folder),
            Err(unreadable) => return Err(unreadable.error.into()),
        }
    }
    match &*folders {
        [folder] => Ok(folder.clone()),
        [] => {
            let message = format!(
                "{}: there is no archive of a job; give the folder of the job in the archive",
                path.display()
            );
            Err(Failure::named("nothing there", message))
        }
        several => {
            let names: Vec<String> = several.iter().map(|f| f.display().to_string()).collect();
            let message = format!(
                "there are archives of several jobs; give --job, or one of {}",
                names.join(", ")
            );
            Err(Failure::new(ErrorKind::InvalidArgument, message))
        }
    }
}

const fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Abandoned => "abandoned: a later start resumed from an older one",
        Reason::Superseded => "superseded: enough newer ones stay",
    }
}

fn show(args: &PruneArgs, plan: &PrunePlan) {
    results(&[format!(
        "job {}, archive {}",
        plan.job,
        plan.folder.display()
    )]);
    let marks = [
        (&args.keep, "kept from now on"),
        (&args.release, "kept no longer"),
    ];
    for (numbers, what) in marks.into_iter().filter(|(numbers, _)| !numbers.is_empty()) {
        let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        let (plural, are) = if numbers.len() == 1 {
            ("", "is")
        } else {
            ("s", "are")
        };
        result(&format!(
            "checkpoint{plural} {} {are} {what}",
            texts.join(", ")
        ));
    }
    let dropped = plan.retention.dropped.iter().map(|dropped| {
        let stored = human_bytes(dropped.bytes_written);
        vec![
            short(dropped.checkpoint),
            "goes".to_owned(),
            stored,
            reason(dropped.reason).to_owned(),
        ]
    });
    let retained = plan.retention.retained.iter().map(|&id| {
        let why = if plan.kept.contains(&id) { "kept" } else { "" };
        vec![short(id), "stays".to_owned(), String::new(), why.to_owned()]
    });
    let rows: Vec<Vec<String>> = dropped.chain(retained).collect();
    let table = Table {
        head: &["CHECKPOINT", "", "STORED FOR IT", "WHY"],
        right: &[2],
        less: &[],
    };
    print_table(table, &rows);
    for file in &plan.files {
        let bytes = human_bytes(file.bytes);
        result(&format!("file {} goes, {bytes}: {}", file.name, file.why));
    }
    result(&format!(
        "{} inside the files are free then",
        human_bytes(plan.bytes_reusable)
    ));
    plan.notes.iter().for_each(|note| complain(note));
}

impl PlanView {
    fn new(goes: Goes, done: bool, pruned: Pruned, removed: &Removed) -> Self {
        let ids = |ids: &[backstay::CheckpointId]| ids.iter().map(|&id| id.into()).collect();
        let here = goes.stores.iter().map(FolderView::new);
        let mut view = Self {
            notes: pruned.notes,
            done,
            removed: pruned.removed,
            bytes_freed: pruned.bytes_freed + removed.bytes_freed,
            files_removed: removed.files,
            stores: here.chain(goes.distant.folders).collect(),
            failed: goes.distant.failed,
            ..Self::default()
        };
        let Some(plan) = &goes.plan else { return view };
        let dropped = plan.retention.dropped.iter().map(|dropped| DroppedView {
            number: dropped.checkpoint.number,
            incarnation: dropped.checkpoint.incarnation,
            reason: reason(dropped.reason),
            bytes_stored: dropped.bytes_written,
        });
        let files = plan.files.iter().map(|file| FileView {
            name: file.name.clone(),
            bytes: file.bytes,
            why: file.why,
        });
        view.folder = Some(plan.folder.display().to_string());
        view.job = Some(plan.job.clone());
        view.dropped = dropped.collect();
        view.retained = ids(&plan.retention.retained);
        view.kept = ids(&plan.kept);
        view.bytes_reusable = plan.bytes_reusable;
        view.files = files.collect();
        view.notes = [plan.notes.clone(), view.notes].concat();
        view
    }
}
