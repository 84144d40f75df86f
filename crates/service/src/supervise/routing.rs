// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the routing agent of each start, and what the program is given for it.
//! In from: `--route` (patterns), `starts`. Out to: the agent's process, variables of the program.
//! Invariants: a program is started when its files are there; the agent takes its last checkpoint when the program is
//! over; an agent that dies ends the program, which could complete nothing any more.
//!
//! The contract with the agent: it prints its folder and a line feed once files are there, and ends when its input
//! does; `well` there says that the program ended well.

use super::child::{TICK, words};
use rustix::process::Signal;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// For an agent that was told to end at once.
const GRACE: Duration = Duration::from_secs(10);

/// How routing is done.
#[derive(Clone, Debug)]
pub struct RoutePlan {
    /// The words that start the agent.
    pub words: Vec<OsString>,
    /// The preload library.
    pub library: PathBuf,
    /// Names of this host.
    pub own_names: Vec<String>,
}

/// The agent of a start.
#[derive(Debug)]
pub(crate) struct Routing {
    child: Child,
    input: Option<ChildStdin>,
}

impl RoutePlan {
    /// Starts the agent; with it what the program is given. `signalled` gives it up.
    pub(crate) fn begin(
        &self,
        variables: &[(String, String)],
        hosts: &[String],
        signalled: &AtomicBool,
    ) -> Result<(Routing, Vec<(String, String)>), String> {
        if let Some(other) = hosts.iter().find(|host| !self.own_names.contains(host)) {
            return Err(format!(
                "--route works on this host alone, and the program is to run on {other}"
            ));
        }
        let (program, rest) = self.words.split_first().ok_or("no agent was given")?;
        let mut command = Command::new(program);
        command
            .args(rest)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("cannot start the routing agent: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let mut routing = Routing { child, input };
        let said = output
            .map(read_line)
            .ok_or("the routing agent has no output")?;
        let folder = routing.wait_for(&said, signalled)?;
        let library = self.library.to_string_lossy();
        let before = std::env::var("LD_PRELOAD").unwrap_or_default();
        let preload = if before.is_empty() {
            library.into_owned()
        } else {
            format!("{library}:{before}")
        };
        let given = vec![
            ("LD_PRELOAD".to_owned(), preload),
            ("BACKSTAY_ROUTE".to_owned(), folder),
        ];
        Ok((routing, given))
    }
}

fn read_line(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (told, said) = channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        if BufReader::new(from)
            .read_line(&mut line)
            .is_ok_and(|length| length > 0)
        {
            // Nobody listens any more where the agent was given up.
            drop(told.send(line.trim_end().to_owned()));
        }
    });
    said
}

impl Routing {
    fn wait_for(
        &mut self,
        said: &Receiver<String>,
        signalled: &AtomicBool,
    ) -> Result<String, String> {
        loop {
            match said.try_recv() {
                Ok(folder) => return Ok(folder),
                Err(TryRecvError::Disconnected) => {
                    let ended = self.wait(GRACE);
                    let how = ended.map_or_else(|| "without a word".to_owned(), words);
                    self.kill();
                    return Err(format!("the routing agent ended with {how}, see above"));
                }
                Err(TryRecvError::Empty) if signalled.load(Ordering::Relaxed) => {
                    self.kill();
                    return Err("asked to leave before the files were there".to_owned());
                }
                Err(TryRecvError::Empty) => std::thread::sleep(TICK),
            }
        }
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            let ended = self.ended();
            if ended.is_some() || Instant::now() >= end {
                return ended;
            }
            std::thread::sleep(TICK);
        }
    }

    /// Says that the program is over, and waits for the last checkpoint; a signal meanwhile ends it within some seconds.
    pub(crate) fn end(mut self, is_well: bool, signalled: &AtomicBool) -> Option<ExitStatus> {
        if let (Some(input), true) = (&mut self.input, is_well) {
            // An agent that is gone is seen below.
            drop(input.write_all(b"well\n"));
        }
        self.input = None;
        loop {
            let ended = self.wait(Duration::from_millis(500));
            if ended.is_some() {
                return ended;
            }
            if signalled.load(Ordering::Relaxed) {
                self.kill();
                return self.ended();
            }
        }
    }

    fn kill(&mut self) {
        self.input = None;
        if self.wait(GRACE).is_none() {
            let pid = i32::try_from(self.child.id())
                .ok()
                .and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid {
                // An error says that it is over.
                rustix::process::kill_process(pid, Signal::KILL).ok();
            }
            self.wait(GRACE);
        }
    }
}
