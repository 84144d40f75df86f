// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the memory of an extent on its way to the file: header, payload and padding, one behind the
//! other and aligned, so that what was gathered is written without being copied again.
//! In from: the composer (payloads). Out to: `queue`.
//! Invariants: an extent begins at an aligned address and is a multiple of the grain; memory goes back
//! to the pool when its last user lets go of it; the pool keeps no more than it was allowed to.

use backstay_base::io::direct::AlignedBytes;
use backstay_format::archive::GRAIN_BYTES;
use backstay_format::width::to_usize;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pieces of less are allocated anew each time.
const POOLED_BYTES_MIN: usize = 256 << 10;

/// Memory that is used again: page faults of fresh memory cost as much as copying.
#[derive(Debug)]
pub(super) struct Pool {
    bytes_max: usize,
    spare: Mutex<Spare>,
}

#[derive(Debug, Default)]
struct Spare {
    bytes: usize,
    /// By length.
    pieces: BTreeMap<usize, Vec<AlignedBytes>>,
}

impl Pool {
    /// A pool that keeps at most `bytes_max`.
    pub(super) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            spare: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of `length` bytes or more, with anything in it.
    fn take(self: &Arc<Self>, length: usize) -> Pooled {
        let grain = to_usize(GRAIN_BYTES);
        let mut capacity = length.next_multiple_of(grain);
        if capacity >= POOLED_BYTES_MIN {
            // An eighth too much at most, so that pieces of nearly the same length are one's and another's.
            capacity = capacity.next_multiple_of((capacity / 8).next_power_of_two());
            let mut spare = self.lock();
            if let Some(memory) = spare.pieces.get_mut(&capacity).and_then(Vec::pop) {
                spare.bytes -= capacity;
                return self.pooled(memory);
            }
        }
        self.pooled(AlignedBytes::new(capacity))
    }

    fn pooled(self: &Arc<Self>, memory: AlignedBytes) -> Pooled {
        Pooled {
            memory: Some(memory),
            pool: Arc::clone(self),
        }
    }

    fn give(&self, memory: AlignedBytes) {
        let capacity = memory.len();
        let mut spare = self.lock();
        if capacity >= POOLED_BYTES_MIN && spare.bytes + capacity <= self.bytes_max {
            spare.bytes += capacity;
            spare.pieces.entry(capacity).or_default().push(memory);
        }
    }
}

/// Memory of a pool.
struct Pooled {
    /// None only while it is dropped.
    memory: Option<AlignedBytes>,
    pool: Arc<Pool>,
}

impl Deref for Pooled {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.memory.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Pooled {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.give(memory);
        }
    }
}

/// The payload of a segment that is to be stored.
pub struct Payload(Memory);

enum Memory {
    /// Bytes from anywhere: copied into an extent.
    Plain(Vec<u8>),
    /// Bytes that stand `front` bytes behind the beginning of an extent.
    Placed {
        memory: Pooled,
        front: usize,
        length: usize,
    },
}

impl Payload {
    /// Room for `length` bytes, with anything in them, behind a header of `front` bytes.
    pub(super) fn room(pool: &Arc<Pool>, front: usize, length: usize) -> Self {
        let memory = pool.take(front + length);
        Self(Memory::Placed {
            memory,
            front,
            length,
        })
    }

    /// The extent of this payload behind `header`. Copies only what does not stand there already.
    pub(super) fn into_extent(self, header: &[u8], pool: &Arc<Pool>) -> Extent {
        let end = header.len() + self.len();
        let mut memory = match self.0 {
            Memory::Placed { memory, front, .. } if front == header.len() => memory,
            _ => {
                let mut memory = pool.take(end);
                memory[header.len()..end].copy_from_slice(&self);
                memory
            }
        };
        memory[..header.len()].copy_from_slice(header);
        let length = end.next_multiple_of(to_usize(GRAIN_BYTES));
        memory[end..length].fill(0);
        Extent {
            memory,
            end,
            length,
        }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Memory::Plain(bytes))
    }
}

impl Deref for Payload {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Plain(bytes) => bytes,
            Memory::Placed {
                memory,
                front,
                length,
            } => &memory[*front..front + length],
        }
    }
}

impl DerefMut for Payload {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Plain(bytes) => bytes,
            Memory::Placed {
                memory,
                front,
                length,
            } => &mut memory[*front..*front + *length],
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({})", self.len())
    }
}

/// Header, payload and padding.
pub(super) struct Extent {
    memory: Pooled,
    /// Where the payload ends.
    end: usize,
    length: usize,
}

impl Extent {
    /// Header and payload.
    pub(super) fn content(&self) -> &[u8] {
        &self.memory[..self.end]
    }
}

/// With the padding.
impl Deref for Extent {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extent({})", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_base::io::direct::ALIGNMENT;

    #[test]
    fn an_extent_is_the_same_whether_its_payload_stood_there_or_not() {
        let pool = Pool::new(1 << 20);
        let bytes: Vec<u8> = (0..5000_u32).map(|at| at.to_le_bytes()[0]).collect();
        for front in [3, 7] {
            let mut payload = Payload::room(&pool, front, bytes.len());
            payload.copy_from_slice(&bytes);
            let placed = payload.into_extent(b"headers", &pool);
            let copied = Payload::from(bytes.clone()).into_extent(b"headers", &pool);
            assert_eq!(*placed, *copied);
            assert_eq!(placed.content(), [b"headers", &bytes[..]].concat());
            assert_eq!(placed.len() % to_usize(GRAIN_BYTES), 0);
            assert!(placed[placed.end..].iter().all(|byte| *byte == 0));
            assert_eq!(placed.as_ptr().align_offset(ALIGNMENT), 0);
        }
    }

    #[test]
    fn the_pool_keeps_what_it_may_and_gives_it_out_again() {
        let pool = Pool::new(1 << 20);
        let first = Payload::room(&pool, 10, 600 << 10);
        let at = first.as_ptr();
        drop(first);
        let again = Payload::room(&pool, 10, 599 << 10);
        assert_eq!(again.as_ptr(), at);
        let others: Vec<Payload> = (0..4).map(|_| Payload::room(&pool, 0, 600 << 10)).collect();
        drop((again, others));
        assert!(pool.lock().bytes <= 1 << 20);
        assert!(pool.lock().bytes > 0);
    }
}
