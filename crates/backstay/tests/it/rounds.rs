// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Level 2 over a network that loses what a test says: rounds that fail, records that are sent again,
//! and a coordinator that hangs.

use crate::job::{Rank, config};
use backstay::config::{Redundancy, Tracking};
use backstay::{Communicator, Config, ErrorKind, Level, Session};
use backstay_base::io::fault;
use backstay_format::agent::Request;
use backstay_store::place::STORE_FILE;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::{Action, Fault, SimNetwork};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) const NODES: usize = 4;

/// What becomes of a job whose groups are formed anew.
struct Recomposed {
    former: Redundancy,
    starts: usize,
    lost: &'static [usize],
}

pub(crate) fn store_folder(folder: &Path, place: usize) -> PathBuf {
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
