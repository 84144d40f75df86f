// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay rm` and `prune --older`: what goes, what stays, and when nothing may.

use crate::archives::{JOB, archived_job, archiving, folder, on_disk};
use crate::job::{RANKS, Rank, backstay, command, finish, run_job, store};
use backstay::config::Redundancy;
use backstay::{Communicator, Level};
use backstay_archive::Catalog;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use serde_json::json;
use std::path::Path;

/// Everything below a path, as texts.
fn all_below(path: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            all.push(entry.path().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    all.sort();
    all
}

#[test]
fn rm_shows_what_goes_then_removes_it_and_says_how_much() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    archived_job(path, 2, None, 2);
    let mine = store(path, 1).with_file_name("notes.txt");
    std::fs::write(&mine, "not Backstay's").unwrap();
    let nodes = [0, 1].map(|node| store(path, node).parent().unwrap().to_owned());
    let own = std::fs::metadata(&mine).unwrap();
    let own = std::os::unix::fs::MetadataExt::blocks(&own) * 512;
    let bytes = on_disk(&nodes[0]) + on_disk(&nodes[1]) + on_disk(&folder(path)) - own;
    let before = all_below(path);

    let ran = backstay(&["rm", "--dry-run"], &[path]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(
        ran.out.contains("node node0") && ran.out.contains("archive"),
        "{ran:?}"
    );
    assert!(
        ran.err.contains("notes.txt stays: it is not Backstay's"),
        "{ran:?}"
    );
    let ran = backstay(&["rm"], &[path]);
    assert!(ran.status == 2 && ran.err.contains("--yes"), "{ran:?}");
    let ran = backstay(&["rm", "--json"], &[path]);
    assert_eq!(
        (ran.status, &ran.json()["error"]["kind"]),
        (2, &json!("usage")),
        "{ran:?}"
    );
    assert_eq!(all_below(path), before, "nothing was done");

    let ran = backstay(&["rm", "--yes", "--only", "archives", "--json"], &[path]);
    let json = ran.json();
    assert_eq!((ran.status, &json["done"]), (0, &json!(true)), "{ran:?}");
    assert_eq!(json["folders"][0]["kind"], "archive");
    assert!(!folder(path).exists() && store(path, 0).exists());
    let json_nodes = backstay(&["rm", "--yes", "--json"], &[path]).json();
    let freed = |json: &serde_json::Value| json["bytes_freed"].as_u64().unwrap();
    assert_eq!(
        freed(&json) + freed(&json_nodes),
        bytes,
        "{json} {json_nodes}"
    );
    // What is not Backstay's, and the folders above it, is all that is left.
    let left: Vec<String> = all_below(path)
        .into_iter()
        .filter(|p| !Path::new(p).is_dir())
        .collect();
    assert_eq!(left, [mine.display().to_string()]);
    assert!(!nodes[0].exists());
    let ran = backstay(&["rm", "--yes"], &[path]);
    assert!(
        ran.status == 1 && ran.err.contains("nothing of Backstay's"),
        "{ran:?}"
    );
}

#[test]
fn rm_finds_a_job_by_its_name() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    archived_job(path, 4, None, 1);
    // Another job beside it.
    let other = path.join("other job");
    std::fs::create_dir_all(other.join("node0")).unwrap();
    std::fs::copy(store(path, 0), other.join("node0/store.backstay")).unwrap();
    let set = |words: &[&str]| {
        let mut command = command();
        command
            .args(words)
            .env("BACKSTAY_STORE_PATH", path)
            .env("BACKSTAY_ARCHIVE", path.join("pfs"));
        finish(&mut command)
    };
    let ran = set(&["rm", "no job"]);
    assert!(
        ran.status == 1 && ran.err.contains("of a job \"no job\""),
        "{ran:?}"
    );
    // A folder by the name of one job with a store of another is not that job's.
    let ran = set(&["rm", "--yes", "other job"]);
    assert_eq!(ran.status, 1, "{ran:?}");
    let ran = set(&["rm", "--yes", JOB]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.out.contains("freed"), "{ran:?}");
    assert!(!folder(path).exists() && !path.join(JOB).exists());
    assert!(other.join("node0/store.backstay").exists());
    let ran = backstay(&["rm"], &[]);
    assert_eq!(ran.status, 2, "it wants to know what: {ran:?}");
}

#[test]
fn rm_refuses_what_a_job_uses() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let rank = usize::try_from(comm.rank()).unwrap();
        let mut one = Rank::open(comm, archiving(path, rank, 4));
        one.compute();
        let handle = one.session.checkpoint_start().unwrap();
        one.session.wait(handle, Level::Archive).unwrap();
        if rank == 0 {
            // The job goes on beside it: a file that it replaces is there under two names at times.
            let settled = || -> Vec<String> {
                let replacing = |name: &String| Path::new(name).extension() == Some("new".as_ref());
                let all = all_below(path).into_iter();
                all.filter(|name| !replacing(name)).collect()
            };
            let before = settled();
            for only in ["nodes", "archives"] {
                let ran = backstay(&["rm", "--yes", "--only", only], &[path]);
                assert_eq!(ran.status, 1, "{ran:?}");
                let me = format!("process {}", std::process::id());
                assert!(ran.err.contains(&me), "{ran:?}");
            }
            assert_eq!(settled(), before);
        }
        one.compute();
        one.session.checkpoint().unwrap();
        one.session.close().unwrap();
    });
    assert_eq!(backstay(&["rm", "--yes"], &[path]).status, 0);
    assert_eq!(all_below(path), [path.join("pfs").display().to_string()]);
}

#[test]
fn what_only_looks_like_a_store_stays() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    let folder = path.join("job/node");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, text) in [
        ("store.backstay", "my own file"),
        ("catalog-1.backstay", "mine too"),
        ("lock.backstay", "a key"),
        ("metrics.json", "{}"),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let before = all_below(path);
    let ran = backstay(&["rm", "--yes"], &[path]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert_eq!(all_below(path), before);
    let ran = backstay(&["rm", "--yes"], &[&path.join("nowhere/x")]);
    assert!(
        ran.status == 1 && ran.err.contains("no such file"),
        "{ran:?}"
    );
    // A store of which the first copy of the superblock is damaged is one all the same.
    run_job(path, 4, 1);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(store(path, 0))
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 0).unwrap();
    let ran = backstay(&["rm", "--yes"], &[&path.join("test job")]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert_eq!(all_below(path), before);
}

#[test]
fn prune_older_takes_the_old_ones_and_leaves_the_newest() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    archived_job(path, 4, None, 3);
    let archive = folder(path);
    let listed = || -> Vec<u64> {
        let catalog = Catalog::open_reader(&archive).unwrap();
        let all = catalog.state().checkpoints.iter();
        all.map(|entry| entry.checkpoint.number).collect()
    };
    let ran = backstay(&["prune", "--yes", "--older", "7d"], &[&archive]);
    assert!(
        ran.status == 0 && ran.out.contains("nothing was done"),
        "{ran:?}"
    );
    // Of the same age, and two are to stay.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let ran = backstay(
        &["prune", "--yes", "--older", "1s", "--retained", "2"],
        &[&archive],
    );
    assert_eq!((ran.status, listed()), (0, vec![2, 3]), "{ran:?}");
    let ran = backstay(&["prune", "--yes", "--older", "1s"], &[&archive]);
    assert_eq!((ran.status, listed()), (0, vec![3]), "{ran:?}");
    let ran = backstay(&["prune", "--older", "soon"], &[&archive]);
    assert!(ran.status == 2 && ran.err.contains("2h, 1d"), "{ran:?}");
}

/// One run that finishes with its second checkpoint.
fn finished_run(path: &Path) {
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let rank = usize::try_from(comm.rank()).unwrap();
        let mut one = Rank::open(comm, archiving(path, rank, 4));
        one.compute();
        let handle = one.session.checkpoint_start().unwrap();
        one.session.wait(handle, Level::Archive).unwrap();
        one.compute();
        one.session.finish().unwrap();
    });
}

#[test]
fn what_a_program_finished_with_goes_only_where_that_is_said() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    finished_run(path);
    finished_run(path);
    let archive = folder(path);
    let listed = || -> Vec<(u64, bool)> {
        let catalog = Catalog::open_reader(&archive).unwrap();
        let all = catalog.state().checkpoints.iter();
        all.map(|entry| (entry.checkpoint.number, entry.finished))
            .collect()
    };
    assert_eq!(listed(), [(1, false), (2, true), (3, false), (4, true)]);
    let ran = backstay(&["prune", "--yes", "--retained", "1"], &[&archive]);
    assert_eq!(
        (ran.status, listed()),
        (0, vec![(2, true), (4, true)]),
        "{ran:?}"
    );
    let words = ["prune", "--yes", "--finished", "--older", "7d"];
    let ran = backstay(&words, &[&archive]);
    assert_eq!((ran.status, listed().len()), (0, 2), "{ran:?}");
    let ran = backstay(&["prune", "--yes", "--finished"], &[&archive]);
    assert_eq!((ran.status, listed()), (0, vec![(4, true)]), "{ran:?}");
    let ran = backstay(&["status"], &[&path.join(JOB)]);
    assert!(ran.status == 0 && ran.out.contains("finished"), "{ran:?}");
    let ran = backstay(&["verify"], &[&archive]);
    assert_eq!(ran.status, 0, "{ran:?}");
}

/// A remote shell: the word behind it is a folder below `root` that is the stores' place there; `down` does not answer.
fn shell(root: &Path) -> String {
    use std::os::unix::fs::PermissionsExt;
    let shell = root.join("shell");
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = down ] && {{ echo no way >&2; exit 255; }}\nhost=$1; shift\n\
         eval \"BACKSTAY_STORE_PATH='{}/'$host $*\" | sed \"s/^/ /\"\n",
        root.display()
    );
    // The settings come first: what is set behind them counts.
    let text = text.replace(
        "eval \"BACKSTAY",
        "line=$(printf '%s' \"$*\" | sed \"s|BACKSTAY_STORE_PATH='[^']*'||\"); set -- \"$line\"\neval \"BACKSTAY",
    );
    std::fs::write(&shell, text).unwrap();
    std::fs::set_permissions(&shell, PermissionsExt::from_mode(0o755)).unwrap();
    shell.to_str().unwrap().to_owned()
}

/// A job of two nodes, one of which has its stores in the place of another host.
fn two_hosts(root: &Path, finish: bool) {
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let rank = usize::try_from(comm.rank()).unwrap();
        let mut config = archiving(root, rank, 2);
        config.archive = None;
        config.redundancy = Redundancy::Partner;
        config.store_path = Some(root.join(["here", "there"][rank / 2]));
        let mut one = Rank::open(comm, config);
        one.compute();
        one.session.checkpoint().unwrap();
        if finish {
            one.session.finish().unwrap();
        } else {
            one.session.close().unwrap();
        }
    });
}

fn on_this_host(root: &Path, words: &[&str]) -> crate::job::Ran {
    let mut command = command();
    command
        .args(words)
        .env("BACKSTAY_STORE_PATH", root.join("here"));
    finish(&mut command)
}

#[test]
fn rm_says_which_nodes_keep_something_and_removes_it_there() {
    let root = tempfile::tempdir().unwrap();
    let (root, shell) = (root.path(), shell(root.path()));
    two_hosts(root, false);
    let there = root.join("there").join(JOB);
    let ran = on_this_host(root, &["rm", JOB, "--dry-run"]);
    let hint = format!("backstay rm {JOB} --nodes node1");
    assert!(ran.status == 0 && ran.err.contains(&hint), "{ran:?}");
    let json = on_this_host(root, &["rm", JOB, "--dry-run", "--json"]).json();
    assert_eq!(
        json["elsewhere"],
        json!([{ "job": JOB, "nodes": ["node1"], "more": 0 }])
    );
    let asked = ["rm", JOB, "--remote-shell", &shell, "--nodes", "there,down"];
    let with = |words: &[&'static str]| -> Vec<&str> {
        asked.iter().copied().chain(words.iter().copied()).collect()
    };
    let ran = on_this_host(root, &with(&["--dry-run"]));
    assert_eq!(ran.status, 1, "a node did not answer: {ran:?}");
    assert!(
        ran.out.contains("node node1") && ran.out.contains("there:/"),
        "{ran:?}"
    );
    assert!(
        ran.err.contains("node down: ") && ran.err.contains("no way"),
        "{ran:?}"
    );
    assert!(there.exists());
    let json = on_this_host(root, &with(&["--yes", "--json"])).json();
    assert_eq!(json["failed"][0]["node"], "down", "{json}");
    assert_eq!(json["folders"][1]["host"], "there", "{json}");
    assert!(json["files_removed"].as_u64() > Some(4), "{json}");
    assert!(!there.exists() && !root.join("here").join(JOB).exists());
    // Nothing here, and nothing there.
    let words = [
        "rm",
        JOB,
        "--yes",
        "--remote-shell",
        &shell,
        "--nodes",
        "there",
    ];
    let ran = on_this_host(root, &words);
    assert!(
        ran.status == 1 && ran.err.contains("nothing of Backstay's"),
        "{ran:?}"
    );
}

#[test]
fn stores_of_finished_jobs_go_from_nodes() {
    let root = tempfile::tempdir().unwrap();
    let (root, shell) = (root.path(), shell(root.path()));
    two_hosts(root, false);
    let stores = ["here", "there"].map(|host| root.join(host).join(JOB));
    let ran = on_this_host(root, &["prune", "--finished", "--yes", "--only", "nodes"]);
    assert!(
        ran.status == 0 && ran.out.contains("nothing was done"),
        "{ran:?}"
    );
    two_hosts(root, true);
    let ran = on_this_host(root, &["prune", "--only", "nodes"]);
    assert!(ran.status == 2 && ran.err.contains("--finished"), "{ran:?}");
    let ran = on_this_host(
        root,
        &[
            "prune",
            "--finished",
            "--older",
            "7d",
            "--yes",
            "--only",
            "nodes",
        ],
    );
    assert!(
        ran.status == 0 && ran.out.contains("nothing was done"),
        "{ran:?}"
    );
    let words = [
        "prune",
        "--finished",
        "--yes",
        "--json",
        "--remote-shell",
        &shell,
        "--nodes",
        "there",
    ];
    let ran = on_this_host(root, &words);
    assert_eq!(ran.status, 0, "{ran:?}");
    let json = ran.json();
    assert_eq!(
        (&json["done"], &json["stores"][1]["host"]),
        (&json!(true), &json!("there")),
        "{json}"
    );
    assert!(stores.iter().all(|store| !store.exists()), "{json}");
}
