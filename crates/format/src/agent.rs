// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what agents say to each other: the requests of a protection round and of a rebuild, and
//! their answers.
//! Invariants: every request names the epoch and round it is of, so that a late one is refused; a
//! reader allocates nothing that the bytes it has do not pay for.
//! Format: docs/format/agent.md.

use crate::bytes::{Decoder, Encoder, FormatError, open, seal};
use crate::hash::Digest;
use crate::ids::{CheckpointId, SegmentId, StoreId};
use crate::limits::{
    CARRIED_BYTES_MAX, COUNTER_MAX, ENDPOINT_BYTES_MAX, GROUP_MEMBERS_MAX, LABEL_BYTES_MAX,
    PARITY_MAX, RANKS_MAX, REPORT_BYTES_MAX, REVISIONS_MAX, SEGMENT_BYTES_MAX, STRIPES_MAX,
};
use crate::stripe::{
    Extent, PIECE_BYTES, Round, STRIPE_BYTES_MIN, Stripe, StripeId, StripePiece, check_counts,
    each_once, record_length, take_segment,
};
use crate::width::index;
use std::sync::Arc;

const REQUEST: &str = "request to an agent";
const REQUEST_MAGIC: [u8; 8] = *b"BKSTAREQ";
const ANSWER: &str = "answer of an agent";
const ANSWER_MAGIC: [u8; 8] = *b"BKSTAANS";
/// Largest kind of an error: kinds are signed numbers, from 0.
const KIND_MAX: u32 = i32::MAX.unsigned_abs();
/// Least bytes of a planned stripe: its id, two counts, one piece.
const PLAN_BYTES_MIN: usize = 10 + PIECE_BYTES;
/// Least bytes of a survey: of an empty store without a group.
const SURVEY_BYTES_MIN: usize = 34;

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

/// What a store has of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedRevision {
    /// Which.
    pub checkpoint: CheckpointId,
    /// Known to be committed by every rank.
    pub complete: bool,
    /// Ranks of the job.
    pub world_size: u32,
    /// The ranks whose parts are here, ascending; shared with the revision before if they are the same.
    pub ranks: Arc<[u32]>,
}

/// What the stripe log of a store says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedGroup {
    /// Composition of the group.
    pub epoch: u64,
    /// Last round.
    pub round: u64,
    /// Losses covered.
    pub parity: u8,
    /// Most pieces of a stripe.
    pub pieces_max: u8,
    /// Newest protected checkpoint.
    pub protected: CheckpointId,
    /// The members by column: store, node, domain, and the checkpoints and ranks they had.
    pub members: Vec<SurveyedMember>,
}

/// What a stripe log knows of a member of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedMember {
    /// Its store.
    pub store: StoreId,
    /// Its node.
    pub node: String,
    /// What fails together with it.
    pub domain: String,
    /// The checkpoints of its root, oldest first.
    pub checkpoints: Vec<CheckpointId>,
}

/// What a node has, as a restart sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The store.
    pub store: StoreId,
    /// Which run of the job it is of.
    pub run: u32,
    /// Bytes of its file.
    pub length_bytes: u64,
    /// Made again from a group's parity, for reading only.
    pub rebuilt: bool,
    /// What it retains, oldest first.
    pub revisions: Vec<SurveyedRevision>,
    /// What protects it.
    pub group: Option<SurveyedGroup>,
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
    /// The whole stripe log of a store, as one record.
    Table {
        /// Which store's.
        store: StoreId,
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
    /// Append this record to the stripe log, durably.
    Record(Round),
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
        /// The checkpoint that must be whole in it.
        checkpoint: CheckpointId,
        /// Whether it becomes this node's own store.
        own: bool,
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
    Table(Round),
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
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Encoder::new();
        match self {
            Self::Survey => {
                body.u8(1);
            }
            Self::Table { store } => {
                body.u8(2).raw(&store.0);
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
            Self::Record(record) => {
                body.u8(8).raw(&record.encode());
            }
            Self::Report { round, kind, text } => {
                body.u8(10).u64(*round);
                body.u32(u32::try_from(*kind).unwrap_or(KIND_MAX))
                    .text(text);
            }
            Self::Rebuild {
                lost,
                seats,
                authority,
                checkpoint,
                own,
            } => {
                body.u8(11).raw(&lost.0).raw(&authority.0);
                put_checkpoint(&mut body, *checkpoint);
                body.u8(u8::from(*own));
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
            | Self::Encode { .. }
            | Self::Take { .. }
            | Self::Flush { .. }
            | Self::Settle { .. } => self.put_of_round(&mut body),
        }
        seal(REQUEST_MAGIC, &body.finish())
    }

    /// The requests of a round, each with its epoch and number.
    fn put_of_round(&self, body: &mut Encoder) {
        match self {
            Self::Collect { epoch, round, want } => {
                body.u8(4).u64(*epoch).u64(*round);
                put_checkpoint(body, *want);
            }
            Self::Encode {
                epoch,
                round,
                stripes,
            } => {
                body.u8(5).u64(*epoch).u64(*round);
                put_count(body, stripes.len());
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
            8 => Self::Record(take_record(&mut body)?),
            9 => Self::Settle {
                epoch: body.u64_max("epoch", COUNTER_MAX)?,
                round: body.u64_max("round", COUNTER_MAX)?,
                protected: take_checkpoint(&mut body)?,
            },
            10 => Self::Report {
                round: body.u64_max("round", COUNTER_MAX)?,
                kind: i32::try_from(body.u32_in("error kind", 0, KIND_MAX)?).unwrap_or(i32::MAX),
                text: body.text("text", REPORT_BYTES_MAX)?,
            },
            11 => Self::Rebuild {
                lost: StoreId(body.array("lost store")?),
                authority: StoreId(body.array("authority")?),
                checkpoint: take_checkpoint(&mut body)?,
                own: take_flag(&mut body, "own")?,
                seats: take_seats(&mut body)?,
            },
            12 => Self::Repair {
                seats: take_seats(&mut body)?,
            },
            13 => Self::SetAside {
                store: StoreId(body.array("store id")?),
            },
            other => return Err(body.refuse("kind", 1, "1 to 13", other)),
        };
        body.end()?;
        Ok(request)
    }
}

impl Answer {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Encoder::new();
        match self {
            Self::Done => {
                body.u8(1);
            }
            Self::Surveys(surveys) => {
                body.u8(2);
                put_count(&mut body, surveys.len());
                for survey in surveys {
                    put_survey(&mut body, survey);
                }
            }
            Self::Table(record) => {
                body.u8(3).raw(&record.encode());
            }
            Self::Collected(collected) => {
                body.u8(4);
                put_bytes(&mut body, &collected.superblock);
                put_bytes(&mut body, &collected.root);
                put_count(&mut body, collected.waiting.len());
                for &extent in &collected.waiting {
                    StripePiece { column: 0, extent }.encode(&mut body);
                }
                put_count(&mut body, collected.dead.len());
                for segment in &collected.dead {
                    body.u64(segment.0);
                }
            }
            Self::Encoded(stripes) => {
                body.u8(5);
                put_count(&mut body, stripes.len());
                for stripe in stripes {
                    stripe.encode(&mut body);
                }
            }
            Self::Taken(extent) => {
                body.u8(6);
                let piece = StripePiece {
                    column: 0,
                    extent: *extent,
                };
                piece.encode(&mut body);
            }
            Self::Rebuilt {
                extents,
                bytes,
                lost,
            } => {
                body.u8(7).u64(*extents).u64(*bytes).u64(*lost);
            }
        }
        seal(ANSWER_MAGIC, &body.finish())
    }

    /// The answer at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(ANSWER, ANSWER_MAGIC, bytes)?;
        let answer = match body.u8("kind")? {
            1 => Self::Done,
            2 => Self::Surveys(take_list(
                &mut body,
                "surveys",
                SURVEY_BYTES_MIN,
                take_survey,
            )?),
            3 => Self::Table(take_record(&mut body)?),
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

pub(crate) fn put_count(body: &mut Encoder, count: usize) {
    body.u32(u32::try_from(count).unwrap_or(u32::MAX));
}

fn put_bytes(body: &mut Encoder, bytes: &[u8]) {
    put_count(body, bytes.len());
    body.raw(bytes);
}

pub(crate) fn put_checkpoint(body: &mut Encoder, id: CheckpointId) {
    body.u64(id.incarnation).u64(id.number);
}

pub(crate) fn put_seats(body: &mut Encoder, seats: &[Seat]) {
    put_count(body, seats.len());
    for seat in seats {
        body.raw(&seat.store.0).text(&seat.node);
        body.text(&seat.domain).text(&seat.address);
    }
}

fn put_plan(body: &mut Encoder, plan: &StripePlan) {
    let small = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
    body.u64(plan.id.0)
        .u8(small(plan.pieces.len()))
        .u8(small(plan.holders.len()));
    for piece in &plan.pieces {
        piece.encode(body);
    }
    body.raw(&plan.holders);
}

fn put_survey(body: &mut Encoder, survey: &Survey) {
    body.raw(&survey.store.0)
        .u32(survey.run)
        .u64(survey.length_bytes)
        .u8(u8::from(survey.rebuilt));
    put_count(body, survey.revisions.len());
    let mut former: Arc<[u32]> = Arc::default();
    for revision in &survey.revisions {
        put_checkpoint(body, revision.checkpoint);
        body.u8(u8::from(revision.complete))
            .u32(revision.world_size);
        // Nearly always the ranks of the revision before.
        let same = revision.ranks == former;
        body.u8(u8::from(same));
        if !same {
            put_count(body, revision.ranks.len());
            for rank in &*revision.ranks {
                body.u32(*rank);
            }
        }
        former = Arc::clone(&revision.ranks);
    }
    body.u8(u8::from(survey.group.is_some()));
    if let Some(group) = &survey.group {
        body.u64(group.epoch)
            .u64(group.round)
            .u8(group.parity)
            .u8(group.pieces_max);
        put_checkpoint(body, group.protected);
        put_count(body, group.members.len());
        for member in &group.members {
            body.raw(&member.store.0)
                .text(&member.node)
                .text(&member.domain);
            put_count(body, member.checkpoints.len());
            for id in &member.checkpoints {
                put_checkpoint(body, *id);
            }
        }
    }
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

/// A stripe log record in its own frame.
fn take_record(body: &mut Decoder<'_>) -> Result<Round, FormatError> {
    let mut ahead = body.clone();
    let rest = ahead.raw("record", ahead.remaining())?;
    let length = record_length(rest).unwrap_or(0);
    Round::decode(body.raw("record", length)?)
}

/// A byte that is 0 or 1.
fn take_flag(body: &mut Decoder<'_>, field: &'static str) -> Result<bool, FormatError> {
    take_small(body, field, 0, 1).map(|byte| byte == 1)
}

/// A byte in `low..=high`.
fn take_small(
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

fn take_survey(body: &mut Decoder<'_>) -> Result<Survey, FormatError> {
    let store = StoreId(body.array("store id")?);
    let run = body.u32("run")?;
    let length_bytes = body.u64("length")?;
    let rebuilt = take_flag(body, "rebuilt")?;
    let most = u32::try_from(REVISIONS_MAX).unwrap_or(u32::MAX);
    let count = body.u32_in("revisions", 0, most)?;
    let mut revisions: Vec<SurveyedRevision> = Vec::new();
    let mut former: Arc<[u32]> = Arc::default();
    for _ in 0..count {
        let checkpoint = take_checkpoint(body)?;
        if revisions.last().is_some_and(|r| r.checkpoint >= checkpoint) {
            return Err(body.refuse("number", 8, "ascending checkpoints", checkpoint));
        }
        let complete = take_flag(body, "complete")?;
        let world_size = body.u32_in("ranks of the job", 1, RANKS_MAX)?;
        let ranks = take_ranks(body, world_size, &former)?;
        former = Arc::clone(&ranks);
        revisions.push(SurveyedRevision {
            checkpoint,
            complete,
            world_size,
            ranks,
        });
    }
    let group = if take_flag(body, "group")? {
        Some(take_group(body)?)
    } else {
        None
    };
    Ok(Survey {
        store,
        run,
        length_bytes,
        rebuilt,
        revisions,
        group,
    })
}

/// The ranks of a revision: those of the one before, or ascending ones that differ from them.
fn take_ranks(
    body: &mut Decoder<'_>,
    world_size: u32,
    former: &Arc<[u32]>,
) -> Result<Arc<[u32]>, FormatError> {
    let ranks = if take_flag(body, "same ranks")? {
        Arc::clone(former)
    } else {
        let ranks = take_list(body, "ranks", 4, |body| body.u32("rank"))?;
        if ranks == **former || ranks.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(body.refuse("ranks", 0, "ascending, and others than before", "these"));
        }
        ranks.into()
    };
    match ranks.last() {
        Some(&last) if last >= world_size => {
            Err(body.refuse("rank", 4, format!("below {world_size}"), last))
        }
        _ => Ok(ranks),
    }
}

fn take_group(body: &mut Decoder<'_>) -> Result<SurveyedGroup, FormatError> {
    let epoch = body.u64_max("epoch", COUNTER_MAX)?;
    let round = body.u64_max("round", COUNTER_MAX)?;
    let parity = take_small(body, "parity", 0, PARITY_MAX)?;
    let pieces_max = take_small(body, "pieces of a stripe", 0, GROUP_MEMBERS_MAX)?;
    let protected = take_checkpoint(body)?;
    let most = u32::try_from(GROUP_MEMBERS_MAX).unwrap_or(u32::MAX);
    let count = body.u32_in("members", 0, most)?;
    let member = |body: &mut Decoder<'_>| {
        let member = SurveyedMember {
            store: StoreId(body.array("store id")?),
            node: body.text("node", LABEL_BYTES_MAX)?,
            domain: body.text("domain", LABEL_BYTES_MAX)?,
            checkpoints: take_list(body, "checkpoints", 16, take_checkpoint)?,
        };
        if member.checkpoints.len() > REVISIONS_MAX {
            let expected = format!("at most {REVISIONS_MAX}");
            return Err(body.refuse("checkpoints", 0, expected, member.checkpoints.len()));
        }
        Ok(member)
    };
    let members = (0..count).map(|_| member(body)).collect::<Result<_, _>>()?;
    Ok(SurveyedGroup {
        epoch,
        round,
        parity,
        pieces_max,
        protected,
        members,
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
