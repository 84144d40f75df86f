// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files that are imported come back byte for byte, merged by what they hold; what does not fit is refused.

use crate::archives::{archived_job, archiving, folder as archive_of};
use crate::job::{RANKS, Ran, backstay, command};
use backstay::{Communicator, Level, Session};
use backstay_archive::drain::fetch::open_device;
use backstay_archive::store_file;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hdf5/tests/fixtures");

/// A file of numpy with an array that is smooth over all ranks.
fn npy(rank: u32, step: u32) -> Vec<u8> {
    let header = format!(
        "{{'descr': '<f8', 'fortran_order': False, 'shape': (60, 500), }}{:>51}\n",
        ""
    );
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
    bytes.extend(header.as_bytes());
    for index in 0..30_000_u32 {
        let at = f64::from(index) * 1e-4 + f64::from(rank) + f64::from(step) * 1e-3;
        bytes.extend(at.sin().to_le_bytes());
    }
    bytes
}

fn run(words: &[&str]) -> Ran {
    backstay(words, &[])
}

fn json(words: &[&str]) -> Value {
    let done = run(words);
    assert_eq!(done.status, 0, "{words:?}: {}", done.err);
    done.json()
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Two steps of four ranks, each with an array and a file of HDF5; and a file that fits nothing.
fn files(root: &Path) -> PathBuf {
    let folder = root.join("run");
    let hdf5 = std::fs::read(Path::new(FIXTURES).join("latest.h5")).unwrap();
    for step in [0, 10] {
        for rank in 0..4 {
            let of = |name: &str| folder.join(format!("step{step:03}/{name}.{rank}"));
            write(&of("array"), &npy(rank, step));
            let mut own = hdf5.clone();
            // A value of `temperature` of its own.
            own[2048] = u8::try_from(rank).unwrap();
            write(&of("state"), &own);
        }
    }
    write(&folder.join("notes.txt"), b"not of a rank");
    folder
}

fn same_files(one: &Path, other: &Path, below: &str) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(one.join(below)).unwrap() {
        let path = entry.unwrap().path();
        let back = other.join(below).join(path.file_name().unwrap());
        assert_eq!(
            std::fs::read(&path).unwrap(),
            std::fs::read(&back).unwrap(),
            "{}",
            path.display()
        );
        let time = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
        assert_eq!(time(&path), time(&back), "{}", path.display());
        count += 1;
    }
    count
}

#[test]
fn imported_files_come_back_as_they_were() {
    let root = tempfile::tempdir().unwrap();
    let folder = files(root.path());
    let archive = root.path().join("archive");
    let pattern = ["-p", "step{step}/*.{rank}", "--add", "1", "--json"];
    let to = ["--archive", archive.to_str().unwrap()];
    let words = [&["import", folder.to_str().unwrap()][..], &to, &pattern].concat();
    let planned = json(&[&words[..], &["--dry-run"]].concat());
    assert_eq!(planned["done"], Value::Bool(false));
    assert!(!archive.exists(), "nothing was done");
    let done = json(&words);
    assert_eq!(
        (&done["job"], &done["left_out"][0]),
        (&"run".into(), &"notes.txt".into())
    );
    let first = &done["checkpoints"][0];
    assert_eq!(
        (&first["number"], &first["ranks"], &first["files"]),
        (&1.into(), &4.into(), &8.into())
    );
    let bytes = first["bytes"].as_u64().unwrap();
    assert!(
        first["bytes_stored"].as_u64().unwrap() * 4 < bytes,
        "{first}"
    );
    // What the second step has of the first is not stored again.
    let second = &done["checkpoints"][1];
    assert!(
        second["bytes_changed"].as_u64().unwrap() < bytes,
        "{second}"
    );

    let archive = archive.to_str().unwrap();
    let verified = json(&["verify", archive, "--json"]);
    assert_eq!(verified["good"], Value::Bool(true));
    let shown = json(&["inspect", archive, "-c", "1", "--json"]);
    let variables = shown["variables"].as_array().unwrap();
    let names: Vec<&str> = variables
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["step{step}/array.{rank}", "step{step}/state.{rank}"]
    );
    let array = &variables[0];
    assert_eq!(
        (&array["ranks"], &array["stored"]["ranks_merged"]),
        (&4.into(), &4.into())
    );
    // No hole, though it is stored in another order than it has.
    assert_eq!(array["parts"][0]["file"]["has_holes"], Value::Bool(false));
    // Its array was compressed as numbers.
    let best = &array["stored"]["codecs"][0];
    assert!(
        best["coder"] == "pco" || best["arrangement"] != "plain",
        "{best}"
    );

    let out = root.path().join("out");
    for number in ["1", "11"] {
        json(&[
            "export",
            archive,
            "--files",
            "-c",
            number,
            "-o",
            out.to_str().unwrap(),
            "--json",
        ]);
    }
    assert_eq!(
        same_files(&folder, &out, "step000") + same_files(&folder, &out, "step010"),
        16
    );

    // The same once more, and what is older, is refused; what is newer is added.
    let again = run(&words);
    assert_eq!(again.status, 1);
    assert!(
        again.err.contains("cannot follow checkpoint 11"),
        "{}",
        again.err
    );
}

/// Of the newest store of an archive what its segments hold, and the most ranks' pieces in one.
fn segments(folder: &Path) -> BTreeMap<String, usize> {
    let device = open_device(folder, &store_file(0, 1)).unwrap();
    let mut found = BTreeMap::new();
    for entry in device.entries() {
        let header = device.header(entry.segment).unwrap();
        let pieces = found.entry(header.variable).or_insert(0);
        *pieces = (*pieces).max(header.pieces.len());
    }
    found
}

/// A file of HDF5 with values of its own.
fn grid(rank: usize) -> Vec<u8> {
    let mut bytes = std::fs::read(Path::new(FIXTURES).join("grid.h5")).unwrap();
    let heat = bytes.len() - 64 * 256 * 8;
    for (place, value) in bytes[heat..].chunks_exact_mut(8).enumerate() {
        let place = u32::try_from(place + rank * 100_000).unwrap();
        value.copy_from_slice(&(f64::from(place) * 1e-3).sin().to_le_bytes());
    }
    bytes
}

#[test]
fn datasets_of_imported_files_are_merged_over_ranks() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("run");
    for rank in 0..4 {
        write(&folder.join(format!("r.{rank}.h5")), &grid(rank));
    }
    let archive = root.path().join("archive");
    json(&[
        "import",
        folder.to_str().unwrap(),
        "--archive",
        archive.to_str().unwrap(),
        "--json",
    ]);
    let held = segments(&archive.join("run"));
    // 8 blocks of 16 KiB a rank, all of them in one segment; 4 of chunks that are the same on all ranks.
    assert_eq!(
        (held["r.#.h#:/heat"], held["r.#.h#:/density"]),
        (32, 4),
        "{held:?}"
    );
}

#[test]
fn datasets_of_protected_files_are_merged_over_ranks_when_they_are_drained() {
    let root = tempfile::tempdir().unwrap();
    let files = root.path().join("files");
    std::fs::create_dir(&files).unwrap();
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let rank = usize::try_from(comm.rank()).unwrap();
        let path = files.join(format!("state.{rank}.h5"));
        std::fs::write(&path, grid(rank)).unwrap();
        let mut session = Session::open(Box::new(comm), archiving(root.path(), rank, 2)).unwrap();
        session.protect_file("state", &path).unwrap();
        let handle = session.checkpoint_start().unwrap();
        session.wait(handle, Level::Archive).unwrap();
        session.close().unwrap();
    });
    let of_job = archive_of(root.path());
    // Two nodes drain for themselves: two ranks are merged. The file is stored in its order, in which arrays begin
    // within blocks: a block is of the one that has most of it.
    let held = segments(&of_job);
    assert_eq!(
        (held["state:/heat"], held["state:/density"]),
        (18, 4),
        "{held:?}"
    );
    let out = root.path().join("out");
    let words = [
        "export",
        of_job.to_str().unwrap(),
        "--files",
        "-o",
        out.to_str().unwrap(),
        "--json",
    ];
    json(&words);
    for rank in 0..RANKS {
        let back = std::fs::read(out.join(format!("state.rank{rank}"))).unwrap();
        assert!(back == grid(rank), "rank {rank}");
    }
}

/// The numbers of checkpoints that are in an archive, each of which is whole.
fn whole(archive: &Path) -> Vec<u64> {
    let listed = backstay(&["ls", "--json"], &[archive]);
    if listed.status != 0 {
        return Vec::new();
    }
    let verified = run(&["verify", archive.to_str().unwrap(), "--json"]).json();
    let all = verified["checkpoints"].as_array().unwrap();
    let is_good = |one: &Value| one["good"] == true || one["complete"] == false;
    assert!(all.iter().all(is_good), "{verified}");
    let complete = all.iter().filter(|one| one["complete"] == true);
    complete
        .map(|one| one["number"].as_u64().unwrap())
        .collect()
}

#[test]
fn an_import_that_is_killed_is_done_again() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("run");
    for step in 1..=2 {
        for rank in 0..4 {
            let bytes: Vec<u8> = (0..4).flat_map(|more| npy(rank * 7 + more, step)).collect();
            write(&folder.join(format!("s.{step}.{rank}")), &bytes);
        }
    }
    let archive = root.path().join("archive");
    let to = ["--archive", archive.to_str().unwrap()];
    let words = [&["import", "--json", "-p", "s.{step}.{rank}"][..], &to].concat();
    for milliseconds in [5, 60, 150, 300, 600] {
        let mut begun = command();
        begun
            .args(&words)
            .arg(&folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = begun.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.kill().unwrap();
        child.wait().unwrap();
        whole(&archive);
    }
    for step in 1..=2 {
        if !whole(&archive).contains(&step) {
            let (pattern, number) = (format!("s.{step}.{{rank}}"), step.to_string());
            let of_step = [
                "import",
                folder.to_str().unwrap(),
                "--json",
                "-p",
                &pattern,
                "-n",
                &number,
            ];
            json(&[&of_step[..], &to].concat());
        }
    }
    // A catalog of which the making was killed is told of, and no checkpoint needs it.
    assert_eq!(whole(&archive), [1, 2]);
    let out = root.path().join("out");
    for number in ["1", "2"] {
        let words = [
            "export",
            archive.to_str().unwrap(),
            "--files",
            "-c",
            number,
            "--json",
            "-o",
        ];
        json(&[&words[..], &[out.to_str().unwrap()]].concat());
    }
    assert_eq!(same_files(&folder, &out, ""), 8);
}

#[test]
fn files_without_a_pattern_are_ranks_in_the_order_of_their_numbers() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("dump");
    for rank in 0..12_u8 {
        write(&folder.join(format!("r{rank}.bin")), &vec![rank; 40_000]);
    }
    write(&folder.join(".hidden"), b"left out");
    let archive = root.path().join("archive");
    let words = [
        "import",
        folder.to_str().unwrap(),
        "--archive",
        archive.to_str().unwrap(),
        "--json",
    ];
    assert_eq!(json(&words)["checkpoints"][0]["number"], 1);
    assert_eq!(json(&words)["checkpoints"][0]["number"], 2, "the next one");
    let shown = json(&[
        "inspect",
        archive.to_str().unwrap(),
        "--json",
        "-v",
        "r#.bin",
    ]);
    let parts = shown["variables"][0]["parts"].as_array().unwrap();
    let names: Vec<&str> = parts
        .iter()
        .map(|one| one["file"]["name"].as_str().unwrap())
        .collect();
    assert_eq!((names[9], names[10]), ("r9.bin", "r10.bin"));
}

#[test]
fn what_does_not_fit_is_refused_with_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("dump");
    for name in ["a.0.1", "a.0.3", "a.0.01", "b.0"] {
        write(&folder.join(name), b"bytes");
    }
    let archive = root.path().join("archive");
    let refused = |more: &[&str]| {
        let to = [
            "import",
            folder.to_str().unwrap(),
            "--archive",
            archive.to_str().unwrap(),
        ];
        let done = run(&[&to[..], more].concat());
        assert_ne!(done.status, 0, "{more:?}");
        done.err
    };
    for (words, text) in [
        (&["-p", "a.{step}.{rank}"][..], "both of rank 1"),
        (
            &["-p", "*.0.{rank}", "-p", "x.{step}.{rank}"],
            "some patterns",
        ),
        (&["-p", "x.{rank}"], "no file fits x.{rank}"),
        (&["-p", "a.{step}"], "it needs {rank}"),
        (&["-p", "b.{rank}", "--number", "0"], "numbered from 1"),
        (&["-p", "b.{rank}", "--job", "a/b"], "job"),
        (&["nowhere"], "nowhere"),
    ] {
        let said = refused(words);
        assert!(said.contains(text), "{words:?}: {said}");
    }
    std::fs::remove_file(folder.join("a.0.01")).unwrap();
    let said = refused(&["-p", "a.0.{rank}"]);
    assert!(said.contains("no file of rank 2"), "{said}");
    // The archive of a job is not imported into.
    archived_job(root.path(), 2, None, 1);
    let of_job = archive_of(root.path());
    let (place, file) = (of_job.parent().unwrap(), folder.join("b.0"));
    let words = [
        "import",
        file.to_str().unwrap(),
        "--archive",
        place.to_str().unwrap(),
    ];
    let done = run(&[&words[..], &["--job", "test job"]].concat());
    assert_eq!(done.status, 1);
    assert!(done.err.contains("of a job that ran"), "{}", done.err);
}
