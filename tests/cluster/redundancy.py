# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Agents that outlive the application, flipped bytes, a bad network, and `backstay run` with redundancy.

Prints a line for each test and "N passed, N failed" last; see matrix.py for the table of losses.
"""

import argparse
import json
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter

from cluster import HEAD, Cluster, send, wait_until
from protectedjob import STORE, ProtectedJob, Scene, expect, goes_on, judged, outcome
from record import Record
from selftest import run_all

NODES = range(4)
FOUR = (1, 1, 1, 1)


# ---- Agents ---------------------------------------------------------------------------------------------


def agents_protect_after_the_application(settings):
    """It dies with a checkpoint that is on its nodes only; agents protect it, and then a node is lost."""
    with Cluster(4, shm="192m") as cluster, Scene(cluster, settings, "xor") as scene:
        scene.start_agents(NODES)
        job = scene.held(FOUR, kib=1024)
        job.kill()
        done = job.newest("protected")
        history = judged(job)
        scene.wait_protected(NODES, 2)
        victim = settings.random.choice(NODES)
        cluster.wipe_node(victim)
        cluster.start_node(victim)
        after = goes_on(scene, history, 2, FOUR)
        expect("does not" not in after.text(), f"an agent was not used: {after.text()[-2000:]}")
        scene.agents_end([index for index in NODES if index != victim])
        return "" if done < 2 else "it was protected before the application died"


def an_agent_dies(settings):
    """The job goes on while its agent is dead; the next start uses threads there, and says so."""
    with Cluster(4, shm="192m") as cluster, Scene(cluster, settings, "rs2") as scene:
        scene.start_agents(NODES)
        job = scene.job(start=1, nodes=FOUR, pause_us=20000, environment={"BACKSTAY_TIMEOUT_MS": "4000"})
        job.must_see("protected")
        scene.signal_agent(1, signal.SIGKILL)
        committed = job.newest("committed")
        job.must_see("committed", word=committed + 3)
        job.must_see("short", count=1)
        job.kill()
        history = judged(job)
        expect("on its nodes only" in "".join(scene.agent_text(index) for index in NODES) + job.text(),
               "nobody said that checkpoints are on their nodes only")
        after = goes_on(scene, history, history.complete, FOUR)
        after.must_say("agent", "died")
        scene.agents_end([0, 2, 3])


def a_stopped_agent_is_ended(settings):
    """An agent that is stopped when a new start begins is ended; the start goes on without it."""
    with Cluster(4, shm="192m") as cluster, Scene(cluster, settings, "xor") as scene:
        scene.start_agents(NODES)
        job = scene.held(FOUR, rate=None, protected=2)
        job.kill()
        history = judged(job)
        scene.signal_agent(2, signal.SIGSTOP)
        after = goes_on(scene, history, 2, FOUR)
        after.must_say("is ended")
        scene.agents_end([0, 1, 3])
        expect(scene.agents[2].wait(30) != 0, "it ended well")


def agents_end_when_told(settings):
    """By a file in the rendezvous folder, and by SIGTERM; a second agent of a store is refused."""
    with Cluster(2, shm="192m") as cluster, Scene(cluster, settings, "xor") as scene:
        meeting = scene.folder / "rendezvous"
        meeting.mkdir()
        scene.start_agents([0, 1], BACKSTAY_RENDEZVOUS=str(meeting))
        second = cluster.run(0, [scene.backstay, "agent", "--job", scene.name], {"BACKSTAY_STORE_PATH": STORE},
                             check=False)
        expect(second.returncode != 0 and "already" in second.stderr, f"a second agent: {second}")
        scene.signal_agent(0, signal.SIGTERM)
        scene.agents_end([0])
        expect("told to" in scene.agent_text(0), scene.agent_text(0))
        expect(scene.agents[1].poll() is None, f"the other one ended too: {scene.agent_text(1)}")
        (meeting / "over").touch()
        scene.agents_end([1])
        expect("job is over" in scene.agent_text(1), scene.agent_text(1))


PRETENDER = """
import fcntl, os, socket, struct, sys, time
folder, how = sys.argv[1], sys.argv[2]
os.makedirs(folder, exist_ok=True)
lock = open(os.path.join(folder, "agent.backstay"), "w+")
fcntl.flock(lock, fcntl.LOCK_EX)
lock.write(f"{os.getpid()}\\n")
lock.flush()
path = os.path.join(folder, "agent.socket")
server = socket.socket(socket.AF_UNIX)
if os.path.exists(path):
    os.remove(path)
server.bind(path)
server.listen()
print("ready", flush=True)
while True:
    one, _ = server.accept()
    length, = struct.unpack("<I", one.recv(4, socket.MSG_WAITALL))
    request = one.recv(length, socket.MSG_WAITALL)
    # "Done" as major version 9 would say it, with its checksum.
    newer = b"BKSTLANS" + struct.pack("<HHIB", 9, 0, 25, 1) + bytes.fromhex("93c3f95e8442f17d")
    answers = {"newer": newer, "garbage": os.urandom(64), "long": b""}
    answer = answers[how]
    one.sendall(struct.pack("<I", 0xffffffff if how == "long" else len(answer)) + answer)
    time.sleep(0.1)
"""


def an_agent_of_another_version(settings):
    """What answers as no agent of ours does is ended, and said; the job works without it."""
    with Cluster(2, shm="192m") as cluster:
        for how in ("newer", "garbage", "long"):
            with Scene(cluster, settings, "xor", job=how) as scene:
                # Where an agent would be.
                scene.start_agents([0])
                folder = str(pathlib.Path(scene.files(0, "agent.socket")[0]).parent)
                scene.signal_agent(0, signal.SIGTERM)
                scene.agents_end([0])
                other = cluster.start(0, [sys.executable, "-c", PRETENDER, folder, how], stdout=subprocess.PIPE,
                                      text=True)
                expect(other.stdout.readline() == "ready\n", "the pretender did not start")
                other.stdout.close()
                job = scene.job(nodes=(1, 1), steps=3)
                job.closes()
                job.must_say("agent", "is ended")
                expect("panicked" not in job.text(), job.text())
                expect(other.wait(30) != 0, "it ended well")
                if how == "newer":
                    job.must_say("version")
                expect(job.newest("protected") == 3 or scene.protected(1) == 3, f"not protected: {job.text()}")


# ---- Flips ----------------------------------------------------------------------------------------------


FLIP = """
import os, random, sys
path, seed, kind = sys.argv[1], sys.argv[2], sys.argv[3]
chance = random.Random(seed)
size = os.path.getsize(path)
with open(path, "r+b") as file:
    for _ in range(10000 if size else 0):
        at = chance.randrange(65536 if kind == "segments" else 0, size)
        file.seek(at)
        byte = file.read(1)
        if byte != b"\\0":
            file.seek(at)
            file.write(bytes([byte[0] ^ 1 << chance.randrange(8)]))
            print(at)
            break
"""


def flips(settings, kind, name, count):
    """Bytes flipped in files of `name` on one node, then another node wiped: right words or a refusal."""
    seen = []
    with Cluster(4, shm="192m") as cluster:
        for scheme in ("xor", "rs2"):
            with Scene(cluster, settings, scheme, job=f"{kind}.{scheme}") as scene:
                job = scene.held(FOUR, rate=None, protected=3, hold=3)
                job.must_see("protected", word=3)
                job.kill()
                history = judged(job)
                bad, lost = settings.random.sample(NODES, 2)
                for path in scene.files(bad, name):
                    for turn in range(count):
                        cluster.run(bad, [sys.executable, "-c", FLIP, path,
                                          f"{settings.seed} {settings.turn} {scheme} {turn}", kind])
                found = scene.tool(bad, "verify", STORE)
                cluster.wipe_node(lost)
                cluster.start_node(lost)
                what, after, text = outcome(scene, history, 0, FOUR)
                came = after.restored()[1] if what == "restored" else what
                seen.append(f"{scheme}: verify {'finds it' if found.returncode else 'is content'}, {came}")
                expect(what != "fresh", f"began anew: {after.text()[-2000:]}")
                if what == "refused":
                    expect(scheme == "xor" or kind == "log", f"refused, though the scheme covers it: {text}; "
                                                             f"{after.text()[-3000:]}")
                if scheme == "rs2" and kind == "segments":
                    expect(came == 3, f"{came}, not 3; {after.text()[-3000:]}")
                scene.clear()
    return "; ".join(seen)


def a_byte_of_a_store_is_flipped(settings):
    return flips(settings, "segments", "store.backstay", 1)


def many_bytes_of_a_store_are_flipped(settings):
    return flips(settings, "segments", "store.backstay", 8)


def a_byte_of_a_stripe_log_is_flipped(settings):
    return flips(settings, "log", "stripes-*.backstay", 1)


# ---- Network --------------------------------------------------------------------------------------------


def protected_again(scene, job):
    """The job's first checkpoint is protected after all: it goes on without the last node."""
    job.must_see("protected", word=1)
    job.kill()
    history = judged(job)
    scene.cluster.wipe_node(3)
    scene.cluster.start_node(3)
    goes_on(scene, history, 1, FOUR)


def network_is_cut_and_heals(settings):
    """Two nodes do not reach each other while a checkpoint is encoded: it is said, and made good afterwards."""
    with Cluster(4, shm="192m") as cluster, Scene(cluster, settings, "xor", BACKSTAY_TIMEOUT_MS=8000) as scene:
        # It stands still, because ranks on 1 and 3 could not talk to each other either.
        job = scene.held(FOUR, protected=0, hold=1, kib=1024)
        job.must_see("encoding", count=1, word=1)
        cluster.cut(1, 3)
        try:
            job.must_see("short", count=1)
            # The ranks may give up before the round does.
            job.must_say("on its nodes only", limit=60)
        finally:
            cluster.heal(1, 3)
        protected_again(scene, job)


def a_peer_stalls(settings):
    """An agent is stopped: rounds fail in time, checkpoints go on, and are protected again afterwards."""
    with Cluster(4, shm="192m") as cluster, Scene(cluster, settings, "partner") as scene:
        scene.start_agents(NODES)
        job = scene.job(start=1, nodes=FOUR, pause_us=20000, environment={"BACKSTAY_TIMEOUT_MS": "3000"})
        job.must_see("protected")
        scene.signal_agent(2, signal.SIGSTOP)
        committed = job.newest("committed")
        job.must_see("committed", word=committed + 3)
        job.must_see("short", count=1)
        scene.signal_agent(2, signal.SIGCONT)
        before = job.newest("committed")
        job.wait_for("protection after the stall", lambda: max(
            (int(e.words[0]) for e in job.events if e.name == "protected"), default=0) > before)
        job.kill()
        history = judged(job)
        goes_on(scene, history, history.complete, FOUR)


def packets_are_slow(settings):
    """8 Mbit/s to one node: all is protected, only later."""
    with Cluster(4, shm="192m") as cluster, Scene(cluster, settings, "xor") as scene:
        cluster.slow(1, rate="8mbit")
        job = scene.job(start=1, nodes=FOUR, wait_protected=1, hold=1)
        job.must_see("protected", word=1)
        job.kill()
        cluster.fast(1)
        history = judged(job)
        cluster.wipe_node(0)
        cluster.start_node(0)
        goes_on(scene, history, 1, FOUR)


# ---- backstay run ---------------------------------------------------------------------------------------


class Run:
    """`backstay run` in the head with the oracle job; `job` hears the ranks of all its starts."""

    def __init__(self, scene, counts, *options, steps, **program):
        self.scene, self.cluster = scene, scene.cluster
        self.folder = scene.folder / "run"
        self.folder.mkdir()
        self.events_file = self.folder / "events"
        self.options, run = options, self

        class Supervised(ProtectedJob):
            def launch(self, prefix, words, surroundings, log):
                ours = {key: value for key, value in surroundings.items()
                        if key.startswith(("BACKSTAY_", "ORACLE_"))}
                command = [scene.backstay, "run", "--events", run.events_file, "--run-dir", run.folder, "--pause-s",
                           "0.2", *run.options, "--", *scene.cluster.mpirun("openmpi", self.counts, words,
                                                                          list(ours))]
                return scene.cluster.start(HEAD, command, {**ours, "OMPI_MCA_rmaps_base_oversubscribe": "1"},
                                           scene.folder, stdout=log, stderr=log, start_new_session=True)

        self.job = Supervised(scene, job=scene.name, environment=scene.environment, nodes=counts, kib=scene.kib, watch=1,
                              leave=1, steps=steps, **program)
        scene.jobs.append(self.job)

    def events(self, name):
        if not self.events_file.exists():
            return []
        events = map(json.loads, self.events_file.read_text().splitlines())
        return [event for event in events if event["event"] == name]

    def send(self, number):
        for pid, _ in self.cluster.inside():
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"/backstay") and words[1:3] == [b"run", b"--events"]:
                send(pid, number)


def run_leaves_a_dead_node_out(settings, agents="no"):
    """A node is wiped under `backstay run`: a spare takes its place, and the job comes to its right end."""
    with Cluster(4, spares=1, shm="192m") as cluster, Scene(cluster, settings, "xor") as scene:
        run = Run(scene, FOUR, "--spares", "node4", "--agents", agents, "--job", scene.name, "--agent-program",
                  str(scene.backstay), steps=400, pause_us=20000)
        job = run.job
        job.must_see("protected")
        cluster.wipe_node(2)
        job.must_see("restored", limit=90)
        promised = [int(e.words[0]) for e in job.events if e.name == "protected"
                    and e.at < job.all("restored")[0].at]
        restored = job.restored()
        expect(restored[0] >= max(promised, default=1), f"{restored} came back, {max(promised)} was protected")
        starts = [event["hosts"] for event in run.events("start")]
        expect(starts[-1] == ["node0", "node1", "node4", "node3"], f"hosts of the starts: {starts}")
        run.send(signal.SIGTERM)
        # 75: it left before its end; 0 where MPICH's own end hangs.
        expect(job.end() in (0, 75), f"it did not leave well: {job.last_words()}")
        expect(len(job.all("leaving")) >= job.ranks and len(job.all("closed")) == job.ranks,
               f"it did not leave: {job.last_words()}")
        for event in job.all("wrong") + job.all("mix") + job.all("error"):
            expect(False, f"rank {event.rank}: {event.name} {' '.join(event.words)}")
        # The newest of the last start, which may have fewer steps than one of the first that was lost.
        last = max((int(e.words[1]), int(e.words[0]), int(e.words[2])) for e in job.all("committed"))[2]
        expect("agent of the store" not in job.text() or agents == "yes", job.text())
        # What it left is whole.
        spared = {0: 1, 1: 1, 4: 1, 3: 1}
        after = scene.job(start=1, nodes=spared, steps=last + 1)
        after.end()
        expect(after.restored() and after.restored()[1] == last and not after.all("wrong"), after.last_words())
        if agents == "yes":
            # The one that coordinated may have been ended: a node that does not answer holds it up.
            expect(job.text().count("is ended") <= 1 and "does not take part" not in job.text(),
                   f"agents did not do their work: {job.text()} {after.text()}")
            wait_until(lambda: not any(scene.agent_pid(index) for index in (0, 1, 3, 4)), "the end of the agents", 30)


def run_with_agents(settings):
    run_leaves_a_dead_node_out(settings, agents="yes")


TESTS = [agents_protect_after_the_application, an_agent_dies, a_stopped_agent_is_ended, agents_end_when_told,
         an_agent_of_another_version, a_byte_of_a_store_is_flipped, many_bytes_of_a_store_are_flipped,
         a_byte_of_a_stripe_log_is_flipped, network_is_cut_and_heals, a_peer_stalls, packets_are_slow,
         run_leaves_a_dead_node_out, run_with_agents]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "target" / "cluster")
    parser.add_argument("--only", default="", help="tests whose function's name matches this expression")
    parser.add_argument("--soak", type=int, default=0, help="all of them so often")
    parser.add_argument("--provider", help="of libfabric, over which nodes read each other then")
    parser.add_argument("--record", type=pathlib.Path, help="file for what a soak did and survived")
    parser.add_argument("--seed", type=int, help="where random choices begin")
    settings = parser.parse_args()
    settings.programs = settings.programs.resolve()
    if settings.seed is None:
        settings.seed = random.randrange(1 << 30) if settings.soak else 1
    print(f"seed {settings.seed}", flush=True)
    record, began = Record(settings.record, "soak-redundancy: agents, flips, network"), time.monotonic()
    status, counts = 0, Counter()
    for settings.turn in range(max(1, settings.soak)):
        settings.random = random.Random(f"{settings.seed} {settings.turn}")
        status |= run_all(TESTS, settings, counts)
    failed = counts.pop("failed", 0)
    record.write(time.monotonic() - began, counts.total(), failed, counts)
    return status


if __name__ == "__main__":
    sys.exit(main())
