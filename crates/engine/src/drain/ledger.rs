// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which segments of an archive store are needed, how much of each, and since when no more.
//! In: references that come and go. Out: segments to give back, and those worth cleaning.
//! Invariants: a segment that a retained checkpoint refers to, or that a needed one is a difference to, is
//! never given back. Derived from the retained roots at opening, never stored.

use super::tree::Turnover;
use backstay_format::{CheckpointId, SegmentId};
use std::collections::{BTreeMap, BTreeSet};

/// One segment.
#[derive(Debug, Clone, Default)]
pub(super) struct Account {
    /// Bytes that the newest checkpoint refers to.
    pub(super) live_bytes: u64,
    /// Bytes, decoded.
    pub(super) decoded_bytes: u64,
    /// The first checkpoint that refers to it, where it was written in this life; else an unknown one.
    pub(super) born: Option<CheckpointId>,
    /// The first checkpoint that does not refer to it any more.
    pub(super) dead_since: CheckpointId,
    /// What it is a difference to.
    pub(super) bases: BTreeSet<SegmentId>,
}

/// All segments of a store.
#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    segments: BTreeMap<SegmentId, Account>,
}

impl Ledger {
    /// Takes a segment into account that nothing refers to yet.
    pub(super) fn open(
        &mut self,
        segment: SegmentId,
        decoded_bytes: u64,
        bases: BTreeSet<SegmentId>,
    ) {
        let account = self.segments.entry(segment).or_default();
        account.decoded_bytes = decoded_bytes;
        account.bases = bases;
    }

    /// A segment that was written for checkpoint `id`: older ones do not refer to it.
    pub(super) fn open_for(&mut self, segment: SegmentId, decoded_bytes: u64, id: CheckpointId) {
        self.open(segment, decoded_bytes, BTreeSet::new());
        self.segments.entry(segment).or_default().born = Some(id);
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
        // What differences refer to goes when they do: one more turn.
        for _ in 0..2 {
            let based: BTreeSet<SegmentId> = self
                .segments
                .values()
                .flat_map(|a| a.bases.iter().copied())
                .collect();
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

    /// Live bytes, and bytes of all segments, decoded.
    pub(super) fn totals(&self) -> (u64, u64) {
        let accounts = self.segments.values();
        accounts.fold((0, 0), |(live, all), account| {
            (live + account.live_bytes, all + account.decoded_bytes)
        })
    }

    /// Thinly filled segments whose living bytes are worth moving, thinnest first: so many that what
    /// stays is less than twice what lives, of at most `bytes_max` to move.
    pub(super) fn to_clean(&self, bytes_max: u64) -> BTreeSet<SegmentId> {
        let (live, all) = self.totals();
        let slack = 16 << 20;
        let mut excess = all.saturating_sub(live * 3 / 2 + slack);
        let mut thin: Vec<(&SegmentId, &Account)> = self
            .segments
            .iter()
            .filter(|(_, a)| a.live_bytes > 0 && a.live_bytes * 2 < a.decoded_bytes)
            .collect();
        // Thinnest first, without fractions.
        thin.sort_by(|(_, a), (_, b)| {
            (a.live_bytes * b.decoded_bytes).cmp(&(b.live_bytes * a.decoded_bytes))
        });
        let mut moved = 0;
        let mut chosen = BTreeSet::new();
        for (&segment, account) in thin {
            if excess == 0 || moved + account.live_bytes > bytes_max {
                break;
            }
            moved += account.live_bytes;
            excess = excess.saturating_sub(account.decoded_bytes - account.live_bytes);
            chosen.insert(segment);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> CheckpointId {
        CheckpointId::new(1, number)
    }

    #[test]
    fn a_segment_goes_when_the_last_checkpoint_that_refers_to_it_does() {
        let mut ledger = Ledger::default();
        let [a, b] = [SegmentId(1), SegmentId(2)];
        ledger.open(a, 100, BTreeSet::new());
        ledger.add(a, 100);
        ledger.open(b, 100, BTreeSet::new());
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
            ledger.open_for(own, 100, id(number));
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
        ledger.open_for(shared, 100, id(6));
        ledger.apply(
            &Turnover {
                added: vec![(shared, 100)],
                removed: Vec::new(),
            },
            id(6),
        );
        // A life that began from checkpoint 4 drains its 5, which shares what 6 wrote; its 7 does not.
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
    fn what_a_difference_refers_to_stays_as_long_as_the_difference() {
        let mut ledger = Ledger::default();
        let [key, difference] = [SegmentId(1), SegmentId(2)];
        ledger.open(key, 100, BTreeSet::new());
        ledger.open(difference, 100, [key].into());
        ledger.add(difference, 50);
        ledger.needed_until(key, id(3));
        assert!(ledger.free(&[id(5)].into()).is_empty());
        let gone = Turnover {
            added: Vec::new(),
            removed: vec![(difference, 50)],
        };
        ledger.apply(&gone, id(6));
        assert_eq!(ledger.free(&[id(6)].into()), vec![difference, key]);
    }

    #[test]
    fn thin_segments_are_cleaned_until_less_than_twice_is_stored() {
        let mut ledger = Ledger::default();
        let mib = 1 << 20;
        for at in 1..=100 {
            ledger.open(SegmentId(at), 4 * mib, BTreeSet::new());
            ledger.add(SegmentId(at), if at <= 60 { mib / 4 } else { 4 * mib });
        }
        let chosen = ledger.to_clean(u64::MAX);
        let (live, all) = ledger.totals();
        let given: u64 = chosen.iter().map(|_| 4 * mib - mib / 4).sum();
        assert!(all - given < 2 * live, "{} chosen", chosen.len());
        assert!(chosen.iter().all(|segment| segment.0 <= 60));
        assert!(ledger.to_clean(mib).len() <= 4);
    }
}
