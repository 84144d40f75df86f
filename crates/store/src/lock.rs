// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one job at a time on a store: a lock that dies with its process, and names its holder.
//! In from: the node's leader. Out: the lock, or an error that names the other job.
//! Invariants: locks are the kernel's (flock), so a dead job's lock is taken over by itself.

use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::{lock, open};
use std::fs::File;
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
        wait_for(&file, &path, "another job")?;
        let mine = format!("job {job}, process {}\n", std::process::id());
        open::inscribe(&mut file, &mine).map_err(failed)?;
        Ok(Self { file })
    }

    /// Whether this lock is the one that others find in `directory`.
    pub fn stands_in(&self, directory: &Path) -> bool {
        lock::stands_at(&self.file, &directory.join(LOCK_FILE))
    }

    /// Whether a leader that lives holds the lock in `directory`.
    pub fn is_held(directory: &Path) -> bool {
        lock::is_held(&directory.join(LOCK_FILE))
    }

    /// Holds the place of the control file at `path`, which somebody removed while it was mapped: a later
    /// start waits for this process there.
    pub fn hold_place(path: &Path) -> Result<File> {
        let failed = |error| Error::io(format!("opening {}", path.display()), error);
        let file = open::open_own(path).map_err(failed)?;
        if lock::share(&file).map_err(failed)? {
            return Ok(file);
        }
        Err(busy(path, "another start of this job"))
    }

    /// Waits until no process of an earlier start holds the control file at `path`.
    pub fn wait_for_former_ranks(path: &Path) -> Result<()> {
        let Ok(file) = open::open_read(path) else {
            return Ok(());
        };
        wait_for(
            &file,
            path,
            "a process of an earlier start of this job that still runs",
        )
    }
}

/// Takes the lock of `file`, or names who has it: as its text says, or else as `nobody_said`.
fn wait_for(file: &File, path: &Path, nobody_said: &str) -> Result<()> {
    let taken = lock::take(file, GRACE);
    if taken.map_err(|error| Error::io(format!("locking {}", path.display()), error))? {
        return Ok(());
    }
    let holder = lock::holder(file);
    let is_said = !holder.is_empty() && path.ends_with(LOCK_FILE);
    Err(busy(path, if is_said { &holder } else { nobody_said }))
}

fn busy(path: &Path, holder: &str) -> Error {
    let context = format!(
        "{} is held by {holder}; end that job, or set another job name or store_path",
        path.display()
    );
    Error::new(ErrorKind::StoreBusy, context)
}
