// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the elements of a dataset are, as Backstay's element types.
//! In: a datatype message. Out: the element type, where there is one, else bytes, with words for people.
//! Invariants: types in types are looked at to a depth of [`DEPTH_MAX`].

use crate::read::{Fields, Read, Reader, Stop};
use backstay_format::ElementType;
use backstay_format::width::to_usize;

const DEPTH_MAX: u32 = 8;
const MEMBERS_MAX: u64 = 4096;

/// What an item of a dataset is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemType {
    /// Type of the numbers that an item is made of; [`ElementType::Bytes`] where it is made of anything else.
    pub element: ElementType,
    /// Whether numbers stand with their highest byte first.
    pub big_endian: bool,
    /// Bytes of an item: a multiple of the element's.
    pub bytes: u64,
    /// In words, such as `f64` or `string of 3 bytes`.
    pub name: String,
}

impl ItemType {
    fn number(element: ElementType, big_endian: bool) -> Self {
        let order = if big_endian { ", big-endian" } else { "" };
        Self {
            element,
            big_endian: big_endian && element.width_bytes() > 1,
            bytes: element.width_bytes(),
            name: format!("{element}{order}"),
        }
    }

    fn other(bytes: u64, what: &str) -> Self {
        Self {
            element: ElementType::Bytes,
            big_endian: false,
            bytes,
            name: format!("{what} of {bytes} bytes"),
        }
    }
}

/// The type that `bytes` of a message describe.
pub(crate) fn item_type(reader: &Reader<'_>, bytes: &[u8]) -> Read<ItemType> {
    let mut fields = reader.fields(bytes);
    let found = parse(&mut fields, 0)?;
    if found.bytes == 0 {
        return Err(Stop("its elements have no bytes"));
    }
    Ok(found)
}

fn parse(fields: &mut Fields<'_>, depth: u32) -> Read<ItemType> {
    if depth > DEPTH_MAX {
        return Err(Stop("its type is made of too many types"));
    }
    let head = fields.u8()?;
    let (class, version) = (head & 15, head >> 4);
    let flags = fields.number(3)?;
    let bytes = u64::from(fields.u32()?);
    let is_big = flags & 1 != 0;
    match class {
        0 | 4 => {
            let (offset, precision) = (fields.u16()?, fields.u16()?);
            let is_whole = offset == 0 && u64::from(precision) == bytes * 8;
            let signed = class == 0 && flags & 8 != 0;
            let element = integer(bytes, signed).filter(|_| is_whole);
            Ok(element.map_or_else(
                || ItemType::other(bytes, "integer"),
                |element| ItemType::number(element, is_big),
            ))
        }
        1 => float(fields, bytes, is_big, flags & 0x40 != 0),
        6 => compound(fields, version, flags & 0xffff, bytes, depth),
        // Of an enumeration the type of its numbers.
        8 => parse(fields, depth + 1).map(|base| ItemType {
            name: format!("enumeration of {}", base.name),
            ..base
        }),
        10 => array(fields, version, bytes, depth),
        11 => {
            let base = parse(fields, depth + 1)?;
            Ok(complex(&base, bytes).unwrap_or_else(|| ItemType::other(bytes, "complex")))
        }
        2 => Ok(ItemType::other(bytes, "time")),
        3 => Ok(ItemType::other(bytes, "string")),
        5 => Ok(ItemType::other(bytes, "opaque")),
        7 => Ok(ItemType::other(bytes, "reference")),
        9 => Ok(ItemType::other(bytes, "variable length")),
        _ => Err(Stop("the class of its type is not known")),
    }
}

fn integer(bytes: u64, signed: bool) -> Option<ElementType> {
    use ElementType::{I8, I16, I32, I64, U8, U16, U32, U64};
    Some(match (bytes, signed) {
        (1, true) => I8,
        (2, true) => I16,
        (4, true) => I32,
        (8, true) => I64,
        (1, false) => U8,
        (2, false) => U16,
        (4, false) => U32,
        (8, false) => U64,
        _ => return None,
    })
}

fn float(fields: &mut Fields<'_>, bytes: u64, is_big: bool, is_vax: bool) -> Read<ItemType> {
    let (offset, precision) = (fields.u16()?, fields.u16()?);
    let (_, exponent) = (fields.u8()?, fields.u8()?);
    let (_, mantissa) = (fields.u8()?, fields.u8()?);
    fields.skip(4)?;
    let element = match (bytes, exponent, mantissa) {
        (2, 5, 10) => ElementType::F16,
        (2, 8, 7) => ElementType::Bf16,
        (4, 8, 23) => ElementType::F32,
        (8, 11, 52) => ElementType::F64,
        _ => return Ok(ItemType::other(bytes, "float")),
    };
    if is_vax || offset != 0 || u64::from(precision) != bytes * 8 {
        return Ok(ItemType::other(bytes, "float"));
    }
    Ok(ItemType::number(element, is_big))
}

/// Two floats, real and imaginary.
fn complex(part: &ItemType, bytes: u64) -> Option<ItemType> {
    let element = match part.element {
        ElementType::F32 if bytes == 8 => ElementType::Complex64,
        ElementType::F64 if bytes == 16 => ElementType::Complex128,
        _ => return None,
    };
    Some(ItemType::number(element, part.big_endian))
}

fn compound(
    fields: &mut Fields<'_>,
    version: u8,
    count: u64,
    bytes: u64,
    depth: u32,
) -> Read<ItemType> {
    if count > MEMBERS_MAX {
        return Err(Stop("its type has too many members"));
    }
    let mut members: Vec<(Vec<u8>, ItemType)> = Vec::new();
    let (mut end, mut is_packed) = (0, true);
    for _ in 0..count {
        let start = fields.at();
        let mut name = Vec::new();
        loop {
            match fields.u8()? {
                0 => break,
                byte => name.push(byte),
            }
        }
        if version < 3 {
            fields.align(start)?;
        }
        let width = if version < 3 {
            4
        } else {
            crate::read::bytes_for(bytes)
        };
        let offset = fields.number(width)?;
        if version == 1 {
            fields.skip(12 + 16)?;
        }
        let member = parse(fields, depth + 1)?;
        is_packed &= offset == end;
        end = offset.saturating_add(member.bytes);
        members.push((name, member));
    }
    let none = || ItemType::other(bytes, "compound");
    let Some((_, first)) = members.first().filter(|_| is_packed && end == bytes) else {
        return Ok(none());
    };
    if let [(real, one), (imaginary, other)] = &*members
        && one == other
        && matches!((&**real, &**imaginary), (b"r", b"i") | (b"real", b"imag"))
        && let Some(found) = complex(one, bytes)
    {
        return Ok(found);
    }
    let kind = (first.element, first.big_endian);
    let same = members
        .iter()
        .all(|(_, one)| (one.element, one.big_endian) == kind);
    if !same || first.element == ElementType::Bytes {
        return Ok(none());
    }
    Ok(ItemType {
        bytes,
        name: format!("compound of {} {}", members.len(), first.element),
        ..first.clone()
    })
}

fn array(fields: &mut Fields<'_>, version: u8, bytes: u64, depth: u32) -> Read<ItemType> {
    let dimensions = to_usize(u64::from(fields.u8()?));
    if version < 3 {
        fields.skip(3)?;
    }
    let mut count = 1_u64;
    let mut words = Vec::new();
    for _ in 0..dimensions {
        let extent = u64::from(fields.u32()?);
        count = count.saturating_mul(extent);
        words.push(extent.to_string());
    }
    if version < 3 {
        fields.skip(4 * dimensions)?;
    }
    let base = parse(fields, depth + 1)?;
    if count.checked_mul(base.bytes) != Some(bytes) {
        return Err(Stop("an array in its type has another length"));
    }
    Ok(ItemType {
        bytes,
        name: format!("array of {} {}", words.join("x"), base.name),
        ..base
    })
}
