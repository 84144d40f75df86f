// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Groups that run rounds of their own, and what the job has of them.

use crate::job::Rank;
use crate::rounds::{NODES, request, start};
use backstay::config::Tracking;
use backstay::{CheckpointId, Communicator, Config, Level, Session};
use backstay_format::agent::Request;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::{Fault, SimNetwork};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Groups run rounds of their own: one that cannot keeps no other from protecting, and the job has what all have.
#[test]
fn a_group_that_fails_keeps_no_other_back_and_the_job_has_what_all_have() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    let refuse = Arc::new(AtomicBool::new(false));
    let refused = Arc::clone(&refuse);
    let strangers = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&strangers);
    network.set_hook(move |attempt| {
        let request = request(&attempt.action)?;
        let member_of = |name: &str| name[1..].parse::<usize>().unwrap() % 2;
        let is_round = !matches!(request, Request::Survey | Request::Table { .. });
        if is_round && member_of(&attempt.from) != member_of(&attempt.to) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        match request {
            Request::Flush { .. } if attempt.to == "n3" => {
                refused.load(Ordering::SeqCst).then_some(Fault::Unreachable)
            }
            _ => None,
        }
    });
    let change = |config: &mut Config| {
        config.group_size = 2;
        config.retained = 2;
    };
    start(folder.path(), &network, change, |rank| {
        let first = rank.take_protected();
        if rank.session.rank() == 0 {
            refuse.store(true, Ordering::SeqCst);
        }
        // One of group 0 can, which group 1 never does; both are in the same vote.
        for _ in 0..4 {
            let handle = rank.take();
            rank.session.wait(handle, Level::Protected).unwrap_err();
            let is_over = rank.session.test(&handle, Level::Protected).unwrap();
            let (even, job) = (
                rank.session.rank() % 2 == 0,
                rank.session.protected_checkpoint(),
            );
            assert!(!even || is_over);
            assert_eq!(job, Some(first.checkpoint()));
        }
        let stored = rank.session.stored_checkpoints().unwrap();
        assert!(stored.contains(&first.checkpoint()), "{stored:?}");
        if rank.session.rank() == 0 {
            refuse.store(false, Ordering::SeqCst);
        }
        let last = rank.take_protected();
        assert_eq!(rank.session.protected_checkpoint(), Some(last.checkpoint()));
        rank.take();
        let stored = rank.session.stored_checkpoints().unwrap();
        assert!(!stored.contains(&first.checkpoint()), "{stored:?}");
    });
    assert_eq!(strangers.load(Ordering::SeqCst), 0, "rounds between groups");
}

/// A program that only computes, or waits, learns of protection without a call of all ranks.
#[test]
fn a_job_of_one_group_knows_what_it_has_without_a_vote() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    start(
        folder.path(),
        &network,
        |_| (),
        |rank| {
            let id = rank.take().checkpoint();
            let begun = Instant::now();
            while rank.session.protected_checkpoint() != Some(id) {
                assert!(begun.elapsed() < Duration::from_secs(20), "it never learns");
                std::thread::sleep(Duration::from_millis(1));
            }
        },
    );
}

/// Waits until `is_so`, of what all ranks share.
fn await_that(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Members that have not heard yet of the round that has begun say in votes what they protected last: that is no word
/// of what is encoded.
#[test]
fn what_is_encoded_stays_though_some_members_have_not_heard_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    let [hold_collect, hold_flush] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let [collecting, flushing] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let held = (Arc::clone(&hold_collect), Arc::clone(&hold_flush));
    let seen = (Arc::clone(&collecting), Arc::clone(&flushing));
    network.set_hook(move |attempt| {
        let (hold, seen) = match request(&attempt.action)? {
            Request::Collect { .. } => (&held.0, &seen.0),
            Request::Flush { .. } => (&held.1, &seen.1),
            _ => return None,
        };
        if hold.load(Ordering::SeqCst) {
            seen.fetch_add(1, Ordering::SeqCst);
            await_that("it is let go", || !hold.load(Ordering::SeqCst));
        }
        None
    });
    let change = |config: &mut Config| config.retained = 2;
    start(folder.path(), &network, change, |rank| {
        rank.take_protected();
        let says = |what: &AtomicBool, on| {
            if rank.session.rank() == 0 {
                what.store(on, Ordering::SeqCst);
            }
        };
        says(&hold_collect, true);
        says(&hold_flush, true);
        rank.take();
        let others = 3;
        await_that("a round begins", || {
            collecting.load(Ordering::SeqCst) >= others
        });
        let encoded = rank.session.stored_checkpoints().unwrap();
        let encoded: CheckpointId = *encoded.last().unwrap();
        rank.take();
        hold_collect.store(false, Ordering::SeqCst);
        await_that("all have collected", || {
            flushing.load(Ordering::SeqCst) >= others
        });
        rank.take();
        let stored = rank.session.stored_checkpoints().unwrap();
        assert!(stored.contains(&encoded), "{encoded} of {stored:?}");
        hold_flush.store(false, Ordering::SeqCst);
        await_that("it is protected", || {
            let protected = rank.session.protected_checkpoint();
            protected.is_some_and(|protected| protected >= encoded)
        });
    });
}

/// Where one member was not told of a round, no node says that the job has what it protects.
#[test]
fn what_one_member_was_not_told_no_node_says_of_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    let refuse = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(AtomicUsize::new(0));
    let (is_refused, count) = (Arc::clone(&refuse), Arc::clone(&refused));
    network.set_hook(move |attempt| match request(&attempt.action)? {
        Request::Settle { .. } if attempt.to == "n3" && is_refused.load(Ordering::SeqCst) => {
            count.fetch_add(1, Ordering::SeqCst);
            Some(Fault::Unreachable)
        }
        _ => None,
    });
    let change = |config: &mut Config| config.retained = 2;
    start(folder.path(), &network, change, |rank| {
        let first = rank.take_protected().checkpoint();
        if rank.session.rank() == 0 {
            refuse.store(true, Ordering::SeqCst);
        }
        for _ in 0..4 {
            let before = refused.load(Ordering::SeqCst);
            rank.take();
            await_that("a round ends", || refused.load(Ordering::SeqCst) > before);
            assert_eq!(rank.session.protected_checkpoint(), Some(first));
            let stored = rank.session.stored_checkpoints().unwrap();
            assert!(stored.contains(&first), "{first} of {stored:?}");
        }
        refuse.store(false, Ordering::SeqCst);
        let last = rank.take_protected().checkpoint();
        assert_eq!(rank.session.protected_checkpoint(), Some(last));
    });
}

/// A whole round may fit between what two ranks tell in the same vote: one says what was protected before, and nothing
/// of the round, the others that it is over.
#[test]
fn what_is_protected_while_a_vote_is_gathered_stays() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    let hold = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&hold);
    network.set_hook(move |attempt| {
        let is_collect = matches!(request(&attempt.action)?, Request::Collect { .. });
        if is_collect && held.load(Ordering::SeqCst) {
            await_that("it is let go", || !held.load(Ordering::SeqCst));
        }
        None
    });
    let change = |config: &mut Config| config.retained = 2;
    start(folder.path(), &network, change, |rank| {
        rank.take_protected();
        if rank.session.rank() == 0 {
            hold.store(true, Ordering::SeqCst);
        }
        let encoded = rank.take().checkpoint();
        if rank.session.rank() != 2 {
            // Node 2 has committed the next one meanwhile, and tells what it knows.
            std::thread::sleep(Duration::from_millis(300));
            hold.store(false, Ordering::SeqCst);
            await_that("it is protected", || {
                rank.session.protected_checkpoint() == Some(encoded)
            });
        }
        rank.take();
        rank.take();
        let stored = rank.session.stored_checkpoints().unwrap();
        let protected = rank.session.protected_checkpoint().unwrap();
        assert!(stored.contains(&protected), "{protected} of {stored:?}");
        assert!(
            stored.contains(&encoded) || protected > encoded,
            "{encoded} of {stored:?}"
        );
    });
}

/// Who coordinates is no point of loss: what is recorded all members have, and in the next start whoever has its place
/// leads, here a spare.
#[test]
fn a_coordinator_that_is_lost_is_replaced_in_the_next_start_and_takes_nothing_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let node = |place: usize| Config {
        timeout_ms: 3000,
        ..crate::rounds::node(folder, place)
    };
    let open = |comm: ThreadComm, place: usize| {
        let endpoint = network.endpoint(&format!("n{place}"));
        let session = Session::open_on(Box::new(comm), node(place), Some(endpoint)).unwrap();
        let mut rank = Rank::of(session);
        rank.protect(Tracking::Hash).unwrap();
        rank
    };
    run_ranks(ThreadComm::new(NODES), |comm| {
        let place = usize::try_from(comm.rank()).unwrap();
        let mut rank = open(comm, place);
        let first = rank.take_protected().checkpoint();
        if place == 0 {
            network.isolate("n0");
        }
        // Nobody can protect what the first member is to have a part in; what is protected stays so.
        let second = rank.take();
        rank.session.wait(second, Level::Protected).unwrap_err();
        assert_eq!(rank.session.protected_checkpoint(), Some(first));
    });
    network.mend_all();
    std::fs::remove_dir_all(folder.join("n0")).unwrap();
    let leaders = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&leaders);
    network.set_hook(move |attempt| {
        if let Some(Request::Join { .. }) = request(&attempt.action) {
            seen.lock().unwrap().insert(attempt.from.clone());
        }
        None
    });
    run_ranks(ThreadComm::new(NODES), |comm| {
        let place = usize::try_from(comm.rank()).unwrap() + 1;
        let mut rank = open(comm, place);
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint, CheckpointId::new(1, 1));
        let next = rank.take_protected().checkpoint();
        assert_eq!(rank.session.protected_checkpoint(), Some(next));
        rank.session.close().unwrap();
    });
    let leaders = leaders.lock().unwrap();
    assert!(leaders.iter().eq(["n4"]), "{leaders:?}");
}
