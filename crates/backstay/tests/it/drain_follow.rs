// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who drains for whom: servers that hang, and starts of a job that are over.

use crate::job::{Rank, config};
use backstay::format::agent::Seat;
use backstay::format::drain::{DrainAnswer, DrainJob, DrainProgress, DrainRequest};
use backstay::format::{CheckpointId, StoreId};
use backstay::{Config, ErrorKind, Level, Result};
use backstay_archive::drain::{DrainPoint, ServerPlace, shared_secret};
use backstay_archive::{
    ArchiveDevice, ArchiveStore, Identity, ReadOptions, WriteOptions, fence, job_folder, store_file,
};
use backstay_base::io::fault;
use backstay_inspect::Stores;
use backstay_net::{Endpoint, Peer, SecretSource, TcpEndpoint, TcpOptions};
use backstay_testkit::SimNetwork;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::{Action, Fault};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);

fn archive_config(folder: &Path, timeout_ms: u64) -> Config {
    Config {
        listen_address: Some("127.0.0.1:0".to_owned()),
        archive: Some(folder.join("pfs")),
        archive_retained: 3,
        archive_reserve_bytes: Some(8 << 20),
        timeout_ms,
        ..config(folder)
    }
}

/// A staging server that takes every drain, says that it is at work, and does what `steps` counts.
fn server(folder: &Path, steps: Arc<AtomicU64>) -> (Arc<TcpEndpoint>, ServerPlace) {
    let folder = job_folder(&folder.join("pfs"), "test job");
    let secret = shared_secret(&folder).unwrap();
    let place = folder.clone();
    let mut options = TcpOptions::new("server", "test job", secret);
    options.listen = "127.0.0.1:0".parse().ok();
    options.secret_source = Some(SecretSource::new(move || shared_secret(&folder)));
    let endpoint = Arc::new(TcpEndpoint::open(options).unwrap());
    let drains = Mutex::new(CheckpointId::default());
    let handle = move |request: &[u8], _: Duration| -> Result<Vec<u8>> {
        let answer = match DrainRequest::decode(request).unwrap() {
            DrainRequest::Begin(job) => {
                *drains.lock().unwrap() = job.checkpoint;
                DrainAnswer::Done
            }
            DrainRequest::Progress => DrainAnswer::Progress(DrainProgress {
                state: 1,
                checkpoint: *drains.lock().unwrap(),
                steps: steps.load(Ordering::Relaxed),
                ..DrainProgress::default()
            }),
            _ => DrainAnswer::Done,
        };
        Ok(answer.encode().unwrap())
    };
    endpoint.serve(Arc::new(handle));
    let place = ServerPlace::take(&place, "server", &endpoint.address()).unwrap();
    (endpoint, place)
}

#[test]
fn a_server_that_says_at_work_and_does_nothing_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("pfs")).unwrap();
    let (endpoint, _place) = server(folder, Arc::default());
    run_ranks(ThreadComm::new(1), |comm| {
        let mut rank = Rank::open(comm, archive_config(folder, 1500)).expect("opening");
        rank.settle().expect("protecting");
        rank.compute();
        let handle = rank.session.checkpoint_start().unwrap();
        // The server is given up after one wait, and the node drains in its place.
        let waited = (0..20).any(|_| rank.session.wait(handle, Level::Archive).is_ok());
        assert!(waited, "it is never in the archive");
    });
    endpoint.shut_down();
}

#[test]
fn a_server_that_goes_on_is_not_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("pfs")).unwrap();
    let steps: Arc<AtomicU64> = Arc::default();
    let (endpoint, _place) = server(folder, Arc::clone(&steps));
    // Ends with the test, however that ends.
    let (over, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while ended.recv_timeout(Duration::from_millis(50)) == Err(RecvTimeoutError::Timeout) {
                steps.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _over = over;
        run_ranks(ThreadComm::new(1), |comm| {
            let mut rank = Rank::open(comm, archive_config(folder, 600)).expect("opening");
            rank.settle().expect("protecting");
            rank.compute();
            let handle = rank.session.checkpoint_start().unwrap();
            for _ in 0..4 {
                let error = rank.session.wait(handle, Level::Archive).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            }
            // Nobody else drained meanwhile.
            assert_eq!(rank.session.archived_checkpoint(), None);
        });
    });
    endpoint.shut_down();
}

fn begin(folder: &Path, node: &str, incarnation: u64, number: u64) -> Vec<u8> {
    let seat = Seat {
        store: StoreId::default(),
        node: "node".to_owned(),
        domain: String::new(),
        address: node.to_owned(),
    };
    DrainRequest::Begin(DrainJob {
        folder: folder.to_str().unwrap().to_owned(),
        settings: Config::default().drain_settings().to_json(),
        job: "job".to_owned(),
        run: 7,
        aggregator: 0,
        aggregators: 1,
        incarnation,
        catalog: 1,
        checkpoint: CheckpointId::new(incarnation, number),
        retain: Vec::new(),
        sources: vec![seat],
        file: String::new(),
    })
    .encode()
    .unwrap()
}

fn progress(point: &DrainPoint) -> DrainProgress {
    let answer = point.handle(&DrainRequest::Progress.encode().unwrap(), WITHIN);
    match DrainAnswer::decode(&answer.unwrap()).unwrap() {
        DrainAnswer::Progress(progress) => progress,
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_two_starts_that_share_a_server_the_later_one_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let node = network.endpoint("node").address();
    let begin = |incarnation, number| begin(folder, &node, incarnation, number);
    let point = DrainPoint::new(network.endpoint("server"), "server");
    let (asked, held) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(true)),
    );
    let (seen, hold) = (Arc::clone(&asked), Arc::clone(&held));
    // The node answers nothing before it is let go.
    network.set_hook(move |_| {
        seen.store(true, Ordering::SeqCst);
        while hold.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(Fault::Unreachable)
    });
    point.handle(&begin(3, 5), WITHIN).unwrap();
    while !asked.load(Ordering::SeqCst) {
        assert_eq!(progress(&point).state, 1, "{:?}", progress(&point));
        std::thread::sleep(Duration::from_millis(1));
    }
    for number in [5, 6, 900] {
        let refused = point.handle(&begin(2, number), WITHIN).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::StoreBusy);
        let text = refused.to_string();
        assert!(
            text.contains("start 3 of job job") && text.contains("this is start 2"),
            "{text}"
        );
        let now = progress(&point);
        assert_eq!((now.state, now.checkpoint), (1, CheckpointId::new(3, 5)));
    }
    held.store(false, Ordering::SeqCst);
    point.handle(&begin(4, 2), WITHIN).unwrap();
    assert_eq!(progress(&point).checkpoint, CheckpointId::new(4, 2));
    assert!(point.handle(&begin(3, 7), WITHIN).is_err());
    assert_eq!(progress(&point).checkpoint, CheckpointId::new(4, 2));
}

#[test]
fn what_a_restore_went_back_behind_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("pfs")).unwrap();
    let network = SimNetwork::new(1);
    let (node, asker) = (network.endpoint("node0"), network.endpoint("asker"));
    run_ranks(ThreadComm::new(1), |comm| {
        let node: Arc<dyn Endpoint> = node.clone();
        let config = archive_config(folder, 20_000);
        let mut rank = Rank::open_on(comm, config, Some(Arc::clone(&node))).expect("opening");
        rank.settle().expect("protecting");
        rank.compute();
        let first = rank.session.checkpoint().unwrap().checkpoint;
        rank.session.restore_from(first.number).unwrap();
        // The next one of the start that is over: it never comes.
        let checkpoint = CheckpointId::new(first.incarnation, first.number + 1);
        let request = DrainRequest::Offer { checkpoint }.encode().unwrap();
        let peer = Peer::new("node0".to_owned(), node.address());
        let refused = asker.call(&peer, &request, WITHIN).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotRetained, "{refused}");
    });
}

/// A staging server of the network that drains.
fn drains(network: &SimNetwork, folder: &Path) -> (Arc<DrainPoint>, ServerPlace) {
    let endpoint = network.endpoint("server");
    let point = Arc::new(DrainPoint::new(endpoint.clone(), "server"));
    let answers = Arc::clone(&point);
    let handle = move |request: &[u8], within: Duration| answers.handle(request, within);
    endpoint.serve(Arc::new(handle));
    let folder = job_folder(&folder.join("pfs"), "test job");
    std::fs::create_dir_all(&folder).unwrap();
    let place = ServerPlace::take(&folder, "server", &endpoint.address()).unwrap();
    (point, place)
}

#[test]
fn requests_of_a_drain_that_come_again_late_undo_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let (point, _place) = drains(&network, folder);
    let (node, asker) = (network.endpoint("node0"), network.endpoint("asker"));
    let begun: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let kept = Arc::clone(&begun);
    network.set_hook(move |attempt| {
        if let Action::Call { request } = &attempt.action
            && let Ok(DrainRequest::Begin(_)) = DrainRequest::decode(request)
        {
            kept.lock().unwrap().push(request.clone());
        }
        None
    });
    run_ranks(ThreadComm::new(1), |comm| {
        let own: Arc<dyn Endpoint> = node.clone();
        let config = archive_config(folder, 20_000);
        let mut rank = Rank::open_on(comm, config, Some(own)).expect("opening");
        rank.settle().expect("protecting");
        let ids = [(); 2].map(|()| {
            rank.compute();
            let handle = rank.session.checkpoint_start().unwrap();
            rank.session.wait(handle, Level::Archive).unwrap();
            handle.checkpoint()
        });
        let first = begun.lock().unwrap()[0].clone();
        let refused = point.handle(&first, WITHIN);
        while progress(&point).state == 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let archives = Stores::open(&[folder.join("pfs")]).verify_archives();
        let findings: Vec<_> = archives.iter().flat_map(|a| &a.findings).collect();
        assert!(findings.is_empty(), "{findings:#?}");
        assert_eq!(progress(&point).checkpoint, ids[1]);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        let timeout = u32::try_from(ErrorKind::Timeout.code()).unwrap();
        for (checkpoint, kind) in [(ids[0], 0), (ids[0], timeout)] {
            let request = DrainRequest::Archived {
                checkpoint,
                kind,
                nodes: Vec::new(),
            };
            asker
                .call(&node.peer(), &request.encode().unwrap(), WITHIN)
                .unwrap();
            assert_eq!(rank.session.archived_checkpoint(), Some(ids[1]));
        }
    });
}

/// Who was given up, or another start, goes on from the file that is written: what is drained goes to a new one, and
/// nobody is told of it.
#[test]
fn a_file_that_another_process_takes_over_is_taken_over_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::create_dir(folder.join("pfs")).unwrap();
    let pfs = job_folder(&folder.join("pfs"), "test job");
    run_ranks(ThreadComm::new(1), |comm| {
        let mut rank = Rank::open(comm, archive_config(folder, 20_000)).expect("opening");
        rank.settle().expect("protecting");
        for epoch in 1..4 {
            rank.compute();
            let handle = rank.session.checkpoint_start().unwrap();
            rank.session.wait(handle, Level::Archive).unwrap();
            let file = store_file(0, 2 * epoch - 1);
            let device = ArchiveDevice::open(&pfs, &file, &ReadOptions::default()).unwrap();
            let identity = Identity {
                job: "test job".to_owned(),
                run: device.superblock().run,
                aggregator: 0,
                epoch: 2 * epoch,
                host: fence::host(),
            };
            let (heir, options) = (store_file(0, 2 * epoch), WriteOptions::default());
            ArchiveStore::take_over(&pfs, &file, &heir, &identity, &options).unwrap();
        }
    });
}

/// Its drain hangs in the file system when the next start begins one: that waits for the store, and whoever
/// asks is answered. More than one does not wait there.
#[test]
fn a_drain_that_hangs_does_not_keep_the_next_from_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (hangs, goes_on) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (count, over) = (Arc::clone(&hangs), Arc::clone(&goes_on));
    let _hold = fault::watch(folder, move |attempt| {
        if attempt.access == fault::Access::Write {
            count.fetch_add(1, Ordering::SeqCst);
            while !over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        None
    });
    let network = SimNetwork::new(1);
    let point = DrainPoint::new(network.endpoint("server"), "server");
    let within = Duration::from_secs(1);
    let until = |what: &dyn Fn() -> bool| {
        let begun = std::time::Instant::now();
        while !what() {
            assert!(begun.elapsed() < WITHIN);
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    point.handle(&begin(folder, "gone", 1, 1), within).unwrap();
    until(&|| hangs.load(Ordering::SeqCst) > 0);
    point.handle(&begin(folder, "gone", 2, 2), within).unwrap();
    assert_eq!(progress(&point).state, 1, "{:?}", progress(&point));
    let error = point
        .handle(&begin(folder, "gone", 3, 3), within)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreBusy, "{error}");
    goes_on.store(true, Ordering::SeqCst);
    until(&|| {
        let begun = point.handle(&begin(folder, "gone", 4, 4), within);
        begun.is_ok()
    });
    // Its node is not there; what is told is of it, and not of those before.
    until(&|| progress(&point).state == 3);
    assert_eq!(progress(&point).checkpoint, CheckpointId::new(4, 4));
}
