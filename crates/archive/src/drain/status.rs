// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: how draining stands, for those who look: a file beside rank 0's store, written about once a
//! second.
//! In from: `coordinate`. Out to: `backstay status`, the metrics endpoint.
//! Invariants: written whole and renamed, on the node, never in the archive; what the job measured goes there as it stands.
//! Format: docs/format/metrics.md.

use super::coordinate::ArchivePlan;
use backstay_base::clock::{Stopwatch, unix_ns};
use backstay_base::error::{Error, Result};
use backstay_base::io::open;
use backstay_format::CheckpointId;
use backstay_format::drain::DrainProgress;
use backstay_store::control::Control;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// Name of the file in the folder of the store.
pub const STATUS_FILE: &str = "archive.json";
/// Name of the file in which a job keeps what it measured of itself, beside its store and in its folder of the archive.
pub const MEASURED_FILE: &str = "metrics.json";
/// A larger one is none of ours.
const MEASURED_BYTES_MAX: u64 = 1 << 20;
/// Least time between two writings.
const EVERY: Duration = Duration::from_millis(500);

/// Brings what a job measured of itself from beside its store to its folder in the archive, where it outlives its
/// nodes. Where there is none, or none of a fitting size, the former one stays.
pub fn keep_measured(store: &Path, folder: &Path) -> Result<()> {
    let file = store.join(MEASURED_FILE);
    let fits = |length: u64| (1..=MEASURED_BYTES_MAX).contains(&length);
    match std::fs::metadata(&file) {
        Ok(about) if fits(about.len()) => {}
        _ => return Ok(()),
    }
    let wrong = |error| Error::io(format!("bringing {} to the archive", file.display()), error);
    let text = std::fs::read_to_string(&file).map_err(wrong)?;
    open::replace(&folder.join(MEASURED_FILE), &text).map_err(wrong)
}

/// A checkpoint as JSON has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StatusCheckpoint {
    /// Its number.
    pub number: u64,
    /// Which start took it.
    pub incarnation: u64,
}

impl From<CheckpointId> for StatusCheckpoint {
    fn from(id: CheckpointId) -> Self {
        Self {
            number: id.number,
            incarnation: id.incarnation,
        }
    }
}

/// One aggregator.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AggregatorStatus {
    /// Who it is.
    pub name: String,
    /// `idle`, `draining`, `done` or `failed`.
    pub state: String,
    /// Its file.
    pub file: String,
    /// Bytes of all variables.
    pub bytes_total: u64,
    /// Bytes of blocks that have to be drained.
    pub bytes_changed: u64,
    /// Of these, equal to others.
    pub bytes_equal: u64,
    /// Of these, stored by an interrupted drain.
    pub bytes_resumed: u64,
    /// Bytes that were compared before they were taken for either.
    pub bytes_compared: u64,
    /// Of these, encoded.
    pub bytes_encoded: u64,
    /// Bytes stored for them.
    pub bytes_stored: u64,
    /// Times that its file had to grow.
    pub growths: u64,
    /// Its error.
    pub error: String,
}

impl AggregatorStatus {
    pub(super) fn of(name: &str, progress: &DrainProgress) -> Self {
        let state = match progress.state {
            super::point::AT_WORK => "draining",
            super::point::DONE => "done",
            super::point::FAILED => "failed",
            _ => "idle",
        };
        Self {
            name: name.to_owned(),
            state: state.to_owned(),
            file: progress.file.clone(),
            bytes_total: progress.bytes_total,
            bytes_changed: progress.bytes_changed,
            bytes_equal: progress.bytes_equal,
            bytes_resumed: progress.bytes_resumed,
            bytes_compared: progress.bytes_compared,
            bytes_encoded: progress.bytes_encoded,
            bytes_stored: progress.bytes_stored,
            growths: progress.growths,
            error: progress.text.clone(),
        }
    }
}

/// Drains that are kept in the list.
const HISTORY_MAX: usize = 64;

/// A drain that is over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PastDrain {
    /// What was drained.
    pub checkpoint: StatusCheckpoint,
    /// When it began, nanoseconds since 1970.
    pub began_unix_ns: u64,
    /// When it ended.
    pub ended_unix_ns: u64,
    /// Bytes that it stored; 0 where it failed.
    pub stored: u64,
    /// Whether the checkpoint is not in the archive by it.
    pub failed: bool,
}

/// How draining stands.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ArchiveStatus {
    /// Version of this file.
    pub version: u32,
    /// The job's folder in the archive.
    pub folder: PathBuf,
    /// When this was written, nanoseconds since 1970.
    pub written_unix_ns: u64,
    /// Newest checkpoint in the archive.
    #[serde(skip)]
    pub(super) archived: Option<CheckpointId>,
    /// The same.
    pub newest: Option<StatusCheckpoint>,
    /// The one that is being drained.
    pub draining: Option<StatusCheckpoint>,
    /// A newer one that waits.
    #[serde(skip)]
    pub(super) waiting: Option<CheckpointId>,
    /// The same.
    pub next: Option<StatusCheckpoint>,
    /// Every so many checkpoints one is due; 0 where the planner picks them.
    pub every: u64,
    /// The newest that is due though no rule says so: picked by the planner, or waited for.
    pub wanted: Option<StatusCheckpoint>,
    /// Since when the drain runs, in seconds.
    pub draining_seconds: f64,
    /// How long the last drain took, in seconds.
    pub last_seconds: f64,
    /// Bytes of changed blocks of the last drain.
    pub last_bytes_changed: u64,
    /// Bytes stored by it.
    pub last_bytes_stored: u64,
    /// Drains that ended well in this start.
    pub drains: u64,
    /// Drains that failed in this start.
    pub failures: u64,
    /// The last drains, oldest first, of earlier starts too.
    pub history: Vec<PastDrain>,
    /// The last error, while it lasts.
    pub error: Option<String>,
    /// Most bytes a second that all aggregators write.
    pub rate_bytes: Option<u64>,
    /// The aggregators.
    pub aggregators: Vec<AggregatorStatus>,
    #[serde(skip)]
    since: Option<Stopwatch>,
    #[serde(skip)]
    began_unix_ns: u64,
}

/// What a later start takes over.
#[derive(Deserialize)]
struct Former {
    #[serde(default)]
    history: Vec<PastDrain>,
}

/// The drains that a former start wrote down.
fn history_of(path: &Path) -> Vec<PastDrain> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let former = serde_json::from_slice::<Former>(&bytes);
    former.map(|former| former.history).unwrap_or_default()
}

impl ArchiveStatus {
    pub(super) fn of(plan: &ArchivePlan) -> Self {
        Self {
            version: 1,
            folder: plan.folder.clone(),
            every: plan.every.max(1),
            rate_bytes: plan.settings.rate_bytes,
            history: plan.status.as_deref().map(history_of).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// Which checkpoints are due now.
    pub(super) fn follow(&mut self, plan: &ArchivePlan, control: &Control) {
        let planned = control.archive_planned();
        self.every = if planned { 0 } else { plan.every.max(1) };
        let wanted = control.archive_wanted();
        self.wanted = (wanted.number > 0).then(|| wanted.into());
    }

    pub(super) fn begin(&mut self, id: CheckpointId, aggregators: usize) {
        self.draining = Some(id.into());
        self.since = Some(Stopwatch::start());
        self.began_unix_ns = unix_ns();
        self.aggregators = vec![AggregatorStatus::default(); aggregators];
    }

    pub(super) fn show(&mut self, at: usize, status: AggregatorStatus) {
        if let Some(place) = self.aggregators.get_mut(at) {
            *place = status;
        }
    }

    pub(super) fn end(&mut self, id: CheckpointId, seconds: f64, parts: &[DrainProgress]) {
        let stored = parts.iter().map(|part| part.bytes_stored).sum();
        self.past(stored, false);
        self.archived = Some(id);
        self.draining = None;
        self.since = None;
        self.last_seconds = seconds;
        self.last_bytes_changed = parts.iter().map(|part| part.bytes_changed).sum();
        self.last_bytes_stored = parts.iter().map(|part| part.bytes_stored).sum();
        self.drains += 1;
        self.error = None;
    }

    /// The drain under way is over.
    fn past(&mut self, stored: u64, failed: bool) {
        let Some(checkpoint) = self.draining else {
            return;
        };
        if self.history.len() >= HISTORY_MAX {
            self.history.remove(0);
        }
        self.history.push(PastDrain {
            checkpoint,
            began_unix_ns: self.began_unix_ns,
            ended_unix_ns: unix_ns(),
            stored,
            failed,
        });
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.past(0, true);
        self.draining = None;
        self.since = None;
        self.failures += 1;
        self.error = Some(error.to_string());
    }
}

/// Where the status is written.
#[derive(Debug)]
pub(super) struct StatusFile {
    path: Option<PathBuf>,
    last: Mutex<Option<Stopwatch>>,
}

impl StatusFile {
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self {
            path,
            last: Mutex::default(),
        }
    }

    pub(super) fn write_when_due(&self, status: &ArchiveStatus) {
        let due = super::lock(&self.last)
            .as_ref()
            .is_none_or(|last| last.elapsed() >= EVERY);
        if due {
            self.write(status);
        }
    }

    /// Writes it; nobody depends on it, so that a failure is only logged.
    pub(super) fn write(&self, status: &ArchiveStatus) {
        let Some(path) = &self.path else { return };
        *super::lock(&self.last) = Some(Stopwatch::start());
        let shown = ArchiveStatus {
            written_unix_ns: unix_ns(),
            newest: status.archived.map(Into::into),
            next: status.waiting.map(Into::into),
            draining_seconds: status.since.as_ref().map_or(0.0, Stopwatch::seconds),
            ..status.clone()
        };
        let text = serde_json::to_string_pretty(&shown).unwrap_or_default();
        if let Err(error) = open::replace(path, &text) {
            tracing::debug!("{}: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/metrics.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (_, section) = page.split_once("## Draining").unwrap();
        let section = section.split("\n## ").next().unwrap();
        let status = ArchiveStatus {
            aggregators: vec![AggregatorStatus::default()],
            history: vec![PastDrain::default()],
            ..ArchiveStatus::default()
        };
        let shown = serde_json::to_value(status).unwrap();
        let all = shown.as_object().unwrap().keys();
        let all = all.chain(shown["history"][0].as_object().unwrap().keys());
        for field in all.chain(shown["aggregators"][0].as_object().unwrap().keys()) {
            assert!(section.contains(&format!("`{field}`")), "{field}");
        }
    }
}
