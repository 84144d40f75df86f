// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: who has a session: nobody, a call, or a thread that captures a checkpoint.
//! In from: calls of `session`, from any thread. Out to: those calls, one at a time.
//! Invariants: a session that is lent comes back whatever happens; Python objects are let go with the
//! interpreter's lock held; a child made by fork waits for no thread of its parent.

use super::{Open, Session};
use crate::errors::invalid;
use crate::memory::Hold;
use engine::Session as Engine;
use pyo3::prelude::*;
use std::sync::{MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle, ThreadId};

/// Where the session is.
#[derive(Debug)]
pub(super) enum Slot {
    /// Nobody uses it.
    Here(Box<Open>),
    /// A call of this thread uses it.
    Lent(ThreadId),
    /// A checkpoint of it is captured.
    Capturing(Capturing),
    /// It was closed or abandoned.
    Gone,
}

/// A checkpoint that a thread captures, which has the session meanwhile.
pub(super) struct Capturing {
    process: u32,
    /// `None` once somebody waits for it.
    thread: Option<JoinHandle<Option<Box<Open>>>>,
    /// What keeps the memory where it is, until it was copied.
    #[expect(dead_code, reason = "kept for its end")]
    holds: Vec<Hold>,
}

impl Capturing {
    /// The session, when all is captured; `None` if the thread died.
    fn join(&mut self) -> Option<Box<Open>> {
        let thread = self.thread.take()?;
        if std::process::id() != self.process {
            // A child made by fork has no such thread.
            return None;
        }
        thread.join().ok().flatten()
    }
}

impl std::fmt::Debug for Capturing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capturing")
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        drop(self.join());
    }
}

/// The session while a call uses it; given back whatever happens.
pub(super) struct Loan<'a> {
    session: &'a Session,
    pub(super) open: Option<Box<Open>>,
    capturing: Option<Capturing>,
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let after = match self.capturing.take() {
            Some(capturing) => Slot::Capturing(capturing),
            None => self.open.take().map_or(Slot::Gone, Slot::Here),
        };
        *self.session.lock() = after;
        self.session.returned.notify_all();
    }
}

impl Session {
    pub(super) fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the process that opened it, and not a child made by fork.
    pub(super) fn is_ours(&self) -> bool {
        std::process::id() == self.process
    }

    /// Waits until no other thread uses it.
    pub(super) fn borrow(&self, py: Python<'_>) -> PyResult<Loan<'_>> {
        if !self.is_ours() {
            let context = format!(
                "this is process {}, a child made by fork; the session is that of process {}, which alone \
                 can use it",
                std::process::id(),
                self.process
            );
            return Err(invalid(py, context));
        }
        let this = std::thread::current().id();
        let mut captured = None;
        let taken = py.detach(|| {
            let mut slot = self.lock();
            loop {
                match std::mem::replace(&mut *slot, Slot::Lent(this)) {
                    Slot::Here(open) => return Ok(open),
                    Slot::Capturing(mut capturing) => {
                        drop(slot);
                        let open = capturing.join();
                        captured = Some(capturing);
                        if open.is_none() {
                            *self.lock() = Slot::Gone;
                            self.returned.notify_all();
                        }
                        return open.ok_or("the thread that captured a checkpoint died");
                    }
                    Slot::Gone => {
                        *slot = Slot::Gone;
                        return Err("the session is closed");
                    }
                    Slot::Lent(other) => {
                        *slot = Slot::Lent(other);
                        if other == this {
                            return Err("called by what a call of the same session waits for");
                        }
                        slot = self
                            .returned
                            .wait(slot)
                            .unwrap_or_else(PoisonError::into_inner);
                    }
                }
            }
        });
        // With the interpreter's lock held.
        drop(captured);
        taken
            .map(|open| Loan {
                session: self,
                open: Some(open),
                capturing: None,
            })
            .map_err(|why| invalid(py, why))
    }

    /// Whether a checkpoint is being captured just now.
    pub(super) fn is_capturing(&self) -> bool {
        match &*self.lock() {
            Slot::Capturing(capturing) => capturing
                .thread
                .as_ref()
                .is_some_and(|thread| !thread.is_finished()),
            Slot::Here(_) | Slot::Lent(_) | Slot::Gone => false,
        }
    }

    /// Announces a checkpoint, and leaves the session to a thread that captures it; `settle` is called before.
    pub(super) fn start_behind(
        &self,
        py: Python<'_>,
        settle: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<engine::Handle> {
        let mut loan = self.borrow(py)?;
        let open = loan.open.as_mut();
        let open = open.ok_or_else(|| invalid(py, "the session is closed"))?;
        if open.has_files {
            // They may be written again when this returns.
            drop(loan);
            settle.map(Bound::call0).transpose()?;
            return self.engine_with_memory(py, None, Engine::checkpoint_start);
        }
        let (holds, wrong) = open.look(py, None);
        // What is copied meanwhile is waited for as late as can be.
        settle.map(Bound::call0).transpose()?;
        let announced = py.detach(|| open.engine.checkpoint_announce());
        let handle = announced.map_err(|error| self.tell(py, &error))?;
        // What is nowhere fails on all ranks when it is captured: the next call tells.
        if let Some(wrong) = wrong {
            let captured = py.detach(|| open.engine.checkpoint_capture());
            drop(holds);
            captured.map_err(|error| self.tell(py, &error))?;
            return Err(wrong);
        }
        let (lend, lent) = std::sync::mpsc::channel::<Box<Open>>();
        let capture = move || {
            let mut open = lent.recv().ok()?;
            // Whether it went well is known to the engine, and told when the checkpoint is settled.
            drop(open.engine.checkpoint_capture());
            Some(open)
        };
        let named = Builder::new().name("backstay-capture".to_owned());
        let Ok(thread) = named.spawn(capture) else {
            let captured = py.detach(|| open.engine.checkpoint_capture());
            drop(holds);
            return captured
                .map(|()| handle)
                .map_err(|error| self.tell(py, &error));
        };
        if let Some(open) = loan.open.take()
            && let Err(back) = lend.send(open)
        {
            loan.open = Some(back.0);
            return Err(invalid(py, "the thread that was to capture died"));
        }
        loan.capturing = Some(Capturing {
            process: self.process,
            thread: Some(thread),
            holds,
        });
        Ok(handle)
    }
}
