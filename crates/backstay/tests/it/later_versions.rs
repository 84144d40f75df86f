// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stores and archives that a later major version wrote: nobody takes them for damage, goes on from what is
//! older, or writes to them.

use crate::job::{Rank, config, start};
use crate::versions::{later, says_both_versions};
use backstay::format::CatalogSuperblock;
use backstay::format::bytes::FRAME_HEAD_BYTES;
use backstay::format::geometry::{ROOT_OFFSETS, SUPERBLOCK_OFFSETS};
use backstay::format::limits::STORE_VERSION_MAJOR;
use backstay::{Config, Error, ErrorKind, Level};
use backstay_testkit::comm::ThreadComm;
use std::path::Path;

const STORE: &str = "node/test job/node0/store.backstay";
const CATALOG: &str = "pfs/test job/catalog-1.backstay";
const FILE: &str = "pfs/test job/aggregate-0-1.backstay";

fn archived(folder: &Path) -> Config {
    Config {
        store_path: Some(folder.join("node")),
        archive: Some(folder.join("pfs")),
        archive_retained: 10,
        archive_reserve_bytes: Some(8 << 20),
        ..config(folder)
    }
}

/// A job with three checkpoints, in its store and its archive.
fn job(folder: &Path) -> Config {
    let config = archived(folder);
    start(1, &config, |rank| {
        for _ in 0..3 {
            rank.compute();
            let handle = rank.session.checkpoint_start().unwrap();
            rank.session.wait(handle, Level::Archive).unwrap();
        }
    });
    config
}

fn restored(config: &Config) -> Result<u64, Error> {
    let comm = ThreadComm::new(1).pop().unwrap();
    let mut rank = Rank::open(comm, config.clone())?;
    rank.settle()?;
    let number = rank.session.restore()?.checkpoint.number;
    rank.check();
    Ok(number)
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// Makes the frame at `start` one of the next major version.
fn make_later(bytes: &mut [u8], start: usize) {
    let length = bytes[start..][..FRAME_HEAD_BYTES][12..].first_chunk();
    let length = index(u64::from(u32::from_le_bytes(*length.unwrap())));
    let frame = later(bytes[start..][..length].to_vec());
    bytes[start..][..length].copy_from_slice(&frame);
}

/// With `change` made to a file the job is refused, whatever it names, and does not write to that file.
fn is_left_alone(config: &Config, path: &Path, change: impl Fn(&mut [u8])) {
    let before = std::fs::read(path).unwrap();
    let mut changed = before.clone();
    change(&mut changed);
    assert!(before != changed);
    std::fs::write(path, &changed).unwrap();
    for restore_checkpoint in [None, Some(2)] {
        let config = Config {
            restore_checkpoint,
            timeout_ms: 500,
            ..config.clone()
        };
        let error = restored(&config).unwrap_err();
        says_both_versions(
            &error.to_string(),
            STORE_VERSION_MAJOR,
            STORE_VERSION_MAJOR + 1,
        );
        let kind = error.kind();
        assert!(
            matches!(kind, ErrorKind::Unsupported | ErrorKind::Unreadable),
            "{error}"
        );
        let name = path.file_name().unwrap().to_string_lossy();
        assert!(error.to_string().contains(&*name), "{error}");
        assert!(std::fs::read(path).unwrap() == changed, "it was written to");
    }
    std::fs::write(path, &before).unwrap();
}

#[test]
fn a_store_of_a_later_version_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let config = job(folder.path());
    let path = folder.path().join(STORE);
    let roots = ROOT_OFFSETS.map(index);
    let superblocks = SUPERBLOCK_OFFSETS.map(index);
    for places in [&roots[..1], &roots[1..], &roots, &superblocks] {
        is_left_alone(&config, &path, |bytes| {
            for &place in places {
                make_later(bytes, place);
            }
        });
    }
    assert_eq!(restored(&config).unwrap(), 3);
}

#[test]
fn an_archive_of_a_later_version_is_refused_and_left_alone() {
    for name in [CATALOG, FILE] {
        let folder = tempfile::tempdir().unwrap();
        let config = job(folder.path());
        // Only the archive has its checkpoints.
        std::fs::remove_dir_all(folder.path().join("node")).unwrap();
        let path = folder.path().join(name);
        let bytes = std::fs::read(&path).unwrap();
        let is_head = |place: &usize| bytes[*place] != 0;
        let superblocks = SUPERBLOCK_OFFSETS.map(index).into_iter().filter(is_head);
        let states = if name == FILE {
            ROOT_OFFSETS.map(index)
        } else {
            let superblock = CatalogSuperblock::decode(&bytes).unwrap();
            [0, 1].map(|slot| index(superblock.slot_offset(slot)))
        };
        let places = [superblocks.collect(), states.to_vec()];
        let alone = states.map(|place| vec![place]);
        for places in places.iter().chain(&alone) {
            assert!(!places.is_empty() && places.iter().all(is_head));
            is_left_alone(&config, &path, |bytes| {
                for &place in places {
                    make_later(bytes, place);
                }
            });
        }
        assert_eq!(restored(&config).unwrap(), 3);
    }
}
