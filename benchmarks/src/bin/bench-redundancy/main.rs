// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What protecting checkpoints across four nodes costs, beside what the same processes need to write
//! the same bytes to memory and to send them around a ring.

mod background;
mod ring;
mod times;

use backstay_bench::figures::{Better, Figures, Wanted, say};
use backstay_bench::job::Job;
use backstay_bench::ranks::{Launch, Samples, this_rank};
use backstay_bench::{Outcome, machine};
use std::path::PathBuf;
use std::process::Command;

const LOWER: Better = Better::Lower;
const HIGHER: Better = Better::Higher;
const NODES: u32 = 4;

/// The table of the figures to reach.
const WANTED: &[Wanted] = &[
    Wanted::at_most(
        "redundancy.blocking.xor",
        "blocking time, XOR behind / level 1 alone",
        "ratio",
        1.1,
    ),
    Wanted::at_most(
        "redundancy.blocking.rs",
        "the same, RS with 2 parities",
        "ratio",
        1.1,
    ),
    Wanted::at_most(
        "redundancy.full.partner",
        "full, until protected: partner / baseline",
        "ratio",
        1.1,
    ),
    Wanted::at_most(
        "redundancy.full.xor",
        "full, until protected: XOR / baseline",
        "ratio",
        1.1,
    ),
    Wanted::at_most(
        "redundancy.full.rs",
        "full, until protected: RS(2) / baseline",
        "ratio",
        1.4,
    ),
    Wanted::at_most(
        "redundancy.changed.commit",
        "3 % changed / full, from the commit (XOR)",
        "ratio",
        0.08,
    ),
    Wanted::at_most(
        "redundancy.changed.call",
        "3 % changed / full, from the call (XOR)",
        "ratio",
        0.15,
    ),
    Wanted::at_most(
        "redundancy.slowdown.quarter",
        "stencil beside encoding at 1/4 of the rate",
        "ratio",
        1.15,
    ),
    Wanted::shown(
        "redundancy.slowdown.eighth",
        "  at 1/8 of the rate",
        "ratio",
        LOWER,
    ),
    Wanted::shown(
        "redundancy.slowdown.half",
        "  at 1/2 of the rate",
        "ratio",
        LOWER,
    ),
    Wanted::shown(
        "redundancy.slowdown.free",
        "  without a limit",
        "ratio",
        LOWER,
    ),
    Wanted::shown(
        "redundancy.rate.quarter",
        "  encoded at 1/4, a node",
        "MB/s",
        HIGHER,
    ),
    Wanted::shown(
        "redundancy.rate.free",
        "  encoded without a limit, a node",
        "MB/s",
        HIGHER,
    ),
    Wanted::shown(
        "redundancy.full.xor.cpu",
        "CPU of all nodes: XOR / baseline",
        "ratio",
        LOWER,
    ),
    Wanted::shown(
        "redundancy.full.rs.cpu",
        "CPU of all nodes: RS(2) / baseline",
        "ratio",
        LOWER,
    ),
    Wanted::shown("redundancy.none", "level 1 alone, full, wall", "ms", LOWER),
    Wanted::shown(
        "redundancy.protect.xor",
        "XOR, from commit to protected, full",
        "ms",
        LOWER,
    ),
    Wanted::shown(
        "baseline.write",
        "pwrite to fresh /dev/shm, wall",
        "ms",
        LOWER,
    ),
    Wanted::shown("baseline.ring", "ring exchange by TCP, wall", "ms", LOWER),
];

fn main() -> Outcome<()> {
    if let Some(rank) = this_rank()? {
        let job = Job::new(&rank);
        return match &*rank.scenario {
            "times" => times::run(&job, &rank.arguments),
            "blocking" => background::blocking(&job, &rank.arguments),
            "slowdown" => background::slowdown(&job, &rank.arguments),
            other => Err(format!("no scenario {other:?}").into()),
        };
    }
    let quick = std::env::args().any(|word| word == "--quick");
    let cluster = Cluster::up()?;
    let (mib, runs) = if quick { ("32", "3") } else { ("128", "9") };
    let mut samples = Samples::new();
    for scenario in scenarios() {
        say(&format!("{scenario}: {NODES} nodes, one rank each"));
        let folder = std::env::temp_dir().join(format!("backstay-bench-{}", std::process::id()));
        Launch {
            scenario,
            size: NODES,
            folder: &folder,
            arguments: &[mib.to_owned(), runs.to_owned()],
            under: &cluster.enter(),
        }
        .run(&mut samples)?;
    }
    let mut figures = Figures::new("redundancy");
    figures.take(WANTED, &samples);
    say(&figures.table());
    say(&format!(
        "{NODES} nodes made of namespaces on {}, one rank of {mib} MiB each, stores in each node's",
        machine::name()
    ));
    say("/dev/shm. Baseline: one pwrite of the bytes to fresh /dev/shm, then one exchange of them");
    say("around a ring by TCP between the same namespaces; all ranks at once, in the same run.");
    say(&format!("written: {}", figures.write()?.display()));
    Ok(())
}

/// The scenarios to run: all, or the one that is named.
fn scenarios() -> Vec<&'static str> {
    let all = ["times", "blocking", "slowdown"];
    let named: Vec<&str> = all
        .into_iter()
        .filter(|name| std::env::args().any(|word| word == *name))
        .collect();
    if named.is_empty() {
        all.to_vec()
    } else {
        named
    }
}

/// The test cluster, for the time of the benchmark.
struct Cluster {
    tool: PathBuf,
    name: String,
}

impl Cluster {
    fn up() -> Outcome<Self> {
        let tool = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/cluster/cluster");
        let name = format!("bench{}", std::process::id());
        let cluster = Self { tool, name };
        let up = Command::new(&cluster.tool)
            .args([
                "up",
                &NODES.to_string(),
                "--shm",
                "3g",
                "--name",
                &cluster.name,
            ])
            .status()?;
        if up.success() {
            return Ok(cluster);
        }
        Err("the cluster of namespaces cannot be made: root is needed, and `make setup`".into())
    }

    /// What runs a rank in its node.
    fn enter(&self) -> Vec<String> {
        let tool = self.tool.display().to_string();
        let words = ["exec", "--name", &self.name, "{rank}", "--"];
        std::iter::once(tool)
            .chain(words.map(str::to_owned))
            .collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let down = Command::new(&self.tool)
            .args(["down", "--name", &self.name])
            .status();
        if let Err(error) = down {
            say(&format!("cluster {} is still up: {error}", self.name));
        }
    }
}
