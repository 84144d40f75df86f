// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what an operation would be in a larger job than was counted, by a straight line through two counts.
//! In from: `count`. Out to: `bench-scale`, which checks it against the largest job that was counted.
//! Invariants: an operation whose messages follow from time (a drain is polled) is not predicted.

use super::count::{Counted, Machine};
use super::job::Operation;
use crate::{as_f64, size_f64};
use serde::{Deserialize, Serialize};

/// What is foretold of an operation.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct Predicted {
    /// Nodes of the job.
    pub nodes: usize,
    /// Ranks of each.
    pub ranks_a_node: usize,
    /// Which.
    pub operation: Operation,
    /// Messages of the busiest node.
    pub messages: f64,
    /// Bytes that collective calls bring a rank.
    pub collective_bytes: f64,
    /// On the machine that the figures are for.
    pub seconds: f64,
    /// Counted over foretold, the further off of messages and bytes, where it was counted.
    pub counted_over: Option<f64>,
}

/// The value at `x` of the line through two points; not below the higher of them, where it falls.
fn line((x0, y0): (f64, f64), (x1, y1): (f64, f64), x: f64) -> f64 {
    let slope = ((y1 - y0) / (x1 - x0)).max(0.0);
    y1 + slope * (x - x1)
}

/// Foretells the operation of `small` and `large` in a job of `nodes`. Where nothing more is lost in a larger job,
/// that is what `large` did.
pub fn predict(
    small: &Counted,
    large: &Counted,
    nodes: usize,
    ranks_a_node: usize,
) -> Option<Predicted> {
    let is_timed = matches!(large.operation, Operation::Drain);
    if is_timed || small.operation != large.operation || small.nodes >= large.nodes {
        return None;
    }
    let of = |what: fn(&Counted) -> u64| {
        let at = |one: &Counted| (size_f64(one.nodes), as_f64(what(one)));
        line(at(small), at(large), size_f64(nodes))
    };
    // Ten groups lose a node, in a job of ten groups or more.
    let messages = match large.operation {
        Operation::RestartAfterLosses => as_f64(large.busiest.messages),
        _ => of(|one| one.busiest.messages),
    };
    let collective_bytes = of(|one| one.collective_bytes) * size_f64(ranks_a_node);
    let machine = Machine::ASKED;
    let own = |one: &Counted| {
        one.seconds - machine.collective_seconds(one.collectives, one.collective_bytes, one.ranks)
    };
    let depth_calls = large.collectives + u64::from((nodes / large.nodes.max(1)).max(1).ilog2());
    let collective = machine.collective_seconds(depth_calls, 0, nodes * ranks_a_node)
        + collective_bytes / machine.link_bytes_a_second;
    let grown = messages / as_f64(large.busiest.messages.max(1));
    Some(Predicted {
        nodes,
        ranks_a_node,
        operation: large.operation,
        messages,
        collective_bytes,
        seconds: own(large) * grown.max(1.0) + collective,
        counted_over: None,
    })
}

impl Predicted {
    /// How far `counted` is off it.
    #[must_use]
    pub fn against(mut self, counted: &Counted) -> Self {
        // Where nothing is foretold, one is too many.
        let over = |counted: u64, foretold: f64| {
            (as_f64(counted) / foretold.max(1.0)).max(f64::from(foretold < 1.0))
        };
        let of = [
            over(counted.collective_bytes, self.collective_bytes),
            over(counted.busiest.messages, self.messages),
        ];
        let off = |over: f64| if over > 0.0 { over.ln().abs() } else { 0.0 };
        self.counted_over = of.into_iter().max_by(|a, b| off(*a).total_cmp(&off(*b)));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on_and_do_not_fall() {
        let on = |x| line((16.0, 14.0), (64.0, 62.0), x);
        assert!((on(1024.0) - 1022.0).abs() < 1e-9);
        assert!((line((16.0, 9.0), (64.0, 7.0), 1e4) - 7.0).abs() < 1e-9);
    }
}
