// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ways of finding changed blocks: each gives back what was checkpointed, and writes what it should.

use crate::job::{Rank, config, life};
use backstay::config::Tracking;
use backstay::{ElementType, Level, Variable};

fn steps(tracking: Tracking) {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    life(2, &config, |rank| {
        rank.protect(tracking).unwrap();
        for _ in 1..=8 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
    });
    life(2, &config, |rank| {
        rank.protect(tracking).unwrap();
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 8);
        rank.check();
        for _ in 1..=3 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
    });
    life(2, &config, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 11);
        rank.check();
    });
}

#[test]
fn full_tracking_restores() {
    steps(Tracking::Full);
}

#[test]
fn page_tracking_restores_or_falls_back_to_hash() {
    steps(Tracking::Pages);
}

/// Memory of its own mapping, so that pages can be watched.
fn large(rank: &mut Rank, tracking: Tracking) -> Vec<u64> {
    let words = vec![1u64; 1 << 20];
    protect_large(rank, &words, tracking);
    words
}

fn protect_large(rank: &mut Rank, words: &[u64], tracking: Tracking) {
    let length = u64::try_from(words.len()).unwrap();
    let variable = Variable::new("large", ElementType::U64, &[length]).tracking(tracking);
    // SAFETY: the vector outlives the session's use of it in each of these tests.
    unsafe {
        rank.session
            .protect(variable, words.as_ptr().cast_mut().cast())
            .unwrap();
    };
}

#[test]
fn marked_blocks_are_written_and_unmarked_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    life(1, &config(folder.path()), |rank| {
        let mut words = large(rank, Tracking::Marked);
        rank.session.checkpoint().unwrap();
        words[5000] = 7;
        words[100_000] = 8;
        rank.session.mark_dirty("large", 40_000..40_008).unwrap();
        rank.session.mark_dirty("large", 800_000..800_008).unwrap();
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.blocks_changed, 2, "{report:?}");
        assert!(rank.session.mark_dirty("large", 0..(1 << 23) + 1).is_err());
    });
}

#[test]
fn a_broken_contract_is_found_and_ends_in_hashing() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    life(1, &config, |rank| {
        let mut words = large(rank, Tracking::Marked);
        rank.session.checkpoint().unwrap();
        // Every block is written, none is marked: the check of one in 1024 finds it.
        let mut found = false;
        for round in 0..1100 {
            words.iter_mut().step_by(2048).for_each(|word| *word += 1);
            let report = rank.session.checkpoint().unwrap();
            if report.blocks_changed >= 512 {
                found = round > 0;
                break;
            }
        }
        assert!(found, "the broken contract was not found");
    });
}

#[test]
fn pages_are_a_filter_where_the_kernel_has_them() {
    if let Err(why) = backstay::track::pages::PageTracker::available() {
        eprintln!("not here: {why}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    life(1, &config(folder.path()), |rank| {
        let mut words = large(rank, Tracking::Pages);
        for round in 0..6u64 {
            words[usize::try_from(round).unwrap() * 3000] = round;
            words[900_000] = round;
            rank.session.checkpoint().unwrap();
            let report = rank.session.checkpoint().unwrap();
            assert_eq!(report.blocks_changed, 0);
        }
        words[12_345] = 99;
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.blocks_changed, 1, "{report:?}");
    });
}

#[test]
fn variables_grow_shrink_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let sizes = [10usize, 5000, 200_000, 65_536, 2048, 1, 131_072, 0, 70_000];
    let value = |round: usize, index: usize| (round as u64) << 32 | index as u64;
    life(2, &config, |rank| {
        for (round, &size) in sizes.iter().enumerate() {
            let words: Vec<u64> = (0..size).map(|index| value(round, index)).collect();
            protect_large(rank, &words, Tracking::Hash);
            if round % 2 == 1 {
                rank.session.unprotect("field").unwrap();
            } else {
                rank.protect(Tracking::Hash).unwrap();
            }
            rank.compute();
            rank.session.checkpoint().unwrap();
            rank.session.checkpoint().unwrap();
        }
    });
    life(2, &config, |rank| {
        assert_eq!(rank.session.stored_shape("large", 1).unwrap(), [70_000]);
        let words = vec![0u64; 70_000];
        protect_large(rank, &words, Tracking::Hash);
        rank.session.restore().unwrap();
        let wanted: Vec<u64> = (0..70_000).map(|index| value(8, index)).collect();
        assert_eq!(words, wanted);
        rank.check();
    });
}

#[test]
fn a_checkpoint_can_be_committed_in_the_background() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    life(3, &config, |rank| {
        for number in 1..=20 {
            rank.compute();
            let handle = rank.session.checkpoint_start().unwrap();
            assert_eq!(handle.checkpoint().number, number);
            if number % 3 == 0 {
                let report = rank.session.wait(handle, Level::Node).unwrap();
                assert_eq!(report.checkpoint.number, number);
                assert!(rank.session.test(&handle, Level::Node).unwrap());
            }
        }
        let handle = rank.session.checkpoint_start().unwrap();
        rank.compute(); // The program goes on: this state is not in the checkpoint.
        rank.session.wait(handle, Level::Node).unwrap();
    });
    life(3, &config, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 20);
        rank.check();
    });
}
