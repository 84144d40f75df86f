// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What rounds record and encode: logs of stripes that are longer than a message or say too much, who is asked for
//! them, and stripes whose pieces are damaged when they are encoded anew.

use crate::job::{Rank, WORDS};
use crate::rounds::{NODES, node, request, start, store_folder};
use backstay::config::Redundancy;
use backstay::{Config, ErrorKind};
use backstay_base::io::Device;
use backstay_base::io::file::FileDevice;
use backstay_format::agent::Request;
use backstay_format::width::to_u64;
use backstay_format::{Digest, SegmentId, Stripe, StripeId, StripePiece};
use backstay_net::MESSAGE_BYTES_MAX;
use backstay_parity::agent::Agent;
use backstay_parity::agent::coordinate::NodeSeat;
use backstay_parity::agent::restart::{self, Surveys};
use backstay_store::place::STORE_FILE;
use backstay_store::reader::StoreReader;
use backstay_store::stripe_log::{LOG_FILES, LogFiles, StripeLog, StripeTable, read_beside};
use backstay_testkit::network::{Fault, SimNetwork};
use backstay_testkit::oracle::Oracle;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn files(folder: &Path) -> LogFiles {
    LOG_FILES.map(|name| {
        let file = FileDevice::open(&folder.join(name), true).unwrap();
        Arc::new(file) as Arc<dyn Device>
    })
}

fn store_of(folder: &Path) -> backstay_format::StoreId {
    let stores = backstay_parity::agent::survey::stores_in(folder);
    stores[0].survey.store
}

/// The table of `table`'s group with `count` stripes more, of segments that are nowhere.
fn grown(table: &StripeTable, count: usize) -> StripeTable {
    let mut grown = table.clone();
    grown.round += 1;
    let sample = widest(table);
    let first = table.next_stripe().0;
    for id in first..first + to_u64(count) {
        let mut stripe = Stripe {
            id: StripeId(id),
            ..sample.clone()
        };
        for piece in stripe.pieces.iter_mut().chain(&mut stripe.parity) {
            piece.extent.segment = SegmentId(1_000_000 + id);
        }
        grown.stripes.insert(stripe.id, stripe);
    }
    grown
}

fn widest(table: &StripeTable) -> &Stripe {
    let stripes = table.stripes.values();
    stripes.max_by_key(|stripe| stripe.pieces.len()).unwrap()
}

/// What no checkpoint uses any more, and cannot be made again, is no reason to give up a store.
#[test]
fn a_dead_extent_that_is_beyond_repair_does_not_keep_a_store_lost() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    start(
        folder,
        &network,
        |_| (),
        |rank| {
            rank.take();
            rank.take_protected();
        },
    );
    let mut lost = 0;
    for place in 0..NODES {
        let folder = store_folder(folder, place);
        let store = store_of(&folder);
        let table = grown(&read_beside(&folder, store).unwrap(), 1);
        let column = table.column(store).unwrap();
        let stripe = table.stripes.values().next_back().unwrap();
        if stripe.pieces.iter().any(|piece| piece.column == column) {
            lost = place;
        }
        let (mut log, _) = StripeLog::open(files(&folder), store).unwrap();
        log.append(&table.whole(0), &table).unwrap();
    }
    std::fs::remove_dir_all(folder.join(format!("n{lost}"))).unwrap();
    start(
        folder,
        &network,
        |_| (),
        |rank| {
            assert_eq!(rank.session.restore().unwrap().checkpoint.number, 2);
            rank.check();
        },
    );
}

/// The agents of all nodes, no job running, and their seats.
fn agents_of(folder: &Path, network: &SimNetwork) -> (Vec<Arc<Agent>>, Vec<NodeSeat>) {
    let settings = node(folder, 0).agent_settings();
    let agents: Vec<Arc<Agent>> = (0..NODES)
        .map(|place| {
            let name = format!("n{place}");
            let endpoint = network.endpoint(&name);
            let folder = store_folder(folder, place);
            Agent::start(endpoint, settings.clone(), &name, &folder, None)
        })
        .collect();
    let seats = (0..NODES).map(|place| NodeSeat {
        name: format!("n{place}"),
        domain: format!("n{place}"),
        address: agents[place].endpoint().address(),
    });
    let seats = seats.collect();
    (agents, seats)
}

/// What nodes said by the communicator is not asked for; a node that did not say, and cannot be asked, is no node
/// without stores.
#[test]
fn only_nodes_that_said_nothing_are_asked_what_they_have() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let change = |_: &mut Config| ();
    start(folder, &network, change, |rank| {
        rank.take_protected();
    });
    let network = SimNetwork::new(2);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (seen, cut) = (Arc::clone(&asked), Arc::new(AtomicBool::new(false)));
    let is_cut = Arc::clone(&cut);
    network.set_hook(move |attempt| {
        seen.lock().unwrap().push(attempt.to.clone());
        is_cut.load(Ordering::SeqCst).then_some(Fault::Unreachable)
    });
    let (agents, seats) = agents_of(folder, &network);
    let within = Duration::from_millis(300);
    let said = |silent: Option<usize>| {
        let of = |place: usize| (Some(place) != silent).then(|| agents[place].survey());
        Surveys::new((0..NODES).map(of).collect())
    };
    let prepare = |silent| restart::prepare(&agents[0], &seats, &mut said(silent), None, within);
    let located = prepare(None).unwrap();
    assert_eq!(located.here.len(), NODES);
    assert!(asked.lock().unwrap().is_empty(), "{asked:?}");
    assert_eq!(prepare(Some(2)).unwrap(), located);
    assert_eq!(*asked.lock().unwrap(), ["n2"]);
    cut.store(true, Ordering::SeqCst);
    let error = prepare(Some(2)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PeerUnreachable, "{error}");
}

#[test]
fn a_log_longer_than_a_message_is_sent_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    start(
        folder,
        &network,
        |_| (),
        |rank| {
            rank.take_protected();
        },
    );
    let newest = store_folder(folder, 1);
    let store = store_of(&newest);
    let table = read_beside(&newest, store).unwrap();
    let bytes = usize::try_from(widest(&table).encoded_bytes()).unwrap();
    let table = grown(&table, MESSAGE_BYTES_MAX / bytes + 1);
    let (mut log, _) = StripeLog::open(files(&newest), store).unwrap();
    log.append(&table.whole(0), &table).unwrap();
    drop(log);
    let network = SimNetwork::new(2);
    let asked: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let seen = Arc::clone(&asked);
    network.set_hook(move |attempt| {
        if matches!(request(&attempt.action), Some(Request::Table { .. })) {
            let pair = format!("{} of {}", attempt.from, attempt.to);
            seen.lock().unwrap().insert(pair);
        }
        None
    });
    let (agents, seats) = agents_of(folder, &network);
    let mut surveys = Surveys::new(vec![None; NODES]);
    let within = Duration::from_secs(60);
    restart::prepare(&agents[0], &seats, &mut surveys, None, within).unwrap();
    for place in 0..NODES {
        let folder = store_folder(folder, place);
        let found = read_beside(&folder, store_of(&folder)).unwrap();
        assert!(found == table, "the log of node {place}");
    }
    // It goes from one member to the others, and not through the node that decides.
    let wanted = ["n0 of n1", "n2 of n1", "n3 of n1"].map(str::to_owned);
    assert_eq!(*asked.lock().unwrap(), wanted.into());
}

/// The node of a piece, and where that stands in its file.
fn whose(folder: &Path, piece: &StripePiece) -> (PathBuf, u64) {
    let own = store_folder(folder, 0);
    let table = read_beside(&own, store_of(&own)).unwrap();
    let node = &table.members[usize::from(piece.column)].node;
    let path = folder.join(format!("{node}/test job/{node}/{STORE_FILE}"));
    let file = FileDevice::open_read_only(&path).unwrap();
    let reader = StoreReader::open(Arc::new(file)).unwrap();
    reader.read_records(|_, _, _| {}).unwrap();
    let slot = reader.slot_of(piece.extent.segment).unwrap();
    let offset = reader.geometry().slot_offset(slot) + u64::from(piece.extent.offset_bytes);
    (path, offset)
}

/// A bit of each 512 bytes.
fn damage(folder: &Path, piece: &StripePiece) {
    let (path, offset) = whose(folder, piece);
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.unwrap();
    let mut bytes = vec![0; usize::try_from(piece.extent.length_bytes).unwrap()];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes.iter_mut().step_by(512).for_each(|byte| *byte ^= 1);
    file.write_all_at(&bytes, offset).unwrap();
}

/// What rank 1 has stays in use, beside what the others have no use for.
fn change_unevenly(rank: &mut Rank) {
    let number = rank.session.rank();
    let per_mille = if number == 1 { 0 } else { 1000 };
    rank.oracle = Oracle::new(number, 0, WORDS * 8).changing(7, 4096, per_mille);
}

/// Takes checkpoints until a piece that was in a stripe is encoded anew, and damages it where it stands just
/// before, with so many others of its stripe; the number of the last.
fn encodes_anew_what_is_damaged(folder: &Path, beside: usize) -> u64 {
    let network = SimNetwork::new(1);
    let damaged = Arc::new(AtomicBool::new(false));
    let (done, below) = (Arc::clone(&damaged), folder.to_owned());
    network.set_hook(move |attempt| {
        let Request::Encode { stripes, .. } = request(&attempt.action)? else {
            return None;
        };
        let pieces = stripes.iter().flat_map(|plan| &plan.pieces);
        let known = pieces.filter(|piece| piece.extent.digest != Digest::default());
        if let Some(piece) = known.max_by_key(|piece| piece.extent.length_bytes)
            && !done.swap(true, Ordering::SeqCst)
        {
            let own = store_folder(&below, 0);
            let table = read_beside(&own, store_of(&own)).unwrap();
            let mut stripes = table.stripes.values();
            let stripe = stripes.find(|stripe| stripe.pieces.contains(piece));
            damage(&below, piece);
            for parity in stripe.unwrap().parity.iter().take(beside) {
                damage(&below, parity);
            }
        }
        None
    });
    let last = AtomicU64::new(0);
    start(
        folder,
        &network,
        |_| (),
        |rank| {
            change_unevenly(rank);
            // No round begins before all ranks take the next.
            while !damaged.load(Ordering::SeqCst) {
                let taken = rank.take_protected().checkpoint().number;
                assert!(taken < 60, "nothing is ever encoded anew");
                last.store(taken, Ordering::SeqCst);
            }
        },
    );
    last.into_inner()
}

/// The new stripe was made of what stood there, with its digest: nothing covered what had been, and no repair found
/// the damage.
#[test]
fn what_is_damaged_when_it_is_encoded_anew_is_protected_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let last = encodes_anew_what_is_damaged(folder, 0);
    start(
        folder,
        &SimNetwork::new(2),
        |_| (),
        |rank| {
            change_unevenly(rank);
            assert_eq!(rank.session.restore().unwrap().checkpoint.number, last);
            rank.check();
            rank.session.restore_from(last - 1).unwrap();
            rank.check();
        },
    );
}

#[test]
fn what_is_damaged_beyond_repair_keeps_nothing_else_from_being_protected() {
    let folder = tempfile::tempdir().unwrap();
    encodes_anew_what_is_damaged(folder.path(), 1);
}

/// The same, where groups are formed anew: what was damaged between two starts, and nobody reads to restore.
#[test]
fn what_is_damaged_when_groups_are_formed_anew_is_made_again_first() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(3);
    start(
        folder,
        &network,
        |_| (),
        |rank| {
            rank.take_protected();
            rank.take_protected();
        },
    );
    let own = store_folder(folder, 0);
    let table = read_beside(&own, store_of(&own)).unwrap();
    let pieces = table.stripes.values().flat_map(|stripe| &stripe.pieces);
    let large = pieces
        .max_by_key(|piece| piece.extent.length_bytes)
        .unwrap();
    let (path, offset) = whose(folder, large);
    let stood = |path: &Path| {
        let mut bytes = vec![0; usize::try_from(large.extent.length_bytes).unwrap()];
        let file = OpenOptions::new().read(true).open(path).unwrap();
        file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    };
    let before = stood(&path);
    damage(folder, large);
    assert!(stood(&path) != before);
    start(
        folder,
        &network,
        |config| config.redundancy = Redundancy::Rs,
        |rank| {
            // It goes on from nothing, and reads nothing.
            rank.take_protected();
        },
    );
    assert!(stood(&path) == before);
}
