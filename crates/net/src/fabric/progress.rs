// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the thread that has a provider go on with what peers ask of this endpoint.
//! In from: `fabric`. Out to: the port that peers read from.
//! Invariants: it sleeps in the provider where that can wake it; else it looks at it now and then, more often
//! while somebody is about to read.

use super::raw::{Failed, Port};
use backstay_base::notice;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest sleep in the provider: it is woken before where there is something to do.
const SLEEP: Duration = Duration::from_millis(500);
/// Between two looks at a provider that wakes nobody: seldom, because a look waits for a lock that readers hold
/// while they copy, and often take again before it.
const SELDOM: Duration = Duration::from_millis(250);
/// The same while somebody is about to read, and how many of these looks follow a description.
const OFTEN: Duration = Duration::from_micros(200);
const LOOKS: u32 = 500;

#[derive(Debug)]
struct Shared {
    port: Arc<Port>,
    ended: AtomicBool,
    looks: AtomicU32,
    hurried: (Mutex<()>, Condvar),
}

/// The thread, until it is ended.
#[derive(Debug)]
pub(super) struct Progress {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Progress {
    pub(super) fn start(port: Arc<Port>) -> Result<Self, String> {
        let shared = Arc::new(Shared {
            port,
            ended: AtomicBool::new(false),
            looks: AtomicU32::new(0),
            hurried: Default::default(),
        });
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("backstay-fabric".to_owned());
        let thread = thread
            .spawn(move || its.run())
            .map_err(|error| error.to_string())?;
        let thread = Mutex::new(Some(thread));
        Ok(Self { shared, thread })
    }

    pub(super) fn port(&self) -> &Port {
        &self.shared.port
    }

    /// Somebody is about to read.
    pub(super) fn hurry(&self) {
        if !self.shared.port.can_wait() && self.shared.looks.swap(LOOKS, Ordering::AcqRel) == 0 {
            self.shared.wake();
        }
    }

    /// Ends the thread, and waits for it.
    pub(super) fn end(&self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.wake();
        self.shared.port.signal();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            notice::warn("the thread of libfabric panicked");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn wake(&self) {
        drop(self.hurried.0.lock());
        self.hurried.1.notify_all();
    }

    fn run(&self) {
        while !self.ended.load(Ordering::Acquire) {
            let polled = self.port.poll(self.port.can_wait().then_some(SLEEP));
            if let Err(Failed::Broken(words)) = polled {
                notice::warn(&format!("nobody reads over libfabric any more: {words}"));
                return;
            }
            if !self.port.can_wait() {
                self.pause();
            }
        }
    }

    fn pause(&self) {
        let one_less = |looks: u32| looks.checked_sub(1);
        let hurried = self
            .looks
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
        let pause = if hurried.is_ok() { OFTEN } else { SELDOM };
        let hurried = self
            .hurried
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.ended.load(Ordering::Acquire) {
            return;
        }
        let waited = self.hurried.1.wait_timeout(hurried, pause);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
