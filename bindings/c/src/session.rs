// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the session a C program holds: open, close.
//! Invariants: C's pointer is a key, never followed (see `boundary`); a checkpoint under way belongs
//! to its session and ends with it.

use crate::boundary::{self, caught, guard};
use crate::comm::{CallerComm, Comm};
use crate::options::{self, Options};
use crate::pointer;
use crate::status::invalid;
use engine::comm::Single;
use engine::{Communicator, Error, ErrorKind, Handle, Result};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Mutex;

/// One process's part in the checkpoints of a job.
#[derive(Debug)]
pub struct Session {
    /// What the calls work on; poisoned by a panic.
    pub(crate) state: Mutex<State>,
    /// Text of the last failure.
    pub(crate) message: Mutex<CString>,
    /// The process that opened it.
    process: u32,
}

impl Session {
    /// Refuses a child made by fork: it has a copy of the session's memory, and no part in the job.
    pub(crate) fn check_process(&self) -> Result<()> {
        if std::process::id() == self.process {
            return Ok(());
        }
        Err(of_the_parent(self.process))
    }
}

/// What a child made by fork is told of sessions of its parent.
pub(crate) fn of_the_parent(process: u32) -> Error {
    let this = std::process::id();
    invalid(format!(
        "this is process {this}, a child made by fork; the session is that of process {process}, which \
         alone can use it"
    ))
}

/// What an open session consists of.
#[derive(Debug)]
pub(crate) struct State {
    session: Option<engine::Session>,
    /// Checkpoints started and not waited for.
    pub(crate) under_way: BTreeMap<usize, Handle>,
}

impl State {
    /// The engine's session.
    pub(crate) fn engine(&mut self) -> Result<&mut engine::Session> {
        self.session
            .as_mut()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the session was taken while in use"))
    }
    /// Leaves nothing behind.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            session: self.session.take(),
            under_way: std::mem::take(&mut self.under_way),
        }
    }
}

/// Opens a session: all processes of `comm` together. The store is found or made, and what earlier
/// starts of the job left in it; nothing of the program's memory is touched.
///
/// `comm` is NULL for a program of one process. Otherwise it belongs to the session from here on: its
/// `release` is called once, by backstay_close or, if this call fails, before it returns.
/// `options` (backstay_options_new) is NULL for the environment's settings. The session comes to `*session`, NULL on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_open(
    comm: *const Comm,
    options: *const Options,
    session: *mut *mut Session,
) -> i32 {
    guard("backstay_open", || {
        let comm: Box<dyn Communicator> = if comm.is_null() {
            Box::new(Single)
        } else {
            // SAFETY: not NULL, so it is a table as the header describes it.
            Box::new(unsafe { CallerComm::take(comm) }?)
        };
        let place = pointer::required(session, "session")?;
        // SAFETY: not NULL, so the caller says it is valid for writing.
        unsafe { place.write(std::ptr::null_mut()) };
        let config = options::config(options);
        let opened = engine::Session::open_with(comm, config)?;
        let pointer = boundary::publish(Session {
            state: Mutex::new(State {
                session: Some(opened),
                under_way: BTreeMap::new(),
            }),
            message: Mutex::default(),
            process: std::process::id(),
        });
        // SAFETY: as above.
        unsafe { place.write(pointer) };
        Ok(())
    })
}

/// Ends a session: all processes together. Checkpoints under way are waited for. The next start of the program
/// resumes from the newest checkpoint; one that is done calls backstay_finish. The session is gone
/// afterwards whatever is returned, unless another thread is inside one of its calls; NULL is allowed.
/// Call it before MPI_Finalize. In a child made by fork it is refused, as all calls of the session are.
#[unsafe(no_mangle)]
pub extern "C" fn backstay_close(session: *mut Session) -> i32 {
    guard("backstay_close", || end(session, engine::Session::close))
}

/// Says that the program is done, and ends the session as backstay_close does: all processes together, with what is
/// protected still in place. A last checkpoint is taken, and waited for until it is protected and in the archive
/// where the job is set to. The next start begins anew; backstay_restore_from and the setting restore_checkpoint
/// still take the checkpoints of this one. Where protection or the archive fail, the job is finished on its nodes,
/// and process 0 says so. On an error it is not known to be finished, and its next start resumes from the newest
/// checkpoint.
#[unsafe(no_mangle)]
pub extern "C" fn backstay_finish(session: *mut Session) -> i32 {
    guard("backstay_finish", || {
        end(session, |engine| engine.finish().map(|_| ()))
    })
}

fn end(session: *mut Session, how: impl FnOnce(engine::Session) -> Result<()>) -> Result<()> {
    if session.is_null() {
        return Ok(());
    }
    let (state, poisoned) = boundary::withdraw(session)?;
    let Some(engine) = state.session else {
        return Ok(());
    };
    if poisoned {
        caught(|| {
            drop(engine);
            Ok(())
        })?;
        return Err(Error::new(
            ErrorKind::Internal,
            "an earlier call of this session panicked; it ended without its last steps",
        ));
    }
    how(engine)
}
