// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What changed between two checkpoints, of a job's variables and of files, is told element by element.

use crate::job::{RANKS, WORDS, backstay, run_job};
use serde_json::Value;
use std::path::{Path, PathBuf};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hdf5/tests/fixtures");

fn array<'a>(view: &'a Value, variable: &str, dataset: Option<&str>) -> &'a Value {
    let mut arrays = view["arrays"].as_array().unwrap().iter();
    let found =
        arrays.find(|one| one["variable"] == variable && one["dataset"].as_str() == dataset);
    found.unwrap_or_else(|| panic!("{variable} {dataset:?} in {view}"))
}

#[test]
fn variables_of_a_job_are_compared_element_by_element() {
    let root = tempfile::tempdir().unwrap();
    run_job(root.path(), 2, 3);
    let ran = backstay(&["diff", "2", "3", "--json"], &[root.path()]);
    assert_eq!(ran.status, 0, "{}", ran.err);
    let view = ran.json();
    assert_eq!(
        (&view["from"]["number"], &view["to"]["number"]),
        (&2.into(), &3.into())
    );
    let step = array(&view, "step", None);
    assert_eq!(
        (&step["ranks"], &step["elements"], &step["changed"]),
        (&RANKS.into(), &4.into(), &4.into())
    );
    assert_eq!(step["largest"], 1.0);
    // One word of each rank's 40,000 changes at a step, and one element of the global array by a quarter.
    let big = array(&view, "big", None);
    assert_eq!(big["elements"], WORDS * RANKS as u64);
    assert_eq!(
        (&big["changed"], &big["first_changed"]),
        (&RANKS.into(), &5.into())
    );
    let field = array(&view, "field", None);
    assert_eq!(
        (&field["changed"], &field["largest"]),
        (&1.into(), &0.25.into())
    );
    assert_eq!(array(&view, "raw", None)["changed"], 0);
    // The same the other way round, and of itself.
    let back = backstay(&["diff", "3", "2", "--json", "-v", "field"], &[root.path()]).json();
    assert_eq!(
        (
            back["arrays"].as_array().unwrap().len(),
            &back["arrays"][0]["changed"]
        ),
        (1, &1.into())
    );
    let none = backstay(&["diff", "3", "3", "--json"], &[root.path()]).json();
    assert!(
        none["arrays"]
            .as_array()
            .unwrap()
            .iter()
            .all(|one| one["changed"] == 0)
    );
    for (words, text) in [
        (&["diff", "2", "9"][..], "checkpoint 9 is not retained"),
        (&["diff", "2", "3", "-v", "nothing"], "\"nothing\""),
        (&["diff", "2"], "a checkpoint is a number"),
    ] {
        let ran = backstay(words, &[root.path()]);
        assert_ne!(ran.status, 0);
        assert!(ran.err.contains(text), "{words:?}: {}", ran.err);
    }
}

/// Changes bytes of a file.
fn change(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Two checkpoints of two ranks, of which the second rank's second file has a few other values.
fn imported(root: &Path, file: &[u8]) -> PathBuf {
    let expected = std::fs::read(Path::new(FIXTURES).join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let place = |name: &str, extent: usize| {
        let offset = &expected["latest.h5"][name]["extents"][extent][0];
        usize::try_from(offset.as_u64().unwrap()).unwrap()
    };
    let folder = root.join("run");
    std::fs::create_dir(&folder).unwrap();
    for rank in 0..2 {
        let mut later = file.to_vec();
        if rank == 1 {
            // Element 10 of `again`, which is `temperature`, is 37: it becomes 39.5. The second of one chunk of
            // `density`, in row 0 and column 17, is 58: it becomes -58. A byte of a packed chunk is another one.
            change(&mut later, place("again", 0) + 80, &39.5_f64.to_le_bytes());
            let density = place("blast/level0/density", 1) + 4;
            change(&mut later, density, &(-58.0_f32).to_le_bytes());
            later[place("blast/level0/packed", 1) + 3] ^= 1;
        }
        std::fs::write(folder.join(format!("s.1.{rank}")), file).unwrap();
        std::fs::write(folder.join(format!("s.2.{rank}")), &later).unwrap();
    }
    let archive = root.join("archive");
    let to = ["--archive", archive.to_str().unwrap()];
    let words = [&["import", "-p", "s.{step}.{rank}", "--json"][..], &to].concat();
    let ran = backstay(&words, &[&folder]);
    assert_eq!(ran.status, 0, "{}", ran.err);
    archive
}

#[test]
fn datasets_of_files_are_compared_and_drawn() {
    let root = tempfile::tempdir().unwrap();
    let file = std::fs::read(Path::new(FIXTURES).join("latest.h5")).unwrap();
    let archive = imported(root.path(), &file);
    let picture = root.path().join("diff.svg");
    let words = [
        "diff",
        "1",
        "2",
        "--json",
        "--svg",
        picture.to_str().unwrap(),
    ];
    let ran = backstay(&words, &[&archive]);
    assert_eq!(ran.status, 0, "{}", ran.err);
    let (view, name) = (ran.json(), "s.{step}.{rank}");
    let is = |dataset: Option<&str>, wanted: &[(&str, Value)]| {
        let array = array(&view, name, dataset);
        for (key, wanted) in wanted {
            assert_eq!(array[key], *wanted, "{key} of {array}");
        }
    };
    let changed = |elements: u64, at: u64, by: f64| {
        [
            ("elements", elements.into()),
            ("changed", 1.into()),
            ("first_changed", at.into()),
            ("largest", by.into()),
        ]
    };
    is(Some("again"), &changed(2000, 1010, 2.5));
    is(Some("blast/level0/density"), &changed(2400, 1217, 116.0));
    is(
        Some("blast/level0/density"),
        &[("largest_relative", 2.0.into())],
    );
    let packed = [
        ("unit", "chunks".into()),
        ("elements", 4.into()),
        ("changed", 1.into()),
    ];
    is(Some("blast/level0/packed"), &packed);
    is(
        None,
        &[
            ("unit", "bytes".into()),
            ("elements", (2 * file.len()).into()),
        ],
    );
    let svg = std::fs::read_to_string(picture).unwrap();
    let strip = "aria-label=\"blast/level0/density\"";
    assert!(svg.contains(strip), "its strips have names");
}

#[test]
fn datasets_are_shown_with_their_types() {
    let root = tempfile::tempdir().unwrap();
    let file = std::fs::read(Path::new(FIXTURES).join("latest.h5")).unwrap();
    let archive = imported(root.path(), &file);
    let shown = backstay(&["inspect", "--json", "-c", "1"], &[&archive]).json();
    let datasets = shown["variables"][0]["parts"][0]["file"]["datasets"].as_array();
    let of = |path: &str| {
        datasets
            .unwrap()
            .iter()
            .find(|one| one["path"] == path)
            .unwrap()
    };
    assert_eq!(
        (&of("again")["type"], &of("again")["typed"]),
        (&"f64".into(), &true.into())
    );
    assert_eq!(of("blast/level0/packed")["typed"], false);
    let text = backstay(&["inspect"], &[&archive]).out;
    let line = text
        .lines()
        .find(|line| line.contains("blast/level0/density"));
    assert!(
        line.is_some_and(|line| line.contains("f32") && line.contains("chunked")),
        "{text}"
    );
}

/// A row of a picture is there for each checkpoint but the first, or for each rank.
#[test]
fn changes_are_shown_over_the_retained_checkpoints() {
    let root = tempfile::tempdir().unwrap();
    run_job(root.path(), 2, 3);
    let pictures = [
        root.path().join("places.svg"),
        root.path().join("ranks.svg"),
    ];
    let [places, ranks] = pictures.each_ref().map(|path| path.to_str().unwrap());
    let words = ["changes", "--json", "--svg", places, "--svg-ranks", ranks];
    let ran = backstay(&words, &[root.path()]);
    assert_eq!(ran.status, 0, "{}", ran.err);
    let view = ran.json();
    // The largest: of each rank's 40,000 words one changes at a step.
    assert_eq!(view["variable"], "big");
    let changes = view["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 2, "{view}");
    for (at, change) in changes.iter().enumerate() {
        assert_eq!(change["changed"], RANKS, "{view}");
        assert_eq!(change["elements"], WORDS * RANKS as u64);
        let names = [&change["from"], &change["to"]].map(|name| name.as_str().unwrap().to_owned());
        assert_eq!(names, [format!("{}.1", at + 1), format!("{}.1", at + 2)]);
        let by_rank = change["changed_share_by_rank"].as_object().unwrap();
        assert_eq!(by_rank.len(), RANKS);
        assert!(by_rank.values().all(|share| share == 1.0 / 40_000.0));
    }
    let drawn = pictures.map(|path| std::fs::read_to_string(path).unwrap());
    assert!(drawn[0].contains("to checkpoint 2.1") && drawn[0].contains("to checkpoint 3.1"));
    assert!(!drawn[0].contains("to checkpoint 1"));
    for rank in 0..RANKS {
        assert!(drawn[1].contains(&format!("rank {rank}")), "{}", drawn[1]);
    }
    let ran = backstay(&["changes", "-v", "field"], &[root.path()]);
    assert!(
        ran.out.contains("variable field") && ran.out.contains("1 of 6144"),
        "{}",
        ran.out
    );
    let ran = backstay(&["changes", "-v", "nothing"], &[root.path()]);
    assert!(
        ran.status != 0 && ran.err.contains("\"nothing\""),
        "{}",
        ran.err
    );
}

#[test]
fn one_checkpoint_alone_has_no_changes() {
    let root = tempfile::tempdir().unwrap();
    run_job(root.path(), 2, 1);
    let ran = backstay(&["changes"], &[root.path()]);
    assert!(
        ran.status != 0 && ran.err.contains("fewer than two"),
        "{}",
        ran.err
    );
}
