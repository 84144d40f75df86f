// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the agent knows: names, the files that they have now, who writes these, and revisions that are complete.
//! In from: `serve` (what processes say), `capture`. Out to: `names`, `sets`, `holders`, which change it.
//! Invariants: a revision is a link to a file that nobody can write any more; a name's file is its newest revision, or
//! another file; a file is in the memory of the node under its name's place, or has no name.

use super::clock::Clock;
use super::part::{Notes, Part};
use super::rules::Routes;
use backstay_base::notice;
use backstay_route::table::{Found, Table};
use backstay_route::{KEPT, LIVE, PARTS};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs;
use std::io::Result;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A file in the memory of the node.
pub(super) type FileId = u64;
/// A connection of a process.
pub(super) type ProcessId = u64;

/// Who has a file open for writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) process: ProcessId,
    /// Its own number for the file.
    pub(super) id: u32,
    /// It did not open it: it is a child of who did.
    pub(super) inherited: bool,
}

impl Holder {
    /// The process that opened it.
    pub(super) fn opened(process: ProcessId, id: u32) -> Self {
        Self {
            process,
            id,
            inherited: false,
        }
    }
}

/// What a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Not all of it: it is written, or who wrote it died.
    Unfinished,
    /// All of it, since then, if nobody opens it again at once.
    Closed(Instant),
    /// The newest revision of its name.
    Revision,
}

#[derive(Debug)]
pub(super) struct File {
    /// Nothing where it was removed, or another took its name, while it was open.
    pub(super) name: Option<Vec<u8>>,
    pub(super) holders: Vec<Holder>,
    pub(super) content: Content,
    /// Somebody died who wrote it: no close completes it before it is written anew.
    pub(super) voided: bool,
    /// It is complete without a wait: it was renamed to its name, or who closed it ended well.
    pub(super) settled: bool,
    /// Who closed it last.
    pub(super) closed_by: Option<ProcessId>,
    /// Its last close among all closes; nothing where that is not known yet: on several nodes the index says it.
    pub(super) order: Option<u64>,
    /// What it has was a revision of another name.
    pub(super) moved: bool,
    /// It is this node's part of a file that several nodes write.
    pub(super) part: Option<Part>,
}

/// A complete revision of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Revision {
    pub(super) id: u64,
    /// The close that completed it, among all closes.
    pub(super) order: u64,
    /// It was one of another name before.
    pub(super) moved: bool,
}

#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) live: Option<FileId>,
    /// Complete, and in no checkpoint yet; the newest last.
    pub(super) waiting: VecDeque<Revision>,
    /// What the newest checkpoint has.
    pub(super) kept: Option<Revision>,
    /// The program removed the name, or renamed it: when, among all closes. Not known yet is later than all.
    pub(super) gone: Option<u64>,
}

/// A process that told something.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) connected: bool,
    /// It said that it ends, with this status.
    pub(super) leaving: Option<i32>,
    /// And that all is in its files.
    pub(super) bye: bool,
}

/// All of it.
#[derive(Debug)]
pub(super) struct State {
    pub(super) folder: PathBuf,
    pub(super) routes: Routes,
    pub(super) quiet: Duration,
    pub(super) names: BTreeMap<Vec<u8>, Entry>,
    pub(super) files: BTreeMap<FileId, File>,
    pub(super) processes: BTreeMap<ProcessId, Process>,
    /// Names in the order in which they are routed: those that stay keep their places.
    pub(super) order: Vec<Vec<u8>>,
    /// Revisions that a checkpoint is taken of now, and those of them that were given up meanwhile.
    pub(super) underway: BTreeSet<u64>,
    pub(super) given_up: Vec<Revision>,
    /// There are other nodes, and the index.
    pub(super) spread: bool,
    /// Which of them this is: the number of its parts.
    pub(super) rank: u32,
    /// What its processes note of what they write of parts, and when that was.
    pub(super) notes: BTreeMap<ProcessId, Notes>,
    pub(super) clock: Clock,
    /// Revisions that the last round was told of.
    pub(super) reported: BTreeSet<u64>,
    /// The latest close of this node that it knows the order of.
    pub(super) seen: u64,
    last: u64,
    said: Vec<String>,
}

impl State {
    pub(super) fn new(folder: PathBuf, routes: Routes, quiet: Duration) -> Self {
        Self {
            folder,
            routes,
            quiet,
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            processes: BTreeMap::new(),
            order: Vec::new(),
            underway: BTreeSet::new(),
            given_up: Vec::new(),
            spread: false,
            rank: 0,
            notes: BTreeMap::new(),
            clock: Clock::default(),
            reported: BTreeSet::new(),
            seen: 0,
            last: 0,
            said: Vec::new(),
        }
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The place of what is closed now among all closes, where nobody else has to say it.
    pub(super) fn ordered(&mut self) -> Option<u64> {
        (!self.spread).then(|| self.draw())
    }

    pub(super) fn table(&self) -> &Table {
        &self.routes.table
    }

    /// The pattern of a name; of a part, that of the whole file.
    pub(super) fn found<'a>(&self, name: &'a [u8]) -> Option<Found<'a>> {
        self.routes.table.find(self.whole_of(name).unwrap_or(name))
    }

    pub(super) fn is_draft(&self, name: &[u8]) -> bool {
        let found = self
            .found(name)
            .and_then(|found| self.routes.rules.get(found.pattern));
        found.is_some_and(|rule| rule.draft)
    }

    /// The place of a name.
    pub(super) fn live(&self, name: &[u8]) -> Option<PathBuf> {
        let found = self.found(name)?;
        let Some(whole) = self.whole_of(name) else {
            let folder = self.folder.join(LIVE).join(found.folder.to_string());
            return Some(folder.join(OsStr::from_bytes(found.rest)));
        };
        let rest = [found.rest, &name[whole.len()..]].concat();
        let folder = self.folder.join(PARTS).join(found.folder.to_string());
        Some(folder.join(OsStr::from_bytes(&rest)))
    }

    pub(super) fn kept(&self, revision: &Revision) -> PathBuf {
        self.folder.join(KEPT).join(revision.id.to_string())
    }

    /// Nobody needs a revision any more.
    pub(super) fn forget(&mut self, revision: &Revision) {
        if self.underway.contains(&revision.id) {
            self.given_up.push(revision.clone());
            return;
        }
        // What cannot be removed goes with the folder.
        drop(fs::remove_file(self.kept(revision)));
    }

    /// A new file of a name.
    pub(super) fn add(&mut self, name: &[u8], content: Content) -> FileId {
        let id = self.draw();
        let file = File {
            name: Some(name.to_vec()),
            holders: Vec::new(),
            content,
            voided: false,
            settled: false,
            closed_by: None,
            order: self.ordered(),
            moved: false,
            part: None,
        };
        self.files.insert(id, file);
        let entry = self.names.entry(name.to_vec()).or_default();
        entry.live = Some(id);
        entry.gone = None;
        id
    }

    /// A file has its name no more; it is kept as long as somebody has it open.
    pub(super) fn unname(&mut self, id: FileId) {
        if let Some(file) = self.files.get_mut(&id) {
            file.name = None;
            if file.holders.is_empty() {
                self.files.remove(&id);
            }
        }
    }

    /// Links the file of a name as a revision.
    pub(super) fn link(&mut self, name: &[u8], moved: bool, order: u64) -> Result<Revision> {
        let id = self.draw();
        let revision = Revision { id, order, moved };
        let live = self.live(name).unwrap_or_default();
        fs::hard_link(live, self.kept(&revision))?;
        Ok(revision)
    }

    /// Drops a name of which nothing is left.
    pub(super) fn tidy(&mut self, name: &[u8]) {
        let is_empty = |entry: &Entry| {
            entry.live.is_none() && entry.waiting.is_empty() && entry.kept.is_none()
        };
        if self.names.get(name).is_some_and(is_empty) {
            self.names.remove(name);
        }
    }

    /// The file of a name is a part of a whole file.
    pub(super) fn is_part(&self, name: &[u8]) -> bool {
        self.whole_of(name).is_some()
    }

    /// Says something once.
    pub(super) fn say(&mut self, text: String) {
        if !self.said.contains(&text) {
            notice::warn(&text);
            self.said.push(text);
        }
    }
}

/// A name for people.
pub(super) fn shown(name: &[u8]) -> String {
    Path::new(OsStr::from_bytes(name))
        .display()
        .to_string()
        .chars()
        .take(255)
        .collect()
}
