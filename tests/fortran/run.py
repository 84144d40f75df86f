# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Fortran programs against an installed Backstay: types, errors, parts, kill -9 and restart, the guide.

Prints a line for each test and "N passed, N failed, N skipped" last. Needs numpy.
"""

import argparse
import os
import pathlib
import random
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "multiprocess"))
from job import SURROUNDINGS, Failure, Skip, expect, send     # noqa: E402

BOTH = ("openmpi", "mpich")
STRICT = ["-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]
LIMIT_SECONDS = 300
STEPS = 600


def tests():
    yield "types and ranks, without MPI", types, ("gfortran",)
    yield "real(16) and complex(16)", quad, ("gfortran",)
    yield "types and calls, flang", flang, ("flang",)
    for function in (calls, errors, parts, files, error_stop, kill_and_restart, cmake):
        yield function.__name__.replace("_", " "), function, BOTH
    yield "kill, and go on with another number", kill_on_other_numbers, ("mpich",)
    yield "guide", guide, ("openmpi",)


class Place:
    """A folder for all tests, with an installation whose path has a space in it."""

    def __init__(self, settings):
        self.settings = settings
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="backstay-fortran-"))
        self.backstay = settings.backstay.resolve()
        self.random = random.Random(settings.seed)
        self.stores = 0
        self.built = {}
        built, prefix = self.folder / "built", self.folder / "the prefix"
        run(["make", "--no-print-directory", "install", "PREFIX=/opt", f"DESTDIR={built}"], cwd=ROOT)
        (built / "opt").rename(prefix)
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("BACKSTAY_")}
        self.environment.update(SURROUNDINGS)
        self.environment.update({
            "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig"), "LD_LIBRARY_PATH": str(prefix / "lib"),
            "CMAKE_PREFIX_PATH": str(prefix), "BACKSTAY_JOB": "fortran", "BACKSTAY_LOG": "warn"})

    def found(self, option):
        """What pkg-config says, as words: it escapes the space."""
        return shlex.split(run(["pkg-config", option, "backstay"], env=self.environment))

    def module(self, mpi):
        """Objects of the module and of what it stands on, compiled once with each MPI, or without."""
        folder = self.folder / f"module of {mpi}"
        source = pathlib.Path(self.found("--variable=fortran_source")[0])
        if not folder.exists():
            folder.mkdir()
            cc = ["cc", "-DBACKSTAY_WITHOUT_MPI"] if mpi == "gfortran" else [f"mpicc.{mpi}"]
            run([*cc, "-std=c99", *STRICT, *self.found("--cflags"), "-c", source / "backstay_fortran.c",
                 "-o", folder / "c.o"])
            run([self.compiler(mpi), "-std=f2018", *STRICT, "-J", folder, "-c", source / "backstay.f90",
                 "-o", folder / "f.o"])
        return folder

    @staticmethod
    def compiler(mpi):
        return mpi if mpi == "gfortran" else f"mpifort.{mpi}"

    def build(self, mpi, source, *more):
        """A program, once."""
        key = (mpi, source)
        if key not in self.built:
            module, program = self.module(mpi), self.folder / f"{source.stem}.{mpi}"
            run([self.compiler(mpi), "-std=f2018", *STRICT, "-I", module, "-J", module, source, *more,
                 module / "f.o", module / "c.o", *self.found("--libs"), "-o", program])
            self.built[key] = program
        return self.built[key]

    def store(self):
        self.stores += 1
        folder = self.folder / f"store {self.stores}"
        folder.mkdir()
        return folder

    def go(self, words, store, fails=False, **environment):
        surroundings = {**self.environment, "BACKSTAY_STORE_PATH": str(store), **environment}
        return run(words, env=surroundings, fails=fails)

    def mpirun(self, mpi, ranks, program, *arguments):
        return [f"mpirun.{mpi}", "-n", str(ranks), str(program), *map(str, arguments)]

    def export(self, store, variable, *more):
        file = self.folder / f"{variable}.npy"
        run([self.backstay, "export", store, "-v", variable, "-o", file, *more])
        return numpy.load(file)


def run(words, fails=False, **options):
    """Runs a command; its output, unless it fails, or, where it shall fail, does not."""
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=LIMIT_SECONDS, check=False, **options)
    if (done.returncode != 0) != fails:
        raise Failure(f"{shlex.join(map(str, words))} ended with {done.returncode}: {done.stdout[-3000:]}")
    return done.stdout


# ---- Types ------------------------------------------------------------------------------------------

# Name, element type in numpy, shape, and some values of the first start.
STORED = [
    ("i1", "i1", (3,), [0, -3, 126]),
    ("i2", "<i2", (3, 2), [[11, 21], [31, 41], [51, 61]]),
    ("i4", "<i4", (), -70000),
    ("i8", "<i8", (3, 1, 2), [[[5000000001, 10000000001]], [[15000000001, 20000000001]],
                              [[25000000001, 30000000001]]]),
    ("i16", "u1", (2, 16), None),
    ("r4", "<f4", (3,), numpy.array([1.5, -0.25, 1e-30], "f4")),
    ("r8", "<f8", (3, 2), [[2.1, 3.1], [12.1, 13.1], [22.1, 23.1]]),
    ("r10", "u1", (3, 16), None),
    ("c4", "<c8", (), 1 - 1j),
    ("c8", "<c16", (2,), [0.5 + 1j, 1 + 0.25j]),
    ("c10", "u1", (2, 32), None),
    ("l1", "i1", (2,), [1, 0]),
    ("l2", "<i2", (), 1),
    ("l4", "<i4", (2, 2), [[1, 0], [0, 1]]),
    ("l8", "<i8", (3,), [0, 1, 1]),
    ("letter", "u1", (1,), [65]),
    ("words", "u1", (2, 5), [list(b"first"), list(b"2nd  ")]),
    ("wide", "<u4", (2, 3), [[961, 97, 98], [65537, 32, 32]]),
    ("deferred", "u1", (6,), list(b"abcde1")),
    ("allocated", "<f8", (2, 3), [[1, 2, 3], [4, 5, 6]]),
    ("pointed", "<f8", (3,), [2.5, 3.5, 4.5]),
    ("none", "<f8", (3, 0), numpy.zeros((3, 0))),
    ("d9", "<i4", (3, 1, 1, 1, 1, 1, 1, 2), numpy.arange(1, 7).reshape(3, 1, 1, 1, 1, 1, 1, 2)),
    ("d15", "<i4", (2, 1, 1, 1, 1, 1, 1, 2), numpy.arange(1, 5).reshape(2, 1, 1, 1, 1, 1, 1, 2)),
    ("slice", "<f4", (2, 3), [[1, 2, 3], [4, 5, 6]]),
    ("row of one", "<i4", (1, 1), [[1]]),
    ("points", "u1", (2, 24), None),
    ("mass", "<f8", (2,), [1, 2]),
]


def types(place, mpi):
    store = two_starts_of_types(place, place.build(mpi, HERE / "types.f90"))
    look_at_types(place, store)


def two_starts_of_types(place, program):
    store = place.store()
    files = [place.folder / f"{program.name} {start}" for start in (1, 2)]
    for file, word in zip(files, ("stored", "restored")):
        output = place.go([program, file], store)
        expect(output.split() == [word], f"{word} was expected: {output}")
    expect(files[0].read_bytes() == files[1].read_bytes(), "what was restored is not what was stored")
    return store


def look_at_types(place, store):
    for name, dtype, shape, values in STORED:
        array = place.export(store, name)
        expect(array.dtype == numpy.dtype(dtype), f"{name} is {array.dtype}, not {dtype}")
        expect(array.shape == shape, f"{name} is {array.shape}, not {shape}")
        expect(values is None or numpy.array_equal(array, values), f"{name} is {array}, not {values}")
    tenth = place.export(store, "r10").view(numpy.longdouble).ravel()
    expect(numpy.array_equal(tenth, 1 / numpy.array([3, 7, 11], numpy.longdouble)), f"r10 is {tenth}")
    words = place.export(store, "words").view("S5").ravel()
    expect(list(words) == [b"first", b"2nd  "], f"words are {words}")
    sixteen = [int.from_bytes(row.tobytes(), "little", signed=True) for row in place.export(store, "i16")]
    expect(sixteen == [10**30, -10**30], f"i16 is {sixteen}")
    point = numpy.dtype([("x", "f8"), ("y", "f8"), ("colour", "i4"), ("weight", "i4")])
    points = place.export(store, "points").view(point).ravel()
    expect(points[0].item() == (1.0, -1.0, 3, 1), f"points are {points}")


def quad(place, mpi):
    program, store = place.build(mpi, HERE / "quad.f90"), place.store()
    expect(place.go([program], store) == "", "nothing was stored yet")
    expect(place.go([program], store).split() == ["restored"], "restored was expected")
    shapes = [place.export(store, name).shape for name in ("r16", "c16")]
    expect(shapes == [(2, 16), (32,)], f"the shapes are {shapes}")


def flang(place, _):
    """flang has no module of MPI's here: the communicator is an integer."""
    compiler = next((path for name in ("flang", "flang-22", "flang-21", "flang-20")
                     if (path := shutil.which(name))), None)
    if compiler is None:
        raise Skip("there is no flang")
    version = int(re.search(r"version (\d+)", run([compiler, "--version"]))[1])
    if version < 20:
        raise Skip(f"flang {version} compiles no arguments of assumed rank")
    header = next(pathlib.Path(compiler).resolve().parents[1].glob("include/flang/ISO_Fortran_binding.h"), None)
    expect(header is not None, f"{compiler} has no ISO_Fortran_binding.h")
    source, folder = pathlib.Path(place.found("--variable=fortran_source")[0]), place.folder / "flang"
    folder.mkdir()
    run(["mpicc.openmpi", "-std=c99", *STRICT, *place.found("--cflags"), "-I", header.parent, "-c",
         source / "backstay_fortran.c", "-o", folder / "c.o"])
    run(["cc", "-std=c99", *STRICT, *place.found("--cflags"), "-c", HERE / "layout.c", "-o", folder / "layout.o"])
    run([compiler, "-O2", "-module-dir", folder, "-c", source / "backstay.f90", "-o", folder / "f.o"])
    libraries = [*place.found("--libs"), "-L/usr/lib/x86_64-linux-gnu", "-lmpi_mpifh", "-lmpi"]
    for name, more in (("types", []), ("calls", [HERE / "mpi_of_flang.f90"])):
        run([compiler, "-O2", "-I", folder, "-module-dir", folder, *more, HERE / f"{name}.f90", folder / "f.o",
             folder / "c.o", folder / "layout.o", *libraries, "-o", folder / f"{name}.flang"])
    look_at_types(place, two_starts_of_types(place, folder / "types.flang"))
    two_starts_of_calls(place, "openmpi", folder / "calls.flang")


# ---- Calls, errors, parts ---------------------------------------------------------------------------

def calls(place, mpi):
    layout = place.folder / f"layout.{mpi}.o"
    run([f"mpicc.{mpi}", "-std=c99", *STRICT, *place.found("--cflags"), "-c", HERE / "layout.c", "-o", layout])
    two_starts_of_calls(place, mpi, place.build(mpi, HERE / "calls.f90", layout))


def two_starts_of_calls(place, mpi, program):
    store = place.store()
    for start in ("first", "second"):
        output = place.go(place.mpirun(mpi, 3, program, store), place.folder)
        expect(f"{start} start" in output, f"{start} start was expected: {output}")


def errors(place, mpi):
    program = place.build(mpi, HERE / "errors.f90")
    for ranks in (1, 2):
        output = place.go(place.mpirun(mpi, ranks, program), place.store())
        count = re.search(r"(\d+) refusals as expected", output)
        expect(count and int(count[1]) == len(re.findall(r"^ +call expect\(", program_text(), re.M)) + extra(),
               f"another number of refusals: {output}")


def program_text():
    return (HERE / "errors.f90").read_text()


def extra():
    """Subroutines that are called more than once, and whose checks stand once in the text."""
    text = program_text()
    more = 0
    for name in ("without_a_session", "wrong_setting"):
        body = text.split(f"subroutine {name}(", 1)[1].split("end subroutine", 1)[0]
        calls = len(re.findall(rf"call {name}\(", text))
        more += (calls - 1) * len(re.findall(r"call expect\(", body))
    return more


def parts(place, mpi):
    program, store = place.build(mpi, HERE / "parts.f90"), place.store()
    for ranks, phase in ((3, "store"), (4, "wrong"), (2, "restore")):
        output = place.go(place.mpirun(mpi, ranks, program, phase), store)
        expect(f"{phase}: as expected" in output, f"{phase}: {output}")
    grid = place.export(store, "grid")
    expect(grid.shape == (12, 5), f"grid is {grid.shape}")
    expect(all(grid[j, i] == grid.T[i, j] == 100 * (i + 1) + j + 1 for j in range(12) for i in range(5)),
           f"grid is {grid}")
    deep = place.export(store, "deep")
    expect(deep.shape == (12, 3, 1, 1, 1, 1, 1, 2), f"deep is {deep.shape}")
    expect(deep[6, 2].ravel().tolist() == [73, 143], f"deep is {deep[6, 2]}")
    label = place.export(store, "label").view("S4").ravel()
    expect(label[9] == b"r10 " and label[0] == b"r1  ", f"label is {label}")


def files(place, mpi):
    program, store = place.build(mpi, HERE / "files.f90"), place.store()
    for phase in ("store", "restore"):
        output = place.go(place.mpirun(mpi, 3, program, phase, store), store)
        expect(f"{phase}: as expected" in output, f"{phase}: {output}")
    for rank in range(3):
        copy = (store / f"log of {rank}.copy").read_text()
        expect(copy == "step 1\nstep 2\n", f"the log of rank {rank} is {copy!r}")


def error_stop(place, mpi):
    """Without stat= the program stops with the message."""
    program, store = place.build(mpi, ROOT / "examples/shallow/shallow.f90"), place.store()
    output = place.go(place.mpirun(mpi, 2, program, 20), store, fails=True, BACKSTAY_RETAINED="0")
    expect("ERROR STOP backstay_open: " in output and "retained" in output, f"the message is not there: {output}")


# ---- Kills ------------------------------------------------------------------------------------------

def undisturbed(place, mpi):
    file = place.folder / f"whole.{mpi}"
    if not file.exists():
        program = place.build(mpi, ROOT / "examples/shallow/shallow.f90")
        place.go(place.mpirun(mpi, 4, program, STEPS, file), place.store())
    return file.read_bytes()


def kill_and_restart(place, mpi):
    chain(place, mpi, [4, 4, 4, 4])


def kill_on_other_numbers(place, mpi):
    chain(place, mpi, [4, 3, 6, 2])


def chain(place, mpi, numbers):
    """Starts that are killed with -9 at random instants, and one to the end, which has the same bytes."""
    program, store = place.build(mpi, ROOT / "examples/shallow/shallow.f90"), place.store()
    whole, output = undisturbed(place, mpi), place.folder / f"chain {place.stores}"
    at = 0
    for start, ranks in enumerate(numbers[:-1]):
        words = place.mpirun(mpi, ranks, program, 100 * STEPS)
        text = killed(place, words, store)
        at = follows(text, at, numbers[start - 1] if start else None)
    expect(0 < at < STEPS, f"killed only at step {at}, after the end of the run that was not killed")
    text = place.go(place.mpirun(mpi, numbers[-1], program, STEPS, output), store)
    follows(text, at, numbers[-2])
    expect(f"finished at step {STEPS}" in text, f"it did not finish: {text}")
    expect(output.read_bytes() == whole, "the bytes are not those of a run that was not killed")
    last = place.export(store, "water")
    expect(last.shape == (240, 256, 3) and last.tobytes() == whole, "the last checkpoint is not the last state")
    expect(place.export(store, "step") == STEPS, "step is not the last")


def follows(text, at, ranks_then):
    """The step of a start's last checkpoint. It began at the last one that the start before told of, or later:
    what a process said last may die with mpirun."""
    began = re.search(r"goes on from step (\d+) of (\d+) processes", text)
    if at:
        expect(began is not None, f"it began anew after step {at}: {text}")
        expect(int(began[1]) >= at and int(began[1]) % 20 == 0, f"it went on from step {began[1]}, not {at}")
        expect(int(began[2]) == ranks_then, f"{began[2]} processes, not {ranks_then}")
        at = int(began[1])
    steps = [int(step) for step in re.findall(r"checkpoint at step (\d+)", text)]
    return steps[-1] if steps else at


def killed(place, words, store):
    """A start that is killed at a random instant after some checkpoints; what it said."""
    mark, log = secrets.token_hex(8), place.folder / f"log {secrets.token_hex(4)}"
    surroundings = {**place.environment, "BACKSTAY_STORE_PATH": str(store), "BACKSTAY_TEST_MARK": mark}
    with open(log, "wb") as file:
        process = subprocess.Popen(words, env=surroundings, stdin=subprocess.DEVNULL, stdout=file,
                                   stderr=subprocess.STDOUT, start_new_session=True)
    wanted, end = place.random.randrange(1, 6), time.monotonic() + LIMIT_SECONDS
    while log.read_text(errors="replace").count("checkpoint at step") < wanted:
        expect(process.poll() is None and time.monotonic() < end,
               f"it ended, or took no checkpoint: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.002)
    time.sleep(place.random.random() * 0.03)
    while pids := alive(mark):
        for pid in pids:
            send(pid, signal.SIGKILL)
        time.sleep(0.002)
    process.wait()
    return log.read_text(errors="replace")


def alive(mark):
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and mark.encode() in pathlib.Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
        except OSError:
            pass
    return found


# ---- CMake, guide -----------------------------------------------------------------------------------

def cmake(place, mpi):
    folder, store = place.folder / f"cmake {mpi}", place.store()
    run(["cmake", "-S", HERE, "-B", folder, f"-DMPI_C_COMPILER=mpicc.{mpi}",
         f"-DMPI_Fortran_COMPILER=mpifort.{mpi}"], env=place.environment)
    run(["cmake", "--build", folder, "-j", "2"], env=place.environment)
    output = place.go(place.mpirun(mpi, 2, folder / "parts", "store"), store)
    expect("store: as expected" in output, output)
    output = place.go(place.mpirun(mpi, 2, folder / "shallow", "20"), place.store())
    expect("finished at step 20" in output, output)


def blocks(language):
    text = (ROOT / "docs/guide/fortran.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def shown(place, mpi, store, number, around, text):
    """Lines of the guide in a program around them, which two processes run."""
    source = place.folder / f"shown{number}.f90"
    source.write_text((HERE / f"guide_{around}.f90").read_text().replace("! BLOCK\n", text))
    place.go(place.mpirun(mpi, 2, place.build(mpi, source)), store, BACKSTAY_JOB=f"shown{number}")


def guide(place, mpi):
    """The commands of the guide as they stand there, its rule of make, and its lines of CMake."""
    tools = place.folder / "tools"
    tools.mkdir()
    for name in ("mpicc", "mpifort", "mpirun"):
        (tools / name).symlink_to(shutil.which(f"{name}.{mpi}"))
    (tools / "backstay").symlink_to(place.backstay)
    path = f"{tools}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    store = place.store()
    surroundings = {**place.environment, "PATH": path, "BACKSTAY_STORE_PATH": str(store)}
    commands = blocks("sh")
    expect(len(commands) == 3, f"the guide has {len(commands)} blocks of commands")
    output = run(["bash", "-euo", "pipefail", "-c", "\n".join(commands)], cwd=ROOT, env=surroundings)
    for words in ("finished at step 200", "goes on from step 200 of 4 processes", "finished at step 300",
                  "(240, 256, 3)"):
        expect(words in output, f"{words!r} is not in {output[-2000:]}")

    rule = place.folder / "rule"
    rule.mkdir()
    (rule / "Makefile").write_text(blocks("make")[0])
    shutil.copy(ROOT / "examples/shallow/shallow.f90", rule)
    prefix = ROOT / "target/prefix"
    surroundings.update({"PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig"), "LD_LIBRARY_PATH": str(prefix / "lib")})
    run(["make", "-C", rule, "shallow"], env=surroundings)
    output = run(["mpirun", "-n", "2", rule / "shallow", "300"], env=surroundings)
    expect("goes on from" not in output and "finished at step 300" in output, output)

    programs, lines = blocks("fortran")[:1], blocks("fortran")[1:]
    for number, text in enumerate(programs):
        shown(place, mpi, store, number, "calls", text.replace(
            "call backstay_open(", "allocate (cell(4, 4))\ncell = 0\ncall MPI_Init()\ncall backstay_open(", 1))
    for number, text in enumerate(lines, 1):
        shown(place, mpi, store, number, "lines", text)
    every = re.findall(r"^```(\w+)$", (ROOT / "docs/guide/fortran.md").read_text(), re.M)
    expect(sorted(set(every)) == ["cmake", "fortran", "make", "sh"] and every.count("cmake") == every.count("make") == 1,
           f"the guide has blocks that nobody runs: {every}")

    project = (HERE / "CMakeLists.txt").read_text().splitlines()
    for line in blocks("cmake")[0].splitlines():
        expect(line in project, f"{line!r} is not in tests/fortran/CMakeLists.txt")


# ---- Running ----------------------------------------------------------------------------------------

def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backstay", type=pathlib.Path, default=ROOT / "target/release/backstay")
    parser.add_argument("--only", default="", help="tests whose name matches this expression")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    settings = parser.parse_args()
    if settings.seed is None:
        settings.seed = secrets.randbelow(1 << 31)
    return settings


def main():
    settings = arguments()
    place = Place(settings)
    count = {"ok": 0, "FAILED": 0, "skipped": 0}
    began = time.monotonic()
    for name, function, which in tests():
        for mpi in which:
            if not re.search(settings.only, name):
                continue
            start, outcome, text = time.monotonic(), "ok", ""
            try:
                function(place, mpi)
            except Skip as reason:
                outcome, text = "skipped", f": {reason}"
            except Failure as failure:
                outcome, text = "FAILED", f": {failure}"
            except Exception as error:              # a defect of the harness, told like the others
                outcome, text = "FAILED", f": {type(error).__name__}: {error}"
            count[outcome] += 1
            print(f"{outcome:8}{name} [{mpi}], {time.monotonic() - start:.1f} s{text}", flush=True)
    if settings.keep:
        print(f"kept: {place.folder}")
    else:
        shutil.rmtree(place.folder, ignore_errors=True)
    print(f"seed {settings.seed}, {time.monotonic() - began:.0f} s")
    print(f"{count['ok']} passed, {count['FAILED']} failed, {count['skipped']} skipped")
    return 1 if count["FAILED"] or not count["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
