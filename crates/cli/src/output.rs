// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The only place of the command line that writes to the terminal.
//!
//! Purpose: standard output for results (text, tables, JSON), standard error for everything else.
//! In from: every command.
//! Out to: the terminal or a pipe.
//! Invariants: a closed pipe ends the command quietly and is not a panic; what else keeps a result from
//! being written is said, and the exit status; progress is drawn only on a terminal.

use backstay::{Error, ErrorKind};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Everything went well.
pub(crate) const OK: ExitCode = ExitCode::SUCCESS;

/// An input was bad or a case could not be solved. (A wrong command line exits with 2, by clap.)
pub(crate) fn bad_input() -> ExitCode {
    ExitCode::from(1)
}

/// Prints a result with a line end.
pub(crate) fn result(text: &str) {
    let mut out = std::io::stdout().lock();
    note(writeln!(out, "{text}"));
}

/// A result could not be written.
static LOST: AtomicBool = AtomicBool::new(false);

/// Keeps in mind, and says once, that a result could not be written; false then. A reader that has gone
/// away has seen what it wanted.
fn note(written: std::io::Result<()>) -> bool {
    let Err(error) = written else { return true };
    let is_gone = error.kind() == std::io::ErrorKind::BrokenPipe;
    if !is_gone && !LOST.swap(true, Ordering::Relaxed) {
        complain(&format!("error: writing standard output: {error}"));
    }
    false
}

/// The exit status of a command that ended with `status`: it failed where its results were lost.
pub(crate) fn settled(status: ExitCode) -> ExitCode {
    note(std::io::stdout().flush());
    if LOST.load(Ordering::Relaxed) {
        return ExitCode::from(WRONG);
    }
    status
}

/// Prints a complaint with a line end.
pub(crate) fn complain(text: &str) {
    let mut out = std::io::stderr().lock();
    drop(writeln!(out, "backstay: {text}"));
}

/// Exit status where something is wrong with what is stored, or is not there.
pub(crate) const WRONG: u8 = 1;
/// Exit status of wrong usage.
pub(crate) const USAGE: u8 = 2;

/// Why a command gives up.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: &'static str,
    message: String,
    status: u8,
}

impl Failure {
    /// Something is wrong with what is stored, or is not there.
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let (kind, message) = (kind.meaning(), message.into());
        Self {
            kind,
            message,
            status: WRONG,
        }
    }

    /// The arguments do not fit together.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            kind: "usage",
            message: message.into(),
            status: USAGE,
        }
    }

    /// A file of the user's, not a store, could not be written.
    pub(crate) fn output(what: &str, error: &std::io::Error) -> Self {
        Self {
            kind: "output",
            message: format!("{what}: {error}"),
            status: WRONG,
        }
    }

    /// Says it, and gives the exit status.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        complain(&format!("error: {}", self.message));
        if json {
            print_json(&json!({ "error": { "kind": self.kind, "message": self.message } }));
        }
        ExitCode::from(self.status)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            kind: error.kind().meaning(),
            message: error.to_string(),
            status: WRONG,
        }
    }
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => result(&text),
        Err(error) => {
            note(Err(error.into()));
        }
    }
}

/// Prints rows under `head`, each column as wide as it needs; columns in `right` are aligned right.
pub(crate) fn print_table(head: &[&str], right: &[usize], rows: &[Vec<String>]) {
    let head: Vec<String> = head.iter().map(|&text| text.to_owned()).collect();
    let lines = || std::iter::once(&head).chain(rows);
    let width = |column: usize| {
        let widths = lines().map(|row| row.get(column).map_or(0, |text| text.chars().count()));
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for row in lines() {
        let mut text = String::new();
        for (column, cell) in row.iter().enumerate() {
            let blank = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            let gap = if column > 0 { "  " } else { "" };
            text += gap;
            if right.contains(&column) {
                text += &blank;
                text += cell;
            } else {
                text += cell;
                text += &blank;
            }
        }
        result(text.trim_end());
    }
}

/// Asks on the terminal; `None` where there is none.
pub(crate) fn ask(question: &str) -> Option<String> {
    use std::io::IsTerminal;
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        return None;
    }
    let mut err = std::io::stderr().lock();
    drop(write!(err, "{question}").and_then(|()| err.flush()));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).ok()?;
    Some(answer)
}

/// Shows lines in place of those shown before; on something else than a terminal, below them. False if
/// nobody reads any more.
pub(crate) fn redraw(lines: &[String]) -> bool {
    use std::io::IsTerminal;
    let mut out = std::io::stdout().lock();
    // From the upper left over what is there, so that nothing flickers; what is longer there is erased.
    let (begin, end_of_line, end) = if out.is_terminal() {
        ("\x1b[H", "\x1b[K\n", "\x1b[J")
    } else {
        ("", "\n", "")
    };
    let mut text = begin.to_owned();
    for line in lines {
        text += line;
        text += end_of_line;
    }
    text += end;
    note(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Bytes for people.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A share in per cent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A bar on standard error; nothing where that is no terminal.
pub(crate) fn progress(what: &'static str, total: u64, in_bytes: bool) -> ProgressBar {
    let counts = if in_bytes {
        "{bytes}/{total_bytes} {bytes_per_sec} {eta}"
    } else {
        "{pos}/{len} {eta}"
    };
    let style = ProgressStyle::with_template(&format!("{{msg}} [{{bar:30}}] {counts}"));
    let bar = ProgressBar::new(total).with_message(what);
    match style {
        Ok(style) => bar.with_style(style.progress_chars("=> ")),
        Err(_error) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_the_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (5 << 30, "5.0 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(human_bytes(bytes), text);
        }
    }
}
