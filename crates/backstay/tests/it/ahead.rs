// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is done behind the program: a new store is made whole, and has room for the next checkpoint.

use crate::job::config;
use backstay::{Config, ElementType, Session, Variable};
use backstay_store::place::STORE_FILE;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

const WORDS: usize = 6 << 20;

fn open(comm: ThreadComm, config: Config, memory: &mut [u64]) -> Session {
    let mut session = Session::open(Box::new(comm), config).unwrap();
    let length = u64::try_from(memory.len()).unwrap();
    let variable = Variable::new("field", ElementType::U64, &[length]);
    // SAFETY: the memory outlives the session, and is written between its calls.
    unsafe { session.protect(variable, memory.as_mut_ptr().cast()) }.unwrap();
    session
}

fn fill(memory: &mut [u64], step: u64) {
    for (at, word) in (0..).zip(memory) {
        *word = step << 32 | at;
    }
}

/// Length of the store, and how much of it is real, in bytes.
fn sizes(folder: &Path) -> (u64, u64) {
    let found = std::fs::metadata(folder.join("test job/node0").join(STORE_FILE)).unwrap();
    (found.len(), found.blocks() * 512)
}

/// Waits until the store is of a size, real as far as it goes.
fn await_size(folder: &Path, is_it: impl Fn(u64) -> bool) -> u64 {
    let since = Instant::now();
    loop {
        let (length, real) = sizes(folder);
        if is_it(length) && real >= length {
            return length;
        }
        let late = since.elapsed() > Duration::from_secs(60);
        assert!(!late, "{length} bytes, {real} of them real");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_new_store_in_memory_is_made_whole_behind_the_program() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let folder = folder.path();
    let state = u64::try_from(WORDS * 8).unwrap();
    run_ranks(ThreadComm::new(1), |comm| {
        let mut memory = vec![0; WORDS];
        let mut session = open(comm, config(folder), &mut memory);
        fill(&mut memory, 1);
        session.checkpoint().unwrap();
        // The state, what changes of it in two retained checkpoints by the default, a quarter, and some segments.
        let whole = await_size(folder, |length| length >= state * 18 / 10);
        assert!(whole < state * 26 / 10, "{whole}");
        // All of it changed, against what was expected: there is room for as much again before it is asked for.
        fill(&mut memory, 2);
        session.checkpoint().unwrap();
        await_size(folder, |length| length >= state * 3);
        fill(&mut memory, 3);
        session.checkpoint().unwrap();
        session.close().unwrap();
    });
    run_ranks(ThreadComm::new(1), |comm| {
        let mut memory = vec![0; WORDS];
        let mut session = open(comm, config(folder), &mut memory);
        session.restore().unwrap();
        let mut expected = vec![0; WORDS];
        fill(&mut expected, 3);
        assert!(memory == expected);
    });
}

/// As large as it is said to be, at once.
#[test]
fn a_store_whose_size_is_given_is_reserved_at_its_first_checkpoint() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let folder = folder.path();
    let config = Config {
        reserve_bytes: Some(160 << 20),
        ..config(folder)
    };
    run_ranks(ThreadComm::new(1), |comm| {
        let mut memory = vec![0; WORDS];
        let mut session = open(comm, config.clone(), &mut memory);
        for step in 1..5 {
            fill(&mut memory, step);
            session.checkpoint().unwrap();
            let (length, real) = sizes(folder);
            assert!(length <= 160 << 20 && real >= length, "{length} {real}");
            assert!(length > 150 << 20, "{length}");
        }
        session.close().unwrap();
    });
}
