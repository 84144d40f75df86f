// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `export --safetensors`: a file that others read, tensors as a program with `torch` has them.

use crate::job::{GLOBAL, RANKS, WORDS, backstay, config, element, run_job, word};
use backstay::{ElementType, Session, Variable};
use backstay_testkit::comm::ThreadComm;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A tensor of a file: type, shape, elements.
type Read = (String, Vec<u64>, Vec<u8>);

/// The tensors of a file, as the format says: nothing between them, nothing behind.
fn read(path: &Path) -> BTreeMap<String, Read> {
    let bytes = std::fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap();
    assert_eq!(length % 8, 0);
    let (header, elements) = rest.split_at(length);
    let mut header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    assert_eq!(header.remove("__metadata__").unwrap()["format"], "pt");
    let mut found = BTreeMap::new();
    let mut ranges = Vec::new();
    for (name, entry) in header {
        let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
        let offsets = &entry["data_offsets"];
        let range = number(&offsets[0])..number(&offsets[1]);
        let shape = entry["shape"].as_array().unwrap().iter();
        let shape = shape.map(|extent| extent.as_u64().unwrap()).collect();
        let kind = entry["dtype"].as_str().unwrap().to_owned();
        found.insert(name, (kind, shape, elements[range.clone()].to_vec()));
        ranges.push((range.start, range.end));
    }
    ranges.sort_unstable();
    let mut at = 0;
    for (start, end) in ranges {
        assert_eq!(start, at);
        at = end;
    }
    assert_eq!(at, elements.len());
    found
}

fn export(words: &[&str], file: &Path, folder: &Path) -> crate::job::Ran {
    let words = [&["export", "-o", file.to_str().unwrap()], words].concat();
    backstay(&words, &[folder])
}

#[test]
fn arrays_of_all_ranks_become_tensors() {
    let folder = tempfile::tempdir().unwrap();
    run_job(folder.path(), 2, 3);
    let file = folder.path().join("all.safetensors");
    let ran = export(&[], &file, folder.path());
    assert_eq!(ran.status, 1, "{ran:?}");
    let wave = "\"wave\" is complex128, which safetensors has no type for";
    assert!(ran.err.contains(wave), "{ran:?}");
    assert!(!file.exists());

    for (variable, kind, shape, ranks) in [
        ("field", "F64", &GLOBAL[..], 1),
        ("big", "U64", &[WORDS / 100, 100][..], RANKS),
        ("half", "BF16", &[10][..], RANKS),
        ("step", "U64", &[][..], RANKS),
        ("raw", "U8", &[5][..], RANKS),
    ] {
        let ran = export(&["-v", variable, "--json"], &file, folder.path());
        assert_eq!(ran.status, 0, "{ran:?}");
        let tensors = read(&file);
        assert_eq!(tensors.len(), ranks, "{variable}");
        for (name, (found, extents, _)) in &tensors {
            assert!(name == variable || name.starts_with(&format!("{variable}.rank")));
            assert_eq!((&**found, &**extents), (kind, shape), "{name}");
        }
        assert_eq!(ran.json()["arrays"][0]["dtype"], kind);
    }
    let words = |file: &Path, name: &str| read(file).remove(name).unwrap().2;
    export(&["-v", "big"], &file, folder.path());
    let big = (0..WORDS).map(|index| word(2, index, if index == 5 { 3 } else { 0 }));
    let expected: Vec<u8> = big.flat_map(u64::to_le_bytes).collect();
    assert!(words(&file, "big.rank2") == expected);
    export(&["-v", "field"], &file, folder.path());
    let last = words(&file, "field").len() - 8;
    assert_eq!(
        words(&file, "field")[last..],
        element(63, 95, 3).to_le_bytes()
    );
}

/// A start of one process that has `bytes` under these names, with types and shapes.
fn stored(folder: &Path, variables: &[(&str, ElementType, &[u64], &[u8])]) {
    let mut memory: Vec<Vec<u8>> = variables.iter().map(|(.., bytes)| bytes.to_vec()).collect();
    let comm = ThreadComm::new(1).remove(0);
    let mut session = Session::open(Box::new(comm), config(folder, 0, 1)).unwrap();
    for ((name, kind, shape, _), bytes) in variables.iter().zip(&mut memory) {
        // SAFETY: the memory outlives the session, and its vectors do not grow.
        unsafe { session.protect(Variable::new(name, *kind, shape), bytes.as_mut_ptr()) }.unwrap();
    }
    session.checkpoint().unwrap();
    session.close().unwrap();
}

fn tree(header: &str, blobs: &[u8]) -> Vec<u8> {
    let length = u64::try_from(header.len()).unwrap().to_le_bytes();
    [b"BSTREE01", &length[..], header.as_bytes(), blobs].concat()
}

#[test]
fn the_order_of_a_tensors_dimensions_is_its_own_again() {
    let folder = tempfile::tempdir().unwrap();
    let said = tree(
        r#"{"tree":{"orders":{"model/w":[2,0,1],"model/b":[0]}},"blobs":[]}"#,
        b"",
    );
    // Of shape 2 x 3 x 4, stored as 4 x 2 x 3: element (a, b, c) is 12 a + 4 b + c.
    let element = |at: u8| (at % 6) / 3 * 12 + at % 3 * 4 + at / 6;
    let weights: Vec<u8> = (0..24).map(element).collect();
    let said_bytes = u64::try_from(said.len()).unwrap();
    stored(
        folder.path(),
        &[
            ("model/w", ElementType::U8, &[4, 2, 3], &weights),
            ("model/b", ElementType::U8, &[2], b"xy"),
            ("backstay.torch", ElementType::Bytes, &[said_bytes], &said),
        ],
    );
    let file = folder.path().join("weights");
    let ran = export(&["--safetensors"], &file, folder.path());
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.out.contains("2 tensors"), "{ran:?}");
    let tensors = read(&file);
    let expected: Vec<u8> = (0..24).collect();
    assert_eq!(
        tensors["model/w"],
        ("U8".to_owned(), vec![2, 3, 4], expected)
    );
    assert_eq!(tensors["model/b"].2, b"xy");
    assert_eq!(tensors.len(), 2);
}

#[test]
fn what_a_shelf_says_of_types_and_small_tensors_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let header = r#"{"tree":[{"name":"mask","dtype":"bool","shape":[3],"order":[0]},
        {"name":"scale","value":{"$tensor":[0,"float32",[1]]}}],"blobs":[4]}"#;
    let one = 1.0_f32.to_le_bytes();
    let said = tree(header, &one);
    let lengths = u64::try_from(said.len()).unwrap();
    let variables: [(&str, ElementType, &[u64], &[u8]); 2] = [
        ("mask", ElementType::U8, &[3], &[1, 0, 1]),
        ("backstay.tensors", ElementType::Bytes, &[lengths], &said),
    ];
    stored(folder.path(), &variables);
    let file = folder.path().join("key.safetensors");
    let ran = export(&[], &file, folder.path());
    assert_eq!(ran.status, 0, "{ran:?}");
    let tensors = read(&file);
    assert_eq!(tensors["mask"], ("BOOL".to_owned(), vec![3], vec![1, 0, 1]));
    assert_eq!(tensors["scale"], ("F32".to_owned(), vec![1], one.to_vec()));
}

#[test]
fn elements_that_are_stored_as_bytes_are_of_the_type_that_a_writer_says() {
    let folder = tempfile::tempdir().unwrap();
    let said =
        br#"{"format":1,"items":[{"fqn":"f8","dtype":"float8_e4m3fn"},{"fqn":"one","dtype":"bool"},
        {"fqn":"across","dtype":"bool","order":[1,0]},{"fqn":"other"}]}"#;
    let length = u64::try_from(said.len()).unwrap();
    let variables: [(&str, ElementType, &[u64], &[u8]); 5] = [
        ("f8", ElementType::Bytes, &[2, 2, 1], &[1, 2, 3, 4]),
        ("one", ElementType::Bytes, &[1], &[1]),
        (
            "across",
            ElementType::Bytes,
            &[2, 3, 1],
            &[0, 2, 4, 1, 3, 5],
        ),
        ("other", ElementType::Bytes, &[3], b"obj"),
        (
            "backstay.torch.dcp.items",
            ElementType::Bytes,
            &[length],
            said,
        ),
    ];
    stored(folder.path(), &variables);
    let file = folder.path().join("saved.safetensors");
    let ran = export(&[], &file, folder.path());
    assert_eq!(ran.status, 0, "{ran:?}");
    let tensors = read(&file);
    assert_eq!(
        tensors["f8"],
        ("F8_E4M3".to_owned(), vec![2, 2], vec![1, 2, 3, 4])
    );
    assert_eq!(tensors["one"], ("BOOL".to_owned(), vec![], vec![1]));
    assert_eq!(
        tensors["across"],
        ("BOOL".to_owned(), vec![3, 2], (0..6).collect())
    );
    assert_eq!(tensors.len(), 3);
}

#[test]
fn a_tree_that_is_none_is_an_error_and_no_file() {
    for said in [
        &b"BSTREE01"[..],
        &tree(r#"{"tree":{"orders":{"w":[0,0]}},"blobs":[]}"#, b""),
        &tree(r#"{"tree":{"orders":{"w":[0]}},"blobs":[]}"#, b""),
        &tree(r#"{"tree":{"orders":{"w":[1,7]}},"blobs":[]}"#, b""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let length = u64::try_from(said.len()).unwrap();
        let variables: [(&str, ElementType, &[u64], &[u8]); 2] = [
            ("w", ElementType::U8, &[2, 2], &[1, 2, 3, 4]),
            ("backstay.torch", ElementType::Bytes, &[length], said),
        ];
        stored(folder.path(), &variables);
        let file = folder.path().join("x.safetensors");
        let ran = export(&[], &file, folder.path());
        assert_eq!((ran.status, file.exists()), (1, false), "{ran:?}");
    }
}
