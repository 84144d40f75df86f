// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a store file is: which store, of which job and node, with which segment size.
//! Invariants: written once when the store is made, in two copies, and never again.
//! Format: docs/format/store.md, section "Superblock".

use crate::bytes::{Encoder, FormatError, open};
use crate::geometry::Geometry;
use crate::ids::StoreId;
use crate::limits::{LABEL_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

const STRUCTURE: &str = "superblock";
const MAGIC: [u8; 8] = *b"BKSTSUPR";

/// What a store file says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Which store.
    pub store: StoreId,
    /// Bytes of a segment slot; a power of two.
    pub segment_bytes: u32,
    /// Which run of the job: the same in the stores of all its nodes, through all its starts.
    pub run: u32,
    /// When it was made, in nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// The job it belongs to.
    pub job: String,
    /// The node it was made on.
    pub node: String,
}

impl Superblock {
    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(STRUCTURE, MAGIC);
        body.raw(&self.store.0)
            .u32(self.segment_bytes)
            .u32(self.run)
            .u64(self.created_unix_ns);
        body.text(&self.job).text(&self.node);
        body.finish(self, Self::decode)
    }

    /// The superblock at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(STRUCTURE, MAGIC, bytes)?;
        let store = StoreId(body.array("store id")?);
        let segment_bytes = body.u32_in("segment bytes", SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)?;
        if !segment_bytes.is_power_of_two() {
            return Err(body.refuse("segment bytes", 4, "a power of two", segment_bytes));
        }
        let run = body.u32_in("run", 1, u32::MAX)?;
        let created_unix_ns = body.u64("created")?;
        let job = body.text("job", LABEL_BYTES_MAX)?;
        let node = body.text("node", LABEL_BYTES_MAX)?;
        body.end()?;
        Ok(Self {
            store,
            segment_bytes,
            run,
            created_unix_ns,
            job,
            node,
        })
    }

    /// Where things stand in the file.
    pub fn geometry(&self) -> Geometry {
        Geometry {
            segment_bytes: self.segment_bytes,
        }
    }
}
