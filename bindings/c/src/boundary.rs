// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the wall between C and the engine: every call passes through `guard` or `on_session`.
//! Invariants: a panic becomes `BACKSTAY_INTERNAL` and poisons its session; a pointer that is no open
//! session is refused without being followed; two calls of one session at a time are refused, and so is
//! every call in a child made by fork, which waits for no lock that a thread of its parent held.

use crate::keys::Keyed;
use crate::session::{Session, State, of_the_parent};
use crate::status::{BACKSTAY_OK, invalid};
use engine::{Error, ErrorKind, Result};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};

static OPEN: Keyed<Session> = Keyed::none();

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
    /// That of a session, as this thread was shown it: no other thread frees it.
    static SHOWN: RefCell<CString> = RefCell::default();
}

/// Runs `body` and gives its status; the text of a failure becomes this thread's message.
pub(crate) fn guard(operation: &str, body: impl FnOnce() -> Result<()>) -> i32 {
    match caught(body) {
        Ok(()) => BACKSTAY_OK,
        Err(error) => {
            say(&format!("{operation}: {error}"));
            error.kind().code()
        }
    }
}

/// The same with an open session, which also keeps the text.
pub(crate) fn on_session(
    pointer: *const Session,
    operation: &str,
    body: impl FnOnce(&mut State) -> Result<()>,
) -> i32 {
    let Some(session) = find(pointer) else {
        return guard(operation, || Err(not_open(pointer)));
    };
    if let Err(forked) = session.check_process() {
        return guard(operation, || Err(forked));
    }
    match caught(|| body(&mut *locked(&session)?)) {
        Ok(()) => BACKSTAY_OK,
        Err(error) => {
            let text = format!("{operation}: {error}");
            say(&text);
            let mut message = session
                .message
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *message = c_text(&text);
            error.kind().code()
        }
    }
}

/// Makes a session known to C.
pub(crate) fn publish(session: Session) -> *mut Session {
    OPEN.insert(session)
}

/// Takes a session back from C, unless a call of it is running; the flag tells of a panic.
pub(crate) fn withdraw(pointer: *const Session) -> Result<(State, bool)> {
    let session = find(pointer).ok_or_else(|| not_open(pointer))?;
    session.check_process()?;
    let state = match session.state.try_lock() {
        Ok(mut state) => (state.take(), false),
        Err(TryLockError::Poisoned(poisoned)) => (poisoned.into_inner().take(), true),
        Err(TryLockError::WouldBlock) => return Err(busy()),
    };
    OPEN.remove(pointer);
    Ok(state)
}

/// The last message of a session, or of this thread where `pointer` is NULL.
pub(crate) fn message(pointer: *const Session) -> *const c_char {
    match find(pointer) {
        Some(session) if session.check_process().is_ok() => {
            let message = session
                .message
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            SHOWN.with_borrow_mut(|shown| shown.clone_from(&message));
            SHOWN.with_borrow(|shown| shown.as_ptr())
        }
        Some(_of_the_parent) => MESSAGE.with_borrow(|message| message.as_ptr()),
        None if pointer.is_null() || OPEN.parent().is_some() => {
            MESSAGE.with_borrow(|message| message.as_ptr())
        }
        None => c"this is no open session".as_ptr(),
    }
}

/// Makes `text` the message of this thread.
pub(crate) fn say(text: &str) {
    MESSAGE.with_borrow_mut(|message| *message = c_text(text));
}

/// Takes the message of this thread.
pub(crate) fn said() -> String {
    let message = MESSAGE.with_borrow_mut(std::mem::take);
    message.to_string_lossy().into_owned()
}

/// Runs `body`; a panic becomes an error.
pub(crate) fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => Err(Error::new(
            ErrorKind::Internal,
            format!("a panic was caught: {}", panic_text(&*payload)),
        )),
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text")
}

fn find(pointer: *const Session) -> Option<Arc<Session>> {
    OPEN.get(pointer)
}

/// What `body` gives while another call looks for its session.
#[cfg(test)]
pub(crate) fn while_somebody_looks<R>(body: impl FnOnce() -> R) -> R {
    OPEN.while_held(body)
}

fn locked(session: &Session) -> Result<MutexGuard<'_, State>> {
    match session.state.try_lock() {
        Ok(state) => Ok(state),
        Err(TryLockError::WouldBlock) => Err(busy()),
        Err(TryLockError::Poisoned(_guard)) => Err(Error::new(
            ErrorKind::Internal,
            "an earlier call of this session panicked; it can only be closed",
        )),
    }
}

fn not_open(pointer: *const Session) -> Error {
    if pointer.is_null() {
        invalid("session is NULL")
    } else if let Some(process) = OPEN.parent() {
        // It was not found where a thread of the parent looked for one when this child was made.
        of_the_parent(process)
    } else {
        invalid(format!("{pointer:p} is no open session: closed already?"))
    }
}

fn busy() -> Error {
    invalid("another thread is inside a call of this session")
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\\0")).unwrap_or_default()
}
