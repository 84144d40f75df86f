// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a C program protects: arrays by name.
//! Invariants: a shape is copied during the call; the memory itself stays the program's.

use crate::boundary::on_session;
use crate::pointer;
use crate::session::Session;
use crate::sized;
use crate::status::invalid;
use engine::Variable;
use engine::config::Tracking;
use engine::format::limits::DIMENSIONS_MAX;
use engine::{ElementType, Result};
use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};

/// Changed blocks are found as the session does by default.
pub const BACKSTAY_TRACKING_DEFAULT: i32 = 0;
/// Every block is written every time.
pub const BACKSTAY_TRACKING_FULL: i32 = 1;
/// Blocks whose hash differs from the committed one are written.
pub const BACKSTAY_TRACKING_HASH: i32 = 2;
/// Only pages the kernel saw written are hashed. For memory that no device and no other process
/// writes: no MPI window, no RDMA receive buffer.
pub const BACKSTAY_TRACKING_PAGES: i32 = 3;
/// Only what backstay_mark_dirty named is hashed, once that was all that changed. A variable of at most
/// 64 KiB, and one that is never marked, is hashed.
pub const BACKSTAY_TRACKING_MARKED: i32 = 4;

/// int8_t.
pub const BACKSTAY_I8: i32 = 1;
/// int16_t.
pub const BACKSTAY_I16: i32 = 2;
/// int32_t.
pub const BACKSTAY_I32: i32 = 3;
/// int64_t.
pub const BACKSTAY_I64: i32 = 4;
/// uint8_t.
pub const BACKSTAY_U8: i32 = 5;
/// uint16_t.
pub const BACKSTAY_U16: i32 = 6;
/// uint32_t.
pub const BACKSTAY_U32: i32 = 7;
/// uint64_t.
pub const BACKSTAY_U64: i32 = 8;
/// IEEE 754 binary16.
pub const BACKSTAY_F16: i32 = 9;
/// bfloat16.
pub const BACKSTAY_BF16: i32 = 10;
/// float.
pub const BACKSTAY_F32: i32 = 11;
/// double.
pub const BACKSTAY_F64: i32 = 12;
/// float complex.
pub const BACKSTAY_COMPLEX64: i32 = 13;
/// double complex.
pub const BACKSTAY_COMPLEX128: i32 = 14;
/// Bytes without a type.
pub const BACKSTAY_BYTES: i32 = 15;

/// Most dimensions of an array.
pub const BACKSTAY_DIMENSIONS_MAX: u32 = 8;

/// An array of one process, or its part of an array that all processes share. Row-major.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Array {
    /// sizeof(backstay_array).
    pub struct_size: usize,
    /// Its name, unique on this process.
    pub name: *const c_char,
    /// The first element; may be NULL if there is none.
    pub address: *mut c_void,
    /// Type of the elements: BACKSTAY_F64 and so on.
    pub element: i32,
    /// Number of dimensions; 0 for a single value.
    pub ndim: u32,
    /// Elements in each dimension, of this process's part.
    pub shape: *const u64,
    /// For a part of a global array: elements of the whole in each dimension. NULL: this process's
    /// own. Global arrays may be restored on another number of processes.
    pub global_shape: *const u64,
    /// For a part of a global array: where the part begins in each dimension. NULL without one.
    pub start: *const u64,
    /// How changed blocks are found: one of BACKSTAY_TRACKING_*.
    pub tracking: i32,
    /// Bytes of a block, a power of two; 0 for the session's.
    pub block_bytes: u32,
}

// SAFETY: repr(C), begins with its size; zero is NULL for pointers and a number otherwise.
unsafe impl sized::Sized for Array {
    const NAME: &'static str = "backstay_array";
    const FIRST_SIZE: usize = offset_of!(Array, block_bytes) + size_of::<u32>();
}

/// Protects `count` elements of type `element` at `address` under `name`: checkpoints contain them
/// from now on and restoring fills them. The memory stays yours and must stay there until the name is
/// unprotected, protected anew (elsewhere or with another size, at any time), or the session closed. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_protect(
    session: *mut Session,
    name: *const c_char,
    element: i32,
    address: *mut c_void,
    count: u64,
) -> i32 {
    on_session(session, "backstay_protect", |state| {
        // SAFETY: the header asks for a C string.
        let name = unsafe { pointer::text(name, "name") }?;
        let element = element_type(element)?;
        check_address(address, name, count)?;
        let variable = Variable::new(name, element, &[count]);
        // SAFETY: the header asks for memory of that size that stays until it is unprotected.
        unsafe { state.engine()?.protect(variable, address.cast()) }.map(drop)
    })
}

/// Protects an array of any number of dimensions, of this process or part of a global one. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_protect_array(session: *mut Session, array: *const Array) -> i32 {
    on_session(session, "backstay_protect_array", |state| {
        // SAFETY: the header asks for a struct as long as it says.
        let array: Array = unsafe { sized::read(array) }?;
        // SAFETY: its pointers are as the header describes them.
        let variable = unsafe { described(&array) }?;
        // SAFETY: the header asks for memory of that size that stays until it is unprotected.
        unsafe { state.engine()?.protect(variable, array.address.cast()) }.map(drop)
    })
}

/// Later checkpoints do without `name`, and its memory may go. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_unprotect(session: *mut Session, name: *const c_char) -> i32 {
    on_session(session, "backstay_unprotect", |state| {
        // SAFETY: the header asks for a C string.
        let name = unsafe { pointer::text(name, "name") }?;
        state.engine()?.unprotect(name)
    })
}

/// Says that `length` bytes from byte `offset` of `name` changed since the last checkpoint, for a
/// variable that is tracked with BACKSTAY_TRACKING_MARKED. Local.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backstay_mark_dirty(
    session: *mut Session,
    name: *const c_char,
    offset: u64,
    length: u64,
) -> i32 {
    on_session(session, "backstay_mark_dirty", |state| {
        // SAFETY: the header asks for a C string.
        let name = unsafe { pointer::text(name, "name") }?;
        let end = offset
            .checked_add(length)
            .ok_or_else(|| invalid(format!("{name}: offset {offset} and length {length}")))?;
        let engine = state.engine()?;
        let variable = engine.variable(name)?;
        engine.mark_dirty(variable, offset..end)
    })
}

unsafe fn described(array: &Array) -> Result<Variable> {
    // SAFETY: the header asks for a C string.
    let name = unsafe { pointer::text(array.name, "name") }?;
    let element = element_type(array.element)?;
    let ndim = usize::try_from(array.ndim).unwrap_or(usize::MAX);
    if ndim > DIMENSIONS_MAX {
        return Err(invalid(format!(
            "{name} has {ndim} dimensions, not at most {DIMENSIONS_MAX}"
        )));
    }
    // SAFETY: the header asks for `ndim` numbers.
    let shape = unsafe { pointer::numbers(array.shape, ndim, "shape") }?;
    let count = shape.iter().try_fold(1u64, |n, &m| n.checked_mul(m));
    check_address(array.address, name, count.unwrap_or(u64::MAX))?;
    let mut variable = Variable::new(name, element, shape);
    if array.global_shape.is_null() != array.start.is_null() {
        return Err(invalid(format!(
            "{name} has one of global_shape and start without the other"
        )));
    }
    if !array.global_shape.is_null() {
        // SAFETY: the header asks for `ndim` numbers.
        let whole = unsafe { pointer::numbers(array.global_shape, ndim, "global_shape") }?;
        // SAFETY: the header asks for `ndim` numbers.
        let start = unsafe { pointer::numbers(array.start, ndim, "start") }?;
        variable = variable.slab(whole, start);
    }
    if let Some(tracking) = tracking(array.tracking)? {
        variable = variable.tracking(tracking);
    }
    if array.block_bytes != 0 {
        variable = variable.block_bytes(array.block_bytes);
    }
    Ok(variable)
}

fn element_type(number: i32) -> Result<ElementType> {
    u8::try_from(number)
        .ok()
        .and_then(ElementType::from_id)
        .ok_or_else(|| {
            invalid(format!(
                "type {number} is none of BACKSTAY_I8 to BACKSTAY_BYTES (1 to 15)"
            ))
        })
}

fn check_address(address: *const c_void, name: &str, count: u64) -> Result<()> {
    if address.is_null() && count > 0 {
        return Err(invalid(format!(
            "{name}: address is NULL for {count} elements"
        )));
    }
    Ok(())
}

/// The tracking with this number; `None` for the default.
fn tracking(number: i32) -> Result<Option<Tracking>> {
    match number {
        BACKSTAY_TRACKING_DEFAULT => Ok(None),
        BACKSTAY_TRACKING_FULL => Ok(Some(Tracking::Full)),
        BACKSTAY_TRACKING_HASH => Ok(Some(Tracking::Hash)),
        BACKSTAY_TRACKING_PAGES => Ok(Some(Tracking::Pages)),
        BACKSTAY_TRACKING_MARKED => Ok(Some(Tracking::Marked)),
        other => Err(invalid(format!(
            "tracking is {other}, not one of BACKSTAY_TRACKING_* (0 to 4)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_types_are_the_engines() {
        let here = [
            BACKSTAY_I8,
            BACKSTAY_I16,
            BACKSTAY_I32,
            BACKSTAY_I64,
            BACKSTAY_U8,
            BACKSTAY_U16,
            BACKSTAY_U32,
            BACKSTAY_U64,
            BACKSTAY_F16,
            BACKSTAY_BF16,
            BACKSTAY_F32,
            BACKSTAY_F64,
            BACKSTAY_COMPLEX64,
            BACKSTAY_COMPLEX128,
            BACKSTAY_BYTES,
        ];
        for (number, kind) in here.into_iter().zip(ElementType::ALL) {
            assert_eq!(number, i32::from(kind.id()), "{kind}");
        }
        assert_eq!(BACKSTAY_DIMENSIONS_MAX as usize, DIMENSIONS_MAX);
    }
}
