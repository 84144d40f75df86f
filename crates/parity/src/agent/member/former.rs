// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the former composition of a member's group, while some group of the job has not recorded a round of
//! the new ones: who is in such a group is protected by the former one alone.
//! In from: `NodeMember`. Out to: the same, and who rebuilds by it.
//! Invariants: what it names of this store, data and parity, is not written over before it is forgotten, durably.

use backstay_format::{Extent, SegmentId, StoreId};
use backstay_store::stripe_log::StripeTable;
use std::collections::BTreeSet;

/// A former composition, and what it names of this store.
#[derive(Debug)]
pub(super) struct Former {
    pub(super) table: StripeTable,
    /// Parity that this store keeps for it.
    parity: Vec<Extent>,
    /// Segments of this store with data or parity of it.
    segments: BTreeSet<SegmentId>,
}

impl Former {
    /// What `table` names of `store`.
    pub(super) fn of(table: StripeTable, store: StoreId) -> Self {
        let column = table.column(store).unwrap_or(u8::MAX);
        let stripes = || table.stripes.values();
        let parity = stripes().flat_map(|stripe| &stripe.parity);
        let parity = parity.filter(|piece| piece.column == column);
        let parity = parity.map(|piece| piece.extent).collect();
        let extents = stripes().flat_map(|stripe| stripe.on(column));
        let segments = extents.map(|extent| extent.segment).collect();
        Self {
            table,
            parity,
            segments,
        }
    }

    /// Whether it names a segment.
    pub(super) fn names(&self, segment: SegmentId) -> bool {
        self.segments.contains(&segment)
    }

    /// The parity that goes with it.
    pub(super) fn into_parity(self) -> Vec<Extent> {
        self.parity
    }
}
