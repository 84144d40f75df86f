// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program of docs/guide/rust.md does what the guide says: it counts, and resumes.

use std::path::Path;
use std::process::Command;

fn counting(store: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_counting"));
    let output = command
        .env("BACKSTAY_STORE_PATH", store)
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
fn it_counts_and_the_second_run_resumes() {
    let store = tempfile::tempdir().expect("a folder");
    let first = counting(store.path());
    assert!(first.starts_with("from the beginning\n"), "{first}");
    assert!(first.ends_with("step 20: every cell is 20\n"), "{first}");
    let second = counting(store.path());
    assert_eq!(
        second,
        "resuming from checkpoint 4\nstep 20: every cell is 20\n"
    );
}
