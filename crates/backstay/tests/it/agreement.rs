// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several nodes: a checkpoint counts only when every node has it, and starts are never mixed.

use crate::job::{Rank, config};
use backstay::{CheckpointId, Communicator, Config, ErrorKind};
use backstay_base::io::fault::{self, Access, Fault};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use std::path::Path;

/// A job of one rank on each of two nodes.
fn two_nodes<T: Send>(path: &Path, body: impl Fn(&mut Rank) -> T + Sync) -> Vec<T> {
    let config = config(path);
    run_ranks(
        ThreadComm::with_limit(2, std::time::Duration::from_secs(5)),
        |comm| {
            let node = Some(format!("node{}", comm.rank()));
            let mut rank = Rank::open(
                comm,
                Config {
                    node,
                    ..config.clone()
                },
            )
            .unwrap();
            rank.settle().unwrap();
            body(&mut rank)
        },
    )
}

/// Keeps the store of a node as it is now, to put it back later.
fn copy_store(path: &Path, node: &str, to: &str) {
    let folder = path.join("test job");
    std::fs::copy(folder.join(node).join("store.backstay"), folder.join(to)).unwrap();
}

fn put_back(path: &Path, node: &str, from: &str) {
    let folder = path.join("test job");
    std::fs::copy(folder.join(from), folder.join(node).join("store.backstay")).unwrap();
}

#[test]
fn checkpoints_of_two_starts_are_never_mixed() {
    let folder = tempfile::tempdir().unwrap();
    two_nodes(folder.path(), |rank| {
        for _ in 1..=7 {
            if rank.step == 6 && rank.session.rank() == 1 {
                copy_store(folder.path(), "node1", "node1 at 6");
            }
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
    });
    // Node 0 committed (1, 7); node 1 did not come to it.
    put_back(folder.path(), "node1", "node1 at 6");
    copy_store(folder.path(), "node0", "node0 at (1, 7)");
    two_nodes(folder.path(), |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint, CheckpointId::new(1, 6));
        rank.check();
        if rank.session.rank() == 0 {
            copy_store(folder.path(), "node0", "node0 at 6");
        }
        rank.step += 100;
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.checkpoint, CheckpointId::new(2, 7));
    });
    // Node 1 committed (2, 7); node 0 did not. Both have a 7, of two starts.
    put_back(folder.path(), "node0", "node0 at (1, 7)");
    two_nodes(folder.path(), |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint, CheckpointId::new(1, 6));
        assert_eq!(rank.step, 6);
        rank.check();
    });
}

/// The next checkpoint fails on node 1; node 0 has it durable by then, in place of the oldest retained.
fn fail_on_one_node(rank: &mut Rank, path: &Path) {
    let of_one = path.join("test job").join("node1");
    let is_one = rank.session.rank() == 1;
    let failing = is_one.then(|| {
        fault::watch(&of_one, |attempt| {
            (attempt.access == Access::Write).then_some(Fault::Fails(5))
        })
    });
    rank.compute();
    let error = rank.session.checkpoint().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreIo, "{error}");
    drop(failing);
}

#[test]
fn a_checkpoint_that_fails_on_one_node_takes_no_older_one_off_the_others() {
    let ids = |numbers: &[u64]| -> Vec<CheckpointId> {
        let ids = numbers.iter().map(|&number| CheckpointId::new(1, number));
        ids.collect()
    };
    for goes_back in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        two_nodes(folder.path(), |rank| {
            for _ in 1..=3 {
                rank.compute();
                rank.session.checkpoint().unwrap();
            }
            fail_on_one_node(rank, folder.path());
            assert_eq!(rank.session.stored_checkpoints().unwrap(), ids(&[2, 3]));
            if goes_back {
                rank.session.restore_from(2).unwrap();
                assert_eq!(rank.step, 2);
            }
        });
        // Killed there.
        two_nodes(folder.path(), |rank| {
            let stored = rank.session.stored_checkpoints().unwrap();
            let wanted: &[u64] = if goes_back { &[2] } else { &[2, 3] };
            assert_eq!(stored, ids(wanted));
            rank.session.restore_from(2).unwrap();
            assert_eq!(rank.step, 2);
            rank.check();
        });
    }
}

#[test]
fn a_damaged_part_sends_all_ranks_to_the_older_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    two_nodes(folder.path(), |rank| {
        for _ in 1..=3 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
        if rank.session.rank() == 1 {
            copy_store(folder.path(), "node1", "before");
        }
        rank.compute();
        rank.session.checkpoint().unwrap();
    });
    // Damage every byte that the newest checkpoint of node 1 wrote into blocks.
    let store = folder.path().join("test job/node1/store.backstay");
    let before = std::fs::read(folder.path().join("test job/before")).unwrap();
    let mut after = std::fs::read(&store).unwrap();
    for (offset, byte) in after.iter_mut().enumerate().skip(64 << 10) {
        if before.get(offset) != Some(byte) && *byte == 4 {
            *byte ^= 0x40;
        }
    }
    std::fs::write(&store, after).unwrap();
    two_nodes(folder.path(), |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!((restored.checkpoint.number, rank.step), (3, 3));
        rank.check();
    });
}

#[test]
fn a_failing_rank_fails_the_checkpoint_of_all_and_the_last_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    two_nodes(path, |rank| {
        rank.compute();
        rank.session.checkpoint().unwrap();
        // A variable that cannot fit on one of the two nodes.
        let huge = vec![1u8; 64 << 20];
        let store = path.join("test job/node1/store.backstay");
        let variable = backstay::Variable::new("huge", backstay::ElementType::U8, &[64 << 20]);
        if rank.session.rank() == 1 {
            // SAFETY: `huge` outlives its protection.
            unsafe {
                rank.session
                    .protect(variable, huge.as_ptr().cast_mut())
                    .unwrap();
            };
        }
        assert!(store.exists());
        rank.compute();
        let outcome = rank.session.checkpoint();
        assert!(outcome.is_ok(), "growth makes room: {outcome:?}");
        if rank.session.rank() == 1 {
            rank.session.unprotect("huge").unwrap();
        }
    });
    let limited = Config {
        reserve_bytes: Some(3 << 20),
        ..config(&path.join("limited"))
    };
    std::fs::create_dir_all(path.join("limited")).unwrap();
    run_ranks(ThreadComm::new(2), |comm| {
        let node = Some(format!("node{}", comm.rank()));
        let small = comm.rank() == 0;
        let mut rank = Rank::open(
            comm,
            Config {
                node,
                ..limited.clone()
            },
        )
        .unwrap();
        rank.settle().unwrap();
        rank.compute();
        rank.session.checkpoint().unwrap();
        let huge = vec![1u8; 8 << 20];
        if !small {
            let variable = backstay::Variable::new("huge", backstay::ElementType::U8, &[8 << 20]);
            // SAFETY: `huge` outlives its protection.
            unsafe {
                rank.session
                    .protect(variable, huge.as_ptr().cast_mut())
                    .unwrap();
            };
        }
        rank.compute();
        let error = rank.session.checkpoint().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
        assert!(error.to_string().contains("short by"), "{error}");
        if !small {
            rank.session.unprotect("huge").unwrap();
        }
        // The program goes on, and so do its checkpoints.
        rank.compute();
        assert_eq!(rank.session.checkpoint().unwrap().checkpoint.number, 3);
    });
}
