// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: files of ranks as a source of one drain: looked at, hashed in blocks, and read again when their blocks are
//! gathered.
//! In from: `import` (paths). Out to: `sources`.
//! Invariants: what is handed on has the digest that the file's blocks had when they were hashed; a file that changes
//! in between is an error; so many files are open at a time.

use super::changes::Changed;
use super::lock;
use super::sources::Wanted;
use super::tree::ArchiveTree;
use crate::Payload;
use crate::typed;
use backstay_base::clock::{Pulse, unix_ns};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::fanout;
use backstay_format::drain::Offered;
use backstay_format::width::{index, to_u64, to_usize};
use backstay_format::{
    Address, BlockRef, CheckpointId, Digest, ElementType, RankEntry, RankRoot, StoreId, StreamRoot,
    VariableDescriptor,
};
use backstay_hdf5::{Structure, describe};
use backstay_store::file::{FileSource, StoredAs, await_tick};
use backstay_store::region::Source;
use backstay_store::revision::ReadPart;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Files that are open while blocks are gathered.
const OPEN_MAX: usize = 128;
/// Blocks that are read at once while a file is hashed.
const READ_BYTES: usize = 4 << 20;

/// A file that is imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportFile {
    /// The variable that it becomes: files of one variable of several ranks are merged.
    pub variable: String,
    /// Where it is.
    pub path: PathBuf,
    /// The name that it gets back, below a folder.
    pub name: Vec<u8>,
}

/// A file with its blocks.
#[derive(Debug)]
struct SetFile {
    path: PathBuf,
    descriptor: VariableDescriptor,
    source: FileSource,
    structure: Option<Structure>,
    stream: StreamRoot,
    digests: Vec<Digest>,
    /// The number of its first block among those of all files, from 1.
    first: u64,
}

/// The files of all ranks.
#[derive(Debug)]
pub(super) struct FileSet {
    ranks: Vec<Vec<SetFile>>,
    offered: Offered,
    /// For each file its first block's number, and its place.
    starts: Vec<(u64, usize, usize)>,
    opened: Mutex<VecDeque<(usize, usize)>>,
}

impl FileSet {
    /// Looks at the files of all ranks, and hashes them in `threads`; `looked` counts their bytes.
    pub(super) fn look(
        ranks: &[Vec<ImportFile>],
        block_bytes: u32,
        threads: usize,
        (looked, cancel): (&AtomicU64, &AtomicBool),
    ) -> Result<Self> {
        let mut found: Vec<Vec<SetFile>> = Vec::with_capacity(ranks.len());
        for files in ranks {
            let looks = fanout::all(files, threads, |_, file| look(file, block_bytes))?;
            let mut looks: Vec<SetFile> = looks;
            looks.sort_by(|one, other| one.descriptor.name.cmp(&other.descriptor.name));
            found.push(looks);
        }
        await_tick(found.iter().flatten().map(|file| &file.source));
        let mut all: Vec<&mut SetFile> = found.iter_mut().flatten().collect();
        let digests = fanout::all(&all, threads, |_, file| hash(file, looked, cancel))?;
        let mut next = 1;
        for (file, digests) in all.iter_mut().zip(digests) {
            file.first = next;
            next += to_u64(digests.len());
            file.digests = digests;
        }
        let mut starts = Vec::new();
        for (rank, files) in found.iter().enumerate() {
            starts.extend(
                files
                    .iter()
                    .enumerate()
                    .map(|(at, file)| (file.first, rank, at)),
            );
        }
        let entry = |rank: usize| RankEntry {
            rank: u32::try_from(rank).unwrap_or(u32::MAX),
            root: BlockRef::NONE,
        };
        let offered = Offered {
            store: StoreId::default(),
            length_bytes: 0,
            path: String::new(),
            host: String::new(),
            world_size: u32::try_from(found.len()).unwrap_or(u32::MAX),
            committed_unix_ns: unix_ns(),
            ranks: (0..found.len()).map(entry).collect(),
        };
        Ok(Self {
            ranks: found,
            offered,
            starts,
            opened: Mutex::default(),
        })
    }

    pub(super) fn offered(&self) -> &Offered {
        &self.offered
    }

    /// Bytes of all files, as they are stored.
    pub(super) fn bytes(&self) -> u64 {
        let files = self.ranks.iter().flatten();
        files.map(|file| file.stream.length_bytes).sum()
    }

    /// Datasets that are recognized.
    pub(super) fn datasets(&self) -> u64 {
        let found = self
            .ranks
            .iter()
            .flatten()
            .filter_map(|file| file.structure.as_ref());
        found.map(|found| to_u64(found.datasets.len())).sum()
    }

    /// Rank by rank the digests of the blocks of its variables, in the order of their names.
    pub(super) fn digests(&self) -> impl Iterator<Item = (u32, Vec<&[Digest]>)> {
        self.ranks.iter().enumerate().map(|(rank, files)| {
            let rank = u32::try_from(rank).unwrap_or(u32::MAX);
            (rank, files.iter().map(|file| &*file.digests).collect())
        })
    }

    fn file(&self, rank: u32, place: usize) -> Option<&SetFile> {
        self.ranks.get(index(rank))?.get(place)
    }

    pub(super) fn structure(&self, rank: u32, place: usize) -> Option<&Structure> {
        self.file(rank, place)?.structure.as_ref()
    }

    pub(super) fn part(&self, rank: u32) -> Result<ReadPart> {
        let none = || Error::new(ErrorKind::Internal, "a rank without files");
        let files = self.ranks.get(index(rank)).ok_or_else(none)?;
        let bytes = |file: &SetFile| file.stream.length_bytes;
        Ok(ReadPart {
            root: RankRoot {
                rank,
                world_size: self.offered.world_size,
                born: CheckpointId::default(),
                variable_count: u32::try_from(files.len()).unwrap_or(u32::MAX),
                bytes_total: files.iter().map(bytes).sum(),
                descriptors: StreamRoot::empty(1),
                table: StreamRoot::empty(1),
            },
            descriptors: files.iter().map(|file| file.descriptor.clone()).collect(),
            streams: files.iter().map(|file| file.stream).collect(),
        })
    }

    /// The blocks of a file that `tree` does not have.
    pub(super) fn changed(&self, rank: u32, place: usize, tree: &ArchiveTree) -> Vec<Changed> {
        let Some(file) = self.file(rank, place) else {
            return Vec::new();
        };
        let same_size = tree.root().block_bytes == file.stream.block_bytes;
        let mut changed = Vec::new();
        for (at, &digest) in file.digests.iter().enumerate() {
            let length = file.stream.block_length(at);
            let stands = tree.block(at, length).filter(|_| same_size);
            if stands.is_none_or(|old| old.digest != digest) {
                let address = Address(file.first + to_u64(at));
                let block = BlockRef { address, digest };
                changed.push(Changed { at, block, length });
            }
        }
        changed
    }

    pub(super) fn fill(
        &self,
        wanted: &[Wanted],
        segments: &[Mutex<Payload>],
        pulse: &Pulse,
    ) -> Result<()> {
        for one in wanted {
            let number = one.block.address.0;
            let at = self.starts.partition_point(|(first, ..)| *first <= number);
            // Files without a block begin where the next one does.
            let Some(&(first, rank, place)) = at.checked_sub(1).and_then(|at| self.starts.get(at))
            else {
                return Err(Error::new(ErrorKind::Internal, "a block of no file"));
            };
            let file = &self.ranks[rank][place];
            self.open(rank, place)?;
            let mut segment = lock(&segments[one.segment]);
            let into = &mut segment[one.offset..one.offset + one.length];
            let start = (number - first) * u64::from(file.stream.block_bytes);
            file.source.copy_out(start, into);
            if Digest::of(into) != one.block.digest {
                return Err(changed_since(file));
            }
            pulse.beat();
        }
        Ok(())
    }

    /// Opens a file, and closes those that were opened long ago.
    fn open(&self, rank: usize, place: usize) -> Result<()> {
        let mut opened = lock(&self.opened);
        if opened.contains(&(rank, place)) {
            return Ok(());
        }
        if opened.len() >= OPEN_MAX
            && let Some((rank, place)) = opened.pop_front()
        {
            self.ranks[rank][place].source.end()?;
        }
        self.ranks[rank][place].source.begin()?;
        opened.push_back((rank, place));
        Ok(())
    }

    /// No file is open any more; an error if one of them changed.
    pub(super) fn close(&self) -> Result<()> {
        let opened = std::mem::take(&mut *lock(&self.opened));
        for (rank, place) in opened {
            self.ranks[rank][place].source.end()?;
        }
        Ok(())
    }
}

/// The error of a file whose bytes are not those that were hashed.
fn changed_since(file: &SetFile) -> Error {
    let reason = file.source.end().err();
    let context = format!(
        "{}: it is not what it was when it was looked at: nobody may write files while they are imported",
        file.path.display()
    );
    reason.unwrap_or_else(|| Error::new(ErrorKind::InvalidArgument, context))
}

/// Looks at a file: what it is, and in which order its bytes are stored.
fn look(file: &ImportFile, block_bytes: u32) -> Result<SetFile> {
    let stored_as = StoredAs {
        path: file.name.clone(),
        routed: true,
    };
    let mut source = FileSource::look(&file.path, stored_as, block_bytes, None)?;
    let structure = structure_of(&file.path);
    let length = source.stored().length_bytes;
    let stretches = structure
        .as_ref()
        .and_then(|found| typed::aligned(found, length, block_bytes));
    if let Some(stretches) = stretches {
        source = source.in_order(stretches);
    }
    let length_bytes = source.length_bytes();
    let descriptor = VariableDescriptor {
        name: file.variable.clone(),
        element: ElementType::Bytes,
        shape: vec![length_bytes],
        slab: None,
        file: Some(source.stored().clone()),
    };
    let at = |error| Error::unwritable(file.path.display().to_string(), error);
    descriptor.validate().map_err(at)?;
    Ok(SetFile {
        path: file.path.clone(),
        descriptor,
        source,
        structure,
        stream: StreamRoot {
            length_bytes,
            height: StreamRoot::height_for(length_bytes, block_bytes),
            ..StreamRoot::empty(block_bytes)
        },
        digests: Vec::new(),
        first: 0,
    })
}

fn structure_of(path: &Path) -> Option<Structure> {
    let file = std::fs::File::open(path).ok()?;
    describe(&file)
}

/// The digests of a file's blocks.
fn hash(file: &SetFile, looked: &AtomicU64, cancel: &AtomicBool) -> Result<Vec<Digest>> {
    file.source.begin()?;
    let block_bytes = index(file.stream.block_bytes);
    let mut buffer = vec![0; (READ_BYTES / block_bytes).max(1) * block_bytes];
    let mut digests = Vec::with_capacity(file.stream.block_count());
    let mut at = 0;
    while at < file.stream.length_bytes {
        if cancel.load(Ordering::Relaxed) {
            return Err(Error::new(
                ErrorKind::Timeout,
                "the import was told to stop",
            ));
        }
        let left = to_usize(file.stream.length_bytes - at);
        let some = buffer.len().min(left);
        let bytes = &mut buffer[..some];
        file.source.copy_out(at, bytes);
        digests.extend(bytes.chunks(block_bytes).map(Digest::of));
        at += to_u64(some);
        looked.fetch_add(to_u64(some), Ordering::Relaxed);
    }
    file.source.end()?;
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u32 = 4096;

    fn set(files: &[(&str, &Path)]) -> Result<FileSet> {
        let rank = |(name, path): &(&str, &Path)| {
            vec![ImportFile {
                variable: "file".to_owned(),
                path: path.to_path_buf(),
                name: name.as_bytes().to_vec(),
            }]
        };
        let ranks: Vec<Vec<ImportFile>> = files.iter().map(rank).collect();
        let watched = (&AtomicU64::new(0), &AtomicBool::new(false));
        FileSet::look(&ranks, BLOCK, 2, watched)
    }

    /// All blocks of a rank's file, as a segment has them.
    fn read(set: &FileSet, rank: u32) -> Result<Vec<u8>> {
        let mut end = 0;
        let wanted = set
            .changed(rank, 0, &ArchiveTree::empty(BLOCK))
            .into_iter()
            .map(|one| {
                let offset = end;
                end += one.length;
                Wanted {
                    block: one.block,
                    length: one.length,
                    segment: 0,
                    offset,
                }
            });
        let wanted: Vec<Wanted> = wanted.collect();
        let segments = [Mutex::new(Payload::from(vec![0; end]))];
        set.fill(&wanted, &segments, &Pulse::default())?;
        Ok(lock(&segments[0]).to_vec())
    }

    #[test]
    fn blocks_are_those_of_the_file_that_was_hashed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let contents = [vec![1; 10_000], Vec::new(), vec![3; 20_000]];
        for (at, content) in contents.iter().enumerate() {
            std::fs::write(path(&at.to_string()), content).unwrap();
        }
        let paths = ["0", "1", "2"].map(path);
        let files: Vec<(&str, &Path)> = paths.iter().map(|path| ("name", &**path)).collect();
        let looked = set(&files).unwrap();
        assert_eq!((looked.offered().world_size, looked.bytes()), (3, 30_000));
        for (rank, content) in (0..).zip(&contents) {
            assert_eq!(read(&looked, rank).unwrap(), *content);
        }
        looked.close().unwrap();
        // Other bytes of the same length, and a file that is gone: neither is handed on.
        std::fs::write(&paths[0], vec![2; 10_000]).unwrap();
        std::fs::remove_file(&paths[2]).unwrap();
        for rank in [0, 2] {
            let error = read(&looked, rank).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        assert_eq!(read(&looked, 1).unwrap(), Vec::<u8>::new());
    }

    #[test]
    fn what_is_no_file_is_refused_and_a_stopped_look_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, b"bytes").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let text = set(&[("name", &link)]).unwrap_err().to_string();
        assert!(text.contains("symbolic link"), "{text}");
        let rank = ImportFile {
            variable: "file".to_owned(),
            path: file,
            name: b"name".to_vec(),
        };
        let watched = (&AtomicU64::new(0), &AtomicBool::new(true));
        let stopped = FileSet::look(&[vec![rank]], BLOCK, 1, watched);
        assert!(stopped.unwrap_err().to_string().contains("told to stop"));
    }
}
