// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what is in a checkpoint: its variables, merged over the ranks, and what changed in them.
//! In: the parts of its ranks, and of the checkpoint before. Out: a list sorted by name.
//! Invariants: what changed is found by comparing trees, so it costs in proportion to the change.

use super::{Checkpoint, Stores, share};
use backstay_base::error::{Error, Result};
use backstay_format::width::to_u64;
use backstay_format::{BlockRef, CheckpointId, ElementType, StreamRoot, VariableDescriptor};
use backstay_store::compare::{Node, Side, Visitor, walk_changed};
use backstay_store::revision::{ReadPart, read_part};
use std::collections::BTreeMap;

/// A variable of a checkpoint.
#[derive(Debug, Clone)]
pub struct StoredVariable {
    /// Its name.
    pub name: String,
    /// Its part of each rank that has it, by rank.
    pub parts: Vec<StoredPart>,
}

/// A variable on one rank.
#[derive(Debug, Clone)]
pub struct StoredPart {
    /// The rank.
    pub rank: u32,
    /// The store that has it, as an index into [`Stores::stores`].
    pub store: usize,
    /// What it is.
    pub descriptor: VariableDescriptor,
    /// Where its bytes are.
    pub stream: StreamRoot,
    /// What changed since the checkpoint before; `None` without one that can be compared with.
    pub changed: Option<Changed>,
}

/// What changed of a variable between two retained checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changed {
    /// Blocks that are new or hold something else.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl StoredVariable {
    /// The type of its elements, if it is the same on all ranks.
    pub fn element(&self) -> Option<ElementType> {
        let first = self.parts.first()?.descriptor.element;
        let same = self
            .parts
            .iter()
            .all(|part| part.descriptor.element == first);
        same.then_some(first)
    }

    /// Shape of the global array whose slabs all its parts are.
    pub fn global_shape(&self) -> Option<&[u64]> {
        let global = |part: &'_ StoredPart| {
            part.descriptor
                .slab
                .as_ref()
                .map(|slab| slab.global_shape.clone())
        };
        let first = self.parts.first()?;
        let same = self.parts.iter().all(|part| global(part) == global(first));
        let slab = first.descriptor.slab.as_ref().filter(|_| same)?;
        Some(&slab.global_shape)
    }

    /// The shape of its parts, if it is the same on all ranks.
    pub fn local_shape(&self) -> Option<&[u64]> {
        let first = &self.parts.first()?.descriptor.shape;
        let same = self
            .parts
            .iter()
            .all(|part| part.descriptor.shape == *first);
        same.then_some(first)
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.stream.length_bytes).sum()
    }

    /// Blocks of all parts.
    pub fn blocks(&self) -> u64 {
        self.parts
            .iter()
            .map(|part| to_u64(part.stream.block_count()))
            .sum()
    }

    /// What changed in all parts; `None` if one of them could not be compared.
    pub fn changed(&self) -> Option<Changed> {
        let mut sum = Changed::default();
        for part in &self.parts {
            let changed = part.changed?;
            sum.blocks += changed.blocks;
            sum.bytes += changed.bytes;
        }
        Some(sum)
    }

    /// Changed bytes over all bytes.
    pub fn changed_share(&self) -> Option<f64> {
        Some(share(self.changed()?.bytes, self.bytes()))
    }
}

impl Stores {
    /// The variables of a checkpoint on the ranks that are in these stores, or on `only` one of them.
    /// `progress` is told after each rank.
    pub fn variables(
        &self,
        checkpoint: &Checkpoint,
        only: Option<u32>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<StoredVariable>> {
        let all = self.checkpoints();
        let mut merged: BTreeMap<String, Vec<StoredPart>> = BTreeMap::new();
        let ranks: Vec<u32> = match only {
            Some(rank) => vec![rank],
            None => checkpoint.ranks.keys().copied().collect(),
        };
        for rank in ranks {
            let (store, part) = self.part(checkpoint, rank)?;
            let before = Self::before(&all, checkpoint, rank);
            let before = before.and_then(|earlier| Before::read(self, earlier, rank));
            for (descriptor, stream) in part.descriptors.iter().zip(&part.streams) {
                let found = StoredPart {
                    rank,
                    store,
                    descriptor: descriptor.clone(),
                    stream: *stream,
                    changed: match &before {
                        None => None,
                        Some(before) => {
                            self.changed((checkpoint.id, store), descriptor, stream, before)?
                        }
                    },
                };
                merged
                    .entry(descriptor.name.clone())
                    .or_default()
                    .push(found);
            }
            progress(1);
        }
        let variables = merged.into_iter();
        Ok(variables
            .map(|(name, parts)| StoredVariable { name, parts })
            .collect())
    }

    fn changed(
        &self,
        (id, store): (CheckpointId, usize),
        descriptor: &VariableDescriptor,
        stream: &StreamRoot,
        before: &Before,
    ) -> Result<Option<Changed>> {
        let earlier = before.part.find(&descriptor.name);
        let side = |store: usize, root| Side {
            reader: self.stores[store].reader(),
            root,
        };
        let mut count = Count::default();
        let new = side(store, stream);
        let old = earlier.map(|(_, root)| side(before.store, root));
        let whole = walk_changed(new, old, &mut count);
        match count.failure {
            Some(error) => Err(self.judge(store, id, error)),
            None => Ok(whole.then_some(count.changed)),
        }
    }
}

/// One rank's part of the checkpoint before.
struct Before {
    store: usize,
    part: ReadPart,
}

impl Before {
    /// `None` if it cannot be read: it may be damaged, or recycled by now.
    fn read(stores: &Stores, checkpoint: &Checkpoint, rank: u32) -> Option<Self> {
        let (store, entry) = checkpoint.ranks.get(&rank)?;
        let part = read_part(stores.stores[*store].reader(), entry).ok()?;
        Some(Self {
            store: *store,
            part,
        })
    }
}

/// Counts what a walk over a changed tree meets.
#[derive(Debug, Default)]
struct Count {
    changed: Changed,
    failure: Option<Error>,
}

impl Visitor for Count {
    fn page(&mut self, _node: &Node) {}

    fn block(&mut self, node: &Node, older: Option<&BlockRef>) {
        // A block may have moved to another place and hold what it held.
        if older.is_none_or(|older| older.digest != node.block.digest) {
            self.changed.blocks += 1;
            self.changed.bytes += to_u64(node.length);
        }
    }

    fn damaged(&mut self, _node: &Node, error: Error) {
        self.failure.get_or_insert(error);
    }
}
