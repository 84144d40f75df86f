# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`backstay run` and the scripts of deploy/ under a real Slurm over the nodes of a test cluster.

Prints a line for each test and "N passed, N failed" last. Where namespaces are not permitted, or Slurm is not
there, it says so and fails, as all tests over the cluster do.
"""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "cluster"), str(HERE.parent / "multiprocess")]

from cluster import HEAD, NETWORK, Cluster, ClusterError, require_permission, send, wait_until  # noqa: E402
from clusterjob import STORE, ClusterPlace  # noqa: E402
from job import Failure, Job, expect  # noqa: E402
from selftest import arguments, run_all  # noqa: E402
from slurm import DEPLOY, OVER, Slurm, require_tools, version, words_of  # noqa: E402

GUIDE = HERE.parents[1] / "docs" / "guide" / "running.md"
UNFINISHED = 75
OPEN_MPI = {"OMPI_MCA_btl_tcp_if_include": NETWORK, "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_mpi_yield_when_idle": "1"}


class SlurmRun(Job):
    """The oracle job in a batch script. `script` has {app} for its command, {run} for `backstay run` and its options;
    `options` are those of sbatch. The process is `sbatch --wait`."""

    def __init__(self, place, script, options=(), user=None, run=(), nodes=(1, 1, 1), **more):
        self.script, self.options, self.user, self.run_options = script, options, user, run
        self.slurm = place.slurm
        super().__init__(place, nodes=nodes, store=more.pop("store", STORE), **more)
        os.chmod(self.pipe, 0o666)

    def launch(self, prefix, words, surroundings, log):
        number = len(self.place.jobs) + 1
        self.output = self.place.folder / f"output.{number}"
        self.events_file = self.place.folder / f"run.{number}.json"
        run = [self.place.settings.programs / "backstay", "run", "--events", self.events_file, *self.run_options]
        text = self.script.format(app=shlex.join(words), run=shlex.join(map(str, run)))
        path = self.place.folder / f"script.{number}"
        path.write_text(text)
        names = {**OPEN_MPI, **{key: value for key, value in surroundings.items()
                                if key.startswith(("BACKSTAY_", "ORACLE_"))}}
        command = ["sbatch", "--wait", "--parsable", "-o", self.output, "--open-mode=append", *self.options, path]
        if self.user:
            command = ["setpriv", "--reuid", self.user, "--regid", "nogroup", "--clear-groups", "--", *command]
        self.process = self.slurm.cluster.start(HEAD, command, {**self.slurm.environment, **names}, self.place.folder,
                                                stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: self.log.read_text().split(";")[0].strip().isdigit() or self.process.poll() is not None,
                   "sbatch to take the job")
        self.number = self.log.read_text().split(";")[0].strip()
        expect(self.number.isdigit(), f"sbatch does not take it: {self.log.read_text()}")
        return self.process

    def show(self):
        text = self.slurm.ask("scontrol", "-o", "show", "job", self.number).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word)

    def state(self):
        return self.show()["JobState"]

    def wait_state(self, *states, limit=120):
        try:
            wait_until(lambda: self.state() in states, f"job {self.number} to be {states}", limit)
        except ClusterError as late:
            raise Failure(f"{late}, it is {self.state()}; {self.last_words()}; {self.slurm.said()}") from None

    def text(self):
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def told(self, name):
        """Events of `backstay run`, of all starts of the script."""
        if not self.events_file.exists():
            return []
        return [event for event in map(json.loads, self.events_file.read_text().splitlines()) if event["event"] == name]

    def newest(self, name):
        """The highest number of a checkpoint that any rank said this of."""
        return max((int(event.words[0]) for event in self.all(name)), default=0)

    def last_step(self):
        """The newest step that all ranks said is committed."""
        steps = [[int(event.words[2]) for event in self.all("committed", rank)] for rank in range(self.ranks)]
        return min(max(of_rank, default=0) for of_rank in steps)

    def restored_steps(self):
        return [int(event.words[2]) for event in self.all("restored", 0)]

    def is_right(self):
        for event in self.all("wrong") + self.all("mix") + self.all("error"):
            raise Failure(f"rank {event.rank}: {event.name} {' '.join(event.words)}; {self.last_words()}")

    def last_words(self):
        return f"{super().last_words()}; sbatch: {self.log.read_text()!r}"

    def see(self, name, count, limit=120):
        """Waits for so many events of this name, over all starts."""
        try:
            wait_until(lambda: len(self.all(name)) >= count or self.process.poll() is not None, f"{count} x {name}", limit)
        except ClusterError as late:
            raise Failure(f"{late}: {self.last_words()}; {self.slurm.said()}") from None
        expect(len(self.all(name)) >= count, f"it is over before {count} x {name}: {self.last_words()}")

    def ends(self, state, limit=180):
        """Waits for its end, which must be so."""
        self.wait_state(*OVER, limit=limit)
        found = self.show()
        expect(found["JobState"] == state, f"the job is {found['JobState']} {found['ExitCode']}, not {state}: "
                                           f"{self.last_words()}")
        self.process.wait(60)
        self.is_right()
        return int(found["ExitCode"].split(":")[0])

    def signal_a_rank(self, number):
        """A signal for one rank of those that run."""
        send(next(pid for pid in self.alive() if "/oracle_job." in words_of(pid)[0]), number)

    def kill(self):
        if not self.over:
            self.slurm.ask("scancel", self.number, check=False)
            self.process.kill()
            self.process.wait()
            self.finish()


class Site(ClusterPlace):
    """A Slurm over `count` nodes, for one job after the other."""

    def __init__(self, cluster, settings, extra="", mpi="openmpi", **wishes):
        super().__init__(cluster, settings.programs, mpi)
        self.folder.chmod(0o777)
        self.slurm = Slurm(cluster, extra)
        self.archive = self.folder / "archive"
        self.archive.mkdir()
        self.archive.chmod(0o777)
        self.environment = {key: str(value) for key, value in wishes.items()}

    def job(self, script, *options, environment=None, **more):
        job = SlurmRun(self, script, options, environment={**self.environment, **(environment or {})}, watch=1, leave=1,
                       pause_us=more.pop("pause_us", 50000), **more)
        self.jobs.append(job)
        return job

    def tell_run(self, number):
        """A signal for `backstay run` itself, wherever it runs."""
        for pid, _ in self.cluster.inside():
            words = words_of(pid)
            if words[0].endswith("/backstay") and words[1:3] == ["run", "--events"]:
                send(pid, number)

    def forget_stores(self):
        """Again where an agent that ends writes its last words meanwhile."""
        def is_empty(index):
            return self.cluster.run(index, ["sh", "-c", "rm -rf /dev/shm/*"], check=False).returncode == 0

        for index in range(self.cluster.count):
            if self.cluster.is_up(index):
                wait_until(lambda index=index: is_empty(index), f"the memory of node {index} to be empty", 10)

    def close(self):
        super().close()
        self.cluster.clear()


def expect_none_older(job, last):
    """That what was restored is checkpoint `last`, or a newer one."""
    expect(min(int(event.words[0]) for event in job.all("restored")) >= last, f"older than {last}: {job.last_words()}")


THREE = """\
#!/bin/sh
exec {run} -- srun -N 3 -n 3 {app}
"""


def a_lost_node_gives_way_to_a_spare(settings):
    """Slurm takes it out of the allocation, and the job goes on with what the others have of it."""
    with Cluster(3, spares=1, shm="192m") as cluster, Site(cluster, settings, BACKSTAY_REDUNDANCY="xor") as site:
        job = site.job(THREE, "-N4", "--no-kill", "--exclusive", job="heat")
        job.see("protected", 6)
        agents = site.slurm.agents()
        expect(sorted(agents) == [0, 1, 2, 3], f"agents are on nodes {agents}")
        last = job.newest("protected")
        site.cluster.kill_node(1)
        job.see("restored", 3)
        expect_none_older(job, last)
        hosts = [start["hosts"] for start in job.told("start")]
        expect(hosts[-1] == ["node0", "node2", "node3"], f"hosts of the starts: {hosts}")
        left = site.slurm.agents()
        expect({key: left.get(key) for key in (0, 2, 3)} == {key: agents[key] for key in (0, 2, 3)},
               f"agents of other nodes ended with the lost one: {agents}, then {left}; {job.text()[-2000:]}")
        committed = job.newest("committed")
        wait_until(lambda: job.newest("protected") > committed, "a newer one to be protected")
        # Slurm gives the node back to others, but not to this job.
        site.cluster.start_node(1)
        site.slurm.start_node(1)
        site.slurm.wait_idle([1])
        # A rank that dies alone ends the others too, or they would wait for it until the end of the allocation.
        job.signal_a_rank(signal.SIGKILL)
        job.see("restored", 6)
        hosts = [start["hosts"] for start in job.told("start")]
        expect(hosts[-1] == ["node0", "node2", "node3"], f"a node that is not this job's any more: {hosts}")
        site.slurm.ask("scancel", "--signal=TERM", "--batch", job.number)
        code = job.ends("FAILED")
        expect(code == UNFINISHED, f"exit code {code}: {job.text()}")
        return f"{len(hosts)} starts"


def a_job_that_does_not_fit_any_more_stops(settings):
    """Two nodes of three are left: `srun` without -N goes on there, one that wants three is not tried again."""
    with Cluster(3, shm="192m") as cluster, Site(cluster, settings, BACKSTAY_REDUNDANCY="xor") as site:
        words = "#!/bin/sh\n{run} -- srun -n 3 {app}\nexec {run} -- srun -N 3 -n 3 {app}\n"
        job = site.job(words, "-N3", "-n3", "--no-kill", "--exclusive", job="heat")
        job.see("protected", 6)
        last = job.newest("protected")
        site.cluster.kill_node(2)
        job.see("restored", 3)
        expect_none_older(job, last)
        start = job.told("start")[-1]
        expect(start["hosts"] == ["node0", "node1"], f"hosts of the last start: {start}")
        site.tell_run(signal.SIGTERM)
        expect(job.ends("FAILED") not in (0, UNFINISHED), "a good end without a node")
        expect("srun asks for 3 nodes, and 2 are left" in job.text(), job.text())


# Its nodes are four, the spare among them: one rank on each of the first three.
BY_MPIRUN = """\
#!/bin/sh
exec {run} --min-nodes 3 -- mpirun.openmpi --allow-run-as-root -N 1 -n 3 {app}
"""


def mpirun_goes_on_without_a_lost_node(settings):
    """Open MPI's mpirun starts its daemons by srun, in an allocation that has become smaller."""
    with Cluster(3, spares=1, shm="192m") as cluster, Site(cluster, settings, BACKSTAY_REDUNDANCY="xor") as site:
        job = site.job(BY_MPIRUN, "-N4", "--ntasks-per-node=1", "--no-kill", "--exclusive", job="heat")
        job.see("protected", 6)
        last = job.newest("protected")
        site.cluster.kill_node(1)
        job.see("restored", 3)
        expect_none_older(job, last)
        hosts = [start["hosts"] for start in job.told("start")]
        expect(hosts[-1] == ["node0", "node2", "node3"], f"hosts of the starts: {hosts}")
        site.tell_run(signal.SIGTERM)
        expect(job.ends("FAILED") == UNFINISHED, f"it did not leave: {job.text()}")


def mpich_goes_on_without_a_lost_node(settings):
    """By srun --mpi=pmi2. Its end is not looked at: UCX at times hangs in MPI_Finalize."""
    with Cluster(3, spares=1, shm="192m") as cluster, \
            Site(cluster, settings, mpi="mpich", BACKSTAY_REDUNDANCY="xor") as site:
        job = site.job(THREE.replace("srun", "srun --mpi=pmi2"), "-N4", "--no-kill", "--exclusive", job="heat")
        job.see("protected", 6)
        last = job.newest("protected")
        site.cluster.kill_node(1)
        job.see("restored", 3)
        expect_none_older(job, last)
        job.is_right()


def the_batch_host_is_lost_and_slurm_requeues(settings):
    """The script is gone with its node; Slurm starts it again elsewhere, and the stores of the others have the job."""
    with Cluster(3, spares=1, shm="192m") as cluster, Site(cluster, settings, BACKSTAY_REDUNDANCY="xor") as site:
        job = site.job(THREE, "-N3", "--requeue", "--exclusive", job="heat")
        job.see("protected", 6)
        last = job.newest("protected")
        site.cluster.kill_node(0)
        job.see("restored", 3, limit=180)
        expect_none_older(job, last)
        found = job.show()
        expect(found["Restarts"] == "1" and found["NodeList"] == "node[1-3]", f"not requeued: {found}")
        site.tell_run(signal.SIGTERM)
        expect(job.ends("FAILED") == UNFINISHED, f"it did not leave: {job.text()}")
        return f"checkpoint {last} was protected, {job.all('restored')[0].words[0]} restored"


# It is submitted again by itself; that start has nothing left to do.
AGAIN = """\
#!/bin/sh
[ -z "$SLURM_RESTART_COUNT" ] || exec {run} -- srun -N 3 -n 3 {app} --steps 1
{run} -- srun -N 3 -n 3 {app}
status=$?
[ $status != 75 ] || scontrol requeue "$SLURM_JOB_ID"
exit $status
"""


def leaves(settings, script, *options, run=(), why, act=lambda site: None):
    """A job that is told to leave, in time, and comes again: the last checkpoint is in the archive, and is restored."""
    with Cluster(3, shm="192m") as cluster, Site(cluster, settings) as site:
        job = site.job(script, "-N3", "--exclusive", *options, run=run, job="heat",
                       environment={"BACKSTAY_ARCHIVE": str(site.archive), "BACKSTAY_ARCHIVE_EVERY": "1",
                                    "BACKSTAY_SITE_ARCHIVE": str(site.archive)})
        job.see("committed", 9)
        act(site)
        job.see("closed", 3)
        last = job.last_step()
        # In the meantime all stores are lost.
        wait_until(lambda: job.state() in ("PENDING", "COMPLETING", *OVER), "the end of the first start", 60)
        site.forget_stores()
        expect(job.ends("COMPLETED", limit=300) == 0, f"no good end: {job.text()}")
        told = job.told("leave")
        expect(told and why in told[0]["why"], f"why it left: {told}; {job.text()[-2000:]}")
        expect(job.restored_steps() == [last], f"the last step was {last}, restored were {job.restored_steps()}: "
                                               f"{job.text()[-3000:]}")
        return f"step {last}"


def of_guide(beginning, *changes):
    """The block of the guide that begins so, for this cluster: each change must find something."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    block = next((block for block in blocks if block.startswith(beginning)), None)
    expect(block is not None, f"{GUIDE} has no block that begins with {beginning!r}")
    for old, new in changes:
        expect(old in block, f"the block of the guide has no {old!r}: {block}")
        block = block.replace(old, new)
    return block


def the_script_of_the_guide_leaves_and_comes_again(settings):
    """It leaves as little time before its limit as --leave-before-s says, and goes on in a second start."""
    app = "{app} $([ -z \"$SLURM_RESTART_COUNT\" ] || echo --steps 1)"
    script = of_guide("#!/bin/sh\n#SBATCH", ("--nodes=9", "--nodes=3"), ("12:00:00", "1"), ("-N 8 -n 64", "-N 3 -n 3"),
                      ("export BACKSTAY_ARCHIVE=/pfs/project/checkpoints", "export BACKSTAY_ARCHIVE=$BACKSTAY_SITE_ARCHIVE"),
                      ("backstay run --leave-before-s 300", "{run} --leave-before-s 45"), ("./app input", app))
    return leaves(settings, script, "--time=1", why="left of the allocation")


def the_command_of_the_guide_runs_under_salloc(settings):
    with Cluster(3, spares=1, shm="192m") as cluster, Site(cluster, settings) as site:
        app = cluster.folder / "app"
        app.write_text("#!/bin/sh\n[ \"$1\" = input ] && echo \"$SLURM_PROCID on $(hostname): $BACKSTAY_RESTARTS\"\n")
        app.chmod(0o755)
        words = of_guide("salloc", ("-N 9", "-N 4"), ("-N 8 -n 64", "-N 3 -n 3"), ("./app", str(app)))
        path = f"{settings.programs}:{os.environ['PATH']}"
        done = site.slurm.ask("sh", "-c", words, environment={"PATH": path}, check=False)
        expect(done.returncode == 0, f"{done}")
        expect(sorted(line.split()[0] for line in done.stdout.splitlines()) == ["0", "1", "2"], f"{done}")


def it_leaves_at_a_signal_to_the_script(settings):
    """--signal=B:TERM@50, which the script passes on as the guide says."""
    first, *_, requeue, end = AGAIN.splitlines(True)[1:]
    lines = of_guide("trap", ("backstay run", "{run}"), ("-N 8 -n 64", "-N 3 -n 3"), ("./app input", "{app}"))
    return leaves(settings, "#!/bin/sh\n" + first + lines + requeue + end, "--time=1", "--signal=B:TERM@50", why="a signal came")


def it_leaves_at_a_signal_to_its_steps(settings):
    """--signal=TERM@50: the ranks get it, and the agents, but not `backstay run`."""
    return leaves(settings, AGAIN, "--time=1", "--signal=TERM@50", why="the application itself got SIGTERM")


def it_leaves_when_it_is_preempted(settings):
    """Slurm sends SIGTERM to all steps, gives a grace, and starts the other job once this one has left."""
    def preempt(site):
        path = site.folder / "high.sh"
        path.write_text("#!/bin/sh\nexit 0\n")
        site.slurm.ask("sbatch", "-N3", "--exclusive", "-p", "high", "-o", str(site.folder / "high"), str(path))
    return leaves(settings, AGAIN, why="the application itself got SIGTERM", act=preempt)


# Once more, because Open MPI under Slurm's PMIx at times crashes in MPI_Init: tests/cluster/README.md.
PLAIN = """\
#!/bin/sh
srun -K -N 3 -n 3 {app} || srun -K -N 3 -n 3 {app}
"""

WRAPPER = """\
#!/bin/sh
export BACKSTAY_DEPLOY_CONF={conf}
exec {script}
"""


def prolog_and_epilog_have_real_agents(settings):
    """As another user: agents under the name in the comment, and under that of the allocation, with and without its store."""
    with Cluster(3, shm="192m") as cluster:
        folder = cluster.folder / "deploy"
        folder.mkdir()
        conf = folder / "deploy.conf"
        conf.write_text(f"BACKSTAY_PROGRAM={settings.programs / 'backstay'}\nBACKSTAY_STORE_PATH={STORE}\n"
                        "BACKSTAY_AGENT_STATE=/var/tmp/backstay\n")
        lines = []
        for name, key in (("prolog", "Prolog"), ("epilog", "Epilog"), ("task-prolog", "TaskProlog")):
            path = folder / f"{name}.sh"
            path.write_text(WRAPPER.format(conf=conf, script=DEPLOY / f"{name}.sh"))
            path.chmod(0o755)
            lines.append(f"{key}={path}")
        with Site(cluster, settings, "\n".join(lines), BACKSTAY_REDUNDANCY="xor") as site:
            for index in range(3):
                cluster.run(index, ["sh", "-c", f"mkdir -m 1777 {STORE}"])
            names = {}
            for comment, kept in (("backstay:heat", True), ("nothing", False)):
                job = site.job(PLAIN, "-N3", "--exclusive", f"--comment={comment}",
                               user="nobody", environment={"BACKSTAY_LEAVE_ON_SIGTERM": "1"}, unset=("BACKSTAY_JOB", "BACKSTAY_STORE_PATH"))
                job.see("committed", 9)
                agents = site.slurm.agents()
                name = "heat" if kept else f"slurm-{job.number}"
                expect(sorted(agents) == [0, 1, 2], f"agents: {agents}; {site.slurm.said()}")
                for index, inner in agents.items():
                    pid = cluster.node_pids(index)[inner]
                    owner = os.stat(f"/proc/{pid}").st_uid
                    expect(words_of(pid)[3] == name and owner == 65534, f"{words_of(pid)} as {owner}")
                site.slurm.ask("scancel", "--signal=TERM", job.number)
                expect(job.ends("COMPLETED") == 0, job.text())
                wait_until(lambda: not site.slurm.agents(), "the end of all agents")
                wait_until(lambda: not any(cluster.run(index, ["ls", "/var/tmp/backstay"]).stdout for index in range(3)),
                           "the epilog")
                stores = [cluster.run(index, ["find", STORE, "-name", "store.backstay"]).stdout.split()
                          for index in range(3)]
                names[comment] = stores
                expect(all(any("/heat/" in store for store in found) for found in stores), f"no store of heat: {stores}")
                expect(not any("slurm-" in store for found in stores for store in found), f"left behind: {stores}")
                expect("is ended" not in job.text() and "agents of this job" not in job.text(), job.text())


ARRAY = """\
#!/bin/sh
export BACKSTAY_JOB=heat-$SLURM_ARRAY_TASK_ID
exec {run} -- srun -N 1 -n 2 {app}
"""


def an_array_of_jobs_has_one_archive(settings):
    """Three tasks at once, each a job of its own name; all go on from the archive when their stores are gone."""
    with Cluster(3, shm="192m") as cluster, Site(cluster, settings) as site:
        environment = {"BACKSTAY_ARCHIVE": str(site.archive), "BACKSTAY_ARCHIVE_EVERY": "1"}
        for steps, restored in ((5, set()), (8, {5})):
            job = site.job(ARRAY, "--array=0-2", "-N1", "--exclusive", nodes=(2,), steps=steps, wait_archived=steps,
                           environment=environment, unset=("BACKSTAY_JOB",))
            job.process.wait(180)
            job.is_right()
            expect(len(job.all("closed")) == 6, f"not all ended well: {job.last_words()}")
            found = {int(event.words[2]) for event in job.all("restored")}
            expect(found == restored, f"restored {found}, not {restored}: {job.last_words()}")
            site.forget_stores()
        listed = json.loads(cluster.run(HEAD, [site.settings.programs / "backstay", "ls", "--json", site.archive]).stdout)
        jobs = {name for name in (f"heat-{task}" for task in range(3)) if name in json.dumps(listed)}
        expect(len(jobs) == 3, f"jobs in the archive: {listed}")


TESTS = [a_lost_node_gives_way_to_a_spare, a_job_that_does_not_fit_any_more_stops,
         mpirun_goes_on_without_a_lost_node, mpich_goes_on_without_a_lost_node,
         the_batch_host_is_lost_and_slurm_requeues, the_script_of_the_guide_leaves_and_comes_again, the_command_of_the_guide_runs_under_salloc, it_leaves_at_a_signal_to_the_script,
         it_leaves_at_a_signal_to_its_steps, it_leaves_when_it_is_preempted, prolog_and_epilog_have_real_agents,
         an_array_of_jobs_has_one_archive]


def beside(settings):
    """Tests in processes of their own, some at a time: most of each is waiting for Slurm."""
    def one(test):
        words = [sys.executable, __file__, "--programs", settings.programs, "--only", f"^{test.__name__}$"]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        print("".join(done.stdout.splitlines(True)[1:-1]) + done.stderr, end="", flush=True)
        return done.returncode != 0
    chosen = [test for test in TESTS if re.search(settings.only, test.__name__)]
    with ThreadPoolExecutor(settings.jobs) as pool:
        failed = sum(pool.map(one, chosen))
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed or not chosen else 0


def main():
    settings = arguments(__doc__, lambda parser: parser.add_argument("--jobs", type=int, default=1,
                                                                     help="so many tests at a time"))
    try:
        require_permission()
        require_tools()
    except ClusterError as error:
        print(f"FAILED  all of it: {error}\n0 passed, {len(TESTS)} failed")
        return 1
    print(f"Slurm {version()}")
    return run_all(TESTS, settings) if settings.jobs == 1 else beside(settings)


if __name__ == "__main__":
    sys.exit(main())
