// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the archive on shared storage, level 3: reserved files that aggregators write, one each,
//! and the catalog that says which checkpoints are whole.
//! In from: `drain` (encoded segments, decoders). Out to: `io` (devices).
//! Invariants: an archived segment, decoded, is exactly a segment of a node's store; only the segment
//! table knows where its stored form stands and how it is decoded. So all that reads a store reads an
//! archive through [`ArchiveDevice`]. What a durable root refers to is not overwritten before a newer
//! root is durable. No file is opened, looked up, renamed or locked after set-up.
//! Format: docs/format/archive.md.
//!
//! Forward: [`mod@write`] appends segments and commits, `space` knows what is free, `queue` packs extents
//! into large writes at the `rate` allowed, `make` makes and opens files, [`layout`] says over which
//! servers they lie, [`catalog`] records what is whole (`placed`: its lists), [`retention`] says what goes. Backward: `head`
//! finds the state of a file, [`device`] gives segments back, `view` says which there are, `cache` keeps
//! them. [`typed`] tells what the bytes of files are. [`fence`] says who may write, `heir` who goes on from a file, [`former`]
//! gives back what of that is needed no longer, [`private`] says whose a file is.

pub mod aggregate;
pub mod typed;
pub mod drain;
pub mod write;
mod make;
mod names;
pub mod layout;
mod heir;
pub mod former;
pub mod private;
mod space;
mod queue;
pub mod extent;
mod rate;
mod head;
pub mod device;
mod view;
mod cache;
pub mod catalog;
mod placed;
pub mod retention;
pub mod fence;

pub use catalog::{Catalog, CatalogReader, NewCheckpoint, NewPart};
pub use device::ArchiveDevice;
pub use extent::Payload;
pub use layout::Layout;
pub use names::FileName;
pub use write::{ArchiveStore, Commit, NewSegment, Stats};

use backstay_base::clock::Pulse;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::direct::SharedFile;
use backstay_base::io::two_slots::Unread;
use backstay_base::io::{Device, ReadAt};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a payload becomes a decoded segment again. The composer gives it: stages do not know each other.
pub trait Decode: Debug + Send + Sync {
    /// Fills `out`, which has the length of the decoded segment, from `payload`, which `scheme`
    /// describes. `base` has the length of `out` where the segment has bases: their bytes at the runs
    /// that are deltas, zeros elsewhere.
    fn decode(
        &self,
        scheme: &[u8],
        payload: &[u8],
        base: Option<&[u8]>,
        out: &mut [u8],
    ) -> Result<()>;
}

/// Payloads that are the decoded segment itself, or its exclusive or with the base. For tests, and for
/// archives that nothing encodes.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawDecode;

impl Decode for RawDecode {
    fn decode(&self, _: &[u8], payload: &[u8], base: Option<&[u8]>, out: &mut [u8]) -> Result<()> {
        if payload.len() != out.len() {
            let (payload, out) = (payload.len(), out.len());
            let context = format!("a raw payload of {payload} bytes for a segment of {out}");
            return Err(Error::new(ErrorKind::Corrupt, context));
        }
        out.copy_from_slice(payload);
        for (byte, base) in out.iter_mut().zip(base.unwrap_or_default()) {
            *byte ^= base;
        }
        Ok(())
    }
}

/// Where the files of an archive are: opens one for reading by its name.
pub trait Place: Debug + Send + Sync {
    /// Opens the file `name` for reading.
    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>>;
    /// Opens the file `name` to write into its head that another one goes on from it.
    fn open_to_mark(&self, name: &str) -> Result<Arc<dyn Device>>;
}

/// A folder of a file system as a place.
#[derive(Debug, Clone)]
pub struct Folder {
    /// The folder.
    pub path: PathBuf,
    /// Read past the page cache, which may be stale when another host writes.
    pub direct: bool,
}

impl Place for Folder {
    fn open(&self, name: &str) -> Result<Arc<dyn ReadAt>> {
        let path = self.path.join(name);
        opened(&path, SharedFile::open_read_only(&path, self.direct))
            .map(|file| Arc::new(file) as _)
    }

    fn open_to_mark(&self, name: &str) -> Result<Arc<dyn Device>> {
        let path = self.path.join(name);
        opened(&path, SharedFile::open(&path, false)).map(|file| Arc::new(file) as _)
    }
}

/// A file that was opened, if it is this user's alone.
fn opened(path: &Path, file: std::io::Result<SharedFile>) -> Result<SharedFile> {
    let failed = |error| Error::io(format!("{}: opening it", path.display()), error);
    let file = file.map_err(failed)?;
    private::check_file(path, &file.about().map_err(failed)?)?;
    Ok(file)
}

/// Whose file it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The job.
    pub job: String,
    /// Its run; not 0.
    pub run: u32,
    /// Which aggregator writes, from 0. No meaning for a catalog.
    pub aggregator: u32,
    /// Which file of this aggregator (or which catalog), from 1; a takeover has a higher one.
    pub epoch: u32,
    /// The host that writes, and its boot: [`fence::host`].
    pub host: String,
}

/// How an archive is read.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// Read past the page cache. Off only where no other host writes.
    pub direct: bool,
    /// Most bytes of decoded segments that are kept.
    pub cache_bytes: usize,
    /// How payloads are decoded.
    pub decode: Arc<dyn Decode>,
    /// Beats with each segment that was read.
    pub pulse: Pulse,
    /// What counts of a root slot that cannot be read.
    pub unread: Unread,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            direct: true,
            cache_bytes: 64 << 20,
            decode: Arc::new(RawDecode),
            pulse: Pulse::default(),
            unread: Unread::Counts,
        }
    }
}

/// How an archive is written.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Most bytes of a decoded segment: a power of two within the format's limits.
    pub segment_bytes: u32,
    /// Bytes of data that the file has room for at first, and the least it grows by; more where
    /// [`ArchiveStore::expect_bytes`] says so.
    pub reserve_bytes: u64,
    /// Threads that write.
    pub writer_threads: usize,
    /// Bytes of a write, and what writes are aligned to; a multiple of 4096.
    pub write_bytes: usize,
    /// Most bytes that wait to be written.
    pub queue_bytes: usize,
    /// Most bytes written in a second.
    pub rate_bytes: Option<u64>,
    /// Write past the page cache, where the file system can.
    pub direct_write: bool,
    /// What to ask the file system for when the file is made.
    pub layout: Layout,
    /// How the segments are read again.
    pub read: ReadOptions,
    /// Beats with each write and each sync that ended.
    pub pulse: Pulse,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            segment_bytes: backstay_format::limits::SEGMENT_BYTES_MAX,
            reserve_bytes: 1 << 20,
            writer_threads: 2,
            write_bytes: 4 << 20,
            queue_bytes: 32 << 20,
            rate_bytes: None,
            direct_write: false,
            layout: Layout::default(),
            read: ReadOptions {
                direct: false,
                ..ReadOptions::default()
            },
            pulse: Pulse::default(),
        }
    }
}

/// Name of the file of `aggregator` in `epoch`.
pub fn store_file(aggregator: u32, epoch: u32) -> String {
    FileName::Store { aggregator, epoch }.to_string()
}

/// Name of the catalog file of `epoch`.
pub fn catalog_file(epoch: u32) -> String {
    FileName::Catalog { epoch }.to_string()
}

/// The folder of a job's archive below `directory`.
pub fn job_folder(directory: &Path, job: &str) -> PathBuf {
    directory.join(job)
}
