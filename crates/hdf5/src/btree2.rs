// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: B-trees of version 2, as lists of records.
//! In: the address of a tree. Out: its records, in their order.
//! Invariants: no more records than the tree says there are, and than [`RECORDS_MAX`]; its depth is bounded.

use crate::read::{Read, Reader, Stop, bytes_for};
use backstay_format::width::{to_u64, to_usize};

const RECORDS_MAX: u64 = 1 << 20;
const DEPTH_MAX: u16 = 16;
/// Signature, version, type and checksum of a node.
const NODE_HEAD: u64 = 6;
const NODE_BYTES: u64 = 10;

/// What the nodes of one tree share.
#[expect(clippy::struct_field_names, reason = "all of them are lengths")]
struct Shape {
    node_bytes: usize,
    record_bytes: usize,
    /// Bytes of a number of records in a node.
    count_bytes: usize,
    /// Bytes of a number of records below a node, by its height.
    below_bytes: Vec<usize>,
}

/// The type of the tree at `address`, and its records.
pub(crate) fn records(reader: &Reader<'_>, address: u64) -> Read<(u8, Vec<Vec<u8>>)> {
    let (address_bytes, length_bytes) = reader.widths;
    let head = 16 + address_bytes + 2 + length_bytes;
    let bytes = reader.signed(address, head, b"BTHD")?;
    let mut fields = reader.fields(&bytes);
    fields.skip(5)?;
    let kind = fields.u8()?;
    let node_bytes = to_usize(u64::from(fields.u32()?));
    let record_bytes = usize::from(fields.u16()?);
    let depth = fields.u16()?;
    fields.skip(2)?;
    let root = fields.address()?;
    let count = u64::from(fields.u16()?);
    let total = fields.length()?;
    if record_bytes == 0 || depth > DEPTH_MAX || total > RECORDS_MAX {
        return Err(Stop("a tree is too large"));
    }
    let mut found = Vec::new();
    if let Some(root) = root {
        let shape = Shape::new(reader, node_bytes, record_bytes, depth)?;
        shape.node(reader, (root, count), depth, &mut found)?;
    }
    Ok((kind, found))
}

impl Shape {
    fn new(reader: &Reader<'_>, node_bytes: usize, record_bytes: usize, depth: u16) -> Read<Self> {
        let odd = Stop("a tree's nodes have an odd size");
        let (node, record) = (to_u64(node_bytes), to_u64(record_bytes));
        let room = node.checked_sub(NODE_BYTES).ok_or(odd)?;
        let leaf = room / record;
        let count_bytes = bytes_for(leaf);
        let mut below_bytes = vec![0];
        let mut below = leaf;
        for _ in 0..depth {
            let last = below_bytes.last().copied().unwrap_or(0);
            let pointer = to_u64(reader.widths.0 + count_bytes + last);
            let most = room.checked_sub(pointer).ok_or(odd)? / (record + pointer);
            below = most
                .saturating_add(1)
                .saturating_mul(below)
                .saturating_add(most);
            below_bytes.push(bytes_for(below));
        }
        Ok(Self {
            node_bytes,
            record_bytes,
            count_bytes,
            below_bytes,
        })
    }

    fn node(
        &self,
        reader: &Reader<'_>,
        (address, count): (u64, u64),
        height: u16,
        found: &mut Vec<Vec<u8>>,
    ) -> Read<()> {
        if to_u64(found.len()) + count > RECORDS_MAX || count > to_u64(self.node_bytes) {
            return Err(Stop("a tree has too many records"));
        }
        reader.spend(count / 16 + 1)?;
        let signature = if height == 0 { b"BTLF" } else { b"BTIN" };
        let count = to_usize(count);
        let below = usize::from(height).checked_sub(1);
        let total_bytes = below.map_or(0, |below| self.below_bytes[below]);
        let pointer = reader.widths.0 + self.count_bytes + total_bytes;
        let pointers = below.map_or(0, |_| (count + 1) * pointer);
        let length = to_usize(NODE_HEAD) + count * self.record_bytes + pointers;
        let bytes = reader.signed(address, length, signature)?;
        let mut fields = reader.fields(&bytes);
        fields.skip(to_usize(NODE_HEAD))?;
        let mut own = Vec::with_capacity(count);
        for _ in 0..count {
            own.push(fields.take(self.record_bytes)?.to_vec());
        }
        if below.is_none() {
            found.append(&mut own);
            return Ok(());
        }
        let mut own = own.into_iter();
        for _ in 0..=count {
            let child = fields.place()?;
            let records = fields.number(self.count_bytes)?;
            fields.skip(total_bytes)?;
            self.node(reader, (child, records), height - 1, found)?;
            found.extend(own.next());
        }
        Ok(())
    }
}
