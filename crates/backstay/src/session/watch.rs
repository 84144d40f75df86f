// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the caller's communicator, counted and watched: a collective that lasts long is reported.
//! In from: `session`. Out to: the application's communicator.
//! Invariants: it never interrupts a call (the communicator is the application's); it only reports.

use backstay_base::Communicator;
use backstay_base::clock::Stopwatch;
use backstay_base::error::Result;
use backstay_base::notice;
use backstay_format::width::{to_u64, to_usize};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// What a broadcast brings with its first call: a length, and so much of the rest.
const FIRST_BYTES: usize = 1024;

/// A communicator under watch.
pub(super) struct Watched {
    inner: Box<dyn Communicator>,
    calls: AtomicU64,
    watch: Arc<Watch>,
}

#[derive(Default)]
struct Watch {
    current: Mutex<Current>,
    changed: Condvar,
    stop: AtomicBool,
}

#[derive(Default)]
struct Current {
    turn: u64,
    operation: Option<String>,
}

impl Watched {
    pub(super) fn new(
        inner: Box<dyn Communicator>,
        limit: Duration,
        cpu_set: Option<String>,
    ) -> Self {
        let watch = Arc::new(Watch::default());
        let watcher = Arc::clone(&watch);
        let rank = inner.rank();
        let spawned = std::thread::Builder::new()
            .name("backstay-watch".to_owned())
            .spawn(move || {
                backstay_base::cpu::restrict_thread(cpu_set.as_deref());
                watcher.run(rank, limit);
            });
        if let Err(error) = spawned {
            notice::warn(&format!("no watchdog for collective calls: {error}"));
        }
        Self {
            inner,
            calls: AtomicU64::new(0),
            watch,
        }
    }

    pub(super) fn rank(&self) -> u32 {
        self.inner.rank()
    }
    pub(super) fn size(&self) -> u32 {
        self.inner.size()
    }
    /// Collective calls made so far.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn allreduce_max(&self, what: &str, values: &mut [i64]) -> Result<()> {
        self.during(what, || self.inner.allreduce_max(values))
    }

    /// What every rank brings, of whatever length, on rank 0; nothing on the others.
    pub(super) fn gather(&self, what: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.during(what, || self.inner.gather(mine, 0))
    }
    /// What rank 0 has: one call where it is short, two where it is long.
    pub(super) fn broadcast(&self, what: &str, mine: Option<&[u8]>) -> Result<Vec<u8>> {
        let mine = mine.unwrap_or_default();
        let mut first = vec![0; FIRST_BYTES];
        let head = mine.len().min(FIRST_BYTES - 8);
        first[..8].copy_from_slice(&to_u64(mine.len()).to_le_bytes());
        first[8..8 + head].copy_from_slice(&mine[..head]);
        self.during(what, || self.inner.broadcast(&mut first, 0))?;
        let mut length = [0; 8];
        length.copy_from_slice(&first[..8]);
        let length = to_usize(u64::from_le_bytes(length));
        let mut bytes = first.split_off(8);
        let head = length.min(bytes.len());
        bytes.resize(length, 0);
        if head < length {
            if self.rank() == 0 {
                bytes.copy_from_slice(mine);
            }
            self.during(what, || self.inner.broadcast(&mut bytes[head..], 0))?;
        }
        Ok(bytes)
    }

    fn during<T>(&self, what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.watch.set(Some(what.to_owned()));
        let outcome = call();
        self.watch.set(None);
        outcome.map_err(|error| error.within(what))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.stop.store(true, Ordering::Release);
        self.watch.changed.notify_all();
    }
}

impl Watch {
    fn set(&self, operation: Option<String>) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // Waking the watchdog for each call would cost more than the call: it looks by itself.
        current.turn += 1;
        current.operation = operation;
    }

    fn run(&self, rank: u32, limit: Duration) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = (current.turn, Stopwatch::start());
        while !self.stop.load(Ordering::Acquire) {
            let pause = (limit / 4).max(Duration::from_millis(10));
            let waited = self.changed.wait_timeout(current, pause);
            current = waited.unwrap_or_else(PoisonError::into_inner).0;
            if current.turn != seen.0 {
                seen = (current.turn, Stopwatch::start());
            } else if let Some(operation) = &current.operation
                && seen.1.elapsed() >= limit
            {
                notice::warn(&format!(
                    "rank {rank} has been in the communicator for {:.1} s: {operation}; another \
                     rank does not come",
                    seen.1.seconds()
                ));
                seen.1 = Stopwatch::start();
            }
        }
    }
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish()
    }
}
