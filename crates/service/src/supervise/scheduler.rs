// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what is known of the hosts and of the time that is left: from Slurm, from Flux, or by trying.
//! In from: `scontrol`, `sinfo`, `squeue`; `flux`; a host file and a remote shell.
//! Out to: the hosts of an allocation, those that are gone and why, seconds left.
//! Invariants: every command has a limit of time; one that fails or talks nonsense is said, and taken
//! as "not known", never as "gone".

use super::child::output;
use super::hosts::{Host, parse_list};
use std::collections::BTreeMap;
use std::time::Duration;

/// No question to a scheduler or a host takes longer.
const LIMIT: Duration = Duration::from_secs(20);
/// Hosts tried at the same time.
const AT_ONCE: usize = 32;
/// Why a node that was the job's is not any more.
const LOST: &str = "Slurm took it out of the allocation";
/// A host is tried so many times before it counts as gone.
const TRIES: usize = 2;

/// Who knows of hosts and time.
pub trait Scheduler {
    /// Its name, for people.
    fn name(&self) -> &'static str;

    /// All hosts of the allocation, gone or not; empty if it knows of none.
    fn hosts(&mut self) -> Result<Vec<Host>, String>;

    /// Those of `hosts` that are gone, and why.
    fn gone(&mut self, hosts: &[Host]) -> Result<BTreeMap<String, String>, String>;

    /// Seconds until the allocation ends; none if it does not, or if that is not known.
    fn remaining_s(&mut self) -> Result<Option<u64>, String>;

    /// Variables of the command, where those of this process still name hosts that were lost.
    fn surroundings(&self, _hosts: &[Host]) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Variables of every start, where this process's environment has no others.
    fn settings(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }
}

fn ask(words: &[&str]) -> Result<String, String> {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    output(&words, LIMIT)
}

/// The allocation of Slurm that this process is in.
#[derive(Debug)]
pub struct Slurm {
    job: String,
    nodes: String,
    tasks: String,
}

impl Slurm {
    /// From `SLURM_JOB_ID` and its like, which `variable` reads.
    pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        Some(Self {
            job: variable("SLURM_JOB_ID")?,
            nodes: variable("SLURM_JOB_NODELIST").or_else(|| variable("SLURM_NODELIST"))?,
            tasks: variable("SLURM_TASKS_PER_NODE").unwrap_or_default(),
        })
    }
}

impl Scheduler for Slurm {
    fn name(&self) -> &'static str {
        "Slurm"
    }

    fn hosts(&mut self) -> Result<Vec<Host>, String> {
        let text = ask(&["scontrol", "show", "hostnames", &self.nodes])?;
        let mut tasks = tasks_per_node(&self.tasks).into_iter();
        Ok(text
            .split_whitespace()
            .map(|name| Host::new(name, tasks.next()))
            .collect())
    }

    /// A node that was lost is not this job's any more, whatever becomes of it: `sinfo` may call it idle again, and this
    /// process's environment names it for ever.
    fn gone(&mut self, hosts: &[Host]) -> Result<BTreeMap<String, String>, String> {
        let mut gone = BTreeMap::new();
        if let Some(ours) = self.allocated()? {
            let lost = hosts.iter().filter(|host| !ours.contains(&host.name));
            gone.extend(lost.map(|host| (host.name.clone(), LOST.to_owned())));
        }
        let text = ask(&["sinfo", "-h", "-N", "-n", &self.nodes, "-o", "%N %t"])?;
        for line in text.lines() {
            let Some((name, state)) = line.trim().split_once(' ') else {
                continue;
            };
            let is_gone = state.ends_with('*')
                || ["down", "fail", "unk"]
                    .iter()
                    .any(|word| state.starts_with(word));
            if is_gone && hosts.iter().any(|host| host.name == name) {
                gone.insert(name.to_owned(), format!("Slurm says {state}"));
            }
        }
        Ok(gone)
    }

    fn remaining_s(&mut self) -> Result<Option<u64>, String> {
        let text = ask(&["squeue", "-h", "-j", &self.job, "-o", "%L"])?;
        slurm_seconds(text.trim())
    }

    fn surroundings(&self, hosts: &[Host]) -> Vec<(String, String)> {
        let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        let (count, names) = (names.len().to_string(), names.join(","));
        let slots: Option<Vec<String>> = hosts
            .iter()
            .map(|host| host.slots.map(|slots| slots.to_string()))
            .collect();
        let mut all = vec![
            ("SLURM_JOB_NODELIST", names.clone()),
            ("SLURM_NODELIST", names),
            ("SLURM_JOB_NUM_NODES", count.clone()),
            ("SLURM_NNODES", count),
            // A step that was on a lost node never ends for Slurm, and keeps what it had on the other nodes: a further
            // one would wait for that for ever.
            ("SLURM_OVERLAP", "1".to_owned()),
        ];
        all.extend(slots.map(|slots| ("SLURM_TASKS_PER_NODE", slots.join(","))));
        let own = |(name, value): (&str, String)| (name.to_owned(), value);
        all.into_iter().map(own).collect()
    }

    /// Slurm sends SIGTERM to the ranks themselves some time before it ends them; and `srun` would let the others wait for
    /// a rank that died.
    fn settings(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("BACKSTAY_LEAVE_ON_SIGTERM", "true"),
            ("SLURM_KILL_BAD_EXIT", "1"),
        ]
    }
}

impl Slurm {
    /// The nodes that the job has now; none if that is not said.
    fn allocated(&self) -> Result<Option<Vec<String>>, String> {
        let text = ask(&["scontrol", "-o", "show", "job", &self.job])?;
        let Some(nodes) = node_list(&text) else {
            return Ok(None);
        };
        let names = ask(&["scontrol", "show", "hostnames", nodes])?;
        Ok(Some(names.split_whitespace().map(str::to_owned).collect()))
    }
}

/// The nodes of a job, in what `scontrol show job` prints.
fn node_list(text: &str) -> Option<&str> {
    text.split_whitespace()
        .find_map(|word| word.strip_prefix("NodeList="))
        .filter(|nodes| !nodes.is_empty() && *nodes != "(null)")
}

/// `2(x3),1` is 2, 2, 2, 1.
fn tasks_per_node(text: &str) -> Vec<u32> {
    let mut all = Vec::new();
    for word in text.split(',') {
        let (count, times) = word.split_once("(x").unwrap_or((word, "1"));
        let times: usize = times.trim_end_matches(')').parse().unwrap_or(0);
        if let Ok(count) = count.trim().parse::<u32>() {
            all.extend(std::iter::repeat_n(count, times.min(1 << 20)));
        }
    }
    all
}

/// `[D-][HH:]MM:SS`.
fn slurm_seconds(text: &str) -> Result<Option<u64>, String> {
    if matches!(text, "UNLIMITED" | "NOT_SET" | "INVALID") {
        return Ok(None);
    }
    let wrong = || format!("squeue says {text:?} is left, which is no time");
    let (days, rest) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds: u64 = 0;
    for part in rest.split(':') {
        let part: u64 = part.parse().map_err(|_error| wrong())?;
        seconds = seconds
            .checked_mul(60)
            .and_then(|sum| sum.checked_add(part))
            .ok_or_else(wrong)?;
    }
    let days: u64 = days.parse().map_err(|_error| wrong())?;
    let days = days.checked_mul(86400).ok_or_else(wrong)?;
    Ok(Some(days.checked_add(seconds).ok_or_else(wrong)?))
}

/// The instance of Flux that this process is in.
#[derive(Debug)]
pub struct Flux;

impl Flux {
    /// From `FLUX_URI`, which `variable` reads.
    pub fn detect(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        variable("FLUX_URI").map(|_uri| Self)
    }
}

impl Flux {
    fn list(states: &str) -> Result<Vec<Host>, String> {
        let packed = ask(&[
            "flux",
            "resource",
            "list",
            "-n",
            "-s",
            states,
            "-o",
            "{nodelist}",
        ])?;
        let packed: Vec<&str> = packed.split_whitespace().collect();
        if packed.is_empty() {
            return Ok(Vec::new());
        }
        let mut words = vec!["flux", "hostlist", "-e", "-d", ","];
        words.extend(packed);
        Ok(parse_list(&ask(&words)?))
    }
}

impl Scheduler for Flux {
    fn name(&self) -> &'static str {
        "Flux"
    }

    fn hosts(&mut self) -> Result<Vec<Host>, String> {
        Self::list("all")
    }

    fn gone(&mut self, hosts: &[Host]) -> Result<BTreeMap<String, String>, String> {
        let down = Self::list("down")?;
        let ours = down
            .into_iter()
            .filter(|host| hosts.iter().any(|known| known.name == host.name));
        Ok(ours
            .map(|host| (host.name, "Flux says down".to_owned()))
            .collect())
    }

    fn remaining_s(&mut self) -> Result<Option<u64>, String> {
        let text = ask(&["flux", "job", "timeleft"])?;
        match text.trim() {
            "" | "infinity" | "inf" => Ok(None),
            seconds => match seconds.split('.').next().unwrap_or_default().parse() {
                Ok(seconds) => Ok(Some(seconds)),
                Err(_error) => Err(format!(
                    "flux job timeleft says {seconds:?}, which is no time"
                )),
            },
        }
    }
}

/// Hosts that nobody watches: each is tried with a command.
#[derive(Debug)]
pub struct Probed {
    /// The hosts of the host file.
    pub hosts: Vec<Host>,
    /// The command that ends well on a host that lives; `HOST` in its words is the host.
    pub probe: Vec<String>,
    /// Names of this host, which is not tried.
    pub own_names: Vec<String>,
}

impl Scheduler for Probed {
    fn name(&self) -> &'static str {
        "host file"
    }

    fn hosts(&mut self) -> Result<Vec<Host>, String> {
        Ok(self.hosts.clone())
    }

    fn gone(&mut self, hosts: &[Host]) -> Result<BTreeMap<String, String>, String> {
        let others: Vec<&Host> = hosts
            .iter()
            .filter(|host| !self.own_names.contains(&host.name))
            .collect();
        let answers = try_hosts(&self.probe, &others);
        let silent = others.iter().zip(answers).filter_map(|(host, answer)| {
            let why = answer.err()?;
            Some((host.name.clone(), format!("no answer: {why}")))
        });
        Ok(silent.collect())
    }

    fn remaining_s(&mut self) -> Result<Option<u64>, String> {
        Ok(None)
    }
}

/// What the command answers on each host, `HOST` in its words being the host; or why it does not. Each is tried twice.
pub fn try_hosts(probe: &[String], hosts: &[&Host]) -> Vec<Result<String, String>> {
    let mut answers = Vec::new();
    for some in hosts.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let tries: Vec<_> = some
                .iter()
                .map(|host| scope.spawn(|| try_host(probe, &host.name)))
                .collect();
            let tried = tries.into_iter().map(|one| one.join());
            answers.extend(tried.map(|one| one.unwrap_or_else(|_| Err("not tried".to_owned()))));
        });
    }
    answers
}

fn try_host(probe: &[String], host: &str) -> Result<String, String> {
    let words: Vec<String> = probe
        .iter()
        .map(|word| word.replace("HOST", host))
        .collect();
    let mut answer = output(&words, LIMIT);
    for _ in 1..TRIES {
        if answer.is_err() {
            std::thread::sleep(Duration::from_millis(300));
            answer = output(&words, LIMIT);
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_slurm_prints_is_read() {
        assert_eq!(tasks_per_node("2(x3),1"), [2, 2, 2, 1]);
        assert!(tasks_per_node("").is_empty() && tasks_per_node("x(x").is_empty());
        for (text, seconds) in [
            ("59", 59),
            ("1:00", 60),
            ("2:03:04", 7384),
            ("1-00:00:01", 86401),
        ] {
            assert_eq!(slurm_seconds(text), Ok(Some(seconds)), "{text}");
        }
        assert_eq!(slurm_seconds("UNLIMITED"), Ok(None));
        for text in ["", "soon", "1-", "18446744073709551615:00", "1:-1"] {
            slurm_seconds(text).expect_err(text);
        }
    }

    #[test]
    fn the_nodes_of_a_job_are_read() {
        let shown =
            "JobId=7 ReqNodeList=x ExcNodeList=(null)\n NodeList=n[1,3-4] BatchHost=n1 NumNodes=3";
        assert_eq!(node_list(shown), Some("n[1,3-4]"));
        assert_eq!(node_list("ReqNodeList=x NodeList=(null)"), None);
        assert_eq!(node_list("slurm_load_jobs error"), None);
    }

    #[test]
    fn lost_nodes_are_taken_out_of_the_environment() {
        let slurm = Slurm::detect(|name| (name != "SLURM_NODELIST").then(|| "n[1-3]".to_owned()));
        let told = slurm.expect("Slurm").surroundings(&parse_list("n1:2,n3:1"));
        let told: BTreeMap<_, _> = told.into_iter().collect();
        assert_eq!(told["SLURM_JOB_NODELIST"], "n1,n3");
        assert_eq!(told["SLURM_NNODES"], "2");
        assert_eq!(told["SLURM_TASKS_PER_NODE"], "2,1");
        assert_eq!(told["SLURM_OVERLAP"], "1");
    }

    #[test]
    fn a_host_that_does_not_answer_is_gone() {
        let mut probed = Probed {
            hosts: parse_list("up1,down1,me,up2"),
            probe: [
                "sh",
                "-c",
                "case HOST in up*) ;; *) echo no way >&2; exit 255;; esac",
            ]
            .map(str::to_owned)
            .to_vec(),
            own_names: vec!["me".to_owned()],
        };
        let hosts = probed.hosts().expect("hosts");
        let gone = probed.gone(&hosts).expect("tried");
        assert_eq!(gone.keys().collect::<Vec<_>>(), ["down1"]);
        assert!(gone["down1"].contains("no way"), "{gone:?}");
    }
}
