// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: when the next checkpoint is due, and to which level: consumes the planner's schedule, which
//! learns costs and failure rates from the run, or a fixed interval.
//! In from: `session` (time, what happened, how far drains are). Out to: `Session::due`, and which
//! checkpoints drain.
//! Invariants: only rank 0 decides; the others do as it says, asked so rarely that it costs nothing; while
//! one checkpoint drains no other is picked for it.
//! The mathematics is in `backstay-model`; docs/model.md.

use crate::config::Config;
use backstay_base::clock::Stopwatch;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::CheckpointId;
use backstay_model::human::Inputs;
use backstay_model::levels::{Completion, Mode, Transfer};
use backstay_model::optimize::{Bounds, Problem};
use backstay_model::schedule::{Hysteresis, Memory, Observation, Schedule};

/// Guess of what a checkpoint costs before one was taken, in seconds: on each level, for all that a level
/// adds is done in the background.
const COST_SECONDS_GUESS: f64 = 1.0;
/// Guesses of how long a checkpoint takes to come back from a level, and, beyond the node, to get there.
const AWAY_SECONDS_GUESS: [f64; 3] = [1.0, 2.0, 10.0];
/// By how much draining slows the application, as a share: some more than was measured where a core is to
/// spare (0.01 to 0.04, docs/guide/draining.md).
const SLOWDOWN_SHARE: f64 = 0.06;
/// A job of which no checkpoint was measured has its first after so many seconds: what it costs is not guessed
/// for hours.
const FIRST_SECONDS: f64 = 60.0;
/// Most checkpoints of a period: more are not worth the time to look for them.
const INTERVALS_MAX: u64 = 1_000;
/// Most calls of `due` between two questions to rank 0.
const SKIP_MAX: i64 = 100_000;

/// How far a checkpoint has to be safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Level {
    /// Durable in the store of every node.
    #[default]
    Node = 1,
    /// Protected across nodes, so that it survives the loss of as many as the redundancy covers.
    Protected = 2,
    /// In the archive on the parallel file system, so that it survives the loss of all nodes.
    Archive = 3,
}

impl Level {
    /// The level of this number.
    pub fn of(number: i64) -> Option<Self> {
        let levels = [Self::Node, Self::Protected, Self::Archive];
        levels
            .into_iter()
            .find(|level| i64::from(*level as u8) == number)
    }
}

/// How far the newest checkpoints of a running job are.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct LevelProgress {
    /// The newest that is protected, or archived.
    pub there: CheckpointId,
    /// The one that is on its way, or was last.
    pub under_way: CheckpointId,
    /// How long the last one took, in seconds, if that is known.
    pub seconds: Option<f64>,
}

/// What a job has beside the stores of its nodes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LevelsBeside {
    /// Checkpoints are protected across nodes.
    pub protects: bool,
    /// The planner picks checkpoints that drain to an archive.
    pub drains: bool,
    /// The archive has none yet.
    pub is_empty: bool,
}

impl LevelsBeside {
    fn levels(self) -> Vec<Level> {
        let mut levels = vec![Level::Node];
        levels.extend(self.protects.then_some(Level::Protected));
        levels.extend(self.drains.then_some(Level::Archive));
        levels
    }
}

/// What earlier starts learnt, and of which levels.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Learnt {
    /// Rates and costs.
    pub memory: Memory,
    /// The levels that they are of, in their order.
    pub levels: Vec<u8>,
}

/// Rank 0's view of when a checkpoint is due.
#[derive(Debug)]
pub(crate) struct Pacer {
    schedule: Option<Schedule>,
    /// The archive is one of them if the planner picks what drains there.
    levels: Vec<Level>,
    /// The archive has nothing, and nothing is on its way.
    is_empty: bool,
    fixed_seconds: Option<f64>,
    start: Stopwatch,
    since_seconds: f64,
    asked_seconds: f64,
    /// `due` was asked in this start.
    asked: bool,
    /// What `due` said of the checkpoint to come.
    picked: Option<Level>,
    /// What the one that was begun last is to reach.
    taking: Level,
    /// On its way to the top level, and since when.
    in_flight: Option<(CheckpointId, f64)>,
    /// The start before ended without goodbye; which level it needs is known once it is restored.
    failed: bool,
    /// It was said when the first checkpoint is due; and then, when the next.
    said: [bool; 2],
    news: Vec<Observation>,
}

impl Pacer {
    /// A pacer for a job of `nodes`, going on with what earlier starts learnt.
    pub(crate) fn new(
        config: &Config,
        nodes: u32,
        levels_beside: LevelsBeside,
        learnt: Option<Learnt>,
    ) -> Result<Self> {
        let fixed_seconds = config.interval_seconds()?;
        let levels = levels_beside.levels();
        let schedule = match fixed_seconds {
            Some(_) => None,
            None => Some(schedule(config, nodes, &levels, learnt)?),
        };
        Ok(Self {
            schedule,
            levels,
            is_empty: levels_beside.is_empty,
            fixed_seconds,
            start: Stopwatch::start(),
            since_seconds: 0.0,
            asked_seconds: 0.0,
            asked: false,
            picked: None,
            taking: Level::Node,
            in_flight: None,
            failed: false,
            said: [false; 2],
            news: Vec::new(),
        })
    }

    /// A start ended without goodbye, and so long nobody watched.
    pub(crate) fn failed(&mut self, unseen_seconds: f64) {
        self.failed = true;
        self.news.push(Observation::Unseen {
            seconds: unseen_seconds,
        });
    }

    /// The job goes on from checkpoint `id`, which it had from `level`. Whether it is to be drained now: it
    /// is not in the archive, and the planner picks what drains there.
    pub(crate) fn restored(
        &mut self,
        id: CheckpointId,
        level: Level,
        is_archived: bool,
        recovery_seconds: f64,
    ) -> bool {
        self.since_seconds = self.start.seconds();
        self.picked = None;
        let place = self.place(level);
        self.tell_failure(place);
        self.news.push(Observation::Restored {
            level: place,
            recovery_seconds,
        });
        self.learn();
        if !self.drains() {
            return false;
        }
        self.begin_period(id, !is_archived);
        !is_archived
    }

    /// A checkpoint begins; the level that it is to reach.
    pub(crate) fn begin(&mut self) -> Level {
        self.tell_failure(1);
        self.learn();
        let next = self.next_level();
        self.taking = self.picked.take().unwrap_or(next);
        self.taking
    }

    /// The checkpoint that was begun is committed, or will be in the background.
    pub(crate) fn committed(&mut self, id: CheckpointId, blocking_seconds: f64) {
        self.since_seconds = self.start.seconds();
        let level = self.place(self.taking);
        if level == self.levels.len() && level > 1 {
            self.in_flight = Some((id, self.since_seconds));
            self.is_empty = false;
        }
        self.news.push(Observation::Checkpoint {
            level,
            blocking_seconds,
        });
    }

    /// The level above the node, if there is one, whose progress [`Pacer::look`] takes.
    pub(crate) fn top(&self) -> Option<Level> {
        self.levels.last().copied().filter(|top| *top > Level::Node)
    }

    /// Takes how far checkpoints are on the top level.
    pub(crate) fn look(&mut self, progress: LevelProgress) {
        if let Some((id, since)) = self.in_flight {
            if progress.there >= id {
                let waited = self.start.seconds() - since;
                let latency_seconds = progress.seconds.unwrap_or(waited);
                self.news.push(Observation::Durable { latency_seconds });
                self.in_flight = None;
            }
        } else if self.drains() && progress.under_way > progress.there {
            // Somebody waits for it: it is as good as one that was picked.
            self.learn();
            self.begin_period(progress.under_way, true);
        }
    }

    /// What was learnt, to be kept over starts.
    pub(crate) fn learnt(&mut self) -> Option<Learnt> {
        self.learn();
        let schedule = self.schedule.as_ref()?;
        Some(Learnt {
            memory: schedule.memory().clone(),
            levels: numbers(&self.levels),
        })
    }

    /// Whether only what is picked is to be drained: the program goes by the planner.
    pub(crate) fn picks(&self) -> bool {
        self.drains() && self.asked
    }

    /// Seconds between two checkpoints at present.
    pub(crate) fn interval_seconds(&self) -> f64 {
        let planned = self.schedule.as_ref().map(|schedule| {
            let planned = schedule.interval_seconds();
            match measured_seconds(schedule) {
                Some(_) => planned,
                None => planned.min(FIRST_SECONDS),
            }
        });
        self.fixed_seconds.or(planned).unwrap_or(f64::INFINITY)
    }

    /// When the next checkpoint is due and why, for who is told once of the first and once of those that follow.
    pub(crate) fn announcement(&mut self) -> Option<String> {
        let schedule = self.schedule.as_ref()?;
        let measured = measured_seconds(schedule);
        if std::mem::replace(&mut self.said[usize::from(measured.is_some())], true) {
            return None;
        }
        let left = self.interval_seconds() - (self.start.seconds() - self.since_seconds);
        let left = words(left.max(0.0));
        Some(match measured {
            None => format!(
                "the first checkpoint is due in {left}: none of this job was measured yet (interval = auto)"
            ),
            Some(seconds) => {
                let rates = schedule.problem().failures_per_second;
                let between = 1.0 / rates.iter().sum::<f64>().max(f64::MIN_POSITIVE);
                format!(
                    "the next checkpoint is due in {left}: one blocks the program for {}, and a failure is \
                     expected every {} (interval = auto)",
                    words(seconds),
                    words(between)
                )
            }
        })
    }

    /// The level to which a checkpoint is due, and for how many calls nobody need ask again, given
    /// that `calls` were made since this was asked last.
    pub(crate) fn ask(&mut self, calls: i64) -> (Option<Level>, i64) {
        self.asked = true;
        self.tell_failure(1);
        let now = self.start.seconds();
        let is_due = match self.fixed_seconds {
            Some(interval) => now - self.since_seconds >= interval,
            None => self.learn().is_some() || self.first_is_due(now),
        };
        #[expect(clippy::cast_precision_loss, reason = "a pace")]
        let call_seconds = (now - self.asked_seconds) / calls.max(1) as f64;
        self.asked_seconds = now;
        let left = self.interval_seconds() - (now - self.since_seconds);
        // A quarter of the calls that fit: the pace may quicken.
        let fitting = (left / call_seconds.max(1e-9) / 4.0).clamp(0.0, 1e5);
        #[expect(clippy::cast_possible_truncation, reason = "clamped")]
        let skip = (fitting as i64).min(SKIP_MAX);
        self.picked = is_due.then(|| self.next_level());
        (self.picked, if is_due { 0 } else { skip })
    }

    fn first_is_due(&self, now: f64) -> bool {
        let measured = self.schedule.as_ref().and_then(measured_seconds);
        measured.is_none() && now - self.since_seconds >= FIRST_SECONDS
    }

    fn drains(&self) -> bool {
        self.schedule.is_some() && self.levels.last() == Some(&Level::Archive)
    }

    fn learn(&mut self) -> Option<usize> {
        let now = self.start.seconds();
        let news = std::mem::take(&mut self.news);
        self.schedule
            .as_mut()
            .and_then(|schedule| schedule.due(now, &news))
    }

    fn next_level(&self) -> Level {
        // A program that does not ask takes its checkpoints by a rule of its own, and drains as if none
        // was set; and what the archive has is better than nothing.
        if self.drains() && (self.is_empty || !self.asked) {
            return Level::Archive;
        }
        let place = self.schedule.as_ref().map_or(1, Schedule::next_level);
        self.levels.get(place - 1).copied().unwrap_or(Level::Node)
    }

    /// The place, from 1, of the first of the job's levels that is not below `level`.
    fn place(&self, level: Level) -> usize {
        let below = self.levels.iter().filter(|own| **own < level).count();
        (below + 1).min(self.levels.len())
    }

    fn tell_failure(&mut self, level: usize) {
        if std::mem::take(&mut self.failed) {
            self.news.push(Observation::Failure { level });
        }
    }

    /// The archive has `id`, or gets it.
    fn begin_period(&mut self, id: CheckpointId, in_flight: bool) {
        self.is_empty = false;
        self.in_flight = in_flight.then(|| (id, self.start.seconds()));
        if let Some(schedule) = &mut self.schedule {
            schedule.begin_period(in_flight);
        }
    }
}

/// What a checkpoint of the lowest level that was measured blocks the program for, in seconds.
fn measured_seconds(schedule: &Schedule) -> Option<f64> {
    let mut levels = schedule.memory().checkpoint_seconds.iter();
    levels.find_map(|costs| costs.quantile(0.5))
}

/// A time as people say it.
fn words(seconds: f64) -> String {
    match seconds {
        ..0.9995 => format!("{:.0} ms", (seconds * 1e3).max(1.0)),
        ..99.5 => format!("{seconds:.0} s"),
        ..5_970.0 => format!("{:.0} min", seconds / 60.0),
        ..360_000.0 => format!("{:.1} h", seconds / 3_600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

fn numbers(levels: &[Level]) -> Vec<u8> {
    levels.iter().map(|level| *level as u8).collect()
}

/// What is known of a job with these levels before it runs.
fn problem(config: &Config, nodes: u32, levels: &[Level]) -> Problem {
    let mut inputs = Inputs {
        nodes: f64::from(nodes),
        ..Inputs::default()
    };
    if let Some(hours) = config.node_mtbf_hours {
        #[expect(clippy::cast_precision_loss, reason = "at most 1e9")]
        let hours = hours as f64;
        inputs.node_mtbf_hours = hours;
    }
    let of_nodes = inputs.node_failures_per_second();
    // Of the program itself: as often as those of its nodes, until the job shows otherwise.
    let mut rates = vec![0.0; levels.len()];
    rates[0] = of_nodes;
    for (need, share) in (1_u8..).zip(&inputs.failure_shares) {
        let below = levels.iter().filter(|level| (**level as u8) < need).count();
        rates[below.min(levels.len() - 1)] += share * of_nodes;
    }
    let away = |level: &Level| AWAY_SECONDS_GUESS[usize::from(*level as u8) - 1];
    let mode = match levels {
        [.., top] if levels.len() > 1 => Mode::NonBlocking(Transfer {
            slowdown_share: SLOWDOWN_SHARE,
            latency_seconds: away(top),
            top_checkpoint_seconds: COST_SECONDS_GUESS,
            completion: Completion::Continuous,
        }),
        _ => Mode::Blocking,
    };
    Problem {
        failures_per_second: rates,
        checkpoint_seconds: vec![COST_SECONDS_GUESS; levels.len()],
        recovery_seconds: levels.iter().map(away).collect(),
        recovers_by_failure: true,
        mode,
        differential: None,
        bounds: Bounds {
            intervals_max: INTERVALS_MAX,
            ..Bounds::default()
        },
    }
}

fn schedule(
    config: &Config,
    nodes: u32,
    levels: &[Level],
    learnt: Option<Learnt>,
) -> Result<Schedule> {
    let wrong = |error| Error::caused(ErrorKind::Configuration, "interval = \"auto\"", error);
    let problem = problem(config, nodes, levels);
    let mut schedule = Schedule::new(problem, Hysteresis::default()).map_err(wrong)?;
    if let Some(learnt) = learnt {
        let memory = fitting(schedule.memory(), &numbers(levels), learnt);
        // A memory that is damaged is of no use.
        drop(schedule.remember(memory));
    }
    Ok(schedule)
}

/// What was learnt, for these levels. Where the job had others, the costs of those that it still has are
/// kept; rates are begun anew, for what a level had to cover has changed.
fn fitting(fresh: &Memory, levels: &[u8], learnt: Learnt) -> Memory {
    let Learnt {
        memory,
        levels: former,
    } = learnt;
    // Before there were several levels nothing said so.
    let former = if former.is_empty() { vec![1] } else { former };
    if former == levels {
        return memory;
    }
    let mut kept = fresh.clone();
    for (to, level) in levels.iter().enumerate() {
        let Some(from) = former.iter().position(|other| other == level) else {
            continue;
        };
        if let Some(costs) = memory.checkpoint_seconds.get(from) {
            kept.checkpoint_seconds[to] = costs.clone();
        }
        if let Some(costs) = memory.recovery_seconds.get(from) {
            kept.recovery_seconds[to] = costs.clone();
        }
    }
    if levels.last() == former.last() {
        kept.latency_seconds = memory.latency_seconds;
        kept.slowdown_share = memory.slowdown_share;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer(levels_beside: LevelsBeside) -> Pacer {
        Pacer::new(&Config::default(), 1000, levels_beside, None).unwrap()
    }

    /// With an archive that has a checkpoint of an earlier start.
    fn draining() -> LevelsBeside {
        LevelsBeside {
            drains: true,
            ..LevelsBeside::default()
        }
    }

    /// What a job of many failures has learnt whose checkpoints cost 2 s and whose drains take `drain`
    /// seconds.
    fn learnt(drain: f64) -> Learnt {
        let mut pacer = pacer(draining());
        pacer.ask(1);
        for number in 1..=30 {
            pacer.taking = Level::Node;
            pacer.committed(CheckpointId::new(1, number), 2.0);
            pacer.news.push(Observation::Durable {
                latency_seconds: drain,
            });
        }
        let mut learnt = pacer.learnt().unwrap();
        for (rate, failures) in learnt.memory.rates.iter_mut().zip([40, 4]) {
            rate.observe(failures, 2e5);
        }
        learnt
    }

    /// The levels of the next `count` checkpoints; each drain is over when `drain` more were taken.
    fn levels(pacer: &mut Pacer, count: u64, drain: u64) -> Vec<Level> {
        pacer.ask(1);
        let mut newest = 0;
        (1..=count)
            .map(|number| {
                if let Some((id, _)) = pacer
                    .in_flight
                    .filter(|(id, _)| id.number + drain <= number)
                {
                    newest = id.number;
                    pacer.in_flight = None;
                    pacer.news.push(Observation::Durable {
                        latency_seconds: 60.0,
                    });
                }
                let level = pacer.begin();
                let in_flight = pacer.in_flight.is_some();
                assert!(
                    level < Level::Archive || !in_flight,
                    "two drains; {newest} is there"
                );
                pacer.committed(CheckpointId::new(1, number), 2.0);
                level
            })
            .collect()
    }

    fn drained(levels: &[Level]) -> usize {
        levels
            .iter()
            .filter(|level| **level == Level::Archive)
            .count()
    }

    #[test]
    fn a_fixed_interval_is_kept_and_asked_for_rarely() {
        let config = Config {
            interval: Some("0.05".to_owned()),
            ..Config::default()
        };
        let mut pacer = Pacer::new(&config, 1, draining(), None).unwrap();
        assert_eq!(pacer.ask(1).0, None);
        std::thread::sleep(std::time::Duration::from_millis(60));
        assert_eq!(pacer.ask(10), (Some(Level::Node), 0));
        pacer.begin();
        pacer.committed(CheckpointId::new(1, 1), 0.001);
        assert!(!pacer.picks(), "the rule of the setting holds");
        let (due, skip) = pacer.ask(1_000);
        assert_eq!(due, None);
        assert!(skip > 1);
    }

    #[test]
    fn what_was_never_measured_is_due_within_a_minute_and_said_once() {
        let mut first = pacer(LevelsBeside::default());
        assert!(first.interval_seconds() <= FIRST_SECONDS);
        assert_eq!(first.ask(1).0, None);
        let said = first.announcement().unwrap();
        assert!(said.contains("first checkpoint is due in 60 s"), "{said}");
        assert_eq!(first.announcement(), None);
        first.since_seconds -= FIRST_SECONDS;
        assert_eq!(first.ask(1).0, Some(Level::Node));
        first.begin();
        first.committed(CheckpointId::new(1, 1), 0.5);
        assert_eq!(first.ask(1).0, None);
        assert!(
            first.interval_seconds() > FIRST_SECONDS,
            "it is planned now"
        );
        let said = first.announcement().unwrap();
        assert!(said.contains("blocks the program for 500 ms"), "{said}");
        assert_eq!(first.announcement(), None);
        // What an earlier start measured need not be measured again.
        let learnt = first.learnt();
        let mut second =
            Pacer::new(&Config::default(), 1000, LevelsBeside::default(), learnt).unwrap();
        second.since_seconds -= FIRST_SECONDS;
        assert_eq!(second.ask(1).0, None);
        let fixed = Config {
            interval: Some("9".to_owned()),
            ..Config::default()
        };
        let mut fixed = Pacer::new(&fixed, 1, LevelsBeside::default(), None).unwrap();
        assert_eq!(fixed.announcement(), None, "who set it knows");
    }

    #[test]
    fn times_are_said_in_words() {
        let said = [0.000_01, 0.25, 60.0, 2_400.0, 36_000.0, 864_000.0].map(words);
        assert_eq!(
            said,
            ["1 ms", "250 ms", "60 s", "40 min", "10.0 h", "10 days"]
        );
    }

    #[test]
    fn auto_learns_that_checkpoints_are_cheap_and_remembers_it() {
        let mut first = pacer(LevelsBeside::default());
        let before = first.interval_seconds();
        for number in 1..=20 {
            first.committed(CheckpointId::new(1, number), 0.001);
        }
        let learnt = first.learnt();
        let none = LevelsBeside::default();
        let later = Pacer::new(&Config::default(), 1000, none, learnt).unwrap();
        assert!(
            later.interval_seconds() < before / 5.0,
            "{}",
            later.interval_seconds()
        );
    }

    #[test]
    fn every_so_many_checkpoints_one_is_picked_for_the_archive() {
        let with = |drain| {
            let learnt = Some(learnt(drain));
            Pacer::new(&Config::default(), 1000, draining(), learnt).unwrap()
        };
        let quick = levels(&mut with(60.0), 60, 2);
        let slow = levels(&mut with(1200.0), 60, 2);
        assert!((6..=40).contains(&drained(&quick)), "{quick:?}");
        assert!((1..drained(&quick)).contains(&drained(&slow)), "{slow:?}");
        let held = levels(&mut with(60.0), 60, 30);
        assert!(
            drained(&held) <= 3,
            "a drain that lasts is not joined: {held:?}"
        );
    }

    #[test]
    fn without_an_archive_none_is_picked_for_it() {
        let protects = LevelsBeside {
            protects: true,
            ..LevelsBeside::default()
        };
        for levels_beside in [LevelsBeside::default(), protects] {
            assert_eq!(drained(&levels(&mut pacer(levels_beside), 30, 1)), 0);
        }
        // All are protected: they cost the same, and protecting is quick.
        let levels = levels(&mut pacer(protects), 10, 1);
        assert!(levels.contains(&Level::Protected), "{levels:?}");
    }

    #[test]
    fn an_empty_archive_gets_the_first_and_one_that_is_not_asked_all() {
        let empty = LevelsBeside {
            is_empty: true,
            ..draining()
        };
        let mut asked = pacer(empty);
        asked.ask(1);
        assert!(asked.picks());
        assert_eq!(asked.begin(), Level::Archive);
        asked.committed(CheckpointId::new(1, 1), 0.01);
        assert_eq!(asked.begin(), Level::Node, "while that drains");
        let mut unasked = pacer(empty);
        for number in 1..5 {
            assert_eq!(unasked.begin(), Level::Archive);
            unasked.committed(CheckpointId::new(1, number), 0.01);
        }
        assert!(!unasked.picks(), "the rule of the coordinator holds");
    }

    #[test]
    fn a_failure_counts_on_the_level_that_it_took() {
        let all = LevelsBeside {
            protects: true,
            ..draining()
        };
        let id = CheckpointId::new(1, 5);
        for (level, place) in [(Level::Node, 0), (Level::Protected, 1), (Level::Archive, 2)] {
            let mut pacer = pacer(all);
            let before = pacer.learnt().unwrap().memory.rates;
            pacer.failed(0.0);
            let is_archived = level == Level::Archive;
            assert_eq!(pacer.restored(id, level, is_archived, 3.0), !is_archived);
            let memory = pacer.learnt().unwrap().memory;
            for (at, (rate, before)) in memory.rates.iter().zip(&before).enumerate() {
                // Of what it began with a quarter is left.
                let more = if at == place { 0.25 } else { 0.0 };
                assert!(
                    (rate.failures - before.failures - more).abs() < 1e-9,
                    "{memory:?}"
                );
            }
            assert_eq!(memory.recovery_seconds[place].len(), 1);
        }
        // Nothing was restored: whatever it was, the node's store was no help.
        let mut anew = pacer(all);
        anew.failed(0.0);
        anew.begin();
        assert!(anew.learnt().unwrap().memory.rates[0].failures > 1.2);
    }

    #[test]
    fn what_was_learnt_serves_a_job_of_other_levels() {
        let learnt = learnt(60.0);
        assert_eq!(learnt.levels, [1, 3]);
        let with = |levels_beside, learnt| {
            let pacer = Pacer::new(&Config::default(), 1000, levels_beside, Some(learnt));
            pacer.unwrap().learnt().unwrap()
        };
        assert_eq!(with(draining(), learnt.clone()), learnt);
        let protects = LevelsBeside {
            protects: true,
            ..LevelsBeside::default()
        };
        // As many levels, and not the same.
        let other = with(protects, learnt.clone());
        assert_eq!(other.levels, [1, 2]);
        assert_eq!(other.memory.checkpoint_seconds[0].len(), 30);
        assert!(other.memory.checkpoint_seconds[1].is_empty());
        assert!(other.memory.latency_seconds.is_empty());
        let all = LevelsBeside {
            protects: true,
            ..draining()
        };
        let more = with(all, learnt.clone());
        assert_eq!(more.levels, [1, 2, 3]);
        assert_eq!(more.memory.latency_seconds, learnt.memory.latency_seconds);
        assert_eq!(
            with(LevelsBeside::default(), more)
                .memory
                .checkpoint_seconds[0]
                .len(),
            30
        );
        // Of a version that said no levels, and one that is damaged.
        let mut old = learnt;
        old.levels.clear();
        old.memory.checkpoint_seconds.truncate(1);
        assert_eq!(
            with(draining(), old.clone()).memory.checkpoint_seconds[0].len(),
            30
        );
        old.levels = vec![1, 3];
        assert!(with(draining(), old).memory.checkpoint_seconds[0].is_empty());
    }

    #[test]
    fn intervals_out_of_range_are_refused() {
        for interval in ["soon", "0", "-3", "1e9", "NaN"] {
            let config = Config {
                interval: Some(interval.to_owned()),
                ..Config::default()
            };
            assert!(config.validate().is_err(), "{interval}");
        }
    }
}
