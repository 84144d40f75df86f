// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: which pages of a variable were written since the last look, as the kernel saw it.
//! In from: regions with the contract of `pages`. Out to: `hash`, as a filter in front of it.
//! Invariants: whatever is not known to be unwritten is touched: edges, new mappings, errors,
//! memory that two regions claim, a forked process. No page is watched by two regions at once.
#![expect(unsafe_code, reason = "registering memory that the caller promises")]

mod kernel;

#[cfg(test)]
mod tests;

use super::mappings::{Mapping, Mappings, Obstacle};
use backstay_base::error::{Error, ErrorKind, Result};
use kernel::Kernel;
use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Regions with fewer whole pages are always touched: hashing them costs less than asking.
const PAGES_MIN: usize = 16;

/// What of a variable may have changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// Anything: nothing is known about it.
    All,
    /// Only these bytes, from the start of the variable; ascending, not touching each other.
    Ranges(Vec<Range<usize>>),
}

/// Watches memory of this process for writes; one for each session.
///
/// It does not see writes that bypass the page table of this process: into pages pinned for device
/// access (RDMA, MPI windows, `io_uring` fixed buffers, `O_DIRECT` reads still in flight), nor those
/// into shared memory and into files of which private mappings show what was not yet copied: both it
/// therefore refuses to watch.
#[derive(Debug)]
pub struct PageTracker {
    kernel: Kernel,
    mappings: Mappings,
    /// The process it works for; a forked child inherits the descriptors, which stand for the
    /// parent's memory.
    process: Pid,
    /// Start and end of the whole pages that regions watch: disjoint.
    claims: Mutex<BTreeMap<usize, usize>>,
}

/// A watched variable. Given back with [`PageTracker::unregister`].
#[derive(Debug)]
pub struct PageRegion {
    address: usize,
    length: usize,
    /// The pages that lie in the variable as a whole; the edges are shared with neighbours.
    inner: Range<usize>,
    /// The pages in which any byte of the variable lies: what is registered. With the edges whole
    /// mappings stay whole, so that mremap (realloc of large arrays) still works on them.
    outer: Range<usize>,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Registered, not protected yet.
    Fresh,
    /// What is not protected was written.
    Watched,
    /// Not registered: why not.
    Refused(String),
}

impl PageRegion {
    /// Why it is not watched, if it is not: then every scan says [`Touched::All`].
    pub fn refusal(&self) -> Option<&str> {
        match &self.state {
            State::Refused(reason) => Some(reason),
            State::Fresh | State::Watched => None,
        }
    }

    /// Bytes of the variable.
    pub fn length_bytes(&self) -> usize {
        self.length
    }
}

impl PageTracker {
    /// Whether this kernel and this process's permissions allow it, or why not; tried out once.
    pub fn available() -> std::result::Result<(), String> {
        static PROBE: OnceLock<std::result::Result<(), String>> = OnceLock::new();
        PROBE.get_or_init(kernel::probe).clone()
    }

    /// A tracker of this process's memory.
    pub fn new() -> Result<Self> {
        let unsupported = |reason| {
            let context = format!("tracking by pages: {reason}; tracking by hash needs nothing");
            Error::new(ErrorKind::Unsupported, context)
        };
        Self::available().map_err(unsupported)?;
        Ok(Self {
            kernel: Kernel::open().map_err(unsupported)?,
            mappings: Mappings::open().map_err(unsupported)?,
            process: getpid(),
            claims: Mutex::new(BTreeMap::new()),
        })
    }

    /// Watches `length` bytes at `address`, all touched at first. Memory that cannot be watched is
    /// no error: [`PageRegion::refusal`] says why, and each scan tries again.
    ///
    /// # Safety
    /// The bytes belong to the caller until the region is unregistered: nobody else tracks writes
    /// to them (userfaultfd, `PAGEMAP_SCAN`). They may be unmapped, remapped or freed meanwhile.
    pub unsafe fn register(&mut self, address: *const u8, length: usize) -> Result<PageRegion> {
        let address = address.expose_provenance();
        let page = rustix::param::page_size();
        let end = address
            .checked_add(length)
            .filter(|end| end.checked_next_multiple_of(page).is_some())
            .ok_or_else(|| {
                let context = format!("{length} bytes at {address:#x} pass the last address");
                Error::new(ErrorKind::InvalidArgument, context)
            })?;
        let last = end / page * page;
        let first = address.next_multiple_of(page).min(last);
        let mut region = PageRegion {
            address,
            length,
            inner: first..last.max(first),
            outer: address / page * page..end.next_multiple_of(page),
            state: State::Fresh,
        };
        region.state = self.attach(&region);
        Ok(region)
    }

    /// Which bytes were written since the last scan; from now on others count. Threads that write
    /// meanwhile are seen in this scan or in the next. The first scan of a region, and each one
    /// that finds its memory replaced, is [`Touched::All`]; an error says that it is not mapped.
    pub fn scan(&self, region: &mut PageRegion) -> Result<Touched> {
        if getpid() != self.process {
            return Ok(Touched::All);
        }
        if region.state == State::Watched {
            // The kernel walks over a hole in silence.
            if !kernel::is_mapped(&region.inner) {
                return Err(unmapped(region));
            }
            if let Ok(ranges) = self.written(region) {
                return Ok(Touched::Ranges(ranges));
            }
            self.detach(region);
            region.state = State::Refused("its memory was replaced".to_owned());
        }
        if region.refusal().is_some() {
            region.state = self.attach(region);
        }
        if region.state == State::Fresh {
            region.state = match self.kernel.scan(&region.inner, |_written| ()) {
                Ok(()) => State::Watched,
                Err(errno) => {
                    self.detach(region);
                    State::Refused(format!("it cannot be protected: {errno}"))
                }
            };
        }
        Ok(Touched::All)
    }

    /// Ends watching it.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the region is of no use afterwards"
    )]
    pub fn unregister(&mut self, region: PageRegion) {
        if getpid() == self.process && region.refusal().is_none() {
            self.detach(&region);
        }
    }

    /// The written ranges, edges included, from the start of the variable.
    fn written(&self, region: &PageRegion) -> std::result::Result<Vec<Range<usize>>, Errno> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut add = |range: Range<usize>| match ranges.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ if range.is_empty() => (),
            _ => ranges.push(range),
        };
        let (start, end) = (region.address, region.address + region.length);
        add(0..region.inner.start - start);
        self.kernel.scan(&region.inner, |pages| {
            add(pages.start - start..pages.end - start);
        })?;
        add(region.inner.end - start..end - start);
        Ok(ranges)
    }

    /// Claims and registers the pages of a region.
    fn attach(&self, region: &PageRegion) -> State {
        let pages = &region.inner;
        if pages.len() < PAGES_MIN * rustix::param::page_size() {
            return State::Refused("it is too small to gain".to_owned());
        }
        if let Err(reason) = self.check_own(&region.outer) {
            return State::Refused(reason);
        }
        let mut claims = self.claims();
        let before = claims.range(..pages.end).next_back();
        if before.is_some_and(|(_start, &end)| end > pages.start) {
            return State::Refused("another variable lies in the same memory".to_owned());
        }
        match self.kernel.register(&region.outer) {
            Ok(()) => {
                claims.insert(pages.start, pages.end);
                State::Fresh
            }
            Err(Errno::BUSY) => State::Refused("something else tracks its pages".to_owned()),
            Err(errno) => State::Refused(format!("the kernel cannot watch it: {errno}")),
        }
    }

    /// That `pages` are mapped, and that only this process and only through them can change what they
    /// hold: what is shared, and what a private mapping shows of a file until it is copied, changes
    /// without a fault.
    fn check_own(&self, pages: &Range<usize>) -> std::result::Result<(), String> {
        let not_own = |mapping: &Mapping| {
            if mapping.is_shared() {
                Some("it is shared memory, which others may write")
            } else if mapping.is_of_file() {
                Some("it shows a file, which may be written")
            } else {
                None
            }
        };
        let found = self
            .mappings
            .look()
            .over(pages, |_at, mapping| match not_own(mapping) {
                Some(reason) => Err(Obstacle::Unknown(reason.to_owned())),
                None => Ok(()),
            });
        found.map_err(|obstacle| match obstacle {
            Obstacle::Unknown(reason) => reason,
            Obstacle::Unmapped(_) | Obstacle::Forbidden(_) => "part of it is not mapped".to_owned(),
        })
    }

    /// Gives back the claim, and ends watching as far as the memory is still there.
    fn detach(&self, region: &PageRegion) {
        let mut claims = self.claims();
        claims.remove(&region.inner.start);
        // An edge may by now be an inner page of a region elsewhere in this map; its next scan
        // finds that out and begins again. Memory that is gone was forgotten with its mapping.
        let _gone = self.kernel.unregister(&region.outer);
    }

    fn claims(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unmapped(region: &PageRegion) -> Error {
    let (start, end) = (region.address, region.address + region.length);
    let context = format!(
        "a protected variable of {} bytes is not mapped any more (part of {start:#x} to {end:#x}); \
         protect it again where it lies now, or remove it",
        region.length
    );
    Error::new(ErrorKind::InvalidArgument, context)
}
