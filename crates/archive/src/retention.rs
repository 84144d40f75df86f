// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which checkpoints an archive drops: a plan, to be shown before it is carried out.
//! In from: the state of a catalog. Out to: `prune`, and the end of each drain.
//! Invariants: pure; what is kept, what a program finished with, and the newest that can be restored, is never
//! dropped.

use backstay_format::{CatalogState, CheckpointId};

/// Why a checkpoint goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A later start of the job went on from an older one.
    Abandoned,
    /// As many newer ones are retained as were asked for.
    Superseded,
}

/// A checkpoint that goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// Which.
    pub checkpoint: CheckpointId,
    /// Why.
    pub reason: Reason,
    /// Bytes that were stored for it: what shares them with others stays.
    pub bytes_written: u64,
}

/// What stays and what goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Retention {
    /// What goes, oldest first.
    pub dropped: Vec<Dropped>,
    /// What stays, oldest first.
    pub retained: Vec<CheckpointId>,
}

impl Retention {
    /// Of what goes, only what `may_go`: another condition that a caller has.
    #[must_use]
    pub fn only(self, may_go: impl Fn(CheckpointId) -> bool) -> Self {
        let (dropped, spared): (Vec<_>, Vec<_>) = self
            .dropped
            .into_iter()
            .partition(|entry| may_go(entry.checkpoint));
        let mut retained = self.retained;
        retained.extend(spared.iter().map(|entry| entry.checkpoint));
        retained.sort();
        Self { dropped, retained }
    }

    /// The checkpoints that go.
    pub fn checkpoints(&self) -> Vec<CheckpointId> {
        self.dropped.iter().map(|entry| entry.checkpoint).collect()
    }
}

/// What to do so that the `newest` newest checkpoints that can be restored stay (1 at least), and those
/// that are kept, or that a program finished with, beside them.
pub fn plan(state: &CatalogState, newest: usize) -> Retention {
    let mut plan = Retention::default();
    let mut left = newest.max(1);
    for entry in state.checkpoints.iter().rev() {
        let checkpoint = entry.checkpoint;
        let reason = if state.is_abandoned(checkpoint) {
            Some(Reason::Abandoned)
        } else if left == 0 {
            Some(Reason::Superseded)
        } else {
            left -= 1;
            None
        };
        let is_result = entry.finished && reason != Some(Reason::Abandoned);
        match reason {
            Some(reason) if !entry.kept && !is_result => plan.dropped.push(Dropped {
                checkpoint,
                reason,
                bytes_written: entry.bytes_written,
            }),
            _ => plan.retained.push(checkpoint),
        }
    }
    plan.dropped.reverse();
    plan.retained.reverse();
    plan
}
