// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the starts of an application, one after the other, and how it is asked to leave.
//! In from: `place` (what to start), signals, the scheduler's clock.
//! Out to: the launcher's process group, the leave file, the summary.
//! Invariants: a start ends before the next one begins; asked to leave, no start follows.

use super::agents::Agents;
use super::child::{Group, TICK, code, words as words_of};
use super::events::Summary;
use super::hosts::Host;
use super::place::Start;
use super::routing::Routing;
use super::{LEAVE, Options, Parts, RENDEZVOUS};
use backstay::leave::{FINISHED_FILE, LEAVING_FILE, UNREADABLE_FILE};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs;
use std::io::IsTerminal;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// From SIGTERM to SIGKILL.
const KILL_AFTER: Duration = Duration::from_secs(10);
/// What a shell, and the wrapper, say of a command that is not there.
const NOT_FOUND: u8 = 127;
/// The exit code of a job that left because it was asked to, well and before its end: try again later
/// (`EX_TEMPFAIL`). Not 0, so that what depends on its end does not begin.
const UNFINISHED: u8 = 75;
/// That of a job whose files were routed and may not be kept, though it ended well itself.
const UNKEPT: u8 = 1;
/// Between two looks at the hosts of a start.
const LOOK_AFTER: Duration = Duration::from_secs(20);
/// For agents to end by themselves.
const AGENTS_GRACE: Duration = Duration::from_secs(10);

/// The state of `backstay run`.
pub(crate) struct Supervisor {
    pub(crate) options: Options,
    pub(crate) parts: Parts,
    pub(crate) summary: Summary,
    /// The hosts are those that the scheduler gives this command anyway.
    pub(crate) from_scheduler: bool,
    agents: Option<Agents>,
    newest: Option<u64>,
    stalls: u32,
    /// Deaths in a row after each of which the newest checkpoint could not be read.
    unread: u32,
    leaving: bool,
    /// What the application is told where the job shall begin anew: the same at all starts of this run.
    pub(crate) fresh: Option<u64>,
    clock_read: Option<Instant>,
    /// When the last start was seen to be dead, in milliseconds since 1970.
    pub(super) died_unix_ms: Option<u64>,
    /// What the last start wrote last may be in no checkpoint: a routing agent did not end well.
    unkept: bool,
}

impl Supervisor {
    pub(crate) fn new(mut options: Options, mut parts: Parts) -> Result<Self, String> {
        let wrong = |what: &Path, error: &dyn std::fmt::Display| {
            format!("cannot make {}: {error}", what.display())
        };
        options.folder =
            std::path::absolute(&options.folder).map_err(|error| wrong(&options.folder, &error))?;
        let rendezvous = options.folder.join(RENDEZVOUS);
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
            .create(&rendezvous)
            .map_err(|error| wrong(&rendezvous, &error))?;
        let mode = fs::Permissions::from_mode(0o700);
        fs::set_permissions(&rendezvous, mode).map_err(|error| wrong(&rendezvous, &error))?;
        // Of an earlier run in the same folder.
        drop(fs::remove_file(rendezvous.join(super::agents::OVER)));
        let agents = parts
            .agents
            .take()
            .map(|plan| Agents::new(plan, rendezvous));
        // Another wish than that of any run before.
        let fresh = options.fresh.then(backstay_base::clock::unix_ns);
        Ok(Self {
            fresh,
            options,
            parts,
            summary: Summary::default(),
            from_scheduler: false,
            agents,
            newest: None,
            stalls: 0,
            unread: 0,
            leaving: false,
            clock_read: None,
            died_unix_ms: None,
            unkept: false,
        })
    }

    pub(crate) fn tell(&mut self, event: &str, words: &str, values: &Value) {
        self.parts.events.tell(event, words, values);
    }

    pub(crate) fn run(mut self) -> Result<Summary, String> {
        self.newest = self.progress();
        self.tell_plan();
        let outcome = self.run_starts();
        if let Some(agents) = &mut self.agents {
            agents.stop(AGENTS_GRACE);
        }
        let summary = self.summary.clone();
        let text = format!(
            "{}, {}, hosts left out: {}, {:.1} s between deaths and starts; exit {}",
            counted(summary.starts, "start"),
            counted(summary.failures, "death"),
            if summary.left_out.is_empty() {
                "none".to_owned()
            } else {
                summary.left_out.join(" ")
            },
            Duration::from_millis(summary.down_ms).as_secs_f64(),
            summary.code
        );
        self.tell("summary", &text, &json!(summary));
        outcome.map(|()| summary)
    }

    fn run_starts(&mut self) -> Result<(), String> {
        let mut died: Option<Instant> = None;
        loop {
            let start = match self.prepare() {
                Ok(start) => start,
                Err(why) if self.summary.starts == 0 => return Err(why),
                Err(why) => {
                    self.tell(
                        "stop",
                        &format!("not started again: {why}"),
                        &json!({ "why": why }),
                    );
                    return Ok(());
                }
            };
            if self.must_leave().is_some() {
                if self.summary.starts == 0 {
                    self.summary.code = UNFINISHED;
                }
                self.tell("stop", "not started: asked to leave", &json!({}));
                return Ok(());
            }
            self.start_agents(&start.hosts);
            if let Some(died) = died {
                let down = u64::try_from(died.elapsed().as_millis()).unwrap_or(u64::MAX);
                self.summary.down_ms = self.summary.down_ms.saturating_add(down);
            }
            let status = self.start(&start)?;
            died = Some(Instant::now());
            self.died_unix_ms = Some(backstay_base::clock::unix_ns() / 1_000_000);
            self.summary.code = code(status);
            let finished = self.finished();
            if self.is_end(status, finished) {
                if status.success() && self.unkept {
                    self.summary.code = UNKEPT;
                }
                return Ok(());
            }
            self.summary.failures += 1;
            let over = finished.map(|number| {
                format!(
                    "the job finished with checkpoint {number} before it died with {}",
                    words_of(status)
                )
            });
            if let Some(why) = over.or_else(|| self.enough(status)) {
                self.tell(
                    "stop",
                    &format!("not started again: {why}"),
                    &json!({ "why": why }),
                );
                return Ok(());
            }
            self.tell_again();
            let end = Instant::now() + self.options.pause;
            while Instant::now() < end && !self.parts.signalled.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
            }
        }
    }

    /// Whether a start ended well, or as it was asked to; says so.
    fn is_end(&mut self, status: ExitStatus, finished: Option<u64>) -> bool {
        let is_unfinished = status.success() && finished.is_none();
        if is_unfinished && !self.leaving && self.rendezvous().join(LEAVING_FILE).exists() {
            let why = "the application itself got SIGTERM, from the scheduler or by hand";
            self.leaving = true;
            self.tell(
                "leave",
                &format!("{why}: it took a last checkpoint and left"),
                &json!({ "why": why }),
            );
        }
        if !status.success() && !self.leaving {
            return false;
        }
        let how = if let (true, Some(number)) = (status.success(), finished) {
            format!("finished with checkpoint {number}")
        } else if status.success() {
            "ended well".to_owned()
        } else {
            format!("left with {}", words_of(status))
        };
        self.tell(
            "end",
            &format!("the application {how}"),
            &json!({ "code": code(status) }),
        );
        // One that finished though it was asked to leave has nothing left to do.
        if is_unfinished && self.leaving {
            self.summary.code = UNFINISHED;
        }
        true
    }

    /// What was found, and what follows from it.
    fn tell_plan(&mut self) {
        let options = &self.options;
        let scheduler = self.parts.scheduler.as_ref().map(|one| one.name());
        let launcher = self.parts.command.launcher().name();
        let agents = match (&self.agents, &self.parts.no_agents) {
            (Some(agents), _) => agents.how(),
            (None, why) => format!("no agents: {why}"),
        };
        let leaves = options.leave_before_s.map_or(String::new(), |least| {
            format!("; it leaves when less than {least} s are left")
        });
        let text = format!(
            "hosts: {}; launcher: {launcher}; {agents}; at most {}{leaves}",
            scheduler.unwrap_or("none are known"),
            counted(options.restarts, "restart"),
        );
        let values = json!({
            "hosts_from": scheduler, "launcher": launcher, "agents": self.agents.is_some(), "why": agents,
            "restarts": options.restarts, "stalls": options.stalls, "leave_before_s": options.leave_before_s,
        });
        self.tell("plan", &text, &values);
    }

    fn tell_again(&mut self) {
        let (restart, of) = (self.summary.failures, self.options.restarts);
        let pause = self.options.pause.as_secs_f64();
        let text = format!("it is started again in {pause} s: restart {restart} of {of}");
        let values = json!({ "restart": restart, "restarts": of, "pause_s": pause });
        self.tell("again", &text, &values);
    }

    /// Why it is not started again, if it is not.
    fn enough(&mut self, status: ExitStatus) -> Option<String> {
        let newest = self.progress();
        let is_stall = newest.is_some() && newest <= self.newest;
        self.stalls = if is_stall { self.stalls + 1 } else { 0 };
        self.newest = newest.max(self.newest);
        let text = format!(
            "the application died with {}{}",
            words_of(status),
            newest.map_or(String::new(), |number| format!(
                "; the newest checkpoint is {number}"
            ))
        );
        self.tell(
            "death",
            &text,
            &json!({ "code": code(status), "checkpoint": newest }),
        );
        if self.summary.starts == 1 && code(status) == NOT_FOUND {
            return Some("the command cannot be started".to_owned());
        }
        if self.summary.failures > self.options.restarts {
            return Some(format!(
                "it died {} (--restarts)",
                counted(self.summary.failures, "time")
            ));
        }
        let unread = self.unreadable();
        self.unread = if unread.is_some() { self.unread + 1 } else { 0 };
        if let (true, Some(why)) = (self.unread >= self.options.stalls, unread) {
            return Some(format!(
                "it died {} because its newest checkpoint could not be read (--stalls): {why}; \
                 --checkpoint resumes from an older one",
                counted(self.unread, "time")
            ));
        }
        if self.stalls >= self.options.stalls {
            return Some(format!(
                "it died {} with no newer checkpoint (--stalls)",
                counted(self.stalls, "time")
            ));
        }
        None
    }

    /// The last checkpoint of the job, if the application said that it is finished.
    fn finished(&self) -> Option<u64> {
        let text = fs::read_to_string(self.rendezvous().join(FINISHED_FILE)).ok()?;
        text.trim_end().parse().ok()
    }

    fn rendezvous(&self) -> std::path::PathBuf {
        self.options.folder.join(RENDEZVOUS)
    }

    /// Why the newest checkpoint could not be read, if the application said so.
    fn unreadable(&self) -> Option<String> {
        let text = fs::read_to_string(self.unreadable_file()).ok()?;
        Some(text.trim_end().to_owned())
    }

    fn unreadable_file(&self) -> std::path::PathBuf {
        self.rendezvous().join(UNREADABLE_FILE)
    }

    fn progress(&mut self) -> Option<u64> {
        self.parts.progress.as_mut().and_then(|read| read())
    }

    fn start_agents(&mut self, hosts: &[String]) {
        let Some(agents) = &mut self.agents else {
            return;
        };
        let (started, wrong) = agents.start(hosts);
        if !started.is_empty() {
            let text = format!("agents are started on {}", started.join(" "));
            self.tell("agents", &text, &json!({ "hosts": started }));
        }
        for text in &wrong {
            self.tell("agents", text, &json!({}));
        }
    }

    fn start(&mut self, start: &Start) -> Result<ExitStatus, String> {
        let leave = self.options.folder.join(LEAVE);
        drop(fs::remove_file(&leave));
        drop(fs::remove_file(self.unreadable_file()));
        for told in [FINISHED_FILE, LEAVING_FILE] {
            drop(fs::remove_file(self.rendezvous().join(told)));
        }
        let count = self.tell_start(start);
        let mut variables = start.variables.clone();
        let mut routing = self.begin_routing(start, &mut variables)?;
        let words = [self.options.wrapper.clone(), start.words.clone()].concat();
        let input = !std::io::stdin().is_terminal();
        let mut group = Group::start(&words, &variables, input)?;
        self.summary.starts = count;
        let mut deadline: Option<(Instant, Signal)> = None;
        let mut watch = HostWatch::new(&start.hosts);
        loop {
            if deadline.is_none()
                && let Some(gone) = watch.look(self)
            {
                let text = format!("{gone} is gone, and the launcher does not end: it is ended");
                self.tell("signal", &text, &json!({ "host": gone }));
                deadline = Some((Instant::now(), Signal::TERM));
            }
            if let Some(status) = group.ended() {
                // What the launcher left behind on this host.
                group.signal(Signal::KILL);
                self.end_routing(routing, status);
                return Ok(status);
            }
            if deadline.is_none() && self.has_lost_routing(&mut routing) {
                deadline = Some((Instant::now(), Signal::TERM));
            }
            let reason = self.must_leave();
            match (&deadline, reason) {
                (None, Some(reason)) => {
                    self.ask_to_leave(&leave, &reason);
                    deadline = Some((Instant::now() + self.options.grace, Signal::TERM));
                }
                (Some((_, Signal::TERM)), Some(reason)) if reason == SIGNAL => {
                    deadline = Some((Instant::now(), Signal::TERM));
                }
                _ => {}
            }
            if let Some((when, signal)) = deadline
                && Instant::now() >= when
            {
                let name = if signal == Signal::TERM {
                    "SIGTERM"
                } else {
                    "SIGKILL"
                };
                self.tell(
                    "signal",
                    &format!("{name} to the launcher"),
                    &json!({ "signal": name }),
                );
                group.signal(signal);
                deadline = Some((Instant::now() + KILL_AFTER, Signal::KILL));
            }
            std::thread::sleep(TICK);
        }
    }

    fn tell_start(&mut self, start: &Start) -> u32 {
        let count = self.summary.starts + 1;
        let at = if start.hosts.is_empty() {
            String::new()
        } else {
            format!(" on {}", start.hosts.join(" "))
        };
        let text = format!("start {count}{at}: {}", start.words.join(" "));
        self.tell(
            "start",
            &text,
            &json!({ "start": count, "hosts": start.hosts, "command": start.words }),
        );
        count
    }

    /// Starts the routing agent, where files are routed; the program is told of it by variables.
    fn begin_routing(
        &mut self,
        start: &Start,
        variables: &mut Vec<(String, String)>,
    ) -> Result<Option<Routing>, String> {
        let Some(plan) = self.parts.route.clone() else {
            return Ok(None);
        };
        let (routing, given) = plan.begin(&start.variables, &start.hosts, &self.parts.signalled)?;
        variables.extend(given);
        Ok(Some(routing))
    }

    /// Whether the routing agent is gone, which is said.
    fn has_lost_routing(&mut self, routing: &mut Option<Routing>) -> bool {
        let Some((status, where_)) = routing.as_mut().and_then(Routing::ended) else {
            return false;
        };
        let text = format!(
            "the routing agent{where_} died with {}: the application is ended",
            words_of(status)
        );
        self.tell("signal", &text, &json!({ "code": code(status) }));
        true
    }

    fn end_routing(&mut self, routing: Option<Routing>, status: ExitStatus) {
        let Some(routing) = routing else {
            return;
        };
        self.unkept = false;
        for (ended, where_) in routing.end(status.success(), &self.parts.signalled) {
            if ended.is_some_and(|ended| ended.success()) {
                continue;
            }
            self.unkept = true;
            let how = ended.map_or_else(|| "not at all".to_owned(), words_of);
            let text = format!(
                "the routing agent{where_} ended with {how}: what was written last may be in no checkpoint, \
                 see what it said"
            );
            self.tell("routing", &text, &json!({}));
        }
    }

    fn ask_to_leave(&mut self, leave: &Path, reason: &str) {
        self.leaving = true;
        let grace = self.options.grace.as_secs();
        let text = match fs::write(leave, format!("{reason}\n")) {
            Ok(()) => format!(
                "{reason}: the application is asked to take a last checkpoint and leave, within {grace} s"
            ),
            Err(error) => format!("{reason}: {} cannot be written: {error}", leave.display()),
        };
        self.tell("leave", &text, &json!({ "why": reason }));
    }

    /// Why it is time to leave, if it is.
    fn must_leave(&mut self) -> Option<String> {
        if self.parts.signalled.swap(false, Ordering::Relaxed) {
            return Some(SIGNAL.to_owned());
        }
        let least = self.options.leave_before_s.filter(|_| !self.leaving)?;
        let interval = Duration::from_secs((least / 4).clamp(1, 30));
        if self
            .clock_read
            .is_some_and(|read| read.elapsed() < interval)
        {
            return None;
        }
        self.clock_read = Some(Instant::now());
        match self.parts.scheduler.as_mut()?.remaining_s() {
            Ok(Some(left)) if left < least => Some(format!("{left} s are left of the allocation")),
            Ok(_) => None,
            Err(error) => {
                self.tell(
                    "unknown",
                    &format!("the time left is not known: {error}"),
                    &json!({ "why": error }),
                );
                None
            }
        }
    }
}

/// How many there are of what.
fn counted(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

const SIGNAL: &str = "a signal came";

/// Looks now and then whether the hosts of a start still answer: some launchers wait for ever for one that
/// vanished.
struct HostWatch {
    hosts: Vec<Host>,
    next: Instant,
    suspect: Option<String>,
}

impl HostWatch {
    fn new(names: &[String]) -> Self {
        let host = |name: &String| Host {
            name: name.clone(),
            slots: None,
        };
        Self {
            hosts: names.iter().map(host).collect(),
            next: Instant::now() + LOOK_AFTER,
            suspect: None,
        }
    }

    /// A host that was gone at the last look, and still is.
    fn look(&mut self, supervisor: &mut Supervisor) -> Option<String> {
        if self.hosts.is_empty() || Instant::now() < self.next {
            return None;
        }
        let start = Instant::now();
        let gone = supervisor.gone(&self.hosts).into_keys().next();
        // Many hosts are asked less often, unless one does not answer.
        let pause = if gone.is_some() {
            LOOK_AFTER
        } else {
            LOOK_AFTER.max(start.elapsed() * 30)
        };
        self.next = Instant::now() + pause;
        let before = std::mem::replace(&mut self.suspect, gone.clone());
        gone.filter(|gone| before.as_ref() == Some(gone))
    }
}
