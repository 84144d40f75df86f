# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Oracle jobs with an archive on a test cluster: how draining stands, staging servers, and the loss of all nodes."""

import contextlib
import json
import pathlib
import secrets
import signal
import subprocess
import sys
import threading
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "cephfs"))

from cephfs import CephFs  # noqa: E402
from cluster import send, wait_until  # noqa: E402
from protectedjob import STORE, Failure, Scene, expect  # noqa: E402

MIB = 1 << 20
NODES_MAX = 4                         # of a test; the mount after theirs is the test's own
WISHES = {
    "BACKSTAY_REDUNDANCY": "none",
    "BACKSTAY_ARCHIVE_RESERVE_BYTES": 8 * MIB,
    "BACKSTAY_ARCHIVE_CODEC": "raw",  # so that the length of a drain is known
}


class Pfs:
    """One CephFS for all tests of a run, made when it is first asked for."""

    def __init__(self):
        self.made = None

    def get(self):
        if self.made is None:
            self.made = CephFs(mounts=NODES_MAX + 1)
        return self.made

    def close(self):
        if self.made is not None:
            self.made.purge()
            self.made = None


class Watch:
    """Reads how draining stands again and again, and keeps what is replaced there."""

    def __init__(self, scene):
        self.scene, self.seen, self.errors, self.over = scene, {}, [], False
        self.thread = threading.Thread(target=self.look, daemon=True)

    def look(self):
        while not self.over:
            status = self.scene.status()
            of = status.get("draining") or status.get("newest")
            for place, one in enumerate(status.get("aggregators", [])):
                if of and one["file"]:
                    key = (of["number"], of["incarnation"], place)
                    if key not in self.seen or self.seen[key]["bytes_resumed"] <= one["bytes_resumed"]:
                        self.seen[key] = one
            if status.get("error") and status["error"] not in self.errors:
                self.errors.append(status["error"])
            time.sleep(0.01)

    def resumed(self):
        """The most that a drain found of an interrupted one, over all aggregators."""
        sums = {}
        for (number, incarnation, _), one in self.seen.items():
            sums[number, incarnation] = sums.get((number, incarnation), 0) + one["bytes_resumed"]
        return max(sums.values(), default=0)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.over = True
        self.thread.join()


class ArchiveScene(Scene):
    """Nodes and an archive: a folder of this machine, or with `pfs` one of a CephFS, each node with its own mount."""

    def __init__(self, cluster, settings, pfs=None, scheme="xor", job="oracle", rate=None, **wishes):
        self.pfs, self.servers, self.pids = pfs, {}, {}
        self.steps = {}               # (number, incarnation) of a checkpoint: its step
        self.leader = 0               # node of rank 0
        if pfs:
            name = f"archive.{secrets.token_hex(4)}"
            self.archive, self.outside = pfs.node_path / name, pfs.mount(NODES_MAX) / name
        else:
            self.archive = self.outside = cluster.folder / f"archive.{secrets.token_hex(4)}"
        self.outside.mkdir()
        wishes = {**WISHES, "BACKSTAY_ARCHIVE": self.archive, **wishes}
        if rate:
            wishes["BACKSTAY_ARCHIVE_RATE_BYTES"] = rate
        super().__init__(cluster, settings, scheme, seed=settings.seed, job=job, **wishes)
        self.give()

    @property
    def job_folder(self):
        """The job's folder, as the test sees it."""
        return self.outside / self.name

    def fast(self):
        """Later starts drain as fast as they can."""
        self.environment.pop("BACKSTAY_ARCHIVE_RATE_BYTES", None)

    # ---- Nodes ----------------------------------------------------------------------------------------------

    def give(self):
        for index in range(self.cluster.count) if self.pfs else []:
            if self.cluster.is_up(index):
                self.pfs.give(self.cluster, index, index)

    def start_node(self, index):
        self.cluster.start_node(index)
        if self.pfs:
            self.pfs.give(self.cluster, index, index)

    def lose_everything(self):
        """All nodes are gone with their memory, and fresh ones are there."""
        for job in self.jobs:
            job.kill()
        self.kill_servers()
        self.kill_agents()
        for index in range(self.cluster.count):
            if self.cluster.is_up(index):
                self.cluster.wipe_node(index)
            self.start_node(index)

    # ---- How draining stands --------------------------------------------------------------------------------

    def store_folder(self, index):
        """The stores of a node, as the test sees them."""
        init = self.cluster.inits.get(index)
        if init not in self.pids:
            self.pids[init] = self.cluster.pid(index)
        return pathlib.Path(f"/proc/{self.pids[init]}/root{STORE}/{self.name}")

    def status(self):
        """archive.json of rank 0's node."""
        try:
            for file in self.store_folder(self.leader).glob("*/archive.json"):
                return json.loads(file.read_text())
        except (OSError, ValueError):
            pass
        return {}

    def wait_status(self, what, ready, limit=60):
        """Until `ready` of the status; the status."""
        last = {}

        def look():
            last.update(self.status())
            return last and ready(last)
        try:
            wait_until(look, what, limit)
        except Exception as error:
            raise Failure(f"{error}; status {json.dumps(last)[:1500]}; {self.said()}") from None
        return last

    def said(self):
        words = [f"log {job.text()[-1500:]}" for job in self.jobs[-1:]]
        words += [f"server {name}: {self.server_text(name)[-800:]}" for name in self.servers]
        return "; ".join([*words, self.all_agents_text()])

    def wait_inside(self, count, limit=60):
        """Until every aggregator has stored `count` bytes of a drain that is under way."""
        def ready(status):
            expect(status.get("drains", 0) == 0 or status.get("draining") is not None or count == 0,
                   f"the drain is over already: {json.dumps(status)[:600]}")
            parts = status.get("aggregators", [])
            return status.get("draining") and parts and all(one["bytes_stored"] >= count for one in parts)
        return self.wait_status(f"{count} bytes drained", ready, limit)

    def newest(self):
        found = self.status().get("newest") or {"number": 0, "incarnation": 0}
        return found["number"], found["incarnation"]

    def wait_archived(self, number, limit=60):
        return self.wait_status(f"checkpoint {number} in the archive",
                                lambda status: (status.get("newest") or {"number": 0})["number"] >= number, limit)

    def note(self, job):
        """Takes note of which checkpoint a start took after which step."""
        for event in job.all("committed") + job.all("restored") + job.all("archived"):
            number, incarnation, step = map(int, event.words[:3])
            self.steps[number, incarnation] = step

    def promised(self):
        """The step of the newest checkpoint that is said to be in the archive."""
        newest = self.newest()
        if newest[0] == 0:
            return 0
        # Committed, and the rank that would have said so was killed before.
        return self.steps.get(newest, newest[0])

    # ---- Staging servers ------------------------------------------------------------------------------------

    def start_server(self, index, name, **wishes):
        log = self.folder / f"server.{name}"
        with open(log, "ab") as output:
            process = self.cluster.start(
                index, [self.backstay, "stage", str(self.archive), "--job", self.name, "--name", name],
                {"BACKSTAY_LOG": "info", **wishes}, self.folder, stdout=output, stderr=output)
        before = self.server_text(name).count("answers at")
        self.servers[name] = (process, index)
        wait_until(lambda: self.server_text(name).count("answers at") > before or process.poll() is not None,
                   f"server {name}: {self.server_text(name)}")
        expect(process.poll() is None, f"server {name} ended: {self.server_text(name)}")

    def server_text(self, name):
        log = self.folder / f"server.{name}"
        return log.read_text(errors="replace") if log.exists() else ""

    def signal_server(self, name, number):
        _, index = self.servers[name]
        for pid in self.cluster.node_pids(index).values():
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"/backstay") and words[1:2] == [b"stage"] and name.encode() in words:
                send(pid, number)
                return
        raise Failure(f"server {name} does not run: {self.server_text(name)}")

    def kill_server_place(self, name):
        """What is left of a server: so that one of this name may be started again."""
        process, _ = self.servers[name]
        with contextlib.suppress(Failure):
            self.signal_server(name, signal.SIGKILL)
        process.kill()
        process.wait(30)

    def kill_servers(self):
        for process, index in self.servers.values():
            if process.poll() is None:
                if self.cluster.is_up(index):
                    for pid in self.cluster.node_pids(index).values():
                        try:
                            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                        except OSError:
                            continue
                        if words[0].endswith(b"/backstay") and words[1:2] == [b"stage"]:
                            send(pid, signal.SIGKILL)
                process.kill()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                raise Failure("a server does not die") from None
        self.servers = {}

    def close(self):
        self.kill_servers()
        super().close()


__all__ = ["MIB", "NODES_MAX", "ArchiveScene", "Pfs", "Watch"]
