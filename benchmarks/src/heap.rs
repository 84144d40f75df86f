// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: counts the heap that a program holds, and the most it held.
//! In from: the whole program, through the global allocator. Out to: memory figures.
//! Invariants: counts bytes asked for, exactly; what the kernel keeps beside (page tables) is read
//! from /proc and reported apart.
#![expect(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, counted.
#[derive(Debug)]
pub struct Counting {
    held: AtomicUsize,
    peak: AtomicUsize,
}

impl Counting {
    /// Nothing held.
    #[expect(
        clippy::new_without_default,
        reason = "a static wants a const function"
    )]
    pub const fn new() -> Self {
        Self {
            held: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        }
    }
    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }
    /// The most bytes held since the last [`Self::start_peak`].
    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }
    /// Looks for a new peak from now on.
    pub fn start_peak(&self) {
        self.peak.store(self.held(), Relaxed);
    }

    fn took(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(held, Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with the caller's layout.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.took(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.took(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.held.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.took(size);
        self.held.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// A line of /proc/self/status in bytes, such as `RssAnon` or `VmPTE`; 0 where there is none.
pub fn status_bytes(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let kibibytes = line.and_then(|text| text.trim().trim_end_matches("kB").trim().parse().ok());
    kibibytes.map_or(0, |count: u64| count << 10)
}
