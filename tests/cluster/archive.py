# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Jobs with an archive that lose their nodes, are killed inside drains, and whose archive fills up, hangs or is damaged.

Prints a line for each test and "N passed, N failed" last. --soak SECONDS: one fault after another at random
instants instead, for so long; the seed that is printed replays.
"""

import argparse
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

from archivejob import MIB, ArchiveScene, Pfs, Watch
from cluster import Cluster, send, wait_until
from protectedjob import NOT_RETAINED, Failure, History, expect, goes_on, outcome, step_of
from record import Record
from selftest import run_all

STORE_BUSY = "is used by"
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static time_t shift(void) { const char *by = getenv("CLOCK_SHIFT"); return by ? atol(by) : 0; }
int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, time);
    if (done == 0 && clock == CLOCK_REALTIME) time->tv_sec += shift();
    return done;
}
int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int done = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec, time->tv_usec = now.tv_nsec / 1000;
    return done;
}
"""


def ended(scene, job, history, killed=True):
    """A start is over: what it promised of the archive, and every event checked."""
    job.kill()
    promised = scene.promised()
    scene.note(job)
    promised = max(promised, scene.promised())
    history.judge(job, killed=killed)
    return promised


def whole(scene, history, least, nodes, start, **options):
    """After the loss of all nodes step `least` or a newer one must come back from the archive."""
    scene.lose_everything()
    scene.fast()
    scene.leader = next(iter(nodes)) if isinstance(nodes, dict) else 0
    after = goes_on(scene, history, least, nodes, start=start, **options)
    scene.note(after)
    return after


def held_in_a_drain(scene, nodes, bytes_stored, kib=8192, **options):
    """A first start that stands still after its first checkpoint, so much of which each aggregator has stored."""
    job = scene.job(start=1, nodes=nodes, hold=1, kib=kib, **options)
    job.must_see("holding")
    scene.wait_inside(bytes_stored)
    return job


def must_store_all(watch):
    """What an interrupted drain left in a file that the catalog never named is not built on."""
    expect(watch.resumed() == 0, f"a file that was never recorded was used: {json.dumps(list(watch.seen.values()))[:2000]}")
    return "all was stored again"


# ---- Loss of all nodes ----------------------------------------------------------------------------------


def all_nodes_are_wiped(settings):
    """The job goes on on other nodes, from the newest checkpoint and then from an older one."""
    with Cluster(3, spares=1) as cluster, ArchiveScene(cluster, settings, settings.pfs.get(),
                                                       BACKSTAY_ARCHIVE_RETAINED=3) as scene:
        history = History()
        job = scene.job(start=1, nodes=(1, 1, 1), hold=5, wait_archived=5, fixed=1)
        job.must_see("holding")
        expect(len(job.all("archived")) == 15, f"not all were archived: {job.last_words()}")
        promised = ended(scene, job, history)
        expect(promised == 5, f"step {promised} is said to be archived")
        after = whole(scene, history, 5, {1: 1, 2: 1, 3: 1}, start=2, fixed=1)
        expect(after.restored() == (5, 5), f"{after.restored()} came back")
        # An older one that is retained; the newer ones are abandoned.
        older = scene.job(start=3, nodes={3: 1, 0: 1, 1: 1}, restore=5, hold=20, wait_archived=20, steps=20, fixed=1)
        scene.leader = 3
        older.must_see("verified")
        expect(older.restored() == (5, 5), f"{older.restored()}, not number 5")
        older.must_see("archived")
        older.kill()
        expect(not older.all("wrong"), older.last_words())
        scene.lose_everything()
        gone = scene.job(start=4, nodes=(1, 1, 1), restore=1, fixed=1)
        gone.refused("restore", NOT_RETAINED)


def another_number_of_ranks(settings):
    """Slabs come back on 3 ranks, then on 5, from the archive alone."""
    with Cluster(3) as cluster, ArchiveScene(cluster, settings) as scene:
        history = History()
        for start, nodes in enumerate([(2, 2), (1, 1, 1), (2, 2, 1)], 1):
            job = scene.job(start=start, nodes=nodes, slabs=1, steps=4 * start, wait_archived=4 * start)
            job.end()
            history.judge(job, killed=False)
            expect(start == 1 or len(job.all("verified")) == job.ranks, f"nothing came back: {job.last_words()}")
            expect(history.complete == 4 * start, f"start {start} ended at step {history.complete}")
            scene.lose_everything()


# ---- Kills inside drains --------------------------------------------------------------------------------


def an_interrupted_drain_goes_on(settings):
    """kill -9 of the application inside its first drain, whose file is never recorded: the next start drains it all."""
    with Cluster(2) as cluster, ArchiveScene(cluster, settings, rate=2 * MIB) as scene:
        history = History()
        job = held_in_a_drain(scene, (1, 1), 7 * MIB)
        expect(ended(scene, job, history) == 0, "half a checkpoint is offered")
        scene.fast()
        with Watch(scene) as watch:
            job = scene.job(start=2, nodes=(1, 1), hold=2, wait_archived=2)
            job.must_see("archived")
            wait_until(lambda: scene.status().get("draining") is None, "the end of the drain")
            time.sleep(0.1)
            text = must_store_all(watch)
        promised = ended(scene, job, history)
        whole(scene, history, max(2, promised), (1, 1), start=3)
        return text


def starts_killed_at_random(settings, starts, look=lambda scene: None, **wishes):
    """kill -9 at random instants, at times of all nodes too: what was archived always comes back."""
    with Cluster(2, spares=1) as cluster, ArchiveScene(cluster, settings, rate=8 * MIB, **wishes) as scene:
        history, promised, lost = History(), 0, 0
        for start in range(1, starts + 1):
            job = scene.job(start=start, nodes=(1, 1), kib=1024, pause_us=30000)
            job.must_see("committed")
            time.sleep(settings.random.random() * 2)
            promised = max(promised, ended(scene, job, history))
            look(scene)
            if settings.random.random() < 0.3 and promised:
                scene.lose_everything()
                history.complete = min(history.complete, promised)
                # What comes back may be older than what was begun, and all newer ones are gone.
                lost += 1
        whole(scene, history, promised, (1, 1), start=starts + 1)
        return f"{starts} starts, {lost} losses of all nodes, {promised} steps archived"


def application_is_killed_at_random(settings):
    return starts_killed_at_random(settings, starts=6)


def differences_are_killed_at_random(settings):
    """The same while drains write differences to keys."""
    found = []

    def look(scene):
        done = scene.tool(0, "inspect", "--json", scene.archive / scene.name)
        if done.returncode == 0:
            for variable in json.loads(done.stdout)["variables"]:
                found.append((variable.get("stored") or {}).get("differences", 0))

    said = starts_killed_at_random(settings, 6, look, BACKSTAY_ARCHIVE_CODEC="auto", BACKSTAY_ARCHIVE_HISTORY=3)
    expect(sum(found) > 0, f"no drain wrote a difference: {found}")
    return f"{said}; {sum(found)} differences seen"


def an_agent_is_killed_inside_a_drain(settings):
    """The application goes on; the next start drains again, with threads there."""
    with Cluster(2) as cluster, ArchiveScene(cluster, settings, rate=2 * MIB, BACKSTAY_TIMEOUT_MS=5000) as scene:
        history = History()
        scene.start_agents([0, 1])
        job = scene.job(start=1, nodes=(1, 1), kib=8192, pause_us=100000)
        job.must_see("committed")
        scene.wait_inside(5 * MIB)
        victim = settings.random.choice([0, 1])
        scene.signal_agent(victim, signal.SIGKILL)
        committed = job.newest("committed")
        job.must_see("committed", word=committed + 5)
        promised = ended(scene, job, history)
        scene.fast()
        last = history.begun + 1
        job = scene.job(start=2, nodes=(1, 1), hold=last, wait_archived=last)
        job.must_see("archived")
        job.must_see("holding")
        promised = max(promised, ended(scene, job, history))
        expect(promised == last, f"{promised}, not {last}, is archived")
        whole(scene, history, promised, (1, 1), start=3)
        return f"agent {victim}"


def agents_drain_after_the_application(settings):
    """The application dies with a checkpoint on its nodes only: agent processes bring it to the archive."""
    with Cluster(2) as cluster, ArchiveScene(cluster, settings, rate=4 * MIB) as scene:
        history = History()
        scene.start_agents([0, 1])
        job = held_in_a_drain(scene, (1, 1), 3 * MIB)
        job.kill()
        scene.note(job)
        history.judge(job)
        scene.wait_archived(1)
        whole(scene, history, 1, (1, 1), start=2)


def a_server_is_killed_inside_a_drain(settings):
    """Its nodes take over; a server that is started again takes part."""
    with Cluster(3, spares=1) as cluster, ArchiveScene(cluster, settings, rate=2 * MIB, BACKSTAY_TIMEOUT_MS=5000) as scene:
        history = History()
        for name in ("s0", "s1"):
            scene.start_server(3, name)
        job = held_in_a_drain(scene, (1, 1, 1), 4 * MIB + MIB // 2, kib=4096)
        servers = {one["name"] for one in scene.status()["aggregators"]}
        expect(servers == {"s0", "s1"}, f"aggregators: {servers}")
        with Watch(scene) as watch:
            scene.signal_server("s0", signal.SIGKILL)
            scene.wait_archived(1, limit=90)
            text = must_store_all(watch)
        job.must_say("is left out")
        promised = ended(scene, job, history)
        expect(promised == 1, f"step {promised} is archived")
        scene.fast()
        job = scene.job(start=2, nodes=(1, 1, 1), pause_us=100000)
        job.must_see("committed")
        scene.wait_archived(2)
        scene.kill_server_place("s0")
        scene.start_server(3, "s0")
        wait_until(lambda: "takes part from now on" in job.text(), f"the new server: {job.text()[-2000:]}")
        before = scene.newest()[0]
        scene.wait_archived(before + 2)
        servers = {one["name"] for one in scene.status()["aggregators"]}
        expect("s0" in servers, f"aggregators: {servers}")
        promised = ended(scene, job, history)
        whole(scene, history, promised, (1, 1, 1), start=3)
        return text


def server_and_application_are_killed(settings):
    """Both at once inside a drain: the next start and its nodes bring the checkpoint to the archive."""
    with Cluster(2, spares=1) as cluster, ArchiveScene(cluster, settings, rate=2 * MIB) as scene:
        history = History()
        scene.start_server(2, "s0")
        job = held_in_a_drain(scene, (1, 1), 9 * MIB)
        scene.signal_server("s0", signal.SIGKILL)
        expect(ended(scene, job, history) == 0, "half a checkpoint is offered")
        scene.fast()
        with Watch(scene) as watch:
            job = scene.job(start=2, nodes=(1, 1), hold=2, wait_archived=2)
            job.must_see("archived", limit=90)
            text = must_store_all(watch)
        promised = ended(scene, job, history)
        whole(scene, history, max(2, promised), (1, 1), start=3)
        return text


def a_server_stalls(settings):
    """SIGSTOP: the application is not held up, its nodes drain themselves after the timeout."""
    with Cluster(2, spares=1) as cluster, ArchiveScene(cluster, settings, rate=4 * MIB, BACKSTAY_TIMEOUT_MS=2000) as scene:
        history = History()
        scene.start_server(2, "s0")
        job = scene.job(start=1, nodes=(1, 1), kib=4096, pause_us=50000)
        job.must_see("committed")
        scene.wait_inside(MIB)
        scene.signal_server("s0", signal.SIGSTOP)
        before, began = job.newest("committed"), time.monotonic()
        job.must_see("committed", word=before + 20)
        seconds = time.monotonic() - began
        expect(seconds < 20, f"20 checkpoints took {seconds:.1f} s")
        archived = scene.newest()[0]
        scene.wait_archived(archived + 1)
        job.must_say("is left out")
        scene.signal_server("s0", signal.SIGCONT)
        archived = scene.newest()[0]
        scene.wait_archived(archived + 2)
        promised = ended(scene, job, history)
        whole(scene, history, promised, (1, 1), start=2)
        return f"20 checkpoints meanwhile in {seconds:.1f} s"


PRETENDER = """
import os, socket, sys, time
how = sys.argv[1]
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("0.0.0.0", 4711))
server.listen()
print("ready", flush=True)
# A welcome of major version 9, whose body is empty.
newer = bytes.fromhex("424b53545749524509000000020000000000000000000000488e9d412324a808")
held = []
while True:
    one, _ = server.accept()
    held.append(one)
    if how == "silent":
        continue
    one.recv(65536)
    one.sendall(newer + bytes(8) if how == "newer" else os.urandom(4096))
    if how == "garbage":
        one.close()
"""


def servers_of_another_version(settings):
    """What answers as no server of ours does, or not at all, is left out, and said; nodes drain themselves."""
    with Cluster(2, spares=1) as cluster:
        for how in ("newer", "garbage", "silent", "gone"):
            with ArchiveScene(cluster, settings, job=how, BACKSTAY_TIMEOUT_MS=2000) as scene:
                scene.job_folder.mkdir()
                address = f"{cluster.address(2)}:4711"
                (scene.job_folder / "server-x.json").write_text(json.dumps({"name": "x", "address": address}))
                other = None
                if how != "gone":
                    other = cluster.start(2, [sys.executable, "-c", PRETENDER, how], stdout=subprocess.PIPE, text=True)
                    expect(other.stdout.readline() == "ready\n", "the pretender did not start")
                    other.stdout.close()
                job = scene.job(nodes=(1, 1), hold=2)
                job.must_see("holding")
                scene.wait_archived(2)
                job.must_say("server", "is left out")
                expect("panicked" not in job.text(), job.text())
                if how == "newer":
                    job.must_say("version")
                history = History()
                promised = ended(scene, job, history)
                if other:
                    cluster.clear_node(2)
                    other.wait(30)
                if how == "garbage":
                    whole(scene, history, promised, (1, 1), start=2)


# ---- The file system ------------------------------------------------------------------------------------


def archive_is_full(settings):
    """The application goes on; archive.json says what is missing; with room, draining goes on by itself."""
    with Cluster(2) as cluster, ArchiveScene(cluster, settings, settings.pfs.get(), BACKSTAY_TIMEOUT_MS=5000) as scene:
        history = History()
        # By a quota, before the first drain is done: growing the file fails.
        settings.pfs.get().limit(scene.outside, 4 * MIB)
        job = scene.job(start=1, nodes=(1, 1), kib=12 * 1024, pause_us=100000)
        job.must_see("committed")
        status = scene.wait_status("an error", lambda status: status.get("error"))
        expect("quota" in status["error"].lower() or "space" in status["error"].lower() or "full" in status["error"].lower(),
               f"it says {status['error']}")
        before = job.newest("committed")
        job.must_see("committed", word=before + 5)
        expect(scene.newest() == (0, 0), f"{scene.newest()} is archived")
        settings.pfs.get().limit(scene.outside, 0)
        scene.wait_archived(before)
        wait_until(lambda: scene.status().get("error") is None, "the error to be gone")
        # The servers are full: a sync fails.
        settings.pfs.get().fill()
        try:
            failures = scene.status()["failures"]
            status = scene.wait_status("an error", lambda status: status.get("error") and status["failures"] > failures)
            before = job.newest("committed")
            job.must_see("committed", word=before + 5)
            text = status["error"]
        finally:
            settings.pfs.get().make_room()
        archived = scene.newest()[0]
        scene.wait_archived(archived + 2)
        expect(scene.status()["error"] is None or scene.status()["drains"] > 0, f"{scene.status()}")
        job.must_say("is not in the archive yet", "draining goes on")
        promised = ended(scene, job, history)
        whole(scene, history, promised, (1, 1), start=2)
        return text[:160]


def archive_hangs(settings, seconds=20):
    """The application takes checkpoints meanwhile, draining goes on afterwards; a close does not wait for ever."""
    with Cluster(2) as cluster, ArchiveScene(cluster, settings, settings.pfs.get(), rate=4 * MIB,
                                             BACKSTAY_TIMEOUT_MS=4000) as scene:
        history, pfs = History(), settings.pfs.get()
        job = scene.job(start=1, nodes=(1, 1), kib=4096, pause_us=100000)
        job.must_see("committed")
        scene.wait_archived(1)
        timer = pfs.hang(seconds)
        began, before = time.monotonic(), job.newest("committed")
        while timer.is_alive():
            now = job.newest("committed")
            wait_until(lambda: job.newest("committed") > now, "a checkpoint while the archive hangs", 10)
        count = job.newest("committed") - before
        took = time.monotonic() - began
        expect(count >= took / 2, f"{count} checkpoints in {took:.1f} s")
        archived = scene.newest()[0]
        scene.wait_archived(archived + 2)
        promised = ended(scene, job, history)
        # A start that ends while it hangs.
        job = scene.job(start=2, nodes=(1, 1), steps=history.begun + 40, pause_us=100000)
        job.must_see("committed")
        pfs.pause()
        try:
            began = time.monotonic()
            job.must_see("closed", limit=90)
            closed = time.monotonic() - began
        finally:
            pfs.resume()
        job.end()
        scene.note(job)
        history.judge(job, killed=False)
        whole(scene, history, promised, (1, 1), start=3)
        return f"{count} checkpoints in {took:.1f} s; closed {closed:.1f} s after it began to hang"


def a_client_is_killed(settings):
    """The mount of a node is gone inside a drain: the application goes on, and so does draining with a new mount."""
    pfs = settings.pfs.get()
    with Cluster(2) as cluster, ArchiveScene(cluster, settings, pfs, rate=4 * MIB, BACKSTAY_TIMEOUT_MS=5000) as scene:
        history, texts = History(), []
        job = scene.job(start=1, nodes=(1, 1), kib=4096, pause_us=100000)
        job.must_see("committed")
        scene.wait_archived(1)
        for victim in settings.random.sample([0, 1], 2):
            wait_until(lambda: scene.status().get("draining"), "a drain")
            failures = scene.status()["failures"]
            pfs.kill_client(victim)
            try:
                status = scene.wait_status("an error", lambda status: status["failures"] > failures)
                texts.append(status.get("error") or "")
                before = job.newest("committed")
                job.must_see("committed", word=before + 3)
            finally:
                pfs.remount(victim)
                pfs.give(cluster, victim, victim)
            archived = scene.newest()[0]
            scene.wait_archived(archived + 2)
        promised = ended(scene, job, history)
        job = scene.job(start=2, nodes=(1, 1), pause_us=50000)
        job.must_see("committed")
        scene.wait_archived(job.newest("committed"))
        promised = max(promised, ended(scene, job, history))
        whole(scene, history, promised, (1, 1), start=3)
        return f"{texts[0][:120]}"


# ---- Damage ---------------------------------------------------------------------------------------------


# Copies of superblocks and roots of a store: where, and how much of it is never empty.
HEADS = ((0, 64), (4 << 10, (4 << 10) + 64))
ROOTS = ((16 << 10, (16 << 10) + 64), (32 << 10, (32 << 10) + 64))


def states(catalog):
    """The same of the two states of a catalog: its slots, which are all there is from 4 MiB on."""
    second = ((4 << 20) + catalog.stat().st_size) // 2
    return (4 << 20, (4 << 20) + 64), (second, second + 64)


def flip(path, chance, low, high, count):
    """Flips bits of bytes that are not 0 in a range of a file; how many."""
    bytes_ = bytearray(path.read_bytes())
    done = 0
    for _ in range(20000):
        at = chance.randrange(low, min(high, len(bytes_)))
        if bytes_[at]:
            bytes_[at] ^= 1 << chance.randrange(8)
            done += 1
        if done == count:
            break
    path.write_bytes(bytes_)
    return done


def bytes_are_flipped(settings):
    """In segments, roots and tables, one or all states of the catalog: right words, an older checkpoint, a refusal."""
    seen = []
    with Cluster(2) as cluster, ArchiveScene(cluster, settings, BACKSTAY_ARCHIVE_RETAINED=3) as scene:
        first = scene.job(start=1, nodes=(1, 1), hold=5, wait_archived=5, kib=512)
        first.must_see("holding")
        history = History()
        expect(ended(scene, first, history) == 5, "not all were archived")
        saved = scene.folder / "saved"
        shutil.copytree(scene.job_folder, saved)
        chance = random.Random(f"{settings.seed} {settings.turn} flips")
        for what in ("a segment", "many segments", "a root", "both roots", "the head", "a state", "both states",
                     "the catalog's head"):
            scene.lose_everything()
            shutil.rmtree(scene.job_folder)
            shutil.copytree(saved, scene.job_folder)
            victim = chance.choice(sorted(scene.job_folder.glob("aggregate-*")))
            catalog = sorted(scene.job_folder.glob("catalog-*"))[-1]
            if what == "a segment":
                flip(victim, chance, 128 << 10, 1 << 40, 1)
            elif what == "many segments":
                flip(victim, chance, 128 << 10, 1 << 40, 200)
            elif what == "a root":
                flip(victim, chance, *chance.choice(ROOTS), 1)
            elif what == "the head":
                flip(victim, chance, *chance.choice(HEADS), 1)
            elif what == "both roots":
                for place in ROOTS:
                    expect(flip(victim, chance, *place, 1) == 1, "no root there")
            elif what == "a state":
                expect(flip(catalog, chance, *chance.choice(states(catalog)), 1) == 1, "no state there")
            else:
                for place in states(catalog) if what == "both states" else HEADS:
                    expect(flip(catalog, chance, *place, 1) == 1, "nothing there")
            judged = History()
            judged.begun, judged.heard_all = history.begun, history.heard_all
            how, job, text = outcome(scene, judged, 0, (1, 1))
            came = job.restored()[1] if how == "restored" else how
            seen.append(f"{what}: {came}")
            expect(how != "fresh", f"{what}: began anew though there is an archive: {job.text()[-2000:]}")
            if how == "refused":
                expect("backstay" in text or "archive" in text or "catalog" in text, f"{what}: {text}")
            # A segment may be one that all of them need.
            if what in ("a root", "a state", "the head"):
                expect(how == "restored", f"{what}: {text}; {job.text()[-2000:]}")
            expect("panicked" not in job.text(), job.text()[-3000:])
    return "; ".join(seen)


# ---- Two jobs, clocks, retention ------------------------------------------------------------------------


def two_jobs_on_one_archive(settings):
    """The second one is refused while the first lives, on its nodes and on others, and not when it is dead."""
    pfs = settings.pfs.get()
    with Cluster(4) as cluster, ArchiveScene(cluster, settings, pfs, BACKSTAY_TIMEOUT_MS=5000) as scene:
        first = scene.job(start=1, nodes=(1, 1), hold=2, wait_archived=2)
        first.must_see("holding")
        for nodes in ((1, 1), {2: 1, 3: 1}):
            second = scene.job(start=1, nodes=nodes, store="/dev/shm/other")
            second.end()
            errors = second.all("error")
            expect(len(errors) == 2 and all(STORE_BUSY in " ".join(error.words) for error in errors),
                   f"not refused: {second.last_words()}")
        expect(first.process.poll() is None, "the first one ended")
        history = History()
        ended(scene, first, history)
        history.complete = 0
        third = scene.job(start=2, nodes={2: 1, 3: 1}, store="/dev/shm/third", steps=4)
        third.end()
        history.judge(third, killed=False)
        expect(third.restored() == (2, 2), f"the archive of the dead one: {third.last_words()}")


def clocks_jump(settings):
    """One start a day ahead, the next a day behind: neither drains nor restores see it."""
    with Cluster(2) as cluster, ArchiveScene(cluster, settings, BACKSTAY_ARCHIVE_RETAINED=3) as scene:
        real = settings.programs
        folder = scene.folder / "shifted"
        folder.mkdir()
        (folder / "shim.c").write_text(SHIM)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", folder / "shim.so", folder / "shim.c", "-ldl"], check=True)
        history, promised = History(), 0
        program = folder / "oracle_job.openmpi"
        scene.settings.programs = folder
        for start, days in enumerate((0, 1, -1, 0), 1):
            program.write_text(f"#!/bin/sh\nexec env LD_PRELOAD={folder}/shim.so CLOCK_SHIFT={86400 * days} "
                               f"{real}/oracle_job.openmpi \"$@\"\n")
            program.chmod(0o755)
            job = scene.job(start=start, nodes=(1, 1), hold=history.begun + 3, wait_archived=history.begun + 3)
            job.must_see("holding")
            expect(len(job.all("archived")) == 6, f"not all were archived: {job.last_words()}")
            # The application is told before the status is written.
            scene.wait_archived(max(int(event.words[0]) for event in job.all("archived")))
            written = scene.status()["written_unix_ns"] / 1e9
            expect(abs(written - time.time() - 86400 * days) < 3600, f"the clock was not shifted: {written}")
            promised = ended(scene, job, history)
            expect(promised == history.complete, f"{promised} archived, {history.complete} committed")
            if start in (1, 3):
                scene.lose_everything()
        whole(scene, history, promised, (1, 1), start=5)


def only_retained_ones_stay(settings):
    """Of 20 checkpoints as many as are asked for; files stay as large as those need, over starts on changing nodes."""
    with Cluster(2, spares=2) as cluster, ArchiveScene(cluster, settings, BACKSTAY_ARCHIVE_RETAINED=3) as scene:
        history, sizes = History(), []
        for start in range(1, 6):
            nodes = {0: 1, 1: 1} if start % 2 else {2: 1, 3: 1}
            scene.leader = next(iter(nodes))
            last = history.begun + (20 if start == 1 else 4)
            job = scene.job(start=start, nodes=nodes, hold=last, wait_archived=last, kib=512, fixed=1)
            job.must_see("holding", limit=90)
            promised = ended(scene, job, history)
            expect(promised == last, f"{promised} archived, not {last}")
            files = list(scene.job_folder.glob("aggregate-*"))
            sizes.append((len(files), sum(file.stat().st_size for file in files) // MIB))
            scene.lose_everything()
        expect(sizes[-1][0] <= 8 and sizes[-1][1] <= 4 * sizes[0][1], f"files, MiB: {sizes}")
        newest = max(number for number, _ in scene.steps)
        gone = scene.job(start=6, nodes=(1, 1), restore=newest - 3, fixed=1)
        gone.refused("restore", NOT_RETAINED)
        scene.lose_everything()
        there = scene.job(start=6, nodes=(1, 1), restore=newest - 2, hold=history.begun, steps=history.begun, fixed=1)
        there.must_see("verified")
        there.kill()
        expect(not there.all("wrong") and there.restored()[0] == newest - 2, there.last_words())
        return f"files, MiB after each start: {sizes}"


TESTS = [all_nodes_are_wiped, another_number_of_ranks, an_interrupted_drain_goes_on, application_is_killed_at_random,
         differences_are_killed_at_random, an_agent_is_killed_inside_a_drain, agents_drain_after_the_application, a_server_is_killed_inside_a_drain,
         server_and_application_are_killed, a_server_stalls, servers_of_another_version, archive_is_full,
         archive_hangs, a_client_is_killed, bytes_are_flipped, two_jobs_on_one_archive, clocks_jump,
         only_retained_ones_stay]


# ---- Soak -----------------------------------------------------------------------------------------------


class Round:
    """A job of several starts on a CephFS, with faults at random instants; all from one seed."""

    def __init__(self, settings, number):
        self.settings, self.chance = settings, random.Random(f"{settings.seed} round {number}")
        self.pfs, self.said, self.starts = settings.pfs.get(), [], 0
        self.agents = self.chance.random() < 0.4
        self.servers = self.chance.choice([0, 0, 1, 2])
        self.rate = self.chance.choice([None, 4 * MIB, 16 * MIB])
        self.kib = self.chance.choice([256, 1024, 4096])
        differences = {"BACKSTAY_ARCHIVE_CODEC": "auto", "BACKSTAY_ARCHIVE_HISTORY": self.chance.choice([1, 4])}
        self.codec = self.chance.choice([{}, differences])

    def run(self):
        with Cluster(3, spares=1) as cluster, ArchiveScene(
                cluster, self.settings, self.pfs, rate=self.rate, BACKSTAY_TIMEOUT_MS=5000,
                BACKSTAY_ARCHIVE_RETAINED=self.chance.choice([1, 2, 5]), **self.codec) as self.scene:
            history, promised, starts = History(), 0, self.chance.randrange(2, 5)
            for start in range(1, starts + 1):
                promised = max(promised, self.live(start, history))
                if promised and self.chance.random() < 0.4:
                    self.said.append("all nodes lost")
                    self.scene.lose_everything()
                    history.complete = min(history.complete, promised)
            whole(self.scene, history, promised, (1, 1, 1), start=starts + 1)
            return promised

    def live(self, start, history):
        scene = self.scene
        for name in [f"s{at}" for at in range(self.servers)]:
            process, _ = scene.servers.get(name, (None, 0))
            if process is None or process.poll() is not None:
                scene.start_server(3, name)
        if self.agents:
            scene.start_agents([index for index in range(3) if scene.agent_pid(index) is None])
        job = scene.job(start=start, nodes=(1, 1, 1), kib=self.kib, pause_us=50000)
        try:
            job.must_see("committed")
            for _ in range(self.chance.randrange(1, 4)):
                time.sleep(self.chance.random() * 3)
                self.fault()
                before = job.newest("committed")
                wait_until(lambda: job.newest("committed") > before, f"checkpoints after {self.said[-1]}")
            time.sleep(self.chance.random() * 4)
        finally:
            promised = ended(scene, job, history)
            self.starts += 1
        return promised

    def fault(self):
        """One fault, and its end."""
        scene, pfs, chance = self.scene, self.pfs, self.chance
        some = [self.hang, self.lose_client, self.fill, self.nothing]
        some += [self.kill_server, self.stall_server] if scene.servers else []
        some += [self.kill_agent] if self.agents else []
        what = chance.choice(some)
        self.said.append(what.__name__)
        what(scene, pfs, chance)

    @staticmethod
    def nothing(*unused):
        pass

    @staticmethod
    def hang(scene, pfs, chance):
        kind = chance.choice(["osd", "mds"])
        pfs.pause(kind)
        try:
            time.sleep(chance.random() * 15)
        finally:
            pfs.resume(kind)

    @staticmethod
    def lose_client(scene, pfs, chance):
        victim = chance.randrange(4)
        pfs.kill_client(victim)
        try:
            time.sleep(chance.random() * 5)
        finally:
            pfs.remount(victim)
            pfs.give(scene.cluster, victim, victim)

    @staticmethod
    def fill(scene, pfs, chance):
        pfs.fill()
        try:
            time.sleep(chance.random() * 5)
        finally:
            pfs.make_room()

    @staticmethod
    def kill_server(scene, pfs, chance):
        name = chance.choice(sorted(scene.servers))
        scene.kill_server_place(name)
        if chance.random() < 0.5:
            scene.start_server(3, name)

    @staticmethod
    def stall_server(scene, pfs, chance):
        name = chance.choice(sorted(scene.servers))
        if scene.servers[name][0].poll() is None:
            scene.signal_server(name, signal.SIGSTOP)
            time.sleep(chance.random() * 20)
            scene.signal_server(name, signal.SIGCONT)

    @staticmethod
    def kill_agent(scene, pfs, chance):
        victim = chance.randrange(3)
        if scene.agent_pid(victim) is not None:
            scene.signal_agent(victim, signal.SIGKILL)


def soak(settings):
    """Rounds until the time is over; the exit status. A round that fails is repeated by --seed and --round."""
    record, start = Record(settings.record, "soak-archive"), time.monotonic()
    end, number, failed, counts = start + settings.soak, settings.round, 0, Counter()
    while time.monotonic() < end or number == settings.round:
        one, began = Round(settings, number), time.monotonic()
        outcome_, text = "ok", ""
        try:
            text = f"step {one.run()} archived"
        except Exception as error:                  # told like the others, and the next round goes on
            outcome_, text = "FAILED", f"--seed {settings.seed} --round {number}: {type(error).__name__}: {error}"
            settings.pfs.close()
        failed += outcome_ == "FAILED"
        counts.update(one.said)
        counts["starts killed"] += one.starts
        print(f"{outcome_:8}round {number}, {time.monotonic() - began:.1f} s: agents {one.agents}, servers "
              f"{one.servers}, {', '.join(one.said)}: {text}", flush=True)
        number += 1
    counts = {what.replace("_", " "): count for what, count in counts.items()}
    record.write(time.monotonic() - start, number - settings.round - failed, failed, counts)
    print(f"{number - settings.round - failed} passed, {failed} failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2] / "target" / "cluster")
    parser.add_argument("--only", default="", help="tests whose function's name matches this expression")
    parser.add_argument("--soak", type=int, default=0, help="faults at random instants, for so many seconds")
    parser.add_argument("--repeat", type=int, default=1, help="all of the tests so often")
    parser.add_argument("--record", type=pathlib.Path, help="file for what a soak did and survived")
    parser.add_argument("--seed", type=int, help="where random choices begin")
    parser.add_argument("--round", type=int, default=0, help="the round of a soak to begin with")
    settings = parser.parse_args()
    settings.programs = settings.programs.resolve()
    if settings.seed is None:
        settings.seed = random.randrange(1 << 30) if settings.soak or settings.repeat > 1 else 1
    print(f"seed {settings.seed}", flush=True)
    settings.pfs = Pfs()
    status, settings.turn = 0, 0
    try:
        if settings.soak:
            return soak(settings)
        for settings.turn in range(max(1, settings.repeat)):
            settings.random = random.Random(f"{settings.seed} {settings.turn}")
            status |= run_all(TESTS, settings)
    finally:
        settings.pfs.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
