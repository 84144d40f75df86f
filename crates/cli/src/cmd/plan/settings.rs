// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: a plan as settings of a job, to be pasted.
//! In: the inputs and the best plan for them. Out: TOML, as `backstay::Config` reads it.
//! Invariants: what only the user knows, as the folder of the archive, is a comment.

use backstay_model::human::{Inputs, Protection};
use backstay_model::optimize::Best;

/// Levels of the model: 1 the node, 2 the group, 3 the archive.
const GROUP: usize = 2;
const ARCHIVE: usize = 3;

/// The settings.
pub(super) fn toml(inputs: &Inputs, best: &Best) -> String {
    let seconds = best.case.interval_seconds;
    let mut lines = vec![
        format!(
            "interval = \"{seconds:.0}\"  # seconds; \"auto\" plans anew from what the job measures"
        ),
        format!(
            "node_mtbf_hours = {:.0}",
            inputs.node_mtbf_hours.clamp(1.0, 1e9)
        ),
    ];
    if inputs.changed_share < 1.0 {
        lines.push(format!("changed_share = {:?}", inputs.changed_share));
    }
    let scheme = match inputs.protection {
        Protection::Xor => "xor",
        Protection::Partner => "partner",
    };
    let has = |level| best.used_levels.contains(&level);
    let scheme = if has(GROUP) { scheme } else { "none" };
    lines.push(format!("redundancy = \"{scheme}\""));
    if has(ARCHIVE) {
        lines.push("# archive = \"/path/on/the/parallel/file/system\"".to_owned());
        lines.push(format!(
            "archive_every = {}",
            best.solution.intervals.max(1)
        ));
    }
    lines.join("\n") + "\n"
}
