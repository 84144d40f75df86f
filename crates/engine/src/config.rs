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

/// How checkpoints survive the loss of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Redundancy {
    /// They do not: what a node stores dies with it.
    #[default]
    None,
    /// A copy on one other node.
    Partner,
    /// Parity over the nodes of a group: one of them may be lost.
    Xor,
    /// Reed-Solomon parity: as many nodes of a group may be lost as `parity` says.
    Rs,
}

/// Settings of a session.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of the job; by default the program's name and a hash of its working directory.
    pub job: Option<String>,
    /// Name of the node; by default the host name.
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
    /// When `Session::due` says yes: every so many seconds, or `auto`, as the planner finds best.
    pub interval: Option<String>,
    /// Mean time between failures of one node, in hours, for `interval = "auto"`.
    pub node_mtbf_hours: Option<u64>,
    /// How checkpoints survive the loss of nodes.
    pub redundancy: Redundancy,
    /// Lost nodes of a group that `redundancy = "rs"` covers.
    pub parity: u32,
    /// Nodes that protect each other.
    pub group_size: u32,
    /// What fails together with this node; by default the node alone.
    pub failure_domain: Option<String>,
    /// File that names the failure domain of each node: lines of a node's name and a domain.
    pub failure_domains: Option<PathBuf>,
    /// Threads of each node that gather and encode.
    pub encode_threads: u32,
    /// Bytes a second that each node gathers at most.
    pub encode_rate_bytes: Option<u64>,
    /// Niceness of the threads that encode.
    pub encode_nice: u32,
    /// Address at which this node's agent answers; by default any port of the host's own address.
    pub listen_address: Option<String>,
    /// Take SIGTERM as the wish that the program takes a last checkpoint and leaves.
    pub leave_on_sigterm: bool,
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
            interval: None,
            node_mtbf_hours: None,
            redundancy: Redundancy::default(),
            parity: 2,
            group_size: 8,
            failure_domain: None,
            failure_domains: None,
            encode_threads: 2,
            encode_rate_bytes: None,
            encode_nice: 10,
            listen_address: None,
            leave_on_sigterm: false,
        }
    }
}

/// How a setting is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// One of the words that its meaning names.
    Word,
    /// A whole number from the first to the second, both included.
    Whole(u64, u64),
    /// A power of two from the first to the second, both included.
    PowerOfTwo(u32, u32),
    /// A number from 0 to 1.
    Share,
    /// `true` or `false`.
    Flag,
}

/// What there is to know about a setting.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its key in a file; in the environment `BACKSTAY_` and the key in upper case.
    pub key: &'static str,
    /// How it is written, and its limits.
    pub form: Form,
    /// Its default as written in a file; `None` where it follows from the surroundings.
    pub default: Option<&'static str>,
    /// Unit of the number, or nothing.
    pub unit: &'static str,
    /// What it sets.
    pub meaning: &'static str,
}

impl Setting {
    /// Its variable in the environment.
    pub fn variable(&self) -> String {
        format!("BACKSTAY_{}", self.key.to_uppercase())
    }
}

const fn setting(
    key: &'static str,
    form: Form,
    default: Option<&'static str>,
    unit: &'static str,
    meaning: &'static str,
) -> Setting {
    Setting {
        key,
        form,
        default,
        unit,
        meaning,
    }
}

/// Milliseconds in a day.
const DAY_MS: u64 = 86_400_000;

/// Every setting, in the order of [`Config`]: limits are checked, and docs/reference/config.md is
/// written, from here.
pub const REFERENCE: [Setting; 26] = [
    setting(
        "job",
        Form::Text,
        None,
        "",
        "Name of the job, 1 to 128 bytes without a slash. By default the program's name and a hash \
         of its working folder.",
    ),
    setting(
        "node",
        Form::Text,
        None,
        "",
        "Name of the node, 1 to 128 bytes without a slash. By default the host name.",
    ),
    setting(
        "store_path",
        Form::Text,
        None,
        "",
        "Folder for the store. By default the first of `/dev/shm`, the scheduler's scratch folder \
         and `/var/tmp` that has room.",
    ),
    setting(
        "reserve_bytes",
        Form::Whole(1, 1 << 62),
        None,
        "bytes",
        "Size of the store on each node, and the most it grows to. By default a rule at the first \
         checkpoint, and growth as needed.",
    ),
    setting(
        "segment_bytes",
        Form::PowerOfTwo(limits::SEGMENT_BYTES_MIN, limits::SEGMENT_BYTES_MAX),
        None,
        "bytes",
        "Unit in which ranks lease space. By default chosen from the size of the store.",
    ),
    setting(
        "block_bytes",
        Form::PowerOfTwo(limits::BLOCK_BYTES_MIN, limits::BLOCK_BYTES_MAX),
        Some("16384"),
        "bytes",
        "Unit of change tracking.",
    ),
    setting(
        "tracking",
        Form::Word,
        Some("\"hash\""),
        "",
        "How changed blocks are found: `full`, `hash`, `pages` or `marked`.",
    ),
    setting(
        "retained",
        Form::Whole(2, 32),
        Some("2"),
        "checkpoints",
        "Newest checkpoints to keep.",
    ),
    setting(
        "changed_share",
        Form::Share,
        Some("0.25"),
        "",
        "Share of the state expected to change between checkpoints, for the rule that sizes the \
         store.",
    ),
    setting(
        "capture_threads",
        Form::Whole(1, 256),
        Some("1"),
        "threads",
        "Threads of each rank that capture changed blocks.",
    ),
    setting(
        "cpu_set",
        Form::Text,
        None,
        "",
        "CPUs for background threads, as in `0-3,8`. By default those of the process.",
    ),
    setting(
        "timeout_ms",
        Form::Whole(100, DAY_MS),
        Some("120000"),
        "ms",
        "Longest wait of Backstay's own.",
    ),
    setting(
        "watchdog_ms",
        Form::Whole(10, DAY_MS),
        Some("60000"),
        "ms",
        "After this time inside the communicator a watchdog reports rank and operation.",
    ),
    setting(
        "metrics_interval_ms",
        Form::Whole(0, DAY_MS),
        Some("30000"),
        "ms",
        "Least time between two writings of `metrics.json`.",
    ),
    setting(
        "interval",
        Form::Word,
        None,
        "s",
        "When `due` says that it is time for a checkpoint: every so many seconds, or `auto`, as the \
         planner finds best from measured costs and failures. By default `auto`.",
    ),
    setting(
        "node_mtbf_hours",
        Form::Whole(1, 1_000_000_000),
        None,
        "h",
        "Mean time between failures of one node, what `interval = \"auto\"` begins with; the failures \
         of the job itself count more and more. By default that of table I of the paper on \
         TSUBAME2.0.",
    ),
    setting(
        "redundancy",
        Form::Word,
        Some("\"none\""),
        "",
        "How checkpoints survive the loss of nodes: `none`, `partner` (a copy on another node), `xor` \
         (parity over a group, one lost node), `rs` (Reed-Solomon, `parity` lost nodes).",
    ),
    setting(
        "parity",
        Form::Whole(1, 8),
        Some("2"),
        "nodes",
        "Lost nodes of a group that `redundancy = \"rs\"` covers.",
    ),
    setting(
        "group_size",
        Form::Whole(2, 32),
        Some("8"),
        "nodes",
        "Nodes that protect each other.",
    ),
    setting(
        "failure_domain",
        Form::Text,
        None,
        "",
        "What fails together with this node: a rack, a switch, a power supply. Nodes of one failure \
         domain never protect each other. By default each node is one.",
    ),
    setting(
        "failure_domains",
        Form::Text,
        None,
        "",
        "File with a line for each node, its name and its failure domain, where `failure_domain` is \
         not set.",
    ),
    setting(
        "encode_threads",
        Form::Whole(1, 64),
        Some("2"),
        "threads",
        "Threads of each node that gather and encode in the background.",
    ),
    setting(
        "encode_rate_bytes",
        Form::Whole(1 << 20, 1 << 50),
        None,
        "bytes/s",
        "Most that each node gathers in a second for encoding. By default as much as it can.",
    ),
    setting(
        "encode_nice",
        Form::Whole(0, 19),
        Some("10"),
        "",
        "Niceness of the threads that encode: how far they give way to the application.",
    ),
    setting(
        "listen_address",
        Form::Text,
        None,
        "",
        "Address at which this node's agent answers, as in `10.0.0.1:0`. By default the host's own, and \
         any port.",
    ),
    setting(
        "leave_on_sigterm",
        Form::Flag,
        Some("false"),
        "",
        "Take SIGTERM as the wish that the program takes a last checkpoint and leaves: `should_leave` then \
         says so. A file that `backstay run` names does the same.",
    ),
];

/// Limits of `key`.
fn form(key: &str) -> Form {
    let found = REFERENCE.iter().find(|setting| setting.key == key);
    found.map_or(Form::Text, |setting| setting.form)
}

impl Config {
    /// Defaults, configuration file and environment of this process.
    pub fn from_environment() -> Result<Self> {
        let mut table = match std::env::var_os("BACKSTAY_CONFIG") {
            Some(path) => read_table(Path::new(&path))?,
            None => toml::Table::new(),
        };
        for setting in &REFERENCE {
            let variable = setting.variable();
            let Some(text) = std::env::var_os(&variable) else {
                continue;
            };
            let Some(text) = text.to_str() else {
                return Err(wrong(&format!("{variable} is not UTF-8")));
            };
            let value = environment_value(setting.form, text, &variable)?;
            table.insert(setting.key.to_owned(), value);
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

    /// The configured interval; `None` for `auto`.
    pub fn interval_seconds(&self) -> Result<Option<f64>> {
        let Some(text) = self.interval.as_deref().filter(|text| *text != "auto") else {
            return Ok(None);
        };
        match text.parse::<f64>() {
            Ok(seconds) if (0.001..=1e8).contains(&seconds) => Ok(Some(seconds)),
            _ => Err(wrong(&format!(
                "interval is {text:?}, not auto or 0.001 to 1e8 seconds"
            ))),
        }
    }

    /// Checks every setting against its limits.
    pub fn validate(&self) -> Result<()> {
        in_range("retained", u64::from(self.retained))?;
        in_range("capture_threads", u64::from(self.capture_threads))?;
        in_range("timeout_ms", self.timeout_ms)?;
        in_range("watchdog_ms", self.watchdog_ms)?;
        in_range("metrics_interval_ms", self.metrics_interval_ms)?;
        in_range("block_bytes", u64::from(self.block_bytes))?;
        if let Some(bytes) = self.segment_bytes {
            in_range("segment_bytes", u64::from(bytes))?;
        }
        if let Some(bytes) = self.reserve_bytes {
            in_range("reserve_bytes", bytes)?;
        }
        if let Some(hours) = self.node_mtbf_hours {
            in_range("node_mtbf_hours", hours)?;
        }
        in_range("parity", u64::from(self.parity))?;
        in_range("group_size", u64::from(self.group_size))?;
        in_range("encode_threads", u64::from(self.encode_threads))?;
        in_range("encode_nice", u64::from(self.encode_nice))?;
        if let Some(bytes) = self.encode_rate_bytes {
            in_range("encode_rate_bytes", bytes)?;
        }
        self.interval_seconds()?;
        if let Some(list) = &self.cpu_set {
            crate::cpu::parse(list)?;
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

/// The file whose presence asks the program to leave, as `backstay run` names it.
pub(crate) fn leave_file() -> Option<PathBuf> {
    std::env::var_os(crate::leave::LEAVE_FILE).map(PathBuf::from)
}

fn wrong(context: &str) -> Error {
    Error::new(ErrorKind::Configuration, context)
}

fn in_range(key: &str, value: u64) -> Result<()> {
    let (low, high, power) = match form(key) {
        Form::Whole(low, high) => (low, high, false),
        Form::PowerOfTwo(low, high) => (u64::from(low), u64::from(high), true),
        Form::Text | Form::Word | Form::Share | Form::Flag => return Ok(()),
    };
    if !(low..=high).contains(&value) || (power && !value.is_power_of_two()) {
        let what = if power { "a power of two from " } else { "" };
        return Err(wrong(&format!(
            "{key} is {value}, not {what}{low} to {high}"
        )));
    }
    Ok(())
}

fn read_table(path: &Path) -> Result<toml::Table> {
    let place = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::caused(ErrorKind::Configuration, place.clone(), error))?;
    text.parse()
        .map_err(|error: toml::de::Error| Error::caused(ErrorKind::Configuration, place, error))
}

fn environment_value(form: Form, text: &str, variable: &str) -> Result<toml::Value> {
    match form {
        Form::Text | Form::Word => Ok(toml::Value::String(text.to_owned())),
        Form::Flag => match text {
            "true" | "1" => Ok(toml::Value::Boolean(true)),
            "false" | "0" => Ok(toml::Value::Boolean(false)),
            _ => Err(wrong(&format!("{variable} is {text:?}, not true or false"))),
        },
        Form::Share => match text.parse() {
            Ok(number) => Ok(toml::Value::Float(number)),
            Err(_) => Err(wrong(&format!("{variable} is {text:?}, no number"))),
        },
        Form::Whole(..) | Form::PowerOfTwo(..) => match text.parse() {
            Ok(number) => Ok(toml::Value::Integer(number)),
            Err(_) => Err(wrong(&format!(
                "{variable} is {text:?}, not a whole number"
            ))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::from_table(text.parse().unwrap(), "test")
    }

    #[test]
    fn the_table_has_the_defaults_of_the_struct() {
        let lines = REFERENCE.iter().filter_map(|setting| {
            let default = setting.default?;
            Some(format!("{} = {default}\n", setting.key))
        });
        let text: String = lines.collect();
        assert_eq!(parse(&text).unwrap(), Config::default());
    }

    #[test]
    fn the_table_has_every_key_of_the_struct() {
        let unknown = parse("no_such_key = 1").unwrap_err().to_string();
        for setting in &REFERENCE {
            let named = format!("`{}`", setting.key);
            assert!(unknown.contains(&named), "{named} is not in: {unknown}");
        }
        let named = unknown.matches('`').count() / 2;
        assert_eq!(named, REFERENCE.len() + 1, "{unknown}");
    }

    #[test]
    fn limits_are_those_of_the_table() {
        for setting in &REFERENCE {
            let (low, high) = match setting.form {
                Form::Whole(low, high) => (low, high),
                Form::PowerOfTwo(low, high) => (u64::from(low), u64::from(high)),
                Form::Text | Form::Word | Form::Share | Form::Flag => continue,
            };
            let with = |value: i128| parse(&format!("{} = {value}", setting.key));
            for good in [low, high] {
                assert!(with(good.into()).is_ok(), "{} {good}", setting.key);
            }
            for bad in [i128::from(low) - 1, i128::from(high) + 1] {
                let message = with(bad).unwrap_err().to_string();
                assert!(message.contains(setting.key), "{message}");
            }
        }
        assert!(parse("block_bytes = 10000").is_err());
        assert!(parse("changed_share = 1.5").is_err());
        assert!(parse("cpu_set = \"3-1\"").is_err());
    }
}
