// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay run`: starts an application, notices that it died, and starts it again elsewhere.
//!
//! Purpose: a job that goes on through deaths of processes and nodes, with nobody watching.
//! In from: a command, hosts, a scheduler (behind [`scheduler::Scheduler`]), signals.
//! Out to: the command with other hosts, files of the run folder, events.
//! Invariants: starts are bounded; nothing is started once leaving has been asked for; whatever this
//! process started ends with it.
//!
//! # What the application is given
//!
//! | variable | meaning |
//! |---|---|
//! | `BACKSTAY_LEAVE_FILE` | a path. Once a file is there, take a last checkpoint and leave; it holds the reason, one line |
//! | `BACKSTAY_RESTARTS` | how often the application was started before |
//! | `BACKSTAY_DIED_UNIX_MS` | when its last start was seen to be dead, milliseconds since 1970; not at the first |
//! | `BACKSTAY_RENDEZVOUS` | a folder, mode 0700, for the processes of the job to find each other; a file `unreadable` that the application leaves there says why its newest checkpoint could not be read, and a file `finished` that the job is done, and with which checkpoint |
//! | `BACKSTAY_FRESH` | where it shall begin anew: a number, the same at all starts, which the first of them carries out |
//! | `BACKSTAY_HOSTFILE` | the host file of this start, if one was written |
//! | `BACKSTAY_ROUTE`, `LD_PRELOAD` | where its files are routed, and the library that does it, if one does |
//!
//! The leave file is written when this process gets SIGTERM or SIGINT, or when the scheduler's time runs
//! low. The launcher gets SIGTERM after the grace, or at a second signal, and SIGKILL 10 s later. The
//! file is removed before each start, and is never there when one begins.

pub mod agents;
pub(crate) mod child;
pub mod command;
pub mod events;
pub mod hosts;
mod starts;
mod place;
pub mod routing;
pub mod scheduler;

use agents::AgentPlan;
use command::Command;
use events::{Events, Summary};
use hosts::Host;
use scheduler::Scheduler;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The file that asks the application to leave, in the run folder.
pub const LEAVE: &str = "leave";
/// The folder for the processes of a job to find each other, in the run folder.
pub const RENDEZVOUS: &str = "rendezvous";

/// What the user chose.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often the application may be started again.
    pub restarts: u32,
    /// It is not started again when it died so often with no newer checkpoint.
    pub stalls: u32,
    /// Hosts that take the place of dead ones.
    pub spares: Vec<Host>,
    /// Fewer hosts than these are refused.
    pub min_hosts: usize,
    /// Fewer hosts may take more ranks each.
    pub shrink: bool,
    /// Prints hosts that are gone, for a shell.
    pub nodes_down_command: Option<String>,
    /// The run folder; made if it is not there.
    pub folder: PathBuf,
    /// How long the application has to leave by itself.
    pub grace: Duration,
    /// Leave when less time is left.
    pub leave_before_s: Option<u64>,
    /// Between a death and the next start.
    pub pause: Duration,
    /// The checkpoint that the first start restores, if not the newest.
    pub checkpoint: Option<u64>,
    /// The job begins anew, whatever is stored.
    pub fresh: bool,
    /// In front of what is started, so that it ends with this process.
    pub wrapper: Vec<String>,
    /// Variables of the environment whose names begin so are passed on to all ranks.
    pub pass_on: Vec<String>,
}

/// What the supervisor works with.
pub struct Parts {
    /// The application.
    pub command: Command,
    /// Hosts that the command names or that were given with it.
    pub hosts: Vec<Host>,
    /// Who knows of hosts and time, if anybody does.
    pub scheduler: Option<Box<dyn Scheduler>>,
    /// The number of the newest checkpoint, if it can be read.
    pub progress: Option<Box<dyn FnMut() -> Option<u64>>>,
    /// How to start agents, if they are wanted.
    pub agents: Option<AgentPlan>,
    /// Why agents are not wanted, where they are not.
    pub no_agents: &'static str,
    /// How files are routed, if they are.
    pub route: Option<routing::RoutePlan>,
    /// Set by SIGTERM and SIGINT.
    pub signalled: Arc<AtomicBool>,
    /// Where events go.
    pub events: Events,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Parts")
            .field("command", &self.command)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// Starts the application until it ends well, or has died too often, or is asked to leave.
pub fn supervise(options: Options, parts: Parts) -> Result<Summary, String> {
    starts::Supervisor::new(options, parts)?.run()
}
