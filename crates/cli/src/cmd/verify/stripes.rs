// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what `verify` says of the stripes of redundancy groups, as text and as JSON.

use super::SHOWN_MAX;
use crate::output::{complain, human_bytes, result};
use backstay_inspect::{Repair, Stores, StripeDamage, VerifiedStore, VerifiedStripes};
use serde::Serialize;
use std::collections::BTreeSet;

/// What a store holds of stripes.
#[derive(Debug, Serialize)]
pub(super) struct StripesView {
    extents: u64,
    bytes: u64,
    damage: Vec<StripeDamageView>,
}

#[derive(Debug, Serialize)]
struct StripeDamageView {
    stripe: u64,
    piece: &'static str,
    segment: u64,
    offset_bytes: u32,
    length_bytes: u32,
    file_offset: Option<u64>,
    expected: String,
    found: String,
    repairable: Option<bool>,
    needs: Vec<String>,
    message: String,
}

impl From<&VerifiedStripes> for StripesView {
    fn from(stripes: &VerifiedStripes) -> Self {
        let view = |damage: &StripeDamage| StripeDamageView {
            stripe: damage.stripe,
            piece: piece(damage),
            segment: damage.segment,
            offset_bytes: damage.offset_bytes,
            length_bytes: damage.length_bytes,
            file_offset: damage.file_offset,
            expected: damage.expected.clone(),
            found: damage.found.clone(),
            repairable: match &damage.repair {
                Repair::FromHere => Some(true),
                Repair::Needs(_) => None,
                Repair::Beyond(_) => Some(false),
            },
            needs: match &damage.repair {
                Repair::Needs(nodes) => nodes.clone(),
                Repair::FromHere | Repair::Beyond(_) => Vec::new(),
            },
            message: outlook(&damage.repair),
        };
        Self {
            extents: stripes.extents,
            bytes: stripes.bytes,
            damage: stripes.damage.iter().map(view).collect(),
        }
    }
}

fn piece(damage: &StripeDamage) -> &'static str {
    if damage.is_parity { "parity" } else { "data" }
}

fn outlook(repair: &Repair) -> String {
    match repair {
        Repair::FromHere => "can be rebuilt from the other pieces".to_owned(),
        Repair::Needs(nodes) => format!(
            "can perhaps be rebuilt: give the stores of {} as well",
            nodes.join(", ")
        ),
        Repair::Beyond(why) => format!("cannot be rebuilt: {why}"),
    }
}

/// Shows what a store holds of stripes, if its node is in a group.
pub(super) fn show(stores: &Stores, store: &VerifiedStore) {
    let stripes = &store.stripes;
    if stripes.extents == 0 {
        return;
    }
    let verdict = match stripes.damage.len() {
        0 => "good".to_owned(),
        1 => "1 is damaged".to_owned(),
        count => format!("{count} are damaged"),
    };
    result(&format!(
        "{}: {} extents of stripes read, {}: {verdict}",
        stores.path(store.store).display(),
        stripes.extents,
        human_bytes(stripes.bytes),
    ));
    for damage in stripes.damage.iter().take(SHOWN_MAX) {
        let at = damage
            .file_offset
            .map(|at| format!(", byte {at} of the file"));
        result(&format!(
            "  DAMAGED {} of stripe {}: segment {} from byte {}, {}{}: expected {}, found {}; {}",
            piece(damage),
            damage.stripe,
            damage.segment,
            damage.offset_bytes,
            human_bytes(u64::from(damage.length_bytes)),
            at.unwrap_or_default(),
            damage.expected,
            damage.found,
            outlook(&damage.repair)
        ));
    }
    if stripes.damage.len() > SHOWN_MAX {
        let more = stripes.damage.len() - SHOWN_MAX;
        result(&format!("  and {more} more; --json lists all"));
    }
}

/// What to do about damage in stripes.
pub(super) fn advise(verified: &[VerifiedStore]) {
    let all = || verified.iter().flat_map(|store| &store.stripes.damage);
    let mut absent: BTreeSet<&str> = BTreeSet::new();
    for damage in all() {
        if let Repair::Needs(nodes) = &damage.repair {
            absent.extend(nodes.iter().map(String::as_str));
        }
    }
    let here = all()
        .filter(|damage| damage.repair == Repair::FromHere)
        .count();
    if here > 0 {
        complain(&format!(
            "{here} damaged extents can be rebuilt: run `backstay verify --repair` with the same \
             stores when no job uses them; a restart does it by itself"
        ));
    }
    if !absent.is_empty() {
        let names: Vec<&str> = absent.into_iter().collect();
        complain(&format!(
            "whether the others can be rebuilt depends on the stores of {}",
            names.join(", ")
        ));
    }
}
