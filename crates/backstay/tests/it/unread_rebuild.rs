// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lost store is made again while a piece of some other node cannot be had: no checkpoint is left out for that,
//! unless somebody named the one to go on from.

use crate::job::{Rank, config};
use backstay::config::Redundancy;
use backstay::{Communicator, Config, ErrorKind, Level};
use backstay_net::Endpoint;
use backstay_store::place::STORE_BEING_MADE;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::{Action, Fault, SimNetwork};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Of the restarts in which something cannot be read.
const SHORT_MS: u64 = 400;

/// One start of three ranks, one a node, under XOR.
fn start<T: Send>(
    folder: &Path,
    network: &SimNetwork,
    change: impl Fn(&mut Config) + Sync,
    body: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    run_ranks(ThreadComm::new(3), |comm| {
        let name = format!("n{}", comm.rank());
        let mut config = Config {
            node: Some(name.clone()),
            store_path: Some(folder.join(&name)),
            listen_address: Some("127.0.0.1:0".to_owned()),
            redundancy: Redundancy::Xor,
            retained: 4,
            ..config(folder)
        };
        change(&mut config);
        let endpoint: Arc<dyn Endpoint> = network.endpoint(&name);
        let mut rank = Rank::open_on(comm, config, Some(endpoint)).expect("opening");
        rank.settle().expect("protecting");
        body(&mut rank)
    })
}

fn short(config: &mut Config) {
    config.timeout_ms = SHORT_MS;
}

fn stored(rank: &Rank) -> Vec<u64> {
    let stored = rank.session.stored_checkpoints().unwrap();
    stored.iter().map(|id| id.number).collect()
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

/// A pull of the node that makes its store again: from whom, of what, where.
type Pulled = (String, [u8; 16], u64);

fn pulled(attempt: &backstay_testkit::network::Attempt) -> Option<Pulled> {
    let Action::Read { exposure, span } = &attempt.action else {
        return None;
    };
    let is_wanted = attempt.from == "n0" && attempt.to != "n0";
    is_wanted.then(|| (attempt.to.clone(), exposure.0, span.offset))
}

/// Has `piece` not be had. While it is asked for no store stands at `path`: none that is not whole is ever found.
fn cut(network: &SimNetwork, piece: &Pulled, fault: Fault, path: PathBuf) {
    let piece = piece.clone();
    network.set_hook(move |attempt| {
        let hit = pulled(attempt).as_ref() == Some(&piece);
        (hit && !path.exists()).then_some(fault)
    });
}

fn store(folder: &Path) -> PathBuf {
    folder.join("n0/test job/n0/store.backstay")
}

/// Checkpoints 1 to 4, all protected, and then the first node is lost.
fn protected(first: &Path) {
    start(
        first,
        &SimNetwork::new(1),
        |_| {},
        |rank| {
            for _ in 0..4 {
                rank.compute();
                let handle = rank.session.checkpoint_start().unwrap();
                rank.session.wait(handle, Level::Protected).unwrap();
            }
        },
    );
    std::fs::remove_dir_all(first.join("n0")).unwrap();
}

/// Whoever names the newest has it, or is refused, and gives up what else cannot be had.
fn is_had_by_name(place: &Path, network: &SimNetwork) -> bool {
    let named = |config: &mut Config| {
        short(config);
        config.restore_checkpoint = Some(4);
    };
    let outcomes = start(place, network, named, |rank| {
        let restored = rank.session.restore();
        restored.map(|restored| restored.checkpoint.number).ok()
    });
    outcomes[0] == Some(4)
}

#[test]
fn no_checkpoint_is_left_out_of_a_store_because_a_piece_could_not_be_had() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    std::fs::create_dir(&first).unwrap();
    protected(&first);
    let again = |name: &str| {
        let again = folder.path().join(name);
        copy(&first, &again);
        again
    };
    let restored = |rank: &mut Rank| {
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 4);
        rank.check();
        stored(rank)
    };
    // Which pieces it takes, and what there is when all can be had.
    let pieces: Arc<Mutex<BTreeSet<Pulled>>> = Arc::default();
    let network = SimNetwork::new(2);
    let seen = Arc::clone(&pieces);
    network.set_hook(move |attempt| {
        seen.lock().unwrap().extend(pulled(attempt));
        None
    });
    let whole = start(&again("whole"), &network, |_| {}, restored);
    assert_eq!(whole[0].last(), Some(&4));
    assert!(whole[0].len() > 1, "{whole:?}");
    let (mut refused, mut given_up) = (0, 0);
    let pieces = std::mem::take(&mut *pieces.lock().unwrap());
    let faults = [Fault::Unreachable, Fault::Corrupt];
    for ((number, piece), fault) in (0..).zip(&pieces).zip(faults.into_iter().cycle()) {
        let of = format!("{piece:?}, {number} of {}, {fault:?}", pieces.len());
        let place = again(&number.to_string());
        let network = SimNetwork::new(3);
        cut(&network, piece, fault, store(&place));
        let outcomes = start(&place, &network, short, |rank| {
            let Err(error) = rank.session.restore() else {
                return true;
            };
            assert_eq!(error.kind(), ErrorKind::Unreadable, "{of}: {error}");
            assert!(error.to_string().contains("restore_checkpoint"), "{error}");
            false
        });
        assert_eq!(outcomes, [outcomes[0]; 3], "{of}");
        refused += u64::from(!outcomes[0]);
        assert_eq!(store(&place).exists(), outcomes[0], "{of}");
        assert!(
            !store(&place).with_file_name(STORE_BEING_MADE).exists(),
            "{of}"
        );
        // Which can be had again.
        let later = start(&place, &SimNetwork::new(4), |_| {}, restored);
        assert_eq!(later, whole, "{of}");
        if outcomes[0] {
            continue;
        }
        let place = again(&format!("{number} named"));
        let network = SimNetwork::new(5);
        cut(&network, piece, fault, store(&place));
        given_up += u64::from(is_had_by_name(&place, &network));
    }
    assert!(refused > given_up && given_up > 0, "{refused}, {given_up}");
}
