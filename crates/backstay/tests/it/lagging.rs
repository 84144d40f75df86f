// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rounds of protection that lag behind the checkpoints: what of those between is encoded, and what it is said of them.

use crate::job::{Rank, WORDS};
use crate::rounds::{NODES, request, start};
use backstay::{Config, ErrorKind};
use backstay_format::agent::Request;
use backstay_format::width::to_u64;
use backstay_inspect::{Safety, Stores};
use backstay_testkit::network::{Fault, SimNetwork};
use backstay_testkit::oracle::Oracle;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// All words change in each checkpoint.
fn all_change(rank: &mut Rank) {
    rank.oracle = Oracle::new(rank.session.rank(), 0, WORDS * 8);
}

fn retains(config: &mut Config) {
    config.retained = 4;
}

/// Protects the first checkpoint and the fifth, and none between. Checkpoint `pinned` is pinned. The bytes that the last
/// round had encoded by others than its leader: three of four members, or one of two.
fn lag(folder: &Path, network: &SimNetwork, change: fn(&mut Config), pinned: Option<u64>) -> u64 {
    let encoded = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&encoded);
    network.set_hook(move |attempt| match request(&attempt.action)? {
        Request::Collect { want, .. } if (2..=4).contains(&want.number) => Some(Fault::Unreachable),
        Request::Encode { stripes, .. } => {
            let pieces = stripes.iter().flat_map(|stripe| &stripe.pieces);
            let bytes = pieces.map(|piece| u64::from(piece.extent.length_bytes));
            counted.fetch_add(bytes.sum(), Ordering::SeqCst);
            None
        }
        _ => None,
    });
    start(folder, network, change, |rank| {
        all_change(rank);
        rank.take_protected();
        let first = encoded.load(Ordering::SeqCst);
        for number in 2..=4 {
            rank.take();
            if pinned == Some(number) {
                rank.session.pin(number).unwrap();
            }
        }
        rank.take_protected();
        if rank.session.rank() == 0 {
            encoded.fetch_sub(first, Ordering::SeqCst);
        }
    });
    encoded.load(Ordering::SeqCst)
}

/// Bytes of the variables of one checkpoint.
fn state_bytes() -> u64 {
    to_u64(NODES * WORDS * 8)
}

fn safety(folder: &Path, number: u64) -> Safety {
    let stores = Stores::open(&[folder.to_owned()]);
    let checkpoints = stores.checkpoints();
    let found = checkpoints.iter().find(|one| one.id.number == number);
    stores.protection(found.unwrap()).safety
}

#[test]
fn a_round_encodes_what_its_checkpoint_uses_and_says_nothing_else_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let encoded = lag(folder, &network, retains, None);
    let state = state_bytes();
    assert!(
        (state * 3 / 4..state * 3 / 2).contains(&encoded),
        "{encoded} of {state}"
    );
    assert_eq!(safety(folder, 5), Safety::Protected);
    assert_eq!(safety(folder, 4), Safety::NodeOnly);
    std::fs::remove_dir_all(folder.join("n2")).unwrap();
    start(folder, &network, retains, |rank| {
        all_change(rank);
        let error = rank.session.restore_from(4).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotRetained, "{error}");
        assert_eq!(rank.session.restore_from(5).unwrap().checkpoint.number, 5);
        rank.check();
        rank.take_protected();
    });
    // All is as ever: what stands in the stores since before is protected, too.
    std::fs::remove_dir_all(folder.join("n1")).unwrap();
    start(folder, &network, retains, |rank| {
        all_change(rank);
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 6);
        rank.check();
    });
}

#[test]
fn a_pinned_checkpoint_is_encoded_by_a_round_for_a_later_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let encoded = lag(folder, &network, retains, Some(3));
    let state = state_bytes();
    assert!(
        (state * 3 / 2..state * 11 / 4).contains(&encoded),
        "{encoded} of {state}"
    );
    assert_eq!(safety(folder, 3), Safety::Protected);
    std::fs::remove_dir_all(folder.join("n0")).unwrap();
    start(folder, &network, retains, |rank| {
        all_change(rank);
        assert_eq!(rank.session.restore_from(3).unwrap().checkpoint.number, 3);
        rank.check();
    });
}

/// The job has what all groups have, which is what the slowest of them encoded: others must have it, too.
#[test]
fn where_there_are_several_groups_a_round_encodes_all_that_is_retained() {
    let folder = tempfile::tempdir().unwrap();
    let change = |config: &mut Config| {
        retains(config);
        config.group_size = 2;
    };
    let encoded = lag(folder.path(), &SimNetwork::new(1), change, None);
    // Four checkpoints.
    assert!(encoded >= state_bytes() * 2, "{encoded}");
}
