# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Oracle jobs with redundancy on a test cluster, with agent processes or without, and what stores say of them."""

import json
import pathlib
import signal
import subprocess
import time

from cluster import ClusterError, send, wait_until
from clusterjob import STORE, ClusterJob, ClusterPlace
from job import Failure, History, expect

SCHEMES = {
    "partner": {"BACKSTAY_REDUNDANCY": "partner"},
    "xor": {"BACKSTAY_REDUNDANCY": "xor"},
    "rs2": {"BACKSTAY_REDUNDANCY": "rs", "BACKSTAY_PARITY": "2"},
}
NOT_RETAINED = 31
TIMEOUT_MS = 30000
LAUNCH_SECONDS = (8, 15, 30, 60)      # each try's
SLOW = 1 << 20                        # least rate of encoding: a second and more for what a rank has here


class ProtectedJob(ClusterJob):
    """One start; killing it leaves agents alone."""

    def kill(self):
        if self.over:
            return
        while pids := self.alive() + self.daemons():
            for pid in pids:
                send(pid, signal.SIGKILL)
            time.sleep(0.002)
        self.process.wait()
        self.finish()

    def daemons(self):
        """mpirun's daemons and the shells around ranks: all in the nodes that is neither agent nor test."""
        found = []
        for index in self.counts:
            if self.cluster.is_up(index):
                for pid in self.cluster.node_pids(index).values():
                    try:
                        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    except OSError:
                        continue
                    if words[0].endswith((b"orted", b"prted")):
                        found.append(pid)
        return found

    def newest(self, name):
        """The highest number of a checkpoint that any rank said this of."""
        return max((int(event.words[0]) for event in self.all(name) if event.words[0].isdigit()), default=0)

    def restored(self):
        """(number, step), the same on all ranks; None if nothing was restored."""
        found = {(int(e.words[0]), int(e.words[2])) for e in self.all("restored")}
        expect(len(found) <= 1, f"ranks restored different checkpoints: {found}")
        return next(iter(found), None)

    def must_say(self, *patterns, limit=0):
        """The output holds all of `patterns`, now or within so many seconds."""
        end = time.monotonic() + limit
        for pattern in patterns:
            while pattern not in self.text() and time.monotonic() < end:
                time.sleep(0.05)
            expect(pattern in self.text(), f"it does not say {pattern!r}: {self.text()[-3000:]}")


class Scene(ClusterPlace):
    """A cluster's nodes with one scheme, for one job after the other. `wishes` go to ranks and agents."""

    def __init__(self, cluster, settings, scheme, seed=1, job="oracle", **wishes):
        number = len(list(cluster.folder.glob("jobs.*")))
        super().__init__(cluster, settings.programs, "openmpi", f"{seed}.{number}")
        self.seed = seed
        self.backstay = settings.programs / "backstay"
        self.provider = getattr(settings, "provider", None)
        # What is short is not read over libfabric.
        self.name, self.scheme, self.agents, self.kib = job, scheme, {}, 512 if self.provider else 64
        over = {"BACKSTAY_TRANSPORT": "libfabric", "BACKSTAY_FABRIC_PROVIDER": self.provider} if self.provider else {}
        self.environment = {"BACKSTAY_TIMEOUT_MS": str(TIMEOUT_MS), "BACKSTAY_LOG": "info", **SCHEMES[scheme], **over,
                            **{key: str(value) for key, value in wishes.items()}}

    def job(self, environment=None, kib=None, **options):
        """A start whose ranks all run. Open MPI's mpirun at times hangs while it starts its daemons: once more."""
        self.kib = kib or self.kib    # later starts have the same variables
        for limit in LAUNCH_SECONDS:
            job = ProtectedJob(self, job=self.name, environment={**self.environment, **(environment or {})},
                               kib=self.kib, watch=1, **options)
            self.jobs.append(job)
            try:
                if job.wait_event("pid", job.ranks, limit=limit):
                    return job
            except Failure:
                # Ranks that are there are slow; where mpirun hangs there are none.
                if job.all("pid"):
                    job.must_see("pid")
                    return job
            job.kill()
        raise Failure(f"mpirun starts no ranks: {job.text()}")

    def held(self, nodes, protected=1, hold=2, rate=SLOW, **options):
        """A first start that stands still after checkpoint `hold`, with `protected` surely protected."""
        job = self.job(start=1, nodes=nodes, hold=hold, wait_protected=protected,
                       environment={"BACKSTAY_ENCODE_RATE_BYTES": str(rate)} if rate else None, **options)
        job.must_see("holding")
        for event in job.all("unprotected"):
            raise Failure(f"rank {event.rank}: unprotected {' '.join(event.words)}; {job.text()[-2000:]}; "
                          f"{self.all_agents_text()}")
        return job

    # ---- Agents -----------------------------------------------------------------------------------------

    def start_agents(self, nodes, **wishes):
        for index in nodes:
            log = self.folder / f"agent.{index}"
            environment = {**self.environment, "BACKSTAY_STORE_PATH": STORE, **wishes}
            with open(log, "ab") as output:
                self.agents[index] = self.cluster.start(
                    index, [self.backstay, "agent", "--job", self.name, "--linger-s", "600"],
                    environment, self.folder, stdout=output, stderr=output)
        for index in nodes:
            wait_until(lambda: self.agent_pid(index) is not None, f"the agent of node {index}: {self.agent_text(index)}")

    def agent_pid(self, index):
        """The agent process of a node, as this process sees it; None if it does not run."""
        if not self.cluster.is_up(index):
            return None
        place = f"{STORE}/{self.name}/*/agent"
        found = self.cluster.run(index, ["sh", "-c", f"cat {place}.backstay; ls -d {place}.socket"], check=False)
        words = found.stdout.split()
        if len(words) < 2 or not words[0].isdigit():
            return None
        return self.cluster.node_pids(index).get(int(words[0]))

    def agent_text(self, index):
        return (self.folder / f"agent.{index}").read_text(errors="replace")

    def all_agents_text(self):
        return "; ".join(f"agent {index}: {self.agent_text(index)[-1500:]}" for index in self.agents)

    def signal_agent(self, index, number):
        pid = self.agent_pid(index)
        expect(pid is not None, f"node {index} has no agent: {self.agent_text(index)}")
        send(pid, number)

    def agents_end(self, nodes, limit=30):
        """They must end by themselves, and well."""
        for index in nodes:
            try:
                status = self.agents[index].wait(limit)
            except subprocess.TimeoutExpired:
                raise Failure(f"the agent of node {index} does not end: {self.agent_text(index)}") from None
            expect(status == 0, f"the agent of node {index} ended with {status}: {self.agent_text(index)}")

    def kill_agents(self):
        for index, agent in self.agents.items():
            pid = self.agent_pid(index) if self.cluster.is_up(index) else None
            if pid is not None:
                send(pid, signal.SIGKILL)
            agent.kill()
            agent.wait()
        self.agents = {}

    # ---- Stores -----------------------------------------------------------------------------------------

    def tool(self, index, *words):
        """`backstay` in a node: status and output."""
        return self.cluster.run(index, [self.backstay, *words], check=False)

    def protected(self, index):
        """The number of the newest checkpoint that a node's stripe log says is protected; 0: none."""
        done = self.tool(index, "ls", "--json", STORE)
        try:
            groups = json.loads(done.stdout)["groups"]
        except (ValueError, KeyError):
            return 0
        return max((group["protected"]["number"] for group in groups), default=0)

    def files(self, index, name):
        done = self.cluster.run(index, ["find", f"{STORE}/{self.name}", "-name", name])
        return sorted(done.stdout.split())

    def wait_protected(self, nodes, number, limit=60):
        for index in nodes:
            wait_until(lambda: self.protected(index) >= number,
                       f"checkpoint {number} to be protected on node {index}", limit)

    def clear(self):
        """No processes, all nodes up, nothing in their memory."""
        for job in self.jobs:
            job.kill()
        self.jobs = []
        self.kill_agents()
        for index in range(self.cluster.count):
            if not self.cluster.is_up(index):
                self.cluster.start_node(index)
            self.cluster.clear_node(index)
            self.cluster.run(index, ["sh", "-c", "rm -rf /dev/shm/*"])

    def close(self):
        super().close()
        self.kill_agents()


def step_of(job, number):
    """The step that checkpoint `number` of a start was taken after."""
    steps = {int(e.words[2]) for e in job.all("committed") if int(e.words[0]) == number}
    return next(iter(steps), number)


def judged(job):
    """What a first start did, every event checked."""
    history = History()
    history.judge(job)
    return history


def goes_on(scene, history, least, nodes, start=2, more=2, **options):
    """The next start must restore step `least` or a newer one, and come to its end; that start. 0: it may begin anew."""
    history.complete = min(history.complete, least)
    job = scene.job(start=start, nodes=nodes, steps=history.begun + more, **options)
    job.end()
    history.judge(job, killed=False)
    if least == 0 and job.all("fresh"):
        return job
    expect(job.restored() is not None and job.restored()[1] >= least, f"nothing newer than {least}: {job.last_words()}")
    expect(len(job.all("verified")) == job.ranks, f"not every rank verified: {job.last_words()}")
    return job


def outcome(scene, history, least, nodes, **options):
    """What the next start does, whatever it is: ("restored", job) or ("refused", text); never wrong words."""
    history.complete = min(history.complete, least)
    job = scene.job(start=2, nodes=nodes, steps=history.begun + 2, **options)
    try:
        job.wait_for("the end of the restart", lambda: len({e.rank for e in job.events
                                                           if e.name in ("closed", "error")}) == job.ranks)
    except Failure as failure:
        raise Failure(f"{failure}; {job.text()[-2000:]}") from None
    errors = job.all("error")
    if errors:
        text = job.refused(errors[0].words[0], int(errors[0].words[1]))
        for event in job.all("wrong") + job.all("mix") + job.all("restored"):
            raise Failure(f"rank {event.rank}: {event.name} {' '.join(event.words)} before {text}")
        return "refused", job, text
    job.end()
    history.judge(job, killed=False)
    return ("restored" if job.restored() else "fresh"), job, ""


__all__ = ["ClusterError", "Failure", "History", "NOT_RETAINED", "SCHEMES", "SLOW", "STORE", "Scene", "expect", "goes_on",
           "judged", "outcome", "step_of"]
