// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the beginning of an HDF5 file: how wide its addresses are, and where its root group is.
//! In: a file. Out: the widths, for all that is read after it, and the address of the root.

use crate::read::{Read, Reader, Stop};

const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";
/// Where a superblock may begin: 0, 512, and twice as much each time.
const PLACES: u32 = 24;

/// Where the superblock of a file begins, if it has one.
pub(crate) fn find(reader: &Reader<'_>) -> Option<u64> {
    let places = (9..9 + PLACES).map(|power| 1_u64 << power);
    let mut places = std::iter::once(0).chain(places);
    places.find(|&place| reader.signed(place, SIGNATURE.len(), SIGNATURE).is_ok())
}

/// Reads the superblock at `place`, and has the reader go by it; gives its version and the root's address.
pub(crate) fn open(reader: &mut Reader<'_>, place: u64) -> Read<(u8, u64)> {
    let head = reader.bytes(place, 16)?;
    let version = head[8];
    let widths = match version {
        0 | 1 => (head[13], head[14]),
        2 | 3 => (head[9], head[10]),
        _ => return Err(Stop("the version of its superblock is not known")),
    };
    let narrow = |width: u8| matches!(width, 2 | 4 | 8).then(|| usize::from(width));
    let widths = narrow(widths.0).zip(narrow(widths.1));
    reader.widths = widths.ok_or(Stop("its addresses have an odd width"))?;
    let address_bytes = reader.widths.0;
    let start = match version {
        0 => 24,
        1 => 28,
        _ => 12,
    };
    let bytes = reader.bytes(place, start + 6 * address_bytes)?;
    let mut fields = reader.fields(&bytes);
    fields.skip(start)?;
    let base = fields.place()?;
    // What was put in front of the file later moves all of it.
    let base = if base == 0 { place } else { base };
    // Of the first versions a table entry has the root: the offset of its name, then its address.
    let before = if version < 2 { 5 } else { 3 };
    fields.skip((before - 1) * address_bytes)?;
    let root = fields.place()?;
    reader.base = base;
    Ok((version, root))
}
