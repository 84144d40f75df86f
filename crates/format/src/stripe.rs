// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the stripe log: which extents of a group's stores protect each other, and what a lost
//! store was.
//! Invariants: a record is appended after everything it names is durable; a reader takes records as
//! long as they are whole and of the log's generation, and ignores the rest; the last one read is the
//! state. A record that is `whole` replaces what came before; others add and remove stripes.
//! Format: docs/format/parity.md.

use crate::bytes::{Decoder, Encoder, FormatError, open, seal};
use crate::hash::Digest;
use crate::ids::{CheckpointId, SegmentId, StoreId};
use crate::limits::{
    COUNTER_MAX, GROUP_MEMBERS_MAX, LABEL_BYTES_MAX, PARITY_MAX, SEGMENT_BYTES_MAX, STRIPES_MAX,
};
use crate::segment::SegmentClass;
use crate::width::{index, to_u64};

const HEAD: &str = "head of a stripe log";
const HEAD_MAGIC: [u8; 8] = *b"BKSTSTRH";
const RECORD: &str = "stripe log record";
const RECORD_MAGIC: [u8; 8] = *b"BKSTSTRR";
/// Bytes of the head's place.
pub const LOG_HEAD_BYTES: usize = 64;
/// Most bytes of a root slot or superblock that a record carries.
const CARRIED_BYTES_MAX: usize = 16 << 10;

/// The front of a log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripeLogHead {
    /// The store beside which it lies.
    pub store: StoreId,
    /// The file with the higher generation is the log.
    pub generation: u64,
}

impl StripeLogHead {
    /// Its bytes: 48, in a place of 64.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Encoder::new();
        body.raw(&self.store.0).u64(self.generation);
        seal(HEAD_MAGIC, &body.finish())
    }

    /// The head at the front of `bytes`; `store` is the store it should belong to.
    pub fn decode(bytes: &[u8], store: StoreId) -> Result<Self, FormatError> {
        let mut body = open(HEAD, HEAD_MAGIC, bytes)?;
        let found = StoreId(body.array("store id")?);
        if found != store {
            return Err(body.refuse("store id", 16, store, found));
        }
        let generation = body.u64_max("generation", COUNTER_MAX)?;
        body.end()?;
        Ok(Self { store, generation })
    }
}

/// Bytes of one segment that will not change while a stripe names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The segment.
    pub segment: SegmentId,
    /// Its class.
    pub class: SegmentClass,
    /// Where it begins in the segment, in bytes.
    pub offset_bytes: u32,
    /// Its length, in bytes, from 1.
    pub length_bytes: u32,
    /// Of its bytes.
    pub digest: Digest,
}

/// An extent and the member that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StripePiece {
    /// Place of the member in the group.
    pub column: u8,
    /// The extent.
    pub extent: Extent,
}

/// Number of a stripe, never used again within an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StripeId(pub u64);

/// Extents of several members and the parity over them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stripe {
    /// Its number.
    pub id: StripeId,
    /// What is protected: at most one extent of a member.
    pub pieces: Vec<StripePiece>,
    /// Row after row of the code; on members that are not among `pieces`.
    pub parity: Vec<StripePiece>,
}

impl Stripe {
    /// Bytes of each parity extent: those of the longest piece.
    pub fn parity_bytes(&self) -> u32 {
        let lengths = self.pieces.iter().map(|piece| piece.extent.length_bytes);
        lengths.max().unwrap_or(0)
    }
    /// What of the stripe is on member `column`.
    pub fn on(&self, column: u8) -> impl Iterator<Item = &Extent> {
        let all = self.pieces.iter().chain(&self.parity);
        all.filter(move |piece| piece.column == column)
            .map(|piece| &piece.extent)
    }
}

/// What has to be known of a member to make its store again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its store.
    pub store: StoreId,
    /// The node that had it.
    pub node: String,
    /// What fails together with that node.
    pub domain: String,
    /// Its superblock, as it stands in the store.
    pub superblock: Vec<u8>,
    /// Its root slot as of the round.
    pub root: Vec<u8>,
}

/// One record of the log: what a round changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// The generation of the log that it was written for.
    pub generation: u64,
    /// Which composition of the group, from 1.
    pub epoch: u64,
    /// Counts the rounds of the group.
    pub round: u64,
    /// Replaces all that came before.
    pub whole: bool,
    /// Parity extents of each stripe; as many losses are covered.
    pub parity: u8,
    /// Losses that were asked to be covered; more than `parity` where the group is too small.
    pub asked: u8,
    /// Most pieces of a stripe.
    pub pieces_max: u8,
    /// The newest checkpoint that is protected by what the log says up to here.
    pub protected: CheckpointId,
    /// The members, by column.
    pub members: Vec<Member>,
    /// Stripes that are no more.
    pub removed: Vec<StripeId>,
    /// New stripes.
    pub added: Vec<Stripe>,
}

impl Round {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Encoder::new();
        body.u64(self.generation).u64(self.epoch).u64(self.round);
        body.u32(u32::from(self.whole))
            .u8(self.parity)
            .u8(self.pieces_max)
            .u8(self.asked)
            .u8(0);
        body.u64(self.protected.incarnation)
            .u64(self.protected.number);
        count(&mut body, self.members.len());
        for member in &self.members {
            body.raw(&member.store.0)
                .text(&member.node)
                .text(&member.domain);
            for carried in [&member.superblock, &member.root] {
                count(&mut body, carried.len());
                body.raw(carried);
            }
        }
        count(&mut body, self.removed.len());
        for id in &self.removed {
            body.u64(id.0);
        }
        count(&mut body, self.added.len());
        for stripe in &self.added {
            stripe.encode(&mut body);
        }
        seal(RECORD_MAGIC, &body.finish())
    }

    /// The record at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(RECORD, RECORD_MAGIC, bytes)?;
        let generation = body.u64_max("generation", COUNTER_MAX)?;
        let epoch = body.u64_max("epoch", COUNTER_MAX)?;
        let round = body.u64_max("round", COUNTER_MAX)?;
        let whole = body.u32_in("whole", 0, 1)? == 1;
        let parity = body.u8("parity")?;
        if index(u32::from(parity)) > PARITY_MAX {
            return Err(body.refuse("parity", 1, format!("0 to {PARITY_MAX}"), parity));
        }
        let pieces_max = body.u8("pieces of a stripe")?;
        let asked = body.u8("parity asked for")?;
        body.zeros("reserved", 1)?;
        let protected = CheckpointId::new(
            body.u64_max("incarnation", COUNTER_MAX)?,
            body.u64_max("number", COUNTER_MAX)?,
        );
        let most = u32::try_from(GROUP_MEMBERS_MAX).unwrap_or(u32::MAX);
        let members = body.u32_in("members", 0, most)?;
        let members: Vec<Member> = (0..members)
            .map(|_| Member::decode(&mut body))
            .collect::<Result<_, _>>()?;
        let removed = counted(&mut body, "removed stripes", 8)?;
        let removed = (0..removed)
            .map(|_| body.u64_max("stripe id", COUNTER_MAX).map(StripeId))
            .collect::<Result<_, _>>()?;
        let added = counted(&mut body, "added stripes", STRIPE_BYTES_MIN)?;
        let columns = members.len();
        let added = (0..added)
            .map(|_| Stripe::decode(&mut body, columns))
            .collect::<Result<_, _>>()?;
        body.end()?;
        Ok(Self {
            generation,
            epoch,
            round,
            whole,
            parity,
            asked,
            pieces_max,
            protected,
            members,
            removed,
            added,
        })
    }
}

/// Least bytes of a stripe: its id and two counts.
const STRIPE_BYTES_MIN: usize = 12;

fn count(body: &mut Encoder, count: usize) {
    body.u32(u32::try_from(count).unwrap_or(u32::MAX));
}

/// A count of things of at least `each_bytes`, which must still be there.
fn counted(
    body: &mut Decoder<'_>,
    field: &'static str,
    each_bytes: usize,
) -> Result<u32, FormatError> {
    let fitting = u32::try_from(body.remaining() / each_bytes.max(1)).unwrap_or(u32::MAX);
    body.u32_in(field, 0, fitting.min(STRIPES_MAX))
}

impl Member {
    fn decode(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let store = StoreId(body.array("store id")?);
        let node = body.text("node", LABEL_BYTES_MAX)?;
        let domain = body.text("domain", LABEL_BYTES_MAX)?;
        let mut carried = |field| {
            let most = u32::try_from(CARRIED_BYTES_MAX).unwrap_or(u32::MAX);
            let length = index(body.u32_in(field, 0, most)?);
            body.raw(field, length).map(<[u8]>::to_vec)
        };
        let superblock = carried("superblock")?;
        let root = carried("root")?;
        Ok(Self {
            store,
            node,
            domain,
            superblock,
            root,
        })
    }
}

impl Stripe {
    /// Appends its bytes.
    pub fn encode(&self, body: &mut Encoder) {
        let small = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
        body.u64(self.id.0)
            .u8(small(self.pieces.len()))
            .u8(small(self.parity.len()))
            .raw(&[0; 2]);
        for piece in self.pieces.iter().chain(&self.parity) {
            piece.encode(body);
        }
    }

    /// The next stripe of `body`, over a group of `columns` members.
    pub fn decode(body: &mut Decoder<'_>, columns: usize) -> Result<Self, FormatError> {
        let id = StripeId(body.u64_max("stripe id", COUNTER_MAX)?);
        let pieces = usize::from(body.u8("pieces")?);
        let parity = usize::from(body.u8("parity")?);
        body.zeros("reserved", 2)?;
        if pieces + parity > columns || parity > PARITY_MAX {
            let expected = format!("at most {columns} in all, one a member");
            return Err(body.refuse("pieces", 4, expected, pieces + parity));
        }
        let mut piece = || StripePiece::decode(body, columns);
        let pieces = (0..pieces)
            .map(|_| piece())
            .collect::<Result<Vec<_>, _>>()?;
        let parity = (0..parity)
            .map(|_| piece())
            .collect::<Result<Vec<_>, _>>()?;
        let mut seen = [false; 256];
        for piece in pieces.iter().chain(&parity) {
            if std::mem::replace(&mut seen[usize::from(piece.column)], true) {
                return Err(body.refuse("column", 1, "each member once", piece.column));
            }
        }
        Ok(Self { id, pieces, parity })
    }
}

impl StripePiece {
    /// Appends its bytes.
    pub fn encode(&self, body: &mut Encoder) {
        let extent = &self.extent;
        body.u64(extent.segment.0)
            .u32(extent.offset_bytes)
            .u32(extent.length_bytes)
            .u8(self.column)
            .u8(extent.class as u8)
            .raw(&[0; 2])
            .raw(&extent.digest.0);
    }

    /// The next piece of `body`, of a group of `columns` members.
    pub fn decode(body: &mut Decoder<'_>, columns: usize) -> Result<Self, FormatError> {
        let segment = body.u64_max("segment id", SegmentId::MAX.0)?;
        let offset_bytes = body.u32_in("offset", 0, SEGMENT_BYTES_MAX - 1)?;
        let length_bytes = body.u32_in("length", 1, SEGMENT_BYTES_MAX - offset_bytes)?;
        let column = body.u8("column")?;
        if usize::from(column) >= columns {
            return Err(body.refuse("column", 1, format!("below {columns}"), column));
        }
        let class = body.u8("class")?;
        let class =
            SegmentClass::from_id(class).ok_or_else(|| body.refuse("class", 1, "1 to 4", class))?;
        body.zeros("reserved", 2)?;
        let digest = Digest(body.array("digest")?);
        Ok(Self {
            column,
            extent: Extent {
                segment: SegmentId(segment),
                class,
                offset_bytes,
                length_bytes,
                digest,
            },
        })
    }
}

/// Bytes that a frame at the front of `bytes` says it has, unchecked; the next record is behind it.
pub fn record_length(bytes: &[u8]) -> Option<u64> {
    let field = bytes.get(12..16)?.first_chunk()?;
    Some(to_u64(index(u32::from_le_bytes(*field))))
}
