// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which segments of an archive store are needed, how much of each, and since when no more.
//! In: references that come and go. Out: segments to give back; to `clean`, what they hold; to `history`,
//! what they are a delta to, and since when they are there.
//! Invariants: a segment that a retained checkpoint refers to, or that a needed one is a delta to, is
//! never given back. Derived from the retained roots at opening, never stored.

use super::tree::Turnover;
use backstay_format::{BaseRun, CheckpointId, SegmentId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Which bytes of a segment are the delta to what, in order; none of a base.
pub(super) type Runs = Arc<[BaseRun]>;

/// One segment.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    /// Bytes that the newest checkpoint refers to.
    pub(super) live_bytes: u64,
    /// Bytes, decoded.
    pub(super) decoded_bytes: u64,
    /// The first checkpoint that refers to it, where it was written in this start; else an unknown one.
    pub(super) born: Option<CheckpointId>,
    /// The first checkpoint that does not refer to it any more.
    pub(super) dead_since: CheckpointId,
    /// What it is a delta to.
    pub(super) runs: Runs,
    /// The drain that wrote it: those of this start count from 1, and of starts before down from 0. `None`
    /// where it is not known yet.
    pub(super) written: Option<i64>,
    /// Drains of former starts that are known to have used it as a base.
    pub(super) served: i64,
}

impl Account {
    /// The bases that it is a delta to; one may come again.
    pub(super) fn bases(&self) -> impl Iterator<Item = SegmentId> {
        self.runs.iter().map(|run| run.base.segment())
    }
}

/// All segments of a store.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    pub(super) segments: BTreeMap<SegmentId, Account>,
    /// Drains of this start.
    drains: i64,
}

impl Ledger {
    /// Takes a segment into account that nothing refers to yet.
    pub(super) fn open(&mut self, segment: SegmentId, decoded_bytes: u64, runs: Runs) {
        let account = self.segments.entry(segment).or_default();
        account.decoded_bytes = decoded_bytes;
        account.runs = runs;
    }

    /// A segment that the drain at hand wrote for checkpoint `id`: older ones do not refer to it.
    pub(super) fn open_for(
        &mut self,
        segment: SegmentId,
        decoded_bytes: u64,
        runs: Runs,
        id: CheckpointId,
    ) {
        self.open(segment, decoded_bytes, runs);
        let drain = self.drains + 1;
        self.date(segment, drain);
        self.segments.entry(segment).or_default().born = Some(id);
    }

    /// Says which drain wrote a segment.
    pub(super) fn date(&mut self, segment: SegmentId, drain: i64) {
        if let Some(account) = self.segments.get_mut(&segment) {
            account.written = Some(drain);
        }
    }

    pub(super) fn account(&self, segment: SegmentId) -> Option<&Account> {
        self.segments.get(&segment)
    }

    /// For how many drains a segment was there when the drain at hand is over, where `written` wrote it.
    pub(super) fn drains_since(&self, written: i64) -> i64 {
        self.drains + 1 - written
    }

    pub(super) fn knows(&self, segment: SegmentId) -> bool {
        self.segments.contains_key(&segment)
    }

    /// The newest checkpoint refers to so much more of it.
    pub(super) fn add(&mut self, segment: SegmentId, bytes: u64) {
        self.segments.entry(segment).or_default().live_bytes += bytes;
    }

    /// A checkpoint older than the newest refers to it; the one after that, `next`, does not.
    pub(super) fn needed_until(&mut self, segment: SegmentId, next: CheckpointId) {
        let account = self.segments.entry(segment).or_default();
        account.dead_since = account.dead_since.max(next);
    }

    /// Checkpoint `id` became the newest.
    pub(super) fn apply(&mut self, turnover: &Turnover, id: CheckpointId) {
        for &(segment, bytes) in &turnover.added {
            self.add(segment, bytes);
        }
        for (segment, bytes) in &turnover.removed {
            if let Some(account) = self.segments.get_mut(segment) {
                account.live_bytes = account.live_bytes.saturating_sub(*bytes);
                account.dead_since = account.dead_since.max(id);
            }
        }
        // After a restore from an older one, numbers begin again below those of what is there.
        for account in self.segments.values_mut().filter(|a| a.live_bytes > 0) {
            account.born = account.born.map(|born| born.min(id));
        }
        self.drains += 1;
    }

    /// Takes out what nothing needs when only `retained` stay, the newest among them.
    pub(super) fn free(&mut self, retained: &BTreeSet<CheckpointId>) -> Vec<SegmentId> {
        let refers = |account: &Account, id: CheckpointId| {
            account.born.is_none_or(|born| born <= id) && id < account.dead_since
        };
        let dead = |account: &Account| {
            account.live_bytes == 0 && !retained.iter().any(|&id| refers(account, id))
        };
        let mut freed = Vec::new();
        // What deltas refer to goes when they do: one more turn.
        for _ in 0..2 {
            let based: BTreeSet<SegmentId> =
                self.segments.values().flat_map(Account::bases).collect();
            let gone: Vec<SegmentId> = self
                .segments
                .iter()
                .filter(|(segment, account)| dead(account) && !based.contains(segment))
                .map(|(&segment, _)| segment)
                .collect();
            for segment in gone {
                self.segments.remove(&segment);
                freed.push(segment);
            }
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_format::Address;

    fn id(number: u64) -> CheckpointId {
        CheckpointId::new(1, number)
    }

    #[test]
    fn a_segment_goes_when_the_last_checkpoint_that_refers_to_it_does() {
        let mut ledger = Ledger::default();
        let [a, b] = [SegmentId(1), SegmentId(2)];
        ledger.open(a, 100, Runs::default());
        ledger.add(a, 100);
        ledger.open(b, 100, Runs::default());
        let turnover = Turnover {
            added: vec![(b, 100)],
            removed: vec![(a, 100)],
        };
        ledger.apply(&turnover, id(2));
        assert!(ledger.free(&[id(1), id(2)].into()).is_empty());
        assert_eq!(ledger.free(&[id(2)].into()), vec![a]);
        assert!(!ledger.knows(a) && ledger.knows(b));
    }

    #[test]
    fn a_kept_checkpoint_holds_what_it_refers_to_and_nothing_written_after_it() {
        let mut ledger = Ledger::default();
        let mut last: Option<SegmentId> = None;
        for number in 1..=6 {
            let own = SegmentId(number);
            ledger.open_for(own, 100, Runs::default(), id(number));
            let turnover = Turnover {
                added: vec![(own, 100)],
                removed: last.map(|last| (last, 100)).into_iter().collect(),
            };
            ledger.apply(&turnover, id(number));
            last = Some(own);
        }
        let freed = ledger.free(&[id(1), id(5), id(6)].into());
        assert_eq!(freed, [2, 3, 4].map(SegmentId));
        assert!(
            [1, 5, 6]
                .iter()
                .all(|&number| ledger.knows(SegmentId(number)))
        );
    }

    #[test]
    fn after_a_restore_from_an_older_one_what_it_shares_with_abandoned_ones_stays() {
        let mut ledger = Ledger::default();
        let shared = SegmentId(1);
        ledger.open_for(shared, 100, Runs::default(), id(6));
        ledger.apply(
            &Turnover {
                added: vec![(shared, 100)],
                removed: Vec::new(),
            },
            id(6),
        );
        // A start that began from checkpoint 4 drains its 5, which shares what 6 wrote; its 7 does not.
        let five = CheckpointId::new(2, 5);
        ledger.apply(&Turnover::default(), five);
        let seven = CheckpointId::new(2, 7);
        ledger.apply(
            &Turnover {
                added: Vec::new(),
                removed: vec![(shared, 100)],
            },
            seven,
        );
        assert!(ledger.free(&[five, seven].into()).is_empty());
        assert_eq!(ledger.free(&[seven].into()), vec![shared]);
    }

    #[test]
    fn what_a_delta_refers_to_stays_as_long_as_the_delta() {
        let mut ledger = Ledger::default();
        let [base, delta] = [SegmentId(1), SegmentId(2)];
        ledger.open(base, 100, Runs::default());
        let run = BaseRun {
            offset: 0,
            length_bytes: 64,
            base: Address::new(base, 0),
        };
        ledger.open(delta, 100, [run].into());
        ledger.add(delta, 50);
        ledger.needed_until(base, id(3));
        assert!(ledger.free(&[id(5)].into()).is_empty());
        let gone = Turnover {
            added: Vec::new(),
            removed: vec![(delta, 50)],
        };
        ledger.apply(&gone, id(6));
        assert_eq!(ledger.free(&[id(6)].into()), vec![delta, base]);
    }
}
