// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how far the archive is, as the words say that a node's ranks share.
//! In from: `session`. Out to: the program.

use super::Session;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::CheckpointId;
use backstay_store::control::wait_until;
use std::time::Duration;

impl Session {
    /// Waits until checkpoint `id`, which is committed, or a newer one, is in the archive. Local.
    pub(super) fn wait_archived(&self, id: CheckpointId) -> Result<()> {
        if !self.archive.is_on() {
            let context = "checkpoints of this job stay on its nodes: set archive";
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let control = &self.node.control;
        // One that is not due drains because somebody waits for it.
        if control.archive_wanted() < id {
            control.set_archive_wanted(id);
        }
        let limit = Duration::from_millis(self.config.timeout_ms);
        let over = || control.archived() >= id || self.archive_failed(id);
        wait_until("the checkpoint to be archived", limit, over)?;
        if control.archived() >= id {
            return Ok(());
        }
        let kind = i32::try_from(control.archive_outcome()).ok();
        let kind = kind
            .and_then(ErrorKind::from_code)
            .unwrap_or(ErrorKind::StoreIo);
        let context = format!("checkpoint {id} is not in the archive; rank 0's log says why");
        Err(Error::new(kind, context).second_hand())
    }

    fn archive_failed(&self, id: CheckpointId) -> bool {
        let control = &self.node.control;
        // One that was overtaken by a newer one is not a failure: the newer one counts.
        let overtaken = u64::try_from(ErrorKind::NotRetained.code()).unwrap_or(u64::MAX);
        // In this order: who begins a drain clears the outcome of the one before first.
        if control.archiving() < id {
            return false;
        }
        let outcome = control.archive_outcome();
        outcome != 0 && outcome != overtaken
    }

    /// Whether nothing more comes of draining `id`.
    pub(super) fn archiving_is_over(&self, id: CheckpointId) -> bool {
        let control = &self.node.control;
        !self.archive.is_on() || control.archived() >= id || self.archive_failed(id)
    }

    /// The newest checkpoint in the archive, as far as this node knows.
    pub fn archived_checkpoint(&self) -> Option<CheckpointId> {
        let id = self.node.control.archived();
        let newest = self.archive.checkpoints().next();
        newest
            .max((id.number > 0).then_some(id))
            .filter(|_| self.archive.is_on())
    }
}
