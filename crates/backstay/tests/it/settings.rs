// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ranks of one job with different settings: one error for all, before anything depends on them.

use crate::job::config;
use backstay::config::{Redundancy, Tracking};
use backstay::{Communicator, Config, Error, ErrorKind, Session};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use std::path::Path;
use std::time::Duration;

type Change = Box<dyn Fn(&mut Config) + Sync>;

/// Opens a session on two ranks, of which `change` makes the second one's settings.
fn open(path: &Path, change: impl Fn(&mut Config) + Sync) -> Vec<Option<Error>> {
    let comms = ThreadComm::with_limit(2, Duration::from_secs(5));
    run_ranks(comms, |comm| {
        let mut config = config(path);
        config.node = Some(format!("node{}", comm.rank()));
        if comm.rank() == 1 {
            change(&mut config);
        }
        match Session::open(Box::new(comm), config) {
            Ok(session) => {
                session.close().unwrap();
                None
            }
            Err(error) => Some(error),
        }
    })
}

#[test]
fn settings_that_must_be_the_same_are_named_with_both_values_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let archive = path.join("archive");
    let cases: [(&str, &str, &str, Change); 8] = [
        ("archive", "not set", "archive\"", {
            Box::new(move |config| config.archive = Some(archive.clone()))
        }),
        ("redundancy", "\"none\"", "\"xor\"", {
            Box::new(|config| config.redundancy = Redundancy::Xor)
        }),
        ("retained", "2", "3", Box::new(|config| config.retained = 3)),
        ("block_bytes", "16384", "4096", {
            Box::new(|config| config.block_bytes = 4096)
        }),
        ("tracking", "\"hash\"", "\"pages\"", {
            Box::new(|config| config.tracking = Tracking::Pages)
        }),
        ("timeout_ms", "20000", "20001", {
            Box::new(|config| config.timeout_ms = 20_001)
        }),
        ("job", "\"test job\"", "\"other job\"", {
            Box::new(|config| config.job = Some("other job".to_owned()))
        }),
        ("restore_checkpoint", "not set", "7", {
            Box::new(|config| config.restore_checkpoint = Some(7))
        }),
    ];
    for (key, one, other, change) in cases {
        let errors = open(path, change);
        let errors: Vec<Error> = errors.into_iter().flatten().collect();
        assert_eq!(errors.len(), 2, "{key}: both ranks fail");
        for error in &errors {
            assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
            let text = error.to_string();
            for word in [key, one, other] {
                assert!(text.contains(word), "{key}, {word}: {text}");
            }
        }
        assert_eq!(errors[0].to_string(), errors[1].to_string());
    }
    let left = std::fs::read_dir(path).unwrap().count();
    assert_eq!(left, 0, "nothing is made before the settings are compared");
}

#[test]
fn all_settings_that_differ_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let errors = open(folder.path(), |config| {
        config.retained = 5;
        config.parity = 1;
        config.archive_every = Some(2);
    });
    for error in errors {
        let text = error.unwrap().to_string();
        for key in ["retained", "parity", "archive_every"] {
            assert!(text.contains(key), "{text}");
        }
    }
}

#[test]
fn what_is_of_one_node_or_one_process_may_differ() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let errors = open(folder.path(), |config| {
        config.store_path = Some(other.clone());
        config.capture_threads = Some(2);
        config.encode_threads = 1;
        config.changed_share = 0.5;
        config.reserve_bytes = Some(64 << 20);
        config.failure_domain = Some("rack 2".to_owned());
        config.metrics_interval_ms = 1;
    });
    assert!(errors.iter().all(Option::is_none), "{errors:?}");
}
