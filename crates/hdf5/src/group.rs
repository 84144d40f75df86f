// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the links of a group, however it keeps them.
//! In: the messages of a group. Out: names and addresses of what it has; soft and external links are left out.
//! Invariants: so many links and nodes of a group and no more.

use crate::btree2;
use crate::header::{LINK, LINK_INFO, Message, SYMBOL_TABLE};
use crate::heap::{self, Fractal};
use crate::read::{Read, Reader, Stop};
use backstay_format::width::to_usize;

const LINKS_MAX: usize = 1 << 16;
const HEIGHT_MAX: u8 = 16;

/// A name, and the address of what has it.
pub(crate) type Link = (Vec<u8>, u64);

/// The hard links of a group, in the order of their names.
pub(crate) fn links(reader: &Reader<'_>, messages: &[Message]) -> Read<Vec<Link>> {
    let mut found = Vec::new();
    for message in messages {
        match message.kind {
            LINK => found.extend(link(reader, &message.bytes)?),
            LINK_INFO => dense(reader, &message.bytes, &mut found)?,
            SYMBOL_TABLE => {
                let mut fields = reader.fields(&message.bytes);
                let (tree, names) = (fields.place()?, fields.place()?);
                let names = heap::local(reader, names)?;
                node(reader, tree, names, None, &mut found)?;
            }
            _ => {}
        }
    }
    found.sort();
    Ok(found)
}

/// What a link message says; `None` of one that is not hard.
fn link(reader: &Reader<'_>, bytes: &[u8]) -> Read<Option<Link>> {
    let mut fields = reader.fields(bytes);
    if fields.u8()? != 1 {
        return Err(Stop("a link is of no known version"));
    }
    let flags = fields.u8()?;
    let kind = if flags & 8 == 0 { 0 } else { fields.u8()? };
    fields.skip(if flags & 4 == 0 { 0 } else { 8 })?;
    fields.skip(usize::from(flags & 0x10 != 0))?;
    let length = fields.number(1 << (flags & 3))?;
    let name = fields.take(to_usize(length))?.to_vec();
    if kind != 0 {
        return Ok(None);
    }
    Ok(Some((name, fields.place()?)))
}

/// Links in a heap, which a tree lists by name.
fn dense(reader: &Reader<'_>, bytes: &[u8], found: &mut Vec<Link>) -> Read<()> {
    let mut fields = reader.fields(bytes);
    fields.skip(1)?;
    let flags = fields.u8()?;
    fields.skip(if flags & 1 == 0 { 0 } else { 8 })?;
    let (heap, tree) = (fields.address()?, fields.address()?);
    let Some((heap, tree)) = heap.zip(tree) else {
        return Ok(());
    };
    let heap = Fractal::open(reader, heap)?;
    let (kind, records) = btree2::records(reader, tree)?;
    if kind != 5 {
        return Err(Stop("the names of a group are listed in an unknown way"));
    }
    if records.len() > LINKS_MAX {
        return Err(Stop("a group has too many links"));
    }
    for record in records {
        let id = record.get(4..).ok_or(Stop("it ends early"))?;
        let bytes = heap.object(reader, id)?;
        found.extend(link(reader, &bytes)?);
    }
    Ok(())
}

/// A node of the tree of a group of the first kind, or a list of symbols below it.
fn node(
    reader: &Reader<'_>,
    address: u64,
    names: (u64, u64),
    height: Option<u8>,
    found: &mut Vec<Link>,
) -> Read<()> {
    let (address_bytes, length_bytes) = reader.widths;
    let head = 8 + 2 * address_bytes;
    if height == Some(0) {
        return symbols(reader, address, names, found);
    }
    let bytes = reader.signed(address, head, b"TREE")?;
    let (kind, level) = (bytes[4], bytes[5]);
    let is_below = height.is_none_or(|height| height == level + 1) && level < HEIGHT_MAX;
    if kind != 0 || !is_below {
        return Err(Stop("the tree of a group is damaged"));
    }
    let count = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
    let length = head + count * (address_bytes + length_bytes);
    let bytes = reader.bytes(address, length)?;
    let mut fields = reader.fields(&bytes);
    fields.skip(head)?;
    for _ in 0..count {
        fields.skip(length_bytes)?;
        node(reader, fields.place()?, names, Some(level), found)?;
    }
    Ok(())
}

fn symbols(
    reader: &Reader<'_>,
    address: u64,
    names: (u64, u64),
    found: &mut Vec<Link>,
) -> Read<()> {
    let address_bytes = reader.widths.0;
    let head = reader.signed(address, 8, b"SNOD")?;
    let count = usize::from(u16::from_le_bytes([head[6], head[7]]));
    let bytes = reader.bytes(address, 8 + count * (2 * address_bytes + 24))?;
    let mut fields = reader.fields(&bytes);
    fields.skip(8)?;
    for _ in 0..count {
        if found.len() >= LINKS_MAX {
            return Err(Stop("a group has too many links"));
        }
        let name = fields.number(address_bytes)?;
        let object = fields.address()?;
        fields.skip(24)?;
        if let Some(object) = object {
            found.push((heap::name(reader, names, name)?, object));
        }
    }
    Ok(())
}
