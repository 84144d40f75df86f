// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `backstay`.
//!
//! Purpose: which subcommands there are. Each is a file in `cmd`, and prints through `output`.
//! Invariants: exit status 0 is all well, 1 something is wrong or not there, 2 wrong usage; what reads
//! stores takes no lock. Reference: docs/reference/cli.md.
#![forbid(unsafe_code)]

mod cmd;
mod npy;
mod output;
mod picture;
mod protection;
mod select;
mod view;

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
    /// List the checkpoints in stores, newest last.
    Ls(cmd::ls::LsArgs),
    /// Show what is in a checkpoint: variables, types, shapes, ranks, sizes, what changed.
    Inspect(cmd::inspect::InspectArgs),
    /// Read and check every byte of every retained checkpoint, each shared block once.
    Verify(cmd::verify::VerifyArgs),
    /// Write a variable to a .npy file, or a whole checkpoint to a .npz file.
    Export(cmd::export::ExportArgs),
    /// Take checkpoints out of an archive, and files that nothing refers to any more.
    Prune(cmd::prune::PruneArgs),
    /// Show how a job stands: its checkpoints on every level, what is on its way, and what is in the way.
    Status(cmd::status::StatusArgs),
    /// Keep a node's stores while no application runs, and protect their checkpoints.
    Agent(cmd::agent::AgentArgs),
    /// Work with the checkpoint model directly.
    Model(cmd::model::ModelArgs),
    /// When to take which level, and what that is worth.
    Plan(Box<cmd::plan::PlanArgs>),
    /// Start an application, and start it again when it dies.
    Run(Box<cmd::run::RunArgs>),
    /// Serve a job: pull its checkpoints from the nodes and archive them.
    Stage(cmd::stage::StageArgs),
    /// Play job lives and say how well a plan holds.
    Simulate(Box<cmd::simulate::SimulateArgs>),
}

fn main() -> ExitCode {
    backstay_base::io::on_demand::raise_file_limit();
    output::settled(run(Arguments::parse().command))
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Ls(args) => cmd::ls::run(&args),
        Command::Inspect(args) => cmd::inspect::run(&args),
        Command::Verify(args) => cmd::verify::run(&args),
        Command::Export(args) => cmd::export::run(&args),
        Command::Prune(args) => cmd::prune::run(&args),
        Command::Status(args) => cmd::status::run(&args),
        Command::Agent(args) => cmd::agent::run(&args),
        Command::Model(args) => cmd::model::run(&args),
        Command::Plan(args) => cmd::plan::run(&args),
        Command::Run(args) => cmd::run::run(&args),
        Command::Stage(args) => cmd::stage::run(&args),
        Command::Simulate(args) => cmd::simulate::run(&args),
    }
}
