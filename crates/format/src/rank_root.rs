// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the root of one rank's part of a checkpoint, and the node's table of such roots.
//! Invariants: a rank's part is complete by itself: descriptors, table of variables, blocks.
//! Format: docs/format/store.md, sections "Rank root" and "Table of ranks".

use crate::bytes::{Decoder, Encoder, FormatError, open};
use crate::hash::Digest;
use crate::ids::{Address, CheckpointId};
use crate::limits::{COUNTER_MAX, INTERNAL_STREAM_BYTES_MAX, RANKS_MAX, VARIABLES_MAX};
use crate::page::BlockRef;
use crate::stream::StreamRoot;
use serde::{Deserialize, Serialize};

const STRUCTURE: &str = "rank root";
const TABLE: &str = "table of ranks";
const MAGIC: [u8; 8] = *b"BKSTRANK";

/// One rank's part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankRoot {
    /// The rank that wrote it.
    pub rank: u32,
    /// Ranks of the job at that time.
    pub world_size: u32,
    /// The checkpoint that wrote this page; later ones share it while nothing changes.
    pub born: CheckpointId,
    /// Number of variables.
    pub variable_count: u32,
    /// Bytes of all variables.
    pub bytes_total: u64,
    /// The encoded descriptors, one after the other, sorted by name.
    pub descriptors: StreamRoot,
    /// The stream roots of the variables, in the order of the descriptors.
    pub table: StreamRoot,
}

impl RankRoot {
    /// Bytes of an encoded rank root, frame included.
    pub const BYTES: usize = 16 + 40 + 2 * StreamRoot::BYTES + 8;

    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(STRUCTURE, MAGIC);
        body.u32(self.rank)
            .u32(self.world_size)
            .u64(self.born.incarnation)
            .u64(self.born.number);
        body.u32(self.variable_count).u32(0).u64(self.bytes_total);
        self.descriptors.put(&mut body);
        self.table.put(&mut body);
        body.finish(self, Self::decode)
    }

    /// The rank root at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(STRUCTURE, MAGIC, bytes)?;
        let rank = body.u32_in("rank", 0, RANKS_MAX - 1)?;
        let world_size = body.u32_in("ranks of the job", rank + 1, RANKS_MAX)?;
        let born = CheckpointId::new(
            body.u64_max("incarnation", COUNTER_MAX)?,
            body.u64_max("number", COUNTER_MAX)?,
        );
        let most = u32::try_from(VARIABLES_MAX).unwrap_or(u32::MAX);
        let variable_count = body.u32_in("variables", 0, most)?;
        body.zeros("reserved", 4)?;
        let bytes_total = body.u64("bytes of all variables")?;
        let descriptors = StreamRoot::decode(&mut body, INTERNAL_STREAM_BYTES_MAX)?;
        let table = StreamRoot::decode(&mut body, INTERNAL_STREAM_BYTES_MAX)?;
        let wanted = u64::from(variable_count) * crate::width::to_u64(StreamRoot::BYTES);
        if table.length_bytes != wanted {
            return Err(body.refuse("table length", 40, wanted, table.length_bytes));
        }
        body.end()?;
        Ok(Self {
            rank,
            world_size,
            born,
            variable_count,
            bytes_total,
            descriptors,
            table,
        })
    }
}

/// One line of a node's table of ranks: where that rank's root stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEntry {
    /// The rank.
    pub rank: u32,
    /// Its root page.
    pub root: BlockRef,
}

impl RankEntry {
    /// Bytes of an encoded entry.
    pub const BYTES: usize = 32;

    /// Appends its bytes.
    pub(crate) fn put(&self, encoder: &mut Encoder) {
        encoder
            .u32(self.rank)
            .u32(0)
            .u64(self.root.address.0)
            .raw(&self.root.digest.0);
    }

    /// The bytes of a table of these entries.
    pub fn encode_table(entries: &[Self]) -> Result<Vec<u8>, FormatError> {
        let mut table = Encoder::new(TABLE);
        table.room(entries.len() * Self::BYTES);
        for entry in entries {
            entry.put(&mut table);
        }
        table.finish(entries, Self::decode_table)
    }

    /// The table in `bytes`: entries in ascending order of their ranks.
    pub fn decode_table(bytes: &[u8]) -> Result<Vec<Self>, FormatError> {
        let mut body = Decoder::new(TABLE, bytes);
        let mut entries: Vec<Self> = Vec::with_capacity(bytes.len() / Self::BYTES);
        while body.remaining() > 0 {
            let rank = body.u32_in("rank", 0, RANKS_MAX - 1)?;
            if entries.last().is_some_and(|last| last.rank >= rank) {
                return Err(body.refuse("rank", 4, "ascending ranks", rank));
            }
            body.zeros("reserved", 4)?;
            let address = Address(body.u64("address")?);
            if address.is_none() {
                return Err(body.refuse("address", 8, "an address", 0));
            }
            let digest = Digest(body.array("digest")?);
            entries.push(Self {
                rank,
                root: BlockRef { address, digest },
            });
        }
        Ok(entries)
    }
}
