# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Jobs of mpi4py under Open MPI and MPICH: killed with kill -9 at random instants, every word checked."""

import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

JOB = pathlib.Path(__file__).with_name("mpi_job.py")
CALLS = pathlib.Path(__file__).with_name("mpi_calls.py")
LIMIT_SECONDS = 120
KILLS = int(os.environ.get("KILLS", "6"))

pytest.importorskip("mpi4py")


class Mpi:
    """How a job is run under one of them."""

    def __init__(self, kind, folder):
        self.kind, self.launcher = kind, shutil.which(f"mpirun.{kind}")
        if self.launcher is None:
            pytest.fail(f"mpirun.{kind} is not installed: make setup")
        self.environment = {**os.environ, "MPI4PY_MPIABI": kind, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
        if kind == "mpich":
            # Debian's has another file name than the ABI that mpi4py asks for.
            library = re.search(r"libmpich\.so\.12 .*=> (\S+)", subprocess.run(
                ["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout)
            (folder / "mpich").mkdir()
            (folder / "mpich" / "libmpi.so.12").symlink_to(library[1])
            self.environment["LD_LIBRARY_PATH"] = str(folder / "mpich")

    def start(self, ranks, *arguments, program=JOB):
        return subprocess.Popen(
            [self.launcher, "-n", str(ranks), sys.executable, program, *arguments], env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


@pytest.fixture(params=["openmpi", "mpich"])
def mpi(request, tmp_path, store):
    return Mpi(request.param, tmp_path)


def test_gather_and_broadcast_in_pieces(mpi):
    job = mpi.start(3, program=CALLS)
    said, _ = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, said


def kill_all(job):
    """Every process of the job at one instant, its launcher too."""
    os.killpg(job.pid, signal.SIGSTOP)
    mine = [str(job.pid)]
    for pid in (entry for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            command = pathlib.Path("/proc", pid, "cmdline").read_bytes()
        except OSError:
            continue
        if str(JOB).encode() in command and os.environ["BACKSTAY_STORE_PATH"].encode() in environment_of(pid):
            mine.append(pid)
    for pid in mine:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        os.killpg(job.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def environment_of(pid):
    try:
        return pathlib.Path("/proc", pid, "environ").read_bytes()
    except OSError:
        return b""


def finish(job):
    text = job.communicate(timeout=LIMIT_SECONDS)[0]
    assert job.returncode == 0 and "WRONG" not in text, text
    return text


@pytest.mark.parametrize("background", [False, True], ids=["waiting", "background"])
def test_every_word_is_what_it_was_after_each_kill(mpi, background):
    arguments = ["--background"] if background else []
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw, steps = random.Random(seed), []
    for start in range(KILLS):
        job = mpi.start(3, *arguments)
        told = []
        for line in job.stdout:
            told.append(line)
            if ("fresh" not in line) and (line.split()[1:2] == ["under"] or "restored" in line):
                break
        assert not any("WRONG" in line for line in told), told
        assert any(word in "".join(told) for word in ("restored", "under way")), told
        time.sleep(draw.uniform(0, 0.6))
        kill_all(job)
        text = "".join(told) + job.communicate(timeout=LIMIT_SECONDS)[0]
        assert "WRONG" not in text and "Traceback" not in text, text
        steps += [int(found) for found in re.findall(r"restored \d+ step (\d+)", text)]
        if start:
            assert steps, text
    assert steps == sorted(steps), f"a restart went further back than the one before it: {steps}"
    text = finish(mpi.start(3, "--steps", str(steps[-1] + 200), *arguments))
    restored = re.findall(r"restored \d+ step (\d+)", text)
    assert len(restored) == 3 and len(set(restored)) == 1 and int(restored[0]) >= steps[-1], text
    assert text.count("closed") == 3


def test_a_closed_job_goes_on(mpi):
    assert finish(mpi.start(2, "--steps", "5")).count("closed 5") == 2
    text = finish(mpi.start(2, "--steps", "9"))
    assert text.count("step 5") == 2 and text.count("closed 9") == 2


def test_an_exception_on_one_rank_ends_the_job(mpi, tmp_path):
    program = tmp_path / "one.py"
    program.write_text(
        "import backstay, numpy\n"
        "from mpi4py import MPI\n"
        "comm, cells = MPI.COMM_WORLD, numpy.zeros(1000)\n"
        "with backstay.open(comm=comm) as session:\n"
        "    session.protect('cells', cells)\n"
        "    session.checkpoint()\n"
        "    if comm.rank == 1:\n"
        "        print('raising', flush=True)\n"
        "        raise RuntimeError('of the program')\n"
        "    session.abandon()\n"
        "print('rank', comm.rank, 'is done', flush=True)\n")
    job = subprocess.run([mpi.launcher, "-n", "3", sys.executable, "-m", "mpi4py", program], env=mpi.environment,
                         text=True, capture_output=True, timeout=LIMIT_SECONDS, check=False)
    assert job.returncode != 0 and "raising" in job.stdout and "RuntimeError: of the program" in job.stderr


def test_what_was_finalized_is_told(mpi, tmp_path):
    program = tmp_path / "late.py"
    program.write_text(
        "import backstay, numpy, os\n"
        "from mpi4py import MPI\n"
        "session = backstay.open(comm=MPI.COMM_WORLD)\n"
        "session.protect('cells', numpy.zeros(10))\n"
        "MPI.Finalize()\n"
        "for call in (session.checkpoint, session.close, lambda: backstay.open(comm=MPI.COMM_WORLD)):\n"
        "    try:\n"
        "        call()\n"
        "    except backstay.Error as error:\n"
        "        os.write(1, f'{type(error).__name__} {error}\\n'.encode())\n")
    job = subprocess.run([mpi.launcher, "-n", "2", sys.executable, program], env=mpi.environment, text=True,
                         capture_output=True, timeout=LIMIT_SECONDS, check=False)
    assert job.returncode == 0, job.stderr
    assert job.stdout.count("CommunicatorError communicator") == 4 and job.stdout.count("InvalidArgument") == 2, job.stdout
