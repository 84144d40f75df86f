// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `backstay`.
//!
//! Purpose: which subcommands there are. Each is a file in `cmd`, and prints through `output`.
//! Invariants: exit statuses are those of docs/reference/cli.md; what reads stores takes no lock.
#![forbid(unsafe_code)]

mod cmd;
mod draft;
mod interrupt;
mod npy;
mod output;
mod protection;
mod safetensors;
mod select;
mod table;
mod terminal;
mod torch;
mod usage;
mod view;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// The version, the commit and how it was built.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("BUILT_FROM"),
    "; ",
    env!("BUILT_AS"),
    "; features: node, redundancy, archive, compression, supervisor, planner)"
);

/// Checkpoint and restart for long parallel runs.
#[derive(Debug, Parser)]
#[command(name = "backstay", version, long_version = LONG_VERSION, about)]
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
    /// Show what changed between two checkpoints: by variable, and of files by dataset.
    Diff(cmd::diff::DiffArgs),
    /// Show what changed where and when: from each checkpoint to the next.
    Changes(cmd::changes::ChangesArgs),
    /// Read and check every byte of every retained checkpoint, each shared block once.
    Verify(cmd::verify::VerifyArgs),
    /// Write a variable to a .npy file, or a whole checkpoint to a .npz file.
    Export(cmd::export::ExportArgs),
    /// Take checkpoints that programs wrote as files into an archive: HDF5, netCDF-4, npy, other bytes.
    Import(Box<cmd::import::ImportArgs>),
    /// Take checkpoints out of an archive, and files that nothing refers to any more.
    Prune(cmd::prune::PruneArgs),
    /// Remove what a job left: its stores on this node, and its archive.
    Rm(cmd::rm::RmArgs),
    /// Show the status of a job: its checkpoints on every level, what is on its way, what is in the way.
    Status(cmd::status::StatusArgs),
    /// Show what happened to a job: starts, checkpoints, levels, drains; as lines or a picture.
    Timeline(cmd::timeline::TimelineArgs),
    /// Say what this machine and this user can do, and what to do about the rest.
    Doctor(cmd::doctor::DoctorArgs),
    /// Keep a node's stores while no application runs, and protect their checkpoints.
    Agent(cmd::agent::AgentArgs),
    /// Work with the checkpoint model directly.
    Model(cmd::model::ModelArgs),
    /// When to take which level, and what that is worth.
    Plan(Box<cmd::plan::PlanArgs>),
    /// Start an application, and start it again when it dies.
    Run(Box<cmd::run::RunArgs>),
    /// The routing agent of a start.
    #[command(hide = true)]
    RouteAgent(cmd::route::AgentArgs),
    /// Serve a job: pull its checkpoints from the nodes and archive them.
    Stage(cmd::stage::StageArgs),
    /// Simulate runs of a job and say how well a plan holds.
    Simulate(Box<cmd::simulate::SimulateArgs>),
    /// Print completions for bash, zsh or fish.
    Completions(cmd::generate::CompletionsArgs),
    /// Write manual pages to a folder.
    #[command(hide = true)]
    Man(cmd::generate::ManArgs),
}

fn main() -> ExitCode {
    backstay_base::io::on_demand::raise_file_limit();
    let status = match Arguments::try_parse() {
        Ok(arguments) => run(arguments.command),
        Err(error) => usage::tell(&error),
    };
    output::settled(status)
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Ls(args) => cmd::ls::run(&args),
        Command::Inspect(args) => cmd::inspect::run(&args),
        Command::Diff(args) => cmd::diff::run(&args),
        Command::Changes(args) => cmd::changes::run(&args),
        Command::Verify(args) => cmd::verify::run(&args),
        Command::Export(args) => cmd::export::run(&args),
        Command::Import(args) => cmd::import::run(&args),
        Command::Prune(args) => cmd::prune::run(&args),
        Command::Rm(args) => cmd::rm::run(&args),
        Command::Status(args) => cmd::status::run(&args),
        Command::Timeline(args) => cmd::timeline::run(&args),
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::Agent(args) => cmd::agent::run(&args),
        Command::Model(args) => cmd::model::run(&args),
        Command::Plan(args) => cmd::plan::run(&args),
        Command::Run(args) => cmd::run::run(&args),
        Command::RouteAgent(args) => cmd::route::run(&args),
        Command::Stage(args) => cmd::stage::run(&args),
        Command::Simulate(args) => cmd::simulate::run(&args),
        Command::Completions(args) => cmd::generate::completions(&args, Arguments::command()),
        Command::Man(args) => cmd::generate::man(&args, Arguments::command()),
    }
}
