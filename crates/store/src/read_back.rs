// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: variables of a checkpoint, read back into memory by several threads.
//! In from: `reader`, `tree` (where blocks are). Out to: `region` (the program's memory).
//! Invariants: every block is verified before it is copied; each is read once, by one thread.

use crate::reader::StoreReader;
use crate::region::{Region, Sink};
use crate::tree::read_blocks;
use backstay_base::error::Result;
use backstay_base::fanout;
use backstay_format::width::to_u64;
use backstay_format::{BlockRef, StreamRoot};

/// Less than this is read by one thread.
const PARALLEL_BYTES_MIN: u64 = 8 << 20;
/// Blocks that a thread reads at a time.
const CHUNK_BLOCKS: usize = 128;

/// Blocks of one stream, in their order.
struct Chunk<'a> {
    stream: &'a (StreamRoot, Region),
    blocks: Vec<(usize, BlockRef)>,
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
        let mut buffer = Vec::new();
        for (root, region) in streams {
            read_blocks(reader, root, &mut |index, block| {
                read_block(reader, (root, *region), (index, *block), &mut buffer)
            })?;
        }
        return Ok(bytes);
    }
    let chunks = chunks_of(reader, streams)?;
    fanout::all(&chunks, threads, |_, chunk| {
        let (root, region) = chunk.stream;
        let mut buffer = Vec::new();
        for &block in &chunk.blocks {
            read_block(reader, (root, *region), block, &mut buffer)?;
        }
        Ok(())
    })?;
    Ok(bytes)
}

fn chunks_of<'a>(
    reader: &StoreReader,
    streams: &'a [(StreamRoot, Region)],
) -> Result<Vec<Chunk<'a>>> {
    let mut chunks = Vec::new();
    for stream in streams {
        let mut blocks = Vec::new();
        read_blocks(reader, &stream.0, &mut |index, block| {
            blocks.push((index, *block));
            if blocks.len() == CHUNK_BLOCKS {
                let blocks = std::mem::take(&mut blocks);
                chunks.push(Chunk { stream, blocks });
            }
            Ok(())
        })?;
        if !blocks.is_empty() {
            chunks.push(Chunk { stream, blocks });
        }
    }
    Ok(chunks)
}

fn read_block(
    reader: &StoreReader,
    (root, mut region): (&StreamRoot, Region),
    (index, block): (usize, BlockRef),
    buffer: &mut Vec<u8>,
) -> Result<()> {
    buffer.resize(root.block_length(index), 0);
    reader.read(&block, buffer, "block")?;
    region.copy_in(to_u64(index) * u64::from(root.block_bytes), buffer);
    Ok(())
}
