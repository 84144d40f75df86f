// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: whether somebody wishes that the program takes a last checkpoint and leaves: SIGTERM, where
//! the program opted in, or the file that `backstay run` names in `BACKSTAY_LEAVE_FILE`; and what
//! `backstay run` is told: that the newest checkpoint could not be read, that the job leaves, that it is finished.
//! In from: `session`. Out to: the same, which has all ranks agree; `backstay run`.
//! Invariants: a signal only sets a flag; the leave file is looked at, never written, by one rank of a node, and no
//! more often by all nodes together than 320 times a second.

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
/// Says when the start before was seen to be dead, in milliseconds since 1970.
pub const DIED: &str = "BACKSTAY_DIED_UNIX_MS";
/// What is written there when the newest checkpoint could not be read: why, in one line.
pub const UNREADABLE_FILE: &str = "unreadable";
/// What is written there when the job is finished: the number of its last checkpoint.
pub const FINISHED_FILE: &str = "finished";
/// What is written there when the program was told to leave, and before its end.
pub const LEAVING_FILE: &str = "leaving";
/// A node looks for the file no more often than this.
const LOOK: Duration = Duration::from_millis(200);
/// Looks of all nodes in a second: in a large job they take turns, and some look at any time.
const LOOKS_A_SECOND: u32 = 320;

/// Who looks for the file.
#[derive(Debug, Clone, Copy)]
pub struct Looks {
    /// Whether this rank does: all learn of it by their votes.
    pub here: bool,
    /// The place of its node.
    pub place: u32,
    /// Nodes of the job.
    pub nodes: u32,
}

impl Looks {
    /// The time from one look of this node to the next, and to its first.
    fn turns(self) -> (Duration, Duration) {
        let a_turn = (LOOKS_A_SECOND / 5).max(1);
        let turns = self.nodes.div_ceil(a_turn).max(1);
        (LOOK * turns, LOOK * (self.place % turns))
    }
}

/// The wish as this rank sees it.
#[derive(Debug)]
pub struct LeaveWish {
    signal: Arc<AtomicBool>,
    file: Option<PathBuf>,
    /// Since then, and for how long, nobody looks here.
    looked: (Stopwatch, Duration),
    every: Duration,
    wished: bool,
}

impl LeaveWish {
    /// Watches from now on what the configuration says, and the environment.
    pub fn watch(config: &Config, looks: Looks) -> Result<Self> {
        let signal = Arc::new(AtomicBool::new(false));
        if config.leave_on_sigterm {
            signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&signal))
                .map_err(|error| {
                    Error::caused(ErrorKind::Unsupported, "watching SIGTERM", error)
                })?;
        }
        let (every, first) = looks.turns();
        Ok(Self {
            signal,
            file: crate::config::leave_file().filter(|_| looks.here),
            looked: (Stopwatch::start(), first),
            every,
            wished: false,
        })
    }

    /// Whether the wish is there.
    pub fn is_there(&mut self) -> bool {
        self.wished |= self.signal.load(Ordering::Acquire);
        let again = self.looked.0.elapsed() >= self.looked.1;
        if let (false, true, Some(file)) = (self.wished, again, &self.file) {
            self.looked = (Stopwatch::start(), self.every);
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

/// Tells `backstay run`, if it started this program, that it leaves before its end: a signal may have asked for that
/// which `backstay run` did not get.
pub fn say_leaving() -> Result<()> {
    say(LEAVING_FILE, "told to")
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

    const ALONE: Looks = Looks {
        here: true,
        place: 0,
        nodes: 1,
    };

    #[test]
    fn a_file_is_the_wish_to_leave() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("leave");
        let mut wish = LeaveWish::watch(&Config::default(), ALONE).unwrap();
        wish.file = Some(path.clone());
        assert!(!wish.is_there());
        std::fs::write(&path, "the allocation ends").unwrap();
        assert!(!wish.is_there(), "it looked just now");
        wish.looked.1 = Duration::ZERO;
        assert!(wish.is_there());
    }

    #[test]
    fn nodes_of_a_large_job_take_turns() {
        assert_eq!(ALONE.turns(), (LOOK, Duration::ZERO));
        for nodes in [64, 65, 1000, 10_240] {
            let looks = |place| Looks {
                here: true,
                place,
                nodes,
            };
            let (every, _) = looks(0).turns();
            let a_second = f64::from(nodes) / every.as_secs_f64();
            assert!(a_second <= f64::from(LOOKS_A_SECOND), "{nodes}: {a_second}");
            // Somebody looks in each interval.
            let mut first: Vec<Duration> = (0..nodes).map(|place| looks(place).turns().1).collect();
            first.sort();
            first.dedup();
            let turns = u32::try_from(first.len()).unwrap();
            assert_eq!(LOOK * turns, every);
            assert!(first.iter().all(|first| *first < every));
        }
    }
}
