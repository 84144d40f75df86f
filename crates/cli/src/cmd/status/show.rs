// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a snapshot in words.

use super::look::{ArchiveView, DrainView, JobView, Snapshot, StoreStatus};
use crate::output::{ago, counted, human_age, human_bytes, percent};
use crate::view::short;
use backstay::CheckpointId;
use backstay_inspect::share;
use backstay_metrics::Metrics;
use std::collections::BTreeMap;

/// The lines to show.
pub(super) fn lines(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for job in &snapshot.jobs {
        of_job(job, &mut lines);
    }
    for archive in &snapshot.archives {
        of_archive(archive, &mut lines);
    }
    if lines.is_empty() {
        lines.push("no store and no archive".to_owned());
    }
    lines
}

pub(super) fn named(id: Option<CheckpointId>) -> String {
    id.map_or_else(|| "none".to_owned(), short)
}

/// A rate in bytes a second.
pub(super) fn rate(bytes: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate is not negative, and three digits are shown"
    )]
    let bytes = bytes.max(0.0) as u64;
    format!("{}/s", human_bytes(bytes))
}

fn of_job(job: &JobView, lines: &mut Vec<String>) {
    let nodes = job.stores.iter().filter_map(|store| store.metrics.as_ref());
    let (nodes, ranks) = nodes.fold((0, 0), |(n, r), m| (n.max(m.nodes), r.max(m.ranks)));
    lines.push(format!(
        "job {}: {}, start {}; {} here{}",
        job.job,
        job.state(),
        job.incarnation,
        counted(job.stores.len(), "store"),
        if nodes > 0 {
            format!(" of {}, {}", counted(nodes, "node"), counted(ranks, "rank"))
        } else {
            String::new()
        }
    ));
    let when = job.committed_unix_ns.map(|when| format!(", {}", ago(when)));
    lines.push(format!(
        "  node       newest checkpoint {}{}",
        named(job.ids.node),
        when.unwrap_or_default()
    ));
    let measured = job.stores.iter().find(|store| store.metrics.is_some());
    if let Some((store, metrics)) = measured.and_then(|s| Some((s, s.metrics.as_ref()?))) {
        of_costs(store, metrics, lines);
        of_tracking(metrics, lines);
    }
    if job.ids.protected.is_some() || job.ids.encoding.is_some() {
        let encoding = job
            .ids
            .encoding
            .map(|id| format!("; {} is being encoded", short(id)));
        lines.push(format!(
            "  protected  newest checkpoint {}{}",
            named(job.ids.protected),
            encoding.unwrap_or_default()
        ));
    }
    match &job.archive {
        Some(drain) => of_drain(job, drain, lines),
        None => lines.push("  archive    none is configured".to_owned()),
    }
}

/// What checkpoints have cost, as of when that was written: newer ones are not counted yet.
fn of_costs(store: &StoreStatus, metrics: &Metrics, lines: &mut Vec<String>) {
    if metrics.checkpoint.blocking_seconds.count == 0 {
        return;
    }
    let age = store
        .measured_unix_ns
        .map(|when| format!("measured {}: ", ago(when)));
    lines.push(format!(
        "             {}{}, {} failed; median blocking time {}; {} of the data change",
        age.unwrap_or_default(),
        counted(metrics.checkpoints, "checkpoint"),
        metrics.checkpoints_failed,
        brief(metrics.checkpoint.blocking_seconds.p50),
        percent(metrics.changed_share)
    ));
}

/// A short time, in a unit that shows some digits of it.
pub(super) fn brief(seconds: f64) -> String {
    match seconds {
        small if small < 1e-3 => format!("{:.0} us", small * 1e6),
        small if small < 1.0 => format!("{:.0} ms", small * 1e3),
        seconds => format!("{seconds:.1} s"),
    }
}

/// How many variables are tracked in which way, and those that are not as asked.
fn of_tracking(metrics: &Metrics, lines: &mut Vec<String>) {
    const SHOWN: usize = 8;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for tracking in metrics.tracking.values() {
        *counts.entry(&*tracking.now).or_default() += 1;
    }
    if counts.is_empty() {
        return;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(how, n)| format!("{n} by {how}"))
        .collect();
    lines.push(format!(
        "             variables tracked: {}",
        counts.join(", ")
    ));
    let other = metrics.tracking.iter();
    let other: Vec<_> = other
        .filter(|(_, tracking)| tracking.now != tracking.asked)
        .collect();
    for (name, tracking) in other.iter().take(SHOWN) {
        lines.push(format!(
            "               {name}: {}, not {}: {}",
            tracking.now,
            tracking.asked,
            tracking.why.as_deref().unwrap_or("not said")
        ));
    }
    if other.len() > SHOWN {
        lines.push(format!("               and {} more", other.len() - SHOWN));
    }
}

fn of_drain(job: &JobView, drain: &DrainView, lines: &mut Vec<String>) {
    let queued = job.ids.waiting.map(|id| format!("; {} waits", short(id)));
    lines.push(format!(
        "  archive    newest checkpoint {}{}, in {}",
        named(job.ids.archive),
        queued.unwrap_or_default(),
        drain.folder
    ));
    if let Some(id) = job.ids.draining {
        let (done, all) = (
            drain.bytes_encoded.unwrap_or(0),
            drain.bytes_changed.unwrap_or(0),
        );
        lines.push(format!(
            "             draining {} for {}: {} of {} ({}){}",
            short(id),
            human_age(drain.draining_seconds.unwrap_or(0.0)),
            human_bytes(done),
            human_bytes(all),
            percent(share(done, all)),
            drain
                .bytes_per_second
                .map_or_else(String::new, |r| format!(", {}", rate(r)))
        ));
        for aggregator in drain.aggregators.iter().filter(|a| !a.name.is_empty()) {
            lines.push(format!(
                "               {} {}: {} of {}",
                aggregator.name,
                aggregator.state,
                human_bytes(aggregator.bytes_encoded),
                human_bytes(aggregator.bytes_changed)
            ));
        }
    }
    if let Some(last) = last_drain(drain) {
        lines.push(format!("             the last drain took {last}"));
    }
    of_rules(job, drain, lines);
}

/// How long the last drain took, and for how much.
pub(super) fn last_drain(drain: &DrainView) -> Option<String> {
    let ratio = drain
        .last_ratio
        .map_or_else(String::new, |r| format!(", ratio {r:.2}"));
    Some(format!(
        "{:.1} s: {} changed, {} stored{ratio}",
        drain.last_seconds?,
        human_bytes(drain.last_bytes_changed?),
        human_bytes(drain.last_bytes_stored?)
    ))
}

/// What drains, how fast it may, and what does not.
fn of_rules(job: &JobView, drain: &DrainView, lines: &mut Vec<String>) {
    if let Some(limit) = drain.rate_limit_bytes {
        lines.push(format!("             limited to {}/s", human_bytes(limit)));
    }
    match drain.every {
        None => lines.push("             the planner picks what drains".to_owned()),
        Some(1) => {}
        Some(every) => lines.push(format!(
            "             one of {every} checkpoints is drained"
        )),
    }
    if drain.behind > 0 {
        let plural = if drain.behind == 1 {
            "checkpoint is"
        } else {
            "checkpoints are"
        };
        let why = drain.why.clone().unwrap_or_default();
        lines.push(format!(
            "             {} due {plural} not there yet: {why}",
            drain.behind
        ));
    } else if let Some(error) = drain.error.as_ref().filter(|_| job.running) {
        lines.push(format!("             the last drain failed: {error}"));
    }
}

fn of_archive(archive: &ArchiveView, lines: &mut Vec<String>) {
    let when = archive.archived.as_ref().map(|when| {
        format!(
            ", archived {when} ({})",
            ago(archive.archived_unix_ns.unwrap_or(0))
        )
    });
    lines.push(format!(
        "archive of job {}, start {}: {}",
        archive.job, archive.incarnation, archive.folder
    ));
    lines.push(format!(
        "  newest complete checkpoint {}{}",
        named(archive.newest_id),
        when.unwrap_or_default()
    ));
    lines.push(format!(
        "  {}, {} of them abandoned; {} stored for them",
        counted(archive.checkpoints, "checkpoint"),
        archive.abandoned,
        human_bytes(archive.bytes_stored)
    ));
    if archive.servers.is_empty() {
        lines.push("  no staging server: the nodes drain themselves".to_owned());
    }
    for server in &archive.servers {
        lines.push(format!(
            "  staging server {} at {}",
            server.name, server.address
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_metrics::VariableTracking;

    fn tracked(now: &str, asked: &str, why: Option<&str>) -> VariableTracking {
        VariableTracking {
            now: now.to_owned(),
            asked: asked.to_owned(),
            why: why.map(str::to_owned),
        }
    }

    fn told(tracking: impl Iterator<Item = (String, VariableTracking)>) -> Vec<String> {
        let metrics = Metrics {
            tracking: tracking.collect(),
            ..Metrics::default()
        };
        let mut lines = Vec::new();
        of_tracking(&metrics, &mut lines);
        lines.iter().map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn variables_are_counted_by_tracking_and_those_not_as_asked_are_named() {
        assert!(told(std::iter::empty()).is_empty());
        let variables = [
            ("a", tracked("pages", "pages", None)),
            ("b", tracked("hash", "pages", Some("it is shared"))),
            ("c", tracked("hash", "hash", None)),
            ("d", tracked("hash", "marked", None)),
        ];
        let variables = variables.map(|(name, how)| (name.to_owned(), how));
        let wanted = [
            "variables tracked: 3 by hash, 1 by pages",
            "b: hash, not pages: it is shared",
            "d: hash, not marked: not said",
        ];
        assert_eq!(told(variables.into_iter()), wanted);
    }

    #[test]
    fn of_many_variables_not_as_asked_eight_are_named() {
        let many = |count| (0..count).map(|at| (format!("v{at}"), tracked("hash", "pages", None)));
        assert_eq!(told(many(8)).len(), 1 + 8);
        let lines = told(many(11));
        assert_eq!(lines.len(), 1 + 8 + 1);
        assert_eq!(lines.last().unwrap(), "and 3 more");
    }
}
