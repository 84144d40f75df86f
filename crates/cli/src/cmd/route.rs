// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay route-agent`: the routing agent of one start, which `backstay run --route` starts.
//!
//! Purpose: from arguments to the agent of `backstay-service`; what `run` has to know of routing.
//! In from: `run`: patterns, and the end of the program by the end of standard input. Out to: its folder on standard
//! output; messages on standard error.
//! Invariants: it ends when `run` does, whatever ends that, with a last checkpoint of what is complete.

use crate::output::{Failure, result};
use backstay::{Config, ErrorKind};
use backstay_base::error::Error;
use backstay_base::units;
use backstay_net::{Peer, Secret};
use backstay_service::routing::rules::parse;
use backstay_service::routing::{End, Options, Together, program, run as run_agent};
use backstay_service::supervise::command::Command;
use backstay_service::supervise::routing::{By, Reach, RoutePlan};
use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The file name of the preload library.
const LIBRARY: &str = "libbackstay_preload.so";

/// What `run` is told of routing.
#[derive(Debug, clap::Args)]
pub(crate) struct RouteArgs {
    /// Route files of these names, which the program writes and reads: their checkpoints are made when they are complete.
    /// `*`, `?`, `[a-z]`; {step} and {rank} are numbers. Rules follow a semicolon: 'out/r.{step}.{rank};writers=4'
    #[arg(long, value_name = "PATTERN")]
    route: Vec<OsString>,
    /// How long a routed file has to stay closed until it is complete: seconds, or 500ms
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = quiet)]
    route_quiet: f64,
    /// How calls of the program come to be routed
    #[arg(long, value_enum, default_value_t = Means::Preload)]
    route_by: Means,
    /// The preload library [default: beside this command, or in lib/backstay of its prefix]
    #[arg(long, value_name = "FILE")]
    route_library: Option<PathBuf>,
}

/// How calls of a program come to be routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Means {
    /// By a library that the dynamic linker loads
    Preload,
    /// By the kernel, which holds each call that takes a name: also of static programs; on one host; each pays
    Seccomp,
}

/// The agent of one start.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    #[arg(long)]
    job: String,
    #[arg(long)]
    ranks: Option<u32>,
    #[arg(long, value_parser = quiet)]
    quiet: f64,
    /// It is one of several, on this host.
    #[arg(long)]
    host: Option<String>,
    /// The preload library, which has to be there on this host.
    #[arg(long)]
    library: Option<PathBuf>,
    #[arg(last = true)]
    patterns: Vec<OsString>,
}

fn quiet(text: &str) -> Result<f64, String> {
    let seconds = units::seconds(text)?;
    if (0.0..=3600.0).contains(&seconds) {
        return Ok(seconds);
    }
    Err("allowed is 0 s to 1 hour".to_owned())
}

impl RouteArgs {
    /// How files are routed, if they are; what cannot be routed is refused.
    pub(crate) fn plan(
        &self,
        command: &Command,
        job: Option<&String>,
        own_names: Vec<String>,
        reach: Reach,
    ) -> Result<Option<RoutePlan>, Failure> {
        if self.route.is_empty() {
            return Ok(None);
        }
        let Some(job) = job else {
            let message = "--route needs the name of the job: --job, or BACKSTAY_JOB";
            return Err(Failure::usage(message));
        };
        let here =
            std::env::current_dir().map_err(|error| Failure::output("this folder", &error))?;
        let routes = parse(&self.route, &here, command.ranks()).map_err(Failure::usage)?;
        let shared = routes.rules.iter().any(|rule| rule.shared);
        if let Some(program) = command.program() {
            let by_library = self.route_by == Means::Preload;
            program::check(program, by_library).map_err(Failure::usage)?;
        }
        let own = std::env::current_exe()
            .map_err(|error| Failure::output("this program's own name", &error))?;
        let mut words: Vec<OsString> = vec!["route-agent".into(), "--job".into(), job.into()];
        if let Some(ranks) = command.ranks() {
            words.extend(["--ranks".into(), ranks.to_string().into()]);
        }
        words.extend([
            "--quiet".into(),
            self.route_quiet.to_string().into(),
            "--".into(),
        ]);
        words.extend(self.route.iter().cloned());
        let by = match self.route_by {
            Means::Preload => By::Preload(self.library()?),
            Means::Seccomp => {
                backstay_calls::check().map_err(Failure::usage)?;
                By::Seccomp
            }
        };
        Ok(Some(RoutePlan {
            own: own.into(),
            words,
            by,
            shared,
            own_names,
            reach,
        }))
    }

    fn library(&self) -> Result<PathBuf, Failure> {
        let missing = |places: &[PathBuf]| {
            let places: Vec<String> = places
                .iter()
                .map(|place| place.display().to_string())
                .collect();
            Failure::usage(format!(
                "--route needs {LIBRARY}, and it is not at {}: --route-library",
                places.join(", ")
            ))
        };
        let candidates = if let Some(library) = &self.route_library {
            vec![library.clone()]
        } else {
            let own = std::env::current_exe().unwrap_or_default();
            let folder = own.parent().map(PathBuf::from).unwrap_or_default();
            let multiarch = format!("../lib/{}-linux-gnu/backstay", std::env::consts::ARCH);
            let folders = [".", "../lib/backstay", "../lib64/backstay", &multiarch];
            folders.map(|name| folder.join(name).join(LIBRARY)).to_vec()
        };
        let found = candidates
            .iter()
            .find_map(|candidate| std::fs::canonicalize(candidate).ok());
        found.ok_or_else(|| missing(&candidates))
    }
}

pub(crate) fn run(args: &AgentArgs) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(false),
    }
}

fn serve(args: &AgentArgs) -> Result<(), Failure> {
    // It ends by its input alone: a signal to the whole group of a terminal is the program's. A lease that is broken
    // while it is looked at is none of ours any more.
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGHUP,
        signal_hook::consts::SIGIO,
    ] {
        signal_hook::flag::register(signal, Arc::clone(&ignored))
            .map_err(|error| Failure::output("watching for signals", &error))?;
    }
    let here = std::env::current_dir().map_err(|error| Failure::output("this folder", &error))?;
    let routes = parse(&args.patterns, &here, args.ranks).map_err(Failure::usage)?;
    if let Some(library) = &args.library {
        std::fs::File::open(library)
            .map_err(|error| Failure::output(&library.display().to_string(), &error))?;
    }
    let mut config = Config::from_environment()?;
    config.job = Some(args.job.clone());
    let end = Arc::new(End::default());
    let introduced = |host: &String| introduced(host, Arc::clone(&end));
    let together = args.host.as_ref().map(introduced).transpose()?;
    if together.is_none() {
        await_end(Arc::clone(&end));
    }
    let quiet = Duration::from_secs_f64(args.quiet);
    run_agent(
        Options {
            config,
            routes,
            quiet,
            together,
        },
        &end,
        |folder| result(&folder.display().to_string()),
    )?;
    Ok(())
}

/// Notes when standard input ends, and what stands there until then.
fn await_end(end: Arc<End>) {
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        end.is_well
            .store(read.is_ok() && text.contains("well"), Ordering::Release);
        end.is_over.store(true, Ordering::Release);
    });
}

/// The next line that `run` says.
fn hear() -> Result<String, Failure> {
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    read.map_err(|error| Failure::output("standard input", &error))?;
    Ok(line.trim_end().to_owned())
}

/// One of several is told who it is: its rank, and the secret.
fn introduced(host: &str, end: Arc<End>) -> Result<Together, Failure> {
    let wrong = || {
        Failure::usage("backstay run says who an agent of several is: it is not for use by hand")
    };
    let line = hear()?;
    let (rank, secret) = line.split_once(' ').ok_or_else(wrong)?;
    let digits = secret.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> = digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    let bytes: Option<[u8; Secret::BYTES]> = bytes.and_then(|bytes| bytes.try_into().ok());
    Ok(Together {
        rank: rank.parse().map_err(|_| wrong())?,
        host: host.to_owned(),
        secret: Secret::from_bytes(bytes.ok_or_else(wrong)?),
        meet: Box::new(move |address| {
            result(address);
            let missing = || Error::new(ErrorKind::PeerUnreachable, "backstay run named no agents");
            let line = hear().map_err(|_| missing())?;
            await_end(end);
            let peer = |word: &str| {
                let (host, address) = word.rsplit_once('=')?;
                Some(Peer::new(host, address))
            };
            let peers: Option<Vec<Peer>> = line.split_whitespace().map(peer).collect();
            peers.filter(|peers| !peers.is_empty()).ok_or_else(missing)
        }),
    })
}
