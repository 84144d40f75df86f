// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What ends no process: limits on files, closed standard descriptors, forks, other working folders. Each
//! test runs in a process of its own, which is this program again with one test.

use crate::job::{Rank, config};
use backstay::{Communicator, Config, Error, ErrorKind, Result};
use backstay_testkit::comm::ThreadComm;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const CHILD: &str = "BACKSTAY_TEST_CHILD";

/// The folder of the test, in the process that is made for it.
fn child() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// Runs the test `name` in a process of its own; what it says on standard error is in a file.
fn run_child(name: &str, folder: &Path, said: &Path) -> ExitStatus {
    let errors = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(said)
        .unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("process::{name}"), "--nocapture"])
        .env(CHILD, folder)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors);
    command.status().unwrap()
}

/// The same, which has to end well.
fn succeed(name: &str, folder: &Path) {
    let said = folder.join("said");
    let status = run_child(name, folder, &said);
    let said = std::fs::read_to_string(said).unwrap_or_default();
    assert!(status.success(), "{status}: {said}");
}

fn limit_files(bytes: Option<u64>) {
    let limit = Rlimit {
        current: bytes,
        maximum: None,
    };
    setrlimit(Resource::Fsize, limit).unwrap();
}

fn alone(config: &Config) -> Result<Rank> {
    let comm = ThreadComm::new(1).remove(0);
    Rank::open(comm, config.clone())
}

/// A rank that has taken some checkpoints.
fn at_work(config: &Config, checkpoints: u64) -> Box<Rank> {
    let mut rank = Box::new(alone(config).unwrap());
    rank.settle().unwrap();
    for _ in 0..checkpoints {
        rank.compute();
        rank.session.checkpoint().unwrap();
    }
    rank
}

/// The next start finds `step`, whole.
fn restores(config: &Config, step: u64) {
    let mut rank = Box::new(alone(config).unwrap());
    rank.settle().unwrap();
    rank.session.restore().unwrap();
    assert_eq!(rank.step, step);
    rank.check();
}

fn names_the_limit(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
    assert!(error.to_string().contains("ulimit -f"), "{error}");
}

/// Waits until a store has the space that is taken behind its program.
fn await_space(folder: &Path, bytes: u64) {
    let store = folder.join("test job/node0/store.backstay");
    let allocated = || std::fs::metadata(&store).unwrap().blocks() * 512;
    let looks = (0..1000).take_while(|_| allocated() < bytes);
    looks.for_each(|_| std::thread::sleep(Duration::from_millis(10)));
    assert!(allocated() >= bytes, "{}", allocated());
}

#[test]
fn a_limit_on_files_is_an_error_and_no_signal() {
    let Some(folder) = child() else {
        for base in [Some("/dev/shm"), None] {
            let folder = base
                .map_or_else(tempfile::tempdir, tempfile::tempdir_in)
                .unwrap();
            succeed("a_limit_on_files_is_an_error_and_no_signal", folder.path());
        }
        return;
    };
    let config = config(&folder);
    // Less than what the ranks share.
    limit_files(Some(100_000));
    names_the_limit(&alone(&config).err().expect("42 MB in a file of 100 kB"));
    // Less than the store.
    limit_files(Some(48 << 20));
    let large = Config {
        reserve_bytes: Some(64 << 20),
        ..config.clone()
    };
    let mut rank = Box::new(alone(&large).unwrap());
    rank.settle().unwrap();
    rank.compute();
    names_the_limit(&rank.session.checkpoint().unwrap_err());
    // The application goes on, and so do checkpoints once there is room.
    limit_files(None);
    rank.session.checkpoint().unwrap();
    await_space(&folder, 60 << 20);
    // A limit that comes later, below what is reserved: files of a disk are written by calls, those of memory by the
    // mapping.
    limit_files(Some(1 << 20));
    let mut step = rank.step;
    for _ in 0..5 {
        rank.compute();
        match rank.session.checkpoint() {
            Ok(_) => step = rank.step,
            Err(error) => {
                names_the_limit(&error);
                assert!(!folder.starts_with("/dev/shm"), "{error}");
            }
        }
    }
    limit_files(None);
    drop(rank);
    restores(&config, step);
}

/// A typing error in the name of a setting must not leave a job with the default.
#[test]
fn a_variable_that_is_nearly_a_setting_is_refused_and_a_site_has_names_of_its_own() {
    let name = "a_variable_that_is_nearly_a_setting_is_refused_and_a_site_has_names_of_its_own";
    if child().is_some() {
        let read = Config::from_environment();
        if std::env::var_os("BACKSTAY_RETAIND").is_none() {
            assert!(read.is_ok(), "{read:?}");
            return;
        }
        let error = read.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains("BACKSTAY_RETAINED"), "{error}");
        return;
    }
    for variable in [
        "BACKSTAY_RETAIND",
        "BACKSTAY_SITE_RETAIND",
        "BACKSTAY_OTHER",
    ] {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("process::{name}")])
            .env(CHILD, "")
            .env(variable, "3")
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success(), "{variable}");
    }
}

#[test]
fn what_fits_is_reserved_where_the_rule_asks_for_more() {
    let Some(folder) = child() else {
        let folder = tempfile::tempdir().unwrap();
        succeed(
            "what_fits_is_reserved_where_the_rule_asks_for_more",
            folder.path(),
        );
        return;
    };
    // The rule asks for 69 MiB and more.
    limit_files(Some(48 << 20));
    let config = config(&folder);
    let mut rank = Box::new(alone(&config).unwrap());
    rank.memory = vec![1; 3 << 20];
    rank.settle().unwrap();
    for step in 0..8 {
        // An eighth of it changes.
        let part = (rank.memory.len() / 8) * step;
        rank.memory[part..part + (3 << 17)].fill(u64::try_from(step).unwrap() + 2);
        rank.session.checkpoint().unwrap();
    }
    let expected = std::mem::replace(&mut rank.memory, vec![0; 3 << 20]);
    rank.settle().unwrap();
    rank.session.restore().unwrap();
    assert!(rank.memory == expected);
}

#[test]
fn a_message_beyond_the_limit_is_left_out() {
    let Some(folder) = child() else {
        let folder = tempfile::tempdir().unwrap();
        let said = folder.path().join("said");
        std::fs::write(&said, vec![b'x'; 5000]).unwrap();
        let name = "a_message_beyond_the_limit_is_left_out";
        let status = run_child(name, folder.path(), &said);
        assert!(status.success(), "{status}");
        return;
    };
    // Standard error is a file of 5000 bytes.
    limit_files(Some(5000));
    assert!(alone(&config(&folder)).is_err());
    backstay_base::notice::warn("this does not fit");
    limit_files(None);
}

/// Descriptors 0 to 2 that are open, what they are, and whether they can be written.
fn standard() -> Vec<(i32, PathBuf, bool)> {
    let about = |fd: i32| {
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let mode = u32::from_str_radix(flags.trim(), 8).ok()? & 3;
        Some((fd, path, mode != 0))
    };
    (0..3).filter_map(about).collect()
}

/// None of them can be written at any time, and what is read there is closed again.
fn standard_is_closed() {
    for _ in 0..1000 {
        let found = standard();
        assert!(!found.iter().any(|(_, _, written)| *written), "{found:?}");
        if found.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("{:?} stay open", standard());
}

#[test]
fn descriptors_of_ours_are_never_the_standard_ones() {
    let Some(folder) = child() else {
        for base in [Some("/dev/shm"), None] {
            let folder = base
                .map_or_else(tempfile::tempdir, tempfile::tempdir_in)
                .unwrap();
            succeed(
                "descriptors_of_ours_are_never_the_standard_ones",
                folder.path(),
            );
        }
        return;
    };
    let said = folder.join("said");
    std::panic::set_hook(Box::new(move |panic| {
        drop(std::fs::write(&said, panic.to_string()));
    }));
    for fd in 0..3 {
        // SAFETY: nobody in this process needs them from here on.
        assert_eq!(unsafe { libc::close(fd) }, 0);
    }
    let config = Config {
        archive: Some(folder.join("archive")),
        archive_every: Some(1),
        ..config(&folder)
    };
    std::fs::create_dir_all(folder.join("archive")).unwrap();
    let mut rank = at_work(&config, 2);
    rank.protect(backstay::config::Tracking::Pages).unwrap();
    for _ in 0..3 {
        rank.compute();
        rank.session.checkpoint().unwrap();
        standard_is_closed();
        backstay_base::notice::warn("what would be the store's superblock");
        drop(std::io::stdout().write_all(b"printed by the application\n"));
    }
    let Rank { session, step, .. } = *rank;
    session.close().unwrap();
    standard_is_closed();
    restores(&config, step);
    std::process::exit(0);
}

/// A communicator that counts how often it was released.
#[derive(Debug)]
struct Counted(ThreadComm, Arc<AtomicU64>);

impl Communicator for Counted {
    fn rank(&self) -> u32 {
        self.0.rank()
    }
    fn size(&self) -> u32 {
        self.0.size()
    }
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        self.0.allgather(mine, all)
    }
    fn allreduce_max(&self, values: &mut [i64]) -> Result<()> {
        self.0.allreduce_max(values)
    }
    fn barrier(&self) -> Result<()> {
        self.0.barrier()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// What a forked child does with the session: a number that says what went wrong, or 0.
fn in_the_fork(rank: Box<Rank>, released: &AtomicU64) -> i32 {
    let Rank { mut session, .. } = *rank;
    let handle = session.checkpoint_start();
    let refused = [
        session.checkpoint().map(drop),
        handle.map(drop),
        session.restore().map(drop),
        session.due().map(drop),
        session.scrub().map(drop),
        session.pin(1),
        session.unprotect("step"),
        session.variable("field").map(drop),
        session.stored_shape("field", 0).map(drop),
    ];
    for (number, outcome) in (1..).zip(refused) {
        let fork = outcome.is_err_and(|error| {
            error.kind() == ErrorKind::InvalidArgument && error.to_string().contains("fork")
        });
        if !fork {
            return number;
        }
    }
    drop(session);
    i32::try_from(released.load(Ordering::SeqCst)).unwrap_or(100) * 50
}

#[test]
fn a_forked_child_is_refused_and_changes_nothing() {
    let Some(folder) = child() else {
        let folder = tempfile::tempdir().unwrap();
        succeed(
            "a_forked_child_is_refused_and_changes_nothing",
            folder.path(),
        );
        return;
    };
    let config = Config {
        archive: Some(folder.join("archive")),
        archive_every: Some(1),
        ..config(&folder)
    };
    std::fs::create_dir_all(folder.join("archive")).unwrap();
    let released = Arc::new(AtomicU64::new(0));
    let comm = Counted(ThreadComm::new(1).remove(0), Arc::clone(&released));
    let session = backstay::Session::open(Box::new(comm), config.clone()).unwrap();
    let mut rank = Box::new(Rank::of(session));
    rank.settle().unwrap();
    rank.compute();
    rank.session.checkpoint().unwrap();
    // SAFETY: the child calls what is under test, allocates (which the C library allows), and exits.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let code = in_the_fork(rank, &released);
        // SAFETY: ends the child without what the test's process would do at its end.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    for _ in 0..3000 {
        // SAFETY: `pid` is our child.
        if unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == pid {
            assert_eq!(status, 0, "what the child says");
            for _ in 0..3 {
                rank.compute();
                rank.session.checkpoint().unwrap();
            }
            let Rank { session, step, .. } = *rank;
            session.close().unwrap();
            assert_eq!(released.load(Ordering::SeqCst), 1);
            restores(&config, step);
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the child hangs");
}

#[test]
fn relative_paths_are_those_of_the_beginning() {
    let Some(folder) = child() else {
        let folder = tempfile::tempdir().unwrap();
        succeed("relative_paths_are_those_of_the_beginning", folder.path());
        return;
    };
    for name in ["elsewhere", "archive"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    let config = Config {
        store_path: Some(PathBuf::from("stores")),
        archive: Some(PathBuf::from("archive")),
        archive_every: Some(1),
        ..config(&folder)
    };
    let mut rank = Box::new(alone(&config).unwrap());
    rank.settle().unwrap();
    std::env::set_current_dir(folder.join("elsewhere")).unwrap();
    for _ in 0..3 {
        rank.compute();
        rank.session.checkpoint().unwrap();
    }
    let Rank { session, step, .. } = *rank;
    session.close().unwrap();
    assert_eq!(std::fs::read_dir(".").unwrap().count(), 0);
    std::env::set_current_dir(&folder).unwrap();
    restores(&config, step);
}
