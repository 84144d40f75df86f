// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nodes that one of them drains: who talks to whom, what is opened, and who takes the place of one that is gone.

use crate::job::{Rank, config};
use backstay::format::drain::DrainRequest;
use backstay::{CheckpointId, Communicator, Config, Level};
use backstay_archive::{Catalog, job_folder};
use backstay_base::io::fault;
use backstay_net::Endpoint;
use backstay_testkit::SimNetwork;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::{Action, Fault, Traffic};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Barrier, Mutex};

fn name(place: usize) -> String {
    format!("n{place}")
}

fn node(folder: &Path, place: usize, nodes_each: u32) -> Config {
    Config {
        node: Some(name(place)),
        store_path: Some(folder.join(name(place))),
        archive: Some(folder.join("pfs")),
        archive_retained: 2,
        archive_reserve_bytes: Some(8 << 20),
        aggregate_nodes: Some(nodes_each),
        ..config(folder)
    }
}

/// One start on nodes 0 to `count`, one rank each.
fn start(
    network: &SimNetwork,
    (folder, count, nodes_each): (&Path, usize, u32),
    body: impl Fn(&mut Rank, usize, &dyn Fn()) + Sync,
) {
    std::fs::create_dir_all(folder.join("pfs")).unwrap();
    let endpoints: Vec<Arc<dyn Endpoint>> = (0..count)
        .map(|place| -> Arc<dyn Endpoint> { network.endpoint(&name(place)) })
        .collect();
    let barrier = Barrier::new(count);
    let meet = || {
        barrier.wait();
    };
    run_ranks(ThreadComm::new(count), |comm| {
        let place = usize::try_from(comm.rank()).unwrap();
        let config = node(folder, place, nodes_each);
        let endpoint = Some(Arc::clone(&endpoints[place]));
        let mut rank = Rank::open_on(comm, config, endpoint).expect("opening");
        rank.settle().expect("protecting");
        body(&mut rank, place, &meet);
    });
}

/// Takes a checkpoint that is in the archive on return.
fn archived(rank: &mut Rank) -> CheckpointId {
    rank.compute();
    let handle = rank.session.checkpoint_start().unwrap();
    rank.session.wait(handle, Level::Archive).unwrap();
    handle.checkpoint()
}

fn files(folder: &Path) -> BTreeSet<String> {
    let catalog = Catalog::open_reader(&job_folder(&folder.join("pfs"), "test job")).unwrap();
    let stores = catalog.state().stores.iter();
    stores.map(|store| store.name.clone()).collect()
}

fn wipe(folder: &Path, count: usize) {
    (0..count).for_each(|place| std::fs::remove_dir_all(folder.join(name(place))).unwrap());
}

fn restores(network: &SimNetwork, start_of: (&Path, usize, u32), id: CheckpointId) {
    start(network, start_of, |rank, _, _| {
        assert_eq!(rank.session.restore().unwrap().checkpoint, id);
        assert_eq!(rank.step, id.number);
        rank.check();
    });
}

/// Of seven nodes two drain for all; the coordinator speaks to these and to those that it drains.
#[test]
fn one_node_drains_its_share_and_the_coordinator_speaks_to_aggregators() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, network) = (folder.path(), SimNetwork::new(1));
    let seen: [Traffic; 7] = Default::default();
    let seen = Mutex::new(seen);
    start(&network, (folder, 7, 4), |rank, place, meet| {
        archived(rank);
        meet();
        if place == 0 {
            network.clear_traffic();
        }
        meet();
        archived(rank);
        meet();
        if place == 0 {
            let traffic = |place| network.traffic(&name(place));
            *seen.lock().unwrap() = std::array::from_fn(traffic);
        }
        meet();
    });
    let expected = ["aggregate-0-1.backstay", "aggregate-1-1.backstay"];
    assert_eq!(files(folder), expected.map(str::to_owned).into());
    let asked = |place: usize| seen.lock().unwrap()[place].peers_asked.clone();
    let named = |places: &[usize]| places.iter().map(|&place| name(place)).collect();
    assert_eq!(asked(0), named(&[1, 2, 3]));
    assert_eq!(asked(3), named(&[4, 5, 6]));
    for place in [1, 2, 4, 5, 6] {
        assert_eq!(asked(place), BTreeSet::new());
    }
    wipe(folder, 7);
    restores(&network, (folder, 7, 4), CheckpointId::new(1, 2));
}

/// An aggregator that takes no drain: the next node of its share goes on from its file, and its nodes learn of it.
#[test]
fn another_node_takes_the_place_of_an_aggregator_that_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, network) = (folder.path(), SimNetwork::new(2));
    start(&network, (folder, 5, 3), |rank, place, meet| {
        archived(rank);
        meet();
        if place == 0 {
            network.set_hook(|attempt| {
                let Action::Call { request } = &attempt.action else {
                    return None;
                };
                let request = DrainRequest::decode(request).ok()?;
                let is_of_drains = !matches!(request, DrainRequest::Offer { .. });
                (attempt.to == name(2) && attempt.from == name(0) && is_of_drains)
                    .then_some(Fault::Unreachable)
            });
        }
        meet();
        for _ in 0..2 {
            archived(rank);
        }
        meet();
        if place == 0 {
            network.clear_hook();
        }
        meet();
    });
    let found = files(folder);
    assert!(found.contains("aggregate-0-1.backstay"), "{found:?}");
    assert_eq!(found.len(), 2, "{found:?}");
    wipe(folder, 5);
    restores(&network, (folder, 5, 3), CheckpointId::new(1, 3));
}

/// Shares change with the nodes of a start: what the archive has is read by whoever needs it, and goes on.
#[test]
fn starts_on_other_nodes_and_with_other_shares_go_on_from_the_same_archive() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, network) = (folder.path(), SimNetwork::new(3));
    let mut newest = CheckpointId::default();
    for (incarnation, nodes_each) in [(1, 1), (2, 3), (3, 2), (4, 64)] {
        start(&network, (folder, 6, nodes_each), |rank, _, _| {
            if incarnation > 1 {
                assert_eq!(rank.session.restore().unwrap().checkpoint, newest);
                rank.check();
            }
            for _ in 0..3 {
                assert_eq!(archived(rank).incarnation, incarnation);
            }
        });
        newest = CheckpointId::new(incarnation, newest.number + 3);
        wipe(folder, 6);
    }
    restores(&network, (folder, 6, 64), newest);
    let found = files(folder);
    assert!(
        found.iter().all(|name| name.starts_with("aggregate-0-")),
        "{found:?}"
    );
}

/// Files of aggregators that are read while this is held.
fn files_read(folder: &Path) -> (fault::Watch, Arc<Mutex<BTreeSet<String>>>) {
    let read: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let seen = Arc::clone(&read);
    let watch = fault::watch(&folder.join("pfs"), move |attempt| {
        let name = attempt.path.file_name().unwrap().to_string_lossy();
        if name.starts_with("aggregate-") {
            seen.lock().unwrap().insert(name.into_owned());
        }
        None
    });
    (watch, read)
}

/// A restart opens what it reads: no file where the nodes have all, and one where one node is lost.
#[test]
fn a_restart_reads_no_file_that_it_does_not_need() {
    let folder = tempfile::tempdir().unwrap();
    let (folder, network) = (folder.path(), SimNetwork::new(4));
    start(&network, (folder, 6, 1), |rank, _, _| {
        archived(rank);
    });
    for (lost, expected) in [
        (None, vec![]),
        (Some(4), vec!["aggregate-4-1.backstay".to_owned()]),
    ] {
        if let Some(place) = lost {
            std::fs::remove_dir_all(folder.join(name(place))).unwrap();
        }
        let (watch, read) = files_read(folder);
        start(&network, (folder, 6, 1), |rank, place, meet| {
            assert_eq!(rank.session.restore().unwrap().checkpoint.number, 1);
            rank.check();
            meet();
            if place == 0 {
                let read = std::mem::take(&mut *read.lock().unwrap());
                assert_eq!(read.into_iter().collect::<Vec<_>>(), expected);
            }
            meet();
        });
        drop(watch);
    }
}
