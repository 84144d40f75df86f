// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: who drains which nodes of a job: staging servers, or nodes that are elected, each for a share of them in
//! the order of their ranks; and who takes the place of one that is gone.
//! In from: the job's nodes, the folder where servers say that they are there. Out to: `coordinate`, `follow`.
//! Invariants: the election follows from the nodes and the configuration alone, so that whoever coordinates comes to
//! the same; every node is of one share; a share is passed on to each of its nodes once in a drain at most.

use super::coordinate::ArchiveNode;
use super::follow::Failed;
use super::servers;
use backstay_base::clock::Stopwatch;
use backstay_base::error::ErrorKind;
use backstay_base::notice;
use backstay_format::StoreId;
use backstay_format::agent::Seat;
use backstay_format::width::index;
use backstay_net::Peer;
use std::path::Path;
use std::time::Duration;

/// In a job of so many nodes each drains itself where nothing is set, and so many aggregators there are in a larger
/// one until each has [`SHARE_MAX`] nodes.
const SMALL_JOB: usize = 32;
/// Nodes of an aggregator where nothing is set, at most.
const SHARE_MAX: usize = 32;
/// An aggregator that fails so often, one drain after the other, is left out.
const FAILURES_MAX: u32 = 3;
/// How long a server that was left out is not asked.
const LEFT_OUT: Duration = Duration::from_secs(60);

/// Aggregators that a job of so many nodes elects where there are no staging servers; `nodes_each` as it is set.
pub(super) fn elected(nodes: usize, nodes_each: Option<u32>) -> usize {
    match nodes_each {
        Some(each) => nodes.div_ceil(index(each).max(1)),
        None => nodes.min(SMALL_JOB).max(nodes.div_ceil(SHARE_MAX)),
    }
}

/// The share of one aggregator: who drains it, and which nodes it is.
#[derive(Debug, Clone)]
pub(super) struct AggregatorSeat {
    pub(super) peer: Peer,
    pub(super) nodes: Vec<ArchiveNode>,
    /// Which of the nodes drains it; none where a server does.
    by_node: Option<usize>,
    /// Drains of it that failed, one after the other.
    failures: u32,
    /// Times that it was passed on in the drain under way.
    passed_on: usize,
}

impl AggregatorSeat {
    /// Its nodes, as messages name them.
    pub(super) fn sources(&self) -> Vec<Seat> {
        let seat = |node: &ArchiveNode| Seat {
            store: StoreId::default(),
            node: node.name.clone(),
            domain: String::new(),
            address: node.address.clone(),
        };
        self.nodes.iter().map(seat).collect()
    }

    /// Who may tell its nodes something: the aggregator, or the next one.
    pub(super) fn speakers(&self) -> impl Iterator<Item = Peer> {
        let next = self.next().and_then(|at| self.nodes.get(at));
        std::iter::once(self.peer.clone()).chain(next.map(ArchiveNode::peer))
    }

    /// The node that is next to drain it.
    fn next(&self) -> Option<usize> {
        let next = self
            .by_node
            .map_or(0, |at| (at + 1) % self.nodes.len().max(1));
        (next < self.nodes.len() && self.by_node != Some(next)).then_some(next)
    }

    /// Whether another one may do better. A node that drains others fails with any of them, which are no better off.
    fn counts(&self, failed: &Failed) -> bool {
        let of_peers = [ErrorKind::PeerUnreachable, ErrorKind::Timeout];
        let is_of_peers = self.by_node.is_some() && of_peers.contains(&failed.error.kind());
        failed.is_its_own() && !is_of_peers
    }

    /// Passes it on where its aggregator does not answer, or fails again and again; who was left out.
    fn pass_on(&mut self, failed: &Failed) -> Option<Peer> {
        let next = self.next()?;
        self.failures += u32::from(self.counts(failed));
        if !failed.is_absent && self.failures < FAILURES_MAX {
            return None;
        }
        // All of them had their turn: it is tried again later.
        let others = self.nodes.len() - usize::from(self.by_node.is_some());
        if self.passed_on >= others {
            return None;
        }
        self.passed_on += 1;
        self.failures = 0;
        self.by_node = Some(next);
        Some(std::mem::replace(&mut self.peer, self.nodes[next].peer()))
    }
}

/// The shares of a job.
#[derive(Debug, Default)]
pub(super) struct Seats {
    seats: Vec<AggregatorSeat>,
    /// Servers that were left out, by their address, and when.
    gone: Vec<(String, Stopwatch)>,
}

impl std::ops::Deref for Seats {
    type Target = [AggregatorSeat];
    fn deref(&self) -> &[AggregatorSeat] {
        &self.seats
    }
}

impl Seats {
    /// Aggregators of a job of so many nodes, as far as is known: servers may come and go.
    pub(super) fn count(folder: &Path, nodes: usize, nodes_each: Option<u32>) -> usize {
        elected(nodes, nodes_each).max(servers::find(folder).len().min(nodes))
    }

    /// Servers that are there take equal shares of `nodes`; without servers the first node of each share does.
    pub(super) fn assign(folder: &Path, nodes: &[ArchiveNode], nodes_each: Option<u32>) -> Self {
        let servers = servers::find(folder);
        let count = match servers.len() {
            0 => elected(nodes.len(), nodes_each),
            servers => servers.min(nodes.len()),
        };
        let mut servers = servers.into_iter();
        let seat = |at: usize| {
            let share = &nodes[at * nodes.len() / count..(at + 1) * nodes.len() / count];
            let server = servers.next();
            AggregatorSeat {
                by_node: server.is_none().then_some(0),
                peer: server.unwrap_or_else(|| share[0].peer()),
                nodes: share.to_vec(),
                failures: 0,
                passed_on: 0,
            }
        };
        Self {
            seats: (0..count).map(seat).collect(),
            gone: Vec::new(),
        }
    }

    /// A drain begins.
    pub(super) fn begin(&mut self) {
        self.seats.iter_mut().for_each(|seat| seat.passed_on = 0);
    }

    /// The aggregator of share `at` drained it.
    pub(super) fn did_well(&mut self, at: usize) {
        self.seats[at].failures = 0;
    }

    /// What an aggregator that does not answer, or that fails again and again, was to drain is drained by a node of
    /// its share. Whether it was left out.
    pub(super) fn leave_out(&mut self, at: usize, failed: &Failed) -> bool {
        let seat = &mut self.seats[at];
        let was_server = seat.by_node.is_none();
        let Some(gone) = seat.pass_on(failed) else {
            return false;
        };
        let (error, heir) = (&failed.error, &seat.peer);
        if was_server {
            notice::warn(&format!(
                "staging server {gone} is left out: {error}; its nodes drain themselves"
            ));
            self.gone.push((gone.address, Stopwatch::start()));
        } else {
            notice::warn(&format!("{heir} drains in the place of {gone}: {error}"));
        }
        true
    }

    /// Servers that came since another was left out take its place, and those that were left out a while
    /// ago and answer again.
    pub(super) fn replace_gone(&mut self, folder: &Path, answers: impl Fn(&Peer) -> bool) {
        if self.gone.is_empty() {
            return;
        }
        for server in servers::find(folder) {
            let mut seats = self.seats.iter();
            if seats.any(|seat| seat.peer.address == server.address) {
                continue;
            }
            let vacant = self.seats.iter().position(|seat| seat.by_node.is_some());
            let Some(vacant) = vacant else { return };
            if self.is_back(&server, &answers) {
                notice::info(&format!("staging server {server} takes part from now on"));
                self.seats[vacant].peer = server;
                self.seats[vacant].by_node = None;
            }
        }
    }

    /// Whether a server may be asked: it is new, or was left out a while ago and answers.
    fn is_back(&mut self, server: &Peer, answers: impl Fn(&Peer) -> bool) -> bool {
        let mut gone = self.gone.iter();
        let Some(at) = gone.position(|(address, _)| *address == server.address) else {
            return true;
        };
        if self.gone[at].1.elapsed() < LEFT_OUT {
            return false;
        }
        let is_back = answers(server);
        if is_back {
            self.gone.swap_remove(at);
        } else {
            self.gone[at].1 = Stopwatch::start();
        }
        is_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_base::error::Error;

    fn nodes(count: usize) -> Vec<ArchiveNode> {
        let node = |at| ArchiveNode {
            name: format!("n{at}"),
            address: format!("sim:n{at}"),
        };
        (0..count).map(node).collect()
    }

    fn assigned(count: usize, nodes_each: Option<u32>) -> Seats {
        Seats::assign(Path::new("/nowhere"), &nodes(count), nodes_each)
    }

    fn absent() -> Failed {
        Failed::to_answer(Error::new(ErrorKind::PeerUnreachable, "gone"))
    }

    #[test]
    fn small_jobs_drain_themselves_and_large_ones_have_few_aggregators() {
        let counts = [1, 16, 32, 33, 64, 256, 1024, 1025, 4096, 10_240];
        let elected = counts.map(|nodes| elected(nodes, None));
        assert_eq!(elected, [1, 16, 32, 32, 32, 32, 32, 33, 128, 320]);
        let set = [1, 4, 64].map(|each| super::elected(10, Some(each)));
        assert_eq!(set, [10, 3, 1]);
    }

    #[test]
    fn every_node_is_of_one_share_in_the_order_of_ranks() {
        for (count, each) in [
            (1, None),
            (33, None),
            (100, None),
            (10, Some(4)),
            (7, Some(64)),
        ] {
            let seats = assigned(count, each);
            let all: Vec<ArchiveNode> = seats.iter().flat_map(|seat| seat.nodes.clone()).collect();
            assert_eq!(all, nodes(count));
            let first = |seat: &AggregatorSeat| seat.peer == seat.nodes[0].peer();
            assert!(seats.iter().all(first));
            let sizes: Vec<usize> = seats.iter().map(|seat| seat.nodes.len()).collect();
            let (least, most) = (sizes.iter().min(), sizes.iter().max());
            assert!(most.unwrap() - least.unwrap() <= 1, "{sizes:?}");
        }
    }

    /// Each of its nodes has its turn, and then the drain fails: it does not go round for ever.
    #[test]
    fn a_share_is_passed_on_to_each_of_its_nodes_once_in_a_drain() {
        let mut seats = assigned(3, Some(3));
        for turn in 0..2 {
            seats.begin();
            let mut held = vec![seats[0].peer.name.clone()];
            while seats.leave_out(0, &absent()) {
                held.push(seats[0].peer.name.clone());
            }
            let order = [["n0", "n1", "n2"], ["n2", "n0", "n1"]];
            assert_eq!(held, order[turn]);
        }
        let mut alone = assigned(1, None);
        assert!(!alone.leave_out(0, &absent()));
    }

    /// A node of the share that is not reached is not reached by another aggregator either.
    #[test]
    fn an_aggregator_is_not_left_out_for_what_its_nodes_do() {
        let mut seats = assigned(2, Some(2));
        for kind in [
            ErrorKind::PeerUnreachable,
            ErrorKind::Timeout,
            ErrorKind::StoreFull,
        ] {
            let failed = Failed::to_drain(Error::new(kind, "of another node"));
            assert!((0..10).all(|_| !seats.leave_out(0, &failed)));
        }
        let failed = Failed::to_drain(Error::new(ErrorKind::StoreIo, "its file system"));
        let left_out = [(); 3].map(|()| seats.leave_out(0, &failed));
        assert_eq!(left_out, [false, false, true]);
        assert_eq!(seats[0].peer.name, "n1");
        let speakers: Vec<String> = seats[0].speakers().map(|peer| peer.name).collect();
        assert_eq!(speakers, ["n1", "n0"]);
    }
}
