// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: puts a slab of a global array together from the parts that other ranks stored.
//! In from: `store` (streams), `restart::redistribute` (runs). Out to: the program's memory, or a file.
//! Invariants: every byte is from a verified block; an element nobody stored is an error.

use crate::error::{Error, ErrorKind, Result};
use crate::region::Sink;
use crate::restart::redistribute::{Extent, describe, runs, same_array};
use crate::store::reader::StoreReader;
use crate::store::tree::read_blocks;
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{BlockRef, StreamRoot, VariableDescriptor};

/// Puts the slab `wanted` of a global array together from stored `parts`; returns the bytes it has.
pub fn assemble(
    reader: &StoreReader,
    parts: impl Iterator<Item = Result<Option<(VariableDescriptor, StreamRoot)>>>,
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
        let Some((stored, stream)) = part? else {
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
        let mut blocks = BlockCache::new(reader, stream)?;
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

/// Reads ranges of a stream, block by verified block, keeping the last one.
struct BlockCache<'a> {
    reader: &'a StoreReader,
    root: StreamRoot,
    blocks: Vec<BlockRef>,
    held: Option<usize>,
    bytes: Vec<u8>,
}

impl<'a> BlockCache<'a> {
    fn new(reader: &'a StoreReader, root: StreamRoot) -> Result<Self> {
        let mut blocks = Vec::with_capacity(root.block_count());
        read_blocks(reader, &root, &mut |_, block| {
            blocks.push(*block);
            Ok(())
        })?;
        Ok(Self {
            reader,
            root,
            blocks,
            held: None,
            bytes: Vec::new(),
        })
    }

    fn copy(&mut self, from: u64, to: u64, length: u64, sink: &mut dyn Sink) -> Result<()> {
        let block_bytes = u64::from(self.root.block_bytes);
        let mut done = 0;
        while done < length {
            let index = to_usize((from + done) / block_bytes);
            let offset = to_usize((from + done) % block_bytes);
            if self.held != Some(index) {
                self.held = None;
                self.bytes.resize(self.root.block_length(index), 0);
                self.reader
                    .read(&self.blocks[index], &mut self.bytes, "block")?;
                self.held = Some(index);
            }
            let count = (self.bytes.len() - offset).min(to_usize(length - done));
            sink.copy_in(to + done, &self.bytes[offset..offset + count]);
            done += to_u64(count);
        }
        Ok(())
    }
}
