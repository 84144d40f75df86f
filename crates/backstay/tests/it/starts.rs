// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts of a job: checkpoint, end without goodbye, restore, go on.

use crate::job::{Rank, config, start};
use backstay::agent::{Ended, ProcessOptions, run};
use backstay::{CheckpointId, ErrorKind, Level};
use backstay_base::io::fault;
use backstay_inspect::Stores;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_killed_job_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(4, &config, |rank| {
        let none = rank.session.restore().unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NoCheckpoint);
        for number in 1..=5 {
            rank.compute();
            let report = rank.session.checkpoint().unwrap();
            assert_eq!(report.checkpoint, CheckpointId::new(1, number));
            assert_eq!(report.bytes_total, 320_008);
        }
        rank.compute();
    });
    start(4, &config, |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint, CheckpointId::new(1, 5));
        assert_eq!(rank.step, 5);
        rank.check();
        rank.compute();
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.checkpoint, CheckpointId::new(2, 6));
        // Differential at once: about a tenth of 79 pieces of 4 KiB changed, in blocks of 16 KiB.
        assert!(report.blocks_changed < 16, "{report:?}");
    });
    start(4, &config, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 6);
        rank.check();
    });
}

#[test]
fn an_older_checkpoint_can_be_had_back_and_abandons_the_newer() {
    let folder = tempfile::tempdir().unwrap();
    let config = backstay::Config {
        retained: 4,
        ..config(folder.path())
    };
    start(2, &config, |rank| {
        for _ in 1..=6 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
        let numbers: Vec<u64> = rank
            .session
            .stored_checkpoints()
            .unwrap()
            .iter()
            .map(|id| id.number)
            .collect();
        assert_eq!(numbers, [3, 4, 5, 6]);
    });
    start(2, &config, |rank| {
        rank.session.restore_from(4).unwrap();
        assert_eq!(rank.step, 4);
        rank.check();
        assert_eq!(
            rank.session.restore_from(6).unwrap_err().kind(),
            ErrorKind::NotRetained
        );
    });
    start(2, &config, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 4);
        rank.check();
    });
}

/// What a start that retained more left is listed no longer when its space is free.
#[test]
fn a_root_lists_what_the_start_that_begins_keeps() {
    let folder = tempfile::tempdir().unwrap();
    let retaining = |retained| backstay::Config {
        retained,
        ..config(folder.path())
    };
    start(1, &retaining(5), |rank| {
        for _ in 1..=6 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
    });
    start(1, &retaining(2), |rank| {
        rank.session.restore().unwrap();
        let kept = rank.session.stored_checkpoints().unwrap();
        let stores = Stores::open(&[folder.path().to_owned()]);
        let listed: Vec<CheckpointId> = stores.checkpoints().iter().map(|one| one.id).collect();
        assert_eq!(kept.len(), 2);
        assert_eq!(listed, kept);
    });
}

#[test]
fn nothing_changed_writes_no_blocks_and_no_pages() {
    let folder = tempfile::tempdir().unwrap();
    start(2, &config(folder.path()), |rank| {
        rank.compute();
        let first = rank.session.checkpoint().unwrap();
        assert_eq!(first.blocks_changed, first.blocks_total);
        let second = rank.session.checkpoint().unwrap();
        assert_eq!((second.blocks_changed, second.bytes_manifest), (0, 0));
    });
}

#[test]
fn many_checkpoints_stay_in_the_same_space() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let lengths = start(3, &config, |rank| {
        let path = rank
            .session
            .directory()
            .join(backstay_store::place::STORE_FILE);
        let mut lengths = Vec::new();
        for _ in 0..200 {
            rank.compute();
            rank.session.checkpoint().unwrap();
            lengths.push(std::fs::metadata(&path).unwrap().len());
        }
        lengths
    });
    assert_eq!(lengths[0][20], lengths[0][199]);
    start(3, &config, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 200);
        rank.check();
    });
}

#[test]
fn a_job_can_go_back_to_a_checkpoint_of_its_own_start() {
    let folder = tempfile::tempdir().unwrap();
    let config = backstay::Config {
        retained: 3,
        ..config(folder.path())
    };
    start(3, &config, |rank| {
        for _ in 1..=5 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 5);
        rank.check();
        assert_eq!(rank.session.restore_from(4).unwrap().checkpoint.number, 4);
        assert_eq!(rank.step, 4);
        rank.check();
        rank.compute();
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.checkpoint, CheckpointId::new(3, 5));
        assert_eq!(rank.session.stored_shape("field", 0).unwrap(), [40_000]);
    });
    start(3, &config, |rank| {
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 5);
        assert_eq!(rank.step, 5);
        rank.check();
    });
}

#[test]
fn a_restore_settles_what_is_under_way_before_it_chooses() {
    let folder = tempfile::tempdir().unwrap();
    start(2, &config(folder.path()), |rank| {
        rank.compute();
        rank.session.checkpoint().unwrap();
        rank.compute();
        let handle = rank.session.checkpoint_start().unwrap();
        rank.compute();
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint, handle.checkpoint());
        assert_eq!(rank.step, 2);
        rank.check();
        rank.compute();
        let handle = rank.session.checkpoint_start().unwrap();
        rank.compute();
        let number = handle.checkpoint().number;
        assert_eq!(rank.session.restore_from(number).unwrap().fell_back, 0);
        assert_eq!((number, rank.step), (3, 3));
        rank.check();
    });
}

#[test]
fn a_checkpoint_that_fails_under_way_keeps_no_restore_from_an_older_one() {
    let folder = tempfile::tempdir().unwrap();
    let config = backstay::Config {
        reserve_bytes: Some(6 << 20),
        ..config(folder.path())
    };
    start(2, &config, |rank| {
        rank.compute();
        rank.session.checkpoint().unwrap();
        let mut huge = vec![1u8; 64 << 20];
        let variable = backstay::Variable::new("huge", backstay::ElementType::U8, &[64 << 20]);
        // SAFETY: `huge` outlives its protection.
        unsafe { rank.session.protect(variable, huge.as_mut_ptr()).unwrap() };
        rank.session.checkpoint_start().unwrap();
        rank.session.unprotect("huge").unwrap();
        rank.compute();
        let restored = rank.session.restore().unwrap();
        assert_eq!((restored.checkpoint.number, rank.step), (1, 1));
        rank.check();
    });
}

#[test]
fn a_reserve_below_one_checkpoint_is_refused_with_what_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let config = backstay::Config {
        reserve_bytes: Some(9_500_000),
        ..config(folder.path())
    };
    start(2, &config, |rank| {
        let mut huge = vec![1u8; 8_000_000];
        let variable = backstay::Variable::new("huge", backstay::ElementType::U8, &[8_000_000]);
        // SAFETY: `huge` outlives its protection.
        unsafe { rank.session.protect(variable, huge.as_mut_ptr()).unwrap() };
        let error = rank.session.checkpoint().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("reserve_bytes is 9500000") && text.contains("protect 16"),
            "{text}"
        );
        rank.session.unprotect("huge").unwrap();
        rank.session.checkpoint().unwrap();
    });
}

#[test]
fn what_newer_ones_took_the_place_of_was_durable() {
    let folder = tempfile::tempdir().unwrap();
    let config = backstay::Config {
        reserve_bytes: Some(6 << 20),
        ..config(folder.path())
    };
    start(2, &config, |rank| {
        let start = |rank: &mut Rank| {
            rank.compute();
            rank.session.checkpoint_start().unwrap()
        };
        let handles: Vec<_> = (0..5).map(|_| start(rank)).collect();
        for &handle in &handles {
            let report = rank.session.wait(handle, Level::Node).unwrap();
            assert_eq!(report.checkpoint, handle.checkpoint());
        }
        let mut huge = vec![1u8; 64 << 20];
        let variable = backstay::Variable::new("huge", backstay::ElementType::U8, &[64 << 20]);
        // SAFETY: `huge` outlives its protection.
        unsafe { rank.session.protect(variable, huge.as_mut_ptr()).unwrap() };
        let failed = start(rank);
        let mut number = failed.checkpoint().number;
        for _ in 0..2 {
            // Whatever comes next says so, once, and does nothing.
            let earlier = rank.session.checkpoint_start().unwrap_err();
            assert_eq!(earlier.kind(), ErrorKind::EarlierFailed, "{earlier}");
            let text = earlier.to_string();
            assert!(text.contains("short by"), "{text}");
            assert!(text.contains(&format!("checkpoint {number}")), "{text}");
            start(rank);
            let earlier = rank.session.pin(1).unwrap_err();
            assert_eq!(earlier.kind(), ErrorKind::EarlierFailed, "{earlier}");
            let own = rank.session.checkpoint().unwrap_err();
            assert_eq!(own.kind(), ErrorKind::StoreFull, "{own}");
            number = start(rank).checkpoint().number;
        }
        let earlier = rank.session.checkpoint().unwrap_err();
        assert_eq!(earlier.kind(), ErrorKind::EarlierFailed, "{earlier}");
        rank.session.unprotect("huge").unwrap();
        start(rank);
        let kind = |error: backstay::Error| error.kind();
        let outcome = rank.session.wait(failed, Level::Node).map_err(kind);
        assert_eq!(outcome.err(), Some(ErrorKind::NotRetained));
        // Nor is one that a restore abandoned.
        let last = start(rank);
        let before = last.checkpoint().number - 1;
        rank.session.wait(last, Level::Node).unwrap();
        rank.session.restore_from(before).unwrap();
        let outcome = rank.session.wait(last, Level::Node).map_err(kind);
        assert_eq!(outcome.err(), Some(ErrorKind::NotRetained));
    });
}

#[test]
fn a_damaged_store_is_not_a_first_start() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(2, &config, |rank| {
        assert!(rank.session.stored_checkpoints().unwrap().is_empty());
        for _ in 0..3 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
    });
    let store = folder.path().join("test job/node0/store.backstay");
    let mut bytes = std::fs::read(&store).unwrap();
    for at in (96 << 10..bytes.len()).step_by(61) {
        bytes[at] ^= 0x10;
    }
    std::fs::write(&store, bytes).unwrap();
    start(2, &config, |rank| {
        let listed = rank.session.stored_checkpoints().unwrap_err();
        let restored = rank.session.restore().unwrap_err();
        assert_eq!(listed.kind(), ErrorKind::Corrupt, "{listed}");
        assert_eq!(restored.kind(), listed.kind(), "{restored}");
    });
}

#[test]
fn a_store_whose_making_was_killed_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let place = folder.path().join("test job/node0");
    std::fs::create_dir_all(&place).unwrap();
    for length in [0, 70_000, 1 << 22] {
        drop(std::fs::remove_file(place.join("store.backstay")));
        std::fs::File::create(place.join("store.backstay"))
            .unwrap()
            .set_len(length)
            .unwrap();
        start(2, &config, |rank| {
            let error = rank.session.restore().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoCheckpoint, "{error}");
            rank.compute();
            rank.session.checkpoint().unwrap();
        });
        start(2, &config, |rank| {
            rank.session.restore().unwrap();
            rank.check();
        });
    }
}

#[test]
fn a_pin_holds_through_the_next_start_on_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(3, &config, |rank| {
        for _ in 1..=3 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
        rank.session.pin(2).unwrap();
    });
    start(3, &config, |rank| {
        rank.session.restore().unwrap();
        for _ in 1..=20 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
    });
    start(3, &config, |rank| {
        rank.session.restore_from(2).unwrap();
        assert_eq!(rank.step, 2);
        rank.check();
    });
}

#[test]
fn older_checkpoints_make_room_in_a_full_store() {
    let folder = tempfile::tempdir().unwrap();
    // Each checkpoint writes all of about 320 KB a rank: two of them fit beside the one being written.
    let config = backstay::Config {
        retained: 8,
        reserve_bytes: Some(6 << 20),
        segment_bytes: Some(1 << 18),
        tracking: backstay::config::Tracking::Full,
        ..config(folder.path())
    };
    let kept = start(2, &config, |rank| {
        rank.protect(backstay::config::Tracking::Full).unwrap();
        for _ in 1..=12 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
        rank.session.stored_checkpoints().unwrap().len()
    });
    assert!((2..8).contains(&kept[0]), "{kept:?}");
    start(2, &config, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 12);
        rank.check();
    });
}

#[test]
fn a_scrub_heals_damage_from_application_memory() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(2, &config, |rank| {
        rank.compute();
        rank.session.checkpoint().unwrap();
        rank.session.checkpoint().unwrap();
        let whole = rank.session.scrub().unwrap();
        assert_eq!((whole.healed, whole.beyond), (0, 0));
        assert!(whole.blocks >= 20, "{whole:?}");
        // One word of this rank, which stands once in the store: both checkpoints share its block.
        let store = rank
            .session
            .directory()
            .join(backstay_store::place::STORE_FILE);
        let word = rank.memory[30_000].to_le_bytes();
        let bytes = std::fs::read(&store).unwrap();
        let at = bytes.windows(8).position(|window| window == word).unwrap();
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&store)
            .unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[!word[0]], at as u64).unwrap();
        let scrubbed = rank.session.scrub().unwrap();
        assert_eq!((scrubbed.healed, scrubbed.beyond), (1, 0));
        assert_eq!(rank.session.scrub().unwrap().healed, 0);
        // Memory that has changed since cannot heal it; the next checkpoint replaces the block.
        std::os::unix::fs::FileExt::write_all_at(&file, &[!word[0]], at as u64).unwrap();
        rank.memory[30_001] ^= 1;
        assert_eq!(rank.session.scrub().unwrap().beyond, 1);
        rank.memory[30_001] ^= 1;
        assert_eq!(rank.session.scrub().unwrap().healed, 1);
    });
    start(2, &config, |rank| {
        rank.session.restore().unwrap();
        rank.check();
    });
}

/// Changes the minor version in a frame at `offset`, with a right checksum or without.
fn change_minor(store: &std::path::Path, offset: usize, right: bool) {
    let mut bytes = std::fs::read(store).unwrap();
    let length = u32::from_le_bytes(bytes[offset + 12..offset + 16].try_into().unwrap());
    let end = offset + usize::try_from(length).unwrap();
    bytes[offset + 11] ^= 0x10;
    if right {
        let sum = backstay::format::hash::checksum(&bytes[offset..end - 8]);
        bytes[end - 8..end].copy_from_slice(&sum.to_le_bytes());
    }
    std::fs::write(store, bytes).unwrap();
}

#[test]
fn a_later_minor_version_is_left_alone_and_a_flipped_one_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let store = folder.path().join("test job/node0/store.backstay");
    start(1, &config, |rank| {
        for _ in 0..2 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
    });
    let whole = std::fs::read(&store).unwrap();
    let roots = backstay::format::geometry::ROOT_OFFSETS.map(|at| usize::try_from(at).unwrap());
    for offset in [0, 4096, roots[0], roots[1]] {
        change_minor(&store, offset, false);
        start(1, &config, |rank| {
            rank.session.restore().unwrap();
            rank.check();
        });
        std::fs::write(&store, &whole).unwrap();
        change_minor(&store, offset, true);
        let comm = Box::new(backstay::comm::Single);
        let error = backstay::Session::open(comm, config.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        std::fs::write(&store, &whole).unwrap();
    }
}

#[test]
fn thinly_filled_segments_are_vacated_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let config = backstay::Config {
        segment_bytes: Some(1 << 18),
        ..config(folder.path())
    };
    let names: Vec<String> = (0..512).map(|index| format!("v{index:03}")).collect();
    let protect = |rank: &mut Rank, memory: &mut [Vec<u64>]| {
        for (name, words) in names.iter().zip(memory).step_by(16) {
            let variable = backstay::Variable::new(name, backstay::ElementType::U64, &[2048]);
            // SAFETY: the memory outlives the session's use of it.
            unsafe {
                rank.session
                    .protect(variable, words.as_mut_ptr().cast())
                    .unwrap();
            };
        }
    };
    start(1, &config, |rank| {
        let mut memory: Vec<Vec<u64>> = (0..512).map(|index| vec![index; 2048]).collect();
        for (name, words) in names.iter().zip(&mut memory) {
            let variable = backstay::Variable::new(name, backstay::ElementType::U64, &[2048]);
            // SAFETY: as above.
            unsafe {
                rank.session
                    .protect(variable, words.as_mut_ptr().cast())
                    .unwrap();
            };
        }
        rank.session.checkpoint().unwrap();
        // Every 16th block stays: one in each of 32 segments, which two would hold.
        for name in names
            .iter()
            .enumerate()
            .filter(|(index, _)| index % 16 != 0)
        {
            rank.session.unprotect(name.1).unwrap();
        }
        rank.session.checkpoint().unwrap();
        let moved: Vec<u64> = (0..20)
            .map(|_| rank.session.checkpoint().unwrap().blocks_changed)
            .collect();
        assert!(moved[0] > 0, "nothing was vacated: {moved:?}");
        assert_eq!(moved[19], 0, "it does not come to an end: {moved:?}");
    });
    start(1, &config, |rank| {
        let mut memory = vec![vec![u64::MAX; 2048]; 512];
        protect(rank, &mut memory);
        rank.session.restore().unwrap();
        for (index, words) in (0..).zip(&memory).step_by(16) {
            assert!(words.iter().all(|&word| word == index), "variable {index}");
        }
    });
}

/// A job on one node has no need of an agent process, which is told all the same that the job is over.
#[test]
fn the_agent_process_of_a_job_on_one_node_ends_with_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let options = ProcessOptions {
        directory: folder.path().join("test job/node0"),
        linger: Duration::from_secs(3600),
        over: None,
    };
    std::fs::create_dir_all(&options.directory).unwrap();
    let stop = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        let agent = scope.spawn(|| run(&options, &stop));
        while !options.directory.join("agent.socket").exists() && !agent.is_finished() {
            std::thread::yield_now();
        }
        run_ranks(ThreadComm::new(2), |comm| {
            let rank = Rank::open(comm, config(folder.path())).unwrap();
            rank.session.close().unwrap();
        });
        // One that was not told is now.
        let limit = Instant::now() + Duration::from_secs(20);
        while !agent.is_finished() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Release);
        agent.join().unwrap()
    });
    assert_eq!(ended.unwrap(), Ended::JobOver);
}

/// A store of it may be away, with a checkpoint that the others never had.
#[test]
fn a_start_that_made_stores_and_no_checkpoint_counts() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let behind_the_roots = |attempt: &fault::Attempt<'_>| {
        let writes = attempt.access == fault::Access::Write;
        (writes && attempt.offset >= 1 << 16).then_some(fault::Fault::Fails(5))
    };
    let failing = fault::watch(folder.path(), behind_the_roots);
    start(2, &config, |rank| {
        rank.compute();
        let error = rank.session.checkpoint().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreIo, "{error}");
    });
    drop(failing);
    start(2, &config, |rank| {
        rank.compute();
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.checkpoint.incarnation, 2);
    });
}

/// A store of it may be away, with a checkpoint that the others never had, and its name is not given again.
#[test]
fn a_start_that_restores_nothing_counts_in_every_store_before_its_first_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(2, &config, |rank| {
        rank.compute();
        rank.session.checkpoint().unwrap();
    });
    let behind_the_roots = |attempt: &fault::Attempt<'_>| {
        let writes = attempt.access == fault::Access::Write;
        (writes && attempt.offset >= 1 << 16).then_some(fault::Fault::Fails(5))
    };
    let failing = fault::watch(folder.path(), behind_the_roots);
    start(2, &config, |rank| {
        rank.compute();
        let error = rank.session.checkpoint().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreIo, "{error}");
    });
    drop(failing);
    start(2, &config, |rank| {
        let earlier = rank.session.earlier_checkpoints();
        assert_eq!(earlier, [CheckpointId::new(1, 1)], "it gave nothing up");
        rank.compute();
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.checkpoint, CheckpointId::new(3, 2));
    });
}
