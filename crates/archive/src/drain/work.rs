// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one drain of one aggregator: what its nodes have of a checkpoint, what of that the archive
//! lacks, and the root that makes it a checkpoint of the store.
//! In from: the request to drain, the nodes, `state`. Out to: `pack` and `parts`, then the store's root.
//! Invariants: `state` changes when the root is durable, and only then; blocks that are equal byte for byte,
//! or that an interrupted drain stored, are stored once; work that stands still because of the file system holds no
//! more memory than two windows.

use super::changes::{Changed, NodeTree};
use super::encode::{Encoders, Means};
use super::equal::{self, Key, Spot};
use super::files::FileSet;
use super::history::{Found, History};
use super::pack::{self, Packing};
use super::parts::{self, NewParts, PartWriter};
use super::source::NodeSource;
use super::sources::{NodeBlocks, Source};
use super::state::{RankState, State};
use super::tree::ArchiveTree;
use super::{DrainSettings, PARALLEL_MAX, lock, parallel};
use crate::{ArchiveStore, Commit};
use backstay_base::clock::Pulse;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::drain::{DrainJob, DrainProgress};
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{Address, BlockRef, RankRange, RevisionEntry, SegmentId};
use backstay_net::Endpoint;
use backstay_store::revision::ReadPart;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most bytes that cleaning moves in one drain.
const CLEAN_BYTES_MAX: u64 = 1 << 30;

/// Whom a drain asks for blocks.
pub(super) enum From<'a> {
    /// The nodes that the request names.
    Nodes {
        endpoint: &'a Arc<dyn Endpoint>,
        /// Name of this node.
        name: &'a str,
        own: Option<&'a NodeSource>,
    },
    /// Files, which are imported.
    Files(&'a Arc<FileSet>),
}

/// What a drain needs.
pub(super) struct Drain<'a> {
    pub(super) from: From<'a>,
    pub(super) job: &'a DrainJob,
    pub(super) settings: &'a DrainSettings,
    pub(super) store: &'a ArchiveStore,
    pub(super) encoders: &'a Encoders,
    pub(super) means: Means,
    pub(super) progress: &'a Mutex<DrainProgress>,
    pub(super) cancel: &'a Arc<AtomicBool>,
    /// Beats with each thing that was done.
    pub(super) pulse: &'a Pulse,
}

/// A block to write: of its node, or one of the archive that moves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Write {
    pub(super) at: usize,
    pub(super) length: usize,
    pub(super) block: BlockRef,
    pub(super) from_archive: bool,
}

/// A variable of a rank in a drain.
#[derive(Debug)]
pub(super) struct VariableWork {
    pub(super) node: NodeTree,
    pub(super) writes: Vec<Write>,
    /// Blocks that are equal to others, which are written.
    pub(super) equal: Vec<(usize, Spot)>,
}

/// A rank in a drain.
#[derive(Debug)]
pub(super) struct RankWork {
    pub(super) rank: u32,
    /// Place of its node among the sources.
    pub(super) source: usize,
    pub(super) part: ReadPart,
    pub(super) variables: Vec<VariableWork>,
}

/// Where blocks of each rank and variable are now, by their place.
pub(super) type Placed = Vec<Vec<BTreeMap<usize, BlockRef>>>;

impl Drain<'_> {
    fn within(&self) -> Duration {
        Duration::from_millis(self.settings.timeout_ms)
    }

    /// Ends a drain that was told to.
    pub(super) fn go_on(&self) -> Result<()> {
        if self.cancel.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Timeout, "the drain was told to stop"));
        }
        Ok(())
    }

    /// Drains the checkpoint; returns the sequence of the root that holds it.
    pub(super) fn run(&self, state: &mut State) -> Result<u64> {
        let sources = self.sources()?;
        let mut works = self.compare(&sources, state)?;
        let victims = state.ledger.to_clean(CLEAN_BYTES_MAX);
        add_moved(&mut works, state, &victims);
        self.store.expect_bytes(self.expected_bytes(&works))?;
        let stored = self.unfinished(state)?;
        let mut placed: Placed = works
            .iter()
            .map(|work| vec![BTreeMap::new(); work.variables.len()])
            .collect();
        equal::find(self, &sources, &mut works, stored, &mut placed)?;
        self.go_on()?;
        let often = (self.settings.history, self.settings.every);
        self.encoders.begin_drain(self.settings.history);
        let history = History::new(state, self.store.device(), &victims, often);
        let packing = Packing {
            drain: self,
            sources: &sources,
            works: &works,
            history: &history,
        };
        let opened = pack::pack(&packing, state, &mut placed)?;
        let found = history.finish();
        equal::resolve(&works, &mut placed)?;
        let mut writer = PartWriter::new(self.store, self.job.checkpoint);
        let new = parts::write(self.job, &works, &placed, state, &victims, &mut writer)?;
        let opened = opened.into_iter().chain(writer.finish()?).collect();
        let ranks = RankRange::of(works.iter().map(|work| work.rank));
        let sequence = self.commit(state, &sources, works, new, (opened, found))?;
        lock(self.progress).ranks = ranks;
        Ok(sequence)
    }

    fn sources(&self) -> Result<Vec<Source>> {
        let (endpoint, name, own) = match &self.from {
            From::Nodes {
                endpoint,
                name,
                own,
            } => (*endpoint, *name, *own),
            From::Files(files) => return Ok(vec![Source::Files(Arc::clone(files))]),
        };
        let open = |seat: &backstay_format::agent::Seat| {
            let limits = (self.within(), self.cancel);
            NodeBlocks::open(seat, self.job.checkpoint, (own, name), endpoint, limits)
                .map(|node| Source::Node(Box::new(node)))
        };
        let sources: Vec<Source> = parallel(&self.job.sources, PARALLEL_MAX, open)?;
        let sizes: BTreeSet<u32> = sources.iter().map(|s| s.offered().world_size).collect();
        if sizes.len() > 1 {
            let context = format!(
                "nodes disagree on the ranks of {}: {sizes:?}",
                self.job.checkpoint
            );
            return Err(Error::new(ErrorKind::Corrupt, context));
        }
        Ok(sources)
    }

    /// What every rank has, and which of its blocks the archive lacks.
    fn compare(&self, sources: &[Source], state: &State) -> Result<Vec<RankWork>> {
        let places: Vec<usize> = (0..sources.len()).collect();
        let of_sources = parallel(&places, PARALLEL_MAX, |&at| {
            let source = &sources[at];
            let entries = source.offered().ranks.iter();
            let works = entries.map(|entry| {
                let part = source.part(entry)?;
                let known = state.ranks.get(&entry.rank);
                compare_rank(source, at, entry.rank, part, known, self.pulse)
            });
            works.collect::<Result<Vec<RankWork>>>()
        })?;
        let mut works: Vec<RankWork> = of_sources.into_iter().flatten().collect();
        works.sort_by_key(|work| work.rank);
        let twice = works.windows(2).find(|pair| pair[0].rank == pair[1].rank);
        if let Some(pair) = twice {
            let context = format!("rank {} is on two nodes", pair[0].rank);
            return Err(Error::new(ErrorKind::Corrupt, context));
        }
        let mut progress = lock(self.progress);
        progress.world_size = sources
            .first()
            .map_or(0, |source| source.offered().world_size);
        progress.bytes_total = works.iter().map(|work| work.part.root.bytes_total).sum();
        let writes = works
            .iter()
            .flat_map(|w| &w.variables)
            .flat_map(|v| &v.writes);
        progress.bytes_changed = writes.map(|write| to_u64(write.length)).sum();
        Ok(works)
    }

    /// Bytes that are likely to be stored for `works`: what is to be written, by as much smaller as what the store
    /// has is by now, and a sixteenth for trees, headers and the table.
    fn expected_bytes(&self, works: &[RankWork]) -> u64 {
        let writes = works.iter().flat_map(|work| &work.variables);
        let writes = writes.flat_map(|variable| &variable.writes);
        let bytes: u64 = writes.map(|write| to_u64(write.length)).sum();
        let (mut decoded, mut stored) = (0_u64, 0_u64);
        for entry in self.store.device().entries() {
            decoded += u64::from(entry.decoded_bytes);
            stored += u64::from(entry.stored_bytes);
        }
        let smaller = match decoded {
            0 => u128::from(bytes),
            _ => u128::from(bytes) * u128::from(stored) / u128::from(decoded),
        };
        let expected = u64::try_from(smaller).unwrap_or(bytes).min(bytes);
        expected + expected / 16
    }

    /// Blocks that interrupted drains stored, by what makes them equal.
    fn unfinished(&self, state: &mut State) -> Result<BTreeMap<Key, BlockRef>> {
        let mut known = BTreeMap::new();
        for header in self.store.unfinished()? {
            let segment = header.segment;
            if !state.ledger.knows(segment) {
                let decoded = u64::from(header.decoded_bytes);
                let runs = header.bases.as_slice().into();
                state.ledger.open(segment, decoded, runs);
            }
            for piece in &header.pieces {
                let unit = u16::try_from(piece.offset / Address::UNIT_BYTES);
                let length = to_usize(u64::from(piece.length_bytes));
                if let Ok(unit) = unit {
                    let (address, digest) = (Address::new(segment, unit), piece.digest);
                    known.insert((digest, length), BlockRef { address, digest });
                }
            }
        }
        Ok(known)
    }

    fn commit(
        &self,
        state: &mut State,
        sources: &[Source],
        works: Vec<RankWork>,
        new: NewParts,
        (opened, mut found): (Vec<(SegmentId, u64)>, Found),
    ) -> Result<u64> {
        let id = self.job.checkpoint;
        let mut ledger = state.ledger.clone();
        for (segment, decoded_bytes) in opened {
            let runs = found.made.remove(&segment).unwrap_or_default();
            ledger.open_for(segment, decoded_bytes, runs, id);
        }
        ledger.learn(&found.written);
        ledger.apply(&new.turnover, id);
        let mut revisions: Vec<RevisionEntry> = state.revisions.clone();
        revisions.retain(|r| self.job.retain.contains(&r.checkpoint) && r.checkpoint < id);
        let times = sources
            .iter()
            .map(|source| source.offered().committed_unix_ns);
        let progress = lock(self.progress).clone();
        revisions.push(RevisionEntry {
            checkpoint: id,
            pinned: false,
            complete: true,
            world_size: sources
                .first()
                .map_or(0, |source| source.offered().world_size),
            committed_unix_ns: times.max().unwrap_or(0),
            bytes_total: progress.bytes_total,
            bytes_changed: progress.bytes_changed,
            ranks: *new.rank_table.root(),
        });
        let retained = revisions.iter().map(|r| r.checkpoint).collect();
        let free = ledger.free(&retained);
        self.go_on()?;
        let sequence = self.store.commit(&Commit {
            incarnation: self.job.incarnation,
            draining: None,
            revisions: revisions.clone(),
            free,
        })?;
        state.revisions = revisions;
        state.newest = Some(id);
        state.ledger = ledger;
        state.take(new, works);
        Ok(sequence)
    }
}

fn compare_rank(
    source: &Source,
    at: usize,
    rank: u32,
    part: ReadPart,
    known: Option<&RankState>,
    pulse: &Pulse,
) -> Result<RankWork> {
    let mut variables = Vec::with_capacity(part.descriptors.len());
    for (place, (descriptor, stream)) in part.descriptors.iter().zip(&part.streams).enumerate() {
        let stands = known.and_then(|rank| rank.variables.get(&descriptor.name));
        let empty;
        let tree = if let Some(stands) = stands {
            &stands.tree
        } else {
            empty = ArchiveTree::empty(stream.block_bytes);
            &empty
        };
        let former = stands.and_then(|stands| stands.node.as_ref());
        let (node, changed) = source.compare((rank, place), stream, former, tree, pulse)?;
        let write = |changed: Changed| Write {
            at: changed.at,
            length: changed.length,
            block: changed.block,
            from_archive: false,
        };
        variables.push(VariableWork {
            node,
            writes: changed.into_iter().map(write).collect(),
            equal: Vec::new(),
        });
    }
    Ok(RankWork {
        rank,
        source: at,
        part,
        variables,
    })
}

/// What stands in thinly filled segments is written elsewhere.
fn add_moved(works: &mut [RankWork], state: &State, victims: &BTreeSet<SegmentId>) {
    if victims.is_empty() {
        return;
    }
    for work in works {
        let Some(rank) = state.ranks.get(&work.rank) else {
            continue;
        };
        let RankWork {
            part, variables, ..
        } = work;
        for ((descriptor, stream), variable) in
            part.descriptors.iter().zip(&part.streams).zip(variables)
        {
            let Some(stands) = rank.variables.get(&descriptor.name) else {
                continue;
            };
            if stands.tree.root().block_bytes != stream.block_bytes {
                continue;
            }
            let changed: BTreeSet<usize> = variable.writes.iter().map(|w| w.at).collect();
            for (at, block, length) in stands.tree.blocks_in(victims) {
                let stays = at < stream.block_count() && length == stream.block_length(at);
                if stays && !changed.contains(&at) {
                    variable.writes.push(Write {
                        at,
                        length,
                        block,
                        from_archive: true,
                    });
                }
            }
            variable.writes.sort_by_key(|write| write.at);
        }
    }
}
