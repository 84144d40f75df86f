// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: processes: the launcher of the application, remote shells, questions to a scheduler.
//! In from: words, an environment.
//! Out to: an exit status, output.
//! Invariants: each stands in a process group of its own, so that all of it can be ended; no wait
//! without a limit; the launcher is started through `backstay` itself, which asks the kernel to be
//! told when its parent dies.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Between two looks at a process.
pub(crate) const TICK: Duration = Duration::from_millis(20);
const OUTPUT_MAX: u64 = 1 << 20;

/// A process and all that it started in its group.
#[derive(Debug)]
pub(crate) struct Group {
    child: Child,
    group: Option<Pid>,
}

impl Group {
    /// Starts `words` with these variables more; standard output and error are this process's own.
    pub(crate) fn start(
        words: &[String],
        variables: &[(String, String)],
        input: bool,
    ) -> Result<Self, String> {
        let (program, rest) = words.split_first().ok_or("no command was given")?;
        let mut command = Command::new(program);
        command
            .args(rest)
            .envs(variables.iter().map(|(name, value)| (name, value)));
        command.process_group(0);
        if !input {
            command.stdin(Stdio::null());
        }
        let child = command
            .spawn()
            .map_err(|error| format!("cannot start {program}: {error}"))?;
        Ok(Self::of(child))
    }

    fn of(child: Child) -> Self {
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Self { child, group }
    }

    /// Its status, if it is over.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        // An error means that there is nothing to wait for any more.
        self.child
            .try_wait()
            .unwrap_or_else(|_error| Some(ExitStatus::from_raw(1 << 8)))
    }

    /// Sends a signal to all of the group.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // An error says that it is over.
            kill_process_group(group, signal).ok();
        }
    }

    /// Waits until it is over, at most so long.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(TICK);
        }
    }

    /// SIGTERM, and SIGKILL for what is left after `grace`.
    pub(crate) fn end(&mut self, grace: Duration) {
        self.signal(Signal::TERM);
        if self.wait(grace).is_none() {
            self.signal(Signal::KILL);
            self.wait(grace);
        }
        self.signal(Signal::KILL);
    }
}

/// The exit code that stands for a status: that of a shell, 128 + signal.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    u8::try_from(code.unwrap_or(1)).unwrap_or(1)
}

/// How something ended, in words.
pub(crate) fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) if (129..=192).contains(&code) => {
            format!("exit {code}, which is signal {}", code - 128)
        }
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

/// Runs a command to its end; its standard output, or what went wrong.
pub(crate) fn output(words: &[String], limit: Duration) -> Result<String, String> {
    let (program, rest) = words.split_first().ok_or("no command was given")?;
    let name = words.join(" ");
    let mut command = Command::new(program);
    command.args(rest).process_group(0);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| format!("cannot start {program}: {error}"))?;
    let out = child.stdout.take().map(read_all);
    let err = child.stderr.take().map(read_all);
    let mut group = Group::of(child);
    let Some(status) = group.wait(limit) else {
        group.end(Duration::from_secs(1));
        return Err(format!("{name} did not end within {} s", limit.as_secs()));
    };
    // What it may have left behind would hold the pipes open.
    group.signal(Signal::KILL);
    let text = |reader: Option<std::thread::JoinHandle<String>>| {
        reader
            .and_then(|reader| reader.join().ok())
            .unwrap_or_default()
    };
    let (out, err) = (text(out), text(err));
    if status.success() {
        return Ok(out);
    }
    Err(format!("{name}: {}: {}", self::words(status), err.trim()))
}

fn read_all(from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A part is better than nothing.
        drop(from.take(OUTPUT_MAX).read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str) -> Vec<String> {
        ["sh", "-c", text].map(str::to_owned).to_vec()
    }

    #[test]
    fn output_and_status_are_told() {
        let limit = Duration::from_secs(5);
        assert_eq!(output(&shell("echo yes"), limit), Ok("yes\n".to_owned()));
        let error = output(&shell("echo why >&2; exit 3"), limit).expect_err("exit 3");
        assert!(error.contains("exit 3: why"), "{error}");
        output(&["/no/such".to_owned()], limit).expect_err("no program");
        output(&[], limit).expect_err("no command");
        let error = output(&shell("sleep 60"), Duration::from_millis(100)).expect_err("late");
        assert!(error.contains("did not end"), "{error}");
    }

    #[test]
    fn the_whole_group_is_ended() {
        let mut group = Group::start(
            &shell("trap '' TERM; sleep 60 & wait; sleep 60"),
            &[],
            false,
        )
        .expect("started");
        let began = Instant::now();
        group.end(Duration::from_millis(200));
        assert!(group.ended().is_some() && began.elapsed() < Duration::from_secs(10));
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
    }
}
