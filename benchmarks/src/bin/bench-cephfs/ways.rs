// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the two usual ways to write a checkpoint to a parallel file system: a file per process, and
//! one file that all share.
//! In from: `main` (what each writer has). Out to: the mounts, writer by writer.
//! Invariants: each writer is a thread of its own that begins when all others do; what a checkpoint wrote
//! is durable when it is over.

use backstay_bench::Outcome;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::Instant;

/// What the writers of a job have: the same number of bytes each.
#[derive(Debug)]
pub(crate) struct Payload {
    /// Bytes of each writer.
    pub(crate) parts: Vec<Vec<u8>>,
}

/// A way to make a checkpoint durable.
pub(crate) trait Way: Sync {
    /// Its name in the figures.
    fn name(&self) -> &'static str;
    /// Writes checkpoint `number`; wall seconds from the instant at which all writers began.
    fn checkpoint(&self, number: u64, payload: &Payload) -> Outcome<f64>;
    /// Compares checkpoint `number` with what was to be written, from another mount.
    fn verify(&self, number: u64, payload: &Payload) -> Outcome<()>;
    /// Removes what only checkpoint `number` needed, outside of any measurement.
    fn clear(&self, number: u64) -> Outcome<()>;
}

/// Runs `work` once for each of `count` writers, all at once; wall seconds to the end of the last one.
pub(crate) fn all_at_once(
    count: usize,
    work: impl Fn(usize) -> Outcome<()> + Sync,
) -> Outcome<f64> {
    let start = Barrier::new(count + 1);
    let (mut begun, mut outcome) = (Instant::now(), Ok(()));
    std::thread::scope(|scope| {
        let (start, work) = (&start, &work);
        let one = |rank| {
            move || {
                start.wait();
                work(rank)
            }
        };
        let writers: Vec<_> = (0..count).map(|rank| scope.spawn(one(rank))).collect();
        start.wait();
        begun = Instant::now();
        for writer in writers {
            let ended = writer
                .join()
                .unwrap_or_else(|_| Err("a writer panicked".into()));
            if outcome.is_ok() {
                outcome = ended;
            }
        }
    });
    outcome.map(|()| begun.elapsed().as_secs_f64())
}

/// Reads `expected.len()` bytes at `offset` and compares.
pub(crate) fn compare(file: &File, offset: u64, expected: &[u8], what: &str) -> Outcome<()> {
    let mut found = vec![0; expected.len()];
    file.read_exact_at(&mut found, offset)?;
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: not the bytes that were written").into())
    }
}

fn new_file(path: &PathBuf) -> Outcome<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    Ok(file.map_err(|error| format!("{}: {error}", path.display()))?)
}

/// A file per process: create, write, sync, close.
#[derive(Debug)]
pub(crate) struct FilePerProcess {
    pub(crate) mounts: Vec<PathBuf>,
}

impl FilePerProcess {
    fn path(&self, mount: usize, number: u64, rank: usize) -> PathBuf {
        self.mounts[mount % self.mounts.len()].join(format!("own-{number}-{rank}"))
    }
}

impl Way for FilePerProcess {
    fn name(&self) -> &'static str {
        "own"
    }
    fn checkpoint(&self, number: u64, payload: &Payload) -> Outcome<f64> {
        all_at_once(payload.parts.len(), |rank| {
            let file = new_file(&self.path(rank, number, rank))?;
            file.write_all_at(&payload.parts[rank], 0)?;
            Ok(file.sync_all()?)
        })
    }
    fn verify(&self, number: u64, payload: &Payload) -> Outcome<()> {
        for (rank, part) in payload.parts.iter().enumerate() {
            let file = File::open(self.path(rank + 1, number, rank))?;
            compare(&file, 0, part, "file per process")?;
        }
        Ok(())
    }
    fn clear(&self, number: u64) -> Outcome<()> {
        let mut rank = 0;
        while std::fs::remove_file(self.path(rank, number, rank)).is_ok() {
            rank += 1;
        }
        Ok(())
    }
}

/// One file that all writers open, each with a part of its own in it.
#[derive(Debug)]
pub(crate) struct SharedFile {
    pub(crate) mounts: Vec<PathBuf>,
}

impl SharedFile {
    fn path(&self, mount: usize, number: u64) -> PathBuf {
        self.mounts[mount % self.mounts.len()].join(format!("shared-{number}"))
    }
}

fn place(rank: usize, length: usize) -> u64 {
    backstay::format::width::to_u64(rank * length)
}

impl Way for SharedFile {
    fn name(&self) -> &'static str {
        "shared"
    }
    fn checkpoint(&self, number: u64, payload: &Payload) -> Outcome<f64> {
        all_at_once(payload.parts.len(), |rank| {
            let (file, part) = (new_file(&self.path(rank, number))?, &payload.parts[rank]);
            file.write_all_at(part, place(rank, part.len()))?;
            Ok(file.sync_all()?)
        })
    }
    fn verify(&self, number: u64, payload: &Payload) -> Outcome<()> {
        for (rank, part) in payload.parts.iter().enumerate() {
            let file = File::open(self.path(rank + 1, number))?;
            compare(&file, place(rank, part.len()), part, "shared file")?;
        }
        Ok(())
    }
    fn clear(&self, number: u64) -> Outcome<()> {
        Ok(std::fs::remove_file(self.path(0, number))?)
    }
}
