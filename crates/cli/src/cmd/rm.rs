// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay rm`: removes what jobs left, the stores of this node and archives.

use crate::output::{
    Failure, ask, complain, counted, human_bytes, print_json, print_table, result,
};
use crate::select::{no_such_path, stored_places};
use crate::table::Table;
use backstay::Config;
use backstay_archive::job_folder;
use backstay_inspect::{RemovalFolder, RemovalKind, Removed, removal, remove};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Removes what a job left: its stores on this node, and its archive. Shows what goes before anything is done,
/// and refuses what a process uses. Files that are not Backstay's stay.
#[derive(Debug, clap::Args)]
pub(crate) struct RmArgs {
    /// Names of jobs; or, with a slash in them, store files, archives, or folders above them. A job's stores are
    /// looked for where jobs keep them, and where `BACKSTAY_STORE_PATH`, `BACKSTAY_ARCHIVE` and
    /// `BACKSTAY_CONFIG` say; other nodes keep theirs.
    #[arg(value_name = "JOB|PATH", required_unless_present = "job")]
    what: Vec<String>,
    /// Only what is of this job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Only stores of this node, or only archives
    #[arg(long, value_name = "WHAT")]
    only: Option<Only>,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Do it without asking
    #[arg(long, short, conflicts_with = "dry_run")]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    /// Stores of this node
    Nodes,
    /// Archives
    Archives,
}

#[derive(Debug, Serialize)]
struct View {
    folders: Vec<FolderView>,
    done: bool,
    files_removed: u64,
    bytes_freed: u64,
}

#[derive(Debug, Serialize)]
struct FolderView {
    folder: String,
    kind: &'static str,
    job: Option<String>,
    node: Option<String>,
    files: Vec<String>,
    bytes: u64,
    left: Vec<String>,
}

pub(crate) fn run(args: &RmArgs) -> ExitCode {
    match rm(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(args.json),
    }
}

fn rm(args: &RmArgs) -> Result<(), Failure> {
    let folders = chosen(args)?;
    if !args.json {
        show(&folders);
    }
    let goes_on = !args.dry_run && (args.yes || agrees(args)?);
    let removed = if goes_on {
        remove(&folders)?
    } else {
        Removed::default()
    };
    if args.json {
        print_json(&View {
            folders: folders.iter().map(FolderView::new).collect(),
            done: goes_on,
            files_removed: removed.files,
            bytes_freed: removed.bytes_freed,
        });
    } else if goes_on {
        result(&format!(
            "done: {} removed, {} freed",
            counted(removed.files, "file"),
            human_bytes(removed.bytes_freed)
        ));
    } else {
        result("nothing was removed");
    }
    Ok(())
}

/// Asks, where somebody can answer.
fn agrees(args: &RmArgs) -> Result<bool, Failure> {
    let answer = if args.json {
        None
    } else {
        ask("Remove all this? It cannot be undone. [y/N] ")
    };
    let Some(answer) = answer else {
        let message = "nothing was removed: give --yes to do it, or --dry-run to only see it";
        return Err(Failure::usage(message));
    };
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// What the arguments name, each folder once. Each of them has to name something.
fn chosen(args: &RmArgs) -> Result<Vec<RemovalFolder>, Failure> {
    let is_wanted = |folder: &RemovalFolder| match args.only {
        None => true,
        Some(Only::Nodes) => folder.kind == RemovalKind::Node,
        Some(Only::Archives) => folder.kind == RemovalKind::Archive,
    };
    let mut all: Vec<RemovalFolder> = Vec::new();
    let by_name: Vec<String> = match (&*args.what, &args.job) {
        ([], Some(job)) => vec![job.clone()],
        (what, _) => what.to_vec(),
    };
    for what in &by_name {
        let found = if what.contains('/') {
            of_path(Path::new(what), args.job.as_deref())?
        } else {
            of_job(what)?
        };
        let found: Vec<RemovalFolder> = found.into_iter().filter(is_wanted).collect();
        if found.is_empty() {
            return Err(nothing(what, args));
        }
        for folder in found {
            if !all.iter().any(|known| known.folder == folder.folder) {
                all.push(folder);
            }
        }
    }
    let of_no_job_named: BTreeSet<&str> = all.iter().filter_map(|f| f.job.as_deref()).collect();
    if of_no_job_named.len() > 1 && args.what.len() == 1 && args.job.is_none() {
        complain(&format!(
            "these are of {}",
            counted(of_no_job_named.len(), "job")
        ));
    }
    Ok(all)
}

fn of_path(path: &Path, job: Option<&str>) -> Result<Vec<RemovalFolder>, Failure> {
    if !path.exists() {
        return Err(no_such_path(path));
    }
    Ok(removal(&[path.to_owned()], job)?)
}

/// What there is of a job in the places where jobs keep their stores, and in the archive that is set.
fn of_job(job: &str) -> Result<Vec<RemovalFolder>, Failure> {
    let config = Config::from_environment()?;
    let mut places: Vec<PathBuf> = stored_places(&config)
        .into_iter()
        .map(|place| place.join(job))
        .collect();
    places.extend(config.archive.map(|archive| job_folder(&archive, job)));
    places.retain(|place| place.is_dir());
    let mut all = Vec::new();
    for place in places {
        // What a name leads to is of that job, or says nothing of it any more.
        let found = removal(&[place], None)?;
        all.extend(found.into_iter().filter(|folder| {
            let said = folder.job.as_deref();
            said.is_none_or(|said| said == job)
        }));
    }
    Ok(all)
}

fn nothing(what: &str, args: &RmArgs) -> Failure {
    let kind = match args.only {
        None => "nothing of Backstay's",
        Some(Only::Nodes) => "no store of a node",
        Some(Only::Archives) => "no archive",
    };
    let message = if what.contains('/') {
        let of = args.job.as_ref();
        let of = of.map_or(String::new(), |job| format!(" of job {job:?}"));
        format!("{what}: there is {kind}{of}")
    } else {
        format!(
            "there is {kind} of a job {what:?} in the places of this node and of the settings; a path has a \
             slash in it: ./{what}"
        )
    };
    Failure::named("nothing there", message)
}

fn show(folders: &[RemovalFolder]) {
    let row = |folder: &RemovalFolder| {
        vec![
            folder.job.clone().unwrap_or_else(|| "?".to_owned()),
            match folder.kind {
                RemovalKind::Node => {
                    format!("node {}", folder.node.as_deref().unwrap_or("?"))
                }
                RemovalKind::Archive => "archive".to_owned(),
            },
            folder.files.len().to_string(),
            human_bytes(folder.bytes),
            folder.folder.display().to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = folders.iter().map(row).collect();
    let table = Table {
        head: &["JOB", "WHAT", "FILES", "BYTES", "FOLDER"],
        right: &[2, 3],
        less: &[],
    };
    print_table(table, &rows);
    for file in folders.iter().flat_map(|folder| &folder.foreign) {
        complain(&format!("{} stays: it is not Backstay's", file.display()));
    }
}

impl FolderView {
    fn new(folder: &RemovalFolder) -> Self {
        let shown = |paths: &[PathBuf]| {
            paths
                .iter()
                .map(|path| path.display().to_string())
                .collect()
        };
        Self {
            folder: folder.folder.display().to_string(),
            kind: match folder.kind {
                RemovalKind::Node => "node",
                RemovalKind::Archive => "archive",
            },
            job: folder.job.clone(),
            node: folder.node.clone(),
            files: shown(&[&*folder.files, &*folder.routed].concat()),
            bytes: folder.bytes,
            left: shown(&folder.foreign),
        }
    }
}
