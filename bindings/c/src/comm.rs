// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the communicator a C program brings: a table of functions.
//! In from: the program or `backstay_mpi.h`. Out to: the engine's `Communicator`.
//! Invariants: the table is released exactly once; a function that fails keeps its own text.

use crate::boundary;
use crate::sized;
use crate::status::invalid;
use engine::comm::{broadcast_by_max, gather_by_allgather};
use engine::format::width::index;
use engine::{Communicator, Error, ErrorKind, Result};
use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::ptr;

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
    /// Brings `bytes` bytes at `mine` of every rank, each of its own number, to rank `root`: there it writes how
    /// many each brought to `lengths`, which has room for all ranks, and to `all` where they are, one after the
    /// other in rank order, in memory of the table's own, valid until the next call of one of its functions. On the
    /// other ranks `lengths` and `all` are NULL. NULL on all ranks where there is none: allgather does it then,
    /// which costs every rank what it costs the root.
    pub gather: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            mine: *const c_void,
            bytes: usize,
            root: u32,
            lengths: *mut usize,
            all: *mut *const c_void,
        ) -> i32,
    >,
    /// Replaces `count` bytes at `bytes` by those of rank `root`. NULL on all ranks where there is none:
    /// allreduce_max does it then.
    pub broadcast: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            bytes: *mut c_void,
            count: usize,
            root: u32,
        ) -> i32,
    >,
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

    fn check_root(&self, root: u32) -> Result<()> {
        if root < self.table.size {
            return Ok(());
        }
        Err(invalid(format!(
            "rank {root} is the root of a job of {} ranks",
            self.table.size
        )))
    }

    /// What `gather` of the table brought the root.
    ///
    /// # Safety
    /// At `from` are as many bytes as all `lengths` together say.
    unsafe fn parts(from: *const c_void, lengths: &[usize]) -> Vec<Vec<u8>> {
        let mut from = from.cast::<u8>();
        let part = |&length: &usize| {
            if length == 0 {
                return Vec::new();
            }
            // SAFETY: `from` is at the first of these bytes, as the contract says.
            let bytes = unsafe { std::slice::from_raw_parts(from, length) }.to_vec();
            // SAFETY: within the bytes, or at their end.
            from = unsafe { from.add(length) };
            bytes
        };
        lengths.iter().map(part).collect()
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
    fn gather(&self, mine: &[u8], root: u32) -> Result<Vec<Vec<u8>>> {
        self.check_root(root)?;
        let Some(gather) = self.table.gather else {
            return gather_by_allgather(self, mine, root);
        };
        boundary::say("");
        let context = self.table.context;
        let from = mine.as_ptr().cast();
        if root != self.table.rank {
            let (lengths, all) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: `mine` has its length; elsewhere than at the root nothing is written.
            let status = unsafe { gather(context, from, mine.len(), root, lengths, all) };
            return self.done("gather", status).map(|()| Vec::new());
        }
        let mut lengths = vec![0usize; index(self.table.size)];
        let mut all: *const c_void = ptr::null();
        let (to, place) = (lengths.as_mut_ptr(), &raw mut all);
        // SAFETY: `mine` has its length, and there is room for a length of each rank.
        let status = unsafe { gather(context, from, mine.len(), root, to, place) };
        self.done("gather", status)?;
        let is_mine = lengths.get(index(root)) == Some(&mine.len());
        let wrong = all.is_null() && lengths.iter().any(|&length| length > 0);
        if wrong || !is_mine {
            let context = format!(
                "gather of rank {root} says that it brought {:?} bytes of {}",
                lengths.get(index(root)),
                mine.len()
            );
            return Err(Error::new(ErrorKind::Communicator, context));
        }
        // SAFETY: the table says that the bytes of all ranks are there until its next call.
        Ok(unsafe { Self::parts(all, &lengths) })
    }
    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<()> {
        self.check_root(root)?;
        let Some(broadcast) = self.table.broadcast else {
            return broadcast_by_max(self, bytes, root);
        };
        boundary::say("");
        let (context, to) = (self.table.context, bytes.as_mut_ptr());
        // SAFETY: `bytes` has its length.
        let status = unsafe { broadcast(context, to.cast(), bytes.len(), root) };
        self.done("broadcast", status)
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
