// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the stripe log: which extents of a group's stores protect each other, and what a lost
//! store was.
//! Invariants: a record is appended after everything it names is durable; a reader takes records as
//! long as they are whole and of the log's generation, and ignores the rest; the last one read is the
//! state. A record that is `whole` replaces what came before; others add and remove stripes.
//! Format: docs/format/parity.md.

use crate::bytes::{Decoder, Encoder, FormatError, open};
use crate::check::{Check, Checked, counter, refuse, within};
use crate::hash::Digest;
use crate::ids::{CheckpointId, SegmentId, StoreId};
use crate::limits::{
    CARRIED_BYTES_MAX, COUNTER_MAX, GROUP_MEMBERS_MAX, LABEL_BYTES_MAX, PARITY_MAX,
    SEGMENT_BYTES_MAX, STRIPES_MAX,
};
use crate::segment::SegmentClass;
use crate::width::{index, to_u64};
use serde::{Deserialize, Serialize};

const HEAD: &str = "head of a stripe log";
const HEAD_MAGIC: [u8; 8] = *b"BKSTSTRH";
const RECORD: &str = "stripe log record";
const RECORD_MAGIC: [u8; 8] = *b"BKSTSTRR";
/// Bytes of the head's place.
pub const LOG_HEAD_BYTES: usize = 64;

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
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(HEAD, HEAD_MAGIC);
        body.raw(&self.store.0).u64(self.generation);
        body.finish(self, |bytes| Self::decode(bytes, self.store))
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StripePiece {
    /// Place of the member in the group.
    pub column: u8,
    /// The extent.
    pub extent: Extent,
}

/// Number of a stripe: no other one of its table has it. That of a removed stripe may be used again.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct StripeId(pub u64);

/// Extents of several members and the parity over them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Bytes that it has encoded.
    pub fn encoded_bytes(&self) -> u64 {
        let members = self.members.iter().map(|member| {
            let carried = member.superblock.len() + member.root.len();
            MEMBER_BYTES_MIN + member.node.len() + member.domain.len() + carried
        });
        let stripes = self.added.iter().map(Stripe::encoded_bytes);
        let fixed = to_u64(ROUND_BYTES_MIN + 8 * self.removed.len() + members.sum::<usize>());
        fixed + stripes.sum::<u64>()
    }

    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        self.body().finish(self, Self::decode)
    }

    /// Its bytes, not yet read back.
    pub(crate) fn body(&self) -> Encoder {
        let mut body = Encoder::framed(RECORD, RECORD_MAGIC);
        body.u64(self.generation).u64(self.epoch).u64(self.round);
        body.u32(u32::from(self.whole))
            .u8(self.parity)
            .u8(self.pieces_max)
            .u8(self.asked)
            .u8(0);
        body.u64(self.protected.incarnation)
            .u64(self.protected.number);
        body.count(self.members.len());
        for member in &self.members {
            body.raw(&member.store.0)
                .text(&member.node)
                .text(&member.domain);
            for carried in [&member.superblock, &member.root] {
                body.count(carried.len());
                body.raw(carried);
            }
        }
        body.count(self.removed.len());
        for id in &self.removed {
            body.u64(id.0);
        }
        body.count(self.added.len());
        for stripe in &self.added {
            stripe.put(&mut body);
        }
        body
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
        if usize::from(pieces_max) > GROUP_MEMBERS_MAX {
            let expected = format!("0 to {GROUP_MEMBERS_MAX}");
            return Err(body.refuse("pieces of a stripe", 1, expected, pieces_max));
        }
        let asked = body.u8("parity asked for")?;
        body.zeros("reserved", 1)?;
        let protected = CheckpointId::new(
            body.u64_max("incarnation", COUNTER_MAX)?,
            body.u64_max("number", COUNTER_MAX)?,
        );
        let members = Member::decode_list(&mut body)?;
        let removed = decode_removed(&mut body, whole)?;
        let scheme = Scheme {
            columns: members.len(),
            parity,
            pieces_max,
        };
        let added = scheme.decode_added(&mut body)?;
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

/// What the stripes of a record must fit into.
struct Scheme {
    columns: usize,
    parity: u8,
    pieces_max: u8,
}

impl Scheme {
    /// New stripes, ascending by number.
    fn decode_added(&self, body: &mut Decoder<'_>) -> Result<Vec<Stripe>, FormatError> {
        let count = counted(body, "added stripes", STRIPE_BYTES_MIN)?;
        let mut added: Vec<Stripe> = Vec::new();
        for _ in 0..count {
            let stripe = Stripe::decode(body, self.columns)?;
            if added.last().is_some_and(|last| last.id >= stripe.id) {
                return Err(body.refuse("stripe id", 0, "ascending", stripe.id.0));
            }
            if stripe.pieces.len() > usize::from(self.pieces_max) {
                let expected = format!("at most {}", self.pieces_max);
                return Err(body.refuse("pieces", 0, expected, stripe.pieces.len()));
            }
            if stripe.parity.len() != usize::from(self.parity) {
                return Err(body.refuse("parity", 0, self.parity, stripe.parity.len()));
            }
            added.push(stripe);
        }
        Ok(added)
    }
}

/// Stripes that are no more, ascending; none where the record replaces all.
fn decode_removed(body: &mut Decoder<'_>, whole: bool) -> Result<Vec<StripeId>, FormatError> {
    let count = counted(body, "removed stripes", 8)?;
    if whole && count > 0 {
        return Err(body.refuse("removed stripes", 4, "0 in a whole record", count));
    }
    let mut removed: Vec<StripeId> = Vec::new();
    for _ in 0..count {
        let id = StripeId(body.u64_max("stripe id", COUNTER_MAX)?);
        if removed.last().is_some_and(|last| *last >= id) {
            return Err(body.refuse("stripe id", 8, "ascending", id.0));
        }
        removed.push(id);
    }
    Ok(removed)
}

/// Least bytes of a record, and of a member in it.
const ROUND_BYTES_MIN: usize = 84;
const MEMBER_BYTES_MIN: usize = 28;
/// Bytes of a piece.
const PIECE_BYTES: usize = 36;
/// Least bytes of a stripe: its id, two counts, one piece.
const STRIPE_BYTES_MIN: usize = 12 + PIECE_BYTES;

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
    fn decode_list(body: &mut Decoder<'_>) -> Result<Vec<Self>, FormatError> {
        let most = u32::try_from(GROUP_MEMBERS_MAX).unwrap_or(u32::MAX);
        let count = body.u32_in("members", 0, most)?;
        let mut members: Vec<Self> = Vec::new();
        for _ in 0..count {
            let member = Self::decode(body)?;
            if members.iter().any(|other| other.store == member.store) {
                return Err(body.refuse("store id", 0, "each member once", member.store));
            }
            members.push(member);
        }
        Ok(members)
    }

    fn decode(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let store = StoreId(body.array("store id")?);
        let node = body.text("node", LABEL_BYTES_MAX)?;
        let domain = body.text("domain", LABEL_BYTES_MAX)?;
        let mut carried = |field| {
            let length = index(body.u32_in(field, 0, CARRIED_BYTES_MAX)?);
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
    /// Bytes of a stripe of so many pieces and parities.
    pub fn bytes_of(pieces: usize, parity: usize) -> u64 {
        to_u64(STRIPE_BYTES_MIN + PIECE_BYTES * (pieces + parity).saturating_sub(1))
    }

    /// Bytes that it has encoded.
    pub fn encoded_bytes(&self) -> u64 {
        Self::bytes_of(self.pieces.len(), self.parity.len())
    }

    /// Appends its bytes.
    fn put(&self, body: &mut Encoder) {
        body.u64(self.id.0)
            .small_count(self.pieces.len())
            .small_count(self.parity.len())
            .raw(&[0; 2]);
        for piece in self.pieces.iter().chain(&self.parity) {
            piece.put(body);
        }
    }

    /// The next stripe of `body`, over a group of `columns` members.
    fn decode(body: &mut Decoder<'_>, columns: usize) -> Result<Self, FormatError> {
        let start = body.position();
        let id = StripeId(body.u64("stripe id")?);
        let pieces = body.u8("pieces")?;
        let parity = body.u8("parity")?;
        body.zeros("reserved", 2)?;
        let mut take = |count| -> Result<Vec<StripePiece>, FormatError> {
            (0..count).map(|_| StripePiece::decode(body)).collect()
        };
        let (pieces, parity) = (take(pieces)?, take(parity)?);
        let stripe = Self { id, pieces, parity };
        body.at(start, stripe.fits(columns))?;
        Ok(stripe)
    }

    /// Refuses one that a group of `columns` members cannot have.
    pub(crate) fn fits(&self, columns: usize) -> Checked {
        counter("stripe id", self.id.0)?;
        check_counts(self.pieces.len(), self.parity.len(), columns)?;
        let all = || self.pieces.iter().chain(&self.parity);
        all().try_for_each(|piece| piece.fits(columns))?;
        each_once(all().map(|piece| piece.column))?;
        let longest = self.parity_bytes();
        let mut lengths = self.parity.iter().map(|piece| piece.extent.length_bytes);
        match lengths.find(|&length| length != longest) {
            Some(other) => refuse("length of parity", longest, other),
            None => Ok(()),
        }
    }
}

/// A stripe's counts: at least one piece, and in all no more than the group has members.
pub(crate) fn check_counts(pieces: usize, parity: usize, columns: usize) -> Checked {
    if pieces > 0 && pieces + parity <= columns && parity <= PARITY_MAX {
        return Ok(());
    }
    let expected = format!("1 or more, with parity at most {columns}");
    refuse("pieces", expected, format!("{pieces} and {parity}"))
}

/// A member has at most one part in a stripe.
pub(crate) fn each_once(columns: impl Iterator<Item = u8>) -> Checked {
    let mut seen = [false; 256];
    for column in columns {
        if std::mem::replace(&mut seen[usize::from(column)], true) {
            return refuse("column", "each member once", column);
        }
    }
    Ok(())
}

impl StripePiece {
    /// Appends its bytes.
    fn put(&self, body: &mut Encoder) {
        let extent = &self.extent;
        body.u64(extent.segment.0)
            .u32(extent.offset_bytes)
            .u32(extent.length_bytes)
            .u8(self.column)
            .u8(extent.class as u8)
            .raw(&[0; 2])
            .raw(&extent.digest.0);
    }

    /// The next piece of `body`, not yet checked.
    fn decode(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let segment = SegmentId(body.u64("segment id")?);
        let (offset_bytes, length_bytes) = (body.u32("offset")?, body.u32("length")?);
        let (column, class) = (body.u8("column")?, body.u8("class")?);
        let class =
            SegmentClass::from_id(class).ok_or_else(|| body.refuse("class", 1, "1 to 4", class))?;
        body.zeros("reserved", 2)?;
        let digest = Digest(body.array("digest")?);
        let extent = Extent {
            segment,
            class,
            offset_bytes,
            length_bytes,
            digest,
        };
        Ok(Self { column, extent })
    }

    /// Refuses one that a group of `columns` members cannot have.
    pub(crate) fn fits(&self, columns: usize) -> Checked {
        if usize::from(self.column) >= columns {
            return refuse("column", format!("below {columns}"), self.column);
        }
        self.extent.check()
    }
}

impl Check for Stripe {
    fn check(&self) -> Checked {
        self.fits(GROUP_MEMBERS_MAX)
    }
}

impl Check for Extent {
    fn check(&self) -> Checked {
        self.segment.check()?;
        within("offset", self.offset_bytes, 0, SEGMENT_BYTES_MAX - 1)?;
        let room = SEGMENT_BYTES_MAX - self.offset_bytes;
        within("length", self.length_bytes, 1, room)?;
        let granule = self.class.granule_bytes();
        if self.offset_bytes.is_multiple_of(granule) {
            return Ok(());
        }
        refuse(
            "offset",
            format!("a multiple of {granule}"),
            self.offset_bytes,
        )
    }
}

/// Bytes that a frame at the front of `bytes` says it has, unchecked.
pub(crate) fn record_length(bytes: &[u8]) -> Option<usize> {
    let field = bytes.get(12..16)?.first_chunk()?;
    Some(index(u32::from_le_bytes(*field)))
}

/// The records of a log file with a head of this generation, each with the offset behind it: as long
/// as they are whole and of the generation. None if the first does not replace all.
pub fn records(file: &[u8], generation: u64) -> impl Iterator<Item = (Round, usize)> + '_ {
    let mut at = LOG_HEAD_BYTES;
    std::iter::from_fn(move || {
        let rest = file.get(at..)?;
        let round = Round::decode(rest).ok()?;
        if round.generation != generation || (at == LOG_HEAD_BYTES && !round.whole) {
            return None;
        }
        at += record_length(rest)?;
        Some((round, at))
    })
}
