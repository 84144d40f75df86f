// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the words that every benchmark takes on its command line.

use crate::Outcome;
use std::path::PathBuf;

/// What the person who runs a benchmark asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Less of everything, to see that it works.
    pub quick: bool,
    /// Folder on a memory file system for stores and files.
    pub path: PathBuf,
    /// The scenarios that are asked for, if some are.
    pub only: Vec<String>,
}

impl Options {
    /// From the command line: `--quick`, `--path FOLDER`.
    pub fn from_arguments() -> Outcome<Self> {
        let mut options = Self {
            quick: false,
            path: PathBuf::from("/dev/shm"),
            only: Vec::new(),
        };
        let mut words = std::env::args_os().skip(1);
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--quick") => options.quick = true,
                Some("--path") => {
                    options.path = words.next().ok_or("--path wants a folder")?.into();
                }
                Some("--only") => {
                    let name = words.next().ok_or("--only wants a scenario")?;
                    options.only.push(name.to_string_lossy().into_owned());
                }
                _ => {
                    let word = word.display();
                    let known = "--quick, --only SCENARIO or --path FOLDER";
                    return Err(format!("{word} is none of {known}").into());
                }
            }
        }
        Ok(options)
    }

    /// Whether a scenario is asked for: all are, where none is named.
    pub fn wants(&self, scenario: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == scenario)
    }
}
