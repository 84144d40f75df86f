// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which stores and which checkpoint a command is about.
//! In: its arguments. Out: opened stores, one checkpoint, or what to do next.

use crate::output::{Failure, complain};
use crate::view::{short, short_list};
use backstay::ErrorKind;
use backstay_inspect::{Checkpoint, Stores, Wanted, default_places};
use std::path::PathBuf;

/// Reads `N` or `N.INCARNATION`.
pub(crate) fn parse_checkpoint(text: &str) -> Result<Wanted, String> {
    let number = |text: &str| {
        let number: Result<u64, _> = text.parse();
        number.map_err(|_error| {
            "a checkpoint is a number, or number.incarnation as in `backstay ls`".to_owned()
        })
    };
    match text.split_once('.') {
        None => Ok(Wanted {
            number: number(text)?,
            incarnation: None,
        }),
        Some((first, second)) => Ok(Wanted {
            number: number(first)?,
            incarnation: Some(number(second)?),
        }),
    }
}

/// Opens what is at `paths`, stores of nodes and archives, or in the default places if there are none. Paths that give no store are
/// told of; it fails only if there is no store at all.
pub(crate) fn open(paths: &[PathBuf]) -> Result<Stores, Failure> {
    if paths.is_empty() {
        return open_default();
    }
    let stores = Stores::open(paths);
    // A catalog tells what an archive should have even where none of its stores can be read.
    let nothing =
        stores.stores().is_empty() && stores.archives().iter().all(|a| a.catalog().is_none());
    if let (true, Some(first)) = (nothing, stores.unreadable().first()) {
        let all: Vec<String> = stores
            .unreadable()
            .iter()
            .map(|u| u.error.to_string())
            .collect();
        return Err(Failure::new(first.error.kind(), all.join("; ")));
    }
    for unreadable in stores.unreadable() {
        complain(&unreadable.error.to_string());
    }
    Ok(stores)
}

/// The same stores once more, without saying again what cannot be read.
pub(crate) fn open_quietly(paths: &[PathBuf]) -> Result<Stores, Failure> {
    if paths.is_empty() {
        return open_default();
    }
    Ok(Stores::open(paths))
}

fn open_default() -> Result<Stores, Failure> {
    let places = default_places();
    let there: Vec<PathBuf> = places
        .iter()
        .filter(|place| place.is_dir())
        .cloned()
        .collect();
    let shown = |places: &[PathBuf]| {
        let texts: Vec<String> = places
            .iter()
            .map(|place| place.display().to_string())
            .collect();
        texts.join(", ")
    };
    let mut stores = Stores::open(&there);
    stores.forget_empty_folders();
    if stores.stores().is_empty() && stores.unreadable().is_empty() {
        let message = format!(
            "no path was given, and there is no store in the default places ({}); give a store \
             file or a folder above it",
            shown(&places)
        );
        return Err(Failure::new(ErrorKind::NoCheckpoint, message));
    }
    complain(&format!("no path given: looking in {}", shown(&there)));
    for unreadable in stores.unreadable() {
        complain(&unreadable.error.to_string());
    }
    Ok(stores)
}

/// The checkpoint meant: the one named, else the newest complete one, else the newest.
pub(crate) fn choose(stores: &Stores, wanted: Option<Wanted>) -> Result<Checkpoint, Failure> {
    let jobs = stores.jobs();
    if jobs.len() > 1 {
        let message = format!(
            "there are stores of several jobs ({}); give the folder of one",
            {
                jobs.iter()
                    .map(|job| format!("{job:?}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            }
        );
        return Err(Failure::new(ErrorKind::InvalidArgument, message));
    }
    let all = stores.checkpoints();
    let fits = |checkpoint: &&Checkpoint| wanted.is_none_or(|wanted| wanted.matches(checkpoint.id));
    let complete = all.iter().filter(fits).rfind(|checkpoint| {
        checkpoint.is_complete() && (wanted.is_some() || !checkpoint.is_abandoned())
    });
    if let Some(found) = complete.or_else(|| all.iter().rfind(fits)) {
        return Ok(found.clone());
    }
    Err(not_there(&all, wanted))
}

/// The error for a checkpoint that none of the stores retains.
pub(crate) fn not_there(all: &[Checkpoint], wanted: Option<Wanted>) -> Failure {
    let ids: Vec<_> = all.iter().map(|checkpoint| checkpoint.id).collect();
    let message = match wanted {
        _ if ids.is_empty() => {
            "these stores retain no checkpoint: none was completed yet".to_owned()
        }
        Some(Wanted {
            number,
            incarnation: Some(incarnation),
        }) => {
            let id = backstay::CheckpointId::new(incarnation, number);
            format!(
                "checkpoint {} is not retained; these are: {}",
                short(id),
                short_list(&ids)
            )
        }
        Some(Wanted { number, .. }) => {
            format!(
                "checkpoint {number} is not retained; these are: {}",
                short_list(&ids)
            )
        }
        None => "no checkpoint fits".to_owned(),
    };
    Failure::new(ErrorKind::NotRetained, message)
}

/// The error for a checkpoint of which ranks are missing.
pub(crate) fn incomplete(checkpoint: &Checkpoint) -> Failure {
    let missing = checkpoint.missing_ranks(8);
    if let Some(archived) = &checkpoint.archived {
        let id = short(checkpoint.id);
        let why = if !archived.listed {
            "the catalog does not list it: it was dropped, or its drain did not end; take another one, as \
             `backstay ls` shows them, or --rank R for what is there"
                .to_owned()
        } else if archived.lacks.is_empty() {
            "give the folder of the archive, not one of its files".to_owned()
        } else {
            archived.lacks.join("; ")
        };
        let message = format!("checkpoint {id} is not whole in the archive: {why}");
        return Failure::new(ErrorKind::NotRetained, message);
    }
    let known = if checkpoint.known_complete {
        "the job has it complete: give the stores of the other nodes as well"
    } else {
        "give the stores of the other nodes as well; if these are all, it was never completed, and a \
         restart takes an older one"
    };
    let message = format!(
        "checkpoint {}: {} of {} ranks are in these stores, missing are {missing:?}{}; {known}",
        short(checkpoint.id),
        checkpoint.ranks.len(),
        checkpoint.world_size,
        if checkpoint.missing_ranks(9).len() > 8 {
            " and more"
        } else {
            ""
        }
    );
    Failure::new(ErrorKind::NotRetained, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_named_by_number_and_incarnation() {
        assert_eq!(
            parse_checkpoint("7"),
            Ok(Wanted {
                number: 7,
                incarnation: None
            })
        );
        assert_eq!(
            parse_checkpoint("7.2"),
            Ok(Wanted {
                number: 7,
                incarnation: Some(2)
            })
        );
        for wrong in ["", "x", "7.", ".2", "7.2.1", "-1"] {
            assert!(parse_checkpoint(wrong).is_err(), "{wrong}");
        }
    }
}
