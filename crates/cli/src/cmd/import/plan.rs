// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which files are imported as what.
//! In: paths and patterns. Out: checkpoints, each with the files of its ranks.
//! Invariants: what is not a file is left out, no link is followed; a rank that is missing in the middle is an error,
//! and so are two files of one rank that would be one variable.

use super::pattern::{Named, Pattern, natural, without_numbers};
use crate::output::Failure;
use crate::select::no_such_path;
use backstay::ErrorKind;
use backstay_archive::drain::import::ImportFile;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The files of each rank.
pub(crate) type Ranks = Vec<Vec<ImportFile>>;

/// What is to be imported.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// By step; `None` where names say none.
    pub(crate) checkpoints: Vec<(Option<u64>, Ranks)>,
    /// Files that fit no pattern.
    pub(crate) left_out: Vec<String>,
}

/// A file, and its name below the path that was given.
#[derive(Debug)]
struct Listed {
    path: PathBuf,
    name: PathBuf,
}

/// Bytes of the files of all ranks, as long as they are.
pub(crate) fn bytes(ranks: &[Vec<ImportFile>]) -> u64 {
    let files = ranks.iter().flatten();
    let lengths = files.map(|file| std::fs::metadata(&file.path).map_or(0, |about| about.len()));
    lengths.sum()
}

/// What `paths` have that fits.
pub(crate) fn find(paths: &[PathBuf], patterns: &[Pattern]) -> Result<Found, Failure> {
    let depth = patterns.iter().map(Pattern::depth).max().unwrap_or(0);
    let mut listed = Vec::new();
    for path in paths {
        let about = std::fs::symlink_metadata(path).map_err(|_error| no_such_path(path))?;
        if about.is_dir() {
            list(path, Path::new(""), depth, &mut listed)?;
        } else {
            let name = PathBuf::from(path.file_name().unwrap_or_default());
            listed.push(Listed {
                path: path.clone(),
                name,
            });
        }
    }
    listed
        .sort_by(|one, other| natural(&one.name.to_string_lossy(), &other.name.to_string_lossy()));
    let found = if patterns.is_empty() {
        in_order(&listed)
    } else {
        by_pattern(listed, patterns)?
    };
    if found.checkpoints.is_empty() {
        let texts: Vec<&str> = patterns.iter().map(Pattern::text).collect();
        let message = if texts.is_empty() {
            "there are no files".to_owned()
        } else {
            format!("no file fits {}", texts.join(", "))
        };
        return Err(Failure::named("nothing to import", message));
    }
    Ok(found)
}

/// The files of a folder, and of those below it to a depth; hidden ones are left out.
fn list(
    folder: &Path,
    below: &Path,
    depth: usize,
    listed: &mut Vec<Listed>,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::named("cannot be read", format!("{}: {error}", folder.display()))
    };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        let name = below.join(entry.file_name());
        if entry.file_name().as_bytes().starts_with(b".") {
            continue;
        }
        if kind.is_dir() && depth > 0 {
            list(&entry.path(), &name, depth - 1, listed)?;
        } else if kind.is_file() {
            let path = entry.path();
            listed.push(Listed { path, name });
        }
    }
    Ok(())
}

fn import_file(listed: &Listed, variable: &str) -> ImportFile {
    ImportFile {
        variable: variable.to_owned(),
        path: listed.path.clone(),
        name: listed.name.as_os_str().as_bytes().to_vec(),
    }
}

/// One checkpoint, of which each file is a rank's.
fn in_order(listed: &[Listed]) -> Found {
    let same: BTreeSet<String> = listed
        .iter()
        .map(|one| without_numbers(&one.name.to_string_lossy()))
        .collect();
    let mut same = same.into_iter();
    let variable = match (same.next(), same.next()) {
        (Some(name), None) if name.len() <= NAME_BYTES_MAX => name,
        _ => "file".to_owned(),
    };
    let ranks: Ranks = listed
        .iter()
        .map(|one| vec![import_file(one, &variable)])
        .collect();
    let checkpoints = if ranks.is_empty() {
        Vec::new()
    } else {
        vec![(None, ranks)]
    };
    Found {
        checkpoints,
        left_out: Vec::new(),
    }
}

/// Room for names of datasets behind that of a file.
const NAME_BYTES_MAX: usize = 128;

fn by_pattern(listed: Vec<Listed>, patterns: &[Pattern]) -> Result<Found, Failure> {
    let mut found = Found::default();
    let mut steps: BTreeMap<Option<u64>, BTreeMap<u64, Vec<ImportFile>>> = BTreeMap::new();
    let with_step = patterns.iter().filter(|pattern| pattern.has_step()).count();
    if with_step > 0 && with_step < patterns.len() {
        let message = "{step} stands in some patterns and not in others: give it in all, or import them one by one";
        return Err(Failure::usage(message));
    }
    for one in listed {
        let name = one.name.as_os_str().to_str();
        let named = name.and_then(|name| patterns.iter().find_map(|pattern| pattern.fit(name)));
        let Some(Named { step, rank, same }) = named else {
            found.left_out.push(one.name.display().to_string());
            continue;
        };
        let variable: String = same.chars().take(NAME_BYTES_MAX).collect();
        let files = steps.entry(step).or_default().entry(rank).or_default();
        if let Some(other) = files.iter().find(|file| file.variable == variable) {
            let message = format!(
                "{} and {} are both of rank {rank}{}",
                one.path.display(),
                Path::new(OsStr::from_bytes(other.path.as_os_str().as_bytes())).display(),
                of_step(step)
            );
            return Err(Failure::new(ErrorKind::InvalidArgument, message));
        }
        files.push(import_file(&one, &variable));
    }
    for (step, ranks) in steps {
        // Ranks are counted from 0, in some programs from 1.
        let first = ranks.keys().next().copied().unwrap_or(0).min(1);
        for (place, rank) in ranks.keys().enumerate() {
            let wanted = first + backstay_format::width::to_u64(place);
            if *rank != wanted {
                let message = format!(
                    "there is no file of rank {wanted}{}, and one of rank {rank}",
                    of_step(step)
                );
                return Err(Failure::named("a rank is missing", message));
            }
        }
        found
            .checkpoints
            .push((step, ranks.into_values().collect()));
    }
    Ok(found)
}

fn of_step(step: Option<u64>) -> String {
    step.map_or_else(String::new, |step| format!(" at step {step}"))
}
