// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: walks a stream's tree beside an older tree of the same stream, past all they share.
//! In: two roots. Out: the pages and blocks that stand elsewhere, or hold something else, than then.
//! Invariants: a shared subtree is not read, so the cost follows the change; what cannot be read of
//! the older tree counts as not shared.
//! Format: docs/format/store.md, sections "Streams" and "Tree pages".

use super::reader::StoreReader;
use super::tree::read_page;
use backstay_base::error::{Error, Result};
use backstay_format::limits::FANOUT;
use backstay_format::{BlockRef, Page, StreamRoot};

/// A page or block of a tree, and its place there. Level 0 is the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// Level.
    pub level: u8,
    /// Index on its level.
    pub index: usize,
    /// Where it stands and what it hashes to.
    pub block: BlockRef,
    /// Bytes.
    pub length: usize,
}

/// Told what a walk meets.
pub trait Visitor {
    /// A page that is not shared; it was read and is what its digest says.
    fn page(&mut self, node: &Node);
    /// A block that is not shared, unread, and what the older tree has at its place, if that has the
    /// same length.
    fn block(&mut self, node: &Node, older: Option<&BlockRef>);
    /// A page that cannot be read; what is below it is passed over.
    fn damaged(&mut self, node: &Node, error: Error);
}

/// A tree in its store.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// The store.
    pub reader: &'a StoreReader,
    /// The tree.
    pub root: &'a StreamRoot,
}

/// Visits all of `new` that `old` does not share. False if some of `old` could not be read: then
/// what it shares was in part visited as well. An older tree in another store shares contents at
/// most, never space.
pub fn walk_changed(new: Side<'_>, old: Option<Side<'_>>, visitor: &mut dyn Visitor) -> bool {
    if new.root.length_bytes == 0 {
        return true;
    }
    let fits =
        |old: &Side<'_>| old.root.length_bytes > 0 && old.root.block_bytes == new.root.block_bytes;
    let mut walk = Walk {
        new,
        old: old.filter(fits),
        lost: false,
        visitor,
    };
    let older = match walk.old {
        None => None,
        Some(old) => node_at(old.reader, old.root, new.root.height, 0).unwrap_or_else(|_error| {
            walk.lost = true;
            None
        }),
    };
    walk.below(new.root.height, 0, new.root.top, older);
    !walk.lost
}

struct Walk<'a, 'v> {
    new: Side<'a>,
    old: Option<Side<'a>>,
    lost: bool,
    visitor: &'v mut dyn Visitor,
}

impl Walk<'_, '_> {
    fn below(&mut self, level: u8, index: usize, block: BlockRef, older: Option<BlockRef>) {
        if older == Some(block) {
            return;
        }
        let (new, root) = (self.new, self.new.root);
        if level == 0 {
            let length = root.block_length(index);
            let same_length = |old: &Side<'_>| old.root.block_length(index) == length;
            let older = older.filter(|_| self.old.as_ref().is_some_and(same_length));
            let node = Node {
                level,
                index,
                block,
                length,
            };
            self.visitor.block(&node, older.as_ref());
            return;
        }
        let length = Page::bytes_for(root.page_entries(level, index));
        let node = Node {
            level,
            index,
            block,
            length,
        };
        let page = match read_page(new.reader, root, level, index, &block) {
            Ok(page) => page,
            Err(error) => {
                self.visitor.damaged(&node, error);
                return;
            }
        };
        self.visitor.page(&node);
        let then = self.older_entries(level, index, older);
        for (entry, child) in page.entries.iter().enumerate() {
            let below = index * FANOUT + entry;
            let top = self
                .old
                .filter(|old| below == 0 && old.root.height == level - 1);
            let older = top
                .map(|old| old.root.top)
                .or_else(|| then.get(entry).copied());
            self.below(level - 1, below, *child, older);
        }
    }

    fn older_entries(&mut self, level: u8, index: usize, page: Option<BlockRef>) -> Vec<BlockRef> {
        let (Some(old), Some(page)) = (self.old, page) else {
            return Vec::new();
        };
        match read_page(old.reader, old.root, level, index, &page) {
            Ok(page) => page.entries,
            Err(_error) => {
                self.lost = true;
                Vec::new()
            }
        }
    }
}

/// What stands at a place of a tree; `None` where the tree has no such place.
pub fn node_at(
    reader: &StoreReader,
    root: &StreamRoot,
    level: u8,
    index: usize,
) -> Result<Option<BlockRef>> {
    let mut count = root.block_count();
    for _ in 0..level {
        count = count.div_ceil(FANOUT);
    }
    if root.length_bytes == 0 || level > root.height || index >= count {
        return Ok(None);
    }
    let ancestor = |of: u8| (level..of).fold(index, |index, _| index / FANOUT);
    let mut node = root.top;
    for above in (level + 1..=root.height).rev() {
        let page = read_page(reader, root, above, ancestor(above), &node)?;
        let Some(child) = page.entries.get(ancestor(above - 1) % FANOUT) else {
            return Ok(None);
        };
        node = *child;
    }
    Ok(Some(node))
}
