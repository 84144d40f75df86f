// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the bytes of a file, for those who take its structure apart.
//! In: a source of bytes. Out: pieces of it, and numbers in them.
//! Invariants: nothing outside the file is read, nothing longer than [`PIECE_BYTES_MAX`] is held, and after so much
//! work nothing more is given out, whatever the file says.

use backstay_format::width::{to_u64, to_usize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Where the bytes of a file come from.
pub trait Source {
    /// Bytes of the file.
    fn length_bytes(&self) -> u64;
    /// Fills `buffer` with what stands from `offset` on.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()>;
}

impl Source for &[u8] {
    fn length_bytes(&self) -> u64 {
        to_u64(self.len())
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        let start = to_usize(offset);
        let end = start.checked_add(buffer.len());
        let found = end.and_then(|end| self.get(start..end));
        let found = found.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(found);
        Ok(())
    }
}

impl Source for std::fs::File {
    fn length_bytes(&self) -> u64 {
        self.metadata().map_or(0, |about| about.len())
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buffer, offset)
    }
}

/// Longest piece of a structure.
pub(crate) const PIECE_BYTES_MAX: usize = 4 << 20;
/// So many pieces are given out; a piece counts once more for each [`PAGE_BYTES`] of it.
const WORK_MAX: u64 = 1 << 18;
/// Bytes that are read at once.
const PAGE_BYTES: u64 = 4096;
/// Pages that are held.
const PAGES_MAX: usize = 1024;

/// Why something is not understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stop(pub(crate) &'static str);

pub(crate) type Read<T> = Result<T, Stop>;

/// A file that is being taken apart.
pub(crate) struct Reader<'a> {
    source: &'a dyn Source,
    length: u64,
    /// What addresses count from.
    pub(crate) base: u64,
    /// Bytes of an address, and of a length.
    pub(crate) widths: (usize, usize),
    pages: RefCell<BTreeMap<u64, Vec<u8>>>,
    work: Cell<u64>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(source: &'a dyn Source) -> Self {
        Self {
            source,
            length: source.length_bytes(),
            base: 0,
            widths: (8, 8),
            pages: RefCell::default(),
            work: Cell::new(0),
        }
    }

    /// Bytes of the file behind where addresses count from.
    pub(crate) fn length(&self) -> u64 {
        self.length.saturating_sub(self.base)
    }

    /// The `count` bytes at `address`.
    pub(crate) fn bytes(&self, address: u64, count: usize) -> Read<Vec<u8>> {
        let end = address.checked_add(to_u64(count));
        if count > PIECE_BYTES_MAX || end.is_none_or(|end| end > self.length()) {
            return Err(Stop("it names bytes outside the file"));
        }
        let mut out = Vec::with_capacity(count);
        let mut at = self.base + address;
        while out.len() < count {
            self.spend(1)?;
            let within = to_usize(at % PAGE_BYTES);
            let wanted = count - out.len();
            let taken = self.with_page(at / PAGE_BYTES, |page| {
                let rest = page.get(within..).unwrap_or_default();
                let some = &rest[..rest.len().min(wanted)];
                out.extend_from_slice(some);
                some.len()
            })?;
            if taken == 0 {
                return Err(Stop("it ends early"));
            }
            at += to_u64(taken);
        }
        Ok(out)
    }

    /// The same, of which the first bytes say what it is.
    pub(crate) fn signed(&self, address: u64, count: usize, signature: &[u8]) -> Read<Vec<u8>> {
        let bytes = self.bytes(address, count)?;
        if bytes.starts_with(signature) {
            return Ok(bytes);
        }
        Err(Stop("an address leads to something else"))
    }

    /// Counts work; an error when there was too much.
    pub(crate) fn spend(&self, work: u64) -> Read<()> {
        let spent = self.work.get().saturating_add(work);
        self.work.set(spent);
        if spent > WORK_MAX {
            return Err(Stop("its structure is too large to be looked at"));
        }
        Ok(())
    }

    fn with_page<T>(&self, number: u64, take: impl FnOnce(&[u8]) -> T) -> Read<T> {
        let mut pages = self.pages.borrow_mut();
        if let Some(page) = pages.get(&number) {
            return Ok(take(page));
        }
        if pages.len() >= PAGES_MAX {
            pages.clear();
        }
        let start = number * PAGE_BYTES;
        let count = PAGE_BYTES.min(self.length.saturating_sub(start));
        let mut page = vec![0; to_usize(count)];
        let read = self.source.read_at(start, &mut page);
        read.map_err(|_| Stop("it cannot be read"))?;
        Ok(take(pages.entry(number).or_insert(page)))
    }

    /// Goes through `bytes`, with the widths of this file.
    pub(crate) fn fields<'b>(&self, bytes: &'b [u8]) -> Fields<'b> {
        Fields {
            bytes,
            at: 0,
            widths: self.widths,
        }
    }
}

/// Numbers in bytes, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'b> {
    bytes: &'b [u8],
    at: usize,
    widths: (usize, usize),
}

impl<'b> Fields<'b> {
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn take(&mut self, count: usize) -> Read<&'b [u8]> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or(Stop("it ends early"))?;
        self.at += count;
        Ok(taken)
    }

    pub(crate) fn skip(&mut self, count: usize) -> Read<()> {
        self.take(count).map(|_| ())
    }

    /// A number of `count` bytes, at most 8.
    pub(crate) fn number(&mut self, count: usize) -> Read<u64> {
        if count > 8 {
            return Err(Stop("a number has more than 8 bytes"));
        }
        let mut wide = [0; 8];
        wide[..count].copy_from_slice(self.take(count)?);
        Ok(u64::from_le_bytes(wide))
    }

    pub(crate) fn u8(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn u16(&mut self) -> Read<u16> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    pub(crate) fn u32(&mut self) -> Read<u32> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// An address; `None` of what is nowhere.
    pub(crate) fn address(&mut self) -> Read<Option<u64>> {
        let width = self.widths.0;
        let found = self.number(width)?;
        let nowhere = u64::MAX >> (64 - 8 * width.clamp(1, 8));
        Ok((found != nowhere).then_some(found))
    }

    /// An address of something that has to be there.
    pub(crate) fn place(&mut self) -> Read<u64> {
        self.address()?.ok_or(Stop("an address leads nowhere"))
    }

    pub(crate) fn length(&mut self) -> Read<u64> {
        self.number(self.widths.1)
    }

    /// Goes on at a multiple of 8 from `start`.
    pub(crate) fn align(&mut self, start: usize) -> Read<()> {
        let gap = (8 - (self.at - start) % 8) % 8;
        self.skip(gap)
    }
}

/// Bytes that numbers up to `limit` take.
pub(crate) fn bytes_for(limit: u64) -> usize {
    to_usize(u64::from(limit.max(1).ilog2() / 8)) + 1
}
