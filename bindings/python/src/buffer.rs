// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: views of Python objects by the buffer protocol, whole: pyo3's own refuses single values, and what
//! leaves strides out.
//! Invariants: a view is released once, with the interpreter's lock held.
//! Source: PEP 3118.
#![expect(unsafe_code, reason = "the buffer protocol is one of C")]

use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// A view by the buffer protocol, which the object keeps in place until it is dropped.
pub(crate) struct Buffer(Box<ffi::Py_buffer>);

// SAFETY: a view belongs to no thread; it is read by address only, and released with the interpreter's lock.
unsafe impl Send for Buffer {}

impl Buffer {
    /// A view of `object` with its shape and format, whether or not it is writable.
    pub(crate) fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        // SAFETY: the view is ours to fill, and stays where it is until it is released.
        let status = unsafe {
            ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_FULL_RO)
        };
        if status != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: it was filled; all zero was a value of it as well.
        Ok(Self(unsafe { view.assume_init() }))
    }

    /// Address of the first element.
    pub(crate) fn address(&self) -> usize {
        self.0.buf.expose_provenance()
    }
    /// Bytes of all elements.
    pub(crate) fn length_bytes(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }
    /// Whether its bytes may not be written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.0.readonly != 0
    }
    /// Whether its elements follow each other in C's order.
    pub(crate) fn is_row_major(&self) -> bool {
        self.is_contiguous(b'C')
    }

    /// Whether its elements follow each other in the order `C` or `F`.
    pub(crate) fn is_contiguous(&self, order: u8) -> bool {
        let order = order.cast_signed();
        // SAFETY: the view was filled and is not yet released.
        unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.0, order) == 1 }
    }

    /// Bytes of an element.
    pub(crate) fn item_bytes(&self) -> u64 {
        u64::try_from(self.0.itemsize).unwrap_or(0)
    }

    /// Elements in each dimension. An exporter may leave out what follows from the length.
    pub(crate) fn shape(&self) -> Vec<u64> {
        let dimensions = usize::try_from(self.0.ndim).unwrap_or(0);
        if dimensions == 0 {
            return Vec::new();
        }
        if self.0.shape.is_null() {
            let length = u64::try_from(self.0.len).unwrap_or(0);
            return vec![length / self.item_bytes().max(1)];
        }
        // SAFETY: the protocol says that these are `ndim` numbers, there until it is released.
        let extents = unsafe { std::slice::from_raw_parts(self.0.shape, dimensions) };
        let extents = extents.iter();
        extents
            .map(|&extent| u64::try_from(extent).unwrap_or(0))
            .collect()
    }

    /// Their type, in the words of the module `struct`.
    pub(crate) fn format(&self) -> String {
        if self.0.format.is_null() {
            return "B".to_owned();
        }
        // SAFETY: the protocol says that it is a C string, there until it is released.
        unsafe { CStr::from_ptr(self.0.format) }
            .to_string_lossy()
            .into_owned()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the view was filled, and this is its only release.
        Python::attach(|_| unsafe { ffi::PyBuffer_Release(&raw mut *self.0) });
    }
}
