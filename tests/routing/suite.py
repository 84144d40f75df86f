# SPDX-License-Identifier: Apache-2.0 OR MIT
"""h5py's own tests, as its wheel has them, without routing and with all of their files routed: the same tests pass.

Prints how many passed and failed, and both times. Some fail in any case: as root, files without permissions can be opened.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

# h5py makes its files in folders of their own in the temporary folder; pytest in folders two below that.
PATTERNS = ["tmp/*/*", "tmp/*/*/*/*"]
LIMIT_SECONDS = 1200


def judged(text):
    """Tests that failed, and how many did what."""
    failed = sorted(re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.M))
    counts = re.findall(r"(\d+) (passed|failed|skipped|error)", text.splitlines()[-1] if text.splitlines() else "")
    return failed, {what: int(count) for count, what in counts}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backstay", type=pathlib.Path, required=True)
    parser.add_argument("--library", type=pathlib.Path, required=True)
    settings = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="backstay-suite-"))
    memory = pathlib.Path(tempfile.mkdtemp(prefix="backstay-suite-", dir="/dev/shm"))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("BACKSTAY_", "LD_PRELOAD"))}
    environment = {**kept, "TMPDIR": str(folder / "tmp"), "BACKSTAY_STORE_PATH": str(memory), "BACKSTAY_JOB": "suite"}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--pyargs", "h5py"]
    routes = [word for pattern in PATTERNS for word in ("--route", pattern)]
    run = [settings.backstay.resolve(), "run", "--restarts", "0", "--route-library", settings.library.resolve(), *routes, "--"]
    outcomes = []
    try:
        for command in (tests, run + tests):
            shutil.rmtree(folder / "tmp", ignore_errors=True)
            (folder / "tmp").mkdir()
            began = time.monotonic()
            done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  text=True, timeout=LIMIT_SECONDS)
            outcomes.append((*judged(done.stdout), time.monotonic() - began))
        listed = subprocess.run([settings.backstay, "ls", memory], stdout=subprocess.PIPE, text=True).stdout
    finally:
        for used in (folder, memory):
            shutil.rmtree(used, ignore_errors=True)
    (failed, counts, plain_s), (routed_failed, routed_counts, routed_s) = outcomes
    print(f"without routing: {counts}, {plain_s:.1f} s; routed: {routed_counts}, {routed_s:.1f} s ({routed_s / plain_s:.2f})")
    if not counts.get("passed") or counts != routed_counts or failed != routed_failed:
        print(f"FAILED: without routing {failed}, routed {routed_failed}")
        return 1
    if "complete" not in listed:
        print(f"FAILED: nothing was routed: {listed}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
