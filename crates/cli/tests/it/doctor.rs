// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay doctor`: what it says of limits, archives, nodes and agents; its width, its JSON, its exit status.

use crate::job::{command, finish};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The line of a check.
fn line<'a>(view: &'a Value, check: &str) -> &'a Value {
    let checks = view["checks"].as_array().unwrap();
    let found = checks.iter().find(|line| line["check"] == check);
    found.unwrap_or_else(|| panic!("no {check} in {view}"))
}

fn doctor(words: &[&str], store_path: &Path) -> (Value, Option<i32>) {
    let mut asked = command();
    asked
        .arg("doctor")
        .args(words)
        .arg("--json")
        .env("BACKSTAY_STORE_PATH", store_path);
    let output = asked.output().unwrap();
    let view = serde_json::from_slice(&output.stdout).unwrap();
    (view, output.status.code())
}

#[test]
fn what_works_and_what_does_not_is_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let shell = folder.path().join("shell");
    let text = "#!/bin/sh\ncase $1 in up) shift; eval \"$*\";; old) echo backstay 0.0.1;; bare) echo no backstay;;\n\
                *) echo no way >&2; exit 255;; esac\n";
    fs::write(&shell, text).unwrap();
    fs::set_permissions(&shell, PermissionsExt::from_mode(0o755)).unwrap();
    let (shell, archive) = (shell.to_str().unwrap(), folder.path().join("pfs"));
    let archive = archive.to_str().unwrap();
    let words = [
        "--archive",
        archive,
        "--remote-shell",
        shell,
        "--nodes",
        "up,old,bare,down",
    ];
    let (view, code) = doctor(&words, folder.path());
    assert_eq!(
        (code, view["state"].as_str()),
        (Some(1), Some("not")),
        "{view}"
    );
    for (check, state) in [
        ("node up", "ok"),
        ("node old", "limited"),
        ("node bare", "limited"),
        ("node down", "not"),
        ("store", "ok"),
        ("archive owner", "ok"),
        ("archive locks", "ok"),
    ] {
        assert_eq!(line(&view, check)["state"], state, "{check} in {view}");
    }
    assert_eq!(line(&view, "node down")["found"], "exit 255: no way");
    for line in view["checks"].as_array().unwrap() {
        let has_advice = line["advice"]
            .as_str()
            .is_some_and(|advice| !advice.is_empty());
        assert_eq!(has_advice, line["state"] != "ok", "{line}");
    }
    assert!(!Path::new(archive).exists(), "it was not there before");
    let output = finish(command().arg("doctor").args(words).env("COLUMNS", "80")).out;
    let longest = output.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(80) && output.contains("NOT"), "{output}");
    let (view, code) = doctor(&["--archive", "/no/such/place"], folder.path());
    assert_eq!(
        (code, &line(&view, "archive")["state"]),
        (Some(1), &Value::from("not"))
    );
}

#[test]
fn limits_of_the_process_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_backstay");
    let mut limited = Command::new("sh");
    limited.args([
        "-c",
        "ulimit -f 64; ulimit -n 256; exec \"$0\" doctor --json",
        program,
    ]);
    let output = limited
        .env("BACKSTAY_STORE_PATH", folder.path())
        .output()
        .unwrap();
    let view: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{view}");
    assert_eq!(line(&view, "file size")["state"], "not");
    assert!(
        line(&view, "file size")["advice"]
            .as_str()
            .unwrap()
            .contains("ulimit -f")
    );
    assert_eq!(line(&view, "descriptors")["state"], "limited");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let (view, code) = doctor(&[], &file);
    assert_eq!(
        (code, &line(&view, "store")["state"]),
        (Some(1), &Value::from("not")),
        "{view}"
    );
}

#[test]
fn agents_of_this_node_are_asked() {
    let folder = tempfile::tempdir().unwrap();
    let (view, _) = doctor(&[], folder.path());
    assert!(!view.to_string().contains("\"agent\""), "{view}");
    let mut agent = command();
    agent
        .args(["agent", "--job", "heat"])
        .env("BACKSTAY_STORE_PATH", folder.path());
    let mut agent = agent.stderr(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let (view, _) = doctor(&[], folder.path());
        if view.to_string().contains("\"agent\"") {
            let line = line(&view, "agent");
            assert_eq!(line["state"], "ok", "{line}");
            assert!(line["found"].as_str().unwrap().contains("/heat/"), "{line}");
            break;
        }
        assert!(Instant::now() < end, "no agent: {view}");
        std::thread::sleep(Duration::from_millis(20));
    }
    agent.kill().unwrap();
    agent.wait().unwrap();
}
