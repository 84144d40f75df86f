# SPDX-License-Identifier: Apache-2.0 OR MIT
"""`backstay run` over the nodes of a test cluster: nodes die under mpirun and are left out."""

import json
import pathlib
import signal
import subprocess
import sys

from cluster import HEAD, Cluster, send, wait_until
from selftest import arguments, expect, run_all


class Run:
    """`backstay run` in the head, with the ring over `counts` nodes."""

    def __init__(self, cluster, settings, mpi, counts, *options, steps=100000):
        self.cluster = cluster
        self.folder = cluster.folder / f"run.{mpi}"
        self.folder.mkdir(exist_ok=True)
        self.events_file, self.log = self.folder / "events", self.folder / "log"
        # Events of an earlier run are not of this one.
        self.events_file.unlink(missing_ok=True)
        program = [settings.programs / f"ring.{mpi}", steps, "5"]
        command = [settings.programs / "backstay", "run", "--events", self.events_file, "--run-dir", self.folder,
                   "--pause-s", "0.2", *options, "--", *cluster.mpirun(mpi, counts, program)]
        with open(self.log, "wb") as log:
            self.process = cluster.start(HEAD, command, {"BACKSTAY_TEST": "x"}, self.folder, stdout=log, stderr=log)

    def events(self, name):
        if not self.events_file.exists():
            return []
        lines = self.events_file.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def text(self):
        return self.log.read_text(errors="replace")

    def wait_ranks(self, count):
        """Waits until so many ranks have said where they are, over all starts."""
        try:
            wait_until(lambda: self.text().count("of 6 on") >= count or self.process.poll() is not None,
                       f"{count} ranks", 40)
        except Exception as late:
            raise AssertionError(f"{late}: {self.text()}") from None
        expect(self.text().count("of 6 on") >= count, f"it is over: {self.text()}")

    def send(self, number):
        """A signal to `backstay run` itself, which is not the process that waits for it out here."""
        for pid, _ in self.cluster.inside():
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"/backstay") and words[1:3] == [b"run", b"--events"]:
                send(pid, number)

    def end(self):
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end: {self.text()}") from None


def dead_nodes_are_left_out(settings):
    """A node is wiped, then another one dies; spares take their places."""
    with Cluster(3, spares=2) as cluster:
        run = Run(cluster, settings, "openmpi", [2, 2, 2], "--spares", "node3,node4")
        run.wait_ranks(6)
        cluster.wipe_node(1)
        run.wait_ranks(12)
        cluster.kill_node(2)
        run.wait_ranks(18)
        hosts = [event["hosts"] for event in run.events("start")]
        expect(hosts == [["node0", "node1", "node2"], ["node0", "node3", "node2"], ["node0", "node3", "node4"]],
               f"hosts of the starts: {hosts}")
        for rank, node in enumerate([0, 0, 3, 3, 4, 4]):
            expect(f"rank {rank} of 6 on node{node}\n" in run.text(), f"rank {rank} is not on node{node}: {run.text()}")
        run.send(signal.SIGTERM)
        # 75: it left before its end.
        expect(run.end() == 75 and "done 15" in run.text(), f"it did not leave well: {run.text()}")
        expect(run.events("leave") and not run.events("signal"), f"it was not asked, but ended: {run.text()}")
        summary = run.events("summary")[0]
        expect(summary["left_out"] == ["node1", "node2"] and summary["starts"] == 3, f"{summary}")
        return f"{summary['down_ms'] / 2e3:.1f} s from a death to the next start"


def without_spares_it_stops_or_shrinks(settings):
    with Cluster(3) as cluster:
        run = Run(cluster, settings, "openmpi", [2, 2, 2])
        run.wait_ranks(6)
        cluster.wipe_node(0)
        expect(run.end() != 0, "a good end without a node")
        expect("6 ranks do not fit" in run.text(), run.text())
        cluster.start_node(0)
        run = Run(cluster, settings, "openmpi", [2, 2, 2], "--shrink", "--grace-s", "0")
        run.wait_ranks(6)
        cluster.wipe_node(0)
        run.wait_ranks(12)
        expect(run.events("start")[1]["hosts"] == ["node1", "node2"], run.text())
        for rank, node in enumerate([1, 1, 1, 2, 2, 2]):
            expect(f"rank {rank} of 6 on node{node}\n" in run.text(), f"rank {rank} is not on node{node}: {run.text()}")
        run.send(signal.SIGTERM)
        run.end()


def nothing_survives_the_supervisor(settings):
    """kill -9 of `backstay run`: mpirun and all ranks go too, and nothing is started again."""
    with Cluster(3) as cluster:
        run = Run(cluster, settings, "openmpi", [2, 2, 2])
        run.wait_ranks(6)
        run.send(signal.SIGKILL)
        wait_until(lambda: not any(cluster.node_pids(index) for index in range(3)), "the end of all ranks", 30)
        expect(run.text().count("of 6 on") == 6, f"started again: {run.text()}")


def hydra_is_restarted_on_a_spare(settings):
    with Cluster(3, spares=1) as cluster:
        run = Run(cluster, settings, "mpich", [2, 2, 2], "--spares", "node3", "--grace-s", "0")
        run.wait_ranks(6)
        cluster.kill_node(1)
        run.wait_ranks(12)
        expect(run.events("start")[1]["hosts"] == ["node0", "node3", "node2"], run.text())
        run.send(signal.SIGTERM)
        run.end()


TESTS = [dead_nodes_are_left_out, without_spares_it_stops_or_shrinks, nothing_survives_the_supervisor,
         hydra_is_restarted_on_a_spare]

if __name__ == "__main__":
    sys.exit(run_all(TESTS, arguments(__doc__)))
