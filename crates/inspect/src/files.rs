// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: files of a checkpoint, written out as they were.
//! In: the part of one rank. Out: a file with its holes, its mode and its time.
//! Invariants: every byte is from a verified block; the file is whole before it has its name; no name leads
//! out of the folder that it is written in.

use super::{StoredPart, Stores};
use backstay_base::clock::unix_ns;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::{CheckpointId, StoredFile};
use backstay_store::file::{FileSink, check_below};
use backstay_store::region::Sink;
use backstay_store::tree::read_stream;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The name that a file of a checkpoint goes by: its own in its set, or that of its variable.
pub fn file_name(part: &StoredPart) -> Option<PathBuf> {
    let file = part.descriptor.file.as_ref()?;
    Some(if file.routed {
        PathBuf::from(OsStr::from_bytes(&file.path))
    } else {
        PathBuf::from(&part.descriptor.name)
    })
}

/// Counts what a file takes.
struct Counted<'a> {
    sink: FileSink,
    progress: &'a mut dyn FnMut(u64),
}

impl std::fmt::Debug for Counted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.sink.fmt(f)
    }
}

impl Sink for Counted<'_> {
    fn copy_in(&mut self, offset: u64, bytes: &[u8]) {
        self.sink.copy_in(offset, bytes);
        (self.progress)(backstay_format::width::to_u64(bytes.len()));
    }
}

impl Stores {
    /// Writes the file that `part` of a checkpoint is to `name` below `folder`.
    pub fn write_file(
        &self,
        id: CheckpointId,
        (part, file): (&StoredPart, &StoredFile),
        (folder, name): (&Path, &Path),
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        check_below(name)?;
        let path = folder.join(name);
        let Some(sink) = FileSink::begin(&path, unix_ns(), file)? else {
            let context = format!("{} is being written by somebody else", path.display());
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        };
        let mut counted = Counted { sink, progress };
        let reader = self.stores[part.store].reader();
        let read = read_stream(reader, &part.stream, "block", &mut counted);
        read.map_err(|error| {
            let at = format!("rank {}, file {}", part.rank, name.display());
            self.judge(part.store, id, error).within(&at)
        })?;
        counted.sink.finish()?.place()
    }
}
