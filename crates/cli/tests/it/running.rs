// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `backstay run`: restarts, limits, leaving, hosts, schedulers that are scripts, agents.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A folder with fake commands in front of the PATH.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn script(&self, name: &str, text: &str) -> String {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_backstay"));
        let path = std::env::var("PATH").unwrap();
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        for name in ["BACKSTAY_JOB", "BACKSTAY_LOG", "FLUX_URI", "SLURM_JOB_ID"] {
            command.env_remove(name);
        }
        command
            .args(["run", "--pause-s", "0", "--events", "events"])
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Events of the last run: the file has those before it, too.
    fn events(&self, name: &str) -> Vec<Value> {
        let text = self.text("events");
        let all = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let all: Vec<Value> = all.collect();
        let last = all.iter().rposition(|event| event["event"] == "plan");
        let of_last = all.into_iter().skip(last.unwrap_or_default());
        of_last.filter(|event| event["event"] == name).collect()
    }
}

fn wait_for(what: &str, ready: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !ready() {
        assert!(Instant::now() < end, "waited for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_alive(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

#[test]
fn a_program_that_dies_is_started_again_until_it_ends_well() {
    let place = Place::new();
    let program = "echo $BACKSTAY_RESTARTS >> starts; test -d $BACKSTAY_RENDEZVOUS || exit 9; \
                   stat -c %a $BACKSTAY_RENDEZVOUS > mode; [ $BACKSTAY_RESTARTS = 2 ] || kill -9 $$";
    let output = place.run(&["--", "sh", "-c", program]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(place.text("starts"), "0\n1\n2\n");
    assert_eq!(place.text("mode"), "700\n");
    assert!(
        text.contains("signal 9") && text.contains("3 starts, 2 deaths"),
        "{text}"
    );
    let summary = &place.events("summary")[0];
    assert_eq!(
        (&summary["starts"], &summary["failures"]),
        (&3.into(), &2.into())
    );
    let left = fs::read_dir(place.folder.path()).unwrap();
    let hidden = left.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with(".backstay")
    });
    assert_eq!(hidden.count(), 0, "the run folder is removed");
}

#[test]
fn a_start_is_told_when_the_one_before_was_dead() {
    let place = Place::new();
    let program =
        "echo ${BACKSTAY_DIED_UNIX_MS-none} $(date +%s%3N) >> times; [ $BACKSTAY_RESTARTS = 1 ]";
    let output = place.run(&["--", "sh", "-c", program]);
    assert_eq!(output.status.code(), Some(0));
    let text = place.text("times");
    let times: Vec<&str> = text.split_whitespace().collect();
    let [none, began, died, again] = times[..] else {
        panic!("{text}");
    };
    assert_eq!(none, "none");
    let [began, died, again] = [began, died, again].map(|time| time.parse::<u64>().unwrap());
    assert!(began <= died && died <= again, "{text}");
}

#[test]
fn only_the_first_start_restores_the_checkpoint_that_was_asked_for() {
    let place = Place::new();
    let script = "echo \"from ${BACKSTAY_RESTORE_CHECKPOINT-newest}\" >> starts; exit 7";
    let words = [
        "--restarts",
        "1",
        "--checkpoint",
        "12",
        "--",
        "sh",
        "-c",
        script,
    ];
    assert_eq!(place.run(&words).status.code(), Some(7));
    assert_eq!(place.text("starts"), "from 12\nfrom newest\n");
}

#[test]
fn restarts_are_bounded_and_the_last_exit_code_is_told() {
    let place = Place::new();
    let output = place.run(&[
        "--restarts",
        "2",
        "--json",
        "--",
        "sh",
        "-c",
        "echo x >> starts; exit 7",
    ]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(place.text("starts"), "x\nx\nx\n");
    let lines = String::from_utf8(output.stderr).unwrap();
    assert!(
        lines
            .lines()
            .all(|line| serde_json::from_str::<Value>(line).is_ok()),
        "{lines}"
    );
    let output = place.run(&[
        "--store", "nowhere", "--stalls", "2", "--", "sh", "-c", "exit 7",
    ]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("2 times with no newer checkpoint") && place.events("start").len() == 2,
        "{text}"
    );
    let unread = "echo no sector 5 > $BACKSTAY_RENDEZVOUS/unreadable; exit 7";
    let output = place.run(&["--stalls", "2", "--", "sh", "-c", unread]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(place.events("start").len(), 2, "{text}");
    assert!(text.contains("no sector 5; --checkpoint"), "{text}");
    let once = "[ -e said ] || echo x > $BACKSTAY_RENDEZVOUS/unreadable; echo x > said; exit 7";
    let output = place.run(&["--restarts", "3", "--stalls", "2", "--", "sh", "-c", once]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(place.events("start").len(), 4, "not twice in a row: {text}");
    let output = place.run(&["--", "/no/such/program"]);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(
        place.events("start").len(),
        1,
        "what cannot be started once cannot be started"
    );
    assert_eq!(place.run(&["--"]).status.code(), Some(2));
    assert_eq!(
        place.run(&["--hosts", "none", "--", "true"]).status.code(),
        Some(2)
    );
}

#[test]
fn a_signal_asks_the_application_to_leave() {
    let place = Place::new();
    let program = "echo up > up; while [ ! -e $BACKSTAY_LEAVE_FILE ]; do sleep 0.01; done; \
                   cat $BACKSTAY_LEAVE_FILE > why; exit 5";
    let child = place
        .command(&["--", "sh", "-c", program])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the application", || place.path("up").exists());
    assert!(
        Command::new("kill")
            .arg(child.id().to_string())
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(5),
        "its own exit code, and no restart"
    );
    assert_eq!(place.text("why"), "a signal came\n");
    assert_eq!(place.events("start").len(), 1);
}

#[test]
fn a_job_that_leaves_well_when_asked_is_not_finished() {
    let place = Place::new();
    let program = "echo up > up; while [ ! -e $BACKSTAY_LEAVE_FILE ]; do sleep 0.01; done";
    let child = place
        .command(&["--grace-s", "1min", "--", "sh", "-c", program])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the application", || place.path("up").exists());
    let mut kill = Command::new("kill");
    assert!(
        kill.args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(75));
}

#[test]
fn a_command_that_is_not_there_is_127() {
    let place = Place::new();
    let output = place.run(&["--", "no-such-command-anywhere"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    assert_eq!(
        place
            .run(&["--pause-s", "soon", "--", "true"])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(
        place.run(&["--grace-s", "10m", "--", "true"]).status.code(),
        Some(2)
    );
    assert_eq!(place.run(&[]).status.code(), Some(2));
}

#[test]
fn who_does_not_leave_is_ended() {
    let place = Place::new();
    let program = "echo $$ > pid; exec sleep 600";
    let child = place
        .command(&["--grace-s", "0", "--", "sh", "-c", program])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the application", || !place.text("pid").is_empty());
    assert!(
        Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(143));
    assert!(!is_alive(place.text("pid").trim()));
}

#[test]
fn the_application_ends_with_its_supervisor() {
    let place = Place::new();
    let mut child = place
        .command(&["--", "sh", "-c", "echo $$ > pid; exec sleep 600"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the application", || !place.text("pid").is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("its end", || !is_alive(place.text("pid").trim()));
}

fn fake_mpirun(place: &Place, version: &str) -> String {
    // Writes what it was told and the hosts it got; ends well at its second start.
    let text = format!(
        "[ \"$1\" != --version ] || {{ echo '{version}'; exit; }}\necho \"$@\" >> {0}/words\n\
         [ -z \"$BACKSTAY_HOSTFILE\" ] || tr '\\n' ' ' < $BACKSTAY_HOSTFILE >> {0}/seen\necho >> {0}/seen\n\
         touch {0}/dead.b\n[ $BACKSTAY_RESTARTS = 1 ]",
        place.folder.path().display()
    );
    place.script("mpirun", &text)
}

fn host_probe(place: &Place) -> String {
    place.script(
        "probe",
        &format!("[ ! -e {}/dead.$1 ]", place.folder.path().display()),
    )
}

#[test]
fn a_dead_host_is_left_out_and_a_spare_takes_its_place() {
    let place = Place::new();
    fake_mpirun(&place, "mpirun (Open MPI) 4.1.4");
    let probe = format!("{} HOST", host_probe(&place));
    fs::write(place.path("hosts"), "a slots=2\nb slots=2\nc slots=2\n").unwrap();
    let output = place.run(&[
        "--probe",
        &probe,
        "--spares",
        "s",
        "--",
        "mpirun",
        "--hostfile",
        "hosts",
        "-np",
        "6",
        "./app",
    ]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(
        place.text("seen"),
        "a slots=2 b slots=2 c slots=2 \na slots=2 s slots=2 c slots=2 \n"
    );
    let words = place.text("words");
    assert!(
        words
            .lines()
            .all(|line| line.contains("-x BACKSTAY_LEAVE_FILE") && line.ends_with("-np 6 ./app")),
        "{words}"
    );
    assert_eq!(
        place.events("summary")[0]["left_out"],
        serde_json::json!(["b"])
    );
    assert!(
        text.contains("b is left out") && text.contains("s takes its place"),
        "{text}"
    );
}

#[test]
fn ranks_are_crowded_only_where_that_was_allowed() {
    let place = Place::new();
    fake_mpirun(&place, "HYDRA build details:");
    let probe = format!("{} HOST", host_probe(&place));
    let arguments = [
        "--probe", &probe, "--", "mpirun", "-hosts", "a:1,b:1", "-n", "2", "./app",
    ];
    let output = place.run(&arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("2 ranks do not fit") && text.contains("--shrink"),
        "{text}"
    );
    fs::remove_file(place.path("dead.b")).unwrap();
    fs::remove_file(place.path("seen")).unwrap();
    let output = place.run(&[&["--shrink"], &arguments[..]].concat());
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(place.text("seen"), "a:1 b:1 \na:2 \n");
    fs::remove_file(place.path("dead.b")).unwrap();
    let output = place.run(&[&["--shrink", "--min-nodes", "2"], &arguments[..]].concat());
    assert!(String::from_utf8_lossy(&output.stderr).contains("at least 2"));
    let down = ["--shrink", "--nodes-down-command", "echo a"];
    fs::remove_file(place.path("dead.b")).unwrap();
    place.run(&[&down, &arguments[..]].concat());
    assert!(
        place.text("seen").contains("\nb:2 \n"),
        "{}",
        place.text("seen")
    );
}

fn slurm(place: &Place) {
    let folder = place.folder.path().display();
    place.script(
        "scontrol",
        &format!(
            "case \"$*\" in 'show hostnames n[1-3]') printf 'n1\\nn2\\nn3\\n';; 'show hostnames n[1,3]') printf 'n1\\nn3\\n';;\n\
             '-o show job 7') [ -e {folder}/lost ] && echo 'JobId=7 ReqNodeList=n2 NodeList=n[1,3] NumNodes=2' ||\n\
             echo 'JobId=7 ReqNodeList=(null) NodeList=n[1-3] NumNodes=3';; *) exit 1;; esac"
        ),
    );
    place.script("sinfo", &format!("echo 'n1 alloc'; echo 'n3 mix'; [ -e {folder}/dead.b ] && echo 'n2 down*' || echo 'n2 alloc'"));
    place.script("squeue", &format!("cat {folder}/left"));
    fs::write(place.path("left"), "1-00:00:00\n").unwrap();
    place.script(
        "srun",
        &format!(
            "printf '%s\\n' \"$*\" >> {folder}/words; touch {folder}/dead.b; [ $BACKSTAY_RESTARTS = 1 ]"
        ),
    );
}

fn under_slurm(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command
        .env("SLURM_JOB_ID", "7")
        .env("SLURM_JOB_NODELIST", "n[1-3]")
        .env("SLURM_TASKS_PER_NODE", "2(x3)");
    command
}

#[test]
fn under_slurm_down_nodes_are_excluded() {
    let place = Place::new();
    slurm(&place);
    let output = under_slurm(&place, &["--", "srun", "-n", "4", "./app"])
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(place.text("words"), "-n 4 ./app\n--exclude=n2 -n 4 ./app\n");
    fs::remove_file(place.path("dead.b")).unwrap();
    fake_mpirun(&place, "mpirun (Open MPI) 5.0.1");
    let output = under_slurm(&place, &["--", "mpirun", "-np", "4", "./app"])
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(place.text("seen"), "\nn1 slots=2 n3 slots=2 \n");
}

#[test]
fn a_node_that_left_the_allocation_is_not_taken_again() {
    let place = Place::new();
    slurm(&place);
    // It is back, and idle: not this job's.
    fs::write(place.path("lost"), "").unwrap();
    let folder = place.folder.path().display();
    let told = "$* of $SLURM_NNODES: $SLURM_JOB_NODELIST $SLURM_TASKS_PER_NODE, $SLURM_KILL_BAD_EXIT $BACKSTAY_LEAVE_ON_SIGTERM";
    place.script("srun", &format!("echo \"{told}\" > {folder}/words"));
    let output = under_slurm(&place, &["--", "srun", "-n", "4", "./app"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(
        place.text("words"),
        "--exclude=n2 -n 4 ./app of 2: n1,n3 2,2, 1 true\n"
    );
    assert_eq!(
        place.events("left_out")[0]["why"],
        "Slurm took it out of the allocation"
    );
    let mut own = under_slurm(&place, &["--", "srun", "-N2", "./app"]);
    assert!(
        own.env("BACKSTAY_LEAVE_ON_SIGTERM", "0")
            .status()
            .unwrap()
            .success()
    );
    assert!(
        place.text("words").ends_with(", 1 0\n"),
        "{}",
        place.text("words")
    );
    let output = under_slurm(&place, &["--", "srun", "-N", "3", "./app"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("srun asks for 3 nodes, and 2 are left"),
        "{text}"
    );
    assert_ne!(output.status.code(), Some(0), "{text}");
}

#[test]
fn an_application_that_a_signal_told_to_leave_is_not_finished() {
    let place = Place::new();
    let program = "echo told to > $BACKSTAY_RENDEZVOUS/leaving; exit $BACKSTAY_TEST_CODE";
    let arguments = ["--restarts", "1", "--", "sh", "-c", program];
    let output = place
        .command(&arguments)
        .env("BACKSTAY_TEST_CODE", "0")
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(75),
        "it left before its end: not 0"
    );
    assert!(
        place.events("leave")[0]["why"]
            .as_str()
            .unwrap()
            .contains("SIGTERM")
    );
    // One that died all the same is started again, and what an earlier one said does not count.
    let output = place
        .command(&arguments)
        .env("BACKSTAY_TEST_CODE", "9")
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), place.events("start").len()),
        (Some(9), 2)
    );
    assert_eq!(place.events("again")[0]["restart"], 1);
    let program =
        "echo told to > $BACKSTAY_RENDEZVOUS/leaving; echo 5 > $BACKSTAY_RENDEZVOUS/finished";
    assert_eq!(
        place.run(&["--", "sh", "-c", program]).status.code(),
        Some(0),
        "it has nothing left to do"
    );
}

#[test]
fn when_the_time_runs_low_the_application_is_asked_to_leave() {
    let place = Place::new();
    slurm(&place);
    let program = "echo up > up; while [ ! -e $BACKSTAY_LEAVE_FILE ]; do sleep 0.01; done; cat $BACKSTAY_LEAVE_FILE > why";
    let arguments = ["--leave-before-s", "4", "--", "sh", "-c", program];
    let child = under_slurm(&place, &arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the application", || place.path("up").exists());
    fs::write(place.path("left"), "0:03\n").unwrap();
    let status = child.wait_with_output().unwrap().status;
    assert_eq!(status.code(), Some(75), "it left before its end: not 0");
    assert_eq!(place.text("why"), "3 s are left of the allocation\n");
    let output = under_slurm(&place, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(75));
    assert!(String::from_utf8_lossy(&output.stderr).contains("not started: asked to leave"));
    fs::write(place.path("left"), "soon\n").unwrap();
    let output = under_slurm(&place, &["--leave-before-s", "4", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "no time that can be read is no reason to stop"
    );
}

#[test]
fn under_flux_down_nodes_are_told_and_flux_places_the_rest() {
    let place = Place::new();
    let folder = place.folder.path().display().to_string();
    place.script(
        "flux",
        &format!(
            "case \"$1 $2\" in 'resource list') case \"$*\" in *down*) [ ! -e {folder}/dead ] || echo 'f[2]';; *) echo 'f[1-2]';; esac;;\n\
             'hostlist -e') case \"$*\" in *'f[2]'*) echo f2;; *) echo f1,f2;; esac;;\n'job timeleft') echo 5000;;\n\
             *) echo \"$@\" >> {folder}/words; touch {folder}/dead; [ $BACKSTAY_RESTARTS = 1 ];; esac"
        ),
    );
    let mut command = place.command(&[
        "--leave-before-s",
        "100",
        "--",
        "flux",
        "run",
        "-n2",
        "./app",
    ]);
    let output = command.env("FLUX_URI", "local:///x").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_eq!(place.text("words"), "run -n2 ./app\nrun -n2 ./app\n");
    assert!(text.contains("f2 is left out (Flux says down)"), "{text}");
}

#[test]
fn agents_run_beside_the_application_and_end_after_it() {
    let place = Place::new();
    fake_mpirun(&place, "mpirun (Open MPI) 4.1.4");
    let folder = place.folder.path().display().to_string();
    let agent = place.script(
        "fake",
        &format!("[ \"$2\" != --help ] || exit 0\necho \"$@\" >> {folder}/agents\n\
                  while [ ! -e $BACKSTAY_RENDEZVOUS/over ]; do sleep 0.01; done; echo over >> {folder}/agents"),
    );
    let shell = place.script("shell", "shift; eval \"$*\"");
    let output = place
        .command(&[
            "--remote-shell",
            &shell,
            "--probe",
            "true",
            "--agent-program",
            &agent,
            "--job",
            "j",
            "--",
            "mpirun",
        ])
        .args(["--host", "a,b", "./app"])
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    wait_for("agents", || place.text("agents").lines().count() == 4);
    assert_eq!(place.text("agents").matches("agent --job j\n").count(), 2);
    let output = place.run(&["--agents", "yes", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "agents without a job");
    assert!(Path::new(&agent).exists());
}

/// An application that says that it has finished, as the library does.
const FINISHES: &str = "echo 7 > \"$BACKSTAY_RENDEZVOUS/finished\"";

#[test]
fn a_finished_job_is_not_started_again_though_it_dies_then() {
    let place = Place::new();
    let app = place.script("app", &format!("echo x >> starts\n{FINISHES}\nexit 9"));
    let output = place.run(&["--", &app]);
    assert_eq!(output.status.code(), Some(9));
    assert_eq!(place.text("starts"), "x\n");
    let stop = &place.events("stop")[0];
    let why = stop["why"].as_str().unwrap();
    assert!(why.contains("finished with checkpoint 7"), "{why}");
}

#[test]
fn a_job_that_finishes_though_it_is_asked_to_leave_is_done() {
    let place = Place::new();
    let app = place.script(
        "app",
        &format!("kill -TERM $PPID\nuntil [ -e \"$BACKSTAY_LEAVE_FILE\" ]; do sleep 0.05; done\n{FINISHES}"),
    );
    let output = place.run(&["--", &app]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let end = place.events("end");
    assert!(!end.is_empty());
}

#[test]
fn all_starts_of_a_run_have_the_same_wish_to_begin_anew_and_each_run_another() {
    let place = Place::new();
    let app = place.script(
        "app",
        "echo \"$BACKSTAY_FRESH\" >> wishes\n[ $(wc -l < wishes) -gt 2 ]",
    );
    assert!(place.run(&["--fresh", "--", &app]).status.success());
    // The same where the environment asks at every start.
    let mut asked = place.command(&["--", &app]);
    assert!(
        asked
            .env("BACKSTAY_FRESH", "1")
            .output()
            .unwrap()
            .status
            .success()
    );
    let wishes: Vec<u64> = place
        .text("wishes")
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    let [first, second, third, other] = wishes[..] else {
        panic!("{wishes:?}");
    };
    assert!(first == second && second == third && other != first && first > 1 && other > 1);
    let both = place.run(&["--fresh", "--checkpoint", "3", "--", &app]);
    assert_eq!(both.status.code(), Some(2));
}
