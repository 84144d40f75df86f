# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Where a way runs: nodes made of namespaces, each with a tmpfs of its own, and a shared one."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cluster"))
from cluster import HEAD, Cluster  # noqa: E402
from ways import NODE, Way  # noqa: E402

Event = list[str]


class Place:
    """A cluster and a tmpfs that all its nodes see, which stands for the parallel file system."""

    def __init__(self, nodes: int, shm: str, shared: str = "6g") -> None:
        self.nodes = nodes
        self.shared = pathlib.Path(tempfile.mkdtemp(prefix="backstay-peers-"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={shared}", "tmpfs", self.shared], check=True)
        try:
            self.cluster = Cluster(nodes, shm=shm)
        except BaseException:
            self.end_shared()
            raise

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *unused: object) -> None:
        self.cluster.down()
        self.end_shared()

    def end_shared(self) -> None:
        subprocess.run(["umount", self.shared], check=False)
        shutil.rmtree(self.shared, ignore_errors=True)

    def memory(self, node: int) -> pathlib.Path:
        """A node's /dev/shm, as this process can reach it."""
        return pathlib.Path(f"/proc/{self.cluster.pid(node)}/root/dev/shm")

    def prepare(self, way: Way) -> None:
        """Nothing of a former run is left."""
        for old in self.shared.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        for node in range(self.nodes):
            self.refresh(node, way)
        for name, text in way.files.items():
            (self.shared / name).write_text(text)

    def refresh(self, node: int, way: Way) -> None:
        """The node's memory as a job finds it that never was here."""
        memory = self.memory(node)
        # /var/tmp has what killed mpiruns leave behind, some MiB each.
        folders = (memory, memory / "peer", memory.parents[1] / "var/tmp")
        olds = [old for folder in folders if folder.is_dir() for old in folder.iterdir()]
        for old in olds:
            if old != memory / "peer":
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        self.make_folders(node, way)

    def limit(self, size: str) -> None:
        """A tmpfs of its own for what the system stores on node 0: where it is full, MPI's memory is not."""
        self.cluster.run(0, ["mkdir", "-p", NODE])
        self.cluster.run(0, ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", NODE])

    def make_folders(self, node: int, way: Way) -> None:
        for folder in [NODE, *way.folders]:
            inner = pathlib.Path(folder)
            if inner.is_relative_to("/dev/shm"):
                (self.memory(node) / inner.relative_to("/dev/shm")).mkdir(parents=True, exist_ok=True)
            else:
                inner.mkdir(parents=True, exist_ok=True)


class Run:
    """One start of the program; events are the lines that it writes."""

    def __init__(self, place: Place, way: Way, programs: pathlib.Path, ranks: int, words: list[str]) -> None:
        self.place, cluster = place, place.cluster
        program = [str(programs / way.system), f"plain={NODE}", *way.arguments, *words]
        counts = {node: ranks + way.extra_ranks for node in range(place.nodes)}
        path = f"{programs}:/usr/local/bin:/usr/bin:/bin"
        libraries = os.pathsep.join(filter(None, [str(programs / "lib"), os.environ.get("LD_LIBRARY_PATH")]))
        environment = {**way.environment, "PATH": path, "VELOC_BIN": str(programs), "LD_LIBRARY_PATH": libraries}
        if place.nodes == 1:
            command = ["env", *(f"{key}={value}" for key, value in environment.items()),
                       "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader",
                       "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none", "-n", str(counts[0]), *program]
            whole = cluster.command(0, command)
        else:
            names = [f"{key}={value}" for key, value in environment.items()]
            whole = cluster.command(HEAD, cluster.mpirun("openmpi", counts, program, names))
        self.process = subprocess.Popen(whole, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, bufsize=1)
        self.said: list[str] = []
        self.events: list[Event] = []
        self.changed = threading.Condition()
        self.open = 2
        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=self.read, args=(stream,), daemon=True).start()

    def read(self, stream: Any) -> None:
        for line in stream:
            with self.changed:
                (self.events if stream is self.process.stdout and is_event(line) else self.said).append(
                    line.split() if stream is self.process.stdout and is_event(line) else line.rstrip())
                self.changed.notify_all()
        with self.changed:
            self.open -= 1
            self.changed.notify_all()

    def until(self, names: tuple[str, ...], limit: float) -> Event | None:
        """The first event of one of these names that was not asked for yet; None when the run is over."""
        end = time.monotonic() + limit
        seen = getattr(self, "seen", 0)
        with self.changed:
            while True:
                for index in range(seen, len(self.events)):
                    if self.events[index][0] in names:
                        self.seen = index + 1
                        return self.events[index]
                if self.open == 0:
                    return None
                if not self.changed.wait(max(0.0, end - time.monotonic())) and time.monotonic() >= end:
                    raise TimeoutError(f"no {' or '.join(names)} within {limit:g} s: {self.said[-3:]}")

    def all(self, name: str) -> Iterator[Event]:
        return (event for event in self.events if event[0] == name)

    def tell(self) -> None:
        """Lets it go on."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """kill -9 for all that runs in the nodes: the program, mpirun's daemons, helpers of the system."""
        self.place.cluster.clear()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with self.changed:
            self.changed.wait_for(lambda: self.open == 0, 5)


EVENTS = {"memcpy", "plain", "begin", "done", "failed", "settled", "unsettled", "restored", "nothing", "refused",
          "hold", "end"}


def is_event(line: str) -> bool:
    return line.split(" ")[0].strip() in EVENTS
