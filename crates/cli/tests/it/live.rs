// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reading while a job writes: what it recycles meanwhile is never called damage.

use crate::job::{RANKS, Rank, backstay, config};
use crate::numpy::read_npy;
use backstay::{CheckpointId, Communicator, Config, ErrorKind};
use backstay_inspect::{Array, Stores};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A job of one rank and one checkpoint.
pub(crate) fn short_job(path: &Path, name: &str) {
    run_ranks(ThreadComm::new(1), |comm| {
        let config = Config {
            job: Some(name.to_owned()),
            ..config(path, 0, 1)
        };
        let mut rank = Rank::open(comm, config);
        rank.session.checkpoint().expect("a checkpoint");
    });
}

/// A job that checkpoints as fast as it can until it is told to stop.
fn busy_job(path: &Path, pause: Duration, stop: &AtomicBool) {
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let number = usize::try_from(comm.rank()).unwrap();
        let config = Config {
            retained: 2,
            ..config(path, number, 2)
        };
        let mut rank = Rank::open(comm, config);
        // All ranks end at the same step: the first one to see the wish names it.
        let last = &LAST;
        while *rank.step <= last.load(Ordering::SeqCst) {
            rank.compute();
            rank.session.checkpoint().expect("a checkpoint");
            if stop.load(Ordering::SeqCst) {
                last.fetch_min(*rank.step + 1, Ordering::SeqCst);
            }
            std::thread::sleep(pause);
        }
    });
}

static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(u64::MAX);

/// Tells the job to stop, also where the test fails: else its scope would wait without end.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn reading_while_a_job_writes_never_reports_damage() {
    // In memory, where there is such a place, commits are fastest.
    let folder = tempfile::tempdir_in("/dev/shm")
        .or_else(|_error| tempfile::tempdir())
        .unwrap();
    let path = folder.path();
    let stop = AtomicBool::new(false);
    let (mut superseded, mut exported) = (0, 0);
    std::thread::scope(|scope| {
        let job = scope.spawn(|| busy_job(path, Duration::ZERO, &stop));
        let stopping = Stop(&stop);
        // Until then no checkpoint is known to be complete, which is not what this looks for.
        while backstay(&["inspect"], &[path]).status != 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let file = path.join("big.npy");
        let export = [
            "export",
            "-v",
            "big",
            "-r",
            "1",
            "-o",
            file.to_str().unwrap(),
        ];
        for _ in 0..40 {
            for words in [&["ls"][..], &["verify", "--json"], &["inspect"], &export] {
                let ran = backstay(words, &[path]);
                let gone = [
                    "superseded",
                    "are in these stores",
                    "is in none of these stores",
                ]
                .iter()
                .any(|text| ran.err.contains(text));
                assert!(
                    !ran.out.contains("DAMAGED") && !ran.err.contains("damaged"),
                    "{ran:?}"
                );
                assert!(ran.status == 0 || gone, "{ran:?}");
                superseded += u32::from(gone);
                if words.len() > 2 && ran.status == 0 {
                    exported += 1;
                    let words = read_npy(&file).words();
                    let step = words[5] >> 40 & 0xff;
                    assert_eq!(words[5], crate::job::word(1, 5, step));
                    assert_eq!(words[39_999], crate::job::word(1, 39_999, 0));
                }
            }
        }
        drop(stopping);
        job.join().unwrap();
    });
    println!("{superseded} reads were overtaken, {exported} exports were whole");
    let ran = backstay(&["verify"], &[path]);
    assert_eq!(ran.status, 0, "{ran:?}");
}

#[test]
fn what_was_recycled_since_the_stores_were_opened_is_superseded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    run_ranks(ThreadComm::new(1), |comm| {
        let mut rank = Rank::open(comm, config(path, 0, 1));
        let mut take = |count: u64| {
            for _ in 0..count {
                rank.compute();
                rank.session.checkpoint().expect("a checkpoint");
            }
        };
        take(4);
        let stores = Stores::open(&[path.to_owned()]);
        let newest = stores.checkpoints().pop().unwrap();
        let variables = stores.variables(&newest, None, &mut |_| {}).unwrap();
        // One of the three is still retained after two more: what it shares with the others is good.
        take(2);
        let verified = &stores.verify(None, &mut |_| {})[0];
        assert!(verified.findings.is_empty(), "{verified:?}");
        assert_eq!(verified.checkpoints.len(), 3);
        take(8);
        let verified = &stores.verify(None, &mut |_| {})[0];
        assert!(verified.findings.is_empty(), "{verified:?}");
        let all: Vec<CheckpointId> = (2..=4).map(|number| CheckpointId::new(1, number)).collect();
        assert_eq!(verified.superseded, all);
        let big = variables
            .iter()
            .find(|variable| variable.name == "big")
            .unwrap();
        let array = Array::of_part(&stores, newest.id, &big.parts[0]);
        let error = array.read(&mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotRetained);
        assert!(
            error.to_string().contains("superseded while it was read"),
            "{error}"
        );
        assert!(
            error.to_string().contains("now retains [12, 13, 14]"),
            "{error}"
        );
    });
}
