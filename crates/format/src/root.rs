// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a root slot: the list of revisions a store retains. Writing one is the commit.
//! Invariants: two slots; a commit writes the slot that does not hold the newest valid root; the
//! one with the higher sequence and a valid checksum is the store's state.
//! Format: docs/format/store.md, section "Root slots".

use crate::bytes::{Decoder, Encoder, FormatError, open};
use crate::ids::{CheckpointId, SegmentId, StoreId};
use crate::limits::{COUNTER_MAX, INTERNAL_STREAM_BYTES_MAX, RANKS_MAX, REVISIONS_MAX};
use crate::lineage::Lineage;
use crate::stream::StreamRoot;
use crate::width::index;

const STRUCTURE: &str = "root slot";
const MAGIC: [u8; 8] = *b"BKSTROOT";
const FLAG_PINNED: u32 = 1;
const FLAG_COMPLETE: u32 = 2;

/// One retained revision: this node's part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RevisionEntry {
    /// The checkpoint it is a part of.
    pub checkpoint: CheckpointId,
    /// Kept until it is unpinned.
    pub pinned: bool,
    /// Known to be committed by every rank of the job when this root was written.
    pub complete: bool,
    /// Ranks of the job.
    pub world_size: u32,
    /// When it was committed, in nanoseconds since 1970.
    pub committed_unix_ns: u64,
    /// Bytes of all variables of this node's ranks.
    pub bytes_total: u64,
    /// Bytes of the blocks that this revision wrote anew.
    pub bytes_changed: u64,
    /// The table of this node's ranks.
    pub ranks: StreamRoot,
}

impl RevisionEntry {
    /// Bytes of an encoded entry.
    pub const BYTES: usize = 88;

    /// Appends its bytes.
    pub(crate) fn put(&self, body: &mut Encoder) {
        let pinned = if self.pinned { FLAG_PINNED } else { 0 };
        let complete = if self.complete { FLAG_COMPLETE } else { 0 };
        body.u64(self.checkpoint.incarnation)
            .u64(self.checkpoint.number);
        body.u32(pinned | complete)
            .u32(self.world_size)
            .u64(self.committed_unix_ns);
        body.u64(self.bytes_total).u64(self.bytes_changed);
        self.ranks.put(body);
    }

    /// The next `count` entries, which must ascend; the caller has bounded `count`.
    pub(crate) fn decode_list(
        body: &mut Decoder<'_>,
        count: usize,
    ) -> Result<Vec<Self>, FormatError> {
        let mut revisions: Vec<Self> = Vec::with_capacity(count);
        for _ in 0..count {
            let checkpoint = CheckpointId::new(
                body.u64_max("incarnation", COUNTER_MAX)?,
                body.u64_max("number", COUNTER_MAX)?,
            );
            if revisions
                .last()
                .is_some_and(|last| last.checkpoint >= checkpoint)
            {
                return Err(body.refuse("number", 8, "ascending checkpoints", checkpoint));
            }
            let flags = body.u32_in("flags", 0, FLAG_PINNED | FLAG_COMPLETE)?;
            revisions.push(Self {
                checkpoint,
                pinned: flags & FLAG_PINNED != 0,
                complete: flags & FLAG_COMPLETE != 0,
                world_size: body.u32_in("ranks of the job", 1, RANKS_MAX)?,
                committed_unix_ns: body.u64("committed")?,
                bytes_total: body.u64("bytes total")?,
                bytes_changed: body.u64("bytes changed")?,
                ranks: StreamRoot::decode(body, INTERNAL_STREAM_BYTES_MAX)?,
            });
        }
        Ok(revisions)
    }
}

/// The state of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootSlot {
    /// The store the root was written for.
    pub store: StoreId,
    /// Counts the roots of this store, from 1.
    pub sequence: u64,
    /// The newest start of the job that this store knows.
    pub incarnation: u64,
    /// No segment of this store has this id or a higher one.
    pub next_segment: u64,
    /// The job said goodbye after this root.
    pub closed: bool,
    /// Which starts go on from one another, as this store knows.
    pub lineage: Lineage,
    /// The retained revisions, oldest first.
    pub revisions: Vec<RevisionEntry>,
}

impl RootSlot {
    /// Its bytes; at most [`crate::geometry::ROOT_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(STRUCTURE, MAGIC);
        body.raw(&self.store.0)
            .u64(self.sequence)
            .u64(self.incarnation)
            .u64(self.next_segment);
        body.u32(u32::from(self.closed));
        self.lineage.put(&mut body);
        body.count(self.revisions.len());
        for revision in &self.revisions {
            revision.put(&mut body);
        }
        body.finish(self, |bytes| Self::decode(bytes, self.store))
    }

    /// The root at the front of `bytes`; `store` is the store it should belong to.
    pub fn decode(bytes: &[u8], store: StoreId) -> Result<Self, FormatError> {
        let mut body = open(STRUCTURE, MAGIC, bytes)?;
        let found = StoreId(body.array("store id")?);
        if found != store {
            return Err(body.refuse("store id", 16, store, found));
        }
        let sequence = body.u64_max("sequence", COUNTER_MAX)?;
        let incarnation = body.u64_max("incarnation", COUNTER_MAX)?;
        let next_segment = body.u64_max("next segment", SegmentId::MAX.0 + 1)?;
        let closed = body.u32_in("closed", 0, 1)? == 1;
        let lineage = Lineage::decode(&mut body)?;
        let most = u32::try_from(REVISIONS_MAX).unwrap_or(u32::MAX);
        let count = index(body.u32_in("revisions", 0, most)?);
        let revisions = RevisionEntry::decode_list(&mut body, count)?;
        body.end()?;
        Ok(Self {
            store,
            sequence,
            incarnation,
            next_segment,
            closed,
            lineage,
            revisions,
        })
    }
}
