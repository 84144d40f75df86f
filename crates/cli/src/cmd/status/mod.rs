// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay status`: the status of jobs just now, once, again and again, or for a monitoring system.

mod course;
mod dashboard;
mod look;
mod metrics;
mod serve;
mod show;
mod watch;

use crate::output::{Failure, complain, print_json, results};
use crate::select::Places;
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
    /// Show it anew every second: on a terminal as a picture with bars, rates and a timeline, until `q`.
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
        (None, true) => watch::watch(&args.places),
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
