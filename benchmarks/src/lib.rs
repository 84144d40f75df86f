// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What benchmarks of Backstay share: ranks that are processes, costs in wall and CPU time, baselines
//! measured beside what they are compared with, statistics, the table and the JSON file.
//!
//! | module | what it does |
//! |---|---|
//! | [`options`] | words of the command line |
//! | [`comm`] | a communicator between processes, over Unix sockets |
//! | [`ranks`] | starts the ranks of a job, and reads what they measured |
//! | [`job`] | one rank: measures an operation that all ranks do at once |
//! | [`field`] | an array whose granules change, scattered or side by side |
//! | [`baseline`] | memcpy, pwrite, pread: what the machine can do |
//! | [`heap`] | an allocator that counts what is held |
//! | [`scale`] | what each node of a job does, by the number of nodes |
//! | [`syscalls`] | how often a rank called the kernel between two marks |
//! | [`figures`] | what was reached: statistics, table, JSON |
//! | [`machine`] | where, and of which commit |
//! | [`datasets`] | checkpoints of real programs |
//! | [`committed`] | reports that are kept, and what is drawn of them |
//! | [`compression`] | what is found about compression, and the page that shows it |

pub mod options;
pub mod comm;
pub mod ranks;
pub mod job;
pub mod load;
pub mod field;
pub mod baseline;
pub mod heap;
pub mod scale;
pub mod syscalls;
pub mod figures;
pub mod committed;
pub mod compression;
pub mod machine;
pub mod datasets;

/// What goes wrong in a benchmark is told to a person.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A mebibyte.
pub const MIB: usize = 1 << 20;

/// A count as a number to divide by.
#[expect(clippy::cast_precision_loss, reason = "a measurement")]
pub const fn as_f64(value: u64) -> f64 {
    value as f64
}

/// A size as a number to divide by.
#[expect(clippy::cast_precision_loss, reason = "a measurement")]
pub const fn size_f64(value: usize) -> f64 {
    value as f64
}
