// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the bytes of a stored file are: which stretches of its stream are numbers of which dataset.
//! In: the file as it is stored, or as it lies there. Out: its structure; parts for `aggregate`; an order in which its
//! numbers stand at multiples of their width.
//! Invariants: it says how bytes may be compressed, never what they are: whatever it says, the file comes back as it was.

use crate::aggregate::Part;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::limits::{FANOUT, FILE_STRETCHES_MAX, NAME_BYTES_MAX};
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{BlockRef, Digest, StoredFile, StreamRoot, Stretch};
use backstay_hdf5::{Dataset, Plain, Source, Structure, describe, plain};
use backstay_store::file::{FileMap, FilePlaces};
use backstay_store::reader::StoreReader;
use backstay_store::tree::read_page;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

/// Pages of a stream that are held.
const PAGES_MAX: usize = 4096;

/// A stored file, read by its own offsets.
#[derive(Debug)]
pub struct StoredContent<'a> {
    blocks: RefCell<Blocks<'a>>,
    places: FilePlaces,
    length: u64,
}

impl<'a> StoredContent<'a> {
    /// The file that is stored as `stream`.
    pub fn new(reader: &'a StoreReader, file: &StoredFile, stream: StreamRoot) -> Self {
        let blocks = Blocks {
            reader,
            root: stream,
            pages: BTreeMap::new(),
            held: None,
            bytes: Vec::new(),
        };
        Self {
            blocks: RefCell::new(blocks),
            places: FileMap::of(file).places(),
            length: file.length_bytes,
        }
    }

    /// Fills `buffer` with the bytes of the file from `offset` on; what it has no bytes for is zeros.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        buffer.fill(0);
        let mut pieces = Vec::new();
        let length = to_u64(buffer.len());
        self.places
            .pieces(offset, length, &mut |at, bytes| pieces.push((at, bytes)));
        let mut blocks = self.blocks.borrow_mut();
        for (at, bytes) in pieces {
            let into = to_usize(bytes.start)..to_usize(bytes.end);
            blocks.copy(at, &mut buffer[into])?;
        }
        Ok(())
    }
}

/// The blocks of a stream, of whose pages those on the way to a block are read: a node may be far away.
#[derive(Debug)]
struct Blocks<'a> {
    reader: &'a StoreReader,
    root: StreamRoot,
    /// By level and number.
    pages: BTreeMap<(u8, usize), Vec<BlockRef>>,
    held: Option<usize>,
    bytes: Vec<u8>,
}

impl Blocks<'_> {
    /// Where block `number` stands.
    fn find(&mut self, number: usize) -> Result<BlockRef> {
        let mut found = self.root.top;
        for level in (1..=self.root.height).rev() {
            let below = FANOUT.pow(u32::from(level) - 1);
            let page = number / below / FANOUT;
            if self.pages.len() >= PAGES_MAX {
                self.pages.clear();
            }
            let entries = match self.pages.entry((level, page)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(vacant) => {
                    let read = read_page(self.reader, &self.root, level, page, &found)?;
                    vacant.insert(read.entries)
                }
            };
            let child = entries.get(number / below % FANOUT).copied();
            let beyond = || Error::new(ErrorKind::Internal, "a block behind the end of its stream");
            found = child.ok_or_else(beyond)?;
        }
        Ok(found)
    }

    /// Fills `buffer` with the bytes of the stream from `from` on.
    fn copy(&mut self, from: u64, buffer: &mut [u8]) -> Result<()> {
        let block_bytes = u64::from(self.root.block_bytes);
        let mut done = 0;
        while done < buffer.len() {
            let at = from + to_u64(done);
            let (number, within) = (to_usize(at / block_bytes), to_usize(at % block_bytes));
            if self.held != Some(number) {
                self.held = None;
                let block = self.find(number)?;
                self.bytes.resize(self.root.block_length(number), 0);
                self.reader.read(&block, &mut self.bytes, "block")?;
                self.held = Some(number);
            }
            let rest = self.bytes.get(within..).unwrap_or_default();
            let count = rest.len().min(buffer.len() - done);
            if count == 0 {
                let context = "bytes behind the end of a stream";
                return Err(Error::new(ErrorKind::Internal, context));
            }
            buffer[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
        }
        Ok(())
    }
}

impl Source for StoredContent<'_> {
    fn length_bytes(&self) -> u64 {
        self.length
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        let read = self.read(offset, buffer);
        read.map_err(|error| std::io::Error::other(error.to_string()))
    }
}

/// The structure of the file that is stored as `stream`; `None` of one that has none, or that cannot be read.
pub fn structure(reader: &StoreReader, file: &StoredFile, stream: StreamRoot) -> Option<Structure> {
    describe(&StoredContent::new(reader, file, stream))
}

/// Which blocks of a file's stream are parts.
#[derive(Debug, Default)]
pub struct TypedStream {
    /// The parts, in the order of their names.
    pub parts: Vec<Part>,
    /// Stretches of the stream, ascending, and whose part each is.
    ranges: Vec<(Range<u64>, usize)>,
}

impl TypedStream {
    /// The parts of `variable`, a file of this structure that is stored as `file` says.
    pub fn of(variable: &str, file: &StoredFile, structure: &Structure) -> Self {
        let places = FileMap::of(file).places();
        let mut named: Vec<(Part, usize)> = Vec::new();
        for (at, dataset) in structure.datasets.iter().enumerate() {
            if dataset.is_plain() {
                named.push((part(variable, dataset), at));
            }
        }
        named.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        named.dedup_by(|(one, _), (other, _)| one.name == other.name);
        let mut place = vec![None; structure.datasets.len()];
        for (number, (_, at)) in named.iter().enumerate() {
            place[*at] = Some(number);
        }
        let mut ranges = Vec::new();
        for one in plain(structure) {
            let Some(number) = place[one.dataset] else {
                continue;
            };
            places.pieces(one.start, one.length, &mut |at, bytes| {
                ranges.push((at..at + (bytes.end - bytes.start), number));
            });
        }
        ranges.sort_unstable_by_key(|(range, _)| range.start);
        Self {
            parts: named.into_iter().map(|(part, _)| part).collect(),
            ranges,
        }
    }

    /// The part that has at least half of bytes `start` to `start + length` of the stream.
    pub fn part_of(&self, start: u64, length: u64) -> Option<usize> {
        let end = start + length;
        let first = self.ranges.partition_point(|(range, _)| range.end <= start);
        let mut shares: Vec<(usize, u64)> = Vec::new();
        for (range, part) in self.ranges[first..]
            .iter()
            .take_while(|(range, _)| range.start < end)
        {
            let share = range.end.min(end) - range.start.max(start);
            match shares.iter_mut().find(|(known, _)| known == part) {
                Some((_, sum)) => *sum += share,
                None => shares.push((*part, share)),
            }
        }
        let most = shares.into_iter().max_by_key(|&(_, share)| share)?;
        (most.1 * 2 >= length).then_some(most.0)
    }
}

fn part(variable: &str, dataset: &Dataset) -> Part {
    let element = dataset.stored_element();
    let chunked = !dataset.chunk_shape.is_empty();
    let mut shape = if chunked {
        &dataset.chunk_shape
    } else {
        &dataset.shape
    }
    .clone();
    let inner = dataset.item.bytes / element.width_bytes();
    if inner > 1 {
        shape.push(inner);
    }
    Part {
        name: part_name(variable, &dataset.path),
        element,
        shape,
    }
}

/// A name that fits where names of variables do: what does not is its digest.
fn part_name(variable: &str, path: &str) -> String {
    let name = format!("{variable}:/{path}");
    if name.len() <= NAME_BYTES_MAX {
        return name;
    }
    let Digest(digest) = Digest::of(name.as_bytes());
    let words: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("file:/{}", words.concat())
}

/// The order in which the bytes of a file of `length` are stored so that numbers stand at multiples of their width,
/// and whole blocks have numbers of one dataset: whole blocks of datasets, what is left of them, all else. `None`
/// where it has no numbers, or they are in too many pieces.
pub fn aligned(structure: &Structure, length: u64, block_bytes: u32) -> Option<Vec<Stretch>> {
    let all = plain(structure);
    let width = |one: &Plain| {
        structure.datasets[one.dataset]
            .stored_element()
            .width_bytes()
    };
    let mut by_dataset = all.clone();
    by_dataset.sort_by_key(|one| (std::cmp::Reverse(width(one)), one.dataset, one.start));
    let (mut whole, mut rest) = (Vec::new(), Vec::new());
    for pieces in by_dataset.chunk_by(|one, next| one.dataset == next.dataset) {
        let bytes: u64 = pieces.iter().map(|one| one.length).sum();
        let mut left = bytes - bytes % u64::from(block_bytes);
        for one in pieces {
            let head = one.length.min(left);
            left -= head;
            append(&mut whole, one.start, head);
            append(&mut rest, one.start + head, one.length - head);
        }
    }
    if whole.is_empty() && rest.is_empty() {
        return None;
    }
    let mut at = 0;
    let mut others = Vec::new();
    for one in &all {
        append(&mut others, at, one.start - at);
        at = one.start + one.length;
    }
    append(&mut others, at, length.saturating_sub(at));
    let mut stretches = Vec::new();
    for stretch in whole.into_iter().chain(rest).chain(others) {
        append(&mut stretches, stretch.start, stretch.length);
    }
    (stretches.len() <= FILE_STRETCHES_MAX).then_some(stretches)
}

fn append(stretches: &mut Vec<Stretch>, start: u64, length: u64) {
    if length == 0 {
        return;
    }
    match stretches.last_mut() {
        Some(last) if last.start + last.length == start => last.length += length,
        _ => stretches.push(Stretch { start, length }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backstay_format::ElementType;
    use proptest::prelude::*;

    const BLOCK: u32 = 64;

    fn fixture(name: &str) -> (Vec<u8>, Structure) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../hdf5/tests/fixtures");
        let bytes = std::fs::read(std::path::Path::new(folder).join(name)).unwrap();
        let found = describe(&&*bytes).unwrap();
        (bytes, found)
    }

    fn stored(length: u64, stretches: Option<Vec<Stretch>>) -> StoredFile {
        StoredFile {
            path: b"name".to_vec(),
            routed: true,
            mode: 0o600,
            modified_s: 0,
            modified_ns: 0,
            length_bytes: length,
            stretches,
        }
    }

    #[test]
    fn numbers_stand_at_multiples_of_their_width_and_blocks_have_one_dataset() {
        for name in [
            "grid.h5",
            "latest.h5",
            "earliest.h5",
            "netcdf.nc",
            "large_latest.h5",
        ] {
            let (bytes, structure) = fixture(name);
            let length = to_u64(bytes.len());
            let stretches = aligned(&structure, length, BLOCK).unwrap();
            let file = stored(length, Some(stretches));
            file.validate(length).unwrap();
            let places = FileMap::of(&file).places();
            for one in plain(&structure) {
                let width = structure.datasets[one.dataset]
                    .stored_element()
                    .width_bytes();
                places.pieces(one.start, one.length, &mut |at, piece| {
                    assert_eq!((at % width, piece.start % width), (0, 0), "{name} {one:?}");
                });
            }
            // Every whole block of a dataset is a part, of its type.
            let typed = TypedStream::of("file", &file, &structure);
            let whole: u64 = structure
                .datasets
                .iter()
                .filter(|dataset| dataset.is_plain())
                .map(|dataset| dataset.stored_bytes() / u64::from(BLOCK))
                .sum();
            for block in 0..whole {
                assert!(
                    typed
                        .part_of(block * u64::from(BLOCK), BLOCK.into())
                        .is_some(),
                    "{name} {block}"
                );
            }
        }
    }

    #[test]
    fn parts_are_named_by_file_and_dataset_and_have_its_shape() {
        let (bytes, structure) = fixture("grid.h5");
        let file = stored(to_u64(bytes.len()), None);
        let typed = TypedStream::of("file", &file, &structure);
        let parts: Vec<(&str, ElementType, &[u64])> = typed
            .parts
            .iter()
            .map(|part| (&*part.name, part.element, &*part.shape))
            .collect();
        let wanted: [(&str, ElementType, &[u64]); 3] = [
            ("file:/a_odd", ElementType::U8, &[13]),
            ("file:/density", ElementType::F32, &[32, 128]),
            ("file:/heat", ElementType::F64, &[64, 256]),
        ];
        assert_eq!(parts, wanted);
        let heat = structure
            .datasets
            .iter()
            .find(|one| one.path == "heat")
            .unwrap()
            .extents[0];
        assert_eq!(typed.part_of(heat.offset, heat.length), Some(2));
        assert_eq!(typed.part_of(heat.offset - 10, 20), Some(2), "half of it");
        assert_eq!(
            typed.part_of(heat.offset - 11, 20),
            Some(1),
            "it follows the other one"
        );
        assert_eq!(typed.part_of(0, 64), None, "the superblock");
        let long = part_name("file", &"x".repeat(300));
        assert!(long.len() <= NAME_BYTES_MAX && long != part_name("other", &"x".repeat(300)));
    }

    proptest! {
        #[test]
        fn every_byte_is_stored_once_whatever_the_file_says(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        ) {
            let (mut bytes, _) = fixture("latest.h5");
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let length = to_u64(bytes.len());
            if let Some(structure) = describe(&&*bytes) {
                let stretches = aligned(&structure, length, BLOCK);
                let file = stored(length, stretches);
                prop_assert!(file.validate(length).is_ok());
                let typed = TypedStream::of("file", &file, &structure);
                for start in (0..length).step_by(64) {
                    let part = typed.part_of(start, 64.min(length - start));
                    prop_assert!(part.is_none_or(|part| part < typed.parts.len()));
                }
            }
        }
    }
}
