// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: who may write a file on shared storage: the process that made it, or one of the same host and
//! boot once that process is proven dead. Everybody else takes over: a new file under a higher epoch.
//! Invariants: the proof is a lock of the kernel (flock) on a file of the host's memory, never on shared
//! storage; without that file there is no proof, so it stays when its holder is gone, and nobody misses it
//! only after a long time. It is removed under its own lock, and whoever locks one looks whether it is still
//! the one in its place.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::{lock, open};
use backstay_format::StoreId;
use backstay_format::limits::LABEL_BYTES_MAX;
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

/// How long a process that was just killed may take to die.
const GRACE: Duration = Duration::from_secs(2);
/// A lock that nobody has held for so long is removed. Should its file be written again after all, that is a
/// takeover, as on another host.
const FORGOTTEN: Duration = Duration::from_secs(30 * 86_400);

/// Whether this process has removed such locks.
static SWEPT: Once = Once::new();

/// This host and its boot, as files on shared storage name them.
pub fn host() -> String {
    let name = rustix::system::uname();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = boot.trim();
    let mut host = name.nodename().to_string_lossy().into_owned();
    let room = LABEL_BYTES_MAX.saturating_sub(boot.len() + 1);
    while host.len() > room {
        host.pop();
    }
    format!("{host} {boot}")
}

/// The right to write a file, until dropped.
#[derive(Debug)]
pub struct Fence {
    _file: File,
}

impl Fence {
    /// For a file that this process makes.
    pub fn first(store: StoreId) -> Result<Self> {
        let folder = folder()?;
        // Not where a file is written again: its own lock may be an old one. Once is enough: it reads them all.
        SWEPT.call_once(|| remove_forgotten(&folder, FORGOTTEN));
        Self::first_in(&folder, store)
    }

    /// For a file that a process of `host` made; `what` names it in errors. [`ErrorKind::StoreBusy`] if
    /// that process lives, or cannot be proven dead.
    pub fn again(store: StoreId, host: &str, what: &str) -> Result<Self> {
        if host != self::host() {
            let why = format!("it is written by {host}, this is {}", self::host());
            return Err(busy(what, &why));
        }
        Self::again_in(&folder()?, store, what)
    }

    fn first_in(folder: &Path, store: StoreId) -> Result<Self> {
        let path = path(folder, store);
        let failed = |error| Error::io(format!("making {}", path.display()), error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = open::open(&options, &path).map_err(failed)?;
        let taken = lock::take(&file, Duration::ZERO).map_err(failed)?;
        if !taken || !lock::stands_at(&file, &path) {
            return Err(busy(
                &path.display().to_string(),
                "it was removed meanwhile",
            ));
        }
        Self::signed(file).map_err(failed)
    }

    fn again_in(folder: &Path, store: StoreId, what: &str) -> Result<Self> {
        let path = path(folder, store);
        let mut options = OpenOptions::new();
        let Ok(file) = open::open(options.read(true).write(true), &path) else {
            let why = format!("{} is gone, so its process may live", path.display());
            return Err(busy(what, &why));
        };
        if !lock::take(&file, GRACE).unwrap_or(false) {
            let holder = match lock::holder(&file) {
                process if process.is_empty() => "a process of this host".to_owned(),
                process => format!("process {process}"),
            };
            return Err(busy(what, &format!("{holder} writes it")));
        }
        if !lock::stands_at(&file, &path) {
            return Err(busy(what, "its lock was replaced meanwhile"));
        }
        Self::signed(file).map_err(|error| Error::io(format!("{}", path.display()), error))
    }

    /// Removes the lock of a file that was removed, unless a process holds it.
    pub fn forget(store: StoreId) {
        if let Ok(folder) = folder() {
            remove_unheld(&path(&folder, store));
        }
    }

    /// Whether a process of this host that lives may write the file.
    pub fn is_held(store: StoreId) -> bool {
        folder().is_ok_and(|folder| lock::is_held(&path(&folder, store)))
    }

    fn signed(mut file: File) -> std::io::Result<Self> {
        open::inscribe(&mut file, &format!("{}\n", std::process::id()))?;
        Ok(Self { _file: file })
    }
}

/// Removes locks that nobody holds and nobody took for `age`.
fn remove_forgotten(folder: &Path, age: Duration) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let taken = entry.metadata().and_then(|metadata| metadata.modified());
        let is_old = taken.is_ok_and(|taken| taken.elapsed().is_ok_and(|since| since >= age));
        if is_old
            && path
                .extension()
                .is_some_and(|extension| extension == "lock")
        {
            remove_unheld(&path);
        }
    }
}

/// Removes a lock under itself: whoever opened it before, and gets it after, sees that it is gone.
fn remove_unheld(path: &Path) -> bool {
    let Ok(file) = open::open_read(path) else {
        return false;
    };
    lock::take(&file, Duration::ZERO).unwrap_or(false)
        && lock::stands_at(&file, path)
        && std::fs::remove_file(path).is_ok()
}

fn busy(what: &str, why: &str) -> Error {
    let context = format!("{what}: {why}; take it over under a higher epoch");
    Error::new(ErrorKind::StoreBusy, context)
}

fn path(folder: &Path, store: StoreId) -> PathBuf {
    folder.join(format!("{store}.lock"))
}

/// A folder of this user in the host's memory, else among temporary files.
fn folder() -> Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    let folder = parent.join(format!("backstay-archive-{user}"));
    let made = DirBuilder::new().mode(0o700).create(&folder);
    match made {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Error::io(format!("making {}", folder.display()), error));
        }
        _ => {}
    }
    let owned = std::fs::symlink_metadata(&folder)
        .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user);
    if !owned {
        let context = format!("{} belongs to somebody else", folder.display());
        return Err(Error::new(ErrorKind::Configuration, context));
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreId = StoreId(*b"0123456789abcdef");

    #[test]
    fn one_process_at_a_time_and_only_with_proof() {
        let folder = tempfile::tempdir().unwrap();
        let again = || Fence::again_in(folder.path(), STORE, "a file");
        let kind = |result: Result<Fence>| result.unwrap_err().kind();
        assert_eq!(kind(again()), ErrorKind::StoreBusy, "no lock, no proof");
        let first = Fence::first_in(folder.path(), STORE).unwrap();
        let error = again().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreBusy);
        let me = format!("process {}", std::process::id());
        assert!(error.to_string().contains(&me), "{error}");
        assert!(Fence::first_in(folder.path(), STORE).is_err());
        drop(first);
        let second = again().unwrap();
        assert_eq!(kind(again()), ErrorKind::StoreBusy);
        drop(second);
        assert!(again().is_ok());
    }

    #[test]
    fn a_lock_goes_only_when_nobody_has_held_it_for_long() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, lock) = (folder.path(), path(folder.path(), STORE));
        let fence = Fence::first_in(folder, STORE).unwrap();
        std::fs::write(folder.join("notes.txt"), "").unwrap();
        remove_forgotten(folder, Duration::ZERO);
        assert!(lock.exists(), "held");
        drop(fence);
        remove_forgotten(folder, FORGOTTEN);
        assert!(lock.exists(), "there is proof for a while");
        remove_forgotten(folder, Duration::ZERO);
        assert!(!lock.exists() && folder.join("notes.txt").exists());
        let again = Fence::again_in(folder, STORE, "a file");
        assert_eq!(again.unwrap_err().kind(), ErrorKind::StoreBusy);
    }

    #[test]
    fn of_those_who_remove_and_those_who_take_a_lock_one_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let (folder, held) = (folder.path(), std::sync::atomic::AtomicU32::new(0));
        let take = || {
            for _ in 0..300 {
                let taken = Fence::first_in(folder, STORE);
                let taken = taken.or_else(|_| Fence::again_in(folder, STORE, "a file"));
                let Ok(fence) = taken else { continue };
                // Whoever has the fence is alone.
                assert_eq!(held.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                held.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                drop(fence);
            }
        };
        let remove = || {
            (0..3000)
                .filter(|_| remove_unheld(&path(folder, STORE)))
                .count()
        };
        std::thread::scope(|scope| {
            scope.spawn(take);
            scope.spawn(take);
            scope.spawn(remove);
        });
    }

    #[test]
    fn another_host_or_boot_is_refused() {
        let error = Fence::again(STORE, "other 123", "aggregate-0-1.backstay").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreBusy);
        let text = error.to_string();
        assert!(
            text.contains("other 123") && text.contains(&host()),
            "{text}"
        );
        assert!(host().len() <= LABEL_BYTES_MAX && host().contains(' '));
    }
}
