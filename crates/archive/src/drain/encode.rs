// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the codec of each segment: chosen for its variable, and the way back for readers.
//! In from: `pack`. Out to: `codec`, the archive's decoder.
//! Invariants: what cannot be encoded smaller is stored as it is; what is chosen for segments with a base is
//! never used for those without one.

use super::history::Base;
use super::lock;
use crate::aggregate::{Content, Piece, Segment};
use crate::{Decode, NewSegment, Payload};
use backstay_base::clock::Stopwatch;
use backstay_base::error::{Error, Result};
use backstay_codec::{Choice, Chooser, Goal, Policy, Subject, Work};
use backstay_format::drain::ArchiveCodec;
use backstay_format::scheme::{SCHEME_BYTES, Scheme};
use backstay_format::{
    CheckpointId, Decoder, ElementType, Merge, SegmentClass, SegmentHeader, SegmentId, SegmentPiece,
};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

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
    let pieces = segment.pieces.len();
    SegmentHeader::base_bytes(SCHEME_BYTES, segment.variable.len(), pieces)
}

/// The scheme of bytes that are stored as they are.
pub(super) fn raw_scheme() -> Result<Vec<u8>> {
    scheme_bytes(&Scheme::raw(ElementType::Bytes))
}

fn scheme_bytes(scheme: &Scheme) -> Result<Vec<u8>> {
    let bytes = scheme.encode();
    bytes.map_err(|error| Error::unwritable("the scheme of an archived segment", error))
}

/// What encodes an aggregator's segments: remembers what was best for each variable.
#[derive(Debug, Default)]
pub(super) struct Encoders {
    choosers: Mutex<BTreeMap<Subjects, Chooser>>,
    idle: Mutex<Vec<Work>>,
    /// Drains so far.
    drains: AtomicU32,
    /// Bytes of bases that came, and seconds that they took: what counts, the last ones.
    bases: Mutex<(f64, f64)>,
}

/// What one scheme is chosen for: a variable, its element type, whether there is a base.
type Subjects = (String, u8, bool);

/// Bytes a second at which bases are taken to come before any came.
const BASE_BYTES_PER_SECOND: f64 = 0.5e9;
/// A delta that is not shorter than this part of a base is not worth that base's keep.
const HISTORY_PART_MAX: f64 = 0.8;
/// Bytes of bases after which former ones count half.
const BASES_BYTES: f64 = 256e6;

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
    fn policy(&self, correction: f64, base_bytes_per_second: f64) -> Policy {
        let goal = match self.codec {
            ArchiveCodec::Ratio => Goal::Ratio,
            ArchiveCodec::Raw | ArchiveCodec::Auto => Goal::Pipeline {
                write_bytes_per_second: self.write_bytes_per_second,
                cores: f64::from(self.threads.max(1)) * correction.clamp(0.1, 2.0),
            },
        };
        Policy {
            goal,
            second_pass: self.second_pass,
            history_part_max: HISTORY_PART_MAX,
            base_bytes_per_second,
            ..Policy::default()
        }
    }
}

impl Encoders {
    /// What deltas are worth is asked anew in each `period` of drains.
    pub(super) fn begin_drain(&self, period: u32) {
        if (self.drains.fetch_add(1, Ordering::Relaxed)).is_multiple_of(period.max(1)) {
            lock(&self.choosers).retain(|(_, _, based), _| !*based);
        }
    }

    /// Whether a base is of use for a segment that has one.
    pub(super) fn wants_base(&self, segment: &Planned) -> bool {
        let choosers = lock(&self.choosers);
        let chooser = choosers.get(&subjects(segment, true));
        chooser.is_none_or(Chooser::wants_base)
    }

    /// Bytes a second at which bases come.
    fn base_rate(&self) -> f64 {
        let (bytes, seconds) = *lock(&self.bases);
        if seconds > 0.0 {
            bytes / seconds
        } else {
            BASE_BYTES_PER_SECOND
        }
    }

    fn note_base(&self, base: Option<&Base>) {
        let Some(base) = base else { return };
        let length = base.bytes.as_ref().map_or(0, Vec::len);
        let Ok(length) = u32::try_from(length) else {
            return;
        };
        let mut bases = lock(&self.bases);
        if length > 0 {
            *bases = (bases.0 + f64::from(length), bases.1 + base.seconds);
        }
        if bases.0 > BASES_BYTES {
            *bases = (bases.0 / 2.0, bases.1 / 2.0);
        }
    }

    /// Encodes `bytes`, which are the segment, and may be the delta to `base`.
    pub(super) fn encode(
        &self,
        segment: &Planned,
        means: &Means,
        checkpoint: CheckpointId,
        pieces: Vec<SegmentPiece>,
        bytes: Payload,
        base: Option<Base>,
    ) -> Result<NewSegment> {
        self.note_base(base.as_ref());
        let mut work = lock(&self.idle).pop().unwrap_or_default();
        let encoded = self.shorten(segment, means, &bytes, base.as_ref(), &mut work);
        lock(&self.idle).push(work);
        let (scheme, payload) = match encoded? {
            Some((scheme, payload)) => (scheme, payload.into()),
            None => (Scheme::raw(ElementType::Bytes), bytes),
        };
        let bases = base.filter(|_| scheme.needs_base());
        Ok(NewSegment {
            segment: segment.id,
            checkpoint,
            class: SegmentClass::Blocks,
            merge: segment.merge.id(),
            element: (!segment.mixed).then_some(segment.element),
            variable: segment.variable.clone(),
            scheme: scheme_bytes(&scheme)?,
            decoded_bytes: segment.length,
            pieces,
            bases: bases.map_or_else(Vec::new, |base| base.runs),
            payload,
        })
    }

    /// What is best for a variable's segment: as for the one before, unless it is time to look again.
    fn choice(
        &self,
        key: &Subjects,
        subject: &Subject<'_>,
        bytes: &[u8],
        means: &Means,
        work: &mut Work,
    ) -> Result<Choice> {
        let policy = {
            let mut choosers = lock(&self.choosers);
            let chooser = choosers.entry(key.clone()).or_default();
            if let Some(choice) = chooser.known(subject, bytes.len()) {
                return Ok(choice);
            }
            chooser.corrected(&means.policy(chooser.correction(), self.base_rate()))
        };
        // Another thread that comes to the same variable meanwhile chooses for itself.
        let choice = backstay_codec::choose(subject, bytes, &policy, work)?;
        let mut choosers = lock(&self.choosers);
        choosers.entry(key.clone()).or_default().learn(choice);
        Ok(choice)
    }

    /// The scheme and the encoded bytes; `None` where the bytes are best as they are.
    fn shorten(
        &self,
        segment: &Planned,
        means: &Means,
        bytes: &[u8],
        base: Option<&Base>,
        work: &mut Work,
    ) -> Result<Option<(Scheme, Vec<u8>)>> {
        if means.codec == ArchiveCodec::Raw {
            return Ok(None);
        }
        let key = subjects(segment, base.is_some());
        let subject = Subject {
            element: segment.element,
            lags: &segment.lags,
            base: base.and_then(|base| base.bytes.as_deref()),
        };
        let choice = self.choice(&key, &subject, bytes, means, work)?;
        if choice.scheme == Scheme::raw(segment.element) {
            return Ok(None);
        }
        work.set_effort(choice.effort);
        let watch = Stopwatch::start();
        let mut payload = Vec::new();
        let scheme =
            backstay_codec::encode(&choice.scheme, bytes, subject.base, work, &mut payload)?;
        let waited = base.map_or(0.0, |base| base.seconds);
        let waited = if scheme.needs_base() { waited } else { 0.0 };
        let seconds = Some(watch.seconds() + waited);
        let mut choosers = lock(&self.choosers);
        let chooser = choosers.entry(key).or_default();
        chooser.note(bytes.len(), payload.len(), seconds);
        drop(choosers);
        let shorter = payload.len() < bytes.len();
        Ok(shorter.then_some((scheme, payload)))
    }
}

fn subjects(segment: &Planned, based: bool) -> Subjects {
    (segment.variable.clone(), segment.element.id(), based)
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
        let wrong = |error| Error::malformed("scheme of a segment".to_owned(), error);
        let scheme = Scheme::decode(&mut body).map_err(wrong)?;
        let mut work = lock(&self.idle).pop().unwrap_or_default();
        let decoded = backstay_codec::decode(&scheme, payload, base, &mut work, out);
        lock(&self.idle).push(work);
        decoded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_base::error::ErrorKind;
    use backstay_format::scheme::RESERVED;

    #[test]
    fn what_stays_as_it_is_is_not_copied() {
        let pool = crate::extent::Pool::new(1 << 20);
        let mut bytes = Payload::room(&pool, 64, 256 << 10);
        let mut state = 1_u64;
        for byte in &mut *bytes {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = state.to_le_bytes()[7];
        }
        let at = bytes.as_ptr();
        let segment = Planned {
            id: SegmentId(1),
            variable: "noise".to_owned(),
            element: ElementType::F64,
            mixed: false,
            merge: Merge::ALL[0],
            lags: vec![1],
            length: 256 << 10,
            pieces: Vec::new(),
        };
        let means = Means {
            codec: ArchiveCodec::Auto,
            second_pass: false,
            threads: 1,
            write_bytes_per_second: 1e9,
        };
        let encoders = Encoders::default();
        let checkpoint = CheckpointId::default();
        let new = encoders.encode(&segment, &means, checkpoint, Vec::new(), bytes, None);
        assert_eq!(new.unwrap().payload.as_ptr(), at);
    }

    #[test]
    fn a_scheme_that_was_given_up_is_unsupported_and_named() {
        for ((_, id, name), place) in RESERVED.into_iter().zip([2, 3]) {
            let mut scheme = Scheme::raw(ElementType::F64).encode().unwrap();
            scheme[place] = id;
            let decoded = Decoders::default().decode(&scheme, &[0; 8], None, &mut [0; 8]);
            let error = decoded.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = format!("{error:?}");
            assert!(text.contains(name), "{text}");
        }
    }
}
