// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the nodes of a job, its staging servers and the coordinator of its archive say to each
//! other: what a node has of a checkpoint, which blocks to gather, what to drain, and how far it is.
//! Invariants: a reader allocates nothing that the bytes it has do not pay for; a request to a version
//! that does not know it is refused by its number.
//! Format: docs/format/drain.md.

use crate::agent::Seat;
use crate::bytes::FormatError;
use crate::catalog::RankRange;
use crate::check::{Check, Checked, list, text, within};
use crate::ids::{Address, CheckpointId, StoreId};
use crate::limits::{
    BLOCK_BYTES_MAX, ENDPOINT_BYTES_MAX, LABEL_BYTES_MAX, RANKS_MAX, REPORT_BYTES_MAX,
    REVISIONS_MAX, STRIPES_MAX,
};
use crate::message::message;
use crate::rank_root::RankEntry;
use serde::{Deserialize, Serialize};

/// Magic of a request.
pub const REQUEST_MAGIC: [u8; 8] = *b"BKSTDREQ";
/// Most bytes of a path or of settings in a request.
pub const TEXT_BYTES_MAX: usize = 4096;

/// How the archive's codecs are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ArchiveCodec {
    /// By what is gained: where encoding is faster than the file system takes bytes.
    #[default]
    Auto,
    /// By the ratio alone.
    Ratio,
    /// None: bytes are stored as they are.
    Raw,
}

/// A block that a node shall hand out: where it stands in the node's store, and its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatherPiece {
    /// Where it stands.
    pub address: Address,
    /// Its length, in bytes.
    pub length_bytes: u32,
}

/// What an aggregator shall drain, and from where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainJob {
    /// The folder of the job in the archive.
    pub folder: String,
    /// How to drain, as JSON: the settings of the job.
    pub settings: String,
    /// Name of the job.
    pub job: String,
    /// Which run of the job.
    pub run: u32,
    /// Which aggregator, from 0.
    pub aggregator: u32,
    /// Of how many.
    pub aggregators: u32,
    /// The start that drains.
    pub incarnation: u64,
    /// The epoch of the catalog that records it: of two coordinators of one start the later one counts.
    pub catalog: u32,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// What the aggregator's store shall still hold afterwards, beside the checkpoint.
    pub retain: Vec<CheckpointId>,
    /// The nodes, in the order of their ranks.
    pub sources: Vec<Seat>,
    /// The aggregator's file as the catalog has it; empty for a new one.
    pub file: String,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainRequest {
    /// What has the node of this checkpoint?
    Offer {
        /// Which.
        checkpoint: CheckpointId,
    },
    /// Let me pull these blocks of a checkpoint, one behind the other.
    Gather {
        /// Which checkpoint they are of.
        checkpoint: CheckpointId,
        /// The blocks.
        pieces: Vec<GatherPiece>,
    },
    /// I have pulled them.
    Release {
        /// What was gathered.
        exposure: [u8; 16],
    },
    /// Drain this; goes on where an earlier drain of the same checkpoint stood.
    Begin(DrainJob),
    /// How far is it?
    Progress,
    /// Stop what is under way, unless it is of a later start.
    Cancel {
        /// The start that asks.
        incarnation: u64,
    },
    /// This checkpoint is in the archive as a whole, or `kind` kept it from getting there.
    Archived {
        /// Which.
        checkpoint: CheckpointId,
        /// 0, or the kind of the error.
        kind: u32,
        /// Nodes to tell it to, who are told without any; none where it is for who is asked.
        nodes: Vec<Seat>,
    },
}

/// What a node has of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offered {
    /// The node's store.
    pub store: StoreId,
    /// Bytes of its file.
    pub length_bytes: u64,
    /// The file, for a process of the same host.
    pub path: String,
    /// The host: its name and boot id.
    pub host: String,
    /// Ranks of the job.
    pub world_size: u32,
    /// When the node committed it, nanoseconds since 1970.
    pub committed_unix_ns: u64,
    /// The node's ranks and the roots of their parts.
    pub ranks: Vec<RankEntry>,
}

/// How far an aggregator is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DrainProgress {
    /// 0 idle, 1 at work, 2 done, 3 failed.
    pub state: u8,
    /// Of which checkpoint.
    pub checkpoint: CheckpointId,
    /// The aggregator's store.
    pub store: StoreId,
    /// Its file.
    pub file: String,
    /// The root that holds the checkpoint, once it is done.
    pub sequence: u64,
    /// Ranks of the job that took the checkpoint.
    pub world_size: u32,
    /// Whose parts the store has of it, ascending, once it is done.
    pub ranks: Vec<RankRange>,
    /// Bytes of all variables.
    pub bytes_total: u64,
    /// Bytes of the blocks that have to be drained.
    pub bytes_changed: u64,
    /// Bytes of these that are equal to others: stored once.
    pub bytes_equal: u64,
    /// Bytes of these that an interrupted drain had stored.
    pub bytes_resumed: u64,
    /// Bytes that were read and compared before they were taken for either.
    pub bytes_compared: u64,
    /// Bytes of these that were encoded.
    pub bytes_encoded: u64,
    /// Bytes stored for them.
    pub bytes_stored: u64,
    /// Times that the file had to grow.
    pub growths: u64,
    /// Counts what was done: reads, writes, syncs, blocks gathered. One that stands still does nothing.
    pub steps: u64,
    /// The kind of the error that ended it.
    pub kind: u32,
    /// What it says.
    pub text: String,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainAnswer {
    /// Done, or begun.
    Done,
    /// To `Offer`.
    Offered(Offered),
    /// To `Gather`: what to pull from.
    Gathered {
        /// Its id.
        exposure: [u8; 16],
        /// Bytes of all blocks.
        length_bytes: u64,
    },
    /// To `Progress`.
    Progress(DrainProgress),
}

message!(DrainRequest, "request of a drain", &REQUEST_MAGIC);

impl Check for DrainRequest {
    fn check(&self) -> Checked {
        match self {
            Self::Offer { checkpoint } => checkpoint.check(),
            Self::Archived {
                checkpoint, nodes, ..
            } => {
                checkpoint.check()?;
                list("nodes", nodes, STRIPES_MAX)
            }
            Self::Gather { checkpoint, pieces } => {
                checkpoint.check()?;
                list("pieces", pieces, STRIPES_MAX)
            }
            Self::Begin(job) => job.check(),
            Self::Release { .. } | Self::Progress | Self::Cancel { .. } => Ok(()),
        }
    }
}

impl Check for GatherPiece {
    fn check(&self) -> Checked {
        within("length", self.length_bytes, 1, BLOCK_BYTES_MAX)
    }
}

impl Check for DrainJob {
    fn check(&self) -> Checked {
        text("folder", &self.folder, TEXT_BYTES_MAX)?;
        text("settings", &self.settings, TEXT_BYTES_MAX)?;
        text("job", &self.job, LABEL_BYTES_MAX)?;
        text("file", &self.file, ENDPOINT_BYTES_MAX)?;
        self.checkpoint.check()?;
        list("retained checkpoints", &self.retain, REVISIONS_MAX)?;
        list("sources", &self.sources, STRIPES_MAX)
    }
}

message!(DrainAnswer, "answer of a drain", b"BKSTDANS");

impl Check for DrainAnswer {
    fn check(&self) -> Checked {
        match self {
            Self::Done | Self::Gathered { .. } => Ok(()),
            Self::Offered(offered) => {
                text("path", &offered.path, TEXT_BYTES_MAX)?;
                text("host", &offered.host, ENDPOINT_BYTES_MAX)?;
                within("ranks of the job", offered.world_size, 1, RANKS_MAX)?;
                within("ranks", offered.ranks.len(), 0, STRIPES_MAX)
            }
            Self::Progress(progress) => {
                within("state", progress.state, 0, 3_u8)?;
                progress.checkpoint.check()?;
                text("file", &progress.file, ENDPOINT_BYTES_MAX)?;
                list("ranks", &progress.ranks, STRIPES_MAX)?;
                text("text", &progress.text, REPORT_BYTES_MAX)
            }
        }
    }
}
