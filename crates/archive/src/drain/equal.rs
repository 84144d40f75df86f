// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: of equal blocks one is stored: which are equal, found by digest and length and proven by their
//! bytes.
//! In from: `work` (the blocks to write), the nodes, the store. Out: blocks that are left out, and where the
//! ones stand that they are equal to.
//! Invariants: no block is taken for another before all their bytes were compared, because whoever supplies
//! data can make two blocks collide in an unkeyed digest (decision 0001); what cannot be read to be compared
//! is stored; no more memory is held than two windows.

use super::sources::{Source, Wanted};
use super::work::{Drain, Placed, RankWork, Write};
use super::{PARALLEL_MAX, lock, parallel};
use crate::{ArchiveDevice, Payload};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::width::{index, to_u64};
use backstay_format::{BlockRef, Digest};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Bytes of blocks that are read to be compared at once, and as many of those they are compared with.
const WINDOW_BYTES: usize = 8 << 20;

/// What makes two blocks worth comparing.
pub(super) type Key = (Digest, usize);

/// A block of a drain: its rank and variable by their places, its place in the variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) rank: usize,
    pub(super) variable: usize,
    pub(super) at: usize,
}

/// The first block of its digest and length.
#[derive(Debug, Clone, Copy)]
enum First {
    /// An interrupted drain stored it.
    Stored(BlockRef),
    /// This drain writes it.
    Written(Spot, Write),
}

impl First {
    fn block(&self) -> BlockRef {
        match self {
            Self::Stored(block) => *block,
            Self::Written(_, write) => write.block,
        }
    }
}

/// A block and the one that it may be equal to.
struct Pair {
    spot: Spot,
    write: Write,
    first: First,
}

/// Leaves of equal blocks one to be written, and none that `stored` has.
pub(super) fn find(
    drain: &Drain<'_>,
    sources: &[Source],
    works: &mut [RankWork],
    stored: BTreeMap<Key, BlockRef>,
    placed: &mut Placed,
) -> Result<()> {
    let mut firsts: BTreeMap<Key, First> = stored
        .into_iter()
        .map(|(key, block)| (key, First::Stored(block)))
        .collect();
    let mut pairs = Pairs {
        drain,
        sources,
        archive: drain.store.device(),
        window: Vec::new(),
        bytes: 0,
    };
    for rank in 0..works.len() {
        for variable in 0..works[rank].variables.len() {
            let writes = std::mem::take(&mut works[rank].variables[variable].writes);
            let mut alone = Vec::with_capacity(writes.len());
            for write in writes {
                let spot = Spot {
                    rank,
                    variable,
                    at: write.at,
                };
                let key = (write.block.digest, write.length);
                let Some(&first) = firsts.get(&key) else {
                    firsts.insert(key, First::Written(spot, write));
                    alone.push(write);
                    continue;
                };
                pairs.push(Pair { spot, write, first });
                if pairs.bytes >= WINDOW_BYTES {
                    pairs.settle(works, placed)?;
                }
            }
            works[rank].variables[variable].writes.append(&mut alone);
        }
    }
    pairs.settle(works, placed)?;
    for variable in works.iter_mut().flat_map(|work| &mut work.variables) {
        // Those that proved to be different came behind the others.
        variable.writes.sort_by_key(|write| write.at);
    }
    Ok(())
}

/// Equal blocks are where the ones of them are that were written.
pub(super) fn resolve(works: &[RankWork], placed: &mut Placed) -> Result<()> {
    for (rank, work) in works.iter().enumerate() {
        for (place, variable) in work.variables.iter().enumerate() {
            for (at, other) in &variable.equal {
                let known = placed
                    .get(other.rank)
                    .and_then(|rank| rank.get(other.variable));
                let Some(&block) = known.and_then(|blocks| blocks.get(&other.at)) else {
                    let context = "a block that others are equal to was not written";
                    return Err(Error::new(ErrorKind::Internal, context));
                };
                placed[rank][place].insert(*at, block);
            }
        }
    }
    Ok(())
}

/// Blocks that wait to be compared.
struct Pairs<'a> {
    drain: &'a Drain<'a>,
    sources: &'a [Source],
    archive: Arc<ArchiveDevice>,
    window: Vec<Pair>,
    bytes: usize,
}

/// Where the two sides of a pair are in memory; `None` where one could not be read.
type Sides = Option<(usize, usize)>;

impl Pairs<'_> {
    fn push(&mut self, pair: Pair) {
        self.bytes += pair.write.length;
        self.window.push(pair);
    }

    /// Compares what waits: what is equal is left out, what is not is written.
    fn settle(&mut self, works: &mut [RankWork], placed: &mut Placed) -> Result<()> {
        self.drain.go_on()?;
        let (sides, memory) = self.read(works)?;
        let (mut equal, mut resumed) = (0, 0);
        let compared = to_u64(self.bytes);
        for (pair, sides) in self.window.drain(..).zip(sides) {
            let Pair { spot, write, first } = pair;
            let same = sides.is_some_and(|(mine, other)| {
                let of = |at: usize| memory.get(at..at + write.length);
                of(mine).is_some() && of(mine) == of(other)
            });
            let variable = &mut works[spot.rank].variables[spot.variable];
            match first {
                _ if !same => variable.writes.push(write),
                First::Stored(block) => {
                    resumed += to_u64(write.length);
                    placed[spot.rank][spot.variable].insert(spot.at, block);
                }
                First::Written(other, _) => {
                    equal += to_u64(write.length);
                    variable.equal.push((spot.at, other));
                }
            }
        }
        self.bytes = 0;
        let mut progress = lock(self.drain.progress);
        progress.bytes_equal += equal;
        progress.bytes_resumed += resumed;
        progress.bytes_compared += compared;
        Ok(())
    }

    /// Both sides of each pair, and the memory that they are in. A block that many are compared with is read
    /// once.
    fn read(&self, works: &[RankWork]) -> Result<(Vec<Sides>, Payload)> {
        let mut wanted: Vec<Vec<Wanted>> = vec![Vec::new(); self.sources.len()];
        let mut archived: Vec<(BlockRef, usize, usize)> = Vec::new();
        let mut firsts: BTreeMap<(u64, usize, bool), usize> = BTreeMap::new();
        let (mut end, mut sides) = (0, Vec::with_capacity(self.window.len()));
        for Pair { spot, write, first } in &self.window {
            let length = write.length;
            let mut want = |block: BlockRef, source: Option<usize>| {
                let offset = end;
                end += length;
                match source.and_then(|source| wanted.get_mut(source)) {
                    Some(wanted) => wanted.push(Wanted {
                        block,
                        length,
                        segment: 0,
                        offset,
                    }),
                    None => archived.push((block, length, offset)),
                }
                offset
            };
            let source_of =
                |spot: &Spot, write: &Write| (!write.from_archive).then(|| works[spot.rank].source);
            let mine = want(write.block, source_of(spot, write));
            let source = match first {
                First::Stored(_) => None,
                First::Written(spot, write) => source_of(spot, write),
            };
            let place = (
                first.block().address.0,
                source.unwrap_or(usize::MAX),
                source.is_some(),
            );
            let other = *firsts
                .entry(place)
                .or_insert_with(|| want(first.block(), source));
            sides.push(Some((mine, other)));
        }
        let memory: [Mutex<Payload>; 1] = [Mutex::new(vec![0; end].into())];
        let places: Vec<usize> = (0..wanted.len()).collect();
        parallel(&places, PARALLEL_MAX, |&at| match &wanted[at][..] {
            [] => Ok(()),
            wanted => self.sources[at].fill(wanted, &memory, self.drain.pulse),
        })?;
        let [memory] = memory;
        let mut memory = memory
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for (block, length, offset) in archived {
            if self.read_archived(&block, &mut memory[offset..offset + length]) {
                continue;
            }
            // Nothing is known to be equal to what cannot be read.
            for side in &mut sides {
                *side = side.filter(|&(mine, other)| mine != offset && other != offset);
            }
        }
        Ok((sides, memory))
    }

    fn read_archived(&self, block: &BlockRef, into: &mut [u8]) -> bool {
        let segment = match self.archive.segment(block.address.segment()) {
            Ok(segment) => segment,
            Err(error) => {
                tracing::debug!("what is stored already is stored again: {error}");
                return false;
            }
        };
        let start = index(block.address.offset_bytes());
        let Some(bytes) = segment.get(start..start + into.len()) else {
            return false;
        };
        into.copy_from_slice(bytes);
        true
    }
}
