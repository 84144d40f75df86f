// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what changed from one checkpoint to another: by variable, and of files by dataset.
//! In: two checkpoints of one job. Out: for each array what differs, or why that cannot be said.
//! Invariants: nothing is written; blocks that both share by digest are not read; values of filtered datasets are
//! compared as they are stored, chunk by chunk.

use super::compare::Differences;
use super::{Checkpoint, StoredPart, StoredVariable, Stores};
use backstay_archive::typed::StoredContent;
use backstay_base::error::Result;
use backstay_format::width::{to_u64, to_usize};
use backstay_format::{BlockRef, ElementType};
use backstay_hdf5::{Dataset, Extent, Structure, describe};
use backstay_store::reader::StoreReader;
use backstay_store::tree::read_blocks;
use std::collections::BTreeMap;

/// Bytes that are compared at once.
const WINDOW_BYTES: u64 = 1 << 20;

/// How an array stands in two checkpoints.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Both have it, and its elements were compared.
    Compared(Differences),
    /// Only the earlier one has it.
    Gone,
    /// Only the later one has it.
    New,
    /// Its type or shape is another one, so that elements have no counterparts.
    Reshaped,
}

/// An array, and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ArrayDiff {
    /// The variable.
    pub variable: String,
    /// The dataset, of a file that has some; of what it has beside them, none.
    pub dataset: Option<String>,
    /// Type of its elements in words.
    pub kind: String,
    /// Ranks that have it in one of both.
    pub ranks: usize,
    /// What its elements are.
    pub unit: Unit,
    /// What became of it.
    pub outcome: Outcome,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Elements.
    Elements,
    /// Bytes of a file.
    Bytes,
    /// Chunks of a dataset that is filtered.
    Chunks,
}

/// Of one rank: type, unit, outcome.
type One = (String, Unit, Outcome);

/// Arrays by variable and dataset, those of each rank.
type Found = BTreeMap<(String, Option<String>), Vec<One>>;

impl Stores {
    /// What changed from `earlier` to `later`, on all ranks, or on `only` one of them. `progress` is told of bytes of
    /// variables that are done.
    pub fn diff(
        &self,
        (earlier, later): (&Checkpoint, &Checkpoint),
        (only, variable): (Option<u32>, Option<&str>),
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<ArrayDiff>> {
        let mut found = Found::new();
        let sides = [
            self.variables(earlier, only, &mut |_| {})?,
            self.variables(later, only, &mut |_| {})?,
        ];
        let mut pairs: BTreeMap<(&str, u32), [Option<&StoredPart>; 2]> = BTreeMap::new();
        for (side, variables) in sides.iter().enumerate() {
            let all = variables
                .iter()
                .filter(|one| variable.is_none_or(|name| one.name == name));
            for StoredVariable { name, parts } in all {
                for part in parts {
                    pairs.entry((name, part.rank)).or_default()[side] = Some(part);
                }
            }
        }
        for ((name, _), [one, other]) in pairs {
            let diff = Diff {
                stores: self,
                ids: [earlier, later],
                name,
            };
            diff.parts(one, other, &mut found)?;
            let bytes = |part: Option<&StoredPart>| part.map_or(0, |part| part.stream.length_bytes);
            progress(bytes(one).max(bytes(other)));
        }
        Ok(found.into_iter().map(merged).collect())
    }

    /// The structure of a file of a checkpoint, if it has one.
    pub fn structure(&self, part: &StoredPart) -> Option<Structure> {
        let file = part.descriptor.file.as_ref()?;
        let reader = self.stores[part.store].reader();
        backstay_archive::typed::structure(reader, file, part.stream)
    }
}

/// The parts of all ranks as one array, in the order of the ranks.
fn merged(((variable, dataset), mut parts): ((String, Option<String>), Vec<One>)) -> ArrayDiff {
    let ranks = parts.len();
    let (kind, unit) = parts
        .first()
        .map_or((String::new(), Unit::Elements), |one| {
            (one.0.clone(), one.1)
        });
    let is_compared = |one: &One| matches!(one.2, Outcome::Compared(_)) && one.1 == unit;
    let outcome = if parts.iter().all(is_compared) {
        let mut whole = 0;
        let all: Vec<Differences> = parts
            .drain(..)
            .filter_map(|(_, _, outcome)| match outcome {
                Outcome::Compared(found) => Some(found),
                _ => None,
            })
            .collect();
        for one in &all {
            whole += one.elements;
        }
        let mut sum = Differences::new(whole);
        let mut at = 0;
        for one in &all {
            sum.add(one, at);
            at += one.elements;
        }
        Outcome::Compared(sum)
    } else {
        let same = parts.iter().all(|one| one.2 == parts[0].2);
        if same {
            parts.swap_remove(0).2
        } else {
            Outcome::Reshaped
        }
    };
    ArrayDiff {
        variable,
        dataset,
        kind,
        ranks,
        unit,
        outcome,
    }
}

/// One variable of one rank in both checkpoints.
struct Diff<'a> {
    stores: &'a Stores,
    ids: [&'a Checkpoint; 2],
    name: &'a str,
}

/// A side of a comparison.
#[derive(Clone, Copy)]
struct Side<'a> {
    reader: &'a StoreReader,
    part: &'a StoredPart,
}

impl<'a> Diff<'a> {
    fn parts(
        &self,
        one: Option<&'a StoredPart>,
        other: Option<&'a StoredPart>,
        found: &mut Found,
    ) -> Result<()> {
        let (Some(a), Some(b)) = (one, other) else {
            let outcome = if one.is_some() {
                Outcome::Gone
            } else {
                Outcome::New
            };
            if let Some(part) = one.or(other) {
                self.note(found, None, (kind_of(part), unit_of(part), outcome));
            }
            return Ok(());
        };
        let sides = [a, b].map(|part| Side {
            reader: self.stores.stores[part.store].reader(),
            part,
        });
        let outcome = match (&a.descriptor.file, &b.descriptor.file) {
            (Some(_), Some(_)) => return self.files(sides, found),
            (None, None) if is_same_array(a, b) => self.blocks(sides)?,
            _ => Outcome::Reshaped,
        };
        self.note(found, None, (kind_of(b), unit_of(b), outcome));
        Ok(())
    }

    fn note(&self, found: &mut Found, dataset: Option<String>, one: One) {
        let key = (self.name.to_owned(), dataset);
        found.entry(key).or_default().push(one);
    }

    fn judged<T>(&self, side: usize, store: usize, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.stores.judge(store, self.ids[side].id, error))
    }

    /// Two streams of one length: blocks of the same digest are equal.
    fn blocks(&self, sides: [Side<'a>; 2]) -> Result<Outcome> {
        let [a, b] = sides;
        let element = b.part.descriptor.element;
        let width = element.width_bytes();
        let length = b.part.stream.length_bytes;
        let mut found = Differences::new(length / width);
        if a.part.stream.block_bytes != b.part.stream.block_bytes {
            self.windows(sides, element, &mut found)?;
            return Ok(Outcome::Compared(found));
        }
        let mut refs: [Vec<BlockRef>; 2] = [Vec::new(), Vec::new()];
        for (at, side) in sides.iter().enumerate() {
            let read = read_blocks(side.reader, &side.part.stream, &mut |_, block| {
                refs[at].push(*block);
                Ok(())
            });
            self.judged(at, side.part.store, read)?;
        }
        let block_bytes = u64::from(b.part.stream.block_bytes);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        for (at, (before, now)) in refs[0].iter().zip(&refs[1]).enumerate() {
            let bytes = b.part.stream.block_length(at);
            let first = to_u64(at) * block_bytes / width;
            if before.digest == now.digest {
                found.note_equal(first, to_u64(bytes) / width);
                continue;
            }
            one.resize(bytes, 0);
            other.resize(bytes, 0);
            self.judged(0, a.part.store, a.reader.read(before, &mut one, "block"))?;
            self.judged(1, b.part.store, b.reader.read(now, &mut other, "block"))?;
            found.compare(element, false, first, &one, &other);
        }
        Ok(Outcome::Compared(found))
    }

    /// The same of blocks of other lengths.
    fn windows(
        &self,
        sides: [Side<'a>; 2],
        element: ElementType,
        found: &mut Differences,
    ) -> Result<()> {
        use backstay_store::ranges::BlockCache;
        let open = |at: usize| {
            let side = sides[at];
            self.judged(
                at,
                side.part.store,
                BlockCache::new(side.reader, side.part.stream),
            )
        };
        let (mut a, mut b) = (open(0)?, open(1)?);
        let length = sides[1].part.stream.length_bytes;
        let mut at = 0;
        while at < length {
            let count = (length - at).min(WINDOW_BYTES);
            let (mut one, mut other) = (vec![0; to_usize(count)], vec![0; to_usize(count)]);
            self.judged(0, sides[0].part.store, a.copy(at, 0, count, &mut one))?;
            self.judged(1, sides[1].part.store, b.copy(at, 0, count, &mut other))?;
            found.compare(element, false, at / element.width_bytes(), &one, &other);
            at += count;
        }
        Ok(())
    }

    /// Two files: their bytes, and the datasets that they have.
    fn files(&self, sides: [Side<'a>; 2], found: &mut Found) -> Result<()> {
        let mut contents = Vec::new();
        let mut lengths = [0; 2];
        for (at, side) in sides.iter().enumerate() {
            let Some(file) = &side.part.descriptor.file else {
                return Ok(());
            };
            lengths[at] = file.length_bytes;
            contents.push(StoredContent::new(side.reader, file, side.part.stream));
        }
        let [a, b] = &*contents else {
            return Ok(());
        };
        let stores = [sides[0].part.store, sides[1].part.store];
        let pair = Pair {
            diff: self,
            stores,
            sides: [a, b],
        };
        let whole = pair.bytes(lengths)?;
        self.note(found, None, ("file".to_owned(), Unit::Bytes, whole));
        let structures = (describe(a), describe(b));
        let (Some(one), Some(other)) = structures else {
            return Ok(());
        };
        for dataset in &other.datasets {
            let before = one
                .datasets
                .iter()
                .find(|before| before.path == dataset.path);
            let (unit, outcome) = match before {
                None => (Unit::Elements, Outcome::New),
                Some(before) => pair.dataset(before, dataset)?,
            };
            let path = Some(dataset.path.clone());
            self.note(found, path, (dataset.item.name.clone(), unit, outcome));
        }
        for before in &one.datasets {
            if !other
                .datasets
                .iter()
                .any(|dataset| dataset.path == before.path)
            {
                let path = Some(before.path.clone());
                let gone = (before.item.name.clone(), Unit::Elements, Outcome::Gone);
                self.note(found, path, gone);
            }
        }
        Ok(())
    }
}

fn is_same_array(a: &StoredPart, b: &StoredPart) -> bool {
    let (a, b) = (&a.descriptor, &b.descriptor);
    (a.element, &a.shape, &a.slab) == (b.element, &b.shape, &b.slab)
}

fn kind_of(part: &StoredPart) -> String {
    match part.descriptor.file {
        Some(_) => "file".to_owned(),
        None => part.descriptor.element.name().to_owned(),
    }
}

fn unit_of(part: &StoredPart) -> Unit {
    match part.descriptor.file {
        Some(_) => Unit::Bytes,
        None => Unit::Elements,
    }
}

/// Two files.
struct Pair<'a> {
    diff: &'a Diff<'a>,
    stores: [usize; 2],
    sides: [&'a StoredContent<'a>; 2],
}

impl Pair<'_> {
    fn read(&self, side: usize, offset: u64, length: u64) -> Result<Vec<u8>> {
        let mut buffer = vec![0; to_usize(length)];
        let read = self.sides[side].read(offset, &mut buffer);
        self.diff.judged(side, self.stores[side], read)?;
        Ok(buffer)
    }

    /// Bytes at the same places; those that only one of them has differ.
    fn bytes(&self, [one, other]: [u64; 2]) -> Result<Outcome> {
        let mut found = Differences::new(one.max(other));
        let mut at = 0;
        while at < one.max(other) {
            let count = (one.max(other) - at).min(WINDOW_BYTES);
            let shared = one.min(other).saturating_sub(at).min(count);
            let (a, b) = (self.read(0, at, shared)?, self.read(1, at, shared)?);
            found.compare(ElementType::Bytes, false, at, &a, &b);
            let rest = to_usize(count - shared);
            found.compare(
                ElementType::Bytes,
                false,
                at + shared,
                &vec![0; rest],
                &vec![1; rest],
            );
            at += count;
        }
        Ok(Outcome::Compared(found))
    }

    fn dataset(&self, before: &Dataset, now: &Dataset) -> Result<(Unit, Outcome)> {
        let form = |one: &Dataset| (one.item.clone(), one.shape.clone(), one.chunk_shape.clone());
        if form(before) != form(now) || before.filters != now.filters {
            return Ok((Unit::Elements, Outcome::Reshaped));
        }
        if !now.filters.is_empty() {
            return self.packed(before, now);
        }
        let element = now.item.element;
        let width = element.width_bytes();
        let mut found = Differences::new(now.bytes().unwrap_or(0) / width);
        if now.chunk_shape.is_empty() {
            // What was never written counts as zeros.
            let (a, b) = (before.extents.first(), now.extents.first());
            let length = a.or(b).map_or(0, |extent| extent.length);
            let mut at = 0;
            while at < length {
                let count = (length - at).min(WINDOW_BYTES);
                let read = |side, extent: Option<&Extent>| match extent {
                    Some(extent) => self.read(side, extent.offset + at, count),
                    None => Ok(vec![0; to_usize(count)]),
                };
                let (one, other) = (read(0, a)?, read(1, b)?);
                found.compare(element, now.item.big_endian, at / width, &one, &other);
                at += count;
            }
            if length == 0 {
                found.note_equal(0, now.bytes().unwrap_or(0) / width);
            }
            return Ok((Unit::Elements, Outcome::Compared(found)));
        }
        let places = chunks(before);
        for (number, extent) in now.extents.iter().enumerate() {
            let other = self.read(1, extent.offset, extent.length)?;
            let one = match places.get(now.chunk(number)) {
                Some(&offset) => self.read(0, offset, extent.length)?,
                None => vec![0; other.len()],
            };
            rows(now, number, &mut |at, bytes| {
                let (one, other) = (&one[bytes.clone()], &other[bytes]);
                found.compare(element, now.item.big_endian, at, one, other);
            });
        }
        Ok((Unit::Elements, Outcome::Compared(found)))
    }

    /// Chunks of a dataset that is filtered: equal, or not.
    fn packed(&self, before: &Dataset, now: &Dataset) -> Result<(Unit, Outcome)> {
        let mut of_before = BTreeMap::new();
        for (number, extent) in before.extents.iter().enumerate() {
            of_before.insert(before.chunk(number).to_vec(), *extent);
        }
        let mut all: Vec<(&[u64], usize)> = (0..now.extents.len())
            .map(|at| (now.chunk(at), at))
            .collect();
        all.sort_unstable();
        let mut found = Differences::new(to_u64(all.len()));
        for (place, (chunk, number)) in all.iter().enumerate() {
            let extent = now.extents[*number];
            let old = of_before
                .get(*chunk)
                .filter(|old| old.length == extent.length);
            let is_same = match old {
                Some(old) if extent.length < 1 << 30 => {
                    self.read(0, old.offset, old.length)?
                        == self.read(1, extent.offset, extent.length)?
                }
                _ => false,
            };
            let mark = [u8::from(!is_same)];
            found.compare(ElementType::Bytes, false, to_u64(place), &[0], &mark);
        }
        Ok((Unit::Chunks, Outcome::Compared(found)))
    }
}

/// Where the chunks of a dataset are, by where they begin in it.
fn chunks(dataset: &Dataset) -> BTreeMap<Vec<u64>, u64> {
    let extents = dataset.extents.iter().enumerate();
    extents
        .map(|(at, extent)| (dataset.chunk(at).to_vec(), extent.offset))
        .collect()
}

/// The rows of a chunk that lie in its dataset: which element of that each begins with, and its bytes in the chunk.
fn rows(dataset: &Dataset, number: usize, visit: &mut dyn FnMut(u64, std::ops::Range<usize>)) {
    let (shape, chunk) = (&dataset.shape, &dataset.chunk_shape);
    let Some(last) = shape.len().checked_sub(1) else {
        return;
    };
    let start = dataset.chunk(number);
    let width = dataset.item.bytes;
    let inner = dataset.item.bytes / dataset.item.element.width_bytes();
    let count: u64 = chunk[..last].iter().product();
    for row in 0..count {
        let (mut left, mut place, mut step, mut inside) = (row, 0, shape[last], true);
        for dimension in (0..last).rev() {
            let coordinate = start[dimension] + left % chunk[dimension];
            left /= chunk[dimension];
            inside &= coordinate < shape[dimension];
            place += coordinate * step;
            step *= shape[dimension];
        }
        if inside {
            let items = chunk[last].min(shape[last] - start[last]);
            let first = to_usize(row * chunk[last] * width);
            let bytes = first..first + to_usize(items * width);
            visit((place + start[last]) * inner, bytes);
        }
    }
}

/// The share of each piece of an array that differs, for a picture.
pub fn shares(found: &Differences) -> Vec<Option<f64>> {
    let share =
        |&(elements, changed): &(u64, u64)| (elements > 0).then(|| super::share(changed, elements));
    found.bins.iter().map(share).collect()
}

const _: () = assert!(WINDOW_BYTES.is_multiple_of(16));
