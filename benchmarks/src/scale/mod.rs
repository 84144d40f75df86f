// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what each node of a job does, by the number of nodes: real sessions, agents, rounds and drains of tiny
//! stores in one process, over a network that counts.
//! In from: `bench-scale`, and a test of growth. Out to: counts of the busiest and of the median node.
//! Invariants: nothing is timed: seconds are computed from what was counted, by the machine of [`Machine`].

mod count;
mod job;
mod predict;

pub use count::{Counted, Machine, NodeCount};
pub use job::{Operation, Setting, measure};
pub use predict::{Predicted, predict};

/// What grows with the number of nodes, between two measurements of one operation.
///
/// Returns how many times the busiest node of `large` does what that of `small` does; less than a message for each
/// member of a group counts as that.
pub fn growth(small: &Counted, large: &Counted) -> f64 {
    let few = u64::from(Setting::of(0).group_size);
    crate::as_f64(large.busiest.messages) / crate::as_f64(small.busiest.messages.max(few))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a checkpoint or a restart costs on the busiest node does not grow with the job, but for what the
    /// communicator does.
    #[test]
    fn the_busiest_node_does_no_more_in_a_large_job() {
        let of = |nodes| measure(&Setting::of(nodes), std::path::Path::new("/dev/shm")).unwrap();
        let (small, large) = (of(16), of(256));
        for (small, large) in small.iter().zip(&large) {
            assert_eq!(small.operation, large.operation);
            let (operation, growth) = (large.operation, growth(small, large));
            if let Some(most) = operation.growth_max() {
                assert!(growth <= most, "{operation:?}: messages x {growth}");
                let group = u64::from(Setting::of(256).group_size);
                let of_group = operation == Operation::RestartAfterLosses;
                assert!(
                    large.busiest.peers < group || of_group,
                    "{operation:?}: {:?}",
                    large.busiest
                );
                let is_checkpoint = operation == Operation::Checkpoint;
                assert!(
                    large.collectives == 2 || !is_checkpoint && large.collectives <= 48,
                    "{operation:?}: {} calls",
                    large.collectives
                );
            }
        }
    }
}
