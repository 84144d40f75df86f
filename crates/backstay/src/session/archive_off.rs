// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: level 3 without the feature `archive`: a job that names an archive is refused, one that does
//! not has none.
//! In from: `session`.

use super::Session;
use super::node::Node;
use super::protection::Protection;
use super::share::RankRuns;
use super::vote::vote;
use super::watch::Watched;
use crate::config::Config;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::{CheckpointId, Lineage};
use backstay_store::reader::StoreReader;
use std::path::PathBuf;
use std::sync::Arc;

/// What a session has of level 3: nothing.
#[derive(Debug, Default)]
pub(super) struct Archive;

#[expect(
    clippy::unused_self,
    clippy::unnecessary_wraps,
    reason = "as where there is an archive"
)]
impl Archive {
    pub(super) fn folder(_: &Config, _: &Node) -> Option<PathBuf> {
        None
    }
    /// Refuses a job that names an archive. Collective.
    pub(super) fn look(comm: &Watched, config: &Config, _: &Node) -> Result<Self> {
        let none = || {
            let context = "archive is set, and this library was built without archives: build it with the \
                           feature `archive`, or do not set archive";
            Error::new(ErrorKind::Unsupported, context)
        };
        let mine = config.archive.as_ref().map_or(Ok(()), |_| Err(none()));
        vote(comm, "looking into the archive", 0, mine).map(|()| Self)
    }
    pub(super) fn is_on(&self) -> bool {
        false
    }
    pub(super) fn measured(&self) -> Option<PathBuf> {
        None
    }
    pub(super) fn keep_measured(&self, _: PathBuf) {}
    pub(super) fn incarnation(&self) -> u64 {
        0
    }
    pub(super) fn lineage(&self) -> Lineage {
        Lineage::default()
    }
    pub(super) fn finish(&self, _: Lineage, _: CheckpointId) -> Result<()> {
        Ok(())
    }
    pub(super) fn newest_number(&self) -> u64 {
        0
    }
    pub(super) fn run(&self) -> u32 {
        0
    }
    pub(super) fn checkpoints(&self) -> impl Iterator<Item = CheckpointId> {
        std::iter::empty()
    }
    pub(super) fn nothing_left(&self, last: Error) -> Error {
        last
    }
    pub(super) fn has(&self, _: CheckpointId) -> bool {
        false
    }
    pub(super) fn world_size(&self, _: CheckpointId) -> Option<u32> {
        None
    }
    pub(super) fn prefer(&mut self, _: CheckpointId) -> bool {
        false
    }
    pub(super) fn is_preferred(&self, _: CheckpointId) -> bool {
        false
    }
    pub(super) fn reader_for(&self, id: CheckpointId, _: u32) -> Result<Arc<StoreReader>> {
        let context = format!("checkpoint {id} is in no archive");
        Err(Error::new(ErrorKind::NotRetained, context))
    }
    pub(super) fn share_of(&self, _: CheckpointId, _: (u32, u32)) -> Vec<RankRuns> {
        Vec::new()
    }
    pub(super) fn close_readers(&self) {}
    pub(super) fn give_up_unread(&self) -> bool {
        false
    }
    pub(super) fn give_up_no_more(&mut self) {}
    pub(super) fn abandon_after(&mut self, _: CheckpointId) {}
    pub(super) fn begin(
        &mut self,
        _: Lineage,
        _: Option<CheckpointId>,
        _: &mut Protection,
    ) -> Result<()> {
        Ok(())
    }
}

#[expect(
    clippy::unused_self,
    clippy::unnecessary_wraps,
    reason = "as where there is an archive"
)]
impl Session {
    pub(super) fn prepare_archive(&mut self) -> Result<()> {
        Ok(())
    }
    pub(super) fn begin_archive(&mut self) {}
}
