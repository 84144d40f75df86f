// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: packs extents that follow each other into large aligned writes, which threads carry out.
//! In from: `archive::write`. Out to: a device.
//! Invariants: bounded: who puts waits while too much waits to be written; a write lies within one window
//! of `write_bytes`; a write that failed stops all others until they are discarded; ranges under way are
//! disjoint; nothing is copied.

use super::extent::{Extent, Pool};
use super::rate::Bucket;
use backstay_base::clock::{Pulse, Stopwatch};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::Device;
use backstay_base::io::two_slots::Medium;
use backstay_format::archive::GRAIN_BYTES;
use backstay_format::width::{to_u64, to_usize};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest sleep of a thread that is asked to end.
const NAP: Duration = Duration::from_millis(50);

/// An error that is given more than once.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    kind: ErrorKind,
    text: String,
}

impl Failure {
    pub(super) fn of(error: &Error) -> Self {
        let mut text = error.context().to_owned();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Self {
            kind: error.kind(),
            text,
        }
    }
    pub(super) fn error(&self) -> Error {
        Error::new(self.kind, self.text.clone())
    }
}

/// A part of an extent.
#[derive(Debug)]
struct Part {
    extent: Arc<Extent>,
    range: Range<usize>,
}

/// Bytes that go to one place of the device: parts of extents, one behind the other.
#[derive(Debug)]
struct Window {
    offset: u64,
    length: usize,
    parts: Vec<Part>,
}

impl Window {
    fn end(&self) -> u64 {
        self.offset + to_u64(self.length)
    }
    fn meets(&self, offset: u64, end: u64) -> bool {
        self.offset < end && offset < self.end()
    }
}

#[derive(Debug, Default)]
struct State {
    /// The window that is filled.
    open: Option<Window>,
    waiting: VecDeque<Window>,
    /// Ranges that threads write just now: offset, end.
    writing: Vec<(u64, u64)>,
    /// Bytes put and not written yet.
    bytes: usize,
    failed: Option<Failure>,
    /// Ranges that were not written because of it: offset, end.
    lost: Vec<(u64, u64)>,
    closing: bool,
}

impl State {
    fn seal(&mut self) {
        if let Some(window) = self.open.take() {
            self.waiting.push_back(window);
        }
    }
    fn has_lost(&self, offset: u64, end: u64) -> bool {
        self.lost
            .iter()
            .any(|range| range.0 < end && offset < range.1)
    }
    fn holds(&self, offset: u64, end: u64) -> bool {
        self.waiting.iter().any(|window| window.meets(offset, end))
            || self
                .writing
                .iter()
                .any(|range| range.0 < end && offset < range.1)
    }
}

impl Medium for Queue {
    fn device(&self) -> &dyn Device {
        &*self.device
    }
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        Self::write(self, &[bytes], offset)
    }
    fn sync(&self) -> Result<()> {
        Self::sync(self)
    }
}

/// What waits to be written to a device.
#[derive(Debug)]
pub(super) struct Queue {
    device: Arc<dyn Device>,
    write_bytes: usize,
    bytes_max: usize,
    pool: Arc<Pool>,
    state: Mutex<State>,
    changed: Condvar,
    bucket: Option<Mutex<Bucket>>,
    watch: Stopwatch,
    bytes_written: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
    threads: usize,
    /// Time of writes, over all threads, and of syncs, in nanoseconds.
    write_ns: AtomicU64,
    sync_ns: AtomicU64,
    pulse: Pulse,
}

impl Queue {
    pub(super) fn new(device: Arc<dyn Device>, options: &super::WriteOptions) -> Arc<Self> {
        let grain = to_usize(GRAIN_BYTES);
        let write_bytes = options.write_bytes.next_multiple_of(grain).max(grain);
        let threads = options.writer_threads.max(1);
        Arc::new(Self {
            device,
            write_bytes,
            bytes_max: options.queue_bytes.max(write_bytes * (threads + 1)),
            pool: Pool::new(options.queue_bytes),
            state: Mutex::default(),
            changed: Condvar::new(),
            bucket: options.rate_bytes.map(|rate| Mutex::new(Bucket::new(rate))),
            watch: Stopwatch::start(),
            bytes_written: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            threads,
            write_ns: AtomicU64::new(0),
            sync_ns: AtomicU64::new(0),
            pulse: options.pulse.clone(),
        })
    }

    /// Starts the threads that write.
    pub(super) fn start(self: &Arc<Self>, threads: usize) -> Result<Vec<JoinHandle<()>>> {
        let start = |number| {
            let queue = Arc::clone(self);
            std::thread::Builder::new()
                .name(format!("backstay-archive-{number}"))
                .spawn(move || queue.work())
                .map_err(|error| Error::io("starting a thread that writes", error))
        };
        let started: Result<Vec<_>> = (0..threads.max(1)).map(start).collect();
        if started.is_err() {
            // Those that did start have nobody who ends them.
            self.close();
        }
        started
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let state = self.changed.wait(state);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Where memory for extents comes from.
    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Puts `extent` at `offset`. One caller at a time.
    pub(super) fn put(&self, offset: u64, extent: Extent) -> Result<()> {
        let extent = Arc::new(extent);
        let mut state = self.room_for(extent.len())?;
        state.bytes += extent.len();
        let mut from = 0;
        while from < extent.len() {
            let at = offset + to_u64(from);
            if state.open.as_ref().is_some_and(|open| open.end() != at) {
                state.seal();
            }
            let open = state.open.get_or_insert_with(|| Window {
                offset: at,
                length: 0,
                parts: Vec::new(),
            });
            let room = to_usize(self.window_end(open.offset) - at);
            let range = from..extent.len().min(from + room);
            from = range.end;
            open.length += range.len();
            open.parts.push(Part {
                extent: Arc::clone(&extent),
                range,
            });
            if open.end() == self.window_end(open.offset) {
                state.seal();
            }
        }
        self.changed.notify_all();
        Ok(())
    }

    fn window_end(&self, offset: u64) -> u64 {
        let bytes = to_u64(self.write_bytes);
        (offset / bytes + 1) * bytes
    }

    /// Waits until so many more bytes may wait to be written.
    fn room_for(&self, bytes: usize) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        loop {
            if let Some(failed) = &state.failed {
                return Err(failed.error());
            }
            if state.bytes == 0 || state.bytes + bytes <= self.bytes_max {
                return Ok(state);
            }
            // What is open may be all that waits.
            state.seal();
            self.changed.notify_all();
            state = self.wait(state);
        }
    }

    /// Waits until all that was put is written.
    pub(super) fn flush(&self) -> Result<()> {
        self.wait_written(0, u64::MAX)
    }

    /// Waits until what was put at `offset`, so many bytes, is written.
    pub(super) fn wait_written(&self, offset: u64, bytes: u64) -> Result<()> {
        let end = offset.saturating_add(bytes);
        let mut state = self.lock();
        if state
            .open
            .as_ref()
            .is_some_and(|open| open.meets(offset, end))
        {
            state.seal();
            self.changed.notify_all();
        }
        loop {
            if let Some(failed) = &state.failed
                && state.has_lost(offset, end)
            {
                return Err(failed.error());
            }
            if !state.holds(offset, end) {
                return Ok(());
            }
            state = self.wait(state);
        }
    }

    /// Forgets what waits, and a write that failed. When it returns, no write is under way.
    pub(super) fn discard(&self) {
        let mut state = self.lock();
        state.seal();
        while let Some(window) = state.waiting.pop_front() {
            state.bytes -= window.length;
        }
        while !state.writing.is_empty() {
            state = self.wait(state);
        }
        state.failed = None;
        state.lost.clear();
        self.changed.notify_all();
    }

    /// Asks the threads to end; what waits is not written.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closing = true;
        state.open = None;
        state.waiting.clear();
        self.changed.notify_all();
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.closing {
            let Some(window) = state.waiting.pop_front() else {
                state = self.wait(state);
                continue;
            };
            let range = (window.offset, window.end());
            if state.failed.is_some() {
                state.lost.push(range);
                state.bytes -= window.length;
                self.changed.notify_all();
                continue;
            }
            state.writing.push(range);
            drop(state);
            let parts = window.parts.iter();
            let parts: Vec<&[u8]> = parts.map(|part| &part.extent[part.range.clone()]).collect();
            let done = self.write(&parts, window.offset);
            state = self.lock();
            state.writing.retain(|other| *other != range);
            state.bytes -= window.length;
            if let Err(error) = done {
                state.failed.get_or_insert(Failure::of(&error));
                state.lost.push(range);
            }
            self.changed.notify_all();
        }
    }

    /// Writes `parts`, one behind the other, at once, at the rate that is allowed.
    pub(super) fn write(&self, parts: &[&[u8]], offset: u64) -> Result<()> {
        let length = parts.iter().map(|part| part.len()).sum();
        self.hold_back(length);
        self.writes.fetch_add(1, Ordering::Relaxed);
        let watch = Stopwatch::start();
        let written = self.device.write_parts_at(parts, offset);
        self.pulse.beat();
        written.map_err(|error| {
            let name = self.device.name();
            Error::io(
                format!("{name}: writing {length} bytes at byte {offset}"),
                error,
            )
        })?;
        note(&self.write_ns, &watch);
        self.bytes_written
            .fetch_add(to_u64(length), Ordering::Relaxed);
        Ok(())
    }

    fn hold_back(&self, bytes: usize) {
        let Some(bucket) = &self.bucket else {
            return;
        };
        let now = self.watch.elapsed();
        let wait = {
            let mut bucket = bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.take(bytes, now)
        };
        while let Some(left) = (now + wait).checked_sub(self.watch.elapsed())
            && !left.is_zero()
            && !self.lock().closing
        {
            std::thread::sleep(left.min(NAP));
        }
    }

    /// Makes durable what was written.
    pub(super) fn sync(&self) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let watch = Stopwatch::start();
        let synced = self.device.sync();
        self.pulse.beat();
        synced.map_err(|error| Error::io(format!("{}: syncing it", self.device.name()), error))?;
        note(&self.sync_ns, &watch);
        Ok(())
    }

    /// Bytes a second that the file system took so far, waits for the allowed rate left out; `None`
    /// before so much was written that it tells something.
    #[expect(clippy::cast_precision_loss, reason = "a measurement")]
    pub(super) fn bytes_per_second(&self) -> Option<f64> {
        let ns = |time: &AtomicU64| time.load(Ordering::Relaxed) as f64;
        let busy = ns(&self.write_ns) / self.threads as f64 + ns(&self.sync_ns);
        let bytes = self.bytes_written.load(Ordering::Relaxed);
        (bytes >= TELLING_BYTES && busy > 0.0).then(|| bytes as f64 * 1e9 / busy)
    }

    /// Bytes written, writes, syncs.
    pub(super) fn counts(&self) -> [u64; 3] {
        [&self.bytes_written, &self.writes, &self.syncs].map(|count| count.load(Ordering::Relaxed))
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> u64 {
        to_u64(self.lock().bytes)
    }
}

/// So many bytes tell how fast a file system is.
const TELLING_BYTES: u64 = 16 << 20;

fn note(time: &AtomicU64, watch: &Stopwatch) {
    let ns = u64::try_from(watch.elapsed().as_nanos()).unwrap_or(u64::MAX);
    time.fetch_add(ns, Ordering::Relaxed);
}
