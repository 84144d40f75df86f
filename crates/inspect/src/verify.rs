// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: reads every byte that a store's revisions refer to, each shared one once, and names
//! what is damaged and every checkpoint that it concerns.
//! In: an opened store. Out: findings.
//! Invariants: a finding is made only for a checkpoint that is retained after the bad bytes were
//! read; what was recycled meanwhile is superseded, not damaged.

mod archive;
mod head;

pub use archive::VerifiedArchive;

use super::open::{OpenStore, Retained};
use super::stripes::VerifiedStripes;
use super::{Archive, Stores, Wanted};
use archive::Segments;
use backstay_base::error::{Error, Result};
use backstay_format::limits::{FANOUT, INTERNAL_BLOCK_BYTES};
use backstay_format::width::to_u64;
use backstay_format::{BlockRef, CheckpointId, FormatError, RankRoot, SegmentId, StreamRoot};
use backstay_store::compare::{Node, Side, Visitor, node_at, walk_changed};
use backstay_store::reader::StoreReader;
use backstay_store::revision::{ReadPart, read_part};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// One thing that is wrong with a store.
#[derive(Debug, Clone, Default)]
pub struct Finding {
    /// What is damaged: a block, a page, a table, a copy of a superblock, ...
    pub structure: &'static str,
    /// Every retained checkpoint that refers to it; none if a copy is left that is good.
    pub checkpoints: Vec<CheckpointId>,
    /// The rank whose it is.
    pub rank: Option<u32>,
    /// The variable it belongs to.
    pub variable: Option<String>,
    /// The first block of the variable that cannot be had.
    pub block: Option<u64>,
    /// How many blocks cannot be had: more than one below a damaged page.
    pub blocks: u64,
    /// The file, if it is another than the store's own.
    pub file: Option<PathBuf>,
    /// The archived segment.
    pub segment: Option<u64>,
    /// Where it stands in the file.
    pub file_offset: Option<u64>,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
    /// The whole in words.
    pub text: String,
}

/// What verifying one store found.
#[derive(Debug, Clone, Default)]
pub struct VerifiedStore {
    /// Which store, as an index into [`Stores::stores`].
    pub store: usize,
    /// The checkpoints that were verified, oldest first.
    pub checkpoints: Vec<CheckpointId>,
    /// Those of them that the job superseded meanwhile.
    pub superseded: Vec<CheckpointId>,
    /// Blocks read, each shared one once.
    pub blocks: u64,
    /// Tree pages, tables and roots read.
    pub pages: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// What it holds of its group's stripes; nothing is read of them for one checkpoint only.
    pub stripes: VerifiedStripes,
}

impl Stores {
    /// Verifies every store: all its revisions, or those that `wanted` names. `progress` is told of
    /// bytes read.
    pub fn verify(
        &self,
        wanted: Option<Wanted>,
        progress: &mut dyn FnMut(u64),
    ) -> Vec<VerifiedStore> {
        let mut verified = Vec::with_capacity(self.stores.len());
        for (number, store) in self.stores.iter().enumerate() {
            let mut verifier = Verifier::new(self, store, wanted, &mut *progress);
            verifier.done.store = number;
            if let Some(device) = store.archive_device() {
                verifier.archive_head(device);
                if let (None, Some(segments)) = (wanted, &mut verifier.segments_read) {
                    segments.read_all(&mut *verifier.progress);
                }
                verifier.revisions();
            } else {
                verifier.head();
                verifier.revisions();
                verifier.records();
            }
            if let Some(segments) = verifier.segments_read.take() {
                verifier
                    .done
                    .findings
                    .extend(segments.findings(store.path()));
            }
            verifier.done.superseded = verifier.gone.into_iter().collect();
            let mut done = verifier.done;
            if wanted.is_none() {
                done.stripes = self.verify_stripes(number, &mut *progress);
            }
            verified.push(done);
        }
        verified
    }
}

/// Whose bytes are being read.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Ranks,
    RankRoot,
    Descriptors,
    Table,
    Variable,
}

/// Where a walk is.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    /// Index of the revision.
    revision: usize,
    kind: Kind,
    rank: Option<u32>,
    variable: Option<&'a str>,
    root: &'a StreamRoot,
}

/// One rank's part in one revision, as far as it can be read.
#[derive(Debug)]
struct KnownPart {
    entry: BlockRef,
    root: Result<RankRoot>,
    part: Result<ReadPart>,
}

/// The parts of one rank, by revision.
type KnownParts = [Option<KnownPart>];

struct Verifier<'a, 'p> {
    archives: &'a [Archive],
    store: &'a OpenStore,
    /// Of an archive store: its segments, each read once.
    segments_read: Option<Segments>,
    /// Progress is told by block, not by segment.
    by_block: bool,
    reader: &'a StoreReader,
    /// All revisions of the store, oldest first.
    all: &'a [Retained],
    /// Which of them are to be verified.
    chosen: Vec<bool>,
    gone: BTreeSet<CheckpointId>,
    segments: BTreeSet<SegmentId>,
    segment_is_missing: bool,
    buffer: Vec<u8>,
    done: VerifiedStore,
    progress: &'p mut dyn FnMut(u64),
}

impl<'a, 'p> Verifier<'a, 'p> {
    fn new(
        stores: &'a Stores,
        store: &'a OpenStore,
        wanted: Option<Wanted>,
        progress: &'p mut dyn FnMut(u64),
    ) -> Self {
        let all = store.retained();
        let ids = all.iter().map(|retained| retained.entry.checkpoint);
        let chosen: Vec<bool> = ids
            .clone()
            .map(|id| wanted.is_none_or(|wanted| wanted.matches(id)))
            .collect();
        let checkpoints = ids
            .zip(&chosen)
            .filter(|(_, chosen)| **chosen)
            .map(|(id, _)| id);
        Self {
            archives: stores.archives(),
            segments_read: store.archive_device().map(Segments::new),
            by_block: wanted.is_some() || store.archive().is_none(),
            store,
            reader: store.reader(),
            all,
            done: VerifiedStore {
                checkpoints: checkpoints.collect(),
                ..VerifiedStore::default()
            },
            chosen,
            gone: BTreeSet::new(),
            segments: BTreeSet::new(),
            segment_is_missing: false,
            buffer: Vec::new(),
            progress,
        }
    }

    fn revisions(&mut self) {
        let mut older: Option<&Retained> = None;
        let mut ranks = BTreeSet::new();
        for (revision, retained) in self.all.iter().enumerate() {
            if !self.chosen[revision] {
                continue;
            }
            let root = &retained.entry.ranks;
            let place = Place {
                revision,
                kind: Kind::Ranks,
                rank: None,
                variable: None,
                root,
            };
            let sound = self.stream(&[], place, older.map(|older| &older.entry.ranks));
            // What it shares with an older table that is damaged was reported with that one.
            let told = older.is_some_and(|older| older.ranks.is_err());
            older = Some(retained);
            match &retained.ranks {
                Ok(entries) => ranks.extend(entries.iter().map(|entry| entry.rank)),
                // Its bytes are what was written, and yet it is no table.
                Err(error) if sound && !told => self.damage(&[], place, &top(root), error),
                Err(_) => {}
            }
        }
        for rank in ranks {
            self.rank(rank);
        }
    }

    fn rank(&mut self, rank: u32) {
        let reader = self.reader;
        let known = |retained: &Retained| {
            let ranks = retained.ranks.as_ref().ok()?;
            let entry = ranks.iter().find(|entry| entry.rank == rank)?.root;
            Some(KnownPart {
                entry,
                root: read_root(reader, &entry),
                part: read_part(reader, &entry),
            })
        };
        let parts: Vec<Option<KnownPart>> = self.all.iter().map(known).collect();
        let mut older: Option<&KnownPart> = None;
        for (revision, known) in parts.iter().enumerate() {
            let Some(known) = known.as_ref().filter(|_| self.chosen[revision]) else {
                continue;
            };
            if older.is_none_or(|older| older.entry != known.entry) {
                let object = object(&known.entry);
                let place = Place {
                    revision,
                    kind: Kind::RankRoot,
                    rank: Some(rank),
                    variable: None,
                    root: &object,
                };
                self.part(&parts, place, known, older);
            }
            older = Some(known);
        }
    }

    /// Verifies what one revision does not share with the one before.
    fn part(
        &mut self,
        parts: &KnownParts,
        place: Place<'_>,
        known: &KnownPart,
        older: Option<&KnownPart>,
    ) {
        let sound = self.stream(parts, place, None);
        let root = match &known.root {
            Ok(root) => root,
            Err(error) if sound => return self.damage(parts, place, &top(place.root), error),
            Err(_) => return,
        };
        let before = older.and_then(|older| older.root.as_ref().ok());
        let streams = [
            (
                Kind::Descriptors,
                &root.descriptors,
                before.map(|root| &root.descriptors),
            ),
            (Kind::Table, &root.table, before.map(|root| &root.table)),
        ];
        let mut sound = true;
        for (kind, root, before) in streams {
            sound &= self.stream(
                parts,
                Place {
                    kind,
                    root,
                    ..place
                },
                before,
            );
        }
        let world_size = self.all[place.revision].entry.world_size;
        if Some(root.rank) != place.rank || root.world_size != world_size {
            let expected = format!("rank {:?} of {world_size}", place.rank);
            let found = format!("rank {} of {}", root.rank, root.world_size);
            let error = FormatError::new("rank root", "rank", 16, expected, found);
            let error = Error::malformed(self.reader.device().name(), error);
            self.damage(parts, place, &top(place.root), &error);
        }
        // What it shares with older tables that are damaged was reported with those.
        let told = older.is_some_and(|older| older.part.is_err());
        let part = match &known.part {
            Ok(part) => part,
            Err(error) if sound && !told => {
                return self.damage(parts, place, &top(place.root), error);
            }
            Err(_) => return,
        };
        let before = older.and_then(|older| older.part.as_ref().ok());
        for (descriptor, root) in part.descriptors.iter().zip(&part.streams) {
            let variable = Some(&*descriptor.name);
            let earlier = before.and_then(|part| part.find(&descriptor.name));
            let place = Place {
                kind: Kind::Variable,
                variable,
                root,
                ..place
            };
            self.stream(parts, place, earlier.map(|(_, root)| root));
        }
    }

    /// Verifies what a stream does not share with an older one; false if something is wrong.
    fn stream(&mut self, parts: &KnownParts, place: Place<'_>, older: Option<&StreamRoot>) -> bool {
        let reader = self.reader;
        let side = |root| Side { reader, root };
        let mut walk = Walk {
            verifier: self,
            parts,
            place,
            sound: true,
        };
        walk_changed(side(place.root), older.map(side), &mut walk);
        walk.sound
    }

    /// Takes note of bytes that are not what they should be, unless they were recycled meanwhile.
    fn damage(&mut self, parts: &KnownParts, place: Place<'_>, node: &Node, error: &Error) {
        let checkpoints = self.concerned(parts, place, node);
        if checkpoints.is_empty() {
            return;
        }
        let segment = node.block.address.segment();
        if let Some(segments) = &mut self.segments_read
            && segments.is_bad(segment)
        {
            segments.needed(segment, checkpoints, place.rank, place.variable);
            return;
        }
        let cause = std::error::Error::source(error).and_then(|e| e.downcast_ref::<FormatError>());
        self.segment_is_missing |= cause.is_some_and(|cause| cause.structure == "segment");
        let of_variable = matches!(place.kind, Kind::Variable);
        let (first, count) = blocks_below(place.root, node);
        self.done.findings.push(Finding {
            structure: place.kind.structure(node.level),
            checkpoints,
            rank: place.rank,
            variable: place.variable.map(str::to_owned),
            block: of_variable.then_some(first),
            blocks: if of_variable { count } else { 0 },
            file: None,
            segment: self.segments_read.is_some().then_some(segment.0),
            file_offset: match self.segments_read {
                Some(_) => None,
                None => self.reader.offset_of(node.block.address, node.length).ok(),
            },
            expected: cause
                .map(|cause| cause.expected.clone())
                .unwrap_or_default(),
            found: cause.map(|cause| cause.found.clone()).unwrap_or_default(),
            text: error.to_string(),
        });
    }

    /// Every checkpoint still retained that has the same page or block at the same place.
    fn concerned(
        &mut self,
        parts: &KnownParts,
        place: Place<'_>,
        node: &Node,
    ) -> Vec<CheckpointId> {
        let now = self.store.retained_now().ok();
        let mut concerned = Vec::new();
        for (revision, retained) in self.all.iter().enumerate() {
            let id = retained.entry.checkpoint;
            if now.as_ref().is_some_and(|now| !now.contains(&id)) {
                self.gone.extend(self.chosen[revision].then_some(id));
                continue;
            }
            if revision == place.revision || self.shares(parts, revision, place, node) {
                concerned.push(id);
            }
        }
        concerned
    }

    fn shares(&self, parts: &KnownParts, revision: usize, place: Place<'_>, node: &Node) -> bool {
        let known = parts.get(revision).and_then(Option::as_ref);
        let root = || known.and_then(|known| known.root.as_ref().ok());
        let stream = match place.kind {
            Kind::Ranks => Some(&self.all[revision].entry.ranks),
            Kind::RankRoot => return known.is_some_and(|known| known.entry == node.block),
            Kind::Descriptors => root().map(|root| &root.descriptors),
            Kind::Table => root().map(|root| &root.table),
            Kind::Variable => {
                let part = known.and_then(|known| known.part.as_ref().ok());
                let found = part
                    .zip(place.variable)
                    .and_then(|(part, name)| part.find(name));
                found.map(|(_, stream)| stream)
            }
        };
        let at = |stream| node_at(self.reader, stream, node.level, node.index);
        stream.is_some_and(|stream| matches!(at(stream), Ok(Some(block)) if block == node.block))
    }
}

impl Kind {
    fn structure(self, level: u8) -> &'static str {
        match self {
            _ if level > 0 => "tree page",
            Self::Ranks => "table of ranks",
            Self::RankRoot => "rank root",
            Self::Descriptors => "descriptors",
            Self::Table => "table of variables",
            Self::Variable => "block",
        }
    }
}

/// A walk over what a stream does not share.
struct Walk<'w, 'a, 'p> {
    verifier: &'w mut Verifier<'a, 'p>,
    parts: &'w KnownParts,
    place: Place<'w>,
    sound: bool,
}

impl Walk<'_, '_, '_> {
    fn count(&mut self, node: &Node) {
        self.verifier.segments.insert(node.block.address.segment());
        self.verifier.done.bytes += to_u64(node.length);
        if self.verifier.by_block {
            (self.verifier.progress)(to_u64(node.length));
        }
    }
}

impl Visitor for Walk<'_, '_, '_> {
    fn page(&mut self, node: &Node) {
        self.verifier.done.pages += 1;
        self.count(node);
    }

    fn block(&mut self, node: &Node, _older: Option<&BlockRef>) {
        if matches!(self.place.kind, Kind::Variable) {
            self.verifier.done.blocks += 1;
        } else {
            self.verifier.done.pages += 1;
        }
        self.count(node);
        let segments = self.verifier.segments_read.as_mut();
        if segments.and_then(|segments| segments.holds(node)) == Some(true) {
            return;
        }
        let what = self.place.kind.structure(0);
        let mut buffer = std::mem::take(&mut self.verifier.buffer);
        buffer.resize(node.length, 0);
        let read = self.verifier.reader.read(&node.block, &mut buffer, what);
        self.verifier.buffer = buffer;
        if let Err(error) = read {
            self.damaged(node, error);
        }
    }

    fn damaged(&mut self, node: &Node, error: Error) {
        self.sound = false;
        self.verifier.segments.insert(node.block.address.segment());
        self.verifier.damage(self.parts, self.place, node, &error);
    }
}

/// The first block below a node, and how many there are.
fn blocks_below(root: &StreamRoot, node: &Node) -> (u64, u64) {
    let (mut first, mut span) = (to_u64(node.index), 1);
    for _ in 0..node.level {
        first *= to_u64(FANOUT);
        span *= to_u64(FANOUT);
    }
    (
        first,
        to_u64(root.block_count()).saturating_sub(first).min(span),
    )
}

/// The topmost node of a stream.
fn top(root: &StreamRoot) -> Node {
    let entries = if root.height > 0 {
        root.page_entries(root.height, 0)
    } else {
        0
    };
    let page = backstay_format::Page::bytes_for(entries);
    let length = if root.height > 0 {
        page
    } else {
        root.block_length(0)
    };
    Node {
        level: root.height,
        index: 0,
        block: root.top,
        length,
    }
}

/// A rank root as a stream of one block.
fn object(entry: &BlockRef) -> StreamRoot {
    StreamRoot {
        length_bytes: to_u64(RankRoot::BYTES),
        top: *entry,
        ..StreamRoot::empty(INTERNAL_BLOCK_BYTES)
    }
}

fn read_root(reader: &StoreReader, entry: &BlockRef) -> Result<RankRoot> {
    let mut bytes = [0; RankRoot::BYTES];
    reader.read(entry, &mut bytes, "rank root")?;
    RankRoot::decode(&bytes).map_err(|error| {
        Error::malformed(
            format!("{}: {}", reader.device().name(), entry.address),
            error,
        )
    })
}
