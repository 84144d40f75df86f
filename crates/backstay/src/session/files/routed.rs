// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: sets of files that the program writes and reads in the memory of the node, under names of its own.
//! In from: the program, between start and complete. Out to: `captured`, `restored`.
//! Invariants: a set is all ranks' or nobody's: one that is not valid, not written, or still open on any rank
//! is no checkpoint; names lead nowhere but into the rank's own folder; what a set leaves there is removed
//! when it ends, and by the next start.

use super::captured::open_to_write;
use super::restored::draw_token;
use crate::session::node::Node;
use crate::session::vote::vote;
use crate::session::{Report, Restored, Session};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::notice;
use backstay_format::CheckpointId;
use backstay_format::limits::FILE_PATH_BYTES_MAX;
use backstay_store::file::{FILES_FOLDER, check_below, check_place};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// What a set is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The program writes it.
    Output,
    /// The program reads it: that of this checkpoint, once it is restored.
    Restart(Option<CheckpointId>),
}

/// A set of files between start and complete.
#[derive(Debug)]
pub(in crate::session) struct FileSet {
    purpose: Purpose,
    /// This rank's, on its node.
    folder: PathBuf,
    /// Names and paths, in the order of routing.
    files: Vec<(Vec<u8>, PathBuf)>,
    /// Where each name is among them.
    places: BTreeMap<Vec<u8>, usize>,
    /// Why the set is no checkpoint.
    refusal: Option<Error>,
}

/// The variable that has the routed file of a place in its set.
pub(super) fn variable_of(place: usize) -> String {
    format!("routed.{place:06}")
}

/// The leader removes what sets left beside the store, and where it was to be, and the folder that they were in. While no rank of
/// the node can have one: when a session begins, and when all have ended theirs.
pub(in crate::session) fn forget_files(node: &Node) {
    if !node.leads() {
        return;
    }
    for directory in [node.store_directory(), node.directory.clone()] {
        let folder = directory.join(FILES_FOLDER);
        match std::fs::remove_dir_all(&folder) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => notice::warn(&format!("removing {}: {error}", folder.display())),
        }
    }
}

/// A name as it is kept: without `.`, and without the `/` that it may begin with.
fn inside(name: &Path) -> Result<PathBuf> {
    let parts = name.components();
    let parts = parts.filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    let inside: PathBuf = parts.collect();
    let shown = || {
        name.display()
            .to_string()
            .chars()
            .take(80)
            .collect::<String>()
    };
    if name.as_os_str().as_bytes().contains(&0) || name.as_os_str().as_bytes().ends_with(b"/") {
        let context = format!("{:?} is no name of a file", shown());
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    }
    if name.as_os_str().len() > FILE_PATH_BYTES_MAX {
        let context = format!(
            "a name of {} bytes, at most {FILE_PATH_BYTES_MAX} can be had; it begins with {:?}",
            name.as_os_str().len(),
            shown()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, context));
    }
    check_below(&inside).map(|()| inside)
}

impl FileSet {
    /// Makes the rank's folder anew.
    fn begin(purpose: Purpose, directory: &Path, rank: u32) -> Result<Self> {
        let folder = directory.join(FILES_FOLDER).join(format!("rank-{rank}"));
        let failed = |error| Error::io(format!("making {}", folder.display()), error);
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            _ => {}
        }
        let mut builder = std::fs::DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .map_err(failed)?;
        // Links of the program's open files are shown without links in their paths.
        let folder = std::fs::canonicalize(&folder).map_err(failed)?;
        Ok(Self {
            purpose,
            folder,
            files: Vec::new(),
            places: BTreeMap::new(),
            refusal: None,
        })
    }

    /// Names and paths, in the order of routing.
    pub(super) fn files(&self) -> impl Iterator<Item = (&[u8], &Path)> {
        self.files.iter().map(|(name, path)| (&**name, &**path))
    }

    /// Why the set is no checkpoint, if it is none.
    pub(super) fn refusal(&self) -> Option<Error> {
        self.refusal.as_ref().map(Error::again)
    }

    /// Where a file of a restored set is put.
    pub(super) fn place(&self, name: &[u8]) -> Result<PathBuf> {
        Ok(self
            .folder
            .join(inside(Path::new(OsStr::from_bytes(name)))?))
    }

    /// The set has these names.
    pub(super) fn found<'a>(&mut self, names: impl Iterator<Item = &'a [u8]>) {
        for name in names {
            let path = self.folder.join(OsStr::from_bytes(name));
            self.add(name, path);
        }
    }

    fn add(&mut self, name: &[u8], path: PathBuf) {
        self.places.insert(name.to_vec(), self.files.len());
        self.files.push((name.to_vec(), path));
    }

    fn route(&mut self, name: &Path) -> Result<PathBuf> {
        let inside = inside(name)?;
        let key = inside.as_os_str().as_bytes();
        if let Some(&place) = self.places.get(key) {
            return Ok(self.files[place].1.clone());
        }
        let shown: String = name.display().to_string().chars().take(255).collect();
        if let Purpose::Restart(id) = self.purpose {
            let names = self.files.iter().take(8);
            let names: Vec<&Path> = names
                .map(|(name, _)| Path::new(OsStr::from_bytes(name)))
                .collect();
            let id = id.map(|id| id.to_string()).unwrap_or_default();
            let context =
                format!("this rank has no file {shown:?} in checkpoint {id}, but {names:?}");
            return Err(Error::new(ErrorKind::VariableMismatch, context));
        }
        let path = self.folder.join(&inside);
        if path.as_os_str().len() > FILE_PATH_BYTES_MAX {
            let context = format!(
                "a name of {} bytes is too long for {}: {FILE_PATH_BYTES_MAX} bytes in all",
                name.as_os_str().len(),
                self.folder.display()
            );
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| {
                Error::io(format!("making the folder of {shown:?} in memory"), error)
            })?;
        }
        // A folder of another file of the set, or a name that no file can have.
        check_place(&path).map_err(|error| error.within(&format!("{shown:?}")))?;
        self.add(key, path.clone());
        Ok(path)
    }

    /// Looks at what the program wrote: all of it there, and closed.
    fn check_written(&self) -> Result<()> {
        let open = open_to_write();
        for (name, path) in &self.files {
            let name = Path::new(OsStr::from_bytes(name)).display();
            if open.contains(path) {
                let context = format!(
                    "{name:?} is still open for writing: close it (fclose) before the set is complete, since \
                     what is in buffers of the program is not in the file"
                );
                return Err(Error::new(ErrorKind::InvalidArgument, context));
            }
            if rustix::fs::lstat(path).is_err() {
                let context = format!("{name:?} was routed, and not written");
                return Err(Error::new(ErrorKind::InvalidArgument, context));
            }
        }
        Ok(())
    }
}

impl Session {
    /// Begins a set of files that [`Session::output_complete`] makes a checkpoint: between the two,
    /// [`Session::route_file`] says where to write. Collective.
    pub fn output_start(&mut self) -> Result<()> {
        self.start_set(Purpose::Output, "output_start")
    }

    /// A path in the memory of the node to write the file `name` to, or to read it from, between start and
    /// complete; outside of them `name` as it is. A name is any path below a folder: `..` is refused, a `/` in
    /// front is left out. The same name has the same path until the set is complete. Local.
    pub fn route_file(&mut self, name: impl AsRef<Path>) -> Result<PathBuf> {
        self.process.check()?;
        match &mut self.files.set {
            Some(set) => set.route(name.as_ref()),
            None => Ok(name.as_ref().to_owned()),
        }
    }

    /// Takes a checkpoint of the set and of all that is protected. One rank's `valid = false`, a file that was
    /// routed and not written, or one that is still open for writing, voids the set: the call fails on all
    /// ranks, and the last checkpoint stays. The files in memory are gone then, in either case. Collective.
    pub fn output_complete(&mut self, valid: bool) -> Result<Report> {
        self.process.check()?;
        let refusal = match &self.files.set {
            None => Some(not_started("output_complete", "output_start")),
            Some(set) if set.purpose != Purpose::Output => {
                Some(not_started("output_complete", "output_start"))
            }
            Some(_) if !valid => {
                let context = format!(
                    "rank {} says that its files are not valid",
                    self.comm.rank()
                );
                Some(Error::new(ErrorKind::InvalidArgument, context))
            }
            Some(set) => set.check_written().err(),
        };
        // Also a rank that has none takes part, so that no other waits for it.
        let set = self.files.set.take();
        let (directory, rank) = (self.directory(), self.comm.rank());
        let set = set.map_or_else(|| FileSet::begin(Purpose::Output, &directory, rank), Ok);
        self.files.set = set.ok().map(|set| FileSet { refusal, ..set });
        let outcome = self.checkpoint_with_files();
        self.end_set();
        outcome
    }

    /// Restores, as [`Session::restore`] does, and the files of the checkpoint's set with it: between this and
    /// [`Session::restart_complete`], [`Session::route_file`] says where to read them. Collective.
    pub fn restart_start(&mut self) -> Result<Restored> {
        self.start_set(Purpose::Restart(None), "restart_start")?;
        let restored = self.restore_with_files();
        match (&restored, &mut self.files.set) {
            (Ok(restored), Some(set)) => set.purpose = Purpose::Restart(Some(restored.checkpoint)),
            _ => self.end_set(),
        }
        restored
    }

    /// Ends the reading of the set. One rank's `valid = false` gives the checkpoint up: the call fails on all
    /// ranks, and the next [`Session::restart_start`] takes an older one. Collective.
    pub fn restart_complete(&mut self, valid: bool) -> Result<()> {
        self.process.check()?;
        let id = match self.files.set.as_ref().map(|set| set.purpose) {
            Some(Purpose::Restart(id)) => id,
            _ => None,
        };
        let mine = match id {
            None => Err(not_started("restart_complete", "restart_start")),
            Some(_) if valid => Ok(()),
            Some(id) => {
                let context = format!(
                    "rank {} says that its files of checkpoint {id} are not valid: restart_start takes an \
                     older one",
                    self.comm.rank()
                );
                Err(Error::new(ErrorKind::InvalidArgument, context))
            }
        };
        let number = id.map_or(0, |id| i64::try_from(id.number).unwrap_or(i64::MAX));
        let outcome = vote(&self.comm, "completing the restart", number, mine);
        if let (Err(_), Some(id)) = (&outcome, id) {
            self.policy.complete.remove(&id);
        }
        self.end_set();
        outcome
    }

    /// That no set is open, which `call` would leave out.
    pub(in crate::session) fn refuse_open_set(&self, call: &str) -> Result<()> {
        let Some(set) = &self.files.set else {
            return Ok(());
        };
        let end = match set.purpose {
            Purpose::Output => "output_complete",
            Purpose::Restart(_) => "restart_complete",
        };
        let context = format!("{call} in a set of files: end it first ({end})");
        Err(Error::new(ErrorKind::InvalidArgument, context))
    }

    fn start_set(&mut self, purpose: Purpose, call: &str) -> Result<()> {
        self.process.check()?;
        let mine = self
            .refuse_open_set(call)
            .and_then(|()| FileSet::begin(purpose, &self.directory(), self.comm.rank()));
        let set = vote(&self.comm, call, 0, mine)?;
        self.files.set = Some(set);
        Ok(())
    }

    /// The set is over: its files in memory go.
    pub(in crate::session) fn end_set(&mut self) {
        if let Some(set) = self.files.set.take()
            && let Err(error) = std::fs::remove_dir_all(&set.folder)
        {
            notice::warn(&format!("removing {}: {error}", set.folder.display()));
        }
    }

    /// What a restore has to know of this rank: a number of its own where it has files to restore, else 0.
    pub(in crate::session) fn files_token(&self) -> u64 {
        if self.files.is_empty() {
            0
        } else {
            draw_token(self.comm.rank())
        }
    }
}

fn not_started(call: &str, start: &str) -> Error {
    let context = format!("{call} without {start}");
    Error::new(ErrorKind::InvalidArgument, context)
}
