// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same chain once more, as plainly as possible: every state is enumerated from the rules,
//! the newest checkpoint is found by looking backwards, and the linear system is solved by
//! elimination. Slow, and meant to be read beside the rules in docs/model.md.

use std::collections::BTreeMap;

use backstay_model::{Case, Completion, Mode, solve};

use crate::configurations;

/// What the job has and does. Positions count the intervals done in the period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    /// The period before is computed again: its start is durable, nothing else is there.
    Again,
    /// The transfer is in flight; its source has a local copy.
    Flight,
    /// The transfer is durable and its source still has the local copy.
    Copy,
    /// The transfer is durable and its source has no local copy.
    Bare,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Compute(Layer, usize),
    /// In flight when the interval began, durable since an instant within it.
    Rest(usize),
    Stall,
    Recover(Layer, usize, usize),
    Done,
}

struct Rules<'a> {
    case: &'a Case,
    levels: Vec<usize>,
    n: usize,
    durable_at: Option<usize>,
    progress: Vec<f64>,
}

impl<'a> Rules<'a> {
    fn new(case: &'a Case) -> Self {
        let n = usize::try_from(case.intervals().unwrap()).unwrap();
        let levels: Vec<usize> = (1..=n)
            .map(|j| {
                let (mut l, mut q) = (1, j);
                for (k, v) in case.between.iter().enumerate() {
                    let every = usize::try_from(*v).unwrap() + 1;
                    if q % every != 0 {
                        break;
                    }
                    l = k + 2;
                    q /= every;
                }
                l
            })
            .collect();
        let mut rules = Self {
            case,
            levels,
            n,
            durable_at: None,
            progress: vec![0.0],
        };
        if let Mode::NonBlocking(transfer) = case.mode {
            let tolerance = 1e-9 * transfer.latency_seconds.max(1.0);
            if transfer.latency_seconds <= tolerance {
                rules.durable_at = Some(0);
            }
            for j in 1..=n {
                let next = rules.progress[j - 1] + rules.slowed() + rules.cost(j);
                rules.progress.push(next);
                if rules.durable_at.is_none() && next >= transfer.latency_seconds - tolerance {
                    rules.durable_at = Some(j);
                }
            }
        }
        rules
    }

    fn alpha_latency(&self) -> (f64, f64, bool) {
        match self.case.mode {
            Mode::Blocking => (0.0, 0.0, false),
            Mode::NonBlocking(t) => (
                t.slowdown_share,
                t.latency_seconds,
                t.completion == Completion::Continuous,
            ),
        }
    }

    fn slowed(&self) -> f64 {
        (1.0 + self.alpha_latency().0) * self.case.interval_seconds
    }

    fn cost(&self, j: usize) -> f64 {
        match self.case.mode {
            Mode::NonBlocking(transfer) if j == self.n => transfer.top_checkpoint_seconds,
            _ => self.case.checkpoint_seconds[self.levels[j - 1] - 1],
        }
    }

    /// Looks backwards for a checkpoint of the severity: layer, position and level to recover at.
    fn seek(&self, layer: Layer, from: usize, severity: usize) -> State {
        let top = self.case.level_count();
        if severity < top {
            for position in (1..=from).rev() {
                // The end of the period holds a copy of level L-1 instead of level L.
                let level = if position == self.n {
                    top - 1
                } else {
                    self.levels[position - 1]
                };
                if level >= severity {
                    return State::Recover(layer, position, level);
                }
            }
            if matches!(layer, Layer::Flight | Layer::Copy) && top > severity {
                return State::Recover(layer, 0, top - 1);
            }
        }
        match layer {
            Layer::Again | Layer::Flight => State::Recover(Layer::Again, 0, top),
            Layer::Copy | Layer::Bare => State::Recover(Layer::Bare, 0, top),
        }
    }

    /// Where an interval leads and from where its failures are handled, in this order: how long it
    /// lasts, the next state, layer and position that a failure finds.
    fn outcome(&self, state: State) -> (f64, State, Layer, usize) {
        let (alpha, latency, continuous) = self.alpha_latency();
        let t = self.case.interval_seconds;
        match state {
            State::Compute(Layer::Flight, position) => {
                let j = position + 1;
                let full = self.slowed() + self.cost(j);
                if self.durable_at == Some(j) && continuous {
                    let left = latency - self.progress[position];
                    return (
                        left.min(full),
                        State::Rest(position),
                        Layer::Flight,
                        position,
                    );
                }
                (full, self.after_flight(j), Layer::Flight, position)
            }
            State::Compute(layer, position) => {
                let next = if position + 1 < self.n {
                    State::Compute(layer, position + 1)
                } else if layer == Layer::Again {
                    self.begin()
                } else {
                    State::Done
                };
                (t + self.cost(position + 1), next, layer, position)
            }
            State::Rest(position) => {
                let cost = self.cost(position + 1);
                let left = latency - self.progress[position];
                let rest = if left <= self.slowed() {
                    t - left / (1.0 + alpha) + cost
                } else {
                    (self.slowed() + cost - left).max(0.0)
                };
                (rest, self.after_flight(position + 1), Layer::Copy, position)
            }
            State::Stall => (
                latency - self.progress[self.n],
                State::Done,
                Layer::Flight,
                self.n,
            ),
            State::Recover(layer, position, _) => {
                let next = if layer == Layer::Flight && position == self.n {
                    State::Stall
                } else {
                    State::Compute(layer, position)
                };
                (0.0, next, layer, position)
            }
            State::Done => (0.0, State::Done, Layer::Bare, 0),
        }
    }

    fn after_flight(&self, j: usize) -> State {
        match self.durable_at {
            Some(at) if at <= j && j == self.n => State::Done,
            Some(at) if at <= j => State::Compute(Layer::Copy, j),
            _ if j == self.n => State::Stall,
            _ => State::Compute(Layer::Flight, j),
        }
    }

    fn begin(&self) -> State {
        match self.case.mode {
            Mode::Blocking => State::Done,
            Mode::NonBlocking(_) if self.durable_at == Some(0) => State::Compute(Layer::Copy, 0),
            Mode::NonBlocking(_) => State::Compute(Layer::Flight, 0),
        }
    }

    /// All that can follow: expected stay, and probability and state of each successor.
    fn follow(&self, state: State) -> (f64, Vec<(f64, State)>) {
        let rates = &self.case.failures_per_second;
        let total: f64 = rates.iter().sum();
        let (mut seconds, next, layer, position) = self.outcome(state);
        let recovering = match state {
            State::Recover(_, _, level) => {
                seconds = self.case.recovery_seconds[level - 1];
                Some(level)
            }
            _ => None,
        };
        let fail = 1.0 - (-total * seconds).exp();
        let mean = if total > 0.0 { fail / total } else { seconds };
        let mut successors = vec![((-total * seconds).exp(), next)];
        for (index, rate) in rates.iter().enumerate() {
            let level = index + 1;
            let chance = if total > 0.0 {
                rate / total * fail
            } else {
                0.0
            };
            let target = match recovering {
                Some(k) if k == self.case.level_count() || level < k => state,
                Some(k) => self.seek(layer, position, level.max(k + 1)),
                None => self.seek(layer, position, level),
            };
            successors.push((chance, target));
        }
        (mean, successors)
    }

    fn period_seconds(&self) -> f64 {
        let start = match self.case.mode {
            Mode::Blocking => State::Compute(Layer::Bare, 0),
            Mode::NonBlocking(_) => self.begin(),
        };
        let mut index = BTreeMap::from([(start, 0_usize)]);
        let mut queue = vec![start];
        let mut done = 0;
        while done < queue.len() {
            for (_, next) in self.follow(queue[done]).1 {
                if next != State::Done && !index.contains_key(&next) {
                    index.insert(next, queue.len());
                    queue.push(next);
                }
            }
            done += 1;
        }
        let size = queue.len();
        let mut rows = vec![vec![0.0; size + 1]; size];
        for (row, state) in rows.iter_mut().zip(&queue) {
            let (mean, successors) = self.follow(*state);
            row[index[state]] += 1.0;
            row[size] = mean;
            for (chance, next) in successors {
                if next != State::Done {
                    row[index[&next]] -= chance;
                }
            }
        }
        eliminate(rows)
    }
}

/// Gauss with partial pivoting; the first unknown.
fn eliminate(mut rows: Vec<Vec<f64>>) -> f64 {
    let size = rows.len();
    for column in (0..size).rev() {
        let best = (0..=column)
            .max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()))
            .unwrap();
        rows.swap(best, column);
        let pivot = rows[column].clone();
        for row in &mut rows[..column] {
            let factor = row[column] / pivot[column];
            if factor != 0.0 {
                for (entry, value) in row.iter_mut().zip(&pivot) {
                    *entry -= factor * value;
                }
            }
        }
    }
    rows[0][size] / rows[0][0]
}

#[test]
fn the_chain_equals_the_enumerated_system() {
    for (name, case) in configurations::all() {
        let exact = solve(&case).unwrap().period_seconds;
        let dense = Rules::new(&case).period_seconds();
        let error = (exact / dense - 1.0).abs();
        assert!(
            error < 1e-9,
            "{name}: chain {exact}, enumerated {dense}, off by {error:e}"
        );
    }
}
