# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs that nobody changed, on several nodes, with their files routed: ranks killed with -9, nodes lost with their
stores, ranks on other nodes than before, on fewer nodes; every file that is found is whole, and of a set of all ranks."""

import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1] / "slurm"))

from cluster import HEAD, Cluster, send, wait_until  # noqa: E402
from selftest import Failure, arguments, expect, run_all  # noqa: E402
from slurm import Slurm, missing_tools, words_of  # noqa: E402

PATTERNS = ["out/restart.{step}.{rank}", "out/latest", "out/latest.new;draft"]
LIMIT_SECONDS = 60
ROUTING = pathlib.Path(__file__).resolve().parents[1] / "routing"


class Routed:
    """`backstay run --route` in the head, with the program over nodes: {node: ranks}."""

    patterns, quiet, mpi, more = PATTERNS, "0", "openmpi", {}

    def __init__(self, cluster, settings, counts, *options, allowed="^$", **words):
        self.cluster, self.counts, self.allowed = cluster, counts, allowed
        self.folder = cluster.folder / "work"
        (self.folder / "out").mkdir(parents=True, exist_ok=True)
        number = len(list(self.folder.glob("log.*")))
        self.log, self.events_file = self.folder / f"log.{number}", self.folder / f"events.{number}"
        program = self.program(settings, **words)
        routes = [word for pattern in self.patterns for word in ("--route", pattern)]
        command = [settings.programs / "backstay", "run", "--events", self.events_file, "--pause-s", "0.1", "--grace-s", "0",
                   "--route-quiet", self.quiet, *routes, *options, "--", *cluster.mpirun(self.mpi, counts, program)]
        environment = {"BACKSTAY_JOB": "routed", "BACKSTAY_TIMEOUT_MS": "20000", "BACKSTAY_REDUNDANCY": "xor", **self.more}
        with open(self.log, "wb") as log:
            self.process = cluster.start(HEAD, command, environment, self.folder, stdout=log, stderr=log)

    def program(self, settings, steps=100000, words=3000, pause_us=20000):
        return [settings.programs / "routed.openmpi", steps, words, pause_us]

    def text(self):
        return self.log.read_text(errors="replace")

    def values(self, word):
        return [int(value) for value in re.findall(rf"^{word} (\d+)$", self.text(), re.M)]

    def events(self, name):
        lines = self.events_file.read_text().splitlines() if self.events_file.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def check(self):
        bad = re.findall(r"^bad .*$", self.text(), re.M)
        bad = [line for line in bad if not re.search(self.allowed, line)]
        expect(not bad, f"{bad}: {self.text()}")

    def wait(self, ready, what):
        try:
            wait_until(lambda: ready() or self.process.poll() is not None, what, LIMIT_SECONDS)
        except Exception as late:
            raise Failure(f"{late}: {self.text()}") from None
        self.check()
        expect(ready(), f"it is over before {what}: {self.text()}")

    def wait_found(self, count):
        self.wait(lambda: len(self.values("found")) >= count, f"start {count}")

    def wait_steps(self, count):
        """So many steps more."""
        until = len(self.values("done")) + count
        self.wait(lambda: len(self.values("done")) >= until, f"{count} steps")

    def kill_rank(self, rank):
        """kill -9 for the process of a rank in the newest start."""
        host, number = re.findall(rf"^rank {rank} on node(\d+), process (\d+)$", self.text(), re.M)[-1]
        pids = self.cluster.node_pids(int(host))
        for inside, outside in pids.items():
            if inside == int(number):
                send(outside, signal.SIGKILL)

    def kill(self):
        """kill -9 for `backstay run`; what it started ends with it."""
        for pid, _ in self.cluster.inside():
            words = words_of(pid)
            if words[1:3] == ["run", "--events"] and words[0].endswith("/backstay"):
                send(pid, signal.SIGKILL)
        self.process.wait(LIMIT_SECONDS)
        nodes = [node for node in self.counts if self.cluster.is_up(node)]
        wait_until(lambda: not any(is_program(pid) for node in nodes for pid in self.cluster.node_pids(node).values()),
                   "the end of all ranks and agents", LIMIT_SECONDS)
        self.check()

    def end(self):
        try:
            code = self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failure(f"no end: {self.text()}") from None
        self.check()
        return code


class OneFile(Routed):
    """A program that writes one file of all ranks, by MPI-IO or, "plain", by pwrite, or two of them, "turns"."""

    patterns, quiet = ["out/field.*;shared"], "0.3"

    def __init__(self, cluster, settings, counts, mpi, *options, **words):
        self.mpi = mpi
        super().__init__(cluster, settings, counts, *options, **words)

    def program(self, settings, steps=300, blocks=301, pause_us=400000, how="whole"):
        return [settings.programs / f"onefile.{self.mpi}", steps, blocks, pause_us, how]


class Pointers(OneFile):
    """The same by the shared file pointer of one of Open MPI's two kinds of MPI-IO."""

    def __init__(self, cluster, settings, counts, component):
        self.more = {"OMPI_MCA_io": component}
        super().__init__(cluster, settings, counts, "openmpi")

    def program(self, settings):
        return [settings.programs / "pointers.openmpi"]


class Library(OneFile):
    """The same by parallel HDF5, or netCDF."""

    def __init__(self, cluster, settings, counts, library, mpi, *options, **words):
        self.library, self.more = library, {"BACKSTAY_ARCHIVE": cluster.folder / "archive"}
        super().__init__(cluster, settings, counts, mpi, *options, **words)

    def program(self, settings, steps=300, rows=101, pause_us=400000):
        return [settings.programs / f"{self.library}.{self.mpi}", steps, rows, pause_us]


class Fortran(OneFile):
    """The same by Fortran: ranks have one stretch each behind a head of 16 bytes."""

    def program(self, settings, steps=15, numbers=777, pause_us=400000):
        return [settings.programs / f"mpiio-fortran.{self.mpi}", steps, numbers, pause_us]


def is_program(pid):
    """Whether a process is a rank or a routing agent."""
    words = words_of(pid)
    names = tuple(f"{name}.{mpi}" for name in ("routed", "onefile", "mpiio-fortran") for mpi in ("openmpi", "mpich"))
    return "route-agent" in words[:3] or "".join(words[:1]).endswith(names)


def judge_starts(run, exact, before=0):
    """Each start found what the one before it had begun at most, and, if `exact`, what it had done at least; the first
    what an earlier run had begun."""
    done, begun = 0, before
    for line in run.text().splitlines():
        word, _, value = line.partition(" ")
        if word not in ("found", "begun", "done") or not value.isdigit():
            continue
        if word == "found":
            expect(int(value) <= begun, f"found {value}, and {begun} was the last begun")
            expect(not exact or int(value) >= done, f"found {value} after {done} was done: {run.text()}")
            begun = done = int(value)
        elif word == "begun":
            begun = int(value)
        else:
            done = int(value)


def killed_ranks_find_what_was_complete(settings):
    """Ranks are killed at random instants; `run` starts the program again, and it goes on with nothing lost."""
    chance = random.Random(settings.seed)
    with Cluster(3) as cluster:
        steps, kills = 50, 3
        run = Routed(cluster, settings, {0: 2, 1: 2, 2: 2}, "--restarts", str(kills), steps=steps)
        for number in range(kills):
            run.wait_found(number + 1)
            run.wait_steps(1)
            time.sleep(chance.uniform(0, 0.2))
            run.kill_rank(chance.randrange(6))
        code = run.end()
        expect(code == 0, f"exit {code}: {run.text()}")
        judge_starts(run, exact=True)
        expect(run.values("done")[-1] == steps and len(run.values("found")) == kills + 1, run.text())
        expect(not list((run.folder / "out").iterdir()), "routed files stand on the file system")
        return f"found {run.values('found')}"


def lose_node_1(run, cluster):
    """Node 1 of a job that runs is lost, and node 3 takes its place; what it went on from."""
    run.wait_steps(10)
    cluster.wipe_node(1)
    run.wait_found(2)
    judge_starts(run, exact=False)
    expect(run.events("start")[-1]["hosts"] == ["node0", "node3", "node2"], run.text())
    found = run.values("found")[-1]
    expect(found > 0, f"nothing was found: {run.text()}")
    run.wait_steps(3)
    run.kill()
    return f"found {found} of {max(run.values('done'))}"


def a_node_is_lost_with_its_store(settings):
    """A spare takes the place of a node whose memory is gone: its files are rebuilt, and the program goes on."""
    with Cluster(3, spares=1) as cluster:
        run = Routed(cluster, settings, {0: 2, 1: 2, 2: 2}, "--spares", "node3", pause_us=100000)
        return lose_node_1(run, cluster)


def ranks_find_their_files_on_other_nodes(settings):
    """Ranks on other nodes than before, then all on fewer nodes, with whatever each node's store has."""
    with Cluster(3) as cluster:
        placed, found = [{0: 2, 1: 2, 2: 2}, {2: 2, 0: 2, 1: 2}, {0: 1, 2: 3, 1: 2}, {1: 3, 2: 3}], []
        done = 0
        for counts in placed:
            run = Routed(cluster, settings, counts)
            run.wait_found(1)
            found += run.values("found")[-1:]
            expect(found[-1] >= done, f"found {found} after {done} was done: {run.text()}")
            run.wait_steps(5)
            # What is complete is in a checkpoint when ranks die, and `run` ends by itself.
            run.kill_rank(1)
            run.wait_found(2)
            done = run.values("found")[-1]
            run.kill()
        expect(found[1] > 0 and found[-1] > 0, f"{found}")
        return f"found {found}"


def an_agent_that_dies_ends_the_start(settings):
    """Nothing is written past a routing agent that is gone; the next start goes on."""
    with Cluster(3) as cluster:
        # What ranks come upon between its death and their own; one of them may not see what it was to remove.
        run = Routed(cluster, settings, {0: 2, 1: 2, 2: 2}, allowed="cannot be|is not there|is there still")
        run.wait_steps(5)
        agents = [pid for pid in cluster.node_pids(1).values() if "route-agent" in words_of(pid)[:3]]
        expect(len(agents) == 1, f"agents of node 1: {agents}")
        send(agents[0], signal.SIGKILL)
        run.wait_found(2)
        expect("the routing agent on node1 died" in run.text(), run.text())
        judge_starts(run, exact=False)
        found = run.values("found")[-1]
        expect(found > 0, f"nothing was found: {run.text()}")
        run.wait_steps(3)
        run.kill()
        return f"found {found}"


EACH = """
import os, pathlib, time
names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
rank = int(next(os.environ[name] for name in names if name in os.environ))
given = pathlib.Path("out/given").read_text()
pathlib.Path(f"out/r.1.{rank}").write_text(f"{given} {rank}")
end = time.monotonic() + 30
while not os.path.exists(f"out/r.1.{1 - rank}") or not os.path.getsize(f"out/r.1.{1 - rank}"):
    assert time.monotonic() < end, "the other's file does not come"
    time.sleep(0.01)
there = pathlib.Path(f"out/r.1.{1 - rank}").read_text()
assert there == f"{given} {1 - rank}", there
names = sorted(os.listdir("out"))
assert names == ["given", "r.1.0", "r.1.1"], names
# Both have seen it before one of them ends.
pathlib.Path(f"seen.{rank}").write_text("")
while not os.path.exists(f"seen.{1 - rank}"):
    assert time.monotonic() < end, "the other does not see this one's"
    time.sleep(0.01)
"""


def each_launcher_passes_on_what_ranks_need(settings):
    """What stands under a routed name is seen on all nodes, and what one wrote by the other, under both mpiruns."""
    with Cluster(2) as cluster:
        (cluster.folder / "each.py").write_text(EACH)
        for mpi in ("openmpi", "mpich"):
            folder = cluster.folder / mpi
            (folder / "out").mkdir(parents=True)
            (folder / "out" / "given").write_text("given")
            words = cluster.mpirun(mpi, [1, 1], [sys.executable, cluster.folder / "each.py"])
            command = [settings.programs / "backstay", "run", "--job", mpi, "--restarts", "0", "--route", "out/given",
                       "--route", "out/r.{step}.{rank}", "--", *words]
            done = cluster.run(HEAD, command, {}, folder, check=False)
            expect(done.returncode == 0, f"{mpi}: exit {done.returncode}: {done.stdout} {done.stderr}")
            names = sorted(path.name for path in (folder / "out").iterdir())
            expect(names == ["given"], f"{mpi}: on the file system are {names}")


def steps_of_slurm_are_routed(settings):
    """Under srun, from a batch script on one of the nodes: agents are steps, but for that of this node."""
    if missing_tools():
        return f"skipped: there is no {missing_tools()[0]}"
    with Cluster(2) as cluster:
        slurm = Slurm(cluster)
        folder = cluster.folder / "work"
        (folder / "out").mkdir(parents=True)
        (folder / "out" / "given").write_text("given")
        (folder / "each.py").write_text(EACH)
        run = (f"{settings.programs}/backstay run --job routed --restarts 0 --route out/given --route 'out/r.{{step}}.{{rank}}' "
               f"-- srun -n 2 -N 2 --mpi=none {sys.executable} each.py")
        (folder / "job").write_text(f"#!/bin/sh\ncd {folder} && {run}\n")
        done = slurm.ask("sbatch", "--wait", "-N", "2", "-n", "4", "-o", folder / "log", folder / "job", check=False)
        expect(done.returncode == 0, f"exit {done.returncode}: {done.stderr} {(folder / 'log').read_text()}")
        names = sorted(path.name for path in (folder / "out").iterdir())
        expect(names == ["given"], f"on the file system are {names}")


def calls_are_those_of_a_file_system(settings):
    """Calls of the C library on a node that asks another one for every name."""
    with Cluster(2) as cluster:
        folder = cluster.folder / "work"
        (folder / "out").mkdir(parents=True)
        line = f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exec {sys.executable} {ROUTING / "calls.py"}'
        command = [settings.programs / "backstay", "run", "--job", "calls", "--restarts", "0", "--route", "out/restart.*",
                   "--route", "steps.{step}/part.*", "--", *cluster.mpirun("openmpi", [1, 1], ["sh", "-c", line])]
        done = cluster.run(HEAD, command, {}, folder, check=False)
        expect(done.returncode == 0, f"exit {done.returncode}: {done.stdout} {done.stderr}")
        names = sorted(path.name for path in (folder / "out").iterdir())
        expect(names == [], f"on the file system are {names}")


def killed_and_found(run, begun):
    """A rank of a program of steps is killed, then all: the steps that were found at both starts, and the last that may have
    been begun. Files stand nowhere else meanwhile."""
    run.wait_found(1)
    run.wait_steps(4)
    run.kill_rank(1)
    run.wait_found(2)
    run.wait_steps(3)
    found = run.values("found")
    expect(len(found) == 2, f"it failed by itself: {run.text()}")
    run.kill()
    judge_starts(run, exact=False, before=begun)
    expect(not list((run.folder / "out").iterdir()), "routed files stand on the file system")
    # What ranks say as they are killed may not arrive.
    return found, run.values("begun")[-1] + 1


def one_file(settings, mpi, how="whole"):
    """One file of ranks on three nodes, in blocks that no page ends: killed, and found whole on as many nodes and on fewer."""
    with Cluster(3) as cluster:
        found, begun = [], 0
        for counts in ({0: 2, 1: 2, 2: 2}, {1: 3, 2: 2}):
            run = OneFile(cluster, settings, counts, mpi, how=how)
            found_now, begun = killed_and_found(run, begun)
            found += found_now
        expect(found == sorted(found) and 0 < found[1] < found[-1], f"found {found}")
        return f"found {found}"


def one_file_of_all_nodes_by_ompio(settings):
    return one_file(settings, "openmpi")


def one_file_of_all_nodes_by_romio(settings):
    return one_file(settings, "mpich")


def one_file_of_all_nodes_by_pwrite(settings):
    return one_file(settings, "openmpi", how="plain")


def one_file_of_all_nodes_by_fortran(settings):
    """Under both MPIs; all ranks on two of the nodes at the second start."""
    found = []
    for mpi in ("openmpi", "mpich"):
        with Cluster(3) as cluster:
            begun = 0
            for counts in ({0: 1, 1: 1, 2: 1}, {1: 2, 2: 1}):
                run = Fortran(cluster, settings, counts, mpi)
                run.wait_found(1)
                run.wait_steps(4)
                found += run.values("found")
                run.kill()
                judge_starts(run, exact=False, before=begun)
                begun = run.values("begun")[-1] + 1
            expect(found[-2] == 0 < found[-1], f"{mpi}: found {found}")
    return f"found {found}"


JUDGE = """
import sys, h5py
path, step, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def word(step, row, column):
    mask = (1 << 64) - 1
    x = (step * 0x9e3779b97f4a7c15 + row * 0xc2b2ae3d27d4eb4f + column) & mask
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9 & mask
    return x ^ (x >> 27)


def wanted(step):
    return [[word(step, row, column) for column in range(37)] for row in range(rows)]


with h5py.File(path, "r") as file:
    assert file["turned"].shape == (rows + 3, 37), file["turned"].shape
    assert file["turned"][:rows].tolist() == wanted(step), "turned"
    assert file["blocks"][:].tolist() == wanted(step + 1), "blocks"
    assert file["group.3/inner"][:].tolist() == wanted(step + 7), "inner"
    assert file.attrs["step"] == 2 * step and file["blocks"].attrs["between"] == 3 * step
    assert [file[f"group.{group}"].attrs["number"] for group in range(7)] == list(range(7))
"""


FAILED = r": (reading|writing|opening|creating|flushing|closing|making|a new|a sync|the |choosing|taking)"


def by_library(settings, library, mpi):
    """Written and read while it is open, on three nodes; killed, and found whole on as many nodes and on fewer; every value."""
    with Cluster(3) as cluster:
        (cluster.folder / "archive").mkdir(mode=0o700)
        found, begun = [], 0
        for counts in ({0: 2, 1: 2, 2: 2}, {1: 3, 2: 2}):
            # Ranks may see that another one was killed before they end.
            run = Library(cluster, settings, counts, library, mpi, allowed=FAILED)
            found_now, begun = killed_and_found(run, begun)
            found += found_now
            expect("different bytes" not in run.text(), run.text())
        expect(found == sorted(found) and 0 < found[1] < found[-1], f"found {found}")
        run = Library(cluster, settings, {0: 1, 2: 2}, library, mpi, steps=begun + 2)
        expect(run.end() == 0, run.text())
        command = [settings.programs / "backstay", "export", "--files", "-o", cluster.folder / "exported",
                   cluster.folder / "archive"]
        done = cluster.run(HEAD, command, {}, cluster.folder, check=False)
        expect(done.returncode == 0, f"{done.stdout} {done.stderr}")
        files = [path for path in (cluster.folder / "exported").rglob("field.*") if path.is_file()]
        steps = sorted(int(path.suffix[1:]) for path in files)
        # What was removed after the last checkpoint before a kill was there again, and nobody removed it since.
        expect(steps[-2:] == [begun + 1, begun + 2], f"exported: {files}")
        for path in files if library == "hdf5" else []:
            words = [settings.python, "-c", JUDGE, path, path.suffix[1:], "101"]
            judged = subprocess.run(words, capture_output=True, text=True)
            expect(judged.returncode == 0, f"{path}: {judged.stderr}")
        return f"found {found}"


def one_file_of_all_nodes_by_hdf5_over_ompio(settings):
    return by_library(settings, "hdf5", "openmpi")


def one_file_of_all_nodes_by_hdf5_over_romio(settings):
    return by_library(settings, "hdf5", "mpich")


def one_file_of_all_nodes_by_netcdf(settings):
    return by_library(settings, "netcdf", "openmpi")


def shared_pointers_of_one_file(settings):
    """Written by MPI-IO's shared file pointer, of which OMPIO and ROMIO each have their own; the hidden files that they
    keep it in are theirs."""
    for component in ("ompio", "romio321"):
        with Cluster(3) as cluster:
            run = Pointers(cluster, settings, {0: 2, 1: 1, 2: 2}, component)
            expect(run.process.wait(LIMIT_SECONDS) == 0 and "ordered" in run.text(), f"{component}: {run.text()}")
            run.check()


def one_file_of_all_nodes_and_one_is_lost(settings):
    """The part of a node whose memory is gone is rebuilt on a spare, and the file is whole."""
    with Cluster(3, spares=1) as cluster:
        run = OneFile(cluster, settings, {0: 2, 1: 2, 2: 2}, "openmpi", "--spares", "node3", how="plain")
        return lose_node_1(run, cluster)


def two_files_of_all_nodes_in_turn_by_ompio(settings):
    return one_file(settings, "openmpi", how="turns")


def two_files_of_all_nodes_in_turn_by_romio(settings):
    return one_file(settings, "mpich", how="turns")


SHARED = """
import ctypes, errno, fcntl, mmap, os, pathlib, time
names = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
rank = int(next(os.environ[name] for name in names if name in os.environ))
path = "out/field.1"


def meet(word):
    pathlib.Path(f"{word}.{rank}").write_text("")
    end = time.monotonic() + 30
    while not os.path.exists(f"{word}.{1 - rank}"):
        assert time.monotonic() < end, f"the other does not come to {word}"
        time.sleep(0.01)


def refused(number, call, *words):
    try:
        call(*words)
    except OSError as error:
        assert error.errno == number, (call, error)
        return
    raise AssertionError((call, words))


file = os.open(path, os.O_CREAT | os.O_RDWR)
meet("open")
os.pwrite(file, b"AB"[rank:rank + 1] * 10, 10 * rank)
meet("written")
assert os.fstat(file).st_size == os.lseek(file, 0, os.SEEK_END) == os.stat(path).st_size == 20
assert os.pread(file, 30, 0) == b"A" * 10 + b"B" * 10 and os.pread(file, 4, 8) == b"AABB" and os.pread(file, 1, 20) == b""
os.lseek(file, 0, os.SEEK_SET)
assert os.read(file, 12) == b"A" * 10 + b"BB" and os.lseek(file, 0, os.SEEK_CUR) == 12
parts = [bytearray(3), bytearray(5)]
assert os.preadv(file, parts, 9) == 8 and parts == [b"ABB", b"BBBBB"]
assert fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
once = os.open(path, os.O_WRONLY)
refused(errno.EBADF, os.pread, once, 1, 0)
os.close(once)
refused(errno.ENOLCK, fcntl.lockf, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
refused(errno.ENOLCK, fcntl.flock, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
meet("read so far")
# The later goes over the earlier, whichever host it is of, and a cut is one of all.
for turn in range(4):
    if rank == turn % 2:
        os.pwrite(file, b"0123"[turn:turn + 1] * 3, 9)
    meet(f"turn {turn}")
    assert os.pread(file, 5, 8) == b"A" + b"0123"[turn:turn + 1] * 3 + b"B", os.pread(file, 5, 8)
    meet(f"seen {turn}")
if rank == 1:
    os.ftruncate(file, 5)
meet("cut")
assert os.pread(file, 30, 0) == b"A" * 5 and os.fstat(file).st_size == 5
meet("seen cut")
os.pwrite(file, b"AB"[rank:rank + 1] * 10, 10 * rank)
meet("whole again")
refused(errno.EACCES, mmap.mmap, file, 10)
refused(errno.EOPNOTSUPP, os.open, path, os.O_WRONLY | os.O_APPEND)
refused(errno.EOPNOTSUPP, os.rename, path, "out/field.2")
refused(errno.EINVAL, os.sendfile, file, os.open("each.py", os.O_RDONLY), 0, 10)
refused(errno.EBUSY, os.remove, path)
refused(errno.EBUSY, os.open, path, os.O_RDONLY)
refused(errno.EBUSY, os.open, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
libc = ctypes.CDLL(None, use_errno=True)
libc.fopen.restype = ctypes.c_void_p
assert libc.fopen(path.encode(), b"r+") is None and ctypes.get_errno() == errno.EOPNOTSUPP
assert libc.fdopen(file, b"w") in (None, 0) and ctypes.get_errno() == errno.EOPNOTSUPP
about = ctypes.create_string_buffer(256)
assert libc.statx(file, b"", 0x1000, 0x7ff, about) == 0 and int.from_bytes(about[40:48], "little") == 20
meet("refused")
os.close(file)
meet("closed")
assert pathlib.Path(path).read_bytes() == b"A" * 10 + b"B" * 10, pathlib.Path(path).read_bytes()
assert os.listdir("out") == ["field.1"], os.listdir("out")
# Bytes that both write at the same time, and not the same, are no file.
meet("read")
with open("out/field.bad", "wb", buffering=0) as other:
    meet("again")
    # As near to each other as calls can be: by the clock that both have, in other bytes every 10 ms.
    first, slot = None, 0
    while first is None or slot < first + 300:
        slot = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) // 10_000_000
        first = slot if first is None else first
        for at in range(8):
            os.pwrite(other.fileno(), b"01"[rank:rank + 1], slot % 512 * 8 + at)
    meet("both")
meet("done")
refused(errno.EIO, os.open, "out/field.bad", os.O_RDONLY)
meet("end")
"""


def what_one_file_of_all_nodes_cannot_have_is_refused(settings):
    """No byte of it is wrong: what cannot be known is refused at the call. The whole file is exported from the archive."""
    with Cluster(2) as cluster:
        folder = cluster.folder / "work"
        (folder / "out").mkdir(parents=True)
        (folder / "archive").mkdir(mode=0o700)
        (folder / "each.py").write_text(SHARED)
        words = cluster.mpirun("openmpi", [1, 1], [sys.executable, "each.py"])
        command = [settings.programs / "backstay", "run", "--job", "shared", "--restarts", "0", "--route", "out/field.*;shared",
                   "--", *words]
        environment = {"BACKSTAY_ARCHIVE": folder / "archive"}
        done = cluster.run(HEAD, command, environment, folder, check=False)
        expect(done.returncode == 0, f"exit {done.returncode}: {done.stdout} {done.stderr}")
        expect("wrote different bytes at" in done.stderr, done.stderr)
        command = [settings.programs / "backstay", "export", "--files", "-o", folder / "exported", folder / "archive"]
        done = cluster.run(HEAD, command, {}, folder, check=False)
        expect(done.returncode == 0 and "1 file," in done.stdout, f"{done.stdout} {done.stderr}")
        files = [path for path in (folder / "exported").rglob("*") if path.is_file()]
        expect([path.read_bytes() for path in files] == [b"A" * 10 + b"B" * 10], f"exported: {files}")
        expect(files[0].name == "field.1", f"exported: {files}")


def what_cannot_be_routed_is_said_before_the_start(settings):
    with Cluster(2) as cluster:
        base = [settings.programs / "backstay", "run", "--job", "refused", "--route", "out/r.*"]

        def said(words, why):
            done = cluster.run(HEAD, words, folder=cluster.folder, check=False)
            expect(done.returncode != 0 and why in done.stderr, f"{done.returncode}: {done.stderr}")

        hosts = cluster.hostfile([1, 1])
        said([*base, "--hosts", hosts, "--probe", "true", "--", "true"], "needs a launcher that is known")
        mpirun = cluster.mpirun("openmpi", [1, 1], ["true"], ["LD_PRELOAD=x.so"])
        said([*base, "--", *mpirun], "the launcher is told what LD_PRELOAD is")
        mpirun = cluster.mpirun("openmpi", [1, 1], ["true"])
        said([*base, "--remote-shell", "false", "--probe", "true", "--", *mpirun], "the routing agent on node0 ended")


TESTS = [killed_ranks_find_what_was_complete, a_node_is_lost_with_its_store, ranks_find_their_files_on_other_nodes,
         an_agent_that_dies_ends_the_start, one_file_of_all_nodes_by_ompio, one_file_of_all_nodes_by_romio,
         one_file_of_all_nodes_by_pwrite, one_file_of_all_nodes_by_fortran,
         one_file_of_all_nodes_by_hdf5_over_ompio, one_file_of_all_nodes_by_hdf5_over_romio, one_file_of_all_nodes_by_netcdf,
         shared_pointers_of_one_file, one_file_of_all_nodes_and_one_is_lost, two_files_of_all_nodes_in_turn_by_ompio,
         two_files_of_all_nodes_in_turn_by_romio, what_one_file_of_all_nodes_cannot_have_is_refused,
         each_launcher_passes_on_what_ranks_need, steps_of_slurm_are_routed,
         calls_are_those_of_a_file_system,
         what_cannot_be_routed_is_said_before_the_start]

if __name__ == "__main__":
    def more(parser):
        parser.add_argument("--seed", default="1")
        parser.add_argument("--python", default="target/routing-venv/bin/python", help="one with h5py")

    settings = arguments(__doc__, more)
    print(f"seed {settings.seed}", flush=True)
    sys.exit(run_all(TESTS, settings))
