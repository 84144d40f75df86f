// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the routing agents of each start, one a host, and what the program is given for them.
//! In from: `--route` (patterns), `starts`. Out to: the agents' processes, variables of the program; `backstay-calls`, where
//! the kernel tells the program's calls: to this process, since the system lets ancestors alone look into a process.
//! Invariants: a program is started when its files are there; the agent takes its last checkpoint when the program is
//! over; an agent that dies ends the program, which could complete nothing any more; the secret of a start goes to the
//! agents' inputs alone.
//!
//! The contract with an agent: it prints its folder and a line feed once files are there, and ends when its input
//! does; `well` there says that the program ended well. One of several (`--host`) is told its rank and the secret first, prints its address, and
//! is told the addresses of all.

use super::agents::quoted;
use super::child::{TICK, words};
use super::command::Launcher;
use backstay_calls::Calls;
use backstay_net::Secret;
use backstay_route::HINTS_FILE;
use rustix::process::Signal;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// The variables that a program's processes are given.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";
pub(crate) const FOLDER: &str = backstay_route::VARIABLE;
/// For the process that becomes the program alone.
const CALLS: &str = backstay_route::CALLS_VARIABLE;
const ELSEWHERE: &str = "--route-by seccomp is for programs on this host alone: name no others";
/// What MPI libraries are told where several hosts write one file: no rank writes for one of another host, and none reads
/// before it writes (data sieving), since that would be written by two. Locks do not meet, so none are asked for.
const MPI: [(&str, Option<&str>); 4] = [
    ("ROMIO_HINTS", None),
    ("OMPI_MCA_fcoll", Some("individual")),
    ("OMPI_MCA_fbtl_posix_write_datasieving", Some("0")),
    ("OMPI_MCA_fs_ufs_lock_algorithm", Some("1")),
];
/// For an agent that was told to end at once.
const GRACE: Duration = Duration::from_secs(10);

/// For an agent to say where it is.
const BEGINNING: Duration = Duration::from_secs(60);

/// How routing is done.
#[derive(Clone, Debug)]
pub struct RoutePlan {
    /// The command `backstay` on this host.
    pub own: OsString,
    /// The words behind it that start an agent.
    pub words: Vec<OsString>,
    /// How the program's calls come to be routed.
    pub by: By,
    /// Several hosts write one file.
    pub shared: bool,
    /// Names of this host.
    pub own_names: Vec<String>,
    /// How to start one on another host.
    pub reach: Reach,
}

/// How calls of a program come to be routed.
#[derive(Clone, Debug)]
pub enum By {
    /// By this library, which the dynamic linker loads into it.
    Preload(PathBuf),
    /// By the kernel, which tells them to this process.
    Seccomp,
}

/// How agents are started on other hosts.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Words that start a command on a host; the host and the command follow.
    pub remote_shell: Vec<String>,
    /// Whether it is a step of Slurm instead.
    pub slurm: bool,
    /// The command `backstay`, as hosts find it.
    pub backstay: String,
    /// Settings of the environment, which remote shells do not pass on.
    pub settings: Vec<(String, String)>,
}

/// The agents of a start.
#[derive(Debug)]
pub(crate) struct Routing {
    members: Vec<Member>,
    /// Who answers the program's calls, where the kernel tells them.
    calls: Option<Calls>,
}

/// The agent of a host.
#[derive(Debug)]
struct Member {
    /// The host, where it is not this one alone.
    host: Option<String>,
    child: Child,
    input: Option<ChildStdin>,
    said: Receiver<String>,
}

impl RoutePlan {
    /// That the program's processes can be routed on these hosts.
    pub(crate) fn check(
        &self,
        command: &super::command::Command,
        hosts: &[String],
    ) -> Result<(), String> {
        if matches!(self.by, By::Preload(_)) {
            return command.check_preload(hosts);
        }
        if matches!(command.launcher(), Launcher::Srun | Launcher::Flux) {
            return Err(format!(
                "--route-by seccomp needs ranks that the launcher starts itself: {} has its daemons start them; \
                 use mpirun on one host",
                command.launcher().name()
            ));
        }
        if hosts.iter().all(|host| self.own_names.contains(host)) {
            Ok(())
        } else {
            Err(ELSEWHERE.to_owned())
        }
    }

    /// Starts the agents; with them what the program is given. `signalled` gives them up.
    pub(crate) fn begin(
        &self,
        variables: &[(String, String)],
        hosts: &[String],
        signalled: &AtomicBool,
    ) -> Result<(Routing, Vec<(String, String)>), String> {
        let mut distinct: Vec<&String> = Vec::new();
        for host in hosts {
            if !distinct.contains(&host) {
                distinct.push(host);
            }
        }
        let is_own = |host: &&String| self.own_names.contains(*host);
        let mut routing = Routing {
            members: Vec::new(),
            calls: None,
        };
        let begun = if distinct.iter().all(is_own) {
            routing.start(self.here(&[], variables), None)
        } else {
            routing.start_on(self, &distinct, variables)
        };
        let given = begun.and_then(|()| {
            if routing.members.len() > 1 {
                routing.introduce(signalled)?;
            }
            let folder = routing.folder(signalled)?;
            routing.given(self, &folder)
        });
        let given = match given {
            Ok(given) => given,
            Err(why) => {
                routing.kill();
                return Err(why);
            }
        };
        Ok((routing, given))
    }

    /// What MPI libraries are told, unless they were told something else.
    fn hints(&self, folder: &str) -> Vec<(String, String)> {
        let file = format!("{folder}/{HINTS_FILE}");
        let all = MPI.iter().filter(|_| self.shared);
        let own = all.filter(|(name, _)| std::env::var_os(name).is_none());
        own.map(|(name, value)| ((*name).to_owned(), value.unwrap_or(&file).to_owned()))
            .collect()
    }

    /// The variables that the program's processes need.
    pub(crate) fn variables(&self) -> Vec<String> {
        let hints = MPI.iter().filter(|_| self.shared).map(|(name, _)| *name);
        let all = [PRELOAD, FOLDER].into_iter().chain(hints);
        all.map(str::to_owned).collect()
    }

    /// An agent on this host.
    fn here(&self, more: &[&str], variables: &[(String, String)]) -> Command {
        let mut command = Command::new(&self.own);
        // What stands last are the patterns.
        let (first, rest) = self.words.split_at(1.min(self.words.len()));
        command.args(first).args(more).args(rest);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// An agent on another host.
    fn there(
        &self,
        host: &str,
        more: &[&str],
        variables: &[(String, String)],
    ) -> Result<Command, String> {
        let here = std::env::current_dir().map_err(|error| format!("this folder: {error}"))?;
        let mut line = format!("cd {} &&", quoted(&here.to_string_lossy()));
        for (name, value) in self.reach.settings.iter().chain(variables) {
            line.extend([" ", name, "=", &quoted(value)]);
        }
        let own = [self.reach.backstay.clone()].into_iter();
        let (first, rest) = self.words.split_at(1.min(self.words.len()));
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let words = own
            .chain(first.iter().map(text))
            .chain(more.iter().map(|&word| word.to_owned()))
            .chain(rest.iter().map(text));
        line.push_str(" exec");
        for word in words {
            line.push(' ');
            line.push_str(&quoted(&word));
        }
        let mut words: Vec<String> = if self.reach.slurm {
            let step = "srun --overlap --mpi=none --export=ALL -N 1 -n 1 -w";
            step.split(' ').map(str::to_owned).collect()
        } else {
            self.reach.remote_shell.clone()
        };
        words.push(host.to_owned());
        if self.reach.slurm {
            words.extend(["sh".to_owned(), "-c".to_owned()]);
        }
        words.push(line);
        let (program, rest) = words.split_first().ok_or("there is no remote shell")?;
        let mut command = Command::new(program);
        command.args(rest);
        Ok(command)
    }
}

fn read_lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (told, said) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // Nobody listens any more where the agent was given up.
            drop(told.send(line));
        }
    });
    said
}

impl Member {
    fn start(mut command: Command, host: Option<String>) -> Result<Self, String> {
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let where_ = host
            .as_ref()
            .map_or_else(String::new, |host| format!(" on {host}"));
        let mut child = command
            .spawn()
            .map_err(|error| format!("cannot start the routing agent{where_}: {error}"))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let said = output.map(read_lines);
        Ok(Self {
            host,
            child,
            input,
            said: said.ok_or("the routing agent has no output")?,
        })
    }

    fn where_(&self) -> String {
        let host = self.host.as_ref();
        host.map_or_else(String::new, |host| format!(" on {host}"))
    }

    fn tell(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            // One that is gone is seen by its end.
            drop(input.write_all(line.as_bytes()));
        }
    }

    /// The next line that it says.
    fn hear(&mut self, signalled: &AtomicBool, limit: Option<Duration>) -> Result<String, String> {
        let until = limit.map(|limit| Instant::now() + limit);
        loop {
            match self.said.try_recv() {
                Ok(line) => return Ok(line),
                Err(TryRecvError::Disconnected) => {
                    let ended = self.wait(GRACE);
                    let how = ended.map_or_else(|| "without a word".to_owned(), words);
                    let where_ = self.where_();
                    return Err(format!(
                        "the routing agent{where_} ended with {how}, see above"
                    ));
                }
                Err(TryRecvError::Empty) if signalled.load(Ordering::Relaxed) => {
                    return Err("asked to leave before the files were there".to_owned());
                }
                Err(TryRecvError::Empty) if until.is_some_and(|until| Instant::now() > until) => {
                    let where_ = self.where_();
                    return Err(format!("the routing agent{where_} does not answer"));
                }
                Err(TryRecvError::Empty) => std::thread::sleep(TICK),
            }
        }
    }

    fn ended(&mut self) -> Option<ExitStatus> {
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

    fn kill(&mut self, grace: Duration) {
        self.input = None;
        if self.wait(grace).is_none() {
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

impl Routing {
    /// What the program is given, whose agent has this folder.
    fn given(&mut self, plan: &RoutePlan, folder: &str) -> Result<Vec<(String, String)>, String> {
        let more = match &plan.by {
            By::Preload(library) => {
                let library = library.to_string_lossy();
                let before = std::env::var("LD_PRELOAD").unwrap_or_default();
                let preload = if before.is_empty() {
                    library.into_owned()
                } else {
                    format!("{library}:{before}")
                };
                (PRELOAD.to_owned(), preload)
            }
            By::Seccomp => {
                self.calls = Some(Calls::serve(Path::new(folder))?);
                (CALLS.to_owned(), folder.to_owned())
            }
        };
        let mut given = vec![more];
        if self.members.len() > 1 {
            given.extend(plan.hints(folder));
        }
        given.push((FOLDER.to_owned(), folder.to_owned()));
        Ok(given)
    }

    fn start(&mut self, command: Command, host: Option<String>) -> Result<(), String> {
        self.members.push(Member::start(command, host)?);
        Ok(())
    }

    /// One agent on each host.
    fn start_on(
        &mut self,
        plan: &RoutePlan,
        hosts: &[&String],
        variables: &[(String, String)],
    ) -> Result<(), String> {
        let library = match &plan.by {
            By::Preload(library) => library.to_string_lossy().into_owned(),
            By::Seccomp => return Err(ELSEWHERE.to_owned()),
        };
        for host in hosts {
            // It says so where the program's processes could not load it.
            let mut more = vec!["--library", &library];
            if hosts.len() > 1 {
                more.extend(["--host", host]);
            }
            let command = if plan.own_names.contains(host) {
                plan.here(&more, variables)
            } else {
                plan.there(host, &more, variables)?
            };
            self.start(command, Some((*host).clone()))?;
        }
        Ok(())
    }

    /// Tells the agents who they are, and each of all.
    fn introduce(&mut self, signalled: &AtomicBool) -> Result<(), String> {
        let secret = Secret::draw().map_err(|error| error.to_string())?;
        let digits = secret
            .bytes()
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15]);
        let digits = digits.filter_map(|digit| char::from_digit(u32::from(digit), 16));
        let secret: String = digits.collect();
        for (rank, member) in self.members.iter_mut().enumerate() {
            // By its input: nobody else sees it.
            member.tell(&format!("{rank} {secret}\n"));
        }
        let mut all = Vec::new();
        for member in &mut self.members {
            let address = member.hear(signalled, Some(BEGINNING))?;
            let host = member.host.clone().unwrap_or_default();
            all.push(format!("{host}={address}"));
        }
        let line = all.join(" ") + "\n";
        for member in &mut self.members {
            member.tell(&line);
        }
        Ok(())
    }

    /// Where the program finds its agent, once all have its files.
    fn folder(&mut self, signalled: &AtomicBool) -> Result<String, String> {
        let mut folders = Vec::new();
        for at in 0..self.members.len() {
            // One that ends takes the others with it: its word comes first.
            let gone = self
                .members
                .iter_mut()
                .position(|member| member.ended().is_some());
            folders.push(self.members[gone.unwrap_or(at)].hear(signalled, None)?);
        }
        folders.dedup();
        match &folders[..] {
            [folder] => Ok(folder.clone()),
            _ => Err(format!(
                "the routing agents have no folder in common: {folders:?}"
            )),
        }
    }

    /// How one of them ended, if it did, and on which host.
    pub(crate) fn ended(&mut self) -> Option<(ExitStatus, String)> {
        let mut members = self.members.iter_mut();
        members.find_map(|member| Some((member.ended()?, member.where_())))
    }

    /// Says that the program is over, and waits for the last checkpoint; a signal meanwhile, or the end of one of several by
    /// an error, ends them within some seconds.
    pub(crate) fn end(
        mut self,
        is_well: bool,
        signalled: &AtomicBool,
    ) -> Vec<(Option<ExitStatus>, String)> {
        for member in &mut self.members {
            if is_well {
                member.tell("well\n");
            }
            member.input = None;
        }
        let mut failed: Option<Instant> = None;
        loop {
            let mut all = true;
            for member in &mut self.members {
                match member.wait(TICK) {
                    Some(status) if !status.success() => {
                        failed.get_or_insert_with(Instant::now);
                    }
                    Some(_) => {}
                    None => all = false,
                }
            }
            let is_late = failed.is_some_and(|failed| failed.elapsed() > GRACE);
            if !all && (signalled.load(Ordering::Relaxed) || is_late) {
                self.kill();
                all = true;
            }
            if all {
                let each = self.members.iter_mut();
                return each
                    .map(|member| (member.ended(), member.where_()))
                    .collect();
            }
        }
    }

    fn kill(&mut self) {
        for member in &mut self.members {
            member.input = None;
        }
        let end = Instant::now() + GRACE;
        for member in &mut self.members {
            member.kill(end.saturating_duration_since(Instant::now()));
        }
    }
}
