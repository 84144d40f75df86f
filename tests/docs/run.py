# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Runs every code block of README.md, docs/guide and others, in order, as a reader would who has just installed it.

Each page has a folder with what a checkout has, a home and stores of its own, and no network. Commands are run, and
what a page shows of their output is looked for in it; C is compiled with warnings as errors and run on two
processes, CMake builds, settings open a session. Of the reference, each setting opens one too, and each option of a synopsis is
one of the command's. What cannot run here says why in the page (tests/docs/pages.py has
the comments); a block that is neither run nor marked fails. Pages of languages are run by their own tests: ELSEWHERE.

Prints a line for each page and "N blocks run, N by other tests, N not run" last.
"""

import argparse
import os
import pathlib
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent / "multiprocess"))
sys.path.insert(0, str(HERE))
import pages                                       # noqa: E402
from job import SURROUNDINGS, Failure, expect      # noqa: E402

LIMIT_SECONDS = 120
# Tests that run all blocks of a page, and the target that they are part of.
ELSEWHERE = {
    "docs/guide/fortran.md": ("tests/fortran/run.py", "test-fortran"),
    "docs/guide/python.md": ("bindings/python/tests/test_guide.py", "test-python"),
    "docs/guide/pytorch.md": ("bindings/python/tests/torch/test_guide.py", "test-torch"),
}
REFERENCE = "docs/reference/cli.md"
PAGES = ["README.md", "docs/guide/*.md", "docs/cost.md", "docs/gallery.md", REFERENCE, "deploy/README.md"]
# Values of settings that have no default.
EXAMPLES = {
    "job": "settings", "node": "one", "store_path": "", "reserve_bytes": "256MiB", "segment_bytes": "1MiB",
    "cpu_set": "0-0", "interval": "60s", "node_mtbf_hours": "5a", "failure_domain": "rack", "failure_domains": "",
    "encode_rate_bytes": "500MB/s", "fabric_provider": "shm", "listen_address": "127.0.0.1:0", "restore_checkpoint": "1", "fresh": "0", "archive": "",
    "archive_every": "1", "capture_threads": "2", "aggregate_nodes": "8", "archive_history": "2", "archive_rate_bytes": "1GB/s",
    "archive_reserve_bytes": "2MiB", "archive_stripe_count": "2", "archive_stripe_size_bytes": "1MiB"}
STRICT = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]
# Commands that end when somebody ends them: they are interrupted after a while, and have to have said something.
ENDLESS = re.compile(r"--watch|--listen")
# Where pages say that a shared file system is mounted.
SHARED = "/pfs"


class Place:
    """A folder for all pages, with an installation."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="backstay-docs-"))
        self.prefix = self.folder / "prefix"
        for name in ("home", "tmp", "pfs/project"):
            (self.folder / name).mkdir(parents=True)
        # What is installed was built before (make test-docs): neither this nor pages that install build anything.
        release = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
        done = subprocess.run(["make", "--no-print-directory", "install", "CARGO=true", f"PREFIX={self.prefix}", "DESTDIR="],
                              cwd=ROOT, capture_output=True, text=True, check=False)
        expect(done.returncode == 0, f"make install: {done.stderr}")
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith(("BACKSTAY_", "MAKE", "CARGO_", "SLURM_", "PKG_CONFIG"))}
        self.environment.update(SURROUNDINGS)
        self.environment.update({
            "PATH": f"{self.prefix}/bin:{os.environ['PATH']}", "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"), "PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig"),
            "LD_LIBRARY_PATH": str(self.prefix / "lib"), "CMAKE_PREFIX_PATH": str(self.prefix),
            "CARGO": "true", "CARGO_TARGET_DIR": release, "CARGO_NET_OFFLINE": "true",
            "CARGO_HOME": os.environ.get("CARGO_HOME", os.path.expanduser("~/.cargo")),
            "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", os.path.expanduser("~/.rustup")),
            "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "COLUMNS": "120"})


class Page:
    """A page's folder, its shell, and what became of its blocks."""

    def __init__(self, place, name):
        self.place, self.name = place, name
        self.folder = place.folder / pathlib.Path(name).with_suffix("").as_posix().replace("/", "-")
        self.folder.mkdir()
        for entry in ROOT.iterdir():
            if entry.name not in ("target", ".git"):
                (self.folder / entry.name).symlink_to(entry)
        (self.folder / "target").mkdir()
        self.state = place.folder / f"{self.folder.name}.state"
        store = place.folder / f"{self.folder.name}.stores"
        store.mkdir()
        self.environment = {**place.environment, "BACKSTAY_STORE_PATH": str(store)}
        self.groups, self.count, self.not_run, self.number = [], 0, [], 0

    def go(self):
        for block in pages.blocks((ROOT / self.name).read_text()):
            try:
                self.block(block)
            except Failure as failure:
                raise Failure(f"{self.name}:{block.line}: {failure}") from None

    def block(self, block):
        if block.language == "indented" and self.name == REFERENCE:
            self.synopsis(block)
            self.count += 1
            return
        if "not run" in block.marks:
            expect(block.marks["not run"], "it says no reason")
            if block.language in ("sh", "console"):
                self.looks_like_shell(block)
            self.not_run.append((block.line, block.marks["not run"]))
            return
        if block.language == "hidden":
            self.shell(block.text)
            return
        if "file" in block.marks:
            (self.folder / block.marks["file"]).write_text(self.here(block.text))
        how = {"sh": self.sh, "console": self.console, "c": self.c, "cmake": self.cmake, "toml": self.toml,
               "rust": self.example}.get(block.language)
        expect(how or "file" in block.marks, f"a block of {block.language or 'no language'!r} is neither run nor marked")
        if how:
            how(block)
        self.count += 1

    def here(self, text):
        """Shared file systems are below the temporary folder."""
        return re.sub(rf"(?<![\w.]){SHARED}/", f"{self.place.folder}{SHARED}/", text)

    def looks_like_shell(self, block):
        lines = block.text if block.language == "sh" else "\n".join(text for text, _ in pages.console(block.text))
        done = subprocess.run(["bash", "-n"], input=lines, capture_output=True, text=True, check=False)
        expect(done.returncode == 0, f"bash -n: {done.stderr}")

    # ---- Shell ------------------------------------------------------------------------------------

    def shell(self, text, fails=False, limit=LIMIT_SECONDS):
        """Runs commands where the last ones left folder and environment; what they said."""
        self.number += 1
        script, log = (self.place.folder / f"{self.folder.name}.{self.number}.{end}" for end in ("sh", "log"))
        script.write_text(f'cd "$(cat {self.state}.cwd 2>/dev/null || echo {self.folder})"\n'
                          f"! [ -e {self.state} ] || . {self.state}\n"
                          f"trap 'export -p >{self.state}; pwd >{self.state}.cwd' EXIT\nset -euo pipefail\n"
                          + self.here(text) + "\n")
        ours, theirs = pty.openpty()           # somebody sits there who says yes to each question
        mode = termios.tcgetattr(theirs)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, mode)
        os.write(ours, b"y\n" * 20)
        with open(log, "wb") as output:
            process = subprocess.Popen(["bash", str(script)], env=self.environment, stdin=theirs, stdout=output,
                                       stderr=theirs, start_new_session=True)
        os.close(theirs)
        self.groups.append(process.pid)
        said = self.listen(process, ours, limit)
        os.close(ours)
        said = log.read_text(errors="replace") + said
        expect(process.returncode is not None, f"still running after {limit} s: {text}\n{said[-3000:]}")
        expect((process.returncode != 0) == fails,
               f"ended with {process.returncode}: {text}\n{said[-3000:]}")
        return said

    @staticmethod
    def listen(process, terminal, limit):
        """What comes to the terminal until the process ends, or as long as it may run."""
        said, end = b"", time.monotonic() + limit
        os.set_blocking(terminal, False)
        while True:
            ended = process.poll() is not None
            try:
                while some := os.read(terminal, 65536):
                    said += some
            except OSError:
                pass
            if ended or time.monotonic() > end:
                return said.decode(errors="replace").replace("\r", "")
            time.sleep(0.02)

    def sh(self, block):
        self.shell(block.text)

    def console(self, block):
        commands = pages.console(block.text)
        expect(commands, "no line begins with `$ `")
        failing = {int(number) for number in block.marks.get("fails", "").split()}
        for number, (command, expected) in enumerate(commands, 1):
            if ENDLESS.search(command):
                said = self.shell(f"timeout -s INT 3 {command}", fails=True)
                expect(said.strip(), f"it said nothing: {command}")
            else:
                said = self.shell(command, fails=number in failing)
            for line in expected:
                expect(pages.says(line, said), f"{line!r} is not in what `{command}` says:\n{said[-3000:]}")

    # ---- Languages --------------------------------------------------------------------------------

    def c(self, block):
        """A whole program of the examples is built by the page; lines are compiled and run."""
        if self.stands_in_examples(block):
            return
        usual = "opens.c" if "_open(" in block.text else "opened.c"
        around = (HERE / block.marks.get("in", usual)).read_text()
        program = self.folder / "target" / f"line{block.line}"
        program.with_suffix(".c").write_text(around.replace("BLOCK\n", self.here(block.text)))
        flags = self.shell("pkg-config --cflags --libs backstay")
        self.shell(shlex.join(["mpicc", *STRICT, f"-I{HERE}", "-o", str(program), f"{program}.c", *flags.split()]))
        self.shell(f"BACKSTAY_JOB=line{block.line} mpirun -n 2 {program}")

    def stands_in_examples(self, block):
        lines = [line.strip() for line in block.text.splitlines() if line.strip()]
        for file in (ROOT / "examples").rglob("*.*"):
            if file.suffix in (".c", ".rs"):
                have = [line.strip() for line in file.read_text().splitlines() if line.strip()]
                if any(have[at:at + len(lines)] == lines for at in range(len(have))):
                    return True
        return False

    def example(self, block):
        expect(self.stands_in_examples(block), "it stands in none of the examples, which tests run")

    def cmake(self, block):
        """The lines in a project of a program."""
        project = self.folder / "target" / f"line{block.line}"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(page LANGUAGES C)\nset(CMAKE_C_STANDARD 99)\n"
            f"add_executable(program {ROOT}/examples/quickstart/quickstart.c)\n" + block.text)
        self.shell(f"cmake -S {project} -B {project}/build && cmake --build {project}/build")
        self.shell(f"BACKSTAY_JOB=line{block.line} mpirun -n 2 {project}/build/program 1")

    def toml(self, block):
        """Dependencies that there are; or settings, with which a session opens."""
        if "[dependencies]" in block.text:
            self.dependencies(block)
            return
        file, program = self.folder / f"line{block.line}.toml", self.folder / "target/of-settings"
        file.write_text(self.here(block.text))
        if not program.exists():
            self.shell(f"mpicc -o {program} examples/quickstart/quickstart.c $(pkg-config --cflags --libs backstay)")
        self.shell(f"BACKSTAY_JOB=line{block.line} BACKSTAY_CONFIG={file} mpirun -n 1 {program} 1")

    def dependencies(self, block):
        crate = self.folder / "target/crate"
        (crate / "src").mkdir(parents=True)
        (crate.parent / "backstay").symlink_to(ROOT)
        shutil.copy(ROOT / "Cargo.lock", crate)
        (crate / "src/main.rs").write_text("fn main() {}\n")
        (crate / "Cargo.toml").write_text('[package]\nname = "page"\nversion = "0.0.0"\nedition = "2024"\n'
                                          + block.text + "\n[workspace]\n")
        self.shell(f"cargo metadata --offline --format-version 1 --manifest-path {crate}/Cargo.toml >{crate}/found"
                   f" && grep -q '\"name\":\"backstay\"' {crate}/found")

    def synopsis(self, block):
        """Commands and options that there are."""
        for form in re.split(r"^(?=backstay )", block.text.replace("    backstay", "backstay"), flags=re.M):
            words = form.split()[1:]
            commands = [word for word in words if re.fullmatch("[a-z]+", word)][:2 if "eval" in words else 1]
            said = self.shell(f"backstay {' '.join(commands)} --help")
            for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", form):
                expect(re.search(rf"(?<![\w-]){option}(?![\w-])", said), f"backstay {commands} has no {option}")

    def close(self):
        """Ends what the page left running."""
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass


def settings(page):
    """Every setting of the reference: two starts that have all of them, from a file and from the environment."""
    names, given = [], {**EXAMPLES, "store_path": page.environment["BACKSTAY_STORE_PATH"],
                        "archive": f"{page.place.folder}/pfs/settings", "failure_domains": f"{page.folder}/domains"}
    for line in (ROOT / "docs/reference/config.md").read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 8 and cells[6].startswith("`BACKSTAY_"):
            name, default = cells[0].strip("`"), cells[2].strip("`")
            expect(cells[6] == f"`BACKSTAY_{name.upper()}`", f"the variable of {name} is {cells[6]}")
            expect(default or name in given, f"{name} has no default; tests/docs/run.py needs an example")
            given.setdefault(name, default.strip('"'))
            names.append(name)
    expect(len(names) > 40 and not EXAMPLES.keys() - set(names), f"not in the page: {EXAMPLES.keys() - set(names)}")
    (page.folder / "domains").write_text("one rack\n")
    program, first = "target/of-settings", [name for name in names if name not in ("restore_checkpoint", "fresh")]
    quoted = {name: value if re.fullmatch(r"[0-9.]+|true|false", value) else f'"{value}"' for name, value in given.items()}
    (page.folder / "all.toml").write_text("".join(f"{name} = {quoted[name]}\n" for name in first))
    page.shell(f"mpicc -o {program} examples/quickstart/quickstart.c $(pkg-config --cflags --libs backstay)")
    said = page.shell(f"env -u BACKSTAY_STORE_PATH BACKSTAY_CONFIG=all.toml mpirun -n 2 {program} 10")
    expect("every cell is 10" in said, said)
    words = " ".join(shlex.quote(f"BACKSTAY_{name.upper()}={given[name]}") for name in names)
    said = page.shell(f"env {words} mpirun -n 2 {program} 20")
    expect("restored checkpoint 1" in said and "every cell is 20" in said, said)
    page.count += len(names)


def elsewhere(name):
    """Blocks of a page that another test runs; it has to name the page."""
    test, target = ELSEWHERE[name]
    expect(pathlib.Path(name).as_posix() in (ROOT / test).read_text(), f"{test} does not name {name}")
    found = [block for block in pages.blocks((ROOT / name).read_text()) if block.language != "hidden"]
    return len(found), target


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="pages whose name matches this expression")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    return parser.parse_args()


def main():
    wanted, began = arguments(), time.monotonic()
    names = [str(path.relative_to(ROOT)) for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    names.append("docs/reference/config.md")
    place, run, others, not_run, failed = Place(), 0, 0, 0, 0
    for name in names:
        if not re.search(wanted.only, name):
            continue
        start, page = time.monotonic(), None
        try:
            if name in ELSEWHERE:
                count, target = elsewhere(name)
                others += count
                print(f"ok      {name}: {count} blocks, by make {target}", flush=True)
                continue
            page = Page(place, name)
            if name == "docs/reference/config.md":
                settings(page)
            else:
                page.go()
            print(f"ok      {name}: {page.count} blocks, {time.monotonic() - start:.1f} s", flush=True)
        except Failure as failure:
            failed += 1
            print(f"FAILED  {failure}", flush=True)
        finally:
            if page:
                page.close()
                run, not_run = run + page.count, not_run + len(page.not_run)
                for line, reason in page.not_run:
                    print(f"        {name}:{line} is not run: {reason}")
    if wanted.keep:
        print(f"kept: {place.folder}")
    else:
        shutil.rmtree(place.folder, ignore_errors=True)
    print(f"{time.monotonic() - began:.0f} s, {failed} pages failed")
    print(f"{run} blocks run, {others} by other tests, {not_run} not run")
    return 1 if failed or not run + others else 0


if __name__ == "__main__":
    sys.exit(main())
