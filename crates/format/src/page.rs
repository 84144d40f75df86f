// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a page of the hash tree: addresses and digests of what stands below it.
//! Invariants: a page is checked by the digest in its parent before it is decoded.
//! Format: docs/format/store.md, section "Tree pages".

use crate::bytes::{Decoder, Encoder, FormatError};
use crate::hash::Digest;
use crate::ids::Address;
use crate::limits::{FANOUT, HEIGHT_MAX, STORE_VERSION_MAJOR};
use crate::width::index;

const STRUCTURE: &str = "tree page";
const MAGIC: [u8; 4] = *b"BKPG";

/// Where a block or page stands, and what it must hash to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockRef {
    /// Where it stands.
    pub address: Address,
    /// XXH3-128 of its bytes.
    pub digest: Digest,
}

impl BlockRef {
    /// A reference to nothing.
    pub const NONE: Self = Self {
        address: Address::NONE,
        digest: Digest([0; 16]),
    };
    /// Bytes of an encoded reference.
    pub const BYTES: usize = 24;
}

/// A page: up to [`FANOUT`] references, all to the level below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// 1 for a page that refers to blocks.
    pub level: u8,
    /// What stands below, in order.
    pub entries: Vec<BlockRef>,
}

impl Page {
    /// Bytes before the entries: magic 4, version 2, level 1, reserved 1, count 4, reserved 4.
    pub const HEAD_BYTES: usize = 16;

    /// Bytes of a page with `count` entries.
    pub const fn bytes_for(count: usize) -> usize {
        Self::HEAD_BYTES + count * BlockRef::BYTES
    }

    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder
            .raw(&MAGIC)
            .u16(STORE_VERSION_MAJOR)
            .u8(self.level)
            .u8(0);
        encoder
            .u32(u32::try_from(self.entries.len()).unwrap_or(u32::MAX))
            .u32(0);
        for entry in &self.entries {
            encoder.u64(entry.address.0).raw(&entry.digest.0);
        }
        encoder.finish()
    }

    /// The page in `bytes`, which must be of `level` and hold `count` entries.
    pub fn decode(bytes: &[u8], level: u8, count: usize) -> Result<Self, FormatError> {
        let mut body = Decoder::new(STRUCTURE, bytes);
        let magic: [u8; 4] = body.array("magic")?;
        if magic != MAGIC {
            return Err(body.refuse("magic", 4, MAGIC.escape_ascii(), magic.escape_ascii()));
        }
        let version = body.u16("version")?;
        if version != STORE_VERSION_MAJOR {
            return Err(body.refuse("version", 2, STORE_VERSION_MAJOR, version));
        }
        let found = body.u8("level")?;
        if found != level || level == 0 || level > HEIGHT_MAX {
            return Err(body.refuse("level", 1, level, found));
        }
        body.zeros("reserved", 1)?;
        let found = index(body.u32("entries")?);
        if found != count || count > FANOUT {
            return Err(body.refuse("entries", 4, count, found));
        }
        body.zeros("reserved", 4)?;
        let mut entries = Vec::with_capacity(count);
        for _ in 0..count {
            let address = Address(body.u64("address")?);
            if address.is_none() {
                return Err(body.refuse("address", 8, "an address", 0));
            }
            entries.push(BlockRef {
                address,
                digest: Digest(body.array("digest")?),
            });
        }
        body.end()?;
        Ok(Self { level, entries })
    }
}
