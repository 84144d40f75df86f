// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay status`: the status of jobs just now, once, again and again, or for a monitoring system.

mod look;
mod metrics;
mod serve;
mod show;

use crate::output::{Failure, complain, print_json, redraw, results};
use crate::select::Places;
use crate::view::utc;
use look::Snapshot;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

/// Shows the status of a job: its newest checkpoint on every level, what is on its way, and what is in
/// the way.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    places: Places,
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
            // A place that goes away meanwhile is one without jobs.
            let page = || {
                Snapshot::take(&args.places)
                    .map_or_else(|_gone| String::new(), |s| metrics::text(&s))
            };
            Snapshot::take(&args.places).and_then(|_| serve::serve(address, &page))
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
    let snapshot = Snapshot::take(&args.places)?;
    snapshot.refuse_nothing()?;
    if args.json {
        print_json(&snapshot);
    } else {
        results(&show::lines(&snapshot));
    }
    snapshot.unreadable().for_each(complain);
    Ok(())
}

fn watch(args: &StatusArgs) -> Result<(), Failure> {
    let mut before: Option<Snapshot> = None;
    loop {
        let mut snapshot = Snapshot::take(&args.places)?;
        if before.is_none() {
            snapshot.refuse_nothing()?;
        }
        if let Some(before) = &before {
            snapshot.take_rates(before);
        }
        let mut lines = vec![utc(snapshot.taken_unix_ns)];
        lines.extend(show::lines(&snapshot));
        lines.extend(snapshot.unreadable().map(str::to_owned));
        if !redraw(&lines) {
            return Ok(());
        }
        before = Some(snapshot);
        std::thread::sleep(EVERY);
    }
}
