// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the stores and the ranks of a catalog's checkpoints: each is said once, checkpoints name its place in a
//! list; and how large a state becomes of it.
//! In from: `catalog`, when a checkpoint is recorded or goes. Out: the lists of the state.
//! Invariants: what no checkpoint names is in no list; equal sets of ranks are one.

use super::NewPart;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::catalog::SLOT_BYTES_DEFAULT;
use backstay_format::limits::{CATALOG_SLOT_BYTES_MAX, CATALOG_STARTS_MAX, REVISIONS_MAX};
use backstay_format::width::index;
use backstay_format::{
    CatalogCheckpoint, CatalogPart, CatalogState, CatalogStore, RankRange, StoreId,
};
use std::collections::{BTreeMap, BTreeSet};

/// Of each aggregator: files that checkpoints of a catalog name, bytes of a name, and ranges of its ranks.
const STORES_EACH: usize = 4;
const NAME_BYTES: usize = 48;
const RANGES_EACH: usize = 64;
/// As many ranges of each aggregator where that is little: ranks may lie over nodes in turn.
const RANGES_EACH_OF_FEW: usize = 512;
/// The least.
const SLOT_BYTES_MIN: u32 = 1 << 20;

/// Bytes of a slot that has room for all that an archive of so many aggregators may retain.
pub fn slot_bytes_for(aggregators: usize) -> u32 {
    let checkpoints = (REVISIONS_MAX + 1) * (52 + 16 * aggregators);
    let lists = 4096 + 24 * index(CATALOG_STARTS_MAX) + checkpoints;
    let with = |ranges: usize| {
        let each = STORES_EACH * (18 + NAME_BYTES) + 4 + 8 * ranges;
        let state = lists + each * aggregators;
        u32::try_from(state.next_multiple_of(4096)).unwrap_or(u32::MAX)
    };
    let generous = with(RANGES_EACH_OF_FEW).clamp(SLOT_BYTES_MIN, SLOT_BYTES_DEFAULT);
    with(RANGES_EACH).clamp(generous, CATALOG_SLOT_BYTES_MAX)
}

/// Whether `ranges` have each rank of a job of so many once.
pub(super) fn has_each_once(mut ranges: Vec<RankRange>, world_size: u32) -> bool {
    ranges.sort_unstable();
    let mut next = 0;
    let follows = |range: &RankRange| range.first == std::mem::replace(&mut next, range.end());
    ranges.iter().all(follows) && next == world_size
}

/// The places of the stores of `parts` in the list, which takes new ones, and of their ranks.
pub(super) fn place_parts(state: &mut CatalogState, parts: &[NewPart]) -> Result<Vec<CatalogPart>> {
    let known = state.stores.iter().map(|store| store.store).zip(0..);
    let mut known: BTreeMap<StoreId, u32> = known.collect();
    let mut sets: BTreeMap<Vec<RankRange>, u32> =
        state.rank_sets.iter().cloned().zip(0..).collect();
    let mut placed = BTreeMap::new();
    for part in parts {
        let next = count(&state.stores);
        let store = *known.entry(part.store).or_insert(next);
        if store == next {
            state.stores.push(CatalogStore {
                store: part.store,
                name: part.file.clone(),
            });
        }
        let next = count(&state.rank_sets);
        let ranks = *sets.entry(part.ranks.clone()).or_insert(next);
        if ranks == next {
            state.rank_sets.push(part.ranks.clone());
        }
        let placed_part = CatalogPart {
            store,
            sequence: part.sequence,
            ranks,
        };
        if placed.insert(store, placed_part).is_some() {
            let context = format!("store {} has two parts of a checkpoint", part.store);
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
    }
    Ok(placed.into_values().collect())
}

fn count<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

/// Forgets the stores and the rank sets that no checkpoint names.
pub(super) fn forget_unused(state: &mut CatalogState) {
    forget(&mut state.stores, &mut state.checkpoints, |part| {
        &mut part.store
    });
    forget(&mut state.rank_sets, &mut state.checkpoints, |part| {
        &mut part.ranks
    });
}

/// Forgets what of `list` is not named by the `place` in any part.
fn forget<T>(
    list: &mut Vec<T>,
    checkpoints: &mut [CatalogCheckpoint],
    place: impl Fn(&mut CatalogPart) -> &mut u32,
) {
    let parts = checkpoints.iter_mut().flat_map(|entry| &mut entry.parts);
    let mut all: Vec<&mut u32> = parts.map(place).collect();
    let used: BTreeSet<u32> = all.iter().map(|place| **place).collect();
    let places: BTreeMap<u32, u32> = used.iter().copied().zip(0..).collect();
    for place in &mut all {
        **place = places.get(*place).copied().unwrap_or(**place);
    }
    let kept = (0..)
        .zip(std::mem::take(list))
        .filter(|(at, _)| used.contains(at));
    *list = kept.map(|(_, one)| one).collect();
}
