// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: packs extents that follow each other into large aligned writes, which threads carry out.
//! In from: `archive::write`. Out to: a device.
//! Invariants: bounded: who puts waits for a buffer; a write lies within one window of `write_bytes`; a
//! write that failed stops all others until they are discarded; ranges under way are disjoint.

use super::rate::Bucket;
use crate::clock::Stopwatch;
use crate::error::{Error, ErrorKind, Result};
use crate::io::Device;
use crate::io::direct::AlignedBytes;
use backstay_format::archive::GRAIN_BYTES;
use backstay_format::width::{to_u64, to_usize};
use std::collections::VecDeque;
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
    /// The end of the use of a file.
    pub(super) fn failed_sync(error: &Error) -> Self {
        let text = Self::of(error).text;
        Self {
            kind: ErrorKind::StoreFailed,
            text: format!("{text}; what was written since the last commit may be lost"),
        }
    }
    pub(super) fn error(&self) -> Error {
        Error::new(self.kind, self.text.clone())
    }
}

/// Bytes that go to one place of the device.
#[derive(Debug)]
struct Window {
    offset: u64,
    length: usize,
    bytes: AlignedBytes,
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
    spare: Vec<AlignedBytes>,
    buffers: usize,
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

/// What waits to be written to a device.
#[derive(Debug)]
pub(super) struct Queue {
    device: Arc<dyn Device>,
    write_bytes: usize,
    buffers_max: usize,
    state: Mutex<State>,
    changed: Condvar,
    bucket: Option<Mutex<Bucket>>,
    watch: Stopwatch,
    bytes_written: AtomicU64,
    writes: AtomicU64,
    syncs: AtomicU64,
}

impl Queue {
    pub(super) fn new(device: Arc<dyn Device>, options: &super::WriteOptions) -> Arc<Self> {
        let grain = to_usize(GRAIN_BYTES);
        let write_bytes = options.write_bytes.next_multiple_of(grain).max(grain);
        let threads = options.writer_threads.max(1);
        Arc::new(Self {
            device,
            write_bytes,
            buffers_max: (options.queue_bytes / write_bytes).max(threads + 1),
            state: Mutex::default(),
            changed: Condvar::new(),
            bucket: options.rate_bytes.map(|rate| Mutex::new(Bucket::new(rate))),
            watch: Stopwatch::start(),
            bytes_written: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
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
        (0..threads.max(1)).map(start).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let state = self.changed.wait(state);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `parts`, one behind the other and padded to the grain, at `offset`. One caller at a time.
    pub(super) fn put(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let zeros = [0; to_usize(GRAIN_BYTES)];
        let padding = length.next_multiple_of(zeros.len()) - length;
        let mut state = self.lock();
        let mut at = offset;
        for mut part in parts.iter().copied().chain([&zeros[..padding]]) {
            while !part.is_empty() {
                state = self.opened_at(state, at)?;
                let Some(window) = &mut state.open else {
                    return Err(Error::new(ErrorKind::Internal, "no window is open"));
                };
                let room = self.window_end(window.offset) - window.end();
                let count = part.len().min(to_usize(room));
                window.bytes[window.length..window.length + count].copy_from_slice(&part[..count]);
                window.length += count;
                (at, part) = (at + to_u64(count), &part[count..]);
                if window.end() == self.window_end(window.offset) {
                    state.seal();
                    self.changed.notify_all();
                }
            }
        }
        Ok(())
    }

    fn window_end(&self, offset: u64) -> u64 {
        let bytes = to_u64(self.write_bytes);
        (offset / bytes + 1) * bytes
    }

    /// Makes sure that what is open goes on at `at`; waits for a buffer.
    fn opened_at<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        at: u64,
    ) -> Result<MutexGuard<'a, State>> {
        if state.open.as_ref().is_some_and(|open| open.end() != at) {
            state.seal();
            self.changed.notify_all();
        }
        while state.open.is_none() {
            if let Some(failed) = &state.failed {
                return Err(failed.error());
            }
            let bytes = match state.spare.pop() {
                Some(bytes) => bytes,
                None if state.buffers < self.buffers_max => {
                    state.buffers += 1;
                    AlignedBytes::new(self.write_bytes)
                }
                None => {
                    state = self.wait(state);
                    continue;
                }
            };
            state.open = Some(Window {
                offset: at,
                length: 0,
                bytes,
            });
        }
        Ok(state)
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
            state.spare.push(window.bytes);
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
                state.spare.push(window.bytes);
                self.changed.notify_all();
                continue;
            }
            state.writing.push(range);
            drop(state);
            let done = self.write(&window.bytes[..window.length], window.offset);
            state = self.lock();
            state.writing.retain(|other| *other != range);
            state.spare.push(window.bytes);
            if let Err(error) = done {
                state.failed.get_or_insert(Failure::of(&error));
                state.lost.push(range);
            }
            self.changed.notify_all();
        }
    }

    /// Writes at once, at the rate that is allowed.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.hold_back(bytes.len());
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.device.write_at(bytes, offset).map_err(|error| {
            let (name, length) = (self.device.name(), bytes.len());
            Error::io(
                format!("{name}: writing {length} bytes at byte {offset}"),
                error,
            )
        })?;
        self.bytes_written
            .fetch_add(to_u64(bytes.len()), Ordering::Relaxed);
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
        self.device
            .sync()
            .map_err(|error| Error::io(format!("{}: syncing it", self.device.name()), error))
    }

    /// Bytes written, writes, syncs.
    pub(super) fn counts(&self) -> [u64; 3] {
        [&self.bytes_written, &self.writes, &self.syncs].map(|count| count.load(Ordering::Relaxed))
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> u64 {
        let state = self.lock();
        let waiting = state.waiting.iter().chain(&state.open);
        let writing = state.writing.iter().map(|range| range.1 - range.0);
        waiting.map(|window| to_u64(window.length)).sum::<u64>() + writing.sum::<u64>()
    }
}
