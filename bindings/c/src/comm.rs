// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the communicator a C program brings: a table of functions.
//! In from: the program or `backstay_mpi.h`. Out to: the engine's `Communicator`.
//! Invariants: the table is released exactly once; a function that fails keeps its own text.

use crate::boundary;
use crate::sized;
use crate::status::invalid;
use engine::{Communicator, Error, ErrorKind, Result};
use std::ffi::c_void;
use std::mem::{offset_of, size_of};

/// A communicator: how the processes of a job reach each other. For MPI use backstay_mpi_open, which
/// makes one. All processes of the job make the same calls in the same order.
///
/// The functions are called on the thread that calls Backstay and on no other, at most twice in a
/// checkpoint. They return 0, or any other number for a failure, after which the session can only be
/// closed; backstay_refuse gives the failure a text.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Comm {
    /// sizeof(backstay_comm).
    pub struct_size: usize,
    /// Handed to the functions; Backstay does not look at it.
    pub context: *mut c_void,
    /// This process, from 0.
    pub rank: u32,
    /// Number of processes.
    pub size: u32,
    /// Gathers `bytes` bytes at `mine` of every rank, in rank order, to `all`.
    pub allgather: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            mine: *const c_void,
            bytes: usize,
            all: *mut c_void,
        ) -> i32,
    >,
    /// Replaces each of `count` values by its maximum over all ranks.
    pub allreduce_max:
        Option<unsafe extern "C" fn(context: *mut c_void, values: *mut i64, count: usize) -> i32>,
    /// Returns when every rank has called it.
    pub barrier: Option<unsafe extern "C" fn(context: *mut c_void) -> i32>,
    /// Called once when Backstay needs the communicator no more; NULL if there is nothing to do.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

// SAFETY: repr(C), begins with its size; zero is NULL for pointers and functions.
unsafe impl sized::Sized for Comm {
    const NAME: &'static str = "backstay_comm";
    const FIRST_SIZE: usize = offset_of!(Comm, release) + size_of::<usize>();
}

type Allgather = unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void) -> i32;
type AllreduceMax = unsafe extern "C" fn(*mut c_void, *mut i64, usize) -> i32;
type Barrier = unsafe extern "C" fn(*mut c_void) -> i32;

/// The program's table, owned: dropping it releases it.
#[derive(Debug)]
pub(crate) struct CallerComm {
    table: Comm,
    allgather: Allgather,
    allreduce_max: AllreduceMax,
    barrier: Barrier,
}

// SAFETY: the header says that the functions are called by one thread at a time; `context` is only
// handed back to them.
unsafe impl Send for CallerComm {}

impl CallerComm {
    /// Takes the table at `from` over, whatever comes of it.
    ///
    /// # Safety
    /// `from` points to a `backstay_comm` as the header describes it.
    pub(crate) unsafe fn take(from: *const Comm) -> Result<Self> {
        // SAFETY: the same contract.
        let table: Comm = unsafe { sized::read(from) }?;
        let (Some(allgather), Some(allreduce_max), Some(barrier)) =
            (table.allgather, table.allreduce_max, table.barrier)
        else {
            release(&table);
            return Err(invalid(
                "backstay_comm lacks one of allgather, allreduce_max and barrier",
            ));
        };
        if table.size == 0 || table.rank >= table.size {
            release(&table);
            return Err(invalid(format!(
                "backstay_comm has rank {} of {}",
                table.rank, table.size
            )));
        }
        Ok(Self {
            table,
            allgather,
            allreduce_max,
            barrier,
        })
    }

    fn done(&self, function: &str, status: i32) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        let text = boundary::said();
        let context = format!("{function} of rank {} returned {status}", self.table.rank);
        let context = if text.is_empty() {
            context
        } else {
            format!("{context}: {text}")
        };
        Err(Error::new(ErrorKind::Communicator, context))
    }
}

impl Communicator for CallerComm {
    fn rank(&self) -> u32 {
        self.table.rank
    }
    fn size(&self) -> u32 {
        self.table.size
    }
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        boundary::say("");
        let room = usize::try_from(self.table.size)
            .ok()
            .and_then(|size| size.checked_mul(mine.len()));
        if room != Some(all.len()) {
            return Err(Error::new(
                ErrorKind::Internal,
                format!("allgather of {} bytes into {}", mine.len(), all.len()),
            ));
        }
        let (context, from, to) = (self.table.context, mine.as_ptr(), all.as_mut_ptr());
        // SAFETY: `mine` has its length, `all` that times the number of ranks, as just checked.
        let status = unsafe { (self.allgather)(context, from.cast(), mine.len(), to.cast()) };
        self.done("allgather", status)
    }
    fn allreduce_max(&self, values: &mut [i64]) -> Result<()> {
        boundary::say("");
        let (context, to) = (self.table.context, values.as_mut_ptr());
        // SAFETY: `values` has as many values as its length says.
        let status = unsafe { (self.allreduce_max)(context, to, values.len()) };
        self.done("allreduce_max", status)
    }
    fn barrier(&self) -> Result<()> {
        boundary::say("");
        // SAFETY: the context is the one that came with the function.
        let status = unsafe { (self.barrier)(self.table.context) };
        self.done("barrier", status)
    }
}

impl Drop for CallerComm {
    fn drop(&mut self) {
        release(&self.table);
    }
}

fn release(table: &Comm) {
    if let Some(release) = table.release {
        // SAFETY: the context is the one that came with the function, and this is the only call:
        // a table is released where it is refused or where its owner is dropped.
        unsafe { release(table.context) };
    }
}
