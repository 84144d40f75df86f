// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the committed header is the one the sources make, and declares what the library exports.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const HEADER: &str = "include/backstay/backstay.h";

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// With `BACKSTAY_BLESS=1` the header is written instead.
#[test]
fn the_header_is_current() {
    let path = package().join(HEADER);
    let config = cbindgen::Config::from_file(package().join("cbindgen.toml")).unwrap();
    let mut bytes = Vec::new();
    cbindgen::Builder::new()
        .with_config(config)
        .with_crate(package())
        .generate()
        .unwrap()
        .write(&mut bytes);
    let made = String::from_utf8(bytes).unwrap();
    let made = made.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    if std::env::var_os("BACKSTAY_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == committed,
        "{HEADER} is not what the sources make; run BACKSTAY_BLESS=1 cargo test -p backstay-c"
    );
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let library = library().unwrap();
    let output = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(&library)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "nm {}: {output:?}",
        library.display()
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .map(str::to_owned)
        .collect();
    let header = std::fs::read_to_string(package().join(HEADER)).unwrap();
    assert_eq!(exported, declared(&header));
}

/// The functions of a header: names before a parenthesis in lines that begin a declaration.
fn declared(header: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in header.lines() {
        let types = ["int32_t ", "const char *", "void ", "struct "];
        let declaration = types.iter().any(|kind| line.starts_with(kind));
        let Some(end) = line.find('(').filter(|_| declaration) else {
            continue;
        };
        let name = line[..end].rsplit([' ', '*']).next().unwrap_or_default();
        names.insert(name.to_owned());
    }
    names
}

/// The shared library. Cargo builds none for tests, since nothing in Rust can link it, so ask for the one that is installed.
fn library() -> Option<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args([
            "build",
            "--release",
            "--quiet",
            "--message-format=json",
            "--package=backstay-c",
        ])
        .current_dir(package())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let file = text
        .split('"')
        .find(|part| part.ends_with("/libbackstay.so"))?;
    Some(PathBuf::from(file))
}
