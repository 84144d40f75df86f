// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a checkpoint and a restore cost on one machine, each beside what the same processes can do
//! with the same bytes at the same time.

mod changes;
mod small;

use backstay_bench::figures::{Better, Figures, Wanted, say};
use backstay_bench::heap::Counting;
use backstay_bench::job::Job;
use backstay_bench::options::Options;
use backstay_bench::ranks::{Folder, Launch, Samples, this_rank};
use backstay_bench::{Outcome, machine, syscalls};

#[global_allocator]
static HEAP: Counting = Counting::new();

/// Memory that ranks of 1 GiB, their store and a margin need.
const MARKED_BYTES: u64 = 11 << 30;

const LOWER: Better = Better::Lower;
const HIGHER: Better = Better::Higher;

/// The table of the figures to reach.
const WANTED: &[Wanted] = &[
    Wanted::at_most(
        "capture.hash.clean",
        "0 % changed, hash: CPU / memcpy",
        "ratio",
        1.1,
    ),
    Wanted::at_most(
        "capture.pages.clean",
        "0 % changed, pages: CPU / memcpy",
        "ratio",
        0.05,
    ),
    Wanted::at_most(
        "capture.hash.3",
        "3 % changed, hash: CPU / memcpy",
        "ratio",
        1.2,
    ),
    Wanted::at_most(
        "capture.pages.3",
        "3 % changed, pages: CPU / memcpy",
        "ratio",
        0.15,
    ),
    Wanted::shown(
        "capture.pages.3.faults",
        "  the program's faults / memcpy",
        "ratio",
        LOWER,
    ),
    Wanted::at_most(
        "capture.full.100",
        "100 % changed: wall / pwrite fresh",
        "ratio",
        0.8,
    ),
    Wanted::shown("capture.full.100.cpu", "  CPU / memcpy", "ratio", LOWER),
    Wanted::at_most(
        "capture.growing",
        "the first three of a job, all changed: wall / pwrite fresh",
        "ratio",
        1.5,
    ),
    Wanted::shown("capture.growing.first", "  the first", "ratio", LOWER),
    Wanted::shown("capture.growing.second", "  the second", "ratio", LOWER),
    Wanted::shown("capture.growing.third", "  the third", "ratio", LOWER),
    Wanted::at_most("restore", "restore: wall / pread", "ratio", 1.5),
    Wanted::shown("restore.open", "  opening before it, wall", "ms", LOWER),
    Wanted::at_most(
        "capture.comm_calls",
        "communicator calls a checkpoint",
        "",
        2.0,
    ),
    Wanted::at_most("capture.syncs_per_node", "syncs a node", "", 3.0),
    Wanted::at_most(
        "capture.files_per_rank",
        "files opened, made, unlinked a rank",
        "",
        0.0,
    ),
    Wanted::at_most(
        "capture.small.1of1",
        "1 MiB of 1 MiB, 4 ranks: wall / pwrite",
        "ratio",
        2.0,
    ),
    Wanted::at_most(
        "capture.marked.1of1024",
        "1 MiB of 1 GiB, marked: wall / pwrite",
        "ratio",
        4.0,
    ),
    Wanted::at_most(
        "capture.variables.2000x512",
        "2000 x 512 B, 4 ranks: wall / pwrite",
        "ratio",
        4.0,
    ),
    Wanted::at_most(
        "capture.manifest.0_1",
        "manifest / data at 0.1 % scattered",
        "ratio",
        0.25,
    ),
    Wanted::at_most("capture.manifest.0", "manifest bytes at 0 %", "B", 0.0),
    Wanted::at_most(
        "memory.between",
        "memory a GiB between checkpoints",
        "MiB",
        1.5,
    ),
    Wanted::at_most("memory.peak", "memory a GiB, peak at 100 %", "MiB", 3.0),
    Wanted::shown("memory.peak.3", "  peak at 3 %", "MiB", LOWER),
    Wanted::shown(
        "memory.page_tables",
        "  page tables beside it",
        "MiB",
        LOWER,
    ),
    Wanted::shown(
        "baseline.memcpy",
        "memcpy, bytes a CPU second",
        "GB/s",
        HIGHER,
    ),
    Wanted::shown(
        "baseline.fresh",
        "pwrite fresh + fdatasync, 2 ranks",
        "GB/s",
        HIGHER,
    ),
    Wanted::shown("baseline.pread", "pread, 2 ranks", "GB/s", HIGHER),
    Wanted::shown(
        "baseline.recycled.1",
        "pwrite recycled 1 MiB, 4 ranks",
        "ms",
        LOWER,
    ),
];

fn main() -> Outcome<()> {
    if let Some(rank) = this_rank()? {
        let job = Job::new(&rank);
        return match &*rank.scenario {
            "hash" => changes::hash(&job, &rank.arguments),
            "pages" => changes::pages(&job, &rank.arguments),
            "growing" => changes::growing(&job, &rank.arguments),
            "restore" => changes::restore(&job, &rank.arguments),
            "calls" => changes::calls(&job),
            "small" => small::one_of_one(&job, &rank.arguments),
            "variables" => small::variables(&job, &rank.arguments),
            "marked" => small::marked(&job, &rank.arguments),
            other => Err(format!("no scenario {other:?}").into()),
        };
    }
    let options = Options::from_arguments()?;
    let samples = measure(&options)?;
    let mut figures = Figures::new("capture");
    figures.take(WANTED, &samples);
    say(&figures.table());
    say(
        "CPU: all threads of both ranks until durable on the node; wall: the slower rank. Baselines:",
    );
    say("the same processes, both at once, in the same run. 256 MiB a rank in granules of 16 KiB.");
    say(
        "capture.manifest counts pages and tables of ranks; each commit also writes one root slot.",
    );
    say(&format!("written: {}", figures.write()?.display()));
    Ok(())
}

fn measure(options: &Options) -> Outcome<Samples> {
    let folder = Folder::make(&options.path)?;
    let (mib, few, many) = if options.quick {
        (32, 3, 10)
    } else {
        (256, 11, 101)
    };
    let words = |numbers: &[usize]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut samples = Samples::new();
    for (scenario, size, arguments) in [
        ("hash", 2, words(&[mib, few])),
        ("pages", 2, words(&[mib, few])),
        ("growing", 2, words(&[mib, few])),
        ("restore", 2, words(&[mib, few])),
        ("small", 4, words(&[many])),
        ("variables", 4, words(&[many])),
        (
            "marked",
            4,
            words(&[if options.quick { 64 } else { 1024 }, many]),
        ),
    ] {
        if !options.wants(scenario) {
            continue;
        }
        if scenario == "marked" && !options.quick && machine::available_memory() < MARKED_BYTES {
            say(&format!(
                "{scenario}: not measured, it wants {MARKED_BYTES} bytes of free memory"
            ));
            continue;
        }
        say(&format!("{scenario}: {size} ranks"));
        let launch = Launch {
            scenario,
            size,
            folder: &folder.path().join(scenario),
            arguments: &arguments,
            under: &[],
        };
        launch.run(&mut samples)?;
    }
    if options.wants("calls") {
        count_calls(&folder, &mut samples)?;
    }
    Ok(samples)
}

/// Counts what the ranks ask of the kernel, in a run of its own.
fn count_calls(folder: &Folder, samples: &mut Samples) -> Outcome<()> {
    let Some(under) = syscalls::tracer(folder.path()) else {
        say("calls: not counted, strace is not here or may not trace");
        return Ok(());
    };
    say("calls: 2 ranks under strace");
    let launch = Launch {
        scenario: "calls",
        size: 2,
        folder: &folder.path().join("calls"),
        arguments: &[],
        under: &under,
    };
    launch.run(samples)?;
    let ranks = [
        syscalls::counted(folder.path(), 0)?,
        syscalls::counted(folder.path(), 1)?,
    ];
    let [leader, other] = &ranks;
    let syncs = leader
        .iter()
        .zip(other)
        .map(|(a, b)| backstay_bench::as_f64(a.syncs + b.syncs));
    samples.insert("capture.syncs_per_node".to_owned(), syncs.collect());
    let files = leader
        .iter()
        .zip(other)
        .map(|(a, b)| backstay_bench::as_f64(a.files.max(b.files)));
    samples.insert("capture.files_per_rank".to_owned(), files.collect());
    Ok(())
}
