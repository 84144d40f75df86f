// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: the words of the next start: which hosts are gone, which are taken, what the command becomes.
//! In from: the scheduler, the user's command for hosts that are gone.
//! Out to: words, a host file in the run folder.
//! Invariants: what is not known to be gone is taken.

use super::child::output;
use super::command::Launcher;
use super::hosts::{Host, Need, Placed, place, write};
use super::starts::Supervisor;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// One start.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) words: Vec<String>,
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) hosts: Vec<String>,
}

impl Supervisor {
    /// What to start next, or why nothing can be started.
    pub(crate) fn prepare(&mut self) -> Result<Start, String> {
        let wanted = self.wanted();
        let all: Vec<Host> = wanted.iter().chain(&self.options.spares).cloned().collect();
        let gone = self.gone(&all);
        let is_own = matches!(
            self.parts.command.launcher(),
            Launcher::Srun | Launcher::Flux
        );
        let slots: Option<u32> = wanted.iter().map(|host| host.slots).sum();
        let ranks = self.parts.command.ranks().or(slots).filter(|_| !is_own);
        let need = Need {
            ranks,
            min_hosts: self.options.min_hosts,
            shrink: self.options.shrink,
        };
        let spares = if is_own {
            &[][..]
        } else {
            &self.options.spares[..]
        };
        let (mut hosts, mut surroundings) = (Vec::new(), Vec::new());
        let mut file = None;
        if !wanted.is_empty() {
            let placed = place(&wanted, spares, &gone, &need)?;
            self.say_placed(&placed, &gone);
            if let Some(nodes) = self.parts.command.nodes()
                && nodes > placed.hosts.len()
            {
                return Err(format!(
                    "srun asks for {nodes} nodes, and {} are left: allocate one more than the job needs, or leave out -N",
                    placed.hosts.len()
                ));
            }
            if self.from_scheduler && placed.hosts != wanted {
                surroundings = self.surroundings(&placed.hosts);
            }
            // As it was given, unless hosts are other than they were, or only this process has the list.
            let is_same = placed.hosts == wanted && self.from_scheduler;
            if !is_own && !is_same {
                let path = self
                    .options
                    .folder
                    .join(format!("hosts.{}", self.summary.starts));
                fs::write(&path, write(&placed.hosts, self.parts.command.form()))
                    .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
                file = Some(path.to_string_lossy().into_owned());
            }
            hosts = placed.hosts.into_iter().map(|host| host.name).collect();
        }
        let variables = self.variables(file.as_deref());
        if let Some(route) = &self.parts.route {
            route.check(&self.parts.command, &hosts)?;
        }
        let excluded: Vec<String> = gone.into_keys().collect();
        let words = self
            .parts
            .command
            .with(file.as_deref(), &excluded, &self.exported(&variables));
        let variables = [variables, surroundings].concat();
        Ok(Start {
            words,
            variables,
            hosts,
        })
    }

    fn surroundings(&self, hosts: &[Host]) -> Vec<(String, String)> {
        let scheduler = self.parts.scheduler.as_ref();
        scheduler.map_or_else(Vec::new, |scheduler| scheduler.surroundings(hosts))
    }

    fn say_placed(&mut self, placed: &Placed, gone: &BTreeMap<String, String>) {
        let why = |host: &String| gone.get(host).map_or("", String::as_str);
        for (old, new) in &placed.replaced {
            let text = format!("{old} is left out ({}); {new} takes its place", why(old));
            let values = json!({ "host": old, "why": why(old), "spare": new });
            self.tell("replaced", &text, &values);
        }
        for old in &placed.missing {
            let text = format!("{old} is left out ({})", why(old));
            self.tell("left_out", &text, &json!({ "host": old, "why": why(old) }));
        }
        let replaced = placed.replaced.iter().map(|(old, _new)| old);
        for name in replaced.chain(&placed.missing) {
            if !self.summary.left_out.contains(name) {
                self.summary.left_out.push(name.clone());
            }
        }
    }

    /// The hosts of the command, or else of the scheduler.
    fn wanted(&mut self) -> Vec<Host> {
        if !self.parts.hosts.is_empty() {
            return self.parts.hosts.clone();
        }
        let Some(scheduler) = &mut self.parts.scheduler else {
            return Vec::new();
        };
        self.from_scheduler = true;
        match scheduler.hosts() {
            Ok(hosts) => hosts,
            Err(error) => {
                let name = scheduler.name();
                let text =
                    format!("{name} does not say which hosts there are, so all are taken: {error}");
                self.tell("unknown", &text, &json!({ "why": error }));
                Vec::new()
            }
        }
    }

    pub(super) fn gone(&mut self, hosts: &[Host]) -> BTreeMap<String, String> {
        let mut gone = BTreeMap::new();
        if let Some(scheduler) = &mut self.parts.scheduler {
            match scheduler.gone(hosts) {
                Ok(some) => gone = some,
                Err(error) => {
                    let text = format!(
                        "which hosts are gone is not known, so none counts as gone: {error}"
                    );
                    self.tell("unknown", &text, &json!({ "why": error }));
                }
            }
        }
        if let Some(line) = self.options.nodes_down_command.clone() {
            match output(&["sh".to_owned(), "-c".to_owned(), line], LIMIT) {
                Ok(text) => gone.extend(
                    text.split_whitespace()
                        .map(|name| (name.to_owned(), "--nodes-down-command says so".to_owned())),
                ),
                Err(error) => self.tell(
                    "unknown",
                    &format!("--nodes-down-command: {error}"),
                    &json!({}),
                ),
            }
        }
        gone
    }

    fn variables(&self, file: Option<&str>) -> Vec<(String, String)> {
        let path = |name: &str| {
            self.options
                .folder
                .join(name)
                .to_string_lossy()
                .into_owned()
        };
        let mut variables = vec![
            ("BACKSTAY_LEAVE_FILE".to_owned(), path(super::LEAVE)),
            ("BACKSTAY_RENDEZVOUS".to_owned(), path(super::RENDEZVOUS)),
            (
                "BACKSTAY_RESTARTS".to_owned(),
                self.summary.starts.to_string(),
            ),
        ];
        if let Some(died) = self.died_unix_ms {
            variables.push(("BACKSTAY_DIED_UNIX_MS".to_owned(), died.to_string()));
        }
        if let (Some(number), 0) = (self.options.checkpoint, self.summary.starts) {
            variables.push(("BACKSTAY_RESTORE_CHECKPOINT".to_owned(), number.to_string()));
        }
        if let Some(wish) = self.fresh {
            variables.push(("BACKSTAY_FRESH".to_owned(), wish.to_string()));
        }
        let scheduler = self.parts.scheduler.as_ref();
        for (name, value) in scheduler.map_or(&[][..], |scheduler| scheduler.settings()) {
            if std::env::var_os(name).is_none() {
                variables.push(((*name).to_owned(), (*value).to_owned()));
            }
        }
        if let Some(file) = file {
            variables.push(("BACKSTAY_HOSTFILE".to_owned(), file.to_owned()));
        }
        variables
    }

    /// Names of variables that all ranks need: ours, and settings in this process's environment.
    fn exported(&self, variables: &[(String, String)]) -> Vec<String> {
        let mut names: Vec<String> = variables.iter().map(|(name, _)| name.clone()).collect();
        if let Some(route) = &self.parts.route {
            names.extend(route.variables());
        }
        names.extend(
            self.options
                .pass_on
                .iter()
                .filter(|name| !names.contains(name))
                .cloned()
                .collect::<Vec<_>>(),
        );
        names
    }
}
