// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what a dataset is, from the messages of its object.
//! In: the messages. Out: type, shape, layout, filters, and where its values are.
//! Invariants: every extent lies in the file; of values that are not filtered as many bytes as their shape says.

use crate::chunks::{self, Grid, Index};
use crate::datatype::{self, ItemType};
use crate::header::{DATASPACE, DATATYPE, EXTERNAL, FILTERS, LAYOUT, Message, find};
use crate::read::{Fields, Read, Reader, Stop};
use backstay_format::limits::DIMENSIONS_MAX;
use backstay_format::width::{to_u64, to_usize};

/// How the values of a dataset are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// In the dataset's header.
    Compact,
    /// In one piece.
    Contiguous,
    /// In chunks of one shape.
    Chunked,
    /// In other files, or as a view of other datasets.
    Elsewhere,
}

impl Layout {
    /// Its name in listings and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Contiguous => "contiguous",
            Self::Chunked => "chunked",
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// A piece of a file that has values of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins in the file.
    pub offset: u64,
    /// Its bytes, as they stand in the file.
    pub length: u64,
}

/// A dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Its path in the file, without a `/` in front.
    pub path: String,
    /// What its items are.
    pub item: ItemType,
    /// Its shape in items; empty of a scalar.
    pub shape: Vec<u64>,
    /// How its values are laid out.
    pub layout: Layout,
    /// The shape of its chunks; empty where it has none.
    pub chunk_shape: Vec<u64>,
    /// The numbers of its filters, in the order in which they were applied.
    pub filters: Vec<u16>,
    /// Where its values are.
    pub extents: Vec<Extent>,
    /// Of each chunk in `extents` the item that it begins with, one number a dimension.
    pub coordinates: Vec<u64>,
}

impl Dataset {
    /// Items, if their number and their bytes have any.
    pub fn item_count(&self) -> Option<u64> {
        let mut extents = self.shape.iter();
        extents.try_fold(1_u64, |product, &extent| product.checked_mul(extent))
    }

    /// Bytes of all its items, as a program has them.
    pub fn bytes(&self) -> Option<u64> {
        self.item_count()?.checked_mul(self.item.bytes)
    }

    /// Bytes that its values take in the file.
    pub fn stored_bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.length).sum()
    }

    /// Where chunk `at` of its extents begins, in items.
    pub fn chunk(&self, at: usize) -> &[u64] {
        let rank = self.shape.len();
        let start = at.saturating_mul(rank);
        self.coordinates
            .get(start..start + rank)
            .unwrap_or_default()
    }
}

/// Shape and the largest shape.
struct Space {
    shape: Vec<u64>,
    most: Vec<u64>,
}

/// What a layout message says.
struct Laid {
    layout: Layout,
    /// Where its bytes are, and how many where it says so.
    place: Option<(u64, Option<u64>)>,
    chunk_shape: Vec<u64>,
    index: Option<Index>,
}

/// The dataset that `messages` describe, at `path`.
pub(crate) fn dataset(reader: &Reader<'_>, path: &str, messages: &[Message]) -> Read<Dataset> {
    let missing = |kind| find(messages, kind).ok_or(Stop("a message is missing"));
    let space = space(reader, &missing(DATASPACE)?.resolved(reader)?)?;
    let item = datatype::item_type(reader, &missing(DATATYPE)?.resolved(reader)?)?;
    let filters = match find(messages, FILTERS) {
        Some(message) => filters(reader, &message.resolved(reader)?)?,
        None => Vec::new(),
    };
    let mut laid = laid(reader, missing(LAYOUT)?, space.shape.len())?;
    if find(messages, EXTERNAL).is_some() {
        (laid.layout, laid.place) = (Layout::Elsewhere, None);
    }
    let mut found = Dataset {
        path: path.to_owned(),
        item,
        shape: space.shape,
        layout: laid.layout,
        chunk_shape: laid.chunk_shape,
        filters,
        extents: Vec::new(),
        coordinates: Vec::new(),
    };
    let Some(bytes) = found.bytes() else {
        return Err(Stop("it has more values than can be counted"));
    };
    if let Some((address, length)) = laid.place {
        let length = length.unwrap_or(bytes);
        if length < bytes {
            return Err(Stop("its values have less room than they need"));
        }
        let extent = extent(reader, address, bytes)?;
        found.extents.extend(extent.filter(|_| bytes > 0));
    }
    if let Some(index) = laid.index {
        let grid = Grid::new(reader, &found, &space.most)?;
        chunks::list(reader, &index, &grid, &mut found)?;
    }
    Ok(found)
}

/// A piece at `address`, where it lies in the file.
pub(crate) fn extent(reader: &Reader<'_>, address: u64, length: u64) -> Read<Option<Extent>> {
    let end = address.checked_add(length);
    if end.is_none_or(|end| end > reader.length()) {
        return Err(Stop("its values are outside the file"));
    }
    let offset = reader.base + address;
    Ok(Some(Extent { offset, length }))
}

fn space(reader: &Reader<'_>, bytes: &[u8]) -> Read<Space> {
    let mut fields = reader.fields(bytes);
    let (version, rank, flags) = (fields.u8()?, usize::from(fields.u8()?), fields.u8()?);
    let kind = match version {
        1 => {
            fields.skip(5)?;
            1
        }
        2 => fields.u8()?,
        _ => return Err(Stop("its shape is of no known version")),
    };
    if kind > 1 {
        return Err(Stop("it has no values"));
    }
    if rank > DIMENSIONS_MAX {
        return Err(Stop("it has too many dimensions"));
    }
    let mut extents = || {
        (0..rank)
            .map(|_| fields.length())
            .collect::<Read<Vec<u64>>>()
    };
    let shape = extents()?;
    let most = if flags & 1 == 0 {
        shape.clone()
    } else {
        extents()?
    };
    Ok(Space { shape, most })
}

fn filters(reader: &Reader<'_>, bytes: &[u8]) -> Read<Vec<u16>> {
    let mut fields = reader.fields(bytes);
    let (version, count) = (fields.u8()?, fields.u8()?);
    match version {
        1 => fields.skip(6)?,
        2 => {}
        _ => return Err(Stop("its filters are of no known version")),
    }
    let mut found = Vec::new();
    for _ in 0..count {
        let id = fields.u16()?;
        let name = if version == 1 || id >= 256 {
            usize::from(fields.u16()?)
        } else {
            0
        };
        fields.skip(2)?;
        let values = usize::from(fields.u16()?);
        fields.skip(if version == 1 {
            name.next_multiple_of(8)
        } else {
            name
        })?;
        fields.skip(4 * values)?;
        if version == 1 && values % 2 == 1 {
            fields.skip(4)?;
        }
        found.push(id);
    }
    Ok(found)
}

fn laid(reader: &Reader<'_>, message: &Message, rank: usize) -> Read<Laid> {
    let mut fields = reader.fields(&message.bytes);
    let version = fields.u8()?;
    match version {
        1 | 2 => laid_first(fields, message, rank),
        3..=5 => match fields.u8()? {
            0 => {
                let length = u64::from(fields.u16()?);
                let address = message.address + to_u64(fields.at());
                Ok(plain(Layout::Compact, Some((address, Some(length)))))
            }
            1 => {
                let address = fields.address()?;
                let length = fields.length()?;
                let place = address.map(|address| (address, Some(length)));
                Ok(plain(Layout::Contiguous, place))
            }
            2 if version == 3 => {
                let dimensions = usize::from(fields.u8()?);
                let tree = fields.address()?;
                let chunk_shape = chunk_shape(&mut fields, dimensions, rank, 4)?;
                Ok(chunked(chunk_shape, tree.map(Index::Tree)))
            }
            2 => laid_chunks(fields, version, rank),
            3 => Ok(plain(Layout::Elsewhere, None)),
            _ => Err(Stop("its layout is not known")),
        },
        _ => Err(Stop("its layout is of no known version")),
    }
}

fn plain(layout: Layout, place: Option<(u64, Option<u64>)>) -> Laid {
    Laid {
        layout,
        place,
        chunk_shape: Vec::new(),
        index: None,
    }
}

fn chunked(chunk_shape: Vec<u64>, index: Option<Index>) -> Laid {
    Laid {
        layout: Layout::Chunked,
        place: None,
        chunk_shape,
        index,
    }
}

/// A layout of the first versions.
fn laid_first(mut fields: Fields<'_>, message: &Message, rank: usize) -> Read<Laid> {
    let (dimensions, class) = (usize::from(fields.u8()?), fields.u8()?);
    fields.skip(5)?;
    match class {
        0 => {
            fields.skip(4 * dimensions)?;
            let length = u64::from(fields.u32()?);
            let address = message.address + to_u64(fields.at());
            Ok(plain(Layout::Compact, Some((address, Some(length)))))
        }
        1 => {
            let address = fields.address()?;
            Ok(plain(
                Layout::Contiguous,
                address.map(|address| (address, None)),
            ))
        }
        2 => {
            let tree = fields.address()?;
            let chunk_shape = chunk_shape(&mut fields, dimensions, rank, 4)?;
            Ok(chunked(chunk_shape, tree.map(Index::Tree)))
        }
        _ => Err(Stop("its layout is not known")),
    }
}

/// A chunked layout of the later versions.
fn laid_chunks(mut fields: Fields<'_>, version: u8, rank: usize) -> Read<Laid> {
    let flags = fields.u8()?;
    let dimensions = usize::from(fields.u8()?);
    let width = usize::from(fields.u8()?);
    let chunk_shape = chunk_shape(&mut fields, dimensions, rank, width)?;
    let is_wide = version > 4;
    let index = match fields.u8()? {
        1 => {
            let length = if flags & 2 == 0 {
                None
            } else {
                let length = fields.length()?;
                fields.skip(4)?;
                Some(length)
            };
            fields.address()?.map(|at| Index::One(at, length))
        }
        2 => fields.address()?.map(Index::Computed),
        3 => {
            fields.skip(1)?;
            fields.address()?.map(|at| Index::Fixed(at, is_wide))
        }
        4 => {
            fields.skip(5)?;
            fields.address()?.map(|at| Index::Extensible(at, is_wide))
        }
        5 => {
            fields.skip(6)?;
            fields.address()?.map(|at| Index::Second(at, is_wide))
        }
        _ => return Err(Stop("the index of its chunks is not known")),
    };
    Ok(chunked(chunk_shape, index))
}

/// The shape of chunks: the last number is of the bytes of an item.
fn chunk_shape(
    fields: &mut Fields<'_>,
    dimensions: usize,
    rank: usize,
    width: usize,
) -> Read<Vec<u64>> {
    if dimensions != rank + 1 {
        return Err(Stop("its chunks have another number of dimensions"));
    }
    let mut shape = Vec::with_capacity(rank);
    for _ in 0..rank {
        shape.push(fields.number(width)?);
    }
    fields.skip(width)?;
    if shape.contains(&0) {
        return Err(Stop("its chunks have no items"));
    }
    Ok(shape)
}

/// Bytes of a chunk without filters.
pub(crate) fn chunk_bytes(dataset: &Dataset) -> Read<u64> {
    let mut extents = dataset.chunk_shape.iter();
    let bytes = extents.try_fold(dataset.item.bytes, |product, &extent| {
        product.checked_mul(extent)
    });
    let bytes = bytes.filter(|&bytes| to_usize(bytes) < usize::MAX / 2);
    bytes.ok_or(Stop("its chunks are too large"))
}
