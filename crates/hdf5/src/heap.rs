// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the heaps in which groups keep names: local ones, and fractal ones of what is managed or tiny.
//! In: the address of a heap, and what of it is asked for. Out: its bytes.
//! Invariants: a heap's rows and the way down to a block are bounded.

use crate::read::{Read, Reader, Stop, bytes_for};
use backstay_format::width::to_usize;

/// Longest name of a link.
const NAME_BYTES_MAX: usize = 1024;
const ROWS_MAX: u64 = 64;
const WIDTH_MAX: u64 = 1024;
const HEIGHT_MAX: u32 = 8;

/// Where the data of the local heap at `address` are, and how many.
pub(crate) fn local(reader: &Reader<'_>, address: u64) -> Read<(u64, u64)> {
    let (address_bytes, length_bytes) = reader.widths;
    let bytes = reader.signed(address, 8 + 2 * length_bytes + address_bytes, b"HEAP")?;
    let mut fields = reader.fields(&bytes);
    fields.skip(8)?;
    let length = fields.length()?;
    fields.skip(length_bytes)?;
    Ok((fields.place()?, length))
}

/// The name that begins at `offset` of a local heap's data.
pub(crate) fn name(reader: &Reader<'_>, (start, length): (u64, u64), offset: u64) -> Read<Vec<u8>> {
    let left = length
        .checked_sub(offset)
        .ok_or(Stop("a name is outside its heap"))?;
    let most = to_usize(left).min(NAME_BYTES_MAX);
    let at = start
        .checked_add(offset)
        .ok_or(Stop("a name is outside its heap"))?;
    let mut bytes = reader.bytes(at, most)?;
    let end = bytes.iter().position(|&byte| byte == 0);
    bytes.truncate(end.ok_or(Stop("a name is too long"))?);
    Ok(bytes)
}

/// A fractal heap.
#[derive(Debug)]
pub(crate) struct Fractal {
    root: Option<u64>,
    /// Rows of the root; 0 where it is a block of data.
    rows: u64,
    width: u64,
    start_bytes: u64,
    direct_bytes: u64,
    is_filtered: bool,
    offset_bytes: usize,
    length_bytes: usize,
}

impl Fractal {
    /// Reads the head of the heap at `address`.
    pub(crate) fn open(reader: &Reader<'_>, address: u64) -> Read<Self> {
        let (address_bytes, length_bytes) = reader.widths;
        let head = 22 + 12 * length_bytes + 3 * address_bytes;
        let bytes = reader.signed(address, head, b"FRHP")?;
        let mut fields = reader.fields(&bytes);
        fields.skip(7)?;
        let filters = fields.u16()?;
        fields.skip(1)?;
        let object_bytes = fields.u32()?;
        fields.skip(2 * length_bytes + 2 * address_bytes + 8 * length_bytes)?;
        let width = u64::from(fields.u16()?);
        let start_bytes = fields.length()?;
        let direct_bytes = fields.length()?;
        let bits = fields.u16()?;
        fields.skip(2)?;
        let root = fields.address()?;
        let rows = u64::from(fields.u16()?);
        let is_power = |value: u64| value.is_power_of_two() && value < 1 << 40;
        let is_good = (1..=WIDTH_MAX).contains(&width)
            && is_power(start_bytes)
            && is_power(direct_bytes)
            && start_bytes <= direct_bytes
            && rows <= ROWS_MAX
            && bits <= 64;
        if !is_good {
            return Err(Stop("the measures of a heap are odd"));
        }
        let in_block = to_usize(u64::from(direct_bytes.ilog2().div_ceil(8)));
        Ok(Self {
            root,
            rows,
            width,
            start_bytes,
            direct_bytes,
            is_filtered: filters != 0,
            offset_bytes: usize::from(bits.div_ceil(8)),
            length_bytes: in_block.min(bytes_for(u64::from(object_bytes))),
        })
    }

    /// What `id` names.
    pub(crate) fn object(&self, reader: &Reader<'_>, id: &[u8]) -> Read<Vec<u8>> {
        let mut fields = reader.fields(id);
        let head = fields.u8()?;
        match head >> 4 & 3 {
            0 => {
                let offset = fields.number(self.offset_bytes)?;
                let length = to_usize(fields.number(self.length_bytes)?);
                let at = self.find(reader, offset)?;
                reader.bytes(at, length)
            }
            2 => {
                let length = usize::from(head & 15) + 1;
                Ok(fields.take(length)?.to_vec())
            }
            _ => Err(Stop("a name stands outside its heap")),
        }
    }

    /// Where in the file `offset` of the heap is.
    fn find(&self, reader: &Reader<'_>, offset: u64) -> Read<u64> {
        let root = self.root.ok_or(Stop("a heap is empty"))?;
        if self.is_filtered {
            return Err(Stop("a heap is filtered"));
        }
        if self.rows == 0 {
            return root
                .checked_add(offset)
                .ok_or(Stop("a name is outside its heap"));
        }
        let (mut block, mut rows, mut left) = (root, self.rows, offset);
        for _ in 0..HEIGHT_MAX {
            let (row, column, within) = self.place(left);
            if row >= rows {
                return Err(Stop("a name is outside its heap"));
            }
            let child = self.child(reader, block, rows, (row, column))?;
            if self.row_bytes(row) <= self.direct_bytes {
                return child
                    .checked_add(within)
                    .ok_or(Stop("a name is outside its heap"));
            }
            // An indirect block, over as many bytes as its place has.
            rows = u64::from(
                (self.row_bytes(row) / self.start_bytes / self.width)
                    .max(1)
                    .ilog2(),
            ) + 1;
            (block, left) = (child, within);
        }
        Err(Stop("a heap is too deep"))
    }

    fn row_bytes(&self, row: u64) -> u64 {
        let power = u32::try_from(row.saturating_sub(1)).unwrap_or(63).min(63);
        self.start_bytes.saturating_mul(1 << power)
    }

    /// The row and column of an offset, and how far in it that is.
    fn place(&self, offset: u64) -> (u64, u64, u64) {
        let mut start = 0_u64;
        for row in 0..ROWS_MAX {
            let bytes = self.row_bytes(row);
            let whole = bytes.saturating_mul(self.width);
            if offset - start < whole {
                let within = offset - start;
                return (row, within / bytes, within % bytes);
            }
            start = start.saturating_add(whole);
            if start > offset {
                break;
            }
        }
        (ROWS_MAX, 0, 0)
    }

    fn child(
        &self,
        reader: &Reader<'_>,
        block: u64,
        rows: u64,
        (row, column): (u64, u64),
    ) -> Read<u64> {
        let address_bytes = reader.widths.0;
        let head = 5 + address_bytes + self.offset_bytes;
        reader.signed(block, head, b"FHIB")?;
        debug_assert!(row < rows);
        let entry = to_usize(row * self.width + column);
        let at = block + backstay_format::width::to_u64(head + entry * address_bytes);
        let bytes = reader.bytes(at, address_bytes)?;
        reader.fields(&bytes).place()
    }
}
