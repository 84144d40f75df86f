// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what agents say to each other: the requests of a protection round and of a rebuild, and
//! their answers.
//! Invariants: every request names the epoch and round it is of, so that a late one is refused; a
//! reader allocates nothing that the bytes it has do not pay for.
//! Format: docs/format/agent.md.

use crate::bytes::FormatError;
use crate::check::{Check, Checked, counter, list, text, within};
use crate::hash::Digest;
use crate::ids::{CheckpointId, SegmentId, StoreId};
use crate::limits::{
    CARRIED_BYTES_MAX, ENDPOINT_BYTES_MAX, GROUP_MEMBERS_MAX, LABEL_BYTES_MAX, PARITY_MAX,
    RECORD_BYTES_MAX, REPORT_BYTES_MAX, SEGMENT_BYTES_MAX, STRIPES_MAX,
};
use crate::message::{carried, message};
pub use crate::record_part::RecordPart;
use crate::stripe::{Extent, Stripe, StripeId, StripePiece, check_counts, each_once};
pub use crate::survey::{Survey, SurveyedGroup, SurveyedMember, SurveyedRevision, SurveyedUnread};
use serde::{Deserialize, Serialize};

/// One member of a group and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Its store.
    pub store: StoreId,
    /// Its node.
    pub node: String,
    /// What fails together with the node.
    pub domain: String,
    /// The address of its agent.
    pub address: String,
}

/// A stripe before it is encoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StripePlan {
    /// The number it will have.
    pub id: StripeId,
    /// What it protects; digests are not known yet.
    pub pieces: Vec<StripePiece>,
    /// The members that take the parity, row by row.
    #[serde(with = "carried")]
    pub holders: Vec<u8>,
}

/// What a member has for a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Its superblock.
    #[serde(with = "carried")]
    pub superblock: Vec<u8>,
    /// Its newest root.
    #[serde(with = "carried")]
    pub root: Vec<u8>,
    /// Sealed and in no stripe; digests are not known yet.
    pub waiting: Vec<Extent>,
    /// Segments in stripes that no revision of the member uses any more.
    pub dead: Vec<SegmentId>,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// What stores are on the node?
    Survey,
    /// The whole stripe log of a store, as one record, of which this part.
    Table {
        /// Which store's.
        store: StoreId,
        /// Of which composition of the group: the newest, or the former one where that is kept.
        epoch: u64,
        /// Which part, from 0.
        part: u32,
    },
    /// Be a member of this group.
    Join {
        /// Composition of the group.
        epoch: u64,
        /// Losses covered.
        parity: u8,
        /// Most pieces of a stripe.
        pieces_max: u8,
        /// The members by column.
        seats: Vec<Seat>,
    },
    /// Wait until checkpoint `want` is committed, and say what waits for protection.
    Collect {
        /// Of the group.
        epoch: u64,
        /// Of the group.
        round: u64,
        /// The checkpoint to protect.
        want: CheckpointId,
        /// All members were in the rounds from this one on, and all have recorded those of them of which
        /// anybody was sent a record.
        known_from: u64,
    },
    /// Make room in the stripe log for the record that this round will have.
    MakeRoom {
        /// Of the group.
        epoch: u64,
        /// Of the group.
        round: u64,
        /// Bytes of the record.
        record_bytes: u64,
        /// Bytes of the whole table with it.
        table_bytes: u64,
    },
    /// Gather the pieces of these stripes, encode, and send parity to its holders.
    Encode {
        /// Of the group.
        epoch: u64,
        /// Of the group.
        round: u64,
        /// The stripes.
        stripes: Vec<StripePlan>,
    },
    /// Take a parity extent: pull it from the asker.
    Take {
        /// Of the group.
        epoch: u64,
        /// Of the group.
        round: u64,
        /// Column of the asker.
        from: u8,
        /// What to pull.
        exposure: [u8; 16],
        /// Its length, in bytes.
        length_bytes: u32,
        /// Of its bytes; zeros where the asker leaves that to the pull.
        digest: Digest,
    },
    /// Make the parity of this round durable.
    Flush {
        /// Of the group.
        epoch: u64,
        /// Of the group.
        round: u64,
    },
    /// Append this record to the stripe log, durably, when its last part is here.
    Record(RecordPart),
    /// The round is recorded by all members of the group, which protects `protected` now.
    Settle {
        /// Of the group.
        epoch: u64,
        /// Of the group.
        round: u64,
        /// By the group.
        protected: CheckpointId,
    },
    /// The job's protection failed or is less than asked for: tell those who wait.
    Report {
        /// Of the job, counted by the coordinator.
        round: u64,
        /// What was to be protected.
        checkpoint: CheckpointId,
        /// The kind of the error; 0 if all is well.
        kind: i32,
        /// What to tell.
        text: String,
    },
    /// Make the store of a lost member again on this node.
    Rebuild {
        /// The store that is lost.
        lost: StoreId,
        /// Where the surviving members are.
        seats: Vec<Seat>,
        /// The member whose log to follow.
        authority: StoreId,
        /// The composition of the group whose stripes to follow.
        epoch: u64,
        /// The checkpoint that must be whole in it.
        checkpoint: CheckpointId,
        /// Whether it becomes this node's own store.
        own: bool,
        /// Whether somebody named the checkpoint: others may be left out because they could not be read.
        named: bool,
    },
    /// Move a store aside that a later one has replaced.
    SetAside {
        /// Which.
        store: StoreId,
    },
    /// Read every extent of this node's stripes and rebuild the damaged ones in place.
    Repair {
        /// Where the members are.
        seats: Vec<Seat>,
    },
    /// Have the stripe log of this node's store as that of another member is.
    Follow {
        /// Where that is.
        from: Seat,
        /// The composition of the group.
        epoch: u64,
    },
    /// All members of the group were told that it protects `protected`: where it is the only one, the job has it.
    Settled {
        /// Of the group.
        epoch: u64,
        /// Of the group.
        round: u64,
        /// By the group.
        protected: CheckpointId,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Done.
    Done,
    /// To `Survey`: every store on the node, the node's own first.
    Surveys(Vec<Survey>),
    /// To `Table`.
    Table(RecordPart),
    /// To `Collect`.
    Collected(Collected),
    /// To `Encode`: the stripes, whole.
    Encoded(Vec<Stripe>),
    /// To `Take`: where it is.
    Taken(Extent),
    /// To `Rebuild` and `Repair`: extents made again, and their bytes.
    Rebuilt {
        /// Extents made again.
        extents: u64,
        /// Their bytes.
        bytes: u64,
        /// Damaged extents that could not be made again.
        lost: u64,
    },
}

message!(Request, "request to an agent", b"BKSTAREQ");

impl Request {
    /// The composition of the group and the round that it is of, each where it names one.
    fn counters(&self) -> [u64; 2] {
        match *self {
            Self::Table { epoch, .. }
            | Self::Join { epoch, .. }
            | Self::Rebuild { epoch, .. }
            | Self::Follow { epoch, .. } => [epoch, 0],
            Self::Collect { epoch, round, .. }
            | Self::MakeRoom { epoch, round, .. }
            | Self::Encode { epoch, round, .. }
            | Self::Take { epoch, round, .. }
            | Self::Flush { epoch, round }
            | Self::Settle { epoch, round, .. }
            | Self::Settled { epoch, round, .. } => [epoch, round],
            Self::Report { round, .. } => [0, round],
            Self::Survey | Self::Record(_) | Self::SetAside { .. } | Self::Repair { .. } => [0, 0],
        }
    }
}

impl Check for Request {
    fn check(&self) -> Checked {
        let [epoch, round] = self.counters();
        counter("epoch", epoch)?;
        counter("round", round)?;
        match self {
            Self::Join {
                parity,
                pieces_max,
                seats,
                ..
            } => {
                within("parity", *parity, 1, PARITY_MAX)?;
                within("pieces of a stripe", *pieces_max, 1, GROUP_MEMBERS_MAX)?;
                list("seats", seats, GROUP_MEMBERS_MAX)
            }
            Self::Collect {
                want, known_from, ..
            } => {
                counter("known from", *known_from)?;
                want.check()
            }
            Self::MakeRoom {
                record_bytes,
                table_bytes,
                ..
            } => {
                within("bytes of the record", *record_bytes, 0, RECORD_BYTES_MAX)?;
                within("bytes of the table", *table_bytes, 0, RECORD_BYTES_MAX)
            }
            Self::Encode { stripes, .. } => list("stripes", stripes, STRIPES_MAX),
            Self::Take {
                from, length_bytes, ..
            } => {
                within("column", *from, 0, GROUP_MEMBERS_MAX - 1)?;
                within("length", *length_bytes, 1, SEGMENT_BYTES_MAX)
            }
            Self::Settle { protected, .. } | Self::Settled { protected, .. } => protected.check(),
            Self::Report {
                checkpoint,
                kind,
                text: words,
                ..
            } => {
                checkpoint.check()?;
                within("error kind", *kind, 0, i32::MAX)?;
                text("text", words, REPORT_BYTES_MAX)
            }
            Self::Rebuild {
                seats, checkpoint, ..
            } => {
                checkpoint.check()?;
                list("seats", seats, GROUP_MEMBERS_MAX)
            }
            Self::Repair { seats } => list("seats", seats, GROUP_MEMBERS_MAX),
            Self::Follow { from, .. } => from.check(),
            Self::Survey
            | Self::Table { .. }
            | Self::Flush { .. }
            | Self::Record(_)
            | Self::SetAside { .. } => Ok(()),
        }
    }
}

message!(Answer, "answer of an agent", b"BKSTAANS");

impl Check for Answer {
    fn check(&self) -> Checked {
        match self {
            Self::Surveys(surveys) => list("surveys", surveys, STRIPES_MAX),
            Self::Collected(collected) => collected.check(),
            Self::Encoded(stripes) => list("stripes", stripes, STRIPES_MAX),
            Self::Taken(extent) => extent.check(),
            Self::Done | Self::Table(_) | Self::Rebuilt { .. } => Ok(()),
        }
    }
}

impl Check for Collected {
    fn check(&self) -> Checked {
        within("superblock", self.superblock.len(), 0, CARRIED_BYTES_MAX)?;
        within("root", self.root.len(), 0, CARRIED_BYTES_MAX)?;
        list("waiting extents", &self.waiting, STRIPES_MAX)?;
        list("dead segments", &self.dead, STRIPES_MAX)
    }
}

impl Check for StripePlan {
    fn check(&self) -> Checked {
        counter("stripe id", self.id.0)?;
        check_counts(self.pieces.len(), self.holders.len(), GROUP_MEMBERS_MAX)?;
        let mut pieces = self.pieces.iter();
        pieces.try_for_each(|piece| piece.fits(GROUP_MEMBERS_MAX))?;
        for &column in &self.holders {
            within("holders", column, 0, GROUP_MEMBERS_MAX - 1)?;
        }
        let columns = self.pieces.iter().map(|piece| piece.column);
        each_once(columns.chain(self.holders.iter().copied()))
    }
}

impl Check for Seat {
    fn check(&self) -> Checked {
        text("node", &self.node, LABEL_BYTES_MAX)?;
        text("domain", &self.domain, LABEL_BYTES_MAX)?;
        text("address", &self.address, ENDPOINT_BYTES_MAX)
    }
}
