// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `backstay`.
#![forbid(unsafe_code)]

mod cmd;
mod output;
mod picture;

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
    /// When to take which level, and what that is worth.
    Plan(Box<cmd::plan::PlanArgs>),
    /// Play job lives and say how well a plan holds.
    Simulate(Box<cmd::simulate::SimulateArgs>),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Model(args) => cmd::model::run(&args),
        Command::Plan(args) => cmd::plan::run(&args),
        Command::Simulate(args) => cmd::simulate::run(&args),
    }
}
