// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what each node of a simulated network sent and received.
//! In from: the network, operation by operation. Out to: tests that bound what the busiest node does.
//! Invariants: operations count that arrived; each at both ends.

use std::collections::BTreeSet;

/// What an operation carried, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Carried {
    Request(u64),
    Answer(u64),
    Pulled(u64),
    /// Pulled past its owner, which does nothing.
    Past(u64),
}

/// What one node sent and received since its name was first used, or since [`super::SimNetwork::clear_traffic`].
/// Operations count that arrived, whatever became of their answers, and what a node asks of itself does not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Requests that it sent.
    pub calls_sent: u64,
    /// Requests of others that it handled.
    pub calls_handled: u64,
    /// Pulls that it began.
    pub pulls_sent: u64,
    /// Pulls of others that it served.
    pub pulls_served: u64,
    /// Bytes of requests and answers that it sent.
    pub message_bytes_sent: u64,
    /// Bytes of requests and answers that it received.
    pub message_bytes_received: u64,
    /// Bytes that it pulled.
    pub bytes_pulled: u64,
    /// Bytes that others pulled from it.
    pub bytes_served: u64,
    /// Nodes that it asked.
    pub peers_asked: BTreeSet<String>,
    /// Nodes that asked it.
    pub peers_asking: BTreeSet<String>,
}

impl Traffic {
    /// Messages: requests and pulls that it sent, and those that it answered.
    pub fn messages(&self) -> u64 {
        self.calls_sent + self.calls_handled + self.pulls_sent + self.pulls_served
    }

    /// Nodes that it exchanged anything with.
    pub fn peers(&self) -> usize {
        self.peers_asked.union(&self.peers_asking).count()
    }

    /// Counts an operation with `peer` of what it carried, for who began it or for whom it went to.
    pub(super) fn note(&mut self, peer: &str, carried: Carried, is_sender: bool) {
        let (sent, received) = match carried {
            Carried::Request(request) => (request, 0),
            Carried::Answer(answer) => (0, answer),
            Carried::Past(_) if !is_sender => return,
            Carried::Pulled(bytes) | Carried::Past(bytes) if is_sender => {
                self.pulls_sent += 1;
                self.bytes_pulled += bytes;
                (0, 0)
            }
            Carried::Pulled(bytes) | Carried::Past(bytes) => {
                self.pulls_served += 1;
                self.bytes_served += bytes;
                (0, 0)
            }
        };
        let requests = u64::from(matches!(carried, Carried::Request(_)));
        let peers = if is_sender {
            self.message_bytes_sent += sent;
            self.message_bytes_received += received;
            self.calls_sent += requests;
            &mut self.peers_asked
        } else {
            self.message_bytes_sent += received;
            self.message_bytes_received += sent;
            self.calls_handled += requests;
            &mut self.peers_asking
        };
        if !peers.contains(peer) {
            peers.insert(peer.to_owned());
        }
    }
}
