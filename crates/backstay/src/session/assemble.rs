// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: puts a slab of a global array together from the parts that other ranks stored.
//! In from: `store` (streams), `restart::redistribute` (runs). Out to: the program's memory, or a file.
//! Invariants: every byte is from a verified block; an element nobody stored is an error.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::{StreamRoot, VariableDescriptor};
use backstay_store::ranges::BlockCache;
use backstay_store::reader::StoreReader;
use backstay_store::redistribute::{Extent, describe, runs, same_array};
use backstay_store::region::Sink;
use std::sync::Arc;

/// A variable of one rank as it is stored.
#[derive(Debug)]
pub(super) struct StoredSlab {
    /// The store that has it.
    pub reader: Arc<StoreReader>,
    /// What it is.
    pub descriptor: VariableDescriptor,
    /// Where it is.
    pub stream: StreamRoot,
}

/// Puts the slab `wanted` of a global array together from stored `parts`; returns the bytes it has.
pub(super) fn assemble(
    parts: impl Iterator<Item = Result<Option<StoredSlab>>>,
    wanted: &VariableDescriptor,
    sink: &mut dyn Sink,
) -> Result<u64> {
    let Some(target) = Extent::of(wanted) else {
        return Err(Error::new(
            ErrorKind::Internal,
            "only slabs are put together",
        ));
    };
    let mut missing = vec![target.clone()];
    missing.retain(|piece| piece.element_count() > 0);
    for part in parts {
        if missing.is_empty() {
            break;
        }
        let Some(StoredSlab {
            reader,
            descriptor: stored,
            stream,
        }) = part?
        else {
            continue;
        };
        same_array(&stored, wanted)?;
        let Some(source) = Extent::of(&stored) else {
            continue;
        };
        let found: Vec<Extent> = missing.iter().filter_map(|m| m.overlap(&source)).collect();
        if found.is_empty() {
            continue;
        }
        let mut blocks = BlockCache::new(&reader, stream)?;
        let width = wanted.element.width_bytes();
        for piece in &found {
            runs(&source, &target, piece, width, &mut |run| {
                blocks.copy(run.from, run.to, run.length, sink)
            })?;
        }
        missing = missing
            .iter()
            .flat_map(|piece| piece.without(&source))
            .collect();
    }
    if let Some(piece) = missing.first() {
        let context = format!(
            "{}: nobody stored its part at {:?} of shape {:?}",
            describe(wanted),
            piece.start,
            piece.shape
        );
        return Err(Error::new(ErrorKind::VariableMismatch, context));
    }
    Ok(target.element_count() * wanted.element.width_bytes())
}
