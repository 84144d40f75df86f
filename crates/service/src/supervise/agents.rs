// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: one node agent on each host of the job, started before the application, ended after it.
//! In from: the hosts of a start.
//! Out to: a remote shell for each host, or one step of Slurm.
//! Invariants: an agent that cannot be started is said and is no reason not to start the application.
//! The contract with `backstay agent --job JOB`: it gets `BACKSTAY_RENDEZVOUS`, and ends by itself once
//! the file `over` is in that folder; a remote shell that is still there after the grace is ended.

use super::child::Group;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The file whose presence ends agents.
pub const OVER: &str = "over";

/// How agents are started.
#[derive(Clone, Debug)]
pub struct AgentPlan {
    /// Words that start a command on a host; the host and the command follow.
    pub remote_shell: Vec<String>,
    /// Whether they are one step of Slurm instead.
    pub slurm: bool,
    /// The command `backstay`.
    pub backstay: String,
    /// The name of the job.
    pub job: String,
    /// Settings of the environment, which remote shells do not pass on: where stores are, say.
    pub settings: Vec<(String, String)>,
    /// What is in front of each: the part of `backstay` that has the kernel end it with this process.
    pub wrapper: Vec<String>,
}

/// The agents that run.
#[derive(Debug)]
pub(crate) struct Agents {
    plan: AgentPlan,
    rendezvous: PathBuf,
    running: BTreeMap<String, Group>,
}

impl Agents {
    pub(crate) fn new(plan: AgentPlan, rendezvous: PathBuf) -> Self {
        Self {
            plan,
            rendezvous,
            running: BTreeMap::new(),
        }
    }

    /// How they are started, in words.
    pub(crate) fn how(&self) -> String {
        let how = if self.plan.slurm {
            "a step of Slurm".to_owned()
        } else {
            self.plan.remote_shell.join(" ")
        };
        format!("agents of job {} by {how}", self.plan.job)
    }

    /// Starts agents where there is none: where, and what went wrong, in words.
    pub(crate) fn start(&mut self, hosts: &[String]) -> (Vec<String>, Vec<String>) {
        let mut wrong = Vec::new();
        self.running.retain(|_host, agent| agent.ended().is_none());
        let has = |host: &&String| {
            self.running
                .keys()
                .any(|key| key.split(',').any(|one| one == host.as_str()))
        };
        let new: Vec<String> = hosts.iter().filter(|host| !has(host)).cloned().collect();
        if new.is_empty() {
            return (new, wrong);
        }
        let steps: Vec<(String, Vec<String>)> = if self.plan.slurm {
            vec![(new.join(","), self.step(&new))]
        } else {
            new.iter()
                .map(|host| (host.clone(), self.remote(host)))
                .collect()
        };
        let variables = [(
            "BACKSTAY_RENDEZVOUS".to_owned(),
            self.rendezvous.to_string_lossy().into_owned(),
        )];
        for (key, words) in steps {
            let words = [self.plan.wrapper.clone(), words].concat();
            match Group::start(&words, &variables, false) {
                Ok(agent) => drop(self.running.insert(key, agent)),
                Err(error) => wrong.push(format!("no agent on {key}: {error}")),
            }
        }
        let started = |host: &String| {
            self.running
                .keys()
                .any(|key| key.split(',').any(|one| one == host))
        };
        let new = new.into_iter().filter(started).collect();
        (new, wrong)
    }

    fn remote(&self, host: &str) -> Vec<String> {
        let settings = self.plan.settings.iter();
        let settings: Vec<String> = settings
            .map(|(name, value)| format!("{name}={} ", quoted(value)))
            .collect();
        let settings = settings.concat();
        let line = format!(
            "{settings}BACKSTAY_RENDEZVOUS={} exec {} agent --job {}",
            quoted(&self.rendezvous.to_string_lossy()),
            quoted(&self.plan.backstay),
            quoted(&self.plan.job)
        );
        let mut words = self.plan.remote_shell.clone();
        words.extend([host.to_owned(), line]);
        words
    }

    fn step(&self, hosts: &[String]) -> Vec<String> {
        let count = hosts.len().to_string();
        let words = [
            "srun",
            "--overlap",
            // A node that is lost, or an agent that ends, ends no other agent.
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--mpi=none",
            "-N",
            &count,
            "-n",
            &count,
            "--ntasks-per-node=1",
            "-w",
            &hosts.join(","),
        ];
        let mut words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let agent = [
            &self.plan.backstay,
            "agent",
            "--job",
            &self.plan.job,
            "--until-over",
        ];
        words.extend(agent.map(str::to_owned));
        words
    }

    /// Tells all that the job is over, and ends what does not end.
    pub(crate) fn stop(&mut self, grace: Duration) {
        // If it cannot be written, the agents are ended all the same.
        drop(fs::write(self.rendezvous.join(OVER), b""));
        let end = Instant::now() + grace;
        for agent in self.running.values_mut() {
            if agent
                .wait(end.saturating_duration_since(Instant::now()))
                .is_none()
            {
                agent.end(Duration::from_secs(1));
            }
        }
        self.running.clear();
    }
}

/// A word as a shell reads it again.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn one_agent_runs_on_each_host_and_ends_when_told() {
        let folder = tempfile::tempdir().expect("folder");
        let log = folder.path().join("log");
        let fake = folder.path().join("fake agent");
        let text = format!(
            "#!/bin/sh\necho \"$@\" \"$BACKSTAY_NODE\" >> '{}'\nwhile [ ! -e \"$BACKSTAY_RENDEZVOUS/over\" ]; do sleep 0.01; done\n\
             echo over >> '{0}'\n",
            log.display()
        );
        fs::write(&fake, text).expect("script");
        fs::set_permissions(&fake, PermissionsExt::from_mode(0o755)).expect("mode");
        let plan = AgentPlan {
            remote_shell: ["sh", "-c", "shift; eval \"$*\"", "remote"]
                .map(str::to_owned)
                .to_vec(),
            slurm: false,
            backstay: fake.to_string_lossy().into_owned(),
            job: "it's".to_owned(),
            settings: vec![("BACKSTAY_NODE".to_owned(), "a b".to_owned())],
            wrapper: Vec::new(),
        };
        let mut agents = Agents::new(plan, folder.path().to_owned());
        let (started, wrong) = agents.start(&["a".to_owned(), "b".to_owned()]);
        assert_eq!((started.join(" "), wrong.len()), ("a b".to_owned(), 0));
        let read = || fs::read_to_string(&log).unwrap_or_default();
        let end = Instant::now() + Duration::from_secs(10);
        while read().lines().count() < 2 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(agents.start(&["a".to_owned()]), (Vec::new(), Vec::new()));
        agents.stop(Duration::from_secs(10));
        assert_eq!(
            read(),
            "agent --job it's a b\nagent --job it's a b\nover\nover\n"
        );
    }

    #[test]
    fn under_slurm_they_are_one_step() {
        let plan = AgentPlan {
            remote_shell: Vec::new(),
            slurm: true,
            backstay: "backstay".to_owned(),
            job: "j".to_owned(),
            settings: Vec::new(),
            wrapper: Vec::new(),
        };
        let agents = Agents::new(plan, PathBuf::from("/r"));
        let step = agents.step(&["a".to_owned(), "b".to_owned()]).join(" ");
        assert_eq!(
            step,
            "srun --overlap --no-kill --kill-on-bad-exit=0 --wait=0 --mpi=none -N 2 -n 2 --ntasks-per-node=1 -w a,b \
             backstay agent --job j --until-over"
        );
    }
}
