// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: where a node's store lies, what that is called, and whether it has room there.
//! In from: configuration, environment, file systems. Out to: the folder that holds `STORE_FILE`.
//! Invariants: every folder made has mode 0700; below the base no symbolic link is followed and no
//! folder of another user is used; nothing is made where nothing would fit.

#[cfg(test)]
mod tests;

pub use super::memory::{MemoryLimit, memory_limit};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::open::check_file_size;
use backstay_format::Digest;
use backstay_format::limits::LABEL_BYTES_MAX;
use rustix::fd::OwnedFd;
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, fstat, fstatfs, fstatvfs, fsync,
    mkdirat, openat, statat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Name of the store in its folder.
pub const STORE_FILE: &str = "store.backstay";

/// Name of a store that is being made again from others, until it is whole and takes the name of one.
pub const STORE_BEING_MADE: &str = "store.making";

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58F6;
/// Variables in which schedulers and users name a scratch folder on the node.
const SCRATCH_VARIABLES: [&str; 3] = ["SLURM_TMPDIR", "LOCAL_SCRATCH", "TMPDIR"];
/// Where clusters mount such folders.
const SCRATCH_FOLDERS: [&str; 3] = ["/local/scratch", "/localscratch", "/scratch/local"];

/// A folder for a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The folder; it exists.
    pub directory: PathBuf,
    /// What was chosen, and why nothing before it: a sentence for the user.
    pub why: String,
    /// Bytes free on its file system.
    pub free_bytes: u64,
    /// Whether it is memory: then a control group's limit counts as well.
    pub is_memory: bool,
    /// Whether nothing before it was refused.
    pub first: bool,
}

/// The folder for the store of `node` in `job`, made where it is missing: below
/// `configured`, the setting `store_path`, if there is one, else in `/dev/shm`, a scratch folder of the scheduler, or
/// `/var/tmp`, whichever first has room for `needed_bytes`.
pub fn choose(
    configured: Option<&Path>,
    job: &str,
    node: &str,
    needed_bytes: Option<u64>,
) -> Result<Place> {
    Surroundings::of_this_process().choose(configured, job, node, needed_bytes)
}

/// The folder in which an earlier start of the job left its store: the first of the places that
/// [`choose`] looks at that holds one. One that cannot be looked at is an error: the store may be there.
pub fn existing(configured: Option<&Path>, job: &str, node: &str) -> Result<Option<PathBuf>> {
    Surroundings::of_this_process().existing(configured, job, node)
}

/// Makes the folder of a store again that somebody removed: `directory` is one that [`choose`] or
/// [`existing`] gave.
pub fn make_again(
    configured: Option<&Path>,
    job: &str,
    node: &str,
    directory: &Path,
) -> Result<()> {
    Surroundings::of_this_process().make_again(configured, job, node, directory)
}

/// The folders of this user in all the places that [`choose`] looks at without configuration, best
/// first. They need not be there.
pub fn default_folders() -> Vec<PathBuf> {
    let surroundings = Surroundings::of_this_process();
    let own = surroundings.own_folder();
    let candidates = surroundings.candidates();
    let folders = candidates.iter().map(|candidate| candidate.base.join(&own));
    folders.collect()
}

/// One of the places that [`choose`] looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// The place, as a path or the variable that names it.
    pub name: String,
    /// Bytes free on its file system, and whether it is memory; or why no store would be put there.
    pub found: std::result::Result<(u64, bool), String>,
}

/// What [`choose`] would find, best first, if it had to make nothing: `configured` alone if there is one.
pub fn look(configured: Option<&Path>) -> Vec<Look> {
    Surroundings::of_this_process().look(configured)
}

/// That `bytes` more fit on the file system as it was when `place` was chosen.
pub fn check_room(place: &Place, bytes: u64) -> Result<()> {
    let directory = place.directory.display();
    check_file_size(bytes).map_err(|error| Error::io(directory.to_string(), error))?;
    if bytes > place.free_bytes {
        let shortage = shortage(bytes, place.free_bytes);
        return Err(Error::new(
            ErrorKind::StoreFull,
            format!(
                "{directory}: the file system has too little space: {shortage}; free some, set \
                 reserve_bytes lower, or set store_path to a folder on a larger file system"
            ),
        ));
    }
    Ok(())
}

/// That `bytes` more stay below `limit`, where `place` is memory.
pub fn check_memory(place: &Place, bytes: u64, limit: Option<&MemoryLimit>) -> Result<()> {
    let directory = place.directory.display();
    let Some(limit) = limit.filter(|limit| place.is_memory && bytes > limit.free_bytes()) else {
        return Ok(());
    };
    let shortage = shortage(bytes, limit.free_bytes());
    Err(Error::new(
        ErrorKind::StoreFull,
        format!(
            "{directory} is memory, and beyond the limit in {} ({}, {} used) the kernel kills the \
             job: {shortage}; raise the limit, set reserve_bytes lower, or set store_path to a \
             folder on a disk",
            limit.path.display(),
            sized(limit.limit_bytes),
            sized(limit.used_bytes),
        ),
    ))
}

/// The job's name where none is configured: the program's base name and a hash of its working
/// folder, so that the same run in the same folder finds its checkpoints again.
pub fn default_job_name() -> String {
    // Also right in a library that some other language's program loaded.
    let line = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let first = line.split(|&byte| byte == 0).next().unwrap_or_default();
    job_name_of(
        &OsString::from_vec(first.to_vec()),
        &std::env::current_dir().unwrap_or_default(),
    )
}

/// Fingerprint of this program's arguments, without its own name; 0 where they cannot be read. 63 bits.
pub fn program_arguments() -> u64 {
    let Ok(line) = std::fs::read("/proc/self/cmdline") else {
        return 0;
    };
    let own_name = line.iter().position(|&byte| byte == 0).unwrap_or(0);
    let digest = Digest::of(&line[own_name..]).0;
    let first = digest.first_chunk().copied().unwrap_or_default();
    (u64::from_le_bytes(first) >> 1).max(1)
}

/// The node's name where none is configured: the host name, which a reboot keeps, so that a store on
/// a disk is found again.
pub fn node_name() -> String {
    let host = rustix::system::uname();
    node_name_of(&host.nodename().to_string_lossy())
}

/// What tells apart two nodes that have the same name: the boot.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

fn job_name_of(program: &OsStr, folder: &Path) -> String {
    let base = Path::new(program).file_name().unwrap_or(OsStr::new("job"));
    let hash = backstay_format::hash::checksum(folder.as_os_str().as_encoded_bytes()) >> 32;
    label(&base.to_string_lossy(), &format!("{hash:08x}"))
}

fn node_name_of(host: &str) -> String {
    let host = if host.trim().is_empty() { "node" } else { host };
    label(host.trim(), "")
}

/// A label that is a file name: `stem`, shortened and without what a path or a terminal would take
/// for something else, and `suffix` if there is one.
fn label(stem: &str, suffix: &str) -> String {
    let plain = |character: char| match character {
        '/' | '\\' | char::REPLACEMENT_CHARACTER => '_',
        other if other.is_control() || other.is_whitespace() => '_',
        other => other,
    };
    let mut name = String::new();
    for character in stem.chars().map(plain) {
        if name.len() + character.len_utf8() + 1 + suffix.len() > LABEL_BYTES_MAX {
            break;
        }
        name.push(character);
    }
    if suffix.is_empty() {
        return name;
    }
    format!("{name}-{suffix}")
}

/// What the choice depends on; made up in tests.
struct Surroundings {
    memory: PathBuf,
    /// How it was named, and the folder.
    scratch: Vec<(String, PathBuf)>,
    last: PathBuf,
    user: u32,
    limit: Option<MemoryLimit>,
}

/// A folder that may hold `backstay-<user>/<job>/<node>`.
struct Candidate<'a> {
    name: String,
    base: &'a Path,
    memory_only: bool,
}

/// Why a folder cannot be used.
struct Refusal {
    kind: ErrorKind,
    reason: String,
    /// Of what the file system refused: what it said.
    errno: Option<Errno>,
}

impl Refusal {
    fn io(path: &Path, errno: Errno) -> Self {
        Self {
            kind: ErrorKind::StoreIo,
            reason: format!("{}: {errno}", path.display()),
            errno: Some(errno),
        }
    }
    fn unsafe_folder(path: &Path, what: &str) -> Self {
        Self {
            kind: ErrorKind::StoreIo,
            reason: format!("{} {what}, so it is not safe to use", path.display()),
            errno: None,
        }
    }
    /// Whether it says that no store of ours is there: there is no folder, or none that a start of this job
    /// could have used. A folder of ours that may not be looked into says nothing.
    fn says_none(&self, is_ours: bool) -> bool {
        let forbidden = [Errno::ACCESS, Errno::PERM];
        self.errno.is_none_or(|errno| {
            [Errno::NOENT, Errno::NOTDIR].contains(&errno) || !is_ours && forbidden.contains(&errno)
        })
    }
}

impl Surroundings {
    fn of_this_process() -> Self {
        let named = SCRATCH_VARIABLES
            .into_iter()
            .filter_map(|name| Some((format!("${name}"), PathBuf::from(std::env::var_os(name)?))));
        let fixed = SCRATCH_FOLDERS
            .into_iter()
            .map(|path| (path.to_owned(), PathBuf::from(path)));
        Self {
            memory: PathBuf::from("/dev/shm"),
            scratch: named.chain(fixed).collect(),
            last: PathBuf::from("/var/tmp"),
            user: rustix::process::geteuid().as_raw(),
            limit: memory_limit(),
        }
    }

    /// All places without configuration, best first; a variable with a relative path names none.
    fn candidates(&self) -> Vec<Candidate<'_>> {
        let memory = (self.memory.display().to_string(), &self.memory, true);
        let last = (self.last.display().to_string(), &self.last, false);
        let scratch = self
            .scratch
            .iter()
            .filter(|(_name, path)| path.is_absolute());
        let scratch = scratch.map(|(name, path)| (name.clone(), path, false));
        let all = std::iter::once(memory).chain(scratch).chain([last]);
        all.map(|(name, base, memory_only)| Candidate {
            name,
            base,
            memory_only,
        })
        .collect()
    }

    fn choose(
        &self,
        configured: Option<&Path>,
        job: &str,
        node: &str,
        needed_bytes: Option<u64>,
    ) -> Result<Place> {
        check_label("job", job)?;
        check_label("node", node)?;
        if let Some(path) = configured {
            return self.configured(path, job, node);
        }
        let mut refused = Vec::new();
        let mut kind = ErrorKind::StoreIo;
        for candidate in self.candidates() {
            match self.try_candidate(&candidate, job, node, needed_bytes) {
                Ok(mut place) => {
                    place.why = reason_of(&place, &refused);
                    place.first = refused.is_empty();
                    return Ok(place);
                }
                Err(refusal) => {
                    if refusal.kind == ErrorKind::StoreFull {
                        kind = ErrorKind::StoreFull;
                    }
                    refused.push(format!("{} ({})", candidate.name, refusal.reason));
                }
            }
        }
        let context = format!(
            "no place for the store: {}; set store_path to a folder with room",
            refused.join(", ")
        );
        Err(Error::new(kind, context))
    }

    fn existing(
        &self,
        configured: Option<&Path>,
        job: &str,
        node: &str,
    ) -> Result<Option<PathBuf>> {
        check_label("job", job)?;
        check_label("node", node)?;
        if let Some(path) = configured {
            let failed = |error| Error::io(format!("store_path {}", path.display()), error);
            let base = std::path::absolute(path).map_err(failed)?;
            return self.held_in(&base, &[job, node]);
        }
        let own = self.own_folder();
        for candidate in self.candidates() {
            // A later one is not taken for the first while nobody knows what is in this one.
            if let Some(held) = self.held_in(candidate.base, &[&own, job, node])? {
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    /// The folder, if it holds a store.
    fn held_in(&self, base: &Path, parts: &[&str]) -> Result<Option<PathBuf>> {
        let directory = joined(base, parts);
        let mut is_ours = false;
        let found = self.descend(base, &[], false).and_then(|_| {
            is_ours = true;
            let folder = self.descend(base, parts, false)?;
            let found = statat(&folder, STORE_FILE, AtFlags::SYMLINK_NOFOLLOW);
            found.map_err(|errno| Refusal::io(&directory, errno))
        });
        match found {
            Ok(file) => {
                let regular = FileType::from_raw_mode(file.st_mode) == FileType::RegularFile;
                Ok(regular.then_some(directory))
            }
            Err(refusal) if refusal.says_none(is_ours) => Ok(None),
            Err(refusal) => {
                let context = format!(
                    "whether a store of this job is in {} could not be found out, and nothing is begun \
                     anew for that: {}; try again, or set store_path to where it is",
                    directory.display(),
                    refusal.reason
                );
                Err(Error::new(ErrorKind::Unreadable, context))
            }
        }
    }

    fn make_again(
        &self,
        configured: Option<&Path>,
        job: &str,
        node: &str,
        directory: &Path,
    ) -> Result<()> {
        if let Some(path) = configured {
            return self.configured(path, job, node).map(drop);
        }
        let own = self.own_folder();
        let parts = [&*own, job, node];
        let candidates = self.candidates();
        let mut bases = candidates.iter().map(|candidate| candidate.base);
        let made = match bases.find(|base| joined(base, &parts) == directory) {
            Some(base) => self.make(base, &parts).map_err(|refusal| refusal.reason),
            None => Err("it is in none of the places for stores".to_owned()),
        };
        made.map(drop).map_err(|reason| {
            let context = format!("making {} again: {reason}", directory.display());
            Error::new(ErrorKind::StoreIo, context)
        })
    }

    fn own_folder(&self) -> String {
        format!("backstay-{}", self.user)
    }

    fn configured(&self, path: &Path, job: &str, node: &str) -> Result<Place> {
        let advice = "set store_path to a folder of yours that can be written";
        let wrong = |kind, reason: &str| {
            let context = format!("store_path {}: {reason}; {advice}", path.display());
            Error::new(kind, context)
        };
        let base = std::path::absolute(path)
            .map_err(|error| wrong(ErrorKind::Configuration, &error.to_string()))?;
        match mkdirat(CWD, &base, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => (),
            Err(Errno::NOENT) => {
                let parent = base.parent().unwrap_or(&base);
                let reason = if parent.is_dir() {
                    format!("no folder can be made in {}", parent.display())
                } else {
                    format!("its parent {} does not exist", parent.display())
                };
                return Err(wrong(ErrorKind::Configuration, &reason));
            }
            Err(Errno::NOTDIR) => {
                let reason = "a part of the path is not a folder";
                return Err(wrong(ErrorKind::Configuration, reason));
            }
            Err(errno) => return Err(wrong(ErrorKind::StoreIo, &errno.to_string())),
        }
        if !base.is_dir() {
            return Err(wrong(ErrorKind::Configuration, "it is not a folder"));
        }
        let mut place = self
            .make(&base, &[job, node])
            .map_err(|refusal| wrong(refusal.kind, &refusal.reason))?;
        place.why = format!("store in {}, as store_path says", place.directory.display());
        Ok(place)
    }

    fn look(&self, configured: Option<&Path>) -> Vec<Look> {
        let told = |name: String, found: std::result::Result<_, Refusal>| Look {
            name,
            found: found.map_err(|refusal| refusal.reason),
        };
        if let Some(path) = configured {
            // It is made where its parent is there.
            let parent = path.parent().filter(|_| !path.exists());
            let there = Candidate {
                name: path.display().to_string(),
                base: parent.unwrap_or(path),
                memory_only: false,
            };
            let found = self.room(&there, &[]);
            return vec![told(there.name, found)];
        }
        let own = self.own_folder();
        let look = |candidate: Candidate<'_>| {
            let found = self.room(&candidate, &[&own]);
            told(candidate.name, found)
        };
        self.candidates().into_iter().map(look).collect()
    }

    /// Bytes free in a place, and whether it is memory, if a store may be there; `own` below it need not be there.
    fn room(
        &self,
        candidate: &Candidate<'_>,
        own: &[&str],
    ) -> std::result::Result<(u64, bool), Refusal> {
        let (base_folder, free_bytes, is_memory) = self.suits(candidate)?;
        let folder = match self.descend(candidate.base, own, false) {
            Err(refusal) if refusal.errno == Some(Errno::NOENT) => base_folder,
            own_folder => own_folder?,
        };
        writable(&folder).map_err(|errno| Refusal::io(&joined(candidate.base, own), errno))?;
        Ok((free_bytes, is_memory))
    }

    /// The folder of a place, bytes free there, and whether it is memory, if a store may be there at all.
    fn suits(
        &self,
        candidate: &Candidate<'_>,
    ) -> std::result::Result<(OwnedFd, u64, bool), Refusal> {
        let base = candidate.base;
        let folder = self.descend(base, &[], false)?;
        let (free_bytes, is_memory) = space(&folder).map_err(|errno| Refusal::io(base, errno))?;
        if candidate.memory_only && !is_memory {
            return Err(Refusal {
                kind: ErrorKind::StoreIo,
                reason: "it is no memory file system".to_owned(),
                errno: None,
            });
        }
        Ok((folder, free_bytes, is_memory))
    }

    fn try_candidate(
        &self,
        candidate: &Candidate<'_>,
        job: &str,
        node: &str,
        needed_bytes: Option<u64>,
    ) -> std::result::Result<Place, Refusal> {
        let base = candidate.base;
        let (_folder, free_bytes, is_memory) = self.suits(candidate)?;
        if let Some(needed) = needed_bytes {
            let limit = self.limit.as_ref().filter(|_limit| is_memory);
            let (room, whose) = match limit.filter(|limit| limit.free_bytes() < free_bytes) {
                Some(limit) => (
                    limit.free_bytes(),
                    format!("below the limit in {}", limit.path.display()),
                ),
                None => (free_bytes, "on it".to_owned()),
            };
            if needed > room {
                return Err(Refusal {
                    kind: ErrorKind::StoreFull,
                    reason: format!("too little room {whose}: {}", shortage(needed, room)),
                    errno: None,
                });
            }
        }
        self.make(base, &[&self.own_folder(), job, node])
    }

    /// Makes the folders below `base`, and looks whether the last can be written.
    fn make(&self, base: &Path, parts: &[&str]) -> std::result::Result<Place, Refusal> {
        let directory = joined(base, parts);
        let folder = self.descend(base, parts, true)?;
        let refused = |errno| Refusal::io(&directory, errno);
        writable(&folder).map_err(refused)?;
        let (free_bytes, is_memory) = space(&folder).map_err(refused)?;
        Ok(Place {
            directory,
            why: String::new(),
            free_bytes,
            is_memory,
            first: true,
        })
    }

    /// Opens `parts` below `base` one by one, each a folder of this user and no symbolic link.
    fn descend(
        &self,
        base: &Path,
        parts: &[&str],
        make: bool,
    ) -> std::result::Result<OwnedFd, Refusal> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut path = base.to_owned();
        let mut folder =
            openat(CWD, base, flags, Mode::empty()).map_err(|errno| Refusal::io(base, errno))?;
        for part in parts {
            path.push(part);
            if make {
                match mkdirat(&folder, *part, Mode::RWXU) {
                    // Its name is durable before anything is put into it, where the file system can.
                    Ok(()) => match fsync(&folder) {
                        Ok(()) | Err(Errno::INVAL) => (),
                        Err(errno) => return Err(Refusal::io(&path, errno)),
                    },
                    Err(Errno::EXIST) => (),
                    Err(errno) => return Err(Refusal::io(&path, errno)),
                }
            }
            let entered = openat(&folder, *part, flags | OFlags::NOFOLLOW, Mode::empty());
            folder = entered.map_err(|errno| match errno {
                Errno::NOTDIR | Errno::LOOP => {
                    Refusal::unsafe_folder(&path, "is a symbolic link or no folder")
                }
                other => Refusal::io(&path, other),
            })?;
            let stat = fstat(&folder).map_err(|errno| Refusal::io(&path, errno))?;
            if stat.st_uid != self.user {
                let what = format!("belongs to user {} and not to {}", stat.st_uid, self.user);
                return Err(Refusal::unsafe_folder(&path, &what));
            }
            if stat.st_mode & 0o002 != 0 {
                return Err(Refusal::unsafe_folder(&path, "can be written by everybody"));
            }
        }
        Ok(folder)
    }
}

fn check_label(what: &str, label: &str) -> Result<()> {
    let plain = !label.contains(['/', '\0']) && label != "." && label != "..";
    if plain && (1..=LABEL_BYTES_MAX).contains(&label.len()) {
        return Ok(());
    }
    let context = format!("{what} is {label:?}, not 1 to {LABEL_BYTES_MAX} bytes without a slash");
    Err(Error::new(ErrorKind::Configuration, context))
}

fn reason_of(place: &Place, refused: &[String]) -> String {
    let sort = if place.is_memory { "memory" } else { "a disk" };
    let (directory, free) = (place.directory.display(), sized(place.free_bytes));
    let others = if refused.is_empty() {
        String::new()
    } else {
        format!("; not {}", refused.join(", not "))
    };
    format!("store in {directory}: {sort} with {free} free{others}")
}

fn joined(base: &Path, parts: &[&str]) -> PathBuf {
    parts
        .iter()
        .fold(base.to_owned(), |path, part| path.join(part))
}

/// That this process may make files in a folder.
fn writable(folder: &OwnedFd) -> rustix::io::Result<()> {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    accessat(folder, ".", access, AtFlags::EACCESS)
}

/// Bytes free on the file system of a folder, and whether it is memory.
fn space(folder: &OwnedFd) -> rustix::io::Result<(u64, bool)> {
    let is_memory = matches!(fstatfs(folder)?.f_type, TMPFS_MAGIC | RAMFS_MAGIC);
    let numbers = fstatvfs(folder)?;
    // A memory file system without a size of its own says 0 of 0.
    if is_memory && numbers.f_blocks == 0 {
        return Ok((u64::MAX, true));
    }
    Ok((numbers.f_bavail.saturating_mul(numbers.f_frsize), is_memory))
}

fn shortage(needed: u64, free: u64) -> String {
    let short = needed.saturating_sub(free);
    format!(
        "{} needed, {} free, {} short",
        sized(needed),
        sized(free),
        sized(short)
    )
}

/// A size as a person and as a program reads it; the MiB are rounded up.
fn sized(bytes: u64) -> String {
    format!("{bytes} bytes ({} MiB)", bytes.div_ceil(1 << 20))
}
