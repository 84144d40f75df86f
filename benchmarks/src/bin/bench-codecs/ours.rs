// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: checkpoints through the codec stage: bytes stored, and time to encode and decode.
//! In from: `merged`. Out to: the parts of this benchmark.
//! Invariants: all that was encoded is decoded and compared; a segment counts its head.

use crate::merged::{Gathered, Once, segments};
use backstay::format::scheme::SecondPass;
use backstay_archive::aggregate::Options;
use backstay_bench::compression::report::Reached;
use backstay_bench::datasets::State;
use backstay_bench::job::cpu_seconds;
use backstay_bench::{Outcome, size_f64};
use backstay_codec::{Choice, Chooser, Policy, Subject, Work};
use std::collections::BTreeMap;

/// Bytes that are kept of a segment beside its content.
pub(crate) const HEAD: usize = 64;
/// Decodings, of which the fastest counts.
const ROUNDS: usize = 3;

/// Segments between two choices.
const EVERY: u32 = 64;

/// How a checkpoint is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) options: Options,
    /// Whether equal blocks are stored once.
    pub(crate) once: bool,
    /// Whether a second pass is forced, or forbidden.
    pub(crate) second: Option<SecondPass>,
    /// Whether the first choice for a kind stays until [`Stage::forget`], as choices stay in a job that
    /// runs; else each checkpoint begins anew.
    pub(crate) sticky: bool,
    /// Whether decoding is timed.
    pub(crate) timed: bool,
}

/// What became of a checkpoint.
#[derive(Debug, Clone, Default)]
pub(crate) struct Totals {
    pub(crate) bytes: usize,
    pub(crate) stored: usize,
    pub(crate) equal_bytes: usize,
    /// Bytes that were encoded.
    pub(crate) encoded: usize,
    /// Without the choice of schemes.
    pub(crate) encode_seconds: f64,
    pub(crate) choose_seconds: f64,
    pub(crate) decode_seconds: f64,
    /// How often each scheme was taken, by bytes.
    pub(crate) schemes: BTreeMap<String, usize>,
}

impl Totals {
    pub(crate) fn ratio(&self) -> f64 {
        size_f64(self.bytes) / size_f64(self.stored.max(1))
    }
    pub(crate) fn decode_gb_s(&self) -> f64 {
        size_f64(self.encoded) / self.decode_seconds.max(1e-9) / 1e9
    }
    pub(crate) fn encode_mb_s(&self) -> f64 {
        size_f64(self.encoded) / self.encode_seconds.max(1e-9) / 1e6
    }
    /// The scheme of most bytes.
    pub(crate) fn scheme(&self) -> String {
        let most = self.schemes.iter().max_by_key(|&(_, bytes)| bytes);
        most.map_or_else(String::new, |(scheme, _)| scheme.clone())
    }
    pub(crate) fn reached(&self) -> Reached {
        Reached {
            method: self.scheme(),
            ratio: self.ratio(),
            decode_gb_s: self.decode_gb_s(),
            encode_mb_s: self.encode_mb_s(),
        }
    }
}

/// The codec stage, with its memory.
#[derive(Debug)]
pub(crate) struct Stage {
    work: Work,
    encoded: Vec<u8>,
    decoded: Vec<u8>,
    choosers: BTreeMap<(String, u8, u8), Chooser>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self {
            work: Work::new(),
            encoded: Vec::new(),
            decoded: Vec::new(),
            choosers: BTreeMap::new(),
        }
    }

    /// Stores a checkpoint in memory.
    pub(crate) fn store(
        &mut self,
        state: &State,
        base: Option<&State>,
        way: Way,
    ) -> Outcome<Totals> {
        let mut totals = Totals {
            bytes: state
                .iter()
                .flatten()
                .map(|variable| variable.bytes.len())
                .sum(),
            ..Totals::default()
        };
        let mut once = Once::default();
        if !way.sticky {
            self.forget();
        }
        let seen = way.once.then_some(&mut once);
        segments(state, base, way.options, seen, |segment| {
            self.one(segment, way, &mut totals)
        })?;
        totals.equal_bytes = once.equal_bytes;
        Ok(totals)
    }

    /// Forgets all choices.
    pub(crate) fn forget(&mut self) {
        self.choosers.clear();
    }

    fn one(&mut self, segment: &Gathered<'_>, way: Way, totals: &mut Totals) -> Outcome<()> {
        let bytes = segment.bytes;
        let start = cpu_seconds();
        let choice = self.choose(segment, way)?;
        let chosen_at = cpu_seconds();
        let mut scheme = choice.scheme;
        self.work.set_effort(choice.effort);
        if let Some(second) = way.second {
            scheme = scheme.with_second_pass(second);
        }
        let out = &mut self.encoded;
        let taken = backstay_codec::encode(&scheme, bytes, segment.base, &mut self.work, out)?;
        totals.encode_seconds += cpu_seconds() - chosen_at;
        totals.choose_seconds += chosen_at - start;
        if let Some(chooser) = self
            .choosers
            .get_mut(&key(segment, way))
            .filter(|_| !way.sticky)
        {
            chooser.note(bytes.len(), self.encoded.len(), None);
        }
        totals.stored += self.encoded.len() + HEAD;
        totals.encoded += bytes.len();
        *totals.schemes.entry(taken.to_string()).or_default() += bytes.len();
        self.decoded.resize(bytes.len(), 0);
        let mut best = f64::MAX;
        for _ in 0..if way.timed { ROUNDS } else { 1 } {
            let start = cpu_seconds();
            let (encoded, decoded) = (&self.encoded, &mut self.decoded);
            backstay_codec::decode(&taken, encoded, segment.base, &mut self.work, decoded)?;
            best = best.min(cpu_seconds() - start);
        }
        totals.decode_seconds += best;
        if self.decoded != bytes {
            return Err(format!("{}: {taken} does not come back", segment.kind).into());
        }
        Ok(())
    }

    fn choose(&mut self, segment: &Gathered<'_>, way: Way) -> Outcome<Choice> {
        let subject = Subject {
            element: segment.element,
            lags: segment.lags,
            base: segment.base,
        };
        let every = if way.sticky { u32::MAX } else { EVERY };
        let new = || Chooser::new(every);
        let chooser = self.choosers.entry(key(segment, way)).or_insert_with(new);
        Ok(chooser.next(&subject, segment.bytes, &Policy::default(), &mut self.work)?)
    }
}

/// Choices are kept by kind, and by the order in which a segment holds it.
fn key(segment: &Gathered<'_>, way: Way) -> (String, u8, u8) {
    let merge = way.options.merge.id();
    (segment.kind.to_owned(), segment.element.id(), merge)
}
