// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a restart can have from the nodes, as every rank knows it: checkpoints, and which store has which
//! ranks' parts.
//! In from: rank 0, of what `parity::locate` found in all nodes' surveys. Out to: `protection`, `restore`.
//! Invariants: ranks of one store in a row are one run, told once for all checkpoints of which it is the same; it is
//! kept no longer than a checkpoint that was here before this start.

use super::share::{RankRuns, Run, decode_runs, encode_runs, run_of, runs_of};
use backstay_base::error::{Error, Result};
use backstay_format::agent::Seat;
use backstay_format::limits::{ENDPOINT_BYTES_MAX, LABEL_BYTES_MAX};
use backstay_format::width::index;
use backstay_format::{CheckpointId, Decoder, Encoder, FormatError, StoreId};
use backstay_net::Peer;
use backstay_parity::agent::coordinate::NodeSeat;
use backstay_parity::locate;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Choices that all ranks are told of.
const CHOICES_MAX: usize = 4;
/// Most of what all ranks are told of why nothing is known.
const WHY_CHARS_MAX: usize = 600;
const LOCATED: &str = "what there is";

/// A store and the node that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoreAt {
    pub(super) store: StoreId,
    /// The node, and the address of its agent.
    pub(super) node: String,
    pub(super) address: String,
    /// Bytes of its file.
    pub(super) length_bytes: u64,
    /// Whether it was made again for reading.
    pub(super) rebuilt: bool,
}

impl StoreAt {
    pub(super) fn peer(&self) -> Peer {
        Peer::new(self.node.clone(), self.address.clone())
    }
    pub(super) fn seat(&self) -> Seat {
        Seat {
            store: self.store,
            node: self.node.clone(),
            domain: self.node.clone(),
            address: self.address.clone(),
        }
    }
}

/// A checkpoint that can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) checkpoint: CheckpointId,
    /// Ranks of the job that took it.
    pub(super) world_size: u32,
    /// Which store has which of their parts, by place in [`Located::stores`].
    sources: Arc<[Run]>,
}

/// What all nodes have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Located {
    pub(super) stores: Vec<StoreAt>,
    /// Newest first.
    pub(super) choices: Vec<Choice>,
    /// Lost stores that were made again just now: rank 0's alone.
    pub(super) made: usize,
    /// What could not be read.
    pub(super) unread: Option<String>,
    /// The newest checkpoint that any store or log names.
    pub(super) newest: Option<CheckpointId>,
    /// Whether some store with checkpoints could be read.
    pub(super) is_known: bool,
    /// Why nothing is known of what other nodes have; empty where it is.
    pub(super) unlocated: String,
}

impl Located {
    /// What rank 0 found out, or why it could not, for all ranks.
    pub(super) fn of(found: &locate::Located, nodes: &[NodeSeat], unlocated: &str) -> Self {
        let short = |text: &str| text.chars().take(WHY_CHARS_MAX).collect::<String>();
        let store = |here: &locate::Here| {
            let node = nodes.get(here.node);
            let text = |of: fn(&NodeSeat) -> &String| node.map(of).cloned().unwrap_or_default();
            StoreAt {
                store: here.store,
                node: text(|node| &node.name),
                address: text(|node| &node.address),
                length_bytes: here.length_bytes,
                rebuilt: here.rebuilt,
            }
        };
        let choice = |choice: &locate::Choice| {
            let sources = choice.sources.iter();
            // A store that is in no place has nothing.
            let of = sources
                .map(|source| source.map_or(u32::MAX, |at| u32::try_from(at).unwrap_or(u32::MAX)));
            Choice {
                checkpoint: choice.checkpoint,
                world_size: choice.world_size,
                sources: runs_of(of).into(),
            }
        };
        Self {
            stores: found.here.iter().map(store).collect(),
            choices: found.choices.iter().take(CHOICES_MAX).map(choice).collect(),
            made: 0,
            unread: found
                .unread
                .as_deref()
                .filter(|why| !why.is_empty())
                .map(short),
            newest: found.newest.filter(|newest| newest.number > 0),
            is_known: found.is_known,
            unlocated: short(unlocated),
        }
    }

    pub(super) fn choice(&self, id: CheckpointId) -> Option<&Choice> {
        self.choices.iter().find(|choice| choice.checkpoint == id)
    }

    /// The store that has `rank`'s part of a checkpoint.
    pub(super) fn source(&self, id: CheckpointId, rank: u32) -> Option<&StoreAt> {
        let run = run_of(&self.choice(id)?.sources, rank)?;
        self.stores.get(index(run.of))
    }

    /// The ranks whose parts of a checkpoint are in stores of the node with that address, by store.
    pub(super) fn sources_at(&self, id: CheckpointId, address: &str) -> Vec<RankRuns> {
        let mut by_store: BTreeMap<u32, Vec<Run>> = BTreeMap::new();
        for run in self.choice(id).into_iter().flat_map(|c| c.sources.iter()) {
            let store = self.stores.get(index(run.of));
            if store.is_some_and(|store| store.address == address) {
                by_store.entry(run.of).or_default().push(*run);
            }
        }
        let ranks = |runs: Vec<Run>| -> RankRuns {
            let runs = runs.into_iter();
            Box::new(runs.flat_map(|run| run.first..run.first.saturating_add(run.count)))
        };
        by_store.into_values().map(ranks).collect()
    }

    /// Whether some part of a checkpoint is in a store that was made again for reading.
    pub(super) fn takes_rebuilt(&self, id: CheckpointId) -> bool {
        let runs = self.choice(id).into_iter().flat_map(|c| c.sources.iter());
        let mut stores = runs.filter_map(|run| self.stores.get(index(run.of)));
        stores.any(|store| store.rebuilt)
    }

    /// The store `id`, where it is a node's own.
    pub(super) fn own_store(&self, id: StoreId) -> Option<&StoreAt> {
        let mut own = self.stores.iter().filter(|store| !store.rebuilt);
        own.find(|store| store.store == id)
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let encoded = encode(self);
        encoded.map_err(|error| Error::unwritable("what there is to restore", error))
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let decoded = decode(bytes);
        decoded.map_err(|error| Error::malformed("what there is to restore", error))
    }
}

fn encode(told: &Located) -> std::result::Result<Vec<u8>, FormatError> {
    let newest = told.newest.unwrap_or_default();
    let mut body = Encoder::new(LOCATED);
    body.text(&told.unlocated)
        .text(told.unread.as_deref().unwrap_or_default())
        .u8(u8::from(told.is_known))
        .u64(newest.incarnation)
        .u64(newest.number)
        .count(told.stores.len());
    for at in &told.stores {
        body.raw(&at.store.0)
            .text(&at.node)
            .text(&at.address)
            .u64(at.length_bytes)
            .u8(u8::from(at.rebuilt));
    }
    let mut places: BTreeMap<&[Run], usize> = BTreeMap::new();
    let mut all = Vec::new();
    for choice in &told.choices {
        places.entry(&*choice.sources).or_insert_with(|| {
            all.push(&*choice.sources);
            all.len() - 1
        });
    }
    body.count(all.len());
    for sources in all {
        encode_runs(&mut body, sources);
    }
    body.count(told.choices.len());
    for choice in &told.choices {
        body.u64(choice.checkpoint.incarnation)
            .u64(choice.checkpoint.number)
            .u32(choice.world_size)
            .count(places.get(&*choice.sources).copied().unwrap_or(0));
    }
    body.finish(told, decode)
}

fn decode(bytes: &[u8]) -> std::result::Result<Located, FormatError> {
    let mut body = Decoder::new(LOCATED, bytes);
    let unlocated = body.text("why nothing is known", 4 * WHY_CHARS_MAX)?;
    let unread = body.text("what could not be read", 4 * WHY_CHARS_MAX)?;
    let mut located = Located {
        unlocated,
        unread: (!unread.is_empty()).then_some(unread),
        is_known: body.u8("some store was read")? != 0,
        ..Located::default()
    };
    let newest = CheckpointId::new(body.u64("incarnation")?, body.u64("number")?);
    located.newest = (newest.number > 0).then_some(newest);
    for _ in 0..body.u32("stores")? {
        located.stores.push(StoreAt {
            store: StoreId(body.array("store")?),
            node: body.text("node", LABEL_BYTES_MAX)?,
            address: body.text("address", ENDPOINT_BYTES_MAX)?,
            length_bytes: body.u64("length")?,
            rebuilt: body.u8("rebuilt")? == 1,
        });
    }
    let mut all: Vec<Arc<[Run]>> = Vec::new();
    for _ in 0..body.u32("places of parts")? {
        all.push(decode_runs(&mut body)?.into());
    }
    for _ in 0..body.u32("choices")? {
        let checkpoint = CheckpointId::new(body.u64("incarnation")?, body.u64("number")?);
        let world_size = body.u32("ranks")?;
        let at = body.u32("place of the parts")?;
        let Some(sources) = all.get(index(at)) else {
            return Err(body.refuse("place of the parts", 4, "one that was told", at));
        };
        located.choices.push(Choice {
            checkpoint,
            world_size,
            sources: Arc::clone(sources),
        });
    }
    body.end()?;
    Ok(located)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> CheckpointId {
        CheckpointId::new(1, number)
    }

    /// Three nodes of two ranks each; the second store was made again on the third node.
    fn found() -> (locate::Located, Vec<NodeSeat>) {
        let seat = |n: usize| NodeSeat {
            name: format!("n{n}"),
            domain: format!("d{n}"),
            address: format!("10.0.0.{n}:1"),
        };
        let here = |node: usize, rebuilt| locate::Here {
            node,
            store: StoreId([u8::try_from(node).unwrap() + 10 * u8::from(rebuilt); 16]),
            length_bytes: 7,
            rebuilt,
        };
        let choice = |number, sources: &[usize]| locate::Choice {
            checkpoint: id(number),
            world_size: 6,
            sources: sources.iter().map(|&at| Some(at)).collect(),
            rebuilds: Vec::new(),
        };
        let located = locate::Located {
            here: vec![here(0, false), here(2, true), here(2, false)],
            choices: vec![
                choice(5, &[0, 0, 1, 1, 2, 2]),
                choice(4, &[0, 0, 1, 1, 2, 2]),
                choice(3, &[0, 0, 0, 2, 2, 2]),
            ],
            newest: Some(id(5)),
            is_known: true,
            ..locate::Located::default()
        };
        (located, (0..3).map(seat).collect())
    }

    #[test]
    fn every_rank_learns_where_each_part_is() {
        let (located, nodes) = found();
        let told = Located::of(&located, &nodes, "");
        let bytes = told.encode().unwrap();
        let known = Located::decode(&bytes).unwrap();
        assert_eq!(known, told);
        for choice in &located.choices {
            for (rank, source) in (0..).zip(&choice.sources) {
                let here = &located.here[source.unwrap()];
                let at = known.source(choice.checkpoint, rank).unwrap();
                assert_eq!(
                    (at.store, &at.node),
                    (here.store, &nodes[here.node].name),
                    "rank {rank}"
                );
            }
            assert!(known.source(choice.checkpoint, 6).is_none());
        }
        assert!(known.takes_rebuilt(id(5)) && !known.takes_rebuilt(id(3)));
        assert!(known.own_store(StoreId([12; 16])).is_none());
        // Where parts are of two checkpoints is told once.
        let mut fewer = located;
        fewer.choices.remove(1);
        let shorter = Located::of(&fewer, &nodes, "").encode().unwrap();
        assert_eq!(bytes.len() - shorter.len(), 8 + 8 + 4 + 4);
    }
}
