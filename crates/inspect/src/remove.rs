// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: removes what jobs left: stores of this node, and archives, folder by folder: a plan to be shown, then
//! what it says.
//! In: paths. Out: what `backstay rm` shows and does.
//! Invariants: a folder is one of Backstay's only if a file in it says so in its bytes; of such a folder only files
//! go that have a name of Backstay's and, where their format has a magic, that magic; no link is followed but that
//! of a store to its file. Nothing goes before the locks of all folders are held. What says that a folder is
//! Backstay's goes last but for the locks, so that what was interrupted can be done again.

use super::find::{Found, find};
use backstay_archive::drain::{RunningLock, servers_in};
use backstay_archive::fence::Fence;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_format::geometry::SUPERBLOCK_OFFSETS;
use backstay_format::{ArchiveSuperblock, CatalogSuperblock, StoreId, Superblock};
use backstay_parity::agent::local::AgentClient;
use backstay_store::control::CONTROL_FILE;
use backstay_store::file::FILES_FOLDER;
use backstay_store::lock::StoreLock;
use backstay_store::place::STORE_FILE;
use std::fs::{File, Metadata};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of the head of a file that are looked at.
const HEAD_BYTES: usize = 8192;
/// How long a staging server may take to show that it lives.
const SERVER_PATIENCE: Duration = Duration::from_secs(1);

/// What a folder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RemovalKind {
    /// The store of a node, with what belongs to it.
    Node,
    /// The archive of a job.
    Archive,
}

/// A folder of which files go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovalFolder {
    /// What it holds.
    pub kind: RemovalKind,
    /// The folder.
    pub folder: PathBuf,
    /// The job, where a file says it.
    pub job: Option<String>,
    /// The node, of a store.
    pub node: Option<String>,
    /// Files that go, in that order.
    pub files: Vec<PathBuf>,
    /// Folders that go with all that is in them: of routed files.
    pub routed: Vec<PathBuf>,
    /// Their bytes on the file system.
    pub bytes: u64,
    /// Files that stay, because they are not Backstay's.
    pub foreign: Vec<PathBuf>,
    /// Of an archive: what locks of this host may name.
    stores: Vec<StoreId>,
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Files that went.
    pub files: u64,
    /// Folders that were empty then, and went.
    pub folders: u64,
    /// Bytes that the file system has back.
    pub bytes_freed: u64,
}

/// How a file in a folder of Backstay's is known.
enum Known {
    /// It says in its bytes what it is.
    Says(Said),
    /// By its name; it has no magic, or holds nothing yet.
    Named,
    /// The folder of routed files, which a start that was killed left.
    Routed,
    /// It is not Backstay's.
    Foreign,
}

/// What a file says of itself.
#[derive(Debug, Default)]
struct Said {
    job: Option<String>,
    node: Option<String>,
    store: Option<StoreId>,
}

/// The folders at or below `paths` that hold something of Backstay's, of `job` alone if one is named.
pub fn removal(paths: &[PathBuf], job: Option<&str>) -> Result<Vec<RemovalFolder>> {
    let mut folders: Vec<(RemovalKind, PathBuf)> = Vec::new();
    for path in paths {
        for place in found_at(path)? {
            if !folders.contains(&place) {
                folders.push(place);
            }
        }
    }
    folders.sort();
    let mut all = Vec::new();
    for (kind, folder) in folders {
        let Some(folder) = look(kind, &folder)? else {
            continue;
        };
        if job.is_none_or(|job| folder.job.as_deref() == Some(job)) {
            all.push(folder);
        }
    }
    Ok(all)
}

/// Folders to look at: those of stores and archives, and those of which only a lock or a log is left.
fn found_at(path: &Path) -> Result<Vec<(RemovalKind, PathBuf)>> {
    let above = |file: &Path| file.parent().map_or_else(PathBuf::new, Path::to_owned);
    let place = |found: Found| match found {
        Found::Store(file) => (RemovalKind::Node, above(&file)),
        Found::Archive(folder) => (RemovalKind::Archive, folder),
        Found::ArchiveStore(file) => (RemovalKind::Archive, above(&file)),
    };
    match find(path) {
        Ok(found) => Ok(found.into_iter().map(place).collect()),
        Err(error) if error.kind() == ErrorKind::NoCheckpoint && path.is_dir() => {
            let mut left = Vec::new();
            remains(path, 0, &mut left);
            Ok(left)
        }
        Err(error) => Err(error),
    }
}

/// Folders where an agent was and no store, and those of which a removal was interrupted.
fn remains(folder: &Path, depth: usize, left: &mut Vec<(RemovalKind, PathBuf)>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if depth < super::DEPTH_MAX {
                remains(&entry.path(), depth + 1, left);
            }
        } else if name == LOCK_FILE || name == AGENT_FILE {
            left.push((RemovalKind::Node, folder.to_owned()));
        }
    }
}

const LOCK_FILE: &str = "lock.backstay";
const AGENT_FILE: &str = "agent.backstay";
const RUNNING_FILE: &str = "running";
/// Behind the name of the job in a lock.
const REMOVING: &str = " (backstay rm)";

/// What of `folder` goes; `None` where nothing in it is Backstay's.
fn look(kind: RemovalKind, folder: &Path) -> Result<Option<RemovalFolder>> {
    let mut found = RemovalFolder {
        kind,
        folder: folder.to_owned(),
        job: None,
        node: None,
        files: Vec::new(),
        routed: Vec::new(),
        bytes: 0,
        foreign: Vec::new(),
        stores: Vec::new(),
    };
    let failed = |error| Error::io(format!("{}: reading the folder", folder.display()), error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        names.push(entry.map_err(failed)?.path());
    }
    names.sort();
    let (mut says, mut named) = (Vec::new(), Vec::new());
    for path in names {
        match known(kind, &path) {
            Known::Says(said) => {
                found.job = found.job.or(said.job);
                found.node = found.node.or(said.node);
                found.stores.extend(said.store);
                says.push(path);
            }
            Known::Named => named.push(path),
            Known::Routed => {
                found.bytes += bytes_below(&path);
                found.routed.push(path);
            }
            Known::Foreign => found.foreign.push(path),
        }
    }
    if says.is_empty() {
        return Ok(None);
    }
    // The lock stays until the end: who comes meanwhile waits for it.
    let is_lock = |path: &PathBuf| path.ends_with(LOCK_FILE) || path.ends_with(RUNNING_FILE);
    let (locks, others): (Vec<_>, Vec<_>) = named.into_iter().chain(says).partition(is_lock);
    for path in others.into_iter().chain(locks) {
        if let Some(target) = target_of(&path) {
            found.bytes += bytes_of(&target);
            found.files.push(target);
        }
        found.bytes += bytes_of(&path);
        found.files.push(path);
    }
    Ok(Some(found))
}

/// The file that a store's link leads to: where there was room.
fn target_of(path: &Path) -> Option<PathBuf> {
    let about = std::fs::symlink_metadata(path).ok()?;
    let is_link = about.file_type().is_symlink();
    is_link.then(|| std::fs::canonicalize(path).ok()).flatten()
}

/// Whether a folder has nothing but the folders of ranks, and that of the routing agent.
fn is_of_ranks(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    let is_of_rank = |name: &str| {
        let rank = name.strip_prefix("rank-");
        name == "route" || rank.is_some_and(|rank| rank.parse::<u32>().is_ok())
    };
    entries.flatten().all(|entry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        is_folder && entry.file_name().to_str().is_some_and(is_of_rank)
    })
}

/// Bytes of all files in a folder and below.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            bytes_below(&entry.path())
        } else {
            bytes_of(&entry.path())
        }
    });
    bytes.sum()
}

/// Bytes that the file system has back when this name goes.
fn bytes_of(path: &Path) -> u64 {
    let about = std::fs::symlink_metadata(path);
    let goes = about.ok().filter(|about| about.nlink() == 1);
    goes.map_or(0, |about| about.blocks() * 512)
}

/// What the file at `path`, in a folder of this kind, is.
fn known(kind: RemovalKind, path: &Path) -> Known {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Known::Foreign;
    };
    let Ok(about) = std::fs::symlink_metadata(path) else {
        return Known::Foreign;
    };
    if kind == RemovalKind::Node && name == FILES_FOLDER && about.is_dir() && is_of_ranks(path) {
        return Known::Routed;
    }
    let is_store_link = about.file_type().is_symlink() && name == STORE_FILE;
    if !(about.is_file() || is_store_link || about.file_type().is_socket()) {
        return Known::Foreign;
    }
    match kind {
        RemovalKind::Node => of_node(name, path, &about),
        RemovalKind::Archive => of_archive(name, path),
    }
}

fn of_node(name: &str, path: &Path, about: &Metadata) -> Known {
    match name {
        "store.backstay" | "store.making" | "store.copy" | "store.aside" | "store.damaged"
        | "store.unread" => store(path),
        _ if name.starts_with("stripes-") => with_magic(path, &[b"BKSTSTRH"]),
        LOCK_FILE => match text_of(path) {
            Some(text) if text.starts_with("job ") => Known::Says(Said {
                job: holder_of(&text),
                ..Said::default()
            }),
            Some(text) if text.is_empty() => Known::Named,
            _ => Known::Foreign,
        },
        AGENT_FILE => match text_of(path) {
            Some(text) if text.trim().parse::<u32>().is_ok() => Known::Says(Said::default()),
            Some(text) if text.is_empty() => Known::Named,
            _ => Known::Foreign,
        },
        "agent.socket" if about.file_type().is_socket() => Known::Named,
        CONTROL_FILE | "metrics.json" | "archive.json" | "metrics.json.new"
        | "archive.json.new" => Known::Named,
        _ => Known::Foreign,
    }
}

fn of_archive(name: &str, path: &Path) -> Known {
    if super::find::archive_file(name.as_ref()).is_some() {
        return archive(path);
    }
    let is_hex = |text: &str| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let is_server = name.starts_with("server-") && name.contains(".json");
    match name {
        RUNNING_FILE => match text_of(path) {
            Some(text) if text.is_empty() || text.starts_with("job ") => Known::Named,
            _ => Known::Foreign,
        },
        "secret" | "archive.json" | "archive.json.new" | "metrics.json" | "metrics.json.new" => {
            Known::Named
        }
        _ if is_server || name.strip_prefix("secret-").is_some_and(is_hex) => Known::Named,
        _ => Known::Foreign,
    }
}

/// The job that a lock names.
fn holder_of(text: &str) -> Option<String> {
    let (job, _process) = text.strip_prefix("job ")?.rsplit_once(", process ")?;
    let job = job.strip_suffix(REMOVING).unwrap_or(job);
    Some(job.to_owned())
}

/// A short text; `None` of what is none.
fn text_of(path: &Path) -> Option<String> {
    let bytes = head(path).ok()?;
    (bytes.len() < 1024)
        .then(|| String::from_utf8(bytes).ok())
        .flatten()
}

/// The first bytes of a file.
fn head(path: &Path) -> std::io::Result<Vec<u8>> {
    let file: File = backstay_base::io::open::open_read(path)?;
    let mut bytes = vec![0; HEAD_BYTES];
    let mut done = 0;
    while done < bytes.len() {
        let at = backstay_format::width::to_u64(done);
        match file.read_at(&mut bytes[done..], at)? {
            0 => break,
            count => done += count,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// A file with one of these at the front of a copy of its superblock; one that holds nothing yet is known by its
/// name.
fn with_magic(path: &Path, magics: &[&[u8; 8]]) -> Known {
    let Ok(head) = head(path) else {
        return Known::Foreign;
    };
    let at = |offset: u64| backstay_format::width::to_usize(offset);
    let copies = SUPERBLOCK_OFFSETS.map(|offset| head.get(at(offset)..at(offset) + 8));
    let is = |copy: &[u8]| magics.iter().any(|magic| copy == *magic);
    if copies.into_iter().flatten().any(is) {
        Known::Says(Said::default())
    } else if head.iter().all(|&byte| byte == 0) {
        Known::Named
    } else {
        Known::Foreign
    }
}

fn copies<T>(path: &Path, decode: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    let head = head(path).ok()?;
    let copy = |offset: u64| {
        let from = backstay_format::width::to_usize(offset);
        head.get(from..).and_then(&decode)
    };
    SUPERBLOCK_OFFSETS.into_iter().find_map(copy)
}

fn store(path: &Path) -> Known {
    let known = with_magic(path, &[b"BKSTSUPR"]);
    let superblock = copies(path, |bytes| Superblock::decode(bytes).ok());
    match (known, superblock) {
        (Known::Says(_), Some(found)) => Known::Says(Said {
            job: Some(found.job),
            node: Some(found.node),
            store: None,
        }),
        (known, _) => known,
    }
}

fn archive(path: &Path) -> Known {
    let known = with_magic(path, &[b"BKSTARCH", b"BKSTCATL"]);
    if !matches!(known, Known::Says(_)) {
        return known;
    }
    let of_store = copies(path, |bytes| ArchiveSuperblock::decode(bytes).ok());
    let of_catalog = copies(path, |bytes| CatalogSuperblock::decode(bytes).ok());
    let store = of_store.map(|found| (found.job, found.store));
    let found = store.or_else(|| of_catalog.map(|found| (found.job, found.catalog)));
    Known::Says(Said {
        job: found.as_ref().map(|(job, _)| job.clone()),
        node: None,
        store: found.map(|(_, store)| store),
    })
}

/// The host that wrote a file of an archive.
pub(super) fn host_of_archive(path: &Path) -> Option<String> {
    let found = copies(path, |bytes| ArchiveSuperblock::decode(bytes).ok())?;
    let host = found.host.split(' ').next()?;
    (!host.is_empty()).then(|| host.to_owned())
}

/// What keeps jobs away from a folder.
#[derive(Debug)]
enum Held {
    Node(#[expect(dead_code, reason = "held until dropped")] StoreLock),
    Archive(#[expect(dead_code, reason = "held until dropped")] RunningLock),
}

/// Refuses a folder that a process uses; keeps others away.
fn hold(folder: &RemovalFolder) -> Result<Held> {
    let place = folder.folder.display();
    let busy = |who: String| {
        let context = format!("{place} is used by {who}; nothing was removed");
        Err(Error::new(ErrorKind::StoreBusy, context))
    };
    let job = folder.job.as_deref().unwrap_or("unknown");
    let who = format!("{job}{REMOVING}");
    if folder.kind == RemovalKind::Node {
        if AgentClient::find(&folder.folder).is_some() {
            return busy("the agent process of this node: end it".to_owned());
        }
        let lock = StoreLock::take(&folder.folder, &who)?;
        StoreLock::wait_for_former_ranks(&folder.folder.join(CONTROL_FILE))?;
        return Ok(Held::Node(lock));
    }
    let lock = RunningLock::take(&folder.folder, &who, false)?;
    for (name, address) in servers_in(&folder.folder) {
        let addresses = address.to_socket_addrs().into_iter().flatten();
        let mut answers = addresses.map(|at| TcpStream::connect_timeout(&at, SERVER_PATIENCE));
        if answers.any(|answer| answer.is_ok()) {
            return busy(format!("the staging server {name} at {address}: end it"));
        }
    }
    if folder.stores.iter().any(|store| Fence::is_held(*store)) {
        return busy("a process of this host, which writes it: end that job".to_owned());
    }
    Ok(Held::Archive(lock))
}

/// Removes what the plan says, once nobody uses any of it.
pub fn remove(folders: &[RemovalFolder]) -> Result<Removed> {
    let held: Vec<Held> = folders.iter().map(hold).collect::<Result<_>>()?;
    let mut done = Removed::default();
    for folder in folders {
        for routed in &folder.routed {
            let bytes = bytes_below(routed);
            std::fs::remove_dir_all(routed)
                .map_err(|error| Error::io(format!("removing {}", routed.display()), error))?;
            done.folders += 1;
            done.bytes_freed += bytes;
        }
        for file in &folder.files {
            let bytes = bytes_of(file);
            match std::fs::remove_file(file) {
                Ok(()) => {
                    done.files += 1;
                    done.bytes_freed += bytes;
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(Error::io(format!("removing {}", file.display()), error));
                }
            }
        }
        // Whose files are gone, their locks in the host's memory say nothing any more.
        folder.stores.iter().for_each(|store| Fence::forget(*store));
        done.folders += remove_empty(folder);
    }
    drop(held);
    Ok(done)
}

/// Removes the folder, and of a store those above that Backstay made, where they are empty.
fn remove_empty(folder: &RemovalFolder) -> u64 {
    let mut count = 0;
    let mut at = Some(&*folder.folder);
    for above in 0..3 {
        let Some(path) = at else { break };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // The node's, the job's, and this user's among the default places.
        let is_made = match above {
            0 => true,
            1 => folder.kind == RemovalKind::Node && Some(&*name) == folder.job.as_deref(),
            _ => folder.kind == RemovalKind::Node && name.starts_with("backstay-"),
        };
        if !is_made || std::fs::remove_dir(path).is_err() {
            break;
        }
        count += 1;
        at = path.parent();
    }
    count
}
