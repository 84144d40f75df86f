// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stores that are deleted, moved or replaced under a running job.

use crate::job::{Rank, config, start};
use backstay::agent::{Ended, ProcessOptions, run};
use backstay::{ErrorKind, Level};
use backstay_testkit::comm::ThreadComm;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// On memory, which is written through a mapping, and on a disk.
fn folders() -> Vec<tempfile::TempDir> {
    let bases = [tempfile::tempdir_in("/dev/shm"), tempfile::tempdir()];
    bases.into_iter().flatten().collect()
}

fn store(folder: &Path) -> PathBuf {
    folder.join("test job/node0/store.backstay")
}

/// What somebody may do to a store.
type Harm = fn(&Path);

const HARMS: [(&str, Harm); 4] = [
    ("the file deleted", |folder| {
        std::fs::remove_file(store(folder)).unwrap();
    }),
    ("the folder deleted", |folder| {
        std::fs::remove_dir_all(folder.join("test job")).unwrap();
    }),
    ("the file moved", |folder| {
        std::fs::rename(store(folder), folder.join("elsewhere")).unwrap();
    }),
    ("a copy in its place", |folder| {
        std::fs::copy(store(folder), folder.join("copy")).unwrap();
        std::fs::rename(folder.join("copy"), store(folder)).unwrap();
    }),
];

/// A job of two ranks on a node, whose store comes to harm after three checkpoints.
fn harmed(folder: &Path, harm: Harm, in_background: bool) {
    let config = config(folder);
    start(2, &config, |rank| {
        for _ in 0..3 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
        if rank.session.rank() == 0 {
            harm(folder);
        }
        for _ in 0..3 {
            rank.compute();
            if in_background {
                let handle = rank.session.checkpoint_start().unwrap();
                rank.session.wait(handle, Level::Node).unwrap();
            } else {
                rank.session.checkpoint().unwrap();
            }
            if rank.session.rank() == 0 {
                assert!(store(folder).is_file());
            }
        }
        // What is not in a checkpoint any more.
        rank.compute();
    });
    start(2, &config, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 6);
        rank.check();
        rank.compute();
        rank.session.checkpoint().unwrap();
    });
}

#[test]
fn a_store_that_is_gone_is_put_back_at_the_next_checkpoint() {
    for folder in folders() {
        for (what, harm) in HARMS {
            println!("{what}");
            harmed(folder.path(), harm, false);
            std::fs::remove_dir_all(folder.path().join("test job")).unwrap();
        }
    }
}

#[test]
fn so_is_it_by_a_checkpoint_in_the_background() {
    for folder in folders() {
        harmed(folder.path(), HARMS[1].1, true);
    }
}

#[test]
fn the_lock_of_a_folder_that_was_deleted_is_taken_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(1, &config, |rank| {
        rank.compute();
        rank.session.checkpoint().unwrap();
        std::fs::remove_dir_all(folder.path().join("test job")).unwrap();
        rank.session.checkpoint().unwrap();
        let second = Rank::open(ThreadComm::new(1).remove(0), config.clone());
        let error = second.err().expect("a second job on the store");
        assert_eq!(error.kind(), ErrorKind::StoreBusy, "{error}");
    });
}

#[test]
fn what_is_no_copy_of_the_store_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(2, &config, |rank| {
        rank.compute();
        rank.session.checkpoint().unwrap();
        if rank.session.rank() == 0 {
            std::fs::remove_file(store(folder.path())).unwrap();
            std::fs::write(store(folder.path()), b"somebody's letters").unwrap();
        }
        rank.compute();
        let error = rank.session.checkpoint().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreBusy, "{error}");
        if rank.session.rank() == 0 {
            let found = std::fs::read(store(folder.path())).unwrap();
            assert_eq!(found, b"somebody's letters");
            std::fs::remove_file(store(folder.path())).unwrap();
        }
        rank.compute();
        rank.session.checkpoint().unwrap();
    });
    start(2, &config, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 3);
        rank.check();
    });
}

#[test]
fn an_agent_whose_place_was_removed_ends() {
    let removals: [Harm; 2] = [
        |place| std::fs::remove_dir_all(place).unwrap(),
        |place| std::fs::remove_file(place.join("agent.backstay")).unwrap(),
    ];
    for remove in removals {
        let folder = tempfile::tempdir().unwrap();
        let options = ProcessOptions {
            directory: folder.path().join("node0"),
            linger: Duration::from_secs(3600),
            over: None,
        };
        std::fs::create_dir(&options.directory).unwrap();
        let stop = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            let agent = scope.spawn(|| run(&options, &stop));
            while !options.directory.join("agent.socket").exists() && !agent.is_finished() {
                std::thread::yield_now();
            }
            remove(&options.directory);
            // One that does not end is told to, and says so.
            let limit = Instant::now() + Duration::from_secs(60);
            while !agent.is_finished() && Instant::now() < limit {
                std::thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Ordering::Release);
            agent.join().unwrap()
        });
        assert_eq!(ended.unwrap(), Ended::Removed);
    }
}
