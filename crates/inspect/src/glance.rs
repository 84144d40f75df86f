// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how jobs stand, cheaply: of each store its newest root and what its job has said, no tables.
//! In: paths. Out: what `backstay status` shows, again and again.
//! Invariants: takes no lock and writes nothing; a file that is being replaced is looked at once more.

use super::find::{Found, find};
use super::{Unreadable, protection};
use backstay_archive::drain::{ArchiveStatus, STATUS_FILE};
use backstay_base::error::Error;
use backstay_base::io::ReadAt;
use backstay_base::io::file::FileDevice;
use backstay_format::{CheckpointId, RootSlot};
use backstay_metrics::Metrics;
use backstay_store::control::ControlGlance;
use backstay_store::reader::StoreReader;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A store at one moment.
#[derive(Debug, Clone)]
pub struct StoreGlance {
    /// Its file.
    pub path: PathBuf,
    /// The job.
    pub job: String,
    /// The node.
    pub node: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Its newest root.
    pub root: RootSlot,
    /// What the job that uses it said; `None` if none does.
    pub running: Option<ControlGlance>,
    /// What the job measured of itself.
    pub metrics: Option<Metrics>,
    /// How draining stands, on the node of rank 0.
    pub archive: Option<ArchiveStatus>,
}

impl StoreGlance {
    fn at(path: &Path) -> Result<Self, Error> {
        let device = FileDevice::open_read_only(path)
            .map_err(|error| Error::io(format!("{}: opening it", path.display()), error))?;
        let bytes = device.length_bytes().unwrap_or(0);
        let reader = StoreReader::open(Arc::new(device))?;
        let (root, _) = reader.newest_root().or_else(|_| reader.newest_root())?;
        let superblock = reader.superblock();
        // The store may be a link to where there was room.
        let named = path.parent().unwrap_or(Path::new("."));
        let file = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let own = file.parent().unwrap_or(named);
        let running = protection::glance(own).or_else(|| protection::glance(named));
        Ok(Self {
            path: path.to_owned(),
            job: superblock.job.clone(),
            node: superblock.node.clone(),
            bytes,
            running,
            metrics: read(named, own, "metrics.json"),
            archive: read(named, own, STATUS_FILE),
            root,
        })
    }

    /// The newest checkpoint that it retains.
    pub fn newest(&self) -> Option<CheckpointId> {
        self.root
            .revisions
            .last()
            .map(|revision| revision.checkpoint)
    }
}

fn read<T: DeserializeOwned>(named: &Path, own: &Path, file: &str) -> Option<T> {
    let bytes = std::fs::read(named.join(file)).or_else(|_| std::fs::read(own.join(file)));
    serde_json::from_slice(&bytes.ok()?).ok()
}

/// The stores of nodes at or below `paths`.
pub fn glance_stores(paths: &[PathBuf]) -> (Vec<StoreGlance>, Vec<Unreadable>) {
    let (mut stores, mut unreadable) = (Vec::new(), Vec::new());
    let mut wrong = |path: &Path, error| {
        let path = path.to_owned();
        unreadable.push(Unreadable { path, error });
    };
    for path in paths {
        let found = match find(path) {
            Ok(found) => found,
            Err(error) => {
                wrong(path, error);
                continue;
            }
        };
        for place in found {
            let Found::Store(path) = place else { continue };
            match StoreGlance::at(&path) {
                Ok(store) => stores.push(store),
                Err(error) => wrong(&path, error),
            }
        }
    }
    (stores, unreadable)
}
