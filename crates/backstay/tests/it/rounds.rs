// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Level 2 over a network that loses what a test says: rounds that fail, records that are sent again,
//! logs that are longer than a message, and a coordinator that hangs.

use crate::job::{Rank, WORDS, config};
use backstay::config::{Redundancy, Tracking};
use backstay::{Communicator, Config, ErrorKind, Level, Session};
use backstay_base::io::file::FileDevice;
use backstay_base::io::{Device, fault};
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
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::{Action, Fault, SimNetwork};
use backstay_testkit::oracle::Oracle;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) const NODES: usize = 4;

/// What becomes of a job whose groups are formed anew.
struct Recomposed {
    former: Redundancy,
    starts: usize,
    lost: &'static [usize],
}

fn store_folder(folder: &Path, place: usize) -> PathBuf {
    folder.join(format!("n{place}/test job/n{place}"))
}

pub(crate) fn node(folder: &Path, place: usize) -> Config {
    Config {
        node: Some(format!("n{place}")),
        store_path: Some(folder.join(format!("n{place}"))),
        redundancy: Redundancy::Xor,
        ..config(folder)
    }
}

/// One start of a rank on each node.
pub(crate) fn start(
    folder: &Path,
    network: &SimNetwork,
    change: impl Fn(&mut Config) + Sync,
    body: impl Fn(&mut Rank) + Sync,
) {
    run_ranks(ThreadComm::new(NODES), |comm| {
        let place = usize::try_from(comm.rank()).unwrap();
        let mut config = node(folder, place);
        change(&mut config);
        let endpoint = network.endpoint(&format!("n{place}"));
        let session = Session::open_on(Box::new(comm), config, Some(endpoint)).unwrap();
        let mut rank = Rank::of(session);
        rank.protect(Tracking::Hash).unwrap();
        body(&mut rank);
        rank.session.close().unwrap();
    });
}

impl Rank {
    pub(crate) fn take(&mut self) -> backstay::Handle {
        self.compute();
        let handle = self.session.checkpoint_start().unwrap();
        self.session.wait(handle, Level::Node).unwrap();
        handle
    }
    pub(crate) fn take_protected(&mut self) -> backstay::Handle {
        let handle = self.take();
        self.session.wait(handle, Level::Protected).unwrap();
        handle
    }
}

pub(crate) fn request(action: &Action) -> Option<Request> {
    match action {
        Action::Call { request } => Request::decode(request).ok(),
        Action::Describe { .. } | Action::Read { .. } | Action::ReadPast { .. } => None,
    }
}

#[test]
fn a_record_that_a_member_cannot_keep_takes_no_more_parity() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let refuse = Arc::new(AtomicBool::new(false));
    let taken = Arc::new(AtomicUsize::new(0));
    let (refused, counted) = (Arc::clone(&refuse), Arc::clone(&taken));
    network.set_hook(move |attempt| match request(&attempt.action)? {
        Request::Take { .. } => {
            counted.fetch_add(1, Ordering::SeqCst);
            None
        }
        Request::Record(_) if attempt.to == "n2" && refused.load(Ordering::SeqCst) => {
            Some(Fault::Unreachable)
        }
        _ => None,
    });
    start(
        folder,
        &network,
        |_| (),
        |rank| {
            rank.take_protected();
            if rank.session.rank() == 0 {
                refuse.store(true, Ordering::SeqCst);
            }
            let handle = rank.take();
            rank.session.wait(handle, Level::Protected).unwrap_err();
            let before = taken.load(Ordering::SeqCst);
            assert!(before > 0);
            for _ in 0..6 {
                let handle = rank.take();
                rank.session.wait(handle, Level::Protected).unwrap_err();
                assert_eq!(taken.load(Ordering::SeqCst), before, "parity of one round");
            }
            if rank.session.rank() == 0 {
                refuse.store(false, Ordering::SeqCst);
            }
            rank.take_protected();
        },
    );
    std::fs::remove_dir_all(folder.join("n2")).unwrap();
    start(
        folder,
        &network,
        |_| (),
        |rank| {
            assert_eq!(rank.session.restore().unwrap().checkpoint.number, 9);
            rank.check();
        },
    );
}

#[test]
fn a_group_that_fails_after_a_return_does_not_claim_what_was_protected_before() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    let refuse = Arc::new(AtomicBool::new(false));
    let refused = Arc::clone(&refuse);
    network.set_hook(move |attempt| match request(&attempt.action)? {
        Request::Flush { .. } if ["n1", "n3"].contains(&&*attempt.to) => {
            refused.load(Ordering::SeqCst).then_some(Fault::Unreachable)
        }
        _ => None,
    });
    let change = |config: &mut Config| {
        config.group_size = 2;
        config.retained = 6;
    };
    start(folder.path(), &network, change, |rank| {
        for _ in 0..8 {
            rank.take();
        }
        let nine = rank.take_protected();
        assert_eq!(rank.session.protected_checkpoint(), Some(nine.checkpoint()));
        if rank.session.rank() == 0 {
            refuse.store(true, Ordering::SeqCst);
        }
        rank.session.restore_from(5).unwrap();
        rank.check();
        assert_eq!(rank.session.protected_checkpoint(), None);
        for _ in 0..6 {
            let handle = rank.take();
            rank.session.wait(handle, Level::Protected).unwrap_err();
            assert_eq!(rank.session.protected_checkpoint(), None);
        }
        if rank.session.rank() == 0 {
            refuse.store(false, Ordering::SeqCst);
        }
        let last = rank.take_protected();
        assert_eq!(rank.session.protected_checkpoint(), Some(last.checkpoint()));
    });
}

/// Groups that are formed anew take nothing from those before while one of them has not recorded its first round:
/// who is in it is protected by the former group, and that by the nodes of the others.
#[test]
fn groups_formed_anew_take_nothing_from_the_former_before_all_have_recorded() {
    use Redundancy::{Rs, Xor};
    let case = |former, starts, lost: &'static [usize]| Recomposed {
        former,
        starts,
        lost,
    };
    let cases = [
        case(Xor, 1, &[3]),
        case(Xor, 2, &[3]),
        case(Xor, 2, &[1]),
        // All whose logs are of the former composition alone.
        case(Rs, 1, &[1, 3]),
        case(Rs, 2, &[1, 3]),
    ];
    for Recomposed {
        former,
        starts,
        lost,
    } in cases
    {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let network = SimNetwork::new(1);
        start(
            folder,
            &network,
            |config| config.redundancy = former,
            |rank| {
                rank.take_protected();
                rank.take_protected();
            },
        );
        let refuse = Arc::new(AtomicBool::new(true));
        let refused = Arc::clone(&refuse);
        network.set_hook(move |attempt| match request(&attempt.action)? {
            Request::Flush { .. } if ["n1", "n3"].contains(&&*attempt.to) => {
                refused.load(Ordering::SeqCst).then_some(Fault::Unreachable)
            }
            _ => None,
        });
        let pairs = |config: &mut Config| {
            config.redundancy = Redundancy::Partner;
            config.group_size = 2;
        };
        for _ in 0..starts {
            start(folder, &network, pairs, |rank| {
                assert_eq!(rank.session.restore_from(2).unwrap().checkpoint.number, 2);
                for _ in 0..8 {
                    let handle = rank.take();
                    rank.session.wait(handle, Level::Protected).unwrap_err();
                }
            });
        }
        refuse.store(false, Ordering::SeqCst);
        for place in lost {
            std::fs::remove_dir_all(folder.join(format!("n{place}"))).unwrap();
        }
        start(folder, &network, pairs, |rank| {
            assert_eq!(
                rank.session.restore().unwrap().checkpoint.number,
                2,
                "{lost:?}"
            );
            rank.check();
            rank.take_protected();
        });
    }
}

/// The round that is under way asks nodes for it that do not have it any more, and never will again.
#[test]
fn a_round_does_not_wait_for_what_the_job_went_back_behind() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    let hold = Arc::new(AtomicBool::new(false));
    let (held, asked) = (Arc::clone(&hold), Arc::new(AtomicBool::new(false)));
    let is_asked = Arc::clone(&asked);
    network.set_hook(move |attempt| {
        let collects = matches!(request(&attempt.action), Some(Request::Collect { .. }));
        while collects && attempt.to == "n1" && held.load(Ordering::SeqCst) {
            is_asked.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    });
    let since = Instant::now();
    start(
        folder.path(),
        &network,
        |_| (),
        |rank| {
            let two = [rank.take_protected(), rank.take_protected()];
            if rank.session.rank() == 0 {
                hold.store(true, Ordering::SeqCst);
            }
            rank.take();
            while !asked.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let number = two[1].checkpoint().number;
            rank.session.restore_from(number).unwrap();
            if rank.session.rank() == 0 {
                hold.store(false, Ordering::SeqCst);
            }
        },
    );
    // Closing, it waits for the round.
    let waited = since.elapsed();
    assert!(waited < Duration::from_secs(12), "{waited:?}");
}

/// `groups` of the four nodes; how long the first rank waited while the round of its group hung, in ms.
fn waited_for_a_round_that_hangs(groups: usize) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let hang = Arc::new(AtomicBool::new(false));
    let hanging = Arc::clone(&hang);
    network.set_hook(move |attempt| {
        if attempt.from == "n0" && matches!(request(&attempt.action), Some(Request::Encode { .. }))
        {
            while hanging.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        None
    });
    let change = |config: &mut Config| {
        config.timeout_ms = 700;
        config.group_size = u32::try_from(NODES / groups).unwrap();
    };
    start(folder, &network, change, |rank| {
        rank.take_protected();
        if rank.session.rank() == 0 {
            hang.store(true, Ordering::SeqCst);
        }
        let stuck = rank.take();
        let is_stuck = |rank: &Rank| groups == 1 || rank.session.rank() == 0;
        // Its round has begun, and hangs.
        while is_stuck(rank) && rank.session.protection().encoding != Some(stuck.checkpoint()) {
            std::thread::yield_now();
        }
        for at in 0..10 {
            if at == 5 {
                std::thread::sleep(Duration::from_millis(800));
            }
            rank.take();
        }
        if is_stuck(rank) {
            let shortfall = rank.session.protection().shortfall.unwrap();
            assert!(shortfall.contains("hangs or is dead"), "{shortfall}");
        }
        if rank.session.rank() == 0 {
            hang.store(false, Ordering::SeqCst);
        }
        // The round under way may be of one that is not retained any more.
        let last = rank.take();
        let mut protected = rank.session.wait(last, Level::Protected);
        for _ in 0..20 {
            if protected.is_ok() {
                break;
            }
            protected = rank.session.wait(last, Level::Protected);
        }
        protected.unwrap();
    });
    waited_ms(folder)
}

#[test]
fn who_waited_in_vain_for_protection_does_not_wait_again() {
    let waited = waited_for_a_round_that_hangs(2);
    assert!((700..1400).contains(&waited), "{waited} ms: once in vain");
}

#[test]
fn in_a_job_of_one_group_nobody_waits_for_protection() {
    assert_eq!(waited_for_a_round_that_hangs(1), 0);
}

#[test]
fn what_protects_goes_on_after_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let change = |config: &mut Config| config.group_size = 2;
    start(folder, &network, change, |rank| {
        rank.take_protected();
    });
    let panics = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&panics);
    network.set_hook(move |attempt| {
        let asks = matches!(request(&attempt.action), Some(Request::Join { .. }));
        let first = asks && counted.fetch_add(1, Ordering::SeqCst) == 0;
        assert!(!first, "a panic of the test");
        None
    });
    start(folder, &network, change, |rank| {
        rank.session.restore().unwrap();
        let last = rank.take();
        let mut protected = || rank.session.wait(last, Level::Protected).is_ok();
        assert!((0..10).any(|_| protected()), "it never is again");
    });
    assert!(panics.load(Ordering::SeqCst) > 1);
}

/// How long rank 0 waited for protection in a start that ended well; waits that were not in vain are short.
fn waited_ms(folder: &Path) -> u64 {
    let path = store_folder(folder, 0).join("metrics.json");
    let text = std::fs::read_to_string(path).unwrap();
    let metrics: serde_json::Value = serde_json::from_str(&text).unwrap();
    let seconds = metrics["protection_wait_seconds"].as_f64().unwrap();
    Duration::from_secs_f64(seconds)
        .as_millis()
        .try_into()
        .unwrap()
}

#[test]
fn what_no_group_can_protect_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    let change = |config: &mut Config| {
        config.failure_domain = Some("the only one".to_owned());
        config.timeout_ms = 1500;
    };
    start(folder.path(), &network, change, |rank| {
        let handle = rank.take();
        // The first round may still be under way.
        drop(rank.session.wait(handle, Level::Protected));
        for _ in 0..6 {
            let error = rank.session.wait(handle, Level::Protected).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
    });
}

/// It was taken for another store, which was refused for good.
#[test]
fn a_store_that_cannot_be_read_for_a_while_joins_its_group_later() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let fails = Arc::new(AtomicBool::new(false));
    let making = Arc::new(AtomicBool::new(false));
    let (failing, is_making) = (Arc::clone(&fails), Arc::clone(&making));
    let store = store_folder(folder, 1).join(STORE_FILE);
    // Nobody looks before the store is made, which it can be.
    network.set_hook(move |attempt| {
        while matches!(request(&attempt.action), Some(Request::Survey))
            && is_making.load(Ordering::SeqCst)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    });
    let _watch = fault::watch(folder, move |attempt| {
        let is_it = attempt.path == store && attempt.access == fault::Access::Read;
        (is_it && failing.load(Ordering::SeqCst)).then_some(fault::Fault::Fails(5))
    });
    let change = |config: &mut Config| config.timeout_ms = 1500;
    start(folder, &network, change, |rank| {
        if rank.session.rank() == 0 {
            making.store(true, Ordering::SeqCst);
        }
        let handle = rank.take();
        if rank.session.rank() == 0 {
            fails.store(true, Ordering::SeqCst);
            making.store(false, Ordering::SeqCst);
        }
        let error = rank.session.wait(handle, Level::Protected).unwrap_err();
        assert!(error.kind().leaves_open(), "{error}");
        fails.store(false, Ordering::SeqCst);
        let mut protected = || rank.session.wait(handle, Level::Protected).is_ok();
        assert!((0..20).any(|_| protected()), "it never is");
    });
}

#[test]
fn rounds_that_fail_again_and_again_make_nobody_wait_twice() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let refuse = Arc::new(AtomicBool::new(false));
    let refused = Arc::clone(&refuse);
    network.set_hook(move |attempt| {
        let is_it = matches!(request(&attempt.action), Some(Request::Record(_)));
        (is_it && attempt.to == "n2" && refused.load(Ordering::SeqCst))
            .then_some(Fault::Unreachable)
    });
    let change = |config: &mut Config| config.timeout_ms = 3_000;
    start(folder, &network, change, |rank| {
        rank.take_protected();
        if rank.session.rank() == 0 {
            refuse.store(true, Ordering::SeqCst);
        }
        for _ in 0..16 {
            rank.take();
        }
        if rank.session.rank() == 0 {
            refuse.store(false, Ordering::SeqCst);
        }
        let last = rank.take();
        let mut protected = || rank.session.wait(last, Level::Protected).is_ok();
        assert!((0..40).any(|_| protected()), "it never is again");
        // And from now on it is waited for as before.
        for _ in 0..3 {
            rank.take_protected();
        }
    });
    let waited = waited_ms(folder);
    assert!(waited < 6_000, "{waited} ms: more than once in vain");
}

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
