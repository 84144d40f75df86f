// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Level 2 as the program shows it: what protects a checkpoint, damage in stripes, and repair.

use crate::job::{RANKS, Rank, backstay, config, store};
use backstay::config::Redundancy;
use backstay::{Communicator, Config, Level};
use backstay_format::{Extent, Stripe, StripePiece};
use backstay_inspect::Stores;
use backstay_store::stripe_log::{LOG_FILES, StripeTable, read_beside};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

fn redundant(path: &Path, rank: usize, redundancy: Redundancy) -> Config {
    Config {
        redundancy,
        listen_address: Some("127.0.0.1:0".to_owned()),
        ..config(path, rank, 1)
    }
}

/// A job of one rank on each of `nodes` nodes, whose `steps` checkpoints are all protected.
fn protected_job(path: &Path, nodes: usize, redundancy: Redundancy, steps: u64) {
    run_ranks(ThreadComm::new(nodes), |comm| {
        let rank = usize::try_from(comm.rank()).unwrap();
        let mut rank = Rank::open(comm, redundant(path, rank, redundancy));
        for _ in 0..steps {
            rank.compute();
            let handle = rank.session.checkpoint_start().expect("starting");
            let report = rank.session.wait(handle, Level::Protected);
            assert!(report.expect("protecting").protect_time > std::time::Duration::ZERO);
        }
        rank.session.close().expect("closing");
    });
}

fn stores(path: &Path) -> Vec<PathBuf> {
    (0..RANKS).map(|node| store(path, node)).collect()
}

fn bytes_of(paths: &[PathBuf]) -> Vec<Vec<u8>> {
    let read = |path: &PathBuf| std::fs::read(path).unwrap();
    paths.iter().map(read).collect()
}

/// The stripe log beside the store of node 0.
fn table(path: &Path) -> StripeTable {
    let file = store(path, 0);
    let opened = Stores::open(std::slice::from_ref(&file));
    read_beside(file.parent().unwrap(), opened.stores()[0].id()).unwrap()
}

/// The store that holds a piece, and where in its file that begins.
fn place(path: &Path, table: &StripeTable, piece: &StripePiece) -> (PathBuf, u64) {
    let opened = Stores::open(&[path.to_owned()]);
    let wanted = table.members[usize::from(piece.column)].store;
    let found = opened.stores().iter().find(|store| store.id() == wanted);
    let found = found.unwrap();
    let Extent {
        segment,
        offset_bytes,
        ..
    } = piece.extent;
    let slot = found.reader().slot_of(segment).unwrap();
    let offset = found.reader().geometry().slot_offset(slot) + u64::from(offset_bytes);
    (found.path().to_owned(), offset)
}

fn flip(path: &Path, table: &StripeTable, piece: &StripePiece) {
    let (file, offset) = place(path, table, piece);
    let file = OpenOptions::new().read(true).write(true).open(file);
    let file = file.unwrap();
    let offset = offset + u64::from(piece.extent.length_bytes) / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
}

/// A stripe of at least three pieces of data.
fn large(table: &StripeTable) -> &Stripe {
    let mut stripes = table.stripes.values();
    stripes.find(|stripe| stripe.pieces.len() >= 3).unwrap()
}

/// All that `verify` says is damaged in stripes.
fn stripe_damage(json: &Value) -> Vec<Value> {
    let stores = json["stores"].as_array().unwrap().iter();
    stores
        .flat_map(|store| store["stripes"]["damage"].as_array().unwrap().clone())
        .collect()
}

#[test]
fn ls_and_inspect_show_what_protects_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    protected_job(path, RANKS, Redundancy::Xor, 4);
    for places in [vec![path.to_owned()], vec![store(path, 2)]] {
        let places: Vec<&Path> = places.iter().map(PathBuf::as_path).collect();
        let ran = backstay(&["ls"], &places);
        assert_eq!(ran.status, 0, "{ran:?}");
        assert_eq!(
            ran.out.matches("protected: any 1 of 4 nodes (xor)").count(),
            3,
            "{ran:?}"
        );
        assert!(!ran.err.contains("LESS"), "{ran:?}");
    }
    // The job does not run any more: `status` says what `ls` says.
    let ran = backstay(&["status"], &[path]);
    assert!(
        ran.out.contains("protected  newest checkpoint 4.1"),
        "{ran:?}"
    );
    let json = backstay(&["status", "--json"], &[path]).json();
    let newest = json!({ "number": 4, "incarnation": 1 });
    assert_eq!(json["jobs"][0]["levels"]["protected"], newest, "{json}");
    let json = backstay(&["ls", "--json"], &[path]).json();
    assert_eq!(json["groups"].as_array().unwrap().len(), 1, "{json}");
    let group = &json["groups"][0];
    assert_eq!(
        (
            &group["losses"],
            &group["losses_asked"],
            &group["protected"]["number"]
        ),
        (&json!(1), &json!(1), &json!(4))
    );
    assert_eq!(json["checkpoints"][0]["protection"]["state"], "protected");
    let ran = backstay(&["inspect"], &[path]);
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(
        ran.out.contains("group of 4 nodes: node") && ran.out.contains(" stripes, "),
        "{ran:?}"
    );
    let json = backstay(&["inspect", "--json", "-c", "2"], &[path]).json();
    assert_eq!(json["bytes_uncovered"], 0);
    let group = &json["groups"][0];
    assert_eq!(group["members"].as_array().unwrap().len(), RANKS);
    let (data, parity) = (&group["bytes_data"], &group["bytes_parity"]);
    assert_eq!(&group["bytes_known"], data, "all members are here");
    assert!(parity.as_u64().unwrap() * 3 >= data.as_u64().unwrap());
    let ran = backstay(&["inspect"], &[&store(path, 1)]);
    assert!(ran.out.contains("not given"), "{ran:?}");
}

#[test]
fn what_is_newer_than_the_log_is_on_its_nodes_only_or_being_encoded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    protected_job(path, RANKS, Redundancy::Partner, 2);
    let logs: Vec<PathBuf> = stores(path)
        .iter()
        .flat_map(|store| LOG_FILES.map(|name| store.with_file_name(name)))
        .collect();
    let former = bytes_of(&logs);
    protected_job(path, RANKS, Redundancy::Partner, 1);
    for (log, bytes) in logs.iter().zip(former) {
        std::fs::write(log, bytes).unwrap();
    }
    let states = || {
        let json = backstay(&["ls", "--json"], &[path]).json();
        let all = json["checkpoints"].as_array().unwrap().clone();
        let state = |c: &Value| {
            (
                c["number"].as_u64().unwrap(),
                c["protection"]["state"].clone(),
            )
        };
        all.iter().map(state).collect::<Vec<_>>()
    };
    let before = [(1, json!("protected")), (2, json!("protected"))];
    assert_eq!(states()[..2], before);
    assert_eq!(states()[2], (3, json!("node only")));
    // As a running job does.
    let held: Vec<File> = stores(path)
        .iter()
        .map(|store| File::open(store.with_file_name("control.backstay")).unwrap())
        .collect();
    for file in &held {
        file.lock_shared().unwrap();
    }
    assert_eq!(states()[2], (3, json!("in encoding")));
    let ran = backstay(&["ls"], &[path]);
    assert!(ran.out.contains("any 1 of 4 nodes (partner)"), "{ran:?}");
}

#[test]
fn less_than_was_asked_for_is_said_loudly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    protected_job(path, 2, Redundancy::Rs, 2);
    let ran = backstay(&["ls"], &[path]);
    assert_eq!(ran.status, 0, "{ran:?}");
    let says = "protected: any 1 of 2 nodes (rs), LESS THAN ASKED";
    assert_eq!(ran.out.matches(says).count(), 2, "{ran:?}");
    let says = "LESS PROTECTION THAN ASKED: the group of 2 nodes (node0, node1) covers 1 lost of 2";
    assert_eq!(ran.err.matches(says).count(), 1, "{ran:?}");
    let json = backstay(&["ls", "--json"], &[path]).json();
    let protection = &json["checkpoints"][0]["protection"];
    assert_eq!(
        (&protection["losses"], &protection["losses_asked"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(protection["less_than_asked"].as_array().unwrap().len(), 1);
}

#[test]
fn damaged_data_and_parity_are_found_and_made_again() {
    for redundancy in [Redundancy::Xor, Redundancy::Rs] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        protected_job(path, RANKS, redundancy, 3);
        let files = stores(path);
        let whole = bytes_of(&files);
        assert_eq!(backstay(&["verify"], &[path]).status, 0);
        let table = table(path);
        let stripes: Vec<&Stripe> = table.stripes.values().collect();
        let (first, last) = (stripes[0], stripes[stripes.len() - 1]);
        let mut flipped = vec![&first.pieces[0], &last.parity[0]];
        if redundancy == Redundancy::Rs {
            // Data and parity of one stripe.
            flipped.push(&first.parity[1]);
        }
        for piece in &flipped {
            flip(path, &table, piece);
        }
        let ran = backstay(&["verify", "--json"], &[path]);
        assert_eq!(ran.status, 1, "{ran:?}");
        let damage = stripe_damage(&ran.json());
        assert_eq!(damage.len(), flipped.len(), "{damage:?}");
        assert!(
            damage.iter().all(|one| one["repairable"] == true),
            "{damage:?}"
        );
        let ran = backstay(&["verify"], &[path]);
        assert!(ran.out.contains("DAMAGED parity of stripe "), "{ran:?}");
        assert!(ran.err.contains("backstay verify --repair"), "{ran:?}");

        // One store alone tells what it needs.
        let (alone, _) = place(path, &table, flipped[0]);
        let ran = backstay(&["verify", "--repair", "--json"], &[&alone]);
        assert_eq!(ran.status, 1, "{ran:?}");
        let damage = stripe_damage(&ran.json());
        assert_eq!(damage[0]["repairable"], Value::Null, "{damage:?}");
        assert!(!damage[0]["needs"].as_array().unwrap().is_empty());
        assert_eq!(ran.json()["repaired"][0]["extents"], 0);

        let ran = backstay(&["verify", "--repair"], &[path]);
        assert_eq!(ran.status, 0, "{ran:?}");
        assert!(ran.out.contains(" extents rebuilt, "), "{ran:?}");
        assert!(bytes_of(&files) == whole, "the stores are not as they were");
        let ran = backstay(&["verify", "--repair"], &[path]);
        assert!(
            ran.status == 0 && ran.out.contains("nothing to repair"),
            "{ran:?}"
        );
    }
}

#[test]
fn more_damage_than_parity_is_an_error_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    protected_job(path, RANKS, Redundancy::Xor, 3);
    let table = table(path);
    let stripe = large(&table);
    flip(path, &table, &stripe.pieces[0]);
    flip(path, &table, &stripe.pieces[1]);
    let files = stores(path);
    let before = bytes_of(&files);
    let ran = backstay(&["verify", "--repair"], &[path]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert_eq!(
        ran.err.matches("beyond repair: segment").count(),
        2,
        "{ran:?}"
    );
    assert!(ran.out.contains("cannot be rebuilt"), "{ran:?}");
    assert!(bytes_of(&files) == before, "something was written");
}

#[test]
fn repair_keeps_off_stores_in_use_and_says_where_there_is_nothing_to_repair_from() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    crate::job::run_job(path, 4, 1);
    let ran = backstay(&["verify", "--repair"], &[path]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert!(ran.err.contains("redundancy group"), "{ran:?}");
    assert_eq!(
        backstay(&["verify", "--repair", "-c", "1"], &[path]).status,
        2
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    protected_job(path, RANKS, Redundancy::Xor, 1);
    let held = File::open(store(path, 3).with_file_name("lock.backstay")).unwrap();
    held.lock().unwrap();
    let ran = backstay(&["verify", "--repair", "--json"], &[path]);
    assert_eq!(ran.status, 1, "{ran:?}");
    assert_eq!(ran.json()["error"]["kind"], "store is in use");
    // Reading is allowed.
    assert_eq!(backstay(&["verify"], &[path]).status, 0);
}
