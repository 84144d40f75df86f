// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: brings checkpoints from the nodes to the archive while the application runs: finds what the
//! archive lacks, gathers it from the nodes, merges, compresses and stores it, and records what is whole.
//! In from: `agent` or a staging server (an endpoint; on a node, its store). Out to: `aggregate`, `codec`,
//! `archive`.
//! Invariants: a checkpoint is offered for restart only when all of it is durable and recorded; what an
//! interrupted drain stored is not stored again; a drain that fails leaves the archive as it was.
//! Format: docs/format/drain.md (messages), docs/format/archive.md (what is stored).
//!
//! | file | what it does |
//! |---|---|
//! | `coordinate` | on the node of rank 0: which checkpoint, which aggregators, the catalog |
//! | `point` | a process that takes part: answers requests, runs drains |
//! | `source` | on a node: what it has, and blocks gathered for pulling |
//! | `sources` | on an aggregator: the way to the nodes' blocks |
//! | `work` | one drain of one aggregator |
//! | `changes` | which blocks differ from what the archive has |
//! | `pack` | gathers, encodes and stores the segments of a plan |
//! | `history` | what segments may be a difference to |
//! | `parts` | the trees and roots above the blocks |
//! | `state` | what an aggregator knows of its store |
//! | `tree`, `ledger` | streams and segments of the archive |
//! | `clean` | thinly filled segments |
//! | `sweep` | files that takeovers left behind and nothing needs |
//! | `prune` | what goes while no job runs |
//! | `fetch` | the way back: what the archive has for a restart |

mod changes;
mod clean;
mod coordinate;
mod encode;
pub mod fetch;
mod history;
mod ledger;
mod open;
mod pack;
mod parts;
mod point;
pub mod prune;
mod running;
mod servers;
mod settings;
mod source;
mod sources;
mod state;
mod status;
mod sweep;
mod tree;
mod work;

pub use coordinate::{ArchiveNode, ArchivePlan, ArchiveThread};
pub use point::DrainPoint;
pub use running::RunningLock;
pub use servers::{ServerPlace, servers_in, shared_secret};
pub use settings::DrainSettings;
pub use status::{AggregatorStatus, ArchiveStatus, STATUS_FILE, StatusCheckpoint};

use crate::error::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Most threads that wait for other nodes at once.
const PARALLEL_MAX: usize = 8;

/// Does `what` for all of `items`, several at the same time; the results in order, or the first error.
fn parallel<I: Sync, T: Send>(
    items: &[I],
    threads_max: usize,
    what: impl Fn(&I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    if let [only] = items {
        return what(only).map(|one| vec![one]);
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else {
                return done;
            };
            done.push((at, what(item)));
        }
    };
    let panicked = || Error::new(ErrorKind::Internal, "a thread of a drain panicked");
    let mut results: Vec<(usize, Result<T>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..items.len().min(threads_max))
            .map(|_| scope.spawn(work))
            .collect();
        let of = |thread: std::thread::ScopedJoinHandle<'_, Vec<(usize, Result<T>)>>| {
            thread.join().unwrap_or_else(|_| vec![(0, Err(panicked()))])
        };
        threads.into_iter().flat_map(of).collect()
    });
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}
