// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program of docs/guide/rust.md does what the guide says: it counts, and resumes.

use std::path::Path;
use std::process::Command;

fn counting(store: &Path, settings: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_counting"));
    let output = command
        .env("BACKSTAY_STORE_PATH", store)
        .envs(settings.iter().copied())
        .output()
        .expect("it runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn it_counts_begins_anew_when_it_has_finished_and_goes_back_when_asked() {
    let store = tempfile::tempdir().expect("a folder");
    for _ in 0..2 {
        let run = counting(store.path(), &[]);
        assert!(run.starts_with("from the beginning\n"), "{run}");
        assert!(run.ends_with("step 20: every cell is 20\n"), "{run}");
    }
    let named = [("BACKSTAY_RESTORE_CHECKPOINT", "9")];
    let resumed = counting(store.path(), &named);
    assert!(
        resumed.starts_with("resuming from checkpoint 9\n"),
        "{resumed}"
    );
    assert!(
        resumed.ends_with("step 20: every cell is 20\n"),
        "{resumed}"
    );
}
