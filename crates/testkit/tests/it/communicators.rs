// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every communicator of the workspace that needs no MPI, through the suite.

use backstay_base::comm::Single;
use backstay_base::{Communicator, Result};
use backstay_testkit::ThreadComm;
use backstay_testkit::conformance::communicator_conformance;

#[test]
fn single_conforms() {
    communicator_conformance(vec![Single]);
}

#[test]
fn threads_conform() {
    for size in [1, 2, 3, 8] {
        communicator_conformance(ThreadComm::new(size));
    }
}

/// A communicator with one fault.
struct Broken {
    inner: ThreadComm,
    fault: Fault,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    GatherForgetsTheLast,
    MaximumOfMine,
    BarrierReturnsAtOnce,
}

impl Communicator for Broken {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }
    fn size(&self) -> u32 {
        self.inner.size()
    }
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        self.inner.allgather(mine, all)?;
        if matches!(self.fault, Fault::GatherForgetsTheLast) {
            let keep = all.len() - mine.len();
            all[keep..].fill(0);
        }
        Ok(())
    }
    fn allreduce_max(&self, values: &mut [i64]) -> Result<()> {
        let mut copy = values.to_vec();
        self.inner.allreduce_max(&mut copy)?;
        if !matches!(self.fault, Fault::MaximumOfMine) {
            values.copy_from_slice(&copy);
        }
        Ok(())
    }
    fn barrier(&self) -> Result<()> {
        if matches!(self.fault, Fault::BarrierReturnsAtOnce) {
            return Ok(());
        }
        self.inner.barrier()
    }
}

fn passes(fault: Fault) -> bool {
    let limit = std::time::Duration::from_secs(2);
    let ranks = ThreadComm::with_limit(3, limit)
        .into_iter()
        .map(|inner| Broken { inner, fault })
        .collect();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        communicator_conformance(ranks);
    }))
    .is_ok()
}

#[test]
fn the_suite_finds_each_fault() {
    assert!(passes(Fault::None));
    assert!(!passes(Fault::GatherForgetsTheLast));
    assert!(!passes(Fault::MaximumOfMine));
    assert!(!passes(Fault::BarrierReturnsAtOnce));
}
