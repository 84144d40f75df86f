// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what is mapped where in this process, and whether it may be read and written.
//! In from: `session` (variables before they are touched), `track::pages` (what it may watch).
//! Invariants: it touches no byte of the memory asked about; what it says is of the moment it looks.
//! Costs: one call of the kernel for each mapping asked about where it has `PROCMAP_QUERY` (Linux
//! 6.11), else one reading of /proc/self/maps for all.
#![expect(unsafe_code, reason = "an ioctl with a structure of the kernel")]

use backstay_base::io::open::above_standard;
use backstay_format::width::{to_u64, to_usize};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::collections::BTreeMap;
use std::ops::Range;

const PATH: &str = "/proc/self/maps";

/// struct `procmap_query` of include/uapi/linux/fs.h
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    access: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device_major: u32,
    device_minor: u32,
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

const PROCMAP_QUERY: Opcode = opcode::read_write::<Query>(b'f', 17);
const READABLE: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const SHARED: u64 = 1 << 3;

/// What is to be done with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Its bytes are copied out.
    Read,
    /// Its bytes are given back.
    Write,
}

/// A range of addresses that is mapped in one way.
#[expect(
    clippy::struct_excessive_bools,
    reason = "what the kernel says, each independent of the others"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    start: usize,
    end: usize,
    readable: bool,
    writable: bool,
    shared: bool,
    of_file: bool,
}

impl Mapping {
    /// Whether other processes may write it.
    pub fn is_shared(&self) -> bool {
        self.shared
    }
    /// Whether it shows what stands in a file, as far as this process has not written it.
    pub fn is_of_file(&self) -> bool {
        self.of_file
    }

    fn allows(&self, access: Access) -> bool {
        match access {
            // What may be written can be read on every processor that this runs on.
            Access::Read => self.readable || self.writable,
            Access::Write => self.writable,
        }
    }

    fn covers(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// One line of /proc/self/maps.
    fn of_line(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let (range, access) = (fields.next()?, fields.next()?);
        let inode = fields.nth(2)?;
        let dash = range.iter().position(|&byte| byte == b'-')?;
        Some(Self {
            start: hexadecimal(&range[..dash])?,
            end: hexadecimal(&range[dash + 1..])?,
            readable: access.first() == Some(&b'r'),
            writable: access.get(1) == Some(&b'w'),
            shared: access.get(3) == Some(&b's'),
            of_file: inode != b"0",
        })
    }
}

fn hexadecimal(digits: &[u8]) -> Option<usize> {
    digits.iter().try_fold(0usize, |sum, &digit| {
        let value = char::from(digit).to_digit(16)?;
        Some((sum << 4) | usize::try_from(value).ok()?)
    })
}

/// The mappings of this process.
#[derive(Debug)]
pub struct Mappings {
    file: OwnedFd,
    /// The kernel answers for one address.
    answers: bool,
}

impl Mappings {
    /// Opens them, or says why not.
    pub fn open() -> Result<Self, String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = above_standard(|| Ok(rustix::fs::open(PATH, flags, Mode::empty())?))
            .map_err(|error| format!("{PATH} cannot be read: {error}"))?;
        let mut mappings = Self {
            file,
            answers: true,
        };
        let here = std::ptr::from_ref(&mappings).addr();
        mappings.answers = matches!(mappings.ask(here), Ok(Some(found)) if found.covers(here));
        Ok(mappings)
    }

    /// Looks at them as they are now.
    pub fn look(&self) -> Look<'_> {
        Look {
            mappings: self,
            seen: BTreeMap::new(),
            last: None,
            listed: false,
        }
    }

    /// The mapping that covers `address`.
    fn ask(&self, address: usize) -> Result<Option<Mapping>, Errno> {
        let mut query = Query {
            size: to_u64(size_of::<Query>()),
            address: to_u64(address),
            ..Query::default()
        };
        // SAFETY: PROCMAP_QUERY takes a struct procmap_query, of the size that it says; the lengths of
        // its buffers are 0, so that nothing is written anywhere else.
        match unsafe {
            ioctl(
                self.file.as_fd(),
                Updater::<PROCMAP_QUERY, _>::new(&mut query),
            )
        } {
            Ok(()) => Ok(Some(Mapping {
                start: to_usize(query.start),
                end: to_usize(query.end),
                readable: query.access & READABLE != 0,
                writable: query.access & WRITABLE != 0,
                shared: query.access & SHARED != 0,
                of_file: query.inode != 0,
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    fn list(&self) -> Result<BTreeMap<usize, Mapping>, String> {
        let mut text = Vec::new();
        let mut piece = vec![0; 64 << 10];
        loop {
            match rustix::io::pread(&self.file, &mut piece, to_u64(text.len())) {
                Ok(0) => break,
                Ok(count) => text.extend_from_slice(&piece[..count]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(format!("{PATH} cannot be read: {errno}")),
            }
        }
        let lines = text.split(|&byte| byte == b'\n');
        lines
            .filter(|line| !line.is_empty())
            .map(|line| Mapping::of_line(line).map(|found| (found.start, found)))
            .collect::<Option<_>>()
            .ok_or_else(|| format!("{PATH} has an unknown form"))
    }
}

/// What keeps memory from being touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// From this address on nothing is mapped.
    Unmapped(usize),
    /// From this address on it may not be read, or written.
    Forbidden(usize),
    /// What is mapped cannot be known: why not.
    Unknown(String),
}

/// One look at the mappings; what was seen once is not asked for again.
#[derive(Debug)]
pub struct Look<'a> {
    mappings: &'a Mappings,
    seen: BTreeMap<usize, Mapping>,
    last: Option<Mapping>,
    /// All of them were seen.
    listed: bool,
}

impl Look<'_> {
    /// Whether every byte of `bytes` may be read or written, or the first that may not.
    pub fn check(&mut self, bytes: &Range<usize>, access: Access) -> Result<(), Obstacle> {
        self.over(bytes, |at, mapping| {
            if mapping.allows(access) {
                Ok(())
            } else {
                Err(Obstacle::Forbidden(at))
            }
        })
    }

    /// Calls `each` for every mapping of `bytes`, with the first of their addresses in it.
    pub fn over(
        &mut self,
        bytes: &Range<usize>,
        mut each: impl FnMut(usize, &Mapping) -> Result<(), Obstacle>,
    ) -> Result<(), Obstacle> {
        let mut at = bytes.start;
        while at < bytes.end {
            let mapping = self.at(at)?.ok_or(Obstacle::Unmapped(at))?;
            each(at, &mapping)?;
            at = mapping.end;
        }
        Ok(())
    }

    fn at(&mut self, address: usize) -> Result<Option<Mapping>, Obstacle> {
        if let Some(last) = self.last.filter(|last| last.covers(address)) {
            return Ok(Some(last));
        }
        if !self.mappings.answers && !self.listed {
            self.seen = self.mappings.list().map_err(Obstacle::Unknown)?;
            self.listed = true;
        }
        let known = self.seen.range(..=address).next_back();
        let known = known.map(|(_, found)| *found);
        self.last = known.filter(|found| found.covers(address));
        if self.last.is_none() && !self.listed {
            let asked = self.mappings.ask(address);
            self.last = asked.map_err(|errno| Obstacle::Unknown(format!("{PATH}: {errno}")))?;
            self.seen
                .extend(self.last.map(|found| (found.start, found)));
        }
        Ok(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
    use std::os::fd::AsFd;

    /// As kernels answer, and as those without the question are read.
    fn both() -> [Mappings; 2] {
        let mut old = Mappings::open().unwrap();
        old.answers = false;
        [Mappings::open().unwrap(), old]
    }

    fn pages(count: usize) -> Range<usize> {
        let length = count * rustix::param::page_size();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address the kernel chooses.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, access, MapFlags::PRIVATE) };
        let base = base.unwrap().expose_provenance();
        base..base + length
    }

    fn allow(bytes: &Range<usize>, access: MprotectFlags) {
        let base = std::ptr::with_exposed_provenance_mut(bytes.start);
        // SAFETY: a mapping of the test.
        unsafe { mprotect(base, bytes.len(), access).unwrap() };
    }

    fn unmap(bytes: &Range<usize>) {
        let base = std::ptr::with_exposed_provenance_mut(bytes.start);
        // SAFETY: a mapping of the test, not used any more.
        unsafe { munmap(base, bytes.len()).unwrap() };
    }

    #[test]
    fn what_may_not_be_read_or_written_is_found_without_touching_it() {
        let page = rustix::param::page_size();
        let bytes = pages(8);
        let part = |first: usize, end: usize| bytes.start + first * page..bytes.start + end * page;
        for mappings in both() {
            let check = |access| {
                mappings
                    .look()
                    .check(&(bytes.start + 5..bytes.end - 5), access)
            };
            assert_eq!(
                (check(Access::Read), check(Access::Write)),
                (Ok(()), Ok(()))
            );
            allow(&part(3, 4), MprotectFlags::READ);
            let third = bytes.start + 3 * page;
            assert_eq!(check(Access::Read), Ok(()));
            assert_eq!(check(Access::Write), Err(Obstacle::Forbidden(third)));
            allow(&part(3, 4), MprotectFlags::empty());
            assert_eq!(check(Access::Read), Err(Obstacle::Forbidden(third)));
            let mut look = mappings.look();
            assert_eq!(look.check(&part(0, 3), Access::Write), Ok(()));
            assert_eq!(look.check(&part(4, 8), Access::Write), Ok(()));
            allow(&part(3, 4), MprotectFlags::READ | MprotectFlags::WRITE);
        }
        unmap(&part(6, 7));
        for mappings in both() {
            let found = mappings.look().check(&bytes, Access::Read);
            assert_eq!(found, Err(Obstacle::Unmapped(bytes.start + 6 * page)));
        }
        unmap(&part(0, 6));
        unmap(&part(7, 8));
        for mappings in both() {
            let found = mappings.look().check(&bytes, Access::Read);
            assert_eq!(found, Err(Obstacle::Unmapped(bytes.start)));
            assert_eq!(mappings.look().check(&(5..5), Access::Write), Ok(()));
        }
    }

    /// Not a test: `cargo test --release -- --ignored --nocapture speed_of_looking`.
    #[test]
    #[ignore = "a measurement, for an idle machine"]
    fn speed_of_looking() {
        let page = rustix::param::page_size();
        let small = pages(20_000);
        let of_one: Vec<_> = (0..2000)
            .map(|n| small.start + n * 8 * page..small.start + n * 8 * page + 800)
            .collect();
        // Every second page is read-only, so that each is a mapping.
        let own = pages(4000);
        for n in 0..2000 {
            let start = own.start + 2 * n * page;
            allow(&(start..start + page), MprotectFlags::READ);
        }
        let of_many: Vec<_> = (0..2000)
            .map(|n| own.start + (2 * n + 1) * page..own.start + (2 * n + 2) * page)
            .collect();
        let large = vec![pages((1 << 30) / page)];
        for mappings in both() {
            for ranges in [&of_one, &large, &of_many] {
                let mut times: Vec<f64> = (0..21)
                    .map(|_run| {
                        let watch = backstay_base::clock::Stopwatch::start();
                        let mut look = mappings.look();
                        for bytes in ranges {
                            look.check(bytes, Access::Write).unwrap();
                        }
                        watch.seconds() * 1e6
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                println!(
                    "answers {}: {} variables: {:.1} us",
                    mappings.answers,
                    ranges.len(),
                    times[10]
                );
            }
        }
        [&small, &own, &large[0]].into_iter().for_each(unmap);
    }

    #[test]
    fn a_private_mapping_of_a_file_is_told_from_memory_of_ones_own() {
        let page = rustix::param::page_size();
        let file = tempfile::tempfile().unwrap();
        file.set_len(to_u64(page)).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let map = |flags| {
            // SAFETY: a new mapping at an address the kernel chooses.
            let base = unsafe { mmap(std::ptr::null_mut(), page, access, flags, file.as_fd(), 0) };
            let base = base.unwrap().expose_provenance();
            base..base + page
        };
        let ranges = [pages(1), map(MapFlags::PRIVATE), map(MapFlags::SHARED)];
        for mappings in both() {
            let mut look = mappings.look();
            let found = ranges.clone().map(|bytes| {
                let mut kind = None;
                look.over(&bytes, |_at, mapping| {
                    kind = Some((mapping.is_shared(), mapping.is_of_file()));
                    Ok(())
                })
                .unwrap();
                kind
            });
            assert_eq!(
                found,
                [
                    Some((false, false)),
                    Some((false, true)),
                    Some((true, true))
                ]
            );
        }
        ranges.iter().for_each(unmap);
    }
}
