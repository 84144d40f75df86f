// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job of threads that leaves stores behind, and running the program on them.

use backstay::{Communicator, Config, ElementType, Session, Variable};
use backstay_testkit::comm::{ThreadComm, run_ranks};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Words of the variable `big` of each rank: 20 blocks of 16 KiB, the last one short.
pub(crate) const WORDS: u64 = 40_000;
/// Words of a block.
pub(crate) const BLOCK_WORDS: u64 = 2048;
/// Shape of the global array `field`, in two by two slabs.
pub(crate) const GLOBAL: [u64; 2] = [64, 96];
pub(crate) const RANKS: usize = 4;

/// A word of `big`: nothing else in a store looks like it.
pub(crate) fn word(rank: u64, index: u64, step: u64) -> u64 {
    0xb16b_0000_0000_0000 | (step & 0xff) << 40 | rank << 32 | index
}

/// An element of `field` at a step.
pub(crate) fn element(row: u64, column: u64, step: u64) -> f64 {
    let index = u32::try_from(row * GLOBAL[1] + column).unwrap();
    f64::from(index)
        + if (row, column) == (63, 95) {
            small(step) * 0.25
        } else {
            0.0
        }
}

pub(crate) fn small(value: u64) -> f64 {
    f64::from(u32::try_from(value).unwrap())
}

pub(crate) fn config(path: &Path, rank: usize, ranks_per_node: usize) -> Config {
    Config {
        job: Some("test job".to_owned()),
        node: Some(format!("node{}", rank / ranks_per_node)),
        store_path: Some(path.to_owned()),
        retained: 3,
        timeout_ms: 20_000,
        watchdog_ms: 20_000,
        ..Config::default()
    }
}

/// One rank's memory.
pub(crate) struct Rank {
    pub(crate) session: Session,
    number: u64,
    pub(crate) step: Box<u64>,
    big: Vec<u64>,
    field: Vec<f64>,
    half: Vec<u16>,
    wave: Vec<[f64; 2]>,
    raw: Vec<u8>,
}

impl Rank {
    pub(crate) fn open(comm: ThreadComm, config: Config) -> Self {
        let number = u64::from(comm.rank());
        let session = Session::open(Box::new(comm), config).expect("opening");
        let mut new = Self {
            session,
            number,
            step: Box::new(0),
            big: (0..WORDS).map(|index| word(number, index, 0)).collect(),
            field: Vec::new(),
            half: vec![0x3f80; 10],
            wave: vec![[1.0, -1.0]; 3],
            raw: vec![7; 5],
        };
        new.fill_field();
        new.protect();
        new
    }

    fn corner(&self) -> [u64; 2] {
        [self.number / 2 * 32, self.number % 2 * 48]
    }

    fn fill_field(&mut self) {
        let ([row, column], step) = (self.corner(), *self.step);
        let rows = row..row + 32;
        let elements = rows.flat_map(|r| (column..column + 48).map(move |c| element(r, c, step)));
        let elements: Vec<f64> = elements.collect();
        self.field.resize(elements.len(), 0.0);
        self.field.copy_from_slice(&elements);
    }

    fn protect(&mut self) {
        let slab = Variable::new("field", ElementType::F64, &[32, 48]);
        let variables = [
            (
                slab.slab(&GLOBAL, &self.corner()),
                self.field.as_mut_ptr().cast::<u8>(),
            ),
            (
                Variable::new("step", ElementType::U64, &[]),
                (&raw mut *self.step).cast(),
            ),
            (
                Variable::new("big", ElementType::U64, &[WORDS / 100, 100]),
                self.big.as_mut_ptr().cast(),
            ),
            (
                Variable::new("half", ElementType::Bf16, &[10]),
                self.half.as_mut_ptr().cast(),
            ),
            (
                Variable::new("wave", ElementType::Complex128, &[3]),
                self.wave.as_mut_ptr().cast(),
            ),
            (
                Variable::new("raw", ElementType::Bytes, &[5]),
                self.raw.as_mut_ptr(),
            ),
        ];
        for (variable, address) in variables {
            // SAFETY: the memory is on the heap and is neither moved nor freed while the session starts.
            unsafe { self.session.protect(variable, address).expect("protecting") };
        }
    }

    /// Changes the first block of `big`, the last element of `field`, and `step`.
    pub(crate) fn compute(&mut self) {
        *self.step += 1;
        self.big[5] = word(self.number, 5, *self.step);
        self.fill_field();
    }
}

/// Runs a job of `RANKS` ranks on nodes of `ranks_per_node`, which takes `steps` checkpoints.
pub(crate) fn run_job(path: &Path, ranks_per_node: usize, steps: u64) {
    run_ranks(ThreadComm::new(RANKS), |comm| {
        let rank = usize::try_from(comm.rank()).unwrap();
        let mut rank = Rank::open(comm, config(path, rank, ranks_per_node));
        for _ in 0..steps {
            rank.compute();
            rank.session.checkpoint().expect("a checkpoint");
        }
        rank.session.close().expect("closing");
    });
}

/// The store of a node.
pub(crate) fn store(path: &Path, node: usize) -> PathBuf {
    path.join("test job")
        .join(format!("node{node}"))
        .join("store.backstay")
}

/// What the program did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// What it printed, as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_backstay"));
    command.env_clear();
    command
}

pub(crate) fn finish(command: &mut Command) -> Ran {
    let output = command.output().expect("running the program");
    Ran {
        status: output.status.code().expect("no signal"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs a command of the program on `paths`.
pub(crate) fn backstay(words: &[&str], paths: &[&Path]) -> Ran {
    finish(command().args(words).args(paths))
}
