// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a page of the hash tree: addresses and digests of what stands below it.
//! Invariants: a page is checked by the digest in its parent before it is decoded.
//! Format: docs/format/store.md, section "Tree pages".

use crate::bytes::{Decoder, Encoder, FormatError};
use crate::hash::Digest;
use crate::ids::Address;
use crate::limits::{FANOUT, HEIGHT_MAX, STORE_VERSION_MAJOR};
use crate::width::index;
use serde::{Deserialize, Serialize};

const STRUCTURE: &str = "tree page";
const MAGIC: [u8; 4] = *b"BKPG";

/// Where a block or page stands, and what it must hash to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
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
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut encoder = Encoder::new(STRUCTURE);
        let count = self.entries.len();
        encoder.room(Self::bytes_for(count));
        encoder
            .raw(&MAGIC)
            .u16(STORE_VERSION_MAJOR)
            .u8(self.level)
            .u8(0);
        encoder.count(count).u32(0);
        for entry in &self.entries {
            encoder.u64(entry.address.0).raw(&entry.digest.0);
        }
        encoder.finish(self, |bytes| Self::decode(bytes, self.level, count))
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
        if !(1..=HEIGHT_MAX).contains(&found) {
            return Err(body.refuse("level", 1, format!("1 to {HEIGHT_MAX}"), found));
        }
        if found != level {
            return Err(body.refuse("level", 1, level, found));
        }
        body.zeros("reserved", 1)?;
        let found = index(body.u32("entries")?);
        if found > FANOUT {
            return Err(body.refuse("entries", 4, format!("at most {FANOUT}"), found));
        }
        if found != count {
            return Err(body.refuse("entries", 4, count, found));
        }
        body.zeros("reserved", 4)?;
        let stored = body.raw("entries", count * BlockRef::BYTES)?;
        let mut entries = Vec::with_capacity(count);
        // All at once: every page that is written is read back.
        for reference in stored.chunks_exact(BlockRef::BYTES) {
            let (mut address, mut digest) = ([0; 8], [0; 16]);
            address.copy_from_slice(&reference[..8]);
            digest.copy_from_slice(&reference[8..]);
            let address = Address(u64::from_le_bytes(address));
            if address.is_none() {
                let width = (count - entries.len()) * BlockRef::BYTES;
                return Err(body.refuse("address", width, "an address", 0));
            }
            entries.push(BlockRef {
                address,
                digest: Digest(digest),
            });
        }
        body.end()?;
        Ok(Self { level, entries })
    }
}
