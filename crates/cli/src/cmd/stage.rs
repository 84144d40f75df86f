// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay stage`: a staging server: pulls checkpoints from the nodes of a job and archives them.
//!
//! Purpose: from arguments to the staging server.
//! In from: the archive's folder, a job's name; SIGTERM and SIGINT. Out to: messages on standard error.
//! Invariants: any number of servers a job; each ends when it is told to, or its job is over.

use crate::output::complain;
use backstay::{Config, Error, ErrorKind, Result};
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
    /// Folder of the archive, as the application's configuration names it
    #[arg(value_name = "DIR", env = "BACKSTAY_ARCHIVE")]
    archive: PathBuf,
    /// Name of the job that it serves
    #[arg(long, env = "BACKSTAY_JOB")]
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
            complain(&format!("backstay: the staging server ends: {why}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&format!("backstay: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &StageArgs) -> Result<Ended> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| {
            Error::caused(ErrorKind::Unsupported, "watching for signals", error)
        })?;
    }
    let config = Config::from_environment()?;
    let Some(job) = args.job.clone().or(config.job) else {
        let context = "which job? Give --job as the application names it";
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    };
    let options = StageOptions {
        folder: job_folder(&args.archive, &job),
        job: job.clone(),
        name: args
            .name
            .clone()
            .or(config.node)
            .unwrap_or_else(place::node_name),
        listen: args.listen.clone(),
        over: std::env::var_os("BACKSTAY_RENDEZVOUS").map(|folder| Path::new(&folder).join("over")),
    };
    run_server(&options, &stop, |address| {
        let name = &options.name;
        complain(&format!(
            "backstay: staging server {name} of job {job} answers at {address}"
        ));
    })
}
