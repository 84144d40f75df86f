// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a snapshot in the text format of Prometheus, version 0.0.4.
//! Invariants: one HELP and one TYPE before the samples of a name, names once; docs/format/metrics.md
//! lists them; what is not known has no sample.

use super::look::{DrainView, JobView, Snapshot};
use backstay_metrics::{Measured, Metrics};

/// The text under construction.
#[derive(Debug, Default)]
struct Text(String);

impl Text {
    /// Begins a metric, and writes its samples: suffix, labels, value.
    fn metric(&mut self, name: &str, kind: &str, help: &str, samples: &[Sample]) {
        if samples.is_empty() {
            return;
        }
        let head = [
            "# HELP ",
            name,
            " ",
            help,
            "\n# TYPE ",
            name,
            " ",
            kind,
            "\n",
        ];
        self.0.push_str(&head.concat());
        for Sample {
            suffix,
            labels,
            value,
        } in samples
        {
            let labels: Vec<String> = labels
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
                .collect();
            let labels = labels.join(",");
            let line = [name, suffix, "{", &*labels, "} ", &**value, "\n"];
            self.0.push_str(&line.concat());
        }
    }
}

#[derive(Debug)]
struct Sample {
    suffix: &'static str,
    labels: Vec<(&'static str, String)>,
    value: String,
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "numbers, at nearly every call"
)]
fn sample(labels: &[(&'static str, &str)], value: impl ToString) -> Sample {
    Sample {
        suffix: "",
        labels: labels
            .iter()
            .map(|&(name, value)| (name, value.to_owned()))
            .collect(),
        value: value.to_string(),
    }
}

/// All that is known, as Prometheus reads it.
pub(super) fn text(snapshot: &Snapshot) -> String {
    let mut text = Text::default();
    of_jobs(snapshot, &mut text);
    of_costs(snapshot, &mut text);
    of_drains(snapshot, &mut text);
    of_archives(snapshot, &mut text);
    text.0
}

fn of_jobs(snapshot: &Snapshot, text: &mut Text) {
    let jobs = || snapshot.jobs.iter();
    let each = |value: fn(&JobView) -> u64| -> Vec<Sample> {
        jobs()
            .map(|job| sample(&[("job", &job.job)], value(job)))
            .collect()
    };
    let running = each(|job| u64::from(job.running));
    text.metric(
        "backstay_job_running",
        "gauge",
        "Whether the job runs.",
        &running,
    );
    let start = each(|job| job.incarnation);
    text.metric(
        "backstay_job_incarnation",
        "gauge",
        "The newest start of the job.",
        &start,
    );
    let mut levels = Vec::new();
    for job in jobs() {
        let ids = &job.ids;
        let all = [
            ("node", ids.node),
            ("protected", ids.protected),
            ("archive", ids.archive),
        ];
        for (level, id) in all {
            let labels = [("job", &*job.job), ("level", level)];
            levels.extend(id.map(|id| sample(&labels, id.number)));
        }
    }
    let help = "Number of the newest checkpoint on a level.";
    text.metric("backstay_checkpoint_number", "gauge", help, &levels);
    let bytes = jobs().flat_map(|job| {
        let of = |store: &super::look::StoreStatus| {
            sample(&[("job", &job.job), ("node", &store.node)], store.bytes)
        };
        job.stores.iter().map(of).collect::<Vec<_>>()
    });
    let bytes: Vec<Sample> = bytes.collect();
    text.metric(
        "backstay_store_bytes",
        "gauge",
        "Size of the store of a node.",
        &bytes,
    );
}

/// What each node measured: job, node, metrics.
fn nodes(snapshot: &Snapshot) -> impl Iterator<Item = (&str, &str, &Metrics)> {
    snapshot.jobs.iter().flat_map(|job| {
        let stores = job.stores.iter();
        stores.filter_map(|store| Some((&*job.job, &*store.node, store.metrics.as_ref()?)))
    })
}

fn of_costs(snapshot: &Snapshot, text: &mut Text) {
    let nodes = || nodes(snapshot);
    let each = |value: fn(&Metrics) -> String| -> Vec<Sample> {
        nodes()
            .map(|(job, node, m)| sample(&[("job", job), ("node", node)], value(m)))
            .collect()
    };
    let mut outcomes = Vec::new();
    for (job, node, m) in nodes() {
        for (outcome, count) in [
            ("committed", m.checkpoints),
            ("failed", m.checkpoints_failed),
        ] {
            let labels = [("job", job), ("node", node), ("outcome", outcome)];
            outcomes.push(sample(&labels, count));
        }
    }
    let help = "Checkpoints over all starts of the job, as the node counts them.";
    text.metric("backstay_checkpoints_total", "counter", help, &outcomes);
    let samples = each(|m| m.failures.to_string());
    let help = "Starts that were not closed cleanly.";
    text.metric("backstay_failures_total", "counter", help, &samples);
    let samples = each(|m| m.restarts.to_string());
    let help = "Restarts from a checkpoint.";
    text.metric("backstay_restarts_total", "counter", help, &samples);
    let samples = each(|m| m.exposure_seconds.to_string());
    let help = "How long the job has run, over all starts.";
    text.metric("backstay_exposure_seconds_total", "counter", help, &samples);
    let samples = each(|m| m.protection_waits.to_string());
    let help = "Checkpoints that waited for an earlier one to be protected.";
    text.metric("backstay_protection_waits_total", "counter", help, &samples);
    let samples = each(|m| m.protection_wait_seconds.to_string());
    let help = "How long they waited.";
    text.metric(
        "backstay_protection_wait_seconds_total",
        "counter",
        help,
        &samples,
    );
    let samples = each(|m| m.changed_share.to_string());
    let help = "Changed bytes over all bytes, of the newest checkpoint.";
    text.metric("backstay_changed_ratio", "gauge", help, &samples);
    of_summaries(snapshot, text);
}

/// Which quantity of a node's metrics a summary is of.
type Quantity = fn(&Metrics) -> &Measured;

fn of_summaries(snapshot: &Snapshot, text: &mut Text) {
    let nodes = || nodes(snapshot);
    let summaries: [(&str, &str, Quantity); 6] = [
        (
            "backstay_checkpoint_blocking_seconds",
            "Time the application was blocked.",
            |m| &m.checkpoint.blocking_seconds,
        ),
        (
            "backstay_checkpoint_capture_seconds",
            "Time to find, copy and hash changed blocks.",
            |m| &m.checkpoint.capture_seconds,
        ),
        (
            "backstay_checkpoint_commit_seconds",
            "Time to commit a checkpoint.",
            |m| &m.checkpoint.commit_seconds,
        ),
        (
            "backstay_checkpoint_bytes",
            "Bytes of all variables.",
            |m| &m.checkpoint.bytes_total,
        ),
        (
            "backstay_checkpoint_changed_bytes",
            "Bytes of the blocks written anew.",
            |m| &m.checkpoint.bytes_changed,
        ),
        ("backstay_restore_seconds", "Time of a restore.", |m| {
            &m.restore_seconds
        }),
    ];
    for (name, help, of) in summaries {
        let samples = nodes().flat_map(|(job, node, m)| summary(job, node, of(m)));
        let samples: Vec<Sample> = samples.collect();
        text.metric(name, "summary", help, &samples);
    }
}

/// The quantiles are of the newest values, sum and count of all.
fn summary(job: &str, node: &str, measured: &Measured) -> Vec<Sample> {
    if measured.count == 0 {
        return Vec::new();
    }
    let labels = [("job", job), ("node", node)];
    let quantiles = [
        ("0.1", measured.p10),
        ("0.5", measured.p50),
        ("0.9", measured.p90),
    ];
    let mut samples: Vec<Sample> = quantiles
        .into_iter()
        .map(|(quantile, value)| sample(&[labels[0], labels[1], ("quantile", quantile)], value))
        .collect();
    let (sum, count) = (
        sample(&labels, measured.sum),
        sample(&labels, measured.count),
    );
    samples.push(Sample {
        suffix: "_sum",
        ..sum
    });
    samples.push(Sample {
        suffix: "_count",
        ..count
    });
    samples
}

fn of_drains(snapshot: &Snapshot, text: &mut Text) {
    let drains = || {
        snapshot
            .jobs
            .iter()
            .filter_map(|job| Some((job, job.archive.as_ref()?)))
    };
    let each = |value: fn(&DrainView) -> Option<String>| -> Vec<Sample> {
        let of = |(job, drain): (&JobView, &DrainView)| {
            value(drain).map(|value| sample(&[("job", &job.job)], value))
        };
        drains().filter_map(of).collect()
    };
    let samples = each(|d| Some(d.behind.to_string()));
    let help = "Due checkpoints that are not in the archive.";
    text.metric(
        "backstay_archive_behind_checkpoints",
        "gauge",
        help,
        &samples,
    );
    let mut outcomes = Vec::new();
    for (job, drain) in drains() {
        for (outcome, count) in [("archived", drain.drains), ("failed", drain.failures)] {
            outcomes.push(sample(&[("job", &job.job), ("outcome", outcome)], count));
        }
    }
    let help = "Drains of this start of the job.";
    text.metric("backstay_archive_drains_total", "counter", help, &outcomes);
    let samples = each(|d| Some(u64::from(d.draining.is_some()).to_string()));
    let help = "Whether a checkpoint is being drained.";
    text.metric("backstay_archive_draining", "gauge", help, &samples);
    let samples = each(|d| Some(u64::from(d.error.is_some()).to_string()));
    let help = "Whether the last drain failed.";
    text.metric("backstay_archive_failing", "gauge", help, &samples);
    let samples = each(|d| d.draining_seconds.map(|s| s.to_string()));
    let help = "Since when the drain that is under way runs.";
    text.metric("backstay_archive_draining_seconds", "gauge", help, &samples);
    let mut under_way = Vec::new();
    for (job, drain) in drains() {
        let stages = [
            ("changed", drain.bytes_changed),
            ("encoded", drain.bytes_encoded),
            ("stored", drain.bytes_stored),
        ];
        for (stage, bytes) in stages {
            let labels = [("job", &*job.job), ("stage", stage)];
            under_way.extend(bytes.map(|bytes| sample(&labels, bytes)));
        }
    }
    let help = "Bytes of the drain that is under way: to be drained, encoded, stored.";
    text.metric("backstay_archive_draining_bytes", "gauge", help, &under_way);
    of_last_drains(snapshot, text);
}

fn of_last_drains(snapshot: &Snapshot, text: &mut Text) {
    let each = |value: fn(&DrainView) -> Option<String>| -> Vec<Sample> {
        let of = |job: &JobView| {
            let value = value(job.archive.as_ref()?)?;
            Some(sample(&[("job", &job.job)], value))
        };
        snapshot.jobs.iter().filter_map(of).collect()
    };
    let samples = each(|d| d.last_seconds.map(|s| s.to_string()));
    let help = "How long the last drain took.";
    text.metric(
        "backstay_archive_last_drain_seconds",
        "gauge",
        help,
        &samples,
    );
    let samples = each(|d| d.last_bytes_changed.map(|bytes| bytes.to_string()));
    let help = "Bytes of changed blocks of the last drain.";
    text.metric(
        "backstay_archive_last_drain_changed_bytes",
        "gauge",
        help,
        &samples,
    );
    let samples = each(|d| d.last_bytes_stored.map(|bytes| bytes.to_string()));
    let help = "Bytes stored by the last drain.";
    text.metric(
        "backstay_archive_last_drain_stored_bytes",
        "gauge",
        help,
        &samples,
    );
    let samples = each(|d| d.rate_limit_bytes.map(|bytes| bytes.to_string()));
    let help = "Most bytes a second that drains write.";
    text.metric("backstay_archive_rate_limit_bytes", "gauge", help, &samples);
    let samples = each(|d| Some(d.age_seconds.to_string()));
    let help = "Age of what the job last said of its archive.";
    text.metric(
        "backstay_archive_status_age_seconds",
        "gauge",
        help,
        &samples,
    );
}

fn of_archives(snapshot: &Snapshot, text: &mut Text) {
    let archives = || snapshot.archives.iter();
    let samples: Vec<Sample> = archives()
        .filter_map(|a| {
            let labels = [("job", &*a.job), ("folder", &*a.folder)];
            Some(sample(&labels, a.newest_id?.number))
        })
        .collect();
    let help = "Number of the newest checkpoint that can be restored from the archive.";
    text.metric(
        "backstay_archive_checkpoint_number",
        "gauge",
        help,
        &samples,
    );
    let counts = |of: fn(&super::look::ArchiveView) -> u64| -> Vec<Sample> {
        archives()
            .map(|a| sample(&[("job", &a.job), ("folder", &a.folder)], of(a)))
            .collect()
    };
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let samples: Vec<Sample> = archives()
        .map(|a| {
            sample(
                &[("job", &a.job), ("folder", &a.folder)],
                count(a.checkpoints),
            )
        })
        .collect();
    text.metric(
        "backstay_archive_checkpoints",
        "gauge",
        "Checkpoints in the archive.",
        &samples,
    );
    let samples = counts(|a| a.bytes_stored);
    let help = "Bytes stored for the checkpoints in the archive.";
    text.metric("backstay_archive_stored_bytes", "gauge", help, &samples);
    let samples: Vec<Sample> = archives()
        .map(|a| {
            sample(
                &[("job", &a.job), ("folder", &a.folder)],
                count(a.servers.len()),
            )
        })
        .collect();
    let help = "Staging servers that say they are there.";
    text.metric("backstay_archive_servers", "gauge", help, &samples);
}
