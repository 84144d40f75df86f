// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one job at a time on a store: a lock that dies with its process, and names its holder.
//! In from: the node's leader. Out: the lock, or an error that names the other job.
//! Invariants: locks are the kernel's (flock), so a dead job's lock is taken over by itself.

use crate::clock::Deadline;
use crate::error::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// How long a job that was just killed may take to die.
const GRACE: Duration = Duration::from_secs(5);

/// The lock of a store, held until dropped.
#[derive(Debug)]
pub struct StoreLock {
    _file: File,
}

impl StoreLock {
    /// Takes the lock in `directory` for `job`. Waits a few seconds for a holder that is dying.
    pub fn take(directory: &Path, job: &str) -> Result<Self> {
        let path = directory.join("lock.backstay");
        let failed = |error| Error::io(format!("opening {}", path.display()), error);
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let mut file = options.open(&path).map_err(failed)?;
        wait_for(&file, &path, || holder(&path))?;
        let mine = format!("job {job}, process {}\n", std::process::id());
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(mine.as_bytes()))
            .map_err(failed)?;
        Ok(Self { _file: file })
    }

    /// Whether a leader that lives holds the lock in `directory`.
    pub fn is_held(directory: &Path) -> bool {
        let file = File::open(directory.join("lock.backstay"));
        file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// Waits until no process of an earlier life holds the control file at `path`.
    pub fn wait_for_former_ranks(path: &Path) -> Result<()> {
        let Ok(file) = File::open(path) else {
            return Ok(());
        };
        wait_for(&file, path, || {
            "a process of an earlier life of this job that still runs".to_owned()
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
