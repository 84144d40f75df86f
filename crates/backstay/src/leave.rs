// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: whether somebody wishes that the program takes a last checkpoint and leaves: SIGTERM, where
//! the program opted in, or the file that `backstay run` names in `BACKSTAY_LEAVE_FILE`; and what
//! `backstay run` is told when the newest checkpoint could not be read, and when the job is finished.
//! In from: `session`. Out to: the same, which has all ranks agree; `backstay run`.
//! Invariants: a signal only sets a flag; the leave file is looked at, never written.

use crate::config::Config;
use backstay_base::clock::Stopwatch;
use backstay_base::error::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Names the file whose presence is the wish.
pub const LEAVE_FILE: &str = "BACKSTAY_LEAVE_FILE";
/// Names the folder for the processes of a job to find each other, and `backstay run` them.
pub const RENDEZVOUS: &str = "BACKSTAY_RENDEZVOUS";
/// What is written there when the newest checkpoint could not be read: why, in one line.
pub const UNREADABLE_FILE: &str = "unreadable";
/// What is written there when the job is finished: the number of its last checkpoint.
pub const FINISHED_FILE: &str = "finished";
/// The file is looked for no more often than this.
const LOOK: Duration = Duration::from_millis(200);

/// The wish as this rank sees it.
#[derive(Debug)]
pub struct LeaveWish {
    signal: Arc<AtomicBool>,
    file: Option<PathBuf>,
    looked: Option<Stopwatch>,
    wished: bool,
}

impl LeaveWish {
    /// Watches from now on what the configuration says, and the environment.
    pub fn watch(config: &Config) -> Result<Self> {
        let signal = Arc::new(AtomicBool::new(false));
        if config.leave_on_sigterm {
            signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&signal))
                .map_err(|error| {
                    Error::caused(ErrorKind::Unsupported, "watching SIGTERM", error)
                })?;
        }
        Ok(Self {
            signal,
            file: crate::config::leave_file(),
            looked: None,
            wished: false,
        })
    }

    /// Whether the wish is there.
    pub fn is_there(&mut self) -> bool {
        self.wished |= self.signal.load(Ordering::Acquire);
        let again = self.looked.as_ref().is_none_or(|at| at.elapsed() > LOOK);
        if let (false, true, Some(file)) = (self.wished, again, &self.file) {
            self.looked = Some(Stopwatch::start());
            self.wished = file.exists();
        }
        self.wished
    }
}

/// Tells `backstay run`, if it started this program, why nothing was restored.
pub fn say_unreadable(why: &str) -> Result<()> {
    say(UNREADABLE_FILE, why)
}

/// Tells `backstay run`, if it started this program, that the job is finished with checkpoint `number`.
pub fn say_finished(number: u64) -> Result<()> {
    say(FINISHED_FILE, &number.to_string())
}

fn say(file: &str, text: &str) -> Result<()> {
    let Some(folder) = crate::config::rendezvous() else {
        return Ok(());
    };
    let path = folder.join(file);
    std::fs::write(&path, format!("{text}\n"))
        .map_err(|error| Error::io(format!("writing {}", path.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_wish_to_leave() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leave");
        let mut wish = LeaveWish::watch(&Config::default()).unwrap();
        wish.file = Some(path.clone());
        assert!(!wish.is_there());
        std::fs::write(&path, "the allocation ends").unwrap();
        wish.looked = None;
        assert!(wish.is_there());
    }
}
