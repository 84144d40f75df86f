// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one rank's part of a revision: captured, posted, then committed or rolled back; and
//! reading such a part again.
//! In from: `session` (variables), `store::capture`. Out to: `store::commit` (the posted root).
//! Invariants: the committed state in memory changes only in `commit`; after `roll_back` it is as if
//! the capture had never been.

use super::capture::{Captured, Capturer, Singles, Stream, write_object};
use super::control::{Owner, Post};
use super::reader::StoreReader;
use super::reserve::Reserve;
use super::space::{Reuse, Space};
use super::tree::{Tree, TreeChange, read_internal};
use crate::region::Source;
use crate::track::Candidates;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::limits::INTERNAL_BLOCK_BYTES;
use backstay_format::width::{index, to_u64};
use backstay_format::{BlockRef, CheckpointId, Decoder, RankEntry, RankRoot};
use backstay_format::{RevisionEntry, SegmentId, StreamRoot, VariableDescriptor};
use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

/// Files that are open at once while they are captured.
const OPEN_FILES_MAX: usize = 64;

/// A variable on its way into a revision.
#[derive(Debug)]
pub struct Part<'a> {
    /// What it is.
    pub descriptor: &'a VariableDescriptor,
    /// Bytes of its blocks.
    pub block_bytes: u32,
    /// Where its bytes are.
    pub source: &'a dyn Source,
    /// Which blocks may have changed.
    pub candidates: Candidates,
}

/// The committed state of one rank.
#[derive(Debug)]
pub struct RankStore {
    reserve: Reserve,
    local: u32,
    rank: u32,
    world_size: u32,
    threads: usize,
    space: Mutex<Space>,
    base: Option<CheckpointId>,
    root: Option<BlockRef>,
    /// Sorted by name.
    trees: Vec<(String, Tree)>,
    /// Which set of variables the committed descriptors are of.
    generation: Option<u64>,
    descriptors: Tree,
    table: Tree,
}

/// A part in this store that a rank goes on from.
#[derive(Debug)]
pub struct Start {
    checkpoint: CheckpointId,
    root: BlockRef,
    trees: Vec<(String, Tree)>,
    descriptors: Tree,
    table: Tree,
}

/// A captured part that waits for its commit.
#[derive(Debug)]
pub struct PendingPart {
    root: BlockRef,
    changes: Vec<(Target, TreeChange)>,
    /// Places of the trees whose variables are gone.
    gone: Vec<usize>,
    generation: u64,
    descriptors: TreeChange,
    table: TreeChange,
    /// What was captured, over all variables.
    pub captured: Captured,
    /// The same for each of the parts, in their order.
    pub by_part: Vec<Captured>,
    /// Bytes of all variables.
    pub bytes_total: u64,
}

/// The tree that a change belongs to.
#[derive(Debug)]
enum Target {
    /// The committed tree at this place.
    Committed(usize),
    /// That of a new variable.
    New(String),
}

impl PendingPart {
    /// What to tell the node's leader.
    pub fn post(&self, rank: u32) -> Post {
        Post {
            status: 0,
            rank,
            root: self.root,
            bytes_total: self.bytes_total,
            bytes_changed: self.captured.bytes_changed,
        }
    }
}

impl RankStore {
    /// A rank with the segments that recovery found, starting from nothing.
    pub fn new(
        reserve: Reserve,
        local: u32,
        rank: u32,
        world_size: u32,
        threads: usize,
        mut space: Space,
    ) -> Self {
        space.begin_from(None);
        Self {
            reserve,
            local,
            rank,
            world_size,
            threads,
            space: Mutex::new(space),
            base: None,
            root: None,
            trees: Vec::new(),
            generation: None,
            descriptors: Tree::empty(INTERNAL_BLOCK_BYTES),
            table: Tree::empty(INTERNAL_BLOCK_BYTES),
        }
    }

    /// From now on only so much of this rank's space is written again.
    pub fn set_reuse(&self, reuse: Reuse) {
        let mut space = self.space();
        space.set_reuse(reuse);
        space.publish(&self.reserve.pool(Owner::Rank(self.local)), None);
    }

    /// The node's space.
    pub fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    /// The committed tree of a variable.
    pub fn tree(&self, name: &str) -> Option<&Tree> {
        let at = self
            .trees
            .binary_search_by(|(other, _)| other.as_str().cmp(name))
            .ok()?;
        Some(&self.trees[at].1)
    }

    fn space(&self) -> std::sync::MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what is needed to go on from a part of the same rank in this store.
    pub fn load_start(&self, checkpoint: CheckpointId, entry: BlockRef) -> Result<Start> {
        let reader = self.reserve.reader();
        let part = read_part(reader, &entry)?;
        let mut trees = Vec::with_capacity(part.descriptors.len());
        for (descriptor, root) in part.descriptors.iter().zip(&part.streams) {
            trees.push((descriptor.name.clone(), Tree::load(reader, *root)?));
        }
        Ok(Start {
            checkpoint,
            root: entry,
            trees,
            descriptors: Tree::load(reader, part.root.descriptors)?,
            table: Tree::load(reader, part.root.table)?,
        })
    }

    /// The job was restored: the next capture is compared with `start`, or with nothing where this rank's
    /// part is not in this store. What it was compared with before may be forgotten.
    pub fn start_from(&mut self, start: Option<Start>) {
        let empty = || Tree::empty(INTERNAL_BLOCK_BYTES);
        self.generation = None;
        self.base = start.as_ref().map(|start| start.checkpoint);
        self.root = start.as_ref().map(|start| start.root);
        (self.trees, self.descriptors, self.table) = match start {
            Some(start) => (start.trees, start.descriptors, start.table),
            None => (Vec::new(), empty(), empty()),
        };
        self.space().begin_from(self.base);
    }

    /// Captures `parts`, sorted by name, as the successor of the committed state. `generation` tells
    /// one set of variables from another. Where blocks turn out changed of which tracking said nothing,
    /// it is given up, and all is captured again with every block of that part looked at.
    pub fn capture(
        &self,
        id: CheckpointId,
        parts: &mut [Part<'_>],
        generation: u64,
    ) -> Result<PendingPart> {
        let pending = self.capture_as_tracked(id, parts, generation)?;
        let mut widened = false;
        for (part, did) in parts.iter_mut().zip(&pending.by_part) {
            widened |= did.unmarked_changes > 0 && part.candidates.widen();
        }
        if !widened {
            return Ok(pending);
        }
        self.give_up();
        self.capture_as_tracked(id, parts, generation)
    }

    fn capture_as_tracked(
        &self,
        id: CheckpointId,
        parts: &[Part<'_>],
        generation: u64,
    ) -> Result<PendingPart> {
        let vacate = self.space().to_clean(4);
        let capturer = self.capturer(&vacate);
        let (targets, gone) = self.targets(parts);
        let committed = targets.iter().map(|target| match target {
            Target::Committed(place) => Some(&self.trees[*place].1),
            Target::New(_) => None,
        });
        let done = capture_parts(&capturer, committed.zip(parts))?;
        let mut captured = Captured::default();
        let mut by_part = Vec::with_capacity(parts.len());
        let mut changes = Vec::with_capacity(parts.len());
        for (target, (change, did)) in targets.into_iter().zip(done) {
            captured.add(&did);
            by_part.push(did);
            changes.push((target, change));
        }
        for &place in &gone {
            capturer.free(&self.trees[place].1)?;
        }
        let bytes_total = parts.iter().map(|part| part.source.length_bytes()).sum();
        let (descriptors, table) =
            self.capture_tables(&capturer, parts, &changes, generation, &mut captured)?;
        let root = RankRoot {
            rank: self.rank,
            world_size: self.world_size,
            born: id,
            variable_count: u32::try_from(parts.len()).unwrap_or(u32::MAX),
            bytes_total,
            descriptors: descriptors.root,
            table: table.root,
        };
        let root = self.write_root(&capturer, &root, &mut captured)?;
        self.space()
            .publish(&self.reserve.pool(Owner::Rank(self.local)), Some(id));
        Ok(PendingPart {
            root,
            changes,
            gone,
            generation,
            descriptors,
            table,
            captured,
            by_part,
            bytes_total,
        })
    }

    /// The tree that each part belongs to, and the places of those whose variables are gone.
    fn targets(&self, parts: &[Part<'_>]) -> (Vec<Target>, Vec<usize>) {
        let mut targets = Vec::with_capacity(parts.len());
        let mut gone = Vec::new();
        let mut place = 0;
        for part in parts {
            let name = &part.descriptor.name;
            while self.trees.get(place).is_some_and(|(other, _)| other < name) {
                gone.push(place);
                place += 1;
            }
            if self
                .trees
                .get(place)
                .is_some_and(|(other, _)| other == name)
            {
                targets.push(Target::Committed(place));
                place += 1;
            } else {
                targets.push(Target::New(name.clone()));
            }
        }
        gone.extend(place..self.trees.len());
        (targets, gone)
    }

    fn capturer<'a>(&'a self, vacate: &'a [SegmentId]) -> Capturer<'a> {
        Capturer {
            reserve: &self.reserve,
            space: &self.space,
            owner: Owner::Rank(self.local),
            threads: self.threads,
            vacate,
        }
    }

    fn capture_tables(
        &self,
        capturer: &Capturer<'_>,
        parts: &[Part<'_>],
        changes: &[(Target, TreeChange)],
        generation: u64,
        captured: &mut Captured,
    ) -> Result<(TreeChange, TreeChange)> {
        let mut capture = |old: &Tree, bytes: &[u8]| {
            let (change, did) = capturer.capture(old, &bytes, &Candidates::All)?;
            captured.bytes_manifest += did.bytes_changed + did.bytes_manifest;
            Ok(change)
        };
        let name = capturer.reserve.reader().device().name();
        let unwritable =
            |what: &str, error| Error::unwritable(format!("{name}: {what} of a rank"), error);
        let moving = !capturer.vacate.is_empty();
        let descriptors = if self.generation == Some(generation) && !moving {
            self.descriptors.unchanged()
        } else {
            let list: Vec<_> = parts.iter().map(|part| part.descriptor.clone()).collect();
            let list = VariableDescriptor::encode_list(&list);
            let list = list.map_err(|error| unwritable("the descriptors", error))?;
            capture(&self.descriptors, &list)?
        };
        let roots: Vec<_> = changes.iter().map(|(_, change)| change.root).collect();
        let table = StreamRoot::encode_table(&roots);
        let table = table.map_err(|error| unwritable("the table of variables", error))?;
        Ok((descriptors, capture(&self.table, &table)?))
    }

    /// Writes the root page, unless all it refers to is what the committed one refers to.
    fn write_root(
        &self,
        capturer: &Capturer<'_>,
        root: &RankRoot,
        captured: &mut Captured,
    ) -> Result<BlockRef> {
        let unchanged =
            *self.descriptors.root() == root.descriptors && *self.table.root() == root.table;
        if let (true, Some(committed)) = (unchanged, self.root)
            && !capturer.leaves(&committed)
        {
            return Ok(committed);
        }
        let bytes = root.encode().map_err(|error| {
            let name = capturer.reserve.reader().device().name();
            Error::unwritable(format!("{name}: the root of rank {}", root.rank), error)
        })?;
        if let Some(committed) = self.root {
            self.space().replace(committed.address, RankRoot::BYTES);
        }
        captured.bytes_manifest += to_u64(RankRoot::BYTES);
        write_object(capturer, &bytes)
    }

    /// The part was committed by all ranks: it is the state that the next one is compared with.
    pub fn commit(&mut self, id: CheckpointId, pending: PendingPart) {
        self.space().commit(id);
        let mut new = Vec::new();
        for (target, change) in pending.changes {
            match target {
                Target::Committed(place) => {
                    let tree = &mut self.trees[place].1;
                    if tree.root().block_bytes != change.root.block_bytes {
                        *tree = Tree::empty(change.root.block_bytes);
                    }
                    tree.apply(&change);
                }
                Target::New(name) => {
                    let mut tree = Tree::empty(change.root.block_bytes);
                    tree.apply(&change);
                    new.push((name, tree));
                }
            }
        }
        for place in pending.gone.into_iter().rev() {
            self.trees.remove(place);
        }
        if !new.is_empty() {
            self.trees.append(&mut new);
            self.trees.sort_by(|(one, _), (other, _)| one.cmp(other));
        }
        self.generation = Some(pending.generation);
        self.descriptors.apply(&pending.descriptors);
        self.table.apply(&pending.table);
        self.root = Some(pending.root);
        self.base = Some(id);
    }

    /// The part was not committed by all ranks, or could not be captured. The node's root may name it all the
    /// same, so its segments stay this rank's until [`RankStore::release`].
    pub fn roll_back(&mut self) {
        self.space().roll_back(self.base);
    }

    /// Gives up a capture of which nothing was posted.
    pub fn give_up(&self) {
        self.space().roll_back(self.base);
        self.release();
    }

    /// Keeps only the revisions that `keep` names; what only others used is free again, and whole segments of
    /// it after [`RankStore::release`].
    pub fn retain(&mut self, keep: impl Fn(CheckpointId) -> bool) {
        self.space().retain(keep);
    }

    /// Gives segments that nothing uses back to the node. The durable root must name nothing of what was rolled
    /// back or is not retained.
    pub fn release(&self) {
        self.space()
            .release_empty(&self.reserve.pool(Owner::Rank(self.local)));
    }

    /// Bytes of memory that the committed state and the map of space hold.
    pub fn memory_bytes(&self) -> u64 {
        let trees = self
            .trees
            .iter()
            .map(|(_, tree)| tree.memory_bytes())
            .sum::<u64>();
        trees
            + self.descriptors.memory_bytes()
            + self.table.memory_bytes()
            + self.space().memory_bytes()
    }
}

/// A part of more than one block that waits for others, to be captured with them.
struct Waiting<'a> {
    at: usize,
    part: &'a Part<'a>,
    old: Cow<'a, Tree>,
    /// Of blocks of another size: nothing of it stays.
    former: Option<&'a Tree>,
}

/// Captures all parts, each with the tree it has; what became of each, in their order.
fn capture_parts<'a>(
    capturer: &Capturer<'_>,
    parts: impl Iterator<Item = (Option<&'a Tree>, &'a Part<'a>)>,
) -> Result<Vec<(TreeChange, Captured)>> {
    let mut singles = Singles::new(capturer);
    let mut done = Vec::new();
    let (mut waiting, mut files) = (Vec::new(), 0);
    for (at, (committed, part)) in parts.enumerate() {
        let (old, former) = match committed {
            Some(tree) if tree.root().block_bytes == part.block_bytes => {
                (Cow::Borrowed(tree), None)
            }
            other => (Cow::Owned(Tree::empty(part.block_bytes)), other),
        };
        part.source.begin()?;
        if let Some(single) = singles.capture(&old, part.source, &part.candidates)? {
            end_part(capturer, part, former)?;
            done.push(Some(single));
            continue;
        }
        done.push(None);
        files += usize::from(part.descriptor.file.is_some());
        waiting.push(Waiting {
            at,
            part,
            old,
            former,
        });
        if files == OPEN_FILES_MAX {
            capture_waiting(capturer, &mut waiting, &mut done)?;
            files = 0;
        }
    }
    singles.finish()?;
    capture_waiting(capturer, &mut waiting, &mut done)?;
    Ok(done.into_iter().flatten().collect())
}

fn capture_waiting(
    capturer: &Capturer<'_>,
    waiting: &mut Vec<Waiting<'_>>,
    done: &mut [Option<(TreeChange, Captured)>],
) -> Result<()> {
    let streams = waiting.iter();
    let streams = streams.map(|one| Stream::new(&one.old, one.part.source, &one.part.candidates));
    let streams: Vec<_> = streams.collect();
    let captured = capturer.capture_all(&streams)?;
    for (one, captured) in waiting.drain(..).zip(captured) {
        end_part(capturer, one.part, one.former)?;
        done[one.at] = Some(captured);
    }
    Ok(())
}

fn end_part(capturer: &Capturer<'_>, part: &Part<'_>, former: Option<&Tree>) -> Result<()> {
    part.source.end()?;
    former.map_or(Ok(()), |former| capturer.free(former))
}

/// One rank's part of a checkpoint, its tables read and checked.
#[derive(Debug, Clone)]
pub struct ReadPart {
    /// Its root.
    pub root: RankRoot,
    /// Its variables, sorted by name.
    pub descriptors: Vec<VariableDescriptor>,
    /// Their streams, in the same order.
    pub streams: Vec<StreamRoot>,
}

impl ReadPart {
    /// A variable by its name.
    pub fn find(&self, name: &str) -> Option<(&VariableDescriptor, &StreamRoot)> {
        let at = self
            .descriptors
            .binary_search_by(|d| d.name.as_str().cmp(name))
            .ok()?;
        Some((&self.descriptors[at], &self.streams[at]))
    }
}

/// The table of ranks of a retained revision.
pub fn read_ranks(reader: &StoreReader, revision: &RevisionEntry) -> Result<Vec<RankEntry>> {
    let bytes = read_internal(reader, &revision.ranks, "table of ranks")?;
    RankEntry::decode_table(&bytes).map_err(|error| {
        Error::malformed(format!("{}: table of ranks", reader.device().name()), error)
    })
}

/// The part whose root page `entry` refers to.
pub fn read_part(reader: &StoreReader, entry: &BlockRef) -> Result<ReadPart> {
    let mut bytes = [0; RankRoot::BYTES];
    reader.read(entry, &mut bytes, "rank root")?;
    let name = reader.device().name();
    let wrong = |error| Error::malformed(format!("{name}: {}", entry.address), error);
    let root = RankRoot::decode(&bytes).map_err(wrong)?;
    let list = read_internal(reader, &root.descriptors, "descriptors")?;
    let count = index(root.variable_count);
    let descriptors = VariableDescriptor::decode_list(&list, count).map_err(wrong)?;
    let table = read_internal(reader, &root.table, "table of variables")?;
    let mut body = Decoder::new("table of variables", &table);
    let mut streams = Vec::with_capacity(descriptors.len());
    for descriptor in &descriptors {
        let length = descriptor.length_bytes().unwrap_or(0);
        let stream = StreamRoot::decode(&mut body, length).map_err(wrong)?;
        if stream.length_bytes != length {
            let context = format!(
                "{name}: variable {} of rank {} has {} bytes stored, its shape asks for {length}",
                descriptor.name, root.rank, stream.length_bytes
            );
            return Err(Error::new(ErrorKind::Corrupt, context));
        }
        streams.push(stream);
    }
    body.end().map_err(wrong)?;
    Ok(ReadPart {
        root,
        descriptors,
        streams,
    })
}
