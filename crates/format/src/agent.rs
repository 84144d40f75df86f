// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what agents say to each other: the requests of a protection round and of a rebuild, and
//! their answers.
//! Invariants: every request names the epoch and round it is of, so that a late one is refused; a
//! reader allocates nothing that the bytes it has do not pay for.
//! Format: docs/format/agent.md.

use crate::bytes::{Decoder, Encoder, FormatError, open};
use crate::hash::Digest;
use crate::ids::{CheckpointId, SegmentId, StoreId};
use crate::limits::{
    CARRIED_BYTES_MAX, COUNTER_MAX, ENDPOINT_BYTES_MAX, GROUP_MEMBERS_MAX, LABEL_BYTES_MAX,
    PARITY_MAX, RECORD_BYTES_MAX, REPORT_BYTES_MAX, SEGMENT_BYTES_MAX, STRIPES_MAX,
};
pub use crate::record_part::RecordPart;
use crate::stripe::{
    Extent, PIECE_BYTES, STRIPE_BYTES_MIN, Stripe, StripeId, StripePiece, check_counts, each_once,
    take_segment,
};
pub use crate::survey::{Survey, SurveyedGroup, SurveyedMember, SurveyedRevision, SurveyedUnread};
use crate::width::index;

const REQUEST: &str = "request to an agent";
const REQUEST_MAGIC: [u8; 8] = *b"BKSTAREQ";
const ANSWER: &str = "answer of an agent";
const ANSWER_MAGIC: [u8; 8] = *b"BKSTAANS";
/// Largest kind of an error: kinds are signed numbers, from 0.
const KIND_MAX: u32 = i32::MAX.unsigned_abs();
/// Least bytes of a planned stripe: its id, two counts, one piece.
const PLAN_BYTES_MIN: usize = 10 + PIECE_BYTES;

/// One member of a group and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripePlan {
    /// The number it will have.
    pub id: StripeId,
    /// What it protects; digests are not known yet.
    pub pieces: Vec<StripePiece>,
    /// The members that take the parity, row by row.
    pub holders: Vec<u8>,
}

/// What a member has for a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    /// Its superblock.
    pub superblock: Vec<u8>,
    /// Its newest root.
    pub root: Vec<u8>,
    /// Sealed and in no stripe; digests are not known yet.
    pub waiting: Vec<Extent>,
    /// Segments in stripes that no revision of the member uses any more.
    pub dead: Vec<SegmentId>,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The round is recorded everywhere; `protected` is the newest checkpoint protected in all groups.
    Settle {
        /// Of the group.
        epoch: u64,
        /// Of the group.
        round: u64,
        /// For the whole job.
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
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl Request {
    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(REQUEST, REQUEST_MAGIC);
        match self {
            Self::Survey => {
                body.u8(1);
            }
            Self::Table { store, epoch, part } => {
                body.u8(2).raw(&store.0).u64(*epoch).u32(*part);
            }
            Self::Join {
                epoch,
                parity,
                pieces_max,
                seats,
            } => {
                body.u8(3).u64(*epoch).u8(*parity).u8(*pieces_max);
                put_seats(&mut body, seats);
            }
            Self::Record(part) => {
                body.u8(8);
                part.put(&mut body);
            }
            Self::Report {
                round,
                checkpoint,
                kind,
                text,
            } => {
                body.u8(10).u64(*round);
                put_checkpoint(&mut body, *checkpoint);
                body.u32(u32::try_from(*kind).unwrap_or(u32::MAX))
                    .text(text);
            }
            Self::Rebuild {
                lost,
                seats,
                authority,
                epoch,
                checkpoint,
                own,
                named,
            } => {
                body.u8(11).raw(&lost.0).raw(&authority.0).u64(*epoch);
                put_checkpoint(&mut body, *checkpoint);
                body.u8(u8::from(*own) | u8::from(*named) << 1);
                put_seats(&mut body, seats);
            }
            Self::Repair { seats } => {
                body.u8(12);
                put_seats(&mut body, seats);
            }
            Self::SetAside { store } => {
                body.u8(13).raw(&store.0);
            }
            Self::Collect { .. }
            | Self::MakeRoom { .. }
            | Self::Encode { .. }
            | Self::Take { .. }
            | Self::Flush { .. }
            | Self::Settle { .. } => self.put_of_round(&mut body),
        }
        body.finish(self, Self::decode)
    }

    /// The requests of a round, each with its epoch and number.
    fn put_of_round(&self, body: &mut Encoder) {
        match self {
            Self::Collect {
                epoch,
                round,
                want,
                known_from,
            } => {
                body.u8(4).u64(*epoch).u64(*round);
                put_checkpoint(body, *want);
                body.u64(*known_from);
            }
            Self::MakeRoom {
                epoch,
                round,
                record_bytes,
                table_bytes,
            } => {
                body.u8(14).u64(*epoch).u64(*round);
                body.u64(*record_bytes).u64(*table_bytes);
            }
            Self::Encode {
                epoch,
                round,
                stripes,
            } => {
                body.u8(5).u64(*epoch).u64(*round);
                body.count(stripes.len());
                for plan in stripes {
                    put_plan(body, plan);
                }
            }
            Self::Take {
                epoch,
                round,
                from,
                exposure,
                length_bytes,
                digest,
            } => {
                body.u8(6).u64(*epoch).u64(*round).u8(*from);
                body.raw(exposure).u32(*length_bytes).raw(&digest.0);
            }
            Self::Flush { epoch, round } => {
                body.u8(7).u64(*epoch).u64(*round);
            }
            Self::Settle {
                epoch,
                round,
                protected,
            } => {
                body.u8(9).u64(*epoch).u64(*round);
                put_checkpoint(body, *protected);
            }
            _ => {}
        }
    }

    /// The request at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(REQUEST, REQUEST_MAGIC, bytes)?;
        let request = match body.u8("kind")? {
            1 => Self::Survey,
            2 => Self::Table {
                store: StoreId(body.array("store id")?),
                epoch: body.u64_max("epoch", COUNTER_MAX)?,
                part: body.u32("part")?,
            },
            3 => Self::Join {
                epoch: body.u64_max("epoch", COUNTER_MAX)?,
                parity: take_small(&mut body, "parity", 1, PARITY_MAX)?,
                pieces_max: take_small(&mut body, "pieces of a stripe", 1, GROUP_MEMBERS_MAX)?,
                seats: take_seats(&mut body)?,
            },
            4 => Self::Collect {
                epoch: body.u64_max("epoch", COUNTER_MAX)?,
                round: body.u64_max("round", COUNTER_MAX)?,
                want: take_checkpoint(&mut body)?,
                known_from: body.u64_max("known from", COUNTER_MAX)?,
            },
            5 => Self::Encode {
                epoch: body.u64_max("epoch", COUNTER_MAX)?,
                round: body.u64_max("round", COUNTER_MAX)?,
                stripes: take_list(&mut body, "stripes", PLAN_BYTES_MIN, take_plan)?,
            },
            6 => Self::Take {
                epoch: body.u64_max("epoch", COUNTER_MAX)?,
                round: body.u64_max("round", COUNTER_MAX)?,
                from: take_small(&mut body, "column", 0, GROUP_MEMBERS_MAX - 1)?,
                exposure: body.array("exposure")?,
                length_bytes: body.u32_in("length", 1, SEGMENT_BYTES_MAX)?,
                digest: Digest(body.array("digest")?),
            },
            7 => Self::Flush {
                epoch: body.u64_max("epoch", COUNTER_MAX)?,
                round: body.u64_max("round", COUNTER_MAX)?,
            },
            8 => Self::Record(RecordPart::decode(&mut body)?),
            9 => Self::Settle {
                epoch: body.u64_max("epoch", COUNTER_MAX)?,
                round: body.u64_max("round", COUNTER_MAX)?,
                protected: take_checkpoint(&mut body)?,
            },
            10 => Self::Report {
                round: body.u64_max("round", COUNTER_MAX)?,
                checkpoint: take_checkpoint(&mut body)?,
                kind: take_kind(&mut body)?,
                text: body.text("text", REPORT_BYTES_MAX)?,
            },
            11 => take_rebuild(&mut body)?,
            12 => Self::Repair {
                seats: take_seats(&mut body)?,
            },
            13 => Self::SetAside {
                store: StoreId(body.array("store id")?),
            },
            14 => Self::MakeRoom {
                epoch: body.u64_max("epoch", COUNTER_MAX)?,
                round: body.u64_max("round", COUNTER_MAX)?,
                record_bytes: body.u64_max("bytes of the record", RECORD_BYTES_MAX)?,
                table_bytes: body.u64_max("bytes of the table", RECORD_BYTES_MAX)?,
            },
            other => return Err(body.refuse("kind", 1, "1 to 14", other)),
        };
        body.end()?;
        Ok(request)
    }
}

impl Answer {
    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(ANSWER, ANSWER_MAGIC);
        match self {
            Self::Done => {
                body.u8(1);
            }
            Self::Surveys(surveys) => {
                body.u8(2);
                body.count(surveys.len());
                for survey in surveys {
                    survey.put(&mut body);
                }
            }
            Self::Table(part) => {
                body.u8(3);
                part.put(&mut body);
            }
            Self::Collected(collected) => {
                body.u8(4);
                put_bytes(&mut body, &collected.superblock);
                put_bytes(&mut body, &collected.root);
                body.count(collected.waiting.len());
                for &extent in &collected.waiting {
                    StripePiece { column: 0, extent }.put(&mut body);
                }
                body.count(collected.dead.len());
                for segment in &collected.dead {
                    body.u64(segment.0);
                }
            }
            Self::Encoded(stripes) => {
                body.u8(5);
                body.count(stripes.len());
                for stripe in stripes {
                    stripe.put(&mut body);
                }
            }
            Self::Taken(extent) => {
                body.u8(6);
                let piece = StripePiece {
                    column: 0,
                    extent: *extent,
                };
                piece.put(&mut body);
            }
            Self::Rebuilt {
                extents,
                bytes,
                lost,
            } => {
                body.u8(7).u64(*extents).u64(*bytes).u64(*lost);
            }
        }
        body.finish(self, Self::decode)
    }

    /// The answer at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(ANSWER, ANSWER_MAGIC, bytes)?;
        let answer = match body.u8("kind")? {
            1 => Self::Done,
            2 => Self::Surveys(take_list(
                &mut body,
                "surveys",
                Survey::BYTES_MIN,
                Survey::decode,
            )?),
            3 => Self::Table(RecordPart::decode(&mut body)?),
            4 => Self::Collected(Collected {
                superblock: take_bytes(&mut body, "superblock")?,
                root: take_bytes(&mut body, "root")?,
                waiting: take_list(&mut body, "waiting extents", PIECE_BYTES, take_extent)?,
                dead: take_list(&mut body, "dead segments", 8, take_segment)?,
            }),
            5 => Self::Encoded(take_list(&mut body, "stripes", STRIPE_BYTES_MIN, |body| {
                Stripe::decode(body, GROUP_MEMBERS_MAX)
            })?),
            6 => Self::Taken(take_extent(&mut body)?),
            7 => Self::Rebuilt {
                extents: body.u64("extents")?,
                bytes: body.u64("bytes")?,
                lost: body.u64("lost")?,
            },
            other => return Err(body.refuse("kind", 1, "1 to 7", other)),
        };
        body.end()?;
        Ok(answer)
    }
}

fn put_bytes(body: &mut Encoder, bytes: &[u8]) {
    body.count(bytes.len());
    body.raw(bytes);
}

pub(crate) fn put_checkpoint(body: &mut Encoder, id: CheckpointId) {
    body.u64(id.incarnation).u64(id.number);
}

pub(crate) fn put_seats(body: &mut Encoder, seats: &[Seat]) {
    body.count(seats.len());
    for seat in seats {
        body.raw(&seat.store.0).text(&seat.node);
        body.text(&seat.domain).text(&seat.address);
    }
}

fn put_plan(body: &mut Encoder, plan: &StripePlan) {
    body.u64(plan.id.0)
        .small_count(plan.pieces.len())
        .small_count(plan.holders.len());
    for piece in &plan.pieces {
        piece.put(body);
    }
    body.raw(&plan.holders);
}

/// A count, and so many things of at least `each_bytes`.
pub(crate) fn take_list<T>(
    body: &mut Decoder<'_>,
    field: &'static str,
    each_bytes: usize,
    take: impl Fn(&mut Decoder<'_>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    let fitting = u32::try_from(body.remaining() / each_bytes.max(1)).unwrap_or(u32::MAX);
    let count = body.u32_in(field, 0, fitting.min(STRIPES_MAX))?;
    (0..count).map(|_| take(body)).collect()
}

fn take_bytes(body: &mut Decoder<'_>, field: &'static str) -> Result<Vec<u8>, FormatError> {
    let length = index(body.u32_in(field, 0, CARRIED_BYTES_MAX)?);
    body.raw(field, length).map(<[u8]>::to_vec)
}

pub(crate) fn take_checkpoint(body: &mut Decoder<'_>) -> Result<CheckpointId, FormatError> {
    Ok(CheckpointId::new(
        body.u64_max("incarnation", COUNTER_MAX)?,
        body.u64_max("number", COUNTER_MAX)?,
    ))
}

fn take_seats(body: &mut Decoder<'_>) -> Result<Vec<Seat>, FormatError> {
    let most = u32::try_from(GROUP_MEMBERS_MAX).unwrap_or(u32::MAX);
    let count = body.u32_in("seats", 0, most)?;
    (0..count).map(|_| take_seat(body)).collect()
}

/// An extent of the member that says so: its column is 0.
fn take_extent(body: &mut Decoder<'_>) -> Result<Extent, FormatError> {
    StripePiece::decode(body, 1).map(|piece| piece.extent)
}

/// The kind of an error.
pub(crate) fn take_kind(body: &mut Decoder<'_>) -> Result<i32, FormatError> {
    let kind = body.u32_in("error kind", 0, KIND_MAX)?;
    Ok(i32::try_from(kind).unwrap_or(i32::MAX))
}

fn take_rebuild(body: &mut Decoder<'_>) -> Result<Request, FormatError> {
    let lost = StoreId(body.array("lost store")?);
    let authority = StoreId(body.array("authority")?);
    let epoch = body.u64_max("epoch", COUNTER_MAX)?;
    let checkpoint = take_checkpoint(body)?;
    let flags = take_small(body, "flags", 0, 3)?;
    Ok(Request::Rebuild {
        lost,
        authority,
        epoch,
        checkpoint,
        own: flags & 1 != 0,
        named: flags & 2 != 0,
        seats: take_seats(body)?,
    })
}

/// A byte that is 0 or 1.
pub(crate) fn take_flag(body: &mut Decoder<'_>, field: &'static str) -> Result<bool, FormatError> {
    take_small(body, field, 0, 1).map(|byte| byte == 1)
}

/// A byte in `low..=high`.
pub(crate) fn take_small(
    body: &mut Decoder<'_>,
    field: &'static str,
    low: u8,
    high: usize,
) -> Result<u8, FormatError> {
    let value = body.u8(field)?;
    if value < low || usize::from(value) > high {
        return Err(body.refuse(field, 1, format!("{low} to {high}"), value));
    }
    Ok(value)
}

fn take_plan(body: &mut Decoder<'_>) -> Result<StripePlan, FormatError> {
    let id = StripeId(body.u64_max("stripe id", COUNTER_MAX)?);
    let pieces = usize::from(body.u8("pieces")?);
    let holders = usize::from(body.u8("holders")?);
    check_counts(body, (pieces, holders), GROUP_MEMBERS_MAX)?;
    let pieces = StripePiece::decode_list(body, pieces, GROUP_MEMBERS_MAX)?;
    let holders = body.raw("holders", holders)?.to_vec();
    if let Some(column) = holders
        .iter()
        .find(|&&column| usize::from(column) >= GROUP_MEMBERS_MAX)
    {
        let expected = format!("below {GROUP_MEMBERS_MAX}");
        return Err(body.refuse("holders", holders.len(), expected, column));
    }
    let columns = pieces.iter().map(|piece| piece.column);
    each_once(body, columns.chain(holders.iter().copied()))?;
    Ok(StripePlan {
        id,
        pieces,
        holders,
    })
}

pub(crate) fn take_seat(body: &mut Decoder<'_>) -> Result<Seat, FormatError> {
    Ok(Seat {
        store: StoreId(body.array("store id")?),
        node: body.text("node", LABEL_BYTES_MAX)?,
        domain: body.text("domain", LABEL_BYTES_MAX)?,
        address: body.text("address", ENDPOINT_BYTES_MAX)?,
    })
}
