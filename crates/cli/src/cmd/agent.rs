// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay agent`: keeps a node's stores while no application runs, and protects their checkpoints.
//!
//! Purpose: from arguments to the agent process of the engine.
//! In from: a job's name, or a folder; SIGTERM and SIGINT. Out to: messages on standard error.
//! Invariants: one agent a store; it ends when its job is over, when it was alone for too long, or when it
//! is told to, and then finishes what it can.

use crate::output::{Failure, complain};
use backstay::Config;
use backstay::agent::{Ended, ProcessOptions, run as run_agent};
use backstay_base::units;
use backstay_store::place;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Keeps a node's stores while no application runs, and protects their checkpoints.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// Name of the job whose store it keeps [default: what `BACKSTAY_JOB` or the configuration names]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// The folder of the store, instead of where the configuration puts it
    #[arg(long, value_name = "DIR", conflicts_with = "job")]
    directory: Option<PathBuf>,
    /// How long to stay while no application runs: seconds, or 10min, 2h
    #[arg(long, value_name = "TIME", default_value = "3600", value_parser = units::whole_seconds)]
    linger_s: u64,
    /// Take no notice of SIGTERM, which Slurm sends to all steps of a job that it is about to end: the application
    /// takes its last checkpoint then. What ends the agent is the file `over` in `BACKSTAY_RENDEZVOUS`
    #[arg(long)]
    until_over: bool,
}

pub(crate) fn run(args: &AgentArgs) -> ExitCode {
    match serve(args) {
        Ok(ended) => {
            let why = match ended {
                Ended::JobOver => "its job is over",
                Ended::Alone => "no application came",
                Ended::Asked => "it was told to",
                Ended::Removed => "its place in the folder of the store was removed",
            };
            complain(&format!("the agent ends: {why}"));
            ExitCode::SUCCESS
        }
        Err(failure) => failure.report(false),
    }
}

fn serve(args: &AgentArgs) -> Result<Ended, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let is_unheard = args.until_over && signal == signal_hook::consts::SIGTERM;
        let flag = if is_unheard {
            Arc::default()
        } else {
            Arc::clone(&stop)
        };
        signal_hook::flag::register(signal, flag)
            .map_err(|error| Failure::output("watching for signals", &error))?;
    }
    let options = ProcessOptions {
        directory: directory(args)?,
        linger: Duration::from_secs(args.linger_s),
        over: std::env::var_os("BACKSTAY_RENDEZVOUS").map(|folder| Path::new(&folder).join("over")),
    };
    Ok(run_agent(&options, &stop)?)
}

/// Where the application will look: what an earlier start left, or where a first one would put its store.
fn directory(args: &AgentArgs) -> Result<PathBuf, Failure> {
    if let Some(directory) = &args.directory {
        return Ok(directory.clone());
    }
    let config = Config::from_environment()?;
    let Some(job) = args.job.clone().or_else(|| config.job.clone()) else {
        let message =
            "which job? Give --job, or BACKSTAY_JOB, as the application names it, or --directory";
        return Err(Failure::usage(message));
    };
    let node = config.node.clone().unwrap_or_else(place::node_name);
    if let Some(directory) = place::existing(config.store_path.as_deref(), &job, &node)? {
        return Ok(directory);
    }
    Ok(place::choose(config.store_path.as_deref(), &job, &node, None)?.directory)
}
