// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: structs that begin with their size, so that a program and a library of different ages
//! understand each other.
//! Invariants: what a shorter struct lacks is zero, and zero means "as before"; what a longer one
//! has beyond ours must be zero, or it asks for something this library does not know.

use crate::status::invalid;
use engine::{Error, ErrorKind, Result};
use std::mem::{MaybeUninit, size_of};
use std::ptr;

/// No struct is longer, in whatever version.
const SIZE_MAX: usize = 1 << 16;

/// A struct of the C interface that begins with its size.
///
/// # Safety
/// It is `repr(C)`, its first field is the `usize` of its size, and all bytes zero is a value of it.
pub(crate) unsafe trait Sized {
    /// Its name in C.
    const NAME: &'static str;
    /// Its size when it was first released.
    const FIRST_SIZE: usize;
}

/// The struct at `from`.
///
/// # Safety
/// `from` is NULL or points to a struct as long as its first field says.
pub(crate) unsafe fn read<T: Sized>(from: *const T) -> Result<T> {
    // SAFETY: the same contract.
    let theirs = unsafe { size_at(from) }?;
    let known = theirs.min(size_of::<T>());
    for offset in known..theirs {
        // SAFETY: the struct is `theirs` bytes long.
        if unsafe { from.cast::<u8>().add(offset).read() } != 0 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} has {theirs} bytes and sets one this library does not know: it is older \
                     than the header ({} bytes)",
                    T::NAME,
                    size_of::<T>()
                ),
            ));
        }
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both are at least `known` bytes long, and `value` is ours; zero bytes and those of
    // a struct of C are a value of T, as its implementation of Sized says.
    unsafe {
        ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast::<u8>(), known);
        Ok(value.assume_init())
    }
}

/// Puts `value` at `to`, as much of it as there is room for; NULL is nobody who wants it.
///
/// # Safety
/// `to` is NULL or points to a struct as long as its first field says.
pub(crate) unsafe fn write<T: Sized>(to: *mut T, value: &T) -> Result<()> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: the same contract.
    let room = unsafe { size_at(to) }?.min(size_of::<T>());
    let head = size_of::<usize>();
    // SAFETY: both are at least `room` bytes long; `value` is ours, so they do not overlap.
    unsafe {
        let from = ptr::from_ref(value).cast::<u8>().add(head);
        ptr::copy_nonoverlapping(from, to.cast::<u8>().add(head), room - head);
    }
    Ok(())
}

/// Checks a place for a result before the work is done.
///
/// # Safety
/// As for [`write()`].
pub(crate) unsafe fn check<T: Sized>(to: *const T) -> Result<()> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: the same contract.
    unsafe { size_at(to) }.map(|_size| ())
}

unsafe fn size_at<T: Sized>(from: *const T) -> Result<usize> {
    if from.is_null() {
        return Err(invalid(format!("{} is NULL", T::NAME)));
    }
    if !from.is_aligned() {
        return Err(invalid(format!("{} is not aligned: {from:p}", T::NAME)));
    }
    // SAFETY: not NULL and aligned; the first field is a usize, as Sized says.
    let size = unsafe { from.cast::<usize>().read() };
    let wrong = if size < T::FIRST_SIZE {
        format!("less than the {} bytes that it has at least", T::FIRST_SIZE)
    } else if size > SIZE_MAX {
        format!("more than the {SIZE_MAX} bytes that any may have")
    } else {
        return Ok(size);
    };
    Err(invalid(format!(
        "struct_size of {} is {size}, {wrong}: set it to sizeof, or begin with {}_default()",
        T::NAME,
        T::NAME
    )))
}
