// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the codec of each segment: chosen for its variable, and the way back for readers.
//! In from: `pack`. Out to: `codec`, the archive's decoder.
//! Invariants: what cannot be encoded smaller is stored as it is.

use crate::aggregate::{Content, Piece, Segment};
use crate::archive::{Decode, NewSegment};
use super::lock;
use crate::codec::{self, Work};
use crate::error::{Error, Result};
use backstay_format::scheme::Scheme;
use backstay_format::{
    CheckpointId, Decoder, ElementType, Encoder, Merge, SegmentClass, SegmentId, SegmentPiece,
};
use std::sync::Mutex;

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
    scheme_bytes(&Scheme::raw(ElementType::Bytes))
}

fn scheme_bytes(scheme: &Scheme) -> Vec<u8> {
    let mut bytes = Encoder::new();
    scheme.encode(&mut bytes);
    bytes.finish()
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

/// The way back: decoders keep their memory for the next segment.
#[derive(Debug, Default)]
pub(super) struct Decoders {
    idle: Mutex<Vec<Work>>,
}

impl Decode for Decoders {
    fn decode(
        &self,
        scheme: &[u8],
        payload: &[u8],
        base: Option<&[u8]>,
        out: &mut [u8],
    ) -> Result<()> {
        let mut body = Decoder::new("scheme", scheme);
        let wrong = |error| Error::corrupt("scheme of a segment".to_owned(), error);
        let scheme = Scheme::decode(&mut body).map_err(wrong)?;
        let mut work = lock(&self.idle).pop().unwrap_or_default();
        let decoded = codec::decode(&scheme, payload, base, &mut work, out);
        lock(&self.idle).push(work);
        decoded
    }
}
