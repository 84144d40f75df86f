// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the busiest and the median node of a job do, by the number of nodes.

use backstay_bench::figures::say;
use backstay_bench::heap::Counting;
use backstay_bench::scale::{Counted, Machine, Setting, measure};
use backstay_bench::{Outcome, machine};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[global_allocator]
static HEAP: Counting = Counting::new();

#[derive(Serialize)]
struct Report {
    machine: String,
    commit: String,
    computed_for: Machine,
    counted: Vec<Counted>,
}

fn main() -> Outcome<()> {
    let (sizes, path) = arguments()?;
    let mut counted = Vec::new();
    for nodes in sizes {
        let begun = std::time::Instant::now();
        let setting = Setting {
            heap: Some(|| HEAP.held()),
            ..Setting::of(nodes)
        };
        for one in measure(&setting, &path)? {
            say(&line(&one));
            counted.push(one);
        }
        say(&format!(
            "{nodes} nodes took {:.1} s",
            begun.elapsed().as_secs_f64()
        ));
    }
    let report = Report {
        machine: machine::name(),
        commit: machine::commit(),
        computed_for: Machine::ASKED,
        counted,
    };
    let file = Path::new("target/bench/scale.json");
    std::fs::create_dir_all("target/bench")?;
    std::fs::write(file, serde_json::to_string_pretty(&report)?)?;
    Ok(())
}

fn arguments() -> Outcome<(Vec<usize>, PathBuf)> {
    let mut sizes = Vec::new();
    let mut path = PathBuf::from("/dev/shm");
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (&*word, word.parse()) {
            ("--path", _) => path = words.next().ok_or("--path wants a folder")?.into(),
            (_, Ok(nodes)) => sizes.push(nodes),
            _ => return Err(format!("{word} is no number of nodes").into()),
        }
    }
    if sizes.is_empty() {
        sizes = vec![16, 64, 256];
    }
    Ok((sizes, path))
}

fn line(one: &Counted) -> String {
    let operation = format!("{:?}", one.operation);
    format!(
        "{:6} {operation:20} messages {:6} {:5}  bytes {:10} {:8}  peers {:5} {:4}  calls {:3} {:9}  {:8.4} s  \
         threads {:5.1}  heap {:8}",
        one.nodes,
        one.busiest.messages,
        one.median.messages,
        one.busiest.bytes,
        one.median.bytes,
        one.busiest.peers,
        one.median.peers,
        one.collectives,
        one.collective_bytes,
        one.seconds,
        one.threads_a_node,
        one.heap_bytes_a_node,
    )
}
