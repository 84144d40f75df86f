// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Archives of which files cannot be read for a while, or have to be read with few descriptors; and several
//! restores of one session from different sources.

use crate::job::{Rank, config};
use backstay::{
    CheckpointId, Communicator, Config, ElementType, ErrorKind, Level, Session, Variable,
};
use backstay_archive::{Catalog, Identity};
use backstay_base::io::ReadAt;
use backstay_base::io::on_demand::OpenFiles;
use backstay_net::Endpoint;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::SimNetwork;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn node(folder: &Path, place: usize) -> Config {
    Config {
        node: Some(format!("n{place}")),
        store_path: Some(folder.join(format!("n{place}"))),
        listen_address: Some("127.0.0.1:0".to_owned()),
        archive: Some(folder.join("pfs")),
        archive_retained: 10,
        archive_reserve_bytes: Some(8 << 20),
        timeout_ms: 10_000,
        ..config(folder)
    }
}

fn start<T: Send>(
    folder: &Path,
    change: impl Fn(&mut Config) + Sync,
    body: impl Fn(&mut Rank) -> T + Sync,
) -> Vec<T> {
    run_ranks(ThreadComm::new(2), |comm| {
        let mut config = node(folder, usize::try_from(comm.rank()).unwrap());
        change(&mut config);
        let mut rank = Rank::open(comm, config).expect("opening");
        rank.settle().expect("protecting");
        body(&mut rank)
    })
}

fn archived(rank: &mut Rank, count: u64) {
    for _ in 0..count {
        rank.compute();
        let handle = rank.session.checkpoint_start().unwrap();
        rank.session.wait(handle, Level::Archive).unwrap();
    }
}

fn store(folder: &Path, place: usize) -> PathBuf {
    folder.join(format!("n{place}/test job/n{place}/store.backstay"))
}

/// A file of the archive that nobody can read for a while: a folder is in its place.
struct Hidden(PathBuf);

impl Hidden {
    fn new(folder: &Path, aggregator: u32) -> Self {
        let file = folder.join(format!("pfs/test job/aggregate-{aggregator}-1.backstay"));
        std::fs::rename(&file, file.with_extension("hidden")).unwrap();
        std::fs::create_dir(&file).unwrap();
        Self(file)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).unwrap();
        std::fs::rename(self.0.with_extension("hidden"), &self.0).unwrap();
    }
}

/// The archive has 1 to 4, the nodes are back at 2.
fn nodes_behind_the_archive(folder: &Path) {
    start(folder, |_| {}, |rank| archived(rank, 2));
    for place in [0, 1] {
        std::fs::copy(store(folder, place), folder.join(format!("at 2 {place}"))).unwrap();
    }
    start(
        folder,
        |_| {},
        |rank| {
            rank.session.restore().unwrap();
            archived(rank, 2);
        },
    );
    for place in [0, 1] {
        std::fs::copy(folder.join(format!("at 2 {place}")), store(folder, place)).unwrap();
    }
}

fn numbers(rank: &Rank) -> Vec<u64> {
    let stored = rank.session.stored_checkpoints().unwrap();
    stored.iter().map(|id| id.number).collect()
}

#[test]
fn a_file_of_the_archive_that_cannot_be_read_gives_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    nodes_behind_the_archive(folder);
    let hidden = Hidden::new(folder, 1);
    start(
        folder,
        |_| {},
        |rank| {
            let error = rank.session.restore().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unreadable, "{error}");
            let text = error.to_string();
            assert!(text.contains("restore_checkpoint"), "{text}");
            assert!(
                text.contains("aggregate-1-1") && !text.contains("remove"),
                "{text}"
            );
            assert_eq!(numbers(rank), [1, 2, 3, 4]);
        },
    );
    drop(hidden);
    start(
        folder,
        |_| {},
        |rank| {
            assert_eq!(rank.session.restore().unwrap().checkpoint.number, 4);
            rank.check();
        },
    );
}

#[test]
fn only_a_number_that_is_named_goes_past_what_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    nodes_behind_the_archive(folder);
    let _hidden = Hidden::new(folder, 0);
    let two = |config: &mut Config| config.restore_checkpoint = Some(2);
    start(folder, two, |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!((restored.checkpoint.number, rank.step), (2, 2));
        rank.check();
        rank.compute();
        assert_eq!(rank.session.checkpoint().unwrap().checkpoint.number, 3);
    });
    start(
        folder,
        |_| {},
        |rank| {
            assert_eq!(rank.session.restore().unwrap().checkpoint.number, 3);
            rank.check();
        },
    );
}

#[test]
fn where_nothing_else_is_left_it_is_an_error_and_not_a_first_start() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, |_| {}, |rank| archived(rank, 2));
    for place in [0, 1] {
        std::fs::remove_dir_all(folder.join(format!("n{place}"))).unwrap();
    }
    let hidden = Hidden::new(folder, 0);
    start(
        folder,
        |_| {},
        |rank| {
            // The catalog has them; whether they can be read is found when they are.
            assert_eq!(numbers(rank), [1, 2]);
            let error = rank.session.restore().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unreadable, "{error}");
            assert!(!error.to_string().contains("remove"), "{error}");
        },
    );
    drop(hidden);
    start(
        folder,
        |_| {},
        |rank| {
            assert_eq!(rank.session.restore().unwrap().checkpoint.number, 2);
            rank.check();
        },
    );
}

/// A former start that stands still may go on until the catalog is the next start's: what it did meanwhile counts.
#[test]
fn what_a_former_start_records_while_the_next_one_begins_counts() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    start(folder, |_| {}, |rank| archived(rank, 3));
    for place in [0, 1] {
        std::fs::remove_dir_all(folder.join(format!("n{place}"))).unwrap();
    }
    let archive = folder.join("pfs/test job");
    let superblock = Catalog::open_reader(&archive).unwrap().superblock().clone();
    let identity = Identity {
        job: superblock.job,
        run: superblock.run,
        aggregator: 0,
        epoch: 0,
        host: superblock.host,
    };
    let former = Catalog::open_writer(&archive, &identity).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The next start has looked by then, and waits.
            std::thread::sleep(Duration::from_secs(1));
            former.drop_checkpoints(&[CheckpointId::new(1, 3)]).unwrap();
            drop(former);
        });
        start(
            folder,
            |_| {},
            |rank| {
                assert_eq!(numbers(rank), [1, 2]);
                assert_eq!(rank.session.restore().unwrap().checkpoint.number, 2);
                rank.check();
            },
        );
    });
}

#[test]
fn a_second_restore_from_the_archive_forgets_what_was_compared_with() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let small = |config: &mut Config| config.reserve_bytes = Some(12 << 20);
    start(folder, small, |rank| archived(rank, 6));
    start(folder, small, |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!(
            (restored.checkpoint.number, restored.level),
            (6, Level::Node)
        );
        // Node 1 has no good part of 5 now, and what 6 refers to is forgotten with it.
        if rank.session.rank() == 1 {
            let mut bytes = std::fs::read(store(folder, 1)).unwrap();
            for at in (96 << 10..bytes.len()).step_by(10_001) {
                bytes[at] ^= 0x10;
            }
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(store(folder, 1));
            file.unwrap().write_all_at(&bytes, 0).unwrap();
        }
        let restored = rank.session.restore_from(5).unwrap();
        assert_eq!((rank.step, restored.level), (5, Level::Archive));
        rank.check();
        let mut huge = vec![1u8; 64 << 20];
        let variable = Variable::new("huge", ElementType::U8, &[64 << 20]);
        // SAFETY: `huge` outlives its protection.
        unsafe { rank.session.protect(variable, huge.as_mut_ptr()).unwrap() };
        let error = rank.session.checkpoint().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
        rank.session.unprotect("huge").unwrap();
        for _ in 0..2 {
            rank.compute();
            rank.session.checkpoint().unwrap();
        }
        assert_eq!(rank.step, 7);
    });
    let from_nodes = |config: &mut Config| config.archive = None;
    start(folder, from_nodes, |rank| {
        let restored = rank.session.restore().unwrap();
        assert_eq!((rank.step, restored.fell_back), (7, 0), "{restored:?}");
        rank.check();
    });
}

const NODES: usize = 40;
const ROW: u64 = 500;
/// Tells the process that has few descriptors where the archive is.
const FOLDER: &str = "BACKSTAY_TEST_FOLDER";

/// Protects `count` of the rows of a grid, from `first` on.
fn protect_rows(session: &mut Session, rows: &mut [u64], first: u64, count: u64) {
    let whole = [u64::try_from(NODES).unwrap(), ROW];
    let variable = Variable::new("grid", ElementType::U64, &[count, ROW]).slab(&whole, &[first, 0]);
    // SAFETY: the callers keep `rows` until the session ends.
    unsafe { session.protect(variable, rows.as_mut_ptr().cast()).unwrap() };
}

#[test]
fn many_files_are_read_back_with_few_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    run_ranks(ThreadComm::new(NODES), |comm| {
        let rank = u64::from(comm.rank());
        let mut config = node(folder.path(), usize::try_from(rank).unwrap());
        config.timeout_ms = 120_000;
        config.archive_threads = 1;
        let endpoint: Arc<dyn Endpoint> = network.endpoint(&format!("n{rank}"));
        let mut session = Session::open_on(Box::new(comm), config, Some(endpoint)).unwrap();
        let mut row = vec![rank + 1; usize::try_from(ROW).unwrap()];
        protect_rows(&mut session, &mut row, rank, 1);
        let handle = session.checkpoint_start().unwrap();
        session.wait(handle, Level::Archive).unwrap();
    });
    let words = [
        "--exact",
        "unread_archive::a_process_with_few_descriptors",
        "--ignored",
        "--nocapture",
    ];
    let process = std::process::Command::new(std::env::current_exe().unwrap())
        .args(words)
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&process.stderr);
    let said = String::from_utf8_lossy(&process.stdout);
    assert!(process.status.success(), "{text}{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// A process of the test above: 64 descriptors, and an archive of 40 files.
#[test]
#[ignore = "is a process of another test"]
fn a_process_with_few_descriptors() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let few = Rlimit {
        current: Some(40),
        maximum: Some(64),
    };
    setrlimit(Resource::Nofile, few).unwrap();
    run_ranks(ThreadComm::new(1), |comm| {
        let mut session = Session::open(Box::new(comm), node(&folder, 99)).unwrap();
        let mut grid = vec![0; NODES * usize::try_from(ROW).unwrap()];
        protect_rows(&mut session, &mut grid, 0, u64::try_from(NODES).unwrap());
        let restored = session.restore().unwrap();
        assert_eq!(
            (restored.checkpoint.number, restored.level),
            (1, Level::Archive)
        );
        let row = usize::try_from(ROW).unwrap();
        let rows = grid.chunks(row).zip(1..);
        assert!(
            rows.flat_map(|(row, value)| row.iter().map(move |word| (word, value)))
                .all(|(word, value)| *word == value)
        );
        assert!(OpenFiles::of_process().count() <= 32);
    });
    // Whoever may keep more open than this process has closes them when no more can be opened.
    let files = OpenFiles::new(1000);
    let path = |at: u8| folder.join(format!("file {at}"));
    for at in 0..100 {
        std::fs::write(path(at), [at; 100]).unwrap();
    }
    let open = |at| files.file(&path(at), false).unwrap();
    let opened: Vec<_> = (0..100).map(open).collect();
    for (at, file) in (0..).zip(&opened) {
        let mut found = [0xff; 100];
        file.read_at(&mut found, 0).unwrap();
        assert_eq!(found, [at; 100]);
    }
}
