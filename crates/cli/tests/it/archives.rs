// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Level 3 as the program shows it: archives listed, inspected, verified, exported and pruned, without
//! the application.

use crate::job::{GLOBAL, RANKS, Ran, Rank, WORDS, backstay, config, element, small, word};
use backstay::config::ArchiveCodec;
use backstay::{Communicator, Config, ElementType, Level, Session, Variable};
use backstay_archive::drain::fetch::open_device;
use backstay_archive::fence::Fence;
use backstay_archive::{Catalog, catalog_file, store_file};
use backstay_format::TableEntry;
use backstay_format::width::to_u64;
use backstay_testkit::comm::{ThreadComm, run_ranks};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub(crate) const JOB: &str = "test job";

/// The archive's folder of the test job.
pub(crate) fn folder(path: &Path) -> PathBuf {
    path.join("pfs").join(JOB)
}

pub(crate) fn archiving(path: &Path, rank: usize, ranks_per_node: usize) -> Config {
    Config {
        archive: Some(path.join("pfs")),
        archive_retained: 4,
        archive_reserve_bytes: Some(8 << 20),
        listen_address: Some("127.0.0.1:0".to_owned()),
        ..config(path, rank, ranks_per_node)
    }
}

/// A job whose `steps` checkpoints are all in the archive when it ends, and which goes on from `from`.
pub(crate) fn archived_job(path: &Path, ranks_per_node: usize, from: Option<u64>, steps: u64) {
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let rank = usize::try_from(comm.rank()).unwrap();
        let mut rank = Rank::open(comm, archiving(path, rank, ranks_per_node));
        if let Some(number) = from {
            rank.session.restore_from(number).expect("restoring");
        }
        for _ in 0..steps {
            rank.compute();
            let handle = rank.session.checkpoint_start().expect("starting");
            rank.session
                .wait(handle, Level::Archive)
                .expect("archiving");
        }
        rank.session.close().expect("closing");
    });
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

fn numbers(ids: &Value) -> Vec<u64> {
    let ids = ids.as_array().unwrap().iter();
    ids.map(|id| id["number"].as_u64().unwrap()).collect()
}

/// All damage that `verify` finds in an archive, and that it ends as it should.
fn damage(path: &Path) -> (Vec<Value>, Ran) {
    let ran = backstay(&["verify", "--json"], &[path]);
    let json = ran.json();
    let of = |key: &str| {
        let all = json[key].as_array().unwrap().clone();
        all.into_iter()
            .flat_map(|one| one["damage"].as_array().unwrap().clone())
    };
    let all: Vec<Value> = of("stores").chain(of("archives")).collect();
    let readable = json["unreadable"].as_array().unwrap().is_empty();
    assert_eq!(
        ran.status,
        i32::from(!(all.is_empty() && readable)),
        "{ran:?}"
    );
    (all, ran)
}

/// The last bytes of a .npy file: its array.
fn bytes_of(path: &Path, length: usize) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    bytes[bytes.len() - length..].to_vec()
}

#[test]
fn an_archive_is_listed_and_inspected_from_every_side() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    archived_job(path, 2, None, 3);
    let archive = folder(path);
    let catalog = archive.join(catalog_file(1));
    for place in [&path.join("pfs"), &archive, &catalog] {
        let ran = backstay(&["ls"], &[place]);
        assert_eq!(ran.status, 0, "{ran:?}");
        assert_eq!(ran.out.matches("  archive  ").count(), 3, "{ran:?}");
        assert_eq!(ran.out.matches("complete").count(), 3, "{ran:?}");
        let json = backstay(&["ls", "--json"], &[place]).json();
        assert_eq!(numbers(&json["checkpoints"]), [1, 2, 3]);
        let newest = &json["checkpoints"][2];
        assert_eq!(
            (&newest["level"], &newest["complete"]),
            (&json!("archive"), &json!(true))
        );
        assert_eq!(newest["protection"]["state"], "archive");
        assert_eq!(newest["archive"]["whole"], true);
        assert!(
            newest["archive"]["bytes_stored"].as_u64().unwrap() > 0,
            "{newest}"
        );
        assert_eq!(json["archives"][0]["job"], JOB);
    }
    // Nodes and the archive together: each on its own lines.
    let json = backstay(&["ls", "--json"], &[path]).json();
    assert_eq!(numbers(&json["checkpoints"]), [1, 1, 2, 2, 3, 3]);
    let ran = backstay(&["inspect", "--json"], &[path]).json();
    assert_eq!(
        ran["checkpoint"]["level"], "node",
        "what is nearer is taken"
    );
    // One file of two: half of the ranks.
    let one = archive.join(store_file(0, 1));
    let json = backstay(&["ls", "--json"], &[&one]).json();
    assert_eq!(json["checkpoints"][0]["ranks_found"], 2, "{json}");
    assert!(
        backstay(&["ls"], &[&one])
            .out
            .contains("other files have the rest")
    );

    let json = backstay(&["inspect", "--json"], &[&archive]).json();
    let variables = json["variables"].as_array().unwrap();
    let big = variables.iter().find(|v| v["name"] == "big").unwrap();
    let stored = &big["stored"];
    assert!(stored["bytes"].as_u64().unwrap() >= WORDS * 8, "{stored}");
    assert!(stored["ratio"].as_f64().unwrap() > 0.0, "{stored}");
    assert_eq!(big["blocks_changed"], RANKS, "one block of each rank");
    let codecs = stored["codecs"].as_array().unwrap();
    assert!(
        !codecs.is_empty() && codecs.iter().all(|c| c["coder"].is_string()),
        "{stored}"
    );
    assert!(!stored["merge"].as_array().unwrap().is_empty());
    assert!(stored["ranks_merged"].as_u64().unwrap() >= 1);
    let ran = backstay(&["inspect"], &[&archive]);
    assert!(
        ran.out.contains("CODEC") && ran.out.contains("MERGE"),
        "{ran:?}"
    );
}

#[test]
fn any_archived_checkpoint_is_exported_as_the_program_had_it() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    archived_job(path, 2, None, 3);
    let archive = folder(path);
    for step in 1..=3 {
        let file = path.join(format!("field{step}.npy"));
        let (number, out) = (step.to_string(), file.to_str().unwrap());
        let ran = backstay(
            &["export", "-c", &number, "-v", "field", "-o", out],
            &[&archive],
        );
        assert_eq!(ran.status, 0, "{ran:?}");
        let rows = 0..GLOBAL[0];
        let all = rows.flat_map(|row| (0..GLOBAL[1]).map(move |column| element(row, column, step)));
        let expected: Vec<u8> = all.flat_map(|value| value.to_le_bytes()).collect();
        assert!(
            bytes_of(&file, expected.len()) == expected,
            "field of checkpoint {step}"
        );
        let file = path.join(format!("big{step}.npy"));
        let out = file.to_str().unwrap();
        let words = ["export", "-c", &number, "-v", "big", "-r", "3", "-o", out];
        assert_eq!(backstay(&words, &[&archive]).status, 0);
        let expected = (0..WORDS).map(|index| word(3, index, if index == 5 { step } else { 0 }));
        let expected: Vec<u8> = expected.flat_map(|value| value.to_le_bytes()).collect();
        assert!(
            bytes_of(&file, expected.len()) == expected,
            "big of checkpoint {step}"
        );
    }
    let whole = path.join("all.npz");
    let ran = backstay(
        &["export", "--json", "-o", whole.to_str().unwrap()],
        &[&archive],
    );
    assert_eq!(ran.status, 0, "{ran:?}");
    assert_eq!(ran.json()["checkpoint"]["number"], 3);
    assert!(small(3) > 0.0);
}

#[test]
fn an_undamaged_archive_is_verified_whole() {
    let root = tempfile::tempdir().unwrap();
    archived_job(root.path(), 2, None, 3);
    let archive = folder(root.path());
    let (found, ran) = damage(&archive);
    assert!(found.is_empty(), "{found:?}");
    let json = ran.json();
    assert_eq!(json["good"], true);
    let blocks = json["stores"].as_array().unwrap().iter();
    let blocks: u64 = blocks.map(|store| store["blocks"].as_u64().unwrap()).sum();
    assert!(blocks >= 4 * 25, "{json}");
    let ran = backstay(&["verify"], &[&archive]);
    assert!(ran.out.contains("1 catalog read: good"), "{ran:?}");
    assert_eq!(backstay(&["verify", "-c", "2"], &[&archive]).status, 0);
}

/// A job of one rank whose variable `weights` changes a little from checkpoint to checkpoint.
fn slow_job(path: &Path, steps: u32) {
    run_ranks(ThreadComm::new(1), |comm| {
        let config = Config {
            archive_codec: ArchiveCodec::Ratio,
            ..archiving(path, 0, 1)
        };
        let mut session = Session::open(Box::new(comm), config).unwrap();
        let mut weights = vec![0.0; SLOW];
        let variable = Variable::new("weights", ElementType::F64, &[to_u64(SLOW)]);
        // SAFETY: `weights` outlives the session.
        unsafe {
            session
                .protect(variable, weights.as_mut_ptr().cast())
                .unwrap();
        };
        for step in 1..=steps {
            weights.copy_from_slice(&slow(step));
            let handle = session.checkpoint_start().unwrap();
            session.wait(handle, Level::Archive).unwrap();
        }
        session.close().unwrap();
    });
}

const SLOW: usize = 50_000;

fn slow(step: u32) -> Vec<f64> {
    let mut word = 1_u32;
    let mut next = move || {
        word ^= word << 13;
        word ^= word >> 17;
        word ^= word << 5;
        f64::from(word)
    };
    let numbers = (0..SLOW).map(move |_| next() + 1e-7 * f64::from(step) * next());
    numbers.collect()
}

#[test]
fn differences_are_shown_verified_and_exported() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    slow_job(path, 3);
    let archive = folder(path);
    let json = backstay(&["inspect", "--json"], &[&archive]).json();
    let stored = &json["variables"][0]["stored"];
    assert!(stored["differences"].as_u64().unwrap() > 0, "{stored}");
    assert_eq!(stored["codecs"][0]["history"], "subtract", "{stored}");
    let ran = backstay(&["inspect"], &[&archive]);
    assert!(ran.out.contains("subtract"), "{ran:?}");
    let (found, ran) = damage(&archive);
    assert!(found.is_empty(), "{ran:?}");
    for step in 1..=3 {
        let out = path.join("weights.npy");
        let (number, to) = (step.to_string(), out.to_str().unwrap());
        let words = [
            "export", "-c", &number, "-v", "weights", "-r", "0", "-o", to,
        ];
        assert_eq!(backstay(&words, &[&archive]).status, 0);
        let expected: Vec<u8> = slow(step).iter().flat_map(|x| x.to_le_bytes()).collect();
        assert!(bytes_of(&out, expected.len()) == expected, "{step}");
    }
    // A damaged base is told for every checkpoint that has deltas to it.
    let store = open_device(&archive, &store_file(0, 1)).unwrap();
    let is_base = |entry: &&TableEntry| !entry.delta && entry.decoded_bytes > 100_000;
    let entry = *store.entries().iter().find(is_base).unwrap();
    drop(store);
    flip(
        &archive.join(store_file(0, 1)),
        entry.offset + u64::from(entry.stored_bytes) - 9,
    );
    let (found, ran) = damage(&archive);
    let needed: BTreeSet<u64> = found
        .iter()
        .flat_map(|one| numbers(&one["checkpoints"]))
        .collect();
    assert_eq!(needed, [1, 2, 3].into(), "{ran:?}");
}

#[test]
fn damage_of_a_segment_names_file_segment_offset_and_checkpoints() {
    let root = tempfile::tempdir().unwrap();
    archived_job(root.path(), 2, None, 3);
    let archive = folder(root.path());
    let name = store_file(0, 1);
    let device = open_device(&archive, &name).unwrap();
    let entries = device.entries();
    let of_big = entries
        .iter()
        .find(|e| device.header(e.segment).unwrap().variable == "big");
    let entry = of_big.unwrap_or(&entries[0]);
    let file = archive.join(&name);
    flip(&file, entry.offset + u64::from(entry.stored_bytes) / 2);
    let (found, _) = damage(&archive);
    assert_eq!(found.len(), 1, "{found:?}");
    let found = &found[0];
    assert_eq!(found["structure"], "archived segment");
    assert_eq!(found["segment"], entry.segment.0);
    assert_eq!(found["file_offset"], entry.offset);
    assert_eq!(found["file"], file.to_str().unwrap());
    assert_eq!(numbers(&found["checkpoints"]), [1, 2, 3], "all share it");
    let ran = backstay(&["verify"], &[&archive]);
    let text = format!("DAMAGED archived segment {} ", entry.segment.0);
    assert!(
        ran.out.contains(&text) && ran.out.contains("concerns checkpoints 1.1, 2.1, 3.1"),
        "{ran:?}"
    );

    // The newest segment is one that only the newest checkpoint needs.
    flip(&file, entry.offset + u64::from(entry.stored_bytes) / 2);
    let last = entries.last().unwrap();
    flip(&file, last.offset + u64::from(last.stored_bytes) - 1);
    let (found, _) = damage(&archive);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(numbers(&found[0]["checkpoints"]), [3], "{found:?}");
    assert_eq!(backstay(&["verify", "-c", "2"], &[&archive]).status, 0);
}

#[test]
fn damage_of_table_root_and_superblock_is_told() {
    let root = tempfile::tempdir().unwrap();
    archived_job(root.path(), 4, None, 3);
    let archive = folder(root.path());
    let file = archive.join(store_file(0, 1));
    let table = open_device(&archive, &store_file(0, 1))
        .unwrap()
        .root()
        .table;
    flip(&file, table.offset + 64);
    let (found, ran) = damage(&archive);
    let of_table: Vec<&Value> = found
        .iter()
        .filter(|f| f["structure"] == "segment table")
        .collect();
    assert_eq!(of_table.len(), 1, "{ran:?}");
    assert_eq!(numbers(&of_table[0]["checkpoints"]), [3], "{ran:?}");
    let lacks = found
        .iter()
        .any(|f| f["structure"] == "part of a checkpoint");
    assert!(lacks, "{ran:?}");
    let json = backstay(&["ls", "--json"], &[&archive]);
    assert_eq!(json.status, 1, "{json:?}");
    assert_eq!(json.json()["checkpoints"][2]["complete"], false, "{json:?}");
    flip(&file, table.offset + 64);

    flip(&file, 20);
    let (found, ran) = damage(&archive);
    assert_eq!(found.len(), 1, "{ran:?}");
    assert_eq!(
        (&found[0]["structure"], &found[0]["file_offset"]),
        (&json!("superblock"), &json!(0))
    );
    assert!(
        numbers(&found[0]["checkpoints"]).is_empty(),
        "the other copy is good"
    );
    flip(&file, 4096 + 20);
    let (found, ran) = damage(&archive);
    let parts = found
        .iter()
        .filter(|f| f["structure"] == "part of a checkpoint");
    let mut lost: Vec<u64> = parts.flat_map(|f| numbers(&f["checkpoints"])).collect();
    lost.sort_unstable();
    assert_eq!(lost, [1, 2, 3], "{ran:?}");
}

#[test]
fn damage_of_the_catalog_is_told() {
    let root = tempfile::tempdir().unwrap();
    archived_job(root.path(), 4, None, 3);
    let archive = folder(root.path());
    let file = archive.join(catalog_file(1));
    flip(&file, 24);
    let (found, ran) = damage(&archive);
    assert_eq!(found.len(), 1, "{ran:?}");
    assert_eq!(found[0]["structure"], "catalog superblock");
    flip(&file, 24);
    let newest = Catalog::open_reader(&archive).unwrap();
    let slots = [0, 1].map(|slot| newest.superblock().slot_offset(slot));
    let lists_newest = |slot: u64| {
        flip(&file, slot + 40);
        let (found, ran) = damage(&archive);
        assert_eq!(found.len(), 1, "{ran:?}");
        assert_eq!(found[0]["structure"], "catalog state");
        let concerned = numbers(&found[0]["checkpoints"]);
        flip(&file, slot + 40);
        concerned
    };
    let mut concerned = slots.map(lists_newest);
    concerned.sort_unstable();
    assert_eq!(
        concerned,
        [vec![], vec![3]],
        "the newer state alone listed checkpoint 3"
    );
    assert!(damage(&archive).0.is_empty());
}

#[test]
fn a_catalog_whose_making_was_interrupted_is_no_damage() {
    let root = tempfile::tempdir().unwrap();
    archived_job(root.path(), 4, None, 1);
    let archive = folder(root.path());
    // A second one that was begun, and then a first one that was.
    let begun = archive.join(catalog_file(2));
    std::fs::write(&begun, vec![0; 1 << 20]).unwrap();
    let (found, ran) = damage(&archive);
    assert!(found.is_empty() && ran.status == 0, "{ran:?}");
    std::fs::remove_file(archive.join(catalog_file(1))).unwrap();
    std::fs::remove_file(archive.join(store_file(0, 1))).unwrap();
    for words in [&["verify"][..], &["ls"]] {
        let ran = backstay(words, &[&archive]);
        assert_eq!(ran.status, 1, "{ran:?}");
        let said = format!("{}{}", ran.out, ran.err);
        assert!(said.contains("was begun and holds nothing"), "{ran:?}");
        assert!(!said.to_lowercase().contains("damage"), "{ran:?}");
    }
}

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "one story: the plan, what was done, the next start"
)]
fn prune_shows_its_plan_then_does_it() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    archived_job(path, 4, None, 4);
    // The next start goes on from 2: 3 and 4 are abandoned.
    archived_job(path, 4, Some(2), 1);
    let archive = folder(path);
    let listed = |place: &Path| backstay(&["ls", "--json"], &[place]).json()["checkpoints"].clone();
    let before = listed(&archive);
    let plan = backstay(
        &[
            "prune",
            "--dry-run",
            "--json",
            "--retained",
            "1",
            "--keep",
            "2",
        ],
        &[&archive],
    );
    assert_eq!(plan.status, 0, "{plan:?}");
    let json = plan.json();
    assert_eq!(json["done"], false);
    assert_eq!(numbers(&json["kept"]), [2], "{json}");
    assert!(numbers(&json["retained"]).contains(&2), "{json}");
    assert!(!json["dropped"].as_array().unwrap().is_empty(), "{json}");
    assert_eq!(listed(&archive), before, "nothing was done");
    // Without a terminal it needs to be told.
    let ran = backstay(&["prune", "--retained", "1"], &[&archive]);
    assert_eq!(ran.status, 2, "{ran:?}");
    assert!(
        ran.err.contains("--yes") && ran.out.contains("goes"),
        "{ran:?}"
    );
    let ran = backstay(
        &["prune", "--yes", "--retained", "1", "--keep", "2"],
        &[&archive],
    );
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.out.contains("done: "), "{ran:?}");
    let after = backstay(&["ls", "--json"], &[&archive]).json();
    let whole = after["checkpoints"].as_array().unwrap().iter();
    let whole: Vec<(u64, bool)> = whole
        .filter(|c| c["archive"]["whole"] == true)
        .map(|c| {
            (
                c["number"].as_u64().unwrap(),
                c["archive"]["kept"].as_bool().unwrap(),
            )
        })
        .collect();
    assert_eq!(whole, [(2, true), (3, false)], "{after}");
    // The job goes on, and drains free what went.
    archived_job(path, 4, Some(3), 1);
    let (found, ran) = damage(&archive);
    assert!(found.is_empty(), "{ran:?}");
    let out = path.join("big.npy");
    let words = [
        "export",
        "-c",
        "2",
        "-v",
        "big",
        "-r",
        "0",
        "-o",
        out.to_str().unwrap(),
    ];
    assert_eq!(backstay(&words, &[&archive]).status, 0);
    assert_eq!(
        backstay(&["prune", "--yes", "--release", "2"], &[&archive]).status,
        0
    );
    let ran = backstay(&["prune", "--yes", "--keep", "77"], &[&archive]);
    assert!(
        ran.status == 1 && ran.err.contains("no checkpoint 77"),
        "{ran:?}"
    );
}

/// Blocks of all files in `folder`, in bytes.
pub(crate) fn on_disk(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| entry.metadata().unwrap().blocks() * 512)
        .sum()
}

#[test]
fn prune_gives_the_space_back() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    archived_job(path, 2, None, 4);
    let archive = folder(path);
    let before = on_disk(&archive);
    let words = ["prune", "--yes", "--json", "--retained", "1"];
    let json = backstay(&words, &[&archive]).json();
    let after = on_disk(&archive);
    assert_eq!(json["bytes_freed"], json!(before - after), "{json}");
    // What stays, the head of each of two files, and a catalog of 2 MiB.
    assert!(after < 4 << 20, "{before} bytes, then {after}: {json}");
    assert_eq!(json["notes"], json!([]));
    let json = backstay(&words, &[&archive]).json();
    assert_eq!(
        (&json["done"], &json["bytes_freed"]),
        (&json!(false), &json!(0))
    );
    // What stayed is whole, and the job goes on from it.
    let (found, ran) = damage(&archive);
    assert!(found.is_empty(), "{ran:?}");
    archived_job(path, 2, Some(4), 2);
    let (found, ran) = damage(&archive);
    assert!(found.is_empty(), "{ran:?}");
}

/// Takes away the proof that no process writes the files of an archive: this host is another one for them.
fn forget_locks(archive: &Path) {
    for entry in std::fs::read_dir(archive).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("aggregate-") {
            Fence::forget(open_device(archive, &name).unwrap().superblock().store);
        }
    }
    Fence::forget(Catalog::open_reader(archive).unwrap().superblock().catalog);
}

#[test]
fn prune_gives_the_space_back_on_another_host() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    archived_job(path, 2, None, 4);
    let archive = folder(path);
    let former = [0, 1].map(|aggregator| archive.join(store_file(aggregator, 1)));
    let size = |file: &PathBuf| on_disk_of(file);
    let before = former.each_ref().map(size);
    forget_locks(&archive);
    let words = ["prune", "--yes", "--json", "--retained", "1"];
    let ran = backstay(&words, &[&archive]);
    assert_eq!(
        (ran.status, &ran.json()["notes"]),
        (0, &json!([])),
        "{ran:?}"
    );
    // Files of this host go on from those of the other, which are smaller.
    for (file, before) in former.iter().zip(before) {
        assert!(size(file) < before / 2, "{before}, then {}", size(file));
    }
    assert!(archive.join(store_file(0, 2)).exists());
    let (found, ran) = damage(&archive);
    assert!(found.is_empty(), "{ran:?}");
    // The former catalog goes with the next; then there is nothing to do.
    let json = backstay(&words, &[&archive]).json();
    assert_eq!(json["removed"], json!([catalog_file(1)]), "{json}");
    let json = backstay(&words, &[&archive]).json();
    assert_eq!(json["done"], json!(false), "{json}");
    assert!(on_disk(&archive) < 5 << 20, "{}", on_disk(&archive));
    // The job goes on, elsewhere again, and what stays is whole.
    forget_locks(&archive);
    archived_job(path, 2, Some(4), 2);
    let (found, ran) = damage(&archive);
    assert!(found.is_empty(), "{ran:?}");
    forget_locks(&archive);
    let json = backstay(&words, &[&archive]).json();
    assert_eq!(
        (&json["done"], &json["notes"]),
        (&json!(true), &json!([])),
        "{json}"
    );
    let (found, ran) = damage(&archive);
    assert!(found.is_empty(), "{ran:?}");
    let listed = backstay(&["ls", "--json"], &[&archive]).json();
    let whole = listed["checkpoints"].as_array().unwrap().iter();
    let whole = whole.filter(|c| c["archive"]["whole"] == true);
    assert_eq!(whole.count(), 1, "{listed}");
}

/// Blocks of a file, in bytes.
fn on_disk_of(file: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(file).unwrap()) * 512
}

#[test]
fn prune_removes_files_that_nothing_refers_to() {
    let root = tempfile::tempdir().unwrap();
    archived_job(root.path(), 4, None, 2);
    let archive = folder(root.path());
    let stray = archive.join(store_file(0, 7));
    std::fs::write(&stray, [0; 100]).unwrap();
    std::fs::write(archive.join("mine.txt"), b"not Backstay's").unwrap();
    let json = backstay(&["prune", "--yes", "--json"], &[&root.path().join("pfs")]).json();
    assert_eq!(json["removed"], json!([store_file(0, 7)]), "{json}");
    assert!(!stray.exists() && archive.join("mine.txt").exists());
    let ran = backstay(&["prune", "--yes"], &[&archive]);
    assert!(
        ran.status == 0 && ran.out.contains("nothing was done"),
        "{ran:?}"
    );
}

#[test]
fn prune_refuses_while_a_job_runs() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let rank = usize::try_from(comm.rank()).unwrap();
        let mut one = Rank::open(comm, archiving(path, rank, 4));
        for _ in 0..2 {
            one.compute();
            let handle = one.session.checkpoint_start().unwrap();
            one.session.wait(handle, Level::Archive).unwrap();
        }
        if rank == 0 {
            let ran = backstay(&["prune", "--yes", "--retained", "1"], &[&folder(path)]);
            assert_eq!(ran.status, 1, "{ran:?}");
            let me = format!("process {}", std::process::id());
            assert!(
                ran.err.contains("is used by job test job") && ran.err.contains(&me),
                "{ran:?}"
            );
        }
        one.compute();
        one.session.checkpoint().unwrap();
        one.session.close().unwrap();
    });
    let json = backstay(&["ls", "--json"], &[&folder(path)]).json();
    assert!(numbers(&json["checkpoints"]).contains(&1), "{json}");
}

#[test]
fn nothing_where_there_is_no_archive() {
    let root = tempfile::tempdir().unwrap();
    for words in [&["prune", "--yes"][..], &["status"], &["ls"]] {
        let ran = backstay(words, &[root.path()]);
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(ran.err.contains("archive"), "{ran:?}");
    }
}

#[test]
fn a_timeline_has_starts_checkpoints_and_drains() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    archived_job(path, 4, None, 3);
    archived_job(path, 4, Some(2), 2);
    let store = path.join(JOB);
    let json = backstay(&["timeline", "--json"], &[&store]).json();
    let events = json["events"].as_array().unwrap();
    let count = |what: &str| events.iter().filter(|event| event["what"] == what).count();
    let counts = ["start", "restore", "checkpoint", "close"].map(count);
    assert_eq!(counts, [2, 1, 5, 2], "{json}");
    let drains = json["drains"].as_array().unwrap();
    let times = |drain: &Value| {
        let time = |key: &str| drain[key].as_u64().unwrap();
        (time("began_unix_ns"), time("ended_unix_ns"))
    };
    assert!(
        drains.len() >= 5,
        "those of the first start are there, too: {json}"
    );
    assert!(
        drains
            .iter()
            .map(times)
            .all(|(began, ended)| 0 < began && began <= ended)
    );
    let ran = backstay(&["timeline"], &[&store]);
    for words in ["checkpoint 2 restored", "in the archive", "closed cleanly"] {
        assert!(ran.out.contains(words), "{ran:?}");
    }
    let picture = path.join("job.svg");
    let ran = backstay(&["timeline", "--svg", picture.to_str().unwrap()], &[&store]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let svg = std::fs::read_to_string(&picture).unwrap();
    for lane in ["starts", "checkpoints", "protected", "drains"] {
        assert!(svg.contains(&format!("aria-label=\"{lane}\"")), "{lane}");
    }
    let ran = backstay(&["timeline"], &[&folder(path)]);
    assert!(
        ran.status == 1 && ran.err.contains("metrics.json"),
        "{ran:?}"
    );
}
