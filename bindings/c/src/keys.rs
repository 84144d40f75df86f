// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what C holds: things by keys in the place of addresses.
//! Invariants: a key is never followed, and never given twice in a process, so that one that is kept too long is found to
//! be none; in a child made by fork nobody waits for what a thread of its parent held.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// A key that nobody has.
pub(crate) fn new<T>() -> *mut T {
    let number = GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
    // Aligned, as what C takes for an address should be.
    std::ptr::without_provenance_mut(number << 4)
}

/// Things by their keys.
#[derive(Debug)]
pub(crate) struct Keyed<T> {
    things: Mutex<BTreeMap<usize, Arc<T>>>,
    /// The process that put the last of them there.
    process: AtomicU32,
}

impl<T> Keyed<T> {
    pub(crate) const fn none() -> Self {
        Self {
            things: Mutex::new(BTreeMap::new()),
            process: AtomicU32::new(0),
        }
    }

    pub(crate) fn insert(&self, thing: T) -> *mut T {
        let key = new::<T>();
        self.process.store(std::process::id(), Ordering::Release);
        if let Some(mut things) = self.lock() {
            things.insert(key.addr(), Arc::new(thing));
        }
        key
    }

    pub(crate) fn get(&self, key: *const T) -> Option<Arc<T>> {
        self.lock()?.get(&key.addr()).cloned()
    }

    pub(crate) fn remove(&self, key: *const T) -> Option<Arc<T>> {
        self.lock()?.remove(&key.addr())
    }

    /// The process that holds them, where this is a child of it, made by fork.
    pub(crate) fn parent(&self) -> Option<u32> {
        let process = self.process.load(Ordering::Acquire);
        (process != 0 && process != std::process::id()).then_some(process)
    }

    /// What `body` gives while somebody looks for a thing.
    #[cfg(test)]
    pub(crate) fn while_held<R>(&self, body: impl FnOnce() -> R) -> R {
        let _held = self.lock();
        body()
    }

    /// `None` in a child made by fork, where another thread of the parent was there just then.
    fn lock(&self) -> Option<MutexGuard<'_, BTreeMap<usize, Arc<T>>>> {
        if self.process.load(Ordering::Acquire) == std::process::id() {
            return Some(self.things.lock().unwrap_or_else(PoisonError::into_inner));
        }
        match self.things.try_lock() {
            Ok(things) => Some(things),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
