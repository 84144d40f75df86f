// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which commit this was built from, for `backstay --version`.

use std::path::Path;
use std::process::Command;

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=BACKSTAY_COMMIT");
    // Every commit and checkout writes a line there. A source archive has none.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
    let named = std::env::var("BACKSTAY_COMMIT").ok();
    let commit = named.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    let commit = commit.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=BUILT_FROM={commit}");
    let profile = std::env::var("PROFILE").unwrap_or_default();
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=BUILT_AS={profile}, {target}");
}
