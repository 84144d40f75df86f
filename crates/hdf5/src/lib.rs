// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the structure of HDF5 files, and so of netCDF-4 ones, and of numpy's: which dataset's values stand where in the file.
//! In: the bytes of a file, as they are asked for. Out: datasets: path, type, shape, layout, filters, extents.
//! Invariants: it reads, and nothing else; every number is checked before it is trusted; work, memory and depth are
//! bounded, whatever the bytes say; what is not understood is left out and named, so that whoever stores the file
//! stores those bytes as bytes. Nothing is decoded.
//! Format: HDF5 File Format Specification, superblocks 0 to 3
//! ([decision 0015](../../../docs/decisions/0015-hdf5-reader.md)).
//!
//! | file | what it does |
//! |---|---|
//! | `read` | the file's bytes, in bounds |
//! | `superblock` | where the root group is |
//! | `header` | objects and their messages |
//! | `group` | the links of a group; `heap`, `btree2`: what they are kept in |
//! | `dataset` | what a dataset is; `datatype`: what its items are |
//! | `chunks` | where chunks are; `array`: indexes that are arrays |
//! | `npy` | files of numpy, which have one array |
//! | `plain` | which stretches of the file are numbers |

mod array;
mod btree2;
mod chunks;
mod dataset;
mod datatype;
mod group;
mod header;
mod heap;
mod npy;
mod plain;
mod read;
mod superblock;

pub use dataset::{Dataset, Extent, Layout};
pub use datatype::ItemType;
pub use plain::{Plain, plain};
pub use read::Source;

use read::{Read, Reader, Stop};
use std::collections::BTreeSet;

/// Objects of a file that are looked at.
const OBJECTS_MAX: usize = 1 << 16;
/// Groups in groups.
const DEPTH_MAX: u32 = 64;
/// Bytes of a path.
const PATH_BYTES_MAX: usize = 1024;
/// Reasons that are kept.
const LEFT_OUT_MAX: usize = 64;

/// Kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// HDF5, netCDF-4 among it.
    Hdf5,
    /// numpy's.
    Npy,
}

impl Format {
    /// Its name in listings and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hdf5 => "HDF5",
            Self::Npy => "npy",
        }
    }
}

/// What a file has in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Structure {
    /// What kind of file it is.
    pub format: Format,
    /// The version of its superblock, or of its header.
    pub version: u8,
    /// Its datasets, in the order of their paths; one that has several under the first.
    pub datasets: Vec<Dataset>,
    /// What was not understood: where, and why; the first few.
    pub left_out: Vec<(String, &'static str)>,
}

/// The structure of a file; `None` if it is of no known kind.
pub fn describe(source: &dyn Source) -> Option<Structure> {
    let mut reader = Reader::new(source);
    if let Some(version) = npy::version(&reader) {
        let found = npy::dataset(&reader, version);
        let why = found.as_ref().err().map(|&Stop(why)| ("/".to_owned(), why));
        return Some(Structure {
            format: Format::Npy,
            version,
            datasets: found.into_iter().collect(),
            left_out: why.into_iter().collect(),
        });
    }
    let place = superblock::find(&reader)?;
    let mut walk = Walk {
        seen: BTreeSet::new(),
        found: Structure {
            format: Format::Hdf5,
            version: 0,
            datasets: Vec::new(),
            left_out: Vec::new(),
        },
    };
    match superblock::open(&mut reader, place) {
        Ok((version, root)) => {
            walk.found.version = version;
            walk.object(&reader, root, "", 0);
        }
        Err(stop) => walk.leave_out("", stop),
    }
    Some(walk.found)
}

struct Walk {
    seen: BTreeSet<u64>,
    found: Structure,
}

impl Walk {
    fn leave_out(&mut self, path: &str, Stop(why): Stop) {
        if self.found.left_out.len() < LEFT_OUT_MAX {
            self.found.left_out.push((format!("/{path}"), why));
        }
    }

    fn object(&mut self, reader: &Reader<'_>, address: u64, path: &str, depth: u32) {
        if let Err(stop) = self.try_object(reader, address, path, depth) {
            self.leave_out(path, stop);
        }
    }

    fn try_object(
        &mut self,
        reader: &Reader<'_>,
        address: u64,
        path: &str,
        depth: u32,
    ) -> Read<()> {
        if depth > DEPTH_MAX || path.len() > PATH_BYTES_MAX {
            return Err(Stop("it is too deep in the file"));
        }
        if !self.seen.insert(address) {
            return Ok(());
        }
        if self.seen.len() > OBJECTS_MAX {
            return Err(Stop("the file has too many objects"));
        }
        let messages = header::messages(reader, address)?;
        if header::find(&messages, header::LAYOUT).is_some() {
            let found = dataset::dataset(reader, path, &messages)?;
            self.found.datasets.push(found);
            return Ok(());
        }
        for (name, child) in group::links(reader, &messages)? {
            let name = String::from_utf8_lossy(&name);
            let below = match path {
                "" => name.into_owned(),
                path => format!("{path}/{name}"),
            };
            self.object(reader, child, &below, depth + 1);
        }
        Ok(())
    }
}
