// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: who answers calls: threads, as many as there are calls that take long at the same time.
//! In from: the listener that a program that begins hands over. Out to: `answer`.
//! Invariants: while there is a call to receive, a thread receives it, unless there are as many as there may be; they end
//! when the last process ends whose calls are told.

use crate::answer::Answers;
use crate::kernel;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const STACK_BYTES: usize = 256 << 10;
/// Threads, at most.
const THREADS_MAX: usize = 256;
/// Threads that wait for calls, at most.
const IDLE_MAX: usize = 4;

pub(crate) struct Pool {
    answers: Answers,
    /// Who has it receives.
    turn: Mutex<()>,
    idle: AtomicUsize,
    all: AtomicUsize,
}

/// Answers calls from now on.
pub(crate) fn begin(answers: Answers) -> std::io::Result<()> {
    kernel::hasten(answers.listener());
    let pool = Arc::new(Pool {
        answers,
        turn: Mutex::new(()),
        idle: AtomicUsize::new(0),
        all: AtomicUsize::new(0),
    });
    spawn(&pool)
}

fn spawn(pool: &Arc<Pool>) -> std::io::Result<()> {
    let own = Arc::clone(pool);
    own.idle.fetch_add(1, Ordering::AcqRel);
    own.all.fetch_add(1, Ordering::AcqRel);
    let builder = std::thread::Builder::new()
        .name("route-answers".to_owned())
        .stack_size(STACK_BYTES);
    let spawned = builder.spawn(move || own.serve());
    if spawned.is_err() {
        pool.idle.fetch_sub(1, Ordering::AcqRel);
        pool.all.fetch_sub(1, Ordering::AcqRel);
    }
    spawned.map(drop)
}

impl Pool {
    fn serve(self: &Arc<Self>) {
        while let Some(call) = self.receive() {
            let was_last = self.idle.fetch_sub(1, Ordering::AcqRel) == 1;
            if was_last && self.all.load(Ordering::Acquire) < THREADS_MAX {
                // Where there is none to be had, this one receives when it is done.
                drop(spawn(self));
            }
            self.answers.answer(&call);
            if self.idle.fetch_add(1, Ordering::AcqRel) >= IDLE_MAX {
                break;
            }
        }
        self.idle.fetch_sub(1, Ordering::AcqRel);
        self.all.fetch_sub(1, Ordering::AcqRel);
    }

    fn passes(&self, call: &kernel::Call) -> bool {
        let passed = catch_unwind(AssertUnwindSafe(|| self.answers.passes(call)));
        passed.unwrap_or(false)
    }

    /// The next call; nothing once there can be none.
    fn receive(&self) -> Option<kernel::Call> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = self.answers.listener();
        loop {
            let mut asked = [PollFd::new(&listener, PollFlags::IN)];
            match poll(&mut asked, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return None,
            }
            let found = asked[0].revents();
            if found.contains(PollFlags::IN) {
                match kernel::receive(listener) {
                    // Most are none of ours: nobody else is woken for them.
                    Ok(call) if self.passes(&call) => {}
                    Ok(call) => return Some(call),
                    // Killed before it was received.
                    Err(Errno::NOENT | Errno::INTR) => {}
                    Err(_) => return None,
                }
            } else if !found.is_empty() {
                return None;
            }
        }
    }
}
