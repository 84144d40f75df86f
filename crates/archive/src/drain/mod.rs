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
//! | `seats` | who drains which nodes, and who in the place of one that is gone |
//! | `follow` | one aggregator at work, as its coordinator follows it |
//! | `point` | a process that takes part: answers requests, runs drains |
//! | `source` | on a node: what it has, and blocks gathered for pulling |
//! | `sources` | on an aggregator: the way to the nodes' blocks |
//! | `work` | one drain of one aggregator |
//! | `changes` | which blocks differ from what the archive has |
//! | `equal` | which of them are equal to each other, byte for byte |
//! | `pack` | gathers, encodes and stores the segments of a plan |
//! | `history` | what segments may be a delta to |
//! | `parts` | the trees and roots above the blocks |
//! | `state` | what an aggregator knows of its store |
//! | `tree`, `ledger` | streams and segments of the archive |
//! | `clean` | thinly filled segments |
//! | `sweep` | files that takeovers left behind and nothing needs |
//! | `prune`, `thin` | what goes while no job runs, and stores made smaller by it |
//! | `import`, `files` | files that are archived without a job: as one drain of one aggregator, of files |
//! | `fetch` | the way back: what the archive has for a restart |

mod changes;
mod clean;
mod coordinate;
mod encode;
mod equal;
pub mod fetch;
mod files;
mod follow;
mod history;
pub mod import;
mod ledger;
mod open;
mod pack;
mod parts;
mod point;
pub mod prune;
mod running;
mod seats;
mod servers;
mod settings;
mod source;
mod sources;
mod state;
mod status;
mod sweep;
mod thin;
mod tree;
mod work;

pub use coordinate::{ArchiveNode, ArchivePlan, ArchiveThread};
pub use point::DrainPoint;
pub use running::RunningLock;
pub use servers::{ServerPlace, publish_secret, servers_in, shared_secret};
pub use settings::DrainSettings;
pub use status::{
    AggregatorStatus, ArchiveStatus, MEASURED_FILE, PastDrain, STATUS_FILE, StatusCheckpoint,
    keep_measured,
};

use backstay_base::clock::Deadline;
use backstay_base::error::Result;
use backstay_base::fanout;
use backstay_base::notice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    fanout::all(items, threads_max, |_, item| what(item))
}

/// Does `work` until it ends by itself. Where it panics that is said, and it begins again after `pause`,
/// unless `stop` says otherwise.
fn keep_going(what: &str, stop: &AtomicBool, pause: Duration, mut work: impl FnMut()) {
    while let Err(panic) = catch_unwind(AssertUnwindSafe(&mut work)) {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
        notice::warn(&format!(
            "{what} panicked: {}; it begins again. This is a defect of Backstay: report it",
            said.unwrap_or("without words")
        ));
        let over = Deadline::after(pause);
        while !stop.load(Ordering::Acquire) && over.left().is_some() {
            std::thread::sleep(pause.min(Duration::from_millis(5)));
        }
        if stop.load(Ordering::Acquire) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn what_panics_begins_again_until_it_ends_or_is_told_to() {
        let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
        keep_going("a test", &stop, Duration::ZERO, || {
            assert!(count.fetch_add(1, Ordering::SeqCst) >= 3, "again");
        });
        assert_eq!(count.load(Ordering::SeqCst), 4);
        keep_going("a test", &stop, Duration::from_secs(3600), || {
            stop.store(true, Ordering::Release);
            panic!("the last time");
        });
    }
}
