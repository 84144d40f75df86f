// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: where the elements of a tensor are, by `DLPack`.
//! Invariants: numbers are checked before they are used; the capsule owns the tensor, and is kept.
//! Source: `DLPack` 1.1, `dlpack.h`.
#![expect(unsafe_code, reason = "DLPack hands structs of C over")]

use crate::memory::{Place, READ_ONLY, not_contiguous};
use engine::ElementType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyString};
use std::ffi::{CStr, c_void};

const CPU: i32 = 1;
/// Pinned host memory of CUDA and `ROCm`.
const PINNED: [i32; 2] = [3, 11];
const FLAG_READ_ONLY: u64 = 1;

/// A capsule of `DLPack`; a tensor that requires a gradient is looked at through `detach`, the same memory.
pub(crate) fn export<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
    let py = object.py();
    let object = if object.hasattr("detach")? {
        object.call_method0("detach")?
    } else {
        object.clone()
    };
    let (kind, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    if kind != CPU && !PINNED.contains(&kind) {
        let told = "its memory is not the CPU's; protect a copy there (x.cpu()), and fill it before each \
                    checkpoint";
        return Err(PyTypeError::new_err(told));
    }
    let versioned = PyDict::new(py);
    versioned.set_item(PyString::intern(py, "max_version"), (1, 0))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&versioned)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            object.call_method0("__dlpack__")?
        }
        other => other?,
    };
    Ok(capsule.cast_into::<PyCapsule>()?)
}

/// `DLTensor`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: Tensor,
}

/// Where the elements of a capsule are.
pub(crate) fn place(capsule: &Bound<'_, PyCapsule>) -> Result<Place, String> {
    let pointer = |name: &CStr| capsule.pointer_checked(Some(name)).ok();
    let (tensor, flags) = if let Some(pointer) = pointer(c"dltensor_versioned") {
        // SAFETY: a capsule of this name holds a DLManagedTensorVersioned, alive until it is used up.
        let versioned = unsafe { pointer.cast::<Versioned>().read() };
        if versioned.major != 1 {
            return Err(format!(
                "DLPack {}.{} is not known",
                versioned.major, versioned.minor
            ));
        }
        (versioned.tensor, versioned.flags)
    } else if let Some(pointer) = pointer(c"dltensor") {
        // SAFETY: a capsule of this name holds a DLManagedTensor, which begins with the tensor.
        (unsafe { pointer.cast::<Tensor>().read() }, 0)
    } else {
        return Err("__dlpack__ gave no tensor".to_owned());
    };
    if flags & FLAG_READ_ONLY != 0 {
        return Err(READ_ONLY.to_owned());
    }
    let ndim = usize::try_from(tensor.ndim).map_err(|_| "negative dimensions".to_owned())?;
    let numbers = |at: *const i64| -> Vec<i64> {
        if at.is_null() || ndim == 0 {
            return Vec::new();
        }
        // SAFETY: the format says that these are `ndim` numbers, alive with the capsule.
        unsafe { std::slice::from_raw_parts(at, ndim) }.to_vec()
    };
    let (extents, strides) = (numbers(tensor.shape), numbers(tensor.strides));
    if !strides.is_empty() && !is_row_major(&extents, &strides) {
        return Err(not_contiguous(false));
    }
    let mut shape = Vec::with_capacity(ndim + 1);
    for extent in extents {
        shape.push(u64::try_from(extent).map_err(|_| "a negative extent".to_owned())?);
    }
    let known = tensor_element(tensor)?;
    if known.is_none() {
        shape.push(u64::from(tensor.bits) * u64::from(tensor.lanes) / 8);
    }
    let offset = usize::try_from(tensor.byte_offset).map_err(|error| error.to_string())?;
    Ok(Place {
        address: tensor.data.addr().wrapping_add(offset),
        element: known.unwrap_or(ElementType::Bytes),
        shape,
        is_opaque: known.is_none(),
    })
}

fn tensor_element(tensor: Tensor) -> Result<Option<ElementType>, String> {
    if !(u32::from(tensor.bits) * u32::from(tensor.lanes)).is_multiple_of(8) {
        return Err(format!("elements of {} bits share bytes", tensor.bits));
    }
    if tensor.lanes != 1 {
        return Ok(None);
    }
    Ok(match (tensor.code, tensor.bits) {
        (0, 8) => Some(ElementType::I8),
        (0, 16) => Some(ElementType::I16),
        (0, 32) => Some(ElementType::I32),
        (0, 64) => Some(ElementType::I64),
        (1 | 6, 8) => Some(ElementType::U8),
        (1, 16) => Some(ElementType::U16),
        (1, 32) => Some(ElementType::U32),
        (1, 64) => Some(ElementType::U64),
        (2, 16) => Some(ElementType::F16),
        (2, 32) => Some(ElementType::F32),
        (2, 64) => Some(ElementType::F64),
        (4, 16) => Some(ElementType::Bf16),
        (5, 64) => Some(ElementType::Complex64),
        (5, 128) => Some(ElementType::Complex128),
        _ => None,
    })
}

fn is_row_major(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected: i64 = 1;
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        if extent != 1 && stride != expected {
            return false;
        }
        expected = expected.saturating_mul(extent);
    }
    true
}
