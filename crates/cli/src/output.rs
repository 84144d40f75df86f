// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The only place of the command line that writes to the terminal.
//!
//! Purpose: standard output for results (text, tables, JSON), standard error for everything else.
//! In from: every command.
//! Out to: the terminal or a pipe.
//! Invariants: a closed pipe ends the command quietly and is not a panic; what else keeps a result from
//! being written is said, and the exit status; progress is drawn only on a terminal.

use crate::table::Table;
use crate::terminal::{columns, folded, painted, text_column};
use backstay::{Error, ErrorKind};
use backstay_picture::Drawing;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints a result with a line end.
pub(crate) fn result(text: &str) {
    plain(&painted(text));
}

/// The same of what a program reads.
fn plain(text: &str) {
    let mut out = std::io::stdout().lock();
    note(writeln!(out, "{text}"));
}

/// Prints bytes as they are.
pub(crate) fn raw(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    note(out.write_all(bytes));
}

/// Prints lines, folded to the width of the terminal.
pub(crate) fn results(lines: &[String]) {
    for line in fitted(lines) {
        result(&line);
    }
}

fn fitted(lines: &[String]) -> Vec<String> {
    let width = columns();
    let fold = |line: &String| folded(line, width, text_column(line));
    lines.iter().flat_map(fold).collect()
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
/// Exit status of what a signal ended is this and the signal's number.
const SIGNALLED: u8 = 128;

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

    /// Something that the engine has no kind for.
    pub(crate) fn named(kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            status: WRONG,
        }
    }

    /// A signal came before it was done.
    pub(crate) fn interrupted(signal: u8, message: impl Into<String>) -> Self {
        Self {
            kind: "interrupted",
            message: message.into(),
            status: SIGNALLED + signal,
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
        Self::named(meaning(&error), sentence(&error))
    }
}

/// Its kind as this command says it: nobody wants to restore here.
pub(crate) fn meaning(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::NoCheckpoint => "nothing there",
        kind => kind.meaning(),
    }
}

/// An error as this command says it.
pub(crate) fn sentence(error: &Error) -> String {
    match error.kind() {
        ErrorKind::NoCheckpoint => error.words(),
        _ => error.to_string(),
    }
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl Serialize) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => plain(&text),
        Err(error) => {
            note(Err(error.into()));
        }
    }
}

/// Writes a picture to a file, as SVG.
pub(crate) fn draw(path: &Path, drawn: Result<Drawing, String>) -> Result<(), Failure> {
    let written = drawn.and_then(|drawing| {
        std::fs::write(path, drawing.svg()).map_err(|error| format!("{}: {error}", path.display()))
    });
    written.map_err(|message| Failure::named("output", message))
}

/// Prints rows under a head, as wide as the terminal allows.
pub(crate) fn print_table(table: Table<'_>, rows: &[Vec<String>]) {
    for line in table.lines(rows, columns()) {
        result(&line);
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
    for line in fitted(lines) {
        text += &painted(&line);
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

/// How many there are of what: `1 node`, `2 nodes`.
pub(crate) fn counted(count: impl TryInto<u64> + std::fmt::Display + Copy, what: &str) -> String {
    let is_one = count.try_into().is_ok_and(|count| count == 1);
    format!("{count} {what}{}", if is_one { "" } else { "s" })
}

/// A time that passed, for people.
pub(crate) fn human_age(seconds: f64) -> String {
    let units = [(86_400.0, "d"), (3600.0, "h"), (60.0, "min")];
    let seconds = seconds.max(0.0);
    // Two of the smaller unit are clearer than one of the larger.
    match units.iter().find(|(unit, _)| seconds >= 2.0 * unit) {
        Some((unit, name)) => format!("{:.0} {name}", (seconds / unit).floor()),
        None => format!("{:.0} s", seconds.floor()),
    }
}

/// How long ago a time was.
pub(crate) fn ago(unix_ns: u64) -> String {
    let since = backstay_base::clock::unix_ns().saturating_sub(unix_ns);
    #[expect(clippy::cast_precision_loss, reason = "an age for people to read")]
    let seconds = since as f64 / 1e9;
    format!("{} ago", human_age(seconds))
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
    fn ages_are_shown_in_the_unit_that_fits() {
        for (seconds, text) in [
            (-1.0, "0 s"),
            (12.4, "12 s"),
            (119.0, "119 s"),
            (120.0, "2 min"),
            (7199.0, "119 min"),
            (7200.0, "2 h"),
            (200_000.0, "2 d"),
        ] {
            assert_eq!(human_age(seconds), text);
        }
        assert_eq!(
            (counted(1_u64, "node"), counted(2, "node")),
            ("1 node".to_owned(), "2 nodes".to_owned())
        );
    }

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
