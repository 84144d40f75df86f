// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one staging server takes from nodes to an archive, by its writer threads and by the nodes that it serves: as
//! figures 9 and 10 of the paper on non-blocking checkpointing, on one machine.

mod drains;
mod picture;

use backstay_bench::figures::{median, say};
use backstay_bench::{Outcome, machine};
use backstay_service::staging::{StageOptions, run as serve};
use drains::{NODE_BYTES, Setting, plain_write};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Writer threads that are tried, with so many nodes.
const THREADS: ([u32; 6], usize) = ([1, 2, 4, 8, 16, 32], 4);
/// Nodes that are tried, with so many writer threads.
const NODES: ([usize; 6], u32) = ([1, 2, 4, 8, 16, 32], 4);

/// What was found of a setting, in each of its drains.
#[derive(Debug, Clone, Deserialize, Serialize)]
pub(crate) struct Found {
    pub(crate) nodes: usize,
    pub(crate) writer_threads: u32,
    /// From the last commit of a node until all is in the archive.
    pub(crate) mb_per_second: Vec<f64>,
    /// Cores that the server used meanwhile.
    pub(crate) server_cores: Vec<f64>,
    /// Cores that the nodes used meanwhile, which are one process.
    pub(crate) node_cores: Vec<f64>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: String,
    pub(crate) commit: String,
    pub(crate) bytes_a_node: usize,
    /// One thread that writes as much as four nodes have to a file that has its blocks, and syncs it.
    pub(crate) plain_write_mb_per_second: Vec<f64>,
    pub(crate) by_threads: Vec<Found>,
    pub(crate) by_nodes: Vec<Found>,
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &*words.iter().map(|word| &**word).collect::<Vec<&str>>() {
        [flag, folder, job] if *flag == drains::SERVER => server(Path::new(folder), job),
        ["--from", report, "--picture", folder] => {
            let report = serde_json::from_slice(&std::fs::read(report)?)?;
            picture::draw(&report, Path::new(folder))
        }
        [] => measure(3, 4),
        ["--quick"] => measure(1, 1),
        _ => Err("bench-staging [--quick] | --from REPORT --picture FOLDER".into()),
    }
}

/// `passes` over all settings, of so many drains each.
fn measure(passes: usize, drains: usize) -> Outcome<()> {
    let setting = |(nodes, writer_threads)| Setting {
        nodes,
        writer_threads,
        drains,
    };
    let folder =
        std::env::temp_dir().join(format!("backstay-bench-staging-{}", std::process::id()));
    let mut by_threads: Vec<Found> = Vec::new();
    let mut by_nodes: Vec<Found> = Vec::new();
    let mut plain = Vec::new();
    for _ in 0..passes {
        let threads = THREADS.0.map(|threads| setting((THREADS.1, threads)));
        let nodes = NODES.0.map(|nodes| setting((nodes, NODES.1)));
        for (found, settings) in [(&mut by_threads, threads), (&mut by_nodes, nodes)] {
            for setting in settings {
                plain.push(plain_write(&folder, THREADS.1 * NODE_BYTES)?);
                take(found, setting.run(&folder)?);
            }
        }
    }
    std::fs::remove_dir_all(&folder)?;
    for found in by_threads.iter().chain(&by_nodes) {
        let middle = |values: &[f64]| median(values).unwrap_or(0.0);
        say(&format!(
            "{:3} nodes {:3} writer threads {:7.0} MB/s  server {:5.2} cores, nodes {:5.2}",
            found.nodes,
            found.writer_threads,
            middle(&found.mb_per_second),
            middle(&found.server_cores),
            middle(&found.node_cores),
        ));
    }
    say(&format!(
        "plain write + fdatasync, one thread: {:.0} MB/s",
        median(&plain).unwrap_or(0.0)
    ));
    let report = Report {
        machine: machine::name(),
        commit: machine::commit(),
        bytes_a_node: NODE_BYTES,
        plain_write_mb_per_second: plain,
        by_threads,
        by_nodes,
    };
    let file = PathBuf::from("target/bench/staging.json");
    std::fs::create_dir_all("target/bench")?;
    std::fs::write(&file, serde_json::to_string_pretty(&report)?)?;
    say(&format!("written: {}", file.display()));
    Ok(())
}

/// Adds what a setting did to what it did before.
fn take(all: &mut Vec<Found>, found: Found) {
    let same =
        |one: &&mut Found| (one.nodes, one.writer_threads) == (found.nodes, found.writer_threads);
    match all.iter_mut().find(same) {
        Some(known) => {
            known.mb_per_second.extend(found.mb_per_second);
            known.server_cores.extend(found.server_cores);
            known.node_cores.extend(found.node_cores);
        }
        None => all.push(found),
    }
}

fn server(folder: &Path, job: &str) -> Outcome<()> {
    let options = StageOptions {
        folder: folder.join(job),
        job: job.to_owned(),
        // Of no node: it reads all of them over TCP.
        name: drains::SERVER_NAME.to_owned(),
        listen: Some("127.0.0.1:0".to_owned()),
        transports: backstay_net::Transports::default(),
        over: None,
    };
    serve(&options, &AtomicBool::new(false), |_| {})?;
    Ok(())
}
