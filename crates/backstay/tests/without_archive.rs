// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a library does that was built without the feature `archive`: all but level 3, which is refused.
#![cfg(not(feature = "archive"))]
#![expect(clippy::unwrap_used, reason = "a test may stop where it fails")]
#![expect(unsafe_code, reason = "protecting memory is unsafe by contract")]

use backstay::comm::Single;
use backstay::{Config, ElementType, ErrorKind, Level, Session, Variable};
use std::path::Path;

fn config(folder: &Path) -> Config {
    Config {
        job: Some("plain".to_owned()),
        node: Some("node".to_owned()),
        store_path: Some(folder.to_owned()),
        ..Config::default()
    }
}

#[test]
fn checkpoints_on_the_node_are_as_with_it() {
    let folder = tempfile::tempdir().unwrap();
    for start in 0..2_u64 {
        let mut session = Session::open(Box::new(Single), config(folder.path())).unwrap();
        let mut step = 0_u64;
        let variable = Variable::new("step", ElementType::U64, &[]);
        // SAFETY: `step` stays where it is as long as the session starts.
        unsafe { session.protect(variable, (&raw mut step).cast()) }.unwrap();
        match session.restore() {
            Ok(_) => assert_eq!((start, step), (1, 7)),
            Err(error) => assert_eq!((start, error.kind()), (0, ErrorKind::NoCheckpoint)),
        }
        step = 7;
        std::hint::black_box(&step);
        let handle = session.checkpoint_start().unwrap();
        session.wait(handle, Level::Node).unwrap();
        let error = session.wait(handle, Level::Archive).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        session.close().unwrap();
    }
}

#[test]
fn a_job_that_names_an_archive_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        archive: Some(folder.path().join("archive")),
        ..config(folder.path())
    };
    let error = Session::open(Box::new(Single), config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("feature `archive`"), "{error}");
}
