// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stripe logs that a device does not give back: a job goes on without where its stores are whole, and what
//! such a log may name is neither given up nor overwritten before all is protected anew.

use crate::job::{Rank, config};
use backstay::config::Redundancy;
use backstay::{Communicator, Config, ErrorKind, Level};
use backstay_base::io::fault::{self, Access, Fault, Watch};
use backstay_net::Endpoint;
use backstay_store::stripe_log::LOG_FILES;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::device::EIO;
use backstay_testkit::network::{self, SimNetwork};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Of the restarts in which something cannot be read.
const SHORT_MS: u64 = 1_500;

fn node(folder: &Path, place: usize) -> Config {
    Config {
        node: Some(format!("n{place}")),
        store_path: Some(folder.join(format!("n{place}"))),
        listen_address: Some("127.0.0.1:0".to_owned()),
        redundancy: Redundancy::Xor,
        ..config(folder)
    }
}

/// One start of so many ranks, one a node.
fn start<T: Send>(
    (folder, ranks): (&Path, usize),
    network: &SimNetwork,
    change: impl Fn(&mut Config) + Sync,
    body: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    run_ranks(ThreadComm::new(ranks), |comm| {
        let place = usize::try_from(comm.rank()).unwrap();
        let mut config = node(folder, place);
        change(&mut config);
        let endpoint: Arc<dyn Endpoint> = network.endpoint(&format!("n{place}"));
        let mut rank = Rank::open_on(comm, config, Some(endpoint)).expect("opening");
        rank.settle().expect("protecting");
        body(&mut rank)
    })
}

fn short(config: &mut Config) {
    config.timeout_ms = SHORT_MS;
}

fn checkpoints(rank: &mut Rank, count: u64, level: Level) {
    for _ in 0..count {
        rank.compute();
        let handle = rank.session.checkpoint_start().unwrap();
        rank.session.wait(handle, level).unwrap();
    }
}

/// Checkpoints 1 to 4, of which the last is protected.
fn protected(folder: (&Path, usize)) {
    start(
        folder,
        &SimNetwork::new(1),
        |_| {},
        |rank| {
            checkpoints(rank, 3, Level::Node);
            checkpoints(rank, 1, Level::Protected);
        },
    );
}

fn restores(rank: &mut Rank, number: u64) -> Level {
    let restored = rank.session.restore().unwrap();
    assert_eq!((restored.checkpoint.number, rank.step), (number, number));
    assert_eq!(restored.fell_back, 0);
    rank.check();
    restored.level
}

fn logs(folder: &Path, place: usize) -> [PathBuf; 3] {
    let beside = folder.join(format!("n{place}/test job/n{place}"));
    LOG_FILES.map(|name| beside.join(name))
}

fn bytes(folder: &Path, place: usize) -> [Vec<u8>; 3] {
    logs(folder, place).map(|path| std::fs::read(path).unwrap())
}

fn wipe(folder: &Path, place: usize) {
    std::fs::remove_dir_all(folder.join(format!("n{place}"))).unwrap();
}

/// The sectors of the logs at `place` that stand there now cannot be read; others can that come in their place.
fn dead(folder: &Path, place: usize) -> Watch {
    use std::os::unix::fs::MetadataExt;
    let inode = |path: &Path| std::fs::metadata(path).map(|found| found.ino()).ok();
    let dead = logs(folder, place).map(|path| (inode(&path), path));
    fault::watch(folder, move |attempt| {
        let is_it = |(number, path): &(Option<u64>, PathBuf)| {
            attempt.path == path && number.is_some() && inode(path) == *number
        };
        let is_dead = attempt.access == Access::Read && dead.iter().any(is_it);
        is_dead.then_some(Fault::Fails(EIO))
    })
}

#[test]
fn a_job_goes_on_without_a_log_that_cannot_be_read_and_all_is_protected_anew() {
    let folder = tempfile::tempdir().unwrap();
    let three = (folder.path(), 3);
    protected(three);
    let before = bytes(folder.path(), 1);
    {
        let _dead = dead(folder.path(), 1);
        start(three, &SimNetwork::new(2), short, |rank| {
            assert_eq!(restores(rank, 4), Level::Node);
            checkpoints(rank, 2, Level::Protected);
        });
    }
    // Nothing is lost for whoever can read it after all.
    let aside = logs(folder.path(), 1).map(|path| path.with_extension("unread"));
    assert_eq!(aside.map(|path| std::fs::read(path).unwrap()), before);
    // What the new log says is true.
    for lost in [0, 1] {
        wipe(folder.path(), lost);
        start(
            three,
            &SimNetwork::new(3),
            |_| {},
            |rank| {
                assert_eq!(restores(rank, 6), Level::Protected);
            },
        );
    }
}

#[test]
fn a_log_that_can_be_read_the_next_time_was_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    let three = (folder.path(), 3);
    protected(three);
    let before = bytes(folder.path(), 1);
    {
        let _dead = dead(folder.path(), 1);
        start(three, &SimNetwork::new(2), short, |_| {});
    }
    assert_eq!(bytes(folder.path(), 1), before);
    wipe(folder.path(), 0);
    start(
        three,
        &SimNetwork::new(3),
        |_| {},
        |rank| {
            assert_eq!(restores(rank, 4), Level::Protected);
        },
    );
}

/// While nothing is protected anew, what the logs of the others name in this store stays.
#[test]
fn what_the_others_logs_name_is_not_written_over_before_all_is_protected_anew() {
    let folder = tempfile::tempdir().unwrap();
    let three = (folder.path(), 3);
    protected(three);
    {
        let _dead = dead(folder.path(), 1);
        let network = SimNetwork::new(2);
        start(three, &network, short, |rank| {
            network.set_hook(|attempt| {
                (attempt.from != attempt.to).then_some(network::Fault::Unreachable)
            });
            assert_eq!(restores(rank, 4), Level::Node);
            checkpoints(rank, 6, Level::Node);
        });
    }
    wipe(folder.path(), 0);
    start(
        three,
        &SimNetwork::new(3),
        |_| {},
        |rank| {
            assert_eq!(restores(rank, 4), Level::Protected);
            checkpoints(rank, 1, Level::Protected);
        },
    );
}

/// Of two nodes one is lost, and only the log of the other says how it is made again.
#[test]
fn what_only_a_log_tells_that_cannot_be_read_is_not_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let two = (folder.path(), 2);
    let archived = |config: &mut Config| {
        config.archive = Some(folder.path().join("pfs"));
        config.archive_every = Some(100);
        config.archive_reserve_bytes = Some(8 << 20);
    };
    start(two, &SimNetwork::new(1), archived, |rank| {
        checkpoints(rank, 1, Level::Archive);
        checkpoints(rank, 3, Level::Protected);
    });
    wipe(folder.path(), 0);
    let before = bytes(folder.path(), 1);
    let dying = |config: &mut Config| {
        archived(config);
        short(config);
    };
    {
        let _dead = dead(folder.path(), 1);
        start(two, &SimNetwork::new(2), dying, |rank| {
            let error = rank.session.restore().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unreadable, "{error}");
            let text = error.to_string();
            for word in ["stripes-", "restore_checkpoint", "[1]"] {
                assert!(text.contains(word), "{word:?} is not in {text}");
            }
        });
    }
    assert_eq!(bytes(folder.path(), 1), before);
    // Which can be read again.
    start(two, &SimNetwork::new(3), archived, |rank| {
        assert_eq!(restores(rank, 4), Level::Protected);
        checkpoints(rank, 1, Level::Protected);
    });
    wipe(folder.path(), 0);
    let _dead = dead(folder.path(), 1);
    // The choice of somebody: what is newer is given up.
    let named = |config: &mut Config| {
        dying(config);
        config.timeout_ms = 10_000;
        config.restore_checkpoint = Some(1);
    };
    start(two, &SimNetwork::new(4), named, |rank| {
        assert_eq!(restores(rank, 1), Level::Archive);
        checkpoints(rank, 1, Level::Protected);
    });
    let [first, ..] = logs(folder.path(), 1);
    assert!(first.with_extension("unread").exists());
}
