// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a checkpoint costs on CephFS: requests at the metadata server, writes at the object servers and
//! wall time of a file per process (own), of one file that all share (shared), of Backstay's archive with a
//! file for each aggregator (archive), and with one file for all of them (archive-one-file). `make bench-cephfs` starts it with a file system of its own.

mod archive;
mod counters;
mod ways;

use archive::{Archive, Settings};
use backstay::format::width::to_u64;
use backstay_bench::figures::{Better, Figure, Figures, median, say, short};
use backstay_bench::job::cpu_seconds;
use backstay_bench::machine::wait_quiet;
use backstay_bench::{MIB, Outcome, as_f64};
use counters::{Counters, Counts};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use ways::{FilePerProcess, Payload, SharedFile, Way};

/// Bytes of a writer.
const PART: usize = 2 * MIB;
/// Rounds before those that count: the archive's first ones write where nothing was yet.
const WARM: usize = 3;
/// What the archive's wall time is compared with, and which share of it is asked for with the most writers.
const COMPARED: [(&str, f64); 2] = [("own", 0.85), ("shared", 0.35)];
const WRITES: f64 = 140.0;

/// One round of one way.
struct Round {
    wall: f64,
    /// CPU seconds of this process, and of daemons and mounts until they had nothing to do.
    cpu: f64,
    counts: Counts,
    /// How busy the processors were just before.
    busy: f64,
}

type Rounds = BTreeMap<&'static str, Vec<Round>>;

/// What to measure.
struct Plan {
    mounts: Vec<PathBuf>,
    counters: Counters,
    writers: Vec<usize>,
    rounds: usize,
    settings: Settings,
    only: Option<String>,
    check: bool,
    patience: Duration,
}

impl Plan {
    /// From the environment (the file system) and the command line (all else).
    fn read() -> Outcome<Self> {
        let variable = |name: &str| {
            let text = std::env::var(name).ok();
            text.ok_or_else(|| format!("{name} is not set: run `make bench-cephfs`, as root"))
        };
        let mounts = variable("BACKSTAY_TEST_CEPHFS")?;
        let run = PathBuf::from(variable("BACKSTAY_TEST_CEPHFS_RUN")?);
        let mut plan = Self {
            mounts: mounts.split(':').map(PathBuf::from).collect(),
            counters: Counters::of(&run)?,
            writers: vec![16, 32, 64, 128],
            rounds: 9,
            settings: Settings::default(),
            only: None,
            check: false,
            patience: Duration::from_secs(5),
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
                "--only" => plan.only = Some(value()?),
                "--check" => {
                    (plan.check, plan.only) = (true, Some("archive".to_owned()));
                    plan.patience = Duration::ZERO;
                }
                "--patience" => plan.patience = Duration::from_secs(value()?.parse()?),
                "--threads" => plan.settings.threads = Some(value()?.parse()?),
                "--write-kib" => {
                    plan.settings.write_bytes = Some(value()?.parse::<usize>()? << 10);
                }
                "--direct" => plan.settings.direct = true,
                _ => return Err(format!("unknown: {word}").into()),
            }
        }
        Ok(plan)
    }
}

/// All rounds of all ways, one way after the other in each round.
fn measure(plan: &Plan, writers: usize) -> Outcome<Rounds> {
    let noise = |rank| backstay_testkit::oracle::noise(to_u64(rank), PART);
    let mut payload = Payload {
        parts: (0..writers).map(noise).collect(),
    };
    let folder = format!("writers-{writers}");
    let mounts: Vec<PathBuf> = plan
        .mounts
        .iter()
        .map(|mount| mount.join(&folder))
        .collect();
    std::fs::create_dir(&mounts[0])?;
    let own = FilePerProcess {
        mounts: mounts.clone(),
    };
    let shared = SharedFile {
        mounts: mounts.clone(),
    };
    let bytes = writers * PART;
    let archive = Archive::create(&mounts, bytes, &plan.settings, false)?;
    let regions: Vec<PathBuf> = mounts.iter().map(|mount| mount.join("one-file")).collect();
    let one_file = Archive::create(&regions, bytes, &plan.settings, true)?;
    let mut ways: Vec<&dyn Way> = vec![&own, &shared, &archive, &one_file];
    ways.retain(|way| plan.only.as_ref().is_none_or(|only| only == way.name()));
    let mut found = Rounds::new();
    for round in 0..plan.rounds + WARM {
        let number = to_u64(round);
        for part in &mut payload.parts {
            part[..8].copy_from_slice(&number.to_le_bytes());
        }
        for way in &ways {
            let before = plan.counters.settle()?;
            let busy = wait_quiet(plan.patience);
            let own_cpu = cpu_seconds();
            let wall = way.checkpoint(number, &payload)?;
            let own_cpu = cpu_seconds() - own_cpu;
            let counts = plan.counters.settle()?.since(&before);
            let cpu =
                own_cpu + as_f64(counts.ticks) / as_f64(rustix::param::clock_ticks_per_second());
            if round >= WARM {
                let round = Round {
                    wall,
                    cpu,
                    counts,
                    busy,
                };
                found.entry(way.name()).or_default().push(round);
            }
            if round + 1 == plan.rounds + WARM {
                way.verify(number, &payload)?;
            }
        }
        ways.iter().try_for_each(|way| way.clear(number))?;
    }
    Ok(found)
}

/// A value of each round.
fn values(rounds: &[Round], value: impl Fn(&Round) -> f64) -> Vec<f64> {
    rounds.iter().map(value).collect()
}

/// Adds the figures of one number of writers, and says the types of requests.
fn report(figures: &mut Figures, writers: usize, most: bool, found: &Rounds) {
    for (name, rounds) in found {
        let id = |what: &str| format!("cephfs.{writers}.{name}.{what}");
        let text = |what: &str| format!("{writers} writers, {name}: {what}");
        let requests = values(rounds, |round| as_f64(round.counts.requests));
        let writes = values(rounds, |round| as_f64(round.counts.writes));
        let mut shown = |what: &str, words: &str, unit: &str, values: &[f64]| {
            let (id, text) = (id(what), text(words));
            figures.push(Figure::shown(id, text, unit, Better::Lower, values));
        };
        shown("wall", "wall", "s", &values(rounds, |round| round.wall));
        shown(
            "cpu",
            "CPU of writers, mounts and servers",
            "s",
            &values(rounds, |round| round.cpu),
        );
        let caps = values(rounds, |round| as_f64(round.counts.caps));
        shown("caps", "messages about capabilities", "", &caps);
        let busy = values(rounds, |round| round.busy);
        shown("busy", "processors busy before", "", &busy);
        let is_ours = *name == "archive";
        if is_ours {
            let words = text("metadata requests");
            figures.push(Figure::at_most(id("requests"), words, "", 0.0, &requests));
        } else {
            shown("requests", "metadata requests", "", &requests);
        }
        if is_ours && most {
            let words = text("storage writes");
            figures.push(Figure::at_most(id("writes"), words, "", WRITES, &writes));
        } else {
            figures.push(Figure::shown(
                id("writes"),
                text("storage writes"),
                "",
                Better::Lower,
                &writes,
            ));
        }
        if let Some(last) = rounds.last().filter(|round| round.counts.requests > 0) {
            say(&format!("{}: {}", text("requests"), last.counts.types()));
        }
    }
    let Some(ours) = found.get("archive") else {
        return;
    };
    for (name, reach) in COMPARED {
        let Some(others) = found.get(name) else {
            continue;
        };
        let pairs = ours.iter().zip(others);
        let ratios: Vec<f64> = pairs.map(|(one, other)| one.wall / other.wall).collect();
        let (id, what) = (
            format!("cephfs.{writers}.wall_over_{name}"),
            format!("{writers} writers, archive / {name}: wall"),
        );
        say(&format!(
            "{what} {}",
            median(&ratios).map_or_else(String::new, short)
        ));
        figures.push(if most {
            Figure::at_most(id, what, "ratio", reach, &ratios)
        } else {
            Figure::shown(id, what, "ratio", Better::Lower, &ratios)
        });
    }
}

/// That no round of the archive made a request.
fn check(writers: usize, found: &Rounds) -> Outcome<()> {
    let rounds = found.get("archive").ok_or("the archive was not measured")?;
    for (number, round) in rounds.iter().enumerate() {
        if round.counts.requests > 0 || !round.counts.by_type.is_empty() {
            let (count, types) = (round.counts.requests, round.counts.types());
            let text =
                format!("{writers} writers, round {number}: {count} metadata requests: {types}");
            return Err(text.into());
        }
    }
    let writes = values(rounds, |round| as_f64(round.counts.writes));
    let writes = median(&writes).map_or_else(String::new, short);
    say(&format!(
        "{writers} writers: no metadata request in {} checkpoints, {writes} storage writes",
        rounds.len()
    ));
    Ok(())
}

fn main() -> Outcome<()> {
    let plan = Plan::read()?;
    let mut figures = Figures::new("cephfs");
    let most = plan.writers.iter().max().copied();
    for &writers in &plan.writers {
        let found = measure(&plan, writers)?;
        if plan.check {
            check(writers, &found)?;
        } else {
            report(&mut figures, writers, Some(writers) == most, &found);
        }
    }
    if !plan.check {
        say(&figures.table());
        say(&format!("{}", figures.write()?.display()));
    }
    Ok(())
}
