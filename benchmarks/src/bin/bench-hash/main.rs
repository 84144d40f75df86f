// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How often hashes miss a small change, and how fast they are: why blocks are told apart by XXH3-128.
//! Source: Keller and Bautista-Gomez, "Application-Level Differential Checkpointing for HPC
//! Applications with Dynamic Datasets", section V, algorithm 1 and table I.

mod hashes;
mod trials;

use backstay_bench::figures::{Better, Figure, Figures, Wanted, columns, median, say, short};
use backstay_bench::job::cpu_seconds;
use backstay_bench::options::Options;
use backstay_bench::{MIB, Outcome, as_f64, size_f64};
use hashes::{HASHES, Hash};
use trials::{Cell, PATTERNS, REACHES, Reach};

const BLOCK_BYTES: [usize; 9] = [128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];
const ROUNDS: u64 = 5;

/// What the hash of blocks has to reach.
const OURS: Wanted = Wanted::at_most(
    "hash.collisions",
    "XXH3-128: collisions",
    "per million",
    0.0,
);

/// Collisions of every hash in one cell, by round.
struct Found {
    cell: Cell,
    rounds: Vec<Vec<u64>>,
}

fn main() -> Outcome<()> {
    let options = Options::from_arguments()?;
    let bytes = if options.quick { 4 * MIB } else { 48 * MIB };
    let mut figures = Figures::new("hash");
    say(&figures.title());
    let mut found = Vec::new();
    for reach in REACHES {
        for block_bytes in BLOCK_BYTES {
            for pattern in PATTERNS {
                let cell = Cell {
                    block_bytes,
                    pattern,
                    reach,
                    trials: bytes / block_bytes,
                };
                let rounds = (0..ROUNDS)
                    .map(|round| cell.collisions(round))
                    .collect::<Result<_, _>>()?;
                found.push(Found { cell, rounds });
            }
        }
    }
    for reach in REACHES {
        say(&format!(
            "\nCollisions in a million trials, {}, by the bits that change:\n",
            reach.text()
        ));
        let names = PATTERNS.map(|pattern| pattern.name());
        let pick = |which: usize, found: &Found| found.cell.pattern == PATTERNS[which];
        say(&table(&found, reach, &names, &pick, "bits", &mut figures));
        say("The same, by block size in bytes:\n");
        let names = BLOCK_BYTES.map(|bytes| bytes.to_string());
        let pick = |which: usize, found: &Found| found.cell.block_bytes == BLOCK_BYTES[which];
        say(&table(&found, reach, &names, &pick, "block", &mut figures));
    }
    let own = HASHES
        .iter()
        .position(|hash| hash.id == "xxh3_128")
        .ok_or("no XXH3-128")?;
    figures.push(Figure::of(&OURS, &rates(found.iter(), own)));
    say("Speed at 16 KiB a block, of memory that no cache holds:\n");
    say(&speeds(&options, &mut figures));
    say(&format!("written: {}", figures.write()?.display()));
    Ok(())
}

/// Collisions a million trials: a row for each hash, a column for each of `names`.
fn table(
    found: &[Found],
    reach: Reach,
    names: &[String],
    pick: &dyn Fn(usize, &Found) -> bool,
    group: &str,
    figures: &mut Figures,
) -> String {
    let mut head = vec!["hash".to_owned()];
    head.extend(names.iter().cloned());
    head.push("all".to_owned());
    let mut rows = vec![head];
    for (index, hash) in HASHES.iter().enumerate() {
        let mut row = vec![hash.name.to_owned()];
        for (which, name) in names.iter().enumerate() {
            let cells = found
                .iter()
                .filter(|found| found.cell.reach == reach && pick(which, found));
            let rates = rates(cells, index);
            row.push(short(median(&rates).unwrap_or(0.0)));
            let id = format!("hash.collisions.{}.{}.{group}.{name}", reach.id(), hash.id);
            let what = format!(
                "{}: collisions, {group} {name}, {}",
                hash.name,
                reach.text()
            );
            figures.push(Figure::shown(
                id,
                what,
                "per million",
                Better::Lower,
                &rates,
            ));
        }
        let all = rates(
            found.iter().filter(|found| found.cell.reach == reach),
            index,
        );
        row.push(short(median(&all).unwrap_or(0.0)));
        rows.push(row);
    }
    columns(&rows)
}

/// Collisions of one hash a million trials, by round.
fn rates<'a>(cells: impl Iterator<Item = &'a Found>, hash: usize) -> Vec<f64> {
    let cells: Vec<&Found> = cells.collect();
    let trials: f64 = cells.iter().map(|found| size_f64(found.cell.trials)).sum();
    let count = |round: usize| {
        cells
            .iter()
            .map(|found| found.rounds[round][hash])
            .sum::<u64>()
    };
    let rounds = cells.first().map_or(0, |found| found.rounds.len());
    (0..rounds)
        .map(|round| as_f64(count(round)) / trials * 1e6)
        .collect()
}

fn speeds(options: &Options, figures: &mut Figures) -> String {
    let size = if options.quick { 32 * MIB } else { 256 * MIB };
    let from: Vec<u8> = (0..=255).cycle().take(size).collect();
    let mut to = vec![1_u8; size];
    let mut rows = vec![
        ["hash", "GB a CPU second", "CPU / memcpy", "bits"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for hash in &HASHES {
        let (mut rates, mut ratios) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let start = cpu_seconds();
            to.copy_from_slice(&from);
            std::hint::black_box(&mut to);
            let copy = cpu_seconds() - start;
            let start = cpu_seconds();
            let sum = from
                .chunks_exact(16 << 10)
                .fold(0, |sum, block| sum ^ (hash.of)(block));
            std::hint::black_box(sum);
            let spent = cpu_seconds() - start;
            rates.push(size_f64(size) / spent / 1e9);
            ratios.push(spent / copy);
        }
        rows.push(speed_row(hash, &rates, &ratios, figures));
    }
    columns(&rows)
}

fn speed_row(hash: &Hash, rates: &[f64], ratios: &[f64], figures: &mut Figures) -> Vec<String> {
    let values = [rates, ratios].map(|values| short(median(values).unwrap_or(0.0)));
    let [rate, ratio] = values;
    let id = format!("hash.speed.{}", hash.id);
    figures.push(Figure::shown(
        id,
        format!("{}: speed", hash.name),
        "GB/s",
        Better::Higher,
        rates,
    ));
    let id = format!("hash.cost.{}", hash.id);
    let what = format!("{}: CPU / memcpy", hash.name);
    figures.push(Figure::shown(id, what, "ratio", Better::Lower, ratios));
    vec![hash.name.to_owned(), rate, ratio, hash.bits.to_string()]
}
