// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: `verify --repair`: makes damaged extents again while no job uses the stores.
//! Invariants: locks are held from before the stores are opened until all is written.

use crate::output::{Failure, complain, human_bytes, progress, result};
use crate::select::Places;
use backstay::ErrorKind;
use serde::Serialize;

/// What was repaired in one store.
#[derive(Debug, Serialize)]
pub(super) struct RepairedView {
    path: String,
    extents: u64,
    bytes: u64,
    beyond: Vec<String>,
}

/// Repairs what can be repaired from the stores at `places`.
pub(super) fn repair(places: &Places) -> Result<Vec<RepairedView>, Failure> {
    let before = places.open()?;
    if before.groups().is_empty() {
        let message = "none of these stores is in a redundancy group, so there is nothing to repair \
                       from; a running job heals blocks from its memory with a scrub";
        return Err(Failure::new(ErrorKind::Unsupported, message));
    }
    let locks = before.lock()?;
    // As they are now that nobody writes them.
    let stores = places.open_quietly()?;
    let bar = progress("repairing", stores.stripe_bytes(), true);
    let repaired = stores.repair(&locks, &mut |bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    drop(locks);
    let view = |one: &backstay_inspect::Repaired| RepairedView {
        path: stores.path(one.store).display().to_string(),
        extents: one.extents,
        bytes: one.bytes,
        beyond: one.beyond.clone(),
    };
    Ok(repaired.iter().map(view).collect())
}

/// Shows what was done.
pub(super) fn show(repaired: &[RepairedView]) {
    for one in repaired {
        if one.extents > 0 {
            result(&format!(
                "{}: {} extents rebuilt, {}",
                one.path,
                one.extents,
                human_bytes(one.bytes)
            ));
        }
        for text in &one.beyond {
            complain(&format!("{}: beyond repair: {text}", one.path));
        }
    }
    if repaired
        .iter()
        .all(|one| one.extents == 0 && one.beyond.is_empty())
    {
        result("nothing to repair");
    }
}
