// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the codec of each segment: chosen for its variable, and the way back for readers.
//! In from: `pack`. Out to: `codec`, the archive's decoder.
//! Invariants: what cannot be encoded smaller is stored as it is.

use crate::aggregate::{Content, Piece, Segment};
use crate::archive::{Decode, NewSegment};
use crate::error::Result;
use backstay_format::{CheckpointId, ElementType, Merge, SegmentClass, SegmentId, SegmentPiece};

/// A segment of a plan that got its number.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) id: SegmentId,
    pub(super) variable: String,
    pub(super) element: ElementType,
    pub(super) mixed: bool,
    pub(super) merge: Merge,
    pub(super) lags: Vec<u32>,
    pub(super) length: u32,
    pub(super) pieces: Vec<Piece>,
}

impl Planned {
    pub(super) fn new(id: SegmentId, segment: &Segment<'_>, lags: Vec<u32>) -> Self {
        let (variable, mixed) = match segment.content {
            Content::Kind(kind) => (kind.name.to_owned(), false),
            Content::Mixed(_) => (String::new(), true),
        };
        Self {
            id,
            variable,
            element: segment.content.element(),
            mixed,
            merge: segment.merge,
            lags,
            length: segment.length,
            pieces: segment.pieces.clone(),
        }
    }
}

/// The scheme of bytes that are stored as they are.
pub(super) fn raw_scheme() -> Vec<u8> {
    Vec::new()
}

/// What encodes an aggregator's segments.
#[derive(Debug, Default)]
pub(super) struct Encoders {}

impl Encoders {
    /// Encodes `bytes`, which are the segment.
    pub(super) fn encode(
        &self,
        segment: &Planned,
        checkpoint: CheckpointId,
        pieces: Vec<SegmentPiece>,
        bytes: Vec<u8>,
    ) -> Result<NewSegment> {
        Ok(NewSegment {
            segment: segment.id,
            checkpoint,
            class: SegmentClass::Blocks,
            merge: segment.merge.id(),
            element: (!segment.mixed).then_some(segment.element),
            variable: segment.variable.clone(),
            scheme: raw_scheme(),
            decoded_bytes: segment.length,
            pieces,
            bases: Vec::new(),
            payload: bytes,
        })
    }
}

/// The way back.
#[derive(Debug, Default)]
pub(super) struct Decoders {}

impl Decode for Decoders {
    fn decode(&self, scheme: &[u8], payload: &[u8], base: Option<&[u8]>, out: &mut [u8]) -> Result<()> {
        crate::archive::RawDecode.decode(scheme, payload, base, out)
    }
}
