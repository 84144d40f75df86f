// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: an archive store: one aggregator's file on shared storage. What the file is, its root, and
//! the table that says where each archived segment stands.
//! Invariants: superblock written once, last; two root slots as in a node's store; a table is written
//! anew beside the one that the durable root refers to; offsets are multiples of the grain.
//! Format: docs/format/archive.md.

use crate::bytes::{Decoder, Encoder, FormatError, open};
use crate::hash::Digest;
use crate::ids::{CheckpointId, SegmentId, StoreId};
use crate::limits::{
    ARCHIVE_FILES_MAX, COUNTER_MAX, FILE_NAME_BYTES_MAX, LABEL_BYTES_MAX, REVISIONS_MAX,
    SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MAX, STORED_BYTES_MAX,
};
use crate::root::RevisionEntry;
use crate::segment::SegmentClass;
use crate::width::{index, to_u64};

const SUPERBLOCK: &str = "archive superblock";
const SUPERBLOCK_MAGIC: [u8; 8] = *b"BKSTARCH";
const ROOT: &str = "archive root";
const ROOT_MAGIC: [u8; 8] = *b"BKSAROOT";
const TABLE: &str = "segment table";
const TABLE_MAGIC: [u8; 8] = *b"BKSATABL";
const FLAG_DELTA: u8 = 1;
const FLAG_DRAINING: u8 = 2;

/// File offset of the first extent. What stands before is the head: superblocks and root slots, at the
/// places they have in a node's store ([`crate::geometry`]).
pub const DATA_OFFSET: u64 = 4 << 20;
/// Unit of allocation, in bytes.
pub const GRAIN_BYTES: u64 = 4096;

/// What an archive file says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveSuperblock {
    /// Which store.
    pub store: StoreId,
    /// Most bytes of a decoded segment; a power of two.
    pub segment_bytes: u32,
    /// Which run of the job.
    pub run: u32,
    /// When it was made, in nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// Which aggregator writes it, from 0.
    pub aggregator: u32,
    /// Counts the files of this aggregator, from 1: each takeover has a higher one.
    pub epoch: u32,
    /// The job it belongs to.
    pub job: String,
    /// The host that writes it, and its boot: no other ever does.
    pub host: String,
}

impl ArchiveSuperblock {
    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(SUPERBLOCK, SUPERBLOCK_MAGIC);
        body.raw(&self.store.0)
            .u32(self.segment_bytes)
            .u32(self.run)
            .u64(self.created_unix_ns)
            .u32(self.aggregator)
            .u32(self.epoch);
        body.text(&self.job).text(&self.host);
        body.finish(self, Self::decode)
    }

    /// The superblock at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut body = open(SUPERBLOCK, SUPERBLOCK_MAGIC, bytes)?;
        let store = StoreId(body.array("store id")?);
        let segment_bytes = body.u32_in("segment bytes", SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)?;
        if !segment_bytes.is_power_of_two() {
            return Err(body.refuse("segment bytes", 4, "a power of two", segment_bytes));
        }
        let run = body.u32_in("run", 1, u32::MAX)?;
        let created_unix_ns = body.u64("created")?;
        let aggregator = body.u32("aggregator")?;
        let epoch = body.u32_in("epoch", 1, u32::MAX)?;
        let job = body.text("job", LABEL_BYTES_MAX)?;
        let host = body.text("host", LABEL_BYTES_MAX)?;
        body.end()?;
        Ok(Self {
            store,
            segment_bytes,
            run,
            created_unix_ns,
            aggregator,
            epoch,
            job,
            host,
        })
    }
}

/// Another archive file that a root refers to: a predecessor, which is only read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveFile {
    /// Its store.
    pub store: StoreId,
    /// Its name in the same folder.
    pub name: String,
}

impl ArchiveFile {
    /// Appends its bytes.
    pub(crate) fn put(&self, body: &mut Encoder) {
        body.raw(&self.store.0).text(&self.name);
    }

    /// The next one.
    pub(crate) fn decode(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let store = StoreId(body.array("store id")?);
        let name = body.text("file name", FILE_NAME_BYTES_MAX)?;
        if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
            return Err(body.refuse("file name", name.len(), "a name in the same folder", name));
        }
        Ok(Self { store, name })
    }
}

/// Where a segment table stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TablePlace {
    /// Its file offset; 0 if there is no segment and so no table.
    pub offset: u64,
    /// Its bytes.
    pub length_bytes: u32,
    /// What they hash to.
    pub digest: Digest,
}

impl TablePlace {
    /// Whether there is no table.
    pub fn is_none(&self) -> bool {
        self.length_bytes == 0
    }
}

/// The state of an archive store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveRoot {
    /// The store the root was written for.
    pub store: StoreId,
    /// Counts the roots, from 1; goes on through takeovers.
    pub sequence: u64,
    /// The newest start of the job that this store knows.
    pub incarnation: u64,
    /// No segment of the table has this id or a higher one.
    pub next_segment: u64,
    /// The checkpoint whose drain is under way, with segments in the table that no revision reaches yet.
    pub draining: Option<CheckpointId>,
    /// Where the segment table is.
    pub table: TablePlace,
    /// Files of predecessors: file 1 is the first.
    pub files: Vec<ArchiveFile>,
    /// The archived revisions, oldest first.
    pub revisions: Vec<RevisionEntry>,
}

impl ArchiveRoot {
    /// Its bytes; at most [`crate::geometry::ROOT_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let draining = self.draining.unwrap_or_default();
        let mut body = Encoder::framed(ROOT, ROOT_MAGIC);
        body.raw(&self.store.0)
            .u64(self.sequence)
            .u64(self.incarnation)
            .u64(self.next_segment)
            .u64(draining.incarnation)
            .u64(draining.number);
        body.u64(self.table.offset)
            .u32(self.table.length_bytes)
            .raw(&self.table.digest.0);
        body.count(self.files.len()).count(self.revisions.len());
        for file in &self.files {
            file.put(&mut body);
        }
        for revision in &self.revisions {
            revision.put(&mut body);
        }
        body.finish(self, |bytes| Self::decode(bytes, self.store))
    }

    /// The root at the front of `bytes`; `store` is the store it should belong to.
    pub fn decode(bytes: &[u8], store: StoreId) -> Result<Self, FormatError> {
        let mut body = open(ROOT, ROOT_MAGIC, bytes)?;
        let found = StoreId(body.array("store id")?);
        if found != store {
            return Err(body.refuse("store id", 16, store, found));
        }
        let sequence = body.u64_max("sequence", COUNTER_MAX)?;
        let incarnation = body.u64_max("incarnation", COUNTER_MAX)?;
        let next_segment = body.u64_max("next segment", SegmentId::MAX.0 + 1)?;
        let draining = checkpoint(&mut body)?;
        let table = decode_place(&mut body)?;
        let files_most = u32::try_from(ARCHIVE_FILES_MAX).unwrap_or(u32::MAX);
        let file_count = body.u32_in("other files", 0, files_most)?;
        let most = u32::try_from(REVISIONS_MAX).unwrap_or(u32::MAX);
        let count = index(body.u32_in("revisions", 0, most)?);
        let mut files = Vec::new();
        for _ in 0..file_count {
            files.push(ArchiveFile::decode(&mut body)?);
        }
        let revisions = RevisionEntry::decode_list(&mut body, count)?;
        body.end()?;
        Ok(Self {
            store,
            sequence,
            incarnation,
            next_segment,
            draining: (draining != CheckpointId::default()).then_some(draining),
            table,
            files,
            revisions,
        })
    }
}

pub(crate) fn checkpoint(body: &mut Decoder<'_>) -> Result<CheckpointId, FormatError> {
    Ok(CheckpointId::new(
        body.u64_max("incarnation", COUNTER_MAX)?,
        body.u64_max("number", COUNTER_MAX)?,
    ))
}

fn decode_place(body: &mut Decoder<'_>) -> Result<TablePlace, FormatError> {
    let offset = body.u64_max("table offset", COUNTER_MAX)?;
    let offset_at = body.clone();
    let length_bytes = body.u32("table length")?;
    let fits = match length_bytes {
        0 => offset == 0,
        _ => offset >= DATA_OFFSET && offset.is_multiple_of(GRAIN_BYTES),
    };
    if !fits {
        return Err(offset_at.refuse("table offset", 8, "a place for a table", offset));
    }
    let most = ArchiveTable::bytes_for(SEGMENTS_MAX);
    if u64::from(length_bytes) > most {
        return Err(body.refuse("table length", 4, format!("at most {most}"), length_bytes));
    }
    let digest = Digest(body.array("table digest")?);
    if length_bytes == 0 && digest != Digest::default() {
        return Err(body.refuse("table digest", 16, "zeros without a table", digest));
    }
    Ok(TablePlace {
        offset,
        length_bytes,
        digest,
    })
}

/// Where an archived segment stands, and how it is stored there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableEntry {
    /// The segment.
    pub segment: SegmentId,
    /// File offset of its extent.
    pub offset: u64,
    /// Digest of the stored bytes: header and payload.
    pub digest: Digest,
    /// Bytes of the decoded segment.
    pub decoded_bytes: u32,
    /// Bytes that are stored: header and payload, without padding.
    pub stored_bytes: u32,
    /// Which file: 0 is this one, others count the root's list from 1.
    pub file: u8,
    /// Its class, as in a node's store.
    pub class: SegmentClass,
    /// How it was merged from the ranks.
    pub merge: u8,
    /// It has bases: it cannot be decoded alone.
    pub delta: bool,
    /// It was written for the checkpoint that is draining.
    pub draining: bool,
}

impl TableEntry {
    /// Bytes of an encoded entry.
    pub const BYTES: usize = 48;

    /// Bytes of its extent: those stored, padded to the grain.
    pub fn extent_bytes(&self) -> u64 {
        u64::from(self.stored_bytes).next_multiple_of(GRAIN_BYTES)
    }

    fn put(&self, body: &mut Encoder) {
        let delta = if self.delta { FLAG_DELTA } else { 0 };
        let draining = if self.draining { FLAG_DRAINING } else { 0 };
        body.u64(self.segment.0)
            .u64(self.offset)
            .raw(&self.digest.0);
        body.u32(self.decoded_bytes).u32(self.stored_bytes);
        body.u8(self.file)
            .u8(self.class as u8)
            .u8(self.merge)
            .u8(delta | draining)
            .u32(0);
    }

    fn decode(body: &mut Decoder<'_>) -> Result<Self, FormatError> {
        let segment = body.u64_max("segment id", SegmentId::MAX.0)?;
        if segment == 0 {
            return Err(body.refuse("segment id", 8, "1 or more", segment));
        }
        let offset = body.u64_max("offset", COUNTER_MAX)?;
        if offset < DATA_OFFSET || !offset.is_multiple_of(GRAIN_BYTES) {
            return Err(body.refuse("offset", 8, "a grain behind the head", offset));
        }
        let digest = Digest(body.array("digest")?);
        let decoded_bytes = body.u32_in("decoded bytes", 1, SEGMENT_BYTES_MAX)?;
        let stored_bytes = body.u32_in("stored bytes", 1, STORED_BYTES_MAX)?;
        let file = body.u8("file")?;
        let id = body.u8("class")?;
        let class =
            SegmentClass::from_id(id).ok_or_else(|| body.refuse("class", 1, "1 to 4", id))?;
        let merge = body.u8("merge")?;
        let flags = body.u8("flags")?;
        if flags & !(FLAG_DELTA | FLAG_DRAINING) != 0 {
            return Err(body.refuse("flags", 1, "0 to 3", flags));
        }
        body.zeros("reserved", 4)?;
        Ok(Self {
            segment: SegmentId(segment),
            offset,
            digest,
            decoded_bytes,
            stored_bytes,
            file,
            class,
            merge,
            delta: flags & FLAG_DELTA != 0,
            draining: flags & FLAG_DRAINING != 0,
        })
    }
}

/// All archived segments of a store, ascending by id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArchiveTable {
    /// The store it was written for.
    pub store: StoreId,
    /// The sequence of the root that it was written for.
    pub sequence: u64,
    /// The segments.
    pub entries: Vec<TableEntry>,
}

impl ArchiveTable {
    /// Bytes before the entries and after them: frames, store id, sequence, count, reserved.
    const AROUND_BYTES: u64 = 16 + 16 + 8 + 4 + 4 + 8;

    /// Bytes of a table with `count` entries.
    pub const fn bytes_for(count: u64) -> u64 {
        Self::AROUND_BYTES + count * to_u64(TableEntry::BYTES)
    }

    /// Its bytes, for a root that names so many other files.
    pub fn encode(&self, files: usize) -> Result<Vec<u8>, FormatError> {
        let mut body = Encoder::framed(TABLE, TABLE_MAGIC);
        body.room(40 + self.entries.len() * TableEntry::BYTES);
        body.raw(&self.store.0)
            .u64(self.sequence)
            .count(self.entries.len())
            .u32(0);
        for entry in &self.entries {
            entry.put(&mut body);
        }
        body.finish(self, |bytes| Self::decode(bytes, self.store, files))
    }

    /// The table at the front of `bytes`, of `store`, whose root names so many other files.
    pub fn decode(bytes: &[u8], store: StoreId, files: usize) -> Result<Self, FormatError> {
        let mut body = open(TABLE, TABLE_MAGIC, bytes)?;
        let found = StoreId(body.array("store id")?);
        if found != store {
            return Err(body.refuse("store id", 16, store, found));
        }
        let sequence = body.u64_max("sequence", COUNTER_MAX)?;
        let most = body.remaining().saturating_sub(4) / TableEntry::BYTES;
        let most = to_u64(most).min(SEGMENTS_MAX);
        let count = body.u32_in("segments", 0, u32::try_from(most).unwrap_or(u32::MAX))?;
        body.zeros("reserved", 4)?;
        let mut entries: Vec<TableEntry> = Vec::with_capacity(index(count));
        for _ in 0..count {
            let entry = TableEntry::decode(&mut body)?;
            if usize::from(entry.file) > files {
                return Err(body.refuse("file", 8, format!("0 to {files}"), entry.file));
            }
            if entries
                .last()
                .is_some_and(|last| last.segment >= entry.segment)
            {
                let found = entry.segment.0;
                return Err(body.refuse("segment id", TableEntry::BYTES, "ascending ids", found));
            }
            entries.push(entry);
        }
        body.end()?;
        Ok(Self {
            store,
            sequence,
            entries,
        })
    }
}
