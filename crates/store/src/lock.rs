// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one job at a time on a store: a lock that dies with its process, and names its holder.
//! In from: the node's leader. Out: the lock, or an error that names the other job.
//! Invariants: locks are the kernel's (flock), so a dead job's lock is taken over by itself.

use backstay_base::clock::Deadline;
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::open;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Name of the lock in the folder of a store.
const LOCK_FILE: &str = "lock.backstay";
/// How long a job that was just killed may take to die.
const GRACE: Duration = Duration::from_secs(5);

/// The lock of a store, held until dropped.
#[derive(Debug)]
pub struct StoreLock {
    file: File,
}

impl StoreLock {
    /// Takes the lock in `directory` for `job`. Waits a few seconds for a holder that is dying.
    pub fn take(directory: &Path, job: &str) -> Result<Self> {
        let path = directory.join(LOCK_FILE);
        let failed = |error| Error::io(format!("opening {}", path.display()), error);
        let mut file = open::open_own(&path).map_err(failed)?;
        wait_for(&file, &path, || holder(&path))?;
        let mine = format!("job {job}, process {}\n", std::process::id());
        open::inscribe(&mut file, &mine).map_err(failed)?;
        Ok(Self { file })
    }

    /// Whether this lock is the one that others find in `directory`.
    pub fn stands_in(&self, directory: &Path) -> bool {
        let inode = |found: std::fs::Metadata| (found.dev(), found.ino());
        let held = self.file.metadata().map(inode).ok();
        held.is_some() && std::fs::metadata(directory.join(LOCK_FILE)).map(inode).ok() == held
    }

    /// Whether a leader that lives holds the lock in `directory`.
    pub fn is_held(directory: &Path) -> bool {
        let file = open::open_read(&directory.join(LOCK_FILE));
        file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// Holds the place of the control file at `path`, which somebody removed while it was mapped: a later
    /// start waits for this process there.
    pub fn hold_place(path: &Path) -> Result<File> {
        let failed = |error| Error::io(format!("opening {}", path.display()), error);
        let file = open::open_own(path).map_err(failed)?;
        let held = flock(&file, FlockOperation::NonBlockingLockShared);
        held.map_err(|error| failed(error.into()))?;
        Ok(file)
    }

    /// Waits until no process of an earlier start holds the control file at `path`.
    pub fn wait_for_former_ranks(path: &Path) -> Result<()> {
        let Ok(file) = open::open_read(path) else {
            return Ok(());
        };
        wait_for(&file, path, || {
            "a process of an earlier start of this job that still runs".to_owned()
        })
    }
}

fn wait_for(file: &File, path: &Path, holder: impl Fn() -> String) -> Result<()> {
    let deadline = Deadline::after(GRACE);
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK) if deadline.left().is_some() => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let context = format!(
                    "{} is held by {}; end that job, or set another job name or store_path",
                    path.display(),
                    holder()
                );
                return Err(Error::new(ErrorKind::StoreBusy, context));
            }
            Err(error) => {
                return Err(Error::io(
                    format!("locking {}", path.display()),
                    error.into(),
                ));
            }
        }
    }
}

fn holder(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(512).read_to_string(&mut text));
    match read {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => "another job".to_owned(),
    }
}
