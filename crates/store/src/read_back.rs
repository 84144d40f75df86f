// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: variables of a checkpoint, read back into memory by several threads.
//! In from: `reader`, `tree` (where blocks are). Out to: `region` (the program's memory).
//! Invariants: every block is read where it belongs, once, by one thread, and verified there while it is in a cache: after
//! an error the memory is unspecified.

use crate::reader::StoreReader;
use crate::region::Region;
use crate::tree::read_blocks;
use backstay_base::error::Result;
use backstay_base::fanout;
use backstay_format::width::{index, to_u64};
use backstay_format::{BlockRef, StreamRoot};

/// Less than this is read by one thread.
const PARALLEL_BYTES_MIN: u64 = 8 << 20;
/// Blocks that a thread reads at a time.
const CHUNK_BLOCKS: usize = 128;
/// Most bytes of blocks side by side that are read at once: they are verified before they leave the cache. Measured over
/// one read of the whole on an EPYC: 1.31 by 16 KiB, 1.22 by 64 KiB, 1.28 by 128 KiB; 1.73 by way of a buffer.
const RUN_BYTES_MAX: usize = 64 << 10;

/// A block, and its place among those of its stream.
type Numbered = (usize, BlockRef);

/// Blocks of one stream, in their order.
struct Chunk<'a> {
    stream: &'a (StreamRoot, Region),
    blocks: Vec<Numbered>,
}

/// Reads whole streams, each into its region, on so many threads; returns the bytes of all. What is not in this
/// node's memory one thread reads, ahead of itself or decoded by segments.
pub fn read_streams(
    reader: &StoreReader,
    streams: &[(StreamRoot, Region)],
    threads: usize,
) -> Result<u64> {
    let bytes = streams.iter().map(|(root, _)| root.length_bytes);
    let bytes = bytes.fold(0, u64::saturating_add);
    let threads = if bytes < PARALLEL_BYTES_MIN || !reader.is_memory() {
        1
    } else {
        threads
    };
    if threads < 2 {
        for stream in streams {
            chunks_of(reader, stream, &mut |chunk| chunk.read(reader))?;
        }
        return Ok(bytes);
    }
    let mut chunks = Vec::new();
    for stream in streams {
        chunks_of(reader, stream, &mut |chunk| {
            chunks.push(chunk);
            Ok(())
        })?;
    }
    fanout::all(&chunks, threads, |_, chunk| chunk.read(reader))?;
    Ok(bytes)
}

/// Visits the blocks of a stream, some at a time.
fn chunks_of<'a>(
    reader: &StoreReader,
    stream: &'a (StreamRoot, Region),
    visit: &mut dyn FnMut(Chunk<'a>) -> Result<()>,
) -> Result<()> {
    // What is read elsewhere is read as it is found.
    let most = if reader.is_memory() { CHUNK_BLOCKS } else { 1 };
    let mut blocks = Vec::new();
    read_blocks(reader, &stream.0, &mut |index, block| {
        blocks.push((index, *block));
        if blocks.len() < most {
            return Ok(());
        }
        let blocks = std::mem::take(&mut blocks);
        visit(Chunk { stream, blocks })
    })?;
    if blocks.is_empty() {
        return Ok(());
    }
    visit(Chunk { stream, blocks })
}

impl Chunk<'_> {
    /// Reads its blocks, those that stand side by side at once.
    fn read(&self, reader: &StoreReader) -> Result<()> {
        let mut rest = &self.blocks[..];
        while !rest.is_empty() {
            let (run, after) = rest.split_at(self.run_of(rest));
            self.read_run(reader, run)?;
            rest = after;
        }
        Ok(())
    }

    /// How many of the first blocks follow each other in the stream and in the store.
    fn run_of(&self, blocks: &[Numbered]) -> usize {
        let root = &self.stream.0;
        let mut bytes = root.block_length(blocks[0].0);
        let follows = |pair: &[Numbered]| {
            let ((at, block), (next_at, next)) = (pair[0], pair[1]);
            bytes += root.block_length(next_at);
            let end = index(block.address.offset_bytes()) + root.block_length(at);
            next_at == at + 1
                && next.address.segment() == block.address.segment()
                && index(next.address.offset_bytes()) == end
                && bytes <= RUN_BYTES_MAX
        };
        1 + blocks.windows(2).map(follows).take_while(|&is| is).count()
    }

    fn read_run(&self, reader: &StoreReader, run: &[Numbered]) -> Result<()> {
        let (root, region) = self.stream;
        let blocks = run.iter();
        let blocks = blocks.map(|&(at, block)| (block, root.block_length(at)));
        let start = to_u64(run[0].0) * u64::from(root.block_bytes);
        let length = blocks.clone().map(|(_, length)| length).sum();
        region.fill(start, length, |bytes| {
            reader.read_run(blocks, bytes, "block")
        })
    }
}
