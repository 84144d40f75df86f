// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: files on their way back to their paths.
//! In from: `session::restore`, the program (by rank of then). Out to: the program's file systems.
//! Invariants: bytes are verified, and written beside the path; of ranks that restore the same path, the one
//! that made the file beside it goes on; paths change only when every rank has read what it restores.

use super::routed::FileSet;
use super::{Files, checked};
use crate::session::Session;
use crate::session::vote::vote;
use backstay_base::clock::unix_ns;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::{CheckpointId, Digest, StoredFile, StreamRoot, VariableDescriptor};
use backstay_store::file::{Beside, FileSink, is_beside};
use backstay_store::reader::StoreReader;
use backstay_store::revision::ReadPart;
use backstay_store::tree::read_stream;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileEntry {
    /// What [`Session::restore_file`] takes: the name that it is protected by, or its own in its set.
    pub name: PathBuf,
    /// It is of a set of routed files.
    pub routed: bool,
    /// How long it is, holes included.
    pub length_bytes: u64,
}

/// Files that were read, before all ranks know that all are.
#[derive(Debug, Default)]
pub(in crate::session) struct RestoredFiles {
    /// They wait for their places.
    waiting: Vec<Beside>,
    /// What this rank's part has of files.
    last: BTreeMap<String, VariableDescriptor>,
    pub(in crate::session) bytes: u64,
}

/// A number that no other restore has had, for what it writes beside paths.
pub(in crate::session) fn draw_token(rank: u32) -> u64 {
    let seed = format!("{rank} {} {}", std::process::id(), unix_ns());
    let Digest(digest) = Digest::of(seed.as_bytes());
    let token = digest[..8]
        .iter()
        .fold(0u64, |sum, &byte| (sum << 8) | u64::from(byte));
    // It travels as a positive number.
    (token >> 1) | 1
}

/// Reads a stored file to `path`, beside it; nothing where another rank does.
fn read_beside(
    reader: &StoreReader,
    (stored, stream): (&StoredFile, &StreamRoot),
    path: &Path,
    token: u64,
) -> Result<Option<Beside>> {
    let Some(mut sink) = FileSink::begin(path, token, stored)? else {
        return Ok(None);
    };
    read_stream(reader, stream, "block", &mut sink)?;
    sink.finish().map(Some)
}

impl Files {
    /// The files that are wanted of a stored part, with their streams, and where they are to be.
    fn wanted<'a>(
        &self,
        id: CheckpointId,
        part: &'a ReadPart,
    ) -> Result<Vec<(&'a StoredFile, &'a StreamRoot, PathBuf)>> {
        let mut wanted = Vec::new();
        for (name, file) in &self.protected {
            let found = part.find(name);
            let stored = found.and_then(|(stored, stream)| Some((stored.file.as_ref()?, stream)));
            let Some((stored, stream)) = stored else {
                return Err(missing(id, name, part));
            };
            wanted.push((stored, stream, file.path.clone()));
        }
        if let Some(set) = &self.set {
            for (descriptor, stream) in part.descriptors.iter().zip(&part.streams) {
                if let Some(stored) = descriptor.file.as_ref().filter(|file| file.routed) {
                    wanted.push((stored, stream, set.place(&stored.path)?));
                }
            }
        }
        Ok(wanted)
    }

    /// Reads this rank's files beside their paths.
    pub(in crate::session) fn read(
        &self,
        id: CheckpointId,
        part: Option<(&StoreReader, &ReadPart)>,
        token: u64,
    ) -> Result<RestoredFiles> {
        let mut read = RestoredFiles::default();
        let Some((reader, part)) = part else {
            return Ok(read);
        };
        let files = part.descriptors.iter().filter(|d| d.file.is_some());
        read.last = files.map(|d| (d.name.clone(), d.clone())).collect();
        let wanted = self.wanted(id, part)?;
        remove_leftovers(wanted.iter().map(|(_, _, path)| &**path), token);
        for (stored, stream, path) in wanted {
            if let Some(beside) = read_beside(reader, (stored, stream), &path, token)? {
                read.waiting.push(beside);
                read.bytes += stream.length_bytes;
            }
        }
        Ok(read)
    }

    /// What was restored is what the next capture is compared with.
    fn note_restored(&mut self, last: BTreeMap<String, VariableDescriptor>) {
        if let Some(set) = &mut self.set {
            let names = last.values().filter_map(|d| d.file.as_ref());
            let names = names.filter(|file| file.routed).map(|file| &*file.path);
            FileSet::found(set, names);
        }
        self.last = last;
    }
}

fn missing(id: CheckpointId, name: &str, part: &ReadPart) -> Error {
    let files = part.descriptors.iter().filter(|d| d.file.is_some());
    let names: Vec<&str> = files.map(|d| &*d.name).take(16).collect();
    let context = format!(
        "the program protects the file {name:?}; checkpoint {id} has none of that name, but {names:?}"
    );
    Error::new(ErrorKind::VariableMismatch, context)
}

/// Removes what restores left beside these paths that were killed.
fn remove_leftovers<'a>(paths: impl Iterator<Item = &'a Path>, token: u64) {
    let mut by_folder: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for path in paths {
        if let Some(folder) = path.parent() {
            by_folder.entry(folder).or_default().push(path);
        }
    }
    for (folder, paths) in by_folder {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let hidden =
            entries.filter(|entry| entry.file_name().as_bytes().starts_with(b".backstay-"));
        for entry in hidden {
            let name = entry.file_name();
            if paths.iter().any(|path| is_beside(&name, path, token)) {
                // Nothing depends on it: it is tried again by the next restore.
                drop(std::fs::remove_file(entry.path()));
            }
        }
    }
}

impl Session {
    /// All ranks have read their files: these take their paths. Collective where any rank has files.
    pub(in crate::session) fn place_files(
        &mut self,
        id: CheckpointId,
        files: RestoredFiles,
        token: u64,
    ) -> Result<()> {
        if token == 0 {
            return Ok(());
        }
        let RestoredFiles { waiting, last, .. } = files;
        let placed = waiting.into_iter().try_for_each(Beside::place);
        let number = i64::try_from(id.number).unwrap_or(i64::MAX);
        vote(&self.comm, "putting files in place", number, placed)?;
        self.files.note_restored(last);
        Ok(())
    }

    /// The files of the checkpoint that [`Session::restore`] would take, as `rank` stored them, by name. Local.
    pub fn stored_files(&mut self, rank: u32) -> Result<Vec<FileEntry>> {
        self.process.check()?;
        let (_, _, part) = self.part_to_restore(rank)?;
        let entry = |descriptor: &VariableDescriptor| {
            let file = descriptor.file.as_ref()?;
            let name = if file.routed {
                OsString::from_vec(file.path.clone())
            } else {
                OsString::from(&descriptor.name)
            };
            Some(FileEntry {
                name: PathBuf::from(name),
                routed: file.routed,
                length_bytes: file.length_bytes,
            })
        };
        let mut entries: Vec<FileEntry> = part.descriptors.iter().filter_map(entry).collect();
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }

    /// Writes a file of the restored, or newest, checkpoint, as any rank of then stored it, to `path`: for jobs
    /// of another number of ranks, whose files Backstay does not share out. `name` is one that
    /// [`Session::stored_files`] lists. Returns its bytes. Local.
    pub fn restore_file(
        &mut self,
        name: impl AsRef<Path>,
        rank: u32,
        path: impl AsRef<Path>,
    ) -> Result<u64> {
        self.process.check()?;
        let (name, path) = (name.as_ref(), checked(path.as_ref())?);
        let (_, reader, part) = self.part_to_restore(rank)?;
        let is_it = |descriptor: &VariableDescriptor| match &descriptor.file {
            Some(file) if file.routed => file.path == name.as_os_str().as_bytes(),
            Some(_) => name.to_str() == Some(&*descriptor.name),
            None => false,
        };
        let mut parts = part.descriptors.iter().zip(&part.streams);
        let found =
            parts.find_map(|(d, stream)| Some((d.file.as_ref().filter(|_| is_it(d))?, stream)));
        let Some((stored, stream)) = found else {
            let shown: String = name.display().to_string().chars().take(255).collect();
            let context = format!(
                "rank {rank} has no file {shown:?} in the checkpoint; stored_files lists those that it has"
            );
            return Err(Error::new(ErrorKind::VariableMismatch, context));
        };
        let token = draw_token(self.comm.rank());
        if let Some(beside) = read_beside(&reader, (stored, stream), &path, token)? {
            beside.place()?;
        }
        Ok(stored.length_bytes)
    }
}
