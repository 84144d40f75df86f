// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the agents of several nodes take a checkpoint together: what is in it is decided by the first, round by round.
//! In from: `state` (what is complete here). Out to: the session, on all agents alike.
//! Invariants: all agents make the same collective calls; a set is in a checkpoint when all nodes have its files; nothing is
//! in one that was closed later than what is not settled on any node.

use super::catalog::Catalog;
use super::rules::Routes;
use super::sets::{Chosen, Named, whole_sets};
use super::state::State;
use super::talk::{decode, encode};
use super::{AGAIN, LAST_WORDS};
use backstay_base::error::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// A revision that could be in the next checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Candidate {
    name: Vec<u8>,
    order: u64,
    moved: bool,
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
        });
        Report {
            ended,
            said: self.processes.is_empty(),
            candidates: Some(candidates.collect()),
            unsettled: self.unsettled(),
            seen: self.seen,
            gone: self.any_gone(),
        }
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
        let elsewhere = elsewhere.into_iter().map(|(name, _, _)| name.clone());
        self.chosen(new, decision.drops, elsewhere.collect())
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
        }
    }

    /// What all agents said, by rank, and what all do.
    pub(super) fn decide(&mut self, parts: &[Vec<u8>], catalog: &mut Catalog) -> Result<Vec<u8>> {
        let reports = parts.iter().map(|part| Ok(decode::<Report>(part)?.0));
        let reports: Result<Vec<Report>> = reports.collect();
        encode(&self.settle(reports?, catalog))
    }

    fn settle(&mut self, mut reports: Vec<Report>, catalog: &mut Catalog) -> Decision {
        self.candidates.resize_with(reports.len(), Vec::new);
        for (known, report) in self.candidates.iter_mut().zip(&mut reports) {
            if let Some(new) = report.candidates.take() {
                *known = new;
            }
        }
        let reports = &reports[..];
        let all = |says: fn(&Report) -> bool| reports.iter().all(says);
        if all(|report| report.ended.is_some()) {
            let over = *self.over.get_or_insert_with(Instant::now);
            self.is_last |= all(|report| report.said) || over.elapsed() >= LAST_WORDS;
        }
        let with_removals = self.is_last && all(|report| report.ended == Some(true));
        let waits = self.again.is_some_and(|again| Instant::now() < again) && !self.is_last;
        let barrier = Self::barrier(reports, catalog);
        let chosen = self.choose(barrier);
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
        Decision {
            goes,
            chosen: if goes { chosen.collect() } else { Vec::new() },
            drops,
            ends: self.is_last && !goes,
        }
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
                let new = Whose {
                    owner: rank,
                    order: candidate.order,
                    moved: candidate.moved,
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
