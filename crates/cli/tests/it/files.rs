// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of a checkpoint: shown, and written out, also while the job runs; what a set left is removed.

use crate::job::{backstay, config};
use backstay::{Communicator, Session};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use serde_json::json;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

const RANKS: usize = 2;

fn state(rank: u32, step: u64) -> Vec<u8> {
    format!("rank {rank} step {step} ")
        .repeat(5000)
        .into_bytes()
}

/// Ranks with a log each and a set of two steps, of which the second is left open; `look` while they run.
fn job(stores: &Path, logs: &Path, look: impl Fn() + Sync) {
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let rank = comm.rank();
        let config = config(stores, usize::try_from(rank).unwrap(), RANKS);
        let mut session = Session::open(Box::new(comm), config).unwrap();
        let log = logs.join(format!("log of {rank}"));
        std::fs::write(&log, format!("log {rank}")).unwrap();
        std::fs::set_permissions(&log, std::fs::Permissions::from_mode(0o604)).unwrap();
        session.protect_file("log", &log).unwrap();
        for step in 1..=2 {
            session.output_start().unwrap();
            let name = format!("/scratch/ckpt.{step}/rank_{rank}");
            let path = session.route_file(name).unwrap();
            std::fs::write(path, state(rank, step)).unwrap();
            if rank == 0 {
                let odd = session.route_file(OsStr::from_bytes(b"odd \xff")).unwrap();
                std::fs::File::create(odd)
                    .unwrap()
                    .set_len(1 << 30)
                    .unwrap();
            }
            if step == 1 {
                session.output_complete(true).unwrap();
            }
        }
        if rank == 0 {
            look();
        }
    });
}

fn names_below(folder: &Path) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(at).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                let path = entry.path();
                let name = path.strip_prefix(folder).unwrap();
                found.push(name.as_os_str().as_bytes().to_vec());
            }
        }
    }
    found.sort();
    found
}

fn folders() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let stores = root.path().join("stores");
    std::fs::create_dir(&stores).unwrap();
    (root, stores)
}

#[test]
fn files_are_written_out_under_their_names_while_the_job_runs() {
    let (root, stores) = folders();
    let out = root.path().join("out");
    job(&stores, root.path(), || {
        let ran = backstay(
            &["export", "--files", "-o", out.to_str().unwrap()],
            &[&stores],
        );
        assert_eq!(ran.status, 0, "{ran:?}");
        assert!(ran.out.contains("5 files"), "{ran:?}");
    });
    let names: [&[u8]; 5] = [
        b"log.rank0",
        b"log.rank1",
        b"odd \xff",
        b"scratch/ckpt.1/rank_0",
        b"scratch/ckpt.1/rank_1",
    ];
    assert_eq!(names_below(&out), names);
    for rank in 0..2 {
        let file = out.join(format!("scratch/ckpt.1/rank_{rank}"));
        assert_eq!(std::fs::read(file).unwrap(), state(rank, 1));
        let log = out.join(format!("log.rank{rank}"));
        assert_eq!(
            std::fs::read_to_string(&log).unwrap(),
            format!("log {rank}")
        );
        let (then, now) = (
            root.path().join(format!("log of {rank}")),
            std::fs::metadata(log).unwrap(),
        );
        let then = std::fs::metadata(then).unwrap();
        assert_eq!(
            (now.mode() & 0o777, now.mtime_nsec()),
            (0o604, then.mtime_nsec())
        );
    }
    let odd = std::fs::metadata(out.join(OsStr::from_bytes(b"odd \xff"))).unwrap();
    assert_eq!((odd.len(), odd.blocks()), (1 << 30, 0), "holes stay holes");
}

#[test]
fn files_are_told_from_arrays_and_what_a_set_left_is_removed() {
    let (root, stores) = folders();
    job(&stores, root.path(), || {});
    // One of them, of one rank.
    let one = root.path().join("one");
    let words = [
        "export",
        "--files",
        "--json",
        "-v",
        "log",
        "-r",
        "1",
        "-o",
        one.to_str().unwrap(),
    ];
    let ran = backstay(&words, &[&stores]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let wanted = json!([{"name": "log", "variable": "log", "rank": 1, "bytes": 5}]);
    assert_eq!(ran.json()["files"], wanted, "{ran:?}");
    assert_eq!(names_below(&one), [b"log"]);
    // A file is no array.
    let ran = backstay(&["export", "-v", "log", "-o", "x.npz"], &[&stores]);
    assert!(ran.status == 2 && ran.err.contains("--files"), "{ran:?}");
    let ran = backstay(&["export", "--files", "-v", "none", "-o", "x"], &[&stores]);
    assert!(
        ran.status != 0 && ran.err.contains("no such files"),
        "{ran:?}"
    );

    let ran = backstay(&["inspect"], &[&stores]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(
        ran.out.contains("scratch/ckpt.1/rank_0 and 1 others"),
        "{ran:?}"
    );
    let ran = backstay(&["inspect", "-v", "log"], &[&stores]);
    assert!(ran.out.contains("log of 1: 5 B, mode 0604"), "{ran:?}");
    let ran = backstay(&["inspect", "--json", "-v", "log"], &[&stores]);
    let file = &ran.json()["variables"][0]["parts"][1]["file"];
    assert_eq!(
        (&file["mode"], &file["routed"]),
        (&json!("0604"), &json!(false)),
        "{file}"
    );

    // What the second set left goes with the rest.
    let left = names_below(&stores).into_iter();
    assert_eq!(
        left.filter(|name| name.windows(7).any(|w| w == b"/files/"))
            .count(),
        3
    );
    let ran = backstay(&["rm", "--yes"], &[&stores]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert_eq!(names_below(&stores), [] as [&[u8]; 0], "{ran:?}");
}
