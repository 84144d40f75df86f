// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the groups of many streams, captured by several threads.
//! In from: `capture` (streams). Out to: `capture` (what became of each stream's groups).
//! Invariants: each group is captured once, by one thread; a stream's changes are in the order of its groups.

use super::{Captured, Capturer, Stream, Worker};
use crate::tree::GroupChange;
use backstay_base::error::Result;
use backstay_base::fanout;
use std::ops::Range;

/// Less than this is captured by one thread.
const PARALLEL_BYTES_MIN: u64 = 8 << 20;
/// Groups that a thread takes at a time: 2 MiB in blocks of 16 KiB.
const CHUNK_GROUPS: usize = 4;

/// Some groups of one stream.
struct Chunk {
    stream: usize,
    groups: Range<usize>,
}

/// Captures the groups of all streams.
pub(super) fn groups_of_all(
    capturer: &Capturer<'_>,
    streams: &[Stream<'_>],
) -> Result<Vec<(Vec<GroupChange>, Captured)>> {
    let bytes = streams.iter().map(Stream::bytes_read);
    let bytes = bytes.fold(0, u64::saturating_add);
    if capturer.threads < 2 || bytes < PARALLEL_BYTES_MIN {
        let mut worker = Worker::new(capturer);
        let all = streams.iter();
        let all = all.map(|stream| worker.run(stream, 0..stream.groups()));
        let all = all.collect::<Result<_>>()?;
        worker.finish()?;
        return Ok(all);
    }
    let chunks = chunks_of(streams);
    let done = fanout::all(&chunks, capturer.threads, |_, chunk| {
        let mut worker = Worker::new(capturer);
        let done = worker.run(&streams[chunk.stream], chunk.groups.clone())?;
        worker.finish()?;
        Ok(done)
    })?;
    let mut all = Vec::new();
    all.resize_with(streams.len(), Default::default);
    for (chunk, (changes, captured)) in chunks.iter().zip(done) {
        let (of_stream, did): &mut (Vec<GroupChange>, Captured) = &mut all[chunk.stream];
        of_stream.extend(changes);
        did.add(&captured);
    }
    Ok(all)
}

fn chunks_of(streams: &[Stream<'_>]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for (stream, of) in streams.iter().enumerate() {
        let groups = of.groups();
        chunks.extend((0..groups).step_by(CHUNK_GROUPS).map(|first| Chunk {
            stream,
            groups: first..(first + CHUNK_GROUPS).min(groups),
        }));
    }
    chunks
}
