// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the catalog of an archive: which checkpoints are whole in it, and what each consists of.
//! Invariants: two slots, each with the whole state; the good one with the higher sequence counts. A
//! checkpoint can be restored if and only if it is listed, and no later start began from an older one.
//! Format: docs/format/archive.md, section "Catalog".

use crate::archive::{ArchiveFile, checkpoint};
use crate::bytes::{Decoder, Encoder, FormatError, open};
use crate::check::{Check, Checked, within};
use crate::ids::{CheckpointId, StoreId};
use crate::limits::{
    CATALOG_CHECKPOINTS_MAX, CATALOG_RANK_SETS_MAX, CATALOG_SLOT_BYTES_MAX, CATALOG_SLOT_BYTES_MIN,
    CATALOG_STARTS_MAX, CATALOG_STORES_MAX, COUNTER_MAX, LABEL_BYTES_MAX, RANKS_MAX,
};
use crate::lineage::Lineage;
use serde::{Deserialize, Serialize};

const SUPERBLOCK: &str = "catalog superblock";
const SUPERBLOCK_MAGIC: [u8; 8] = *b"BKSTCATL";
const STATE: &str = "catalog state";
const STATE_MAGIC: [u8; 8] = *b"BKSACATA";
const FLAG_KEPT: u32 = 1;
const FLAG_FINISHED: u32 = 2;

/// File offset of the first slot; the second follows it.
pub const SLOTS_OFFSET: u64 = 4 << 20;
/// Bytes of a slot where nothing else is asked for.
pub const SLOT_BYTES_DEFAULT: u32 = 4 << 20;

/// What a catalog file says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogSuperblock {
    /// Which catalog file.
    pub catalog: StoreId,
    /// Bytes of a slot: a multiple of 4096.
    pub slot_bytes: u32,
    /// Which run of the job.
    pub run: u32,
    /// When it was made, in nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// Counts the catalog files of the job, from 1: each takeover has a higher one.
    pub epoch: u32,
    /// The job it belongs to.
    pub job: String,
    /// The host that writes it, and its boot: no other ever does.
    pub host: String,
}

impl CatalogSuperblock {
    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(SUPERBLOCK, SUPERBLOCK_MAGIC);
        body.raw(&self.catalog.0)
            .u32(self.slot_bytes)
            .u32(self.run)
            .u64(self.created_unix_ns)
            .u32(self.epoch)
            .u32(0);
        body.text(&self.job).text(&self.host);
        body.finish(self, Self::decode)
    }

    /// The superblock at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(SUPERBLOCK, SUPERBLOCK_MAGIC, bytes)?;
        let catalog = StoreId(body.array("catalog id")?);
        let slot_bytes =
            body.u32_in("slot bytes", CATALOG_SLOT_BYTES_MIN, CATALOG_SLOT_BYTES_MAX)?;
        if !slot_bytes.is_multiple_of(4096) {
            return Err(body.refuse("slot bytes", 4, "a multiple of 4096", slot_bytes));
        }
        let run = body.u32_in("run", 1, u32::MAX)?;
        let created_unix_ns = body.u64("created")?;
        let epoch = body.u32_in("epoch", 1, u32::MAX)?;
        body.zeros("reserved", 4)?;
        let job = body.text("job", LABEL_BYTES_MAX)?;
        let host = body.text("host", LABEL_BYTES_MAX)?;
        body.end()?;
        Ok(Self {
            catalog,
            slot_bytes,
            run,
            created_unix_ns,
            epoch,
            job,
            host,
        })
    }

    /// File offset of slot `slot`, which is 0 or 1.
    pub fn slot_offset(&self, slot: usize) -> u64 {
        SLOTS_OFFSET + crate::width::to_u64(slot) * u64::from(self.slot_bytes)
    }
    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.slot_offset(2)
    }
}

/// A store that the catalog names: its id, and its file in the same folder.
pub type CatalogStore = ArchiveFile;

/// A start of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatalogStart {
    /// Its incarnation.
    pub incarnation: u64,
    /// The checkpoint it went on from; number 0 if it began anew.
    pub from: CheckpointId,
}

/// Ranks in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RankRange {
    /// The first of them.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl RankRange {
    /// The rank after the last of them.
    pub fn end(&self) -> u32 {
        self.first.saturating_add(self.count)
    }

    /// `ranks`, ascending, in as few ranges as they are.
    pub fn of(ranks: impl IntoIterator<Item = u32>) -> Vec<Self> {
        let mut ranges: Vec<Self> = Vec::new();
        for rank in ranks {
            match ranges.last_mut() {
                Some(last) if last.end() == rank => last.count += 1,
                _ => ranges.push(Self {
                    first: rank,
                    count: 1,
                }),
            }
        }
        ranges
    }
}

impl Check for RankRange {
    fn check(&self) -> Checked {
        within("ranks in a row", self.count, 1, RANKS_MAX)?;
        within("first rank", self.first, 0, RANKS_MAX - self.count)
    }
}

/// One store's part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatalogPart {
    /// Which store: its place in the list.
    pub store: u32,
    /// The sequence of the root that committed it: this root or a later one has the revision.
    pub sequence: u64,
    /// Whose parts these are: a place in the list of rank sets.
    pub ranks: u32,
}

/// A checkpoint that is whole in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogCheckpoint {
    /// Which.
    pub checkpoint: CheckpointId,
    /// Ranks of the job.
    pub world_size: u32,
    /// Kept until somebody says otherwise.
    pub kept: bool,
    /// The program finished with it: it stays until it is removed.
    pub finished: bool,
    /// When it was recorded, in nanoseconds since 1970.
    pub archived_unix_ns: u64,
    /// Bytes of all variables of all ranks.
    pub bytes_total: u64,
    /// Bytes that were stored for it.
    pub bytes_written: u64,
    /// What it consists of, ascending by store.
    pub parts: Vec<CatalogPart>,
}

/// All that a catalog says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CatalogState {
    /// Counts the states, from 1; goes on through takeovers.
    pub sequence: u64,
    /// The newest start of the job that the catalog knows.
    pub incarnation: u64,
    /// Which starts go on from one another, as the catalog knows.
    pub lineage: Lineage,
    /// The stores.
    pub stores: Vec<CatalogStore>,
    /// Starts, ascending by incarnation.
    pub starts: Vec<CatalogStart>,
    /// Ranks whose parts are in one store, each ascending; checkpoints share them.
    pub rank_sets: Vec<Vec<RankRange>>,
    /// The checkpoints, oldest first.
    pub checkpoints: Vec<CatalogCheckpoint>,
}

impl CatalogState {
    /// Its bytes, for the catalog file `catalog`.
    pub fn encode(&self, catalog: StoreId) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(STATE, STATE_MAGIC);
        body.raw(&catalog.0)
            .u64(self.sequence)
            .u64(self.incarnation);
        self.lineage.put(&mut body);
        body.count(self.stores.len())
            .count(self.starts.len())
            .count(self.checkpoints.len())
            .count(self.rank_sets.len());
        for store in &self.stores {
            store.put(&mut body);
        }
        for start in &self.starts {
            body.u64(start.incarnation)
                .u64(start.from.incarnation)
                .u64(start.from.number);
        }
        for set in &self.rank_sets {
            body.count(set.len());
            for range in set {
                body.u32(range.first).u32(range.count);
            }
        }
        for entry in &self.checkpoints {
            let kept = if entry.kept { FLAG_KEPT } else { 0 };
            let finished = if entry.finished { FLAG_FINISHED } else { 0 };
            body.u64(entry.checkpoint.incarnation)
                .u64(entry.checkpoint.number)
                .u32(entry.world_size)
                .u32(kept | finished);
            body.u64(entry.archived_unix_ns)
                .u64(entry.bytes_total)
                .u64(entry.bytes_written)
                .count(entry.parts.len());
            for part in &entry.parts {
                body.u32(part.store).u64(part.sequence).u32(part.ranks);
            }
        }
        body.finish(self, |bytes| Self::decode(bytes, catalog))
    }

    /// The state at the front of `bytes`; `catalog` is the file it should belong to.
    pub fn decode(bytes: &[u8], catalog: StoreId) -> Result<Self, FormatError> {
        let mut body = open(STATE, STATE_MAGIC, bytes)?;
        let found = StoreId(body.array("catalog id")?);
        if found != catalog {
            return Err(body.refuse("catalog id", 16, catalog, found));
        }
        let sequence = body.u64_max("sequence", COUNTER_MAX)?;
        let incarnation = body.u64_max("incarnation", COUNTER_MAX)?;
        let lineage = Lineage::decode(&mut body)?;
        let store_count = body.u32_in("stores", 0, CATALOG_STORES_MAX)?;
        let start_count = body.u32_in("starts", 0, CATALOG_STARTS_MAX)?;
        let checkpoint_count = body.u32_in("checkpoints", 0, CATALOG_CHECKPOINTS_MAX)?;
        let set_count = body.u32_in("rank sets", 0, CATALOG_RANK_SETS_MAX)?;
        let mut state = Self {
            sequence,
            incarnation,
            lineage,
            ..Self::default()
        };
        for _ in 0..store_count {
            state.stores.push(CatalogStore::decode(&mut body)?);
        }
        for _ in 0..start_count {
            let start = decode_start(&mut body, state.starts.last())?;
            state.starts.push(start);
        }
        for _ in 0..set_count {
            state.rank_sets.push(decode_ranks(&mut body)?);
        }
        for _ in 0..checkpoint_count {
            let last = state.checkpoints.last();
            let entry = decode_checkpoint(&mut body, last, (store_count, set_count))?;
            state.checkpoints.push(entry);
        }
        body.end()?;
        Ok(state)
    }

    /// The checkpoint, if it is listed.
    pub fn find(&self, checkpoint: CheckpointId) -> Option<&CatalogCheckpoint> {
        self.checkpoints
            .iter()
            .find(|entry| entry.checkpoint == checkpoint)
    }

    /// Whether a later start than the checkpoint's went on from an older one.
    pub fn is_abandoned(&self, checkpoint: CheckpointId) -> bool {
        self.starts
            .iter()
            .any(|start| start.incarnation > checkpoint.incarnation && checkpoint > start.from)
    }

    /// The checkpoints that can be restored, oldest first.
    pub fn restorable(&self) -> impl Iterator<Item = &CatalogCheckpoint> {
        self.checkpoints
            .iter()
            .filter(|entry| !self.is_abandoned(entry.checkpoint))
    }
}

fn decode_start(
    body: &mut Decoder<'_>,
    last: Option<&CatalogStart>,
) -> Result<CatalogStart, FormatError> {
    let incarnation = body.u64_max("incarnation", COUNTER_MAX)?;
    if last.is_some_and(|last| last.incarnation >= incarnation) {
        return Err(body.refuse("incarnation", 8, "ascending incarnations", incarnation));
    }
    let from = checkpoint(body)?;
    Ok(CatalogStart { incarnation, from })
}

fn decode_ranks(body: &mut Decoder<'_>) -> Result<Vec<RankRange>, FormatError> {
    let mut set: Vec<RankRange> = Vec::new();
    for _ in 0..body.u32_in("ranges", 1, RANKS_MAX)? {
        let first = body.u32("first rank")?;
        let is_apart = set.last().is_none_or(|last| last.end() < first);
        if !is_apart || first >= RANKS_MAX {
            return Err(body.refuse("first rank", 4, "ascending ranges with gaps between", first));
        }
        let count = body.u32_in("ranks in a row", 1, RANKS_MAX - first)?;
        set.push(RankRange { first, count });
    }
    Ok(set)
}

fn decode_checkpoint(
    body: &mut Decoder<'_>,
    last: Option<&CatalogCheckpoint>,
    (store_count, set_count): (u32, u32),
) -> Result<CatalogCheckpoint, FormatError> {
    let checkpoint = checkpoint(body)?;
    if last.is_some_and(|last| last.checkpoint >= checkpoint) {
        return Err(body.refuse("number", 8, "ascending checkpoints", checkpoint));
    }
    let world_size = body.u32_in("ranks of the job", 1, RANKS_MAX)?;
    let flags = body.u32_in("flags", 0, FLAG_KEPT | FLAG_FINISHED)?;
    let archived_unix_ns = body.u64("archived")?;
    let bytes_total = body.u64("bytes total")?;
    let bytes_written = body.u64("bytes written")?;
    let part_count = body.u32_in("parts", 0, store_count)?;
    let mut parts: Vec<CatalogPart> = Vec::new();
    for _ in 0..part_count {
        let store = body.u32("store")?;
        let is_next = parts.last().is_none_or(|last| last.store < store);
        if !is_next || store >= store_count {
            return Err(body.refuse("store", 4, "ascending places in the list", store));
        }
        let sequence = body.u64_max("sequence", COUNTER_MAX)?;
        let ranks = body.u32("rank set")?;
        if ranks >= set_count {
            return Err(body.refuse("rank set", 4, "a place in the list", ranks));
        }
        parts.push(CatalogPart {
            store,
            sequence,
            ranks,
        });
    }
    Ok(CatalogCheckpoint {
        checkpoint,
        world_size,
        kept: flags & FLAG_KEPT != 0,
        finished: flags & FLAG_FINISHED != 0,
        archived_unix_ns,
        bytes_total,
        bytes_written,
        parts,
    })
}
