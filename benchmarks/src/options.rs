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
}

impl Options {
    /// From the command line: `--quick`, `--path FOLDER`.
    pub fn from_arguments() -> Outcome<Self> {
        let mut options = Self {
            quick: false,
            path: PathBuf::from("/dev/shm"),
        };
        let mut words = std::env::args_os().skip(1);
        while let Some(word) = words.next() {
            match word.to_str() {
                Some("--quick") => options.quick = true,
                Some("--path") => {
                    options.path = words.next().ok_or("--path wants a folder")?.into();
                }
                _ => {
                    return Err(
                        format!("{} is neither --quick nor --path FOLDER", word.display()).into(),
                    );
                }
            }
        }
        Ok(options)
    }
}
