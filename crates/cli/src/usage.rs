// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a command line that cannot be understood is answered, and what help and version print.
//! In from: the parser of the command line. Out to: standard output and error, the exit status.
//! Invariants: with `--json` the answer is JSON, too; help that cannot be written is an error.

use crate::output::{Failure, USAGE, complain, raw};
use std::process::ExitCode;

/// What the parser says of numbers, and what people do.
const PLAIN: [(&str, &str); 6] = [
    ("invalid float literal", "it is not a number"),
    ("cannot parse float from empty string", "it is not a number"),
    ("invalid digit found in string", "it is not a whole number"),
    (
        "cannot parse integer from empty string",
        "it is not a whole number",
    ),
    ("number too large to fit in target type", "it is too large"),
    ("number too small to fit in target type", "it is too small"),
];

/// Answers, and gives the exit status.
pub(crate) fn tell(error: &clap::Error) -> ExitCode {
    let text = error.render();
    if !error.use_stderr() {
        use std::io::IsTerminal;
        let text = if std::io::stdout().is_terminal() {
            text.ansi().to_string()
        } else {
            text.to_string()
        };
        raw(text.as_bytes());
        return ExitCode::SUCCESS;
    }
    let text = plain(&text.to_string());
    let text = text.trim_end();
    let ours = std::env::args_os().take_while(|word| word != "--");
    if ours.into_iter().any(|word| word == "--json") {
        let message = text.strip_prefix("error: ").unwrap_or(text);
        return Failure::usage(message).report(true);
    }
    complain(text);
    ExitCode::from(USAGE)
}

fn plain(text: &str) -> String {
    let replaced = |text: String, (words, plain): &(&str, &str)| text.replace(words, plain);
    PLAIN.iter().fold(text.to_owned(), replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_this_program_are_not_named() {
        let error = "x".parse::<f64>().unwrap_err().to_string();
        assert_eq!(plain(&error), "it is not a number");
        let error = "x".parse::<u64>().unwrap_err().to_string();
        assert_eq!(plain(&error), "it is not a whole number");
        let error = "999".parse::<u8>().unwrap_err().to_string();
        assert_eq!(plain(&error), "it is too large");
    }
}
