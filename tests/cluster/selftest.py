# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Tests of the test cluster itself, and of jobs over its nodes.

Prints a line for each test and "N passed, N failed" last. Where namespaces are not permitted, it fails.
"""

import argparse
import pathlib
import re
import signal
import subprocess
import sys
import time

import clusterjob
from cluster import HEAD, Cluster, ClusterError, Unsupported, names, pid_namespace, send
from job import Failure, History, expect

HERE = pathlib.Path(__file__).resolve()
BOTH = ("openmpi", "mpich")
REACH = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as s:
        s.settimeout(float(sys.argv[3]))
        s.sendall(b"x" * int(sys.argv[4]))
        s.shutdown(socket.SHUT_WR)
        print(s.recv(16).decode())
except OSError as error:
    print(type(error).__name__)
"""
LISTEN = """
import socket
with socket.create_server(("0.0.0.0", 7000)) as server:
    print("listening", flush=True)
    while True:
        s, _ = server.accept()
        with s:
            total = 0
            while piece := s.recv(65536):
                total += len(piece)
            s.sendall(str(total).encode())
"""


def listen(cluster, index):
    server = cluster.start(index, [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True)
    expect(server.stdout.readline() == "listening\n", "the server did not start")
    server.stdout.close()
    return server


def reach(cluster, one, other, size=1, limit=2):
    words = [sys.executable, "-c", REACH, cluster.address(other), "7000", str(limit), str(size)]
    return cluster.run(one, words).stdout.strip()


def refused(call, pattern):
    try:
        call()
    except ClusterError as error:
        expect(re.search(pattern, str(error)), f"the text does not say {pattern!r}: {error}")
        return
    raise Failure(f"{pattern!r} was expected, but all went well")


# ---- Nodes ----------------------------------------------------------------------------------------------


def nodes_are_apart(settings):
    began = time.monotonic()
    with Cluster(3, spares=1, shm="64m") as cluster:
        expect(time.monotonic() - began < 10, "a cluster of 4 nodes takes more than 10 s")
        seen = {}
        for index in range(4):
            for what, command in {
                "name": ["hostname"], "boot": ["cat", "/proc/sys/kernel/random/boot_id"],
                "address": ["ip", "-4", "-o", "address", "show", "eth0"],
            }.items():
                seen.setdefault(what, set()).add(cluster.run(index, command).stdout)
            cluster.run(index, ["sh", "-c", f"echo {index} > /dev/shm/file; echo {index} > /var/tmp/file"])
        expect(all(len(found) == 4 for found in seen.values()), f"nodes are alike: {seen}")
        for index in range(4):
            expect(cluster.run(index, ["cat", "/dev/shm/file", "/var/tmp/file"]).stdout == f"{index}\n" * 2,
                   "another node's memory")
            expect(cluster.run(index, ["getent", "hosts", "node2"]).stdout.startswith("10.77.0.3"), "no host names")
        size = cluster.run(0, ["stat", "-f", "-c", "%b %S", "/dev/shm"]).stdout.split()
        expect(int(size[0]) * int(size[1]) == 64 << 20, f"/dev/shm is not 64 MiB: {size}")
        expect(not pathlib.Path("/dev/shm/file").exists(), "the machine's own /dev/shm")
        folder = cluster.folder
    expect(not folder.exists(), "the folder is still there")


def network_is_cut_and_heals(settings):
    with Cluster(3) as cluster:
        listen(cluster, 1)
        for one in (0, 2, HEAD):
            expect(reach(cluster, one, 1) == "1", f"{one} does not reach 1")
        cluster.cut(0, 1)
        expect(reach(cluster, 0, 1) == "TimeoutError", "a cut network must be silent")
        expect(reach(cluster, 2, 1) == "1", "the cut is between 0 and 1 only")
        cluster.heal(1, 0)
        expect(reach(cluster, 0, 1) == "1", "healed")
        cluster.cut(HEAD, 1)
        done = cluster.run(HEAD, [cluster.agent, "node1", "true"], check=False)
        expect(done.returncode == 255, f"the agent came through a cut: {done}")
        cluster.heal(HEAD, 1)
        cluster.run(HEAD, [cluster.agent, "node1", "true"])


def network_is_slow(settings):
    with Cluster(2) as cluster:
        listen(cluster, 1)
        cluster.slow(1, rate="8mbit")
        began = time.monotonic()
        expect(reach(cluster, 0, 1, size=1 << 20, limit=20) == str(1 << 20), "bytes are lost")
        seconds = time.monotonic() - began
        expect(0.6 < seconds < 6, f"1 MiB at 8 Mbit/s took {seconds:.2f} s")
        cluster.fast(1)
        began = time.monotonic()
        reach(cluster, 0, 1, size=1 << 20)
        expect(time.monotonic() - began < 0.6, "still slow")
        try:
            cluster.slow(1, delay="200ms")
        except Unsupported:
            return "this kernel cannot delay packets, only limit the rate"
        began = time.monotonic()
        expect(reach(cluster, 0, 1) == "1" and time.monotonic() - began > 0.4, "no delay")
    return ""


def nodes_are_killed_and_wiped(settings):
    with Cluster(2) as cluster:
        boot = cluster.run(1, ["cat", "/proc/sys/kernel/random/boot_id"]).stdout
        cluster.run(1, ["sh", "-c", "echo kept > /dev/shm/file"])
        sleeper = cluster.start(1, ["sleep", "600"])
        # Something that left its session and its parent must die too.
        cluster.run(1, ["sh", "-c", "setsid sleep 601 >/dev/null 2>&1 &"])
        expect(len(cluster.node_pids(1)) >= 2, f"what runs there: {cluster.node_pids(1)}")
        namespace = pid_namespace(cluster.pid(1))
        cluster.kill_node(1)
        expect(sleeper.wait(10) != 0, "it ended well")
        expect(not [pid for pid, _ in cluster.inside() if pid_namespace(pid) == namespace], "something survived")
        refused(lambda: cluster.run(1, ["true"]), "down")
        done = cluster.run(HEAD, [cluster.agent, "node1", "true"], check=False)
        expect(done.returncode == 255 and "No route" in done.stderr, f"the agent enters a dead node: {done}")
        cluster.start_node(1)
        expect(cluster.run(1, ["cat", "/dev/shm/file"]).stdout == "kept\n", "its memory is gone")
        expect(cluster.run(1, ["cat", "/proc/sys/kernel/random/boot_id"]).stdout == boot, "another boot id")
        for silent in (False, True):
            cluster.wipe_node(1, silent=silent)
            cluster.start_node(1)
            expect(cluster.run(1, ["sh", "-c", "ls /dev/shm; hostname"]).stdout == "node1\n", "not a fresh node")
            expect(cluster.run(1, ["cat", "/proc/sys/kernel/random/boot_id"]).stdout != boot, "the same boot id")
            listen(cluster, 1)
            expect(reach(cluster, 0, 1) == "1", "a fresh node is not on the network")


def nodes_are_stopped(settings):
    with Cluster(2) as cluster:
        server = listen(cluster, 1)
        cluster.stop_node(1)
        expect(reach(cluster, 0, 1) == "TimeoutError", "a stopped node must not answer")
        cluster.continue_node(1)
        expect(reach(cluster, 0, 1) == "1", "it must go on")
        cluster.clear_node(1)
        expect(server.wait(10) != 0 and cluster.is_up(1), "cleared")
        cluster.run(1, ["true"])


def crash_leaves_nothing(settings):
    """A test that is killed takes its cluster with it; one that `up` made is there until `down`."""
    code = ("import sys, time; sys.path.insert(0, sys.argv[1]); from cluster import Cluster; "
            "c = Cluster(2); print(c.name, c.head, flush=True); time.sleep(600)")
    owner = subprocess.Popen([sys.executable, "-c", code, str(HERE.parent)], stdout=subprocess.PIPE, text=True)
    name, head = owner.stdout.readline().split()
    expect(pathlib.Path(f"/proc/{head}").exists(), "no head")
    send(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    end = time.monotonic() + 10
    while pathlib.Path(f"/proc/{head}").exists():
        expect(time.monotonic() < end, "the cluster outlives its owner")
        time.sleep(0.01)
    with Cluster(1):
        expect(name not in names(), "its folder is still there")


def command_line(settings):
    name = f"selftest-{time.time_ns()}"

    def cluster(*words):
        done = subprocess.run([str(HERE.with_name("cluster")), *words], capture_output=True, text=True, timeout=60,
                              check=False)
        expect(done.returncode == 0, f"cluster {words}: {done.stdout} {done.stderr}")
        return done.stdout

    cluster("up", "2", "--name", name)
    try:
        expect(cluster("exec", "--name", name, "1", "hostname") == "node1\n", "exec")
        cluster("wipe-node", "--name", name, "1")
        expect(f"{name}: 1 of 2 nodes up" in cluster("list"), "list")
        for words in (["start-node", "1"], ["cut", "0", "1"], ["heal", "0", "1"], ["slow", "1"], ["fast", "1"],
                      ["stop-node", "0"], ["continue-node", "0"], ["kill-node", "0"]):
            cluster(words[0], "--name", name, *words[1:])
        expect(cluster("exec", "--name", name, "1", "ls", "/dev/shm") == "", "exec in a fresh node")
    finally:
        cluster("down", "--name", name)
    expect(name not in cluster("list"), "down")


# ---- Jobs -----------------------------------------------------------------------------------------------


def mpi_over_nodes(settings):
    with Cluster(3) as cluster:
        for mpi in BOTH:
            command = cluster.mpirun(mpi, [2, 2, 2], [settings.programs / f"ring.{mpi}", "3"])
            job = cluster.start(HEAD, command, stdout=subprocess.PIPE, text=True)
            text, ended = "", False
            while text.count("\n") < 7 and not ended:
                line = job.stdout.readline()
                text, ended = text + line, line == ""
            job.stdout.close()
            if mpi == "openmpi":                # MPICH's UCX over TCP at times hangs in MPI_Finalize
                expect(job.wait(30) == 0, f"exit {job.returncode}")
            job.kill()
            job.wait()
            cluster.clear()
            for rank in range(6):
                expect(f"rank {rank} of 6 on node{rank // 2}\n" in text, f"{mpi}: {text}")
            expect("done 15" in text, f"{mpi}: {text}")
        for mpi in BOTH:
            command = cluster.mpirun(mpi, {2: 1, 0: 1}, [settings.programs / f"ring.{mpi}", "100000", "1"])
            job = cluster.start(HEAD, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            expect("of 2 on" in job.stdout.readline(), "the job did not start")
            cluster.kill_node(0)
            try:
                text, _ = job.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                raise Failure(f"{mpi}: mpirun does not notice that a node died") from None
            expect(job.returncode != 0, f"{mpi}: a good end without a node: {text}")
            cluster.start_node(0)


def oracle_over_nodes(settings):
    """Killed with -9 on three nodes, started again, every word checked; each node has its own store."""
    for mpi in BOTH:
        with Cluster(3) as cluster, clusterjob.ClusterPlace(cluster, settings.programs, mpi) as place:
            history = History()
            for start in range(1, 4):
                job = place.job(start=start)
                job.wait_event("committed", 4 * job.ranks)
                job.kill()
                history.judge(job)
            for index in range(3):
                cluster.kill_node(index)
                cluster.start_node(index)
            job = place.job(start=4, steps=history.begun + 3)
            job.end()
            history.judge(job, killed=False)
            expect(history.complete >= 6, f"only step {history.complete} was reached")
            expect(job.all("restored") and len(job.all("verified")) == 6, "nothing was restored")
            stores = [cluster.run(index, ["find", clusterjob.STORE, "-name", "store.backstay"]).stdout.split()
                      for index in range(3)]
            expect(all(len(found) == 1 for found in stores), f"one store on each node: {stores}")


TESTS = [nodes_are_apart, network_is_cut_and_heals, network_is_slow, nodes_are_killed_and_wiped, nodes_are_stopped,
         crash_leaves_nothing, command_line, mpi_over_nodes, oracle_over_nodes]


def run_all(tests, settings, counts=None):
    """Runs tests one after the other; the exit status. `counts` gets how often each was passed, and failed. For all test programs over the cluster."""
    failed = 0
    chosen = [test for test in tests if re.search(settings.only, test.__name__)]
    for test in chosen:
        began, outcome, text = time.monotonic(), "ok", ""
        try:
            text = test(settings) or ""
        except (Failure, ClusterError) as failure:
            outcome, text = "FAILED", str(failure)
        except Exception as error:                  # a defect of the test, told like the others
            outcome, text = "FAILED", f"{type(error).__name__}: {error}"
        failed += outcome == "FAILED"
        if counts is not None:
            counts[test.__name__.replace("_", " ") if outcome == "ok" else "failed"] += 1
        print(f"{outcome:8}{test.__name__.replace('_', ' ')}, {time.monotonic() - began:.1f} s"
              f"{': ' if text else ''}{text}", flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed or not chosen else 0


def arguments(text, more=lambda parser: None):
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--programs", type=pathlib.Path, default=HERE.parents[2] / "target" / "cluster")
    parser.add_argument("--only", default="", help="tests whose function's name matches this expression")
    more(parser)
    settings = parser.parse_args()
    settings.programs = settings.programs.resolve()
    return settings


if __name__ == "__main__":
    sys.exit(run_all(TESTS, arguments(__doc__)))
