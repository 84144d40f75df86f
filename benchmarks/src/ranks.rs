// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: starts the ranks of a job as processes of this program, and reads what they measured.
//! In from: a benchmark's `main`. Out to: the same program, told by its environment that it is a rank.
//! Invariants: rank 0 alone says what was measured, one value a line; a rank that fails ends the
//! others; what a job left in its folder is removed, whatever happened.

use crate::Outcome;
use crate::comm::ProcessComm;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const RANK: &str = "BACKSTAY_SITE_BENCH_RANK";
const SIZE: &str = "BACKSTAY_SITE_BENCH_SIZE";
const FOLDER: &str = "BACKSTAY_SITE_BENCH_FOLDER";
const SOCKET: &str = "ranks.socket";

/// All values of each id, in the order in which they were measured.
pub type Samples = BTreeMap<String, Vec<f64>>;

/// A folder that is removed with all that is in it.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder of this process's own in `parent`.
    pub fn make(parent: &Path) -> Outcome<Self> {
        let path = parent.join(format!("backstay-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .map_err(|error| format!("making {}: {error}", path.display()))?;
        Ok(Self(path))
    }
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing better can be done about what cannot be removed.
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A job to run.
#[derive(Debug)]
pub struct Launch<'a> {
    /// What its ranks do.
    pub scenario: &'a str,
    /// How many there are.
    pub size: u32,
    /// Where its store and files lie.
    pub folder: &'a Path,
    /// Words for the scenario.
    pub arguments: &'a [String],
    /// Runs the ranks under this program; `{rank}` in a word becomes the rank.
    pub under: &'a [String],
}

impl Launch<'_> {
    /// Runs the job to its end and adds what it measured to `samples`.
    pub fn run(&self, samples: &mut Samples) -> Outcome<()> {
        std::fs::create_dir_all(self.folder)?;
        let mut children = Vec::new();
        for rank in 0..self.size {
            children.push(self.start(rank)?);
        }
        let said = children[0].stdout.take();
        let reader = std::thread::spawn(move || -> std::io::Result<Vec<String>> {
            said.map_or(Ok(Vec::new()), |out| BufReader::new(out).lines().collect())
        });
        let ended = end(&mut children, self.scenario);
        let lines = reader
            .join()
            .map_err(|_panic| "reading what rank 0 says panicked")?;
        std::fs::remove_dir_all(self.folder)?;
        ended?;
        lines?.iter().try_for_each(|line| take(line, samples))
    }

    fn start(&self, rank: u32) -> Outcome<Child> {
        let own = std::env::current_exe()?;
        let mut command = match self.under.split_first() {
            Some((program, words)) => {
                let mut command = Command::new(program);
                command.args(
                    words
                        .iter()
                        .map(|word| word.replace("{rank}", &rank.to_string())),
                );
                command.arg(own);
                command
            }
            None => Command::new(own),
        };
        let out = if rank == 0 {
            Stdio::piped()
        } else {
            Stdio::null()
        };
        let child = command
            .arg(self.scenario)
            .args(self.arguments)
            .env(RANK, rank.to_string())
            .env(SIZE, self.size.to_string())
            .env(FOLDER, self.folder)
            .env("BACKSTAY_LOG", "warn")
            .stdout(out)
            .spawn()?;
        Ok(child)
    }
}

fn take(line: &str, samples: &mut Samples) -> Outcome<()> {
    let (id, value) = line
        .split_once('\t')
        .ok_or_else(|| format!("rank 0 said {line:?}"))?;
    samples
        .entry(id.to_owned())
        .or_default()
        .push(value.parse()?);
    Ok(())
}

/// Waits for all ranks; when one fails, the others are ended.
fn end(children: &mut [Child], scenario: &str) -> Outcome<()> {
    let mut running: Vec<usize> = (0..children.len()).collect();
    let mut failure = None;
    while !running.is_empty() {
        let mut left = Vec::new();
        for rank in running {
            match children[rank].try_wait()? {
                None => left.push(rank),
                Some(status) if !status.success() => {
                    failure.get_or_insert(format!("{scenario}: rank {rank} ended with {status}"));
                }
                Some(_) => {}
            }
        }
        if failure.is_some() {
            left.iter().try_for_each(|&rank| children[rank].kill())?;
        }
        running = left;
        std::thread::sleep(Duration::from_millis(50));
    }
    failure.map_or(Ok(()), |text| Err(text.into()))
}

/// What a process knows that was started as a rank.
#[derive(Debug)]
pub struct Rank {
    /// The other ranks.
    pub comm: ProcessComm,
    /// Where the job's store and files lie.
    pub folder: PathBuf,
    /// What to do.
    pub scenario: String,
    /// Words for the scenario.
    pub arguments: Vec<String>,
}

/// This process as a rank, if it was started as one. Collective if so.
pub fn this_rank() -> Outcome<Option<Rank>> {
    let Ok(rank) = std::env::var(RANK) else {
        return Ok(None);
    };
    let folder = PathBuf::from(std::env::var_os(FOLDER).ok_or("no folder")?);
    let comm = ProcessComm::join(
        rank.parse()?,
        std::env::var(SIZE)?.parse()?,
        &folder.join(SOCKET),
    )?;
    let mut words = std::env::args().skip(1);
    Ok(Some(Rank {
        comm,
        folder,
        scenario: words.next().ok_or("no scenario")?,
        arguments: words.collect(),
    }))
}

/// Says a measured value; only rank 0 does.
pub fn tell(id: &str, value: f64) -> Outcome<()> {
    Ok(writeln!(std::io::stdout().lock(), "{id}\t{value}")?)
}
