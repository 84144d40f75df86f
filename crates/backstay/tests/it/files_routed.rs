// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets of files, in the way that users of SCR know.

use crate::files::{alone, pattern};
use crate::job::config;
use backstay::{Config, ElementType, Error, ErrorKind, Result, Session, Variable};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const RANKS: usize = 3;
const LENGTH: usize = 400_000;

/// The state of a rank after a step: little changes from step to step.
fn state(rank: u32, step: u64) -> Vec<u8> {
    let mut bytes = pattern(u64::from(rank) + 100, LENGTH);
    bytes[..8].copy_from_slice(&step.to_le_bytes());
    bytes
}

fn name(rank: u32, step: u64) -> String {
    format!("ckpt.{step}/rank_{rank}.dat")
}

fn session(comm: ThreadComm, config: &Config) -> Result<Session> {
    Session::open(Box::new(comm), config.clone())
}

/// Writes the set of a step; how many blocks of it were new.
fn write_set(session: &mut Session, step: u64, valid: bool) -> Result<u64> {
    session.output_start()?;
    let rank = session.rank();
    let path = session.route_file(name(rank, step))?;
    std::fs::write(path, state(rank, step)).unwrap();
    session
        .output_complete(valid)
        .map(|report| report.blocks_changed)
}

/// What sets have in the memory of the node.
fn in_memory(store: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![store.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path.clone());
            }
            let mut above = path.parent().unwrap().components();
            if above.any(|part| part.as_os_str() == "files") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn a_set_is_a_checkpoint_and_is_read_under_its_names() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let mut session = session(comm, &config).unwrap();
        let mut step = Box::new(0u64);
        let variable = Variable::new("step", ElementType::U64, &[]);
        // SAFETY: `step` outlives the session.
        unsafe { session.protect(variable, (&raw mut *step).cast()) }.unwrap();
        // Outside of sets a name is a name.
        assert_eq!(session.route_file("a/../b").unwrap(), Path::new("a/../b"));
        for now in 1..=3 {
            *step = now;
            let new = write_set(&mut session, now, true).unwrap();
            // The names of each step are others, and what did not change is not written again.
            assert_eq!(new, if now == 1 { 26 } else { 2 }, "step {now}");
        }
        let names: Vec<PathBuf> = session
            .stored_files(session.rank())
            .unwrap()
            .into_iter()
            .map(|f| f.name)
            .collect();
        assert_eq!(names, [PathBuf::from(name(session.rank(), 3))]);
    });
    assert_eq!(in_memory(folder.path()), [] as [PathBuf; 0]);
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let mut session = session(comm, &config).unwrap();
        let mut step = Box::new(0u64);
        let variable = Variable::new("step", ElementType::U64, &[]);
        // SAFETY: `step` outlives the session.
        unsafe { session.protect(variable, (&raw mut *step).cast()) }.unwrap();
        let restored = session.restart_start().unwrap();
        assert_eq!((*step, restored.unclaimed), (3, 0));
        let rank = session.rank();
        let path = session.route_file(name(rank, 3)).unwrap();
        assert!(std::fs::read(path).unwrap() == state(rank, 3));
        let error = session.route_file(name(rank, 2)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::VariableMismatch, "{error}");
        assert!(error.to_string().contains("ckpt.3/rank_"), "{error}");
        session.restart_complete(true).unwrap();
        assert_eq!(write_set(&mut session, 4, true).unwrap(), 1);
        // A restore of the variables alone leaves the set.
        assert_eq!(session.restore().unwrap().unclaimed, 1);
        let to = folder.path().join(format!("taken {rank}"));
        session.restore_file(name(rank, 4), rank, &to).unwrap();
        assert!(std::fs::read(to).unwrap() == state(rank, 4));
    });
    assert_eq!(in_memory(folder.path()), [] as [PathBuf; 0]);
}

#[test]
fn one_rank_that_says_no_voids_the_set() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let mut session = session(comm, &config).unwrap();
        let rank = session.rank();
        write_set(&mut session, 1, true).unwrap();
        let error = write_set(&mut session, 2, rank != 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("rank 1 says"), "{error}");
        // What was routed and not written, or is not closed, is none either.
        for what in ["not written", "still open"] {
            session.output_start().unwrap();
            let path = session.route_file(name(rank, 2)).unwrap();
            let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
            file.write_all(b"in a buffer").unwrap();
            if rank != 2 || what == "not written" {
                drop(file);
                if rank == 2 {
                    std::fs::remove_file(&path).unwrap();
                }
                let error = session.output_complete(true).unwrap_err();
                assert!(error.to_string().contains(what), "{error}");
            } else {
                let error = session.output_complete(true).unwrap_err();
                assert!(error.to_string().contains(what), "{error}");
                drop(file);
            }
        }
        session.restart_start().unwrap();
        let path = session.route_file(name(rank, 1)).unwrap();
        assert!(std::fs::read(path).unwrap() == state(rank, 1));
        session.restart_complete(true).unwrap();
        write_set(&mut session, 2, true).unwrap();
        session.close().unwrap();
    });
    assert_eq!(in_memory(folder.path()), [] as [PathBuf; 0]);
}

#[test]
fn a_set_that_one_rank_cannot_use_is_given_up_for_an_older_one() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    run_ranks(ThreadComm::new(2), |comm| {
        let mut session = session(comm, &config).unwrap();
        for step in 1..=3 {
            write_set(&mut session, step, true).unwrap();
        }
        session.close().unwrap();
    });
    run_ranks(ThreadComm::new(2), |comm| {
        let mut session = session(comm, &config).unwrap();
        let rank = session.rank();
        assert_eq!(session.restart_start().unwrap().checkpoint.number, 3);
        let error = session.restart_complete(rank == 0).unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");
        assert_eq!(session.restart_start().unwrap().checkpoint.number, 2);
        let path = session.route_file(name(rank, 2)).unwrap();
        assert!(std::fs::read(path).unwrap() == state(rank, 2));
        session.restart_complete(true).unwrap();
        write_set(&mut session, 3, true).unwrap();
    });
}

fn wrong(outcome: Result<PathBuf>, word: &str) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains(word), "{error}");
}

#[test]
fn names_lead_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = alone(&config(folder.path()));
    session.output_start().unwrap();
    for name in ["..", "../x", "a/../../x", "/a/../x", "", ".", "./."] {
        wrong(session.route_file(name), "leads out");
    }
    wrong(session.route_file("a/"), "no name of a file");
    wrong(session.route_file("/"), "no name of a file");
    wrong(session.route_file("a\0b"), "no name of a file");
    wrong(session.route_file("/x".repeat(2048)), "4096 bytes");
    wrong(session.route_file("/x".repeat(2040)), "too long for");
    let error = session.route_file("x".repeat(300)).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
    // The same by other words.
    let odd = OsStr::from_bytes(b"/out/./odd \xff name");
    let path = session.route_file(odd).unwrap();
    let same = session
        .route_file(OsStr::from_bytes(b"out/odd \xff name"))
        .unwrap();
    assert_eq!(path, same);
    std::fs::write(&path, b"odd").unwrap();
    // A file is no folder of others.
    let plain = session.route_file("plain").unwrap();
    std::fs::write(plain, b"plain").unwrap();
    let error = session.route_file("plain/below").unwrap_err();
    assert!(error.to_string().contains("plain/below"), "{error}");
    wrong(session.route_file("out"), "folder");
    session.output_complete(true).unwrap();
    session.restart_start().unwrap();
    let path = session.route_file(odd).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), b"odd");
    session.restart_complete(true).unwrap();
}

#[test]
fn calls_that_do_not_belong_together_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = alone(&config(folder.path()));
    let check = |outcome: std::result::Result<(), Error>, word: &str| {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    check(session.output_complete(true).map(drop), "output_start");
    check(session.restart_complete(true), "restart_start");
    session.output_start().unwrap();
    check(session.output_start(), "output_complete");
    check(session.checkpoint().map(drop), "output_complete");
    check(session.checkpoint_start().map(drop), "output_complete");
    check(session.restore().map(drop), "output_complete");
    check(session.restart_start().map(drop), "output_complete");
    // A link in the place of what was to be written.
    let path = session.route_file("f").unwrap();
    symlink("/etc/passwd", path).unwrap();
    check(session.output_complete(true).map(drop), "symbolic link");
    assert_eq!(
        session.restart_start().unwrap_err().kind(),
        ErrorKind::NoCheckpoint
    );
    assert_eq!(
        session.route_file("f").unwrap(),
        Path::new("f"),
        "no set is open"
    );
    session.checkpoint().unwrap();
    // A checkpoint without a set has none.
    session.restart_start().unwrap();
    assert_eq!(
        session.route_file("f").unwrap_err().kind(),
        ErrorKind::VariableMismatch
    );
    session.close().unwrap();
    assert_eq!(in_memory(folder.path()), [] as [PathBuf; 0]);
}

#[test]
fn what_a_start_left_in_a_set_is_gone_in_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    run_ranks(ThreadComm::new(2), |comm| {
        let mut session = session(comm, &config).unwrap();
        write_set(&mut session, 1, true).unwrap();
        session.output_start().unwrap();
        let path = session.route_file(name(session.rank(), 2)).unwrap();
        std::fs::write(path, b"half of it").unwrap();
        // As after kill -9: the set is not complete.
    });
    assert!(!in_memory(folder.path()).is_empty());
    run_ranks(ThreadComm::new(2), |comm| {
        let mut session = session(comm, &config).unwrap();
        let left = in_memory(folder.path());
        assert!(
            !left.iter().any(|path| path.ends_with("ckpt.2")),
            "{left:?}"
        );
        session.restart_start().unwrap();
        let path = session.route_file(name(session.rank(), 1)).unwrap();
        assert!(std::fs::read(path).unwrap() == state(session.rank(), 1));
        session.restart_complete(true).unwrap();
    });
}
