// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Root slots and catalog slots that a device never gives back again: what a restart does without being told,
//! and what it does when somebody names the checkpoint to go on from.

use crate::job::{Rank, config};
use backstay::config::Redundancy;
use backstay::format::geometry::{ROOT_BYTES, ROOT_OFFSETS, SUPERBLOCK_OFFSETS};
use backstay::format::{ArchiveRoot, ArchiveSuperblock, CatalogState, CatalogSuperblock};
use backstay::{Communicator, Config, Error, ErrorKind, Level};
use backstay_base::io::fault::{self, Access, Fault, Watch};
use backstay_base::io::file::FileDevice;
use backstay_net::Endpoint;
use backstay_store::place::STORE_BEING_MADE;
use backstay_store::reader::StoreReader;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::device::EIO;
use backstay_testkit::network::{self, SimNetwork};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Of the restarts in which something is wrong.
const SHORT_MS: u64 = 300;

fn node(folder: &Path, place: usize) -> Config {
    Config {
        node: Some(format!("n{place}")),
        store_path: Some(folder.join(format!("n{place}"))),
        listen_address: Some("127.0.0.1:0".to_owned()),
        ..config(folder)
    }
}

fn archived(folder: &Path, config: &mut Config) {
    config.archive = Some(folder.join("pfs"));
    config.archive_retained = 10;
    config.archive_reserve_bytes = Some(8 << 20);
}

fn short(config: &mut Config) {
    config.timeout_ms = SHORT_MS;
}

fn named(config: &mut Config, number: u64) {
    short(config);
    config.restore_checkpoint = Some(number);
}

/// One start of so many ranks, one a node; `body` gets how opening went.
fn start<T: Send>(
    network: &SimNetwork,
    (folder, ranks): (&Path, usize),
    change: impl Fn(&mut Config) + Sync,
    body: impl Fn(Result<&mut Rank, Error>) -> T + Sync,
) -> Vec<T> {
    run_ranks(ThreadComm::new(ranks), |comm| {
        let place = usize::try_from(comm.rank()).unwrap();
        let mut config = node(folder, place);
        change(&mut config);
        let endpoint: Arc<dyn Endpoint> = network.endpoint(&format!("n{place}"));
        match Rank::open_on(comm, config, Some(endpoint)) {
            Ok(mut rank) => {
                rank.settle().expect("protecting");
                body(Ok(&mut rank))
            }
            Err(error) => body(Err(error)),
        }
    })
}

/// The same where opening goes well.
fn well<T: Send>(
    folder: (&Path, usize),
    change: impl Fn(&mut Config) + Sync,
    body: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    start(&SimNetwork::new(1), folder, change, |rank| {
        body(rank.unwrap())
    })
}

/// The same where it does not: every rank has the words.
fn refused(folder: (&Path, usize), change: impl Fn(&mut Config) + Sync, words: &[&str]) {
    start(&SimNetwork::new(2), folder, change, |rank| {
        let error = rank.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreadable, "{error}");
        let text = error.to_string();
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text}");
        }
    });
}

fn checkpoints(rank: &mut Rank, count: u64, level: Level) {
    for _ in 0..count {
        rank.compute();
        let handle = rank.session.checkpoint_start().unwrap();
        rank.session.wait(handle, level).unwrap();
    }
}

fn restores(rank: &mut Rank, number: u64) -> Level {
    let restored = rank.session.restore().unwrap();
    assert_eq!((restored.checkpoint.number, rank.step), (number, number));
    rank.check();
    restored.level
}

fn store(folder: &Path, place: usize) -> PathBuf {
    folder.join(format!("n{place}/test job/n{place}/store.backstay"))
}

/// The slot with the newest root, and the checkpoints of either.
fn roots(path: &Path) -> (usize, [Vec<u64>; 2]) {
    let reader = StoreReader::open(Arc::new(FileDevice::open_read_only(path).unwrap())).unwrap();
    let (_, newest) = reader.newest_root().unwrap();
    let found = reader.roots().found(&reader.root_slots()).unwrap();
    let mut listed = [Vec::new(), Vec::new()];
    for (root, slot) in found.states {
        let numbers = root.revisions.iter().map(|r| r.checkpoint.number);
        listed[slot] = numbers.collect();
    }
    (newest, listed)
}

/// Sectors that cannot be read; one that is written to can be again, as devices do.
struct Dead(#[expect(dead_code, reason = "held")] Watch);

impl Dead {
    fn new(path: &Path, offsets: &[u64], length: usize) -> Self {
        let mut dead: Vec<(u64, AtomicBool)> = Vec::new();
        dead.extend(
            offsets
                .iter()
                .map(|&offset| (offset, AtomicBool::new(true))),
        );
        let length = u64::try_from(length).unwrap();
        let path = path.to_owned();
        // Of the file that takes its place: elsewhere on the device.
        let making = path.with_file_name(STORE_BEING_MADE);
        Self(fault::watch(
            path.clone().parent().unwrap(),
            move |attempt| {
                let is_it = attempt.path == path
                    || attempt.path == making && attempt.access == Access::Write;
                let hits = |offset: u64| {
                    let end = attempt.offset + attempt.length;
                    is_it && attempt.offset < offset + length && offset < end
                };
                for (_, is_dead) in dead.iter().filter(|(offset, _)| hits(*offset)) {
                    match attempt.access {
                        Access::Write => is_dead.store(false, Ordering::Relaxed),
                        Access::Read if is_dead.load(Ordering::Relaxed) => {
                            return Some(Fault::Fails(EIO));
                        }
                        _ => {}
                    }
                }
                None
            },
        ))
    }

    fn roots(path: &Path, slots: &[usize]) -> Self {
        let offsets: Vec<u64> = slots.iter().map(|&slot| ROOT_OFFSETS[slot]).collect();
        Self::new(path, &offsets, ROOT_BYTES)
    }
}

#[test]
fn a_dead_root_slot_is_passed_by_who_names_a_checkpoint_of_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let one = (folder.path(), 1);
    well(one, |_| {}, |rank| checkpoints(rank, 4, Level::Node));
    let path = store(folder.path(), 0);
    let (newest, listed) = roots(&path);
    let (other, number) = (&listed[1 - newest], *listed[1 - newest].last().unwrap());
    assert_eq!((number, listed[newest].last()), (3, Some(&4)));
    let before = std::fs::read(&path).unwrap();
    {
        let _dead = Dead::roots(&path, &[newest]);
        let lists = format!("{other:?}");
        refused(
            one,
            short,
            &["store.backstay", "restore_checkpoint", &lists],
        );
        // What is named has to be had, or nothing is given up.
        refused(one, |config| named(config, 4), &["checkpoint 4", &lists]);
        // Nor for anything but its restore.
        well(
            one,
            |config| named(config, 3),
            |rank| {
                rank.compute();
                let error = rank.session.checkpoint().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unreadable, "{error}");
                assert!(error.to_string().contains("restore it first"), "{error}");
            },
        );
    }
    let roots_of = |bytes: &[u8]| bytes[to_usize(ROOT_OFFSETS[0])..][..2 * ROOT_BYTES].to_vec();
    let after = std::fs::read(&path).unwrap();
    assert!(
        roots_of(&before) == roots_of(&after),
        "nothing was given up"
    );
    {
        let _dead = Dead::roots(&path, &[newest]);
        well(
            one,
            |config| named(config, 3),
            |rank| {
                assert_eq!(restores(rank, 3), Level::Node);
                checkpoints(rank, 2, Level::Node);
            },
        );
    }
    well(one, |_| {}, |rank| restores(rank, 5));
}

fn to_usize(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

#[test]
fn a_dead_slot_that_cannot_be_written_either_leaves_what_is_there_and_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let one = (folder.path(), 1);
    well(one, |_| {}, |rank| checkpoints(rank, 4, Level::Node));
    let path = store(folder.path(), 0);
    let (newest, _) = roots(&path);
    {
        let dead = ROOT_OFFSETS[newest];
        let _watch = fault::watch(folder.path(), move |attempt| {
            let end = attempt.offset + attempt.length;
            let hits = attempt.offset <= dead && dead < end && attempt.access <= Access::Write;
            hits.then_some(Fault::Fails(EIO))
        });
        well(
            one,
            |config| named(config, 3),
            |rank| {
                let error = rank.session.restore().unwrap_err();
                assert!(error.to_string().contains("noerror"), "{error}");
            },
        );
    }
    // As the copy has it that the message asks for: what cannot be read is zeros.
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[to_usize(ROOT_OFFSETS[newest])..][..ROOT_BYTES].fill(0);
    std::fs::write(&path, bytes).unwrap();
    well(one, |config| named(config, 3), |rank| restores(rank, 3));
}

#[test]
fn a_store_of_which_nothing_can_be_read_is_as_a_lost_one_for_who_names_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let one = (folder.path(), 1);
    let with_archive = |config: &mut Config| archived(folder.path(), config);
    well(one, with_archive, |rank| {
        checkpoints(rank, 3, Level::Archive);
        checkpoints(rank, 1, Level::Node);
    });
    let path = store(folder.path(), 0);
    for (offsets, length) in [(ROOT_OFFSETS, ROOT_BYTES), (SUPERBLOCK_OFFSETS, 1)] {
        let _dead = Dead::new(&path, &offsets, length);
        let unnamed = |config: &mut Config| {
            with_archive(config);
            short(config);
        };
        refused(
            one,
            unnamed,
            &["restore_checkpoint", "store.backstay", "3]"],
        );
        let four = |config: &mut Config| {
            with_archive(config);
            named(config, 4);
        };
        refused(one, four, &["checkpoint 4"]);
        assert!(path.exists(), "it may be read again");
    }
    let dead = Mutex::new(Some(Dead::roots(&path, &[0, 1])));
    let two = |config: &mut Config| {
        with_archive(config);
        named(config, 2);
    };
    well(one, two, |rank| {
        assert_eq!(restores(rank, 2), Level::Archive);
        // The store that is made in its place has other sectors.
        drop(dead.lock().unwrap().take());
        checkpoints(rank, 1, Level::Node);
    });
    assert!(path.with_extension("unread").exists());
    well(one, with_archive, |rank| restores(rank, 3));
}

#[test]
fn a_store_that_is_damaged_is_as_a_lost_one_where_the_archive_has_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let two = (folder.path(), 2);
    let with_archive = |config: &mut Config| archived(folder.path(), config);
    well(two, with_archive, |rank| {
        checkpoints(rank, 3, Level::Archive);
        checkpoints(rank, 1, Level::Node);
    });
    let path = store(folder.path(), 0);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    for offset in ROOT_OFFSETS {
        file.write_all_at(&[0xff; 64], offset + 8).unwrap();
    }
    // Without the archive nothing can be had, and nothing is begun anew over what is there.
    start(&SimNetwork::new(4), two, short, |rank| {
        let error = rank.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("store.backstay"), "{error}");
    });
    assert!(path.exists());
    well(two, with_archive, |rank| {
        assert_eq!(restores(rank, 3), Level::Archive);
        checkpoints(rank, 1, Level::Node);
    });
    assert!(path.with_extension("damaged").exists());
    well(two, with_archive, |rank| restores(rank, 4));
}

/// Checkpoints of three nodes under XOR: 4, which is protected; or 6 after 5, which is.
fn protected(folder: &Path, last: bool) {
    let network = SimNetwork::new(3);
    start(&network, (folder, 3), xor, |rank| {
        let rank = rank.unwrap();
        checkpoints(rank, if last { 3 } else { 4 }, Level::Node);
        checkpoints(rank, 1, Level::Protected);
        if !last {
            network.set_hook(|attempt| {
                (attempt.from != attempt.to).then_some(network::Fault::Unreachable)
            });
            checkpoints(rank, 1, Level::Node);
        }
    });
}

fn xor(config: &mut Config) {
    config.redundancy = Redundancy::Xor;
}

#[test]
fn a_store_that_cannot_be_read_is_made_again_for_the_same_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let three = (folder.path(), 3);
    protected(folder.path(), true);
    let path = store(folder.path(), 1);
    let (newest, _) = roots(&path);
    let _dead = Dead::roots(&path, &[newest]);
    let change = |config: &mut Config| {
        xor(config);
        config.timeout_ms = 5_000;
    };
    well(three, change, |rank| {
        assert_eq!(restores(rank, 4), Level::Protected);
        checkpoints(rank, 1, Level::Protected);
    });
    assert!(path.with_extension("aside").exists());
}

#[test]
fn a_store_that_cannot_be_read_is_not_made_again_older_than_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let three = (folder.path(), 3);
    protected(folder.path(), false);
    let path = store(folder.path(), 1);
    let (newest, listed) = roots(&path);
    assert_eq!(listed[newest].last(), Some(&6));
    {
        let _dead = Dead::roots(&path, &[0, 1]);
        let change = |config: &mut Config| {
            xor(config);
            config.timeout_ms = 1_000;
        };
        refused(three, change, &["store.backstay", "restore_checkpoint"]);
        assert!(!path.with_extension("aside").exists());
    }
    well(three, xor, |rank| {
        assert_eq!(restores(rank, 6), Level::Node);
    });
}

#[test]
fn parity_gives_the_store_of_which_nothing_can_be_read_to_who_names_what_it_protects() {
    let folder = tempfile::tempdir().unwrap();
    let three = (folder.path(), 3);
    protected(folder.path(), false);
    let path = store(folder.path(), 1);
    let _dead = Dead::roots(&path, &[0, 1]);
    let change = |config: &mut Config| {
        xor(config);
        config.timeout_ms = 5_000;
        config.restore_checkpoint = Some(5);
    };
    well(three, change, |rank| {
        assert_eq!(restores(rank, 5), Level::Protected);
        checkpoints(rank, 1, Level::Protected);
    });
}

/// The catalog's file and its slots, and which holds the newest state.
fn catalog(folder: &Path) -> (PathBuf, [u64; 2], usize, usize) {
    let path = folder.join("pfs/test job/catalog-1.backstay");
    let bytes = std::fs::read(&path).unwrap();
    let superblock = CatalogSuperblock::decode(&bytes).unwrap();
    let offsets = [0, 1].map(|slot| superblock.slot_offset(slot));
    let sequence = |offset: &u64| {
        let state = CatalogState::decode(&bytes[to_usize(*offset)..], superblock.catalog);
        state.unwrap().sequence
    };
    let newest = usize::from(sequence(&offsets[1]) > sequence(&offsets[0]));
    let slot_bytes = usize::try_from(superblock.slot_bytes).unwrap();
    (path, offsets, newest, slot_bytes)
}

#[test]
fn a_dead_slot_of_the_catalog_is_passed_by_who_names_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let one = (folder.path(), 1);
    let with_archive = |config: &mut Config| archived(folder.path(), config);
    let unnamed = |config: &mut Config| {
        with_archive(config);
        short(config);
    };
    let two = |config: &mut Config| {
        with_archive(config);
        named(config, 2);
    };
    well(one, with_archive, |rank| {
        checkpoints(rank, 3, Level::Archive);
    });
    // Only the archive has 2 now.
    std::fs::remove_dir_all(folder.path().join("n0")).unwrap();
    let (path, offsets, newest, slot_bytes) = catalog(folder.path());
    {
        let _dead = Dead::new(&path, &offsets, slot_bytes);
        refused(one, unnamed, &["catalog-1.backstay", "move the file away"]);
        refused(one, two, &["catalog-1.backstay", "move the file away"]);
    }
    let before = std::fs::read(&path).unwrap();
    let _dead = Dead::new(&path, &offsets[newest..=newest], slot_bytes);
    refused(one, unnamed, &["catalog-1.backstay", "restore_checkpoint"]);
    let three = |config: &mut Config| {
        with_archive(config);
        named(config, 3);
    };
    well(one, three, |rank| {
        let error = rank.session.restore().unwrap_err();
        assert!(error.to_string().contains("[1, 2]"), "{error}");
    });
    let next = path.with_file_name("catalog-2.backstay");
    assert!(std::fs::read(&path).unwrap() == before && !next.exists());
    let two = |config: &mut Config| {
        two(config);
        config.timeout_ms = 10_000;
    };
    well(one, two, |rank| {
        assert_eq!(restores(rank, 2), Level::Archive);
        checkpoints(rank, 1, Level::Archive);
    });
    // What it goes on with does not stand where nothing can be read.
    assert!(next.exists());
    std::fs::remove_dir_all(folder.path().join("n0")).unwrap();
    well(one, unnamed, |rank| {
        assert_eq!(restores(rank, 3), Level::Archive);
    });
}

#[test]
fn a_dead_root_slot_of_an_archive_file_is_passed_by_who_names_a_checkpoint_of_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let one = (folder.path(), 1);
    let with_archive = |config: &mut Config| archived(folder.path(), config);
    well(one, with_archive, |rank| {
        checkpoints(rank, 3, Level::Archive);
    });
    std::fs::remove_dir_all(folder.path().join("n0")).unwrap();
    let path = folder.path().join("pfs/test job/aggregate-0-1.backstay");
    let bytes = std::fs::read(&path).unwrap();
    let superblock = ArchiveSuperblock::decode(&bytes).unwrap();
    let sequence = |slot: usize| {
        let bytes = &bytes[to_usize(ROOT_OFFSETS[slot])..][..ROOT_BYTES];
        ArchiveRoot::decode(bytes, superblock.store)
            .unwrap()
            .sequence
    };
    let newest = usize::from(sequence(1) > sequence(0));
    let _dead = Dead::roots(&path, &[newest]);
    let unnamed = |config: &mut Config| {
        with_archive(config);
        short(config);
    };
    well(one, unnamed, |rank| {
        let error = rank.session.restore().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreadable, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("aggregate-0-1") && text.contains("restore_checkpoint"),
            "{text}"
        );
    });
    let two = |config: &mut Config| {
        with_archive(config);
        config.timeout_ms = 3_000;
        config.restore_checkpoint = Some(2);
    };
    well(one, two, |rank| {
        assert_eq!(restores(rank, 2), Level::Archive);
        // All of it goes to a file that can be read.
        checkpoints(rank, 1, Level::Archive);
    });
    assert!(path.with_file_name("aggregate-0-2.backstay").exists());
    std::fs::remove_dir_all(folder.path().join("n0")).unwrap();
    well(one, unnamed, |rank| {
        assert_eq!(restores(rank, 3), Level::Archive);
    });
}
