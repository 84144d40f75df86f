// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: what the command that starts the application says of hosts, ranks and remote shell, and
//! the same command with other hosts.
//! In from: the words after `backstay run --`.
//! Out to: the words of one start.
//! Invariants: only the words before the program are looked at; nothing else of the command changes.

use super::child::output;
use super::hosts::Form;
use super::routing::{FOLDER, PRELOAD};
use std::path::Path;
use std::time::Duration;

const VERSION_LIMIT: Duration = Duration::from_secs(20);

/// What starts the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Open MPI's or PRRTE's mpirun.
    OpenMpi,
    /// Hydra: MPICH, Intel MPI and others.
    Hydra,
    /// Slurm's srun.
    Srun,
    /// `flux run`.
    Flux,
    /// Something else: nothing is known of its options.
    Other,
}

impl Launcher {
    /// Its name, for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "mpirun of Open MPI",
            Self::Hydra => "mpirun of MPICH or its like",
            Self::Srun => "srun",
            Self::Flux => "flux run",
            Self::Other => "not known",
        }
    }
}

const HOST_FILES: [&str; 4] = ["hostfile", "machinefile", "default-hostfile", "f"];
const HOST_LISTS: [&str; 4] = ["host", "hosts", "H", "hostlist"];
const RANKS: [&str; 3] = ["n", "np", "ntasks"];
const NODES: [&str; 2] = ["N", "nodes"];
/// Options without a value, so that the word after them is the next option or the program.
const FLAGS: [&str; 32] = [
    "allow-run-as-root",
    "oversubscribe",
    "nooversubscribe",
    "use-hwthread-cpus",
    "display-map",
    "display-allocation",
    "tag-output",
    "timestamp-output",
    "quiet",
    "q",
    "verbose",
    "v",
    "report-bindings",
    "bynode",
    "byslot",
    "nolocal",
    "l",
    "prepend-rank",
    "disable-auto-cleanup",
    "disable-hostname-propagation",
    "genvall",
    "genvnone",
    "envall",
    "envnone",
    "overlap",
    "exclusive",
    "label",
    "unbuffered",
    "u",
    "print-all-exitcodes",
    "enable-recovery",
    "do-not-launch",
];
/// Options by which a launcher passes on fewer variables than it has.
const EXPORT_LIMITS: [&str; 6] = [
    "export",
    "export-file",
    "genvnone",
    "genvlist",
    "envnone",
    "envlist",
];
/// Options with two values.
const PAIRS: [&str; 6] = ["mca", "gmca", "prtemca", "pmixmca", "genv", "env"];

/// The command of an application, understood as far as `backstay run` has to.
#[derive(Clone, Debug)]
pub struct Command {
    words: Vec<String>,
    launcher: Launcher,
}

/// One option: its name without dashes, where it stands, where its value is, and the value.
struct Found<'a> {
    name: &'a str,
    begin: usize,
    end: usize,
    value: Option<&'a str>,
}

impl Command {
    /// Understands `words`; `version` is what the launcher prints for `--version`.
    pub fn new(words: Vec<String>, version: &str) -> Self {
        let first = words.first().map(|word| Path::new(word.as_str()));
        let name = first
            .and_then(Path::file_name)
            .and_then(|name| name.to_str());
        let launcher = match name.unwrap_or_default() {
            "srun" => Launcher::Srun,
            "flux" => Launcher::Flux,
            _ if version.contains("Open MPI")
                || version.contains("OpenRTE")
                || version.contains("PRRTE") =>
            {
                Launcher::OpenMpi
            }
            _ if version.contains("HYDRA")
                || version.contains("Hydra")
                || version.contains("Intel(R) MPI") =>
            {
                Launcher::Hydra
            }
            _ => Launcher::Other,
        };
        Self { words, launcher }
    }

    /// Understands `words`, and asks the launcher which one it is if its name is that of several.
    pub fn detect(words: Vec<String>) -> Self {
        let first = words.first().cloned().unwrap_or_default();
        let name = Path::new(&first)
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let is_of_several = ["mpirun", "mpiexec", "orterun", "prterun"]
            .iter()
            .any(|known| name.starts_with(known));
        let version = if is_of_several {
            output(&[first, "--version".to_owned()], VERSION_LIMIT).unwrap_or_default()
        } else {
            String::new()
        };
        Self::new(words, &version)
    }

    /// Which launcher it is.
    pub fn launcher(&self) -> Launcher {
        self.launcher
    }

    /// The command as it was given.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// How this launcher writes hosts.
    pub fn form(&self) -> Form {
        if self.launcher == Launcher::OpenMpi {
            Form::Slots
        } else {
            Form::Colon
        }
    }

    /// The options before the (first) program.
    fn options(&self) -> Vec<Found<'_>> {
        let mut found = Vec::new();
        let mut at = 1;
        while let Some(word) = self.words.get(at) {
            let Some(name) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
                break;
            };
            let is_long = name.starts_with('-');
            let name = name.trim_start_matches('-');
            let (name, own) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                // srun -n4
                None if self.launcher == Launcher::Srun
                    && !is_long
                    && name.len() > 1
                    && name.is_char_boundary(1) =>
                {
                    let (name, value) = name.split_at(1);
                    (name, Some(value))
                }
                None => (name, None),
            };
            let take = match () {
                () if own.is_some() || FLAGS.contains(&name) => 0,
                () if PAIRS.contains(&name) => 2,
                () => 1,
            };
            let end = (at + 1 + take).min(self.words.len());
            let value = own.or_else(|| self.words.get(end - 1).map(String::as_str));
            found.push(Found {
                name,
                begin: at,
                end,
                value,
            });
            at = end;
        }
        found
    }

    /// The program that its (first) ranks are, as it is named.
    pub fn program(&self) -> Option<&str> {
        let known = self.launcher != Launcher::Other;
        let end = self.options().last().map_or(1, |option| option.end);
        let at = match self.launcher {
            Launcher::Flux => end + 1,
            _ if known => end,
            _ => 0,
        };
        self.words.get(at).map(String::as_str)
    }

    fn value(&self, names: &[&str]) -> Option<&str> {
        let options = self.options();
        options
            .iter()
            .find(|option| names.contains(&option.name))
            .and_then(|option| option.value)
    }

    /// The host file that it names.
    pub fn host_file(&self) -> Option<&str> {
        self.value(&HOST_FILES)
    }

    /// The hosts that it names itself.
    pub fn host_list(&self) -> Option<&str> {
        self.value(&HOST_LISTS)
    }

    /// How many ranks it asks for. A command of several programs says it in several places: none.
    pub fn ranks(&self) -> Option<u32> {
        if self.words.iter().any(|word| word == ":") {
            return None;
        }
        self.value(&RANKS).and_then(|count| count.parse().ok())
    }

    /// How many nodes `srun` asks for at least.
    pub fn nodes(&self) -> Option<usize> {
        let least = self
            .value(&NODES)
            .filter(|_| self.launcher == Launcher::Srun);
        least.and_then(|count| count.split('-').next()?.parse().ok())
    }

    /// The remote shell that it names.
    pub fn agent(&self) -> Option<&str> {
        for option in self.options() {
            if PAIRS.contains(&option.name)
                && option.end == option.begin + 3
                && matches!(
                    self.words[option.begin + 1].as_str(),
                    "plm_rsh_agent" | "plm_ssh_agent"
                )
            {
                return option.value;
            }
        }
        self.value(&["launcher-exec", "bootstrap-exec"])
    }

    /// The command with this host file in place of what it said of hosts, and with variables of the
    /// environment named where the launcher does not pass them on by itself.
    pub fn with(
        &self,
        host_file: Option<&str>,
        exclude: &[String],
        pass_on: &[String],
    ) -> Vec<String> {
        let options = self.options();
        let is_host = |option: &&Found<'_>| {
            HOST_FILES.contains(&option.name) || HOST_LISTS.contains(&option.name)
        };
        let dropped: Vec<(usize, usize)> = match host_file {
            Some(_) => options
                .iter()
                .filter(is_host)
                .map(|found| (found.begin, found.end))
                .collect(),
            None => Vec::new(),
        };
        let mut own = Vec::new();
        match (host_file, self.launcher) {
            (Some(file), Launcher::OpenMpi) => {
                own.extend(["--hostfile".to_owned(), file.to_owned()]);
            }
            (Some(file), Launcher::Hydra) => own.extend(["-f".to_owned(), file.to_owned()]),
            _ => {}
        }
        if self.launcher == Launcher::Srun && !exclude.is_empty() {
            own.push(format!("--exclude={}", exclude.join(",")));
        }
        let mut words: Vec<String> = self.words.iter().take(1).cloned().collect();
        words.extend(own);
        words.extend(self.exports(pass_on));
        for (at, word) in self.words.iter().enumerate().skip(1) {
            if !dropped
                .iter()
                .any(|(begin, end)| (*begin..*end).contains(&at))
            {
                words.push(word.clone());
                if word == ":" {
                    words.extend(self.exports(pass_on));
                }
            }
        }
        words
    }

    /// That the variables of a routed program reach its processes on these hosts.
    pub(crate) fn check_preload(&self, hosts: &[String]) -> Result<(), String> {
        let end = self.options().last().map_or(1, |option| option.end);
        let mut own = self.words.iter().take(end);
        let sets = |word: &String| word == PRELOAD || word.starts_with(&format!("{PRELOAD}="));
        if own.any(sets) {
            return Err(format!(
                "the launcher is told what {PRELOAD} is, and --route needs it: set it in the environment instead"
            ));
        }
        if hosts.len() < 2 {
            return Ok(());
        }
        let export = self.value(&EXPORT_LIMITS);
        let options = self.options();
        let limits = options
            .iter()
            .find(|option| EXPORT_LIMITS.contains(&option.name));
        match (self.launcher, limits) {
            (Launcher::Other, _) => Err(
                "--route on several hosts needs a launcher that is known (mpirun, srun, flux run): how else variables reach them is not known".to_owned(),
            ),
            (Launcher::Srun, Some(_)) if export.is_some_and(|value| value.starts_with("ALL")) => Ok(()),
            (_, Some(option)) => Err(format!(
                "-{} keeps {PRELOAD} and {FOLDER} from the ranks, and --route needs them there: leave it out",
                option.name
            )),
            _ => Ok(()),
        }
    }

    fn exports(&self, names: &[String]) -> Vec<String> {
        if self.launcher != Launcher::OpenMpi {
            return Vec::new();
        }
        let is_named = |name: &String| {
            let mut pairs = self.words.windows(2).filter(|pair| pair[0] == "-x");
            pairs.any(|pair| pair[1].split('=').next() == Some(name.as_str()))
        };
        let missing = names.iter().filter(|name| !is_named(name));
        missing
            .flat_map(|name| ["-x".to_owned(), name.clone()])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str, version: &str) -> Command {
        Command::new(
            text.split_whitespace().map(str::to_owned).collect(),
            version,
        )
    }

    const OPEN: &str = "mpirun (Open MPI) 4.1.4";
    const HYDRA: &str = "HYDRA build details:";

    #[test]
    fn hosts_ranks_and_remote_shell_are_found() {
        let open = command(
            "mpirun --oversubscribe --mca plm_rsh_agent /x/agent --hostfile hosts -np 6 ./app -n 9 --host no",
            OPEN,
        );
        assert_eq!(open.launcher(), Launcher::OpenMpi);
        assert_eq!(open.host_file(), Some("hosts"));
        assert_eq!(open.host_list(), None);
        assert_eq!(open.ranks(), Some(6));
        assert_eq!(open.agent(), Some("/x/agent"));
        assert_eq!(open.program(), Some("./app"));
        let hydra = command(
            "mpiexec.hydra -launcher ssh -launcher-exec /a -hosts a,b -n 4 ./app",
            HYDRA,
        );
        assert_eq!(
            (hydra.host_list(), hydra.agent()),
            (Some("a,b"), Some("/a"))
        );
        assert_eq!(
            command("mpirun --host=a:2,b -n 1 ./a : -n 2 ./b", OPEN).ranks(),
            None
        );
        for text in [
            "srun -n 4 ./app",
            "srun --ntasks=4 ./app -n 5",
            "srun -l -N2 -n4 ./app",
        ] {
            let srun = command(text, "");
            assert_eq!(
                (srun.launcher(), srun.ranks()),
                (Launcher::Srun, Some(4)),
                "{text}"
            );
        }
        for text in [
            "srun -N2 ./app",
            "srun --nodes=2-4 -n 4 ./app",
            "srun -N 2 ./a",
        ] {
            assert_eq!(command(text, "").nodes(), Some(2), "{text}");
        }
        assert_eq!(command("srun -n 4 ./app -N 2", "").nodes(), None);
        assert_eq!(command("./app --hostfile x", "").host_file(), Some("x"));
        assert_eq!(command("./app --hostfile x", "").program(), Some("./app"));
    }

    #[test]
    fn the_host_file_is_put_in_the_place_of_what_was_said() {
        let names = ["BACKSTAY_RESTARTS".to_owned()];
        let open = command("mpirun --host a,b -n 2 ./a : -n 1 ./b --host z", OPEN);
        assert_eq!(
            open.with(Some("/run/hosts"), &[], &names).join(" "),
            "mpirun --hostfile /run/hosts -x BACKSTAY_RESTARTS -n 2 ./a : -x BACKSTAY_RESTARTS -n 1 ./b --host z"
        );
        let named = command("mpirun -x BACKSTAY_RESTARTS=5 ./a", OPEN);
        assert_eq!(named.with(None, &[], &names), named.words());
        let hydra = command("mpirun -f old -n 2 ./a", HYDRA);
        assert_eq!(
            hydra.with(Some("new"), &[], &names).join(" "),
            "mpirun -f new -n 2 ./a"
        );
        let srun = command("srun -n 2 ./a", "");
        let gone = ["n1".to_owned(), "n2".to_owned()];
        assert_eq!(
            srun.with(None, &gone, &names).join(" "),
            "srun --exclude=n1,n2 -n 2 ./a"
        );
    }

    #[test]
    fn what_keeps_variables_from_ranks_is_refused_where_files_are_routed() {
        let hosts = |count: usize| vec!["host".to_owned(); count];
        let said = |text: &str, version: &str, count: usize| {
            command(text, version).check_preload(&hosts(count))
        };
        for (text, version) in [
            ("mpirun -n 2 ./a LD_PRELOAD=x", OPEN),
            ("mpirun -x PATH -n 2 ./a", OPEN),
            ("mpiexec -genvall -n 2 ./a", HYDRA),
            ("srun -n 2 ./a --export=NONE", ""),
            ("srun --export=ALL,A=b -n 2 ./a", ""),
        ] {
            assert_eq!(said(text, version, 2), Ok(()), "{text}");
        }
        for (text, version) in [
            ("mpirun -x LD_PRELOAD=x -n 2 ./a", OPEN),
            ("mpirun -x LD_PRELOAD -n 2 ./a", OPEN),
        ] {
            let error = said(text, version, 0).expect_err(text);
            assert!(error.contains("LD_PRELOAD"), "{error}");
        }
        for (text, version) in [
            ("mpiexec -genvlist A,B -n 2 ./a", HYDRA),
            ("mpiexec -genvnone -n 2 ./a", HYDRA),
            ("srun --export=NONE -n 2 ./a", ""),
            ("launch ./a", ""),
        ] {
            // On one host they inherit it.
            assert_eq!(said(text, version, 1), Ok(()), "{text}");
            said(text, version, 2).expect_err(text);
        }
    }

    #[test]
    fn any_command_is_taken_as_it_is() {
        for text in [
            "",
            "mpirun",
            "mpirun -n",
            "mpirun --mca a",
            "a - b",
            "mpirun --",
            "x : : :",
        ] {
            let command = command(text, OPEN);
            assert_eq!(command.with(None, &[], &[]), command.words(), "{text}");
            assert!(
                command.ranks().is_none() && command.agent().is_none(),
                "{text}"
            );
        }
    }
}
