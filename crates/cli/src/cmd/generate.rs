// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay completions` and `backstay man`: what shells and `man` know of this command.
//!
//! Purpose: made from the definition of the command itself, so that they are never of another version.
//! In from: that definition. Out to: standard output, files.
//! Invariants: hidden commands are in neither.

use crate::output::{Failure, raw, result};
use clap::Command;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Prints completions of a shell.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Writes manual pages.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The folder for backstay.1, backstay-ls.1 and so on
    folder: PathBuf,
}

/// Prints completions.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> ExitCode {
    use clap_complete::Shell as Known;
    let shell = match args.shell {
        Shell::Bash => Known::Bash,
        Shell::Zsh => Known::Zsh,
        Shell::Fish => Known::Fish,
    };
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut command, "backstay", &mut bytes);
    raw(&bytes);
    ExitCode::SUCCESS
}

/// Writes manual pages.
pub(crate) fn man(args: &ManArgs, mut command: Command) -> ExitCode {
    command.build();
    match pages(&args.folder, &command, "backstay") {
        Ok(count) => {
            result(&format!("{}: {count} pages", args.folder.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            let what = format!("writing manual pages to {}", args.folder.display());
            Failure::output(&what, &error).report(false)
        }
    }
}

/// One page for a command, and one for each command below it.
fn pages(folder: &Path, command: &Command, name: &str) -> std::io::Result<usize> {
    let mut bytes = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut bytes)?;
    std::fs::write(folder.join(format!("{name}.1")), bytes)?;
    let mut count = 1;
    for below in command.get_subcommands() {
        if !below.is_hide_set() && below.get_name() != "help" {
            count += pages(folder, below, &format!("{name}-{}", below.get_name()))?;
        }
    }
    Ok(count)
}
