# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Programs that nobody changed under `backstay run --route`: killed with -9 at random instants and started again, the
names show a complete set, bit for bit, never older than it may be; calls of the C library; refusals; a full memory.

Prints a line for each test and "N passed, N failed, N skipped" last. --seed replays; --measure prints what routing
costs the names that it does not route.
"""

import argparse
import errno
import os
import pathlib
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "multiprocess"))
from job import SURROUNDINGS, Failure, Skip, expect     # noqa: E402

LIMIT_SECONDS = 100
STRICT = ["-O2", "-Wall", "-Wextra", "-Werror"]
# Where a close alone makes a file complete.
AT_ONCE = ["--route-quiet", "0"]
# How, ranks, patterns, what else `run` is told: whether what was done must be found.
KILLED = [
    ("rename", 1, ["out/restart.*"], [], True),
    ("numbered", 1, ["out/restart.*"], AT_ONCE, True),
    ("alternate", 1, ["out/restart.?"], AT_ONCE, True),
    ("in-place", 1, ["out/restart"], AT_ONCE, True),
    ("update", 1, ["out/restart"], AT_ONCE, True),
    ("mapped", 1, ["out/restart"], AT_ONCE, True),
    ("ranks", 3, ["out/restart.{step}.{rank};writers=3"], AT_ONCE, True),
    ("in-place", 3, ["out/restart.{rank};writers=3;in-place"], AT_ONCE, True),
]
BY_SECCOMP = ["--route-by", "seccomp"]
# That a mapping ended is seen some time later.
SEEN_LATER = {"mapped"}


class Place:
    """A folder for a test, with a store of its own in memory."""

    def __init__(self, settings, name):
        self.settings = settings
        self.by_seccomp = False
        self.random = random.Random(f"{name} {settings.seed}")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="backstay-routing-"))
        self.memory = pathlib.Path(tempfile.mkdtemp(prefix="backstay-routing-", dir="/dev/shm"))
        self.undo = []
        (self.folder / "out").mkdir()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("BACKSTAY_", "LD_PRELOAD"))}
        self.environment = {**kept, "BACKSTAY_STORE_PATH": str(self.memory), "BACKSTAY_JOB": "routed"}

    def close(self):
        for undo in reversed(self.undo):
            undo()
        for folder in (self.folder, self.memory):
            shutil.rmtree(folder, ignore_errors=True)

    def command(self, patterns, options, program):
        routes = [word for pattern in patterns for word in ("--route", pattern)]
        means = BY_SECCOMP if self.by_seccomp else ["--route-library", self.settings.library]
        return [self.settings.backstay, "run", "--restarts", "0", *means, *routes, *options, "--", *program]

    def run(self, patterns, program, *options, **more):
        return subprocess.run(self.command(patterns, options, program), cwd=self.folder, env=self.environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECONDS, **more)

    def files(self):
        """What the newest checkpoint has, by name below the folder."""
        out = self.folder / "exported"
        shutil.rmtree(out, ignore_errors=True)
        done = subprocess.run([self.settings.backstay, "export", "--files", "-o", out, self.memory], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        expect(done.returncode == 0, f"export: {done.stdout}")
        base = out / str(self.folder.resolve()).lstrip("/")
        return {path.relative_to(base).as_posix(): path.read_bytes() for path in base.rglob("*") if path.is_file()}


class Start:
    """One start of a writer, and what it said."""

    def __init__(self, place, patterns, options, program):
        self.process = subprocess.Popen(place.command(patterns, options, program), cwd=place.folder,
                                        env=place.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.found, self.begun, self.done, self.pids, self.bad, self.said = None, 0, 0, [], [], []
        self.readers = [threading.Thread(target=self.hear), threading.Thread(target=self.hear_errors)]
        for reader in self.readers:
            reader.start()

    def hear_errors(self):
        self.said.extend(self.process.stderr)

    def hear(self):
        for line in self.process.stdout:
            word, _, rest = line.strip().partition(" ")
            if word in ("found", "begun", "done"):
                setattr(self, word, int(rest))
            elif word == "pid":
                self.pids.append(int(rest))
            elif word == "bad":
                self.bad.append(rest)

    def wait(self, ready, what):
        end = time.monotonic() + LIMIT_SECONDS
        while not ready() and self.process.poll() is None:
            expect(time.monotonic() < end, f"waited for {what}: {self.said}")
            time.sleep(0.002)

    def over(self):
        self.process.wait(LIMIT_SECONDS)
        for reader in self.readers:
            reader.join()
        expect(not self.bad, f"{self.bad}: {''.join(self.said)}")
        expect(self.found is not None, f"it did not begin: {''.join(self.said)}")


def descendants(pid):
    """All processes below one."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(") ", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, new = [], [pid]
    while new:
        below = [child for parent in new for child in children.get(parent, [])]
        found, new = found + below, below
    return found


def end(pid, how=signal.SIGKILL):
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        pass


def kill_and_restart(place, how, patterns, options, program, exact, kills):
    """Kills a start after a random time; the next one finds what was done, or what was begun."""
    done, begun = 0, 0
    for number in range(kills + 1):
        start = Start(place, patterns, options, program)
        start.wait(lambda: start.found is not None, "what it finds")
        last = number == kills
        if not last:
            begins_at = start.begun
            start.wait(lambda: start.begun > begins_at, "a step")
            time.sleep(place.random.uniform(0, 0.15))
            # Every third time all goes at once: the agent, too.
            everything = number % 3 == 2
            victims = descendants(start.process.pid) + [start.process.pid] if everything else [place.random.choice(start.pids)]
            # None of the program's sees that another is gone.
            for how_ended in (signal.SIGSTOP, signal.SIGKILL):
                for pid in victims:
                    end(pid, how_ended)
        start.over()
        expect(start.found <= begun, f"{how}: found {start.found}, and {begun} was the last begun")
        expect(not exact or start.found >= done, f"{how}: found {start.found} after {done} was done: {''.join(start.said)}")
        done = start.found if not last and everything else max(start.done, start.found)
        begun = max(start.begun, start.found)
        if last:
            expect(start.process.returncode == 0, f"{how}: exit {start.process.returncode}: {''.join(start.said)}")
    return done


def killed(place, how, ranks, patterns, options, exact):
    steps = 60
    writer = "writer-static" if place.by_seccomp else "writer"
    exact = exact and not (place.by_seccomp and how in SEEN_LATER)
    program = [place.settings.programs / writer, how, str(steps), "40000", "5000", str(ranks)]
    done = kill_and_restart(place, how, patterns, options, program, exact, place.settings.kills)
    expect(done == steps, f"it ended at {done}")


def fortran(place):
    program = [place.settings.programs / "writer-fortran", "60", "40000", "5000"]
    done = kill_and_restart(place, "fortran", ["out/state.bin"], AT_ONCE, program, True, place.settings.kills)
    expect(done == 60, f"it ended at {done}")


def hdf5(place):
    # The pauses between dumps are longer than what makes a file complete, which is longer than those within one.
    program = [sys.executable, HERE / "writer.py", "8", "20000", "500000"]
    patterns, options = ["out/dump_*.h5"], ["--route-quiet", "0.4"]
    done = kill_and_restart(place, "h5py", patterns, options, program, False, place.settings.kills // 2)
    expect(done == 8, f"it ended at {done}")


def mpi_io(place, program, flavour):
    """One file of all ranks, written collectively through a view: it is complete when the last rank closed it."""
    launcher = shutil.which(f"mpirun.{flavour}")
    if launcher is None:
        raise Skip(f"there is no mpirun.{flavour}")
    place.environment.update(SURROUNDINGS)
    # Rank 0 creates the file and closes it before all open it.
    program = [launcher, "-n", "4", place.settings.programs / f"{program}.{flavour}", "6", "40", "600000"]
    patterns, options = ["out/field.*"], ["--route-quiet", "0.4"]
    done = kill_and_restart(place, "MPI-IO", patterns, options, program, False, place.settings.kills // 2)
    expect(done == 6, f"it ended at {done}")
    expect(not list((place.folder / "out").glob("field.*")), "routed files stand on the file system")


def calls(place):
    done = place.run(["out/restart.*", "steps.{step}/part.*"], [sys.executable, HERE / "calls.py"])
    expect(done.returncode == 0, done.stdout)
    files = place.files()
    expect(files == {"out/restart.2": b"zz", "out/restart.8": b"child", "out/restart.10": b"\0" * 5 + b"abc" + b"\0" * 4088,
                     "steps.2/part.1": b"part"}, f"the checkpoint has {files.keys()}")
    expect(not list((place.folder / "out").glob("restart.*")), "routed files stand on the file system")


def incomplete(place):
    """What is no complete file: one of a failing program, one that is open or mapped at a kill, a draft."""
    python = [sys.executable, "-c"]
    code = ("open('out/r.good', 'w').write('good'); import time; time.sleep(0.5); f = open('out/r.bad', 'w'); "
            "f.write('half'); f.flush(); ")
    ends = {
        "os.kill(os.getpid(), 9)": "killed", "os._exit(0)": None, "os._exit(1)": "failed", "sys.exit(1)": "failed",
        "f.close(); sys.exit(1)": "failed", "1 / 0": "failed", "os.abort()": "aborted",
        "m = mmap.mmap(f2.fileno(), 4); m[0] = 1; f2.close(); os.kill(os.getpid(), 9)": "mapped",
    }
    for text, why in ends.items():
        place.run(["out/r.*"], [*python, "pass"], "--fresh")
        more = "f.close(); f2 = open('out/r.bad', 'w+b'); f2.truncate(4); " if why == "mapped" else ""
        place.run(["out/r.*"], [*python, "import os, sys, mmap; " + code + more + text])
        files = place.files()
        expect(files.get("out/r.good") == b"good", f"{text}: r.good is not there")
        expect(("out/r.bad" in files) == (why is None), f"{text}: the checkpoint has {files}")
    place.run(["out/r.*", "out/tmp.*;draft"], [*python, "open('out/tmp.1', 'w').write('draft')"], "--fresh")
    expect("out/tmp.1" not in place.files(), "a draft is in the checkpoint")
    done = place.run(["out/r.*", "out/tmp.*;draft"],
                     [*python, "import os; open('out/tmp.1', 'w').write('new'); os.rename('out/tmp.1', 'out/r.1')"])
    expect(place.files().get("out/r.1") == b"new", f"a renamed draft is not: {done.stdout}")


def removed(place):
    """What a program removes is there again until its successor is complete, and gone where it ends well."""
    run = lambda code: place.run(["out/r.*"], [sys.executable, "-c", "import os, sys; " + code])    # noqa: E731
    run("open('out/r.1', 'w').write('one')")
    run("os.remove('out/r.1'); os.kill(os.getpid(), 9)")
    expect(place.files() == {"out/r.1": b"one"}, "it is gone without a successor")
    run("os.remove('out/r.1'); open('out/r.2', 'w').write('two'); os.rename('out/r.2', 'out/r.3'); os.kill(os.getpid(), 9)")
    expect(place.files() == {"out/r.3": b"two"}, f"the successor has {place.files()}")
    run("os.rename('out/r.3', 'out/r.old'); open('out/r.3', 'w').write('half'); os.kill(os.getpid(), 9)")
    expect(place.files() == {"out/r.3": b"two", "out/r.old": b"two"}, f"a rotation left {place.files()}")
    done = run("os.remove('out/r.3'); os.remove('out/r.old')")
    out = subprocess.run([place.settings.backstay, "inspect", place.memory], stdout=subprocess.PIPE, text=True).stdout
    expect(done.returncode == 0 and "routed." not in out, f"{done.stdout}\n{out}")


def many(place):
    code = "[open(f'out/r.{i}', 'w').write(str(i)) for i in range(5000)]"
    done = place.run(["out/r.*"], [sys.executable, "-c", code])
    expect(done.returncode == 0, done.stdout)
    code = ("import os; assert sorted(os.listdir('out')) == sorted(f'r.{i}' for i in range(5000)); "
            "assert all(open(f'out/r.{i}').read() == str(i) for i in range(5000))")
    done = place.run(["out/r.*"], [sys.executable, "-c", code])
    expect(done.returncode == 0, done.stdout)


def taken_in(place):
    """The first start takes in what stands under the names; later ones do not look at it."""
    (place.folder / "out/r.1").write_text("from before")
    code = "assert open('out/r.1').read() == 'from before'; open('out/r.2', 'w').write('new')"
    done = place.run(["out/r.*"], [sys.executable, "-c", code])
    expect(done.returncode == 0 and "taken into memory" in done.stdout, done.stdout)
    (place.folder / "out/r.3").write_text("from elsewhere")
    code = "import os; assert sorted(os.listdir('out')) == ['r.1', 'r.2'], os.listdir('out')"
    done = place.run(["out/r.*"], [sys.executable, "-c", code])
    expect(done.returncode == 0, done.stdout)
    expect((place.folder / "out/r.1").read_text() == "from before", "what stood there was changed")


def exported(place):
    """What is exported stands at its own path: of each second checkpoint, and what the program left at the end."""
    code = ("import os, time; [(open(f'out/{n}', 'w').write(t), time.sleep(0.5)) "
            "for n, t in (('r.1', 'one'), ('l.1', 'last'), ('n.1', 'never'))]; os.kill(os.getpid(), 9)")
    done = place.run(["out/r.*;export=1", "out/l.*;export=last", "out/n.*"], [sys.executable, "-c", code])
    found = {path.name: path.read_text() for path in (place.folder / "out").iterdir()}
    expect(found == {"r.1": "one", "l.1": "last"}, f"{found} {done.stdout}")


def mpirun(place):
    """A set of the ranks that the launcher starts, whichever ends last."""
    launcher = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    if launcher is None:
        raise Skip("there is no mpirun")
    place.environment.update(SURROUNDINGS)
    code = ("import os; rank = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK']; "
            "[open(f'out/r.{step}.{rank}', 'w').write(f'{step} {rank}') for step in (1, 2) if step == 1 or rank != '1']")
    done = place.run(["out/r.{step}.{rank}"], [launcher, "-n", "3", sys.executable, "-c", code])
    expect(done.returncode == 0, done.stdout)
    files = place.files()
    expect(files == {f"out/r.1.{rank}": b"1 %d" % rank for rank in range(3)}, f"the checkpoint has {files}")


def archived(place):
    """On a node that has nothing, the files come from the archive."""
    place.environment["BACKSTAY_ARCHIVE"] = str(place.folder / "archive")
    (place.folder / "archive").mkdir(mode=0o700)
    done = place.run(["out/r.*"], [sys.executable, "-c", "open('out/r.1', 'wb').write(bytes(range(256)) * 4000)"])
    expect(done.returncode == 0, done.stdout)
    shutil.rmtree(place.memory)
    place.memory.mkdir()
    code = "assert open('out/r.1', 'rb').read() == bytes(range(256)) * 4000"
    done = place.run(["out/r.*"], [sys.executable, "-c", code])
    expect(done.returncode == 0, done.stdout)


def asked_to_leave(place):
    """SIGTERM to `backstay run`: what was complete is in a last checkpoint, what was open is not."""
    code = ("import time; open('out/r.1', 'w').write('one'); time.sleep(0.5); f = open('out/r.2', 'w'); f.write('two'); "
            "f.flush(); print('ready', flush=True); time.sleep(60)")
    command = place.command(["out/r.*"], ["--grace-s", "0"], [sys.executable, "-c", code])
    start = subprocess.Popen(command, cwd=place.folder, env=place.environment, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
    while start.stdout.readline().strip() not in ("ready", ""):
        pass
    start.send_signal(signal.SIGTERM)
    said, _ = start.communicate(timeout=LIMIT_SECONDS)
    expect(start.returncode == 143, f"exit {start.returncode}: {said}")
    expect(place.files() == {"out/r.1": b"one"}, f"{place.files()} {said}")


def two_jobs(place):
    """A second job with the same names is refused while the first runs, and so is the same job once more."""
    code = "print('ready', flush=True); import sys; sys.stdin.read()"
    start = subprocess.Popen(place.command(["out/r.*"], [], [sys.executable, "-c", code]), cwd=place.folder, text=True,
                             env=place.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while start.stdout.readline().strip() not in ("ready", ""):
        pass
    done = place.run(["out/../out/r.*"], ["true"], "--job", "other")
    expect(done.returncode != 0 and "another job on this host routes" in done.stdout, done.stdout)
    done = place.run(["out/other.*"], ["true"])
    expect(done.returncode != 0, done.stdout)
    done = place.run(["out/other.*"], ["true"], "--job", "other")
    expect(done.returncode == 0, done.stdout)
    _, said = start.communicate("", timeout=LIMIT_SECONDS)
    expect(start.returncode == 0, said)


def refused(place):
    static = place.settings.programs / "static"
    for patterns, program, why in [
        (["out/r.*"], [static], "--route-by seccomp"),
        (["out/r.{step}.{rank}"], ["true"], "writers=N"),
        (["out/r.{rank};writers=2"], ["true"], "in-place"),
        (["/proc/self/*"], ["true"], "system"),
        (["out/"], ["true"], "no file"),
    ]:
        done = place.run(patterns, program)
        expect(done.returncode == 2 and why in done.stdout, f"{patterns}: {done.returncode} {done.stdout}")
    (place.folder / "hosts").write_text("localhost\nelsewhere\n")
    done = place.run(["out/r.*"], ["true"], "--hosts", "hosts", "--probe", "true")
    expect(done.returncode != 0 and "needs a launcher that is known" in done.stdout, done.stdout)
    done = place.run(["out/r.*"], ["true"], "--hosts", "hosts", "--probe", "true", *BY_SECCOMP)
    expect(done.returncode != 0 and "on this host alone" in done.stdout, done.stdout)
    done = place.run(["out/r.*"], ["srun", "-n", "2", "true"], *BY_SECCOMP)
    expect(done.returncode != 0 and "its daemons" in done.stdout, done.stdout)
    inner = place.command(["out/i.*"], ["--job", "inner", *BY_SECCOMP], ["true"])
    done = place.run(["out/o.*"], inner, *BY_SECCOMP)
    expect(done.returncode == 2 and "told to another already" in done.stdout, done.stdout)
    place.run(["out/r.*"], [sys.executable, "-c", "open('out/r.1', 'w').write('x')"])
    done = place.run(["out/other.*"], ["true"])
    expect(done.returncode != 0 and "no --route names" in done.stdout, done.stdout)


def full(place):
    """A full memory is an error number, for a mapping too; the last checkpoint stays."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place.memory], capture_output=True, text=True)
    if done.returncode != 0:
        raise Skip(f"mount is not permitted: {done.stderr.strip()}")
    place.undo.append(lambda: subprocess.run(["umount", "-l", place.memory], check=False))
    place.run(["out/r.*"], [sys.executable, "-c", "open('out/r.1', 'wb').write(b'x' * 100000)"])
    code = """
import errno, mmap, os
try:
    open('out/r.2', 'wb').write(b'x' * (64 << 20))
    raise SystemExit(4)
except OSError as error:
    assert error.errno == errno.ENOSPC, error
os.remove('out/r.2')
with open('out/r.3', 'w+b') as file:
    file.truncate(64 << 20)
    try:
        mmap.mmap(file.fileno(), 0)
        raise SystemExit(5)
    except OSError as error:
        assert error.errno == errno.ENOMEM, error
os.remove('out/r.3')
"""
    done = place.run(["out/r.*"], [sys.executable, "-c", code])
    expect(done.returncode == 0, f"{done.returncode} {done.stdout}")
    expect(place.files() == {"out/r.1": b"x" * 100000}, f"it has {place.files().keys()}")


def started(place, code, *options):
    """A routed program of Python that runs, and said `ready`."""
    start = subprocess.Popen(place.command(["out/r.*"], options, [sys.executable, "-c", code]), cwd=place.folder,
                             env=place.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while start.stdout.readline().strip() not in ("ready", ""):
        pass
    return start


def agent_dies(place):
    """Nothing is written past an agent that is gone, and the program ends."""
    code = ("import os, signal, time; open('out/r.1', 'w').write('x'); "
            "folder = os.environ['BACKSTAY_ROUTE']; print('ready', flush=True); time.sleep(60)")
    start = started(place, code)
    agents = [pid for pid in descendants(start.pid) if b"route-agent" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
    expect(len(agents) == 1, f"agents: {agents}")
    end(agents[0])
    out, _ = start.communicate(timeout=LIMIT_SECONDS)
    expect(start.returncode != 0 and "routing agent died" in out, out)


def agent_dies_before_a_close(place):
    """What nobody can be told was closed is not closed well: the program learns it, however it closes."""
    code = ("import ctypes, os, signal, time; low = os.open('out/r.1', os.O_CREAT | os.O_WRONLY); os.write(low, b'x');\n"
            "libc = ctypes.CDLL(None, use_errno=True); libc.fopen.restype = ctypes.c_void_p\n"
            "stream = ctypes.c_void_p(libc.fopen(b'out/r.2', b'w')); told = []\n"
            "signal.signal(signal.SIGTERM, lambda *_: told.append(1)); print('ready', flush=True)\n"
            "while not told: time.sleep(0.01)\n"
            "print('fclose', libc.fclose(stream), ctypes.get_errno(), 'close', libc.close(low), ctypes.get_errno(), flush=True)")
    start = started(place, code, "--grace-s", "20")
    agents = [pid for pid in descendants(start.pid) if b"route-agent" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]
    expect(len(agents) == 1, f"agents: {agents}")
    end(agents[0])
    out, _ = start.communicate(timeout=LIMIT_SECONDS)
    expect(f"fclose -1 {errno.EIO} close -1 {errno.EIO}" in out, out)
    expect(start.returncode == 1, f"exit {start.returncode}, of a program that ended well: {out}")


def threads(place):
    """Calls without the C library, in threads, while signals come."""
    done = place.run(["out/r.*"], [place.settings.programs / "threads", "8", "60"])
    expect(done.returncode == 0 and "good" in done.stdout, done.stdout)
    expected = {f"out/r.{thread}.{file}": b"%d of %d" % (file, thread) for thread in range(8) for file in (58, 59)}
    expect(place.files() == expected, f"{place.files().keys()}")


def static_ranks(place):
    """Ranks that are static programs, started by a launcher that is none, with threads."""
    launcher = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    if launcher is None:
        raise Skip("there is no mpirun")
    place.environment.update(SURROUNDINGS)
    done = place.run(["out/r.*"], [launcher, "-n", "3", place.settings.programs / "threads", "4", "40"])
    expect(done.returncode == 0 and done.stdout.count("good") == 3, done.stdout)
    threads_of_all = [100 * rank + thread for rank in range(3) for thread in range(4)]
    expected = {f"out/r.{thread}.{file}": b"%d of %d" % (file, thread) for thread in threads_of_all for file in (38, 39)}
    expect(place.files() == expected, f"{place.files().keys()}")


def go(place):
    """A program in Go, which makes its calls itself and moves between threads."""
    compiler = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if compiler is None:
        raise Skip("there is no Go")
    program = place.folder / "program"
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GO111MODULE": "off"}
    built = subprocess.run([compiler, "build", "-o", program, HERE / "threads.go"], env=environment, cwd=place.folder,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect(built.returncode == 0, built.stdout)
    done = place.run(["out/r.*"], [program, "write"])
    expect(done.returncode == 0, done.stdout)
    expect(len(place.files()) == 40, f"{place.files().keys()}")
    done = place.run(["out/r.*"], [program, "read"])
    expect(done.returncode == 0, done.stdout)


def shell(place):
    """What a shell does with descriptors: copies of them, redirections of all that follows, children that inherit."""
    text = ("echo one >out/r.1; exec 3>out/r.2; echo two >&3; exec 3>&-; (echo three; echo four) >out/r.3; "
            "exec 4>>out/r.1; exec 4>&-; cat out/r.1 out/r.2 out/r.3; ls out; sleep 0.5; echo x >out/r.4; kill -9 $$")
    done = place.run(["out/r.*"], ["sh", "-c", text], *AT_ONCE)
    expect("one\ntwo\nthree\nfour\nr.1\nr.2\nr.3\n" in done.stdout, done.stdout)
    files = place.files()
    expect({name: files.get(name) for name in ("out/r.1", "out/r.2", "out/r.3")}
           == {"out/r.1": b"one\n", "out/r.2": b"two\n", "out/r.3": b"three\nfour\n"}, f"{files}")


def children(place):
    """A child writes on after its parent closed the file, or ended: what it leaves by a death is incomplete."""
    code = ("import os, signal, sys, time\n"
            "def write(name, how):\n"
            "    fd = os.open('out/r.' + name, os.O_CREAT | os.O_WRONLY)\n"
            "    os.write(fd, b'half ')\n"
            "    child = os.fork()\n"
            "    if child:\n"
            "        os.close(fd)\n"
            "        return child\n"
            "    time.sleep(0.4)\n"
            "    os.write(fd, b'whole')\n"
            "    if how == 'closes': os.close(fd); time.sleep(0.6)\n"
            "    if how != 'ends': os.kill(os.getpid(), signal.SIGKILL)\n"
            "    os._exit(0)\n"
            "for child in [write(how, how) for how in ('closes', 'ends', 'dies')]: os.waitpid(child, 0)\n")
    done = place.run(["out/r.*"], [sys.executable, "-c", code])
    files = place.files()
    expect(files == {"out/r.closes": b"half whole", "out/r.ends": b"half whole"}, f"{files} {done.stdout}")


def supervisor_dies(place):
    """Where nobody answers any more, the program ends, and what was complete is there."""
    code = ("import os, time; open('out/r.1', 'w').write('one'); print('ready', flush=True); time.sleep(0.5)\n"
            "while True: open('plain', 'w').close(); time.sleep(0.01)")
    start = started(place, code)
    time.sleep(0.4)
    below = descendants(start.pid)
    end(start.pid)
    start.communicate(timeout=LIMIT_SECONDS)
    limit = time.monotonic() + 20
    while any(pathlib.Path(f"/proc/{pid}").exists() for pid in below):
        expect(time.monotonic() < limit, "its processes do not end")
        time.sleep(0.05)
    expect(place.files() == {"out/r.1": b"one"}, f"{place.files()}")


def by_seccomp(function):
    def run(place):
        place.by_seccomp = True
        function(place)
    return run


def tests():
    for how, ranks, patterns, options, exact in KILLED:
        name = f"killed: {how}" + (f", {ranks} processes" if ranks > 1 else "")
        yield name, lambda place, a=(how, ranks, patterns, options, exact): killed(place, *a)
    yield "killed: Fortran, unformatted", fortran
    yield "killed: h5py", hdf5
    for program, flavour in [(one, two) for one in ("mpiio", "mpiio-fortran") for two in ("openmpi", "mpich")]:
        yield f"killed: MPI-IO, {program}, {flavour}", lambda place, a=(program, flavour): mpi_io(place, *a)
    for how, ranks, patterns, options, exact in KILLED:
        name = f"seccomp, killed: {how}, static" + (f", {ranks} processes" if ranks > 1 else "")
        yield name, by_seccomp(lambda place, a=(how, ranks, patterns, options, exact): killed(place, *a))
    yield "seccomp, killed: h5py", by_seccomp(hdf5)
    for flavour in ("openmpi", "mpich"):
        yield f"seccomp, killed: MPI-IO, {flavour}", by_seccomp(lambda place, a=flavour: mpi_io(place, "mpiio", a))
    for function in (threads, static_ranks, go, shell, children, calls, incomplete, removed, many, exported, mpirun, asked_to_leave, full, agent_dies, supervisor_dies):
        yield "seccomp, " + function.__name__.replace("_", " "), by_seccomp(function)
    for function in (children, calls, incomplete, removed, many, taken_in, exported, archived, mpirun, asked_to_leave, two_jobs, refused, full, agent_dies, agent_dies_before_a_close):
        yield function.__name__.replace("_", " "), function


def measure(settings):
    place = Place(settings, "measure")
    program = [settings.programs / "overhead"]
    plain = subprocess.run(program, cwd=place.folder, stdout=subprocess.PIPE, text=True).stdout
    routed = place.run(["out/restart.*"], program).stdout
    told = place.run(["out/restart.*"], program, *BY_SECCOMP).stdout
    print(f"without:\n{plain}with --route:\n{routed}with --route-by seccomp:\n{told}")
    place.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backstay", type=pathlib.Path, required=True)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--only", default="")
    parser.add_argument("--measure", action="store_true")
    settings = parser.parse_args()
    for name in ("backstay", "library", "programs"):
        setattr(settings, name, getattr(settings, name).resolve())
    if settings.measure:
        return measure(settings)
    print(f"seed {settings.seed}")
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for name, function in tests():
        if settings.only not in name:
            continue
        began, place = time.monotonic(), Place(settings, name)
        try:
            function(place)
            outcome, text = "passed", ""
        except Skip as skip:
            outcome, text = "skipped", f": {skip}"
        except (Failure, subprocess.TimeoutExpired) as failure:
            outcome, text = "failed", f": {failure}"
        finally:
            place.close()
        counts[outcome] += 1
        print(f"{outcome:8}{name} ({time.monotonic() - began:.1f} s){text}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
