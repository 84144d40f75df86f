// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which blocks of a variable on its node differ from what the archive has.
//! In from: the node's store (pages only), the archive's tree. Out: blocks to drain.
//! Invariants: what is shared with the pages of the last drain is not read, so that the cost follows the
//! change; a block counts as changed by digest and length alone.

use super::tree::ArchiveTree;
use backstay_base::clock::Pulse;
use backstay_base::error::Result;
use backstay_format::limits::FANOUT;
use backstay_format::{BlockRef, StoreId, StreamRoot};
use backstay_store::reader::StoreReader;
use backstay_store::tree::read_page;

/// The pages of a variable on its node, as of the last drain.
#[derive(Debug, Clone)]
pub(super) struct NodeTree {
    store: StoreId,
    root: StreamRoot,
    /// `levels[l]`: the pages of level `l + 1`.
    levels: Vec<Vec<BlockRef>>,
}

/// A block to drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Changed {
    /// Its place in the variable.
    pub(super) at: usize,
    /// Where it is on the node, and its digest.
    pub(super) block: BlockRef,
    /// Its length, in bytes.
    pub(super) length: usize,
}

impl NodeTree {
    /// Of what stands in no store.
    pub(super) fn nowhere(root: &StreamRoot) -> Self {
        Self {
            store: StoreId::default(),
            root: *root,
            levels: Vec::new(),
        }
    }

    /// Walks the tree under `root` on a node beside `former`, its pages of the last drain, and the
    /// archive's `tree`. Returns its pages and the blocks that the archive does not have.
    pub(super) fn compare(
        reader: &StoreReader,
        root: &StreamRoot,
        former: Option<&Self>,
        tree: &ArchiveTree,
        pulse: &Pulse,
    ) -> Result<(Self, Vec<Changed>)> {
        let store = reader.superblock().store;
        let former = former
            .filter(|former| former.store == store && former.root.block_bytes == root.block_bytes);
        let mut walk = Walk {
            reader,
            root,
            former,
            tree,
            pulse,
            changed: Vec::new(),
            own: Self {
                store,
                root: *root,
                levels: walk_levels(root),
            },
        };
        if root.length_bytes > 0 {
            walk.below(root.height, 0, root.top)?;
        }
        Ok((walk.own, walk.changed))
    }
}

fn walk_levels(root: &StreamRoot) -> Vec<Vec<BlockRef>> {
    let mut count = root.block_count();
    let level = |_| {
        count = count.div_ceil(FANOUT);
        vec![BlockRef::NONE; count]
    };
    (0..root.height).map(level).collect()
}

struct Walk<'a> {
    reader: &'a StoreReader,
    root: &'a StreamRoot,
    former: Option<&'a NodeTree>,
    tree: &'a ArchiveTree,
    pulse: &'a Pulse,
    changed: Vec<Changed>,
    own: NodeTree,
}

impl Walk<'_> {
    fn below(&mut self, level: u8, at: usize, block: BlockRef) -> Result<()> {
        let Some(height) = usize::from(level).checked_sub(1) else {
            self.block(at, block);
            return Ok(());
        };
        self.own.levels[height][at] = block;
        if self.is_shared(level, at, &block) {
            self.copy_below(level, at);
            return Ok(());
        }
        let page = read_page(self.reader, self.root, level, at, &block)?;
        self.pulse.beat();
        for (entry, child) in page.entries.iter().enumerate() {
            self.below(level - 1, at * FANOUT + entry, *child)?;
        }
        Ok(())
    }

    /// A page that was there at the last drain, over the same blocks.
    fn is_shared(&self, level: u8, at: usize, block: &BlockRef) -> bool {
        let Some(former) = self.former else {
            return false;
        };
        let then = former.levels.get(usize::from(level) - 1);
        let same = then.and_then(|pages| pages.get(at)) == Some(block);
        let last = (at + 1) * FANOUT.pow(u32::from(level));
        let end = last.min(self.root.block_count()) - 1;
        same && self.root.block_length(end) == former.root.block_length(end)
    }

    /// The pages below one that is shared are those of then.
    fn copy_below(&mut self, level: u8, at: usize) {
        let Some(former) = self.former else { return };
        let mut span = 1;
        for below in (0..usize::from(level) - 1).rev() {
            span *= FANOUT;
            let pages = &mut self.own.levels[below];
            let range = at * span..((at + 1) * span).min(pages.len());
            if let Some(then) = former.levels[below].get(range.clone()) {
                pages[range].copy_from_slice(then);
            }
        }
    }

    fn block(&mut self, at: usize, block: BlockRef) {
        let length = self.root.block_length(at);
        let stands = self.tree.block(at, length);
        let same_size = self.tree.root().block_bytes == self.root.block_bytes;
        if !(same_size && stands.is_some_and(|old| old.digest == block.digest)) {
            self.changed.push(Changed { at, block, length });
        }
    }
}
