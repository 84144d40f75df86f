// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: every setting, with its default and its limits, in one table.
//! In: defaults, then the file that `BACKSTAY_CONFIG` names, then `BACKSTAY_*` variables, then what
//! the program sets. Out: a checked `Config`.
//! Invariants: an unknown key and a value out of range are errors that name both; nothing is
//! clamped in silence. Reference: docs/reference/config.md.

use crate::error::{Error, ErrorKind, Result};
use backstay_format::limits;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// How changed blocks are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tracking {
    /// Every block is written every time.
    Full,
    /// Blocks whose hash differs from the committed one are written.
    #[default]
    Hash,
    /// Only pages the kernel saw written are hashed (userfaultfd, Linux 6.7); else as `hash`.
    Pages,
    /// Only what the program marked with `mark_dirty` is hashed.
    Marked,
}

/// Settings of a session.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of the job; by default the program's name and a hash of its working directory.
    pub job: Option<String>,
    /// Name of the node; by default host name and boot id.
    pub node: Option<String>,
    /// Folder for the store; by default on `/dev/shm` where it is large enough.
    pub store_path: Option<PathBuf>,
    /// Bytes to reserve on each node; by default a rule applied at the first checkpoint.
    pub reserve_bytes: Option<u64>,
    /// Bytes of a segment; by default chosen from the reserve.
    pub segment_bytes: Option<u32>,
    /// Bytes of a block: the unit of change tracking.
    pub block_bytes: u32,
    /// How changed blocks are found, unless a variable says otherwise.
    pub tracking: Tracking,
    /// Newest checkpoints to keep, at least 2.
    pub retained: u32,
    /// Share of the state expected to change between checkpoints, for the reserve rule.
    pub changed_share: f64,
    /// Threads of each rank that capture changed blocks.
    pub capture_threads: u32,
    /// CPUs for background threads, as in `0-3,8`; by default those of the process.
    pub cpu_set: Option<String>,
    /// Longest wait of ours, in milliseconds.
    pub timeout_ms: u64,
    /// After this time inside the communicator a watchdog reports rank and operation, in milliseconds.
    pub watchdog_ms: u64,
    /// Least time between two writings of `metrics.json`, in milliseconds.
    pub metrics_interval_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            job: None,
            node: None,
            store_path: None,
            reserve_bytes: None,
            segment_bytes: None,
            block_bytes: limits::BLOCK_BYTES_DEFAULT,
            tracking: Tracking::default(),
            retained: 2,
            changed_share: 0.25,
            capture_threads: 1,
            cpu_set: None,
            timeout_ms: 120_000,
            watchdog_ms: 60_000,
            metrics_interval_ms: 30_000,
        }
    }
}

/// The keys, in the order of the struct: each is `BACKSTAY_` and its name in upper case.
pub const KEYS: [&str; 14] = [
    "job",
    "node",
    "store_path",
    "reserve_bytes",
    "segment_bytes",
    "block_bytes",
    "tracking",
    "retained",
    "changed_share",
    "capture_threads",
    "cpu_set",
    "timeout_ms",
    "watchdog_ms",
    "metrics_interval_ms",
];

impl Config {
    /// Defaults, configuration file and environment of this process.
    pub fn from_environment() -> Result<Self> {
        let mut table = match std::env::var_os("BACKSTAY_CONFIG") {
            Some(path) => read_table(Path::new(&path))?,
            None => toml::Table::new(),
        };
        for key in KEYS {
            let variable = format!("BACKSTAY_{}", key.to_uppercase());
            let Some(text) = std::env::var_os(&variable) else {
                continue;
            };
            let Some(text) = text.to_str() else {
                return Err(wrong(&format!("{variable} is not UTF-8")));
            };
            table.insert(key.to_owned(), environment_value(key, text, &variable)?);
        }
        Self::from_table(table, "BACKSTAY_CONFIG and BACKSTAY_* variables")
    }

    /// The settings in a TOML file over the defaults.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_table(read_table(path)?, &path.display().to_string())
    }

    fn from_table(table: toml::Table, place: &str) -> Result<Self> {
        let config: Self = table
            .try_into()
            .map_err(|error| Error::caused(ErrorKind::Configuration, place.to_owned(), error))?;
        config.validate()?;
        Ok(config)
    }

    /// Checks every setting against its limits.
    pub fn validate(&self) -> Result<()> {
        in_range("retained", u64::from(self.retained), 2, 32)?;
        in_range("capture_threads", u64::from(self.capture_threads), 1, 256)?;
        in_range("timeout_ms", self.timeout_ms, 100, 86_400_000)?;
        in_range("watchdog_ms", self.watchdog_ms, 10, 86_400_000)?;
        in_range(
            "metrics_interval_ms",
            self.metrics_interval_ms,
            0,
            86_400_000,
        )?;
        power_in_range(
            "block_bytes",
            self.block_bytes,
            limits::BLOCK_BYTES_MIN,
            limits::BLOCK_BYTES_MAX,
        )?;
        if let Some(bytes) = self.segment_bytes {
            let (low, high) = (limits::SEGMENT_BYTES_MIN, limits::SEGMENT_BYTES_MAX);
            power_in_range("segment_bytes", bytes, low, high)?;
        }
        if !(0.0..=1.0).contains(&self.changed_share) {
            return Err(wrong(&format!(
                "changed_share is {}, not 0 to 1",
                self.changed_share
            )));
        }
        for (key, label) in [("job", &self.job), ("node", &self.node)] {
            let Some(label) = label else { continue };
            let plain = !label.contains(['/', '\0']) && label != "." && label != "..";
            if label.is_empty() || label.len() > limits::LABEL_BYTES_MAX || !plain {
                return Err(wrong(&format!(
                    "{key} is {label:?}, not 1 to {} bytes without a slash",
                    limits::LABEL_BYTES_MAX
                )));
            }
        }
        Ok(())
    }
}

fn wrong(context: &str) -> Error {
    Error::new(ErrorKind::Configuration, context)
}

fn in_range(key: &str, value: u64, low: u64, high: u64) -> Result<()> {
    if (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(wrong(&format!("{key} is {value}, not {low} to {high}")))
    }
}

fn power_in_range(key: &str, value: u32, low: u32, high: u32) -> Result<()> {
    if value.is_power_of_two() && (low..=high).contains(&value) {
        Ok(())
    } else {
        Err(wrong(&format!(
            "{key} is {value}, not a power of two from {low} to {high}"
        )))
    }
}

fn read_table(path: &Path) -> Result<toml::Table> {
    let place = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::caused(ErrorKind::Configuration, place.clone(), error))?;
    text.parse()
        .map_err(|error: toml::de::Error| Error::caused(ErrorKind::Configuration, place, error))
}

fn environment_value(key: &str, text: &str, variable: &str) -> Result<toml::Value> {
    let textual = matches!(key, "job" | "node" | "store_path" | "tracking" | "cpu_set");
    if textual {
        return Ok(toml::Value::String(text.to_owned()));
    }
    if key == "changed_share" {
        let number: f64 = text
            .parse()
            .map_err(|_error| wrong(&format!("{variable} is {text:?}, no number")))?;
        return Ok(toml::Value::Float(number));
    }
    let number: i64 = text
        .parse()
        .map_err(|_error| wrong(&format!("{variable} is {text:?}, not a whole number")))?;
    Ok(toml::Value::Integer(number))
}
