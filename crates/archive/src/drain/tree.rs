// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a stream as the archive has it, with every reference in memory, and the stream that a drain
//! makes of it.
//! In: which blocks are new, and where they stand. Out: the pages above them, to be placed.
//! Invariants: a page is made anew if and only if something below it is; what is replaced is told, so that
//! what nobody refers to any more can be given back.
//! Format: docs/format/store.md, sections "Streams" and "Tree pages".

use backstay_base::error::{Error, Result};
use backstay_format::limits::FANOUT;
use backstay_format::width::index;
use backstay_format::{BlockRef, Page, SegmentId, StreamRoot};
use backstay_store::reader::StoreReader;
use backstay_store::tree::read_page;
use std::collections::{BTreeMap, BTreeSet};

/// A stream in the archive.
#[derive(Debug, Clone)]
pub(super) struct ArchiveTree {
    root: StreamRoot,
    /// `levels[0]` are the blocks, `levels[l]` the pages of level `l`; the last has one entry.
    levels: Vec<Vec<BlockRef>>,
}

/// What a drain does to the references of a store: added or removed, with the bytes there.
#[derive(Debug, Default)]
pub(super) struct Turnover {
    pub(super) added: Vec<(SegmentId, u64)>,
    pub(super) removed: Vec<(SegmentId, u64)>,
}

impl Turnover {
    pub(super) fn add(&mut self, block: &BlockRef, length: usize) {
        let bytes = backstay_format::width::to_u64(length);
        self.added.push((block.address.segment(), bytes));
    }
    pub(super) fn remove(&mut self, block: &BlockRef, length: usize) {
        if !block.address.is_none() {
            let bytes = backstay_format::width::to_u64(length);
            self.removed.push((block.address.segment(), bytes));
        }
    }
}

/// Writes a small thing of the store's own and says where it is.
pub(super) type Place<'a> = &'a mut dyn FnMut(&[u8]) -> Result<BlockRef>;

impl ArchiveTree {
    /// The empty stream.
    pub(super) fn empty(block_bytes: u32) -> Self {
        Self {
            root: StreamRoot::empty(block_bytes),
            levels: vec![Vec::new()],
        }
    }

    /// Reads all pages of the stream under `root`.
    pub(super) fn load(reader: &StoreReader, root: StreamRoot) -> Result<Self> {
        let mut levels = Vec::new();
        let mut refs = Vec::new();
        if root.length_bytes > 0 {
            refs.push(root.top);
        }
        for level in (1..=root.height).rev() {
            let mut below = Vec::new();
            for (at, page) in refs.iter().enumerate() {
                below.extend(read_page(reader, &root, level, at, page)?.entries);
            }
            levels.push(std::mem::replace(&mut refs, below));
        }
        levels.push(refs);
        levels.reverse();
        Ok(Self { root, levels })
    }

    pub(super) fn root(&self) -> &StreamRoot {
        &self.root
    }

    /// Block `at`, if there is one of `length` bytes.
    pub(super) fn block(&self, at: usize, length: usize) -> Option<&BlockRef> {
        let found = self.levels[0].get(at)?;
        (self.root.block_length(at) == length).then_some(found)
    }

    fn length_at(root: &StreamRoot, level: usize, at: usize) -> usize {
        match u8::try_from(level) {
            Ok(0) | Err(_) => root.block_length(at),
            Ok(level) => Page::bytes_for(root.page_entries(level, at)),
        }
    }

    /// Every reference, with the bytes there; pages as well.
    pub(super) fn each(&self, mut visit: impl FnMut(&BlockRef, usize)) {
        for (level, refs) in self.levels.iter().enumerate() {
            for (at, found) in refs.iter().enumerate() {
                visit(found, Self::length_at(&self.root, level, at));
            }
        }
    }

    /// The blocks that stand in one of `segments`: place, where they are, length.
    pub(super) fn blocks_in(
        &self,
        segments: &BTreeSet<SegmentId>,
    ) -> Vec<(usize, BlockRef, usize)> {
        let blocks = self.levels[0].iter().enumerate();
        let inside = blocks.filter(|(_, block)| segments.contains(&block.address.segment()));
        inside
            .map(|(at, block)| (at, *block, self.root.block_length(at)))
            .collect()
    }

    /// The stream of `length_bytes` whose blocks are those of this one but for `blocks`. Pages that stand
    /// in one of `leave` are written elsewhere.
    pub(super) fn change(
        &self,
        (length_bytes, block_bytes): (u64, u32),
        blocks: &BTreeMap<usize, BlockRef>,
        leave: &BTreeSet<SegmentId>,
        turnover: &mut Turnover,
        place: Place<'_>,
    ) -> Result<Self> {
        let same_blocks = self.root.block_bytes == block_bytes;
        let old = if same_blocks {
            self.clone()
        } else {
            Self::empty(block_bytes)
        };
        if !same_blocks {
            self.each(|found, length| turnover.remove(found, length));
        }
        let mut root = StreamRoot::empty(block_bytes);
        root.length_bytes = length_bytes;
        root.height = StreamRoot::height_for(length_bytes, block_bytes);
        let Self {
            root: former,
            mut levels,
        } = old;
        let mut dirty = put_blocks(&mut levels[0], &former, &root, blocks, turnover);
        let kept = levels.len();
        for level in 1..=usize::from(root.height).max(kept.saturating_sub(1)) {
            if levels.len() <= level {
                levels.push(Vec::new());
            }
            let (below, above) = levels.split_at_mut(level);
            let pages = Pages {
                level,
                former: &former,
                root: &root,
                leave,
            };
            dirty = pages.make(&below[level - 1], &mut above[0], &dirty, turnover, place)?;
        }
        levels.truncate(usize::from(root.height) + 1);
        root.top = levels
            .last()
            .and_then(|top| top.first())
            .copied()
            .unwrap_or(BlockRef::NONE);
        Ok(Self { root, levels })
    }
}

/// Puts the new blocks in their places; returns the places where something changed.
fn put_blocks(
    refs: &mut Vec<BlockRef>,
    former: &StreamRoot,
    root: &StreamRoot,
    blocks: &BTreeMap<usize, BlockRef>,
    turnover: &mut Turnover,
) -> BTreeSet<usize> {
    let count = root.block_count();
    for (at, gone) in refs.iter().enumerate().skip(count) {
        turnover.remove(gone, former.block_length(at));
    }
    let resized = refs.len() != count;
    let before = refs.len();
    refs.resize(count, BlockRef::NONE);
    let mut dirty = BTreeSet::new();
    for (&at, block) in blocks.range(..count) {
        if at < before {
            turnover.remove(&refs[at], former.block_length(at));
        }
        turnover.add(block, root.block_length(at));
        refs[at] = *block;
        dirty.insert(at);
    }
    if resized && count > 0 {
        dirty.insert(count - 1);
        dirty.insert(before.min(count).saturating_sub(1));
    }
    dirty
}

/// One level of pages that is being made.
struct Pages<'a> {
    level: usize,
    former: &'a StreamRoot,
    root: &'a StreamRoot,
    leave: &'a BTreeSet<SegmentId>,
}

impl Pages<'_> {
    /// Makes the pages over `below` that changed; returns which.
    fn make(
        &self,
        below: &[BlockRef],
        own: &mut Vec<BlockRef>,
        dirty: &BTreeSet<usize>,
        turnover: &mut Turnover,
        place: Place<'_>,
    ) -> Result<BTreeSet<usize>> {
        let wanted = self.level <= usize::from(self.root.height);
        let count = if wanted {
            below.len().div_ceil(FANOUT)
        } else {
            0
        };
        let before = own.len();
        for (at, gone) in own.iter().enumerate().skip(count) {
            turnover.remove(gone, ArchiveTree::length_at(self.former, self.level, at));
        }
        own.resize(count, BlockRef::NONE);
        let mut changed: BTreeSet<usize> = dirty.iter().map(|at| at / FANOUT).collect();
        changed.retain(|&at| at < count);
        if before != count && count > 0 {
            changed.insert(count - 1);
        }
        let standing = own.iter().enumerate();
        let moved = standing.filter(|(_, page)| {
            page.address.is_none() || self.leave.contains(&page.address.segment())
        });
        changed.extend(moved.map(|(at, _)| at));
        for &at in &changed {
            let end = below.len().min((at + 1) * FANOUT);
            let page = Page {
                level: u8::try_from(self.level).unwrap_or(u8::MAX),
                entries: below[at * FANOUT..end].to_vec(),
            };
            let bytes = page
                .encode()
                .map_err(|error| Error::unwritable("a tree page of an archive", error))?;
            let placed = place(&bytes)?;
            if at < before {
                turnover.remove(
                    &own[at],
                    ArchiveTree::length_at(self.former, self.level, at),
                );
            }
            turnover.add(&placed, bytes.len());
            own[at] = placed;
        }
        Ok(changed)
    }
}

/// The blocks of a stream of the store's own that differ from those of `tree`, and all that stand in
/// `leave`: place and bytes.
pub(super) fn changed_blocks<'b>(
    tree: &ArchiveTree,
    bytes: &'b [u8],
    block_bytes: u32,
    leave: &BTreeSet<SegmentId>,
) -> Vec<(usize, &'b [u8])> {
    let blocks = bytes.chunks(index(block_bytes)).enumerate();
    blocks
        .filter(|(at, block)| {
            let stands = tree.block(*at, block.len());
            stands.is_none_or(|old| {
                leave.contains(&old.address.segment())
                    || old.digest != backstay_format::Digest::of(block)
            })
        })
        .collect()
}
