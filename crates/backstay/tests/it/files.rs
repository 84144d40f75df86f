// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files beside the variables: captured by blocks, restored whole or not at all.

use crate::job::{Rank, config};
use crate::rounds;
use backstay::{Communicator, Config, ElementType, ErrorKind, Result, Session, Variable};
use backstay_base::comm::Single;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::SimNetwork;
use std::ffi::OsStr;
use std::fs::{File, FileTimes};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

const BLOCK: usize = 16 << 10;

pub(crate) fn alone(config: &Config) -> Session {
    Session::open(Box::new(Single), config.clone()).unwrap()
}

/// Bytes that tell where they are from.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let word = |at: u64| (at ^ (seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = (0..u64::try_from(length).unwrap().div_ceil(8)).map(word);
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap());
    let left = entries.filter(|entry| entry.file_name().as_bytes().starts_with(b".backstay"));
    left.map(|entry| entry.path()).collect()
}

#[test]
fn a_file_is_restored_with_its_bytes_its_mode_and_its_time_beside_the_variables() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("store"));
    let path = folder.path().join("state.dat");
    let bytes = pattern(1, 100_000);
    std::fs::write(&path, &bytes).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let file = File::options().write(true).open(&path).unwrap();
    file.set_times(FileTimes::new().set_modified(time)).unwrap();

    let mut step = 7u64;
    let protect = |session: &mut Session, step: &mut u64| {
        let variable = Variable::new("step", ElementType::U64, &[]);
        // SAFETY: `step` outlives the sessions.
        unsafe { session.protect(variable, std::ptr::from_mut(step).cast()) }.unwrap();
        session.protect_file("state", &path).unwrap();
    };
    let mut session = alone(&config);
    protect(&mut session, &mut step);
    let report = session.checkpoint().unwrap();
    assert_eq!(report.bytes_total, 100_008);
    drop(session);

    for damage in [pattern(2, 200_000), b"short".to_vec(), Vec::new()] {
        std::fs::write(&path, damage).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        step = 0;
        let mut session = alone(&config);
        protect(&mut session, &mut step);
        let restored = session.restore().unwrap();
        assert_eq!(
            (step, restored.bytes_read, restored.unclaimed),
            (7, 100_008, 0)
        );
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        let about = std::fs::metadata(&path).unwrap();
        assert_eq!(about.mode() & 0o7777, 0o640);
        assert_eq!(about.modified().unwrap(), time);
        assert_eq!(leftovers(folder.path()), [] as [PathBuf; 0]);
    }
    // It, and its folder, may be gone.
    let elsewhere = folder.path().join("new/folder/state.dat");
    let mut session = alone(&config);
    session.protect_file("state", &elsewhere).unwrap();
    let restored = session.restore().unwrap();
    assert_eq!((restored.bytes_read, restored.unclaimed), (100_000, 1));
    assert_eq!(std::fs::read(elsewhere).unwrap(), bytes);
}

#[test]
fn changed_blocks_of_a_file_alone_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("store"));
    let path = folder.path().join("log");
    let mut bytes = pattern(3, 100 * BLOCK + 100);
    std::fs::write(&path, &bytes).unwrap();
    let mut session = alone(&config);
    session.protect_file("log", &path).unwrap();
    assert_eq!(session.checkpoint().unwrap().blocks_changed, 101);
    assert_eq!(session.checkpoint().unwrap().blocks_changed, 0);
    // One in the middle, the end, which grows into one block more.
    bytes[50 * BLOCK] ^= 1;
    bytes.extend(pattern(4, BLOCK));
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(session.checkpoint().unwrap().blocks_changed, 3);
    // In a later start too.
    drop(session);
    let mut session = alone(&config);
    session.protect_file("log", &path).unwrap();
    std::fs::remove_file(&path).unwrap();
    session.restore().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    assert_eq!(session.checkpoint().unwrap().blocks_changed, 0);
    // Shorter, and longer again: each checkpoint has it as it was.
    std::fs::write(&path, &bytes[..=10 * BLOCK]).unwrap();
    let short = session.checkpoint().unwrap().checkpoint.number;
    std::fs::write(&path, b"").unwrap();
    let empty = session.checkpoint().unwrap();
    assert_eq!((empty.blocks_total, empty.bytes_total), (0, 0));
    std::fs::write(&path, &bytes).unwrap();
    let empty = empty.checkpoint.number;
    for (number, length) in [(empty, 0), (short, 10 * BLOCK + 1)] {
        session.restore_from(number).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), &bytes[..length]);
    }
}

#[test]
fn holes_stay_holes_and_what_follows_them_is_not_moved_when_they_fill() {
    const LENGTH: u64 = 1 << 40;
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("store"));
    let path = folder.path().join("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(LENGTH).unwrap();
    let (first, second, last) = (
        pattern(5, 2 * BLOCK),
        pattern(6, 3 * BLOCK),
        pattern(7, 4096),
    );
    let places = [LENGTH / 2, LENGTH - 4096];
    file.write_all_at(&second, places[0]).unwrap();
    file.write_all_at(&last, places[1]).unwrap();
    let mut session = alone(&config);
    session.protect_file("sparse", &path).unwrap();
    let report = session.checkpoint().unwrap();
    // Where the file system says where holes are.
    assert_eq!(report.bytes_total, (3 * BLOCK + BLOCK) as u64, "{report:?}");
    file.write_all_at(&first, 0).unwrap();
    let report = session.checkpoint().unwrap();
    assert!(report.blocks_changed <= 3, "{report:?}");
    drop((session, file));

    std::fs::write(&path, pattern(8, 1 << 20)).unwrap();
    let mut session = alone(&config);
    session.protect_file("sparse", &path).unwrap();
    session.restore().unwrap();
    let about = std::fs::metadata(&path).unwrap();
    assert_eq!(about.len(), LENGTH);
    assert!(
        about.blocks() * 512 <= 12 * BLOCK as u64,
        "{}",
        about.blocks()
    );
    let file = File::open(&path).unwrap();
    for (place, wanted) in [(0, &first), (places[0], &second), (places[1], &last)] {
        let mut found = vec![0; wanted.len()];
        file.read_exact_at(&mut found, place).unwrap();
        assert!(found == *wanted, "at {place}");
    }
    let mut hole = vec![1; BLOCK];
    file.read_exact_at(&mut hole, LENGTH / 4).unwrap();
    assert!(hole.iter().all(|&byte| byte == 0));
    // Nothing but one hole.
    let all = folder.path().join("hole");
    File::create(&all).unwrap().set_len(LENGTH).unwrap();
    session.protect_file("hole", &all).unwrap();
    session.checkpoint().unwrap();
    std::fs::remove_file(&all).unwrap();
    session.restore().unwrap();
    let about = std::fs::metadata(&all).unwrap();
    assert_eq!((about.len(), about.blocks()), (LENGTH, 0));
}

fn refused<T: std::fmt::Debug>(outcome: Result<T>, word: &str) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains(word), "{error}");
}

#[test]
fn a_file_that_is_gone_fails_the_checkpoint_and_the_last_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("store"));
    let path = folder.path().join("state");
    std::fs::write(&path, b"first").unwrap();
    let mut session = alone(&config);
    session.protect_file("my file", &path).unwrap();
    session.checkpoint().unwrap();
    std::fs::remove_file(&path).unwrap();
    let outcome = session.checkpoint();
    refused(outcome, "my file");
    refused(session.checkpoint(), "state is not there");
    session.restore().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"first");
    std::fs::write(&path, b"second").unwrap();
    session.checkpoint().unwrap();
    session.unprotect("my file").unwrap();
    std::fs::remove_file(&path).unwrap();
    session.checkpoint().unwrap();
    refused(session.unprotect("my file"), "no variable");
    // The newest has no file of that name.
    session.protect_file("my file", &path).unwrap();
    let error = session.restore().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::VariableMismatch, "{error}");
}

#[test]
fn what_is_no_regular_file_is_neither_read_nor_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("store"));
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("file"), b"stored").unwrap();
    std::fs::write(at("target"), b"untouched").unwrap();
    symlink(at("target"), at("link")).unwrap();
    symlink(at("nothing"), at("dangling")).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    let made = Command::new("mkfifo").arg(at("pipe")).status().unwrap();
    assert!(made.success());
    let mut session = alone(&config);
    for (name, word) in [
        ("link", "symbolic link"),
        ("dangling", "symbolic link"),
        ("folder", "folder"),
        ("folder/", "names no file"),
        ("folder/..", "names no file"),
        ("pipe", "no regular file"),
        ("file/below", "file/below"),
    ] {
        refused(session.protect_file("f", at(name)), word);
    }
    refused(session.protect_file("f", "/dev/null"), "no regular file");
    refused(session.protect_file("f", ""), "names no file");
    refused(session.protect_file("f", "a\0b"), "zero byte");
    refused(session.protect_file("", at("file")), "name of a file");
    refused(
        session.protect_file(&"x".repeat(256), at("file")),
        "256 bytes",
    );

    session.protect_file("f", at("file")).unwrap();
    session.checkpoint().unwrap();
    for (other, word) in [("link", "symbolic link"), ("pipe", "no regular file")] {
        std::fs::remove_file(at("file")).unwrap();
        std::fs::rename(at(other), at("file")).unwrap();
        refused(session.checkpoint(), word);
        refused(session.restore(), word);
        assert_eq!(std::fs::read(at("target")).unwrap(), b"untouched");
    }
    std::fs::remove_file(at("file")).unwrap();
    session.restore().unwrap();
    assert_eq!(std::fs::read(at("file")).unwrap(), b"stored");
    assert_eq!(leftovers(folder.path()), [] as [PathBuf; 0]);
}

#[test]
fn a_name_is_of_a_variable_or_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = alone(&config(&folder.path().join("store")));
    let mut value = 1u64;
    let variable = Variable::new("x", ElementType::U64, &[]);
    let address = std::ptr::from_mut(&mut value).cast();
    // SAFETY: `value` outlives the session.
    unsafe { session.protect(variable.clone(), address) }.unwrap();
    refused(
        session.protect_file("x", folder.path().join("f")),
        "a variable",
    );
    session.unprotect("x").unwrap();
    session.protect_file("x", folder.path().join("f")).unwrap();
    // SAFETY: as above.
    refused(unsafe { session.protect(variable, address) }, "the file");
}

#[test]
fn paths_need_not_be_utf_8_and_are_as_long_as_the_system_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("store"));
    let odd = folder
        .path()
        .join(OsStr::from_bytes(b"odd \xff\xfe name\n"));
    let long = folder.path().join("n".repeat(255));
    let deep = (0..15).fold(folder.path().to_owned(), |path, _| {
        path.join("d".repeat(200))
    });
    std::fs::create_dir_all(&deep).unwrap();
    let deep = deep.join("file");
    let files = [("odd", &odd), ("long", &long), ("deep", &deep)];
    let mut session = alone(&config);
    for (name, path) in files {
        std::fs::write(path, name).unwrap();
        session.protect_file(name, path).unwrap();
    }
    session.checkpoint().unwrap();
    for (_, path) in files {
        std::fs::remove_file(path).unwrap();
    }
    session.restore().unwrap();
    for (name, path) in files {
        assert_eq!(std::fs::read(path).unwrap(), name.as_bytes());
    }
    let whole = "/x".repeat(2048);
    refused(session.protect_file("whole", &whole), "4096 bytes");
    let wide = folder.path().join("n".repeat(256));
    refused(session.protect_file("wide", wide), "too long");
    session.checkpoint().unwrap();
}

#[test]
fn thousands_of_small_files_cost_what_changed_in_them() {
    const COUNT: u64 = 3000;
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("store"));
    let files = folder.path().join("files");
    std::fs::create_dir(&files).unwrap();
    let path = |at: u64| files.join(format!("{at}.txt"));
    let text = |at: u64| format!("file {at}").repeat(10);
    let mut session = alone(&config);
    for at in 0..COUNT {
        std::fs::write(path(at), text(at)).unwrap();
        session.protect_file(&format!("f{at}"), path(at)).unwrap();
    }
    assert_eq!(session.checkpoint().unwrap().blocks_changed, COUNT);
    std::fs::write(path(1234), "another").unwrap();
    assert_eq!(session.checkpoint().unwrap().blocks_changed, 1);
    std::fs::remove_dir_all(&files).unwrap();
    session.restore().unwrap();
    for at in 0..COUNT {
        let wanted = if at == 1234 {
            "another".to_owned()
        } else {
            text(at)
        };
        assert_eq!(std::fs::read(path(at)).unwrap(), wanted.as_bytes(), "{at}");
    }
    assert_eq!(leftovers(&files), [] as [PathBuf; 0]);
}

#[test]
fn a_path_that_all_ranks_share_is_restored_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("store"));
    let (shared, bytes) = (folder.path().join("shared"), pattern(9, 300_000));
    std::fs::write(&shared, &bytes).unwrap();
    let own = |rank: u32| folder.path().join(format!("own {rank}"));
    let start = |is_first: bool| {
        run_ranks(ThreadComm::new(4), |comm| {
            let rank = comm.rank();
            let mut session = Session::open(Box::new(comm), config.clone()).unwrap();
            session.protect_file("shared", &shared).unwrap();
            session.protect_file("own", own(rank)).unwrap();
            if is_first {
                std::fs::write(own(rank), rank.to_string()).unwrap();
                session.checkpoint().unwrap();
                return 0;
            }
            session.restore().unwrap().bytes_read
        })
    };
    start(true);
    std::fs::remove_file(&shared).unwrap();
    (0..4).for_each(|rank| std::fs::remove_file(own(rank)).unwrap());
    let read = start(false);
    assert_eq!(read.iter().sum::<u64>(), 300_000 + 4, "{read:?}");
    assert!(std::fs::read(&shared).unwrap() == bytes);
    for rank in 0..4 {
        assert_eq!(
            std::fs::read(own(rank)).unwrap(),
            rank.to_string().as_bytes()
        );
    }
    assert_eq!(leftovers(folder.path()), [] as [PathBuf; 0]);
}

#[test]
fn another_number_of_ranks_writes_files_by_old_rank() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder.path().join("store"));
    let own = |rank: u32| folder.path().join(format!("own {rank}"));
    run_ranks(ThreadComm::new(3), |comm| {
        let rank = comm.rank();
        let mut session = Session::open(Box::new(comm), config.clone()).unwrap();
        std::fs::write(own(rank), rank.to_string()).unwrap();
        session.protect_file("own", own(rank)).unwrap();
        session.checkpoint().unwrap();
    });
    run_ranks(ThreadComm::new(2), |comm| {
        let rank = comm.rank();
        let mut session = Session::open(Box::new(comm), config.clone()).unwrap();
        session.protect_file("own", own(rank)).unwrap();
        let error = session.restore().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::VariableMismatch, "{error}");
        assert!(error.to_string().contains("restore_file"), "{error}");
        session.unprotect("own").unwrap();
        session.restore().unwrap();
        for of in (0..3).filter(|of| of % 2 == rank) {
            let listed = session.stored_files(of).unwrap();
            assert_eq!(listed[0].name, Path::new("own"));
            let to = folder.path().join(format!("taken {of}"));
            session.restore_file("own", of, &to).unwrap();
            assert_eq!(std::fs::read(to).unwrap(), of.to_string().as_bytes());
        }
        let outcome = session.restore_file("none", 0, folder.path().join("x"));
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::VariableMismatch);
        session.checkpoint().unwrap();
    });
}

/// A communicator of one process that dies, as by `kill -9`, in one of its calls.
struct Dying {
    calls_left: AtomicU64,
}

impl Communicator for Dying {
    fn rank(&self) -> u32 {
        0
    }
    fn size(&self) -> u32 {
        1
    }
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        Single.allgather(mine, all)
    }
    fn allreduce_max(&self, values: &mut [i64]) -> Result<()> {
        if self.calls_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
        }
        Single.allreduce_max(values)
    }
    fn barrier(&self) -> Result<()> {
        Ok(())
    }
}

const CHILD: &str = "BACKSTAY_TEST_FILES_CHILD";

/// One that restores, and dies in its call number [`CHILD`]; the test below runs it in processes of its own.
#[test]
fn a_restore_that_is_killed_leaves_the_old_file_or_the_new_one() {
    if let Some(calls) = std::env::var_os(CHILD) {
        let calls_left = AtomicU64::new(calls.to_str().unwrap().parse().unwrap());
        let folder = std::env::current_dir().unwrap();
        let comm = Box::new(Dying { calls_left });
        let mut session = Session::open(comm, config(&folder.join("store"))).unwrap();
        for name in ["one", "two"] {
            session.protect_file(name, folder.join(name)).unwrap();
        }
        session.restore().unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (stored, later) = (pattern(10, 400_000), pattern(11, 500_000));
    let mut session = alone(&config(&at("store")));
    for name in ["one", "two"] {
        std::fs::write(at(name), &stored).unwrap();
        session.protect_file(name, at(name)).unwrap();
    }
    session.checkpoint().unwrap();
    drop(session);
    let (mut olds, mut news, mut left) = (0, 0, 0);
    for calls in 0u64.. {
        for name in ["one", "two"] {
            std::fs::write(at(name), &later).unwrap();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "files::a_restore_that_is_killed_leaves_the_old_file_or_the_new_one";
        command
            .args(["--exact", name])
            .env(CHILD, calls.to_string());
        command.current_dir(folder.path()).stdout(Stdio::null());
        let status = command.status().unwrap();
        left += leftovers(folder.path()).len();
        for name in ["one", "two"] {
            let found = std::fs::read(at(name)).unwrap();
            assert!(found == stored || found == later, "{calls}: {name} is torn");
            olds += u64::from(found == later);
            news += u64::from(found == stored);
        }
        if status.success() {
            break;
        }
        assert!(calls < 200, "{status}");
    }
    assert!(olds > 2 && news > 2 && left > 0, "{olds} {news} {left}");
    for name in ["one", "two"] {
        assert!(std::fs::read(at(name)).unwrap() == stored);
    }
    assert_eq!(leftovers(folder.path()), [] as [PathBuf; 0]);
}

/// In a process of its own: what it limits is all of its process.
#[test]
fn a_limit_on_files_fails_a_restore_without_a_signal() {
    const LIMITED: &str = "BACKSTAY_TEST_FILES_LIMITED";
    if std::env::var_os(LIMITED).is_some() {
        let folder = std::env::current_dir().unwrap();
        let limit = rustix::process::Rlimit {
            current: Some(64 << 20),
            maximum: None,
        };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
        let mut session = alone(&config(&folder.join("store")));
        session.protect_file("file", folder.join("file")).unwrap();
        let error = session.restore().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
        assert!(error.to_string().contains("ulimit -f"), "{error}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    // Nearly all of it a hole, so that the store is small.
    File::create(&path).unwrap().set_len(1 << 30).unwrap();
    let mut session = alone(&config(&folder.path().join("store")));
    session.protect_file("file", &path).unwrap();
    session.checkpoint().unwrap();
    drop(session);
    std::fs::write(&path, "as it was").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "files::a_limit_on_files_fails_a_restore_without_a_signal";
    command
        .args(["--exact", name, "--nocapture"])
        .env(LIMITED, "1");
    let done = command.current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {said}", done.status);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "as it was");
    assert_eq!(leftovers(folder.path()), [] as [PathBuf; 0]);
}

/// A node is lost with its store and the files of its rank: both are made of what the others have, those of a set too.
#[test]
fn files_of_a_lost_node_are_rebuilt_with_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = SimNetwork::new(1);
    let path = |rank: u32| folder.join(format!("log.{rank}"));
    let wanted = |rank: u32, set: u64| pattern(u64::from(rank) + 100 * set, 70_000);
    let output = |rank: &mut Rank, number: u32| {
        rank.session.output_start().unwrap();
        let routed = rank.session.route_file("dump.7").unwrap();
        std::fs::write(routed, wanted(number, 1)).unwrap();
        rank.session.output_complete(true).unwrap();
    };
    let take = |rank: &mut Rank| {
        let number = rank.session.rank();
        std::fs::write(path(number), wanted(number, 0)).unwrap();
        rank.session.protect_file("log", path(number)).unwrap();
        rank.compute();
        output(rank, number);
        let id = rank.session.stored_checkpoints().unwrap().pop();
        let begun = Instant::now();
        while rank.session.protected_checkpoint() < id {
            assert!(begun.elapsed() < Duration::from_secs(20), "{id:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    rounds::start(folder, &network, |_| (), take);
    std::fs::remove_dir_all(folder.join("n2")).unwrap();
    for rank in 0..4 {
        std::fs::remove_file(path(rank)).unwrap();
    }
    rounds::start(
        folder,
        &network,
        |_| (),
        |rank| {
            let number = rank.session.rank();
            rank.session.protect_file("log", path(number)).unwrap();
            rank.session.restart_start().unwrap();
            let routed = rank.session.route_file("dump.7").unwrap();
            assert_eq!(std::fs::read(routed).unwrap(), wanted(number, 1));
            rank.session.restart_complete(true).unwrap();
            assert_eq!(std::fs::read(path(number)).unwrap(), wanted(number, 0));
            rank.check();
        },
    );
}
