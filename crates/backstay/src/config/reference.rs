// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the table of every setting: how it is written, its limits, its default and what it means.
//! Out to: `config`, which checks by it, `session`, which compares ranks by it, and
//! docs/reference/config.md, which is written from it.

use backstay_format::limits;

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
    /// Whether all ranks of a job must have the same: opening a session compares these. The others say
    /// something of one node or one process.
    pub is_same_on_all_ranks: bool,
}

impl Setting {
    /// Its variable in the environment.
    pub fn variable(&self) -> String {
        format!("BACKSTAY_{}", self.key.to_uppercase())
    }

    /// The same setting, which may differ between ranks.
    const fn of_each_rank(self) -> Self {
        Self {
            is_same_on_all_ranks: false,
            ..self
        }
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
        is_same_on_all_ranks: true,
    }
}

/// Milliseconds in a day.
const DAY_MS: u64 = 86_400_000;

/// Every setting, in the order of [`Config`](super::Config): limits are checked, and docs/reference/config.md is
/// written, from here.
pub const REFERENCE: [Setting; 45] = [
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
    )
    .of_each_rank(),
    setting(
        "store_path",
        Form::Text,
        None,
        "",
        "Folder for the store. By default the first of `/dev/shm`, the scheduler's scratch folder \
         and `/var/tmp` that has room.",
    )
    .of_each_rank(),
    setting(
        "reserve_bytes",
        Form::Whole(1, 1 << 62),
        None,
        "bytes",
        "Size of the store on each node, and the most it grows to. By default a rule at the first \
         checkpoint, and growth as needed.",
    )
    .of_each_rank(),
    setting(
        "segment_bytes",
        Form::PowerOfTwo(limits::SEGMENT_BYTES_MIN, limits::SEGMENT_BYTES_MAX),
        None,
        "bytes",
        "Unit in which ranks lease space. By default chosen from the size of the store.",
    )
    .of_each_rank(),
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
        "How changed blocks are found: `full`, `hash`, `pages` or `marked`. Up to 64 KiB, and until marks \
         named all that changed, variables are hashed.",
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
        "Fraction of the state expected to change between checkpoints, for the rule that sizes the \
         store.",
    )
    .of_each_rank(),
    setting(
        "capture_threads",
        Form::Whole(1, 64),
        None,
        "threads",
        "Threads of each rank that capture changed blocks, and read them back. By default its share of the processors that it may run on, \
         at most 8.",
    )
    .of_each_rank(),
    setting(
        "cpu_set",
        Form::Text,
        None,
        "",
        "CPUs for background threads, as in `0-3,8`. By default those of the process.",
    )
    .of_each_rank(),
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
    )
    .of_each_rank(),
    setting(
        "metrics_interval_ms",
        Form::Whole(0, DAY_MS),
        Some("30000"),
        "ms",
        "Least time between two writings of `metrics.json`.",
    )
    .of_each_rank(),
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
         of the job itself count more and more. The program is taken to fail by itself as often as its \
         nodes do. By default that of table I of the paper on TSUBAME2.0.",
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
    )
    .of_each_rank(),
    setting(
        "failure_domains",
        Form::Text,
        None,
        "",
        "File with a line for each node, its name and its failure domain, where `failure_domain` is \
         not set.",
    )
    .of_each_rank(),
    setting(
        "encode_threads",
        Form::Whole(1, 64),
        Some("2"),
        "threads",
        "Threads of each node that gather and encode in the background.",
    )
    .of_each_rank(),
    setting(
        "encode_rate_bytes",
        Form::Whole(1 << 20, 1 << 50),
        None,
        "bytes/s",
        "Most that each node gathers in a second for encoding. By default as much as it can.",
    )
    .of_each_rank(),
    setting(
        "encode_nice",
        Form::Whole(0, 19),
        Some("10"),
        "",
        "Niceness of the threads that encode: how far they give way to the application.",
    )
    .of_each_rank(),
    setting(
        "listen_address",
        Form::Text,
        None,
        "",
        "Address at which this node's agent answers, as in `10.0.0.1:0`. By default the host's own, and \
         any port.",
    )
    .of_each_rank(),
    setting(
        "transport",
        Form::Word,
        Some("\"tcp\""),
        "",
        "How nodes read sealed bytes of each other: `tcp`, `libfabric`, or `auto`: over libfabric where it has \
         a provider of network hardware, else over TCP. All else goes over TCP.",
    )
    .of_each_rank(),
    setting(
        "fabric_provider",
        Form::Text,
        None,
        "",
        "Provider of libfabric, as in `verbs;ofi_rxm`; `fi_info -l` lists them. By default the first of network \
         hardware.",
    )
    .of_each_rank(),
    setting(
        "leave_on_sigterm",
        Form::Flag,
        Some("false"),
        "",
        "Take SIGTERM as the wish that the program takes a last checkpoint and leaves: `should_leave` then \
         says so. A file that `backstay run` names does the same.",
    )
    .of_each_rank(),
    setting(
        "restore_checkpoint",
        Form::Whole(1, 1 << 50),
        None,
        "",
        "Number of the checkpoint that the first `restore` of the program takes; later ones are abandoned. By \
         default the newest. For one start: it is taken again whenever the program is started with it. \
         `backstay run --checkpoint` sets it for its first start only. What is newer is given up with it, also \
         where it cannot be read.",
    ),
    setting(
        "fresh",
        Form::Whole(0, 1 << 62),
        None,
        "",
        "Begin anew, whatever is stored: 1 at every start; a higher number once, at the first of all starts that have \
         the same (`backstay run --fresh` sets one). What was stored stays until space is needed, and is restored \
         where somebody names it.",
    ),
    setting(
        "archive",
        Form::Text,
        None,
        "",
        "Folder on the parallel file system that checkpoints drain to in the background. By default they \
         stay on the nodes.",
    ),
    setting(
        "archive_every",
        Form::Whole(1, 1 << 30),
        None,
        "checkpoints",
        "Every so many checkpoints one is drained. One that comes while another drains waits, and is \
         skipped when a newer one is there. By default those that the planner picks, in a program that asks \
         `due` with `interval = \"auto\"`; in others every one.",
    ),
    setting(
        "archive_retained",
        Form::Whole(1, 60),
        Some("2"),
        "checkpoints",
        "Newest checkpoints that the archive keeps, beside those that `backstay prune --keep` names.",
    ),
    setting(
        "aggregate_nodes",
        Form::Whole(1, 1024),
        None,
        "nodes",
        "Nodes, in the order of their ranks, whose checkpoints one of them drains into one file, where there \
         are no staging servers. By default each drains itself in a job of up to 32; there are 32 shares in \
         larger ones, of at most 32 nodes each.",
    ),
    setting(
        "archive_merge",
        Form::Word,
        Some("\"concatenate\""),
        "",
        "How the same variable of several ranks is put together before it is compressed: `none`, \
         `concatenate`, `interleave`.",
    ),
    setting(
        "archive_group_size",
        Form::Whole(1, 1 << 20),
        Some("32"),
        "ranks",
        "Ranks, in their order, that are merged with each other.",
    ),
    setting(
        "archive_codec",
        Form::Word,
        Some("\"auto\""),
        "",
        "How codecs are chosen for each variable: `auto` (what is gained, where encoding keeps up with the \
         file system), `ratio` (the smallest), `raw` (none).",
    ),
    setting(
        "archive_second_pass",
        Form::Flag,
        Some("false"),
        "",
        "Whether a second, general-purpose pass is tried over what is encoded.",
    ),
    setting(
        "archive_threads",
        Form::Whole(1, 256),
        Some("1"),
        "threads",
        "Threads of each aggregator that encode: its share of the cores.",
    ),
    setting(
        "archive_write_threads",
        Form::Whole(1, 64),
        Some("2"),
        "threads",
        "Threads of each aggregator that write.",
    ),
    setting(
        "archive_history",
        Form::Whole(0, 1000),
        None,
        "drains",
        "For how many drains what is stored whole serves those that store only the difference to it; then it \
         is stored whole again. 0: all is stored whole. By default 8 with `archive_codec = \"ratio\"`, else \
         0; nothing with `raw`.",
    ),
    setting(
        "archive_rate_bytes",
        Form::Whole(1 << 20, 1 << 50),
        None,
        "bytes/s",
        "Most that all aggregators of the job write in a second together. By default as much as they can.",
    ),
    setting(
        "archive_reserve_bytes",
        Form::Whole(1 << 20, 1 << 50),
        None,
        "bytes",
        "The least to reserve in each aggregator's file, and that it grows by. By default 1 MiB, and before \
         each drain what it is expected to store.",
    ),
    setting(
        "archive_stripe_count",
        Form::Whole(1, 1 << 16),
        None,
        "targets",
        "Storage targets of an aggregator's file, where the file system takes such a hint.",
    ),
    setting(
        "archive_stripe_size_bytes",
        Form::Whole(1 << 16, 1 << 32),
        None,
        "bytes",
        "Bytes on one storage target before the next, where the file system takes such a hint.",
    ),
];
