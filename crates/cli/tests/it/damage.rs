// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `verify`: what is damaged, where, and which checkpoints it concerns.

use crate::job::{BLOCK_WORDS, Ran, backstay, run_job, store, word};
use backstay_inspect::{Array, StoredPart, Stores};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The offsets at which a word stands in a file.
fn offsets_of(path: &Path, word: u64) -> Vec<u64> {
    let (bytes, word) = (std::fs::read(path).unwrap(), word.to_le_bytes());
    let found = bytes
        .chunks_exact(8)
        .zip(0..)
        .filter(|(chunk, _)| **chunk == word);
    found.map(|(_, index)| index * 8).collect()
}

fn flip(path: &Path, offset: u64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

/// Damages a block that never changed.
pub(crate) fn spoil_a_block(store: &Path) {
    flip(
        store,
        offsets_of(store, word(1, 3 * BLOCK_WORDS + 100, 0))[0],
    );
}

/// The damage that `verify` finds, and that it ends as it should.
fn damage(path: &Path) -> Vec<Value> {
    let ran = backstay(&["verify", "--json"], &[path]);
    let json = ran.json();
    let stores = json["stores"].as_array().unwrap();
    let all: Vec<Value> = stores
        .iter()
        .flat_map(|store| store["damage"].as_array().unwrap().clone())
        .collect();
    assert_eq!(ran.status, i32::from(!all.is_empty()), "{ran:?}");
    assert_eq!(json["good"], all.is_empty(), "{ran:?}");
    all
}

fn numbers(damage: &Value) -> Vec<u64> {
    let ids = damage["checkpoints"].as_array().unwrap();
    ids.iter()
        .map(|id| id["number"].as_u64().unwrap())
        .collect()
}

/// A variable of a rank in the newest checkpoint.
fn part(path: &Path, name: &str, rank: usize) -> (Stores, StoredPart) {
    let stores = Stores::open(&[path.to_owned()]);
    let newest = stores.checkpoints().pop().unwrap();
    let variables = stores.variables(&newest, None, &mut |_| {}).unwrap();
    let found = variables
        .iter()
        .find(|variable| variable.name == name)
        .unwrap();
    let part = found.parts[rank].clone();
    (stores, part)
}

fn one_node(steps: u64) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 4, steps);
    let path = store(folder.path(), 0);
    (folder, path)
}

#[test]
fn each_shared_block_is_read_once() {
    let (_folder, path) = one_node(5);
    let ran = backstay(&["verify", "--json"], &[&path]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let json = ran.json();
    // Of each rank 20 blocks of `big` and one each of five more; then twice what changed.
    assert_eq!(json["stores"][0]["blocks"], 4 * 25 + 2 * (4 * 2 + 1));
    assert_eq!(json["good"], true);
    let ran = backstay(&["verify", "-c", "4", "--json"], &[&path]);
    assert_eq!(ran.json()["stores"][0]["blocks"], 4 * 25);
    assert_eq!(ran.json()["checkpoints"].as_array().unwrap().len(), 1);
    let ran = backstay(&["verify"], &[&path]);
    assert!(
        ran.out.contains("checkpoints 3.1, 4.1, 5.1;") && ran.out.ends_with(": good\n"),
        "{ran:?}"
    );
    assert_eq!(backstay(&["verify", "-c", "9"], &[&path]).status, 1);
}

#[test]
fn damage_in_a_shared_block_names_every_checkpoint_concerned() {
    let (_folder, path) = one_node(5);
    // Block 3 of rank 1 never changed.
    let places = offsets_of(&path, word(1, 3 * BLOCK_WORDS + 100, 0));
    assert_eq!(places.len(), 1, "shared, so it stands there once");
    flip(&path, places[0]);
    let found = damage(&path);
    assert_eq!(found.len(), 1, "{found:?}");
    let found = &found[0];
    assert_eq!(numbers(found), [3, 4, 5]);
    assert_eq!(
        (&found["structure"], &found["variable"]),
        (&json!("block"), &json!("big"))
    );
    assert_eq!(
        (&found["rank"], &found["block"], &found["blocks"]),
        (&json!(1), &json!(3), &json!(1))
    );
    assert_eq!(found["file_offset"], places[0] - 800);
    assert_ne!(found["expected"], found["found"]);
    assert_eq!(found["expected"].as_str().unwrap().len(), 32);
    let ran = backstay(&["verify"], &[&path]);
    let says = "DAMAGED block of variable \"big\", block 3 of rank 1 at byte ";
    assert!(ran.out.contains(says), "{ran:?}");
    assert!(
        ran.out.contains("; concerns checkpoints 3.1, 4.1, 5.1"),
        "{ran:?}"
    );
    assert!(
        ran.err.contains("no good and complete checkpoint is left"),
        "{ran:?}"
    );
    // Export refuses it as well, and leaves no file.
    let file = path.with_file_name("x.npy");
    let words = [
        "export",
        "-v",
        "big",
        "-r",
        "1",
        "-o",
        file.to_str().unwrap(),
    ];
    let ran = backstay(&words, &[&path]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(
        ran.err.contains("damaged: rank 1, \"big\"") && !file.exists(),
        "{ran:?}"
    );
}

#[test]
fn damage_in_a_block_of_one_checkpoint_concerns_that_one() {
    let (_folder, path) = one_node(5);
    let places = offsets_of(&path, word(2, 5, 4));
    assert_eq!(places.len(), 1);
    flip(&path, places[0]);
    let found = damage(&path);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(numbers(&found[0]), [4]);
    let ran = backstay(&["verify"], &[&path]);
    assert!(
        ran.err.contains("the newest good and complete one is 5.1"),
        "{ran:?}"
    );
    let json = backstay(&["verify", "--json"], &[&path]).json();
    let good: Vec<&Value> = json["checkpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["good"])
        .collect();
    assert_eq!(good, [true, false, true]);
}

#[test]
fn a_damaged_page_names_the_blocks_below_it() {
    let (_folder, path) = one_node(3);
    let (stores, big) = part(&path, "big", 0);
    let offset = stores.stores()[0]
        .reader()
        .offset_of(big.stream.top.address, 100)
        .unwrap();
    flip(&path, offset + 50);
    let found = damage(&path);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["structure"], "tree page");
    assert_eq!(
        (&found[0]["block"], &found[0]["blocks"]),
        (&json!(0), &json!(20))
    );
    assert_eq!(numbers(&found[0]), [3]);
    let ran = backstay(&["verify"], &[&path]);
    assert!(
        ran.out
            .contains("of variable \"big\", blocks 0 to 19 of rank 0"),
        "{ran:?}"
    );
}

#[test]
fn damage_in_tables_is_named() {
    let (_folder, path) = one_node(2);
    let stores = Stores::open(std::slice::from_ref(&path));
    let checkpoint = stores.checkpoints().pop().unwrap();
    let offset = |address| stores.stores()[0].reader().offset_of(address, 8).unwrap();
    let entry = checkpoint.ranks[&2].1;
    let (_, part) = stores.part(&checkpoint, 2).unwrap();
    let ranks = stores.stores()[0].retained()[1].entry.ranks;
    for (address, structure, rank, concerned) in [
        (entry.address, "rank root", json!(2), vec![2]),
        (
            part.root.descriptors.top.address,
            "descriptors",
            json!(2),
            vec![1, 2],
        ),
        (
            part.root.table.top.address,
            "table of variables",
            json!(2),
            vec![2],
        ),
        (ranks.top.address, "table of ranks", Value::Null, vec![2]),
    ] {
        let at = offset(address);
        flip(&path, at + 9);
        let found = damage(&path);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (&found[0]["structure"], &found[0]["rank"]),
            (&json!(structure), &rank)
        );
        assert_eq!(
            (&found[0]["file_offset"], numbers(&found[0])),
            (&json!(at), concerned)
        );
        flip(&path, at + 9);
    }
    flip(&path, offset(ranks.top.address));
    let ran = backstay(&["ls"], &[&path]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(
        ran.out.contains("DAMAGED") && ran.err.contains("table of ranks"),
        "{ran:?}"
    );
}

#[test]
fn copies_are_checked_though_no_checkpoint_needs_them() {
    let (_folder, path) = one_node(4);
    for (offset, structure) in [
        (20, "superblock"),
        (4096 + 30, "superblock"),
        ((16 << 10) + 40, "root slot"),
        ((64 << 10) + 20, "segment record"),
        ((64 << 10) + 256 * 64 + 20, "segment record"),
    ] {
        flip(&path, offset);
        let found = damage(&path);
        assert_eq!(found.len(), 1, "{structure}: {found:?}");
        assert_eq!(found[0]["structure"], structure);
        assert!(numbers(&found[0]).is_empty());
        let start = found[0]["file_offset"].as_u64().unwrap();
        assert!(start <= offset && offset < start + 64, "{found:?}");
        flip(&path, offset);
    }
    assert!(damage(&path).is_empty());
    // Both records of a segment: what stands in it cannot be found.
    flip(&path, (64 << 10) + 20);
    flip(&path, (64 << 10) + 256 * 64 + 20);
    let found = damage(&path);
    let records = found
        .iter()
        .filter(|damage| damage["structure"] == "segment record")
        .count();
    assert!(records == 2 && found.len() > 2, "{found:?}");
    assert!(
        found.iter().any(|damage| !numbers(damage).is_empty()),
        "{found:?}"
    );
}

#[test]
fn a_root_slot_that_is_damaged_is_said_by_ls() {
    let (_folder, path) = one_node(4);
    flip(&path, (32 << 10) + 60);
    let ran = backstay(&["ls"], &[&path]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(ran.err.contains("the other root slot is used"), "{ran:?}");
    flip(&path, (16 << 10) + 60);
    let ran = backstay(&["ls"], &[&path]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(ran.err.contains("root slot at byte 16384"), "{ran:?}");
}

fn all_commands(path: &Path) -> Vec<Ran> {
    let words = [
        vec!["ls"],
        vec!["inspect"],
        vec!["verify"],
        vec!["export", "-o", "/tmp/no.npz"],
    ];
    words.iter().map(|words| backstay(words, &[path])).collect()
}

#[test]
fn a_file_cut_short_is_damage_at_any_length() {
    let (_folder, path) = one_node(3);
    let whole = std::fs::read(&path).unwrap();
    for length in [
        0, 1, 100, 4096, 5000, 16_384, 20_000, 40_000, 65_536, 70_000, 100_000, 400_000,
    ] {
        std::fs::write(&path, &whole[..length]).unwrap();
        for ran in all_commands(&path) {
            assert!(
                ran.status == 1 || ran.out.starts_with("job"),
                "{length}: {ran:?}"
            );
            assert!(!ran.err.contains("panicked"), "{length}: {ran:?}");
        }
        assert_eq!(backstay(&["verify"], &[&path]).status, 1, "{length}");
    }
    // Cut behind its roots: this node's part is damaged, and no other node has it.
    std::fs::write(&path, &whole[..70_000]).unwrap();
    let ran = backstay(&["export", "-o", "/tmp/no.npz"], &[&path]);
    assert!(ran.err.contains("0 of 4 ranks"), "{ran:?}");
    assert!(
        ran.err.contains("is damaged (") && !ran.err.contains("other nodes"),
        "{ran:?}"
    );
    std::fs::write(&path, &whole).unwrap();
    assert!(damage(&path).is_empty());
}

#[test]
fn what_is_no_store_is_said_to_be_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.backstay");
    std::fs::write(&path, "the quick brown fox\n".repeat(10_000)).unwrap();
    for ran in all_commands(folder.path()) {
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(
            ran.err
                .contains("it is no Backstay store of this format version"),
            "{ran:?}"
        );
    }
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let ran = backstay(&["ls"], &[&path]);
    assert!(
        ran.status == 1 && ran.err.contains("the store is not finished"),
        "{ran:?}"
    );
}

#[test]
fn a_head_of_zeros_over_checkpoints_is_damage_and_not_a_store_being_made() {
    let (_folder, path) = one_node(2);
    let whole = std::fs::read(&path).unwrap();
    let mut zeroed = whole.clone();
    zeroed[..8192].fill(0);
    std::fs::write(&path, &zeroed).unwrap();
    for ran in all_commands(&path) {
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(ran.err.contains("was written over"), "{ran:?}");
        assert!(!ran.err.contains("not finished"), "{ran:?}");
    }
    // Cut off behind its roots: the file says how much is left of it, and no other nodes are asked for.
    std::fs::write(&path, &whole[..200_000]).unwrap();
    let ran = backstay(&["ls"], &[&path]);
    assert!(
        ran.status == 1 && ran.err.contains("file of 200000 bytes: it was cut off"),
        "{ran:?}"
    );
    let ran = backstay(&["inspect"], &[&path]);
    assert!(
        ran.status == 1 && !ran.err.contains("other nodes"),
        "{ran:?}"
    );
}

#[test]
fn one_bad_store_does_not_hide_the_others() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 2, 2);
    std::fs::write(store(folder.path(), 1), "not a store").unwrap();
    let ran = backstay(&["ls"], &[folder.path()]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(
        ran.out.contains(" 2/4 ") && ran.err.contains("node1"),
        "{ran:?}"
    );
    let json = backstay(&["verify", "--json"], &[folder.path()]).json();
    assert_eq!(json["good"], false);
    assert_eq!(json["unreadable"].as_array().unwrap().len(), 1);
}

/// What a checkpoint holds, or why it cannot be read.
fn contents(stores: &Stores) -> Result<Vec<u8>, backstay::Error> {
    let newest = stores.checkpoints().pop();
    let none = || backstay::Error::new(backstay::ErrorKind::NoCheckpoint, "none");
    let newest = newest.ok_or_else(none)?;
    let mut all = Vec::new();
    for variable in stores.variables(&newest, None, &mut |_| {})? {
        for part in &variable.parts {
            Array::of_part(stores, newest.id, part).read(&mut |bytes| {
                all.extend_from_slice(bytes);
                Ok(())
            })?;
        }
    }
    Ok(all)
}

#[test]
fn any_byte_flipped_is_found_or_changes_nothing() {
    let (_folder, path) = one_node(4);
    let open = || Stores::open(std::slice::from_ref(&path));
    let whole = contents(&open()).unwrap();
    let length = std::fs::metadata(&path).unwrap().len();
    let (mut found, mut offset) = (0, 0);
    // The head densely, the rest in steps that share no factor with anything in the file.
    while offset < length {
        flip(&path, offset);
        let stores = open();
        let damage = stores
            .verify(None, &mut |_| {})
            .iter()
            .any(|s| !s.findings.is_empty());
        if damage || !stores.unreadable().is_empty() {
            found += 1;
            if let Ok(read) = contents(&stores) {
                assert!(read == whole, "byte {offset}: read as good, and is not");
            }
        } else {
            assert!(
                contents(&stores).unwrap() == whole,
                "byte {offset} was not found"
            );
        }
        flip(&path, offset);
        offset += if offset < 25_000 { 127 } else { 10_007 };
    }
    assert!(found > 50, "{found}");
    assert!(damage(&path).is_empty());
}
