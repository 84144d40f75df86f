// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `ls` and `inspect`: what is there, what is in it, what changed.

use crate::job::{backstay, command, finish, run_job, store};
use serde_json::{Value, json};

#[test]
fn ls_merges_the_nodes_of_a_job() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 1, 5);
    let ran = backstay(&["ls"], &[folder.path()]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines[0].starts_with("job test job: 4 stores, "), "{ran:?}");
    assert!(lines[1].starts_with("CHECKPOINT  COMMITTED"), "{ran:?}");
    for (line, id) in lines[2..5].iter().zip(["3.1", "4.1", "5.1"]) {
        assert!(line.trim_start().starts_with(id), "{ran:?}");
        assert!(
            line.contains(" 4/4 ") && line.ends_with("complete  node only"),
            "{ran:?}"
        );
    }
    for (node, line) in lines[5..].iter().enumerate() {
        let path = store(folder.path(), node);
        assert_eq!(*line, format!("  node node{node}: {}", path.display()));
    }
    assert_eq!(lines.len(), 5 + 4);

    let json = backstay(&["ls", "--json"], &[folder.path()]).json();
    let newest = &json["checkpoints"][2];
    assert_eq!(newest["number"], 5);
    assert_eq!(
        (&newest["ranks_found"], &newest["ranks_needed"]),
        (&json!(4), &json!(4))
    );
    let bytes = 4 * (40_000 * 8 + 32 * 48 * 8 + 8 + 20 + 48 + 5);
    assert_eq!(newest["bytes_total"], bytes);
    // One block of `big` and `step` on each rank, the block of `field` on the last.
    assert_eq!(newest["bytes_changed"], 4 * (16_384 + 8) + 32 * 48 * 8);
    assert_eq!(newest["complete"], true);
    assert_eq!(json["stores"].as_array().unwrap().len(), 4);
    assert_eq!(json["stores"][0]["node"], "node0");
    assert_eq!(json["stores"][0]["closed"], true);
    assert_eq!(json["unreadable"], json!([]));
}

#[test]
fn ls_of_some_nodes_says_that_the_rest_is_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 2, 2);
    let first = store(folder.path(), 0);
    // A path twice is one store.
    let ran = backstay(&["ls"], &[&first, first.parent().unwrap()]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(
        ran.out.contains("1 store,") && ran.out.contains(" 2/4 "),
        "{ran:?}"
    );
    assert!(ran.out.contains("other nodes have the rest"), "{ran:?}");
    let ran = backstay(&["ls"], &[&first, &store(folder.path(), 1)]);
    assert!(ran.out.contains(" 4/4 "), "{ran:?}");
    let ran = backstay(&["export", "-o", "x.npz"], &[&first]);
    assert_eq!(ran.status, 1);
    assert!(
        ran.err.contains("2 of 4 ranks") && ran.err.contains("other nodes"),
        "{ran:?}"
    );
    let ran = backstay(&["verify"], &[&first]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let ran = backstay(&["verify", "--checkpoint", "2"], &[&first]);
    assert_eq!(ran.status, 1, "{ran:?}");
}

#[test]
fn two_starts_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 4, 2);
    // A second start that restores nothing takes its numbers from there on.
    run_job(folder.path(), 4, 1);
    let json = backstay(&["ls", "--json"], &[folder.path()]).json();
    let ids: Vec<(u64, u64)> = json["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| {
            (
                c["number"].as_u64().unwrap(),
                c["incarnation"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(ids, [(1, 1), (2, 1), (3, 2)]);
    let ran = backstay(&["inspect", "-c", "3.1"], &[folder.path()]);
    assert_eq!(ran.status, 1);
    assert!(
        ran.err
            .contains("checkpoint 3.1 is not retained; these are: 1.1, 2.1, 3.2"),
        "{ran:?}"
    );
    let ran = backstay(&["inspect", "-c", "3.2"], &[folder.path()]);
    assert_eq!(ran.status, 0, "{ran:?}");
}

#[test]
fn without_a_path_the_default_places_are_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 4, 1);
    let mut ls = command();
    ls.arg("ls").env("BACKSTAY_STORE_PATH", folder.path());
    let ran = finish(&mut ls);
    assert!(ran.out.contains("job test job: 1 store"), "{ran:?}");
    let place = folder.path().display().to_string();
    assert!(
        ran.err.contains("no path given: looking in") && ran.err.contains(&place),
        "{ran:?}"
    );
}

#[test]
fn nothing_there_is_an_error_that_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("not there");
    for path in [folder.path(), &missing] {
        for words in [
            vec!["ls"],
            vec!["inspect"],
            vec!["verify"],
            vec!["export", "-o", "x.npz"],
        ] {
            let ran = backstay(&words, &[path]);
            assert_eq!(ran.status, 1, "{ran:?}");
            assert!(ran.out.is_empty(), "{ran:?}");
        }
    }
    let ran = backstay(&["ls"], &[folder.path()]);
    assert!(
        ran.err.contains("give a store file, a folder of a node"),
        "{ran:?}"
    );
    let ran = backstay(&["ls", "--json"], &[&missing]);
    assert_eq!(ran.json()["error"]["kind"], "no such path");
    assert!(
        ran.err.contains("there is no such file or folder") && !ran.err.contains("restore"),
        "{ran:?}"
    );
    assert_eq!(backstay(&["ls", "--nonsense"], &[]).status, 2);
    assert_eq!(backstay(&["inspect", "-c", "one"], &[]).status, 2);
}

#[test]
fn inspect_shows_variables_and_what_changed() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 2, 4);
    let ran = backstay(&["inspect"], &[folder.path()]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let row = |name: &str| -> Vec<String> {
        let line = ran.out.lines().find(|line| line.starts_with(name)).unwrap();
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(
        row("field "),
        [
            "field",
            "f64",
            "[64, 96] in 4 slabs",
            "4",
            "48.0 KiB",
            "4",
            "1",
            "25.0 %"
        ]
    );
    assert_eq!(
        row("step "),
        ["step", "u64", "scalar", "4", "32 B", "4", "4", "100.0 %"]
    );
    assert_eq!(
        row("big "),
        [
            "big",
            "u64",
            "[400, 100]",
            "4",
            "1.2 MiB",
            "80",
            "4",
            "5.1 %"
        ]
    );

    let json = backstay(&["inspect", "--json", "-v", "field"], &[folder.path()]).json();
    assert_eq!(json["checkpoint"]["number"], 4);
    let field = &json["variables"][0];
    assert_eq!(field["global_shape"], json!([64, 96]));
    assert_eq!(field["parts"][3]["start"], json!([32, 48]));
    assert_eq!(field["parts"][3]["blocks_changed"], 1);
    assert_eq!(field["parts"][0]["blocks_changed"], 0);
}

#[test]
fn inspect_shows_one_checkpoint_one_rank_one_variable() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 2, 4);
    // The oldest has nothing to be compared with.
    let json = backstay(
        &["inspect", "--json", "-c", "2", "-r", "1"],
        &[folder.path()],
    )
    .json();
    let names: Vec<&Value> = json["variables"]
        .as_array()
        .unwrap()
        .iter()
        .map(|v| &v["name"])
        .collect();
    assert_eq!(names, ["big", "field", "half", "raw", "step", "wave"]);
    assert_eq!(json["variables"][0]["changed_share"], Value::Null);
    assert_eq!(json["variables"][0]["parts"].as_array().unwrap().len(), 1);

    let ran = backstay(&["inspect", "-v", "nothing"], &[folder.path()]);
    assert_eq!(ran.status, 1);
    assert!(ran.err.contains("it has [\"big\", \"field\""), "{ran:?}");
    let ran = backstay(&["inspect", "-v", "big"], &[folder.path()]);
    assert!(
        ran.out.contains("big: u64 [400, 100]\nRANK  SHAPE"),
        "{ran:?}"
    );
}

#[test]
fn stores_of_several_jobs_are_listed_and_not_mixed() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 4, 1);
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    crate::live::short_job(&other, "another job");
    let ran = backstay(&["ls"], &[folder.path()]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.out.contains("job another job: 1 store"), "{ran:?}");
    assert!(ran.out.contains("job test job: 1 store"), "{ran:?}");
    let ran = backstay(&["inspect"], &[folder.path()]);
    assert_eq!(ran.status, 1);
    assert!(
        ran.err
            .contains("several jobs (\"another job\", \"test job\")"),
        "{ran:?}"
    );
    assert_eq!(backstay(&["verify"], &[folder.path()]).status, 0);
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    use std::process::Stdio;
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 2, 2);
    let stored = folder.path().to_str().unwrap();
    let metrics = folder.path().join("test job/node0");
    let file = folder.path().join("x.npz");
    let file = file.to_str().unwrap();
    let cases = folder.path().join("cases.json");
    std::fs::write(&cases, r#"{"cases": []}"#).unwrap();
    let commands: [&[&str]; 17] = [
        &["ls", stored],
        &["ls", "--json", stored],
        &["inspect", stored],
        &["verify", stored],
        &["verify", "--json", stored],
        &["export", stored, "-o", file],
        &["status", stored],
        &["status", "--json", stored],
        &[
            "plan",
            "--json",
            "--simulated-intervals=20000",
            "--job-hours=100",
        ],
        &["simulate", "--lives=2", "--job-hours=10"],
        &["model", "eval", cases.to_str().unwrap()],
        &["completions", "bash"],
        &["man", metrics.to_str().unwrap()],
        &["--help"],
        &["ls", "--help"],
        &["--version"],
        &["-V"],
    ];
    for words in commands {
        let full = || {
            std::fs::OpenOptions::new()
                .write(true)
                .open("/dev/full")
                .unwrap()
        };
        let output = command().args(words).stdout(full()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(
            said.contains("writing standard output"),
            "{words:?}: {said}"
        );
        // A reader that has gone away has seen what it wanted.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command()
            .args(words)
            .stdout(Stdio::from(writer))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {said}");
        assert!(!said.contains("standard output"), "{words:?}: {said}");
    }
}

#[test]
fn settings_of_the_job_say_where_to_look() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 4, 1);
    crate::live::short_job(folder.path(), "another job");
    let config = folder.path().join("config.toml");
    let text = format!(
        "job = \"test job\"\nstore_path = {:?}\n",
        folder.path().to_str().unwrap()
    );
    std::fs::write(&config, text).unwrap();
    let other = folder.path().join("x.npz");
    let export: &[&str] = &["export", "-o", other.to_str().unwrap()];
    for words in [&["ls"], &["inspect"], &["verify"], &["status"], export] {
        let mut with_config = command();
        let ran = finish(with_config.args(words).env("BACKSTAY_CONFIG", &config));
        assert_eq!(ran.status, 0, "{words:?} {ran:?}");
        assert!(!ran.out.contains("another job"), "{words:?} {ran:?}");
        let mut with_job = command();
        with_job
            .args(words)
            .env("BACKSTAY_STORE_PATH", folder.path());
        let ran = finish(with_job.env("BACKSTAY_JOB", "test job"));
        assert_eq!(ran.status, 0, "{words:?} {ran:?}");
        // The option counts more than the environment, and with paths, too.
        let mut named = command();
        named.args(words).env("BACKSTAY_JOB", "no job");
        let ran = finish(named.args(["--job", "test job"]).arg(folder.path()));
        assert_eq!(ran.status, 0, "{words:?} {ran:?}");
        assert!(!ran.out.contains("another job"), "{words:?} {ran:?}");
        let ran = finish(
            command()
                .args(words)
                .args(["--job", "no job"])
                .arg(folder.path()),
        );
        assert_eq!(ran.status, 1, "{words:?} {ran:?}");
        let mut none = command();
        none.args(words).env("BACKSTAY_STORE_PATH", folder.path());
        let ran = finish(none.env("BACKSTAY_JOB", "no job"));
        assert_eq!(ran.status, 1, "{words:?} {ran:?}");
        assert!(ran.err.contains("no store of job \"no job\""), "{ran:?}");
    }
    let mut inspect = command();
    inspect
        .arg("inspect")
        .env("BACKSTAY_STORE_PATH", folder.path());
    let ran = finish(&mut inspect);
    assert!(ran.status == 1 && ran.err.contains("give --job"), "{ran:?}");
}
