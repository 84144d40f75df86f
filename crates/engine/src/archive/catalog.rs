// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the catalog of an archive: the one record of which checkpoints are whole.
//! In from: the composer, when all stores have committed their parts. Out to: everybody who restores.
//! Invariants: a change is one write of the whole state into the other slot, and one sync; the file with
//! the highest epoch that has a valid state counts; one process writes a catalog file, ever.
//! Format: docs/format/archive.md, section "Catalog".

use super::Identity;
use crate::error::{Error, ErrorKind, Result};
use backstay_format::{CatalogState, CatalogSuperblock, CheckpointId, StoreId};
use std::path::Path;

/// One store's part of a checkpoint that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPart {
    /// The store.
    pub store: StoreId,
    /// Its file in the folder of the catalog.
    pub file: String,
    /// What its commit returned.
    pub sequence: u64,
}

/// A checkpoint that is whole now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCheckpoint {
    /// Which.
    pub checkpoint: CheckpointId,
    /// Ranks of the job.
    pub world_size: u32,
    /// Bytes of all variables of all ranks.
    pub bytes_total: u64,
    /// Bytes that were stored for it.
    pub bytes_written: u64,
    /// All parts.
    pub parts: Vec<NewPart>,
}

/// The catalog, for looking.
#[derive(Debug)]
pub struct CatalogReader {}

impl CatalogReader {
    /// What the file says of itself.
    pub fn superblock(&self) -> &CatalogSuperblock {
        unimplemented!()
    }
    /// The name of the file in its folder.
    pub fn file(&self) -> &str {
        ""
    }
    /// What it said when it was read.
    pub fn state(&self) -> &CatalogState {
        unimplemented!()
    }
}

/// The catalog, for the one process that writes it.
#[derive(Debug)]
pub struct Catalog {}

impl Catalog {
    /// Makes the first catalog of a job in `folder`; `identity.epoch` has no meaning. Another job's
    /// catalog there is [`ErrorKind::StoreBusy`].
    pub fn create(_folder: &Path, _identity: &Identity, _slot_bytes: u32) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// Reads the catalog in `folder`: [`ErrorKind::NoCheckpoint`] if there is none.
    pub fn open_reader(_folder: &Path) -> Result<CatalogReader> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// Opens the newest catalog again, on the host that made it, once its former process is proven dead.
    /// Otherwise [`ErrorKind::StoreBusy`]: [`Catalog::take_over`] is the way then.
    pub fn open_writer(_folder: &Path, _identity: &Identity) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// Makes a catalog of the next epoch with the state of the newest one.
    pub fn take_over(_folder: &Path, _identity: &Identity) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// The first of [`Catalog::open_writer`], [`Catalog::take_over`] and [`Catalog::create`] that fits.
    pub fn open_or_create(_folder: &Path, _identity: &Identity, _slot_bytes: u32) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }

    /// What the file says of itself.
    pub fn superblock(&self) -> &CatalogSuperblock {
        unimplemented!()
    }
    /// The name of the file in its folder.
    pub fn file(&self) -> &str {
        ""
    }
    /// The durable state.
    pub fn state(&self) -> CatalogState {
        CatalogState::default()
    }
    /// Records that a checkpoint is whole. One of a life that was left behind is refused.
    pub fn record(&self, _checkpoint: &NewCheckpoint) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// A life of the job began from `from` (`None`: anew): later checkpoints of earlier lives are
    /// abandoned.
    pub fn begin_life(&self, _incarnation: u64, _from: Option<CheckpointId>) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// Takes checkpoints off the list. When it returned, their segments may be freed.
    pub fn drop_checkpoints(&self, _checkpoints: &[CheckpointId]) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
    /// Keeps the newest checkpoint with this number, or no longer.
    pub fn keep(&self, _number: u64, _kept: bool) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "not there yet"))
    }
}
