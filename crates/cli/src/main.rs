// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `backstay`.
#![forbid(unsafe_code)]

mod cmd;
mod output;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Checkpoint and restart for long parallel runs.
#[derive(Debug, Parser)]
#[command(name = "backstay", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Work with the checkpoint model directly.
    Model(cmd::model::ModelArgs),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Model(args) => cmd::model::run(&args),
    }
}
