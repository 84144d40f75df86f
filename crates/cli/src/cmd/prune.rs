// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay prune`: takes checkpoints out of an archive while no job runs on it.

use crate::output::{
    Failure, ask, complain, counted, human_bytes, print_json, print_table, result, results,
};
use crate::select::no_such_path;
use crate::table::Table;
use crate::view::{IdView, short};
use backstay::{Config, ErrorKind};
use backstay_archive::drain::prune::{PruneOptions, PrunePlan, Pruned, carry_out, plan};
use backstay_archive::job_folder;
use backstay_archive::retention::Reason;
use backstay_base::units;
use backstay_inspect::glance_archives;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Takes checkpoints out of an archive, and files that nothing refers to any more. Shows what goes and
/// why before anything is done.
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
    /// checkpoint stays.
    #[arg(long)]
    finished: bool,
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

#[derive(Debug, Serialize)]
struct PlanView {
    folder: String,
    job: String,
    dropped: Vec<DroppedView>,
    retained: Vec<IdView>,
    kept: Vec<IdView>,
    bytes_reusable: u64,
    files: Vec<FileView>,
    notes: Vec<String>,
    done: bool,
    removed: Vec<String>,
    bytes_freed: u64,
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
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(args.json),
    }
}

fn prune(args: &PruneArgs) -> Result<(), Failure> {
    let folder = folder_of_job(&place(args)?)?;
    let options = PruneOptions {
        retained: args.retained.map(backstay_format::width::index),
        older: args.older.map(Duration::from_secs),
        finished: args.finished,
        keep: args.keep.clone(),
        release: args.release.clone(),
    };
    let plan = plan(&folder, &options)?;
    if !args.json {
        show(args, &plan);
    }
    let goes_on = if args.dry_run || plan.is_empty() {
        false
    } else if args.yes {
        true
    } else {
        let answer = if args.json {
            None
        } else {
            ask("Do this? [y/N] ")
        };
        let Some(answer) = answer else {
            let message = "nothing was done: give --yes to do it, or --dry-run to only see it";
            return Err(Failure::usage(message));
        };
        matches!(answer.trim(), "y" | "Y" | "yes")
    };
    let done = if goes_on {
        carry_out(&plan)?
    } else {
        Pruned::default()
    };
    if args.json {
        print_json(&PlanView::new(&plan, goes_on, done));
    } else if goes_on {
        done.notes.iter().for_each(|note| complain(note));
        result(&format!(
            "done: {} dropped, {} removed, {} freed",
            counted(plan.retention.dropped.len(), "checkpoint"),
            counted(done.removed.len(), "file"),
            human_bytes(done.bytes_freed)
        ));
    } else {
        result("nothing was done");
    }
    Ok(())
}

/// The folder given, or that of the settings; of one job if one is named.
fn place(args: &PruneArgs) -> Result<PathBuf, Failure> {
    let (folder, job) = if let Some(folder) = &args.folder {
        (folder.clone(), args.job.clone())
    } else {
        let config = Config::from_environment()?;
        let folder = config
            .archive
            .ok_or_else(|| Failure::usage("which archive? Give its folder, or BACKSTAY_ARCHIVE"))?;
        (folder, args.job.clone().or(config.job))
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
    fn new(plan: &PrunePlan, done: bool, pruned: Pruned) -> Self {
        let ids = |ids: &[backstay::CheckpointId]| ids.iter().map(|&id| id.into()).collect();
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
        Self {
            folder: plan.folder.display().to_string(),
            job: plan.job.clone(),
            dropped: dropped.collect(),
            retained: ids(&plan.retention.retained),
            kept: ids(&plan.kept),
            bytes_reusable: plan.bytes_reusable,
            files: files.collect(),
            notes: [plan.notes.clone(), pruned.notes].concat(),
            done,
            removed: pruned.removed,
            bytes_freed: pruned.bytes_freed,
        }
    }
}
