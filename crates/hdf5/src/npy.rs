// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: files of numpy, which hold one array: a structure with one dataset.
//! In: a file that begins as such. Out: its dataset, or why it is not understood.
//! Format: numpy.lib.format, versions 1 to 3.

use crate::dataset::{Dataset, Extent, Layout};
use crate::datatype::ItemType;
use crate::read::{Read, Reader, Stop};
use backstay_format::ElementType;
use backstay_format::limits::DIMENSIONS_MAX;
use backstay_format::width::{to_u64, to_usize};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Headers are longer only where types are records.
const HEADER_BYTES_MAX: u64 = 64 << 10;

/// The version of a file of numpy; `None` of others.
pub(crate) fn version(reader: &Reader<'_>) -> Option<u8> {
    let head = reader.signed(0, MAGIC.len() + 2, MAGIC).ok()?;
    Some(head[MAGIC.len()])
}

/// The array of the file.
pub(crate) fn dataset(reader: &Reader<'_>, version: u8) -> Read<Dataset> {
    let width = match version {
        1 => 2,
        2 | 3 => 4,
        _ => return Err(Stop("it is of no known version")),
    };
    let start = MAGIC.len() + 2;
    let bytes = reader.bytes(to_u64(start), width)?;
    let length = reader.fields(&bytes).number(width)?;
    if length > HEADER_BYTES_MAX {
        return Err(Stop("its header is too long"));
    }
    let header = reader.bytes(to_u64(start + width), to_usize(length))?;
    let header = String::from_utf8_lossy(&header);
    let offset = to_u64(start + width) + length;
    let odd = Stop("its header is not understood");
    let (item, shape) = (item(&header).ok_or(odd)?, shape(&header).ok_or(odd)?);
    let found = Dataset {
        path: "array".to_owned(),
        item,
        shape,
        layout: Layout::Contiguous,
        chunk_shape: Vec::new(),
        filters: Vec::new(),
        extents: Vec::new(),
        coordinates: Vec::new(),
    };
    let length = found.bytes().ok_or(odd)?;
    if offset
        .checked_add(length)
        .is_none_or(|end| end > reader.length())
    {
        return Err(Stop("its values are outside the file"));
    }
    let extents = if length > 0 {
        vec![Extent { offset, length }]
    } else {
        Vec::new()
    };
    Ok(Dataset { extents, ..found })
}

/// What follows a key of the header.
fn after<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = header.split_once(key)?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

fn item(header: &str) -> Option<ItemType> {
    let text = after(header, "'descr'")?.strip_prefix('\'')?;
    let (kind, _) = text.split_once('\'')?;
    let mut letters = kind.chars();
    let (order, class) = (letters.next()?, letters.next()?);
    let bytes: u64 = letters.as_str().parse().ok()?;
    let element = match (class, bytes) {
        ('i', 1) => ElementType::I8,
        ('i', 2) => ElementType::I16,
        ('i', 4) => ElementType::I32,
        ('i', 8) => ElementType::I64,
        ('u' | 'b', 1) => ElementType::U8,
        ('u', 2) => ElementType::U16,
        ('u', 4) => ElementType::U32,
        ('u', 8) => ElementType::U64,
        ('f', 2) => ElementType::F16,
        ('f', 4) => ElementType::F32,
        ('f', 8) => ElementType::F64,
        ('c', 8) => ElementType::Complex64,
        ('c', 16) => ElementType::Complex128,
        // Text has four bytes a letter.
        ('U', letters) => return Some(other(letters.checked_mul(4)?, kind)),
        _ => return Some(other(bytes, kind)),
    };
    let big_endian = order == '>' && bytes > 1;
    let order = if big_endian { ", big-endian" } else { "" };
    Some(ItemType {
        element,
        big_endian,
        bytes,
        name: format!("{element}{order}"),
    })
}

fn other(bytes: u64, kind: &str) -> ItemType {
    ItemType {
        element: ElementType::Bytes,
        big_endian: false,
        bytes,
        name: kind.to_owned(),
    }
}

/// Its shape as it lies there: that of an array of Fortran's turned round.
fn shape(header: &str) -> Option<Vec<u64>> {
    let text = after(header, "'shape'")?.strip_prefix('(')?;
    let (inside, _) = text.split_once(')')?;
    let numbers = inside
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty());
    let mut shape = numbers
        .map(|text| text.parse().ok())
        .collect::<Option<Vec<u64>>>()?;
    if shape.len() > DIMENSIONS_MAX {
        return None;
    }
    if after(header, "'fortran_order'")?.starts_with("True") {
        shape.reverse();
    }
    Some(shape)
}
