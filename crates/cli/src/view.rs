// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what JSON and tables show of checkpoints and stores, the same in every command.
//! Invariants: keys are stable; docs/reference/cli.md lists them.

use crate::protection::ProtectionView;
use backstay::CheckpointId;
use backstay_inspect::{Archived, Checkpoint, OpenStore, RootState, Stores, Unreadable, share};
use serde::Serialize;

/// Which checkpoint.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct IdView {
    pub(crate) number: u64,
    pub(crate) incarnation: u64,
}

impl From<CheckpointId> for IdView {
    fn from(id: CheckpointId) -> Self {
        Self {
            number: id.number,
            incarnation: id.incarnation,
        }
    }
}

/// A checkpoint as `--checkpoint` takes it: number, point, incarnation.
pub(crate) fn short(id: CheckpointId) -> String {
    format!("{}.{}", id.number, id.incarnation)
}

/// Several of them.
pub(crate) fn short_list(ids: &[CheckpointId]) -> String {
    let texts: Vec<String> = ids.iter().map(|&id| short(id)).collect();
    texts.join(", ")
}

/// Checkpoints by their names: `checkpoint 3.1`, `checkpoints 3.1, 4.1`.
pub(crate) fn checkpoints(ids: &[CheckpointId]) -> String {
    let plural = if ids.len() == 1 { "" } else { "s" };
    format!("checkpoint{plural} {}", short_list(ids))
}

/// A checkpoint.
#[derive(Debug, Serialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "keys of JSON, independent of each other"
)]
pub(crate) struct CheckpointView {
    job: String,
    number: u64,
    incarnation: u64,
    committed: String,
    committed_unix_ns: u64,
    complete: bool,
    known_complete: bool,
    pinned: bool,
    ranks_found: usize,
    ranks_needed: u32,
    bytes_total: u64,
    bytes_changed: u64,
    changed_share: f64,
    stores: Vec<String>,
    damage: Vec<String>,
    protection: ProtectionView,
    level: &'static str,
    earlier: bool,
    archive: Option<ArchivedView>,
}

/// What the catalog of an archive says of a checkpoint.
#[derive(Debug, Serialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "keys of JSON, independent of each other"
)]
pub(crate) struct ArchivedView {
    folder: String,
    whole: bool,
    abandoned: bool,
    kept: bool,
    finished: bool,
    archived: Option<String>,
    archived_unix_ns: Option<u64>,
    bytes_stored: Option<u64>,
    ratio: Option<f64>,
    lacks: Vec<String>,
}

impl ArchivedView {
    fn new(stores: &Stores, checkpoint: &Checkpoint, archived: &Archived) -> Self {
        let folder = stores.archives()[archived.archive].folder();
        let listed = |value: u64| archived.listed.then_some(value);
        Self {
            folder: folder.display().to_string(),
            whole: archived.listed,
            abandoned: archived.abandoned,
            kept: archived.kept,
            finished: archived.finished,
            archived: listed(archived.archived_unix_ns).map(utc),
            archived_unix_ns: listed(archived.archived_unix_ns),
            bytes_stored: listed(archived.bytes_stored),
            ratio: archived_ratio(checkpoint, archived),
            lacks: archived.lacks.clone(),
        }
    }
}

/// Bytes that a checkpoint wrote anew over bytes that were stored for them.
pub(crate) fn archived_ratio(checkpoint: &Checkpoint, archived: &Archived) -> Option<f64> {
    let known = archived.listed && archived.bytes_stored > 0 && checkpoint.bytes_changed > 0;
    known.then(|| share(checkpoint.bytes_changed, archived.bytes_stored))
}

/// A ratio for people.
pub(crate) fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
}

impl CheckpointView {
    pub(crate) fn new(stores: &Stores, checkpoint: &Checkpoint) -> Self {
        let path = |&store: &usize| stores.path(store).display().to_string();
        Self {
            job: checkpoint.job.clone(),
            number: checkpoint.id.number,
            incarnation: checkpoint.id.incarnation,
            committed: utc(checkpoint.committed_unix_ns),
            committed_unix_ns: checkpoint.committed_unix_ns,
            complete: checkpoint.is_complete(),
            known_complete: checkpoint.known_complete,
            pinned: checkpoint.pinned,
            ranks_found: checkpoint.ranks.len(),
            ranks_needed: checkpoint.world_size,
            bytes_total: checkpoint.bytes_total,
            bytes_changed: checkpoint.bytes_changed,
            changed_share: checkpoint.changed_share(),
            stores: checkpoint.stores.iter().map(path).collect(),
            damage: checkpoint
                .damaged
                .iter()
                .map(|(_, text)| text.clone())
                .collect(),
            protection: ProtectionView::new(stores, checkpoint),
            level: match &checkpoint.archived {
                Some(_) => "archive",
                None => "node",
            },
            earlier: !stores.lineage(&checkpoint.job).has(checkpoint.id),
            archive: checkpoint
                .archived
                .as_ref()
                .map(|archived| ArchivedView::new(stores, checkpoint, archived)),
        }
    }
}

/// A store.
#[derive(Debug, Serialize)]
pub(crate) struct StoreView {
    path: String,
    job: String,
    node: String,
    store: String,
    bytes: u64,
    segment_bytes: u32,
    sequence: u64,
    incarnation: u64,
    archive: bool,
    closed: bool,
    finished: bool,
    root_slots: [&'static str; 2],
}

impl From<&OpenStore> for StoreView {
    fn from(store: &OpenStore) -> Self {
        let [first, second] = store.slots();
        Self {
            path: store.path().display().to_string(),
            job: store.job().to_owned(),
            node: store.node().to_owned(),
            store: store.id().to_string(),
            bytes: store.length_bytes(),
            segment_bytes: store.segment_bytes(),
            sequence: store.root().sequence,
            incarnation: store.root().incarnation,
            archive: store.archive().is_some(),
            closed: store.root().closed,
            finished: store.root().lineage.finished,
            root_slots: [slot(first), slot(second)],
        }
    }
}

fn slot(state: &RootState) -> &'static str {
    match state {
        RootState::Valid(_) => "valid",
        RootState::Unused => "unused",
        RootState::Damaged(_) => "damaged",
    }
}

/// A path that gave no store.
#[derive(Debug, Serialize)]
pub(crate) struct UnreadableView {
    path: String,
    kind: &'static str,
    message: String,
}

impl From<&Unreadable> for UnreadableView {
    fn from(unreadable: &Unreadable) -> Self {
        Self {
            path: unreadable.path.display().to_string(),
            kind: crate::output::meaning(&unreadable.error),
            message: crate::output::sentence(&unreadable.error),
        }
    }
}

/// A time as 2026-01-31T23:59:59Z.
pub(crate) fn utc(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years: the leap day is the last of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = year + era * 400 + next;
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000), text);
        }
    }
}
