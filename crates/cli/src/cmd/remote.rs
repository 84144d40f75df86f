// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: this command on other nodes, by a remote shell or as steps of Slurm, and what it answers there.
//! In: hosts of the command line. Out: what `rm` and `prune` show and do there.
//! Invariants: it runs with the settings of this environment, and answers in JSON; that there is nothing is no failure.

use super::run::{SSH, agent_settings, own_names, split};
use backstay_service::supervise::agents::quoted;
use backstay_service::supervise::hosts::{Host, parse_list};
use backstay_service::supervise::scheduler::try_hosts;
use serde_json::Value;
use std::path::PathBuf;

/// Which other nodes.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Remote {
    /// Do the same with the stores of these nodes: a,b
    #[arg(long, value_name = "HOSTS")]
    nodes: Option<String>,
    /// What runs a command on a node; the node and the command follow [default: ssh, or srun where this is in a job
    /// of Slurm]
    #[arg(long, value_name = "CMD", requires = "nodes")]
    remote_shell: Option<String>,
}

/// What a node answered: nothing where there is nothing there.
pub(crate) type Answer = Result<Option<Value>, String>;

impl Remote {
    /// Whether other nodes were named.
    pub(crate) fn is_asked(&self) -> bool {
        self.nodes.is_some()
    }

    /// Runs `backstay WORDS` on all of them but this one.
    pub(crate) fn run(&self, words: &[&str]) -> Vec<(String, Answer)> {
        let hosts = parse_list(self.nodes.as_deref().unwrap_or_default());
        let own = own_names();
        let is_other = |host: &&Host| !own.contains(&host.name);
        let others: Vec<&Host> = hosts.iter().filter(is_other).collect();
        let answers = try_hosts(&self.words(words), &others);
        let names = others.iter().map(|host| host.name.clone());
        names.zip(answers.into_iter().map(read)).collect()
    }

    /// The command for `HOST`.
    fn words(&self, words: &[&str]) -> Vec<String> {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("backstay"));
        let settings = agent_settings().into_iter();
        let mut line: Vec<String> = settings
            .map(|(name, value)| format!("{name}={}", quoted(&value)))
            .collect();
        line.push(quoted(&program.to_string_lossy()));
        line.extend(words.iter().map(|word| quoted(word)));
        // What it could not do it says in JSON.
        let line = format!("{} || true", line.join(" "));
        let in_slurm = self.remote_shell.is_none() && std::env::var_os("SLURM_JOB_ID").is_some();
        let mut all = if in_slurm {
            split("srun --overlap --mpi=none -N 1 -n 1 -w HOST sh -c")
        } else {
            split(self.remote_shell.as_deref().unwrap_or(SSH))
        };
        if !in_slurm {
            all.push("HOST".to_owned());
        }
        all.push(line);
        all
    }
}

/// Reads what was printed.
fn read(answer: Result<String, String>) -> Answer {
    let text = answer?;
    let value: Value = serde_json::from_str(text.trim()).map_err(|_| {
        format!(
            "it answered {:?}",
            text.trim().chars().take(200).collect::<String>()
        )
    })?;
    match &value["error"] {
        Value::Null => Ok(Some(value)),
        error if error["kind"] == "nothing there" => Ok(None),
        error => Err(error["message"].as_str().unwrap_or("it failed").to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let said = |text: &str| read(Ok(text.to_owned()));
        assert_eq!(said("{\"done\": true}\n").unwrap().unwrap()["done"], true);
        let nothing = said("{\"error\": {\"kind\": \"nothing there\", \"message\": \"x\"}}");
        assert_eq!(nothing, Ok(None));
        let refused = said("{\"error\": {\"kind\": \"store busy\", \"message\": \"a job runs\"}}");
        assert_eq!(refused, Err("a job runs".to_owned()));
        assert!(said("command not found").unwrap_err().contains("not found"));
    }
}
