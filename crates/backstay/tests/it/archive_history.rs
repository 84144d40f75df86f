// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drains that write deltas to earlier checkpoints: what comes back, what it takes, and how long
//! that is kept which others are a delta to.

use crate::job::config;
use backstay::config::ArchiveCodec;
use backstay::{CheckpointId, Communicator, Config, ElementType, Level, Session, Variable};
use backstay_archive::drain::fetch::open_device;
use backstay_archive::{ArchiveDevice, Catalog};
use backstay_format::{SegmentClass, SegmentHeader, SegmentId, TableEntry};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::seeded::Seeded;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const WEIGHTS: usize = 150_000;
const MOMENTS: usize = 40_000;

fn node(folder: &Path, place: usize) -> Config {
    Config {
        node: Some(format!("n{place}")),
        store_path: Some(folder.join(format!("n{place}"))),
        listen_address: Some("127.0.0.1:0".to_owned()),
        archive: Some(folder.join("pfs")),
        archive_retained: 30,
        archive_codec: ArchiveCodec::Ratio,
        archive_reserve_bytes: Some(8 << 20),
        // Loaded machines drain slowly, and nothing here is about how long it takes.
        timeout_ms: 120_000,
        ..config(folder)
    }
}

fn archive(folder: &Path) -> PathBuf {
    folder.join("pfs").join("test job")
}

fn wipe(folder: &Path, nodes: usize) {
    for place in 0..nodes {
        drop(std::fs::remove_dir_all(folder.join(format!("n{place}"))));
    }
}

/// A number from -0.5 to 0.5 that looks random.
fn unit(of: u64) -> f64 {
    let mut word = of.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let bits = u32::try_from((word ^ (word >> 31)) >> 32).unwrap();
    f64::from(bits) / f64::from(u32::MAX) - 0.5
}

/// Numbers that change a little from step to step, all of them, as the weights of a network do.
fn slow(rank: u64, place: usize, step: u64, change: f64) -> f64 {
    let place = u64::try_from(place).unwrap() + (rank << 32);
    let four = (0..4).map(|part| unit(place * 4 + part)).sum::<f64>();
    let walked = f64::from(u32::try_from(step).unwrap()).sqrt();
    0.05 * four + change * walked * unit(place ^ (step << 44))
}

/// A rank with weights and moments that change slowly.
struct Net {
    session: Session,
    rank: u64,
    weights: Vec<f32>,
    moments: Vec<f64>,
    step: Vec<u64>,
}

impl Net {
    fn open(comm: ThreadComm, config: Config, weights: usize) -> Self {
        let rank = u64::from(comm.rank());
        let mut new = Self {
            session: Session::open(Box::new(comm), config).unwrap(),
            rank,
            weights: vec![0.0; weights],
            moments: vec![0.0; MOMENTS],
            step: vec![0],
        };
        for (name, element, address, length) in [
            (
                "weights",
                ElementType::F32,
                new.weights.as_mut_ptr().cast(),
                weights,
            ),
            (
                "moments",
                ElementType::F64,
                new.moments.as_mut_ptr().cast(),
                MOMENTS,
            ),
            ("step", ElementType::U64, new.step.as_mut_ptr().cast(), 1),
        ] {
            let shape = [u64::try_from(length).unwrap()];
            let variable = Variable::new(name, element, &shape);
            // SAFETY: what vectors hold is not moved while the session starts.
            unsafe { new.session.protect(variable, address).unwrap() };
        }
        new
    }

    #[expect(clippy::cast_possible_truncation, reason = "weights are short")]
    fn at(&self, step: u64) -> (Vec<f32>, Vec<f64>) {
        let weight = |place| slow(self.rank, place, step, 1e-4) as f32;
        let moment = |place| slow(self.rank + 100, place, step, 1e-9);
        (
            (0..self.weights.len()).map(weight).collect(),
            (0..MOMENTS).map(moment).collect(),
        )
    }

    fn advance(&mut self) {
        self.step[0] += 1;
        let (weights, moments) = self.at(self.step[0]);
        self.weights.copy_from_slice(&weights);
        self.moments.copy_from_slice(&moments);
    }

    fn archived(&mut self) -> CheckpointId {
        self.advance();
        let handle = self.session.checkpoint_start().unwrap();
        self.session.wait(handle, Level::Archive).unwrap();
        handle.checkpoint()
    }

    fn check(&self, step: u64) {
        assert_eq!(self.step[0], step);
        let (weights, moments) = self.at(step);
        let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&weights) == bits(&self.weights), "weights of {step}");
        let bits = |all: &[f64]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(&moments) == bits(&self.moments), "moments of {step}");
    }
}

fn start<T: Send>(
    folder: &Path,
    nodes: usize,
    change: impl Fn(&mut Config) + Sync,
    body: impl Fn(&mut Net) -> T + Sync,
) -> Vec<T> {
    run_ranks(ThreadComm::new(nodes), |comm| {
        let place = usize::try_from(comm.rank()).unwrap();
        let mut config = node(folder, place);
        change(&mut config);
        let mut net = Net::open(comm, config, WEIGHTS);
        let done = body(&mut net);
        net.session.close().unwrap();
        done
    })
}

/// The newest file of each aggregator.
fn stores(folder: &Path) -> Vec<Arc<ArchiveDevice>> {
    let mut newest: BTreeMap<String, (u32, String)> = BTreeMap::new();
    for entry in std::fs::read_dir(archive(folder)).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        let Some(middle) = name
            .strip_prefix("aggregate-")
            .and_then(|name| name.strip_suffix(".backstay"))
        else {
            continue;
        };
        let (aggregator, epoch) = middle.split_once('-').unwrap();
        let epoch = epoch.parse().unwrap();
        let known = newest.entry(aggregator.to_owned()).or_default();
        if epoch > known.0 {
            *known = (epoch, name);
        }
    }
    let names = newest.into_values();
    names
        .map(|(_, name)| open_device(&archive(folder), &name).unwrap())
        .collect()
}

/// All segments, and that no base has bases itself.
fn segments(folder: &Path) -> Vec<(TableEntry, SegmentHeader)> {
    let mut all = Vec::new();
    for store in stores(folder) {
        for entry in store.entries() {
            let header = store.header(entry.segment).unwrap();
            assert_eq!(entry.delta, !header.bases.is_empty());
            for run in &header.bases {
                let base = store
                    .entry(run.base.segment())
                    .expect("a base that is there");
                assert!(!base.delta, "a delta to a delta");
            }
            all.push((entry, header));
        }
    }
    all
}

/// For each checkpoint, by number: segments of blocks that are bases, and that are deltas.
fn written(folder: &Path) -> BTreeMap<u64, [usize; 2]> {
    let mut counts: BTreeMap<u64, [usize; 2]> = BTreeMap::new();
    for (entry, header) in segments(folder) {
        // Small ones, as the one with the step, are whole.
        if entry.class == SegmentClass::Blocks && entry.decoded_bytes > 100_000 {
            let count = counts.entry(header.checkpoint.number).or_default();
            count[usize::from(entry.delta)] += 1;
        }
    }
    counts
}

fn stored_bytes(folder: &Path) -> u64 {
    let catalog = Catalog::open_reader(&archive(folder)).unwrap();
    let checkpoints = catalog.state().checkpoints.iter();
    checkpoints.map(|entry| entry.bytes_written).sum()
}

#[test]
fn slow_changes_are_stored_as_deltas_and_every_checkpoint_comes_back() {
    let mut stored = Vec::new();
    for history in [0, 8] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let with = |config: &mut Config| config.archive_history = Some(history);
        start(folder, 2, with, |net| {
            for _ in 0..10 {
                net.archived();
            }
        });
        stored.push(stored_bytes(folder));
        let deltas = segments(folder).iter().filter(|(e, _)| e.delta).count();
        assert_eq!(deltas > 0, history > 0);
        for number in (1..=10).rev() {
            wipe(folder, 2);
            start(folder, 2, with, |net| {
                let restored = net.session.restore_from(number).unwrap();
                assert_eq!(restored.checkpoint.number, number);
                net.check(number);
            });
        }
    }
    let [without, with] = stored[..] else {
        panic!()
    };
    assert!(with * 100 < without * 75, "{with} of {without} bytes");
}

#[test]
fn by_default_deltas_are_written_where_the_ratio_counts() {
    for (codec, asked, expected) in [
        (ArchiveCodec::Ratio, None, true),
        (ArchiveCodec::Auto, None, false),
        (ArchiveCodec::Raw, Some(8), false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let with = |config: &mut Config| {
            config.archive_codec = codec;
            config.archive_history = asked;
        };
        start(folder, 1, with, |net| {
            for _ in 0..2 {
                net.archived();
            }
        });
        let found = segments(folder).iter().any(|(entry, _)| entry.delta);
        assert_eq!(found, expected, "{codec:?}");
    }
}

#[test]
fn a_few_blocks_are_not_worth_reading_whole_bases() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(
        folder,
        1,
        |_| {},
        |net| {
            net.archived();
            for weight in net.weights.iter_mut().take(2 * BLOCK) {
                *weight *= 1.001;
            }
            let handle = net.session.checkpoint_start().unwrap();
            net.session.wait(handle, Level::Archive).unwrap();
        },
    );
    let of_second = segments(folder).into_iter();
    let of_second = of_second.filter(|(_, header)| header.checkpoint.number == 2);
    let deltas: Vec<bool> = of_second.map(|(entry, _)| entry.delta).collect();
    assert!(!deltas.is_empty() && !deltas.contains(&true));
}

#[test]
fn a_base_serves_so_many_drains_also_over_starts() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let three = |config: &mut Config| config.archive_history = Some(3);
    start(folder, 1, three, |net| {
        for _ in 0..6 {
            net.archived();
        }
    });
    for number in [6, 7] {
        start(folder, 1, three, |net| {
            assert_eq!(net.session.restore().unwrap().checkpoint.number, number);
            net.check(number);
            net.archived();
        });
    }
    wipe(folder, 1);
    start(folder, 1, three, |net| {
        assert_eq!(net.session.restore().unwrap().checkpoint.number, 8);
        for _ in 0..6 {
            net.archived();
        }
    });
    for (number, [bases, deltas]) in written(folder) {
        let is_base = number % 4 == 1;
        assert_eq!((bases > 0, deltas > 0), (is_base, !is_base), "{number}");
    }
}

#[test]
fn what_nothing_needs_goes_and_the_file_does_not_grow() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let few = |config: &mut Config| config.archive_retained = 2;
    let most = start(folder, 2, few, |net| {
        let mut most = 0;
        for number in 1..=40 {
            net.archived();
            if net.rank == 0 && number > 10 {
                most = most.max(segments(folder).len());
            }
        }
        most
    });
    // A base, deltas of two checkpoints, and parts: of two variables, in two files.
    assert!(most[0] <= 2 * 2 * 2 * 4, "{most:?}");
    let files = std::fs::read_dir(archive(folder)).unwrap();
    let bytes: u64 = files
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("aggregate"))
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    assert!(bytes <= 2 * (13 << 20), "{bytes} bytes");
    wipe(folder, 2);
    start(folder, 2, few, |net| {
        assert_eq!(net.session.restore().unwrap().checkpoint.number, 40);
        net.check(40);
    });
}

/// Makes the proof go away that the former writer is dead: the next one takes over.
fn forget_fences(folder: &Path) {
    for store in stores(folder) {
        let lock = format!("{}.lock", store.superblock().store);
        let parents = ["/dev/shm".into(), std::env::temp_dir()];
        for parent in parents {
            for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
                if entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with("backstay-archive-")
                {
                    drop(std::fs::remove_file(entry.path().join(&lock)));
                }
            }
        }
    }
}

#[test]
fn a_successor_writes_deltas_to_bases_of_its_predecessor() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let eight = |config: &mut Config| config.archive_history = Some(8);
    start(folder, 1, eight, |net| {
        net.archived();
        net.archived();
    });
    for number in 2..5 {
        forget_fences(folder);
        wipe(folder, 1);
        start(folder, 1, eight, |net| {
            assert_eq!(net.session.restore().unwrap().checkpoint.number, number);
            net.check(number);
            net.archived();
        });
    }
    let store = &stores(folder)[0];
    assert!(store.superblock().epoch > 1, "nobody took over");
    let across = segments(folder).into_iter().any(|(entry, header)| {
        let base = header.bases.first();
        let base = base.and_then(|run| store.entry(run.base.segment()));
        base.is_some_and(|base| base.file != entry.file)
    });
    assert!(across, "no delta to what the predecessor wrote");
    wipe(folder, 1);
    start(folder, 1, eight, |net| {
        net.session.restore_from(3).unwrap();
        net.check(3);
    });
}

/// Flips a byte in the payload of each of these.
fn damage(folder: &Path, which: impl Fn(&TableEntry, &SegmentHeader) -> bool) -> usize {
    let mut count = 0;
    for store in stores(folder) {
        let epoch = store.superblock().epoch;
        let name = backstay_archive::store_file(store.superblock().aggregator, epoch);
        let path = archive(folder).join(name);
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).open(path).unwrap();
        for entry in store.entries().iter().filter(|entry| entry.file == 0) {
            if which(entry, &store.header(entry.segment).unwrap()) {
                let at = entry.offset + u64::from(entry.stored_bytes) - 9;
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                file.write_all_at(&[byte[0] ^ 0x20], at).unwrap();
                count += 1;
            }
        }
    }
    count
}

fn is_base_of_first(entry: &TableEntry, header: &SegmentHeader) -> bool {
    header.checkpoint.number == 1 && entry.decoded_bytes > 100_000
}

#[test]
fn with_a_damaged_base_a_drain_writes_keys() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(
        folder,
        1,
        |_| {},
        |net| {
            net.archived();
            net.archived();
        },
    );
    assert!(written(folder)[&2][1] > 0);
    assert!(damage(folder, is_base_of_first) > 0);
    start(
        folder,
        1,
        |_| {},
        |net| {
            assert_eq!(net.session.restore().unwrap().checkpoint.number, 2);
            net.check(2);
            net.archived();
            net.archived();
        },
    );
    let found = written(folder);
    assert!(found[&3][0] > 0 && found[&3][1] == 0, "{found:?}");
    assert!(found[&4][1] > 0 && found[&4][0] == 0, "{found:?}");
    wipe(folder, 1);
    start(
        folder,
        1,
        |_| {},
        |net| {
            assert_eq!(net.session.restore().unwrap().checkpoint.number, 4);
            net.check(4);
        },
    );
}

#[test]
fn checkpoints_with_a_damaged_base_are_passed_over_at_restart() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let two = |config: &mut Config| config.archive_history = Some(2);
    start(folder, 1, two, |net| {
        for _ in 0..5 {
            net.archived();
        }
    });
    // 4 is a base, 5 a delta to it, 1 to 3 have nothing to do with them.
    let of_4 = |entry: &TableEntry, header: &SegmentHeader| {
        header.checkpoint.number == 4 && header.variable == "weights" && !entry.delta
    };
    assert!(damage(folder, of_4) > 0);
    wipe(folder, 1);
    start(folder, 1, two, |net| {
        let refused = net.session.restore_from(5).unwrap_err();
        assert_eq!(refused.kind(), backstay::ErrorKind::Corrupt, "{refused}");
        assert!(refused.to_string().contains("segment"), "{refused}");
    });
    wipe(folder, 1);
    start(folder, 1, two, |net| {
        assert_eq!(net.session.restore().unwrap().checkpoint.number, 3);
        net.check(3);
    });
}

/// What one rank has: bytes by variable, and the memory that the session sees.
type Memory = BTreeMap<&'static str, Vec<u32>>;

/// Changes some of it: a few blocks, all of it a little, another length, or all of it.
fn mutate(memory: &mut Memory, seeded: &mut Seeded) {
    for words in memory.values_mut() {
        match seeded.below(6) {
            0 => {}
            1 => {
                let length = 20_000 + seeded.index(60_000);
                words.resize(length, 0x3f80_0000);
            }
            2 => words
                .iter_mut()
                .for_each(|word| *word = u32::try_from(seeded.next_u64() >> 32).unwrap()),
            3 | 4 => {
                for word in words.iter_mut() {
                    *word = word.wrapping_add(u32::try_from(seeded.below(500)).unwrap());
                }
            }
            _ => {
                for _ in 0..5 {
                    let at = seeded.index(words.len());
                    words[at] ^= 0x4d;
                }
            }
        }
    }
}

/// One start with this many ranks, which goes on from `from`; what each checkpoint of it was, for each rank.
fn random_start(
    folder: &Path,
    seed: u64,
    ranks: usize,
    from: Option<(u64, &[Memory])>,
    drains: usize,
) -> Vec<BTreeMap<u64, Memory>> {
    run_ranks(ThreadComm::new(ranks), |comm| {
        let rank = comm.rank();
        let place = usize::try_from(rank).unwrap();
        let mut config = node(folder, place);
        config.archive_retained = 3;
        config.archive_history = Some(3);
        config.block_bytes = 4096;
        let mut session = Session::open(Box::new(comm), config).unwrap();
        let mut seeded = Seeded::of(&[seed, u64::from(rank)]);
        let mut memory: Memory = match from {
            Some((_, memories)) => memories[place].clone(),
            None => ["a", "b"].map(|name| (name, vec![1; 50_000])).into(),
        };
        let protect = |session: &mut Session, memory: &mut Memory| {
            for (name, words) in memory {
                let shape = [u64::try_from(words.len()).unwrap()];
                let variable = Variable::new(name, ElementType::F32, &shape);
                // SAFETY: `memory` outlives the session, and is protected again when it moved.
                unsafe {
                    session
                        .protect(variable, words.as_mut_ptr().cast())
                        .unwrap();
                };
            }
        };
        if let Some((number, memories)) = from {
            for words in memory.values_mut() {
                words.fill(9);
            }
            protect(&mut session, &mut memory);
            assert_eq!(session.restore().unwrap().checkpoint.number, number);
            assert!(memory == memories[place], "rank {rank} of {number}");
        }
        let mut taken = BTreeMap::new();
        for _ in 0..drains {
            mutate(&mut memory, &mut seeded);
            protect(&mut session, &mut memory);
            let handle = session.checkpoint_start().unwrap();
            session.wait(handle, Level::Archive).unwrap();
            taken.insert(handle.checkpoint().number, memory.clone());
        }
        session.close().unwrap();
        taken
    })
}

#[test]
fn whatever_changes_every_start_goes_on_with_what_was_there() {
    for seed in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut last: Option<(u64, Vec<Memory>)> = None;
        for step in 0..6 {
            let from = last.as_ref().map(|(number, all)| (*number, &all[..]));
            let taken = random_start(folder, seed * 100 + step, 2, from, 4);
            segments(folder);
            let newest = *taken[0].last_key_value().unwrap().0;
            let all = taken.iter().map(|rank| rank[&newest].clone()).collect();
            last = Some((newest, all));
            wipe(folder, 2);
            if step % 3 == 2 {
                forget_fences(folder);
            }
        }
        let found: BTreeSet<bool> = segments(folder).iter().map(|(e, _)| e.delta).collect();
        assert_eq!(found.len(), 2, "bases and deltas");
    }
}

/// Deltas that a drain has made durable, and has not ended.
fn durable_deltas(folder: &Path) -> BTreeSet<SegmentId> {
    let durable = segments(folder).into_iter();
    let durable = durable.filter(|(entry, _)| entry.draining && entry.delta);
    durable.map(|(entry, _)| entry.segment).collect()
}

#[test]
fn an_interrupted_drain_goes_on_with_the_deltas_that_it_stored() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = |slowly: bool, body: &(dyn Fn(&mut Net) + Sync)| {
        run_ranks(ThreadComm::new(1), |comm| {
            let mut config = node(folder, 0);
            if slowly {
                config.archive_rate_bytes = Some(1 << 20);
            }
            let mut net = Net::open(comm, config, 4_000_000);
            body(&mut net);
            // Dropped, a session abandons what drains.
            if !slowly {
                net.session.close().unwrap();
            }
        });
    };
    run(false, &|net| {
        net.archived();
    });
    run(true, &|net| {
        net.session.restore().unwrap();
        net.advance();
        let handle = net.session.checkpoint_start().unwrap();
        net.session.wait(handle, Level::Node).unwrap();
        // However slow the machine is: it is interrupted once something is durable.
        while durable_deltas(folder).is_empty() {
            let over = net.session.test(&handle, Level::Archive).unwrap();
            assert!(!over, "the drain ended, and nothing was seen of it");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let left = durable_deltas(folder);
    assert!(!left.is_empty(), "nothing was durable");
    run(false, &|net| {
        assert_eq!(net.session.restore().unwrap().checkpoint.number, 2);
        let handle = net.session.checkpoint_start().unwrap();
        net.session.wait(handle, Level::Archive).unwrap();
    });
    let kept = segments(folder);
    let kept: BTreeSet<_> = kept.iter().map(|(entry, _)| entry.segment).collect();
    assert!(left.is_subset(&kept), "what was stored was stored again");
    wipe(folder, 1);
    run(false, &|net| {
        assert_eq!(net.session.restore().unwrap().checkpoint.number, 3);
        net.check(2);
        net.archived();
    });
}

/// A grid in rows over any number of ranks, of values that change slowly.
fn grid_start(folder: &Path, ranks: usize, from: u64, drains: u64) {
    const ROWS: u64 = 96;
    const COLUMNS: u64 = 3000;
    run_ranks(ThreadComm::new(ranks), |comm| {
        let (rank, size) = (u64::from(comm.rank()), u64::from(comm.size()));
        let place = usize::try_from(rank).unwrap();
        let mut session = Session::open(Box::new(comm), node(folder, place)).unwrap();
        let (low, high) = (ROWS * rank / size, ROWS * (rank + 1) / size);
        let cells =
            usize::try_from(low * COLUMNS).unwrap()..usize::try_from(high * COLUMNS).unwrap();
        let at = |step: u64| -> Vec<f64> {
            cells
                .clone()
                .map(|cell| slow(7, cell, step, 1e-9))
                .collect()
        };
        let mut grid = vec![0.0; cells.len()];
        let variable = Variable::new("grid", ElementType::F64, &[high - low, COLUMNS])
            .slab(&[ROWS, COLUMNS], &[low, 0]);
        // SAFETY: `grid` outlives the session.
        unsafe { session.protect(variable, grid.as_mut_ptr().cast()).unwrap() };
        if from > 0 {
            assert_eq!(session.restore().unwrap().checkpoint.number, from);
            let bits = |all: &[f64]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(bits(&grid) == bits(&at(from)), "{from} on {ranks}");
        }
        for step in from + 1..=from + drains {
            grid.copy_from_slice(&at(step));
            let handle = session.checkpoint_start().unwrap();
            session.wait(handle, Level::Archive).unwrap();
        }
        session.close().unwrap();
    });
}

#[test]
fn ranks_may_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut from = 0;
    for ranks in [3, 2, 4, 4, 1, 3] {
        grid_start(folder, ranks, from, 2);
        segments(folder);
        wipe(folder, ranks);
        from += 2;
    }
    assert!(segments(folder).iter().any(|(entry, _)| entry.delta));
    grid_start(folder, 2, from, 0);
}

/// Elements of a block.
const BLOCK: usize = 4096;

/// When block `block` was last changed at `step`: all of them until 4, then some of them.
fn changed(block: usize, step: u64) -> u64 {
    match (step, block % 5) {
        (..5, _) => step,
        (_, 0) => 4,
        (5, _) | (6, 2..) => 5,
        _ => step,
    }
}

#[test]
fn what_lives_in_thin_deltas_is_moved() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = |body: &(dyn Fn(&mut Session, &mut [f32]) + Sync)| {
        run_ranks(ThreadComm::new(1), |comm| {
            let mut session = Session::open(Box::new(comm), node(folder, 0)).unwrap();
            let mut weights = vec![0.0_f32; 3_000_000];
            let shape = [u64::try_from(weights.len()).unwrap()];
            let variable = Variable::new("weights", ElementType::F32, &shape);
            // SAFETY: `weights` outlives the session.
            unsafe {
                session
                    .protect(variable, weights.as_mut_ptr().cast())
                    .unwrap();
            };
            body(&mut session, &mut weights);
            session.close().unwrap();
        });
    };
    #[expect(clippy::cast_possible_truncation, reason = "weights are short")]
    let at = |place: usize, step| slow(0, place, changed(place / BLOCK, step), 1e-4) as f32;
    run(&|session, weights| {
        for step in 1..=6 {
            for (place, weight) in weights.iter_mut().enumerate() {
                *weight = at(place, step);
            }
            let handle = session.checkpoint_start().unwrap();
            session.wait(handle, Level::Archive).unwrap();
        }
    });
    let all = segments(folder);
    let pieces = |number: u64, delta: bool| -> BTreeSet<_> {
        let of = all
            .iter()
            .filter(|(entry, header)| header.checkpoint.number == number && entry.delta == delta);
        let large = of.filter(|(entry, _)| entry.class == SegmentClass::Blocks);
        large
            .flat_map(|(_, header)| header.pieces.iter().map(|piece| piece.digest.0))
            .collect()
    };
    let then = pieces(4, true);
    let now: BTreeSet<_> = pieces(6, false).union(&pieces(6, true)).copied().collect();
    let moved = then.intersection(&now).count();
    assert!(moved > 50, "{moved} blocks of 4 were moved by 6");
    for number in [6, 5, 4] {
        wipe(folder, 1);
        run(&|session, weights| {
            session.restore_from(number).unwrap();
            let wrong = weights.iter().enumerate();
            let wrong =
                wrong.filter(|(place, weight)| weight.to_bits() != at(*place, number).to_bits());
            assert_eq!(wrong.count(), 0, "{number}");
        });
    }
}
