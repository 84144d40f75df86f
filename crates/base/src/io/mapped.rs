// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: writes a file of a memory file system through a shared mapping, past the caches.
//! In from: `file`. Out to: the page cache, which is the storage of such a file system.
//! Invariants: no byte is stored into a window before the kernel populated it without error, so
//! that a sparse or shortened file is an error and no SIGBUS; nothing is written beyond the length.
//! Where a window is filled for the first time it is not populated, as the kernel would fill it with
//! zeros first: that goes through the file.
#![expect(unsafe_code, reason = "mapping a file and storing into the mapping")]

use super::sealed::Mapping;
use super::stream;
use backstay_format::width::{to_u64, to_usize};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::fs::File;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Address space mapped at once. A mapping may reach beyond the end of the file, so growth needs no
/// new one; what is not populated costs address space only.
const SPAN_BYTES: u64 = 1 << 30;
/// Populated at once: one call for 1,024 pages, and no more than one window too much of a file that
/// is sparse against the contract of `Device`.
const WINDOW_BYTES: u64 = 4 << 20;
/// Spans that are looked up together, and how often: 4 TiB in all. Writes beyond go through the file.
const TABLE_SPANS: usize = 64;
const TABLES: usize = 64;
const WINDOWS: usize = to_usize(SPAN_BYTES / WINDOW_BYTES);
/// Less than a page is never written through the file: the kernel would fill the rest with zeros.
const FIRST_BYTES_MIN: usize = 4096;
/// Written through the file so often, a window is populated by who writes it: nobody does it in the background.
const TIMES_THROUGH_FILE: u64 = 4;
/// Populated by the background at once: the program's own changes of its memory map wait for no more.
const STEP_BYTES: u64 = 256 << 10;

/// The mapping of a file, made span by span as writes arrive. Shared by threads that write disjoint
/// ranges.
///
/// What remains: a file that another process shortens after its window was populated makes the next
/// store into the part that is gone a SIGBUS. [`Self::shortened_to`] closes this as often as the
/// owner looks at the length; a store file is only ever shortened against the rules of its lock.
pub(super) struct Mapped {
    tables: [OnceLock<SpanTable>; TABLES],
    refused: AtomicBool,
}

/// Spans side by side; made when the first of them is, since few stores are large.
type SpanTable = Box<[OnceLock<Option<Span>>; TABLE_SPANS]>;

/// One mapped part of the file.
struct Span {
    base: NonNull<u8>,
    /// Bytes from the start of each window that are populated.
    populated: Box<[AtomicU64; WINDOWS]>,
    /// Bytes of each window that were written through the file instead.
    through_file: Box<[AtomicU64; WINDOWS]>,
}

// SAFETY: a span owns its mapping; threads write disjoint ranges of it through raw pointers (the
// contract of `Device::write_at`), and all other state is atomic.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Mapped {
    /// A mapping of nothing yet.
    pub(super) fn new() -> Self {
        Self {
            tables: [const { OnceLock::new() }; TABLES],
            refused: AtomicBool::new(false),
        }
    }

    /// Writes `bytes` at `offset` of `file`, all below `length`, and says how many leading bytes
    /// were written: fewer than all where mapping or populating failed, or where [`Self::first`] has to be
    /// asked, unless `also_first`. The caller then writes the rest through the file, which has the true error if
    /// there is one.
    pub(super) fn write(
        &self,
        file: &File,
        bytes: &[u8],
        offset: u64,
        length: u64,
        also_first: bool,
    ) -> usize {
        let mut done = 0;
        while done < bytes.len() && !self.refused.load(Ordering::Relaxed) {
            let position = offset + to_u64(done);
            let in_window = position % WINDOW_BYTES;
            let size = to_usize(WINDOW_BYTES - in_window).min(bytes.len() - done);
            let window_end = in_window + to_u64(size);
            let span = self.span_of(file, position);
            let Some(span) = span.filter(|span| also_first || !span.is_first(position, size))
            else {
                break;
            };
            let Some(place) = self.place_in(span, position, window_end, length) else {
                break;
            };
            // SAFETY: `place` is mapped and populated up to `window_end`; callers write disjoint
            // ranges; `bytes` is memory of the program and no part of this private mapping.
            unsafe { stream::copy(&bytes[done..done + size], place.as_ptr()) };
            done += size;
        }
        done
    }

    /// How many of `size` bytes at `position` are to be written through the file, since their window is filled for
    /// the first time: they count as written so. None where the window is populated, or is to be.
    pub(super) fn first(&self, file: &File, position: u64, size: usize) -> usize {
        let size = to_usize(WINDOW_BYTES - position % WINDOW_BYTES).min(size);
        let span = self.span_of(file, position);
        let Some(span) = span.filter(|span| span.is_first(position, size)) else {
            return 0;
        };
        let window = to_usize(position % SPAN_BYTES / WINDOW_BYTES);
        span.through_file[window].fetch_add(to_u64(size), Ordering::Relaxed);
        size
    }

    /// Populates what was written through the file, of a file of `length` bytes, as long as it may go on.
    pub(super) fn prepare(&self, length: u64, may_go_on: &dyn Fn() -> bool) {
        for (number, span) in self.spans() {
            for window in 0..WINDOWS {
                let start = to_u64(number) * SPAN_BYTES + to_u64(window) * WINDOW_BYTES;
                let reach = WINDOW_BYTES.min(length.saturating_sub(start));
                let populated = || span.populated[window].load(Ordering::Acquire);
                if span.through_file[window].load(Ordering::Relaxed) == 0 {
                    continue;
                }
                while populated() < reach {
                    let next = (populated() + STEP_BYTES).min(reach);
                    if !may_go_on() || span.populate(window, next).is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// `size` bytes at `offset` of `file`, all below `length`, where they lie in one span and can be
    /// populated. Nobody writes them meanwhile (the contract of `Device::lend`).
    pub(super) fn lend(&self, file: &File, offset: u64, size: usize, length: u64) -> Option<&[u8]> {
        let end = offset + to_u64(size);
        let last = end.checked_sub(1)?;
        if size == 0 || end > length || offset / SPAN_BYTES != last / SPAN_BYTES {
            return None;
        }
        let mut first = None;
        let mut position = offset;
        while position < end {
            let window_start = position - position % WINDOW_BYTES;
            let window_end = (end - window_start).min(WINDOW_BYTES);
            let span = self.span_of(file, position)?;
            let place = self.place_in(span, position, window_end, length)?;
            first.get_or_insert(place);
            position = window_start + WINDOW_BYTES;
        }
        // SAFETY: the range lies in one mapping, which lives as long as `self`, was populated window by
        // window, and is not written while it is lent.
        Some(unsafe { std::slice::from_raw_parts(first?.as_ptr(), size) })
    }

    /// The span in which bytes stand that were lent, as far as a file of `length` bytes fills it.
    pub(super) fn mapping(&self, lent: &[u8], length: u64) -> Option<Mapping> {
        let address = lent.as_ptr().addr();
        self.spans().find_map(|(number, span)| {
            let start = span.base.as_ptr().expose_provenance();
            let filled = length.saturating_sub(to_u64(number) * SPAN_BYTES);
            let filled = to_usize(filled.min(SPAN_BYTES));
            let is_in = address >= start && address - start + lent.len() <= filled;
            is_in.then_some(Mapping {
                start,
                length: filled,
            })
        })
    }

    /// The address of `position` in its span, populated up to `window_end` of its window.
    fn place_in(
        &self,
        span: &Span,
        position: u64,
        window_end: u64,
        length: u64,
    ) -> Option<NonNull<u8>> {
        let in_span = position % SPAN_BYTES;
        let window = to_usize(in_span / WINDOW_BYTES);
        if span.populated[window].load(Ordering::Acquire) < window_end {
            let window_start = position - position % WINDOW_BYTES;
            let reach = WINDOW_BYTES.min(length.saturating_sub(window_start));
            if let Err(errno) = span.populate(window, reach) {
                // Linux before 5.14 has no such call; everything else may concern this window only.
                self.refused
                    .fetch_or(errno == Errno::INVAL, Ordering::Relaxed);
                return None;
            }
            if reach < window_end {
                return None;
            }
        }
        // SAFETY: `in_span` is less than the size of the mapping.
        Some(unsafe { span.base.add(to_usize(in_span)) })
    }

    /// The span of `position`, mapped now if it was not.
    fn span_of(&self, file: &File, position: u64) -> Option<&Span> {
        let number = to_usize(position / SPAN_BYTES);
        let table = self.tables.get(number / TABLE_SPANS)?;
        let table = table.get_or_init(|| Box::new([const { OnceLock::new() }; TABLE_SPANS]));
        let span = table[number % TABLE_SPANS].get_or_init(|| {
            let span = Span::map(file, to_u64(number) * SPAN_BYTES);
            // Without address space (RLIMIT_AS) each further try would be another failing call.
            self.refused.fetch_or(span.is_err(), Ordering::Relaxed);
            span.ok()
        });
        span.as_ref()
    }

    /// The spans there are, and their numbers.
    fn spans(&self) -> impl Iterator<Item = (usize, &Span)> {
        let tables = self.tables.iter().enumerate();
        let tables = tables.filter_map(|(number, table)| Some((number, table.get()?)));
        tables.flat_map(|(table, spans)| {
            let spans = spans.iter().enumerate();
            spans.filter_map(move |(number, span)| {
                Some((table * TABLE_SPANS + number, span.get()?.as_ref()?))
            })
        })
    }

    /// Forgets what was populated beyond `length`: the file became shorter.
    pub(super) fn shortened_to(&self, length: u64) {
        for (number, span) in self.spans() {
            for (window, populated) in span.populated.iter().enumerate() {
                let start = to_u64(number) * SPAN_BYTES + to_u64(window) * WINDOW_BYTES;
                populated.fetch_min(length.saturating_sub(start), Ordering::AcqRel);
            }
        }
    }
}

impl Span {
    /// Whether `size` bytes of one window go through the file: it is not populated, as far as this process filled it
    /// for the first time.
    fn is_first(&self, position: u64, size: usize) -> bool {
        let window = to_usize(position % SPAN_BYTES / WINDOW_BYTES);
        let window_end = position % WINDOW_BYTES + to_u64(size);
        size >= FIRST_BYTES_MIN
            && self.populated[window].load(Ordering::Acquire) < window_end
            && self.through_file[window].load(Ordering::Relaxed) + to_u64(size)
                <= TIMES_THROUGH_FILE * WINDOW_BYTES
    }

    fn map(file: &File, offset: u64) -> Result<Self, Errno> {
        let size = to_usize(SPAN_BYTES);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                size,
                access,
                MapFlags::SHARED,
                file,
                offset,
            )?
        };
        // The store has no place in a core dump; that it stays in one is no error.
        // SAFETY: the mapping just made.
        let _dumped = unsafe { madvise(base, size, Advice::LinuxDontDump) };
        Ok(Self {
            base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?,
            populated: Box::new([const { AtomicU64::new(0) }; WINDOWS]),
            through_file: Box::new([const { AtomicU64::new(0) }; WINDOWS]),
        })
    }

    /// Makes the first `reach` bytes of a window present and writable.
    fn populate(&self, window: usize, reach: u64) -> Result<(), Errno> {
        let done = self.populated[window].load(Ordering::Acquire).min(reach);
        let start = window * to_usize(WINDOW_BYTES) + to_usize(done);
        // SAFETY: the range lies in the mapping; populating changes no byte.
        unsafe {
            let address = self.base.add(start).as_ptr().cast();
            madvise(address, to_usize(reach - done), Advice::LinuxPopulateWrite)?;
        }
        self.populated[window].fetch_max(reach, Ordering::AcqRel);
        Ok(())
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: the mapping is this span's own, and no write is under way while it is dropped.
        let _unmapped = unsafe { munmap(self.base.as_ptr().cast(), to_usize(SPAN_BYTES)) };
    }
}

impl std::fmt::Debug for Mapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapped")
            .field("spans", &self.spans().count())
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}
