// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finished is a state: a program that said it is done is not restored by the next start, which begins anew; no
//! restore that names no checkpoint goes back behind a start that began anew.

use crate::job::{Rank, config};
use backstay::config::{Config, Redundancy};
use backstay::{CheckpointId, Communicator, ErrorKind, Finished, Level};
use backstay_base::io::fault;
use backstay_inspect::Stores;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a start of the job ends.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Finish,
    Close,
    Kill,
}

/// One start with the configurations of its ranks.
fn start<T: Send>(
    configs: &[Config],
    end: End,
    body: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<(T, Finished)> {
    run_ranks(ThreadComm::new(configs.len()), |comm| {
        let config = configs[usize::try_from(comm.rank()).unwrap()].clone();
        let mut rank = Rank::open(comm, config).expect("opening");
        rank.settle().expect("protecting");
        let out = body(&mut rank);
        let finished = match end {
            End::Finish => rank.session.finish().expect("finishing"),
            End::Close => rank
                .session
                .close()
                .map(|()| Finished::default())
                .expect("closing"),
            End::Kill => Finished::default(),
        };
        (out, finished)
    })
}

fn steps(rank: &mut Rank, count: usize) {
    for _ in 0..count {
        rank.compute();
        rank.session.checkpoint().unwrap();
    }
}

/// The job begins: nothing is restored, and the lists say so.
fn begins(rank: &mut Rank) {
    let none = rank.session.restore().unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NoCheckpoint, "{none}");
    assert_eq!(rank.session.stored_checkpoints().unwrap(), []);
    // Nor is anything told of what a restore would not take.
    let shape = rank.session.stored_shape("field", 0).unwrap_err();
    assert_eq!(shape.kind(), ErrorKind::NoCheckpoint, "{shape}");
    let files = rank.session.stored_files(0).unwrap_err();
    assert_eq!(files.kind(), ErrorKind::NoCheckpoint, "{files}");
    assert_eq!(rank.step, 0);
}

/// It goes on where it was, at `step`.
fn goes_on(rank: &mut Rank, checkpoint: CheckpointId, step: u64) {
    let restored = rank.session.restore().unwrap();
    assert_eq!((restored.checkpoint, rank.step), (checkpoint, step));
    rank.check();
}

fn two(folder: &Path) -> Vec<Config> {
    vec![config(folder), config(folder)]
}

#[test]
fn a_finished_job_begins_anew_and_can_be_gone_back_to() {
    let folder = tempfile::tempdir().unwrap();
    let configs = two(folder.path());
    let ends = start(&configs, End::Finish, |rank| steps(rank, 3));
    assert_eq!(ends[0].1.report.checkpoint, CheckpointId::new(1, 4));
    assert_eq!(ends[0].1.level, Level::Node);
    // It begins anew as often as it dies before its first checkpoint.
    for _ in 0..2 {
        start(&configs, End::Kill, begins);
    }
    start(&configs, End::Kill, |rank| {
        begins(rank);
        let earlier = rank.session.earlier_checkpoints();
        assert_eq!(earlier.last(), Some(&CheckpointId::new(1, 4)));
        assert_eq!(rank.session.restore_from(4).unwrap().checkpoint.number, 4);
        assert_eq!(rank.step, 3);
        rank.check();
        steps(rank, 1);
    });
    // Gone back to, it is one that is not finished.
    start(&configs, End::Close, |rank| {
        let taken = *rank.session.stored_checkpoints().unwrap().last().unwrap();
        assert_eq!(taken.number, 5);
        goes_on(rank, taken, 4);
    });
    start(&configs, End::Finish, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 4, "a close is no end of the job");
    });
    start(&configs, End::Kill, begins);
}

#[test]
fn a_named_checkpoint_of_a_finished_job_is_restored_by_setting() {
    let folder = tempfile::tempdir().unwrap();
    start(&two(folder.path()), End::Finish, |rank| steps(rank, 3));
    let named = |number| Config {
        restore_checkpoint: Some(number),
        ..config(folder.path())
    };
    start(&[named(4), named(4)], End::Kill, |rank| {
        assert_eq!(
            rank.session
                .stored_checkpoints()
                .unwrap()
                .last()
                .unwrap()
                .number,
            4
        );
        assert!(rank.session.stored_shape("field", 0).is_ok());
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 3);
        rank.check();
    });
    let both = Config {
        fresh: Some(1),
        ..named(4)
    };
    let wrong = both.validate().unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Configuration);
}

/// Damages every copy of what the newest two checkpoints wrote.
fn damage_all(folder: &Path, above: u64) {
    let stores = Stores::open(&[folder.to_owned()]);
    let mut hit = 0;
    for store in stores.stores() {
        let revisions = store.root().revisions.iter();
        for revision in revisions.filter(|one| one.checkpoint.number > above) {
            let top = revision.ranks.top.address;
            let path = store.path().to_owned();
            let reader = backstay_store::reader::StoreReader::open(Arc::new(
                backstay_base::io::file::FileDevice::open_read_only(&path).unwrap(),
            ))
            .unwrap();
            reader.read_records(|_, _, _| {}).unwrap();
            let offset = reader.offset_of(top, 16).unwrap();
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[usize::try_from(offset).unwrap()] ^= 0x40;
            std::fs::write(&path, bytes).unwrap();
            hit += 1;
        }
    }
    assert!(hit > 0);
}

#[test]
fn no_restore_crosses_a_start_that_began_anew_though_all_that_is_newer_is_damaged() {
    for end in [End::Finish, End::Kill] {
        let folder = tempfile::tempdir().unwrap();
        let retaining = |fresh| Config {
            retained: 8,
            fresh,
            ..config(folder.path())
        };
        start(&[retaining(None)], end, |rank| steps(rank, 2));
        let anew = if end == End::Finish { None } else { Some(1) };
        let last = start(&[retaining(anew)], End::Kill, |rank| {
            begins(rank);
            let before = rank.session.earlier_checkpoints().last().unwrap().number;
            steps(rank, 2);
            before
        });
        let before = last[0].0;
        damage_all(folder.path(), before);
        start(&[retaining(None)], End::Kill, |rank| {
            let error = rank.session.restore().unwrap_err();
            assert!(error.kind().proves_loss(), "{error}");
            assert!(rank.session.stored_checkpoints().is_err());
            assert_eq!(rank.step, 0);
            // Somebody who names it can.
            rank.session.restore_from(before).unwrap();
            assert_eq!(rank.step, 2);
            rank.check();
        });
    }
}

/// Also where the program does not say so: it restored nothing, so it is another computation.
#[test]
fn a_start_that_restores_nothing_is_never_gone_back_behind() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        retained: 8,
        ..config(folder.path())
    };
    let configs = [config];
    start(&configs, End::Kill, |rank| steps(rank, 3));
    start(&configs, End::Kill, |rank| steps(rank, 2));
    damage_all(folder.path(), 4);
    start(&configs, End::Kill, |rank| {
        goes_on(rank, CheckpointId::new(2, 4), 1);
    });
    damage_all(folder.path(), 3);
    start(&configs, End::Kill, |rank| {
        let error = rank.session.restore().unwrap_err();
        assert!(error.kind().proves_loss(), "{error}");
        assert_eq!(rank.step, 0);
    });
}

#[test]
fn a_wish_to_begin_anew_is_carried_out_at_once_and_one_with_a_number_once() {
    let folder = tempfile::tempdir().unwrap();
    let fresh = |fresh| {
        vec![
            Config {
                fresh,
                ..config(folder.path())
            };
            2
        ]
    };
    start(&fresh(None), End::Kill, |rank| steps(rank, 3));
    start(&fresh(Some(0)), End::Kill, |rank| {
        goes_on(rank, CheckpointId::new(1, 3), 3);
    });
    // It dies before its first checkpoint, and what was before is not gone back to.
    start(&fresh(Some(1)), End::Kill, begins);
    start(&fresh(None), End::Kill, begins);
    start(&fresh(Some(1)), End::Kill, |rank| {
        begins(rank);
        steps(rank, 2);
    });
    start(&fresh(Some(77)), End::Kill, |rank| {
        begins(rank);
        steps(rank, 1);
    });
    // The same wish as before: this start goes on.
    let number = start(&fresh(Some(77)), End::Kill, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 1);
        rank.check();
        steps(rank, 1);
        rank.step
    });
    assert_eq!(number[0].0, 2);
    start(&fresh(Some(78)), End::Kill, begins);
}

#[test]
fn what_is_finished_makes_way_where_space_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let small = Config {
        reserve_bytes: Some(3 << 20),
        segment_bytes: Some(256 << 10),
        ..config(folder.path())
    };
    let configs = [small];
    // Two checkpoints of 0.6 MiB each are retained.
    let other = |rank: &mut Rank, words: usize, seed: u64| {
        let word = |at: u64| seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        rank.memory = (0..).take(words).map(word).collect();
        rank.settle().unwrap();
    };
    start(&configs, End::Finish, |rank| {
        for seed in 0..4 {
            other(rank, 80_000, seed);
            rank.session.checkpoint().unwrap();
        }
    });
    // Beside them there is no room for one of 1.9 MiB.
    start(&configs, End::Finish, |rank| {
        begins(rank);
        other(rank, 240_000, 9);
        rank.session.checkpoint().unwrap();
        assert_eq!(rank.session.earlier_checkpoints(), []);
    });
}

fn node(folder: &Path, place: usize, retained: u32) -> Config {
    Config {
        node: Some(format!("n{place}")),
        store_path: Some(folder.join(format!("n{place}"))),
        listen_address: Some("127.0.0.1:0".to_owned()),
        archive: Some(folder.join("pfs")),
        archive_retained: retained,
        archive_reserve_bytes: Some(8 << 20),
        redundancy: Redundancy::Xor,
        ..config(folder)
    }
}

fn nodes(folder: &Path) -> Vec<Config> {
    (0..3).map(|place| node(folder, place, 2)).collect()
}

fn wipe(folder: &Path, places: std::ops::Range<usize>) {
    for place in places {
        std::fs::remove_dir_all(folder.join(format!("n{place}"))).unwrap();
    }
}

#[test]
fn a_finished_job_is_so_where_only_the_archive_is_left_and_its_result_stays() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let ends = start(&nodes(folder), End::Finish, |rank| steps(rank, 3));
    assert_eq!(ends[0].1.level, Level::Archive);
    let result = ends[0].1.report.checkpoint;
    wipe(folder, 0..3);
    // A second run has more checkpoints than are retained; the first's result stays.
    start(&nodes(folder), End::Finish, |rank| {
        begins(rank);
        for _ in 0..4 {
            rank.compute();
            let handle = rank.session.checkpoint_start().unwrap();
            rank.session.wait(handle, Level::Archive).unwrap();
        }
    });
    wipe(folder, 0..3);
    start(&nodes(folder), End::Kill, |rank| {
        begins(rank);
        let earlier = rank.session.earlier_checkpoints();
        assert!(earlier.contains(&result), "{earlier:?}");
        rank.session.restore_from(result.number).unwrap();
        assert_eq!(rank.step, 3);
        rank.check();
        steps(rank, 1);
    });
    start(&nodes(folder), End::Kill, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 4);
        rank.check();
    });
}

#[test]
fn the_loss_of_a_node_does_not_make_a_finished_job_unfinished() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let without_archive = || {
        let nodes = nodes(folder).into_iter();
        let without = nodes.map(|config| Config {
            archive: None,
            ..config
        });
        without.collect::<Vec<_>>()
    };
    let ends = start(&without_archive(), End::Finish, |rank| steps(rank, 3));
    assert_eq!(ends[0].1.level, Level::Protected);
    let result = ends[0].1.report.checkpoint.number;
    wipe(folder, 1..2);
    start(&without_archive(), End::Kill, |rank| {
        begins(rank);
        rank.session.restore_from(result).unwrap();
        assert_eq!(rank.step, 3);
        rank.check();
    });
}

#[test]
fn a_job_whose_archive_fails_is_finished_on_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let configs: Vec<Config> = nodes(folder)
        .into_iter()
        .map(|config| Config {
            timeout_ms: 1_500,
            ..config
        })
        .collect();
    // From the last checkpoint on nothing can be drained any more, also into files that are open.
    let is_full = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&is_full);
    let full = fault::watch(&folder.join("pfs"), move |attempt| {
        let fails = fails.load(Ordering::SeqCst) && attempt.access == fault::Access::Write;
        fails.then_some(fault::Fault::Fails(28))
    });
    let ends = start(&configs, End::Finish, |rank| {
        steps(rank, 2);
        is_full.store(true, Ordering::SeqCst);
    });
    drop(full);
    assert!(ends[0].1.level < Level::Archive, "{:?}", ends[0].1);
    start(&nodes(folder), End::Kill, begins);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// As after a kill while the nodes write it: what one of them knows, all do.
#[test]
fn a_job_that_some_nodes_know_to_be_finished_is() {
    let origin = tempfile::tempdir().unwrap();
    let alone = |folder: &Path| {
        let nodes = nodes(folder).into_iter();
        let alone = nodes.map(|config| Config {
            archive: None,
            redundancy: Redundancy::None,
            ..config
        });
        alone.collect::<Vec<_>>()
    };
    start(&alone(origin.path()), End::Close, |rank| steps(rank, 3));
    let before = tempfile::tempdir().unwrap();
    copy(origin.path(), before.path());
    start(&alone(origin.path()), End::Finish, |rank| {
        rank.session.restore().unwrap();
    });
    for known in 0..8_u32 {
        let mixed = tempfile::tempdir().unwrap();
        for node in 0..3 {
            let name = format!("n{node}");
            let knows = known >> node & 1 == 1;
            let from = if knows { &origin } else { &before };
            copy(&from.path().join(&name), &mixed.path().join(&name));
        }
        start(&alone(mixed.path()), End::Kill, |rank| {
            if known == 0 {
                goes_on(rank, CheckpointId::new(1, 3), 3);
            } else {
                begins(rank);
                steps(rank, 1);
            }
        });
    }
}
