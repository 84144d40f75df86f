// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the agents of several nodes take a checkpoint together: what is in it is decided by the first, round by round.
//! In from: `state` (what is complete here). Out to: the session, on all agents alike.
//! Invariants: all agents make the same collective calls; a set is in a checkpoint when all nodes have its files; nothing is
//! in one that was closed later than what is not settled on any node.

use super::catalog::Catalog;
use super::rules::Routes;
use super::sets::{Chosen, Named, whole_sets};
use super::state::{Content, State};
use super::talk::{decode, encode};
use super::{AGAIN, LAST_WORDS};
use backstay_base::error::Result;
use backstay_base::io::parts::split_part;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// A revision that could be in the next checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Candidate {
    name: Vec<u8>,
    order: u64,
    moved: bool,
    /// A part that the newest checkpoint has: it is whole with other parts, if the file is still that of this close.
    kept: bool,
}

/// What an agent says in a round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Report {
    /// The program is over: whether it ended well.
    ended: Option<bool>,
    /// All its processes here said their last.
    said: bool,
    /// Nothing where they are those of the round before.
    candidates: Option<Vec<Candidate>>,
    /// The first close that is not settled.
    unsettled: Option<u64>,
    /// The latest close of this node that this is with.
    seen: u64,
    /// The newest checkpoint has names that are no more.
    gone: bool,
}

/// What all do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Decision {
    /// A checkpoint is taken.
    pub(super) goes: bool,
    /// Of which names a new revision is in it: on which node, and by which close.
    chosen: Vec<(Vec<u8>, u32, u64)>,
    /// What was gone before that, among all closes, is not in it.
    drops: Option<u64>,
    /// Of files that several nodes write: which parts are in it, and no other.
    parts: Vec<(Vec<u8>, Vec<Vec<u8>>)>,
    /// This was the last round.
    pub(super) ends: bool,
}

impl State {
    /// What this node says in a round.
    pub(super) fn report(&mut self, ended: Option<bool>) -> Report {
        self.reported.clear();
        self.forget_gone();
        let candidates = self.candidates();
        // They stay until it is decided.
        self.reported = candidates.iter().map(|(_, revision)| revision.id).collect();
        let candidates = candidates.into_iter();
        let candidates = candidates.map(|(name, revision)| Candidate {
            name,
            order: revision.order,
            moved: revision.moved,
            kept: false,
        });
        let candidates = candidates.chain(self.kept_parts());
        Report {
            ended,
            said: self.processes.is_empty(),
            candidates: Some(candidates.collect()),
            unsettled: self.unsettled(),
            seen: self.seen,
            gone: self.any_gone(),
        }
    }

    /// Parts that the newest checkpoint has, with the close that they are of; 0 where their file is another one by now.
    fn kept_parts(&self) -> Vec<Candidate> {
        let of = |(name, entry): (&Vec<u8>, &super::state::Entry)| {
            if !self.is_part(name) || entry.kept.is_none() || !entry.waiting.is_empty() {
                return None;
            }
            let file = entry.live.and_then(|id| self.files.get(&id));
            let file =
                file.filter(|file| file.content == Content::Revision && file.holders.is_empty());
            Some(Candidate {
                name: name.clone(),
                order: file.and_then(|file| file.order).unwrap_or(0),
                moved: false,
                kept: true,
            })
        };
        self.names.iter().filter_map(of).collect()
    }

    /// What was removed since the last round is in none that is to come.
    fn forget_gone(&mut self) {
        let gone = self.names.iter().filter(|(_, entry)| entry.gone.is_some());
        let gone: Vec<Vec<u8>> = gone.map(|(name, _)| name.clone()).collect();
        for name in gone {
            let waiting = self
                .names
                .get_mut(&name)
                .map(|entry| entry.waiting.split_off(0));
            for revision in waiting.unwrap_or_default() {
                self.forget(&revision);
            }
            self.tidy(&name);
        }
    }

    /// This node's part of a checkpoint that was decided.
    pub(super) fn decided(&mut self, decision: &Decision, rank: u32) -> Chosen {
        let names = decision.chosen.iter();
        let (here, elsewhere): (Vec<_>, Vec<_>) = names.partition(|(_, owner, _)| *owner == rank);
        let new = here.into_iter().filter_map(|(name, _, order)| {
            let waiting = &self.names.get(name)?.waiting;
            let mut waiting = waiting.iter();
            let revision = waiting.find(|revision| revision.order == *order)?;
            Some((name.clone(), revision.clone()))
        });
        let new: Vec<Named> = new.collect();
        let all = decision.chosen.iter();
        let of_here = all.filter(|(name, owner, _)| *owner == rank && self.is_part(name));
        // A file of which a part is missing is none.
        let found = |name: &Vec<u8>| new.iter().any(|(known, _)| known == name);
        let is_broken = of_here.into_iter().any(|(name, _, _)| !found(name));
        let elsewhere = elsewhere.into_iter().map(|(name, _, _)| name.clone());
        let elsewhere = elsewhere.collect();
        let parts = decision.parts.iter().cloned().collect();
        let mut chosen = self.chosen(new, decision.drops, (elsewhere, parts));
        chosen.is_broken = is_broken;
        chosen
    }
}

impl Report {
    /// Leaves out what the round before had; whether anything is new.
    pub(super) fn shorten(&mut self, before: &mut Option<Vec<Candidate>>) -> bool {
        if self.candidates == *before {
            self.candidates = None;
            return false;
        }
        before.clone_from(&self.candidates);
        true
    }
}

/// A new revision of a name.
#[derive(Debug, Clone, Copy)]
struct Whose {
    owner: u32,
    order: u64,
    moved: bool,
    kept: bool,
}

/// A name, and whose its new revision is.
type New = (Vec<u8>, Whose);

/// A file of several parts, all of which are whole: which, on which nodes, and by which closes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WholeParts {
    pub(super) name: Vec<u8>,
    pub(super) parts: Vec<(Vec<u8>, u32, u64)>,
    /// The newest checkpoint has them all.
    kept: bool,
}

/// Decides, at the first agent.
#[derive(Debug)]
pub(super) struct Decider {
    routes: Routes,
    /// Of each agent, what could be in the next checkpoint.
    candidates: Vec<Vec<Candidate>>,
    /// No checkpoint before that: the last one failed.
    again: Option<Instant>,
    /// Since when the program is over on all nodes.
    over: Option<Instant>,
    /// The last words were waited for.
    is_last: bool,
    /// The last checkpoint failed.
    gave_up: bool,
    /// Files of several parts that were looked at, and whether they can be in a checkpoint.
    judged: BTreeMap<WholeParts, bool>,
}

impl Decider {
    pub(super) fn new(routes: Routes) -> Self {
        Self {
            routes,
            candidates: Vec::new(),
            again: None,
            over: None,
            is_last: false,
            gave_up: false,
            judged: BTreeMap::new(),
        }
    }

    /// Takes what all agents said, by rank: the files of several parts that are whole, and that nobody looked at yet.
    pub(super) fn hear(
        &mut self,
        parts: &[Vec<u8>],
        catalog: &Catalog,
    ) -> Result<(Vec<Report>, Vec<WholeParts>)> {
        let reports = parts.iter().map(|part| Ok(decode::<Report>(part)?.0));
        let mut reports: Vec<Report> = reports.collect::<Result<_>>()?;
        self.note_candidates(&mut reports);
        let whole = self.whole_parts(catalog);
        self.judged.retain(|known, _| whole.contains(known));
        let new = whole.into_iter();
        let new = new.filter(|whole| !whole.kept && !self.judged.contains_key(whole));
        Ok((reports, new.collect()))
    }

    /// Whether a file of several parts can be in a checkpoint.
    pub(super) fn judge(&mut self, whole: WholeParts, is_sound: bool) {
        self.judged.insert(whole, is_sound);
    }

    fn note_candidates(&mut self, reports: &mut [Report]) {
        self.candidates.resize_with(reports.len(), Vec::new);
        for (known, report) in self.candidates.iter_mut().zip(reports) {
            if let Some(new) = report.candidates.take() {
                *known = new;
            }
        }
    }

    /// What all do, after [`Decider::hear`].
    pub(super) fn decide(
        &mut self,
        reports: Vec<Report>,
        catalog: &mut Catalog,
    ) -> Result<Vec<u8>> {
        encode(&self.settle(reports, catalog))
    }

    fn settle(&mut self, mut reports: Vec<Report>, catalog: &mut Catalog) -> Decision {
        self.note_candidates(&mut reports);
        let reports = &reports[..];
        let all = |says: fn(&Report) -> bool| reports.iter().all(says);
        if all(|report| report.ended.is_some()) {
            let over = *self.over.get_or_insert_with(Instant::now);
            self.is_last |= all(|report| report.said) || over.elapsed() >= LAST_WORDS;
        }
        let with_removals = self.is_last && all(|report| report.ended == Some(true));
        let waits = self.again.is_some_and(|again| Instant::now() < again) && !self.is_last;
        let barrier = Self::barrier(reports, catalog);
        let mut chosen = self.choose(barrier);
        let whole = self.choose_parts(barrier, catalog);
        let new = whole.iter().flat_map(|(_, new)| new);
        chosen.extend(new.map(|(name, whose)| (name.clone(), *whose)));
        let removes = with_removals && reports.iter().any(|report| report.gone);
        let goes = (!chosen.is_empty() || removes) && !waits && !self.gave_up;
        let drops = if with_removals {
            Some(u64::MAX)
        } else {
            let any = chosen.iter().any(|(_, whose)| !whose.moved);
            any.then_some(barrier.min(catalog.next()))
        };
        let chosen = chosen.into_iter();
        let chosen = chosen.map(|(name, whose)| (name, whose.owner, whose.order));
        let whole = whole.into_iter();
        let whole = whole.map(|(whole, _)| {
            let parts = whole.parts.into_iter().map(|(part, _, _)| part);
            (whole.name, parts.collect())
        });
        let gone = self.gone_parts(drops, catalog);
        let parts = whole.chain(gone.into_iter().map(|name| (name, Vec::new())));
        Decision {
            goes,
            chosen: if goes { chosen.collect() } else { Vec::new() },
            drops,
            parts: if goes { parts.collect() } else { Vec::new() },
            ends: self.is_last && !goes,
        }
    }

    /// What agents have of files of several parts, by the names of the files.
    fn by_whole(&self) -> BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Whose>> {
        let mut all: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Whose>> = BTreeMap::new();
        for (rank, candidates) in (0u32..).zip(&self.candidates) {
            for candidate in candidates {
                let Some(name) = self.whole_of(&candidate.name) else {
                    continue;
                };
                let whose = Whose {
                    owner: rank,
                    order: candidate.order,
                    moved: candidate.moved,
                    kept: candidate.kept,
                };
                let of_name = all.entry(name.to_vec()).or_default();
                of_name.insert(candidate.name.clone(), whose);
            }
        }
        all
    }

    fn whole_of<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let (whole, _) = split_part(name)?;
        let table = &self.routes.table;
        let found = table.find(whole)?;
        table.is_shared(&found).then_some(whole)
    }

    /// Files of several parts of which nobody writes one, and all are complete as the index has them.
    fn whole_parts(&self, catalog: &Catalog) -> Vec<WholeParts> {
        let of = |(name, known): (Vec<u8>, BTreeMap<Vec<u8>, Whose>)| {
            let all = catalog.parts(&name);
            let part = |(part, place, written): &(Vec<u8>, super::talk::Place, bool)| {
                let whose = known.get(part)?;
                let is_it = (whose.owner, whose.order) == (place.owner, place.order);
                (is_it && !written).then(|| (part.clone(), whose.owner, whose.order))
            };
            let parts: Option<Vec<_>> = all.iter().map(part).collect();
            let parts = parts.filter(|parts| !parts.is_empty())?;
            let is_kept = |(part, _, _): &(Vec<u8>, u32, u64)| {
                known.get(part).is_some_and(|whose| whose.kept)
            };
            let kept = parts.iter().all(is_kept);
            Some(WholeParts { name, parts, kept })
        };
        self.by_whole().into_iter().filter_map(of).collect()
    }

    /// Those of them that can be in a checkpoint, and what is new in each.
    fn choose_parts(&self, barrier: u64, catalog: &Catalog) -> Vec<(WholeParts, Vec<New>)> {
        let known = self.by_whole();
        let mut chosen = Vec::new();
        for whole in self.whole_parts(catalog) {
            let last = whole.parts.iter().map(|(_, _, order)| *order).max();
            let is_sound = self.judged.get(&whole).copied().unwrap_or(false);
            if whole.kept || !is_sound || last.is_none_or(|last| last >= barrier) {
                continue;
            }
            let new = known.get(&whole.name).into_iter().flatten();
            let new = new.filter(|(part, whose)| {
                !whose.kept && whole.parts.iter().any(|(other, _, _)| other == *part)
            });
            let new = new.map(|(part, whose)| (part.clone(), *whose)).collect();
            chosen.push((whole, new));
        }
        chosen
    }

    /// Files of several parts that were removed before `drops`.
    fn gone_parts(&self, drops: Option<u64>, catalog: &mut Catalog) -> Vec<Vec<u8>> {
        let names: BTreeSet<Vec<u8>> = self.by_whole().into_keys().collect();
        catalog.forget_removed(&names);
        let is_gone = |name: &Vec<u8>| {
            let removed = catalog.removed(name).zip(drops);
            let early = removed.is_some_and(|(at, drops)| at < drops || drops == u64::MAX);
            early && catalog.parts(name).is_empty()
        };
        names.into_iter().filter(is_gone).collect()
    }

    /// The first close that is not settled on its node, or that its node has not said yet to know.
    fn barrier(reports: &[Report], catalog: &mut Catalog) -> u64 {
        let firsts = (0u32..).zip(reports).flat_map(|(rank, report)| {
            let untold = catalog.untold(rank, report.seen);
            report.unsettled.into_iter().chain(untold)
        });
        firsts.min().unwrap_or(u64::MAX)
    }

    /// The newest revisions of names that can be in a checkpoint.
    fn choose(&self, barrier: u64) -> Vec<(Vec<u8>, Whose)> {
        let mut newest: BTreeMap<&Vec<u8>, Whose> = BTreeMap::new();
        for (rank, candidates) in (0u32..).zip(&self.candidates) {
            for candidate in candidates {
                if self.whole_of(&candidate.name).is_some() {
                    continue;
                }
                let new = Whose {
                    owner: rank,
                    order: candidate.order,
                    moved: candidate.moved,
                    kept: false,
                };
                let known = newest.entry(&candidate.name).or_insert(new);
                if known.order < new.order {
                    *known = new;
                }
            }
        }
        let newest = newest.into_iter();
        let newest = newest.map(|(name, whose)| (name.clone(), whose.order, whose));
        let whole = whole_sets(&self.routes, newest).into_iter();
        let before = whole.filter(|(_, order, _)| *order < barrier);
        before.map(|(name, _, whose)| (name, whose)).collect()
    }

    /// The checkpoint that was decided is there, or is not.
    pub(super) fn note(&mut self, is_there: bool) {
        self.again = (!is_there).then(|| Instant::now() + AGAIN);
        // At the end none is tried twice.
        self.gave_up |= !is_there && self.is_last;
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::parse;
    use super::super::talk::About;
    use super::*;
    use std::ffi::OsString;
    use std::path::Path;

    const ABOUT: About = About {
        length: 1,
        mode: 0o600,
        modified: (0, 0),
    };

    fn decider(word: &str) -> Decider {
        let routes = parse(&[OsString::from(word)], Path::new("/nowhere"), Some(2));
        Decider::new(routes.expect("routes"))
    }

    fn report(seen: u64, candidates: &[(&str, u64)]) -> Report {
        let candidate = |(name, order): &(&str, u64)| Candidate {
            name: format!("/nowhere/{name}").into_bytes(),
            order: *order,
            moved: false,
            kept: false,
        };
        Report {
            ended: None,
            said: false,
            candidates: Some(candidates.iter().map(candidate).collect()),
            unsettled: None,
            seen,
            gone: false,
        }
    }

    fn names(decision: &Decision) -> Vec<(String, u32)> {
        let text = |name: &[u8]| String::from_utf8_lossy(name).replace("/nowhere/", "");
        let chosen = decision.chosen.iter();
        chosen
            .map(|(name, owner, _)| (text(name), *owner))
            .collect()
    }

    #[test]
    fn a_set_is_taken_when_all_nodes_have_their_files() {
        let (mut decider, mut catalog) = (decider("r.{step}.{rank}"), Catalog::default());
        let first = report(1, &[("r.5.0", 1)]);
        let none = decider.settle(vec![first.clone(), report(0, &[])], &mut catalog);
        assert!(!none.goes);
        let both = vec![first, report(2, &[("r.5.1", 2), ("r.6.1", 3)])];
        let taken = decider.settle(both, &mut catalog);
        let expected = [("r.5.0".to_owned(), 0), ("r.5.1".to_owned(), 1)];
        assert_eq!((taken.goes, names(&taken)), (true, expected.to_vec()));
    }

    #[test]
    fn nothing_is_taken_that_was_closed_after_what_is_not_settled_or_not_told() {
        let (mut decider, mut catalog) = (decider("*"), Catalog::default());
        for name in [&b"/nowhere/data"[..], b"/nowhere/other"] {
            catalog.publish(1, name, ABOUT);
        }
        catalog.publish(0, b"/nowhere/latest", ABOUT);
        // The other node has said nothing of its closes yet.
        let latest = report(3, &[("latest", 3)]);
        let early = vec![latest.clone(), report(0, &[])];
        assert!(!decider.settle(early, &mut catalog).goes);
        let mut unsettled = report(2, &[("data", 1)]);
        unsettled.unsettled = Some(2);
        let some = decider.settle(vec![latest.clone(), unsettled], &mut catalog);
        assert_eq!(names(&some), [("data".to_owned(), 1)]);
        let all = vec![latest, report(2, &[("data", 1), ("other", 2)])];
        assert_eq!(decider.settle(all, &mut catalog).chosen.len(), 3);
    }

    #[test]
    fn of_a_name_on_two_nodes_the_newer_is_taken() {
        let (mut decider, mut catalog) = (decider("*"), Catalog::default());
        let reports = vec![report(9, &[("a", 4)]), report(9, &[("a", 7)])];
        let decision = decider.settle(reports, &mut catalog);
        assert_eq!(names(&decision), [("a".to_owned(), 1)]);
    }

    #[test]
    fn it_ends_when_all_are_over_and_nothing_is_left() {
        let (mut decider, mut catalog) = (decider("*"), Catalog::default());
        let over = |mut report: Report| {
            (report.ended, report.said) = (Some(true), true);
            report
        };
        let one = vec![over(report(9, &[])), report(9, &[])];
        assert!(!decider.settle(one, &mut catalog).ends);
        let mut gone = over(report(9, &[]));
        gone.gone = true;
        let reports = vec![over(report(9, &[])), gone];
        let last = decider.settle(reports, &mut catalog);
        assert!(last.goes && last.drops == Some(u64::MAX) && !last.ends);
        let reports = vec![over(report(9, &[])), over(report(9, &[]))];
        assert!(decider.settle(reports, &mut catalog).ends);
    }

    #[test]
    fn what_is_removed_later_than_something_unsettled_stays() {
        let (mut decider, mut catalog) = (decider("*"), Catalog::default());
        catalog.publish(1, b"/nowhere/next", ABOUT);
        let removed = catalog.lose(0, b"/nowhere/former").1;
        // The other node has not said yet that it knows of its close.
        let early = vec![report(0, &[("other", 0)]), report(0, &[])];
        let decision = decider.settle(early, &mut catalog);
        assert!(decision.drops.is_some_and(|before| removed >= before));
        let told = vec![report(0, &[("other", 0)]), report(1, &[("next", 1)])];
        let decision = decider.settle(told, &mut catalog);
        assert!(decision.drops.is_some_and(|before| removed < before));
        // What is removed from now on stays, too.
        let later = catalog.lose(0, b"/nowhere/other").1;
        assert!(decision.drops.is_some_and(|before| later >= before));
    }

    #[test]
    fn what_failed_is_tried_later_and_at_the_end_once() {
        let (mut decider, mut catalog) = (decider("*"), Catalog::default());
        let mut reports = vec![report(9, &[("a", 1)])];
        assert!(decider.settle(reports.clone(), &mut catalog).goes);
        decider.note(false);
        assert!(!decider.settle(reports.clone(), &mut catalog).goes);
        (reports[0].ended, reports[0].said) = (Some(false), true);
        assert!(decider.settle(reports.clone(), &mut catalog).goes);
        decider.note(false);
        assert!(decider.settle(reports.clone(), &mut catalog).ends);
    }

    #[test]
    fn what_was_said_before_is_not_said_again() {
        let (mut decider, mut catalog) = (decider("r.{step}.{rank}"), Catalog::default());
        let mut before = None;
        let mut first = report(1, &[("r.5.0", 1)]);
        assert!(first.shorten(&mut before));
        assert!(
            !decider
                .settle(vec![first, report(0, &[])], &mut catalog)
                .goes
        );
        let mut same = report(1, &[("r.5.0", 1)]);
        assert!(!same.shorten(&mut before));
        assert_eq!(same.candidates, None);
        let taken = decider.settle(vec![same, report(2, &[("r.5.1", 2)])], &mut catalog);
        assert_eq!(taken.chosen.len(), 2);
        let mut none = report(1, &[]);
        assert!(none.shorten(&mut before));
        let reports = vec![none, report(2, &[("r.5.1", 2)])];
        assert!(!decider.settle(reports, &mut catalog).goes);
    }
}
