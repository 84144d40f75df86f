// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a peer exposes, as a device to read from.
//! In from: composers. Out to: an endpoint, which pulls.
//! Invariants: read only; small reads are made of longer pulls, which are kept for a while; what a peer did
//! not give is asked for again within the limit, and keeps its kind: it proves nothing of what is stored.

use super::{Endpoint, ExposureId, Peer, words};
use backstay_base::clock::Backoff;
use backstay_base::error;
use backstay_base::io::Device;
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

fn read_only() -> Error {
    Error::new(
        ErrorKind::PermissionDenied,
        "what a peer exposes is only read",
    )
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

/// Small reads are made of chunks of this size, which are kept.
const CHUNK_BYTES: u64 = 256 << 10;
/// Chunks kept where nothing else is said.
const CHUNKS_MAX: usize = 32;

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
    chunks: Mutex<BTreeMap<u64, Arc<Vec<u8>>>>,
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
            chunks: Mutex::default(),
        }
    }

    /// Nothing more is read, nor tried again, once `ended` is set.
    #[must_use]
    pub fn until(mut self, ended: Arc<AtomicBool>) -> Self {
        self.ended = Some(ended);
        self
    }

    /// Keeps no more than so many chunks of 256 KiB.
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

    fn chunk(&self, number: u64) -> Result<Arc<Vec<u8>>> {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(chunk) = chunks.get(&number) {
            return Ok(Arc::clone(chunk));
        }
        let start = number * CHUNK_BYTES;
        let length = CHUNK_BYTES.min(self.length_bytes.saturating_sub(start));
        let mut bytes = vec![0; to_usize(length)];
        self.pull(&mut bytes, start)?;
        if chunks.len() >= self.chunks_max {
            chunks.clear();
        }
        let chunk = Arc::new(bytes);
        chunks.insert(number, Arc::clone(&chunk));
        Ok(chunk)
    }
}

impl Device for RemoteDevice {
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
            let chunk = self.chunk(at / CHUNK_BYTES)?;
            let start = to_usize(at % CHUNK_BYTES);
            let count = (chunk.len().saturating_sub(start)).min(buffer.len() - done);
            if count == 0 {
                return Err(Error::from(ErrorKind::UnexpectedEof));
            }
            buffer[done..done + count].copy_from_slice(&chunk[start..start + count]);
            done += count;
        }
        Ok(())
    }
    fn write_at(&self, _bytes: &[u8], _offset: u64) -> Result<()> {
        Err(read_only())
    }
    fn sync(&self) -> Result<()> {
        Err(read_only())
    }
    fn reserve(&self, _length_bytes: u64) -> Result<()> {
        Err(read_only())
    }
    fn name(&self) -> String {
        format!("{} of {}", self.exposure, self.peer)
    }
}
