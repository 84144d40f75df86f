// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The only place of the command line that writes to the terminal.
//!
//! Purpose: standard output for results, standard error for everything else.
//! In from: every command.
//! Out to: the terminal or a pipe.
//! Invariants: a closed pipe ends the command quietly and is not a panic.

use std::io::Write;
use std::process::ExitCode;

/// Everything went well.
pub(crate) const OK: ExitCode = ExitCode::SUCCESS;

/// An input was bad or a case could not be solved. (A wrong command line exits with 2, by clap.)
pub(crate) fn bad_input() -> ExitCode {
    ExitCode::from(1)
}

/// Prints a result with a line end.
pub(crate) fn result(text: &str) {
    let mut out = std::io::stdout().lock();
    // A reader that has gone away has seen what it wanted.
    drop(writeln!(out, "{text}"));
}

/// Prints a complaint with a line end.
pub(crate) fn complain(text: &str) {
    let mut out = std::io::stderr().lock();
    drop(writeln!(out, "backstay: {text}"));
}
