// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the access pattern of Backstay's archive, without its format: one reserved file per
//! aggregator, created and sized once, kept open; large aligned writes, a table, a root, a catalog.
//! In from: `main` (what each writer has, pulled through memory). Out to: one reserved file a mount.
//! Invariants: a checkpoint never touches the space of the one before it; data and table are synced
//! before the root that names them, all roots before the catalog's entry.

use crate::ways::{Payload, Way, compare};
use backstay::format::width::{to_u64, to_usize};
use backstay::format::{Digest, Digester};
use backstay_bench::{MIB, Outcome};
use rustix::fs::{FallocateFlags, OFlags, fallocate, fdatasync};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const PAGE: usize = 4096;
/// Retained checkpoints and the one that is being written.
const SLOTS: u64 = 2;
/// CephFS's objects, which writes are aligned to.
const OBJECT: usize = 4 * MIB;

/// How the reserved file is written; what is not fixed by the design, to find out what is fast.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Threads of each aggregator that pull and write.
    pub(crate) threads: usize,
    /// Bytes of one write.
    pub(crate) chunk: usize,
    /// `O_DIRECT`.
    pub(crate) direct: bool,
    /// Sync after each chunk too.
    pub(crate) each: bool,
    /// `fallocate` instead of `ftruncate`.
    pub(crate) allocate: bool,
    /// Write data and table, sync, then the root, sync; otherwise one sync for all.
    pub(crate) two_syncs: bool,
}

/// The aggregators, one a mount.
#[derive(Debug)]
pub(crate) struct Reserved {
    stores: Vec<Store>,
    catalog: File,
    settings: Settings,
    mounts: Vec<PathBuf>,
}

#[derive(Debug)]
struct Store {
    file: File,
    slot: u64,
}

/// Memory of a page's alignment, as `O_DIRECT` wants it.
struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Self {
        let bytes = vec![0; length + PAGE];
        let from = bytes.as_ptr().align_offset(PAGE);
        Self { bytes, from, length }
    }
    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + self.length]
    }
}

impl Reserved {
    /// Creates and sizes the files, for checkpoints of at most `bytes` in all.
    pub(crate) fn create(mounts: &[PathBuf], bytes: usize, settings: &Settings) -> Outcome<Self> {
        let share = bytes.div_ceil(mounts.len()).next_multiple_of(OBJECT);
        let slot = to_u64(share + OBJECT);
        let mut stores = Vec::new();
        for (index, mount) in mounts.iter().enumerate() {
            let file = open(&mount.join(format!("store-{index}")), settings.direct)?;
            let length = to_u64(OBJECT) + SLOTS * slot;
            if settings.allocate {
                fallocate(&file, FallocateFlags::empty(), 0, length)?;
            } else {
                file.set_len(length)?;
            }
            file.sync_all()?;
            stores.push(Store { file, slot });
        }
        let catalog = open(&mounts[0].join("catalog"), settings.direct)?;
        catalog.set_len(to_u64(OBJECT))?;
        catalog.sync_all()?;
        Ok(Self {
            stores,
            catalog,
            settings: settings.clone(),
            mounts: mounts.to_vec(),
        })
    }

    /// What the writers of mount `index` have, one after the other.
    fn parts<'a>(&self, index: usize, payload: &'a Payload) -> Vec<&'a [u8]> {
        let parts = payload.parts.iter().skip(index).step_by(self.stores.len());
        parts.map(Vec::as_slice).collect()
    }
}

fn open(path: &PathBuf, direct: bool) -> Outcome<File> {
    let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    options.custom_flags(flags.bits().cast_signed());
    Ok(options.open(path).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// Copies `into.len()` bytes at `from` of the writers' bytes, as a pull on the same node does.
fn pull(parts: &[&[u8]], from: usize, into: &mut [u8]) {
    let (size, mut done) = (parts[0].len(), 0);
    while done < into.len() {
        let (part, within) = ((from + done) / size, (from + done) % size);
        let count = (size - within).min(into.len() - done);
        into[done..done + count].copy_from_slice(&parts[part][within..within + count]);
        done += count;
    }
}

impl Store {
    /// Where the data of checkpoint `number` lies.
    fn place(&self, number: u64) -> u64 {
        to_u64(OBJECT) + number % SLOTS * self.slot
    }

    fn checkpoint(&self, number: u64, parts: &[&[u8]], settings: &Settings) -> Outcome<()> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let (place, chunk) = (self.place(number), settings.chunk);
        let next = AtomicUsize::new(0);
        let work = || -> Outcome<Vec<(usize, Digest)>> {
            let (mut buffer, mut hashes) = (Aligned::new(chunk), Vec::new());
            loop {
                let from = next.fetch_add(chunk, Ordering::Relaxed);
                if from >= total {
                    return Ok(hashes);
                }
                let bytes = &mut buffer.get()[..chunk.min(total - from)];
                pull(parts, from, bytes);
                let mut digester = Digester::new();
                digester.update(bytes);
                hashes.push((from, digester.finish()));
                self.file.write_all_at(bytes, place + to_u64(from))?;
                if settings.each {
                    fdatasync(&self.file)?;
                }
            }
        };
        let mut table = vec![Digest::default(); total.div_ceil(chunk)];
        std::thread::scope(|scope| -> Outcome<()> {
            let workers: Vec<_> = (0..settings.threads).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                let hashes = worker.join().map_err(|_| "a worker panicked")??;
                hashes.into_iter().for_each(|(from, hash)| table[from / chunk] = hash);
            }
            Ok(())
        })?;
        let mut page = Aligned::new((table.len() * 16).next_multiple_of(PAGE));
        for (slot, hash) in page.get().chunks_exact_mut(16).zip(&table) {
            slot.copy_from_slice(&hash.0);
        }
        let data = to_u64(total.next_multiple_of(OBJECT));
        self.file.write_all_at(page.get(), place + data)?;
        if settings.two_syncs {
            fdatasync(&self.file)?;
        }
        let mut root = Aligned::new(PAGE);
        root.get()[..8].copy_from_slice(&number.to_le_bytes());
        self.file.write_all_at(root.get(), number % 2 * to_u64(PAGE))?;
        Ok(fdatasync(&self.file)?)
    }
}

impl Way for Reserved {
    fn name(&self) -> &'static str {
        "reserved"
    }
    fn checkpoint(&self, number: u64, payload: &Payload) -> Outcome<f64> {
        let begun = Instant::now();
        crate::ways::all_at_once(self.stores.len(), |index| {
            self.stores[index].checkpoint(number, &self.parts(index, payload), &self.settings)
        })?;
        let mut entry = Aligned::new(PAGE);
        entry.get()[..8].copy_from_slice(&number.to_le_bytes());
        let place = to_u64(to_usize(number) * PAGE % OBJECT);
        self.catalog.write_all_at(entry.get(), place)?;
        fdatasync(&self.catalog)?;
        Ok(begun.elapsed().as_secs_f64())
    }
    fn verify(&self, number: u64, payload: &Payload) -> Outcome<()> {
        for (index, store) in self.stores.iter().enumerate() {
            let mount = &self.mounts[(index + 1) % self.mounts.len()];
            let file = File::open(mount.join(format!("store-{index}")))?;
            let mut place = store.place(number);
            for part in self.parts(index, payload) {
                compare(&file, place, part, "reserved file")?;
                place += to_u64(part.len());
            }
        }
        Ok(())
    }
    fn clear(&self, _number: u64) -> Outcome<()> {
        Ok(())
    }
}
