// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What could not be read is not lost: peers that refuse, stall or garble, in the restart of ranks whose
//! parts are on other nodes.

use crate::job::{Rank, config};
use backstay::{Communicator, Config, Error, ErrorKind, Level};
use backstay_base::io::ReadAt;
use backstay_net::{Endpoint, Exposed, ExposureId, RemoteDevice};
use backstay_testkit::SimDevice;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::device::EIO;
use backstay_testkit::network::{Action, Fault, SimNetwork};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Of the restarts in which something is wrong.
const SHORT_MS: u64 = 400;

fn node(folder: &Path, place: usize) -> Config {
    Config {
        node: Some(format!("n{place}")),
        store_path: Some(folder.join(format!("n{place}"))),
        listen_address: Some("127.0.0.1:0".to_owned()),
        ..config(folder)
    }
}

/// One start of two ranks on the nodes at `places`, which reach each other by `network`.
fn start_on<T: Send>(
    network: &SimNetwork,
    folder: &Path,
    places: [usize; 2],
    change: impl Fn(&mut Config) + Sync,
    body: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    run_ranks(ThreadComm::new(2), |comm| {
        let place = places[usize::try_from(comm.rank()).unwrap()];
        let mut config = node(folder, place);
        change(&mut config);
        let endpoint: Arc<dyn Endpoint> = network.endpoint(&format!("n{place}"));
        let mut rank = Rank::open_on(comm, config, Some(endpoint)).expect("opening");
        rank.settle().expect("protecting");
        body(&mut rank)
    })
}

fn checkpoints(rank: &mut Rank, count: u64) {
    for _ in 0..count {
        rank.compute();
        rank.session.checkpoint().unwrap();
    }
}

fn stored(rank: &Rank) -> Vec<u64> {
    let stored = rank.session.stored_checkpoints().unwrap();
    stored.iter().map(|id| id.number).collect()
}

/// Three checkpoints on nodes 0 and 1; each later start has its ranks on the other node.
fn three_checkpoints(folder: &Path) {
    let network = SimNetwork::new(1);
    start_on(
        &network,
        folder,
        [0, 1],
        |_| {},
        |rank| checkpoints(rank, 3),
    );
}

fn short(config: &mut Config) {
    config.timeout_ms = SHORT_MS;
}

#[test]
fn pulls_that_fail_give_nothing_up_and_the_next_start_has_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    three_checkpoints(folder);
    for (seed, fault) in (0..).zip(Fault::ALL) {
        let network = SimNetwork::new(seed);
        network.set_hook(move |attempt| {
            let is_pull = matches!(attempt.action, Action::Read { .. });
            (is_pull && attempt.from == "n1").then_some(fault)
        });
        start_on(&network, folder, [1, 0], short, |rank| {
            assert_eq!(stored(rank), [2, 3], "{fault:?}");
            let error = rank.session.restore().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unreadable, "{fault:?}: {error}");
            let text = error.to_string();
            assert!(
                text.contains("restore_checkpoint") && text.contains("[2]"),
                "{text}"
            );
            assert_eq!(stored(rank), [2, 3], "{fault:?}");
        });
    }
    let network = SimNetwork::new(9);
    start_on(
        &network,
        folder,
        [1, 0],
        |_| {},
        |rank| {
            assert_eq!(rank.session.restore().unwrap().checkpoint.number, 3);
            rank.check();
            checkpoints(rank, 1);
        },
    );
}

#[test]
fn pulls_that_fail_for_a_while_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    three_checkpoints(folder);
    let network = SimNetwork::new(2);
    let failed = AtomicU64::new(0);
    network.set_hook(move |attempt| {
        let is_pull = matches!(attempt.action, Action::Read { .. });
        let which = usize::try_from(attempt.number % 5).unwrap();
        (is_pull && failed.fetch_add(1, Ordering::Relaxed) % 4 != 3).then(|| Fault::ALL[which])
    });
    start_on(
        &network,
        folder,
        [1, 0],
        |_| {},
        |rank| {
            let restored = rank.session.restore().unwrap();
            assert_eq!((restored.checkpoint.number, restored.fell_back), (3, 0));
            rank.check();
        },
    );
}

#[test]
fn nodes_that_cannot_be_reached_have_what_is_newer_than_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let archived = |config: &mut Config| {
        config.archive = Some(folder.join("pfs"));
        config.archive_every = Some(100);
        config.archive_reserve_bytes = Some(8 << 20);
    };
    let network = SimNetwork::new(1);
    start_on(&network, folder, [0, 1], archived, |rank| {
        rank.compute();
        let first = rank.session.checkpoint_start().unwrap();
        rank.session.wait(first, Level::Archive).unwrap();
        checkpoints(rank, 3);
    });
    let network = SimNetwork::new(2);
    network.set_hook(|attempt| {
        let between = attempt.from != attempt.to;
        between.then_some(Fault::Unreachable)
    });
    let cut = |config: &mut Config| {
        archived(config);
        short(config);
    };
    start_on(&network, folder, [1, 0], cut, |rank| {
        let error = rank.session.restore().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreadable, "{error}");
        let text = error.to_string();
        assert!(text.contains("cannot be reached"), "{text}");
        assert!(text.contains("checkpoint 4"), "{text}");
        // What each has is known by the communicator; it is the nodes that could not be read.
        assert_eq!(stored(rank), [1, 3, 4]);
    });
    let network = SimNetwork::new(3);
    start_on(&network, folder, [1, 0], archived, |rank| {
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 4);
        rank.check();
    });
}

#[test]
fn what_a_peer_did_not_give_keeps_its_kind() {
    let network = SimNetwork::new(3);
    let (one, other) = (network.endpoint("a"), network.endpoint("b"));
    let id = ExposureId([1; 16]);
    let device = SimDevice::from_bytes(vec![7; 1000]);
    other.expose(id, Exposed::Device(Arc::new(device.clone())));
    let remote = RemoteDevice::new(one, other.peer(), id, 1000, Duration::from_millis(30));
    let read = |remote: &RemoteDevice| {
        let read = remote.read_at(&mut [0; 10], 5);
        read.map_err(|error| Error::io("reading", error).kind())
    };
    let handle = network.clone();
    let set = move |fault: Option<Fault>| handle.set_hook(move |_| fault);
    set(Some(Fault::Unreachable));
    assert_eq!(read(&remote), Err(ErrorKind::PeerUnreachable));
    set(Some(Fault::Lost));
    assert_eq!(read(&remote), Err(ErrorKind::Timeout));
    set(Some(Fault::Corrupt));
    assert_eq!(read(&remote), Err(ErrorKind::PeerUnreachable), "on the way");
    set(None);
    device.make_unreadable(0..1000, EIO);
    assert_eq!(read(&remote), Err(ErrorKind::StoreIo));
    device.make_readable();
    other.withdraw(id);
    assert_eq!(read(&remote), Err(ErrorKind::PeerUnreachable));
    other.expose(id, Exposed::Device(Arc::new(device)));
    assert_eq!(read(&remote), Ok(()));
}
