// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: where the chunks of a dataset are, whichever index has them.
//! In: the index, and the grid of chunks. Out: extents and coordinates, put into the dataset.
//! Invariants: no more than [`CHUNKS_MAX`] chunks; one that begins outside the dataset's shape is left out.

use crate::array;
use crate::btree2;
use crate::dataset::{Dataset, chunk_bytes, extent};
use crate::read::{Read, Reader, Stop, bytes_for};
use backstay_format::width::to_u64;

/// Chunks of a dataset that are looked at.
pub(crate) const CHUNKS_MAX: u64 = 1 << 20;
const HEIGHT_MAX: u8 = 32;

/// What has the addresses of chunks. The flag says that lengths are as wide as all lengths of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Index {
    /// A B-tree of the first kind.
    Tree(u64),
    /// There is one chunk, and its length where it is filtered.
    One(u64, Option<u64>),
    /// One behind the other.
    Computed(u64),
    Fixed(u64, bool),
    Extensible(u64, bool),
    /// A B-tree of the second kind.
    Second(u64, bool),
}

/// Chunks in rows and columns.
#[derive(Debug)]
pub(crate) struct Grid {
    /// Chunks in each dimension, as many as the dataset may grow to; no number where it has no bound.
    counts: Vec<Option<u64>>,
    /// Bytes of a chunk before filters.
    pub(crate) chunk_bytes: u64,
    pub(crate) is_filtered: bool,
    /// Bytes of the length of a chunk that is filtered.
    length_bytes: usize,
    lengths_of_file: usize,
}

/// A chunk: where it is, and its length where the index says so.
pub(crate) type Place = Option<(u64, Option<u64>)>;

impl Grid {
    pub(crate) fn new(reader: &Reader<'_>, dataset: &Dataset, most: &[u64]) -> Read<Self> {
        let chunk_bytes = chunk_bytes(dataset)?;
        let lengths_of_file = reader.widths.1;
        let unbounded = u64::MAX >> (64 - 8 * lengths_of_file);
        let pairs = most.iter().zip(&dataset.chunk_shape);
        let counts = pairs.map(|(&most, &chunk)| {
            let bounded = most != unbounded && most != u64::MAX;
            bounded.then(|| most.div_ceil(chunk))
        });
        Ok(Self {
            counts: counts.collect(),
            chunk_bytes,
            is_filtered: !dataset.filters.is_empty(),
            // One byte more than the length without filters takes.
            length_bytes: (bytes_for(chunk_bytes) + 1).min(8),
            lengths_of_file,
        })
    }

    /// Bytes of a length in an index.
    pub(crate) fn length_bytes(&self, is_wide: bool) -> usize {
        if is_wide {
            self.lengths_of_file
        } else {
            self.length_bytes
        }
    }

    /// Chunks where all dimensions are bounded.
    fn count(&self) -> Read<u64> {
        let mut counts = self.counts.iter();
        let count = counts.try_fold(1_u64, |product, &count| product.checked_mul(count?));
        count
            .filter(|&count| count <= CHUNKS_MAX)
            .ok_or(Stop("it has too many chunks"))
    }

    /// The chunk with number `at`, in chunks of each dimension.
    fn scaled(&self, mut at: u64) -> Vec<u64> {
        let mut scaled = vec![0; self.counts.len()];
        for (place, count) in scaled.iter_mut().zip(&self.counts).rev() {
            let count = count.unwrap_or(u64::MAX).max(1);
            (*place, at) = (at % count, at / count);
        }
        scaled
    }

    /// The same where the dimension without a bound counts as the first one.
    fn scaled_unbounded_first(&self, at: u64) -> Vec<u64> {
        let Some(open) = self.counts.iter().position(Option::is_none) else {
            return self.scaled(at);
        };
        let mut turned = Self {
            counts: self.counts.clone(),
            ..*self
        };
        let count = turned.counts.remove(open);
        turned.counts.insert(0, count);
        let mut scaled = turned.scaled(at);
        let first = scaled.remove(0);
        scaled.insert(open, first);
        scaled
    }
}

/// Puts the chunks that an index has into `dataset`.
pub(crate) fn list(
    reader: &Reader<'_>,
    index: &Index,
    grid: &Grid,
    dataset: &mut Dataset,
) -> Read<()> {
    let mut chunks = Chunks {
        reader,
        grid,
        dataset,
    };
    match *index {
        Index::Tree(address) => chunks.tree(address, None),
        Index::One(address, length) => {
            let scaled = vec![0; grid.counts.len()];
            chunks.add(&scaled, Some((address, length)))
        }
        Index::Computed(address) => {
            for at in 0..grid.count()? {
                let place = grid.chunk_bytes.checked_mul(at);
                let place = place.and_then(|place| place.checked_add(address));
                let place = place.ok_or(Stop("its values are outside the file"))?;
                chunks.add(&grid.scaled(at), Some((place, None)))?;
            }
            Ok(())
        }
        Index::Fixed(address, is_wide) => {
            grid.count()?;
            let found = array::fixed(reader, address, grid, is_wide)?;
            for (at, place) in found.into_iter().enumerate() {
                chunks.add(&grid.scaled(to_u64(at)), place)?;
            }
            Ok(())
        }
        Index::Extensible(address, is_wide) => {
            let found = array::extensible(reader, address, grid, is_wide)?;
            for (at, place) in found.into_iter().enumerate() {
                chunks.add(&grid.scaled_unbounded_first(to_u64(at)), place)?;
            }
            Ok(())
        }
        Index::Second(address, is_wide) => chunks.second(address, is_wide),
    }
}

struct Chunks<'a> {
    reader: &'a Reader<'a>,
    grid: &'a Grid,
    dataset: &'a mut Dataset,
}

impl Chunks<'_> {
    /// Adds a chunk, at `scaled` in chunks of each dimension.
    fn add(&mut self, scaled: &[u64], place: Place) -> Read<()> {
        let Some((address, length)) = place else {
            return Ok(());
        };
        let length = if self.grid.is_filtered {
            length.unwrap_or(self.grid.chunk_bytes)
        } else {
            self.grid.chunk_bytes
        };
        let mut start = Vec::with_capacity(scaled.len());
        let dimensions = scaled.iter().zip(&self.dataset.chunk_shape);
        for ((&at, &chunk), &extent) in dimensions.zip(&self.dataset.shape) {
            match at.checked_mul(chunk) {
                Some(first) if first < extent => start.push(first),
                // What the dataset was before it shrank.
                _ => return Ok(()),
            }
        }
        if to_u64(self.dataset.extents.len()) >= CHUNKS_MAX {
            return Err(Stop("it has too many chunks"));
        }
        let extent = extent(self.reader, address, length)?;
        self.dataset.extents.extend(extent);
        self.dataset.coordinates.extend(start);
        Ok(())
    }

    /// A node of a B-tree of the first kind.
    fn tree(&mut self, address: u64, height: Option<u8>) -> Read<()> {
        let reader = self.reader;
        let address_bytes = reader.widths.0;
        let rank = self.dataset.shape.len();
        let head = 8 + 2 * address_bytes;
        let key = 8 + 8 * (rank + 1);
        let bytes = reader.signed(address, head, b"TREE")?;
        let (kind, level) = (bytes[4], bytes[5]);
        let is_below = height.is_none_or(|height| height == level + 1) && level < HEIGHT_MAX;
        if kind != 1 || !is_below {
            return Err(Stop("the tree of its chunks is damaged"));
        }
        let count = usize::from(u16::from_le_bytes([bytes[6], bytes[7]]));
        let bytes = reader.bytes(address, head + count * (key + address_bytes))?;
        let mut fields = reader.fields(&bytes);
        fields.skip(head)?;
        for _ in 0..count {
            let length = u64::from(fields.u32()?);
            fields.skip(4)?;
            let mut scaled = Vec::with_capacity(rank);
            for dimension in 0..rank {
                let first = fields.number(8)?;
                let chunk = self.dataset.chunk_shape[dimension];
                if !first.is_multiple_of(chunk) {
                    return Err(Stop("a chunk begins within another"));
                }
                scaled.push(first / chunk);
            }
            fields.skip(8)?;
            let child = fields.place()?;
            if level == 0 {
                self.add(&scaled, Some((child, Some(length))))?;
            } else {
                self.tree(child, Some(level))?;
            }
        }
        Ok(())
    }

    /// A B-tree of the second kind.
    fn second(&mut self, address: u64, is_wide: bool) -> Read<()> {
        let (kind, records) = btree2::records(self.reader, address)?;
        if !matches!(kind, 10 | 11) {
            return Err(Stop("the tree of its chunks is damaged"));
        }
        let rank = self.dataset.shape.len();
        for record in records {
            let mut fields = self.reader.fields(&record);
            let place = fields.address()?;
            let length = if kind == 11 {
                let length = fields.number(self.grid.length_bytes(is_wide))?;
                fields.skip(4)?;
                Some(length)
            } else {
                None
            };
            let scaled = (0..rank).map(|_| fields.number(8));
            let scaled = scaled.collect::<Read<Vec<u64>>>()?;
            self.add(&scaled, place.map(|place| (place, length)))?;
        }
        Ok(())
    }
}
