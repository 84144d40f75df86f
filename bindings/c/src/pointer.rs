// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: turns pointers of C into values of Rust, once, with an error that names the argument.

use crate::status::invalid;
use engine::Result;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes that a text may have: more than any path or name.
const TEXT_BYTES_MAX: usize = 4096;
/// So much of a text that is too long is shown.
const SHOWN_CHARS: usize = 40;

/// The text at `from`, or `None` where it is NULL.
///
/// # Safety
/// `from` is NULL or a string that ends in a zero byte and lives as long as `'a`.
pub(crate) unsafe fn text_or_none<'a>(
    from: *const c_char,
    argument: &str,
) -> Result<Option<&'a str>> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, so the caller says it is a C string that lives as long as 'a.
    let text = unsafe { CStr::from_ptr(from) };
    let length = text.count_bytes();
    if length > TEXT_BYTES_MAX {
        let lossy = String::from_utf8_lossy(&text.to_bytes()[..4 * SHOWN_CHARS]);
        let begin: String = lossy.chars().take(SHOWN_CHARS).collect();
        return Err(invalid(format!(
            "{argument} has {length} bytes, more than the {TEXT_BYTES_MAX} that any text may have; it \
             begins with {begin:?}"
        )));
    }
    match text.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_error) => Err(invalid(format!(
            "{argument} is {text:?}, which is not UTF-8"
        ))),
    }
}

/// The text at `from`.
///
/// # Safety
/// As for [`text_or_none`].
pub(crate) unsafe fn text<'a>(from: *const c_char, argument: &str) -> Result<&'a str> {
    // SAFETY: the same contract.
    unsafe { text_or_none(from, argument) }?.ok_or_else(|| invalid(format!("{argument} is NULL")))
}

/// The path at `from`: bytes, UTF-8 or not.
///
/// # Safety
/// As for [`text_or_none`].
pub(crate) unsafe fn path<'a>(from: *const c_char, argument: &str) -> Result<&'a Path> {
    if from.is_null() {
        return Err(invalid(format!("{argument} is NULL")));
    }
    // SAFETY: not NULL, so the caller says it is a C string that lives as long as 'a.
    let text = unsafe { CStr::from_ptr(from) };
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// Puts a text and its zero byte into a buffer of `size` bytes, or nothing where it has no room for them.
///
/// # Safety
/// `to` is NULL or has room for `size` bytes.
pub(crate) unsafe fn put_text(
    text: &[u8],
    to: *mut c_char,
    size: usize,
    argument: &str,
) -> Result<()> {
    let to = required(to, argument)?;
    if text.len() >= size {
        return Err(invalid(format!(
            "{argument} has room for {size} bytes, {} are needed",
            text.len() + 1
        )));
    }
    // SAFETY: `to` has room for `size` bytes, which is more than the text has; it is ours, so they are apart.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// `count` numbers at `from`; NULL is allowed where `count` is 0.
///
/// # Safety
/// `from` is NULL or holds `count` numbers that live as long as `'a` and nobody changes meanwhile.
pub(crate) unsafe fn numbers<'a>(
    from: *const u64,
    count: usize,
    argument: &str,
) -> Result<&'a [u64]> {
    if count == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return Err(invalid(format!("{argument} is NULL, not {count} numbers")));
    }
    // SAFETY: not NULL, so the caller says it holds `count` numbers that live as long as 'a.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// Checks that a place for a result was given.
pub(crate) fn required<T>(to: *mut T, argument: &str) -> Result<*mut T> {
    if to.is_null() {
        return Err(invalid(format!("{argument} is NULL")));
    }
    Ok(to)
}

/// Puts `values` at `to` if `capacity` is enough, and their number at `count` always.
///
/// # Safety
/// `to` has room for `capacity` values (NULL with 0); `count` is NULL or valid for writing.
pub(crate) unsafe fn fill<T: Copy>(
    values: &[T],
    to: *mut T,
    capacity: usize,
    count: *mut usize,
    what: &str,
) -> Result<()> {
    let count = required(count, "count")?;
    // SAFETY: not NULL, so the caller says it is valid for writing.
    unsafe { count.write(values.len()) };
    if capacity == 0 {
        return Ok(());
    }
    if capacity < values.len() {
        return Err(invalid(format!(
            "room for {capacity} {what}, there are {}",
            values.len()
        )));
    }
    let to = required(to, what)?;
    // SAFETY: `to` has room for `capacity` values, which is no less; `values` is ours, so they
    // do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len()) };
    Ok(())
}
