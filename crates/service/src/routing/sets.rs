// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: when a file, and a set of files, is complete, and what the next checkpoint has.
//! In from: `names`, `holders`. Out to: `capture`.
//! Invariants: a checkpoint has of each name a complete revision, of a set that is complete; what was completed later than
//! something that is not settled yet is not in it before that is; a name that was removed leaves with the next new
//! revision of any other.

use super::rules::{Export, Routes};
use super::state::{Content, FileId, Revision, State, shown};
use backstay_base::io::lease::has_writer;
use backstay_route::pattern::Field;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A pattern, and what the names of a set share.
type SetKey = (usize, Vec<u8>);
/// A revision of a name.
pub(super) type Named = (Vec<u8>, Revision);

/// A name, the order of what it has, and that.
type Ordered<T> = (Vec<u8>, u64, T);

/// Of revisions with their orders those that are of no set, or of a complete one: then with the order of its last file.
pub(super) fn whole_sets<T>(
    routes: &Routes,
    candidates: impl Iterator<Item = Ordered<T>>,
) -> Vec<Ordered<T>> {
    let mut whole = Vec::new();
    let mut sets: BTreeMap<SetKey, BTreeMap<u64, Ordered<T>>> = BTreeMap::new();
    for (name, order, what) in candidates {
        let Some(found) = routes.table.find(&name) else {
            continue;
        };
        let writers = routes
            .rules
            .get(found.pattern)
            .and_then(|rule| rule.writers);
        let Some(writers) = writers else {
            whole.push((name, order, what));
            continue;
        };
        let rank = routes.table.field(&found, Field::Rank);
        let key = (found.pattern, routes.table.set_of(&found));
        if let Some(rank) = rank.filter(|rank| *rank < u64::from(writers)) {
            sets.entry(key)
                .or_default()
                .insert(rank, (name, order, what));
        }
    }
    for ((pattern, _), set) in sets {
        let writers = routes.rules.get(pattern).and_then(|rule| rule.writers);
        if u64::try_from(set.len()).ok() == writers.map(u64::from) {
            let last = set.values().map(|(_, order, _)| *order).max();
            let of_set = |(name, order, what)| (name, last.unwrap_or(order), what);
            whole.extend(set.into_values().map(of_set));
        }
    }
    whole
}

/// What a checkpoint is made of.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// All names with where their revisions are, in the order of routing.
    pub(super) files: Vec<(Vec<u8>, PathBuf)>,
    /// Of which names these are new.
    new: Vec<Named>,
    /// Names that it has no more.
    gone: Vec<(Vec<u8>, u64)>,
    /// Names of which another node has something newer in it.
    elsewhere: BTreeSet<Vec<u8>>,
    /// Something that shall be in it is not here.
    pub(super) is_broken: bool,
}

/// Names of which other nodes have something newer in a checkpoint, and of files of several parts, which parts it has.
type Others = (BTreeSet<Vec<u8>>, BTreeMap<Vec<u8>, Vec<Vec<u8>>>);

impl State {
    /// A file is complete if nobody has it open; it is linked as the newest revision of its name.
    pub(super) fn complete(&mut self, id: FileId) {
        let Some(file) = self.files.get(&id) else {
            return;
        };
        let (Some(name), Content::Closed(_), Some(order)) =
            (file.name.clone(), file.content, file.order)
        else {
            return;
        };
        let moved = file.moved;
        if !file.holders.is_empty() || file.voided || self.is_draft(&name) {
            return;
        }
        let live = self.live(&name).unwrap_or_default();
        match has_writer(&live) {
            Ok(false) => {}
            // Somebody who told nothing: who was sent a descriptor, or a child that a library made by itself.
            Ok(true) => return self.wait_again(id),
            Err(error) => self.say(format!(
                "whether {} is written by others is not known: {error}",
                shown(&name)
            )),
        }
        if !self.is_told(id) {
            return;
        }
        let revision = match self.link(&name, moved, order) {
            Ok(revision) => revision,
            Err(error) => {
                self.say(format!(
                    "{} is complete, and cannot be kept yet: {error}",
                    shown(&name)
                ));
                return self.wait_again(id);
            }
        };
        if let Some(file) = self.files.get_mut(&id) {
            file.content = Content::Revision;
        }
        let queues = self.rule_of(&name).is_some_and(|rule| rule.in_place);
        let entry = self.names.entry(name).or_default();
        let reported = &self.reported;
        let stays = |revision: &Revision| queues || reported.contains(&revision.id);
        let (stay, former): (Vec<Revision>, Vec<Revision>) =
            entry.waiting.drain(..).partition(stays);
        entry.waiting = stay.into();
        entry.waiting.push_back(revision);
        for revision in &former {
            self.forget(revision);
        }
    }

    fn wait_again(&mut self, id: FileId) {
        let order = self.ordered();
        if let Some(file) = self.files.get_mut(&id) {
            file.content = Content::Closed(Instant::now());
            file.order = order;
        }
    }

    fn rule_of(&self, name: &[u8]) -> Option<&super::rules::Rule> {
        let found = self.found(name)?;
        self.routes.rules.get(found.pattern)
    }

    /// Completes what nobody opened again; how long until the next may be.
    pub(super) fn settle(&mut self) -> Option<Duration> {
        self.look_after_all();
        let mut next = self
            .processes
            .values()
            .any(|process| !process.connected)
            .then_some(Duration::from_millis(50));
        let files: Vec<FileId> = self.files.keys().copied().collect();
        for id in files {
            let Some(file) = self.files.get(&id) else {
                continue;
            };
            let Content::Closed(since) = file.content else {
                continue;
            };
            let wait = if file.settled {
                Duration::ZERO
            } else {
                self.quiet
            };
            let left = wait.saturating_sub(since.elapsed());
            if left.is_zero() {
                self.complete(id);
            } else {
                next = Some(next.map_or(left, |next| next.min(left)));
            }
        }
        // What waits again.
        let waits = |file: &super::state::File| matches!(file.content, Content::Closed(_));
        let any = self
            .files
            .values()
            .filter(|file| waits(file))
            .any(|file| !file.name.as_ref().is_some_and(|name| self.is_draft(name)));
        if any {
            Some(next.unwrap_or(self.quiet))
        } else {
            next
        }
    }

    /// The first close of a file that is not settled: nothing of later is taken.
    pub(super) fn unsettled(&self) -> Option<u64> {
        let of = |file: &super::state::File| match (&file.name, file.content) {
            // One whose order is not known yet is later than none.
            (Some(name), Content::Closed(_)) if !self.is_draft(name) => {
                Some(file.order.unwrap_or(0))
            }
            _ => None,
        };
        self.files.values().filter_map(of).min()
    }

    /// Revisions that can be in a checkpoint, if the sets are complete that they are of.
    pub(super) fn candidates(&self) -> Vec<Named> {
        let candidate = |(name, entry): (&Vec<u8>, &super::state::Entry)| {
            let in_turn = self.rule_of(name)?.in_place;
            let revision = if in_turn {
                entry.waiting.front()
            } else {
                entry.waiting.back()
            };
            Some((name.clone(), revision?.clone()))
        };
        self.names.iter().filter_map(candidate).collect()
    }

    /// Those of complete sets, and before anything that is not settled.
    fn eligible(&self) -> Vec<Named> {
        let candidates = self.candidates().into_iter();
        let whole = whole_sets(
            &self.routes,
            candidates.map(|(name, revision)| (name, revision.order, revision)),
        );
        let barrier = self.unsettled();
        let before = whole
            .into_iter()
            .filter(|(_, order, _)| barrier.is_none_or(|barrier| *order < barrier));
        before.map(|(name, _, revision)| (name, revision)).collect()
    }

    /// What the next checkpoint has, if there is anything new; `with_removals`: or if something was removed.
    pub(super) fn choose(&mut self, with_removals: bool) -> Option<Chosen> {
        let new = self.eligible();
        if new.is_empty() && !(with_removals && self.any_gone()) {
            return None;
        }
        let drops = with_removals || new.iter().any(|(_, revision)| !revision.moved);
        Some(self.chosen(new, drops.then_some(u64::MAX), Others::default()))
    }

    /// Whether the newest checkpoint has names that are no more.
    pub(super) fn any_gone(&self) -> bool {
        let is_gone = |entry: &super::state::Entry| entry.gone.is_some() && entry.kept.is_some();
        self.names.values().any(is_gone)
    }

    /// A checkpoint with what is new; of names `elsewhere` other nodes have something newer. What was gone before
    /// `drops` is not in it.
    pub(super) fn chosen(
        &mut self,
        new: Vec<Named>,
        drops: Option<u64>,
        (elsewhere, parts): Others,
    ) -> Chosen {
        let mut chosen = Chosen {
            new,
            elsewhere,
            ..Chosen::default()
        };
        let by_name: BTreeMap<&[u8], &Revision> = chosen
            .new
            .iter()
            .map(|(name, new)| (&name[..], new))
            .collect();
        let mut places = BTreeMap::new();
        for (name, entry) in &self.names {
            let is_gone = entry.gone.zip(drops);
            let is_gone = is_gone.is_some_and(|(gone, drops)| gone < drops || drops == u64::MAX);
            let leaves = match self.whole_of(name) {
                // All parts of a file leave at once.
                Some(whole) => parts.get(whole).is_some_and(|some| !some.contains(name)),
                None => is_gone || chosen.elsewhere.contains(name),
            };
            if let (true, Some(kept)) = (leaves, &entry.kept) {
                chosen.gone.push((name.clone(), kept.id));
                continue;
            }
            let revision = by_name.get(&name[..]).copied().or(entry.kept.as_ref());
            if let Some(revision) = revision {
                places.insert(name.clone(), self.kept(revision));
            }
        }
        self.put_in_order(&places);
        let files = self
            .order
            .iter()
            .filter_map(|name| Some((name.clone(), places.get(name)?.clone())));
        chosen.files = files.collect();
        let kept = self.names.values().filter_map(|entry| entry.kept.as_ref());
        let all = kept.chain(chosen.new.iter().map(|(_, revision)| revision));
        self.underway = all.map(|revision| revision.id).collect();
        chosen
    }

    /// Names that stay keep their places, so that what did not change is not stored again; new ones take those of old
    /// ones, to which they are most alike.
    fn put_in_order(&mut self, places: &BTreeMap<Vec<u8>, PathBuf>) {
        let known: BTreeSet<&Vec<u8>> = self.order.iter().collect();
        let new: Vec<Vec<u8>> = places
            .keys()
            .filter(|name| !known.contains(name))
            .cloned()
            .collect();
        let mut new = new.into_iter();
        let mut order: Vec<Option<Vec<u8>>> = Vec::new();
        for name in std::mem::take(&mut self.order) {
            order.push(if places.contains_key(&name) {
                Some(name)
            } else {
                new.next()
            });
        }
        order.extend(new.map(Some));
        // A place that nobody takes is taken by the last.
        while let Some(at) = order.iter().position(Option::is_none) {
            let last = order.pop().flatten();
            if at < order.len() {
                order[at] = last;
            }
        }
        self.order = order.into_iter().flatten().collect();
    }

    /// Which files of a checkpoint are to be written to their own paths: of the `count`-th, or at the end.
    pub(super) fn exported(&self, chosen: &Chosen, count: u64) -> Vec<(Vec<u8>, PathBuf)> {
        let is_due = |name: &[u8]| {
            self.rule_of(name).is_some_and(|rule| match rule.export {
                Export::Every(every) => count.is_multiple_of(every),
                Export::Never | Export::Last => false,
            })
        };
        let new = chosen.new.iter().filter(|(name, _)| is_due(name));
        new.map(|(name, revision)| (name.clone(), self.kept(revision)))
            .collect()
    }

    /// Which files of the newest checkpoint are to be written to their own paths at the end.
    pub(super) fn exported_last(&self) -> Vec<(Vec<u8>, PathBuf)> {
        let is_wanted = |name: &[u8]| {
            self.rule_of(name)
                .is_some_and(|rule| rule.export != Export::Never)
        };
        let names = self.names.iter().filter(|(name, _)| is_wanted(name));
        names
            .filter_map(|(name, entry)| Some((name.clone(), self.kept(entry.kept.as_ref()?))))
            .collect()
    }

    /// The checkpoint is over: what was given up meanwhile goes, unless it is what the checkpoint has.
    pub(super) fn is_over(&mut self) {
        self.underway.clear();
        for revision in std::mem::take(&mut self.given_up) {
            let mut kept = self.names.values().filter_map(|entry| entry.kept.as_ref());
            if !kept.any(|kept| kept.id == revision.id) {
                self.forget(&revision);
            }
        }
    }

    /// The checkpoint is there.
    pub(super) fn committed(&mut self, chosen: Chosen) {
        for (name, revision) in chosen.new {
            let Some(entry) = self.names.get_mut(&name) else {
                continue;
            };
            let mut old: Vec<Revision> = Vec::new();
            // One that was dropped meanwhile, since the name was removed, is linked no more.
            if let Some(at) = entry
                .waiting
                .iter()
                .position(|waiting| waiting.id == revision.id)
            {
                old.extend(entry.waiting.drain(..at));
                let newest = entry.waiting.pop_front();
                old.extend(std::mem::replace(&mut entry.kept, newest));
            } else {
                old.extend(entry.kept.replace(revision));
            }
            for revision in &old {
                self.forget(revision);
            }
        }
        for name in chosen.elsewhere {
            let older = self
                .names
                .get_mut(&name)
                .map(|entry| entry.waiting.drain(..).collect::<Vec<_>>());
            for revision in older.unwrap_or_default() {
                self.forget(&revision);
            }
            self.tidy(&name);
        }
        for (name, id) in chosen.gone {
            let kept = self
                .names
                .get_mut(&name)
                .and_then(|entry| entry.kept.take_if(|kept| kept.id == id));
            if let Some(revision) = kept {
                self.forget(&revision);
            }
            self.tidy(&name);
        }
        self.is_over();
    }
}
