// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the nodes of a job, its staging servers and the coordinator of its archive say to each
//! other: what a node has of a checkpoint, which blocks to gather, what to drain, and how far it is.
//! Invariants: a reader allocates nothing that the bytes it has do not pay for; a request to a version
//! that does not know it is refused by its number.
//! Format: docs/format/drain.md.

use crate::agent::{Seat, put_checkpoint, take_checkpoint, take_list, take_seat};
use crate::bytes::{Decoder, Encoder, FormatError, open};
use crate::ids::{Address, CheckpointId, StoreId};
use crate::limits::{
    BLOCK_BYTES_MAX, ENDPOINT_BYTES_MAX, LABEL_BYTES_MAX, RANKS_MAX, REPORT_BYTES_MAX,
    REVISIONS_MAX,
};
use crate::rank_root::RankEntry;
use crate::{BlockRef, Digest};
use serde::{Deserialize, Serialize};

const REQUEST: &str = "request of a drain";
/// Magic of a request.
pub const REQUEST_MAGIC: [u8; 8] = *b"BKSTDREQ";
const ANSWER: &str = "answer of a drain";
const ANSWER_MAGIC: [u8; 8] = *b"BKSTDANS";
/// Most bytes of a path or of settings in a request.
pub const TEXT_BYTES_MAX: usize = 4096;
/// Least bytes of a seat.
const SEAT_BYTES_MIN: usize = 22;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatherPiece {
    /// Where it stands.
    pub address: Address,
    /// Its length, in bytes.
    pub length_bytes: u32,
}

/// What an aggregator shall drain, and from where.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The life that drains.
    pub incarnation: u64,
    /// The epoch of the catalog that records it: of two coordinators of one life the later one counts.
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Stop what is under way, unless it is of a later life.
    Cancel {
        /// The life that asks.
        incarnation: u64,
    },
    /// This checkpoint is in the archive as a whole, or `kind` kept it from getting there.
    Archived {
        /// Which.
        checkpoint: CheckpointId,
        /// 0, or the kind of the error.
        kind: u32,
    },
}

/// What a node has of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl DrainRequest {
    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(REQUEST, REQUEST_MAGIC);
        match self {
            Self::Offer { checkpoint } => {
                body.u8(1);
                put_checkpoint(&mut body, *checkpoint);
            }
            Self::Gather { checkpoint, pieces } => {
                body.u8(2);
                put_checkpoint(&mut body, *checkpoint);
                body.count(pieces.len());
                for piece in pieces {
                    body.u64(piece.address.0).u32(piece.length_bytes);
                }
            }
            Self::Release { exposure } => {
                body.u8(3).raw(exposure);
            }
            Self::Begin(job) => {
                body.u8(4);
                job.put(&mut body);
            }
            Self::Progress => {
                body.u8(5);
            }
            Self::Cancel { incarnation } => {
                body.u8(6).u64(*incarnation);
            }
            Self::Archived { checkpoint, kind } => {
                body.u8(7);
                put_checkpoint(&mut body, *checkpoint);
                body.u32(*kind);
            }
        }
        body.finish(self, Self::decode)
    }

    /// The request that `bytes` are.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(REQUEST, REQUEST_MAGIC, bytes)?;
        let request = match body.u8("request")? {
            1 => Self::Offer {
                checkpoint: take_checkpoint(&mut body)?,
            },
            2 => Self::Gather {
                checkpoint: take_checkpoint(&mut body)?,
                pieces: take_list(&mut body, "pieces", 12, |body| {
                    Ok(GatherPiece {
                        address: Address(body.u64("address")?),
                        length_bytes: body.u32_in("length", 1, BLOCK_BYTES_MAX)?,
                    })
                })?,
            },
            3 => Self::Release {
                exposure: body.array("exposure")?,
            },
            4 => Self::Begin(DrainJob::take(&mut body)?),
            5 => Self::Progress,
            6 => Self::Cancel {
                incarnation: body.u64("incarnation")?,
            },
            7 => Self::Archived {
                checkpoint: take_checkpoint(&mut body)?,
                kind: body.u32("kind")?,
            },
            other => return Err(body.refuse("request", 1, "1 to 7", other)),
        };
        body.end()?;
        Ok(request)
    }
}

impl DrainJob {
    fn put(&self, body: &mut Encoder) {
        body.text(&self.folder)
            .text(&self.settings)
            .text(&self.job)
            .u32(self.run)
            .u32(self.aggregator)
            .u32(self.aggregators)
            .u64(self.incarnation)
            .u32(self.catalog);
        put_checkpoint(body, self.checkpoint);
        body.count(self.retain.len());
        for &id in &self.retain {
            put_checkpoint(body, id);
        }
        body.count(self.sources.len());
        for seat in &self.sources {
            body.raw(&seat.store.0)
                .text(&seat.node)
                .text(&seat.domain)
                .text(&seat.address);
        }
        body.text(&self.file);
    }

    fn take(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let job = Self {
            folder: body.text("folder", TEXT_BYTES_MAX)?,
            settings: body.text("settings", TEXT_BYTES_MAX)?,
            job: body.text("job", LABEL_BYTES_MAX)?,
            run: body.u32("run")?,
            aggregator: body.u32("aggregator")?,
            aggregators: body.u32("aggregators")?,
            incarnation: body.u64("incarnation")?,
            catalog: body.u32("epoch of the catalog")?,
            checkpoint: take_checkpoint(body)?,
            retain: take_list(body, "retained checkpoints", 16, take_checkpoint)?,
            sources: take_list(body, "sources", SEAT_BYTES_MIN, take_seat)?,
            file: body.text("file", ENDPOINT_BYTES_MAX)?,
        };
        if job.retain.len() > REVISIONS_MAX {
            let found = job.retain.len();
            return Err(body.refuse(
                "retained checkpoints",
                4,
                format!("at most {REVISIONS_MAX}"),
                found,
            ));
        }
        Ok(job)
    }
}

impl DrainAnswer {
    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(ANSWER, ANSWER_MAGIC);
        match self {
            Self::Done => {
                body.u8(1);
            }
            Self::Offered(offered) => {
                body.u8(2)
                    .raw(&offered.store.0)
                    .u64(offered.length_bytes)
                    .text(&offered.path)
                    .text(&offered.host)
                    .u32(offered.world_size)
                    .u64(offered.committed_unix_ns);
                body.count(offered.ranks.len());
                for entry in &offered.ranks {
                    entry.put(&mut body);
                }
            }
            Self::Gathered {
                exposure,
                length_bytes,
            } => {
                body.u8(3).raw(exposure).u64(*length_bytes);
            }
            Self::Progress(progress) => {
                body.u8(4);
                progress.put(&mut body);
            }
        }
        body.finish(self, Self::decode)
    }

    /// The answer that `bytes` are.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(ANSWER, ANSWER_MAGIC, bytes)?;
        let answer = match body.u8("answer")? {
            1 => Self::Done,
            2 => Self::Offered(Offered {
                store: StoreId(body.array("store id")?),
                length_bytes: body.u64("length")?,
                path: body.text("path", TEXT_BYTES_MAX)?,
                host: body.text("host", ENDPOINT_BYTES_MAX)?,
                world_size: body.u32_in("ranks of the job", 1, RANKS_MAX)?,
                committed_unix_ns: body.u64("committed")?,
                ranks: take_list(&mut body, "ranks", RankEntry::BYTES, |body| {
                    let rank = body.u32("rank")?;
                    body.zeros("reserved", 4)?;
                    let address = Address(body.u64("address")?);
                    let digest = Digest(body.array("digest")?);
                    let root = BlockRef { address, digest };
                    Ok(RankEntry { rank, root })
                })?,
            }),
            3 => Self::Gathered {
                exposure: body.array("exposure")?,
                length_bytes: body.u64("length")?,
            },
            4 => Self::Progress(DrainProgress::take(&mut body)?),
            other => return Err(body.refuse("answer", 1, "1 to 4", other)),
        };
        body.end()?;
        Ok(answer)
    }
}

impl DrainProgress {
    fn put(&self, body: &mut Encoder) {
        body.u8(self.state);
        put_checkpoint(body, self.checkpoint);
        body.raw(&self.store.0).text(&self.file);
        for number in [
            self.sequence,
            self.bytes_total,
            self.bytes_changed,
            self.bytes_equal,
            self.bytes_resumed,
            self.bytes_compared,
            self.bytes_encoded,
            self.bytes_stored,
            self.growths,
            self.steps,
        ] {
            body.u64(number);
        }
        body.u32(self.world_size).u32(self.kind).text(&self.text);
    }

    fn take(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let state = body.u8("state")?;
        if state > 3 {
            return Err(body.refuse("state", 1, "0 to 3", state));
        }
        Ok(Self {
            state,
            checkpoint: take_checkpoint(body)?,
            store: StoreId(body.array("store id")?),
            file: body.text("file", ENDPOINT_BYTES_MAX)?,
            sequence: body.u64("sequence")?,
            bytes_total: body.u64("bytes of all variables")?,
            bytes_changed: body.u64("bytes of changed blocks")?,
            bytes_equal: body.u64("bytes of equal blocks")?,
            bytes_resumed: body.u64("bytes of resumed blocks")?,
            bytes_compared: body.u64("bytes compared")?,
            bytes_encoded: body.u64("bytes encoded")?,
            bytes_stored: body.u64("bytes stored")?,
            growths: body.u64("growths")?,
            steps: body.u64("steps")?,
            world_size: body.u32("ranks of the job")?,
            kind: body.u32("kind")?,
            text: body.text("text", REPORT_BYTES_MAX)?,
        })
    }
}
