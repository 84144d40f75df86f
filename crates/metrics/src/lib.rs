// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a job measures of itself, kept over its starts in `metrics.json` beside its store.
//! In from: `session`. Out to: the planner and people. Schema: docs/format/metrics.md.
//! Invariants: written to a new file and renamed, at most once an interval, so that no checkpoint
//! pays for it; a file that cannot be read is started anew.

use backstay_base::clock::Stopwatch;
use backstay_base::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of the schema.
pub const VERSION: u32 = 1;
/// Values kept of each quantity: the newest so many.
const KEPT: usize = 256;

/// The newest values of one measured quantity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// How often it was measured, over all starts.
    pub count: u64,
    /// Sum of all values.
    pub sum: f64,
    /// Least of the newest values.
    pub min: f64,
    /// A tenth of the newest values is not above this.
    pub p10: f64,
    /// Half of the newest values is not above this.
    pub p50: f64,
    /// Nine tenths of the newest values are not above this.
    pub p90: f64,
    /// Greatest of the newest values.
    pub max: f64,
    /// The newest values, oldest first.
    pub newest: Vec<f64>,
}

impl Measured {
    /// Whether nothing was measured.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes a value.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        if self.newest.len() == KEPT {
            self.newest.remove(0);
        }
        self.newest.push(value);
        let mut sorted = self.newest.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |tenth: usize| sorted[(sorted.len() * tenth).div_ceil(10).max(1) - 1];
        (self.min, self.p10, self.p50, self.p90, self.max) = (at(0), at(1), at(5), at(9), at(10));
    }
}

/// Costs of a checkpoint, in seconds and bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointCosts {
    /// Time the application was blocked.
    pub blocking_seconds: Measured,
    /// Time to find, copy and hash changed blocks.
    pub capture_seconds: Measured,
    /// Time to make the revision durable on the node.
    pub commit_seconds: Measured,
    /// Bytes of all variables of the node's ranks.
    pub bytes_total: Measured,
    /// Bytes of the blocks written by the node's ranks.
    pub bytes_changed: Measured,
}

/// How the changes of a variable are found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VariableTracking {
    /// How: `full`, `hash`, `pages` or `marked`.
    pub now: String,
    /// How the program or the settings want it.
    pub asked: String,
    /// Why it is another way, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What happened to a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A start opened its session.
    Start,
    /// It went on from a checkpoint, which took so long.
    Restore,
    /// A checkpoint was committed by all ranks; the program was blocked so long.
    Checkpoint,
    /// One failed.
    CheckpointFailed,
    /// It was found that a checkpoint is protected.
    Protected,
    /// The start closed cleanly.
    Close,
    /// It said that the program is done.
    Finish,
    /// Of a later version.
    #[default]
    #[serde(other)]
    Other,
}

/// Something that happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// When it was over, in nanoseconds since 1970.
    pub at_unix_ns: u64,
    /// What it was.
    pub what: What,
    /// The start that it happened to.
    pub incarnation: u64,
    /// The number of a checkpoint; 0 where it is of none.
    pub number: u64,
    /// How long it took, where that is known.
    pub seconds: f64,
}

/// What a job measured of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Version of the schema.
    pub version: u32,
    /// The job.
    pub job: String,
    /// The node that wrote this file.
    pub node: String,
    /// The newest start.
    pub incarnation: u64,
    /// Nodes of the job.
    pub nodes: u32,
    /// Their names, where this node knows them: that of rank 0 does, in a job whose nodes have agents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_names: Vec<String>,
    /// Ranks of the job.
    pub ranks: u32,
    /// By what the node's leader reads of other nodes, where it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Bytes that it read of them over TCP in this start.
    #[serde(skip_serializing_if = "is_zero")]
    pub read_bytes_tcp: u64,
    /// The same over libfabric.
    #[serde(skip_serializing_if = "is_zero")]
    pub read_bytes_libfabric: u64,
    /// Seconds the job has run, over all starts; under `backstay run` with the time from a death to the next start.
    pub exposure_seconds: f64,
    /// Starts that ended without saying goodbye.
    pub failures: u64,
    /// Starts that went on from a checkpoint.
    pub restarts: u64,
    /// Checkpoints committed by all ranks, over all starts.
    pub checkpoints: u64,
    /// Checkpoints that failed, over all starts.
    pub checkpoints_failed: u64,
    /// Checkpoints that waited for an earlier one to be protected, over all starts.
    pub protection_waits: u64,
    /// How long they waited, in seconds.
    pub protection_wait_seconds: f64,
    /// Whether the newest start said goodbye.
    pub closed: bool,
    /// Whether it said that the program is done.
    #[serde(default)]
    pub finished: bool,
    /// Changed bytes over all bytes, of the newest checkpoints.
    pub changed_share: f64,
    /// The same for each rank of this node, of the newest checkpoint.
    pub changed_share_by_rank: BTreeMap<u32, f64>,
    /// How the changes of each variable of the node's leader are found.
    pub tracking: BTreeMap<String, VariableTracking>,
    /// What a checkpoint costs.
    pub checkpoint: CheckpointCosts,
    /// Time until a checkpoint was protected, in the background.
    #[serde(skip_serializing_if = "Measured::is_empty")]
    pub protect_seconds: Measured,
    /// Time of a restore.
    pub restore_seconds: Measured,
    /// The same by the level that it took: 1 the node, 2 protected, 3 the archive.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub restore_seconds_by_level: BTreeMap<u8, Measured>,
    /// Time from when `backstay run` saw that a start was dead until the next one began to restore.
    #[serde(skip_serializing_if = "Measured::is_empty")]
    pub relaunch_seconds: Measured,
    /// Bytes of the store.
    pub store_bytes: u64,
    /// What happened last, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    /// What the schedule learnt, on the node of rank 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<backstay_model::schedule::Memory>,
    /// The levels that it learnt of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schedule_levels: Vec<u8>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Keeps the metrics of a node and writes them now and then.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    interval: Duration,
    start: Stopwatch,
    exposure_before: f64,
    written: Option<Stopwatch>,
    /// The start before this one ended without saying goodbye.
    pub failed_before: bool,
    /// What was measured.
    pub metrics: Metrics,
}

impl MetricsFile {
    /// Continues the file in `directory`; a start that ended without goodbye counts as a failure.
    pub fn open(directory: &Path, interval: Duration) -> Self {
        Self::open_or(directory, interval, None)
    }

    /// The same; where there is none it goes on from that at `elsewhere`.
    pub fn open_or(directory: &Path, interval: Duration, elsewhere: Option<&Path>) -> Self {
        let path = directory.join("metrics.json");
        let earlier = std::fs::read(&path).ok();
        let earlier = earlier.or_else(|| std::fs::read(elsewhere?).ok());
        let earlier = earlier.and_then(|bytes| serde_json::from_slice::<Metrics>(&bytes).ok());
        let mut metrics = earlier
            .filter(|metrics| metrics.version == VERSION)
            .unwrap_or_default();
        let failed_before = metrics.incarnation > 0 && !metrics.closed;
        metrics.failures += u64::from(failed_before);
        metrics.version = VERSION;
        metrics.closed = false;
        metrics.finished = false;
        let exposure_before = metrics.exposure_seconds;
        Self {
            path,
            interval,
            start: Stopwatch::start(),
            exposure_before,
            written: None,
            failed_before,
            metrics,
        }
    }

    /// A start that `backstay run` began after a death: what passed since anything was noted counts as time of the
    /// job, and a failure may come in it. How long that was, in seconds.
    pub fn count_unseen(&mut self) -> f64 {
        let now = backstay_base::clock::unix_ns();
        let last = self.metrics.events.last().map_or(now, |e| e.at_unix_ns);
        let unseen = Duration::from_nanos(now.saturating_sub(last)).as_secs_f64();
        self.exposure_before += unseen;
        unseen
    }

    /// Whether the last writing is long enough ago.
    pub fn is_due(&self) -> bool {
        let written = self.written.as_ref();
        written.is_none_or(|written| written.elapsed() >= self.interval)
    }

    /// Something happened just now.
    pub fn note(&mut self, what: What, number: u64, seconds: f64) {
        let events = &mut self.metrics.events;
        if events.len() >= KEPT {
            events.remove(0);
        }
        events.push(Event {
            at_unix_ns: backstay_base::clock::unix_ns(),
            what,
            incarnation: self.metrics.incarnation,
            number,
            seconds,
        });
    }

    /// Notes that checkpoint `number` is protected, once: whether that is new.
    pub fn note_protected(&mut self, number: u64) -> bool {
        let mut events = self.metrics.events.iter().rev();
        let known = events.find(|event| event.what == What::Protected);
        let is_new = known.is_none_or(|event| {
            (event.incarnation, event.number) < (self.metrics.incarnation, number)
        });
        let is_new = number > 0 && is_new;
        if is_new {
            self.note(What::Protected, number, 0.0);
        }
        is_new
    }

    /// Writes the file if the last writing is long enough ago.
    pub fn write_when_due(&mut self) -> Result<()> {
        if self.is_due() { self.write() } else { Ok(()) }
    }

    /// Writes the file.
    pub fn write(&mut self) -> Result<()> {
        self.metrics.exposure_seconds = self.exposure_before + self.start.seconds();
        self.written = Some(Stopwatch::start());
        let text = serde_json::to_string_pretty(&self.metrics)
            .map_err(|error| Error::caused(backstay_base::ErrorKind::Internal, "metrics", error))?;
        backstay_base::io::open::replace(&self.path, &(text + "\n"))
            .map_err(|error| Error::io(format!("writing {}", self.path.display()), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn page() -> String {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/metrics.md");
        std::fs::read_to_string(path).unwrap()
    }

    fn keys(value: &Value, found: &mut Vec<String>) {
        for (key, inner) in value.as_object().into_iter().flatten() {
            // The keys of shares by rank are ranks.
            if key.parse::<u32>().is_err() {
                found.push(key.clone());
            }
            keys(inner, found);
        }
    }

    #[test]
    fn the_example_of_the_page_is_what_is_written() {
        let page = page();
        let example = page.split("```json").nth(1).unwrap();
        let example = example.split("```").next().unwrap();
        let metrics: Metrics = serde_json::from_str(example).unwrap();
        assert_eq!(metrics.version, VERSION);
        let shown: Value = serde_json::from_str(example).unwrap();
        assert_eq!(serde_json::to_value(&metrics).unwrap(), shown);
    }

    #[test]
    fn the_page_explains_every_key() {
        let (page, mut found) = (page(), Vec::new());
        let metrics = Metrics {
            node_names: vec![String::new()],
            ..Metrics::default()
        };
        keys(&serde_json::to_value(metrics).unwrap(), &mut found);
        keys(&serde_json::to_value(Event::default()).unwrap(), &mut found);
        for key in found {
            assert!(page.contains(&format!("| `{key}`")), "{key}");
        }
    }

    #[test]
    fn shares_of_few_values_are_not_above_theirs() {
        let mut measured = Measured::default();
        for value in [3.0, 1.0, 2.0] {
            measured.add(value);
        }
        let Measured {
            min,
            p10,
            p50,
            p90,
            max,
            ..
        } = measured;
        assert_eq!(vec![min, p10, p50, p90, max], vec![1.0, 1.0, 2.0, 3.0, 3.0]);
        (4..=10).for_each(|value| measured.add(f64::from(value)));
        assert_eq!(vec![measured.p10, measured.p90], vec![1.0, 9.0]);
    }

    #[test]
    fn the_newest_events_are_kept_and_later_ones_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::open(folder.path(), Duration::ZERO);
        file.metrics.incarnation = 1;
        for number in 1..=300 {
            file.note(What::Checkpoint, number, 0.5);
        }
        file.note_protected(299);
        file.note_protected(299);
        file.write().unwrap();
        let again = MetricsFile::open(folder.path(), Duration::ZERO).metrics;
        let events = &again.events;
        assert_eq!((events.len(), events[0].number), (KEPT, 46));
        let last = events.last().unwrap();
        assert_eq!((last.what, last.number), (What::Protected, 299));
        let later: Event = serde_json::from_str(r#"{"what": "moved", "more": 1}"#).unwrap();
        assert_eq!(later.what, What::Other);
    }

    #[test]
    fn on_a_new_node_it_goes_on_from_what_was_kept_elsewhere() {
        let (lost, fresh) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut first = MetricsFile::open(lost.path(), Duration::ZERO);
        first.metrics.incarnation = 3;
        first.metrics.restore_seconds.add(0.5);
        first.write().unwrap();
        let kept = lost.path().join("metrics.json");
        let mut second = MetricsFile::open_or(fresh.path(), Duration::ZERO, Some(&kept));
        assert_eq!((second.metrics.failures, second.failed_before), (1, true));
        assert_eq!(second.metrics.restore_seconds.newest, [0.5]);
        second.metrics.incarnation = 4;
        second.metrics.closed = true;
        second.write().unwrap();
        // Its own is newer from then on.
        let third = MetricsFile::open_or(fresh.path(), Duration::ZERO, Some(&kept));
        assert_eq!((third.metrics.incarnation, third.metrics.failures), (4, 1));
        assert!(!third.failed_before);
    }

    #[test]
    fn a_start_without_goodbye_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let open = || MetricsFile::open(folder.path(), Duration::ZERO);
        let mut first = open();
        first.metrics.incarnation = 1;
        first.metrics.checkpoint.commit_seconds.add(0.5);
        first.write().unwrap();
        let mut second = open();
        assert_eq!(
            (second.metrics.failures, second.metrics.incarnation),
            (1, 1)
        );
        assert_eq!(second.metrics.checkpoint.commit_seconds.newest, [0.5]);
        second.metrics.closed = true;
        second.write().unwrap();
        assert_eq!(open().metrics.failures, 1);
    }
}
