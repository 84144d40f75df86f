// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: where the elements of a Python object lie now: by the buffer protocol, or by `DLPack`.
//! In: any object. Out: address, type, shape, and what keeps them as they are while they are looked at.
//! Invariants: nothing is copied; what is not writable, contiguous and in main memory is refused with what to
//! do.

use crate::buffer::Buffer;
use crate::dlpack;
use crate::errors::invalid;
use engine::ElementType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// Why memory that may not be written is refused.
pub(crate) const READ_ONLY: &str =
    "its memory is read-only; protect a writable copy (numpy.array(x)), which restoring can fill";

/// Where an object's elements are, row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Of the first element.
    pub(crate) address: usize,
    /// Their type; what has none of ours is bytes, with a dimension more.
    pub(crate) element: ElementType,
    /// Elements in each dimension.
    pub(crate) shape: Vec<u64>,
    /// The object is bytes of another type: its last dimension is not the program's.
    pub(crate) is_opaque: bool,
}

/// Keeps the elements where they are; to be dropped with the interpreter's lock held.
#[expect(dead_code, reason = "kept for its end")]
pub(crate) enum Hold {
    Buffer(Buffer),
    Capsule(Py<PyCapsule>),
}

/// Where the elements of `object` are, and that they stay there.
pub(crate) fn look(name: &str, object: &Bound<'_, PyAny>) -> PyResult<(Place, Hold)> {
    let py = object.py();
    let refused = |why: String| invalid(py, format!("variable {name:?}: {why}"));
    let is_dlpack = object.hasattr("__dlpack__")?;
    match Buffer::get(object) {
        Ok(buffer) => {
            let place = of_buffer(&buffer).map_err(refused)?;
            Ok((place, Hold::Buffer(buffer)))
        }
        Err(error) if is_dlpack && error.is_instance_of::<PyTypeError>(py) => {
            let capsule = dlpack::export(object)
                .map_err(|error| refused(format!("{}: {error}", kind_of(object))))?;
            let place = dlpack::place(&capsule).map_err(refused)?;
            Ok((place, Hold::Capsule(capsule.unbind())))
        }
        Err(error) => Err(refused(format!(
            "{} has no memory to protect ({error}); protect a numpy array, a tensor on the CPU, or anything \
             with the buffer protocol, and small objects with protect_object",
            kind_of(object)
        ))),
    }
}

/// Whether an object of ours says that its memory is where it was when it was last looked at, and that it keeps it.
pub(crate) fn is_still(object: &Bound<'_, PyAny>) -> bool {
    let said = object.getattr_opt(pyo3::intern!(object.py(), "_backstay_still"));
    said.is_ok_and(|said| said.is_some_and(|said| said.is_truthy().unwrap_or(false)))
}

fn kind_of(object: &Bound<'_, PyAny>) -> String {
    let name = object.get_type().fully_qualified_name();
    name.map_or_else(|_| "the object".to_owned(), |name| name.to_string())
}

fn of_buffer(buffer: &Buffer) -> Result<Place, String> {
    if buffer.is_read_only() {
        return Err(READ_ONLY.to_owned());
    }
    if !buffer.is_row_major() {
        return Err(not_contiguous(buffer.is_contiguous(b'F')));
    }
    let mut shape = buffer.shape();
    let known = element(&buffer.format(), buffer.item_bytes())?;
    if known.is_none() {
        shape.push(buffer.item_bytes());
    }
    Ok(Place {
        address: buffer.address(),
        element: known.unwrap_or(ElementType::Bytes),
        shape,
        is_opaque: known.is_none(),
    })
}

/// Why memory in another order is refused.
pub(crate) fn not_contiguous(is_reversed: bool) -> String {
    if is_reversed {
        "its elements are in Fortran's order; protect x.T, which is the same memory in C's order"
            .to_owned()
    } else {
        "its elements are not contiguous; protect the array that it is a view of, or a contiguous copy"
            .to_owned()
    }
}

/// The type that a format of the `struct` module names; `None` for bytes of another type.
fn element(format: &str, item_bytes: u64) -> Result<Option<ElementType>, String> {
    // Names of fields stand between colons.
    if format
        .split(':')
        .step_by(2)
        .any(|types| types.contains(['O', 'P', '&']))
    {
        return Err(format!(
            "its elements ({format:?}) are references, which mean nothing in another process; use \
             protect_object"
        ));
    }
    let is_foreign = format.starts_with(['>', '!']);
    let code = format.trim_start_matches(['@', '=', '<', '>', '!', '^']);
    let found = match (code, item_bytes) {
        ("b", 1) => ElementType::I8,
        ("?" | "B", 1) => ElementType::U8,
        ("c", 1) => ElementType::Bytes,
        ("h", 2) => ElementType::I16,
        ("H", 2) => ElementType::U16,
        ("i" | "l", 4) => ElementType::I32,
        ("I" | "L", 4) => ElementType::U32,
        ("l" | "q" | "n", 8) => ElementType::I64,
        ("L" | "Q" | "N", 8) => ElementType::U64,
        ("e", 2) => ElementType::F16,
        ("f", 4) => ElementType::F32,
        ("d", 8) => ElementType::F64,
        ("Zf", 8) => ElementType::Complex64,
        ("Zd", 16) => ElementType::Complex128,
        _ => return Ok(None),
    };
    Ok((!is_foreign || item_bytes == 1).then_some(found))
}
