// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the root of a stream: bytes cut into blocks under a copy-on-write hash tree.
//! Invariants: height is what length and block size ask for; an empty stream has no address.
//! Format: docs/format/store.md, section "Streams".

use crate::bytes::{Decoder, Encoder, FormatError};
use crate::geometry::Geometry;
use crate::hash::Digest;
use crate::ids::Address;
use crate::limits::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, FANOUT, VARIABLE_BYTES_MAX, VARIABLES_MAX};
use crate::page::BlockRef;

const TABLE: &str = "table of variables";

/// Root of a stream.
///
/// Height 0: `top` refers to the only block. Height h: `top` refers to a page of level h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamRoot {
    /// Length of the stream, in bytes.
    pub length_bytes: u64,
    /// Length of each block but the last, in bytes.
    pub block_bytes: u32,
    /// Levels of pages above the blocks.
    pub height: u8,
    /// The topmost page, or the only block.
    pub top: BlockRef,
}

impl StreamRoot {
    /// Bytes of an encoded root.
    pub const BYTES: usize = 40;

    /// The empty stream.
    pub const fn empty(block_bytes: u32) -> Self {
        Self {
            length_bytes: 0,
            block_bytes,
            height: 0,
            top: BlockRef::NONE,
        }
    }

    /// Levels of pages that `length_bytes` in blocks of `block_bytes` need.
    pub fn height_for(length_bytes: u64, block_bytes: u32) -> u8 {
        let mut count = Geometry::block_count(length_bytes, block_bytes);
        let mut height = 0;
        while count > 1 {
            count = count.div_ceil(FANOUT);
            height += 1;
        }
        height
    }

    /// Number of blocks.
    pub fn block_count(&self) -> usize {
        Geometry::block_count(self.length_bytes, self.block_bytes)
    }

    /// Bytes of block `index`.
    pub fn block_length(&self, index: usize) -> usize {
        Geometry::block_length(self.length_bytes, self.block_bytes, index)
    }

    /// Entries of page `index` of `level` (1 is the level above the blocks).
    pub fn page_entries(&self, level: u8, index: usize) -> usize {
        let mut below = self.block_count();
        for _ in 1..level {
            below = below.div_ceil(FANOUT);
        }
        below.saturating_sub(index * FANOUT).min(FANOUT)
    }

    /// Appends its bytes.
    pub(crate) fn put(&self, encoder: &mut Encoder) {
        encoder
            .u64(self.length_bytes)
            .u32(self.block_bytes)
            .u8(self.height)
            .raw(&[0; 3]);
        encoder.u64(self.top.address.0).raw(&self.top.digest.0);
    }

    /// The bytes of a table of these roots, one for each variable.
    pub fn encode_table(roots: &[Self]) -> Result<Vec<u8>, FormatError> {
        let mut table = Encoder::new(TABLE);
        table.room(roots.len() * Self::BYTES);
        for root in roots {
            root.put(&mut table);
        }
        table.finish(roots, |bytes| Self::decode_table(bytes, roots.len()))
    }

    /// The table of `count` roots that `bytes` are.
    pub fn decode_table(bytes: &[u8], count: usize) -> Result<Vec<Self>, FormatError> {
        let mut body = Decoder::new(TABLE, bytes);
        if count > VARIABLES_MAX {
            return Err(body.refuse("count", 0, format!("at most {VARIABLES_MAX}"), count));
        }
        let mut roots = Vec::with_capacity(count.min(bytes.len() / Self::BYTES));
        for _ in 0..count {
            roots.push(Self::decode(&mut body, VARIABLE_BYTES_MAX)?);
        }
        body.end()?;
        Ok(roots)
    }

    /// Reads a root, whose stream may have up to `length_max` bytes.
    pub fn decode(body: &mut Decoder<'_>, length_max: u64) -> Result<Self, FormatError> {
        let length_bytes = body.u64_max("stream length", length_max.min(VARIABLE_BYTES_MAX))?;
        let block_bytes = body.u32_in("block bytes", BLOCK_BYTES_MIN, BLOCK_BYTES_MAX)?;
        if !block_bytes.is_power_of_two() {
            return Err(body.refuse("block bytes", 4, "a power of two", block_bytes));
        }
        let height = body.u8("height")?;
        let wanted = Self::height_for(length_bytes, block_bytes);
        if height != wanted {
            return Err(body.refuse("height", 1, wanted, height));
        }
        body.zeros("reserved", 3)?;
        let address = Address(body.u64("address")?);
        if address.is_none() != (length_bytes == 0) {
            return Err(body.refuse("address", 8, "one, unless the stream is empty", address));
        }
        let digest = Digest(body.array("digest")?);
        Ok(Self {
            length_bytes,
            block_bytes,
            height,
            top: BlockRef { address, digest },
        })
    }
}
