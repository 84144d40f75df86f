// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What draining to an archive costs: its rate beside plain writes to the same file system, and what it
//! takes from an application that computes meanwhile.

mod background;
mod drain;

use backstay_bench::figures::{Better, Figures, Wanted, say};
use backstay_bench::job::Job;
use backstay_bench::ranks::{Launch, Samples, this_rank};
use backstay_bench::{Outcome, machine};
use backstay_service::staging::{StageOptions, run as serve};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::AtomicBool;

const LOWER: Better = Better::Lower;
const HIGHER: Better = Better::Higher;

/// The table of the figures to reach.
const WANTED: &[Wanted] = &[
    Wanted::at_most(
        "archive.drain.time",
        "time to drain / plain write + fdatasync, best of 1, 4, 16 threads",
        "ratio",
        0.95,
    ),
    Wanted::at_most(
        "archive.drain.auto",
        "the same words by archive_codec = auto / raw: they do not compress",
        "ratio",
        1.05,
    ),
    Wanted::at_most(
        "archive.blocking",
        "blocking time, draining behind / level 1 alone",
        "ratio",
        1.1,
    ),
    Wanted::at_most(
        "archive.slowdown.stencil.quarter",
        "stencil beside a server, at 1/4 of the rate",
        "ratio",
        1.10,
    ),
    Wanted::at_most(
        "archive.slowdown.loop.quarter",
        "CPU loop beside a server, at 1/4 of the rate",
        "ratio",
        1.05,
    ),
    Wanted::at_most(
        "archive.slowdown.stencil.free",
        "stencil beside a server, at the full rate",
        "ratio",
        1.25,
    ),
    Wanted::at_most(
        "archive.slowdown.loop.free",
        "CPU loop beside a server, at the full rate",
        "ratio",
        1.25,
    ),
    Wanted::shown(
        "archive.slowdown.stencil.eighth",
        "  stencil at 1/8",
        "ratio",
        LOWER,
    ),
    Wanted::shown(
        "archive.slowdown.stencil.half",
        "  stencil at 1/2",
        "ratio",
        LOWER,
    ),
    Wanted::shown(
        "archive.slowdown.loop.eighth",
        "  CPU loop at 1/8",
        "ratio",
        LOWER,
    ),
    Wanted::shown(
        "archive.slowdown.loop.half",
        "  CPU loop at 1/2",
        "ratio",
        LOWER,
    ),
    Wanted::shown("archive.rate.eighth", "  drained at 1/8", "MB/s", HIGHER),
    Wanted::shown("archive.rate.quarter", "  drained at 1/4", "MB/s", HIGHER),
    Wanted::shown("archive.rate.half", "  drained at 1/2", "MB/s", HIGHER),
    Wanted::shown(
        "archive.rate.free",
        "  drained at the full rate",
        "MB/s",
        HIGHER,
    ),
    Wanted::shown("archive.drain.1", "drain, 1 writer thread", "MB/s", HIGHER),
    Wanted::shown("archive.drain.4", "drain, 4 writer threads", "MB/s", HIGHER),
    Wanted::shown(
        "archive.drain.16",
        "drain, 16 writer threads",
        "MB/s",
        HIGHER,
    ),
    Wanted::shown(
        "baseline.write.1",
        "plain write + fdatasync, 1 thread",
        "MB/s",
        HIGHER,
    ),
    Wanted::shown(
        "baseline.write.4",
        "plain write + fdatasync, 4 threads",
        "MB/s",
        HIGHER,
    ),
    Wanted::shown(
        "baseline.write.16",
        "plain write + fdatasync, 16 threads",
        "MB/s",
        HIGHER,
    ),
    Wanted::shown(
        "archive.drain.cpu",
        "CPU of a drain / of the plain write",
        "ratio",
        LOWER,
    ),
];

fn main() -> Outcome<()> {
    if let Some(rank) = this_rank()? {
        let job = Job::new(&rank);
        return match &*rank.scenario {
            "drain" => drain::run(&job, &rank.arguments),
            "blocking" => background::blocking(&job, &rank.arguments),
            "slowdown" => background::slowdown(&job, &rank.arguments),
            other => Err(format!("no scenario {other:?}").into()),
        };
    }
    let words: Vec<String> = std::env::args().collect();
    if let [_, flag, folder, job] = &words[..]
        && flag == "--server"
    {
        return server(Path::new(folder), job);
    }
    let quick = words.iter().any(|word| word == "--quick");
    let (mib, runs) = if quick { ("64", "3") } else { ("256", "7") };
    let mut samples = Samples::new();
    let folder = std::env::temp_dir().join(format!("backstay-bench-{}", std::process::id()));
    for (scenario, size) in [("drain", 1), ("blocking", 2), ("slowdown", 1)] {
        if words.len() > 1 && !quick && !words.iter().any(|word| word == scenario) {
            continue;
        }
        say(&format!("{scenario}: {size} ranks of {mib} MiB"));
        let mut servers = Vec::new();
        if scenario == "slowdown" {
            // The ranks make it later.
            std::fs::create_dir_all(&folder)?;
            for job in background::JOBS {
                servers.push(Server::start(&archive(&folder), job)?);
            }
        }
        let pinned = ["taskset", "-c", "0"].map(str::to_owned);
        Launch {
            scenario,
            size,
            folder: &folder,
            arguments: &[mib.to_owned(), runs.to_owned()],
            under: if scenario == "slowdown" { &pinned } else { &[] },
        }
        .run(&mut samples)?;
        drop(servers);
    }
    let mut figures = Figures::new("archive");
    figures.take(WANTED, &samples);
    say(&figures.table());
    say(&format!(
        "On {}; archive and plain files in {}, stores in /dev/shm. Slowdown: the rank on one core, the staging",
        machine::name(),
        std::env::temp_dir().display()
    ));
    say("server on the other; the stencil is bound by memory, the loop by the core. Codec: raw.");
    say(&format!("written: {}", figures.write()?.display()));
    Ok(())
}

/// Where a benchmark's archive is, below its folder.
fn archive(folder: &Path) -> PathBuf {
    folder.join("pfs")
}

fn server(folder: &Path, job: &str) -> Outcome<()> {
    let options = StageOptions {
        folder: folder.join(job),
        job: job.to_owned(),
        // That of the node: the store is on this host.
        name: "node0".to_owned(),
        listen: Some("127.0.0.1:0".to_owned()),
        transports: backstay_net::Transports::default(),
        over: None,
    };
    serve(&options, &AtomicBool::new(false), |_| {})?;
    Ok(())
}

/// A staging server on the other core, for the time of a scenario.
struct Server(Child);

impl Server {
    fn start(archive: &Path, job: &str) -> Outcome<Self> {
        let own = std::env::current_exe()?;
        let child = Command::new("taskset")
            .args(["-c", "1"])
            .arg(own)
            .arg("--server")
            .arg(archive)
            .arg(job)
            .spawn()?;
        let entry = archive.join(job).join("server-node0.json");
        for _ in 0..500 {
            if entry.exists() {
                return Ok(Self(child));
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Err(format!("no server for {job}").into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
