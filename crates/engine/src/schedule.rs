// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: when the next checkpoint is due: consumes the planner's schedule, which learns costs and
//! failure rates from the run, or a fixed interval.
//! In from: `session` (time, what happened). Out to: `Session::due`.
//! Invariants: only rank 0 decides; the others do as it says, asked so rarely that it costs nothing.
//! The mathematics is in `backstay-model`; docs/model.md.

use crate::clock::Stopwatch;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use backstay_model::human::Inputs;
use backstay_model::levels::Mode;
use backstay_model::optimize::{Bounds, Problem};
use backstay_model::schedule::{Hysteresis, Memory, Observation, Schedule};

/// Guess of what a checkpoint costs before one was taken, in seconds.
const COST_SECONDS_GUESS: f64 = 1.0;
/// Most calls of `due` between two questions to rank 0.
const SKIP_MAX: i64 = 100_000;

/// Rank 0's view of when a checkpoint is due.
#[derive(Debug)]
pub struct Pacer {
    schedule: Option<Schedule>,
    fixed_seconds: Option<f64>,
    life: Stopwatch,
    since_seconds: f64,
    asked_seconds: f64,
    news: Vec<Observation>,
}

impl Pacer {
    /// A pacer for a job of `nodes`, going on with what earlier lives learnt.
    pub fn new(config: &Config, nodes: u32, memory: Option<Memory>) -> Result<Self> {
        let fixed_seconds = config.interval_seconds()?;
        let schedule = match fixed_seconds {
            Some(_) => None,
            None => Some(schedule(config, nodes, memory)?),
        };
        Ok(Self {
            schedule,
            fixed_seconds,
            life: Stopwatch::start(),
            since_seconds: 0.0,
            asked_seconds: 0.0,
            news: Vec::new(),
        })
    }

    /// A life ended without goodbye.
    pub fn failed(&mut self) {
        self.news.push(Observation::Failure { level: 1 });
    }

    /// The job goes on from a checkpoint.
    pub fn restored(&mut self, recovery_seconds: f64) {
        self.since_seconds = self.life.seconds();
        self.news.push(Observation::Restored {
            level: 1,
            recovery_seconds,
        });
    }

    /// A checkpoint was committed by all ranks.
    pub fn committed(&mut self, blocking_seconds: f64) {
        self.since_seconds = self.life.seconds();
        self.news.push(Observation::Checkpoint {
            level: 1,
            blocking_seconds,
        });
    }

    /// What was learnt, to be kept over lives.
    pub fn memory(&mut self) -> Option<Memory> {
        self.learn();
        self.schedule
            .as_ref()
            .map(|schedule| schedule.memory().clone())
    }

    fn learn(&mut self) -> Option<usize> {
        let now = self.life.seconds();
        let news = std::mem::take(&mut self.news);
        self.schedule
            .as_mut()
            .and_then(|schedule| schedule.due(now, &news))
    }

    /// Seconds between two checkpoints at present.
    pub fn interval_seconds(&self) -> f64 {
        let planned = self.schedule.as_ref().map(Schedule::interval_seconds);
        self.fixed_seconds.or(planned).unwrap_or(f64::INFINITY)
    }

    /// Whether a checkpoint is due (1, else 0), and for how many calls nobody need ask again, given
    /// that `calls` were made since this was asked last.
    pub fn ask(&mut self, calls: i64) -> (i64, i64) {
        let now = self.life.seconds();
        let due = match self.fixed_seconds {
            Some(interval) => now - self.since_seconds >= interval,
            None => self.learn().is_some(),
        };
        #[expect(clippy::cast_precision_loss, reason = "a pace")]
        let call_seconds = (now - self.asked_seconds) / calls.max(1) as f64;
        self.asked_seconds = now;
        let left = self.interval_seconds() - (now - self.since_seconds);
        // A quarter of the calls that fit: the pace may quicken.
        let fitting = (left / call_seconds.max(1e-9) / 4.0).clamp(0.0, 1e5);
        #[expect(clippy::cast_possible_truncation, reason = "clamped")]
        let skip = (fitting as i64).min(SKIP_MAX);
        (i64::from(due), if due { 0 } else { skip })
    }
}

fn schedule(config: &Config, nodes: u32, memory: Option<Memory>) -> Result<Schedule> {
    let wrong = |error| Error::caused(ErrorKind::Configuration, "interval = \"auto\"", error);
    let mut inputs = Inputs {
        nodes: f64::from(nodes),
        ..Inputs::default()
    };
    if let Some(hours) = config.node_mtbf_hours {
        #[expect(clippy::cast_precision_loss, reason = "at most 1e9")]
        let hours = hours as f64;
        inputs.node_mtbf_hours = hours;
    }
    let day_seconds = 86_400.0;
    let per_second =
        inputs.node_failures_per_second() + inputs.process_failures_per_day / day_seconds;
    let problem = Problem {
        failures_per_second: vec![per_second],
        checkpoint_seconds: vec![COST_SECONDS_GUESS],
        recovery_seconds: vec![COST_SECONDS_GUESS],
        mode: Mode::Blocking,
        differential: None,
        bounds: Bounds::default(),
    };
    let mut schedule = Schedule::new(problem, Hysteresis::default()).map_err(wrong)?;
    if let Some(memory) = memory {
        // What another number of levels learnt is of no use here.
        drop(schedule.remember(memory));
    }
    Ok(schedule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_interval_is_kept_and_asked_for_rarely() {
        let config = Config {
            interval: Some("0.05".to_owned()),
            ..Config::default()
        };
        let mut pacer = Pacer::new(&config, 1, None).unwrap();
        assert_eq!(pacer.ask(1).0, 0);
        std::thread::sleep(std::time::Duration::from_millis(60));
        assert_eq!(pacer.ask(10), (1, 0));
        pacer.committed(0.001);
        let (due, skip) = pacer.ask(1_000);
        assert_eq!(due, 0);
        assert!(skip > 1);
    }

    #[test]
    fn auto_learns_that_checkpoints_are_cheap_and_remembers_it() {
        let mut pacer = Pacer::new(&Config::default(), 1000, None).unwrap();
        let before = pacer.interval_seconds();
        for _ in 0..20 {
            pacer.committed(0.001);
        }
        let memory = pacer.memory().unwrap();
        let later = Pacer::new(&Config::default(), 1000, Some(memory)).unwrap();
        assert!(
            later.interval_seconds() < before / 5.0,
            "{}",
            later.interval_seconds()
        );
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
