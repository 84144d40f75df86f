// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From what users know (nodes, mean time between failures, gigabytes) to the model's input.
//!
//! Purpose: three levels out of a dozen everyday numbers, every default with its source.
//! In from: a TOML file, flags or the metrics of a run.
//! Out to: [`crate::optimize::Problem`].
//! Invariants: level 1 is the node's own store (survives the process), level 2 the redundancy
//! group (survives the node), level 3 the archive; GB are 10^9 bytes; a value that looks like one
//! in another unit is asked about, never converted.

use serde::{Deserialize, Serialize};

use crate::differential::{ChangedShare, Differential, Hashing};
use crate::error::{ModelError, check_range};
use crate::levels::{Completion, Mode, Transfer};
use crate::optimize::{Bounds, Problem};

/// Failure rates of TSUBAME2.0 by category, per second (table I of the paper): compute nodes, power
/// supplies, edge switches, racks, and file system with core switches.
pub const TABLE_I_PER_SECOND: [f64; 5] = [0.1757e-4, 0.3999e-6, 0.6665e-6, 0.1332e-6, 0.1778e-6];
/// Nodes of TSUBAME2.0 in table I.
pub const TABLE_I_NODES: f64 = 1408.0;

/// Share of table I's failures that hit one node (category 1) and that hit more (2 to 5).
pub fn table_i_shares() -> [f64; 3] {
    let total: f64 = TABLE_I_PER_SECOND.iter().sum();
    let node = TABLE_I_PER_SECOND[0] / total;
    [0.0, node, 1.0 - node]
}

/// Mean time between failures of one node by table I, in hours.
pub fn table_i_node_mtbf_hours() -> f64 {
    TABLE_I_NODES / TABLE_I_PER_SECOND.iter().sum::<f64>() / 3600.0
}

/// How level 2 protects the state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protection {
    /// Parity over a group of nodes.
    Xor,
    /// A whole copy on another node.
    Partner,
}

/// What a user knows about a job. Every field has a default; [`Inputs::DEFAULTS`] says from where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Inputs {
    /// Nodes that the job runs on.
    pub nodes: f64,
    /// Mean time between failures of one node, in hours.
    pub node_mtbf_hours: f64,
    /// Shares of the node failures that need level 1, 2 and 3.
    pub failure_shares: Vec<f64>,
    /// Failures of the program itself, which need level 1, per day of the job.
    pub process_failures_per_day: f64,
    /// State of one node, in GB.
    pub state_gb_per_node: f64,
    /// Rate at which a node writes into its own store, in GB/s.
    pub local_write_gb_per_second: f64,
    /// Rate at which a node reads from its own store, in GB/s.
    pub local_read_gb_per_second: f64,
    /// Rate at which a node encodes parity with its group, in GB/s.
    pub encode_gb_per_second: f64,
    /// Rate at which a node copies to its partner, in GB/s.
    pub partner_gb_per_second: f64,
    /// How level 2 protects.
    pub protection: Protection,
    /// Rate of the file system as this job sees it, all nodes together, in GB/s.
    pub file_system_gb_per_second: f64,
    /// Rate at which a node hashes its state, in GB/s.
    pub hash_gb_per_second: f64,
    /// Share of the state that changes between checkpoints; with `changed-time-seconds`, the share
    /// that ever changes.
    pub changed_share: f64,
    /// Time in which 63 % of that share has changed, in seconds; 0 when it changes at once.
    pub changed_time_seconds: f64,
    /// Size of the state over its compressed size in the archive.
    pub compression_ratio: f64,
    /// Slowdown of the application while a transfer is in flight, as a share.
    pub slowdown_share: f64,
    /// Time until a failure is noticed, in seconds.
    pub notice_seconds: f64,
    /// Time to relaunch the job after a failure was noticed, before anything is read, in seconds.
    pub relaunch_seconds: f64,
    /// Useful length of the job, in hours; no interval is longer.
    pub job_hours: f64,
    /// Whether the archive is written while the application computes.
    pub background_archive: bool,
}

impl Default for Inputs {
    fn default() -> Self {
        Self {
            nodes: 128.0,
            node_mtbf_hours: table_i_node_mtbf_hours(),
            failure_shares: table_i_shares().to_vec(),
            process_failures_per_day: 0.0,
            state_gb_per_node: 32.0,
            local_write_gb_per_second: 2.0,
            local_read_gb_per_second: 2.0,
            encode_gb_per_second: 0.4,
            partner_gb_per_second: 1.0,
            protection: Protection::Xor,
            file_system_gb_per_second: 6.7,
            hash_gb_per_second: 11.7,
            changed_share: 1.0,
            changed_time_seconds: 0.0,
            compression_ratio: 1.0,
            slowdown_share: 0.00184,
            notice_seconds: 0.0,
            relaunch_seconds: 0.0,
            job_hours: 168.0,
            background_archive: true,
        }
    }
}

/// A default: field, value in words, and where it is from.
pub type NamedDefault = (&'static str, &'static str);

impl Inputs {
    /// Where each default is from. Values marked assumed stand for nothing that was measured.
    pub const DEFAULTS: [NamedDefault; 20] = [
        ("nodes", "128: assumed"),
        (
            "node-mtbf-hours",
            "20642 h: TSUBAME2.0, table I (1408 nodes, 1.895e-5 failures/s)",
        ),
        (
            "failure-shares",
            "0, 0.927, 0.073: TSUBAME2.0, table I (category 1; 2 to 5)",
        ),
        (
            "process-failures-per-day",
            "0: table I counts no failures of the program itself",
        ),
        ("state-gb-per-node", "32 GB: assumed"),
        ("local-write-gb-per-second", "2 GB/s: assumed"),
        ("local-read-gb-per-second", "2 GB/s: assumed"),
        (
            "encode-gb-per-second",
            "0.4 GB/s: XOR in the non-blocking checkpointing paper",
        ),
        ("partner-gb-per-second", "1 GB/s: assumed"),
        (
            "protection",
            "xor: what the plan assumes; a job has none unless `redundancy` is set",
        ),
        (
            "file-system-gb-per-second",
            "6.7 GB/s: TSUBAME2.0's Lustre in the paper",
        ),
        (
            "hash-gb-per-second",
            "11.7 GB/s: XXH3-128, measured on a 2-core AMD EPYC machine",
        ),
        ("changed-share", "1: everything changes"),
        ("changed-time-seconds", "0: it changes at once"),
        ("compression-ratio", "1: none"),
        ("slowdown-share", "0.00184: Himeno benchmark in the paper"),
        ("notice-seconds", "0: not counted"),
        ("relaunch-seconds", "0: not counted"),
        ("job-hours", "168 h: assumed"),
        ("background-archive", "true"),
    ];

    /// The model's input. Levels 1 to 3 are node, group and archive.
    pub fn problem(&self) -> Result<Problem, ModelError> {
        self.validate()?;
        let size = self.state_gb_per_node;
        let total = self.node_failures_per_second();
        let mut failures_per_second: Vec<f64> = self
            .failure_shares
            .iter()
            .map(|share| share * total)
            .collect();
        failures_per_second[0] += self.process_failures_per_day / 86_400.0;
        let write = size / self.local_write_gb_per_second;
        let protect = write + self.protect_seconds();
        let read = self.restart_seconds() + size / self.local_read_gb_per_second;
        let rebuild = read + self.protect_seconds();
        let archive = self.archive_seconds();
        let mode = if self.background_archive {
            Mode::NonBlocking(Transfer {
                slowdown_share: self.slowdown_share,
                latency_seconds: archive,
                top_checkpoint_seconds: protect,
                completion: Completion::Continuous,
            })
        } else {
            Mode::Blocking
        };
        Ok(Problem {
            failures_per_second,
            checkpoint_seconds: vec![write, protect, archive],
            recovery_seconds: vec![read, rebuild, self.restart_seconds() + archive],
            recovers_by_failure: true,
            mode,
            differential: Some(self.differential()),
            bounds: Bounds {
                interval_seconds_max: self.job_hours * 3600.0,
                ..Bounds::default()
            },
        })
    }

    /// Time from a failure until something is read, in seconds.
    pub fn restart_seconds(&self) -> f64 {
        self.notice_seconds + self.relaunch_seconds
    }

    /// Failures of all nodes together, per second.
    pub fn node_failures_per_second(&self) -> f64 {
        self.nodes / (self.node_mtbf_hours * 3600.0)
    }

    /// Time to make a full checkpoint survive its node, in seconds.
    fn protect_seconds(&self) -> f64 {
        match self.protection {
            Protection::Xor => self.state_gb_per_node / self.encode_gb_per_second,
            Protection::Partner => self.state_gb_per_node / self.partner_gb_per_second,
        }
    }

    /// Time to move a full checkpoint of all nodes to or from the archive, in seconds.
    pub fn archive_seconds(&self) -> f64 {
        let bytes = self.nodes * self.state_gb_per_node / self.compression_ratio;
        bytes / self.file_system_gb_per_second
    }

    fn differential(&self) -> Differential {
        let changed = if self.changed_time_seconds > 0.0 {
            ChangedShare::Saturating {
                ceiling_share: self.changed_share,
                time_seconds: self.changed_time_seconds,
            }
        } else {
            ChangedShare::Constant(self.changed_share)
        };
        Differential {
            changed,
            hash_seconds: self.state_gb_per_node / self.hash_gb_per_second,
            hashing: Hashing::Once,
            drains_changes_only: true,
        }
    }

    /// Checks every field; the error names field, value and allowed range.
    pub fn validate(&self) -> Result<(), ModelError> {
        check_range("nodes", self.nodes, 1.0, 1e8)?;
        check_range("node-mtbf-hours", self.node_mtbf_hours, 1e-6, 1e12)?;
        check_range(
            "process-failures-per-day",
            self.process_failures_per_day,
            0.0,
            1e7,
        )?;
        check_range("state-gb-per-node", self.state_gb_per_node, 1e-9, 1e9)?;
        check_range("changed-share", self.changed_share, 0.0, 1.0)?;
        check_range("changed-time-seconds", self.changed_time_seconds, 0.0, 1e12)?;
        check_range("compression-ratio", self.compression_ratio, 0.1, 1e6)?;
        check_range("slowdown-share", self.slowdown_share, 0.0, 1e3)?;
        check_range("notice-seconds", self.notice_seconds, 0.0, 1e9)?;
        check_range("relaunch-seconds", self.relaunch_seconds, 0.0, 1e9)?;
        check_range("job-hours", self.job_hours, 1e-3, 1e9)?;
        for (field, value) in [
            ("local-write-gb-per-second", self.local_write_gb_per_second),
            ("local-read-gb-per-second", self.local_read_gb_per_second),
            ("encode-gb-per-second", self.encode_gb_per_second),
            ("partner-gb-per-second", self.partner_gb_per_second),
            ("file-system-gb-per-second", self.file_system_gb_per_second),
            ("hash-gb-per-second", self.hash_gb_per_second),
        ] {
            check_range(field, value, 1e-9, 1e9)?;
        }
        self.validate_shares()
    }

    fn validate_shares(&self) -> Result<(), ModelError> {
        let shares = &self.failure_shares;
        let shown = format!("{shares:?}");
        if shares.len() != 3 {
            let allowed = "three shares, for level 1, 2 and 3";
            return Err(ModelError::field("failure-shares", shown, allowed));
        }
        for (index, &share) in shares.iter().enumerate() {
            check_range(&format!("failure-shares[{index}]"), share, 0.0, 1.0)?;
        }
        let sum: f64 = shares.iter().sum();
        if (sum - 1.0).abs() < 1e-6 {
            return Ok(());
        }
        Err(ModelError::field(
            "failure-shares",
            format!("{shown}, sum {sum}"),
            "a sum of 1",
        ))
    }

    /// The first value that looks like one in another unit, as a question.
    pub fn suspicion(&self) -> Option<ModelError> {
        let ask = |field: &str, value: f64, suspicion: &str, question: &str| {
            Some(ModelError::Suspicious {
                field: field.to_owned(),
                value: format!("{value:?}"),
                suspicion: suspicion.to_owned(),
                question: question.to_owned(),
            })
        };
        let mtbf = self.node_mtbf_hours;
        if mtbf < 0.1 {
            let question = "is it failures per hour? The mean time between failures is its inverse";
            return ask(
                "node-mtbf-hours",
                mtbf,
                "a rate where a time belongs",
                question,
            );
        }
        if mtbf > 1e7 {
            return ask("node-mtbf-hours", mtbf, "seconds", "is it in hours?");
        }
        if self.nodes.fract() != 0.0 {
            return ask("nodes", self.nodes, "something else", "is it a count?");
        }
        for (field, value) in [
            ("local-write-gb-per-second", self.local_write_gb_per_second),
            ("local-read-gb-per-second", self.local_read_gb_per_second),
            ("encode-gb-per-second", self.encode_gb_per_second),
            ("partner-gb-per-second", self.partner_gb_per_second),
            ("hash-gb-per-second", self.hash_gb_per_second),
        ] {
            if value > 2000.0 {
                return ask(field, value, "MB/s", "is it in GB/s for one node?");
            }
        }
        if self.file_system_gb_per_second > 1e5 {
            let value = self.file_system_gb_per_second;
            return ask(
                "file-system-gb-per-second",
                value,
                "MB/s",
                "is it in GB/s for the job?",
            );
        }
        if self.state_gb_per_node > 1e5 {
            return ask(
                "state-gb-per-node",
                self.state_gb_per_node,
                "MB",
                "is it in GB?",
            );
        }
        if self.slowdown_share > 1.0 {
            return ask(
                "slowdown-share",
                self.slowdown_share,
                "percent",
                "is it a share of 1?",
            );
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_i_adds_up_to_the_papers_figures() {
        let lower: f64 = TABLE_I_PER_SECOND[1..].iter().sum();
        assert!((lower - 1.3774e-6).abs() < 1e-12);
        assert!((table_i_node_mtbf_hours() - 20_642.0).abs() < 1.0);
        let shares = table_i_shares();
        assert!((shares[1] - 0.927_305).abs() < 1e-4, "{shares:?}");
    }

    #[test]
    fn the_papers_machine_gives_the_papers_costs() {
        let inputs = Inputs {
            nodes: 1408.0,
            state_gb_per_node: 29.0,
            local_write_gb_per_second: 1e9,
            ..Inputs::default()
        };
        let problem = inputs.problem().unwrap();
        assert!((problem.failures_per_second[1] - 1.757e-5).abs() < 1e-9);
        assert!((problem.checkpoint_seconds[1] - 72.5).abs() < 1e-6);
        assert!((problem.recovery_seconds[2] - 29.0 * 1408.0 / 6.7).abs() < 1e-6);
    }

    #[test]
    fn every_default_is_named_and_every_bad_field_too() {
        let text = serde_json::to_value(Inputs::default()).unwrap();
        let fields: Vec<&String> = text.as_object().unwrap().keys().collect();
        assert_eq!(fields.len(), Inputs::DEFAULTS.len());
        for (name, _) in Inputs::DEFAULTS {
            assert!(fields.iter().any(|field| *field == name), "{name}");
            if !text[name].is_number() {
                continue;
            }
            for bad in [-1.0, 1e300] {
                let mut spoilt = text.clone();
                spoilt[name] = bad.into();
                let inputs: Inputs = serde_json::from_value(spoilt).unwrap();
                let error = inputs.problem().unwrap_err().to_string();
                assert!(error.starts_with(name), "{name}: {error}");
            }
        }
        let shares = Inputs {
            failure_shares: vec![0.5, 0.6, 0.1],
            ..Inputs::default()
        };
        assert!(
            shares
                .problem()
                .unwrap_err()
                .to_string()
                .contains("a sum of 1")
        );
    }

    #[test]
    fn wrong_units_are_asked_about() {
        assert_eq!(Inputs::default().suspicion(), None);
        let rate = Inputs {
            node_mtbf_hours: 1e-5,
            ..Inputs::default()
        };
        assert!(
            rate.suspicion()
                .unwrap()
                .to_string()
                .contains("a rate where a time belongs")
        );
        let percent = Inputs {
            slowdown_share: 3.0,
            ..Inputs::default()
        };
        assert!(percent.suspicion().unwrap().to_string().contains("percent"));
    }
}
