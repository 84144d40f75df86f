// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one rank of a job under measurement: an operation that all ranks do at once, and its cost.
//! In from: the scenarios of a benchmark. Out to: `ranks` (what was measured).
//! Invariants: ranks start an operation at one instant; its CPU time is that of all threads of all
//! ranks, its wall time runs from that instant to the end of the last rank; all learn the same cost.

use crate::Outcome;
use crate::comm::ProcessComm;
use crate::ranks::{Rank, tell};
use backstay::{Communicator, Config};
use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;

/// From the meeting of all ranks to the start of an operation: time for all of them to wake up.
const START_NS: u64 = 500_000;

/// What an operation cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// CPU seconds of all threads of all ranks.
    pub cpu: f64,
    /// Wall seconds until the slowest rank was done.
    pub wall: f64,
}

/// One rank of a job.
#[derive(Debug)]
pub struct Job {
    /// All ranks.
    pub comm: ProcessComm,
    /// Where store and files lie.
    pub folder: PathBuf,
}

impl Job {
    /// The job that a process was started for.
    pub fn new(rank: &Rank) -> Self {
        Self {
            comm: rank.comm.clone(),
            folder: rank.folder.clone(),
        }
    }

    /// A configuration of a store of this job named `name`.
    pub fn config(&self, name: &str) -> Config {
        Config {
            job: Some("bench".to_owned()),
            node: Some("node0".to_owned()),
            store_path: Some(self.folder.join(name)),
            ..Config::default()
        }
    }

    /// A path of this rank's own.
    pub fn own_file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}-{}", self.comm.rank()))
    }

    /// Does `operation` on all ranks at once. Collective.
    pub fn measure<T>(&self, operation: impl FnOnce() -> Outcome<T>) -> Outcome<(T, Cost)> {
        let start = self.meet()?;
        let cpu = cpu_seconds();
        let done = operation()?;
        let (cpu, end) = (cpu_seconds() - cpu, monotonic_ns());
        let wall = crate::as_f64(end.saturating_sub(start)) * 1e-9;
        let cost = Cost {
            cpu: self.sum(cpu)?,
            wall: self.most(wall)?,
        };
        Ok((done, cost))
    }

    /// Waits for an instant that all ranks know. A barrier alone lets its ranks go one after the other,
    /// so that short operations would not overlap.
    fn meet(&self) -> Outcome<u64> {
        let mut start = [i64::try_from(monotonic_ns())?];
        self.comm.allreduce_max(&mut start)?;
        let start = u64::try_from(start[0])? + START_NS;
        while monotonic_ns() < start {
            std::thread::yield_now();
        }
        Ok(start)
    }

    /// The sum of a value over all ranks. Collective.
    pub fn sum(&self, mine: f64) -> Outcome<f64> {
        Ok(self.all(mine)?.into_iter().sum())
    }

    /// The greatest of a value over all ranks. Collective.
    pub fn most(&self, mine: f64) -> Outcome<f64> {
        Ok(self.all(mine)?.into_iter().fold(f64::MIN, f64::max))
    }

    fn all(&self, mine: f64) -> Outcome<Vec<f64>> {
        let size = backstay::format::width::index(self.comm.size());
        let mut all = vec![0; size * 8];
        self.comm
            .allgather(&mine.to_bits().to_le_bytes(), &mut all)?;
        let value = |bytes: &[u8]| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            f64::from_bits(u64::from_le_bytes(word))
        };
        Ok(all.chunks_exact(8).map(value).collect())
    }

    /// Says a measured value, once for all ranks.
    pub fn tell(&self, id: &str, value: f64) -> Outcome<()> {
        if self.comm.rank() == 0 {
            tell(id, value)
        } else {
            Ok(())
        }
    }
}

/// CPU seconds that all threads of this process have used, in user and system mode.
pub fn cpu_seconds() -> f64 {
    crate::as_f64(nanoseconds(ClockId::ProcessCPUTime)) * 1e-9
}

/// Nanoseconds of the clock that all processes of a machine share.
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}
