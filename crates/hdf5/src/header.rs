// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: object headers of both kinds, and the messages in them.
//! In: the address of an object. Out: its messages, in their order, with those of its continuations.
//! Invariants: so many messages and continuations of an object and no more.

use crate::read::{PIECE_BYTES_MAX, Read, Reader, Stop};
use backstay_format::width::{to_u64, to_usize};
use std::collections::VecDeque;

const CONTINUATIONS_MAX: usize = 1024;
const MESSAGES_MAX: usize = 1 << 16;

pub(crate) const DATASPACE: u16 = 0x01;
pub(crate) const LINK_INFO: u16 = 0x02;
pub(crate) const DATATYPE: u16 = 0x03;
pub(crate) const LINK: u16 = 0x06;
pub(crate) const EXTERNAL: u16 = 0x07;
pub(crate) const LAYOUT: u16 = 0x08;
pub(crate) const FILTERS: u16 = 0x0b;
const CONTINUATION: u16 = 0x10;
pub(crate) const SYMBOL_TABLE: u16 = 0x11;

const SHARED: u8 = 2;

/// A message of an object.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) kind: u16,
    flags: u8,
    /// Where its bytes begin.
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The first message of a kind.
pub(crate) fn find(messages: &[Message], kind: u16) -> Option<&Message> {
    messages.iter().find(|message| message.kind == kind)
}

/// A block of messages that is still to be read.
struct Block {
    address: u64,
    length: u64,
}

/// How the messages of one header are written.
struct Form {
    is_second: bool,
    has_order: bool,
}

/// The messages of the object at `address`.
pub(crate) fn messages(reader: &Reader<'_>, address: u64) -> Read<Vec<Message>> {
    let head = reader.bytes(address, 16)?;
    let (form, first) = if head.starts_with(b"OHDR") {
        second(reader, address, &head)?
    } else if head[0] == 1 {
        let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        let form = Form {
            is_second: false,
            has_order: false,
        };
        let address = address + 16;
        let length = u64::from(length);
        (form, Block { address, length })
    } else {
        return Err(Stop("an object's header is of no known version"));
    };
    let mut blocks = VecDeque::from([first]);
    let mut messages = Vec::new();
    let mut count = 0;
    while let Some(block) = blocks.pop_front() {
        count += 1;
        if count > CONTINUATIONS_MAX {
            return Err(Stop("an object goes on in too many places"));
        }
        take_apart(reader, &form, &block, &mut messages, &mut blocks)?;
    }
    Ok(messages)
}

/// The first block of a header of version 2.
fn second(reader: &Reader<'_>, address: u64, head: &[u8]) -> Read<(Form, Block)> {
    if head[4] != 2 {
        return Err(Stop("an object's header is of no known version"));
    }
    let flags = head[5];
    let times = if flags & 0x20 == 0 { 0 } else { 16 };
    let bounds = if flags & 0x10 == 0 { 0 } else { 4 };
    let width = 1_usize << (flags & 3);
    let start = 6 + times + bounds;
    let bytes = reader.bytes(address, start + width)?;
    let mut fields = reader.fields(&bytes);
    fields.skip(start)?;
    let length = fields.number(width)?;
    let form = Form {
        is_second: true,
        has_order: flags & 4 != 0,
    };
    let address = address + to_u64(start + width);
    Ok((form, Block { address, length }))
}

fn take_apart(
    reader: &Reader<'_>,
    form: &Form,
    block: &Block,
    messages: &mut Vec<Message>,
    blocks: &mut VecDeque<Block>,
) -> Read<()> {
    if block.length > to_u64(PIECE_BYTES_MAX) {
        return Err(Stop("an object's header is too long"));
    }
    let bytes = reader.bytes(block.address, to_usize(block.length))?;
    let mut fields = reader.fields(&bytes);
    let head = match form {
        Form {
            is_second: false, ..
        } => 8,
        Form {
            has_order: true, ..
        } => 6,
        Form { .. } => 4,
    };
    while fields.left() >= head {
        let kind = if form.is_second {
            u16::from(fields.u8()?)
        } else {
            fields.u16()?
        };
        let length = usize::from(fields.u16()?);
        let flags = fields.u8()?;
        fields.skip(head - if form.is_second { 4 } else { 5 })?;
        let address = block.address + to_u64(fields.at());
        let body = fields.take(length)?;
        if kind == CONTINUATION {
            blocks.push_back(continuation(reader, form, body)?);
            continue;
        }
        if messages.len() >= MESSAGES_MAX {
            return Err(Stop("an object has too many messages"));
        }
        messages.push(Message {
            kind,
            flags,
            address,
            bytes: body.to_vec(),
        });
    }
    Ok(())
}

fn continuation(reader: &Reader<'_>, form: &Form, body: &[u8]) -> Read<Block> {
    let mut fields = reader.fields(body);
    let (address, length) = (fields.place()?, fields.length()?);
    if !form.is_second {
        return Ok(Block { address, length });
    }
    reader.signed(address, 4, b"OCHK")?;
    // Its signature, and its checksum.
    let length = length.checked_sub(8).ok_or(Stop("it ends early"))?;
    let address = address + 4;
    Ok(Block { address, length })
}

impl Message {
    /// Its bytes: of one that is shared, those of the object that has it.
    pub(crate) fn resolved(&self, reader: &Reader<'_>) -> Read<Vec<u8>> {
        if self.flags & SHARED == 0 {
            return Ok(self.bytes.clone());
        }
        let mut fields = reader.fields(&self.bytes);
        let (version, kind) = (fields.u8()?, fields.u8()?);
        match (version, kind) {
            (1, _) => fields.skip(6)?,
            (2, _) | (3, 2) => {}
            _ => return Err(Stop("a message stands in a heap of shared ones")),
        }
        let other = messages(reader, fields.place()?)?;
        match find(&other, self.kind) {
            Some(found) if found.flags & SHARED == 0 => Ok(found.bytes.clone()),
            _ => Err(Stop("a shared message is not where it should be")),
        }
    }
}
