// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the header of an archived segment: what it is when decoded, and how it was encoded.
//! Invariants: the payload stands right behind the header; pieces and runs ascend, do not overlap, and
//! lie in the decoded segment; a run's base lies in another segment, which has no runs itself.
//! Format: docs/format/archive.md, section "Segment extent".

use crate::archive::checkpoint;
use crate::bytes::{Decoder, Encoder, FRAME_HEAD_BYTES, FRAME_TAIL_BYTES, FormatError, open};
use crate::element::ElementType;
use crate::hash::Digest;
use crate::ids::{Address, CheckpointId, SegmentId, StoreId};
use crate::limits::{
    NAME_BYTES_MAX, SCHEME_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_PIECES_MAX, STORED_BYTES_MAX,
};
use crate::segment::SegmentClass;
use crate::width::{index, to_u64};

const STRUCTURE: &str = "archived segment";
const MAGIC: [u8; 8] = *b"BKSASEGM";
/// Bytes of a header without scheme, name, pieces and runs.
const FIXED_BYTES: usize = FRAME_HEAD_BYTES + 63 + FRAME_TAIL_BYTES;

/// A block or page of the decoded segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentPiece {
    /// Where it stands in the decoded segment, in bytes; a multiple of [`Address::UNIT_BYTES`].
    pub offset: u32,
    /// Its bytes.
    pub length_bytes: u32,
    /// What they hash to.
    pub digest: Digest,
}

/// Bytes of the decoded segment that were encoded as their delta to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseRun {
    /// Where they stand in the decoded segment, in bytes.
    pub offset: u32,
    /// How many.
    pub length_bytes: u32,
    /// Where those stand that they are the delta to: in a segment without bases.
    pub base: Address,
}

/// What stands before the payload of an archived segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The store it was written for.
    pub store: StoreId,
    /// The segment.
    pub segment: SegmentId,
    /// The checkpoint it was written for.
    pub checkpoint: CheckpointId,
    /// Bytes of the decoded segment.
    pub decoded_bytes: u32,
    /// Bytes behind the header.
    pub payload_bytes: u32,
    /// Its class, as in a node's store.
    pub class: SegmentClass,
    /// How it was merged from the ranks.
    pub merge: u8,
    /// Element type of the variable; `None` where several are mixed.
    pub element: Option<ElementType>,
    /// How the payload was encoded, in the codec's words.
    pub scheme: Vec<u8>,
    /// The variable; empty where several are mixed.
    pub variable: String,
    /// What is in it, in order.
    pub pieces: Vec<SegmentPiece>,
    /// What of it is a delta, in order; none in a base, which can be decoded alone.
    pub bases: Vec<BaseRun>,
}

impl SegmentHeader {
    /// Bytes of an encoded piece.
    pub const PIECE_BYTES: usize = 24;
    /// Bytes of an encoded run.
    pub const RUN_BYTES: usize = 16;

    /// Whether it can be decoded without other segments.
    pub fn is_base(&self) -> bool {
        self.bases.is_empty()
    }

    /// Length of the encoded header of a base with a scheme and a name of so many bytes.
    pub fn base_bytes(scheme: usize, variable: usize, pieces: usize) -> usize {
        FIXED_BYTES + scheme + variable + pieces * Self::PIECE_BYTES
    }

    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(STRUCTURE, MAGIC);
        body.raw(&self.store.0)
            .u64(self.segment.0)
            .u64(self.checkpoint.incarnation)
            .u64(self.checkpoint.number);
        body.u32(self.decoded_bytes)
            .u32(self.payload_bytes)
            .u8(self.class as u8)
            .u8(self.merge)
            .u8(self.element.map_or(0, ElementType::id))
            .u8(0)
            .count(self.pieces.len())
            .count(self.bases.len());
        body.small_count(self.scheme.len())
            .raw(&self.scheme)
            .text(&self.variable);
        for piece in &self.pieces {
            body.u32(piece.offset)
                .u32(piece.length_bytes)
                .raw(&piece.digest.0);
        }
        for run in &self.bases {
            body.u32(run.offset).u32(run.length_bytes).u64(run.base.0);
        }
        body.finish(self, |bytes| {
            Self::decode(bytes, self.store, self.segment).map(|(header, _)| header)
        })
    }

    /// The header at the front of `bytes`, and how many bytes it has; `store` and `segment` are what it
    /// should belong to.
    pub fn decode(
        bytes: &[u8],
        store: StoreId,
        segment: SegmentId,
    ) -> Result<(Self, usize), FormatError> {
        let mut body = open(STRUCTURE, MAGIC, bytes)?;
        let found = StoreId(body.array("store id")?);
        if found != store {
            return Err(body.refuse("store id", 16, store, found));
        }
        let found = body.u64("segment id")?;
        if found != segment.0 {
            return Err(body.refuse("segment id", 8, segment.0, found));
        }
        let checkpoint = checkpoint(&mut body)?;
        let decoded_bytes = body.u32_in("decoded bytes", 1, SEGMENT_BYTES_MAX)?;
        let payload_bytes = body.u32_in("payload bytes", 0, STORED_BYTES_MAX)?;
        let id = body.u8("class")?;
        let class =
            SegmentClass::from_id(id).ok_or_else(|| body.refuse("class", 1, "1 to 4", id))?;
        let merge = body.u8("merge")?;
        let element = decode_element(&mut body)?;
        body.zeros("reserved", 1)?;
        let most = |width| {
            let earned = u32::try_from(bytes.len() / width).unwrap_or(u32::MAX);
            SEGMENT_PIECES_MAX.min(earned)
        };
        let piece_count = body.u32_in("pieces", 0, most(Self::PIECE_BYTES))?;
        let run_count = body.u32_in("runs with a base", 0, most(Self::RUN_BYTES))?;
        let scheme_bytes = usize::from(body.u8("scheme")?);
        if scheme_bytes > SCHEME_BYTES_MAX {
            let expected = format!("at most {SCHEME_BYTES_MAX} bytes");
            return Err(body.refuse("scheme", 1, expected, scheme_bytes));
        }
        let scheme = body.raw("scheme", scheme_bytes)?.to_vec();
        let variable = body.text("variable", NAME_BYTES_MAX)?;
        let pieces = decode_pieces(&mut body, piece_count, decoded_bytes)?;
        let bases = decode_runs(&mut body, run_count, decoded_bytes, segment)?;
        body.end()?;
        let mut length = [0; 4];
        length.copy_from_slice(&bytes[12..16]);
        let header = Self {
            store,
            segment,
            checkpoint,
            decoded_bytes,
            payload_bytes,
            class,
            merge,
            element,
            scheme,
            variable,
            pieces,
            bases,
        };
        Ok((header, index(u32::from_le_bytes(length))))
    }
}

fn decode_element(body: &mut Decoder<'_>) -> Result<Option<ElementType>, FormatError> {
    match body.u8("element type")? {
        0 => Ok(None),
        id => match ElementType::from_id(id) {
            Some(element) => Ok(Some(element)),
            None => Err(body.refuse("element type", 1, "0 to 15", id)),
        },
    }
}

/// The next range of a decoded segment, behind `end`; where it ends.
fn decode_range(
    body: &mut Decoder<'_>,
    end: u32,
    decoded_bytes: u32,
) -> Result<(u32, u32), FormatError> {
    let offset = body.u32("offset")?;
    if offset < end {
        return Err(body.refuse("offset", 4, format!("{end} or more"), offset));
    }
    let most = decoded_bytes.saturating_sub(offset);
    let length = body.u32("length")?;
    if length == 0 || length > most {
        return Err(body.refuse("length", 4, format!("1 to {most}"), length));
    }
    Ok((offset, length))
}

fn decode_pieces(
    body: &mut Decoder<'_>,
    count: u32,
    decoded_bytes: u32,
) -> Result<Vec<SegmentPiece>, FormatError> {
    let mut pieces = Vec::with_capacity(index(count));
    let mut end = 0;
    for _ in 0..count {
        let (offset, length_bytes) = decode_range(body, end, decoded_bytes)?;
        if !offset.is_multiple_of(Address::UNIT_BYTES) {
            return Err(body.refuse("offset", 8, "a multiple of 64", offset));
        }
        end = offset + length_bytes;
        pieces.push(SegmentPiece {
            offset,
            length_bytes,
            digest: Digest(body.array("digest")?),
        });
    }
    Ok(pieces)
}

fn decode_runs(
    body: &mut Decoder<'_>,
    count: u32,
    decoded_bytes: u32,
    segment: SegmentId,
) -> Result<Vec<BaseRun>, FormatError> {
    let mut runs = Vec::with_capacity(index(count));
    let mut end = 0;
    for _ in 0..count {
        let (offset, length_bytes) = decode_range(body, end, decoded_bytes)?;
        end = offset + length_bytes;
        let base = Address(body.u64("base")?);
        if base.segment().0 == 0 || base.segment() == segment {
            return Err(body.refuse("base", 8, "an address in another segment", base));
        }
        let base_end = u64::from(base.offset_bytes()) + u64::from(length_bytes);
        if base_end > u64::from(SEGMENT_BYTES_MAX) {
            return Err(body.refuse("base", 8, "an address within a segment", base));
        }
        runs.push(BaseRun {
            offset,
            length_bytes,
            base,
        });
    }
    Ok(runs)
}

/// Bytes that a header with so many pieces and runs has at most.
pub const fn header_bytes_max(pieces: usize, runs: usize) -> u64 {
    let fixed = 76 + 1 + SCHEME_BYTES_MAX + 2 + NAME_BYTES_MAX + 8;
    to_u64(fixed + pieces * SegmentHeader::PIECE_BYTES + runs * SegmentHeader::RUN_BYTES)
}
