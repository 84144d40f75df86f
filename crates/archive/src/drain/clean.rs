// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which segments of an archive store are so thinly filled that what lives in them is written
//! elsewhere.
//! In from: `ledger`. Out to: `work`: segments that nothing of the next checkpoint refers to.
//! Invariants: when nothing is left to choose, less than twice of what lives is stored, bases that are only
//! there as bases included. There a delta counts for four fifths of its bytes: it is no longer than
//! that part of a base, or a base is written.

use super::ledger::{Account, Ledger};
use backstay_format::SegmentId;
use std::collections::{BTreeMap, BTreeSet};

/// Excess that is not worth any work.
const SLACK_BYTES: u64 = 16 << 20;

/// Deltas that live, by a base that they are to: bytes of each.
type Users = BTreeMap<SegmentId, BTreeMap<SegmentId, u64>>;

/// A segment that may be cleaned.
struct Thin {
    segment: SegmentId,
    live: u64,
    /// What it takes, with its share of the bases that are there for it.
    cost: u64,
}

impl Account {
    fn is_base(&self) -> bool {
        self.runs.is_empty()
    }
    /// What it takes: a delta at the most that it may be of a base.
    fn weight(&self) -> u64 {
        if self.is_base() {
            self.decoded_bytes
        } else {
            self.decoded_bytes * 4 / 5
        }
    }
    /// Of a base: less than half of it lives.
    fn is_thin(&self) -> bool {
        self.live_bytes * 2 < self.decoded_bytes
    }
}

impl Ledger {
    /// Thinly filled segments whose living bytes are worth moving, thinnest first: so many that what
    /// stays is less than twice what lives, of at most `bytes_max` to move. Where all deltas to a
    /// thin base are among them, so is the base.
    pub(super) fn to_clean(&self, bytes_max: u64) -> BTreeSet<SegmentId> {
        let users = self.users();
        let mut excess = self.excess();
        let mut moved = 0;
        let mut chosen = BTreeSet::new();
        for thin in self.thin(&users) {
            if excess == 0 || moved + thin.live > bytes_max {
                break;
            }
            moved += thin.live;
            excess = excess.saturating_sub(thin.cost - thin.live);
            chosen.insert(thin.segment);
        }
        for (base, users) in &users {
            let Some(account) = self.segments.get(base).filter(|base| base.is_thin()) else {
                continue;
            };
            let is_left = users.keys().all(|user| chosen.contains(user));
            if is_left && moved + account.live_bytes <= bytes_max {
                moved += account.live_bytes;
                chosen.insert(*base);
            }
        }
        chosen
    }

    /// What there is beyond what may be: half of what lives, and for deltas most of a base.
    fn excess(&self) -> u64 {
        let accounts = self.segments.values();
        let (mut all, mut most) = (0, SLACK_BYTES);
        for account in accounts {
            let live = account.live_bytes;
            all += account.weight();
            most += live * 3 / 2;
            if !account.is_base() {
                most += live * 2 / 5;
            }
        }
        all.saturating_sub(most)
    }

    fn users(&self) -> Users {
        let mut users = Users::new();
        for (&segment, account) in &self.segments {
            if account.live_bytes == 0 {
                continue;
            }
            for run in account.runs.iter() {
                let of = users.entry(run.base.segment()).or_default();
                *of.entry(segment).or_default() += u64::from(run.length_bytes);
            }
        }
        users
    }

    /// What is thin, thinnest first. A base with deltas goes by them alone.
    fn thin(&self, users: &Users) -> Vec<Thin> {
        let mut pinned: BTreeMap<SegmentId, u64> = BTreeMap::new();
        for (base, users) in users {
            // What is dead in a base that is half full is its own matter.
            let Some(account) = self.segments.get(base).filter(|base| base.is_thin()) else {
                continue;
            };
            let dead = account.decoded_bytes - account.live_bytes;
            let all: u64 = users.values().sum();
            for (&user, &bytes) in users {
                *pinned.entry(user).or_default() += dead * bytes / all.max(1);
            }
        }
        let living = self.segments.iter().filter(|(_, a)| a.live_bytes > 0);
        let of = |(&segment, account): (&SegmentId, &Account)| Thin {
            segment,
            live: account.live_bytes,
            cost: account.weight() + pinned.get(&segment).copied().unwrap_or(0),
        };
        let mut thin: Vec<Thin> = living
            .filter(|(segment, _)| !users.contains_key(segment))
            .map(of)
            .filter(|thin| thin.live * 2 < thin.cost)
            .collect();
        // Without fractions.
        thin.sort_by(|a, b| (a.live * b.cost).cmp(&(b.live * a.cost)));
        thin
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Runs;
    use super::*;
    use backstay_format::{Address, BaseRun};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const FULL: u64 = 4 * MIB;

    /// What is stored as it counts, and what lives.
    fn totals(ledger: &Ledger) -> (u64, u64) {
        let accounts = ledger.segments.values();
        accounts.fold((0, 0), |(all, live), account| {
            (all + account.weight(), live + account.live_bytes)
        })
    }

    /// Each of the runs is so many bytes to that base.
    fn runs(of: &[(u64, u64)]) -> Runs {
        let run = |&(base, bytes): &(u64, u64)| BaseRun {
            offset: 0,
            length_bytes: u32::try_from(bytes).unwrap(),
            base: Address::new(SegmentId(base), 0),
        };
        of.iter().map(run).collect()
    }

    fn add(ledger: &mut Ledger, at: u64, live: u64, of: &[(u64, u64)]) {
        ledger.open(SegmentId(at), FULL, runs(of));
        ledger.add(SegmentId(at), live);
    }

    /// Moves what lives in the chosen ones into new bases, and gives back what nothing needs.
    fn clean(ledger: &mut Ledger, chosen: &BTreeSet<SegmentId>, next: &mut u64) {
        let mut moved = 0;
        for segment in chosen {
            let account = ledger.segments.get_mut(segment).unwrap();
            moved += std::mem::take(&mut account.live_bytes);
        }
        while moved > 0 {
            let live = moved.min(FULL);
            ledger.open(SegmentId(*next), live, Runs::default());
            ledger.add(SegmentId(*next), live);
            *next += 1;
            moved -= live;
        }
        ledger.free(&BTreeSet::new());
    }

    #[test]
    fn thin_segments_are_cleaned_until_less_than_twice_is_stored() {
        let mut ledger = Ledger::default();
        for at in 1..=100 {
            add(&mut ledger, at, if at <= 60 { MIB / 4 } else { FULL }, &[]);
        }
        let chosen = ledger.to_clean(u64::MAX);
        let (all, live) = totals(&ledger);
        let given: u64 = chosen.iter().map(|_| FULL - MIB / 4).sum();
        assert!(all - given < 2 * live, "{} chosen", chosen.len());
        assert!(chosen.iter().all(|segment| segment.0 <= 60));
        assert!(ledger.to_clean(MIB).len() <= 4);
    }

    #[test]
    fn a_full_delta_is_left_with_its_base() {
        let mut ledger = Ledger::default();
        for at in 1..=50 {
            add(&mut ledger, at, 0, &[]);
            add(&mut ledger, 100 + at, FULL, &[(at, FULL)]);
        }
        assert!(ledger.to_clean(u64::MAX).is_empty());
    }

    #[test]
    fn one_delta_to_many_bases_goes_with_all_of_them() {
        let mut ledger = Ledger::default();
        for at in 1..=40 {
            add(&mut ledger, at, at % 2 * MIB, &[]);
        }
        let all: Vec<(u64, u64)> = (1..=40).map(|base| (base, FULL / 40)).collect();
        add(&mut ledger, 100, FULL, &all);
        let chosen = ledger.to_clean(u64::MAX);
        assert_eq!(chosen.len(), 41);
        clean(&mut ledger, &chosen, &mut 200);
        assert_eq!(totals(&ledger), (24 * MIB, 24 * MIB));
    }

    proptest! {
        /// Whatever refers to what: cleaned a few times, less than twice of what lives is left.
        #[test]
        fn in_the_end_less_than_twice_is_stored(
            bases in prop::collection::vec(0..=FULL, 1..60),
            deltas in prop::collection::vec(
                (0..=FULL, prop::collection::vec((0..60_usize, 1..FULL / 8), 1..8)), 0..60),
        ) {
            let mut ledger = Ledger::default();
            for (at, live) in bases.iter().enumerate() {
                add(&mut ledger, at as u64 + 1, *live, &[]);
            }
            for (at, (live, of)) in deltas.iter().enumerate() {
                let of: Vec<(u64, u64)> = of
                    .iter()
                    .map(|(base, bytes)| ((base % bases.len()) as u64 + 1, *bytes))
                    .collect();
                add(&mut ledger, at as u64 + 1000, *live, &of);
            }
            ledger.free(&BTreeSet::new());
            let before = totals(&ledger).1;
            let mut next = 5000;
            for _ in 0..20 {
                let chosen = ledger.to_clean(u64::MAX);
                if chosen.is_empty() {
                    break;
                }
                clean(&mut ledger, &chosen, &mut next);
            }
            prop_assert!(ledger.to_clean(u64::MAX).is_empty());
            let (all, live) = totals(&ledger);
            prop_assert_eq!(live, before);
            prop_assert!(all <= 2 * live + SLACK_BYTES + 60, "{} stored of {}", all, live);
        }
    }
}
