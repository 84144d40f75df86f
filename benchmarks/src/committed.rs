// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: reports that are kept under benchmarks/results, and pages and pictures that are drawn of them.
//! In from: programs that draw, and their tests. Out: reports; what of the documentation is not drawn of them.
//! Invariants: nothing is written here.

use crate::Outcome;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// The report and the folder that a program's words name: REPORT FOLDER.
pub fn from_arguments<T: DeserializeOwned>() -> Outcome<(T, PathBuf)> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [report, folder] = &words[..] else {
        return Err("say REPORT FOLDER".into());
    };
    Ok((read(Path::new(report))?, folder.into()))
}

/// The report `name` of benchmarks/results.
pub fn report<T: DeserializeOwned>(name: &str) -> Outcome<T> {
    read(&root()?.join("benchmarks/results").join(name))
}

/// That the documentation has each of `files`, paths below docs, as it is in `drawn` at the same place; the error names
/// what to run.
pub fn check(drawn: &Path, files: &[&str], target: &str) -> Outcome<()> {
    let docs = root()?.join("docs");
    for file in files {
        if std::fs::read(drawn.join(file))? != std::fs::read(docs.join(file))? {
            return Err(format!("docs/{file} is another: run make {target}").into());
        }
    }
    Ok(())
}

fn root() -> Outcome<&'static Path> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    Ok(root.ok_or("the workspace has no folder")?)
}

fn read<T: DeserializeOwned>(path: &Path) -> Outcome<T> {
    let name = path.display();
    let text = std::fs::read(path).map_err(|error| format!("{name}: {error}"))?;
    Ok(serde_json::from_slice(&text).map_err(|error| format!("{name}: {error}"))?)
}
