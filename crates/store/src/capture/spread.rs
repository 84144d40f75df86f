// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the groups of many streams, captured by several threads.
//! In from: `capture` (streams). Out to: `capture` (what became of each stream's groups).
//! Invariants: each group is captured once, by one thread; a stream's changes are in the order of its groups.

use super::{Captured, Capturer, Stream, Worker};
use crate::tree::GroupChange;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::index;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, ScopedJoinHandle, scope};

/// Less than this is captured by one thread.
const PARALLEL_BYTES_MIN: u64 = 8 << 20;
/// Groups that a thread takes at a time: 2 MiB in blocks of 16 KiB.
const CHUNK_GROUPS: usize = 4;

/// Some groups of one stream.
struct Chunk {
    stream: usize,
    groups: Range<usize>,
}

type Groups = (Vec<GroupChange>, Captured);

/// Captures the groups of all streams.
pub(super) fn groups_of_all(
    capturer: &Capturer<'_>,
    streams: &[Stream<'_>],
) -> Result<Vec<Groups>> {
    let block_bytes = streams.iter().map(|stream| stream.root.block_bytes).max();
    let block_bytes = index(block_bytes.unwrap_or(0));
    let bytes = streams.iter().map(Stream::bytes_read);
    let bytes = bytes.fold(0, u64::saturating_add);
    if capturer.threads < 2 || bytes < PARALLEL_BYTES_MIN {
        let mut worker = Worker::new(capturer, block_bytes);
        let all = streams.iter();
        let all = all.map(|stream| worker.run(stream, 0..stream.groups()));
        let all = all.collect::<Result<_>>()?;
        worker.finish()?;
        return Ok(all);
    }
    let work = Work {
        streams,
        chunks: chunks_of(streams),
        next: AtomicUsize::new(0),
    };
    let mut all: Vec<Groups> = Vec::new();
    all.resize_with(streams.len(), Default::default);
    for (chunk, (changes, captured)) in by_threads(capturer, &work, block_bytes)? {
        let (of_stream, did) = &mut all[work.chunks[chunk].stream];
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

/// What is to be done, and how much of it was taken.
struct Work<'a> {
    streams: &'a [Stream<'a>],
    chunks: Vec<Chunk>,
    next: AtomicUsize,
}

impl Work<'_> {
    /// Captures chunk after chunk until none is left; each with its place.
    fn take(&self, capturer: &Capturer<'_>, block_bytes: usize) -> Result<Vec<(usize, Groups)>> {
        let mut worker = Worker::new(capturer, block_bytes);
        let mut done = Vec::new();
        let mut run = || {
            loop {
                let at = self.next.fetch_add(1, Ordering::Relaxed);
                let Some(chunk) = self.chunks.get(at) else {
                    return Ok(());
                };
                let stream = &self.streams[chunk.stream];
                done.push((at, worker.run(stream, chunk.groups.clone())?));
            }
        };
        let outcome = run().and_then(|()| worker.finish());
        if outcome.is_err() {
            // The others have nothing left to do.
            self.next.fetch_max(self.chunks.len(), Ordering::Relaxed);
        }
        outcome.map(|()| done)
    }
}

/// What became of all chunks, in their order. This thread is one of them; where the system gives fewer, they do it.
fn by_threads(
    capturer: &Capturer<'_>,
    work: &Work<'_>,
    block_bytes: usize,
) -> Result<Vec<(usize, Groups)>> {
    let others = capturer.threads.min(work.chunks.len()).saturating_sub(1);
    let parts: Vec<_> = scope(|scope| {
        let started: Vec<_> = (0..others)
            .map_while(|_| {
                let named = Builder::new().name("backstay-capture".to_owned());
                named
                    .spawn_scoped(scope, || work.take(capturer, block_bytes))
                    .ok()
            })
            .collect();
        let own = work.take(capturer, block_bytes);
        let others = started.into_iter().map(join);
        std::iter::once(own).chain(others).collect()
    });
    let mut done = Vec::new();
    for part in parts {
        done.extend(part?);
    }
    done.sort_unstable_by_key(|&(chunk, _)| chunk);
    Ok(done)
}

fn join<T>(worker: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    worker.join().unwrap_or_else(|_panic| {
        let context = "a capture thread panicked";
        Err(Error::new(ErrorKind::Internal, context))
    })
}
