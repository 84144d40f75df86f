// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the cost of a checkpoint depends on where changes lie, on the size of blocks, on threads, on
//! the storage and on the number of variables; and when a differential checkpoint pays.
//! Source: Keller and Bautista-Gomez, "Application-Level Differential Checkpointing for HPC
//! Applications with Dynamic Datasets", section VI, equations 1 to 5.

mod model;
mod rank;

use backstay_bench::Outcome;
use backstay_bench::field::Place;
use backstay_bench::figures::{Better, Figure, Figures, columns, median, say, short};
use backstay_bench::job::Job;
use backstay_bench::options::Options;
use backstay_bench::ranks::{Folder, Launch, Samples, this_rank};
use rank::Step;
use std::path::{Path, PathBuf};

const BLOCK_KIB: [usize; 4] = [4, 16, 64, 256];
const VARIABLES: [(usize, usize); 4] = [(100, 512), (1000, 512), (5000, 512), (2000, 8192)];
/// Shares at which the model is held against measurements.
const PERCENTS: [f64; 8] = [0.0, 1.0, 3.0, 10.0, 25.0, 50.0, 75.0, 100.0];

/// A storage to sweep over.
struct Storage {
    name: &'static str,
    folder: PathBuf,
    mib: usize,
    runs: usize,
}

fn main() -> Outcome<()> {
    if let Some(rank) = this_rank()? {
        let job = Job::new(&rank);
        return match &*rank.scenario {
            "blocks" => rank::blocks(&job, &rank.arguments),
            "variables" => rank::variables(&job, &rank.arguments),
            other => Err(format!("no scenario {other:?}").into()),
        };
    }
    let options = Options::from_arguments()?;
    let memory = Folder::make(&options.path)?;
    std::fs::create_dir_all("target/bench")?;
    let disk = Folder::make(Path::new("target/bench"))?;
    let (mib, disk_mib, runs) = if options.quick {
        (32, 16, 5)
    } else {
        (256, 64, 7)
    };
    let storages = [
        Storage {
            name: "memory",
            folder: memory.path().join("job"),
            mib,
            runs,
        },
        Storage {
            name: "disk",
            folder: disk.path().join("job"),
            mib: disk_mib,
            runs: 5,
        },
    ];
    let mut figures = Figures::new("capture-sweep");
    say(&figures.title());
    let mut samples = Samples::new();
    for storage in &storages {
        sweep(storage, &mut samples)?;
        say(&shapes(storage, &samples, &mut figures));
        say(&model::show(storage.name, &samples, &mut figures));
    }
    variables(&storages[0], &mut samples)?;
    say(&variable_table(&samples, &mut figures));
    say(&format!("written: {}", figures.write()?.display()));
    Ok(())
}

/// The settings of one storage: blocks of all sizes with one thread, then more threads.
fn settings(storage: &str) -> Vec<(String, usize, usize)> {
    let blocks = BLOCK_KIB.iter().map(|&kib| (kib, 1));
    let threads = [2, 4].into_iter().map(|threads| (16, threads));
    blocks
        .chain(threads)
        .map(|(kib, threads)| (format!("sweep.{storage}.{kib}k.t{threads}"), kib, threads))
        .collect()
}

fn sweep(storage: &Storage, samples: &mut Samples) -> Outcome<()> {
    let scattered = PERCENTS.map(|percent| Step {
        place: Place::Scattered,
        percent,
    });
    let contiguous = [1.0, 3.0, 25.0].map(|percent| Step {
        place: Place::Contiguous,
        percent,
    });
    for (setting, kib, threads) in settings(storage.name) {
        say(&format!("{setting}: 2 ranks of {} MiB", storage.mib));
        let numbers = [storage.mib, storage.runs, kib, threads];
        let mut arguments: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        arguments.push(setting);
        arguments.extend(scattered.iter().chain(&contiguous).map(Step::name));
        let launch = Launch {
            scenario: "blocks",
            size: 2,
            folder: &storage.folder,
            arguments: &arguments,
            under: &[],
        };
        launch.run(samples)?;
    }
    Ok(())
}

/// The median of what was measured under an id.
fn value(samples: &Samples, id: &str) -> f64 {
    samples
        .get(id)
        .and_then(|values| median(values))
        .unwrap_or(f64::NAN)
}

/// What each run measured under `id`, divided by what the same run measured under `base`.
fn ratios(samples: &Samples, id: &str, base: &str) -> Vec<f64> {
    match (samples.get(id), samples.get(base)) {
        (Some(values), Some(bases)) => values.iter().zip(bases).map(|(a, b)| a / b).collect(),
        _ => Vec::new(),
    }
}

/// Block sizes, places of changes and threads.
fn shapes(storage: &Storage, samples: &Samples, figures: &mut Figures) -> String {
    let head = [
        "block",
        "threads",
        "changed",
        "wall ms",
        "wall / pwrite of all",
        "CPU / memcpy",
    ];
    let head = head.into_iter().chain(["written %", "manifest %"]);
    let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    for (setting, kib, threads) in settings(storage.name) {
        for (step, text) in [
            ("s0", "nothing"),
            ("s1", "1 % scattered"),
            ("c1", "1 % contiguous"),
            ("s3", "3 % scattered"),
            ("c3", "3 % contiguous"),
            ("s25", "25 % scattered"),
            ("c25", "25 % contiguous"),
            ("s100", "all"),
        ] {
            let id = |quantity: &str| format!("{setting}.{step}.{quantity}");
            let wall = ratios(samples, &id("wall"), &format!("{setting}.write.wall"));
            let cpu = ratios(samples, &id("cpu"), &format!("{setting}.copy.cpu"));
            rows.push(vec![
                format!("{kib} KiB"),
                threads.to_string(),
                text.to_owned(),
                short(value(samples, &id("wall")) * 1e3),
                short(median(&wall).unwrap_or(f64::NAN)),
                short(median(&cpu).unwrap_or(f64::NAN)),
                short(value(samples, &id("written")) * 100.0),
                short(value(samples, &id("manifest")) * 100.0),
            ]);
            for (quantity, values) in [("wall", wall), ("cpu", cpu)] {
                let what = format!("{kib} KiB, {threads} threads, {text}: {quantity}");
                let id = id(quantity);
                figures.push(Figure::shown(id, what, "ratio", Better::Lower, &values));
            }
        }
    }
    format!(
        "\nOn {}, changes in granules of 4 KiB:\n\n{}",
        storage.name,
        columns(&rows)
    )
}

fn variables(storage: &Storage, samples: &mut Samples) -> Outcome<()> {
    for (count, bytes) in VARIABLES {
        let setting = format!("sweep.variables.{count}x{bytes}");
        say(&format!("{setting}: 2 ranks"));
        let mut arguments: Vec<String> =
            [count, bytes, 21].iter().map(ToString::to_string).collect();
        arguments.push(setting);
        let launch = Launch {
            scenario: "variables",
            size: 2,
            folder: &storage.folder,
            arguments: &arguments,
            under: &[],
        };
        launch.run(samples)?;
    }
    Ok(())
}

fn variable_table(samples: &Samples, figures: &mut Figures) -> String {
    let head = [
        "variables",
        "bytes each",
        "all changed ms",
        "/ pwrite",
        "nothing changed ms",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows[0].push("manifest bytes each".to_owned());
    for (count, bytes) in VARIABLES {
        let setting = format!("sweep.variables.{count}x{bytes}");
        let id = |step: &str| format!("{setting}.{step}.wall");
        let all = ratios(samples, &id("all"), &id("write"));
        rows.push(vec![
            count.to_string(),
            bytes.to_string(),
            short(value(samples, &id("all")) * 1e3),
            short(median(&all).unwrap_or(f64::NAN)),
            short(value(samples, &id("none")) * 1e3),
            short(value(samples, &format!("{setting}.manifest"))),
        ]);
        let what = format!("{count} variables of {bytes} B, all changed: wall / pwrite");
        figures.push(Figure::shown(id("all"), what, "ratio", Better::Lower, &all));
        let what = format!("{count} variables of {bytes} B, nothing changed: wall / pwrite of all");
        let none = ratios(samples, &id("none"), &id("write"));
        figures.push(Figure::shown(
            id("none"),
            what,
            "ratio",
            Better::Lower,
            &none,
        ));
    }
    format!("\nMany variables in memory:\n\n{}", columns(&rows))
}
