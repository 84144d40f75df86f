// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what one operation of a job was, node by node, and the seconds that it would take.
//! In from: `job`, which hands in every message. Out to: `scale`.
//! Invariants: the seconds are an upper bound: kinds of messages follow one another, and those of one kind wait for
//! the busiest sender, receiver and link.

use super::job::Operation;
use crate::as_f64;
use backstay_testkit::network::{Action, Attempt, SimNetwork};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A machine on which seconds are computed.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
pub struct Machine {
    /// Of a message, one way, in seconds.
    pub latency_seconds: f64,
    /// Of a link.
    pub link_bytes_a_second: f64,
    /// That a node handles.
    pub messages_a_second: f64,
    /// Nodes that are asked at the same time.
    pub width: u64,
}

impl Machine {
    /// The one that the figures are for.
    pub const ASKED: Self = Self {
        latency_seconds: 1e-3,
        link_bytes_a_second: 10e9,
        messages_a_second: 100_000.0,
        width: 64,
    };
}

impl Machine {
    /// So many collective calls of `ranks` ranks that bring each so many bytes: there and back over a binary tree.
    pub fn collective_seconds(&self, calls: u64, bytes: u64, ranks: usize) -> f64 {
        let depth = ranks.max(1).next_power_of_two().trailing_zeros();
        as_f64(calls) * 2.0 * f64::from(depth) * self.latency_seconds
            + as_f64(bytes) / self.link_bytes_a_second
    }
}

/// What one node did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct NodeCount {
    /// Messages: requests and pulls, sent and answered.
    pub messages: u64,
    /// Bytes of them, both ways.
    pub bytes: u64,
    /// Nodes that it exchanged anything with: connections.
    pub peers: u64,
}

/// What an operation was.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub struct Counted {
    /// Nodes of the job.
    pub nodes: usize,
    /// Ranks of the start in which it was counted.
    pub ranks: usize,
    /// Which.
    pub operation: Operation,
    /// Most of each over all nodes.
    pub busiest: NodeCount,
    /// Of the node in the middle, each by itself.
    pub median: NodeCount,
    /// Collective calls of a rank.
    pub collectives: u64,
    /// Bytes that they brought it, the rank with most: of the communicator, and so apart from those of nodes.
    pub collective_bytes: u64,
    /// Files of the archive opened, by the rank that opened most.
    pub archive_opens: u64,
    /// On the machine that the figures are for: messages, and collective calls before or after them.
    pub seconds: f64,
    /// Threads of all nodes at most, over nodes.
    pub threads_a_node: f64,
    /// Heap of all nodes at most, over nodes; 0 where it is not counted.
    pub heap_bytes_a_node: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    sent: u64,
    handled: u64,
    bytes: u64,
}

/// Messages by kind and node.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    kinds: Arc<Mutex<BTreeMap<u64, BTreeMap<String, Kind>>>>,
    /// Nobody asks anything of another node meanwhile: who would, waits.
    is_held: Arc<AtomicBool>,
}

/// What tells kinds of messages apart: what their frame begins with, and which variant it is.
fn kind_of(action: &Action) -> (u64, u64) {
    match action {
        Action::Call { request } => {
            let at = backstay_format::FRAME_HEAD_BYTES;
            let magic = request.get(..8).unwrap_or_default();
            let variant = request.get(at).copied().unwrap_or(0);
            let fold = |sum: u64, byte: &u8| sum.wrapping_mul(257).wrapping_add(u64::from(*byte));
            let kind = magic.iter().chain([&variant]).fold(1, fold);
            (kind, backstay_format::width::to_u64(request.len()))
        }
        Action::Describe { .. } => (0, 0),
        Action::Read { span, .. } => (1, span.length),
        Action::ReadPast { length, .. } => (1, *length),
    }
}

impl Tally {
    /// Sees every message of `network`.
    pub(super) fn watch(&self, network: &SimNetwork) {
        let tally = self.clone();
        network.set_hook(move |attempt| {
            let is_request = matches!(attempt.action, Action::Call { .. });
            while is_request && tally.is_held.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            tally.note(attempt);
            None
        });
    }

    fn note(&self, attempt: &Attempt) {
        if attempt.from == attempt.to {
            return;
        }
        let (kind, bytes) = kind_of(&attempt.action);
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = kinds.entry(kind).or_default();
        let sender = nodes.entry(attempt.from.clone()).or_default();
        sender.sent += 1;
        sender.bytes += bytes;
        let receiver = nodes.entry(attempt.to.clone()).or_default();
        receiver.handled += 1;
        receiver.bytes += bytes;
    }

    /// Has requests wait, or lets them go on.
    pub(super) fn hold(&self, holds: bool) {
        self.is_held.store(holds, Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.kinds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Seconds on `machine`.
    pub(super) fn seconds(&self, machine: &Machine) -> f64 {
        let kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let of_kind = |nodes: &BTreeMap<String, Kind>| {
            let most = |what: fn(&Kind) -> u64| nodes.values().map(what).max().unwrap_or(0);
            let waves = most(|kind| kind.sent).div_ceil(machine.width);
            as_f64(waves) * 2.0 * machine.latency_seconds
                + as_f64(most(|kind| kind.handled)) / machine.messages_a_second
                + as_f64(most(|kind| kind.bytes)) / machine.link_bytes_a_second
        };
        // The sum of nothing is -0.
        kinds.values().map(of_kind).sum::<f64>() + 0.0
    }
}

/// The most and the middle of each count.
pub(super) fn spread(counts: &[NodeCount]) -> (NodeCount, NodeCount) {
    let of = |what: fn(&NodeCount) -> u64| {
        let mut all: Vec<u64> = counts.iter().map(what).collect();
        all.sort_unstable();
        let last = all.last().copied().unwrap_or(0);
        (last, all.get(all.len() / 2).copied().unwrap_or(0))
    };
    let (messages, bytes, peers) = (of(|n| n.messages), of(|n| n.bytes), of(|n| n.peers));
    let node = |at: fn((u64, u64)) -> u64| NodeCount {
        messages: at(messages),
        bytes: at(bytes),
        peers: at(peers),
    };
    (node(|(most, _)| most), node(|(_, middle)| middle))
}
