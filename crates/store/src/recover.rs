// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: derives from the roots what is retained and which space it uses.
//! In: a root. Out: for each owner, its `Space`; for each revision, whether its parts are readable.
//! Invariants: trusts only what its digest confirms; a damaged part makes its revision unusable for
//! its rank, and never another one's.

use super::control::Owner;
use super::reader::StoreReader;
use super::reserve::Reserve;
use super::revision::{ReadPart, read_part, read_ranks};
use super::space::Space;
use super::tree::walk;
use backstay_base::error::{Error, Result};
use backstay_format::{BlockRef, CheckpointId, RankEntry, RankRoot, RevisionEntry, RootSlot};
use backstay_format::{SegmentId, StreamRoot};
use std::collections::BTreeSet;

/// A revision as one rank finds it.
#[derive(Debug)]
pub struct FoundRevision {
    /// What the root says of it.
    pub revision: RevisionEntry,
    /// The ranks it holds, or what is wrong with their table.
    pub ranks: Result<Vec<RankEntry>>,
    /// Where this rank's part is, if it is there and its tables and pages are good.
    pub part: Option<Result<BlockRef>>,
    /// What else of it could not be read: parts of ranks that are elsewhere, so that the space it uses is not
    /// known in full; or what parity has of its damage.
    pub unread: Option<Error>,
}

impl FoundRevision {
    /// Which checkpoint.
    pub fn id(&self) -> CheckpointId {
        self.revision.checkpoint
    }
    /// Why something of it could not be read, where nothing proves that it is lost.
    pub fn unread(&self) -> Option<&Error> {
        let part = self.part.as_ref().and_then(|part| part.as_ref().err());
        let wrong = self.unread.as_ref().or(self.ranks.as_ref().err()).or(part);
        wrong.filter(|error| error.kind().leaves_open())
    }
    /// Whether the table lists every rank of the job that took it.
    pub fn holds_all_ranks(&self) -> bool {
        let all = backstay_format::width::index(self.revision.world_size);
        self.ranks.as_ref().is_ok_and(|ranks| ranks.len() == all)
    }
}

/// Every block and page of one rank's part, with its length; errors go to `damaged`.
pub fn walk_part(
    reader: &StoreReader,
    entry: &BlockRef,
    visit: &mut dyn FnMut(&BlockRef, usize),
    damaged: &mut dyn FnMut(&BlockRef, Error),
) -> Option<ReadPart> {
    let part = match read_part(reader, entry) {
        Ok(part) => part,
        Err(error) => {
            damaged(entry, error);
            return None;
        }
    };
    visit(entry, RankRoot::BYTES);
    for stream in [&part.root.descriptors, &part.root.table]
        .into_iter()
        .chain(&part.streams)
    {
        walk_stream(reader, stream, visit, damaged);
    }
    Some(part)
}

fn walk_stream(
    reader: &StoreReader,
    stream: &StreamRoot,
    visit: &mut dyn FnMut(&BlockRef, usize),
    damaged: &mut dyn FnMut(&BlockRef, Error),
) {
    walk(
        reader,
        stream,
        &mut |_, block, length| visit(block, length),
        &mut |block, _, error| {
            damaged(block, error);
        },
    );
}

/// Finds `rank`'s parts and takes the segments they use for `owner`.
pub fn recover_rank(
    reserve: &Reserve,
    root: &RootSlot,
    rank: u32,
    owner: Owner,
) -> (Space, Vec<FoundRevision>) {
    let mut space = Space::new(reserve.geometry().segment_bytes);
    let mut found = Vec::with_capacity(root.revisions.len());
    for revision in &root.revisions {
        let ranks = read_ranks(reserve.reader(), revision);
        let entry = ranks
            .as_ref()
            .ok()
            .and_then(|r| r.iter().find(|entry| entry.rank == rank));
        let part = entry.map(|entry| {
            space.note_revision(revision.checkpoint);
            note_part(reserve, &entry.root, owner, &mut space).map(|()| entry.root)
        });
        found.push(FoundRevision {
            revision: *revision,
            part,
            ranks,
            unread: None,
        });
    }
    (space, found)
}

fn note_part(reserve: &Reserve, entry: &BlockRef, owner: Owner, space: &mut Space) -> Result<()> {
    let mut damage: Option<Error> = None;
    walk_part(
        reserve.reader(),
        entry,
        &mut |block, length| note(reserve, space, owner, block, length),
        &mut |_, error| {
            // What is damaged is damaged, whatever else could not be read.
            if damage
                .as_ref()
                .is_none_or(|known| known.kind().leaves_open())
            {
                damage = Some(error);
            }
        },
    );
    damage.map_or(Ok(()), Err)
}

fn note(reserve: &Reserve, space: &mut Space, owner: Owner, block: &BlockRef, length: usize) {
    let segment: SegmentId = block.address.segment();
    if !space.owns(segment) {
        let Some((slot, class)) = reserve.claim(segment, owner) else {
            return;
        };
        space.adopt(segment, slot, class);
    }
    space.note(block.address, length);
}

/// What is found of a node beside the parts of its ranks.
#[derive(Debug)]
pub struct FoundNode {
    /// Its tables of ranks.
    pub tables: Space,
    /// The parts of ranks that are elsewhere now.
    pub former: Space,
    /// What of either could not be read.
    pub unread: Vec<(CheckpointId, Error)>,
}

/// Finds the node's tables of ranks, and the parts of ranks that are not in `here`.
pub fn recover_node(reserve: &Reserve, root: &RootSlot, here: &BTreeSet<u32>) -> FoundNode {
    let segment_bytes = reserve.geometry().segment_bytes;
    let (mut node, mut former) = (Space::new(segment_bytes), Space::new(segment_bytes));
    let mut unread = Vec::new();
    let mut note_unread = |id, error: Error| {
        tracing::warn!("checkpoint {id}: {error}");
        if error.kind().leaves_open() {
            unread.push((id, error));
        }
    };
    for revision in &root.revisions {
        node.note_revision(revision.checkpoint);
        former.note_revision(revision.checkpoint);
        walk_stream(
            reserve.reader(),
            &revision.ranks,
            &mut |block, length| note(reserve, &mut node, Owner::Node, block, length),
            &mut |_, _| {},
        );
        let ranks = read_ranks(reserve.reader(), revision).unwrap_or_else(|error| {
            note_unread(revision.checkpoint, error);
            Vec::new()
        });
        for entry in ranks {
            if !here.contains(&entry.rank) {
                let noted = note_part(reserve, &entry.root, Owner::Former, &mut former);
                if let Err(error) = noted {
                    note_unread(revision.checkpoint, error);
                }
            }
        }
    }
    FoundNode {
        tables: node,
        former,
        unread,
    }
}
