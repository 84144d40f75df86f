// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `backstay plan` and `backstay simulate` are told about a job.
//!
//! Purpose: defaults, then a TOML file, then a run's metrics, then flags; each value knows whether
//! it was given.
//! In from: the command line, files.
//! Out to: [`backstay_model::human::Inputs`] and the problem to solve.
//! Invariants: unknown keys of the TOML file are errors; keys missing from a run's metrics are not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use backstay_model::Mode;
use backstay_model::ModelError;
use backstay_model::advice::{Spread, Uncertainty};
use backstay_model::human::Inputs;
use backstay_model::optimize::Problem;
use serde_json::Value;

use backstay_archive::drain::{ArchiveStatus, PastDrain, STATUS_FILE};
use backstay_base::units;

/// The numbers of a job, all optional.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct JobArgs {
    /// TOML file with any of the values below, by the names of the flags
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Directory of a run whose metrics.json gives failures, exposure, costs, times of restarts and changed
    /// fraction; archive.json beside it how long drains take
    #[arg(long, value_name = "DIR")]
    from_run: Option<PathBuf>,
    /// Nodes of the job [default: 128]
    #[arg(long)]
    nodes: Option<f64>,
    /// Mean time between failures of one node, in hours, or as 30d, 5a [default: 20642]
    #[arg(long, value_parser = units::hours)]
    node_mtbf_hours: Option<f64>,
    /// Fractions of the node failures that need level 1, 2 and 3, with commas between [default: 0,0.927,0.073]
    #[arg(long, value_delimiter = ',')]
    failure_shares: Option<Vec<f64>>,
    /// Failures of the program itself, per day of the job [default: 0]
    #[arg(long)]
    process_failures_per_day: Option<f64>,
    /// State of one node, in GB, or as 512MiB, 2GiB [default: 32]
    #[arg(long, value_parser = units::gigabytes)]
    state_gb_per_node: Option<f64>,
    /// Rate at which a node writes into its own store, in GB/s, or as 500MB/s [default: 2]
    #[arg(long, value_parser = units::gigabytes_per_second)]
    local_write_gb_per_second: Option<f64>,
    /// Rate at which a node reads from its own store, in GB/s, or as 500MB/s [default: 2]
    #[arg(long, value_parser = units::gigabytes_per_second)]
    local_read_gb_per_second: Option<f64>,
    /// Rate at which a node encodes parity, in GB/s, or as 500MB/s [default: 0.4]
    #[arg(long, value_parser = units::gigabytes_per_second)]
    encode_gb_per_second: Option<f64>,
    /// Rate at which a node copies to its partner, in GB/s, or as 500MB/s [default: 1]
    #[arg(long, value_parser = units::gigabytes_per_second)]
    partner_gb_per_second: Option<f64>,
    /// How level 2 protects: xor or partner [default: xor]
    #[arg(long, value_parser = ["xor", "partner"])]
    protection: Option<String>,
    /// Rate of the file system for this job, all nodes together, in GB/s, or as 500MB/s [default: 6.7]
    #[arg(long, value_parser = units::gigabytes_per_second)]
    file_system_gb_per_second: Option<f64>,
    /// Rate at which a node hashes its state, in GB/s, or as 500MB/s [default: 11.7]
    #[arg(long, value_parser = units::gigabytes_per_second)]
    hash_gb_per_second: Option<f64>,
    /// Fraction of the state that changes between checkpoints [default: 1]
    #[arg(long)]
    changed_share: Option<f64>,
    /// Time in which 63 % of that fraction has changed, in seconds, or as 10min; 0 when at once [default: 0]
    #[arg(long, value_parser = units::seconds)]
    changed_time_seconds: Option<f64>,
    /// Size of the state over its compressed size in the archive [default: 1]
    #[arg(long)]
    compression_ratio: Option<f64>,
    /// Slowdown of the application while a transfer is in flight, as a fraction [default: 0.00184]
    #[arg(long)]
    slowdown_share: Option<f64>,
    /// Time until a failure is noticed, in seconds, or as 2min [default: 0]
    #[arg(long, value_parser = units::seconds)]
    notice_seconds: Option<f64>,
    /// Time to relaunch the job after a failure was noticed, in seconds, or as 2min [default: 0]
    #[arg(long, value_parser = units::seconds)]
    relaunch_seconds: Option<f64>,
    /// Useful length of the job, in hours, or as 7d [default: 168]
    #[arg(long, value_parser = units::hours)]
    job_hours: Option<f64>,
    /// Whether the archive is written while the application computes: true or false [default: true]
    #[arg(long)]
    background_archive: Option<bool>,
    /// Go on although a value looks like one in another unit
    #[arg(long)]
    accept_unusual: bool,
}

/// A job as it was told, checked.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) inputs: Inputs,
    /// Names of the values that were given and not defaulted.
    pub(crate) given: BTreeSet<String>,
    pub(crate) measured: Measured,
}

/// What a run's metrics say.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) exposure_seconds: Option<f64>,
    /// By level; a single number stands for failures of unknown level.
    pub(crate) failures: Option<Vec<u64>>,
    pub(crate) checkpoint: Option<Spread>,
    pub(crate) recovery: Option<Spread>,
    /// Mean time of a checkpoint, in seconds: its median is in the spread.
    pub(crate) checkpoint_mean: Option<f64>,
    /// Mean time of restores, in seconds, by the level that they took.
    pub(crate) restore_means: [Option<f64>; 3],
    /// Mean time until a checkpoint survives its node, in seconds.
    pub(crate) protect_mean: Option<f64>,
    /// Mean time of a drain, in seconds.
    pub(crate) drain_mean: Option<f64>,
}

/// A level's checkpoint is newer than the next one's by the time that this takes: that much more is computed again.
const PROTECTED: usize = 2;

impl JobArgs {
    /// Puts defaults, file, run and flags together and checks the result.
    pub(crate) fn resolve(&self) -> Result<Job, String> {
        let mut given = BTreeSet::new();
        let mut inputs = match &self.config {
            Some(path) => read_config(path, &mut given)?,
            None => Inputs::default(),
        };
        let mut measured = Measured::default();
        if let Some(directory) = &self.from_run {
            let path = directory.join("metrics.json");
            let text = read(&path)?;
            let metrics: Value =
                serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
            measured = Measured::from_metrics(&metrics, &mut inputs, &mut given)
                .map_err(|e| format!("{}: {e}", path.display()))?;
            measured.drain_mean = drain_mean(&directory.join(STATUS_FILE))?;
        }
        self.apply(&mut inputs, &mut given)?;
        inputs.validate().map_err(|e| e.to_string())?;
        if let Some(question) = inputs.suspicion().filter(|_| !self.accept_unusual) {
            return Err(format!(
                "{question} Give --accept-unusual to go on with it."
            ));
        }
        Ok(Job {
            inputs,
            given,
            measured,
        })
    }

    /// Puts the flags that were given over the rest.
    fn apply(&self, inputs: &mut Inputs, given: &mut BTreeSet<String>) -> Result<(), String> {
        let mut fields = serde_json::to_value(&*inputs).map_err(|e| e.to_string())?;
        for (name, number) in self.numbers() {
            let Some(number) = number else { continue };
            if !number.is_finite() {
                return Err(format!("{name} = {number}: allowed is a finite number"));
            }
            fields[name] = number.into();
            given.insert(name.to_owned());
        }
        if let Some(shares) = &self.failure_shares {
            fields["failure-shares"] = shares.clone().into();
            given.insert("failure-shares".to_owned());
        }
        if let Some(background) = self.background_archive {
            fields["background-archive"] = background.into();
            given.insert("background-archive".to_owned());
        }
        if let Some(word) = &self.protection {
            fields["protection"] = word.clone().into();
            given.insert("protection".to_owned());
        }
        *inputs = serde_json::from_value(fields).map_err(|e| e.to_string())?;
        Ok(())
    }

    fn numbers(&self) -> [(&'static str, Option<f64>); 17] {
        [
            ("nodes", self.nodes),
            ("node-mtbf-hours", self.node_mtbf_hours),
            ("process-failures-per-day", self.process_failures_per_day),
            ("state-gb-per-node", self.state_gb_per_node),
            ("local-write-gb-per-second", self.local_write_gb_per_second),
            ("local-read-gb-per-second", self.local_read_gb_per_second),
            ("encode-gb-per-second", self.encode_gb_per_second),
            ("partner-gb-per-second", self.partner_gb_per_second),
            ("file-system-gb-per-second", self.file_system_gb_per_second),
            ("hash-gb-per-second", self.hash_gb_per_second),
            ("changed-share", self.changed_share),
            ("changed-time-seconds", self.changed_time_seconds),
            ("compression-ratio", self.compression_ratio),
            ("slowdown-share", self.slowdown_share),
            ("notice-seconds", self.notice_seconds),
            ("relaunch-seconds", self.relaunch_seconds),
            ("job-hours", self.job_hours),
        ]
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn read_config(path: &Path, given: &mut BTreeSet<String>) -> Result<Inputs, String> {
    let text = read(path)?;
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let mut table: toml::Table = toml::from_str(&text).map_err(|e| named(&e))?;
    given.extend(table.keys().cloned());
    for (key, value) in &mut table {
        if let Some(number) = in_its_unit(key, value) {
            *value = number.map_err(|e| named(&format!("{key}: {e}")))?.into();
        }
    }
    let inputs: Result<Inputs, _> = table.try_into();
    inputs.map_err(|e| named(&plain_types(&e.to_string())))
}

/// A text with a unit, of a key that has one; the number is in the unit that the key names.
fn in_its_unit(key: &str, value: &toml::Value) -> Option<Result<f64, String>> {
    let text = value.as_str()?;
    let ends = |end| key.ends_with(end);
    match () {
        () if ends("-gb-per-second") => Some(units::gigabytes_per_second(text)),
        () if ends("-gb-per-node") => Some(units::gigabytes(text)),
        () if ends("-hours") => Some(units::hours(text)),
        () if ends("-seconds") => Some(units::seconds(text)),
        () => None,
    }
}

/// The message of the parser without the types of this program.
fn plain_types(message: &str) -> String {
    let words = [
        ("f64", "a number"),
        ("u64", "a whole number"),
        ("a boolean", "true or false"),
    ];
    let plain = words
        .iter()
        .fold(message.to_owned(), |text, (word, plain)| {
            text.replace(&format!("expected {word}"), &format!("expected {plain}"))
        });
    plain.trim_end().to_owned()
}

impl Measured {
    fn from_metrics(
        metrics: &Value,
        inputs: &mut Inputs,
        given: &mut BTreeSet<String>,
    ) -> Result<Self, String> {
        if !metrics.is_object() {
            return Err("expected an object".to_owned());
        }
        let number = |value: &Value, name: &str, high: f64| -> Result<Option<f64>, String> {
            if value.is_null() {
                return Ok(None);
            }
            let found = value.as_f64().filter(|n| (0.0..=high).contains(n));
            found
                .map(Some)
                .ok_or_else(|| format!("{name} = {value}: allowed is 0 to {high:e}"))
        };
        if let Some(nodes) = number(&metrics["nodes"], "nodes", 1e8)?.filter(|&n| n >= 1.0) {
            inputs.nodes = nodes;
            given.insert("nodes".to_owned());
        }
        let checkpoint = &metrics["checkpoint"];
        let median = |key: &str| {
            let value = &checkpoint[key];
            let value = if value.is_object() {
                &value["p50"]
            } else {
                value
            };
            number(value, &format!("checkpoint.{key}"), 1e18)
        };
        let total = median("bytes_total")?.filter(|&bytes| bytes > 0.0);
        if let Some(bytes) = total {
            inputs.state_gb_per_node = bytes / 1e9;
            given.insert("state-gb-per-node".to_owned());
        }
        let by_bytes = match (median("bytes_changed")?, total) {
            (Some(changed), Some(total)) => Some((changed / total).min(1.0)),
            _ => None,
        };
        // A checkpoint ends with its slowest rank, so the largest share decides where it is known.
        let mut share = number(&metrics["changed_share"], "changed_share", 1.0)?.or(by_bytes);
        if let Some(ranks) = metrics["changed_share_by_rank"].as_object() {
            for (rank, value) in ranks {
                let rank = number(value, &format!("changed_share_by_rank.{rank}"), 1.0)?;
                share = share.into_iter().chain(rank).reduce(f64::max);
            }
        }
        if let Some(share) = share {
            inputs.changed_share = share;
            given.insert("changed-share".to_owned());
        }
        if let Some(relaunch) = mean(&metrics["relaunch_seconds"], "relaunch_seconds")? {
            inputs.relaunch_seconds = relaunch;
            given.insert("relaunch-seconds".to_owned());
        }
        let by_level = |level: &str| {
            let value = &metrics["restore_seconds_by_level"][level];
            mean(value, &format!("restore_seconds_by_level.{level}"))
        };
        let restores = mean(&metrics["restore_seconds"], "restore_seconds")?;
        let blocking = &checkpoint["blocking_seconds"];
        Ok(Self {
            checkpoint_mean: mean(blocking, "checkpoint.blocking_seconds")?,
            restore_means: [by_level("1")?.or(restores), by_level("2")?, by_level("3")?],
            protect_mean: mean(&metrics["protect_seconds"], "protect_seconds")?,
            drain_mean: None,
            exposure_seconds: number(&metrics["exposure_seconds"], "exposure_seconds", 1e12)?,
            failures: failures(&metrics["failures"])?,
            checkpoint: spread(
                &checkpoint["blocking_seconds"],
                "checkpoint.blocking_seconds",
            )?,
            recovery: spread(&metrics["restore_seconds"], "restore_seconds")?,
        })
    }
}

/// The mean of all that was measured of a quantity: what it cost in all is what a plan has to pay. Without a sum,
/// the median.
fn mean(value: &Value, name: &str) -> Result<Option<f64>, String> {
    if value["count"] == 0 {
        return Ok(None);
    }
    let count = value["count"].as_f64().filter(|&count| count >= 1.0);
    let mean = match (value["sum"].as_f64(), count) {
        (Some(sum), Some(count)) => sum / count,
        _ => match value["p50"].as_f64() {
            Some(median) => median,
            None => return Ok(None),
        },
    };
    if (0.0..=1e12).contains(&mean) {
        return Ok(Some(mean));
    }
    Err(format!("{name}: a mean of {mean}: allowed is 0 to 1e12"))
}

/// The mean time of the drains that a run wrote down; none where it has no such file, or none ended well.
fn drain_mean(path: &Path) -> Result<Option<f64>, String> {
    if !path.exists() {
        return Ok(None);
    }
    let status: ArchiveStatus =
        serde_json::from_str(&read(path)?).map_err(|e| format!("{}: {e}", path.display()))?;
    let done = status.history.iter().filter(|drain| !drain.failed);
    let seconds = |drain: &PastDrain| {
        let took = drain.ended_unix_ns.saturating_sub(drain.began_unix_ns);
        Duration::from_nanos(took).as_secs_f64()
    };
    let (sum, count) = done.fold((0.0, 0.0), |(sum, count), drain| {
        (sum + seconds(drain), count + 1.0)
    });
    Ok((count > 0.0).then(|| sum / count))
}

/// Failures by level (a list), or of unknown level (a number).
fn failures(value: &Value) -> Result<Option<Vec<u64>>, String> {
    let bad = || format!("failures = {value}: expected a count or a list of up to three counts");
    match value {
        Value::Null => Ok(None),
        Value::Number(count) => Ok(Some(vec![count.as_u64().ok_or_else(bad)?])),
        Value::Array(counts) if counts.len() <= 3 => {
            let mut levels: Vec<u64> = counts
                .iter()
                .map(|c| c.as_u64().ok_or_else(bad))
                .collect::<Result<_, _>>()?;
            // A list that is shorter than the levels has seen no failures of the others.
            levels.resize(3, 0);
            Ok(Some(levels))
        }
        _ => Err(bad()),
    }
}

fn spread(value: &Value, name: &str) -> Result<Option<Spread>, String> {
    if value["count"] == 0 {
        return Ok(None);
    }
    let Some(p50) = value["p50"].as_f64() else {
        return Ok(None);
    };
    let p10 = value["p10"].as_f64().unwrap_or(p50);
    let p90 = value["p90"].as_f64().unwrap_or(p50);
    if !(0.0 <= p10 && p10 <= p50 && p50 <= p90 && p90 <= 1e12) {
        return Err(format!(
            "{name} = {value}: allowed is 0 <= p10 <= p50 <= p90 <= 1e12"
        ));
    }
    Ok(Some(Spread { p10, p50, p90 }))
}

impl Job {
    /// The problem of these inputs with what was measured in place of what was derived.
    pub(crate) fn problem_of(&self, inputs: &Inputs) -> Result<Problem, ModelError> {
        let mut problem = inputs.problem()?;
        let posterior = self.posterior(&problem, 1.0);
        if self.measured.exposure_seconds.is_some() {
            let means = posterior.rates.iter().map(|rate| rate.mean_per_second());
            problem.failures_per_second = means.collect();
        }
        if let Some(cost) = self.measured.checkpoint_mean {
            // Measured blocking times are those of differential checkpoints already; what a
            // what-if changes about the share still changes them in proportion.
            let drained = inputs.changed_share;
            let before = self.inputs.changed_share;
            let scale = if before > 0.0 { drained / before } else { 1.0 };
            problem.differential = None;
            let lower = problem.checkpoint_seconds.len() - 1;
            problem.checkpoint_seconds[..lower].fill(cost * scale);
            if let Mode::NonBlocking(transfer) = &mut problem.mode {
                transfer.top_checkpoint_seconds = cost * scale;
                transfer.latency_seconds *= drained;
            }
        }
        if let (Some(mean), Mode::NonBlocking(transfer)) =
            (self.measured.drain_mean, &mut problem.mode)
        {
            transfer.latency_seconds =
                mean * inputs.archive_seconds() / self.inputs.archive_seconds();
        }
        self.put_restores(inputs, &mut problem);
        Ok(problem)
    }

    /// The recoveries that were measured: from the failure until the program goes on. What was computed while the
    /// newest checkpoint was not protected yet is computed again after the loss of a node.
    fn put_restores(&self, inputs: &Inputs, problem: &mut Problem) {
        let restart = inputs.restart_seconds();
        let means = self.measured.restore_means.iter();
        for (seconds, mean) in problem.recovery_seconds.iter_mut().zip(means) {
            *seconds = mean.map_or(*seconds, |mean| restart + mean);
        }
        if let Some(seconds) = self.measured.protect_mean {
            problem.recovery_seconds[PROTECTED - 1] += seconds;
        }
    }

    /// What is known about the rates: the configured ones, worth `weight` failures, and the run's.
    pub(crate) fn posterior(&self, problem: &Problem, weight: f64) -> Uncertainty {
        let mut known = Uncertainty::of_rates(problem, weight);
        known.checkpoint = self.measured.checkpoint;
        known.recovery = self.measured.recovery;
        let Some(exposure) = self.measured.exposure_seconds else {
            return known;
        };
        let none = vec![0; known.rates.len()];
        let failures = self.measured.failures.as_ref().unwrap_or(&none);
        if let [count] = failures[..] {
            // Of unknown level: by the configured shares, rounded to whole failures.
            let total: f64 = problem.failures_per_second.iter().sum();
            let count = u32::try_from(count).map_or(f64::from(u32::MAX), f64::from);
            for (rate, configured) in known.rates.iter_mut().zip(&problem.failures_per_second) {
                rate.observe_part(count * configured / total.max(f64::MIN_POSITIVE), exposure);
            }
            return known;
        }
        for (rate, &count) in known.rates.iter_mut().zip(failures) {
            rate.observe(count, exposure);
        }
        known
    }
}
