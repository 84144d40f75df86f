// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: reads ranges of a stream.
//! In from: `store::tree` (references), `store::reader` (blocks). Out to: `session`, `inspect`.
//! Invariants: every byte handed out is from a block that was verified.

use super::reader::StoreReader;
use super::tree::read_blocks;
use crate::region::Sink;
use backstay_base::error::Result;
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{BlockRef, StreamRoot};

/// Reads ranges of a stream, block by verified block, keeping the last one.
#[derive(Debug)]
pub struct BlockCache<'a> {
    reader: &'a StoreReader,
    root: StreamRoot,
    blocks: Vec<BlockRef>,
    held: Option<usize>,
    bytes: Vec<u8>,
}

impl<'a> BlockCache<'a> {
    /// Learns where the blocks of a stream stand; none is read yet.
    pub fn new(reader: &'a StoreReader, root: StreamRoot) -> Result<Self> {
        let mut blocks = Vec::new();
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

    /// Copies `length` bytes of the stream at `from` to `to` of `sink`.
    pub fn copy(&mut self, from: u64, to: u64, length: u64, sink: &mut dyn Sink) -> Result<()> {
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
