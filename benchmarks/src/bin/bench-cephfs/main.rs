// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a checkpoint costs on CephFS: requests at the metadata server, writes at the object servers and
//! wall time of a file per process, of one shared file, and of one reserved file per aggregator.
//! Started by `make bench-cephfs` with the mounts and the admin sockets in its environment.

mod archive;
mod counters;
mod ways;

use backstay_bench::figures::{Better, Figure, Figures, Wanted, say, short};
use backstay_bench::{MIB, Outcome, as_f64};
use archive::{Archive, Settings};
use counters::{Counters, Counts};
use std::collections::BTreeMap;
use std::path::PathBuf;
use ways::{FilePerProcess, Payload, SharedFile, Way};

const PART: usize = 2 * MIB;

/// What was measured of one way: wall seconds and counts, one a round.
type Rounds = BTreeMap<&'static str, Vec<(f64, Counts)>>;

/// What to measure.
struct Plan {
    mounts: Vec<PathBuf>,
    counters: Counters,
    writers: Vec<usize>,
    rounds: usize,
    settings: Settings,
    only: Option<String>,
}

impl Plan {
    /// From the environment (the file system) and the command line (all else).
    fn read() -> Outcome<Self> {
        let variable = |name: &str| {
            let text = std::env::var(name).ok();
            text.ok_or_else(|| format!("{name} is not set: run `make bench-cephfs`, as root"))
        };
        let mounts = variable("BACKSTAY_TEST_CEPHFS")?
            .split(':')
            .map(PathBuf::from)
            .collect();
        let run = PathBuf::from(variable("BACKSTAY_TEST_CEPHFS_RUN")?);
        let mut plan = Self {
            mounts,
            counters: Counters::of(&run)?,
            writers: vec![16, 32, 64, 128],
            rounds: 9,
            settings: Settings::default(),
            only: None,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
            match word.as_str() {
                "--quick" => (plan.rounds, plan.writers) = (2, vec![16]),
                "--rounds" => plan.rounds = value()?.parse()?,
                "--writers" => {
                    let counts: Result<_, _> = value()?.split(',').map(str::parse).collect();
                    plan.writers = counts?;
                }
                "--threads" => plan.settings.threads = Some(value()?.parse()?),
                "--write-kib" => plan.settings.write_bytes = Some(value()?.parse::<usize>()? << 10),
                "--direct" => plan.settings.direct = true,
                "--only" => plan.only = Some(value()?),
                _ => return Err(format!("unknown: {word}").into()),
            }
        }
        Ok(plan)
    }
}

fn measure(plan: &Plan, writers: usize) -> Outcome<Rounds> {
    let noise = |rank| backstay_testkit::oracle::noise(rank, PART);
    let parts: Vec<Vec<u8>> = (0..writers)
        .map(|rank| noise(backstay::format::width::to_u64(rank)))
        .collect();
    let mut payload = Payload { parts };
    let mounts: Vec<PathBuf> = plan
        .mounts
        .iter()
        .map(|mount| mount.join(format!("w{writers}")))
        .collect();
    std::fs::create_dir(&mounts[0])?;
    let (own, shared) = (
        FilePerProcess {
            mounts: mounts.clone(),
        },
        SharedFile {
            mounts: mounts.clone(),
        },
    );
    let archive = Archive::create(&mounts, writers * PART, &plan.settings)?;
    let mut ways: Vec<&dyn Way> = vec![&own, &shared, &archive];
    ways.retain(|way| plan.only.as_ref().is_none_or(|only| only == way.name()));
    let mut found = Rounds::new();
    // The first rounds make the reserved files' objects, as the first checkpoints of a job do: not counted.
    let warm = 2;
    for round in 0..plan.rounds + warm {
        let number = backstay::format::width::to_u64(round);
        for part in &mut payload.parts {
            part[..8].copy_from_slice(&number.to_le_bytes());
        }
        for way in &ways {
            let before = plan.counters.settle()?;
            let wall = way.checkpoint(number, &payload)?;
            let counts = plan.counters.settle()?.since(&before);
            if round >= warm {
                found.entry(way.name()).or_default().push((wall, counts));
            }
            if round + 1 == plan.rounds + warm {
                way.verify(number, &payload)?;
            }
            way.clear(number)?;
        }
    }
    Ok(found)
}

/// What a way cost, in figures that are only shown.
fn show(figures: &mut Figures, writers: usize, name: &str, rounds: &[(f64, Counts)]) {
    let mut push = |what: &str, unit: &str, values: Vec<f64>| {
        figures.push(Figure::shown(
            format!("cephfs.{writers}.{name}.{what}"),
            format!("{writers} writers, {name}: {what}"),
            unit,
            Better::Lower,
            &values,
        ));
    };
    push("wall", "s", rounds.iter().map(|(wall, _)| *wall).collect());
    let of = |value: fn(&Counts) -> u64| {
        rounds
            .iter()
            .map(|(_, counts)| as_f64(value(counts)))
            .collect()
    };
    push("requests", "", of(|counts| counts.requests));
    push("caps", "", of(|counts| counts.caps));
    push("writes", "", of(|counts| counts.writes));
}

fn report(figures: &mut Figures, writers: usize, found: &Rounds) {
    for (name, rounds) in found {
        let last = rounds
            .last()
            .map_or_else(String::new, |(_, counts)| counts.types());
        let walls: Vec<f64> = rounds.iter().map(|(wall, _)| *wall).collect();
        let wall = backstay_bench::figures::median(&walls).map_or_else(String::new, short);
        let counts: Vec<_> = rounds
            .iter()
            .map(|(_, counts)| format!("{}/{}/{}", counts.requests, counts.caps, counts.writes))
            .collect();
        say(&format!(
            "{writers} writers, {name}: {wall} s, requests/caps/writes {}; {last}",
            counts.join(" ")
        ));
        show(figures, writers, name, rounds);
    }
}

fn main() -> Outcome<()> {
    let plan = Plan::read()?;
    let mut figures = Figures::new("cephfs");
    for &writers in &plan.writers {
        let found = measure(&plan, writers)?;
        report(&mut figures, writers, &found);
        for (name, reach) in [("own", 0.85), ("shared", 0.35)] {
            if let (Some(ours), Some(others)) = (found.get("reserved"), found.get(name)) {
                let ratios: Vec<f64> = ours
                    .iter()
                    .zip(others)
                    .map(|(one, other)| one.0 / other.0)
                    .collect();
                let wanted = Wanted::at_most("", "", "ratio", reach);
                let mut figure = Figure::of(&wanted, &ratios);
                figure.id = format!("cephfs.{writers}.over_{name}");
                say(&format!(
                    "{writers} writers: reserved / {name} {:.2} ({:.2} to {:.2})",
                    figure.value.unwrap_or(0.0),
                    figure.min.unwrap_or(0.0),
                    figure.max.unwrap_or(0.0)
                ));
                figures.push(figure);
            }
        }
    }
    say(&figures.table());
    say(&format!("{}", figures.write()?.display()));
    Ok(())
}
