// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: copies changed blocks of a stream into the store and builds the new tree over them.
//! In from: `region` (bytes), `track` (candidates), the committed `Tree`. Out: a `TreeChange`.
//! Invariants: a block is copied out once, and the copy is what is hashed, compared and written;
//! committed blocks and pages are never overwritten; the committed tree is not touched.
//! Source: Keller and Bautista-Gomez, "Application-Level Differential Checkpointing for HPC
//! Applications with Dynamic Datasets", section IV-C, rules I to IV.

mod spread;

use super::control::Owner;
use super::reserve::Reserve;
use super::space::Space;
use super::tree::{GroupChange, Tree, TreeChange};
use crate::region::Source;
use crate::track::Candidates;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::limits::FANOUT;
use backstay_format::width::{index, to_u64, to_usize};
use backstay_format::{Address, BlockRef, Digest, Page, SegmentClass, SegmentId, StreamRoot};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Most bytes put together before they are written, on storage that is not memory.
const RUN_BYTES_MAX: usize = 1 << 20;
/// The same on memory, where only what is small is put together.
const MEMORY_RUN_BYTES_MAX: usize = 32 << 10;

/// What captures blocks for one owner.
#[derive(Debug)]
pub struct Capturer<'a> {
    /// Where they go.
    pub reserve: &'a Reserve,
    /// The owner's segments.
    pub space: &'a Mutex<Space>,
    /// The owner.
    pub owner: Owner,
    /// Threads that capture, where there is much.
    pub threads: usize,
    /// Segments to vacate: what they hold is written elsewhere.
    pub vacate: &'a [SegmentId],
}

/// What a capture did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Captured {
    /// Blocks of the stream.
    pub blocks_total: u64,
    /// Blocks written.
    pub blocks_changed: u64,
    /// Bytes of the blocks written.
    pub bytes_changed: u64,
    /// Bytes of the pages written.
    pub bytes_manifest: u64,
    /// Blocks that changed though the tracking said they had not.
    pub unmarked_changes: u64,
}

impl Captured {
    /// Adds what another capture did.
    pub fn add(&mut self, other: &Self) {
        self.blocks_total += other.blocks_total;
        self.blocks_changed += other.blocks_changed;
        self.bytes_changed += other.bytes_changed;
        self.bytes_manifest += other.bytes_manifest;
        self.unmarked_changes += other.unmarked_changes;
    }
}

/// One stream on its way into the store.
#[derive(Debug, Clone, Copy)]
pub struct Stream<'a> {
    old: &'a Tree,
    root: StreamRoot,
    source: &'a dyn Source,
    candidates: &'a Candidates,
}

impl<'a> Stream<'a> {
    /// `source` as the successor of `old`.
    pub fn new(old: &'a Tree, source: &'a dyn Source, candidates: &'a Candidates) -> Self {
        let (length, block_bytes) = (source.length_bytes(), old.root().block_bytes);
        let root = StreamRoot {
            length_bytes: length,
            height: StreamRoot::height_for(length, block_bytes),
            ..StreamRoot::empty(block_bytes)
        };
        Self {
            old,
            root,
            source,
            candidates,
        }
    }

    fn groups(&self) -> usize {
        self.root.block_count().div_ceil(FANOUT)
    }

    /// Bytes that are read of it.
    fn bytes_read(&self) -> u64 {
        match self.candidates {
            Candidates::All | Candidates::AllChanged => self.root.length_bytes,
            Candidates::Some(set) => set.count() * u64::from(self.root.block_bytes),
        }
    }
}

impl Capturer<'_> {
    /// Captures `source` as the successor of `old`.
    pub fn capture(
        &self,
        old: &Tree,
        source: &dyn Source,
        candidates: &Candidates,
    ) -> Result<(TreeChange, Captured)> {
        let stream = Stream::new(old, source, candidates);
        let mut done = self.capture_all(&[stream])?;
        done.pop()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "a stream was not captured"))
    }

    /// Captures several streams, side by side on all threads; what became of each, in their order.
    pub fn capture_all(&self, streams: &[Stream<'_>]) -> Result<Vec<(TreeChange, Captured)>> {
        let parts = spread::groups_of_all(self, streams)?;
        let both = streams.iter().zip(parts);
        both.map(|(stream, (groups, captured))| self.complete(stream, groups, captured))
            .collect()
    }

    /// Builds the rest of a stream's tree over the groups that changed.
    fn complete(
        &self,
        stream: &Stream<'_>,
        groups: Vec<GroupChange>,
        mut captured: Captured,
    ) -> Result<(TreeChange, Captured)> {
        captured.blocks_total = to_u64(stream.root.block_count());
        let mut change = TreeChange {
            root: stream.root,
            groups,
            pages: Vec::new(),
        };
        self.free_groups(stream.old, stream.groups())?;
        self.build_upper(stream.old, &mut change, &mut captured)?;
        Ok((change, captured))
    }

    /// Frees everything a committed tree uses: its variable is gone.
    pub fn free(&self, old: &Tree) -> Result<()> {
        self.free_groups(old, 0)?;
        for level in 2..=old.root().height {
            for index in 0..old.page_count(level) {
                self.free_page(old, level, index);
            }
        }
        Ok(())
    }

    /// Frees the groups from `first` on: the stream became shorter.
    fn free_groups(&self, old: &Tree, first: usize) -> Result<()> {
        for group in first..old.group_count() {
            for (entry, block) in old.group(self.reserve.reader(), group)?.iter().enumerate() {
                let length = old.root().block_length(group * FANOUT + entry);
                self.lock().replace(block.address, length);
            }
            self.free_page(old, 1, group);
        }
        Ok(())
    }

    fn free_page(&self, old: &Tree, level: u8, index: usize) {
        if let Some(page) = old.page(level, index) {
            let bytes = Page::bytes_for(old.root().page_entries(level, index));
            self.lock().replace(page.address, bytes);
        }
    }

    /// Whether what `block` refers to stands in a segment that is being vacated.
    pub fn leaves(&self, block: &BlockRef) -> bool {
        self.vacate.contains(&block.address.segment())
    }

    fn page_leaves(&self, old: &Tree, level: u8, index: usize) -> bool {
        let page = old.page(level, index);
        page.is_some_and(|page| self.leaves(&page))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn allocate(&self, length: usize) -> Result<Address> {
        self.lock().allocate(length, &self.reserve.pool(self.owner))
    }

    /// Writes the pages above level 1 that a change reaches, and sets the root.
    fn build_upper(
        &self,
        old: &Tree,
        change: &mut TreeChange,
        captured: &mut Captured,
    ) -> Result<()> {
        let root = change.root;
        let mut writer = Writer::new(self);
        let mut below: Vec<(usize, BlockRef)> = change
            .groups
            .iter()
            .map(|group| (group.group, group.top))
            .collect();
        for level in 2..=root.height {
            below = self.build_level(old, &root, level, &below, &mut writer, captured)?;
            change
                .pages
                .extend(below.iter().map(|&(index, page)| (level, index, page)));
        }
        for level in 2..=old.root().height {
            let stays = if level <= root.height {
                pages_of(&root, level)
            } else {
                0
            };
            for index in stays..old.page_count(level) {
                self.free_page(old, level, index);
            }
        }
        writer.flush()?;
        change.root.top = match below.first() {
            Some(&(_, top)) => top,
            None if root.length_bytes == 0 => BlockRef::NONE,
            None => old.page(root.height, 0).unwrap_or(old.root().top),
        };
        Ok(())
    }

    fn build_level(
        &self,
        old: &Tree,
        root: &StreamRoot,
        level: u8,
        below: &[(usize, BlockRef)],
        writer: &mut Writer<'_>,
        captured: &mut Captured,
    ) -> Result<Vec<(usize, BlockRef)>> {
        let mut built = Vec::new();
        let mut next = below.iter().copied().peekable();
        for index in 0..pages_of(root, level) {
            let count = root.page_entries(level, index);
            let mut changed = Vec::new();
            while let Some(child) = next.next_if(|&(child, _)| child / FANOUT == index) {
                changed.push(child);
            }
            let committed = old.page(level, index);
            let same_count = committed.is_some()
                && old.root().height >= level
                && old.root().page_entries(level, index) == count;
            if changed.is_empty() && same_count && !self.page_leaves(old, level, index) {
                continue;
            }
            let mut entries: Vec<BlockRef> = (0..count)
                .map(|entry| {
                    old.page(level - 1, index * FANOUT + entry)
                        .unwrap_or(BlockRef::NONE)
                })
                .collect();
            for (child, page) in changed {
                entries[child % FANOUT] = page;
            }
            built.push((index, writer.page(&Page { level, entries }, captured)?));
            self.free_page(old, level, index);
        }
        Ok(built)
    }
}

fn pages_of(root: &StreamRoot, level: u8) -> usize {
    (0..level).fold(root.block_count(), |count, _| count.div_ceil(FANOUT))
}

/// One thread capturing groups of blocks.
struct Worker<'a> {
    capturer: &'a Capturer<'a>,
    scratch: Vec<u8>,
    blocks: Writer<'a>,
    pages: Writer<'a>,
    captured: Captured,
}

impl<'a> Worker<'a> {
    fn new(capturer: &'a Capturer<'a>) -> Self {
        Self {
            capturer,
            scratch: Vec::new(),
            blocks: Writer::new(capturer),
            pages: Writer::new(capturer),
            captured: Captured::default(),
        }
    }

    /// Captures some groups of a stream; all of it is written by the time of [`Worker::finish`].
    fn run(
        &mut self,
        stream: &Stream<'_>,
        groups: Range<usize>,
    ) -> Result<(Vec<GroupChange>, Captured)> {
        self.captured = Captured::default();
        self.scratch.resize(index(stream.root.block_bytes), 0);
        let mut changes = Vec::new();
        for group in groups {
            if let Some(change) = self.group(stream, group)? {
                changes.push(change);
            }
        }
        Ok((changes, self.captured))
    }

    fn finish(mut self) -> Result<()> {
        self.blocks.flush()?;
        self.pages.flush()
    }

    /// Captures one group; `None` if nothing in it changed.
    fn group(&mut self, stream: &Stream<'_>, group: usize) -> Result<Option<GroupChange>> {
        let (old, root) = (stream.old, stream.root);
        let first = group * FANOUT;
        let count = root.page_entries(1, group);
        let old_count = old.root().page_entries(1, group);
        let same_shape = old_count == count && (old.root().height == 0) == (root.height == 0);
        let vacating = !self.capturer.vacate.is_empty();
        if let Candidates::Some(set) = stream.candidates
            && same_shape
            && !vacating
            && !set.touches(first..first + count)
        {
            return Ok(None);
        }
        let mut committed = if vacating {
            self.committed(old, group)?
        } else {
            Vec::new()
        };
        let mut fresh: Vec<(usize, BlockRef)> = Vec::new();
        for entry in 0..count {
            let moves = committed
                .get(entry)
                .is_some_and(|block| self.capturer.leaves(block));
            if let Some(block) = self.block(stream, first + entry, moves)? {
                fresh.push((entry, block));
            }
        }
        if fresh.is_empty() && same_shape && !self.capturer.page_leaves(old, 1, group) {
            return Ok(None);
        }
        if committed.is_empty() {
            committed = self.committed(old, group)?;
        }
        let top = self.replace_group(stream, group, &committed, &fresh)?;
        let mask = fresh
            .iter()
            .fold(0, |mask, &(entry, _)| mask | (1u32 << entry));
        let digests = fresh.into_iter().map(|(_, block)| block.digest).collect();
        Ok(Some(GroupChange {
            group,
            top,
            mask,
            digests,
        }))
    }

    fn committed(&self, old: &Tree, group: usize) -> Result<Vec<BlockRef>> {
        old.group(self.capturer.reserve.reader(), group)
    }

    /// Captures block `index`; `None` if it stays what it is, where it is.
    fn block(
        &mut self,
        stream: &Stream<'_>,
        index: usize,
        moves: bool,
    ) -> Result<Option<BlockRef>> {
        let (old, root) = (stream.old, stream.root);
        let length = root.block_length(index);
        let comparable = old.root().block_length(index) == length;
        let known = old.digest(index).filter(|_| comparable);
        let candidate = match stream.candidates {
            Candidates::All | Candidates::AllChanged => true,
            Candidates::Some(set) => set.contains(index),
        };
        let checked = matches!(stream.candidates, Candidates::Some(set) if set.checks(index));
        if known.is_some() && !candidate && !checked && !moves {
            return Ok(None);
        }
        let bytes = &mut self.scratch[..length];
        let offset = |index: usize| to_u64(index) * u64::from(root.block_bytes);
        stream.source.copy_out(offset(index), bytes);
        let next = match stream.candidates {
            Candidates::All | Candidates::AllChanged => Some(index + 1),
            Candidates::Some(set) => set.next(index + 1),
        };
        if let Some(next) = next {
            stream.source.expect(offset(next), root.block_length(next));
        }
        let digest = Digest::of(bytes);
        let same = known == Some(digest);
        if same && !moves && *stream.candidates != Candidates::AllChanged {
            return Ok(None);
        }
        if !same && known.is_some() && !candidate {
            self.captured.unmarked_changes += 1;
        }
        let address = self.capturer.allocate(length)?;
        self.blocks.put(address, &self.scratch[..length])?;
        self.captured.blocks_changed += 1;
        self.captured.bytes_changed += to_u64(length);
        Ok(Some(BlockRef { address, digest }))
    }

    /// Frees what `fresh` replaces and writes the group's page.
    fn replace_group(
        &mut self,
        stream: &Stream<'_>,
        group: usize,
        committed: &[BlockRef],
        fresh: &[(usize, BlockRef)],
    ) -> Result<BlockRef> {
        let (old, root) = (stream.old, stream.root);
        let count = root.page_entries(1, group);
        let mut entries: Vec<BlockRef> = committed.iter().take(count).copied().collect();
        entries.resize(count, BlockRef::NONE);
        let mut space = self.capturer.lock();
        for &(entry, block) in fresh {
            let replaced = std::mem::replace(&mut entries[entry], block);
            if !replaced.address.is_none() {
                space.replace(
                    replaced.address,
                    old.root().block_length(group * FANOUT + entry),
                );
            }
        }
        for (entry, gone) in committed.iter().enumerate().skip(count) {
            space.replace(
                gone.address,
                old.root().block_length(group * FANOUT + entry),
            );
        }
        drop(space);
        self.capturer.free_page(old, 1, group);
        if root.height == 0 {
            return Ok(entries[0]);
        }
        self.pages
            .page(&Page { level: 1, entries }, &mut self.captured)
    }
}

/// Captures streams of one block, one after the other: thousands of small variables cost one copy, one
/// hash and one allocation each, and their writes are put together.
pub struct Singles<'a> {
    capturer: &'a Capturer<'a>,
    scratch: Vec<u8>,
    writer: Writer<'a>,
}

impl<'a> Singles<'a> {
    /// Begins; [`Singles::finish`] writes the rest.
    pub fn new(capturer: &'a Capturer<'a>) -> Self {
        let (scratch, writer) = (Vec::new(), Writer::new(capturer));
        Self {
            capturer,
            scratch,
            writer,
        }
    }

    /// Captures `source` as the successor of `old`, as [`Capturer::capture`] would; `None`, and nothing
    /// is done, where either of them is not just one block.
    pub fn capture(
        &mut self,
        old: &Tree,
        source: &dyn Source,
        candidates: &Candidates,
    ) -> Result<Option<(TreeChange, Captured)>> {
        let (length, was) = (source.length_bytes(), *old.root());
        if length == 0 || length > u64::from(was.block_bytes) || was.height > 0 {
            return Ok(None);
        }
        let mut captured = Captured {
            blocks_total: 1,
            ..Captured::default()
        };
        let mut change = TreeChange {
            root: was,
            groups: Vec::new(),
            pages: Vec::new(),
        };
        let known = (was.length_bytes == length).then_some(was.top.digest);
        let moves = self.capturer.vacate.contains(&was.top.address.segment());
        let (candidate, checked) = match candidates {
            Candidates::All | Candidates::AllChanged => (true, false),
            Candidates::Some(set) => (set.contains(0), set.checks(0)),
        };
        if known.is_some() && !candidate && !checked && !moves {
            return Ok(Some((change, captured)));
        }
        self.scratch.resize(to_usize(length), 0);
        source.copy_out(0, &mut self.scratch);
        let digest = Digest::of(&self.scratch);
        let same = known == Some(digest);
        if same && !moves && *candidates != Candidates::AllChanged {
            return Ok(Some((change, captured)));
        }
        captured.unmarked_changes = u64::from(!same && known.is_some() && !candidate);
        captured.blocks_changed = 1;
        captured.bytes_changed = length;
        let mut space = self.capturer.lock();
        if was.length_bytes > 0 {
            space.replace(was.top.address, was.block_length(0));
        }
        let pool = self.capturer.reserve.pool(self.capturer.owner);
        let address = space.allocate(self.scratch.len(), &pool)?;
        drop(space);
        self.writer.put(address, &self.scratch)?;
        change.root = StreamRoot {
            length_bytes: length,
            top: BlockRef { address, digest },
            ..was
        };
        Ok(Some((change, captured)))
    }

    /// Writes what was put together.
    pub fn finish(mut self) -> Result<()> {
        self.writer.flush()
    }
}

impl std::fmt::Debug for Singles<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Singles")
            .field("waiting_bytes", &self.writer.run.len())
            .finish()
    }
}

/// Puts adjacent writes together.
struct Writer<'a> {
    capturer: &'a Capturer<'a>,
    memory: bool,
    start: u64,
    run: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(capturer: &'a Capturer<'a>) -> Self {
        let memory = capturer.reserve.reader().device().is_memory();
        Self {
            capturer,
            memory,
            start: 0,
            run: Vec::new(),
        }
    }

    /// Writes `bytes` at `address`, now or with the next flush. The rest of the last granule is ours
    /// and is written as zeros, so that what is allocated side by side is written side by side.
    fn put(&mut self, address: Address, bytes: &[u8]) -> Result<()> {
        let offset = self
            .capturer
            .reserve
            .reader()
            .offset_of(address, bytes.len())?;
        let granule = index(SegmentClass::of(bytes.len()).granule_bytes());
        let padded = bytes.len().next_multiple_of(granule);
        let end = self.start + to_u64(self.run.len());
        let most = if self.memory {
            MEMORY_RUN_BYTES_MAX
        } else {
            RUN_BYTES_MAX
        };
        if offset != end || self.run.len() + padded > most {
            self.flush()?;
            self.start = offset;
        }
        if self.memory && self.run.is_empty() && bytes.len() >= 4096 {
            return self.capturer.reserve.write_at(bytes, offset);
        }
        self.run.extend_from_slice(bytes);
        self.run.resize(self.run.len() + padded - bytes.len(), 0);
        Ok(())
    }

    fn page(&mut self, page: &Page, captured: &mut Captured) -> Result<BlockRef> {
        let bytes = page.encode().map_err(|error| {
            let name = self.capturer.reserve.reader().device().name();
            Error::unwritable(format!("{name}: a tree page"), error)
        })?;
        let address = self.capturer.allocate(bytes.len())?;
        captured.bytes_manifest += to_u64(bytes.len());
        self.put(address, &bytes)?;
        Ok(BlockRef {
            address,
            digest: Digest::of(&bytes),
        })
    }

    fn flush(&mut self) -> Result<()> {
        if !self.run.is_empty() {
            self.capturer.reserve.write_at(&self.run, self.start)?;
            self.run.clear();
        }
        Ok(())
    }
}

/// Writes `bytes` as one object of the store's own: a rank root.
pub fn write_object(capturer: &Capturer<'_>, bytes: &[u8]) -> Result<BlockRef> {
    let mut writer = Writer::new(capturer);
    let address = capturer.allocate(bytes.len())?;
    writer.put(address, bytes)?;
    writer.flush()?;
    Ok(BlockRef {
        address,
        digest: Digest::of(bytes),
    })
}
