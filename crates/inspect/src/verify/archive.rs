// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: verifies archives: every copy of a catalog's state, what a store says of itself, and every
//! stored segment once, by its digest, its decoding, and the digest of each block in it.
//! In: opened archives. Out: findings that name file, segment, offset, and which checkpoints need it.
//! Invariants: a segment is read and decoded once; what refers to it is then compared, not read; damage of
//! a base is told of the base, with all that needs it.

use super::{Finding, Verifier};
use crate::{Archive, Stores};
use backstay_archive::catalog::is_half_made;
use backstay_archive::{ArchiveDevice, FileName, Folder, Place, catalog_file};
use backstay_base::error::{Error, Result};
use backstay_base::io::ReadAt;
use backstay_base::io::direct::AlignedBytes;
use backstay_format::geometry::{ROOT_BYTES, ROOT_OFFSETS, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use backstay_format::width::{index, to_usize};
use backstay_format::{
    ArchiveRoot, ArchiveSuperblock, CatalogState, CatalogSuperblock, CheckpointId, Digest,
    FormatError, SegmentId, SegmentPiece, TableEntry,
};
use backstay_store::compare::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

/// Most threads that read and decode.
const THREADS_MAX: usize = 8;

/// What verifying an archive's catalogs found.
#[derive(Debug, Clone, Default)]
pub struct VerifiedArchive {
    /// Which archive, as an index into [`Stores::archives`].
    pub archive: usize,
    /// Catalog files that were read.
    pub files: Vec<PathBuf>,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// A segment that cannot be had.
#[derive(Debug)]
struct Bad {
    /// The segment that is damaged: itself, or what it is a delta to.
    cause: SegmentId,
    error: Error,
}

/// What needs a segment.
#[derive(Debug, Default)]
struct Concern {
    checkpoints: BTreeSet<CheckpointId>,
    ranks: BTreeSet<u32>,
    variables: BTreeSet<String>,
}

/// The segments of an archive store, as far as they were read.
#[derive(Debug)]
pub(super) struct Segments {
    device: Arc<ArchiveDevice>,
    known: BTreeMap<SegmentId, std::result::Result<Vec<SegmentPiece>, Bad>>,
    concerns: BTreeMap<SegmentId, Concern>,
}

impl Segments {
    pub(super) fn new(device: &Arc<ArchiveDevice>) -> Self {
        Self {
            device: Arc::clone(device),
            known: BTreeMap::new(),
            concerns: BTreeMap::new(),
        }
    }

    /// Reads and checks all segments, several at a time, in the order of their ids.
    pub(super) fn read_all(&mut self, progress: &mut dyn FnMut(u64)) {
        let entries = self.device.entries();
        let next = AtomicUsize::new(0);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(THREADS_MAX).min(entries.len());
        let (device, known) = (&self.device, &mut self.known);
        std::thread::scope(|scope| {
            let (send, receive) = mpsc::sync_channel(threads);
            for _ in 0..threads {
                let (send, next, entries) = (send.clone(), &next, &entries);
                scope.spawn(move || {
                    while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if send.send((entry, check(device, entry.segment))).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(send);
            for (entry, checked) in receive {
                progress(u64::from(entry.decoded_bytes));
                known.insert(entry.segment, checked);
            }
        });
    }

    /// What the segment of `node` holds.
    fn pieces(&mut self, segment: SegmentId) -> std::result::Result<&[SegmentPiece], &Bad> {
        let device = &self.device;
        let known = self
            .known
            .entry(segment)
            .or_insert_with(|| check(device, segment));
        known.as_ref().map(|pieces| &**pieces)
    }

    /// Whether the segment of a reference can be had.
    pub(super) fn is_bad(&mut self, segment: SegmentId) -> bool {
        self.pieces(segment).is_err()
    }

    /// Whether what `node` refers to is what its segment holds there; `None` if that has to be read.
    pub(super) fn holds(&mut self, node: &Node) -> Option<bool> {
        let pieces = self.pieces(node.block.address.segment()).ok()?;
        let offset = node.block.address.offset_bytes();
        let at = pieces
            .binary_search_by_key(&offset, |piece| piece.offset)
            .ok()?;
        let piece = &pieces[at];
        let fits = index(piece.length_bytes) == node.length && piece.digest == node.block.digest;
        fits.then_some(true)
    }

    /// Takes note of what needs a segment that cannot be had.
    pub(super) fn needed(
        &mut self,
        segment: SegmentId,
        checkpoints: Vec<CheckpointId>,
        rank: Option<u32>,
        variable: Option<&str>,
    ) {
        let concern = self.concerns.entry(segment).or_default();
        concern.checkpoints.extend(checkpoints);
        concern.ranks.extend(rank);
        concern.variables.extend(variable.map(str::to_owned));
    }

    /// A finding for each segment that is damaged.
    pub(super) fn findings(mut self, path: &Path) -> Vec<Finding> {
        let bad: Vec<(SegmentId, SegmentId)> = self
            .known
            .iter()
            .filter_map(|(segment, known)| Some((*segment, known.as_ref().err()?.cause)))
            .collect();
        let mut merged: BTreeMap<SegmentId, Concern> = BTreeMap::new();
        for (segment, cause) in bad {
            let concern = self.concerns.remove(&segment).unwrap_or_default();
            let sum = merged.entry(cause).or_default();
            sum.checkpoints.extend(concern.checkpoints);
            sum.ranks.extend(concern.ranks);
            sum.variables.extend(concern.variables);
        }
        let finding = |(segment, concern)| self.finding(path, segment, concern);
        merged.into_iter().map(finding).collect()
    }

    fn finding(&self, path: &Path, segment: SegmentId, concern: Concern) -> Finding {
        let entry = self.device.entry(segment);
        let error = match self.known.get(&segment) {
            Some(Err(bad)) => bad.error.to_string(),
            _ => "it cannot be decoded".to_owned(),
        };
        let file = entry.map_or_else(|| path.to_owned(), |entry| self.file_of(path, &entry));
        let variables: Vec<String> = concern.variables.into_iter().collect();
        let ranks: Vec<u32> = concern.ranks.into_iter().collect();
        let of = match &*variables {
            [] => String::new(),
            names => format!("; it holds blocks of {names:?} of ranks {ranks:?}"),
        };
        Finding {
            structure: "archived segment",
            checkpoints: concern.checkpoints.into_iter().collect(),
            rank: if let [rank] = *ranks {
                Some(rank)
            } else {
                None
            },
            variable: if let [name] = &*variables {
                Some(name.clone())
            } else {
                None
            },
            file: Some(file),
            segment: Some(segment.0),
            file_offset: entry.map(|entry| entry.offset),
            text: format!("{error}{of}"),
            ..Finding::default()
        }
    }

    /// The file in which an entry stands: of a takeover, the predecessor's.
    fn file_of(&self, path: &Path, entry: &TableEntry) -> PathBuf {
        let root = self.device.root();
        let other = usize::from(entry.file)
            .checked_sub(1)
            .and_then(|at| root.files.get(at));
        other.map_or_else(|| path.to_owned(), |file| path.with_file_name(&file.name))
    }
}

/// Reads a segment, decodes it, and hashes every block in it.
fn check(
    device: &ArchiveDevice,
    segment: SegmentId,
) -> std::result::Result<Vec<SegmentPiece>, Bad> {
    let bad = |error| Bad {
        cause: segment,
        error,
    };
    let decoded = match device.segment(segment) {
        Ok(decoded) => decoded,
        Err(error) => {
            let header = device.stored(segment).map(|(header, _)| header);
            let bases = header.map(|header| header.bases).unwrap_or_default();
            let mut bases = bases.iter().map(|run| run.base.segment());
            let cause = bases.find(|&base| device.segment(base).is_err());
            let cause = cause.unwrap_or(segment);
            return Err(Bad { cause, error });
        }
    };
    let header = device.header(segment).map_err(bad)?;
    for piece in &header.pieces {
        let from = index(piece.offset);
        let bytes = &decoded[from..from + index(piece.length_bytes)];
        let found = Digest::of(bytes);
        if found != piece.digest {
            let place = format!("{}: segment {}, decoded", device.name(), segment.0);
            let damage = FormatError::new(
                "block",
                "digest",
                u64::from(piece.offset),
                piece.digest,
                found,
            );
            return Err(bad(Error::malformed(place, damage)));
        }
    }
    Ok(header.pieces)
}

/// Reads `N` bytes of a file as they stand there.
fn read(device: &dyn ReadAt, length: usize, offset: u64) -> Result<AlignedBytes> {
    let mut bytes = AlignedBytes::new(length);
    device.read_at(&mut bytes, offset).map_err(|error| {
        let name = device.name();
        Error::io(
            format!("{name}: reading {length} bytes at byte {offset}"),
            error,
        )
    })?;
    Ok(bytes)
}

fn copy(structure: &'static str, file: &Path, offset: u64, error: &Error) -> Finding {
    Finding {
        structure,
        file: Some(file.to_owned()),
        file_offset: Some(offset),
        text: error.to_string(),
        ..Finding::default()
    }
}

fn open(folder: &Path, name: &str) -> Result<Arc<dyn ReadAt>> {
    let place = Folder {
        path: folder.to_owned(),
        direct: true,
    };
    place.open(name)
}

impl Verifier<'_, '_> {
    /// Both copies of an archive store's superblock, and of those of its predecessors, and its roots.
    pub(super) fn archive_head(&mut self, device: &ArchiveDevice) {
        let path = self.store.path().to_owned();
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        let root = device.root();
        let own = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let others = root.files.iter().map(|file| file.name.clone());
        for name in own.into_iter().chain(others) {
            let file = folder.join(&name);
            let Ok(opened) = open(&folder, &name) else {
                continue;
            };
            for offset in SUPERBLOCK_OFFSETS {
                let decoded = read(&*opened, SUPERBLOCK_BYTES, offset).and_then(|bytes| {
                    let place = format!("{}: superblock at byte {offset}", file.display());
                    ArchiveSuperblock::decode(&bytes).map_err(|e| Error::malformed(place, e))
                });
                if let Err(error) = decoded {
                    self.done
                        .findings
                        .push(copy("superblock", &file, offset, &error));
                }
            }
            if file == path {
                self.archive_roots(device, &*opened, &file);
            }
        }
    }

    fn archive_roots(&mut self, device: &ArchiveDevice, opened: &dyn ReadAt, file: &Path) {
        let shown = device.root();
        for (slot, offset) in ROOT_OFFSETS.into_iter().enumerate() {
            let bytes = read(opened, ROOT_BYTES, offset);
            let zeros = |bytes: &AlignedBytes| bytes.iter().all(|&byte| byte == 0);
            if bytes.as_ref().is_ok_and(|bytes| slot == 1 && zeros(bytes)) {
                continue;
            }
            let decoded = bytes.and_then(|bytes| {
                let place = format!("{}: root slot {slot} at byte {offset}", file.display());
                ArchiveRoot::decode(&bytes, shown.store).map_err(|e| Error::malformed(place, e))
            });
            match decoded {
                Err(error) => {
                    let mut finding = copy("root slot", file, offset, &error);
                    finding.checkpoints = self.listed_after(shown.sequence);
                    self.done.findings.push(finding);
                }
                // Its table is damaged, or it is of a commit that came meanwhile.
                Ok(root) if root.sequence > shown.sequence => {
                    let Some(damaged) = device.damaged() else {
                        continue;
                    };
                    let mut finding = copy("segment table", file, root.table.offset, damaged);
                    let had: BTreeSet<CheckpointId> =
                        shown.revisions.iter().map(|r| r.checkpoint).collect();
                    let ids = root.revisions.iter().map(|r| r.checkpoint);
                    finding.checkpoints = ids.filter(|id| !had.contains(id)).collect();
                    self.done.findings.push(finding);
                }
                Ok(_) => {}
            }
        }
    }

    /// The checkpoints whose part in this store was committed by a later root than `sequence`.
    fn listed_after(&self, sequence: u64) -> Vec<CheckpointId> {
        let store = self.store;
        let archive = store.archive().and_then(|at| self.archives.get(at));
        let Some(state) = archive.and_then(Archive::state) else {
            return Vec::new();
        };
        let place = state
            .stores
            .iter()
            .position(|other| other.name == store.file_name());
        let later = state.checkpoints.iter().filter(|entry| {
            let mut parts = entry.parts.iter();
            parts.any(|part| Some(index(part.store)) == place && part.sequence > sequence)
        });
        later.map(|entry| entry.checkpoint).collect()
    }
}

impl Stores {
    /// Verifies every copy of every catalog, and that the stores have what they list.
    pub fn verify_archives(&self) -> Vec<VerifiedArchive> {
        let all = self.checkpoints();
        let verify = |(number, archive): (usize, &Archive)| {
            let mut done = VerifiedArchive {
                archive: number,
                ..VerifiedArchive::default()
            };
            let unlisted: Vec<CheckpointId> = all
                .iter()
                .filter(|c| {
                    c.archived
                        .as_ref()
                        .is_some_and(|a| a.archive == number && !a.listed)
                })
                .filter(|c| c.ranks.len() == index(c.world_size))
                .map(|c| c.id)
                .collect();
            for name in catalogs_in(archive.folder()) {
                let file = archive.folder().join(&name);
                let newest = archive
                    .catalog()
                    .is_some_and(|catalog| catalog.file() == name);
                let concerned = if newest { &*unlisted } else { &[] };
                catalog_copies(archive.folder(), &name, concerned, &mut done.findings);
                done.files.push(file);
            }
            for checkpoint in &all {
                let archived = checkpoint.archived.as_ref().filter(|a| a.archive == number);
                for lack in archived.iter().flat_map(|archived| &archived.lacks) {
                    let file = lack.split(": ").next().map(PathBuf::from);
                    done.findings.push(Finding {
                        structure: "part of a checkpoint",
                        checkpoints: vec![checkpoint.id],
                        file,
                        text: format!("the catalog lists it, but {lack}"),
                        ..Finding::default()
                    });
                }
            }
            done
        };
        self.archives.iter().enumerate().map(verify).collect()
    }
}

/// The catalog files in a folder, by epoch.
fn catalogs_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    let mut epochs: Vec<u32> = names
        .filter_map(|name| FileName::catalog(name.to_str()?))
        .collect();
    epochs.sort_unstable();
    epochs.into_iter().map(catalog_file).collect()
}

/// Both superblocks and both slots of a catalog file. A slot that is damaged may have listed `concerned`.
fn catalog_copies(
    folder: &Path,
    name: &str,
    concerned: &[CheckpointId],
    findings: &mut Vec<Finding>,
) {
    let file = folder.join(name);
    let opened = match open(folder, name) {
        Ok(opened) => opened,
        Err(error) => return findings.push(copy("catalog", &file, 0, &error)),
    };
    // What was begun and not ended is not damaged: another file counts, or there is none yet.
    if is_half_made(&*opened) {
        return;
    }
    let mut superblock: Option<CatalogSuperblock> = None;
    for offset in SUPERBLOCK_OFFSETS {
        let decoded = read(&*opened, SUPERBLOCK_BYTES, offset).and_then(|bytes| {
            let place = format!("{}: superblock at byte {offset}", file.display());
            CatalogSuperblock::decode(&bytes).map_err(|e| Error::malformed(place, e))
        });
        match decoded {
            Ok(decoded) => superblock = Some(decoded),
            Err(error) => findings.push(copy("catalog superblock", &file, offset, &error)),
        }
    }
    let Some(superblock) = superblock else { return };
    for slot in 0..2 {
        let offset = superblock.slot_offset(slot);
        // A running job may be in the middle of writing it.
        let state = || slot_state(&*opened, &superblock, slot, &file);
        if let Err(error) = state().or_else(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            state()
        }) {
            let mut finding = copy("catalog state", &file, offset, &error);
            finding.checkpoints = concerned.to_vec();
            findings.push(finding);
        }
    }
}

fn slot_state(
    device: &dyn ReadAt,
    superblock: &CatalogSuperblock,
    slot: usize,
    file: &Path,
) -> Result<()> {
    let offset = superblock.slot_offset(slot);
    let bytes = read(device, to_usize(u64::from(superblock.slot_bytes)), offset)?;
    // A slot that was never written.
    if bytes[..16].iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    let place = format!("{}: slot {slot} at byte {offset}", file.display());
    let decoded = CatalogState::decode(&bytes, superblock.catalog);
    decoded
        .map(drop)
        .map_err(|error| Error::malformed(place, error))
}
