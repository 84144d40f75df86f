// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Level 2: jobs of one rank a node, nodes that are lost with their stores, and what comes back.

use crate::job::{Rank, config};
use backstay::config::Redundancy;
use backstay::format::geometry::ROOT_OFFSETS;
use backstay::{CheckpointId, Config, ErrorKind, Level};
use backstay_base::io::fault::{self, Access, Fault};
use backstay_base::io::file::FileDevice;
use backstay_inspect::Stores;
use backstay_store::reader::StoreReader;
use backstay_store::stripe_log::{LOG_FILES, StripeTable, read_beside};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::device::EIO;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

/// The configuration of the node at `place`, its store in a folder of its own.
fn node(folder: &Path, redundancy: Redundancy, place: usize) -> Config {
    Config {
        node: Some(format!("n{place}")),
        store_path: Some(folder.join(format!("n{place}"))),
        redundancy,
        listen_address: Some("127.0.0.1:0".to_owned()),
        ..config(folder)
    }
}

/// One start on the nodes at `places`, one rank each.
fn start<T: Send>(
    folder: &Path,
    redundancy: Redundancy,
    places: &[usize],
    body: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    run_ranks(ThreadComm::new(places.len()), |comm| {
        let place = places[usize::try_from(backstay::Communicator::rank(&comm)).unwrap()];
        let mut rank = Rank::open(comm, node(folder, redundancy, place)).expect("opening");
        rank.settle().expect("protecting");
        body(&mut rank)
    })
}

fn wipe(folder: &Path, place: usize) {
    std::fs::remove_dir_all(folder.join(format!("n{place}"))).unwrap();
}

/// Takes `count` checkpoints, the last of them protected.
fn go_on(rank: &mut Rank, count: u64) {
    for _ in 0..count {
        rank.compute();
        let handle = rank.session.checkpoint_start().unwrap();
        rank.session.wait(handle, Level::Node).unwrap();
    }
    rank.compute();
    let handle = rank.session.checkpoint_start().unwrap();
    rank.session.wait(handle, Level::Protected).unwrap();
    assert_eq!(
        rank.session.protected_checkpoint(),
        Some(handle.checkpoint())
    );
}

fn survives(redundancy: Redundancy, wiped: &[usize], then: &[usize]) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, redundancy, &[0, 1, 2, 3], |rank| go_on(rank, 5));
    for &place in wiped {
        wipe(folder, place);
    }
    start(folder, redundancy, then, |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint, CheckpointId::new(1, 6));
        assert_eq!(rank.step, 6);
        rank.check();
        go_on(rank, 3);
    });
    // Protected again: any one node may go, also one that made another's store again.
    wipe(folder, then[1]);
    start(folder, redundancy, then, |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint, CheckpointId::new(2, 10));
        rank.check();
    });
}

#[test]
fn a_lost_node_comes_back_under_xor() {
    survives(Redundancy::Xor, &[2], &[0, 1, 2, 3]);
}

#[test]
fn a_lost_node_comes_back_under_partner() {
    survives(Redundancy::Partner, &[1], &[0, 1, 2, 3]);
}

#[test]
fn two_lost_nodes_come_back_under_reed_solomon() {
    survives(Redundancy::Rs, &[0, 1], &[0, 1, 2, 3]);
}

#[test]
fn a_spare_takes_the_place_of_a_lost_node_and_the_order_is_reversed() {
    survives(Redundancy::Xor, &[2], &[9, 3, 1, 0]);
}

#[test]
fn two_losses_under_xor_are_more_than_it_covers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, Redundancy::Xor, &[0, 1, 2, 3], |rank| {
        go_on(rank, 2);
    });
    wipe(folder, 1);
    wipe(folder, 3);
    start(folder, Redundancy::Xor, &[0, 1, 2, 3], |rank| {
        let error = rank.session.restore().unwrap_err();
        assert_ne!(error.kind(), ErrorKind::NoCheckpoint, "{error}");
        assert_eq!(rank.step, 0, "nothing was touched");
    });
}

/// Whichever rank says why: one whose node is gone, or one whose part was there.
#[test]
fn what_was_not_protected_is_lost_with_its_node_and_says_so_in_any_order() {
    for then in [[0, 1, 2], [2, 1, 0]] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        start(folder, Redundancy::None, &[0, 1, 2], |rank| {
            for _ in 0..2 {
                rank.compute();
                rank.session.checkpoint().unwrap();
            }
        });
        wipe(folder, 2);
        start(folder, Redundancy::Xor, &then, |rank| {
            let error = rank.session.restore().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotRetained, "{error}");
            let text = error.to_string();
            assert!(
                text.contains("not recoverable from the nodes, needs level 3"),
                "{text}"
            );
        });
    }
}

/// Where more stores are of an earlier time than the scheme covers, what the newest log of their group says is not
/// true of them. It was believed: rounds failed, or could have covered what is not there.
#[test]
fn stores_of_an_earlier_time_are_not_taken_for_what_the_log_of_their_group_says() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let all = [0, 1, 2, 3];
    start(folder, Redundancy::Xor, &all, |rank| go_on(rank, 1));
    let away = |place: usize| folder.join(format!("away{place}"));
    for place in [2, 3] {
        copy(&folder.join(format!("n{place}")), &away(place));
    }
    start(folder, Redundancy::Xor, &all, |rank| {
        rank.session.restore().unwrap();
        go_on(rank, 0);
    });
    for place in [2, 3] {
        wipe(folder, place);
        std::fs::rename(away(place), folder.join(format!("n{place}"))).unwrap();
    }
    let before = all.map(|place| log(folder, place).epoch);
    start(folder, Redundancy::Xor, &all, |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!((restored.checkpoint.number, rank.step), (2, 2));
        rank.check();
        go_on(rank, 2);
    });
    let after = all.map(|place| log(folder, place).epoch);
    assert!(
        after.iter().min() > before.iter().max(),
        "kept: {before:?}, {after:?}"
    );
    wipe(folder, 0);
    start(folder, Redundancy::Xor, &all, |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(rank.step, 5, "{restored:?}");
        rank.check();
    });
}

/// What cannot be made again is put back as it was, with its own log.
#[test]
fn a_store_of_an_earlier_time_that_cannot_be_made_again_keeps_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let all = [0, 1, 2, 3];
    start(folder, Redundancy::Xor, &all, |rank| go_on(rank, 1));
    let away = folder.join("away");
    copy(&folder.join("n2"), &away);
    start(folder, Redundancy::Xor, &all, |rank| {
        rank.session.restore().unwrap();
        go_on(rank, 6);
    });
    wipe(folder, 2);
    std::fs::rename(&away, folder.join("n2")).unwrap();
    let path = node_folder(folder, 0).join("store.backstay");
    let damaged = OpenOptions::new().write(true).open(path).unwrap();
    let (from, length) = (1 << 20, damaged.metadata().unwrap().len());
    let ones = vec![0xff; usize::try_from(length - from).unwrap()];
    damaged.write_all_at(&ones, from).unwrap();
    let (before, others) = (log(folder, 2), log(folder, 1));
    assert!(before.round < others.round);
    start(folder, Redundancy::Xor, &all, |rank| {
        // Whether the others still have an older one is not said.
        if rank.session.restore().is_ok() {
            rank.check();
        }
    });
    let after = log(folder, 2);
    let is_of_new_group = after.epoch > others.epoch;
    assert!(is_of_new_group || after == before, "round {}", after.round);
}

fn node_folder(folder: &Path, place: usize) -> PathBuf {
    folder.join(format!("n{place}/test job/n{place}"))
}

/// What the stripe log of a node says.
fn log(folder: &Path, place: usize) -> StripeTable {
    let folder = node_folder(folder, place);
    let store = FileDevice::open_read_only(&folder.join("store.backstay")).unwrap();
    let reader = StoreReader::open(Arc::new(store)).unwrap();
    read_beside(&folder, reader.superblock().store).unwrap()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry
            .map(|entry| (entry.path(), entry.file_name()))
            .unwrap();
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else if path.is_file() {
            std::fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

#[test]
fn fewer_nodes_go_on_with_two_ranks_on_one_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, Redundancy::Xor, &[0, 1, 2, 3], |rank| {
        go_on(rank, 4);
    });
    wipe(folder, 3);
    // Ranks 2 and 3 share node 2; rank 3's part is made again for reading.
    for restored in [5, 10] {
        start(folder, Redundancy::Xor, &[0, 1, 2, 2], |rank| {
            assert_eq!(rank.session.restore().unwrap().checkpoint.number, restored);
            rank.check();
            go_on(rank, 2);
            // All ranks learn with one what is protected, and let go with the next.
            for _ in 0..2 {
                rank.compute();
                rank.session.checkpoint().unwrap();
            }
            assert!(
                rank.session.rebuilt_directories().is_empty(),
                "of no use any more"
            );
        });
    }
}

#[test]
fn without_redundancy_ranks_find_their_parts_on_other_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let none = Redundancy::None;
    start(folder, none, &[0, 1, 2], |rank| {
        rank.compute();
        rank.session.checkpoint().unwrap();
    });
    start(folder, none, &[2, 0, 1], |rank| {
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 1);
        rank.check();
        rank.compute();
        assert_eq!(rank.session.checkpoint().unwrap().checkpoint.number, 2);
    });
    start(folder, none, &[2, 0, 1], |rank| {
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 2);
        rank.check();
    });
}

#[test]
fn a_flipped_byte_is_repaired_from_the_other_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, Redundancy::Xor, &[0, 1, 2, 3], |rank| {
        go_on(rank, 3);
    });
    let store = folder.join("n2/test job/n2/store.backstay");
    let mut bytes = std::fs::read(&store).unwrap();
    // In the middle of each segment that is used.
    for at in (96 << 10..bytes.len()).step_by(60_001) {
        bytes[at] ^= 0x10;
    }
    std::fs::write(&store, bytes).unwrap();
    start(folder, Redundancy::Xor, &[0, 1, 2, 3], |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint.number, 4, "the newest, repaired");
        rank.check();
    });
}

#[test]
fn checkpoints_after_a_return_to_an_older_one_are_protected() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let places = [0, 1, 2, 3];
    let last = run_ranks(ThreadComm::new(4), |comm| {
        let place = usize::try_from(backstay::Communicator::rank(&comm)).unwrap();
        let config = Config {
            retained: 6,
            ..node(folder, Redundancy::Xor, place)
        };
        let mut rank = Rank::open(comm, config).unwrap();
        rank.settle().unwrap();
        go_on(&mut rank, 8);
        rank.session.restore_from(5).unwrap();
        assert_eq!(rank.step, 5);
        rank.check();
        // 6 and 7, below the 9 that was protected.
        go_on(&mut rank, 1);
        rank.session.protected_checkpoint()
    });
    wipe(folder, 2);
    start(folder, Redundancy::Xor, &places, |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint.number, 7);
        assert_eq!(Some(restored.checkpoint), last[0]);
        rank.check();
    });
}

/// A checkpoint that is pinned is retained by all ranks: also by one on a node that is new to the job.
#[test]
fn a_node_that_is_new_learns_what_is_pinned() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, Redundancy::Xor, &[0, 1, 2], |rank| {
        go_on(rank, 1);
        // Which the others' record of this node's store does not say yet.
        rank.session.pin(1).unwrap();
    });
    wipe(folder, 1);
    start(folder, Redundancy::Xor, &[0, 3, 2], |rank| {
        rank.session.restore().unwrap();
        go_on(rank, 3);
        let stored = rank.session.stored_checkpoints().unwrap();
        assert_eq!(stored.first(), Some(&CheckpointId::new(1, 1)), "{stored:?}");
        rank.session.restore_from(1).unwrap();
        assert_eq!(rank.step, 1);
        rank.check();
        go_on(rank, 0);
        rank.session.unpin(1).unwrap();
    });
}

/// What a store was made for failed: it is there for the next checkpoint.
#[test]
fn a_store_that_cannot_be_read_when_it_is_made_is_used_later() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, Redundancy::Xor, &[0, 1, 2], |rank| {
        rank.compute();
        let on_it = || {
            fault::watch(&folder.join("n1"), |attempt| {
                let is_root = ROOT_OFFSETS.contains(&attempt.offset);
                (attempt.access == Access::Read && is_root).then_some(Fault::Fails(EIO))
            })
        };
        // By the rank whose store it is: then it ends before that goes on.
        let failing = (rank.session.rank() == 1).then(on_it);
        let first = rank.session.checkpoint();
        drop(failing);
        assert_eq!(first.unwrap_err().kind(), ErrorKind::StoreIo);
        go_on(rank, 1);
    });
    wipe(folder, 1);
    start(folder, Redundancy::Xor, &[0, 1, 2], |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 3);
        rank.check();
    });
}

/// Where a node's leader cannot take a failed checkpoint out of its root, what that root names stays as it is,
/// and later checkpoints fail until it can.
#[test]
fn what_a_root_names_is_not_written_again_before_it_names_it_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let is_root = |attempt: &fault::Attempt<'_>| {
        attempt.access == Access::Write && ROOT_OFFSETS.contains(&attempt.offset)
    };
    let whole = |place: usize, expected: &[u64]| {
        let stores = Stores::open(&[folder.join(format!("n{place}"))]);
        let found: Vec<u64> = stores
            .checkpoints()
            .iter()
            .map(|one| one.id.number)
            .collect();
        assert_eq!(found, expected, "node {place}");
        for store in stores.verify(None, &mut |_| {}) {
            assert!(store.findings.is_empty(), "{:#?}", store.findings);
        }
    };
    start(folder, Redundancy::None, &[0, 1], |rank| {
        rank.compute();
        rank.session.checkpoint().unwrap();
        // Node 1 commits nothing more, and node 0 once.
        let (mine, written) = (rank.session.rank(), AtomicU64::new(0));
        let failing = fault::watch(&folder.join(format!("n{mine}")), move |attempt| {
            let fails =
                is_root(attempt) && (mine == 1 || written.fetch_add(1, Ordering::SeqCst) > 0);
            fails.then_some(Fault::Fails(EIO))
        });
        for _ in 0..4 {
            rank.compute();
            rank.session.checkpoint().unwrap_err();
            if mine == 0 {
                whole(0, &[1, 2]);
            }
        }
        drop(failing);
        let report = rank.session.checkpoint().unwrap();
        whole(
            usize::try_from(mine).unwrap(),
            &[1, report.checkpoint.number],
        );
    });
    start(folder, Redundancy::None, &[0, 1], |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 5);
        rank.check();
    });
}

/// A start on four nodes in two groups of two, dealt to them in turn: 0 and 2, 1 and 3.
fn grouped_start(folder: &Path, retained: u32, body: impl Fn(&mut Rank) + Sync) {
    run_ranks(ThreadComm::new(4), |comm| {
        let place = usize::try_from(backstay::Communicator::rank(&comm)).unwrap();
        let config = Config {
            group_size: 2,
            retained,
            ..node(folder, Redundancy::Xor, place)
        };
        let mut rank = Rank::open(comm, config).expect("opening");
        rank.settle().expect("protecting");
        body(&mut rank);
    });
}

/// From when the flag is set, nodes `places` record no round that protects.
fn unrecorded(folder: &Path, places: &[usize]) -> (Arc<AtomicBool>, Vec<fault::Watch>) {
    let fails = Arc::new(AtomicBool::new(false));
    let watches = places.iter().map(|place| {
        let fails = Arc::clone(&fails);
        fault::watch(&folder.join(format!("n{place}")), move |attempt| {
            let name = attempt.path.file_name().and_then(|name| name.to_str());
            let is_log = name.is_some_and(|name| LOG_FILES.contains(&name));
            let fails = is_log && attempt.access == Access::Write && fails.load(Ordering::SeqCst);
            fails.then_some(Fault::Fails(EIO))
        })
    });
    let watches = watches.collect();
    (fails, watches)
}

fn logged(folder: &Path, place: usize) -> Option<u64> {
    let stores = Stores::open(&[folder.join(format!("n{place}"))]);
    let groups = stores.groups();
    groups.iter().map(|group| group.protected().number).max()
}

/// A group recorded the newest checkpoint, another could not, and the job died. The next start goes on from the
/// newest, and keeps what all groups protect until they protect a newer one.
#[test]
fn what_every_group_protects_is_kept_though_one_protects_a_newer_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (fails, failing) = unrecorded(folder, &[1, 3]);
    let barrier = Barrier::new(4);
    grouped_start(folder, 2, |rank| {
        go_on(rank, 0);
        barrier.wait();
        fails.store(true, Ordering::SeqCst);
        barrier.wait();
        rank.compute();
        rank.session.checkpoint().unwrap();
        if rank.session.rank() == 0 {
            let begun = std::time::Instant::now();
            while logged(folder, 0) != Some(2) {
                assert!(begun.elapsed() < std::time::Duration::from_secs(20));
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        barrier.wait();
    });
    assert_eq!(logged(folder, 1), Some(1));
    grouped_start(folder, 2, |rank| {
        let restored = rank.session.restore().unwrap().checkpoint;
        assert_eq!(restored, CheckpointId::new(1, 2));
        let protected = rank.session.protected_checkpoint();
        assert_eq!(protected, Some(CheckpointId::new(1, 1)));
        rank.compute();
        rank.session.checkpoint().unwrap();
    });
    drop(failing);
    wipe(folder, 3);
    grouped_start(folder, 2, |rank| {
        let restored = rank.session.restore().unwrap().checkpoint;
        assert_eq!(restored, CheckpointId::new(1, 1));
        assert_eq!(rank.step, 1);
        rank.check();
    });
}

/// Going back gives up what was protected last; what the same parity covers and is older is protected still, in
/// that start and in the next, until something newer is.
#[test]
fn what_a_start_goes_back_to_stays_protected() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (fails, failing) = unrecorded(folder, &[0, 1, 2, 3]);
    let barrier = Barrier::new(4);
    let take = |rank: &mut Rank| {
        rank.compute();
        let handle = rank.session.checkpoint_start().unwrap();
        rank.session.wait(handle, Level::Protected).unwrap_err();
    };
    grouped_start(folder, 3, |rank| {
        for _ in 0..3 {
            go_on(rank, 0);
        }
        barrier.wait();
        fails.store(true, Ordering::SeqCst);
        barrier.wait();
        rank.session.restore_from(1).unwrap();
        for _ in 0..4 {
            take(rank);
        }
    });
    grouped_start(folder, 3, |rank| {
        let restored = rank.session.restore().unwrap().checkpoint;
        assert_eq!(restored, CheckpointId::new(2, 5));
        for _ in 0..3 {
            take(rank);
        }
    });
    drop(failing);
    wipe(folder, 3);
    grouped_start(folder, 3, |rank| {
        let restored = rank.session.restore().unwrap().checkpoint;
        assert_eq!(restored, CheckpointId::new(1, 1));
        assert_eq!(rank.step, 1);
        rank.check();
    });
}
