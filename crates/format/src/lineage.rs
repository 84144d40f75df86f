// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: from which start on the starts of a job go on from one another, and whether they are done.
//! In from: `session`, which decides. Out to: the root slots of nodes, the catalog of the archive.
//! Invariants: a job is restored of itself from checkpoints of starts from `began` on, and from none where it is
//! finished; of two accounts the one of the later start counts, of one start the finished one.
//! Format: docs/format/store.md, section "Lineage".

use crate::bytes::{Decoder, Encoder, FormatError};
use crate::ids::CheckpointId;
use crate::limits::COUNTER_MAX;
use serde::{Deserialize, Serialize};

const FLAG_FINISHED: u32 = 1;

/// The starts that go on from one another, since one began anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Lineage {
    /// Incarnation of the start that began anew; 0 where none is known.
    pub began: u64,
    /// Incarnation of the start that wrote this.
    pub start: u64,
    /// The program said that it is done.
    pub finished: bool,
    /// What the start that began it was asked with, so that it is not asked twice; 0 for nothing.
    pub asked: u64,
    /// Fingerprint of the arguments of the program that began it; 0 where it is not known.
    pub arguments: u64,
}

impl Lineage {
    /// Bytes of an encoded lineage.
    pub const BYTES: usize = 40;

    /// Orders accounts of one job: the highest is what counts.
    pub fn order(&self) -> (u64, bool) {
        (self.start, self.finished)
    }

    /// Whether a checkpoint that was not abandoned is of these starts.
    pub fn has(&self, checkpoint: CheckpointId) -> bool {
        checkpoint.incarnation >= self.began
    }

    /// Whether a restore that names none may take a checkpoint.
    pub fn goes_on_from(&self, checkpoint: CheckpointId) -> bool {
        !self.finished && self.has(checkpoint)
    }

    /// Appends its bytes.
    pub fn put(&self, body: &mut Encoder) {
        let flags = if self.finished { FLAG_FINISHED } else { 0 };
        body.u64(self.began)
            .u64(self.start)
            .u32(flags)
            .u32(0)
            .u64(self.asked)
            .u64(self.arguments);
    }

    /// The next lineage.
    pub fn decode(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let began = body.u64_max("began", COUNTER_MAX)?;
        let start = body.u64_max("written by start", COUNTER_MAX)?;
        if start < began {
            return Err(body.refuse("written by start", 8, "a start that is not older", start));
        }
        let finished = body.u32_in("lineage flags", 0, FLAG_FINISHED)? == FLAG_FINISHED;
        body.zeros("reserved", 4)?;
        Ok(Self {
            began,
            start,
            finished,
            asked: body.u64_max("asked", COUNTER_MAX)?,
            arguments: body.u64_max("arguments", COUNTER_MAX)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_or_older_lineage_is_not_gone_on_from() {
        let lineage = Lineage {
            began: 3,
            start: 4,
            ..Lineage::default()
        };
        assert!(lineage.goes_on_from(CheckpointId::new(3, 9)));
        assert!(!lineage.goes_on_from(CheckpointId::new(2, 8)));
        let finished = Lineage {
            finished: true,
            ..lineage
        };
        assert!(!finished.goes_on_from(CheckpointId::new(3, 9)));
        assert!(finished.order() > lineage.order());
        let later = Lineage {
            start: 5,
            ..lineage
        };
        assert!(later.order() > finished.order());
    }
}
