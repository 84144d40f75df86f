// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the parts of a checkpoint above its blocks: trees, tables, rank roots, packed into segments of
//! their own.
//! In from: where the blocks are now. Out to: the store; the state that the commit makes true.
//! Invariants: what did not change is referred to, not written; what is in a segment that is cleaned is
//! written elsewhere.

use super::encode;
use super::state::{RankState, State, VariableState, descriptor_bytes};
use super::tree::{ArchiveTree, Place, Turnover, changed_blocks};
use super::work::{Placed, RankWork};
use crate::{ArchiveStore, NewSegment};
use backstay_base::error::{Error, Result};
use backstay_format::drain::DrainJob;
use backstay_format::limits::{INTERNAL_BLOCK_BYTES, SEGMENT_BYTES_MAX};
use backstay_format::width::{index, to_u64};
use backstay_format::{
    Address, BlockRef, CheckpointId, Digest, RankEntry, RankRoot, SegmentClass, SegmentId,
    SegmentPiece, StreamRoot,
};
use std::collections::{BTreeMap, BTreeSet};

/// Packs small things into segments.
#[derive(Debug)]
pub(super) struct PartWriter<'a> {
    store: &'a ArchiveStore,
    checkpoint: CheckpointId,
    segment: Option<(SegmentId, Vec<u8>, Vec<SegmentPiece>)>,
    written: Vec<(SegmentId, u64)>,
}

impl<'a> PartWriter<'a> {
    pub(super) fn new(store: &'a ArchiveStore, checkpoint: CheckpointId) -> Self {
        Self {
            store,
            checkpoint,
            segment: None,
            written: Vec::new(),
        }
    }

    fn place(&mut self, bytes: &[u8]) -> Result<BlockRef> {
        let full = |held: &(SegmentId, Vec<u8>, Vec<SegmentPiece>)| {
            held.1.len() + bytes.len() > index(SEGMENT_BYTES_MAX)
        };
        if self.segment.as_ref().is_some_and(full) {
            self.flush()?;
        }
        let store = self.store;
        let (segment, held, pieces) = self
            .segment
            .get_or_insert_with(|| (store.next_segment(), Vec::new(), Vec::new()));
        let offset = u32::try_from(held.len()).unwrap_or(u32::MAX);
        let digest = Digest::of(bytes);
        pieces.push(SegmentPiece {
            offset,
            length_bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            digest,
        });
        held.extend_from_slice(bytes);
        held.resize(held.len().next_multiple_of(index(Address::UNIT_BYTES)), 0);
        let unit = u16::try_from(offset / Address::UNIT_BYTES).unwrap_or(u16::MAX);
        let address = Address::new(*segment, unit);
        Ok(BlockRef { address, digest })
    }

    fn flush(&mut self) -> Result<()> {
        let Some((segment, bytes, pieces)) = self.segment.take() else {
            return Ok(());
        };
        self.written.push((segment, to_u64(bytes.len())));
        self.store.append(NewSegment {
            segment,
            checkpoint: self.checkpoint,
            class: SegmentClass::Small,
            merge: 0,
            element: None,
            variable: String::new(),
            scheme: encode::raw_scheme()?,
            decoded_bytes: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            pieces,
            bases: Vec::new(),
            payload: bytes.into(),
        })?;
        Ok(())
    }

    /// Writes what is left; returns the segments and their lengths.
    pub(super) fn finish(mut self) -> Result<Vec<(SegmentId, u64)>> {
        self.flush()?;
        Ok(self.written)
    }
}

/// What a commit makes true.
#[derive(Debug)]
pub(super) struct NewParts {
    pub(super) rank_table: ArchiveTree,
    /// Of each rank of the drain.
    pub(super) ranks: Vec<NewRank>,
    pub(super) turnover: Turnover,
}

/// A rank's part.
#[derive(Debug)]
pub(super) struct NewRank {
    root: BlockRef,
    descriptors: ArchiveTree,
    table: ArchiveTree,
    /// By variable; `None` where nothing changed.
    trees: Vec<Option<ArchiveTree>>,
}

/// Writes the trees and roots of all ranks.
pub(super) fn write(
    job: &DrainJob,
    works: &[RankWork],
    placed: &Placed,
    state: &State,
    victims: &BTreeSet<SegmentId>,
    writer: &mut PartWriter<'_>,
) -> Result<NewParts> {
    let mut turnover = Turnover::default();
    let mut ranks = Vec::with_capacity(works.len());
    let mut table = Vec::with_capacity(works.len());
    for (work, placed) in works.iter().zip(placed) {
        let stands = state.ranks.get(&work.rank);
        let mut place = |bytes: &[u8]| writer.place(bytes);
        let new = write_rank(
            job,
            work,
            placed,
            stands,
            victims,
            &mut turnover,
            &mut place,
        )?;
        table.push(RankEntry {
            rank: work.rank,
            root: new.root,
        });
        ranks.push(new);
    }
    let here: BTreeSet<u32> = works.iter().map(|work| work.rank).collect();
    for (_, gone) in state.ranks.iter().filter(|(rank, _)| !here.contains(rank)) {
        remove_rank(gone, &mut turnover);
    }
    let bytes = RankEntry::encode_table(&table)
        .map_err(|error| Error::unwritable("the table of ranks of an archive", error))?;
    let mut place = |bytes: &[u8]| writer.place(bytes);
    let rank_table = write_stream(
        &state.rank_table,
        &bytes,
        victims,
        &mut turnover,
        &mut place,
    )?;
    Ok(NewParts {
        rank_table,
        ranks,
        turnover,
    })
}

fn remove_rank(rank: &RankState, turnover: &mut Turnover) {
    turnover.remove(&rank.root, RankRoot::BYTES);
    let mut remove = |block: &BlockRef, length: usize| turnover.remove(block, length);
    rank.descriptors.each(&mut remove);
    rank.table.each(&mut remove);
    for variable in rank.variables.values() {
        variable.tree.each(&mut remove);
    }
}

fn write_rank(
    job: &DrainJob,
    work: &RankWork,
    placed: &[BTreeMap<usize, BlockRef>],
    stands: Option<&RankState>,
    victims: &BTreeSet<SegmentId>,
    turnover: &mut Turnover,
    place: Place<'_>,
) -> Result<NewRank> {
    let part = &work.part;
    let (trees, table) = write_variables(work, placed, stands, victims, turnover, &mut *place)?;
    let none = ArchiveTree::empty(INTERNAL_BLOCK_BYTES);
    let list = descriptor_bytes(&part.descriptors)?;
    let old = stands.map_or(&none, |rank| &rank.descriptors);
    let descriptors = write_stream(old, &list, victims, turnover, &mut *place)?;
    let old = stands.map_or(&none, |rank| &rank.table);
    let table = write_stream(old, &table, victims, turnover, &mut *place)?;
    let root = RankRoot {
        born: job.checkpoint,
        descriptors: *descriptors.root(),
        table: *table.root(),
        ..part.root
    };
    let root = write_root(&root, stands, victims, turnover, place)?;
    Ok(NewRank {
        root,
        descriptors,
        table,
        trees,
    })
}

/// The trees of a rank's variables, and the bytes of the table of their roots.
fn write_variables(
    work: &RankWork,
    placed: &[BTreeMap<usize, BlockRef>],
    stands: Option<&RankState>,
    victims: &BTreeSet<SegmentId>,
    turnover: &mut Turnover,
    place: Place<'_>,
) -> Result<(Vec<Option<ArchiveTree>>, Vec<u8>)> {
    let part = &work.part;
    let mut trees = Vec::with_capacity(placed.len());
    let mut table = Vec::with_capacity(placed.len());
    for ((descriptor, stream), placed) in part.descriptors.iter().zip(&part.streams).zip(placed) {
        let known = stands.and_then(|rank| rank.variables.get(&descriptor.name));
        let size = (stream.length_bytes, stream.block_bytes);
        let same = known.filter(|known| {
            let root = known.tree.root();
            placed.is_empty() && victims.is_empty() && (root.length_bytes, root.block_bytes) == size
        });
        if let Some(known) = same {
            table.push(*known.tree.root());
            trees.push(None);
            continue;
        }
        let empty = ArchiveTree::empty(stream.block_bytes);
        let old = known.map_or(&empty, |known| &known.tree);
        let tree = old.change(size, placed, victims, turnover, &mut *place)?;
        table.push(*tree.root());
        trees.push(Some(tree));
    }
    if let Some(stands) = stands {
        let names: BTreeSet<&str> = part.descriptors.iter().map(|d| &*d.name).collect();
        let gone = stands
            .variables
            .iter()
            .filter(|(name, _)| !names.contains(&***name));
        for (_, variable) in gone {
            variable
                .tree
                .each(|block, length| turnover.remove(block, length));
        }
    }
    let table = StreamRoot::encode_table(&table)
        .map_err(|error| Error::unwritable("a table of variables of an archive", error))?;
    Ok((trees, table))
}

/// The rank's root: the one that stands if all it refers to does.
fn write_root(
    root: &RankRoot,
    stands: Option<&RankState>,
    victims: &BTreeSet<SegmentId>,
    turnover: &mut Turnover,
    place: Place<'_>,
) -> Result<BlockRef> {
    let encoded = root.encode().map_err(|error| {
        Error::unwritable(
            format!("the root of rank {} in an archive", root.rank),
            error,
        )
    })?;
    if let Some(rank) = stands {
        let same = (rank.descriptors.root(), rank.table.root()) == (&root.descriptors, &root.table);
        if same && !victims.contains(&rank.root.address.segment()) {
            return Ok(rank.root);
        }
        turnover.remove(&rank.root, RankRoot::BYTES);
    }
    let placed = place(&encoded)?;
    turnover.add(&placed, RankRoot::BYTES);
    Ok(placed)
}

/// A stream of the store's own.
fn write_stream(
    old: &ArchiveTree,
    bytes: &[u8],
    victims: &BTreeSet<SegmentId>,
    turnover: &mut Turnover,
    place: Place<'_>,
) -> Result<ArchiveTree> {
    let mut blocks = BTreeMap::new();
    for (at, block) in changed_blocks(old, bytes, INTERNAL_BLOCK_BYTES, victims) {
        blocks.insert(at, place(block)?);
    }
    let size = (to_u64(bytes.len()), INTERNAL_BLOCK_BYTES);
    old.change(size, &blocks, victims, turnover, place)
}

impl State {
    /// What was written is durable: it is what the next drain compares with.
    pub(super) fn take(&mut self, new: NewParts, works: Vec<RankWork>) {
        let mut former = std::mem::take(&mut self.ranks);
        for (rank, work) in new.ranks.into_iter().zip(works) {
            let mut known = former
                .remove(&work.rank)
                .map(|rank| rank.variables)
                .unwrap_or_default();
            let parts = work.part.descriptors.into_iter().zip(work.variables);
            let mut variables = BTreeMap::new();
            for ((descriptor, variable), tree) in parts.zip(rank.trees) {
                let old = known.remove(&descriptor.name).map(|known| known.tree);
                if let Some(tree) = tree.or(old) {
                    let node = Some(variable.node);
                    variables.insert(descriptor.name, VariableState { tree, node });
                }
            }
            let state = RankState {
                root: rank.root,
                descriptors: rank.descriptors,
                table: rank.table,
                variables,
            };
            self.ranks.insert(work.rank, state);
        }
        self.rank_table = new.rank_table;
    }
}
