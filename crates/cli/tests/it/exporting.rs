// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `export`: arrays as they were in memory, put together from all ranks.

use crate::job::{GLOBAL, RANKS, WORDS, backstay, element, run_job, word};
use crate::numpy::{Array, read_npy, read_npz};
use serde_json::json;
use std::process::Stdio;

fn field(step: u64) -> Vec<f64> {
    let rows = 0..GLOBAL[0];
    rows.flat_map(|row| (0..GLOBAL[1]).map(move |column| element(row, column, step)))
        .collect()
}

fn big(rank: u64, step: u64) -> Vec<u64> {
    (0..WORDS)
        .map(|index| word(rank, index, if index == 5 { step } else { 0 }))
        .collect()
}

#[test]
fn a_global_array_is_put_together_from_all_ranks_of_all_nodes() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 1, 4);
    let file = folder.path().join("field.npy");
    let name = file.to_str().unwrap();
    for (words, step) in [(vec![], 4), (vec!["-c", "2"], 2), (vec!["-c", "3.1"], 3)] {
        let words = [vec!["export", "-v", "field", "-o", name], words].concat();
        let ran = backstay(&words, &[folder.path()]);
        assert_eq!(ran.status, 0, "{ran:?}");
        let array = read_npy(&file);
        assert_eq!((&*array.dtype, &*array.shape), ("<f8", &GLOBAL[..]));
        assert_eq!(array.floats(), field(step));
    }
    let entries = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(entries, 2, "a draft was left");
}

#[test]
fn a_whole_checkpoint_becomes_one_file() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 2, 3);
    let file = folder.path().join("all of it.npz");
    let ran = backstay(
        &["export", "--json", "-o", file.to_str().unwrap()],
        &[folder.path()],
    );
    assert_eq!(ran.status, 0, "{ran:?}");
    let arrays = read_npz(&file);
    assert_eq!(arrays.len(), 1 + 5 * RANKS);
    assert_eq!(arrays["field"].floats(), field(3));
    for rank in 0..4 {
        let of = |name: &str| &arrays[&format!("{name}.rank{rank}")];
        assert_eq!(of("big").words(), big(rank, 3));
        assert_eq!(
            (&*of("big").dtype, &*of("big").shape),
            ("<u8", &[WORDS / 100, 100][..])
        );
        assert_eq!((&of("step").shape, of("step").words()), (&vec![], vec![3]));
        assert_eq!((&*of("half").dtype, of("half").bytes.len()), ("<u2", 20));
        assert_eq!(of("half").bytes[..2], [0x80, 0x3f]);
        assert_eq!((&*of("wave").dtype, &*of("wave").shape), ("<c16", &[3][..]));
        assert_eq!(of("wave").floats(), [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]);
        let raw = Array {
            dtype: "|u1".to_owned(),
            shape: vec![5],
            bytes: vec![7; 5],
        };
        assert_eq!(*of("raw"), raw);
    }
    let json = ran.json();
    assert_eq!(json["notes"].as_array().unwrap().len(), 1);
    assert!(ran.err.contains("\"half\" is bfloat16"), "{ran:?}");
    let listed = json["arrays"].as_array().unwrap();
    let one = listed
        .iter()
        .find(|array| array["name"] == "half.rank2")
        .unwrap();
    let expected = json!({ "name": "half.rank2", "variable": "half", "type": "bf16", "dtype": "<u2",
        "shape": [10], "bytes": 20, "rank": 2, "ranks": 1 });
    assert_eq!(*one, expected);
}

#[test]
fn one_rank_of_a_variable_is_exported_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 4, 2);
    let file = folder.path().join("part.npy");
    let name = file.to_str().unwrap();
    let ran = backstay(
        &["export", "-v", "big", "-r", "3", "-o", name],
        &[folder.path()],
    );
    assert_eq!(ran.status, 0, "{ran:?}");
    assert_eq!(read_npy(&file).words(), big(3, 2));
    let ran = backstay(
        &["export", "-v", "field", "-r", "2", "-o", name],
        &[folder.path()],
    );
    assert_eq!(ran.status, 0, "{ran:?}");
    let array = read_npy(&file);
    assert_eq!(array.shape, [32, 48]);
    assert_eq!(array.floats()[0].to_bits(), element(32, 0, 2).to_bits());
}

#[test]
fn what_cannot_be_exported_is_told_before_a_file_is_made() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 4, 1);
    let made = folder.path().join("x.npy");
    let name = made.to_str().unwrap();
    for (words, status, says) in [
        (
            vec!["-v", "big", "-o", name],
            2,
            "give --rank, or -o FILE.npz",
        ),
        (vec!["-o", name], 2, "give --variable, or -o FILE.npz"),
        (
            vec!["-v", "big", "-o", "x.txt"],
            2,
            "in none of .npy, .npz, .safetensors",
        ),
        (
            vec!["-v", "none", "-o", name],
            1,
            "has no variable \"none\"",
        ),
        (
            vec!["-v", "big", "-r", "9", "-o", name],
            1,
            "rank 9 of checkpoint 1",
        ),
        (
            vec!["-c", "8", "-v", "field", "-o", name],
            1,
            "checkpoint 8 is not retained",
        ),
        (
            vec!["-v", "field", "-o", "/nowhere/x.npy"],
            1,
            "/nowhere/x.npy",
        ),
    ] {
        let words = [vec!["export"], words].concat();
        let ran = backstay(&words, &[folder.path()]);
        assert_eq!(ran.status, status, "{ran:?}");
        assert!(ran.err.contains(says), "{ran:?}");
        assert!(!made.exists());
    }
}

#[test]
fn an_interrupted_export_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    large_job(folder.path());
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let files = || std::fs::read_dir(&out).unwrap().count();
    for (signal, status) in [("-INT", 130), ("-TERM", 143)] {
        // A machine may be so fast that the file is whole before the signal comes.
        let interrupted = (0..20).any(|_try| {
            let mut export = crate::job::command();
            export.args(["export", "-o"]).arg(out.join("all.npz"));
            let export = export.arg(folder.path()).stderr(Stdio::piped());
            let child = export.stdout(Stdio::piped()).spawn().unwrap();
            while files() == 0 {
                std::thread::yield_now();
            }
            let mut kill = std::process::Command::new("/bin/kill");
            kill.args([signal, &child.id().to_string()])
                .status()
                .unwrap();
            let ended = child.wait_with_output().unwrap();
            let said = String::from_utf8(ended.stderr).unwrap();
            match ended.status.code() {
                Some(0) => {
                    std::fs::remove_file(out.join("all.npz")).unwrap();
                    false
                }
                code => {
                    assert_eq!(code, Some(status), "{said}");
                    assert!(
                        said.contains("interrupted") && said.contains("all.npz"),
                        "{said}"
                    );
                    assert_eq!(files(), 0, "a draft was left");
                    true
                }
            }
        });
        assert!(interrupted, "the signal never came in time");
    }
}

/// One rank with 64 MiB, which take some time to be written.
fn large_job(path: &std::path::Path) {
    use backstay::{ElementType, Session, Variable, comm::Single};
    let mut data: Vec<u64> = (0..8 << 20).collect();
    let mut session = Session::open(Box::new(Single), crate::job::config(path, 0, 1)).unwrap();
    let variable = Variable::new("data", ElementType::U64, &[8 << 20]);
    // SAFETY: the memory is neither moved nor freed while the session starts.
    unsafe { session.protect(variable, data.as_mut_ptr().cast()).unwrap() };
    session.checkpoint().unwrap();
    session.close().unwrap();
}
