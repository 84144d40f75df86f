// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay model`: the exact chain on cases from a file.
//!
//! Purpose: lets scripts evaluate cases.
//! In from: a JSON file of cases.
//! Out to: standard output.
//! Invariants: exit code 0 when every case was solved, 1 when one was bad or the file was.

use std::path::PathBuf;
use std::process::ExitCode;

use backstay_model::cases;

use crate::output::{self, Failure, WRONG};

/// Arguments of `backstay model`.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Solve the cases of a file with the exact chain and print the results as JSON.
    Eval {
        /// A JSON file: {"cases": [{"id": ..., "input": {...}}, ...]}; - for standard input.
        file: PathBuf,
        /// Print JSON; it is the only format, the flag is there for scripts that always give it.
        #[arg(long)]
        json: bool,
    },
}

/// Runs the subcommand.
pub(crate) fn run(args: &ModelArgs) -> ExitCode {
    match &args.action {
        Action::Eval { file, json: _ } => eval(file),
    }
}

/// Ends with an error, in the only format there is.
fn bad(error: String) -> ExitCode {
    Failure::named("bad input", error).report(true)
}

fn eval(file: &std::path::Path) -> ExitCode {
    let text = if file.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    let text = match text {
        Ok(text) => text,
        Err(error) => return bad(format!("{}: {error}", file.display())),
    };
    let results = match cases::evaluate(&text) {
        Ok(results) => results,
        Err(error) => return bad(format!("{}: {error}", file.display())),
    };
    match serde_json::to_string(&results) {
        Ok(line) => output::result(&line),
        Err(error) => return bad(error.to_string()),
    }
    if results.all_solved() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(WRONG)
    }
}
