// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one job at a time on a folder of the archive: a lock that its file system keeps, and that goes
//! with the process or, after a while, with its host.
//! In from: `session` on rank 0, when a start begins. Out: the lock, or an error that names the other job.
//! Invariants: taken at set-up, never for a checkpoint; a courtesy that names the other job early. What is
//! recorded rests on the heirs of files (`archive::heir`), so that a lock that a file system loses, keeps on one
//! host (localflock), or does not have costs nothing.

use crate::{fence, private};
use backstay_base::error::{Error, ErrorKind, Result};
use backstay_base::io::{lock, open};
use backstay_base::notice;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

const RUNNING_FILE: &str = "running";
/// How long a job that was just killed may take to die.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// The right to drain to a folder, until dropped.
#[derive(Debug)]
pub struct RunningLock {
    _file: Option<File>,
}

impl RunningLock {
    /// Takes the lock of `folder` for `job`. `is_next_start` says that the nodes' stores are of the run that
    /// the archive is of: then a lock that lingers is of a start that is over.
    pub fn take(folder: &Path, job: &str, is_next_start: bool) -> Result<Self> {
        let path = folder.join(RUNNING_FILE);
        let failed = |error| Error::io(format!("opening {}", path.display()), error);
        let mut file = open::open_own(&path).map_err(failed)?;
        private::check_file(&path, &file.metadata().map_err(failed)?)?;
        match lock::take(&file, GRACE) {
            Ok(true) => {}
            Ok(false) => return held(&path, &lock::holder(&file), is_next_start),
            Err(error) => {
                notice::warn(&format!(
                    "{} cannot be locked ({error}): of two jobs on one archive the later one has it, \
                     which the other learns when it archives",
                    path.display()
                ));
                return Ok(Self { _file: None });
            }
        }
        let mine = format!(
            "job {job}, process {} of {}\n",
            std::process::id(),
            fence::host()
        );
        open::inscribe(&mut file, &mine).map_err(failed)?;
        Ok(Self { _file: Some(file) })
    }
}

fn held(path: &Path, holder: &str, is_next_start: bool) -> Result<RunningLock> {
    if is_next_start {
        notice::warn(&format!(
            "{} is still locked by {holder}, an earlier start of this job; going on without it",
            path.display()
        ));
        return Ok(RunningLock { _file: None });
    }
    let context = format!(
        "the archive {} is used by {holder}; two jobs cannot share it: set another archive or job name. If \
         that job is dead, its file system has not noticed yet: wait, or remove {}",
        path.parent().unwrap_or(path).display(),
        path.display()
    );
    Err(Error::new(ErrorKind::StoreBusy, context))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_job_is_refused_and_the_next_start_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let first = RunningLock::take(folder.path(), "one", false).unwrap();
        let error = RunningLock::take(folder.path(), "one", false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreBusy);
        assert!(error.to_string().contains("job one, process"), "{error}");
        assert!(RunningLock::take(folder.path(), "one", true).is_ok());
        drop(first);
        assert!(RunningLock::take(folder.path(), "one", false).is_ok());
    }
}
