// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay rm`: removes what jobs left: stores of this node and of others that are named, and archives.

use super::remote::Remote;
use crate::output::{
    Failure, WRONG, ask, complain, counted, human_bytes, print_json, print_table, result,
};
use crate::select::{no_such_path, stored_places};
use crate::table::Table;
use backstay::Config;
use backstay_archive::job_folder;
use backstay_inspect::{
    Elsewhere, RemovalFolder, RemovalKind, Removed, elsewhere, removal, remove,
};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Removes what a job left: its stores on this node, its archive, and with --nodes its stores on others. Shows what
/// goes before anything is done, says which other nodes keep something, and refuses what a process uses. Files that
/// are not Backstay's stay.
#[derive(Debug, clap::Args)]
pub(crate) struct RmArgs {
    /// Names of jobs; or, with a slash in them, store files, archives, or folders above them. A job's stores are
    /// looked for where jobs keep them, and where `BACKSTAY_STORE_PATH`, `BACKSTAY_ARCHIVE` and
    /// `BACKSTAY_CONFIG` say.
    #[arg(value_name = "JOB|PATH", required_unless_present = "job")]
    what: Vec<String>,
    /// Only what is of this job
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Only stores of this node, or only archives
    #[arg(long, value_name = "WHAT")]
    only: Option<Only>,
    #[command(flatten)]
    remote: Remote,
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
pub(crate) enum Only {
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
    elsewhere: Vec<ElsewhereView>,
    failed: Vec<FailedView>,
}

/// Other nodes of a job, which keep what they have.
#[derive(Debug, Serialize)]
struct ElsewhereView {
    job: String,
    nodes: Vec<String>,
    more: u32,
}

/// A node on which it could not be done.
#[derive(Debug, Serialize)]
pub(crate) struct FailedView {
    node: String,
    message: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct FolderView {
    /// The node that it is on, where that is another.
    host: Option<String>,
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
        Ok(code) => code,
        Err(failure) => failure.report(args.json),
    }
}

fn rm(args: &RmArgs) -> Result<ExitCode, Failure> {
    if args.remote.is_asked() && args.only == Some(Only::Archives) {
        return Err(Failure::usage(
            "--nodes is of stores, and --only archives of none",
        ));
    }
    let folders = chosen(args)?;
    let mut distant = Distant::default();
    for job in jobs(args, &folders) {
        distant.ask(
            &args.remote,
            &["rm", &job, "--only", "nodes", "--json", "--dry-run"],
        );
    }
    if folders.is_empty() && distant.folders.is_empty() && distant.failed.is_empty() {
        return Err(nothing(&args.what.join(" "), args));
    }
    let others = if args.only.is_none() {
        elsewhere(&folders)
    } else {
        Vec::new()
    };
    let others = left_out(others, &distant);
    if !args.json {
        show(&folders, &distant);
        others.iter().for_each(tell);
    }
    let goes_on = !args.dry_run && (args.yes || agrees(args)?);
    let mut removed = Removed::default();
    if goes_on {
        removed = remove(&folders)?;
        let found = std::mem::take(&mut distant.asked);
        for words in found {
            let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
            words.pop();
            words.push("--yes");
            distant.carry_out(&args.remote, &words, &mut removed);
        }
    }
    let is_done = distant.failed.is_empty();
    if args.json {
        let here = folders.iter().map(FolderView::new);
        print_json(&View {
            folders: here.chain(distant.folders).collect(),
            done: goes_on,
            files_removed: removed.files,
            bytes_freed: removed.bytes_freed,
            elsewhere: others.into_iter().map(ElsewhereView::new).collect(),
            failed: distant.failed,
        });
    } else {
        distant.complain();
        if goes_on {
            result(&format!(
                "done: {} removed, {} freed",
                counted(removed.files, "file"),
                human_bytes(removed.bytes_freed)
            ));
        } else {
            result("nothing was removed");
        }
    }
    Ok(if is_done {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(WRONG)
    })
}

/// The jobs that other nodes are asked of: those named, and those of the folders.
fn jobs(args: &RmArgs, folders: &[RemovalFolder]) -> BTreeSet<String> {
    if !args.remote.is_asked() {
        return BTreeSet::new();
    }
    let named = args.what.iter().filter(|what| !what.contains('/'));
    let of_folders = folders.iter().filter_map(|folder| folder.job.clone());
    named
        .cloned()
        .chain(args.job.clone())
        .chain(of_folders)
        .collect()
}

/// What other nodes have, and what they said.
#[derive(Debug, Default)]
pub(crate) struct Distant {
    pub(crate) folders: Vec<FolderView>,
    pub(crate) failed: Vec<FailedView>,
    /// What was asked, where something was found.
    asked: Vec<Vec<String>>,
    /// Nodes that were asked.
    nodes: BTreeSet<String>,
}

impl Distant {
    /// Asks all of them what they would remove.
    pub(crate) fn ask(&mut self, remote: &Remote, words: &[&str]) {
        let before = self.folders.len();
        for (node, answer) in remote.run(words) {
            match answer {
                Ok(found) => {
                    let found = found.as_ref().and_then(|value| folders_of(value));
                    let views = found.into_iter().flatten();
                    self.folders
                        .extend(views.map(|folder| FolderView::of_json(&node, folder)));
                }
                Err(message) => self.failed.push(FailedView {
                    node: node.clone(),
                    message,
                }),
            }
            self.nodes.insert(node);
        }
        if self.folders.len() > before {
            self.asked
                .push(words.iter().map(|&word| word.to_owned()).collect());
        }
    }

    /// Has all of them do it; those that could not be asked were told of.
    pub(crate) fn carry_out(&mut self, remote: &Remote, words: &[&str], removed: &mut Removed) {
        for (node, answer) in remote.run(words) {
            let is_told = self.failed.iter().any(|failed| failed.node == node);
            match answer {
                Ok(value) => {
                    let value = value.unwrap_or_default();
                    let number = |key: &str| value[key].as_u64().unwrap_or(0);
                    removed.files += number("files_removed");
                    removed.bytes_freed += number("bytes_freed");
                }
                Err(message) if !is_told => self.failed.push(FailedView { node, message }),
                Err(_) => {}
            }
        }
    }

    /// Whether any of them has something.
    pub(crate) fn found(&self) -> bool {
        !self.folders.is_empty()
    }

    /// Says on which nodes it could not be done.
    pub(crate) fn complain(&self) {
        for failed in &self.failed {
            complain(&format!("node {}: {}", failed.node, failed.message));
        }
    }
}

/// The folders in an answer of `rm` or `prune`.
fn folders_of(value: &Value) -> Option<&Vec<Value>> {
    let folders = value["folders"].as_array();
    folders.or_else(|| value["stores"].as_array())
}

/// The nodes that keep something: without those that were asked.
fn left_out(mut others: Vec<Elsewhere>, distant: &Distant) -> Vec<Elsewhere> {
    for other in &mut others {
        let before = other.nodes.len();
        other.nodes.retain(|node| !distant.nodes.contains(node));
        // Nodes without a name here may be those that were asked.
        let named = before - other.nodes.len();
        let asked = u32::try_from(distant.nodes.len().saturating_sub(named)).unwrap_or(u32::MAX);
        other.more = other.more.saturating_sub(asked);
    }
    others.retain(|other| other.more > 0 || !other.nodes.is_empty());
    others
}

/// Which other nodes keep something of a job, and what removes that.
fn tell(other: &Elsewhere) {
    let Elsewhere { job, nodes, more } = other;
    let names: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let list = names.join(",");
    if !names.is_empty() {
        complain(&format!(
            "job {job} was on {} too, which keep{} what they have: backstay rm {job} --nodes {list} asks them by ssh",
            names.join(", "),
            if names.len() == 1 { "s" } else { "" }
        ));
    }
    if *more > 0 {
        complain(&format!(
            "job {job} was on {} whose names are not known here, and which may keep something: give them as --nodes \
             HOSTS, or run on each of them: backstay rm {job} --yes --only nodes",
            counted(
                u64::from(*more),
                if names.is_empty() {
                    "node"
                } else {
                    "more node"
                }
            )
        ));
    }
}

impl ElsewhereView {
    fn new(other: Elsewhere) -> Self {
        Self {
            job: other.job,
            nodes: other.nodes.into_iter().collect(),
            more: other.more,
        }
    }
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
        if found.is_empty() && !args.remote.is_asked() {
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

pub(crate) fn show(folders: &[RemovalFolder], distant: &Distant) {
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
    let there = |folder: &FolderView| {
        let host = folder.host.as_deref().unwrap_or("?");
        vec![
            folder.job.clone().unwrap_or_else(|| "?".to_owned()),
            format!("node {}", folder.node.as_deref().unwrap_or("?")),
            folder.files.len().to_string(),
            human_bytes(folder.bytes),
            format!("{host}:{}", folder.folder),
        ]
    };
    let here = folders.iter().map(row);
    let rows: Vec<Vec<String>> = here.chain(distant.folders.iter().map(there)).collect();
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
    /// What another node says.
    fn of_json(host: &str, value: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let texts = |value: &Value| {
            let all = value.as_array().into_iter().flatten();
            all.filter_map(text).collect()
        };
        Self {
            host: Some(host.to_owned()),
            folder: text(&value["folder"]).unwrap_or_default(),
            kind: "node",
            job: text(&value["job"]),
            node: text(&value["node"]),
            files: texts(&value["files"]),
            bytes: value["bytes"].as_u64().unwrap_or(0),
            left: texts(&value["left"]),
        }
    }

    pub(crate) fn new(folder: &RemovalFolder) -> Self {
        let shown = |paths: &[PathBuf]| {
            paths
                .iter()
                .map(|path| path.display().to_string())
                .collect()
        };
        Self {
            host: None,
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
