// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which stores and which checkpoint a command is about.
//! In: its arguments. Out: opened stores, one checkpoint, or what to do next.

use crate::output::{Failure, complain, meaning, sentence};
use crate::view::{short, short_list};
use backstay::{Config, ErrorKind};
use backstay_inspect::{Archive, Checkpoint, Stores, Wanted, default_places};
use std::path::{Path, PathBuf};

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

/// Which stores a command is about.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Places {
    /// Store files, or folders above them: of a node, a job, several jobs, an archive. Stores of one job are
    /// taken together. Without any, the places where jobs keep their stores are looked at, and what
    /// `BACKSTAY_STORE_PATH`, `BACKSTAY_ARCHIVE` and `BACKSTAY_CONFIG` name.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Only what is of this job. Without a path, `BACKSTAY_JOB` says it, too.
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
}

/// Where to look.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) paths: Vec<PathBuf>,
    /// The job that was asked for.
    pub(crate) job: Option<String>,
    /// Somebody named these paths: that there is nothing is an error.
    pub(crate) named: bool,
}

impl Places {
    /// Where to look: the paths given; else the places of jobs, of one job if one is named.
    pub(crate) fn find(&self) -> Result<Found, Failure> {
        if let Some(missing) = self.paths.iter().find(|path| !is_there(path)) {
            return Err(no_such_path(missing));
        }
        if !self.paths.is_empty() {
            return Ok(Found {
                paths: self.paths.clone(),
                job: self.job.clone(),
                named: true,
            });
        }
        let config = Config::from_environment()?;
        let job = self.job.clone().or_else(|| config.job.clone());
        let mut all = stored_places(&config);
        all.extend(config.archive);
        let mut places: Vec<PathBuf> = Vec::new();
        for place in all {
            let place = job.as_ref().map_or(place.clone(), |job| place.join(job));
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let (there, missing): (Vec<PathBuf>, Vec<PathBuf>) =
            places.into_iter().partition(|place| place.is_dir());
        if there.is_empty() {
            let of_job = job.map_or(String::new(), |job| format!(" of job {job:?}"));
            let message = format!(
                "no path was given, and there is no store{of_job} in the default places ({}); give a \
                 store file or a folder above it, or --job as the application names it",
                shown(&missing)
            );
            return Err(Failure::named(NOTHING, message));
        }
        Ok(Found {
            paths: there,
            job,
            named: false,
        })
    }

    /// Opens what is there, stores of nodes and archives. Paths that give no store are told of; it fails
    /// only if there is no store at all.
    pub(crate) fn open(&self) -> Result<Stores, Failure> {
        self.opened(&|text| complain(text))
    }

    /// The same stores once more, without saying again what cannot be read.
    pub(crate) fn open_quietly(&self) -> Result<Stores, Failure> {
        self.opened(&|_| {})
    }

    fn opened(&self, say: &dyn Fn(&str)) -> Result<Stores, Failure> {
        let found = self.find()?;
        let mut stores = Stores::open(&found.paths);
        if !found.named {
            stores.forget_empty_folders();
        }
        // A catalog tells what an archive should have even where none of its stores can be read.
        let nothing =
            stores.stores().is_empty() && stores.archives().iter().all(|a| a.catalog().is_none());
        if let (true, Some(first)) = (nothing, stores.unreadable().first()) {
            let all: Vec<String> = stores
                .unreadable()
                .iter()
                .map(|u| sentence(&u.error))
                .collect();
            return Err(Failure::named(meaning(&first.error), all.join("; ")));
        }
        if nothing {
            let message = format!(
                "no path was given, and there is no store in {}; give a store file or a folder above it, \
                 or --job as the application names it",
                shown(&found.paths)
            );
            return Err(Failure::named(NOTHING, message));
        }
        if !found.named {
            say(&format!(
                "no path given: looking in {}",
                shown(&found.paths)
            ));
        }
        for unreadable in stores.unreadable() {
            say(&sentence(&unreadable.error));
        }
        match found.job.filter(|_| found.named) {
            Some(job) => only(&stores, &job),
            None => Ok(stores),
        }
    }
}

/// Folders where stores of nodes are, below which there is one for each job: what is set, and the default places.
pub(crate) fn stored_places(config: &Config) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = config.store_path.iter().cloned().collect();
    for place in default_places() {
        if !all.contains(&place) {
            all.push(place);
        }
    }
    all
}

/// What of `stores` is of one job.
fn only(stores: &Stores, job: &str) -> Result<Stores, Failure> {
    let is_of_job = |archive: &&Archive| {
        let catalog = archive.catalog();
        catalog.is_some_and(|catalog| catalog.superblock().job == job)
    };
    let nodes = stores.stores().iter();
    let nodes = nodes.filter(|store| store.job() == job && store.archive().is_none());
    let mut paths: Vec<PathBuf> = nodes.map(|store| store.path().to_owned()).collect();
    let archives = stores.archives().iter().filter(is_of_job);
    paths.extend(archives.map(|archive| archive.folder().to_owned()));
    if paths.is_empty() {
        let message = format!(
            "there is no store of job {job:?} here; there are those of {}",
            quoted(&stores.jobs())
        );
        return Err(Failure::named(NOTHING, message));
    }
    Ok(Stores::open(&paths))
}

/// The kind of error where there is no store.
const NOTHING: &str = "nothing there";

/// Whether something is there, be it that it may not be looked at.
fn is_there(path: &Path) -> bool {
    let looked = std::fs::metadata(path);
    !looked.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// The error for a path that does not exist.
pub(crate) fn no_such_path(path: &Path) -> Failure {
    let message = format!(
        "{}: there is no such file or folder; give a store file, a folder above one, or an archive",
        path.display()
    );
    Failure::named("no such path", message)
}

fn shown(places: &[PathBuf]) -> String {
    let texts: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
    texts.join(", ")
}

fn quoted(jobs: &[&str]) -> String {
    let texts: Vec<String> = jobs.iter().map(|job| format!("{job:?}")).collect();
    texts.join(", ")
}

/// The checkpoint meant: the one named, else the newest complete one, else the newest.
pub(crate) fn choose(stores: &Stores, wanted: Option<Wanted>) -> Result<Checkpoint, Failure> {
    let jobs = stores.jobs();
    if jobs.len() > 1 {
        let message = format!(
            "there are stores of several jobs ({}); give --job, or the folder of one",
            quoted(&jobs)
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
    let damage: Vec<&str> = checkpoint.damaged.iter().map(|(_, text)| &**text).collect();
    let known = if !damage.is_empty() {
        format!(
            "what says where they are is damaged ({}); take an older checkpoint, as `backstay verify` \
             tells them",
            damage.join("; ")
        )
    } else if checkpoint.known_complete {
        "the job has it complete: give the stores of the other nodes as well".to_owned()
    } else {
        "give the stores of the other nodes as well; if these are all, it was never completed, and a \
         restart takes an older one"
            .to_owned()
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
