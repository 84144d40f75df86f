# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The oracle job of tests/multiprocess on the nodes of a test cluster.

Each node keeps its own store, in its own /dev/shm. `nodes` says how many ranks are on which node:
{0: 2, 2: 2}, or (2, 2) for node 0 and 1; ranks are numbered in that order.
"""

import pathlib
import random
import signal
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "multiprocess"))

from job import LIMIT_SECONDS, SURROUNDINGS, Job, send  # noqa: E402

from cluster import HEAD  # noqa: E402

STORE = "/dev/shm/store"
FINALIZE_SECONDS = 3


class ClusterPlace:
    """A folder for the jobs of one test, which all nodes see."""

    def __init__(self, cluster, programs, mpi, seed=1):
        self.cluster, self.mpi, self.seed = cluster, mpi, seed
        self.settings = type("Settings", (), {"programs": pathlib.Path(programs)})
        self.random = random.Random(f"{mpi} {seed}")
        self.folder = cluster.folder / f"jobs.{mpi}.{seed}"
        self.folder.mkdir()
        self.jobs = []

    def job(self, **options):
        job = ClusterJob(self, **options)
        self.jobs.append(job)
        return job

    def close(self):
        for job in self.jobs:
            job.kill()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()


class ClusterJob(Job):
    """One start of a job over nodes. `self.pids` are the numbers that ranks have in their nodes."""

    def __init__(self, place, nodes=(2, 2, 2), store=STORE, **options):
        self.cluster = place.cluster
        self.counts = nodes if isinstance(nodes, dict) else dict(enumerate(nodes))
        self.node_of = [index for index, count in self.counts.items() for _ in range(count)]
        super().__init__(place, store=store, nodes=tuple(self.counts.values()), **options)

    def launch(self, prefix, words, surroundings, log):
        ours = {key: value for key, value in surroundings.items()
                if key.startswith(("BACKSTAY_", "ORACLE_"))}
        command = [*prefix, *self.cluster.mpirun(self.place.mpi, self.counts, words,
                                                 [f"{key}={value}" for key, value in ours.items()])]
        names = {key: value for key, value in surroundings.items() if key in ours or
                 (key in SURROUNDINGS and key != "OMPI_MCA_plm_rsh_agent")}
        return self.cluster.start(HEAD, command, names, self.place.folder, stdout=log, stderr=log,
                                  start_new_session=True)

    def signal(self, rank, number):
        pid = self.cluster.node_pids(self.node_of[rank]).get(self.pids.get(rank))
        if pid:
            send(pid, number)

    def end(self, limit=LIMIT_SECONDS):
        """Waits for its own end. MPICH's UCX over TCP at times hangs in MPI_Finalize: that is let pass."""
        if self.place.mpi == "mpich" and self.wait_for("the last word of every rank", self.all_said, limit):
            try:
                self.process.wait(FINALIZE_SECONDS)
            except subprocess.TimeoutExpired:
                closed = len(self.all("closed")) == self.ranks
                self.kill()
                return 0 if closed else 3
        return super().end(limit)

    def all_said(self):
        return len({event.rank for event in self.events if event.name in ("closed", "error")}) == self.ranks

    def kill(self):
        """kill -9 for all ranks, as near to at once as may be, then for mpirun and its daemons."""
        if self.over:
            return
        for pid in self.alive():
            send(pid, signal.SIGKILL)
        for index in self.counts:
            if self.cluster.is_up(index):
                self.cluster.clear_node(index)
        while pids := self.alive():
            for pid in pids:
                send(pid, signal.SIGKILL)
        self.process.wait()
        self.finish()
