// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: other nodes: whether they are reached, and which `backstay` is there; agents that run on this one.
//! In from: a remote shell, sockets of agents. Out to: `doctor`.
//! Invariants: agents are asked only what changes nothing; every wait has a limit.

use super::Line;
use crate::cmd::run::{SSH, own_names, split};
use backstay::{Config, ErrorKind};
use backstay_format::local::LocalRequest;
use backstay_parity::agent::local::AgentClient;
use backstay_service::supervise::hosts::{Host, parse_list};
use backstay_service::supervise::scheduler::try_hosts;
use backstay_store::place;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest wait for an agent of this node.
const PATIENCE: Duration = Duration::from_secs(5);

/// A line for each of the nodes `a,b`.
pub(super) fn lines(nodes: &str, shell: Option<&str>) -> Vec<Line> {
    let hosts = parse_list(nodes);
    if hosts.is_empty() {
        return Vec::new();
    }
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("backstay"));
    let program = program.display().to_string().replace('\'', "'\\''");
    let mut probe = split(shell.unwrap_or(SSH));
    probe.extend([
        "HOST".to_owned(),
        format!("'{program}' -V || echo no backstay"),
    ]);
    let own = own_names();
    let is_here = |host: &&Host| own.contains(&host.name);
    let others: Vec<&Host> = hosts.iter().filter(|host| !is_here(host)).collect();
    let answers = try_hosts(&probe, &others);
    let mut lines: Vec<Line> = hosts
        .iter()
        .filter(is_here)
        .map(|host| Line::ok(&format!("node {}", host.name), "is this one"))
        .collect();
    // What was asked is not what is wrong.
    let asked = |host: &Host| probe.join(" ").replace("HOST", &host.name) + ": ";
    lines.extend(others.iter().zip(answers).map(|(host, answer)| {
        let why = |why: String| why.strip_prefix(&asked(host)).unwrap_or(&why).to_owned();
        node(&host.name, answer.map_err(why))
    }));
    lines
}

fn node(name: &str, answer: Result<String, String>) -> Line {
    let check = format!("node {name}");
    let own = concat!("backstay ", env!("CARGO_PKG_VERSION"));
    match answer {
        Err(why) => {
            let advice = "`backstay run` would leave it out; make a login without a password work, or name a --remote-shell";
            Line::not(&check, why, advice)
        }
        Ok(text) if text.trim() == own => Line::ok(&check, format!("reached; {own} is there")),
        Ok(text) if text.trim() == "no backstay" => {
            let advice = "no agent can be started there: install it on all nodes, at the same path";
            Line::limited(&check, "reached; this program is not there", advice)
        }
        Ok(text) => {
            let advice = "agents of different versions may not speak with each other: install one on all nodes";
            Line::limited(
                &check,
                format!("reached; {} is there, this is {own}", text.trim()),
                advice,
            )
        }
    }
}

/// A line for each agent of this user that runs on this node.
pub(super) fn agents(config: &Config) -> Vec<Line> {
    let roots = config
        .store_path
        .clone()
        .map_or_else(place::default_folders, |path| vec![path]);
    let stores = roots
        .iter()
        .flat_map(|root| folders(root))
        .flat_map(|job| folders(&job));
    stores.filter_map(|store| agent(&store)).collect()
}

fn folders(above: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(above).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    folders.sort();
    folders
}

fn agent(store: &Path) -> Option<Line> {
    let client = AgentClient::find(store)?;
    let (check, store) = ("agent", store.display());
    let answer = client.ask(&LocalRequest::Stores, PATIENCE);
    // One that has no start yet refuses, in words that this version reads.
    let unread = [ErrorKind::PeerUnreachable, ErrorKind::Unsupported];
    Some(
        match answer.err().filter(|error| unread.contains(&error.kind())) {
            None => Line::ok(
                check,
                format!("that of {store} answers, in words of this version"),
            ),
            Some(error) => {
                let advice = "the next start ends it and goes on without: end it, and start one of this version";
                Line::limited(check, format!("{store}: {error}"), advice)
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn nodes_are_reached_or_not() {
        assert!(lines("", None).is_empty());
        let found = lines("localhost,elsewhere", Some("/no/such/shell"));
        let states: Vec<State> = found.iter().map(|line| line.state).collect();
        assert_eq!(states, [State::Ok, State::Not]);
        assert!(
            found[1].found.starts_with("cannot start /no/such/shell"),
            "{found:?}"
        );
        let own = concat!("backstay ", env!("CARGO_PKG_VERSION"));
        assert_eq!(node("a", Ok(format!("{own}\n"))).state, State::Ok);
        assert_eq!(
            node("a", Ok("backstay 0.0.1\n".to_owned())).state,
            State::Limited
        );
        assert_eq!(
            node("a", Ok("no backstay\n".to_owned())).state,
            State::Limited
        );
        let line = node("a", Err("no route".to_owned()));
        assert_eq!((line.state, line.check.as_str()), (State::Not, "node a"));
    }
}
