// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pins: as many as a root has room for beside all that it must name, and one that is refused is not kept.

use crate::job::{config, start};
use backstay::ErrorKind;
use backstay::format::CheckpointId;
use backstay_format::limits::REVISIONS_MAX;
use backstay_store::commit::Policy;
use std::collections::BTreeSet;

fn id(number: u64) -> CheckpointId {
    CheckpointId::new(1, number)
}

/// A program that pins each checkpoint, and does not look whether it could.
#[test]
fn pins_that_are_refused_leave_a_store_that_opens_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let most = Policy::pins_max(2);
    start(1, &config, |rank| {
        for number in 1..=70_u64 {
            rank.compute();
            rank.session.checkpoint().unwrap();
            let left = rank.session.pins_left();
            let pinned = rank.session.pin(number);
            if usize::try_from(number).unwrap() <= most {
                pinned.unwrap();
                assert_eq!(rank.session.pins_left(), left - 1);
            } else {
                assert_eq!(left, 0);
                let error = pinned.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
                assert!(error.to_string().contains("unpin"), "{error}");
            }
        }
        // To pin again what is pinned takes no room.
        rank.session.pin(1).unwrap();
    });
    start(1, &config, |rank| {
        let stored = rank.session.stored_checkpoints().unwrap();
        assert_eq!(stored.len(), most + 2, "{stored:?}");
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 70);
        rank.check();
        assert_eq!(rank.session.pins_left(), 0);
        rank.session.unpin(1).unwrap();
        assert_eq!(rank.session.pins_left(), 1);
        rank.session.pin(70).unwrap();
    });
    // A start that retains more finds all pins, and retains what there is room for.
    let more = backstay::config::Config {
        retained: 32,
        ..config
    };
    start(1, &more, |rank| {
        rank.session.restore().unwrap();
        for _ in 0..40 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
        rank.check();
    });
    start(1, &more, |rank| {
        let stored = rank.session.stored_checkpoints().unwrap();
        assert!(stored.len() <= REVISIONS_MAX, "{stored:?}");
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 110);
        rank.check();
    });
}

/// With all pins, and protection and draining behind at different checkpoints, a root has room.
#[test]
fn no_policy_keeps_more_than_a_root_has_room_for() {
    for retained in 1..=32 {
        for lag in 0..6_u64 {
            let pins = u64::try_from(Policy::pins_max(retained)).unwrap();
            let complete: BTreeSet<CheckpointId> = (1..=200).map(id).collect();
            let policy = Policy {
                retained,
                pinned: (1..=pins).map(id).collect(),
                protected: Some(id(100)),
                in_groups: [1, 3, 4].map(|times| id(100 + times * lag)).into(),
                archiving: Some(id(100 + 2 * lag)),
                complete,
            };
            for newest in [None, Some(id(201))] {
                let kept = policy.keeps(newest);
                assert!(kept.len() <= REVISIONS_MAX, "{retained}: {}", kept.len());
                let mut wanted: BTreeSet<CheckpointId> = (1..=pins).map(id).collect();
                wanted.extend([0, 1, 2, 3, 4].map(|times| id(100 + times * lag)));
                wanted.extend(newest);
                let others = retained - usize::from(newest.is_some());
                wanted.extend((1..=200).rev().take(others).map(id));
                assert_eq!(kept, wanted);
            }
            // Pins of a start that retained fewer: those stay, and the newest.
            let crowded = Policy {
                pinned: (1..=58).map(id).collect(),
                ..policy
            };
            let kept = crowded.keeps(Some(id(201)));
            assert!(kept.len() <= REVISIONS_MAX, "{retained}: {}", kept.len());
            assert!(crowded.pinned.is_subset(&kept) && kept.contains(&id(201)));
        }
    }
}
