// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes docs/compression.md and its pictures from a report of `bench-codecs`: REPORT FOLDER.

use backstay_bench::Outcome;
use backstay_bench::compression::{page, report::Report};
use std::path::Path;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [report, folder] = &words[..] else {
        return Err("say REPORT FOLDER".into());
    };
    let text = std::fs::read_to_string(report).map_err(|error| format!("{report}: {error}"))?;
    let report: Report = serde_json::from_str(&text)?;
    page::write(&report, Path::new(folder))
}
