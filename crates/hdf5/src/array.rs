// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the arrays in which later versions keep the addresses of chunks: fixed and extensible ones.
//! In: the address of an array. Out: a place for each chunk, in the order of their numbers.
//! Invariants: no more entries than [`CHUNKS_MAX`], whatever the head says.

use crate::chunks::{CHUNKS_MAX, Grid, Place};
use crate::read::{Fields, Read, Reader, Stop};
use backstay_format::width::{to_u64, to_usize};

/// Signature, version and client.
const HEAD: usize = 6;
const CHECKSUM: usize = 4;

/// How an entry is written.
#[derive(Debug, Clone, Copy)]
struct Entry {
    bytes: usize,
    /// Bytes of its length, where it has one.
    length_bytes: Option<usize>,
}

impl Entry {
    fn new(reader: &Reader<'_>, client: u8, bytes: u8, length_bytes: usize) -> Read<Self> {
        let filtered = match client {
            0 => None,
            1 => Some(length_bytes),
            _ => return Err(Stop("an array has entries of no known kind")),
        };
        let wanted = reader.widths.0 + filtered.map_or(0, |length| length + 4);
        if usize::from(bytes) != wanted {
            return Err(Stop("an array has entries of an odd length"));
        }
        Ok(Self {
            bytes: wanted,
            length_bytes: filtered,
        })
    }

    fn read(self, fields: &mut Fields<'_>) -> Read<Place> {
        let address = fields.address()?;
        let Some(width) = self.length_bytes else {
            return Ok(address.map(|address| (address, None)));
        };
        let length = fields.number(width)?;
        fields.skip(4)?;
        Ok(address.map(|address| (address, Some(length))))
    }

    /// Entries that stand one behind the other.
    fn read_all(self, reader: &Reader<'_>, at: u64, count: u64, into: &mut Vec<Place>) -> Read<()> {
        let bytes = count.checked_mul(to_u64(self.bytes));
        let bytes = bytes.ok_or(Stop("an array is too long"))?;
        let bytes = reader.bytes(at, to_usize(bytes))?;
        reader.spend(count / 64)?;
        let mut fields = reader.fields(&bytes);
        for _ in 0..count {
            into.push(self.read(&mut fields)?);
        }
        Ok(())
    }

    /// Entries in pages of `page` each, which `is_there` says are written.
    fn read_pages(
        self,
        reader: &Reader<'_>,
        mut at: u64,
        (count, page): (u64, u64),
        is_there: impl Fn(u64) -> bool,
        into: &mut Vec<Place>,
    ) -> Read<()> {
        let mut left = count;
        let mut number = 0;
        while left > 0 {
            let some = left.min(page);
            if is_there(number) {
                self.read_all(reader, at, some, into)?;
            } else {
                reader.spend(1)?;
                into.resize(into.len() + to_usize(some), None);
            }
            // All pages take the room of a whole one, but for the last.
            at += some * to_u64(self.bytes) + to_u64(CHECKSUM);
            left -= some;
            number += 1;
        }
        Ok(())
    }
}

fn bit(bits: &[u8], at: u64) -> bool {
    let byte = bits.get(to_usize(at / 8));
    byte.is_some_and(|byte| byte & (0x80 >> (at % 8)) != 0)
}

/// The entries of a fixed array.
pub(crate) fn fixed(
    reader: &Reader<'_>,
    address: u64,
    grid: &Grid,
    is_wide: bool,
) -> Read<Vec<Place>> {
    let (address_bytes, length_bytes) = reader.widths;
    let bytes = reader.signed(address, 8 + length_bytes + address_bytes, b"FAHD")?;
    let mut fields = reader.fields(&bytes);
    fields.skip(5)?;
    let (client, entry, bits) = (fields.u8()?, fields.u8()?, fields.u8()?);
    let count = fields.length()?;
    let block = fields.address()?;
    let entry = Entry::new(reader, client, entry, grid.length_bytes(is_wide))?;
    if count > CHUNKS_MAX || bits > 20 {
        return Err(Stop("it has too many chunks"));
    }
    let mut found = Vec::new();
    let Some(block) = block else {
        return Ok(found);
    };
    let head = HEAD + address_bytes;
    reader.signed(block, head, b"FADB")?;
    let page = 1_u64 << bits;
    let start = block + to_u64(head);
    if count <= page {
        entry.read_all(reader, start, count, &mut found)?;
        return Ok(found);
    }
    let pages = count.div_ceil(page);
    let mask_bytes = pages.div_ceil(8);
    let mask = reader.bytes(start, to_usize(mask_bytes))?;
    let start = start + mask_bytes + to_u64(CHECKSUM);
    let is_there = |at| bit(&mask, at);
    entry.read_pages(reader, start, (count, page), is_there, &mut found)?;
    Ok(found)
}

/// What the head of an extensible array says.
struct Extensible {
    entry: Entry,
    /// Bits of the number of an entry.
    bits: u8,
    /// Entries in its index block.
    first: u64,
    /// Entries of the smallest block.
    block: u64,
    /// Addresses of blocks in the smallest block of addresses.
    pointers: u64,
    /// Entries of a page.
    page: u64,
    /// Entries that there are.
    count: u64,
}

/// The entries of an extensible array.
pub(crate) fn extensible(
    reader: &Reader<'_>,
    address: u64,
    grid: &Grid,
    is_wide: bool,
) -> Read<Vec<Place>> {
    let (address_bytes, length_bytes) = reader.widths;
    let bytes = reader.signed(address, 12 + 6 * length_bytes + address_bytes, b"EAHD")?;
    let mut fields = reader.fields(&bytes);
    fields.skip(5)?;
    let (client, entry, bits) = (fields.u8()?, fields.u8()?, fields.u8()?);
    let (first, block, pointers, page) = (fields.u8()?, fields.u8()?, fields.u8()?, fields.u8()?);
    fields.skip(4 * length_bytes)?;
    let count = fields.length()?;
    fields.skip(length_bytes)?;
    let index = fields.address()?;
    let is_good = bits <= 64
        && block.is_power_of_two()
        && pointers.is_power_of_two()
        && pointers > 1
        && page <= 20
        && count <= CHUNKS_MAX;
    if !is_good {
        return Err(Stop("the measures of an array are odd"));
    }
    let array = Extensible {
        entry: Entry::new(reader, client, entry, grid.length_bytes(is_wide))?,
        bits,
        first: u64::from(first),
        block: u64::from(block),
        pointers: u64::from(pointers),
        page: 1 << page,
        count,
    };
    let mut found = Vec::new();
    if let Some(index) = index {
        array.index(reader, index, &mut found)?;
    }
    found.truncate(to_usize(count));
    Ok(found)
}

impl Extensible {
    fn offset_bytes(&self) -> usize {
        usize::from(self.bits.div_ceil(8))
    }

    fn is_done(&self, found: &[Place]) -> bool {
        to_u64(found.len()) >= self.count
    }

    /// Blocks of a block of addresses, and entries of each of them.
    fn measures(&self, number: u32) -> (u64, u64) {
        (1 << (number / 2), self.block << number.div_ceil(2))
    }

    /// The index block, and all below it.
    fn index(&self, reader: &Reader<'_>, at: u64, found: &mut Vec<Place>) -> Read<()> {
        let address_bytes = reader.widths.0;
        let head = HEAD + address_bytes;
        reader.signed(at, head, b"EAIB")?;
        let mut at = at + to_u64(head);
        self.entry.read_all(reader, at, self.first, found)?;
        at += self.first * to_u64(self.entry.bytes);
        let here = 2 * self.pointers.ilog2();
        let blocks = 2 * (self.pointers - 1);
        let bytes = reader.bytes(at, to_usize(blocks) * address_bytes)?;
        let mut fields = reader.fields(&bytes);
        for number in 0..here {
            let (count, entries) = self.measures(number);
            for _ in 0..count {
                if self.is_done(found) {
                    return Ok(());
                }
                let place = fields.address()?;
                if entries > self.page {
                    return Err(Stop("an array has pages where none are known"));
                }
                self.data(reader, place, entries, |_| true, found)?;
            }
        }
        at += blocks * to_u64(address_bytes);
        let last = 1 + u32::from(self.bits).saturating_sub(self.block.ilog2());
        for number in here..last.min(here + 40) {
            if self.is_done(found) {
                return Ok(());
            }
            let bytes = reader.bytes(at, address_bytes)?;
            let place = reader.fields(&bytes).address()?;
            self.addresses(reader, place, number, found)?;
            at += to_u64(address_bytes);
        }
        Ok(())
    }

    /// A block of addresses of blocks.
    fn addresses(
        &self,
        reader: &Reader<'_>,
        at: Option<u64>,
        number: u32,
        found: &mut Vec<Place>,
    ) -> Read<()> {
        let (count, entries) = self.measures(number);
        let left = self.count.saturating_sub(to_u64(found.len()));
        let Some(at) = at else {
            let missing = count.saturating_mul(entries).min(left);
            found.resize(found.len() + to_usize(missing), None);
            return Ok(());
        };
        let address_bytes = reader.widths.0;
        let head = HEAD + address_bytes + self.offset_bytes();
        reader.signed(at, head, b"EASB")?;
        let mut at = at + to_u64(head);
        let pages = if entries > self.page {
            entries / self.page
        } else {
            0
        };
        let mask_bytes = count.saturating_mul(pages.div_ceil(8));
        let mask = reader.bytes(at, to_usize(mask_bytes))?;
        at += mask_bytes;
        for block in 0..count {
            if self.is_done(found) {
                return Ok(());
            }
            let bytes = reader.bytes(at, address_bytes)?;
            let place = reader.fields(&bytes).address()?;
            let is_there = |page| bit(&mask, block * pages + page);
            self.data(reader, place, entries, is_there, found)?;
            at += to_u64(address_bytes);
        }
        Ok(())
    }

    /// A block of entries.
    fn data(
        &self,
        reader: &Reader<'_>,
        at: Option<u64>,
        entries: u64,
        is_there: impl Fn(u64) -> bool,
        found: &mut Vec<Place>,
    ) -> Read<()> {
        let left = self.count.saturating_sub(to_u64(found.len()));
        let Some(at) = at else {
            found.resize(found.len() + to_usize(entries.min(left)), None);
            return Ok(());
        };
        let head = HEAD + reader.widths.0 + self.offset_bytes();
        reader.signed(at, head, b"EADB")?;
        let start = at + to_u64(head);
        if entries <= self.page {
            return self.entry.read_all(reader, start, entries.min(left), found);
        }
        let start = start + to_u64(CHECKSUM);
        let wanted = (entries.min(left), self.page);
        self.entry
            .read_pages(reader, start, wanted, is_there, found)
    }
}
