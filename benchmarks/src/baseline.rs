// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the machine can do with the same bytes: copy, write and read them.
//! In from: the scenarios of a benchmark. Out to: memory and files.
//! Invariants: memory is faulted in before it is timed; files are read and written whole, in one call
//! as far as the kernel takes it.
#![expect(
    unsafe_code,
    reason = "numbers are written and read as the bytes they are"
)]

use crate::Outcome;
use rustix::fs::fdatasync;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Numbers as bytes.
pub fn as_bytes(words: &[f64]) -> &[u8] {
    // SAFETY: every byte of an f64 is initialised, and u8 has no alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// Numbers as bytes to be filled.
pub fn as_bytes_mut(words: &mut [f64]) -> &mut [u8] {
    // SAFETY: as above, and every pattern of bits is an f64.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

/// Copies `from` to `to`.
pub fn copy(from: &[f64], to: &mut [f64]) {
    to.copy_from_slice(from);
    std::hint::black_box(to);
}

/// Writes `bytes` to a new file and syncs it; what a plain checkpoint does.
pub fn write_fresh(path: &Path, bytes: &[u8]) -> Outcome<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    write_over(&file, bytes)?;
    Ok(file)
}

/// Writes `bytes` over what a file holds and syncs it.
pub fn write_over(file: &File, bytes: &[u8]) -> Outcome<()> {
    file.write_all_at(bytes, 0)?;
    Ok(fdatasync(file)?)
}

/// Reads a file into memory.
pub fn read(file: &File, bytes: &mut [u8]) -> Outcome<()> {
    Ok(file.read_exact_at(bytes, 0)?)
}
