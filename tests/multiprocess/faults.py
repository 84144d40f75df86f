# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Stopped processes, several nodes, full and read-only file systems, locks, odd surroundings."""

import os
import pathlib
import shutil
import signal
import struct
import subprocess
import time

from job import History, Skip, expect
from store_file import StoreFile

INVALID_CONFIGURATION, STORE_FULL, STORE_BUSY, STORE_IO, NOT_RETAINED = 12, 20, 21, 22, 31
MIB = 1 << 20


def store_path(folder, node=None, job="oracle"):
    """The store of a job below `folder`; of one node if there are several."""
    found = sorted((pathlib.Path(folder) / job).glob(f"{node or '*'}/store.backstay"))
    expect(found, f"no store below {folder}")
    return found[0]


def newest(path):
    """Number of the newest checkpoint in the roots of a store."""
    try:
        return max((revision.number for revision in StoreFile(path).revisions()), default=0)
    except struct.error:              # it is being made
        return 0


# ---- Stopped -------------------------------------------------------------------------------------------


def stopped(place, rank, late, signalled, environment, **options):
    """Stops `rank` in the checkpoint of step 4, for which rank `late` comes two seconds late: MPICH waits
    with all its processes running, so that this one may have to wait long for a processor."""
    job = place.job(environment=environment, late=f"{late}:4:2000", **options)
    job.must_see("begin", 1, rank=rank, word=4)
    time.sleep(0.15)                  # it captures within some milliseconds, and waits for the late one
    job.signal(rank, signalled)
    job.must_see("begin", 1, rank=late, word=4)
    return job


def must_restore(place, history, step=None, **options):
    job = place.job(start=history.starts + 1, steps=history.begun + 2, **options)
    job.end()
    restored = [int(e.words[2]) for e in job.all("restored")]
    history.judge(job, killed=False)
    if step is not None:
        expect(set(restored) == {step}, f"restored {restored}, not {step}")


def one_stopped_then_all_killed(place):
    """A rank that does not lead is stopped with its part captured: its node's leader commits."""
    history = History()
    job = stopped(place, 2, 3, signal.SIGSTOP, {"BACKSTAY_TIMEOUT_MS": "4000"})
    wait_for_commit(job, store_path(place.folder / "store"), 4)
    job.kill()
    history.judge(job)
    must_restore(place, history, step=4)


def leader_stopped_then_all_killed(place):
    """The leader is stopped before it commits: its successor does."""
    history = History()
    job = stopped(place, 0, 3, signal.SIGSTOP, {"BACKSTAY_TIMEOUT_MS": "4000"})
    wait_for_commit(job, store_path(place.folder / "store"), 4)
    wait_until_said(job, "taking over")
    job.kill()
    history.judge(job)
    must_restore(place, history, step=4)


def leader_stopped_and_continued(place):
    """The leader goes on after its successor committed for it: so does the job, for many checkpoints."""
    history = History()
    job = stopped(place, 0, 3, signal.SIGSTOP, {"BACKSTAY_TIMEOUT_MS": "4000"}, steps=12)
    wait_for_commit(job, store_path(place.folder / "store"), 4)
    job.signal(0, signal.SIGCONT)
    job.end()
    expect(not job.all("failed"), f"a checkpoint failed; {job.last_words()}")
    history.judge(job, killed=False)
    must_restore(place, history, step=12)


def a_late_rank_is_no_reason_to_take_over(place):
    """A rank that comes late, but within the limit, costs time and nothing else."""
    job = place.job(environment={"BACKSTAY_TIMEOUT_MS": "4000"}, late="3:4:2600", steps=6)
    job.closes()
    expect(not job.all("failed"), f"a checkpoint failed; {job.last_words()}")
    expect("taking over" not in job.text(), f"somebody took over: {job.text()}")


def stopped_before_its_part(place):
    """A rank is stopped before it captured: no checkpoint, and no hang in what is ours."""
    history = History()
    job = place.job(environment={"BACKSTAY_TIMEOUT_MS": "1000"}, late="1:4:1500")
    job.must_see("begin", 1, rank=2, word=4)
    job.signal(1, signal.SIGSTOP)
    time.sleep(2)
    job.signal(1, signal.SIGCONT)
    job.must_see("committed", word=None, count=8 * 4)
    expect({e.words[1] for e in job.all("failed")} == {"40"}, f"expected time limits; {job.last_words()}")
    job.kill()
    history.judge(job)
    must_restore(place, history)


def wait_for_commit(job, path, number):
    end = time.monotonic() + 20
    while newest(path) < number:
        expect(time.monotonic() < end, f"nobody committed checkpoint {number}; {job.last_words()}")
        time.sleep(0.02)


def wait_until_said(job, words):
    """What a process says comes through pipes of the launcher, later than what it does to a store."""
    end = time.monotonic() + 20
    while words not in job.text():
        expect(time.monotonic() < end, f"nobody says {words!r}: {job.text()}")
        time.sleep(0.02)


def watchdog_names_rank_and_operation(place):
    job = place.job(environment={"BACKSTAY_WATCHDOG_MS": "300"}, late="2:3:1500", steps=4, nodes=(2, 2))
    job.closes()
    for rank in (0, 1):
        said = [line for line in job.text().splitlines()
                if f"rank {rank} has been in the communicator" in line]
        expect(any("checkpoint 3" in line for line in said), f"rank {rank} reports nothing: {job.text()}")


# ---- Several nodes -------------------------------------------------------------------------------------


def two_nodes(place, steps, start=1, **options):
    return place.job(nodes=(2, 2), steps=steps, start=start, **options)


def store_of_one_node_removed(place):
    two_nodes(place, 5).closes()
    shutil.rmtree(store_path(place.folder / "store", "node1").parent)
    two_nodes(place, 8, start=2).refused("restore", NOT_RETAINED, r"rank 2|node1", "checkpoint")


def store_of_one_node_from_an_older_moment(place):
    """With a checkpoint that the others still have it goes on from there; else all ranks are told."""
    folder, history = place.folder / "store", History()
    job = two_nodes(place, 100000)
    job.must_see("committed", 4 * 5)
    for node in ("node0", "node1"):
        job.signal(0 if node == "node0" else 2, signal.SIGSTOP)
    time.sleep(0.1)
    shutil.copytree(folder / "oracle" / "node1", place.folder / "older")
    for rank in (0, 2):
        job.signal(rank, signal.SIGCONT)
    then = max(int(e.words[0]) for e in job.all("begin"))
    job.must_see("committed", 4 * (then + 6))
    job.kill()
    history.judge(job)
    shutil.rmtree(folder / "oracle" / "node1")
    shutil.copytree(place.folder / "older", folder / "oracle" / "node1")
    two_nodes(place, 1, start=2).refused("restore", NOT_RETAINED, "checkpoint", r"rank [23]", "node1")


def stores_of_two_nodes_exchanged(place):
    folder = place.folder / "store" / "oracle"
    two_nodes(place, 5).closes()
    (folder / "node0").rename(folder / "other")
    (folder / "node1").rename(folder / "node0")
    (folder / "other").rename(folder / "node1")
    # Each rank finds its part on the other node, every word of it checked.
    job = two_nodes(place, 8, start=2)
    job.closes()
    expect(len(job.all("restored")) == 4, f"not restored on all ranks; {job.last_words()}")


def store_of_one_node_from_another_run(place):
    """Two runs of the same name: their checkpoints have the same numbers and are never mixed."""
    folder = place.folder / "store"
    for run, seed in (("first", place.seed), ("second", place.seed)):
        two_nodes(place, 5, start=1 if run == "first" else 2, seed=seed).closes()
        if run == "first":
            folder.rename(place.folder / "first")
    shutil.rmtree(folder / "oracle" / "node1")
    shutil.copytree(place.folder / "first" / "oracle" / "node1", folder / "oracle" / "node1")
    job = two_nodes(place, 8, start=3)
    job.end()
    expect(not job.all("mix") and not job.all("wrong"), f"two runs were mixed; {job.last_words()}")
    expect(len(job.all("error")) == 4, f"not refused on all ranks; {job.last_words()}")


def nodes_abandon_what_only_one_committed(place):
    """Node 0 commits 7, all are killed; from 6, node 1 commits another 7, all are killed."""
    history = History()
    for start, (late, leader) in enumerate([(2, "node0"), (0, "node1")], 1):
        number = 4 if start == 1 else history.complete + 1
        job = two_nodes(place, 100000, start=start, late=f"{late}:{number}:3000")
        wait_for_commit(job, wait_for_store(place.folder / "store", leader), number)
        job.kill()
        history.judge(job)
    job = two_nodes(place, history.begun + 2, start=3)
    job.end()
    history.judge(job, killed=False)


def wait_for_store(folder, node):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found = folder / "oracle" / node / "store.backstay"
        if found.exists():
            return found
        time.sleep(0.01)
    raise Skip(f"no store of {node}")


# ---- Full, missing, read-only -------------------------------------------------------------------------


def full_on_growth(place):
    """More than fits: an error that says how much is short; without it the job goes on."""
    small = place.folder / "a small file system"
    place.mount(small, "-t", "tmpfs", "-o", "size=56m", "backstay-test")
    history = History()
    job = place.job(store=small, ballast="5:16", fixed=1, steps=60)
    job.must_see("failed")
    job.must_see("committed", 4 * 8)
    job.kill()
    for event in job.all("failed"):
        expect(event.words[1] == str(STORE_FULL), f"status {event.words[1]}: {' '.join(event.words)}")
        expect("short by" in " ".join(event.words), f"it does not say how much is short: {' '.join(event.words)}")
    expect(len(job.all("failed")) == 4, f"one failure on each rank; {job.last_words()}")
    history.judge(job)
    must_restore(place, history, store=small, fixed=1)


def full_from_the_first(place):
    """The first checkpoint does not fit; a smaller one does."""
    small = place.folder / "small"
    place.mount(small, "-t", "tmpfs", "-o", "size=56m", "backstay-test")
    history = History()
    job = place.job(store=small, ballast="1:16", fixed=1, steps=60)
    job.must_see("committed", 4 * 4)
    job.kill()
    failed = [" ".join(e.words) for e in job.all("failed")]
    expect(len(failed) == 4 and all(f.startswith(f"1 {STORE_FULL} ") for f in failed),
           f"expected one STORE_FULL on each rank; {failed} {job.last_words()}")
    expect(all("short" in f for f in failed), f"it does not say how much is short: {failed}")
    history.judge(job)
    must_restore(place, history, store=small, fixed=1)


def reserve_smaller_than_the_data(place):
    job = place.job(environment={"BACKSTAY_RESERVE_BYTES": str(2 * MIB)}, steps=2)
    job.closes()
    failed = [" ".join(e.words) for e in job.all("failed")]
    expect(len(failed) == 8, f"every checkpoint fails on every rank; {job.last_words()}")
    for text in failed:
        expect(text.split(" ")[1] == str(STORE_FULL) and "short by" in text and "reserve_bytes" in text, text)


def control_group():
    """Makes a group that may be limited, below that of this process; None where that is not allowed."""
    groups = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    paths = {controllers: group for _, controllers, group in (line.split(":", 2) for line in groups)}
    name = f"backstay-test-{os.getpid()}"
    v1 = next((group for names, group in paths.items() if "memory" in names.split(",")), None)
    candidates = []
    if v1 is not None:
        candidates.append((pathlib.Path("/sys/fs/cgroup/memory" + v1) / name, "memory.limit_in_bytes"))
    if "" in paths:
        candidates.append((pathlib.Path("/sys/fs/cgroup" + paths[""]) / name, "memory.max"))
    for folder, limit in candidates:
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / limit).exists():
            return folder, folder / limit
        folder.rmdir()
    raise Skip("no control group for memory can be made here")


def memory_limit_below_the_reserve(place):
    folder, limit = control_group()
    place.undo.append(folder.rmdir)
    try:
        limit.write_text(str(320 * MIB))
    except OSError as error:
        raise Skip(f"{limit} cannot be set: {error}") from None
    if not str(place.folder).startswith("/dev/shm"):
        raise Skip("there is no /dev/shm")
    join = ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh"]
    job = place.job(prefix=join, ballast="1:24", fixed=1, steps=6)
    job.closes()
    failed = [" ".join(e.words) for e in job.all("failed")]
    expect(job.all("failed"), f"{limit} is lower than what is protected; {job.last_words()}")
    expect(all(f"{STORE_FULL}" == f.split(" ")[1] for f in failed), f"{failed}")
    expect(all("short" in f for f in failed), f"it does not say how much is short: {failed}")


def read_only(place):
    folder = place.folder / "read only"
    place.mount(folder, "-t", "tmpfs", "-o", "size=64m", "backstay-test")
    place.job(store=folder, steps=3).closes()
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    place.job(store=folder, start=2).refused("open", STORE_IO, r"[Rr]ead-only", "read only")
    subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)
    history = History()
    history.complete = history.begun = 3
    must_restore(place, history, step=3, store=folder)


def missing_folder(place):
    place.job(store=place.folder / "is" / "not" / "there").refused(
        "open", INVALID_CONFIGURATION, "store_path", "does not exist", "is/not")


def store_path_is_a_file(place):
    file = place.folder / "a file"
    file.write_text("no folder")
    place.job(store=file).refused("open", INVALID_CONFIGURATION, "store_path", "not a folder", "a file")


# ---- Locks -----------------------------------------------------------------------------------------------


def two_jobs_at_once(place):
    first = place.job()
    first.must_see("committed", 4 * 2)
    second = place.job()
    second.refused("open", STORE_BUSY, "job oracle", rf"process {first.pids[0]}\b")
    count = len(first.all("committed"))
    first.must_see("committed", count + 8)
    first.kill()
    history = History()
    history.judge(first)
    must_restore(place, history)


def lock_of_a_dead_job(place):
    history = History()
    job = place.job()
    job.must_see("committed", 4 * 2)
    job.kill()
    history.judge(job)
    lock = store_path(place.folder / "store").parent / "lock.backstay"
    expect(f"process {job.pids[0]}" in lock.read_text(), f"the lock says {lock.read_text()!r}")
    must_restore(place, history)


def a_rank_that_survives_its_job(place):
    """A rank of the former start still runs, stopped: the next one does not write beside it."""
    job = place.job()
    job.must_see("committed", 4 * 2)
    job.signal(3, signal.SIGSTOP)
    send = [job.process.pid, *(job.pids[rank] for rank in (0, 1, 2))]
    # A stopped rank would be killed by its launcher, which is therefore stopped too.
    for pid in sorted(set(job.alive()) - {job.pids[3], *send}):
        os.kill(pid, signal.SIGSTOP)
    os.kill(job.process.pid, signal.SIGSTOP)
    for rank in (0, 1, 2):
        job.signal(rank, signal.SIGKILL)
    second = place.job(start=2)
    second.refused("open", STORE_BUSY, "earlier start")
    job.kill()
    history = History()
    history.judge(job)
    must_restore(place, history)


# ---- Surroundings ----------------------------------------------------------------------------------------


def nothing_in_the_environment(place):
    history = History()
    unset = ("HOME", "USER", "LOGNAME", "LC_ALL", "BACKSTAY_JOB")
    for start in (1, 2):
        job = place.job(start=start, steps=3 * start, unset=unset, environment={"LANG": "C"})
        job.end()
        history.judge(job, killed=False)
        expect(history.complete == 3 * start, f"step {history.complete} in start {start}")


def odd_paths(place):
    store = place.folder / "a folder \u00fcber \u6d77, with 'quotes'"
    history = History()
    for start in (1, 2):
        job = place.job(store=store, job="job n\u00b0 1 \u2014 test", start=start, steps=3 * start,
                        environment={"LANG": "C"})
        job.end()
        history.judge(job, killed=False)
        expect(history.complete == 3 * start, f"step {history.complete} in start {start}")


def deleted_current_folder(place):
    history = History()
    for start in (1, 2):
        job = place.job(start=start, steps=3 * start, no_folder=1, unset=("BACKSTAY_JOB",))
        job.end()
        history.judge(job, killed=False)
        expect(history.complete == 3 * start, f"step {history.complete} in start {start}")


TESTS = [
    one_stopped_then_all_killed, leader_stopped_then_all_killed, leader_stopped_and_continued,
    a_late_rank_is_no_reason_to_take_over, stopped_before_its_part, watchdog_names_rank_and_operation,
    store_of_one_node_removed, store_of_one_node_from_an_older_moment, stores_of_two_nodes_exchanged,
    store_of_one_node_from_another_run, nodes_abandon_what_only_one_committed,
    full_on_growth, full_from_the_first, reserve_smaller_than_the_data, memory_limit_below_the_reserve,
    read_only, missing_folder, store_path_is_a_file,
    two_jobs_at_once, lock_of_a_dead_job, a_rank_that_survives_its_job,
    nothing_in_the_environment, odd_paths, deleted_current_folder,
]
MAIN = [leader_stopped_then_all_killed, store_of_one_node_removed, full_on_growth, two_jobs_at_once]
