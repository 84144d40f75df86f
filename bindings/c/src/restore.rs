// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the way back for C: what is stored, and memory filled from it.

use crate::boundary::on_session;
use crate::checkpoint::Id;
use crate::pointer;
use crate::session::Session;
use crate::sized;
use crate::status::invalid;
use engine::Result;
use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};

/// What was restored.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Restored {
    /// sizeof(backstay_restored), set by the caller; so much of the struct is filled.
    pub struct_size: usize,
    /// From which checkpoint.
    pub checkpoint: Id,
    /// Bytes this process read.
    pub bytes_read: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// Number of processes that took the checkpoint.
    pub ranks_then: u32,
    /// Newer checkpoints that were damaged or incomplete and had to be skipped.
    pub fell_back: u32,
    /// Stored variables that nobody protects.
    pub unclaimed: u32,
    /// 0.
    pub reserved: u32,
}

// SAFETY: repr(C), begins with its size; zero is a number.
unsafe impl sized::Sized for Restored {
    const NAME: &'static str = "backstay_restored";
    const FIRST_SIZE: usize = offset_of!(Restored, reserved) + size_of::<u32>();
}

/// Fills everything protected from the newest checkpoint that is complete on all nodes: all processes
/// together, and all from the same one. BACKSTAY_NO_CHECKPOINT means that there is none and nothing was
/// touched. After any other failure the memory is unspecified. `restored` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_restore(session: *mut Session, restored: *mut Restored) -> i32 {
    on_session(session, "backstay_restore", |state| {
        // SAFETY: the header asks for NULL or a struct as long as it says.
        unsafe { sized::check(restored) }?;
        let from = state.engine()?.restore()?;
        // SAFETY: the same.
        unsafe { put(restored, &from) }
    })
}

/// The same from checkpoint `number`, which backstay_stored_checkpoints or backstay_earlier_checkpoints lists: all
/// processes together.
/// Newer ones are abandoned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_restore_from(
    session: *mut Session,
    number: u64,
    restored: *mut Restored,
) -> i32 {
    on_session(session, "backstay_restore_from", |state| {
        // SAFETY: the header asks for NULL or a struct as long as it says.
        unsafe { sized::check(restored) }?;
        let from = state.engine()?.restore_from(number)?;
        // SAFETY: the same.
        unsafe { put(restored, &from) }
    })
}

/// The checkpoints that can be restored, newest last: at most `capacity` of them to `ids`, and always
/// their number to `*count`. With `capacity` 0 it only counts. 0 of them says that the job begins: where
/// something was stored and nothing can be had, it is the error that backstay_restore would be. Local: all processes
/// agreed on them before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_stored_checkpoints(
    session: *mut Session,
    ids: *mut Id,
    capacity: usize,
    count: *mut usize,
) -> i32 {
    on_session(session, "backstay_stored_checkpoints", |state| {
        let stored = state.engine()?.stored_checkpoints()?;
        let stored: Vec<Id> = stored.into_iter().map(Into::into).collect();
        // SAFETY: the header asks for room for `capacity` ids and a place for the count.
        unsafe { pointer::fill(&stored, ids, capacity, count, "ids") }
    })
}

/// The checkpoints of starts that finished, or that were left behind when the job began anew: backstay_restore_from
/// alone takes them. Newest last; `ids`, `capacity` and `count` as for backstay_stored_checkpoints. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_earlier_checkpoints(
    session: *mut Session,
    ids: *mut Id,
    capacity: usize,
    count: *mut usize,
) -> i32 {
    on_session(session, "backstay_earlier_checkpoints", |state| {
        let earlier = state.engine()?.earlier_checkpoints();
        let earlier: Vec<Id> = earlier.into_iter().map(Into::into).collect();
        // SAFETY: the header asks for room for `capacity` ids and a place for the count.
        unsafe { pointer::fill(&earlier, ids, capacity, count, "ids") }
    })
}

/// The shape of `name` as `rank` stored it in the checkpoint that backstay_restore would take: at most
/// `capacity` extents to `shape` (BACKSTAY_DIMENSIONS_MAX are always enough), and the number of
/// dimensions to `*ndim`. For memory that has to be allocated first. Local: each process may ask for other
/// names and ranks, or not at all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_stored_shape(
    session: *mut Session,
    name: *const c_char,
    rank: u32,
    shape: *mut u64,
    capacity: usize,
    ndim: *mut usize,
) -> i32 {
    on_session(session, "backstay_stored_shape", |state| {
        // SAFETY: the header asks for a C string.
        let name = unsafe { pointer::text(name, "name") }?;
        let stored = state.engine()?.stored_shape(name, rank)?;
        // SAFETY: the header asks for room for `capacity` extents and a place for the count.
        unsafe { pointer::fill(&stored, shape, capacity, ndim, "extents") }
    })
}

/// Reads `bytes` bytes of `name` as `rank` stored it: a variable of one process, of any process of the
/// start that took the checkpoint, so that another number of processes can share them out. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_read_rank(
    session: *mut Session,
    name: *const c_char,
    rank: u32,
    address: *mut c_void,
    bytes: u64,
) -> i32 {
    on_session(session, "backstay_read_rank", |state| {
        // SAFETY: the header asks for a C string.
        let name = unsafe { pointer::text(name, "name") }?;
        if address.is_null() && bytes > 0 {
            return Err(invalid(format!(
                "{name}: address is NULL for {bytes} bytes"
            )));
        }
        // SAFETY: the header asks for memory of that size.
        unsafe { state.engine()?.read_rank(name, rank, address.cast(), bytes) }
    })
}

pub(crate) unsafe fn put(to: *mut Restored, from: &engine::Restored) -> Result<()> {
    let restored = Restored {
        struct_size: size_of::<Restored>(),
        checkpoint: from.checkpoint.into(),
        bytes_read: from.bytes_read,
        seconds: from.time.as_secs_f64(),
        ranks_then: from.ranks_then,
        fell_back: from.fell_back,
        unclaimed: from.unclaimed,
        reserved: 0,
    };
    // SAFETY: the same contract.
    unsafe { sized::write(to, &restored) }
}
