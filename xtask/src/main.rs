// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: checks and pages of the tree that no compiler makes.
//! `tidy`: the rules of the tree. `gen`: writes what is generated; `gen --check`: is it current?
//! In: the files git knows. Out: findings on standard output, status 1 if there is one.

mod generate;
mod rust;
mod scale;
mod tidy;
mod tree;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo run -p xtask -- tidy | gen [--check]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["tidy"] => tree::Tree::read().map(|tree| {
            let mut findings = tidy::check(&tree);
            findings.extend(generate::stale(&tree));
            findings
        }),
        ["gen"] => tree::Tree::read().and_then(|tree| generate::write(&tree).map(|()| Vec::new())),
        ["gen", "--check"] => tree::Tree::read().map(|tree| generate::stale(&tree)),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(mut findings) => {
            findings.sort();
            say(&format!(
                "{}\n{} findings",
                findings.join("\n"),
                findings.len()
            ));
            ExitCode::FAILURE
        }
        Err(error) => {
            say(&error);
            ExitCode::from(2)
        }
    }
}

#[expect(clippy::print_stdout, reason = "a command says what it found")]
fn say(text: &str) {
    println!("{text}");
}
