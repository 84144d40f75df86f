// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a stripe log record as it travels: in parts, because it may be longer than a message.
//! Invariants: the parts of a record are the same wherever it is cut; joined they are that record, and
//! no more than `RECORD_BYTES_MAX`.
//! Format: docs/format/agent.md.

use crate::bytes::FormatError;
use crate::limits::RECORD_BYTES_MAX;
use crate::stripe::{Round, StripeId};
use crate::width::index;
use serde::{Deserialize, Serialize};

const STRUCTURE: &str = "part of a stripe log record";
/// Most stripes that a part removes.
const REMOVED_MAX: usize = 1 << 20;

/// A part of a stripe log record: a record may be longer than a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordPart {
    /// Counts the parts, from 0.
    pub number: u32,
    /// With this one the record is whole.
    pub last: bool,
    /// The record with the stripes of this part only.
    #[serde(with = "framed")]
    pub round: Round,
}

impl RecordPart {
    /// Most stripes that a part adds: so it fits into a message.
    pub const STRIPES_MAX: usize = 1 << 13;

    /// Part `number` of `round`; `None` behind the last.
    pub fn of(round: &Round, number: u32) -> Option<Self> {
        let parts = Self::count(round);
        let at = index(number);
        let slice = |length: usize, each: usize| {
            let start = at.saturating_mul(each).min(length);
            start..(start + each).min(length)
        };
        (at < parts).then(|| Self {
            number,
            last: at + 1 == parts,
            round: Round {
                members: round.members.clone(),
                removed: round.removed[slice(round.removed.len(), REMOVED_MAX)].to_vec(),
                added: round.added[slice(round.added.len(), Self::STRIPES_MAX)].to_vec(),
                ..*round
            },
        })
    }

    /// Parts of `round`.
    fn count(round: &Round) -> usize {
        let added = round.added.len().div_ceil(Self::STRIPES_MAX);
        let removed = round.removed.len().div_ceil(REMOVED_MAX);
        added.max(removed).max(1)
    }

    /// What is wrong with the record of a part that is all of a message after its kind: it names the field.
    pub(crate) fn refused(message: &[u8]) -> Option<FormatError> {
        let (_, _, _, record): (u32, u32, bool, &[u8]) = postcard::from_bytes(message).ok()?;
        let error = Round::decode(record).err();
        error.filter(|error| error.field != "magic")
    }

    /// Puts this part behind `record`, which the parts before it made, and which is a record as it would
    /// have been sent in one.
    pub fn join(self, record: &mut Round) -> Result<(), FormatError> {
        let refuse = |field, expected: &str, found: String| {
            Err(FormatError::new(STRUCTURE, field, 0, expected, found))
        };
        let part = self.round;
        let head = |round: &Round| Round {
            members: round.members.clone(),
            removed: Vec::new(),
            added: Vec::new(),
            ..*round
        };
        if head(record) != head(&part) {
            return refuse(
                "head",
                "that of the parts before",
                format!("part {}", self.number),
            );
        }
        let bytes = record.encoded_bytes() + part.encoded_bytes();
        if bytes > RECORD_BYTES_MAX {
            return refuse("bytes", "at most 1 GiB of one record", bytes.to_string());
        }
        let later =
            |last: Option<StripeId>, first: Option<StripeId>| first.is_none() || last < first;
        let added = (record.added.last(), part.added.first());
        let removed = (record.removed.last(), part.removed.first());
        if !later(added.0.map(|s| s.id), added.1.map(|s| s.id))
            || !later(removed.0.copied(), removed.1.copied())
        {
            return refuse("stripe id", "ascending", format!("part {}", self.number));
        }
        record.removed.extend(part.removed);
        record.added.extend(part.added);
        Ok(())
    }
}

/// The record in its own frame, as a log has it.
mod framed {
    use super::Round;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(round: &Round, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&round.body().close())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Round, D::Error> {
        Round::decode(<&[u8]>::deserialize(from)?).map_err(D::Error::custom)
    }
}
