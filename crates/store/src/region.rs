// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the memory of a variable on this rank, as something to copy out of and into.
//! In from: the application's pointers. Out to: `store::capture` (copy out), `read_back` and `session` (filled, copied in).
//! Invariants: what is captured is never seen as a Rust slice, since the application may write it while we read; it is
//! copied out first, and only the copy is hashed and kept. What is restored the application leaves alone meanwhile.
#![expect(
    unsafe_code,
    reason = "application memory is reached by pointer, here and nowhere else"
)]

use backstay_base::error::Result;
use backstay_format::width::{to_u64, to_usize};
use std::fmt::Debug;

/// Bytes that blocks are copied from.
pub trait Source: Debug + Sync {
    /// How many there are.
    fn length_bytes(&self) -> u64;
    /// Makes ready to be copied out of.
    fn begin(&self) -> Result<()> {
        Ok(())
    }
    /// All was copied out: an error says that what was is not what it had from beginning to end.
    fn end(&self) -> Result<()> {
        Ok(())
    }
    /// Copies `buffer.len()` bytes from `offset`; the range lies within the length.
    fn copy_out(&self, offset: u64, buffer: &mut [u8]);
    /// Says that a range is copied out next. The range lies within the length.
    fn expect(&self, _offset: u64, _length: usize) {}
}

/// Bytes that blocks are copied to.
pub trait Sink: Debug {
    /// Copies `bytes` to `offset`; the range lies within the length.
    fn copy_in(&mut self, offset: u64, bytes: &[u8]);
}

/// Host memory of a variable.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    address: *mut u8,
    length: usize,
}

// SAFETY: a region is an address and a length; whoever registered it promised that the memory stays
// valid, from any thread, until it is registered anew or the session ends.
unsafe impl Send for Region {}
// SAFETY: as above; copies of overlapping ranges are only made in one direction at a time.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `length_bytes` at `address`.
    ///
    /// # Safety
    /// The memory is valid for reads and writes of `length_bytes` for as long as the region is used.
    pub unsafe fn new(address: *mut u8, length_bytes: u64) -> Self {
        Self {
            address,
            length: to_usize(length_bytes),
        }
    }

    /// Where it stands, for change tracking by page.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// The addresses of its bytes.
    pub fn addresses(&self) -> std::ops::Range<usize> {
        let start = self.address.addr();
        start..start.saturating_add(self.length)
    }

    /// Has `fill` write the bytes from `offset` on where they stand; they lie within the length. No two calls are about
    /// the same bytes at once.
    pub fn fill<T>(&self, offset: u64, length: usize, fill: impl FnOnce(&mut [u8]) -> T) -> T {
        let offset = self.check(offset, length);
        // SAFETY: the range lies in the region (checked), which its owner keeps valid and touches in no other way while
        // it is restored; of those that restore it each has blocks of its own.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.address.add(offset), length) };
        fill(bytes)
    }

    fn check(&self, offset: u64, count: usize) -> usize {
        let offset = to_usize(offset);
        assert!(
            offset
                .checked_add(count)
                .is_some_and(|end| end <= self.length),
            "copy of {count} bytes at {offset} of a region of {}",
            self.length
        );
        offset
    }
}

impl Source for Region {
    fn length_bytes(&self) -> u64 {
        to_u64(self.length)
    }

    fn copy_out(&self, offset: u64, buffer: &mut [u8]) {
        let offset = self.check(offset, buffer.len());
        // SAFETY: the range lies in the region (checked), which its owner keeps valid.
        let from = unsafe { self.address.add(offset) };
        // SAFETY: `from` is valid for `buffer.len()` bytes and `buffer` is ours, so they are apart.
        unsafe { std::ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len()) }
    }

    fn expect(&self, offset: u64, length: usize) {
        prefetch_pages(self.address.wrapping_add(to_usize(offset)), length);
    }
}

/// Starts the hardware's own prefetching on each page of a range, so that memory is not idle while
/// the block before it is hashed: copying and hashing then cost what copying alone does.
#[cfg(target_arch = "x86_64")]
fn prefetch_pages(address: *const u8, length: usize) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    const PAGE_BYTES: usize = 4096;
    const LINE_BYTES: usize = 64;
    /// Lines asked for in each page: enough for the prefetcher to see a stream.
    const LINES: usize = 4;
    for page in (0..length).step_by(PAGE_BYTES) {
        for line in 0..LINES {
            let line = address.wrapping_add(page + line * LINE_BYTES);
            // SAFETY: a prefetch reads nothing: any address is allowed.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch_pages(_address: *const u8, _length: usize) {}

impl Sink for Region {
    fn copy_in(&mut self, offset: u64, bytes: &[u8]) {
        let offset = self.check(offset, bytes.len());
        // SAFETY: the range lies in the region (checked), which its owner keeps valid.
        let to = unsafe { self.address.add(offset) };
        // SAFETY: `to` is valid for `bytes.len()` bytes; `bytes` is a buffer of ours, so they are apart.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }
}

/// A slice as a source.
impl Source for &[u8] {
    fn length_bytes(&self) -> u64 {
        to_u64(self.len())
    }
    fn copy_out(&self, offset: u64, buffer: &mut [u8]) {
        let offset = to_usize(offset);
        buffer.copy_from_slice(&self[offset..offset + buffer.len()]);
    }
}

/// A vector as a sink.
impl Sink for Vec<u8> {
    fn copy_in(&mut self, offset: u64, bytes: &[u8]) {
        let offset = to_usize(offset);
        self[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}
