# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a long run did and survived, as a file for `benchmarks/results`: run, machine, commit, counts by kind.

As a program it runs a command that writes its counts to the file that BACKSTAY_COUNTS names.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time


def machine():
    """The processor as the benchmarks name it, its cores and the kernel."""
    found = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    name = found.get("model name", "?").replace("(R)", "").replace("(TM)", "")
    family, model = found.get("cpu family", "?"), found.get("model", "?")
    return f"{name} (family {family}, model {model}), {os.cpu_count()} cores, Linux {platform.release()}"


def commit():
    """The commit of the tree, with `-changed` where it is not as committed."""
    def git(*words):
        here = pathlib.Path(__file__).parent
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False).stdout.strip()
    head = git("rev-parse", "--short=12", "HEAD")
    return (head or "unknown") + ("-changed" if git("status", "--porcelain", "--untracked-files=no") else "")


class Record:
    """Machine and commit are those of the beginning."""

    def __init__(self, path, run):
        self.path = path
        self.content = {"run": run, "machine": machine(), "commit": commit()} if path else {}

    def write(self, seconds, passed, failed, counts):
        if self.path:
            self.content |= {"seconds": round(seconds), "passed": passed, "failed": failed, "counts": counts}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.content, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, help="what the run is called")
    parser.add_argument("--record", type=pathlib.Path, help="file to write")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    settings = parser.parse_args()
    record, began = Record(settings.record, settings.run), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counted = pathlib.Path(folder) / "counts.json"
        done = subprocess.run(settings.command, env={**os.environ, "BACKSTAY_COUNTS": str(counted)}, check=False)
        if counted.exists():
            record.write(time.monotonic() - began, **json.loads(counted.read_text()))
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
