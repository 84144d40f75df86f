// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a stream's copy-on-write hash tree: what is kept of it in memory, and reading it back.
//! In from: `store::capture` (changes), `store::reader` (pages). Out to: `session`, `store::recover`.
//! Invariants: digests and page references are those of the committed revision; a change takes
//! effect only by `apply`, after its checkpoint was committed.
//! Format: docs/format/store.md, sections "Streams" and "Tree pages".

use super::reader::StoreReader;
use crate::region::Sink;
use backstay_base::error::Result;
use backstay_format::limits::FANOUT;
use backstay_format::width::to_u64;
use backstay_format::{BlockRef, Digest, Page, StreamRoot};

/// The committed tree of one stream.
#[derive(Debug, Clone)]
pub struct Tree {
    root: StreamRoot,
    digests: Vec<Digest>,
    /// `levels[l]`: the pages of level `l + 1`.
    levels: Vec<Vec<BlockRef>>,
}

/// What a checkpoint changes in a tree.
#[derive(Debug, Clone)]
pub struct TreeChange {
    /// The root afterwards.
    pub root: StreamRoot,
    /// The groups of blocks that changed, in order.
    pub groups: Vec<GroupChange>,
    /// The pages above level 1 that changed: level, index, page.
    pub pages: Vec<(u8, usize, BlockRef)>,
}

/// Changed blocks under one page of level 1.
#[derive(Debug, Clone)]
pub struct GroupChange {
    /// Which page.
    pub group: usize,
    /// The page, or the only block of a tree of height 0.
    pub top: BlockRef,
    /// Which of its blocks have new digests, lowest bit first.
    pub mask: u32,
    /// Their digests.
    pub digests: Vec<Digest>,
}

impl Tree {
    /// The tree of an empty stream.
    pub fn empty(block_bytes: u32) -> Self {
        Self {
            root: StreamRoot::empty(block_bytes),
            digests: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// Its root.
    pub fn root(&self) -> &StreamRoot {
        &self.root
    }
    /// Digest of block `index`.
    pub fn digest(&self, index: usize) -> Option<Digest> {
        self.digests.get(index).copied()
    }
    /// Page `index` of `level`.
    pub fn page(&self, level: u8, index: usize) -> Option<BlockRef> {
        self.levels
            .get(usize::from(level).checked_sub(1)?)?
            .get(index)
            .copied()
    }
    /// Pages of `level`.
    pub fn page_count(&self, level: u8) -> usize {
        usize::from(level)
            .checked_sub(1)
            .and_then(|l| self.levels.get(l))
            .map_or(0, Vec::len)
    }
    /// Bytes of memory it holds.
    pub fn memory_bytes(&self) -> u64 {
        let pages: usize = self.levels.iter().map(Vec::capacity).sum();
        to_u64(self.digests.capacity() * size_of::<Digest>() + pages * size_of::<BlockRef>())
    }

    /// Reads a tree: all its pages, none of its blocks.
    pub fn load(reader: &StoreReader, root: StreamRoot) -> Result<Self> {
        let mut levels = Vec::new();
        let mut refs = if root.length_bytes == 0 {
            Vec::new()
        } else {
            vec![root.top]
        };
        for level in (1..=root.height).rev() {
            let mut below = Vec::new();
            for (index, page) in refs.iter().enumerate() {
                below.extend(read_page(reader, &root, level, index, page)?.entries);
            }
            levels.push(std::mem::replace(&mut refs, below));
        }
        levels.reverse();
        let digests = refs.into_iter().map(|block| block.digest).collect();
        Ok(Self {
            root,
            digests,
            levels,
        })
    }

    /// The blocks under page `group` of level 1, as committed.
    pub fn group(&self, reader: &StoreReader, group: usize) -> Result<Vec<BlockRef>> {
        if self.root.length_bytes == 0 {
            return Ok(Vec::new());
        }
        if self.root.height == 0 {
            return Ok(if group == 0 {
                vec![self.root.top]
            } else {
                Vec::new()
            });
        }
        match self.page(1, group) {
            Some(page) => Ok(read_page(reader, &self.root, 1, group, &page)?.entries),
            None => Ok(Vec::new()),
        }
    }

    /// Number of groups: pages of level 1, or 1 for a single block.
    pub fn group_count(&self) -> usize {
        self.root.block_count().div_ceil(FANOUT)
    }

    /// The change that changes nothing.
    pub fn unchanged(&self) -> TreeChange {
        TreeChange {
            root: self.root,
            groups: Vec::new(),
            pages: Vec::new(),
        }
    }

    /// Makes a change take effect: its checkpoint is committed.
    pub fn apply(&mut self, change: &TreeChange) {
        self.root = change.root;
        self.digests
            .resize(change.root.block_count(), Digest::default());
        self.digests.shrink_to_fit();
        let mut count = change.root.block_count();
        self.levels
            .resize(usize::from(change.root.height), Vec::new());
        for level in &mut self.levels {
            count = count.div_ceil(FANOUT);
            level.resize(count, BlockRef::NONE);
            level.shrink_to_fit();
        }
        if let ([digest], 0) = (&mut *self.digests, change.root.height) {
            *digest = change.root.top.digest;
        }
        for group in &change.groups {
            let changed = (0..FANOUT).filter(|bit| group.mask & (1 << bit) != 0);
            for (bit, digest) in changed.zip(&group.digests) {
                self.digests[group.group * FANOUT + bit] = *digest;
            }
            if let Some(leaves) = self.levels.first_mut() {
                leaves[group.group] = group.top;
            }
        }
        for &(level, index, page) in &change.pages {
            self.levels[usize::from(level) - 1][index] = page;
        }
    }
}

/// Reads page `index` of `level` of the stream under `root`.
pub fn read_page(
    reader: &StoreReader,
    root: &StreamRoot,
    level: u8,
    index: usize,
    page: &BlockRef,
) -> Result<Page> {
    let count = root.page_entries(level, index);
    let mut bytes = [0; Page::bytes_for(FANOUT)];
    let bytes = &mut bytes[..Page::bytes_for(count)];
    reader.read(page, bytes, "tree page")?;
    Page::decode(bytes, level, count).map_err(|error| {
        let place = format!("{}: {}", reader.device().name(), page.address);
        backstay_base::error::Error::malformed(place, error)
    })
}

/// What a walk over a stream finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A tree page.
    Page,
    /// Block number so-and-so.
    Block(usize),
}

/// Visits every page and every block reference of a stream, in order, with its length in bytes.
/// Pages are read and checked; blocks are not. A page that is damaged goes to `damaged`, and what
/// is below it is passed over.
pub fn walk(
    reader: &StoreReader,
    root: &StreamRoot,
    visit: &mut dyn FnMut(Found, &BlockRef, usize),
    damaged: &mut dyn FnMut(&BlockRef, usize, backstay_base::error::Error),
) {
    if root.length_bytes > 0 {
        walk_below(reader, root, root.height, 0, &root.top, visit, damaged);
    }
}

fn walk_below(
    reader: &StoreReader,
    root: &StreamRoot,
    level: u8,
    index: usize,
    node: &BlockRef,
    visit: &mut dyn FnMut(Found, &BlockRef, usize),
    damaged: &mut dyn FnMut(&BlockRef, usize, backstay_base::error::Error),
) {
    if level == 0 {
        visit(Found::Block(index), node, root.block_length(index));
        return;
    }
    let bytes = Page::bytes_for(root.page_entries(level, index));
    match read_page(reader, root, level, index, node) {
        Ok(page) => {
            visit(Found::Page, node, bytes);
            for (entry, child) in page.entries.iter().enumerate() {
                let below = index * FANOUT + entry;
                walk_below(reader, root, level - 1, below, child, visit, damaged);
            }
        }
        Err(error) => damaged(node, bytes, error),
    }
}

/// Reads a whole stream into `sink`, every block verified; returns its bytes.
pub fn read_stream(
    reader: &StoreReader,
    root: &StreamRoot,
    what: &'static str,
    sink: &mut dyn Sink,
) -> Result<u64> {
    let mut buffer = Vec::new();
    read_blocks(reader, root, &mut |index, block| {
        buffer.resize(root.block_length(index), 0);
        reader.read(block, &mut buffer, what)?;
        sink.copy_in(to_u64(index) * u64::from(root.block_bytes), &buffer);
        Ok(())
    })?;
    Ok(root.length_bytes)
}

/// Visits the references of all blocks in order; stops at the first error.
pub fn read_blocks(
    reader: &StoreReader,
    root: &StreamRoot,
    visit: &mut dyn FnMut(usize, &BlockRef) -> Result<()>,
) -> Result<()> {
    let mut outcome = Ok(());
    let mut failure = None;
    walk(
        reader,
        root,
        &mut |found, block, _| {
            if let (Found::Block(index), Ok(())) = (found, &outcome) {
                outcome = visit(index, block);
            }
        },
        &mut |_, _, error| {
            failure.get_or_insert(error);
        },
    );
    outcome.and(failure.map_or(Ok(()), Err))
}

/// A stream of the store's own, as bytes.
pub fn read_internal(
    reader: &StoreReader,
    root: &StreamRoot,
    what: &'static str,
) -> Result<Vec<u8>> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut buffer = Vec::new();
    read_blocks(reader, root, &mut |index, block| {
        buffer.resize(root.block_length(index), 0);
        reader.read(block, &mut buffer, what)?;
        bytes.extend_from_slice(&buffer);
        Ok(())
    })?;
    Ok(bytes)
}
