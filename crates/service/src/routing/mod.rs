// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The routing agent: what programs that nobody changed write to routed names, it makes checkpoints of.
//!
//! Purpose: a session of one rank a host, whose files a program's processes write; they open none.
//! In from: `backstay run --route` (patterns), the preload library (what processes do with names). Out to: checkpoints
//! of the node's store; the files of the newest one, in memory again when the program starts.
//! Invariants: a checkpoint has complete files only, of sets that are complete; what a program removed is removed
//! from what is kept with what comes after it.
//!
//! | module | what it has |
//! |---|---|
//! | `rules` | patterns, and what is complete by them |
//! | `state` | names, files, revisions |
//! | `serve` | the socket |
//! | `names`, `holders` | what programs do |
//! | `sets` | what is complete, and what a checkpoint has |
//! | `together` | an agent of several, one a host |
//! | `circle`, `talk` | their communicator, and what else they say to each other |
//! | `rounds` | what is complete on all hosts |
//! | `part` | what this node wrote of files that several write |
//! | `clock` | when that was, on all nodes |
//! | `catalog`, `nodes` | which host has which name, and files brought from others |
//!
//! # The folder
//!
//! Beside the store, in `files/route`: `live` has the files as the program sees them, `kept` links to complete
//! revisions, `table` the patterns for the preload library, `socket` is where its processes connect. A program writes
//! a file under `live`; when it is complete it is linked under `kept`. Who opens it for writing then gets another file, so
//! that a checkpoint reads what nobody writes. When it is committed, links of older revisions go. Where there are other
//! hosts, `far` shows what these have, by empty files of the same size, and `near` has copies of what was opened.

mod catalog;
mod circle;
mod clock;
mod copy;
mod holders;
mod names;
mod nodes;
mod part;
pub mod program;
mod rounds;
pub mod rules;
mod serve;
mod sets;
mod state;
mod talk;
mod together;
#[cfg(test)]
mod tests;

pub use together::Together;

use backstay::{Config, Session};
use backstay_base::comm::Single;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice::{self, SaidOnce};
use backstay_format::CheckpointId;
use backstay_route::{KEPT, LIVE, TABLE_FILE};
use backstay_store::file::FILES_FOLDER;
use rules::Routes;
use serve::Shared;
use sets::Chosen;
use state::State;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The agent's folder, in the folder of files beside the store.
pub const ROUTE_FOLDER: &str = "route";
/// How often it looks whether it shall end.
const TICK: Duration = Duration::from_millis(50);
/// Between a checkpoint that failed and the next.
const AGAIN: Duration = Duration::from_secs(1);
/// For the last words of processes that have ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What an agent is told.
#[derive(Debug)]
pub struct Options {
    /// Settings of its session.
    pub config: Config,
    /// What is routed.
    pub routes: Routes,
    /// How long a file has to stay closed until it is complete.
    pub quiet: Duration,
    /// The agents of other hosts, if there are any.
    pub together: Option<Together>,
}

/// How an agent is told that the program ended.
#[derive(Debug, Default)]
pub struct End {
    /// It did.
    pub is_over: AtomicBool,
    /// And well.
    pub is_well: AtomicBool,
}

/// Serves a start of the program: restores, tells by `ready` in which folder, and takes checkpoints until the end.
pub fn run(options: Options, end: &End, ready: impl FnOnce(&Path)) -> Result<()> {
    let claimed = serve::claim(&options.routes.table)?;
    let ended = match options.together {
        Some(together) => {
            let options = (options.config, options.routes, options.quiet);
            together::run(together, options, end, ready)
        }
        None => run_alone(options, end, ready),
    };
    drop(claimed);
    ended
}

fn run_alone(options: Options, end: &End, ready: impl FnOnce(&Path)) -> Result<()> {
    let mut session = Session::open(Box::new(Single), options.config)?;
    let folder = make_folder(&session.directory(), &[LIVE, KEPT])?;
    write(&folder.join(TABLE_FILE), &options.routes.table.encode())?;
    let mut state = State::new(folder.clone(), options.routes, options.quiet);
    restore(&mut session, &mut state)?;
    let shared = Shared::new(state);
    serve::begin(&folder, &shared)?;
    ready(&folder);
    let mut agent = Agent::new(session, shared);
    while !end.is_over.load(Ordering::Acquire) {
        agent.step(false, false);
    }
    agent.finish(end.is_well.load(Ordering::Acquire));
    agent.session.close()
}

fn make_folder(directory: &Path, names: &[&str]) -> Result<PathBuf> {
    let folder = directory.join(FILES_FOLDER).join(ROUTE_FOLDER);
    let failed = |error| Error::io(format!("making {}", folder.display()), error);
    for name in names {
        let mut builder = fs::DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(folder.join(name))
            .map_err(failed)?;
    }
    fs::canonicalize(&folder).map_err(failed)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|error| Error::io(format!("writing {}", path.display()), error))
}

/// The names show what the newest checkpoint has; where there is none, what stands under them.
fn restore(session: &mut Session, state: &mut State) -> Result<()> {
    let restored = match session.restart_start() {
        Ok(restored) => restored,
        Err(error) if error.kind() == ErrorKind::NoCheckpoint => {
            let take_in = |state: &mut State| {
                let standing = state.standing()?;
                standing
                    .iter()
                    .try_for_each(|path| state.take_in_standing(path))?;
                Ok(standing.len())
            };
            let taken = take_in(state).map_err(|error| Error::io("taking files in", error))?;
            say_taken_in(taken);
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let files = session.stored_files(session.rank())?;
    let files: Vec<_> = files.into_iter().filter(|file| file.routed).collect();
    for file in &files {
        let (name, live) = place_of(state, &file.name, restored.checkpoint)?;
        let failed = |error| Error::io(format!("putting {} in place", live.display()), error);
        fs::rename(session.route_file(&file.name)?, &live).map_err(failed)?;
        state.restored(&name).map_err(failed)?;
    }
    session.restart_complete(true)?;
    say_restored(files.len(), restored.checkpoint);
    Ok(())
}

fn say_taken_in(taken: usize) {
    if taken > 0 {
        notice::info(&format!(
            "routing: {taken} files that stand under routed names are taken into memory"
        ));
    }
}

fn say_restored(count: usize, checkpoint: CheckpointId) {
    notice::info(&format!(
        "routing: {count} files of checkpoint {checkpoint} are in memory"
    ));
}

/// The name of a stored file and its place, whose folder is made.
fn place_of(state: &State, stored: &Path, checkpoint: CheckpointId) -> Result<(Vec<u8>, PathBuf)> {
    let name = [b"/", stored.as_os_str().as_bytes()].concat();
    let Some(live) = state.live(&name) else {
        let context = format!(
            "checkpoint {checkpoint} has {}, which no --route names: name it too, or take it out by backstay export --files",
            Path::new(OsStr::from_bytes(&name)).display()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    };
    if let Some(parent) = live.parent() {
        let failed = |error| Error::io(format!("making {}", parent.display()), error);
        fs::create_dir_all(parent).map_err(failed)?;
    }
    Ok((name, live))
}

struct Agent {
    session: Session,
    shared: Arc<Shared>,
    /// Checkpoints of this start.
    count: u64,
    /// Not before.
    again: Option<Instant>,
    failures: SaidOnce,
}

impl Agent {
    fn new(session: Session, shared: Arc<Shared>) -> Self {
        Self {
            session,
            shared,
            count: 0,
            again: None,
            failures: SaidOnce::default(),
        }
    }

    /// Takes a checkpoint if one is due, or waits.
    fn step(&mut self, at_the_end: bool, with_removals: bool) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let wait = state.settle().unwrap_or(TICK).min(TICK);
        let waits = self.again.is_some_and(|again| Instant::now() < again);
        let chosen = if waits {
            None
        } else {
            state.choose(with_removals)
        };
        let Some(chosen) = chosen else {
            if !at_the_end {
                shared.wait(state, wait.max(Duration::from_millis(1)));
            }
            return false;
        };
        drop(state);
        self.take(chosen)
    }

    /// Takes a checkpoint of what was chosen; whether it is there.
    fn take(&mut self, chosen: Chosen) -> bool {
        let shared = Arc::clone(&self.shared);
        let outcome = self.checkpoint(&chosen);
        let mut state = shared.lock();
        match outcome {
            Ok(()) => {
                self.count += 1;
                let exported = state.exported(&chosen, self.count);
                if !exported.is_empty() {
                    drop(state);
                    // What is exported is linked until it is said to be committed.
                    export(&exported);
                    state = shared.lock();
                }
                state.committed(chosen);
                self.failures.clear();
                true
            }
            Err(error) => {
                state.is_over();
                self.failures.warn(&format!(
                    "routing: what is complete is in no checkpoint yet: {error}"
                ));
                self.again = Some(Instant::now() + AGAIN);
                false
            }
        }
    }

    fn checkpoint(&mut self, chosen: &Chosen) -> Result<()> {
        self.session.output_start()?;
        let mut mine = if chosen.is_broken {
            let context = "a part of a file that several hosts write is not there any more";
            Err(Error::new(ErrorKind::Internal, context))
        } else {
            Ok(())
        };
        for (name, path) in &chosen.files {
            mine = mine.and_then(|()| {
                let routed = self.session.route_file(OsStr::from_bytes(name))?;
                let linked = fs::hard_link(path, &routed).or_else(|_| copy::copy(path, &routed));
                linked.map_err(|error| Error::io(format!("linking {}", path.display()), error))
            });
        }
        let outcome = self.session.output_complete(mine.is_ok());
        mine.and(outcome.map(drop))
    }

    /// The program is over: what it left complete is in a last checkpoint, and if it ended well, what it removed is not.
    fn finish(&mut self, is_well: bool) {
        let limit = Instant::now() + LAST_WORDS;
        let is_said = |state: &State| state.processes.is_empty();
        while !is_said(&self.shared.lock()) && Instant::now() < limit {
            self.step(false, false);
        }
        self.again = None;
        // Once more where something was waiting for what was not settled.
        while self.step(true, is_well) {}
        self.export_last();
    }

    fn export_last(&self) {
        let exported = self.shared.lock().exported_last();
        export(&exported);
    }
}

/// Writes files to the paths that they would have had.
fn export(files: &[(Vec<u8>, PathBuf)]) {
    for (name, from) in files {
        let path = Path::new(OsStr::from_bytes(name));
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        if let Err(error) = made.and_then(|()| copy::copy(from, path)) {
            notice::warn(&format!(
                "routing: {} cannot be exported: {error}",
                path.display()
            ));
        }
    }
}
