// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Golden fixtures: the bytes that version 1 writes, kept for ever.
//!
//! `BACKSTAY_WRITE_FIXTURES=1 cargo test -p backstay-format --test it fixtures` writes them. A
//! change in them is a change of the format: see docs/format/store.md.

use crate::samples;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/v1")
}

fn is_writing() -> bool {
    std::env::var_os("BACKSTAY_WRITE_FIXTURES").is_some_and(|value| value == "1")
}

fn read(name: &str) -> Vec<u8> {
    let path = folder().join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn catalogue() -> String {
    let head = "# Fixtures of store format 1\n\n\
         The bytes that version 1 writes, one structure each. A reader of version 1 must give the\n\
         value in `crates/format/tests/it/samples.rs` for each, for ever; a writer must give these\n\
         bytes until the format changes, and then the new ones go into a new folder beside this\n\
         one. Both are checked by `crates/format/tests/it/fixtures.rs`, which also wrote them and\n\
         this page (`BACKSTAY_WRITE_FIXTURES=1`). The format is described in docs/format/store.md,\n\
         docs/format/parity.md (`stripe_`), docs/format/agent.md (`agent_`: messages of version 2) and\n\
         docs/format/archive.md (`archive_`, `catalog_`) and docs/format/part.md (`part_`).\n\n\
         | file | bytes | XXH3-64 | preserves |\n|---|---|---|---|";
    let mut lines = vec![head.to_owned()];
    for sample in samples::all() {
        let sum = backstay_format::hash::checksum(&sample.bytes);
        let (name, bytes, preserves) = (sample.name, sample.bytes.len(), sample.preserves);
        lines.push(format!(
            "| {name}.bin | {bytes} | {sum:016x} | {preserves} |"
        ));
    }
    lines.join("\n") + "\n"
}

#[test]
fn the_encoder_still_gives_these_bytes_and_the_decoder_these_values() {
    if is_writing() {
        for sample in samples::all() {
            let path = folder().join(format!("{}.bin", sample.name));
            std::fs::write(path, &sample.bytes).unwrap();
        }
        std::fs::write(folder().join("README.md"), catalogue()).unwrap();
    }
    for sample in samples::all() {
        let golden = read(&format!("{}.bin", sample.name));
        assert_eq!(
            (sample.show)(&golden).as_ref(),
            Ok(&sample.value),
            "{}",
            sample.name
        );
        assert!(
            golden == sample.bytes,
            "{}: other bytes than version 1",
            sample.name
        );
    }
}

#[test]
fn the_catalogue_names_every_file_and_no_other() {
    if is_writing() {
        return; // The test beside this one is writing them.
    }
    assert_eq!(String::from_utf8(read("README.md")), Ok(catalogue()));
    let mut found: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    let mut wanted: Vec<String> = samples::all()
        .iter()
        .map(|sample| format!("{}.bin", sample.name))
        .collect();
    wanted.push("README.md".to_owned());
    wanted.sort();
    assert_eq!(found, wanted);
}
