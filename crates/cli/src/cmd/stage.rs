// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay stage`: a staging server: pulls checkpoints from the nodes of a job and archives them.
//!
//! Purpose: from arguments to the staging server.
//! In from: the archive's folder, a job's name; SIGTERM and SIGINT. Out to: messages on standard error.
//! Invariants: any number of servers a job; each ends when it is told to, or its job is over.

use crate::output::{Failure, complain};
use backstay::Config;
use backstay_archive::job_folder;
use backstay_service::staging::{Ended, StageOptions, run as run_server};
use backstay_store::place;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Pulls checkpoints from the nodes of a job and archives them.
#[derive(Debug, clap::Args)]
pub(crate) struct StageArgs {
    /// Folder of the archive [default: what `BACKSTAY_ARCHIVE` or the application's configuration names]
    #[arg(value_name = "DIR")]
    archive: Option<PathBuf>,
    /// Name of the job that it serves [default: what `BACKSTAY_JOB` or the configuration names]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Name of the server, unique among those of the job; by default that of the host
    #[arg(long)]
    name: Option<String>,
    /// Address at which it answers, as in 10.0.0.1:0; by default the host's own, and any port
    #[arg(long, value_name = "ADDRESS", env = "BACKSTAY_LISTEN_ADDRESS")]
    listen: Option<String>,
}

pub(crate) fn run(args: &StageArgs) -> ExitCode {
    match serve(args) {
        Ok(ended) => {
            let why = match ended {
                Ended::JobOver => "its job is over",
                Ended::Asked => "it was told to",
            };
            complain(&format!("the staging server ends: {why}"));
            ExitCode::SUCCESS
        }
        Err(failure) => failure.report(false),
    }
}

fn serve(args: &StageArgs) -> Result<Ended, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::output("watching for signals", &error))?;
    }
    let config = Config::from_environment()?;
    let transports = config.transports();
    let Some(job) = args.job.clone().or(config.job) else {
        let message = "which job? Give --job, or BACKSTAY_JOB, as the application names it";
        return Err(Failure::usage(message));
    };
    let Some(archive) = args.archive.clone().or(config.archive) else {
        let message = "which archive? Give its folder, or BACKSTAY_ARCHIVE";
        return Err(Failure::usage(message));
    };
    let options = StageOptions {
        transports,
        folder: job_folder(&archive, &job),
        job: job.clone(),
        name: args
            .name
            .clone()
            .or(config.node)
            .unwrap_or_else(place::node_name),
        listen: args.listen.clone(),
        over: std::env::var_os("BACKSTAY_RENDEZVOUS").map(|folder| Path::new(&folder).join("over")),
    };
    let ended = run_server(&options, &stop, |address| {
        let name = &options.name;
        complain(&format!(
            "staging server {name} of job {job} answers at {address}"
        ));
    })?;
    Ok(ended)
}
