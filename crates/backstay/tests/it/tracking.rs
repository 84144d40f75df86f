// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ways of finding changed blocks: each gives back what was checkpointed, and writes what it should.

use crate::job::{Rank, config, start};
use backstay::config::{Config, Tracking};
use backstay::format::{CheckpointId, StoreId, Superblock, VariableDescriptor};
use backstay::{Communicator, ElementType, ErrorKind, Level, Session, Variable};
use backstay_base::io::Device;
use backstay_base::io::shared::SharedWords;
use backstay_store::control::Control;
use backstay_store::reserve::{Reserve, ReserveSettings};
use backstay_store::revision::{Part, RankStore};
use backstay_store::space::Space;
use backstay_store::track::pages::PageTracker;
use backstay_store::track::{BlockSet, Candidates};
use backstay_testkit::SimDevice;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

fn steps(tracking: Tracking) {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(2, &config, |rank| {
        rank.protect(tracking).unwrap();
        for _ in 1..=8 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
    });
    start(2, &config, |rank| {
        rank.protect(tracking).unwrap();
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 8);
        rank.check();
        for _ in 1..=3 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
    });
    start(2, &config, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 11);
        rank.check();
    });
}

#[test]
fn full_tracking_restores() {
    steps(Tracking::Full);
}

#[test]
fn page_tracking_restores_or_falls_back_to_hash() {
    steps(Tracking::Pages);
}

/// Memory of its own mapping, so that pages can be watched.
fn large(rank: &mut Rank, tracking: Tracking) -> Vec<u64> {
    let words = vec![1u64; 1 << 20];
    protect_large(rank, &words, tracking);
    words
}

fn protect_large(rank: &mut Rank, words: &[u64], tracking: Tracking) {
    let length = u64::try_from(words.len()).unwrap();
    let variable = Variable::new("large", ElementType::U64, &[length]).tracking(tracking);
    // SAFETY: the vector outlives the session's use of it in each of these tests.
    unsafe {
        rank.session
            .protect(variable, words.as_ptr().cast_mut().cast())
            .unwrap();
    };
}

#[test]
fn marked_blocks_are_written_and_unmarked_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    start(1, &config(folder.path()), |rank| {
        let mut words = large(rank, Tracking::Marked);
        rank.session.checkpoint().unwrap();
        words[0] = 5;
        mark(rank, 0..8).unwrap();
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.blocks_changed, 1, "{report:?}");
        assert_eq!(now(rank, "large").0, "marked");
        words[5000] = 7;
        words[100_000] = 8;
        mark(rank, 40_000..40_008).unwrap();
        mark(rank, 800_000..800_008).unwrap();
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.blocks_changed, 2, "{report:?}");
        assert!(mark(rank, 0..(1 << 23) + 1).is_err());
    });
}

/// Marks bytes of the large variable.
fn mark(rank: &mut Rank, bytes: std::ops::Range<u64>) -> backstay::Result<()> {
    let large = rank.session.variable("large")?;
    rank.session.mark_dirty(large, bytes)
}

/// How changes of a variable are found now, and why not as asked.
fn now(rank: &Rank, name: &str) -> (String, Option<String>) {
    let mut tracking = rank.session.tracking();
    let found = tracking.remove(name).unwrap();
    (found.now, found.why)
}

/// The words of "large" as the newest checkpoint has them, in a start of its own.
fn restored(config: &Config) -> Vec<u64> {
    let mut starts = start(1, config, |rank| {
        let words = vec![0u64; 1 << 20];
        protect_large(rank, &words, Tracking::Hash);
        rank.session.restore().unwrap();
        words
    });
    starts.pop().unwrap()
}

/// Marks that were believed: one checkpoint was hashed whole, and they had named all that changed.
fn believed(rank: &mut Rank) -> Vec<u64> {
    let mut words = large(rank, Tracking::Marked);
    rank.session.checkpoint().unwrap();
    words[3] = 3;
    mark(rank, 24..32).unwrap();
    rank.session.checkpoint().unwrap();
    assert_eq!(now(rank, "large").0, "marked");
    words
}

#[test]
fn a_breach_that_is_found_is_hashed_whole_in_the_same_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(1, &config, |rank| {
        let mut words = believed(rank);
        // Every block is written, one is marked: the one that is checked beside it finds it.
        words.iter_mut().step_by(2048).for_each(|word| *word += 10);
        mark(rank, 0..8).unwrap();
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.blocks_changed, 512, "{report:?}");
        let (how, why) = now(rank, "large");
        assert_eq!(how, "hash");
        assert!(why.unwrap().contains("nothing said so"));
    });
    let words = restored(&config);
    let wrong = words.iter().step_by(2048).filter(|&&word| word != 11);
    assert_eq!(wrong.count(), 0);
    assert_eq!((words[3], words[4]), (3, 1));
}

#[test]
fn a_single_unmarked_block_is_found_by_the_time_all_were_checked_once() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(1, &config, |rank| {
        let mut words = believed(rank);
        words[777_777] = 5;
        let changed = (0..512).map(|_| rank.session.checkpoint().unwrap().blocks_changed);
        assert_eq!(changed.sum::<u64>(), 1);
        assert_eq!(now(rank, "large").0, "hash");
    });
    assert_eq!(restored(&config)[777_777], 5);
}

#[test]
fn a_breach_in_a_checkpoint_that_failed_is_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(2, &config, |rank| {
        let mut words = believed(rank);
        // In the block that is checked next, and is not again for long.
        words[2048 + 5] = 10;
        let nowhere = std::ptr::without_provenance_mut(16);
        let bad = Variable::new("bad", ElementType::U64, &[1]);
        if rank.session.rank() == 1 {
            // SAFETY: nothing is there, which is looked at first; that is what makes it fail.
            unsafe { rank.session.protect(bad, nowhere).unwrap() };
        }
        rank.session.checkpoint().unwrap_err();
        if rank.session.rank() == 1 {
            rank.session.unprotect("bad").unwrap();
        }
        rank.session.checkpoint().unwrap();
        let wanted: Vec<u64> = words.clone();
        words.fill(0);
        rank.session.restore().unwrap();
        assert_eq!(words, wanted);
    });
}

#[test]
fn first_marks_that_do_not_name_all_that_changed_are_never_believed() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(1, &config, |rank| {
        let mut words = large(rank, Tracking::Marked);
        for step in 0..5 {
            // Nothing is marked: everything is hashed.
            words[900_000] = step;
            rank.session.checkpoint().unwrap();
            assert_eq!(now(rank, "large").0, "hash");
        }
        words[5] = 77;
        words[500_000] = 78;
        mark(rank, 40..48).unwrap();
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.blocks_changed, 2, "{report:?}");
        words[600_000] = 79;
        mark(rank, 40..48).unwrap();
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.blocks_changed, 1, "{report:?}");
        assert_eq!(now(rank, "large").0, "hash");
    });
    let words = restored(&config);
    assert_eq!(
        [900_000, 5, 500_000, 600_000].map(|at| words[at]),
        [4, 77, 78, 79]
    );
}

const SIZES: [(&str, usize); 4] = [("a", 1), ("b", 1000), ("c", 8192), ("d", 300_000)];

fn protect_sizes(rank: &mut Rank, memory: &[Vec<u64>]) {
    for ((name, size), words) in SIZES.iter().zip(memory) {
        let size = u64::try_from(*size).unwrap();
        let variable = Variable::new(name, ElementType::U64, &[size]);
        let address = words.as_ptr().cast_mut().cast();
        // SAFETY: the vectors outlive the session's use of them.
        unsafe { rank.session.protect(variable, address).unwrap() };
    }
}

/// The quickstart marks nothing. With `BACKSTAY_TRACKING=marked` for the whole job it is hashed.
#[test]
fn a_job_wide_marked_over_a_program_that_marks_nothing_restores_what_it_had() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        tracking: Tracking::Marked,
        ..config(folder.path())
    };
    start(2, &config, |rank| {
        let mut memory = SIZES.map(|(_, size)| vec![0u64; size]);
        protect_sizes(rank, &memory);
        for step in 1..=10 {
            for words in &mut memory {
                words.fill(step);
            }
            rank.session.checkpoint().unwrap();
        }
        for (name, _) in SIZES {
            assert_eq!(now(rank, name).0, "hash");
        }
    });
    start(2, &config, |rank| {
        let memory = SIZES.map(|(_, size)| vec![0u64; size]);
        protect_sizes(rank, &memory);
        rank.session.restore().unwrap();
        for words in &memory {
            assert!(words.iter().all(|&word| word == 10), "{}", words.len());
        }
    });
}

#[test]
fn small_variables_are_hashed_whatever_is_marked() {
    let folder = tempfile::tempdir().unwrap();
    start(1, &config(folder.path()), |rank| {
        let mut words = vec![1u64; 8192];
        for tracking in [Tracking::Marked, Tracking::Pages] {
            protect_large(rank, &words, tracking);
            for step in 0..4 {
                mark(rank, 0..8).unwrap();
                words[0] += 1;
                // At first the marks name all that changed.
                let others = u64::from(step >= 2);
                words[8000] = 100 + step * others;
                let report = rank.session.checkpoint().unwrap();
                assert!(
                    report.blocks_changed > others,
                    "{tracking:?} {step} {report:?}"
                );
                assert_eq!(now(rank, "large").0, "hash");
            }
        }
    });
}

#[test]
fn marks_take_as_much_memory_however_many_there_are() {
    let folder = tempfile::tempdir().unwrap();
    start(1, &config(folder.path()), |rank| {
        let _words = believed(rank);
        mark(rank, 0..8).unwrap();
        let before = rank.session.memory_bytes();
        for index in 0..200_000u64 {
            let start = index * 7919 % (1 << 20) * 8;
            mark(rank, start..start + 8).unwrap();
        }
        assert_eq!(rank.session.memory_bytes(), before);
    });
}

/// A rank's store over a device in memory; what tracking says of it is made up by the test.
fn rank_store() -> RankStore {
    let device: Arc<dyn Device> = Arc::new(SimDevice::new());
    let words = SharedWords::heap(Control::words_for(64));
    let superblock = Superblock {
        store: StoreId(*b"tracking is lies"),
        segment_bytes: 1 << 18,
        run: 1,
        created_unix_ns: 1,
        job: "lies".to_owned(),
        node: "node".to_owned(),
    };
    let settings = ReserveSettings {
        reserve_bytes_max: None,
        wait: Duration::from_secs(5),
        space_later: false,
    };
    let control = Control::start(words, 64).unwrap();
    let reserve = Reserve::create(device, control, &superblock, 2, settings).unwrap();
    RankStore::new(reserve, 0, 0, 1, 1, Space::new(1 << 18))
}

/// As when a device wrote pages that the kernel says are clean.
#[test]
fn blocks_found_changed_of_which_tracking_said_nothing_have_all_others_captured_too() {
    const BLOCK_BYTES: u32 = 1024;
    let descriptor = VariableDescriptor {
        name: "field".to_owned(),
        element: ElementType::U8,
        shape: vec![200 * 1024],
        slab: None,
        file: None,
    };
    let mut store = rank_store();
    let mut capture = |number, bytes: &[u8], candidates| {
        let mut parts = [Part {
            descriptor: &descriptor,
            block_bytes: BLOCK_BYTES,
            source: &bytes,
            candidates,
        }];
        let id = CheckpointId::new(1, number);
        let pending = store.capture(id, &mut parts, 1).unwrap();
        let (did, all) = (pending.by_part[0], pending.captured);
        store.commit(id, pending);
        let tree = store.tree("field").unwrap();
        let right = bytes
            .chunks(1024)
            .enumerate()
            .all(|(index, block)| tree.digest(index) == Some(backstay::format::Digest::of(block)));
        assert_eq!(did.blocks_changed, all.blocks_changed);
        (did.blocks_changed, did.unmarked_changes, right)
    };
    let mut bytes = vec![1; 200 * 1024];
    assert_eq!(capture(1, &bytes, Candidates::All), (200, 0, true));
    // Blocks 20 to 69 change; only block 20 is said to have, and of the others one in 64 is checked.
    bytes[20 * 1024..70 * 1024].fill(2);
    let set = |offset| {
        let mut set = BlockSet::new(200, 64, offset);
        set.mark(&(20 * 1024..21 * 1024), BLOCK_BYTES);
        Candidates::Some(set)
    };
    assert_eq!(capture(2, &bytes, set(5)), (50, 49, true));
    bytes[20 * 1024] = 3;
    assert_eq!(capture(3, &bytes, set(6)), (1, 0, true));
}

#[test]
fn a_private_mapping_of_a_file_is_hashed_since_the_file_may_be_written() {
    const LENGTH: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let file = tempfile::tempfile_in(folder.path()).unwrap();
    file.write_all_at(&vec![1; LENGTH], 0).unwrap();
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    // SAFETY: a new mapping at an address the kernel chooses.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            LENGTH,
            access,
            flags,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    let address = base.expose_provenance();
    start(1, &config(folder.path()), |rank| {
        let shape = [u64::try_from(LENGTH).unwrap()];
        let variable = Variable::new("file", ElementType::U8, &shape).tracking(Tracking::Pages);
        let base = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: the mapping above, which stays.
        unsafe { rank.session.protect(variable, base).unwrap() };
        for _ in 0..3 {
            rank.session.checkpoint().unwrap();
        }
        file.write_all_at(&[2; 100], 500_000).unwrap();
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.blocks_changed, 1, "{report:?}");
    });
    // SAFETY: the mapping above, not used any more.
    unsafe { libc::munmap(base, LENGTH) };
}

#[test]
fn pages_rest_while_much_changes_and_come_back_when_little_does() {
    if let Err(why) = PageTracker::available() {
        eprintln!("not here: {why}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        metrics_interval_ms: 0,
        ..config(folder.path())
    };
    start(1, &config, |rank| {
        let mut words = large(rank, Tracking::Pages);
        rank.session.checkpoint().unwrap();
        let mut step = |rank: &mut Rank, stride: usize| {
            words.iter_mut().step_by(stride).for_each(|word| *word += 1);
            let changed = rank.session.checkpoint().unwrap().blocks_changed;
            assert_eq!(
                changed,
                u64::try_from(words.len().div_ceil(stride.max(2048))).unwrap()
            );
            now(rank, "large").0
        };
        let much = 512;
        let found: Vec<String> = (0..4).map(|_| step(rank, much)).collect();
        assert_eq!(found, ["pages", "pages", "pages", "hash"]);
        // Hysteresis: one that changes much begins the count anew.
        let found: Vec<String> = (0..7).map(|_| step(rank, 1 << 19)).collect();
        assert!(found.iter().all(|how| how == "hash"), "{found:?}");
        step(rank, much);
        let found: Vec<String> = (0..9).map(|_| step(rank, 1 << 19)).collect();
        assert!(found[..8].iter().all(|how| how == "hash"), "{found:?}");
        assert_eq!(found[8], "pages");
        let text = std::fs::read_to_string(rank.session.directory().join("metrics.json"));
        let metrics: backstay_metrics::Metrics = serde_json::from_str(&text.unwrap()).unwrap();
        assert_eq!(metrics.tracking["large"].now, "pages");
        assert_eq!(metrics.tracking["step"].asked, "hash");
        // It did not last: twice as many are waited for.
        for _ in 0..4 {
            step(rank, much);
        }
        let found: Vec<String> = (0..17).map(|_| step(rank, 1 << 19)).collect();
        assert!(found[..16].iter().all(|how| how == "hash"), "{found:?}");
        assert_eq!(found[16], "pages");
    });
}

#[test]
fn a_protect_that_fails_leaves_the_former_variable_watched() {
    if let Err(why) = PageTracker::available() {
        eprintln!("not here: {why}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    start(1, &config(folder.path()), |rank| {
        let mut words = large(rank, Tracking::Pages);
        rank.session.checkpoint().unwrap();
        rank.session.checkpoint().unwrap();
        let end = std::ptr::without_provenance_mut(usize::MAX - 4096);
        for tracking in [Tracking::Pages, Tracking::Hash] {
            let other = Variable::new("large", ElementType::U64, &[1 << 20]).tracking(tracking);
            // SAFETY: it is refused: no memory is there.
            let error = unsafe { rank.session.protect(other, end) }.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
        words.iter_mut().step_by(2048).for_each(|word| *word += 1);
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.blocks_changed, 512, "{report:?}");
        assert_eq!(now(rank, "large").0, "pages");
    });
}

/// Says that there are so many ranks, which all say what this one says.
struct Many(u32);

impl Communicator for Many {
    fn rank(&self) -> u32 {
        0
    }
    fn size(&self) -> u32 {
        self.0
    }
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> backstay::Result<()> {
        all.chunks_exact_mut(mine.len())
            .for_each(|theirs| theirs.copy_from_slice(mine));
        Ok(())
    }
    fn allreduce_max(&self, _values: &mut [i64]) -> backstay::Result<()> {
        Ok(())
    }
    fn barrier(&self) -> backstay::Result<()> {
        Ok(())
    }
}

#[test]
fn more_ranks_of_a_node_than_there_are_words_for_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = Session::open(Box::new(Many(4097)), config(folder.path())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(
        error.to_string().contains("4097 ranks on one node"),
        "{error}"
    );
    drop(Session::open(Box::new(Many(4096)), config(folder.path())).unwrap());
}

#[test]
fn pages_are_a_filter_where_the_kernel_has_them() {
    if let Err(why) = PageTracker::available() {
        eprintln!("not here: {why}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    start(1, &config(folder.path()), |rank| {
        let mut words = large(rank, Tracking::Pages);
        for round in 0..6u64 {
            words[usize::try_from(round).unwrap() * 3000] = round;
            words[900_000] = round;
            rank.session.checkpoint().unwrap();
            let report = rank.session.checkpoint().unwrap();
            assert_eq!(report.blocks_changed, 0);
        }
        words[12_345] = 99;
        let report = rank.session.checkpoint().unwrap();
        assert_eq!(report.blocks_changed, 1, "{report:?}");
    });
}

#[test]
fn variables_grow_shrink_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let sizes = [10usize, 5000, 200_000, 65_536, 2048, 1, 131_072, 0, 70_000];
    let value = |round: usize, index: usize| (round as u64) << 32 | index as u64;
    start(2, &config, |rank| {
        for (round, &size) in sizes.iter().enumerate() {
            let words: Vec<u64> = (0..size).map(|index| value(round, index)).collect();
            protect_large(rank, &words, Tracking::Hash);
            if round % 2 == 1 {
                rank.session.unprotect("field").unwrap();
            } else {
                rank.protect(Tracking::Hash).unwrap();
            }
            rank.compute();
            rank.session.checkpoint().unwrap();
            rank.session.checkpoint().unwrap();
        }
    });
    start(2, &config, |rank| {
        assert_eq!(rank.session.stored_shape("large", 1).unwrap(), [70_000]);
        let words = vec![0u64; 70_000];
        protect_large(rank, &words, Tracking::Hash);
        rank.session.restore().unwrap();
        let wanted: Vec<u64> = (0..70_000).map(|index| value(8, index)).collect();
        assert_eq!(words, wanted);
        rank.check();
    });
}

#[test]
fn a_checkpoint_can_be_committed_in_the_background() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    start(3, &config, |rank| {
        for number in 1..=20 {
            rank.compute();
            let handle = rank.session.checkpoint_start().unwrap();
            assert_eq!(handle.checkpoint().number, number);
            if number % 3 == 0 {
                let report = rank.session.wait(handle, Level::Node).unwrap();
                assert_eq!(report.checkpoint.number, number);
                assert!(rank.session.test(&handle, Level::Node).unwrap());
            }
        }
        let handle = rank.session.checkpoint_start().unwrap();
        rank.compute(); // The program goes on: this state is not in the checkpoint.
        rank.session.wait(handle, Level::Node).unwrap();
    });
    start(3, &config, |rank| {
        rank.session.restore().unwrap();
        assert_eq!(rank.step, 20);
        rank.check();
    });
}

#[test]
fn an_id_names_its_variable_alone_as_long_as_it_is_protected() {
    let folder = tempfile::tempdir().unwrap();
    let old = std::sync::Mutex::new(None);
    for place in ["one", "two"] {
        start(1, &config(&folder.path().join(place)), |rank| {
            let words = large(rank, Tracking::Marked);
            let large = rank.session.variable("large").unwrap();
            if let Some(old) = old.lock().unwrap().replace(large) {
                let error = rank.session.mark_dirty(old, 0..8).unwrap_err();
                assert!(error.to_string().contains("another session"), "{error}");
            }
            rank.session.mark_dirty(large, 0..8).unwrap();
            // Protected elsewhere it is the same variable.
            let mut moved = words.clone();
            let variable = Variable::new("large", ElementType::U64, &[1 << 20]);
            // SAFETY: both live longer than the session uses them.
            let again = unsafe { rank.session.protect(variable, moved.as_mut_ptr().cast()) };
            assert_eq!(again.unwrap(), large);
            rank.session.unprotect("large").unwrap();
            assert!(rank.session.mark_dirty(large, 0..8).is_err());
            let mut other = vec![0u64; 16];
            let variable = Variable::new("other", ElementType::U64, &[16]);
            // SAFETY: as above.
            let other = unsafe { rank.session.protect(variable, other.as_mut_ptr().cast()) };
            assert!(
                rank.session.mark_dirty(large, 0..8).is_err(),
                "the slot is another's now"
            );
            rank.session.mark_dirty(other.unwrap(), 0..8).unwrap();
            assert!(rank.session.variable("large").is_err());
            rank.session.unprotect("other").unwrap();
        });
    }
}
