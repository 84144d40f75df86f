# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs oracle_job under mpirun, hears its events, stops and kills it, and judges what it restored."""

import collections
import os
import pathlib
import random
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time

LIMIT_SECONDS = 120                   # no start takes longer, even on a busy machine, unless something hangs
SURROUNDINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",    # more processes than cores is fine here,
    "OMPI_MCA_mpi_yield_when_idle": "1",         # if those that wait let others work
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_plm_rsh_agent": "false",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}

Event = collections.namedtuple("Event", "rank name words at")


class Failure(Exception):
    """What a test found wrong."""


class Skip(Exception):
    """Why a test cannot be made here."""


def expect(condition, text):
    if not condition:
        raise Failure(text)


class Workplace:
    """A folder for one test: in memory where there is some, gone afterwards."""

    def __init__(self, settings, mpi, name, seed):
        self.settings, self.mpi, self.name, self.seed = settings, mpi, name, seed
        self.random = random.Random(f"{name} {mpi} {seed}")
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="backstay-test-", dir=base))
        self.jobs = []
        self.kills, self.inside = 0, 0    # starts killed, and those of them inside a checkpoint
        self.undo = []

    def job(self, **options):
        job = Job(self, **options)
        self.jobs.append(job)
        return job

    def count_kill(self, job):
        """Takes note of a start that was killed: inside, if some rank had begun what it did not end."""
        last = {event.rank: event.name for event in job.events}
        self.kills += 1
        self.inside += any(name in ("begin", "started") for name in last.values())

    def close(self):
        for job in self.jobs:
            job.kill()
        for undo in reversed(self.undo):
            undo()
        shutil.rmtree(self.folder, ignore_errors=True)

    def mount(self, folder, *arguments):
        """Mounts until the test ends; without the right to, the test is skipped."""
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True)
        if done.returncode != 0:
            raise Skip(f"mount is not permitted: {done.stderr.strip()}")
        self.undo.append(lambda: subprocess.run(["umount", "-l", str(folder)], check=False))


class Job:
    """One start of a job. `nodes` are the ranks of each node, one node with 4 by default."""

    def __init__(self, place, store=None, job="oracle", nodes=(4,), start=1, steps=100000, pause_us=1000,
                 environment=None, prefix=(), unset=(), **program):
        self.place = place
        self.nodes, self.ranks, self.start = nodes, sum(nodes), start
        self.events, self.pids = [], {}
        self.news = threading.Condition()
        self.mark = secrets.token_hex(8)
        number = len(place.jobs) + 1
        self.pipe = place.folder / f"events.{number}"
        self.log = place.folder / f"log.{number}"
        os.mkfifo(self.pipe)
        # Open for writing too, so that the pipe neither ends nor loses what the dead have written.
        self.descriptor = os.open(self.pipe, os.O_RDWR | os.O_NONBLOCK)
        surroundings = {key: value for key, value in os.environ.items() if not key.startswith("BACKSTAY_")}
        surroundings.update(SURROUNDINGS)
        surroundings.update({
            "BACKSTAY_STORE_PATH": str(store or place.folder / "store"), "BACKSTAY_JOB": job,
            "BACKSTAY_TEST_MARK": self.mark, "ORACLE_EVENTS": str(self.pipe),
            "TMPDIR": str(place.folder), "OMPI_MCA_btl_vader_backing_directory": str(place.folder),
        })
        surroundings.update(environment or {})
        for name in unset:
            surroundings.pop(name, None)
        options = {"start": start, "steps": steps, "pause_us": pause_us, "seed": place.seed, **program}
        words = [str(place.settings.programs / f"oracle_job.{place.mpi}")]
        for key, value in options.items():
            words += [f"--{key.replace('_', '-')}", str(value)]
        self.began = time.monotonic()
        with open(self.log, "wb") as log:
            self.process = self.launch(prefix, words, surroundings, log)
        self.over = False
        self.reader = threading.Thread(target=self.listen, daemon=True)
        self.reader.start()

    def launch(self, prefix, words, surroundings, log):
        """Starts mpirun; where else, and how, is for others to say."""
        command = [*prefix, f"mpirun.{self.place.mpi}"]
        for index, count in enumerate(self.nodes):
            command += [":"] if index else []
            command += ["-n", str(count)]
            if len(self.nodes) > 1:
                node = f"node{index}"
                command += ["-x", f"BACKSTAY_NODE={node}"] if self.place.mpi == "openmpi" else [
                    "-env", "BACKSTAY_NODE", node]
            command += words
        return subprocess.Popen(command, env=surroundings, stdin=subprocess.DEVNULL, stdout=log,
                                stderr=subprocess.STDOUT, start_new_session=True)

    # ---- Events -------------------------------------------------------------------------------------

    def listen(self):
        rest = b""
        while True:
            last = self.over
            try:
                chunk = os.read(self.descriptor, 65536)
            except BlockingIOError:
                if last:
                    return
                time.sleep(0.0005)
                continue
            rest += chunk
            *lines, rest = rest.split(b"\n")
            with self.news:
                for line in lines:
                    rank, name, *words = line.decode(errors="replace").split(" ")
                    self.events.append(Event(int(rank), name, words, time.monotonic()))
                    if name == "pid":
                        self.pids[int(rank)] = int(words[0])
                self.news.notify_all()

    def all(self, name, rank=None):
        with self.news:
            return [e for e in self.events if e.name == name and rank in (None, e.rank)]

    def wait_for(self, what, ready, limit=LIMIT_SECONDS):
        """Waits until `ready()` of the events; false if the job ended before."""
        end = time.monotonic() + limit
        with self.news:
            while not ready():
                if self.process.poll() is not None:
                    self.news.wait(0.05)
                    return bool(ready())
                if time.monotonic() > end:
                    raise Failure(f"hang: {what} did not come within {limit} s; {self.last_words()}")
                self.news.wait(0.02)
        return True

    def wait_event(self, name, count=1, rank=None, word=None, limit=LIMIT_SECONDS):
        def ready():
            return count <= sum(e.name == name and rank in (None, e.rank)
                                and (word is None or (e.words and e.words[0] == str(word)))
                                for e in self.events)
        return self.wait_for(f"{count} x {name}", ready, limit)

    def must_see(self, name, count=None, **more):
        expect(self.wait_event(name, count or self.ranks, **more),
               f"the job ended before {name}; {self.last_words()}")

    def last_words(self):
        with self.news:
            last = {e.rank: f"{e.rank}: {e.name} {' '.join(e.words)[:300]}" for e in self.events}
        return f"last events {sorted(last.values())}; output: {self.text()[-2000:]!r}"

    def text(self):
        return self.log.read_text(errors="replace")

    # ---- Ends ---------------------------------------------------------------------------------------

    def alive(self):
        found = []
        for folder in pathlib.Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                if f"BACKSTAY_TEST_MARK={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                pass
        return found

    def kill(self):
        """kill -9 for all ranks at once, then for all else of the job; it is over afterwards."""
        if self.over:
            return
        if self.process.poll() is None:
            for pid in list(self.pids.values()):
                send(pid, signal.SIGKILL)
            send(self.process.pid, signal.SIGKILL)
        while pids := self.alive():
            for pid in pids:
                send(pid, signal.SIGKILL)
            time.sleep(0.002)
        self.process.wait()
        self.finish()

    def signal(self, rank, number):
        send(self.pids[rank], number)

    def end(self, limit=LIMIT_SECONDS):
        """Waits for its own end; the exit status."""
        try:
            status = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failure(f"hang: the job is not over after {limit} s; {self.last_words()}") from None
        for pid in self.alive():
            send(pid, signal.SIGKILL)
        self.finish()
        return status

    def finish(self):
        self.over = True
        self.reader.join()
        os.close(self.descriptor)

    def closes(self, limit=LIMIT_SECONDS):
        """It must come to its own good end."""
        status = self.end(limit)
        expect(status == 0 and len(self.all("closed")) == self.ranks,
               f"no good end, status {status}; {self.last_words()}")
        return self

    def refused(self, operation, status, *patterns, limit=LIMIT_SECONDS):
        """Every rank must be refused alike, with a text that says what these patterns ask for."""
        self.end(limit)
        errors = self.all("error")
        expect(sorted(e.rank for e in errors) == list(range(self.ranks)),
               f"not every rank was refused; {self.last_words()}")
        for error in errors:
            expect(error.words[:2] == [operation, str(status)],
                   f"rank {error.rank}: expected {operation} to give {status}; {self.last_words()}")
        text = " ".join(errors[0].words[2:])
        for pattern in patterns:
            expect(re.search(pattern, text), f"the message does not say {pattern!r}: {text}")
        return text


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


# ---- Judging ----------------------------------------------------------------------------------------


class History:
    """What must be restored, over the starts of one job."""

    def __init__(self):
        self.complete = 0             # the newest step that every rank said is committed
        self.begun = 0                # the newest step of which a checkpoint is known to have begun
        self.heard_all = True         # whether none newer can have begun: what the killed said last may be lost
        self.starts = 0

    def may_be_had(self, step):
        """Whether a checkpoint of `step` may exist."""
        return step <= self.begun or not self.heard_all

    def judge(self, job, killed=True):
        """Checks a start that is over, and takes note of what the next one must restore."""
        self.starts += 1
        for event in job.all("wrong") + job.all("mix"):
            raise Failure(f"rank {event.rank}: {event.name} {' '.join(event.words)}")
        for event in job.all("error"):
            raise Failure(f"rank {event.rank}: error {' '.join(event.words)}; {job.last_words()}")
        signs = re.search(r"panicked|Segmentation fault|signal: (?!Killed)\w+|signal (?!9\b)\d+ \(", job.text())
        if signs and "Terminated" not in signs.group():
            raise Failure(f"a crash that is not ours: {signs.group()!r}; {job.last_words()}")
        restored = {tuple(e.words[:3]) for e in job.all("restored")}
        fresh = job.all("fresh")
        expect(len(restored) <= 1, f"ranks restored different checkpoints: {sorted(restored)}")
        expect(not (restored and fresh), "some ranks restored and others began anew")
        if fresh:
            expect(self.complete == 0, f"checkpoint of step {self.complete} is lost: nothing was restored")
        if restored:
            step = int(next(iter(restored))[2])
            expect(step >= self.complete, f"checkpoint of step {self.complete} was complete, but {step} came back")
            expect(self.may_be_had(step), f"step {step} came back, but none after {self.begun} began")
            verified = {e.words[0] for e in job.all("verified")}
            expect(verified <= {str(step)}, f"verified {verified}, restored {step}")
            self.complete = self.begun = step
        committed = collections.Counter()
        for event in job.all("committed"):
            committed[tuple(map(int, event.words[:3]))] += 1
        for (_, _, step), count in committed.items():
            if count == job.ranks:
                self.complete = max(self.complete, step)
        for event in job.all("begin"):
            self.begun = max(self.begun, int(event.words[0]))
        self.heard_all = not killed
        if not killed:
            expect(len(job.all("closed")) == job.ranks, f"it did not close; {job.last_words()}")
