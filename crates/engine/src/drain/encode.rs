// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the codec of each segment: chosen for its variable, and the way back for readers.
//! In from: `pack`. Out to: `codec`, the archive's decoder.
//! Invariants: what cannot be encoded smaller is stored as it is.

use super::lock;
use crate::aggregate::{Content, Piece, Segment};
use crate::archive::{Decode, NewSegment, Payload};
use crate::clock::Stopwatch;
use crate::codec::{self, Work};
use crate::codec::{Chooser, Goal, Policy, Subject};
use crate::config::ArchiveCodec;
use crate::error::{Error, Result};
use backstay_format::scheme::Scheme;
use backstay_format::{
    CheckpointId, Decoder, ElementType, Encoder, Merge, SegmentClass, SegmentHeader, SegmentId,
    SegmentPiece,
};
use std::collections::BTreeMap;
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

/// Length of the header of `segment` where it is stored as it is.
pub(super) fn raw_header_bytes(segment: &Planned) -> usize {
    let (scheme, pieces) = (raw_scheme().len(), segment.pieces.len());
    SegmentHeader::key_bytes(scheme, segment.variable.len(), pieces)
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

/// What encodes an aggregator's segments: remembers what was best for each variable.
#[derive(Debug, Default)]
pub(super) struct Encoders {
    choosers: Mutex<BTreeMap<(String, u8), Chooser>>,
    idle: Mutex<Vec<Work>>,
}

/// How a drain's codecs are chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Means {
    pub(super) codec: ArchiveCodec,
    pub(super) second_pass: bool,
    /// Threads that encode.
    pub(super) threads: u32,
    /// What the file system takes.
    pub(super) write_bytes_per_second: f64,
}

impl Means {
    fn policy(&self, correction: f64) -> Option<Policy> {
        let goal = match self.codec {
            ArchiveCodec::Raw => return None,
            ArchiveCodec::Ratio => Goal::Ratio,
            ArchiveCodec::Auto => Goal::Pipeline {
                write_bytes_per_second: self.write_bytes_per_second,
                cores: f64::from(self.threads.max(1)) * correction.clamp(0.1, 2.0),
            },
        };
        Some(Policy {
            goal,
            second_pass: self.second_pass,
            ..Policy::default()
        })
    }
}

impl Encoders {
    /// Encodes `bytes`, which are the segment.
    pub(super) fn encode(
        &self,
        segment: &Planned,
        means: &Means,
        checkpoint: CheckpointId,
        pieces: Vec<SegmentPiece>,
        bytes: Payload,
    ) -> Result<NewSegment> {
        let mut work = lock(&self.idle).pop().unwrap_or_default();
        let encoded = self.shorten(segment, means, &bytes, &mut work);
        lock(&self.idle).push(work);
        let (scheme, payload) = match encoded? {
            Some((scheme, payload)) => (scheme, payload.into()),
            None => (raw_scheme(), bytes),
        };
        Ok(NewSegment {
            segment: segment.id,
            checkpoint,
            class: SegmentClass::Blocks,
            merge: segment.merge.id(),
            element: (!segment.mixed).then_some(segment.element),
            variable: segment.variable.clone(),
            scheme,
            decoded_bytes: segment.length,
            pieces,
            bases: Vec::new(),
            payload,
        })
    }

    /// The scheme and the encoded bytes; `None` where the bytes are best as they are.
    fn shorten(
        &self,
        segment: &Planned,
        means: &Means,
        bytes: &[u8],
        work: &mut Work,
    ) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let key = (segment.variable.clone(), segment.element.id());
        // Taken out meanwhile: another thread that comes to the same variable chooses for itself.
        let mut chooser = lock(&self.choosers).remove(&key).unwrap_or_default();
        let Some(policy) = means.policy(chooser.correction()) else {
            return Ok(None);
        };
        let subject = Subject {
            element: segment.element,
            lags: &segment.lags,
            base: None,
        };
        let choice = chooser.next(&subject, bytes, &policy, work)?;
        work.set_effort(choice.effort);
        let watch = Stopwatch::start();
        let mut payload = Vec::new();
        let scheme = codec::encode(&choice.scheme, bytes, None, work, &mut payload)?;
        chooser.note(bytes.len(), payload.len(), Some(watch.seconds()));
        lock(&self.choosers).insert(key, chooser);
        let shorter = payload.len() < bytes.len();
        Ok(shorter.then(|| (scheme_bytes(&scheme), payload)))
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
