// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what happened while somebody watches: a timeline, how often checkpoints come, how fast drains go, and
//! when each level last moved.
//! In: snapshots, one after the other. Out: what `dashboard` draws.
//! Invariants: bounded, however long somebody watches; nothing is said twice.

use super::look::{JobView, Snapshot};
use crate::output::human_age;
use crate::view::short;
use backstay::CheckpointId;
use std::collections::{BTreeMap, VecDeque};

/// Events kept.
const EVENTS_MAX: usize = 200;
/// Rates kept: one for each look.
const RATES_MAX: usize = 120;
/// Commits from which the time between two is taken.
const COMMITS_MAX: usize = 20;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) at_unix_ns: u64,
    pub(super) job: String,
    pub(super) text: String,
    /// Something went wrong.
    pub(super) is_bad: bool,
}

/// The levels of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Node,
    Protected,
    Archive,
}

/// What happened to one job.
#[derive(Debug, Default)]
pub(super) struct JobCourse {
    /// Bytes a second that drained, one for each look.
    pub(super) rates: VecDeque<u64>,
    /// When checkpoints were committed, the newest last.
    commits: BTreeMap<CheckpointId, u64>,
    /// When a level last moved.
    moved: BTreeMap<Level, u64>,
}

impl JobCourse {
    /// Seconds from one checkpoint to the next, of the last ones.
    pub(super) fn seconds_between(&self) -> Option<f64> {
        let times = self.commits.values();
        let (first, last) = (times.clone().min()?, times.max()?);
        let gaps = u32::try_from(self.commits.len().checked_sub(1)?).ok()?;
        #[expect(clippy::cast_precision_loss, reason = "a time for people to read")]
        let seconds = (last - first) as f64 / 1e9;
        (gaps > 0).then(|| seconds / f64::from(gaps))
    }

    /// Whether the level moved since that time.
    pub(super) fn has_moved(&self, level: Level, since_unix_ns: u64) -> bool {
        self.moved
            .get(&level)
            .is_some_and(|at| *at >= since_unix_ns)
    }

    fn note(&mut self, job: &JobView) {
        self.commits.extend(&job.commits);
        while self.commits.len() > COMMITS_MAX {
            self.commits.pop_first();
        }
        let draining = job.archive.as_ref().filter(|_| job.ids.draining.is_some());
        let rate = draining.and_then(|drain| drain.bytes_per_second);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rate is not negative, and is drawn in eight steps"
        )]
        self.rates.push_back(rate.unwrap_or(0.0).max(0.0) as u64);
        if self.rates.len() > RATES_MAX {
            self.rates.pop_front();
        }
    }
}

/// What happened while somebody watches.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// The newest last.
    pub(super) events: VecDeque<Event>,
    pub(super) jobs: BTreeMap<String, JobCourse>,
}

impl Course {
    /// Takes in what `now` shows, and what of it is other than `before`.
    pub(super) fn take(&mut self, before: Option<&Snapshot>, now: &Snapshot) {
        for job in &now.jobs {
            let earlier = before.and_then(|b| b.jobs.iter().find(|other| other.job == job.job));
            let mut said = Vec::new();
            match (before, earlier) {
                (Some(_), None) => said.push((format!("start {} is here", job.incarnation), false)),
                (_, Some(earlier)) => self.compare(earlier, job, now.taken_unix_ns, &mut said),
                (None, None) => {}
            }
            self.jobs.entry(job.job.clone()).or_default().note(job);
            for (text, is_bad) in said {
                self.say(now.taken_unix_ns, &job.job, text, is_bad);
            }
        }
        let gone = before.into_iter().flat_map(|before| &before.jobs);
        let gone = gone.filter(|old| now.jobs.iter().all(|job| job.job != old.job));
        let gone: Vec<String> = gone.map(|job| job.job.clone()).collect();
        for job in gone {
            self.say(
                now.taken_unix_ns,
                &job,
                "its stores are gone".to_owned(),
                true,
            );
        }
    }

    fn say(&mut self, at_unix_ns: u64, job: &str, text: String, is_bad: bool) {
        self.events.push_back(Event {
            at_unix_ns,
            job: job.to_owned(),
            text,
            is_bad,
        });
        if self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    fn compare(
        &mut self,
        old: &JobView,
        new: &JobView,
        now_unix_ns: u64,
        said: &mut Vec<(String, bool)>,
    ) {
        if new.incarnation != old.incarnation {
            said.push((format!("start {} began", new.incarnation), false));
        } else if new.running && !old.running {
            said.push(("it runs again".to_owned(), false));
        }
        if new.finished && !old.finished {
            said.push(("it is finished".to_owned(), false));
        } else if old.running && !new.running && !new.finished {
            said.push(("it runs no more".to_owned(), false));
        }
        let moved = [
            (Level::Node, old.ids.node, new.ids.node, "committed"),
            (
                Level::Protected,
                old.ids.protected,
                new.ids.protected,
                "protected",
            ),
            (
                Level::Archive,
                old.ids.archive,
                new.ids.archive,
                "in the archive",
            ),
        ];
        let course = self.jobs.entry(new.job.clone()).or_default();
        for (level, was, is, what) in moved {
            let Some(id) = is.filter(|_| was != is) else {
                continue;
            };
            course.moved.insert(level, now_unix_ns);
            // What the nodes took of it is known where they still have it.
            let taken = new.commits.get(&id).filter(|_| level != Level::Node);
            let after = taken.map_or_else(String::new, |taken| {
                #[expect(clippy::cast_precision_loss, reason = "an age for people to read")]
                let seconds = now_unix_ns.saturating_sub(*taken) as f64 / 1e9;
                format!(", {} after its commit", human_age(seconds))
            });
            said.push((format!("{} {what}{after}", short(id)), false));
        }
        if let Some(id) = new.ids.draining.filter(|id| old.ids.draining != Some(*id)) {
            said.push((format!("{} drains", short(id)), false));
        }
        let error = |job: &JobView| job.archive.as_ref().and_then(|drain| drain.error.clone());
        if let Some(error) = error(new).filter(|error| Some(&**error) != error_of(old)) {
            said.push((format!("a drain failed: {error}"), true));
        }
        let failed = |job: &JobView| -> u64 {
            let metrics = job.stores.iter().filter_map(|store| store.metrics.as_ref());
            metrics.map(|m| m.checkpoints_failed).max().unwrap_or(0)
        };
        if failed(new) > failed(old) {
            said.push((format!("a checkpoint failed, {} so far", failed(new)), true));
        }
    }
}

fn error_of(job: &JobView) -> Option<&str> {
    job.archive.as_ref()?.error.as_deref()
}

#[cfg(test)]
mod tests {
    use super::super::look::sample;
    use super::*;

    fn texts(course: &Course) -> Vec<&str> {
        course.events.iter().map(|event| &*event.text).collect()
    }

    #[test]
    fn what_moved_is_said_once_with_how_long_it_took() {
        let mut course = Course::default();
        let before = sample();
        course.take(None, &before);
        assert!(
            texts(&course).is_empty(),
            "what was so before nobody looked is no news"
        );
        let mut now = sample();
        now.taken_unix_ns += 1_000_000_000;
        let job = &mut now.jobs[0];
        job.ids.protected = job.ids.node;
        job.ids.archive = Some(CheckpointId::new(2, 41));
        job.ids.draining = None;
        course.take(Some(&before), &now);
        let wanted = [
            "42.2 protected, 4 s after its commit",
            "41.2 in the archive, 31 s after its commit",
        ];
        assert_eq!(texts(&course), wanted);
        let moved = |level| course.jobs["heat"].has_moved(level, now.taken_unix_ns);
        assert!(moved(Level::Protected) && moved(Level::Archive) && !moved(Level::Node));
        let mut same = sample();
        std::mem::swap(&mut same, &mut now);
        course.take(Some(&same), &same);
        assert_eq!(texts(&course), wanted);
    }

    #[test]
    fn ends_and_failures_are_said() {
        let mut course = Course::default();
        let before = sample();
        let mut now = sample();
        now.jobs[0].running = false;
        now.jobs[0].archive.as_mut().unwrap().error = Some("no space".to_owned());
        now.jobs[0].stores[0]
            .metrics
            .as_mut()
            .unwrap()
            .checkpoints_failed = 2;
        course.take(Some(&before), &now);
        let wanted = [
            "it runs no more",
            "a drain failed: no space",
            "a checkpoint failed, 2 so far",
        ];
        assert_eq!(texts(&course), wanted);
        assert!(course.events[1].is_bad && course.events[2].is_bad);
        let mut done = sample();
        (done.jobs[0].running, done.jobs[0].finished) = (false, true);
        let mut other = Course::default();
        other.take(Some(&before), &done);
        assert_eq!(texts(&other), ["it is finished"]);
        let mut none = sample();
        none.jobs.clear();
        course.take(Some(&before), &none);
        assert_eq!(texts(&course)[3..], ["its stores are gone"]);
        course.take(Some(&none), &before);
        assert_eq!(texts(&course)[4..], ["start 2 is here"]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut course = Course::default();
        let (one, mut other) = (sample(), sample());
        other.jobs[0].running = false;
        for _ in 0..EVENTS_MAX {
            course.take(Some(&one), &other);
            course.take(Some(&other), &one);
        }
        assert_eq!(course.events.len(), EVENTS_MAX);
        assert_eq!(course.jobs["heat"].rates.len(), RATES_MAX);
        let between = course.jobs["heat"].seconds_between().unwrap();
        assert!((between - 123.5).abs() < 1e-9, "{between}");
    }
}
