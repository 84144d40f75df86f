// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the segments of a drain may be a delta to: bases of the archive itself.
//! In from: `state` (where blocks stand now), the store (bases, read back). Out to: `pack` and `encode`
//! (bases); to the ledger, what became a delta to what.
//! Invariants: a base is stored whole, so a segment is decoded from itself and bases; a base serves so many
//! drains and no more; one that cannot be read, or that is being given up, serves none. Nothing is kept
//! on the nodes for it, and nothing but the archive is needed to go on.

use super::encode::{Encoders, Planned};
use super::ledger::{Account, Ledger, Runs};
use super::lock;
use super::pack::Packing;
use super::state::State;
use crate::aggregate::Piece;
use crate::{ArchiveDevice, NewSegment};
use backstay_base::clock::Stopwatch;
use backstay_base::error::Error;
use backstay_base::notice;
use backstay_format::width::{index, to_usize};
use backstay_format::{Address, BaseRun, SegmentHeader, SegmentId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// So many times its own bytes the bases of a segment may have, all of which are read with it.
const BASES_MAX: u64 = 4;

/// What a segment may be the delta to.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) runs: Vec<BaseRun>,
    /// The base of each byte, zeros where there is none; `None` where nobody asks for it.
    pub(super) bytes: Option<Vec<u8>>,
    /// What it took to bring them.
    pub(super) seconds: f64,
}

/// The bases of one drain.
pub(super) struct History<'a> {
    state: &'a State,
    device: Arc<ArchiveDevice>,
    /// Segments that are being cleaned: nothing may refer to them any more.
    victims: &'a BTreeSet<SegmentId>,
    /// Drains that a base serves; 0 for none.
    drains_max: i64,
    /// Every so many checkpoints one is drained.
    every: u64,
    found: Mutex<Found>,
}

/// What was found out meanwhile.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Segments of this drain that are deltas.
    pub(super) made: BTreeMap<SegmentId, Runs>,
    /// Which drain wrote a base of a former start.
    pub(super) written: BTreeMap<SegmentId, i64>,
    /// Bases that cannot be read.
    unreadable: BTreeSet<SegmentId>,
}

impl<'a> History<'a> {
    pub(super) fn new(
        state: &'a State,
        device: Arc<ArchiveDevice>,
        victims: &'a BTreeSet<SegmentId>,
        (drains_max, every): (u32, u32),
    ) -> Self {
        Self {
            state,
            device,
            victims,
            drains_max: i64::from(drains_max),
            every: u64::from(every.max(1)),
            found: Mutex::default(),
        }
    }

    /// What is to be told to the ledger when the drain is durable.
    pub(super) fn finish(self) -> Found {
        self.found.into_inner().unwrap_or_default()
    }

    /// Notes a segment as it is stored.
    pub(super) fn note(&self, segment: &NewSegment) {
        if !segment.bases.is_empty() {
            let runs = segment.bases.as_slice().into();
            lock(&self.found).made.insert(segment.segment, runs);
        }
    }

    /// The base of a segment, if at least half of it has one, and not scattered over too many bases.
    pub(super) fn base(
        &self,
        packing: &Packing<'_>,
        encoders: &Encoders,
        segment: &Planned,
    ) -> Option<Base> {
        if self.drains_max == 0 {
            return None;
        }
        let runs = self.runs(packing, segment)?;
        let watch = Stopwatch::start();
        let wanted = encoders.wants_base(segment);
        let read = || self.device.base_bytes(segment.id, segment.length, &runs);
        let Ok(bytes) = wanted.then(read).transpose() else {
            self.find_unreadable(&runs);
            return None;
        };
        Some(Base {
            runs,
            bytes,
            seconds: watch.seconds(),
        })
    }

    fn runs(&self, packing: &Packing<'_>, segment: &Planned) -> Option<Vec<BaseRun>> {
        let mut runs: Vec<BaseRun> = Vec::new();
        for piece in &segment.pieces {
            let Some(base) = self.base_of(packing, piece) else {
                continue;
            };
            let next = BaseRun {
                offset: piece.offset,
                length_bytes: piece.block.length,
                base,
            };
            match runs.last_mut() {
                Some(last) if goes_on(last, &next) => last.length_bytes += next.length_bytes,
                _ => runs.push(next),
            }
        }
        let based: u64 = runs.iter().map(|run| u64::from(run.length_bytes)).sum();
        let length = u64::from(segment.length);
        let is_dense =
            based > 0 && based * 2 >= length && self.bytes_of_bases(&runs) <= BASES_MAX * length;
        is_dense.then_some(runs)
    }

    /// Bytes of all the bases of some runs, decoded.
    fn bytes_of_bases(&self, runs: &[BaseRun]) -> u64 {
        let bases: BTreeSet<SegmentId> = runs.iter().map(|run| run.base.segment()).collect();
        let accounts = bases
            .iter()
            .filter_map(|&base| self.state.ledger.account(base));
        accounts.map(|account| account.decoded_bytes).sum()
    }

    /// Where in a base the bytes stand that a block may be the delta to.
    fn base_of(&self, packing: &Packing<'_>, piece: &Piece) -> Option<Address> {
        let place = index(piece.variable);
        let work = packing.works.get(index(piece.rank))?;
        // What moves is to be rid of what it stands in.
        if packing.write_of(piece).ok()?.from_archive {
            return None;
        }
        let rank = self.state.ranks.get(&work.rank)?;
        let tree = &rank
            .variables
            .get(&work.part.descriptors.get(place)?.name)?
            .tree;
        if work.part.streams.get(place)?.block_bytes != tree.root().block_bytes {
            return None;
        }
        let stands = tree.block(to_usize(piece.block.index), index(piece.block.length))?;
        let base = base_of(&self.state.ledger, stands.address, piece.block.length)?;
        self.serves(base.segment()).then_some(base)
    }

    /// Whether a base may serve once more.
    fn serves(&self, base: SegmentId) -> bool {
        let ledger = &self.state.ledger;
        let Some(account) = ledger.account(base) else {
            return false;
        };
        if self.victims.contains(&base) || lock(&self.found).unreadable.contains(&base) {
            return false;
        }
        let written = account.written.or_else(|| self.written(base, account));
        written.is_some_and(|written| ledger.drains_since(written) <= self.drains_max)
    }

    /// Which drain wrote a base of a former start, by what its header says: an estimate, and no later than
    /// the drains say that are known to have used it.
    fn written(&self, base: SegmentId, account: &Account) -> Option<i64> {
        if let Some(&written) = lock(&self.found).written.get(&base) {
            return Some(written);
        }
        let header = match self.device.header(base) {
            Ok(header) => header,
            Err(error) => {
                self.is_unreadable(base, &error);
                return None;
            }
        };
        let opened = self.state.opened?;
        let numbers = opened.number.saturating_sub(header.checkpoint.number);
        let drains = i64::try_from(numbers.div_ceil(self.every)).unwrap_or(i64::MAX);
        let written = -drains.max(account.served);
        lock(&self.found).written.insert(base, written);
        Some(written)
    }

    /// Says which of the bases cannot be read, once for each.
    fn find_unreadable(&self, runs: &[BaseRun]) {
        let bases: BTreeSet<SegmentId> = runs.iter().map(|run| run.base.segment()).collect();
        for base in bases {
            if let Err(error) = self.device.segment(base) {
                self.is_unreadable(base, &error);
            }
        }
    }

    fn is_unreadable(&self, base: SegmentId, error: &Error) {
        if lock(&self.found).unreadable.insert(base) {
            notice::warn(&format!(
                "what changed since is stored whole, not as a delta: {error}"
            ));
        }
    }
}

impl Ledger {
    /// Takes over what a drain found out.
    pub(super) fn learn(&mut self, written: &BTreeMap<SegmentId, i64>) {
        for (&base, &drain) in written {
            self.date(base, drain);
        }
    }
}

/// Whether `next` continues `last` in both segments.
fn goes_on(last: &BaseRun, next: &BaseRun) -> bool {
    last.offset + last.length_bytes == next.offset
        && last.base.segment() == next.base.segment()
        && last.base.offset_bytes() + last.length_bytes == next.base.offset_bytes()
}

/// The address in a base of what stands at `address`: there itself, or what it is the delta to.
fn base_of(ledger: &Ledger, address: Address, length: u32) -> Option<Address> {
    if address.is_none() {
        return None;
    }
    let runs = &ledger.account(address.segment())?.runs;
    if runs.is_empty() {
        return Some(address);
    }
    let offset = address.offset_bytes();
    let before = runs.partition_point(|run| run.offset <= offset);
    let run = runs.get(before.checked_sub(1)?)?;
    let skipped = offset - run.offset;
    if u64::from(skipped) + u64::from(length) > u64::from(run.length_bytes) {
        return None;
    }
    let at = run.base.offset_bytes().checked_add(skipped)?;
    let unit = u16::try_from(at / Address::UNIT_BYTES).ok()?;
    (at % Address::UNIT_BYTES == 0).then(|| Address::new(run.base.segment(), unit))
}

/// For each base, how many drains are known to have used it: of which checkpoints deltas to it are.
pub(super) fn note_deltas(ledger: &mut Ledger, headers: &[SegmentHeader]) {
    let mut of: BTreeMap<SegmentId, BTreeSet<_>> = BTreeMap::new();
    for header in headers {
        for run in &header.bases {
            let checkpoints = of.entry(run.base.segment()).or_default();
            checkpoints.insert(header.checkpoint);
        }
    }
    for (base, checkpoints) in of {
        if let Some(account) = ledger.segments.get_mut(&base) {
            account.served = i64::try_from(checkpoints.len()).unwrap_or(i64::MAX);
        }
    }
}
