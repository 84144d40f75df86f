// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what an aggregator knows of its archive store: the newest checkpoint's trees, and which
//! segments are needed.
//! In from: the store's roots, at opening. Out to: `changes` (what differs), `work` (what is new).
//! Invariants: derived from the roots alone; changed only when a root that says the same is durable.

use super::changes::NodeTree;
use super::ledger::Ledger;
use super::tree::ArchiveTree;
use backstay_base::error::{Error, Result};
use backstay_format::limits::INTERNAL_BLOCK_BYTES;
use backstay_format::width::to_u64;
use backstay_format::{
    Address, BlockRef, CheckpointId, RankRoot, RevisionEntry, StreamRoot, VariableDescriptor,
};
use backstay_store::reader::StoreReader;
use backstay_store::revision::{read_part, read_ranks};
use backstay_store::tree::{Found, walk};
use std::collections::{BTreeMap, BTreeSet};

/// A variable of a rank.
#[derive(Debug)]
pub(super) struct VariableState {
    pub(super) tree: ArchiveTree,
    /// The pages on the node that it was drained from, if that is known.
    pub(super) node: Option<NodeTree>,
}

/// A rank's part of the newest checkpoint.
#[derive(Debug)]
pub(super) struct RankState {
    pub(super) root: BlockRef,
    pub(super) descriptors: ArchiveTree,
    pub(super) table: ArchiveTree,
    pub(super) variables: BTreeMap<String, VariableState>,
}

/// The newest checkpoint in the store, and all its segments.
#[derive(Debug)]
pub(super) struct State {
    pub(super) newest: Option<CheckpointId>,
    /// The newest one when the store was opened.
    pub(super) opened: Option<CheckpointId>,
    pub(super) revisions: Vec<RevisionEntry>,
    pub(super) ranks: BTreeMap<u32, RankState>,
    pub(super) rank_table: ArchiveTree,
    pub(super) ledger: Ledger,
}

impl State {
    /// Of a store that holds nothing.
    pub(super) fn empty() -> Self {
        Self {
            newest: None,
            opened: None,
            revisions: Vec::new(),
            ranks: BTreeMap::new(),
            rank_table: ArchiveTree::empty(INTERNAL_BLOCK_BYTES),
            ledger: Ledger::default(),
        }
    }

    /// Reads what the retained `revisions`, oldest first, refer to.
    pub(super) fn load(
        reader: &StoreReader,
        revisions: Vec<RevisionEntry>,
        mut ledger: Ledger,
    ) -> Result<Self> {
        let mut state = Self::empty();
        let Some((newest, older)) = revisions.split_last() else {
            state.ledger = ledger;
            return Ok(state);
        };
        let mut note = |block: &BlockRef, length: usize| {
            ledger.add(block.address.segment(), to_u64(length));
        };
        state.rank_table = ArchiveTree::load(reader, newest.ranks)?;
        state.rank_table.each(&mut note);
        for entry in read_ranks(reader, newest)? {
            let rank = load_rank(reader, entry.root)?;
            note(&rank.root, RankRoot::BYTES);
            rank.descriptors.each(&mut note);
            rank.table.each(&mut note);
            for variable in rank.variables.values() {
                variable.tree.each(&mut note);
            }
            state.ranks.insert(entry.rank, rank);
        }
        note_older(reader, newest, older, &mut ledger)?;
        state.newest = Some(newest.checkpoint);
        state.opened = state.newest;
        state.revisions = revisions;
        state.ledger = ledger;
        Ok(state)
    }
}

fn load_rank(reader: &StoreReader, root: BlockRef) -> Result<RankState> {
    let part = read_part(reader, &root)?;
    let mut variables = BTreeMap::new();
    for (descriptor, stream) in part.descriptors.iter().zip(&part.streams) {
        let state = VariableState {
            tree: ArchiveTree::load(reader, *stream)?,
            node: None,
        };
        variables.insert(descriptor.name.clone(), state);
    }
    Ok(RankState {
        root,
        descriptors: ArchiveTree::load(reader, part.root.descriptors)?,
        table: ArchiveTree::load(reader, part.root.table)?,
        variables,
    })
}

/// Takes into account what only checkpoints before the newest refer to.
fn note_older(
    reader: &StoreReader,
    newest: &RevisionEntry,
    older: &[RevisionEntry],
    ledger: &mut Ledger,
) -> Result<()> {
    let mut next = newest;
    let mut seen = BTreeSet::new();
    let mut visitor = Visitor {
        reader,
        ledger,
        seen: &mut seen,
        next: None,
    };
    visitor.revision(newest)?;
    for revision in older.iter().rev() {
        visitor.next = Some(next.checkpoint);
        visitor.revision(revision)?;
        next = revision;
    }
    Ok(())
}

/// Visits revisions from the newest on, each reference once.
struct Visitor<'a> {
    reader: &'a StoreReader,
    ledger: &'a mut Ledger,
    seen: &'a mut BTreeSet<Address>,
    next: Option<CheckpointId>,
}

impl Visitor<'_> {
    fn revision(&mut self, revision: &RevisionEntry) -> Result<()> {
        self.stream(&revision.ranks)?;
        for entry in read_ranks(self.reader, revision)? {
            if !self.is_new(&entry.root) {
                continue;
            }
            let part = read_part(self.reader, &entry.root)?;
            self.stream(&part.root.descriptors)?;
            self.stream(&part.root.table)?;
            for stream in &part.streams {
                self.stream(stream)?;
            }
        }
        Ok(())
    }

    fn is_new(&mut self, block: &BlockRef) -> bool {
        if let Some(next) = self.next {
            self.ledger.needed_until(block.address.segment(), next);
        }
        self.seen.insert(block.address)
    }

    fn stream(&mut self, root: &StreamRoot) -> Result<()> {
        if root.length_bytes == 0 || self.seen.contains(&root.top.address) {
            if root.length_bytes > 0 {
                self.is_new(&root.top);
            }
            return Ok(());
        }
        let mut failed = None;
        let mut found = Vec::new();
        walk(
            self.reader,
            root,
            &mut |what, block, _| found.push((what, *block)),
            &mut |_, _, error| {
                failed.get_or_insert(error);
            },
        );
        for (what, block) in found {
            if what == Found::Page {
                self.is_new(&block);
            } else if let Some(next) = self.next {
                self.ledger.needed_until(block.address.segment(), next);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// The bytes of a list of descriptors, as a part keeps them.
pub(super) fn descriptor_bytes(descriptors: &[VariableDescriptor]) -> Result<Vec<u8>> {
    VariableDescriptor::encode_list(descriptors)
        .map_err(|error| Error::unwritable("descriptors of an archive", error))
}
