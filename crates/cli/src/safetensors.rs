// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: arrays as a file of safetensors, so that weights can be shared.
//! In: names, types, arrays as they are stored. Out: a file that appears when it is whole: the length of a header
//! (8 bytes, little-endian), the header (JSON), the elements in its order, without gaps.
//! Invariants: elements are those that are stored, to the last byte, row-major in the tensor's own dimensions.

use crate::draft::{Draft, copy};
use crate::interrupt;
use crate::output::Failure;
use backstay::{ElementType, Error, ErrorKind};
use backstay_inspect::Array;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::Path;

/// The header is filled up with spaces to a multiple of this.
const HEADER_ALIGNMENT: usize = 8;

/// A tensor to be written.
pub(crate) struct Tensor<'a> {
    pub(crate) name: String,
    /// As safetensors calls it.
    pub(crate) r#type: &'static str,
    pub(crate) shape: Vec<u64>,
    pub(crate) content: Content<'a>,
}

/// Where its elements are.
pub(crate) enum Content<'a> {
    /// Stored in the order in which they are written.
    Array(Array<'a>),
    /// Stored with these dimensions of the tensor, from the slowest to the fastest.
    Permuted(Array<'a>, Vec<usize>),
    Bytes(Vec<u8>),
}

impl Content<'_> {
    pub(crate) fn length_bytes(&self) -> u64 {
        match self {
            Self::Array(array) | Self::Permuted(array, _) => array.length_bytes(),
            Self::Bytes(bytes) => u64::try_from(bytes.len()).unwrap_or(u64::MAX),
        }
    }
}

/// The type of stored elements; nothing where safetensors has none.
pub(crate) const fn type_of(element: ElementType) -> Option<&'static str> {
    Some(match element {
        ElementType::I8 => "I8",
        ElementType::I16 => "I16",
        ElementType::I32 => "I32",
        ElementType::I64 => "I64",
        ElementType::U8 | ElementType::Bytes => "U8",
        ElementType::U16 => "U16",
        ElementType::U32 => "U32",
        ElementType::U64 => "U64",
        ElementType::F16 => "F16",
        ElementType::Bf16 => "BF16",
        ElementType::F32 => "F32",
        ElementType::F64 => "F64",
        ElementType::Complex64 => "C64",
        ElementType::Complex128 => return None,
    })
}

/// The type that torch calls so, and its bytes; nothing where safetensors has none.
pub(crate) fn type_of_torch(name: &str) -> Option<(&'static str, u64)> {
    Some(match name {
        "bool" => ("BOOL", 1),
        "uint8" => ("U8", 1),
        "int8" => ("I8", 1),
        "float8_e4m3fn" => ("F8_E4M3", 1),
        "float8_e5m2" => ("F8_E5M2", 1),
        "float8_e8m0fnu" => ("F8_E8M0", 1),
        "float8_e4m3fnuz" => ("F8_E4M3FNUZ", 1),
        "float8_e5m2fnuz" => ("F8_E5M2FNUZ", 1),
        "int16" => ("I16", 2),
        "uint16" => ("U16", 2),
        "float16" => ("F16", 2),
        "bfloat16" => ("BF16", 2),
        "int32" => ("I32", 4),
        "uint32" => ("U32", 4),
        "float32" => ("F32", 4),
        "int64" => ("I64", 8),
        "uint64" => ("U64", 8),
        "float64" => ("F64", 8),
        "complex64" => ("C64", 8),
        _ => return None,
    })
}

/// The shape of the tensor that is stored with `stored`, its dimensions in the order `order`; nothing where that
/// is no order of them.
pub(crate) fn shape_of(stored: &[u64], order: &[usize]) -> Option<Vec<u64>> {
    let mut shape = vec![None; stored.len()];
    for (&dimension, &extent) in order.iter().zip(stored) {
        let place = shape.get_mut(dimension)?;
        *place = Some(extent);
    }
    let is_whole = order.len() == stored.len();
    shape
        .into_iter()
        .collect::<Option<Vec<u64>>>()
        .filter(|_| is_whole)
}

/// Writes the tensors, which have different names, in the order of those.
pub(crate) fn write(
    path: &Path,
    tensors: &[Tensor<'_>],
    progress: &mut dyn FnMut(u64),
) -> Result<(), Failure> {
    let (draft, mut file) = Draft::begin(path)?;
    let written = file.write_all(&header(tensors));
    written.map_err(|error| draft.failed(&error))?;
    for tensor in tensors {
        let written = write_one(tensor, &mut file, progress)?;
        written.map_err(|error| draft.failed(&error))?;
    }
    file.flush().map_err(|error| draft.failed(&error))?;
    draft.keep(file.get_ref())
}

fn header(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let mut entries = Map::new();
    // What those that load weights ask for; the elements are the same for others.
    entries.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.content.length_bytes();
        let entry =
            json!({"dtype": tensor.r#type, "shape": tensor.shape, "data_offsets": [at, end]});
        entries.insert(tensor.name.clone(), entry);
        at = end;
    }
    let text = Value::Object(entries).to_string();
    let length = text.len().next_multiple_of(HEADER_ALIGNMENT);
    let mut bytes = u64::try_from(length)
        .unwrap_or(u64::MAX)
        .to_le_bytes()
        .to_vec();
    bytes.extend(text.as_bytes());
    bytes.resize(8 + length, b' ');
    bytes
}

fn write_one(
    tensor: &Tensor<'_>,
    file: &mut impl Write,
    progress: &mut dyn FnMut(u64),
) -> Result<std::io::Result<()>, Error> {
    let bytes = match &tensor.content {
        Content::Array(array) => return copy(array, file, progress),
        Content::Bytes(bytes) => bytes,
        Content::Permuted(array, order) => {
            let mut stored = Vec::new();
            if let Err(error) = copy(array, &mut stored, progress)? {
                return Ok(Err(error));
            }
            &permuted(&stored, array, &tensor.shape, order)?
        }
    };
    Ok(interrupt::check().and_then(|()| file.write_all(bytes)))
}

/// Elements in the order of the tensor's own dimensions. They are in memory twice meanwhile.
fn permuted(
    stored: &[u8],
    array: &Array<'_>,
    shape: &[u64],
    order: &[usize],
) -> Result<Vec<u8>, Error> {
    let width = usize::try_from(array.element().width_bytes()).unwrap_or(1);
    let refused = || {
        Error::new(
            ErrorKind::VariableMismatch,
            "a tensor's order is not one of its dimensions",
        )
    };
    let shape: Vec<usize> = shape
        .iter()
        .map(|&extent| usize::try_from(extent).unwrap_or(usize::MAX))
        .collect();
    // Of each dimension of the tensor, how far its elements are apart where they are stored.
    let mut strides = vec![0; shape.len()];
    let mut stride = width;
    for &dimension in order.iter().rev() {
        *strides.get_mut(dimension).ok_or_else(refused)? = stride;
        stride = stride.saturating_mul(shape[dimension]);
    }
    let mut out = Vec::with_capacity(stored.len());
    let mut index = vec![0; shape.len()];
    let mut at = 0;
    while out.len() < stored.len() {
        out.extend_from_slice(stored.get(at..at + width).ok_or_else(refused)?);
        for dimension in (0..shape.len()).rev() {
            index[dimension] += 1;
            at += strides[dimension];
            if index[dimension] < shape[dimension] {
                break;
            }
            at -= strides[dimension] * shape[dimension];
            index[dimension] = 0;
        }
    }
    Ok(out)
}
