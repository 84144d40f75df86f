// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: decoded segments, the least recently used ones forgotten first.
//! Invariants: bounded, but for the one used last; one thread makes a segment, others that want it wait.

use backstay_base::error::Result;
use backstay_format::SegmentId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Decoded segments.
#[derive(Debug)]
pub(super) struct SegmentCache {
    limit_bytes: usize,
    state: Mutex<State>,
    /// A segment was made, or could not be.
    made: Condvar,
}

#[derive(Debug, Default)]
struct State {
    kept: BTreeMap<SegmentId, (Arc<Vec<u8>>, u64)>,
    /// By when they were used.
    order: BTreeMap<u64, SegmentId>,
    bytes: usize,
    uses: u64,
    in_making: BTreeSet<SegmentId>,
}

impl State {
    fn take(&mut self, segment: SegmentId) -> Option<Arc<Vec<u8>>> {
        self.uses += 1;
        let uses = self.uses;
        let (bytes, used) = self.kept.get_mut(&segment)?;
        self.order.remove(used);
        *used = uses;
        self.order.insert(uses, segment);
        Some(Arc::clone(bytes))
    }

    fn put(&mut self, segment: SegmentId, bytes: &Arc<Vec<u8>>, limit: usize) {
        while self.bytes + bytes.len() > limit
            && let Some((_, oldest)) = self.order.pop_first()
        {
            let gone = self.kept.remove(&oldest);
            self.bytes -= gone.map_or(0, |(bytes, _)| bytes.len());
        }
        self.uses += 1;
        self.bytes += bytes.len();
        self.order.insert(self.uses, segment);
        self.kept.insert(segment, (Arc::clone(bytes), self.uses));
    }
}

/// Lets those that wait go on, also where making ends in a panic.
struct Making<'a> {
    cache: &'a SegmentCache,
    segment: SegmentId,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.cache.lock().in_making.remove(&self.segment);
        self.cache.made.notify_all();
    }
}

impl SegmentCache {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            state: Mutex::default(),
            made: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `segment` as it is kept, or as `make` makes it.
    pub(super) fn get(
        &self,
        segment: SegmentId,
        make: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Arc<Vec<u8>>> {
        let mut state = self.lock();
        loop {
            if let Some(bytes) = state.take(segment) {
                return Ok(bytes);
            }
            if state.in_making.insert(segment) {
                break;
            }
            state = self
                .made
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let making = Making {
            cache: self,
            segment,
        };
        let bytes = Arc::new(make()?);
        self.lock().put(segment, &bytes, self.limit_bytes);
        drop(making);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_base::error::{Error, ErrorKind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_thread_makes_a_segment_and_the_oldest_go_first() {
        let cache = SegmentCache::new(250);
        let made = AtomicUsize::new(0);
        let get = |id| {
            cache.get(SegmentId(id), || {
                made.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(20));
                Ok(vec![0; 100])
            })
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| get(1).unwrap());
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
        for id in [2, 1, 3, 1, 2] {
            get(id).unwrap();
        }
        // 3 took the place of 2, then 2 that of 3.
        assert_eq!(made.load(Ordering::Relaxed), 4);
        assert_eq!(cache.lock().bytes, 200);
        let large = cache.get(SegmentId(9), || Ok(vec![0; 1000])).unwrap();
        assert_eq!((large.len(), cache.lock().bytes), (1000, 1000));
    }

    #[test]
    fn what_cannot_be_made_is_tried_again() {
        let cache = SegmentCache::new(100);
        let failed = || Err(Error::new(ErrorKind::Corrupt, "x"));
        assert!(cache.get(SegmentId(1), failed).is_err());
        assert!(cache.get(SegmentId(1), || Ok(vec![1])).is_ok());
    }
}
