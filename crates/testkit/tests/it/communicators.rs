// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every communicator of the workspace that needs no MPI, through the suite.

use backstay_base::comm::Single;
use backstay_base::{Communicator, Result};
use backstay_testkit::ThreadComm;
use backstay_testkit::comm::run_ranks;
use backstay_testkit::conformance::communicator_conformance;
use backstay_testkit::oracle::noise;

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

/// A communicator of a table without gather and broadcast.
struct Older(ThreadComm);

impl Communicator for Older {
    fn rank(&self) -> u32 {
        self.0.rank()
    }
    fn size(&self) -> u32 {
        self.0.size()
    }
    fn allgather(&self, mine: &[u8], all: &mut [u8]) -> Result<()> {
        self.0.allgather(mine, all)
    }
    fn allreduce_max(&self, values: &mut [i64]) -> Result<()> {
        self.0.allreduce_max(values)
    }
    fn barrier(&self) -> Result<()> {
        self.0.barrier()
    }
}

#[test]
fn what_stands_in_for_gather_and_broadcast_conforms() {
    for size in [1, 2, 5] {
        communicator_conformance(ThreadComm::new(size).into_iter().map(Older).collect());
    }
}

#[test]
fn what_is_too_long_for_one_piece_is_gathered_in_several() {
    // Two ranks: pieces of 8 MiB.
    let length = |rank: u32| (20 << 20) + 3 * rank as usize;
    let parts = run_ranks(
        ThreadComm::new(2).into_iter().map(Older).collect(),
        |comm: Older| {
            let mine = noise(u64::from(comm.rank()), length(comm.rank()));
            comm.gather(&mine, 1).unwrap()
        },
    );
    assert!(parts[0].is_empty());
    for (rank, part) in (0..).zip(&parts[1]) {
        assert!(*part == noise(u64::from(rank), length(rank)), "{rank}");
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
    RootGetsTwoPartsSwapped,
    RootGetsTheLongestOnly,
    BroadcastStaysHome,
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
    fn gather(&self, mine: &[u8], root: u32) -> Result<Vec<Vec<u8>>> {
        let mut parts = self.inner.gather(mine, root)?;
        match self.fault {
            Fault::RootGetsTwoPartsSwapped if parts.len() > 1 => parts.swap(0, 1),
            Fault::RootGetsTheLongestOnly => {
                let longest = parts.iter().map(Vec::len).max().unwrap_or(0);
                for part in &mut parts {
                    part.resize(longest, 0);
                }
            }
            _ => {}
        }
        Ok(parts)
    }
    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<()> {
        let mut copy = bytes.to_vec();
        self.inner.broadcast(&mut copy, root)?;
        if !matches!(self.fault, Fault::BroadcastStaysHome) {
            bytes.copy_from_slice(&copy);
        }
        Ok(())
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
    assert!(!passes(Fault::RootGetsTwoPartsSwapped));
    assert!(!passes(Fault::RootGetsTheLongestOnly));
    assert!(!passes(Fault::BroadcastStaysHome));
}
