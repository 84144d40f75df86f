// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the busiest and the median node of a job do, by the number of nodes.

mod picture;

use backstay_bench::figures::say;
use backstay_bench::heap::Counting;
use backstay_bench::scale::{Counted, Machine, Predicted, Setting, measure, predict};
use backstay_bench::{Outcome, machine};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

#[global_allocator]
static HEAP: Counting = Counting::new();

#[derive(Deserialize, Serialize)]
struct Report {
    machine: String,
    commit: String,
    computed_for: Machine,
    counted: Vec<Counted>,
    /// The largest job that was counted, and one that cannot be counted here.
    predicted: Vec<Predicted>,
}

/// The job of the issue of scale: its nodes, and ranks of each.
const LARGEST: (usize, usize) = (10_240, 10);

struct Arguments {
    sizes: Vec<usize>,
    path: PathBuf,
    /// Where the picture goes.
    picture: Option<PathBuf>,
    /// An earlier report, to draw the picture from.
    from: Option<PathBuf>,
}

fn main() -> Outcome<()> {
    let arguments = arguments()?;
    if let (Some(report), Some(folder)) = (&arguments.from, &arguments.picture) {
        let report: Report = serde_json::from_slice(&std::fs::read(report)?)?;
        return picture::draw(&report.counted, &report.predicted, folder);
    }
    // Before the picture is drawn, which changes the tree.
    let commit = machine::commit();
    let mut counted = Vec::new();
    for &nodes in &arguments.sizes {
        let begun = std::time::Instant::now();
        let setting = Setting {
            heap: Some(|| HEAP.held()),
            ..Setting::of(nodes)
        };
        for one in measure(&setting, &arguments.path)? {
            say(&line(&one));
            counted.push(one);
        }
        say(&format!(
            "{nodes} nodes took {:.1} s",
            begun.elapsed().as_secs_f64()
        ));
    }
    let predicted = predictions(&counted, &arguments.sizes);
    for one in &predicted {
        say(&foretold(one));
    }
    if let Some(folder) = &arguments.picture {
        picture::draw(&counted, &predicted, folder)?;
    }
    let report = Report {
        machine: machine::name(),
        commit,
        computed_for: Machine::ASKED,
        counted,
        predicted,
    };
    let file = Path::new("target/bench/scale.json");
    std::fs::create_dir_all("target/bench")?;
    std::fs::write(file, serde_json::to_string_pretty(&report)?)?;
    Ok(())
}

fn arguments() -> Outcome<Arguments> {
    let mut arguments = Arguments {
        sizes: Vec::new(),
        path: PathBuf::from("/dev/shm"),
        picture: None,
        from: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut path = || words.next().ok_or(format!("{word} wants a path"));
        match (&*word, word.parse()) {
            ("--path", _) => arguments.path = path()?.into(),
            ("--picture", _) => arguments.picture = Some(path()?.into()),
            ("--from", _) => arguments.from = Some(path()?.into()),
            (_, Ok(nodes)) => arguments.sizes.push(nodes),
            _ => return Err(format!("{word} is no number of nodes").into()),
        }
    }
    if arguments.sizes.is_empty() {
        arguments.sizes = vec![16, 64, 256];
    }
    arguments.sizes.sort_unstable();
    Ok(arguments)
}

/// From the two sizes below it the largest that was counted, and from the two largest the one that was not.
fn predictions(counted: &[Counted], sizes: &[usize]) -> Vec<Predicted> {
    let [.., third, second, first] = sizes else {
        return Vec::new();
    };
    let of = |nodes: usize| counted.iter().filter(move |one| one.nodes == nodes);
    let checked = of(*third).zip(of(*second)).zip(of(*first));
    let checked = checked.filter_map(|((small, large), counted)| {
        Some(predict(small, large, *first, 1)?.against(counted))
    });
    let (nodes, ranks) = LARGEST;
    let beyond = of(*second).zip(of(*first));
    let beyond = beyond.filter_map(|(small, large)| predict(small, large, nodes, ranks));
    checked.chain(beyond).collect()
}

fn foretold(one: &Predicted) -> String {
    let off = one.counted_over.map_or(String::new(), |over| {
        format!("  counted over this {over:.3}")
    });
    format!(
        "foretold: {:6} nodes of {} ranks {:20} messages {:6.0}  collectives {:11.0} B  {:7.3} s{off}",
        one.nodes,
        one.ranks_a_node,
        format!("{:?}", one.operation),
        one.messages,
        one.collective_bytes,
        one.seconds,
    )
}

fn line(one: &Counted) -> String {
    let operation = format!("{:?}", one.operation);
    format!(
        "{:6} {operation:20} opens {:2}  messages {:6} {:5}  bytes {:10} {:8}  peers {:5} {:4}  calls {:3} {:9}  {:8.4} s  \
         threads {:5.1}  heap {:8}",
        one.nodes,
        one.archive_opens,
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
