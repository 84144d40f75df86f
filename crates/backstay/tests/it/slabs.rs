// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slabs of global arrays that ranks of other nodes stored: from the nodes, from stores made again, from the archive.

use crate::job::config;
use backstay::config::Redundancy;
use backstay::{Communicator, Config, ElementType, ErrorKind, Level, Session, Variable};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use backstay_testkit::network::{Action, SimNetwork};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Elements of the arrays, in each dimension.
const GLOBAL: [u64; 3] = [24, 36, 40];

/// How an array is cut among ranks.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// In one dimension.
    Along(usize),
    /// The same, the last rank first.
    Reversed(usize),
    /// In blocks: so many in each dimension.
    Blocks([u64; 3]),
}

impl Cut {
    fn of(self, rank: u64, ranks: u64) -> ([u64; 3], [u64; 3]) {
        let (at, parts) = match self {
            Self::Along(dimension) | Self::Reversed(dimension) => {
                let (mut at, mut parts) = ([0; 3], [1; 3]);
                let is_reversed = matches!(self, Self::Reversed(_));
                at[dimension] = if is_reversed { ranks - 1 - rank } else { rank };
                parts[dimension] = ranks;
                (at, parts)
            }
            Self::Blocks(parts) => {
                assert_eq!(parts.iter().product::<u64>(), ranks);
                let (z, rest) = (rank % parts[2], rank / parts[2]);
                ([rest / parts[1], rest % parts[1], z], parts)
            }
        };
        let (mut start, mut shape) = ([0; 3], [0; 3]);
        for dimension in 0..3 {
            let bound = |at: u64| GLOBAL[dimension] * at / parts[dimension];
            start[dimension] = bound(at[dimension]);
            shape[dimension] = bound(at[dimension] + 1) - start[dimension];
        }
        (start, shape)
    }
}

/// An array of a start.
#[derive(Clone, Copy)]
struct Array(&'static str, Cut);

fn values(name: &str, (start, shape): ([u64; 3], [u64; 3])) -> Vec<u64> {
    let of = u64::from(name.as_bytes()[0]) << 32;
    let mut values = Vec::new();
    for x in start[0]..start[0] + shape[0] {
        for y in start[1]..start[1] + shape[1] {
            values.extend((start[2]..start[2] + shape[2]).map(|z| of + (x << 16) + (y << 8) + z));
        }
    }
    values
}

/// A start of the job on the nodes at `places`, of so many ranks each, `arrays` cut as they say.
struct Start<'a> {
    folder: &'a Path,
    network: &'a SimNetwork,
    places: &'a [usize],
    ranks_a_node: usize,
    arrays: &'a [Array],
    archives: bool,
}

impl Start<'_> {
    fn config(&self, place: usize) -> Config {
        Config {
            node: Some(format!("n{place}")),
            store_path: Some(self.folder.join(format!("n{place}"))),
            redundancy: if self.archives {
                Redundancy::None
            } else {
                Redundancy::Xor
            },
            group_size: 3,
            archive: self.archives.then(|| self.folder.join("pfs")),
            ..config(self.folder)
        }
    }

    /// Opens on all ranks; restores and compares where `restores` says so, then does `body`.
    fn run(&self, restores: bool, body: impl Fn(&mut Session) + Sync) {
        let size = self.places.len() * self.ranks_a_node;
        run_ranks(ThreadComm::new(size), |comm| {
            let (rank, ranks) = (u64::from(comm.rank()), u64::from(comm.size()));
            let at = usize::try_from(rank).unwrap();
            let place = self.places[at / self.ranks_a_node];
            let local = at % self.ranks_a_node;
            let name = match local {
                0 => format!("n{place}"),
                _ => format!("n{place}.{local}"),
            };
            let endpoint = self.network.endpoint(&name);
            let config = self.config(place);
            let session = Session::open_on(Box::new(comm), config, Some(endpoint));
            let mut session = session.expect("opening");
            let mut memory: Vec<(Array, _, Vec<u64>)> = Vec::new();
            for &array in self.arrays {
                let extent = array.1.of(rank, ranks);
                let mut values = values(array.0, extent);
                if restores {
                    values.fill(0);
                }
                memory.push((array, extent, values));
            }
            for (Array(name, _), (start, shape), values) in &mut memory {
                let variable = Variable::new(name, ElementType::U64, shape).slab(&GLOBAL, start);
                // SAFETY: `memory` outlives the session.
                unsafe {
                    session
                        .protect(variable, values.as_mut_ptr().cast())
                        .unwrap();
                };
            }
            if restores {
                session.restore().expect("restoring");
                for (Array(name, cut), extent, got) in &memory {
                    assert!(
                        *got == values(name, *extent),
                        "{name} {cut:?} of rank {rank}"
                    );
                }
            }
            body(&mut session);
            session.close().unwrap();
        });
    }
}

fn protects(session: &mut Session) {
    let handle = session.checkpoint_start().unwrap();
    session.wait(handle, Level::Protected).unwrap();
}

#[test]
fn slabs_come_from_whichever_nodes_have_them() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    let first = Start {
        folder: folder.path(),
        network: &network,
        places: &[0, 1, 2, 3, 4, 5],
        ranks_a_node: 1,
        arrays: &[
            Array("a", Cut::Along(0)),
            Array("b", Cut::Along(0)),
            Array("c", Cut::Reversed(1)),
            Array("d", Cut::Blocks([1, 3, 2])),
        ],
        archives: false,
    };
    first.run(false, protects);
    let twice = Start {
        ranks_a_node: 2,
        arrays: &[
            Array("a", Cut::Reversed(0)),
            Array("b", Cut::Along(2)),
            Array("c", Cut::Along(1)),
            Array("d", Cut::Blocks([2, 2, 3])),
        ],
        ..first
    };
    twice.run(true, protects);
    // As many ranks as before: only what they declare is another.
    let other = Start {
        arrays: &[
            Array("a", Cut::Along(1)),
            Array("b", Cut::Along(2)),
            Array("c", Cut::Blocks([3, 2, 2])),
            Array("d", Cut::Blocks([3, 4, 1])),
        ],
        ..twice
    };
    other.run(true, protects);
    // Fewer, and a node is lost, whose store is made again on another for reading.
    std::fs::remove_dir_all(folder.path().join("n4")).unwrap();
    let fewer = Start {
        places: &[5, 3, 2, 1, 0],
        ranks_a_node: 1,
        arrays: &[
            Array("a", Cut::Along(2)),
            Array("b", Cut::Reversed(0)),
            Array("c", Cut::Along(0)),
            Array("d", Cut::Along(1)),
        ],
        ..other
    };
    fewer.run(true, |_| {});
}

#[test]
fn only_nodes_that_have_something_of_it_are_asked() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    let first = Start {
        folder: folder.path(),
        network: &network,
        places: &[0, 1, 2, 3, 4, 5],
        ranks_a_node: 1,
        arrays: &[Array("a", Cut::Along(1)), Array("b", Cut::Along(1))],
        archives: false,
    };
    first.run(false, protects);
    let network = SimNetwork::new(2);
    let read: Arc<Mutex<BTreeSet<[String; 2]>>> = Arc::default();
    let seen = Arc::clone(&read);
    network.set_hook(move |attempt| {
        // The ranks of a node have names that begin alike.
        let nodes = [&attempt.from, &attempt.to].map(|name| name[..2].to_owned());
        if !matches!(attempt.action, Action::Call { .. }) && nodes[0] != nodes[1] {
            seen.lock().unwrap().insert(nodes);
        }
        None
    });
    // The two ranks of a node have what its one rank had.
    let twice = Start {
        network: &network,
        ranks_a_node: 2,
        ..first
    };
    twice.run(true, |_| {});
    assert!(read.lock().unwrap().is_empty(), "{read:?}");
    // Now it is on the node at the other end.
    let reversed = Start {
        arrays: &[Array("a", Cut::Reversed(1)), Array("b", Cut::Reversed(1))],
        ..twice
    };
    reversed.run(true, |_| {});
    let opposite = (0..6).map(|place| [format!("n{place}"), format!("n{}", 5 - place)]);
    assert_eq!(*read.lock().unwrap(), opposite.collect());
}

/// What cannot be had from anybody is said as that, on all ranks.
#[test]
fn an_array_of_another_shape_is_refused_on_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let run = |ranks: u64, global: u64, restores: bool| {
        let ranks = usize::try_from(ranks).unwrap();
        run_ranks(ThreadComm::new(ranks), |comm| {
            let (rank, ranks) = (u64::from(comm.rank()), u64::from(comm.size()));
            let (start, end) = (global * rank / ranks, global * (rank + 1) / ranks);
            let mut values = vec![7_u64; usize::try_from(end - start).unwrap()];
            let mut session = Session::open(Box::new(comm), config.clone()).unwrap();
            let variable = Variable::new("a", ElementType::U64, &[end - start]);
            let variable = variable.slab(&[global], &[start]);
            // SAFETY: `values` outlives the session.
            unsafe {
                session
                    .protect(variable, values.as_mut_ptr().cast())
                    .unwrap();
            };
            if restores {
                let error = session.restore().unwrap_err();
                let text = error.to_string();
                assert_eq!(error.kind(), ErrorKind::VariableMismatch, "{text}");
                assert!(text.contains("[300]") && text.contains("[400]"), "{text}");
            } else {
                session.checkpoint().unwrap();
            }
        });
    };
    run(3, 300, false);
    run(2, 400, true);
    run(3, 400, true);
}

#[test]
fn slabs_come_from_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let network = SimNetwork::new(1);
    let first = Start {
        folder: folder.path(),
        network: &network,
        places: &[0, 1, 2, 3],
        ranks_a_node: 1,
        arrays: &[Array("a", Cut::Along(0)), Array("b", Cut::Along(2))],
        archives: true,
    };
    first.run(false, |session| {
        let handle = session.checkpoint_start().unwrap();
        session.wait(handle, Level::Archive).unwrap();
    });
    for place in 0..4 {
        std::fs::remove_dir_all(folder.path().join(format!("n{place}"))).unwrap();
    }
    let then = Start {
        places: &[7, 8],
        ranks_a_node: 3,
        arrays: &[Array("a", Cut::Along(1)), Array("b", Cut::Reversed(2))],
        ..first
    };
    then.run(true, |_| {});
}
