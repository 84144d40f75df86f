// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which node has the file of which name: the index, which the first agent has.
//! In from: agents, one call for each open for writing, close, removal and rename. Out to: the same.
//! Invariants: a name is on one node; closes have one order over all nodes: what was closed before something else, as the
//! program can know, has the lower number.

use super::talk::{About, Answer, Place};
use backstay_base::io::parts::split_part;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
struct Entry {
    place: Place,
    /// Somebody has it open for writing.
    written: bool,
    /// Nodes that had it before, and may have it in the newest checkpoint.
    former: Vec<u32>,
}

/// All names.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    entries: BTreeMap<Vec<u8>, Entry>,
    last: u64,
    /// Of files that several nodes write: the opening that is now, or was last.
    ages: BTreeMap<Vec<u8>, u64>,
    /// Those that were removed: when, among all closes.
    removed: BTreeMap<Vec<u8>, u64>,
    /// By agent, orders that were given out and that it did not say yet to have.
    given: BTreeMap<u32, Vec<u64>>,
}

const NEW: About = About {
    length: 0,
    mode: 0o600,
    modified: (0, 0),
};

impl Catalog {
    /// `rank` is about to open a name for writing.
    pub(super) fn claim(&mut self, rank: u32, name: &[u8], flags: u32) -> Answer {
        let flags = OFlags::from_bits_retain(flags);
        let creates = flags.contains(OFlags::CREATE);
        let Some(entry) = self.entries.get_mut(name) else {
            if !creates {
                return Answer::Refused(Errno::NOENT.raw_os_error());
            }
            // Another file than any that had the name before.
            self.last += 1;
            let place = Place {
                owner: rank,
                order: self.last,
                about: NEW,
            };
            let entry = Entry {
                place,
                written: true,
                former: Vec::new(),
            };
            self.entries.insert(name.to_vec(), entry);
            return Answer::Claimed(None);
        };
        if creates && flags.contains(OFlags::EXCL) {
            return Answer::Refused(Errno::EXIST.raw_os_error());
        }
        let owner = entry.place.owner;
        if owner != rank && entry.written {
            return Answer::Refused(Errno::BUSY.raw_os_error());
        }
        entry.written = true;
        if owner == rank {
            return Answer::Claimed(None);
        }
        entry.place.owner = rank;
        if !entry.former.contains(&owner) {
            entry.former.push(owner);
        }
        Answer::Claimed(Some(owner))
    }

    /// Parts of a file that several nodes write, and whether somebody writes them.
    pub(super) fn parts(&self, name: &[u8]) -> Vec<(Vec<u8>, Place, bool)> {
        let from = self.entries.range(name.to_vec()..);
        let begin = from.take_while(|(other, _)| other.starts_with(name));
        let parts = begin.filter(|(other, _)| split_part(other).is_some_and(|(of, _)| of == name));
        parts
            .map(|(part, entry)| (part.clone(), entry.place.clone(), entry.written))
            .collect()
    }

    /// `rank` is about to open its part of a file that several nodes write.
    pub(super) fn claim_part(&mut self, rank: u32, part: &[u8], flags: u32) -> Answer {
        let Some((name, _)) = split_part(part) else {
            return Answer::Refused(Errno::INVAL.raw_os_error());
        };
        let flags = OFlags::from_bits_retain(flags);
        let parts = self.parts(name);
        if parts.is_empty() && !flags.contains(OFlags::CREATE) {
            return Answer::Refused(Errno::NOENT.raw_os_error());
        }
        if !parts.is_empty() && flags.contains(OFlags::CREATE | OFlags::EXCL) {
            return Answer::Refused(Errno::EXIST.raw_os_error());
        }
        self.last += 1;
        let last = self.last;
        let age = self.ages.entry(name.to_vec()).or_insert(0);
        if !parts.iter().any(|(_, _, written)| *written) {
            *age = last.max(*age + 1);
        }
        let age = *age;
        if let Some(entry) = self.entries.get_mut(part) {
            entry.written = true;
            return Answer::ClaimedPart { age, born: None };
        }
        let place = Place {
            owner: rank,
            order: last,
            about: NEW,
        };
        let entry = Entry {
            place,
            written: true,
            former: Vec::new(),
        };
        self.entries.insert(part.to_vec(), entry);
        let born = Some(last);
        Answer::ClaimedPart { age, born }
    }

    /// It is known in which opening a part was written last.
    pub(super) fn note_age(&mut self, part: &[u8], age: u64) {
        if let Some((name, _)) = split_part(part) {
            let known = self.ages.entry(name.to_vec()).or_insert(age);
            *known = age.max(*known);
        }
    }

    /// A file that several nodes write is removed, all parts at once, if nobody writes it: who has them, and the place of
    /// that among all closes.
    pub(super) fn remove_parts(&mut self, name: &[u8]) -> Answer {
        let parts = self.parts(name);
        if parts.is_empty() {
            return Answer::Refused(Errno::NOENT.raw_os_error());
        }
        if parts.iter().any(|(_, _, written)| *written) {
            return Answer::Refused(Errno::BUSY.raw_os_error());
        }
        self.last += 1;
        self.removed.insert(name.to_vec(), self.last);
        let mut owners = Vec::new();
        for (part, place, _) in parts {
            self.entries.remove(&part);
            owners.push((part, place.owner));
        }
        Answer::PartsRemoved(owners, self.last)
    }

    /// When a file that several nodes wrote was removed.
    pub(super) fn removed(&self, name: &[u8]) -> Option<u64> {
        self.removed.get(name).copied()
    }

    /// Nobody has anything of such files any more but of these.
    pub(super) fn forget_removed(&mut self, kept: &BTreeSet<Vec<u8>>) {
        self.removed.retain(|name, _| kept.contains(name));
    }

    /// What was claimed stays where it was.
    pub(super) fn give_back(&mut self, name: &[u8], to: u32) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.place.owner = to;
            entry.written = false;
            entry.former.retain(|rank| *rank != to);
        }
    }

    /// A file is closed: its place among all closes.
    pub(super) fn publish(&mut self, rank: u32, name: &[u8], about: About) -> u64 {
        self.last += 1;
        let order = self.last;
        self.given.entry(rank).or_default().push(order);
        let place = Place {
            owner: rank,
            order,
            about,
        };
        // A part of what was removed meanwhile does not come back by itself.
        let is_removed = split_part(name).is_some_and(|(of, _)| self.removed.contains_key(of));
        if is_removed && !self.entries.contains_key(name) {
            return order;
        }
        let entry = self.entries.entry(name.to_vec());
        let entry = entry.or_insert_with(|| Entry {
            place: place.clone(),
            written: false,
            former: Vec::new(),
        });
        entry.place = place;
        entry.written = false;
        order
    }

    /// `rank` has no file of a name any more: who had it before, and the place of that among all closes.
    pub(super) fn lose(&mut self, rank: u32, name: &[u8]) -> (Vec<u32>, u64) {
        self.last += 1;
        (self.take(rank, name), self.last)
    }

    /// The first place that was not given out.
    pub(super) fn next(&self) -> u64 {
        self.last + 1
    }

    fn take(&mut self, rank: u32, name: &[u8]) -> Vec<u32> {
        if self
            .entries
            .get(name)
            .is_none_or(|entry| entry.place.owner != rank)
        {
            return Vec::new();
        }
        self.entries
            .remove(name)
            .map_or_else(Vec::new, |entry| entry.former)
    }

    pub(super) fn look(&self, name: &[u8]) -> Option<Place> {
        self.entries.get(name).map(|entry| entry.place.clone())
    }

    /// Names directly in a folder.
    pub(super) fn list(&self, folder: &[u8]) -> Vec<(Vec<u8>, Place)> {
        let prefix = [folder.strip_suffix(b"/").unwrap_or(folder), b"/"].concat();
        let below = self.entries.range(prefix.clone()..);
        let below = below.take_while(|(name, _)| name.starts_with(&prefix));
        let here = below.filter(|(name, _)| !name[prefix.len()..].contains(&b'/'));
        here.map(|(name, entry)| (name.clone(), entry.place.clone()))
            .collect()
    }

    /// The first close of `rank` of which it did not know when it had said all up to `seen`.
    pub(super) fn untold(&mut self, rank: u32, seen: u64) -> Option<u64> {
        let given = self.given.entry(rank).or_default();
        given.retain(|order| *order > seen);
        given.iter().copied().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATE: u32 = 0o100 | 0o1;
    const ABOUT: About = About {
        length: 5,
        mode: 0o644,
        modified: (7, 8),
    };

    fn refused(error: Errno) -> Answer {
        Answer::Refused(error.raw_os_error())
    }

    #[test]
    fn a_name_is_on_one_node_and_one_node_writes_it() {
        let mut catalog = Catalog::default();
        assert_eq!(catalog.claim(1, b"/a/b", 0o1), refused(Errno::NOENT));
        assert_eq!(catalog.claim(1, b"/a/b", CREATE), Answer::Claimed(None));
        assert_eq!(catalog.claim(2, b"/a/b", CREATE), refused(Errno::BUSY));
        assert_eq!(catalog.publish(1, b"/a/b", ABOUT), 2);
        assert_eq!(
            catalog.claim(2, b"/a/b", CREATE | 0o200),
            refused(Errno::EXIST)
        );
        assert_eq!(catalog.claim(2, b"/a/b", CREATE), Answer::Claimed(Some(1)));
        catalog.give_back(b"/a/b", 1);
        assert_eq!(catalog.look(b"/a/b").map(|place| place.owner), Some(1));
        assert_eq!(catalog.claim(2, b"/a/b", 0o2), Answer::Claimed(Some(1)));
        assert_eq!(catalog.publish(2, b"/a/b", ABOUT), 3);
        // Who does not have it takes nothing away.
        assert_eq!(catalog.lose(1, b"/a/b"), (Vec::new(), 4));
        assert_eq!(catalog.lose(2, b"/a/b"), (vec![1], 5));
        assert_eq!(catalog.look(b"/a/b"), None);
    }

    #[test]
    fn a_folder_has_what_is_directly_in_it() {
        let mut catalog = Catalog::default();
        for name in [&b"/a/b"[..], b"/a/b/c", b"/a/d", b"/ab", b"/a.b"] {
            catalog.publish(0, name, ABOUT);
        }
        let names = |folder: &[u8]| -> Vec<Vec<u8>> {
            catalog
                .list(folder)
                .into_iter()
                .map(|(name, _)| name)
                .collect()
        };
        assert_eq!(names(b"/a"), [b"/a/b".to_vec(), b"/a/d".to_vec()]);
        assert_eq!(names(b"/"), [b"/a.b".to_vec(), b"/ab".to_vec()]);
    }

    #[test]
    fn what_an_agent_does_not_know_of_its_closes_is_remembered() {
        let mut catalog = Catalog::default();
        for name in [&b"/a"[..], b"/b", b"/c"] {
            catalog.publish(1, name, ABOUT);
        }
        assert_eq!(catalog.untold(1, 0), Some(1));
        assert_eq!(catalog.untold(1, 2), Some(3));
        assert_eq!(catalog.untold(1, 3), None);
        assert_eq!(catalog.untold(2, 0), None);
    }
}
