// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the record that says which segment stands in a slot of the file.
//! Invariants: the records are the only place where segment ids meet file offsets; a record is
//! overwritten only when nothing retained refers to the segment it named.
//! Format: docs/format/store.md, section "Segment records".

use crate::bytes::{Encoder, FormatError, open};
use crate::ids::{SegmentId, StoreId};
use serde::{Deserialize, Serialize};

const STRUCTURE: &str = "segment record";
const MAGIC: [u8; 8] = *b"BKSTSEGM";

/// Unit of allocation inside a segment, by the size of what is put there.
///
/// One segment holds one class, so that its map of used granules stays small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum SegmentClass {
    /// Other blocks whose length is a multiple of 4 KiB.
    Blocks = 1,
    /// Other lengths above 2 KiB, in units of 512 bytes.
    Ends = 2,
    /// Tree pages and small blocks, in units of 64 bytes.
    Small = 3,
    /// Blocks whose length is a multiple of 16 KiB: nearly all there is of large variables.
    Large = 4,
}

impl SegmentClass {
    /// All classes.
    pub const ALL: [Self; 4] = [Self::Blocks, Self::Ends, Self::Small, Self::Large];

    /// The class for something of `length_bytes`.
    pub const fn of(length_bytes: usize) -> Self {
        if length_bytes.is_multiple_of(16_384) && length_bytes > 0 {
            Self::Large
        } else if length_bytes.is_multiple_of(4096) && length_bytes > 0 {
            Self::Blocks
        } else if length_bytes > 2048 {
            Self::Ends
        } else {
            Self::Small
        }
    }
    /// Unit of allocation, in bytes.
    pub const fn granule_bytes(self) -> u32 {
        match self {
            Self::Large => 16_384,
            Self::Blocks => 4096,
            Self::Ends => 512,
            Self::Small => 64,
        }
    }
    /// The class with this id.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|class| *class as u8 == id)
    }
}

/// Which segment stands in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRecord {
    /// The store the record was written for.
    pub store: StoreId,
    /// The segment.
    pub segment: SegmentId,
    /// Its unit of allocation.
    pub class: SegmentClass,
}

impl SegmentRecord {
    /// Its bytes: 56, in a place of 64.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(STRUCTURE, MAGIC);
        body.raw(&self.store.0)
            .u64(self.segment.0)
            .u8(self.class as u8)
            .raw(&[0; 7]);
        body.finish(self, |bytes| Self::decode(bytes, self.store))
    }

    /// The record at the front of `bytes`; `store` is the store it should belong to.
    pub fn decode(bytes: &[u8], store: StoreId) -> Result<Self, FormatError> {
        let mut body = open(STRUCTURE, MAGIC, bytes)?;
        let found = StoreId(body.array("store id")?);
        if found != store {
            return Err(body.refuse("store id", 16, store, found));
        }
        let segment = body.u64_max("segment id", SegmentId::MAX.0)?;
        if segment == 0 {
            return Err(body.refuse("segment id", 8, "1 or more", segment));
        }
        let id = body.u8("class")?;
        let class =
            SegmentClass::from_id(id).ok_or_else(|| body.refuse("class", 1, "1 to 4", id))?;
        body.zeros("reserved", 7)?;
        body.end()?;
        Ok(Self {
            store,
            segment: SegmentId(segment),
            class,
        })
    }
}
