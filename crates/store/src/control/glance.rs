// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how far a node is, as its shared words say at one moment.
//! In from: the control file, or the words themselves. Out to: tools that look at a running job, and its session.
//! Invariants: reads only; a file of another version says nothing.

use super::{
    Control, HEAD_WORDS, VERSION, WORD_ARCHIVE_OUTCOME, WORD_ARCHIVE_PLANNED, WORD_ARCHIVE_WANTED,
    WORD_ARCHIVED, WORD_ARCHIVING, WORD_COMMITTED, WORD_ENCODING, WORD_PROTECTED,
    WORD_PROTECTED_IN_GROUP, WORD_ROUND, WORD_VERSION,
};
use backstay_format::CheckpointId;
use std::io::Read;
use std::path::Path;

/// What the words of a running job said at one moment, read from outside of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlGlance {
    /// How the last round of protection ended: 0, or the kind of an error.
    outcome: u64,
    /// The newest checkpoint that this node has committed.
    pub committed: CheckpointId,
    /// The newest that is protected on all nodes, as of the last vote.
    pub protected: CheckpointId,
    /// The newest that this node's group protects.
    pub protected_in_group: CheckpointId,
    /// The one that is being encoded, or was last.
    pub encoding: CheckpointId,
    /// The newest that is in the archive as a whole.
    pub archived: CheckpointId,
    /// The one that is being drained, or was last.
    pub archiving: CheckpointId,
    /// How the last drain ended: 0, or the kind of an error.
    pub archive_outcome: u64,
    /// The newest that somebody, or the planner, wants in the archive.
    pub archive_wanted: CheckpointId,
    /// Whether only such are due there.
    pub archive_planned: bool,
}

impl ControlGlance {
    /// Reads the control file; `None` if it is not of this version.
    pub fn at(path: &Path) -> Option<Self> {
        let mut bytes = vec![0; HEAD_WORDS * size_of::<u64>()];
        std::fs::File::open(path)
            .and_then(|mut file| file.read_exact(&mut bytes))
            .ok()?;
        let words: Vec<u64> = bytes
            .chunks_exact(size_of::<u64>())
            .map(|word| word.try_into().map_or(0, u64::from_ne_bytes))
            .collect();
        let id = |at: usize| CheckpointId::new(words[at + 1], words[at]);
        (words[WORD_VERSION] == VERSION).then(|| Self {
            outcome: words[WORD_ROUND] & 0xff,
            committed: id(WORD_COMMITTED),
            protected: id(WORD_PROTECTED),
            protected_in_group: id(WORD_PROTECTED_IN_GROUP),
            encoding: id(WORD_ENCODING),
            archived: id(WORD_ARCHIVED),
            archiving: id(WORD_ARCHIVING),
            archive_outcome: words[WORD_ARCHIVE_OUTCOME],
            archive_wanted: id(WORD_ARCHIVE_WANTED),
            archive_planned: words[WORD_ARCHIVE_PLANNED] != 0,
        })
    }

    /// The kind of error with which the last round of the node's group ended, if `id` waits for its protection and
    /// nobody is trying again just now.
    pub fn failed(&self, id: CheckpointId) -> Option<u64> {
        let idle = self.encoding <= self.protected_in_group;
        let waits = !id.is_covered_by(self.protected_in_group);
        (self.outcome != 0 && idle && waits).then_some(self.outcome)
    }
}

impl Control {
    /// How protection stands just now.
    pub fn glance(&self) -> ControlGlance {
        ControlGlance {
            outcome: self.round().1,
            committed: self.committed(),
            protected: self.protected(),
            protected_in_group: self.protected_in_group(),
            encoding: self.encoding(),
            archived: self.archived(),
            archiving: self.archiving(),
            archive_outcome: self.archive_outcome(),
            archive_wanted: self.archive_wanted(),
            archive_planned: self.archive_planned(),
        }
    }
}
