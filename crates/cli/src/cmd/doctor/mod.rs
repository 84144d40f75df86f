// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay doctor`: what this machine and this user can do, as a table, with what to do about the rest.
//!
//! Purpose: which checks there are, and how their lines are shown.
//! In from: the settings of this environment, limits, file systems, other nodes by a remote shell.
//! Out to: standard output; the exit status says whether anything does not work.
//! Invariants: each check is the engine's own; nothing is left behind but what was there.

mod archive;
mod machine;
mod nodes;

use crate::output::{Failure, WRONG, print_json, print_table, result};
use crate::table::Table;
use backstay::Config;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Says what this machine and this user can do, a line for each: ok, limited (it works, and what to do for more), or
/// NOT (what to do before it works). Run it where the job will run, in the environment that it will have.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The archive, instead of what `BACKSTAY_ARCHIVE` or the configuration names; it or its parent has to be there
    #[arg(long, value_name = "DIR")]
    archive: Option<PathBuf>,
    /// Nodes that are to be reached from here: a,b
    #[arg(long, value_name = "HOSTS", default_value = "")]
    nodes: String,
    /// What runs a command on a node; the node and the command follow [default: ssh]
    #[arg(long, value_name = "CMD")]
    remote_shell: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How well something works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Limited,
    Not,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Not => "NOT",
        }
    }
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Line {
    check: String,
    state: State,
    found: String,
    advice: Option<String>,
}

impl Line {
    fn ok(check: &str, found: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            state: State::Ok,
            found: found.into(),
            advice: None,
        }
    }

    fn limited(check: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            state: State::Limited,
            advice: Some(advice.into()),
            ..Self::ok(check, found)
        }
    }

    fn not(check: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            state: State::Not,
            ..Self::limited(check, found, advice)
        }
    }

    fn row(&self) -> Vec<String> {
        let advice = self.advice.iter().map(|advice| format!(": {advice}"));
        let words = self.found.clone() + &advice.collect::<String>();
        vec![self.check.clone(), self.state.word().to_owned(), words]
    }
}

#[derive(Debug, Serialize)]
struct View {
    version: &'static str,
    node: String,
    state: State,
    checks: Vec<Line>,
}

pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    match look(args) {
        Ok(view) => show(&view, args.json),
        Err(failure) => failure.report(args.json),
    }
}

fn look(args: &DoctorArgs) -> Result<View, Failure> {
    let config = Config::from_environment()?;
    let mut checks = machine::lines(&config);
    checks.extend(nodes::agents(&config));
    if let Some(archive) = args.archive.as_ref().or(config.archive.as_ref()) {
        checks.extend(archive::lines(archive));
    }
    checks.extend(nodes::lines(&args.nodes, args.remote_shell.as_deref()));
    let worst = checks.iter().map(|line| line.state).max();
    Ok(View {
        version: env!("CARGO_PKG_VERSION"),
        node: backstay_store::place::node_name(),
        state: worst.unwrap_or(State::Ok),
        checks,
    })
}

fn show(view: &View, json: bool) -> ExitCode {
    if json {
        print_json(view);
    } else {
        result(&format!("node {}, backstay {}", view.node, view.version));
        let rows: Vec<Vec<String>> = view.checks.iter().map(Line::row).collect();
        let head = &["CHECK", "STATE", "FOUND"];
        print_table(
            Table {
                head,
                right: &[],
                less: &[],
            },
            &rows,
        );
    }
    if view.state == State::Not {
        return ExitCode::from(WRONG);
    }
    ExitCode::SUCCESS
}
