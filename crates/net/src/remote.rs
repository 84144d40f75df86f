// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a peer exposes, as a device to read from.
//! In from: composers. Out to: an endpoint, which pulls.
//! Invariants: read only; small reads are made of longer pulls, which are kept for a while, and are the longer the
//! more was read in a row; what a peer did not give is asked for again within the limit, and keeps its kind: it
//! proves nothing of what is stored.

use super::{Endpoint, ExposureId, Peer, words};
use backstay_base::clock::Backoff;
use backstay_base::error;
use backstay_base::io::ReadAt;
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{Digest, StoreId};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The exposure of a store's whole file; its segments, by their ids, are exposed under the store's id.
pub fn file_exposure(store: StoreId) -> ExposureId {
    ExposureId(Digest::of(format!("file of store {store}").as_bytes()).0)
}

/// What a pull gets that begins when the limit has just passed.
const LAST_TRY: Duration = Duration::from_millis(1);

/// Damage on the way, and a peer that does not expose what it had, say nothing of what is stored there.
fn of_the_way(failed: error::Error) -> error::Error {
    if failed.kind().proves_loss() {
        return error::Error::new(error::ErrorKind::PeerUnreachable, words(&failed));
    }
    failed
}

/// Small reads are made of pieces of this size, which are kept, and of twice as much behind each that was read to its
/// end,
const PIECE_BYTES: u64 = 16 << 10;
/// up to this.
const CHUNK_BYTES: u64 = 256 << 10;
/// Chunks kept where nothing else is said.
const CHUNKS_MAX: usize = 32;

/// What was pulled, by where it begins.
#[derive(Debug, Default)]
struct Kept {
    chunks: BTreeMap<u64, Arc<Vec<u8>>>,
    bytes: usize,
}

impl Kept {
    /// The last chunk that begins at `offset` or before it, and its end.
    fn before(&self, offset: u64) -> Option<(u64, u64, &Arc<Vec<u8>>)> {
        let (&start, chunk) = self.chunks.range(..=offset).next_back()?;
        Some((start, start + to_u64(chunk.len()), chunk))
    }

    /// What is to be pulled for byte `offset` of `length` bytes: where it begins, and how much. It begins at a multiple
    /// of its size, so it crosses no multiple of [`CHUNK_BYTES`], as segments end there.
    fn wanted(&self, offset: u64, length: u64) -> (u64, u64) {
        let start = offset / PIECE_BYTES * PIECE_BYTES;
        let ahead = match self.before(start) {
            Some((before, end, _)) if end == start => 2 * (end - before),
            _ => PIECE_BYTES,
        };
        let aligned = 1 << start.trailing_zeros().min(CHUNK_BYTES.trailing_zeros());
        let end = start.saturating_add(ahead.min(aligned));
        let next = self.chunks.range(start..).next().map(|(&next, _)| next);
        let end = end.min(length).min(next.unwrap_or(length));
        (start, end.saturating_sub(start))
    }
}

/// What a peer exposes, as a device that is only read. What it holds must not change meanwhile.
#[derive(Debug)]
pub struct RemoteDevice {
    endpoint: Arc<dyn Endpoint>,
    peer: Peer,
    exposure: ExposureId,
    length_bytes: u64,
    within: Duration,
    ended: Option<Arc<AtomicBool>>,
    chunks_max: usize,
    kept: Mutex<Kept>,
}

impl RemoteDevice {
    /// `length_bytes` of what `peer` exposes as `exposure`.
    pub fn new(
        endpoint: Arc<dyn Endpoint>,
        peer: Peer,
        exposure: ExposureId,
        length_bytes: u64,
        within: Duration,
    ) -> Self {
        Self {
            endpoint,
            peer,
            exposure,
            length_bytes,
            within,
            ended: None,
            chunks_max: CHUNKS_MAX,
            kept: Mutex::default(),
        }
    }

    /// Nothing more is read, nor tried again, once `ended` is set.
    #[must_use]
    pub fn until(mut self, ended: Arc<AtomicBool>) -> Self {
        self.ended = Some(ended);
        self
    }

    /// Keeps no more than so many times 256 KiB.
    #[must_use]
    pub fn keeping(mut self, chunks: usize) -> Self {
        self.chunks_max = chunks.max(1);
        self
    }

    fn is_ended(&self) -> bool {
        let ended = self.ended.as_ref();
        ended.is_some_and(|ended| ended.load(Ordering::Acquire))
    }

    fn pull(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let mut again = Backoff::within(self.within);
        let mut left = self.within;
        loop {
            if self.is_ended() {
                return Err(Error::other("who reads it was told to end"));
            }
            let pulled = self
                .endpoint
                .pull(&self.peer, self.exposure, offset, into, left);
            let Err(failed) = pulled else {
                return Ok(());
            };
            let may_pass = failed.kind().leaves_open() || failed.kind().proves_loss();
            if !may_pass || self.is_ended() || !again.pause() {
                return Err(Error::other(of_the_way(failed)));
            }
            left = again.left().unwrap_or(LAST_TRY);
        }
    }

    /// What has byte `offset`, and where it begins.
    fn chunk(&self, offset: u64) -> Result<(u64, Arc<Vec<u8>>)> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((start, end, chunk)) = kept.before(offset)
            && offset < end
        {
            return Ok((start, Arc::clone(chunk)));
        }
        let (start, length) = kept.wanted(offset, self.length_bytes);
        let mut bytes = vec![0; to_usize(length)];
        self.pull(&mut bytes, start)?;
        if kept.bytes + bytes.len() > self.chunks_max * to_usize(CHUNK_BYTES) {
            *kept = Kept::default();
        }
        kept.bytes += bytes.len();
        let chunk = Arc::new(bytes);
        kept.chunks.insert(start, Arc::clone(&chunk));
        Ok((start, chunk))
    }
}

impl ReadAt for RemoteDevice {
    fn length_bytes(&self) -> Result<u64> {
        Ok(self.length_bytes)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let end = offset + to_u64(buffer.len());
        if end > self.length_bytes {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        if to_u64(buffer.len()) >= CHUNK_BYTES {
            return self.pull(buffer, offset);
        }
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + to_u64(done);
            let (begins, chunk) = self.chunk(at)?;
            let start = to_usize(at - begins);
            let count = (chunk.len().saturating_sub(start)).min(buffer.len() - done);
            if count == 0 {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
            buffer[done..done + count].copy_from_slice(&chunk[start..start + count]);
            done += count;
        }
        Ok(())
    }

    fn name(&self) -> String {
        format!("{} of {}", self.exposure, self.peer)
    }
}
