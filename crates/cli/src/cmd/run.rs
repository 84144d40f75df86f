// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay run`: starts an application, and starts it again when it dies.
//!
//! Purpose: from arguments and surroundings to the supervisor of `backstay-service`.
//! In from: a command, host files, Slurm's and Flux's variables, SIGTERM and SIGINT.
//! Out to: events on standard error; the exit status is the application's last.
//! Invariants: what it starts ends with it, even when it is killed with -9.

use super::route::RouteArgs;
use crate::output::{Failure, complain};
use backstay::ErrorKind;
use backstay_base::units;
use backstay_inspect::Stores;
use backstay_service::supervise::agents::AgentPlan;
use backstay_service::supervise::command::{Command, Launcher};
use backstay_service::supervise::events::Events;
use backstay_service::supervise::hosts::{Host, parse, parse_list};
use backstay_service::supervise::routing::Reach;
use backstay_service::supervise::scheduler::{Flux, Probed, Scheduler, Slurm};
use backstay_service::supervise::{Options, Parts, supervise};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub(super) const SSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=5";
/// What stands before the words of a child: it is this command again, which then becomes the child.
const CHILD_OF: &str = "--child-of";

/// Starts an application, and starts it again when it dies.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// How often it may be started again
    #[arg(long, value_name = "N", default_value_t = 10)]
    restarts: u32,
    /// Give up when it died so often with no newer checkpoint, where the store can be read
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = units::count)]
    stalls: u32,
    /// Restore this checkpoint at the first start, and abandon later ones [default: the newest]
    #[arg(long, value_name = "N", value_parser = units::number)]
    checkpoint: Option<u64>,
    /// Begin anew at the first start, whatever is stored; `BACKSTAY_FRESH=1` does so, too
    #[arg(long, conflicts_with = "checkpoint")]
    fresh: bool,
    /// Where to look for the newest checkpoint: a store or a folder above it
    #[arg(long, value_name = "PATH")]
    store: Vec<PathBuf>,
    /// Hosts, one a line, instead of those that the command names
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Hosts that take the place of dead ones: a,b
    #[arg(long, value_name = "HOSTS", default_value = "")]
    spares: String,
    /// Do not start on fewer hosts
    #[arg(long, value_name = "N", default_value_t = 1)]
    min_nodes: usize,
    /// With fewer hosts, put more ranks on each
    #[arg(long)]
    shrink: bool,
    /// A shell command that prints hosts which are gone, run before each start
    #[arg(long, value_name = "CMD")]
    nodes_down_command: Option<String>,
    /// What runs a command on a host; the host and the command follow [default: what the launcher is told, or ssh]
    #[arg(long, value_name = "CMD")]
    remote_shell: Option<String>,
    /// What ends well on a host that is up; HOST in it is the host [default: remote shell, HOST, true]
    #[arg(long, value_name = "CMD")]
    probe: Option<String>,
    /// A folder that all hosts see, for the leave file and the rendezvous [default: .backstay-run-PID here]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Time for the application to leave when asked to, before SIGTERM: seconds, or 10min
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = units::whole_seconds)]
    grace_s: u64,
    /// Ask it to leave when the scheduler gives less time than this: seconds, or 10min
    #[arg(long, value_name = "TIME", value_parser = units::whole_seconds)]
    leave_before_s: Option<u64>,
    /// Time between a death and the next start: seconds, or 500ms, 2min
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = pause)]
    pause_s: f64,
    /// Start `backstay agent` on each host. By default it does where there is a scheduler or a list of
    /// hosts, and the job has a name
    #[arg(long, value_enum, default_value_t = Wish::Auto)]
    agents: Wish,
    /// Name of the job, for agents
    #[arg(long, env = "BACKSTAY_JOB")]
    job: Option<String>,
    /// The command that is an agent's `backstay`, as hosts find it [default: this one]
    #[arg(long, value_name = "PATH")]
    agent_program: Option<String>,
    #[command(flatten)]
    route: RouteArgs,
    /// Say what happens in JSON, one event a line
    #[arg(long)]
    json: bool,
    /// Append what happens to this file, in JSON, one event a line
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    #[arg(long = "child-of", hide = true)]
    child_of: Option<u32>,
    /// The application with its launcher: mpirun, srun, flux run, or a program
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Wish {
    /// Where there is a scheduler or a list of hosts, and the job has a name
    Auto,
    /// Yes, and say what is missing
    Yes,
    /// No
    No,
}

fn pause(text: &str) -> Result<f64, String> {
    let seconds = units::seconds(text)?;
    if (0.0..=86400.0).contains(&seconds) {
        return Ok(seconds);
    }
    Err("allowed is 0 s to 1 day".to_owned())
}

pub(crate) fn run(args: &RunArgs) -> ExitCode {
    if let Some(parent) = args.child_of {
        return become_child(parent, &args.command);
    }
    match start(args) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(args.json),
    }
}

/// Becomes the command, which the kernel ends when `parent` dies.
fn become_child(parent: u32, command: &[String]) -> ExitCode {
    let asked =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    if let Err(error) = asked {
        complain(&format!("it will not end with its supervisor: {error}"));
    }
    if std::os::unix::process::parent_id() != parent {
        return ExitCode::from(143);
    }
    let Some((program, rest)) = command.split_first() else {
        return ExitCode::from(127);
    };
    if let Some(folder) = std::env::var_os(backstay_route::CALLS_VARIABLE)
        && let Err(why) = backstay_calls::enter(Path::new(&folder))
    {
        complain(&format!("error: {why}"));
        return ExitCode::from(127);
    }
    let error = std::process::Command::new(program)
        .args(rest)
        .env_remove(backstay_route::CALLS_VARIABLE)
        .exec();
    complain(&format!("error: cannot start {program}: {error}"));
    ExitCode::from(127)
}

fn start(args: &RunArgs) -> Result<u8, Failure> {
    let command = Command::detect(args.command.clone());
    let hosts = hosts(args, &command)?;
    if args.hosts.is_some() && command.launcher() == Launcher::Other {
        complain(
            "the launcher is not known: it finds its hosts in the file that BACKSTAY_HOSTFILE names",
        );
    }
    let shell = remote_shell(args, &command);
    let wrapper = wrapper()?;
    let is_own = args.run_dir.is_none();
    let folder = args.run_dir.clone();
    let folder =
        folder.unwrap_or_else(|| PathBuf::from(format!(".backstay-run-{}", std::process::id())));
    let options = Options {
        restarts: args.restarts,
        checkpoint: args.checkpoint,
        fresh: args.fresh || is_asked_at_every_start(),
        stalls: args.stalls,
        spares: parse_list(&args.spares),
        min_hosts: args.min_nodes,
        shrink: args.shrink,
        nodes_down_command: args.nodes_down_command.clone(),
        folder: folder.clone(),
        grace: Duration::from_secs(args.grace_s),
        leave_before_s: args.leave_before_s,
        pause: Duration::from_secs_f64(args.pause_s),
        wrapper: wrapper.clone(),
        pass_on: settings(),
    };
    let scheduler = scheduler(args, &hosts, &shell);
    let reach = Reach {
        remote_shell: shell.clone(),
        slurm: in_slurm(scheduler.as_deref()),
        backstay: backstay_there(args, &wrapper),
        settings: agent_settings(),
    };
    let (agents, no_agents) = agents(args, scheduler.as_deref(), shell, wrapper)?;
    let events = Events::new(args.json, args.events.as_deref());
    let events = events.map_err(|error| Failure::output("--events", &error))?;
    let route = args
        .route
        .plan(&command, args.job.as_ref(), own_names(), reach)?;
    let parts = Parts {
        command,
        hosts,
        scheduler,
        progress: progress(&args.store),
        agents,
        no_agents,
        route,
        signalled: signalled()?,
        events,
    };
    let outcome = supervise(options, parts);
    if is_own {
        // What the application may have left there goes too; it was made for this run.
        drop(std::fs::remove_dir_all(&folder));
    }
    match outcome {
        Ok(summary) => Ok(summary.code),
        Err(text) => Err(Failure::new(ErrorKind::InvalidArgument, text)),
    }
}

/// Whether the environment asks for each start to begin anew: here that is one wish for all of them, or nothing would
/// ever be gone on from.
fn is_asked_at_every_start() -> bool {
    std::env::var("BACKSTAY_FRESH").is_ok_and(|value| value == "1")
}

fn hosts(args: &RunArgs, command: &Command) -> Result<Vec<Host>, Failure> {
    let file = args
        .hosts
        .as_deref()
        .or_else(|| command.host_file().map(Path::new));
    let Some(file) = file else {
        return Ok(command.host_list().map(parse_list).unwrap_or_default());
    };
    let text = std::fs::read_to_string(file);
    let text = text.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    let hosts = parse(&text);
    if hosts.is_empty() {
        return Err(Failure::usage(format!("{} names no host", file.display())));
    }
    Ok(hosts)
}

pub(super) fn split(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn remote_shell(args: &RunArgs, command: &Command) -> Vec<String> {
    if let Some(shell) = &args.remote_shell {
        return split(shell);
    }
    // Open MPI takes several, with colons between.
    let of_launcher = command.agent().and_then(|agent| agent.split(" : ").next());
    split(of_launcher.unwrap_or(SSH))
}

fn scheduler(args: &RunArgs, hosts: &[Host], shell: &[String]) -> Option<Box<dyn Scheduler>> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(flux) = Flux::detect(variable) {
        return Some(Box::new(flux));
    }
    if let Some(slurm) = Slurm::detect(variable) {
        return Some(Box::new(slurm));
    }
    if hosts.is_empty() {
        return None;
    }
    let probe = match &args.probe {
        Some(probe) => split(probe),
        None => [shell, &["HOST".to_owned(), "true".to_owned()]].concat(),
    };
    Some(Box::new(Probed {
        hosts: hosts.to_vec(),
        probe,
        own_names: own_names(),
    }))
}

pub(super) fn own_names() -> Vec<String> {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let short = name.split('.').next().unwrap_or_default().to_owned();
    vec![name, short, "localhost".to_owned(), "127.0.0.1".to_owned()]
}

fn wrapper() -> Result<Vec<String>, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::output("this program's own name", &error))?;
    let parent = std::process::id().to_string();
    Ok(vec![
        own.to_string_lossy().into_owned(),
        "run".to_owned(),
        CHILD_OF.to_owned(),
        parent,
        "--".to_owned(),
    ])
}

/// Settings of Backstay in this environment, which every rank must have alike.
fn settings() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("BACKSTAY_")).collect();
    names.sort();
    names
}

fn in_slurm(scheduler: Option<&dyn Scheduler>) -> bool {
    scheduler.is_some_and(|one| one.name() == "Slurm")
}

/// The command `backstay`, as hosts find it.
fn backstay_there(args: &RunArgs, wrapper: &[String]) -> String {
    let named = args.agent_program.clone();
    named
        .or_else(|| wrapper.first().cloned())
        .unwrap_or_default()
}

fn agents(
    args: &RunArgs,
    scheduler: Option<&dyn Scheduler>,
    shell: Vec<String>,
    wrapper: Vec<String>,
) -> Result<(Option<AgentPlan>, &'static str), Failure> {
    let backstay = backstay_there(args, &wrapper);
    let has_agents = || {
        let mut asked = std::process::Command::new(&backstay);
        let asked = asked.args(["agent", "--help"]).output();
        asked.is_ok_and(|asked| asked.status.success())
    };
    match (args.agents, &args.job) {
        (Wish::No, _) => Ok((None, "--agents no")),
        (Wish::Auto, None) => Ok((None, "the job has no name, --job or BACKSTAY_JOB")),
        (Wish::Yes, None) => Err(Failure::usage(
            "agents need the name of the job: --job, or BACKSTAY_JOB",
        )),
        (Wish::Auto, Some(_)) if scheduler.is_none() => {
            Ok((None, "there is no scheduler and no list of hosts"))
        }
        (Wish::Auto, Some(_)) if !has_agents() => {
            Ok((None, "--agent-program is no backstay that has them"))
        }
        (_, Some(job)) => {
            let plan = AgentPlan {
                remote_shell: shell,
                slurm: in_slurm(scheduler),
                backstay,
                job: job.clone(),
                settings: agent_settings(),
                wrapper,
            };
            Ok((Some(plan), ""))
        }
    }
}

/// The settings for agents: all but what belongs to one start.
pub(super) fn agent_settings() -> Vec<(String, String)> {
    let of_a_start = [
        "RENDEZVOUS",
        "LEAVE_FILE",
        "RESTARTS",
        "HOSTFILE",
        "DIED_UNIX_MS",
    ];
    let kept = |name: &String| !of_a_start.contains(&name.trim_start_matches("BACKSTAY_"));
    let value = |name: String| Some((name.clone(), std::env::var(name).ok()?));
    settings()
        .into_iter()
        .filter(kept)
        .filter_map(value)
        .collect()
}

/// Reads the newest checkpoint's number, if a store was named.
fn progress(paths: &[PathBuf]) -> Option<Box<dyn FnMut() -> Option<u64>>> {
    if paths.is_empty() {
        return None;
    }
    let paths = paths.to_vec();
    Some(Box::new(move || {
        let stores = Stores::open(&paths);
        let checkpoints = stores.checkpoints();
        // Before the first one there is none, which is 0: a store may not be there yet.
        Some(
            checkpoints
                .iter()
                .map(|checkpoint| checkpoint.id.number)
                .max()
                .unwrap_or(0),
        )
    }))
}

fn signalled() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&flag));
        registered.map_err(|error| Failure::output("signals", &error))?;
    }
    Ok(flag)
}
