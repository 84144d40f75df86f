// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay status`: how a job stands just now, once, again and again, or for a monitoring system.

mod look;
mod metrics;
mod serve;
mod show;

use crate::output::{Failure, complain, print_json, redraw, result};
use look::Snapshot;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Shows how a job stands: its newest checkpoint on every level, what is on its way, and what is in the
/// way.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    /// Store files, or folders above them, or archives. Without any, the default places are looked at.
    paths: Vec<PathBuf>,
    /// Show it anew every second, until interrupted.
    #[arg(long, short, conflicts_with_all = ["json", "listen"])]
    watch: bool,
    /// Serve it at http://ADDR:PORT/metrics in the text format of Prometheus, until interrupted.
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "json")]
    listen: Option<SocketAddr>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &StatusArgs) -> ExitCode {
    let done = match (args.listen, args.watch) {
        (Some(address), _) => {
            serve::serve(address, &|| metrics::text(&Snapshot::take(&args.paths)))
        }
        (None, true) => watch(args),
        (None, false) => once(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(args.json),
    }
}

fn once(args: &StatusArgs) -> Result<(), Failure> {
    let snapshot = Snapshot::take(&args.paths);
    snapshot.refuse_nothing(&args.paths)?;
    if args.json {
        print_json(&snapshot);
    } else {
        for line in show::lines(&snapshot) {
            result(&line);
        }
    }
    snapshot.unreadable().for_each(complain);
    Ok(())
}

fn watch(args: &StatusArgs) -> Result<(), Failure> {
    let mut before: Option<Snapshot> = None;
    loop {
        let mut snapshot = Snapshot::take(&args.paths);
        if before.is_none() {
            snapshot.refuse_nothing(&args.paths)?;
        }
        if let Some(before) = &before {
            snapshot.take_rates(before);
        }
        let mut lines = show::lines(&snapshot);
        lines.extend(snapshot.unreadable().map(str::to_owned));
        if !redraw(&lines) {
            return Ok(());
        }
        before = Some(snapshot);
        std::thread::sleep(EVERY);
    }
}
