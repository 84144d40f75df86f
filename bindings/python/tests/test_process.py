# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Processes: forks, threads, and what a thousand sessions leave behind."""

import gc
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import numpy
import pytest

import backstay


def in_a_child(body):
    """Exit status of a child made by fork that runs `body`."""
    pid = os.fork()
    if pid == 0:
        status = 9
        try:
            status = body() or 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def is_refused(session, *calls):
    """What a child does with the session of its parent: its exit status is 0 where all calls are refused for that."""
    def child():
        for call in calls:
            try:
                call()
            except backstay.InvalidArgument as error:
                assert "fork" in str(error)
            else:
                return 1
        session.__del__()
        return 0

    return in_a_child(child) == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_made_by_fork_has_no_part_in_the_session():
    cells = numpy.zeros(1000)
    session = backstay.open()
    session.protect("cells", cells)
    session.checkpoint()

    assert is_refused(session, session.checkpoint, session.due, session.close)
    cells += 1
    assert session.checkpoint().number == 2
    session.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_made_by_fork_while_a_thread_captures_waits_for_nothing():
    cells = numpy.zeros(10_000_000)
    session = backstay.open()
    session.protect("cells", cells)

    for _ in range(5):
        cells += 1
        started = session._start(stays=True)
        assert is_refused(session, session.due)
        assert started.wait().bytes_changed == 80_000_000
    session.close()


ENDS = """
import sys
import backstay, numpy

session = backstay.open()
cells = numpy.ones(10_000_000)
session.protect("cells", cells)
session.checkpoint()
cells += 1
session._start(stays=True)
if sys.argv[1] == "raise":
    raise SystemExit(7)
if sys.argv[1] == "close":
    session.close()
if sys.argv[1] == "drop":
    del session
"""


@pytest.mark.parametrize("how, newest", [("raise", 1), ("end", 1), ("drop", 1), ("close", 2)])
def test_a_program_may_end_while_a_thread_captures(how, newest, store):
    program = subprocess.run([sys.executable, "-c", ENDS, how], timeout=60, check=False)
    assert program.returncode == (7 if how == "raise" else 0)
    with backstay.open() as session:
        cells = numpy.zeros(10_000_000)
        session.protect("cells", cells)
        number = session.restore().number
        # One that was captured may be durable though nobody waited.
        assert newest <= number <= 2
        assert (cells == number).all()


ORPHAN = """
import os, signal, sys, time

late = sys.argv[3] == "late"
if late:
    # What is registered first comes first: the child keeps for a while what it is to let go.
    os.register_at_fork(after_in_child=lambda: time.sleep(4))
import backstay, numpy

session = backstay.open(archive=sys.argv[1])
session.protect("cells", numpy.zeros(1000))
session.checkpoint_start().wait("archive")
let_go, runs = os.pipe()
child = os.fork()
if child == 0:
    os.write(runs, b"x")
    time.sleep(600)
if not late:
    os.read(let_go, 1)
with open(sys.argv[2], "w") as told:
    told.write(str(child))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["at once", "late"])
def test_a_child_that_outlives_a_killed_program_does_not_keep_its_locks(how, tmp_path):
    archive = tmp_path / "archive"
    archive.mkdir()
    told = tmp_path / "orphan"
    program = subprocess.run([sys.executable, "-c", ORPHAN, str(archive), str(told), how], timeout=60, check=False)
    orphan = int(told.read_text())
    try:
        assert program.returncode == -signal.SIGKILL
        locks = [os.readlink(link) for link in pathlib.Path(f"/proc/{orphan}/fd").iterdir()]
        kept = [path for path in locks if "backstay" in path or path.endswith("/running")]
        assert bool(kept) == (how == "late"), locks
        # Who opens next waits for one that is about to let go.
        with backstay.open(archive=archive) as session:
            session.protect("cells", numpy.ones(1000))
            assert session.restore().number == 1
            assert session.checkpoint_start().wait("archive").number == 2
    finally:
        os.kill(orphan, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_is_made_while_another_thread_is_inside_does_not_hang():
    cells = numpy.zeros(5_000_000)
    with backstay.open() as session:
        session.protect("cells", cells)
        stop = threading.Event()

        def work():
            while not stop.is_set():
                cells[::1000] += 1
                session.checkpoint()

        worker = threading.Thread(target=work)
        worker.start()

        def child():
            try:
                session.due()
            except backstay.InvalidArgument:
                return 0
            return 1

        try:
            assert [in_a_child(child) for _ in range(20)] == [0] * 20
        finally:
            stop.set()
            worker.join()


def test_threads_take_turns():
    cells = numpy.zeros(100_000)
    with backstay.open() as session:
        session.protect("cells", cells)
        numbers, errors = [], []

        def work():
            try:
                for _ in range(20):
                    numbers.append(session.checkpoint().number)
                    session.mark_dirty("cells", 5)
            except Exception as error:  # noqa: BLE001
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors and sorted(numbers) == list(range(1, 81))


def test_other_threads_run_while_a_checkpoint_waits():
    """The interpreter's lock is let go: a thread counts on during the calls."""
    cells = numpy.zeros(20_000_000)
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1

    with backstay.open() as session:
        session.protect("cells", cells)
        counter = threading.Thread(target=count)
        counter.start()
        try:
            before = counted[0]
            for _ in range(5):
                session.checkpoint()
            assert counted[0] > before + 1000
        finally:
            stop.set()
            counter.join()


def test_a_thousand_sessions_leave_nothing_behind(store):
    def once(closes):
        cells = numpy.zeros(2000)
        session = backstay.open()
        session.protect("cells", cells)
        session.protect_object("state", lambda: {"n": 1}, lambda value: None)
        session.checkpoint()
        session.close() if closes else session.abandon()
        shutil.rmtree(store / "test", ignore_errors=True)

    def held():
        gc.collect()
        status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
        return (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")),
                int(status["VmRSS"].split()[0]) // 1024)

    for _ in range(20):
        once(True)
        once(False)
    descriptors, threads, resident_mib = held()
    for _ in range(500):
        once(True)
        once(False)
    later = held()
    assert later[0] <= descriptors and later[1] <= threads + 1
    assert later[2] < resident_mib + 40


def test_the_module_runs_the_command_line_if_there_is_one(tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path)}
    run = [sys.executable, "-m", "backstay", "--version"]
    missing = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert missing.returncode == 1 and "not on the path" in missing.stderr
    program = tmp_path / "backstay"
    program.write_text("#!/bin/sh\necho \"ran $@\"\n")
    program.chmod(0o755)
    found = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert found.stdout == "ran --version\n"
