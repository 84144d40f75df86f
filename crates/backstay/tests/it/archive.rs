// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Level 3: checkpoints that drain to an archive while the job runs, and what comes back when nodes,
//! or all but the archive, are gone.

use crate::job::{Rank, config};
use backstay::config::Redundancy;
use backstay::{CheckpointId, Config, ErrorKind, Level};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use std::path::{Path, PathBuf};

fn archive(folder: &Path) -> PathBuf {
    folder.join("pfs")
}

/// The configuration of the node at `place`, its store in a folder of its own.
fn node(folder: &Path, place: usize) -> Config {
    Config {
        node: Some(format!("n{place}")),
        store_path: Some(folder.join(format!("n{place}"))),
        listen_address: Some("127.0.0.1:0".to_owned()),
        archive: Some(archive(folder)),
        archive_retained: 3,
        archive_reserve_bytes: Some(8 << 20),
        ..config(folder)
    }
}

/// One start on the nodes at `places`, one rank each, with changes to its configuration.
fn start_with<T: Send>(
    folder: &Path,
    places: &[usize],
    change: impl Fn(&mut Config) + Sync,
    body: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    run_ranks(ThreadComm::new(places.len()), |comm| {
        let place = places[usize::try_from(backstay::Communicator::rank(&comm)).unwrap()];
        let mut config = node(folder, place);
        change(&mut config);
        let mut rank = Rank::open(comm, config).expect("opening");
        rank.settle().expect("protecting");
        body(&mut rank)
    })
}

fn start<T: Send>(folder: &Path, places: &[usize], body: impl Fn(&mut Rank) -> T + Sync) -> Vec<T> {
    start_with(folder, places, |_| {}, body)
}

/// Takes a checkpoint that is in the archive on return.
fn archived(rank: &mut Rank) -> CheckpointId {
    rank.compute();
    let handle = rank.session.checkpoint_start().unwrap();
    rank.session.wait(handle, Level::Archive).unwrap();
    assert_eq!(
        rank.session.archived_checkpoint(),
        Some(handle.checkpoint())
    );
    handle.checkpoint()
}

fn wipe_nodes(folder: &Path, places: &[usize]) {
    for place in places {
        std::fs::remove_dir_all(folder.join(format!("n{place}"))).unwrap();
    }
}

#[test]
fn after_the_loss_of_all_nodes_the_job_goes_on_from_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, &[0, 1, 2], |rank| {
        for _ in 0..5 {
            archived(rank);
        }
    });
    wipe_nodes(folder, &[0, 1, 2]);
    start(folder, &[7, 8, 9], |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint, CheckpointId::new(1, 5));
        assert_eq!(rank.step, 5);
        rank.check();
        assert_eq!(archived(rank), CheckpointId::new(2, 6));
    });
    wipe_nodes(folder, &[7, 8, 9]);
    start(folder, &[0, 1, 2], |rank| {
        assert_eq!(
            rank.session.restore().unwrap().checkpoint,
            CheckpointId::new(2, 6)
        );
        rank.check();
    });
}

/// What a node says that it measured.
fn measured(folder: &Path, place: usize) -> serde_json::Value {
    let path = folder.join(format!("n{place}/test job/n{place}/metrics.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn what_a_job_measured_outlives_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let at_once = |config: &mut Config| config.metrics_interval_ms = 1;
    start_with(folder, &[0, 1], at_once, |rank| {
        for _ in 0..5 {
            archived(rank);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    });
    let before = measured(folder, 0);
    wipe_nodes(folder, &[0, 1]);
    start_with(folder, &[7, 8], at_once, |rank| {
        rank.session.restore().unwrap();
        // The store of the new node is made now: that is no further failure.
        archived(rank);
        std::thread::sleep(std::time::Duration::from_millis(2));
        archived(rank);
    });
    let after = measured(folder, 7);
    assert_eq!(after["node"], "n7");
    assert_eq!(
        (&after["failures"], &after["restarts"]),
        (&1.into(), &1.into())
    );
    let checkpoints = |metrics: &serde_json::Value| metrics["checkpoints"].as_u64().unwrap();
    assert!(checkpoints(&before) >= 4, "{before}");
    assert!(checkpoints(&after) > checkpoints(&before), "{after}");
    assert_eq!(
        after["restore_seconds_by_level"]["3"]["count"], 1,
        "{after}"
    );
    // Rank 0's node alone plans.
    assert_eq!(measured(folder, 8)["failures"], 0);
}

/// Starts that die before they take a checkpoint teach it all the same: each is a failure that was seen, and what was
/// learnt before is not lost.
#[test]
fn starts_that_die_young_teach_the_planner() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, &[0], |rank| {
        archived(rank);
    });
    let learnt = |folder: &Path| measured(folder, 0)["schedule"].clone();
    assert_eq!(
        learnt(folder)["checkpoint_seconds"][1]["values"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let failures = |schedule: &serde_json::Value| -> f64 {
        let rates = schedule["rates"].as_array().unwrap().iter();
        rates
            .map(|rate| {
                rate["failures"].as_f64().unwrap() - rate["prior_failures"].as_f64().unwrap()
            })
            .sum()
    };
    for seen in 1..=3 {
        start(folder, &[0], |rank| {
            rank.session.restore().unwrap();
        });
        let schedule = learnt(folder);
        assert!(
            (failures(&schedule) - f64::from(seen)).abs() < 1e-9,
            "{schedule}"
        );
        assert_eq!(
            schedule["checkpoint_seconds"][1]["values"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
    }
}

#[test]
fn files_and_their_holes_come_back_from_the_archive() {
    const HOLE: u64 = 1 << 30;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let file = |rank: &Rank| folder.join(format!("file of {}", rank.session.rank()));
    start(folder, &[0, 1], |rank| {
        std::fs::write(file(rank), format!("of {}", rank.session.rank())).unwrap();
        rank.session.protect_file("file", file(rank)).unwrap();
        rank.compute();
        rank.session.output_start().unwrap();
        let path = rank.session.route_file("set/state").unwrap();
        std::fs::write(&path, "sparse").unwrap();
        let state = std::fs::File::options().write(true).open(path).unwrap();
        state.set_len(HOLE).unwrap();
        drop(state);
        let set = rank.session.output_complete(true).unwrap().checkpoint;
        let is_there = |rank: &Rank| rank.session.archived_checkpoint() >= Some(set);
        let began = std::time::Instant::now();
        while !is_there(rank) && began.elapsed().as_secs() < 20 {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(is_there(rank));
    });
    wipe_nodes(folder, &[0, 1]);
    start(folder, &[2, 3], |rank| {
        std::fs::remove_file(file(rank)).unwrap();
        rank.session.protect_file("file", file(rank)).unwrap();
        let restored = rank.session.restart_start().unwrap();
        assert_eq!((restored.level, restored.unclaimed), (Level::Archive, 0));
        rank.check();
        let found = std::fs::read_to_string(file(rank)).unwrap();
        assert_eq!(found, format!("of {}", rank.session.rank()));
        let path = rank.session.route_file("set/state").unwrap();
        let about = std::fs::metadata(&path).unwrap();
        assert_eq!(about.len(), HOLE);
        assert!(std::os::unix::fs::MetadataExt::blocks(&about) <= 64);
        let mut bytes = [0; 6];
        let state = std::fs::File::open(path).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&state, &mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"sparse");
        rank.session.restart_complete(true).unwrap();
        archived(rank);
    });
}

#[test]
fn any_retained_checkpoint_can_be_had_and_abandons_later_ones() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, &[0, 1], |rank| {
        for _ in 0..6 {
            archived(rank);
        }
    });
    wipe_nodes(folder, &[0, 1]);
    start(folder, &[0, 1], |rank| {
        let error = rank.session.restore_from(2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotRetained, "{error}");
        let restored = rank.session.restore_from(4).unwrap();
        assert_eq!(restored.checkpoint, CheckpointId::new(1, 4));
        assert_eq!(rank.step, 4);
        rank.check();
    });
    wipe_nodes(folder, &[0, 1]);
    start(folder, &[0, 1], |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(
            restored.checkpoint,
            CheckpointId::new(1, 4),
            "5 and 6 were abandoned"
        );
        rank.check();
    });
}

#[test]
fn a_restore_in_the_middle_of_a_session_abandons_what_the_archive_has_later() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, &[0, 1], |rank| {
        for _ in 0..4 {
            archived(rank);
        }
        let restored = rank.session.restore_from(3).unwrap();
        assert_eq!(restored.checkpoint, CheckpointId::new(1, 3));
        rank.check();
    });
    wipe_nodes(folder, &[0, 1]);
    start(folder, &[0, 1], |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint, CheckpointId::new(1, 3));
        rank.check();
        for _ in 0..3 {
            archived(rank);
        }
        rank.session.restore_from(5).unwrap();
        rank.check();
        // Its number is one that the archive has of the start before.
        let newest = archived(rank);
        assert_eq!(newest.number, 6);
        assert_eq!(rank.session.restore().unwrap().checkpoint, newest);
        rank.check();
    });
    wipe_nodes(folder, &[0, 1]);
    start(folder, &[0, 1], |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(restored.checkpoint.number, 6);
        assert_eq!(restored.checkpoint.incarnation, 4);
        rank.check();
    });
}

#[test]
fn a_setting_says_which_checkpoint_a_program_goes_on_from() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, &[0, 1], |rank| {
        for _ in 0..3 {
            archived(rank);
        }
    });
    wipe_nodes(folder, &[0, 1]);
    let from = |number| move |config: &mut Config| config.restore_checkpoint = Some(number);
    start_with(folder, &[0, 1], from(9), |rank| {
        let error = rank.session.restore().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotRetained, "{error}");
    });
    wipe_nodes(folder, &[0, 1]);
    start_with(folder, &[0, 1], from(2), |rank| {
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 2);
        rank.check();
        archived(rank);
        let again = rank.session.restore().unwrap().checkpoint;
        assert_eq!(again.number, 3, "only the first one");
        rank.check();
    });
}

#[test]
fn damage_on_the_nodes_is_made_up_for_by_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, &[0, 1], |rank| {
        archived(rank);
        archived(rank);
    });
    let store = folder.join("n1/test job/n1/store.backstay");
    let mut bytes = std::fs::read(&store).unwrap();
    for at in (96 << 10..bytes.len()).step_by(10_001) {
        bytes[at] ^= 0x10;
    }
    std::fs::write(&store, bytes).unwrap();
    start(folder, &[0, 1], |rank| {
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 2);
        rank.check();
        archived(rank);
    });
}

#[test]
fn archive_and_parity_go_together() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let xor = |config: &mut Config| config.redundancy = Redundancy::Xor;
    start_with(folder, &[0, 1, 2], xor, |rank| {
        for _ in 0..4 {
            archived(rank);
        }
    });
    wipe_nodes(folder, &[1, 2]);
    start_with(folder, &[0, 1, 2], xor, |rank| {
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 4);
        rank.check();
        archived(rank);
    });
}

#[test]
fn only_every_third_checkpoint_drains() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let third = |config: &mut Config| config.archive_every = Some(3);
    start_with(folder, &[0], third, |rank| {
        for _ in 0..8 {
            rank.compute();
            rank.session.checkpoint().unwrap();
            // The first goes there at once; of the others each third.
            while rank.step % 3 == 0
                && rank
                    .session
                    .archived_checkpoint()
                    .is_none_or(|id| id.number < rank.step)
            {
                std::thread::yield_now();
            }
        }
        let newest = rank.session.archived_checkpoint().unwrap();
        assert_eq!(newest.number, 6);
        assert_eq!(archived(rank).number, 9);
        assert_eq!(archived(rank).number, 10, "not due, but waited for");
    });
}

/// What the file of measurements says after a job that fails ten times a second, of them twice so that it
/// needs the archive.
fn teach(folder: &Path) {
    let path = folder.join("n0/test job/n0/metrics.json");
    let mut metrics: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(metrics["schedule_levels"], serde_json::json!([1, 3]));
    let schedule = &mut metrics["schedule"];
    for (at, failures) in [8000.0, 2000.0].into_iter().enumerate() {
        schedule["rates"][at]["failures"] = failures.into();
        schedule["rates"][at]["exposure_seconds"] = 1000.0.into();
        schedule["checkpoint_seconds"][at]["values"] = serde_json::json!([0.001]);
        schedule["recovery_seconds"][at]["values"] = serde_json::json!([0.001]);
    }
    schedule["latency_seconds"]["values"] = serde_json::json!([0.05]);
    // A drain costs the application as much as fifty checkpoints.
    schedule["slowdown_share"]["values"] = serde_json::json!([1.0]);
    std::fs::write(path, metrics.to_string()).unwrap();
}

/// Takes checkpoints as `due` says, `count` or more, until some were picked for the archive; the levels
/// that it said.
fn go_by_due(rank: &mut Rank, count: usize) -> Vec<(u64, Level)> {
    let mut taken: Vec<(u64, Level)> = Vec::new();
    let picked = |taken: &[(u64, Level)]| {
        let picked = taken.iter().filter(|(_, level)| *level == Level::Archive);
        picked.count() >= 3
    };
    while taken.len() < count || !picked(&taken) {
        if let Some(level) = rank.session.due().unwrap() {
            rank.compute();
            let report = rank.session.checkpoint().unwrap();
            taken.push((report.checkpoint.number, level));
        }
    }
    taken
}

#[test]
fn the_planner_picks_which_checkpoints_drain() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, &[0, 1], |rank| {
        archived(rank);
    });
    teach(folder);
    let taken = start(folder, &[0, 1], |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(
            (restored.checkpoint.number, restored.level),
            (1, Level::Node)
        );
        let taken = go_by_due(rank, 60);
        let newest = taken
            .iter()
            .rev()
            .find(|(_, level)| *level == Level::Archive);
        let newest = newest.expect("some are picked").0;
        while rank
            .session
            .archived_checkpoint()
            .is_none_or(|id| id.number < newest)
        {
            std::thread::yield_now();
        }
        taken
    });
    assert_eq!(taken[0], taken[1], "all ranks take the same");
    let picked: Vec<u64> = taken[0]
        .iter()
        .filter(|(_, level)| *level == Level::Archive)
        .map(|(number, _)| *number)
        .collect();
    assert!(2 * picked.len() < taken[0].len(), "{:?}", taken[0]);
    wipe_nodes(folder, &[0, 1]);
    let archived = start(folder, &[2, 3], |rank| {
        let stored = rank.session.stored_checkpoints().unwrap();
        // The first one drained before there was a plan.
        let later = stored
            .iter()
            .map(|id| id.number)
            .filter(|number| *number > 1);
        later.collect::<Vec<u64>>()
    });
    assert!(!archived[0].is_empty());
    // Where a later one was committed before the pick was seen, that one drains in its place; nothing
    // drains that no pick stands for.
    let picks = archived[0]
        .iter()
        .map(|number| picked.iter().rev().find(|pick| *pick <= number));
    let picks: Vec<Option<&u64>> = picks.collect();
    assert!(
        picks.iter().all(Option::is_some) && picks.windows(2).all(|pair| pair[0] < pair[1]),
        "{:?} of {picked:?}",
        archived[0]
    );
    // The newest first, for the others go when an older one is restored.
    for (place, &number) in archived[0].iter().rev().enumerate() {
        start(folder, &[2 * place + 4, 2 * place + 5], |rank| {
            let restored = rank.session.restore_from(number).unwrap();
            assert_eq!((rank.step, restored.level), (number, Level::Archive));
            rank.check();
        });
    }
}

#[test]
fn a_program_that_does_not_ask_drains_every_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    start(folder.path(), &[0], |rank| {
        for number in 1..=4 {
            rank.compute();
            rank.session.checkpoint().unwrap();
            while rank
                .session
                .archived_checkpoint()
                .is_none_or(|id| id.number < number)
            {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn another_job_on_the_same_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, &[0], |rank| {
        archived(rank);
        // The first one still runs.
        let other = folder.join("elsewhere");
        let opened = Rank::open(
            ThreadComm::new(1).into_iter().next().unwrap(),
            Config {
                store_path: Some(other.clone()),
                ..node(folder, 5)
            },
        );
        let error = opened.err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::StoreBusy, "{error}");
    });
}

/// Blocks of all files below `folder`, in bytes.
fn on_disk(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| entry.metadata().unwrap().blocks() * 512)
        .sum()
}

/// A rank with 2.3 MiB that no codec makes smaller, and nothing set of how much its archive reserves.
struct Noisy {
    session: backstay::Session,
    field: Vec<u64>,
}

impl Noisy {
    const WORDS: usize = 300_000;

    fn open(folder: &Path, comm: ThreadComm, retained: u32) -> Self {
        let place = usize::try_from(backstay::Communicator::rank(&comm)).unwrap();
        let config = Config {
            archive_reserve_bytes: None,
            archive_retained: retained,
            ..node(folder, place)
        };
        let mut session = backstay::Session::open(Box::new(comm), config).unwrap();
        let mut field = vec![0_u64; Self::WORDS];
        let length = u64::try_from(Self::WORDS).unwrap();
        let variable = backstay::Variable::new("field", backstay::ElementType::U64, &[length]);
        // SAFETY: the words are on the heap, and neither moved nor freed while the session starts.
        unsafe { session.protect(variable, field.as_mut_ptr().cast()) }.unwrap();
        Self { session, field }
    }

    /// What the field is at a step.
    fn noise(&self, step: u64) -> Vec<u64> {
        let mut word = (step << 32) | (u64::from(self.session.rank()) + 1);
        let next = |_| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word
        };
        (0..Self::WORDS).map(next).collect()
    }

    fn archive(&mut self, step: u64) {
        let noise = self.noise(step);
        self.field.copy_from_slice(&noise);
        let handle = self.session.checkpoint_start().unwrap();
        self.session.wait(handle, Level::Archive).unwrap();
    }
}

/// 9.2 MiB on four nodes.
#[test]
fn an_archive_takes_about_as_much_as_what_is_in_it() {
    const MIB: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let job = archive(folder).join("test job");
    let sizes = run_ranks(ThreadComm::new(4), |comm| {
        let mut rank = Noisy::open(folder, comm, 2);
        let mut sizes = Vec::new();
        for step in 1..=8 {
            rank.archive(step);
            sizes.push(on_disk(&job));
        }
        rank.session.close().unwrap();
        sizes
    });
    let sizes = &sizes[0];
    // Of one checkpoint: itself, rounded up to MiB in each file, and a catalog of 2 MiB.
    assert!(sizes[0] < 16 * MIB, "{sizes:?}");
    // Of two that are retained and one that is being written, and no more with time.
    assert!(sizes[7] < 36 * MIB, "{sizes:?}");
    assert_eq!(sizes[4], sizes[7], "{sizes:?}");
}

/// A job that is to retain fewer gives the space of the others back with its next drain, while it runs.
#[test]
fn files_become_smaller_when_fewer_are_retained_and_what_stays_is_restored() {
    const MIB: u64 = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let job = archive(folder).join("test job");
    run_ranks(ThreadComm::new(2), |comm| {
        let mut rank = Noisy::open(folder, comm, 8);
        (1..=8).for_each(|step| rank.archive(step));
        rank.session.close().unwrap();
    });
    let before = on_disk(&job);
    assert!(before > 42 * MIB, "{before}");
    let after = run_ranks(ThreadComm::new(2), |comm| {
        let mut rank = Noisy::open(folder, comm, 1);
        rank.session.restore().unwrap();
        assert!(rank.field == rank.noise(8));
        rank.archive(9);
        let after = on_disk(&job);
        // Back in what is left, and in space that is had again.
        (10..=13).for_each(|step| rank.archive(step));
        rank.session.close().unwrap();
        after
    });
    // Two are there until the catalog has the newer one, and as much and one more is free.
    assert!(after[0] < 28 * MIB, "{before}, then {after:?}");
    wipe_nodes(folder, &[0, 1]);
    run_ranks(ThreadComm::new(2), |comm| {
        let mut rank = Noisy::open(folder, comm, 1);
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 13);
        assert!(rank.field == rank.noise(13));
        rank.session.close().unwrap();
    });
}

#[test]
fn what_changed_is_all_that_is_stored_and_old_segments_are_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, &[0, 1], |rank| {
        for _ in 0..60 {
            archived(rank);
        }
    });
    let job = archive(folder).join("test job");
    let bytes: u64 = std::fs::read_dir(&job)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("aggregate"))
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    assert!(
        bytes <= 2 * (13 << 20),
        "{bytes} bytes in files of 12 MiB at first"
    );
    wipe_nodes(folder, &[0, 1]);
    // On one rank more: variables of a rank are read by old rank.
    start(folder, &[0, 1], |rank| {
        assert_eq!(rank.session.restore_from(59).unwrap().checkpoint.number, 59);
        rank.check();
    });
}

#[test]
fn a_catalog_that_was_never_made_whole_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let job = archive(folder).join("test job");
    std::fs::create_dir_all(&job).unwrap();
    // Killed before its superblocks were written, and before it had its length.
    std::fs::write(job.join("catalog-1.backstay"), b"").unwrap();
    std::fs::write(job.join("catalog-2.backstay"), vec![0; 1 << 20]).unwrap();
    start(folder, &[0, 1], |rank| {
        archived(rank);
        archived(rank);
    });
    wipe_nodes(folder, &[0, 1]);
    start(folder, &[0, 1], |rank| {
        assert_eq!(rank.session.restore().unwrap().checkpoint.number, 2);
        rank.check();
    });
}

#[test]
fn an_archive_of_which_nothing_can_be_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, &[0], |rank| {
        archived(rank);
    });
    wipe_nodes(folder, &[0]);
    let file = archive(folder).join("test job/aggregate-0-1.backstay");
    let mut bytes = std::fs::read(&file).unwrap();
    for at in (128 << 10..bytes.len()).step_by(97) {
        bytes[at] ^= 0x10;
    }
    std::fs::write(&file, bytes).unwrap();
    start(folder, &[0], |rank| {
        let error = rank.session.restore().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("To begin anew"), "{error}");
    });
}
