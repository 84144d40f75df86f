// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay import`: checkpoints that programs wrote as files, into an archive.

mod pattern;
mod plan;

use crate::interrupt;
use crate::output::{Failure, counted, human_bytes, print_json, progress, result, results};
use crate::view::{IdView, ratio};
use backstay::{Config, Error};
use backstay_archive::aggregate::Merge;
use backstay_archive::drain::import::{
    Import, ImportCheckpoint, ImportPlan, ImportedCheckpoint, Stage,
};
use backstay_archive::job_folder;
use backstay_base::units;
use backstay_format::drain::ArchiveCodec;
use backstay_inspect::share;
use pattern::Pattern;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Takes checkpoints that programs wrote as files into an archive: merged over ranks, compressed by what the files
/// hold (HDF5, netCDF-4, npy, other bytes), and read back before they count.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// Files, or folders of files. Without --pattern each file is a rank's, in the order of their names, of one
    /// checkpoint.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// The folder of archives; the job has one below it [env: `BACKSTAY_ARCHIVE`]
    #[arg(long, short, value_name = "DIR")]
    archive: Option<PathBuf>,
    /// The job that the checkpoints are to be of; by default the name of the folder of files [env: `BACKSTAY_JOB`]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// What the names of files say, below a folder that is given: `restart.{step}.{rank}.h5`, `ckpt.{step}/{rank}.nc`.
    /// `*` stands for anything. Files that do not fit are left out. May be given several times.
    #[arg(long, short, value_name = "PATTERN", value_parser = Pattern::parse)]
    pattern: Vec<Pattern>,
    /// The number of the checkpoint, where names say none; by default the next one.
    #[arg(long, short, value_name = "N", conflicts_with = "add")]
    number: Option<u64>,
    /// Checkpoint numbers are those of steps, and so much: they begin at 1.
    #[arg(long, value_name = "N", default_value_t = 0)]
    add: u64,
    /// How ranks are merged: concatenate, interleave or none [default: that of the settings]
    #[arg(long, value_name = "HOW", value_parser = parse_merge)]
    merge: Option<Merge>,
    /// Ranks that are merged with each other [default: that of the settings]
    #[arg(long, value_name = "N", value_parser = units::count)]
    group_size: Option<u32>,
    /// How codecs are chosen: ratio, auto or raw.
    #[arg(long, value_name = "HOW", default_value = "ratio", value_parser = parse_codec)]
    codec: ArchiveCodec,
    /// Threads that read and compress [default: the cores that this process may use]
    #[arg(long, value_name = "N", value_parser = units::count)]
    threads: Option<u32>,
    /// Only show what would be imported.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn parse_merge(text: &str) -> Result<Merge, String> {
    let all = [Merge::None, Merge::Concatenate, Merge::Interleave];
    let found = all.into_iter().find(|merge| merge.name() == text);
    found.ok_or_else(|| "one of none, concatenate, interleave".to_owned())
}

fn parse_codec(text: &str) -> Result<ArchiveCodec, String> {
    Ok(match text {
        "auto" => ArchiveCodec::Auto,
        "ratio" => ArchiveCodec::Ratio,
        "raw" => ArchiveCodec::Raw,
        _ => return Err("one of ratio, auto, raw".to_owned()),
    })
}

#[derive(Debug, Serialize)]
struct ImportView {
    folder: String,
    job: String,
    done: bool,
    checkpoints: Vec<CheckpointView>,
    left_out: Vec<String>,
}

#[derive(Debug, Serialize)]
struct CheckpointView {
    #[serde(flatten)]
    id: IdView,
    ranks: u64,
    files: u64,
    datasets: Option<u64>,
    bytes: u64,
    bytes_changed: Option<u64>,
    bytes_equal: Option<u64>,
    bytes_stored: Option<u64>,
}

pub(crate) fn run(args: &ImportArgs) -> ExitCode {
    match import(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(args.json),
    }
}

fn import(args: &ImportArgs) -> Result<(), Failure> {
    let found = plan::find(&args.paths, &args.pattern)?;
    let (config, folder, job) = target(args)?;
    let mut view = ImportView {
        folder: folder.display().to_string(),
        job: job.clone(),
        done: !args.dry_run,
        checkpoints: Vec::new(),
        left_out: found.left_out.clone(),
    };
    if args.dry_run {
        for (step, ranks) in &found.checkpoints {
            let number = number_of(args, *step, 0)?;
            view.checkpoints
                .push(CheckpointView::planned(number, ranks));
        }
        show(args, &view);
        return Ok(());
    }
    interrupt::watch()?;
    let mut settings = config.drain_settings();
    settings.threads = args.threads.unwrap_or_else(cores);
    let plan = ImportPlan {
        folder,
        job,
        settings,
    };
    let mut import = Import::open(plan)?;
    let mut wanted = Vec::new();
    for (step, ranks) in found.checkpoints {
        let number = number_of(args, step, import.newest())?;
        wanted.push(ImportCheckpoint { number, ranks });
    }
    if wanted.len() > import.room() {
        let message = format!(
            "{} are more than the {} that the archive has room for: give fewer files, prune it, or import to another \
             --job",
            counted(wanted.len(), "checkpoint"),
            import.room()
        );
        return Err(Failure::named("too many checkpoints", message));
    }
    for checkpoint in &wanted {
        let done = add(&mut import, checkpoint)?;
        view.checkpoints.push(CheckpointView::done(&done));
    }
    show(args, &view);
    Ok(())
}

/// The settings, the folder of the archive, and the job.
fn target(args: &ImportArgs) -> Result<(Config, PathBuf, String), Failure> {
    let mut config = Config::from_environment()?;
    let archive = args.archive.clone().or_else(|| config.archive.clone());
    let archive = archive
        .ok_or_else(|| Failure::usage("which archive? Give --archive, or BACKSTAY_ARCHIVE"))?;
    let of_folder = match &*args.paths {
        [one] if one.is_dir() => one.canonicalize().ok(),
        _ => None,
    };
    let of_folder = of_folder.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let job = args
        .job
        .clone()
        .or_else(|| config.job.clone())
        .or(of_folder);
    let job = job.ok_or_else(|| Failure::usage("of which job are these files? Give --job NAME"))?;
    config.job = Some(job.clone());
    let archive = std::path::absolute(&archive)
        .map_err(|error| Failure::output(&archive.display().to_string(), &error))?;
    config.archive = Some(archive.clone());
    config.archive_codec = args.codec;
    config.archive_merge = args.merge.unwrap_or(config.archive_merge);
    config.archive_group_size = args.group_size.unwrap_or(config.archive_group_size);
    config.validate()?;
    Ok((config, job_folder(&archive, &job), job))
}

/// The number of the checkpoint of a step; where names say none the one asked for, or the one after `newest`.
fn number_of(args: &ImportArgs, step: Option<u64>, newest: u64) -> Result<u64, Failure> {
    let number = match (step, args.number) {
        (Some(_), Some(_)) => {
            let message = "--number is for files whose names say no step: leave it out, or {step} of the pattern";
            return Err(Failure::usage(message));
        }
        (Some(step), None) => step.saturating_add(args.add),
        (None, Some(number)) => number,
        (None, None) => newest + 1,
    };
    if number == 0 {
        let message = "checkpoints are numbered from 1: give --add 1, and step 0 is checkpoint 1";
        return Err(Failure::usage(message));
    }
    Ok(number)
}

fn cores() -> u32 {
    let cores = std::thread::available_parallelism();
    cores.map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
}

/// Imports a checkpoint; a bar for each stage shows how far it is.
fn add(import: &mut Import, checkpoint: &ImportCheckpoint) -> Result<ImportedCheckpoint, Failure> {
    let (state, cancel) = (import.progress(), import.cancel());
    let total = plan::bytes(&checkpoint.ranks);
    let done = std::thread::scope(|scope| {
        let adding = std::thread::Builder::new()
            .name("import".to_owned())
            .spawn_scoped(scope, || import.add(checkpoint))
            .map_err(|error| Error::io("starting a thread that imports", error))?;
        let mut shown: Option<(Stage, indicatif::ProgressBar)> = None;
        while !adding.is_finished() {
            if interrupt::came().is_some() {
                cancel.store(true, Ordering::Relaxed);
            }
            let (stage, done, of) = state.now();
            let of = if stage == Stage::Looking { total } else { of };
            if shown.as_ref().is_none_or(|(known, _)| *known != stage) {
                if let Some((_, bar)) = shown.take() {
                    bar.finish_and_clear();
                }
                shown = Some((stage, progress(words(stage), of, true)));
            }
            if let Some((_, bar)) = &shown {
                bar.set_length(of);
                bar.set_position(done);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Some((_, bar)) = shown {
            bar.finish_and_clear();
        }
        let panicked = |_| Error::new(backstay::ErrorKind::Internal, "an import panicked");
        adding.join().map_err(panicked).flatten()
    });
    match interrupt::came() {
        Some(signal) if done.is_err() => {
            let message = format!(
                "checkpoint {} is not in the archive: a signal came; those before it are",
                checkpoint.number
            );
            Err(Failure::interrupted(signal, message))
        }
        _ => Ok(done?),
    }
}

const fn words(stage: Stage) -> &'static str {
    match stage {
        Stage::Looking => "reading",
        Stage::Storing => "compressing",
        Stage::Verifying => "verifying",
    }
}

impl CheckpointView {
    fn planned(number: u64, ranks: &[Vec<backstay_archive::drain::import::ImportFile>]) -> Self {
        let files: usize = ranks.iter().map(Vec::len).sum();
        Self {
            id: IdView {
                number,
                incarnation: 0,
            },
            ranks: backstay_format::width::to_u64(ranks.len()),
            files: backstay_format::width::to_u64(files),
            datasets: None,
            bytes: plan::bytes(ranks),
            bytes_changed: None,
            bytes_equal: None,
            bytes_stored: None,
        }
    }

    fn done(done: &ImportedCheckpoint) -> Self {
        Self {
            id: IdView::from(done.checkpoint),
            ranks: u64::from(done.ranks),
            files: done.files,
            datasets: Some(done.datasets),
            bytes: done.bytes,
            bytes_changed: Some(done.bytes_changed),
            bytes_equal: Some(done.bytes_equal),
            bytes_stored: Some(done.bytes_stored),
        }
    }
}

fn show(args: &ImportArgs, view: &ImportView) {
    if args.json {
        print_json(view);
        return;
    }
    if !view.left_out.is_empty() {
        let names: Vec<&str> = view.left_out.iter().map(|name| &**name).take(8).collect();
        let more = if view.left_out.len() > 8 {
            " and others"
        } else {
            ""
        };
        results(&[format!("left out: {}{more}", names.join(", "))]);
    }
    let line = |one: &CheckpointView| {
        let head = format!(
            "checkpoint {}: {}, {}, {}",
            one.id.number,
            counted(one.ranks, "rank"),
            counted(one.files, "file"),
            human_bytes(one.bytes)
        );
        let (Some(stored), Some(changed), Some(datasets)) =
            (one.bytes_stored, one.bytes_changed, one.datasets)
        else {
            return head;
        };
        let times = if stored > 0 {
            share(one.bytes, stored)
        } else {
            0.0
        };
        format!(
            "{head} ({}), {} new, {} stored, ratio {}",
            counted(datasets, "dataset"),
            human_bytes(changed),
            human_bytes(stored),
            ratio((stored > 0).then_some(times))
        )
    };
    let lines: Vec<String> = view.checkpoints.iter().map(line).collect();
    results(&lines);
    let folder = Path::new(&view.folder).display();
    if view.done {
        result(&format!(
            "{folder}: all of it was read back and is as the files are"
        ));
    } else {
        result(&format!("{folder}: nothing was done"));
    }
}
