// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: files on their way into a checkpoint.
//! In from: `session::checkpoint`. Out to: `store::revision` (parts beside those of the variables).
//! Invariants: a file that changes while it is captured is looked at and captured again, a few times, and
//! then the checkpoint fails: never is it stored torn.

use super::Files;
use super::routed::variable_of;
use crate::session::Session;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::{CheckpointId, ElementType, VariableDescriptor};
use backstay_store::capture::Captured;
use backstay_store::file::{FileSource, StoredAs, await_tick};
use backstay_store::region::Source;
use backstay_store::revision::{Part, PendingPart};
use backstay_store::track::Candidates;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// So often is a checkpoint captured whose files change meanwhile.
const TRIES: usize = 3;

/// A file as it is captured.
#[derive(Debug)]
struct Looked {
    descriptor: VariableDescriptor,
    source: FileSource,
}

impl Files {
    /// Looks at all files that the checkpoint now beginning captures.
    fn look(&self, block_bytes: u32) -> Result<Vec<Looked>> {
        let protected = self.protected.iter().map(|(name, file)| {
            let stored_as = StoredAs {
                path: file.path.as_os_str().as_bytes().to_vec(),
                routed: false,
            };
            (name.clone(), &*file.path, stored_as)
        });
        let set = self.set.iter().flat_map(|set| set.files());
        let routed = set.enumerate().map(|(at, (name, path))| {
            let stored_as = StoredAs {
                path: name.to_vec(),
                routed: true,
            };
            (variable_of(at), path, stored_as)
        });
        let look = |(name, path, stored_as): (String, &Path, StoredAs)| {
            let source = FileSource::look(path, stored_as, block_bytes, self.stored(&name));
            let source = source.map_err(|error| error.within(&format!("file {name:?}")))?;
            let descriptor = VariableDescriptor {
                name,
                element: ElementType::Bytes,
                shape: vec![source.length_bytes()],
                slab: None,
                file: Some(source.stored().clone()),
            };
            descriptor.validate().map_err(|error| {
                let context = format!("file {:?}", descriptor.name);
                Error::caused(ErrorKind::InvalidArgument, context, error)
            })?;
            Ok(Looked { descriptor, source })
        };
        protected.chain(routed).map(look).collect()
    }

    /// Keeps what was looked at; whether anything is not as it was.
    fn note(&mut self, looked: &[Looked]) -> bool {
        let is_same =
            |looked: &Looked| self.last.get(&looked.descriptor.name) == Some(&looked.descriptor);
        if looked.len() == self.last.len() && looked.iter().all(is_same) {
            return false;
        }
        let looked = looked.iter().map(|looked| &looked.descriptor);
        self.last = looked.map(|d| (d.name.clone(), d.clone())).collect();
        true
    }

    /// Bytes that they take of a store that is to be made.
    pub(in crate::session) fn bytes(&self) -> u64 {
        let protected = self.protected.values().map(|file| &*file.path);
        let set = self.set.iter().flat_map(|set| set.files());
        let all = protected.chain(set.map(|(_, path)| path));
        // Without holes.
        let bytes_of =
            |about: std::fs::Metadata| about.len().min(about.blocks().saturating_mul(512));
        let bytes = all.map(|path| std::fs::metadata(path).map_or(0, bytes_of));
        bytes.fold(0, u64::saturating_add)
    }

    /// Says, once for each, which protected files the program has open to write: what is in its buffers is
    /// not in the checkpoint.
    fn say_what_is_open(&mut self) {
        if self.protected.values().all(|file| file.was_looked_at) {
            return;
        }
        let open = open_to_write();
        for (name, file) in &mut self.protected {
            if !std::mem::replace(&mut file.was_looked_at, true) && open.contains(&file.path) {
                notice::info(&format!(
                    "file {name:?}: {} is open for writing: flush it (fflush) before each checkpoint, since what \
                     is in buffers of the program is not in the file",
                    file.path.display()
                ));
            }
        }
    }
}

/// What this process has open to write; nothing where that cannot be known.
pub(super) fn open_to_write() -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten();
    let is_written = |descriptor: &std::ffi::OsStr| {
        let about = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(descriptor));
        let about = about.unwrap_or_default();
        let flags = about.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        // O_WRONLY or O_RDWR.
        flags.is_some_and(|flags| flags & 3 != 0)
    };
    let written = entries.filter(|entry| is_written(&entry.file_name()));
    written
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .collect()
}

impl Session {
    /// Captures the variables, each with its candidates, and the files; what was captured of each variable, in
    /// their order.
    pub(in crate::session) fn capture_parts(
        &mut self,
        id: CheckpointId,
        candidates: &[Candidates],
    ) -> Result<(PendingPart, Vec<Captured>)> {
        if let Some(refusal) = self.files.set.as_ref().and_then(|set| set.refusal()) {
            return Err(refusal);
        }
        self.files.say_what_is_open();
        let mut tries = 1;
        loop {
            let looked = self.files.look(self.config.block_bytes)?;
            if let Some(looked) = looked
                .iter()
                .find(|looked| self.variables.contains(&looked.descriptor.name))
            {
                return Err(super::taken(&looked.descriptor.name, "a variable"));
            }
            await_tick(looked.iter().map(|looked| &looked.source));
            if self.files.note(&looked) {
                self.generation += 1;
            }
            match self.capture_looked(id, candidates, &looked) {
                Err(_) if tries < TRIES && looked.iter().any(|file| file.source.has_changed()) => {
                    tries += 1;
                    self.stores()?.rank.give_up();
                }
                outcome => return outcome,
            }
        }
    }

    fn capture_looked(
        &self,
        id: CheckpointId,
        candidates: &[Candidates],
        looked: &[Looked],
    ) -> Result<(PendingPart, Vec<Captured>)> {
        let variables = self.variables.values().zip(candidates);
        let variables = variables.map(|(variable, candidates)| Part {
            descriptor: &variable.descriptor,
            block_bytes: variable.block_bytes,
            source: &variable.region,
            candidates: candidates.clone(),
        });
        let files = looked.iter().map(|looked| Part {
            descriptor: &looked.descriptor,
            block_bytes: self.config.block_bytes,
            source: &looked.source,
            candidates: Candidates::All,
        });
        let mut parts: Vec<Part<'_>> = variables.chain(files).collect();
        if !looked.is_empty() {
            parts.sort_by(|one, other| one.descriptor.name.cmp(&other.descriptor.name));
        }
        let pending = self
            .stores()?
            .rank
            .capture(id, &mut parts, self.generation)?;
        let by_part = parts.iter().zip(&pending.by_part);
        let of_variables = by_part.filter(|(part, _)| part.descriptor.file.is_none());
        let of_variables = of_variables.map(|(_, did)| *did).collect();
        Ok((pending, of_variables))
    }
}
