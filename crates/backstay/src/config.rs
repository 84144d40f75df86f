// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: every setting, with its default and its limits, in one table.
//! In: defaults, then the file that `BACKSTAY_CONFIG` names, then `BACKSTAY_*` variables, then what
//! the program sets. Out: a checked `Config`.
//! Invariants: an unknown key and a value out of range are errors that name both; nothing is
//! clamped in silence. Reference: docs/reference/config.md.

mod parts;
mod read;
mod reference;

pub use backstay_format::Merge;
pub use backstay_format::drain::ArchiveCodec;
pub use reference::{Form, REFERENCE, Setting};

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::limits;
use serde::{Deserialize, Serialize, Serializer};
use std::path::{Path, PathBuf};

/// How changed blocks are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tracking {
    /// Every block is written every time.
    Full,
    /// Blocks whose hash differs from the committed one are written.
    #[default]
    Hash,
    /// Only pages the kernel saw written are hashed (userfaultfd, Linux 6.7); else as `hash`.
    Pages,
    /// Only what the program marked with `mark_dirty` is hashed, once marks have named all that
    /// changed; a variable of at most 64 KiB, and one that is never marked, as `hash`.
    Marked,
}

/// How checkpoints survive the loss of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
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

/// How nodes read sealed bytes of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Over libfabric where it has a provider of network hardware, else over TCP.
    Auto,
    /// Over TCP.
    #[default]
    Tcp,
    /// Over libfabric, which must be there.
    Libfabric,
}

/// Settings of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Name of the job; by default the program's name and a hash of its working directory.
    pub job: Option<String>,
    /// Name of the node; by default the host name.
    pub node: Option<String>,
    /// Folder for the store; by default on `/dev/shm` where it is large enough.
    #[serde(serialize_with = "as_text")]
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
    /// Fraction of the state expected to change between checkpoints, for the reserve rule.
    pub changed_share: f64,
    /// Threads of each rank that capture changed blocks, and read them back; by default its share of the
    /// processors, at most 8.
    pub capture_threads: Option<u32>,
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
    #[serde(serialize_with = "as_text")]
    pub failure_domains: Option<PathBuf>,
    /// Threads of each node that gather and encode.
    pub encode_threads: u32,
    /// Bytes a second that each node gathers at most.
    pub encode_rate_bytes: Option<u64>,
    /// Niceness of the threads that encode.
    pub encode_nice: u32,
    /// Address at which this node's agent answers; by default any port of the host's own address.
    pub listen_address: Option<String>,
    /// How nodes read sealed bytes of each other.
    pub transport: Transport,
    /// Provider of libfabric; by default the first of network hardware.
    pub fabric_provider: Option<String>,
    /// Take SIGTERM as the wish that the program takes a last checkpoint and leaves.
    pub leave_on_sigterm: bool,
    /// The checkpoint that the first `restore` takes; by default the newest.
    pub restore_checkpoint: Option<u64>,
    /// Begin anew whatever is stored: 1 at every start, a higher number once, for all starts that have the same.
    pub fresh: Option<u64>,
    /// Folder on the parallel file system that checkpoints drain to.
    #[serde(serialize_with = "as_text")]
    pub archive: Option<PathBuf>,
    /// Every so many checkpoints one is drained; by default those that the planner picks.
    pub archive_every: Option<u32>,
    /// Checkpoints that the archive keeps.
    pub archive_retained: u32,
    /// Nodes that one of them drains where there are no staging servers; by default a rule.
    pub aggregate_nodes: Option<u32>,
    /// How ranks are merged.
    pub archive_merge: Merge,
    /// Ranks that are merged with each other.
    pub archive_group_size: u32,
    /// How codecs are chosen.
    pub archive_codec: ArchiveCodec,
    /// Whether a second, general-purpose pass is tried.
    pub archive_second_pass: bool,
    /// Threads of each aggregator that encode.
    pub archive_threads: u32,
    /// Threads of each aggregator that write.
    pub archive_write_threads: u32,
    /// Drains for which an archived segment serves as what later ones are the difference to; by default
    /// 8 with [`ArchiveCodec::Ratio`], else 0: none.
    pub archive_history: Option<u32>,
    /// Bytes a second that all aggregators of the job write at most.
    pub archive_rate_bytes: Option<u64>,
    /// Bytes to reserve in each aggregator's file; by default a rule applied at its first drain.
    pub archive_reserve_bytes: Option<u64>,
    /// Storage targets of an aggregator's file.
    pub archive_stripe_count: Option<u32>,
    /// Bytes on one storage target before the next.
    pub archive_stripe_size_bytes: Option<u64>,
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
            capture_threads: None,
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
            transport: Transport::default(),
            fabric_provider: None,
            leave_on_sigterm: false,
            restore_checkpoint: None,
            fresh: None,
            archive: None,
            archive_every: None,
            archive_retained: 2,
            aggregate_nodes: None,
            archive_merge: Merge::default(),
            archive_group_size: 32,
            archive_codec: ArchiveCodec::default(),
            archive_second_pass: false,
            archive_threads: 1,
            archive_write_threads: 2,
            archive_history: None,
            archive_rate_bytes: None,
            archive_reserve_bytes: None,
            archive_stripe_count: None,
            archive_stripe_size_bytes: None,
        }
    }
}

/// A path as it is shown: for comparing and telling, not for going there.
#[expect(clippy::ref_option, reason = "what serde calls")]
fn as_text<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let text = path.as_deref().map(Path::to_string_lossy);
    text.serialize(serializer)
}

/// Limits of `key`.
fn form(key: &str) -> Form {
    let found = REFERENCE.iter().find(|setting| setting.key == key);
    found.map_or(Form::Text, |setting| setting.form)
}

/// What configuration file and environment of this process have.
fn environment() -> Result<toml::Table> {
    refuse_near_misses()?;
    check_loudness()?;
    let mut table = match std::env::var_os("BACKSTAY_CONFIG") {
        Some(path) => read::file(Path::new(&path))?,
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
        let value = read::of_variable(setting, text, &variable)?;
        table.insert(setting.key.to_owned(), value);
    }
    Ok(table)
}

impl Config {
    /// Defaults, configuration file and environment of this process. A variable whose name is nearly that of a
    /// setting is an error.
    pub fn from_environment() -> Result<Self> {
        Self::from_table(environment()?, "BACKSTAY_CONFIG and BACKSTAY_* variables")
    }

    /// The same with settings by their names over them, each as the environment would have it:
    /// `("reserve_bytes", "2GiB")`.
    pub fn from_environment_with<'a>(
        named: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self> {
        let mut table = environment()?;
        for (name, text) in named {
            table.insert(name.to_owned(), read::named(name, text)?);
        }
        let all = "BACKSTAY_CONFIG, BACKSTAY_* variables and the program's options";
        Self::from_table(table, all)
    }

    /// That there is a setting `name`, and `text` says a value of its form.
    pub fn check_named(name: &str, text: &str) -> Result<()> {
        read::named(name, text).map(drop)
    }

    /// The settings in a TOML file over the defaults.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_table(read::file(path)?, &path.display().to_string())
    }

    fn from_table(table: toml::Table, place: &str) -> Result<Self> {
        let config = read::settings(table, place)?;
        config.validate()?;
        Ok(config)
    }

    /// The configured interval; `None` for `auto`.
    pub fn interval_seconds(&self) -> Result<Option<f64>> {
        let Some(text) = self.interval.as_deref().filter(|text| *text != "auto") else {
            return Ok(None);
        };
        let found = backstay_base::units::seconds(text);
        let seconds =
            found.map_err(|why| wrong(&format!("interval is {text:?}: {why}, or auto")))?;
        if !(0.001..=1e8).contains(&seconds) {
            let allowed = "allowed is auto, or 1 ms to 100000000 s";
            return Err(wrong(&format!("interval is {seconds} s: {allowed}")));
        }
        Ok(Some(seconds))
    }

    /// Whether the planner picks the checkpoints that drain: neither they nor the interval are set.
    pub fn plans_archive(&self) -> bool {
        let fixed = self.interval_seconds().is_ok_and(|set| set.is_some());
        self.archive.is_some() && self.archive_every.is_none() && !fixed
    }

    /// The same with every path absolute: the program may change its working folder later.
    pub fn absolute(mut self) -> Result<Self> {
        let paths = [
            ("store_path", &mut self.store_path),
            ("archive", &mut self.archive),
            ("failure_domains", &mut self.failure_domains),
        ];
        for (key, path) in paths {
            let Some(path) = path else { continue };
            *path = std::path::absolute(&*path).map_err(|error| {
                let context = format!("{key} is {:?}", path.display());
                Error::caused(ErrorKind::Configuration, context, error)
            })?;
        }
        Ok(self)
    }

    /// Key and value of every setting that all ranks of a job must have the same of, in the order of
    /// [`REFERENCE`].
    pub fn same_on_all_ranks(&self) -> Vec<(&'static str, String)> {
        let known = serde_json::to_value(self).unwrap_or_default();
        let settings = REFERENCE
            .iter()
            .filter(|setting| setting.is_same_on_all_ranks);
        let value = |key: &str| match &known[key] {
            serde_json::Value::Null => "not set".to_owned(),
            value => value.to_string(),
        };
        settings
            .map(|setting| (setting.key, value(setting.key)))
            .collect()
    }

    /// Checks every setting against its limits.
    pub fn validate(&self) -> Result<()> {
        let numbers = [
            ("retained", Some(u64::from(self.retained))),
            ("capture_threads", self.capture_threads.map(u64::from)),
            ("timeout_ms", Some(self.timeout_ms)),
            ("watchdog_ms", Some(self.watchdog_ms)),
            ("metrics_interval_ms", Some(self.metrics_interval_ms)),
            ("block_bytes", Some(u64::from(self.block_bytes))),
            ("segment_bytes", self.segment_bytes.map(u64::from)),
            ("reserve_bytes", self.reserve_bytes),
            ("node_mtbf_hours", self.node_mtbf_hours),
            ("parity", Some(u64::from(self.parity))),
            ("group_size", Some(u64::from(self.group_size))),
            ("encode_threads", Some(u64::from(self.encode_threads))),
            ("encode_nice", Some(u64::from(self.encode_nice))),
            ("encode_rate_bytes", self.encode_rate_bytes),
            ("restore_checkpoint", self.restore_checkpoint),
            ("fresh", self.fresh),
            ("archive_every", self.archive_every.map(u64::from)),
            ("archive_retained", Some(u64::from(self.archive_retained))),
            ("aggregate_nodes", self.aggregate_nodes.map(u64::from)),
            (
                "archive_group_size",
                Some(u64::from(self.archive_group_size)),
            ),
            ("archive_threads", Some(u64::from(self.archive_threads))),
            (
                "archive_write_threads",
                Some(u64::from(self.archive_write_threads)),
            ),
            ("archive_history", self.archive_history.map(u64::from)),
            ("archive_rate_bytes", self.archive_rate_bytes),
            ("archive_reserve_bytes", self.archive_reserve_bytes),
            (
                "archive_stripe_count",
                self.archive_stripe_count.map(u64::from),
            ),
            ("archive_stripe_size_bytes", self.archive_stripe_size_bytes),
        ];
        for (key, value) in numbers {
            value.map_or(Ok(()), |value| in_range(key, value))?;
        }
        self.interval_seconds()?;
        if let Some(list) = &self.cpu_set {
            backstay_base::cpu::parse(list)?;
        }
        if !(0.0..=1.0).contains(&self.changed_share) {
            return Err(wrong(&format!(
                "changed_share is {}, not 0 to 1",
                self.changed_share
            )));
        }
        if let (Some(1..), Some(number)) = (self.fresh, self.restore_checkpoint) {
            return Err(wrong(&format!(
                "fresh begins anew and restore_checkpoint resumes from {number}: set one of them"
            )));
        }
        self.check_names()
    }

    fn check_names(&self) -> Result<()> {
        let names = [
            ("job", &self.job),
            ("node", &self.node),
            ("fabric_provider", &self.fabric_provider),
        ];
        for (key, label) in names {
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

/// Variables that begin with `BACKSTAY_` and are no settings of a session: name, and what it is.
pub const OTHER_VARIABLES: [(&str, &str); 17] = [
    ("BACKSTAY_CONFIG", "a TOML file of settings"),
    (
        "BACKSTAY_LOG",
        "how much is written to standard error: `quiet`, `warn` or `info`",
    ),
    (
        crate::leave::LEAVE_FILE,
        "the file whose presence asks the program to leave; `backstay run` sets it",
    ),
    (
        crate::leave::RENDEZVOUS,
        "the folder in which the processes of a job find each other; `backstay run` sets it",
    ),
    (
        "BACKSTAY_RESTARTS",
        "how often `backstay run` has started the program again",
    ),
    (
        crate::leave::DIED,
        "when `backstay run` saw that the last start was dead, in milliseconds since 1970",
    ),
    (
        "BACKSTAY_HOSTFILE",
        "the hosts that are left, for a launcher under `backstay run`",
    ),
    (
        "BACKSTAY_ROUTE",
        "where `backstay run --route` has the files of a program, for its preload library",
    ),
    (
        "BACKSTAY_ROUTE_CALLS",
        "the same, for the process that becomes a program whose calls are routed by seccomp",
    ),
    (
        "BACKSTAY_PROGRAM",
        "the command line that the scripts of deploy/ start",
    ),
    (
        "BACKSTAY_AGENT_STATE",
        "where the scripts of deploy/ keep what an agent is",
    ),
    (
        "BACKSTAY_AGENT_GRACE_S",
        "how long the scripts of deploy/ wait for an agent",
    ),
    (
        "BACKSTAY_DEPLOY_CONF",
        "the file of settings of the scripts of deploy/",
    ),
    (
        "BACKSTAY_ROOT",
        "where it is installed, for CMake and environment modules",
    ),
    ("BACKSTAY_DIR", "the same"),
    ("BACKSTAY_HOME", "the same"),
    (
        "BACKSTAY_LIB",
        "where its libraries are, for environment modules",
    ),
];
/// Names with this in front are the site's own: nothing is said of them.
pub const FREE_PREFIX: &str = "BACKSTAY_SITE_";

/// A variable that looks like a setting and is none.
#[derive(Debug, PartialEq, Eq)]
enum Unknown {
    /// Nearly the name of this setting: it is refused.
    NearMiss(String),
    /// Anything else: that it has no effect is said.
    Other,
}

/// The variables of this process that look like settings and are none.
fn unknown_variables() -> Vec<(String, Unknown)> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let judged = names.filter_map(|name| unknown_variable(&name).map(|unknown| (name, unknown)));
    let mut unknown: Vec<(String, Unknown)> = judged.collect();
    unknown.sort_by(|one, other| one.0.cmp(&other.0));
    unknown
}

/// What has no effect: a sentence for each.
pub(crate) fn variables_without_effect() -> Vec<String> {
    let unknown = unknown_variables().into_iter();
    let others = unknown.filter(|(_, unknown)| *unknown == Unknown::Other);
    others
        .map(|(name, _)| {
            format!(
                "{name} in the environment is no setting and has no effect; names that begin with \
                 {FREE_PREFIX} are free"
            )
        })
        .collect()
}

fn refuse_near_misses() -> Result<()> {
    let missed = |(name, unknown)| match unknown {
        Unknown::NearMiss(meant) => Some((name, meant)),
        Unknown::Other => None,
    };
    match unknown_variables().into_iter().find_map(missed) {
        None => Ok(()),
        Some((name, meant)) => Err(wrong(&format!(
            "{name} in the environment is no setting, and nearly {meant}: set that one, or unset it; names \
             that begin with {FREE_PREFIX} are free"
        ))),
    }
}

/// That how much is said is set to what there is.
fn check_loudness() -> Result<()> {
    const NAME: &str = "BACKSTAY_LOG";
    match std::env::var(NAME).as_deref() {
        Ok("quiet" | "warn" | "info" | "") | Err(std::env::VarError::NotPresent) => Ok(()),
        Ok(other) => Err(wrong(&format!(
            "{NAME} is {other:?}: write quiet, warn or info"
        ))),
        Err(_) => Err(wrong(&format!("{NAME} is not UTF-8"))),
    }
}

fn unknown_variable(name: &str) -> Option<Unknown> {
    let known: Vec<String> = REFERENCE.iter().map(Setting::variable).collect();
    let is_known = OTHER_VARIABLES.iter().any(|(other, _)| *other == name)
        || known.iter().any(|known| known == name)
        || name.starts_with(FREE_PREFIX);
    if !name.starts_with("BACKSTAY_") || is_known {
        return None;
    }
    let nearest = known.iter().min_by_key(|known| distance(known, name))?;
    Some(if distance(nearest, name) <= 2 {
        Unknown::NearMiss(nearest.clone())
    } else {
        Unknown::Other
    })
}

/// Letters that have to be put in, taken out or changed to make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut before: Vec<usize> = (0..=other.len()).collect();
    for (row, letter) in (1..).zip(one.chars()) {
        let mut now = vec![row];
        for (column, theirs) in other.iter().enumerate() {
            let changed = before[column] + usize::from(letter != *theirs);
            now.push(changed.min(before[column + 1] + 1).min(now[column] + 1));
        }
        before = now;
    }
    before.last().copied().unwrap_or(0)
}

/// The file whose presence asks the program to leave, as `backstay run` names it.
pub(crate) fn leave_file() -> Option<PathBuf> {
    let named = std::env::var_os(crate::leave::LEAVE_FILE).map(PathBuf::from)?;
    Some(std::path::absolute(&named).unwrap_or(named))
}

/// The folder for the processes of the job to find each other, as `backstay run` names it.
pub(crate) fn rendezvous() -> Option<PathBuf> {
    std::env::var_os(crate::leave::RENDEZVOUS).map(PathBuf::from)
}

/// When the start before this one was seen to be dead, as `backstay run` says it.
pub(crate) fn died_unix_ms() -> Option<u64> {
    std::env::var(crate::leave::DIED).ok()?.parse().ok()
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
        let unit = REFERENCE.iter().find(|setting| setting.key == key);
        let unit = unit.map_or("", |setting| setting.unit);
        let text = format!("{key} is {value}, not {what}{low} to {high} {unit}");
        return Err(wrong(text.trim_end()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gives_settings_by_their_names() {
        let config = Config::from_environment_with([
            ("encode_threads", "7"),
            ("reserve_bytes", "2MiB"),
            ("fresh", "1"),
        ]);
        let config = config.unwrap();
        let has = (config.encode_threads, config.reserve_bytes, config.fresh);
        assert_eq!(has, (7, Some(2 << 20), Some(1)));
        let error = Config::from_environment_with([("retaned", "3")]).unwrap_err();
        let words = "retaned is no setting, and nearly retained";
        assert!(error.to_string().contains(words), "{error}");
        assert!(Config::check_named("retained", "").is_err());
        for (value, words) in [
            ("4294967296", "retained is 4294967296, not 2 to 32"),
            ("1", "not 2 to 32"),
        ] {
            let error = Config::check_named("retained", value).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        let error = Config::from_table("retained = -1".parse().unwrap(), "a file").unwrap_err();
        assert!(
            error.to_string().contains("retained is -1: it is below 0"),
            "{error}"
        );
        assert!(Config::check_named("retained", "3").is_ok());
    }

    #[test]
    fn a_variable_that_is_no_setting_is_named() {
        let near = |setting: &str| Some(Unknown::NearMiss(setting.to_owned()));
        assert_eq!(
            unknown_variable("BACKSTAY_TRACKIN"),
            near("BACKSTAY_TRACKING")
        );
        assert_eq!(
            unknown_variable("BACKSTAY_RETANED"),
            near("BACKSTAY_RETAINED")
        );
        assert_eq!(unknown_variable("BACKSTAY_STORE"), Some(Unknown::Other));
        for setting in &REFERENCE {
            assert_eq!(unknown_variable(&setting.variable()), None);
        }
        for (name, _) in OTHER_VARIABLES {
            assert_eq!(unknown_variable(name), None);
        }
        for name in ["PATH", "BACKSTAYS", "BACKSTAY_SITE_RETAINE"] {
            assert_eq!(unknown_variable(name), None);
        }
    }

    fn parse(text: &str) -> Result<Config> {
        // A number may be beyond those of the file's own format.
        let table = text.parse();
        let table = table.map_err(|error: toml::de::Error| wrong(&error.to_string()))?;
        Config::from_table(table, "test")
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
        let known = serde_json::to_value(Config::default()).unwrap();
        let mut keys: Vec<&str> = known
            .as_object()
            .unwrap()
            .keys()
            .map(|key| &**key)
            .collect();
        let mut table: Vec<&str> = REFERENCE.iter().map(|setting| setting.key).collect();
        keys.sort_unstable();
        table.sort_unstable();
        assert_eq!(keys, table);
    }

    #[test]
    fn every_setting_has_a_value_to_be_compared_by() {
        let known = serde_json::to_value(Config::default()).unwrap();
        for setting in &REFERENCE {
            assert!(known.get(setting.key).is_some(), "{}", setting.key);
        }
        let compared = Config::default().same_on_all_ranks();
        let keys: Vec<&str> = compared.iter().map(|(key, _)| *key).collect();
        for key in ["job", "archive", "redundancy", "block_bytes", "timeout_ms"] {
            assert!(keys.contains(&key), "{key}");
        }
        for key in ["node", "store_path", "cpu_set", "listen_address"] {
            assert!(!keys.contains(&key), "{key}");
        }
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
