// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests of a restart that come once more, late: when the job runs on the stores that they are about.

use crate::job::{Rank, config};
use backstay::config::Redundancy;
use backstay::format::agent::Request;
use backstay::{Config, Level};
use backstay_base::io::fault;
use backstay_net::{Endpoint, Peer};
use backstay_parity::agent::{Agent, AgentSettings};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::{Action, SimNetwork};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(20);

/// One start of two ranks, each on a node of its own.
fn start(network: &SimNetwork, folder: &Path, body: impl Fn(&mut Rank) + Sync) {
    run_ranks(ThreadComm::new(2), |comm| {
        let name = format!("n{}", backstay::Communicator::rank(&comm));
        let config = Config {
            node: Some(name.clone()),
            store_path: Some(folder.join(&name)),
            listen_address: Some("127.0.0.1:0".to_owned()),
            redundancy: Redundancy::Partner,
            ..config(folder)
        };
        let endpoint: Arc<dyn Endpoint> = network.endpoint(&name);
        let mut rank = Rank::open_on(comm, config, Some(endpoint)).expect("opening");
        rank.settle().expect("protecting");
        body(&mut rank);
    });
}

fn protected(rank: &mut Rank) {
    rank.compute();
    let handle = rank.session.checkpoint_start().unwrap();
    rank.session.wait(handle, Level::Protected).unwrap();
}

#[test]
fn a_store_is_made_again_once_and_never_set_aside_while_the_job_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(&SimNetwork::new(1), folder, protected);
    std::fs::remove_dir_all(folder.join("n1")).unwrap();
    let network = SimNetwork::new(2);
    let asked: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let kept = Arc::clone(&asked);
    network.set_hook(move |attempt| {
        if let Action::Call { request } = &attempt.action
            && let Ok(Request::Rebuild { lost, .. }) = Request::decode(request)
        {
            let aside = Request::SetAside { store: lost };
            let aside = aside.encode().unwrap();
            kept.lock().unwrap().extend([request.clone(), aside]);
        }
        None
    });
    let asker = network.endpoint("asker");
    let node = network.clone();
    start(&network, folder, |rank| {
        rank.session.restore().unwrap();
        protected(rank);
        if rank.session.rank() == 1 {
            assert!(node.is_up("n1"));
            let peer = Peer::new("n1".to_owned(), "sim:n1".to_owned());
            let asked = std::mem::take(&mut *asked.lock().unwrap());
            assert_eq!(asked.len(), 2, "one store was made again");
            for request in asked {
                // Refused, or nothing is done.
                drop(asker.call(&peer, &request, WITHIN));
            }
            assert!(!folder.join("n1/test job/n1/store.aside").exists());
        }
        protected(rank);
    });
    start(&SimNetwork::new(3), folder, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 3);
        rank.check();
    });
}

/// A survey that comes once more is under way while the store that it looks at is set aside.
#[test]
fn a_store_that_was_set_aside_is_not_found_by_a_survey_that_began_before() {
    let folder = tempfile::tempdir().unwrap();
    start(&SimNetwork::new(1), folder.path(), protected);
    let directory = folder.path().join("n1/test job/n1");
    let network = SimNetwork::new(2);
    let settings = AgentSettings {
        within: WITHIN,
        threads: 1,
        rate_bytes: None,
        cpu_set: None,
        nice: 0,
    };
    let agent = Agent::start(network.endpoint("n1"), settings, "n1", &directory, None);
    agent.survey();
    let store = agent.local_stores()[0].survey.store;
    let (asker, looks) = (network.endpoint("asker"), AtomicBool::new(true));
    let aside: Arc<Mutex<Option<JoinHandle<()>>>> = Arc::default();
    let begun = Arc::clone(&aside);
    let _watch = fault::watch(&directory, move |_| {
        if looks.swap(false, Ordering::SeqCst) {
            let (asker, (sender, done)) = (Arc::clone(&asker), channel());
            let asking = std::thread::spawn(move || {
                let peer = Peer::new("n1".to_owned(), "sim:n1".to_owned());
                let request = Request::SetAside { store }.encode().unwrap();
                asker.call(&peer, &request, WITHIN).unwrap();
                sender.send(()).ok();
            });
            *begun.lock().unwrap() = Some(asking);
            // It waits for the survey, or is done before it.
            done.recv_timeout(Duration::from_millis(300)).ok();
        }
        None
    });
    agent.survey();
    aside.lock().unwrap().take().unwrap().join().unwrap();
    assert!(directory.join("store.aside").exists());
    assert!(agent.local_stores().is_empty());
}

/// A node whose store is damaged mends it itself: of other nodes it reads, and nobody asks it to.
#[test]
fn what_is_damaged_is_repaired_by_its_own_node_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(&SimNetwork::new(1), folder, |rank| {
        protected(rank);
        protected(rank);
    });
    let store = folder.join("n1/test job/n1/store.backstay");
    let mut bytes = std::fs::read(&store).unwrap();
    // In the middle of each segment that is used.
    for at in (96 << 10..bytes.len()).step_by(60_001) {
        bytes[at] ^= 0x10;
    }
    std::fs::write(&store, bytes).unwrap();
    let network = SimNetwork::new(2);
    let repairs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&repairs);
    network.set_hook(move |attempt| {
        if let Action::Call { request } = &attempt.action
            && matches!(Request::decode(request), Ok(Request::Repair { .. }))
        {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        None
    });
    start(&network, folder, |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(
            (restored.checkpoint.number, rank.step),
            (2, 2),
            "the newest"
        );
        rank.check();
    });
    assert_eq!(repairs.load(Ordering::SeqCst), 0);
}
