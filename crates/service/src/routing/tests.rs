// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is complete, when, and what a checkpoint has, without programs and without a session.

use super::rules::parse;
use super::state::{Holder, ProcessId, State};
use backstay_route::message::{FIRST_ROUTED, SECOND_ROUTED};
use backstay_route::{KEPT, LIVE};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::time::Duration;
use tempfile::TempDir;

const WRITE: i32 = 0o1;
const UPDATE: i32 = 0o2;
const CREATE: i32 = 0o100 | 0o1000 | 0o1;
const LONG: Duration = Duration::from_secs(3600);

struct Job {
    _folders: [TempDir; 2],
    here: String,
    state: State,
    ids: u32,
}

impl Job {
    fn new(patterns: &[&str], quiet: Duration) -> Self {
        let (memory, here) = (tempfile::tempdir_in("/dev/shm"), tempfile::tempdir());
        let (memory, here) = (memory.expect("memory"), here.expect("here"));
        let path = here.path().canonicalize().expect("real");
        let words: Vec<OsString> = patterns.iter().map(OsString::from).collect();
        let routes = parse(&words, &path, None).expect("routes");
        for name in [LIVE, KEPT] {
            fs::create_dir(memory.path().join(name)).expect("folder");
        }
        let state = State::new(memory.path().to_owned(), routes, quiet);
        let path = path.to_string_lossy().into_owned();
        Self {
            _folders: [memory, here],
            here: path,
            state,
            ids: 0,
        }
    }

    fn name(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.here).into_bytes()
    }

    /// Opens a name as a process does, and writes it.
    fn open(&mut self, process: ProcessId, name: &str, flags: i32, text: &str) -> u32 {
        self.ids += 1;
        let name = self.name(name);
        let holder = Holder::opened(process, self.ids);
        self.state.open(holder, &name, flags).expect("open");
        let live = self.state.live(&name).expect("live");
        fs::write(live, text).expect("write");
        self.ids
    }

    fn write(&mut self, process: ProcessId, name: &str, text: &str) {
        let id = self.open(process, name, CREATE, text);
        self.state.closed(process, id, false);
    }

    fn rename(&mut self, from: &str, to: &str) {
        let (from, to) = (self.name(from), self.name(to));
        self.state
            .rename(FIRST_ROUTED | SECOND_ROUTED, 0, &from, &to)
            .expect("rename");
    }

    /// Takes a checkpoint, if one is due: what it has.
    fn checkpoint(&mut self, at_a_good_end: bool) -> Option<BTreeMap<String, String>> {
        self.state.settle();
        let chosen = self.state.choose(at_a_good_end)?;
        let read = |(name, path): &(Vec<u8>, std::path::PathBuf)| {
            let name = String::from_utf8(name.clone()).expect("text");
            let name = name
                .strip_prefix(&format!("{}/", self.here))
                .expect("below")
                .to_owned();
            (name, fs::read_to_string(path).expect("revision"))
        };
        let files = chosen.files.iter().map(read).collect();
        self.state.committed(chosen);
        Some(files)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as a checkpoint is told")]
fn of(files: &[(&str, &str)]) -> Option<BTreeMap<String, String>> {
    Some(
        files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect(),
    )
}

fn own() -> i32 {
    i32::try_from(std::process::id()).expect("pid")
}

#[test]
fn a_closed_file_waits_and_a_renamed_one_does_not() {
    let mut job = Job::new(&["r.*"], LONG);
    let process = job.state.connected(own());
    job.write(process, "r.1", "one");
    assert_eq!(job.checkpoint(false), None);
    job.write(process, "r.tmp", "two");
    job.rename("r.tmp", "r.2");
    // What was closed before may still be opened again: what came later is not there before it.
    assert_eq!(job.checkpoint(false), None);
    job.state.bye(process, 0);
    job.state.disconnected(process);
    assert_eq!(job.checkpoint(false), of(&[("r.1", "one"), ("r.2", "two")]));
    assert_eq!(job.checkpoint(true), None);
}

#[test]
fn what_a_checkpoint_has_is_not_written() {
    let mut job = Job::new(&["r"], Duration::ZERO);
    let process = job.state.connected(own());
    job.write(process, "r", "one");
    assert_eq!(job.checkpoint(false), of(&[("r", "one")]));
    for flags in [CREATE, UPDATE] {
        let id = job.open(process, "r", flags, "half");
        // Another file is complete meanwhile: this one is as it was.
        assert_eq!(job.checkpoint(false), None);
        assert_eq!(job.state.choose(true).map(|_| ()), None);
        job.state.closed(process, id, true);
        assert_eq!(
            job.checkpoint(false),
            None,
            "a failed close completes nothing"
        );
    }
    job.write(process, "r", "two");
    assert_eq!(job.checkpoint(false), of(&[("r", "two")]));
}

#[test]
fn a_death_completes_nothing_until_the_file_is_written_anew() {
    let mut job = Job::new(&["r"], Duration::ZERO);
    // No such process: what it had open is open no more.
    let (dead, other) = (job.state.connected(i32::MAX), job.state.connected(own()));
    job.open(dead, "r", CREATE, "half");
    let id = job.open(other, "r", WRITE, "half");
    job.state.disconnected(dead);
    job.state.closed(other, id, false);
    assert_eq!(job.checkpoint(false), None);
    job.write(other, "r", "whole");
    assert_eq!(job.checkpoint(false), of(&[("r", "whole")]));
}

#[test]
fn a_failing_process_completes_nothing_on_its_way_out() {
    let mut job = Job::new(&["r.*"], LONG);
    let process = job.state.connected(own());
    job.write(process, "r.1", "just now");
    let id = job.open(process, "r.2", CREATE, "at the end");
    job.state.leaving(process, 1);
    job.state.closed(process, id, false);
    job.state.bye(process, 1);
    job.state.disconnected(process);
    assert_eq!(job.checkpoint(false), None);
}

#[test]
fn a_child_that_dies_leaves_its_parents_file_to_the_parent() {
    let mut job = Job::new(&["r"], Duration::ZERO);
    let (parent, child) = (job.state.connected(own()), job.state.connected(i32::MAX));
    let id = job.open(parent, "r", CREATE, "whole");
    let name = job.name("r");
    job.state.inherited(child, 1, &name);
    job.state.closed(parent, id, false);
    assert_eq!(job.checkpoint(false), None, "the child has it open");
    job.state.closed(child, 1, false);
    assert_eq!(job.checkpoint(false), of(&[("r", "whole")]));
    let id = job.open(parent, "r", CREATE, "half");
    job.state.closed(parent, id, false);
    assert_eq!(job.checkpoint(false), of(&[("r", "half")]));
    let id = job.open(parent, "r", CREATE, "torn");
    job.state.inherited(child, 2, &name);
    job.state.closed(parent, id, false);
    job.state.disconnected(child);
    assert_eq!(
        job.checkpoint(false),
        None,
        "the child wrote it last, and died"
    );
}

#[test]
fn a_set_is_complete_when_all_its_files_are() {
    let mut job = Job::new(&["r.{step}.{rank};writers=2"], Duration::ZERO);
    let process = job.state.connected(own());
    job.write(process, "r.1.0", "1 0");
    job.write(process, "r.2.1", "2 1");
    job.write(process, "r.1.7", "of nobody");
    assert_eq!(job.checkpoint(false), None);
    job.write(process, "r.1.1", "1 1");
    assert_eq!(
        job.checkpoint(false),
        of(&[("r.1.0", "1 0"), ("r.1.1", "1 1")])
    );
    job.write(process, "r.2.0", "2 0");
    let name = job.name("r.1.0");
    job.state.remove(&name).expect("remove");
    assert_eq!(
        job.checkpoint(false),
        of(&[("r.1.1", "1 1"), ("r.2.0", "2 0"), ("r.2.1", "2 1")])
    );
}

#[test]
fn rounds_in_place_are_not_mixed_by_a_rank_that_is_ahead() {
    let mut job = Job::new(&["r.{rank};writers=2;in-place"], Duration::ZERO);
    let process = job.state.connected(own());
    job.write(process, "r.0", "first");
    job.write(process, "r.0", "second");
    assert_eq!(job.checkpoint(false), None);
    job.write(process, "r.1", "first");
    job.open(process, "r.0", CREATE, "third, half");
    assert_eq!(
        job.checkpoint(false),
        of(&[("r.0", "first"), ("r.1", "first")])
    );
    assert_eq!(job.checkpoint(false), None);
    job.write(process, "r.1", "second");
    assert_eq!(
        job.checkpoint(false),
        of(&[("r.0", "second"), ("r.1", "second")])
    );
}

#[test]
fn what_is_removed_goes_with_its_successor_or_at_a_good_end() {
    let mut job = Job::new(&["r.*"], Duration::ZERO);
    let process = job.state.connected(own());
    job.write(process, "r.1", "one");
    assert_eq!(job.checkpoint(false), of(&[("r.1", "one")]));
    // A rotation alone is no successor.
    job.rename("r.1", "r.old");
    assert_eq!(
        job.checkpoint(false),
        of(&[("r.1", "one"), ("r.old", "one")])
    );
    job.write(process, "r.2", "two");
    assert_eq!(
        job.checkpoint(false),
        of(&[("r.2", "two"), ("r.old", "one")])
    );
    for name in ["r.2", "r.old"] {
        let name = job.name(name);
        job.state.remove(&name).expect("remove");
    }
    assert_eq!(job.checkpoint(false), None);
    assert_eq!(job.checkpoint(true), of(&[]));
    assert!(job.state.names.is_empty(), "{:?}", job.state.names);
    assert_eq!(
        fs::read_dir(job.state.folder.join(KEPT))
            .expect("kept")
            .count(),
        0
    );
}

#[test]
fn what_is_removed_during_a_checkpoint_is_in_it() {
    let mut job = Job::new(&["r.*"], Duration::ZERO);
    let process = job.state.connected(own());
    job.write(process, "r.1", "one");
    job.state.settle();
    for fails in [true, false] {
        let chosen = job.state.choose(false).expect("chosen");
        if fails {
            job.state.is_over();
            continue;
        }
        let name = job.name("r.1");
        job.state.remove(&name).expect("remove");
        assert!(chosen.files.iter().all(|(_, path)| path.exists()));
        job.state.committed(chosen);
    }
    job.write(process, "r.2", "two");
    assert_eq!(job.checkpoint(false), of(&[("r.2", "two")]));
    assert_eq!(
        fs::read_dir(job.state.folder.join(KEPT))
            .expect("kept")
            .count(),
        1
    );
}

#[test]
fn drafts_are_complete_by_their_names_alone() {
    let mut job = Job::new(&["r.*", "tmp.*;draft"], Duration::ZERO);
    let process = job.state.connected(own());
    job.write(process, "tmp.1", "new");
    assert_eq!(job.checkpoint(false), None);
    job.rename("tmp.1", "r.1");
    assert_eq!(job.checkpoint(false), of(&[("r.1", "new")]));
}

#[test]
fn names_that_stay_keep_their_places() {
    let mut job = Job::new(&["r.*"], Duration::ZERO);
    let process = job.state.connected(own());
    for name in ["r.1", "r.2", "r.3"] {
        job.write(process, name, name);
    }
    job.checkpoint(false);
    let name = job.name("r.1");
    job.state.remove(&name).expect("remove");
    job.write(process, "r.4", "r.4");
    job.checkpoint(false);
    assert_eq!(
        job.state.order,
        [job.name("r.4"), job.name("r.2"), job.name("r.3")]
    );
    for name in ["r.4", "r.2"] {
        let name = job.name(name);
        job.state.remove(&name).expect("remove");
    }
    job.write(process, "r.3", "again");
    job.checkpoint(false);
    assert_eq!(job.state.order, [job.name("r.3")]);
}

#[test]
fn folders_take_their_files_with_them_and_files_cross_between_file_systems() {
    let mut job = Job::new(&["s.{step}/*"], Duration::ZERO);
    let process = job.state.connected(own());
    job.write(process, "s.1/a", "text");
    let (from, to) = (job.name("s.1"), job.name("s.2"));
    job.state.rename_folder(&from, &to).expect("folder");
    assert_eq!(job.checkpoint(false), of(&[("s.2/a", "text")]));
    let (from, to) = (job.name("s.2/a"), job.name("plain"));
    job.state.rename(FIRST_ROUTED, 0, &from, &to).expect("out");
    assert_eq!(
        fs::read_to_string(format!("{}/plain", job.here)).expect("plain"),
        "text"
    );
    job.state.rename(SECOND_ROUTED, 0, &to, &from).expect("in");
    assert!(fs::metadata(format!("{}/plain", job.here)).is_err());
    assert_eq!(job.checkpoint(false), of(&[("s.2/a", "text")]));
    assert!(
        job.state
            .rename(FIRST_ROUTED | SECOND_ROUTED, 2, &from, &from)
            .is_err()
    );
}
